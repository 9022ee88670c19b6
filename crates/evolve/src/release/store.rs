//! The store of releases of one project.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::journal::{Journal, Line, Move, MoveKind};
use crate::disk;
use crate::review::Approved;
use crate::tree::{Tree, TreeError};

/// A name under which a release is shown: `current`, or an instance's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place(String);

impl Place {
    /// The one that everybody uses.
    #[must_use]
    pub fn current() -> Self {
        Self("current".to_owned())
    }

    /// The one where moves are tried.
    fn rehearsal() -> Self {
        Self("rehearsal".to_owned())
    }

    /// The place of an instance.
    ///
    /// # Errors
    /// When the name is not one for a file.
    pub fn instance(name: &str) -> Result<Self, ReleaseError> {
        let good = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let is_name = !name.is_empty()
            && name.len() <= 64
            && !name.starts_with('.')
            && name.chars().all(good);
        if !is_name {
            return Err(ReleaseError::Name(name.to_owned()));
        }
        Ok(Self(format!("instances/{name}")))
    }

    /// Below the store's directory.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Why a release was not kept or shown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// The place shows something else than what the candidate was made from.
    #[error("`{place}` shows {shows}, and the candidate was made from {parent}")]
    OtherParent {
        /// Where.
        place: String,
        /// What it shows.
        shows: String,
        /// What it should.
        parent: String,
    },
    /// A tree is not what its name says.
    #[error("the release {name} holds another tree: {found}")]
    Altered {
        /// What it should be.
        name: String,
        /// What it is.
        found: String,
    },
    /// The tree was given up.
    #[error("the release {tree} was given up: {why}")]
    Aborted {
        /// Which.
        tree: String,
        /// Why.
        why: String,
    },
    /// There is no such release.
    #[error("there is no release {0}")]
    Unknown(String),
    /// There is nothing to go back to.
    #[error("`{0}` has nothing before it to go back to")]
    Nothing(String),
    /// Nobody's approval counts for it any more.
    #[error("the approval has expired")]
    Expired,
    /// The tree is not the one that was approved or rehearsed.
    #[error("the tree {given} is not the one that was {what}: {expected}")]
    NotThat {
        /// Which it is.
        given: String,
        /// Approved or rehearsed.
        what: &'static str,
        /// Which it should be.
        expected: String,
    },
    /// A name that is none.
    #[error("{0:?} can't be an instance's name")]
    Name(String),
    /// A tree can't be read or written.
    #[error("the tree can't be used")]
    Tree(#[from] TreeError),
    /// The disk refused.
    #[error("{path} can't be used")]
    File {
        /// What.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl ReleaseError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::OtherParent { .. } => {
                "something else was released meanwhile; propose the change anew, on top of it"
            }
            Self::Altered { .. } => {
                "somebody changed a release where it is kept; nothing was moved onto it. Remove it and make it anew"
            }
            Self::Aborted { .. } => {
                "a version that failed is not tried again; propose a changed one"
            }
            Self::Unknown(_) => "`belljar evolve status` names them",
            Self::Nothing(_) => "it is the first release",
            Self::Expired => "have it approved again",
            Self::NotThat { .. } => {
                "the tree was changed after it was looked at; have the new one looked at"
            }
            Self::Name(_) => "letters, digits, `.`, `-` and `_`, 64 at most",
            Self::Tree(_) | Self::File { .. } => {
                "see that the disk is not full and the state directory can be written to"
            }
        }
    }
}

/// Proof that the way to a tree and back was gone, at a place nobody looks at, and every hash was right.
#[derive(Debug)]
pub struct Rehearsed {
    from: String,
    to: String,
}

/// What a process that ended in the middle of a move left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// The move.
    pub what: Move,
    /// Whether it was made.
    pub made: bool,
}

/// Told before each change to the disk. Tests end the process here.
type Steps = Arc<dyn Fn(&str) + Send + Sync>;

/// The releases of one project.
pub struct Store {
    directory: PathBuf,
    journal: Journal,
    steps: Option<Steps>,
    /// What was found unfinished when it was opened.
    recovered: Option<Recovered>,
    _lock: disk::Lock,
}

impl Store {
    /// Opens the store of a directory, made if need be, and ends what another process left unfinished. Nobody else
    /// has it until it is dropped.
    ///
    /// # Errors
    /// When the disk refuses, or the journal is not ours.
    pub fn open(directory: &Path) -> Result<Self, ReleaseError> {
        Self::open_with(directory, None)
    }

    /// The same, telling `steps` before each change to the disk.
    #[doc(hidden)]
    pub fn open_watched(
        directory: &Path,
        steps: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Self, ReleaseError> {
        Self::open_with(directory, Some(Arc::new(steps)))
    }

    fn open_with(directory: &Path, steps: Option<Steps>) -> Result<Self, ReleaseError> {
        let failed = |source| ReleaseError::File {
            path: directory.to_owned(),
            source,
        };
        for below in ["objects", "instances", "making"] {
            disk::private_directory(&directory.join(below)).map_err(failed)?;
        }
        let lock = disk::Lock::take(&directory.join("lock")).map_err(failed)?;
        let journal = Journal::open(&directory.join("journal")).map_err(failed)?;
        disk::sync_directory(directory).map_err(failed)?;
        let mut store = Self {
            directory: directory.to_owned(),
            journal,
            steps,
            recovered: None,
            _lock: lock,
        };
        store.recover()?;
        Ok(store)
    }

    fn step(&self, what: &str) {
        if let Some(steps) = &self.steps {
            steps(what);
        }
    }

    /// What was found unfinished when the store was opened.
    #[must_use]
    pub fn recovered(&self) -> Option<&Recovered> {
        self.recovered.as_ref()
    }

    /// Sees where a move was left, and writes its end down. The rename is the one moment between before and after.
    fn recover(&mut self) -> Result<(), ReleaseError> {
        self.sweep()?;
        let Some((n, what)) = self.journal.open_move().map(|(n, what)| (n, what.clone())) else {
            return Ok(());
        };
        let place = Place(what.place.clone());
        let made = self.shows(&place)?.as_ref() == Some(&what.to);
        if made {
            self.verify(&what.to)?;
            self.sync_place(&place)?;
        }
        self.note(if made {
            Line::Done { n }
        } else {
            Line::Undone { n }
        })?;
        self.recovered = Some(Recovered { what, made });
        Ok(())
    }

    /// Removes trees that were not finished.
    fn sweep(&self) -> Result<(), ReleaseError> {
        let making = self.directory.join("making");
        for entry in fs::read_dir(&making).map_err(failed(&making))? {
            let path = entry.map_err(failed(&making))?.path();
            let removed = match fs::symlink_metadata(&path) {
                Ok(facts) if facts.is_dir() => fs::remove_dir_all(&path),
                _ => fs::remove_file(&path),
            };
            removed.map_err(failed(&path))?;
        }
        Ok(())
    }

    fn note(&mut self, line: Line) -> Result<(), ReleaseError> {
        let path = self.directory.join("journal");
        self.journal.add(line).map_err(failed(&path))
    }

    /// Where a release is.
    #[must_use]
    pub fn path(&self, tree: &str) -> PathBuf {
        self.directory.join("objects").join(tree)
    }

    /// Keeps a tree under its digest, which is given back. It is whole and on disk, or not there.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn keep(&mut self, tree: &Tree) -> Result<String, ReleaseError> {
        let name = tree.digest();
        let path = self.path(&name);
        if path.is_dir() {
            self.verify(&name)?;
            return Ok(name);
        }
        let making = self.directory.join("making").join(&name);
        self.step("export");
        tree.export(&making)?;
        self.step("sync");
        // All of it at once: a tree has thousands of files, and a sync for each takes seconds.
        let opened = fs::File::open(&making).map_err(failed(&making))?;
        rustix::fs::syncfs(&opened).map_err(|errno| failed(&making)(errno.into()))?;
        self.step("publish");
        fs::rename(&making, &path).map_err(failed(&path))?;
        self.step("published");
        disk::sync_directory(&self.directory.join("objects")).map_err(failed(&path))?;
        self.verify(&name)?;
        Ok(name)
    }

    /// Hashes a release again.
    ///
    /// # Errors
    /// When it is not what its name says.
    pub fn verify(&self, tree: &str) -> Result<(), ReleaseError> {
        let path = self.path(tree);
        if !path.is_dir() {
            return Err(ReleaseError::Unknown(tree.to_owned()));
        }
        let found = Tree::read(&path, &[])?.digest();
        if found == tree {
            Ok(())
        } else {
            Err(ReleaseError::Altered {
                name: tree.to_owned(),
                found,
            })
        }
    }

    /// What a place shows, as the link says.
    ///
    /// # Errors
    /// When it is no link of ours.
    pub fn shows(&self, place: &Place) -> Result<Option<String>, ReleaseError> {
        let path = self.directory.join(&place.0);
        let target = match fs::read_link(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(failed(&path))?,
        };
        let name = target
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        if target != link(place, name) {
            let strange = io::Error::other("it is not a link into the store");
            return Err(failed(&path)(strange));
        }
        Ok(Some(name.to_owned()))
    }

    /// Shows the first release of a place.
    ///
    /// # Errors
    /// When it shows one already, or the tree is not there.
    pub fn install(&mut self, place: &Place, tree: &str) -> Result<(), ReleaseError> {
        self.go(place, None, tree, MoveKind::Install)
    }

    /// Goes to a candidate and back where nobody looks, by the same steps that a promotion and its rollback take.
    ///
    /// # Errors
    /// When any of it fails: then nothing is promoted.
    pub fn rehearse(&mut self, from: &str, to: &str) -> Result<Rehearsed, ReleaseError> {
        let place = Place::rehearsal();
        let start = self.shows(&place)?;
        for (before, after) in [(start.as_deref(), from), (Some(from), to), (Some(to), from)] {
            self.go(&place, before, after, MoveKind::Rehearse)?;
        }
        Ok(Rehearsed {
            from: from.to_owned(),
            to: to.to_owned(),
        })
    }

    /// Shows an approved candidate at a place, if it still shows what the candidate was made from.
    ///
    /// # Errors
    /// When it does not, the approval has expired or is another tree's, or the tree failed before.
    pub fn promote(
        &mut self,
        place: &Place,
        approved: &Approved,
        rehearsed: &Rehearsed,
        now_s: u64,
    ) -> Result<(), ReleaseError> {
        let digests = approved.digests();
        if !approved.is_good(now_s) {
            return Err(ReleaseError::Expired);
        }
        if (&rehearsed.from, &rehearsed.to) != (&digests.base_tree, &digests.candidate_tree) {
            return Err(ReleaseError::NotThat {
                given: digests.candidate_tree.clone(),
                what: "rehearsed",
                expected: rehearsed.to.clone(),
            });
        }
        let (from, to) = (digests.base_tree.clone(), digests.candidate_tree.clone());
        self.go(place, Some(&from), &to, MoveKind::Promote)
    }

    /// Goes back to what a place showed before its last promotion, and says to which tree.
    ///
    /// # Errors
    /// When there is nothing to go back to, or it was altered.
    pub fn roll_back(&mut self, place: &Place) -> Result<String, ReleaseError> {
        let shows = self
            .shows(place)?
            .ok_or_else(|| ReleaseError::Nothing(place.0.clone()))?;
        let before = self
            .journal
            .moves(&place.0)
            .rev()
            .find(|made| made.to == shows && made.kind == MoveKind::Promote)
            .and_then(|made| made.from.clone())
            .ok_or_else(|| ReleaseError::Nothing(place.0.clone()))?;
        self.go(place, Some(&shows), &before, MoveKind::RollBack)?;
        Ok(before)
    }

    /// Gives a tree up: it failed in use and is never promoted again.
    ///
    /// # Errors
    /// When that can't be written down.
    pub fn abort(&mut self, tree: &str, why: &str) -> Result<(), ReleaseError> {
        if self.journal.aborted(tree).is_none() {
            self.step("abort");
            self.note(Line::Abort {
                tree: tree.to_owned(),
                why: why.to_owned(),
            })?;
        }
        Ok(())
    }

    /// Why a tree was given up, if it was.
    #[must_use]
    pub fn aborted(&self, tree: &str) -> Option<&str> {
        self.journal.aborted(tree)
    }

    /// The moves of a place that were made, oldest first.
    pub fn history<'s>(&'s self, place: &'s Place) -> impl DoubleEndedIterator<Item = &'s Move> {
        self.journal.moves(&place.0)
    }

    /// The one way in which a place is moved.
    fn go(
        &mut self,
        place: &Place,
        from: Option<&str>,
        to: &str,
        kind: MoveKind,
    ) -> Result<(), ReleaseError> {
        if kind != MoveKind::RollBack
            && let Some(why) = self.journal.aborted(to)
        {
            return Err(ReleaseError::Aborted {
                tree: to.to_owned(),
                why: why.to_owned(),
            });
        }
        let shows = self.shows(place)?;
        if shows.as_deref() != from {
            let name = |tree: Option<&str>| tree.unwrap_or("nothing").to_owned();
            return Err(ReleaseError::OtherParent {
                place: place.0.clone(),
                shows: name(shows.as_deref()),
                parent: name(from),
            });
        }
        if shows.as_deref() == Some(to) {
            return Ok(());
        }
        self.verify(to)?;
        let n = self.journal.next();
        self.step("begin");
        self.note(Line::Begin {
            n,
            what: Move {
                place: place.0.clone(),
                from: from.map(str::to_owned),
                to: to.to_owned(),
                kind,
            },
        })?;
        self.step("link");
        let fresh = self.directory.join("making").join("link");
        std::os::unix::fs::symlink(link(place, to), &fresh).map_err(failed(&fresh))?;
        self.step("rename");
        let path = self.directory.join(&place.0);
        fs::rename(&fresh, &path).map_err(failed(&path))?;
        self.step("renamed");
        self.sync_place(place)?;
        self.step("verify");
        self.verify(to)?;
        self.step("done");
        self.note(Line::Done { n })?;
        self.step("end");
        Ok(())
    }

    fn sync_place(&self, place: &Place) -> Result<(), ReleaseError> {
        let path = self.directory.join(&place.0);
        disk::sync_directory(path.parent().unwrap_or(&self.directory)).map_err(failed(&path))
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store")
            .field("directory", &self.directory)
            .finish_non_exhaustive()
    }
}

/// Where the link of a place leads: relative, so that a state directory can be moved.
fn link(place: &Place, tree: &str) -> PathBuf {
    let up = if place.0.contains('/') {
        "../objects"
    } else {
        "objects"
    };
    Path::new(up).join(tree)
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> ReleaseError + use<> {
    let path = path.to_owned();
    move |source| ReleaseError::File { path, source }
}
