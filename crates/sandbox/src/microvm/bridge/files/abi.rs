//! FUSE's numbers and structures, as a guest's kernel lays them out (little-endian; protocol 7.31).

use rustix::fs::{Stat, StatVfs};

pub(super) const MAJOR: u32 = 7;
pub(super) const MINOR: u32 = 31;

pub(super) const IN_HEADER: usize = 40;
const OUT_HEADER: usize = 16;

/// What is asked for.
pub(super) mod op {
    pub(in super::super) const LOOKUP: u32 = 1;
    pub(in super::super) const FORGET: u32 = 2;
    pub(in super::super) const GETATTR: u32 = 3;
    pub(in super::super) const SETATTR: u32 = 4;
    pub(in super::super) const READLINK: u32 = 5;
    pub(in super::super) const SYMLINK: u32 = 6;
    pub(in super::super) const MKNOD: u32 = 8;
    pub(in super::super) const MKDIR: u32 = 9;
    pub(in super::super) const UNLINK: u32 = 10;
    pub(in super::super) const RMDIR: u32 = 11;
    pub(in super::super) const RENAME: u32 = 12;
    pub(in super::super) const LINK: u32 = 13;
    pub(in super::super) const OPEN: u32 = 14;
    pub(in super::super) const READ: u32 = 15;
    pub(in super::super) const WRITE: u32 = 16;
    pub(in super::super) const STATFS: u32 = 17;
    pub(in super::super) const RELEASE: u32 = 18;
    pub(in super::super) const FSYNC: u32 = 20;
    pub(in super::super) const FLUSH: u32 = 25;
    pub(in super::super) const INIT: u32 = 26;
    pub(in super::super) const OPENDIR: u32 = 27;
    pub(in super::super) const READDIR: u32 = 28;
    pub(in super::super) const RELEASEDIR: u32 = 29;
    pub(in super::super) const FSYNCDIR: u32 = 30;
    pub(in super::super) const CREATE: u32 = 35;
    pub(in super::super) const INTERRUPT: u32 = 36;
    pub(in super::super) const DESTROY: u32 = 38;
    pub(in super::super) const BATCH_FORGET: u32 = 42;
    pub(in super::super) const FALLOCATE: u32 = 43;
    pub(in super::super) const RENAME2: u32 = 45;
    pub(in super::super) const LSEEK: u32 = 46;
}

/// What is agreed on at the start.
pub(super) mod agreed {
    pub(in super::super) const ASYNC_READ: u32 = 1;
    pub(in super::super) const ATOMIC_O_TRUNC: u32 = 1 << 3;
    pub(in super::super) const BIG_WRITES: u32 = 1 << 5;
    pub(in super::super) const AUTO_INVAL_DATA: u32 = 1 << 12;
    pub(in super::super) const PARALLEL_DIROPS: u32 = 1 << 18;
    pub(in super::super) const MAX_PAGES: u32 = 1 << 22;
}

/// Which attributes are set.
pub(super) mod set {
    pub(in super::super) const MODE: u32 = 1;
    pub(in super::super) const UID: u32 = 1 << 1;
    pub(in super::super) const GID: u32 = 1 << 2;
    pub(in super::super) const SIZE: u32 = 1 << 3;
    pub(in super::super) const ATIME: u32 = 1 << 4;
    pub(in super::super) const MTIME: u32 = 1 << 5;
    pub(in super::super) const HANDLE: u32 = 1 << 6;
    pub(in super::super) const ATIME_NOW: u32 = 1 << 7;
    pub(in super::super) const MTIME_NOW: u32 = 1 << 8;
}

/// What a guest's kernel knows of a file stays good for this long, in seconds.
const GOOD_FOR: u64 = 1;
/// Pages read before stay good while the file's time of change does.
pub(super) const KEEP_CACHE: u32 = 2;

/// A request's bytes, taken one after the other.
pub(super) struct Body<'a>(pub(super) &'a [u8]);

impl<'a> Body<'a> {
    pub(super) fn u32(&mut self) -> Option<u32> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*number))
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*number))
    }

    /// Text up to a zero.
    pub(super) fn text(&mut self) -> Option<&'a [u8]> {
        let end = self.0.iter().position(|byte| *byte == 0)?;
        let (text, rest) = self.0.split_at(end);
        self.0 = rest.get(1..)?;
        Some(text)
    }

    /// One name: no path, nothing that leads up.
    pub(super) fn name(&mut self) -> Option<&'a [u8]> {
        let name = self.text()?;
        let is_name = !name.is_empty() && !name.contains(&b'/') && name != b"." && name != b"..";
        is_name.then_some(name)
    }
}

/// An answer while it is written.
#[derive(Default)]
pub(super) struct Answer(pub(super) Vec<u8>);

impl Answer {
    pub(super) fn u32(&mut self, number: u32) -> &mut Self {
        self.0.extend(number.to_le_bytes());
        self
    }

    pub(super) fn u64(&mut self, number: u64) -> &mut Self {
        self.0.extend(number.to_le_bytes());
        self
    }

    fn attributes(&mut self, stat: &Stat, inode: u64) -> &mut Self {
        self.u64(inode)
            .u64(stat.st_size as u64)
            .u64(stat.st_blocks as u64);
        self.u64(stat.st_atime as u64)
            .u64(stat.st_mtime as u64)
            .u64(stat.st_ctime as u64);
        self.u32(stat.st_atime_nsec as u32)
            .u32(stat.st_mtime_nsec as u32)
            .u32(stat.st_ctime_nsec as u32);
        self.u32(stat.st_mode)
            .u32(stat.st_nlink as u32)
            .u32(stat.st_uid)
            .u32(stat.st_gid);
        self.u32(stat.st_rdev as u32)
            .u32(stat.st_blksize as u32)
            .u32(0)
    }

    /// A file that was found or made.
    pub(super) fn entry(&mut self, node: u64, stat: &Stat, inode: u64) -> &mut Self {
        self.u64(node)
            .u64(0)
            .u64(GOOD_FOR)
            .u64(GOOD_FOR)
            .u32(0)
            .u32(0);
        self.attributes(stat, inode)
    }

    /// What is known of a file.
    pub(super) fn known(&mut self, stat: &Stat, inode: u64) -> &mut Self {
        self.u64(GOOD_FOR).u32(0).u32(0);
        self.attributes(stat, inode)
    }

    /// A file that was opened.
    pub(super) fn opened(&mut self, handle: u64, flags: u32) -> &mut Self {
        self.u64(handle).u32(flags).u32(0)
    }

    pub(super) fn room(&mut self, room: &StatVfs) -> &mut Self {
        self.u64(room.f_blocks)
            .u64(room.f_bfree)
            .u64(room.f_bavail)
            .u64(room.f_files)
            .u64(room.f_ffree);
        self.u32(room.f_bsize as u32)
            .u32(room.f_namemax as u32)
            .u32(room.f_frsize as u32)
            .u32(0);
        self.0.extend([0; 24]);
        self
    }

    /// One name of a directory, if it fits into `size` bytes with the others.
    pub(super) fn listed(
        &mut self,
        size: usize,
        inode: u64,
        next: u64,
        kind: u32,
        name: &[u8],
    ) -> bool {
        let length = (24 + name.len()).next_multiple_of(8);
        if self.0.len() + length > size {
            return false;
        }
        let end = self.0.len() + length;
        self.u64(inode).u64(next).u32(name.len() as u32).u32(kind);
        self.0.extend(name);
        self.0.resize(end, 0);
        true
    }
}

/// An answer as it is sent: an error's number, or what was asked for.
pub(super) fn reply(unique: u64, answer: Result<Answer, rustix::io::Errno>) -> Vec<u8> {
    let (error, body) = match answer {
        Ok(answer) => (0, answer.0),
        Err(errno) => (-errno.raw_os_error(), Vec::new()),
    };
    let mut bytes = Vec::with_capacity(OUT_HEADER + body.len());
    bytes.extend(((OUT_HEADER + body.len()) as u32).to_le_bytes());
    bytes.extend(error.to_le_bytes());
    bytes.extend(unique.to_le_bytes());
    bytes.extend(body);
    bytes
}
