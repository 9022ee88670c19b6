//! Threats to the count, the pace and the shape of the family, and to manifests.

use super::*;

pub(super) const ALL: &[Threat] = &[
    ("issue more than the quota", issue_more_than_the_quota),
    (
        "hoard grants, then register them under a lower quota",
        register_over_quota,
    ),
    ("admit roots over the quota", roots_over_quota),
    ("ask again before the cooldown is over", ask_too_soon),
    ("pre-issue children to dodge the cooldown", pre_issue),
    ("go deeper than allowed", too_deep),
    (
        "go deeper with a grant of an earlier contract",
        too_deep_at_registration,
    ),
    ("claim to be less deep", spoofed_depth),
    ("ask for a parent that is unknown", unknown_parent),
    ("register a child whose parent is gone", parent_gone),
    ("have a dead parent's grants block others", dead_grants),
    ("replay the manifest of an ended worker", replay),
    ("replay a withdrawn grant", replay_withdrawn),
    ("register with a manifest that says more", forged_manifest),
    ("register with a manifest of an old epoch", old_epoch),
    ("live on after the epoch", outlive_epoch),
    ("register with a revoked manifest", revoked_manifest),
    ("live on below a revoked worker", outlive_revocation),
    ("take another worker's id", duplicate_id),
];

fn issue_more_than_the_quota() -> Held {
    let mut bench = Bench::new(contract(3, 2))?;
    let root = bench.root()?;
    let first = bench.grant(root)?;
    for _ in 0..9 {
        refused(bench.grant(root), Code::DenyQuota)?;
    }
    bench.register(&first.manifest())?;
    refused(bench.grant(root), Code::DenyQuota)?;
    held(
        bench.live() == 2 && bench.refusals(Code::DenyQuota) == 10,
        "more than the quota, or not recorded",
    )
}

fn register_over_quota() -> Held {
    let mut bench = Bench::new(contract(3, 10))?;
    let root = bench.root()?;
    let grants = [bench.grant(root)?, bench.grant(root)?];
    bench.set_contract(contract(3, 2));
    bench.register(&grants[0].manifest())?;
    refused(bench.register(&grants[1].manifest()), Code::DenyQuota)
}

fn roots_over_quota() -> Held {
    let mut bench = Bench::new(contract(3, 1))?;
    bench.root()?;
    refused(bench.root(), Code::DenyQuota)
}

fn ask_too_soon() -> Held {
    let mut rules = contract(3, 10);
    rules.cooldown = Duration::from_millis(1_000);
    let mut bench = Bench::new(rules)?;
    let (root, other) = (bench.root()?, bench.root()?);
    bench.child(root)?;
    bench.wait(999);
    refused(bench.grant(root), Code::DenyCooldown)?;
    bench.grant(other)?;
    bench.wait(1);
    bench
        .child(root)
        .map(|_| ())
        .map_err(|_| "exactly the cooldown must do".to_owned())
}

fn pre_issue() -> Held {
    let mut rules = contract(3, 10);
    rules.cooldown = Duration::from_millis(1_000);
    let mut bench = Bench::new(rules)?;
    let root = bench.root()?;
    let grants = [bench.grant(root)?, bench.grant(root)?];
    bench.register(&grants[0].manifest())?;
    refused(bench.register(&grants[1].manifest()), Code::DenyCooldown)?;
    bench.wait(1_000);
    bench.register(&grants[1].manifest())?;
    Ok(())
}

fn too_deep() -> Held {
    let mut bench = Bench::new(contract(1, 10))?;
    let root = bench.root()?;
    let child = bench.child(root)?;
    refused(bench.grant(child), Code::DenyDepth)
}

fn too_deep_at_registration() -> Held {
    let mut bench = Bench::new(contract(2, 10))?;
    let root = bench.root()?;
    let child = bench.child(root)?;
    let grant = bench.grant(child)?;
    bench.set_contract(contract(1, 10));
    refused(bench.register(&grant.manifest()), Code::DenyDepth)
}

fn spoofed_depth() -> Held {
    let mut bench = Bench::new(contract(3, 10))?;
    let root = bench.root()?;
    let child = bench.child(root)?;
    let mut request = bench.ask(child, Asked::default());
    request.claimed_depth = Some(1);
    refused(bench.request(&request), Code::DenyDepthSpoof)?;
    request.claimed_depth = Some(2);
    let mut manifest = bench.request(&request)?.manifest();
    manifest.depth = 1;
    refused(bench.register(&manifest), Code::DenyDepthSpoof)
}

fn unknown_parent() -> Held {
    let mut bench = Bench::new(contract(3, 10))?;
    bench.root()?;
    refused(bench.grant(WorkerId(7)), Code::DenyParentUnknown)
}

fn parent_gone() -> Held {
    let mut bench = Bench::new(contract(3, 10))?;
    let root = bench.root()?;
    let grant = bench.grant(root)?;
    bench.end(root, Code::Exited);
    refused(bench.register(&grant.manifest()), Code::DenyParentUnknown)
}

fn dead_grants() -> Held {
    let mut bench = Bench::new(contract(3, 3))?;
    let (first, second) = (bench.root()?, bench.root()?);
    bench.grant(first)?;
    bench.end(first, Code::Exited);
    bench.child(second)?;
    bench
        .child(second)
        .map(|_| ())
        .map_err(|_| "a dead parent's grant holds a place".to_owned())
}

fn replay() -> Held {
    let mut bench = Bench::new(contract(3, 10))?;
    let root = bench.root()?;
    let manifest = bench.grant(root)?.manifest();
    let worker = bench.register(&manifest)?;
    bench.end(worker, Code::Exited);
    refused(bench.register(&manifest), Code::RejectReplay)
}

fn replay_withdrawn() -> Held {
    let mut bench = Bench::new(contract(3, 10))?;
    let root = bench.root()?;
    let grant = bench.grant(root)?;
    let outcome = bench.controller.withdraw(bench.now(), grant.jti);
    held(bench.keep(outcome), "an unused grant can be taken back")?;
    refused(bench.register(&grant.manifest()), Code::RejectReplay)
}

fn forged_manifest() -> Held {
    let mut bench = Bench::new(contract(3, 10))?;
    let (root, other) = (bench.root()?, bench.root()?);
    let manifest = bench.grant_with(root, tokens(5))?.manifest();
    let mut richer = manifest.clone();
    richer.granted.tokens = Amount::of(6);
    let mut adopted = manifest.clone();
    adopted.parent = other;
    let mut renamed = manifest.clone();
    renamed.worker = WorkerId(7);
    for forged in [richer, adopted, renamed] {
        refused(bench.register(&forged), Code::RejectMismatch)?;
    }
    // A forger must not use up the grant of the one it was made out to.
    bench.register(&manifest)?;
    Ok(())
}

fn old_epoch() -> Held {
    let mut bench = Bench::new(contract(3, 10))?;
    let outcome = bench.controller.bump_epoch(bench.now());
    bench.keep(outcome);
    let root = bench.root()?;
    let mut manifest = bench.grant(root)?.manifest();
    manifest.epoch -= 1;
    refused(bench.register(&manifest), Code::RejectEpoch)
}

fn outlive_epoch() -> Held {
    let mut bench = Bench::new(contract(3, 10))?;
    let root = bench.root()?;
    let child = bench.child(root)?;
    let grant = bench.grant(root)?;
    let outcome = bench.controller.bump_epoch(bench.now());
    bench.keep(outcome);
    held(
        bench.live() == 0 && bench.controller.state().outstanding() == 0,
        "someone lives on",
    )?;
    held(
        bench
            .commands
            .contains(&Command::Kill(child, Code::Revoked)),
        "a box is not killed",
    )?;
    refused(bench.register(&grant.manifest()), Code::RejectEpoch)
}

fn revoked_manifest() -> Held {
    let mut bench = Bench::new(contract(3, 10))?;
    let root = bench.root()?;
    let grant = bench.grant(root)?;
    let outcome = bench.controller.revoke(bench.now(), grant.worker);
    let _ = bench.keep(outcome);
    refused(bench.register(&grant.manifest()), Code::RejectRevoked)?;
    held(bench.is_live(root), "more was revoked than asked")
}

fn outlive_revocation() -> Held {
    let mut rules = contract(4, 10);
    rules.on_parent_exit = belljar_policy::OnParentExit::Keep;
    let mut bench = Bench::new(rules)?;
    let root = bench.root()?;
    let child = bench.child(root)?;
    let grandchild = bench.child(child)?;
    let sibling = bench.child(root)?;
    // Its manifest is revoked after it ended; what descends from it is found all the same.
    bench.end(child, Code::Exited);
    let great = bench.child(grandchild)?;
    let outcome = bench.controller.revoke(bench.now(), child);
    let _ = bench.keep(outcome);
    held(
        !bench.is_live(grandchild) && !bench.is_live(great),
        "a descendant of a revoked worker lives",
    )?;
    held(
        bench.ended(great) == Some(Code::Revoked) && bench.is_live(sibling),
        "the wrong ones ended",
    )
}

fn duplicate_id() -> Held {
    let mut bench = Bench::new(contract(3, 10))?;
    let root = bench.root()?;
    let mut request = bench.ask(root, Asked::default());
    let victim = bench.child(root)?;
    request.worker = victim;
    refused(bench.request(&request), Code::DenyDuplicate)?;
    // Two grants for one id: the second is refused when the first has used it.
    let first = bench.grant(root)?;
    let mut twin = bench.ask(root, Asked::default());
    twin.worker = first.worker;
    let twin = bench.request(&twin)?;
    bench.register(&first.manifest())?;
    refused(bench.register(&twin.manifest()), Code::DenyDuplicate)
}
