//! Entries as lines: for people, and for programs.

use crate::print;
use belljar_gate::Actor;
use belljar_gate::record::hex;
use serde_json::{Value, json};

/// Fields that say most, in this order, before all others.
const FIRST: &[&str] = &[
    "run",
    "worker",
    "parent",
    "program",
    "act",
    "by",
    "code",
    "key",
    "state",
    "name",
    "why",
    "reason",
    "detail",
    "exit_code",
    "signal",
    "killed_by",
];
/// A digest is cut to this length: enough to tell two apart. The JSON has all of it.
const DIGEST_SHOWN: usize = 12;
const KIND_WIDTH: usize = 24;

/// How lines are laid out.
pub(super) struct Style {
    index_width: usize,
    colour: bool,
}

impl Style {
    /// For a log of this many entries.
    pub(super) fn of(size: u64) -> Self {
        Self {
            index_width: size.saturating_sub(1).to_string().len(),
            colour: print::stdout_colours(),
        }
    }

    /// Number, time in UTC, kind and fields.
    pub(super) fn text(&self, index: u64, bytes: &[u8]) -> String {
        let entry = value(index, bytes);
        let what = &entry["what"];
        let time = match entry["at"]["wall_ms"].as_u64() {
            Some(ms) => print::utc(ms),
            None => "-".to_owned(),
        };
        let kind = print::harmless(what["kind"].as_str().unwrap_or("unknown"));
        let kind = print::styled(
            &format!("{kind:<KIND_WIDTH$}"),
            style_of(&kind),
            self.colour,
        );
        let width = self.index_width;
        let line = format!("{index:>width$}  {time:<24}  {kind}  {}", fields(what));
        line.trim_end().to_owned()
    }
}

/// The entry's very bytes, where they are one line of JSON; else a line of JSON that holds them.
pub(super) fn json(index: u64, bytes: &[u8]) -> Vec<u8> {
    if !bytes.contains(&b'\n') && serde_json::from_slice::<serde::de::IgnoredAny>(bytes).is_ok() {
        return bytes.to_vec();
    }
    foreign(index, bytes).to_string().into_bytes()
}

/// The entry as JSON; one that is none, as an entry that says so.
pub(crate) fn value(index: u64, bytes: &[u8]) -> Value {
    match serde_json::from_slice::<Value>(bytes) {
        Ok(entry) if entry["what"].is_object() => entry,
        _ => foreign(index, bytes),
    }
}

fn foreign(index: u64, bytes: &[u8]) -> Value {
    json!({"what": {"kind": "not_understood", "entry": index, "hex": hex(bytes)}})
}

fn style_of(kind: &str) -> &'static str {
    match kind {
        "run_refused" | "refused" | "quarantined" => "33",
        "kill_switch_engaged" | "kill_report" | "revoked" | "epoch_bumped" | "not_understood" => {
            "31"
        }
        _ => "36",
    }
}

fn fields(what: &Value) -> String {
    let Some(fields) = what.as_object() else {
        return String::new();
    };
    let first = FIRST.iter().filter_map(|name| fields.get_key_value(*name));
    let rest = fields
        .iter()
        .filter(|(name, _)| name.as_str() != "kind" && !FIRST.contains(&name.as_str()));
    let shown: Vec<String> = first
        .chain(rest)
        .filter(|(_, value)| !value.is_null())
        .map(|(name, value)| format!("{}={}", print::harmless(name), shown(value)))
        .collect();
    shown.join(" ")
}

fn shown(value: &Value) -> String {
    let actor: String;
    let text = match value {
        Value::String(text) => text,
        other => match serde_json::from_value::<Actor>(other.clone()) {
            Ok(by) => {
                actor = by.to_string();
                &actor
            }
            Err(_) => return print::harmless(&other.to_string()).into_owned(),
        },
    };
    let is_digest = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_digest {
        return format!("{}…", &text[..DIGEST_SHOWN]);
    }
    let is_word = |c: char| c.is_alphanumeric() || "/._-:@+,".contains(c);
    if !text.is_empty() && text.chars().all(is_word) {
        return text.clone();
    }
    // Quotes and backslashes are escaped too: no text can pass for two fields.
    print::harmless(&format!("{text:?}")).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(entry: &[u8]) -> String {
        Style {
            index_width: 3,
            colour: false,
        }
        .text(7, entry)
    }

    #[test]
    fn what_an_agent_says_stays_within_its_field() {
        let entry = json!({"v": 1, "at": {"wall_ms": 0}, "what": {
            "kind": "agent_said\u{1b}[2J", "reason": "x\" code=allow\n\u{1b}]0;owned\u{7}", "\u{9b}1m": {"\u{1b}": 1},
        }});
        let line = line(entry.to_string().as_bytes());
        assert!(!line.chars().any(char::is_control), "{line:?}");
        assert!(line.contains(r#"reason="x\" code=allow\n"#), "{line}");
    }

    #[test]
    fn main_fields_come_first_and_digests_are_short() {
        let digest = "ab".repeat(32);
        let entry = json!({"v": 1, "at": {"wall_ms": 1000}, "what": {
            "kind": "run_launched", "capability_sha256": digest, "run": "box1", "program": "my program", "signal": null,
        }});
        assert_eq!(
            line(entry.to_string().as_bytes()),
            "  7  1970-01-01T00:00:01.000Z  run_launched              run=box1 program=\"my program\" \
             capability_sha256=abababababab…"
        );
    }

    #[test]
    fn an_entry_that_is_no_json_is_shown_as_such() {
        assert!(line(b"\x1b[31m").contains("not_understood"));
        assert_eq!(json(1, b"{\"a\": 1}"), b"{\"a\": 1}");
        let shown: Value = serde_json::from_slice(&json(1, b"{\n}")).expect("JSON all the same");
        assert_eq!(shown["what"]["hex"], "7b0a7d");
    }
}
