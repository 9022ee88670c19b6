//! Pid 1 of a guest: it makes the guest look like the box around it, runs the program there, and carries all that crosses.
//!
//! It holds the second line. The first is the machine's edge: whatever becomes of this process, or of the guest's kernel,
//! the bridge takes nothing from it but frames.

mod net;
mod program;
mod refused;

use super::CHANNEL_PORT;
use super::wire::{self, Kind, Sender, WINDOW, WireError, numbers};
use crate::order::{Order, Surroundings};
use crate::sys;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::MountFlags;
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::time::Duration;

/// Where the box's files are mounted.
const BOX: &str = "/box";
/// In the order in which they mostly need each other; those that a kernel has built in are not there.
pub(super) const MODULES: &[&str] = &[
    "virtio",
    "virtio_ring",
    "virtio_mmio",
    "virtio_console",
    "fuse",
];

/// The same where the channel is a call to the host.
pub(super) const VSOCK_MODULES: &[&str] = &[
    "virtio",
    "virtio_ring",
    "virtio_mmio",
    "vsock",
    "vmw_vsock_virtio_transport_common",
    "vmw_vsock_virtio_transport",
    "fuse",
];

/// What the table of a box's network takes, in that order. Only a guest that has a network is given them, and loads them before
/// it is kept.
pub(super) const NETWORK_MODULES: &[&str] = &[
    "crc32c_generic",
    "libcrc32c",
    "nfnetlink",
    "nf_tables",
    "nf_defrag_ipv4",
    "nf_defrag_ipv6",
    "nf_tproxy_ipv4",
    "nf_tproxy_ipv6",
    "nft_tproxy",
    "nfnetlink_log",
    "nft_log",
    "nft_limit",
    "nf_reject_ipv4",
    "nf_reject_ipv6",
    "nft_reject",
    "nft_reject_inet",
];
/// Those of them that are parts of others in some kernels.
pub(super) const HELPER_MODULES: &[&str] = &["crc32c_generic", "libcrc32c"];

/// Why a guest can't go on.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {source}")]
struct Trouble {
    what: String,
    source: std::io::Error,
}

fn trouble<E: Into<std::io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Trouble {
    move |error| Trouble {
        what: what.into(),
        source: error.into(),
    }
}

type Channel = Arc<Mutex<File>>;

fn send(channel: &Channel, kind: Kind, body: &[u8]) {
    let mut channel = channel.lock().unwrap_or_else(PoisonError::into_inner);
    if wire::send(&mut *channel, kind, body).is_err() {
        // Nobody will ever hear of this guest again.
        sys::restart_machine();
    }
}

/// What the channel is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Line {
    /// A serial port, which is there as long as the machine.
    Port,
    /// A call to the host. A guest that was kept has to make it again when it goes on.
    Vsock,
}

/// Lives a guest's life. Never returns.
pub(super) fn live(line: Line) -> ! {
    let mut channel = None;
    if let Err(trouble) = go_through(line, &mut channel) {
        let text = trouble.to_string();
        let Some(channel) = &channel else {
            // On the console. The kernel panics without us, and its last words reach the bridge.
            let _ = writeln!(std::io::stderr(), "belljar: {text}");
            sys::exit_now(1)
        };
        let text = text.get(..text.len().min(1000)).unwrap_or("?");
        send(channel, Kind::Failed, text.as_bytes());
    }
    // The bridge ends us once it has all; this is for one that is gone.
    std::thread::sleep(Duration::from_secs(10));
    sys::restart_machine()
}

fn go_through(line: Line, channel: &mut Option<Channel>) -> Result<(), Trouble> {
    mount("devtmpfs", "/dev", "")?;
    mount("proc", "/proc", "")?;
    let modules = match line {
        Line::Port => MODULES,
        Line::Vsock => VSOCK_MODULES,
    };
    load_modules(modules.iter().chain(NETWORK_MODULES).copied().collect())?;
    let opened = open_line(line)?;
    let mut heard = opened.try_clone().map_err(trouble("the channel"))?;
    let sender: Channel = Arc::new(Mutex::new(opened));
    *channel = Some(Arc::clone(&sender));
    send(&sender, Kind::Up, &[]);
    let (order, surroundings) = loop {
        match take_order(&mut heard) {
            Ok(order) => break order,
            // We were kept, and go on somewhere else.
            Err(WireError::Ended | WireError::Io(_)) if line == Line::Vsock => {
                let again = open_line(line)?;
                heard = again.try_clone().map_err(trouble("the channel"))?;
                *sender.lock().unwrap_or_else(PoisonError::into_inner) = again;
            }
            Err(error) => {
                return Err(trouble(format!("no order came: {error}"))(Errno::PROTO));
            }
        }
    };
    if sys::landlock_abi().is_none() {
        return Err(trouble("the guest's kernel has no Landlock")(
            Errno::OPNOTSUPP,
        ));
    }
    draw_anew(surroundings.entropy).map_err(trouble("/dev/random"))?;
    std::fs::create_dir("/dev/pts").map_err(trouble("/dev/pts"))?;
    mount("devpts", "/dev/pts", "ptmxmode=0666,mode=620")?;
    // While there is one thread: a copy of this process may do as it likes.
    let mut program =
        program::prepare(&order, &surroundings).map_err(trouble("the program's process"))?;
    mount("cgroup2", "/sys", "")?;
    program::limit(&order, program.pid).map_err(trouble("the program's limits"))?;
    let fuse = mount_box()?;
    let answers = fuse.try_clone().map_err(trouble("/dev/fuse"))?;
    let streams = program
        .attend(&sender)
        .map_err(trouble("the program's streams"))?;
    let ways = net::Ways::new().map_err(trouble("the network"))?;
    let hearing = Hearing {
        answers,
        input: streams.input,
        windows: streams.windows,
        terminal: streams.terminal,
        main: program.pid,
        ways: ways.clone(),
    };
    std::thread::spawn(move || hearing.hear(heard));
    let requests = Arc::clone(&sender);
    std::thread::spawn(move || pass_requests(fuse, &requests));
    furnish(&order)?;
    ways.start(&order.reach, &sender)?;
    let refused = refused::Refused::new(&sender);
    if order.processes > 0 {
        let watched = refused.watch_forks();
        watched.map_err(trouble("the program's limits"))?;
    }
    program.let_go().map_err(trouble("the program's start"))?;
    if let Some(listener) = program.listener() {
        refused.answer(listener, program::rules(&order));
    }
    if let Some(errno) = program.failed_to_start() {
        send(&sender, Kind::NotStarted, &numbers(&[errno as u32]));
        return Ok(());
    }
    let mut status = 0;
    while let Some((pid, ended)) = sys::await_child() {
        if pid == program.pid {
            status = ended;
        }
    }
    for copier in streams.copiers {
        let _ = copier.join();
    }
    refused.sum_up();
    send(
        &sender,
        Kind::Ended,
        &numbers(&[status as u32, killed_for_memory()]),
    );
    Ok(())
}

fn take_order(channel: &mut File) -> Result<(Order, Surroundings), WireError> {
    let frame = wire::receive(channel, Sender::Bridge)?;
    let read = || {
        let (order, surroundings) = Surroundings::split(&frame.body)?;
        Some((Order::decode(order)?, surroundings))
    };
    match frame.kind {
        Kind::Order => read().ok_or(WireError::Length(frame.kind, frame.body.len())),
        other => Err(WireError::Direction(other)),
    }
}

/// Gives the kernel what to draw its random numbers from. Until here they may be those of every guest that was kept in the
/// same file.
fn draw_anew(entropy: [u8; 64]) -> std::io::Result<()> {
    let random = File::options().write(true).open("/dev/random")?;
    sys::add_entropy(random.as_fd(), entropy)?;
    Ok(sys::reseed(random.as_fd())?)
}

fn set_clock([low, high, nanoseconds]: [u32; 3]) {
    let now = rustix::time::Timespec {
        tv_sec: i64::from(high) << 32 | i64::from(low),
        tv_nsec: i64::from(nanoseconds),
    };
    let _ = rustix::time::clock_settime(rustix::time::ClockId::Realtime, now);
}

/// How many processes the kernel killed for want of memory.
fn killed_for_memory() -> u32 {
    let counts = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let count = counts
        .lines()
        .find_map(|line| line.strip_prefix("oom_kill "));
    count
        .and_then(|count| count.trim().parse().ok())
        .unwrap_or(0)
}

fn mount(kind: &str, at: &str, options: &str) -> Result<(), Trouble> {
    let options = std::ffi::CString::new(options).map_err(|_| trouble(at)(Errno::INVAL))?;
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
    // What may be executed, or is a device, is said where it is mounted.
    let flags = match kind {
        "proc" => flags | MountFlags::NODEV,
        "tmpfs" | "devtmpfs" | "devpts" | "cgroup2" => flags,
        _ => MountFlags::NOSUID | MountFlags::NODEV,
    };
    rustix::mount::mount(kind, at, kind, flags, Some(options.as_c_str()))
        .map_err(trouble(format!("mount {at}")))
}

/// Loads these modules, whichever of them needs which: that differs from one kernel to the next, so the lists' order is only the
/// likeliest.
fn load_modules(mut names: Vec<&str>) -> Result<(), Trouble> {
    while !names.is_empty() {
        let (mut waiting, mut missed) = (Vec::new(), None);
        let wanted = names.len();
        for name in names {
            match load_module(name)? {
                Loaded::Yes => {}
                Loaded::LacksAnother => {
                    missed.get_or_insert(name);
                    waiting.push(name);
                }
            }
        }
        if let Some(name) = missed.filter(|_| waiting.len() == wanted) {
            return Err(trouble(format!("kernel module {name}"))(Errno::NOENT));
        }
        names = waiting;
    }
    Ok(())
}

enum Loaded {
    Yes,
    /// Not yet: it calls what another module has.
    LacksAnother,
}

fn load_module(name: &str) -> Result<Loaded, Trouble> {
    let prefix = format!("{name}.ko");
    let mut files = std::fs::read_dir("/modules")
        .map_err(trouble("/modules"))?
        .flatten();
    let Some(file) = files.find(|file| file.file_name().to_string_lossy().starts_with(&prefix))
    else {
        return Ok(Loaded::Yes);
    };
    let is_compressed = !file.file_name().to_string_lossy().ends_with(".ko");
    let module = File::open(file.path()).map_err(trouble(name))?;
    match sys::load_module(module.as_fd(), is_compressed) {
        Ok(()) | Err(Errno::EXIST) => Ok(Loaded::Yes),
        Err(Errno::NOENT) => Ok(Loaded::LacksAnother),
        Err(errno) => Err(trouble(format!("kernel module {name}"))(errno)),
    }
}

/// The channel. Its device comes a moment after its driver.
fn open_line(line: Line) -> Result<File, Trouble> {
    const TRIES: u32 = 3000;
    const PAUSE: Duration = Duration::from_millis(5);
    let mut last = Errno::NOENT;
    for _ in 0..TRIES {
        let opened = match line {
            Line::Port => {
                let flags = OFlags::RDWR | OFlags::CLOEXEC;
                rustix::fs::open("/dev/vport0p1", flags, Mode::empty())
            }
            Line::Vsock => sys::call_host(CHANNEL_PORT),
        };
        match opened {
            Ok(opened) => return Ok(File::from(opened)),
            Err(errno) => last = errno,
        }
        std::thread::sleep(PAUSE);
    }
    Err(trouble("the channel")(last))
}

fn mount_box() -> Result<File, Trouble> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let fuse = rustix::fs::open("/dev/fuse", flags, Mode::empty()).map_err(trouble("/dev/fuse"))?;
    let number = std::os::fd::AsRawFd::as_raw_fd(&fuse);
    let options =
        format!("fd={number},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions");
    mount("fuse", BOX, &options)?;
    Ok(File::from(fuse))
}

/// Sends the kernel's requests for files to the bridge.
fn pass_requests(mut fuse: File, channel: &Channel) {
    let mut request = vec![0; wire::LARGEST_TRANSFER + 4096];
    loop {
        match fuse.read(&mut request) {
            Ok(count) => send(
                channel,
                Kind::Request,
                request.get(..count).unwrap_or_default(),
            ),
            // It was taken back before it was read.
            Err(error)
                if [Some(libc::ENOENT), Some(libc::EINTR)].contains(&error.raw_os_error()) => {}
            Err(_) => return,
        }
    }
}

/// What a box has and the bridge does not serve: devices, processes.
fn furnish(order: &Order) -> Result<(), Trouble> {
    mount("proc", &format!("{BOX}/proc"), "")?;
    let devices = format!("{BOX}/dev");
    mount("tmpfs", &devices, "mode=755,size=64k")?;
    let at = |name: &str| Path::new(&devices).join(name);
    for (name, number) in [
        ("null", 3),
        ("zero", 5),
        ("full", 7),
        ("random", 8),
        ("urandom", 9),
    ] {
        make_device(&at(name), rustix::fs::makedev(1, number))?;
    }
    make_device(&at("tty"), rustix::fs::makedev(5, 0))?;
    for name in ["pts", "shm"] {
        std::fs::create_dir(at(name)).map_err(trouble(name))?;
    }
    rustix::mount::mount_bind("/dev/pts", format!("{devices}/pts")).map_err(trouble("/dev/pts"))?;
    mount(
        "tmpfs",
        &format!("{devices}/shm"),
        &format!("mode=1777,size={}", order.shared_bytes),
    )?;
    for (name, target) in [
        ("ptmx", "pts/ptmx"),
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ] {
        std::os::unix::fs::symlink(target, at(name)).map_err(trouble(name))?;
    }
    let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NOEXEC;
    rustix::mount::mount_remount(&devices, flags, "").map_err(trouble("/dev"))?;
    let _ = rustix::system::sethostname(b"belljar");
    sys::raise_loopback().map_err(trouble("the loopback"))
}

fn make_device(at: &Path, number: u64) -> Result<(), Trouble> {
    let mode = Mode::from_raw_mode(0o666);
    rustix::fs::mknodat(rustix::fs::CWD, at, FileType::CharacterDevice, mode, number)
        .map_err(trouble(at.display().to_string()))?;
    // Whatever the mask took away.
    rustix::fs::chmod(at, mode).map_err(trouble(at.display().to_string()))
}

/// What the bridge's words are for.
struct Hearing {
    answers: File,
    input: mpsc::Sender<Vec<u8>>,
    windows: [Arc<Window>; 2],
    terminal: Option<OwnedFd>,
    main: i32,
    ways: net::Ways,
}

impl Hearing {
    fn hear(mut self, mut channel: File) -> ! {
        while let Ok(frame) = wire::receive(&mut channel, Sender::Bridge) {
            match frame.kind {
                Kind::Answer => drop(self.answers.write_all(&frame.body)),
                Kind::Input => drop(self.input.send(frame.body)),
                Kind::Taken => {
                    if let Some([stream @ 1..=2, count]) = frame.numbers()
                        && let Some(window) = self.windows.get(stream as usize - 1)
                    {
                        window.open(count as usize);
                    }
                }
                Kind::Closed => {
                    if let Some([stream @ 1..=2]) = frame.numbers()
                        && let Some(window) = self.windows.get(stream as usize - 1)
                    {
                        window.closed.store(true, Ordering::Relaxed);
                    }
                }
                Kind::Signal => {
                    if let Some([signal]) = frame.numbers() {
                        program::signal(self.main, signal as i32);
                    }
                }
                Kind::Window => {
                    if let (Some([rows, columns]), Some(terminal)) =
                        (frame.numbers(), &self.terminal)
                    {
                        program::resize(terminal.as_fd(), rows as u16, columns as u16);
                    }
                }
                Kind::Clock => drop(frame.numbers().map(set_clock)),
                Kind::Open | Kind::Flow | Kind::Room | Kind::Over | Kind::Lookup => {
                    self.ways.hear(&frame);
                }
                Kind::Forget => drop(std::fs::write("/proc/sys/vm/drop_caches", "2")),
                _ => {}
            }
        }
        sys::restart_machine()
    }
}

/// How much of a stream may still be sent.
pub(super) struct Window {
    left: Mutex<usize>,
    changed: Condvar,
    /// Nobody takes it any more.
    closed: AtomicBool,
}

impl Window {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            left: Mutex::new(WINDOW),
            changed: Condvar::new(),
            closed: AtomicBool::new(false),
        })
    }

    fn open(&self, count: usize) {
        *self.left.lock().unwrap_or_else(PoisonError::into_inner) += count;
        self.changed.notify_one();
    }

    /// Waits until so much may be sent, and takes it.
    fn take(&self, count: usize) {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        while *left < count {
            left = self
                .changed
                .wait(left)
                .unwrap_or_else(PoisonError::into_inner);
        }
        *left -= count;
    }
}
