//! Private homes: the copy of the home directory that a box changes, kept for its project's next run.
//!
//! Three layers make one: the host's home, a mask over what must not show through, and the box's changes. A home is held by one
//! box at a time, since two overlays on the same changes would not see each other's; the next box of the project that runs at the
//! same time gets the next home.

mod mask;
mod mount_points;
mod store;

pub(crate) use mask::{HomeCover, HomeMask, layer_of};
pub use store::{HomeChange, HomeEntry, HomeStore, HomeSummary};

use crate::error::RunError;
use belljar_sandbox::plan::{Identity, Kind};
use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// Whose home it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HomeOwner {
    /// That of all boxes that start in this directory.
    Project(PathBuf),
    /// That of an agent with this name, wherever it starts.
    Agent(String),
    /// That of one box: it is gone with it.
    Box(String),
}

/// Which private home a command is to have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum HomeRequest {
    /// That of the directory it starts in.
    #[default]
    OfProject,
    /// That of the agent with this name.
    OfAgent(String),
    /// An empty one, which is gone with its box.
    OfItsOwn,
}

/// Where the parts of a home are.
#[derive(Debug, Clone)]
pub(crate) struct HomeLayers {
    /// What the box changed.
    pub(crate) changes: PathBuf,
    /// The kernel's scratch directory.
    pub(crate) scratch: PathBuf,
    /// What lies below where nothing of the host's home is shown.
    pub(crate) empty: PathBuf,
}

/// The home of a running box. Nobody else uses, resets or removes it as long as it is held.
#[derive(Debug)]
pub(crate) struct HeldHome {
    directory: PathBuf,
    identity: Identity,
    is_new: bool,
    is_for_one_box: bool,
    // The lock ends with the descriptor.
    _lock: OwnedFd,
}

const LAYERS: &str = "layers";
const LOCK: &str = "lock";

fn at(path: &Path) -> impl Fn(io::Error) -> RunError + '_ {
    |source| RunError::State {
        path: path.to_owned(),
        source,
    }
}

impl HeldHome {
    /// Takes the home in `directory`, unless another box has it.
    fn take(
        directory: PathBuf,
        identity: Identity,
        is_for_one_box: bool,
    ) -> Result<Option<Self>, RunError> {
        let Some(lock) = lock_of(&directory).map_err(at(&directory))? else {
            return Ok(None);
        };
        let is_new = !directory.join(LAYERS).is_dir();
        let held = Self {
            directory,
            identity,
            is_new,
            is_for_one_box,
            _lock: lock,
        };
        held.make_layers().map_err(at(&held.directory))?;
        Ok(Some(held))
    }

    /// Whether no box has used it before.
    pub(crate) fn is_new(&self) -> bool {
        self.is_new
    }

    pub(crate) fn layers(&self) -> HomeLayers {
        let layers = self.directory.join(LAYERS);
        HomeLayers {
            changes: layers.join("changes"),
            scratch: layers.join("scratch"),
            empty: layers.join("empty"),
        }
    }

    fn make_layers(&self) -> io::Result<()> {
        let layers = self.directory.join(LAYERS);
        if self.is_new {
            fs::DirBuilder::new().mode(0o700).create(&layers)?;
        }
        // Until it is handed over, so that nobody puts a link in our way.
        self.own(&layers, 0, 0)?;
        fs::set_permissions(&layers, fs::Permissions::from_mode(0o700))?;
        let HomeLayers {
            changes,
            scratch,
            empty,
            ..
        } = self.layers();
        for path in [&changes, &scratch, &empty] {
            match fs::create_dir(path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    // Another process of the box's user could reach it while a box of root's ran.
                    if !path.symlink_metadata()?.is_dir() {
                        return Err(io::Error::other("a part of it is no directory any more"));
                    }
                    continue;
                }
                made => made?,
            }
            fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
            self.own(path, self.identity.uid, self.identity.gid)?;
        }
        Ok(())
    }

    /// Gets the layers ready for a box: places for what is mounted in its home.
    pub(crate) fn prepare(&self, home: &Path, mounted: &[(PathBuf, Kind)]) -> Result<(), RunError> {
        let HomeLayers { changes, .. } = self.layers();
        for (path, kind) in mounted {
            mount_points::clear(&changes, path, *kind, &self.identity)
                .map_err(at(&changes.join(path)))?;
        }
        // The mount point shows the upper layer's mode.
        if let Ok(found) = fs::metadata(home) {
            let mode = found.permissions().mode() & 0o777;
            set_mode(&changes, mode).map_err(at(&changes))?;
        }
        let layers = self.directory.join(LAYERS);
        self.own(&layers, self.identity.uid, self.identity.gid)
            .map_err(at(&layers))
    }

    fn own(&self, path: &Path, uid: u32, gid: u32) -> io::Result<()> {
        match rustix::process::geteuid().is_root() {
            true => std::os::unix::fs::lchown(path, Some(uid), Some(gid)),
            false => Ok(()),
        }
    }
}

/// Of a directory, and not of what a link leads to.
fn set_mode(directory: &Path, mode: u32) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::open(directory, flags, Mode::empty())?;
    Ok(rustix::fs::fchmod(&directory, Mode::from_raw_mode(mode))?)
}

impl Drop for HeldHome {
    fn drop(&mut self) {
        // Between two boxes of root's it is in nobody else's reach.
        let _ = self.own(&self.directory.join(LAYERS), 0, 0);
        if self.is_for_one_box {
            // What can't be removed now is by the next sweep.
            let _ = store::remove_home(&self.directory);
        }
    }
}

/// The lock of a home, if nobody has it.
fn lock_of(directory: &Path) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let place = directory.join(LOCK);
    let lock = rustix::fs::open(&place, flags, Mode::RUSR | Mode::WUSR)?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    }
    // Somebody may have removed the home between the two.
    let (ours, there) = (rustix::fs::fstat(&lock)?, rustix::fs::stat(&place));
    let is_ours = there.is_ok_and(|there| there.st_ino == ours.st_ino);
    Ok(is_ours.then_some(lock))
}
