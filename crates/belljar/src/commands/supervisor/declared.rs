//! Agents that the supervisor's file declares: the file as the daemon reads it, and the commands about it.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use belljar_api::{
    ChangeOfAgent, DeclaredReply, DeclaredState, DeclaredView, Name, Problem, Reload, ReloadReply,
    ReloadRequest, StartDeclared, StartDeclaredRequest,
};
use belljar_manifest::SupervisorFile;
use belljar_supervisor::StateDir;
use belljar_supervisor::daemon::{
    AgentSpec, Daemon, DeclarationSource, Declarations, Overcommitted,
};

use super::reach::Reached;
use super::start::spec;
use crate::cli::OutputFormat;
use crate::commands::agent::said;
use crate::exit::{self, Failure};
use crate::print::{self, Line};

/// A supervisor.toml, to be read again.
#[derive(Debug)]
pub(super) struct SupervisorSource {
    path: PathBuf,
    /// As the daemon was started with it.
    first: SupervisorFile,
    state: StateDir,
}

impl SupervisorSource {
    pub(super) fn new(path: PathBuf, first: SupervisorFile, state: &StateDir) -> Self {
        Self {
            path,
            first,
            state: state.clone(),
        }
    }

    fn declarations(&self) -> Result<Declarations, Failure> {
        let file = belljar_manifest::read_supervisor_file(&self.path)?;
        let base = base_of(Some(&self.path));
        super::validate::parts(&self.path, &file, &base)?;
        let agents = declared_agents(&file, &base, Some(&self.path), self.state.path())?;
        Ok(Declarations {
            agents,
            needs_restart: others(&self.first, &file),
        })
    }
}

impl DeclarationSource for SupervisorSource {
    fn read(&self) -> Result<Declarations, Problem> {
        self.declarations().map_err(|failure| {
            let problem = Problem::new("invalid_input", failure.message());
            match failure.hint() {
                Some(hint) => problem.hint(hint),
                None => problem,
            }
        })
    }
}

/// The settings of the supervisor itself that are not what they were.
fn others(old: &SupervisorFile, new: &SupervisorFile) -> Vec<String> {
    let changed = [
        ("max_agents", old.max_agents != new.max_agents),
        ("web_port", old.web_port != new.web_port),
        ("state_dir", old.state_dir != new.state_dir),
        ("contract", old.contract != new.contract),
        ("orphan_grace_seconds", old.orphan_grace != new.orphan_grace),
        ("stop_grace_seconds", old.stop_grace != new.stop_grace),
        ("log_max_mb", old.log_bytes != new.log_bytes),
        ("log_keep", old.log_keep != new.log_keep),
        (
            "restart.first_seconds",
            old.restart_first != new.restart_first,
        ),
        (
            "restart.longest_seconds",
            old.restart_longest != new.restart_longest,
        ),
        ("restart.crash_loop", old.crash_loop != new.crash_loop),
        (
            "restart.window_seconds",
            old.crash_window != new.crash_window,
        ),
        ("web", old.web != new.web),
        ("api", old.api != new.api),
    ];
    let changed = changed.into_iter().filter(|(_, is_new)| *is_new);
    changed.map(|(key, _)| key.to_owned()).collect()
}

/// Where a file's paths begin.
pub(super) fn base_of(config: Option<&Path>) -> PathBuf {
    match config.and_then(Path::parent) {
        Some(directory) if !directory.as_os_str().is_empty() => directory.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// The agents of a file that are not switched off.
pub(super) fn declared_agents(
    file: &SupervisorFile,
    base: &Path,
    config: Option<&Path>,
    state: &Path,
) -> Result<Vec<AgentSpec>, Failure> {
    let enabled = file.agents.iter().filter(|agent| agent.enabled);
    enabled
        .map(|agent| spec(agent, base, config, Some(state)))
        .collect()
}

pub(super) fn overcommitted(config: Option<&Path>) -> impl Fn(Overcommitted) -> Failure {
    let place = config.map_or_else(String::new, |path| format!("{}: ", path.display()));
    move |error| {
        Failure::Invalid(
            format!("{place}{error}"),
            "lower a share or a budget of [[agents]], or raise the contract's".into(),
        )
    }
}

/// Says on the daemon's own output what is wrong.
pub(super) fn tell(about: &str, problem: &Problem) {
    print::line(
        Line::Error,
        &format!("{about}{}: {}", problem.code, problem.message),
    );
    if let Some(hint) = &problem.hint {
        print::line(Line::Hint, hint);
    }
}

/// A signal asked for it: what comes of it is in the daemon's log.
pub(super) fn reload(daemon: &Daemon) {
    match daemon.reload() {
        Ok(reply) => print::line(Line::Summary, reloaded(&reply, Tense::Done).trim_end()),
        Err(problem) => tell("the file was not read again: ", &problem),
    }
}

/// `belljar supervisor reload`.
pub(super) fn ask_reload(request: &ReloadRequest, output: OutputFormat) -> Result<u8, Failure> {
    let reply = Reached::usual()?.client.call::<Reload>(request)?;
    match output {
        OutputFormat::Json => print::json(&reply),
        OutputFormat::Text => {
            let tense = match request.dry_run {
                true => Tense::WouldBe,
                false => Tense::Done,
            };
            print::out(&reloaded(&reply, tense));
            print::out(&table(&reply.not_running));
        }
    }
    Ok(exit::OK)
}

/// `belljar supervisor agent start`.
pub(super) fn start(
    names: Vec<String>,
    reason: String,
    output: OutputFormat,
) -> Result<u8, Failure> {
    let invalid = |error| {
        let hint = "`belljar supervisor status` lists those that don't run";
        Failure::Invalid(format!("its name: {error}"), hint.into())
    };
    let names: Vec<Name> = names
        .into_iter()
        .map(|name| Name::new(name).map_err(invalid))
        .collect::<Result<_, _>>()?;
    let request = StartDeclaredRequest {
        names: names.clone(),
        reason: said(reason)?,
    };
    let reply: DeclaredReply = Reached::usual()?.client.call::<StartDeclared>(&request)?;
    match output {
        OutputFormat::Json => print::json(&reply),
        OutputFormat::Text => {
            let mut text = String::new();
            for name in &reply.started {
                let _ = writeln!(text, "{name} is started");
            }
            print::out(&text);
            print::out(&table(&reply.not_running));
        }
    }
    // Whoever was asked for and does not run is a failure.
    let is_asked = |view: &DeclaredView| {
        names.is_empty() || names.iter().any(|name| name.as_str() == view.name.as_str())
    };
    match reply.not_running.iter().any(is_asked) {
        true => Ok(exit::NO),
        false => Ok(exit::OK),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Tense {
    Done,
    WouldBe,
}

fn reloaded(reply: &ReloadReply, tense: Tense) -> String {
    let mut text = String::new();
    for agent in &reply.agents {
        let keys: Vec<&str> = agent.keys.iter().map(|key| key.as_str()).collect();
        let (sign, keys) = match agent.change {
            ChangeOfAgent::Added => ('+', String::new()),
            ChangeOfAgent::Removed => ('-', String::new()),
            ChangeOfAgent::Changed => ('~', format!(": {}", keys.join(", "))),
        };
        let _ = writeln!(text, "{sign} {}{keys}", agent.name);
    }
    for key in &reply.needs_restart {
        let _ = writeln!(
            text,
            "! {key}: takes effect when the supervisor is started again"
        );
    }
    let what = match (reply.agents.is_empty(), tense) {
        (true, _) => "no agent is declared otherwise than before",
        (false, Tense::Done) => "the file was read again",
        (false, Tense::WouldBe) => "nothing was changed",
    };
    text + what + "\n"
}

/// Declared agents that don't run, and why.
pub(super) fn table(agents: &[DeclaredView]) -> String {
    let mut text = String::new();
    for agent in agents {
        let at = match agent.since_ms {
            0 => String::new(),
            at => format!(" at {}", print::utc(at)),
        };
        let by = agent.by.as_ref().map(|by| format!(" by {by}"));
        let by = by.unwrap_or_default();
        let _ = match agent.state {
            DeclaredState::Stopped => writeln!(
                text,
                "NOT RUNNING  {}: {}{by}{at}: {}",
                agent.name, agent.code, agent.reason
            ),
            DeclaredState::Refused | DeclaredState::Pending => writeln!(
                text,
                "NOT RUNNING  {}: {}: {} (tried {} times{})",
                agent.name,
                agent.code,
                agent.reason,
                agent.attempts,
                agent
                    .retry_at_ms
                    .map(|at| format!(", again at {}", print::utc(at)))
                    .unwrap_or_default()
            ),
        };
        if let Some(hint) = &agent.hint {
            let _ = writeln!(text, "             {hint}");
        }
    }
    text
}
