//! The metrics page, in Prometheus' text format.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};

use belljar_api::{AgentPhase, AgentView, AlertState, StatusView};

use crate::alerts::KINDS;
use crate::inner::Inner;
use crate::store::locked;

/// Agents that have series of their own. Scrapers keep every series they ever saw.
const MOST_AGENTS: usize = 1_000;
/// The most bytes of a label.
const MOST_LABEL: usize = 64;

/// Which of an agent's numbers, its name and what it means.
type AgentSeries = (
    &'static str,
    &'static str,
    &'static str,
    fn(&AgentView) -> f64,
);

const AGENT_SERIES: &[AgentSeries] = &[
    (
        "belljar_agent_cpu_seconds_total",
        "counter",
        "CPU time.",
        |a| a.usage.cpu_ms as f64 / 1e3,
    ),
    (
        "belljar_agent_memory_bytes",
        "gauge",
        "Memory in use.",
        |a| a.usage.memory_bytes as f64,
    ),
    (
        "belljar_agent_processes",
        "gauge",
        "Processes and threads.",
        |a| a.usage.processes as f64,
    ),
    (
        "belljar_agent_read_bytes_total",
        "counter",
        "Bytes read from disks.",
        |a| a.usage.read_bytes as f64,
    ),
    (
        "belljar_agent_written_bytes_total",
        "counter",
        "Bytes written to disks.",
        |a| a.usage.written_bytes as f64,
    ),
    (
        "belljar_agent_sent_bytes_total",
        "counter",
        "Bytes sent through the gateway.",
        |a| a.usage.sent_bytes as f64,
    ),
    (
        "belljar_agent_received_bytes_total",
        "counter",
        "Bytes received through the gateway.",
        |a| a.usage.received_bytes as f64,
    ),
    (
        "belljar_agent_tokens_total",
        "counter",
        "Tokens of models.",
        |a| a.usage.tokens as f64,
    ),
    (
        "belljar_agent_cost_usd_total",
        "counter",
        "What models cost, in US dollars.",
        |a| a.usage.micro_usd as f64 / 1e6,
    ),
    (
        "belljar_agent_restarts_total",
        "counter",
        "How often it was started again.",
        |a| f64::from(a.restarts),
    ),
];

const PHASES: &[(AgentPhase, &str)] = &[
    (AgentPhase::Starting, "starting"),
    (AgentPhase::Running, "running"),
    (AgentPhase::Freezing, "freezing"),
    (AgentPhase::Quarantined, "quarantined"),
    (AgentPhase::Stopping, "stopping"),
    (AgentPhase::Waiting, "waiting"),
    (AgentPhase::CrashLoop, "crash_loop"),
    (AgentPhase::Ended, "ended"),
];

/// Calls of one tool of an MCP server with one verdict. Whoever counts them sees to it that names are few.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolSeries {
    /// The server.
    pub server: String,
    /// The tool.
    pub tool: String,
    /// What became of them.
    pub verdict: String,
    /// How many.
    pub calls: u64,
    /// How long they took together.
    pub seconds: f64,
}

pub(crate) fn page(
    inner: &Inner,
    agents: &[AgentView],
    status: &StatusView,
    tools: &[ToolSeries],
) -> String {
    let mut page = Page(String::new());
    page.head("belljar_info", "gauge", "The version that runs.");
    page.series("belljar_info", &[("version", status.version.as_str())], 1);
    page.one(
        "belljar_uptime_seconds",
        "gauge",
        "How long the supervisor runs.",
        status.uptime_ms as f64 / 1e3,
    );
    page.one(
        "belljar_kill_switch_engaged",
        "gauge",
        "1 while the kill switch is engaged.",
        u8::from(status.kill_switch.engaged.is_some()),
    );
    page.one(
        "belljar_ledger_entries",
        "gauge",
        "Entries in the log.",
        status.ledger.entries,
    );
    page.one(
        "belljar_ledger_writable",
        "gauge",
        "1 while decisions can be recorded.",
        u8::from(status.ledger.failed.is_none()),
    );
    page.head("belljar_agents", "gauge", "Agents by phase.");
    for (phase, word) in PHASES {
        let count = agents.iter().filter(|agent| agent.phase == *phase).count();
        page.series("belljar_agents", &[("phase", word)], count);
    }
    of_agents(&mut page, agents);
    of_tools(&mut page, tools);
    of_alerts(&mut page, inner);
    of_cadence(&mut page, inner);
    let samples = locked(&inner.ring).dropped();
    let events = locked(&inner.log);
    page.one(
        "belljar_samples_dropped_total",
        "counter",
        "Samples lost because the history could not be written.",
        samples,
    );
    page.one(
        "belljar_events_total",
        "counter",
        "Events since the beginning of the history.",
        events.last(),
    );
    page.one(
        "belljar_events_dropped_total",
        "counter",
        "Events lost because the history could not be written.",
        events.dropped(),
    );
    drop(events);
    page.one(
        "belljar_history_writable",
        "gauge",
        "1 while the history can be written.",
        u8::from(locked(&inner.health).failing.is_none()),
    );
    page.0
}

/// Those that live, as far as they fit.
fn of_agents(page: &mut Page, agents: &[AgentView]) {
    let live: Vec<&AgentView> = agents
        .iter()
        .filter(|agent| agent.phase != AgentPhase::Ended)
        .collect();
    let shown = &live[..live.len().min(MOST_AGENTS)];
    for (name, kind, help, value) in AGENT_SERIES {
        page.head(name, kind, help);
        for agent in shown {
            let labels = [("agent", agent.id.as_str()), ("name", agent.name.as_str())];
            page.series(name, &labels, value(agent));
        }
    }
    page.one(
        "belljar_agents_not_shown",
        "gauge",
        "Live agents without series of their own.",
        live.len() - shown.len(),
    );
}

/// Names that are the same once they are short enough for labels are one series.
fn of_tools(page: &mut Page, tools: &[ToolSeries]) {
    let mut merged: BTreeMap<[&str; 3], (u64, f64)> = BTreeMap::new();
    for called in tools {
        let key = [&called.server, &called.tool, &called.verdict].map(|text| short(text));
        let (calls, seconds) = merged.entry(key).or_default();
        *calls += called.calls;
        *seconds += called.seconds;
    }
    let mut series = |name: &str, help: &str, value: fn(&(u64, f64)) -> f64| {
        page.head(name, "counter", help);
        for ([server, tool, verdict], sums) in &merged {
            let labels = [("server", *server), ("tool", tool), ("verdict", verdict)];
            page.series(name, &labels, value(sums));
        }
    };
    series(
        "belljar_tool_calls_total",
        "Calls of tools of MCP servers.",
        |sums| sums.0 as f64,
    );
    series(
        "belljar_tool_seconds_total",
        "How long they took, from the question to the answer.",
        |sums| sums.1,
    );
}

fn of_cadence(page: &mut Page, inner: &Inner) {
    const NAME: &str = "belljar_sample_interval_seconds";
    page.head(NAME, "histogram", "Time between two samples of one agent.");
    let cadence = locked(&inner.cadence);
    let bucket = format!("{NAME}_bucket");
    for (most_ms, count) in cadence.classes() {
        let end = (most_ms as f64 / 1e3).to_string();
        page.series(&bucket, &[("le", &end)], count);
    }
    let (count, sum_ms) = cadence.total();
    page.series(&bucket, &[("le", "+Inf")], count);
    page.series(&format!("{NAME}_sum"), &[], sum_ms as f64 / 1e3);
    page.series(&format!("{NAME}_count"), &[], count);
}

fn of_alerts(page: &mut Page, inner: &Inner) {
    page.head(
        "belljar_alerts",
        "gauge",
        "Alerts that nobody has resolved.",
    );
    let engine = locked(&inner.engine);
    for kind in KINDS {
        for (state, word) in [
            (AlertState::Open, "open"),
            (AlertState::Acknowledged, "acknowledged"),
        ] {
            let count = engine
                .open()
                .filter(|alert| alert.kind == kind && alert.state == state)
                .count();
            page.series(
                "belljar_alerts",
                &[("kind", &format!("{kind:?}")), ("state", word)],
                count,
            );
        }
    }
    drop(engine);
    page.head(
        "belljar_alerts_raised_total",
        "counter",
        "Alerts raised since the supervisor started.",
    );
    let raised = locked(&inner.raised);
    for kind in KINDS {
        let count = raised.get(&kind).copied().unwrap_or(0);
        page.series(
            "belljar_alerts_raised_total",
            &[("kind", &format!("{kind:?}"))],
            count,
        );
    }
}

struct Page(String);

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.head(name, kind, help);
        self.series(name, &[], value);
    }

    fn series(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.0.push_str(name);
        for (index, (label, text)) in labels.iter().enumerate() {
            let mark = if index == 0 { '{' } else { ',' };
            let _ = write!(self.0, "{mark}{label}=\"{}\"", escaped(text));
        }
        let end = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.0, "{end} {value}");
    }
}

/// Agents choose their names: what would end a label or a line is escaped.
fn escaped(text: &str) -> String {
    short(text)
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

fn short(text: &str) -> &str {
    &text[..text.floor_char_boundary(MOST_LABEL)]
}
