//! How things look. Colour never carries meaning alone.

use belljar_manifest::Colour;
use std::io::IsTerminal;

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

/// Text in an ANSI style, where the terminal takes it.
pub(crate) fn styled(text: &str, code: &str, on: bool) -> String {
    if on {
        format!("\x1b[{code}m{text}\x1b[0m")
    } else {
        text.to_owned()
    }
}

/// One line on standard error, marked as ours. Whoever closed it does not want to know.
pub(crate) fn line(kind: Line, text: &str) {
    use std::io::Write;
    let on = stderr_colours();
    let mark = styled("[belljar]", "2", on);
    let text = match kind {
        Line::Summary => text.to_owned(),
        Line::Killed => format!("{} {text}", styled("killed:", "1;31", on)),
        Line::Denied => format!("{} {text}", styled("denied:", "33", on)),
        Line::Note => format!("{} {text}", styled("note:", "36", on)),
        Line::Hint => format!("{} {text}", styled("hint:", "32", on)),
        Line::Error => format!("{} {text}", styled("error:", "1;31", on)),
    };
    let _ = writeln!(std::io::stderr(), "{mark} {text}");
}

/// Text of somebody else's, with nothing in it that a terminal would obey.
pub(crate) fn plain(text: &str) -> String {
    let escape = |c: char| match c.is_control() {
        true => c.escape_default().collect(),
        false => String::from(c),
    };
    text.chars().map(escape).collect()
}

/// Milliseconds since 1970 as a date and time in UTC.
pub(crate) fn time(ms: u64) -> String {
    let (days, seconds) = (ms / 86_400_000, ms / 1000 % 86_400);
    // Counted in years that begin in March, so that the leap day comes last.
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 {
        month_index + 3
    } else {
        month_index - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}Z",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60
    )
}

/// Text on standard output. A reader that closed early is not an error.
pub(crate) fn out(text: &str) {
    use std::io::Write;
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// A value as one line of JSON on standard output.
pub(crate) fn json(value: &impl serde::Serialize) {
    let mut text = serde_json::to_string(value).unwrap_or_else(|_| "null".into());
    text.push('\n');
    out(&text);
}
