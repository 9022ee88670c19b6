//! `belljar check`: the same decisions a run is built from, with their reasons.

mod egress;
mod tool;

use crate::cli::{Ask, Check, OutputFormat};
use crate::exit::{self, Failure};
use crate::print;
use belljar_policy::{Decision, FileOp, Verdict, decide_env, decide_host};
use belljar_supervisor::{find_places, with_repositories};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

pub(crate) fn check(question: &Check) -> Result<u8, Failure> {
    match question {
        Check::Path { path, write, ask } => {
            let op = if *write { FileOp::Write } else { FileOp::Read };
            let (shown, decision) = decide_path(path, op, ask)?;
            Ok(answer(
                ask,
                &format!(
                    "{} {}",
                    if *write { "write" } else { "read" },
                    shown.display()
                ),
                &decision,
            ))
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

/// Symbolic links are resolved first, as the box's walls do; a path that is not there, as far as it is.
fn decide_path(path: &Path, op: FileOp, ask: &Ask) -> Result<(PathBuf, Decision), Failure> {
    let capability = super::capability(&ask.policy)?;
    let here = std::env::current_dir().map_err(|error| {
        Failure::Invalid(
            format!("working directory: {error}"),
            "start in a directory that exists".into(),
        )
    })?;
    let (_, places) = find_places(&here)?;
    let asked = match path.strip_prefix("~") {
        Ok(rest) => places.home.join(rest),
        Err(_) => places.work.join(path),
    };
    let table = with_repositories(capability, &places).path_table(&places);
    let decision = table.decide(&asked, op);
    let real = resolve(&asked);
    let decision = if real == asked {
        decision
    } else {
        decision.strictest(table.decide(&real, op))
    };
    Ok((asked, decision))
}

fn resolve(path: &Path) -> PathBuf {
    for ancestor in path.ancestors() {
        if let (Ok(real), Ok(rest)) = (ancestor.canonicalize(), path.strip_prefix(ancestor)) {
            return if rest.as_os_str().is_empty() {
                real
            } else {
                real.join(rest)
            };
        }
    }
    path.to_owned()
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
