//! A [`Plan`] turned into the exact system calls of the native tier, with every string made beforehand, so that the
//! new process, which must not allocate, only walks a list. That process is there already when the script is written: it
//! finds it in memory that it shares with its keeper.

use super::filter;
use super::message::{LaunchError, Stage};
use super::own::{Own, is_all_own, is_in_own, is_own};
use super::restrictions::{ALL_RIGHTS, COMMON_GRANTS, Landlock};
use super::rules::Rule;
use super::shown::FileId;
use super::watched;
use crate::host::Host;
use crate::plan::{Access, Entry, Kind, MaskEntry, MaskShows, Ownership, Plan, Shows, View, Watch};
use crate::show::MOST_DOORS;
use crate::sys::{CStrings, Published, SharedMemory, SockFilter, mount_flag};
use crate::tier::{Descriptors, Furniture, Landlocked, Told, Wall};
use rustix::io::Errno;
use std::ffi::{CStr, CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A path relative to the new root.
#[derive(Clone, Copy)]
pub(crate) struct Place<'m> {
    pub(crate) path: &'m CStr,
    /// Every directory on the way is of our making, so that no link can be in it.
    pub(crate) ours: bool,
}

/// One step of building the view. Paths `at` are relative to the new root.
#[derive(Clone, Copy)]
pub(crate) enum Step<'m> {
    /// Make a directory, if it is not there.
    Directory { at: &'m CStr, mode: u32 },
    /// Make an empty file, if it is not there.
    Touch { at: &'m CStr },
    /// Make a file with these contents, for all to read.
    Write { at: &'m CStr, bytes: &'m [u8] },
    /// Make a file of so many zeros, for the box's user to write in.
    Blank { at: &'m CStr, size: usize },
    /// Make a symbolic link.
    Link { at: &'m CStr, target: &'m CStr },
    /// Show a tree of the host's.
    Bind {
        source: &'m CStr,
        at: Place<'m>,
        flags: u64,
        /// The very file it must be, where that matters.
        only: Option<FileId>,
    },
    /// Show the next tree that the keeper has cloned.
    Attach { at: Place<'m> },
    /// Show a directory of the box's own file system.
    Private {
        name: &'m CStr,
        at: Place<'m>,
        mode: u32,
    },
    /// Show a file that is in the new root already once more.
    Mirror { from: &'m CStr, at: Place<'m> },
    /// Let nobody write to the file system mounted there.
    Seal { at: &'m CStr },
    /// Mount a pseudo-terminal file system of the box's own.
    Terminals { at: Place<'m> },
    /// Wait until the keeper has put stand-ins in place.
    Await,
    /// Cover with something empty that nobody can write.
    Cover { at: Place<'m>, kind: Kind },
    /// Put an empty file system at [`MASK`], for an overlay's mask to be made in.
    BeginMask,
    /// In a mask: what lies below is not seen.
    Whiteout { at: &'m CStr },
    /// The same, with an empty directory in its place.
    Opaque { at: &'m CStr },
    /// In a mask: a file with these contents.
    Text {
        at: &'m CStr,
        bytes: &'m [u8],
        mode: u32,
    },
    /// Take the mask away; the overlay has its own hold on it.
    EndMask,
    /// The host's directory with changes kept aside.
    Overlay {
        lower: Lower<'m>,
        upper: &'m CStr,
        work: &'m CStr,
        at: Place<'m>,
    },
}

/// Where an overlay's read-only side comes from.
#[derive(Clone, Copy)]
pub(crate) enum Lower<'m> {
    /// A `lowerdir` value.
    Path(&'m CStr),
    /// The same, with paths in it that are relative to the new root.
    Masked(&'m CStr),
    /// The next tree the keeper cloned, mapped; and directories to put above it.
    Tree { above: Option<&'m CStr> },
    /// That tree where the overlay will be, in a `lowerdir` value relative to the new root.
    MaskedTree(&'m CStr),
}

/// Where a mask is while it is made, relative to the new root: a directory that nothing else is in yet.
pub(crate) const MASK: &str = "proc";

/// A host tree that the keeper clones for init.
pub(crate) struct KeeperTree {
    pub(crate) source: PathBuf,
    pub(crate) flags: u64,
    pub(crate) ownership: Ownership,
    pub(crate) made: Made,
}

/// What the keeper makes of a path of the host's.
pub(crate) enum Made {
    /// A clone of what is there.
    Clone,
    /// The same, if it is this very file.
    CloneOf(FileId),
    /// A directory that has a device of the same number and name in it, which is the box's user's.
    Lent,
}

/// The doors of a box, by their files.
pub(crate) type Doors = [Option<FileId>; MOST_DOORS];

/// Everything the new process needs.
#[derive(Clone, Copy)]
pub(crate) struct Script<'m> {
    pub(crate) steps: &'m [Step<'m>],
    /// The sockets of the host's that the box may connect to.
    pub(crate) doors: Doors,
    /// Where each private file system is: sockets there can only be the box's own.
    pub(crate) private_places: &'m [&'m CStr],
    pub(crate) program: &'m CStr,
    pub(crate) argv: CStrings<'m>,
    pub(crate) env: CStrings<'m>,
    pub(crate) workdir: &'m CStr,
    pub(crate) rules: &'m [Rule],
    pub(crate) filter: &'m [SockFilter],
    pub(crate) limits: &'m [(libc::__rlimit_resource_t, u64)],
    /// How many open files each process may have unless it asks for more, where that is not the keeper's own number.
    pub(crate) usual_files: Option<u64>,
    pub(crate) descriptors: Descriptors,
    pub(crate) landlock: Option<Landlock<'m>>,
    /// Where the program is told of, if not by the end of what is executed.
    pub(crate) told: Option<&'m CStr>,
    /// Whether CPU time has a limit.
    pub(crate) counts_cpu: bool,
    /// Whether the keeper will ask for sockets; the channel comes after the trees.
    pub(crate) has_entry: bool,
    /// Whether the keeper hears what the box does; the channel comes after that.
    pub(crate) watch: Watch,
}

/// The script as it lies in shared memory.
pub(crate) struct Sheet;

impl Published for Sheet {
    type At<'m> = Script<'m>;
}

/// Room for the script: a home of a hundred thousand entries, and all texts that may be shown.
pub(crate) const SHEET_SIZE: usize = 64 << 20;

/// What the keeper has to know of a script.
#[derive(Default)]
pub(crate) struct Notes {
    /// For error messages: the view path of each step.
    pub(crate) step_paths: Vec<PathBuf>,
    /// Trees that only the keeper may clone, in the order in which they are wanted.
    pub(crate) trees: Vec<KeeperTree>,
    /// For reports: what each rule is about.
    pub(crate) rules: Vec<Rule>,
    /// Whether there are stand-ins to wait for.
    pub(crate) awaits: bool,
}

/// A script while it is written.
pub(super) struct Draft<'m> {
    memory: &'m SharedMemory<Sheet>,
    steps: Vec<Step<'m>>,
    private_places: Vec<&'m CStr>,
    pub(super) doors: Doors,
    /// Frames that are mounts of their own, to be sealed when their contents are in place.
    frames: Vec<PathBuf>,
    /// Whether the box's user is its keeper's.
    pub(super) is_keepers_user: bool,
    notes: Notes,
}

/// Who opens a tree.
enum Opener {
    Init,
    Keeper,
}

/// Works the plan and its tier's wall out and lets init have it.
pub(super) fn publish(
    plan: &Plan,
    wall: &mut Wall<'_>,
    host: &Host,
    memory: &SharedMemory<Sheet>,
) -> Result<Notes, LaunchError> {
    let mut rules = std::mem::take(&mut wall.rules);
    if plan.watch == Watch::Files {
        rules.extend(watched::rules());
    }
    let mut draft = Draft {
        memory,
        steps: Vec::with_capacity(plan.view.len() * 2 + 32),
        private_places: Vec::new(),
        doors: Doors::default(),
        frames: Vec::new(),
        is_keepers_user: plan.identity.uid == rustix::process::geteuid().as_raw(),
        notes: Notes::default(),
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
        draft.place(entry, &own)?;
        if entry.is_writable() {
            grants.push((draft.path(&entry.path)?, ALL_RIGHTS));
        }
    }
    for frame in std::mem::take(&mut draft.frames) {
        let at = draft.relative(&frame)?;
        draft.push(Step::Seal { at }, &frame);
    }
    draft.show_all(plan)?;
    draft.devices()?;
    for piece in std::mem::take(&mut wall.furniture) {
        draft.furnish(plan, &piece)?;
        if let Furniture::Sockets { at } = &piece {
            let at = draft.path(at)?;
            grants.push((at, ALL_RIGHTS));
            draft.private_places.push(at);
        }
    }
    grants.extend(COMMON_GRANTS);
    let landlock = match host.landlock_abi {
        Some(abi) if wall.landlock == Landlocked::Yes => {
            Some(Landlock::at(abi, draft.list(&grants)?))
        }
        _ => None,
    };
    let arguments = wall.argv.iter().map(|word| c_string(word, "an argument"));
    let arguments = arguments.collect::<Result<Vec<_>, _>>()?;
    let variables = wall.env.iter().map(variable);
    let variables = variables.collect::<Result<Vec<_>, _>>()?;
    let (told, told_rules) = match wall.told.take() {
        Some(Told { file, rules }) => (Some(draft.path(&file)?), rules),
        None => (None, Vec::new()),
    };
    let script = Script {
        steps: draft.list(&draft.steps)?,
        doors: draft.doors,
        private_places: draft.list(&draft.private_places)?,
        program: draft.path(&wall.program)?,
        argv: CStrings::put(memory, &arguments).map_err(no_room)?,
        env: CStrings::put(memory, &variables).map_err(no_room)?,
        workdir: draft.path(wall.workdir)?,
        filter: draft.list(&filter::compile(&rules))?,
        rules: draft.list(&rules)?,
        limits: draft.list(&wall.limits)?,
        usual_files: wall.usual_files,
        descriptors: wall.descriptors,
        landlock,
        told,
        counts_cpu: plan.limits.cpu_time.is_some(),
        has_entry: plan.entry != Entry::Closed,
        watch: plan.watch,
    };
    // Numbers that are told follow those of the filter's own.
    rules.extend(told_rules);
    let notes = Notes {
        rules,
        ..draft.notes
    };
    memory.publish(script).map_err(no_room)?;
    Ok(notes)
}

fn no_room(errno: Errno) -> LaunchError {
    LaunchError::at(Stage::View)(errno)
}

impl<'m> Draft<'m> {
    fn list<T: Copy>(&self, values: &[T]) -> Result<&'m [T], LaunchError> {
        self.memory.put_all(values).map_err(no_room)
    }

    pub(super) fn bytes(&self, bytes: &[u8]) -> Result<&'m [u8], LaunchError> {
        self.list(bytes)
    }

    fn text(&self, text: &OsStr, what: &'static str) -> Result<&'m CStr, LaunchError> {
        let text = c_string(text, what)?;
        self.memory.put_c_str(&text).map_err(no_room)
    }

    pub(super) fn path(&self, path: &Path) -> Result<&'m CStr, LaunchError> {
        self.text(path.as_os_str(), "a path")
    }

    /// A path as seen from the new root.
    pub(super) fn relative(&self, path: &Path) -> Result<&'m CStr, LaunchError> {
        self.path(path.strip_prefix("/").unwrap_or(path))
    }

    /// A directory of an overlay.
    fn layer(&self, path: &Path) -> Result<&'m CStr, LaunchError> {
        self.text(OsStr::from_bytes(&escape_layer(path)), "an overlay path")
    }

    /// Where to mount.
    fn spot(&self, path: &Path, own: &Own<'_>) -> Result<Place<'m>, LaunchError> {
        Ok(Place {
            path: self.relative(path)?,
            ours: is_all_own(path, own),
        })
    }

    pub(super) fn push(&mut self, step: Step<'m>, path: &Path) {
        self.steps.push(step);
        self.notes.step_paths.push(path.to_owned());
    }

    /// Who opens a tree of the host's.
    fn opener(&self, ownership: Ownership) -> Opener {
        match (ownership, self.is_keepers_user) {
            (Ownership::Host, _) | (Ownership::Image, true) => Opener::Init,
            (Ownership::Mapped, _) | (Ownership::Image, false) => Opener::Keeper,
        }
    }

    /// Notes a tree for the keeper to clone. The next step must be the one that wants it.
    pub(super) fn keeper_tree(&mut self, tree: KeeperTree) {
        self.notes.trees.push(tree);
    }

    /// The same for a tree whose owner is mapped.
    fn mapped_tree(&mut self, source: &Path, flags: u64) {
        self.keeper_tree(KeeperTree {
            source: source.to_owned(),
            flags,
            ownership: Ownership::Mapped,
            made: Made::Clone,
        })
    }

    fn place(&mut self, entry: &View, own: &Own<'_>) -> Result<(), LaunchError> {
        let path = &entry.path;
        self.parents(path, own)?;
        match &entry.shows {
            Shows::Frame if is_in_own(path, own) => {
                let at = self.relative(path)?;
                self.push(Step::Directory { at, mode: 0o755 }, path);
            }
            Shows::Frame => {
                self.private(path, 0o755, own)?;
                self.frames.push(path.clone());
            }
            Shows::Link(target) => {
                let step = Step::Link {
                    at: self.relative(path)?,
                    target: self.path(target)?,
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
                let at = self.spot(path, own)?;
                let step = match self.opener(*ownership) {
                    Opener::Init => Step::Bind {
                        source: self.path(source)?,
                        at,
                        flags,
                        only: None,
                    },
                    Opener::Keeper => {
                        self.keeper_tree(KeeperTree {
                            source: source.to_owned(),
                            flags,
                            ownership: *ownership,
                            made: Made::Clone,
                        });
                        Step::Attach { at }
                    }
                };
                self.push(step, path);
            }
            Shows::Private { mode } => {
                self.mount_point(path, Kind::Directory, own)?;
                self.private_places.push(self.path(path)?);
                self.private(path, *mode, own)?;
            }
            Shows::Hidden(kind) | Shows::StandIn(kind) => {
                self.mount_point(path, *kind, own)?;
                if matches!(entry.shows, Shows::StandIn(_)) && !self.notes.awaits {
                    self.notes.awaits = true;
                    self.push(Step::Await, path);
                }
                let step = Step::Cover {
                    at: self.spot(path, own)?,
                    kind: *kind,
                };
                self.push(step, path);
            }
            Shows::Overlay {
                lower,
                stand_ins,
                mask,
                changes,
                scratch,
                ownership,
            } => {
                self.mount_point(path, Kind::Directory, own)?;
                self.mask(mask, path)?;
                let lower = match ownership {
                    Ownership::Host | Ownership::Image if !mask.is_empty() => {
                        Lower::Masked(self.above_mask(lower)?)
                    }
                    Ownership::Mapped if !mask.is_empty() => {
                        self.mapped_tree(lower, mount_flag::READ_ONLY);
                        let here = path.strip_prefix("/").unwrap_or(path);
                        Lower::MaskedTree(self.above_mask(here)?)
                    }
                    Ownership::Host | Ownership::Image => {
                        let mut layers = Vec::new();
                        if let Some(stand_ins) = stand_ins {
                            layers.extend(escape_layer(stand_ins));
                            layers.push(b':');
                        }
                        layers.extend(escape_layer(lower));
                        Lower::Path(self.text(OsStr::from_bytes(&layers), "an overlay path")?)
                    }
                    Ownership::Mapped => {
                        self.mapped_tree(lower, mount_flag::READ_ONLY);
                        Lower::Tree {
                            above: match stand_ins {
                                Some(stand_ins) => Some(self.layer(stand_ins)?),
                                None => None,
                            },
                        }
                    }
                };
                let step = Step::Overlay {
                    lower,
                    upper: self.layer(changes)?,
                    work: self.layer(scratch)?,
                    at: self.spot(path, own)?,
                };
                self.push(step, path);
                if !mask.is_empty() {
                    self.push(Step::EndMask, path);
                }
            }
        }
        Ok(())
    }

    /// A `lowerdir` value: the mask, and below it a directory.
    fn above_mask(&self, lower: &Path) -> Result<&'m CStr, LaunchError> {
        let mut layers = MASK.as_bytes().to_vec();
        layers.push(b':');
        layers.extend(escape_layer(lower));
        self.text(OsStr::from_bytes(&layers), "an overlay path")
    }

    /// The layer of an overlay at `path` that hides what its lower directory has.
    fn mask(&mut self, mask: &[MaskEntry], path: &Path) -> Result<(), LaunchError> {
        if mask.is_empty() {
            return Ok(());
        }
        self.push(Step::BeginMask, path);
        for entry in mask {
            let at = self.path(&Path::new(MASK).join(&entry.path))?;
            let step = match &entry.shows {
                MaskShows::Absent => Step::Whiteout { at },
                MaskShows::Empty => Step::Opaque { at },
                MaskShows::Directory { mode } => Step::Directory { at, mode: *mode },
                MaskShows::Text { bytes, mode } => Step::Text {
                    at,
                    bytes: self.bytes(bytes)?,
                    mode: *mode,
                },
            };
            self.push(step, &path.join(&entry.path));
        }
        Ok(())
    }

    /// A directory of the one file system that all private directories share, and with it their bound.
    fn private(&mut self, path: &Path, mode: u32, own: &Own<'_>) -> Result<(), LaunchError> {
        let name = self.steps.len().to_string();
        let step = Step::Private {
            name: self.text(OsStr::new(&name), "a name")?,
            at: self.spot(path, own)?,
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
            let at = self.relative(parent)?;
            self.push(Step::Directory { at, mode: 0o755 }, parent);
        }
        Ok(())
    }

    /// Something to mount on, where the directory around it is the box's own.
    fn mount_point(&mut self, path: &Path, kind: Kind, own: &Own<'_>) -> Result<(), LaunchError> {
        if is_in_own(path, own) {
            let at = self.relative(path)?;
            let step = match kind {
                Kind::Directory => Step::Directory { at, mode: 0o755 },
                Kind::File => Step::Touch { at },
            };
            self.push(step, path);
        }
        Ok(())
    }

    /// Something a tier needs, in a directory of our making.
    fn furnish(&mut self, plan: &Plan, piece: &Furniture) -> Result<(), LaunchError> {
        let (Furniture::Program { at, .. }
        | Furniture::Tree { at, .. }
        | Furniture::Text { at, .. }
        | Furniture::Blank { at, .. }
        | Furniture::Device { at }
        | Furniture::Private { at }
        | Furniture::Sockets { at }) = piece;
        let mut above: Vec<&Path> = at.ancestors().skip(1).collect();
        above.reverse();
        for directory in above.into_iter().filter(|path| *path != Path::new("/")) {
            let step = Step::Directory {
                at: self.relative(directory)?,
                mode: 0o755,
            };
            self.push(step, directory);
        }
        let path = self.relative(at)?;
        let place = Place { path, ours: true };
        match piece {
            Furniture::Program { source, .. } => self.furnish_file(plan, source, at)?,
            Furniture::Tree { source, .. } => {
                let mode = 0o755;
                self.push(Step::Directory { at: path, mode }, at);
                let step = Step::Bind {
                    source: self.path(source)?,
                    at: place,
                    flags: mount_flag::READ_ONLY | mount_flag::NO_SUID | mount_flag::NO_DEV,
                    only: None,
                };
                self.push(step, at);
            }
            Furniture::Text { bytes, .. } => {
                let bytes = self.bytes(bytes)?;
                self.push(Step::Write { at: path, bytes }, at);
            }
            Furniture::Blank { size, .. } => {
                self.push(
                    Step::Blank {
                        at: path,
                        size: *size,
                    },
                    at,
                );
            }
            Furniture::Device { .. } => self.furnish_device(at)?,
            Furniture::Private { .. } | Furniture::Sockets { .. } => {
                let mode = 0o755;
                self.push(Step::Directory { at: path, mode }, at);
                let name = self.steps.len().to_string();
                let step = Step::Private {
                    name: self.text(OsStr::new(&name), "a name")?,
                    at: place,
                    mode: 0o700,
                };
                self.push(step, at);
            }
        }
        Ok(())
    }
}

pub(super) fn flags_for(access: Access) -> u64 {
    let common = mount_flag::NO_SUID | mount_flag::NO_DEV;
    match access {
        Access::Read => common | mount_flag::READ_ONLY,
        Access::Write => common,
    }
}

fn c_string(text: &OsStr, what: &'static str) -> Result<CString, LaunchError> {
    CString::new(text.as_bytes()).map_err(|_| LaunchError::Nul { what })
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
