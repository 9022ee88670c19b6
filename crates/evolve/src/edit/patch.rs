//! Unified diffs, applied strictly: every line of context is where and what the diff says, or the whole of it is refused.

use super::EditError;
use crate::path::TreePath;

const MOST_LINE: usize = 1 << 31;

/// What becomes of one file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) file: TreePath,
    pub(super) kind: Kind,
    hunks: Vec<Hunk>,
}

/// Whether it is there before and after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Add,
    Change,
    Remove,
}

#[derive(Debug, PartialEq, Eq)]
struct Hunk {
    /// The first line before, counted from one.
    start: usize,
    lines: Vec<Line>,
}

#[derive(Debug, PartialEq, Eq)]
struct Line {
    sign: u8,
    /// With its end, unless it has none.
    text: String,
}

fn wrong(what: impl Into<String>) -> EditError {
    EditError::Patch(what.into())
}

/// Reads a diff. Renames, modes, links, submodules and binaries are refused: they are more than text.
pub(super) fn parse(text: &str) -> Result<Vec<Part>, EditError> {
    let mut parts: Vec<Part> = Vec::new();
    let mut lines = text.split_inclusive('\n').peekable();
    while let Some(line) = lines.next() {
        let plain = line.trim_end_matches(['\n', '\r']);
        let refused = [
            "rename ",
            "copy ",
            "similarity ",
            "dissimilarity ",
            "old mode",
            "new mode",
            "GIT binary",
            "Binary files",
            "Subproject ",
        ];
        if refused.iter().any(|word| plain.starts_with(word)) {
            return Err(wrong(format!(
                "{plain:?}: renames, modes and binaries are not taken"
            )));
        }
        if let Some(mode) = plain
            .strip_prefix("new file mode ")
            .or_else(|| plain.strip_prefix("deleted file mode "))
            && mode != "100644"
        {
            return Err(wrong(format!("mode {mode}: only ordinary files (100644)")));
        }
        if let Some(index) = plain.strip_prefix("index ")
            && (index.ends_with(" 120000") || index.ends_with(" 160000"))
        {
            return Err(wrong("links and submodules are not taken"));
        }
        if plain.is_empty()
            || plain.starts_with("diff --git ")
            || plain.starts_with("index ")
            || plain.contains("file mode ")
        {
            continue;
        }
        if let Some(old) = plain.strip_prefix("--- ") {
            let next = lines.next().unwrap_or_default();
            let new = next.trim_end_matches(['\n', '\r']).strip_prefix("+++ ");
            let new = new.ok_or_else(|| wrong("after a line with --- comes one with +++"))?;
            parts.push(header(old, new)?);
            continue;
        }
        if let Some(head) = plain.strip_prefix("@@ -") {
            let part = parts
                .last_mut()
                .ok_or_else(|| wrong("a hunk before any file"))?;
            part.hunks.push(hunk(head, &mut lines)?);
            continue;
        }
        return Err(wrong(format!("{plain:?} is not a line of a unified diff")));
    }
    if parts.is_empty() || parts.iter().any(|part| part.hunks.is_empty()) {
        return Err(wrong("it changes nothing"));
    }
    Ok(parts)
}

fn header(old: &str, new: &str) -> Result<Part, EditError> {
    let name = |word: &str, prefix: &str| -> Result<Option<TreePath>, EditError> {
        let word = word.split('\t').next().unwrap_or_default();
        if word == "/dev/null" {
            return Ok(None);
        }
        let path = word
            .strip_prefix(prefix)
            .ok_or_else(|| wrong(format!("{word:?} does not begin with {prefix}")))?;
        TreePath::new(path)
            .map(Some)
            .map_err(|invalid| wrong(invalid.to_string()))
    };
    let (file, kind) = match (name(old, "a/")?, name(new, "b/")?) {
        (None, Some(file)) => (file, Kind::Add),
        (Some(file), None) => (file, Kind::Remove),
        (Some(old), Some(new)) if old == new => (new, Kind::Change),
        _ => return Err(wrong("a file keeps its name")),
    };
    Ok(Part {
        file,
        kind,
        hunks: Vec::new(),
    })
}

fn hunk<'a>(
    head: &str,
    lines: &mut std::iter::Peekable<impl Iterator<Item = &'a str>>,
) -> Result<Hunk, EditError> {
    let malformed = || wrong(format!("{head:?} is not the head of a hunk"));
    let (ranges, _) = head.split_once(" @@").ok_or_else(malformed)?;
    let (old, new) = ranges.split_once(" +").ok_or_else(malformed)?;
    let range = |text: &str| -> Option<(usize, usize)> {
        let (start, count) = text.split_once(',').unwrap_or((text, "1"));
        Some((start.parse().ok()?, count.parse().ok()?))
    };
    let ((start, mut olds), (_, mut news)) = range(old).zip(range(new)).ok_or_else(malformed)?;
    if start > MOST_LINE || olds > MOST_LINE || news > MOST_LINE {
        return Err(malformed());
    }
    // Of no lines, the number is that of the line before.
    let mut hunk = Hunk {
        start: if olds == 0 { start + 1 } else { start },
        lines: Vec::new(),
    };
    while olds > 0 || news > 0 {
        let line = lines.next().ok_or_else(|| wrong("a hunk ends too early"))?;
        let (sign, text) = match line.as_bytes().first() {
            Some(sign @ (b' ' | b'-' | b'+')) => (*sign, &line[1..]),
            // Some editors take the space of an empty line away.
            Some(b'\n') => (b' ', line),
            _ => return Err(wrong(format!("{line:?} is not a line of a hunk"))),
        };
        let counted = match sign {
            b' ' => olds.checked_sub(1).zip(news.checked_sub(1)),
            b'-' => olds.checked_sub(1).zip(Some(news)),
            _ => Some(olds).zip(news.checked_sub(1)),
        };
        (olds, news) = counted.ok_or_else(|| wrong("a hunk has more lines than it says"))?;
        let mut text = text.to_owned();
        if lines.peek().is_some_and(|next| next.starts_with('\\')) {
            lines.next();
            text.truncate(text.trim_end_matches('\n').len());
        }
        hunk.lines.push(Line { sign, text });
    }
    Ok(hunk)
}

/// The text after a part.
pub(super) fn apply(part: &Part, before: &str) -> Result<String, EditError> {
    let old: Vec<&str> = before.split_inclusive('\n').collect();
    let mut made = String::with_capacity(before.len());
    let mut at = 0;
    for hunk in &part.hunks {
        let start = hunk.start.saturating_sub(1);
        if start < at || start > old.len() {
            return Err(wrong(format!(
                "{}: a hunk at line {} is out of place",
                part.file, hunk.start
            )));
        }
        made.extend(old[at..start].iter().copied());
        at = start;
        for line in &hunk.lines {
            if line.sign == b'+' {
                made.push_str(&line.text);
                continue;
            }
            if old.get(at) != Some(&line.text.as_str()) {
                return Err(wrong(format!(
                    "{}: line {} is not {:?}",
                    part.file,
                    at + 1,
                    line.text
                )));
            }
            if line.sign == b' ' {
                made.push_str(&line.text);
            }
            at += 1;
        }
    }
    made.extend(old[at..].iter().copied());
    Ok(made)
}
