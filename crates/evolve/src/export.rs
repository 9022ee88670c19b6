//! Trees written out, for boxes to look at and for releases to run from. A project has thousands of files, so each costs an
//! open, a write and a close, by its name in a directory that is held open, on every processor.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::Path;

use rustix::fs::{Mode as Bits, OFlags};

use crate::path::TreePath;
use crate::tree::{Entry, Mode, Tree, TreeError, io};

/// Files below which one thread is enough.
const FEW: usize = 256;
/// More threads wait for each other in the file system.
const MOST_THREADS: usize = 4;

impl Tree {
    /// Writes every file below a directory that does not exist yet.
    ///
    /// # Errors
    /// When the disk refuses, or something is there already.
    pub fn export(&self, to: &Path) -> Result<(), TreeError> {
        let mask = mask();
        make_directory(to, mask).map_err(io(to))?;
        let all: Vec<(&TreePath, &Entry)> = self.iter().collect();
        let directories: BTreeSet<&str> = all.iter().flat_map(|(path, _)| path.above()).collect();
        // In this order whatever is above comes first.
        for name in directories {
            let place = to.join(name);
            make_directory(&place, mask).map_err(io(&place))?;
        }
        let threads = match all.len() < FEW {
            true => 1,
            false => std::thread::available_parallelism().map_or(1, usize::from),
        };
        let share = all.len().div_ceil(threads.min(MOST_THREADS)).max(1);
        std::thread::scope(|scope| {
            let mut parts = all.chunks(share);
            let own = parts.next().unwrap_or_default();
            let others: Vec<_> = parts
                .map(|part| scope.spawn(move || write_all(part, to, mask)))
                .collect();
            let mut outcome = write_all(own, to, mask);
            for other in others {
                let lost = || Err(io(to)(io::Error::other("a thread that wrote was lost")));
                outcome = outcome.and(other.join().unwrap_or_else(|_| lost()));
            }
            outcome
        })
    }
}

/// Writes files that are in order of their paths, so that those of a directory follow each other.
fn write_all(files: &[(&TreePath, &Entry)], to: &Path, mask: u32) -> Result<(), TreeError> {
    let mut open: Option<(&str, OwnedFd)> = None;
    for (path, entry) in files {
        let parent = path.above().next().unwrap_or_default();
        let at = |error: io::Error| io(&to.join(path.as_str()))(error);
        let directory = match open.take() {
            Some((name, directory)) if name == parent => directory,
            _ => {
                let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
                let opened = rustix::fs::open(to.join(parent), flags, Bits::empty());
                opened.map_err(|errno| at(errno.into()))?
            }
        };
        write(directory.as_fd(), path.name(), entry, mask).map_err(at)?;
        open = Some((parent, directory));
    }
    Ok(())
}

fn write(directory: BorrowedFd<'_>, name: &str, entry: &Entry, mask: u32) -> io::Result<()> {
    let bits = match entry.mode {
        Mode::Link => {
            let target = entry.text().unwrap_or_default();
            return Ok(rustix::fs::symlinkat(target, directory, name)?);
        }
        Mode::Executable => 0o755,
        Mode::File => 0o644,
    };
    // A name that is there, a link above all, is not written through.
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(directory, name, flags, Bits::from_raw_mode(bits))?;
    let mut file = File::from(file);
    file.write_all(&entry.blob)?;
    // Whatever the caller's mask: boxes run as another user.
    if mask & bits != 0 {
        file.set_permissions(fs::Permissions::from_mode(bits))?;
    }
    Ok(())
}

fn make_directory(place: &Path, mask: u32) -> io::Result<()> {
    fs::DirBuilder::new().mode(0o755).create(place)?;
    if mask & 0o755 != 0 {
        fs::set_permissions(place, fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}

/// What this process leaves out of the modes it asks for; all of it, where nobody can tell.
fn mask() -> u32 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    line.and_then(|octal| u32::from_str_radix(octal.trim(), 8).ok())
        .unwrap_or(0o777)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_of_many_files_comes_back_as_it_was() {
        let mut tree = Tree::default();
        for number in 0..FEW * 2 {
            let path = TreePath::new(format!("d{}/e{}/f{number}", number % 7, number % 3)).unwrap();
            let mode = [Mode::File, Mode::Executable][number % 2];
            let blob = number.to_string().into_bytes().into();
            tree.put(path, Entry { mode, blob });
        }
        let place = tempfile::tempdir().unwrap();
        let to = place.path().join("p");
        tree.export(&to).unwrap();
        assert_eq!(Tree::read(&to, &[]).unwrap(), tree);
        let mode = |name: &str| fs::metadata(to.join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!(
            [mode("d0"), mode("d0/e0/f0"), mode("d1/e1/f1")],
            [0o755, 0o644, 0o755]
        );
        // What is there is not written over.
        assert!(tree.export(&to).is_err());
    }
}
