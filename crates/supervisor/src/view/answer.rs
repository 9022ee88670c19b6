//! What a view comes to at one path: the box's own way of looking it up, on the host.

use super::{Around, Builder, Changes, OWN_TREES, parent_of};
use crate::error::RunError;
use crate::named;
use belljar_policy::{PathTable, Places};
use belljar_sandbox::plan::{self, Identity, Shows};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// As many symbolic links as the kernel follows.
const MOST_LINKS: usize = 40;

/// The view of a box that is not started, to ask about.
pub(crate) struct Answers<'a>(Builder<'a>);

/// What a program in the box finds at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    /// Nothing that could be looked at or made.
    Nothing,
    /// Something of the host's that it may read.
    Readable,
    /// The same, and may write.
    Writable,
    /// Nothing yet.
    Absent {
        /// Whether it may be made.
        creatable: bool,
    },
    /// In a directory that is the box's own, and writable.
    Private,
    /// In the box's copy of the home directory, where it sees nothing of the host's.
    Masked,
    /// In a tree that is the box's own.
    Own,
}

impl<'a> Answers<'a> {
    /// The view that a run with changes made in place would get. Nothing is written; an overlay shows the same.
    pub(crate) fn of(
        table: &'a PathTable,
        places: &'a Places,
        identity: Identity,
    ) -> Result<Self, RunError> {
        let mut builder = Builder::new(table, places, identity, Changes::Direct);
        builder.place_all()?;
        Ok(Self(builder))
    }

    /// Whether a file in this directory, hidden by its name, would be found by the search of a run.
    pub(crate) fn is_searched(&self, directory: &Path) -> bool {
        named::reaches(&self.0.searched, directory, named::HIDDEN)
    }

    /// Goes down a path as the kernel does in the box, link by link. Returns what is there, and where that is.
    pub(crate) fn look(&self, path: &Path) -> (Seen, PathBuf) {
        let mut here = PathBuf::from("/");
        let mut rest: VecDeque<OsString> = VecDeque::new();
        push_front(&mut rest, path);
        let mut links = 0;
        while let Some(name) = rest.pop_front() {
            if name == ".." {
                here.pop();
                continue;
            }
            let next = here.join(&name);
            let whole = |next: &Path| next.join(rest.iter().collect::<PathBuf>());
            let target = match self.step(&next) {
                Step::Down => None,
                Step::Link(target) => Some(target),
                Step::End(seen) => return (seen, whole(&next)),
            };
            match target {
                None => here = next,
                Some(_) if links == MOST_LINKS => return (Seen::Nothing, next),
                Some(target) => {
                    links += 1;
                    if target.is_absolute() {
                        here = PathBuf::from("/");
                    }
                    push_front(&mut rest, &target);
                }
            }
        }
        let seen = match self.0.shown(here.as_os_str().as_bytes()) {
            Some(shows) => of_entry(shows),
            None => of_around(self.0.around(&here)),
        };
        (seen, here)
    }

    fn step(&self, next: &Path) -> Step {
        if OWN_TREES.iter().any(|own| next == Path::new(own)) {
            return Step::End(Seen::Own);
        }
        match self.0.shown(next.as_os_str().as_bytes()) {
            Some(Shows::Hidden(_) | Shows::StandIn(_)) => Step::End(Seen::Nothing),
            Some(Shows::Link(target)) => Step::Link(target.clone()),
            Some(_) => Step::Down,
            None if self.has_entries_below(next) => Step::Down,
            None => match self.0.around(next) {
                Around::Own if self.is_private(next) => Step::End(Seen::Private),
                // The host has it, and it is not among what is shown.
                Around::Own if next.symlink_metadata().is_ok() => Step::End(Seen::Nothing),
                Around::Own => Step::End(Seen::Absent { creatable: false }),
                Around::Nothing | Around::Image => Step::End(Seen::Nothing),
                Around::HomeCopy if self.0.is_masked(next) => Step::End(Seen::Masked),
                around @ (Around::HostRead
                | Around::HostWrite
                | Around::Overlay
                | Around::HomeCopy) => match std::fs::symlink_metadata(next) {
                    Err(_) => Step::End(Seen::Absent {
                        creatable: around != Around::HostRead,
                    }),
                    Ok(found) if found.is_symlink() => match std::fs::read_link(next) {
                        Ok(target) => Step::Link(target),
                        Err(_) => Step::End(Seen::Nothing),
                    },
                    Ok(_) => Step::Down,
                },
            },
        }
    }

    fn has_entries_below(&self, path: &Path) -> bool {
        let mut entries = self.0.built.entries.iter();
        entries.any(|entry| entry.path.starts_with(path))
    }

    /// Whether what is around a path is a private directory, not a frame.
    fn is_private(&self, path: &Path) -> bool {
        let mut above = parent_of(path.as_os_str().as_bytes());
        while let Some(parent) = above {
            if let Some(shows) = self.0.shown(parent) {
                return matches!(shows, Shows::Private { .. });
            }
            above = parent_of(parent);
        }
        false
    }
}

enum Step {
    Down,
    Link(PathBuf),
    End(Seen),
}

fn of_entry(shows: &Shows) -> Seen {
    match shows {
        Shows::Frame => Seen::Readable,
        Shows::Host { access, .. } => match access {
            plan::Access::Read => Seen::Readable,
            plan::Access::Write => Seen::Writable,
        },
        Shows::Overlay { .. } => Seen::Writable,
        Shows::Private { .. } => Seen::Private,
        Shows::Hidden(_) | Shows::StandIn(_) | Shows::Link(_) => Seen::Nothing,
    }
}

fn of_around(around: Around) -> Seen {
    match around {
        Around::Own | Around::HostRead => Seen::Readable,
        Around::HostWrite | Around::Overlay | Around::HomeCopy => Seen::Writable,
        Around::Image | Around::Nothing => Seen::Nothing,
    }
}

fn push_front(rest: &mut VecDeque<OsString>, path: &Path) {
    let names = path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    let names: Vec<OsString> = names.collect();
    for name in names.into_iter().rev() {
        rest.push_front(name);
    }
}
