//! The bounded search for files that are hidden by name, such as `.env`, wherever they are.
//!
//! No wall of the kernel goes by name, so the files are looked for when a box starts and covered one by one. The
//! search is bounded, or a large home would make every start slow: so many levels, so many directories.

use std::collections::{HashSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};

/// How far a search goes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// How deep below each starting point. With three, `~/a/b/.env` is found, `~/a/b/c/.env` is not.
    pub(crate) levels: usize,
    /// How many directories in all; and how many more whose names, or those above them, begin with a dot.
    pub(crate) directories: usize,
}

/// For what is hidden by name.
pub(crate) const HIDDEN: Bounds = Bounds {
    levels: 3,
    directories: 1_000,
};
/// Never entered: large, and no place where people keep secrets by these names.
const SKIPPED: &[&str] = &[
    ".git",
    "node_modules",
    "target",
    "venv",
    "__pycache__",
    "site-packages",
    "vendor",
    "dist",
];

/// What was found, and whether the search reached its bounds.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) files: Vec<PathBuf>,
    /// Directories that were not searched for want of budget. They are hidden instead of trusted.
    pub(crate) unsearched: Vec<PathBuf>,
}

/// Whether a search from `starts` looks at the entries of a directory, should it be there and the budget suffice.
pub(crate) fn reaches(starts: &[PathBuf], directory: &Path, bounds: Bounds) -> bool {
    let below = starts
        .iter()
        .filter_map(|start| directory.strip_prefix(start).ok());
    let mut names = below.map(|below| below.iter().map(|name| name.to_str()));
    names.any(|names| {
        let is_entered = |name: Option<&str>| name.is_some_and(|name| !SKIPPED.contains(&name));
        names.clone().count() < bounds.levels && names.into_iter().all(is_entered)
    })
}

/// Looks for files whose names are `wanted` below `starts`. `leave_out` is not entered. Dot directories belong to tools
/// and may be many: they come last, and have a budget of their own.
pub(crate) fn search(
    starts: &[PathBuf],
    wanted: &dyn Fn(&str) -> bool,
    leave_out: &dyn Fn(&Path) -> bool,
    bounds: Bounds,
) -> Found {
    let mut found = Found::default();
    let mut queue: VecDeque<(PathBuf, usize)> =
        starts.iter().map(|path| (path.clone(), 0)).collect();
    let mut dotted = VecDeque::new();
    // One start may lie below another, and is searched as deep as any.
    let mut known: HashSet<PathBuf> = starts.iter().cloned().collect();
    let mut budgets = [bounds.directories; 2];
    loop {
        let (next, budget) = match queue.pop_front() {
            Some(next) => (Some((next, false)), &mut budgets[0]),
            None => (dotted.pop_front().map(|next| (next, true)), &mut budgets[1]),
        };
        let Some(((directory, depth), is_dotted)) = next else {
            return found;
        };
        if *budget == 0 {
            found.unsearched.push(directory);
            continue;
        }
        *budget -= 1;
        let Ok(entries) = fs::read_dir(&directory) else {
            continue;
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            let Ok(kind) = entry.file_type() else {
                continue;
            };
            if wanted(name) && !kind.is_dir() {
                found.files.push(entry.path());
            }
            let enter = kind.is_dir() && depth + 1 < bounds.levels && !SKIPPED.contains(&name);
            if enter && !leave_out(&entry.path()) && known.insert(entry.path()) {
                let queue = match is_dotted || name.starts_with('.') {
                    true => &mut dotted,
                    false => &mut queue,
                };
                queue.push_back((entry.path(), depth + 1));
            }
        }
    }
}
