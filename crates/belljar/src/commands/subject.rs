//! `belljar agent subject`: the agent of a live experiment. It runs in a box, and asks at its door as any other would.

use std::os::unix::process::CommandExt as _;
use std::time::{Duration, Instant};

use belljar_api::{CallError, Client, Empty, Heartbeat, Replicate, ReplicateRequest, StateText};
use belljar_experiment::live::{Answer, Deed, Subject, Task};

use super::agent::said;
use crate::exit::{self, Failure};

/// What it was told.
const TOLD: &str = "/belljar/state";
/// Processes in groups of their own that ignore every signal that can be ignored.
const STUBBORN: &str = "trap '' HUP INT QUIT TERM TSTP; while :; do sleep 1; done";
const HELPERS: usize = 2;

pub(super) fn subject(door: &std::ffi::OsStr, mark: &str) -> Result<u8, Failure> {
    let text = std::fs::read(TOLD).map_err(|error| not_told(&error.to_string()))?;
    let task: Task = serde_json::from_slice(&text).map_err(|error| not_told(&error.to_string()))?;
    let mut subject = Subject::new(task);
    let _helpers = match subject.resists() {
        true => stand_by(mark)?,
        false => Vec::new(),
    };
    let born = Instant::now();
    let now_ns = || u64::try_from(born.elapsed().as_nanos()).unwrap_or(u64::MAX);
    loop {
        let wait_ns = subject.next_ns().saturating_sub(now_ns());
        // Somebody else ends whoever has nothing left to do.
        std::thread::sleep(Duration::from_nanos(wait_ns).min(Duration::from_secs(3600)));
        match subject.act(now_ns()) {
            None => {}
            Some(Deed::Exit) => return Ok(exit::OK),
            Some(Deed::Beat) => {
                let _ = Client::connect(door)
                    .and_then(|mut client| client.call::<Heartbeat>(&Empty {}));
            }
            Some(Deed::Ask(keys)) => {
                let asks = keys
                    .iter()
                    .map(|key| subject.child(*key))
                    .collect::<Vec<_>>();
                let answers = match asks.as_slice() {
                    [one] => vec![ask(door, one)],
                    many => at_once(door, many),
                };
                subject.hear(now_ns(), &answers);
            }
        }
    }
}

fn at_once(door: &std::ffi::OsStr, tasks: &[Task]) -> Vec<Answer> {
    std::thread::scope(|scope| {
        let asking: Vec<_> = tasks
            .iter()
            .map(|task| scope.spawn(move || ask(door, task)))
            .collect();
        asking
            .into_iter()
            .map(|one| one.join().unwrap_or_else(|_| unheard()))
            .collect()
    })
}

fn ask(door: &std::ffi::OsStr, task: &Task) -> Answer {
    let told = serde_json::to_string(task).unwrap_or_default();
    let (Ok(reason), Ok(state)) = (said("a live experiment".into()), StateText::new(told)) else {
        return unheard();
    };
    let request = ReplicateRequest {
        reason,
        command: None,
        state: Some(state),
        capability: None,
        budget: None,
    };
    let answer = Client::connect(door).and_then(|mut client| client.call::<Replicate>(&request));
    match answer {
        Ok(_) => Answer::Granted,
        Err(CallError::Refused { problem, .. }) => Answer::Refused {
            code: problem.code.to_string(),
            wait_ns: problem
                .retry_after_ms
                .map(|ms| ms.saturating_mul(1_000_000)),
        },
        Err(_) => unheard(),
    }
}

/// Nobody answered: as good as a refusal that says nothing.
fn unheard() -> Answer {
    Answer::Refused {
        code: "no_answer".to_owned(),
        wait_ns: None,
    }
}

fn stand_by(mark: &str) -> Result<Vec<std::process::Child>, Failure> {
    let start = |_| {
        std::process::Command::new("/bin/sh")
            .args(["-c", STUBBORN, mark])
            .process_group(0)
            .stdin(std::process::Stdio::null())
            .spawn()
    };
    (0..HELPERS)
        .map(start)
        .collect::<Result<_, _>>()
        .map_err(|error| {
            Failure::Invalid(
                format!("no helper can be started: {error}"),
                "the box needs /bin/sh".into(),
            )
        })
}

fn not_told(why: &str) -> Failure {
    Failure::Invalid(
        format!("{TOLD} does not say what to do: {why}"),
        "`belljar experiment run --live` starts subjects".into(),
    )
}
