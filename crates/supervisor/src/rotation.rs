//! Output in files that follow each other: when one is full the next is begun, and the oldest go.
//!
//! A file's name says where in the whole stream it begins (`stdout.00000000000000000000`), so that whoever reads needs no
//! other record, and a place in the stream means the same whatever has been dropped since.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// One stream of output, kept in the last few of its files.
#[derive(Debug)]
pub struct Rotated {
    directory: PathBuf,
    stem: &'static str,
    most_bytes: u64,
    keep: usize,
    file: Option<File>,
    in_file: u64,
    total: u64,
}

/// A part of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// What is in it.
    pub bytes: Vec<u8>,
    /// Where it begins.
    pub from: u64,
    /// Bytes before it that are not kept any more.
    pub dropped: u64,
}

impl Rotated {
    /// Keeps a stream below a directory of its own, in at most `keep` files of `most_bytes` each.
    pub fn begin(
        directory: &Path,
        stem: &'static str,
        most_bytes: u64,
        keep: usize,
    ) -> io::Result<Self> {
        match fs::DirBuilder::new()
            .mode(0o700)
            .recursive(true)
            .create(directory)
        {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        Ok(Self {
            directory: directory.to_owned(),
            stem,
            most_bytes: most_bytes.max(1),
            keep: keep.max(1),
            file: None,
            in_file: 0,
            total: 0,
        })
    }

    /// Bytes that were taken in all.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Keeps these; whether it could. What a full disk does not take is dropped, and the box goes on.
    pub(crate) fn write(&mut self, mut bytes: &[u8]) -> bool {
        let mut kept = true;
        while !bytes.is_empty() {
            let room = self.most_bytes.saturating_sub(self.in_file);
            if (self.file.is_none() || room == 0) && self.next_file().is_err() {
                return false;
            }
            let room = usize::try_from(self.most_bytes - self.in_file).unwrap_or(usize::MAX);
            let (now, later) = bytes.split_at(bytes.len().min(room));
            let written = self.file.as_mut().map(|file| file.write_all(now));
            if !matches!(written, Some(Ok(()))) {
                // The next file begins where this one would have gone on.
                self.file = None;
                kept = false;
            }
            self.in_file += now.len() as u64;
            self.total += now.len() as u64;
            bytes = later;
        }
        kept
    }

    fn next_file(&mut self) -> io::Result<()> {
        let path = self
            .directory
            .join(format!("{}.{:020}", self.stem, self.total));
        let mut options = OpenOptions::new();
        let file = options
            .create(true)
            .write(true)
            .truncate(true)
            .mode(0o600)
            .open(path)?;
        self.file = Some(file);
        self.in_file = 0;
        let files = files_of(&self.directory, self.stem);
        for (_, old) in files.iter().rev().skip(self.keep) {
            let _ = fs::remove_file(old);
        }
        Ok(())
    }
}

/// Reads a part of a stream: from a place on, or the last part.
pub fn read_part(directory: &Path, stem: &str, from: Option<u64>, most: usize) -> io::Result<Part> {
    let files = files_of(directory, stem);
    let Some((first, _)) = files.first() else {
        return Ok(Part {
            bytes: Vec::new(),
            from: from.unwrap_or(0),
            dropped: 0,
        });
    };
    let end = match files.last() {
        Some((start, path)) => start + fs::metadata(path).map_or(0, |found| found.len()),
        None => 0,
    };
    let wanted = from.unwrap_or_else(|| end.saturating_sub(most as u64));
    let from = wanted.max(*first).min(end.max(*first));
    let mut bytes = Vec::new();
    let mut at = from;
    for (index, (start, path)) in files.iter().enumerate() {
        let next = files.get(index + 1).map(|(start, _)| *start);
        if next.is_some_and(|next| next <= at) {
            continue;
        }
        // Another one may have been dropped between the list and here.
        let Ok(mut file) = File::open(path) else {
            continue;
        };
        file.seek(SeekFrom::Start(at.saturating_sub(*start)))?;
        let room = most.saturating_sub(bytes.len()) as u64;
        at += file.take(room).read_to_end(&mut bytes)? as u64;
        if bytes.len() >= most || next.is_none_or(|next| next != at) {
            break;
        }
    }
    Ok(Part {
        bytes,
        from,
        dropped: from.saturating_sub(wanted.min(from)),
    })
}

/// The files of a stream with their places, in order.
fn files_of(directory: &Path, stem: &str) -> Vec<(u64, PathBuf)> {
    let mut files: Vec<(u64, PathBuf)> = fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name();
            let (kind, start) = name.to_str()?.split_once('.')?;
            (kind == stem).then_some(())?;
            Some((start.parse().ok()?, entry.path()))
        })
        .collect();
    files.sort();
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_files_are_kept_and_places_keep_their_meaning() {
        let place = tempfile::tempdir().expect("a directory");
        let mut output = Rotated::begin(place.path(), "stdout", 10, 2).expect("files");
        assert!(output.write(b"0123456789abcdefghij"));
        assert!(output.write(b"KLM"));
        let read = |from, most| read_part(place.path(), "stdout", from, most).expect("a part");
        // The first file is gone; the part says so.
        let all = read(Some(0), 100);
        assert_eq!(
            (all.bytes.as_slice(), all.from, all.dropped),
            (&b"abcdefghijKLM"[..], 10, 10)
        );
        let middle = read(Some(18), 3);
        assert_eq!((middle.bytes.as_slice(), middle.from), (&b"ijK"[..], 18));
        let last = read(None, 4);
        assert_eq!((last.bytes.as_slice(), last.from), (&b"jKLM"[..], 19));
        assert_eq!(read(Some(23), 100).bytes, b"");
        assert_eq!(
            read_part(place.path(), "stderr", None, 10)
                .expect("nothing")
                .bytes,
            b""
        );
    }
}
