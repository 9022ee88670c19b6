//! Threats to time: expiry, silence, lapsing grants, clocks.

use super::*;

pub(super) const ALL: &[Threat] = &[
    ("ask after one's time", ask_expired),
    ("register a child of an expired parent", register_expired),
    ("register with a lapsed grant", register_lapsed),
    ("stay after one's time", stay_expired),
    ("hoard grants for ever", hoard_grants),
    ("fall silent", silence),
    ("outlive the parent's expiry", outlive_expiry),
    ("escape expiry in quarantine", expire_quarantined),
    ("ask after the clock was turned back", ask_clock),
    ("register after the clock was turned back", register_clock),
    ("turn the clock back in small steps", small_steps),
    (
        "turn the clock back between two controllers",
        clock_across_restart,
    ),
    ("move the clock to shorten the cooldown", clock_and_cooldown),
];

fn expiring(ms: u64) -> Contract {
    let mut rules = contract(3, 10);
    rules.expiration = millis(ms);
    rules
}

fn ask_expired() -> Held {
    let mut bench = Bench::new(expiring(1_000))?;
    let root = bench.root()?;
    bench.wait(999);
    bench.grant(root)?;
    bench.wait(1);
    refused(bench.grant(root), Code::DenyExpired)
}

fn register_expired() -> Held {
    let mut bench = Bench::new(expiring(1_000))?;
    let root = bench.root()?;
    bench.wait(500);
    let grant = bench.grant(root)?;
    bench.wait(500);
    refused(bench.register(&grant.manifest()), Code::DenyExpired)
}

fn register_lapsed() -> Held {
    let mut bench = Bench::new(contract(3, 10))?;
    let root = bench.root()?;
    let grant = bench.grant(root)?;
    bench.wait(GRANT_LIFETIME_NS / 1_000_000);
    refused(bench.register(&grant.manifest()), Code::DenyExpired)
}

fn stay_expired() -> Held {
    let mut bench = Bench::new(expiring(1_000))?;
    let root = bench.root()?;
    let child = bench.child(root)?;
    held(
        bench.controller.next_timer() == Some(1_000_000_000),
        "no timer is set",
    )?;
    bench.wait(999);
    held(bench.tick() == 0, "ended too early")?;
    bench.wait(1);
    bench.tick();
    held(bench.live() == 0, "someone stays")?;
    let ends = [bench.ended(root), bench.ended(child)];
    held(ends.contains(&Some(Code::Expired)), "the wrong code")?;
    held(
        bench
            .commands
            .iter()
            .any(|c| matches!(c, Command::Kill(id, _) if *id == root)),
        "its box is not killed",
    )
}

fn hoard_grants() -> Held {
    let mut bench = Bench::new(contract(3, 2))?;
    let root = bench.root()?;
    let grant = bench.grant(root)?;
    bench.wait(GRANT_LIFETIME_NS / 1_000_000);
    bench.tick();
    held(
        bench.controller.state().outstanding() == 0,
        "the grant is still outstanding",
    )?;
    refused(bench.register(&grant.manifest()), Code::RejectReplay)?;
    bench.child(root)?;
    Ok(())
}

fn silence() -> Held {
    let mut rules = contract(3, 10);
    rules.heartbeat_timeout = millis(1_000);
    let mut bench = Bench::new(rules)?;
    let (silent, spoken) = (bench.root()?, bench.root()?);
    bench.wait(999);
    bench
        .controller
        .heartbeat(bench.now(), spoken)
        .map_err(|e| e.to_string())?;
    bench.wait(1);
    held(
        bench.tick() == 1 && bench.ended(silent) == Some(Code::ReapStale),
        "silence is not noticed",
    )?;
    let killed = Command::Kill(silent, Code::ReapStale);
    held(
        bench.commands.contains(&killed) && bench.is_live(spoken),
        "the wrong one is killed",
    )?;
    bench.wait(998);
    held(bench.tick() == 0, "the timer went by the first heartbeat")?;
    bench.wait(1);
    held(
        bench.tick() == 1 && bench.live() == 0,
        "later silence is not noticed",
    )
}

fn outlive_expiry() -> Held {
    let mut bench = Bench::new(expiring(10_000))?;
    let root = bench.root()?;
    bench.wait(5_000);
    let child = bench.child(root)?;
    let expiry = |id| {
        bench
            .controller
            .state()
            .worker(id)
            .and_then(|w| w.expires_ns)
    };
    held(
        expiry(child) == expiry(root) && expiry(root).is_some(),
        "a child's time is longer than its parent's",
    )
}

fn expire_quarantined() -> Held {
    let mut rules = expiring(5_000);
    rules.heartbeat_timeout = millis(1_000);
    let mut bench = Bench::new(rules)?;
    let root = bench.root()?;
    bench.quarantine(root);
    bench.wait(4_999);
    held(
        bench.tick() == 0,
        "one that can't speak was reaped for silence",
    )?;
    let outcome = bench.controller.release(bench.now(), root);
    let _ = bench.keep(outcome);
    held(bench.tick() == 0, "silence in quarantine counted")?;
    bench.quarantine(root);
    bench.wait(1);
    held(
        bench.tick() == 1 && bench.ended(root) == Some(Code::Expired),
        "quarantine stopped the time",
    )
}

fn ask_clock() -> Held {
    let mut bench = Bench::new(contract(3, 10))?;
    let root = bench.root()?;
    bench.wait(10_000);
    bench.wall_ms -= 2_001;
    refused(bench.grant(root), Code::DenyClock)?;
    bench.wait(60_000);
    refused(bench.grant(root), Code::DenyClock)?;
    let outcome = bench.controller.acknowledge_clock(bench.now());
    held(bench.keep(outcome), "an operator can accept the clock")?;
    bench.child(root)?;
    let jumps = bench
        .log
        .iter()
        .filter(|e| matches!(e.what, What::ClockJumped { by_ms: -2_001 }));
    held(jumps.count() == 1, "the jump is not recorded once")
}

fn register_clock() -> Held {
    let mut bench = Bench::new(contract(3, 10))?;
    let root = bench.root()?;
    let grant = bench.grant(root)?;
    bench.wall_ms -= 2_001;
    refused(bench.register(&grant.manifest()), Code::DenyClock)
}

fn small_steps() -> Held {
    let mut bench = Bench::new(contract(3, 10))?;
    let root = bench.root()?;
    for _ in 0..3 {
        bench.wait(10_000);
        bench.wall_ms -= 1_500;
        bench.tick();
    }
    refused(bench.grant(root), Code::DenyClock)
}

fn clock_across_restart() -> Held {
    let mut bench = Bench::new(contract(3, 10))?;
    bench.wait(100_000);
    bench.root()?;
    bench.wall_ms -= 50_000;
    bench.restart(0)?;
    refused(bench.root(), Code::DenyClock)
}

fn clock_and_cooldown() -> Held {
    let mut rules = contract(3, 10);
    rules.cooldown = Duration::from_secs(60);
    let mut bench = Bench::new(rules)?;
    let root = bench.root()?;
    bench.child(root)?;
    bench.wall_ms += 3_600_000;
    refused(bench.grant(root), Code::DenyCooldown)?;
    held(
        !bench.controller.state().is_clock_suspect(),
        "a clock set forward is only recorded",
    )?;
    // Nor does a boot clock that seems to run back help.
    bench.wait(59_000);
    bench.tick();
    bench.boot_ms = 0;
    refused(bench.grant(root), Code::DenyCooldown)
}
