//! Trying a tier: a box of it is put up around a program of the caller's own, run to its end and taken down.

use crate::host::Host;
use crate::native::{Event, LaunchError, Stdio, start};
use crate::plan::{Entry, Freezer, Identity, Limits, Network, Plan, Shows, Spawn, View, Watch};
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
    #[error("the program of a box did not end within {} s", LONGEST.as_secs())]
    Late,
    /// The system refused something around it.
    #[error("trying it")]
    System(#[source] std::io::Error),
}

/// How long a trial may take on the slowest host.
const LONGEST: Duration = Duration::from_secs(120);

/// Runs `program`, which must need no other file, in a box of this tier. Returns how long it took from the first step to
/// the end of the box. Nothing of the host's is shown, and nothing is left.
pub fn trial(
    tier: Tier,
    host: &Host,
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
    run(tier, host, program, arguments, &stdio)
}

pub(crate) fn null() -> Result<OwnedFd, Errno> {
    rustix::fs::open(c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

/// The same with these streams.
pub(crate) fn run(
    tier: Tier,
    host: &Host,
    program: &Path,
    arguments: &[&str],
    stdio: &Stdio,
) -> Result<Duration, TrialError> {
    let system = |errno: Errno| TrialError::System(errno.into());
    let plan = plan(program, arguments)?;
    host.can_carry(&plan, &tier).map_err(LaunchError::from)?;
    let begun = Instant::now();
    let starting = start(&plan, tier, host, stdio)?;
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
        let left = LONGEST
            .checked_sub(begun.elapsed())
            .ok_or(TrialError::Late)?;
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

fn plan(program: &Path, arguments: &[&str]) -> Result<Plan, TrialError> {
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
