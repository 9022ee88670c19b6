//! What supervisor.toml says about monitoring and alerts: `[supervisor.monitor]` and `[supervisor.alerts]`.

mod place;
mod read;

use std::path::PathBuf;
use std::time::Duration;

use belljar_api::{AlertKind, Response, Severity};

pub use read::InvalidSettings;

/// Everything the monitor is told at its start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// What is kept.
    pub monitor: MonitorSettings,
    /// What needs attention, and what is done about it.
    pub alerts: AlertSettings,
}

/// What is kept, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MonitorSettings {
    /// How long samples are kept by second.
    pub seconds_kept: Duration,
    /// How long samples are kept by minute, and an agent is remembered.
    pub minutes_kept: Duration,
    /// How long events and resolved alerts are kept.
    pub events_kept: Duration,
    /// How many events are kept at most.
    pub most_events: u64,
    /// How many incident bundles are kept.
    pub incidents_kept: u64,
    /// How many bytes one of them has at most.
    pub most_incident_bytes: u64,
}

impl Default for MonitorSettings {
    fn default() -> Self {
        const DAY: u64 = 86_400;
        Self {
            seconds_kept: Duration::from_secs(DAY),
            minutes_kept: Duration::from_secs(30 * DAY),
            events_kept: Duration::from_secs(90 * DAY),
            most_events: 1_000_000,
            incidents_kept: 100,
            most_incident_bytes: 64 << 20,
        }
    }
}

/// What needs attention, and what is done about it.
#[derive(Clone, Debug, PartialEq)]
pub struct AlertSettings {
    /// Percent of the CPU that an agent may use, or of one core where it has no limit.
    pub max_cpu_percent: f64,
    /// Mebibytes of memory; where absent, 90 % of the agent's limit, or 512 where it has none.
    pub max_memory_mb: Option<u64>,
    /// One rule for each kind.
    pub rules: Vec<Rule>,
    /// Who is told.
    pub notify: NotifySettings,
}

impl Default for AlertSettings {
    fn default() -> Self {
        Self {
            max_cpu_percent: 80.0,
            max_memory_mb: None,
            rules: crate::alerts::KINDS
                .iter()
                .map(|kind| crate::alerts::rule_of(*kind))
                .collect(),
            notify: NotifySettings::default(),
        }
    }
}

/// When an alert is raised, and what is done about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Which alert.
    pub kind: AlertKind,
    /// Whether it is raised at all.
    pub enabled: bool,
    /// How bad it is.
    pub severity: Severity,
    /// So many causes within the window. Not for what is so or is not, such as an engaged kill switch.
    pub threshold: u64,
    /// The time within which causes are counted.
    pub window: Duration,
    /// How long it must have been so before it is raised.
    pub lasting: Duration,
    /// When an alert of attempts is over by itself: this long after its last cause, or after the agent runs again. Zero: when a
    /// person says so. As the kind has it where absent.
    pub resolve_after: Option<Duration>,
    /// What is done.
    pub respond: Vec<Response>,
}

/// Who is told of alerts whose rule says `notify`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NotifySettings {
    /// An http or https URL that takes JSON.
    pub webhook: Option<String>,
    /// A syslog socket.
    pub syslog: Option<PathBuf>,
    /// A program and its arguments, which reads JSON from its standard input.
    pub command: Vec<String>,
}

impl NotifySettings {
    /// Whether nobody is told.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.webhook.is_none() && self.syslog.is_none() && self.command.is_empty()
    }
}
