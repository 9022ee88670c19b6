//! How things look. Colour never carries meaning alone.

use belljar_manifest::Colour;
use belljar_policy::is_harmful;
pub(crate) use belljar_policy::{harmless, harmless_path};
use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{BufWriter, IsTerminal, Stdout, Write};
use std::time::Duration;

/// Kinds of lines on standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Line {
    /// How it went.
    Summary,
    /// A limit or a person ended it.
    Killed,
    /// Something was stopped.
    Denied,
    /// Worth knowing.
    Note,
    /// What to change.
    Hint,
    /// What went wrong.
    Error,
}

fn colours(terminal: bool) -> bool {
    terminal && std::env::var_os(belljar_supervisor::NO_COLOR).is_none_or(|value| value.is_empty())
}

/// Whether standard error takes colour.
pub(crate) fn stderr_colours() -> bool {
    colours(std::io::stderr().is_terminal())
}

/// Whether standard output takes colour.
pub(crate) fn stdout_colours() -> bool {
    colours(std::io::stdout().is_terminal())
}

pub(crate) fn manifest_colour() -> Colour {
    if stderr_colours() {
        Colour::Styled
    } else {
        Colour::Plain
    }
}

/// Text in an ANSI style, where the terminal takes it: a colour in it would be somebody else's.
pub(crate) fn styled(text: &str, code: &str, on: bool) -> String {
    if on {
        format!("\x1b[{code}m{text}\x1b[0m")
    } else {
        text.to_owned()
    }
}

/// A moment, in milliseconds since 1970, as people write it; in UTC, so that it reads the same everywhere.
pub(crate) fn utc(wall_ms: u64) -> String {
    let (seconds, milliseconds) = (wall_ms / 1000, wall_ms % 1000);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milliseconds:03}Z")
}

/// The date so many days after 1 January 1970. Years are counted from March, so that the odd day comes last.
fn date(days: u64) -> (u64, u64, u64) {
    const DAYS_OF_400_YEARS: u64 = 146_097;
    // From 1 March of the year 0.
    let days = days + 719_468;
    let (era, day) = (days / DAYS_OF_400_YEARS, days % DAYS_OF_400_YEARS);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, later) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    (era * 400 + year + later, month, day)
}

/// Standard output for much of it. Ends when whoever reads has had enough.
pub(crate) struct Stream {
    out: BufWriter<Stdout>,
    is_open: bool,
}

impl Stream {
    pub(crate) fn new() -> Self {
        Self {
            out: BufWriter::new(std::io::stdout()),
            is_open: true,
        }
    }

    /// One line. Says whether more is wanted.
    pub(crate) fn line(&mut self, bytes: &[u8]) -> bool {
        self.is_open =
            self.is_open && self.out.write_all(bytes).is_ok() && self.out.write_all(b"\n").is_ok();
        self.is_open
    }

    /// Hands over what was kept back. Says whether more is wanted.
    pub(crate) fn flush(&mut self) -> bool {
        self.is_open = self.is_open && self.out.flush().is_ok();
        self.is_open
    }

    /// Waits, but no longer than the reader is there. Says whether more is wanted.
    pub(crate) fn wait(&mut self, time: Duration) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let stdout = std::io::stdout();
        let mut reader = [PollFd::new(&stdout, PollFlags::empty())];
        let timeout = Timespec {
            tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(time.subsec_nanos()),
        };
        let _ = poll(&mut reader, Some(&timeout));
        let gone = PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL;
        let [reader] = reader;
        self.is_open = self.is_open && !reader.revents().intersects(gone);
        self.is_open
    }
}

/// One line on standard error, marked as ours. Whoever closed it does not want to know.
pub(crate) fn line(kind: Line, text: &str) {
    let text = harmless(text);
    let on = stderr_colours();
    let mark = styled("[belljar]", "2", on);
    let text = match kind {
        Line::Summary => text.into_owned(),
        Line::Killed => format!("{} {text}", styled("killed:", "1;31", on)),
        Line::Denied => format!("{} {text}", styled("denied:", "33", on)),
        Line::Note => format!("{} {text}", styled("note:", "36", on)),
        Line::Hint => format!("{} {text}", styled("hint:", "32", on)),
        Line::Error => format!("{} {text}", styled("error:", "1;31", on)),
    };
    let _ = writeln!(std::io::stderr(), "{mark} {text}");
}

/// Text on standard output. A reader that closed early is not an error. Whatever went into it, a terminal gets lines, tabs and
/// our colours, and nothing else to obey; who must not begin a line either has been through [`harmless`] before.
pub(crate) fn out(text: &str) {
    raw(&guarded(text));
}

/// Text on standard error without a line end of its own, for whoever is asked something.
pub(crate) fn prompt(text: &str) {
    let _ = std::io::stderr().write_all(guarded(text).as_bytes());
}

/// Bytes as they are: what an agent wrote, for a program to read, or what moves the cursor, of our own.
pub(crate) fn raw(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// The beginnings of our own colours, and their end.
const COLOURS: [&str; 9] = ["0", "1", "1;31", "2", "31", "32", "33", "35", "36"];

pub(crate) fn guarded(text: &str) -> Cow<'_, str> {
    let passes = |c: char| matches!(c, '\n' | '\t');
    if !text.chars().any(|c| is_harmful(c) && !passes(c)) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let colour = COLOURS.iter().find_map(|code| {
            let after = rest.strip_prefix("\x1b[")?.strip_prefix(code)?;
            after.strip_prefix('m')
        });
        let after = colour.unwrap_or_else(|| rest.get(c.len_utf8()..).unwrap_or_default());
        let taken = rest.get(..rest.len() - after.len()).unwrap_or_default();
        if colour.is_none() && is_harmful(c) && !passes(c) {
            shown.extend(c.escape_unicode());
        } else {
            shown.push_str(taken);
        }
        rest = after;
    }
    Cow::Owned(shown)
}

/// A value as one line of JSON on standard output.
pub(crate) fn json(value: &impl serde::Serialize) {
    let text = serde_json::to_string(value).unwrap_or_else(|_| "null".into());
    json_text(&text);
    raw("\n");
}

/// Values as a list in one line of JSON, one after the other.
pub(crate) fn json_list(values: impl Iterator<Item = impl serde::Serialize>) {
    raw("[");
    for (index, value) in values.enumerate() {
        if index > 0 {
            raw(",");
        }
        json_text(&serde_json::to_string(&value).unwrap_or_else(|_| "null".into()));
    }
    raw("]\n");
}

/// JSON that means the same, and has nothing in it that a terminal would obey.
pub(crate) fn json_text(text: &str) {
    raw(&json_escaped(text));
}

fn json_escaped(text: &str) -> Cow<'_, str> {
    let harmful = |c: char| is_harmful(c) && c != '\n';
    if !text.chars().any(harmful) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if !harmful(c) {
            shown.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            let _ = write!(shown, "\\u{unit:04x}");
        }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_forgotten_is_obeyed_by_no_terminal() {
        for (given, shows) in [
            ("a\tb\n", "a\tb\n"),
            (
                "\x1b[1;31mred\x1b[0m\x1b[8mhidden",
                "\x1b[1;31mred\x1b[0m\\u{1b}[8mhidden",
            ),
            ("a\r\x1b[2K\u{9b}1A", "a\\u{d}\\u{1b}[2K\\u{9b}1A"),
            ("\x1b]8;;http://x\x07y", "\\u{1b}]8;;http://x\\u{7}y"),
            ("\x1b[31\u{202e}", "\\u{1b}[31\\u{202e}"),
        ] {
            assert_eq!(guarded(given), shows, "{given:?}");
        }
        let value = "\u{202e}\u{7f}\u{9b}\u{e0041}é\n";
        let text = serde_json::to_string(value).expect("JSON");
        let shown = json_escaped(&text).into_owned();
        assert!(!shown.chars().any(is_harmful), "{shown:?}");
        assert_eq!(serde_json::from_str::<String>(&shown).expect("JSON"), value);
    }

    #[test]
    fn moments_are_those_of_the_calendar() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (951_868_800_000, "2000-03-01T00:00:00.000Z"),
            (1_704_067_199_000, "2023-12-31T23:59:59.000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(utc(ms), text);
        }
    }
}
