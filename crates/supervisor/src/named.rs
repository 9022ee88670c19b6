//! The bounded search for files that are hidden by name, such as `.env`, wherever they are.
//!
//! No wall of the kernel goes by name, so the files are looked for when a box starts and covered one by one. The
//! search is bounded, or a large home would make every start slow: so many levels, so many directories.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};

/// How deep below each starting point. `~/a/b/.env` is found, `~/a/b/c/.env` is not.
const LEVELS: usize = 3;
/// How many directories in all.
const DIRECTORIES: usize = 1_000;
/// Never entered: large, and no place where people keep secrets by these names.
const SKIPPED: &[&str] = &[
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

/// Looks for files with one of `names` below `starts`. `leave_out` is not entered.
pub(crate) fn search(
    starts: &[PathBuf],
    names: &[&str],
    leave_out: &dyn Fn(&Path) -> bool,
) -> Found {
    let mut found = Found::default();
    let mut queue: VecDeque<(PathBuf, usize)> =
        starts.iter().map(|path| (path.clone(), 0)).collect();
    let mut budget = DIRECTORIES;
    while let Some((directory, depth)) = queue.pop_front() {
        if budget == 0 {
            found.unsearched.push(directory);
            continue;
        }
        budget -= 1;
        let Ok(entries) = fs::read_dir(&directory) else {
            continue;
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            let Ok(kind) = entry.file_type() else {
                continue;
            };
            if names.contains(&name) && !kind.is_dir() {
                found.files.push(entry.path());
            }
            // Dot directories belong to tools, which keep their secrets under other names.
            let enter = kind.is_dir()
                && depth + 1 < LEVELS
                && !name.starts_with('.')
                && !SKIPPED.contains(&name);
            if enter && !leave_out(&entry.path()) {
                queue.push_back((entry.path(), depth + 1));
            }
        }
    }
    found
}
