//! The operator's commands, on the host: bounded in time and in what they say.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use serde::Deserialize;

use crate::compare::canary::Sample;

/// The most that is read of a command.
const MOST_BYTES: u64 = 1 << 20;

/// A command did not do what it is for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(super) enum HookError {
    /// It can't be started.
    #[error("`{0}` can't be started")]
    Start(String, #[source] std::io::Error),
    /// It took too long.
    #[error("`{0}` did not end in time, and was killed")]
    Late(String),
    /// It said it failed.
    #[error("`{0}` failed: {1}")]
    Failed(String, String),
    /// It said too much.
    #[error("`{0}` printed more than {MOST_BYTES} bytes")]
    Long(String),
    /// What it said is not what was asked.
    #[error("line {line} of `{command}` is no report: {why}")]
    Report {
        /// Which command.
        command: String,
        /// Which line.
        line: usize,
        /// How.
        why: String,
    },
    /// The supervisor that keeps the instances does not answer, or not in a way that can be used.
    #[error("the supervisor can't say how the instances are: {0}")]
    Supervisor(String),
    /// It does not work any more.
    #[error("the instance {instance} does not work: {how}")]
    Dead {
        /// Which.
        instance: String,
        /// How.
        how: String,
    },
    /// It crashes.
    #[error("the instance {0} crashed {1} times with the candidate")]
    Crashes(String, u32),
    /// It does not run another release.
    #[error("the instance {instance} does not take it up: {why}")]
    NotTakenUp {
        /// Which.
        instance: String,
        /// Why.
        why: String,
    },
    /// Nothing is known of an instance.
    #[error("nothing is reported of the instance {0}")]
    Missing(String),
    /// A figure is missing.
    #[error("of the instance {0} not every figure is reported")]
    Incomplete(String),
    /// It runs something else than it should.
    #[error("the instance {instance} runs {runs}, and should run {should}")]
    OtherVersion {
        /// Which.
        instance: String,
        /// What it says.
        runs: String,
        /// What it should.
        should: String,
    },
}

/// One line of a health command. What a supervisor knows better may be left out where one keeps the instances.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Report {
    pub(super) instance: String,
    pub(super) version: Option<String>,
    pub(super) requests: u64,
    pub(super) errors: u64,
    pub(super) latency_ms: f64,
    pub(super) cost: Option<f64>,
    pub(super) violations: Option<u64>,
}

/// Asks how the instances are, where nobody else knows. Every figure must be there.
pub(super) fn ask(
    command: &[String],
    releases: &Path,
    timeout: Duration,
    expected: &BTreeMap<&str, &str>,
) -> Result<BTreeMap<String, Sample>, HookError> {
    let mut samples = BTreeMap::new();
    for (name, report) in reports(command, releases, timeout, expected)? {
        let (Some(_), Some(cost), Some(violations)) =
            (&report.version, report.cost, report.violations)
        else {
            return Err(HookError::Incomplete(name));
        };
        let sample = Sample {
            requests: report.requests,
            errors: report.errors,
            violations,
            latency_ms: report.latency_ms,
            cost,
        };
        samples.insert(name, sample);
    }
    Ok(samples)
}

/// What a health command says. Everyone who is expected must be there, once, running what they should.
pub(super) fn reports(
    command: &[String],
    releases: &Path,
    timeout: Duration,
    expected: &BTreeMap<&str, &str>,
) -> Result<BTreeMap<String, Report>, HookError> {
    let text = run(command, &[], releases, timeout)?;
    let name = || command.first().cloned().unwrap_or_default();
    let mut reports = BTreeMap::new();
    for (at, line) in text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty())
    {
        let bad = |why: String| HookError::Report {
            command: name(),
            line: at + 1,
            why,
        };
        let report: Report = serde_json::from_str(line).map_err(|error| bad(error.to_string()))?;
        let Some(should) = expected.get(report.instance.as_str()) else {
            return Err(bad("there is no such instance".to_owned()));
        };
        if let Some(version) = &report.version
            && version != should
        {
            return Err(HookError::OtherVersion {
                instance: report.instance,
                runs: version.clone(),
                should: (*should).to_owned(),
            });
        }
        if reports.insert(report.instance.clone(), report).is_some() {
            return Err(bad("the instance is there twice".to_owned()));
        }
    }
    match expected.keys().find(|name| !reports.contains_key(**name)) {
        Some(missing) => Err(HookError::Missing((*missing).to_owned())),
        None => Ok(reports),
    }
}

/// Runs a command to its end, or kills it and all it started.
pub(super) fn run(
    command: &[String],
    more: &[&str],
    releases: &Path,
    timeout: Duration,
) -> Result<String, HookError> {
    let (program, arguments) = command.split_first().ok_or_else(|| {
        let empty = std::io::Error::other("the command is empty");
        HookError::Start(String::new(), empty)
    })?;
    let mut child = Command::new(program)
        .args(arguments)
        .args(more)
        .env("BELLJAR_RELEASES", releases)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .process_group(0)
        .spawn()
        .map_err(|error| HookError::Start(program.clone(), error))?;
    let (tell, told) = mpsc::channel();
    if let Some(out) = child.stdout.take() {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let read = out.take(MOST_BYTES + 1).read_to_end(&mut bytes);
            let _ = tell.send(read.map(|_| bytes));
        });
    }
    // Its output ends when it does, and all it started; that is waited for, not the process alone.
    let said = told.recv_timeout(timeout);
    let is_long = matches!(&said, Ok(Ok(bytes)) if bytes.len() as u64 > MOST_BYTES);
    let is_late = said.is_err() || !(is_long || ends_within(&child, timeout));
    if is_late || is_long {
        end(&mut child);
    }
    let status = child
        .wait()
        .map_err(|error| HookError::Start(program.clone(), error))?;
    match said {
        _ if is_long => Err(HookError::Long(program.clone())),
        Err(_) => Err(HookError::Late(program.clone())),
        Ok(_) if is_late => Err(HookError::Late(program.clone())),
        Ok(Err(error)) => Err(HookError::Start(program.clone(), error)),
        Ok(Ok(_)) if !status.success() => {
            Err(HookError::Failed(program.clone(), status.to_string()))
        }
        Ok(Ok(bytes)) => String::from_utf8(bytes)
            .map_err(|_| HookError::Failed(program.clone(), "it did not print text".to_owned())),
    }
}

/// Whether a process that closed its output ends too: one that does not would be waited for for ever.
fn ends_within(child: &Child, timeout: Duration) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::process::{Pid, PidfdFlags, pidfd_open};
    let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) else {
        return false;
    };
    let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else {
        return false;
    };
    let time = Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: 0,
    };
    let mut ended = [PollFd::new(&handle, PollFlags::IN)];
    matches!(poll(&mut ended, Some(&time)), Ok(1..))
}

fn end(child: &mut Child) {
    if let Some(group) = i32::try_from(child.id())
        .ok()
        .and_then(rustix::process::Pid::from_raw)
    {
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    let _ = child.kill();
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn asked(script: &str) -> Result<BTreeMap<String, Sample>, HookError> {
        let command = ["sh", "-c", script].map(str::to_owned);
        let expected = BTreeMap::from([("a", "v1"), ("b", "v2")]);
        ask(&command, Path::new("/"), Duration::from_secs(20), &expected)
    }

    const A: &str = r#"{"instance":"a","version":"v1","requests":9,"errors":1,"latency_ms":3,"cost":1,"violations":0}"#;
    const B: &str = r#"{"instance":"b","version":"v2","requests":9,"errors":1,"latency_ms":3,"cost":1,"violations":0}"#;

    #[test]
    fn whoever_is_expected_reports_every_figure_once_and_runs_what_they_should() {
        let say = |lines: &[&str]| asked(&format!("printf '%s\\n' '{}'", lines.join("' '")));
        assert_eq!(say(&[A, B]).unwrap().len(), 2);
        assert!(matches!(say(&[A]), Err(HookError::Missing(_))));
        assert!(matches!(say(&[A, A, B]), Err(HookError::Report { .. })));
        assert!(matches!(
            say(&[A, B, &A.replace("\"a\"", "\"c\"")]),
            Err(HookError::Report { .. })
        ));
        assert!(matches!(
            say(&[A, &B.replace("v2", "v1")]),
            Err(HookError::OtherVersion { .. })
        ));
        assert!(matches!(
            say(&[A, &B.replace(",\"cost\":1", "")]),
            Err(HookError::Incomplete(_))
        ));
    }

    #[test]
    fn commands_that_fail_linger_or_babble_are_no_report() {
        let both = format!("printf '%s\\n' '{A}' '{B}'");
        assert!(matches!(
            asked(&format!("{both}; exit 3")),
            Err(HookError::Failed(..))
        ));
        assert!(matches!(asked("exec yes"), Err(HookError::Long(_))));
        let short = |script: &str| {
            let command = ["sh", "-c", script].map(str::to_owned);
            ask(
                &command,
                Path::new("/"),
                Duration::from_secs(1),
                &BTreeMap::new(),
            )
        };
        // One that never ends, one whose child never does, and one that closes its output and stays.
        for script in [
            "exec sleep 1000",
            "sleep 1000 & exit 0",
            "exec >&- 2>&-; exec sleep 1000",
        ] {
            assert!(matches!(short(script), Err(HookError::Late(_))), "{script}");
        }
    }
}
