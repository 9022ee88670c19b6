//! Input, output and signals: each stream has a window, so that one that stands still holds up no other, and nothing grows.

use super::{Channel, send};
use crate::microvm::wire::{Kind, PIECE, WINDOW, numbers};
use crate::sys;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::io::{Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;

/// Signals that are the program's, not ours.
pub(super) const SIGNALS: &[i32] = &[
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGWINCH,
    libc::SIGCONT,
    libc::SIGTSTP,
];

/// All streams of a guest.
pub(super) struct Streams {
    pub(super) outputs: [Output; 2],
    pub(super) input: Input,
}

/// One of the program's two outputs.
pub(super) struct Output {
    pieces: mpsc::Sender<Vec<u8>>,
    waiting: Arc<AtomicUsize>,
    writer: JoinHandle<()>,
}

impl Output {
    pub(super) fn start(channel: &Channel, number: u32, mut to: Box<dyn Write + Send>) -> Self {
        let (pieces, arrived) = mpsc::channel::<Vec<u8>>();
        let waiting = Arc::new(AtomicUsize::new(0));
        let (channel, left) = (Arc::clone(channel), Arc::clone(&waiting));
        let writer = std::thread::spawn(move || {
            let mut is_open = true;
            for piece in arrived {
                let written = to.write_all(&piece);
                if written.is_err() && is_open {
                    is_open = false;
                    send(&channel, Kind::Closed, &numbers(&[number]));
                }
                left.fetch_sub(piece.len(), Ordering::AcqRel);
                send(
                    &channel,
                    Kind::Taken,
                    &numbers(&[number, piece.len() as u32]),
                );
            }
        });
        Self {
            pieces,
            waiting,
            writer,
        }
    }

    /// Takes a piece, unless there is more of it than was asked for.
    pub(super) fn take(&self, piece: Vec<u8>) -> bool {
        let before = self.waiting.fetch_add(piece.len(), Ordering::AcqRel);
        before + piece.len() <= WINDOW && !piece.is_empty() && self.pieces.send(piece).is_ok()
    }

    /// Waits until all is written.
    pub(super) fn finish(self) {
        drop(self.pieces);
        let _ = self.writer.join();
    }
}

/// A descriptor that keeps nothing back. (What the standard library has keeps what has no line's end yet.)
pub(super) struct Raw(pub(super) BorrowedFd<'static>);

impl Write for Raw {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        loop {
            match rustix::io::write(self.0, bytes) {
                // It may be somebody's who made it so.
                Err(rustix::io::Errno::AGAIN) => {
                    let mut ready = [PollFd::from_borrowed_fd(self.0, PollFlags::OUT)];
                    poll(&mut ready, None)?;
                }
                written => return Ok(written?),
            }
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The program's input.
#[derive(Default)]
pub(super) struct Input {
    sent: Arc<(Mutex<usize>, Condvar)>,
}

impl Input {
    /// Begins to read ours.
    pub(super) fn start(&self, channel: &Channel) {
        let (channel, sent) = (Arc::clone(channel), Arc::clone(&self.sent));
        std::thread::spawn(move || {
            let mut piece = vec![0; PIECE];
            loop {
                let count = match std::io::stdin().lock().read(&mut piece) {
                    Ok(count) => count,
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                        let stdin = rustix::stdio::stdin();
                        let mut ready = [PollFd::new(&stdin, PollFlags::IN)];
                        let _ = poll(&mut ready, None);
                        continue;
                    }
                    Err(_) => 0,
                };
                let (outstanding, changed) = &*sent;
                let mut outstanding = outstanding.lock().unwrap_or_else(PoisonError::into_inner);
                while *outstanding + count > WINDOW {
                    outstanding = changed
                        .wait(outstanding)
                        .unwrap_or_else(PoisonError::into_inner);
                }
                *outstanding += count;
                drop(outstanding);
                send(
                    &channel,
                    Kind::Input,
                    piece.get(..count).unwrap_or_default(),
                );
                if count == 0 {
                    return;
                }
            }
        });
    }

    /// The guest has taken so much; not more than it was given.
    pub(super) fn consumed(&self, count: usize) -> bool {
        let (outstanding, changed) = &*self.sent;
        let mut outstanding = outstanding.lock().unwrap_or_else(PoisonError::into_inner);
        match outstanding.checked_sub(count) {
            Some(left) => {
                *outstanding = left;
                changed.notify_one();
                true
            }
            None => false,
        }
    }
}

/// Passes the program's signals on.
pub(super) fn pass_signals(signals: OwnedFd, channel: &Channel) {
    let channel = Arc::clone(channel);
    send_window(&channel);
    std::thread::spawn(move || {
        loop {
            let mut ready = [PollFd::new(&signals, PollFlags::IN)];
            let _ = poll(&mut ready, None);
            while let Some(signal) = sys::next_signal(signals.as_fd()) {
                match signal {
                    libc::SIGWINCH => send_window(&channel),
                    signal => send(&channel, Kind::Signal, &numbers(&[signal as u32])),
                }
            }
        }
    });
}

fn send_window(channel: &Channel) {
    if let Ok(size) = rustix::termios::tcgetwinsize(rustix::stdio::stdin()) {
        let size = [u32::from(size.ws_row), u32::from(size.ws_col)];
        send(channel, Kind::Window, &numbers(&size));
    }
}

/// Whether all that the program reads and writes is a terminal. Otherwise its output is somebody's who wants it as it is.
pub(super) fn has_terminal() -> bool {
    rustix::termios::isatty(rustix::stdio::stdin())
        && rustix::termios::isatty(rustix::stdio::stdout())
        && rustix::termios::isatty(rustix::stdio::stderr())
}

/// Our terminal, while the guest's does what terminals do. As it was before, when this value goes.
pub(super) struct PlainTerminal(Option<rustix::termios::Termios>);

impl PlainTerminal {
    pub(super) fn take() -> Self {
        let stdin = rustix::stdio::stdin();
        let group = rustix::termios::tcgetpgrp(stdin);
        if !has_terminal() || group != Ok(rustix::process::getpgrp()) {
            return Self(None);
        }
        let before = rustix::termios::tcgetattr(stdin).ok();
        if let Some(mut plain) = before.clone() {
            plain.make_raw();
            let _ =
                rustix::termios::tcsetattr(stdin, rustix::termios::OptionalActions::Now, &plain);
        }
        Self(before)
    }
}

impl Drop for PlainTerminal {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let stdin = rustix::stdio::stdin();
            let _ =
                rustix::termios::tcsetattr(stdin, rustix::termios::OptionalActions::Now, before);
        }
    }
}
