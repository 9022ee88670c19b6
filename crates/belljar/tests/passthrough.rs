//! What passes through a box: terminals, signals, exit codes, standard input, and the summary beside them.

mod support;

use std::fs;
use std::process::Stdio;

use support::{Jail, Who, finish, for_each_user};

/// Fails by name where the host lacks the program; a box cannot be tested with what is not there.
#[track_caller]
fn need(jail: &Jail, program: &str) {
    let found = finish(
        jail.outside("/bin/sh")
            .args(["-c", &format!("command -v {program}")])
            .spawn()
            .expect("a shell"),
    );
    assert_eq!(
        found.code(),
        0,
        "this test needs `{program}` on the host, outside home directories"
    );
}

/// Types at a program that runs on a terminal; the words are the script for the probe's terminal.
fn at_a_terminal(jail: &Jail, play: &[&str], words: &[&str]) -> support::Finished {
    let mut command = jail.outside(jail.probe_path());
    command
        .env("TERM", "xterm")
        .arg("on-terminal")
        .args(play)
        .arg("--")
        .args(words);
    finish(command.spawn().expect("a terminal"))
}

fn an_interactive_shell_on_a_terminal(who: Who) {
    let jail = Jail::new(who);
    need(&jail, "bash");
    let belljar = jail.belljar_path().to_string_lossy().into_owned();
    let shell = [
        belljar.as_str(),
        "run",
        "--",
        "bash",
        "--norc",
        "--noprofile",
        "-i",
    ];
    // Bash loses track of a stopped job that is killed kindly, at times, so it is killed and disowned.
    // A key that signals makes the terminal throw away output in flight, the next prompt included, unless it is told not to.
    let play = [
        &[
            "-e",
            "$ ",
            "-s",
            "stty noflsh; test -t 0 && test -t 1 && test -t 2 && echo 'all 't'ty'\\n",
            "-e",
            "all tty",
        ][..],
        &["-s", "echo $((6*7))\\n", "-e", "42"],
        &["-s", "stty size\\n", "-e", "24 80"],
        &["-w", "40x100", "-s", "stty size\\n", "-e", "40 100"],
        // Ctrl-C reaches the program in the foreground and leaves the shell alone.
        &[
            "-s",
            "sh -c 'echo sta''rted; exec sleep 600'\\n",
            "-e",
            "started",
            "-s",
            "\\c",
            "-e",
            "$ ",
        ],
        &["-s", "echo code $?\\n", "-e", "code 130"],
        // Ctrl-Z stops it and gives the shell back; the job can be taken up again.
        &[
            "-s",
            "sh -c 'echo sec''ond; exec sleep 600'\\n",
            "-e",
            "second",
            "-s",
            "\\z",
            "-e",
            "Stopped",
        ],
        &["-s", "kill -9 %1; disown -a; echo do''ne\\n", "-e", "done"],
        &["-s", "exit 5\\n"],
    ]
    .concat();
    let finished = at_a_terminal(&jail, &play, &shell);
    assert_eq!(
        finished.code(),
        5,
        "{}\n{}",
        finished.stdout(),
        finished.stderr()
    );
    assert!(
        !finished.stdout().contains("no job control"),
        "{}",
        finished.stdout()
    );
    jail.assert_nothing_left(None);
}

fn whoever_sits_there_hears_how_to_find_the_wall(who: Who) {
    let jail = Jail::new(who);
    let belljar = jail.belljar_path().to_string_lossy().into_owned();
    let fails = [&belljar, "run", "--", "/bin/sh", "-c", "exit 3"];
    let said = at_a_terminal(&jail, &["-e", "belljar learn"], &fails);
    assert_eq!(said.code(), 3, "{}", said.stdout());
    let succeeds = [&belljar, "run", "--", "/bin/true"];
    let said = at_a_terminal(&jail, &["-e", "finished exit=0"], &succeeds);
    assert!(
        !said.stdout().contains("belljar learn"),
        "{}",
        said.stdout()
    );
    // Those who only read it later know what they ran.
    let piped = jail.outside(&belljar).args(&fails[1..]).spawn();
    let piped = finish(piped.expect("belljar"));
    assert_eq!(piped.code(), 3);
    assert!(
        !piped.stderr().contains("belljar learn"),
        "{}",
        piped.stderr()
    );
}

fn interrupting_from_the_terminal(who: Who) {
    let jail = Jail::new(who);
    let program = jail.probe_path().to_string_lossy().into_owned();
    let belljar = jail.belljar_path().to_string_lossy().into_owned();
    let mark = jail.work_file("mark");
    let play = ["-e", "ready:", "-s", "\\c"];
    let finished = at_a_terminal(
        &jail,
        &play,
        &[&belljar, "run", "--", &program, "catch", &mark, "2"],
    );
    assert_eq!(finished.code(), 2, "{}", finished.stdout());
    // The agent sees one interrupt, not one from the terminal and another from Belljar.
    assert_eq!(
        finished.stdout().matches("caught: allowed 2").count(),
        1,
        "{}",
        finished.stdout()
    );
    // An agent that does not catch it dies of it, as it would outside.
    let finished = at_a_terminal(
        &jail,
        &["-e", "up", "-s", "\\c"],
        &[&belljar, "run", "--", "sh", "-c", "echo up; exec sleep 600"],
    );
    assert_eq!(finished.code(), 130, "{}", finished.stdout());
    jail.assert_nothing_left(None);
}

fn signals_are_forwarded(who: Who) {
    use rustix::process::{Pid, Signal, kill_process};
    let jail = Jail::new(who);
    let program = jail.probe_path().to_string_lossy().into_owned();
    for signal in [
        Signal::TERM,
        Signal::INT,
        Signal::HUP,
        Signal::USR1,
        Signal::USR2,
        Signal::QUIT,
    ] {
        let mark = jail.work_file("mark");
        fs::remove_file(&mark).ok();
        let number = signal.as_raw().to_string();
        let child = jail
            .text_command(&[&program, "catch", &mark, &number])
            .spawn()
            .expect("start belljar");
        support::eventually("the agent is ready", || {
            fs::read(&mark).ok().filter(|text| !text.is_empty())
        });
        kill_process(Pid::from_child(&child), signal).expect("signal belljar");
        let finished = finish(child);
        assert_eq!(
            finished.code(),
            signal.as_raw(),
            "{signal:?}: {}",
            finished.stderr()
        );
        assert!(
            finished
                .stdout()
                .contains(&format!("caught: allowed {number}")),
            "{signal:?}: {}",
            finished.stdout()
        );
    }
    jail.assert_nothing_left(None);
}

fn exit_codes_pass_through(who: Who) {
    let jail = Jail::new(who);
    for code in [
        0, 1, 2, 42, 120, 121, 122, 123, 124, 125, 126, 127, 128, 130, 255,
    ] {
        let outcome = jail.inside(&["leave", &code.to_string()]);
        outcome.assert_exit(code);
        assert_eq!(outcome.signal(), None);
    }
}

fn death_by_a_signal_passes_through(who: Who) {
    let jail = Jail::new(who);
    for signal in [6, 9, 11, 15] {
        let outcome = jail.inside(&["raise", &signal.to_string()]);
        assert_eq!(
            (outcome.exit_code(), outcome.signal()),
            (None, Some(signal)),
            "{outcome:#?}"
        );
        assert_eq!(i64::from(outcome.code()), 128 + signal, "{outcome:#?}");
    }
}

fn standard_input_passes_through(who: Who) {
    let jail = Jail::new(who);
    let input: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    let mut command = jail.text_command(&["cat"]);
    command.stdin(Stdio::piped());
    let finished =
        support::finish_with_input(command.spawn().expect("start belljar"), input.clone());
    assert_eq!(finished.code(), 0, "{}", finished.stderr());
    assert!(
        finished.stdout == input,
        "what came out differs from what went in"
    );
    // A program that reads nothing is not held up by input that waits for it.
    let mut command = jail.text_command(&["true"]);
    command.stdin(Stdio::piped());
    let finished = support::finish_with_input(command.spawn().expect("start belljar"), input);
    assert_eq!(finished.code(), 0, "{}", finished.stderr());
    jail.assert_nothing_left(None);
}

fn the_summary_is_one_line_on_standard_error(who: Who) {
    let mut jail = Jail::new(who);
    let finished = finish(
        jail.text_command(&["sh", "-c", "echo out; echo err >&2"])
            .spawn()
            .expect("start belljar"),
    );
    assert_eq!(finished.stdout(), "out\n");
    let said = finished.stderr();
    let summary: Vec<&str> = said
        .lines()
        .filter(|line| line.starts_with("[belljar]"))
        .collect();
    assert_eq!(summary.len(), 1, "{said}");
    assert!(
        summary[0].starts_with("[belljar] finished exit=0 duration="),
        "{said}"
    );
    assert!(
        summary[0].contains("ms cpu=")
            && summary[0].contains("s mem=")
            && summary[0].ends_with("MiB"),
        "{said}"
    );
    jail.option(&["--quiet"]);
    let finished = finish(
        jail.text_command(&["sh", "-c", "echo err >&2"])
            .spawn()
            .expect("start belljar"),
    );
    assert_eq!(finished.stderr(), "err\n");
}

for_each_user!(
    whoever_sits_there_hears_how_to_find_the_wall,
    an_interactive_shell_on_a_terminal,
    interrupting_from_the_terminal,
    signals_are_forwarded,
    exit_codes_pass_through,
    death_by_a_signal_passes_through,
    standard_input_passes_through,
    the_summary_is_one_line_on_standard_error,
);
