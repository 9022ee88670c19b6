//! The roster as it hears of boxes: what happened becomes a phase, a denial, an event, and a next life.

use std::sync::Arc;
use std::time::Instant;

use belljar_api::{AgentPhase, DenialKind, End, EndCause, EventKind, Severity, Shown};
use belljar_replication::WorkerId;

use super::RefusedAgain;
use super::past::BY_KILL_SWITCH;
use super::roster::{Roster, is_over, turn};
use super::views::{self, Text, cause_of};
use crate::apart::words::{Breach, Card, RefusedHost, Sample, Started};
use crate::fleet::{Employed, Over, Watch};
use crate::result::KillCode;
use crate::tools::ToolCalls;

impl Watch for Roster {
    fn hired(&self, employed: &Arc<Employed>, card: &Card) {
        self.add(employed, card);
        let worker = employed.worker;
        if let Some(parent) = employed.papers.payload().parent.as_ref() {
            let parent = self.name_of(WorkerId(parent.worker.as_u128()));
            let text = Text::new(&format!("{parent} was granted a replica"));
            self.tell(text.event(Some(worker), EventKind::Replicated, Severity::Info));
        }
    }

    fn kept(&self, worker: WorkerId, pid: u32) {
        self.change(worker, |agent| agent.keeper_pid = Some(pid));
    }

    fn started(&self, worker: WorkerId, started: &Started) {
        let mut view = None;
        self.change(worker, |agent| {
            agent.started = Some(started.clone());
            if agent.view.phase == AgentPhase::Starting {
                turn(&mut agent.view, AgentPhase::Running);
            }
            view = Some(agent.view.clone());
        });
        // So that whoever watches knows its name before it does anything.
        if let Some(view) = view {
            self.observer.sampled(&view);
        }
        let text = Text::new(&format!("{} started", self.name_of(worker)));
        self.tell(text.event(Some(worker), EventKind::Started, Severity::Info));
    }

    fn sampled(&self, worker: WorkerId, sample: &Sample) {
        let mut view = None;
        self.change(worker, |agent| {
            let now = Instant::now();
            let before = agent.sampled.replace((*sample, now));
            let before = before.map(|(old, at)| (old, now.saturating_duration_since(at)));
            views::put_sample(&mut agent.view.usage, sample, before);
            view = Some(agent.view.clone());
        });
        if let Some(view) = view {
            self.observer.sampled(&view);
        }
    }

    fn tools(&self, worker: WorkerId, counts: Vec<ToolCalls>) {
        self.tools.add(worker, counts);
    }

    fn refused(&self, worker: WorkerId, refusal: &RefusedHost) {
        let place = match refusal.port {
            Some(port) => format!("{}:{port}", refusal.host),
            None => refusal.host.clone(),
        };
        let why = refusal.detail.as_deref().unwrap_or("no rule allows it");
        // An older keeper, or a rule's own words, may know a line that opens one.
        let hint = match belljar_policy::names_metadata(&refusal.host) {
            true => belljar_policy::METADATA_HINT,
            false => &refusal.hint,
        };
        self.deny(
            worker,
            views::denial(
                DenialKind::Network,
                &refusal.code,
                &place,
                refusal.count,
                why,
                Some(hint),
            ),
        );
        if refusal.is_repeat {
            let again = RefusedAgain {
                what: Shown::new(&place),
                code: Shown::new(&refusal.code),
                count: refusal.count,
            };
            return self.observer.refused_again(&views::id(worker), &again);
        }
        let is_budget = matches!(refusal.code.as_str(), "deny_llm_tokens" | "deny_llm_cost");
        let (kind, severity) = match is_budget {
            true => (EventKind::BudgetExceeded, Severity::Critical),
            false => (EventKind::EgressRefused, Severity::Warning),
        };
        let text = format!("{} was refused {place}", self.name_of(worker));
        let text = Text::new(&text).code(&refusal.code).hint(hint);
        self.tell(text.event(Some(worker), kind, severity));
    }

    fn violated(&self, worker: WorkerId, breach: &Breach) {
        let kind = views::kind_of(&breach.kind);
        let hint = breach.hint.as_deref();
        self.deny(
            worker,
            views::denial(
                kind,
                &breach.kind,
                &breach.name,
                breach.count,
                &breach.why,
                hint,
            ),
        );
        let text = format!(
            "{} tried {}: {}",
            self.name_of(worker),
            breach.name,
            breach.why
        );
        let event = match kind {
            DenialKind::Limit => EventKind::LimitMet,
            _ => EventKind::SystemCallRefused,
        };
        let text = Text::new(&text).code(&breach.name);
        self.tell(text.event(Some(worker), event, Severity::Warning));
    }

    fn ended(&self, worker: WorkerId, over: &Over) {
        self.tools.forget(worker);
        // A supervisor that hung was passed over by the kill switch.
        let unseen = match over {
            Over::Lost => self.past.killed_unseen(worker),
            Over::Ended(_) | Over::Failed(_) => None,
        };
        let mut book = self.book();
        let is_closing = book.is_closing;
        let Some(agent) = book.agents.get_mut(&worker) else {
            return;
        };
        let (mut cause, mut detail) =
            cause_of(over, agent.stopping.as_deref(), agent.doomed.as_deref());
        if let Some(unseen) = unseen {
            (cause, detail) = (unseen.cause, unseen.detail.map(|it| it.to_string()));
        }
        if cause == EndCause::Killed
            && let Some(said) = agent.because.take()
        {
            detail = Some(said);
        }
        let (exit_code, signal) = match over {
            Over::Ended(ending) => (ending.exit_code, ending.signal),
            Over::Failed(_) | Over::Lost => (None, None),
        };
        agent.view.end = Some(End {
            cause,
            at_ms: belljar_gate::clock::now().wall_ms,
            exit_code,
            signal,
            detail: detail.as_deref().map(Shown::new),
        });
        agent.view.usage.memory_bytes = 0;
        agent.view.usage.processes = 0;
        agent.view.usage.cpu_percent = 0.0;
        if let Over::Ended(ending) = over {
            views::put_end(&mut agent.view.usage, ending);
        }
        agent.keeper_pid = None;
        let why = views::words_of(cause, exit_code, signal, detail.as_deref());
        let cause_to_plan = if is_closing { EndCause::Stopped } else { cause };
        let event = self.plan_restart(agent, cause_to_plan, &why);
        let is_waiting = agent.again_at.is_some();
        let code = match agent.view.phase {
            AgentPhase::CrashLoop => "crash_loop",
            _ => cause.as_str(),
        };
        // Ended by nobody's wish but the machine's: with a daemon again it is wanted again.
        let is_orphaned = detail.as_deref() == Some(KillCode::ORPHANED.as_str());
        let is_for_good = !is_waiting && !is_closing && !agent.returns && !is_orphaned;
        let is_for_good = is_for_good && cause != EndCause::NeverStarted;
        let name = agent.card.name.clone();
        let is_root = agent.view.parent.is_none();
        drop(book);
        if is_for_good && is_root {
            self.end_for_good(worker, &name, code, &why);
        }
        if let Over::Ended(ending) = over {
            for breach in ending
                .breaches
                .iter()
                .filter(|breach| breach.kind == "limit")
            {
                self.violated(worker, breach);
            }
        }
        self.tell(event);
        // Kept while it waits: a daemon that dies meanwhile has a successor that starts it again.
        match is_waiting {
            true => self.clock.ring(),
            false => self.lay_to_rest(worker),
        }
    }

    fn denied(&self, worker: WorkerId, code: &str, why: &str, hint: &str) {
        self.deny(
            worker,
            views::denial(
                DenialKind::Replication,
                code,
                "replicate",
                1,
                why,
                Some(hint),
            ),
        );
        let text = format!("{} was refused a replica: {why}", self.name_of(worker));
        let text = Text::new(&text).code(code).hint(hint);
        self.tell(text.event(
            Some(worker),
            EventKind::ReplicationDenied,
            Severity::Warning,
        ));
    }

    fn doomed(&self, worker: WorkerId, code: &str) {
        let mut is_news = false;
        self.change(worker, |agent| {
            is_news = agent.doomed.is_none() && !is_over(agent.view.phase);
            agent.doomed.get_or_insert_with(|| code.to_owned());
        });
        if is_news {
            let said = self.said_of(worker);
            let text = format!("{} is killed ({code}){said}", self.name_of(worker));
            let kind = match code {
                "killed_budget" => EventKind::BudgetExceeded,
                _ => EventKind::Killed,
            };
            let event = Text::new(&text).code(code);
            self.tell(event.event(Some(worker), kind, Severity::Critical));
        }
    }

    fn freezing(&self, worker: WorkerId) {
        self.change(worker, |agent| turn(&mut agent.view, AgentPhase::Freezing));
    }

    fn frozen(&self, worker: WorkerId) {
        let mut is_news = false;
        self.change(worker, |agent| {
            // It may have been released meanwhile.
            is_news = agent.view.phase == AgentPhase::Freezing;
            if is_news {
                turn(&mut agent.view, AgentPhase::Quarantined);
            }
        });
        if !is_news {
            return;
        }
        let said = self.said_of(worker);
        let text = Text::new(&format!("{} is in quarantine{said}", self.name_of(worker)));
        self.tell(text.event(Some(worker), EventKind::Quarantined, Severity::Critical));
    }

    fn thawed(&self, worker: WorkerId) {
        self.change(worker, |agent| {
            let phase = match agent.started {
                Some(_) => AgentPhase::Running,
                None => AgentPhase::Starting,
            };
            turn(&mut agent.view, phase);
        });
        let said = self.said_of(worker);
        let text = Text::new(&format!("{} was released{said}", self.name_of(worker)));
        self.tell(text.event(Some(worker), EventKind::Released, Severity::Info));
    }

    fn switched(&self, is_engaged: bool, reason: &str) {
        let event = match is_engaged {
            true => Text::new(&format!("the kill switch was engaged: {reason}")).event(
                None,
                EventKind::KillSwitchEngaged,
                Severity::Critical,
            ),
            false => Text::new(&format!("the kill switch was reset: {reason}")).event(
                None,
                EventKind::KillSwitchReset,
                Severity::Info,
            ),
        };
        match is_engaged {
            true => self.cancel_restarts(),
            false => {
                // Those it refused.
                self.declared.hurry();
                self.clock.ring();
            }
        }
        self.tell(event);
    }
}

impl Roster {
    /// A declared agent ended and is not started again: the next daemon knows.
    pub(super) fn end_for_good(&self, worker: WorkerId, name: &str, code: &str, why: &str) {
        if let Some(error) = self.declared.mark_end(name, code, why) {
            self.mark_not_kept(worker, name, &error);
        }
    }

    /// The disk did not take what is wanted of an agent. This daemon holds to it all the same.
    pub(super) fn mark_not_kept(&self, worker: WorkerId, name: &str, why: &str) {
        let text = format!(
            "what is wanted of {name} can't be kept on disk, so a new daemon would not know: {why}"
        );
        let text = Text::new(&text)
            .code("deny_unrecorded")
            .hint("see to the disk of the state directory; it is tried again each second");
        self.tell(text.event(Some(worker), EventKind::Daemon, Severity::Critical));
    }

    /// After the kill switch nobody comes back.
    fn cancel_restarts(&self) {
        let mut book = self.book();
        let mut cancelled = Vec::new();
        for (worker, agent) in &mut book.agents {
            if agent.again_at.take().is_some() {
                agent.view.restart_at_ms = None;
                turn(&mut agent.view, AgentPhase::Ended);
                cancelled.push((*worker, agent.card.name.clone()));
            }
        }
        drop(book);
        for (worker, name) in cancelled {
            self.end_for_good(worker, &name, "killed", BY_KILL_SWITCH);
            self.lay_to_rest(worker);
        }
    }
}
