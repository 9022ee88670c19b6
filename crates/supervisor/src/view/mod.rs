//! From the path table to what the box shows: which host trees, which private directories, what is covered.
//!
//! The table says what may be done at a path; this module asks the host what is there (a directory, a link, nothing
//! yet) and finds a way to make it so. Where there is none, the run is refused.

mod answer;
mod hidden_names;
mod home_copy;
mod image;
mod keys;
mod missing;
mod tree;

pub(crate) use answer::{Answers, Seen};
use home_copy::HomeCopy;
pub(crate) use image::demand_image_as_ground;
pub(crate) use tree::{Tree, is_program};

use crate::error::RunError;
use crate::home::{HomeLayers, HomeMask};
use crate::key_files::KnownSecret;
use crate::stand_in;
use belljar_policy::{Access, PathTable, Places, Source};
use belljar_sandbox::plan::{self, Identity, Kind, Ownership, Shows, View};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The view, and what had to be put on the host for it.
#[derive(Debug)]
pub(crate) struct BuiltView {
    pub(crate) entries: Vec<View>,
    /// What the host must have, for a time, for something to be covered.
    pub(crate) stand_ins: Vec<(PathBuf, Kind)>,
    /// Things the user should know.
    pub(crate) notes: Vec<String>,
    /// Files that are seen with other contents.
    pub(crate) altered: Vec<(PathBuf, Arc<[u8]>)>,
    /// What was done about files that hold keys, for the user to know before the program starts.
    pub(crate) withheld: Vec<String>,
    /// What of the host's home does not show through in the box's copy of it.
    pub(crate) home_mask: HomeMask,
    /// What is mounted in that copy, by path below the home.
    pub(crate) mounted_in_home: Vec<(PathBuf, Kind)>,
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
    pub(crate) changes: Changes<'a>,
    /// Whose files are there where no rule says anything, if not the host's.
    image: Option<&'a Tree>,
    pub(crate) built: BuiltView,
    /// Where each path is in `built.entries`.
    index: HashMap<PathBytes, usize>,
    /// Directories shown entry by entry, each with those of its entries that the table names.
    expanded: HashMap<PathBytes, Vec<PathBuf>>,
    /// Directories already resolved: most rules share a few.
    real: HashMap<PathBytes, Option<PathBuf>>,
    /// Directories that are there, and are no box's stand-ins.
    plain: HashSet<PathBytes>,
    /// Directories already asked about: could the agent make entries there?
    creatable: HashMap<PathBytes, bool>,
    /// Rules on symbolic links, to be placed last.
    links: Vec<(PathBuf, Access, Source)>,
    /// Paths that rules name and that go through links.
    ways: BTreeSet<PathBuf>,
    /// Paths the table has a word of its own on.
    named: HashSet<&'a OsStr>,
    /// Directories that contain a hidden path.
    above_hidden: HashSet<&'a OsStr>,
    /// Directories that contain a file which the user hides, or which holds a secret.
    above_files: HashSet<&'a OsStr>,
    /// Directories from where files were searched for that are hidden by name.
    searched: Vec<PathBuf>,
    /// What no file shall show; `None` where nobody looks.
    secrets: Option<&'a [KnownSecret]>,
    /// Where the layers of a private home are.
    home_layers: Option<HomeLayers>,
    /// What the home directory shows.
    home_copy: HomeCopy,
}

impl<'a> Builder<'a> {
    pub(crate) fn new(
        table: &'a PathTable,
        places: &'a Places,
        identity: Identity,
        changes: Changes<'a>,
    ) -> Self {
        let built = BuiltView {
            entries: Vec::new(),
            stand_ins: Vec::new(),
            notes: Vec::new(),
            altered: Vec::new(),
            withheld: Vec::new(),
            home_mask: HomeMask::new(),
            mounted_in_home: Vec::new(),
        };
        let named = table.iter().map(|(path, _)| path.as_os_str()).collect();
        let above_hidden = table
            .iter()
            .filter(|(_, entry)| entry.access == Access::Hidden)
            .flat_map(|(path, _)| path.ancestors().skip(1).map(Path::as_os_str))
            .collect();
        let above_files = table
            .iter()
            .filter(|(path, entry)| {
                entry.access == Access::Hidden
                    && entry.origin.source != Source::BuiltIn
                    && !path.is_dir()
            })
            .flat_map(|(path, _)| path.ancestors().skip(1).map(Path::as_os_str))
            .collect();
        Self {
            table,
            places,
            identity,
            changes,
            image: None,
            built,
            index: HashMap::new(),
            expanded: HashMap::new(),
            real: known_real(places),
            plain: HashSet::new(),
            creatable: HashMap::new(),
            links: Vec::new(),
            ways: BTreeSet::new(),
            named,
            above_hidden,
            above_files,
            searched: Vec::new(),
            secrets: None,
            home_layers: None,
            home_copy: HomeCopy::None,
        }
    }

    /// Keeps what the box changes in its home directory here.
    pub(crate) fn with_home(mut self, layers: Option<HomeLayers>) -> Self {
        self.home_layers = layers;
        self
    }

    /// Has files that hold keys shown without them: these secrets, and what looks like one in a start-up file.
    pub(crate) fn without_keys(mut self, secrets: &'a [KnownSecret]) -> Self {
        self.secrets = Some(secrets);
        self
    }

    /// The same on the files of an image.
    pub(crate) fn on_image(mut self, image: Option<&'a Tree>) -> Self {
        self.image = image;
        self
    }

    /// Works the whole table off, parents first. `links`: files that are shown elsewhere and that an image lacks.
    pub(crate) fn build(mut self, links: &[(PathBuf, PathBuf)]) -> Result<BuiltView, RunError> {
        self.place_all()?;
        self.withhold_keys();
        self.place_links(links);
        if self.home_copy != HomeCopy::None {
            self.set_mask();
        }
        self.built.mounted_in_home = self.mounted_in_copy();
        self.built.entries.sort_by(|a, b| {
            a.path
                .as_os_str()
                .as_bytes()
                .cmp(b.path.as_os_str().as_bytes())
        });
        Ok(self.built)
    }

    fn place_all(&mut self) -> Result<(), RunError> {
        self.show("/", Shows::Frame);
        for (path, entry) in self.table.iter() {
            if path == Path::new("/") {
                match (self.image, entry.access) {
                    (Some(_), Access::Image) => self.image_top_level(),
                    // Nothing else: see `demand_image_as_ground`.
                    (Some(_), _) => {}
                    (None, Access::Read | Access::Protected | Access::Write) => self.top_level(),
                    // A home at the root is no home: nobody's is, see `find_places`.
                    (None, Access::CopyOnWrite) => self.top_level(),
                    (None, Access::Hidden | Access::Private | Access::Image) => {}
                }
            } else if self.image.is_some() && !self.is_in_hosts(path) {
                self.place_on_image(path, entry.access, &entry.origin.source)?;
            } else if path == self.places.home && entry.access == Access::Read {
                self.home();
            } else if path == self.places.home && entry.access == Access::CopyOnWrite {
                self.copied_home();
            } else {
                self.place(path, entry.access, &entry.origin.source)?;
            }
        }
        // Where links lead is known only when everything else has its place.
        for (link, access, source) in std::mem::take(&mut self.links) {
            self.place_link(&link, access, &source)?;
        }
        for named in std::mem::take(&mut self.ways) {
            self.hold_links(&named);
        }
        self.place_behind_links()?;
        self.hide_by_name();
        Ok(())
    }

    fn show(&mut self, path: impl Into<PathBuf>, shows: Shows) {
        let path = path.into();
        // A later word about the same path replaces the earlier one.
        match self
            .index
            .get(path.as_os_str().as_bytes())
            .and_then(|at| self.built.entries.get_mut(*at))
        {
            Some(entry) => entry.shows = shows,
            None => {
                self.index.insert(
                    path.as_os_str().as_bytes().to_vec(),
                    self.built.entries.len(),
                );
                self.built.entries.push(View { path, shows });
            }
        }
    }

    /// Takes a path out of the view, with all below it.
    fn unshow(&mut self, path: &Path) {
        if self.covered(path) {
            self.built
                .entries
                .retain(|entry| !entry.path.starts_with(path));
            let places = self.built.entries.iter().enumerate();
            self.index = places
                .map(|(at, entry)| (entry.path.as_os_str().as_bytes().to_vec(), at))
                .collect();
        }
    }

    fn shown(&self, path: &[u8]) -> Option<&Shows> {
        self.index
            .get(path)
            .and_then(|at| self.built.entries.get(*at))
            .map(|entry| &entry.shows)
    }

    /// Every entry of the host's root that no rule names.
    ///
    /// A cover over a file goes when somebody on the host puts another file there, and for a moment that one could be read.
    /// So what the user hides is not covered: the directories above it are the box's own, with what else is in them shown
    /// entry by entry, and a name that was left out does not come in. (Not where the box writes: it makes entries there.)
    fn top_level(&mut self) {
        for (path, kind) in children(Path::new("/")) {
            if OWN_TREES.iter().any(|own| path == Path::new(own)) || self.is_named(&path) {
                continue;
            }
            let is_above = self.above_files.contains(path.as_os_str());
            if is_above && matches!(kind, Found::Directory) {
                self.show(&path, Shows::Frame);
                self.expand(&path);
            } else {
                self.show_host(path, kind, plan::Access::Read);
            }
        }
    }

    /// The home directory is built anew from what may be seen of it, so that a hidden path stays hidden even if it
    /// comes into being while the box runs.
    fn home(&mut self) {
        let home = self.places.home.clone();
        if !home.is_dir() {
            return;
        }
        self.show(&home, Shows::Frame);
        self.expand(&home);
    }

    fn expand(&mut self, directory: &Path) {
        let mut named = Vec::new();
        for (path, kind) in children(directory) {
            if self.is_named(&path) {
                named.push(path);
                continue;
            }
            if matches!(kind, Found::Directory) && self.hides_below(&path) {
                self.show(&path, Shows::Frame);
                self.expand(&path);
            } else {
                self.show_host(path, kind, plan::Access::Read);
            }
        }
        self.expanded
            .insert(directory.as_os_str().as_bytes().to_vec(), named);
    }

    /// Whether the table has a word of its own on this very path.
    fn is_named(&self, path: &Path) -> bool {
        self.named.contains(path.as_os_str())
    }

    /// Whether something below a hidden path is to be seen all the same.
    fn shows_below(&self, hidden: &Path) -> bool {
        let mut entries = self.table.iter();
        entries.any(|(path, entry)| {
            entry.access >= Access::Read && path != hidden && path.starts_with(hidden)
        })
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
            && (access == plan::Access::Write
                || source.starts_with(&self.places.home)
                || source.starts_with(&self.places.work));
        Shows::Host {
            source: source.to_owned(),
            kind,
            access,
            ownership: if mapped {
                Ownership::Mapped
            } else {
                Ownership::Host
            },
        }
    }

    /// One entry of the table.
    fn place(&mut self, named: &Path, access: Access, source: &Source) -> Result<(), RunError> {
        if access == Access::Hidden && self.is_left_out(named) {
            return Ok(());
        }
        let Some(link) = self.resolve_parent(named) else {
            let missing = self.resolve_present(named);
            if missing != named {
                self.ways.insert(named.to_owned());
            }
            return self.place_missing(&missing, access, source);
        };
        if matches!(access, Access::Hidden | Access::Protected) && link != named {
            self.ways.insert(named.to_owned());
        }
        match fs::symlink_metadata(&link) {
            Err(_) => self.place_missing(&link, access, source),
            // Another box's stand-in may go at any moment, so it counts as missing.
            Ok(metadata) if stand_in::may_be_one(&link, &metadata) => {
                self.place_missing(&link, access, source)
            }
            Ok(metadata) if metadata.is_symlink() => {
                self.links.push((link, access, *source));
                Ok(())
            }
            Ok(metadata) => {
                // What the box's user can't read by the host's own permissions needs no cover in a tree that it can't
                // write either. (Root's boxes run as somebody else, for whom root can't try.)
                if access == Access::Hidden
                    && self.around(&link) == Around::HostRead
                    && !rustix::process::geteuid().is_root()
                    && rustix::fs::access(&link, rustix::fs::Access::READ_OK).is_err()
                    && rustix::fs::access(&link, rustix::fs::Access::EXEC_OK).is_err()
                {
                    return Ok(());
                }
                let kind = if metadata.is_dir() {
                    Kind::Directory
                } else {
                    Kind::File
                };
                self.place_existing(&link, kind, access);
                Ok(())
            }
        }
    }

    /// Whether a path is absent from a directory that is shown entry by entry: then there is nothing to hide.
    fn is_left_out(&self, path: &Path) -> bool {
        let around =
            parent_of(path.as_os_str().as_bytes()).and_then(|parent| self.expanded.get(parent));
        around.is_some_and(|named| !named.iter().any(|present| present == path))
    }

    /// The path with every symbolic link before its last component resolved; `None` if its parent is not there.
    fn resolve_parent(&mut self, path: &Path) -> Option<PathBuf> {
        Some(self.real(path.parent()?)?.join(path.file_name()?))
    }

    /// The same where only a part of the way is there.
    fn resolve_present(&mut self, path: &Path) -> PathBuf {
        let present = path
            .ancestors()
            .skip(1)
            .find_map(|above| Some((above, self.real(above)?)));
        match present.map(|(above, real)| (path.strip_prefix(above), real)) {
            Some((Ok(missing), real)) => real.join(missing),
            _ => path.to_owned(),
        }
    }

    /// The same for a whole path: what `canonicalize` says, with each directory on the way asked about once.
    fn real(&mut self, path: &Path) -> Option<PathBuf> {
        if let Some(known) = self.real.get(path.as_os_str().as_bytes()) {
            return known.clone();
        }
        let real = match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) => self.real(parent).and_then(|parent| {
                let here = parent.join(name);
                match rustix::fs::readlink(&here, Vec::new()) {
                    // There, and no link.
                    Err(rustix::io::Errno::INVAL) => Some(here),
                    Ok(_) => here.canonicalize().ok(),
                    Err(_) => None,
                }
            }),
            _ => path.canonicalize().ok(),
        };
        let key = path.as_os_str().as_bytes().to_vec();
        self.real.insert(key, real.clone());
        real
    }

    fn place_existing(&mut self, path: &Path, kind: Kind, access: Access) {
        if self.around(path) == Around::HomeCopy && !self.mounts_in_copy(path, kind, access) {
            return;
        }
        let shows = match access {
            Access::Hidden if self.around(path) == Around::Own => {
                // Not shown in the first place, or no longer.
                self.unshow(path);
                return;
            }
            // Below what is hidden already.
            Access::Hidden if self.around(path) == Around::Nothing => return,
            // Nothing can be put into a cover; a directory of the box's own is as empty but for that.
            Access::Hidden if kind == Kind::Directory && self.shows_below(path) => Shows::Frame,
            Access::Hidden => Shows::Hidden(kind),
            Access::Private if kind == Kind::Directory => match self.kept_empty_home(path) {
                Some(kept) => kept,
                None => Shows::Private {
                    mode: self.private_mode(path),
                },
            },
            Access::Private | Access::Image => return,
            Access::Read | Access::CopyOnWrite | Access::Protected => {
                self.host(path, kind, plan::Access::Read)
            }
            Access::Write => match self.changes {
                Changes::Overlay(store) if kind == Kind::Directory => self.overlay(path, store),
                _ => self.host(path, kind, plan::Access::Write),
            },
        };
        // See `top_level`.
        let is_above = kind == Kind::Directory && self.above_files.contains(path.as_os_str());
        if access == Access::Read && is_above && self.around(path) == Around::Own {
            self.show(path, Shows::Frame);
            self.expand(path);
            return;
        }
        // Redundant where the parent already shows the same.
        if matches!(access, Access::Read)
            && self.around(path) == Around::HostRead
            && !self.covered(path)
        {
            return;
        }
        if matches!(access, Access::Hidden | Access::Protected) {
            self.pin_above(path);
        }
        self.show(path, shows);
    }

    fn private_mode(&self, path: &Path) -> u32 {
        match path == self.places.home {
            true => 0o755,
            false => 0o1777,
        }
    }

    /// A mount holds its own path, not the directories above it: whoever may rename those can put another tree in
    /// their place. A directory that is a mount itself can't be renamed either, so they become that.
    fn pin_above(&mut self, path: &Path) {
        let above: Vec<PathBuf> = path
            .ancestors()
            .skip(1)
            .take_while(|ancestor| {
                self.around(ancestor) == Around::HostWrite && !self.covered(ancestor)
            })
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
            mask: Vec::new(),
            changes: store.join(&name).join("changes"),
            scratch: store.join(&name).join("scratch"),
            ownership: if mapped {
                Ownership::Mapped
            } else {
                Ownership::Host
            },
        }
    }

    /// What surrounds a path: the nearest entry above it.
    fn around(&self, path: &Path) -> Around {
        let mut above = parent_of(path.as_os_str().as_bytes());
        while let Some(parent) = above {
            match self.shown(parent) {
                Some(Shows::Frame | Shows::Private { .. }) => return Around::Own,
                Some(Shows::Host {
                    ownership: Ownership::Image,
                    ..
                }) => return Around::Image,
                Some(Shows::Host {
                    access: plan::Access::Write,
                    ..
                }) => return Around::HostWrite,
                Some(Shows::Host { .. }) => return Around::HostRead,
                Some(Shows::Overlay { .. }) if self.is_copied_home(parent) => {
                    return Around::HomeCopy;
                }
                Some(Shows::Overlay { .. }) => return Around::Overlay,
                Some(Shows::Hidden(_) | Shows::StandIn(_) | Shows::Link(_)) => {
                    return Around::Nothing;
                }
                None => above = parent_of(parent),
            }
        }
        Around::Nothing
    }

    fn sees(&self, path: &Path) -> bool {
        match self.shown(path.as_os_str().as_bytes()) {
            Some(Shows::Host { ownership, .. }) => *ownership != Ownership::Image,
            Some(shows) => matches!(shows, Shows::Overlay { .. }),
            None => match self.around(path) {
                Around::HostRead | Around::HostWrite | Around::Overlay => true,
                Around::HomeCopy => !self.is_masked(path),
                _ => false,
            },
        }
    }

    fn covered(&self, path: &Path) -> bool {
        self.index.contains_key(path.as_os_str().as_bytes())
    }
}

/// The places are resolved already, and so is all above them.
fn known_real(places: &Places) -> HashMap<PathBytes, Option<PathBuf>> {
    let above = places.home.ancestors().chain(places.work.ancestors());
    above
        .map(|path| (path.as_os_str().as_bytes().to_vec(), Some(path.to_owned())))
        .collect()
}

/// What is around a path in the view so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Around {
    /// The box's own directory.
    Own,
    /// The image's.
    Image,
    /// The host's, read-only.
    HostRead,
    /// The host's, writable.
    HostWrite,
    /// The host's with changes kept aside.
    Overlay,
    /// The box's copy of the home directory.
    HomeCopy,
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
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
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

/// A path's bytes: comparing paths as paths takes them apart every time.
type PathBytes = Vec<u8>;

/// The directory an absolute path is in.
fn parent_of(path: &[u8]) -> Option<&[u8]> {
    if path == b"/" {
        return None;
    }
    match path.iter().rposition(|byte| *byte == b'/')? {
        0 => Some(b"/"),
        slash => path.get(..slash),
    }
}

/// A directory name for the changes of one writable path: no two have the same, and none is too long.
pub(crate) fn overlay_name(path: &Path) -> String {
    use sha2::Digest as _;
    let plain = path
        .to_str()
        .map(|text| {
            text.trim_matches('/')
                .replace('%', "%25")
                .replace('/', "%2F")
        })
        .filter(|name| !name.is_empty() && name.len() <= 255);
    plain.unwrap_or_else(|| {
        let digest = sha2::Sha256::digest(path.as_os_str().as_bytes());
        format!("%{}", data_encoding::HEXLOWER.encode(&digest))
    })
}
