//! What the guest's console says about the tests.

use super::artifacts::Programs;
use super::machine::{Console, Ending};
use crate::Failure;

/// Under whom `init.sh` runs every test program.
const USERS: [&str; 2] = ["root", "user"];

/// Prints the outcome; an error carries the console, the only witness of what went wrong.
pub(super) fn judge(console: &Console, programs: &Programs) -> Result<(), Failure> {
    let tests: Vec<&str> = programs.tests.iter().map(|program| program.name).collect();
    let verdict = verdict(console, &tests);
    for line in
        marked_lines(&console.text, "VM-KERNEL: ").chain(marked_lines(&console.text, "VM-DONE: "))
    {
        println!("vm-test: {line}");
    }
    match verdict {
        Ok(summary) => {
            println!("vm-test: {summary}");
            Ok(())
        }
        Err(complaint) => Err(format!(
            "the guest's console:\n{}\nvm-test: {complaint}",
            console.text.trim_end()
        )
        .into()),
    }
}

/// The guest's own sum, or what is wrong with its report.
fn verdict(console: &Console, tests: &[&str]) -> Result<String, String> {
    match console.ending {
        Ending::PoweredOff => {}
        Ending::TimedOut => {
            return Err("the guest was still running at the time limit and was killed".into());
        }
        Ending::PrintedTooMuch => return Err("the guest printed without end and was killed".into()),
    }
    if let Some(error) = marked_lines(&console.text, "VM-ERROR: ").next() {
        return Err(format!("the guest could not be set up: {error}"));
    }
    for test in tests {
        for user in USERS {
            // A guest that forgot a run would otherwise report success for the rest.
            let run = format!("{test} as {user}: ");
            if !marked_lines(&console.text, "VM-DONE: ").any(|line| line.starts_with(&run)) {
                return Err(format!("the guest never finished {test} as {user}"));
            }
        }
    }
    let summary = marked_lines(&console.text, "VM-RESULT: ")
        .last()
        .ok_or("the guest reported no result")?;
    match counts(summary) {
        Some((0, _)) => Err(format!("no test ran: {summary}")),
        Some((_, 0)) => Ok(summary.to_owned()),
        Some(_) => Err(summary.to_owned()),
        None => Err(format!("the guest's result is unreadable: {summary}")),
    }
}

fn marked_lines<'a>(text: &'a str, mark: &'a str) -> impl Iterator<Item = &'a str> {
    text.lines().filter_map(move |line| line.strip_prefix(mark))
}

/// Reads `N passed, M failed`.
fn counts(summary: &str) -> Option<(u64, u64)> {
    let (passed, failed) = summary.split_once(", ")?;
    Some((
        passed.strip_suffix(" passed")?.parse().ok()?,
        failed.strip_suffix(" failed")?.parse().ok()?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DONE: &str =
        "VM-DONE: guest as root: 5 passed, 0 failed\nVM-DONE: guest as user: 5 passed, 0 failed\n";

    fn check(text: &str, ending: Ending) -> Result<String, String> {
        verdict(
            &Console {
                text: text.to_owned(),
                ending,
            },
            &["guest"],
        )
    }

    #[test]
    fn success_is_every_run_finished_and_none_failed() {
        let text = format!("{DONE}VM-RESULT: 10 passed, 0 failed\n");
        assert_eq!(
            check(&text, Ending::PoweredOff),
            Ok("10 passed, 0 failed".to_owned())
        );
    }

    #[test]
    fn anything_less_is_a_failure() {
        let finished = format!("{DONE}VM-RESULT: 10 passed, 0 failed\n");
        for (text, ending, complaint) in [
            (finished.as_str(), Ending::TimedOut, "time limit"),
            (&finished, Ending::PrintedTooMuch, "without end"),
            (
                "VM-RESULT: 10 passed, 0 failed\n",
                Ending::PoweredOff,
                "guest as root",
            ),
            (
                &format!("{DONE}Kernel panic"),
                Ending::PoweredOff,
                "no result",
            ),
            (
                &format!("{DONE}VM-RESULT: 9 passed, 1 failed\n"),
                Ending::PoweredOff,
                "1 failed",
            ),
            (
                &format!("{DONE}VM-RESULT: 0 passed, 0 failed\n"),
                Ending::PoweredOff,
                "no test ran",
            ),
            (
                &format!("{DONE}VM-RESULT: some passed\n"),
                Ending::PoweredOff,
                "unreadable",
            ),
        ] {
            let message = check(text, ending).unwrap_err();
            assert!(message.contains(complaint), "{text:?} gave {message:?}");
        }
    }
}
