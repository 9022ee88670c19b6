//! `belljar agent …`: what an agent in a box asks of its keeper, from a shell.

use std::io::Read as _;
use std::path::Path;

use belljar_api::{
    Budget, CallError, Client, Command, Empty, Heartbeat, Manifest, Narrowing, Proposals, Propose,
    ProposeRequest, Reason, Replicas, Replicate, ReplicateRequest, ReportUsage, Shutdown,
    ShutdownRequest, StateText, Usage, UsageReport,
};
use serde_json::json;

use crate::cli::OutputFormat;
use crate::cli::replication::Agent;
use crate::exit::{self, Failure};
use crate::print;

/// Where the door is when nothing says otherwise.
const DOOR: &str = "/belljar/agent.sock";

pub(crate) fn agent(command: Agent) -> Result<u8, Failure> {
    let format = match &command {
        Agent::Replicate { format, .. }
        | Agent::Usage { format, .. }
        | Agent::Propose { format, .. }
        | Agent::Heartbeat(format)
        | Agent::Manifest(format)
        | Agent::Replicas(format)
        | Agent::Proposals(format) => format.output,
        Agent::Shutdown { .. } | Agent::Subject { .. } => OutputFormat::Text,
    };
    match ask(command, format) {
        Err(failure) if format == OutputFormat::Json => {
            print::json(&json!({"error": failure.as_json()}));
            Ok(failure.code())
        }
        other => other,
    }
}

fn ask(command: Agent, format: OutputFormat) -> Result<u8, Failure> {
    let door = std::env::var_os(belljar_supervisor::AGENT_SOCKET).unwrap_or_else(|| DOOR.into());
    if let Agent::Subject { mark } = &command {
        return super::subject::subject(&door, mark);
    }
    let mut client = Client::connect(door).map_err(|error| match error {
        CallError::NotThere { path, .. } => Failure::Invalid(
            format!("there is no door at {}", path.display()),
            "`belljar agent` works in a box of `belljar run --contract`".into(),
        ),
        other => other.into(),
    })?;
    match command {
        Agent::Replicate {
            reason,
            state,
            replicas,
            tier,
            cpu_seconds,
            memory_mb,
            processes,
            tokens,
            cost_usd,
            command,
            ..
        } => {
            let request = ReplicateRequest {
                reason: said(reason)?,
                command: words(command)?,
                state: state.as_deref().map(read_state).transpose()?,
                capability: tier.map(|tier| Narrowing {
                    sandbox_tier: Some(tier),
                    ..Narrowing::default()
                }),
                budget: Some(Budget {
                    replicas,
                    cpu_ms: cpu_seconds.map(|seconds| (seconds * 1000.0) as u64),
                    memory_mb,
                    pids: processes,
                    tokens,
                    // Rounded down: what is asked for must not grow by rounding.
                    micro_usd: cost_usd.map(|usd| (usd * 1e6) as u64),
                }),
            };
            let granted = client.call::<Replicate>(&request)?;
            show(format, &granted, || format!("{}\n", granted.worker_id));
        }
        Agent::Heartbeat(_) => {
            let heard = client.call::<Heartbeat>(&Empty {})?;
            show(format, &heard, || match heard.next_within_ms {
                Some(ms) => format!("heard; again within {:.1} s\n", ms as f64 / 1000.0),
                None => "heard\n".into(),
            });
        }
        Agent::Manifest(_) => {
            let manifest = client.call::<Manifest>(&Empty {})?;
            show(format, &manifest, || {
                serde_json::to_string_pretty(&manifest.payload).unwrap_or_default() + "\n"
            });
        }
        Agent::Usage {
            tokens_in,
            tokens_out,
            cost_usd,
            ..
        } => {
            let report = UsageReport {
                tokens_in,
                tokens_out,
                micro_usd: cost_usd.map(|usd| (usd * 1e6).ceil() as u64),
                ..UsageReport::default()
            };
            if report != UsageReport::default() {
                client.call::<ReportUsage>(&report)?;
            }
            let usage = client.call::<Usage>(&Empty {})?;
            show(format, &usage, || {
                super::replication::budget_table(&usage.budget)
            });
        }
        Agent::Replicas(_) => {
            let list = client.call::<Replicas>(&Empty {})?;
            show(format, &list, || {
                let line = |child: &belljar_api::Child| {
                    format!(
                        "{}  {}\n",
                        child.id,
                        super::replication::state_word(child.state)
                    )
                };
                list.replicas.iter().map(line).collect()
            });
        }
        Agent::Propose { request, .. } => {
            let request = ProposeRequest {
                request: read_state(&request)?,
            };
            let kept = client.call::<Propose>(&request)?;
            show(format, &kept, || format!("{}\n", kept.name));
        }
        Agent::Proposals(_) => {
            let list = client.call::<Proposals>(&Empty {})?;
            show(format, &list, || {
                let word = |proposal: &belljar_api::ProposalView| {
                    let status = proposal
                        .answer
                        .as_ref()
                        .and_then(|answer| answer.get("status")?.as_str().map(str::to_owned));
                    format!(
                        "{}  {}\n",
                        proposal.name,
                        status.unwrap_or_else(|| "kept".into())
                    )
                };
                list.proposals.iter().map(word).collect()
            });
        }
        Agent::Shutdown { reason } => {
            client.call::<Shutdown>(&ShutdownRequest {
                reason: said(reason)?,
            })?;
        }
        // Answered above: it opens the door itself, as often as it asks.
        Agent::Subject { .. } => {}
    }
    Ok(exit::OK)
}

fn show(format: OutputFormat, value: &impl serde::Serialize, text: impl FnOnce() -> String) {
    match format {
        OutputFormat::Json => print::json(value),
        OutputFormat::Text => print::out(&text()),
    }
}

/// A reason as the protocol takes it.
pub(crate) fn said(reason: String) -> Result<Reason, Failure> {
    Reason::new(reason).map_err(|error| {
        Failure::Invalid(
            format!("the reason can't be sent: {error}"),
            "one line of text, not too long".into(),
        )
    })
}

fn words(command: Vec<String>) -> Result<Option<Command>, Failure> {
    if command.is_empty() {
        return Ok(None);
    }
    let command = Command::new(command);
    command.map(Some).map_err(|error| {
        Failure::Invalid(
            error.to_string(),
            "put the program and its arguments after --".into(),
        )
    })
}

/// The state for a replica: a file, or standard input.
fn read_state(file: &Path) -> Result<StateText, Failure> {
    let invalid = |what: String| Failure::Invalid(what, "a state is text of at most 1 MiB".into());
    let mut text = String::new();
    let most = StateText::MOST as u64 + 1;
    let read = match file == Path::new("-") {
        true => std::io::stdin().take(most).read_to_string(&mut text),
        false => {
            std::fs::File::open(file).and_then(|file| file.take(most).read_to_string(&mut text))
        }
    };
    read.map_err(|error| invalid(format!("{}: {error}", file.display())))?;
    StateText::new(text).map_err(|error| invalid(format!("{}: {error}", file.display())))
}
