//! Objects of a repository, read without git: loose ones and those in packs, each held against its name. Everything is bounded,
//! since an agent wrote it: how large an object gets, how many are read, how long a chain of differences is.

use super::files::{GitFiles, Side};
use super::pack::{PackFile, PackObject};
use flate2::read::ZlibDecoder;
use sha1::Digest as _;
use std::cell::{Cell, RefCell};
use std::io::{self, Read};

/// The name of an object: its SHA-1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ObjectId(pub(super) [u8; 20]);

/// The largest object that is unpacked.
const LARGEST: u64 = 4 << 20;
/// All that is unpacked for one repository.
const MOST_BYTES: u64 = 256 << 20;
const MOST_OBJECTS: usize = 50_000;
const MOST_PACKS: usize = 64;
/// Git makes chains of 50 at most, 250 if it is told to.
const LONGEST_CHAIN: usize = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ObjectKind {
    Commit,
    Tree,
    Other,
}

pub(super) struct GitObject {
    pub(super) kind: ObjectKind,
    pub(super) bytes: Vec<u8>,
}

impl ObjectId {
    pub(super) fn parse(hex: &[u8]) -> Option<Self> {
        let bytes = data_encoding::HEXLOWER.decode(hex).ok()?;
        Some(Self(bytes.try_into().ok()?))
    }

    pub(super) fn hex(&self) -> String {
        data_encoding::HEXLOWER.encode(&self.0)
    }

    fn loose_path(&self) -> Vec<u8> {
        let hex = self.hex();
        let (first, rest) = hex.split_at(2);
        format!("objects/{first}/{rest}").into_bytes()
    }
}

/// The objects of one repository.
pub(super) struct GitObjects<'a> {
    files: &'a GitFiles<'a>,
    host_packs: Vec<PackFile>,
    /// Made or changed in the box.
    own_packs: Vec<PackFile>,
    left_bytes: Cell<u64>,
    left_objects: Cell<usize>,
    remarks: RefCell<Vec<String>>,
}

impl<'a> GitObjects<'a> {
    pub(super) fn new(files: &'a GitFiles<'a>) -> Self {
        let mut remarks = Vec::new();
        let mut open = |paths: Vec<Vec<u8>>, side: Side| -> Vec<PackFile> {
            if paths.len() > MOST_PACKS {
                remarks.push(format!("it has more than {MOST_PACKS} packs"));
            }
            let paths = paths.into_iter().take(MOST_PACKS);
            paths
                .filter_map(|path| open_pack(files, &path, side))
                .collect()
        };
        let is_index = |name: &[u8]| name.starts_with(b"pack-") && name.ends_with(b".idx");
        let host = files.host_names(b"objects/pack").into_iter();
        let host = host
            .map(std::os::unix::ffi::OsStringExt::into_vec)
            .filter(|name| is_index(name))
            .map(|name| [b"objects/pack/", name.as_slice()].concat());
        let host_packs = open(host.collect(), Side::Before);
        let own = files.changed_below(b"objects/pack/pack-");
        let own = own
            .filter(|(path, entry)| path.ends_with(b".idx") && entry.made.is_some())
            .map(|(path, _)| path.to_vec());
        let own_packs = open(own.collect(), Side::After);
        Self {
            files,
            host_packs,
            own_packs,
            left_bytes: Cell::new(MOST_BYTES),
            left_objects: Cell::new(MOST_OBJECTS),
            remarks: RefCell::new(remarks),
        }
    }

    /// What could not be looked at.
    pub(super) fn remarks(&self) -> Vec<String> {
        self.remarks.borrow().clone()
    }

    /// Whether the host has it.
    pub(super) fn is_hosts(&self, id: &ObjectId) -> bool {
        let loose = self.files.open(&id.loose_path(), Side::Before);
        matches!(loose, Ok(Some(_))) || self.host_packs.iter().any(|pack| pack.find(id).is_some())
    }

    /// Reads an object, whoever has it. One that is not what its name says is an error.
    pub(super) fn read(&self, id: &ObjectId) -> io::Result<Option<GitObject>> {
        let Some(object) = self.read_unchecked(id, 0)? else {
            return Ok(None);
        };
        let (kind, bytes) = object;
        let mut hasher = sha1::Sha1::new();
        hasher.update(format!("{} {}\0", kind_name(kind), bytes.len()).as_bytes());
        hasher.update(&bytes);
        if hasher.finalize().as_slice() != id.0 {
            return Err(io::Error::other("it is not what its name says"));
        }
        let kind = match kind {
            1 => ObjectKind::Commit,
            2 => ObjectKind::Tree,
            _ => ObjectKind::Other,
        };
        Ok(Some(GitObject { kind, bytes }))
    }

    fn read_unchecked(&self, id: &ObjectId, depth: usize) -> io::Result<Option<(u8, Vec<u8>)>> {
        self.spend_object()?;
        for side in [Side::After, Side::Before] {
            if let Some(file) = self.files.open(&id.loose_path(), side)? {
                return self.loose(file).map(Some);
            }
        }
        let packs = self.own_packs.iter().chain(&self.host_packs);
        let found = packs.filter_map(|pack| Some((pack, pack.find(id)?))).next();
        match found {
            Some((pack, offset)) => self.packed(pack, offset, depth).map(Some),
            None => Ok(None),
        }
    }

    fn packed(&self, pack: &PackFile, offset: u64, depth: usize) -> io::Result<(u8, Vec<u8>)> {
        // From the object to the one that is whole, and back.
        let mut differences = Vec::new();
        let mut next = offset;
        let (kind, mut bytes) = loop {
            if depth + differences.len() > LONGEST_CHAIN {
                return Err(too_much("a chain of differences is too long"));
            }
            match pack.read(next, self.left_bytes.get().min(LARGEST))? {
                PackObject::Whole { kind, bytes } => {
                    self.spend_bytes(bytes.len())?;
                    break (kind, bytes);
                }
                PackObject::OffsetDelta { back, delta } => {
                    self.spend_bytes(delta.len())?;
                    self.spend_object()?;
                    differences.push(delta);
                    next = next
                        .checked_sub(back)
                        .filter(|base| back > 0 && *base > 0)
                        .ok_or_else(|| too_much("a difference from nothing"))?;
                }
                PackObject::NameDelta { base, delta } => {
                    self.spend_bytes(delta.len())?;
                    differences.push(delta);
                    let depth = depth + differences.len();
                    let base = self.read_unchecked(&base, depth)?;
                    break base.ok_or_else(|| too_much("a difference from nothing"))?;
                }
            }
        };
        for delta in differences.iter().rev() {
            bytes = super::pack::patched(&bytes, delta, LARGEST)?;
            self.spend_bytes(bytes.len())?;
        }
        Ok((kind, bytes))
    }

    fn loose(&self, file: std::fs::File) -> io::Result<(u8, Vec<u8>)> {
        let most = self.left_bytes.get().min(LARGEST) + 64;
        let mut bytes = Vec::new();
        ZlibDecoder::new(file.take(most))
            .take(most)
            .read_to_end(&mut bytes)?;
        self.spend_bytes(bytes.len())?;
        let damaged = || io::Error::other("it is damaged");
        let end = bytes.iter().take(64).position(|byte| *byte == 0);
        let head = bytes.get(..end.ok_or_else(damaged)?).ok_or_else(damaged)?;
        let head = std::str::from_utf8(head).map_err(|_| damaged())?;
        let (kind, size) = head.split_once(' ').ok_or_else(damaged)?;
        let kind = match kind {
            "commit" => 1,
            "tree" => 2,
            "blob" => 3,
            "tag" => 4,
            _ => return Err(damaged()),
        };
        let start = head.len() + 1;
        let is_whole = size.parse() == Ok(bytes.len().saturating_sub(start));
        if !is_whole {
            return Err(too_much("it is damaged, or too large to be looked into"));
        }
        bytes.drain(..start);
        Ok((kind, bytes))
    }

    fn spend_object(&self) -> io::Result<()> {
        let left = self.left_objects.get().checked_sub(1);
        self.left_objects
            .set(left.ok_or_else(|| too_much("there is too much to be looked into"))?);
        Ok(())
    }

    fn spend_bytes(&self, count: usize) -> io::Result<()> {
        let left = self.left_bytes.get().checked_sub(count as u64);
        self.left_bytes
            .set(left.ok_or_else(|| too_much("there is too much to be looked into"))?);
        Ok(())
    }
}

fn open_pack(files: &GitFiles<'_>, index: &[u8], side: Side) -> Option<PackFile> {
    let pack = [index.strip_suffix(b".idx")?, b".pack"].concat();
    let index = files.open(index, side).ok()??;
    PackFile::new(index, files.open(&pack, side).ok()??)
}

fn kind_name(kind: u8) -> &'static str {
    match kind {
        1 => "commit",
        2 => "tree",
        3 => "blob",
        _ => "tag",
    }
}

fn too_much(why: &'static str) -> io::Error {
    io::Error::other(why)
}
