//! Packs: many objects in a file, some as differences from others, and the file that says where each is.

use super::objects::ObjectId;
use flate2::read::ZlibDecoder;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

/// Before the names: magic, version, and how many names begin with each byte or a smaller one.
const NAMES_AT: u64 = 8 + 256 * 4;
const NAME: u64 = 20;

/// A pack and its index, of version 2.
pub(super) struct PackFile {
    index: File,
    pack: File,
    count: u64,
}

pub(super) enum PackObject {
    Whole {
        kind: u8,
        bytes: Vec<u8>,
    },
    /// From an object so many bytes before.
    OffsetDelta {
        back: u64,
        delta: Vec<u8>,
    },
    NameDelta {
        base: ObjectId,
        delta: Vec<u8>,
    },
}

impl PackFile {
    /// Nothing if it is not of a form that is known.
    pub(super) fn new(index: File, pack: File) -> Option<Self> {
        let head: [u8; 8] = read(&index, 0).ok()?;
        if head != [0xff, b't', b'O', b'c', 0, 0, 0, 2] {
            return None;
        }
        let count = u64::from(u32::from_be_bytes(read(&index, NAMES_AT - 4).ok()?));
        Some(Self { index, pack, count })
    }

    /// Where in the pack an object is.
    pub(super) fn find(&self, id: &ObjectId) -> Option<u64> {
        let first = u64::from(*id.0.first()?);
        let bound = |at: u64| -> Option<u64> {
            let count = u32::from_be_bytes(read(&self.index, 8 + at * 4).ok()?);
            Some(u64::from(count).min(self.count))
        };
        let mut low = match first {
            0 => 0,
            _ => bound(first - 1)?,
        };
        let mut high = bound(first)?;
        while low < high {
            let middle = low + (high - low) / 2;
            let name: [u8; 20] = read(&self.index, NAMES_AT + middle * NAME).ok()?;
            match name.cmp(&id.0) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
                std::cmp::Ordering::Equal => return self.offset(middle),
            }
        }
        None
    }

    fn offset(&self, number: u64) -> Option<u64> {
        // After the names: checksums of four bytes, then offsets.
        let offsets = NAMES_AT + self.count * (NAME + 4);
        let offset = u32::from_be_bytes(read(&self.index, offsets + number * 4).ok()?);
        if offset & 1 << 31 == 0 {
            return Some(u64::from(offset));
        }
        let far = u64::from(offset & !(1 << 31));
        let at = offsets + self.count * 4 + far * 8;
        Some(u64::from_be_bytes(read(&self.index, at).ok()?))
    }

    /// Reads what lies at an offset, if it is no larger than that.
    pub(super) fn read(&self, offset: u64, most: u64) -> io::Result<PackObject> {
        let mut from = FileReader {
            file: &self.pack,
            at: offset,
        };
        let first = byte(&mut from)?;
        let kind = first >> 4 & 7;
        let mut size = u64::from(first & 15);
        let (mut shift, mut last) = (4, first);
        while last & 0x80 != 0 {
            last = byte(&mut from)?;
            if shift > 56 {
                return Err(damaged());
            }
            size |= u64::from(last & 0x7f) << shift;
            shift += 7;
        }
        if size > most {
            return Err(io::Error::other("it is too large to be looked into"));
        }
        match kind {
            1..=4 => Ok(PackObject::Whole {
                kind,
                bytes: unpacked(from, size)?,
            }),
            6 => {
                let mut next = byte(&mut from)?;
                let mut back = u64::from(next & 0x7f);
                while next & 0x80 != 0 {
                    next = byte(&mut from)?;
                    back = (back.checked_add(1).filter(|back| *back < 1 << 55))
                        .ok_or_else(damaged)?
                        << 7
                        | u64::from(next & 0x7f);
                }
                let delta = unpacked(from, size)?;
                Ok(PackObject::OffsetDelta { back, delta })
            }
            7 => {
                let mut name = [0; 20];
                from.read_exact(&mut name)?;
                let delta = unpacked(from, size)?;
                Ok(PackObject::NameDelta {
                    base: ObjectId(name),
                    delta,
                })
            }
            _ => Err(damaged()),
        }
    }
}

/// What a difference makes of an object.
pub(super) fn patched(base: &[u8], delta: &[u8], most: u64) -> io::Result<Vec<u8>> {
    let mut rest = delta;
    let from = varint(&mut rest)?;
    let size = varint(&mut rest)?;
    if from != base.len() as u64 || size > most {
        return Err(damaged());
    }
    let mut made = Vec::new();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        let piece = if first & 0x80 != 0 {
            let mut number = |bits: u8, count: u32| -> io::Result<usize> {
                let mut value = 0usize;
                for place in 0..count {
                    if bits >> place & 1 != 0 {
                        let (next, after) = rest.split_first().ok_or_else(damaged)?;
                        rest = after;
                        value |= usize::from(*next) << (8 * place);
                    }
                }
                Ok(value)
            };
            let start = number(*first, 4)?;
            let length = match number(first >> 4 & 7, 3)? {
                0 => 0x10000,
                length => length,
            };
            let end = start.checked_add(length).ok_or_else(damaged)?;
            base.get(start..end).ok_or_else(damaged)?
        } else if *first != 0 {
            let (piece, after) = rest
                .split_at_checked(usize::from(*first))
                .ok_or_else(damaged)?;
            rest = after;
            piece
        } else {
            return Err(damaged());
        };
        if (made.len() + piece.len()) as u64 > size {
            return Err(damaged());
        }
        made.extend_from_slice(piece);
    }
    match made.len() as u64 == size {
        true => Ok(made),
        false => Err(damaged()),
    }
}

fn varint(rest: &mut &[u8]) -> io::Result<u64> {
    let mut value = 0;
    for shift in (0..56).step_by(7) {
        let (next, after) = rest.split_first().ok_or_else(damaged)?;
        *rest = after;
        value |= u64::from(next & 0x7f) << shift;
        if next & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(damaged())
}

fn unpacked(from: FileReader<'_>, size: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    ZlibDecoder::new(from)
        .take(size + 1)
        .read_to_end(&mut bytes)?;
    match bytes.len() as u64 == size {
        true => Ok(bytes),
        false => Err(damaged()),
    }
}

fn read<const N: usize>(file: &File, at: u64) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    file.read_exact_at(&mut bytes, at)?;
    Ok(bytes)
}

fn byte(from: &mut FileReader<'_>) -> io::Result<u8> {
    let mut bytes = [0];
    from.read_exact(&mut bytes)?;
    Ok(u8::from_be_bytes(bytes))
}

fn damaged() -> io::Error {
    io::Error::other("it is damaged")
}

/// Reads on from a place, and leaves the file's own place alone.
struct FileReader<'a> {
    file: &'a File,
    at: u64,
}

impl Read for FileReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(buffer, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_difference_copies_and_adds() {
        let base = b"hello world";
        // Eleven become eleven: bytes 0..6 of the base, then five new ones.
        let delta = [&[11, 11, 0x90, 6, 5][..], b"glass"].concat();
        assert_eq!(patched(base, &delta, 100).expect("made"), b"hello glass");
        assert!(patched(base, &delta, 10).is_err(), "too large");
        assert!(patched(b"hello", &delta, 100).is_err(), "another base");
        assert!(patched(base, &[11, 11, 0], 100).is_err());
        assert!(patched(base, &[11, 11, 0x91, 200, 6], 100).is_err());
    }

    proptest! {
        #[test]
        fn no_difference_is_too_much(base in prop::collection::vec(any::<u8>(), 0..64), delta in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(made) = patched(&base, &delta, 4096) {
                prop_assert!(made.len() <= 4096);
            }
        }

        #[test]
        fn no_pack_leads_astray(index in prop::collection::vec(any::<u8>(), 0..2048), pack in prop::collection::vec(any::<u8>(), 0..256), at in 0u64..300) {
            let file = |bytes: &[u8]| {
                let file = tempfile::tempfile().expect("a file");
                file.write_all_at(bytes, 0).expect("written");
                file
            };
            let index = [&[0xff, b't', b'O', b'c', 0, 0, 0, 2][..], &index].concat();
            if let Some(pack) = PackFile::new(file(&index), file(&pack)) {
                let _ = pack.find(&ObjectId([7; 20]));
                let _ = pack.read(at, 4096);
            }
        }
    }
}
