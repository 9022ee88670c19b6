use super::*;
use crate::testing::event;
use belljar_api::{EventKind, Live, NewEvent, Severity, Shown};

#[test]
fn a_hundred_thousand_events_are_found_by_whom_what_and_words() {
    let directory = tempfile::tempdir().unwrap();
    let hands = Hands::at(BEGIN);
    let monitor = hands.open(directory.path(), Settings::default()).unwrap();
    for number in 1..=100_000_u64 {
        let who = format!("agent-{}", number % 100);
        let kind = if number % 1_000 == 7 {
            EventKind::Replicated
        } else {
            EventKind::Started
        };
        let severity = if number % 10_000 == 3 {
            Severity::Critical
        } else {
            Severity::Info
        };
        let told = monitor.happened(NewEvent {
            severity,
            ..event(Some(&who), kind, &format!("number {number} of 100%_done"))
        });
        assert_eq!(told.id, number);
        if number % 10_000 == 0 {
            monitor.flush();
        }
    }
    assert_eq!(monitor.dropped(), (0, 0));
    let ids = |query: &str| -> Vec<u64> {
        events(&monitor, query)
            .iter()
            .map(|event| event.id)
            .collect()
    };
    assert_eq!(ids("?limit=3"), [100_000, 99_999, 99_998]);
    assert_eq!(ids("").len(), 100);
    assert_eq!(ids("?limit=5000").len(), 1_000);
    assert_eq!(
        ids("?agent=agent-42&limit=2&before=50000"),
        [49_942, 49_842]
    );
    assert_eq!(
        ids("?severity=critical&limit=1000"),
        (0..10).rev().map(|n| n * 10_000 + 3).collect::<Vec<_>>()
    );
    assert_eq!(ids("?kind=replicated&limit=1000").len(), 100);
    assert_eq!(ids("?search=NUMBER+77777+"), [77_777]);
    assert_eq!(ids("?search=100%25_done&limit=1000").len(), 1_000);
    // Neither means anything but itself.
    assert!(ids("?search=100_").is_empty());
    assert!(ids("?search=%25number").is_empty());
    assert_eq!(ids("?after=99990&before=99993"), [99_992, 99_991]);
    // Every question goes by an index: none reads and sorts the whole table.
    let file = rusqlite::Connection::open(directory.path().join("monitor.db")).unwrap();
    for condition in ["agent = 'a'", "kind = 'replicated'", "text LIKE '%x%'"] {
        let sql = format!(
            "EXPLAIN QUERY PLAN SELECT text FROM events WHERE id < 9 AND id > 0 AND {condition} ORDER BY id DESC LIMIT 9"
        );
        let plan: String = file.query_row(&sql, [], |row| row.get(3)).unwrap();
        assert!(plan.starts_with("SEARCH"), "{condition}: {plan}");
    }
}

#[test]
fn the_file_answers_as_memory_does() {
    let directory = tempfile::tempdir().unwrap();
    let hands = Hands::at(BEGIN);
    let monitor = hands.open(directory.path(), Settings::default()).unwrap();
    for number in 0..300 {
        let who = ["a", "b"].get(number % 3).copied();
        let severity = [Severity::Info, Severity::Warning, Severity::Critical][number % 5 % 3];
        let text = ["Ärger mit 5%", "a_b", "back\\slash", "plain"][number % 4];
        let kind = [EventKind::Started, EventKind::Replicated, EventKind::Daemon][number % 7 % 3];
        monitor.happened(NewEvent {
            severity,
            code: Some(Shown::new("x")),
            ..event(who, kind, text)
        });
    }
    let questions = [
        "",
        "?agent=a",
        "?agent=b&severity=warning",
        "?kind=daemon&limit=7",
        "?search=%25",
        "?search=A_B",
        "?search=%5C",
        "?search=%C3%84rger",
        "?search=%C3%A4rger",
        "?before=100&limit=5",
        "?after=290",
        "?agent=nobody",
        "?severity=info&limit=1000",
    ];
    let answers = |monitor: &Monitor| questions.map(|question| events(monitor, question));
    let from_memory = answers(&monitor);
    drop(monitor);
    let monitor = hands.open(directory.path(), Settings::default()).unwrap();
    let from_file = answers(&monitor);
    for ((question, memory), file) in questions.iter().zip(from_memory).zip(from_file) {
        assert_eq!(memory, file, "{question}");
    }
    assert_eq!(events(&monitor, "?search=a_b&limit=1000").len(), 75);
}

#[test]
fn the_oldest_events_go_by_number_and_by_age() {
    let directory = tempfile::tempdir().unwrap();
    let hands = Hands::at(BEGIN);
    let mut settings = Settings::default();
    settings.monitor.most_events = 5_000;
    settings.monitor.events_kept = Duration::from_secs(86_400);
    let monitor = hands.open(directory.path(), settings).unwrap();
    let file = rusqlite::Connection::open(directory.path().join("monitor.db")).unwrap();
    let count = || {
        file.query_row("SELECT count(*) FROM events", [], |row| {
            row.get::<_, i64>(0)
        })
        .unwrap()
    };
    for _ in 0..12_000 {
        monitor.happened(event(None, EventKind::Daemon, "x"));
    }
    for _ in 0..4 {
        monitor.happened(event(None, EventKind::Daemon, "x"));
        monitor.flush();
    }
    assert!((5_000..=5_004).contains(&count()), "{}", count());
    hands.pass(2 * 86_400_000);
    for _ in 0..4 {
        monitor.happened(event(None, EventKind::Daemon, "new"));
        monitor.flush();
    }
    assert_eq!(count(), 4);
}

#[test]
fn listeners_hear_of_events_as_they_happen() {
    let directory = tempfile::tempdir().unwrap();
    let monitor = Hands::at(BEGIN)
        .open(directory.path(), Settings::default())
        .unwrap();
    let woken = Arc::new(Mutex::new(0));
    let count = Arc::clone(&woken);
    let receiver = monitor.subscribe_with(move || *count.lock().unwrap() += 1);
    let told = monitor.happened(event(Some("a"), EventKind::Started, "hello"));
    assert_eq!(
        receiver.recv_timeout(LONG).as_deref(),
        Ok(&Live::Event(told))
    );
    assert_eq!(*woken.lock().unwrap(), 1);
    drop(monitor);
    assert_eq!(receiver.recv_timeout(LONG), Err(crate::RecvError::Closed));
}
