//! QEMU: one processor, memory, a serial line to complain on, and one channel. No network, no disk, no other device.

use super::Failure;
use crate::microvm::{Accelerator, place, try_kvm};
use crate::sys;
use rustix::fd::{AsRawFd, OwnedFd};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How much of what a guest's kernel complained about is kept.
const CONSOLE: usize = 8 << 10;

/// A running guest. It ends with this value.
pub(super) struct Machine {
    process: Child,
    console: Arc<Mutex<VecDeque<u8>>>,
}

/// What a guest runs on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hardware {
    pub(crate) megabytes: u64,
    pub(crate) accelerator: Accelerator,
}

impl Hardware {
    /// Whether the box's user has it as well as its keeper has.
    pub(super) fn demand(self) -> Result<(), Failure> {
        match self.accelerator {
            Accelerator::Emulation => Ok(()),
            Accelerator::Kvm => try_kvm()
                .map_err(|why| Failure::Start(io::Error::other(format!("in the box, {why}")))),
        }
    }
}

/// Where a guest comes from.
pub(super) enum Source<'a> {
    /// It starts from a kernel and this first file system.
    Image(&'a File),
    /// It starts the same way, and is told by this socket to write itself to a file.
    ToKeep(&'a File, &'a OwnedFd),
    /// It goes on from where it was kept, in this file.
    Kept(&'a File),
}

impl Machine {
    /// Starts it; the other end of its channel is returned with it.
    pub(super) fn start(source: &Source<'_>, hardware: Hardware) -> io::Result<(Self, UnixStream)> {
        let (ours, theirs) = UnixStream::pair()?;
        let theirs = OwnedFd::from(theirs);
        sys::keep_on_exec(theirs.as_raw_fd())?;
        match source {
            Source::Image(file) | Source::Kept(file) => sys::keep_on_exec(file.as_raw_fd())?,
            Source::ToKeep(file, control) => {
                sys::keep_on_exec(file.as_raw_fd())?;
                sys::keep_on_exec(control.as_raw_fd())?;
            }
        }
        let mut process = sys::spawn_to_die_with_us(&mut command(source, &theirs, hardware))?;
        drop(theirs);
        let console = Arc::new(Mutex::new(VecDeque::new()));
        for output in [
            process
                .stdout
                .take()
                .map(|pipe| Box::new(pipe) as Box<dyn Read + Send>),
            process
                .stderr
                .take()
                .map(|pipe| Box::new(pipe) as Box<dyn Read + Send>),
        ] {
            let console = Arc::clone(&console);
            std::thread::spawn(move || output.map(|output| listen(output, &console)));
        }
        Ok((Self { process, console }, ours))
    }

    /// What it complained about last.
    pub(super) fn complaints(&self) -> String {
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

    /// Waits for a guest that has gone silent to end, for a while.
    pub(super) fn is_ended_within(&mut self, patience: Duration) -> bool {
        let deadline = std::time::Instant::now() + patience;
        loop {
            match self.process.try_wait() {
                Ok(Some(_)) | Err(_) => return true,
                Ok(None) if std::time::Instant::now() >= deadline => return false,
                Ok(None) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
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

/// The arguments that are the same for every guest: a guest that was kept goes on only on the same machine. A guest that breaks
/// out of the emulator is under the emulator's own filter, under the box's, and in the box.
pub(crate) fn fixed_arguments(accelerator: Accelerator) -> impl Iterator<Item = &'static str> {
    [
        "-sandbox",
        "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
        "-no-user-config",
        "-nodefaults",
        "-display",
        "none",
        "-monitor",
        "none",
        "-M",
        "microvm,rtc=on,pit=on,pic=on",
        "-no-reboot",
        "-serial",
        "stdio",
        "-device",
        "virtio-serial-device,max_ports=2",
        "-device",
        "virtserialport,chardev=channel,name=belljar",
    ]
    .into_iter()
    .chain(accelerator.arguments())
}

fn command(source: &Source<'_>, channel: &OwnedFd, hardware: Hardware) -> Command {
    // By its own loader: its libraries are not where it looks for them.
    let libraries = place("lib");
    let mut command = Command::new(libraries.join("ld-linux-x86-64.so.2"));
    let socket = |name: &str, fd: &OwnedFd| format!("socket,id={name},fd={}", fd.as_raw_fd());
    command
        .arg("--library-path")
        .arg(&libraries)
        .arg(place("qemu"))
        .env_clear()
        .env("QEMU_MODULE_DIR", libraries.join("qemu"))
        .env("HOME", "/nowhere")
        .args(["-chardev", &socket("channel", channel)])
        .args(fixed_arguments(hardware.accelerator))
        .args(["-m", &format!("{}M", hardware.megabytes)])
        .arg("-L")
        .arg(place("firmware"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    match source {
        Source::Kept(file) => {
            command.args(["-incoming", &format!("fd:{}", file.as_raw_fd())]);
        }
        Source::Image(image) => boot(&mut command, image, hardware.accelerator),
        Source::ToKeep(image, control) => {
            boot(&mut command, image, hardware.accelerator);
            command
                .args(["-chardev", &socket("control", control)])
                .args(["-mon", "chardev=control,mode=control"]);
        }
    }
    command
}

fn boot(command: &mut Command, image: &File, accelerator: Accelerator) {
    command
        .arg("-kernel")
        .arg(place("kernel"))
        .args(["-initrd", &format!("/proc/self/fd/{}", image.as_raw_fd())])
        .args(["-append", &kernel_words(accelerator)]);
}

/// What the guest's kernel is told. Under KVM it asks that for the time.
fn kernel_words(accelerator: Accelerator) -> String {
    let clock = match accelerator {
        Accelerator::Kvm => String::new(),
        Accelerator::Emulation => clock_words(),
    };
    format!(
        "console=ttyS0 loglevel=3 panic=-1 reboot=t edd=off lsm=landlock {clock} rdinit=/init -- {}",
        crate::microvm::GUEST_WORD
    )
}

/// How fast its clock is, for a kernel whose processor is emulated. It can't find out by counting on a host that is busy: it would
/// wait for ever for a timer that comes too late. The emulated counter is the host's own, which we can measure.
pub fn clock_words() -> String {
    format!("no_timer_check tsc=reliable tsc_early_khz={}", clock_rate())
}

/// Thousands of the processor's counter's steps each second: the steadiest of some looks.
fn clock_rate() -> u64 {
    const LOOK: Duration = Duration::from_millis(4);
    let look = || {
        let (start, first) = (std::time::Instant::now(), sys::processor_counter());
        while start.elapsed() < LOOK {
            std::hint::spin_loop();
        }
        let (last, passed) = (sys::processor_counter(), start.elapsed());
        u128::from(last.wrapping_sub(first)) * 1_000_000 / passed.as_nanos()
    };
    let mut looks = [look(), look(), look()];
    looks.sort_unstable();
    u64::try_from(looks[1]).unwrap_or(1_000_000)
}
