//! Killing, freezing and thawing a box from another thread than its keeper's.

mod support;

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use belljar_supervisor::{
    Assignment, Attendant, BoxState, Command, Facts, FreezeError, FreezeMethod, KillCode, KilledBy,
    Refusal, Reins, RunError, SandboxId, StateDir,
};
use support::{Who, Yard, attend_admitted, eventually, for_each_user_apart, on_other_tiers_apart};

/// Counts in a file for as long as it runs, in three processes of which two have left the first one's session.
const COUNTING: &str = "for n in 1 2; do setsid sh -c \"while :; do echo x >> count-$n; done\" & done; \
    touch up; while :; do echo x >> count-0; done";

fn counts(yard: &Yard) -> [u64; 3] {
    [0, 1, 2].map(|n| {
        fs::metadata(yard.jail.work.join(format!("count-{n}"))).map_or(0, |file| file.len())
    })
}

fn await_progress(yard: &Yard) {
    let before = counts(yard);
    eventually("every process goes on", || {
        let now = counts(yard);
        (0..3).all(|n| now[n] > before[n]).then_some(())
    });
}

fn await_frozen(reins: &Reins) -> FreezeMethod {
    eventually("the box is frozen", || match reins.state() {
        BoxState::Frozen { method } => Some(method),
        _ => None,
    })
}

/// Long enough for a process that runs to be noticed. Nothing depends on how long exactly.
fn watch_for_a_while() {
    thread::sleep(Duration::from_millis(150));
}

const CODE: KillCode = KillCode::new("some_reason");

fn a_kill_ends_all_and_tells_why(who: Who) {
    let yard = Yard::new(who);
    let result = yard.run_while(&yard.command(&["sh", "-c", COUNTING]), |reins| {
        yard.await_file("up");
        reins.kill(CODE);
        // The first killer's word counts.
        reins.kill(KillCode::KILL_SWITCH);
        assert!(matches!(reins.freeze(), Err(FreezeError::Killed)));
        assert!(matches!(reins.state(), BoxState::Killed | BoxState::Ended));
    });
    let result = result.expect("a result");
    assert_eq!(result.killed_by, Some(KilledBy::Killed { by: CODE }));
    assert_eq!((result.exit_code, result.signal), (None, Some(9)));
    let json = serde_json::to_value(&result).expect("JSON");
    assert_eq!(json["killed_by"], "some_reason");
    yard.assert_nothing_left();
}

/// Does something to the box when it is asked for admission, and nothing else.
struct AtTheGate<F: FnMut(&Facts<'_>)>(F);

impl<F: FnMut(&Facts<'_>)> Attendant for AtTheGate<F> {
    fn admit(&mut self, facts: &Facts<'_>) -> Result<(), Refusal> {
        (self.0)(facts);
        Ok(())
    }
}

fn a_box_killed_before_its_start_never_runs(who: Who) {
    let yard = Yard::new(who);
    let reins = Reins::new().expect("reins");
    assert_eq!(reins.state(), BoxState::Waiting);
    reins.kill(CODE);
    let mut asked = AtTheGate(|_: &Facts<'_>| panic!("admission was asked for a dead box"));
    let id = SandboxId::random().expect("an id");
    let capability = yard.capability();
    let command = yard.command(&["touch", "ran"]);
    let assignment = Assignment::new(&id, &capability, &command, &yard.state);
    let result = attend_admitted(&yard.state, assignment.reins(reins), &mut asked);
    assert!(matches!(
        result,
        Err(RunError::KilledEarly { by: KilledBy::Killed { by } }) if by == CODE
    ));
    assert!(!yard.has("ran"));
}

fn a_box_killed_at_the_gate_never_runs(who: Who) {
    let yard = Yard::new(who);
    let mut killer = AtTheGate(|facts: &Facts<'_>| {
        assert_eq!(facts.reins.state(), BoxState::Starting);
        facts.reins.kill(CODE);
    });
    let reins = Reins::new().expect("reins");
    let result = yard.attend(&yard.command(&["touch", "ran"]), &reins, &mut killer);
    assert!(
        matches!(result, Err(RunError::KilledEarly { .. })),
        "{result:?}"
    );
    assert!(!yard.has("ran"));
    yard.assert_nothing_left();
}

/// Kills that fall at any moment of a start: whatever comes of it, nothing stays and nothing hangs.
fn kills_at_any_moment_leave_nothing(who: Who) {
    let yard = Yard::new(who);
    for round in 0..40u32 {
        let command = yard.command(&["sleep", "600"]);
        let result = yard.run_while(&command, |reins| {
            for _ in 0..round * 40 {
                thread::yield_now();
            }
            reins.kill(CODE);
        });
        match result {
            Ok(result) => assert_eq!(result.killed_by, Some(KilledBy::Killed { by: CODE })),
            Err(RunError::KilledEarly { .. }) => {}
            Err(other) => panic!("round {round}: {other}"),
        }
    }
    yard.assert_nothing_left();
}

fn a_frozen_box_holds_still_until_it_is_thawed(who: Who) {
    let yard = Yard::new(who);
    let result = yard.run_while(&yard.command(&["sh", "-c", COUNTING]), |reins| {
        yard.await_file("up");
        await_progress(&yard);
        for _ in 0..3 {
            reins.freeze().expect("freeze");
            await_frozen(reins);
            let before = counts(&yard);
            watch_for_a_while();
            assert_eq!(counts(&yard), before, "a frozen box went on");
            reins.freeze().expect("freeze again");
            reins.thaw().expect("thaw");
            await_progress(&yard);
        }
        reins.kill(CODE);
    });
    let result = result.expect("a result");
    assert_eq!(result.killed_by, Some(KilledBy::Killed { by: CODE }));
    let expected = match result.limits_by {
        "sampling" => "tracing",
        _ => "cgroup",
    };
    assert_eq!(result.frozen_by, Some(expected), "{result:#?}");
    yard.assert_nothing_left();
}

fn quick_changes_of_mind_do_no_harm(who: Who) {
    let yard = Yard::new(who);
    let result = yard.run_while(&yard.command(&["sh", "-c", COUNTING]), |reins| {
        yard.await_file("up");
        await_progress(&yard);
        for round in 0..200 {
            reins.freeze().expect("freeze");
            for _ in 0..round % 7 {
                thread::yield_now();
            }
            reins.thaw().expect("thaw");
        }
        await_progress(&yard);
        reins.freeze().expect("freeze");
        await_frozen(reins);
        reins.thaw().expect("thaw");
        await_progress(&yard);
        reins.kill(CODE);
    });
    assert_eq!(
        result.expect("a result").killed_by,
        Some(KilledBy::Killed { by: CODE })
    );
    yard.assert_nothing_left();
}

/// Without preparations the box's own pid 1 must do it, for root as well.
fn tracing_freezes_where_no_group_can(who: Who) {
    let yard = Yard::new(who);
    let reins = Reins::new().expect("reins");
    let (id, capability) = (SandboxId::random().expect("an id"), yard.capability());
    let command = yard.command(&["sh", "-c", COUNTING]);
    let assignment = Assignment::new(&id, &capability, &command, &yard.state);
    let assignment = assignment.reins(reins.clone()).alone();
    let result = thread::scope(|scope| {
        let attending = scope.spawn(|| attend_admitted(&yard.state, assignment, &mut ()));
        yard.await_file("up");
        await_progress(&yard);
        reins.freeze().expect("freeze");
        let method = await_frozen(&reins);
        let before = counts(&yard);
        watch_for_a_while();
        assert_eq!(counts(&yard), before, "a frozen box went on");
        reins.thaw().expect("thaw");
        await_progress(&yard);
        reins.freeze().expect("freeze");
        await_frozen(&reins);
        reins.kill(CODE);
        eventually("the box ends", || attending.is_finished().then_some(()));
        (
            attending.join().expect("no panic").expect("a result"),
            method,
        )
    });
    assert_eq!(result.0.frozen_by, Some(result.1.as_str()));
    assert_eq!(result.1, FreezeMethod::Tracing);
    yard.assert_nothing_left();
}

/// A timer that sends the signal to go on, a thousand times a second.
fn a_box_can_not_wake_itself(who: Who) {
    let yard = Yard::new(who);
    let count = || fs::metadata(yard.jail.work.join("count")).map_or(0, |file| file.len());
    let result = yard.run_while(&yard.probe(&["self-continue", "count"]), |reins| {
        for _ in 0..3 {
            let before = count();
            eventually("it counts", || (count() > before).then_some(()));
            reins.freeze().expect("freeze");
            await_frozen(reins);
            let before = count();
            watch_for_a_while();
            assert_eq!(count(), before, "it woke itself");
            reins.thaw().expect("thaw");
        }
        reins.kill(CODE);
    });
    assert!(result.expect("a result").frozen_by.is_some());
    yard.assert_nothing_left();
}

fn a_frozen_box_can_be_killed(who: Who) {
    let yard = Yard::new(who);
    let result = yard.run_while(&yard.command(&["sh", "-c", COUNTING]), |reins| {
        yard.await_file("up");
        reins.freeze().expect("freeze");
        await_frozen(reins);
        let before = counts(&yard);
        reins.kill(CODE);
        eventually("the box ends", || {
            (reins.state() == BoxState::Ended).then_some(())
        });
        assert_eq!(counts(&yard), before, "it ran once more before its end");
    });
    assert_eq!(
        result.expect("a result").killed_by,
        Some(KilledBy::Killed { by: CODE })
    );
    yard.assert_nothing_left();
}

/// A box that is stopped and never continued, by its own doing.
fn a_box_that_stopped_itself_can_be_killed(who: Who) {
    let yard = Yard::new(who);
    let script = "touch up; kill -STOP $$";
    let result = yard.run_while(&yard.command(&["sh", "-c", script]), |reins| {
        yard.await_file("up");
        reins.kill(CODE);
    });
    assert_eq!(
        result.expect("a result").killed_by,
        Some(KilledBy::Killed { by: CODE })
    );
    yard.assert_nothing_left();
}

fn a_box_frozen_at_the_gate_starts_when_thawed(who: Who) {
    let yard = Yard::new(who);
    let reins = Reins::new().expect("reins");
    let mut freezer = AtTheGate(|facts: &Facts<'_>| facts.reins.freeze().expect("freeze"));
    let result = thread::scope(|scope| {
        let attending =
            scope.spawn(|| yard.attend(&yard.command(&["touch", "ran"]), &reins, &mut freezer));
        await_frozen(&reins);
        watch_for_a_while();
        assert!(!yard.has("ran"), "a frozen box ran");
        reins.thaw().expect("thaw");
        eventually("the box ends", || attending.is_finished().then_some(()));
        attending.join().expect("no panic").expect("a result")
    });
    assert_eq!(result.exit_code, Some(0));
    assert!(yard.has("ran"));
}

fn the_clock_of_a_frozen_box_goes_on(who: Who) {
    let yard = Yard::new(who);
    let command = yard
        .command(&["sh", "-c", COUNTING])
        .timeout(Duration::from_secs(1));
    let result = yard.run_while(&command, |reins| {
        // Should it be slow to come up, the clock has run out already, which is as well.
        let _ = reins.freeze();
    });
    let by = match result {
        Ok(result) => result.killed_by,
        Err(error) => panic!("{error}"),
    };
    assert_eq!(by, Some(KilledBy::Timeout));
    yard.assert_nothing_left();
}

const VICTIM: &str = "BELLJAR_TEST_VICTIM";

/// A keeper that freezes its box and then waits for its own end.
fn be_a_victim(base: &Path) {
    let work = base.join("home/project");
    let state = StateDir::at(base.join("state")).expect("the state directory");
    let capability = belljar_manifest::profile("moderate").expect("a shipped profile");
    let (id, reins) = (
        SandboxId::random().expect("an id"),
        Reins::new().expect("reins"),
    );
    let mark = base.to_str().expect("a path in UTF-8");
    let command = Command::new(["sh", "-c", COUNTING, "sh", mark]).workdir(&work);
    let assignment = Assignment::new(&id, &capability, &command, &state);
    thread::scope(|scope| {
        let held = reins.clone();
        scope.spawn(move || {
            eventually("it is up", || work.join("up").exists().then_some(()));
            held.freeze().expect("freeze");
            await_frozen(&held);
            fs::write(work.join("frozen"), "").expect("tell");
        });
        let result = attend_admitted(&state, assignment.reins(reins.clone()), &mut ());
        panic!("outlived by its keeper: {result:?}");
    });
}

/// The keeper's process dies while its box is frozen: the box goes all the same.
fn a_frozen_box_dies_with_its_keeper(who: Who) {
    if let Some(base) = std::env::var_os(VICTIM) {
        return be_a_victim(Path::new(&base));
    }
    let yard = Yard::new(who);
    let half = if who == Who::Root {
        "as_root"
    } else {
        "as_user"
    };
    let name = format!("{half}::a_frozen_box_dies_with_its_keeper");
    let mut victim = std::process::Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", &name, "--nocapture", "--test-threads", "1"])
        .env(VICTIM, &yard.jail.base)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("start a keeper");
    yard.await_file("frozen");
    let marked = || support::processes_marked(&yard.jail.base);
    assert!(marked().len() > 1, "the box can't be seen from outside");
    victim.kill().expect("kill the keeper");
    victim.wait().expect("its end");
    eventually("nothing of the box is left", || {
        marked().is_empty().then_some(())
    });
    yard.state.sweep(&belljar_sandbox::Host::probe().cgroups);
    yard.assert_nothing_left();
}

for_each_user_apart!(
    a_kill_ends_all_and_tells_why,
    a_box_killed_before_its_start_never_runs,
    a_box_killed_at_the_gate_never_runs,
    kills_at_any_moment_leave_nothing,
    a_frozen_box_holds_still_until_it_is_thawed,
    tracing_freezes_where_no_group_can,
    a_box_can_not_wake_itself,
    quick_changes_of_mind_do_no_harm,
    a_frozen_box_can_be_killed,
    a_box_that_stopped_itself_can_be_killed,
    a_box_frozen_at_the_gate_starts_when_thawed,
    the_clock_of_a_frozen_box_goes_on,
    a_frozen_box_dies_with_its_keeper,
);

on_other_tiers_apart!(
    a_kill_ends_all_and_tells_why,
    a_box_killed_at_the_gate_never_runs,
    kills_at_any_moment_leave_nothing,
    a_frozen_box_holds_still_until_it_is_thawed,
    a_box_can_not_wake_itself,
    a_frozen_box_can_be_killed,
    a_box_frozen_at_the_gate_starts_when_thawed,
    the_clock_of_a_frozen_box_goes_on,
);
