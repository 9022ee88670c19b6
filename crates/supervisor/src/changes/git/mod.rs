//! What a box did to a repository, told as what it is: new commits, refs that moved, what is staged.
//!
//! Git is not run: it would obey settings and programs that the agent may have written. What says what git is to do (`config`,
//! `hooks`, `info`, whatever is not known here) is never part of a summary: it is shown as any other file.

mod commits;
mod files;
mod index;
mod objects;
mod pack;
mod refs;
mod staged;

use super::listing::Made;
use super::{Change, ChangeKind, Overlay};
pub use commits::CommitLine;
use commits::CommitWalk;
use files::{GitFiles, Side};
use objects::{GitObjects, ObjectId};
use refs::{RefMove, RefTarget};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// What is told of refs, commits and paths of one repository, at most.
const MOST_TOLD: usize = 500;

/// What a box did to one repository. All texts in it are the agent's.
#[derive(Debug, Clone, Default)]
pub struct RepositorySummary {
    /// Its `.git`.
    pub directory: PathBuf,
    /// The branch or commit that is checked out, before and after, if it is another one.
    pub head: Option<(Option<String>, Option<String>)>,
    /// Refs that moved.
    pub refs: Vec<MovedRef>,
    /// What the index has that HEAD does not.
    pub staged: Vec<StagedPath>,
    /// Paths that git was told not to look at any more: `git status` says nothing of what is in them.
    pub unwatched: Vec<Vec<u8>>,
    /// What could not be looked at.
    pub remarks: Vec<String>,
    /// How many files of git's own all this is.
    pub files: usize,
}

/// A branch, a tag or another ref that is not where it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MovedRef {
    /// Its full name.
    pub name: Vec<u8>,
    /// Where it was; nothing if it is new.
    pub before: Option<String>,
    /// Where it is; nothing if it is gone.
    pub after: Option<String>,
    /// Commits that the host does not have, the newest first; each is told of one ref.
    pub commits: Vec<CommitLine>,
    /// Whether it only went on; if not, commits of the host's are left out. Nothing if that can't be told.
    pub goes_on: Option<bool>,
}

/// A path in the index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StagedPath {
    /// From the top of the worktree.
    pub path: Vec<u8>,
    /// What the next commit would do to it.
    pub kind: ChangeKind,
    /// Whether two sides changed it, and nobody has decided.
    pub is_conflict: bool,
}

/// Where in a repository's own directory a path is: that directory, and the rest.
fn git_part(path: &Path) -> Option<(PathBuf, Vec<u8>)> {
    let mut directory = PathBuf::new();
    let mut parts = path.components();
    for part in parts.by_ref() {
        directory.push(part);
        if part.as_os_str() == ".git" {
            let rest = parts.as_path().as_os_str().as_bytes().to_vec();
            return Some((directory, rest));
        }
    }
    None
}

/// Whether a file of git's own only holds what a summary tells: it makes git do nothing.
fn is_told_by_summary(rest: &[u8], made: Option<&Made>) -> bool {
    if matches!(made, Some(Made::Link { .. } | Made::Special)) {
        return false;
    }
    let is_below = |name: &[u8]| {
        let below = rest.strip_prefix(name);
        below.is_some_and(|below| below.is_empty() || below.starts_with(b"/"))
    };
    let is_sample = |name: &[u8]| name.starts_with(b"hooks/") && name.ends_with(b".sample");
    match rest {
        // The directory itself, when it is new.
        b"" => matches!(made, Some(Made::Directory { .. })),
        b"hooks" | b"info" | b"branches" => matches!(made, Some(Made::Directory { .. })),
        // Both lead to objects elsewhere.
        b"objects/info/alternates" | b"objects/info/http-alternates" => false,
        b"HEAD" | b"ORIG_HEAD" | b"FETCH_HEAD" | b"MERGE_HEAD" | b"CHERRY_PICK_HEAD"
        | b"REVERT_HEAD" | b"AUTO_MERGE" | b"MERGE_MSG" | b"MERGE_MODE" | b"SQUASH_MSG"
        | b"COMMIT_EDITMSG" | b"index" | b"packed-refs" | b"gc.pid" | b"description" => true,
        _ => is_below(b"objects") || is_below(b"refs") || is_below(b"logs") || is_sample(rest),
    }
}

impl Overlay {
    /// Whether a change is one of git's own files that [`Overlay::repositories`] tells of.
    pub fn is_gits_own(&self, change: &Change) -> bool {
        let node = self.listing.nodes.get(change.node);
        let made = node.and_then(|node| node.entry.as_ref()?.made.as_ref());
        git_part(&change.path).is_some_and(|(_, rest)| is_told_by_summary(&rest, made))
    }

    /// What became of repositories, one for each `.git` with a change in it for which `is_wanted` says so.
    pub fn repositories(&self, is_wanted: impl Fn(&Change) -> bool) -> Vec<RepositorySummary> {
        let mut found: BTreeMap<PathBuf, (BTreeMap<Vec<u8>, usize>, usize)> = BTreeMap::new();
        for change in self.changes() {
            let Some((directory, rest)) = git_part(&change.path) else {
                continue;
            };
            let is_own = self.is_gits_own(&change) && is_wanted(&change);
            let (changes, count) = found.entry(directory).or_default();
            changes.insert(rest, change.node);
            *count += usize::from(is_own);
        }
        let found = found.into_iter().filter(|(_, (_, count))| *count > 0);
        found
            .map(|(directory, (changes, count))| self.repository(directory, changes, count))
            .collect()
    }

    fn repository(
        &self,
        directory: PathBuf,
        changes: BTreeMap<Vec<u8>, usize>,
        count: usize,
    ) -> RepositorySummary {
        let mut summary = RepositorySummary {
            files: count,
            ..RepositorySummary::default()
        };
        let Some(first) = changes.values().next() else {
            return summary;
        };
        let (root, _) = self.listing.way(*first);
        let way = match directory.strip_prefix(root) {
            Ok(way) => way.iter().map(OsStr::to_owned).collect(),
            Err(_) => return summary,
        };
        let files = GitFiles::new(&self.store, &self.listing, root, way, changes);
        if files.changed_below(b"reftable/").next().is_some() {
            let what = "its refs are kept in a form that is not looked into (reftable)";
            summary.remarks.push(what.to_owned());
        }
        let objects = GitObjects::new(&files);
        let (before, after) = (
            refs::head(&files, Side::Before),
            refs::head(&files, Side::After),
        );
        tell_refs(&files, &objects, &before, &after, &mut summary);
        if before != after {
            let shown = |target: Option<RefTarget>| target.as_ref().map(shown);
            summary.head = Some((shown(before), shown(after)));
        }
        if let Err(why) = staged::look(&files, &objects, &mut summary) {
            summary.remarks.push(why);
        }
        summary.remarks.extend(objects.remarks());
        for (list, what) in [
            (summary.staged.len(), "staged paths"),
            (summary.unwatched.len(), "paths"),
        ] {
            if list > MOST_TOLD {
                summary
                    .remarks
                    .push(format!("{} more {what}", list - MOST_TOLD));
            }
        }
        summary.staged.truncate(MOST_TOLD);
        summary.unwatched.truncate(MOST_TOLD);
        summary.directory = directory;
        summary
    }
}

/// Refs with their new commits: those of the branch that is checked out first.
fn tell_refs(
    files: &GitFiles<'_>,
    objects: &GitObjects<'_>,
    before: &Option<RefTarget>,
    after: &Option<RefTarget>,
    summary: &mut RepositorySummary,
) {
    let mut moves = refs::moves(files);
    // A commit may be checked out without any branch.
    if let (Some(RefTarget::Object(_)), true) = (after, before != after) {
        moves.push(RefMove {
            name: b"HEAD".to_vec(),
            before: refs::head_object(files, Side::Before).map(RefTarget::Object),
            after: after.clone(),
        });
    }
    if moves.len() > MOST_TOLD {
        summary
            .remarks
            .push(format!("{} more refs moved", moves.len() - MOST_TOLD));
        moves.truncate(MOST_TOLD);
    }
    let is_current = |moved: &RefMove| match after {
        Some(RefTarget::Symbolic(name)) => *name == moved.name,
        _ => moved.name == b"HEAD",
    };
    moves.sort_by_key(|moved| (!is_current(moved), !moved.name.starts_with(b"refs/heads/")));
    let mut walk = CommitWalk::new(objects);
    let object = |target: &Option<RefTarget>| -> Option<ObjectId> {
        match target {
            Some(RefTarget::Object(id)) => Some(*id),
            _ => None,
        }
    };
    for moved in moves {
        let mut told = MovedRef {
            before: moved.before.as_ref().map(shown),
            after: moved.after.as_ref().map(shown),
            commits: Vec::new(),
            goes_on: None,
            name: moved.name,
        };
        if let Some(after) = object(&moved.after) {
            let found = walk.between(object(&moved.before), after);
            told.commits = found.lines;
            told.goes_on = found.goes_on;
            summary.remarks.extend(found.unread.into_iter().take(10));
        }
        summary.refs.push(told);
    }
}

fn shown(target: &RefTarget) -> String {
    match target {
        RefTarget::Object(id) => id.hex(),
        RefTarget::Symbolic(name) => String::from_utf8_lossy(name).into_owned(),
        RefTarget::Unknown(text) => format!("? {}", String::from_utf8_lossy(text)),
    }
}
