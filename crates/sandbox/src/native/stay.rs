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
use super::told::{Said, Told};
use super::ways;
use crate::sys::{self, ChildState, Notification, Reply};
use crate::told::{FORKS, Heard, ProgramEnd, Tally};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::RecvFlags;

/// What init remembers while it lives.
struct Stay<'a> {
    control: BorrowedFd<'a>,
    script: &'a Script<'a>,
    /// The program's process, until that has ended: its number may be another's then.
    main: Option<i32>,
    listener: Option<OwnedFd>,
    /// Where sockets are asked for.
    sockets: Option<BorrowedFd<'a>>,
    /// How often each rule was hit.
    tally: Tally,
    /// What the program's own kernel says, where it has one.
    told: Option<Told<'a>>,
    /// Where the keeper hears what the box does.
    sightings: Option<BorrowedFd<'a>>,
    reach: peer::Reach<'a>,
    /// Who connects in its place.
    helpers: peer::Helpers,
    /// The rule by which it was asked to.
    connects: usize,
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
        main: Some(main),
        listener,
        sockets: furnished.sockets,
        tally: Tally::new(),
        told: script.told.map(Told::listen),
        sightings: furnished.sightings,
        reach,
        helpers: peer::Helpers::new(),
        connects: 0,
        pace: Pace::Move,
    };
    // What was said before anybody listened.
    stay.follow_told();
    loop {
        let told = stay.told.as_ref();
        let mut sources = [
            PollFd::new(children, PollFlags::IN),
            PollFd::from_borrowed_fd(
                told.and_then(Told::news).unwrap_or(start.control),
                PollFlags::IN,
            ),
            PollFd::from_borrowed_fd(start.control, PollFlags::IN),
            PollFd::from_borrowed_fd(
                stay.listener
                    .as_ref()
                    .map_or(start.control, |fd| fd.as_fd()),
                PollFlags::IN,
            ),
            PollFd::from_borrowed_fd(stay.sockets.unwrap_or(start.control), PollFlags::IN),
        ];
        let longest = told.and_then(Told::longest_wait);
        match poll(&mut sources, longest.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(errno) => stay.break_off(Source::Waiting, errno),
        }
        let [child, news, control, asked, wanted] = sources.each_ref().map(PollFd::revents);
        let is_closed = |flags: PollFlags| flags.contains(PollFlags::NVAL);
        for (source, flags) in [
            (Source::Control, control),
            (Source::Children, child),
            (Source::Calls, asked),
            (Source::Sockets, wanted),
        ] {
            if is_closed(flags) {
                stay.break_off(source, Errno::BADF);
            }
        }
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
        {
            match ways::answer(channel) {
                Ok(()) | Err(Errno::AGAIN | Errno::INTR) => {}
                // Nobody will ask any more.
                Err(Errno::CONNRESET | Errno::PIPE) => stay.sockets = None,
                Err(errno) => stay.break_off(Source::Sockets, errno),
            }
        }
        if stay.told.is_some() && (longest.is_some() || !news.is_empty()) {
            stay.follow_told();
        }
        if !child.is_empty() {
            match sys::take_signal(children.as_fd()) {
                Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
                Err(errno) => stay.break_off(Source::Children, errno),
            }
            stay.reap();
        }
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
            match (signal, stay.main.and_then(rustix::process::Pid::from_raw)) {
                (Some(signal), Some(pid)) => {
                    let _ = rustix::process::kill_process(pid, signal);
                }
                // Whatever the program left behind is meant now.
                (Some(signal), None) => sys::signal_all(signal.as_raw()),
                (None, _) => {}
            }
            let _ = Message::new(Kind::Signalled, a, 0).send(stay.control);
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
        Ok(Some(_)) | Err(Errno::AGAIN | Errno::INTR) => {}
        Err(errno) => stay.break_off(Source::Control, errno),
    }
}

/// What init waits for. If it can't any more it ends, and the box with it: one that nobody can hold must not go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub(super) enum Source {
    Waiting = 0,
    Control = 1,
    Children = 2,
    Calls = 3,
    Sockets = 4,
}

impl Source {
    /// What failed, in words for people.
    pub(super) fn name(number: i32) -> &'static str {
        match number {
            0 => "waiting",
            1 => "hearing its keeper",
            2 => "hearing of its children",
            3 => "hearing of system calls",
            4 => "hearing who wants a socket",
            _ => "its work",
        }
    }
}

impl Stay<'_> {
    /// Ends init, and with it the box. Never returns.
    fn break_off(&self, source: Source, errno: Errno) -> ! {
        let _ = Message::new(Kind::Broken, source as i32, errno.raw_os_error()).send(self.control);
        sys::exit_now(1)
    }

    fn reap(&mut self) {
        loop {
            match sys::next_child_state() {
                ChildState::Ended { pid, status } if self.main == Some(pid) => {
                    self.main = None;
                    let _ = self.end_of_program(status).send(self.control);
                }
                ChildState::Stopped { pid, .. }
                    if self.pace == Pace::Move && stillness::release_late(pid) => {}
                ChildState::Stopped { pid, signal, .. } if self.main == Some(pid) => {
                    let _ = Message::new(Kind::MainStopped, signal, 0).send(self.control);
                }
                ChildState::Ended { pid, status } => {
                    if self.helpers.ended(pid, status) {
                        self.count(self.connects);
                    }
                }
                ChildState::Stopped { .. } => {}
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
    fn end_of_program(&mut self, status: i32) -> Message {
        if self.told.is_none() {
            return Message::new(Kind::MainEnded, status, 0);
        }
        match self.hear_told(Heard::All).and_then(|said| said.end) {
            Some(ProgramEnd::NotStarted(errno)) => {
                Message::new(Kind::Failed, Stage::Execute as i32, errno.raw_os_error())
            }
            Some(ProgramEnd::Ended(status)) => Message::new(Kind::MainEnded, status, 0),
            // Somebody ended it.
            None if libc::WIFSIGNALED(status) => Message::new(Kind::MainEnded, status, 0),
            None => Message::new(Kind::KernelEnded, status, 0),
        }
    }

    /// A kernel whose program is gone is not needed any more, and takes its time to clear up.
    fn follow_told(&mut self) {
        if self
            .hear_told(Heard::SoFar)
            .is_some_and(|said| said.is_over)
        {
            sys::signal_all(libc::SIGKILL);
        }
    }

    /// Passes on what the program's own kernel refused; and says what is told of the program's end.
    fn hear_told(&mut self, heard: Heard) -> Option<Said> {
        let (control, first) = (self.control, self.script.rules.len());
        self.told.as_mut()?.hear(heard, |which, hits| {
            let message = match which {
                FORKS => Message::new(Kind::ForksRefused, amount(hits), 0),
                rule => Message::new(Kind::Violation, (first + rule) as i32, amount(hits)),
            };
            let _ = message.send(control);
        })
    }

    fn answer(&mut self) {
        let Some(listener) = self.listener.as_ref().map(|fd| fd.as_fd()) else {
            return;
        };
        let call = match Notification::receive(listener) {
            Ok(call) => call,
            // Whoever called has died meanwhile.
            Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => return,
            Err(errno) => self.break_off(Source::Calls, errno),
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
                self.connects = number;
                peer::connect(&call, listener, &self.reach, &mut self.helpers, tell);
            }
            Some(Verdict::Report(errno) | Verdict::Trace(errno) | Verdict::Fail(errno)) => {
                call.answer(listener, Reply::Fail(errno));
                self.count(number);
            }
            Some(Verdict::Answer(value)) => call.answer(listener, Reply::Value(value)),
            Some(Verdict::Watch(watched)) => {
                if let Some(channel) = self.sightings {
                    sight::note(&call, watched, listener, channel);
                }
                call.answer(listener, Reply::GoOn);
            }
            None => call.answer(listener, Reply::Fail(Errno::PERM)),
        }
    }

    /// An agent that hammers a wall must not drown its keeper: see [`Tally`].
    fn count(&mut self, rule: usize) {
        if let Some(hits) = self.tally.count(rule) {
            let _ = Message::new(Kind::Violation, rule as i32, amount(hits)).send(self.control);
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
        for (rule, hits) in self.tally.sums() {
            let _ = Message::new(Kind::Violation, rule as i32, amount(hits)).send(self.control);
        }
    }
}

fn amount(hits: u32) -> i32 {
    i32::try_from(hits).unwrap_or(i32::MAX)
}
