//! Threats to the budget: carving more than there is, spending twice, hiding use.

use super::*;

pub(super) const ALL: &[Threat] = &[
    ("ask for more than the parent has", more_than_parent),
    ("give each sibling the whole budget", siblings_multiply),
    ("multiply the budget with roots", roots_multiply),
    ("end to get back what was used up", respawn),
    ("end one's keeper to get back what was used up", lose_keeper),
    ("start again to get back what was used up", restart_budget),
    ("use more than one has", overdraft),
    ("outlive a parent to keep its budget twice", keep_twice),
    ("start a box with nothing to hold", empty_box),
    ("have more replicas below than granted", replicas_below),
];

fn with_tokens(number: u64) -> Contract {
    let mut rules = contract(5, 100);
    rules.budget.tokens = Amount::of(number);
    rules
}

fn more_than_parent() -> Held {
    let mut bench = Bench::new(with_tokens(100))?;
    let root = bench.root()?;
    refused(bench.grant_with(root, tokens(101)), Code::DenyBudget)?;
    let unbounded = Asked {
        tokens: Some(Amount::UNBOUNDED),
        ..Asked::default()
    };
    refused(bench.grant_with(root, unbounded), Code::DenyBudget)?;
    bench.grant_with(root, tokens(100))?;
    Ok(())
}

fn siblings_multiply() -> Held {
    let mut bench = Bench::new(with_tokens(100))?;
    let root = bench.root()?;
    bench.grant_with(root, tokens(100))?;
    refused(bench.grant_with(root, tokens(1)), Code::DenyBudget)
}

fn roots_multiply() -> Held {
    let mut bench = Bench::new(with_tokens(100))?;
    bench.root_with(tokens(60))?;
    refused(bench.root_with(tokens(60)), Code::DenyBudget)?;
    bench.root_with(tokens(40))?;
    Ok(())
}

fn respawn() -> Held {
    let mut bench = Bench::new(with_tokens(100))?;
    let root = bench.root()?;
    let child = bench.child_with(root, tokens(80))?;
    bench.usage(child, used_tokens(60));
    bench.end(child, Code::Exited);
    refused(bench.grant_with(root, tokens(41)), Code::DenyBudget)?;
    bench.grant_with(root, tokens(40))?;
    Ok(())
}

/// What it used beyond what was told, nobody knows.
fn lose_keeper() -> Held {
    let mut bench = Bench::new(with_tokens(100))?;
    let root = bench.root()?;
    let child = bench.child_with(root, tokens(60))?;
    bench.usage(child, used_tokens(10));
    // What others were given of it is theirs, and comes back when they end.
    let grandchild = bench.child_with(child, tokens(20))?;
    bench.usage(grandchild, used_tokens(5));
    bench.end(grandchild, Code::Exited);
    bench.lose(child);
    held(bench.ended(child) == Some(Code::Lost), "it counts as lost")?;
    refused(bench.grant_with(root, tokens(41)), Code::DenyBudget)?;
    bench.grant_with(root, tokens(40))?;
    Ok(())
}

fn restart_budget() -> Held {
    let mut bench = Bench::new(with_tokens(100))?;
    let root = bench.root()?;
    let child = bench.child(root)?;
    bench.usage(child, used_tokens(30));
    bench.usage(root, used_tokens(30));
    bench.restart(0)?;
    refused(bench.root_with(tokens(41)), Code::DenyBudget)?;
    bench.root_with(tokens(40))?;
    Ok(())
}

fn overdraft() -> Held {
    let mut bench = Bench::new(with_tokens(100))?;
    let root = bench.root()?;
    held(
        bench.usage(root, used_tokens(100)).is_none(),
        "all of it may be used",
    )?;
    let over = bench
        .usage(root, used_tokens(7))
        .ok_or("overdraft is not noticed")?;
    held(over.excess == used_tokens(7), "the excess is wrong")?;
    held(
        bench.controller.state().overdraft() == used_tokens(7),
        "the excess is not kept",
    )
}

fn keep_twice() -> Held {
    let mut rules = with_tokens(100);
    rules.on_parent_exit = belljar_policy::OnParentExit::Keep;
    let mut bench = Bench::new(rules)?;
    let root = bench.root()?;
    let child = bench.child_with(root, tokens(80))?;
    let grandchild = bench.child_with(child, tokens(50))?;
    bench.usage(child, used_tokens(10));
    bench.end(child, Code::Exited);
    // 100, less 50 that the grandchild still holds, less 10 used up.
    refused(bench.grant_with(root, tokens(41)), Code::DenyBudget)?;
    let grant = bench.grant_with(root, tokens(40))?;
    bench.register(&grant.manifest())?;
    bench.end(root, Code::Exited);
    held(bench.is_live(grandchild), "orphans are kept here")?;
    refused(bench.root_with(tokens(1)), Code::DenyBudget)
}

fn empty_box() -> Held {
    let mut rules = contract(3, 10);
    rules.budget.memory_mb = Amount::of(100);
    let mut bench = Bench::new(rules)?;
    let request = RootRequest {
        worker: WorkerId(1),
        jti: Jti(1),
        asked: Asked::default(),
        need: Budget {
            memory_mb: Amount::of(100),
            ..Budget::ZERO
        },
        lifetime: None,
    };
    let outcome = bench.controller.admit_root(bench.now(), &request);
    bench.keep(outcome).map_err(|denial| denial.code)?;
    let mut child = bench.ask(WorkerId(1), Asked::default());
    child.need.memory_mb = Amount::of(10);
    refused(bench.request(&child), Code::DenyBudget)
}

fn replicas_below() -> Held {
    let mut rules = contract(5, 100);
    rules.budget.replicas = Amount::of(3);
    let mut bench = Bench::new(rules)?;
    let root = bench.root()?;
    let two = Asked {
        replicas: Some(Amount::of(1)),
        ..Asked::default()
    };
    let child = bench.child_with(root, two)?;
    let none = Asked {
        replicas: Some(Amount::ZERO),
        ..Asked::default()
    };
    bench.child_with(child, none)?;
    refused(bench.grant_with(child, none), Code::DenyBudget)?;
    bench.child_with(root, none)?;
    refused(bench.grant_with(root, none), Code::DenyBudget)?;
    held(bench.live() == 4, "the count is wrong")
}
