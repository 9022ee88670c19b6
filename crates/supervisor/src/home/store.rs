//! All private homes of a state directory: found, looked at, exported, thrown away.

use super::{HeldHome, HomeOwner, LAYERS, at, lock_of};
use crate::changes::{Cursor, TreeAccess, each_below, open_plain};
use crate::error::RunError;
use crate::state::StateDir;
use belljar_sandbox::plan::Identity;
use rustix::fs::{FileType, Stat};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// Below the others: what is for one box alone, so that whoever clears up looks at nothing else.
const OF_BOXES: &str = "boxes";
const NOTE: &str = "home.json";
const MOST_NOTE: u64 = 64 << 10;
/// As many boxes of one project have a home of their own at the same time.
const MOST_AT_ONCE: u32 = 64;

/// Whose a group of homes is, as it is noted beside them.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct HomeNote {
    version: u32,
    owner: HomeOwner,
    /// The host's home directory that shows through.
    home: PathBuf,
    /// The user of the boxes.
    uid: u32,
}

/// The private homes of a state directory.
#[derive(Debug)]
pub struct HomeStore {
    root: PathBuf,
}

/// One home, whether a box uses it or not.
#[derive(Debug)]
pub struct HomeEntry {
    directory: PathBuf,
    note: HomeNote,
    number: u32,
    id: String,
}

/// What a home amounts to.
#[derive(Debug, Clone, Serialize)]
pub struct HomeSummary {
    /// What it is called by.
    pub id: String,
    /// Whose it is.
    pub owner: HomeOwner,
    /// The first of its project is 1; others are for boxes that run at the same time.
    pub number: u32,
    /// The host's home directory that shows through.
    pub home: PathBuf,
    /// Where the changes are.
    pub changes: PathBuf,
    /// Whether a box has it now.
    pub is_in_use: bool,
    /// How many files, directories and deletions were made.
    pub entries: u64,
    /// The bytes of all files in it.
    pub bytes: u64,
    /// When something in it changed last, in seconds since 1970.
    pub changed_at: Option<u64>,
}

/// What a box did to one path of its home.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HomeChange {
    /// It made it; the host has none.
    Added,
    /// It has another than the host, whether it saw that one or not.
    Modified,
    /// It removed it.
    Deleted,
}

impl HomeStore {
    /// That of a state directory.
    #[must_use]
    pub fn of(state: &StateDir) -> Self {
        Self {
            root: state.homes(),
        }
    }

    /// The first free home of an owner.
    pub(crate) fn hold(
        &self,
        owner: &HomeOwner,
        home: &Path,
        identity: Identity,
    ) -> Result<HeldHome, RunError> {
        let is_for_one_box = matches!(owner, HomeOwner::Box(_));
        let parent = match is_for_one_box {
            true => self.root.join(OF_BOXES),
            false => self.root.clone(),
        };
        let group = parent.join(group_name(owner, home, identity.uid));
        let note = HomeNote {
            version: 1,
            owner: owner.clone(),
            home: home.to_owned(),
            uid: identity.uid,
        };
        for path in [&self.root, &parent, &group] {
            make_passable(path).map_err(at(path))?;
        }
        let file = group.join(NOTE);
        if !file.is_file() {
            let bytes = serde_json::to_vec(&note).map_err(|error| at(&file)(error.into()))?;
            belljar_files::replace(&file, &bytes, belljar_files::PRIVATE).map_err(at(&file))?;
        }
        for number in 1..=MOST_AT_ONCE {
            let directory = group.join(number.to_string());
            make_passable(&directory).map_err(at(&directory))?;
            if let Some(held) = HeldHome::take(directory, identity, is_for_one_box)? {
                return Ok(held);
            }
        }
        Err(RunError::Refused {
            what: format!("{MOST_AT_ONCE} boxes use this project's private homes already"),
            hint: "wait for one of them, or start with filesystem_config.home: read_only".into(),
        })
    }

    /// Every home, those of one project together.
    #[must_use]
    pub fn entries(&self) -> Vec<HomeEntry> {
        let mut found = Self::entries_in(&self.root);
        found.extend(Self::entries_in(&self.root.join(OF_BOXES)));
        found.sort_by(|a, b| a.id.cmp(&b.id));
        found
    }

    fn entries_in(root: &Path) -> Vec<HomeEntry> {
        let mut found = Vec::new();
        for group in names_in(root) {
            let directory = root.join(&group);
            let Some(note) = read_note(&directory.join(NOTE)) else {
                continue;
            };
            for slot in names_in(&directory) {
                let number = slot.to_str().and_then(|name| name.parse::<u32>().ok());
                let directory = directory.join(&slot);
                let (Some(number), true) = (number, directory.join(LAYERS).is_dir()) else {
                    continue;
                };
                let id = match number {
                    1 => group.to_string_lossy().into_owned(),
                    number => format!("{}.{number}", group.to_string_lossy()),
                };
                found.push(HomeEntry {
                    directory,
                    note: note.clone(),
                    number,
                    id,
                });
            }
        }
        found
    }

    /// The homes that a name means: an id or the beginning of one, a project's directory, an agent's name.
    #[must_use]
    pub fn find(&self, name: &OsStr) -> Vec<HomeEntry> {
        let path = Path::new(name).canonicalize().ok();
        let is_meant = |entry: &HomeEntry| match &entry.note.owner {
            HomeOwner::Project(project) => path.as_deref() == Some(project),
            HomeOwner::Agent(agent) => Some(agent.as_str()) == name.to_str(),
            HomeOwner::Box(id) => Some(id.as_str()) == name.to_str(),
        };
        let entries = self.entries();
        let exact = |entry: &HomeEntry| Some(entry.id.as_str()) == name.to_str();
        if entries.iter().any(exact) {
            return entries.into_iter().filter(exact).collect();
        }
        let begins = |entry: &HomeEntry| {
            let name = name.to_str().filter(|name| name.len() >= 4);
            name.is_some_and(|name| entry.id.starts_with(name))
        };
        entries
            .into_iter()
            .filter(|entry| is_meant(entry) || begins(entry))
            .collect()
    }

    /// Removes what boxes had for themselves alone and keepers that were killed have left.
    pub(crate) fn sweep(&self) {
        for entry in Self::entries_in(&self.root.join(OF_BOXES)) {
            let _ = entry.reset();
        }
    }
}

impl HomeEntry {
    /// What it is called by.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Where what the box changed lies on the host.
    #[must_use]
    pub fn changes_directory(&self) -> PathBuf {
        self.directory.join(LAYERS).join("changes")
    }

    /// Whether a box has it now.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        matches!(lock_of(&self.directory), Ok(None))
    }

    /// Looks through it.
    ///
    /// # Errors
    /// When a part of it can't be looked at.
    pub fn summary(&self) -> Result<HomeSummary, RunError> {
        let mut summary = HomeSummary {
            id: self.id.clone(),
            owner: self.note.owner.clone(),
            number: self.number,
            home: self.note.home.clone(),
            changes: self.changes_directory(),
            is_in_use: self.is_in_use(),
            entries: 0,
            bytes: 0,
            changed_at: None,
        };
        self.each(|_, stat| {
            summary.entries += 1;
            if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
                summary.bytes += u64::try_from(stat.st_size).unwrap_or(0);
            }
            let changed = u64::try_from(stat.st_ctime).ok();
            summary.changed_at = summary.changed_at.max(changed);
            Ok(())
        })?;
        Ok(summary)
    }

    /// Tells what was done to each path below the home, with its bytes where it is a file. Directories that only lead to
    /// something are left out.
    ///
    /// # Errors
    /// When a part of it can't be looked at.
    pub fn each_change(
        &self,
        mut tell: impl FnMut(&Path, HomeChange, u64),
    ) -> Result<(), RunError> {
        self.each(|path, stat| {
            let on_host = self.note.home.join(path).symlink_metadata().ok();
            let change = match FileType::from_raw_mode(stat.st_mode) {
                FileType::CharacterDevice if stat.st_rdev == 0 => match on_host {
                    Some(_) => HomeChange::Deleted,
                    None => return Ok(()),
                },
                FileType::Directory if on_host.as_ref().is_some_and(|found| found.is_dir()) => {
                    return Ok(());
                }
                _ if on_host.is_some() => HomeChange::Modified,
                _ => HomeChange::Added,
            };
            let size = match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => u64::try_from(stat.st_size).unwrap_or(0),
                _ => 0,
            };
            tell(path, change, size);
            Ok(())
        })
    }

    /// Writes the changes as a tar archive: what was added and changed, not what was deleted.
    ///
    /// # Errors
    /// When a part of it can't be read, or the archive not be written.
    pub fn export(&self, to: impl io::Write) -> Result<(), RunError> {
        let changes = self.changes_directory();
        let mut archive = tar::Builder::new(to);
        let export = || -> io::Result<()> {
            self.each(|path, stat| append(&mut archive, &changes, path, stat))
                .map_err(|error| match error {
                    RunError::State { source, .. } => source,
                    other => io::Error::other(other.to_string()),
                })?;
            archive.into_inner().and_then(|mut to| to.flush())
        };
        export().map_err(at(&changes))
    }

    /// Throws it away: the next run starts with the host's home directory again.
    ///
    /// # Errors
    /// When a box uses it, or it can't be removed.
    pub fn reset(&self) -> Result<(), RunError> {
        let Some(_lock) = lock_of(&self.directory).map_err(at(&self.directory))? else {
            return Err(RunError::Refused {
                what: format!("home {} is in use", self.id),
                hint: "stop the box that uses it first: `belljar ps` shows it".into(),
            });
        };
        remove_home(&self.directory).map_err(at(&self.directory))
    }

    /// Every entry of the changes, a directory before what is in it.
    fn each(&self, mut visit: impl FnMut(&Path, &Stat) -> io::Result<()>) -> Result<(), RunError> {
        let layers = self.directory.join(LAYERS);
        let mut look = || -> io::Result<()> {
            let mut cursor = Cursor::open(&layers.canonicalize()?)?;
            let mut path = PathBuf::new();
            let mut depth = 0;
            let mut result = Ok(());
            // An agent may have left a directory without any permission.
            let access = TreeAccess::Unlocked;
            each_below(
                &mut cursor,
                OsStr::new("changes"),
                access,
                |deep, name, stat| {
                    for _ in deep..=depth {
                        path.pop();
                    }
                    path.push(&name);
                    depth = deep;
                    if result.is_ok() {
                        result = visit(&path, stat);
                    }
                },
            )?;
            result
        };
        look().map_err(at(&layers))
    }
}

/// A directory that others pass through, since root's boxes run as somebody else, and can't list.
fn make_passable(path: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o711).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
        // Whatever the mask for new files says.
        Ok(()) => fs::set_permissions(path, fs::Permissions::from_mode(0o711)),
    }
}

fn append<W: io::Write>(
    archive: &mut tar::Builder<W>,
    changes: &Path,
    path: &Path,
    stat: &Stat,
) -> io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_mode(stat.st_mode & 0o777);
    header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or(0));
    header.set_uid(stat.st_uid.into());
    header.set_gid(stat.st_gid.into());
    header.set_size(0);
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => {
            header.set_entry_type(tar::EntryType::Directory);
            archive.append_data(&mut header, path, io::empty())
        }
        FileType::Symlink => {
            header.set_entry_type(tar::EntryType::Symlink);
            let target = fs::read_link(changes.join(path))?;
            archive.append_link(&mut header, path, target)
        }
        FileType::RegularFile => {
            let file = open_at(changes, path)?;
            // A file that grows meanwhile ends where it ended when it was looked at; one that shrinks is filled up.
            let size = file.metadata()?.size();
            header.set_size(size);
            let whole = file.chain(io::repeat(0));
            archive.append_data(&mut header, path, whole.take(size))
        }
        // Deletions, sockets, pipes: nothing that could be unpacked elsewhere.
        _ => Ok(()),
    }
}

/// A plain file below the changes, with no link followed on the way.
fn open_at(changes: &Path, path: &Path) -> io::Result<File> {
    let mut cursor = Cursor::open(&changes.canonicalize()?)?;
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    for above in path.parent().into_iter().flat_map(Path::components) {
        cursor.enter(above.as_os_str())?;
    }
    open_plain(cursor.here()?, name)
}

/// Removes a home and, when it was the last one, what is noted of its owner.
pub(super) fn remove_home(directory: &Path) -> io::Result<()> {
    crate::changes::remove_tree(directory)?;
    if let Some(group) = directory.parent()
        && names_in(group).iter().all(|name| name == NOTE)
    {
        match fs::remove_file(group.join(NOTE)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // Somebody may be making the next one this moment.
        let _ = fs::remove_dir(group);
    }
    Ok(())
}

/// No two owners have the same, and people can tell whose it is.
fn group_name(owner: &HomeOwner, home: &Path, uid: u32) -> String {
    let (kind, bytes): (&str, &[u8]) = match owner {
        HomeOwner::Project(path) => ("project", path.as_os_str().as_bytes()),
        HomeOwner::Agent(name) => ("agent", name.as_bytes()),
        HomeOwner::Box(id) => ("box", id.as_bytes()),
    };
    let mut hash = Sha256::new();
    for part in [
        kind.as_bytes(),
        bytes,
        home.as_os_str().as_bytes(),
        &uid.to_le_bytes(),
    ] {
        hash.update(part.len().to_le_bytes());
        hash.update(part);
    }
    let digest = data_encoding::HEXLOWER.encode(&hash.finalize());
    digest.chars().take(12).collect()
}

fn names_in(directory: &Path) -> Vec<OsString> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name()).collect()
}

fn read_note(file: &Path) -> Option<HomeNote> {
    let mut bytes = Vec::new();
    let opened = File::open(file).ok()?;
    opened.take(MOST_NOTE).read_to_end(&mut bytes).ok()?;
    serde_json::from_slice(&bytes).ok()
}
