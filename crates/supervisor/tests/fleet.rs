//! Replication from Rust, with real boxes: the seed's usage, and what must hold however it is used.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use belljar_api::{Quarantine, Reason, Release, SubtreeRequest};
use belljar_gate::keyring::KeySource;
use belljar_gate::{FleetGate, FleetOptions, Hands, Standing, Wish};
use belljar_manifest::lineage::{CapabilityDocument, Digest};
use belljar_policy::{Amount, Capability, Contract, OnTrigger};
use belljar_replication::{Asked, Code, Jti, Usage, WorkerId};
use belljar_supervisor::fleet::{
    FleetSetup, Operator, ReplicationController, SandboxOrchestrator, Worker, WorkerError,
};
use belljar_supervisor::{Command, StateDir, find_places};

struct World {
    // Dropped before its directory is.
    controller: ReplicationController,
    base: tempfile::TempDir,
}

impl World {
    fn new(contract: Contract) -> World {
        World::with(contract, FleetSetup::default())
    }

    fn with(contract: Contract, setup: FleetSetup) -> World {
        let base = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(base.path().join("work")).expect("a workspace");
        let state = StateDir::at(base.path().join("state")).expect("a state directory");
        let controller = ReplicationController::open_with(&state, contract, setup);
        World {
            controller: controller.expect("a controller"),
            base,
        }
    }

    fn work(&self) -> PathBuf {
        self.base.path().join("work")
    }

    fn state(&self) -> StateDir {
        StateDir::at(self.base.path().join("state")).expect("a state directory")
    }

    fn orchestrator(&self) -> SandboxOrchestrator {
        SandboxOrchestrator::new(&self.controller, moderate()).workdir(self.work())
    }

    fn root(&self) -> Worker {
        let orchestrator = self.orchestrator();
        let manifest = self.controller.issue_manifest(None, &orchestrator, None);
        Worker::register(manifest.expect("a manifest"), &orchestrator).expect("a root")
    }
}

fn moderate() -> Capability {
    belljar_manifest::profile("moderate").expect("a shipped profile")
}

fn roomy() -> Contract {
    Contract::new(3, 10, Duration::ZERO, None)
}

#[track_caller]
fn code<T>(result: Result<T, WorkerError>) -> &'static str {
    match result {
        Err(WorkerError::Refused(refusal)) => refusal.code(),
        Err(other) => panic!("not refused: {other}"),
        Ok(_) => panic!("not refused"),
    }
}

fn stdout(worker: &Worker, words: &[&str]) -> String {
    let result = worker.perform_task(&Command::new(words.iter().copied()));
    let result = result.expect("a result");
    assert_eq!(result.exit_code, Some(0), "{result:?}");
    result.stdout.expect("its output")
}

/// Polls; the deadline is for hangs only.
fn eventually(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(180);
    while !condition() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// The usage example of the seed: contract, controller, orchestrator, worker.
#[test]
fn the_seeds_example_runs() {
    let world = World::new(Contract::new(
        3,
        10,
        Duration::ZERO,
        Some(Duration::from_secs(600)),
    ));
    let orchestrator = world.orchestrator();
    let manifest = world
        .controller
        .issue_manifest(None, &orchestrator, Some(b"analyze_data"))
        .expect("a manifest");
    let root = Worker::register(manifest, &orchestrator).expect("a root");
    assert_eq!(stdout(&root, &["cat", "/belljar/state"]), "analyze_data");
    // Each task is a box of its own; the workspace is the family's.
    stdout(
        &root,
        &["sh", "-c", "echo found > result; echo mine > /tmp/private"],
    );
    assert_eq!(
        stdout(&root, &["sh", "-c", "cat result; ls /tmp"]),
        "found\n"
    );

    let child = root
        .maybe_replicate("subtask_delegation", Some(b"process_subset"))
        .expect("an answer")
        .expect("a child");
    assert_eq!(stdout(&child, &["cat", "/belljar/state"]), "process_subset");
    assert_eq!(child.papers().payload().depth, 1);
    assert!(child.heartbeat().expect("an answer"));
    assert_eq!(world.controller.live().expect("a count"), 2);
    assert!(child.shutdown("completed").expect("an answer"));
    assert!(!child.heartbeat().expect("an answer"));
    assert_eq!(
        code(child.perform_task(&Command::new(["true"]))),
        "deny_parent_unknown"
    );
    assert!(root.shutdown("completed").expect("an answer"));
    assert_eq!(world.controller.live().expect("a count"), 0);
}

#[test]
fn sixty_four_threads_share_a_quota_of_ten() {
    let world = World::new(Contract::new(1, 11, Duration::ZERO, None));
    let root = world.root();
    let children: Vec<Worker> = thread::scope(|scope| {
        let racers: Vec<_> = (0..64)
            .map(|_| scope.spawn(|| root.maybe_replicate("race", None).expect("an answer")))
            .collect();
        racers
            .into_iter()
            .filter_map(|racer| racer.join().expect("no panic"))
            .collect()
    });
    assert_eq!(children.len(), 10);
    assert_eq!(world.controller.live().expect("a count"), 11);
    assert_eq!(code(root.replicate("one more", None)), "deny_quota");
    drop(children);
    assert_eq!(world.controller.live().expect("a count"), 1);
    assert!(
        root.maybe_replicate("again", None)
            .expect("an answer")
            .is_some()
    );
}

/// A manifest is leave for one moment: what changed since it was issued counts.
#[test]
fn a_manifest_is_checked_anew_when_it_is_used() {
    let world = World::new(Contract::new(2, 2, Duration::ZERO, None));
    let orchestrator = world.orchestrator();
    let root = world.root();
    let issue = || {
        world
            .controller
            .issue_manifest(Some(&root), &orchestrator, None)
    };
    // The place is promised: no second one is.
    let first = issue().expect("a manifest");
    assert!(first.envelope().is_some());
    assert_eq!(code(issue()), "deny_quota");
    let child = Worker::register(first, &orchestrator).expect("a child");
    child.shutdown("done").expect("an answer");
    // Its parent is gone.
    let orphan = issue().expect("a manifest");
    root.shutdown("done").expect("an answer");
    assert_eq!(
        code(Worker::register(orphan, &orchestrator)),
        "deny_parent_unknown"
    );
}

#[test]
fn nothing_is_registered_after_the_kill_switch() {
    let world = World::new(roomy());
    let orchestrator = world.orchestrator();
    let root = world.root();
    let early = world
        .controller
        .issue_manifest(Some(&root), &orchestrator, None);
    let early = early.expect("a manifest");
    let idle = root.replicate("idle", None).expect("a child");
    // One of them is at work; nothing of it is left when the switch says so, and whoever has no box leaves none.
    let report = thread::scope(|scope| {
        let up = world.work().join("up");
        let script = "trap '' TERM; sleep 1000 & echo > up; wait";
        let task = scope.spawn(|| root.perform_task(&Command::new(["sh", "-c", script])));
        eventually("the task runs", || up.exists());
        let report = world.controller.kill_switch("enough").expect("a report");
        let result = task.join().expect("no panic").expect("a result");
        assert_eq!(
            result.killed_by.map(|by| by.as_str()),
            Some("killed_kill_switch")
        );
        report
    });
    assert_eq!((report.killed, report.survivors), (2, 0), "{report:?}");
    assert_eq!(
        code(Worker::register(early, &orchestrator)),
        "deny_kill_switch"
    );
    assert_eq!(code(root.replicate("late", None)), "deny_kill_switch");
    assert!(idle.perform_task(&Command::new(["true"])).is_err());
    let late = world.controller.issue_manifest(None, &orchestrator, None);
    let late = Worker::register(late.expect("nothing is decided yet"), &orchestrator);
    assert_eq!(code(late), "deny_kill_switch");

    assert!(
        world
            .controller
            .reset_kill_switch("over")
            .expect("an answer")
    );
    let root = world.root();
    assert_eq!(stdout(&root, &["echo", "back"]), "back\n");
}

#[test]
fn a_condition_in_rust_denies_and_one_that_panics_does_too() {
    let crowd: belljar_replication::Predicate = Arc::new(|facts| facts.workers_active >= 2);
    let broken: belljar_replication::Predicate = Arc::new(|facts| {
        assert!(facts.workers_active < 2, "a condition that fails");
        false
    });
    for predicate in [crowd, broken] {
        let predicates = vec![("mine".to_owned(), OnTrigger::Deny, predicate)];
        let setup = FleetSetup {
            predicates,
            ..FleetSetup::default()
        };
        let world = World::with(roomy(), setup);
        let root = world.root();
        let child = root.replicate("first", None).expect("a child");
        match root.replicate("second", None) {
            Err(WorkerError::Refused(refusal)) => {
                assert_eq!(refusal.code(), "deny_stop_condition");
                assert!(refusal.to_string().contains("mine"), "{refusal}");
            }
            other => panic!("not refused: {other:?}"),
        }
        child.shutdown("done").expect("an answer");
        root.replicate("third", None).expect("a child");
    }
}

#[test]
fn a_worker_in_quarantine_gets_neither_replicas_nor_tasks() {
    let world = World::new(roomy());
    let root = world.root();
    let mut operator = Operator::reach(&world.state()).expect("the operator's socket");
    let id = belljar_api::WorkerId::new(root.id().to_string()).expect("an id");
    let because = SubtreeRequest {
        reason: Reason::new("odd").expect("a reason"),
        subtree: false,
    };
    operator
        .client
        .call_on::<Quarantine>(&id, &because)
        .expect("quarantine");
    assert_eq!(code(root.replicate("now", None)), "deny_quarantined");
    assert!(
        root.maybe_replicate("now", None)
            .expect("an answer")
            .is_none()
    );
    assert_eq!(
        code(root.perform_task(&Command::new(["true"]))),
        "deny_quarantined"
    );
    operator
        .client
        .call_on::<Release>(&id, &because)
        .expect("release");
    assert_eq!(stdout(&root, &["echo", "free"]), "free\n");
    root.replicate("now", None).expect("a child");
}

/// Two boxes of one worker would be one too many: an order to kill reaches just one.
#[test]
fn a_worker_runs_one_task_at_a_time() {
    let world = World::new(roomy());
    let root = world.root();
    thread::scope(|scope| {
        let up = world.work().join("up");
        let task =
            scope.spawn(|| root.perform_task(&Command::new(["sh", "-c", "echo > up; sleep 1000"])));
        eventually("the task runs", || up.exists());
        let second = root.perform_task(&Command::new(["true"]));
        assert!(matches!(second, Err(WorkerError::Run(_))), "{second:?}");
        // The first is still in hand.
        assert!(root.shutdown("done").expect("an answer"));
        let result = task.join().expect("no panic").expect("a result");
        assert_eq!(result.killed_by.map(|by| by.as_str()), Some("shutdown"));
    });
}

#[test]
fn siblings_share_their_parents_budget() {
    let mut contract = roomy();
    contract.budget.tokens = Amount::of(1000);
    contract.budget.replicas = Amount::of(2);
    let world = World::new(contract);
    let root = world.root();
    let first = root.replicate("one", None).expect("a child");
    let _second = root.replicate("two", None);
    match root.replicate("three", None) {
        Err(WorkerError::Refused(refusal)) => {
            assert_eq!(refusal.code(), "deny_budget");
            assert!(refusal.to_string().contains("replicas"), "{refusal}");
        }
        other => panic!("not refused: {other:?}"),
    }
    let tokens = |worker: &Worker| worker.papers().payload().budget.tokens.number();
    assert!(tokens(&first) < tokens(&root));
}

/// Carries nothing out: there are no boxes.
struct NoHands;

impl Hands for NoHands {
    fn kill(&self, _: WorkerId, _: Code) {}
    fn freeze(&self, _: WorkerId) {}
    fn thaw(&self, _: WorkerId) {}
}

/// The same bytes twice, or other bytes once, are nobody's leave.
#[test]
fn a_manifest_is_used_once_and_as_it_was_issued() {
    let base = tempfile::tempdir().expect("a directory");
    let options = FleetOptions {
        contract: roomy(),
        predicates: Vec::new(),
        keys: KeySource::Directory,
        hands: Box::new(NoHands),
    };
    let gate = FleetGate::open(base.path(), options).expect("a gate");
    let (_, places) = find_places(base.path()).expect("places");
    let wish = |number: u128| Wish {
        worker: WorkerId(number),
        asked: Asked::default(),
        need: moderate().own_need(),
        standing: Standing {
            capability: CapabilityDocument::new(&moderate(), &places).expect("a document"),
            program: Digest::of(b"program"),
            state: None,
        },
        reason: "test".to_owned(),
    };
    let root = gate.admit_root(wish(1), Jti(1)).expect("a root").spend();
    let papers = gate
        .issue(&root.papers, wish(2), Jti(2))
        .expect("a manifest");
    let bytes = papers.envelope().as_bytes().to_vec();
    let refused = |bytes: &[u8]| gate.register(bytes).expect_err("refused").code();
    for at in (0..bytes.len()).step_by(97) {
        let mut forged = bytes.clone();
        forged[at] ^= 1;
        assert!(refused(&forged).starts_with("reject_"), "byte {at}");
    }
    let child = gate.register(&bytes).expect("its first use").spend();
    assert_eq!(child.admitted.worker, WorkerId(2));
    assert_eq!(refused(&bytes), "reject_replay");
    // Nor when the worker is gone and its id free.
    gate.ended(WorkerId(2), Code::Exited, Usage::default());
    assert_eq!(refused(&bytes), "reject_replay");
    assert_eq!(gate.look(|state, _| state.live()).expect("a look"), 1);
}

/// Dropped in any order, nothing hangs and nobody is left.
#[test]
fn a_dropped_controller_ends_everybody() {
    let World { controller, base } = World::new(roomy());
    let orchestrator =
        SandboxOrchestrator::new(&controller, moderate()).workdir(base.path().join("work"));
    let manifest = controller.issue_manifest(None, &orchestrator, None);
    let root = Worker::register(manifest.expect("a manifest"), &orchestrator).expect("a root");
    let child = root.replicate("child", None).expect("a child");
    let up = base.path().join("work/up");
    let result = thread::scope(|scope| {
        let script = "trap '' TERM; echo > up; sleep 1000";
        let task = scope.spawn(|| child.perform_task(&Command::new(["sh", "-c", script])));
        eventually("the task runs", || up.exists());
        drop(controller);
        task.join().expect("no panic").expect("a result")
    });
    assert_eq!(result.killed_by.map(|by| by.as_str()), Some("shutdown"));
    assert!(root.perform_task(&Command::new(["true"])).is_err());
}
