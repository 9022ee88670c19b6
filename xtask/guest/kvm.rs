//! The microvm tier with KVM, in the guest of `cargo xtask vm-test --kvm`: its emulated processor has virtualisation. Holds only
//! inside it. Whoever runs this may open `/dev/kvm`, as root or by the group; the tests must not depend on which.

// All of this file is test code, helpers included.
#![allow(clippy::unwrap_used)]

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

/// No word about emulation: it is KVM or nothing.
const POLICY: &str = "extends: moderate\nresource_limits:\n  max_memory_mb: 256\n  max_cpu_seconds: 3000\n  \
                      max_wall_seconds: 3000\n";
const REFUSED: i32 = 122;

fn home() -> PathBuf {
    PathBuf::from(std::env::var("HOME").unwrap())
}

/// Whose guests are tried.
struct Maker {
    tier: &'static str,
    /// A word of its process's, and what must be among them all.
    word: &'static str,
    words: &'static [&'static str],
    /// Where its guests are kept.
    store: &'static str,
}

const QEMU: Maker = Maker {
    tier: "microvm",
    word: "/dev/belljar/qemu",
    // From what was kept, which a guest under KVM was before.
    words: &["-accel kvm", "-incoming fd:"],
    store: "guests",
};
const FIRECRACKER: Maker = Maker {
    tier: "firecracker",
    word: "/dev/belljar/sockets/api",
    words: &["--id belljar"],
    store: "guests/firecracker",
};

/// Whether the Firecracker that is there is none that stands in for it.
fn firecracker_is_real() -> bool {
    let which = std::env::var("BELLJAR_FIRECRACKER_IS").unwrap();
    which == "real"
}

/// A run in a directory of its own.
fn belljar(tier: &str, home: &Path) -> Command {
    let work = home.join("work");
    fs::create_dir_all(&work).unwrap();
    let policy = home.join("policy.yaml");
    fs::write(&policy, format!("sandbox_tier: {tier}\n{POLICY}")).unwrap();
    let mut command = Command::new(std::env::var("BELLJAR_BIN").unwrap());
    command
        .args(["run", "--config"])
        .arg(policy)
        .arg("--")
        .current_dir(work)
        .env("BELLJAR_GUEST_STORE", home.join("guests"))
        .env("NO_COLOR", "1");
    command
}

/// A guest whose program has said what it sees and waits for a line.
struct Waiting {
    keeper: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    said: Vec<String>,
}

/// Starts one. What it says first are `lines` lines.
fn start_waiting(maker: &Maker, script: &str, lines: usize) -> Waiting {
    let mut keeper = belljar(maker.tier, &home())
        .args(["/bin/sh", "-c", &format!("{script}; read line; echo $line")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let input = keeper.stdin.take().unwrap();
    let mut output = BufReader::new(keeper.stdout.take().unwrap());
    let said = (0..lines)
        .map(|_| {
            let mut line = String::new();
            output.read_line(&mut line).unwrap();
            line.trim_end().to_owned()
        })
        .collect();
    Waiting {
        keeper,
        input,
        output,
        said,
    }
}

/// The processes whose command line has this word in it.
fn processes_with(word: &str) -> Vec<PathBuf> {
    let has = |place: &PathBuf| {
        let words = fs::read(place.join("cmdline")).unwrap_or_default();
        words
            .split(|byte| *byte == 0)
            .any(|one| one == word.as_bytes())
    };
    let all = fs::read_dir("/proc").unwrap().flatten();
    all.map(|entry| entry.path()).filter(has).collect()
}

fn emulators(maker: &Maker) -> Vec<PathBuf> {
    processes_with(maker.word)
}

/// What a process has open.
fn open_files(process: &Path) -> Vec<String> {
    let files = fs::read_dir(process.join("fd")).unwrap().flatten();
    files
        .filter_map(|file| fs::read_link(file.path()).ok())
        .map(|target| target.to_string_lossy().into_owned())
        .collect()
}

fn status(process: &Path, name: &str) -> String {
    let text = fs::read_to_string(process.join("status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap().trim_start_matches(':').trim().to_owned()
}

fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    now.as_secs()
}

fn kept_in(place: &Path) -> Vec<String> {
    let names = fs::read_dir(place).unwrap().flatten();
    names
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.ends_with(".guest"))
        .collect()
}

/// Bridge and emulator have the device and nothing more than they need besides.
fn assert_walls(maker: &Maker, emulator: &Path) {
    let words = fs::read(emulator.join("cmdline")).unwrap();
    let words = String::from_utf8_lossy(&words).replace('\0', " ");
    for word in maker.words {
        assert!(words.contains(word), "{words}");
    }
    let files = open_files(emulator);
    let count = |what: &str| files.iter().filter(|name| name.contains(what)).count();
    assert_eq!(count("anon_inode:kvm-vm"), 1, "{files:?}");
    assert_eq!(count("anon_inode:kvm-vcpu"), 1, "{files:?}");
    assert_eq!(status(emulator, "CapEff"), "0000000000000000");
    assert_eq!(status(emulator, "NoNewPrivs"), "1");
    assert_eq!(status(emulator, "Seccomp"), "2");
    // Ours, and the emulator's own, which each of Firecracker's threads has another of.
    let threads = fs::read_dir(emulator.join("task")).unwrap().flatten();
    let threads = threads.map(|thread| thread.path());
    let main = std::iter::once(emulator.to_owned());
    for thread in main.chain(threads.filter(|_| maker.tier == "firecracker")) {
        let filters: u32 = status(&thread, "Seccomp_filters").parse().unwrap();
        assert!(filters >= 2, "{filters} filters: {thread:?}");
    }
    assert!(
        !status(emulator, "Uid")
            .split('\t')
            .any(|number| number == "0")
    );
    let bridge = processes_with("microvm-bridge");
    let bridge = bridge.first().unwrap();
    let files = open_files(bridge);
    assert!(
        !files.iter().any(|name| name.contains("kvm")),
        "the bridge has it open: {files:?}"
    );
}

#[test]
fn doctor_says_that_there_is_kvm() {
    let output = Command::new(std::env::var("BELLJAR_BIN").unwrap())
        .arg("doctor")
        .env("NO_COLOR", "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for tier in ["microvm", "firecracker"] {
        let name = format!("tier {tier}");
        let line = text.lines().find(|line| line.contains(&name));
        let line = line.unwrap_or_else(|| panic!("{text}"));
        assert!(
            line.starts_with("ok") && line.ends_with(", by KVM"),
            "{text}"
        );
        let machine = match tier {
            "microvm" => "/usr/bin/qemu-system-x86_64, ",
            // With its version.
            _ => "/usr/local/bin/firecracker 1.",
        };
        assert!(line.contains(machine), "{text}");
    }
}

/// The box around a Firecracker, with what stands in for it (`firecracker.rs`): it has what it needs and nothing besides, its guest
/// is kept and goes on, and it ends with its keeper.
#[test]
fn a_firecracker_has_a_box_around_it_and_does_not_survive_its_keeper() {
    if firecracker_is_real() {
        println!("a real one says nothing of this: its guests are tried below");
        return;
    }
    let run = |words: &str| {
        let mut command = belljar("firecracker", &home());
        command.args(["/bin/sh", "-c", words]);
        command
    };
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (secret, shown) = (home().join(".ssh/id"), home().join("shown"));
    fs::create_dir_all(home().join(".ssh")).unwrap();
    fs::write(&secret, "a secret").unwrap();
    fs::write(&shown, "to be read").unwrap();
    let words = format!(
        "port={} secret={} shown={} ",
        server.local_addr().unwrap().port(),
        secret.display(),
        shown.display()
    );
    // All of it can be had where no box is.
    let outside = Command::new("/usr/local/bin/firecracker")
        .args(["outlook", &words])
        .output()
        .unwrap();
    let outside = String::from_utf8_lossy(&outside.stdout).into_owned();
    for name in ["a secret", "what is shown, changed", "the network"] {
        assert!(outside.contains(&format!("{name}: yes\n")), "{outside}");
    }
    for time in ["first", "second"] {
        let script = format!(": {words}; tell all; end with seven");
        let output = run(&script).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(7), "{time}: {said}{errors}");
        assert_eq!(
            said.lines().collect::<Vec<_>>(),
            [
                "begun going on",
                "CapEff:\t0000000000000000",
                "NoNewPrivs:\t1",
                "Seccomp:\t2",
                "a secret: no",
                "what is shown, changed: no",
                "the network: no",
                "the order, changed: no",
                "what was kept, changed: no",
                "init's memory: no",
                "a second call: no",
            ],
            "{time}: {errors}"
        );
        assert_eq!(kept_in(&home().join("guests/firecracker")).len(), 1);
    }
    let machines = || processes_with("/dev/belljar/sockets/api");
    assert!(machines().is_empty());
    let mut keeper = run("wait for ever")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(keeper.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    let all = machines();
    let files: Vec<String> = all.iter().flat_map(|one| open_files(one)).collect();
    let ends: Vec<OwnedFd> = all.iter().map(|one| handle_of(one)).collect();
    // Before anything else, or a keeper that is not there any more would be waited for.
    keeper.kill().unwrap();
    keeper.wait().unwrap();
    assert_eq!(line, "waiting\n");
    assert_eq!(all.len(), 1, "{all:?}");
    // Root's boxes are lent one of another name.
    assert!(files.iter().any(|name| name.contains("kvm")), "{files:?}");
    ends.iter().for_each(assert_ends);
}

/// One test of each maker, since each guest takes a while in here: the second goes on from where the first one's was kept.
#[test]
fn guests_run_by_kvm_behind_all_walls_and_nothing_survives_their_keeper() {
    run_guests(&QEMU);
}

#[test]
fn guests_of_a_real_firecracker_run_behind_all_walls_and_nothing_survives_their_keeper() {
    match firecracker_is_real() {
        true => run_guests(&FIRECRACKER),
        false => println!("not tried: BELLJAR_FIRECRACKER names none"),
    }
}

fn run_guests(maker: &Maker) {
    let kept = || kept_in(&home().join(maker.store));
    const LOOK: &str = "uname -r; date +%s; head -c 16 /dev/urandom | base64; ls /dev | tr '\\n' ' '; echo; \
                        grep -m 1 ^flags /proc/cpuinfo";
    let before = now();
    let Waiting {
        mut keeper,
        mut input,
        mut output,
        said,
    } = start_waiting(maker, LOOK, 5);
    let after = now();
    let [version, time, random, devices, flags] = said.as_slice() else {
        panic!("{said:?}");
    };
    assert!(
        version.ends_with("-amd64") || version.ends_with("-generic"),
        "{said:?}"
    );
    // A second for what either clock rounds off.
    let time: u64 = time.parse().unwrap();
    assert!(
        (before - 1..=after + 1).contains(&time),
        "{before} {time} {after}"
    );
    assert!(
        devices.contains("urandom") && !devices.contains("kvm"),
        "{devices}"
    );
    for hidden in ["svm", "vmx"] {
        assert!(!flags.split(' ').any(|flag| flag == hidden), "{flags}");
    }
    let emulators_now = emulators(maker);
    let [emulator] = emulators_now.as_slice() else {
        panic!("{emulators_now:?}");
    };
    assert_walls(maker, emulator);
    let first = kept();
    assert_eq!(first.len(), 1, "{first:?}");
    input.write_all(b"heard\n").unwrap();
    let mut answer = String::new();
    output.read_line(&mut answer).unwrap();
    assert_eq!(answer, "heard\n");
    assert!(keeper.wait().unwrap().success());
    assert!(emulators(maker).is_empty());

    let mut second = start_waiting(maker, "head -c 16 /dev/urandom | base64", 1);
    assert_ne!(&second.said[0], random, "two guests drew the same");
    assert_eq!(kept(), first, "it was not kept, or kept twice");
    let emulator = emulators(maker).pop().unwrap();
    assert_walls(maker, &emulator);
    let its_end = handle_of(&emulator);
    second.keeper.kill().unwrap();
    second.keeper.wait().unwrap();
    // Its output ends with the last process that could write to it.
    let mut rest = String::new();
    second.output.read_line(&mut rest).unwrap();
    assert_eq!(rest, "");
    assert_ends(&its_end);
}

fn assert_ends(process: &OwnedFd) {
    let limit = Timespec {
        tv_sec: 60,
        tv_nsec: 0,
    };
    let ended = poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&limit));
    assert_eq!(ended, Ok(1), "the emulator lives on");
}

/// Readable once the process has ended.
fn handle_of(process: &Path) -> OwnedFd {
    let number = process.file_name().unwrap().to_str().unwrap();
    let pid = Pid::from_raw(number.parse().unwrap()).unwrap();
    pidfd_open(pid, PidfdFlags::empty()).unwrap()
}

/// Root alone can play somebody else.
mod as_root {
    use super::*;

    #[test]
    fn who_may_not_open_it_is_refused_and_told_why() {
        const NUMBER: u32 = 1001;
        let home = PathBuf::from("/home/outsider");
        fs::create_dir_all(home.join("work")).unwrap();
        let mut command = belljar("microvm", &home);
        for path in [home.clone(), home.join("work"), home.join("policy.yaml")] {
            chown(&path, Some(NUMBER), Some(NUMBER)).unwrap();
        }
        let mode = fs::metadata("/dev/kvm").unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o660);
        let output = command
            .args(["/bin/true"])
            .uid(NUMBER)
            .gid(NUMBER)
            .env("HOME", &home)
            .env("USER", "outsider")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(REFUSED), "{text}");
        assert!(
            text.contains("needs KVM (/dev/kvm can't be opened: Permission denied"),
            "{text}"
        );
        assert!(text.contains("who is in its group may"), "{text}");
        assert!(emulators(&QEMU).is_empty());
    }
}
