//! Names that are the same in the next run, and directories that are too many things at once.

use belljar_policy::Places;
use std::path::Path;

/// Below the home: every program keeps something there.
const SHARED_BELOW_HOME: &[&str] = &[
    "",
    ".cache",
    ".config",
    ".local",
    ".local/bin",
    ".local/lib",
    ".local/share",
    ".local/state",
    "bin",
];
/// The same of the host. What is at its top is as well.
const SHARED: &[&str] = &[
    "/opt",
    "/usr/lib",
    "/usr/local",
    "/usr/local/bin",
    "/usr/local/lib",
    "/usr/local/share",
    "/usr/share",
    "/var/cache",
    "/var/lib",
    "/var/log",
    "/var/opt",
];

/// Whether a directory is everybody's: a rule for all of it would be about more than one program.
pub(super) fn is_shared(path: &Path, places: &Places) -> bool {
    if path == places.work {
        return false;
    }
    let below_home = path.strip_prefix(&places.home).ok();
    let is_homes = below_home.is_some_and(|below| {
        SHARED_BELOW_HOME
            .iter()
            .any(|known| below == Path::new(known))
    });
    let is_above = places.home.starts_with(path);
    is_homes
        || is_above
        || path.components().count() <= 2
        || SHARED.iter().any(|known| path == Path::new(known))
}

/// What a name is without what makes it another one in each run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StableName<'a> {
    /// It is the same each time, as far as can be told.
    Whole,
    /// The file that it is to replace.
    Of(&'a str),
    /// Nothing is left of it.
    Nothing,
}

/// Finds the end of a name that was drawn for one run: a number of a process, a time, random letters.
pub(super) fn stable_name(name: &str) -> StableName<'_> {
    let is_between = |c: char| matches!(c, '.' | '-' | '_' | '~' | '#');
    let starts = name
        .char_indices()
        .filter(|(_, c)| is_between(*c))
        .map(|(at, _)| at);
    let starts: Vec<usize> = [0].into_iter().chain(starts.filter(|at| *at > 0)).collect();
    let word = |at: usize| {
        let rest = name
            .get(at..)
            .unwrap_or_default()
            .trim_start_matches(is_between);
        rest.split(is_between).next().unwrap_or_default()
    };
    for at in starts {
        let is_drawn = is_temporary(word(at)) || is_random(word(at));
        if !is_drawn {
            continue;
        }
        let stem = name.get(..at).unwrap_or_default();
        return match stem.trim_matches(is_between).is_empty() {
            true => StableName::Nothing,
            false => StableName::Of(stem),
        };
    }
    StableName::Whole
}

/// `tmp`, or that with something random behind it.
fn is_temporary(word: &str) -> bool {
    let rest = ["tmp", "temp"].iter().find_map(|head| {
        let (first, rest) = word.split_at_checked(head.len())?;
        first.eq_ignore_ascii_case(head).then_some(rest)
    });
    rest.is_some_and(|rest| {
        let is_plain = rest.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let is_mixed = rest.bytes().any(|byte| !byte.is_ascii_lowercase());
        // Python draws eight of small letters and digits.
        rest.is_empty()
            || is_plain
                && (rest.len() >= 5 && is_mixed || rest.len() == 8 && word.starts_with("tmp"))
    })
}

/// Digits enough for a time, hexadecimal with digits and letters, or letters of both sizes among digits.
fn is_random(word: &str) -> bool {
    let count = |is: fn(&u8) -> bool| word.bytes().filter(is).count();
    let digits = count(u8::is_ascii_digit);
    let (lower, upper) = (count(u8::is_ascii_lowercase), count(u8::is_ascii_uppercase));
    let is_plain = digits + lower + upper == word.len();
    let is_hex = word.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_plain
        && (digits == word.len() && digits >= 9
            || is_hex && word.len() >= 8 && digits > 0 && digits < word.len()
            || word.len() >= 6 && digits > 0 && lower > 0 && upper > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_one_run_are_those_of_all() {
        use StableName::{Nothing, Of, Whole};
        for (name, expected) in [
            (".claude.json.tmp.2.164026d16349", Of(".claude.json")),
            (".claude.json", Whole),
            ("settings.json.1763584123", Of("settings.json")),
            ("package-lock.json.tmp-4711", Of("package-lock.json")),
            ("state.db-3f2a9c1b7d", Of("state.db")),
            (".tmpA1b2C3", Nothing),
            ("tmpab12cd34", Nothing),
            ("tmp", Nothing),
            ("template.html", Whole),
            ("temperature", Whole),
            ("python3.11", Whole),
            ("io.datasette.llm", Whole),
            ("deadbeef", Whole),
            (".codex", Whole),
            ("x.aB3dE9", Of("x")),
            ("", Whole),
        ] {
            assert_eq!(stable_name(name), expected, "{name}");
        }
    }

    #[test]
    fn what_is_everybodys_is_no_answer() {
        let places = Places {
            home: "/home/ann".into(),
            work: "/home/ann/bin".into(),
            homes: Vec::new(),
        };
        for (path, expected) in [
            ("/", true),
            ("/etc", true),
            ("/home", true),
            ("/home/ann", true),
            ("/home/ann/.config", true),
            ("/home/ann/.local/share", true),
            ("/home/ann/.local/share/x", false),
            ("/home/ann/.claude", false),
            ("/home/ann/bin", false),
            ("/var/lib", true),
            ("/var/lib/x", false),
        ] {
            assert_eq!(is_shared(Path::new(path), &places), expected, "{path}");
        }
    }
}
