//! Doors: a socket of the keeper's that one box can connect to.

use crate::error::RunError;
use crate::manager::SandboxId;
use crate::state::StateDir;
use belljar_sandbox::show::{Show, ShowName};
use rustix::fd::AsRawFd;
use rustix::fs::{Mode, OFlags};
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A listening socket for one box. Its file goes when this is dropped; who is connected stays connected.
#[derive(Debug)]
pub struct Door {
    listener: UnixListener,
    path: PathBuf,
}

impl Door {
    /// Makes the door of box `id`, in a directory of the state directory that nobody else may enter.
    pub fn open(state: &StateDir, id: &SandboxId) -> Result<Self, RunError> {
        let directory = state.doors();
        let path = directory.join(format!("{id}.sock"));
        let fail = |source| RunError::State {
            path: path.clone(),
            source,
        };
        make_private(&directory).map_err(fail)?;
        let listener = bind_below(&directory, &format!("{id}.sock")).map_err(fail)?;
        let door = Self { listener, path };
        // A box of root's runs as another user, who has to reach the socket and is shown it alone; everybody else is
        // kept out by the directory.
        let is_root = rustix::process::geteuid().is_root();
        let mode = if is_root { 0o666 } else { 0o600 };
        fs::set_permissions(&door.path, fs::Permissions::from_mode(mode)).map_err(|source| {
            RunError::State {
                path: door.path.clone(),
                source,
            }
        })?;
        Ok(door)
    }

    /// What to show to the box, as `name`.
    pub fn show(&self, name: ShowName) -> Show {
        Show::Door {
            name,
            socket: self.path.clone(),
        }
    }

    /// Where callers come in.
    pub fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// The socket's file on the host.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn make_private(directory: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        other => other?,
    }
    // As it should be, whoever made it.
    fs::set_permissions(directory, fs::Permissions::from_mode(0o700))
}

/// Binds below an opened directory: a path may be longer than a socket's address.
pub(crate) fn bind_below(directory: &Path, name: &str) -> io::Result<UnixListener> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(directory, flags, Mode::empty())?;
    UnixListener::bind(format!("/proc/self/fd/{}/{name}", opened.as_raw_fd()))
}

/// Clears away the doors of keepers that were killed: nobody listens there any more.
pub(crate) fn sweep(directory: &Path) {
    // Between its birth and its first breath a socket looks dead.
    const YOUNG: Duration = Duration::from_secs(60);
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let is_old = entry
            .metadata()
            .and_then(|metadata| metadata.modified())
            .is_ok_and(|time| time.elapsed().is_ok_and(|age| age > YOUNG));
        if is_old && is_dead(directory, &entry.file_name().to_string_lossy()) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn is_dead(directory: &Path, name: &str) -> bool {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(opened) = rustix::fs::open(directory, flags, Mode::empty()) else {
        return false;
    };
    UnixStream::connect(format!("/proc/self/fd/{}/{name}", opened.as_raw_fd()))
        .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}
