//! Firecracker.
//!
//! It stands in the box as QEMU does, so the box is its jail: what its own `jailer` would do as root (a root of its own, other
//! namespaces, a control group, another user, only the devices it needs) the box has done already, for every user, and with
//! Landlock and a filter besides. Its own filters come on top.

use super::api::Api;
use super::{Beginning, Control, Machine, Process, Purpose, common_words};
use crate::microvm::SLOWEST_START;
use crate::microvm::{CHANNEL_PORT, GUEST_WORD, SOCKETS, VSOCK_WORD, place};
use crate::sys;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::fs::MemfdFlags;
use serde_json::{Value, json};
use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Where it and its parts are.
pub(in crate::microvm::bridge) struct Places {
    pub(in crate::microvm::bridge) program: PathBuf,
    /// A directory of its own.
    pub(in crate::microvm::bridge) sockets: PathBuf,
    /// What was kept.
    pub(in crate::microvm::bridge) kept: PathBuf,
    /// How long a guest that was kept may take to call.
    pub(in crate::microvm::bridge) patience: Duration,
}

impl Places {
    pub(super) fn of_a_box() -> Self {
        Self {
            program: place("firecracker"),
            sockets: place(SOCKETS),
            kept: place("kept"),
            patience: SLOWEST_CALL,
        }
    }
}

/// Any number that is no host's.
const GUEST_ADDRESS: u32 = 3;
/// What is kept ends with the length of what Firecracker calls state, and this.
const MARK: &[u8; 8] = b"bjguest1";
const END: u64 = 16;
const LARGEST_STATE: u64 = 16 << 20;
/// A guest that was kept has nothing to do before it calls but to notice that its host is another: on metal that is a blink, where
/// the processor is emulated and busy some seconds. A Firecracker that loses the call (1.16.0 is said to) loses no more time than this.
const SLOWEST_CALL: Duration = Duration::from_secs(20);
/// Between two looks whether it still runs.
const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};
/// How long its last words may take.
const LAST_WORDS: Duration = Duration::from_millis(200);

pub(in crate::microvm::bridge) fn start(
    places: &Places,
    beginning: &Beginning,
    purpose: Purpose,
    megabytes: u64,
) -> io::Result<(Machine, UnixStream)> {
    let guest = places.sockets.join("guest");
    // A guest that calls this port is led here, and by no other number anywhere.
    let door = places.sockets.join(format!("guest_{CHANNEL_PORT}"));
    let listener = UnixListener::bind(&door)?;
    let sheets = match purpose {
        Purpose::Run { .. } => None,
        Purpose::Keep => Some(Sheets::new()?),
    };
    let lent = match beginning {
        Beginning::Boot { files, kernel } => [Some(files), kernel.as_ref()],
        Beginning::Resume(state) => [Some(state), None],
    };
    let sheets_lent = sheets
        .iter()
        .flat_map(|sheets| [&sheets.state, &sheets.memory]);
    for file in lent.into_iter().flatten().chain(sheets_lent) {
        sys::keep_on_exec(file.as_raw_fd())?;
    }
    let address = places.sockets.join("api");
    let mut command = Command::new(&places.program);
    command
        .arg("--api-sock")
        .arg(&address)
        .args(["--id", "belljar", "--level", "Error"])
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut process = Process::heard(sys::spawn_to_die_with_us(&mut command, purpose.limit())?);
    let mut begin = || {
        let mut api = Api::connect(&address, || !process.has_ended())?;
        for (path, body) in requests(places, beginning, purpose, &guest, megabytes)? {
            api.put(path, &body)?;
        }
        let patience = match beginning {
            Beginning::Boot { .. } => SLOWEST_START,
            Beginning::Resume(_) => places.patience,
        };
        let channel = await_guest(&listener, &mut process, patience)?;
        Ok::<_, io::Error>((api, channel))
    };
    let begun = begin();
    // Whoever was to call has called.
    let _ = std::fs::remove_file(&door);
    match begun {
        Ok((api, channel)) => {
            let control = match sheets {
                None => Control::None,
                Some(sheets) => Control::Firecracker(Keeping { api, sheets }),
            };
            Ok((Machine { process, control }, channel))
        }
        Err(error) => {
            let mut machine = Machine {
                process,
                control: Control::None,
            };
            machine.await_end(LAST_WORDS);
            let said = crate::microvm::bridge::said(&machine.complaints());
            drop(machine);
            // It does not replace what is there, and there may be another.
            for left in [&address, &guest] {
                let _ = std::fs::remove_file(left);
            }
            Err(io::Error::new(
                error.kind(),
                format!("Firecracker: {error}{said}"),
            ))
        }
    }
}

/// What it is asked for, in this order, until its guest runs.
fn requests(
    places: &Places,
    beginning: &Beginning,
    purpose: Purpose,
    guest: &std::path::Path,
    megabytes: u64,
) -> io::Result<Vec<(&'static str, Value)>> {
    let text = |path: &std::path::Path| {
        let text = path.to_str().map(str::to_owned);
        text.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidFilename))
    };
    Ok(match beginning {
        Beginning::Resume(state) => vec![(
            "/snapshot/load",
            json!({
                "snapshot_path": own(state),
                "mem_backend": {"backend_type": "File", "backend_path": text(&places.kept)?},
                "resume_vm": true,
            }),
        )],
        Beginning::Boot { files, kernel } => {
            let kernel = kernel.as_ref().ok_or(io::ErrorKind::NotFound)?;
            let machine = json!({
                "vcpu_count": 1,
                "mem_size_mib": megabytes,
                "smt": false,
                // See [`Keeping::save`]. It costs a guest that runs a program something, and serves it nothing.
                "track_dirty_pages": purpose == Purpose::Keep,
            });
            let source = json!({
                "kernel_image_path": own(kernel),
                "initrd_path": own(files),
                "boot_args": kernel_words(),
            });
            let vsock = json!({"guest_cid": GUEST_ADDRESS, "uds_path": text(guest)?});
            vec![
                ("/machine-config", machine),
                ("/cpu-config", processor()),
                ("/boot-source", source),
                ("/vsock", vsock),
                ("/actions", json!({"action_type": "InstanceStart"})),
            ]
        }
    })
}

/// A file of ours, as whoever inherits it finds it.
fn own(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// The host's own, but for its virtualisation (AMD's and Intel's): no program in a guest is to have the host's kernel carry out
/// machines for it. Counters of what the processor does, Firecracker hides by itself.
fn processor() -> Value {
    let without = |leaf: &str, bit: usize| {
        let bits: String = (0..32)
            .rev()
            .map(|place| if place == bit { '0' } else { 'x' })
            .collect();
        json!({
            "leaf": leaf,
            "subleaf": "0x0",
            "flags": 0,
            "modifiers": [{"register": "ecx", "bitmap": format!("0b{bits}")}],
        })
    };
    json!({"cpuid_modifiers": [without("0x1", 5), without("0x80000001", 2)]})
}

/// What the guest's kernel is told. Words that it does not know are its pid 1's, and Firecracker may append to them.
fn kernel_words() -> String {
    format!(
        "{} reboot=k pci=off i8042.noaux i8042.nomux i8042.dumbkbd {GUEST_WORD} {VSOCK_WORD}",
        common_words()
    )
}

/// The guest's call, which is its channel from there on.
fn await_guest(
    listener: &UnixListener,
    process: &mut Process,
    patience: Duration,
) -> io::Result<UnixStream> {
    let deadline = Instant::now() + patience;
    loop {
        let mut calls = [PollFd::new(listener, PollFlags::IN)];
        if poll(&mut calls, Some(&LOOK))? > 0 {
            return Ok(listener.accept()?.0);
        }
        if process.has_ended() {
            return Err(io::Error::other("it ended before its guest was up"));
        }
        if Instant::now() >= deadline {
            let late = format!("its guest did not call within {} s", patience.as_secs());
            return Err(io::Error::new(io::ErrorKind::TimedOut, late));
        }
    }
}

/// What a guest is written to.
struct Sheets {
    state: File,
    memory: File,
}

impl Sheets {
    fn new() -> io::Result<Self> {
        Ok(Self {
            state: blank(c"state")?,
            memory: blank(c"memory")?,
        })
    }
}

fn blank(name: &CStr) -> io::Result<File> {
    Ok(File::from(rustix::fs::memfd_create(
        name,
        MemfdFlags::CLOEXEC,
    )?))
}

/// A guest that is to be kept.
pub(super) struct Keeping {
    api: Api,
    sheets: Sheets,
}

impl Keeping {
    /// Writes it to one file: its memory, which Firecracker maps from there when it goes on, then the rest, and how long that is.
    ///
    /// What was written to since the start is asked for, which of a guest that has just started is all that is not zero. A whole
    /// snapshot is as long as all the memory that the guest may ever have, zeros included, and no limit of this box bounds that: it
    /// would take as much of the host's once more. Firecracker calls this kind a developer preview. What may be wrong with it is a
    /// page that is missing: then a guest fails that has seen no plan, or goes wrong behind the same walls, and one that does not
    /// call gives way to one that starts from nothing. The other way, to keep no large guests, would have all of those start slowly.
    pub(super) fn save(&mut self, output: BorrowedFd<'_>) -> io::Result<()> {
        let Sheets { state, memory } = &self.sheets;
        self.api.patch("/vm", &json!({"state": "Paused"}))?;
        let there = json!({
            "snapshot_type": "Diff",
            "snapshot_path": own(state),
            "mem_file_path": own(memory),
        });
        self.api.put("/snapshot/create", &there)?;
        let output = File::from(output.try_clone_to_owned()?);
        let (memory_length, state_length) = (memory.metadata()?.len(), state.metadata()?.len());
        if memory_length == 0 || !(1..=LARGEST_STATE).contains(&state_length) {
            return Err(io::Error::other("Firecracker wrote no guest"));
        }
        copy_without_zeros(memory, &output, memory_length)?;
        let mut rest = vec![0; usize::try_from(state_length).unwrap_or(0)];
        state.read_exact_at(&mut rest, 0)?;
        rest.extend(state_length.to_le_bytes());
        rest.extend(MARK);
        output.write_all_at(&rest, memory_length)
    }
}

/// Most of a guest's memory was never used: it takes no disk.
fn copy_without_zeros(from: &File, to: &File, length: u64) -> io::Result<()> {
    const PIECE: u64 = 64 << 10;
    let (mut piece, zeros) = (vec![0; PIECE as usize], vec![0; PIECE as usize]);
    for at in (0..length).step_by(PIECE as usize) {
        let size = usize::try_from(PIECE.min(length - at)).unwrap_or(0);
        let bytes = piece.get_mut(..size).unwrap_or_default();
        from.read_exact_at(bytes, at)?;
        if !zeros.starts_with(bytes) {
            to.write_all_at(bytes, at)?;
        }
    }
    Ok(())
}

/// What was kept of a guest beside its memory, in a file of its own.
pub(in crate::microvm::bridge) fn state_in(kept: &File) -> io::Result<File> {
    let spoilt = || io::Error::new(io::ErrorKind::InvalidData, "what was kept is no guest");
    let length = kept.metadata()?.len();
    let mut end = [0; END as usize];
    let before = length.checked_sub(END).ok_or_else(spoilt)?;
    kept.read_exact_at(&mut end, before)?;
    let (size, mark) = end.split_at(8);
    let size = size.try_into().map(u64::from_le_bytes).unwrap_or(0);
    let start = before.checked_sub(size).filter(|start| *start > 0);
    if mark != MARK || !(1..=LARGEST_STATE).contains(&size) {
        return Err(spoilt());
    }
    let mut state = vec![0; usize::try_from(size).unwrap_or(0)];
    kept.read_exact_at(&mut state, start.ok_or_else(spoilt)?)?;
    let file = blank(c"state")?;
    file.write_all_at(&state, 0)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;
    use std::io::{Read, Write};
    use std::os::unix::fs::PermissionsExt;

    const MEGABYTE: usize = 1 << 20;

    /// Some memory that was used here and there.
    fn memory() -> Vec<u8> {
        let mut memory = vec![0; 3 * MEGABYTE];
        memory[5] = 1;
        memory[2 * MEGABYTE..2 * MEGABYTE + 9].copy_from_slice(b"something");
        memory
    }

    /// Answers as Firecracker does, and writes what it is asked to.
    fn keeping(
        state: &'static [u8],
        memory: Vec<u8>,
    ) -> (Keeping, std::thread::JoinHandle<Vec<String>>) {
        let place = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(place.path().join("api")).unwrap();
        let api = Api::connect(&place.path().join("api"), || true).unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = Vec::new();
            for _ in 0..2 {
                let mut bytes = vec![0; 4096];
                let count = stream.read(&mut bytes).unwrap();
                let text = String::from_utf8(bytes[..count].to_vec()).unwrap();
                let (head, body) = text.split_once("\r\n\r\n").unwrap();
                let body: Value = serde_json::from_str(body).unwrap();
                // As it does: over whatever is there.
                let write = |path: &Value, bytes: &[u8]| {
                    std::fs::write(path.as_str().unwrap(), bytes).unwrap();
                };
                if body.get("snapshot_path").is_some() {
                    assert_eq!(body["snapshot_type"], "Diff");
                    write(&body["snapshot_path"], state);
                    write(&body["mem_file_path"], &memory);
                }
                asked.push(head.lines().next().unwrap().to_owned());
                stream.write_all(b"HTTP/1.1 204 \r\n\r\n").unwrap();
            }
            asked
        });
        let sheets = Sheets::new().unwrap();
        (Keeping { api, sheets }, server)
    }

    #[test]
    fn a_guest_is_kept_in_one_file_whose_memory_comes_first_and_takes_no_room_where_it_is_empty() {
        use std::os::unix::fs::MetadataExt;
        let (mut keeping, server) = keeping(b"the state", memory());
        let file = tempfile::tempfile().unwrap();
        keeping.save(file.as_fd()).unwrap();
        assert_eq!(
            server.join().unwrap(),
            ["PATCH /vm HTTP/1.1", "PUT /snapshot/create HTTP/1.1"]
        );
        let mut kept = vec![0; 3 * MEGABYTE];
        file.read_exact_at(&mut kept, 0).unwrap();
        assert!(kept == memory());
        let mut state = Vec::new();
        let mut found = state_in(&file).unwrap();
        std::io::Seek::rewind(&mut found).unwrap();
        found.read_to_end(&mut state).unwrap();
        assert_eq!(state, b"the state");
        assert!(file.metadata().unwrap().blocks() * 512 < MEGABYTE as u64);
    }

    #[test]
    fn a_guest_that_was_not_written_is_not_kept() {
        for (state, memory) in [(b"".as_slice(), memory()), (b"state", Vec::new())] {
            let (mut keeping, server) = keeping(state, memory);
            let file = tempfile::tempfile().unwrap();
            assert!(keeping.save(file.as_fd()).is_err());
            server.join().unwrap();
        }
    }

    #[test]
    fn what_is_no_guest_is_not_taken_for_one() {
        let end = |size: u64| [&size.to_le_bytes(), MARK.as_slice()].concat();
        for bytes in [
            Vec::new(),
            b"short".to_vec(),
            vec![0; 4096],
            [vec![1; 100], end(0)].concat(),
            [vec![1; 100], end(100)].concat(),
            [vec![1; 100], end(101)].concat(),
            [vec![1; 100], end(u64::MAX)].concat(),
        ] {
            let file = tempfile::tempfile().unwrap();
            file.write_all_at(&bytes, 0).unwrap();
            assert!(state_in(&file).is_err(), "{}", bytes.len());
        }
    }

    /// What becomes of a start with a program that does this.
    fn started(script: &str) -> io::Error {
        let place = tempfile::tempdir().unwrap();
        let program = place.path().join("firecracker");
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let places = Places {
            program,
            sockets: place.path().to_owned(),
            kept: place.path().join("kept"),
            patience: SLOWEST_START,
        };
        let beginning = Beginning::Boot {
            files: blank(c"files").unwrap(),
            kernel: Some(blank(c"kernel").unwrap()),
        };
        let purpose = Purpose::Run {
            largest_file: Some(1 << 20),
        };
        let error = start(&places, &beginning, purpose, 128).err().unwrap();
        assert!(!place.path().join("guest_1").exists(), "the door is left");
        error
    }

    #[test]
    fn one_that_ends_at_once_is_told_with_its_last_words() {
        let error = started("echo no such luck; echo files of $(ulimit -f) blocks; exit 3");
        let error = error.to_string();
        assert!(error.starts_with("Firecracker: "), "{error}");
        assert!(error.contains("no such luck"), "{error}");
        // Of 512 bytes: as large as the program's may be, hard and soft alike.
        assert!(error.contains("files of 2048 blocks"), "{error}");
    }

    #[test]
    fn what_is_asked_for_is_what_a_guest_needs_and_nothing_else() {
        let places = Places::of_a_box();
        let (files, kernel) = (blank(c"files").unwrap(), blank(c"kernel").unwrap());
        let (files_path, kernel_path) = (own(&files), own(&kernel));
        let beginning = Beginning::Boot {
            files,
            kernel: Some(kernel),
        };
        let guest = place("sockets/guest");
        let ask = |purpose| requests(&places, &beginning, purpose, &guest, 640).unwrap();
        let asked = ask(Purpose::Run { largest_file: None });
        let bits = |zero: usize| {
            let bits = (0..32).rev().map(|bit| if bit == zero { '0' } else { 'x' });
            format!("0b{}", bits.collect::<String>())
        };
        let leaf = |leaf: &str, zero: usize| {
            json!({"leaf": leaf, "subleaf": "0x0", "flags": 0,
                   "modifiers": [{"register": "ecx", "bitmap": bits(zero)}]})
        };
        assert_eq!(
            asked,
            [
                (
                    "/machine-config",
                    json!({"vcpu_count": 1, "mem_size_mib": 640, "smt": false, "track_dirty_pages": false})
                ),
                (
                    "/cpu-config",
                    json!({"cpuid_modifiers": [leaf("0x1", 5), leaf("0x80000001", 2)]})
                ),
                (
                    "/boot-source",
                    json!({"kernel_image_path": kernel_path, "initrd_path": files_path, "boot_args": kernel_words()})
                ),
                (
                    "/vsock",
                    json!({"guest_cid": 3, "uds_path": "/dev/belljar/sockets/guest"})
                ),
                ("/actions", json!({"action_type": "InstanceStart"})),
            ]
        );
        assert!(kernel_words().ends_with(" microvm-guest vsock"));
        // One that is to be kept is asked for alike, but for what tells which of its memory was ever used.
        let mut kept = ask(Purpose::Keep);
        assert_eq!(kept[0].1["track_dirty_pages"], true);
        kept[0].1["track_dirty_pages"] = false.into();
        assert_eq!(kept, asked);
        // No disk, no network, no store of metadata, no balloon: nothing that was not asked for is there.
    }
}
