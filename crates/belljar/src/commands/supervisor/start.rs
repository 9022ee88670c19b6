//! `belljar supervisor start`: the daemon itself.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_api::RestartPolicy;
use belljar_manifest::{DeclaredAgent, DeclaredRestart, SupervisorFile};
use belljar_monitor::Monitor;
use belljar_sandbox::signals::{CONTINUED, SignalWatch};
use belljar_supervisor::daemon::{AgentSpec, Daemon, DaemonSettings};
use belljar_supervisor::fleet::Operator;
use belljar_supervisor::tools::ServerFiles;
use belljar_supervisor::{RunError, StateDir};
use belljar_web::{Settings, Tls, TokenFile, Web};

use super::attached::capability_text;
use super::board::Board;
use super::hands::{ByRule, RuleHands};
use super::proposals::Proposals;
use super::records::Records;
use super::rollouts::Rollouts;
use super::watch::Watch;
use crate::cli::supervisor::Start;
use crate::exit::{self, Failure};
use crate::print::{self, Line};

/// How often the daemon looks for signals.
const LOOK: Duration = Duration::from_millis(100);
/// How often the monitor hears how the daemon does.
const STATUS_EVERY: Duration = Duration::from_secs(1);
/// How long a daemon in the background may take until it answers.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a daemon is started with.
pub(super) struct Plan {
    pub(super) state: StateDir,
    pub(super) settings: DaemonSettings,
    pub(super) agents: Vec<AgentSpec>,
    /// Where the dashboard is, unless it is not wanted.
    pub(super) web: Option<Settings>,
    /// What is kept, and what is worth an alert.
    pub(super) monitor: belljar_monitor::Settings,
}

pub(super) fn start(arguments: Start) -> Result<u8, Failure> {
    if arguments.detach {
        return detach(&arguments);
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

/// Serves until somebody asks for the end.
fn serve(plan: Plan, signals: &SignalWatch) -> Result<u8, Failure> {
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
    for spec in plan.agents {
        let name = spec.name.clone();
        if let Err(problem) = daemon.start_declared(spec) {
            let what = format!("agent {name}: {}: {}", problem.code, problem.message);
            print::line(Line::Error, &what);
            if let Some(hint) = &problem.hint {
                print::line(Line::Hint, hint);
            }
        }
    }
    // After those that are declared were started, each from the release it is to run.
    let rollouts = Rollouts::start(plan.state.path().to_owned(), Arc::clone(&monitor));
    let rollouts = rollouts.map_err(|source| RunError::System {
        doing: "starting to look at rollouts",
        source,
    })?;
    let ready = format!("supervisor ready at {}", daemon.control_socket().display());
    print::line(Line::Summary, &ready);
    if let Some(web) = &web {
        print::line(Line::Summary, &format!("dashboard at {}", web.url()));
        print::line(
            Line::Hint,
            "log in with a token: belljar token create --role operator",
        );
    }
    let mut status_at = Instant::now();
    let grace = loop {
        if status_at <= Instant::now() {
            status_at = Instant::now() + STATUS_EVERY;
            if let Some(status) = daemon.status() {
                monitor.status(&status);
            }
            monitor.holds(&daemon.holds());
        }
        if let Some(grace) = daemon.asked_to_end(LOOK) {
            break Some(grace);
        }
        if let Some(signal) = signals.next()
            && signal != CONTINUED
        {
            break None;
        }
    };
    // Nobody looks at agents that are about to be ended.
    drop(rollouts);
    let left = daemon.shut_down(grace);
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

fn plan(arguments: &Start) -> Result<Plan, Failure> {
    let file = match &arguments.config {
        Some(path) => belljar_manifest::read_supervisor_file(path)?,
        None => SupervisorFile::default(),
    };
    let base = arguments.config.as_deref().and_then(Path::parent);
    let base = match base {
        Some(directory) if !directory.as_os_str().is_empty() => directory.to_owned(),
        _ => PathBuf::from("."),
    };
    let monitor = match &arguments.config {
        Some(path) => {
            let bytes = belljar_manifest::read_bounded(path, &path.display().to_string())?;
            belljar_monitor::Settings::read(&String::from_utf8_lossy(&bytes))
                .map_err(|error| wrong_settings(path, &error))?
        }
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
    let enabled = file.agents.iter().filter(|agent| agent.enabled);
    let config = arguments.config.as_deref();
    let agents = enabled
        .map(|agent| spec(agent, &base, config, Some(state.path())))
        .collect::<Result<_, _>>()?;
    Ok(Plan {
        state,
        settings,
        agents,
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

/// Starts the daemon in the background, and waits until it answers.
fn detach(arguments: &Start) -> Result<u8, Failure> {
    let plan = plan(arguments)?;
    let system = |doing| move |source| Failure::Run(RunError::System { doing, source });
    let directory = plan.state.path().join("fleet");
    std::fs::create_dir_all(&directory).map_err(system("making the state directory"))?;
    let log = directory.join("daemon.log");
    let file = std::fs::File::options()
        .create(true)
        .append(true)
        .open(&log)
        .map_err(system("opening the supervisor's log"))?;
    let errors = file
        .try_clone()
        .map_err(system("opening the supervisor's log"))?;
    let mut command = std::process::Command::new(&plan.settings.program);
    command.args(["supervisor", "start", "--detached"]);
    if let Some(config) = &arguments.config {
        command.arg("--config").arg(config);
    }
    if arguments.no_web {
        command.arg("--no-web");
    }
    if let Some(port) = arguments.web_port {
        command.arg("--web-port").arg(port.to_string());
    }
    command
        .stdin(Stdio::null())
        .stdout(file)
        .stderr(errors)
        .process_group(0);
    let mut child = command.spawn().map_err(system("starting the supervisor"))?;
    let until = std::time::Instant::now() + PATIENCE;
    while std::time::Instant::now() < until {
        let ended = child
            .try_wait()
            .map_err(system("starting the supervisor"))?;
        if let Some(status) = ended {
            return Err(Failure::Invalid(
                format!("the supervisor did not start ({status})"),
                format!("{} says why", log.display()),
            ));
        }
        if Operator::reach(&plan.state).is_ok() {
            let ready = format!("supervisor ready, process {}", child.id());
            print::line(Line::Summary, &ready);
            return Ok(exit::OK);
        }
        std::thread::sleep(LOOK);
    }
    Err(Failure::Invalid(
        "the supervisor does not answer".into(),
        format!("{} may say why", log.display()),
    ))
}
