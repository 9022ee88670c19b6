//! `connect`, made by init in the box's place.
//!
//! A Unix socket is found by its inode, whatever namespace its owner lives in, and before Landlock ABI 9 nothing in
//! the kernel separates a box's own sockets from the host's where both can be seen. Looking at the address and letting
//! the call go on would not do: the caller can change it, or swap the descriptor, in between. So init takes a copy of
//! both and connects that.

use super::script::Doors;
use super::shown::FileId;
use super::sight;
use crate::sys::{self, Notification, Reply};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::AddressFamily;
use std::ffi::CStr;

/// Whether the call met a socket of the host's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Done,
    HostSocket,
}

/// What a helper's process ends with that met a socket of the host's.
const MET_HOST: i32 = 1;

/// The processes that connect for init, so that their ends tell init what they met.
pub(super) struct Helpers {
    /// Zero where there is none.
    processes: [i32; 256],
}

impl Helpers {
    pub(super) fn new() -> Self {
        Self {
            processes: [0; 256],
        }
    }

    /// A child has ended with this wait status: whether it was one of them and met a socket of the host's.
    pub(super) fn ended(&mut self, pid: i32, status: i32) -> bool {
        let Some(place) = self.place_of(pid) else {
            return false;
        };
        *place = 0;
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == MET_HOST
    }

    fn place_of(&mut self, pid: i32) -> Option<&mut i32> {
        self.processes.iter_mut().find(|known| **known == pid)
    }
}

/// The file systems that only this box has.
pub(super) struct PrivateDevices {
    devices: [u64; 32],
    used: usize,
}

impl PrivateDevices {
    pub(super) fn of(mounts: &[&CStr]) -> Self {
        let mut found = Self {
            devices: [0; 32],
            used: 0,
        };
        for mount in mounts.iter().take(found.devices.len()) {
            if let Ok(stat) = rustix::fs::stat(*mount) {
                found.devices[found.used] = stat.st_dev;
                found.used += 1;
            }
        }
        found
    }

    fn contains(&self, device: u64) -> bool {
        self.devices
            .iter()
            .take(self.used)
            .any(|known| *known == device)
    }
}

/// Which sockets with a name in the file system a box may connect to, beside those bound in it.
pub(super) struct Reach<'a> {
    pub(super) private: PrivateDevices,
    /// The sockets of the host's.
    pub(super) doors: Doors,
    /// Who wants to know of servers that are not there.
    pub(super) sightings: Option<BorrowedFd<'a>>,
}

/// Answers one `connect`, by a process of its own. What the socket says now of whether a call blocks, its owner can change a
/// moment later, and nothing may hold init up. Where there is no room to remember the helper, it tells itself, by `tell`.
pub(super) fn connect(
    call: &Notification,
    listener: BorrowedFd<'_>,
    within: &Reach<'_>,
    helpers: &mut Helpers,
    tell: impl Fn(),
) {
    let socket = match borrow_socket(call, listener) {
        Ok(socket) => socket,
        Err(errno) => return call.answer(listener, Reply::Fail(errno)),
    };
    let place = helpers.place_of(0);
    match sys::fork() {
        Ok(0) => match perform(call, listener, &socket, within) {
            Outcome::Done => sys::exit_now(0),
            Outcome::HostSocket if place.is_some() => sys::exit_now(MET_HOST),
            Outcome::HostSocket => {
                tell();
                sys::exit_now(0)
            }
        },
        Ok(pid) => {
            if let Some(place) = place {
                *place = pid;
            }
        }
        Err(_) => call.answer(listener, Reply::Fail(Errno::AGAIN)),
    }
}

fn perform(
    call: &Notification,
    listener: BorrowedFd<'_>,
    socket: &OwnedFd,
    within: &Reach<'_>,
) -> Outcome {
    match try_connect(call, listener, socket, within) {
        Ok(()) => call.answer(listener, Reply::Value(0)),
        Err(Refusal::Failed(errno)) => call.answer(listener, Reply::Fail(errno)),
        Err(Refusal::HostSocket) => {
            call.answer(listener, Reply::Fail(Errno::CONNREFUSED));
            return Outcome::HostSocket;
        }
    }
    Outcome::Done
}

enum Refusal {
    Failed(Errno),
    HostSocket,
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        Refusal::Failed(errno)
    }
}

/// A duplicate of the socket the caller named.
fn borrow_socket(call: &Notification, listener: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let process = process_of(call.thread).ok_or(Errno::SRCH)?;
    let handle = rustix::process::pidfd_open(process, rustix::process::PidfdFlags::empty())?;
    if !call.still_waits(listener) {
        return Err(Errno::SRCH);
    }
    sys::take_descriptor(handle.as_fd(), call.args[0] as i32)
}

/// The process a thread belongs to, from its status file.
fn process_of(thread: i32) -> Option<rustix::process::Pid> {
    let mut path = Text::new();
    path.push(b"/proc/");
    path.push_number(thread.unsigned_abs());
    path.push(b"/status");
    let file = rustix::fs::open(
        path.as_c_str()?,
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .ok()?;
    let mut text = [0u8; 512];
    let length = rustix::io::read(&file, &mut text).ok()?;
    let line = text
        .get(..length)?
        .split(|byte| *byte == b'\n')
        .find(|line| line.starts_with(b"Tgid:"))?;
    let mut number = 0i32;
    for digit in line.iter().filter(|byte| byte.is_ascii_digit()) {
        number = number
            .checked_mul(10)?
            .checked_add(i32::from(digit - b'0'))?;
    }
    rustix::process::Pid::from_raw(number)
}

fn try_connect(
    call: &Notification,
    listener: BorrowedFd<'_>,
    socket: &OwnedFd,
    within: &Reach<'_>,
) -> Result<(), Refusal> {
    let mut address = [0u8; 128];
    let length = (call.args[2] as usize).min(address.len());
    let read = sys::read_memory(call.thread, call.args[1], &mut address[..length])?;
    if read != length || !call.still_waits(listener) {
        return Err(Errno::FAULT.into());
    }
    let address = &address[..length];
    if rustix::net::sockopt::socket_domain(socket)? != AddressFamily::UNIX {
        let outcome = sys::connect_raw(socket.as_fd(), address);
        if let Some(channel) = within.sightings {
            sight::note_connect(channel, socket.as_fd(), address, outcome);
        }
        return Ok(outcome?);
    }
    // Abstract names belong to the socket's own network namespace, which is the box's.
    let path = match address.get(2..) {
        Some(path) if path.first().is_some_and(|byte| *byte != 0) => path,
        _ => return Ok(sys::connect_raw(socket.as_fd(), address)?),
    };
    let end = path
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(path.len());
    let place = open_socket_file(call.thread, &path[..end])?;
    let mut target = Text::new();
    target.push(&(AddressFamily::UNIX.as_raw()).to_ne_bytes());
    target.push(b"/proc/self/fd/");
    target.push_number(place.as_raw_fd().unsigned_abs());
    target.push(b"\0");
    // In a directory that the host can write to as well, the socket may be the host's: then no call of ours may
    // reach it. A file is bound to one socket for good, so the answer still holds when we connect.
    // A door is known by its file, which its mount keeps alive: no other can come to have the same numbers.
    let file = rustix::fs::fstat(&place)?;
    if within.private.contains(file.st_dev)
        || within.doors.contains(&Some(FileId::of(&file)))
        || sys::is_bound_here(file.st_dev, file.st_ino).unwrap_or(false)
    {
        return Ok(sys::connect_raw(socket.as_fd(), target.bytes())?);
    }
    Err(Refusal::HostSocket)
}

/// The socket's file, resolved as the caller would: init shares its root, and starts in its directory.
fn open_socket_file(thread: i32, path: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let mut text = Text::new();
    if path.first() != Some(&b'/') {
        text.push(b"/proc/");
        text.push_number(thread.unsigned_abs());
        text.push(b"/cwd/");
    }
    text.push(path);
    rustix::fs::open(
        text.as_c_str().ok_or(Errno::NAMETOOLONG)?,
        flags,
        Mode::empty(),
    )
}

/// A little text, made without allocating.
pub(super) struct Text {
    bytes: [u8; 256],
    used: usize,
}

impl Text {
    pub(super) fn new() -> Self {
        Self {
            bytes: [0; 256],
            used: 0,
        }
    }

    /// Adds what fits; `as_c_str` refuses a text that is full.
    pub(super) fn push(&mut self, more: &[u8]) {
        let room = self.bytes.len() - self.used;
        let take = more.len().min(room);
        self.bytes[self.used..self.used + take].copy_from_slice(&more[..take]);
        self.used += take;
    }

    pub(super) fn push_number(&mut self, number: u32) {
        let mut digits = [0u8; 10];
        let mut rest = number;
        let mut at = digits.len();
        loop {
            at -= 1;
            digits[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        self.push(&digits[at..]);
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.used]
    }

    pub(super) fn as_c_str(&self) -> Option<&CStr> {
        if self.used >= self.bytes.len() {
            return None;
        }
        CStr::from_bytes_until_nul(&self.bytes).ok()
    }
}
