//! Silences: of which alerts nobody is told, until when.

use belljar_api::{AgentId, AlertKind, AlertView, Shown, SilenceId, SilenceView};

/// Silences that may hold at once.
pub(super) const MOST_SILENCES: usize = 1_000;

/// Whether a pattern, in which `*` stands for any letters, is that text.
pub(super) fn fits(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else {
        return false;
    };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        match rest.find(part) {
            Some(at) => rest = rest.get(at + part.len()..).unwrap_or_default(),
            None => return false,
        }
    }
    true
}

/// Whether an alert is of that kind and about such an agent, by its name or its id.
pub(super) fn concerns(agent: Option<&str>, kind: Option<AlertKind>, alert: &AlertView) -> bool {
    let names = || {
        let name = alert.agent_name.as_ref().map(Shown::as_str);
        name.into_iter()
            .chain(alert.agent.as_ref().map(AgentId::as_str))
    };
    kind.is_none_or(|kind| alert.kind == kind)
        && agent.is_none_or(|pattern| names().any(|name| fits(pattern, name)))
}

pub(super) fn holds_for(silence: &SilenceView, alert: &AlertView, now: u64) -> bool {
    let agent = silence.agent.as_ref().map(belljar_api::Name::as_str);
    silence.until_ms > now && concerns(agent, silence.kind, alert)
}

pub(super) fn id(number: u64) -> SilenceId {
    // A number is letters enough for an id.
    SilenceId::new(number.to_string()).unwrap_or_else(|_| unreachable!("a number is an id"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fit_names() {
        for (pattern, text, expect) in [
            ("clock", "clock", true),
            ("clock", "clock2", false),
            ("clock*", "clock2", true),
            ("*", "", true),
            ("*-eu-*", "web-eu-3", true),
            ("a*b*c", "axxbyyc", true),
            ("a*b*c", "axxcyyb", false),
            ("a*a", "a", false),
            ("", "a", false),
        ] {
            assert_eq!(fits(pattern, text), expect, "{pattern} {text}");
        }
    }
}
