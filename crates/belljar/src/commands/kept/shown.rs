//! What a box changed, for people: the project first, git's own files as what they mean, agents' own directories as a count.

use super::repositories;
use crate::pager::PagedOutput;
use crate::print;
use belljar_supervisor::{Change, ChangeGroup, ChangeKind, Overlay, PathFilter};
use std::collections::BTreeMap;

fn letter(kind: ChangeKind) -> &'static str {
    match kind {
        ChangeKind::Added => "A",
        ChangeKind::Modified => "M",
        ChangeKind::Deleted => "D",
    }
}

/// A change in one line.
pub(super) fn line(change: &Change) -> String {
    let path = print::harmless_path(&change.path);
    format!("{} {path}", letter(change.kind))
}

pub(super) fn colour_of(line: &str) -> &'static str {
    match line.as_bytes().first() {
        Some(b'+') => "32",
        Some(b'-') => "31",
        Some(b'@') => "36",
        _ => "0",
    }
}

fn colour_of_kind(kind: ChangeKind) -> &'static str {
    match kind {
        ChangeKind::Added => "32",
        ChangeKind::Modified => "33",
        ChangeKind::Deleted => "31",
    }
}

/// Where a change is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Section {
    Project,
    Elsewhere,
    /// As part of a repository's summary.
    Git,
    /// Counted, and not shown.
    Left(&'static str),
}

/// The changes that are looked at, in the order in which they are.
pub(super) struct DiffView<'a> {
    overlay: &'a Overlay,
    filter: &'a PathFilter,
    shows_all: bool,
}

impl<'a> DiffView<'a> {
    pub(super) fn new(overlay: &'a Overlay, filter: &'a PathFilter, shows_all: bool) -> Self {
        Self {
            overlay,
            filter,
            shows_all,
        }
    }

    fn section(&self, change: &Change) -> Option<Section> {
        if !self.filter.matches(&change.path) {
            return None;
        }
        let group = self.overlay.group(change);
        Some(match group {
            // Whoever names a path wants to see it.
            ChangeGroup::AgentState(directory) if !self.shows_all && self.filter.is_empty() => {
                Section::Left(directory)
            }
            _ if !self.shows_all && self.overlay.is_gits_own(change) => Section::Git,
            ChangeGroup::Project => Section::Project,
            ChangeGroup::Elsewhere | ChangeGroup::AgentState(_) => Section::Elsewhere,
        })
    }

    fn of(&self, section: Section) -> impl Iterator<Item = Change> + '_ {
        let changes = self.overlay.changes();
        changes.filter(move |change| self.section(change) == Some(section))
    }

    fn shown(&self) -> impl Iterator<Item = Change> + '_ {
        self.of(Section::Project).chain(self.of(Section::Elsewhere))
    }

    /// Paths, one in a line.
    pub(super) fn names(&self, output: &mut PagedOutput) {
        for change in self.shown() {
            if !output.text(&format!("{}\n", print::harmless_path(&change.path))) {
                return;
            }
        }
    }

    /// What is not shown file by file.
    pub(super) fn left_out(&self) -> Vec<String> {
        let mut directories: BTreeMap<&str, usize> = BTreeMap::new();
        let mut git = 0;
        for change in self.overlay.changes() {
            match self.section(&change) {
                Some(Section::Left(directory)) => *directories.entry(directory).or_default() += 1,
                Some(Section::Git) => git += 1,
                _ => {}
            }
        }
        let mut lines = Vec::new();
        if git > 0 {
            lines.push(format!(
                "{} of git's own left out; --all shows each",
                files(git)
            ));
        }
        let count: usize = directories.values().sum();
        if count > 0 {
            let directories: Vec<String> = directories
                .iter()
                .map(|(directory, count)| format!("~/{directory} ({count})"))
                .collect();
            lines.push(format!(
                "{} in directories that agents and tools keep for themselves left out: {}; --all shows each",
                match count {
                    1 => "1 change".to_owned(),
                    _ => format!("{count} changes"),
                },
                directories.join(", ")
            ));
        }
        lines
    }

    /// How many lines changed in each file, and in all of them.
    pub(super) fn statistics(&self, output: &mut PagedOutput) {
        const WIDEST: usize = 30;
        let mut rows = Vec::new();
        let (mut added, mut removed) = (0, 0);
        for change in self.shown() {
            let count = self.overlay.count_lines(&change);
            if let Some(count) = count {
                added += count.added;
                removed += count.removed;
            }
            rows.push((change, count));
        }
        let most = rows.iter().filter_map(|(_, count)| *count);
        let most = most.map(|count| count.added + count.removed).max();
        let most = most.unwrap_or_default();
        let scaled = |count: usize| match most > WIDEST && count > 0 {
            true => (count * WIDEST / most).max(1),
            false => count,
        };
        let width = most.to_string().len();
        for (change, count) in &rows {
            let bar = match count {
                None => "not text".to_owned(),
                Some(count) => format!(
                    "{:>width$} {}{}",
                    count.added + count.removed,
                    output.styled(&"+".repeat(scaled(count.added)), "32"),
                    output.styled(&"-".repeat(scaled(count.removed)), "31")
                ),
            };
            if !output.text(&format!(" {} | {bar}\n", line(change))) {
                return;
            }
        }
        let mut total = format!(" {} changed", files(rows.len()));
        for (count, word, sign) in [(added, "insertion", '+'), (removed, "deletion", '-')] {
            if count > 0 {
                let plural = if count == 1 { "" } else { "s" };
                total.push_str(&format!(", {count} {word}{plural}({sign})"));
            }
        }
        total.push('\n');
        output.text(&total);
        self.tell_repositories(output);
        self.tell_left_out(output);
    }

    /// A list of all, then each.
    pub(super) fn everything(&self, output: &mut PagedOutput, id: &str) {
        let project = self.overlay.origin().map(|origin| &origin.work);
        for (section, title) in [
            (
                Section::Project,
                project.map(|work| print::harmless_path(work).into_owned()),
            ),
            (Section::Elsewhere, Some("elsewhere".to_owned())),
        ] {
            let mut title = title.map(|title| format!("{title}:"));
            for change in self.of(section) {
                if let Some(title) = title.take() {
                    output.text(&format!("{}\n", output.styled(&title, "1")));
                }
                let shown = output.styled(&line(&change), colour_of_kind(change.kind));
                if !output.text(&format!("{shown}\n")) {
                    return;
                }
            }
            if section == Section::Project {
                self.tell_repositories(output);
            }
        }
        self.tell_left_out(output);
        for change in self.shown() {
            output.text("\n");
            for line in self.overlay.diff(&change).split_terminator('\n') {
                let line = output.styled(line, colour_of(line));
                if !output.text(&format!("{line}\n")) {
                    return;
                }
            }
        }
        let next = format!(
            "\nbelljar apply {id} makes these changes, belljar discard {id} throws them away\n"
        );
        let _ = output.colours && output.text(&output.styled(&next, "2"));
    }

    fn tell_repositories(&self, output: &mut PagedOutput) {
        if self.shows_all {
            return;
        }
        let is_shown = |change: &Change| self.section(change) == Some(Section::Git);
        for summary in self.overlay.repositories(is_shown) {
            repositories::tell(&summary, output);
        }
    }

    fn tell_left_out(&self, output: &mut PagedOutput) {
        for left_out in self.left_out() {
            // Git's own files have been told of.
            if !left_out.contains("of git's own") {
                let shown = output.styled(&left_out, "2");
                output.text(&format!("{shown}\n"));
            }
        }
    }
}

pub(super) fn files(count: usize) -> String {
    match count {
        1 => "1 file".to_owned(),
        _ => format!("{count} files"),
    }
}
