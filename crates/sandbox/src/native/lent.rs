//! A device that is root's, or a group's, for a box of root's that runs as nobody.
//!
//! Where an ordinary user starts a box, the box's user is that user, with that user's groups: the device itself is shown, and
//! opens or does not. A box of root's has no groups, and the device's owner can't be mapped: its file system knows no id-mapped
//! mounts. So it is shown a device of the same number that is its user's, in a file system that nobody else sees.

use super::message::LaunchError;
use super::script::{Draft, KeeperTree, Made, Place, Step};
use crate::plan::{Identity, Ownership};
use crate::sys::mount_flag;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Uid};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount,
    fsopen,
};
use std::path::{Path, PathBuf};

/// Where the directories of lent devices are.
const PLACE: &str = "/dev/.lent";

impl Draft<'_> {
    /// A device of the host's, at its own path.
    pub(super) fn furnish_device(&mut self, device: &Path) -> Result<(), LaunchError> {
        let path = self.relative(device)?;
        if self.is_keepers_user || is_everybodys(device) {
            self.push(Step::Touch { at: path }, device);
            let step = Step::Bind {
                source: self.path(device)?,
                at: Place { path, ours: true },
                // A device can be opened for writing all the same.
                flags: mount_flag::NO_SUID | mount_flag::READ_ONLY,
                only: None,
            };
            self.push(step, device);
            return Ok(());
        }
        let Some(name) = device.file_name() else {
            return Err(LaunchError::at(super::message::Stage::View)(Errno::INVAL));
        };
        let directory: PathBuf = Path::new(PLACE).join(name);
        for above in [Path::new(PLACE), &directory] {
            let at = self.relative(above)?;
            self.push(Step::Directory { at, mode: 0o755 }, above);
        }
        self.keeper_tree(KeeperTree {
            source: device.to_owned(),
            flags: 0,
            ownership: Ownership::Host,
            made: Made::Lent,
        });
        let at = Place {
            path: self.relative(&directory)?,
            ours: true,
        };
        self.push(Step::Attach { at }, device);
        let link = Step::Link {
            at: path,
            target: self.path(&directory.join(name))?,
        };
        self.push(link, device);
        Ok(())
    }
}

fn look_at(device: &Path) -> Result<Stat, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let place = rustix::fs::openat2(CWD, device, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?;
    rustix::fs::fstat(place)
}

/// Whether whoever sees it may open it.
fn is_everybodys(device: &Path) -> bool {
    const EVERYBODY: u32 = 0o006;
    look_at(device).is_ok_and(|stat| stat.st_mode & EVERYBODY == EVERYBODY)
}

/// A file system with one device in it: of the same number and name as this one, and the box's user's. Only root can make it.
pub(super) fn directory_with(device: &Path, identity: Identity) -> Result<OwnedFd, Errno> {
    let stat = look_at(device)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::CharacterDevice {
        return Err(Errno::NODEV);
    }
    let name = device.file_name().ok_or(Errno::INVAL)?;
    let context = fsopen(c"tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (option, value) in [(c"size", c"4096"), (c"nr_inodes", c"2"), (c"mode", c"0755")] {
        fsconfig_set_string(context.as_fd(), option, value)?;
    }
    fsconfig_create(context.as_fd())?;
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let directory = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags)?;
    let kind = FileType::CharacterDevice;
    let mode = Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(&directory, name, kind, mode, stat.st_rdev)?;
    let (uid, gid) = (Uid::from_raw(identity.uid), Gid::from_raw(identity.gid));
    let nofollow = AtFlags::SYMLINK_NOFOLLOW;
    rustix::fs::chownat(&directory, name, Some(uid), Some(gid), nofollow)?;
    let flags = mount_flag::READ_ONLY | mount_flag::NO_SUID;
    crate::sys::set_mount_flags(directory.as_fd(), flags, false, None)?;
    Ok(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOMEBODY: Identity = Identity {
        uid: 4321,
        gid: 8765,
        owner_uid: 0,
        owner_gid: 0,
    };

    #[test]
    fn root_lends_a_device_to_one_user_and_nobody_else_can() {
        let device = Path::new("/dev/zero");
        let made = directory_with(device, SOMEBODY);
        if !rustix::process::geteuid().is_root() {
            assert_eq!(made.err(), Some(Errno::PERM));
            return;
        }
        let directory = made.unwrap();
        let stat = rustix::fs::statat(&directory, "zero", AtFlags::SYMLINK_NOFOLLOW).unwrap();
        assert_eq!(stat.st_rdev, look_at(device).unwrap().st_rdev);
        assert_eq!((stat.st_uid, stat.st_gid), (4321, 8765));
        assert_eq!(stat.st_mode & 0o7777, 0o600);
        let more = rustix::fs::mkdirat(&directory, "more", Mode::RWXU);
        assert_eq!(more, Err(Errno::ROFS));
    }

    #[test]
    fn what_is_no_device_is_not_lent() {
        let made = directory_with(Path::new("/etc/passwd"), SOMEBODY);
        assert_eq!(made.err(), Some(Errno::NODEV));
        assert!(is_everybodys(Path::new("/dev/null")));
        assert!(!is_everybodys(Path::new("/etc/shadow")));
    }
}
