//! The life of the box's pid 1 once its program is on its way: it reaps, passes signals on, and answers the filter's
//! questions, until the last process of the box is gone. Nothing here may allocate, lock or panic.

use super::filter::rule_of;
use super::init::Furnished;
use super::message::{Kind, Message, Stage};
use super::peer;
use super::rules::Verdict;
use super::script::Script;
use super::sight;
use super::stillness::{self, Stillness};
use super::ways;
use crate::sys::{self, ChildState, Notification, Reply};
use crate::tier::ProgramEnd;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::ffi::CStr;

/// What init remembers while it lives.
struct Stay<'a> {
    control: BorrowedFd<'a>,
    script: &'a Script<'a>,
    main: i32,
    listener: Option<OwnedFd>,
    /// Where sockets are asked for.
    sockets: Option<BorrowedFd<'a>>,
    /// How often each rule was hit.
    hits: [u32; 128],
    /// Where the keeper hears what the box does.
    sightings: Option<BorrowedFd<'a>>,
    reach: peer::Reach<'a>,
    /// Whether all others are to hold still.
    pace: Pace,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Pace {
    Move,
    HoldStill,
}

/// Pid 1's life.
pub(super) fn stay(
    furnished: &Furnished<'_>,
    main: i32,
    children: &OwnedFd,
    listener: Option<OwnedFd>,
) -> ! {
    let Furnished { start, script, .. } = furnished;
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    // The keeper's may hold secrets.
    sys::forget_environment();
    // To look into the processes whose calls it answers; within the box's user namespace only.
    let _ = sys::drop_capabilities(sys::CAP_SYS_PTRACE);
    release_descriptors(furnished, children, listener.as_ref());
    if let Some(listener) = &listener {
        Notification::prefer_sync(listener.as_fd());
    }
    let reach = peer::Reach {
        private: peer::PrivateDevices::of(script.private_places),
        doors: script.doors,
        sightings: furnished.sightings,
    };
    let mut stay = Stay {
        control: start.control,
        script,
        main,
        listener,
        sockets: furnished.sockets,
        hits: [0; 128],
        sightings: furnished.sightings,
        reach,
        pace: Pace::Move,
    };
    loop {
        let mut sources = [
            PollFd::new(children, PollFlags::IN),
            PollFd::from_borrowed_fd(start.control, PollFlags::IN),
            PollFd::from_borrowed_fd(
                stay.listener
                    .as_ref()
                    .map_or(start.control, |fd| fd.as_fd()),
                PollFlags::IN,
            ),
            PollFd::from_borrowed_fd(stay.sockets.unwrap_or(start.control), PollFlags::IN),
        ];
        let _ = poll(&mut sources, None);
        let [child, control, asked, wanted] = sources.each_ref().map(PollFd::revents);
        if !control.is_empty() {
            obey(&mut stay);
        }
        if stay.listener.is_some() && asked.contains(PollFlags::IN) {
            stay.answer();
        } else if asked.intersects(PollFlags::HUP | PollFlags::ERR) {
            // The last filtered process is gone; so will be its listener.
            stay.listener = None;
        }
        if let Some(channel) = stay.sockets
            && !wanted.is_empty()
            && ways::answer(channel).is_err()
        {
            // Nobody will ask any more.
            stay.sockets = None;
        }
        if !child.is_empty() {
            let _ = sys::next_signal(children.as_fd());
            stay.reap();
        }
    }
}

fn read_end(file: &CStr) -> Option<ProgramEnd> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(file, flags, Mode::empty()).ok()?;
    let mut bytes = [0; ProgramEnd::SIZE];
    match rustix::io::read(file, &mut bytes) {
        Ok(ProgramEnd::SIZE) => ProgramEnd::decode(&bytes),
        _ => None,
    }
}

/// Keeps no pipe of the agent's open, and nothing else it has no use for.
fn release_descriptors(furnished: &Furnished<'_>, children: &OwnedFd, listener: Option<&OwnedFd>) {
    let mut keep = [
        furnished.start.control.as_raw_fd() as u32,
        children.as_raw_fd() as u32,
        listener.map_or(u32::MAX, |fd| fd.as_raw_fd() as u32),
        furnished
            .sockets
            .map_or(u32::MAX, |fd| fd.as_raw_fd() as u32),
        furnished
            .sightings
            .map_or(u32::MAX, |fd| fd.as_raw_fd() as u32),
    ];
    keep.sort_unstable();
    let mut from = 0;
    for fd in keep {
        if fd > from {
            sys::close_range(from, fd.saturating_sub(1));
        }
        from = fd.saturating_add(1);
    }
    if from != 0 {
        sys::close_range(from, u32::MAX);
    }
}

/// Does what the keeper says. A keeper that is gone says: end.
fn obey(stay: &mut Stay<'_>) {
    match Message::receive(stay.control, RecvFlags::DONTWAIT) {
        Ok(Some(Message {
            kind: Kind::Signal,
            a,
            ..
        })) => {
            let signal = rustix::process::Signal::from_named_raw(a);
            let pid = rustix::process::Pid::from_raw(stay.main);
            if let (Some(signal), Some(pid)) = (signal, pid) {
                let _ = rustix::process::kill_process(pid, signal);
            }
        }
        Ok(Some(Message {
            kind: Kind::Stop,
            a: order,
            ..
        })) => {
            stay.pace = Pace::HoldStill;
            let reached = stillness::stop_all();
            if reached != Stillness::Pending {
                let held = i32::from(reached == Stillness::Held);
                let _ = Message::new(Kind::Stopped, order, held).send(stay.control);
            }
        }
        Ok(Some(Message {
            kind: Kind::Continue,
            ..
        })) => {
            stay.pace = Pace::Move;
            stillness::continue_all();
        }
        Ok(None) => sys::exit_now(1),
        Ok(Some(_)) | Err(_) => {}
    }
}

impl Stay<'_> {
    fn reap(&mut self) {
        loop {
            match sys::next_child_state() {
                ChildState::Ended { pid, status } if pid == self.main => {
                    let _ = self.end_of_program(status).send(self.control);
                }
                ChildState::Stopped { pid, .. }
                    if self.pace == Pace::Move && stillness::release_late(pid) => {}
                ChildState::Stopped { pid, signal } if pid == self.main => {
                    let _ = Message::new(Kind::MainStopped, signal, 0).send(self.control);
                }
                ChildState::Ended { .. } | ChildState::Stopped { .. } => {}
                ChildState::NoneWaiting => return,
                ChildState::NoChildren => {
                    self.report_totals();
                    self.report_usage();
                    sys::exit_now(0)
                }
            }
        }
    }

    /// What to tell of the program, now that what was executed has ended with `status`.
    fn end_of_program(&self, status: i32) -> Message {
        match self.script.told_end.and_then(read_end) {
            Some(ProgramEnd::NotStarted(errno)) => {
                Message::new(Kind::Failed, Stage::Execute as i32, errno.raw_os_error())
            }
            Some(ProgramEnd::Ended(status)) => Message::new(Kind::MainEnded, status, 0),
            // It did not live to tell.
            None => Message::new(Kind::MainEnded, status, 0),
        }
    }

    fn answer(&mut self) {
        let Some(listener) = self.listener.as_ref().map(|fd| fd.as_fd()) else {
            return;
        };
        let Ok(call) = Notification::receive(listener) else {
            return;
        };
        let rules = self.script.rules;
        let Some(number) = rule_of(rules, call.number, &call.args) else {
            call.answer(listener, Reply::Fail(Errno::PERM));
            return;
        };
        match rules.get(number).map(|rule| rule.verdict) {
            Some(Verdict::Mediate) => {
                let control = self.control;
                let tell = || {
                    let _ = Message::new(Kind::Violation, number as i32, 1).send(control);
                };
                if peer::connect(&call, listener, &self.reach, tell) == peer::Outcome::HostSocket {
                    self.count(number);
                }
            }
            Some(Verdict::Report(errno)) | Some(Verdict::Fail(errno)) => {
                call.answer(listener, Reply::Fail(errno));
                self.count(number);
            }
            Some(Verdict::Watch(watched)) => {
                if let Some(channel) = self.sightings {
                    sight::note(&call, watched, listener, channel);
                }
                call.answer(listener, Reply::GoOn);
            }
            None => call.answer(listener, Reply::Fail(Errno::PERM)),
        }
    }

    /// Tells the keeper at 1, 2, 4, 8… hits: an agent that hammers a wall must not drown its keeper.
    fn count(&mut self, rule: usize) {
        let Some(hits) = self.hits.get_mut(rule) else {
            return;
        };
        *hits = hits.saturating_add(1);
        if hits.is_power_of_two() {
            let _ = Message::new(Kind::Violation, rule as i32, *hits as i32).send(self.control);
        }
    }

    /// The kernel tells the same once it has cleared up after us, which takes longer than all that is left to do.
    fn report_usage(&self) {
        let used = sys::own_usage();
        let seconds = i32::try_from(used.cpu.as_secs()).unwrap_or(i32::MAX);
        let micros = used.cpu.subsec_micros() as i32;
        let largest = i32::try_from(used.largest_process_bytes >> 10).unwrap_or(i32::MAX);
        let _ = Message::new(Kind::Used, seconds, micros).send(self.control);
        let _ = Message::new(Kind::Emptied, largest, 0).send(self.control);
    }

    fn report_totals(&self) {
        for (rule, hits) in self.hits.iter().enumerate().filter(|(_, hits)| **hits > 2) {
            let _ = Message::new(Kind::Violation, rule as i32, *hits as i32).send(self.control);
        }
    }
}
