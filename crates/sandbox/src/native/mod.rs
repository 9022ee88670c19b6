//! The native tier: the box is made of the host kernel's own walls (namespaces, mounts, Landlock, seccomp, cgroups).
//!
//! Order of walls: clone3 into new namespaces and the control group → the view is built and becomes the root →
//! no_new_privs → Landlock → capabilities dropped → seccomp → resource limits → exec. The box's pid 1 is [`init`], a
//! copy of the keeper that stays outside Landlock and seccomp and answers for both.

mod filter;
mod grip;
mod idmap;
mod init;
mod launch;
mod message;
mod netlink;
mod peer;
mod rules;
mod script;
mod shown;
mod stillness;
mod view;
mod ways;

pub use grip::{FreezeError, FreezeMethod, Grip, Motion};
pub(crate) use launch::needs_mapped_owner;
pub use launch::{Ended, Event, LONGEST_LOOK, Launched, Standing, Starting, Stdio, start};
pub use message::{LaunchError, Stage};
pub(crate) use ways::try_network;
pub use ways::{BoxSockets, PROXY_PORT, Ways};
