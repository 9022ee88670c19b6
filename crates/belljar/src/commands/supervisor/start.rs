//! `belljar supervisor start`: the daemon itself.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_api::RestartPolicy;
use belljar_manifest::{DeclaredAgent, DeclaredRestart, SupervisorFile};
use belljar_monitor::Monitor;
use belljar_sandbox::signals::{CONTINUED, SignalWatch};
use belljar_supervisor::daemon::{
    AgentSpec, ApiCeiling, Daemon, DaemonSettings, await_predecessor, shares,
};
use belljar_supervisor::tools::ServerFiles;
use belljar_supervisor::{RunError, StateDir};
use belljar_web::{Settings, Tls, TokenFile, Web};
use rustix::process::Signal;

use super::attached::capability_text;
use super::board::Board;
use super::declared::{SupervisorSource, base_of, declared_agents, overcommitted, reload, tell};
use super::hands::{ByRule, RuleHands};
use super::proposals::Proposals;
use super::records::Records;
use super::rollouts::Rollouts;
use super::tokens::TokenTrouble;
use super::watch::Watch;
use crate::cli::supervisor::Start;
use crate::exit::{self, Failure};
use crate::print::{self, Line};

/// How often the daemon looks for signals.
const LOOK: Duration = Duration::from_millis(100);
/// How often the monitor hears how the daemon does.
const STATUS_EVERY: Duration = Duration::from_secs(1);
/// Ends the daemon and leaves its agents to the next one: what an upgrade needs.
const LEAVE: i32 = Signal::USR1.as_raw();
/// Has the file read again.
const HANG_UP: i32 = Signal::HUP.as_raw();

/// What a daemon is started with.
pub(super) struct Plan {
    pub(super) state: StateDir,
    /// With the agents that are declared.
    pub(super) settings: DaemonSettings,
    /// Where the dashboard is, unless it is not wanted.
    pub(super) web: Option<Settings>,
    /// What is kept, and what is worth an alert.
    pub(super) monitor: belljar_monitor::Settings,
}

pub(super) fn start(arguments: Start) -> Result<u8, Failure> {
    if arguments.detach {
        return super::detach::detach(&arguments);
    }
    if arguments.detached {
        // Of no terminal any more.
        let _ = rustix::process::setsid();
    }
    // While there is one thread.
    let signals = SignalWatch::new().map_err(|errno| RunError::System {
        doing: "watching signals",
        source: errno.into(),
    })?;
    let plan = plan(&arguments)?;
    serve(plan, &signals)
}

/// How the daemon ends.
enum Ending {
    /// Its agents first, with this grace.
    ShutDown(Option<Duration>),
    /// Alone: whoever lives goes on, and the next daemon adopts it.
    Leave,
}

/// Serves until somebody asks for the end.
fn serve(plan: Plan, signals: &SignalWatch) -> Result<u8, Failure> {
    await_predecessor(&plan.state)?;
    let directory = plan.state.path().join("monitor");
    let monitor = Arc::new(
        Monitor::open(&directory, plan.monitor).map_err(|error| no_monitor(error, &plan.state))?,
    );
    let by_rule = Arc::new(ByRule::default());
    let observer = Arc::new(Watch {
        monitor: Arc::clone(&monitor),
        records: Records::of(plan.state.path().to_owned()),
        proposals: Proposals::of(plan.state.path().to_owned()),
        by_rule: Arc::clone(&by_rule),
    });
    // Before anybody is started: a port that is taken must not cost a life.
    let daemon = Arc::new(Daemon::open(&plan.state, plan.settings, observer)?);
    monitor.lend_hands(Arc::new(RuleHands {
        daemon: Arc::downgrade(&daemon),
        by_rule,
    }));
    let (board, teller) = Board::set_up(&daemon, &monitor).map_err(|source| RunError::System {
        doing: "starting the live stream",
        source,
    })?;
    let web = match plan.web {
        Some(settings) => {
            let tokens = TokenFile::of(plan.state.path());
            Some(Web::start(settings, tokens, board).map_err(|error| no_web(&error))?)
        }
        None => None,
    };
    daemon.start_declared(|name, problem| {
        tell(&format!("agent {name}: "), problem);
    });
    // After those that are declared were started, each from the release it is to run.
    let rollouts = Rollouts::start(plan.state.path().to_owned(), Arc::clone(&monitor));
    let rollouts = rollouts.map_err(|source| RunError::System {
        doing: "starting to look at rollouts",
        source,
    })?;
    let ready = format!("supervisor ready at {}", daemon.control_socket().display());
    print::line(Line::Summary, &ready);
    daemon.is_ready();
    if let Some(web) = &web {
        print::line(Line::Summary, &format!("dashboard at {}", web.url()));
        print::line(
            Line::Hint,
            "log in with a token: belljar token create --role operator",
        );
    }
    let mut status_at = Instant::now();
    let is_at_terminal = std::io::stdin().is_terminal();
    let mut tokens = TokenTrouble::of(plan.state.path());
    let ending = loop {
        if status_at <= Instant::now() {
            status_at = Instant::now() + STATUS_EVERY;
            tokens.look(&monitor);
            if let Some(status) = daemon.status() {
                monitor.status(&status);
            }
            monitor.holds(&daemon.holds());
        }
        if let Some(grace) = daemon.asked_to_end(LOOK) {
            break Ending::ShutDown(Some(grace));
        }
        match signals.next() {
            // Without the terminal it was started at there is nobody to serve it for; a daemon reads its file again.
            Some(HANG_UP) if is_at_terminal && !std::io::stdin().is_terminal() => {
                break Ending::ShutDown(None);
            }
            Some(HANG_UP) => reload(&daemon),
            Some(LEAVE) => break Ending::Leave,
            Some(CONTINUED) | None => {}
            Some(_) => break Ending::ShutDown(None),
        }
    };
    // Nobody looks at agents that are about to be ended.
    drop(rollouts);
    let left = match ending {
        Ending::ShutDown(grace) => daemon.shut_down(grace),
        Ending::Leave => 0,
    };
    // Whoever watches sees the end; then nobody asks any more, and what is known is written.
    drop(web);
    drop(daemon);
    monitor.flush();
    drop(monitor);
    drop(teller);
    match left {
        0 => Ok(exit::OK),
        left => {
            print::line(Line::Error, &format!("{left} agents did not end"));
            Ok(exit::INTERNAL)
        }
    }
}

pub(super) fn plan(arguments: &Start) -> Result<Plan, Failure> {
    let file = match &arguments.config {
        Some(path) => belljar_manifest::read_supervisor_file(path)?,
        None => SupervisorFile::default(),
    };
    let base = base_of(arguments.config.as_deref());
    let monitor = match &arguments.config {
        Some(path) => read_monitor(path)?,
        None => belljar_monitor::Settings::default(),
    };
    let state = match &file.state_dir {
        Some(path) => StateDir::at(std::path::absolute(base.join(path)).map_err(no_directory)?)?,
        None => StateDir::find()?,
    };
    let program = std::env::current_exe().map_err(|source| RunError::System {
        doing: "finding our own program",
        source,
    })?;
    let mut settings = DaemonSettings::new(program);
    settings.keys = belljar_supervisor::key_source();
    if let Some(contract) = &file.contract {
        let contract = super::super::replication::read_contract(&base.join(contract))?;
        settings.contract = Some(contract);
    }
    fn set<T>(target: &mut T, given: Option<T>) {
        if let Some(given) = given {
            *target = given;
        }
    }
    set(&mut settings.max_agents, file.max_agents);
    set(&mut settings.orphan_grace, file.orphan_grace);
    set(&mut settings.stop_grace, file.stop_grace);
    set(&mut settings.log_bytes, file.log_bytes);
    set(&mut settings.log_keep, file.log_keep);
    set(&mut settings.restart.first, file.restart_first);
    set(&mut settings.restart.longest, file.restart_longest);
    set(&mut settings.restart.crash_loop, file.crash_loop);
    set(&mut settings.restart.window, file.crash_window);
    settings.api = ceiling(&file, &base)?;
    let config = arguments.config.as_deref();
    settings.agents = declared_agents(&file, &base, config, state.path())?;
    if let Some(contract) = &settings.contract {
        shares(&contract.budget, &settings.agents).map_err(overcommitted(config))?;
    }
    if let Some(path) = config {
        let path = std::path::absolute(path).map_err(no_directory)?;
        settings.source = Some(Arc::new(SupervisorSource::new(path, file.clone(), &state)));
    }
    Ok(Plan {
        state,
        settings,
        web: web(arguments, &file, &base),
        monitor,
    })
}

/// Where the dashboard is to be: nowhere but on this machine, unless the file says otherwise.
fn web(arguments: &Start, file: &SupervisorFile, base: &Path) -> Option<Settings> {
    if arguments.no_web {
        return None;
    }
    let mut settings = Settings::default();
    if let Some(port) = arguments.web_port.or(file.web_port) {
        settings.bind.set_port(port);
    }
    let web = &file.web;
    if let Some(address) = web.bind {
        settings.bind.set_ip(address);
    }
    settings.names.clone_from(&web.names);
    if let (Some(certificate), Some(key)) = (&web.certificate, &web.key) {
        settings.tls = Some(Tls {
            certificate: base.join(certificate),
            key: base.join(key),
            client_ca: web.client_ca.as_ref().map(|file| base.join(file)),
        });
    }
    Some(settings)
}

/// What a file says of the monitor and of alerts.
pub(super) fn read_monitor(path: &Path) -> Result<belljar_monitor::Settings, Failure> {
    let bytes = belljar_manifest::read_bounded(path, &path.display().to_string())?;
    belljar_monitor::Settings::read(&String::from_utf8_lossy(&bytes))
        .map_err(|error| wrong_settings(path, &error))
}

/// What holders of tokens may start, its paths taken from where the file is.
pub(super) fn ceiling(file: &SupervisorFile, base: &Path) -> Result<ApiCeiling, Failure> {
    let read = |path: &Option<PathBuf>| -> Result<_, Failure> {
        let path = path.as_ref().map(|path| base.join(path));
        let read = path.map(|path| belljar_manifest::read_capability_file(&path));
        Ok(read.transpose()?)
    };
    let places = file.api.workspaces.iter();
    let places = places.map(|place| std::path::absolute(base.join(place)).map_err(no_directory));
    Ok(ApiCeiling {
        workspaces: places.collect::<Result<_, _>>()?,
        ceiling: read(&file.api.ceiling)?,
        admin_ceiling: read(&file.api.admin_ceiling)?,
    })
}

fn no_monitor(error: belljar_monitor::OpenError, state: &StateDir) -> Failure {
    use belljar_monitor::OpenError;
    let hint = match &error {
        // The daemon's own lock would say the same, a moment later.
        OpenError::InUse(_) => {
            return Failure::Run(RunError::Refused {
                what: format!("a supervisor runs in {} already", state.path().display()),
                hint: "`belljar supervisor status` shows it; BELLJAR_STATE_DIR names another place"
                    .into(),
            });
        }
        OpenError::Newer(_) => "use that version, or move the file aside",
        _ => "see that the disk is not full and BELLJAR_STATE_DIR can be written to",
    };
    Failure::Invalid(belljar_gate::in_full(&error), hint.to_owned())
}

fn no_web(error: &belljar_web::StartError) -> Failure {
    Failure::Invalid(belljar_gate::in_full(error), error.hint().to_owned())
}

fn wrong_settings(path: &Path, error: &belljar_monitor::InvalidSettings) -> Failure {
    Failure::Invalid(
        format!(
            "{}:{}:{}: {}: {}",
            path.display(),
            error.line,
            error.column,
            error.path,
            error.message
        ),
        error
            .hint
            .clone()
            .unwrap_or_else(|| "docs/alerts.md lists what there is".to_owned()),
    )
}

fn no_directory(source: std::io::Error) -> Failure {
    Failure::Run(RunError::System {
        doing: "finding the working directory",
        source,
    })
}

/// A declared agent, its paths taken from where the file is. It must not change the files it is declared in.
pub(super) fn spec(
    agent: &DeclaredAgent,
    base: &Path,
    declared_in: Option<&Path>,
    state: Option<&Path>,
) -> Result<AgentSpec, Failure> {
    let at = |path: &Path| std::path::absolute(base.join(path)).map_err(no_directory);
    let mut protected: Vec<PathBuf> = declared_in.map(Path::to_owned).into_iter().collect();
    let (capability, servers) = match &agent.capability {
        Some(path) => {
            let path = at(path)?;
            let (text, servers) = capability_text(&path)?;
            protected.push(path);
            (Some(text), servers)
        }
        None => (None, ServerFiles::default()),
    };
    let work = match (&agent.project, state) {
        (Some(project), Some(state)) => {
            let project = at(project)?;
            let work = released(&project, state, &agent.name)?;
            // Before the first release it runs from the project, which is nobody's to change who runs from it.
            protected.push(project);
            work
        }
        _ => at(agent.workdir.as_deref().unwrap_or(Path::new(".")))?,
    };
    Ok(AgentSpec {
        name: agent.name.clone(),
        command: agent.command.clone(),
        workdir: Some(work),
        capability,
        profile: agent.profile.clone(),
        restart_on_oom: agent.restart_on_oom,
        share: agent.share,
        budget: agent.budget,
        follows_releases: agent.project.is_some(),
        restart: match agent.restart {
            DeclaredRestart::Never => RestartPolicy::Never,
            DeclaredRestart::OnFailure => RestartPolicy::OnFailure,
            DeclaredRestart::Always => RestartPolicy::Always,
        },
        protected,
        servers,
    })
}

/// Where an agent of a project works: the release that its place shows, or the project before the first one.
fn released(project: &Path, state: &Path, agent: &str) -> Result<PathBuf, Failure> {
    let project = project.canonicalize().map_err(|error| {
        Failure::Invalid(
            format!("agent {agent}: project {}: {error}", project.display()),
            "name a directory that exists".into(),
        )
    })?;
    let name = project.display().to_string();
    let shown = belljar_evolve::rollout::place_of(state, &name, agent);
    Ok(shown.unwrap_or(project))
}
