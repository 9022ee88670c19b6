//! `belljar supervisor start --detach`: the daemon goes to the background, and what is said of it is what it said itself.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use belljar_supervisor::RunError;
use belljar_supervisor::daemon::{Place, await_predecessor, place_of};

use super::start::{Plan, plan};
use crate::cli::supervisor::Start;
use crate::exit::{self, Failure};
use crate::print::{self, Line};

/// How often it is looked how far the daemon is.
const LOOK: Duration = Duration::from_millis(50);
/// How long it may take until it answers.
const PATIENCE: Duration = Duration::from_secs(60);
/// The end of the daemon's log that is looked through for what it said last.
const TAIL: u64 = 16 << 10;

/// Starts the daemon in the background, and waits until that very process is the one that answers.
pub(super) fn detach(arguments: &Start) -> Result<u8, Failure> {
    let plan = plan(arguments)?;
    await_predecessor(&plan.state)?;
    let directory = plan.state.path().join("fleet");
    std::fs::create_dir_all(&directory).map_err(system("making the state directory"))?;
    let log = directory.join("daemon.log");
    let opened = File::options().create(true).append(true).open(&log);
    let file = opened.map_err(system("opening the supervisor's log"))?;
    let length = file.metadata().map_err(system("looking at its log"))?.len();
    let mut child = spawn(arguments, &plan, file)?;
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        let ended = child
            .try_wait()
            .map_err(system("waiting for the supervisor"))?;
        if let Some(status) = ended {
            return Err(not_started(&format!("it ended: {status}"), &log, length));
        }
        // Its own word, in the place that one daemon at a time has: another's answer is none.
        if place_of(&plan.state) == Place::Ready(child.id()) {
            let ready = format!(
                "supervisor ready, process {}; its log is {}",
                child.id(),
                log.display()
            );
            print::line(Line::Summary, &ready);
            return Ok(exit::OK);
        }
        std::thread::sleep(LOOK);
    }
    Err(not_started("it does not answer", &log, length))
}

fn spawn(arguments: &Start, plan: &Plan, log: File) -> Result<Child, Failure> {
    let errors = log
        .try_clone()
        .map_err(system("opening the supervisor's log"))?;
    let mut command = Command::new(&plan.settings.program);
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
        .stdout(log)
        .stderr(errors)
        .process_group(0);
    command.spawn().map_err(system("starting the supervisor"))
}

/// What it said last is why.
fn not_started(how: &str, log: &Path, since: u64) -> Failure {
    let said = last_error(log, since).map_or_else(String::new, |line| format!(": {line}"));
    Failure::Invalid(
        format!("the supervisor did not start ({how}){said}"),
        format!("{} has all it said", log.display()),
    )
}

/// The last line after `since` that tells of an error, or else the last one there is.
fn last_error(log: &Path, since: u64) -> Option<String> {
    let mut file = File::open(log).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(since.max(length.saturating_sub(TAIL))))
        .ok()?;
    let mut bytes = Vec::new();
    file.take(TAIL).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let error = lines.clone().rfind(|line| line.contains("error"));
    let line = error.or_else(|| lines.next_back())?;
    Some(print::harmless(line).to_string())
}

fn system(doing: &'static str) -> impl Fn(std::io::Error) -> Failure {
    move |source| Failure::Run(RunError::System { doing, source })
}
