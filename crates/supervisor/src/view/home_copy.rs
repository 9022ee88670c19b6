//! The home directory as a copy of the box's own: the host's shows through a mask, and changes stay in the copy.

use super::{Around, Builder};
use crate::home::{HomeCover, HomeLayers, layer_of};
use belljar_policy::Access;
use belljar_sandbox::plan::{Kind, Ownership, Shows};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// What the copy is a copy of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HomeCopy {
    /// There is none: the home is the host's, or private as long as the box runs.
    None,
    /// The host's home directory.
    OfHost,
    /// An empty directory.
    OfNothing,
}

impl Builder<'_> {
    /// The home directory with changes kept aside. A mount within it is no part of a layer, and is shown for reading.
    pub(super) fn copied_home(&mut self) {
        let home = self.places.home.clone();
        if !home.is_dir() {
            return;
        }
        self.home_copy = HomeCopy::OfHost;
        let mapped = self.identity.uid != self.identity.owner_uid;
        let ownership = match mapped {
            true => Ownership::Mapped,
            false => Ownership::Host,
        };
        let shows = self.home_overlay(home.clone(), ownership);
        self.show(&home, shows);
        for mount in mounts_below(&home) {
            if self.is_named(&mount) || self.table.access(&mount) < Access::Read {
                continue;
            }
            let shows = self.host(&mount, Kind::Directory, belljar_sandbox::plan::Access::Read);
            self.show(mount, shows);
        }
    }

    /// A home of the box's own, kept for its next run; nothing where none is kept.
    pub(super) fn kept_empty_home(&mut self, path: &Path) -> Option<Shows> {
        if path != self.places.home {
            return None;
        }
        let empty = self.home_layers.as_ref()?.empty.clone();
        self.home_copy = HomeCopy::OfNothing;
        Some(self.home_overlay(empty, Ownership::Host))
    }

    fn home_overlay(&self, lower: PathBuf, ownership: Ownership) -> Shows {
        // Whoever only asks what a run would see has none, and mounts nothing.
        let nowhere = || HomeLayers {
            changes: PathBuf::new(),
            scratch: PathBuf::new(),
            empty: PathBuf::new(),
        };
        let layers = self.home_layers.clone().unwrap_or_else(nowhere);
        Shows::Overlay {
            lower,
            stand_ins: None,
            // Known when everything has its place: see `set_mask`.
            mask: Vec::new(),
            changes: layers.changes,
            scratch: layers.scratch,
            ownership,
        }
    }

    /// Puts the mask over what the host has.
    pub(super) fn set_mask(&mut self) {
        let layer = layer_of(&self.built.home_mask, &self.places.home);
        let at = self.index.get(self.places.home.as_os_str().as_bytes());
        let entry = at.and_then(|at| self.built.entries.get_mut(*at));
        if let Some(Shows::Overlay { mask, .. }) = entry.map(|entry| &mut entry.shows) {
            *mask = layer;
        }
    }

    pub(super) fn is_copied_home(&self, path: &[u8]) -> bool {
        self.home_copy != HomeCopy::None && path == self.places.home.as_os_str().as_bytes()
    }

    /// Has something else, or nothing, seen in the copy at a path of the home's.
    pub(super) fn mask(&mut self, path: &Path, entry: HomeCover) {
        // An empty home has nothing to mask.
        if self.home_copy != HomeCopy::OfHost && entry != HomeCover::Empty {
            return;
        }
        let Ok(below) = path.strip_prefix(&self.places.home) else {
            return;
        };
        let is_out_of_sight = below.ancestors().skip(1).any(|above| {
            let masked = self.built.home_mask.get(above);
            masked.is_some_and(HomeCover::hides_below)
        });
        if !is_out_of_sight && !below.as_os_str().is_empty() {
            // What was to be seen below is not.
            self.built
                .home_mask
                .retain(|known, _| known == below || !known.starts_with(below));
            self.built.home_mask.insert(below.to_owned(), entry);
        }
    }

    /// Whether the copy shows nothing of the host's at a path.
    pub(super) fn is_masked(&self, path: &Path) -> bool {
        let Ok(below) = path.strip_prefix(&self.places.home) else {
            return false;
        };
        self.home_copy == HomeCopy::OfNothing
            || below.ancestors().any(|at| {
                let masked = self.built.home_mask.get(at);
                masked.is_some_and(HomeCover::hides_below)
            })
    }

    /// What is said about something in the copy. Returns whether it is to be mounted there.
    pub(super) fn mounts_in_copy(&mut self, path: &Path, kind: Kind, access: Access) -> bool {
        match access {
            Access::Hidden => {
                let entry = match kind == Kind::Directory && self.shows_below(path) {
                    true => HomeCover::Empty,
                    false => HomeCover::Absent,
                };
                self.mask(path, entry);
                false
            }
            Access::Private => {
                self.mask(path, HomeCover::Empty);
                false
            }
            // The copy itself is that.
            Access::CopyOnWrite | Access::Protected | Access::Image => false,
            Access::Read | Access::Write => {
                if self.is_masked(path) {
                    self.make_mount_point(path, kind);
                }
                true
            }
        }
    }

    /// Somewhere to mount what is shown where the host's does not show through.
    fn make_mount_point(&mut self, path: &Path, kind: Kind) {
        let Ok(below) = path.strip_prefix(&self.places.home) else {
            return;
        };
        for above in below.ancestors().skip(1) {
            if let Some(entry) = self.built.home_mask.get_mut(above)
                && *entry == HomeCover::Absent
            {
                *entry = HomeCover::Empty;
            }
        }
        let entry = HomeCover::MountPoint(kind);
        self.built.home_mask.insert(below.to_owned(), entry);
    }

    /// What is mounted in the copy, by path below the home.
    pub(super) fn mounted_in_copy(&self) -> Vec<(PathBuf, Kind)> {
        if self.home_copy == HomeCopy::None {
            return Vec::new();
        }
        let entries = self.built.entries.iter();
        let mounted = entries.filter_map(|entry| {
            let below = entry.path.strip_prefix(&self.places.home).ok()?;
            let kind = match &entry.shows {
                Shows::Host { kind, .. } | Shows::Hidden(kind) | Shows::StandIn(kind) => *kind,
                Shows::Link(_) => Kind::File,
                Shows::Frame | Shows::Private { .. } | Shows::Overlay { .. } => Kind::Directory,
            };
            let is_in_copy = self.around(&entry.path) == Around::HomeCopy;
            (is_in_copy && !below.as_os_str().is_empty()).then(|| (below.to_owned(), kind))
        });
        mounted.collect()
    }
}

/// Mounts of the host's below a directory that can be looked into.
fn mounts_below(directory: &Path) -> Vec<PathBuf> {
    let Ok(table) = std::fs::read_to_string("/proc/self/mountinfo") else {
        return Vec::new();
    };
    let mut found: Vec<PathBuf> = table
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(unescaped)
        .filter(|mount| mount.starts_with(directory) && mount != directory && mount.is_dir())
        .collect();
    found.sort();
    found.dedup();
    // The outer ones bring the inner ones along.
    let mut outer: Vec<PathBuf> = Vec::new();
    for mount in found {
        if !outer.last().is_some_and(|last| mount.starts_with(last)) {
            outer.push(mount);
        }
    }
    outer
}

/// A path as the kernel writes it: some characters as three octal digits.
fn unescaped(text: &str) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, more)) = rest.split_first() {
        let code = (*first == b'\\')
            .then(|| more.get(..3))
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(byte) => {
                bytes.push(byte);
                rest = more.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = more;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from(std::ffi::OsStr::from_bytes(
        &bytes,
    )))
}
