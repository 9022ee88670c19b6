//! A real Docker engine of a test's own: socket, data, containerd, mounts and processes are its own and end with it.

use super::leftovers::processes_marked;
use super::watch::eventually;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// The engine. Ended when dropped, with everything it started.
pub(crate) struct Dockerd {
    base: PathBuf,
    child: Child,
    /// Where its containers are counted: a name that no other engine has.
    control_group: String,
}

impl Dockerd {
    /// Starts one below a directory, as root. It has no network and needs none.
    pub(crate) fn start(base: &Path) -> Self {
        Self::start_with(base, Storage::Copies)
    }

    pub(crate) fn start_with(base: &Path, storage: Storage) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let control_group = format!("engine-{}-{number}", std::process::id());
        fs::create_dir_all(base).expect("a directory");
        fs::write(base.join("engine.json"), "{}").expect("a configuration");
        // One that was killed leaves its number, and its containerd's: in the next one's namespace they are somebody else's, for
        // whom it would wait in vain.
        for left in ["engine.pid", "exec/containerd/containerd.pid"] {
            fs::remove_file(base.join(left)).ok();
        }
        let log = File::create(base.join("engine.log")).expect("a log");
        let at = |name: &str| base.join(name).display().to_string();
        let child = Command::new("unshare")
            // What it mounts is in a namespace of its own, and when its first process ends, so do all. Its network is a
            // loopback that nobody else has.
            .args(["--mount", "--net", "--pid", "--fork", "--mount-proc"])
            .args(["--kill-child=SIGTERM", "--", "sh", "-c"])
            .args([
                r#"ip link set lo up && exec "$0" "$@""#,
                "/usr/sbin/dockerd",
            ])
            .args(["--host", &format!("unix://{}", at("engine.sock"))])
            .args(["--data-root", &at("data"), "--exec-root", &at("exec")])
            .args(["--pidfile", &at("engine.pid")])
            .args(["--config-file", &at("engine.json")])
            .args(["--bridge=none", "--iptables=false", "--ip6tables=false"])
            .args(["--ip-forward=false", "--ip-masq=false"])
            .args(["--exec-opt", "native.cgroupdriver=cgroupfs"])
            .args(["--cgroup-parent", &format!("/{control_group}")])
            .arg(format!("--storage-driver={}", storage.name()))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("the log"))
            .stderr(log)
            .spawn()
            .expect("dockerd is installed by scripts/setup.sh");
        let mut engine = Self {
            base: base.to_owned(),
            child,
            control_group,
        };
        eventually("the engine answers", || {
            let ended = engine.child.try_wait().expect("asked");
            assert!(ended.is_none(), "dockerd ended: {}", engine.log());
            let asked = engine.curl("/_ping", &["--fail"]);
            asked.status.success().then_some(())
        });
        engine
    }

    /// Kills it as no engine ends by itself, and everything of it with it: it is the first process of its namespace.
    pub(crate) fn murder(mut self) {
        let own = self.child.id();
        let children = fs::read_to_string(format!("/proc/{own}/task/{own}/children"));
        let daemon = children.expect("the engine's process");
        let daemon = daemon.trim().parse().ok().and_then(Pid::from_raw);
        kill_process(daemon.expect("its number"), Signal::KILL).expect("killed");
        self.child.wait().expect("it ended");
    }

    /// Its client's own program, which is as old as it is.
    #[track_caller]
    pub(crate) fn docker(&self, arguments: &[&str]) -> Output {
        Command::new("/usr/bin/docker")
            .arg("--host")
            .arg(format!("unix://{}", self.socket().display()))
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .expect("docker is installed by scripts/setup.sh")
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.base.join("engine.sock")
    }

    /// What it has at that path of its API.
    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> String {
        let output = self.curl(path, &["--fail"]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{path}: {errors}\n{}", self.log());
        String::from_utf8(output.stdout).expect("text")
    }

    /// Gives it an archive of a directory's contents, to import or to build from.
    #[track_caller]
    pub(crate) fn send(&self, path: &str, directory: &Path) {
        let archive = self.base.join("sent.tar");
        let packed = Command::new("tar")
            .arg("--create")
            .args([std::ffi::OsStr::new("--file"), archive.as_os_str()])
            .args([std::ffi::OsStr::new("--directory"), directory.as_os_str()])
            .arg(".")
            .status();
        assert!(packed.expect("tar").success());
        let body = archive.display().to_string();
        let header = "Content-Type: application/x-tar";
        let output = self.curl(
            path,
            &[
                "--request",
                "POST",
                "--header",
                header,
                "--upload-file",
                &body,
            ],
        );
        let said = String::from_utf8_lossy(&output.stdout);
        let is_good =
            output.status.success() && !said.contains("\"error\"") && !said.contains("\"message\"");
        assert!(is_good, "{path}: {said}\n{}", self.log());
    }

    fn curl(&self, path: &str, arguments: &[&str]) -> Output {
        Command::new("curl")
            .args(["--silent", "--show-error", "--unix-socket"])
            .arg(self.socket())
            .args(arguments)
            .arg(format!("http://engine{path}"))
            .stdin(Stdio::null())
            .output()
            .expect("curl is installed by scripts/setup.sh")
    }

    fn log(&self) -> String {
        fs::read_to_string(self.base.join("engine.log")).unwrap_or_default()
    }
}

impl Drop for Dockerd {
    fn drop(&mut self) {
        // The kernel tells the engine that its parent has gone, and waits for nobody.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if !std::thread::panicking() {
            eventually("the engine has ended", || {
                processes_marked(&self.base).is_empty().then_some(())
            });
        }
        let groups = Path::new("/sys/fs/cgroup");
        let hierarchies = fs::read_dir(groups).into_iter().flatten().flatten();
        for place in hierarchies.map(|it| it.path()).chain([groups.to_owned()]) {
            let _ = fs::remove_dir(place.join(&self.control_group));
        }
    }
}

/// How it keeps layers.
#[derive(Clone, Copy)]
pub(crate) enum Storage {
    /// Whole, one beside the other: works anywhere.
    Copies,
    /// One over the other: for containers that are started.
    Overlay,
}

impl Storage {
    fn name(self) -> &'static str {
        match self {
            Storage::Copies => "vfs",
            Storage::Overlay => "overlay2",
        }
    }
}
