//! History in git: a branch for each proposal and one for releases, written without a working tree.
//!
//! The target repository is somebody's: its index, its files and whatever it has checked out are never touched, none of its
//! hooks or filters runs, and nothing goes over a network. Objects are written, and refs below `belljar/` moved.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::tree::Tree;

/// Where a proposal's branch is.
const BRANCHES: &str = "refs/heads/belljar/proposals/";
/// Where what was released is merged.
const RELEASES: &str = "refs/heads/belljar/releases";

/// Why history was not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GitError {
    /// Git is not there, or can't be started.
    #[error("git can't be started")]
    Start(#[source] std::io::Error),
    /// Git said no.
    #[error("git {what} failed: {said}")]
    Failed {
        /// What was asked.
        what: String,
        /// What it said.
        said: String,
    },
    /// Somebody has the branch checked out.
    #[error("the branch {0} is checked out, and moving it would change a working tree's meaning")]
    CheckedOut(String),
}

impl GitError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Start(_) => "install git",
            Self::Failed { .. } => "see that the project is a git repository that you can write to",
            Self::CheckedOut(_) => "check out another branch there",
        }
    }
}

/// The history of one repository.
#[derive(Clone, Debug)]
pub struct History {
    repository: PathBuf,
    /// Ours, and not the repository's own.
    index: PathBuf,
}

impl History {
    /// The repository that a project is in. An index is made in `scratch`, a directory of the caller's own.
    #[must_use]
    pub fn of(repository: &Path, scratch: &Path) -> Self {
        Self {
            repository: repository.to_owned(),
            index: scratch.join("git-index"),
        }
    }

    fn git(&self, words: &[&str], stdin: &[u8]) -> Result<String, GitError> {
        let mut child = Command::new("git")
            .arg("-C")
            .arg(&self.repository)
            // Nothing that the repository, or somebody's settings, could have us run or fetch.
            .args([
                "-c",
                "core.hooksPath=/dev/null",
                "-c",
                "core.fsmonitor=false",
                "-c",
                "protocol.allow=never",
            ])
            .args([
                "-c",
                "commit.gpgSign=false",
                "-c",
                "gc.auto=0",
                "-c",
                "maintenance.auto=false",
            ])
            .args(words)
            .env_remove("GIT_DIR")
            .env_remove("GIT_WORK_TREE")
            .env("GIT_INDEX_FILE", &self.index)
            .env_remove("GIT_OBJECT_DIRECTORY")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("GIT_OPTIONAL_LOCKS", "0")
            .envs(["AUTHOR", "COMMITTER"].map(|who| (format!("GIT_{who}_NAME"), "Belljar")))
            .envs(
                ["AUTHOR", "COMMITTER"]
                    .map(|who| (format!("GIT_{who}_EMAIL"), "belljar@localhost")),
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(GitError::Start)?;
        if let Some(mut to) = child.stdin.take() {
            // What git did not want to read it says itself.
            let _ = to.write_all(stdin);
        }
        let done = child.wait_with_output().map_err(GitError::Start)?;
        if !done.status.success() {
            return Err(GitError::Failed {
                what: words.first().copied().unwrap_or_default().to_owned(),
                said: String::from_utf8_lossy(&done.stderr)
                    .trim()
                    .chars()
                    .take(500)
                    .collect(),
            });
        }
        Ok(String::from_utf8_lossy(&done.stdout).trim().to_owned())
    }

    /// The tree of a commit with what differs between two trees of ours put in: blobs as they are, without filters, by way of
    /// an index of our own. What the repository has besides, and we never look at, stays.
    fn changed_tree(&self, onto: Option<&str>, from: &Tree, to: &Tree) -> Result<String, GitError> {
        let prefix = self.git(&["rev-parse", "--show-prefix"], b"")?;
        let gone = from.iter().filter(|(path, _)| to.get(path).is_none());
        let mut lines: Vec<u8> = Vec::new();
        for (path, _) in gone {
            lines.extend(format!("0 {}\t{prefix}{}\0", "0".repeat(40), path.as_str()).bytes());
        }
        for (path, entry) in to
            .iter()
            .filter(|(path, entry)| from.get(path) != Some(*entry))
        {
            let words = ["hash-object", "-w", "-t", "blob", "--no-filters", "--stdin"];
            let name = self.git(&words, &entry.blob)?;
            lines.extend(
                format!(
                    "{} {name}\t{prefix}{}\0",
                    entry.mode.as_git(),
                    path.as_str()
                )
                .bytes(),
            );
        }
        let forget = || match std::fs::remove_file(&self.index) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(GitError::Start(error))
            }
            _ => Ok(()),
        };
        forget()?;
        if let Some(onto) = onto {
            self.git(&["read-tree", onto], b"")?;
        }
        self.git(&["update-index", "-z", "--index-info"], &lines)?;
        let tree = self.git(&["write-tree"], b"");
        forget()?;
        tree
    }

    fn tip(&self, name: &str) -> Option<String> {
        let spelled = format!("{name}^{{commit}}");
        self.git(&["rev-parse", "--verify", "--quiet", &spelled], b"")
            .ok()
    }

    /// Moves a ref of ours, if it is still where it was and nobody has it checked out.
    fn advance(&self, name: &str, to: &str, was: Option<&str>) -> Result<(), GitError> {
        let trees = self.git(&["worktree", "list", "--porcelain"], b"")?;
        if trees
            .lines()
            .any(|line| line.strip_prefix("branch ") == Some(name))
        {
            return Err(GitError::CheckedOut(name.to_owned()));
        }
        let absent = "0".repeat(to.len());
        self.git(&["update-ref", name, to, was.unwrap_or(&absent)], b"")
            .map(drop)
    }

    /// Commits a change to its proposal's branch, on top of what the repository has checked out. Gives the commit.
    ///
    /// # Errors
    /// When git refuses.
    pub fn branch(
        &self,
        proposal: &str,
        base: &Tree,
        candidate: &Tree,
        message: &str,
    ) -> Result<String, GitError> {
        let name = format!("{BRANCHES}{proposal}");
        let was = self.tip(&name);
        let onto = self.tip("HEAD");
        let tree = self.changed_tree(onto.as_deref(), base, candidate)?;
        let parents: Vec<&str> = was.as_deref().or(onto.as_deref()).into_iter().collect();
        self.commit(&name, &tree, &parents, was.as_deref(), message)
    }

    /// Merges a proposal's branch into the branch of releases: what was promoted.
    ///
    /// # Errors
    /// When git refuses, or the branch is not there.
    pub fn merge(
        &self,
        proposal: &str,
        base: &Tree,
        candidate: &Tree,
        message: &str,
    ) -> Result<String, GitError> {
        let branch = self.git(
            &["rev-parse", "--verify", &format!("{BRANCHES}{proposal}")],
            b"",
        )?;
        let was = self.tip(RELEASES);
        let onto = was.clone().or_else(|| self.tip("HEAD"));
        let tree = self.changed_tree(onto.as_deref(), base, candidate)?;
        let parents: Vec<&str> = onto
            .as_deref()
            .into_iter()
            .chain([branch.as_str()])
            .collect();
        self.commit(RELEASES, &tree, &parents, was.as_deref(), message)
    }

    /// Puts what was before back on top of the branch of releases: what was rolled back. Nothing is erased.
    ///
    /// # Errors
    /// When git refuses.
    pub fn restore(
        &self,
        base: &Tree,
        candidate: &Tree,
        message: &str,
    ) -> Result<String, GitError> {
        let was = self.tip(RELEASES);
        let onto = was.clone().or_else(|| self.tip("HEAD"));
        let tree = self.changed_tree(onto.as_deref(), candidate, base)?;
        let parents: Vec<&str> = onto.as_deref().into_iter().collect();
        self.commit(RELEASES, &tree, &parents, was.as_deref(), message)
    }

    /// Whether there is a repository at all.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.git(&["rev-parse", "--git-dir"], b"").is_ok()
    }

    fn commit(
        &self,
        name: &str,
        tree: &str,
        parents: &[&str],
        was: Option<&str>,
        message: &str,
    ) -> Result<String, GitError> {
        let mut words = vec!["commit-tree", tree];
        for parent in parents {
            words.extend(["-p", parent]);
        }
        let commit = self.git(&words, message.as_bytes())?;
        self.advance(name, &commit, was)?;
        Ok(commit)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#[path = "../../tests/common/git.rs"]
mod helper;

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::helper::{git, repository};
    use super::*;
    use crate::TreePath;
    use crate::tree::Entry;

    #[test]
    fn a_proposal_is_branched_merged_and_undone_and_the_working_tree_is_never_touched() {
        let place = tempfile::tempdir().unwrap();
        let (project, scratch) = (place.path().join("p"), place.path().join("s"));
        std::fs::create_dir_all(&project).unwrap();
        std::fs::create_dir_all(&scratch).unwrap();
        std::fs::write(project.join("a.py"), "1\n").unwrap();
        repository(&project);
        // Unfinished work, a filter and hooks that would leave a mark.
        std::fs::write(project.join("a.py"), "mine\n").unwrap();
        let mark = place.path().join("mark");
        let script = format!("#!/bin/sh\ntouch {}\n", mark.display());
        for hook in ["reference-transaction", "post-commit", "post-index-change"] {
            use std::os::unix::fs::PermissionsExt as _;
            let path = project.join(".git/hooks").join(hook);
            std::fs::write(&path, &script).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        git(
            &project,
            &[
                "config",
                "filter.evil.clean",
                &format!("touch {}", mark.display()),
            ],
        );
        std::fs::write(project.join(".git/info/attributes"), "* filter=evil\n").unwrap();
        let _ = std::fs::remove_file(&mark);
        let before = {
            let index = std::fs::read(project.join(".git/index")).unwrap();
            (
                git(&project, &["rev-parse", "HEAD"]),
                index,
                std::fs::read(project.join("a.py")).unwrap(),
            )
        };
        let _ = std::fs::remove_file(&mark);
        let history = History::of(&project, &scratch);
        let base = {
            let mut tree = Tree::default();
            tree.put(TreePath::new("a.py").unwrap(), Entry::file("1\n"));
            tree
        };
        let mut candidate = base.clone();
        candidate.put(TreePath::new("b/c.py").unwrap(), Entry::file("2\n"));
        let id = "ab".repeat(32);
        let commit = history.branch(&id, &base, &candidate, "Add c").unwrap();
        assert_eq!(
            git(&project, &["rev-parse", &format!("{commit}^{{tree}}")]),
            candidate.git_hash()
        );
        let merged = history.merge(&id, &base, &candidate, "Release c").unwrap();
        let parents = git(&project, &["rev-list", "--parents", "-n1", &merged]);
        assert_eq!(
            parents.split(' ').count(),
            3,
            "a merge has two parents: {parents}"
        );
        let undone = history.restore(&base, &candidate, "Take c back").unwrap();
        assert_eq!(
            git(&project, &["rev-parse", &format!("{undone}^{{tree}}")]),
            base.git_hash()
        );
        assert!(!mark.exists(), "a hook or a filter ran");
        let after = {
            let index = std::fs::read(project.join(".git/index")).unwrap();
            (
                git(&project, &["rev-parse", "HEAD"]),
                index,
                std::fs::read(project.join("a.py")).unwrap(),
            )
        };
        assert_eq!(before, after);
        assert!(!scratch.join("git-index").exists());
        // A branch that somebody looks at is not moved under them.
        git(&project, &["config", "core.hooksPath", "/dev/null"]);
        let beside = place.path().join("beside");
        git(
            &project,
            &[
                "worktree",
                "add",
                "-q",
                beside.to_str().unwrap(),
                "belljar/releases",
            ],
        );
        assert!(matches!(
            history.restore(&base, &candidate, "x"),
            Err(GitError::CheckedOut(_))
        ));
    }
}
