//! What a box on gVisor is and is not, where that has no like in the native tier.

mod support;

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use belljar_image::ImageConfig;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use support::{
    Attempt, Difference, IMAGE, Jail, Outcome, Who, assert_all_allowed, assert_all_refused,
    eventually, finish, for_each_user, on_gvisor, provide_image, put_image,
};

const INTERNAL: i32 = 120;
const REFUSED: i32 = 122;

fn jail(who: Who) -> Jail {
    let mut made = None;
    on_gvisor(|| made = Some(Jail::new(who)));
    made.expect("a jail")
}

/// A box whose script has made its mark.
fn start_until(jail: &Jail, script: &str, mark: &str) -> Child {
    let mut command = jail.json_command(&["/bin/sh", "-c", script]);
    let child = command.spawn().expect("start a box");
    eventually("the program runs", || {
        Path::new(mark).exists().then_some(())
    });
    child
}

/// The kernel that the program calls is not the host's, and the result and the record say which tier it was.
fn the_program_calls_another_kernel(who: Who) {
    let jail = jail(who);
    let outcome = jail.run(&["/bin/cat", "/proc/version"]);
    outcome.assert_exit(0);
    let own = fs::read_to_string("/proc/version").expect("the host's version");
    assert_ne!(outcome.stdout(), own);
    assert_eq!(outcome.json["tier"], "gvisor");
    let shown = finish(
        jail.belljar(&["audit", "export"])
            .spawn()
            .expect("the record"),
    );
    assert!(
        shown.stdout().contains("\"tier\":\"gvisor\""),
        "{}{}",
        shown.stdout(),
        shown.stderr()
    );
}

/// gVisor's kernel, file server and stubs are ended with the keeper, whatever they do.
fn nothing_of_gvisor_outlives_a_killed_keeper(who: Who) {
    let jail = jail(who);
    let mark = jail.work_file("mark");
    let script = format!("setsid sleep 600 & echo up > '{mark}'; sleep 600");
    let child = start_until(&jail, &script, &mark);
    let born = descendants(child.id());
    let names: Vec<String> = born.iter().map(|(pid, _)| name_of(*pid)).collect();
    assert!(
        names.iter().any(|name| name == "runsc-sandbox")
            && names.iter().any(|name| name == "runsc-gofer"),
        "{names:?}"
    );
    kill_process(Pid::from_child(&child), Signal::KILL).expect("kill the keeper");
    finish(child);
    eventually("everything is gone", || {
        born.iter()
            .all(|(pid, started)| start_of(*pid).is_none_or(|now| now != *started))
            .then_some(())
    });
    // What a killed keeper could not clear away, the next run does.
    jail.run(&["/bin/true"]).assert_exit(0);
}

/// All processes below this one, with the time they were started at.
fn descendants(of: u32) -> Vec<(u32, u64)> {
    let mut found = vec![of];
    let mut next = 0;
    while next < found.len() {
        let tasks = fs::read_dir(format!("/proc/{}/task", found[next]));
        for task in tasks.into_iter().flatten().flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            found.extend(children.split_whitespace().flat_map(str::parse::<u32>));
        }
        next += 1;
    }
    found
        .into_iter()
        .filter_map(|pid| Some((pid, start_of(pid)?)))
        .collect()
}

fn start_of(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let rest = stat.rsplit_once(')')?.1;
    // A zombie runs no more.
    let mut words = rest.split_whitespace();
    match words.next()? {
        "Z" | "X" => None,
        _ => words.nth(18)?.parse().ok(),
    }
}

fn name_of(pid: u32) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let first = line.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(first).into_owned()
}

/// A kernel of the program's own would write to a file from its beginning on.
fn output_to_a_file_is_added_to_it(who: Who) {
    let jail = jail(who);
    let path = jail.base.join("output");
    let mut file = fs::File::create(&path).expect("a file");
    std::io::Write::write_all(&mut file, b"before\n").expect("write");
    let mut command = jail.text_command(&["/bin/sh", "-c", "echo within; echo error >&2"]);
    command
        .stdout(file.try_clone().expect("the same file"))
        .stderr(file.try_clone().expect("the same file"));
    let finished = finish(command.spawn().expect("start a box"));
    assert!(finished.status.success());
    std::io::Write::write_all(&mut file, b"after\n").expect("write");
    let text = fs::read_to_string(&path).expect("the file");
    assert!(
        text.starts_with("before\n") && text.ends_with("after\n"),
        "{text}"
    );
    assert!(
        text.contains("\nwithin\n") && text.contains("\nerror\n"),
        "{text}"
    );
}

/// The kernel is ended as soon as its program is gone. What that wrote last, by whatever way, is written.
fn what_a_program_wrote_before_its_end_is_there(who: Who) {
    let mut jail = jail(who);
    jail.option(&["--timeout", "60"]);
    let script = r#"
import mmap, os
size = 1 << 20
def write(fd, byte):
    left = byte * size
    while left:
        left = left[os.write(fd, left):]
mapped = open("mapped", "wb+")
mapped.truncate(size)
mmap.mmap(mapped.fileno(), size)[:] = b"x" * size
write(os.open("plain", os.O_WRONLY | os.O_CREAT, 0o600), b"y")
if os.fork() == 0:
    os.setsid()
    write(os.open("late", os.O_WRONLY | os.O_CREAT, 0o600), b"z")
    write(2, b"e")
    os._exit(0)
write(1, b"o")
os._exit(7)
"#;
    let outcome = jail.run(&["/usr/bin/python3", "-c", script]);
    outcome.assert_exit(7);
    for (name, byte) in [("mapped", b'x'), ("plain", b'y'), ("late", b'z')] {
        let bytes = fs::read(jail.work.join(name)).expect(name);
        assert!(
            bytes.len() == 1 << 20 && bytes.iter().all(|got| *got == byte),
            "{name} is not whole"
        );
    }
    for (said, byte) in [(outcome.stdout(), 'o'), (outcome.stderr(), 'e')] {
        assert_eq!(said.matches(byte).count(), 1 << 20, "{byte} is not whole");
    }
}

/// gVisor hears of one kind of memory barrier less than the host has. Programs have them all, and nobody is told of it.
fn memory_barriers_are_there_for_programs(who: Who) {
    let jail = jail(who);
    let script = "import ctypes; call = ctypes.CDLL(None).syscall; \
                  print(call(324, 0, 0), [call(324, kind, 0) for kind in (1, 16, 8)])";
    let outcome = jail.run(&["/usr/bin/python3", "-c", script]);
    outcome.assert_exit(0);
    assert_eq!(outcome.stdout(), "31 [0, 0, 0]\n");
    assert_eq!(outcome.stderr(), "", "gVisor says nothing of its own");
    assert!(outcome.violations().is_empty(), "{outcome:#?}");
}

/// gVisor is told that it may connect to sockets of the host; which ones is init's to say.
fn the_door_is_the_one_socket_of_the_host_within_reach(who: Who) {
    let mut jail = jail(who);
    let contract = jail.base.join("contract.yaml");
    jail.put(&contract, "max_depth: 1\nmax_replicas: 1\n");
    jail.option(&["--contract", &contract.to_string_lossy()]);
    let path = jail.work.join("host.sock");
    let socket = UnixListener::bind(&path).expect("a socket of the host's");
    socket.set_nonblocking(true).expect("do not wait");
    jail.own(&path);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).expect("open it to all");
    let path = path.to_string_lossy().into_owned();
    assert_all_allowed(&jail.control(&["connect-unix", "stream", &path]));
    let reached = || std::iter::from_fn(|| socket.accept().ok()).count();
    assert!(reached() > 0, "the control connected to nothing");
    let program = jail.probe_path();
    let script = format!(
        "'{0}' connect-unix stream '{path}'; echo; '{0}' connect-unix stream /belljar/agent.sock",
        program.display()
    );
    let finished = finish(
        jail.text_command(&["/bin/sh", "-c", &script])
            .spawn()
            .expect("start a box"),
    );
    let attempts = Attempt::parse(&finished.stdout());
    // The probe makes each attempt in two ways.
    assert_eq!(
        attempts.len(),
        4,
        "{}{}",
        finished.stdout(),
        finished.stderr()
    );
    assert_all_refused(&attempts[..2]);
    assert_all_allowed(&attempts[2..]);
    assert_eq!(reached(), 0, "the host's socket was reached");
    assert!(
        finished.stderr().contains("Unix sockets of the host"),
        "{}",
        finished.stderr()
    );
}

/// A program that looks at the name it was called by, and words that are no text, find what they find in the native tier.
fn a_program_is_called_as_it_was_asked_for(who: Who) {
    let jail = jail(who);
    let mut command = jail.text_command(&["sh", "-c", "echo \"$0\"; cat /proc/$$/cmdline"]);
    command.arg(std::ffi::OsStr::from_bytes(b"not \xff UTF-8"));
    let finished = finish(command.spawn().expect("start a box"));
    let expected = b"not \xff UTF-8\nsh\0-c\0";
    assert!(
        finished.stdout.starts_with(expected),
        "{}{}",
        finished.stdout(),
        finished.stderr()
    );
}

/// What pid 1 of a box on gVisor was told, and where it tells the program's end, is out of the program's reach.
fn nothing_of_its_init_is_within_reach(who: Who) {
    let jail = jail(who);
    let script = "for path in /dev/belljar /dev/belljar/order /dev/belljar/told; do \
                  [ -e $path ] && echo $path; done; grep /dev/belljar /proc/mounts; \
                  tr '\\0' '\\n' < /proc/1/environ | grep -v ^HOME=; \
                  grep -E '^Cap(Prm|Eff)' /proc/1/status | grep -v 0000000000000000; echo end";
    let finished = finish(
        jail.text_command(&["/bin/sh", "-c", script])
            .spawn()
            .expect("start a box"),
    );
    assert_eq!(finished.stdout(), "end\n", "{}", finished.stderr());
}

/// What a program that breaks out of gVisor's kernel finds: a process with few rights in the box's own namespaces, under filters, without
/// the box's network where that is closed.
fn gvisors_kernel_has_no_more_than_it_needs(who: Who) {
    /// CAP_CHOWN to CAP_SETPCAP, SYS_CHROOT, SYS_PTRACE, SYS_ADMIN, SETFCAP.
    const NEEDED: u64 = 0x1ff | 1 << 18 | 1 << 19 | 1 << 21 | 1 << 31;
    allow_core_dumps();
    let jail = jail(who);
    let mark = jail.work_file("mark");
    let script = format!("echo up > '{mark}'; exec sleep 600");
    let child = start_until(&jail, &script, &mark);
    let all = descendants(child.id());
    let named = |name: &str| {
        let found = all.iter().find(|(pid, _)| name_of(*pid) == name);
        found.unwrap_or_else(|| panic!("no {name}")).0
    };
    let (runtime, kernel) = (named("runsc"), named("runsc-sandbox"));
    let line = |pid: u32, file: &str, name: &str| {
        let text = fs::read_to_string(format!("/proc/{pid}/{file}")).expect("a process");
        let found = text.lines().find_map(|line| line.strip_prefix(name));
        found.expect(name).trim().to_owned()
    };
    for pid in [runtime, kernel] {
        let rights = u64::from_str_radix(&line(pid, "status", "CapPrm:"), 16).expect("a number");
        assert_eq!(rights & !NEEDED, 0, "{rights:x}");
        assert_eq!(line(pid, "status", "NoNewPrivs:"), "1");
        assert_eq!(line(pid, "status", "Seccomp:"), "2");
        let core = line(pid, "limits", "Max core file size");
        assert!(core.starts_with("0 "), "{core}");
    }
    let words = fs::read(format!("/proc/{kernel}/cmdline")).expect("its arguments");
    let words = String::from_utf8_lossy(&words).into_owned();
    assert!(words.contains("--network=none"), "{words}");
    if support::runner_is_root() {
        let network = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/net")).expect("a namespace");
        assert_ne!(network(kernel), network(runtime));
    }
    kill_process(Pid::from_child(&child), Signal::TERM).expect("end the program");
    finish(child);
}

/// As far as this test may: a limit of zero is then the box's own.
fn allow_core_dumps() {
    let most = match support::runner_is_root() {
        true => None,
        false => getrlimit(Resource::Core).maximum,
    };
    let limit = Rlimit {
        current: most,
        maximum: most,
    };
    setrlimit(Resource::Core, limit).expect("allow core dumps");
}

/// Where there is no door, gVisor's kernel does not as much as ask for a socket of the host's.
fn without_a_door_no_socket_of_the_host_is_asked_for(who: Who) {
    let jail = jail(who);
    let path = jail.work.join("host.sock");
    let _socket = UnixListener::bind(&path).expect("a socket of the host's");
    jail.own(&path);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).expect("open it to all");
    let path = path.to_string_lossy().into_owned();
    assert_all_allowed(&jail.control(&["connect-unix", "stream", &path]));
    let outcome = jail.inside(&["connect-unix", "stream", &path]);
    assert_all_refused(&outcome.attempts());
    assert!(outcome.violations().is_empty(), "{outcome:#?}");
}

/// Files are the host's, and may change there while a program looks.
fn what_the_host_changes_is_seen_inside(who: Who) {
    let mut jail = jail(who);
    jail.option(&["--timeout", "60"]);
    let (mark, note) = (jail.work_file("mark"), jail.work.join("note"));
    // That it is not there is what a kernel that has its files to itself would remember.
    let script = format!(
        "[ -e '{0}' ] && exit 1; echo up > '{mark}'; until [ -e '{0}' ]; do :; done; cat '{0}'",
        note.display()
    );
    let child = start_until(&jail, &script, &mark);
    jail.put(&note, "new");
    let outcome = Outcome::from_json(finish(child));
    outcome.assert_exit(0);
    assert_eq!(outcome.stdout(), "new");
}

/// A child that pid 1 would not see could meet walls without anybody being told.
fn nobody_hides_from_what_tells_of_refused_calls(who: Who) {
    let jail = jail(who);
    assert_all_allowed(&jail.control(&["untraced"]));
    let outcome = jail.inside(&["untraced"]);
    assert_all_refused(&outcome.attempts());
    assert_eq!(outcome.violations(), ["clone"], "{outcome:#?}");
}

/// gVisor's kernel is ended by the host's for a call it must not make: that is no end of the program's.
fn a_kernel_that_ends_before_its_program_is_told_as_such(who: Who) {
    let jail = jail(who);
    let mark = jail.work_file("mark");
    let script = format!("echo up > '{mark}'; sleep 600");
    let child = start_until(&jail, &script, &mark);
    let kernel = descendants(child.id())
        .into_iter()
        .find(|(pid, _)| name_of(*pid) == "runsc-sandbox")
        .and_then(|(pid, _)| Pid::from_raw(pid as i32))
        .expect("gVisor's kernel");
    kill_process(kernel, Signal::KILL).expect("end gVisor's kernel");
    let outcome = Outcome::from_json(finish(child));
    assert_eq!(outcome.code(), INTERNAL, "{outcome:#?}");
    let error = outcome.json["error"].to_string();
    assert!(error.contains("the box's own kernel"), "{outcome:#?}");
    jail.assert_nothing_left(None);
}

/// An exit code of 137 and a death by signal 9 are not the same.
fn a_death_by_a_signal_is_told_from_an_exit_code(who: Who) {
    let jail = jail(who);
    let outcome = jail.run(&["/bin/sh", "-c", "exit 137"]);
    assert_eq!(
        (outcome.code(), outcome.signal()),
        (137, None),
        "{outcome:#?}"
    );
    let outcome = jail.run(&["/bin/sh", "-c", "kill -9 $$"]);
    assert_eq!(
        (outcome.code(), outcome.signal()),
        (137, Some(9)),
        "{outcome:#?}"
    );
}

/// What the tier can't hold is refused by name.
fn what_gvisor_cannot_do_is_refused(who: Who) {
    let jail = jail(who);
    let policy = jail.base.join("learn.yaml");
    jail.put(&policy, "extends: moderate\nsandbox_tier: gvisor\n");
    let learned = finish(
        jail.belljar(&["learn", "--config", &policy.to_string_lossy(), "--", "true"])
            .spawn()
            .expect("start"),
    );
    assert_eq!(learned.code(), REFUSED, "{}", learned.stderr());
    assert!(learned.stderr().contains("gvisor"), "{}", learned.stderr());
}

fn a_tier_that_is_not_there_is_refused_and_never_replaced(who: Who) {
    let mut jail = Jail::new(who);
    jail.policy("extends: moderate\nsandbox_tier: firecracker\n");
    let outcome = jail.run(&["/bin/sh", "-c", "echo ran > ran"]);
    assert_eq!(outcome.code(), REFUSED, "{outcome:#?}");
    assert!(!jail.work.join("ran").exists());
}

/// Each tier is tried when it is asked for, and doctor says what getting out takes.
fn doctor_tries_each_tier(who: Who) {
    let jail = jail(who);
    let ask = |words: &[&str]| -> serde_json::Value {
        let words = [&["doctor", "--output", "json"], words].concat();
        let said = finish(jail.belljar(&words).spawn().expect("start"));
        serde_json::from_str(&said.stdout()).expect("JSON")
    };
    let container = |report: &serde_json::Value| {
        let all = report["tiers"].as_array().expect("tiers");
        let found = all.iter().find(|tier| tier["tier"] == "container");
        found.expect("the tier").clone()
    };
    // No image is there; what to type is.
    let without = container(&ask(&[]));
    assert_eq!(without["available"], false);
    let hint = without["hint"].as_str().expect("a hint");
    assert!(hint.contains("belljar image build"), "{hint}");
    // One whose files are gone carries no box.
    let gone = jail.base.join("gone");
    put_image(&jail.state, &gone, ImageConfig::default());
    jail.own(&jail.state);
    assert_eq!(container(&ask(&[]))["available"], false);
    fs::remove_dir_all(jail.state.join("images")).expect("removed");
    provide_image(&jail.state, ImageConfig::default());
    jail.own(&jail.state);
    let report = ask(&["--bench"]);
    let tier = |name: &str| {
        let all = report["tiers"].as_array().expect("tiers");
        all.iter()
            .find(|tier| tier["tier"] == name)
            .unwrap_or_else(|| panic!("{name}: {report}"))
    };
    for name in ["seccomp", "container", "gvisor"] {
        assert_eq!(tier(name)["available"], true, "{report:#}");
        assert!(tier(name)["start_ms"].as_f64().is_some_and(|ms| ms > 0.0));
        assert!(
            tier(name)["escape_needs"]
                .as_str()
                .is_some_and(|text| !text.is_empty())
        );
    }
    assert_eq!(tier("firecracker")["available"], false);
    let found = tier("container")["found"].as_str().expect("what was found");
    assert!(found.ends_with(&format!("tried in {IMAGE}")), "{found}");
    jail.assert_nothing_left(None);
}

/// A release of gVisor's that the host does not have installed; `scripts/setup.sh test` unpacks it.
const LATER: &str = "/usr/lib/belljar/runsc-20240729/runsc";

fn another_release_is_used_where_it_is_named(who: Who) {
    let mut jail = jail(who);
    jail.variable("BELLJAR_RUNSC", LATER);
    let mark = jail.work_file("mark");
    let script = format!("echo up > '{mark}'; exec sleep 600");
    let child = start_until(&jail, &script, &mark);
    let found = descendants(child.id()).into_iter().any(|(pid, _)| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&words).contains("--platform=systrap")
    });
    assert!(found, "gVisor's kernel is not the later one's");
    kill_process(Pid::from_child(&child), Signal::TERM).expect("end the program");
    finish(child);
    let said = finish(jail.belljar(&["doctor"]).spawn().expect("start"));
    let words = format!("{LATER}, release 20240729, by systrap");
    assert!(said.stdout().contains(&words), "{}", said.stdout());
}

/// What is to be the wall is nothing that the program or a stranger could have put there.
fn a_runsc_that_others_could_have_written_is_refused(who: Who) {
    let mut jail = jail(who);
    let place = jail.base.join("another");
    let path = place.join("runsc");
    let shared = jail.work.join("runsc");
    fs::create_dir(&place).expect("a directory");
    for copy in [&path, &shared] {
        fs::copy(LATER, copy).expect("a copy of it");
        fs::set_permissions(copy, fs::Permissions::from_mode(0o755)).expect("executable");
        jail.own(copy);
    }
    let allow = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("its mode");
    };
    let named = |jail: &mut Jail, name: &str| {
        jail.variable("BELLJAR_RUNSC", name);
        finish(jail.text_command(&["/bin/true"]).spawn().expect("start"))
    };
    let path_text = path.to_string_lossy().into_owned();
    let refused = |jail: &mut Jail, name: &str, why: &str| {
        let finished = named(jail, name);
        assert_eq!(finished.code(), REFUSED, "{name}: {finished:?}");
        assert!(finished.stderr().contains(why), "{}", finished.stderr());
    };
    assert_eq!(named(&mut jail, &path_text).code(), 0, "the control");
    allow(&path, 0o775);
    refused(&mut jail, &path_text, "others may write to it");
    allow(&path, 0o755);
    allow(&place, 0o777);
    refused(&mut jail, &path_text, "others may write to /");
    allow(&place, 0o755);
    let shared = shared.to_string_lossy().into_owned();
    refused(&mut jail, &shared, "lets the program write to");
    refused(&mut jail, "project/runsc", "named from / on");
    // Not there: the installed one does not take its place.
    refused(&mut jail, "/nowhere/runsc", "/nowhere/runsc");
}

/// Whoever breaks into gVisor's kernel and takes its place meets our filter and the bound on processes around it, and is told
/// of. The probe plays that: it is called as `runsc` is, and tries.
fn a_kernel_that_was_broken_into_meets_the_filter_around_it(who: Who) {
    let mut jail = jail(who);
    let place = jail.base.join("broken");
    fs::create_dir(&place).expect("a directory");
    let path = place.join("runsc");
    fs::copy(jail.probe_path(), &path).expect("the probe");
    jail.own(&place);
    let path = path.to_string_lossy().into_owned();
    let mut outside = Command::new(&path);
    let control = outside.stdout(Stdio::piped()).spawn().expect("start");
    let control = Attempt::parse(&finish(control).stdout());
    let is_open = |name: &str| control.iter().any(|it| it.allowed && it.name == name);
    for name in ["keyctl", "io_uring_setup", "forks"] {
        assert!(is_open(name), "{name}: {control:?}");
    }
    jail.limits(&["max_processes: 16"]);
    jail.variable("BELLJAR_RUNSC", &path);
    jail.option(&["--timeout", "2"]);
    let outcome = jail.run(&["/bin/true"]);
    let mut attempts = outcome.attempts();
    assert_eq!(attempts.len(), control.len(), "{outcome:#?}");
    if !outcome.limits_by().starts_with("cgroup") {
        // Without a control group the number of processes is for gVisor's kernel to hold.
        attempts.retain(|attempt| attempt.name != "forks");
    }
    assert_all_refused(&attempts);
    let told = outcome.json["violations"].to_string();
    for call in ["keyctl", "perf_event_open", "userfaultfd", "bpf"] {
        assert!(told.contains(&format!("\"{call}\"")), "{outcome:#?}");
    }
    assert!(
        told.contains("asked of the host's kernel by gVisor's"),
        "{told}"
    );
}

/// A difference that users are not told of is a fault.
#[test]
fn every_known_difference_is_documented() {
    let page = include_str!("../../../docs/tiers.md");
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    for (_, reason) in Difference::ALL.iter().flat_map(|one| one.reasons()) {
        assert!(
            words(page).contains(&words(reason)),
            "docs/tiers.md does not say: {reason}"
        );
    }
}
for_each_user!(
    the_program_calls_another_kernel,
    nothing_of_gvisor_outlives_a_killed_keeper,
    output_to_a_file_is_added_to_it,
    what_a_program_wrote_before_its_end_is_there,
    memory_barriers_are_there_for_programs,
    the_door_is_the_one_socket_of_the_host_within_reach,
    a_program_is_called_as_it_was_asked_for,
    nothing_of_its_init_is_within_reach,
    gvisors_kernel_has_no_more_than_it_needs,
    without_a_door_no_socket_of_the_host_is_asked_for,
    what_the_host_changes_is_seen_inside,
    nobody_hides_from_what_tells_of_refused_calls,
    a_kernel_that_ends_before_its_program_is_told_as_such,
    a_death_by_a_signal_is_told_from_an_exit_code,
    what_gvisor_cannot_do_is_refused,
    a_tier_that_is_not_there_is_refused_and_never_replaced,
    doctor_tries_each_tier,
    another_release_is_used_where_it_is_named,
    a_runsc_that_others_could_have_written_is_refused,
    a_kernel_that_was_broken_into_meets_the_filter_around_it,
);
