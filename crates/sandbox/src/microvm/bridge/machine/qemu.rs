//! QEMU.

use super::{Beginning, Control, Machine, Process, Purpose, common_words};
use crate::microvm::SLOWEST_START;
use crate::microvm::{Accelerator, place};
use crate::sys;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{self, BufRead, BufReader, IoSlice};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Between two questions how far it has come.
const PAUSE: Duration = Duration::from_millis(10);

pub(super) fn start(
    beginning: &Beginning,
    purpose: Purpose,
    megabytes: u64,
    accelerator: Accelerator,
) -> io::Result<(Machine, UnixStream)> {
    let (channel, theirs) = UnixStream::pair()?;
    let (Beginning::Boot { files: file, .. } | Beginning::Resume(file)) = beginning;
    let mut lent = vec![OwnedFd::from(theirs)];
    let mut command = command(&lent[0], megabytes, accelerator);
    match beginning {
        Beginning::Resume(file) => {
            command.args(["-incoming", &format!("fd:{}", file.as_raw_fd())]);
        }
        Beginning::Boot { files, .. } => boot(&mut command, files, accelerator),
    }
    let control = match purpose {
        Purpose::Run { .. } => Control::None,
        Purpose::Keep => {
            let (ours, theirs) = UnixStream::pair()?;
            let theirs = OwnedFd::from(theirs);
            command
                .args(["-chardev", &socket("control", &theirs)])
                .args(["-mon", "chardev=control,mode=control"]);
            lent.push(theirs);
            Control::Qemu(Monitor {
                heard: BufReader::new(ours),
            })
        }
    };
    sys::keep_on_exec(file.as_raw_fd())?;
    for fd in &lent {
        sys::keep_on_exec(fd.as_raw_fd())?;
    }
    let process = Process::heard(sys::spawn_to_die_with_us(&mut command, purpose.limit())?);
    Ok((Machine { process, control }, channel))
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

fn socket(name: &str, fd: &OwnedFd) -> String {
    format!("socket,id={name},fd={}", fd.as_raw_fd())
}

fn command(channel: &OwnedFd, megabytes: u64, accelerator: Accelerator) -> Command {
    // By its own loader: its libraries are not where it looks for them.
    let libraries = place("lib");
    let mut command = Command::new(libraries.join("ld-linux-x86-64.so.2"));
    command
        .arg("--library-path")
        .arg(&libraries)
        .arg(place("qemu"))
        .env_clear()
        .env("QEMU_MODULE_DIR", libraries.join("qemu"))
        .env("HOME", "/nowhere")
        .args(["-chardev", &socket("channel", channel)])
        .args(fixed_arguments(accelerator))
        .args(["-m", &format!("{megabytes}M")])
        .arg("-L")
        .arg(place("firmware"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
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
        "{} reboot=t {clock} -- {}",
        common_words(),
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

/// QEMU's own control, which no guest of a program's has.
pub(super) struct Monitor {
    heard: BufReader<UnixStream>,
}

impl Monitor {
    /// Has it write the guest to a file. It goes on from there as something that runs, so it is not stopped before.
    pub(super) fn save(&mut self, output: BorrowedFd<'_>) -> io::Result<()> {
        self.heard.get_ref().set_read_timeout(Some(SLOWEST_START))?;
        self.answer()?;
        self.ask(&json!({"execute": "qmp_capabilities"}), None)?;
        let fast = json!({"max-bandwidth": 1_u64 << 40});
        self.ask(
            &json!({"execute": "migrate-set-parameters", "arguments": fast}),
            None,
        )?;
        let name = json!({"fdname": "kept"});
        self.ask(
            &json!({"execute": "getfd", "arguments": name}),
            Some(output),
        )?;
        let there = json!({"uri": "fd:kept"});
        self.ask(&json!({"execute": "migrate", "arguments": there}), None)?;
        loop {
            let state = self.ask(&json!({"execute": "query-migrate"}), None)?;
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
