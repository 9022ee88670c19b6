//! Limits hold for the whole tree, are reported by name, and leave no survivor.
//!
//! This file also runs in a VM guest that has nothing but a shell, Belljar and the probe; it may use no other
//! program.

mod support;

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command};

use rustix::process::{Pid, Signal, kill_process};
use support::{
    Difference, Jail, Outcome, Who, assert_all_allowed, assert_all_refused, cgroups_of, differs,
    eventually, few_cpu_seconds, finish, for_each_user_and_tier, machines_own, patience,
    processes_marked, shortest_patience,
};

/// Belljar's own exit codes that these tests meet.
const REFUSED: i32 = 122;
const LIMIT_HIT: i32 = 123;
const TIMED_OUT: i32 = 124;

fn progress(path: &str) -> i64 {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines()
        .next()
        .and_then(|line| line.parse().ok())
        .unwrap_or(0)
}

fn by_cgroup(outcome: &Outcome) -> bool {
    outcome.limits_by().starts_with("cgroup")
}

fn spawn(mut command: Command) -> Child {
    command.spawn().expect("start belljar")
}

/// A running box whose agent has written its mark.
fn start_and_await(jail: &Jail, words: &[&str], mark: &str) -> Child {
    let child = spawn(jail.json_command(words));
    eventually("the agent writes its mark", || {
        (progress(mark) > 0).then_some(())
    });
    child
}

/// The host decides how limits are held; where the tests know, the result must say so.
fn the_result_says_how_limits_are_held(who: Who) {
    let jail = Jail::new(who);
    let outcome = jail.run(&["/bin/sh", "-c", "exit 0"]);
    outcome.assert_exit(0);
    assert!(
        ["cgroup v1", "cgroup v2", "sampling"].contains(&outcome.limits_by()),
        "{}",
        outcome.limits_by()
    );
    if let (Ok(expected), true) = (std::env::var("BELLJAR_EXPECT_LIMITS"), who.is_runner()) {
        assert_eq!(outcome.limits_by(), expected);
    }
}

fn memory_in_a_grandchild_is_limited(who: Who) {
    let mut jail = Jail::new(who);
    jail.limits(&["max_memory_mb: 64"]);
    for kind in ["anonymous", "memfd", "memfd-written", "sysv"] {
        let reached = jail.work_file("reached");
        let outcome = jail.inside(&["alloc-grandchild", kind, "500", &reached]);
        let touched = progress(&reached);
        // Memory that sampling cannot count may be refused instead.
        if kind != "anonymous" && outcome.limits_by() == "sampling" && outcome.killed_by().is_none()
        {
            assert_all_refused(&outcome.attempts());
            assert_eq!(touched, 0, "{kind}: {outcome:#?}");
            continue;
        }
        outcome.assert_killed("memory", LIMIT_HIT);
        assert!((1..500).contains(&touched), "{kind}: touched {touched} MB");
        if by_cgroup(&outcome) {
            assert!(
                touched <= 64,
                "{kind}: touched {touched} MB past a kernel limit of 64 MB"
            );
            // Threads that the kernel is killing may take a last page each past the limit, so that they can end; gVisor
            // has dozens.
            let peak = outcome.usage("peak_memory_mb");
            assert!(
                peak <= 64.25 + machines_own(),
                "{kind}: a peak of {peak} MB at a limit of 64 MB"
            );
        }
    }
}

/// What the kernel holds for a box in connections is its memory too, where a control group counts.
fn memory_in_sockets_is_limited(who: Who) {
    let mut jail = Jail::new(who);
    jail.limits(&["max_memory_mb: 64"])
        .option(&["--timeout", "20"]);
    // A kernel of its own has its sockets in memory that is counted.
    if differs(Difference::OwnProcesses) || !by_cgroup(&jail.run(&["true"])) {
        return;
    }
    let reached = jail.work_file("reached");
    let outcome = jail.inside(&["hold-sockets", "2000", &reached]);
    // Version 2 counts them with the rest, and makes it wait or kills; version 1 is looked at, and a look may be late.
    if outcome.limits_by() == "cgroup v1" {
        outcome.assert_killed("memory", LIMIT_HIT);
    }
    let held = progress(&reached);
    assert!((1..800).contains(&held), "held {held} MB: {outcome:#?}");
}

fn memory_within_the_limit_is_free(who: Who) {
    let mut jail = Jail::new(who);
    jail.limits(&["max_memory_mb: 64"]);
    // Another kernel has some 25 MB for itself, of the same limit.
    let megabytes = match differs(Difference::OwnProcesses) {
        true => "30",
        false => "40",
    };
    let outcome = jail.inside(&["alloc-grandchild", "anonymous", megabytes]);
    outcome.assert_exit(0);
    let peak = outcome.usage("peak_memory_mb");
    let least = match differs(Difference::SampledPeak) && !by_cgroup(&outcome) {
        true => 0.0,
        false => 30.0,
    };
    assert!(
        (least..=64.0 + machines_own()).contains(&peak),
        "{megabytes} MB were touched, the peak is said to be {peak} MB"
    );
}

fn many_small_processes_are_one_large_one(who: Who) {
    let mut jail = Jail::new(who);
    jail.limits(&["max_memory_mb: 64"])
        .option(&["--timeout", "60"]);
    jail.inside(&["alloc-many", "20", "16"])
        .assert_killed("memory", LIMIT_HIT);
}

/// Files on a private tmpfs are memory; they may meet the directory's size first.
fn private_directories_do_not_escape_the_memory_limit(who: Who) {
    let mut jail = Jail::new(who);
    jail.limits(&["max_memory_mb: 64"]);
    for place in ["/tmp/big", "/dev/shm/big"] {
        let reached = jail.work_file("reached");
        let outcome = jail.inside(&["fill", place, "500", &reached]);
        let full = outcome
            .attempts()
            .iter()
            .any(|a| a.name == "fill" && a.detail == "ENOSPC");
        assert!(
            full || outcome.killed_by() == Some("memory"),
            "{place}: {outcome:#?}"
        );
        if by_cgroup(&outcome) {
            assert!(
                progress(&reached) <= 64,
                "{place}: {} MB",
                progress(&reached)
            );
        }
    }
}

fn a_grandchilds_processor_time_is_limited(who: Who) {
    let mut jail = Jail::new(who);
    let limit = few_cpu_seconds();
    jail.limits(&[&format!("max_cpu_seconds: {limit}")]);
    for attempt in [
        &["burn", "60"][..],
        &["burn-grandchild", "60"],
        &["burn-threads", "60", "4"],
        &["burn-children", "0.3", "200"],
    ] {
        let outcome = jail.inside(attempt);
        outcome.assert_killed("cpu", LIMIT_HIT);
        let used = outcome.usage("cpu_seconds");
        assert!(
            (0.9 * limit..limit + 1.0).contains(&used),
            "{attempt:?}: {used} s at a limit of {limit} s"
        );
    }
}

/// Children that nobody waits for leave their time in no parent's account.
fn short_lived_children_do_not_escape_the_processor_limit(who: Who) {
    let mut jail = Jail::new(who);
    jail.limits(&[&format!("max_cpu_seconds: {}", few_cpu_seconds())]);
    for waiting in ["waited", "ignored"] {
        let outcome = jail.inside(&["burn-children", "0.004", "5000", waiting]);
        outcome.assert_killed("cpu", LIMIT_HIT);
    }
}

fn a_sleeping_program_uses_no_processor_time(who: Who) {
    let mut jail = Jail::new(who);
    let limit = few_cpu_seconds();
    jail.limits(&[&format!("max_cpu_seconds: {limit}")]);
    let long_enough = (2.0 * limit).to_string();
    jail.run(&["sleep", &long_enough]).assert_exit(0);
}

/// A lower bound on the duration: a slow machine can only make it longer.
fn the_share_of_the_processor_is_limited(who: Who) {
    let mut jail = Jail::new(who);
    jail.limits(&["max_cpu_percent: 20"]);
    let outcome = jail.inside(&["burn-threads", "0.3", "2"]);
    if outcome.error_code() == Some("refused") {
        assert!(
            !by_cgroup(&jail_without_limits(who)),
            "refused although a cgroup could hold it: {outcome:#?}"
        );
        return;
    }
    outcome.assert_exit(0);
    let least = outcome.usage("cpu_seconds") / 0.20 * 0.7;
    let took = outcome.json["duration_ms"].as_f64().expect("a duration") / 1000.0;
    assert!(
        took >= least,
        "{} s of processor time at 20 % took only {took} s",
        outcome.usage("cpu_seconds")
    );
}

fn jail_without_limits(who: Who) -> Outcome {
    Jail::new(who).run(&["/bin/sh", "-c", "exit 0"])
}

/// The kernel counts refusals in a control group. Without one, a limit that is reached between two looks is held all
/// the same, and the result says that it may go unreported.
fn assert_reports_processes(outcome: &Outcome) {
    let reported =
        outcome.violations().contains(&"processes") || differs(Difference::UncountedProcesses);
    let excused = outcome.limits_by() == "sampling"
        && outcome.json["degraded"]
            .to_string()
            .contains("not reported");
    assert!(reported || excused, "{outcome:#?}");
}

/// Further processes are refused; the box goes on, and its result names the limit.
fn a_fork_bomb_is_contained(who: Who) {
    let mut jail = Jail::new(who);
    jail.limits(&["max_processes: 64"])
        .option(&["--timeout", patience()]);
    for manner in [
        &["fork-bomb", "10000"][..],
        &["fork-bomb", "10000", "persistent"],
    ] {
        let outcome = jail.inside(manner);
        let attempts = outcome.attempts();
        assert!(
            attempts
                .iter()
                .any(|a| a.name == "fork-bomb" && a.detail == "EAGAIN"),
            "{outcome:#?}"
        );
        let forked = attempts
            .iter()
            .find(|a| a.name == "forked")
            .expect("how many there were");
        assert!(
            (1..=64).contains(&forked.detail.parse::<u32>().expect("a count")),
            "{forked:?}"
        );
        assert_reports_processes(&outcome);
        // The children that were made stay for ever; only the timeout ends them.
        outcome.assert_killed("timeout", TIMED_OUT);
    }
}

fn threads_count_as_processes(who: Who) {
    let mut jail = Jail::new(who);
    jail.limits(&["max_processes: 64"]);
    let outcome = jail.inside(&["thread-bomb", "10000"]);
    let attempts = outcome.attempts();
    assert!(
        attempts
            .iter()
            .any(|a| a.name == "thread-bomb" && a.detail == "EAGAIN"),
        "{outcome:#?}"
    );
    let started = attempts
        .iter()
        .find(|a| a.name == "started")
        .expect("how many there were");
    assert!(
        (1..=64).contains(&started.detail.parse::<u32>().expect("a count")),
        "{started:?}"
    );
    assert_reports_processes(&outcome);
}

fn processes_within_the_limit_are_free(who: Who) {
    let mut jail = Jail::new(who);
    jail.limits(&["max_processes: 64"])
        .option(&["--timeout", patience()]);
    // The children stay for ever; only the timeout ends them.
    let outcome = jail.inside(&["fork-bomb", "40"]);
    assert_all_allowed(&outcome.attempts());
    outcome.assert_killed("timeout", TIMED_OUT);
}

fn spawning_needs_permission(who: Who) {
    let mut jail = Jail::new(who);
    jail.policy("filesystem_config: {mode: read_write}\n");
    let outcome = jail.inside(&["fork-bomb", "1"]);
    assert!(
        outcome
            .attempts()
            .iter()
            .any(|a| a.name == "fork-bomb" && a.detail == "EPERM"),
        "{outcome:#?}"
    );
    assert!(
        outcome.json["violations"]
            .to_string()
            .contains("spawn_subprocess"),
        "{outcome:#?}"
    );
    // Threads are not processes to this rule.
    assert_all_allowed(&jail.inside(&["burn-threads", "0.01", "4"]).attempts());
}

fn open_files_are_limited(who: Who) {
    let mut jail = Jail::new(who);
    jail.limits(&["max_open_files: 32"]);
    let attempts = jail.inside(&["open-many", "100"]).attempts();
    let refused = attempts
        .iter()
        .find(|a| a.name == "open-many")
        .expect("a verdict");
    assert_eq!(
        (refused.allowed, refused.detail.as_str()),
        (false, "EMFILE"),
        "{attempts:?}"
    );
    let opened: u32 = attempts[0].detail.parse().expect("a count");
    assert!((20..=32).contains(&opened), "{opened} files");
    // 7 is RLIMIT_NOFILE; raising it again must not work.
    assert_all_refused(&jail.inside(&["raise-limit", "7", "4096"]).attempts());
}

fn the_size_of_a_file_is_limited(who: Who) {
    let mut jail = Jail::new(who);
    jail.limits(&["max_file_size_mb: 2"]);
    let outcome = jail.inside(&["fill", &jail.work_file("big"), "10"]);
    let attempts = outcome.attempts();
    assert!(
        attempts
            .iter()
            .any(|a| a.name == "fill" && a.detail == "EFBIG"),
        "{outcome:#?}"
    );
    assert_eq!(
        fs::metadata(jail.work.join("big")).expect("the file").len(),
        2 << 20
    );
}

fn the_disk_of_private_directories_is_limited(who: Who) {
    let mut jail = Jail::new(who);
    jail.policy("resource_limits: {max_disk_mb: 8}\n");
    for place in ["/tmp/big", "/var/tmp/big", "/dev/shm/big"] {
        let outcome = jail.inside(&["fill", place, "64"]);
        assert!(
            outcome
                .attempts()
                .iter()
                .any(|a| a.name == "fill" && a.detail == "ENOSPC"),
            "{outcome:#?}"
        );
        let filled = outcome
            .attempts()
            .into_iter()
            .find(|a| a.name == "filled")
            .expect("how much fitted");
        let megabytes: u32 = filled
            .detail
            .trim_end_matches(" MB")
            .parse()
            .expect("a number");
        assert!(megabytes <= 8, "{place}: {megabytes} MB at a limit of 8 MB");
    }
}

/// The host's own file system cannot be held to a quota by a user: such a promise is refused, not broken.
fn a_disk_limit_that_cannot_be_held_is_refused(who: Who) {
    let mut jail = Jail::new(who);
    jail.limits(&["max_disk_mb: 8"]);
    let outcome = jail.inside(&["fill", &jail.work_file("big"), "64"]);
    assert_eq!(
        (outcome.code(), outcome.error_code()),
        (REFUSED, Some("refused")),
        "{outcome:#?}"
    );
    assert!(!jail.work.join("big").exists());
}

fn a_timeout_ends_what_runs_in_the_background(who: Who) {
    let mut jail = Jail::new(who);
    jail.option(&["--timeout", shortest_patience()]);
    let outcome = jail.run(&["/bin/sh", "-c", "sleep 600 & echo hi"]);
    outcome.assert_killed("timeout", TIMED_OUT);
    assert_eq!(outcome.stdout(), "hi\n");
}

fn a_box_lasts_until_its_last_process_ends(who: Who) {
    let jail = Jail::new(who);
    let outcome = jail.run(&["/bin/sh", "-c", "(sleep 1; echo late > late) & exit 3"]);
    outcome.assert_exit(3);
    assert_eq!(
        fs::read_to_string(jail.work.join("late")).expect("what the background process wrote"),
        "late\n"
    );
}

fn daemons_do_not_survive(who: Who) {
    let mut jail = Jail::new(who);
    jail.option(&["--timeout", patience()]);
    let program = jail.probe_path().to_string_lossy().into_owned();
    let script = format!("for n in 1 2 3 4; do '{program}' daemonise beat-$n; done");
    let outcome = jail.run(&["/bin/sh", "-c", &script]);
    outcome.assert_killed("timeout", TIMED_OUT);
    for n in 1..=4 {
        assert!(
            progress(&jail.work_file(&format!("beat-{n}"))) > 0,
            "daemon {n} never ran"
        );
    }
}

fn a_stopped_agent_is_still_ended(who: Who) {
    let mut jail = Jail::new(who);
    jail.option(&["--timeout", "1"]);
    jail.inside(&["stop-self", &jail.work_file("mark")])
        .assert_killed("timeout", TIMED_OUT);
}

fn an_agent_that_ignores_signals_is_still_ended(who: Who) {
    let mut jail = Jail::new(who);
    jail.option(&["--timeout", "1"]);
    jail.inside(&["ignore-signals", &jail.work_file("mark")])
        .assert_killed("timeout", TIMED_OUT);
}

fn killing_the_keeper_kills_the_box(who: Who) {
    let jail = Jail::new(who);
    let program = jail.probe_path().to_string_lossy().into_owned();
    let mark = jail.work_file("mark");
    let script = format!("'{program}' daemonise beat; '{program}' ignore-signals '{mark}'");
    let child = start_and_await(&jail, &["/bin/sh", "-c", &script], &mark);
    eventually("the daemon beats", || {
        (progress(&jail.work_file("beat")) > 0).then_some(())
    });
    let cgroups = cgroups_of_processes(&jail.base);
    kill_process(Pid::from_child(&child), Signal::KILL).expect("kill the keeper");
    finish(child);
    eventually("every process of the box is gone", || {
        processes_marked(&jail.base).is_empty().then_some(())
    });
    // What a killed keeper could not clean up, the next run does.
    jail.run(&["/bin/sh", "-c", "exit 0"]).assert_exit(0);
    for cgroup in cgroups {
        assert!(!Path::new(&cgroup).exists(), "{cgroup} was left behind");
    }
}

/// The directories of the box's own cgroups, found through its processes.
fn cgroups_of_processes(marker: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for (pid, _) in processes_marked(marker) {
        let memberships = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        let names = memberships
            .lines()
            .filter_map(|line| line.rsplit('/').next());
        for name in names.filter(|name| name.starts_with("belljar")) {
            found.extend(
                cgroups_of(name)
                    .into_iter()
                    .map(|path| path.to_string_lossy().into_owned()),
            );
        }
    }
    found
}

fn fifty_megabytes_of_output_pass_through(who: Who) {
    let jail = Jail::new(who);
    let program = jail.probe_path().to_string_lossy().into_owned();
    for descriptor in ["1", "2"] {
        let finished = finish(spawn(
            jail.text_command(&[&program, "chatter", descriptor, "50"]),
        ));
        assert_eq!(finished.code(), 0, "{:?}", finished.status);
        let text = if descriptor == "1" {
            &finished.stdout
        } else {
            &finished.stderr
        };
        assert_eq!(text.iter().filter(|byte| **byte == b'x').count() >> 20, 50);
    }
    jail.assert_nothing_left(None);
}

fn fifty_megabytes_of_output_are_kept_in_bounds(who: Who) {
    let jail = Jail::new(who);
    for (descriptor, name) in [("1", "stdout"), ("2", "stderr")] {
        let outcome = jail.inside(&["chatter", descriptor, "50"]);
        outcome.assert_exit(0);
        assert_eq!(
            outcome.json[name].as_str().expect("its text").len(),
            1 << 20
        );
        assert_eq!(outcome.json[format!("{name}_truncated")], true);
    }
    assert_eq!(
        jail.inside(&["chatter", "1", "0"]).json["stdout_truncated"],
        false
    );
}

fn a_reader_that_leaves_early_does_not_hang_the_box(who: Who) {
    let jail = Jail::new(who);
    let program = jail.probe_path().to_string_lossy().into_owned();
    let mut child = spawn(jail.text_command(&[&program, "chatter", "1", "50"]));
    let mut reader = child.stdout.take().expect("its output");
    reader.read_exact(&mut [0; 4096]).expect("some output");
    drop(reader);
    // The agent sees the closed pipe as it would without a box: EPIPE, on which this one exits with 32.
    assert_eq!(finish(child).code(), 32);
    jail.assert_nothing_left(None);
    // The result object's reader is gone as well: nothing to say it to, but an end all the same.
    let mut child = spawn(jail.json_command(&[&program, "chatter", "1", "50"]));
    drop(child.stdout.take());
    finish(child);
    jail.assert_nothing_left(None);
}

fn a_limit_is_named_in_text_with_what_to_change(who: Who) {
    let mut jail = Jail::new(who);
    jail.limits(&["max_memory_mb: 64"]);
    let program = jail.probe_path().to_string_lossy().into_owned();
    let finished = finish(spawn(jail.text_command(&[
        &program,
        "alloc",
        "anonymous",
        "500",
    ])));
    assert_eq!(finished.code(), LIMIT_HIT);
    let said = finished.stderr();
    assert!(said.contains("[belljar] killed: memory"), "{said}");
    assert!(
        said.contains("[belljar] hint:") && said.contains("max_memory_mb"),
        "{said}"
    );
}

for_each_user_and_tier!(
    the_result_says_how_limits_are_held,
    memory_in_a_grandchild_is_limited,
    memory_in_sockets_is_limited,
    memory_within_the_limit_is_free,
    many_small_processes_are_one_large_one,
    private_directories_do_not_escape_the_memory_limit,
    a_grandchilds_processor_time_is_limited,
    short_lived_children_do_not_escape_the_processor_limit,
    a_sleeping_program_uses_no_processor_time,
    the_share_of_the_processor_is_limited,
    a_fork_bomb_is_contained,
    threads_count_as_processes,
    processes_within_the_limit_are_free,
    spawning_needs_permission,
    open_files_are_limited,
    the_size_of_a_file_is_limited,
    the_disk_of_private_directories_is_limited,
    a_disk_limit_that_cannot_be_held_is_refused,
    a_timeout_ends_what_runs_in_the_background,
    a_box_lasts_until_its_last_process_ends,
    daemons_do_not_survive,
    a_stopped_agent_is_still_ended,
    an_agent_that_ignores_signals_is_still_ended,
    killing_the_keeper_kills_the_box,
    fifty_megabytes_of_output_pass_through,
    fifty_megabytes_of_output_are_kept_in_bounds,
    a_reader_that_leaves_early_does_not_hang_the_box,
    a_limit_is_named_in_text_with_what_to_change,
);
