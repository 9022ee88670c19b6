//! The bridge: what stands in a box in the program's place and leads to the guest that runs it.
//!
//! It starts the emulator, serves the guest its files, and carries input, output, signals and the end across. It is in the
//! box as any program is, so all that the box's keeper does to the box reaches guest and bridge alike. It believes nothing a
//! guest says: see [`super::wire`].

mod files;
mod image;
mod machine;
mod streams;

use super::order::Surroundings;
use super::wire::{self, Frame, Kind, Sender, WireError};
use super::{FAILED_SIGNAL, OUT_OF_MEMORY_SIGNAL, place};
use crate::sys;
use files::{Outcome, Server};
use machine::Machine;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;
use streams::{Input, Output, Streams};

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
    #[error("the guest ended without a word{}", said(.0))]
    Vanished(String),
}

fn said(console: &str) -> String {
    match console {
        "" => String::new(),
        console => format!("; its last words:\n{console}"),
    }
}

/// The channel to the guest: whole frames, one at a time.
type Channel = Arc<Mutex<UnixStream>>;

fn send(channel: &Channel, kind: Kind, body: &[u8]) {
    let mut channel = channel.lock().unwrap_or_else(PoisonError::into_inner);
    // A guest that is gone is noticed where it is listened to.
    let _ = wire::send(&mut *channel, kind, body);
}

/// Runs a guest to its end, and ends this process as the guest's program did.
pub(super) fn run(megabytes: u64) -> u8 {
    match guest(megabytes) {
        Ok(End::Program { status, killed }) => end_as(status, killed),
        Ok(End::NotStarted(errno)) => {
            let error = std::io::Error::from_raw_os_error(errno);
            complain(&format!("the guest can't start the program: {error}"));
            match errno {
                libc::ENOENT | libc::ENOTDIR => 127,
                _ => 126,
            }
        }
        Err(failure) => {
            let mut text = failure.to_string();
            if let Failure::Start(error) = &failure {
                text = format!("{text}: {error}");
            }
            complain(&text);
            sys::die_by(FAILED_SIGNAL)
        }
    }
}

fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "[belljar] microvm: {text}");
}

/// A program's end becomes ours. The two signals that mean something else here are passed on as codes.
fn end_as(status: i32, killed: u32) -> u8 {
    if killed > 0 {
        sys::die_by(OUT_OF_MEMORY_SIGNAL);
    }
    if libc::WIFSIGNALED(status) {
        match libc::WTERMSIG(status) {
            OUT_OF_MEMORY_SIGNAL | FAILED_SIGNAL => {}
            signal => sys::die_by(signal),
        }
        return u8::try_from(128 + libc::WTERMSIG(status)).unwrap_or(255);
    }
    libc::WEXITSTATUS(status) as u8
}

fn guest(megabytes: u64) -> Result<End, Failure> {
    let io = |error: rustix::io::Errno| Failure::Start(error.into());
    // A file that grows too large is an error to the guest, not our end; so is a reader that went away.
    sys::ignore_signals(&[libc::SIGXFSZ, libc::SIGPIPE, libc::SIGTTOU]);
    let signals = sys::watch_signals(streams::SIGNALS).map_err(io)?;
    sys::raise_soft_limit(libc::RLIMIT_NOFILE).map_err(io)?;
    let mut order = std::fs::read(place("order")).map_err(Failure::Start)?;
    order.extend(surroundings().map_err(io)?.encode());
    let program = std::path::Path::new("/proc/self/exe");
    let image = image::assemble(program, &place("modules")).map_err(Failure::Start)?;
    let server = Arc::new(Server::new(std::path::Path::new("/")).map_err(io)?);
    let (mut machine, mut heard) = Machine::start(&image, megabytes).map_err(Failure::Start)?;
    drop(image);
    let channel = Arc::new(Mutex::new(heard.try_clone().map_err(Failure::Start)?));
    let streams = Streams {
        outputs: [Output::start(&channel, 1), Output::start(&channel, 2)],
        input: Input::default(),
    };
    let requests = serve_files(&server, &channel);
    let end = attend(&mut heard, &channel, &order, signals, &streams, &requests);
    for output in streams.outputs {
        output.finish();
    }
    match end {
        Err(Failure::Vanished(_)) => {
            machine.is_ended_within(PATIENCE);
            Err(Failure::Vanished(machine.complaints()))
        }
        end => end,
    }
}

/// What the guest is to know of the box. From here on the masks are the guest's: what it asks for is masked already.
fn surroundings() -> Result<Surroundings, rustix::io::Errno> {
    let mut entropy = [0; 64];
    rustix::rand::getrandom(&mut entropy, rustix::rand::GetRandomFlags::empty())?;
    let umask = rustix::process::umask(rustix::fs::Mode::empty());
    Ok(Surroundings {
        umask: umask.as_raw_mode(),
        entropy,
    })
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

/// Listens to the guest until its program has ended.
fn attend(
    heard: &mut UnixStream,
    channel: &Channel,
    order: &[u8],
    signals: rustix::fd::OwnedFd,
    streams: &Streams,
    requests: &mpsc::SyncSender<Vec<u8>>,
) -> Result<End, Failure> {
    let mut signals = Some(signals);
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
                let Some(signals) = signals.take() else {
                    return Err(garbage("it came up twice"));
                };
                send(channel, Kind::Order, order);
                streams::pass_signals(signals, channel);
                streams.input.start(channel);
            }
            _ if signals.is_some() && *kind != Kind::Failed => {
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
                if requests.send(frame.body).is_err() {
                    return Err(garbage("requests after the end"));
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
            | Kind::Forget => return Err(garbage("a word of ours")),
        }
    }
}
