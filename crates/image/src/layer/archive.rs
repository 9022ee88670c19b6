//! The entries of a tar archive, into a tree.
//!
//! The `tar` crate finds the headers. Long names and extended headers are read here, because there they have no bound.

use super::allowance::{Allowance, Allowed};
use crate::disk::read_bounded;
use crate::error::ImageError;
use crate::tree::{EntryPath, Meta, Tree};
use std::io::Read;
use tar::{Entry, EntryType};

/// Bytes of a long name or an extended header.
const MOST_EXTENSION: u64 = 1 << 20;
const WHITEOUT: &[u8] = b".wh.";
/// Names that begin so are marks of the layer's storage, one of them of use.
const MARK: &[u8] = b".wh..wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";
const HOSTILE: &str = "don't use this image";

/// Whether names that begin with `.wh.` take away what earlier layers have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layered {
    Yes,
    /// They are names like any other.
    No,
}

/// What extended headers and long names say of the entry after them.
#[derive(Default)]
struct Extension {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    mtime: Option<i64>,
}

/// Unpacks an archive up to its end mark, or the end of what can be read.
pub(crate) fn unpack(
    tree: &mut Tree,
    archive: impl Read,
    layered: Layered,
) -> Result<(), ImageError> {
    let allowance = Allowance::new();
    let mut archive = tar::Archive::new(Allowed {
        from: archive,
        allowance: allowance.clone(),
    });
    let failed = |source| match allowance.is_spent() {
        true => ImageError::TooLarge("much that is in no file".into()),
        false => ImageError::read("the archive")(source),
    };
    let entries = archive.entries().map_err(failed)?;
    let mut extension = Extension::default();
    for entry in entries.raw(true) {
        let mut entry = entry.map_err(failed)?;
        allowance.entry();
        if entry.header().entry_type().is_file() {
            allowance.grant(entry.size().min(tree.most_in_file()));
        }
        match entry.header().entry_type() {
            EntryType::GNULongName => extension.path = Some(long_name(tree, &mut entry)?),
            EntryType::GNULongLink => extension.link = Some(long_name(tree, &mut entry)?),
            EntryType::XHeader => read_extended(tree, &mut entry, &mut extension)?,
            EntryType::XGlobalHeader => {
                let mut global = Extension::default();
                read_extended(tree, &mut entry, &mut global)?;
                if global.path.is_some() || global.link.is_some() || global.size.is_some() {
                    return Err(refused("names every entry the same"));
                }
            }
            kind => one(
                tree,
                &mut entry,
                kind,
                std::mem::take(&mut extension),
                layered,
            )?,
        }
    }
    Ok(())
}

fn one(
    tree: &mut Tree,
    entry: &mut Entry<'_, impl Read>,
    kind: EntryType,
    extension: Extension,
    layered: Layered,
) -> Result<(), ImageError> {
    let Extension {
        path,
        link,
        size,
        mtime,
    } = extension;
    let raw = path.unwrap_or_else(|| entry.header().path_bytes().into_owned());
    let path = EntryPath::new(&raw)?;
    // A file so large that only the extended header can say it is larger than any we take.
    if size.is_some_and(|size| size != entry.size()) {
        return Err(ImageError::TooLarge(path.shown()));
    }
    if layered == Layered::Yes
        && let Some(mark) = path.names().position(|name| name.starts_with(WHITEOUT))
    {
        return whiteout(tree, &path, mark);
    }
    let mode = entry
        .header()
        .mode()
        .map_err(ImageError::read(path.shown()))?;
    let target = || {
        link.or_else(|| {
            entry
                .header()
                .link_name_bytes()
                .map(|name| name.into_owned())
        })
        .filter(|target| !target.is_empty() && !target.contains(&0))
        .ok_or_else(|| refused("has a link that leads nowhere"))
    };
    match kind {
        EntryType::Directory => tree.directory(&path, mode),
        // As archives older than the type of directories have them.
        EntryType::Regular if raw.ends_with(b"/") => tree.directory(&path, mode),
        EntryType::Regular | EntryType::Continuous => {
            let of_header = entry.header().mtime().ok();
            let mtime = mtime.or_else(|| of_header.and_then(|mtime| i64::try_from(mtime).ok()));
            let meta = Meta {
                mode,
                mtime: mtime.unwrap_or(0),
            };
            let size = entry.size();
            if tree.file(&path, meta, entry)? == size {
                return Ok(());
            }
            let cut = std::io::ErrorKind::UnexpectedEof.into();
            Err(ImageError::read(path.shown())(cut))
        }
        EntryType::Symlink => tree.symlink(&path, &target()?),
        EntryType::Link => tree.hard_link(&path, &EntryPath::new(&target()?)?),
        EntryType::Char | EntryType::Block | EntryType::Fifo => tree.leave_out_special(),
        EntryType::GNUSparse => Err(refused("has sparse files, which layers should not have")),
        _ => Err(refused("has entries of an unknown kind")),
    }
}

/// A name that says what earlier layers' entries are gone. `mark` is which of the path's names begins like one.
fn whiteout(tree: &mut Tree, path: &EntryPath, mark: usize) -> Result<(), ImageError> {
    let is_last = path.names().count() == mark + 1;
    let Some((parent, name)) = path.split().filter(|_| is_last) else {
        let below_a_mark = path
            .names()
            .nth(mark)
            .is_some_and(|it| it.starts_with(MARK));
        if below_a_mark {
            return tree.count();
        }
        return Err(refused("has entries below what it takes away"));
    };
    if name == OPAQUE {
        return tree.count().and_then(|()| tree.opaque(&parent));
    }
    if name.starts_with(MARK) {
        return tree.count();
    }
    // `.wh...` would be the directory above.
    let gone = name.get(WHITEOUT.len()..).unwrap_or_default();
    if gone.is_empty() || gone == b"." {
        return Err(refused("takes away what has no name"));
    }
    tree.whiteout(&parent.join(gone)?)
}

fn long_name(tree: &mut Tree, entry: &mut Entry<'_, impl Read>) -> Result<Vec<u8>, ImageError> {
    let mut name = extension_bytes(tree, entry)?;
    while name.last() == Some(&0) {
        name.pop();
    }
    Ok(name)
}

fn extension_bytes(
    tree: &mut Tree,
    entry: &mut Entry<'_, impl Read>,
) -> Result<Vec<u8>, ImageError> {
    tree.count()?;
    read_bounded(entry, MOST_EXTENSION).map_err(ImageError::read("an extended header"))
}

/// Records of the form `LENGTH KEY=VALUE\n`, the length being the record's own. A value may have anything in it.
fn read_extended(
    tree: &mut Tree,
    entry: &mut Entry<'_, impl Read>,
    extension: &mut Extension,
) -> Result<(), ImageError> {
    let bytes = extension_bytes(tree, entry)?;
    let mut rest = bytes.as_slice();
    while !rest.is_empty() {
        let (key, value, after) =
            record(rest).ok_or_else(|| refused("has a broken extended header"))?;
        rest = after;
        match key {
            b"path" => extension.path = Some(value.to_vec()),
            b"linkpath" => extension.link = Some(value.to_vec()),
            b"size" => {
                let size = number(value).ok_or_else(|| refused("has a broken size"))?;
                extension.size = Some(size);
            }
            b"mtime" => {
                // Fractions of a second are not kept.
                let whole = value.split(|byte| *byte == b'.').next();
                let seconds = whole.and_then(|digits| std::str::from_utf8(digits).ok());
                extension.mtime = seconds.and_then(|digits| digits.parse().ok());
            }
            key if key.starts_with(b"GNU.sparse.") => {
                return Err(refused("has sparse files, which layers should not have"));
            }
            _ => {}
        }
    }
    Ok(())
}

fn record(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let space = bytes.iter().position(|byte| *byte == b' ')?;
    let length = usize::try_from(number(bytes.get(..space)?)?).ok()?;
    let (record, after) = bytes.split_at_checked(length)?;
    let text = record.get(space + 1..)?.strip_suffix(b"\n")?;
    let equals = text.iter().position(|byte| *byte == b'=')?;
    Some((text.get(..equals)?, text.get(equals + 1..)?, after))
}

fn number(digits: &[u8]) -> Option<u64> {
    let is_plain = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    let text = std::str::from_utf8(digits).ok().filter(|_| is_plain)?;
    text.parse().ok()
}

fn refused(what: &str) -> ImageError {
    ImageError::refused(format!("a layer of the image {what}"), HOSTILE)
}
