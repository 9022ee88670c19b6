use super::*;
use crate::testing::{agent, event};
use belljar_api::{
    AgentPhase, ClockState, ClockView, Counts, EventKind, KillSwitchView, LedgerView, Shown,
    StatusView,
};
use std::collections::{HashMap, HashSet};

pub(super) fn status() -> StatusView {
    StatusView {
        version: Shown::new("0.1.0"),
        started_at_ms: 0,
        uptime_ms: 1_500,
        workers: Counts::default(),
        kill_switch: KillSwitchView::default(),
        epoch: 1,
        clock: ClockView {
            state: ClockState::Steady,
            high_water_ms: 0,
        },
        ledger: LedgerView {
            entries: 7,
            failed: None,
        },
    }
}

/// Reads a page as a scraper does: name, labels, value. Anything that is not in the format fails.
fn read(page: &str) -> HashMap<(String, Vec<(String, String)>), f64> {
    let (mut types, mut series) = (HashSet::new(), HashMap::new());
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(matches!(kind, "gauge" | "counter" | "histogram"));
            assert!(types.insert(name.to_owned()), "{name} is described twice");
            continue;
        }
        if line.starts_with("# HELP ") {
            continue;
        }
        let end = line.find(['{', ' ']).unwrap();
        let (name, mut rest) = line.split_at(end);
        assert!(
            name.bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte == b'_'),
            "{line}"
        );
        let parts = ["_bucket", "_sum", "_count"];
        let whole = parts.iter().find_map(|part| name.strip_suffix(part));
        let has_type = types.contains(name) || whole.is_some_and(|whole| types.contains(whole));
        assert!(has_type, "{name} has no type");
        let mut labels = Vec::new();
        if let Some(inside) = rest.strip_prefix('{') {
            rest = inside;
            loop {
                let (label, after) = rest.split_once("=\"").unwrap();
                let mut value = String::new();
                let mut chars = after.char_indices();
                let end = loop {
                    match chars.next().unwrap() {
                        (_, '\\') => value.push(match chars.next().unwrap().1 {
                            'n' => '\n',
                            other => other,
                        }),
                        (end, '"') => break end,
                        (_, other) => value.push(other),
                    }
                };
                labels.push((label.to_owned(), value));
                rest = &after[end + 1..];
                match rest.chars().next().unwrap() {
                    ',' => rest = &rest[1..],
                    '}' => break rest = &rest[1..],
                    other => panic!("{other} in {line}"),
                }
            }
        }
        let value: f64 = rest.trim().parse().unwrap_or_else(|_| panic!("{line}"));
        assert!(
            series.insert((name.to_owned(), labels), value).is_none(),
            "twice: {line}"
        );
    }
    series
}

#[test]
fn the_page_is_in_the_format_whatever_agents_call_themselves() {
    let directory = tempfile::tempdir().unwrap();
    let monitor = Hands::at(BEGIN)
        .open(directory.path(), Settings::default())
        .unwrap();
    monitor.happened(event(Some("a"), EventKind::SystemCallRefused, "mount"));
    let mut agents = vec![agent("a"), agent("b"), agent("c")];
    agents[0].name = Shown::new("evil\"} 1\nbelljar_agents{phase=\"x\\");
    agents[0].usage.cpu_ms = 2_500;
    agents[1].name = Shown::new(&"ü".repeat(200));
    agents[2].phase = AgentPhase::Ended;
    let series = read(&monitor.prometheus(&agents, &status(), &[]));
    let get = |name: &str, labels: &[(&str, &str)]| {
        let labels = labels
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        series.get(&(name.to_owned(), labels)).copied()
    };
    assert_eq!(get("belljar_agents", &[("phase", "running")]), Some(2.0));
    assert_eq!(get("belljar_agents", &[("phase", "ended")]), Some(1.0));
    let name = "evil\"} 1\u{fffd}belljar_agents{phase=\"x\\";
    assert_eq!(
        get(
            "belljar_agent_cpu_seconds_total",
            &[("agent", "a"), ("name", name)]
        ),
        Some(2.5)
    );
    assert_eq!(
        get(
            "belljar_alerts",
            &[("kind", "PrivilegeEscalation"), ("state", "open")]
        ),
        Some(1.0)
    );
    assert_eq!(
        get(
            "belljar_alerts",
            &[("kind", "LedgerFailure"), ("state", "open")]
        ),
        Some(0.0)
    );
    assert_eq!(
        get(
            "belljar_alerts_raised_total",
            &[("kind", "PrivilegeEscalation")]
        ),
        Some(1.0)
    );
    assert_eq!(get("belljar_samples_dropped_total", &[]), Some(0.0));
    assert_eq!(get("belljar_ledger_entries", &[]), Some(7.0));
    assert_eq!(get("belljar_history_writable", &[]), Some(1.0));
    assert!(series.keys().all(|(_, labels)| {
        !labels
            .iter()
            .any(|(name, value)| name == "agent" && value == "c")
    }));
}

#[test]
fn the_page_says_how_regularly_agents_are_sampled() {
    let directory = tempfile::tempdir().unwrap();
    let hands = Hands::at(BEGIN);
    let monitor = hands.open(directory.path(), Settings::default()).unwrap();
    let mut agent = agent("a");
    for wait in [0, 1_000, 1_150, 7_000] {
        hands.pass(wait);
        monitor.sampled(&agent);
    }
    // Neither its end nor a first sample is at any distance.
    agent.phase = AgentPhase::Ended;
    hands.pass(300);
    monitor.sampled(&agent);
    agent.phase = AgentPhase::Running;
    monitor.sampled(&agent);
    let series = read(&monitor.prometheus(&[agent], &status(), &[]));
    let get = |part: &str, most: Option<&str>| {
        let labels = most.map(|most| ("le".to_owned(), most.to_owned()));
        let key = (
            format!("belljar_sample_interval_seconds_{part}"),
            labels.into_iter().collect::<Vec<_>>(),
        );
        series[&key]
    };
    let up_to = |most| get("bucket", Some(most));
    assert_eq!([up_to("0.95"), up_to("1"), up_to("1.1")], [0.0, 1.0, 1.0]);
    assert_eq!([up_to("1.2"), up_to("5"), up_to("+Inf")], [2.0, 2.0, 3.0]);
    assert_eq!([get("count", None), get("sum", None)], [3.0, 9.15]);
}

#[test]
fn a_crowd_of_agents_does_not_make_a_crowd_of_series() {
    let directory = tempfile::tempdir().unwrap();
    let monitor = Hands::at(BEGIN)
        .open(directory.path(), Settings::default())
        .unwrap();
    let agents: Vec<_> = (0..1_500)
        .map(|number| agent(&format!("a{number}")))
        .collect();
    let series = read(&monitor.prometheus(&agents, &status(), &[]));
    let of_agents = series
        .keys()
        .filter(|(name, _)| name == "belljar_agent_memory_bytes")
        .count();
    assert_eq!(of_agents, 1_000);
    assert_eq!(
        series.get(&("belljar_agents_not_shown".to_owned(), Vec::new())),
        Some(&500.0)
    );
}

#[test]
fn tools_have_series_by_server_and_verdict_and_long_names_are_one() {
    let directory = tempfile::tempdir().unwrap();
    let monitor = Hands::at(BEGIN)
        .open(directory.path(), Settings::default())
        .unwrap();
    let called = |tool: &str, verdict: &str| crate::ToolSeries {
        server: "files".to_owned(),
        tool: tool.to_owned(),
        verdict: verdict.to_owned(),
        calls: 2,
        seconds: 0.25,
    };
    let long = "x".repeat(64);
    let tools = [
        called("read", "allow"),
        called("read", "deny"),
        called("evil\"} 1\n", "deny"),
        called(&format!("{long}1"), "allow"),
        called(&format!("{long}2"), "allow"),
    ];
    let series = read(&monitor.prometheus(&[], &status(), &tools));
    let get = |name: &str, tool: &str, verdict: &str| {
        let labels = [("server", "files"), ("tool", tool), ("verdict", verdict)];
        let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned()));
        series.get(&(name.to_owned(), labels.to_vec())).copied()
    };
    assert_eq!(get("belljar_tool_calls_total", "read", "deny"), Some(2.0));
    assert_eq!(
        get("belljar_tool_seconds_total", "read", "allow"),
        Some(0.25)
    );
    assert_eq!(get("belljar_tool_calls_total", &long, "allow"), Some(4.0));
    let evil = get("belljar_tool_calls_total", "evil\"} 1\n", "deny");
    assert_eq!(evil, Some(2.0));
}
