//! Version 2: one directory, entered at birth.

use super::{
    CgroupError, Spending, count_without_init, field, group_name, may_write, mount_point, number,
    put, quota, read_text,
};
use crate::plan::Limits;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The directory to make groups in.
#[derive(Debug, Clone)]
pub struct Place {
    directory: PathBuf,
    cpu: bool,
}

impl Place {
    /// The nearest group around this process that hands memory and process limits down and is ours to write.
    /// Nothing in it is changed: enabling controllers is its owner's business.
    pub(super) fn find(own: &str, mounts: &str) -> Result<Self, String> {
        let mount = mount_point(mounts, "cgroup2", "").ok_or("cgroup v2 is not mounted")?;
        let path = own
            .lines()
            .find_map(|line| line.strip_prefix("0::/"))
            .ok_or("not in a cgroup v2 group")?;
        let mut directory = mount.join(path);
        loop {
            let down = read_text(directory.join("cgroup.subtree_control")).unwrap_or_default();
            let has = |name: &str| down.split_whitespace().any(|word| word == name);
            if has("memory")
                && has("pids")
                && may_write(&directory)
                && may_write(&directory.join("cgroup.procs"))
            {
                return Ok(Self {
                    cpu: has("cpu"),
                    directory,
                });
            }
            if directory == mount || !directory.pop() || !directory.starts_with(&mount) {
                return Err(
                    "no cgroup v2 group around us is delegated with memory and pids".into(),
                );
            }
        }
    }

    /// The group around this process, for groups without limits, which need no controller.
    pub(super) fn without_limits(own: &str, mounts: &str) -> Option<Self> {
        let mount = mount_point(mounts, "cgroup2", "")?;
        let path = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
        let directory = mount.join(path);
        (may_write(&directory) && may_write(&directory.join("cgroup.procs"))).then_some(Self {
            directory,
            cpu: false,
        })
    }

    pub(super) fn has_cpu(&self) -> bool {
        self.cpu
    }

    pub(super) fn child(&self, id: &str) -> PathBuf {
        self.directory.join(group_name(id))
    }
}

/// A group.
#[derive(Debug)]
pub struct Group {
    path: PathBuf,
    directory: OwnedFd,
}

impl Group {
    pub(super) fn create(place: &Place, id: &str, limits: &Limits) -> Result<Self, CgroupError> {
        let path = place.child(id);
        let fail = |action| {
            let path = path.clone();
            move |source| CgroupError {
                path,
                action,
                source,
            }
        };
        std::fs::create_dir(&path).map_err(fail("make it"))?;
        let set_up = || -> Result<OwnedFd, CgroupError> {
            set_limits(&path, limits)?;
            rustix::fs::open(
                &path,
                OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC,
                Mode::empty(),
            )
            .map_err(|errno| fail("open it")(errno.into()))
        };
        match set_up() {
            Ok(directory) => Ok(Self { path, directory }),
            Err(error) => {
                remove(&path);
                Err(error)
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    pub(super) fn spent(&self) -> Spending {
        Spending {
            cpu: Duration::from_micros(field(&self.path, "cpu.stat", "usage_usec")),
            memory: number(&self.path, "memory.current"),
            peak_memory: number(&self.path, "memory.peak"),
            memory_kills: field(&self.path, "memory.events", "oom_kill"),
            forks_refused: field(&self.path, "pids.events", "max"),
            processes: count_without_init(&self.path, "pids.current"),
            peak_processes: count_without_init(&self.path, "pids.peak"),
        }
    }

    pub(super) fn remove(self) {
        remove(&self.path);
    }
}

fn set_limits(path: &Path, limits: &Limits) -> Result<(), CgroupError> {
    if let Some(bytes) = limits.memory_bytes {
        put(path, "memory.max", &bytes.to_string())?;
        // One out of memory is all out of memory: a half-killed agent is no use to anybody.
        put(path, "memory.oom.group", "1")?;
        if path.join("memory.swap.max").exists() {
            put(path, "memory.swap.max", "0")?;
        }
    }
    if let Some(processes) = limits.processes {
        put(path, "pids.max", &(u64::from(processes) + 1).to_string())?;
    }
    if let Some(percent) = limits.cpu_percent {
        put(path, "cpu.max", &format!("{} 100000", quota(percent)))?;
    }
    Ok(())
}

/// Removes a group directory. The kernel may need a moment after the last process.
pub(super) fn remove(path: &Path) {
    for _ in 0..100 {
        match std::fs::remove_dir(path) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                std::thread::sleep(Duration::from_millis(1));
            }
            _ => return,
        }
    }
}
