//! Threats to quarantine, the kill switch, restarts, and the fate of children.

use super::*;

pub(super) const ALL: &[Threat] = &[
    ("ask while quarantined", ask_quarantined),
    (
        "register a child of a quarantined parent",
        register_quarantined,
    ),
    ("thaw without an operator", thaw),
    ("ask after the kill switch", ask_after_switch),
    ("register after the kill switch", register_after_switch),
    (
        "come back as a root after the kill switch",
        root_after_switch,
    ),
    ("live on after the kill switch", survive_switch),
    ("restart to reset the kill switch", restart_resets_switch),
    ("hide from a subtree kill", hide_from_subtree_kill),
    ("outlive the parent", outlive_parent),
    ("outlive the controller", outlive_controller),
    ("use a grant of the last controller", grant_across_restart),
];

fn ask_quarantined() -> Held {
    let mut bench = Bench::new(contract(3, 10))?;
    let root = bench.root()?;
    bench.quarantine(root);
    held(
        bench.commands.contains(&Command::Freeze(root)),
        "the box is not frozen",
    )?;
    refused(bench.grant(root), Code::DenyQuarantined)?;
    let outcome = bench.controller.release(bench.now(), root);
    let _ = bench.keep(outcome);
    bench.child(root)?;
    Ok(())
}

fn register_quarantined() -> Held {
    let mut bench = Bench::new(contract(3, 10))?;
    let root = bench.root()?;
    let grant = bench.grant(root)?;
    bench.quarantine(root);
    refused(bench.register(&grant.manifest()), Code::DenyQuarantined)
}

fn thaw() -> Held {
    let mut bench = Bench::new(contract(3, 10))?;
    let root = bench.root()?;
    bench.quarantine(root);
    // The box reports late that it runs.
    let outcome = bench.controller.started(bench.now(), root);
    bench.keep(outcome);
    let _ = bench.controller.heartbeat(bench.now(), root);
    refused(bench.grant(root), Code::DenyQuarantined)
}

fn ask_after_switch() -> Held {
    let mut bench = Bench::new(contract(3, 10))?;
    let root = bench.root()?;
    bench.kill(Scope::Fleet);
    refused(bench.grant(root), Code::DenyKillSwitch)
}

fn register_after_switch() -> Held {
    let mut bench = Bench::new(contract(3, 10))?;
    let root = bench.root()?;
    let grant = bench.grant(root)?;
    bench.kill(Scope::Fleet);
    refused(bench.register(&grant.manifest()), Code::DenyKillSwitch)?;
    held(
        bench.refusals(Code::DenyKillSwitch) == 1,
        "the refusal is not recorded",
    )
}

fn root_after_switch() -> Held {
    let mut bench = Bench::new(contract(3, 10))?;
    bench.kill(Scope::Fleet);
    refused(bench.root(), Code::DenyKillSwitch)?;
    let outcome = bench.controller.reset_kill_switch(bench.now());
    held(bench.keep(outcome), "an operator can reset it")?;
    bench.root()?;
    Ok(())
}

fn survive_switch() -> Held {
    let mut bench = Bench::new(contract(3, 10))?;
    let root = bench.root()?;
    let child = bench.child(root)?;
    bench.kill(Scope::Fleet);
    held(bench.live() == 0, "someone lives on")?;
    let killed = Command::Kill(child, Code::KilledKillSwitch);
    held(bench.commands.contains(&killed), "a box is not killed")
}

fn restart_resets_switch() -> Held {
    let mut bench = Bench::new(contract(3, 10))?;
    bench.kill(Scope::Fleet);
    bench.restart(0)?;
    refused(bench.root(), Code::DenyKillSwitch)
}

fn hide_from_subtree_kill() -> Held {
    let mut rules = contract(4, 20);
    rules.on_parent_exit = belljar_policy::OnParentExit::Keep;
    let mut bench = Bench::new(rules)?;
    let root = bench.root()?;
    let (child, sibling) = (bench.child(root)?, bench.child(root)?);
    let grandchild = bench.child(child)?;
    let grant = bench.grant(grandchild)?;
    held(
        bench.kill(Scope::Subtree(child)) == 2,
        "someone below lives on",
    )?;
    refused(bench.register(&grant.manifest()), Code::DenyParentUnknown)?;
    // One whose parent ended before hides under its grandparent.
    let orphan = bench.child(sibling)?;
    bench.end(sibling, Code::Exited);
    held(bench.is_live(orphan), "orphans are kept here")?;
    held(
        bench.kill(Scope::Subtree(sibling)) == 1 && !bench.is_live(orphan),
        "an orphan lives on",
    )?;
    // One that has not registered yet.
    let unborn = bench.grant(root)?;
    bench.kill(Scope::Subtree(unborn.worker));
    refused(bench.register(&unborn.manifest()), Code::RejectReplay)?;
    held(bench.is_live(root), "more was killed than asked")
}

fn outlive_parent() -> Held {
    let mut bench = Bench::new(contract(3, 10))?;
    let root = bench.root()?;
    let child = bench.child(root)?;
    let grandchild = bench.child(child)?;
    bench.end(child, Code::Exited);
    held(
        bench.ended(grandchild) == Some(Code::ParentExit),
        "a child outlives its parent",
    )?;
    let killed = Command::Kill(grandchild, Code::ParentExit);
    held(bench.commands.contains(&killed), "its box is not killed")?;
    held(bench.is_live(root), "the parent's parent ended too")
}

fn outlive_controller() -> Held {
    let mut bench = Bench::new(contract(3, 10))?;
    let root = bench.root()?;
    let child = bench.child(root)?;
    bench.restart(5)?;
    held(
        bench.live() == 0 && bench.ended(child) == Some(Code::Lost),
        "a lost worker counts as alive",
    )?;
    held(
        bench.commands.contains(&Command::Kill(root, Code::Lost)),
        "its box is not killed",
    )?;
    refused(bench.grant(root), Code::DenyParentUnknown)
}

fn grant_across_restart() -> Held {
    let mut bench = Bench::new(contract(3, 10))?;
    let root = bench.root()?;
    let mut manifest = bench.grant(root)?.manifest();
    bench.restart(5)?;
    manifest.parent = bench.root()?;
    refused(bench.register(&manifest), Code::RejectReplay)
}
