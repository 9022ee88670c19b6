//! `belljar mcp pin`, `diff`, `accept` and `inspect`: what tools are, and what they were agreed to be.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use belljar_gate::record::RunEvent;
use belljar_gate::{Durability, RunGate};
use belljar_mcp::pins::{Pin, Pins, ServerPins, difference};
use belljar_policy::{Reason, ToolQuestion, ToolRules, Verdict, is_mcp_name, text_tricks};
use belljar_supervisor::StateDir;
use serde_json::{Value, json};

use super::asking::ask;
use super::{invalid, of_user, store};
use crate::cli::OutputFormat;
use crate::cli::tools::{Accept, AskServer, Diff};
use crate::exit::{self, Failure};
use crate::print;

pub(super) fn pin(arguments: &AskServer) -> Result<u8, Failure> {
    let told = ask(arguments)?;
    let named = told.tools.iter().filter_map(|tool| {
        let name = tool.get("name").and_then(Value::as_str)?;
        is_mcp_name(name).then(|| (name.to_owned(), Pin::of(tool)))
    });
    let tools: BTreeMap<String, Pin> = named.collect();
    let pins = Pins::open(told.state.path()).map_err(store)?;
    pins.pin(&told.facts.name, &told.facts.digest, tools.clone())
        .map_err(store)?;
    record(
        &told.state,
        tools
            .iter()
            .map(|(name, pin)| (told.facts.name.clone(), name.clone(), pin.sha256.clone())),
        "pinned",
    )?;
    if arguments.format.output == OutputFormat::Json {
        let shown: BTreeMap<_, _> = tools
            .iter()
            .map(|(name, pin)| (name, &pin.sha256))
            .collect();
        print::json(&json!({"server": told.facts.name, "pinned": shown}));
    } else {
        for (name, pin) in &tools {
            print::out(&format!(
                "{}  {}:{name}\n",
                &pin.sha256[..16],
                told.facts.name
            ));
        }
    }
    Ok(exit::OK)
}

pub(super) fn diff(arguments: &Diff) -> Result<u8, Failure> {
    let state = StateDir::existing()?;
    let all = Pins::open(state.path())
        .and_then(|pins| pins.all())
        .map_err(store)?;
    let chosen = |pins: &&ServerPins| {
        arguments
            .server
            .as_ref()
            .is_none_or(|own| *own == pins.server)
    };
    let mut waiting = Vec::new();
    for pins in all.iter().filter(chosen) {
        for (name, new) in &pins.waiting {
            let old = pins.tools.get(name);
            let text = difference(&format!("{}:{name}", pins.server), old, new);
            let change = if old.is_some() { "changed" } else { "new" };
            waiting.push(json!({"server": pins.server, "tool": name, "change": change, "sha256": new.sha256, "diff": text}));
        }
    }
    if arguments.format.output == OutputFormat::Json {
        print::json(&waiting);
    } else {
        for item in &waiting {
            let text = item["diff"].as_str().unwrap_or_default();
            text.lines()
                .for_each(|line| print::out(&format!("{}\n", print::harmless(line))));
        }
    }
    Ok(if waiting.is_empty() {
        exit::OK
    } else {
        exit::NO
    })
}

pub(super) fn accept(arguments: &Accept) -> Result<u8, Failure> {
    let (server, tool) = match arguments
        .which
        .as_deref()
        .map(|which| which.split_once(':'))
    {
        None => (None, None),
        Some(None) => (arguments.which.as_deref(), None),
        Some(Some((server, tool))) => (Some(server), Some(tool)),
    };
    let state = StateDir::existing()?;
    let pins = Pins::open(state.path()).map_err(store)?;
    let before = pins.all().map_err(store)?;
    let accepted = pins.accept(server, tool).map_err(store)?;
    let digest = |server: &str, tool: &str| {
        let own = before.iter().filter(|pins| pins.server == server);
        own.filter_map(|pins| pins.waiting.get(tool))
            .map(|pin| pin.sha256.clone())
            .next()
            .unwrap_or_default()
    };
    let entries = accepted
        .iter()
        .map(|(server, tool)| (server.clone(), tool.clone(), digest(server, tool)));
    record(&state, entries, "accepted")?;
    if arguments.format.output == OutputFormat::Json {
        let shown: Vec<_> = accepted
            .iter()
            .map(|(server, tool)| format!("{server}:{tool}"))
            .collect();
        print::json(&json!({"accepted": shown}));
        return Ok(exit::OK);
    }
    if accepted.is_empty() {
        return Err(invalid(
            "nothing waits that this names",
            "belljar mcp diff lists what waits",
        ));
    }
    for (server, tool) in &accepted {
        print::out(&format!(
            "accepted {}:{}\n",
            print::harmless(server),
            print::harmless(tool)
        ));
    }
    Ok(exit::OK)
}

/// Who agreed to what is on record.
fn record(
    state: &StateDir,
    tools: impl Iterator<Item = (String, String, String)>,
    change: &str,
) -> Result<(), Failure> {
    let change = format!("{change} by {}", of_user());
    let event = |(server, tool, sha256)| RunEvent::McpTool {
        run: String::new(),
        server,
        tool,
        change: change.clone(),
        sha256,
    };
    let events: Vec<_> = tools.map(event).collect();
    if events.is_empty() {
        return Ok(());
    }
    let mut gate = RunGate::of(state.path(), belljar_supervisor::key_source());
    let noted = gate.note_all(events, Durability::Power);
    noted
        .map(|_| ())
        .map_err(|error| invalid(&error.to_string(), &error.hint()))
}

pub(super) fn inspect(arguments: &AskServer) -> Result<u8, Failure> {
    let told = ask(arguments)?;
    let pins = Pins::open(told.state.path())
        .and_then(|pins| pins.all())
        .map_err(store)?;
    let pins = pins
        .iter()
        .find(|pins| pins.server == told.facts.name && pins.digest == told.facts.digest);
    let rows: Vec<_> = told
        .tools
        .iter()
        .map(|tool| row(&told.capability.tools, &told.facts.name, tool, pins))
        .collect();
    if arguments.format.output == OutputFormat::Json {
        print::json(&rows);
        return Ok(exit::OK);
    }
    for row in &rows {
        let text = |key: &str| print::harmless(row[key].as_str().unwrap_or_default());
        let mut line = format!(
            "{:<10} {}:{}",
            text("verdict"),
            print::harmless(&told.facts.name),
            text("tool")
        );
        let _ = write!(
            line,
            "  {} [{}] {}",
            text("reason"),
            text("rule"),
            text("pin")
        );
        if let Some(tricks) = row["tricks"].as_array().filter(|tricks| !tricks.is_empty()) {
            let words: Vec<_> = tricks.iter().filter_map(Value::as_str).collect();
            let _ = write!(line, "  description: {}", words.join(", "));
        }
        print::out(&format!("{line}\n"));
    }
    Ok(exit::OK)
}

/// What a call of the tool would get. One whose rules look at arguments says so.
fn row(rules: &ToolRules, server: &str, tool: &Value, pins: Option<&ServerPins>) -> Value {
    let name = tool.get("name").and_then(Value::as_str).unwrap_or_default();
    let question = ToolQuestion {
        server,
        tool: name,
        arguments: &Value::Null,
        paths: &belljar_policy::Lexical,
    };
    let decision = rules.answer_tool(&question).decision;
    let by_arguments =
        rules.lists_tool(server, name) && decision.reason() == Reason::DenyToolArguments;
    let verdict = match decision.verdict() {
        _ if by_arguments => "arguments",
        Verdict::Allow => "allowed",
        Verdict::Hold => "held",
        Verdict::Deny => "denied",
    };
    let pin = match pins.map(|pins| pins.tools.get(name)) {
        None => "unpinned",
        Some(None) => "new",
        Some(Some(own)) if own.sha256 == Pin::of(tool).sha256 => "pinned",
        Some(Some(_)) => "changed",
    };
    let texts = ["title", "description"]
        .iter()
        .filter_map(|key| tool.get(key)?.as_str());
    let tricks: Vec<_> = texts
        .flat_map(text_tricks)
        .map(|trick| trick.as_str())
        .collect();
    json!({
        "tool": name,
        "verdict": verdict,
        "reason": decision.reason().code(),
        "rule": decision.because().origin.to_string(),
        "pin": pin,
        "tricks": tricks,
    })
}
