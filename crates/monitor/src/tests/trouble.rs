use super::*;
use crate::testing::event;
use belljar_api::{EventKind, Severity};
use std::fs;
use std::os::unix::fs::FileExt as _;

fn filled(directory: &Path) -> Hands {
    let hands = Hands::at(BEGIN);
    let monitor = hands.open(directory, Settings::default()).unwrap();
    for number in 0..2_000 {
        monitor.happened(event(
            Some("a"),
            EventKind::Started,
            &format!("event {number}"),
        ));
    }
    monitor.happened(event(Some("a"), EventKind::SystemCallRefused, "mount"));
    let mut agents = [crate::testing::agent("a")];
    live(&hands, &monitor, &mut agents, 200, |agent| {
        agent.usage.cpu_ms += 10
    });
    hands
}

/// What was told of the history itself.
fn history(monitor: &Monitor) -> Vec<String> {
    let mut all = codes(monitor);
    all.retain(|code| code.starts_with("history"));
    all
}

fn damaged_files(directory: &Path) -> Vec<std::path::PathBuf> {
    let is_aside =
        |path: &std::path::PathBuf| path.to_string_lossy().contains("monitor.db.damaged-");
    fs::read_dir(directory)
        .unwrap()
        .flatten()
        .map(|entry| entry.path())
        .filter(is_aside)
        .collect()
}

#[test]
fn a_file_that_is_no_database_is_set_aside_and_a_new_one_begun() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(
        directory.path().join("monitor.db"),
        "not a database at all, but long enough to be looked at ".repeat(100),
    )
    .unwrap();
    let monitor = Hands::at(BEGIN)
        .open(directory.path(), Settings::default())
        .unwrap();
    let told = &events(&monitor, "")[0];
    assert_eq!(
        (told.kind, told.severity),
        (EventKind::Daemon, Severity::Critical)
    );
    assert_eq!(damaged_files(directory.path()).len(), 1);
    assert!(
        told.text.as_str().contains("monitor.db.damaged-"),
        "{}",
        told.text
    );
    monitor.happened(event(None, EventKind::Daemon, "goes on"));
    monitor.flush();
    assert_eq!(monitor.failing(), None);
}

#[test]
fn garbage_anywhere_in_the_file_never_ends_the_supervisor() {
    let origin = tempfile::tempdir().unwrap();
    let hands = filled(origin.path());
    let bytes = fs::read(origin.path().join("monitor.db")).unwrap();
    let mut seed = 42_u64;
    let mut random = |below: usize| {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    };
    let mut set_aside = 0;
    for _ in 0..40 {
        let directory = tempfile::tempdir().unwrap();
        let mut bytes = bytes.clone();
        for _ in 0..1 + random(8) {
            let (place, length) = (random(bytes.len()), 1 + random(600));
            let end = (place + length).min(bytes.len());
            bytes[place..end]
                .iter_mut()
                .for_each(|byte| *byte = random(256) as u8);
        }
        fs::write(directory.path().join("monitor.db"), &bytes).unwrap();
        let monitor = hands.open(directory.path(), Settings::default()).unwrap();
        events(&monitor, "?search=nothing&limit=1000");
        metrics(
            &monitor,
            &MetricsQuery {
                since_ms: Some(BEGIN),
                ..MetricsQuery::default()
            },
        );
        alerts(&monitor, "?state=resolved");
        let told = monitor.happened(event(None, EventKind::Daemon, "goes on"));
        monitor.flush();
        monitor.flush();
        assert!(events(&monitor, "?limit=10").contains(&told));
        set_aside += damaged_files(directory.path()).len();
    }
    assert!(set_aside > 10, "{set_aside} of 40 damages were noticed");
}

#[test]
fn damage_while_it_runs_is_set_aside_and_open_alerts_go_to_the_new_file() {
    let directory = tempfile::tempdir().unwrap();
    let hands = filled(directory.path());
    let monitor = hands.open(directory.path(), Settings::default()).unwrap();
    assert_eq!(alerts(&monitor, "").len(), 1);
    let file = fs::File::options()
        .write(true)
        .open(directory.path().join("monitor.db"))
        .unwrap();
    let length = file.metadata().unwrap().len();
    file.write_all_at(&vec![0x5a; usize::try_from(length).unwrap()], 0)
        .unwrap();
    // Whoever asks meets the damage first, or the writer does.
    until("the damage is noticed", || {
        events(&monitor, "?search=nothing");
        monitor.happened(event(None, EventKind::Daemon, "goes on"));
        monitor.flush();
        codes(&monitor).contains(&"history_damaged".to_owned())
    });
    assert_eq!(damaged_files(directory.path()).len(), 1);
    monitor.flush();
    drop(monitor);
    let monitor = hands.open(directory.path(), Settings::default()).unwrap();
    assert_eq!(
        alerts(&monitor, "").len(),
        1,
        "the alert is in the new file"
    );
    assert!(codes(&monitor).contains(&"history_damaged".to_owned()));
}

#[test]
fn two_supervisors_do_not_share_a_directory() {
    let directory = tempfile::tempdir().unwrap();
    let hands = Hands::at(BEGIN);
    let first = hands.open(directory.path(), Settings::default()).unwrap();
    let error = hands
        .open(directory.path(), Settings::default())
        .unwrap_err();
    assert!(matches!(error, OpenError::InUse(_)), "{error}");
    drop(first);
    hands.open(directory.path(), Settings::default()).unwrap();
}

#[test]
fn a_file_that_somebody_has_locked_is_refused_at_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let hands = filled(directory.path());
    let other = rusqlite::Connection::open(directory.path().join("monitor.db")).unwrap();
    other
        .execute_batch("PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE")
        .unwrap();
    let error = hands
        .open(directory.path(), Settings::default())
        .unwrap_err();
    assert!(matches!(error, OpenError::Locked(_)), "{error}");
    assert!(error.hint().contains("sqlite3"));
    assert!(
        damaged_files(directory.path()).is_empty(),
        "a lock is no damage"
    );
}

#[test]
fn a_lock_while_it_runs_delays_and_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let hands = Hands::at(BEGIN);
    let monitor = hands.open(directory.path(), Settings::default()).unwrap();
    let other = rusqlite::Connection::open(directory.path().join("monitor.db")).unwrap();
    other.busy_timeout(LONG).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    for number in 0..5_000 {
        monitor.happened(event(
            Some("a"),
            EventKind::Started,
            &format!("event {number}"),
        ));
    }
    until("it is told", || {
        monitor.flush();
        monitor.failing().is_some()
    });
    assert_eq!(
        events(&monitor, "?search=event+17&agent=a&limit=1000").len(),
        111,
        "memory answers"
    );
    other.execute_batch("COMMIT").unwrap();
    until("it is over", || {
        monitor.flush();
        monitor.failing().is_none()
    });
    assert_eq!(
        history(&monitor),
        ["history_unwritable", "history_writable"]
    );
    assert_eq!(monitor.dropped(), (0, 0));
    drop(monitor);
    let count: i64 = other
        .query_row("SELECT count(*) FROM events WHERE agent = 'a'", [], |row| {
            row.get(0)
        })
        .unwrap();
    assert_eq!(count, 5_000);
}

/// No file of this process may grow: what a full disk does, without one. The signal that goes with it must be ignored, which only
/// a parent can arrange.
#[test]
fn a_full_disk_is_told_survived_and_got_over() {
    const INSIDE: &str = "BELLJAR_TEST_FULL_DISK";
    if std::env::var_os(INSIDE).is_none() {
        let status = std::process::Command::new("/bin/sh")
            .args(["-c", "trap '' XFSZ; exec \"$0\" --exact tests::trouble::a_full_disk_is_told_survived_and_got_over"])
            .arg(std::env::current_exe().unwrap())
            .env(INSIDE, "1")
            .stdout(std::process::Stdio::null())
            .status()
            .unwrap();
        assert!(status.success());
        return;
    }
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let directory = tempfile::tempdir().unwrap();
    let hands = Hands::at(BEGIN);
    let monitor = hands.open(directory.path(), Settings::default()).unwrap();
    let before = monitor.happened(event(Some("a"), EventKind::Started, "before"));
    monitor.flush();
    let unlimited = getrlimit(Resource::Fsize);
    setrlimit(
        Resource::Fsize,
        Rlimit {
            current: Some(1),
            maximum: unlimited.maximum,
        },
    )
    .unwrap();
    let during = monitor.happened(event(Some("a"), EventKind::Started, "during"));
    until("it is told", || {
        monitor.flush();
        monitor.failing().is_some()
    });
    let mut agents = [AgentView {
        started_at_ms: BEGIN,
        ..crate::testing::agent("a")
    }];
    live(&hands, &monitor, &mut agents, 100, |agent| {
        agent.usage.tokens += 1
    });
    assert!(
        metrics(&monitor, &MetricsQuery::default()).samples.len() > 90,
        "memory answers"
    );
    let known = events(&monitor, "?limit=1000");
    assert!(known.contains(&during));
    setrlimit(Resource::Fsize, unlimited).unwrap();
    until("it is over", || {
        monitor.flush();
        monitor.failing().is_none()
    });
    drop(monitor);
    let monitor = hands.open(directory.path(), Settings::default()).unwrap();
    let known = events(&monitor, "?limit=1000");
    assert!(known.contains(&before) && known.contains(&during));
    assert_eq!(
        history(&monitor),
        ["history_unwritable", "history_writable"]
    );
    assert_eq!(
        damaged_files(directory.path()).len(),
        0,
        "a full disk is no damage"
    );
}

#[test]
fn a_directory_that_is_none_and_a_file_of_the_future_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let hands = filled(directory.path());
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    let error = hands
        .open(&file.join("below"), Settings::default())
        .unwrap_err();
    assert!(matches!(error, OpenError::Io { .. }), "{error}");
    let other = rusqlite::Connection::open(directory.path().join("monitor.db")).unwrap();
    other.pragma_update(None, "user_version", 99).unwrap();
    let error = hands
        .open(directory.path(), Settings::default())
        .unwrap_err();
    assert!(matches!(error, OpenError::Newer(_)), "{error}");
}

#[test]
fn damage_that_nobody_reads_is_noticed_while_it_runs() {
    type Damage = fn(&std::path::Path);
    let damages: [Damage; 3] = [
        |path| std::fs::write(path, b"nothing of the kind").unwrap(),
        |path| std::fs::remove_file(path).unwrap(),
        |path| {
            let other = path.with_extension("other");
            std::fs::write(&other, b"").unwrap();
            std::fs::rename(other, path).unwrap();
        },
    ];
    for damage in damages {
        let directory = tempfile::tempdir().unwrap();
        let hands = Hands::at(BEGIN);
        let monitor = hands.open(directory.path(), Settings::default()).unwrap();
        monitor.happened(event(None, EventKind::Daemon, "before"));
        monitor.flush();
        hands.pass(61_000);
        monitor.flush();
        assert!(
            !codes(&monitor).contains(&"history_damaged".to_owned()),
            "it is whole"
        );
        damage(&directory.path().join("monitor.db"));
        hands.pass(61_000);
        monitor.flush();
        assert!(codes(&monitor).contains(&"history_damaged".to_owned()));
        assert_eq!(monitor.failing(), None);
    }
}
