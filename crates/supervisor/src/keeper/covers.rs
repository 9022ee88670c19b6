//! Covers that are lost because somebody on the host took away, or put something else at, the name they hang on.
//!
//! The kernel tells of it at once, and the box is made to hold still until every cover is there again. What holds: from then
//! on the name is as it was for the box. What does not: between the host's act and the halt, some milliseconds, what is
//! now at the name is the box's to read and to write like all around it. So each loss is told, with the name, as something
//! to look at; and what must not be read even that long can't be left to a cover (see `lower`, on files with secrets).

use super::Keeper;
use super::holds::Look;
use crate::reins::{BoxState, Reins};
use crate::repositories::{Judged, judge, printable};
use crate::result::{KillCode, KilledBy, Violation};
use crate::stand_in::kind_of;
use belljar_sandbox::native::{BoxMounts, Cover, FreezeMethod, LONGEST_LOOK};
use belljar_sandbox::plan::{Access, Identity, Plan, Shows, View};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use std::collections::{HashMap, HashSet};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A box that has lost a cover for good.
const LOST_COVER: KillCode = KillCode::new("lost_cover");
/// How long a box may take to hold still.
const PATIENCE: Duration = Duration::from_secs(3);
/// How often covers are put back in a row while the host goes on taking names away.
const ROUNDS: usize = 20;
/// How often it is seen that something of the box leads around a cover that is there again, before the box is ended: whoever
/// merely read the file just then lets go of it.
const HOLDS: u32 = 5;
/// The time between two such looks.
const A_BREATH: Duration = Duration::from_millis(50);
/// How often to look where the host does not tell of names that are moved.
const SELDOMEST: Duration = Duration::from_millis(100);

/// What hangs on names of the host's.
pub(crate) struct Covers {
    mounts: BoxMounts,
    kept: Vec<Kept>,
    /// Whether what is put back is put back for the program as well: another kernel may have looked before, and
    /// remembers.
    mendable: bool,
    /// Tells of names that are moved, mount and all, which the table of mounts does not.
    moves: Option<OwnedFd>,
    /// Whether it tells of all. The host gives a user so many of them, and agents can use them up.
    is_told: bool,
    home: PathBuf,
    /// Who it is that the box runs as.
    user: Identity,
    /// When they were put up, in seconds since 1970.
    since: i64,
    /// What was uncovered for a moment, and may be in the box's hands still.
    doubtful: Vec<Kept>,
    /// How often something of it was.
    holds: u32,
}

#[derive(Debug, Clone)]
struct Kept {
    path: PathBuf,
    how: How,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    /// Nothing is to be seen or made there.
    Void,
    /// It is to be read, not written.
    ReadOnly,
    /// It is a directory above others, held in its place.
    Pinned,
    /// Nothing that could be put back.
    Fixed,
}

impl Covers {
    /// Begins to look after the covers of a box whose walls stand.
    pub(crate) fn of(plan: &Plan, home: &Path, mounts: BoxMounts, mendable: bool) -> Self {
        let flags = CreateFlags::CLOEXEC | CreateFlags::NONBLOCK;
        let mut covers = Self {
            mounts,
            kept: at_risk(plan),
            mendable,
            moves: inotify::init(flags).ok(),
            is_told: true,
            home: home.to_owned(),
            user: plan.identity,
            since: clock_gettime(ClockId::Realtime).tv_sec,
            doubtful: Vec::new(),
            holds: 0,
        };
        let paths: Vec<PathBuf> = covers.kept.iter().map(|kept| kept.path.clone()).collect();
        paths.iter().for_each(|path| covers.follow(path));
        covers
    }

    /// Becomes ready with `PRI` or `ERR`.
    pub(super) fn changes(&self) -> BorrowedFd<'_> {
        self.mounts.changes()
    }

    /// Becomes readable.
    pub(super) fn moves(&self) -> Option<BorrowedFd<'_>> {
        self.moves.as_ref().map(AsFd::as_fd)
    }

    /// How long it may go without a look.
    pub(super) fn next_look(&self) -> Option<Instant> {
        match (self.doubtful.is_empty(), self.is_told) {
            (false, _) => Instant::now().checked_add(A_BREATH),
            (true, true) => None,
            (true, false) => Instant::now().checked_add(SELDOMEST),
        }
    }

    /// What of the box leads around a cover that was put back.
    fn held(&mut self, init: i32) -> Result<Option<PathBuf>, Errno> {
        let names = |with_pinned: bool| -> Vec<PathBuf> {
            let doubtful = self.doubtful.iter();
            let wanted = doubtful.filter(|kept| with_pinned || kept.how != How::Pinned);
            wanted.map(|kept| kept.path.clone()).collect()
        };
        let look = Look {
            init,
            uncovered: &names(true),
            covered: &names(false),
            mounts: &self.mounts.mounts()?,
            since: self.since,
        };
        let held = look.held();
        if held.is_none() {
            self.doubtful.clear();
            self.holds = 0;
        }
        Ok(held)
    }

    fn follow(&mut self, path: &Path) {
        let flags = WatchFlags::MOVE_SELF | WatchFlags::DONT_FOLLOW;
        let followed = match &self.moves {
            Some(moves) => inotify::add_watch(moves, path, flags).map(drop),
            None => Err(Errno::MFILE),
        };
        // What is gone already is missing in the table.
        self.is_told &= matches!(followed, Ok(()) | Err(Errno::NOENT | Errno::NOTDIR));
    }

    fn lost(&self) -> Result<Vec<Kept>, Errno> {
        if let Some(moves) = &self.moves {
            while rustix::io::read(moves, &mut [0u8; 4096]).is_ok_and(|read| read > 0) {}
        }
        let there = self.mounts.points()?;
        let lost = self.kept.iter().filter(|kept| !there.contains(&kept.path));
        Ok(lost.cloned().collect())
    }
}

/// What in a plan hangs on a name of the host's: what is mounted in a tree of it. What lies in a directory of the box's own
/// is out of the host's reach, and so are an overlay's names.
fn at_risk(plan: &Plan) -> Vec<Kept> {
    let entries: HashMap<&[u8], &View> = plan
        .view
        .iter()
        .map(|entry| (entry.path.as_os_str().as_bytes(), entry))
        .collect();
    let around = |path: &Path| {
        let mut above = path.ancestors().skip(1);
        above.find_map(|above| entries.get(above.as_os_str().as_bytes()))
    };
    let kept = plan.view.iter().filter_map(|entry| {
        let outer = around(&entry.path)?;
        let Shows::Host {
            source: tree,
            access: outer_access,
            ..
        } = &outer.shows
        else {
            return None;
        };
        let is_at_home = tree == &outer.path;
        let how = match &entry.shows {
            // The host has it by another name.
            _ if !is_at_home => How::Fixed,
            Shows::Hidden(_) | Shows::StandIn(_) => How::Void,
            Shows::Host { source, access, .. } => {
                match (source == &entry.path, access, outer_access) {
                    (true, Access::Read, _) => How::ReadOnly,
                    (true, Access::Write, Access::Write) => How::Pinned,
                    // A protected file, at the place of the link that leads to it.
                    (false, Access::Read, _) => How::Void,
                    (_, Access::Write, _) => How::Fixed,
                }
            }
            Shows::Private { .. } | Shows::Frame | Shows::Overlay { .. } => How::Fixed,
            Shows::Link(_) => return None,
        };
        let path = entry.path.clone();
        Some(Kept { path, how })
    });
    kept.collect()
}

impl Keeper<'_> {
    /// Looks whether a cover is lost, and puts it back; ends the box where that can't be done.
    pub(super) fn look_after_covers(&mut self) {
        let Some(covers) = self
            .covers
            .as_ref()
            .filter(|_| !self.emptied && !self.doomed)
        else {
            self.covers_look = None;
            return;
        };
        match covers.lost() {
            Ok(lost) if lost.is_empty() && covers.doubtful.is_empty() => {}
            Ok(lost) => {
                if self.mend(lost).is_err() {
                    self.kill(KilledBy::Killed { by: LOST_COVER });
                }
            }
            Err(_) => self.kill(KilledBy::Killed { by: LOST_COVER }),
        }
        self.covers_look = self.covers.as_ref().and_then(Covers::next_look);
    }

    fn mend(&mut self, mut lost: Vec<Kept>) -> Result<(), Errno> {
        let mendable = self.covers.as_ref().is_some_and(|covers| covers.mendable);
        let paused = Pause::of(self.reins);
        let mut told = HashSet::new();
        if !mendable {
            self.tell_lost(&lost, &mut told);
            return Err(Errno::NOTSUP);
        }
        if !self.await_still() {
            self.tell_lost(&lost, &mut told);
            return match self.emptied {
                true => Ok(()),
                false => Err(Errno::BUSY),
            };
        }
        // Once everything holds still, what was lost since is lost just the same.
        for _ in 0..ROUNDS {
            self.tell_lost(&lost, &mut told);
            self.doubt(&lost);
            // The host may go on changing names meanwhile: then this is tried again.
            let _ = self.put_back(lost);
            lost = match &self.covers {
                Some(covers) => covers.lost()?,
                None => Vec::new(),
            };
            if !matches!(self.reins.state(), BoxState::Frozen { .. }) {
                return Err(Errno::BUSY);
            }
            if lost.is_empty() {
                self.look_for_holds()?;
                return paused.end();
            }
        }
        Err(Errno::AGAIN)
    }

    fn doubt(&mut self, lost: &[Kept]) {
        let Some(covers) = &mut self.covers else {
            return;
        };
        for kept in lost {
            if !covers.doubtful.iter().any(|known| known.path == kept.path) {
                covers.doubtful.push(kept.clone());
            }
        }
    }

    /// A cover that is there again is none for whoever got hold of what is below it. An error where that is so for too long.
    fn look_for_holds(&mut self) -> Result<(), Errno> {
        let (init, is_free) = (self.launched.pid(), !self.reins.is_held_by_others());
        let Some(covers) = &mut self.covers else {
            return Ok(());
        };
        let Some(held) = covers.held(init)? else {
            return Ok(());
        };
        // Who holds still lets go of nothing.
        covers.holds += u32::from(is_free);
        if covers.holds <= HOLDS {
            return Ok(());
        }
        let name = printable(&held);
        let why = "when it was replaced or removed on the host, something in the box took hold of it and did not let go";
        self.violations
            .retain(|known| known.kind != COVER || known.name != name);
        self.tell_cover(name, why);
        Err(Errno::BUSY)
    }

    fn put_back(&mut self, lost: Vec<Kept>) -> Result<(), Errno> {
        let (Some(covers), Some(stand_ins)) = (&mut self.covers, &mut self.stand_ins) else {
            return Err(Errno::BADF);
        };
        if lost.is_empty() {
            return Ok(());
        }
        let mut put = Vec::new();
        let mut missing = Vec::new();
        for Kept { path, how } in lost {
            if missing.iter().any(|above| path.starts_with(above)) {
                continue;
            }
            let is_there = match rustix::fs::lstat(&path) {
                Ok(_) => true,
                Err(Errno::NOENT | Errno::NOTDIR) => false,
                Err(errno) => return Err(errno),
            };
            match (is_there, how) {
                (_, How::Fixed) => return Err(Errno::NOTSUP),
                (true, How::Void) => put.push((path, Cover::Void)),
                (true, How::ReadOnly) => put.push((path, Cover::Itself(Access::Read))),
                (true, How::Pinned) => put.push((path, Cover::Itself(Access::Write))),
                // What is below it has lost its cover too, and sees to this.
                (false, How::Pinned) => {}
                (false, How::Void | How::ReadOnly) => {
                    let first = first_missing(&path);
                    stand_ins
                        .put(&[(first.clone(), kind_of(&first, &covers.home))])
                        .map_err(|_| Errno::IO)?;
                    put.push((first.clone(), Cover::Void));
                    missing.push(first);
                }
            }
        }
        for first in missing {
            covers.kept.retain(|kept| !kept.path.starts_with(&first));
            let how = How::Void;
            covers.kept.push(Kept { path: first, how });
        }
        covers.mounts.put(&put, covers.user)?;
        put.iter().for_each(|(path, _)| covers.follow(path));
        Ok(())
    }

    /// Waits for a box that was told to hold still to do so, in a way that it can't undo.
    fn await_still(&mut self) -> bool {
        let until = Instant::now() + PATIENCE;
        loop {
            self.hear();
            match self.reins.state() {
                BoxState::Frozen { method } => return method != FreezeMethod::Signals,
                BoxState::Freezing if !self.emptied && Instant::now() < until => {}
                _ => return false,
            }
            let wait = match self.reins.needs_holding() {
                true => {
                    self.reins.hold_still();
                    LONGEST_LOOK
                }
                false => Duration::from_millis(1),
            };
            let events = [self.launched.handle(), self.launched.events()];
            let mut events = events.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            let wait = Timespec::try_from(wait).ok();
            let _ = poll(&mut events, wait.as_ref());
        }
    }

    fn tell_lost(&mut self, lost: &[Kept], told: &mut HashSet<PathBuf>) {
        for Kept { path, how } in lost {
            // A directory that is held in its place has nothing to hide itself.
            if *how == How::Pinned || !told.insert(path.clone()) {
                continue;
            }
            let name = printable(path);
            let known = self.violations.iter_mut();
            let mut known = known.filter(|known| known.kind == COVER && known.name == name);
            if let Some(known) = known.next() {
                known.count += 1;
                self.attendant.violated(known);
                continue;
            }
            let why = "it was replaced or removed on the host, and for a moment the box could read and change what is there";
            self.tell_cover(name, why);
        }
    }

    fn tell_cover(&mut self, name: String, why: &str) {
        let hint = "look at it before you use it; with `workspace: overlay` nothing outside can uncover it";
        let violation = Violation {
            kind: COVER,
            name,
            count: 1,
            why: why.to_owned(),
            hint: Some(hint.to_owned()),
        };
        self.attendant.violated(&violation);
        self.violations.push(violation);
    }
}

impl Keeper<'_> {
    /// Looks at what there is for git, now that nothing of the box writes any more.
    pub(super) fn judge_repositories(&mut self, judged: &Judged) {
        let lost = self.violations.iter().filter(|known| known.kind == COVER);
        let uncovered = lost.map(|known| PathBuf::from(&known.name)).collect();
        for finding in judge(judged, &uncovered) {
            self.attendant.violated(&finding);
            self.violations.push(finding);
        }
    }
}

/// The kind of violation.
const COVER: &str = "cover";

/// The uppermost part of a path that is not there.
fn first_missing(path: &Path) -> PathBuf {
    let is_missing = |path: &&Path| rustix::fs::lstat(*path).is_err();
    let missing = path.ancestors().take_while(is_missing).last();
    missing.unwrap_or(path).to_owned()
}

/// A box that is held still for a moment, whoever else holds it.
struct Pause<'r>(&'r Reins);

impl<'r> Pause<'r> {
    fn of(reins: &'r Reins) -> Self {
        // One that does not take the order will not be seen still either.
        let _ = reins.pause();
        Self(reins)
    }

    /// Lets it go on.
    fn end(self) -> Result<(), Errno> {
        self.0.go_on().map_err(|_| Errno::IO)
    }
}
