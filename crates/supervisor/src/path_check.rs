//! What a run does at one path: the same table and the same view, asked instead of built.

use crate::error::RunError;
use crate::lower::hide_state;
use crate::places::find_places;
use crate::repositories::with_repositories;
use crate::state::StateDir;
use crate::view::{Answers, Seen};
use belljar_policy::{Because, Capability, Decision, FileOp, PathTable, Places, Reason};
use belljar_sandbox::plan::Identity;
use std::path::{Path, PathBuf};

/// A capability's paths on this host, started in one directory.
pub struct PathCheck {
    table: PathTable,
    places: Places,
    identity: Identity,
    has_image: bool,
}

impl PathCheck {
    /// For a run that starts in `here`.
    ///
    /// # Errors
    /// When `here` is no directory, or the environment names a state directory that can't be one.
    pub fn new(capability: &Capability, here: &Path) -> Result<Self, RunError> {
        let (principal, places) = find_places(here)?;
        let state = match StateDir::place() {
            Ok(path) => Some(path),
            Err(error) if StateDir::is_named() => return Err(error),
            Err(_) => None,
        };
        let withheld = hide_state(capability, state.as_deref(), &places);
        let table = with_repositories(withheld, &places).path_table(&places);
        Ok(Self {
            table,
            places,
            identity: principal.identity,
            has_image: capability.image.is_some(),
        })
    }

    /// Where a path leads that somebody wrote: `~` is the home directory.
    #[must_use]
    pub fn path(&self, written: &Path) -> PathBuf {
        match written.strip_prefix("~") {
            Ok(rest) => self.places.home.join(rest),
            Err(_) => self.places.work.join(written),
        }
    }

    /// What a run does at each of these: at what exists, as it is now; at what does not, as it would once it is there.
    ///
    /// # Errors
    /// When a run with these paths would be refused.
    pub fn decide(&self, paths: &[PathBuf], op: FileOp) -> Result<Vec<Decision>, RunError> {
        if self.has_image {
            // An image's links are followed in it, where no path of the host's leads.
            let decided = paths
                .iter()
                .map(|path| self.by_table(path, &resolve(path), op));
            return Ok(decided.collect());
        }
        let answers = Answers::of(&self.table, &self.places, self.identity)?;
        let decided = paths.iter().map(|path| self.decide_by(&answers, path, op));
        Ok(decided.collect())
    }

    fn decide_by(&self, answers: &Answers<'_>, path: &Path, op: FileOp) -> Decision {
        let (seen, real) = answers.look(path);
        let said = Said {
            written: self.table.decide(path, op),
            real: self.table.decide(&real, op),
            is_by_name: self.table.is_hidden_by_name(&real),
            is_ours: rustix::fs::access(&real, rustix::fs::Access::READ_OK).is_ok(),
            op,
        };
        match (seen, op) {
            (Seen::Own, _) => said.real,
            // Nothing of the host's is there, whatever rules say about it.
            (Seen::Private, _) => Decision::Allow(Because {
                reason: Reason::AllowPrivate,
                origin: said.real.because().origin.clone(),
                hint: None,
            }),
            (Seen::Masked, FileOp::Read) => said.refused(
                Reason::DenyHidden,
                "nothing of the host's is there; the box may have made something of its own",
            ),
            (Seen::Masked, FileOp::Write) => Decision::Allow(Because {
                reason: Reason::AllowPrivateCopy,
                origin: said.real.because().origin.clone(),
                hint: None,
            }),
            (Seen::Readable, FileOp::Read) | (Seen::Writable, _) => said.granted(
                "it is where the search for files of this name does not look: name it in hidden_paths",
            ),
            (Seen::Readable, FileOp::Write) => {
                said.refused(Reason::DenyReadOnly, "what is there is not for writing")
            }
            (Seen::Nothing, _) => said.refused(
                Reason::DenyNotVisible,
                "it is hidden with a directory above it, or with what a link leads to",
            ),
            (Seen::Absent { .. }, FileOp::Read) => {
                let directory = real.parent().unwrap_or(&real);
                match said.is_by_name && !answers.is_searched(directory) {
                    true => said.granted("the search for files of this name does not look there"),
                    false => said.real,
                }
            }
            (Seen::Absent { creatable: true }, FileOp::Write) => {
                said.granted("it is not there; once it is, a run hides it by its name")
            }
            (Seen::Absent { creatable: false }, FileOp::Write) => said.refused(
                Reason::DenyNotVisible,
                "it is not there, and a run leaves out what is not: make it first",
            ),
        }
    }

    /// What the rules say about the path as it is written and about where it leads.
    fn by_table(&self, path: &Path, real: &Path, op: FileOp) -> Decision {
        let decision = self.table.decide(path, op);
        match real == path {
            true => decision,
            false => decision.strictest(self.table.decide(real, op)),
        }
    }
}

/// What the rules say, for the view to confirm or to correct.
struct Said {
    /// About the path as it is written.
    written: Decision,
    /// About where it leads.
    real: Decision,
    /// Whether nothing but its name hides it.
    is_by_name: bool,
    /// Whether its owner on the host lets us read it.
    is_ours: bool,
    op: FileOp,
}

impl Said {
    /// The view lets it through: the rule that does, or why no rule holds it.
    fn granted(self, hint: &str) -> Decision {
        if self.real.is_allow() {
            return self.real;
        }
        if self.written.is_allow() {
            return self.written;
        }
        // Where the host's own permissions keep it shut, the view leaves it to them.
        if !self.is_by_name && !self.is_ours {
            return self.real;
        }
        let hint = match self.is_by_name {
            true => hint,
            false => "a link that a rule names leads there",
        };
        Decision::Allow(Because {
            reason: match self.op {
                FileOp::Read => Reason::AllowReadable,
                FileOp::Write => Reason::AllowWritable,
            },
            origin: self.real.because().origin.clone(),
            hint: Some(hint.to_owned()),
        })
    }

    /// The view does not: the rule behind that, if it is about this very path.
    fn refused(self, reason: Reason, hint: &str) -> Decision {
        if !self.written.is_allow() {
            return self.written;
        }
        if !self.real.is_allow() {
            return self.real;
        }
        Decision::Deny(Because {
            reason,
            origin: self.real.because().origin.clone(),
            hint: Some(hint.to_owned()),
        })
    }
}

/// The path without links, as far as it is there.
fn resolve(path: &Path) -> PathBuf {
    for ancestor in path.ancestors() {
        if let (Ok(real), Ok(rest)) = (ancestor.canonicalize(), path.strip_prefix(ancestor)) {
            return if rest.as_os_str().is_empty() {
                real
            } else {
                real.join(rest)
            };
        }
    }
    path.to_owned()
}
