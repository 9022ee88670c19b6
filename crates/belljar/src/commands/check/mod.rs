//! `belljar check`: the same decisions a run is built from, with their reasons.

mod egress;
mod tool;

use crate::cli::{Ask, Check, OutputFormat};
use crate::exit::{self, Failure};
use crate::print;
use belljar_policy::{Decision, FileOp, Verdict, decide_env, decide_host};
use belljar_supervisor::PathCheck;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

pub(crate) fn check(question: &Check) -> Result<u8, Failure> {
    match question {
        Check::Path { paths, write, ask } => {
            let op = if *write { FileOp::Write } else { FileOp::Read };
            let decided = decide_paths(paths, op, ask)?;
            if ask.format.output == OutputFormat::Json && decided.len() > 1 {
                let decisions: Vec<&Decision> = decided.iter().map(|(_, own)| own).collect();
                print::json(&decisions);
                let allowed = decisions.iter().all(|decision| decision.is_allow());
                return Ok(if allowed { exit::OK } else { exit::NO });
            }
            let word = if *write { "write" } else { "read" };
            let codes = decided.iter().map(|(shown, decision)| {
                answer(ask, &format!("{word} {}", shown.display()), decision)
            });
            Ok(codes.max().unwrap_or(exit::OK))
        }
        Check::Env { name, ask } => {
            let capability = super::capability(&ask.policy)?;
            let value = std::env::var_os(name).unwrap_or_default();
            let decision = decide_env(&capability.env, name, value.as_bytes());
            Ok(answer(ask, &format!("env {name}"), &decision))
        }
        Check::Host { host, ask } => {
            let capability = super::capability(&ask.policy)?;
            let (name, port) = split_host(host)?;
            let decision = decide_host(&capability.egress, name, port);
            Ok(answer(ask, &format!("host {name}:{port}"), &decision))
        }
        Check::Egress(question) => egress::check(question),
        Check::Tool(question) => tool::check(question),
    }
}

/// As a run of this policy, started here, would have it.
fn decide_paths(
    paths: &[PathBuf],
    op: FileOp,
    ask: &Ask,
) -> Result<Vec<(PathBuf, Decision)>, Failure> {
    let capability = super::capability(&ask.policy)?;
    let here = std::env::current_dir().map_err(|error| {
        Failure::Invalid(
            format!("working directory: {error}"),
            "start in a directory that exists".into(),
        )
    })?;
    let check = PathCheck::new(&capability, &here)?;
    let asked: Vec<PathBuf> = paths.iter().map(|path| check.path(path)).collect();
    let decisions = check.decide(&asked, op)?;
    Ok(asked.into_iter().zip(decisions).collect())
}

fn split_host(text: &str) -> Result<(&str, u16), Failure> {
    const HTTPS: u16 = 443;
    match text.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
            let port = port.parse().map_err(|_| {
                Failure::Invalid(
                    format!("{port} is not a port"),
                    "write HOST:PORT with a port from 0 to 65535".into(),
                )
            })?;
            Ok((host, port))
        }
        _ => Ok((text, HTTPS)),
    }
}

fn answer(ask: &Ask, what: &str, decision: &Decision) -> u8 {
    let allowed = decision.is_allow();
    if ask.format.output == OutputFormat::Json {
        print::json(decision);
    } else {
        let because = decision.because();
        print::out(&verdict(what, decision));
        print::out(&format!(
            "  reason : {}\n  rule   : {}\n",
            because.reason.code(),
            print::harmless(&because.origin.to_string())
        ));
        if let Some(hint) = &because.hint {
            print::out(&format!("  hint   : {}\n", print::harmless(hint)));
        }
    }
    if allowed { exit::OK } else { exit::NO }
}

/// The first line of an answer in words.
fn verdict(what: &str, decision: &Decision) -> String {
    let on = print::stdout_colours();
    let verdict = match decision.verdict() {
        Verdict::Allow => print::styled("allowed", "32", on),
        Verdict::Hold => print::styled("held", "33", on),
        Verdict::Deny => print::styled("denied", "31", on),
    };
    format!("{verdict}  {}\n", print::harmless(what))
}
