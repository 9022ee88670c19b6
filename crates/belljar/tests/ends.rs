//! How a box ends when its keeper is told to end, or its pid 1 is lost: whatever the program makes of it, and whatever it left
//! behind.

mod support;

use std::fs;
use std::process::Child;

use rustix::process::{Pid, Signal, kill_process};
use support::{Family, Host, Jail, Outcome, Who, eventually, finish, for_each_user};

/// The box's pid 1, as its keeper's child.
fn init_of(keeper: &Child) -> Option<Pid> {
    let path = format!("/proc/{0}/task/{0}/children", keeper.id());
    let children = fs::read_to_string(path).ok()?;
    Pid::from_raw(children.split_whitespace().next()?.parse().ok()?)
}

/// A box whose program says in a file that it is up.
struct Started {
    keeper: Child,
    init: Pid,
}

impl Started {
    fn new(jail: &Jail, mark: &str, words: &[&str]) -> Started {
        let keeper = jail.json_command(words).spawn().expect("start belljar");
        eventually("the program is up", || {
            fs::read(mark).ok().filter(|text| !text.is_empty())
        });
        let init = init_of(&keeper).expect("the box's pid 1");
        Started { keeper, init }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.keeper), signal).expect("signal belljar");
    }

    fn is_over(&mut self) -> bool {
        self.keeper.try_wait().expect("ask for its end").is_some()
    }
}

/// Somebody on the host may do to it what the agent may not. Then there is no box any more, rather than one that nobody holds;
/// and nobody is said to have ordered that.
fn a_pid_1_that_is_lost_is_the_boxs_end_and_named(who: Who) {
    // By its own user, who alone may.
    let deafen = |jail: &Jail, init: Pid| {
        let mut command = jail.outside("prlimit");
        let init = init.as_raw_nonzero();
        command.args([&format!("--pid={init}"), "--nofile=0:0"]);
        let done = finish(command.spawn().expect("prlimit"));
        assert_eq!(done.code(), 0, "{done:?}");
    };
    let kill = |_: &Jail, init: Pid| kill_process(init, Signal::KILL).expect("kill it");
    type Harm<'a> = &'a dyn Fn(&Jail, Pid);
    let cases: [(Harm<'_>, &[Signal], &str); 2] = [
        // It is woken by what it is told to pass on.
        (&deafen, &[Signal::USR1], "waiting"),
        (&kill, &[], ""),
    ];
    for (harm, signals, why) in cases {
        let jail = Jail::new(who);
        let mark = jail.work_file("mark");
        let program = jail.probe_path().to_string_lossy().into_owned();
        let started = Started::new(&jail, &mark, &[&program, "ignore-signals", &mark]);
        harm(&jail, started.init);
        for signal in signals {
            started.signal(*signal);
        }
        let outcome = jail.conclude(started.keeper);
        assert_eq!(outcome.killed_by(), Some("init_died"), "{outcome:#?}");
        assert!(
            outcome.json["notes"].to_string().contains(why),
            "{outcome:#?}"
        );
        let shown = finish(jail.belljar(&["audit", "show"]).spawn().expect("audit"));
        assert!(shown.stdout().contains("init_died"), "{}", shown.stdout());
    }
}

/// Whoever kills the keeper leaves no run without an end on record: whoever looks first puts it there, once.
fn a_lost_keepers_run_has_an_end_on_record(who: Who) {
    for looks in [&["ps"][..], &["audit", "show"], &["run", "--", "true"]] {
        let jail = Jail::new(who);
        let mark = jail.work_file("mark");
        let program = jail.probe_path().to_string_lossy().into_owned();
        let mut started = Started::new(&jail, &mark, &[&program, "ignore-signals", &mark]);
        started.signal(Signal::KILL);
        started.keeper.wait().expect("its end");
        let belljar = |words: &[&str]| {
            let done = finish(jail.belljar(words).spawn().expect("belljar"));
            assert_eq!(done.code(), 0, "{words:?}: {done:?}");
            done.stdout()
        };
        // Two at once and one after the other.
        let both = [looks, looks].map(|words| jail.belljar(words).spawn().expect("belljar"));
        for child in both {
            assert_eq!(finish(child).code(), 0);
        }
        belljar(looks);
        let log = belljar(&["audit", "show", "--output", "json"]);
        let count = |word: &str| log.lines().filter(|line| line.contains(word)).count();
        assert_eq!(count("keeper_lost"), 1, "{looks:?}: {log}");
        assert_eq!(count("run_launched"), count("run_ended"), "{log}");
        belljar(&["audit", "verify"]);
        eventually("the box is gone", || {
            support::processes_marked(&jail.base)
                .is_empty()
                .then_some(())
        });
    }
}

/// What a program may leave its keeper with, by a script that writes a file when it is so.
const STUBBORN: &[&str] = &[
    "trap '' TERM INT HUP QUIT; echo up >mark; while :; do sleep 61; done",
    "sleep 61 >/dev/null 2>&1 & echo up >mark; exit 0",
    "trap '' TERM INT HUP QUIT; sleep 61 >/dev/null 2>&1 & echo up >mark; exit 0",
];

fn a_second_signal_to_the_keeper_ends_any_box(who: Who) {
    let jail = Jail::new(who);
    let mark = jail.work_file("mark");
    let mut boxes = Vec::new();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT] {
        for script in STUBBORN {
            fs::remove_file(&mark).ok();
            let started = Started::new(&jail, &mark, &["/bin/sh", "-c", script]);
            boxes.push((started, signal));
        }
    }
    // One that comes soon after another is the same wish.
    eventually("all have ended", || {
        boxes.retain_mut(|(started, _)| !started.is_over());
        boxes
            .iter()
            .for_each(|(started, signal)| started.signal(*signal));
        boxes.is_empty().then_some(())
    });
    jail.assert_nothing_left(None);
}

/// A family whose root's pid 1 does not hear: it was told to hold still.
struct Unheld(Family);

impl Unheld {
    /// None where the host's kernel holds boxes still, without their pid 1.
    fn begin(who: Who, host: Host) -> Option<Unheld> {
        let mut family = Family::prepare(
            who,
            "max_depth: 1\nmax_replicas: 1\nheartbeat_timeout_seconds: 600\n",
        )
        .host(host);
        family.start_puppet();
        for init in inits_of(&family.jail) {
            kill_process(init, Signal::STOP).expect("stop its pid 1");
        }
        let root = family.root_id();
        let told = family.operator(&["quarantine", &root]);
        if told["state"] == "quarantined" {
            return None;
        }
        assert_eq!(told["state"], "freezing", "{told}");
        // Whoever looks is told the same.
        assert_eq!(family.workers()[0]["state"], "freezing");
        if host == Host::Supervisor {
            let status = family.belljar(&["supervisor", "status"]);
            assert!(status.stdout().contains(" freezing "), "{status:?}");
        }
        Some(Unheld(family))
    }

    fn await_end(&self) {
        eventually("it was killed", || {
            self.0.logged(&["not_frozen"]).then_some(())
        });
        assert!(!self.0.logged(&["operator_kill"]));
    }
}

/// The pid 1 of each box of this jail: of the processes that are the first of their namespace, those that are marked.
fn inits_of(jail: &Jail) -> Vec<Pid> {
    let of = |pid: u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let numbers = status.lines().find(|line| line.starts_with("NSpid:"))?;
        let is_first = numbers.split_whitespace().count() > 2 && numbers.ends_with("\t1");
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
        let state = fs::read(format!("/proc/{}/environ", parent.trim())).ok()?;
        let place = jail.base.to_str()?.as_bytes();
        let is_ours = state.windows(place.len()).any(|window| window == place);
        (is_first && is_ours).then(|| Pid::from_raw(pid as i32))?
    };
    let entries = fs::read_dir("/proc").expect("/proc").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(of).collect()
}

/// All of the ways at once, for a grace takes its time.
fn what_does_not_end_or_hold_still_in_time_is_killed(who: Who) {
    let unheld = std::thread::scope(|scope| {
        let begun =
            [Host::Run, Host::Supervisor].map(|host| scope.spawn(move || Unheld::begin(who, host)));
        begun.map(|thread| thread.join().expect("a family"))
    });
    let jail = Jail::new(who);
    let mark = jail.work_file("mark");
    let cases = [
        (STUBBORN[0], Signal::TERM, false),
        (STUBBORN[0], Signal::HUP, false),
        (STUBBORN[0], Signal::INT, false),
        (STUBBORN[0], Signal::QUIT, false),
        (STUBBORN[1], Signal::INT, false),
        (STUBBORN[2], Signal::TERM, false),
        // Its pid 1 does not hear.
        (STUBBORN[0], Signal::INT, true),
        (STUBBORN[2], Signal::TERM, true),
    ];
    let boxes = cases.map(|(script, signal, is_stopped)| {
        fs::remove_file(&mark).ok();
        let started = Started::new(&jail, &mark, &["/bin/sh", "-c", script]);
        if is_stopped {
            kill_process(started.init, Signal::STOP).expect("stop its pid 1");
        }
        started.signal(signal);
        (started, script, signal)
    });
    for (started, script, signal) in boxes {
        let outcome = Outcome::from_json(finish(started.keeper));
        assert!(
            outcome.killed_by() == Some("signalled") || outcome.exit_code() == Some(0),
            "{signal:?} {script}: {outcome:#?}"
        );
    }
    jail.assert_nothing_left(None);
    unheld.iter().flatten().for_each(Unheld::await_end);
}

/// Whoever is interrupted has time to end in its own way.
fn one_interrupt_ends_nothing_that_handles_it(who: Who) {
    let jail = Jail::new(who);
    let mark = jail.work_file("mark");
    let script = "trap 'echo caught >>mark' INT; echo up >mark; while ! test -e go; do sleep 0.1; done; exit 7";
    let started = Started::new(&jail, &mark, &["/bin/sh", "-c", script]);
    started.signal(Signal::INT);
    eventually("it was caught", || {
        let text = fs::read_to_string(&mark).ok()?;
        text.contains("caught").then_some(())
    });
    jail.put(&jail.work.join("go"), "");
    let outcome = jail.conclude(started.keeper);
    assert_eq!(outcome.exit_code(), Some(7), "{outcome:#?}");
    assert_eq!(outcome.killed_by(), None, "{outcome:#?}");
}

fn what_a_program_leaves_behind_is_named(who: Who) {
    let jail = Jail::new(who);
    // A name with something in it that a terminal obeys.
    let script = "cp /bin/sleep \"$(printf 'na\\033me')\"; ./na?me 1.5 >/dev/null 2>&1 & exit 4";
    let outcome = jail.run(&["/bin/sh", "-c", script]);
    assert_eq!(outcome.exit_code(), Some(4), "{outcome:#?}");
    assert_eq!(outcome.killed_by(), None, "{outcome:#?}");
    assert_eq!(
        outcome.json["left_behind"],
        serde_json::json!(["na\u{1b}me"]),
        "{outcome:#?}"
    );
    let said = outcome.finished.stderr();
    assert!(
        said.matches("waits for what it left behind").count() == 1 && !said.contains('\u{1b}'),
        "{said:?}"
    );
    // At a terminal that is the keeper's again: an interrupt reaches what is left.
    let belljar = jail.belljar_path().to_string_lossy().into_owned();
    let (probe, mark) = (jail.probe_path(), jail.work_file("caught"));
    let script = format!("'{}' catch {mark} 2 & exit 5", probe.display());
    let mut typed = jail.outside(&probe);
    typed
        .args(["on-terminal", "-e", "left behind: probe", "-s", "\\c"])
        .args(["--", &belljar, "run", "--", "sh", "-c", &script]);
    let typed = finish(typed.spawn().expect("a terminal"));
    assert_eq!(typed.code(), 5, "{}", typed.stdout());
    assert!(typed.stdout().contains("caught: allowed 2"), "{typed:?}");
    jail.assert_nothing_left(None);
}

for_each_user!(
    a_pid_1_that_is_lost_is_the_boxs_end_and_named,
    a_lost_keepers_run_has_an_end_on_record,
    a_second_signal_to_the_keeper_ends_any_box,
    one_interrupt_ends_nothing_that_handles_it,
    what_a_program_leaves_behind_is_named,
);

/// As a user only: it takes its time, and there is mostly no control group that would do it.
#[test]
fn as_user_what_does_not_end_or_hold_still_in_time_is_killed() {
    what_does_not_end_or_hold_still_in_time_is_killed(Who::User);
}
