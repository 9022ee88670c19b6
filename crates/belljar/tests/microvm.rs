//! The microvm tier: the same box, with a guest's kernel in it. A guest takes seconds to start where its processor is
//! emulated, so each test asks one guest as much as it can.

#[path = "microvm/inside.rs"]
mod inside;
mod support;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use inside::a_guests_kernel_holds_the_line_too;
use rustix::process::{Pid, Signal, kill_process};
use support::{
    Attempt, Jail, Outcome, SSH_SECRET, Who, assert_all_allowed, assert_all_refused, eventually,
    finish, for_each_user, on_microvm,
};

const INTERNAL: i32 = 120;
const NOT_FOUND: i32 = 127;
const REFUSED: i32 = 122;
const LIMIT_HIT: i32 = 123;
const TIMED_OUT: i32 = 124;

/// A world whose boxes have guests, once it has a policy.
fn world(who: Who) -> Jail {
    let mut made = None;
    on_microvm(|| made = Some(Jail::new(who)));
    made.expect("a jail")
}

/// A world whose boxes have guests. `more` is the rest of the policy.
fn guest_jail(who: Who, more: &str) -> Jail {
    let mut jail = world(who);
    jail.policy(&format!("extends: moderate\n{more}"));
    jail
}

/// Runs the probe with each of these arguments in one guest.
fn probe_all(jail: &Jail, attempts: &[Vec<String>]) -> Outcome {
    let probe = jail.probe_path();
    let lines: Vec<String> = attempts
        .iter()
        .map(|words| {
            let words: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
            format!("'{}' {}", probe.display(), words.join(" "))
        })
        .collect();
    let outcome = jail.run(&["/bin/sh", "-c", &format!("{}; true", lines.join("; "))]);
    outcome.assert_exit(0);
    outcome
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// The processes below one, by number and start: a number may become another's.
fn descendants(of: u32) -> Vec<(u32, String)> {
    let stat = |pid: u32| {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields: Vec<String> = text
            .rsplit_once(')')?
            .1
            .split_whitespace()
            .map(str::to_owned)
            .collect();
        Some((fields.get(1)?.parse::<u32>().ok()?, fields.get(19)?.clone()))
    };
    let all: Vec<(u32, u32, String)> = fs::read_dir("/proc")
        .expect("the list of processes")
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid| stat(pid).map(|(parent, started)| (pid, parent, started)))
        .collect();
    let mut found = Vec::new();
    let mut open = vec![of];
    while let Some(parent) = open.pop() {
        for (pid, _, started) in all.iter().filter(|(_, above, _)| *above == parent) {
            found.push((*pid, started.clone()));
            open.push(*pid);
        }
    }
    found
}

fn is_alive((pid, started): &(u32, String)) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|text| text.contains(&format!(" {started} ")))
}

fn emulator_among(processes: &[(u32, String)]) -> Option<u32> {
    let is_emulator = |pid: &u32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        words
            .split(|byte| *byte == 0)
            .any(|word| word == b"/dev/belljar/qemu")
    };
    processes.iter().map(|(pid, _)| *pid).find(is_emulator)
}

/// Starts a guest whose program waits, and comes back once it does.
fn start_waiting(jail: &Jail) -> Child {
    let mark = jail.work_file("mark");
    let probe = jail.probe_path().to_string_lossy().into_owned();
    let mut command = jail.json_command(&[&probe, "ignore-signals", &mark]);
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start");
    eventually("the program runs", || {
        Path::new(&mark).exists().then_some(())
    });
    child
}

fn a_guest_reads_writes_and_ends_as_its_program_does(who: Who) {
    let jail = guest_jail(who, "");
    let script = "cat; echo told >&2; echo \"$0 $1\"; pwd; uname -r; umask; cat main.txt > copy.txt; \
                  mkdir -p a/b; mv copy.txt a/b/moved; ln -s moved a/b/link; ln a/b/moved a/b/twin; chmod 640 a/b/twin; \
                  cat a/b/link; echo; rm a/b/moved; ls a/b; truncate -s 3 a/b/twin; \
                  (sleep 1; echo the last) & exit 7";
    let mut command = jail.json_command(&["/bin/sh", "-c", script, "name", "one two"]);
    let mut child = command.stdin(Stdio::piped()).spawn().expect("start");
    let mut input = child.stdin.take().expect("its input");
    // More than any window.
    let line = "x".repeat(99) + "\n";
    let writer = std::thread::spawn(move || {
        for _ in 0..4_000 {
            input.write_all(line.as_bytes()).expect("write");
        }
    });
    let outcome = jail.conclude(child);
    writer.join().expect("the writer");
    outcome.assert_exit(7);
    let (echoed, rest) = outcome.stdout().split_at(400_000);
    assert!(
        echoed.lines().all(|line| line.len() == 99),
        "the input came back changed"
    );
    let host = rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned();
    let lines: Vec<&str> = rest.lines().collect();
    assert_eq!(lines[0], "name one two");
    assert_eq!(lines[1], jail.work.to_string_lossy());
    assert_ne!(lines[2], host, "the guest has the host's kernel");
    assert_eq!(
        lines[4..],
        ["the agent's work", "link", "twin", "the last"],
        "{rest}"
    );
    assert_eq!(outcome.stderr(), "told\n");
    // It is all there for the host to see, and the user's own.
    let twin = jail.work.join("a/b/twin");
    assert_eq!(fs::read(&twin).expect("the file"), b"the");
    let metadata = fs::metadata(&twin).expect("the file");
    assert_eq!(metadata.permissions().mode() & 0o7777, 0o640);
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&metadata), who.uid());
}

fn what_the_native_walls_refuse_is_refused(who: Who) {
    let jail = guest_jail(who, "");
    let secret = jail.home_file(".ssh/id_ed25519");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port of the host's");
    let port = listener
        .local_addr()
        .expect("its address")
        .port()
        .to_string();
    let socket = jail.work.join("host.sock");
    let _socket = UnixListener::bind(&socket).expect("a socket of the host's");
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o777)).expect("open it to all");
    jail.own(&socket);
    let socket = socket.to_string_lossy().into_owned();
    let repeatable = [
        words(&["create", &jail.home_file("planted")]),
        words(&["create", &jail.work_file(".git/hooks/planted")]),
        words(&["create", &jail.work_file(".vscode/planted")]),
        words(&["connect-unix", "stream", &socket]),
        words(&["tcp", "127.0.0.1", &port]),
    ];
    for attempt in &repeatable[3..] {
        let attempt: Vec<&str> = attempt.iter().map(String::as_str).collect();
        assert_all_allowed(&jail.control(&attempt));
    }
    let mut attempts = repeatable.to_vec();
    for attempt in [
        &["userns"][..],
        &["io_uring"],
        &["bpf"],
        &["perf"],
        &["userfaultfd"],
        &["keyctl"],
        &["socket", "all"],
        &["x32"],
        &["ptrace", "1"],
        &["proc-mem", "1", "0x400000"],
        &["kill", "1", "9"],
        &["setuid", "0"],
        &["chown", &jail.work_file("main.txt"), "1"],
        &["read", "/dev/belljar/order"],
        &["read", "/dev/belljar/telling/told"],
        &["read", "/proc/1/environ"],
        &["read", "/dev/vport0p1"],
        &["read", "/dev/mem"],
        &["syscall", "all"],
    ] {
        attempts.push(words(attempt));
    }
    let outcome = probe_all(&jail, &attempts);
    let made = outcome.attempts();
    assert!(made.len() > attempts.len(), "{made:?}");
    let made: Vec<Attempt> = made.into_iter().filter(|a| a.name != "mptcp").collect();
    assert_all_refused(&made);
    let counted = outcome.violations();
    for call in ["bpf", "ptrace", "keyctl", "mount", "socket"] {
        assert!(counted.contains(&call), "{call} is not among {counted:?}");
    }
    // Neither bridge nor emulator did any of it.
    let violations = outcome.json["violations"].to_string();
    assert!(!violations.contains("the guest's machine"), "{violations}");

    let seen = probe_all(
        &jail,
        &[
            words(&["read", &secret]),
            words(&["read", &jail.home_file("notes.txt")]),
            words(&["create", &jail.work_file("made.txt")]),
            words(&["create", "/tmp/made"]),
        ],
    );
    assert!(!seen.stdout().contains(SSH_SECRET), "{}", seen.stdout());
    assert_all_allowed(&seen.attempts()[1..]);
    assert!(jail.work.join("made.txt").exists());
    assert!(
        !Path::new("/tmp/made").exists(),
        "the host's /tmp was written to"
    );
}

/// Boxes resume a guest that was started once. What they would have in common with each other, they are told anew.
fn a_kept_guest_is_resumed_and_its_next_shares_no_number_with_it(who: Who) {
    let jail = guest_jail(who, "");
    let look = || {
        let child = start_waiting(&jail);
        let below = descendants(child.id());
        let emulator = emulator_among(&below).expect("an emulator below the keeper");
        let words = fs::read_to_string(format!("/proc/{emulator}/cmdline")).expect("its arguments");
        // Around the bridge is the box's filter; around the emulator its own as well.
        let (bridge, _) = below
            .iter()
            .find(|(pid, _)| is_bridge(*pid))
            .expect("a bridge");
        let own = filters_around(child.id());
        assert!(filters_around(*bridge) > own, "the bridge has no filter");
        assert!(
            filters_around(emulator) > filters_around(*bridge),
            "the emulator has no filter of its own"
        );
        // Its program ignores what is kinder.
        kill_process(Pid::from_child(&child), Signal::KILL).expect("end the keeper");
        finish(child);
        words
    };
    let words = look();
    assert!(
        words.contains("-incoming") && !words.contains("-kernel"),
        "{words}"
    );
    // The channel, and what it is a port of. No network, no disk.
    let words: Vec<&str> = words.split('\0').collect();
    let of = |option: &str| words.iter().filter(|word| **word == option).count();
    assert_eq!((of("-device"), of("-nodefaults")), (2, 1), "{words:?}");
    for option in ["-netdev", "-nic", "-net", "-drive", "-blockdev", "-mon"] {
        assert_eq!(of(option), 0, "{words:?}");
    }
    let script = "cat /proc/sys/kernel/random/uuid /proc/sys/kernel/random/boot_id; od -An -tx1 -N16 /dev/urandom; \
                  grep stack /proc/self/maps; date +%s";
    let ask = || {
        let before = now();
        let outcome = jail.run(&["/bin/sh", "-c", script]);
        outcome.assert_exit(0);
        let lines: Vec<String> = outcome.stdout().lines().map(str::to_owned).collect();
        let told: u64 = lines[4].parse().expect("a time");
        assert!((before..=now() + 1).contains(&told), "{told}, {before}");
        lines
    };
    let (first, second) = (ask(), ask());
    for (one, other) in first.iter().zip(&second).take(4) {
        assert_ne!(one, other, "two guests drew the same");
    }
}

fn is_bridge(pid: u32) -> bool {
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    words.split(|byte| *byte == 0).nth(1) == Some(b"microvm-bridge")
}

/// How many filters of system calls are around a process.
fn filters_around(pid: u32) -> u32 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("its status");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("Seccomp_filters:"));
    let count = line.expect("a kernel that counts filters").trim();
    count.parse().expect("a count")
}

fn now() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.expect("a time after 1970").as_secs()
}

/// The file that all guests begin with can't be reached from inside one, nor is it there for a box of another tier.
fn what_is_kept_is_hidden_and_whole_again_after_a_change(who: Who) {
    let mut jail = guest_jail(who, "resource_limits: {max_memory_mb: 64}\n");
    let store = jail.work.join("guests");
    jail.variable("BELLJAR_GUEST_STORE", &store.to_string_lossy());
    let list = format!("ls '{}'; echo x > '{0}/planted'; true", store.display());
    let outcome = jail.run(&["/bin/sh", "-c", &list]);
    outcome.assert_exit(0);
    assert!(!outcome.stdout().contains(".guest"), "{}", outcome.stdout());
    let files = || -> Vec<_> {
        let names = fs::read_dir(&store).expect("the store").flatten();
        let names = names.filter(|entry| entry.path().extension().is_some_and(|e| e == "guest"));
        names.map(|entry| entry.path()).collect()
    };
    let [kept] = files().try_into().expect("one guest");
    assert!(!store.join("planted").exists());
    fs::set_permissions(&kept, fs::Permissions::from_mode(0o600)).expect("open it");
    let file = fs::File::options()
        .write(true)
        .open(&kept)
        .expect("the guest");
    std::os::unix::fs::FileExt::write_all_at(&file, b"changed", 1 << 20).expect("write");
    drop(file);
    jail.run(&["/bin/true"]).assert_exit(0);
    let [anew] = files().try_into().expect("one guest");
    let bytes = fs::read(&anew).expect("the guest");
    assert_ne!(bytes.get(1 << 20..(1 << 20) + 7), Some(&b"changed"[..]));
}

/// All of it is the guest's terminal: its size, its keys, and that it is one.
fn a_terminal_reaches_into_a_guest(who: Who) {
    let jail = guest_jail(who, "");
    let belljar = jail.belljar_path().to_string_lossy().into_owned();
    let mut command = jail.outside(jail.probe_path());
    let play = [
        &[
            "-e",
            "$ ",
            "-s",
            "test -t 0 && test -t 1 && test -t 2 && echo 'all 't'ty'\\n",
        ][..],
        &["-e", "all tty", "-s", "stty size\\n", "-e", "24 80"],
        &["-w", "40x100", "-s", "stty size\\n", "-e", "40 100"],
        &[
            "-s",
            "sh -c 'echo sta''rted; exec sleep 600'\\n",
            "-e",
            "started",
        ],
        &[
            "-s",
            "\\c",
            "-e",
            "$ ",
            "-s",
            "echo code $?\\n",
            "-e",
            "code 130",
        ],
        &["-s", "exit 5\\n"],
    ];
    command.arg("on-terminal").args(play.concat()).arg("--");
    command.args([&belljar, "run"]).args(jail.run_options());
    command.args(["--", "env", "PS1=$ ", "sh", "-i"]);
    let finished = finish(command.spawn().expect("a terminal"));
    assert_eq!(finished.code(), 5, "{}", finished.stdout());
    jail.assert_nothing_left(None);
}

fn limits_hold_in_a_guest(who: Who) {
    let jail = guest_jail(
        who,
        "resource_limits: {max_memory_mb: 96, max_processes: 24, max_open_files: 32, max_file_size_mb: 1}\n",
    );
    let outcome = probe_all(
        &jail,
        &[
            words(&["open-many", "100"]),
            words(&["raise-limit", "7", "4096"]),
            words(&["thread-bomb", "10000"]),
            words(&["fill", &jail.work_file("large"), "3"]),
        ],
    );
    let made = outcome.attempts();
    let detail = |name: &str| {
        let found = made.iter().find(|attempt| attempt.name == name);
        found
            .unwrap_or_else(|| panic!("no {name}: {made:?}"))
            .detail
            .clone()
    };
    assert_eq!(detail("open-many"), "EMFILE");
    assert_eq!(detail("thread-bomb"), "EAGAIN");
    assert!(outcome.violations().contains(&"processes"), "{outcome:#?}");
    assert!(detail("started").parse::<u32>().expect("a count") <= 24);
    assert!(
        made.iter().any(|a| a.name == "raise-limit" && !a.allowed),
        "{made:?}"
    );
    assert!(
        fs::metadata(jail.work.join("large"))
            .expect("the file")
            .len()
            <= 1 << 20
    );

    let reached = jail.work_file("reached");
    let outcome = jail.inside(&["alloc-grandchild", "anonymous", "250", &reached]);
    outcome.assert_killed("memory", LIMIT_HIT);
    let touched: u32 = fs::read_to_string(&reached)
        .expect("how far it came")
        .trim()
        .parse()
        .expect("a number");
    assert!((1..=96).contains(&touched), "{touched} MB at a limit of 96");
}

fn a_timeout_ends_a_guest_and_leaves_nothing(who: Who) {
    let mut jail = guest_jail(who, "");
    jail.option(&["--timeout", "4"]);
    jail.run(&["sleep", "600"])
        .assert_killed("timeout", TIMED_OUT);
}

fn a_keeper_that_is_killed_takes_its_guest_with_it(who: Who) {
    let jail = guest_jail(who, "");
    let child = start_waiting(&jail);
    let below = descendants(child.id());
    assert!(
        emulator_among(&below).is_some(),
        "no emulator below the keeper"
    );
    kill_process(Pid::from_child(&child), Signal::KILL).expect("kill the keeper");
    finish(child);
    eventually("guest and bridge are gone", || {
        (!below.iter().any(is_alive)).then_some(())
    });
}

fn an_emulator_that_dies_is_an_internal_error_and_leaves_nothing(who: Who) {
    let jail = guest_jail(who, "");
    let child = start_waiting(&jail);
    let below = descendants(child.id());
    let emulator = emulator_among(&below).expect("an emulator below the keeper");
    let emulator = Pid::from_raw(emulator as i32).expect("a number");
    kill_process(emulator, Signal::SEGV).expect("end the emulator");
    let finished = finish(child);
    assert_eq!(finished.code(), INTERNAL, "{finished:?}");
    eventually("all of the box is gone", || {
        (!below.iter().any(is_alive)).then_some(())
    });
    jail.assert_nothing_left(None);
}

/// A guest without its channel: its first process gives up, and so does its kernel.
fn a_guest_whose_kernel_panics_is_an_internal_error_that_says_so(who: Who) {
    let mut jail = guest_jail(who, "");
    let tree = jail.base.join("kernel");
    let whole = Path::new("/usr/lib/belljar/guest");
    let copied = finish(
        Command::new("cp")
            .args(["-rs", &whole.to_string_lossy(), &tree.to_string_lossy()])
            .spawn()
            .expect("cp"),
    );
    assert_eq!(copied.code(), 0, "{copied:?}");
    let broken = finish(
        Command::new("find")
            .arg(&tree)
            .args([
                "-name",
                "virtio_console.ko*",
                "-exec",
                "cp",
                "--remove-destination",
                "/bin/true",
                "{}",
                ";",
            ])
            .spawn()
            .expect("find"),
    );
    assert_eq!(broken.code(), 0, "{broken:?}");
    jail.own(&tree);
    jail.variable("BELLJAR_GUEST_KERNEL", &tree.to_string_lossy());
    let finished = finish(jail.text_command(&["/bin/true"]).spawn().expect("start"));
    assert_eq!(finished.code(), INTERNAL, "{finished:?}");
    let said = finished.stderr();
    assert!(
        said.contains("virtio_console") && said.contains("Kernel panic"),
        "{said}"
    );
    jail.assert_nothing_left(None);
}

fn output_passes_whole_and_a_reader_may_leave(who: Who) {
    let jail = guest_jail(who, "");
    let script = "head -c 20000000 /dev/zero | tr '\\0' y; while :; do echo more; done";
    let mut child = jail
        .text_command(&["/bin/sh", "-c", script])
        .spawn()
        .expect("start");
    let mut output = child.stdout.take().expect("its output");
    let mut bytes = vec![0; 20_000_000];
    output.read_exact(&mut bytes).expect("all of it");
    assert!(bytes.iter().all(|byte| *byte == b'y'));
    drop(output);
    let finished = finish(child);
    assert_eq!(finished.code(), 128 + 13, "{finished:?}");
}

fn changes_are_kept_aside_from_a_guest_too(who: Who) {
    let jail = guest_jail(who, "filesystem_config: {workspace: overlay}\n");
    let mut command = jail.json_command(&["/bin/sh", "-c", "echo new > made.txt; rm main.txt"]);
    let outcome = Outcome::from_json(finish(command.spawn().expect("start")));
    outcome.assert_exit(0);
    assert!(jail.work.join("main.txt").exists() && !jail.work.join("made.txt").exists());
    let difference = finish(
        jail.belljar(&["diff", outcome.sandbox_id()])
            .spawn()
            .expect("diff"),
    );
    assert!(difference.stdout().contains("made.txt"), "{difference:?}");
    assert!(difference.stdout().contains("main.txt"), "{difference:?}");
}

/// Only the guest's kernel finds out that it can't, and what it says is said of a native program.
fn a_program_that_a_guest_cannot_start_is_told_as_in_every_tier(who: Who) {
    let jail = guest_jail(who, "");
    let script = jail.work.join("lost.sh");
    jail.put(&script, "#!/no/such/interpreter\n");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("its permissions");
    let outcome = jail.run(&["./lost.sh"]);
    assert_eq!(outcome.code(), NOT_FOUND, "{outcome:#?}");
    assert_eq!(outcome.error_code(), Some("not_found"), "{outcome:#?}");
    jail.assert_nothing_left(None);
}

/// None of these gets as far as a guest.
fn what_a_guest_cannot_give_is_refused(who: Who) {
    for (policy, said) in [
        ("sandbox_tier: microvm\n", "allow_emulation: true"),
        ("sandbox_tier: microvm\n", "/dev/kvm"),
        (
            "sandbox_tier: firecracker\nallow_emulation: true\n",
            "needs Firecracker: there is no /usr/local/bin/firecracker or /usr/bin/firecracker, and KVM (/dev/kvm",
        ),
    ] {
        let mut jail = Jail::new(who);
        jail.policy(&format!("extends: moderate\n{policy}"));
        let finished = finish(jail.text_command(&["/bin/true"]).spawn().expect("start"));
        assert_eq!(finished.code(), REFUSED, "{finished:?}");
        assert!(finished.stderr().contains(said), "{}", finished.stderr());
    }
}

for_each_user!(
    a_guest_reads_writes_and_ends_as_its_program_does,
    what_the_native_walls_refuse_is_refused,
    a_guests_kernel_holds_the_line_too,
    a_kept_guest_is_resumed_and_its_next_shares_no_number_with_it,
    what_is_kept_is_hidden_and_whole_again_after_a_change,
    a_terminal_reaches_into_a_guest,
    limits_hold_in_a_guest,
    a_timeout_ends_a_guest_and_leaves_nothing,
    a_keeper_that_is_killed_takes_its_guest_with_it,
    an_emulator_that_dies_is_an_internal_error_and_leaves_nothing,
    a_guest_whose_kernel_panics_is_an_internal_error_that_says_so,
    output_passes_whole_and_a_reader_may_leave,
    changes_are_kept_aside_from_a_guest_too,
    a_program_that_a_guest_cannot_start_is_told_as_in_every_tier,
    what_a_guest_cannot_give_is_refused,
);
