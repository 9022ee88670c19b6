//! `belljar mcp wrap`: this process is the server's keeper, and a thread of it stands between server and client.

use crate::cli::mcp::Wrap;
use crate::commands::run::{code_of, protect};
use crate::exit::Failure;
use crate::print::{self, Line};
use belljar_mcp::gateway::{Limits, Session};
use belljar_mcp::judge::Judge;
use belljar_mcp::stdio::{Pipes, relay};
use belljar_mcp::{PolicyJudge, ServerFacts};
use belljar_sandbox::signals::SignalWatch;
use belljar_supervisor::{
    Command, Facts, KillCode, Output, Recording, RunError, SandboxId, Signals, StateDir,
};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// How long a server that has said its last word may take to end.
const FAREWELL: Duration = Duration::from_secs(2);

pub(crate) fn wrap(arguments: Wrap) -> Result<u8, Failure> {
    // Before any thread is there that would take them; the keeper hears them.
    let _signals = SignalWatch::new().map_err(|errno| system("watching signals", errno.into()))?;
    let mut capability = crate::commands::capability(&arguments.policy)?;
    if let Some(file) = &arguments.policy.config {
        protect(&mut capability, file);
    }
    let limits = Limits {
        patience: arguments.deadline,
        ..Limits::default()
    };
    let (server_stdin, server_in) = pipe()?;
    let (server_out, server_stdout) = pipe()?;
    let pipes = Pipes {
        client_in: copy(io::stdin())?,
        client_out: copy(io::stdout())?,
        server_in,
        server_out,
    };
    let state = StateDir::find()?;
    let id = SandboxId::random()?;
    let here = std::env::current_dir().map_err(|source| system("finding the directory", source))?;
    let server = ServerFacts::local(&arguments.name, &super::words(&arguments.command), &here);
    let recorder = belljar_supervisor::tools::recorder(&state, &id.to_string());
    let rules = Arc::new(capability.tools.clone());
    let judge = PolicyJudge::new(rules, vec![server], state.path(), recorder)
        .map_err(|source| system("opening the state directory", source))?;
    let judge: Arc<dyn Judge> = Arc::new(judge.of_run(&id.to_string()));
    let session = Session::new(&arguments.name, judge, limits);
    let recording = Recording {
        keys: belljar_supervisor::key_source(),
        ..Recording::default()
    };
    let output = Output::Piped {
        stdin: server_stdin,
        stdout: server_stdout,
        signals: Signals::PassedOn,
    };
    let (over, is_over) = channel();
    let mut between = Some((session, pipes, is_over));
    let mut relaying = None;
    let mut started = |facts: &Facts<'_>| {
        if let Some(between) = between.take() {
            relaying = Some(stand_between(between, facts));
        }
    };
    let result = belljar_supervisor::run_told(
        &id,
        &capability,
        &Command::new(arguments.command),
        output,
        &state,
        &recording,
        &mut started,
    )?;
    drop(over);
    match relaying {
        Some(Ok(thread)) => {
            let _ = thread.join();
        }
        Some(Err(source)) => return Err(system("starting a thread", source)),
        None => {}
    }
    // Standard output is the protocol's; and a server that ended by itself needs no words.
    if let Some(by) = result.killed_by {
        let what = format!("the server {} was ended: {}", arguments.name, by.as_str());
        print::line(Line::Killed, &what);
    }
    for violation in &result.violations {
        let what = format!("{} {}: {}", violation.kind, violation.name, violation.why);
        print::line(Line::Denied, &what);
    }
    Ok(code_of(&result))
}

fn stand_between(
    (session, pipes, is_over): (Session, Pipes, Receiver<()>),
    facts: &Facts<'_>,
) -> io::Result<JoinHandle<()>> {
    let reins = facts.reins.clone();
    let end = move || reins.kill(KillCode::OPERATOR);
    let end_on_failure = end.clone();
    let thread = Builder::new().name("between".into()).spawn(move || {
        let _ = relay(session, pipes);
        // Its exit code counts, if it ends by itself.
        if is_over.recv_timeout(FAREWELL) == Err(RecvTimeoutError::Timeout) {
            end();
        }
    });
    if thread.is_err() {
        // Nobody would answer anybody.
        end_on_failure();
    }
    thread
}

fn pipe() -> Result<(OwnedFd, OwnedFd), Failure> {
    let pipe = io::pipe().map_err(|source| system("opening pipes", source))?;
    Ok((pipe.0.into(), pipe.1.into()))
}

fn copy(stream: impl AsFd) -> Result<OwnedFd, Failure> {
    stream
        .as_fd()
        .try_clone_to_owned()
        .map_err(|source| system("copying a descriptor", source))
}

pub(super) fn system(doing: &'static str, source: io::Error) -> Failure {
    Failure::Run(RunError::System { doing, source })
}
