//! A repository for tests, here and of the command line.

use std::path::Path;
use std::process::Command;

/// What git says; it must do what it is told.
pub(crate) fn git(at: &Path, words: &[&str]) -> String {
    let who = ["-c", "user.name=x", "-c", "user.email=x@y"];
    let done = Command::new("git")
        .arg("-C")
        .arg(at)
        .args(who)
        .args(words)
        .output()
        .unwrap();
    assert!(done.status.success(), "{done:?}");
    String::from_utf8(done.stdout).unwrap().trim().to_owned()
}

/// A repository with all there is in its first commit.
pub(crate) fn repository(at: &Path) {
    git(at, &["init", "-q", "-b", "main"]);
    git(at, &["add", "-A"]);
    git(at, &["commit", "-qm", "first"]);
}
