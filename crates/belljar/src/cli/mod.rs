//! The command line's one definition: help, completions and man pages all come from here.

pub(crate) mod doctor;
pub(crate) mod evolve;
pub(crate) mod evolve_review;
pub(crate) mod experiment;
pub(crate) mod home;
pub(crate) mod image;
mod kept;
mod learn;
pub(crate) mod mcp;
pub(crate) mod monitor;
mod proof;
pub(crate) mod reach;
pub(crate) mod replication;
pub(crate) mod reviewer;
mod secret;
pub(crate) mod supervisor;
mod token;
pub(crate) mod tools;

pub(crate) use kept::{Apply, Diff, KeptChanges};
pub(crate) use learn::{HostsMode, Learn, LearnFormat};
pub(crate) use proof::{Audit, ExportFormat, KeyKind, Keys, LogName, Manifest, Verify};
pub(crate) use secret::{Secret, SetSecret};
pub(crate) use token::{Create, Token, TokenRole};

use crate::exit;
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Runs AI agents under glass.
///
/// Every control is enforced by the kernel or by a process the agent can't reach, or it is refused with a clear error.
#[derive(Debug, Parser)]
#[command(name = "belljar", version, propagate_version = true, after_help = exit::HELP, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// Reads the command line, or says what is wrong with it and ends the process.
    ///
    /// `run` is tried by itself first: to make the definitions of all the other commands takes a tenth of the time that a
    /// box takes to start. Whatever is not a good `run` is read by the whole definition, whose words it deserves.
    pub(crate) fn read() -> Self {
        let words: Vec<OsString> = std::env::args_os().collect();
        Self::run_alone(&words)
            .or_else(|| Self::try_parse_from(&words).ok())
            .unwrap_or_else(|| Self::refuse(&words))
    }

    /// Ends with what is wrong with the words, in which there is nothing that a terminal would obey. Help is an end, too.
    fn refuse(words: &[OsString]) -> Self {
        let shown = words
            .iter()
            .map(|word| belljar_policy::harmless_bytes(word.as_bytes()).into_owned());
        match Self::try_parse_from(shown) {
            Err(error) => error.exit(),
            Ok(_) => {
                let what = "an argument has characters in it that it can't have";
                Self::command().error(ErrorKind::InvalidValue, what).exit()
            }
        }
    }

    fn run_alone(words: &[OsString]) -> Option<Self> {
        let (_, words) = words.split_first()?;
        words.first().filter(|word| *word == "run")?;
        let definition = clap::Command::new("run")
            .disable_help_flag(true)
            .disable_version_flag(true);
        let mut matches = Run::augment_args(definition)
            .try_get_matches_from(words)
            .ok()?;
        let run = Run::from_arg_matches_mut(&mut matches).ok()?;
        Some(Self {
            command: Command::Run(run),
        })
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command in a box
    ///
    /// Without --config the profile `moderate` holds: the working directory is writable less protected files, the rest
    /// is readable less hidden paths, /tmp is private, the network is closed. The box ends when its last process does.
    #[command(after_help = exit::HELP)]
    Run(Run),
    /// Run a command in a box that is watched, and write the smallest capability file it needs
    ///
    /// The walls are those of --config or --profile (`moderate` if neither is given). What the command did becomes a line of
    /// the file, what it was refused a comment. Its exit code passes through.
    #[command(after_help = exit::HELP)]
    Learn(Learn),
    /// Check a capability file without running anything: exit 0 if valid, 1 if not
    Validate(Validate),
    /// Show a running box
    Inspect(Inspect),
    /// List running boxes, and changes that wait to be applied
    Ps(Format),
    /// Ask what a policy decides, why, and which line to add: exit 0 if allowed, 1 if denied
    #[command(subcommand)]
    Check(Check),
    /// Watch and stop a family of agents
    #[command(subcommand)]
    Replication(replication::Replication),
    /// The daemon that looks after agents: start it, see and stop its agents
    #[command(subcommand)]
    Supervisor(supervisor::Supervisor),
    /// Start an agent under the supervisor
    #[command(after_help = exit::HELP)]
    Sandbox(supervisor::Sandbox),
    /// Keep a box for the supervisor; it starts one for each agent
    #[command(hide = true)]
    Keeper,
    /// What a supervisor's agents used and did, and what needs attention
    #[command(subcommand)]
    Monitor(monitor::Monitor),
    /// Study contracts: simulate populations of agents with the controller that enforces them
    #[command(subcommand)]
    Experiment(experiment::Experiment),
    /// Changes that agents propose to their own code: propose, judge, review, roll out
    #[command(subcommand)]
    Evolve(evolve::Evolve),
    /// The people who may review proposals
    #[command(subcommand)]
    Reviewer(reviewer::Reviewer),
    /// MCP servers under rules, each in a box of its own
    #[command(subcommand)]
    Mcp(mcp::Mcp),
    /// In a box: ask your keeper for a replica, a sign of life, your manifest
    #[command(subcommand)]
    Agent(replication::Agent),
    /// The shipped profiles
    #[command(subcommand)]
    Profile(Profile),
    /// What this host can enforce, how, and what is missing
    Doctor(doctor::Doctor),
    /// Print the JSON Schema of a policy file
    Schema {
        /// Which file
        #[arg(value_enum)]
        file: SchemaFile,
    },
    /// The record of every launch and decision: verify it, read it, prove what it says
    #[command(subcommand)]
    Audit(Audit),
    /// The keys that sign the record and the manifests
    #[command(subcommand)]
    Keys(Keys),
    /// The signed papers of replicas
    #[command(subcommand)]
    Manifest(Manifest),
    /// Keys that policies name by `from: {store: NAME}`, kept in a file that is yours alone
    #[command(subcommand)]
    Secret(Secret),
    /// The tokens of the web API and the dashboard
    #[command(subcommand)]
    Token(Token),
    /// Root file systems for boxes of the tier `container`
    #[command(subcommand)]
    Image(image::Image),
    /// Private homes: what agents keep in their copies of the home directory
    #[command(subcommand)]
    Home(home::Home),
    /// Show what a box with `workspace: overlay` changed
    ///
    /// The project comes first. What happened in `.git` is told as commits, refs and staged paths; what agents and tools keep
    /// for themselves in the home is counted. Both are shown file by file with --all.
    Diff(Diff),
    /// Make those changes in the workspace: all of them, or those at some paths; the others go on waiting
    Apply(Apply),
    /// Throw those changes away: all of them, or those at some paths
    Discard(KeptChanges),
    /// Print a completion script for a shell
    Completions {
        /// Which shell
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Write the man pages into a directory, or print the main one
    Man {
        /// Where to
        directory: Option<PathBuf>,
    },
}

/// Where the policy comes from.
#[derive(Debug, Args)]
pub(crate) struct Policy {
    /// A capability.yaml or sandbox.toml
    #[arg(long, short, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// A shipped profile
    #[arg(long, short, value_name = "NAME", value_parser = belljar_manifest::PROFILES, conflicts_with = "config")]
    pub(crate) profile: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Format {
    /// For people or for programs
    #[arg(long, value_enum, default_value_t = OutputFormat::Text)]
    pub(crate) output: OutputFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// Lines
    Text,
    /// One JSON value
    Json,
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) policy: Policy,
    /// End the box after so many seconds, whatever the policy says
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) timeout: Option<std::time::Duration>,
    /// Let the agent make replicas of itself, within this contract
    #[arg(long, value_name = "FILE")]
    pub(crate) contract: Option<PathBuf>,
    /// With --contract: a file whose contents the agent finds in /belljar/state
    #[arg(long, value_name = "FILE", requires = "contract")]
    pub(crate) state: Option<PathBuf>,
    /// Have a supervisor keep the box: unix:PATH or https://HOST[:PORT], or nothing for the one of the state directory
    #[arg(
        long,
        value_name = "URL",
        num_args = 0..=1,
        default_missing_value = "",
        require_equals = false,
        conflicts_with_all = ["contract", "state", "timeout", "workspace", "home"]
    )]
    pub(crate) supervisor: Option<String>,
    /// What the record of the launch survives before the agent's first instruction (with --contract always strict)
    #[arg(long, value_enum, default_value_t = Durable::Crash)]
    pub(crate) durability: Durable,
    /// Make changes in place, or keep them aside for `belljar diff`
    #[arg(long, value_enum)]
    pub(crate) workspace: Option<WorkspaceMode>,
    /// The host's home directory for reading, or a copy of the box's own that is kept for this directory's next run
    #[arg(long, value_enum)]
    pub(crate) home: Option<HomeChoice>,
    /// With json, the program's output is captured in the result object
    #[arg(long, value_enum, default_value_t = OutputFormat::Text)]
    pub(crate) output: OutputFormat,
    /// No summary line
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// The program and its arguments; where the policy names an image, what the image says if nothing is given
    #[arg(
        last = true,
        required_unless_present = "config",
        value_name = "COMMAND"
    )]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Durable {
    /// A crash of Belljar
    Crash,
    /// A power cut
    Strict,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum WorkspaceMode {
    /// In place
    Direct,
    /// Kept aside
    Overlay,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum HomeChoice {
    /// The host's, for reading
    #[value(name = "read_only", alias = "read-only")]
    ReadOnly,
    /// A copy of the box's own
    Private,
}

#[derive(Debug, Args)]
pub(crate) struct Validate {
    /// A capability.yaml or sandbox.toml
    #[arg(value_name = "FILE", required_unless_present = "config")]
    pub(crate) file: Option<PathBuf>,
    /// The same, as an option
    #[arg(long, short, value_name = "FILE", conflicts_with = "file")]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) format: Format,
}

#[derive(Debug, Args)]
pub(crate) struct Inspect {
    /// Its id, or the beginning of it
    #[arg(value_name = "ID", required_unless_present = "sandbox_id")]
    pub(crate) id: Option<String>,
    /// The same, as an option
    #[arg(long, value_name = "ID", conflicts_with = "id")]
    pub(crate) sandbox_id: Option<String>,
    #[command(flatten)]
    pub(crate) format: Format,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Check {
    /// May this path be read, or written?
    Path {
        /// The path, relative to the working directory or absolute; of several, JSON is a list
        #[arg(required = true, value_name = "PATH")]
        paths: Vec<PathBuf>,
        /// Ask about writing
        #[arg(long)]
        write: bool,
        #[command(flatten)]
        ask: Ask,
    },
    /// Does this variable reach the box?
    Env {
        /// Its name
        name: String,
        #[command(flatten)]
        ask: Ask,
    },
    /// May this host be reached?
    Host {
        /// HOST or HOST:PORT (443 if not given)
        host: String,
        #[command(flatten)]
        ask: Ask,
    },
    /// What becomes of this connection or request: the rule, what is looked at, added and charged?
    Egress(Egress),
    /// May this MCP tool be called?
    Tool(Tool),
}

#[derive(Debug, Args)]
pub(crate) struct Tool {
    /// SERVER:TOOL
    #[arg(value_name = "SERVER:TOOL")]
    pub(crate) tool: String,
    /// The call's arguments, as JSON
    #[arg(long, value_name = "JSON")]
    pub(crate) args: Option<String>,
    /// The server's working directory, where its paths start and links in them are followed
    #[arg(long, value_name = "DIR")]
    pub(crate) cwd: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) ask: Ask,
}

#[derive(Debug, Args)]
pub(crate) struct Egress {
    /// A URL, or HOST or HOST:PORT (443 if not given)
    #[arg(value_name = "URL|HOST[:PORT]")]
    pub(crate) target: String,
    /// The request's method; GET if not given
    #[arg(long, value_name = "METHOD")]
    pub(crate) method: Option<String>,
    /// Look the name up as a run would, and say which of its addresses the rules reach
    #[arg(long)]
    pub(crate) resolve: bool,
    #[command(flatten)]
    pub(crate) ask: Ask,
}

#[derive(Debug, Args)]
pub(crate) struct Ask {
    #[command(flatten)]
    pub(crate) policy: Policy,
    #[command(flatten)]
    pub(crate) format: Format,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Profile {
    /// Their names
    List,
    /// One of them, as a file to start from
    Show {
        /// Which
        #[arg(value_parser = belljar_manifest::PROFILES)]
        name: String,
    },
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum SchemaFile {
    /// capability.yaml
    Capability,
    /// sandbox.toml
    Sandbox,
    /// contract.yaml
    Contract,
    /// supervisor.toml
    Supervisor,
    /// agent.toml
    Agent,
    /// experiment.yaml
    Experiment,
    /// evolve.toml
    Evolve,
    /// The request.yaml of a proposal
    Request,
}

/// A positive number of seconds, at most a century.
pub(crate) fn seconds(text: &str) -> Result<std::time::Duration, String> {
    const CENTURY: f64 = 100.0 * 365.25 * 86_400.0;
    match text.parse::<f64>() {
        Ok(number) if number > 0.0 && number <= CENTURY => {
            Ok(std::time::Duration::from_secs_f64(number))
        }
        Ok(_) => Err(format!("must be more than 0 and at most {CENTURY}")),
        Err(_) => Err("not a number of seconds".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn a_run_read_alone_is_the_run_of_the_whole_definition() {
        for line in [
            "belljar run -- true",
            "belljar run -q --profile strict -- sh -c run",
            "belljar run --config a.yaml --timeout 1.5 --output json -- a --help",
            "belljar run --contract c --state s --durability strict --workspace overlay -- x",
        ] {
            let alone = Cli::run_alone(&words(line)).expect(line);
            let whole = Cli::try_parse_from(words(line)).expect(line);
            assert_eq!(format!("{alone:?}"), format!("{whole:?}"));
        }
    }

    /// What the dashboard tells people to type can be typed.
    #[test]
    fn the_dashboards_commands_are_commands() {
        fn files(directory: &std::path::Path, all: &mut Vec<PathBuf>) {
            for entry in std::fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                match path.is_dir() {
                    true => files(&path, all),
                    false => all.push(path),
                }
            }
        }
        let pages = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dashboard/src");
        let mut all = Vec::new();
        files(pages.as_ref(), &mut all);
        let mut count = 0;
        for path in all
            .iter()
            .filter(|path| path.extension().is_some_and(|end| end == "tsx"))
        {
            let text = std::fs::read_to_string(path).unwrap();
            for part in text.split(">belljar ").skip(1) {
                let line = part.split('<').next().unwrap_or_default();
                // What the page puts in its place is one word.
                let line = line.replace(['{', '}'], "");
                let words = ["belljar"].into_iter().chain(line.split_whitespace());
                let wrong = Cli::try_parse_from(words).err().map(|error| error.kind());
                // A command may be named without all that it needs.
                let is_named = wrong == Some(clap::error::ErrorKind::MissingRequiredArgument);
                assert!(
                    wrong.is_none() || is_named,
                    "{}: belljar {line}: {wrong:?}",
                    path.display()
                );
                count += 1;
            }
        }
        assert!(count >= 4, "the search finds nothing any more: {count}");
    }

    #[test]
    fn what_is_no_good_run_is_left_to_the_whole_definition() {
        for line in [
            "belljar",
            "belljar ps",
            "belljar --version",
            "belljar run",
            "belljar run --help",
            "belljar run --version",
            "belljar run --nonsense -- true",
            "belljar run --profile moderate --config a -- true",
            "belljar run --timeout 0 -- true",
        ] {
            assert!(Cli::run_alone(&words(line)).is_none(), "{line}");
        }
    }
}
