//! Version 1: a directory in each hierarchy, entered by the process itself.

use super::{
    CgroupError, Spending, count_without_init, field, group_name, may_write, mount_point, number,
    put, quota, v2,
};
use crate::plan::{Freezer, Limits};
use rustix::event::EventfdFlags;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Our place in each hierarchy.
#[derive(Debug, Clone)]
pub struct Places {
    memory: PathBuf,
    cpuacct: PathBuf,
    pids: PathBuf,
    cpu: Option<PathBuf>,
    /// Where boxes can be frozen. Not version 1's own freezer: what that holds can't be killed, so that a keeper's
    /// sudden death would leave its box behind for ever.
    freezer: Option<v2::Place>,
}

impl Places {
    /// All of memory, cpuacct and pids, or nothing: half of the limits would be a box with a hole.
    pub(super) fn find(own: &str, mounts: &str) -> Result<Self, String> {
        let place = |controller: &str| -> Result<PathBuf, String> {
            let path = own
                .lines()
                .filter_map(|line| line.split_once(':')?.1.split_once(":/"))
                .find(|(names, _)| names.split(',').any(|name| name == controller))
                .map(|(_, path)| path)
                .ok_or_else(|| format!("no cgroup v1 {controller} controller"))?;
            let mount = mount_point(mounts, "cgroup", controller)
                .ok_or_else(|| format!("cgroup v1 {controller} is not mounted"))?;
            let directory = mount.join(path);
            if may_write(&directory) {
                Ok(directory)
            } else {
                Err(format!(
                    "{} is not writable for this user",
                    directory.display()
                ))
            }
        };
        Ok(Self {
            memory: place("memory")?,
            cpuacct: place("cpuacct")?,
            pids: place("pids")?,
            cpu: place("cpu").ok(),
            freezer: v2::Place::without_limits(own, mounts),
        })
    }

    pub(super) fn has_cpu(&self) -> bool {
        self.cpu.is_some()
    }

    /// Where box `id`'s groups are. Hierarchies that are mounted together give the same path twice.
    pub(super) fn children(&self, id: &str) -> Vec<PathBuf> {
        let name = group_name(id);
        let mut paths: Vec<PathBuf> = [&self.memory, &self.cpuacct, &self.pids]
            .into_iter()
            .chain(&self.cpu)
            .map(|place| place.join(&name))
            .chain(self.freezer.as_ref().map(|place| place.child(id)))
            .collect();
        paths.dedup();
        paths
    }
}

/// The groups of one box.
#[derive(Debug)]
pub struct Groups {
    memory: PathBuf,
    cpuacct: PathBuf,
    pids: PathBuf,
    made: Vec<PathBuf>,
    entrances: Vec<OwnedFd>,
    out_of_memory: Option<OwnedFd>,
    freezer: Option<v2::Group>,
}

impl Groups {
    pub(super) fn create(
        places: &Places,
        id: &str,
        limits: &Limits,
        freezer: Freezer,
    ) -> Result<Self, CgroupError> {
        let name = group_name(id);
        let mut groups = Self {
            memory: places.memory.join(&name),
            cpuacct: places.cpuacct.join(&name),
            pids: places.pids.join(&name),
            made: Vec::new(),
            entrances: Vec::new(),
            out_of_memory: None,
            freezer: None,
        };
        if let (Freezer::Prepared, Some(place)) = (freezer, &places.freezer) {
            groups.freezer = Some(v2::Group::create(place, id, &Limits::default())?);
        }
        match groups.set_up(places, &name, limits) {
            Ok(()) => Ok(groups),
            Err(error) => {
                groups.remove();
                Err(error)
            }
        }
    }

    fn set_up(&mut self, places: &Places, name: &str, limits: &Limits) -> Result<(), CgroupError> {
        for path in [self.memory.clone(), self.cpuacct.clone(), self.pids.clone()] {
            self.make(path)?;
        }
        if let Some(bytes) = limits.memory_bytes {
            limit_memory(&self.memory, bytes)?;
            self.out_of_memory = Some(watch_memory(&self.memory)?);
        }
        if let Some(processes) = limits.processes {
            put(
                &self.pids,
                "pids.max",
                &(u64::from(processes) + 1).to_string(),
            )?;
        }
        if let (Some(percent), Some(place)) = (limits.cpu_percent, &places.cpu) {
            let path = place.join(name);
            self.make(path.clone())?;
            put(&path, "cpu.cfs_period_us", "100000")?;
            put(&path, "cpu.cfs_quota_us", &quota(percent).to_string())?;
        }
        Ok(())
    }

    fn make(&mut self, path: PathBuf) -> Result<(), CgroupError> {
        if self.made.contains(&path) {
            return Ok(());
        }
        let fail = |action| {
            let path = path.clone();
            move |source| CgroupError {
                path,
                action,
                source,
            }
        };
        std::fs::create_dir(&path).map_err(fail("make it"))?;
        self.made.push(path.clone());
        let tasks = path.join("tasks");
        let entrance = rustix::fs::open(&tasks, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|errno| fail("open its tasks file")(errno.into()))?;
        self.entrances.push(entrance);
        Ok(())
    }

    pub(super) fn take_entrances(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.entrances)
    }

    pub(super) fn memory_events(&self) -> Option<BorrowedFd<'_>> {
        self.out_of_memory.as_ref().map(|fd| fd.as_fd())
    }

    /// What the kernel holds for it in buffers of TCP and UDP. The limit there makes senders wait, but each socket gets a little
    /// past it, and there may be many.
    pub(super) fn socket_memory(&self) -> Option<u64> {
        let usage = self.memory.join("memory.kmem.tcp.usage_in_bytes");
        std::fs::read_to_string(usage).ok()?.trim().parse().ok()
    }

    pub(super) fn freezer(&self) -> Option<&v2::Group> {
        self.freezer.as_ref()
    }

    pub(super) fn spent(&self) -> Spending {
        Spending {
            cpu: Duration::from_nanos(number(&self.cpuacct, "cpuacct.usage")),
            memory: number(&self.memory, "memory.usage_in_bytes")
                .saturating_add(number(&self.memory, "memory.kmem.tcp.usage_in_bytes")),
            peak_memory: number(&self.memory, "memory.max_usage_in_bytes"),
            memory_kills: field(&self.memory, "memory.oom_control", "oom_kill"),
            forks_refused: field(&self.pids, "pids.events", "max"),
            processes: count_without_init(&self.pids, "pids.current"),
            peak_processes: count_without_init(&self.pids, "pids.peak"),
        }
    }

    pub(super) fn remove(self) {
        self.made.iter().for_each(|path| v2::remove(path));
        if let Some(group) = self.freezer {
            group.remove();
        }
    }
}

/// How much of its memory, one part in so many, a box may have the kernel hold in sockets' buffers.
const SOCKETS_SHARE: u64 = 4;

fn limit_memory(group: &Path, bytes: u64) -> Result<(), CgroupError> {
    put(group, "memory.limit_in_bytes", &bytes.to_string())?;
    if group.join("memory.memsw.limit_in_bytes").exists() {
        put(group, "memory.memsw.limit_in_bytes", &bytes.to_string())?;
    }
    // What the kernel holds for TCP and UDP has a counter of its own here, which the one above does not hold. Senders wait there.
    let sockets = "memory.kmem.tcp.limit_in_bytes";
    if group.join(sockets).exists() {
        put(group, sockets, &(bytes / SOCKETS_SHARE).to_string())?;
    }
    Ok(())
}

/// A descriptor that becomes readable when the group runs out of memory.
fn watch_memory(group: &Path) -> Result<OwnedFd, CgroupError> {
    let fail = |errno: rustix::io::Errno| CgroupError {
        path: group.to_owned(),
        action: "watch its memory",
        source: errno.into(),
    };
    let event =
        rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(fail)?;
    let control = group.join("memory.oom_control");
    let control = rustix::fs::open(&control, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(fail)?;
    let request = format!("{} {}", event.as_raw_fd(), control.as_raw_fd());
    put(group, "cgroup.event_control", &request)?;
    Ok(event)
}
