//! Branches, tags and HEAD, before and after.

use super::files::{GitFiles, Side, paths_within};
use super::objects::ObjectId;
use crate::changes::listing::Made;
use std::collections::{BTreeMap, BTreeSet};

const LARGEST_REF: u64 = 4096;
const LARGEST_PACKED: u64 = 64 << 20;

/// Where something points.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RefTarget {
    Object(ObjectId),
    /// To another ref.
    Symbolic(Vec<u8>),
    /// Something that is not understood.
    Unknown(Vec<u8>),
}

/// A ref that is not what it was.
pub(super) struct RefMove {
    pub(super) name: Vec<u8>,
    pub(super) before: Option<RefTarget>,
    pub(super) after: Option<RefTarget>,
}

/// All refs that moved, by name.
pub(super) fn moves(files: &GitFiles<'_>) -> Vec<RefMove> {
    let before = packed(files, Side::Before);
    let after = match files.changed(b"packed-refs") {
        Some(_) => packed(files, Side::After),
        None => before.clone(),
    };
    let mut names: BTreeSet<Vec<u8>> = BTreeSet::new();
    for (path, entry) in files.changed_below(b"refs/") {
        match entry.made {
            Some(Made::Directory { .. }) => {}
            _ => {
                names.insert(path.to_vec());
            }
        }
        let within = paths_within(entry).into_iter();
        names.extend(within.map(|rest| [path, b"/", rest.as_slice()].concat()));
    }
    for (name, target) in before.iter().chain(&after) {
        let is_same = before.get(name) == Some(target) && after.get(name) == Some(target);
        if !is_same {
            names.insert(name.clone());
        }
    }
    let names = names.into_iter().filter(|name| !name.ends_with(b".lock"));
    let moved = names.map(|name| RefMove {
        before: loose(files, &name, Side::Before)
            .or_else(|| before.get(&name).copied().map(RefTarget::Object)),
        after: loose(files, &name, Side::After)
            .or_else(|| after.get(&name).copied().map(RefTarget::Object)),
        name,
    });
    moved.filter(|moved| moved.before != moved.after).collect()
}

/// What HEAD says.
pub(super) fn head(files: &GitFiles<'_>, side: Side) -> Option<RefTarget> {
    loose(files, b"HEAD", side)
}

/// Where HEAD leads to in the end.
pub(super) fn head_object(files: &GitFiles<'_>, side: Side) -> Option<ObjectId> {
    match head(files, side)? {
        RefTarget::Object(id) => Some(id),
        RefTarget::Symbolic(name) => match loose(files, &name, side) {
            Some(RefTarget::Object(id)) => Some(id),
            Some(_) => None,
            None => packed(files, side).get(&name).copied(),
        },
        RefTarget::Unknown(_) => None,
    }
}

fn loose(files: &GitFiles<'_>, name: &[u8], side: Side) -> Option<RefTarget> {
    let bytes = match files.read(name, side, LARGEST_REF) {
        Ok(bytes) => bytes?,
        Err(error) => return Some(RefTarget::Unknown(error.to_string().into_bytes())),
    };
    let text = bytes.trim_ascii_end();
    Some(match text.strip_prefix(b"ref: ") {
        Some(other) => RefTarget::Symbolic(other.trim_ascii().to_vec()),
        None => match ObjectId::parse(text) {
            Some(id) => RefTarget::Object(id),
            None => RefTarget::Unknown(text.get(..text.len().min(40)).unwrap_or_default().to_vec()),
        },
    })
}

fn packed(files: &GitFiles<'_>, side: Side) -> BTreeMap<Vec<u8>, ObjectId> {
    let bytes = files.read(b"packed-refs", side, LARGEST_PACKED);
    let bytes = bytes.ok().flatten().unwrap_or_default();
    let line = |line: &[u8]| {
        let (id, name) = line.split_at_checked(40)?;
        let name = name.strip_prefix(b" ")?.trim_ascii_end();
        Some((name.to_vec(), ObjectId::parse(id)?))
    };
    // Lines that begin otherwise say which object a tag leads to, or how the file is sorted.
    bytes
        .split(|byte| *byte == b'\n')
        .filter_map(line)
        .collect()
}
