//! Bytes that an agent chose, shown to people: nothing in them is obeyed by a terminal, begins a line, turns the direction of
//! writing around, hides, or runs into what is beside it.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The longest path that is shown whole: the kernel takes none that is longer.
const LONGEST_PATH: usize = 4096;

/// A name, a reason, a command: one line.
pub fn harmless(text: &str) -> Cow<'_, str> {
    shown(text, false)
}

/// A line of a file: tabs stay.
pub fn harmless_text(line: &str) -> Cow<'_, str> {
    shown(line, true)
}

/// A path, text or not; the middle of one that is beyond every bound is left out.
pub fn harmless_path(path: &Path) -> Cow<'_, str> {
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() > LONGEST_PATH {
        let (head, rest) = bytes.split_at(LONGEST_PATH / 2);
        let tail = rest.get(rest.len() - LONGEST_PATH / 4..).unwrap_or(rest);
        let (head, tail) = (harmless_bytes(head), harmless_bytes(tail));
        return Cow::Owned(format!("{head}[… of {} bytes …]{tail}", bytes.len()));
    }
    harmless_bytes(bytes)
}

/// Bytes of which nobody knows whether they are text.
pub fn harmless_bytes(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return harmless(text);
    }
    let mut out = String::with_capacity(bytes.len() + 16);
    for chunk in bytes.utf8_chunks() {
        out.push_str(&harmless(chunk.valid()));
        for byte in chunk.invalid() {
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    Cow::Owned(out)
}

fn shown(text: &str, tabs: bool) -> Cow<'_, str> {
    let passes = |c: char| c == '\t' && tabs;
    if !text
        .chars()
        .any(|c| is_harmful(c) && !passes(c) || is_combining(c))
    {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    // Nothing to stand on: it would change what we wrote before it.
    let mut marks = MOST_MARKS;
    for c in text.chars() {
        if is_combining(c) && marks < MOST_MARKS {
            marks += 1;
            out.push(c);
        } else if is_combining(c) || is_harmful(c) && !passes(c) {
            out.extend(c.escape_unicode());
            marks = MOST_MARKS;
        } else {
            marks = 0;
            out.push(c);
        }
    }
    Cow::Owned(out)
}

/// As many stand on one letter in any language; a heap of them covers the lines above.
const MOST_MARKS: u32 = 4;

fn is_combining(c: char) -> bool {
    matches!(c, '\u{300}'..='\u{36f}' | '\u{483}'..='\u{489}' | '\u{1ab0}'..='\u{1aff}' | '\u{1dc0}'..='\u{1dff}'
        | '\u{20d0}'..='\u{20ff}' | '\u{fe00}'..='\u{fe0f}' | '\u{fe20}'..='\u{fe2f}')
}

/// Control characters, those that change the direction or the line of what follows, and those that nobody sees.
pub fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{2800}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    #[test]
    fn a_terminal_is_given_nothing_to_obey() {
        for (given, shows) in [
            ("plain ünï 日本 🙂", "plain ünï 日本 🙂"),
            ("a\u{1b}[2Jb\nc", "a\\u{1b}[2Jb\\u{a}c"),
            ("\u{9b}31m\u{202e}x\u{7f}", "\\u{9b}31m\\u{202e}x\\u{7f}"),
            (
                "a\u{200b}b\u{feff}\u{e0041}",
                "a\\u{200b}b\\u{feff}\\u{e0041}",
            ),
            ("a\tb\r", "a\\u{9}b\\u{d}"),
            // On a letter, a few; not on what we wrote before.
            ("e\u{301}", "e\u{301}"),
            ("\u{301}e", "\\u{301}e"),
            (
                "e\u{301}\u{301}\u{301}\u{301}\u{301}",
                "e\u{301}\u{301}\u{301}\u{301}\\u{301}",
            ),
        ] {
            assert_eq!(harmless(given), shows);
        }
        assert_eq!(harmless_text("\ta\r"), "\ta\\u{d}");
        assert_eq!(harmless_bytes(b"a\xff\x1b\xc3("), "a\\xff\\u{1b}\\xc3(");
        let deep = "d/".repeat(5000) + "end";
        let path = harmless_path(Path::new(OsStr::new(&deep))).into_owned();
        assert!(
            path.len() < LONGEST_PATH && path.contains("of 10003 bytes") && path.ends_with("/end")
        );
    }
}
