//! Keys in a text, whatever quotes they are in, and the text without them.

use super::{KnownSecret, SHORTEST, WITHHELD};
use belljar_policy::{is_credential, is_credential_name};
use std::ops::Range;
use zeroize::Zeroizing;

/// A text without keys.
pub(crate) struct Redacted {
    /// What is left, with placeholders.
    pub(crate) bytes: Vec<u8>,
    /// Names of the secrets, or of the variables, that it held.
    pub(crate) names: Vec<String>,
}

/// A text without quotes, backslashes and line continuations: each character with where it came from. However a shell is
/// told a word, this much of it is there.
struct Reading {
    bytes: Zeroizing<Vec<u8>>,
    places: Vec<Range<usize>>,
}

/// What a backslash means.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Escapes {
    /// Nothing by itself.
    Bare,
    /// The same, or a character by its number, as in `$'\x2d'`.
    Numbers,
}

impl Reading {
    fn of(text: &[u8], escapes: Escapes) -> Self {
        let mut reading = Self {
            bytes: Zeroizing::new(Vec::with_capacity(text.len())),
            places: Vec::with_capacity(text.len()),
        };
        let mut at = 0;
        while let Some(byte) = text.get(at) {
            let rest = text.get(at + 1..).unwrap_or_default();
            let (meant, taken) = match (byte, rest) {
                (b'\'' | b'"', _) => (None, 1),
                (b'$', [b'\'' | b'"', ..]) => (None, 1),
                (b'\\', [b'\n', ..]) => (None, 2),
                (b'\\', [b'\r', b'\n', ..]) => (None, 3),
                (b'\\', _) => match (escapes, number(rest)) {
                    (Escapes::Numbers, Some((meant, length))) => (Some(meant), 1 + length),
                    _ => (None, 1),
                },
                (other, _) => (Some(*other), 1),
            };
            if let Some(meant) = meant {
                reading.bytes.push(meant);
                reading.places.push(at..(at + taken).min(text.len()));
            }
            at += taken;
        }
        reading
    }

    /// Where in the text something stands.
    fn find(&self, needle: &[u8]) -> Vec<Range<usize>> {
        if needle.len() < SHORTEST {
            return Vec::new();
        }
        let windows = self
            .bytes
            .windows(needle.len())
            .zip(self.places.windows(needle.len()));
        let found = windows.filter(|(part, _)| *part == needle);
        found
            .filter_map(|(_, places)| Some(places.first()?.start..places.last()?.end))
            .collect()
    }
}

/// A character by its number, as it stands behind a backslash; and how long that is.
fn number(text: &[u8]) -> Option<(u8, usize)> {
    let (digits, base, before) = match text {
        [b'x' | b'X', rest @ ..] => (rest.get(..2.min(rest.len()))?, 16, 1),
        [b'u', rest @ ..] => (rest.get(..4)?, 16, 1),
        [b'U', rest @ ..] => (rest.get(..8)?, 16, 1),
        [b'0'..=b'7', ..] => (text.get(..3.min(text.len()))?, 8, 0),
        _ => return None,
    };
    let length = digits
        .iter()
        .take_while(|digit| char::from(**digit).is_digit(base))
        .count();
    let digits = std::str::from_utf8(digits.get(..length)?).ok()?;
    let number = u8::try_from(u32::from_str_radix(digits, base).ok()?).ok()?;
    Some((number, before + length))
}

/// Every way in which a secret is looked for in a text.
fn spellings(value: &str) -> Vec<Zeroizing<Vec<u8>>> {
    let whole = value.as_bytes();
    let mut spellings = vec![Zeroizing::new(whole.to_vec())];
    let unquoted = Reading::of(whole, Escapes::Bare).bytes;
    if unquoted.as_slice() != whole {
        spellings.push(unquoted);
    }
    // What base64 makes of it, but for the last characters, which depend on what follows.
    let groups = whole.get(..whole.len() / 3 * 3).unwrap_or_default();
    spellings.push(Zeroizing::new(
        data_encoding::BASE64.encode(groups).into_bytes(),
    ));
    spellings
}

/// The text with the placeholder wherever it holds a secret; `None` where it holds none.
pub(crate) fn redact_secrets(text: &[u8], secrets: &[KnownSecret]) -> Option<Redacted> {
    let mut found: Vec<(Range<usize>, &str)> = Vec::new();
    let mut names = Vec::new();
    let whole = Reading {
        bytes: Zeroizing::new(text.to_vec()),
        places: (0..text.len()).map(|at| at..at + 1).collect(),
    };
    let readings = [
        whole,
        Reading::of(text, Escapes::Bare),
        Reading::of(text, Escapes::Numbers),
    ];
    for secret in secrets
        .iter()
        .filter(|secret| secret.value.len() >= SHORTEST)
    {
        let before = found.len();
        for spelling in spellings(&secret.value) {
            let places = readings.iter().flat_map(|reading| reading.find(&spelling));
            found.extend(places.map(|place| (place, secret.placeholder.as_str())));
        }
        if found.len() > before {
            names.push(secret.name.clone());
        }
    }
    (!names.is_empty()).then(|| Redacted {
        bytes: replace(text, found),
        names,
    })
}

/// The text with [`WITHHELD`] wherever a line sets a variable to what looks like a key; `None` where none does.
pub(crate) fn redact_keys(text: &[u8]) -> Option<Redacted> {
    let mut found = Vec::new();
    let mut names = Vec::new();
    let mut at = 0;
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        if let Some((name, value)) = assignment(line) {
            found.push((at + value.start..at + value.end, WITHHELD));
            if !names.contains(&name) {
                names.push(name);
            }
        }
        at += line.len();
    }
    (!names.is_empty()).then(|| Redacted {
        bytes: replace(text, found),
        names,
    })
}

/// The variable that a line sets to a key, and where in the line the key is: `NAME=VALUE` in all its forms, `set -gx NAME
/// VALUE` and `setenv NAME VALUE`.
fn assignment(line: &[u8]) -> Option<(String, Range<usize>)> {
    let text = std::str::from_utf8(line).ok()?;
    if text.trim_start().starts_with('#') {
        return None;
    }
    let is_end = |c: char| c.is_whitespace() || matches!(c, ';' | '&' | '|' | '#' | ')');
    let words = text.split_whitespace().scan(0, |from, word| {
        let start = *from + text.get(*from..)?.find(word)?;
        *from = start + word.len();
        Some((start, word))
    });
    let words: Vec<(usize, &str)> = words.collect();
    let is_command = |word: &&str| matches!(*word, "set" | "setenv");
    let by_command = words.first().is_some_and(|(_, word)| is_command(word));
    let mut pairs: Vec<(&str, usize)> = Vec::new();
    for (position, (start, word)) in words.iter().enumerate() {
        // fish keeps `--export NAME:value`.
        let sign = word.find(['=', ':']);
        if let Some(sign) = sign {
            pairs.push((word.get(..sign)?, start + sign + 1));
        } else if by_command && position > 0 && !word.starts_with('-') {
            if let Some((value, _)) = words.get(position + 1) {
                pairs.push((word, *value));
            }
            break;
        }
    }
    pairs.into_iter().find_map(|(name, start)| {
        let name = name.trim_matches(['"', '\'', '{', '(', ',']);
        let is_name = belljar_policy::is_variable_name(name);
        let rest = text.get(start..)?;
        let quotes = rest.len() - rest.trim_start_matches(['\'', '"']).len();
        let body = rest.get(quotes..)?;
        let end = match quotes {
            0 => body.find(is_end),
            _ => body.find(['\'', '"', '\n']),
        };
        let end = end.unwrap_or(body.len());
        let value = body
            .get(..end)?
            .trim_end_matches(['\r', '"', '\'', '}', ',']);
        let range = start + quotes..start + quotes + value.len();
        (is_name && looks_like_key(name, value)).then(|| (name.to_owned(), range))
    })
}

/// The same test as for a variable of the environment; by its name alone only where the value is no path, no number and
/// nothing that is worked out first.
fn looks_like_key(name: &str, value: &str) -> bool {
    const LEAST: usize = 16;
    let has = |test: fn(&u8) -> bool| value.as_bytes().iter().any(test);
    let is_plain = value.len() >= LEAST
        && has(u8::is_ascii_alphabetic)
        && has(u8::is_ascii_digit)
        && value.bytes().all(|byte| byte.is_ascii_graphic())
        && !value.starts_with(['/', '~', '.'])
        && !value.contains(['$', '`', '(', '<']);
    is_credential(value.as_bytes()) || is_plain && is_credential_name(name)
}

/// Quotes that were inside of what is replaced stay, or the rest of the file would be read differently.
fn replace(text: &[u8], mut found: Vec<(Range<usize>, &str)>) -> Vec<u8> {
    found.sort_by_key(|(range, _)| (range.start, std::cmp::Reverse(range.end)));
    let mut out = Vec::with_capacity(text.len());
    let mut at = 0;
    for (range, placeholder) in found {
        if range.end <= at {
            continue;
        }
        let start = range.start.max(at);
        out.extend_from_slice(text.get(at..start).unwrap_or_default());
        if range.start >= at {
            out.extend_from_slice(placeholder.as_bytes());
        }
        let gone = text.get(start..range.end).unwrap_or_default();
        let before = std::iter::once(&0).chain(gone);
        let quotes = gone
            .iter()
            .zip(before)
            .filter(|(byte, before)| matches!(byte, b'\'' | b'"') && **before != b'\\');
        out.extend(quotes.map(|(quote, _)| quote));
        at = range.end;
    }
    out.extend_from_slice(text.get(at..).unwrap_or_default());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Put together here, so that nobody takes it for one.
    fn value() -> String {
        ["sk-proj", "-4f9A0c", "_77d1e2"].concat()
    }

    fn secrets(value: &str) -> [KnownSecret; 1] {
        [KnownSecret {
            name: "openai".to_owned(),
            placeholder: "HERE".to_owned(),
            value: Zeroizing::new(value.to_owned()),
        }]
    }

    #[track_caller]
    fn check(text: &str, expect: &str) {
        let out = redact_secrets(text.as_bytes(), &secrets(&value()));
        let out = out.map(|redacted| String::from_utf8(redacted.bytes).expect("text"));
        assert_eq!(out.as_deref(), Some(expect), "{text}");
    }

    #[test]
    fn a_secret_is_found_in_all_simple_quoting() {
        let key = value();
        check(&format!("export A={key}\nb\n"), "export A=HERE\nb\n");
        check(&format!("A='{key}' B=\"{key}\""), "A='HERE' B=\"HERE\"");
        check("A=sk-proj\"-4f9A0c\"_77d1e2 #", "A=HERE\"\" #");
        check("A=\"sk-proj\"'-4f9A0c_77d1e2' #", "A=\"HERE\"'' #");
        check("A='sk-proj-4f9A0c'_77d1e2;x", "A='HERE';x");
        check("A=sk-proj'-4f9A0c_77d1e2';x", "A=HERE'';x");
        check(r"A=sk\-proj\-4f9A0c\_77d1e2", "A=HERE");
        check(r"A=$'sk\x2dproj\055\u0034f9A0c_77d1e2'", "A=$'HERE'");
        check("A=sk-proj\\\n-4f9A0c_77d1e2", "A=HERE");
        check(
            r"SETUVAR --export A:sk\x2dproj\x2d4f9A0c_77d1e2",
            "SETUVAR --export A:HERE",
        );
        let coded = data_encoding::BASE64.encode(format!("{key}\n").as_bytes());
        let out = redact_secrets(coded.as_bytes(), &secrets(&key)).expect("found");
        assert!(out.bytes.starts_with(b"HERE") && out.bytes.len() < 10);
    }

    #[test]
    fn a_secret_of_quotes_and_backslashes_is_found_as_a_shell_would_write_it() {
        let key = r#"pass'word\with"all"#;
        for text in [
            r#"A='pass'\''word\with"all'"#,
            r#"A="pass'word\\with\"all""#,
            key,
        ] {
            let out = redact_secrets(text.as_bytes(), &secrets(key)).expect(text);
            assert!(
                !String::from_utf8_lossy(&out.bytes).contains("word"),
                "{text}"
            );
        }
    }

    #[test]
    fn nothing_else_is_touched_and_short_secrets_are_left_alone() {
        let text = b"export A=sk-proj-4f9A0c_77d1e\n\xff\x00\\";
        assert!(redact_secrets(text, &secrets(&value())).is_none());
        assert!(redact_secrets(b"a test", &secrets("test")).is_none());
        assert!(redact_secrets(b"", &secrets(&value())).is_none());
    }

    #[test]
    fn what_looks_like_a_key_is_found_in_assignments_alone() {
        let tail = "Ab1".repeat(8);
        let vendor = format!("sk-{tail}");
        let check = |line: &str, expect: Option<&str>| {
            let out = redact_keys(line.as_bytes());
            let out = out.map(|redacted| String::from_utf8(redacted.bytes).expect("text"));
            assert_eq!(out.as_deref(), expect, "{line}");
        };
        let as_key = |form: &str| {
            check(
                &form.replace('@', &vendor),
                Some(&form.replace('@', WITHHELD)),
            )
        };
        as_key("export OPENAI_API_KEY=@\n");
        as_key("FOO='@' # x\n");
        as_key("set -gx FOO \"@\"\n");
        as_key("set -Ux OPENAI_API_KEY @\n");
        as_key("setenv FOO @;\n");
        as_key("[ -z \"$FOO\" ] && export FOO=@ && echo\n");
        let named = format!("export MY_TOKEN={tail}\n");
        check(&named, Some("export MY_TOKEN=belljar-withheld\n"));
        for other in [
            format!("export PLAIN={tail}\n"),
            "export KEYTIMEOUT=1\n".to_owned(),
            "export SSH_KEY_FILE=/home/ann/.ssh/id_ed25519_2024\n".to_owned(),
            "export API_TOKEN=$(pass show token-number-1)\n".to_owned(),
            format!("# export OPENAI_API_KEY={vendor}\n"),
            "bindkey '^[[1;5C' forward-word\n".to_owned(),
            "PATH=$HOME/bin:$PATH\n".to_owned(),
        ] {
            check(&other, None);
        }
    }
}
