//! Agents that were over before this daemon started, as the last one left them.

use belljar_api::{AgentPhase, End, EndCause, EventKind, RestartPolicy, Shown};
use belljar_replication::WorkerId;

use super::past::{BY_KILL_SWITCH, Kept, Page};
use super::roster::{Agent, Roster, forget_oldest, is_over, turn};
use super::views::{self, Text};

impl Roster {
    /// An agent is over for good: the next daemon finds it so, and whoever wanted to start it again need not any more.
    pub(super) fn lay_to_rest(&self, worker: WorkerId) {
        if let Some(page) = self.with(worker, Page::of) {
            self.past.keep(worker, page);
        }
        // In this order: whoever is killed in between has a successor that knows of the end from either.
        self.keepers.forget_legacy(&worker.to_string());
    }

    /// Whether the last daemon knew an agent to be over for good.
    pub(super) fn is_at_rest(&self, worker: WorkerId) -> bool {
        let kept = self.past.read(worker);
        kept.is_some_and(|kept| is_over(kept.view.phase))
    }

    /// Everybody who is on file and has not been adopted: over as it was, or else lost with its keeper meanwhile.
    pub(super) fn recall(&self, is_latched: bool) {
        let mut lost = Vec::new();
        for worker in self.past.workers() {
            if self.with(worker, |_| ()).is_some() {
                continue;
            }
            let Some(kept) = self.past.read(worker) else {
                self.past.forget(worker);
                continue;
            };
            let mut agent = of(worker, kept);
            if !is_over(agent.view.phase) {
                lose(&mut agent);
                lost.push(worker);
            }
            self.book().insert(agent);
        }
        let forgotten = forget_oldest(&mut self.book());
        self.forget(forgotten);
        for worker in lost {
            self.lay_to_rest(worker);
            let found = self.with(worker, |agent| {
                let is_root = agent.view.parent.is_none();
                (agent.card.name.clone(), agent.card.restart, is_root)
            });
            let end = self.with(worker, |agent| agent.view.end.clone()).flatten();
            let killed = end.filter(|end| end.cause == EndCause::Killed);
            let said = killed.as_ref().and_then(|end| end.detail.as_ref());
            let cause = killed
                .as_ref()
                .map_or(EndCause::KeeperLost, |end| end.cause);
            let why = views::words_of(cause, None, None, said.map(Shown::as_str));
            match found {
                // Killed with no daemon to see it; the switch may have been reset since.
                Some((name, _, true)) if is_latched || killed.is_some() => {
                    self.end_for_good(worker, &name, "killed", BY_KILL_SWITCH);
                }
                Some((name, RestartPolicy::Never, true)) => {
                    self.end_for_good(worker, &name, EndCause::KeeperLost.as_str(), &why);
                }
                _ => {}
            }
            let name = self.name_of(worker);
            self.observer.called(&views::id(worker), &Shown::new(&name));
            let text = format!("{name} ended: {why}");
            let text = Text::new(&text).code(cause.as_str());
            let severity = views::severity_of(cause);
            self.tell(text.event(Some(worker), EventKind::Ended, severity));
        }
    }
}

fn of(worker: WorkerId, kept: Kept) -> Agent {
    let mut agent = Agent::new(worker, kept.view, kept.card, kept.origin);
    agent.denials = kept.denials;
    agent
}

/// It lived when the last daemon did, and nobody keeps it now. When it ended nobody saw: by now it has.
fn lose(agent: &mut Agent) {
    agent.view.restart_at_ms = None;
    turn(&mut agent.view, AgentPhase::Ended);
    agent.view.end.get_or_insert(End {
        cause: EndCause::KeeperLost,
        at_ms: agent.view.since_ms,
        exit_code: None,
        signal: None,
        detail: None,
    });
}
