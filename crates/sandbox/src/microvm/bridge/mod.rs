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

use super::wire::{self, Frame, Kind, Sender, WireError};
use super::{FAILED_SIGNAL, OUT_OF_MEMORY_SIGNAL, place};
use crate::order::{Order, Surroundings};
use crate::sys;
pub(super) use keeping::keep;
pub use machine::clock_words;
pub(super) use machine::{Hardware, fixed_arguments};

use files::{Outcome, Server};
use machine::{Machine, Source};
use net::Ways;
use std::fs::File;
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
/// How long a guest may take to come up on the slowest host.
const SLOWEST_START: Duration = Duration::from_secs(300);
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

/// Runs a guest to its end, and ends this process as the guest's program did.
pub(super) fn run(hardware: Hardware, begin: Begin) -> u8 {
    match guest(hardware, begin) {
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
            complain(&failure.in_full());
            sys::die_by(FAILED_SIGNAL)
        }
    }
}

impl Failure {
    fn in_full(&self) -> String {
        match self {
            Failure::Start(error) => format!("{self}: {error}"),
            other => other.to_string(),
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

fn guest(hardware: Hardware, begin: Begin) -> Result<End, Failure> {
    let io = |error: rustix::io::Errno| Failure::Start(error.into());
    // A file that grows too large is an error to the guest, not our end; so is a reader that went away.
    sys::ignore_signals(&[libc::SIGXFSZ, libc::SIGPIPE, libc::SIGTTOU]);
    let signals = sys::watch_signals(streams::SIGNALS).map_err(io)?;
    sys::raise_soft_limit(libc::RLIMIT_NOFILE).map_err(io)?;
    let mut order = std::fs::read(place("order")).map_err(Failure::Start)?;
    hardware.demand()?;
    let beginning = match begin {
        Begin::Boot => first_files(),
        Begin::Resume => File::open(place("kept")),
    };
    let beginning = beginning.map_err(Failure::Start)?;
    let told = Order::decode(&order).ok_or(io(rustix::io::Errno::INVAL))?;
    limit_files(&told).map_err(io)?;
    let ways = Ways::open(told.reach).map_err(Failure::Start)?;
    let _terminal = streams::PlainTerminal::take();
    order.extend(surroundings().map_err(io)?.encode());
    let server = Arc::new(Server::new(std::path::Path::new("/")).map_err(io)?);
    let source = match begin {
        Begin::Boot => Source::Image(&beginning),
        Begin::Resume => Source::Kept(&beginning),
    };
    let (mut machine, mut heard) = Machine::start(&source, hardware).map_err(Failure::Start)?;
    drop(beginning);
    let channel = Arc::new(Mutex::new(heard.try_clone().map_err(Failure::Start)?));
    let streams = Streams {
        outputs: [
            Output::start(&channel, 1, Box::new(streams::Raw(rustix::stdio::stdout()))),
            Output::start(&channel, 2, Box::new(streams::Raw(rustix::stdio::stderr()))),
        ],
        input: Input::default(),
    };
    let requests = serve_files(&server, &channel);
    let service = Service {
        streams: &streams,
        requests: &requests,
        ways: &ways,
    };
    let end = attend(&mut heard, &channel, begin, &order, Some(signals), &service);
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

/// The first file system of a guest that starts.
fn first_files() -> std::io::Result<File> {
    let program = std::path::Path::new("/proc/self/exe");
    image::assemble(program, &place("modules"))
}

/// No file that we write for the guest may be larger than its program's may be.
fn limit_files(order: &Order) -> Result<(), rustix::io::Errno> {
    let size = order
        .limits
        .iter()
        .find(|(resource, _)| *resource == libc::RLIMIT_FSIZE);
    match size {
        Some((resource, bytes)) => sys::set_limit(*resource, *bytes),
        None => Ok(()),
    }
}

/// What the guest is to know of the box. From here on the masks are the guest's: what it asks for is masked already.
fn surroundings() -> Result<Surroundings, rustix::io::Errno> {
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
}

/// Listens to the guest until its program has ended.
fn attend(
    heard: &mut UnixStream,
    channel: &Channel,
    begin: Begin,
    order: &[u8],
    signals: Option<rustix::fd::OwnedFd>,
    service: &Service<'_>,
) -> Result<End, Failure> {
    let Service {
        streams,
        requests,
        ways,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Network;
    use crate::reach::Reach;
    use std::io::Read;

    /// What becomes of a guest that says this, and nothing after.
    fn said_by_a_guest(words: &[u8]) -> Result<End, Failure> {
        said_by_a_guest_that_reaches(NOTHING, words)
    }

    const NOTHING: Reach = Reach {
        network: Network::Closed,
        answered: None,
        published: Vec::new(),
        doors: Vec::new(),
    };

    fn said_by_a_guest_that_reaches(reach: Reach, words: &[u8]) -> Result<End, Failure> {
        let (mut guest, mut heard) = UnixStream::pair().unwrap();
        let channel = Arc::new(Mutex::new(heard.try_clone().unwrap()));
        let streams = Streams {
            outputs: [
                Output::start(&channel, 3, Box::new(std::io::sink())),
                Output::start(&channel, 4, Box::new(std::io::sink())),
            ],
            input: Input::default(),
        };
        let tree = tempfile::tempdir().unwrap();
        let server = Arc::new(Server::new(tree.path()).unwrap());
        let requests = serve_files(&server, &channel);
        // One end reads what it is told, as a guest's kernel does, or the other would wait for it.
        let mut answers = guest.try_clone().unwrap();
        std::thread::spawn(move || std::io::copy(&mut answers, &mut std::io::sink()));
        let words = words.to_vec();
        let talker = std::thread::spawn(move || {
            let _ = guest.write_all(&words);
            let _ = guest.shutdown(std::net::Shutdown::Write);
        });
        let ways = Ways::open(reach).unwrap();
        let service = Service {
            streams: &streams,
            requests: &requests,
            ways: &ways,
        };
        let end = attend(&mut heard, &channel, Begin::Boot, b"", None, &service);
        drop(heard);
        let _ = channel.lock().unwrap().shutdown(std::net::Shutdown::Both);
        talker.join().unwrap();
        end
    }

    fn frame(kind: Kind, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        wire::send(&mut bytes, kind, body).unwrap();
        bytes
    }

    fn assert_garbage(words: &[u8]) {
        let end = said_by_a_guest(words);
        assert!(matches!(end, Err(Failure::Garbage(_))), "{:?}", end.err());
    }

    #[test]
    fn a_guest_is_heard_to_its_end() {
        let words = [
            frame(Kind::Up, &[]),
            frame(Kind::Output, b"hi"),
            frame(Kind::Ended, &wire::numbers(&[7 << 8, 0])),
        ];
        let end = said_by_a_guest(&words.concat());
        assert!(matches!(
            end,
            Ok(End::Program {
                status: 0x700,
                killed: 0
            })
        ));
    }

    #[test]
    fn a_guest_that_stops_in_the_middle_of_a_word_has_vanished() {
        let words = [frame(Kind::Up, &[]), frame(Kind::Output, b"hi")].concat();
        for length in [0, 3, 8, 12, words.len()] {
            let end = said_by_a_guest(&words[..length]);
            assert!(matches!(end, Err(Failure::Vanished(_))), "{length}");
        }
    }

    #[test]
    fn what_no_guest_says_ends_it() {
        let up = frame(Kind::Up, &[]);
        let then = |words: Vec<u8>| [up.clone(), words].concat();
        assert_garbage(&frame(Kind::Output, b"before it is up"));
        assert_garbage(&then(up.clone()));
        assert_garbage(&then(frame(Kind::Answer, b"a word of ours")));
        assert_garbage(&then(vec![0xff; 64]));
        assert_garbage(&then(
            [u32::MAX.to_le_bytes(), [Kind::Output as u8, 0, 0, 0]].concat(),
        ));
        assert_garbage(&then(frame(Kind::Consumed, &wire::numbers(&[1]))));
        assert_garbage(&then(frame(Kind::Ended, b"short")));
        assert_garbage(&then(frame(Kind::Ended, &wire::numbers(&[0x7f, 0]))));
        assert_garbage(&then(frame(Kind::Output, &[])));
    }

    #[test]
    fn packets_and_flows_that_lead_nowhere_end_a_guest() {
        let then = |kind, body: &[u8]| [frame(Kind::Up, &[]), frame(kind, body)].concat();
        // There is no network in this box, so that no guest of it looks names up.
        assert_garbage(&then(Kind::Lookup, b"?"));
        assert_garbage(&then(Kind::Stray, &[4; 19]));
        assert_garbage(&then(Kind::Open, &[0; 3]));
        assert_garbage(&then(Kind::Open, &[0xff; 23]));
        assert_garbage(&then(Kind::Flow, &[0; 9]));
        assert_garbage(&then(Kind::Room, &[0; 8]));
        assert_garbage(&then(Kind::Over, &[0; 8]));
        assert_garbage(&frame(Kind::Open, &[0; 23]));
        let guarded = Reach {
            network: Network::Guarded {
                host_ports: Vec::new(),
            },
            ..NOTHING
        };
        let end = said_by_a_guest_that_reaches(guarded, &then(Kind::Stray, &[0; 19]));
        assert!(matches!(end, Err(Failure::Garbage(_))), "{:?}", end.err());
    }

    /// It asks for doors that are not there, and hears that each is closed.
    #[test]
    fn a_guest_that_opens_what_is_not_there_goes_on() {
        let mut words = frame(Kind::Up, &[]);
        for slot in 0..200u32 {
            let door = [&slot.to_le_bytes()[..], &[0; 19]].concat();
            words.extend(frame(Kind::Open, &door));
            words.extend(frame(
                Kind::Flow,
                &[&slot.to_le_bytes()[..], b"hello"].concat(),
            ));
        }
        words.extend(frame(Kind::Ended, &wire::numbers(&[0, 0])));
        assert!(matches!(
            said_by_a_guest(&words),
            Ok(End::Program { status: 0, .. })
        ));
    }

    #[test]
    fn a_request_that_is_none_ends_the_guest() {
        let words = [frame(Kind::Up, &[]), frame(Kind::Request, b"no header")].concat();
        let end = said_by_a_guest(&words);
        assert!(matches!(end, Err(Failure::Vanished(_))), "{:?}", end.err());
    }

    #[test]
    fn a_flood_of_requests_is_answered_and_never_piles_up() {
        let mut statfs = [0; 40];
        statfs[0] = 40;
        statfs[4] = 17;
        statfs[16] = 1;
        let mut words = frame(Kind::Up, &[]);
        for _ in 0..50_000 {
            words.extend(frame(Kind::Request, &statfs));
        }
        words.extend(frame(Kind::Ended, &wire::numbers(&[0, 0])));
        assert!(matches!(
            said_by_a_guest(&words),
            Ok(End::Program { status: 0, .. })
        ));
    }

    #[test]
    fn output_that_nobody_takes_is_never_more_than_a_window() {
        /// Somebody who takes nothing.
        struct Busy(mpsc::Receiver<()>);
        impl Write for Busy {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                let _ = self.0.recv();
                Ok(bytes.len())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let (mut guest, heard) = UnixStream::pair().unwrap();
        let channel = Arc::new(Mutex::new(heard));
        let (free, busy) = mpsc::channel();
        let output = Output::start(&channel, 1, Box::new(Busy(busy)));
        let piece = || vec![b'x'; wire::PIECE];
        let taken = (0..100).take_while(|_| output.take(piece())).count();
        assert_eq!(taken, wire::WINDOW / wire::PIECE);
        drop(free);
        output.finish();
        drop(channel);
        let mut told = Vec::new();
        guest.read_to_end(&mut told).unwrap();
        assert_eq!(told.len(), taken * 16, "each piece is told as taken once");
    }
}
