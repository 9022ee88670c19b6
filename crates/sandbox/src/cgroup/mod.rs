//! Control groups: the kernel's limits on, and accounts of, a whole process tree. Version 2, version 1, or none.

mod v1;
mod v2;

use crate::plan::{Freezer, Limits};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where this process may make control groups.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Cgroups {
    /// In one version 2 directory.
    V2(v2::Place),
    /// In one directory of each version 1 hierarchy.
    V1(v1::Places),
    /// Nowhere: limits are held by looking at the tree (see [`crate::sample`]).
    None {
        /// Why.
        why: String,
    },
}

/// A control group could not be made or set up.
#[derive(Debug, thiserror::Error)]
#[error("control group {}: cannot {action}: {source}", path.display())]
pub struct CgroupError {
    path: PathBuf,
    action: &'static str,
    source: std::io::Error,
}

/// What a process tree has used.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Spending {
    /// CPU time of all its processes, ended ones included.
    pub cpu: Duration,
    /// Bytes of memory now.
    pub memory: u64,
    /// The most bytes of memory so far.
    pub peak_memory: u64,
    /// Times the kernel killed for memory.
    pub memory_kills: u64,
    /// Times the process limit refused a fork.
    pub forks_refused: u64,
    /// Processes and threads now, init aside, where they are counted.
    pub processes: Option<u64>,
    /// The most of them so far, where that is counted.
    pub peak_processes: Option<u64>,
}

/// A control group of one box.
#[derive(Debug)]
pub enum Cgroup {
    /// Version 2.
    V2(v2::Group),
    /// Version 1.
    V1(v1::Groups),
}

impl Cgroups {
    /// Looks where this process is and what it may do there.
    pub fn find() -> Self {
        let own = read_text("/proc/self/cgroup").unwrap_or_default();
        let mounts = read_text("/proc/self/mounts").unwrap_or_default();
        let version2 = v2::Place::find(&own, &mounts);
        if let Ok(place) = version2 {
            return Cgroups::V2(place);
        }
        match (v1::Places::find(&own, &mounts), version2) {
            (Ok(places), _) => Cgroups::V1(places),
            (Err(why), Err(other)) => Cgroups::None {
                why: format!("{other}; {why}"),
            },
            (Err(why), Ok(_)) => Cgroups::None { why },
        }
    }

    /// For people: `cgroup v2`, `cgroup v1` or `sampling`.
    pub fn name(&self) -> &'static str {
        match self {
            Cgroups::V2(_) => "cgroup v2",
            Cgroups::V1(_) => "cgroup v1",
            Cgroups::None { .. } => "sampling",
        }
    }

    /// Whether a box's group must be there before its first process is.
    pub fn is_entered_at_birth(&self, freezer: Freezer) -> bool {
        match self {
            Cgroups::V2(_) => true,
            Cgroups::V1(_) => freezer == Freezer::Prepared,
            Cgroups::None { .. } => false,
        }
    }

    /// Whether a share of CPU time can be held.
    pub fn can_limit_cpu(&self) -> bool {
        match self {
            Cgroups::V2(place) => place.has_cpu(),
            Cgroups::V1(places) => places.has_cpu(),
            Cgroups::None { .. } => false,
        }
    }

    /// Removes every empty group of ours that is too old to be one whose box is just starting: what keepers that were
    /// killed left behind, whatever state directory they had.
    pub fn remove_old(&self) {
        const YOUNG: Duration = Duration::from_secs(60);
        let places = match self {
            Cgroups::V2(place) => vec![place.child("")],
            Cgroups::V1(places) => places.children(""),
            Cgroups::None { .. } => Vec::new(),
        };
        let parents = places.iter().filter_map(|place| place.parent());
        for entry in parents.flat_map(std::fs::read_dir).flatten().flatten() {
            let is_ours = entry
                .file_name()
                .to_string_lossy()
                .starts_with(&group_name(""));
            let age = entry.metadata().and_then(|metadata| metadata.modified());
            let is_old = age.is_ok_and(|time| time.elapsed().is_ok_and(|age| age > YOUNG));
            if is_ours && is_old {
                // The kernel refuses while there are processes in it.
                let _ = std::fs::remove_dir(entry.path());
            }
        }
    }

    /// Removes what a killed keeper of ours left behind. Groups with processes in them stay.
    pub fn remove_leftover(&self, id: &str) {
        match self {
            Cgroups::V2(place) => v2::remove(&place.child(id)),
            Cgroups::V1(places) => places.children(id).iter().for_each(|path| v2::remove(path)),
            Cgroups::None { .. } => {}
        }
    }
}

impl Cgroup {
    /// Makes the group of box `id` with its limits, where groups can be made.
    pub fn create(
        place: &Cgroups,
        id: &str,
        limits: &Limits,
        freezer: Freezer,
    ) -> Result<Option<Self>, CgroupError> {
        match place {
            Cgroups::V2(place) => {
                v2::Group::create(place, id, limits).map(|group| Some(Cgroup::V2(group)))
            }
            Cgroups::V1(places) => v1::Groups::create(places, id, limits, freezer)
                .map(|groups| Some(Cgroup::V1(groups))),
            Cgroups::None { .. } => Ok(None),
        }
    }

    /// The directory to be born into, where the kernel can do that.
    pub fn directory(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Cgroup::V2(group) => Some(group.directory()),
            Cgroup::V1(groups) => groups.freezer().map(v2::Group::directory),
        }
    }

    /// The version 2 group, by which a box can be frozen and killed as a whole.
    pub fn version_2(&self) -> Option<&Path> {
        match self {
            Cgroup::V2(group) => Some(group.path()),
            Cgroup::V1(groups) => groups.freezer().map(v2::Group::path),
        }
    }

    /// Files in which a process writes `0` to enter, elsewhere.
    pub fn take_entrances(&mut self) -> Vec<OwnedFd> {
        match self {
            Cgroup::V2(_) => Vec::new(),
            Cgroup::V1(groups) => groups.take_entrances(),
        }
    }

    /// Becomes readable when memory ran out, where the group is not killed as a whole by itself.
    pub fn memory_events(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Cgroup::V2(_) => None,
            Cgroup::V1(groups) => groups.memory_events(),
        }
    }

    /// Bytes in sockets' buffers, where no limit holds them together with the rest of the memory.
    pub fn socket_memory(&self) -> Option<u64> {
        match self {
            Cgroup::V2(_) => None,
            Cgroup::V1(groups) => groups.socket_memory(),
        }
    }

    /// The accounts.
    pub fn spent(&self) -> Spending {
        match self {
            Cgroup::V2(group) => group.spent(),
            Cgroup::V1(groups) => groups.spent(),
        }
    }

    /// Removes the group; its processes must be gone.
    pub fn remove(self) {
        match self {
            Cgroup::V2(group) => group.remove(),
            Cgroup::V1(groups) => groups.remove(),
        }
    }
}

/// Every group of ours has this in its name, so that leftovers can be told from others' groups.
fn group_name(id: &str) -> String {
    format!("belljar-{id}")
}

fn put(directory: &Path, file: &str, value: &str) -> Result<(), CgroupError> {
    let path = directory.join(file);
    std::fs::write(&path, value).map_err(|source| CgroupError {
        path,
        action: "set it",
        source,
    })
}

/// A file of the kernel's making, in few calls: such files say nothing of their length, and a reader that grows its
/// buffer from nothing makes the kernel write the same lines many times.
fn read_text(path: impl rustix::path::Arg) -> std::io::Result<String> {
    const ROOM: usize = 8 << 10;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    let mut bytes = Vec::with_capacity(ROOM);
    loop {
        bytes.reserve(ROOM);
        if rustix::io::read(&file, rustix::buffer::spare_capacity(&mut bytes))? == 0 {
            break;
        }
    }
    String::from_utf8(bytes).map_err(std::io::Error::other)
}

/// A number in a file, 0 where there is none.
fn number(directory: &Path, file: &str) -> u64 {
    read_text(directory.join(file))
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0)
}

/// A number after a word, in a file of `word number` lines.
fn field(directory: &Path, file: &str, name: &str) -> u64 {
    let text = read_text(directory.join(file)).unwrap_or_default();
    text.lines()
        .find_map(|line| {
            line.strip_prefix(name)?
                .strip_prefix(' ')?
                .trim()
                .parse()
                .ok()
        })
        .unwrap_or(0)
}

/// The same, where it matters whether there is one. Init, which is in every group, does not count.
fn count_without_init(directory: &Path, file: &str) -> Option<u64> {
    let text = read_text(directory.join(file)).ok()?;
    Some(text.trim().parse::<u64>().ok()?.saturating_sub(1))
}

/// CPU quota per 100 ms for a share in percent of one core.
fn quota(percent: f64) -> u64 {
    const PERIOD_US: f64 = 100_000.0;
    (percent / 100.0 * PERIOD_US).max(1_000.0) as u64
}

/// A mount point of `kind` whose options contain `option`.
fn mount_point(mounts: &str, kind: &str, option: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (place, fs, options) = (words.next()?, words.next()?, words.next()?);
        (fs == kind && (option.is_empty() || options.split(',').any(|o| o == option)))
            .then(|| PathBuf::from(place))
    })
}

fn may_write(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok()
}
