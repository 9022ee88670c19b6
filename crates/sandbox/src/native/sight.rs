//! What init sees of a box that is watched, and how the keeper hears of it.
//!
//! Init's side allocates nothing. It reads the path from the caller's memory, finds the file as the caller would, sends
//! one message on a channel that the agent has no end of, and lets the call go on. When the channel is full it waits:
//! the keeper empties it from a thread of its own, and what is not told is not learned.

use super::caller_path::{CallerPath, LONGEST};
use super::peer::Text;
use super::watched::{Deed, Last, Named, Watched};
use crate::sys::Notification;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// Room for a directory's path and a path below it.
const ROOM: usize = 2 * LONGEST;
const HEADER: usize = 4;
/// How many links that lead nowhere are followed to the file that would be made.
const MOST_LINKS: usize = 8;

mod kind {
    pub(super) const FILE: u8 = 1;
    pub(super) const SPAWN: u8 = 2;
    pub(super) const LOOPBACK: u8 = 3;
}

mod bit {
    pub(super) const LOOK: u8 = 1;
    pub(super) const READ: u8 = 2;
    pub(super) const WRITE: u8 = 4;
    pub(super) const EXECUTE: u8 = 8;
    /// Something without a name is made in it.
    pub(super) const WITHIN: u8 = 16;
}

/// Something a watched box did, or tried to.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sighting {
    /// It named a file.
    File {
        /// Where it is, as seen inside: absolute.
        path: PathBuf,
        /// What it did with it.
        deeds: Deeds,
        /// Whether the kernel found it.
        found: Found,
    },
    /// It made a process.
    Spawned,
    /// It connected to its own loopback where nobody listens.
    LoopbackRefused {
        /// Where.
        address: SocketAddr,
    },
}

/// What is done with a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Deeds(u8);

impl Deeds {
    /// Asking about it.
    pub const LOOK: Self = Self(bit::LOOK);
    /// Running it.
    pub const EXECUTE: Self = Self(bit::EXECUTE);

    /// It was asked about.
    pub fn looks(self) -> bool {
        self.0 & bit::LOOK != 0
    }

    /// It was opened for reading.
    pub fn reads(self) -> bool {
        self.0 & bit::READ != 0
    }

    /// It was changed, made or removed, or was to be.
    pub fn writes(self) -> bool {
        self.0 & bit::WRITE != 0
    }

    /// It was run.
    pub fn executes(self) -> bool {
        self.0 & bit::EXECUTE != 0
    }

    /// The change was to a directory's contents, not to the directory in its parent.
    pub fn is_within(self) -> bool {
        self.0 & bit::WITHIN != 0
    }

    /// All of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Whether a path leads somewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// To a file; the path is its real one.
    There,
    /// To nothing yet, in a directory that is there; the path is where it would be.
    New,
    /// Nowhere that can be seen inside; the path is as it was named.
    Nowhere,
}

/// Where a keeper hears what a watched box does.
#[derive(Debug)]
pub struct Sightings {
    channel: OwnedFd,
}

impl Sightings {
    pub(super) fn new(channel: OwnedFd) -> Self {
        Self { channel }
    }

    /// Waits for the next. `None` when there will be no more.
    pub fn next(&self) -> Option<Sighting> {
        let mut message = [0u8; HEADER + ROOM];
        loop {
            match rustix::net::recv(&self.channel, &mut message, RecvFlags::empty()) {
                Ok((0, _)) => return None,
                Ok((length, _)) => {
                    let sighting = decode(message.get(..length).unwrap_or_default());
                    if sighting.is_some() {
                        return sighting;
                    }
                }
                Err(Errno::INTR) => {}
                Err(_) => return None,
            }
        }
    }

    /// No more will be waited for: [`Sightings::next`] gives what is there already, and then `None`.
    pub fn close(&self) {
        let _ = rustix::net::shutdown(&self.channel, rustix::net::Shutdown::Read);
    }
}

fn decode(message: &[u8]) -> Option<Sighting> {
    let (header, rest) = message.split_at_checked(HEADER)?;
    let port = u16::from_le_bytes([header[2], header[3]]);
    match header[0] {
        kind::SPAWN => Some(Sighting::Spawned),
        kind::LOOPBACK => {
            let address = match rest.len() {
                4 => IpAddr::from(<[u8; 4]>::try_from(rest).ok()?),
                _ => IpAddr::from(<[u8; 16]>::try_from(rest).ok()?),
            };
            Some(Sighting::LoopbackRefused {
                address: SocketAddr::new(address, port),
            })
        }
        kind::FILE if rest.first() == Some(&b'/') => Some(Sighting::File {
            path: PathBuf::from(std::ffi::OsString::from_vec(rest.to_vec())),
            deeds: Deeds(header[1]),
            found: match port {
                0 => Found::There,
                1 => Found::New,
                _ => Found::Nowhere,
            },
        }),
        _ => None,
    }
}

fn send(channel: BorrowedFd<'_>, message: &[u8]) {
    // Fails when the keeper is gone, and then this process is about to be as well.
    while rustix::net::send(channel, message, SendFlags::NOSIGNAL) == Err(Errno::INTR) {}
}

/// Notes one call. Runs in init: allocates nothing.
pub(super) fn note(
    call: &Notification,
    watched: Watched,
    listener: BorrowedFd<'_>,
    channel: BorrowedFd<'_>,
) {
    if watched.deed == Deed::Spawn {
        send(channel, &[kind::SPAWN, 0, 0, 0]);
        return;
    }
    for named in [watched.first, watched.second] {
        let mut report = Report::new();
        let mut as_named = Report::new();
        // A bad pointer or an endless path is the caller's own error, which the kernel will tell it.
        let Ok((deeds, found)) = report.locate(call, watched.deed, named, &mut as_named) else {
            continue;
        };
        // The numbers under which we looked may be another's by now.
        if !call.still_waits(listener) {
            return;
        }
        report.send(channel, deeds, found);
        // The links on the way are needed as well.
        if found == Found::There && as_named.path() != report.path() {
            as_named.send(channel, bit::LOOK, found);
        }
    }
}

/// Notes that nobody listens at a loopback address of the box's own. Runs in init: allocates nothing.
pub(super) fn note_connect(
    channel: BorrowedFd<'_>,
    socket: BorrowedFd<'_>,
    address: &[u8],
    outcome: Result<(), Errno>,
) {
    let refused = match outcome {
        Err(Errno::CONNREFUSED) => true,
        // The refusal has come by now, only nobody has asked for it yet.
        Err(Errno::INPROGRESS) => has_failed(socket),
        _ => false,
    };
    let Some((address, port)) = inet(address).filter(|(address, _)| address.is_loopback()) else {
        return;
    };
    if !refused {
        return;
    }
    let [low, high] = port.to_le_bytes();
    let mut message = [0u8; HEADER + 16];
    message[..HEADER].copy_from_slice(&[kind::LOOPBACK, 0, low, high]);
    let length = match address {
        IpAddr::V4(v4) => {
            message[HEADER..HEADER + 4].copy_from_slice(&v4.octets());
            4
        }
        IpAddr::V6(v6) => {
            message[HEADER..].copy_from_slice(&v6.octets());
            16
        }
    };
    send(channel, &message[..HEADER + length]);
}

fn has_failed(socket: BorrowedFd<'_>) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut state = [PollFd::from_borrowed_fd(socket, PollFlags::empty())];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let _ = poll(&mut state, Some(&now));
    let [state] = state;
    state.revents().contains(PollFlags::ERR)
}

/// The address and port of an IPv4 or IPv6 socket address.
fn inet(address: &[u8]) -> Option<(IpAddr, u16)> {
    let family = u16::from_ne_bytes(address.get(..2)?.try_into().ok()?);
    let port = u16::from_be_bytes(address.get(2..4)?.try_into().ok()?);
    let host = match i32::from(family) {
        libc::AF_INET => {
            let octets: [u8; 4] = address.get(4..8)?.try_into().ok()?;
            IpAddr::V4(Ipv4Addr::from(octets))
        }
        libc::AF_INET6 => {
            let octets: [u8; 16] = address.get(8..24)?.try_into().ok()?;
            IpAddr::V6(Ipv6Addr::from(octets)).to_canonical()
        }
        _ => return None,
    };
    Some((host, port))
}

/// A message in the making: a header, and the path of a file.
struct Report {
    bytes: [u8; HEADER + ROOM],
    used: usize,
}

impl Report {
    fn new() -> Self {
        Self {
            bytes: [0; HEADER + ROOM],
            used: HEADER,
        }
    }

    fn path(&self) -> &[u8] {
        self.bytes.get(HEADER..self.used).unwrap_or_default()
    }

    fn send(&mut self, channel: BorrowedFd<'_>, deeds: u8, found: Found) {
        let path = self.path();
        // Pipes, sockets and the like have no path. What the box has of its own is of no interest.
        let is_own = [&b"/proc/"[..], b"/dev/"]
            .iter()
            .any(|own| path.starts_with(own));
        if path.first() != Some(&b'/') || is_own {
            return;
        }
        let found = match found {
            Found::There => 0,
            Found::New => 1,
            Found::Nowhere => 2,
        };
        self.bytes[..HEADER].copy_from_slice(&[kind::FILE, deeds, found, 0]);
        send(channel, &self.bytes[..self.used]);
    }

    fn clear(&mut self) {
        self.used = HEADER;
    }

    fn push(&mut self, more: &[u8]) -> Result<(), Errno> {
        let end = self.used + more.len();
        let room = self.bytes.get_mut(self.used..end);
        room.ok_or(Errno::NAMETOOLONG)?.copy_from_slice(more);
        self.used = end;
        Ok(())
    }

    /// Puts the file's path in, and says what is done with it.
    fn locate(
        &mut self,
        call: &Notification,
        deed: Deed,
        named: Named,
        as_named: &mut Report,
    ) -> Result<(u8, Found), Errno> {
        let argument = |index: u8| call.args.get(usize::from(index)).copied().unwrap_or(0);
        let mut path = CallerPath::new();
        let (from, last) = match named {
            Named::Nothing => return Err(Errno::INVAL),
            Named::Descriptor(fd) => {
                let place = open_descriptor(call.thread, argument(fd) as i32)?;
                self.push_place(place.as_fd())?;
                as_named.push(self.path())?;
                return Ok((deeds(deed, argument, Found::There), Found::There));
            }
            Named::Address(at, length) => {
                path.read_unix_address(call.thread, argument(at), argument(length))?;
                (None, Last::Keep)
            }
            Named::Path {
                from,
                path: at,
                last,
            } => {
                // No path means the descriptor, to those calls that take none.
                if argument(at) != 0 {
                    path.read(call.thread, argument(at))?;
                }
                (from.map(argument), last)
            }
        };
        let follows = match last {
            Last::Follow => true,
            Last::Keep => false,
            Last::KeepIf(flags, bits) => argument(flags) as u32 & bits == 0,
            Last::FollowIf(flags, bits) => argument(flags) as u32 & bits != 0,
        };
        if path.bytes().is_empty() {
            // Means the descriptor, where it means anything.
            let place = match from.map(|fd| fd as i32) {
                Some(fd) if fd >= 0 => open_descriptor(call.thread, fd)?,
                _ => return Err(Errno::NOENT),
            };
            self.push_place(place.as_fd())?;
            as_named.push(self.path())?;
            return Ok((deeds(deed, argument, Found::There), Found::There));
        }
        let found = self.find(call.thread, from, &mut path, follows, as_named)?;
        Ok((deeds(deed, argument, found), found))
    }

    /// Looks the path up as the thread would.
    fn find(
        &mut self,
        thread: i32,
        from: Option<u64>,
        path: &mut CallerPath,
        follows: bool,
        as_named: &mut Report,
    ) -> Result<Found, Errno> {
        let base = match path.is_absolute() {
            true => rustix::fs::open(c"/", PLACE, Mode::empty())?,
            false => match from.map(|fd| fd as i32) {
                Some(fd) if fd != libc::AT_FDCWD => open_descriptor(thread, fd)?,
                _ => open_own(thread, b"/cwd")?,
            },
        };
        if !path.is_absolute() {
            as_named.push_place(base.as_fd())?;
            as_named.push(b"/")?;
        }
        as_named.push(path.bytes())?;
        // Other processes' views of themselves are theirs: "self" would be init.
        let mut through = ResolveFlags::NO_MAGICLINKS;
        if path.stand_in_for(thread) {
            through = ResolveFlags::empty();
        }
        path.trim();
        match self.search(base, path, follows, through) {
            Ok(found) => Ok(found),
            // Told as it was named; the keeper makes of it what it can.
            Err(_) => {
                self.clear();
                self.push(as_named.path())?;
                Ok(Found::Nowhere)
            }
        }
    }

    fn search(
        &mut self,
        mut base: OwnedFd,
        path: &mut CallerPath,
        follows: bool,
        through: ResolveFlags,
    ) -> Result<Found, Errno> {
        for _ in 0..MOST_LINKS {
            if follows || path.ends_in_dots() {
                match rustix::fs::openat2(&base, path.as_c_str(), PLACE, Mode::empty(), through) {
                    Ok(place) => {
                        self.clear();
                        self.push_place(place.as_fd())?;
                        return Ok(Found::There);
                    }
                    Err(Errno::NOENT) => {}
                    Err(errno) => return Err(errno),
                }
            }
            let (directory, name) = path.split();
            let directory = match directory {
                Some(directory) => {
                    rustix::fs::openat2(&base, directory, PLACE, Mode::empty(), through)?
                }
                None => base,
            };
            if follows {
                // A link to nothing: what is made is made where it points.
                let mut target = CallerPath::new();
                if target.read_link(directory.as_fd(), name).is_ok() {
                    base = match target.is_absolute() {
                        true => rustix::fs::open(c"/", PLACE, Mode::empty())?,
                        false => directory,
                    };
                    target.trim();
                    *path = target;
                    continue;
                }
            }
            let there = rustix::fs::statat(&directory, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW);
            let mut parent = Report::new();
            parent.push_place(directory.as_fd())?;
            if !parent.bytes[..parent.used].ends_with(b"/") {
                parent.push(b"/")?;
            }
            parent.push(name.to_bytes())?;
            *self = parent;
            return Ok(match there {
                Ok(_) => Found::There,
                Err(_) => Found::New,
            });
        }
        Err(Errno::LOOP)
    }

    /// The path of something that is open.
    fn push_place(&mut self, place: BorrowedFd<'_>) -> Result<(), Errno> {
        let mut link = Text::new();
        link.push(b"/proc/self/fd/");
        link.push_number(place.as_raw_fd().unsigned_abs());
        let link = link.as_c_str().ok_or(Errno::NAMETOOLONG)?;
        let room = self.bytes.get_mut(self.used..).ok_or(Errno::NAMETOOLONG)?;
        let length = rustix::fs::readlinkat_raw(rustix::fs::CWD, link, room)?;
        self.used += length;
        Ok(())
    }
}

/// Names a place without touching it: no device is opened, no pipe waits.
const PLACE: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

fn open_descriptor(thread: i32, fd: i32) -> Result<OwnedFd, Errno> {
    let mut name = Text::new();
    name.push(b"/fd/");
    name.push_number(u32::try_from(fd).map_err(|_| Errno::BADF)?);
    let name = name.as_c_str().ok_or(Errno::NAMETOOLONG)?;
    open_own(thread, name.to_bytes())
}

/// What a thread's entry in /proc leads to.
fn open_own(thread: i32, what: &[u8]) -> Result<OwnedFd, Errno> {
    let mut path = Text::new();
    path.push(b"/proc/");
    path.push_number(thread.unsigned_abs());
    path.push(what);
    let path = path.as_c_str().ok_or(Errno::NAMETOOLONG)?;
    rustix::fs::open(path, PLACE, Mode::empty())
}

fn deeds(deed: Deed, argument: impl Fn(u8) -> u64, found: Found) -> u8 {
    match deed {
        Deed::Look | Deed::Spawn => bit::LOOK,
        Deed::Make if found == Found::There => bit::LOOK,
        Deed::Write | Deed::Make => bit::WRITE,
        Deed::Execute => bit::EXECUTE,
        Deed::Open(flags) => {
            let flags = argument(flags) as i32;
            let has = |bits: i32| flags & bits == bits;
            if has(libc::O_PATH) {
                return bit::LOOK;
            }
            let mut deeds = match flags & libc::O_ACCMODE {
                libc::O_RDONLY => bit::READ,
                libc::O_WRONLY => bit::WRITE,
                _ => bit::READ | bit::WRITE,
            };
            if has(libc::O_TMPFILE) {
                deeds |= bit::WRITE | bit::WITHIN;
            } else if has(libc::O_TRUNC) || (has(libc::O_CREAT) && found != Found::There) {
                deeds |= bit::WRITE;
            }
            deeds
        }
    }
}
