//! Agents that a supervisor keeps and somebody stays with: `belljar sandbox`, `belljar run --supervisor`.

use std::io::Write as _;
use std::path::Path;

use belljar_api::{
    AgentView, CallError, Command, Empty, End, EndCause, Name, OutputStream, ReadAgent, StartAgent,
    StartRequest, StopAgent, StopRequest,
};
use belljar_sandbox::signals::{CONTINUED, SignalWatch};
use belljar_supervisor::RunError;
use belljar_supervisor::daemon::AgentSpec;
use belljar_supervisor::tools::ServerFiles;

use super::PAUSE;
use super::reach::Reached;
use super::start::spec;
use crate::cli::supervisor::Sandbox;
use crate::cli::{OutputFormat, Run};
use crate::commands::agent::said;
use crate::exit::{self, Failure};
use crate::print;

/// `belljar sandbox`: starts an agent under the supervisor.
pub(crate) fn sandbox(arguments: Sandbox) -> Result<u8, Failure> {
    let signals = watch_signals()?;
    let mut spec = match &arguments.config {
        Some(file) => {
            let agent = belljar_manifest::read_agent_file(file)?;
            let base = file.parent().unwrap_or(Path::new("."));
            spec(&agent, base, None, None)?
        }
        None => AgentSpec::named(&default_name(&arguments.command)),
    };
    if let Some(file) = &arguments.sandbox_config {
        let (text, servers) = capability_text(file)?;
        spec.capability = Some(text);
        spec.servers = servers;
        spec.profile = None;
    }
    if let Some(name) = arguments.name {
        spec.name = name;
    }
    if let Some(restart) = arguments.restart {
        spec.restart = restart;
    }
    if !arguments.command.is_empty() {
        spec.command = arguments.command;
    }
    let mut reached = Reached::at(arguments.supervisor.as_deref())?;
    let view = begin(&mut reached, spec)?;
    if arguments.attach {
        return stay(&mut reached, &view, &signals);
    }
    match arguments.output {
        OutputFormat::Json => print::json(&view),
        OutputFormat::Text => {
            let line = format!("{} {}\n", view.id, view.name);
            print::out(&line);
        }
    }
    Ok(exit::OK)
}

/// `belljar run --supervisor`: the same as a run, but that a supervisor keeps the box.
pub(crate) fn run_supervised(arguments: Run, url: &str) -> Result<u8, Failure> {
    let signals = watch_signals()?;
    let words = arguments.command.iter();
    let words: Vec<String> = words
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let given = arguments.policy.config.as_deref().map(capability_text);
    let (capability, servers) = given.transpose()?.unzip();
    let name = format!("{}-{}", default_name(&words), std::process::id());
    let spec = AgentSpec {
        command: words,
        capability,
        profile: arguments.policy.profile,
        servers: servers.unwrap_or_default(),
        ..AgentSpec::named(&name)
    };
    let mut reached = Reached::at(Some(url))?;
    let view = begin(&mut reached, spec)?;
    stay(&mut reached, &view, &signals)
}

fn watch_signals() -> Result<SignalWatch, Failure> {
    SignalWatch::new().map_err(|errno| {
        Failure::Run(RunError::System {
            doing: "watching signals",
            source: errno.into(),
        })
    })
}

/// What a program is called.
fn default_name(words: &[String]) -> String {
    let program = words.first().map(Path::new).and_then(Path::file_name);
    let name = program.map(|name| name.to_string_lossy().into_owned());
    name.unwrap_or_else(|| "agent".to_owned())
}

/// The text of a capability file, and those of its servers. What is wrong with them is told here, with its place.
pub(super) fn capability_text(file: &Path) -> Result<(String, ServerFiles), Failure> {
    let capability = belljar_manifest::read_capability_file(file)?;
    let servers = ServerFiles::read(&capability, Some(file))?;
    let bytes = belljar_manifest::read_bounded(file, &file.display().to_string())?;
    Ok((String::from_utf8_lossy(&bytes).into_owned(), servers))
}

fn begin(reached: &mut Reached, spec: AgentSpec) -> Result<AgentView, Failure> {
    let invalid = |what: String| {
        Failure::Invalid(
            what,
            "belljar sandbox [--name NAME] -- PROGRAM [ARGS…]".into(),
        )
    };
    let work = spec.workdir.map_or_else(std::env::current_dir, Ok);
    let work = work.map_err(|error| invalid(format!("working directory: {error}")))?;
    let name =
        |text: String| Name::new(text).map_err(|error| invalid(format!("its name: {error}")));
    let request = StartRequest {
        name: name(spec.name)?,
        command: Command::new(spec.command).map_err(|error| invalid(error.to_string()))?,
        workdir: Some(work.to_string_lossy().into_owned()),
        capability: spec.capability,
        server_capabilities: spec.servers.texts,
        profile: spec.profile.map(name).transpose()?,
        restart: spec.restart,
        restart_on_oom: spec.restart_on_oom,
    };
    Ok(reached.client.call::<StartAgent>(&request)?)
}

/// Shows what an agent writes until it ends, and ends as it did. A signal asks it to end.
fn stay(reached: &mut Reached, agent: &AgentView, signals: &SignalWatch) -> Result<u8, Failure> {
    let mut streams = [
        (OutputStream::Stdout, 0, false),
        (OutputStream::Stderr, 0, false),
    ];
    loop {
        if let Some(signal) = signals.next()
            && signal != CONTINUED
        {
            let request = StopRequest {
                reason: said("interrupted".into())?,
                grace_ms: None,
            };
            match reached.client.call_on::<StopAgent>(&agent.id, &request) {
                // It was quicker.
                Ok(_) | Err(CallError::Refused { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let mut is_news = false;
        for (stream, from, is_over) in &mut streams {
            let part = reached.output(&agent.id, *stream, *from)?;
            is_news |= part.next > *from;
            *from = part.next;
            *is_over = part.is_end;
            let written = match stream {
                OutputStream::Stdout => std::io::stdout().write_all(part.text.as_bytes()),
                OutputStream::Stderr => std::io::stderr().write_all(part.text.as_bytes()),
            };
            // Nobody reads it: the agent goes on all the same.
            let _ = written;
        }
        let _ = std::io::stdout().flush();
        if streams.iter().all(|(_, _, is_over)| *is_over) {
            break;
        }
        if !is_news {
            std::thread::sleep(PAUSE);
        }
    }
    let detail = reached.client.call_on::<ReadAgent>(&agent.id, &Empty {})?;
    Ok(detail.agent.end.as_ref().map_or(exit::INTERNAL, code_of))
}

fn code_of(end: &End) -> u8 {
    let detail = end.detail.as_ref().map(|detail| detail.as_str());
    match (end.cause, end.exit_code, end.signal) {
        (EndCause::Limit, ..) if detail == Some("timeout") => exit::TIMEOUT,
        (EndCause::OutOfMemory | EndCause::Limit, ..) => exit::LIMIT,
        (_, Some(code), _) => u8::try_from(code).unwrap_or(exit::INTERNAL),
        (_, None, Some(signal)) => {
            u8::try_from(exit::SIGNAL_BASE + signal).unwrap_or(exit::INTERNAL)
        }
        (_, None, None) => exit::INTERNAL,
    }
}
