//! `belljar supervisor …`: the daemon, and the operator's hand on it.

mod attached;
mod board;
mod declared;
mod detach;
mod hands;
mod logs;
mod proposals;
mod reach;
mod records;
mod rollouts;
mod start;
mod status;
mod tokens;
mod validate;
mod watch;

use belljar_api::{
    Because, Kill, KillRequest, OutputStream, Quarantine, Release, ReloadRequest, RestartAgent,
    RestartRequest, ShutDown, StopAgent, StopRequest,
};
use std::time::{Duration, Instant};

use super::agent::said;
use crate::cli::OutputFormat;
use crate::cli::replication::KillSwitch;
use crate::cli::supervisor::{DeclaredAgents, OnAgent, Supervisor};
use crate::exit::{self, Failure};
use crate::print;

pub(crate) use attached::{run_supervised, sandbox};
pub(crate) use reach::{Reached, is_named};
pub(crate) use validate::{is_supervisor_file, validate};

/// How often a follower asks for more.
pub(super) const PAUSE: Duration = Duration::from_millis(100);
/// How long a supervisor that was asked to end may take beyond its agents' grace.
const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) fn supervisor(command: Supervisor) -> Result<u8, Failure> {
    match command {
        Supervisor::Start(arguments) => return start::start(arguments),
        Supervisor::Status { all, format } => return status::status(all, format.output),
        Supervisor::Agent(DeclaredAgents::Start {
            names,
            reason,
            format,
            ..
        }) => return declared::start(names, reason, format.output),
        Supervisor::Reload {
            dry_run,
            no_restart,
            reason,
            format,
        } => {
            let request = ReloadRequest {
                reason: said(reason)?,
                dry_run,
                no_restart,
            };
            return declared::ask_reload(&request, format.output);
        }
        Supervisor::Validate { file, format } => return validate::validate(&file, format.output),
        Supervisor::Stop { on, grace, wait } => {
            let mut reached = Reached::usual()?;
            let agent = reached.find(&on.agent)?;
            let request = StopRequest {
                reason: said(on.reason.clone())?,
                grace_ms: grace.map(milliseconds),
            };
            let mut view = reached.client.call_on::<StopAgent>(&agent.id, &request)?;
            if wait {
                view = logs::wait_for_end(&mut reached, view, grace)?;
                show(&on, &view, || format!("{} has ended\n", view.name));
                return Ok(exit::OK);
            }
            show(&on, &view, || format!("{} is asked to end\n", view.name));
        }
        Supervisor::Restart { on, grace } => {
            let mut reached = Reached::usual()?;
            let agent = reached.find(&on.agent)?;
            let request = RestartRequest {
                reason: said(on.reason.clone())?,
                workdir: None,
                grace_ms: grace.map(milliseconds),
            };
            let restarted = reached.client.call_on::<RestartAgent>(&agent.id, &request);
            let view = restarted?;
            show(&on, &view, || {
                format!("{} is started anew as {}\n", view.name, view.id)
            });
        }
        Supervisor::Kill { on, subtree } => {
            let mut reached = Reached::usual()?;
            let agent = reached.find(&on.agent)?;
            let request = KillRequest {
                reason: said(on.reason.clone())?,
                subtree,
            };
            let report = reached
                .client
                .call_on::<Kill>(&agent.id.worker(), &request)?;
            return Ok(super::replication::tell(on.format.output, &report));
        }
        Supervisor::Quarantine(on) => {
            let mut reached = Reached::usual()?;
            let agent = reached.find(&on.agent)?;
            let because = because(&on)?;
            let view = reached
                .client
                .call_on::<Quarantine>(&agent.id.worker(), &because.into())?;
            show(&on, &view, || {
                super::replication::held(agent.name.as_str(), view.state) + "\n"
            });
        }
        Supervisor::Release(on) => {
            let mut reached = Reached::usual()?;
            let agent = reached.find(&on.agent)?;
            let because = because(&on)?;
            let view = reached
                .client
                .call_on::<Release>(&agent.id.worker(), &because.into())?;
            show(&on, &view, || format!("{} goes on\n", agent.name));
        }
        Supervisor::Logs {
            agent,
            follow,
            stderr,
            both,
            tail,
        } => {
            let streams: &[OutputStream] = match (both, stderr) {
                (true, _) => &[OutputStream::Stdout, OutputStream::Stderr],
                (false, true) => &[OutputStream::Stderr],
                (false, false) => &[OutputStream::Stdout],
            };
            return logs::logs(&agent, streams, follow, tail);
        }
        Supervisor::KillAll { reason, format } => {
            return super::replication::kill_switch(KillSwitch::Engage { reason, format });
        }
        Supervisor::Shutdown { reason, grace } => return shut_down(reason, grace),
    }
    Ok(exit::OK)
}

fn because(on: &OnAgent) -> Result<Because, Failure> {
    Ok(Because {
        reason: said(on.reason.clone())?,
    })
}

fn show(on: &OnAgent, value: &impl serde::Serialize, text: impl FnOnce() -> String) {
    match on.format.output {
        OutputFormat::Json => print::json(value),
        OutputFormat::Text => print::out(&text()),
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Asks the supervisor to end, and waits until it has.
fn shut_down(reason: String, grace: Option<Duration>) -> Result<u8, Failure> {
    let mut reached = Reached::usual()?;
    let request = StopRequest {
        reason: said(reason)?,
        grace_ms: grace.map(milliseconds),
    };
    reached.client.call::<ShutDown>(&request)?;
    let until = Instant::now() + PATIENCE.saturating_add(grace.unwrap_or_default());
    while Reached::usual().is_ok() {
        if Instant::now() > until {
            return Err(Failure::Invalid(
                "the supervisor has not ended yet".into(),
                "`belljar supervisor status` shows what is left".into(),
            ));
        }
        std::thread::sleep(PAUSE);
    }
    Ok(exit::OK)
}
