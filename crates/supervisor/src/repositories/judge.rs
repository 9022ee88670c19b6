//! What is in a workspace for git when a box has ended. All of it may be a trap: it is read within bounds, through
//! directories in which the kernel follows no link, and git itself is never run.

use super::config::{elsewhere, programs};
use crate::result::Violation;
use belljar_policy::{Access, PathTable, Places};
use belljar_sandbox::plan::{self, Plan, Shows};
use rustix::fd::{AsRawFd as _, OwnedFd};
use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, RenameFlags, ResolveFlags};
use rustix::io::Errno;
use std::collections::{HashSet, VecDeque};
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// How many directories are looked into, and how many names are read in all.
const DIRECTORIES: usize = 10_000;
const NAMES: usize = 1_000_000;
/// How deep.
const LEVELS: usize = 64;
/// A longer file of settings is told as one that was not read.
const CONFIG_BYTES: u64 = 1 << 20;
/// Looks at a repository without running anything of what is below it.
const SAFE_STATUS: &str =
    "git -c core.fsmonitor=false -c core.hooksPath=/dev/null status --ignore-submodules=all";
/// What is set aside has this behind its name.
const ASIDE: &str = ".belljar-set-aside";
/// So many names are tried for it.
const MOST_ASIDE: usize = 100;
/// So many hooks of a directory are looked at for whether they changed.
const HOOKS: usize = 1000;
/// So many findings are told one by one.
const TOLD: usize = 20;
/// So many files of settings lead to further ones.
const MOST_SETTINGS: usize = 1000;

/// What to look through in the end.
#[derive(Debug)]
pub(crate) struct Judged {
    pub(crate) work: PathBuf,
    /// What `~` in settings is.
    pub(crate) home: PathBuf,
    /// What the box could not write.
    pub(crate) covered: HashSet<PathBuf>,
    /// When the box was about to start, in seconds since 1970: what changed after that may be its doing.
    pub(crate) since: i64,
}

impl Judged {
    /// The workspace, if the box writes to it.
    pub(crate) fn of(plan: &Plan, places: &Places, table: &PathTable) -> Option<Self> {
        let is_written = plan.view.iter().any(|entry| {
        matches!(&entry.shows, Shows::Host { access: plan::Access::Write, source, .. } if *source == places.work)
    });
        let covered = plan.view.iter().filter(|entry| {
            entry.path.starts_with(&places.work)
                && entry.path != places.work
                && !matches!(
                    entry.shows,
                    Shows::Host {
                        access: plan::Access::Write,
                        ..
                    }
                )
        });
        (is_written && table.access(&places.work) == Access::Write).then(|| Self {
            work: places.work.clone(),
            home: places.home.clone(),
            covered: covered.map(|entry| entry.path.clone()).collect(),
            since: rustix::time::clock_gettime(rustix::time::ClockId::Realtime).tv_sec,
        })
    }
}

/// What in the workspace would make git run a program, and was not out of the box's reach. `uncovered` was for a moment.
pub(crate) fn judge(judged: &Judged, uncovered: &HashSet<PathBuf>) -> Vec<Violation> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS;
    let Ok(root) = rustix::fs::openat2(CWD, &judged.work, flags, Mode::empty(), resolve) else {
        return Vec::new();
    };
    let mut walk = Walk {
        judged,
        uncovered,
        root,
        queue: VecDeque::from([(PathBuf::new(), 0, Whose::Workspace)]),
        repositories: HashSet::new(),
        settings_seen: HashSet::new(),
        names: NAMES,
        findings: Vec::new(),
    };
    walk.go();
    let more = walk.findings.len().saturating_sub(TOLD);
    walk.findings.truncate(TOLD);
    if let (true, Some(last)) = (more > 0, walk.findings.last_mut()) {
        last.why.push_str(&format!(" (and {more} more like it)"));
    }
    walk.findings
}

/// What a directory is in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whose {
    /// The workspace: a repository may have anything in it, further repositories too, and so may what only looks like one.
    Workspace,
    /// The directory that git has for submodules: nobody works in what is there.
    Git,
}

struct Walk<'a> {
    judged: &'a Judged,
    uncovered: &'a HashSet<PathBuf>,
    root: OwnedFd,
    queue: VecDeque<(PathBuf, usize, Whose)>,
    /// Those that were looked at.
    repositories: HashSet<PathBuf>,
    settings_seen: HashSet<PathBuf>,
    names: usize,
    findings: Vec<Violation>,
}

impl Walk<'_> {
    fn go(&mut self) {
        let mut budget = DIRECTORIES;
        while let Some((directory, level, whose)) = self.queue.pop_front() {
            if budget == 0 || self.names == 0 || level > LEVELS {
                self.tell(
                    &directory,
                    "was not searched for git repositories: there is too much in the workspace",
                );
                return;
            }
            budget -= 1;
            self.look_into(&directory, level, whose);
        }
    }

    fn look_into(&mut self, directory: &Path, level: usize, whose: Whose) {
        let entries = self.entries(directory);
        let has = |name: &str| entries.iter().any(|(known, _)| known == OsStr::new(name));
        if has("HEAD") && (has("objects") || has("commondir")) {
            self.repository(directory);
            if whose == Whose::Git {
                return;
            }
        }
        for (name, kind) in &entries {
            let path = directory.join(name);
            if name != ".git" {
                if *kind == FileType::Directory {
                    self.queue.push_back((path, level + 1, whose));
                }
                continue;
            }
            match kind {
                FileType::Directory => self.repository(&path),
                _ if self.is_covered(&path) => {}
                FileType::RegularFile => self.git_file(directory, &path),
                _ => self.find(&path, "is a link to a repository, made while the box ran"),
            }
        }
    }

    /// A file that says where the repository is. What git would not have written so is told: what reads it may read it otherwise.
    fn git_file(&mut self, directory: &Path, path: &Path) {
        let text = self.read(path).unwrap_or_default();
        let line = text.strip_suffix(b"\n").unwrap_or(&text);
        let named = line.strip_prefix(b"gitdir: ");
        let is_odd = |byte: &u8| byte.is_ascii_control();
        let is_plain = |named: &&[u8]| !named.iter().any(is_odd) && named.trim_ascii() == *named;
        let Some(named) = named.filter(is_plain) else {
            return self.find(path, "names a repository in a way that git does not write");
        };
        let named = Path::new(OsStr::from_bytes(named));
        match self.within(directory, named) {
            // It is judged for what it is.
            Ok(Some(inside)) => self.repository(&inside),
            Ok(None) => {}
            Err(_) => self.find(
                path,
                "names a repository outside of the workspace, or by way of a link",
            ),
        }
    }

    /// What is meant by a path that stands in a directory, from the workspace on; `None` where nothing is there. An error
    /// for what is elsewhere, or has a link on its way.
    fn within(&self, directory: &Path, named: &Path) -> Result<Option<PathBuf>, Errno> {
        let named = match (named.strip_prefix("~"), named.is_absolute()) {
            (Ok(below), _) => self.judged.home.join(below),
            (Err(_), true) => named.to_owned(),
            (Err(_), false) => self.judged.work.join(directory).join(named),
        };
        let below = named.strip_prefix(&self.judged.work);
        let below = below.map_err(|_| Errno::XDEV)?;
        match self.open(below, OFlags::PATH) {
            Ok(found) => {
                let found = rustix::fs::fstat(found)?;
                if FileType::from_raw_mode(found.st_mode) == FileType::Symlink {
                    return Err(Errno::LOOP);
                }
                // No link is on the way, so each `..` takes back the name before it.
                plain(below).map(Some).ok_or(Errno::XDEV)
            }
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    fn repository(&mut self, git: &Path) {
        if !self.repositories.insert(git.to_owned()) {
            return;
        }
        for name in ["config", "config.worktree"] {
            self.settings(&git.join(name));
        }
        self.hooks(&git.join("hooks"));
        self.common_directory(git);
        for name in ["modules", "worktrees"] {
            for (entry, kind) in self.entries(&git.join(name)) {
                let path = git.join(name).join(entry);
                match (kind, name) {
                    (FileType::Directory, "worktrees") => self.repository(&path),
                    (FileType::Directory, _) => self.queue.push_back((path, 0, Whose::Git)),
                    _ => {}
                }
            }
        }
    }

    fn settings(&mut self, path: &Path) {
        if self.settings_seen.len() >= MOST_SETTINGS || !self.settings_seen.insert(path.to_owned())
        {
            return;
        }
        let is_covered = self.is_covered(path);
        match self.read(path) {
            Ok(text) => {
                let programs: Vec<String> = programs(&text).into_iter().take(12).collect();
                if !is_covered && !programs.is_empty() {
                    let programs = programs.join(", ");
                    return self.find(path, &format!("has git run programs: {programs}"));
                }
                self.further_settings(path, &text);
            }
            Err(_) if is_covered => {}
            Err(Errno::NOENT | Errno::NOTDIR) => {}
            Err(Errno::FBIG) => self.find(path, "is too long to be looked at"),
            Err(_) => self.find(path, "is no plain file, and git would read it"),
        }
    }

    /// What the user's own settings include is git's as well, and may not have been there when the box started.
    fn further_settings(&mut self, path: &Path, text: &[u8]) {
        let directory = path.parent().unwrap_or(path).to_owned();
        for named in elsewhere(text).settings {
            match self.within(&directory, &named) {
                Ok(Some(inside)) => self.settings(&inside),
                Ok(None) => {}
                // Nothing moves any more: where links lead now is where they lead git.
                Err(_) => {
                    let named = self.judged.work.join(&directory).join(&named);
                    let real = named.canonicalize().unwrap_or_default();
                    if let Ok(inside) = real.strip_prefix(&self.judged.work) {
                        self.settings(inside);
                    }
                }
            }
        }
    }

    fn hooks(&mut self, path: &Path) {
        if self.is_covered(path) {
            return;
        }
        let is_hook = |name: &OsStr| !name.as_bytes().ends_with(b".sample");
        let entries = self.entries(path);
        let count = entries.iter().filter(|(name, _)| is_hook(name)).count();
        if count > 0 {
            self.find(path, &format!("has {count} git hooks in it"));
        } else if entries.is_empty() && self.is_link(path) {
            self.find(path, "is a link to git hooks elsewhere");
        }
    }

    fn common_directory(&mut self, git: &Path) {
        let path = git.join("commondir");
        if self.is_covered(&path) {
            return;
        }
        let is_worktree = git.parent().and_then(Path::file_name) == Some(OsStr::new("worktrees"));
        match self.read(&path) {
            Err(Errno::NOENT | Errno::NOTDIR) => {}
            // What git itself writes there.
            Ok(text) if is_worktree && matches!(&text[..], b"../.." | b"../..\n") => {
                let common = git.parent().and_then(Path::parent).map(Path::to_owned);
                if let Some(common) = common {
                    self.repository(&common);
                }
            }
            _ => self.find(&path, "has git read its settings elsewhere"),
        }
    }

    /// Tells of something that git would follow. What changed while the box ran is set aside first: whoever uses git here next, or has a
    /// prompt or an editor that does, need not have read this.
    fn find(&mut self, path: &Path, why: &str) {
        let name = printable(&self.judged.work.join(path));
        if let Some(aside) = self.set_aside(path) {
            let aside = printable(&self.judged.work.join(aside));
            self.findings.push(Violation {
                kind: "git",
                count: 1,
                why: format!(
                    "{why}; it changed while the box ran and is set aside: git does not see it"
                ),
                hint: Some(format!(
                    "look at it (`cat -v` shows a file as it is) before you put it back: mv -T {} {}; once it is, `{SAFE_STATUS}` at the top of \
                     your own repository runs nothing of it",
                    for_shell(&aside),
                    for_shell(&name)
                )),
                name,
            });
            return;
        }
        self.tell(path, why);
    }

    fn tell(&mut self, path: &Path, why: &str) {
        let name = printable(&self.judged.work.join(path));
        let hint = format!(
            "look before you use git there: `cat -v` shows a file as it is, and `{SAFE_STATUS}` at the top of your own repository runs \
             nothing of it"
        );
        self.findings.push(Violation {
            kind: "git",
            name,
            count: 1,
            why: why.to_owned(),
            hint: Some(hint),
        });
    }

    /// Gives something another name, beside its own, if it changed since the box started. Both are beneath the workspace, and no link
    /// is followed. The result is the new name.
    fn set_aside(&self, path: &Path) -> Option<PathBuf> {
        let (above, name) = (path.parent()?, path.file_name()?);
        if !self.has_changed(path) {
            return None;
        }
        let directory = self.open(above, OFlags::PATH | OFlags::DIRECTORY).ok()?;
        (0..MOST_ASIDE).find_map(|number| {
            let mut aside = name.to_owned();
            aside.push(ASIDE);
            if number > 0 {
                aside.push(format!(".{number}"));
            }
            let flags = RenameFlags::NOREPLACE;
            let renamed = rustix::fs::renameat_with(&directory, name, &directory, &aside, flags);
            renamed.ok().map(|()| above.join(aside))
        })
    }

    /// Whether something, or for a directory anything right in it, changed since the box started. The kernel keeps these times, and nobody
    /// in a box can set them.
    fn has_changed(&self, path: &Path) -> bool {
        let changed = |path: &Path| {
            let found = self.open(path, OFlags::PATH).and_then(rustix::fs::fstat);
            // The clock that files go by is a few milliseconds behind.
            found.is_ok_and(|found| found.st_ctime >= self.judged.since - 1)
        };
        let in_it = || {
            let directory = self.open(path, OFlags::DIRECTORY).and_then(Dir::new);
            directory.is_ok_and(|directory| {
                directory.flatten().take(HOOKS).any(|entry| {
                    let name = OsStr::from_bytes(entry.file_name().to_bytes());
                    name != ".." && changed(&path.join(name))
                })
            })
        };
        changed(path) || in_it()
    }

    /// Whether it, or a directory above it, could not be written by the box at any time.
    fn is_covered(&self, path: &Path) -> bool {
        let path = self.judged.work.join(path);
        let above = || {
            path.ancestors()
                .take_while(|above| *above != self.judged.work)
        };
        above().any(|above| self.judged.covered.contains(above))
            && !above().any(|above| self.uncovered.contains(above))
    }

    fn open(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        let path = match path.as_os_str().is_empty() {
            true => Path::new("."),
            false => path,
        };
        // A named pipe is not waited for; with a mere handle nothing is, and the kernel takes no such flag.
        let patience = match flags.contains(OFlags::PATH) {
            true => OFlags::empty(),
            false => OFlags::NONBLOCK,
        };
        let flags = flags | patience | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        rustix::fs::openat2(&self.root, path, flags, Mode::empty(), resolve)
    }

    /// Opens a directory to be listed. One that its owner may not list, but git could go through, is opened for us, and is then
    /// as it was.
    fn listed(&self, path: &Path) -> Result<Dir, Errno> {
        let listed = || self.open(path, OFlags::DIRECTORY).and_then(Dir::new);
        match listed() {
            Err(Errno::ACCESS) => {}
            other => return other,
        }
        let place = self.open(path, OFlags::PATH | OFlags::DIRECTORY)?;
        let mode = rustix::fs::fstat(&place)?.st_mode & 0o7777;
        // A handle takes no `fchmod`; through this it is the same directory.
        let itself = format!("/proc/self/fd/{}", place.as_raw_fd());
        let set = |mode| rustix::fs::chmod(&itself, Mode::from_raw_mode(mode));
        set(mode | 0o500)?;
        let listed = listed();
        set(mode)?;
        listed
    }

    fn is_ours(&self, path: &Path) -> bool {
        let found = self.open(path, OFlags::PATH).and_then(rustix::fs::fstat);
        found.is_ok_and(|found| found.st_uid == rustix::process::geteuid().as_raw())
    }

    fn is_link(&self, path: &Path) -> bool {
        self.open(path, OFlags::PATH)
            .and_then(rustix::fs::fstat)
            .is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Symlink)
    }

    fn read(&self, path: &Path) -> Result<Vec<u8>, Errno> {
        // A link is there for git, and can't be opened here.
        let file = self.open(path, OFlags::empty())?;
        let found = rustix::fs::fstat(&file)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Err(Errno::INVAL);
        }
        let mut text = Vec::new();
        let mut file = std::fs::File::from(file).take(CONFIG_BYTES + 1);
        file.read_to_end(&mut text).map_err(|_| Errno::IO)?;
        match text.len() as u64 > CONFIG_BYTES {
            true => Err(Errno::FBIG),
            false => Ok(text),
        }
    }

    /// What is in a directory; nothing, if it is none.
    fn entries(&mut self, path: &Path) -> Vec<(std::ffi::OsString, FileType)> {
        let directory = match self.listed(path) {
            Ok(directory) => directory,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Vec::new(),
            Err(_) => {
                // Somebody else's is not the box's making.
                if self.is_ours(path) {
                    self.tell(path, "can't be searched for git repositories");
                }
                return Vec::new();
            }
        };
        let mut entries = Vec::new();
        for entry in directory.flatten().take(self.names) {
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name != "." && name != ".." {
                entries.push((name.to_owned(), entry.file_type()));
            }
        }
        self.names = self.names.saturating_sub(entries.len());
        // Some file systems do not say.
        for (name, kind) in &mut entries {
            if *kind == FileType::Unknown
                && let Ok(found) = self
                    .open(&path.join(name), OFlags::PATH)
                    .and_then(rustix::fs::fstat)
            {
                *kind = FileType::from_raw_mode(found.st_mode);
            }
        }
        entries
    }
}

/// A path without `.` and `..`, if it stays below the root.
pub(super) fn plain(path: &Path) -> Option<PathBuf> {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => plain.pop().then_some(())?,
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    Some(plain)
}

/// A word of a shell's, whatever an agent had it be.
fn for_shell(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// A name that an agent chose, for a line of text.
pub(crate) fn printable(path: &Path) -> String {
    let text = path.to_string_lossy();
    let text = text.chars().map(|c| match c.is_control() {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    });
    text.collect()
}
