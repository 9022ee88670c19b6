//! Building the box's root from the script: every mount, in order. Runs in init, so nothing here may allocate, lock or
//! panic.

use super::init::{Failure, Start, at};
use super::message::{Kind, Message, Stage};
use super::script::{Lower, Place, Script, Step};
use super::shown::FileId;
use crate::plan;
use crate::sys::{self, mount_flag};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
};
use rustix::net::RecvFlags;
use std::ffi::CStr;

/// What every view stands on: a new root, hung where it does not disturb, a /proc, and the box's own file system.
pub(super) struct Foundation {
    proc: OwnedFd,
    root: OwnedFd,
    own: Own,
}

impl Foundation {
    pub(super) fn lay(private_size: &CStr) -> Result<Self, Failure> {
        use rustix::mount::{MountPropagationFlags, mount_change};
        mount_change(
            c"/",
            MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
        )
        .map_err(at(Stage::Root))?;
        // Before anything covers the host's /proc: the kernel wants to see a whole one.
        let proc = new_proc().map_err(at(Stage::Proc))?;
        let root = new_root().map_err(at(Stage::Root))?;
        for directory in [c"proc", c"dev"] {
            make_directory(root.as_fd(), directory, 0o755).map_err(at(Stage::Root))?;
        }
        let own = Own::new(private_size).map_err(at(Stage::Root))?;
        Ok(Self { proc, root, own })
    }

    /// Builds the view.
    pub(super) fn build(&self, start: &Start<'_>, script: &Script<'_>) -> Result<(), Failure> {
        for (number, step) in script.steps.iter().enumerate() {
            perform(self.root(), step, start, &self.own).map_err(|errno| Failure {
                stage: Stage::View,
                step: number,
                errno,
            })?;
        }
        attach_in_ours(self.proc.as_fd(), self.root(), c"proc").map_err(at(Stage::Proc))
    }

    pub(super) fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }
}

fn new_proc() -> Result<OwnedFd, Errno> {
    let context = fsopen(c"proc", FsOpenFlags::FSOPEN_CLOEXEC)?;
    // Init itself is not to be seen: its memory began as a copy of the keeper's.
    fsconfig_set_string(context.as_fd(), c"hidepid", c"ptraceable")?;
    fsconfig_create(context.as_fd())?;
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags)
}

pub(super) fn new_tmpfs(size: &CStr, mode: &CStr) -> Result<OwnedFd, Errno> {
    let context = fsopen(c"tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(context.as_fd(), c"size", size)?;
    fsconfig_set_string(context.as_fd(), c"mode", mode)?;
    fsconfig_create(context.as_fd())?;
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags)
}

/// The new root, hung where no source of the view can be.
fn new_root() -> Result<OwnedFd, Errno> {
    // Room for mount points, and for all texts that may be shown.
    let root = new_tmpfs(c"8m", c"755")?;
    let hang = |place: &CStr| {
        move_mount(
            root.as_fd(),
            c"",
            CWD,
            place,
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
        )
    };
    hang(c"/sys").or_else(|_| hang(c"/boot"))?;
    Ok(root)
}

fn perform(
    root: BorrowedFd<'_>,
    step: &Step<'_>,
    start: &Start<'_>,
    own: &Own,
) -> Result<(), Errno> {
    match step {
        Step::Directory { at, mode } => make_directory(root, at, *mode),
        Step::Touch { at } => touch(root, at),
        Step::Link { at, target } => rustix::fs::symlinkat(*target, root, *at),
        Step::Write { at, bytes } => write_all(&new_file(root, at, 0o444)?, bytes),
        Step::Blank { at, size } => fill_with_zeros(&new_file(root, at, 0o600)?, *size),
        Step::Bind {
            source,
            at,
            flags,
            only,
        } => {
            let tree = match clone_tree(CWD, source) {
                // Directories are shown entry by entry where something in them must stay out of sight, and others go on using
                // them: what was there when they were listed and is gone now is seen as the empty place that was made for it.
                Err(Errno::NOENT) if only.is_none() && *flags & mount_flag::READ_ONLY != 0 => {
                    return Ok(());
                }
                tree => tree?,
            };
            if let Some(only) = only
                && FileId::of(&rustix::fs::fstat(&tree)?) != *only
            {
                return Err(Errno::STALE);
            }
            sys::set_mount_flags(tree.as_fd(), *flags, true, None)?;
            attach(tree.as_fd(), root, at)
        }
        Step::Attach { at } => attach(start.supplies.take()?.as_fd(), root, at),
        Step::Private { name, at, mode } => {
            let private = own.private.as_fd();
            make_directory(private, name, *mode)?;
            // With the flags of the file system it is cloned from.
            let tree = clone_tree(private, name)?;
            attach(tree.as_fd(), root, at)
        }
        Step::Mirror { from, at } => {
            let tree = clone_tree(root, from)?;
            let flags = mount_flag::READ_ONLY | mount_flag::NO_SUID | mount_flag::NO_DEV;
            sys::set_mount_flags(tree.as_fd(), flags, false, None)?;
            attach(tree.as_fd(), root, at)
        }
        Step::Seal { at } => {
            let place = open_beneath(root, at)?;
            sys::set_mount_flags(place.as_fd(), mount_flag::READ_ONLY, false, None)
        }
        Step::Terminals { at } => {
            let context = fsopen(c"devpts", FsOpenFlags::FSOPEN_CLOEXEC)?;
            fsconfig_set_flag(context.as_fd(), c"newinstance")?;
            fsconfig_set_string(context.as_fd(), c"ptmxmode", c"0666")?;
            fsconfig_set_string(context.as_fd(), c"mode", c"0600")?;
            fsconfig_create(context.as_fd())?;
            let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
            let mount = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags)?;
            attach(mount.as_fd(), root, at)
        }
        Step::Await => match Message::receive(start.control, RecvFlags::empty())? {
            Some(Message {
                kind: Kind::Ready, ..
            }) => Ok(()),
            _ => Err(Errno::CONNRESET),
        },
        Step::Cover { at, kind } => {
            // Read-only as the file system it is cloned from.
            let tree = clone_opened(own.void(*kind))?;
            attach(tree.as_fd(), root, at)
        }
        Step::BeginMask => {
            let mask = new_tmpfs(c"8m", c"755")?;
            attach_in_ours(mask.as_fd(), root, c"proc")
        }
        Step::Whiteout { at } => whiteout(root, at),
        Step::Opaque { at } => {
            make_directory(root, at, 0o700)?;
            let place =
                rustix::fs::openat(root, *at, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
            let flags = rustix::fs::XattrFlags::empty();
            match rustix::fs::fsetxattr(&place, c"user.overlay.opaque", b"y", flags) {
                // Before Linux 6.6: then there is nothing, and the program makes the directory itself.
                Err(Errno::OPNOTSUPP) => {
                    rustix::fs::unlinkat(root, *at, rustix::fs::AtFlags::REMOVEDIR)?;
                    whiteout(root, at)
                }
                set => set,
            }
        }
        Step::Text { at, bytes, mode } => write_all(&new_file(root, at, *mode)?, bytes),
        Step::EndMask => {
            rustix::process::fchdir(root)?;
            rustix::mount::unmount(c"proc", rustix::mount::UnmountFlags::DETACH)
        }
        Step::Overlay {
            lower,
            upper,
            work,
            at,
        } => {
            let tree = match lower {
                Lower::Path(_) | Lower::Masked(_) => None,
                Lower::Tree { .. } | Lower::MaskedTree(_) => Some(start.supplies.take()?),
            };
            overlay(root, lower, tree.as_ref(), [upper, work], at)
        }
    }
}

fn overlay(
    root: BorrowedFd<'_>,
    lower: &Lower<'_>,
    tree: Option<&OwnedFd>,
    [upper, work]: [&CStr; 2],
    at: &Place<'_>,
) -> Result<(), Errno> {
    let context = fsopen(c"overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_flag(context.as_fd(), c"userxattr")?;
    match lower {
        Lower::Path(layers) => fsconfig_set_string(context.as_fd(), c"lowerdir", *layers)?,
        Lower::Masked(layers) => {
            rustix::process::fchdir(root)?;
            fsconfig_set_string(context.as_fd(), c"lowerdir", *layers)?;
        }
        Lower::MaskedTree(layers) => {
            attach(tree.ok_or(Errno::BADF)?.as_fd(), root, at)?;
            rustix::process::fchdir(root)?;
            fsconfig_set_string(context.as_fd(), c"lowerdir", *layers)?;
        }
        Lower::Tree { above } => {
            // A detached tree has no path, and overlays want one: the place the overlay itself will cover.
            attach(tree.ok_or(Errno::BADF)?.as_fd(), root, at)?;
            let place = open_beneath(root, at.path)?;
            rustix::process::fchdir(&place)?;
            let mut layers = [0u8; 4200];
            let prefix = above.map_or(&b""[..], CStr::to_bytes);
            let colon: &[u8] = if prefix.is_empty() { b"" } else { b":" };
            let mut end = 0;
            for part in [prefix, colon, b".", b"\0"] {
                layers
                    .get_mut(end..end + part.len())
                    .ok_or(Errno::NAMETOOLONG)?
                    .copy_from_slice(part);
                end += part.len();
            }
            let layers = CStr::from_bytes_until_nul(&layers).map_err(|_| Errno::INVAL)?;
            fsconfig_set_string(context.as_fd(), c"lowerdir", layers)?;
        }
    }
    fsconfig_set_string(context.as_fd(), c"upperdir", upper)?;
    fsconfig_set_string(context.as_fd(), c"workdir", work)?;
    fsconfig_create(context.as_fd())?;
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let mount = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags)?;
    attach(mount.as_fd(), root, at)
}

fn whiteout(root: BorrowedFd<'_>, at: &CStr) -> Result<(), Errno> {
    let device = rustix::fs::FileType::CharacterDevice;
    rustix::fs::mknodat(root, at, device, Mode::empty(), 0)
}

/// Clones what is at `path`. No symbolic link is followed anywhere: the plan's paths are resolved already, so one that
/// appears now was put there by somebody who wants another tree shown.
fn clone_tree(directory: BorrowedFd<'_>, path: &CStr) -> Result<OwnedFd, Errno> {
    // Right below the root there is nothing on the way.
    if matches!(path.to_bytes(), [b'/', name @ ..] if !name.contains(&b'/')) {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_SYMLINK_NOFOLLOW
            | OpenTreeFlags::AT_RECURSIVE;
        return open_tree(directory, path, flags);
    }
    clone_opened(open_beneath(directory, path)?.as_fd())
}

pub(super) fn clone_opened(place: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH
        | OpenTreeFlags::AT_RECURSIVE;
    open_tree(place, c"", flags)
}

pub(super) fn open_beneath(directory: BorrowedFd<'_>, path: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat2(
        directory,
        path,
        flags,
        Mode::empty(),
        ResolveFlags::NO_SYMLINKS,
    )
}

fn attach(tree: BorrowedFd<'_>, root: BorrowedFd<'_>, at: &Place<'_>) -> Result<(), Errno> {
    if at.ours {
        return attach_in_ours(tree, root, at.path);
    }
    let place = open_beneath(root, at.path)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(tree, c"", &place, c"", flags)
}

/// The same where no link can be on the way, in fewer calls.
pub(super) fn attach_in_ours(
    tree: BorrowedFd<'_>,
    root: BorrowedFd<'_>,
    at: &CStr,
) -> Result<(), Errno> {
    move_mount(tree, c"", root, at, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

/// What private directories and covers are made of: the box's own file system, and of one directory in it, with an empty
/// directory and an empty file, a mount that nobody can write through. It hangs in the old root and vanishes from sight
/// with it; a cover or a private directory is a clone of a part.
struct Own {
    private: OwnedFd,
    directory: OwnedFd,
    file: OwnedFd,
}

impl Own {
    fn new(size: &CStr) -> Result<Self, Errno> {
        let private = new_tmpfs(size, c"755")?;
        attach_in_ours(private.as_fd(), CWD, c"/proc")?;
        make_directory(private.as_fd(), c".void", 0o755)?;
        make_directory(private.as_fd(), c".void/directory", 0o555)?;
        touch(private.as_fd(), c".void/file")?;
        let void = clone_tree(private.as_fd(), c".void")?;
        sys::set_mount_flags(void.as_fd(), mount_flag::READ_ONLY, false, None)?;
        attach_in_ours(void.as_fd(), private.as_fd(), c".void")?;
        Ok(Self {
            directory: open_beneath(void.as_fd(), c"directory")?,
            file: open_beneath(void.as_fd(), c"file")?,
            private,
        })
    }

    fn void(&self, kind: plan::Kind) -> BorrowedFd<'_> {
        match kind {
            plan::Kind::Directory => self.directory.as_fd(),
            plan::Kind::File => self.file.as_fd(),
        }
    }
}

pub(super) fn make_directory(root: BorrowedFd<'_>, at: &CStr, mode: u32) -> Result<(), Errno> {
    match rustix::fs::mkdirat(root, at, Mode::from_raw_mode(mode)) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno),
    }
}

pub(super) fn touch(root: BorrowedFd<'_>, at: &CStr) -> Result<(), Errno> {
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::openat(root, at, flags, Mode::from_raw_mode(0o444)).map(drop)
}

fn new_file(root: BorrowedFd<'_>, at: &CStr, mode: u32) -> Result<OwnedFd, Errno> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::openat(root, at, flags, Mode::from_raw_mode(mode))
}

fn write_all(file: &OwnedFd, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        let written = rustix::io::write(file, bytes)?;
        bytes = bytes.get(written..).ok_or(Errno::IO)?;
    }
    Ok(())
}

/// They are written, so that there is room for what will take their place.
fn fill_with_zeros(file: &OwnedFd, mut size: usize) -> Result<(), Errno> {
    let zeros = [0; 64];
    while size > 0 {
        let some = zeros.get(..size).unwrap_or(&zeros);
        write_all(file, some)?;
        size -= some.len();
    }
    Ok(())
}

/// Makes the new root the root. The old one lies on top of it until [`leave_host`]: nobody else may run before, and no
/// path with `..` in it may be used.
pub(super) fn enter(root: BorrowedFd<'_>) -> Result<(), Errno> {
    rustix::process::fchdir(root)?;
    rustix::process::pivot_root(c".", c".")
}

/// Takes the old root away. The working directory must be the new one's, as `enter` left it.
pub(super) fn leave_host() -> Result<(), Errno> {
    rustix::mount::unmount(c".", rustix::mount::UnmountFlags::DETACH)?;
    rustix::process::chdir(c"/")
}
