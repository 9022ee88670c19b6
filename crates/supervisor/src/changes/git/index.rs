//! The index: what the next commit will have.

use super::objects::ObjectId;
use std::collections::BTreeMap;

const EXTENDED: u16 = 0x4000;
const ASSUME_UNCHANGED: u16 = 0x8000;
const SKIP_WORKTREE: u16 = 0x4000;
const MOST_ENTRIES: u32 = 1_000_000;
/// Version 4 repeats of a path what is the same as in the one before: a few bytes could mean very many.
const MOST_BYTES: usize = 256 << 20;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct IndexEntry {
    pub(super) mode: u32,
    pub(super) id: ObjectId,
    /// Git does not look at the file in the worktree any more.
    pub(super) is_unwatched: bool,
    /// One of several versions of a path that two sides changed.
    pub(super) is_conflict: bool,
}

/// The entries by their paths.
pub(super) type IndexEntries = BTreeMap<Vec<u8>, IndexEntry>;

/// Reads an index of version 2, 3 or 4; nothing if it is damaged, or refers to another one.
pub(super) fn parse(bytes: &[u8]) -> Option<IndexEntries> {
    let mut rest = bytes.strip_prefix(b"DIRC")?;
    let version = number(&mut rest)?;
    let count = number(&mut rest)?;
    if !(2..=4).contains(&version) || count > MOST_ENTRIES {
        return None;
    }
    let mut entries = IndexEntries::new();
    let mut before: Vec<u8> = Vec::new();
    let mut total = 0;
    for _ in 0..count {
        let start = rest;
        take(&mut rest, 24)?;
        let mode = number(&mut rest)?;
        take(&mut rest, 12)?;
        let id = ObjectId(take(&mut rest, 20)?.try_into().ok()?);
        let flags = short(&mut rest)?;
        let more = match flags & EXTENDED != 0 && version >= 3 {
            true => short(&mut rest)?,
            false => 0,
        };
        let path = match version {
            4 => {
                let gone = offset(&mut rest)?;
                let kept = before.len().checked_sub(gone)?;
                let end = rest.iter().position(|byte| *byte == 0)?;
                let new = take(&mut rest, end)?;
                take(&mut rest, 1)?;
                [before.get(..kept)?, new].concat()
            }
            _ => {
                let end = rest.iter().position(|byte| *byte == 0)?;
                let path = take(&mut rest, end)?.to_vec();
                let used = start.len() - rest.len();
                // One to eight zeros, so that the next one begins at a multiple of eight.
                take(&mut rest, 8 - used % 8)?;
                path
            }
        };
        total += path.len();
        if total > MOST_BYTES {
            return None;
        }
        before.clone_from(&path);
        let entry = IndexEntry {
            mode,
            id,
            is_unwatched: flags & ASSUME_UNCHANGED != 0 || more & SKIP_WORKTREE != 0,
            is_conflict: flags & 0x3000 != 0,
        };
        entries.insert(path, entry);
    }
    // The rest is extensions: one says that most entries are in another file.
    while rest.len() > 20 {
        let name = take(&mut rest, 4)?;
        let size = number(&mut rest)?;
        if name == b"link" {
            return None;
        }
        take(&mut rest, usize::try_from(size).ok()?)?;
    }
    Some(entries)
}

fn take<'a>(rest: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, after) = rest.split_at_checked(count)?;
    *rest = after;
    Some(taken)
}

fn number(rest: &mut &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(take(rest, 4)?.try_into().ok()?))
}

fn short(rest: &mut &[u8]) -> Option<u16> {
    Some(u16::from_be_bytes(take(rest, 2)?.try_into().ok()?))
}

/// A number as offsets in packs are written.
fn offset(rest: &mut &[u8]) -> Option<usize> {
    let mut next = *take(rest, 1)?.first()?;
    let mut value = usize::from(next & 0x7f);
    while next & 0x80 != 0 {
        next = *take(rest, 1)?.first()?;
        value = value.checked_add(1)?.checked_mul(128)? | usize::from(next & 0x7f);
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_index_leads_astray(version in 2u8..5, count in 0u8..4, bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let head = [&b"DIRC\0\0\0"[..], &[version, 0, 0, 0, count]].concat();
            let _ = parse(&[head, bytes].concat());
        }
    }
}
