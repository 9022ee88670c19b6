//! What the state machine promises for any course of events.

use std::collections::HashMap;

use belljar_api::{AgentId, AgentPhase, AlertKind, EventKind, EventView};
use proptest::prelude::*;

use super::alerts::{engine, warning};
use crate::Change;
use crate::alerts::beacon::{DAILY, DAY, GAPS, ONE_ATTEMPT, RATE, RATE_WINDOW, REGULAR};
use crate::testing::{agent, id};

/// Something that may happen, a while after what happened before.
#[derive(Clone, Debug)]
enum Step {
    Sample(u8, f64),
    Refused(u8),
    Mount(u8),
    Frozen(u8, bool),
    Resolve(u8),
    Tick,
}

fn steps() -> impl Strategy<Value = Vec<(u64, Step)>> {
    let step = prop_oneof![
        6 => (0..3_u8, prop_oneof![Just(10.0), Just(79.9), Just(80.0), Just(100.0)]).prop_map(|(who, cpu)| Step::Sample(who, cpu)),
        4 => (0..3_u8).prop_map(Step::Refused),
        1 => (0..3_u8).prop_map(Step::Mount),
        1 => (0..3_u8, any::<bool>()).prop_map(|(who, on)| Step::Frozen(who, on)),
        1 => (1..20_u8).prop_map(Step::Resolve),
        2 => Just(Step::Tick),
    ];
    prop::collection::vec((0..8_000_u64, step), 0..300)
}

/// What a reader of the rules would keep track of.
#[derive(Default)]
struct Facts {
    high_since: HashMap<AgentId, u64>,
    refusals: HashMap<AgentId, Vec<u64>>,
    mounts: HashMap<AgentId, u64>,
    frozen: HashMap<AgentId, u64>,
}

/// Too many in a minute, or one host asked for again and again: by rate, by day, or with pauses that could be even.
fn is_anomaly(refusals: &[u64], now: u64) -> bool {
    let within = |window: u64| refusals.iter().filter(|at| now - **at < window).count() as u64;
    within(60_000) >= 10
        || within(RATE_WINDOW) >= RATE
        || within(DAY) >= DAILY
        || pauses_in_a_row(refusals) >= REGULAR
}

/// The pauses between attempts, up to the last one, that were neither too short nor too long to be a beacon's.
fn pauses_in_a_row(refusals: &[u64]) -> u32 {
    let mut last = None;
    let mut row = 0;
    for at in refusals {
        let pause = last.map(|last| at - last);
        match pause {
            Some(pause) if pause < ONE_ATTEMPT => continue,
            Some(pause) if GAPS.contains(&pause) => row += 1,
            _ => row = 0,
        }
        last = Some(*at);
    }
    row
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn whatever_happens_no_alert_is_open_twice_and_none_is_without_its_cause(steps in steps()) {
        let mut engine = engine(|_| {});
        let mut open: HashMap<(AlertKind, Option<AgentId>), String> = HashMap::new();
        let mut facts = Facts::default();
        let mut now = 1_000_000;
        for (wait, step) in steps {
            now += wait;
            let who = |number: u8| id(&format!("a{number}"));
            let about = |number, event: EventView| EventView { agent: Some(who(number)), ..event };
            let changes = match step {
                Step::Sample(number, cpu) => {
                    let mut view = agent(&format!("a{number}"));
                    view.usage.cpu_percent = cpu;
                    match cpu >= 80.0 {
                        true => { facts.high_since.entry(who(number)).or_insert(now); }
                        false => { facts.high_since.remove(&who(number)); }
                    }
                    if facts.frozen.contains_key(&who(number)) {
                        view.phase = AgentPhase::Quarantined;
                    }
                    engine.sampled(now, &view)
                }
                Step::Refused(number) => {
                    facts.refusals.entry(who(number)).or_default().push(now);
                    engine.happened(now, &about(number, warning(EventKind::EgressRefused, "deny_no_egress_rule", "example.com")))
                }
                Step::Mount(number) => {
                    facts.mounts.insert(who(number), now);
                    engine.happened(now, &about(number, warning(EventKind::SystemCallRefused, "mount", "x")))
                }
                Step::Frozen(number, true) => {
                    facts.frozen.insert(who(number), now);
                    engine.happened(now, &about(number, warning(EventKind::Quarantined, "", "x")))
                }
                Step::Frozen(number, false) => {
                    facts.frozen.remove(&who(number));
                    engine.happened(now, &about(number, warning(EventKind::Released, "", "x")))
                }
                Step::Resolve(number) => {
                    let change = engine.resolve(&id(&number.to_string()), "ada", "");
                    change.into_iter().collect()
                }
                Step::Tick => engine.tick(now),
            };
            for change in changes {
                match change {
                    Change::Raised(alert) => {
                        let key = (alert.kind, alert.agent.clone());
                        prop_assert!(!open.contains_key(&key), "{key:?} is open twice");
                        let agent = alert.agent.clone().unwrap();
                        let is_caused = match alert.kind {
                            AlertKind::HighResourceUsage => facts.high_since.get(&agent).is_some_and(|since| now - since >= 30_000),
                            AlertKind::NetworkAnomaly => facts.refusals.get(&agent).is_some_and(|all| is_anomaly(all, now)),
                            AlertKind::PrivilegeEscalation => facts.mounts.get(&agent) == Some(&now),
                            AlertKind::AgentQuarantined => facts.frozen.contains_key(&agent),
                            _ => false,
                        };
                        prop_assert!(is_caused, "{alert:?} has no cause");
                        open.insert(key, alert.id.to_string());
                    }
                    Change::Resolved(alert) => {
                        let key = (alert.kind, alert.agent.clone());
                        prop_assert_eq!(open.remove(&key), Some(alert.id.to_string()));
                    }
                    Change::Acknowledged(_) | Change::Again(_) | Change::Unsilenced(_) => {}
                }
            }
            prop_assert_eq!(engine.open().count(), open.len());
            // Neither does one stay away that has a cause.
            for (agent, since) in &facts.high_since {
                let is_due = now - since >= 30_000;
                let has_been_told = open.contains_key(&(AlertKind::HighResourceUsage, Some(agent.clone())));
                if is_due && has_been_told {
                    prop_assert!(engine.open().any(|alert| alert.agent.as_ref() == Some(agent)));
                }
            }
        }
    }
}
