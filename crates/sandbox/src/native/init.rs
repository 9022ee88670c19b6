//! The box's pid 1, and the way from a fresh copy of the keeper to the agent's first instruction.
//!
//! Nothing here may allocate, lock or panic: the process is a copy of one that may have had threads. After the start,
//! init reaps, passes signals on, and answers the filter's questions, until the last process of the box is gone.

use super::filter::rule_of;
use super::message::{Kind, Message, Stage};
use super::peer;
use super::rules::Verdict;
use super::script::{Landlock, Script};
use super::stillness::{self, Stillness};
use super::view::{build_view, enter};
use super::ways;
use crate::sys::{self, ChildState, Notification, Reply, mount_flag};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::ffi::CStr;

/// What the new process starts with.
pub(super) struct Start<'a> {
    pub(super) script: &'a Script,
    pub(super) control: BorrowedFd<'a>,
    /// Trees the keeper cloned, by number.
    pub(super) trees: &'a [OwnedFd],
    pub(super) stdio: [BorrowedFd<'a>; 3],
    pub(super) user_map: UserMap<'a>,
    pub(super) terminal: Terminal,
    /// Whether the keeper wants a handle on the box's /proc.
    pub(super) send_proc: bool,
    /// What the program's process waits for before its first instruction.
    pub(super) gate: BorrowedFd<'a>,
    /// The keeper's process: readable once it is gone.
    pub(super) keeper: BorrowedFd<'a>,
    /// Where the keeper asks for sockets of the box's, if it may.
    pub(super) sockets: Option<BorrowedFd<'a>>,
}

/// Who writes the user map.
pub(super) enum UserMap<'a> {
    /// Init: one user, itself.
    Own { uid: &'a CStr, gid: &'a CStr },
    /// The keeper, who may map others; init then becomes that user.
    Keeper,
}

/// What becomes of the controlling terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Terminal {
    /// None: the program gets a session of its own.
    Detached,
    /// The program's group becomes the terminal's foreground.
    Foreground,
    /// It shares the terminal but is in the background, as its keeper is.
    Background,
}

/// Where a launch failed: the stage, and for the view the step's number.
pub(super) struct Failure {
    pub(super) stage: Stage,
    pub(super) step: usize,
    pub(super) errno: Errno,
}

pub(super) fn at(stage: Stage) -> impl Fn(Errno) -> Failure {
    move |errno| Failure {
        stage,
        step: 0,
        errno,
    }
}

/// Runs as the box's pid 1. Never returns.
pub(super) fn run(start: &Start<'_>) -> ! {
    // What is made for the box does not depend on how its keeper happens to make files; what the agent makes does.
    let umask = rustix::process::umask(Mode::from_raw_mode(0o022));
    let Err(failure) = die_with_keeper(start)
        .and_then(|()| enclose(start))
        .and_then(|()| begin(start, umask));
    fail(start.control, &failure)
}

fn fail(control: BorrowedFd<'_>, failure: &Failure) -> ! {
    let place = failure.stage as i32 | (failure.step as i32) << 8;
    let _ = Message::new(Kind::Failed, place, failure.errno.raw_os_error()).send(control);
    sys::exit_now(1)
}

/// Everything up to the point where the view is the root.
fn enclose(start: &Start<'_>) -> Result<(), Failure> {
    for tasks in &start.script.cgroup_tasks {
        // "0" in a v1 `tasks` file moves the writer alone, which needs no system-wide lock: 0.02 ms instead of 11.
        rustix::io::write(tasks, b"0").map_err(at(Stage::ControlGroup))?;
    }
    become_box_user(start)?;
    // From here on its control group looks like the top one.
    sys::hide_cgroup().map_err(at(Stage::ControlGroup))?;
    let _ = rustix::system::sethostname(b"belljar");
    sys::raise_loopback().map_err(at(Stage::Loopback))?;
    if let Some(wiring) = &start.script.wiring {
        ways::open(wiring, start.control).map_err(at(Stage::Network))?;
    }
    let root = build_view(start)?;
    enter(root.as_fd()).map_err(at(Stage::Pivot))?;
    sys::set_mount_flags(root.as_fd(), mount_flag::READ_ONLY, false, None).map_err(at(Stage::Root))
}

fn become_box_user(start: &Start<'_>) -> Result<(), Failure> {
    match start.user_map {
        UserMap::Own { uid, gid } => {
            let put = |file: &CStr, text: &[u8]| -> Result<(), Errno> {
                let fd = rustix::fs::open(file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
                rustix::io::write(&fd, text).map(drop)
            };
            put(c"/proc/self/setgroups", b"deny")
                .and_then(|()| put(c"/proc/self/uid_map", uid.to_bytes()))
                .and_then(|()| put(c"/proc/self/gid_map", gid.to_bytes()))
                .map_err(at(Stage::UserMap))?;
        }
        UserMap::Keeper => {
            match Message::receive(start.control, RecvFlags::empty()) {
                Ok(Some(Message {
                    kind: Kind::Mapped, ..
                })) => {}
                Ok(_) => return Err(at(Stage::UserMap)(Errno::CONNRESET)),
                Err(errno) => return Err(at(Stage::UserMap)(errno)),
            }
            sys::become_user(start.script.uid, start.script.gid).map_err(at(Stage::User))?;
        }
    }
    // Once more: a change of user clears it.
    die_with_keeper(start)
}

fn die_with_keeper(start: &Start<'_>) -> Result<(), Failure> {
    die_with(start.keeper).map_err(at(Stage::User))
}

/// Has the kernel end this process with the thread that made it. A keeper that is gone already sends no signal any more,
/// and no socket or pipe of its tells: copies of the other end live on in boxes that were started at the same moment.
pub(super) fn die_with(keeper: BorrowedFd<'_>) -> Result<(), Errno> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    let mut gone = [PollFd::from_borrowed_fd(keeper, PollFlags::IN)];
    let now = rustix::event::Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    match poll(&mut gone, Some(&now))? {
        0 => Ok(()),
        _ => Err(Errno::SRCH),
    }
}

/// This process, for its children to hold.
pub(super) fn own_handle() -> Result<OwnedFd, Errno> {
    let flags = rustix::process::PidfdFlags::empty();
    rustix::process::pidfd_open(rustix::process::getpid(), flags)
}

/// Forks the agent's process and stays as pid 1.
fn begin(start: &Start<'_>, umask: Mode) -> Result<std::convert::Infallible, Failure> {
    let stage = at(Stage::Processes);
    let children = sys::watch_children().map_err(&stage)?;
    let (ours, theirs) = rustix::net::socketpair(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::SEQPACKET,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )
    .map_err(&stage)?;
    if start.send_proc {
        let directory = rustix::fs::open(
            c"/proc",
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        );
        directory
            .and_then(|fd| send_descriptor(start.control, fd.as_fd()))
            .map_err(&stage)?;
        // Without it, children that nobody waits for would take their CPU time with them. Only where it matters: the
        // first counter on a host makes the kernel wait.
        if start.script.counts_cpu
            && let Ok(counter) = sys::open_cpu_counter()
        {
            send_descriptor(start.control, counter.as_fd()).map_err(&stage)?;
        }
    }
    sys::empty_bounding_set().map_err(at(Stage::Capabilities))?;
    let main = sys::fork().map_err(&stage)?;
    if main == 0 {
        drop(ours);
        rustix::process::umask(umask);
        let Err(failure) = become_agent(start, theirs.as_fd());
        fail(start.control, &failure)
    }
    drop(theirs);
    let listener = receive_descriptor(ours.as_fd());
    drop(ours);
    stay(start, main, &children, listener)
}

/// From a copy of init to the agent's program.
fn become_agent(
    start: &Start<'_>,
    init: BorrowedFd<'_>,
) -> Result<std::convert::Infallible, Failure> {
    let script = start.script;
    take_terminal(start);
    sys::reset_signals();
    for (number, fd) in start.stdio.iter().enumerate() {
        let moved = match number {
            0 => rustix::stdio::dup2_stdin(fd),
            1 => rustix::stdio::dup2_stdout(fd),
            _ => rustix::stdio::dup2_stderr(fd),
        };
        moved.map_err(at(Stage::Processes))?;
    }
    sys::close_on_exec_from(3).map_err(at(Stage::Processes))?;
    rustix::process::chdir(script.workdir.as_c_str()).map_err(at(Stage::Workdir))?;
    rustix::thread::set_no_new_privs(true).map_err(at(Stage::Capabilities))?;
    if let Some(landlock) = &script.landlock {
        restrict_files(landlock).map_err(at(Stage::Landlock))?;
    }
    sys::drop_capabilities(0).map_err(at(Stage::Capabilities))?;
    let listener = sys::install_filter(&script.filter).map_err(at(Stage::Seccomp))?;
    send_descriptor(init, listener.as_fd()).map_err(at(Stage::Seccomp))?;
    drop(listener);
    // Last, because a low limit on open files would be in our own way.
    for (resource, value) in &script.limits {
        sys::set_limit(*resource, *value).map_err(at(Stage::Limits))?;
    }
    if let Some(files) = script.usual_files {
        sys::set_soft_limit(libc::RLIMIT_NOFILE, files).map_err(at(Stage::Limits))?;
    }
    Message::new(Kind::Applied, 0, 0)
        .send(start.control)
        .map_err(at(Stage::Execute))?;
    await_go(start.gate).map_err(at(Stage::Admission))?;
    let errno = sys::execute(&script.program, &script.argv, &script.env);
    Err(at(Stage::Execute)(errno))
}

/// Until the keeper opens the gate. Should it refuse, or die, it never does: then this process is killed here.
fn await_go(gate: BorrowedFd<'_>) -> Result<(), Errno> {
    loop {
        match rustix::io::read(gate, &mut [0u8; 8]) {
            Ok(8) => return Ok(()),
            Err(Errno::INTR) => {}
            Ok(_) => return Err(Errno::IO),
            Err(errno) => return Err(errno),
        }
    }
}

fn take_terminal(start: &Start<'_>) {
    match start.terminal {
        Terminal::Detached => {
            let _ = rustix::process::setsid();
        }
        // A group of its own, so that job control works inside. All signals are still blocked, SIGTTOU among them.
        Terminal::Foreground | Terminal::Background => {
            let _ = rustix::process::setpgid(None, None);
            if start.terminal == Terminal::Foreground
                && let Some(terminal) = start.stdio.iter().find(|fd| rustix::termios::isatty(fd))
            {
                sys::set_foreground(*terminal, rustix::process::getpid().as_raw_nonzero().get());
            }
        }
    }
}

fn restrict_files(landlock: &Landlock) -> Result<(), Errno> {
    let rules = sys::LandlockRules::new(landlock.abi, landlock.handled, landlock.scoped)?;
    for (path, rights) in &landlock.grants {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let place = rustix::fs::open(path.as_c_str(), flags, Mode::empty())?;
        // Rights that only directories have are refused on files.
        let is_directory = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(&place)?.st_mode)
            == rustix::fs::FileType::Directory;
        const FILE_RIGHTS: u64 = 1 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15;
        let rights = if is_directory {
            *rights
        } else {
            *rights & FILE_RIGHTS
        };
        rules.allow(place.as_fd(), rights)?;
    }
    rules.enforce()
}

fn send_descriptor(to: BorrowedFd<'_>, fd: BorrowedFd<'_>) -> Result<(), Errno> {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fds = [fd];
    ancillary.push(SendAncillaryMessage::ScmRights(&fds));
    sendmsg(
        to,
        &[std::io::IoSlice::new(b"fd")],
        &mut ancillary,
        SendFlags::NOSIGNAL,
    )
    .map(drop)
}

/// Receives a descriptor, or nothing when the other side is gone.
fn receive_descriptor(from: BorrowedFd<'_>) -> Option<OwnedFd> {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, recvmsg};
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0u8; Message::SIZE];
    let mut slices = [std::io::IoSliceMut::new(&mut bytes)];
    recvmsg(from, &mut slices, &mut ancillary, RecvFlags::CMSG_CLOEXEC).ok()?;
    ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    })
}

/// What init remembers while it lives.
struct Stay<'a> {
    start: &'a Start<'a>,
    main: i32,
    listener: Option<OwnedFd>,
    /// Where sockets are asked for.
    sockets: Option<BorrowedFd<'a>>,
    /// How often each rule was hit.
    hits: [u32; 128],
    reach: peer::Reach,
    /// Whether all others are to hold still.
    pace: Pace,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Pace {
    Move,
    HoldStill,
}

/// Pid 1's life.
fn stay(start: &Start<'_>, main: i32, children: &OwnedFd, listener: Option<OwnedFd>) -> ! {
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    // The keeper's may hold secrets.
    sys::forget_environment();
    // To look into the processes whose calls it answers; within the box's user namespace only.
    let _ = sys::drop_capabilities(sys::CAP_SYS_PTRACE);
    release_descriptors(start, children, listener.as_ref());
    if let Some(listener) = &listener {
        Notification::prefer_sync(listener.as_fd());
    }
    let reach = peer::Reach {
        private: peer::PrivateDevices::of(&start.script.private_places),
        door: start.script.door,
    };
    let mut stay = Stay {
        start,
        main,
        listener,
        sockets: start.sockets,
        hits: [0; 128],
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

/// Keeps no pipe of the agent's open, and nothing else it has no use for.
fn release_descriptors(start: &Start<'_>, children: &OwnedFd, listener: Option<&OwnedFd>) {
    let mut keep = [
        start.control.as_raw_fd() as u32,
        children.as_raw_fd() as u32,
        listener.map_or(u32::MAX, |fd| fd.as_raw_fd() as u32),
        start.sockets.map_or(u32::MAX, |fd| fd.as_raw_fd() as u32),
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
    match Message::receive(stay.start.control, RecvFlags::DONTWAIT) {
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
                let _ = Message::new(Kind::Stopped, order, held).send(stay.start.control);
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
                    let _ = Message::new(Kind::MainEnded, status, 0).send(self.start.control);
                }
                ChildState::Stopped { pid, .. }
                    if self.pace == Pace::Move && stillness::release_late(pid) => {}
                ChildState::Stopped { pid, signal } if pid == self.main => {
                    let _ = Message::new(Kind::MainStopped, signal, 0).send(self.start.control);
                }
                ChildState::Ended { .. } | ChildState::Stopped { .. } => {}
                ChildState::NoneWaiting => return,
                ChildState::NoChildren => {
                    self.report_totals();
                    let _ = Message::new(Kind::Emptied, 0, 0).send(self.start.control);
                    sys::exit_now(0)
                }
            }
        }
    }

    fn answer(&mut self) {
        let Some(listener) = self.listener.as_ref().map(|fd| fd.as_fd()) else {
            return;
        };
        let Ok(call) = Notification::receive(listener) else {
            return;
        };
        let rules = &self.start.script.rules;
        let Some(number) = rule_of(rules, call.number, &call.args) else {
            call.answer(listener, Reply::Fail(Errno::PERM));
            return;
        };
        match rules.get(number).map(|rule| rule.verdict) {
            Some(Verdict::Mediate) => {
                let control = self.start.control;
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
            let _ =
                Message::new(Kind::Violation, rule as i32, *hits as i32).send(self.start.control);
        }
    }

    fn report_totals(&self) {
        for (rule, hits) in self.hits.iter().enumerate().filter(|(_, hits)| **hits > 2) {
            let _ =
                Message::new(Kind::Violation, rule as i32, *hits as i32).send(self.start.control);
        }
    }
}
