//! What the host had at a path when the box ended, so that nobody's later work is written over.

use super::listing::Bytes;
use super::tree::{Cursor, TreeAccess, each_below};
use rustix::fs::{FileType, Stat};
use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::io;

/// Enough of a file to tell whether it has been touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Fingerprint {
    pub(super) inode: u64,
    pub(super) is_directory: bool,
    size: u64,
    changed_s: i64,
    changed_ns: i64,
}

impl Fingerprint {
    pub(super) fn of(stat: &Stat) -> Self {
        let is_directory = is_directory(stat);
        // A directory's size and times move with what is in it, which is looked at by itself.
        let unless_directory = |value: i64| if is_directory { 0 } else { value };
        Self {
            inode: stat.st_ino,
            is_directory,
            size: u64::try_from(unless_directory(stat.st_size)).unwrap_or_default(),
            changed_s: unless_directory(stat.st_ctime),
            changed_ns: unless_directory(i64::try_from(stat.st_ctime_nsec).unwrap_or_default()),
        }
    }

    fn is_after(&self, start: &Self) -> bool {
        (self.changed_s, self.changed_ns) > (start.changed_s, start.changed_ns)
    }
}

pub(super) fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

/// A file in a directory that goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Below {
    /// In the directory itself it is 1.
    pub(super) depth: usize,
    pub(super) name: Bytes,
    pub(super) seen: Fingerprint,
}

/// What the host had at a path, and in it, when the box ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Base {
    pub(super) own: Option<Fingerprint>,
    /// Of a directory that goes: everything in it, a directory before what is in it.
    pub(super) within: Option<Vec<Below>>,
    /// Somebody on the host changed it while the box ran.
    pub(super) changed_meanwhile: bool,
}

impl Base {
    /// Looks at the host's side of a change in a box that started at `start`. Without a directory there, nothing is there.
    pub(super) fn look(
        host: Option<&mut Cursor>,
        name: &OsStr,
        goes: bool,
        start: &Fingerprint,
    ) -> io::Result<Self> {
        let (own, within) = match host {
            None => (None, None),
            Some(host) => {
                let own = host.look(name)?.map(|stat| Fingerprint::of(&stat));
                let all = goes && own.is_some_and(|own| own.is_directory);
                (own, if all { Some(within(host, name)?) } else { None })
            }
        };
        let changed_meanwhile = own.iter().any(|seen| seen.is_after(start))
            || within
                .iter()
                .flatten()
                .any(|below| below.seen.is_after(start));
        Ok(Self {
            own,
            within,
            changed_meanwhile,
        })
    }

    /// Whether the host still has what it had. A directory that goes may be gone already, or some of it.
    pub(super) fn still_holds(&self, host: Option<&mut Cursor>, name: &OsStr) -> io::Result<bool> {
        if self.changed_meanwhile {
            return Ok(false);
        }
        let Some(host) = host else {
            return Ok(self.own.is_none());
        };
        let now = host.look(name)?.map(|stat| Fingerprint::of(&stat));
        if now.is_none() && self.within.is_some() {
            return Ok(true);
        }
        if now != self.own {
            return Ok(false);
        }
        Ok(match &self.within {
            None => true,
            Some(before) => is_part(&within(host, name)?, before),
        })
    }
}

fn within(host: &mut Cursor, name: &OsStr) -> io::Result<Vec<Below>> {
    let mut found = Vec::new();
    each_below(
        host,
        name,
        TreeAccess::AsIs,
        |depth, name: OsString, stat| {
            found.push(Below {
                depth,
                name: name.as_os_str().into(),
                seen: Fingerprint::of(stat),
            });
        },
    )?;
    Ok(found)
}

/// Whether a tree is another one with some of it left out.
fn is_part(part: &[Below], whole: &[Below]) -> bool {
    let mut whole = whole.iter();
    let mut out = usize::MAX;
    part.iter().all(|wanted| {
        whole.by_ref().any(|below| {
            // What is in a directory that is not there is not looked for elsewhere.
            if below.depth > out {
                return false;
            }
            let same = below == wanted;
            out = if same || !below.seen.is_directory {
                usize::MAX
            } else {
                below.depth
            };
            same
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn below(depth: usize, name: &str, inode: u64, is_directory: bool) -> Below {
        Below {
            depth,
            name: OsStr::new(name).into(),
            seen: Fingerprint {
                inode,
                is_directory,
                size: 0,
                changed_s: 0,
                changed_ns: 0,
            },
        }
    }

    #[test]
    fn a_part_of_a_tree_has_nothing_new_in_it() {
        let whole = [
            below(1, "a", 1, true),
            below(2, "x", 2, false),
            below(1, "b", 3, true),
            below(2, "y", 4, false),
        ];
        let cases: [(&[usize], bool); 6] = [
            (&[0, 1, 2, 3], true),
            (&[], true),
            (&[2, 3], true),
            (&[0, 2], true),
            (&[2, 0], false),
            (&[0, 3], false),
        ];
        for (part, fits) in cases {
            let part: Vec<Below> = part.iter().map(|index| whole[*index].clone()).collect();
            assert_eq!(is_part(&part, &whole), fits, "{part:?}");
        }
        assert!(!is_part(&[below(1, "a", 9, true)], &whole));
    }
}
