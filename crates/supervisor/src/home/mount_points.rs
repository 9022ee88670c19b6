//! Places in a home's changes where something else is mounted. What an earlier run made there must not stand in the way.

use belljar_sandbox::plan::{Identity, Kind};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Uid};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Component, Path};

/// What gave way to a mount gets this at the end of its name.
const SET_ASIDE: &str = ".belljar-set-aside";
/// How many of one name are kept.
const MOST_SET_ASIDE: u32 = 1000;

/// Sees to it that `path` below the home can be mounted on, as far as the changes go: a deletion is undone, and a file or link that
/// is no such thing gets another name. By descriptors: the box made what is there.
pub(super) fn clear(changes: &Path, path: &Path, kind: Kind, user: &Identity) -> io::Result<()> {
    let names: Option<Vec<&OsStr>> = path
        .components()
        .map(|part| match part {
            Component::Normal(name) => Some(name),
            _ => None,
        })
        .collect();
    let names = names.ok_or(io::ErrorKind::InvalidInput)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut here: OwnedFd = rustix::fs::open(changes, flags, Mode::empty())?;
    // Below a directory that hides the host's, there is only what the changes have.
    let mut is_opaque = false;
    for (index, name) in names.iter().enumerate() {
        let is_last = index + 1 == names.len();
        let wanted = match is_last {
            true => kind,
            false => Kind::Directory,
        };
        if let Some(found) = look(here.as_fd(), name)? {
            let is_directory = FileType::from_raw_mode(found.st_mode) == FileType::Directory;
            let is_whiteout = FileType::from_raw_mode(found.st_mode) == FileType::CharacterDevice
                && found.st_rdev == 0;
            let is_plain = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
            let fits = match wanted {
                Kind::Directory => is_directory,
                Kind::File => is_plain,
            };
            if is_whiteout {
                rustix::fs::unlinkat(&here, *name, AtFlags::empty())?;
            } else if !fits {
                set_aside(here.as_fd(), name)?;
            }
        }
        if is_opaque && look(here.as_fd(), name)?.is_none() {
            make(here.as_fd(), name, wanted, user)?;
        }
        if is_last {
            break;
        }
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        here = match rustix::fs::openat2(&here, *name, flags, Mode::empty(), resolve) {
            Ok(next) => next,
            // The host's shows through.
            Err(Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        };
        is_opaque = is_opaque || hides_below(here.as_fd());
    }
    Ok(())
}

fn look(at: BorrowedFd<'_>, name: &OsStr) -> io::Result<Option<rustix::fs::Stat>> {
    match rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => Ok(Some(found)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

fn hides_below(directory: BorrowedFd<'_>) -> bool {
    let mut value = [0u8; 4];
    let read = rustix::fs::fgetxattr(directory, c"user.overlay.opaque", &mut value[..]);
    matches!(read, Ok(1) if value.first() == Some(&b'y'))
}

fn set_aside(at: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
    for number in 1..=MOST_SET_ASIDE {
        let mut aside = OsString::from(name);
        aside.push(SET_ASIDE);
        if number > 1 {
            aside.push(format!("-{number}"));
        }
        let flags = rustix::fs::RenameFlags::NOREPLACE;
        match rustix::fs::renameat_with(at, name, at, &aside, flags) {
            Err(Errno::EXIST) => {}
            done => return Ok(done?),
        }
    }
    Err(io::Error::other("too much was set aside under this name"))
}

fn make(at: BorrowedFd<'_>, name: &OsStr, kind: Kind, user: &Identity) -> io::Result<()> {
    let mode = Mode::RWXU | Mode::RGRP | Mode::XGRP | Mode::ROTH | Mode::XOTH;
    match kind {
        Kind::Directory => rustix::fs::mkdirat(at, name, mode)?,
        Kind::File => {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
            drop(rustix::fs::openat(
                at,
                name,
                flags,
                Mode::RUSR | Mode::WUSR,
            )?);
        }
    }
    if rustix::process::geteuid().is_root() {
        let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
        rustix::fs::chownat(at, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    }
    Ok(())
}
