//! Names of servers, tools and prompts: what they may be made of, and what in a text does not show.

/// The longest name of a tool or a server.
const LONGEST: usize = 128;

/// Whether a tool or a prompt can have this name: letters, digits, `_`, `.` and `-`, at most 128. Whatever looks like
/// another name, or has two spellings, is none.
#[must_use]
pub fn is_mcp_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    (1..=LONGEST).contains(&name.len()) && name.bytes().all(plain)
}

/// Whether a server can have this id. Two underscores part it from the tool in `server__tool`, so it has none and
/// adds none.
#[must_use]
pub fn is_mcp_server(name: &str) -> bool {
    let parts = name.contains("__") || name.starts_with('_') || name.ends_with('_');
    is_mcp_name(name) && name.len() <= 64 && !name.contains('.') && !parts
}

/// What in a text does not show, or shows in another place than it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TextTrick {
    /// A character without width.
    ZeroWidth,
    /// A character that turns the direction of writing.
    Bidi,
    /// A character that carries text nobody sees: tags and variation selectors.
    HiddenText,
    /// A letter of another script within a word of Latin ones.
    LookAlike,
    /// A control character.
    Control,
}

impl TextTrick {
    /// The stable word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ZeroWidth => "zero_width",
            Self::Bidi => "bidi",
            Self::HiddenText => "hidden_text",
            Self::LookAlike => "look_alike",
            Self::Control => "control",
        }
    }
}

fn trick(c: char) -> Option<TextTrick> {
    match c {
        '\u{200b}'..='\u{200d}'
        | '\u{2060}'..='\u{2064}'
        | '\u{feff}'
        | '\u{00ad}'
        | '\u{034f}'
        | '\u{180e}'
        | '\u{115f}'
        | '\u{1160}'
        | '\u{3164}'
        | '\u{ffa0}' => Some(TextTrick::ZeroWidth),
        '\u{200e}'
        | '\u{200f}'
        | '\u{061c}'
        | '\u{202a}'..='\u{202e}'
        | '\u{2066}'..='\u{2069}' => Some(TextTrick::Bidi),
        '\u{fe00}'..='\u{fe0e}' | '\u{e0000}'..='\u{e01ef}' => Some(TextTrick::HiddenText),
        '\n' | '\t' | '\r' => None,
        c if c.is_control() => Some(TextTrick::Control),
        _ => None,
    }
}

/// Whether the character does not show.
pub(super) fn is_hidden(c: char) -> bool {
    trick(c).is_some()
}

/// The tricks in a text, each once. A word that mixes Latin with Greek, Cyrillic, Armenian or full-width letters is one.
#[must_use]
pub fn text_tricks(text: &str) -> Vec<TextTrick> {
    if text.bytes().all(|byte| (0x20..0x7f).contains(&byte)) {
        return Vec::new();
    }
    let mut found: Vec<TextTrick> = text.chars().filter_map(trick).collect();
    let foreign = |c: char| {
        matches!(c, '\u{370}'..='\u{3ff}' | '\u{400}'..='\u{52f}' | '\u{530}'..='\u{58f}' | '\u{ff00}'..='\u{ff5e}')
            && c.is_alphanumeric()
    };
    let mut words = text.split(|c: char| !c.is_alphanumeric());
    if words.any(|word| word.chars().any(foreign) && word.bytes().any(|b| b.is_ascii_alphabetic()))
    {
        found.push(TextTrick::LookAlike);
    }
    found.sort_unstable();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_one_spelling() {
        for name in ["read_file", "get-env", "a.b", "X1"] {
            assert!(is_mcp_name(name), "{name}");
        }
        let long = "a".repeat(129);
        for name in [
            "",
            "get env",
            "get\u{200b}env",
            "g\u{435}t-env",
            "a:b",
            "a/b",
            "get-env\0",
            "\u{ff47}et",
            long.as_str(),
        ] {
            assert!(!is_mcp_name(name), "{name:?}");
        }
        assert!(!is_mcp_server("a__b") && is_mcp_server("a_b"));
    }

    #[test]
    fn tricks_are_named_and_honest_texts_have_none() {
        for text in [
            "Reads a file.",
            "Читает файл.",
            "données – «x»",
            "line\nline",
            "日本語",
            "α and β",
        ] {
            assert_eq!(text_tricks(text), [], "{text}");
        }
        assert_eq!(text_tricks("a\u{200b}b"), [TextTrick::ZeroWidth]);
        assert_eq!(text_tricks("\u{202e}x"), [TextTrick::Bidi]);
        assert_eq!(text_tricks("x\u{e0041}"), [TextTrick::HiddenText]);
        assert_eq!(text_tricks("p\u{430}ypal"), [TextTrick::LookAlike]);
        assert_eq!(text_tricks("a\u{1b}[0m"), [TextTrick::Control]);
    }
}
