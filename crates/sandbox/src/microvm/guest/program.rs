//! The guest's one program: how it comes to be, and what it says and hears.

use super::{BOX, Channel, Window, send};
use crate::microvm::wire::{Kind, PIECE, numbers};
use crate::native::{
    ALL_RIGHTS, COMMON_GRANTS, Landlock, Rule, Supplies, compile, send_descriptors,
};
use crate::order::{Order, Surroundings};
use crate::sys;
use crate::tier::rules_inside;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

/// A process that waits to become the program.
pub(super) struct Program {
    pub(super) pid: i32,
    ends: Option<Ends>,
    go: File,
    /// Where the listener of its filter comes from.
    filter: OwnedFd,
    failure: File,
}

/// Our ends of what the program reads and writes.
enum Ends {
    Pipes {
        input: OwnedFd,
        outputs: [OwnedFd; 2],
    },
    Terminal(OwnedFd),
}

/// The program's ends.
struct Theirs {
    stdin: OwnedFd,
    stdout: OwnedFd,
    stderr: OwnedFd,
    has_terminal: bool,
}

fn pipe() -> Result<(OwnedFd, OwnedFd), Errno> {
    rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
}

fn socket_pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    rustix::net::socketpair(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::SEQPACKET,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )
}

fn ends(order: &Order, surroundings: &Surroundings) -> Result<(Ends, Theirs), Errno> {
    if !surroundings.has_terminal {
        let (stdin, input) = pipe()?;
        let (output, stdout) = pipe()?;
        let (errors, stderr) = pipe()?;
        let theirs = Theirs {
            stdin,
            stdout,
            stderr,
            has_terminal: false,
        };
        let outputs = [output, errors];
        return Ok((Ends::Pipes { input, outputs }, theirs));
    }
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let ours = rustix::fs::open("/dev/pts/ptmx", flags, Mode::empty())?;
    rustix::pty::unlockpt(&ours)?;
    let open = rustix::pty::OpenptFlags::RDWR
        | rustix::pty::OpenptFlags::NOCTTY
        | rustix::pty::OpenptFlags::CLOEXEC;
    let stdin = rustix::pty::ioctl_tiocgptpeer(&ours, open)?;
    rustix::fs::fchown(
        &stdin,
        Some(rustix::fs::Uid::from_raw(order.uid)),
        Some(rustix::fs::Gid::from_raw(order.gid)),
    )?;
    let copy = || rustix::io::fcntl_dupfd_cloexec(&stdin, 3);
    let theirs = Theirs {
        stdout: copy()?,
        stderr: copy()?,
        stdin,
        has_terminal: true,
    };
    Ok((Ends::Terminal(ours), theirs))
}

/// Makes the process. Only while there is no other thread.
pub(super) fn prepare(order: &Order, surroundings: &Surroundings) -> Result<Program, Errno> {
    let (ours, theirs) = ends(order, surroundings)?;
    let (wait, go) = pipe()?;
    let (failure, failed) = pipe()?;
    let (filter, listener) = socket_pair()?;
    let pid = sys::fork()?;
    if pid != 0 {
        return Ok(Program {
            pid,
            ends: Some(ours),
            go: File::from(go),
            filter,
            failure: File::from(failure),
        });
    }
    drop((go, ours, failure, filter));
    let mut failed = File::from(failed);
    // An empty read: pid 1 gave up.
    let errno = match File::from(wait).read_exact(&mut [0]) {
        Ok(()) => match become_program(order, surroundings, theirs, listener.as_fd()) {
            Err(errno) => errno,
            Ok(never) => match never {},
        },
        Err(_) => Errno::CANCELED,
    };
    let _ = failed.write_all(&errno.raw_os_error().to_le_bytes());
    sys::exit_now(127)
}

/// What its filter refuses.
pub(super) fn rules(order: &Order) -> Vec<Rule> {
    rules_inside(order.spawn())
}

fn become_program(
    order: &Order,
    surroundings: &Surroundings,
    stdio: Theirs,
    listener: BorrowedFd<'_>,
) -> Result<std::convert::Infallible, Errno> {
    enter_box()?;
    rustix::thread::set_no_new_privs(true)?;
    restrict(order)?;
    rustix::process::setsid()?;
    if stdio.has_terminal {
        rustix::process::ioctl_tiocsctty(&stdio.stdin)?;
    }
    rustix::process::umask(Mode::from_raw_mode(surroundings.umask));
    for (resource, value) in &order.limits {
        sys::set_limit(*resource, *value)?;
    }
    sys::bound_capabilities(0)?;
    sys::become_user(order.uid, order.gid)?;
    sys::drop_capabilities(0)?;
    rustix::process::chdir(order.workdir.as_os_str())?;
    let mut command = Command::new(&order.program);
    if let Some((name, arguments)) = order.argv.split_first() {
        command.arg0(name).args(arguments);
    }
    command
        .env_clear()
        .envs(order.env.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::from(stdio.stdin))
        .stdout(Stdio::from(stdio.stdout))
        .stderr(Stdio::from(stdio.stderr));
    let asks = sys::install_filter(&compile(&rules(order)))?;
    send_descriptors(listener, &[asks.as_fd()])?;
    drop(asks);
    let error = command.exec();
    Err(error
        .raw_os_error()
        .map_or(Errno::IO, Errno::from_raw_os_error))
}

/// Leaves what is pid 1's behind: other mounts, names, objects and control groups than the box's are not there for this process.
/// The network is left as it is, for it leads to pid 1 and nowhere else.
fn enter_box() -> Result<(), Errno> {
    sys::leave_pid_1s_namespaces()?;
    for place in ["/dev", "/proc", "/sys"] {
        rustix::mount::unmount(place, UnmountFlags::DETACH)?;
    }
    rustix::process::chdir(BOX)?;
    // Over what the guest was started from, which has no mount that could be taken away.
    rustix::mount::mount_move(".", "/")?;
    rustix::process::chroot(".")
}

/// The line around what may be changed, which the bridge holds on the host, by the guest's kernel.
fn restrict(order: &Order) -> Result<(), Errno> {
    let writable = order
        .writable
        .iter()
        .map(|path| CString::new(path.as_bytes()).map_err(|_| Errno::INVAL))
        .collect::<Result<Vec<_>, _>>()?;
    let grants: Vec<_> = writable
        .iter()
        .map(|path| (path.as_c_str(), ALL_RIGHTS))
        .chain(COMMON_GRANTS)
        .collect();
    let abi = sys::landlock_abi().ok_or(Errno::OPNOTSUPP)?;
    Landlock::at(abi, &grants).enforce()
}

/// Holds the program, and all it starts, to what they may use together.
pub(super) fn limit(order: &Order, pid: i32) -> std::io::Result<()> {
    std::fs::write("/sys/cgroup.subtree_control", "+memory +pids")?;
    std::fs::create_dir("/sys/program")?;
    if order.memory_bytes > 0 {
        std::fs::write("/sys/program/memory.max", order.memory_bytes.to_string())?;
        // One that needs too much takes the others with it, as in every tier.
        std::fs::write("/sys/program/memory.oom.group", "1")?;
    }
    if order.processes > 0 {
        std::fs::write("/sys/program/pids.max", order.processes.to_string())?;
    }
    std::fs::write("/sys/program/cgroup.procs", pid.to_string())
}

/// What carries the program's words.
pub(super) struct Streams {
    pub(super) input: mpsc::Sender<Vec<u8>>,
    pub(super) windows: [Arc<Window>; 2],
    pub(super) terminal: Option<OwnedFd>,
    pub(super) copiers: Vec<JoinHandle<()>>,
}

impl Program {
    /// Begins to carry what it says and hears.
    pub(super) fn attend(&mut self, channel: &Channel) -> std::io::Result<Streams> {
        let windows = [Window::new(), Window::new()];
        let (input, pieces) = mpsc::channel();
        let (to, from, terminal) = match self.ends.take() {
            Some(Ends::Pipes { input, outputs }) => (File::from(input), Vec::from(outputs), None),
            Some(Ends::Terminal(ours)) => {
                let (to, terminal) = (ours.try_clone()?, ours.try_clone()?);
                (File::from(to), vec![ours], Some(terminal))
            }
            None => return Err(std::io::ErrorKind::InvalidInput.into()),
        };
        let consumer = Arc::clone(channel);
        std::thread::spawn(move || pass_input(to, &pieces, &consumer));
        let mut copiers = Vec::new();
        for ((from, window), kind) in from
            .into_iter()
            .zip(&windows)
            .zip([Kind::Output, Kind::Errors])
        {
            let (channel, window) = (Arc::clone(channel), Arc::clone(window));
            copiers.push(std::thread::spawn(move || {
                pass_output(File::from(from), kind, &window, &channel)
            }));
        }
        Ok(Streams {
            input,
            windows,
            terminal,
            copiers,
        })
    }

    /// Lets it become the program.
    pub(super) fn let_go(&mut self) -> std::io::Result<()> {
        self.go.write_all(&[1])
    }

    /// What asks about its calls. Nothing, if it did not come so far.
    pub(super) fn listener(&self) -> Option<OwnedFd> {
        Supplies::new(self.filter.as_fd()).take().ok()
    }

    /// Why it did not, if it did not.
    pub(super) fn failed_to_start(&mut self) -> Option<i32> {
        let mut errno = [0; 4];
        // It ends without a word when the program begins.
        self.failure.read_exact(&mut errno).ok()?;
        Some(i32::from_le_bytes(errno))
    }
}

fn pass_input(mut to: File, pieces: &mpsc::Receiver<Vec<u8>>, channel: &Channel) {
    let is_terminal = rustix::termios::isatty(&to);
    for piece in pieces {
        if piece.is_empty() && is_terminal {
            // What a user would type.
            let _ = to.write_all(&[4]);
            continue;
        }
        if piece.is_empty() {
            break;
        }
        // A program that closed its input is not told of more.
        let _ = to.write_all(&piece);
        send(channel, Kind::Consumed, &numbers(&[piece.len() as u32]));
    }
    drop(to);
    for piece in pieces {
        send(channel, Kind::Consumed, &numbers(&[piece.len() as u32]));
    }
}

fn pass_output(mut from: File, kind: Kind, window: &Window, channel: &Channel) {
    let mut piece = vec![0; PIECE];
    while let Ok(count @ 1..) = from.read(&mut piece) {
        if window.closed.load(Ordering::Relaxed) {
            // Whoever writes there from now on is told that nobody reads.
            return;
        }
        window.take(count);
        send(channel, kind, piece.get(..count).unwrap_or_default());
    }
}

/// Sends a signal to the program.
pub(super) fn signal(pid: i32, number: i32) {
    let signal = rustix::process::Signal::from_named_raw(number);
    if let (Some(pid), Some(signal)) = (rustix::process::Pid::from_raw(pid), signal) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// Tells the terminal its size.
pub(super) fn resize(terminal: BorrowedFd<'_>, rows: u16, columns: u16) {
    let size = rustix::termios::Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let _ = rustix::termios::tcsetwinsize(terminal.as_fd(), size);
}
