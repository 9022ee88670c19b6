//! The commands about the supervisor, and about agents that it looks after.

use belljar_api::RestartPolicy;
use clap::{Args, Subcommand};
use std::path::PathBuf;
use std::time::Duration;

use super::{Format, OutputFormat};

#[derive(Debug, Subcommand)]
pub(crate) enum Supervisor {
    /// Start the supervisor: agents get keepers that outlive it, and are adopted by the next one
    Start(Start),
    /// Show the supervisor and its agents
    Status {
        /// Agents that ended too
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        format: Format,
    },
    /// Agents that the supervisor's file declares
    #[command(subcommand)]
    Agent(DeclaredAgents),
    /// Read supervisor.toml again: start agents that are new, end those that are gone, start those that changed anew
    Reload {
        /// Only show what would change
        #[arg(long)]
        dry_run: bool,
        /// Agents that changed go on as they are until they are started again
        #[arg(long)]
        no_restart: bool,
        /// Why; it goes on record
        #[arg(long, default_value = "operator")]
        reason: String,
        #[command(flatten)]
        format: Format,
    },
    /// Check a supervisor.toml and everything it names: exit 0 if it can be used, 1 if not
    Validate {
        /// The file
        #[arg(value_name = "FILE")]
        file: PathBuf,
        #[command(flatten)]
        format: Format,
    },
    /// Ask an agent to end; kill it when it has not after the grace
    Stop {
        #[command(flatten)]
        on: OnAgent,
        /// How long it may take
        #[arg(long, value_name = "SECONDS", value_parser = super::seconds)]
        grace: Option<Duration>,
        /// Come back when it has ended
        #[arg(long)]
        wait: bool,
    },
    /// End an agent kindly and start it anew, with the same command under the same capability
    Restart {
        #[command(flatten)]
        on: OnAgent,
        /// How long its end may take
        #[arg(long, value_name = "SECONDS", value_parser = super::seconds)]
        grace: Option<Duration>,
    },
    /// Kill an agent; with --subtree its replicas too
    Kill {
        #[command(flatten)]
        on: OnAgent,
        /// The replicas too
        #[arg(long)]
        subtree: bool,
    },
    /// Freeze an agent: no process of it runs, it gets no grants, evidence stays
    Quarantine(OnAgent),
    /// Let a quarantined agent go on
    Release(OnAgent),
    /// Print what an agent wrote
    Logs {
        /// Its name, its id, or the beginning of that
        agent: String,
        /// Go on until it ends
        #[arg(long, short)]
        follow: bool,
        /// Its error output instead of its standard output
        #[arg(long)]
        stderr: bool,
        /// Both, each to our own of the same name
        #[arg(long, conflicts_with = "stderr")]
        both: bool,
        /// The last lines alone, of each
        #[arg(long, short = 'n', value_name = "LINES")]
        tail: Option<usize>,
    },
    /// Kill every agent, and refuse everything until the kill switch is reset
    KillAll {
        /// Why; it goes on record
        #[arg(long, default_value = "operator")]
        reason: String,
        #[command(flatten)]
        format: Format,
    },
    /// End every agent, and then the supervisor
    Shutdown {
        /// Why; it goes on record
        #[arg(long, default_value = "operator")]
        reason: String,
        /// How long agents may take
        #[arg(long, value_name = "SECONDS", value_parser = super::seconds)]
        grace: Option<Duration>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum DeclaredAgents {
    /// Make declared agents wanted again, whatever ended them, and start them
    Start {
        /// Their names
        #[arg(value_name = "NAME", required_unless_present = "all")]
        names: Vec<String>,
        /// All that do not run
        #[arg(long, conflicts_with = "names")]
        all: bool,
        /// Why; it goes on record
        #[arg(long, default_value = "operator")]
        reason: String,
        #[command(flatten)]
        format: Format,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Start {
    /// A supervisor.toml
    #[arg(long, short, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The port of the dashboard and the API on the loopback, 8080 where nothing says otherwise; 0 takes any that is free
    #[arg(long, value_name = "PORT")]
    pub(crate) web_port: Option<u16>,
    /// No dashboard and no API but on the local socket
    #[arg(long, conflicts_with = "web_port")]
    pub(crate) no_web: bool,
    /// Go to the background once it is ready
    #[arg(long)]
    pub(crate) detach: bool,
    /// It was sent to the background
    #[arg(long, hide = true)]
    pub(crate) detached: bool,
}

#[derive(Debug, Args)]
pub(crate) struct OnAgent {
    /// Its name, its id, or the beginning of that
    pub(crate) agent: String,
    /// Why; it goes on record
    #[arg(long, default_value = "operator")]
    pub(crate) reason: String,
    #[command(flatten)]
    pub(crate) format: Format,
}

/// One supervised agent.
#[derive(Debug, Args)]
pub(crate) struct Sandbox {
    /// An agent.toml: name, command, workdir, capability, restart
    #[arg(long, short, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// A sandbox.toml or capability.yaml that it runs under
    #[arg(long, value_name = "FILE")]
    pub(crate) sandbox_config: Option<PathBuf>,
    /// Where the supervisor is: unix:PATH or https://HOST[:PORT]; without it, the one of the state directory
    #[arg(long, value_name = "URL")]
    pub(crate) supervisor: Option<String>,
    /// What to call it
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// What happens when it ends by itself: never, on_failure or always; without it, what the agent.toml says, or never
    #[arg(long, value_name = "WHEN", value_parser = restart)]
    pub(crate) restart: Option<RestartPolicy>,
    /// Stay, show what it writes, and end as it does
    #[arg(long, short)]
    pub(crate) attach: bool,
    /// For people or for programs
    #[arg(long, value_enum, default_value_t = OutputFormat::Text, conflicts_with = "attach")]
    pub(crate) output: OutputFormat,
    /// The program and its arguments
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

/// A policy by its word in the files; the error names them all.
fn restart(text: &str) -> Result<RestartPolicy, String> {
    let word = text.replace('-', "_");
    serde_json::from_value(word.into()).map_err(|error| error.to_string())
}
