//! Releases: moved only from where they were made for, whole before and after a kill at any point, and back again.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::NOW;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use belljar_evolve::TreePath;
use belljar_evolve::release::{Place, ReleaseError, Store};
use belljar_evolve::review::Approved;
use belljar_evolve::tree::{Entry, Tree};

/// Set for the process that a test starts of itself.
const DIRECTORY: &str = "BELLJAR_RELEASE_TEST_DIRECTORY";
const KILL_AT: &str = "BELLJAR_RELEASE_TEST_KILL_AT";

fn tree(text: &str) -> Tree {
    let mut tree = Tree::default();
    for (name, text) in [
        ("agent.py", text),
        ("lib/util.py", "x = 1\n"),
        ("run.sh", "true\n"),
    ] {
        tree.put(TreePath::new(name).unwrap(), Entry::file(text));
    }
    tree
}

fn approved(base: &str, candidate: &str) -> Approved {
    common::approved(&"ab".repeat(32), base, candidate)
}

fn store(directory: &Path) -> (Store, String, String) {
    let mut store = Store::open(directory).unwrap();
    let base = store.keep(&tree("old\n")).unwrap();
    let candidate = store.keep(&tree("new\n")).unwrap();
    (store, base, candidate)
}

fn shown(directory: &Path) -> Option<Tree> {
    let current = directory.join("current");
    current
        .exists()
        .then(|| Tree::read(&current.canonicalize().unwrap(), &[]).unwrap())
}

#[test]
fn a_release_is_promoted_from_its_parent_alone_and_rolled_back_to_the_exact_tree() {
    let directory = tempfile::tempdir().unwrap();
    let (mut store, base, candidate) = store(directory.path());
    let current = Place::current();
    let rehearsed = store.rehearse(&base, &candidate).unwrap();
    let yes = approved(&base, &candidate);
    // Nothing there yet, then something else.
    let refused = store.promote(&current, &yes, &rehearsed, NOW);
    assert!(matches!(refused, Err(ReleaseError::OtherParent { .. })));
    let other = store.keep(&tree("other\n")).unwrap();
    store.install(&current, &other).unwrap();
    let refused = store.promote(&current, &yes, &rehearsed, NOW);
    assert!(matches!(refused, Err(ReleaseError::OtherParent { .. })));
    assert_eq!(shown(directory.path()).unwrap(), tree("other\n"));
    drop(store);

    let directory = tempfile::tempdir().unwrap();
    let (mut store, base, candidate) = self::store(directory.path());
    store.install(&current, &base).unwrap();
    let rehearsed = store.rehearse(&base, &candidate).unwrap();
    assert_eq!(
        shown(directory.path()).unwrap().digest(),
        base,
        "a rehearsal moves nothing that counts"
    );
    store.promote(&current, &yes, &rehearsed, NOW).unwrap();
    assert_eq!(shown(directory.path()).unwrap(), tree("new\n"));
    assert_eq!(store.roll_back(&current).unwrap(), base);
    assert_eq!(shown(directory.path()).unwrap().digest(), base);
    assert!(matches!(
        store.roll_back(&current),
        Err(ReleaseError::Nothing(_))
    ));
}

#[test]
fn what_was_rehearsed_is_what_is_promoted() {
    let directory = tempfile::tempdir().unwrap();
    let (mut store, base, candidate) = store(directory.path());
    let other = store.keep(&tree("other\n")).unwrap();
    store.install(&Place::current(), &base).unwrap();
    let rehearsed = store.rehearse(&base, &other).unwrap();
    let refused = store.promote(
        &Place::current(),
        &approved(&base, &candidate),
        &rehearsed,
        NOW,
    );
    assert!(matches!(refused, Err(ReleaseError::NotThat { .. })));
    assert_eq!(shown(directory.path()).unwrap(), tree("old\n"));
}

#[test]
fn a_tree_that_was_changed_after_it_was_approved_is_not_shown() {
    let directory = tempfile::tempdir().unwrap();
    let (mut store, base, candidate) = store(directory.path());
    store.install(&Place::current(), &base).unwrap();
    let rehearsed = store.rehearse(&base, &candidate).unwrap();
    std::fs::write(store.path(&candidate).join("agent.py"), "evil\n").unwrap();
    let refused = store.promote(
        &Place::current(),
        &approved(&base, &candidate),
        &rehearsed,
        NOW,
    );
    assert!(matches!(refused, Err(ReleaseError::Altered { .. })));
    assert!(matches!(
        store.rehearse(&base, &candidate),
        Err(ReleaseError::Altered { .. })
    ));
    assert_eq!(shown(directory.path()).unwrap(), tree("old\n"));
}

#[test]
fn a_version_that_was_given_up_is_not_tried_again_even_by_another_process() {
    let directory = tempfile::tempdir().unwrap();
    let (mut store, base, candidate) = store(directory.path());
    store.install(&Place::current(), &base).unwrap();
    let rehearsed = store.rehearse(&base, &candidate).unwrap();
    store
        .promote(
            &Place::current(),
            &approved(&base, &candidate),
            &rehearsed,
            NOW,
        )
        .unwrap();
    store.abort(&candidate, "it crashed").unwrap();
    store.roll_back(&Place::current()).unwrap();
    drop(store);
    let mut store = Store::open(directory.path()).unwrap();
    let refused = store.promote(
        &Place::current(),
        &approved(&base, &candidate),
        &rehearsed,
        NOW,
    );
    assert!(matches!(refused, Err(ReleaseError::Aborted { .. })));
    assert_eq!(shown(directory.path()).unwrap(), tree("old\n"));
}

#[test]
fn an_unfinished_line_of_the_journal_announces_nothing() {
    use std::io::Write as _;
    let directory = tempfile::tempdir().unwrap();
    let (mut store, base, _) = store(directory.path());
    store.install(&Place::current(), &base).unwrap();
    drop(store);
    let journal = directory.path().join("journal");
    let mut file = std::fs::OpenOptions::new()
        .append(true)
        .open(journal)
        .unwrap();
    file.write_all(br#"{"line":"begin","n":1,"wha"#).unwrap();
    drop(file);
    let store = Store::open(directory.path()).unwrap();
    assert_eq!(store.shows(&Place::current()).unwrap(), Some(base));
}

/// Keeps a candidate, rehearses, promotes and rolls back; kills itself before the change to the disk it is told.
#[test]
#[ignore = "started by the test below"]
fn role_move_until_killed() {
    let Some(directory) = std::env::var_os(DIRECTORY).map(PathBuf::from) else {
        return;
    };
    let kill_at: u64 = std::env::var(KILL_AT).unwrap().parse().unwrap();
    let count = AtomicU64::new(0);
    let mut store = Store::open_watched(&directory, move |_| {
        if count.fetch_add(1, Ordering::SeqCst) == kill_at {
            let me = rustix::process::getpid();
            let _ = rustix::process::kill_process(me, rustix::process::Signal::KILL);
        }
    })
    .unwrap();
    let (base, candidate) = (tree("old\n").digest(), store.keep(&tree("new\n")).unwrap());
    let rehearsed = store.rehearse(&base, &candidate).unwrap();
    let yes = approved(&base, &candidate);
    store
        .promote(&Place::current(), &yes, &rehearsed, NOW)
        .unwrap();
    store.abort(&candidate, "it crash-loops").unwrap();
    store.roll_back(&Place::current()).unwrap();
}

#[test]
fn killed_at_any_change_to_the_disk_a_place_is_before_or_after_and_goes_on_from_there() {
    let (old, new) = (tree("old\n"), tree("new\n"));
    let mut seen = std::collections::BTreeSet::new();
    for kill_at in 0.. {
        let directory = tempfile::tempdir().unwrap();
        let mut store = Store::open(directory.path()).unwrap();
        let base = store.keep(&old).unwrap();
        store.install(&Place::current(), &base).unwrap();
        drop(store);
        let ended = Command::new(std::env::current_exe().unwrap())
            .args(["role_move_until_killed", "--exact", "--ignored"])
            .env(DIRECTORY, directory.path())
            .env(KILL_AT, kill_at.to_string())
            .output()
            .unwrap();
        // As a reader sees it, with nobody there to repair anything.
        let found = shown(directory.path()).expect("there is always a whole release");
        assert!(
            found == old || found == new,
            "neither before nor after, killed at {kill_at}"
        );
        seen.insert(found.digest());
        // And whoever comes next finds it in order, and can go either way.
        let mut store = Store::open(directory.path()).unwrap();
        assert_eq!(
            store.shows(&Place::current()).unwrap().unwrap(),
            found.digest()
        );
        if found == new {
            assert_eq!(store.roll_back(&Place::current()).unwrap(), old.digest());
        } else if store.aborted(&new.digest()).is_none() {
            let candidate = store.keep(&new).unwrap();
            let rehearsed = store.rehearse(&base, &candidate).unwrap();
            let yes = approved(&base, &candidate);
            store
                .promote(&Place::current(), &yes, &rehearsed, NOW)
                .unwrap();
            store.roll_back(&Place::current()).unwrap();
        }
        assert_eq!(shown(directory.path()).unwrap(), old);
        drop(store);
        if ended.status.success() {
            assert!(kill_at > 20, "too few steps were looked at: {kill_at}");
            break;
        }
    }
    assert_eq!(
        seen.len(),
        2,
        "some kills came before the move and some after"
    );
}
