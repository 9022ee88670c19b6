//! A place of one user's to make images at, with the binary.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use std::os::unix::process::CommandExt as _;

use serde_json::Value;

use super::build::{belljar, reachable_by_others};
use super::scratch::Scratch;
use super::{Who, runner_is_root};

/// A place of one user's: a state directory, a source, and the binary.
pub(crate) struct Place {
    pub(crate) who: Who,
    pub(crate) scratch: Scratch,
}

impl Place {
    pub(crate) fn new(who: Who) -> Self {
        let place = Self {
            who,
            scratch: Scratch::below("/tmp"),
        };
        place.put("source/etc/motd", "hello");
        place.put("source/bin/tool", "#!/bin/sh\n");
        place.own(place.at(""));
        place
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    pub(crate) fn put(&self, name: &str, text: &str) {
        let path = self.at(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
        fs::write(&path, text).expect("a file");
        self.own(path);
    }

    pub(crate) fn own(&self, path: PathBuf) {
        if !runner_is_root() {
            return;
        }
        let id = Some(self.who.uid());
        if path.is_dir() {
            for entry in fs::read_dir(&path).expect("a directory") {
                self.own(entry.expect("an entry").path());
            }
        }
        std::os::unix::fs::lchown(path, id, id).expect("given away");
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut belljar = belljar();
        if !self.who.is_runner() && !reachable_by_others(&belljar) {
            let copy = self.at("belljar");
            if !copy.exists() {
                fs::copy(&belljar, &copy).expect("a copy");
            }
            belljar = copy;
        }
        let mut command = Command::new(belljar);
        command
            .arg("image")
            .args(arguments)
            .env("BELLJAR_STATE_DIR", self.at("state"))
            .env_remove("DOCKER_HOST")
            .stdin(Stdio::null());
        if !self.who.is_runner() {
            command.uid(self.who.uid()).gid(self.who.uid());
        }
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("belljar runs")
    }

    #[track_caller]
    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let output = self.run(&[arguments, &["--output", "json"]].concat());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// What it said when it did not do it.
    #[track_caller]
    pub(crate) fn refused(&self, arguments: &[&str], code: i32) -> String {
        let output = self.run(arguments);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{errors}");
        errors
    }

    pub(crate) fn build_source(&self) -> Value {
        let source = self.at("source");
        self.json(&["build", "tools", "--from-dir", text(&source)])
    }

    pub(crate) fn making(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.at("state/images/making"));
        entries.map_or(Vec::new(), |entries| {
            entries.flatten().map(|entry| entry.path()).collect()
        })
    }
}

/// A path of a test's, as text.
pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}
