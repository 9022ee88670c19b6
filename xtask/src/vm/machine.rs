//! qemu: boots the guest and listens to its console, for a bounded time.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::Failure;

/// More than any run prints; a guest that prints this much is in a loop.
const CONSOLE_LIMIT: usize = 16 << 20;

/// Everything the guest printed, and how it came to an end.
pub(super) struct Console {
    pub(super) text: String,
    pub(super) ending: Ending,
}

/// Why there is no more to read from the console.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Ending {
    /// The guest powered off, or crashed.
    PoweredOff,
    /// It was still running at the time limit and has been killed.
    TimedOut,
    /// It printed without end and has been killed.
    PrintedTooMuch,
}

/// What the emulated machine is like.
pub(super) struct Hardware {
    megabytes: u32,
    clock: Clock,
}

/// What time in the guest is.
#[derive(Clone, Copy)]
enum Clock {
    /// What it executes, and idle time is skipped. Otherwise a busy host starves the emulated timer, the kernel can't calibrate its
    /// clock, and the boot hangs. Works with one processor only.
    Executed,
    /// The host's, whose rate the kernel is told for the same reason. A guest that has guests of its own stands still by the other.
    Hosts,
}

impl Hardware {
    /// Where the same happens in every run, however busy the host is.
    pub(super) const STEADY: Self = Self {
        megabytes: 1024,
        clock: Clock::Executed,
    };
    /// Where guests of the guest's own run, and are kept on its disk, which is memory.
    pub(super) const NESTING: Self = Self {
        megabytes: 3072,
        clock: Clock::Hosts,
    };
    /// The same for guests of two makers.
    pub(super) const NESTING_BOTH: Self = Self {
        megabytes: 4096,
        ..Self::NESTING
    };
}

/// Boots the guest and waits for its end; never longer than `time_limit`. What it prints is in the file
/// `log` at once, for whoever wonders what it is doing.
pub(super) fn boot(
    hardware: &Hardware,
    kernel: &Path,
    image: &Path,
    log: &Path,
    time_limit: Duration,
) -> Result<Console, Failure> {
    let mut log = File::create(log)?;
    let process = qemu(hardware, kernel, image)
        .spawn()
        .map_err(|error| format!("vm-test: qemu: {error}; try `make setup`"))?;
    let mut machine = Machine(process);
    let output = machine
        .0
        .stdout
        .take()
        .ok_or("vm-test: qemu has no output")?;
    let lines = lines_of(output);
    Ok(listen(&lines, &mut log, Instant::now() + time_limit)?)
}

fn qemu(hardware: &Hardware, kernel: &Path, image: &Path) -> Command {
    let (clock, clock_words): (&[&str], _) = match hardware.clock {
        Clock::Executed => (&["-icount", "shift=2,sleep=off"], String::new()),
        // Once it slept and nothing woke it again, while its guest ran a guest. Why was not found out; this one never sleeps.
        Clock::Hosts => (
            &[],
            format!("{} idle=poll", belljar_sandbox::microvm::clock_words()),
        ),
    };
    let words = format!("console=ttyS0 loglevel=1 panic=-1 reboot=t {clock_words}");
    // If we are killed, the emulator must not live on.
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", "--", "qemu-system-x86_64"])
        .args([
            "-accel",
            "tcg",
            "-M",
            "microvm,rtc=on,pit=on,pic=on",
            "-cpu",
            "max",
            "-m",
            &hardware.megabytes.to_string(),
        ])
        .args([
            "-display",
            "none",
            "-serial",
            "stdio",
            "-monitor",
            "none",
            "-no-reboot",
            "-nodefaults",
        ])
        .args(clock)
        // A triple fault is the one way to end a machine that has neither ACPI nor a keyboard controller.
        .args(["-append", &words])
        .arg("-kernel")
        .arg(kernel)
        .arg("-initrd")
        .arg(image)
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    command
}

/// A running emulator: ends, by its own process id, with this value.
struct Machine(Child);

impl Drop for Machine {
    fn drop(&mut self) {
        // Both fail only for a process that is gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Reading blocks, so it happens in a thread; the receiver can give up at its deadline.
fn lines_of(output: impl std::io::Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

fn listen(
    lines: &Receiver<Vec<u8>>,
    log: &mut impl Write,
    deadline: Instant,
) -> io::Result<Console> {
    let mut text = String::new();
    let ending = loop {
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                let line = String::from_utf8_lossy(&line);
                let line = line.trim_end_matches('\r');
                writeln!(log, "{line}")?;
                text.push_str(line);
                text.push('\n');
            }
            Err(RecvTimeoutError::Timeout) => break Ending::TimedOut,
            Err(RecvTimeoutError::Disconnected) => break Ending::PoweredOff,
        }
        if text.len() > CONSOLE_LIMIT {
            break Ending::PrintedTooMuch;
        }
    };
    Ok(Console { text, ending })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn far_future() -> Instant {
        Instant::now() + Duration::from_secs(3600)
    }

    #[test]
    fn the_console_is_read_to_its_end_and_logged() {
        let lines = lines_of(&b"booting\r\nVM-RESULT: 1 passed, 0 failed\r\n"[..]);
        let mut log = Vec::new();
        let console = listen(&lines, &mut log, far_future()).unwrap();
        assert_eq!(console.text, "booting\nVM-RESULT: 1 passed, 0 failed\n");
        assert_eq!(console.ending, Ending::PoweredOff);
        assert_eq!(log, console.text.as_bytes());
    }

    #[test]
    fn a_silent_guest_is_given_up_at_the_deadline() {
        let (_still_running, lines) = mpsc::channel();
        let console = listen(&lines, &mut io::sink(), Instant::now()).unwrap();
        assert_eq!(console.ending, Ending::TimedOut);
    }

    #[test]
    fn a_guest_that_never_stops_printing_is_given_up() {
        let (sender, lines) = mpsc::channel();
        sender.send(vec![b'x'; CONSOLE_LIMIT]).unwrap();
        let console = listen(&lines, &mut io::sink(), far_future()).unwrap();
        assert_eq!(console.ending, Ending::PrintedTooMuch);
    }
}
