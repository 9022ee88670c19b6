//! Starting a server in its box, only to ask for its tools.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::channel;
use std::time::Duration;

use belljar_mcp::ServerFacts;
use belljar_mcp::client::{ClientError, list_tools};
use belljar_policy::Capability;
use belljar_supervisor::{
    Command, Facts, KillCode, Output, Recording, RunError, SandboxId, Signals, StateDir,
};
use serde_json::Value;

use crate::cli::tools::AskServer;
use crate::commands::run::protect;
use crate::exit::Failure;

/// How long a server may take to start and say what it has.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a server said of itself.
pub(super) struct Told {
    pub(super) capability: Capability,
    pub(super) facts: ServerFacts,
    pub(super) tools: Vec<Value>,
    pub(super) state: StateDir,
}

/// Starts the server in a box, asks, and ends it.
pub(super) fn ask(arguments: &AskServer) -> Result<Told, Failure> {
    let mut capability = crate::commands::capability(&arguments.policy)?;
    if let Some(file) = &arguments.policy.config {
        protect(&mut capability, file);
    }
    let here = std::env::current_dir().map_err(|source| system("finding the directory", source))?;
    let facts = ServerFacts::local(&arguments.name, &super::words(&arguments.command), &here);
    let state = StateDir::find()?;
    let (server_stdin, to_server) = pipe()?;
    let (from_server, server_stdout) = pipe()?;
    let output = Output::Piped {
        stdin: server_stdin,
        stdout: server_stdout,
        signals: Signals::PassedOn,
    };
    let recording = Recording {
        keys: belljar_supervisor::key_source(),
        ..Recording::default()
    };
    let (say, told) = channel();
    let mut ends = Some((from_server, to_server, say));
    // Only now: a thread that was there before the keeper took its signals would take them instead.
    let mut started = |facts: &Facts<'_>| {
        if let Some((from, to, say)) = ends.take() {
            let reins = facts.reins.clone();
            let asking = std::thread::Builder::new().name("asking".into());
            let spawned = asking.spawn(move || {
                let (from, to) = (std::fs::File::from(from), std::fs::File::from(to));
                let _ = say.send(list_tools(from, to));
                reins.kill(KillCode::OPERATOR);
            });
            if spawned.is_err() {
                facts.reins.kill(KillCode::OPERATOR);
            }
        }
    };
    let command = Command::new(arguments.command.clone()).timeout(PATIENCE);
    belljar_supervisor::run_told(
        &SandboxId::random()?,
        &capability,
        &command,
        output,
        &state,
        &recording,
        &mut started,
    )?;
    drop(ends);
    let tools = told.recv().unwrap_or(Err(ClientError::Ended));
    let tools = tools.map_err(|error| {
        Failure::Invalid(
            format!(
                "the server {} did not say what it has: {error}",
                arguments.name
            ),
            "run it by itself to see why; it gets the box that --config says".into(),
        )
    })?;
    Ok(Told {
        capability,
        facts,
        tools,
        state,
    })
}

fn pipe() -> Result<(OwnedFd, OwnedFd), Failure> {
    let pipe = io::pipe().map_err(|source| system("opening pipes", source))?;
    Ok((pipe.0.into(), pipe.1.into()))
}

fn system(doing: &'static str, source: io::Error) -> Failure {
    Failure::Run(RunError::System { doing, source })
}
