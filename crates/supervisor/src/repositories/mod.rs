//! Git in a workspace: what in a repository makes git run a program, or read another repository.
//!
//! What is there when a box starts is protected like `.git/config` and `.git/hooks`: the same parts of nested repositories,
//! of submodules (`.git/modules`) and of linked worktrees, as far as a bounded search finds them. What comes into being
//! while the box runs can't be covered before it is there; it is read when the box has ended, and told ([`judge`]).

mod config;
mod judge;

use judge::plain;
pub(crate) use judge::{Judged, judge, printable};

use belljar_policy::{Capability, FsMode, Origin, PathRule, Places, Rule};
use std::collections::HashSet;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// How deep below the workspace repositories are searched for before the start: `a/b/.git` is found.
const LEVELS: usize = 3;
/// How many directories are looked into for that.
const DIRECTORIES: usize = 200;
/// How many repositories are protected part by part. What holds more is protected as a whole.
const REPOSITORIES: usize = 100;
/// How deep submodules lie in submodules, or in directories of `modules`.
const MODULE_LEVELS: usize = 6;
/// Large, and no place of repositories that people work in. What an agent puts there is found in the end.
const SKIPPED: &[&str] = &["node_modules", "target", "venv", "__pycache__", "vendor"];
/// A file of git's that is read before a box starts is no longer than this.
const CONFIG_BYTES: u64 = 64 << 10;
/// So many files of settings that a repository includes are protected, and so many of its hooks that are links.
const INCLUDED: usize = 50;
const HOOKS: usize = 100;

/// The capability with the workspace's repositories protected: those parts that no list can name, because they depend on
/// what is there.
#[must_use]
pub fn with_repositories(mut capability: Capability, places: &Places) -> Capability {
    if capability.filesystem.mode == FsMode::ReadWrite {
        let mut parts = Parts::new(places);
        parts.of_work(&places.work);
        let rules = parts.paths.into_iter();
        let rules = rules.map(|path| Rule::new(PathRule::Root(path), Origin::built_in()));
        capability.filesystem.protected.extend(rules);
    }
    capability
}

struct Parts {
    work: PathBuf,
    home: PathBuf,
    paths: Vec<PathBuf>,
    repositories: usize,
}

impl Parts {
    fn new(places: &Places) -> Self {
        Self {
            work: places.work.clone(),
            home: places.home.clone(),
            paths: Vec::new(),
            repositories: 0,
        }
    }

    fn of_work(&mut self, work: &Path) {
        // Its `config` and `hooks` are in the list of protected paths.
        let own = work.join(".git");
        if is_directory(&own) {
            self.behind_hooks(&own.join("hooks"));
            self.beside_config(&own);
        }
        let mut queue = vec![work.to_owned()];
        let mut budget = DIRECTORIES;
        for level in 0..LEVELS {
            let mut deeper = Vec::new();
            for directory in std::mem::take(&mut queue) {
                if budget == 0 {
                    return;
                }
                budget -= 1;
                self.look_into(&directory, level > 0, &mut deeper);
            }
            queue = deeper;
        }
    }

    fn look_into(&mut self, directory: &Path, is_nested: bool, deeper: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let (name, Ok(kind)) = (entry.file_name(), entry.file_type()) else {
                continue;
            };
            let Some(name) = name.to_str() else { continue };
            if name == ".git" && is_nested {
                match kind.is_file() {
                    true => self.paths.push(entry.path()),
                    // Of a link too: what it leads to is found through it, and the link is held in its place.
                    false => self.repository(&entry.path()),
                }
            }
            if kind.is_dir() && !name.starts_with('.') && !SKIPPED.contains(&name) {
                deeper.push(entry.path());
            }
        }
    }

    /// A repository whose parts are in no list.
    fn repository(&mut self, git: &Path) {
        self.repositories += 1;
        if self.repositories > REPOSITORIES {
            self.paths.push(git.to_owned());
            return;
        }
        self.paths
            .extend(["config", "hooks"].map(|part| git.join(part)));
        self.behind_hooks(&git.join("hooks"));
        self.beside_config(git);
    }

    /// What else decides what git does in a repository.
    fn beside_config(&mut self, git: &Path) {
        let settings = settings_of(git).unwrap_or_default();
        let config = git.join("config.worktree");
        if exists(&config) || asks_for_worktree_config(&settings) {
            self.paths.push(config);
        }
        // Hooks and settings that a team keeps among its files.
        let found = config::elsewhere(&settings);
        let top = match &found.worktree {
            Some(worktree) => plain(&git.join(worktree)),
            None => git.parent().map(Path::to_owned),
        };
        let top = top.unwrap_or_else(|| git.to_owned());
        let hooks = found
            .hooks
            .iter()
            .filter_map(|path| self.named(&top, path))
            // A repository that is its own directory of hooks can't be worked in and protected.
            .filter(|path| !top.starts_with(path));
        for hooks in hooks.collect::<Vec<PathBuf>>() {
            self.behind_hooks(&hooks);
            self.paths.push(hooks);
        }
        self.further_settings(git, found.settings);
        // It can't be stood in for without breaking git: where it is, git reads its configuration elsewhere.
        self.existing(git, &["commondir"]);
        for worktree in directories(&git.join("worktrees")) {
            self.existing(&worktree, &["commondir", "gitdir", "config.worktree"]);
        }
        self.modules(&git.join("modules"), 0);
    }

    /// What settings mean by a path, from a directory on.
    fn named(&self, from: &Path, path: &Path) -> Option<PathBuf> {
        let text = path.as_os_str().as_bytes();
        if text.is_empty() || text.starts_with(b"%") {
            return None;
        }
        match path.strip_prefix("~") {
            Ok(below) => plain(&self.home.join(below)),
            Err(_) if text.starts_with(b"~") => None,
            Err(_) => plain(&from.join(path)),
        }
    }

    /// Settings that settings include, and what these include. A directory in the place of one that is missing would trouble
    /// git: what comes into being there is judged in the end.
    fn further_settings(&mut self, directory: &Path, named: Vec<PathBuf>) {
        let mut waiting: Vec<(PathBuf, PathBuf)> = Vec::new();
        let from = |directory: &Path, named: Vec<PathBuf>| {
            let directory = directory.to_owned();
            named.into_iter().map(move |path| (directory.clone(), path))
        };
        waiting.extend(from(directory, named));
        let mut known = HashSet::new();
        while let Some((directory, path)) = waiting.pop() {
            let Some(path) = self.named(&directory, &path).filter(|path| path.is_file()) else {
                continue;
            };
            if known.len() >= INCLUDED || !known.insert(path.clone()) {
                continue;
            }
            let text = read_settings(&path).unwrap_or_default();
            let directory = path.parent().unwrap_or(&path);
            waiting.extend(from(directory, config::elsewhere(&text).settings));
            self.paths.push(path);
        }
    }

    /// Hooks that are links to files among the workspace's own: whoever writes those writes hooks.
    fn behind_hooks(&mut self, hooks: &Path) {
        let entries = fs::read_dir(hooks).into_iter().flatten().flatten();
        let links = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_symlink()));
        let links = links.take(HOOKS).map(|entry| entry.path());
        let work = self.work.clone();
        let is_here = |link: &PathBuf| {
            let target = link.canonicalize();
            target.is_ok_and(|target| target.starts_with(&work) && target.is_file())
        };
        self.paths.extend(links.filter(is_here));
    }

    fn existing(&mut self, git: &Path, names: &[&str]) {
        let paths = names.iter().map(|name| git.join(name));
        self.paths.extend(paths.filter(|path| exists(path)));
    }

    fn modules(&mut self, directory: &Path, level: usize) {
        for module in directories(directory) {
            if exists(&module.join("HEAD")) {
                self.repository(&module);
            } else if level < MODULE_LEVELS {
                // A submodule's name may have slashes.
                self.modules(&module, level + 1);
            } else {
                self.paths.push(module);
            }
        }
    }
}

fn exists(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

fn is_directory(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.is_dir())
}

fn directories(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

/// A repository's settings, if they are a file of a usual size.
fn settings_of(git: &Path) -> Option<Vec<u8>> {
    read_settings(&git.join("config"))
}

fn read_settings(path: &Path) -> Option<Vec<u8>> {
    let found = fs::metadata(path).ok()?;
    let is_small = found.is_file() && found.len() <= CONFIG_BYTES;
    is_small.then(|| fs::read(path).ok())?
}

/// Whether git would read `config.worktree`, were it there.
fn asks_for_worktree_config(settings: &[u8]) -> bool {
    let wanted = b"worktreeconfig";
    let text = settings.to_ascii_lowercase();
    text.windows(wanted.len()).any(|part| part == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_every_repository_that_is_there_are_found() {
        let place = tempfile::tempdir().expect("a directory");
        let work = place.path();
        for file in [
            ".git/HEAD",
            ".git/modules/lib/HEAD",
            ".git/modules/deep/er/HEAD",
            ".git/modules/lib/modules/inner/HEAD",
            ".git/worktrees/side/commondir",
            ".git/worktrees/side/gitdir",
            "lib/.git",
            "nested/.git/HEAD",
            "more/of/it.conf",
            "tools/lint.sh",
            "node_modules/x/.git/HEAD",
        ] {
            let path = work.join(file);
            fs::create_dir_all(path.parent().expect("a parent")).expect("make");
            fs::write(path, "").expect("write");
        }
        fs::write(
            work.join(".git/config"),
            "[extensions]\n\tWorktreeConfig = true\n[core]\n\thooksPath = tools/hooks\n[include]\n\tpath = ../team.conf\n",
        )
        .expect("write");
        fs::write(
            work.join("team.conf"),
            "[include]\n\tpath = more/of/it.conf\n\tpath = ~/none.conf\n\tpath = team.conf\n",
        )
        .expect("write");
        fs::write(
            work.join(".git/modules/lib/config"),
            "[core]\n\tworktree = ../../../lib\n\thooksPath = .husky\n",
        )
        .expect("write");
        fs::create_dir_all(work.join(".git/hooks")).expect("make");
        for (link, target) in [
            ("pre-commit", "../../tools/lint.sh"),
            ("pre-push", "/bin/true"),
        ] {
            std::os::unix::fs::symlink(target, work.join(".git/hooks").join(link)).expect("link");
        }
        let mut parts = Parts {
            work: work.to_owned(),
            home: work.join("home"),
            paths: Vec::new(),
            repositories: 0,
        };
        parts.of_work(work);
        let mut found: Vec<String> = parts
            .paths
            .iter()
            .map(|path| {
                path.strip_prefix(work)
                    .expect("in it")
                    .display()
                    .to_string()
            })
            .collect();
        found.sort();
        let mut wanted = [
            ".git/config.worktree",
            ".git/hooks/pre-commit",
            ".git/modules/deep/er/config",
            ".git/modules/deep/er/hooks",
            ".git/modules/lib/config",
            ".git/modules/lib/hooks",
            ".git/modules/lib/modules/inner/config",
            ".git/modules/lib/modules/inner/hooks",
            ".git/worktrees/side/commondir",
            ".git/worktrees/side/gitdir",
            "lib/.git",
            "lib/.husky",
            "more/of/it.conf",
            "nested/.git/config",
            "nested/.git/hooks",
            "team.conf",
            "tools/hooks",
        ];
        wanted.sort_unstable();
        assert_eq!(found, wanted);
    }
}
