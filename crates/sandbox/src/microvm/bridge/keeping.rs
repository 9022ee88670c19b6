//! A guest that is started to be kept: it comes up, is told nothing, and is written to our output.

use super::machine::{Hardware, Machine, Source};
use super::{Failure, SLOWEST_START, complain, first_files};
use crate::microvm::wire::{self, Kind, Sender};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use serde_json::{Value, json};
use std::io::{self, BufRead, BufReader, IoSlice};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Between two questions how far the emulator has come.
const PAUSE: Duration = Duration::from_millis(10);

/// Starts a guest and writes it to our output once it waits for its order.
pub(crate) fn keep(hardware: Hardware) -> u8 {
    match start_and_save(hardware) {
        Ok(()) => 0,
        Err(failure) => {
            complain(&failure.in_full());
            1
        }
    }
}

fn start_and_save(hardware: Hardware) -> Result<(), Failure> {
    hardware.demand()?;
    let (control, theirs) = UnixStream::pair().map_err(Failure::Start)?;
    let theirs = OwnedFd::from(theirs);
    let image = first_files().map_err(Failure::Start)?;
    let source = Source::ToKeep(&image, &theirs);
    let (mut machine, mut heard) = Machine::start(&source, hardware).map_err(Failure::Start)?;
    drop((image, theirs));
    let _ = heard.set_read_timeout(Some(SLOWEST_START));
    match wire::receive(&mut heard, Sender::Guest) {
        Ok(frame) if frame.kind == Kind::Up => {}
        Ok(frame) => {
            let text = String::from_utf8_lossy(&frame.body);
            let plain = text.chars().filter(|c| !c.is_control());
            return Err(Failure::Guest(plain.collect()));
        }
        Err(_) => {
            machine.is_ended_within(super::PATIENCE);
            return Err(Failure::Vanished(machine.complaints()));
        }
    }
    save(control).map_err(Failure::Start)
}

/// Has the emulator write the guest to our output. It goes on from there as something that runs, so it is not stopped before.
fn save(control: UnixStream) -> io::Result<()> {
    control.set_read_timeout(Some(SLOWEST_START))?;
    let mut emulator = Emulator {
        heard: BufReader::new(control),
    };
    emulator.answer()?;
    emulator.ask(&json!({"execute": "qmp_capabilities"}), None)?;
    let fast = json!({"max-bandwidth": 1_u64 << 40});
    emulator.ask(
        &json!({"execute": "migrate-set-parameters", "arguments": fast}),
        None,
    )?;
    let output = rustix::stdio::stdout();
    let name = json!({"fdname": "kept"});
    emulator.ask(
        &json!({"execute": "getfd", "arguments": name}),
        Some(output),
    )?;
    let there = json!({"uri": "fd:kept"});
    emulator.ask(&json!({"execute": "migrate", "arguments": there}), None)?;
    loop {
        let state = emulator.ask(&json!({"execute": "query-migrate"}), None)?;
        match state.get("status").and_then(Value::as_str) {
            Some("completed") => return Ok(()),
            Some("setup" | "active" | "device") | None => std::thread::sleep(PAUSE),
            Some(_) => {
                let why = state.get("error-desc").and_then(Value::as_str);
                return Err(io::Error::other(
                    why.unwrap_or("it can't be written").to_owned(),
                ));
            }
        }
    }
}

/// The emulator's own control, which no guest of a program's has.
struct Emulator {
    heard: BufReader<UnixStream>,
}

impl Emulator {
    fn ask(&mut self, question: &Value, fd: Option<BorrowedFd<'_>>) -> io::Result<Value> {
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let fds: Vec<BorrowedFd<'_>> = fd.into_iter().collect();
        if !fds.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(&fds));
        }
        let question = question.to_string();
        let parts = [IoSlice::new(question.as_bytes())];
        let control = self.heard.get_ref().as_fd();
        rustix::net::sendmsg(control, &parts, &mut ancillary, SendFlags::NOSIGNAL)?;
        self.answer()
    }

    /// The next answer, or what it says when it begins; what else happens is none of our business.
    fn answer(&mut self) -> io::Result<Value> {
        loop {
            let mut line = String::new();
            if self.heard.read_line(&mut line)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let mut value: Value = serde_json::from_str(&line)?;
            if let Some(error) = value.get("error") {
                return Err(io::Error::other(error.to_string()));
            }
            if value.get("QMP").is_some() {
                return Ok(Value::Null);
            }
            if let Some(answer) = value.get_mut("return") {
                return Ok(answer.take());
            }
        }
    }
}
