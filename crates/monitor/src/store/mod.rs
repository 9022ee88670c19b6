//! The file that history, events and alerts are kept in.

mod read;
mod schema;
mod write;

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags};

pub(crate) use read::Reading;
pub(crate) use schema::Found;
pub(crate) use write::{Batch, Keep, Minute};

/// How long a lock is waited for when the file is opened.
const PATIENCE: Duration = Duration::from_secs(2);
/// How each file of SQLite's begins.
const MAGIC: &[u8; 16] = b"SQLite format 3\0";
/// A file no larger than this is looked through when it is opened; a larger one shows its damage when it is used.
const LOOKED_THROUGH: u64 = 64 << 20;

/// Why no history can be kept in a directory.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another supervisor has it.
    #[error("{} is in use by another supervisor", .0.display())]
    InUse(PathBuf),
    /// Another process holds a lock on the file.
    #[error("{} is locked by another process", .0.display())]
    Locked(PathBuf),
    /// A later version of Belljar wrote it.
    #[error("{} was written by a later version of Belljar", .0.display())]
    Newer(PathBuf),
    /// The directory or a file in it can't be made or read.
    #[error("{} can't be used", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// SQLite can't use the file.
    #[error("{} can't be used", path.display())]
    Database {
        /// Which.
        path: PathBuf,
        /// What SQLite said.
        source: rusqlite::Error,
    },
}

impl OpenError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::InUse(_) => {
                "one supervisor at a time: stop the other, or use another state directory"
            }
            Self::Locked(_) => {
                "end whatever has the file open, such as an sqlite3 shell or a backup, and start again"
            }
            Self::Newer(_) => "use that version, or move the file away to begin a new history",
            Self::Io { .. } => "the directory must be writable by the supervisor's user",
            Self::Database { .. } => "see that the disk is mounted, writable and not full",
        }
    }
}

/// The writer's hold on the file.
pub(crate) struct Store {
    path: PathBuf,
    connection: Connection,
    agents: std::collections::HashMap<belljar_api::AgentId, i64>,
    /// Which file it is, by device and number.
    file: (u64, u64),
    /// Held as long as the store is open: one supervisor at a time.
    _lock: File,
}

impl Store {
    /// Opens the file in that directory, or begins one. A file that is damaged is set aside, and a new one begun.
    pub(crate) fn open(directory: &Path) -> Result<(Self, Found), OpenError> {
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| OpenError::Io { path, source }
        };
        make_private(directory).map_err(io(directory))?;
        let lock = lock(directory)?;
        let path = directory.join("monitor.db");
        let mut set_aside = None;
        let (connection, mut found) = match Self::connect(&path) {
            Err(error) if is_damage(&error) => {
                set_aside = Some(put_away(&path).map_err(io(&path))?);
                Self::connect(&path)
            }
            other => other,
        }
        .map_err(|error| match () {
            () if is_busy(&error) => OpenError::Locked(path.clone()),
            () if matches!(&error, rusqlite::Error::InvalidQuery) => OpenError::Newer(path.clone()),
            () => OpenError::Database {
                path: path.clone(),
                source: error,
            },
        })?;
        found.set_aside = set_aside;
        let file = identity(&path);
        let store = Self {
            path,
            connection,
            file,
            agents: std::mem::take(&mut found.agents),
            _lock: lock,
        };
        Ok((store, found))
    }

    /// Opens the file anew, after an error that may have to do with the file itself.
    pub(crate) fn reopen(&mut self) -> Result<(), rusqlite::Error> {
        let (connection, mut found) = Self::connect(&self.path)?;
        self.connection = connection;
        self.file = identity(&self.path);
        self.agents = std::mem::take(&mut found.agents);
        Ok(())
    }

    /// Sets a damaged file aside and begins a new one.
    pub(crate) fn replace(&mut self) -> Result<PathBuf, rusqlite::Error> {
        // Let go of the file first: SQLite writes on closing.
        self.connection = Connection::open_in_memory()?;
        let aside = put_away(&self.path).map_err(|_| {
            rusqlite::Error::SqliteFailure(
                rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CANTOPEN),
                Some("the damaged file can't be moved".to_owned()),
            )
        })?;
        self.reopen()?;
        Ok(aside)
    }

    /// Whether what is on the disk is not what it should be: another file, or a broken one. A large file is only looked at
    /// from outside.
    pub(crate) fn is_damaged(&self) -> bool {
        use std::os::unix::fs::MetadataExt as _;
        let Ok(meta) = std::fs::metadata(&self.path) else {
            return true;
        };
        if (meta.dev(), meta.ino()) != self.file {
            return true;
        }
        // What the log beside it holds would hide that the file itself is none any more.
        let begins = File::open(&self.path).and_then(|mut file| {
            let mut magic = [0; MAGIC.len()];
            file.read_exact(&mut magic).map(|()| magic == *MAGIC)
        });
        if !begins.unwrap_or(false) {
            return true;
        }
        // By a connection of its own: the writer's knows pages that the disk has no more.
        let look = || -> Result<bool, rusqlite::Error> {
            let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
            let connection = Connection::open_with_flags(&self.path, flags)?;
            connection.pragma_update(None, "trusted_schema", false)?;
            let question = match meta.len() <= LOOKED_THROUGH {
                true => "PRAGMA quick_check(1)",
                false => "SELECT name FROM sqlite_schema LIMIT 1",
            };
            let verdict: String = connection.query_row(question, [], |row| row.get(0))?;
            Ok(meta.len() <= LOOKED_THROUGH && verdict != "ok")
        };
        look().unwrap_or_else(|error| is_damage(&error))
    }

    fn connect(path: &Path) -> Result<(Connection, Found), rusqlite::Error> {
        let is_small = std::fs::metadata(path).is_ok_and(|meta| meta.len() <= LOOKED_THROUGH);
        let connection = Connection::open_with_flags(
            path,
            OpenFlags::SQLITE_OPEN_READ_WRITE
                | OpenFlags::SQLITE_OPEN_CREATE
                | OpenFlags::SQLITE_OPEN_NO_MUTEX,
        )?;
        connection.busy_timeout(PATIENCE)?;
        schema::prepare(&connection)?;
        if is_small {
            let verdict: String =
                connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
            if verdict != "ok" {
                return Err(damage());
            }
        }
        let found = schema::find(&connection)?;
        // From here on nobody waits: what can't be written now is written a second later.
        connection.busy_timeout(Duration::from_millis(100))?;
        Ok((connection, found))
    }
}

fn identity(path: &Path) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata(path).map_or((0, 0), |meta| (meta.dev(), meta.ino()))
}

/// Whether the file itself is broken.
pub(crate) fn is_damage(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
    ) || matches!(
        error,
        rusqlite::Error::InvalidColumnType(..)
            | rusqlite::Error::FromSqlConversionFailure(..)
            | rusqlite::Error::IntegralValueOutOfRange(..)
    )
}

/// Whether another process has it for now.
pub(crate) fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
    )
}

fn damage() -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(
        rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT),
        None,
    )
}

/// Moves a damaged file out of the way, with the files that belong to it.
fn put_away(path: &Path) -> io::Result<PathBuf> {
    let mark = format!("damaged-{}", crate::clock::wall_ms());
    let aside = with_suffix(path, &format!(".{mark}"));
    match std::fs::rename(path, &aside) {
        // Somebody took it away.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        other => other?,
    }
    for part in ["-wal", "-shm"] {
        match std::fs::rename(with_suffix(path, part), with_suffix(&aside, part)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(aside)
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn lock(directory: &Path) -> Result<File, OpenError> {
    use rustix::fs::{FlockOperation, flock};
    let path = directory.join("monitor.lock");
    let io = |source| OpenError::Io {
        path: path.clone(),
        source,
    };
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(io)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(OpenError::InUse(directory.to_owned())),
        Err(errno) => Err(io(errno.into())),
    }
}

/// A directory that nobody else reads: events and evidence are in it.
pub(crate) fn make_private(directory: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
}

/// A lock whose holder panicked is still a lock: what it guards is changed in steps that each leave it whole.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// SQLite's integers have a sign. Nothing we count comes near the limit.
pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(crate) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}
