//! A layer of an image: a tar archive, perhaps compressed, known by the digests of both forms.

mod allowance;
mod archive;
mod zstd;

pub(crate) use archive::{Layered, unpack};

use crate::error::ImageError;
use crate::hashed::Hashed;
use crate::name::Digest;
use crate::tree::Tree;
use std::io::{self, Read};
use zstd::Frames;

const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Skippable frames may come first; their numbers differ in four bits.
const ZSTD_SKIPPABLE: [u8; 3] = [0x2a, 0x4d, 0x18];
/// Bytes behind the end of an archive: padding, and nothing of use.
const MOST_PADDING: u64 = 64 << 20;

/// What a layer must turn out to be.
pub(crate) struct Expected<'d> {
    /// For people.
    pub(crate) what: String,
    /// Of the bytes as they are stored, if that is known.
    pub(crate) blob: Option<&'d Digest>,
    /// Of the archive, if that is known.
    pub(crate) diff: Option<&'d Digest>,
}

/// Unpacks a layer over what is there. If its digests are not the expected ones it fails, and the tree is of no use.
pub(crate) fn apply(
    tree: &mut Tree,
    blob: impl Read,
    expected: &Expected<'_>,
) -> Result<(), ImageError> {
    let stored = Hashed::new(blob);
    let fail = || ImageError::read(expected.what.clone());
    let plain = Hashed::new(decompressed(stored.clone()).map_err(fail())?);
    tree.begin_layer();
    unpack(tree, plain.clone(), Layered::Yes)?;
    for mut rest in [&mut plain.clone() as &mut dyn Read, &mut stored.clone()] {
        let padding = io::copy(&mut (&mut rest).take(MOST_PADDING + 1), &mut io::sink());
        if padding.map_err(fail())? > MOST_PADDING {
            let what = format!("{} goes on behind its end", expected.what);
            return Err(ImageError::refused(what, "don't use this image"));
        }
    }
    for (named, found) in [
        (expected.blob, stored.digest()),
        (expected.diff, plain.digest()),
    ] {
        if let Some(named) = named
            && *named != found
        {
            return Err(ImageError::Corrupt {
                what: expected.what.clone(),
                named: named.to_string(),
                found: found.to_string(),
            });
        }
    }
    Ok(())
}

/// By what it begins with: media types are said by others, and say the same when they are right.
fn decompressed<'r>(mut blob: impl Read + 'r) -> io::Result<Box<dyn Read + 'r>> {
    let mut start = Vec::with_capacity(4);
    (&mut blob).take(4).read_to_end(&mut start)?;
    let whole = io::Cursor::new(start.clone()).chain(blob);
    Ok(if start.starts_with(&GZIP) {
        Box::new(flate2::read::MultiGzDecoder::new(whole))
    } else if start == ZSTD || start.get(1..) == Some(&ZSTD_SKIPPABLE) {
        Box::new(Frames::new(whole))
    } else {
        Box::new(whole)
    })
}
