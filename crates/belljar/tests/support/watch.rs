//! Waiting with a bound: a program that hangs fails its test instead of stopping the suite.

use std::io::{Read, Write};
use std::process::{Child, ExitStatus};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Far above what any step takes even on an emulated machine; only a hang reaches it.
const PATIENCE: Duration = Duration::from_secs(180);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A finished program and everything it wrote.
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

impl std::fmt::Debug for Finished {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Finished")
            .field("status", &self.status)
            .field("stdout", &self.stdout())
            .field("stderr", &self.stderr())
            .finish()
    }
}

impl Finished {
    pub(crate) fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    pub(crate) fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    pub(crate) fn code(&self) -> i32 {
        self.status
            .code()
            .unwrap_or_else(|| panic!("ended by a signal: {:?}\n{}", self.status, self.stderr()))
    }
}

/// Waits for the program to end and its pipes to close. A survivor that holds a pipe open counts as a hang.
pub(crate) fn finish(child: Child) -> Finished {
    finish_with_input(child, Vec::new())
}

/// The same, feeding standard input when it is a pipe that the caller has not taken.
pub(crate) fn finish_with_input(child: Child, input: Vec<u8>) -> Finished {
    finish_within(child, input, PATIENCE)
}

/// The same for a program that itself waits for others, and so must be waited for longer.
pub(crate) fn finish_within(mut child: Child, input: Vec<u8>, patience: Duration) -> Finished {
    let pid = Pid::from_child(&child);
    let stdin = child.stdin.take();
    // A program may end without reading its input: a broken pipe here is its right.
    let feeder = thread::spawn(move || stdin.map(|mut pipe| pipe.write_all(&input)));
    let (stdout, stderr) = (
        Drain::start(child.stdout.take()),
        Drain::start(child.stderr.take()),
    );
    let so_far = (Arc::clone(&stdout.text), Arc::clone(&stderr.text));
    let (report, ended) = mpsc::channel();
    thread::spawn(move || {
        let status = child.wait();
        stdout.finish();
        stderr.finish();
        report.send(status).ok();
    });
    let Ok(status) = ended.recv_timeout(patience) else {
        kill_process(pid, Signal::KILL).ok();
        panic!(
            "process {} hangs (or something it started holds its output open); so far it said\n{}\n{}",
            pid.as_raw_nonzero(),
            String::from_utf8_lossy(&taken(&so_far.0)),
            String::from_utf8_lossy(&taken(&so_far.1)),
        );
    };
    drop(feeder);
    Finished {
        status: status.expect("wait for the program"),
        stdout: taken(&so_far.0),
        stderr: taken(&so_far.1),
    }
}

/// Reads a pipe to its end in the background.
struct Drain {
    text: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Drain {
    fn start(pipe: Option<impl Read + Send + 'static>) -> Drain {
        let text = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&text);
        let reader = thread::spawn(move || {
            let mut block = vec![0; 1 << 16];
            let Some(mut pipe) = pipe else { return };
            // A read fails on a terminal whose other side is gone; what came before is what there is.
            while let Ok(length @ 1..) = pipe.read(&mut block) {
                kept.lock()
                    .expect("no reader panics")
                    .extend_from_slice(&block[..length]);
            }
        });
        Drain { text, reader }
    }

    fn finish(self) {
        self.reader.join().expect("read a pipe");
    }
}

fn taken(text: &Mutex<Vec<u8>>) -> Vec<u8> {
    std::mem::take(&mut *text.lock().expect("no reader panics"))
}

/// Polls until the condition holds; a condition that never does fails the test by its description.
pub(crate) fn eventually<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < deadline, "never happened: {what}");
        thread::sleep(POLL_INTERVAL);
    }
}
