//! What a daemon tells goes to the monitor, and what operators ask beyond the daemon is answered here.

use std::collections::HashMap;
use std::sync::Arc;

use belljar_api::{AgentId, AgentView, EventKind, NewEvent, OperatorCall, Shown};
use belljar_monitor::Monitor;
use belljar_supervisor::daemon::{Observer, RefusedAgain};

use super::hands::ByRule;
use super::proposals::Proposals;
use super::records::Records;

/// Whoever may open the operator's socket, as the daemon calls them.
const OWNER: &str = "owner";

/// The same by name: the socket's directory is open to nobody but the daemon's own user.
fn user_name() -> String {
    let uid = rustix::process::getuid().as_raw();
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    });
    name.map_or(format!("user:{uid}"), |name| format!("user:{name}"))
}

/// The daemon's observer.
pub(super) struct Watch {
    pub(super) monitor: Arc<Monitor>,
    pub(super) records: Records,
    pub(super) proposals: Proposals,
    pub(super) by_rule: Arc<ByRule>,
}

impl Observer for Watch {
    fn happened(&self, event: NewEvent) {
        let agent = event.agent.clone();
        let kind = event.kind;
        self.monitor.happened(event);
        let Some(agent) = agent else { return };
        if kind == EventKind::Quarantined && !self.by_rule.is_at_work_on(&agent) {
            // From here on it is a person's to release.
            self.by_rule.forget(&agent);
        }
    }

    fn named(&self, agent: &AgentId, name: &Shown) {
        self.monitor.named(agent, name);
    }

    fn called(&self, agent: &AgentId, name: &Shown) {
        self.monitor.called(agent, name);
    }

    fn refused_again(&self, agent: &AgentId, again: &RefusedAgain) {
        let RefusedAgain { what, code, count } = again;
        self.monitor.refused_again(agent, what, code, *count);
    }

    fn sampled(&self, view: &AgentView) {
        self.monitor.sampled(view);
    }

    fn answer(&self, by: &str, call: OperatorCall) -> Option<OperatorCall> {
        let user = (by == OWNER).then(user_name);
        let call = self.monitor.answer(user.as_deref().unwrap_or(by), call)?;
        let call = self.records.answer(call)?;
        self.proposals.answer(call)
    }

    fn open_alerts(&self) -> HashMap<AgentId, u32> {
        self.monitor.open_alerts()
    }
}
