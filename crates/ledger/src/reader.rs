//! Reading without the lock, also while another process writes.

use std::path::Path;

use crate::bundle::Entries as BundleEntries;
use crate::checkpoint::Checkpoint;
use crate::disk::Disk;
use crate::fault::{Fault, Unsigned};
use crate::hash::Hash;
use crate::load::CHECKPOINT;
use crate::note::MAX_NOTE;
use crate::proof::{ConsistencyProof, Hashes, InclusionProof, ProveError};
use crate::proof_file::ProofFile;
use crate::rows::read_tile;
use crate::tile::{Row, Tile, WIDTH};

/// A log as of its last checkpoint. Later entries appear after [`refresh`](Reader::refresh).
///
/// Reading is not verifying: signatures and hashes are looked at by [`verify`](crate::verify) alone.
pub struct Reader {
    disk: Disk,
    checkpoint: Checkpoint,
}

/// An entry and its place in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Counted from 0.
    pub index: u64,
    /// What was appended.
    pub bytes: Vec<u8>,
}

impl Reader {
    /// Opens the log in a directory.
    pub fn open(dir: &Path) -> Result<Self, Fault> {
        let disk = Disk::open(dir).map_err(Fault::unreadable("."))?;
        let checkpoint = current_checkpoint(&disk)?;
        Ok(Reader { disk, checkpoint })
    }

    /// The checkpoint that bounds what is read. Its signature is not checked.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// How many entries can be read.
    pub fn size(&self) -> u64 {
        self.checkpoint.size()
    }

    /// Looks for a newer checkpoint. Returns the number of new entries.
    pub fn refresh(&mut self) -> Result<u64, Fault> {
        let newer = current_checkpoint(&self.disk)?;
        let new = newer
            .size()
            .checked_sub(self.size())
            .ok_or(Fault::Truncated {
                have: newer.size(),
                expected: self.size(),
            })?;
        self.checkpoint = newer;
        Ok(new)
    }

    /// One entry; `None` past the end.
    pub fn entry(&self, index: u64) -> Result<Option<Vec<u8>>, Fault> {
        self.entries(index)
            .next()
            .map(|entry| entry.map(|entry| entry.bytes))
            .transpose()
    }

    /// Entries from an index up to the checkpoint.
    pub fn entries(&self, from: u64) -> Entries<'_> {
        Entries {
            reader: self,
            next: from,
            bundle: Vec::new(),
            offset: 0,
        }
    }

    /// The root when the log had this many entries.
    pub fn root_at(&self, size: u64) -> Result<Hash, ProveError> {
        self.hashes().root_at(size)
    }

    /// Proves that an entry is in the log of this size.
    pub fn prove_inclusion(&self, index: u64, size: u64) -> Result<InclusionProof, ProveError> {
        self.hashes().inclusion(index, size)
    }

    /// Proves that the log only grew between two sizes.
    pub fn prove_consistency(&self, old: u64, new: u64) -> Result<ConsistencyProof, ProveError> {
        self.hashes().consistency(old, new)
    }

    /// A proof for an entry that stands alone, with the current checkpoint.
    pub fn proof_file(&self, index: u64) -> Result<ProofFile, ProveError> {
        let size = self.size();
        let proof = self.prove_inclusion(index, size)?;
        ProofFile::new(proof, self.checkpoint.clone())
            .ok_or(ProveError::OutOfRange { asked: index, size })
    }

    fn hashes(&self) -> Hashes<'_> {
        Hashes::new(&self.disk, self.size())
    }

    pub(crate) fn disk(&self) -> &Disk {
        &self.disk
    }
}

/// Entries in order. Holds one bundle in memory. Ends after the first error.
pub struct Entries<'a> {
    reader: &'a Reader,
    next: u64,
    bundle: Vec<u8>,
    /// Where the next entry begins; 0 when its bundle is not read yet.
    offset: usize,
}

impl Entries<'_> {
    /// The next entry without a copy of its bytes.
    pub fn next_borrowed(&mut self) -> Option<Result<(u64, &[u8]), Fault>> {
        if self.next >= self.reader.size() {
            return None;
        }
        if (self.offset == 0 || self.next.is_multiple_of(WIDTH))
            && let Err(fault) = self.read_bundle()
        {
            self.next = u64::MAX;
            return Some(Err(fault));
        }
        let mut entries = BundleEntries::of(&self.bundle[self.offset..]);
        let Some(entry) = entries.next() else {
            let fault = self.cut_off_at(self.next);
            self.next = u64::MAX;
            return Some(Err(fault));
        };
        let index = self.next;
        self.offset = self.bundle.len() - entries.rest().len();
        self.next += 1;
        Some(Ok((index, entry)))
    }

    fn read_bundle(&mut self) -> Result<(), Fault> {
        let tile = Tile {
            row: Row::Entries,
            index: self.next / WIDTH,
        };
        let width = tile.width_of(self.reader.size());
        let first = tile.index * WIDTH;
        self.bundle = read_tile(&self.reader.disk, tile, width)
            .map_err(Fault::unreadable(tile.path(width)))?
            .ok_or_else(|| self.cut_off_at(first))?;
        let skip = (self.next - first) as usize;
        let mut entries = BundleEntries::of(&self.bundle);
        let skipped = entries.by_ref().take(skip).count();
        if skipped < skip {
            return Err(self.cut_off_at(first + skipped as u64));
        }
        self.offset = self.bundle.len() - entries.rest().len();
        Ok(())
    }

    fn cut_off_at(&self, have: u64) -> Fault {
        Fault::Truncated {
            have,
            expected: self.reader.size(),
        }
    }
}

impl Iterator for Entries<'_> {
    type Item = Result<Entry, Fault>;

    fn next(&mut self) -> Option<Self::Item> {
        let entry = self.next_borrowed()?;
        Some(entry.map(|(index, bytes)| Entry {
            index,
            bytes: bytes.to_vec(),
        }))
    }
}

/// The checkpoint as some writer left it, whole.
///
/// The file under this name is not written to, but swapped for another. One that was opened just before two swaps may
/// be written to while it is read; two looks that agree rule that out.
pub(crate) fn current_checkpoint(disk: &Disk) -> Result<Checkpoint, Fault> {
    let read = || {
        disk.read(CHECKPOINT, MAX_NOTE as u64 + 1)
            .map_err(Fault::unreadable(CHECKPOINT))?
            .ok_or(Fault::Unsigned(Unsigned::Missing))
    };
    let mut bytes = read()?;
    loop {
        let again = read()?;
        if again == bytes {
            return Ok(Checkpoint::parse(&bytes)?);
        }
        bytes = again;
    }
}
