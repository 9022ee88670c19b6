//! Agents in the protocol's words.

use std::time::Duration;

use belljar_api::{
    AgentPhase, AgentView, Denial, DenialKind, EndCause, EventKind, LimitsView, NewEvent, Severity,
    Shown, UsageNow,
};
use belljar_replication::WorkerId;

use super::AgentSpec;
use super::past::Origin;
use crate::apart::words::{Card, Ending, Sample};
use crate::fleet::{Employed, Over};

pub(super) fn id(worker: WorkerId) -> belljar_api::AgentId {
    crate::fleet::worker_id(worker).into()
}

/// What is told of a declared agent that has no worker goes by this: the same for a name each time.
pub(super) fn name_id(name: &str) -> belljar_api::AgentId {
    let digest = belljar_manifest::lineage::Digest::of(format!("declared:{name}").as_bytes());
    let bytes = digest.as_bytes().iter().take(16);
    let digits: String = bytes.map(|byte| format!("{byte:02x}")).collect();
    let id = belljar_api::AgentId::new(digits);
    id.unwrap_or_else(|_| unreachable!("hexadecimal digits make an id"))
}

/// An agent that was let in and has no box yet.
pub(super) fn new_view(
    employed: &Employed,
    words: &[String],
    card: &Card,
    parent: Option<WorkerId>,
) -> AgentView {
    let limits = &employed.capability.limits;
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    AgentView {
        id: id(employed.worker),
        name: Shown::new(&card.name),
        parent: parent.map(id),
        depth: employed.papers.payload().depth,
        phase: AgentPhase::Starting,
        since_ms: employed.started_at_ms,
        started_at_ms: employed.started_at_ms,
        restarts: card.restarts,
        restart_at_ms: None,
        command: Shown::command(words),
        capability: Shown::new(&employed.capability.name),
        usage: UsageNow::default(),
        limits: LimitsView {
            memory_bytes: limits.memory_bytes,
            cpu_percent: limits.cpu_percent,
            cpu_ms: limits.cpu_time.map(ms),
            processes: limits.processes.map(u64::from),
            tokens: limits.tokens,
            micro_usd: limits.cost_usd.map(|usd| (usd * 1e6) as u64),
        },
        budget: belljar_api::BudgetView::default(),
        open_alerts: 0,
        end: None,
    }
}

/// What it takes to start an agent again.
pub(super) fn spec(origin: &Origin, card: &Card) -> AgentSpec {
    AgentSpec {
        name: card.name.clone(),
        command: origin.argv.clone(),
        workdir: origin.workdir.clone(),
        capability: card.capability.clone(),
        profile: card.profile.clone(),
        restart: card.restart,
        restart_on_oom: card.restart_on_oom,
        share: None,
        budget: belljar_policy::Budget::UNBOUNDED,
        follows_releases: false,
        protected: card.protected.clone(),
        servers: card.servers.clone(),
    }
}

/// What an agent uses now, and how busy it was since the last look.
pub(super) fn put_sample(
    usage: &mut UsageNow,
    sample: &Sample,
    before: Option<(Sample, Duration)>,
) {
    if let Some((old, time)) = before
        && !time.is_zero()
    {
        let busy = sample.cpu_ms.saturating_sub(old.cpu_ms) as f64;
        usage.cpu_percent = busy / (time.as_secs_f64() * 1000.0) * 100.0;
    }
    usage.cpu_ms = sample.cpu_ms;
    usage.memory_bytes = sample.memory_bytes;
    usage.processes = sample.processes.unwrap_or(0);
    usage.sent_bytes = sample.sent_bytes;
    usage.received_bytes = sample.received_bytes;
    usage.read_bytes = sample.read_bytes;
    usage.written_bytes = sample.written_bytes;
    usage.tokens = sample.tokens;
    usage.micro_usd = sample.micro_usd;
}

/// What it came to.
pub(super) fn put_end(usage: &mut UsageNow, ending: &Ending) {
    usage.cpu_ms = usage.cpu_ms.max(ending.cpu_ms);
    usage.tokens = usage.tokens.max(ending.tokens);
    usage.micro_usd = usage.micro_usd.max(ending.micro_usd);
}

/// What ended an agent, and more about it where there is.
pub(super) fn cause_of(
    over: &Over,
    stopping: Option<&str>,
    doomed: Option<&str>,
) -> (EndCause, Option<String>) {
    let owned = |text: &str| Some(text.to_owned());
    let of_order = match (doomed, stopping) {
        (Some("killed_budget"), _) => Some((EndCause::Limit, owned("budget"))),
        (Some(code), _) => Some((EndCause::Killed, owned(code))),
        (None, Some(reason)) => Some((EndCause::Stopped, owned(reason))),
        (None, None) => None,
    };
    let ending = match over {
        Over::Lost => return of_order.unwrap_or((EndCause::KeeperLost, None)),
        Over::Failed(failed) => {
            return of_order.unwrap_or((EndCause::NeverStarted, Some(failed.what.clone())));
        }
        Over::Ended(ending) => ending,
    };
    match ending.killed_by.as_deref() {
        // A limit holds whatever else was wanted.
        Some("memory") => (EndCause::OutOfMemory, owned("memory")),
        Some(limit @ ("cpu" | "timeout" | "tokens" | "cost")) => (EndCause::Limit, owned(limit)),
        Some(code) => of_order.unwrap_or((EndCause::Killed, owned(code))),
        None => of_order.unwrap_or(match ending.exit_code {
            Some(0) => (EndCause::Finished, None),
            _ => (EndCause::Crashed, None),
        }),
    }
}

/// The same for people.
pub(super) fn words_of(
    cause: EndCause,
    exit_code: Option<i32>,
    signal: Option<i32>,
    detail: Option<&str>,
) -> String {
    let detail = detail
        .map(|detail| format!(" ({detail})"))
        .unwrap_or_default();
    let how = match (exit_code, signal) {
        (Some(code), _) => format!(" with exit code {code}"),
        (None, Some(signal)) => format!(" by signal {signal}"),
        (None, None) => String::new(),
    };
    match cause {
        EndCause::Finished => "it finished".to_owned(),
        EndCause::Crashed => format!("it crashed{how}"),
        EndCause::OutOfMemory => "it used more memory than it may".to_owned(),
        EndCause::Limit => format!("it met a limit{detail}"),
        EndCause::Stopped => format!("it was stopped{detail}"),
        EndCause::Killed => format!("it was killed{detail}"),
        EndCause::KeeperLost => "its keeper was killed, and its box with it".to_owned(),
        EndCause::NeverStarted => format!("it never started{detail}"),
    }
}

pub(super) fn severity_of(cause: EndCause) -> Severity {
    match cause {
        EndCause::Finished | EndCause::Stopped => Severity::Info,
        EndCause::Killed | EndCause::Limit => Severity::Warning,
        EndCause::Crashed
        | EndCause::OutOfMemory
        | EndCause::KeeperLost
        | EndCause::NeverStarted => Severity::Critical,
    }
}

pub(super) fn kind_of(kind: &str) -> DenialKind {
    match kind {
        "limit" => DenialKind::Limit,
        _ => DenialKind::SystemCall,
    }
}

pub(super) fn denial(
    kind: DenialKind,
    code: &str,
    what: &str,
    count: u64,
    why: &str,
    allow_with: Option<&str>,
) -> Denial {
    Denial {
        kind,
        code: Shown::new(code),
        what: Shown::new(what),
        count,
        last_at_ms: belljar_gate::clock::now().wall_ms,
        why: Shown::new(why),
        allow_with: allow_with.filter(|hint| !hint.is_empty()).map(Shown::new),
    }
}

/// An event in the making.
pub(super) struct Text {
    text: Shown,
    code: Option<Shown>,
    hint: Option<Shown>,
}

impl Text {
    pub(super) fn new(text: &str) -> Self {
        Self {
            text: Shown::new(text),
            code: None,
            hint: None,
        }
    }

    pub(super) fn code(mut self, code: &str) -> Self {
        self.code = Some(Shown::new(code));
        self
    }

    pub(super) fn hint(mut self, hint: &str) -> Self {
        self.hint = Some(hint).filter(|hint| !hint.is_empty()).map(Shown::new);
        self
    }

    pub(super) fn event(
        self,
        agent: Option<WorkerId>,
        kind: EventKind,
        severity: Severity,
    ) -> NewEvent {
        NewEvent {
            agent: agent.map(id),
            kind,
            severity,
            text: self.text,
            code: self.code,
            hint: self.hint,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apart::words::Failed;

    fn ended(exit_code: Option<i32>, killed_by: Option<&str>) -> Over {
        Over::Ended(Ending {
            exit_code,
            killed_by: killed_by.map(str::to_owned),
            ..Ending::default()
        })
    }

    #[test]
    fn ends_are_told_apart() {
        let failed = Over::Failed(Failed {
            code: "not_found".to_owned(),
            what: "no such program".to_owned(),
            hint: None,
        });
        let cases = [
            (ended(Some(0), None), None, None, EndCause::Finished),
            (ended(Some(3), None), None, None, EndCause::Crashed),
            (ended(None, None), None, None, EndCause::Crashed),
            (
                ended(None, Some("memory")),
                None,
                None,
                EndCause::OutOfMemory,
            ),
            (ended(None, Some("cpu")), None, None, EndCause::Limit),
            (
                ended(None, Some("timeout")),
                Some("why"),
                None,
                EndCause::Limit,
            ),
            (ended(Some(0), None), Some("why"), None, EndCause::Stopped),
            (
                ended(None, Some("stopped")),
                Some("why"),
                None,
                EndCause::Stopped,
            ),
            (ended(None, Some("orphaned")), None, None, EndCause::Killed),
            (
                ended(None, Some("killed_operator")),
                None,
                Some("killed_operator"),
                EndCause::Killed,
            ),
            (
                ended(None, Some("killed_budget")),
                None,
                Some("killed_budget"),
                EndCause::Limit,
            ),
            (failed, None, None, EndCause::NeverStarted),
            (Over::Lost, None, None, EndCause::KeeperLost),
            (Over::Lost, None, Some("killed_operator"), EndCause::Killed),
        ];
        for (over, stopping, doomed, cause) in cases {
            assert_eq!(cause_of(&over, stopping, doomed).0, cause, "{over:?}");
        }
    }
}
