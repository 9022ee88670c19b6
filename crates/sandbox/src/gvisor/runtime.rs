//! The `runsc` of this host.

use super::noted::Note;
use crate::host::{Missing, demand_trusted, demand_trusted_way};
use crate::plan::{Access, Plan, Shows};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Where it is looked for: where Debian's package and upstream's instructions put it. Not along a `PATH`, which may begin
/// with somebody's workspace.
const PLACES: &[&str] = &[
    "/usr/local/bin/runsc",
    "/usr/bin/runsc",
    "/usr/local/sbin/runsc",
];

/// Who says where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Named {
    /// The usual places: root's.
    Nobody,
    User,
}

const INSTALL: &str = "install runsc (Debian: apt install runsc; other systems: https://gvisor.dev/docs/user_guide/install), or set sandbox_tier: seccomp";

/// An installed `runsc`.
#[derive(Debug)]
pub struct Runtime {
    path: PathBuf,
    named: Named,
    note: Note,
    asked: Mutex<Option<Child>>,
    version: OnceLock<Result<Version, Missing>>,
}

/// The day of a release, such as 20221219.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub(super) u32);

impl Version {
    /// Which release day a `runsc --version` names: `release-20240102.0` upstream, `0.0~20221219.0` in Debian.
    pub fn parse(said: &str) -> Option<Self> {
        let line = said
            .lines()
            .find(|line| line.starts_with("runsc version"))?;
        let mut numbers = line.split(|c: char| !c.is_ascii_digit());
        let day = numbers.find(|digits| digits.len() == 8 && digits.starts_with("20"))?;
        day.parse().ok().map(Self)
    }

    /// How it runs the program's instructions and stops at its calls.
    pub fn platform(self) -> &'static str {
        match self >= SYSTRAP {
            true => "systrap",
            false => "ptrace",
        }
    }

    /// What must be said to this version and would not be understood by others.
    pub(super) fn flags(self) -> &'static [&'static str] {
        match self {
            // Its kernel would open the host's files itself; its file server is one more process to break out of.
            version if version >= DIRECT_FILES => &["--platform=systrap", "--directfs=false"],
            version if version >= SYSTRAP => &["--platform=systrap"],
            _ => &["--platform=ptrace"],
        }
    }
}

/// The first release whose systrap platform is complete.
const SYSTRAP: Version = Version(20_230_501);
/// The first whose kernel opens files itself unless told not to.
const DIRECT_FILES: Version = Version(20_230_620);
/// The first that knows `--overlay2` and `--host-uds`.
const OLDEST: Version = Version(20_221_212);

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl Runtime {
    /// Finds it, at `named` or else in the usual places, and asks for its version where nothing is noted of it in `notes`. The
    /// answer is waited for when it is needed, and noted. `notes` is a directory that no box sees.
    pub fn find(named: Option<&Path>, notes: &Path) -> Result<Self, Missing> {
        let (path, named) = match named {
            Some(path) => (follow(path)?, Named::User),
            None => (look_around()?, Named::Nobody),
        };
        let cannot_use = |error: std::io::Error| unusable(&path, &error.to_string());
        // It is to be the wall, so nobody but root and its user may have written it, or put it there.
        let trusted = match named {
            Named::Nobody => demand_trusted(&path),
            Named::User => demand_trusted_way(&path),
        };
        trusted.map_err(|why| unusable(&path, &why))?;
        let metadata = std::fs::metadata(&path).map_err(cannot_use)?;
        let note = Note::about(&metadata, notes);
        let version = OnceLock::new();
        let asked = match note.read() {
            Some(noted) => {
                let _ = version.set(usable(noted, &path));
                None
            }
            None => Some(ask(&path).map_err(cannot_use)?),
        };
        Ok(Self {
            path,
            named,
            note,
            asked: Mutex::new(asked),
            version,
        })
    }

    /// Where it is, with no link on the way.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the plan leaves it alone: one that the program may write would be the next box's wall. In the usual places it
    /// is root's, as everything beside it is.
    pub(super) fn demand_out_of_reach(&self, plan: &Plan) -> Result<(), Missing> {
        let holds = |place: &Path| self.path.starts_with(place);
        let shown = plan.view.iter().map(|entry| match &entry.shows {
            Shows::Host { source, access, .. } => (source.as_path(), Some(*access)),
            _ => (entry.path.as_path(), None),
        });
        let nearest = shown
            .filter(|(place, _)| holds(place))
            .max_by_key(|(place, _)| place.components().count());
        match (self.named, nearest) {
            (Named::User, Some((place, Some(Access::Write)))) => Err(unusable(
                &self.path,
                &format!("the policy lets the program write to {}", place.display()),
            )),
            _ => Ok(()),
        }
    }

    /// Its version, if it is one that can be used.
    pub fn version(&self) -> Result<Version, Missing> {
        let hear = || {
            let child = self.asked().take();
            let child = child.ok_or_else(|| unusable(&self.path, "it said nothing"))?;
            let version = hear(child).map_err(|why| unusable(&self.path, &why))?;
            self.note.write(version);
            usable(version, &self.path)
        };
        self.version.get_or_init(hear).clone()
    }

    fn asked(&self) -> std::sync::MutexGuard<'_, Option<Child>> {
        // Taking it is all that is ever done.
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if let Some(mut child) = self.asked().take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The file that a user's word leads to.
fn follow(path: &Path) -> Result<PathBuf, Missing> {
    if !path.is_absolute() {
        // Boxes are started from many directories, and by a daemon too.
        return Err(unusable(path, "it is to be named from / on"));
    }
    path.canonicalize()
        .map_err(|error| unusable(path, &error.to_string()))
}

fn look_around() -> Result<PathBuf, Missing> {
    let found = PLACES
        .iter()
        .find_map(|place| Path::new(place).canonicalize().ok());
    found.ok_or_else(|| Missing {
        what: format!(
            "sandbox_tier gvisor needs runsc, which is not in {}",
            PLACES.join(", ")
        ),
        hint: INSTALL.into(),
    })
}

fn ask(path: &Path) -> std::io::Result<Child> {
    Command::new(path)
        .arg("--version")
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
}

fn hear(mut child: Child) -> Result<Version, String> {
    const LONGEST: u64 = 4096;
    let mut said = String::new();
    let heard = match child.stdout.take() {
        Some(stdout) => stdout.take(LONGEST).read_to_string(&mut said),
        None => Ok(0),
    };
    let _ = child.wait();
    heard.map_err(|error| error.to_string())?;
    Version::parse(&said).ok_or_else(|| "it tells no version".into())
}

fn usable(version: Version, path: &Path) -> Result<Version, Missing> {
    match version >= OLDEST {
        true => Ok(version),
        false => Err(unusable(
            path,
            &format!("release {version} is older than {OLDEST}"),
        )),
    }
}

fn unusable(path: &Path, why: &str) -> Missing {
    Missing {
        what: format!("sandbox_tier gvisor can't use {}: {why}", path.display()),
        hint: INSTALL.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_debians_and_from_upstreams_words() {
        let check = |said: &str, day: Option<u32>| {
            assert_eq!(Version::parse(said), day.map(Version), "{said}");
        };
        check(
            "runsc version 0.0~20221219.0\nspec: 1.0.2-dev\n",
            Some(20_221_219),
        );
        check(
            "runsc version release-20240102.0\nspec: 1.1.0-rc.1\n",
            Some(20_240_102),
        );
        check("runsc version VERSION_MISSING\nspec: 20221219\n", None);
        check("", None);
    }

    #[test]
    fn flags_are_those_that_a_version_knows() {
        assert_eq!(Version(20_221_219).flags(), ["--platform=ptrace"]);
        assert_eq!(
            Version(20_240_102).flags(),
            ["--platform=systrap", "--directfs=false"]
        );
    }
}
