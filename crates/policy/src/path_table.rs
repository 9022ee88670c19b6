//! What the filesystem rules come to on one host: a map from absolute path to access.
//!
//! The sandbox is built from exactly this table and `decide` reads the same one, so what is checked
//! and what is enforced can't disagree.

use std::path::{Component, Path, PathBuf};

use serde::Serialize;

use crate::agent_paths::{AGENTS, AgentDirectory, is_hidden_whole};
use crate::builtin_paths::{
    HIDDEN_HOME, HIDDEN_NAMES, HIDDEN_SYSTEM, OWN_TREES, PRIVATE, PRIVATE_HOME, PROTECTED_HOME,
    PROTECTED_WORK, RUNTIME,
};
use crate::path_map::PathMap;
use crate::{Decision, Filesystem, FsMode, HomeMode, Origin, PathRule, Reason, Rule, Source};

/// The places of one launch that rules are relative to. All are absolute and normal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// The user's home directory.
    pub home: PathBuf,
    /// The working directory.
    pub work: PathBuf,
    /// Where other users' homes are: `/home`, `/root`, …
    pub homes: Vec<PathBuf>,
}

impl Places {
    fn normal(&self) -> Self {
        Self {
            home: normal(&self.home),
            work: normal(&self.work),
            homes: self.homes.iter().map(|path| normal(path)).collect(),
        }
    }
}

/// What an agent may do at a path. Ordered from least to most; the least wins on a tie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// Nothing is there.
    Hidden,
    /// The box has a directory of its own there.
    Private,
    /// The image's files, for reading.
    Image,
    /// The host's files, for reading.
    Read,
    /// The host's files, for reading; what is changed is changed in a copy of the box's own.
    CopyOnWrite,
    /// The host's files, for reading, under a path that may be written.
    Protected,
    /// The host's files, for reading and writing.
    Write,
}

/// Whose files a box sees where no rule says anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ground {
    /// The host's.
    Host,
    /// An image's. Of the host's there is only what the launch and the rules name.
    Image,
}

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// What an agent may do there and below, until a longer path says otherwise.
    pub access: Access,
    /// The reason to give.
    pub reason: Reason,
    /// The rule behind it.
    pub origin: Origin,
    #[serde(skip)]
    rank: Rank,
}

/// Whose word counts where two rules name the same path. See [`rank_of`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Rank {
    /// What a mode opens.
    Ground,
    /// The working directory, because the launch is in it.
    Launch,
    /// Built-in hidden and protected paths, and profiles.
    Shipped,
    /// The user's own document.
    Document,
}

/// What is wanted of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FileOp {
    /// To read it or list it.
    Read,
    /// To write, create, rename or remove it.
    Write,
}

/// The resolved rules: the longest path that contains a file decides about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathTable {
    entries: PathMap<Entry>,
    any_named: Vec<(String, Origin)>,
    mode: FsMode,
    work: PathBuf,
}

impl PathTable {
    /// Resolves the rules of a capability on a host with these places.
    #[must_use]
    pub fn resolve(filesystem: &Filesystem, places: &Places) -> Self {
        Self::resolve_on(Ground::Host, filesystem, places)
    }

    /// The same where the box's files may be an image's.
    #[must_use]
    pub fn resolve_on(ground: Ground, filesystem: &Filesystem, places: &Places) -> Self {
        let places = &places.normal();
        let explicit = explicit_entries(filesystem, places);
        let mut table = Self {
            entries: explicit.clone(),
            any_named: any_named(filesystem),
            mode: filesystem.mode,
            work: places.work.clone(),
        };
        let explicit = Cover(&explicit);
        match ground {
            Ground::Host => {
                table.add_ground(places, explicit);
                table.add_home(places, explicit);
            }
            Ground::Image => table.add_image(places),
        }
        table.add_work(filesystem, explicit);
        table.add_hidden(places);
        table.add_private(places);
        table.add_protected(filesystem, places);
        if filesystem.home == HomeMode::Private {
            table.keep_changes_of_home(places);
        }
        table
    }

    /// The entries, parents before children.
    pub fn iter(&self) -> impl Iterator<Item = (&Path, &Entry)> {
        self.entries.iter()
    }

    /// File names that are hidden wherever they are found. Those of built-in origin apply outside
    /// the working directory only.
    #[must_use]
    pub fn any_named(&self) -> &[(String, Origin)] {
        &self.any_named
    }

    /// The mode the table was made for.
    #[must_use]
    pub fn mode(&self) -> FsMode {
        self.mode
    }

    /// Decides about an absolute path. Symbolic links are the caller's to resolve first.
    #[must_use]
    pub fn decide(&self, path: &Path, op: FileOp) -> Decision {
        let path = normal(path);
        let found = self.lookup(&path);
        match (found.access, op) {
            (Access::Write, _) | (Access::Read | Access::CopyOnWrite, FileOp::Read) => {
                Decision::allow(found.reason, found.origin)
            }
            (Access::CopyOnWrite, FileOp::Write) => {
                Decision::allow(Reason::AllowPrivateCopy, found.origin)
            }
            (Access::Private, _) => Decision::allow(Reason::AllowPrivate, found.origin),
            (Access::Image, FileOp::Read) => Decision::allow(Reason::AllowImage, found.origin),
            (Access::Protected, FileOp::Read) => {
                Decision::allow(Reason::AllowReadable, found.origin)
            }
            (Access::Image, FileOp::Write) => {
                let hint = "an image is never written: write in the working directory or in /tmp";
                Decision::deny(Reason::DenyReadOnly, found.origin, Some(hint.to_owned()))
            }
            (Access::Read, FileOp::Write) => {
                let hint = self.write_hint(&path);
                Decision::deny(Reason::DenyReadOnly, found.origin, Some(hint))
            }
            (Access::Protected, FileOp::Write) => {
                let hint = self.write_hint(&path);
                Decision::deny(Reason::DenyProtected, found.origin, Some(hint))
            }
            (Access::Hidden, op) => {
                let hint = match op {
                    FileOp::Read => readable_hint(&path),
                    FileOp::Write => self.write_hint(&path),
                };
                Decision::deny(found.reason, found.origin, Some(hint))
            }
        }
    }

    /// What an agent may do at a path, whatever for.
    #[must_use]
    pub fn access(&self, path: &Path) -> Access {
        self.lookup(&normal(path)).access
    }

    /// Whether nothing but its name hides a path. Such a file is hidden where a launch's search finds it; the table knows
    /// the names only.
    #[must_use]
    pub fn is_hidden_by_name(&self, path: &Path) -> bool {
        let path = normal(path);
        self.entries
            .longest_prefix(&path)
            .is_some_and(|(at, entry)| {
                entry.access >= Access::Read && self.hidden_by_name(&path, at, entry).is_some()
            })
    }

    /// What holds at a normal absolute path.
    pub(crate) fn lookup(&self, path: &Path) -> Entry {
        let Some((at, entry)) = self.entries.longest_prefix(path) else {
            return ground(Access::Hidden, Reason::DenyNotVisible);
        };
        if is_own_tree(path) && !is_own_tree(at) {
            return ground(Access::Private, Reason::AllowPrivate);
        }
        match self.hidden_by_name(path, at, entry) {
            // Names are hidden among the host's files: what an image holds was put there to be used.
            Some(origin) if entry.access >= Access::Read => Entry {
                access: Access::Hidden,
                reason: Reason::DenyHidden,
                origin: origin.clone(),
                rank: Rank::Shipped,
            },
            _ => entry.clone(),
        }
    }

    /// The rule that hides the path because it, or a directory it is in, has a hidden name. Names
    /// above the deciding entry do not count, the longer path being the more specific; nor does
    /// the entry's own if the user wrote that very path.
    fn hidden_by_name(&self, path: &Path, at: &Path, entry: &Entry) -> Option<&Origin> {
        let below = path.ancestors().take_while(|ancestor| *ancestor != at);
        let own = Some(at).filter(|_| entry.rank != Rank::Document);
        below
            .chain(own)
            .find_map(|candidate| self.hidden_name(candidate))
    }

    fn hidden_name(&self, path: &Path) -> Option<&Origin> {
        let name = path.file_name()?.to_str()?;
        let applies =
            |origin: &Origin| origin.source != Source::BuiltIn || !path.starts_with(&self.work);
        self.any_named
            .iter()
            .find(|(hidden, origin)| hidden == name && applies(origin))
            .map(|(_, origin)| origin)
    }

    fn write_hint(&self, path: &Path) -> String {
        let shown = path.display().to_string();
        match self.mode {
            FsMode::ReadWrite => {
                format!("add to capability.yaml: filesystem_config.writable_paths: [{shown:?}]")
            }
            FsMode::None | FsMode::ReadOnly => {
                format!(
                    "add to capability.yaml: filesystem_config: {{mode: read_write, writable_paths: [{shown:?}]}}"
                )
            }
        }
    }

    /// What the mode opens before any rule.
    fn add_ground(&mut self, places: &Places, explicit: Cover<'_>) {
        match self.mode {
            FsMode::None => {
                self.claim(
                    Path::new("/"),
                    ground(Access::Hidden, Reason::DenyNotVisible),
                );
                for path in RUNTIME.iter().map(Path::new) {
                    // A user who hides /etc means all of it, the part a program needs included.
                    if explicit
                        .at(path)
                        .is_none_or(|entry| entry.access != Access::Hidden)
                    {
                        self.claim(path, ground(Access::Read, Reason::AllowReadable));
                    }
                }
            }
            FsMode::ReadOnly | FsMode::ReadWrite => {
                self.claim(Path::new("/"), ground(Access::Read, Reason::AllowReadable));
            }
        }
        for path in PRIVATE {
            self.claim(
                Path::new(path),
                ground(Access::Private, Reason::AllowPrivate),
            );
        }
        for homes in places.homes.iter().filter(|path| **path != places.home) {
            self.claim(homes, shipped(Access::Hidden, Reason::DenyOtherHome));
        }
    }

    /// An image's files, and directories of the box's own for scratch and home: those of the host's are not there, and an
    /// image's have the owner that it was built with.
    fn add_image(&mut self, places: &Places) {
        self.claim(Path::new("/"), ground(Access::Image, Reason::AllowImage));
        let home = [places.home.as_path()].into_iter();
        for path in PRIVATE.iter().map(Path::new).chain(home) {
            self.claim(path, ground(Access::Private, Reason::AllowPrivate));
        }
    }

    /// Built-in hidden paths, where anything of the host would show. In a private directory there is
    /// nothing to hide, and the agent may well make a `~/.cache` of its own there.
    fn add_hidden(&mut self, places: &Places) {
        let system = HIDDEN_SYSTEM.iter().map(PathBuf::from);
        let home = HIDDEN_HOME.iter().map(|below| places.home.join(below));
        let agents = AGENTS.iter().filter(|agent| is_hidden_whole(agent));
        let agents = agents.map(|agent| places.home.join(agent.path));
        // Where a rule opens an agent's directory, its keys stay hidden: they have to be named themselves.
        let credentials = of_agents(places, |agent| agent.credentials);
        let home = home.chain(agents).chain(credentials);
        for path in system.filter(|path| *path != places.home).chain(home) {
            let shows = self
                .entries
                .longest_prefix(&path)
                .is_some_and(|(_, entry)| entry.access >= Access::Read);
            if shows {
                self.claim(path, shipped(Access::Hidden, Reason::DenyHidden));
            }
        }
    }

    /// Programs insist on a few directories below the home; each box has its own.
    fn add_private(&mut self, places: &Places) {
        for path in PRIVATE_HOME.iter().map(|below| places.home.join(below)) {
            let shows = self
                .entries
                .longest_prefix(&path)
                .is_some_and(|(_, entry)| entry.access >= Access::Read);
            if shows {
                self.claim(path, shipped(Access::Private, Reason::AllowPrivate));
            }
        }
    }

    /// The home directory has an entry of its own because it may lie below the hidden homes. What
    /// a wider rule of the user's says about it goes for it all the same.
    fn add_home(&mut self, places: &Places, explicit: Cover<'_>) {
        let own = match self.mode {
            FsMode::None => ground(Access::Private, Reason::AllowPrivate),
            FsMode::ReadOnly | FsMode::ReadWrite => ground(Access::Read, Reason::AllowReadable),
        };
        let entry = explicit.at(&places.home).map_or(own, |wider| Entry {
            rank: Rank::Ground,
            ..wider.clone()
        });
        self.claim(&places.home, entry);
    }

    /// An agent that can't see the directory it starts in is of no use, so the working directory is
    /// readable even below a hidden path, and writable if nothing else is named.
    fn add_work(&mut self, filesystem: &Filesystem, explicit: Cover<'_>) {
        let wider = explicit
            .at(&self.work)
            .filter(|entry| entry.access == Access::Write);
        let entry = match (self.mode, wider) {
            (FsMode::None, _) => return,
            (_, Some(wider)) => Entry {
                rank: Rank::Launch,
                ..wider.clone()
            },
            (FsMode::ReadWrite, None) if filesystem.writable.is_empty() => Entry {
                rank: Rank::Launch,
                ..ground(Access::Write, Reason::AllowWritable)
            },
            _ => Entry {
                rank: Rank::Launch,
                ..ground(Access::Read, Reason::AllowReadable)
            },
        };
        let work = self.work.clone();
        self.claim(work, entry);
    }

    /// Protected paths matter only where they could be written; elsewhere an entry would open what
    /// is hidden. So they come last and look at what is there.
    fn add_protected(&mut self, filesystem: &Filesystem, places: &Places) {
        let built_in = PROTECTED_WORK
            .iter()
            .map(|below| places.work.join(below))
            .chain(PROTECTED_HOME.iter().map(|below| places.home.join(below)))
            .chain(of_agents(places, |agent| agent.settings))
            .map(|path| (path, shipped(Access::Protected, Reason::DenyProtected)));
        let written = filesystem.protected.iter().filter_map(|rule| {
            let entry = rule_entry(rule, Access::Protected, Reason::DenyProtected);
            Some((rule.value.resolve(places)?, entry))
        });
        let protected: Vec<_> = built_in.chain(written).collect();
        for (path, entry) in protected {
            let writable = self
                .entries
                .longest_prefix(&path)
                .is_some_and(|(_, entry)| entry.access >= Access::Protected);
            if writable {
                self.claim(path, entry);
            }
        }
    }

    /// Makes what may only be read of the home directory copy-on-write. Not the working directory, whose changes nobody would
    /// look for in a home; nor what a rule shows in something hidden or writable, which is no part of the copy.
    fn keep_changes_of_home(&mut self, places: &Places) {
        let Some(home) = self.entries.get(&places.home) else {
            return;
        };
        if home.access != Access::Read || places.home.starts_with(&places.work) {
            return;
        }
        let below: Vec<PathBuf> = self
            .entries
            .iter()
            .map(|(path, _)| path)
            .filter(|path| path.starts_with(&places.home) && !path.starts_with(&places.work))
            .map(Path::to_owned)
            .collect();
        // Parents come first.
        for path in below {
            let is_in_copy = path == places.home
                || path.parent().is_some_and(|parent| {
                    let around = self.entries.longest_prefix(parent);
                    around.is_some_and(|(_, entry)| entry.access == Access::CopyOnWrite)
                });
            if let Some(entry) = self.entries.get_mut(&path)
                && entry.access == Access::Read
                && is_in_copy
            {
                entry.access = Access::CopyOnWrite;
            }
        }
    }

    fn claim(&mut self, path: impl Into<PathBuf>, entry: Entry) {
        self.entries.claim(path.into(), entry, outranks);
    }
}

/// Some of what agents keep in their directories.
fn of_agents(
    places: &Places,
    which: impl Fn(&AgentDirectory) -> &'static [&'static str],
) -> impl Iterator<Item = PathBuf> {
    AGENTS.iter().flat_map(move |agent| {
        let directory = places.home.join(agent.path);
        which(agent).iter().map(move |below| directory.join(below))
    })
}

/// Whether a claim to a path replaces the one that holds it: the higher rank wins, then the lesser
/// access.
fn outranks(new: &Entry, held: &Entry) -> bool {
    new.rank > held.rank || (new.rank == held.rank && new.access < held.access)
}

/// Explicit rules alone, to ask what the user or a profile says about a path.
#[derive(Clone, Copy)]
struct Cover<'a>(&'a PathMap<Entry>);

impl<'a> Cover<'a> {
    fn at(self, path: &Path) -> Option<&'a Entry> {
        self.0.longest_prefix(path).map(|(_, entry)| entry)
    }
}

fn explicit_entries(filesystem: &Filesystem, places: &Places) -> PathMap<Entry> {
    let lists = [
        (&filesystem.hidden, Access::Hidden, Reason::DenyHidden),
        (&filesystem.readable, Access::Read, Reason::AllowReadable),
        (&filesystem.writable, Access::Write, Reason::AllowWritable),
    ];
    let mut entries = PathMap::new();
    for (rules, access, reason) in lists {
        // Only `read_write` has anything to write; a list left over from elsewhere grants nothing.
        if access == Access::Write && filesystem.mode != FsMode::ReadWrite {
            continue;
        }
        for rule in rules {
            if let Some(path) = rule.value.resolve(places) {
                entries.claim(path, rule_entry(rule, access, reason), outranks);
            }
        }
    }
    entries
}

fn any_named(filesystem: &Filesystem) -> Vec<(String, Origin)> {
    let written = filesystem
        .hidden
        .iter()
        .filter_map(|rule| match &rule.value {
            PathRule::AnyNamed(name) => Some((name.clone(), rule.origin.clone())),
            _ => None,
        });
    let built_in = HIDDEN_NAMES
        .iter()
        .map(|name| ((*name).to_owned(), Origin::built_in()));
    written.chain(built_in).collect()
}

fn rule_entry(rule: &Rule<PathRule>, access: Access, reason: Reason) -> Entry {
    Entry {
        access,
        reason,
        origin: rule.origin.clone(),
        rank: rank_of(rule, access),
    }
}

/// A user's own rule outranks what is shipped, except `.` and `~`: they name wherever the launch
/// happens to be, so they can't be meant to open a hidden path.
fn rank_of(rule: &Rule<PathRule>, access: Access) -> Rank {
    let grants = matches!(access, Access::Read | Access::Write);
    match rule.origin.source {
        Source::Document if grants && rule.value.is_bare_anchor() => Rank::Shipped,
        Source::Document => Rank::Document,
        Source::Profile | Source::BuiltIn => Rank::Shipped,
    }
}

fn ground(access: Access, reason: Reason) -> Entry {
    Entry {
        access,
        reason,
        origin: Origin::built_in(),
        rank: Rank::Ground,
    }
}

fn shipped(access: Access, reason: Reason) -> Entry {
    Entry {
        rank: Rank::Shipped,
        ..ground(access, reason)
    }
}

fn is_own_tree(path: &Path) -> bool {
    OWN_TREES.iter().any(|tree| path.starts_with(tree))
}

/// The path without `.` and `..`. A relative path comes out as given and is found nowhere.
fn normal(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                out.pop();
            }
            other => out.push(other),
        }
    }
    out
}

fn readable_hint(path: &Path) -> String {
    let shown = path.display().to_string();
    format!("add to capability.yaml: filesystem_config.readable_paths: [{shown:?}]")
}
