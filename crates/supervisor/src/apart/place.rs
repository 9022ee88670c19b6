//! Where keepers are found, and where they leave word of an end that nobody heard.

use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fd::AsRawFd as _;
use rustix::fs::{Mode, OFlags};

use super::words::Legacy;
use crate::door::bind_below;
use crate::error::RunError;
use crate::state::StateDir;

/// No word of an end is longer.
const LONGEST: u64 = 32 << 20;

/// The directory of keepers: its owner's alone.
#[derive(Clone, Debug)]
pub(crate) struct Keepers(PathBuf);

/// Somebody in the directory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Trace {
    /// A socket.
    Socket(String),
    /// Word of an end.
    Legacy(String),
}

impl Keepers {
    /// Of a state directory; made if it is not there.
    pub(crate) fn of(state: &StateDir) -> Result<Self, RunError> {
        let directory = state.path().join("fleet/keepers");
        let fail = |source| RunError::State {
            path: directory.clone(),
            source,
        };
        make_private(&directory).map_err(fail)?;
        Ok(Self(directory))
    }

    fn socket_path(&self, worker: &str) -> PathBuf {
        self.0.join(format!("{worker}.sock"))
    }

    fn legacy_path(&self, worker: &str) -> PathBuf {
        self.0.join(format!("{worker}.ended.json"))
    }

    /// Listens for a daemon that wants to adopt this worker.
    pub(crate) fn listen(&self, worker: &str) -> io::Result<Listening> {
        let path = self.socket_path(worker);
        let listener = bind_below(&self.0, &format!("{worker}.sock"))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        Ok(Listening { listener, path })
    }

    /// Connects to a worker's keeper.
    pub(crate) fn connect(&self, worker: &str) -> io::Result<UnixStream> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(&self.0, flags, Mode::empty())?;
        UnixStream::connect(format!(
            "/proc/self/fd/{}/{worker}.sock",
            opened.as_raw_fd()
        ))
    }

    /// Everybody who is or was here.
    pub(crate) fn traces(&self) -> Vec<Trace> {
        let entries = fs::read_dir(&self.0).into_iter().flatten().flatten();
        let traces = entries.filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            if let Some(worker) = name.strip_suffix(".sock") {
                return Some(Trace::Socket(worker.to_owned()));
            }
            let worker = name.strip_suffix(".ended.json")?;
            Some(Trace::Legacy(worker.to_owned()))
        });
        traces.collect()
    }

    /// Leaves word of an end: whole, or not at all.
    pub(crate) fn leave(&self, legacy: &Legacy) -> io::Result<()> {
        write_whole(&self.legacy_path(&legacy.task.worker), |file| {
            Ok(serde_json::to_writer(io::BufWriter::new(file), legacy)?)
        })
    }

    /// Reads it.
    pub(crate) fn legacy(&self, worker: &str) -> Option<Legacy> {
        let file = fs::File::open(self.legacy_path(worker)).ok()?;
        let mut bytes = Vec::new();
        file.take(LONGEST).read_to_end(&mut bytes).ok()?;
        serde_json::from_slice(&bytes).ok()
    }

    /// Nobody needs the word of this worker's end any more.
    pub(crate) fn forget_legacy(&self, worker: &str) {
        let _ = fs::remove_file(self.legacy_path(worker));
    }

    /// The socket of a keeper that is gone.
    pub(crate) fn clear(&self, worker: &str) {
        let _ = fs::remove_file(self.socket_path(worker));
        let _ = fs::remove_file(draft_of(&self.legacy_path(worker)));
    }
}

/// Makes a directory that is its owner's alone.
pub(crate) fn make_private(directory: &Path) -> io::Result<()> {
    let made = fs::DirBuilder::new()
        .mode(0o700)
        .recursive(true)
        .create(directory);
    match made {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    fs::set_permissions(directory, fs::Permissions::from_mode(0o700))
}

/// Writes a file for its owner's eyes: whole, or not at all.
pub(crate) fn write_whole(
    path: &Path,
    write: impl FnOnce(&mut fs::File) -> io::Result<()>,
) -> io::Result<()> {
    // It tells of living processes, none of which a power cut leaves.
    belljar_files::replace_for_this_boot(path, belljar_files::PRIVATE, write)
}

fn draft_of(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.draft"))
}

/// A keeper's socket. Its file goes when this is dropped.
#[derive(Debug)]
pub(crate) struct Listening {
    pub(crate) listener: UnixListener,
    path: PathBuf,
}

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}
