//! A box's mounts, seen and mended from outside.
//!
//! A cover hangs on a name of the host's. When somebody on the host removes that name, or renames something over it, the
//! kernel takes the mount away in every namespace; when the name is renamed, the mount goes with it. Nothing in the box
//! can do either. The keeper hears of it here, and can put a mount there again: it owns the box's user namespace, and
//! sends a process of its own in, which is gone before the box goes on. The box itself never has the right to mount.

use super::script::flags_for;
use super::supplies::send_descriptors;
use super::view::{attach_in_ours, clone_opened, make_directory, new_tmpfs, open_beneath, touch};
use crate::plan::{Access, Identity};
use crate::sys::{self, Fork, SignalsBlocked, mount_flag};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, UnmountFlags, move_mount, unmount};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, CString, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// What init sends for it, in this order.
const PARTS: [&CStr; 3] = [
    c"/proc/self/ns/user",
    c"/proc/self/ns/mnt",
    c"/proc/self/mountinfo",
];

/// A hold on the mounts of a box.
#[derive(Debug)]
pub struct BoxMounts {
    user: OwnedFd,
    space: OwnedFd,
    table: OwnedFd,
}

/// What is put over a name of the host's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cover {
    /// Something empty that nobody can write, of the kind that is there.
    Void,
    /// What is there itself: so it can't be replaced, and with [`Access::Read`] not be written either.
    Itself(Access),
}

/// Sends the keeper what a [`BoxMounts`] is made of. Runs in init.
pub(super) fn send(control: BorrowedFd<'_>) -> Result<(), Errno> {
    let open =
        |path: &CStr| rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let [user, space, table] = PARTS;
    let (user, space, table) = (open(user)?, open(space)?, open(table)?);
    send_descriptors(control, &[user.as_fd(), space.as_fd(), table.as_fd()])
}

impl BoxMounts {
    /// Of what init sent, if that is what it is.
    pub(super) fn from_descriptors(fds: Vec<OwnedFd>) -> Result<Self, Vec<OwnedFd>> {
        let [user, space, table] = <[OwnedFd; 3]>::try_from(fds)?;
        Ok(Self { user, space, table })
    }

    /// Has `PRI` when a mount has come or gone since it was asked last. It can always be read, so do not ask for that.
    pub fn changes(&self) -> BorrowedFd<'_> {
        self.table.as_fd()
    }

    /// Where something is mounted, as the box names it.
    pub fn points(&self) -> Result<HashSet<PathBuf>, Errno> {
        Ok(self.mounts()?.into_values().collect())
    }

    /// Every mount by its number, and where it is.
    pub fn mounts(&self) -> Result<HashMap<u64, PathBuf>, Errno> {
        let mut table = Vec::new();
        let mut part = [0u8; 16 << 10];
        loop {
            let read = match rustix::io::pread(&self.table, &mut part, table.len() as u64) {
                Ok(0) => break,
                Ok(read) => read,
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno),
            };
            table.extend_from_slice(part.get(..read).unwrap_or_default());
        }
        let mounts = table.split(|byte| *byte == b'\n').filter_map(|line| {
            let mut words = line.split(|byte| *byte == b' ');
            let number = std::str::from_utf8(words.next()?).ok()?.parse().ok()?;
            Some((number, unescaped(words.nth(3)?)))
        });
        Ok(mounts.collect())
    }

    /// Puts covers there, in this order; none of the box's processes may run meanwhile. On failure some may be there.
    pub fn put(&self, covers: &[(PathBuf, Cover)], user: Identity) -> Result<(), Errno> {
        let named = covers.iter().map(|(path, cover)| {
            let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::INVAL)?;
            Ok((path, *cover))
        });
        let named = named.collect::<Result<Vec<(CString, Cover)>, Errno>>()?;
        // A handler of the host program's must not run in the copy.
        let quiet = SignalsBlocked::new();
        let pid = match sys::clone_into(0, None)? {
            Fork::Child => match self.put_inside(&named, user) {
                Ok(()) => sys::exit_now(0),
                Err(errno) => sys::exit_now(errno.raw_os_error()),
            },
            Fork::Parent { pid, .. } => pid,
        };
        drop(quiet);
        match sys::reap(pid)?.status {
            0 => Ok(()),
            status if status & 0x7f == 0 => Err(Errno::from_raw_os_error((status >> 8) & 0xff)),
            _ => Err(Errno::CHILD),
        }
    }

    /// The same in a process that is a copy of one with threads: nothing here may allocate, lock or panic.
    fn put_inside(&self, covers: &[(CString, Cover)], user: Identity) -> Result<(), Errno> {
        let enter = |space: &OwnedFd, kind| move_into_link_name_space(space.as_fd(), Some(kind));
        let is_stranger = rustix::process::geteuid().as_raw() != user.uid;
        enter(&self.user, LinkNameSpaceType::User)?;
        // Nobody else is known in that namespace, and who is not known makes no file.
        if is_stranger {
            sys::become_user(user.uid, user.gid)?;
        }
        enter(&self.space, LinkNameSpaceType::Mount)?;
        let void = Void::new()?;
        let put = covers.iter().try_for_each(|(path, cover)| {
            let place = open_beneath(CWD, path)?;
            let tree = match cover {
                Cover::Void => void.cover_for(place.as_fd())?,
                Cover::Itself(access) => {
                    let tree = clone_opened(place.as_fd())?;
                    sys::set_mount_flags(tree.as_fd(), flags_for(*access), true, None)?;
                    tree
                }
            };
            let flags =
                MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
            move_mount(tree.as_fd(), c"", &place, c"", flags)
        });
        void.remove().and(put)
    }
}

/// A file system with something empty of each kind, for as long as covers are cloned from it. The kernel clones only what
/// is mounted; nobody in the box runs to see it.
struct Void {
    directory: OwnedFd,
    file: OwnedFd,
}

/// Every box has one, and no program of ours uses it meanwhile.
const ASIDE: &CStr = c"/dev";

impl Void {
    fn new() -> Result<Self, Errno> {
        let void = new_tmpfs(c"64k", c"755")?;
        make_directory(void.as_fd(), c"directory", 0o555)?;
        touch(void.as_fd(), c"file")?;
        sys::set_mount_flags(void.as_fd(), mount_flag::READ_ONLY, false, None)?;
        attach_in_ours(void.as_fd(), CWD, ASIDE)?;
        let open = |name| open_beneath(void.as_fd(), name);
        Ok(Self {
            directory: open(c"directory")?,
            file: open(c"file")?,
        })
    }

    fn cover_for(&self, place: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
        let mode = rustix::fs::fstat(place)?.st_mode;
        clone_opened(match FileType::from_raw_mode(mode) {
            FileType::Directory => self.directory.as_fd(),
            _ => self.file.as_fd(),
        })
    }

    fn remove(self) -> Result<(), Errno> {
        unmount(ASIDE, UnmountFlags::DETACH)
    }
}

/// A path as the kernel writes it: with spaces, line ends and backslashes in octal.
fn unescaped(field: &[u8]) -> PathBuf {
    let mut path = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((byte, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| *byte == b'\\');
        let octal = digits
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match octal {
            Some(octal) => {
                path.push(octal);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                path.push(*byte);
                rest = after;
            }
        }
    }
    OsString::from_vec(path).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_the_kernel_writes_them() {
        for (written, meant) in [
            ("/home/a", "/home/a"),
            ("/with\\040space", "/with space"),
            ("/back\\134slash\\012line", "/back\\slash\nline"),
            ("/odd\\9", "/odd\\9"),
        ] {
            assert_eq!(
                unescaped(written.as_bytes()),
                PathBuf::from(meant),
                "{written}"
            );
        }
    }
}
