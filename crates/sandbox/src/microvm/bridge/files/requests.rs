//! Each request, as calls to the host's kernel.

use super::Server;
use super::abi::{Answer, Body, KEEP_CACHE, MAJOR, MINOR, agreed, set};
use super::nodes::{Node, Standing, find};
use crate::microvm::wire::LARGEST_TRANSFER;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, RenameFlags, Timespec, Timestamps, Uid};
use rustix::io::Errno;
use std::ffi::CString;

const INVALID: Errno = Errno::INVAL;

/// Which of the two requests to rename it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Renaming {
    Plain,
    WithFlags,
}

/// The name by which a file that is only known can be opened and changed.
fn by_descriptor(place: BorrowedFd<'_>) -> Result<CString, Errno> {
    CString::new(format!("/proc/self/fd/{}", place.as_raw_fd())).map_err(|_| INVALID)
}

fn reopen(node: &Node, flags: OFlags) -> Result<OwnedFd, Errno> {
    let path = by_descriptor(node.place.as_fd())?;
    rustix::fs::open(
        path,
        flags | OFlags::CLOEXEC | OFlags::NONBLOCK,
        Mode::empty(),
    )
}

/// What a guest's flags for opening mean here.
fn open_flags(flags: u32) -> OFlags {
    let known = OFlags::ACCMODE
        | OFlags::APPEND
        | OFlags::TRUNC
        | OFlags::EXCL
        | OFlags::SYNC
        | OFlags::DSYNC;
    OFlags::from_bits_retain(flags) & known
}

fn mode(bits: u32) -> Mode {
    Mode::from_raw_mode(bits)
}

impl Server {
    pub(super) fn agree(&self, mut body: Body<'_>) -> Result<Answer, Errno> {
        let (major, minor, readahead, offered) = (body.u32(), body.u32(), body.u32(), body.u32());
        let (Some(MAJOR), Some(MINOR..), Some(readahead), Some(offered)) =
            (major, minor, readahead, offered)
        else {
            return Err(Errno::PROTO);
        };
        let wanted = agreed::ASYNC_READ
            | agreed::ATOMIC_O_TRUNC
            | agreed::BIG_WRITES
            | agreed::AUTO_INVAL_DATA
            | agreed::PARALLEL_DIROPS
            | agreed::MAX_PAGES;
        let mut answer = Answer::default();
        answer
            .u32(MAJOR)
            .u32(MINOR)
            .u32(readahead.min(LARGEST_TRANSFER as u32))
            .u32(offered & wanted);
        // Requests in the background, and how many are many.
        answer.u32(16 | 12 << 16);
        answer
            .u32(LARGEST_TRANSFER as u32)
            .u32(1)
            .u32(LARGEST_TRANSFER as u32 / 4096);
        answer.0.resize(64, 0);
        Ok(answer)
    }

    fn directory(&self, number: u64) -> Result<Node, Errno> {
        let node = self.nodes().node(number)?;
        match node.standing {
            Standing::Shown => Ok(node),
            Standing::Sealed => Err(Errno::ACCESS),
        }
    }

    fn entry(&self, parent: &Node, name: &[u8]) -> Result<Answer, Errno> {
        let place = find(&parent.place, name)?;
        // The guest has its own, and what the box has there is none of its business.
        let is_own = parent.number == 1 && [&b"dev"[..], b"proc"].contains(&name);
        let standing = match is_own {
            true => Standing::Sealed,
            false => Standing::Shown,
        };
        let mut nodes = self.nodes();
        let (node, stat) = nodes.know(place, standing)?;
        let inode = nodes.inode(&stat);
        let mut answer = Answer::default();
        answer.entry(node.number, &stat, inode);
        Ok(answer)
    }

    pub(super) fn look_up(&self, parent: u64, mut body: Body<'_>) -> Result<Answer, Errno> {
        let name = body.name().ok_or(INVALID)?;
        match self.directory(parent) {
            Err(Errno::ACCESS) => Err(Errno::NOENT),
            Err(errno) => Err(errno),
            Ok(parent) => self.entry(&parent, name),
        }
    }

    fn known(&self, node: &Node) -> Result<Answer, Errno> {
        let stat = node.stat()?;
        let inode = self.nodes().inode(&stat);
        let mut answer = Answer::default();
        answer.known(&stat, inode);
        Ok(answer)
    }

    pub(super) fn attributes(&self, node: u64) -> Result<Answer, Errno> {
        let node = self.nodes().node(node)?;
        self.known(&node)
    }

    pub(super) fn set_attributes(&self, node: u64, mut body: Body<'_>) -> Result<Answer, Errno> {
        let node = self.directory(node)?;
        let mut numbers = || {
            let (valid, _) = (body.u32()?, body.u32()?);
            let (handle, size, _) = (body.u64()?, body.u64()?, body.u64()?);
            let (atime, mtime, _) = (body.u64()?, body.u64()?, body.u64()?);
            let (atime_nsec, mtime_nsec, _) = (body.u32()?, body.u32()?, body.u32()?);
            let (bits, _, uid, gid) = (body.u32()?, body.u32()?, body.u32()?, body.u32()?);
            let times = [(atime, atime_nsec), (mtime, mtime_nsec)];
            Some((valid, handle, size, times, bits, uid, gid))
        };
        let (valid, handle, size, [atime, mtime], bits, uid, gid) = numbers().ok_or(INVALID)?;
        let has = |bit: u32| valid & bit != 0;
        let path = by_descriptor(node.place.as_fd())?;
        let is_link = node.kind == FileType::Symlink;
        if has(set::MODE) {
            if is_link {
                return Err(Errno::OPNOTSUPP);
            }
            rustix::fs::chmodat(
                rustix::fs::CWD,
                &path,
                mode(bits & 0o7777),
                AtFlags::empty(),
            )?;
        }
        if has(set::UID) || has(set::GID) {
            let uid = has(set::UID).then(|| Uid::from_raw(uid));
            let gid = has(set::GID).then(|| Gid::from_raw(gid));
            rustix::fs::chownat(&node.place, c"", uid, gid, AtFlags::EMPTY_PATH)?;
        }
        if has(set::SIZE) {
            let file = match has(set::HANDLE) {
                true => self.nodes().handle(handle)?,
                false if node.kind == FileType::RegularFile => {
                    std::sync::Arc::new(reopen(&node, OFlags::WRONLY)?)
                }
                false => return Err(INVALID),
            };
            rustix::fs::ftruncate(&file, size)?;
        }
        if has(set::ATIME) || has(set::MTIME) {
            const NOW: i64 = 0x3fff_ffff;
            const OMIT: i64 = 0x3fff_fffe;
            let time = |bit: u32, now: u32, (seconds, nanos): (u64, u32)| Timespec {
                tv_sec: seconds as i64,
                tv_nsec: match (has(bit), has(now)) {
                    (false, _) => OMIT,
                    (true, true) => NOW,
                    (true, false) => i64::from(nanos),
                },
            };
            let times = Timestamps {
                last_access: time(set::ATIME, set::ATIME_NOW, atime),
                last_modification: time(set::MTIME, set::MTIME_NOW, mtime),
            };
            if is_link {
                return Err(Errno::OPNOTSUPP);
            }
            rustix::fs::utimensat(rustix::fs::CWD, &path, &times, AtFlags::empty())?;
        }
        self.known(&node)
    }

    pub(super) fn read_link(&self, node: u64) -> Result<Answer, Errno> {
        let node = self.nodes().node(node)?;
        if node.kind != FileType::Symlink {
            return Err(INVALID);
        }
        let target = rustix::fs::readlinkat(&node.place, c"", Vec::new())?;
        Ok(Answer(target.into_bytes()))
    }

    pub(super) fn make_link(&self, parent: u64, mut body: Body<'_>) -> Result<Answer, Errno> {
        let parent = self.directory(parent)?;
        let name = body.name().ok_or(INVALID)?;
        let target = body.text().ok_or(INVALID)?;
        rustix::fs::symlinkat(target, &parent.place, name)?;
        self.entry(&parent, name)
    }

    pub(super) fn make_node(&self, parent: u64, mut body: Body<'_>) -> Result<Answer, Errno> {
        let parent = self.directory(parent)?;
        let bits = body.u32().ok_or(INVALID)?;
        let _device = (body.u32(), body.u32(), body.u32());
        let name = body.name().ok_or(INVALID)?;
        let kind = FileType::from_raw_mode(bits);
        // Devices are nobody's to make.
        if !matches!(
            kind,
            FileType::RegularFile | FileType::Fifo | FileType::Socket
        ) {
            return Err(Errno::PERM);
        }
        rustix::fs::mknodat(&parent.place, name, kind, mode(bits & 0o7777), 0)?;
        self.entry(&parent, name)
    }

    pub(super) fn make_directory(&self, parent: u64, mut body: Body<'_>) -> Result<Answer, Errno> {
        let parent = self.directory(parent)?;
        let (bits, _) = (body.u32().ok_or(INVALID)?, body.u32());
        let name = body.name().ok_or(INVALID)?;
        rustix::fs::mkdirat(&parent.place, name, mode(bits & 0o7777))?;
        self.entry(&parent, name)
    }

    pub(super) fn remove(
        &self,
        parent: u64,
        mut body: Body<'_>,
        flags: AtFlags,
    ) -> Result<Answer, Errno> {
        let parent = self.directory(parent)?;
        let name = body.name().ok_or(INVALID)?;
        rustix::fs::unlinkat(&parent.place, name, flags)?;
        Ok(Answer::default())
    }

    pub(super) fn rename(
        &self,
        parent: u64,
        mut body: Body<'_>,
        renaming: Renaming,
    ) -> Result<Answer, Errno> {
        let parent = self.directory(parent)?;
        let other = self.directory(body.u64().ok_or(INVALID)?)?;
        let flags = match renaming {
            Renaming::Plain => 0,
            Renaming::WithFlags => {
                let flags = body.u32().ok_or(INVALID)?;
                let _ = body.u32();
                flags
            }
        };
        let flags = RenameFlags::from_bits(flags).ok_or(INVALID)?;
        // It would leave a device in place of the file.
        if flags.contains(RenameFlags::WHITEOUT) {
            return Err(INVALID);
        }
        let (from, to) = (body.name().ok_or(INVALID)?, body.name().ok_or(INVALID)?);
        rustix::fs::renameat_with(&parent.place, from, &other.place, to, flags)?;
        Ok(Answer::default())
    }

    pub(super) fn link(&self, parent: u64, mut body: Body<'_>) -> Result<Answer, Errno> {
        let parent = self.directory(parent)?;
        let old = self.directory(body.u64().ok_or(INVALID)?)?;
        let name = body.name().ok_or(INVALID)?;
        let path = by_descriptor(old.place.as_fd())?;
        rustix::fs::linkat(
            rustix::fs::CWD,
            &path,
            &parent.place,
            name,
            AtFlags::SYMLINK_FOLLOW,
        )?;
        self.entry(&parent, name)
    }

    pub(super) fn open(&self, node: u64, mut body: Body<'_>) -> Result<Answer, Errno> {
        let node = self.nodes().node(node)?;
        let flags = open_flags(body.u32().ok_or(INVALID)?);
        // Whatever else there is, the guest's kernel never asks to open here.
        if node.kind != FileType::RegularFile {
            return Err(Errno::ACCESS);
        }
        let file = reopen(&node, flags & !OFlags::EXCL)?;
        let mut answer = Answer::default();
        answer.opened(self.nodes().keep_open(file)?, KEEP_CACHE);
        Ok(answer)
    }

    pub(super) fn create(&self, parent: u64, mut body: Body<'_>) -> Result<Answer, Errno> {
        let parent = self.directory(parent)?;
        let (flags, bits) = (body.u32().ok_or(INVALID)?, body.u32().ok_or(INVALID)?);
        let _ = (body.u32(), body.u32());
        let name = body.name().ok_or(INVALID)?;
        let flags = open_flags(flags)
            | OFlags::CREATE
            | OFlags::NOFOLLOW
            | OFlags::NONBLOCK
            | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&parent.place, name, flags, mode(bits & 0o7777))?;
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode);
        if kind != FileType::RegularFile {
            return Err(Errno::ACCESS);
        }
        let mut answer = self.entry(&parent, name)?;
        answer.opened(self.nodes().keep_open(file)?, KEEP_CACHE);
        Ok(answer)
    }

    pub(super) fn open_directory(&self, node: u64) -> Result<Answer, Errno> {
        let node = self.nodes().node(node)?;
        if node.kind != FileType::Directory {
            return Err(Errno::NOTDIR);
        }
        let directory = reopen(&node, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut answer = Answer::default();
        answer.opened(self.nodes().keep_open(directory)?, 0);
        Ok(answer)
    }

    pub(super) fn read_directory(&self, node: u64, mut body: Body<'_>) -> Result<Answer, Errno> {
        let (handle, offset, size) = transfer(&mut body)?;
        let mut answer = Answer::default();
        let (node, directory) = {
            let nodes = self.nodes();
            (nodes.node(node)?, nodes.handle(handle)?)
        };
        if node.standing == Standing::Sealed {
            return Ok(answer);
        }
        rustix::fs::seek(&directory, rustix::fs::SeekFrom::Start(offset))?;
        let mut space = [std::mem::MaybeUninit::uninit(); 16 << 10];
        let mut names = rustix::fs::RawDir::new(&directory, &mut space);
        while let Some(entry) = names.next() {
            let entry = entry?;
            let kind = entry.file_type().as_raw_mode() >> 12;
            let name = entry.file_name().to_bytes();
            if !answer.listed(size, entry.ino(), entry.next_entry_cookie(), kind, name) {
                break;
            }
        }
        Ok(answer)
    }

    pub(super) fn read(&self, mut body: Body<'_>) -> Result<Answer, Errno> {
        let (handle, offset, size) = transfer(&mut body)?;
        let file = self.nodes().handle(handle)?;
        let mut bytes = vec![0; size];
        let mut done = 0;
        while done < size {
            let room = bytes.get_mut(done..).ok_or(INVALID)?;
            match rustix::io::pread(&file, room, offset.saturating_add(done as u64)) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(errno) if done == 0 => return Err(errno),
                Err(_) => break,
            }
        }
        bytes.truncate(done);
        Ok(Answer(bytes))
    }

    pub(super) fn write(&self, mut body: Body<'_>) -> Result<Answer, Errno> {
        let (handle, offset, size) = transfer(&mut body)?;
        // The lock's owner, flags and padding.
        let _ = (body.u64(), body.u64());
        let bytes = body.0.get(..size).ok_or(INVALID)?;
        let file = self.nodes().handle(handle)?;
        let written = rustix::io::retry_on_intr(|| rustix::io::pwrite(&file, bytes, offset))?;
        let mut answer = Answer::default();
        answer.u32(written as u32).u32(0);
        Ok(answer)
    }

    pub(super) fn room(&self, node: u64) -> Result<Answer, Errno> {
        let node = self.nodes().node(node)?;
        let mut answer = Answer::default();
        answer.room(&rustix::fs::fstatvfs(&node.place)?);
        Ok(answer)
    }

    pub(super) fn release(&self, mut body: Body<'_>) -> Result<Answer, Errno> {
        self.nodes().close(body.u64().ok_or(INVALID)?);
        Ok(Answer::default())
    }

    pub(super) fn synchronise(&self, mut body: Body<'_>) -> Result<Answer, Errno> {
        let file = self.nodes().handle(body.u64().ok_or(INVALID)?)?;
        rustix::fs::fsync(&file)?;
        Ok(Answer::default())
    }

    pub(super) fn allocate(&self, mut body: Body<'_>) -> Result<Answer, Errno> {
        let mut numbers = || Some((body.u64()?, body.u64()?, body.u64()?, body.u32()?));
        let (handle, offset, length, how) = numbers().ok_or(INVALID)?;
        let how = rustix::fs::FallocateFlags::from_bits(how).ok_or(Errno::OPNOTSUPP)?;
        let file = self.nodes().handle(handle)?;
        rustix::fs::fallocate(&file, how, offset, length)?;
        Ok(Answer::default())
    }

    pub(super) fn seek(&self, mut body: Body<'_>) -> Result<Answer, Errno> {
        let mut numbers = || Some((body.u64()?, body.u64()?, body.u32()?));
        let (handle, offset, whence) = numbers().ok_or(INVALID)?;
        let to = match whence as i32 {
            libc::SEEK_DATA => rustix::fs::SeekFrom::Data(offset),
            libc::SEEK_HOLE => rustix::fs::SeekFrom::Hole(offset),
            _ => return Err(INVALID),
        };
        let file = self.nodes().handle(handle)?;
        let mut answer = Answer::default();
        answer.u64(rustix::fs::seek(&file, to)?);
        Ok(answer)
    }
}

/// Which open file, where in it, and how much: at most what was agreed on.
fn transfer(body: &mut Body<'_>) -> Result<(u64, u64, usize), Errno> {
    let mut numbers = || {
        let numbers = (body.u64()?, body.u64()?, body.u32()?);
        // Flags.
        body.u32()?;
        Some(numbers)
    };
    let (handle, offset, size) = numbers().ok_or(INVALID)?;
    match size as usize {
        size if size <= LARGEST_TRANSFER => Ok((handle, offset, size)),
        _ => Err(INVALID),
    }
}
