//! The state machine: a table of causes, and what follows from them.

use belljar_api::{
    AgentPhase, AgentView, AlertKind, AlertState, Engagement, EventKind, EventView, Response,
    ResponseTaken, Severity, Shown,
};

use crate::settings::AlertSettings;
use crate::testing::{agent, id};
use crate::{Change, Engine, NoSuchAlert};

pub(super) fn engine(change: impl FnOnce(&mut AlertSettings)) -> Engine {
    let mut settings = AlertSettings::default();
    change(&mut settings);
    Engine::new(settings, Vec::new(), 0)
}

fn event(kind: EventKind, severity: Severity, code: &str, text: &str) -> EventView {
    EventView {
        id: 1,
        at_ms: 0,
        agent: Some(id("a")),
        kind,
        severity,
        text: Shown::new(text),
        code: (!code.is_empty()).then(|| Shown::new(code)),
        hint: None,
    }
}

pub(super) fn warning(kind: EventKind, code: &str, text: &str) -> EventView {
    event(kind, Severity::Warning, code, text)
}

fn raised(changes: &[Change]) -> Vec<AlertKind> {
    let kind = |change: &Change| match change {
        Change::Raised(alert) => Some(alert.kind),
        _ => None,
    };
    changes.iter().filter_map(kind).collect()
}

fn resolved(changes: &[Change]) -> Vec<AlertKind> {
    let kind = |change: &Change| match change {
        Change::Resolved(alert) => Some(alert.kind),
        _ => None,
    };
    changes.iter().filter_map(kind).collect()
}

#[test]
fn each_event_is_the_cause_it_should_be_and_no_other() {
    use AlertKind::*;
    let cases: &[(EventView, &[AlertKind])] = &[
        (
            warning(EventKind::SystemCallRefused, "mount", "refused"),
            &[PrivilegeEscalation],
        ),
        (
            warning(
                EventKind::SystemCallRefused,
                "",
                "setns refused: other namespaces",
            ),
            &[PrivilegeEscalation],
        ),
        (
            warning(
                EventKind::SystemCallRefused,
                "clone",
                "nested namespaces regain capabilities",
            ),
            &[PrivilegeEscalation],
        ),
        (
            warning(
                EventKind::SystemCallRefused,
                "clone",
                "permissions lacks spawn_subprocess",
            ),
            &[],
        ),
        (
            warning(EventKind::SystemCallRefused, "process_vm_readv", "x"),
            &[UnauthorizedAccess],
        ),
        (
            warning(
                EventKind::SystemCallRefused,
                "connect",
                "a socket of the host",
            ),
            &[UnauthorizedAccess],
        ),
        (
            warning(
                EventKind::EgressRefused,
                "deny_private_address",
                "169.254.169.254:80",
            ),
            &[NetworkAnomaly],
        ),
        (
            warning(
                EventKind::EgressRefused,
                "deny_no_egress_rule",
                "metadata.google.internal:80",
            ),
            &[NetworkAnomaly],
        ),
        (
            warning(
                EventKind::EgressRefused,
                "deny_no_egress_rule",
                "example.com:443",
            ),
            &[],
        ),
        (
            warning(
                EventKind::EgressRefused,
                "deny_llm_tokens",
                "api.example.com",
            ),
            &[BudgetExceeded],
        ),
        (
            warning(EventKind::BudgetExceeded, "", "spent"),
            &[BudgetExceeded],
        ),
        (
            warning(EventKind::ToolRefused, "deny_tool", "shell:execute"),
            &[],
        ),
        (
            warning(EventKind::ToolRefused, "tool_new_after_pin", "files:x"),
            &[SuspiciousToolUsage],
        ),
        (
            warning(EventKind::ToolRefused, "message_malformed", "files:"),
            &[SuspiciousToolUsage],
        ),
        (warning(EventKind::ToolHeld, "hold_tool", "files:x"), &[]),
        (
            warning(EventKind::ReplicationDenied, "deny_quota", "no"),
            &[ReplicationDenied],
        ),
        (
            warning(EventKind::Ended, "crashed", "exit code 1"),
            &[AgentCrashed],
        ),
        (
            warning(EventKind::Ended, "out_of_memory", "x"),
            &[AgentCrashed],
        ),
        (
            warning(EventKind::Ended, "keeper_lost", "x"),
            &[AgentCrashed],
        ),
        (
            warning(EventKind::Ended, "limit", "cpu time"),
            &[HighResourceUsage],
        ),
        (warning(EventKind::Ended, "killed", "by ada"), &[]),
        (
            event(EventKind::Ended, Severity::Info, "finished", "x"),
            &[],
        ),
        (event(EventKind::Ended, Severity::Info, "", "x"), &[]),
        (
            warning(EventKind::Restarting, "crash_loop", "x"),
            &[AgentCrashed],
        ),
        (
            warning(EventKind::Restarting, "crashed", "x"),
            &[AgentCrashed],
        ),
        (warning(EventKind::Restarting, "finished", "x"), &[]),
        (
            event(
                EventKind::Ended,
                Severity::Critical,
                "",
                "x ended: exit code 1",
            ),
            &[AgentCrashed],
        ),
        (warning(EventKind::Ended, "", "x ended: killed"), &[]),
        (
            warning(
                EventKind::SystemCallRefused,
                "prctl",
                "mount tried prctl: no",
            ),
            &[],
        ),
        (
            warning(
                EventKind::EgressRefused,
                "deny_no_egress_rule",
                "metadata.x was refused example.com:443",
            ),
            &[],
        ),
        (
            warning(
                EventKind::EgressRefused,
                "deny_private_address",
                "a was refused [fd00:ec2::254]:80",
            ),
            &[NetworkAnomaly],
        ),
        (warning(EventKind::Restarting, "", "x"), &[]),
        (
            warning(EventKind::LimitMet, "processes", "x"),
            &[HighResourceUsage],
        ),
        (
            warning(EventKind::Quarantined, "", "by ada"),
            &[AgentQuarantined],
        ),
        (
            warning(EventKind::KillSwitchEngaged, "", "drill"),
            &[KillSwitchEngaged],
        ),
        (
            event(EventKind::Ledger, Severity::Critical, "", "no space"),
            &[LedgerFailure],
        ),
        (
            event(EventKind::Ledger, Severity::Info, "", "fine again"),
            &[],
        ),
        (warning(EventKind::Started, "", "mount"), &[]),
        (warning(EventKind::Daemon, "", "x"), &[]),
    ];
    for (event, kinds) in cases {
        let mut engine = engine(|_| {});
        assert_eq!(raised(&engine.happened(1_000, event)), *kinds, "{event:?}");
        // Told twice, it is one alert that counts.
        assert!(
            raised(&engine.happened(2_000, event)).is_empty(),
            "{event:?}"
        );
        assert!(engine.open().count() <= 1);
    }
}

#[test]
fn a_burst_must_be_as_large_and_as_quick_as_the_rule_says() {
    let refused = warning(
        EventKind::EgressRefused,
        "deny_no_egress_rule",
        "example.com",
    );
    let mut quick = engine(|_| {});
    for number in 1..=9 {
        assert!(quick.happened(number * 1_000, &refused).is_empty());
    }
    assert_eq!(
        raised(&quick.happened(10_000, &refused)),
        [AlertKind::NetworkAnomaly]
    );
    assert_eq!(quick.open().next().unwrap().count, 10);
    // One each twenty seconds, and no beacon, never is ten in a minute.
    let mut slow = engine(|_| {});
    for number in 1..=100 {
        let at = number * 23_500 + number % 2 * 16_000;
        assert!(slow.happened(at, &refused).is_empty());
    }
    // An agent's causes are its own.
    let mut many = engine(|_| {});
    for number in 1..=50 {
        let who = format!("a{}", number % 10);
        let event = EventView {
            agent: Some(id(&who)),
            ..refused.clone()
        };
        assert!(many.happened(number, &event).is_empty());
    }
}

#[test]
fn too_much_must_last_and_little_enough_must_last_too() {
    let mut engine = engine(|_| {});
    let mut view = agent("a");
    view.usage.cpu_percent = 81.0;
    for second in 0..30 {
        assert!(engine.sampled(second * 1_000, &view).is_empty(), "{second}");
    }
    assert_eq!(
        raised(&engine.sampled(30_000, &view)),
        [AlertKind::HighResourceUsage]
    );
    view.usage.cpu_percent = 79.0;
    for second in 31..61 {
        assert!(engine.sampled(second * 1_000, &view).is_empty(), "{second}");
    }
    assert_eq!(
        resolved(&engine.sampled(61_000, &view)),
        [AlertKind::HighResourceUsage]
    );
    assert_eq!(
        engine.resolved().next().unwrap().by,
        Some(Shown::new("belljar"))
    );
    // One sample below begins the time anew.
    view.usage.cpu_percent = 100.0;
    for second in 100..200 {
        view.usage.cpu_percent = if second % 29 == 0 { 1.0 } else { 100.0 };
        assert!(
            raised(&engine.sampled(second * 1_000, &view)).is_empty(),
            "{second}"
        );
    }
}

#[test]
fn what_is_much_depends_on_the_agents_own_limits() {
    let check =
        |change: &dyn Fn(&mut AgentView), settings: &dyn Fn(&mut AlertSettings), is_much: bool| {
            let mut engine = engine(|all| {
                settings(all);
                all.rules[0].lasting = std::time::Duration::ZERO;
            });
            let mut view = agent("a");
            change(&mut view);
            assert_eq!(!engine.sampled(1_000, &view).is_empty(), is_much);
        };
    let mb = |mb: u64| mb << 20;
    check(&|a| a.usage.cpu_percent = 79.9, &|_| {}, false);
    check(&|a| a.usage.cpu_percent = 80.0, &|_| {}, true);
    check(
        &|a| (a.usage.cpu_percent, a.limits.cpu_percent) = (150.0, Some(200.0)),
        &|_| {},
        false,
    );
    check(
        &|a| (a.usage.cpu_percent, a.limits.cpu_percent) = (45.0, Some(50.0)),
        &|_| {},
        true,
    );
    check(
        &|a| a.usage.cpu_percent = 50.0,
        &|s| s.max_cpu_percent = 50.0,
        true,
    );
    check(&|a| a.usage.memory_bytes = mb(511), &|_| {}, false);
    check(&|a| a.usage.memory_bytes = mb(512), &|_| {}, true);
    check(
        &|a| (a.usage.memory_bytes, a.limits.memory_bytes) = (mb(800), Some(mb(1000))),
        &|_| {},
        false,
    );
    check(
        &|a| (a.usage.memory_bytes, a.limits.memory_bytes) = (mb(901), Some(mb(1000))),
        &|_| {},
        true,
    );
    check(
        &|a| (a.usage.memory_bytes, a.limits.memory_bytes) = (mb(600), Some(mb(1000))),
        &|s| s.max_memory_mb = Some(600),
        true,
    );
}

#[test]
fn a_budget_is_spent_when_its_last_token_is() {
    let mut engine = engine(|_| {});
    let mut view = agent("a");
    (view.usage.tokens, view.limits.tokens) = (999, Some(1_000));
    assert!(engine.sampled(1_000, &view).is_empty());
    view.usage.tokens = 1_000;
    assert_eq!(
        raised(&engine.sampled(2_000, &view)),
        [AlertKind::BudgetExceeded]
    );
    // Dealt with by a person, it is not raised every second.
    engine.resolve(&id("1"), "ada", "").unwrap();
    for second in 3..60 {
        assert!(engine.sampled(second * 1_000, &view).is_empty());
    }
    view.limits.tokens = Some(2_000);
    engine.sampled(60_000, &view);
    engine.sampled(66_000, &view);
    view.usage.tokens = 2_000;
    assert_eq!(
        raised(&engine.sampled(67_000, &view)),
        [AlertKind::BudgetExceeded]
    );
}

#[test]
fn a_budget_that_the_gateway_says_is_spent_stays_spent() {
    let mut engine = engine(|_| {});
    engine.happened(
        1_000,
        &warning(EventKind::EgressRefused, "deny_llm_tokens", "x"),
    );
    // What is left is too little for the next call: the counters never quite reach the limit.
    let mut view = agent("a");
    (view.usage.tokens, view.limits.tokens) = (990, Some(1_000));
    for second in 2..600 {
        assert!(engine.sampled(second * 1_000, &view).is_empty());
    }
    // Its end is no reason not to look at it.
    view.phase = AgentPhase::Ended;
    assert!(engine.sampled(600_000, &view).is_empty());
    engine.tick(6_000_000);
    assert!(engine.resolve(&id("1"), "ada", "").is_ok());
}

#[test]
fn what_nobody_speaks_of_any_more_is_over() {
    let mut before = engine(|settings| settings.rules[0].lasting = std::time::Duration::ZERO);
    let mut view = agent("a");
    view.usage.cpu_percent = 100.0;
    before.sampled(1_000, &view);
    before.happened(1_000, &warning(EventKind::Quarantined, "", "x"));
    before.happened(1_000, &warning(EventKind::SystemCallRefused, "mount", "x"));
    let left: Vec<_> = before.open().cloned().collect();
    let mut after = Engine::new(AlertSettings::default(), left, 3);
    for second in 1_000..1_120 {
        assert!(after.tick(second * 1_000).is_empty(), "{second}");
    }
    let mut kinds = Vec::new();
    for second in 1_120..1_200 {
        kinds.extend(resolved(&after.tick(second * 1_000)));
    }
    kinds.sort();
    assert_eq!(
        kinds,
        [AlertKind::HighResourceUsage, AlertKind::AgentQuarantined]
    );
    assert_eq!(after.open().count(), 1, "an attempt waits for a person");
}

#[test]
fn alerts_whose_cause_is_gone_end_and_those_of_attempts_do_not() {
    let mut engine = engine(|_| {});
    engine.happened(1_000, &warning(EventKind::SystemCallRefused, "mount", "x"));
    engine.happened(1_000, &warning(EventKind::Ended, "crashed", "x"));
    engine.happened(1_000, &warning(EventKind::ReplicationDenied, "", "x"));
    engine.happened(1_000, &warning(EventKind::Quarantined, "", "x"));
    engine.happened(1_000, &warning(EventKind::KillSwitchEngaged, "", "x"));
    engine.happened(
        1_000,
        &event(EventKind::Ledger, Severity::Critical, "", "x"),
    );
    assert_eq!(engine.open().count(), 6);
    assert_eq!(
        resolved(&engine.happened(2_000, &warning(EventKind::Released, "", "x"))),
        [AlertKind::AgentQuarantined]
    );
    assert_eq!(
        resolved(&engine.happened(3_000, &warning(EventKind::KillSwitchReset, "", "x"))),
        [AlertKind::KillSwitchEngaged]
    );
    assert_eq!(
        resolved(&engine.happened(4_000, &event(EventKind::Ledger, Severity::Info, "", "x"))),
        [AlertKind::LedgerFailure]
    );
    assert!(engine.tick(600_000).is_empty());
    // A minute until the refusal is out of its window, and ten without another.
    engine.tick(61_000);
    assert_eq!(
        resolved(&engine.tick(1_400_000)),
        [AlertKind::ReplicationDenied]
    );
    engine.tick(1_000_000_000);
    let left: Vec<AlertKind> = engine.open().map(|alert| alert.kind).collect();
    assert_eq!(
        left,
        [AlertKind::AgentCrashed, AlertKind::PrivilegeEscalation]
    );
}

#[test]
fn the_supervisors_own_state_is_a_cause_too() {
    let mut engine = engine(|_| {});
    let mut status = super::page::status();
    assert!(engine.status(1_000, &status).is_empty());
    status.kill_switch.engaged = Some(Engagement {
        held_by: None,
        reason: Shown::new("drill"),
        since_ms: 0,
    });
    status.ledger.failed = Some(Shown::new("no space"));
    assert_eq!(
        raised(&engine.status(2_000, &status)),
        [AlertKind::KillSwitchEngaged, AlertKind::LedgerFailure]
    );
    assert!(engine.status(3_000, &status).is_empty());
    status = super::page::status();
    // A view may be older than an event.
    engine.happened(3_500, &warning(EventKind::KillSwitchEngaged, "", "x"));
    assert!(engine.status(4_000, &status).is_empty());
    assert_eq!(resolved(&engine.status(20_000, &status)).len(), 2);
}

#[test]
fn people_acknowledge_and_resolve_and_it_is_raised_anew() {
    let mut engine = engine(|_| {});
    let mount = warning(EventKind::SystemCallRefused, "mount", "x");
    engine.happened(1_000, &mount);
    assert!(
        matches!(engine.acknowledge(&id("1"), "ada", ""), Ok(Change::Acknowledged(alert)) if alert.state == AlertState::Acknowledged)
    );
    engine.happened(2_000, &mount);
    let alert = engine.open().next().unwrap();
    assert_eq!(
        (alert.count, alert.state, alert.last_at_ms),
        (2, AlertState::Acknowledged, 2_000)
    );
    assert!(
        matches!(engine.resolve(&id("1"), "ada", ""), Ok(Change::Resolved(alert)) if alert.by == Some(Shown::new("ada")))
    );
    assert_eq!(
        engine.resolve(&id("1"), "ada", ""),
        Err(NoSuchAlert::Resolved)
    );
    assert_eq!(
        engine.acknowledge(&id("7"), "ada", ""),
        Err(NoSuchAlert::Unknown)
    );
    assert_eq!(
        engine.acknowledge(&id("x"), "ada", ""),
        Err(NoSuchAlert::Unknown)
    );
    assert_eq!(
        raised(&engine.happened(3_000, &mount)),
        [AlertKind::PrivilegeEscalation]
    );
    assert_eq!(engine.open().next().unwrap().id, id("2"));
}

#[test]
fn a_disabled_rule_raises_nothing() {
    let mut engine = engine(|settings| {
        settings
            .rules
            .iter_mut()
            .for_each(|rule| rule.enabled = false)
    });
    assert!(
        engine
            .happened(1_000, &warning(EventKind::SystemCallRefused, "mount", "x"))
            .is_empty()
    );
    assert!(
        engine
            .happened(
                1_000,
                &warning(EventKind::EgressRefused, "", "169.254.169.254")
            )
            .is_empty()
    );
}

#[test]
fn an_alert_whose_rule_froze_the_agent_waits_for_a_person_or_the_agents_end() {
    let mut engine = engine(|settings| settings.rules[0].lasting = std::time::Duration::ZERO);
    let mut view = agent("a");
    view.usage.cpu_percent = 100.0;
    engine.sampled(1_000, &view);
    let froze = ResponseTaken {
        response: Response::Freeze,
        at_ms: 1_000,
        failed: None,
    };
    engine.responded(0, &id("1"), froze).unwrap();
    assert!(engine.is_frozen(&id("a")));
    // Frozen, it uses nothing: that is no reason to let it go on.
    view.usage.cpu_percent = 0.0;
    for second in 2..1_000 {
        assert!(resolved(&engine.sampled(second * 1_000, &view)).is_empty());
    }
    view.phase = AgentPhase::Ended;
    assert_eq!(
        resolved(&engine.sampled(1_000_000, &view)),
        [AlertKind::HighResourceUsage]
    );
}
