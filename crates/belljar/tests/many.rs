//! Two hundred boxes at once: all finish, and nothing of them is left.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Child;

use belljar_supervisor::{KillCode, KilledBy, Reins};
use rustix::fs::{FlockOperation, flock};
use support::{Jail, Outcome, Who, Yard, cgroups_of, eventually, finish, for_each_user};

const BOXES: usize = 200;

/// Namespaces of the host's processes, by kind, that are not the tests' own.
fn namespaces() -> BTreeMap<String, usize> {
    let mut seen: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for entry in fs::read_dir("/proc").expect("read /proc").flatten() {
        for link in fs::read_dir(entry.path().join("ns"))
            .into_iter()
            .flatten()
            .flatten()
        {
            if let Ok(target) = fs::read_link(link.path()) {
                let name = target.to_string_lossy().into_owned();
                let kind = name.split(':').next().unwrap_or_default().to_owned();
                seen.entry(kind).or_default().insert(name);
            }
        }
    }
    seen.into_iter()
        .map(|(kind, names)| (kind, names.len()))
        .collect()
}

fn mounts() -> usize {
    fs::read_to_string("/proc/self/mountinfo")
        .expect("the mount table")
        .lines()
        .count()
}

/// Held by one test of this file at a time: each would see the other's two hundred, and share the machine with them.
fn alone() -> Option<fs::File> {
    if support::is_apart() {
        return None;
    }
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("many.lock");
    let lock = fs::File::create(path).expect("create the lock file");
    flock(&lock, FlockOperation::LockExclusive).expect("lock it");
    Some(lock)
}

/// Every box waits until all are up, so that they really are there at once.
fn two_hundred_boxes_at_once(who: Who) {
    let _alone = alone();
    let mut jail = Jail::new(who);
    jail.limits(&["max_memory_mb: 64", "max_processes: 16"]);
    let (mounts_before, kinds_before) = (mounts(), namespaces());
    // They wait without doing anything: two hundred that look again and again leave no time for the last to start.
    let go = jail.fifo("go");
    let script = "echo $1 > ready-$1; read go < go; echo box $1";
    let start = |number: usize| {
        let number = number.to_string();
        jail.json_command(&["sh", "-c", script, "sh", &number])
            .spawn()
            .expect("start belljar")
    };
    let running: Vec<Child> = (0..BOXES).map(start).collect();
    eventually("all boxes are up", || {
        (0..BOXES)
            .all(|number| jail.work.join(format!("ready-{number}")).exists())
            .then_some(())
    });
    (&go).write_all(&[b'\n'; BOXES]).expect("tell them all");
    let outcomes: Vec<Outcome> = running
        .into_iter()
        .map(|child| Outcome::from_json(finish(child)))
        .collect();
    let mut ids = BTreeSet::new();
    for (number, outcome) in outcomes.iter().enumerate() {
        outcome.assert_exit(0);
        assert_eq!(outcome.stdout(), format!("box {number}\n"));
        assert!(
            ids.insert(outcome.sandbox_id()),
            "two boxes are both called {}",
            outcome.sandbox_id()
        );
    }
    for id in ids {
        assert_eq!(cgroups_of(id), Vec::<std::path::PathBuf>::new());
    }
    jail.assert_nothing_left(None);
    assert_eq!(mounts(), mounts_before);
    // Other tests may have boxes of their own just now; two hundred left-over namespaces would stand out.
    for (kind, count) in namespaces() {
        let before = kinds_before.get(&kind).copied().unwrap_or_default();
        assert!(
            count < before + BOXES / 4,
            "{count} {kind} namespaces, {before} before"
        );
    }
}

/// Killed at any moment of its box's start, a keeper leaves nothing: not even a half-made box that waits for it.
fn keepers_killed_while_their_boxes_start(who: Who) {
    let jail = Jail::new(who);
    for round in 0..120u64 {
        let mut child = jail
            .json_command(&["sleep", "600"])
            .spawn()
            .expect("start belljar");
        // Spread over the start of a box; where exactly a kill falls is the machine's choice.
        std::thread::sleep(std::time::Duration::from_micros(round * 250));
        child.kill().expect("kill the keeper");
        child.wait().expect("wait for the keeper");
    }
    eventually("nothing of the boxes is left", || {
        support::processes_marked(&jail.base)
            .is_empty()
            .then_some(())
    });
    // What only a keeper can clear away, the next one does.
    let child = jail.json_command(&["true"]).spawn().expect("start belljar");
    Outcome::from_json(finish(child)).assert_exit(0);
}

/// Starting and ending in quick succession, by several hands.
fn boxes_in_quick_succession(who: Who) {
    let jail = Jail::new(who);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..20 {
                    let child = jail.json_command(&["true"]).spawn().expect("start belljar");
                    Outcome::from_json(finish(child)).assert_exit(0);
                }
            });
        }
    });
    jail.assert_nothing_left(None);
}

/// The same number of keepers in one process: one thread each, ended by their reins.
fn two_hundred_keepers_in_one_process(who: Who) {
    let yard = Yard::new(who);
    belljar_supervisor::raise_descriptor_limit().expect("more descriptors");
    let reins: Vec<Reins> = (0..BOXES).map(|_| Reins::new().expect("reins")).collect();
    std::thread::scope(|scope| {
        for (number, reins) in reins.iter().enumerate() {
            let yard = &yard;
            scope.spawn(move || {
                let script = format!("touch ready-{number}; exec sleep 600");
                let command = yard.command(&["sh", "-c", &script]);
                let result = yard.attend(&command, reins, &mut ()).expect("a result");
                let by = KillCode::KILL_SWITCH;
                assert_eq!(result.killed_by, Some(KilledBy::Killed { by }));
            });
        }
        (0..BOXES).for_each(|number| yard.await_file(&format!("ready-{number}")));
        reins
            .iter()
            .for_each(|reins| reins.kill(KillCode::KILL_SWITCH));
    });
    yard.assert_nothing_left();
}

for_each_user!(
    two_hundred_boxes_at_once,
    boxes_in_quick_succession,
    keepers_killed_while_their_boxes_start
);

mod in_one_process {
    mod as_root {
        use crate::support::{Who, apart};
        #[test]
        fn two_hundred_keepers() {
            let _alone = crate::alone();
            let name = "in_one_process::as_root::two_hundred_keepers";
            apart(Who::Root, name, crate::two_hundred_keepers_in_one_process);
        }
    }
    mod as_user {
        use crate::support::{Who, apart};
        #[test]
        fn two_hundred_keepers() {
            let _alone = crate::alone();
            let name = "in_one_process::as_user::two_hundred_keepers";
            apart(Who::User, name, crate::two_hundred_keepers_in_one_process);
        }
    }
}
