//! What an agent may not ask of the kernel, of other processes, or of the user's terminal.

mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};

use support::{
    Attempt, Difference, Jail, Outcome, Who, assert_all_allowed, assert_all_refused, differs,
    few_cpu_seconds, finish, for_each_user_and_tier,
};

/// System calls that some kernels lack. Where the control meets ENOSYS there is nothing to attack.
fn present_outside(control: Vec<Attempt>) -> Vec<Attempt> {
    let absent = |a: &Attempt| {
        !a.allowed && ["ENOSYS", "EAFNOSUPPORT", "ESOCKTNOSUPPORT"].contains(&a.detail.as_str())
    };
    control
        .into_iter()
        .filter(|attempt| !absent(attempt))
        .collect()
}

fn io_uring_is_refused(who: Who) {
    let jail = Jail::new(who);
    jail.attack(&["io_uring"]);
}

fn nested_user_namespaces_are_refused(who: Who) {
    let jail = Jail::new(who);
    jail.attack(&["userns"]);
}

/// Libraries start processes and threads with clone3 first: refusing it must be something they fall back from.
fn ordinary_processes_and_threads_still_start(who: Who) {
    let jail = Jail::new(who);
    let attempts = jail.inside(&["clone3-fork"]).attempts();
    assert!(
        attempts[0].allowed || attempts[0].detail == "ENOSYS",
        "{attempts:?}"
    );
    assert_all_allowed(&jail.inside(&["burn-threads", "0.01", "4"]).attempts());
    jail.run(&["/bin/sh", "-c", "echo a | cat"]).assert_exit(0);
}

fn kernel_interfaces_are_refused(who: Who) {
    let jail = Jail::new(who);
    for attempt in ["userfaultfd", "perf", "keyctl", "personality", "bpf"] {
        let control = present_outside(jail.privileged_control(&[attempt]));
        // A namespace's root may be refused some of these by the kernel; root itself none.
        if support::runner_is_root() {
            assert_all_allowed(&control);
        }
        assert_all_refused(&jail.inside(&[attempt]).attempts());
    }
}

/// Without capabilities the kernel refuses most of these by itself: only the count shows that the filter did.
fn privileged_system_calls_are_refused_by_name(who: Who) {
    let jail = Jail::new(who);
    let control = present_outside(jail.privileged_control(&["syscall", "all"]));
    assert!(control.len() > 20, "the control reached only {control:?}");
    // A namespace's root may be refused some of these by the kernel; root itself none.
    if support::runner_is_root() {
        assert_all_allowed(&control);
    }
    let outcome = jail.inside(&["syscall", "all"]);
    let boxed = outcome.attempts();
    assert_all_refused(&boxed);
    // Names of the box's own host, which it may not change but which nothing depends on.
    let unfiltered = ["sethostname", "setdomainname"];
    let counted = outcome.violations();
    for attempt in boxed
        .iter()
        .filter(|attempt| !unfiltered.contains(&attempt.name.as_str()))
    {
        assert!(
            counted.contains(&attempt.name.as_str()),
            "{} is not among the violations {counted:?}",
            attempt.name
        );
    }
}

/// An agent that does nothing but meet a wall is counted to the last, and told of in one line.
fn a_wall_that_is_hammered_at_is_told_once(who: Who) {
    let jail = Jail::new(who);
    let outcome = jail.inside(&["hammer", "250"]);
    let attempts = outcome.attempts();
    assert_eq!(attempts.len(), 4, "{outcome:#?}");
    assert!(
        attempts.iter().all(|a| !a.allowed && a.detail == "EPERM"),
        "{outcome:#?}"
    );
    assert_eq!(outcome.violations(), ["mount"], "{outcome:#?}");
    assert_eq!(outcome.json["violations"][0]["count"], 1000);
}

/// What an agent was refused is known before it ends, however it ends.
fn a_refused_call_is_told_while_the_program_runs(who: Who) {
    let mut jail = Jail::new(who);
    jail.limits(&[&format!("max_cpu_seconds: {}", few_cpu_seconds())]);
    let outcome = jail.inside(&["meet-and-spin"]);
    assert_eq!(outcome.killed_by(), Some("cpu"), "{outcome:#?}");
    assert_eq!(outcome.violations(), ["mount"], "{outcome:#?}");
}

/// Whoever watches the program's calls must not be in the way of what stops and continues it.
fn a_stopped_process_goes_on_when_it_is_told_to(who: Who) {
    let jail = Jail::new(who);
    let attempts = jail.inside(&["stop-and-go"]).attempts();
    assert_all_allowed(&attempts);
    assert_eq!(attempts[0].detail, "3");
}

fn unusual_socket_families_are_refused(who: Who) {
    let jail = Jail::new(who);
    let control = present_outside(jail.privileged_control(&["socket", "all"]));
    assert!(
        control.iter().any(|a| a.name == "packet" && a.allowed),
        "no control: {control:?}"
    );
    let boxed = jail.inside(&["socket", "all"]).attempts();
    // A multipath socket is TCP by another name; it meets the same empty network.
    let unusual: Vec<Attempt> = boxed.into_iter().filter(|a| a.name != "mptcp").collect();
    assert_all_refused(&unusual);
    assert_all_refused(&jail.inside(&["socket-high"]).attempts());
}

fn other_instruction_set_tables_are_closed(who: Who) {
    let jail = Jail::new(who);
    for table in ["x32", "int80"] {
        let control = present_outside(jail.control(&[table]));
        assert!(
            control.iter().all(|a| a.allowed || a.detail == "SEGV"),
            "{control:?}"
        );
        assert_all_refused(&jail.inside(&[table]).attempts());
    }
}

fn other_namespaces_cannot_be_joined(who: Who) {
    let jail = Jail::new(who);
    for kind in ["user", "net", "mnt", "pid", "ipc"] {
        assert_all_refused(
            &jail
                .inside(&["setns", &format!("/proc/1/ns/{kind}")])
                .attempts(),
        );
        assert_all_refused(
            &jail
                .inside(&["setns", &format!("/proc/self/ns/{kind}")])
                .attempts(),
        );
    }
    if who == Who::Root {
        assert_all_allowed(&jail.control(&["setns", "/proc/self/ns/net"]));
    }
}

/// A process of the same user outside the box, for the agent to attack. Ends with the test.
struct Victim {
    process: Child,
    /// Held open: a victim whose output is gone might end for that reason.
    _output: BufReader<ChildStdout>,
}

impl Victim {
    fn start(jail: &Jail) -> Victim {
        let mut command = jail.outside(support::probe());
        // Not in the test's own directory, so that it is not taken for a leftover of the run.
        command
            .arg("wait")
            .current_dir("/")
            .env_clear()
            .stdin(Stdio::piped());
        let mut process = command.spawn().expect("start the victim");
        let mut output = BufReader::new(process.stdout.take().expect("its output"));
        let mut line = String::new();
        output.read_line(&mut line).expect("its first line");
        assert_eq!(line, format!("waiting: allowed {}\n", process.id()));
        Victim {
            process,
            _output: output,
        }
    }

    fn pid(&self) -> String {
        self.process.id().to_string()
    }

    fn assert_alive(&mut self) {
        assert!(
            self.process
                .try_wait()
                .expect("look at the victim")
                .is_none(),
            "the victim was killed"
        );
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

fn processes_of_the_host_are_out_of_reach(who: Who) {
    let jail = Jail::new(who);
    let mut victim = Victim::start(&jail);
    let pid = victim.pid();
    // The static probe is linked at a fixed address.
    let address = "0x400000";
    jail.attack(&["kill", &pid, "0"]);
    jail.attack(&["setpriority", &pid]);
    jail.attack(&["ptrace", &pid]);
    jail.attack(&["vm-read", &pid, address]);
    jail.attack(&["proc-mem", &pid, address]);
    jail.attack(&["read", &format!("/proc/{pid}/status")]);
    assert_all_refused(&jail.inside(&["kill", &pid, "9"]).attempts());
    victim.assert_alive();
}

fn only_the_boxs_processes_are_visible(who: Who) {
    let jail = Jail::new(who);
    let listed = |attempts: &[Attempt]| attempts[0].detail.split_whitespace().count();
    assert!(
        listed(&jail.control(&["procs"])) > 3,
        "the control shows too few processes to tell"
    );
    if differs(Difference::KernelThreads) {
        let all = "cat /proc/[0-9]*/cmdline | tr '\\0' ' '";
        let inside = jail.run(&["/bin/sh", "-c", all]).stdout().to_owned();
        assert!(inside.contains("microvm-guest"), "{inside}");
        // What every keeper of these tests has among its words.
        assert!(!inside.contains("--output"), "{inside}");
        return;
    }
    let inside = jail.inside(&["procs"]).attempts();
    assert!(
        listed(&inside) <= 2,
        "more than init and the probe: {inside:?}"
    );
}

fn the_agent_cannot_harm_its_init(who: Who) {
    let jail = Jail::new(who);
    // Were the box without a process namespace, process 1 would be the host's: look before aiming at it.
    let own = fs::read_link("/proc/self/ns/pid").expect("the host's process namespace");
    let there = jail.run(&["readlink", "/proc/self/ns/pid"]);
    there.assert_exit(0);
    // A guest's kernel counts its namespaces as the host's does, and begins with the same number.
    assert!(
        differs(Difference::KernelThreads) || there.stdout().trim_end() != own.to_string_lossy(),
        "the box shares the host's process namespace"
    );
    for signal in ["9", "15", "19", "2"] {
        let script = format!(
            "'{0}' kill 1 {signal}; '{0}' own-loopback",
            jail.probe_path().display()
        );
        let outcome = jail.run(&["/bin/sh", "-c", &script]);
        assert!(
            outcome.stdout().contains("own-loopback:"),
            "signal {signal} to init ended the box: {outcome:#?}"
        );
        assert_eq!(outcome.killed_by(), None, "{outcome:#?}");
    }
    for attempt in [
        &["ptrace", "1"][..],
        &["vm-read", "1", "0x400000"],
        &["proc-mem", "1", "0x400000"],
    ] {
        assert_all_refused(&jail.inside(attempt).attempts());
    }
}

/// The kernel sees one user in both, and lets users change what is theirs. Nothing does anything to pid 1: it goes on to answer,
/// to reap and to tell, and ends with the last process.
fn pid_1_is_out_of_reach(who: Who) {
    let jail = Jail::new(who);
    // gVisor's kernel does not survive news as signals, whoever they are for.
    let news = match differs(Difference::OpenInit) {
        false => "news-to-init",
        true => "signal-init",
    };
    let script = format!(
        "for what in reach-init signal-init {news} bpf change-own; do '{}' $what; done; (exec true & exec true); exit 3",
        jail.probe_path().display()
    );
    let outcome = jail.run(&["/bin/sh", "-c", &script]);
    assert_eq!(outcome.exit_code(), Some(3), "{outcome:#?}");
    assert_eq!(outcome.killed_by(), None, "{outcome:#?}");
    let violations = outcome.violations();
    for call in [
        "prlimit64",
        "setpriority",
        "ioprio_set",
        "sched_setaffinity",
        "bpf",
    ] {
        assert!(violations.contains(&call), "{call}: {outcome:#?}");
    }
    let (mut sent, mut own, mut reach) = (Vec::new(), Vec::new(), Vec::new());
    for attempt in outcome.attempts() {
        match attempt.name.as_str() {
            name if name.ends_with("-to-init") => sent.push(attempt),
            // What a program does to itself and its children is its own affair.
            name if name.starts_with("own-") || name.starts_with("childs-") => own.push(attempt),
            _ => reach.push(attempt),
        }
    }
    if differs(Difference::OpenInit) {
        reach.retain(|attempt| !attempt.name.ends_with("oom_score_adj"));
        // Its kernel knows fewer schedulers.
        own.retain(|own| !["own-ioprio", "own-scheduler"].contains(&own.name.as_str()));
    }
    assert!(reach.len() > 70 && sent.len() == 2, "{outcome:#?}");
    assert_all_refused(&reach);
    assert_all_allowed(&own);
}

/// Pid 1 makes the box's connections, and one that waits must not have it wait: it goes on to answer.
fn no_connection_holds_pid_1_up(who: Who) {
    let jail = Jail::new(who);
    let program = jail.probe_path().to_string_lossy().into_owned();
    let outcome = jail.run(&[&program, "swing-connect", "/tmp/swing"]);
    assert_eq!(outcome.killed_by(), None, "{outcome:#?}");
    assert!(!outcome.attempts().is_empty(), "{outcome:#?}");
    assert_all_refused(&outcome.attempts());
}

/// A process group is not bound to a process namespace: the agent must not share the keeper's.
fn a_signal_to_its_own_group_does_not_leave_the_box(who: Who) {
    let jail = Jail::new(who);
    let group = |mut command: Command| {
        // A group of its own, so that only the keeper would suffer if it were in the agent's.
        finish(command.process_group(0).spawn().expect("start"))
    };
    let mut bare = jail.outside("/bin/sh");
    bare.args(["-c", "/bin/sh -c 'kill -KILL 0'; echo survived"]);
    assert_eq!(group(bare).stdout(), "", "the control's parent survived");
    let finished = group(jail.json_command(&["/bin/sh", "-c", "kill -KILL 0"]));
    assert_eq!(finished.status.code(), Some(128 + 9), "{finished:?}");
    let outcome = Outcome::from_json(finished);
    assert_eq!(outcome.signal(), Some(9), "{outcome:#?}");
    jail.assert_nothing_left(None);
}

/// A crash inside must not hand the host's core dump handler anything, nor leave a file.
fn crashes_leave_no_core_dump(who: Who) {
    let jail = Jail::new(who);
    let belljar = jail.belljar_path().to_string_lossy().into_owned();
    let mut command = jail.outside("/bin/sh");
    command.args([
        "-c",
        &format!(
            "ulimit -c 1000; exec '{belljar}' run {}-- /bin/sh -c 'ulimit -c'",
            jail.quoted_options()
        ),
    ]);
    let finished = finish(command.spawn().expect("a shell"));
    assert_eq!(finished.stdout(), "0\n", "{}", finished.stderr());
}

fn shared_memory_of_the_host_is_out_of_reach(who: Who) {
    let jail = Jail::new(who);
    let made = jail.control(&["shm-make"]);
    let id = made[0].detail.clone();
    assert_all_allowed(&made);
    let control = jail.control(&["shm-attach", &id]);
    let boxed = jail.inside(&["shm-attach", &id]).attempts();
    assert_all_allowed(&jail.control(&["shm-remove", &id]));
    assert_all_allowed(&control);
    assert_all_refused(&boxed);
}

/// Characters pushed into the terminal's input would be run by the user's shell after the agent has gone.
fn nothing_can_be_typed_into_the_users_terminal(who: Who) {
    let jail = Jail::new(who);
    let program = jail.probe_path().to_string_lossy().into_owned();
    let on_terminal = |words: &[&str]| {
        let mut command = jail.outside(&program);
        command.args(["on-terminal", "--"]).args(words);
        let finished = finish(command.spawn().expect("a terminal"));
        // Pushed characters are echoed in front of the probe's lines.
        let text = finished
            .stdout()
            .replace("\r\n", "\n")
            .replace("xtioc", "tioc");
        Attempt::parse(&text)
            .into_iter()
            .filter(|a| a.name.contains("tioc"))
            .collect::<Vec<_>>()
    };
    assert_all_allowed(&on_terminal(&[&program, "tiocsti"]));
    let belljar = jail.belljar_path().to_string_lossy().into_owned();
    let line = format!(
        "exec '{belljar}' run {}-- '{program}' tiocsti",
        jail.quoted_options()
    );
    let boxed = on_terminal(&["/bin/sh", "-c", &line]);
    assert_eq!(boxed.len(), 3, "{boxed:?}");
    assert_all_refused(&boxed);
    jail.assert_nothing_left(None);
}

for_each_user_and_tier!(
    io_uring_is_refused,
    nested_user_namespaces_are_refused,
    ordinary_processes_and_threads_still_start,
    kernel_interfaces_are_refused,
    privileged_system_calls_are_refused_by_name,
    a_wall_that_is_hammered_at_is_told_once,
    a_refused_call_is_told_while_the_program_runs,
    a_stopped_process_goes_on_when_it_is_told_to,
    unusual_socket_families_are_refused,
    other_instruction_set_tables_are_closed,
    other_namespaces_cannot_be_joined,
    processes_of_the_host_are_out_of_reach,
    only_the_boxs_processes_are_visible,
    the_agent_cannot_harm_its_init,
    pid_1_is_out_of_reach,
    no_connection_holds_pid_1_up,
    a_signal_to_its_own_group_does_not_leave_the_box,
    crashes_leave_no_core_dump,
    shared_memory_of_the_host_is_out_of_reach,
    nothing_can_be_typed_into_the_users_terminal,
);
