//! The two trees of a proposal in one file: every content once. Read as a whole, it is much faster than thousands of files.

use std::collections::HashMap;
use std::io::{self, Write};

use crate::blob::Blob;
use crate::path::TreePath;
use crate::tree::{Entry, Mode, Tree};

const MAGIC: &[u8] = b"belljar trees 1\n";
/// Two trees of the largest size, and their names.
pub(crate) const LONGEST: u64 = 5 << 29;

/// Not two trees.
#[derive(Debug, thiserror::Error)]
#[error("not two trees of a proposal")]
pub(crate) struct InvalidPack;

/// Writes both.
pub(crate) fn write(to: &mut impl Write, trees: [&Tree; 2]) -> io::Result<()> {
    let mut known: HashMap<[u8; 32], u32> = HashMap::new();
    let mut blobs: Vec<&Blob> = Vec::new();
    for (_, entry) in trees.iter().flat_map(|tree| tree.iter()) {
        known.entry(*entry.blob.sha256()).or_insert_with(|| {
            blobs.push(&entry.blob);
            // A tree has at most a hundred thousand.
            (blobs.len() - 1) as u32
        });
    }
    to.write_all(MAGIC)?;
    number(to, blobs.len())?;
    for blob in blobs {
        number(to, blob.len())?;
        to.write_all(blob)?;
    }
    for tree in trees {
        number(to, tree.len())?;
        for (path, entry) in tree.iter() {
            number(to, path.as_str().len())?;
            to.write_all(path.as_str().as_bytes())?;
            to.write_all(entry.mode.as_git().as_bytes())?;
            let at = known.get(entry.blob.sha256()).copied().unwrap_or(u32::MAX);
            number(to, at as usize)?;
        }
    }
    Ok(())
}

/// Reads both. They are what somebody wrote, not yet what they should be: whoever asks compares digests.
pub(crate) fn read(bytes: &[u8]) -> Result<[Tree; 2], InvalidPack> {
    let mut rest = bytes.strip_prefix(MAGIC).ok_or(InvalidPack)?;
    let count = take_number(&mut rest)?;
    let mut blobs = Vec::new();
    for _ in 0..count {
        let length = take_number(&mut rest)?;
        blobs.push(Blob::from(take(&mut rest, length)?));
    }
    let mut tree = || -> Result<Tree, InvalidPack> {
        let mut tree = Tree::default();
        for _ in 0..take_number(&mut rest)? {
            let length = take_number(&mut rest)?;
            let path = std::str::from_utf8(take(&mut rest, length)?).map_err(|_| InvalidPack)?;
            let path = TreePath::new(path).map_err(|_| InvalidPack)?;
            let mode = match take(&mut rest, 6)? {
                b"100644" => Mode::File,
                b"100755" => Mode::Executable,
                b"120000" => Mode::Link,
                _ => return Err(InvalidPack),
            };
            let at = take_number(&mut rest)?;
            let blob = blobs.get(at).cloned().ok_or(InvalidPack)?;
            tree.put(path, Entry { mode, blob });
        }
        Ok(tree)
    };
    let both = [tree()?, tree()?];
    match rest.is_empty() {
        true => Ok(both),
        false => Err(InvalidPack),
    }
}

fn number(to: &mut impl Write, value: usize) -> io::Result<()> {
    let value = u32::try_from(value).map_err(io::Error::other)?;
    to.write_all(&value.to_be_bytes())
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Result<&'a [u8], InvalidPack> {
    let (taken, after) = rest.split_at_checked(length).ok_or(InvalidPack)?;
    *rest = after;
    Ok(taken)
}

fn take_number(rest: &mut &[u8]) -> Result<usize, InvalidPack> {
    let bytes = take(rest, 4)?.try_into().map_err(|_| InvalidPack)?;
    Ok(u32::from_be_bytes(bytes) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn trees() -> [Tree; 2] {
        let entry = |mode, text: &str| Entry {
            mode,
            blob: text.as_bytes().into(),
        };
        let path = |name: &str| TreePath::new(name).unwrap();
        let mut before = Tree::default();
        before.put(path("a/b.py"), entry(Mode::File, "1\n"));
        before.put(path("run"), entry(Mode::Executable, "1\n"));
        before.put(path("link"), entry(Mode::Link, "run"));
        let mut after = before.clone();
        after.put(path("a/b.py"), entry(Mode::File, ""));
        after.take(&path("link"));
        [before, after]
    }

    fn packed() -> Vec<u8> {
        let [before, after] = trees();
        let mut bytes = Vec::new();
        write(&mut bytes, [&before, &after]).unwrap();
        bytes
    }

    #[test]
    fn both_come_back_and_share_what_is_the_same() {
        let [before, after] = read(&packed()).unwrap();
        assert_eq!([before.clone(), after.clone()], trees());
        let run = TreePath::new("run").unwrap();
        let both = [before.get(&run).unwrap(), after.get(&run).unwrap()];
        assert!(both[0].blob.is_shared_with(&both[1].blob));
        // A part of it is not it, nor is more.
        for length in 0..packed().len() {
            assert!(read(&packed()[..length]).is_err());
        }
        assert!(read(&[packed(), vec![0]].concat()).is_err());
    }

    proptest! {
        #[test]
        fn whatever_is_read_is_read_or_refused(bytes: Vec<u8>, at in 0usize..200, byte: u8) {
            let _ = read(&[MAGIC, &bytes].concat());
            let mut changed = packed();
            let at = at % changed.len();
            changed[at] = byte;
            if let Ok([before, after]) = read(&changed) {
                let known = trees();
                prop_assert!(changed == packed() || before != known[0] || after != known[1]);
            }
        }
    }
}
