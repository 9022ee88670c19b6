//! Runs a program of the operator's, with the alert on its standard input. No shell, nothing of our environment.

use std::io::{self, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

/// Bytes of its error output that are told.
const MOST_TOLD: usize = 2048;
/// How long its error output is waited for after its end.
const LAST_WORDS: Duration = Duration::from_millis(200);
/// Where programs are found that it runs in turn.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Why it came to nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failed {
    #[error("it can't be run: {0}")]
    Start(#[from] io::Error),
    #[error("it was ended after {0:?}")]
    TooLong(Duration),
    #[error("it ended with {status}: {said}")]
    Status { status: ExitStatus, said: String },
}

pub(crate) fn run(words: &[String], input: &str, patience: Duration) -> Result<(), Failed> {
    let Some((program, arguments)) = words.split_first() else {
        return Ok(());
    };
    let mut child = Command::new(program)
        .args(arguments)
        .env_clear()
        .env("PATH", PATH)
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()?;
    let said = listen(&mut child);
    if let Some(mut stdin) = child.stdin.take() {
        // It fits in a pipe. A program that does not read it does not need it.
        let _unread = stdin.write_all(input.as_bytes());
    }
    let ended = wait(&mut child, patience);
    // Whatever it left running goes with it.
    if let Some(group) = Pid::from_raw(child.id().cast_signed()) {
        let _gone = kill_process_group(group, Signal::KILL);
    }
    let status = match ended {
        Ok(true) => child.wait()?,
        Ok(false) => {
            child.wait()?;
            return Err(Failed::TooLong(patience));
        }
        Err(error) => {
            child.wait()?;
            return Err(error.into());
        }
    };
    if status.success() {
        return Ok(());
    }
    let said = said.recv_timeout(LAST_WORDS).unwrap_or_default();
    Err(Failed::Status { status, said })
}

/// Takes its error output, all of it, so that it never waits, and keeps the beginning.
fn listen(child: &mut Child) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    if let Some(mut stderr) = child.stderr.take() {
        std::thread::spawn(move || {
            let mut kept = Vec::new();
            let mut piece = [0; 1024];
            while let Ok(count @ 1..) = stderr.read(&mut piece) {
                let room = MOST_TOLD - kept.len();
                kept.extend_from_slice(&piece[..count.min(room)]);
            }
            let _nobody_asks = sender.send(String::from_utf8_lossy(&kept).trim().to_owned());
        });
    }
    receiver
}

/// Whether it ended in time.
fn wait(child: &mut Child, patience: Duration) -> io::Result<bool> {
    let pid = Pid::from_raw(child.id().cast_signed()).ok_or(io::ErrorKind::InvalidInput)?;
    // Nobody else waits for it, so the number is still its own.
    let handle = pidfd_open(pid, PidfdFlags::empty())?;
    let until = Instant::now() + patience;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        match poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn sh(script: &str, arguments: &[&str]) -> Vec<String> {
        let mut words = vec![
            "/bin/sh".to_owned(),
            "-c".to_owned(),
            script.to_owned(),
            "sh".to_owned(),
        ];
        words.extend(arguments.iter().map(|word| (*word).to_owned()));
        words
    }

    #[test]
    fn it_reads_the_alert_and_nothing_of_ours_is_in_its_environment() {
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path().join("out");
        let script = "cat > \"$1\"; env >> \"$1\"";
        run(&sh(script, &[out.to_str().unwrap()]), "{\"x\": 1}\n", LONG).unwrap();
        let text = std::fs::read_to_string(out).unwrap();
        assert!(text.starts_with("{\"x\": 1}\n"), "{text}");
        assert!(!text.contains("CARGO"), "{text}");
    }

    #[test]
    fn a_failure_says_what_it_said_and_no_more_than_fits() {
        let failed = run(&sh("echo oh no >&2; exit 3", &[]), "", LONG).unwrap_err();
        assert!(failed.to_string().contains("oh no"), "{failed}");
        let failed = run(&sh("yes | head -c 1000000 >&2; exit 3", &[]), "", LONG).unwrap_err();
        assert!(failed.to_string().len() < 3000);
        let nothing = ["/nonexistent/program".to_owned()];
        assert!(matches!(run(&nothing, "", LONG), Err(Failed::Start(_))));
    }

    #[test]
    fn one_that_does_not_end_is_ended_with_what_it_started() {
        let directory = tempfile::tempdir().unwrap();
        let pids = directory.path().join("pids");
        let script = "sleep 1000 & echo $! > \"$1\"; wait";
        let failed = run(
            &sh(script, &[pids.to_str().unwrap()]),
            "",
            Duration::from_millis(500),
        );
        assert!(matches!(failed, Err(Failed::TooLong(_))), "{failed:?}");
        let text = std::fs::read_to_string(pids).unwrap_or_default();
        if let Some(pid) = text.trim().parse().ok().and_then(Pid::from_raw) {
            // Gone, or a zombie that its new parent has not looked at yet.
            let stat = || std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
            let until = Instant::now() + LONG;
            while stat().is_ok_and(|stat| !stat.contains(") Z ")) {
                assert!(Instant::now() < until, "it lives on");
                std::thread::yield_now();
            }
        }
    }
}
