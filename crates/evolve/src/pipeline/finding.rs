//! What stages find.

use serde_json::json;

use crate::proposal::{Reason, Risk};

/// What a stage found.
#[derive(Clone, Debug)]
pub(super) struct Finding {
    pub(super) reasons: Vec<Reason>,
    pub(super) raised: Vec<(Risk, Reason)>,
    pub(super) facts: serde_json::Value,
    pub(super) not_asked: bool,
}

pub(super) fn finding() -> Finding {
    Finding {
        reasons: Vec::new(),
        raised: Vec::new(),
        facts: json!({}),
        not_asked: false,
    }
}

pub(super) fn not_asked() -> Finding {
    Finding {
        not_asked: true,
        ..finding()
    }
}

pub(super) fn reason(code: &str, at: Option<String>, message: &str, hint: &str) -> Reason {
    Reason {
        code: code.to_owned(),
        stage: String::new(),
        at,
        message: message.to_owned(),
        hint: (!hint.is_empty()).then(|| hint.to_owned()),
    }
}

impl Finding {
    pub(super) fn refuse(&mut self, code: &str, at: Option<String>, message: &str, hint: &str) {
        self.reasons.push(reason(code, at, message, hint));
    }

    pub(super) fn raise(&mut self, risk: Risk, code: &str, at: &str, message: &str) {
        self.raised
            .push((risk, reason(code, Some(at.to_owned()), message, "")));
    }
}
