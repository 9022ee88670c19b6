//! The bridge: what stands in a box in the program's place and leads to the guest that runs it.
//!
//! It starts the emulator, serves the guest its files, and carries input, output, signals and the end across. It is in the
//! box as any program is, so all that the box's keeper does to the box reaches guest and bridge alike. It believes nothing a
//! guest says: see [`super::wire`].

mod files;
mod image;
mod keeping;
mod machine;
mod net;
mod streams;
mod telling;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod whole;

use super::wire::{self, Frame, Kind, Sender, WireError};
use super::{Carrier, FAILED_SIGNAL, OUT_OF_MEMORY_SIGNAL, SLOWEST_START, place};
use crate::order::{Order, Surroundings};
use crate::sys;
use crate::told::ProgramEnd;
pub(super) use keeping::keep;
pub use machine::clock_words;
pub(super) use machine::{Hardware, fixed_arguments};

use files::{Outcome, Server};
use machine::{Machine, Purpose};
use net::Ways;
use rustix::io::Errno;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;
use streams::{Input, Output, Streams};
use telling::Telling;

/// Who serves files: enough that one slow file does not hold all others up.
const SERVERS: usize = 4;
/// Requests that wait for one of them. The guest's kernel keeps the others.
const WAITING: usize = 32;
/// How long a guest that has said its last word may take to end before it is taken for alive.
const PATIENCE: Duration = Duration::from_secs(2);

/// How a guest came to its end.
enum End {
    /// Its program ended, with this wait status; `killed` processes for want of memory.
    Program { status: i32, killed: u32 },
    /// Its program could not be started.
    NotStarted(i32),
}

/// Why a guest was ended, or ended by itself.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("the guest could not be started")]
    Start(#[source] std::io::Error),
    #[error("the guest sent what no guest sends: {0}")]
    Garbage(String),
    #[error("the guest failed: {0}")]
    Guest(String),
    #[error("how the program ended can't be told")]
    Telling(#[source] std::io::Error),
    #[error("the guest ended without a word{}", said(.0))]
    Vanished(String),
}

fn said(console: &str) -> String {
    match console {
        "" => String::new(),
        console => format!("; its last words:\n{console}"),
    }
}

/// How this bridge's guest comes to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Begin {
    /// It starts.
    Boot,
    /// It goes on from where one was kept: it is up.
    Resume,
}

/// The channel to the guest: whole frames, one at a time.
type Channel = Arc<Mutex<UnixStream>>;

fn send(channel: &Channel, kind: Kind, body: &[u8]) {
    let mut channel = channel.lock().unwrap_or_else(PoisonError::into_inner);
    // A guest that is gone is noticed where it is listened to.
    let _ = wire::send(&mut *channel, kind, body);
}

/// Runs a guest to its end, and tells of its program's.
pub(super) fn run(hardware: Hardware, begin: Begin) -> u8 {
    let carrier = hardware.carrier;
    match guest(hardware, begin) {
        Ok(End::Program { killed: 1.., .. }) => sys::die_by(OUT_OF_MEMORY_SIGNAL),
        Ok(_) => 0,
        Err(failure) => {
            complain(carrier, &failure.in_full());
            sys::die_by(FAILED_SIGNAL)
        }
    }
}

impl Failure {
    fn in_full(&self) -> String {
        match self {
            Failure::Start(error) | Failure::Telling(error) => format!("{self}: {error}"),
            other => other.to_string(),
        }
    }
}

fn complain(carrier: Carrier, text: &str) {
    let _ = writeln!(std::io::stderr(), "{}", complaint(carrier, text));
}

fn complaint(carrier: Carrier, text: &str) -> String {
    format!("[belljar] {}: {text}", carrier.tier())
}

/// How the program ended, for the box's init; nothing if it had too little memory. The two signals that mean something else here
/// are passed on as codes.
fn end_of(end: &End) -> Option<ProgramEnd> {
    match *end {
        End::Program { killed: 1.., .. } => None,
        End::Program { status, .. } => Some(ProgramEnd::Ended(match status & 0x7f {
            signal @ (OUT_OF_MEMORY_SIGNAL | FAILED_SIGNAL) => (128 + signal) << 8,
            _ => status,
        })),
        End::NotStarted(errno) => Some(ProgramEnd::NotStarted(Errno::from_raw_os_error(errno))),
    }
}

fn guest(hardware: Hardware, begin: Begin) -> Result<End, Failure> {
    let io = |error: Errno| Failure::Start(error.into());
    // A file that grows too large is an error to the guest, not our end; so is a reader that went away.
    sys::ignore_signals(&[libc::SIGXFSZ, libc::SIGPIPE, libc::SIGTTOU]);
    let signals = sys::watch_signals(streams::SIGNALS).map_err(io)?;
    sys::raise_soft_limit(libc::RLIMIT_NOFILE).map_err(io)?;
    let mut order = std::fs::read(place("order")).map_err(Failure::Start)?;
    hardware.demand()?;
    let told = Order::decode(&order).ok_or(io(Errno::INVAL))?;
    let mut telling = Telling::open(&told).map_err(Failure::Start)?;
    let limit = file_limit(&told);
    let ways = Ways::open(told.reach).map_err(Failure::Start)?;
    let _terminal = streams::PlainTerminal::take();
    order.extend(surroundings().map_err(io)?.encode());
    let server = Arc::new(Server::new(std::path::Path::new("/")).map_err(io)?);
    let start = |begin| {
        let beginning = match begin {
            Begin::Boot => hardware.first(),
            Begin::Resume => hardware.kept(),
        }?;
        let purpose = Purpose::Run {
            largest_file: limit,
        };
        Machine::start(&beginning, purpose, hardware)
    };
    let started = start_or_anew(hardware.carrier, begin, start, |note| {
        complain(hardware.carrier, note);
    });
    let ((mut machine, mut heard), begin) = started.map_err(Failure::Start)?;
    // Not before: what a guest starts from is larger than many a program's files may be.
    if let Some(bytes) = limit {
        sys::set_limit(libc::RLIMIT_FSIZE, bytes).map_err(io)?;
    }
    let channel = Arc::new(Mutex::new(heard.try_clone().map_err(Failure::Start)?));
    let streams = Streams {
        outputs: [
            Output::start(&channel, 1, Box::new(streams::Raw(rustix::stdio::stdout()))),
            Output::start(&channel, 2, Box::new(streams::Raw(rustix::stdio::stderr()))),
        ],
        input: Input::default(),
    };
    let requests = serve_files(&server, &channel);
    let mut service = Service {
        streams: &streams,
        requests: &requests,
        ways: &ways,
        telling: &mut telling,
    };
    let end = attend(
        &mut heard,
        &channel,
        begin,
        &order,
        Some(signals),
        &mut service,
    );
    for output in streams.outputs {
        output.finish();
    }
    match end {
        Err(Failure::Vanished(_)) => {
            machine.await_end(PATIENCE);
            Err(Failure::Vanished(machine.complaints()))
        }
        Err(failure) => Err(failure),
        Ok(end) => {
            if let Some(end) = end_of(&end) {
                telling.ended(end).map_err(Failure::Telling)?;
            }
            Ok(end)
        }
    }
}

/// Starts a guest as is asked. One that was kept and does not go on gives way to one that starts, if its box has what that takes;
/// how it began in the end is returned with it. Nobody has given the first an order.
fn start_or_anew<G>(
    carrier: Carrier,
    begin: Begin,
    mut start: impl FnMut(Begin) -> std::io::Result<G>,
    note: impl FnOnce(&str),
) -> std::io::Result<(G, Begin)> {
    match start(begin) {
        Err(why) if begin == Begin::Resume && carrier.may_start_anew() => {
            note(&format!(
                "the guest starts from nothing: the one that was kept did not go on: {why}"
            ));
            Ok((start(Begin::Boot)?, Begin::Boot))
        }
        started => Ok((started?, begin)),
    }
}

/// No file that we or the machine write for the guest may be larger than its program's may be.
fn file_limit(order: &Order) -> Option<u64> {
    let mut limits = order.limits.iter();
    let size = limits.find(|(resource, _)| *resource == libc::RLIMIT_FSIZE);
    size.map(|(_, bytes)| *bytes)
}

/// What the guest is to know of the box. From here on the masks are the guest's: what it asks for is masked already.
fn surroundings() -> Result<Surroundings, Errno> {
    let mut entropy = [0; 64];
    rustix::rand::getrandom(&mut entropy, rustix::rand::GetRandomFlags::empty())?;
    let umask = rustix::process::umask(rustix::fs::Mode::empty());
    Ok(Surroundings {
        has_terminal: streams::has_terminal(),
        umask: umask.as_raw_mode(),
        entropy,
    })
}

/// The time, for a guest whose own clock began some other day.
fn time() -> Vec<u8> {
    let now = std::time::SystemTime::now();
    let now = now
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    let seconds = now.as_secs();
    wire::numbers(&[seconds as u32, (seconds >> 32) as u32, now.subsec_nanos()])
}

/// Starts who serves files.
fn serve_files(server: &Arc<Server>, channel: &Channel) -> mpsc::SyncSender<Vec<u8>> {
    let (sender, requests) = mpsc::sync_channel::<Vec<u8>>(WAITING);
    let requests = Arc::new(Mutex::new(requests));
    let is_told = Arc::new(AtomicBool::new(false));
    for _ in 0..SERVERS {
        let (server, channel) = (Arc::clone(server), Arc::clone(channel));
        let (requests, is_told) = (Arc::clone(&requests), Arc::clone(&is_told));
        std::thread::spawn(move || {
            loop {
                let next = requests
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .recv();
                let Ok(request) = next else {
                    return;
                };
                match server.serve(&request) {
                    Outcome::Answer(answer) => send(&channel, Kind::Answer, &answer),
                    Outcome::Silence => {}
                    // The end of what is listened to is the guest's.
                    Outcome::Garbage => {
                        let channel = channel.lock().unwrap_or_else(PoisonError::into_inner);
                        let _ = channel.shutdown(std::net::Shutdown::Both);
                    }
                }
                let is_crowded = server.is_crowded();
                if is_crowded && !is_told.swap(is_crowded, Ordering::Relaxed) {
                    send(&channel, Kind::Forget, &[]);
                } else if !is_crowded {
                    is_told.store(false, Ordering::Relaxed);
                }
            }
        });
    }
    sender
}

/// Who does what a guest asks for.
struct Service<'a> {
    streams: &'a Streams,
    requests: &'a mpsc::SyncSender<Vec<u8>>,
    ways: &'a Ways,
    telling: &'a mut Telling,
}

/// Listens to the guest until its program has ended.
fn attend(
    heard: &mut UnixStream,
    channel: &Channel,
    begin: Begin,
    order: &[u8],
    signals: Option<rustix::fd::OwnedFd>,
    service: &mut Service<'_>,
) -> Result<End, Failure> {
    let Service {
        streams,
        requests,
        ways,
        telling,
    } = service;
    let mut signals = signals;
    let mut is_up = false;
    let mut has_time = false;
    let _ = heard.set_read_timeout(Some(SLOWEST_START));
    let mut instruct = || {
        send(channel, Kind::Order, order);
        ways.start(channel)?;
        // Whoever passes no signals on has no input either.
        if let Some(signals) = signals.take() {
            streams::pass_signals(signals, channel);
            streams.input.start(channel);
        }
        Ok::<_, Failure>(())
    };
    if begin == Begin::Resume {
        is_up = true;
        instruct()?;
    }
    let garbage = |what: &str| Failure::Garbage(what.to_owned());
    loop {
        let frame = match wire::receive(heard, Sender::Guest) {
            Ok(frame) => frame,
            Err(WireError::Ended | WireError::Io(_)) => {
                return Err(Failure::Vanished(String::new()));
            }
            Err(error) => return Err(Failure::Garbage(error.to_string())),
        };
        let Frame { kind, body } = &frame;
        match kind {
            Kind::Up => {
                // Nothing is sent before: a channel that nobody has opened yet loses what it is given.
                if std::mem::replace(&mut is_up, true) {
                    return Err(garbage("it came up twice"));
                }
                instruct()?;
            }
            _ if !is_up && *kind != Kind::Failed => {
                return Err(garbage("it speaks before it is up"));
            }
            Kind::Output | Kind::Errors => {
                let [first, second] = &streams.outputs;
                let output = if *kind == Kind::Output { first } else { second };
                if !output.take(frame.body) {
                    return Err(garbage("more output than was asked for"));
                }
            }
            Kind::Consumed => {
                let [count] = frame
                    .numbers()
                    .ok_or_else(|| garbage("a count of another length"))?;
                if !streams.input.consumed(count as usize) {
                    return Err(garbage("it consumed more than it was given"));
                }
            }
            Kind::Request => {
                // The first, which nothing of the program's can come before: now the guest runs.
                if !std::mem::replace(&mut has_time, true) {
                    let _ = heard.set_read_timeout(None);
                    send(channel, Kind::Clock, &time());
                }
                if requests.send(frame.body).is_err() {
                    return Err(garbage("requests after the end"));
                }
            }
            Kind::Open | Kind::Flow | Kind::Room | Kind::Over | Kind::Lookup | Kind::Stray => {
                ways.hear(&frame)?
            }
            Kind::Refused => {
                let [which, hits] = frame
                    .numbers()
                    .ok_or_else(|| garbage("a refusal of another length"))?;
                if !telling.refused(which, hits) {
                    return Err(garbage("a refusal that can't be"));
                }
            }
            Kind::Ended => {
                let [status, killed] = frame
                    .numbers()
                    .ok_or_else(|| garbage("an end of another length"))?;
                let status = status as i32;
                if !libc::WIFEXITED(status) && !libc::WIFSIGNALED(status) {
                    return Err(garbage("an end that is none"));
                }
                return Ok(End::Program { status, killed });
            }
            Kind::NotStarted => {
                let [errno] = frame
                    .numbers()
                    .ok_or_else(|| garbage("an error of another length"))?;
                return Ok(End::NotStarted(errno as i32));
            }
            Kind::Failed => {
                let text = String::from_utf8_lossy(body);
                let plain = text.chars().filter(|c| !c.is_control());
                return Err(Failure::Guest(plain.collect()));
            }
            Kind::Order
            | Kind::Input
            | Kind::Taken
            | Kind::Closed
            | Kind::Signal
            | Kind::Window
            | Kind::Answer
            | Kind::Forget
            | Kind::Clock => return Err(garbage("a word of ours")),
        }
    }
}
