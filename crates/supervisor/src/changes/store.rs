//! Where the changes of one box are kept, held by its descriptor.

use super::host::Fingerprint;
use super::listing::{Bytes, Listing, is_root};
use super::tree::{Cursor, remove};
use super::waiting::RunOrigin;
use super::{legacy, walk};
use crate::error::RunError;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{
    FlockOperation, Mode, OFlags, ResolveFlags, fchmod, flock, openat, openat2, renameat,
};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Which directories the layers stand for, written before the box starts.
const ROOTS: &str = "roots.json";
/// What was changed, written when it has ended.
const LISTING: &str = "changes.jsonl";
const MOST_ROOTS: u64 = 16 << 20;
/// No box is called so: a store that is being removed.
const GOING: &str = ".going-";

/// The directories of an overlay, and whose box it was.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Roots {
    Owned {
        owner: u32,
        roots: Vec<Bytes>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        origin: Option<StoredOrigin>,
    },
    /// As 0.1.0 wrote them.
    Paths(Vec<PathBuf>),
}

#[derive(Serialize, Deserialize)]
struct StoredOrigin {
    work: Bytes,
    home: Bytes,
    program: Bytes,
}

impl StoredOrigin {
    fn read(self) -> Option<RunOrigin> {
        Some(RunOrigin {
            work: self.work.read()?.into(),
            home: self.home.read()?.into(),
            program: self.program.read()?.into(),
        })
    }
}

/// The directories of an overlay, whose box it was, and what ran in it.
pub(super) struct OverlayRoots {
    pub(super) roots: Vec<PathBuf>,
    owner: u32,
    /// When the box started: by the clock that stamps the host's files.
    start: Fingerprint,
    pub(super) origin: Option<RunOrigin>,
}

/// The kept changes of one box. Nobody else applies or discards them as long as it is held.
#[derive(Debug)]
pub(super) struct Store {
    path: PathBuf,
    directory: OwnedFd,
}

impl Store {
    /// Opens a store whose box is about to start.
    pub(super) fn begun(path: &Path) -> io::Result<Self> {
        let (overlays, name) = parts(path)?;
        Ok(Self {
            path: path.to_owned(),
            directory: open_below(overlays.as_fd(), name)?,
        })
    }

    /// Opens a store of ours whose box has ended; nothing if there is none.
    pub(super) fn open(path: &Path) -> io::Result<Option<Self>> {
        let (overlays, name) = parts(path)?;
        let directory = match open_below(overlays.as_fd(), name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let stat = rustix::fs::fstat(&directory)?;
        if stat.st_uid != rustix::process::geteuid().as_raw() {
            return Err(io::Error::other("it belongs to another user"));
        }
        // The box's user passed through it as long as the box ran.
        fchmod(&directory, Mode::RWXU)?;
        Ok(Some(Self {
            path: path.to_owned(),
            directory,
        }))
    }

    /// Keeps others from applying or discarding at the same time.
    pub(super) fn lock(&self) -> io::Result<()> {
        flock(&self.directory, FlockOperation::NonBlockingLockExclusive).map_err(
            |errno| match errno {
                Errno::WOULDBLOCK => {
                    io::Error::other("another belljar applies or discards these changes just now")
                }
                errno => errno.into(),
            },
        )
    }

    pub(super) fn unlock(&self) {
        let _ = flock(&self.directory, FlockOperation::Unlock);
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn fail(&self, source: io::Error) -> RunError {
        RunError::State {
            path: self.path.clone(),
            source,
        }
    }

    fn file(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        Ok(openat(&self.directory, name, flags, Mode::empty())?.into())
    }

    /// A whole file or none.
    fn save(
        &self,
        name: &str,
        write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
    ) -> io::Result<()> {
        let fresh = format!("{name}.new");
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&self.directory, &fresh, flags, Mode::RUSR | Mode::WUSR)?;
        let mut file = BufWriter::new(File::from(file));
        write(&mut file)?;
        file.flush()?;
        file.get_ref().sync_all()?;
        renameat(&self.directory, &fresh, &self.directory, name)?;
        Ok(rustix::fs::fsync(&self.directory)?)
    }

    pub(super) fn write_roots(
        &self,
        owner: u32,
        roots: &[PathBuf],
        origin: &RunOrigin,
    ) -> io::Result<()> {
        let roots = roots.iter().map(|root| root.as_os_str().into()).collect();
        let origin = Some(StoredOrigin {
            work: origin.work.as_os_str().into(),
            home: origin.home.as_os_str().into(),
            program: origin.program.as_os_str().into(),
        });
        let roots = Roots::Owned {
            owner,
            roots,
            origin,
        };
        self.save(ROOTS, |file| Ok(serde_json::to_writer(file, &roots)?))
    }

    /// What was written before the box started.
    pub(super) fn roots(&self) -> io::Result<OverlayRoots> {
        let file = self.file(ROOTS)?;
        let start = Fingerprint::of(&rustix::fs::fstat(&file)?);
        let mut bytes = Vec::new();
        file.take(MOST_ROOTS).read_to_end(&mut bytes)?;
        let (owner, roots, origin) = match serde_json::from_slice(&bytes)? {
            Roots::Owned {
                owner,
                roots,
                origin,
            } => {
                let roots: Option<Vec<OsString>> = roots.into_iter().map(Bytes::read).collect();
                let origin = origin.and_then(StoredOrigin::read);
                (Some(owner), roots.unwrap_or_default(), origin)
            }
            Roots::Paths(paths) => {
                let roots = paths.into_iter().map(OsString::from).collect();
                (None, roots, None)
            }
        };
        if !roots.iter().all(|root| is_root(root)) {
            return Err(io::Error::other("its roots are no paths"));
        }
        let roots: Vec<PathBuf> = roots.into_iter().map(PathBuf::from).collect();
        let owner = match (owner, roots.first()) {
            (Some(owner), _) => owner,
            (None, None) => rustix::process::geteuid().as_raw(),
            (None, Some(root)) => rustix::fs::fstat(self.layers(root)?)?.st_uid,
        };
        Ok(OverlayRoots {
            roots,
            owner,
            start,
            origin,
        })
    }

    /// When its changes were listed, which is when the box had ended.
    pub(super) fn listed_at(&self) -> Option<SystemTime> {
        let listed = [LISTING, legacy::CHANGES]
            .iter()
            .find_map(|name| self.file(name).ok())?;
        listed.metadata().ok()?.modified().ok()
    }

    fn layers(&self, root: &Path) -> io::Result<OwnedFd> {
        let name = crate::view::overlay_name(root);
        open_below(self.directory.as_fd(), OsStr::new(&name))
    }

    /// The upper layer of a directory.
    pub(super) fn changes(&self, root: &Path) -> io::Result<OwnedFd> {
        open_below(self.layers(root)?.as_fd(), OsStr::new("changes"))
    }

    /// Looks through the layers. What can't be looked at is in the list, too.
    pub(super) fn list(&self) -> io::Result<Listing> {
        let OverlayRoots {
            roots,
            owner,
            start,
            ..
        } = self.roots()?;
        let mut listing = Listing::new()?;
        for root in &roots {
            match self.changes(root) {
                Ok(layer) => walk::changes_in(layer, root, owner, start, &mut listing),
                Err(error) => listing.troubles.push(super::listing::Trouble {
                    path: root.clone(),
                    why: error.to_string(),
                }),
            }
            let mut layers = Cursor::at(self.layers(root)?);
            for name in ["scratch", "stand-ins"] {
                remove(&mut layers, OsStr::new(name))?;
            }
        }
        if let Ok(old) = self.file(legacy::CHANGES) {
            legacy::keep_bases(old, &mut listing)?;
        }
        Ok(listing)
    }

    pub(super) fn save_listing(&self, listing: &Listing) -> io::Result<()> {
        self.save(LISTING, |file| listing.write(file))
    }

    /// What was listed; nothing if nobody has listed it yet.
    pub(super) fn listing(&self) -> io::Result<Option<Listing>> {
        match self.file(LISTING) {
            Ok(file) => Listing::read(BufReader::new(file)).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether a directory of stores has a listed one of that name.
    pub(super) fn is_listed(path: &Path) -> bool {
        [LISTING, legacy::CHANGES]
            .iter()
            .any(|name| path.join(name).symlink_metadata().is_ok())
    }
}

/// Removes a whole store, and what is left of others whose removal was broken off. It is gone at once or not at all.
pub(super) fn remove_store(path: &Path) -> io::Result<()> {
    let (overlays, name) = parts(path)?;
    let mut going = OsString::from(GOING);
    going.push(name);
    match renameat(&overlays, name, &overlays, &going) {
        Ok(()) | Err(Errno::NOENT) => {}
        // Of an earlier attempt.
        Err(Errno::EXIST | Errno::NOTEMPTY) => {}
        Err(errno) => return Err(errno.into()),
    }
    let mut overlays = Cursor::at(overlays);
    remove(&mut overlays, &going)?;
    remove(&mut overlays, name)
}

/// The directory of all stores, and the name of one in it.
fn parts(path: &Path) -> io::Result<(OwnedFd, &OsStr)> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
    let name = path.file_name().ok_or_else(invalid)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let overlays = path.parent().ok_or_else(invalid)?;
    Ok((rustix::fs::open(overlays, flags, Mode::empty())?, name))
}

fn open_below(at: rustix::fd::BorrowedFd<'_>, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    Ok(openat2(at, name, flags, Mode::empty(), resolve)?)
}
