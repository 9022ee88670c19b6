//! `belljar mcp holds` and `answer`: calls that wait for an operator.

use std::time::{SystemTime, UNIX_EPOCH};

use belljar_mcp::holds::{Answer, AnswerError, Hold, Holds};
use belljar_supervisor::StateDir;

use super::{invalid, of_user, store};
use crate::cli::OutputFormat;
use crate::cli::tools::{AnswerHold, Leave, ListHolds};
use crate::exit::{self, Failure};
use crate::print;

pub(super) fn list(arguments: &ListHolds) -> Result<u8, Failure> {
    let state = StateDir::existing()?;
    let holds = Holds::open(state.path())
        .and_then(|holds| holds.list())
        .map_err(store)?;
    if arguments.format.output == OutputFormat::Json {
        print::json(&holds);
        return Ok(exit::OK);
    }
    for hold in &holds {
        print::out(&shown(hold));
    }
    Ok(exit::OK)
}

fn shown(hold: &Hold) -> String {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    let left = hold.deadline_ms.saturating_sub(now).div_ceil(1000);
    let clean = |text: &str| print::harmless(text).into_owned();
    format!(
        "{}  {}:{}  {left} s left\n  run       : {}\n  arguments : {}\n  reason    : {}\n  rule      : {}\n",
        clean(&hold.id),
        clean(&hold.server),
        clean(&hold.tool),
        clean(&hold.run),
        clean(&hold.arguments.to_string()),
        clean(&hold.code),
        clean(&hold.rule),
    )
}

pub(super) fn answer(arguments: &AnswerHold) -> Result<u8, Failure> {
    let state = StateDir::existing()?;
    let holds = Holds::open(state.path()).map_err(store)?;
    let answer = Answer {
        allow: arguments.answer == Leave::Allow,
        by: of_user(),
        reason: arguments.reason.clone(),
    };
    let hold = holds
        .answer(&arguments.id, &answer)
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
        let word = if answer.allow { "allowed" } else { "refused" };
        let (server, tool) = (print::harmless(&hold.server), print::harmless(&hold.tool));
        print::out(&format!("{word} {server}:{tool}\n"));
    }
    Ok(exit::OK)
}
