//! The box's pid 1, and the way from a fresh copy of the keeper to the agent's first instruction.
//!
//! Nothing here may allocate, lock or panic: the process is a copy of one that may have had threads.

use super::message::{Kind, Message, Stage};
use super::mounts;
use super::script::{Script, Sheet};
use super::stay::stay;
use super::supplies::{Supplies, send_descriptors};
use super::view::{Foundation, enter, leave_host};
use super::ways;
use crate::plan::Watch;
use crate::sys::{self, SharedMemory, mount_flag};
use crate::tier::Descriptors;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::ffi::CStr;

/// What the new process starts with. What it is to do beyond that is still being written.
pub(super) struct Start<'a> {
    /// Where the script will be.
    pub(super) memory: &'a SharedMemory<Sheet>,
    pub(super) control: BorrowedFd<'a>,
    /// Where descriptors come from that the keeper has for it, in the order in which the script wants them.
    pub(super) supplies: Supplies<'a>,
    pub(super) groups: Groups,
    /// What its network leads to, if it is not closed.
    pub(super) wiring: Option<ways::Wiring<&'a [u8]>>,
    /// The port of its loopback that the keeper listens on.
    pub(super) answered_port: Option<u16>,
    /// How large the private file system may grow.
    pub(super) private_size: &'a CStr,
    /// Who it is in its own user namespace.
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// The capabilities, of that namespace only, that what it executes has, and whatever that starts at most.
    pub(super) rights: u32,
    pub(super) stdio: [BorrowedFd<'a>; 3],
    pub(super) user_map: UserMap<'a>,
    pub(super) terminal: Terminal,
    /// Whether the keeper wants a handle on the box's /proc.
    pub(super) send_proc: bool,
    /// What the program's process waits for before its first instruction.
    pub(super) gate: BorrowedFd<'a>,
    /// The keeper's process: readable once it is gone.
    pub(super) keeper: BorrowedFd<'a>,
}

/// What is left to do about control groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Groups {
    /// Nothing: there are none, or it was born into them.
    None,
    /// The keeper sends the files by which to enter them, all at once.
    Enter,
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
    let umask = rustix::process::umask(Mode::empty());
    let Err(failure) = go_through(start, umask);
    fail(start.control, &failure)
}

fn go_through(start: &Start<'_>, umask: Mode) -> Result<std::convert::Infallible, Failure> {
    die_with_keeper(start)?;
    let foundation = prepare(start)?;
    let script = await_script(start)?;
    enclose(start, script, &foundation)?;
    enter_groups(start).map_err(at(Stage::ControlGroup))?;
    // From here on its control group looks like the top one.
    sys::hide_cgroup().map_err(at(Stage::ControlGroup))?;
    let sockets = match script.has_entry {
        false => None,
        true => Some(start.supplies.take().map_err(at(Stage::Network))?),
    };
    let sightings = match script.watch {
        Watch::Nothing => None,
        Watch::Files => Some(start.supplies.take().map_err(at(Stage::Processes))?),
    };
    drop(foundation);
    begin(
        &Furnished {
            start,
            script,
            sockets: sockets.as_ref().map(AsFd::as_fd),
            sightings: sightings.as_ref().map(AsFd::as_fd),
        },
        umask,
    )
}

/// A start that has its script.
pub(super) struct Furnished<'a> {
    pub(super) start: &'a Start<'a>,
    pub(super) script: &'a Script<'a>,
    /// Where the keeper asks for sockets of the box's, if it may.
    pub(super) sockets: Option<BorrowedFd<'a>>,
    /// Where the keeper hears what the box does, if it is watched.
    pub(super) sightings: Option<BorrowedFd<'a>>,
}

fn fail(control: BorrowedFd<'_>, failure: &Failure) -> ! {
    let place = failure.stage as i32 | (failure.step as i32) << 8;
    let _ = Message::new(Kind::Failed, place, failure.errno.raw_os_error()).send(control);
    sys::exit_now(1)
}

/// All that can be done before anybody knows what the box will show: it is done while the keeper finds that out.
fn prepare(start: &Start<'_>) -> Result<Foundation, Failure> {
    sys::leave_namespaces().map_err(at(Stage::Namespaces))?;
    become_box_user(start)?;
    let _ = rustix::system::sethostname(b"belljar");
    sys::raise_loopback().map_err(at(Stage::Loopback))?;
    bound_buffers();
    sys::bound_capabilities(start.rights).map_err(at(Stage::Capabilities))?;
    let foundation = Foundation::lay(start.private_size)?;
    if let Some(wiring) = start.wiring {
        ways::open(wiring, start.control).map_err(at(Stage::Network))?;
    }
    if let Some(port) = start.answered_port {
        ways::answer_at(port, start.control).map_err(at(Stage::Network))?;
    }
    Ok(foundation)
}

/// What one connection may hold in the kernel at most: all go to this host's own keeper, and none is long. A host whose
/// `/proc/sys` nobody may write to keeps its own bounds, which are larger, and no less the host's.
fn bound_buffers() {
    const MOST: [(&CStr, &[u8]); 2] = [
        (c"/proc/sys/net/ipv4/tcp_rmem", b"4096 131072 1048576"),
        (c"/proc/sys/net/ipv4/tcp_wmem", b"4096 16384 1048576"),
    ];
    for (file, bounds) in MOST {
        // The names lead to those of whoever opens them.
        let opened = rustix::fs::open(file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
        let _ = opened.and_then(|file| rustix::io::write(file, bounds));
    }
}

/// Before there is any process but this one. The keeper makes the groups while the view is built.
fn enter_groups(start: &Start<'_>) -> Result<(), Errno> {
    if start.groups == Groups::None {
        return Ok(());
    }
    // "0" in a v1 `tasks` file moves the writer alone, which needs no system-wide lock: 0.02 ms instead of 11.
    rustix::io::write(start.supplies.take()?, b"0")?;
    while let Some(entrance) = start.supplies.in_stock() {
        rustix::io::write(entrance, b"0")?;
    }
    Ok(())
}

fn await_script<'a>(start: &Start<'a>) -> Result<&'a Script<'a>, Failure> {
    let written = match Message::receive(start.control, RecvFlags::empty()) {
        Ok(Some(Message {
            kind: Kind::Written,
            ..
        })) => match start.memory.join() {
            Ok(()) => start.memory.published().ok_or(Errno::IO),
            Err(errno) => Err(errno),
        },
        Ok(_) => Err(Errno::CONNRESET),
        Err(errno) => Err(errno),
    };
    written.map_err(at(Stage::View))
}

/// Everything up to the point where the view is the root.
fn enclose(start: &Start<'_>, script: &Script<'_>, foundation: &Foundation) -> Result<(), Failure> {
    foundation.build(start, script)?;
    let root = foundation.root();
    enter(root).map_err(at(Stage::Pivot))?;
    sys::set_mount_flags(root, mount_flag::READ_ONLY, false, None).map_err(at(Stage::Root))
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
            sys::become_user(start.uid, start.gid).map_err(at(Stage::User))?;
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

/// What init tells the agent's process when the host's root is out of reach.
const GONE: &[u8; 4] = b"gone";

/// Forks the agent's process and stays as pid 1.
fn begin(furnished: &Furnished<'_>, umask: Mode) -> Result<std::convert::Infallible, Failure> {
    let start = furnished.start;
    let stage = at(Stage::Processes);
    let children = sys::watch_children().map_err(&stage)?;
    let (ours, theirs) = rustix::net::socketpair(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::SEQPACKET,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )
    .map_err(&stage)?;
    mounts::send(start.control).map_err(&stage)?;
    if start.send_proc {
        let directory = rustix::fs::open(
            c"/proc",
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        );
        directory
            .and_then(|fd| send_descriptors(start.control, &[fd.as_fd()]))
            .map_err(&stage)?;
        // Without it, children that nobody waits for would take their CPU time with them. Only where it matters: the
        // first counter on a host makes the kernel wait.
        if furnished.script.counts_cpu
            && let Ok(counter) = sys::open_cpu_counter()
        {
            send_descriptors(start.control, &[counter.as_fd()]).map_err(&stage)?;
        }
    }
    let main = sys::fork().map_err(&stage)?;
    if main == 0 {
        drop(ours);
        rustix::process::umask(umask);
        let Err(failure) = become_agent(furnished, theirs.as_fd());
        fail(start.control, &failure)
    }
    drop(theirs);
    // The kernel waits for all processors here, while the agent's process puts its own walls up.
    leave_host().map_err(at(Stage::Pivot))?;
    rustix::io::write(&ours, GONE).map_err(&stage)?;
    let listener = Supplies::new(ours.as_fd()).take().ok();
    drop(ours);
    stay(furnished, main, &children, listener)
}

/// From a copy of init to the agent's program.
fn become_agent(
    furnished: &Furnished<'_>,
    init: BorrowedFd<'_>,
) -> Result<std::convert::Infallible, Failure> {
    let Furnished { start, script, .. } = furnished;
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
    if script.descriptors == Descriptors::Many {
        crate::descriptors::make_room();
    }
    rustix::process::chdir(script.workdir).map_err(at(Stage::Workdir))?;
    rustix::thread::set_no_new_privs(true).map_err(at(Stage::Capabilities))?;
    if let Some(landlock) = &script.landlock {
        landlock.enforce().map_err(at(Stage::Landlock))?;
    }
    sys::drop_capabilities(start.rights).map_err(at(Stage::Capabilities))?;
    let listener = sys::install_filter(script.filter).map_err(at(Stage::Seccomp))?;
    send_descriptors(init, &[listener.as_fd()]).map_err(at(Stage::Seccomp))?;
    drop(listener);
    // Last, because a low limit on open files would be in our own way.
    for (resource, value) in script.limits {
        sys::set_limit(*resource, *value).map_err(at(Stage::Limits))?;
    }
    if let Some(files) = script.usual_files {
        sys::set_soft_limit(libc::RLIMIT_NOFILE, files).map_err(at(Stage::Limits))?;
    }
    // The last wall is init's: the host's root is gone. An init that fails there takes this process with it.
    let mut word = [0; GONE.len()];
    match rustix::io::read(init, &mut word) {
        Ok(_) if word == *GONE => {}
        Ok(_) => return Err(at(Stage::Pivot)(Errno::CONNRESET)),
        Err(errno) => return Err(at(Stage::Pivot)(errno)),
    }
    Message::new(Kind::Applied, 0, 0)
        .send(start.control)
        .map_err(at(Stage::Execute))?;
    await_go(start.gate).map_err(at(Stage::Admission))?;
    let errno = sys::execute(script.program, script.argv, script.env);
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
