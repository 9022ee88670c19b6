//! From a directory to an open log: new, as it was left, or mended after a crash or a power cut.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use crate::checkpoint::{Checkpoint, Head};
use crate::disk::Disk;
use crate::fault::{Fault, Place};
use crate::hash::Hash;
use crate::journal::{self, JOURNAL, Journal, Record, compare_with_journal};
use crate::key::KnownKey;
use crate::ledger::{Durability, OpenError, Options};
use crate::load::{CHECKPOINT, Loaded, Recovery, SPARE, load, read_checkpoint, read_edge};
use crate::lock::{Held, LockFile, Wait};
use crate::note::{MAX_NOTE, Seal};
use crate::state::{Pending, State, publish, seconds};

/// The directory, made if need be, and the right to write in it. `None` if another has that.
pub(crate) fn open_directory(dir: &Path, wait: Wait) -> io::Result<Option<(Disk, Held)>> {
    let disk = match Disk::open(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
            if let Some(above) = dir.parent().filter(|above| !above.as_os_str().is_empty()) {
                Disk::open(above)?.sync_directory(".")?;
            }
            Disk::open(dir)?
        }
        opened => opened?,
    };
    let held = LockFile::open(&disk)?.lock(wait)?;
    Ok(held.map(|held| (disk, held)))
}

/// Opens the log in a directory that we hold the lock of.
pub(crate) fn open_locked(
    dir: &Path,
    disk: Disk,
    origin: &str,
    seal: Seal,
    options: Options,
) -> Result<(State, Recovery), OpenError> {
    let known = known_keys(&seal, &options);
    let bytes = journal::read(&disk).map_err(io_at(dir))?;
    let records = trusted(&bytes, origin, &known);
    let found = find_state(&disk, origin, &known, &records).map_err(OpenError::Damaged)?;
    let have = found.as_ref().map_or(0, |found| found.size(&records));
    if have < options.min_size {
        return Err(OpenError::Damaged(Fault::Truncated {
            have,
            expected: options.min_size,
        }));
    }
    let Found {
        checkpoint,
        loaded,
        replay,
    } = match found {
        Some(found) => found,
        None => create(&disk, origin, &seal, &options, dir)?,
    };
    let synced = match records.first() {
        Some(first) => first.before,
        None => checkpoint.durable(),
    };
    let Loaded {
        edge,
        rows,
        recovery,
    } = loaded;
    let mut state = State {
        path: dir.to_owned(),
        journal: Journal::new(&bytes, records.last()),
        disk,
        origin: origin.to_owned(),
        seal,
        options,
        committed: edge.clone(),
        edge,
        rows,
        checkpoint,
        synced,
        pending: Pending::default(),
        poisoned: false,
    };
    let mut replayed_entries = 0;
    if !records.is_empty() {
        let missing = &records[records.len() - replay..];
        replayed_entries = state.settle(missing).map_err(OpenError::Damaged)?;
    }
    Ok((
        state,
        Recovery {
            replayed_entries,
            ..recovery
        },
    ))
}

/// A state that is whole on disk, and how many of the journal's last records lead on from it.
struct Found {
    checkpoint: Checkpoint,
    loaded: Loaded,
    replay: usize,
}

impl Found {
    fn size(&self, records: &[Record<'_>]) -> u64 {
        match records.last() {
            Some(last) if self.replay > 0 => last.checkpoint.size(),
            _ => self.checkpoint.size(),
        }
    }
}

/// Records up to the last that bears a signature we know, of this log.
fn trusted<'a>(bytes: &'a [u8], origin: &str, known: &[KnownKey]) -> Vec<Record<'a>> {
    let mut records = journal::records(bytes);
    // The last signature covers all entries before it.
    while let Some(Record { checkpoint, .. }) = records.last()
        && (checkpoint.origin() != origin || checkpoint.signed_by(known).is_err())
    {
        records.pop();
    }
    records
}

/// `None` in a directory that never held a log.
fn find_state(
    disk: &Disk,
    origin: &str,
    known: &[KnownKey],
    records: &[Record<'_>],
) -> Result<Option<Found>, Fault> {
    let checkpoint = read_checkpoint(disk, origin, known);
    let Some(last) = records.last() else {
        let Some(checkpoint) = checkpoint? else {
            return Ok(None);
        };
        let loaded = load(disk, checkpoint.size(), Some(checkpoint.root()))?;
        return Ok(Some(Found {
            checkpoint,
            loaded,
            replay: 0,
        }));
    };
    let newest = last.checkpoint.size();
    match checkpoint {
        Ok(Some(checkpoint)) => match as_left(disk, checkpoint.clone(), records) {
            Ok(Some(found)) => Ok(Some(found)),
            // The journal may only add to what was signed for last.
            Err(fault) if checkpoint.size() > newest => Err(fault),
            Err(fault) => from_base(disk, records).map(Some).map_err(|_| fault),
            Ok(None) => from_base(disk, records).map(Some),
        },
        Ok(None) | Err(Fault::Unsigned(_)) => {
            // Not written through before the power was cut. The one before tells whether the journal is older still.
            let earlier = disk
                .read(SPARE, MAX_NOTE as u64 + 1)
                .map_err(Fault::unreadable(SPARE))?;
            match earlier.and_then(|bytes| Checkpoint::parse(&bytes).ok()) {
                Some(earlier) if earlier.size() > newest => Err(Fault::Truncated {
                    have: newest,
                    expected: earlier.size(),
                }),
                _ => from_base(disk, records).map(Some),
            }
        }
        Err(fault) => Err(fault),
    }
}

/// The state of the checkpoint, if the tiles have all that the journal has up to there. `None` if the journal has a later
/// state that does not follow on it.
fn as_left(
    disk: &Disk,
    checkpoint: Checkpoint,
    records: &[Record<'_>],
) -> Result<Option<Found>, Fault> {
    let size = checkpoint.size();
    let newest = records.last().map_or(0, |last| last.checkpoint.size());
    let next = records.iter().position(|record| record.before == size);
    let replay = match next {
        Some(next) => records.len() - next,
        None if size >= newest => 0,
        None => return Ok(None),
    };
    // The right edge is not enough here: of what was not synced, a power cut takes any piece.
    compare_with_journal(disk, size, &records[..records.len() - replay])?;
    let loaded = load(disk, size, Some(checkpoint.root()))?;
    Ok(Some(Found {
        checkpoint,
        loaded,
        replay,
    }))
}

/// The state that was synced before the journal's first record. All after it will be written anew.
fn from_base(disk: &Disk, records: &[Record<'_>]) -> Result<Found, Fault> {
    let (Some(first), Some(last)) = (records.first(), records.last()) else {
        return Err(Fault::unreadable(JOURNAL)(
            io::ErrorKind::InvalidData.into(),
        ));
    };
    // Before anything is cut: do tiles and journal together give the root that was signed?
    let mut edge = read_edge(disk, first.before)?;
    let checkpoint = last.checkpoint.stand_in(first.before, edge.root());
    for entry in records.iter().flat_map(Record::entries) {
        edge.push(Hash::of_entry(entry), |_, _| {});
    }
    if edge.root() != last.checkpoint.root() {
        return Err(Fault::Tampered(Place::Root));
    }
    let loaded = load(disk, first.before, None)?;
    Ok(Found {
        checkpoint,
        loaded,
        replay: records.len(),
    })
}

fn create(
    disk: &Disk,
    origin: &str,
    seal: &Seal,
    options: &Options,
    dir: &Path,
) -> Result<Found, OpenError> {
    seal.check()?;
    let head = Head {
        origin,
        size: 0,
        root: Hash::of_nothing(),
        time: seconds((options.clock)()),
        durable: 0,
    };
    let checkpoint = Checkpoint::sign(&head, seal)?;
    publish(disk, &checkpoint, Durability::Power).map_err(io_at(dir))?;
    let loaded = load(disk, 0, Some(checkpoint.root())).map_err(OpenError::Damaged)?;
    Ok(Found {
        checkpoint,
        loaded,
        replay: 0,
    })
}

impl State {
    /// Writes what the journal has and the tiles have not, and syncs the tiles, so that the journal is no longer needed.
    /// Returns how many entries were written.
    fn settle(&mut self, missing: &[Record<'_>]) -> Result<u64, Fault> {
        let before = self.edge.size();
        for entry in missing.iter().flat_map(Record::entries) {
            self.append(entry)
                .map_err(|error| Fault::unreadable(JOURNAL)(io::Error::other(error)))?;
        }
        if let Some(last) = missing.last() {
            if self.edge.root() != last.checkpoint.root() {
                return Err(Fault::Tampered(Place::Root));
            }
            self.checkpoint = last.checkpoint.clone();
        }
        self.write_and_sync(&self.checkpoint.clone())
            .map_err(Fault::unreadable(CHECKPOINT))?;
        self.committed.clone_from(&self.edge);
        Ok(self.edge.size() - before)
    }
}

pub(crate) fn known_keys(seal: &Seal, options: &Options) -> Vec<KnownKey> {
    let mut known = vec![seal.key().clone()];
    known.extend_from_slice(&options.known_keys);
    known
}

pub(crate) fn io_at(path: &Path) -> impl FnOnce(io::Error) -> OpenError + use<> {
    let path = path.to_owned();
    move |cause| OpenError::Io { path, cause }
}
