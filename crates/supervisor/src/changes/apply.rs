//! Making changes on the host, by descriptors beneath the directories they belong to.
//!
//! Each file is made beside its place and put there by a rename, so a run that is broken off leaves whole files, old or new;
//! the next one finds what is done and goes on.

use super::content::{Content, content_of, copy};
use super::host::{Fingerprint, is_directory};
use super::listing::{Bytes, Entry, Listing, Made};
use super::store::Store;
use super::tree::{Cursor, names, open_plain, readable, remove, unlock};
use super::{ApplyError, Conflict};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, RenameFlags, Stat, Uid, chownat, fchmod, fchown, fstat,
    mkdirat, openat, readlinkat, renameat, renameat_with, symlinkat, unlinkat,
};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Whether a change can be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// The host has what it had.
    Ready,
    /// It has what the box made, already.
    Done,
    /// It has something else.
    Conflict,
}

/// Why a change was not made.
enum Stop {
    Failed(io::Error),
    /// The host's file is another one since a moment ago.
    Conflict,
    /// What is kept is no longer what was listed.
    Altered,
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Self {
        Self::Failed(errno.into())
    }
}

/// Contents that are not in the layers: of files of which some hunks are applied, by the number of their nodes.
pub(super) type Composed = BTreeMap<usize, String>;

/// Looks whether every change can be made, then makes them.
pub(super) fn perform(
    store: &Store,
    listing: &Listing,
    composed: &Composed,
) -> Result<(), ApplyError> {
    let mut conflicts = Vec::new();
    Pass::new(store, listing, composed, false).run(&mut |pass, index| {
        pass.look_at_layer(index)?;
        if pass.verdict(index)? == Verdict::Conflict {
            conflicts.push(Conflict {
                path: listing.path(index),
            });
        }
        Ok(())
    })?;
    if !conflicts.is_empty() {
        return Err(ApplyError::Conflicts(conflicts));
    }
    Pass::new(store, listing, composed, true).run(&mut |pass, index| pass.make(index))
}

/// One way through all changes, on the host and in the layers at once.
struct Pass<'a> {
    store: &'a Store,
    listing: &'a Listing,
    composed: &'a Composed,
    host: Option<Cursor>,
    layer: Option<Cursor>,
    open: Vec<Open>,
    /// Whether changes are made, not only looked at.
    makes: bool,
    /// The directory that is entered next.
    expected: Option<(u64, u64)>,
}

/// A directory that is gone through.
struct Open {
    node: usize,
    on_host: bool,
    /// The mode that it has in the end: until then we must be able to work in it.
    mode: Option<u32>,
}

/// The mode of a directory that nobody could work in.
#[derive(Clone, Copy)]
struct Locked(Option<u32>);

type Work<'w, 'a> = &'w mut dyn FnMut(&mut Pass<'a>, usize) -> Result<(), Stop>;

impl<'a> Pass<'a> {
    fn new(store: &'a Store, listing: &'a Listing, composed: &'a Composed, makes: bool) -> Self {
        Self {
            store,
            listing,
            composed,
            host: None,
            layer: None,
            open: Vec::new(),
            makes,
            expected: None,
        }
    }

    fn run(mut self, work: Work<'_, 'a>) -> Result<(), ApplyError> {
        let mut gone = self.go_through(work);
        while !self.open.is_empty() {
            let closed = self.close();
            gone = gone.and(closed);
        }
        gone
    }

    fn go_through(&mut self, work: Work<'_, 'a>) -> Result<(), ApplyError> {
        for (index, node) in self.listing.nodes.iter().enumerate() {
            while self.open.len() > node.depth {
                self.close()?;
            }
            self.go(index, work)
                .map_err(|stop| self.stopped(index, stop))?;
        }
        Ok(())
    }

    fn stopped(&self, index: usize, stop: Stop) -> ApplyError {
        let path = self.listing.path(index);
        match stop {
            Stop::Failed(source) => ApplyError::Failed { path, source },
            Stop::Conflict => ApplyError::Conflicts(vec![Conflict { path }]),
            Stop::Altered => ApplyError::Altered { path },
        }
    }

    fn entry(&self, index: usize) -> Option<&'a Entry> {
        self.listing.nodes.get(index)?.entry.as_ref()
    }

    fn name(&self, index: usize) -> &'a OsStr {
        let node = self.listing.nodes.get(index);
        node.map_or(OsStr::new(""), |node| node.name.as_os_str())
    }

    /// Does one node's work, and enters it if it is a directory.
    fn go(&mut self, index: usize, work: Work<'_, 'a>) -> Result<(), Stop> {
        let entry = self.entry(index);
        if self.is_root(index) {
            let root = Path::new(self.name(index));
            self.host = Some(Cursor::open(root)?);
            self.layer = Some(Cursor::at(self.store.changes(root)?));
            let mode = self.mode_of(index);
            self.open.push(Open {
                node: index,
                on_host: true,
                mode,
            });
        }
        if entry.is_some() {
            work(self, index)?;
        }
        let is_directory = match entry {
            Some(entry) => matches!(entry.made, Some(Made::Directory { .. })),
            None => true,
        };
        if self.is_root(index) || !is_directory {
            return Ok(());
        }
        let before = self.enter_host(index)?;
        let on_host = before.is_some();
        let name = self.name(index);
        let entered = match self.layer() {
            Some(layer) => layer.enter(name),
            None => Err(io::ErrorKind::NotFound.into()),
        };
        if entered.is_err() {
            if let (true, Some(host)) = (on_host, self.host()) {
                host.leave();
            }
            return Err(Stop::Altered);
        }
        let mode = match on_host {
            true => self.mode_of(index).or(before.and_then(|Locked(mode)| mode)),
            false => None,
        };
        self.open.push(Open {
            node: index,
            on_host,
            mode,
        });
        Ok(())
    }

    /// The mode a directory is to have, if it is to get one.
    fn mode_of(&self, index: usize) -> Option<u32> {
        match self.entry(index)?.made {
            Some(Made::Directory { mode }) if self.makes => Some(mode),
            _ => None,
        }
    }

    /// Goes to the host's directory of that name. One that is yet to be made is none.
    fn enter_host(&mut self, index: usize) -> Result<Option<Locked>, Stop> {
        let (is_new, name) = (self.entry(index).is_some(), self.name(index));
        let (makes, expected) = (self.makes, self.expected.take());
        let Some(host) = self.host() else {
            return Ok(None);
        };
        if host.enter(name).is_err() {
            return match is_new && !makes {
                true => Ok(None),
                false => Err(Stop::Conflict),
            };
        }
        let stat = fstat(host.here()?)?;
        if expected.is_some_and(|expected| expected != (stat.st_dev, stat.st_ino)) {
            host.leave();
            return Err(Stop::Conflict);
        }
        let mode = stat.st_mode & 0o777;
        // One that was made before what is in it has its own mode already.
        if mode & 0o700 == 0o700 {
            return Ok(Some(Locked(None)));
        }
        unlock(host.here()?)?;
        Ok(Some(Locked(Some(mode))))
    }

    /// The host's directory that is gone through, if there is one.
    fn host(&mut self) -> Option<&mut Cursor> {
        match self.open.last() {
            Some(open) if open.on_host => self.host.as_mut(),
            _ => None,
        }
    }

    fn layer(&mut self) -> Option<&mut Cursor> {
        self.layer.as_mut()
    }

    fn close(&mut self) -> Result<(), ApplyError> {
        let closed = self.finish_directory();
        let Some(open) = self.open.pop() else {
            return Ok(());
        };
        if let (true, Some(host)) = (open.on_host, self.host.as_mut()) {
            host.leave();
        }
        if let Some(layer) = self.layer.as_mut() {
            layer.leave();
        }
        closed.map_err(|source| self.stopped(open.node, Stop::Failed(source)))
    }

    fn finish_directory(&mut self) -> io::Result<()> {
        let Some(mode) = self.open.last().and_then(|open| open.mode) else {
            return Ok(());
        };
        let Some(host) = self.host() else {
            return Ok(());
        };
        let place = readable(host.here()?)?;
        Ok(fchmod(place, Mode::from_raw_mode(mode))?)
    }

    fn verdict(&mut self, index: usize) -> Result<Verdict, Stop> {
        let (Some(entry), name) = (self.entry(index), self.name(index)) else {
            return Ok(Verdict::Done);
        };
        if self.is_root(index) {
            let Some(host) = self.host() else {
                return Ok(Verdict::Conflict);
            };
            let now = Fingerprint::of(&fstat(host.here()?)?);
            return Ok(match Some(now) == entry.base.own {
                true => Verdict::Ready,
                false => Verdict::Conflict,
            });
        }
        if self.is_done(entry, name)? {
            return Ok(Verdict::Done);
        }
        Ok(match still_holds(entry, self.host(), name)? {
            true => Verdict::Ready,
            false => Verdict::Conflict,
        })
    }

    fn is_root(&self, index: usize) -> bool {
        self.listing
            .nodes
            .get(index)
            .is_some_and(|node| node.depth == 0)
    }

    /// Whether the host has what the box made.
    fn is_done(&mut self, entry: &Entry, name: &OsStr) -> io::Result<bool> {
        let host = self.host();
        let Some(host) = host else {
            return Ok(entry.made.is_none());
        };
        let now = host.look(name)?;
        let Some(made) = &entry.made else {
            return Ok(now.is_none());
        };
        let Some(now) = now else {
            return Ok(matches!(made, Made::Special));
        };
        let kind = FileType::from_raw_mode(now.st_mode);
        Ok(match made {
            // One that is being made is only ours until it is done.
            Made::Directory { mode } => {
                kind == FileType::Directory && [*mode, 0o700].contains(&(now.st_mode & 0o777))
            }
            Made::Plain { mode, content } => has_file(host, name, &now, *mode, content)?,
            Made::Link { target } => kind == FileType::Symlink && read_link(host, name)? == *target,
            Made::Special => false,
        })
    }

    /// Whether the layer has what was listed, as far as can be told without reading it.
    fn look_at_layer(&mut self, index: usize) -> Result<(), Stop> {
        let name = self.name(index);
        let made = self.entry(index).and_then(|entry| entry.made.as_ref());
        let (Some(made), false) = (made, self.is_root(index)) else {
            return Ok(());
        };
        // It was looked at when it was composed.
        if self.composed_of(index).is_some() {
            return Ok(());
        }
        let kept = match self.layer() {
            Some(layer) => layer.look(name)?,
            None => None,
        };
        let kept = kept.ok_or(Stop::Altered)?;
        let kind = FileType::from_raw_mode(kept.st_mode);
        let is_listed = match made {
            Made::Directory { .. } => kind == FileType::Directory,
            Made::Plain { content, .. } => {
                kind == FileType::RegularFile && u64::try_from(kept.st_size) == Ok(content.size)
            }
            Made::Link { .. } => kind == FileType::Symlink,
            Made::Special => true,
        };
        is_listed.then_some(()).ok_or(Stop::Altered)
    }

    fn make(&mut self, index: usize) -> Result<(), Stop> {
        let (Some(entry), name) = (self.entry(index), self.name(index)) else {
            return Ok(());
        };
        let verdict = self.verdict(index)?;
        if verdict == Verdict::Conflict {
            return Err(Stop::Conflict);
        }
        let temporary = self.temporary(index);
        match (&entry.made, self.host()) {
            (Some(Made::Special), _) | (None, None) => return Ok(()),
            (Some(_), None) => return Err(Stop::Conflict),
            (None, Some(host)) => return Ok(remove(host, name)?),
            // Left by a run that was killed.
            (Some(_), Some(host)) => remove(host, &temporary)?,
        }
        let made = match &entry.made {
            Some(Made::Directory { .. }) => self.directory(index, name, &temporary),
            Some(Made::Link { target }) if verdict == Verdict::Ready => self
                .link(name, target, &temporary)
                .and_then(|()| self.place(entry, name, &temporary)),
            Some(Made::Plain { mode, content }) if verdict == Verdict::Ready => self
                .plain(index, *mode, content, &temporary)
                .and_then(|()| self.place(entry, name, &temporary)),
            _ => Ok(()),
        };
        if made.is_err()
            && let Some(host) = self.host()
        {
            let _ = remove(host, &temporary);
        }
        made
    }

    /// Short, whatever the file is called; nobody knows it beforehand.
    fn temporary(&self, index: usize) -> OsString {
        let number = self.listing.nodes.get(index).map(|node| node.number);
        format!(
            ".belljar-{}-{}",
            self.listing.token,
            number.unwrap_or(index)
        )
        .into()
    }

    fn composed_of(&self, index: usize) -> Option<&'a str> {
        let number = self.listing.nodes.get(index)?.number;
        self.composed.get(&number).map(String::as_str)
    }

    /// Makes a directory, or finds it. It is entered next, and gets its mode when it is left.
    fn directory(&mut self, index: usize, name: &OsStr, temporary: &OsStr) -> Result<(), Stop> {
        let is_root = self.is_root(index);
        let host = self.host().ok_or(Stop::Conflict)?;
        let expected = if is_root {
            unlock(host.here()?)?;
            return Ok(());
        } else {
            match host.look(name)? {
                Some(before) if is_directory(&before) => before,
                Some(_) => {
                    let made = make_directory(host, temporary)?;
                    exchange(host, temporary, name)?;
                    made
                }
                None => make_directory(host, name)?,
            }
        };
        self.expected = Some((expected.st_dev, expected.st_ino));
        Ok(())
    }

    fn link(&mut self, name: &OsStr, target: &Bytes, temporary: &OsStr) -> Result<(), Stop> {
        let layer = self.layer().ok_or(Stop::Altered)?;
        if read_link(layer, name)? != *target {
            return Err(Stop::Altered);
        }
        let target = target.clone().read().ok_or(Stop::Altered)?;
        let host = self.host().ok_or(Stop::Conflict)?;
        let here = host.here()?;
        symlinkat(target.as_os_str(), here, temporary)?;
        if rustix::process::geteuid().is_root() {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let link = openat(here, temporary, flags, Mode::empty())?;
            if FileType::from_raw_mode(fstat(&link)?.st_mode) != FileType::Symlink {
                return Err(Stop::Conflict);
            }
            let (uid, gid) = owner_of(&fstat(here)?);
            chownat(&link, c"", uid, gid, AtFlags::EMPTY_PATH)?;
        }
        Ok(())
    }

    /// Copies a file, and lets nothing pass that was not listed.
    fn plain(
        &mut self,
        index: usize,
        mode: u32,
        content: &Content,
        temporary: &OsStr,
    ) -> Result<(), Stop> {
        let name = self.name(index);
        let composed = self.composed_of(index);
        let kept = match composed {
            Some(_) => None,
            None => {
                let layer = self.layer().ok_or(Stop::Altered)?;
                Some(open_plain(layer.here()?, name)?)
            }
        };
        let host = self.host().ok_or(Stop::Conflict)?;
        let here = host.here()?;
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(openat(here, temporary, flags, Mode::RUSR | Mode::WUSR)?);
        match (&kept, composed) {
            (Some(kept), _) if copy(kept, &file)? != *content => return Err(Stop::Altered),
            (None, Some(text)) => file.write_all_at(text.as_bytes(), 0)?,
            _ => {}
        }
        if rustix::process::geteuid().is_root() {
            let (uid, gid) = owner_of(&fstat(here)?);
            fchown(&file, uid, gid)?;
        }
        Ok(fchmod(&file, Mode::from_raw_mode(mode & 0o777))?)
    }

    /// Puts a finished file in its place, unless somebody was there meanwhile.
    fn place(&mut self, entry: &Entry, name: &OsStr, temporary: &OsStr) -> Result<(), Stop> {
        let host = self.host().ok_or(Stop::Conflict)?;
        if !still_holds(entry, Some(&mut *host), name)? {
            return Err(Stop::Conflict);
        }
        if host.look(name)?.is_some_and(|now| is_directory(&now)) {
            remove(host, name)?;
        }
        let here = host.here()?;
        if entry.base.own.is_none() {
            match renameat_with(here, temporary, here, name, RenameFlags::NOREPLACE) {
                Ok(()) => return Ok(()),
                Err(Errno::EXIST) => return Err(Stop::Conflict),
                // A file system that can't.
                Err(Errno::INVAL | Errno::NOSYS) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(renameat(here, temporary, here, name)?)
    }
}

/// Whether the host has what it had when the box ended, or what an earlier `apply` of some hunks made of that.
fn still_holds(entry: &Entry, mut host: Option<&mut Cursor>, name: &OsStr) -> io::Result<bool> {
    if entry.base.still_holds(host.as_deref_mut(), name)? {
        return Ok(true);
    }
    let (Some(host), false) = (host, entry.partly.is_empty()) else {
        return Ok(false);
    };
    let Some(now) = host.look(name)? else {
        return Ok(false);
    };
    for part in &entry.partly {
        if has_file(host, name, &now, part.mode, &part.content)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether the host has this very file there.
fn has_file(
    host: &mut Cursor,
    name: &OsStr,
    now: &Stat,
    mode: u32,
    content: &Content,
) -> io::Result<bool> {
    Ok(
        FileType::from_raw_mode(now.st_mode) == FileType::RegularFile
            && now.st_mode & 0o7777 == mode
            && u64::try_from(now.st_size) == Ok(content.size)
            && content_of(&open_plain(host.here()?, name)?)? == *content,
    )
}

fn read_link(at: &mut Cursor, name: &OsStr) -> io::Result<Bytes> {
    let target = readlinkat(at.here()?, name, Vec::new())?;
    Ok(OsStr::from_bytes(target.as_bytes()).into())
}

/// What nobody wrote on the host belongs to whom its directory belongs.
fn owner_of(directory: &Stat) -> (Option<Uid>, Option<Gid>) {
    let uid = Uid::from_raw(directory.st_uid);
    (Some(uid), Some(Gid::from_raw(directory.st_gid)))
}

/// A new directory, in which only we can work for now.
fn make_directory(host: &mut Cursor, name: &OsStr) -> Result<Stat, Stop> {
    let here = host.here()?;
    mkdirat(here, name, Mode::RWXU)?;
    let (uid, gid) = owner_of(&fstat(here)?);
    host.enter(name)?;
    let made = host.here().and_then(readable).and_then(|place| {
        let stat = fstat(&place)?;
        Ok((names(place.as_fd())?.is_empty(), stat, place))
    });
    host.leave();
    let (is_empty, stat, place): (bool, Stat, OwnedFd) = made?;
    let us = rustix::process::geteuid();
    if !is_empty || stat.st_uid != us.as_raw() || stat.st_mode & 0o777 != 0o700 {
        return Err(Stop::Conflict);
    }
    if us.is_root() {
        fchown(&place, uid, gid)?;
    }
    Ok(stat)
}

/// A directory for a file, at once where the file system can.
fn exchange(host: &mut Cursor, directory: &OsStr, file: &OsStr) -> Result<(), Stop> {
    let here = host.here()?;
    match renameat_with(here, directory, here, file, RenameFlags::EXCHANGE) {
        Ok(()) => {}
        Err(Errno::INVAL | Errno::NOSYS) => {
            unlinkat(here, file, AtFlags::empty())?;
            renameat(here, directory, here, file)?;
        }
        Err(errno) => return Err(errno.into()),
    }
    Ok(remove(host, directory)?)
}
