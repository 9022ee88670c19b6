//! The virtual machine: one processor, memory, a serial line to complain on, and one channel. No network, no disk, no other device.

mod api;
mod firecracker;
mod kernel;
mod qemu;

#[cfg(test)]
pub(super) use firecracker::{Places, start as start_firecracker, state_in};
#[cfg(test)]
pub(super) use kernel::unpacked;
pub use qemu::clock_words;
pub(crate) use qemu::fixed_arguments;

use super::{Failure, image};
use crate::microvm::{Carrier, place, try_kvm};
use rustix::fd::BorrowedFd;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Child;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How much of what a guest's kernel complained about is kept.
const CONSOLE: usize = 8 << 10;

/// A running guest. It ends with this value.
pub(super) struct Machine {
    process: Process,
    control: Control,
}

/// How the machine's maker is spoken to once the guest runs.
enum Control {
    /// Not at all: no guest of a program's has more than its channel.
    None,
    Qemu(qemu::Monitor),
    Firecracker(firecracker::Keeping),
}

/// What a guest runs on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hardware {
    pub(crate) megabytes: u64,
    pub(crate) carrier: Carrier,
}

impl Hardware {
    /// Whether the box's user has it as well as its keeper has.
    pub(super) fn demand(self) -> Result<(), Failure> {
        match self.carrier.takes_kvm() {
            false => Ok(()),
            true => try_kvm()
                .map_err(|why| Failure::Start(io::Error::other(format!("in the box, {why}")))),
        }
    }

    /// What a guest that starts begins from.
    pub(super) fn first(self) -> io::Result<Beginning> {
        let files = image::assemble(Path::new("/proc/self/exe"), &place("modules"))?;
        let kernel = match self.carrier {
            Carrier::Qemu(_) => None,
            Carrier::Firecracker => Some(kernel::unpacked(&place("kernel"))?),
        };
        Ok(Beginning::Boot { files, kernel })
    }

    /// What a guest that goes on begins from.
    pub(super) fn kept(self) -> io::Result<Beginning> {
        let kept = File::open(place("kept"))?;
        Ok(Beginning::Resume(match self.carrier {
            Carrier::Qemu(_) => kept,
            Carrier::Firecracker => firecracker::state_in(&kept)?,
        }))
    }
}

/// What a guest begins from. All of it is in files before the size of ours is limited to what the program's may have.
pub(super) enum Beginning {
    /// A first file system, and a kernel where the machine takes none that is packed.
    Boot { files: File, kernel: Option<File> },
    /// Where one was kept; to Firecracker all of that but the memory.
    Resume(File),
}

/// What a guest is started for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// For a program. No file that the machine's maker writes may be larger than its program's may be.
    Run { largest_file: Option<u64> },
    /// To be kept.
    Keep,
}

impl Purpose {
    /// What the machine's process is held to beyond what the bridge is held to itself by then.
    fn limit(self) -> Option<(libc::__rlimit_resource_t, u64)> {
        match self {
            Self::Run { largest_file } => largest_file.map(|bytes| (libc::RLIMIT_FSIZE, bytes)),
            Self::Keep => None,
        }
    }
}

impl Machine {
    /// Starts it; the other end of its channel is returned with it.
    pub(super) fn start(
        beginning: &Beginning,
        purpose: Purpose,
        hardware: Hardware,
    ) -> io::Result<(Self, UnixStream)> {
        match hardware.carrier {
            Carrier::Qemu(accelerator) => {
                qemu::start(beginning, purpose, hardware.megabytes, accelerator)
            }
            Carrier::Firecracker => {
                let places = firecracker::Places::of_a_box();
                firecracker::start(&places, beginning, purpose, hardware.megabytes)
            }
        }
    }

    /// Writes the guest, which waits for its order, to a file. It is not to go on after that.
    pub(super) fn save(&mut self, output: BorrowedFd<'_>) -> io::Result<()> {
        match &mut self.control {
            Control::None => Err(io::Error::other("it was not started to be kept")),
            Control::Qemu(monitor) => monitor.save(output),
            Control::Firecracker(keeping) => keeping.save(output),
        }
    }

    /// What it complained about last.
    pub(super) fn complaints(&self) -> String {
        self.process.complaints()
    }

    /// Waits for a guest that has gone silent to end, and for its last words, for a while.
    pub(super) fn await_end(&mut self, patience: Duration) {
        let deadline = std::time::Instant::now() + patience;
        while !(self.process.has_ended() && self.process.is_heard_out())
            && std::time::Instant::now() < deadline
        {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// The machine's process, which ends with this value, and what is heard of it.
struct Process {
    child: Child,
    console: Arc<Mutex<VecDeque<u8>>>,
    listeners: Vec<JoinHandle<()>>,
}

impl Process {
    /// Listens to what it says on its two outputs.
    fn heard(mut child: Child) -> Self {
        let console = Arc::new(Mutex::new(VecDeque::new()));
        let outputs = [
            child
                .stdout
                .take()
                .map(|pipe| Box::new(pipe) as Box<dyn Read + Send>),
            child
                .stderr
                .take()
                .map(|pipe| Box::new(pipe) as Box<dyn Read + Send>),
        ];
        let listeners = outputs.into_iter().flatten().map(|output| {
            let console = Arc::clone(&console);
            std::thread::spawn(move || listen(output, &console))
        });
        Self {
            child,
            listeners: listeners.collect(),
            console,
        }
    }

    /// Whether there is nothing more of what it said.
    fn is_heard_out(&self) -> bool {
        self.listeners.iter().all(JoinHandle::is_finished)
    }

    fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    fn complaints(&self) -> String {
        let console = self.console.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes: Vec<u8> = console.iter().copied().collect();
        let text = String::from_utf8_lossy(&bytes);
        // It is printed to a terminal, perhaps.
        let is_plain = |c: &char| *c == '\n' || !c.is_control();
        text.chars()
            .filter(is_plain)
            .collect::<String>()
            .trim()
            .to_owned()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn listen(mut output: Box<dyn Read + Send>, console: &Mutex<VecDeque<u8>>) {
    let mut bytes = [0; 512];
    while let Ok(count @ 1..) = output.read(&mut bytes) {
        let mut console = console.lock().unwrap_or_else(PoisonError::into_inner);
        console.extend(bytes.iter().take(count));
        let excess = console.len().saturating_sub(CONSOLE);
        console.drain(..excess);
    }
}

/// What every guest's kernel is told. What it is to do with its channel are the first words of its pid 1.
fn common_words() -> &'static str {
    "console=ttyS0 loglevel=3 panic=-1 edd=off lsm=landlock rdinit=/init"
}
