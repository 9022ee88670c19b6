//! One module for each command.

mod agent;
mod audit;
mod check;
mod doctor;
mod documents;
mod evolve;
mod evolve_review;
mod experiment;
mod files;
mod home;
mod image;
mod kept;
mod keys;
mod learn;
mod list;
mod manifest;
mod mcp;
mod monitor;
mod past;
mod replication;
mod reviewer;
mod run;
mod secret;
mod subject;
mod supervisor;
mod token;

use crate::cli::{Cli, Command, Policy};
use crate::exit::{self, Failure};
use belljar_policy::Capability;

/// Puts what was asked for into a file that was named: all of it, or what was there stays. A device or a pipe is written to.
fn put(file: &std::path::Path, bytes: &[u8]) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    match std::fs::symlink_metadata(file) {
        Ok(about) if !about.is_file() => std::fs::write(file, bytes),
        Ok(about) => belljar_files::replace(file, bytes, about.permissions().mode() & 0o777),
        Err(_) => belljar_files::replace(file, bytes, 0o644),
    }
}

/// Carries a command out; the number is the exit code.
pub(crate) fn dispatch(cli: Cli) -> Result<u8, Failure> {
    if supervisor::is_named() {
        let words: Vec<_> = std::env::args_os().collect();
        if let Some((path, instead)) = crate::cli::reach::refused(&words) {
            return Err(Failure::Invalid(
                format!(
                    "`belljar {path}` is about this machine, and BELLJAR_SUPERVISOR names a supervisor elsewhere"
                ),
                instead.to_owned(),
            ));
        }
    }
    match cli.command {
        Command::Run(arguments) => run::run(arguments),
        Command::Learn(arguments) => learn::learn(arguments),
        Command::Validate(arguments) => documents::validate(&arguments),
        Command::Inspect(arguments) => list::inspect(&arguments),
        Command::Ps(format) => list::ps(&format),
        Command::Check(question) => check::check(&question),
        Command::Replication(command) => replication::replication(command),
        Command::Supervisor(command) => supervisor::supervisor(command),
        Command::Sandbox(arguments) => supervisor::sandbox(arguments),
        Command::Keeper => Ok(belljar_supervisor::apart::keep().map(|()| exit::OK)?),
        Command::Monitor(command) => monitor::monitor(command),
        Command::Experiment(command) => experiment::experiment(&command),
        Command::Evolve(command) => evolve::evolve(command),
        Command::Reviewer(what) => reviewer::reviewer(&what),
        Command::Mcp(command) => mcp::mcp(command),
        Command::Agent(command) => agent::agent(command),
        Command::Profile(what) => documents::profile(&what),
        Command::Doctor(asked) => doctor::doctor(&asked),
        Command::Schema { file } => documents::schema(file),
        Command::Audit(what) => audit::audit(&what),
        Command::Keys(what) => keys::keys(&what),
        Command::Manifest(what) => manifest::manifest(&what),
        Command::Secret(what) => secret::secret(&what),
        Command::Token(what) => token::token(&what),
        Command::Image(what) => image::image(&what),
        Command::Home(what) => home::home(&what),
        Command::Diff(asked) => kept::diff(&asked),
        Command::Apply(asked) => kept::apply(&asked),
        Command::Discard(kept) => kept::discard(&kept),
        Command::Completions { shell } => documents::completions(shell),
        Command::Man { directory } => documents::man(directory.as_deref()),
    }
}

/// The policy a command line names; `moderate` if it names none.
fn capability(policy: &Policy) -> Result<Capability, Failure> {
    if let Some(file) = &policy.config {
        return Ok(belljar_manifest::read_capability_file(file)?);
    }
    let name = policy.profile.as_deref().unwrap_or("moderate");
    belljar_manifest::profile(name).ok_or_else(|| {
        Failure::Invalid(
            format!("no profile {name}"),
            "`belljar profile list` names them".into(),
        )
    })
}
