//! What this host can enforce, found out by asking it.

use crate::cgroup::Cgroups;
use crate::plan::Plan;
use crate::sys;
use crate::tier::Tier;

/// What was found.
#[derive(Debug, Clone)]
pub struct Host {
    /// Landlock's version, if it is there.
    pub landlock_abi: Option<u32>,
    /// Where limits on process trees can be set.
    pub cgroups: Cgroups,
}

/// Something a plan asks for that this host can't give.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct Missing {
    /// What can't be held here.
    pub what: String,
    /// What to do about it.
    pub hint: String,
}

/// Whether a file can be part of a wall: nobody but root and the user who runs it may have written it.
pub(crate) fn demand_trusted(path: &std::path::Path) -> Result<(), String> {
    let metadata = std::fs::metadata(path).map_err(|error| error.to_string())?;
    match is_trusted(&metadata) {
        true => Ok(()),
        false => Err("others may write to it".into()),
    }
}

/// The same, and whether nobody else may have put it where it is. The path has no link in it.
pub(crate) fn demand_trusted_way(path: &std::path::Path) -> Result<(), String> {
    use std::os::unix::fs::MetadataExt;
    demand_trusted(path)?;
    for above in path.ancestors().skip(1) {
        let metadata = std::fs::metadata(above).map_err(|error| error.to_string())?;
        // In a sticky directory only its owner, and a file's own, may replace the file.
        let is_sticky = metadata.mode() & libc::S_ISVTX != 0;
        if !is_owned(&metadata) || (!is_trusted(&metadata) && !is_sticky) {
            return Err(format!("others may write to {}", above.display()));
        }
    }
    Ok(())
}

/// Whether nobody but root and our own user may have written it.
pub(crate) fn is_trusted(metadata: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    is_owned(metadata) && metadata.mode() & 0o022 == 0
}

/// Whether it is root's or our own user's.
fn is_owned(metadata: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    let own = rustix::process::geteuid().as_raw();
    [0, own].contains(&metadata.uid())
}

impl Host {
    /// Asks the running kernel. Costs a few system calls; nothing is changed.
    pub fn probe() -> Self {
        Self {
            landlock_abi: sys::landlock_abi(),
            cgroups: Cgroups::find(),
        }
    }

    /// Whether every wall and limit of the plan can stand here; the first that can't, otherwise.
    pub fn can_carry(&self, plan: &Plan, tier: &Tier) -> Result<(), Missing> {
        tier.can_carry(plan)?;
        if self.landlock_abi.is_none() && matches!(tier, Tier::Native) {
            return Err(Missing {
                what: "this kernel has no Landlock".into(),
                hint: "boot a kernel with CONFIG_SECURITY_LANDLOCK and 'landlock' in the lsm= list"
                    .into(),
            });
        }
        if plan.limits.cpu_percent.is_some() && !self.cgroups.can_limit_cpu() {
            return Err(Missing {
                what: "max_cpu_percent needs a control group, and this user has none to make one in".into(),
                hint: "run under `systemd-run --user --scope -p Delegate=yes`, as root, or without max_cpu_percent".into(),
            });
        }
        if crate::native::needs_mapped_owner(plan) && !rustix::process::geteuid().is_root() {
            return Err(Missing {
                what: "files of another owner can only be mapped by root".into(),
                hint: "run as root, or as the owner of the files".into(),
            });
        }
        Ok(())
    }

    /// Whether the system call filter can ask init.
    pub fn has_seccomp_notifications() -> bool {
        sys::has_notifications()
    }

    /// Tries to lead a network to its keeper, in a child that ends at once: `Ok` if egress rules can be carried out.
    pub fn try_network() -> Result<(), rustix::io::Errno> {
        crate::native::try_network()
    }

    /// Tries what a box is made of, in a child that ends at once: `Ok` if user namespaces can be had.
    pub fn try_namespaces() -> Result<(), rustix::io::Errno> {
        match sys::clone_into(sys::BIRTH_NAMESPACES, None)? {
            sys::Fork::Child => sys::exit_now(match sys::leave_namespaces() {
                Ok(()) => 0,
                Err(errno) => errno.raw_os_error(),
            }),
            sys::Fork::Parent { pid, .. } => match sys::reap(pid)?.status {
                0 => Ok(()),
                status => Err(rustix::io::Errno::from_raw_os_error(status >> 8)),
            },
        }
    }
}
