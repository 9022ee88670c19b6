//! What the guest of `cargo xtask vm-test` promises to the tests that run in it. If one of these fails,
//! the guest is wrong and the other tests' results mean nothing. Holds only inside the guest.

// All of this file is test code, helpers included.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const CGROUPS: &str = "/sys/fs/cgroup";

fn user() -> String {
    std::env::var("USER").unwrap()
}

/// The cgroup this process is in.
fn own_cgroup() -> PathBuf {
    let text = fs::read_to_string("/proc/self/cgroup").unwrap();
    let path = text
        .trim_end()
        .strip_prefix("0::/")
        .expect("cgroup v2 only, one line");
    Path::new(CGROUPS).join(path)
}

/// A cgroup beside our own, gone again when the test ends.
struct Sibling(PathBuf);

impl Sibling {
    fn create(name: &str) -> Self {
        let path = own_cgroup().parent().unwrap().join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn limit(&self, file: &str, value: &str) {
        fs::write(self.0.join(file), value).unwrap();
    }

    /// A shell command that starts inside this cgroup.
    fn command(&self, script: &str) -> Command {
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!(
            "echo 0 >{}/cgroup.procs && {script}",
            self.0.display()
        ));
        command
    }
}

impl Drop for Sibling {
    fn drop(&mut self) {
        // rmdir and not remove_dir_all: the files of a cgroup can't be removed, only the whole.
        fs::remove_dir(&self.0).unwrap();
    }
}

#[test]
fn the_session_belongs_to_the_expected_user() {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let uid = if user() == "root" { "0" } else { "1000" };
    assert!(
        status.contains(&format!("Uid:\t{uid}\t{uid}\t{uid}\t{uid}")),
        "{status}"
    );
}

#[test]
fn only_the_ordinary_users_cgroup_is_delegated() {
    let place = own_cgroup();
    let expected = if user() == "root" {
        "user.slice/user-0.slice/session-1.scope"
    } else {
        "user.slice/user-1000.slice/user@1000.service/app.slice/shell.scope"
    };
    assert_eq!(place, Path::new(CGROUPS).join(expected));
    let above_the_delegation = Path::new(CGROUPS).join("user.slice/user-1000.slice/not-mine");
    let created = fs::create_dir(&above_the_delegation).is_ok();
    if created {
        fs::remove_dir(&above_the_delegation).unwrap();
    }
    assert_eq!(created, user() == "root");
}

#[test]
fn a_memory_limit_kills() {
    let group = Sibling::create("memory-limit");
    group.limit("memory.max", "16M");
    let hog = "exec dd if=/dev/zero of=/dev/null bs=64M count=1";
    let status = group.command(hog).status().unwrap();
    assert_eq!(status.signal(), Some(9));
    let events = fs::read_to_string(group.0.join("memory.events")).unwrap();
    assert!(events.contains("oom_kill 1"), "{events}");
    // Without the limit the same command works: it was the limit that killed.
    group.limit("memory.max", "max");
    assert!(group.command(hog).status().unwrap().success());
}

#[test]
fn a_process_limit_refuses() {
    let group = Sibling::create("process-limit");
    group.limit("pids.max", "1");
    assert!(!group.command("(true); true").status().unwrap().success());
    group.limit("pids.max", "max");
    assert!(group.command("(true); true").status().unwrap().success());
}

#[test]
fn cpu_time_is_counted_per_cgroup() {
    let group = Sibling::create("cpu-time");
    assert!(
        group
            .command("i=0; while [ $i -lt 2000 ]; do i=$((i+1)); done")
            .status()
            .unwrap()
            .success()
    );
    let statistics = fs::read_to_string(group.0.join("cpu.stat")).unwrap();
    let used = statistics
        .lines()
        .find_map(|line| line.strip_prefix("usage_usec "))
        .unwrap();
    assert_ne!(used, "0");
}

#[test]
fn user_namespaces_work() {
    let output = Command::new("unshare")
        .args(["-U", "-r", "id", "-u"])
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout).trim(),
        "0",
        "{output:?}"
    );
}

#[test]
fn overlayfs_and_landlock_are_there() {
    let filesystems = fs::read_to_string("/proc/filesystems").unwrap();
    assert!(
        filesystems.lines().any(|line| line == "nodev\toverlay"),
        "{filesystems}"
    );
    let modules = fs::read_to_string("/sys/kernel/security/lsm").unwrap();
    assert!(
        modules.split(',').any(|name| name.trim() == "landlock"),
        "{modules}"
    );
}

/// pivot_root refuses the file system a kernel starts in; owners can't be mapped on an old kernel's tmpfs.
#[test]
fn the_root_is_an_ordinary_disk() {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let root = mounts
        .lines()
        .find(|line| line.split(' ').nth(4) == Some("/"))
        .unwrap();
    assert!(root.contains(" - ext4 "), "{root}");
}
