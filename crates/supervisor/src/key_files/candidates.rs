//! Where keys are looked for: by name, in a few directories, and in what start-up files name. Bounded, however large the
//! home directory is.

use super::words;
use crate::named;
use belljar_policy::Places;
use rustix::fs::{Mode, OFlags};
use std::collections::{HashSet, VecDeque};
use std::fs;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// Below the home: what shells and sessions run or read when they start.
const START_UP: &[&str] = &[
    ".bash_aliases",
    ".bash_login",
    ".bash_logout",
    ".bash_profile",
    ".bashrc",
    ".config/fish/config.fish",
    ".config/fish/fish_variables",
    ".config/nushell/config.nu",
    ".config/nushell/env.nu",
    ".cshrc",
    ".envrc",
    ".kshrc",
    ".login",
    ".mkshrc",
    ".pam_environment",
    ".profile",
    ".tcshrc",
    ".xinitrc",
    ".xonshrc",
    ".xprofile",
    ".xsession",
    ".xsessionrc",
    ".zlogin",
    ".zlogout",
    ".zprofile",
    ".zshenv",
    ".zshrc",
];

/// Below the home: directories all of whose files are such.
const START_UP_DIRECTORIES: &[&str] = &[
    ".bashrc.d",
    ".config/bash",
    ".config/direnv",
    ".config/environment.d",
    ".config/fish/conf.d",
    ".config/fish/functions",
    ".config/plasma-workspace/env",
    ".config/shell",
    ".config/zsh",
    ".oh-my-zsh/custom",
    ".profile.d",
    ".zsh",
    ".zshrc.d",
];

/// The host's own.
const SYSTEM: &[&str] = &[
    "/etc/bash.bashrc",
    "/etc/bashrc",
    "/etc/environment",
    "/etc/fish/config.fish",
    "/etc/profile",
    "/etc/security/pam_env.conf",
    "/etc/zshenv",
    "/etc/zshrc",
];
const SYSTEM_DIRECTORIES: &[&str] = &[
    "/etc/environment.d",
    "/etc/fish/conf.d",
    "/etc/profile.d",
    "/etc/zsh",
];

/// How many files in all.
const FILES: usize = 384;
/// How many entries of one directory.
const ENTRIES: usize = 256;
/// How many names in one file are looked up.
const WORDS: usize = 256;
/// How much of one file is read: a box can't be shown more of another's making.
const LONGEST: u64 = belljar_sandbox::show::LONGEST_TEXT as u64;
/// How far a working directory is searched for `.env` files.
const PROJECT: named::Bounds = named::Bounds {
    levels: 3,
    directories: 250,
};

/// What a file is to whoever reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Something runs it when a shell or a session starts.
    StartUp,
    /// It is near: a dot file of the home, a project's `.env`, what a start-up file names.
    Near,
}

/// A file that may hold a key.
pub(crate) struct Candidate {
    /// With no symbolic link on the way.
    pub(crate) path: PathBuf,
    /// As it is called.
    pub(crate) named: PathBuf,
    pub(crate) role: Role,
    /// `None` where it is longer than anybody looks.
    pub(crate) text: Option<Zeroizing<Vec<u8>>>,
}

/// The search.
pub(crate) struct Candidates<'a> {
    places: &'a Places,
    /// Whether the box sees a file: nothing else is of interest.
    is_seen: &'a dyn Fn(&Path) -> bool,
    known: HashSet<PathBuf>,
    queue: VecDeque<(PathBuf, Role)>,
    found: Vec<Candidate>,
}

impl<'a> Candidates<'a> {
    pub(crate) fn new(places: &'a Places, is_seen: &'a dyn Fn(&Path) -> bool) -> Self {
        Self {
            places,
            is_seen,
            known: HashSet::new(),
            queue: VecDeque::new(),
            found: Vec::new(),
        }
    }

    /// Start-up files, and what they run.
    pub(crate) fn start_up(mut self) -> Self {
        let home = &self.places.home;
        let own = START_UP.iter().map(|name| home.join(name));
        let system = SYSTEM.iter().map(PathBuf::from);
        let directories = START_UP_DIRECTORIES.iter().map(|name| home.join(name));
        let directories = directories.chain(SYSTEM_DIRECTORIES.iter().map(PathBuf::from));
        let in_directories = directories.flat_map(|directory| files_of(&directory, |_| true));
        let all = own.chain(system).chain(in_directories);
        self.queue.extend(all.map(|path| (path, Role::StartUp)));
        self.follow();
        self
    }

    /// What else may hold a secret that is known: the home's other dot files, the project's `.env` files.
    pub(crate) fn near(mut self) -> Self {
        let dotted = files_of(&self.places.home, |name| name.starts_with('.'));
        let is_env = |name: &str| name.starts_with(".env") || name.ends_with(".env");
        let project = named::search(&[self.places.work.clone()], &is_env, &|_| false, PROJECT);
        let all = dotted.into_iter().chain(project.files);
        self.queue.extend(all.map(|path| (path, Role::Near)));
        self.follow();
        self
    }

    pub(crate) fn found(self) -> Vec<Candidate> {
        self.found
    }

    fn follow(&mut self) {
        while let Some((named, role)) = self.queue.pop_front() {
            if self.found.len() >= FILES {
                return;
            }
            let Ok(path) = named.canonicalize() else {
                continue;
            };
            if self.known.contains(&path) || !path.is_file() || !(self.is_seen)(&path) {
                continue;
            }
            self.known.insert(path.clone());
            let Ok(text) = read(&path) else { continue };
            if let (Role::StartUp, Some(text)) = (role, &text) {
                let named = self.named_in(&path, text);
                self.queue.extend(named);
            }
            self.found.push(Candidate {
                path,
                named,
                role,
                text,
            });
        }
    }

    /// Files that a start-up file runs, reads or otherwise names.
    fn named_in(&self, file: &Path, text: &[u8]) -> Vec<(PathBuf, Role)> {
        let home = self.places.home.to_string_lossy();
        let own = file.parent().unwrap_or(file).to_string_lossy();
        let around = words::Around {
            home: &home,
            own: &own,
        };
        let text = String::from_utf8_lossy(text);
        let mut found = Vec::new();
        for named in words::named_in(&text, &around, WORDS) {
            let path = Path::new(&named.path);
            if is_programs(path) || path.components().count() <= 2 {
                continue;
            }
            match (named.path.contains(WILD), named.is_run) {
                (true, _) => {
                    let files = files_like(path).into_iter();
                    found.extend(files.map(|file| (file, Role::StartUp)));
                }
                (false, true) => found.push((path.to_owned(), Role::StartUp)),
                (false, false) => found.push((path.to_owned(), Role::Near)),
            }
        }
        found
    }
}

/// What stands for something else in a path.
const WILD: [char; 3] = ['*', '?', '['];

/// Whether nobody keeps a key there.
fn is_programs(path: &Path) -> bool {
    let trees = [
        "/usr", "/bin", "/sbin", "/lib", "/lib64", "/proc", "/sys", "/dev",
    ];
    trees.iter().any(|tree| path.starts_with(tree))
}

/// Files at a path with names in it that stand for others: any names will do that begin as these do.
fn files_like(pattern: &Path) -> Vec<PathBuf> {
    let mut found = vec![PathBuf::from("/")];
    let mut parts = pattern.components().peekable();
    while let Some(part) = parts.next() {
        let text = part.as_os_str().to_string_lossy();
        let is_wild = text.contains(WILD);
        let start = text.split(WILD).next().unwrap_or_default().to_owned();
        found = match (is_wild, parts.peek()) {
            (false, _) => found.iter().map(|path| path.join(part)).collect(),
            (true, None) => found
                .iter()
                .flat_map(|path| files_of(path, |name| name.starts_with(&start)))
                .collect(),
            (true, Some(_)) => found
                .iter()
                .flat_map(|path| directories_of(path, &start))
                .collect(),
        };
        found.truncate(ENTRIES);
    }
    found
}

fn directories_of(directory: &Path, start: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut directories: Vec<PathBuf> = entries
        .filter(|entry| entry.file_name().as_bytes().starts_with(start.as_bytes()))
        .take(ENTRIES)
        .map(|entry| entry.path())
        .filter(|path| path.is_dir())
        .collect();
    directories.sort();
    directories
}

/// The files of a directory, in order.
fn files_of(directory: &Path, wants: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let wanted = entries.filter(|entry| {
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        !is_directory && entry.file_name().to_str().is_some_and(&wants)
    });
    let mut files: Vec<PathBuf> = wanted.map(|entry| entry.path()).take(ENTRIES).collect();
    files.sort();
    files
}

/// The whole of a file; `None` where it is too long.
fn read(path: &Path) -> std::io::Result<Option<Zeroizing<Vec<u8>>>> {
    // What lies in a project may have become something else by now, even what is waited for when it is opened.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = fs::File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    let length = metadata.len();
    if length > LONGEST {
        return Ok(None);
    }
    // Made large enough at once, so that no copy is left in memory.
    let mut bytes = Zeroizing::new(Vec::with_capacity(length as usize + 1));
    file.take(LONGEST).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}
