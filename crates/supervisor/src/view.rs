//! From the path table to what the box shows: which host trees, which private directories, what is covered.
//!
//! The table says what may be done at a path; this module asks the host what is there (a directory, a link, nothing
//! yet) and finds a way to make it so. Where there is none, the run is refused.

use crate::error::RunError;
use crate::named;
use crate::stand_in::{self, StandIn};
use belljar_policy::{Access, PathTable, Places, Source};
use belljar_sandbox::plan::{self, Identity, Kind, Ownership, Shows, View};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

/// The view, and what had to be put on the host for it.
#[derive(Debug)]
pub(crate) struct BuiltView {
    pub(crate) entries: Vec<View>,
    pub(crate) stand_ins: Vec<StandIn>,
    /// Things the user should know.
    pub(crate) notes: Vec<String>,
}

/// How changes to the working directory are kept.
pub(crate) enum Changes<'a> {
    /// Made in place.
    Direct,
    /// Kept aside, below this directory.
    Overlay(&'a Path),
}

/// These belong to every box anew; whatever the host has there is not shown.
const OWN_TREES: &[&str] = &["/proc", "/sys", "/dev"];

pub(crate) struct Builder<'a> {
    pub(crate) table: &'a PathTable,
    pub(crate) places: &'a Places,
    pub(crate) identity: Identity,
    pub(crate) private_bytes: u64,
    pub(crate) changes: Changes<'a>,
    pub(crate) built: BuiltView,
    /// Paths the table has a word of its own on.
    named: HashSet<&'a OsStr>,
    /// Directories that contain a hidden path.
    above_hidden: HashSet<&'a OsStr>,
}

impl<'a> Builder<'a> {
    pub(crate) fn new(
        table: &'a PathTable,
        places: &'a Places,
        identity: Identity,
        private_bytes: u64,
        changes: Changes<'a>,
    ) -> Self {
        let built = BuiltView { entries: Vec::new(), stand_ins: Vec::new(), notes: Vec::new() };
        let named = table.iter().map(|(path, _)| path.as_os_str()).collect();
        let above_hidden = table
            .iter()
            .filter(|(_, entry)| entry.access == Access::Hidden)
            .flat_map(|(path, _)| path.ancestors().skip(1).map(Path::as_os_str))
            .collect();
        Self { table, places, identity, private_bytes, changes, built, named, above_hidden }
    }

    /// Works the whole table off, parents first.
    pub(crate) fn build(mut self) -> Result<BuiltView, RunError> {
        self.show("/", Shows::Frame);
        for (path, entry) in self.table.iter() {
            if path == Path::new("/") {
                if entry.access >= Access::Read {
                    self.top_level();
                }
            } else if path == self.places.home && entry.access == Access::Read {
                self.home();
            } else {
                self.place(path, entry.access, &entry.origin.source)?;
            }
        }
        self.hide_by_name();
        Ok(self.built)
    }

    fn show(&mut self, path: impl Into<PathBuf>, shows: Shows) {
        let path = path.into();
        // A later word about the same path replaces the earlier one.
        self.built.entries.retain(|entry| entry.path != path);
        self.built.entries.push(View { path, shows });
    }

    /// Every entry of the host's root that no rule names.
    fn top_level(&mut self) {
        for (path, kind) in children(Path::new("/")) {
            if !OWN_TREES.iter().any(|own| path == Path::new(own)) && !self.is_named(&path) {
                self.show_host(path, kind, plan::Access::Read);
            }
        }
    }

    /// The home directory is built anew from what may be seen of it, so that a hidden path stays hidden even if it
    /// comes into being while the box runs. New files there are the box's own and vanish with it.
    fn home(&mut self) {
        let home = self.places.home.clone();
        if !home.is_dir() {
            return;
        }
        self.show(&home, Shows::Private { bytes: self.private_bytes, mode: 0o755 });
        self.expand(&home);
    }

    fn expand(&mut self, directory: &Path) {
        for (path, kind) in children(directory) {
            if self.is_named(&path) {
                continue;
            }
            if matches!(kind, Found::Directory) && self.hides_below(&path) {
                self.show(&path, Shows::Frame);
                self.expand(&path);
            } else {
                self.show_host(path, kind, plan::Access::Read);
            }
        }
    }

    /// Whether the table has a word of its own on this very path.
    fn is_named(&self, path: &Path) -> bool {
        self.named.contains(path.as_os_str())
    }

    fn hides_below(&self, path: &Path) -> bool {
        self.above_hidden.contains(path.as_os_str())
    }

    fn show_host(&mut self, path: PathBuf, found: Found, access: plan::Access) {
        let shows = match found {
            Found::Link(target) => Shows::Link(target),
            Found::Directory => self.host(&path, Kind::Directory, access),
            Found::Other => self.host(&path, Kind::File, access),
        };
        self.show(path, shows);
    }

    fn host(&self, source: &Path, kind: Kind, access: plan::Access) -> Shows {
        // Only what is the user's own is mapped: everything else keeps its owner, and with it its protection.
        let mapped = self.identity.uid != self.identity.owner_uid
            && (access == plan::Access::Write || source.starts_with(&self.places.home) || source.starts_with(&self.places.work));
        Shows::Host {
            source: source.to_owned(),
            kind,
            access,
            ownership: if mapped { Ownership::Mapped } else { Ownership::Host },
        }
    }

    /// One entry of the table.
    fn place(&mut self, named: &Path, access: Access, source: &Source) -> Result<(), RunError> {
        let Some(link) = resolve_parent(named) else {
            return self.place_missing(named, access, source);
        };
        match fs::symlink_metadata(&link) {
            Err(_) => self.place_missing(&link, access, source),
            Ok(metadata) if metadata.is_symlink() => self.place_link(&link, access, source),
            Ok(metadata) => {
                let kind = if metadata.is_dir() { Kind::Directory } else { Kind::File };
                self.place_existing(&link, kind, access);
                Ok(())
            }
        }
    }

    fn place_existing(&mut self, path: &Path, kind: Kind, access: Access) {
        let shows = match access {
            Access::Hidden if self.around(path) == Around::Own => {
                // Not shown in the first place.
                self.built.entries.retain(|entry| !entry.path.starts_with(path));
                return;
            }
            Access::Hidden => Shows::Hidden(kind),
            Access::Private if kind == Kind::Directory => {
                Shows::Private { bytes: self.private_bytes, mode: if path == self.places.home { 0o755 } else { 0o1777 } }
            }
            Access::Private => return,
            Access::Read | Access::Protected => {
                if access == Access::Protected
                    && kind == Kind::Directory
                    && let Ok(Some(stand_in)) = StandIn::join(path)
                {
                    self.built.stand_ins.push(stand_in);
                }
                self.host(path, kind, plan::Access::Read)
            }
            Access::Write => match self.changes {
                Changes::Overlay(store) if kind == Kind::Directory => self.overlay(path, store),
                _ => self.host(path, kind, plan::Access::Write),
            },
        };
        // Redundant where the parent already shows the same.
        if matches!(access, Access::Read) && self.around(path) == Around::HostRead && !self.covered(path) {
            return;
        }
        if matches!(access, Access::Hidden | Access::Protected) {
            self.pin_above(path);
        }
        self.show(path, shows);
    }

    /// A mount holds its own path, not the directories above it: whoever may rename those can put another tree in
    /// their place. A directory that is a mount itself can't be renamed either, so they become that.
    fn pin_above(&mut self, path: &Path) {
        let above: Vec<PathBuf> = path
            .ancestors()
            .skip(1)
            .take_while(|ancestor| self.around(ancestor) == Around::HostWrite && !self.covered(ancestor))
            .map(Path::to_owned)
            .collect();
        for directory in above.into_iter().rev() {
            let shows = self.host(&directory, Kind::Directory, plan::Access::Write);
            self.show(directory, shows);
        }
    }

    fn overlay(&self, path: &Path, store: &Path) -> Shows {
        let name = overlay_name(path);
        let mapped = self.identity.uid != self.identity.owner_uid;
        Shows::Overlay {
            lower: path.to_owned(),
            stand_ins: Some(store.join(&name).join("stand-ins")),
            changes: store.join(&name).join("changes"),
            scratch: store.join(&name).join("scratch"),
            ownership: if mapped { Ownership::Mapped } else { Ownership::Host },
        }
    }

    /// A rule on a symbolic link goes for what it points to; and where the link itself could be replaced, for it too.
    fn place_link(&mut self, link: &Path, access: Access, source: &Source) -> Result<(), RunError> {
        let Ok(target) = link.canonicalize() else {
            // Dangling: whoever makes the target later makes what the rule speaks of.
            if access <= Access::Protected && self.around(link) == Around::HostWrite {
                self.show(link, Shows::Hidden(Kind::File));
            }
            return Ok(());
        };
        let kind = if target.is_dir() { Kind::Directory } else { Kind::File };
        match access {
            Access::Hidden | Access::Protected => {
                if self.around(&target) != Around::Nothing {
                    self.place(&target, access, source)?;
                }
                // The kernel mounts over a link as over anything else; it can then be neither followed nor replaced.
                if self.around(link) == Around::HostWrite {
                    let shows = match access {
                        Access::Protected if kind == Kind::File => self.host(&target, kind, plan::Access::Read),
                        _ => Shows::Hidden(Kind::File),
                    };
                    if kind == Kind::File || access == Access::Hidden {
                        self.show(link, shows);
                    }
                }
            }
            Access::Read | Access::Write => {
                if let (Around::Own, Ok(to)) = (self.around(link), fs::read_link(link)) {
                    self.show(link, Shows::Link(to));
                }
                self.place_existing(&target, kind, access);
            }
            Access::Private => {}
        }
        Ok(())
    }

    /// A rule on a path that does not exist.
    fn place_missing(&mut self, path: &Path, access: Access, source: &Source) -> Result<(), RunError> {
        match (access, self.around(path)) {
            (Access::Private, Around::Own) => {
                self.show(path, Shows::Private { bytes: self.private_bytes, mode: 0o1777 });
            }
            (Access::Hidden | Access::Protected, Around::HostWrite) => self.stand_in(path)?,
            (Access::Hidden | Access::Protected, Around::Overlay) => self.stand_in_layer(path)?,
            (Access::Read | Access::Write, _) if *source == Source::Document => {
                let what = if access == Access::Write { "writable_paths" } else { "readable_paths" };
                self.built.notes.push(format!("{what}: {} does not exist and is left out", path.display()));
            }
            _ => {}
        }
        Ok(())
    }

    /// Puts a directory where the path, or the first part of it that is missing, would be created.
    fn stand_in(&mut self, path: &Path) -> Result<(), RunError> {
        let missing = first_missing(path);
        if self.built.entries.iter().any(|entry| entry.path == missing) {
            return Ok(());
        }
        self.pin_above(&missing);
        let identity = self.identity;
        let owner = (rustix::process::geteuid().is_root()).then_some((identity.owner_uid, identity.owner_gid));
        match StandIn::put(&missing, owner) {
            Ok(stand_in) => {
                self.built.stand_ins.extend(stand_in);
                let kind = stand_in::kind_of(&missing);
                self.show(missing, Shows::Hidden(kind));
                Ok(())
            }
            // A directory the user can't write to, nor can the agent.
            Err(rustix::io::Errno::ACCESS | rustix::io::Errno::ROFS | rustix::io::Errno::PERM) => Ok(()),
            Err(errno) => Err(RunError::Refused {
                what: format!("{} is protected and can't be held: {}", missing.display(), std::io::Error::from(errno)),
                hint: "use workspace: overlay, or list the path in writable_paths".into(),
            }),
        }
    }

    /// The same where changes are kept aside: the stand-in is a layer of its own, the host sees nothing.
    fn stand_in_layer(&mut self, path: &Path) -> Result<(), RunError> {
        let missing = first_missing(path);
        let layer = self.built.entries.iter().rev().find_map(|entry| match &entry.shows {
            Shows::Overlay { stand_ins: Some(layer), .. } if missing.starts_with(&entry.path) => {
                Some(layer.join(missing.strip_prefix(&entry.path).ok()?))
            }
            _ => None,
        });
        if let Some(layer) = layer
            && !self.built.entries.iter().any(|entry| entry.path == missing)
        {
            let kind = stand_in::kind_of(&missing);
            let parent = layer.parent().unwrap_or(&layer);
            let made = match kind {
                Kind::Directory => fs::create_dir_all(&layer),
                Kind::File => fs::create_dir_all(parent).and_then(|()| fs::write(&layer, b"")),
            };
            made.map_err(|source| RunError::State { path: layer, source })?;
            self.show(missing, Shows::Hidden(kind));
        }
        Ok(())
    }

    /// What surrounds a path: the nearest entry above it.
    fn around(&self, path: &Path) -> Around {
        let nearest = self
            .built
            .entries
            .iter()
            .filter(|entry| entry.path != path && path.starts_with(&entry.path))
            .max_by_key(|entry| entry.path.as_os_str().len());
        match nearest.map(|entry| &entry.shows) {
            Some(Shows::Frame | Shows::Private { .. }) => Around::Own,
            Some(Shows::Host { access: plan::Access::Write, .. }) => Around::HostWrite,
            Some(Shows::Host { .. }) => Around::HostRead,
            Some(Shows::Overlay { .. }) => Around::Overlay,
            Some(Shows::Hidden(_) | Shows::Link(_)) | None => Around::Nothing,
        }
    }

    fn covered(&self, path: &Path) -> bool {
        self.built.entries.iter().any(|entry| entry.path == path)
    }

    /// Covers files that are hidden by name.
    fn hide_by_name(&mut self) {
        let names: Vec<&str> = self.table.any_named().iter().map(|(name, _)| name.as_str()).collect();
        if names.is_empty() || self.table.mode() == belljar_policy::FsMode::None {
            return;
        }
        let work = self.places.work.clone();
        let everywhere = self.table.any_named().iter().any(|(_, origin)| origin.source != Source::BuiltIn);
        let mut starts = vec![self.places.home.clone()];
        // Beside the working directory and above it, but not from the root, which is not the user's.
        starts.extend(work.ancestors().skip(1).take(2).filter(|path| path.components().count() > 1).map(Path::to_owned));
        if everywhere {
            starts.push(work.clone());
        }
        starts.retain(|path| path.is_dir());
        starts.sort();
        starts.dedup_by(|deeper, upper| deeper.starts_with(upper) && *deeper != work);
        let leave_out = |path: &Path| path == work && !everywhere;
        let found = named::search(&starts, &names, &leave_out);
        let cover = |builder: &mut Self, path: &Path, kind| {
            let visible = matches!(builder.around(path), Around::HostRead | Around::HostWrite | Around::Overlay);
            let hidden = builder.table.decide(path, belljar_policy::FileOp::Read);
            if !hidden.is_allow() && kind == Kind::File || kind == Kind::Directory {
                if visible {
                    builder.show(path, Shows::Hidden(kind));
                } else {
                    builder.built.entries.retain(|entry| entry.path != path);
                }
            }
        };
        for file in &found.files {
            cover(self, file, Kind::File);
        }
        for directory in found.unsearched.iter().filter(|path| !work.starts_with(path)) {
            cover(self, directory, Kind::Directory);
        }
        if !found.unsearched.is_empty() {
            self.built.notes.push(format!(
                "{} directories are hidden because the search for {} files ended before them (first: {})",
                found.unsearched.len(),
                names.first().unwrap_or(&""),
                found.unsearched.first().map(|path| path.display().to_string()).unwrap_or_default(),
            ));
        }
    }
}

/// What is around a path in the view so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Around {
    /// The box's own directory.
    Own,
    /// The host's, read-only.
    HostRead,
    /// The host's, writable.
    HostWrite,
    /// The host's with changes kept aside.
    Overlay,
    /// Nothing that can be looked into.
    Nothing,
}

/// What a directory entry of the host's is.
enum Found {
    Directory,
    Link(PathBuf),
    Other,
}

fn children(directory: &Path) -> Vec<(PathBuf, Found)> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| {
            let kind = entry.file_type().ok()?;
            let found = if kind.is_symlink() {
                Found::Link(fs::read_link(entry.path()).ok()?)
            } else if kind.is_dir() {
                Found::Directory
            } else {
                Found::Other
            };
            Some((entry.path(), found))
        })
        .collect()
}

/// The path with every symbolic link before its last component resolved; `None` if its parent is not there.
fn resolve_parent(path: &Path) -> Option<PathBuf> {
    let parent = path.parent()?.canonicalize().ok()?;
    Some(parent.join(path.file_name()?))
}

/// The uppermost part of the path that does not exist.
fn first_missing(path: &Path) -> PathBuf {
    let mut missing = path.to_owned();
    while let Some(parent) = missing.parent() {
        if fs::symlink_metadata(parent).is_ok() {
            break;
        }
        missing = parent.to_owned();
    }
    missing
}

/// A directory name for the changes of one writable path.
pub(crate) fn overlay_name(path: &Path) -> String {
    path.to_string_lossy().trim_matches('/').replace('%', "%25").replace('/', "%2F")
}
