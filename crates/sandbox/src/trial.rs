//! Trying a tier: a box of it is put up around a program of the caller's own, run to its end and taken down.

use crate::host::Host;
use crate::microvm;
use crate::native::{Event, LaunchError, Stdio, start};
use crate::plan::{
    Access, Entry, Freezer, Identity, Kind, Limits, Network, Ownership, Plan, Shows, Spawn, View,
    Watch,
};
use crate::show::{Show, ShowName};
use crate::tier::Tier;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Why a tier does not work here.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrialError {
    /// The box could not be put up.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// Its program did not end well.
    #[error("the program of a box ended with wait status {0:#x}")]
    Ended(i32),
    /// Its program did not end.
    #[error("the program of a box did not end within {} s", .0.as_secs())]
    Late(Duration),
    /// The system refused something around it.
    #[error("trying it")]
    System(#[source] std::io::Error),
}

/// How long a trial may take on the slowest host, a guest's start not counted.
const LONGEST: Duration = Duration::from_secs(120);

/// The same, with a guest's start where the tier has one: whoever waits for a box waits longer than what is in it does.
pub(crate) fn longest(tier: &Tier) -> Duration {
    match tier {
        Tier::Microvm(_) => LONGEST + microvm::SLOWEST_START,
        Tier::Native | Tier::Gvisor(_) => LONGEST,
    }
}

/// The files of a trial's box.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ground<'a> {
    /// None but the program.
    Bare,
    /// An image's, whose tree is there on the host.
    Image(&'a Path),
}

/// Trees that every box has its own of.
const OWN: [&str; 4] = ["dev", "proc", "sys", "tmp"];

/// Runs `program`, which must need no other file, in a box of this tier. Returns how long it took from the first step to
/// the end of the box. Nothing of the host's is shown, and nothing is left.
pub fn trial(
    tier: Tier,
    host: &Host,
    ground: Ground<'_>,
    program: &Path,
    arguments: &[&str],
) -> Result<Duration, TrialError> {
    let system = |errno: Errno| TrialError::System(errno.into());
    let null = || null().map_err(system);
    let stdio = Stdio {
        stdin: null()?,
        stdout: null()?,
        stderr: null()?,
    };
    let mut plan = plan(program, arguments)?;
    if let Ground::Image(tree) = ground {
        show_tree(tree, &mut plan.view).map_err(TrialError::System)?;
    }
    run(tier, host, &plan, &stdio)
}

pub(crate) fn null() -> Result<OwnedFd, Errno> {
    rustix::fs::open(c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

/// Puts a box up, and waits for its end.
pub(crate) fn run(
    tier: Tier,
    host: &Host,
    plan: &Plan,
    stdio: &Stdio,
) -> Result<Duration, TrialError> {
    let system = |errno: Errno| TrialError::System(errno.into());
    host.can_carry(plan, &tier).map_err(LaunchError::from)?;
    let longest = longest(&tier);
    let begun = Instant::now();
    let starting = start(plan, tier, host, stdio)?;
    starting.go_on()?;
    let mut launched = starting.stand()?.go()?;
    let mut status = None;
    loop {
        while let Some(event) = launched.next_event() {
            if let Event::MainEnded { status: ended } = event {
                status = Some(ended);
            }
        }
        if launched.is_deaf() || status.is_some() {
            break;
        }
        let left = longest
            .checked_sub(begun.elapsed())
            .ok_or(TrialError::Late(longest))?;
        let left = Timespec::try_from(left).map_err(|_| system(Errno::INVAL))?;
        let mut heard = [PollFd::from_borrowed_fd(launched.events(), PollFlags::IN)];
        poll(&mut heard, Some(&left)).map_err(system)?;
    }
    launched.finish().map_err(system)?;
    match status {
        Some(0) => Ok(begun.elapsed()),
        other => Err(TrialError::Ended(other.unwrap_or(-1))),
    }
}

/// Shows what is at the top of an image's tree: directories, files, and links as links.
fn show_tree(tree: &Path, view: &mut Vec<View>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(tree)? {
        let entry = entry?;
        if OWN.iter().any(|own| entry.file_name() == **own) {
            continue;
        }
        let kind = entry.file_type()?;
        let shows = match kind.is_symlink() {
            true => Shows::Link(std::fs::read_link(entry.path())?),
            false => Shows::Host {
                source: entry.path(),
                kind: match kind.is_dir() {
                    true => Kind::Directory,
                    false => Kind::File,
                },
                access: Access::Read,
                ownership: Ownership::Image,
            },
        };
        view.push(View {
            path: Path::new("/").join(entry.file_name()),
            shows,
        });
    }
    Ok(())
}

/// A box for this program alone.
pub(crate) fn plan(program: &Path, arguments: &[&str]) -> Result<Plan, TrialError> {
    let source = program.canonicalize().map_err(TrialError::System)?;
    let name = ShowName::new("trial").map_err(LaunchError::from)?;
    let path = name.path();
    let argv = std::iter::once("trial").chain(arguments.iter().copied());
    let uid = rustix::process::geteuid().as_raw();
    let gid = rustix::process::getegid().as_raw();
    const NOBODY: u32 = 65534;
    let (uid, gid) = if uid == 0 {
        (NOBODY, NOBODY)
    } else {
        (uid, gid)
    };
    let view = |path: &str, shows: Shows| View {
        path: PathBuf::from(path),
        shows,
    };
    Ok(Plan {
        id: format!("trial-{}", std::process::id()),
        program: path,
        argv: argv.map(OsString::from).collect(),
        env: Vec::new(),
        workdir: PathBuf::from("/"),
        identity: Identity {
            uid,
            gid,
            owner_uid: uid,
            owner_gid: gid,
        },
        view: vec![
            view("/", Shows::Frame),
            view("/tmp", Shows::Private { mode: 0o1777 }),
        ],
        private_bytes: 16 << 20,
        limits: Limits::default(),
        spawn: Spawn::Allow,
        shows: vec![Show::Program { name, source }],
        replaced: Vec::new(),
        freezer: Freezer::AsItComes,
        network: Network::Closed,
        entry: Entry::Closed,
        answered_port: None,
        watch: Watch::Nothing,
    })
}
