//! Where keys are looked for: by name, in a few directories, and in what start-up files name. Bounded, however large the
//! home directory is.

use crate::named;
use belljar_policy::Places;
use rustix::fs::{Mode, OFlags};
use std::collections::{HashSet, VecDeque};
use std::fs;
use std::io::Read as _;
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
    ".config/environment.d",
    ".config/fish/conf.d",
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
                let named = self.named_in(text);
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
    fn named_in(&self, text: &[u8]) -> Vec<(PathBuf, Role)> {
        let text = String::from_utf8_lossy(text);
        let is_between = |c: char| c.is_whitespace() || ";|&()<>\"'`={},[]".contains(c);
        let words = text.split(is_between).filter(|word| !word.is_empty());
        let mut role = Role::Near;
        let mut named = Vec::new();
        for word in words {
            if let Some(path) = self.path_of(word, role) {
                match path.file_name().and_then(|name| name.to_str()) {
                    Some(name) if name.contains(['*', '?']) => {
                        let directory = path.parent().unwrap_or(&path);
                        let files = files_of(directory, |_| true);
                        named.extend(files.into_iter().map(|file| (file, Role::StartUp)));
                    }
                    _ => named.push((path, role)),
                }
            }
            role = match word {
                "." | "source" => Role::StartUp,
                _ => Role::Near,
            };
            if named.len() >= WORDS {
                break;
            }
        }
        named
    }

    /// The path that a word is, if it is one of a file of the user's.
    fn path_of(&self, word: &str, role: Role) -> Option<PathBuf> {
        const HOME: &[&str] = &["~/", "$HOME/", "${HOME}/", "$ZDOTDIR/", "${ZDOTDIR}/"];
        const CONFIG: &[&str] = &["$XDG_CONFIG_HOME/", "${XDG_CONFIG_HOME}/"];
        let home = &self.places.home;
        let below = |prefixes: &[&str]| {
            let mut stripped = prefixes
                .iter()
                .filter_map(|prefix| word.strip_prefix(prefix));
            stripped.next()
        };
        if let Some(rest) = below(HOME) {
            return Some(home.join(rest));
        }
        if let Some(rest) = below(CONFIG) {
            return Some(home.join(".config").join(rest));
        }
        let path = Path::new(word);
        let is_programs = |path: &Path| {
            let trees = [
                "/usr", "/bin", "/sbin", "/lib", "/lib64", "/proc", "/sys", "/dev",
            ];
            trees.iter().any(|tree| path.starts_with(tree))
        };
        match path.is_absolute() {
            true if !is_programs(path) && path.components().count() > 2 => Some(path.to_owned()),
            false if role == Role::StartUp && !word.contains('$') => Some(home.join(path)),
            _ => None,
        }
    }
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
