//! A rollout over real places and a real health command: it goes on, goes back by itself, and survives a kill.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::NOW;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use belljar_evolve::release::{Place, ReleaseError};
use belljar_evolve::review::{
    Approved, Proposer, Registry, ReviewPolicy, Standing, Subject, judge,
};
use belljar_evolve::rollout::{Driver, Plan, RolloutError, Stage, Tick};
use belljar_evolve::tree::{Entry, Tree};
use belljar_evolve::{Risk, TreePath};
use belljar_gate::keyring::KeySource;

const STATE: &str = "BELLJAR_ROLLOUT_TEST_STATE";
const KILL_AT: &str = "BELLJAR_ROLLOUT_TEST_KILL_AT";
const PROJECT: &str = "/srv/agent";

/// Runs what each instance's place shows, and says how it went. `agent.py` of a release defines `errors(share)`: how many of a
/// thousand requests fail when this share of the instances runs the candidate.
const HEALTH: &str = r#"
import json, os, random, sys
root = os.environ["BELLJAR_RELEASES"]
names = sys.argv[1:]
shown = {}
for name in names:
    link = os.path.join(root, "instances", name)
    if os.path.islink(link):
        shown[name] = os.path.basename(os.readlink(link))
current = os.path.basename(os.readlink(os.path.join(root, "current")))
share = sum(1 for name in names if name in shown and shown[name] != current) / len(names)
seed = os.path.join(root, "round")
turn = int(open(seed).read()) + 1 if os.path.exists(seed) else 0
open(seed, "w").write(str(turn))
for name, version in shown.items():
    scope = {}
    exec(open(os.path.join(root, "instances", name, "agent.py")).read(), scope)
    dice = random.Random(f"{turn} {name}")
    if scope.get("silent", lambda share: False)(share):
        continue
    rate = scope["errors"](share) / 1000
    spread = (5000 * rate * (1 - rate)) ** 0.5
    print(json.dumps({
        "instance": name, "version": version, "requests": 5000,
        "errors": max(0, min(5000, round(dice.gauss(5000 * rate, spread)))), "violations": 0,
        "latency_ms": dice.lognormvariate(3, 0.05), "cost": 1,
    }))
"#;

const OLD: &str = "def errors(share): return 20\n";
const SAME: &str = "def errors(share): return 20  # the same\n";
const WORSE_AT_25: &str = "def errors(share): return 60 if share >= 0.3 else 20\n";
const CRASHES: &str = "raise SystemExit(3)\n";
const SILENT: &str = "def errors(share): return 20\ndef silent(share): return share >= 0.3\n";

fn tree(text: &str) -> Tree {
    let mut tree = Tree::default();
    tree.put(TreePath::new("agent.py").unwrap(), Entry::file(text));
    tree.put(TreePath::new("lib/x.py").unwrap(), Entry::file("x = 1\n"));
    tree
}

fn approved(candidate: &Tree) -> Approved {
    let name = candidate.digest();
    common::approved(&name, &tree(OLD).digest(), &name)
}

fn names() -> Vec<String> {
    (0..8).map(|number| format!("agent-{number}")).collect()
}

fn plan(state: &Path) -> Plan {
    let script = state.join("health.py");
    std::fs::write(&script, HEALTH).unwrap();
    let quoted: Vec<String> = names().iter().map(|name| format!("{name:?}")).collect();
    let instances = quoted.join(", ");
    let text = format!(
        "instances = [{instances}]\nshadow = ['shadow']\nhealth = ['python3', {script:?}, {instances}, 'shadow']\n"
    );
    Plan::parse(&text).unwrap()
}

fn open(state: &Path) -> Driver {
    Driver::open(state, KeySource::Directory, PROJECT).unwrap()
}

/// Every stage that was passed, and how it ended.
fn roll_out(state: &Path, candidate: &Tree) -> (Vec<Stage>, Tick) {
    let yes = approved(candidate);
    let plan = plan(state);
    open(state)
        .deploy(&yes, &tree(OLD), candidate, plan, NOW)
        .unwrap();
    let mut stages = vec![open(state).rollout().unwrap().stage()];
    for _ in 0..500 {
        // Another process each time, as far as anything on disk can tell.
        match open(state).tick(Some(&yes), NOW).unwrap() {
            Tick::Observed => {}
            Tick::Advanced(stage) => stages.push(stage),
            end => return (stages, end),
        }
    }
    panic!("it never ended: {stages:?}");
}

fn all_show(driver: &Driver, tree: &Tree) {
    let instances = names().into_iter().chain(["shadow".to_owned()]);
    let places = instances
        .map(|name| Place::instance(&name).unwrap())
        .chain([Place::current()]);
    for place in places {
        let found = driver
            .directory()
            .join(place.as_str())
            .canonicalize()
            .unwrap();
        assert_eq!(
            Tree::read(&found, &[]).unwrap().digest(),
            tree.digest(),
            "{}",
            place.as_str()
        );
    }
}

#[test]
fn a_good_candidate_takes_over_step_by_step() {
    let state = tempfile::tempdir().unwrap();
    let candidate = tree(SAME);
    let (stages, end) = roll_out(state.path(), &candidate);
    let steps = [5, 25, 50].map(Stage::Percent);
    assert_eq!(
        stages,
        [&[Stage::Shadow][..], &steps, &[Stage::Done]].concat()
    );
    assert_eq!(end, Tick::Ended);
    let mut driver = open(state.path());
    all_show(&driver, &candidate);
    // Even then it can be taken back, to the very tree.
    driver.roll_back("second thoughts").unwrap();
    all_show(&driver, &tree(OLD));
}

#[test]
fn a_regression_that_shows_at_a_quarter_goes_back_by_itself_and_is_not_tried_again() {
    let state = tempfile::tempdir().unwrap();
    let candidate = tree(WORSE_AT_25);
    let (stages, end) = roll_out(state.path(), &candidate);
    assert_eq!(stages.last(), Some(&Stage::Percent(25)));
    let Tick::RolledBack(why) = end else {
        panic!("{end:?}");
    };
    assert!(why.contains("error_rate"), "{why}");
    let mut driver = open(state.path());
    all_show(&driver, &tree(OLD));
    let yes = approved(&candidate);
    let again = driver.deploy(&yes, &tree(OLD), &candidate, plan(state.path()), NOW);
    assert!(matches!(again, Err(RolloutError::Again(_))));
}

#[test]
fn the_same_tree_under_another_proposal_is_not_tried_again_either() {
    let state = tempfile::tempdir().unwrap();
    let candidate = tree(CRASHES);
    let (_, end) = roll_out(state.path(), &candidate);
    assert!(matches!(end, Tick::RolledBack(_)));
    // The health command itself can't run with it: that is no reason to stay on it.
    all_show(&open(state.path()), &tree(OLD));
    let mut subject = Subject {
        proposal: "cd".repeat(32),
        proposer: Proposer {
            name: Some("worker".into()),
            key: None,
        },
        risk: Risk::Low,
        digests: approved(&candidate).digests().clone(),
    };
    subject.digests.evidence = "5".repeat(64);
    let Standing::Approved(yes) = judge(
        &subject,
        &[],
        &Registry::default(),
        &ReviewPolicy::default(),
        NOW,
    ) else {
        panic!("not approved");
    };
    let again = open(state.path()).deploy(&yes, &tree(OLD), &candidate, plan(state.path()), NOW);
    assert!(
        matches!(
            again,
            Err(RolloutError::Release(ReleaseError::Aborted { .. }))
        ),
        "{again:?}"
    );
}

#[test]
fn an_instance_that_falls_silent_takes_the_candidate_back() {
    let state = tempfile::tempdir().unwrap();
    let (_, end) = roll_out(state.path(), &tree(SILENT));
    let Tick::RolledBack(why) = end else {
        panic!("{end:?}");
    };
    assert!(why.contains("nothing is reported"), "{why}");
    all_show(&open(state.path()), &tree(OLD));
}

#[test]
fn going_on_needs_an_approval_that_still_counts_and_going_back_needs_none() {
    let state = tempfile::tempdir().unwrap();
    let candidate = tree(SAME);
    let yes = approved(&candidate);
    let plan = plan(state.path());
    let mut driver = open(state.path());
    // Another tree than the one that was approved.
    let refused = driver.deploy(&yes, &tree(OLD), &tree(WORSE_AT_25), plan.clone(), NOW);
    assert!(matches!(
        refused,
        Err(RolloutError::NotApproved("candidate"))
    ));
    driver
        .deploy(&yes, &tree(OLD), &candidate, plan.clone(), NOW)
        .unwrap();
    let refused = driver.deploy(&yes, &tree(OLD), &candidate, plan, NOW);
    assert!(matches!(refused, Err(RolloutError::Busy(_))));
    loop {
        match driver.tick(None, NOW).unwrap() {
            Tick::Observed => {}
            other => {
                assert_eq!(other, Tick::Held("not approved any more"));
                break;
            }
        }
    }
    driver.roll_back("enough").unwrap();
    all_show(&driver, &tree(OLD));
}

#[test]
fn a_project_that_was_changed_meanwhile_is_not_rolled_over() {
    let state = tempfile::tempdir().unwrap();
    let candidate = tree(SAME);
    roll_out(state.path(), &candidate);
    // Made from the old tree, while the new one is current.
    let other = tree("def errors(share): return 19\n");
    let refused = open(state.path()).deploy(
        &approved(&other),
        &tree(OLD),
        &other,
        plan(state.path()),
        NOW,
    );
    assert!(
        matches!(
            refused,
            Err(RolloutError::Release(ReleaseError::OtherParent { .. }))
        ),
        "{refused:?}"
    );
}

/// Takes a candidate back; kills itself before the change to a place it is told.
#[test]
#[ignore = "started by the test below"]
fn role_roll_back_until_killed() {
    let Some(state) = std::env::var_os(STATE).map(PathBuf::from) else {
        return;
    };
    let kill_at: u64 = std::env::var(KILL_AT).unwrap().parse().unwrap();
    let count = AtomicU64::new(0);
    let mut driver = Driver::open_watched(&state, PROJECT, move |_| {
        if count.fetch_add(1, Ordering::SeqCst) == kill_at {
            let me = rustix::process::getpid();
            let _ = rustix::process::kill_process(me, rustix::process::Signal::KILL);
        }
    })
    .unwrap();
    driver.roll_back("the test says so").unwrap();
}

#[test]
fn a_rollback_that_is_killed_anywhere_is_ended_by_whoever_comes_next() {
    let mut kills = 0;
    // Every fifth change: each place takes the same steps, and those are tried one by one with releases.
    for kill_at in (0..).step_by(5) {
        let state = tempfile::tempdir().unwrap();
        let candidate = tree(SAME);
        let yes = approved(&candidate);
        let plan = Plan {
            steps: vec![50, 100],
            shadow: Vec::new(),
            ..plan(state.path())
        };
        let mut driver = open(state.path());
        driver
            .deploy(&yes, &tree(OLD), &candidate, plan, NOW)
            .unwrap();
        let half = driver.rollout().unwrap().on_candidate().len();
        assert_eq!(half, names().len() / 2);
        drop(driver);
        let ended = Command::new(std::env::current_exe().unwrap())
            .args(["role_roll_back_until_killed", "--exact", "--ignored"])
            .env(STATE, state.path())
            .env(KILL_AT, kill_at.to_string())
            .output()
            .unwrap();
        // Nothing but opening it: neither the agent nor anybody's word is needed.
        let driver = open(state.path());
        assert_eq!(driver.rollout().unwrap().stage(), Stage::RolledBack);
        for name in names() {
            let shows = driver
                .store()
                .shows(&Place::instance(&name).unwrap())
                .unwrap();
            assert_eq!(shows, Some(tree(OLD).digest()));
            driver.store().verify(&tree(OLD).digest()).unwrap();
        }
        if ended.status.success() {
            break;
        }
        kills += 1;
    }
    assert!(kills >= 5, "{kills}");
}
