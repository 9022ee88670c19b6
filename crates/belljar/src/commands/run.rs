//! `belljar run`: this process becomes the keeper.

use crate::cli::{OutputFormat, Run, WorkspaceMode};
use crate::exit::{self, Failure};
use crate::print::{self, Line};
use belljar_policy::{Origin, PathRule, Rule, Workspace};
use belljar_supervisor::{Command, KilledBy, Output, RunResult, SandboxId, StateDir};
use serde_json::json;

pub(crate) fn run(arguments: Run) -> Result<u8, Failure> {
    let format = arguments.output;
    let quiet = arguments.quiet;
    match attempt(arguments) {
        Ok(result) => {
            match format {
                OutputFormat::Json => print::json(&result),
                OutputFormat::Text if quiet && result.killed_by.is_none() => {}
                OutputFormat::Text => summarise(&result),
            }
            Ok(code_of(&result))
        }
        Err(failure) if format == OutputFormat::Json => {
            print::json(&json!({
                "exit_code": null,
                "error": {"code": failure.word(), "message": failure.message(), "hint": failure.hint()},
            }));
            Ok(failure.code())
        }
        Err(failure) => Err(failure),
    }
}

fn attempt(arguments: Run) -> Result<RunResult, Failure> {
    let mut capability = super::capability(&arguments.policy)?;
    if let Some(mode) = arguments.workspace {
        capability.filesystem.workspace = match mode {
            WorkspaceMode::Direct => Workspace::Direct,
            WorkspaceMode::Overlay => Workspace::Overlay,
        };
    }
    if let Some(file) = arguments
        .policy
        .config
        .as_ref()
        .and_then(|file| file.canonicalize().ok())
    {
        // An agent that can write its own policy has none on the next run.
        capability
            .filesystem
            .protected
            .push(Rule::new(PathRule::Root(file), Origin::built_in()));
    }
    let mut command = Command::new(arguments.command);
    if let Some(timeout) = arguments.timeout {
        command = command.timeout(timeout);
    }
    let output = match arguments.output {
        OutputFormat::Text => Output::Inherit,
        OutputFormat::Json => Output::CaptureForeground,
    };
    let state = StateDir::find()?;
    let id = SandboxId::random()?;
    Ok(belljar_supervisor::run(
        &id,
        &capability,
        &command,
        output,
        &state,
    )?)
}

fn code_of(result: &RunResult) -> u8 {
    match (result.killed_by, result.exit_code, result.signal) {
        (Some(KilledBy::Timeout), ..) => exit::TIMEOUT,
        (Some(KilledBy::Memory | KilledBy::Cpu), ..) => exit::LIMIT,
        (_, Some(code), _) => u8::try_from(code).unwrap_or(exit::INTERNAL),
        (_, None, Some(signal)) => {
            u8::try_from(exit::SIGNAL_BASE + signal).unwrap_or(exit::INTERNAL)
        }
        (_, None, None) => exit::INTERNAL,
    }
}

/// What happened, for people, on standard error.
fn summarise(result: &RunResult) {
    for note in &result.notes {
        print::line(Line::Note, note);
    }
    for violation in &result.violations {
        let times = if violation.count > 1 {
            format!(" ({} times)", violation.count)
        } else {
            String::new()
        };
        print::line(
            Line::Denied,
            &format!(
                "{} {}{times}: {}",
                violation.kind, violation.name, violation.why
            ),
        );
        if let Some(hint) = &violation.hint {
            print::line(Line::Hint, hint);
        }
    }
    let usage = &result.resource_usage;
    if let Some(by) = result.killed_by {
        let (what, hint) = explain(by, result);
        print::line(Line::Killed, &what);
        if let Some(hint) = hint {
            print::line(Line::Hint, hint);
        }
    }
    let ending = match (result.exit_code, result.signal) {
        (Some(code), _) => format!("exit={code}"),
        (None, Some(signal)) => format!("signal={signal}"),
        (None, None) => "exit=?".into(),
    };
    print::line(
        Line::Summary,
        &format!(
            "finished {ending} duration={} cpu={:.2}s mem={:.1}MiB",
            duration(result.duration_ms),
            usage.cpu_seconds,
            usage.peak_memory_mb
        ),
    );
    if result.changes_kept {
        let id = &result.sandbox_id;
        print::line(
            Line::Note,
            &format!(
                "changes are kept: belljar diff {id} | belljar apply {id} | belljar discard {id}"
            ),
        );
    }
}

fn explain(by: KilledBy, result: &RunResult) -> (String, Option<&'static str>) {
    let usage = &result.resource_usage;
    match by {
        KilledBy::Memory => (
            format!(
                "memory: the limit was reached (peak {:.1} MiB)",
                usage.peak_memory_mb
            ),
            Some("raise resource_limits.max_memory_mb in the capability file"),
        ),
        KilledBy::Cpu => (
            format!("cpu: {:.2} s of CPU time used", usage.cpu_seconds),
            Some("raise resource_limits.max_cpu_seconds in the capability file"),
        ),
        KilledBy::Timeout => (
            format!(
                "timeout: still running after {}",
                duration(result.duration_ms)
            ),
            Some("raise --timeout, or resource_limits.max_wall_seconds in the capability file"),
        ),
        _ => ("operator: the box was killed from outside".into(), None),
    }
}

fn duration(milliseconds: f64) -> String {
    if milliseconds < 10_000.0 {
        format!("{milliseconds:.0}ms")
    } else {
        format!("{:.1}s", milliseconds / 1000.0)
    }
}
