//! An engine of the benchmark's own: Debian's dockerd with its own socket, files and control groups, gone when it is dropped.

use crate::Failure;
use std::fs::{self, File};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const DAEMON: &str = "/usr/sbin/dockerd";
/// The daemon's own: one found elsewhere may be of another age.
const CLIENT: &str = "/usr/bin/docker";
/// So long it may take to start, and to end.
const PATIENCE: Duration = Duration::from_secs(60);
const CONTROL_GROUPS: &str = "/sys/fs/cgroup";

pub(super) struct Engine {
    base: PathBuf,
    host: String,
    child: Child,
}

impl Engine {
    /// Why there can be none here, if there can't.
    pub(super) fn missing() -> Option<&'static str> {
        let is_there = [DAEMON, CLIENT].iter().all(|it| Path::new(it).exists());
        (!is_there).then_some("docker.io is not installed")
    }

    /// Starts one below a directory, as root. It has no network and needs none.
    pub(super) fn start(base: &Path) -> Result<Self, Failure> {
        fs::create_dir_all(base)?;
        fs::write(base.join("engine.json"), "{}")?;
        let log = File::create(base.join("log"))?;
        let at = |name: &str| base.join(name).display().to_string();
        let host = format!("unix://{}", at("engine.sock"));
        let child = Command::new("unshare")
            // What it mounts is in a namespace of its own, and when its first process ends, so do all.
            .args(["--mount", "--pid", "--fork", "--mount-proc"])
            .args(["--kill-child=SIGKILL", "--", DAEMON, "--host", &host])
            .args(["--data-root", &at("data"), "--exec-root", &at("exec")])
            .args(["--pidfile", &at("engine.pid")])
            .args(["--config-file", &at("engine.json")])
            .args(["--bridge=none", "--iptables=false", "--ip6tables=false"])
            .args(["--ip-forward=false", "--ip-masq=false"])
            .args(["--exec-opt", "native.cgroupdriver=cgroupfs"])
            .args(["--cgroup-parent", &format!("/{}", control_group())])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        let mut engine = Self {
            base: base.to_owned(),
            host,
            child,
        };
        let deadline = Instant::now() + PATIENCE;
        while !engine.answers() {
            let has_ended = engine.child.try_wait()?.is_some();
            if has_ended || Instant::now() > deadline {
                return Err(format!("dockerd does not answer: {}", engine.last_words()).into());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(engine)
    }

    /// The words that have its client do something.
    pub(super) fn words<'a>(&'a self, arguments: &[&'a str]) -> Vec<&'a str> {
        let mut all = vec![CLIENT, "--host", &self.host];
        all.extend(arguments);
        all
    }

    fn answers(&self) -> bool {
        let version = self.words(&["version"]);
        UnixStream::connect(self.base.join("engine.sock")).is_ok()
            && Command::new(version[0])
                .args(&version[1..])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .is_ok_and(|status| status.success())
    }

    fn last_words(&self) -> String {
        let log = fs::read_to_string(self.base.join("log")).unwrap_or_default();
        log.lines().last().unwrap_or("nothing said").to_owned()
    }
}

impl Drop for Engine {
    /// The daemon is asked to end, and then made to: with it ends everything in its namespace, containerd first of all.
    fn drop(&mut self) {
        let own = self.child.id();
        let children = fs::read_to_string(format!("/proc/{own}/task/{own}/children"));
        let daemon = children.unwrap_or_default().trim().parse().ok();
        if let Some(daemon) = daemon.and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(daemon, rustix::process::Signal::TERM);
        }
        let deadline = Instant::now() + PATIENCE;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        let hierarchies = fs::read_dir(CONTROL_GROUPS).into_iter().flatten();
        let hierarchies = hierarchies.flatten().map(|entry| entry.path());
        for place in hierarchies.chain([PathBuf::from(CONTROL_GROUPS)]) {
            let _ = fs::remove_dir(place.join(control_group()));
        }
    }
}

/// Where its containers are counted: a name that nobody else has.
fn control_group() -> String {
    format!("belljar-bench-{}", std::process::id())
}
