//! Threats to stop conditions.

use belljar_policy::{OnTrigger, StopCondition};

use super::*;

pub(super) const ALL: &[Threat] = &[
    ("ask while a condition holds", ask_while_it_holds),
    ("register while a condition holds", register_while_it_holds),
    ("make a condition fail", failing_condition),
    ("make a predicate panic", panicking_predicate),
    ("spend on after the fleet must stop", fleet_is_killed),
    ("spend on after the worker must stop", worker_is_killed),
    ("carry on when the fleet must freeze", fleet_is_frozen),
    ("grow old", old_worker_is_frozen),
    ("wait in a crowd that time makes too old", crowd_is_killed),
    ("spawn fast", rate_is_limited),
];

pub(super) fn stopping(when: &str, on_trigger: OnTrigger) -> Contract {
    let mut rules = contract(5, 100);
    rules.stop_conditions.push(StopCondition {
        name: "stop".to_owned(),
        when: when.to_owned(),
        on_trigger,
        line: 1,
    });
    rules
}

fn ask_while_it_holds() -> Held {
    let mut bench = Bench::new(stopping("workers.active >= 2", OnTrigger::Deny))?;
    let root = bench.root()?;
    let child = bench.child(root)?;
    refused(bench.grant(root), Code::DenyStopCondition)?;
    refused(bench.root(), Code::DenyStopCondition)?;
    bench.end(child, Code::Exited);
    bench.child(root)?;
    Ok(())
}

fn register_while_it_holds() -> Held {
    let mut bench = Bench::new(stopping("workers.active >= 2", OnTrigger::Deny))?;
    let root = bench.root()?;
    let grants = [bench.grant(root)?, bench.grant(root)?];
    bench.register(&grants[0].manifest())?;
    refused(
        bench.register(&grants[1].manifest()),
        Code::DenyStopCondition,
    )
}

fn failing_condition() -> Held {
    let mut bench = Bench::new(stopping(
        "100 / (workers.active - 1) > 1000",
        OnTrigger::Kill,
    ))?;
    let root = bench.root()?;
    refused(bench.grant(root), Code::DenyStopCondition)?;
    held(
        bench.refusals(Code::DenyStopCondition) == 1,
        "the refusal is not recorded",
    )?;
    held(bench.is_live(root), "an error killed someone")
}

fn panicking_predicate() -> Held {
    let mut bench = Bench::new(contract(5, 100))?;
    let root = bench.root()?;
    // Raised in silence: no message on the terminal of whoever runs the tests.
    let panics = |_: &Facts| -> bool { std::panic::resume_unwind(Box::new("threat")) };
    bench
        .controller
        .add_predicate("panics", OnTrigger::Deny, std::sync::Arc::new(panics));
    refused(bench.grant(root), Code::DenyStopCondition)?;
    held(
        bench.refusals(Code::DenyStopCondition) == 1,
        "the refusal is not recorded",
    )
}

fn fleet_is_killed() -> Held {
    let mut bench = Bench::new(stopping("budget.tokens > 100", OnTrigger::Kill))?;
    let (root, other) = (bench.root()?, bench.root()?);
    bench.usage(root, used_tokens(100));
    held(bench.live() == 2, "killed too early")?;
    bench.usage(root, used_tokens(1));
    held(
        bench.live() == 0 && bench.ended(other) == Some(Code::KilledStopCondition),
        "someone lives on",
    )?;
    let killed = Command::Kill(other, Code::KilledStopCondition);
    held(bench.commands.contains(&killed), "a box is not killed")
}

fn worker_is_killed() -> Held {
    let mut bench = Bench::new(stopping("worker.tokens > 10", OnTrigger::Kill))?;
    let (root, other) = (bench.root()?, bench.root()?);
    bench.usage(root, used_tokens(11));
    held(
        !bench.is_live(root) && bench.is_live(other),
        "the wrong one lives on",
    )
}

fn fleet_is_frozen() -> Held {
    let mut bench = Bench::new(stopping("budget.cost_usd > 1.5", OnTrigger::Quarantine))?;
    let (root, other) = (bench.root()?, bench.root()?);
    bench.usage(
        root,
        Usage {
            micro_usd: 1_500_001,
            ..Usage::default()
        },
    );
    held(
        bench.commands.contains(&Command::Freeze(other)),
        "a box is not frozen",
    )?;
    refused(bench.grant(other), Code::DenyQuarantined)?;
    let outcome = bench.controller.release(bench.now(), other);
    let _ = bench.keep(outcome);
    held(
        bench.controller.state().quarantined_count() == 2,
        "released while it still holds",
    )
}

fn old_worker_is_frozen() -> Held {
    let mut bench = Bench::new(stopping("worker.age_s >= 2.0", OnTrigger::Quarantine))?;
    let old = bench.root()?;
    bench.wait(1_500);
    let young = bench.root()?;
    bench.tick();
    held(
        bench.controller.state().quarantined_count() == 0,
        "frozen too early",
    )?;
    bench.wait(1_000);
    held(
        bench
            .controller
            .next_timer()
            .is_some_and(|due| due <= bench.now().boot_ns),
        "no timer is set",
    )?;
    bench.tick();
    refused(bench.grant(old), Code::DenyQuarantined)?;
    bench
        .grant(young)
        .map(|_| ())
        .map_err(|_| "the wrong one is frozen".to_owned())
}

fn crowd_is_killed() -> Held {
    let when = "workers.active > 2 && lineage.depth == 1";
    let mut bench = Bench::new(stopping(when, OnTrigger::Kill))?;
    let root = bench.root()?;
    let child = bench.child(root)?;
    bench.root()?;
    // It is about all workers now, so the next tick, which is due, looks at all of them.
    held(
        bench
            .controller
            .next_timer()
            .is_some_and(|due| due <= bench.now().boot_ns),
        "no timer is set",
    )?;
    bench.tick();
    held(
        !bench.is_live(child) && bench.live() == 2,
        "the wrong ones live on",
    )
}

fn rate_is_limited() -> Held {
    let mut bench = Bench::new(stopping("rate.spawns_per_min >= 3", OnTrigger::Deny))?;
    let root = bench.root()?;
    bench.child(root)?;
    bench.child(root)?;
    refused(bench.grant(root), Code::DenyStopCondition)?;
    bench.wait(60_000);
    bench.child(root)?;
    Ok(())
}
