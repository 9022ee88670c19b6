//! Checking a whole log against its signature.

use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::audit::Audit;
use crate::checkpoint::Checkpoint;
use crate::disk::Disk;
use crate::fault::{Fault, Unsigned};
use crate::key::KnownKey;
use crate::reader::current_checkpoint;

/// What to hold the log against, besides its own checkpoint.
#[derive(Clone, Debug, Default)]
pub struct VerifyOptions {
    /// The log must be this one. Without it, another log under the same key passes.
    pub origin: Option<String>,
    /// An earlier checkpoint that the caller trusts: the log must have grown from it.
    pub since: Option<Checkpoint>,
    /// The log must have at least this many entries.
    pub min_size: u64,
    /// How old the last checkpoint may be.
    pub max_age: Option<MaxAge>,
}

/// A bound on age, by the caller's clock.
#[derive(Clone, Copy, Debug)]
pub struct MaxAge {
    /// The oldest that passes.
    pub age: Duration,
    /// The time of now.
    pub now: SystemTime,
}

/// A log that holds.
#[derive(Clone, Debug)]
pub struct Verified {
    /// The checkpoint it was held against: size, root, time.
    pub checkpoint: Checkpoint,
    /// The key that signed it.
    pub signed_by: KnownKey,
    /// Whether there is something past the checkpoint: a commit under way, or one that a crash cut off.
    pub torn_tail: bool,
}

/// Checks every entry, every hash tile at every level, the root, the signature and, if asked to, history and age.
/// Works while another process writes. Memory does not grow with the log.
pub fn verify(dir: &Path, known: &[KnownKey], options: &VerifyOptions) -> Result<Verified, Fault> {
    verify_and_visit(dir, known, options, |_, _| {})
}

/// As [`verify`], and shows each entry on the way, so that a log need not be read twice. What was seen counts only if the
/// result is `Ok`.
pub fn verify_and_visit(
    dir: &Path,
    known: &[KnownKey],
    options: &VerifyOptions,
    visit: impl FnMut(u64, &[u8]),
) -> Result<Verified, Fault> {
    let disk = match Disk::open(dir) {
        Ok(disk) => disk,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(Fault::Unsigned(Unsigned::Missing));
        }
        Err(cause) => return Err(Fault::unreadable(".")(cause)),
    };
    let checkpoint = current_checkpoint(&disk)?;
    if let Some(expected) = options
        .origin
        .as_ref()
        .filter(|origin| *origin != checkpoint.origin())
    {
        return Err(Fault::OtherLog {
            found: checkpoint.origin().to_owned(),
            expected: expected.clone(),
        });
    }
    let signed_by = checkpoint.signed_by(known)?.clone();
    let expected = options
        .since
        .as_ref()
        .map_or(0, Checkpoint::size)
        .max(options.min_size);
    if checkpoint.size() < expected {
        return Err(Fault::Truncated {
            have: checkpoint.size(),
            expected,
        });
    }
    let torn_tail = Audit::new(&disk, &checkpoint, options.since.as_ref()).run(visit)?;
    if let Some(MaxAge { age: oldest, now }) = options.max_age {
        let signed = checkpoint
            .time()
            .ok_or(Fault::Unsigned(Unsigned::Undated))?;
        // A checkpoint from the future is as fresh as can be: clocks differ.
        let age = now.duration_since(signed).unwrap_or_default();
        if age > oldest {
            return Err(Fault::Stale { age });
        }
    }
    Ok(Verified {
        checkpoint,
        signed_by,
        torn_tail,
    })
}
