//! Memory of a box whose program runs on a kernel of its own: that keeps the program's memory, mapped or not, in files
//! without a name. The sum of all resident sets would count some of it many times and the rest not at all.

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, Dir, Mode, OFlags};
use std::collections::HashSet;

/// The files, as descriptors of processes in the box.
#[derive(Debug, Default)]
pub(crate) struct MemoryFiles {
    found: Vec<String>,
    /// Whether the kernel's own is among them: while it starts there are others, and that one is still to come.
    whole: bool,
    looks: u32,
}

/// So many looks at known files until others are looked for.
const LOOKS: u32 = 40;

/// What gVisor calls the file that all its program's memory is in.
const OF_THE_KERNEL: &[u8] = b"/memfd:runsc-memory";

impl MemoryFiles {
    /// Bytes of all of them. `pids` are those of the box, and `proc` is its /proc.
    pub(crate) fn bytes(&mut self, proc: &OwnedFd, pids: &[u32]) -> u64 {
        self.looks += 1;
        let known = match self.whole && !self.looks.is_multiple_of(LOOKS) {
            true => sum(proc, &self.found),
            false => None,
        };
        known.unwrap_or_else(|| {
            self.find(proc, pids);
            sum(proc, &self.found).unwrap_or(0)
        })
    }

    fn find(&mut self, proc: &OwnedFd, pids: &[u32]) {
        self.found.clear();
        self.whole = false;
        for (file, target) in pids.iter().flat_map(|pid| files_of(proc, *pid)) {
            self.whole |= target.starts_with(OF_THE_KERNEL);
            self.found.push(file);
        }
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

/// Which descriptors of a process are files in memory, and what they are called.
fn files_of(proc: &OwnedFd, pid: u32) -> Vec<(String, Vec<u8>)> {
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
            let target = target.into_bytes();
            target.starts_with(b"/memfd:").then_some((file, target))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::MemfdFlags;

    fn file(name: &str, bytes: usize) -> OwnedFd {
        let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC).expect("a file in memory");
        rustix::io::write(&file, &vec![1; bytes]).expect("written");
        file
    }

    /// A program once filled all memory in the second after its kernel's start, because what was looked at was another
    /// file, of the start itself.
    #[test]
    fn the_kernels_memory_is_seen_when_it_comes_after_another_file() {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let proc = rustix::fs::open(c"/proc", flags, Mode::empty()).expect("/proc");
        let pids = [std::process::id()];
        let mut files = MemoryFiles::default();
        let _of_the_start = file("start", 4096);
        let before = files.bytes(&proc, &pids);
        let kernel = file("runsc-memory", 1 << 20);
        let after = files.bytes(&proc, &pids);
        assert!(after >= before + (1 << 20), "{before} bytes, then {after}");
        // And it is still seen to grow once it is known.
        rustix::io::write(&kernel, &vec![1; 1 << 20]).expect("written");
        assert!(files.bytes(&proc, &pids) >= after + (1 << 20));
    }
}
