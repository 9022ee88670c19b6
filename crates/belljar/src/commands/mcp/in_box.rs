//! The servers of `mcp.servers` for a box that this process keeps.

use super::wrap::system;
use crate::exit::Failure;
use belljar_policy::Capability;
use belljar_sandbox::signals::SignalWatch;
use belljar_supervisor::tools::{Backstage, ServerFiles, Way, Whose};
use belljar_supervisor::{Command, Reins, SandboxId, StateDir};

/// The way to a box's servers, as long as it is kept.
pub(crate) struct Opened {
    _way: Way,
    /// Taken before there were threads; the keeper hears them.
    _signals: SignalWatch,
}

/// Opens the way, if the policy lists servers, and shows the box where it is. The box does not see what servers are given.
pub(crate) fn open(
    capability: &mut Capability,
    files: ServerFiles,
    state: &StateDir,
    id: &SandboxId,
    command: Command,
) -> Result<(Command, Option<Opened>), Failure> {
    if capability.tools.all_servers().is_empty() {
        return Ok((command, None));
    }
    let signals = SignalWatch::new().map_err(|errno| system("watching signals", errno.into()))?;
    let work = std::env::current_dir().map_err(|source| system("finding the directory", source))?;
    let backstage = Backstage::behind(capability, files)?;
    let whose = Whose {
        id,
        work: &work,
        reins: &Reins::new()?,
    };
    let (command, way) = Way::open(capability, &backstage, state, &whose, command)?;
    let opened = way.map(|way| Opened {
        _way: way,
        _signals: signals,
    });
    Ok((command, opened))
}
