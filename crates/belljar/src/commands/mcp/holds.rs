//! `belljar mcp holds` and `answer`: calls that wait for an operator.

use std::time::{SystemTime, UNIX_EPOCH};

use belljar_api::{Empty, HoldAnswerRequest, HoldId, HoldView};
use belljar_mcp::holds::{Answer, AnswerError, Hold, Holds};
use belljar_supervisor::StateDir;

use super::{invalid, of_user, store};
use crate::cli::OutputFormat;
use crate::cli::tools::{AnswerHold, Leave, ListHolds};
use crate::commands::agent::said;
use crate::commands::supervisor::Reached;
use crate::exit::{self, Failure};
use crate::print;

pub(super) fn list(arguments: &ListHolds) -> Result<u8, Failure> {
    if let Some(reached) = Reached::named() {
        let list = reached?.client.call::<belljar_api::ListHolds>(&Empty {})?;
        if arguments.format.output == OutputFormat::Json {
            print::json(&list.holds);
            return Ok(exit::OK);
        }
        for hold in &list.holds {
            print::out(&shown(&Waiting::of_view(hold)));
        }
        return Ok(exit::OK);
    }
    let state = StateDir::existing()?;
    let holds = Holds::open(state.path())
        .and_then(|holds| holds.list())
        .map_err(store)?;
    if arguments.format.output == OutputFormat::Json {
        print::json(&holds);
        return Ok(exit::OK);
    }
    for hold in &holds {
        print::out(&shown(&Waiting::of_hold(hold)));
    }
    Ok(exit::OK)
}

/// A call that waits, whoever told of it.
struct Waiting<'a> {
    id: &'a str,
    tool: [&'a str; 2],
    run: &'a str,
    arguments: String,
    code: &'a str,
    rule: &'a str,
    deadline_ms: u64,
}

impl<'a> Waiting<'a> {
    fn of_hold(hold: &'a Hold) -> Self {
        Self {
            id: hold.id.as_str(),
            tool: [&hold.server, &hold.tool],
            run: &hold.run,
            arguments: hold.arguments.to_string(),
            code: &hold.code,
            rule: &hold.rule,
            deadline_ms: hold.deadline_ms,
        }
    }

    fn of_view(hold: &'a HoldView) -> Self {
        Self {
            id: hold.id.as_str(),
            tool: [hold.server.as_str(), hold.tool.as_str()],
            run: hold.run.as_str(),
            arguments: hold.arguments.to_string(),
            code: hold.code.as_str(),
            rule: hold.rule.as_str(),
            deadline_ms: hold.deadline_ms,
        }
    }
}

fn shown(hold: &Waiting<'_>) -> String {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    let left = hold.deadline_ms.saturating_sub(now).div_ceil(1000);
    let clean = |text: &str| print::harmless(text).into_owned();
    let [server, tool] = hold.tool;
    format!(
        "{}  {}:{}  {left} s left\n  run       : {}\n  arguments : {}\n  reason    : {}\n  rule      : {}\n",
        clean(hold.id),
        clean(server),
        clean(tool),
        clean(hold.run),
        clean(&hold.arguments),
        clean(hold.code),
        clean(hold.rule),
    )
}

/// Answers a call that waits at the supervisor that is named.
fn answer_there(reached: &mut Reached, arguments: &AnswerHold) -> Result<u8, Failure> {
    let id = HoldId::new(arguments.id.clone()).map_err(|error| {
        invalid(
            &error.to_string(),
            "belljar mcp holds lists the calls that wait",
        )
    })?;
    let request = HoldAnswerRequest {
        allow: arguments.answer == Leave::Allow,
        reason: said(arguments.reason.clone())?,
    };
    let hold = reached
        .client
        .call_on::<belljar_api::AnswerHold>(&id, &request)?;
    match arguments.format.output {
        OutputFormat::Json => print::json(&hold),
        OutputFormat::Text => tell(request.allow, hold.server.as_str(), hold.tool.as_str()),
    }
    Ok(exit::OK)
}

fn tell(allow: bool, server: &str, tool: &str) {
    let word = if allow { "allowed" } else { "refused" };
    let (server, tool) = (print::harmless(server), print::harmless(tool));
    print::out(&format!("{word} {server}:{tool}\n"));
}

pub(super) fn answer(arguments: &AnswerHold) -> Result<u8, Failure> {
    if let Some(reached) = Reached::named() {
        return answer_there(&mut reached?, arguments);
    }
    let state = StateDir::existing()?;
    let holds = Holds::open(state.path()).map_err(store)?;
    let answer = Answer {
        allow: arguments.answer == Leave::Allow,
        by: of_user(),
        reason: arguments.reason.clone(),
    };
    let id = belljar_mcp::holds::HoldId::try_from(arguments.id.clone());
    let hold = id
        .and_then(|id| holds.answer(&id, &answer))
        .map_err(|error| match error {
            AnswerError::Store(source) => store(source),
            other => invalid(
                &other.to_string(),
                "belljar mcp holds lists the calls that wait",
            ),
        })?;
    if arguments.format.output == OutputFormat::Json {
        print::json(&serde_json::json!({"id": hold.id, "answer": answer}));
    } else {
        tell(answer.allow, &hold.server, &hold.tool);
    }
    Ok(exit::OK)
}
