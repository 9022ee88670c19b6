use super::*;
use crate::testing::{agent, id};

fn agents(names: &[&str]) -> Vec<AgentView> {
    names
        .iter()
        .map(|name| AgentView {
            started_at_ms: BEGIN,
            ..agent(name)
        })
        .collect()
}

fn range(agent: Option<&str>, since: u64, until: u64, points: u64) -> MetricsQuery {
    MetricsQuery {
        agent: agent.map(id),
        since_ms: Some(since),
        until_ms: Some(until),
        points: Some(points),
    }
}

fn work(agent: &mut AgentView) {
    agent.usage.cpu_ms += 250;
    agent.usage.read_bytes += 1_000;
    agent.usage.tokens += 2;
    agent.usage.memory_bytes = 100 << 20;
    agent.usage.processes = 3;
}

#[test]
fn what_was_used_is_told_by_second_and_by_minute_of_one_agent_and_of_all() {
    let directory = tempfile::tempdir().unwrap();
    let hands = Hands::at(BEGIN);
    let monitor = hands.open(directory.path(), Settings::default()).unwrap();
    let mut both = agents(&["a", "b"]);
    live(&hands, &monitor, &mut both, 3 * 3600, work);

    let fine = metrics(
        &monitor,
        &range(
            Some("a"),
            hands.now() - 1_200_000,
            hands.now() - 600_000,
            600,
        ),
    );
    assert_eq!((fine.every_ms, fine.samples.len()), (1_000, 600));
    for sample in &fine.samples {
        assert_eq!(
            (sample.cpu_percent, sample.read_rate),
            (25.0, 1_000.0),
            "{sample:?}"
        );
        assert_eq!(
            (sample.memory_bytes, sample.processes, sample.tokens),
            (100 << 20, 3, 2)
        );
    }
    // The last seconds are in memory, the others in the file: there is no seam.
    let edge = metrics(
        &monitor,
        &range(Some("a"), hands.now() - 400_000, hands.now(), 2_000),
    );
    assert!(
        edge.samples
            .windows(2)
            .all(|pair| pair[1].at_ms == pair[0].at_ms + 1_000)
    );
    assert!(
        edge.samples.iter().all(|sample| sample.tokens == 2),
        "{edge:?}"
    );

    let coarse = metrics(&monitor, &range(None, BEGIN, hands.now(), 100));
    assert_eq!(coarse.every_ms, 120_000);
    assert_eq!(coarse.samples.len(), 90);
    let whole = &coarse.samples[1..89];
    assert!(
        whole.iter().all(|sample| sample.tokens == 2 * 2 * 120),
        "{whole:?}"
    );
    assert!(
        whole
            .iter()
            .all(|sample| sample.cpu_percent == 50.0 && sample.memory_bytes == 200 << 20)
    );
    // Nothing is lost and nothing counted twice, but for the last second, which is not over.
    let tokens: u64 = coarse.samples.iter().map(|sample| sample.tokens).sum();
    assert!(
        (2 * 2 * (3 * 3600 - 2)..=2 * 2 * 3 * 3600).contains(&tokens),
        "{tokens}"
    );
}

#[test]
fn a_restart_in_the_middle_of_a_minute_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let hands = Hands::at(BEGIN);
    let mut one = agents(&["a"]);
    for seconds in [100, 17, 61, 5, 200] {
        let monitor = hands.open(directory.path(), Settings::default()).unwrap();
        live(&hands, &monitor, &mut one, seconds, work);
    }
    let monitor = hands.open(directory.path(), Settings::default()).unwrap();
    hands.pass(120_000);
    monitor.flush();
    let all = metrics(&monitor, &range(Some("a"), BEGIN, hands.now(), 2_000));
    let tokens: u64 = all.samples.iter().map(|sample| sample.tokens).sum();
    // A new life knows what an agent has used from its first look on; what was used before that look is all it can't tell.
    let later_lives = 4;
    let total = 2 * (100 + 17 + 61 + 5 + 200);
    assert_eq!(tokens, total - 2 * later_lives);
    let by_minute = metrics(&monitor, &range(Some("a"), BEGIN, hands.now(), 9));
    assert_eq!(
        by_minute
            .samples
            .iter()
            .map(|sample| sample.tokens)
            .sum::<u64>(),
        tokens
    );
}

#[test]
fn what_is_too_old_goes_a_little_at_a_time() {
    let directory = tempfile::tempdir().unwrap();
    let hands = Hands::at(BEGIN);
    let mut settings = Settings::default();
    settings.monitor.seconds_kept = Duration::from_secs(3600);
    settings.monitor.minutes_kept = Duration::from_secs(2 * 3600);
    let monitor = hands.open(directory.path(), settings).unwrap();
    live(&hands, &monitor, &mut agents(&["a"]), 4 * 3600, work);
    let file = rusqlite::Connection::open(directory.path().join("monitor.db")).unwrap();
    let count = |sql: &str| file.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    assert!((58..=62).contains(&count("SELECT count(DISTINCT minute) FROM seconds")));
    assert!((2..=4).contains(&count("SELECT count(DISTINCT hour) FROM minutes")));
    assert!(count("SELECT count(*) FROM journal") <= 4);
    // Two hours ago there are minutes and no seconds.
    let old = metrics(
        &monitor,
        &range(
            Some("a"),
            hands.now() - 7_000_000,
            hands.now() - 6_900_000,
            1_000,
        ),
    );
    assert_eq!(old.every_ms, 60_000);
    assert!(!old.samples.is_empty());
}

#[test]
fn an_agent_that_is_long_gone_is_forgotten() {
    let directory = tempfile::tempdir().unwrap();
    let hands = Hands::at(BEGIN);
    let mut settings = Settings::default();
    settings.monitor.minutes_kept = Duration::from_secs(3600);
    let monitor = hands.open(directory.path(), settings).unwrap();
    live(&hands, &monitor, &mut agents(&["gone"]), 120, work);
    live(&hands, &monitor, &mut agents(&["b"]), 3 * 3600, work);
    let file = rusqlite::Connection::open(directory.path().join("monitor.db")).unwrap();
    let names: Vec<String> = file
        .prepare("SELECT id FROM agents")
        .unwrap()
        .query_map([], |row| row.get(0))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    assert_eq!(names, ["b"]);
}

#[test]
fn a_clock_that_is_set_back_neither_loses_nor_repeats_anything() {
    let directory = tempfile::tempdir().unwrap();
    let hands = Hands::at(BEGIN);
    let mut one = agents(&["a"]);
    let monitor = hands.open(directory.path(), Settings::default()).unwrap();
    live(&hands, &monitor, &mut one, 90, work);
    hands.set(BEGIN - 3_600_000);
    live(&hands, &monitor, &mut one, 90, work);
    // By our time another 90 s have passed.
    let all = metrics(&monitor, &range(Some("a"), BEGIN, BEGIN + 179_000, 2_000));
    assert!(
        all.samples
            .windows(2)
            .all(|pair| pair[0].at_ms < pair[1].at_ms)
    );
    let tokens: u64 = all.samples.iter().map(|sample| sample.tokens).sum();
    assert!((2 * 176..=2 * 180).contains(&tokens), "{tokens}");
    drop(monitor);
    // A year in the future was a mistake: what was noted then is forgotten, and time goes on from now.
    hands.set(BEGIN + 365 * 86_400_000);
    let monitor = hands.open(directory.path(), Settings::default()).unwrap();
    live(&hands, &monitor, &mut one, 90, work);
    hands.set(BEGIN + 400_000);
    live(&hands, &monitor, &mut one, 90, work);
    let now = metrics(
        &monitor,
        &range(Some("a"), BEGIN + 400_000, BEGIN + 500_000, 2_000),
    );
    assert!(now.samples.len() > 50, "{}", now.samples.len());
}

#[test]
fn samples_that_no_disk_takes_are_counted_and_the_last_minutes_served() {
    let directory = tempfile::tempdir().unwrap();
    let hands = Hands::at(BEGIN);
    let monitor = hands.open(directory.path(), Settings::default()).unwrap();
    let other = rusqlite::Connection::open(directory.path().join("monitor.db")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut one = agents(&["a"]);
    for _ in 0..1_000 {
        hands.pass(1_000);
        work(&mut one[0]);
        monitor.sampled(&one[0]);
    }
    monitor.flush();
    let (samples, events) = monitor.dropped();
    assert!((390..=410).contains(&samples), "{samples}");
    assert_eq!(events, 0);
    let recent = metrics(
        &monitor,
        &range(Some("a"), hands.now() - 300_000, hands.now(), 2_000),
    );
    assert!(recent.samples.len() >= 297, "{}", recent.samples.len());
}
