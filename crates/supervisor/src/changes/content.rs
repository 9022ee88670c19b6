//! What is in a file, in pieces: read, hashed and written without the holes, so that a file that is mostly a hole costs
//! no more than what is in it.

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

const PIECE: usize = 64 << 10;

/// A file's content in one number: SHA-256 over its size and its pieces of 64 KiB that are not all zero, each after its place.
/// So it is the same whether zeros are stored or left out.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct Content {
    pub(super) size: u64,
    pub(super) digest: String,
}

/// Looks at all of a file.
pub(super) fn content_of(file: &File) -> io::Result<Content> {
    each_piece(file, |_, _| Ok(()))
}

/// The same of a text that is yet to become a file.
pub(super) fn content_of_text(text: &str) -> Content {
    let bytes = text.as_bytes();
    let size = bytes.len() as u64;
    let mut hasher = Sha256::new();
    hasher.update(size.to_le_bytes());
    for (number, piece) in bytes.chunks(PIECE).enumerate() {
        if piece.iter().any(|byte| *byte != 0) {
            hasher.update((number as u64 * PIECE as u64).to_le_bytes());
            hasher.update(piece);
        }
    }
    Content {
        size,
        digest: data_encoding::HEXLOWER.encode(&hasher.finalize()),
    }
}

/// Copies a file, and tells what was copied.
pub(super) fn copy(from: &File, to: &File) -> io::Result<Content> {
    let content = each_piece(from, |place, piece| to.write_all_at(piece, place))?;
    rustix::fs::ftruncate(to, content.size)?;
    Ok(content)
}

fn each_piece(
    file: &File,
    mut take: impl FnMut(u64, &[u8]) -> io::Result<()>,
) -> io::Result<Content> {
    let size = file.metadata()?.len();
    let mut hasher = Sha256::new();
    hasher.update(size.to_le_bytes());
    let mut buffer = vec![0u8; PIECE];
    let mut place = 0;
    while let Some(start) = next_data(file, place, size)? {
        let length = usize::try_from(size - start).unwrap_or(PIECE).min(PIECE);
        let piece = buffer.get_mut(..length).unwrap_or_default();
        file.read_exact_at(piece, start)?;
        if piece.iter().any(|byte| *byte != 0) {
            hasher.update(start.to_le_bytes());
            hasher.update(&*piece);
            take(start, piece)?;
        }
        place = start + length as u64;
    }
    Ok(Content {
        size,
        digest: data_encoding::HEXLOWER.encode(&hasher.finalize()),
    })
}

/// Where the first piece begins, from a place on, that may be more than a hole.
fn next_data(file: &File, place: u64, size: u64) -> io::Result<Option<u64>> {
    if place >= size {
        return Ok(None);
    }
    match seek(file, SeekFrom::Data(place)) {
        Ok(data) if data >= size => Ok(None),
        Ok(data) => Ok(Some((data - data % PIECE as u64).max(place))),
        Err(Errno::NXIO) => Ok(None),
        // A file system that does not know of holes.
        Err(Errno::INVAL) => Ok(Some(place)),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_zeros_and_cost_nothing() {
        let file = || tempfile::tempfile().expect("a file");
        let (sparse, full) = (file(), file());
        let size = 3 * PIECE as u64 + 17;
        for file in [&sparse, &full] {
            rustix::fs::ftruncate(file, size).expect("a size");
            file.write_all_at(b"end", size - 3).expect("a write");
        }
        full.write_all_at(&vec![0; 2 * PIECE], 0).expect("zeros");
        let content = content_of(&sparse).expect("content");
        let text = "\0".repeat(3 * PIECE + 14) + "end";
        assert_eq!(content, content_of_text(&text));
        assert_eq!(content, content_of(&full).expect("content"));
        let copied = file();
        assert_eq!(copy(&full, &copied).expect("a copy"), content);
        assert_eq!(content_of(&copied).expect("content"), content);
        // Elsewhere, or of another size, it is something else.
        full.write_all_at(b"end", 0).expect("a write");
        assert_ne!(content_of(&full).expect("content"), content);
        rustix::fs::ftruncate(&sparse, size + 1).expect("a size");
        assert_ne!(content_of(&sparse).expect("content"), content);
        // A terabyte of nothing is looked at in no time.
        let huge = file();
        rustix::fs::ftruncate(&huge, 1 << 40).expect("a size");
        assert_eq!(content_of(&huge).expect("content").size, 1 << 40);
    }
}
