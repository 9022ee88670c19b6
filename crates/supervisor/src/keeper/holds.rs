//! What a box got hold of while a name was uncovered. A descriptor, a working directory or a mapping leads below the cover that
//! is put back, and so does a second name: by them what the cover protects could be changed at any later time.
//!
//! To be asked while the box holds still.

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use std::collections::{HashMap, VecDeque};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// So many entries of a directory that was uncovered are looked at.
const ENTRIES: usize = 2_000;

/// A look at a box's processes.
pub(super) struct Look<'a> {
    /// The box's pid 1, by its number here.
    pub(super) init: i32,
    /// The names that were uncovered, as the box and the host call them, and directories above them that were replaced.
    pub(super) uncovered: &'a [PathBuf],
    /// Those of them that are not for the box to write.
    pub(super) covered: &'a [PathBuf],
    /// Where each mount of the box is, by its number.
    pub(super) mounts: &'a HashMap<u64, PathBuf>,
    /// When the box started, in seconds since 1970.
    pub(super) since: i64,
}

impl Look<'_> {
    /// The first of the names that something of the box leads to by another way than through its cover.
    pub(super) fn held(&self) -> Option<PathBuf> {
        let second = self.covered.iter().find(|path| self.has_second_name(path));
        second.cloned().or_else(|| self.by_processes())
    }

    fn by_processes(&self) -> Option<PathBuf> {
        let mut waiting = VecDeque::from([self.init]);
        while let Some(process) = waiting.pop_front() {
            let is_agents = is_filtered(process);
            for thread in numbers(&format!("/proc/{process}/task")).unwrap_or_default() {
                let task = format!("/proc/{process}/task/{thread}");
                let children = fs::read_to_string(format!("{task}/children")).unwrap_or_default();
                let children = children.split_whitespace();
                waiting.extend(children.filter_map(|pid| pid.parse::<i32>().ok()));
                if is_agents && let Some(held) = self.by_thread(&task) {
                    return Some(held);
                }
            }
            if is_agents && let Some(held) = self.by_mapping(process) {
                return Some(held);
            }
        }
        None
    }

    /// Threads may have descriptors of their own.
    fn by_thread(&self, task: &str) -> Option<PathBuf> {
        for link in ["cwd", "root"] {
            if let Some(held) = self.by_link(&format!("{task}/{link}")) {
                return Some(held);
            }
        }
        let descriptors = match numbers(&format!("{task}/fd")) {
            Ok(descriptors) => descriptors,
            Err(error) if is_gone(&error) => return None,
            // Nobody can tell what it has.
            Err(_) => return self.uncovered.first().cloned(),
        };
        descriptors.into_iter().find_map(|number| {
            let link = format!("{task}/fd/{number}");
            self.by_link(&link)
                .or_else(|| self.under_way(&link, &format!("{task}/fdinfo/{number}")))
        })
    }

    fn by_link(&self, link: &str) -> Option<PathBuf> {
        let target = fs::read_link(link).ok()?;
        let uncovered = self.below(&target)?;
        let flags = StatxFlags::MNT_ID;
        let found = statx(CWD, link, AtFlags::empty(), flags).ok()?;
        let has_number = found.stx_mask & flags.bits() != 0;
        let mount = has_number
            .then(|| self.mounts.get(&found.stx_mnt_id))
            .flatten();
        // What goes through the cover is what the cover lets through.
        let is_through = mount.is_some_and(|mount| mount.starts_with(uncovered));
        (!is_through).then(|| uncovered.to_owned())
    }

    /// Descriptors that are sent through a socket and not yet received are nobody's.
    fn under_way(&self, link: &str, about: &str) -> Option<PathBuf> {
        let target = fs::read_link(link).ok()?;
        if !target.as_os_str().as_bytes().starts_with(b"socket:") {
            return None;
        }
        let about = fs::read_to_string(about).ok()?;
        let mut lines = about.lines();
        let count = lines.find_map(|line| line.strip_prefix("scm_fds:"))?;
        let is_sending = count.trim().parse::<u64>().is_ok_and(|count| count > 0);
        self.uncovered.first().filter(|_| is_sending).cloned()
    }

    /// A mapping that is shared may be made writable later.
    fn by_mapping(&self, process: i32) -> Option<PathBuf> {
        let maps = fs::read(format!("/proc/{process}/maps")).ok()?;
        maps.split(|byte| *byte == b'\n').find_map(|line| {
            let mut words = line.splitn(6, |byte| *byte == b' ');
            let is_shared = words.nth(1)?.get(3) == Some(&b's');
            let path = words.nth(3)?.trim_ascii_start();
            let path = PathBuf::from(OsString::from_vec(path.to_vec()));
            self.below(&path).filter(|_| is_shared).map(Path::to_owned)
        })
    }

    /// The uncovered name that a path is at or below.
    fn below(&self, path: &Path) -> Option<&Path> {
        let mut uncovered = self.uncovered.iter().map(PathBuf::as_path);
        uncovered.find(|name| path.starts_with(name))
    }

    /// Whether a file at or below a name has got another one, which may be where the box writes.
    fn has_second_name(&self, path: &Path) -> bool {
        let mut waiting = VecDeque::from([path.to_owned()]);
        let mut left = ENTRIES;
        while let (Some(path), true) = (waiting.pop_front(), left > 0) {
            left -= 1;
            let Ok(found) = fs::symlink_metadata(&path) else {
                continue;
            };
            if found.is_dir() {
                let entries = fs::read_dir(&path).into_iter().flatten().flatten();
                waiting.extend(entries.take(left).map(|entry| entry.path()));
            } else if found.nlink() > 1 && found.ctime() >= self.since - 1 {
                return true;
            }
        }
        false
    }
}

/// Whether a process is the agent's: pid 1, and whoever works for it, alone have no filter.
fn is_filtered(process: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let mut lines = status.lines();
    let mode = lines.find_map(|line| line.strip_prefix("Seccomp:"));
    mode.is_none_or(|mode| mode.trim() != "0")
}

fn numbers(directory: &str) -> io::Result<Vec<i32>> {
    let entries = fs::read_dir(directory)?;
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    Ok(entries.flatten().filter_map(number).collect())
}

fn is_gone(error: &io::Error) -> bool {
    const NO_SUCH_PROCESS: i32 = 3;
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(NO_SUCH_PROCESS)
}
