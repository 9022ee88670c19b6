//! [`Show`]s as steps of the script: a directory in the box's root, which is sealed when all is in place.

use super::message::LaunchError;
use super::script::{Draft, KeeperTree, Made, Place, Step};
use crate::plan::{Identity, Ownership, Plan};
use crate::show::{self, InvalidShow, OWN_PLACE, Show};
use crate::sys::mount_flag;
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, Stat};
use std::path::Path;

/// A file, whatever it is called: while it exists, no other has both numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    pub(crate) fn of(stat: &Stat) -> Self {
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
        }
    }
}

impl Draft<'_> {
    /// Adds the steps for all that is shown.
    pub(super) fn show_all(&mut self, plan: &Plan) -> Result<(), LaunchError> {
        if plan.shows.is_empty() {
            return Ok(());
        }
        show::check(&plan.shows)?;
        let own = Path::new(OWN_PLACE);
        if let Some(taken) = plan.view.iter().find(|entry| entry.path.starts_with(own)) {
            let path = taken.path.clone();
            return Err(InvalidShow::Taken { path }.into());
        }
        for show in &plan.shows {
            let path = show.name().path();
            let mut above: Vec<&Path> = path
                .ancestors()
                .skip(1)
                .take_while(|above| above.starts_with(own))
                .collect();
            above.reverse();
            for directory in above {
                let at = self.relative(directory)?;
                self.push(Step::Directory { at, mode: 0o755 }, directory);
            }
            match show {
                Show::Text { bytes, .. } => {
                    let at = self.relative(&path)?;
                    let bytes = self.bytes(bytes)?;
                    self.push(Step::Write { at, bytes }, &path);
                }
                Show::Program { source, .. } => {
                    let stat = look_at(source, FileType::RegularFile, "a program file")?;
                    demand(source, &stat, plan.identity, Right::Execute)?;
                    self.show_host_file(plan, source, &path, &stat)?;
                }
                Show::Door { socket, .. } => {
                    let stat = look_at(socket, FileType::Socket, "a socket")?;
                    demand(socket, &stat, plan.identity, Right::Connect)?;
                    self.show_host_file(plan, socket, &path, &stat)?;
                    // As many as were checked for fit.
                    if let Some(free) = self.doors.iter_mut().find(|door| door.is_none()) {
                        *free = Some(FileId::of(&stat));
                    }
                }
            }
        }
        for replaced in &plan.replaced {
            let from = self.relative(&replaced.by.path())?;
            let at = Place {
                path: self.relative(&replaced.path)?,
                ours: false,
            };
            self.push(Step::Mirror { from, at }, &replaced.path);
        }
        Ok(())
    }

    /// A file of the host's that a tier needs.
    pub(super) fn furnish_file(
        &mut self,
        plan: &Plan,
        source: &Path,
        at: &Path,
    ) -> Result<(), LaunchError> {
        let stat = look_at(source, FileType::RegularFile, "a file")?;
        self.show_host_file(plan, source, at, &stat)
    }

    /// A file of the host's, read-only. Where the box's user is another than ours, the file may lie where that user
    /// can't go, so we clone it ourselves. Either way it must still be the file that was looked at.
    fn show_host_file(
        &mut self,
        plan: &Plan,
        source: &Path,
        path: &Path,
        stat: &Stat,
    ) -> Result<(), LaunchError> {
        let only = FileId::of(stat);
        let flags = mount_flag::READ_ONLY | mount_flag::NO_SUID | mount_flag::NO_DEV;
        self.push(
            Step::Touch {
                at: self.relative(path)?,
            },
            path,
        );
        let at = Place {
            path: self.relative(path)?,
            ours: true,
        };
        let step = if plan.identity.uid == rustix::process::geteuid().as_raw() {
            Step::Bind {
                source: self.path(source)?,
                at,
                flags,
                only: Some(only),
            }
        } else {
            self.keeper_tree(KeeperTree {
                source: source.to_owned(),
                flags,
                ownership: Ownership::Host,
                made: Made::CloneOf(only),
            });
            Step::Attach { at }
        };
        self.push(step, path);
        Ok(())
    }
}

/// What is at a path, if it is what is expected there.
fn look_at(path: &Path, kind: FileType, expected: &'static str) -> Result<Stat, InvalidShow> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
        .and_then(rustix::fs::fstat)
        .ok()
        .filter(|stat| FileType::from_raw_mode(stat.st_mode) == kind)
        .ok_or_else(|| InvalidShow::NotThat {
            path: path.to_owned(),
            expected,
        })
}

/// What the box's user must be able to do with a file that is shown.
#[derive(Clone, Copy)]
enum Right {
    Execute,
    Connect,
}

/// Init connects as the box's user, and so the socket's own permissions count; better to hear of it now than at the
/// agent's first call. A box of root's runs as nobody, for whom such a socket is best open to all, in a directory
/// that is open to none.
fn demand(path: &Path, stat: &Stat, identity: Identity, right: Right) -> Result<(), InvalidShow> {
    let (bits, missing) = match right {
        Right::Execute => (0o5, "the right to read and execute it"),
        Right::Connect => (0o2, "the right to write to it"),
    };
    let shift = if stat.st_uid == identity.uid {
        6
    } else if stat.st_gid == identity.gid {
        3
    } else {
        0
    };
    if stat.st_mode >> shift & bits == bits {
        return Ok(());
    }
    Err(InvalidShow::NoRight {
        path: path.to_owned(),
        uid: identity.uid,
        missing,
    })
}
