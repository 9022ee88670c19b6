//! `belljar run`: this process becomes the keeper.

use super::files::read_file;
use crate::cli::{Durable, HomeChoice, OutputFormat, Run, WorkspaceMode};
use crate::exit::{self, Failure};
use crate::print::{self, Line};
use belljar_egress::RefusalCode;
use belljar_gate::Durability;
use belljar_policy::{Capability, HomeMode, Origin, PathRule, Rule, Workspace};
use belljar_supervisor::fleet::{Fleet, FleetSetup};
use belljar_supervisor::tools::ServerFiles;
use belljar_supervisor::{
    Attendant, Command, Facts, KillCode, KilledBy, NetworkUsage, Output, Recording, RunResult,
    SandboxId, StateDir,
};
use serde_json::json;
use std::io::IsTerminal;
use std::path::Path;
use std::time::Duration;

pub(crate) fn run(mut arguments: Run) -> Result<u8, Failure> {
    if let Some(url) = arguments.supervisor.take() {
        if arguments.output == OutputFormat::Json {
            return Err(Failure::Invalid(
                "--output json is for runs that this process keeps".into(),
                "leave it out, or use `belljar sandbox --output json`".into(),
            ));
        }
        return super::supervisor::run_supervised(arguments, &url);
    }
    let format = arguments.output;
    let quiet = arguments.quiet;
    match attempt(arguments) {
        Ok(result) => {
            match format {
                OutputFormat::Json => print::json(&result),
                OutputFormat::Text if quiet && result.killed_by.is_none() => {}
                OutputFormat::Text => {
                    summarise(&result);
                    suggest_learning(&result);
                }
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
    if let Some(choice) = arguments.home {
        capability.filesystem.home = match choice {
            HomeChoice::ReadOnly => HomeMode::ReadOnly,
            HomeChoice::Private => HomeMode::Private,
        };
    }
    let servers = ServerFiles::read(&capability, arguments.policy.config.as_deref())?;
    if let Some(file) = &arguments.policy.config {
        protect(&mut capability, file);
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
    if let Some(file) = &arguments.contract {
        return family(
            file,
            arguments.state.as_deref(),
            (capability, servers),
            command,
            output,
            &state,
        );
    }
    let id = SandboxId::random()?;
    let (command, way) = super::mcp::in_box::open(&mut capability, servers, &state, &id, command)?;
    let recording = Recording {
        durability: match arguments.durability {
            Durable::Crash => Durability::Crash,
            Durable::Strict => Durability::Power,
        },
        keys: belljar_supervisor::key_source(),
    };
    let mut onlooker = Onlooker {
        is_quiet: arguments.quiet,
        told: Vec::new(),
    };
    let result = belljar_supervisor::run_attended(
        &id,
        &capability,
        &command,
        output,
        &state,
        &recording,
        &mut onlooker,
    );
    // The servers' boxes end with the one they are for.
    drop(way);
    let mut result = result?;
    if arguments.output == OutputFormat::Text {
        // Once is enough.
        result.notes.retain(|note| !onlooker.told.contains(note));
    }
    Ok(result)
}

/// Says on standard error what whoever sits there wants to know meanwhile.
struct Onlooker {
    is_quiet: bool,
    /// What was said at the start.
    told: Vec<String>,
}

impl Attendant for Onlooker {
    fn started(&mut self, facts: &Facts<'_>) {
        self.told = facts.withheld.to_vec();
        if !self.is_quiet {
            self.told
                .iter()
                .for_each(|what| print::line(Line::Note, what));
        }
        for (port, at) in facts.published {
            if !self.is_quiet {
                let what = format!("port {} of the box is open at {at}", port.in_box);
                print::line(Line::Note, &what);
            }
        }
    }

    fn lingers(&mut self, names: &[String]) {
        if !self.is_quiet {
            let what = format!(
                "the program has ended, and belljar waits for what it left behind: {}",
                listed(names)
            );
            print::line(Line::Note, &what);
            let hint =
                "Ctrl-C, or SIGTERM to belljar, ends these too; a box ends with its last process";
            print::line(Line::Hint, hint);
        }
    }
}

/// The names of processes, each once.
fn listed(names: &[String]) -> String {
    const MOST: usize = 5;
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for name in names {
        match counts.iter_mut().find(|(known, _)| known == name) {
            Some((_, count)) => *count += 1,
            None => counts.push((name, 1)),
        }
    }
    let shown = counts.iter().take(MOST).map(|(name, count)| {
        let name = print::harmless(name);
        match count {
            1 => name.into_owned(),
            count => format!("{name} ({count})"),
        }
    });
    let mut text = shown.collect::<Vec<_>>().join(", ");
    if counts.len() > MOST {
        text.push_str(", …");
    }
    text
}

/// Runs the first of a family, with its controller in this process; the last box's end is the end.
fn family(
    contract: &Path,
    given_state: Option<&Path>,
    (mut capability, servers): (Capability, ServerFiles),
    command: Command,
    output: Output,
    state: &StateDir,
) -> Result<RunResult, Failure> {
    let file = contract;
    let contract = super::replication::read_contract(file)?;
    protect(&mut capability, file);
    let given = given_state
        .map(|file| read_file(file, LONGEST_STATE))
        .transpose()?;
    let setup = FleetSetup {
        keys: belljar_supervisor::key_source(),
        ..FleetSetup::default()
    };
    let fleet = Fleet::open(state, contract, setup)?;
    let result = fleet.run_root_with(servers, capability, command, given, output)?;
    // Replicas that the contract keeps outlive their root; the family's end is the end.
    fleet.wait(Duration::MAX);
    Ok(result)
}

/// The most that an agent finds in /belljar/state.
const LONGEST_STATE: u64 = 1 << 20;

/// An agent that can write its own policy has none on the next run.
pub(super) fn protect(capability: &mut Capability, file: &Path) {
    if let Ok(file) = file.canonicalize() {
        let rule = Rule::new(PathRule::Root(file), Origin::built_in());
        capability.filesystem.protected.push(rule);
    }
}

pub(super) fn code_of(result: &RunResult) -> u8 {
    match (result.killed_by, result.exit_code, result.signal) {
        (Some(KilledBy::Timeout), ..) => exit::TIMEOUT,
        (Some(KilledBy::Memory | KilledBy::Cpu | KilledBy::Tokens | KilledBy::Cost), ..) => {
            exit::LIMIT
        }
        (_, Some(code), _) => u8::try_from(code).unwrap_or(exit::INTERNAL),
        (_, None, Some(signal)) => {
            u8::try_from(exit::SIGNAL_BASE + signal).unwrap_or(exit::INTERNAL)
        }
        (_, None, None) => exit::INTERNAL,
    }
}

/// What happened, for people, on standard error.
pub(super) fn summarise(result: &RunResult) {
    for note in &result.notes {
        print::line(Line::Note, note);
    }
    for violation in &result.violations {
        let times = if violation.count > 1 {
            format!(" ({} times)", violation.count)
        } else {
            String::new()
        };
        // These two are nothing that was stopped, but something to look at.
        let line = match violation.kind {
            "cover" | "git" => Line::Note,
            _ => Line::Denied,
        };
        print::line(
            line,
            &format!(
                "{} {}{times}: {}",
                violation.kind, violation.name, violation.why
            ),
        );
        if let Some(hint) = &violation.hint {
            print::line(Line::Hint, hint);
        }
    }
    if let Some(network) = &result.network {
        tell_network(network);
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

/// The kernel tells nobody which file it refused. Whoever sits there and wonders hears how to find out.
fn suggest_learning(result: &RunResult) {
    let has_failed = result.killed_by.is_none() && result.exit_code.is_some_and(|code| code != 0);
    let is_explained = !result.violations.is_empty()
        || result
            .network
            .as_ref()
            .is_some_and(|network| !network.refusals.is_empty());
    if has_failed && !is_explained && std::io::stderr().is_terminal() {
        let hint = "if a wall was in its way, `belljar learn -- …` with the same command says which, and the line to add";
        print::line(Line::Hint, hint);
    }
}

/// Kinds of refusals that are listed; the JSON result has them all.
const MOST_LISTED: usize = 12;

fn tell_network(network: &NetworkUsage) {
    for group in network.refusals.iter().take(MOST_LISTED) {
        let refusal = &group.refusal;
        let place = match refusal.port {
            Some(port) if refusal.host.contains(':') => format!("[{}]:{port}", refusal.host),
            Some(port) => format!("{}:{port}", refusal.host),
            None => refusal.host.clone(),
        };
        let times = match group.count {
            1 => String::new(),
            count => format!(" ({count} times)"),
        };
        let detail = match &refusal.detail {
            Some(detail) => format!(": {detail}"),
            None => String::new(),
        };
        let rule = match &refusal.rule {
            Some(origin) => format!(" [{origin}]"),
            None => String::new(),
        };
        print::line(
            Line::Denied,
            &format!(
                "network {place}{times}: {}{detail}{rule}",
                refusal.code.code()
            ),
        );
        print::line(Line::Hint, &refusal.hint);
    }
    let listed: u64 = network
        .refusals
        .iter()
        .take(MOST_LISTED)
        .map(|group| group.count)
        .sum();
    if network.refused > listed {
        let more = network.refused - listed;
        print::line(
            Line::Note,
            &format!("network: {more} more refused (--output json lists them)"),
        );
    }
    for (model, used) in &network.llm.models {
        let estimated = match used.estimated {
            0 => String::new(),
            calls => format!(", {calls} estimated"),
        };
        print::line(
            Line::Note,
            &format!(
                "model {model}: {} calls, {} tokens in ({} cached), {} out, {}{estimated}",
                used.calls,
                used.tokens.input,
                used.tokens.cache_read,
                used.tokens.output,
                used.cost
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
            Some(
                "raise resource_limits.max_memory_mb in the capability file; under a contract, budget.memory_mb and \
                 resources.memory_limit_mb there",
            ),
        ),
        KilledBy::Cpu => (
            format!("cpu: {:.2} s of CPU time used", usage.cpu_seconds),
            Some(
                "raise resource_limits.max_cpu_seconds in the capability file; under a contract, budget.cpu_seconds there",
            ),
        ),
        KilledBy::Timeout => (
            format!(
                "timeout: still running after {}",
                duration(result.duration_ms)
            ),
            Some("raise --timeout, or resource_limits.max_wall_seconds in the capability file"),
        ),
        KilledBy::Tokens => (
            format!("tokens: {}", shortfall(result, RefusalCode::Tokens)),
            Some(
                "raise resource_limits.max_tokens, or set llm.on_budget: refuse to go on without models",
            ),
        ),
        KilledBy::Cost => (
            format!("cost: {}", shortfall(result, RefusalCode::Cost)),
            Some(
                "raise resource_limits.max_cost_usd, or set llm.on_budget: refuse to go on without models",
            ),
        ),
        _ if by.as_str() == "lost_cover" => (
            "lost_cover: a protected or hidden path was replaced on the host, and could not be covered again"
                .to_owned(),
            Some("use workspace: overlay where you work beside an agent"),
        ),
        KilledBy::Killed {
            by: KillCode::SIGNALLED,
        } => (
            "signalled: the box was told to end by a signal, and had not ended 10 s later or when it was told again"
                .to_owned(),
            None,
        ),
        KilledBy::Killed {
            by: KillCode::INIT_DIED,
        } => (
            "init_died: the box's pid 1 ended before its program did, and nobody here ordered it"
                .to_owned(),
            Some("somebody on the host may have killed it, or the kernel for want of memory"),
        ),
        _ => (
            format!("{}: the box was killed from outside", by.as_str()),
            None,
        ),
    }
}

/// What the meter said of the call that the budget did not cover.
fn shortfall(result: &RunResult, code: RefusalCode) -> String {
    let groups = result.network.iter().flat_map(|used| &used.refusals);
    let told = groups
        .filter(|group| group.refusal.code == code)
        .find_map(|group| group.refusal.detail.clone());
    told.unwrap_or_else(|| "the budget for calls to models does not cover another".to_owned())
}

fn duration(milliseconds: f64) -> String {
    if milliseconds < 10_000.0 {
        format!("{milliseconds:.0}ms")
    } else {
        format!("{:.1}s", milliseconds / 1000.0)
    }
}
