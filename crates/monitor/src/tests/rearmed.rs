//! One alert for each agent and kind, whatever its run; and rules that answer again when they have to.

use belljar_api::{
    AgentPhase, AlertKind, AlertState, AlertsResolved, EventKind, HoldView, Response,
    ResponseTaken, Severity, Shown, SilenceList, SilenceView, Status,
};

use super::alerts::{engine, warning};
use super::{BEGIN, Hands, alerts, ask, codes, get};
use crate::settings::AlertSettings;
use crate::testing::{agent, event, id};
use crate::{Change, Engine, Settings};

/// What became of each alert, in a word.
fn words(changes: &[Change]) -> Vec<&'static str> {
    let word = |change: &Change| match change {
        Change::Raised(_) => "raised",
        Change::Again(_) => "again",
        Change::Unsilenced(_) => "unsilenced",
        Change::Acknowledged(_) => "acknowledged",
        Change::Resolved(_) => "resolved",
    };
    changes.iter().map(word).collect()
}

fn reason(changes: &[Change]) -> String {
    let reason = |change: &Change| match change {
        Change::Resolved(alert) => alert.reason.as_ref().map(ToString::to_string),
        _ => None,
    };
    changes.iter().find_map(reason).unwrap_or_default()
}

fn did(engine: &mut Engine, now: u64, number: &str, response: Response, failed: Option<&str>) {
    let failed = failed.map(Shown::new);
    let taken = ResponseTaken {
        response,
        at_ms: now,
        failed,
    };
    engine.responded(now, &id(number), taken).unwrap();
}

/// Something that an agent does, by its id, at a time.
type Deed = fn(&mut Engine, u64, &str) -> Vec<Change>;

fn mount(engine: &mut Engine, now: u64, who: &str) -> Vec<Change> {
    let mut event = warning(EventKind::SystemCallRefused, "mount", "x");
    event.agent = Some(id(who));
    engine.happened(now, &event)
}

fn metadata(engine: &mut Engine, now: u64, who: &str) -> Vec<Change> {
    let (what, code) = (
        Shown::new("169.254.169.254:80"),
        Shown::new("deny_no_egress_rule"),
    );
    engine.refused_again(now, &id(who), (&what, &code), 1)
}

fn held_calls(engine: &mut Engine, now: u64, who: &str) -> Vec<Change> {
    let mut event = warning(EventKind::ToolRefused, "tool_new_after_pin", "files:x");
    event.agent = Some(id(who));
    engine.happened(now, &event)
}

#[test]
fn a_rule_answers_again_after_a_release_a_restart_and_a_failure() {
    let deeds: [Deed; 3] = [mount, metadata, held_calls];
    for deed in deeds {
        for response in [Response::Quarantine, Response::Freeze] {
            let mut engine = engine(|settings| {
                for rule in &mut settings.rules {
                    rule.respond = vec![Response::Notify, response];
                }
            });
            engine.named(0, &id("a"), &Shown::new("escape"));
            assert_eq!(words(&deed(&mut engine, 1_000, "a")), ["raised"]);
            did(&mut engine, 1_100, "1", response, None);
            assert!(deed(&mut engine, 1_200, "a").is_empty(), "held already");
            let over = engine.happened(
                2_000,
                &warning(EventKind::Released, "", "by ada: looked at"),
            );
            assert_eq!(words(&over), ["resolved"]);
            assert!(reason(&over).contains("by ada: looked at"));
            assert_eq!(
                words(&deed(&mut engine, 2_001, "a")),
                ["raised"],
                "the next is the first"
            );
            // A next run is held by nobody.
            did(&mut engine, 2_100, "2", response, None);
            engine.named(3_000, &id("b"), &Shown::new("escape"));
            assert_eq!(words(&deed(&mut engine, 3_001, "b")), ["again"]);
            assert!(deed(&mut engine, 3_002, "b").is_empty());
            assert_eq!(engine.open().count(), 1, "and is no other agent");
            // What could not be done is tried again, and not at once.
            did(&mut engine, 3_100, "2", response, Some("no hand"));
            assert!(deed(&mut engine, 4_000, "b").is_empty());
            assert_eq!(words(&deed(&mut engine, 34_000, "b")), ["again"]);
        }
    }
    // Where no rule held it, releasing it resolves nothing, and what it tries next is answered all the same.
    let mut engine = engine(|_| {});
    mount(&mut engine, 1_000, "a");
    assert!(
        engine
            .happened(2_000, &warning(EventKind::Released, "", "x"))
            .is_empty()
    );
    assert_eq!(words(&mount(&mut engine, 3_000, "a")), ["again"]);
}

#[test]
fn a_crash_loop_is_one_alert_and_over_when_it_is_over() {
    let mut engine = engine(|_| {});
    let mut all = Vec::new();
    for run in 0..6_u64 {
        let who = format!("run{run}");
        engine.named(run * 10_000, &id(&who), &Shown::new("clock"));
        let mut lost = warning(EventKind::Ended, "keeper_lost", "its keeper was killed");
        lost.agent = Some(id(&who));
        all.extend(engine.happened(run * 10_000 + 1, &lost));
        let mut again = warning(EventKind::Restarting, "", "it is started again");
        again.agent = Some(id(&who));
        engine.happened(run * 10_000 + 2, &again);
    }
    assert_eq!(words(&all), ["raised"]);
    assert_eq!(engine.open().next().unwrap().count, 6);
    let mut view = agent("run6");
    view.name = Shown::new("clock");
    for second in 60..=359_u64 {
        engine.sampled(second * 1_000, &view);
        assert!(engine.tick(second * 1_000).is_empty(), "{second}");
    }
    engine.sampled(360_000, &view);
    let over = engine.tick(360_000);
    assert!(reason(&over).contains("run again for 300 s"), "{over:?}");
    // One that stays down waits for a person.
    let mut engine = super::alerts::engine(|_| {});
    let mut crash = warning(EventKind::Ended, "crashed", "x");
    crash.severity = Severity::Critical;
    engine.happened(1, &crash);
    assert!(engine.tick(100_000_000).is_empty());
}

#[test]
fn every_refusal_counts_and_a_beacon_is_one_alert() {
    let (what, code) = (
        Shown::new("c2.example:443"),
        Shown::new("deny_no_egress_rule"),
    );
    let mut engine = engine(|_| {});
    let mut first = warning(
        EventKind::EgressRefused,
        "deny_no_egress_rule",
        "a was refused c2.example:443",
    );
    first.agent = Some(id("a"));
    let mut all = engine.happened(60_000, &first);
    for minute in 2..=549_u64 {
        all.extend(engine.refused_again(minute * 60_000, &id("a"), (&what, &code), 1));
        all.extend(engine.tick(minute * 60_000 + 1));
    }
    assert_eq!(words(&all), ["raised"]);
    let alert = engine.open().next().unwrap();
    assert_eq!(alert.kind, AlertKind::NetworkAnomaly);
    assert!(
        alert.text.as_str().contains("9 times, every 60 s"),
        "{}",
        alert.text
    );
    assert_eq!(alert.count, 549 - 8);
    // A host that is down is asked again and again by whoever may reach it.
    let down = Shown::new("deny_unreachable");
    let mut engine = super::alerts::engine(|_| {});
    for minute in 1..=549_u64 {
        assert!(
            engine
                .refused_again(minute * 60_000, &id("a"), (&what, &down), 1)
                .is_empty()
        );
    }
}

#[test]
fn a_spent_budget_is_spent_after_a_restart_too() {
    let mut before = engine(|_| {});
    before.named(0, &id("a"), &Shown::new("llm"));
    before.happened(
        1_000,
        &warning(EventKind::BudgetExceeded, "deny_llm_tokens", "x"),
    );
    let left: Vec<_> = before.open().cloned().collect();
    let mut after = Engine::new(AlertSettings::default(), left, 1);
    let mut view = agent("a");
    view.name = Shown::new("llm");
    (view.usage.tokens, view.limits.tokens) = (990, Some(1_000));
    for second in 10..700_u64 {
        let mut changes = after.sampled(second * 1_000, &view);
        changes.extend(after.tick(second * 1_000));
        assert!(changes.is_empty(), "{changes:?}");
    }
    // And one of which nothing was left is raised by the next call that is refused.
    let mut after = Engine::new(AlertSettings::default(), Vec::new(), 1);
    let (what, code) = (
        Shown::new("api.example.com:443"),
        Shown::new("deny_llm_tokens"),
    );
    let changes = after.refused_again(800_000, &id("a"), (&what, &code), 3);
    assert_eq!(words(&changes), ["raised"]);
}

#[test]
fn what_earlier_versions_left_twice_is_one() {
    let mut before = engine(|_| {});
    mount(&mut before, 1_000, "a");
    mount(&mut before, 1_000, "b");
    let mut left: Vec<_> = before.open().cloned().collect();
    left.reverse();
    for alert in &mut left {
        alert.agent_name = Some(Shown::new("escape"));
    }
    let mut after = Engine::new(AlertSettings::default(), left, 2);
    let changes = after.tick(2_000);
    assert_eq!(
        (words(&changes), after.open().count()),
        (vec!["resolved"], 1)
    );
    assert!(reason(&changes).contains("alert 2"));
    after.named(2_000, &id("b"), &Shown::new("escape"));
    assert!(
        mount(&mut after, 3_000, "b").is_empty(),
        "it is counted in the one"
    );
}

#[test]
fn calls_that_wait_are_an_alert_until_they_are_answered() {
    let hold = |number: &str, run: &str| HoldView {
        id: id(number),
        run: Shown::new(run),
        server: Shown::new("files"),
        tool: Shown::new("delete"),
        arguments: Shown::new("{}"),
        code: Shown::new("hold_rule"),
        rule: Shown::new("r"),
        opened_at_ms: 0,
        deadline_ms: 60_000,
    };
    let mut engine = engine(|_| {});
    engine.named(0, &id("a"), &Shown::new("clerk"));
    let changes = engine.holds(1_000, &[hold("h1", "a"), hold("h2", "elsewhere")]);
    assert_eq!(words(&changes), ["raised", "raised"]);
    let about: Vec<_> = engine
        .open()
        .map(|alert| alert.agent_name.clone())
        .collect();
    assert!(about.contains(&Some(Shown::new("clerk"))) && about.contains(&None));
    assert!(
        engine
            .holds(2_000, &[hold("h1", "a"), hold("h2", "elsewhere")])
            .is_empty()
    );
    let over = engine.holds(8_000, &[]);
    assert_eq!(words(&over), ["resolved", "resolved"]);
    let full = engine.storage(9_000, Some("no room".to_owned()));
    assert_eq!(words(&full), ["raised"]);
    assert_eq!(words(&engine.storage(20_000, None)), ["resolved"]);
}

#[test]
fn many_are_resolved_at_once_and_silences_last() {
    let directory = tempfile::tempdir().unwrap();
    let hands = Hands::at(BEGIN);
    let monitor = hands.open(directory.path(), Settings::default()).unwrap();
    for name in ["web-1", "web-2", "db"] {
        monitor.named(&id(name), &Shown::new(name));
        monitor.happened(event(
            Some(name),
            EventKind::SystemCallRefused,
            "mount refused",
        ));
        monitor.happened(event(
            Some(name),
            EventKind::SystemCallRefused,
            "connect refused",
        ));
    }
    let resolve = |body: &str| {
        let (status, body) = ask(&monitor, "POST", "/v1/alerts/resolve", body);
        let resolved = serde_json::from_slice::<AlertsResolved>(&body);
        (status, resolved.map_or(0, |all| all.resolved.len()))
    };
    let because = r#""reason": "a drill""#;
    let cases = [
        (format!("{{{because}}}"), (Status::BAD_REQUEST, 0)),
        (
            format!(r#"{{"agent": "nobody", {because}}}"#),
            (Status::OK, 0),
        ),
        (
            format!(r#"{{"agent": "web-*", "kind": "PrivilegeEscalation", {because}}}"#),
            (Status::OK, 2),
        ),
        (format!(r#"{{"agent": "db", {because}}}"#), (Status::OK, 2)),
        (format!(r#"{{"all": true, {because}}}"#), (Status::OK, 2)),
    ];
    for (body, expect) in cases {
        assert_eq!(resolve(&body), expect, "{body}");
    }
    let gone = alerts(&monitor, "?state=resolved");
    assert_eq!(gone.len(), 6);
    assert!(
        gone.iter()
            .all(|alert| alert.reason == Some(Shown::new("a drill")))
    );

    let silence = |for_ms: u64, about: &str| {
        let body = format!(r#"{{{about} "for_ms": {for_ms}, {because}}}"#);
        ask(&monitor, "POST", "/v1/silences", &body)
    };
    for wrong in [0, 999, 2_592_000_001, u64::MAX] {
        assert_eq!(silence(wrong, "").0, Status::BAD_REQUEST, "{wrong}");
    }
    let (status, made) = silence(60_000, r#""agent": "web-*","#);
    assert_eq!(status, Status::CREATED);
    let made: SilenceView = serde_json::from_slice(&made).unwrap();
    assert_eq!(
        (made.by.as_str(), made.until_ms - made.since_ms),
        ("ada", 60_000)
    );
    monitor.happened(event(
        Some("web-1"),
        EventKind::SystemCallRefused,
        "mount refused",
    ));
    monitor.happened(event(
        Some("db"),
        EventKind::SystemCallRefused,
        "mount refused",
    ));
    drop(monitor);

    let monitor = hands.open(directory.path(), Settings::default()).unwrap();
    assert_eq!(
        get::<SilenceList>(&monitor, "/v1/silences").silences,
        std::slice::from_ref(&made)
    );
    let silenced: Vec<_> = alerts(&monitor, "")
        .iter()
        .map(|alert| alert.silenced)
        .collect();
    assert_eq!(silenced, [false, true], "the newest first");
    let end = |number: &str| {
        ask(
            &monitor,
            "POST",
            &format!("/v1/silences/{number}/end"),
            &format!("{{{because}}}"),
        )
        .0
    };
    assert_eq!(end("7"), Status::NOT_FOUND);
    assert_eq!(end(made.id.as_str()), Status::OK);
    assert_eq!(end(made.id.as_str()), Status::NOT_FOUND, "once");
    assert!(
        codes(&monitor).contains(&"unsilenced".to_owned()),
        "who was not told is told now"
    );
    assert!(
        alerts(&monitor, "")
            .iter()
            .all(|alert| !alert.silenced && alert.state == AlertState::Open)
    );
    let mut view = agent("web-1");
    view.phase = AgentPhase::Running;
    monitor.sampled(&view);
    assert_eq!(monitor.open_alerts().get(&id("web-1")), Some(&1));
}
