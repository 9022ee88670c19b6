//! What must still work: a controller that refuses everything would hold against every threat.

use belljar_policy::OnParentExit;

use super::*;

pub(super) const ALL: &[Threat] = &[
    ("an ordinary family", ordinary_family),
    ("a grant in one step", one_step),
    ("orphans that are kept", kept_orphans),
    ("a single worker killed", single_kill),
];

fn ordinary_family() -> Held {
    let mut bench = Bench::new(contract(2, 4))?;
    let root = bench.root()?;
    let child = bench.child(root)?;
    let grandchild = bench.child(child)?;
    let outcome = bench.controller.started(bench.now(), grandchild);
    held(bench.keep(outcome), "it was starting")?;
    let state = bench.controller.state();
    let depths: Vec<u32> = state.workers().map(|worker| worker.depth).collect();
    held(
        depths == [0, 1, 2] && state.total() == 3,
        "the tree is wrong",
    )?;
    held(
        state.children(root).map(|w| w.id).eq([child]),
        "the children are wrong",
    )?;
    held(state.subtree(child).len() == 2, "the subtree is wrong")?;
    held(
        state.clone().fold([]) == Ok(state.clone()),
        "a state differs from itself",
    )?;
    let folded = State::default().fold(&bench.log);
    held(
        folded.as_ref() == Ok(bench.controller.state()),
        "the fold of the log is another state",
    )
}

fn one_step() -> Held {
    let mut bench = Bench::new(contract(2, 4))?;
    let root = bench.root()?;
    let request = bench.ask(root, Asked::default());
    let outcome = bench.controller.grant_and_register(bench.now(), &request);
    let admitted = bench.keep(outcome).map_err(|denial| denial.code)?;
    held(
        bench.is_live(admitted.worker) && admitted.depth == 1,
        "it is not there",
    )?;
    held(
        bench.controller.state().outstanding() == 0,
        "a grant is left",
    )
}

fn kept_orphans() -> Held {
    let mut rules = contract(3, 10);
    rules.on_parent_exit = OnParentExit::Keep;
    rules.expiration = millis(9_000);
    let mut bench = Bench::new(rules)?;
    let root = bench.root()?;
    let child = bench.child(root)?;
    let grandchild = bench.child(child)?;
    bench.end(child, Code::Exited);
    let view = bench
        .controller
        .state()
        .worker(grandchild)
        .ok_or("the orphan is gone")?;
    held(
        view.parent == Some(root) && view.depth == 2,
        "the orphan is in the wrong place",
    )?;
    held(view.expires_ns == Some(9_000_000_000), "its expiry changed")?;
    bench.end(root, Code::Exited);
    let view = bench
        .controller
        .state()
        .worker(grandchild)
        .ok_or("the orphan is gone")?;
    held(
        view.parent.is_none() && view.depth == 2,
        "the orphan is in the wrong place",
    )?;
    bench.wait(9_000);
    held(
        bench.tick() == 1 && bench.live() == 0,
        "its time is over all the same",
    )
}

fn single_kill() -> Held {
    let mut rules = contract(3, 10);
    rules.on_parent_exit = OnParentExit::Keep;
    let mut bench = Bench::new(rules)?;
    let root = bench.root()?;
    let child = bench.child(root)?;
    held(
        bench.kill(Scope::Worker(root)) == 1 && bench.is_live(child),
        "more was killed than asked",
    )?;
    bench
        .child(child)
        .map(|_| ())
        .map_err(|_| "only the fleet's switch is latched".to_owned())
}
