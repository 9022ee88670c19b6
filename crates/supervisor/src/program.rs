//! Finding the program of a box, as a shell would, among what the box shows.

use crate::command::Command;
use crate::environment as names;
use crate::error::RunError;
use crate::shows;
use crate::view::{Tree, is_program};
use belljar_policy::{Access, Decision, FileOp, PathTable};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

/// As many links as the kernel follows.
const MOST_LINKS: usize = 40;

/// Where programs are looked for.
pub(crate) struct Search<'a> {
    pub(crate) table: &'a PathTable,
    /// The image whose files are there, if not the host's.
    pub(crate) image: Option<&'a Tree>,
    /// Where relative names start.
    pub(crate) workdir: &'a Path,
    pub(crate) env: &'a [(OsString, OsString)],
}

enum Candidate {
    Good,
    Absent,
    NotExecutable,
    Hidden(String, String),
}

impl Search<'_> {
    /// The program's path inside.
    pub(crate) fn find(
        &self,
        command: &Command,
        name: Option<&OsStr>,
    ) -> Result<PathBuf, RunError> {
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            return Err(RunError::Invalid {
                what: "no command given".into(),
                hint: "belljar run -- PROGRAM [ARGS…]".into(),
            });
        };
        let shown = name.to_string_lossy().into_owned();
        if name.as_bytes().contains(&b'/') {
            let path = self.workdir.join(name);
            if shows::is_program(&command.shows, &path) {
                return Ok(path);
            }
            return match self.classify(&path) {
                Candidate::Good => Ok(path),
                Candidate::Absent => Err(not_found(shown, "no such file")),
                Candidate::NotExecutable => Err(not_executable(path)),
                Candidate::Hidden(what, hint) => Err(RunError::Refused { what, hint }),
            };
        }
        let search = self
            .env
            .iter()
            .find(|(key, _)| key == names::PATH)
            .map(|(_, value)| value.clone())
            .unwrap_or_default();
        let mut worse = None;
        for directory in std::env::split_paths(&search).filter(|path| path.is_absolute()) {
            let path = directory.join(name);
            match self.classify(&path) {
                Candidate::Good => return Ok(path),
                Candidate::Absent => {}
                Candidate::NotExecutable => worse = worse.or(Some(not_executable(path))),
                Candidate::Hidden(what, hint) => worse = Some(RunError::Refused { what, hint }),
            }
        }
        let looked = format!("looked in PATH={}", search.to_string_lossy());
        Err(worse.unwrap_or_else(|| not_found(shown, &looked)))
    }

    fn classify(&self, path: &Path) -> Candidate {
        match self.image {
            Some(tree) => self.classify_in_image(path, tree),
            None => self.classify_on_host(path),
        }
    }

    fn classify_on_host(&self, path: &Path) -> Candidate {
        let Ok(metadata) = std::fs::metadata(path) else {
            return Candidate::Absent;
        };
        let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        for seen in [path, &real] {
            let decision = self.table.decide(seen, FileOp::Read);
            if !decision.is_allow() {
                return hidden(seen, &decision);
            }
        }
        if metadata.is_file() && metadata.permissions().mode() & 0o111 != 0 {
            Candidate::Good
        } else {
            Candidate::NotExecutable
        }
    }

    /// Follows links as the kernel will inside: each part of the way is the image's or the host's, as the table says.
    fn classify_in_image(&self, path: &Path, tree: &Tree) -> Candidate {
        let mut left: Vec<OsString> = parts(path);
        let mut here = PathBuf::from("/");
        let mut links = 0;
        while let Some(part) = left.pop() {
            if part == ".." {
                here.pop();
                continue;
            }
            let next = here.join(&part);
            let decision = self.table.decide(&next, FileOp::Read);
            let at = match self.table.access(&next) {
                Access::Image => tree.on_host(&next),
                Access::Read | Access::CopyOnWrite | Access::Protected | Access::Write => {
                    next.clone()
                }
                // A directory of the box's own is empty, but for what is shown below.
                Access::Private => {
                    here = next;
                    continue;
                }
                // The directories above what is shown are there.
                Access::Hidden if !left.is_empty() => {
                    here = next;
                    continue;
                }
                Access::Hidden => return hidden(&next, &decision),
            };
            if self.is_opened_up(&next) {
                here = next;
                continue;
            }
            match std::fs::read_link(&at) {
                Ok(target) if links < MOST_LINKS => {
                    links += 1;
                    if target.is_absolute() {
                        here = PathBuf::from("/");
                    }
                    left.extend(parts(&target));
                }
                Ok(_) => return Candidate::Absent,
                Err(_) => here = next,
            }
        }
        let at = match self.table.access(&here) {
            Access::Image => tree.on_host(&here),
            Access::Read | Access::CopyOnWrite | Access::Protected | Access::Write => here,
            Access::Private | Access::Hidden => return Candidate::Absent,
        };
        match std::fs::symlink_metadata(&at) {
            Err(_) => Candidate::Absent,
            Ok(_) if is_program(&at) => Candidate::Good,
            Ok(_) => Candidate::NotExecutable,
        }
    }
}

impl Search<'_> {
    /// Whether something of the host's or the box's own is shown below: then a directory is there, whatever the image has.
    fn is_opened_up(&self, path: &Path) -> bool {
        self.table.iter().any(|(shown, entry)| {
            !matches!(entry.access, Access::Image | Access::Hidden)
                && shown != path
                && shown.starts_with(path)
        })
    }
}

/// The names in a path, the last first.
fn parts(path: &Path) -> Vec<OsString> {
    let names = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    });
    let mut names: Vec<OsString> = names.collect();
    names.reverse();
    names
}

fn hidden(path: &Path, decision: &Decision) -> Candidate {
    let because = decision.because();
    Candidate::Hidden(
        format!(
            "{} is not visible in the box ({}, {})",
            path.display(),
            because.reason.code(),
            because.origin
        ),
        because.hint.clone().unwrap_or_default(),
    )
}

fn not_found(program: String, hint: &str) -> RunError {
    RunError::NotFound {
        program,
        hint: hint.to_owned(),
    }
}

pub(crate) fn not_executable(program: PathBuf) -> RunError {
    let hint = if program.is_dir() {
        "it is a directory".to_owned()
    } else {
        format!("chmod +x {}, or name an interpreter", program.display())
    };
    RunError::NotExecutable { program, hint }
}
