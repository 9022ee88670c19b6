//! A [`Plan`] turned into the exact system calls of the native tier, with every string made beforehand, so that the
//! new process, which must not allocate, only walks a list.

use super::filter;
use super::message::LaunchError;
use super::rules::{self, Rule};
use super::shown::FileId;
use super::ways::Wiring;
use crate::host::Host;
use crate::plan::{Access, Kind, Ownership, Plan, Shows, View};
use crate::sys::{CStrings, SockFilter, mount_flag};
use rustix::fd::OwnedFd;
use std::collections::HashMap;
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A path relative to the new root.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) path: CString,
    /// Every directory on the way is of our making, so that no link can be in it.
    pub(crate) ours: bool,
}

/// One step of building the view. Paths `at` are relative to the new root.
pub(crate) enum Step {
    /// Make a directory, if it is not there.
    Directory { at: CString, mode: u32 },
    /// Make an empty file, if it is not there.
    Touch { at: CString },
    /// Make a file with these contents, for all to read.
    Write { at: CString, bytes: Arc<[u8]> },
    /// Make a symbolic link.
    Link { at: CString, target: CString },
    /// Show a tree of the host's.
    Bind {
        source: CString,
        at: Place,
        flags: u64,
        /// The very file it must be, where that matters.
        only: Option<FileId>,
    },
    /// Show a tree that the keeper has already cloned (number of its descriptor).
    Attach { tree: usize, at: Place },
    /// Show a directory of the box's own file system.
    Private { name: CString, at: Place, mode: u32 },
    /// Show a file that is in the new root already once more.
    Mirror { from: CString, at: Place },
    /// Let nobody write to the file system mounted there.
    Seal { at: CString },
    /// Mount a pseudo-terminal file system of the box's own.
    Terminals { at: Place },
    /// Wait until the keeper has put stand-ins in place.
    Await,
    /// Cover with something empty that nobody can write.
    Cover { at: Place, kind: Kind },
    /// The host's directory with changes kept aside. `mapped`: the lower tree the keeper cloned.
    Overlay {
        lower: Lower,
        upper: CString,
        work: CString,
        at: Place,
    },
}

/// Where an overlay's read-only side comes from.
pub(crate) enum Lower {
    /// A `lowerdir` value.
    Path(CString),
    /// A tree the keeper cloned and mapped, and directories to put above it.
    Tree { tree: usize, above: Option<CString> },
}

/// A host tree that the keeper clones before the start.
pub(crate) struct KeeperTree {
    pub(crate) source: PathBuf,
    pub(crate) flags: u64,
    pub(crate) ownership: Ownership,
    /// The very file it must be, where that matters.
    pub(crate) only: Option<FileId>,
}

/// The Landlock rules: what is granted where, as seen inside.
pub(crate) struct Landlock {
    pub(crate) abi: u32,
    pub(crate) handled: u64,
    pub(crate) scoped: u64,
    pub(crate) grants: Vec<(CString, u64)>,
}

/// Everything the new process needs.
pub(crate) struct Script {
    pub(crate) steps: Vec<Step>,
    /// For error messages: the view path of each step.
    pub(crate) step_paths: Vec<PathBuf>,
    /// Trees that only the keeper may clone, by number.
    pub(crate) trees: Vec<KeeperTree>,
    /// The one socket of the host's that the box may connect to.
    pub(crate) door: Option<FileId>,
    /// Whether there are stand-ins to wait for.
    pub(crate) awaits: bool,
    /// Frames that are mounts of their own, to be sealed when their contents are in place.
    frames: Vec<PathBuf>,
    /// Where each private file system is: sockets there can only be the box's own.
    pub(crate) private_places: Vec<CString>,
    /// How large the private file system may grow.
    pub(crate) private_size: CString,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) program: CString,
    pub(crate) argv: CStrings,
    pub(crate) env: CStrings,
    pub(crate) workdir: CString,
    pub(crate) rules: Vec<Rule>,
    pub(crate) filter: Vec<SockFilter>,
    pub(crate) limits: Vec<(libc::__rlimit_resource_t, u64)>,
    /// How many open files each process may have unless it asks for more, where that is not the keeper's own number.
    pub(crate) usual_files: Option<u64>,
    pub(crate) landlock: Option<Landlock>,
    /// Whether CPU time has a limit.
    pub(crate) counts_cpu: bool,
    pub(crate) cgroup_tasks: Vec<OwnedFd>,
    /// What is to be done about the network, if it is not closed.
    pub(crate) wiring: Option<Wiring>,
}

mod right {
    pub(super) const EXECUTE: u64 = 1;
    pub(super) const WRITE_FILE: u64 = 1 << 1;
    pub(super) const READ_FILE: u64 = 1 << 2;
    pub(super) const READ_DIR: u64 = 1 << 3;
    pub(super) const TRUNCATE: u64 = 1 << 14;
    pub(super) const IOCTL_DEV: u64 = 1 << 15;
    pub(super) const READ: u64 = EXECUTE | READ_FILE | READ_DIR;
}

/// Every right to change something that Landlock can withhold at this ABI. Reading and executing are not among them:
/// all that is in the view may be read, and a right that is not withheld costs nothing on every open. Nor is
/// truncation, which is asked for on every open, and which read-only mounts forbid by themselves.
fn handled_rights(abi: u32) -> u64 {
    let all = match abi {
        0 | 1 => (1 << 13) - 1,
        2 => (1 << 14) - 1,
        3 | 4 => (1 << 15) - 1,
        _ => (1 << 16) - 1,
    };
    all & !(right::READ | right::TRUNCATE)
}

/// Abstract Unix sockets and signals to processes outside, from ABI 6.
fn scopes(abi: u32) -> u64 {
    if abi >= 6 { 0b11 } else { 0 }
}

/// The device files every program may expect.
const DEVICES: &[&str] = &["null", "zero", "full", "random", "urandom", "tty"];

impl Script {
    /// Works the plan out. `sampled`: memory is counted by looking, not by the kernel.
    pub(crate) fn new(plan: &Plan, host: &Host, sampled: bool) -> Result<Self, LaunchError> {
        let rules = rules::rules(plan.spawn, sampled && plan.limits.memory_bytes.is_some());
        let mut script = Script {
            steps: Vec::with_capacity(plan.view.len() * 2 + 32),
            step_paths: Vec::new(),
            trees: Vec::new(),
            door: None,
            awaits: false,
            frames: Vec::new(),
            private_places: Vec::new(),
            private_size: c_string(OsStr::new(&plan.private_bytes.to_string()), "a size")?,
            uid: plan.identity.uid,
            gid: plan.identity.gid,
            program: c_path(&plan.program)?,
            argv: CStrings::new(
                plan.argv
                    .iter()
                    .map(|s| c_string(s, "an argument"))
                    .collect::<Result<_, _>>()?,
            ),
            env: CStrings::new(plan.env.iter().map(variable).collect::<Result<_, _>>()?),
            workdir: c_path(&plan.workdir)?,
            filter: filter::compile(&rules),
            rules,
            limits: resource_limits(plan, sampled),
            usual_files: match plan.limits.open_files {
                None => crate::descriptors::usual_limit(),
                Some(_) => None,
            },
            landlock: None,
            counts_cpu: plan.limits.cpu_time.is_some(),
            cgroup_tasks: Vec::new(),
            wiring: Wiring::of(&plan.network),
        };
        let own: Own<'_> = plan
            .view
            .iter()
            .map(|entry| (entry.path.as_os_str().as_bytes(), is_own(entry)))
            .collect();
        let mut grants = Vec::new();
        // The root itself is init's to make; what it shows is a frame in every plan.
        for entry in plan
            .view
            .iter()
            .filter(|entry| entry.path != Path::new("/"))
        {
            script.place(entry, &own)?;
            if writable(entry) {
                grants.push((c_path(&entry.path)?, u64::MAX));
            }
        }
        for frame in std::mem::take(&mut script.frames) {
            let at = relative(&frame)?;
            script.push(Step::Seal { at }, &frame);
        }
        script.show_all(plan)?;
        script.devices()?;
        // Descriptors, terminals and the like are written through these two; other walls hold what is in them.
        grants.push((c"/dev".to_owned(), right::WRITE_FILE | right::IOCTL_DEV));
        grants.push((c"/proc".to_owned(), right::WRITE_FILE));
        script.landlock = host.landlock_abi.map(|abi| Landlock {
            abi,
            handled: handled_rights(abi),
            scoped: scopes(abi),
            grants,
        });
        Ok(script)
    }

    pub(super) fn push(&mut self, step: Step, path: &Path) {
        self.steps.push(step);
        self.step_paths.push(path.to_owned());
    }

    /// Notes a tree for the keeper to clone; its number.
    pub(super) fn keeper_tree(&mut self, tree: KeeperTree) -> usize {
        self.trees.push(tree);
        self.trees.len() - 1
    }

    /// The same for a tree whose owner is mapped.
    fn mapped_tree(&mut self, source: &Path, flags: u64) -> usize {
        self.keeper_tree(KeeperTree {
            source: source.to_owned(),
            flags,
            ownership: Ownership::Mapped,
            only: None,
        })
    }

    fn place(&mut self, entry: &View, own: &Own<'_>) -> Result<(), LaunchError> {
        let path = &entry.path;
        self.parents(path, own)?;
        match &entry.shows {
            Shows::Frame if is_in_own(path, own) => {
                let at = relative(path)?;
                self.push(Step::Directory { at, mode: 0o755 }, path);
            }
            Shows::Frame => {
                self.private(path, 0o755, own)?;
                self.frames.push(path.clone());
            }
            Shows::Link(target) => {
                let step = Step::Link {
                    at: relative(path)?,
                    target: c_path(target)?,
                };
                self.push(step, path);
            }
            Shows::Host {
                source,
                kind,
                access,
                ownership,
            } => {
                self.mount_point(path, *kind, own)?;
                let flags = flags_for(*access);
                let at = spot(path, own)?;
                let step = match ownership {
                    Ownership::Host => Step::Bind {
                        source: c_path(source)?,
                        at,
                        flags,
                        only: None,
                    },
                    Ownership::Mapped => Step::Attach {
                        tree: self.mapped_tree(source, flags),
                        at,
                    },
                };
                self.push(step, path);
            }
            Shows::Private { mode } => {
                self.mount_point(path, Kind::Directory, own)?;
                self.private_places.push(c_path(path)?);
                self.private(path, *mode, own)?;
            }
            Shows::Hidden(kind) | Shows::StandIn(kind) => {
                self.mount_point(path, *kind, own)?;
                if matches!(entry.shows, Shows::StandIn(_)) && !self.awaits {
                    self.awaits = true;
                    self.push(Step::Await, path);
                }
                let step = Step::Cover {
                    at: spot(path, own)?,
                    kind: *kind,
                };
                self.push(step, path);
            }
            Shows::Overlay {
                lower,
                stand_ins,
                changes,
                scratch,
                ownership,
            } => {
                self.mount_point(path, Kind::Directory, own)?;
                let lower = match ownership {
                    Ownership::Host => {
                        let mut layers = Vec::new();
                        if let Some(stand_ins) = stand_ins {
                            layers.extend(escape_layer(stand_ins));
                            layers.push(b':');
                        }
                        layers.extend(escape_layer(lower));
                        Lower::Path(c_string(OsStr::from_bytes(&layers), "an overlay path")?)
                    }
                    Ownership::Mapped => Lower::Tree {
                        tree: self.mapped_tree(lower, mount_flag::READ_ONLY),
                        above: stand_ins.as_deref().map(c_layer).transpose()?,
                    },
                };
                let step = Step::Overlay {
                    lower,
                    upper: c_layer(changes)?,
                    work: c_layer(scratch)?,
                    at: spot(path, own)?,
                };
                self.push(step, path);
            }
        }
        Ok(())
    }

    /// A directory of the one file system that all private directories share, and with it their bound.
    fn private(&mut self, path: &Path, mode: u32, own: &Own<'_>) -> Result<(), LaunchError> {
        let name = self.steps.len().to_string();
        let step = Step::Private {
            name: c_string(OsStr::new(&name), "a name")?,
            at: spot(path, own)?,
            mode,
        };
        self.push(step, path);
        Ok(())
    }

    /// Directories between the nearest entry above and this one, where that entry is the box's own to write.
    fn parents(&mut self, path: &Path, own: &Own<'_>) -> Result<(), LaunchError> {
        if !is_in_own(path, own) {
            return Ok(());
        }
        let between: Vec<&Path> = path
            .ancestors()
            .skip(1)
            .take_while(|parent| {
                !own.contains_key(parent.as_os_str().as_bytes()) && *parent != Path::new("/")
            })
            .collect();
        for parent in between.into_iter().rev() {
            let at = relative(parent)?;
            self.push(Step::Directory { at, mode: 0o755 }, parent);
        }
        Ok(())
    }

    /// Something to mount on, where the directory around it is the box's own.
    fn mount_point(&mut self, path: &Path, kind: Kind, own: &Own<'_>) -> Result<(), LaunchError> {
        if is_in_own(path, own) {
            let at = relative(path)?;
            let step = match kind {
                Kind::Directory => Step::Directory { at, mode: 0o755 },
                Kind::File => Step::Touch { at },
            };
            self.push(step, path);
        }
        Ok(())
    }

    /// A minimal /dev. /dev/shm is the plan's own business.
    fn devices(&mut self) -> Result<(), LaunchError> {
        for name in DEVICES {
            let source = Path::new("/dev").join(name);
            if source.exists() {
                let path = relative(&source)?;
                self.push(Step::Touch { at: path.clone() }, &source);
                self.push(
                    Step::Bind {
                        source: c_path(&source)?,
                        at: Place { path, ours: true },
                        flags: mount_flag::NO_SUID,
                        only: None,
                    },
                    &source,
                );
            }
        }
        let terminals = Path::new("/dev/pts");
        self.push(
            Step::Directory {
                at: relative(terminals)?,
                mode: 0o755,
            },
            terminals,
        );
        self.push(
            Step::Terminals {
                at: Place {
                    path: relative(terminals)?,
                    ours: true,
                },
            },
            terminals,
        );
        for (name, target) in [
            ("/dev/ptmx", "pts/ptmx"),
            ("/dev/fd", "/proc/self/fd"),
            ("/dev/stdin", "/proc/self/fd/0"),
            ("/dev/stdout", "/proc/self/fd/1"),
            ("/dev/stderr", "/proc/self/fd/2"),
        ] {
            let step = Step::Link {
                at: relative(Path::new(name))?,
                target: c_path(Path::new(target))?,
            };
            self.push(step, Path::new(name));
        }
        Ok(())
    }
}

fn flags_for(access: Access) -> u64 {
    let common = mount_flag::NO_SUID | mount_flag::NO_DEV;
    match access {
        Access::Read => common | mount_flag::READ_ONLY,
        Access::Write => common,
    }
}

fn writable(entry: &View) -> bool {
    matches!(
        entry.shows,
        Shows::Private { .. }
            | Shows::Overlay { .. }
            | Shows::Host {
                access: Access::Write,
                ..
            }
    )
}

/// For each path of the view, whether it is a directory made by us, so that we can make entries in it.
type Own<'a> = HashMap<&'a [u8], bool>;

fn is_own(entry: &View) -> bool {
    matches!(entry.shows, Shows::Frame | Shows::Private { .. })
}

/// Whether the closest entry that contains `path` is made by us. By bytes: comparing paths as paths is slow.
fn is_in_own(path: &Path, own: &Own<'_>) -> bool {
    let mut rest = path.as_os_str().as_bytes();
    while let Some(slash) = rest.iter().rposition(|byte| *byte == b'/') {
        let parent = if slash == 0 {
            &b"/"[..]
        } else {
            &rest[..slash]
        };
        if let Some(own) = own.get(parent) {
            return *own;
        }
        if slash == 0 {
            break;
        }
        rest = &rest[..slash];
    }
    false
}

/// Where to mount.
fn spot(path: &Path, own: &Own<'_>) -> Result<Place, LaunchError> {
    Ok(Place {
        path: relative(path)?,
        ours: is_all_own(path, own),
    })
}

/// Whether every entry of the view that contains `path` is made by us.
fn is_all_own(path: &Path, own: &Own<'_>) -> bool {
    path.ancestors()
        .skip(1)
        .all(|above| own.get(above.as_os_str().as_bytes()).is_none_or(|own| *own))
}

/// Limits that the kernel holds each process to.
fn resource_limits(plan: &Plan, sampled: bool) -> Vec<(libc::__rlimit_resource_t, u64)> {
    let limits = &plan.limits;
    let mut out = vec![
        (libc::RLIMIT_CORE, 0),
        (libc::RLIMIT_MEMLOCK, 8 << 20),
        (libc::RLIMIT_MSGQUEUE, 1 << 20),
    ];
    if let Some(files) = limits.open_files {
        out.push((libc::RLIMIT_NOFILE, u64::from(files)));
    }
    if let Some(bytes) = limits.file_size_bytes {
        out.push((libc::RLIMIT_FSIZE, bytes));
    }
    if sampled && let Some(processes) = limits.processes {
        // Counted in the box's own user namespace, so it holds for the tree. Init is one of them.
        out.push((libc::RLIMIT_NPROC, u64::from(processes) + 1));
    }
    if let Some(cpu) = limits.cpu_time {
        // A backstop for a keeper that gets no CPU itself: each process alone.
        out.push((libc::RLIMIT_CPU, cpu.as_secs() + 2));
    }
    if sampled && let Some(bytes) = limits.memory_bytes {
        // A backstop between two looks. Generous: reserved memory is not used memory.
        out.push((
            libc::RLIMIT_DATA,
            bytes.saturating_mul(4).saturating_add(256 << 20),
        ));
    }
    out
}

fn c_string(text: &OsStr, what: &'static str) -> Result<CString, LaunchError> {
    CString::new(text.as_bytes()).map_err(|_| LaunchError::Nul { what })
}

pub(super) fn c_path(path: &Path) -> Result<CString, LaunchError> {
    c_string(path.as_os_str(), "a path")
}

pub(super) fn relative(path: &Path) -> Result<CString, LaunchError> {
    c_path(path.strip_prefix("/").unwrap_or(path))
}

fn variable(
    (name, value): &(std::ffi::OsString, std::ffi::OsString),
) -> Result<CString, LaunchError> {
    let mut both = name.clone();
    both.push("=");
    both.push(value);
    c_string(&both, "an environment variable")
}

/// Colons, commas and backslashes have a meaning in overlay options.
fn escape_layer(path: &Path) -> Vec<u8> {
    let mut out = Vec::new();
    for byte in path.as_os_str().as_bytes() {
        if matches!(byte, b':' | b'\\' | b',') {
            out.push(b'\\');
        }
        out.push(*byte);
    }
    out
}

fn c_layer(path: &Path) -> Result<CString, LaunchError> {
    c_string(OsStr::from_bytes(&escape_layer(path)), "an overlay path")
}
