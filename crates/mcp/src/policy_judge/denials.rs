//! Denials as askers get them.

use belljar_policy::{Because, Decision, RateUse};

use super::{JudgeCode, shortened};
use crate::judge::{DENIED, Denial, RATE_LIMITED, Ruling};

pub(super) fn deny(decision: &Decision, server: &str, what: &str) -> Option<Denial> {
    match decision {
        Decision::Deny(because) => Some(denial_of(because, server, what)),
        Decision::Allow(_) | Decision::Hold(_) => None,
    }
}

pub(super) fn denial_of(because: &Because, server: &str, what: &str) -> Denial {
    Denial {
        code: DENIED,
        reason: because.reason.code().to_owned(),
        message: format!("denied: {server}:{}", shortened(what)),
        rule: because.origin.to_string(),
        hint: because.hint.clone(),
    }
}

pub(super) fn unlisted(server: &str) -> Ruling {
    Ruling::Deny(Denial {
        code: DENIED,
        reason: belljar_policy::Reason::DenyServerNotListed
            .code()
            .to_owned(),
        message: format!("denied: no server {} is listed", shortened(server)),
        rule: "built-in".to_owned(),
        hint: None,
    })
}

pub(super) fn by_code(code: JudgeCode, number: i64, message: &str, hint: &str) -> Denial {
    Denial {
        code: number,
        reason: code.code().to_owned(),
        message: format!("denied: {message}"),
        rule: "built-in".to_owned(),
        hint: Some(hint.to_owned()),
    }
}

pub(super) fn rate_denial(rate: &RateUse, server: &str, tool: &str) -> Denial {
    let rule = rate.origin.as_ref().map_or_else(
        || "mcp.rate_limit_per_minute".to_owned(),
        ToString::to_string,
    );
    Denial {
        code: RATE_LIMITED,
        reason: JudgeCode::DenyToolRate.code().to_owned(),
        message: format!(
            "denied: {server}:{tool} was called {} times within a minute",
            rate.per_minute
        ),
        rule,
        hint: Some("wait, or raise rate_limit_per_minute".to_owned()),
    }
}

pub(super) fn unrecorded() -> Denial {
    by_code(
        JudgeCode::DenyUnrecorded,
        DENIED,
        "the record can't be written",
        "belljar audit verify says what is wrong",
    )
}

pub(super) fn quarantined() -> Denial {
    by_code(
        JudgeCode::DenyQuarantined,
        DENIED,
        "the agent is in quarantine",
        "ask again when an operator has released it",
    )
}
