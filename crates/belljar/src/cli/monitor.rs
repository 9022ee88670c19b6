//! The commands that look at a supervisor's agents over time.

use belljar_api::{AlertId, AlertKind, EventKind, SilenceId};
use clap::{Args, Subcommand};
use std::path::PathBuf;
use std::time::Duration;

use super::Format;
use super::proof::LogChoice;

#[derive(Debug, Subcommand)]
pub(crate) enum Monitor {
    /// What agents used, over time
    Metrics {
        #[command(flatten)]
        whose: Whose,
        /// From so long ago on: 90s, 10m, 2h, 7d
        #[arg(long, value_name = "TIME", default_value = "10m", value_parser = time)]
        since: Duration,
        #[command(flatten)]
        format: Format,
    },
    /// What happened
    Events(Events),
    /// What needs attention; `ack` and `resolve` answer it
    #[command(args_conflicts_with_subcommands = true)]
    Alerts {
        #[command(subcommand)]
        answer: Option<Answer>,
        /// Those that are resolved too
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        whose: Whose,
        #[command(flatten)]
        format: Format,
    },
    /// Have nobody told of some alerts for a while; they are raised and listed all the same
    Silence(Silence),
    /// List the silences that hold
    Silences(Format),
    /// Write the record of decisions to a file, one JSON object a line
    Audit {
        /// Where to; - for standard output
        #[arg(long, value_name = "FILE")]
        export: PathBuf,
        #[command(flatten)]
        log: LogChoice,
    },
    /// The agents as they are now, again and again: c m p n t u a sort, r turns, q ends
    Top(Format),
}

#[derive(Debug, Args)]
pub(crate) struct Whose {
    /// Of this agent alone: its name, its id, or the beginning of that
    #[arg(long, value_name = "AGENT", visible_alias = "agent")]
    pub(crate) agent_id: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Events {
    /// How many
    #[arg(long, short = 'n', value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(crate) lines: u64,
    /// Go on until interrupted
    #[arg(long, short)]
    pub(crate) follow: bool,
    #[command(flatten)]
    pub(crate) whose: Whose,
    /// Of this kind alone, such as egress_refused
    #[arg(long, value_name = "KIND", value_parser = event_kind)]
    pub(crate) kind: Option<EventKind>,
    /// Whose text holds this
    #[arg(long, value_name = "TEXT")]
    pub(crate) search: Option<String>,
    #[command(flatten)]
    pub(crate) format: Format,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Answer {
    /// Say that you have seen it
    Ack {
        /// Its number
        #[arg(value_parser = alert_id)]
        id: AlertId,
        /// Why; it goes on record
        #[arg(long, default_value = "seen")]
        reason: String,
        #[command(flatten)]
        format: Format,
    },
    /// Say that it is dealt with, or all of a kind or about an agent; an agent that its rule froze goes on
    Resolve(Resolve),
}

#[derive(Debug, Args)]
pub(crate) struct Resolve {
    /// Its number
    #[arg(value_parser = alert_id, required_unless_present_any = ["agent", "kind", "all"], conflicts_with_all = ["agent", "kind", "all"])]
    pub(crate) id: Option<AlertId>,
    /// Those about this agent, by its name or whole id; `*` stands for any letters
    #[arg(long, value_name = "NAME")]
    pub(crate) agent: Option<String>,
    /// Those of this kind, such as AgentCrashed
    #[arg(long, value_name = "KIND", value_parser = alert_kind)]
    pub(crate) kind: Option<AlertKind>,
    /// All of them
    #[arg(long)]
    pub(crate) all: bool,
    /// Why; it goes on record
    #[arg(long)]
    pub(crate) reason: String,
    #[command(flatten)]
    pub(crate) format: Format,
}

#[derive(Debug, Args)]
pub(crate) struct Silence {
    /// About this agent, by its name or whole id; `*` stands for any letters
    #[arg(long, value_name = "NAME", required_unless_present_any = ["kind", "end"])]
    pub(crate) agent: Option<String>,
    /// Of this kind, such as AgentCrashed
    #[arg(long, value_name = "KIND", value_parser = alert_kind)]
    pub(crate) kind: Option<AlertKind>,
    /// For how long: 90s, 10m, 2h, 7d; at most 30 days
    #[arg(long = "for", value_name = "TIME", value_parser = time, required_unless_present = "end")]
    pub(crate) lasts: Option<Duration>,
    /// End this silence instead, by its number
    #[arg(long, value_name = "NUMBER", value_parser = silence_id, conflicts_with_all = ["agent", "kind", "lasts"])]
    pub(crate) end: Option<SilenceId>,
    /// Why; it goes on record
    #[arg(long)]
    pub(crate) reason: String,
    #[command(flatten)]
    pub(crate) format: Format,
}

/// A kind by its word in the protocol; the error names them all.
fn alert_kind(text: &str) -> Result<AlertKind, String> {
    serde_json::from_value(text.into()).map_err(|error| error.to_string())
}

fn alert_id(text: &str) -> Result<AlertId, String> {
    AlertId::new(text).map_err(|error| error.to_string())
}

fn silence_id(text: &str) -> Result<SilenceId, String> {
    SilenceId::new(text).map_err(|error| error.to_string())
}

/// A kind by its word in the protocol; the error names them all.
fn event_kind(text: &str) -> Result<EventKind, String> {
    serde_json::from_value(text.into()).map_err(|error| error.to_string())
}

/// A number with a unit.
fn time(text: &str) -> Result<Duration, String> {
    const WRONG: &str = "a number and s, m, h or d, such as 10m";
    let unit = match text.chars().last() {
        Some('s') => 1,
        Some('m') => 60,
        Some('h') => 3600,
        Some('d') => 86_400,
        _ => return Err(WRONG.into()),
    };
    let number: u64 = text[..text.len() - 1].parse().map_err(|_| WRONG)?;
    match number.checked_mul(unit) {
        Some(seconds @ 1..=315_360_000) => Ok(Duration::from_secs(seconds)),
        _ => Err("more than nothing and at most ten years".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        assert_eq!(time("10m"), Ok(Duration::from_secs(600)));
        assert_eq!(time("7d"), Ok(Duration::from_secs(604_800)));
        for wrong in ["", "10", "m", "0s", "1.5h", "-1m", "99999999999999d", "1ä"] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
    }
}
