//! Reading an overlay's upper layer: plain files are new content, a 0/0 device is a deletion.
//!
//! The box's user owns the layer and may reach it as long as it lies open. So a keeper of root's takes over each directory
//! before it looks into it: what is listed stays as it is, but for files that somebody still has open, and these are known by
//! their content when they are applied.

use super::ChangeKind;
use super::content::content_of;
use super::host::{Base, Fingerprint, is_directory};
use super::listing::{Entry, Listing, Made, Trouble};
use super::tree::{Cursor, joined, names, open_plain, readable, unlock};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, Uid};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Adds every change in `layer`, which stands for `root`, in a box of `owner`'s that started at `start`.
pub(super) fn changes_in(
    layer: OwnedFd,
    root: &Path,
    owner: u32,
    start: Fingerprint,
    into: &mut Listing,
) {
    let host = match Cursor::open(root) {
        Ok(host) => host,
        Err(error) => return trouble(into, root.to_owned(), &error),
    };
    let top = into.add(None, root.as_os_str().to_owned(), None);
    let mut walk = Walk {
        owner,
        start,
        layer: Cursor::at(layer),
        host,
        levels: Vec::new(),
        into,
    };
    let began = walk.begin(top);
    walk.note(top, None, began);
    while walk.step() {}
    into.forget_if_idle(top);
}

fn trouble(listing: &mut Listing, path: std::path::PathBuf, error: &io::Error) {
    let why = error.to_string();
    listing.troubles.push(Trouble { path, why });
}

enum Child {
    /// In the layer.
    Kept(OsString),
    /// On the host only, hidden by a directory that was made anew.
    Hidden(OsString),
}

struct Level {
    node: usize,
    /// Whether the host has a directory there, too.
    on_host: bool,
    left: std::vec::IntoIter<Child>,
}

struct Walk<'a> {
    owner: u32,
    start: Fingerprint,
    layer: Cursor,
    host: Cursor,
    levels: Vec<Level>,
    into: &'a mut Listing,
}

impl Walk<'_> {
    /// The root itself: its mode is the agent's to change, like that of any directory in it.
    fn begin(&mut self, node: usize) -> io::Result<()> {
        let stat = rustix::fs::fstat(self.layer.here()?)?;
        let before = rustix::fs::fstat(self.host.here()?)?;
        if permissions(&stat) != permissions(&before) {
            let entry = Entry {
                kind: ChangeKind::Modified,
                made: Some(directory(&stat)),
                base: Base {
                    own: Some(Fingerprint::of(&before)),
                    within: None,
                    changed_meanwhile: false,
                },
                partly: Vec::new(),
            };
            if let Some(node) = self.into.nodes.get_mut(node) {
                node.entry = Some(entry);
            }
        }
        let left = self.open(true)?;
        self.levels.push(Level {
            node,
            on_host: true,
            left,
        });
        Ok(())
    }

    fn step(&mut self) -> bool {
        let Some(level) = self.levels.last_mut() else {
            return false;
        };
        let (parent, on_host) = (level.node, level.on_host);
        let Some(child) = level.left.next() else {
            self.levels.pop();
            self.layer.leave();
            if on_host {
                self.host.leave();
            }
            if !self.levels.is_empty() {
                self.into.forget_if_idle(parent);
            }
            return true;
        };
        match child {
            Child::Kept(name) => {
                let looked = self.kept(parent, on_host, &name);
                self.note(parent, Some(&name), looked);
            }
            Child::Hidden(name) => {
                let looked = self.gone(parent, on_host, &name);
                self.note(parent, Some(&name), looked);
            }
        }
        true
    }

    fn note(&mut self, parent: usize, name: Option<&OsStr>, looked: io::Result<()>) {
        if let Err(error) = looked {
            let path = joined(&self.into.path(parent), name.into_iter());
            trouble(self.into, path, &error);
        }
    }

    fn kept(&mut self, parent: usize, on_host: bool, name: &OsStr) -> io::Result<()> {
        let Some(stat) = self.layer.look(name)? else {
            return Err(io::Error::other(
                "it vanished while the changes were listed",
            ));
        };
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::CharacterDevice && stat.st_rdev == 0 {
            return self.gone(parent, on_host, name);
        }
        // Whoever could link somebody else's file into the layer would be handed a copy of it.
        if stat.st_uid != self.owner && stat.st_uid != rustix::process::geteuid().as_raw() {
            return Err(io::Error::other(
                "it belongs to another user than the box's",
            ));
        }
        match kind {
            FileType::Directory => self.directory(parent, on_host, name, &stat),
            FileType::RegularFile => {
                let content = self.plain(name)?;
                let mode = permissions(&stat);
                self.add(parent, on_host, name, Made::Plain { mode, content })
            }
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(self.layer.here()?, name, Vec::new())?;
                let target = OsStr::from_bytes(target.as_bytes()).into();
                self.add(parent, on_host, name, Made::Link { target })
            }
            _ => self.add(parent, on_host, name, Made::Special),
        }
    }

    fn directory(
        &mut self,
        parent: usize,
        on_host: bool,
        name: &OsStr,
        stat: &Stat,
    ) -> io::Result<()> {
        let before = match on_host {
            true => self.host.look(name)?.filter(is_directory),
            false => None,
        };
        self.layer.enter(name)?;
        let node = match &before {
            Some(before) if permissions(before) == permissions(stat) => {
                self.into.add(Some(parent), name.to_owned(), None)
            }
            _ => {
                let added = self.add(parent, on_host, name, directory(stat));
                if added.is_err() {
                    self.layer.leave();
                }
                added?;
                self.into.nodes.len() - 1
            }
        };
        let stays = before.is_some() && self.host.enter(name).is_ok();
        match self.open(stays) {
            Ok(left) => {
                self.levels.push(Level {
                    node,
                    on_host: stays,
                    left,
                });
                Ok(())
            }
            Err(error) => {
                self.layer.leave();
                if stays {
                    self.host.leave();
                }
                Err(error)
            }
        }
    }

    /// What is in the directory that was entered.
    fn open(&mut self, on_host: bool) -> io::Result<std::vec::IntoIter<Child>> {
        let here = self.layer.here()?;
        if is_roots() {
            take_over(here)?;
        }
        unlock(here)?;
        let is_opaque = is_opaque(here)?;
        let kept = names(here)?;
        let mut children: Vec<Child> = Vec::new();
        if on_host && is_opaque {
            let hidden = names(self.host.here()?)?;
            let hidden = hidden
                .into_iter()
                .filter(|name| kept.binary_search(name).is_err());
            children.extend(hidden.map(Child::Hidden));
        }
        children.extend(kept.into_iter().map(Child::Kept));
        children.sort_by(|a, b| a.name().cmp(b.name()));
        Ok(children.into_iter())
    }

    /// Looks into a file, which nobody opens anew from now on.
    fn plain(&mut self, name: &OsStr) -> io::Result<super::content::Content> {
        let here = self.layer.here()?;
        let file = match open_plain(here, name) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                unlock(rustix::fs::openat(here, name, flags, Mode::empty())?.as_fd())?;
                open_plain(here, name)?
            }
            opened => opened?,
        };
        if is_roots() {
            take_over(file.as_fd())?;
        }
        content_of(&file)
    }

    fn gone(&mut self, parent: usize, on_host: bool, name: &OsStr) -> io::Result<()> {
        if !on_host || self.host.look(name)?.is_none() {
            return Ok(());
        }
        let base = Base::look(Some(&mut self.host), name, true, &self.start)?;
        let entry = Entry {
            kind: ChangeKind::Deleted,
            made: None,
            base,
            partly: Vec::new(),
        };
        self.into.add(Some(parent), name.to_owned(), Some(entry));
        Ok(())
    }

    fn add(&mut self, parent: usize, on_host: bool, name: &OsStr, made: Made) -> io::Result<()> {
        // A directory stays one when it is only changed; else what is in it goes.
        let goes = !matches!(made, Made::Directory { .. });
        let host = on_host.then_some(&mut self.host);
        let base = Base::look(host, name, goes, &self.start)?;
        let entry = Entry {
            kind: match base.own {
                Some(_) => ChangeKind::Modified,
                None => ChangeKind::Added,
            },
            made: Some(made),
            base,
            partly: Vec::new(),
        };
        self.into.add(Some(parent), name.to_owned(), Some(entry));
        Ok(())
    }
}

impl Child {
    fn name(&self) -> &OsStr {
        match self {
            Child::Kept(name) | Child::Hidden(name) => name,
        }
    }
}

/// Nothing of the agent's becomes set-id on the host.
fn permissions(stat: &Stat) -> u32 {
    stat.st_mode & 0o777
}

fn directory(stat: &Stat) -> Made {
    let mode = permissions(stat);
    Made::Directory { mode }
}

fn is_roots() -> bool {
    rustix::process::geteuid().is_root()
}

/// Makes a file or directory root's.
fn take_over(place: BorrowedFd<'_>) -> io::Result<()> {
    let (uid, gid) = (Some(Uid::ROOT), Some(Gid::ROOT));
    Ok(rustix::fs::chownat(
        place,
        c"",
        uid,
        gid,
        AtFlags::EMPTY_PATH,
    )?)
}

fn is_opaque(directory: BorrowedFd<'_>) -> io::Result<bool> {
    let mut value = [0u8; 4];
    let directory = readable(directory)?;
    let read = rustix::fs::fgetxattr(&directory, c"user.overlay.opaque", &mut value[..]);
    Ok(matches!(read, Ok(1) if value.first() == Some(&b'y')))
}
