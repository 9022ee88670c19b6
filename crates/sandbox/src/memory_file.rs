//! Memory of a box whose program runs on a kernel of its own: that keeps the program's memory, mapped or not, in files
//! without a name. The sum of all resident sets would count some of it many times and the rest not at all.

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, Dir, Mode, OFlags};
use std::collections::HashSet;

/// The files, as descriptors of processes in the box.
#[derive(Debug, Default)]
pub(crate) struct MemoryFiles {
    found: Vec<String>,
    looks: u32,
}

/// So many looks at known files until others are looked for.
const LOOKS: u32 = 40;

impl MemoryFiles {
    /// Bytes of all of them. `pids` are those of the box, and `proc` is its /proc.
    pub(crate) fn bytes(&mut self, proc: &OwnedFd, pids: &[u32]) -> u64 {
        self.looks += 1;
        let known = match self.looks % LOOKS {
            0 => None,
            _ => sum(proc, &self.found),
        };
        known.unwrap_or_else(|| {
            let all = pids.iter().flat_map(|pid| files_of(proc, *pid));
            self.found = all.collect();
            sum(proc, &self.found).unwrap_or(0)
        })
    }
}

/// The bytes of these files, each once; nothing if there are none, or if one is gone.
fn sum(proc: &OwnedFd, files: &[String]) -> Option<u64> {
    let mut seen = HashSet::new();
    let mut bytes = 0;
    for file in files {
        let stat = rustix::fs::statat(proc, file, AtFlags::empty()).ok()?;
        if seen.insert((stat.st_dev, stat.st_ino)) {
            bytes += u64::try_from(stat.st_blocks).unwrap_or(0) * 512;
        }
    }
    (!files.is_empty()).then_some(bytes)
}

/// Which descriptors of a process are files in memory.
fn files_of(proc: &OwnedFd, pid: u32) -> Vec<String> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let path = format!("{pid}/fd");
    let entries = rustix::fs::openat(proc.as_fd(), path.as_str(), flags, Mode::empty());
    let Some(entries) = entries.and_then(Dir::new).ok() else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| {
            let file = format!("{path}/{}", entry.ok()?.file_name().to_str().ok()?);
            let target = rustix::fs::readlinkat(proc, file.as_str(), Vec::new()).ok()?;
            target.to_bytes().starts_with(b"/memfd:").then_some(file)
        })
        .collect()
}
