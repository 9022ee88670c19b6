//! Agents and events for tests.

use belljar_api::{
    AgentPhase, AgentView, BudgetView, EventKind, LimitsView, Named, NewEvent, Severity, Shown,
    UsageNow,
};

pub(crate) fn id<Id: Named>(text: &str) -> Id {
    Id::from_path(Some(text)).unwrap()
}

pub(crate) fn agent(name: &str) -> AgentView {
    AgentView {
        id: id(name),
        name: Shown::new(name),
        parent: None,
        depth: 0,
        phase: AgentPhase::Running,
        since_ms: 0,
        started_at_ms: 0,
        restarts: 0,
        restart_at_ms: None,
        command: Shown::new("sh"),
        capability: Shown::new("moderate"),
        usage: UsageNow::default(),
        limits: LimitsView::default(),
        budget: BudgetView::default(),
        open_alerts: 0,
        end: None,
    }
}

pub(crate) fn event(agent: Option<&str>, kind: EventKind, text: &str) -> NewEvent {
    NewEvent {
        agent: agent.map(id),
        kind,
        severity: Severity::Warning,
        text: Shown::new(text),
        code: None,
        hint: None,
    }
}
