//! The box that every tier stands in, and the native tier: it is made of the host kernel's own walls (namespaces, mounts,
//! Landlock, seccomp, cgroups). What another tier does otherwise is in [`crate::tier`].
//!
//! Order of walls: clone3 into a new user and process namespace and the control group → the other namespaces → the view is built and becomes the root →
//! no_new_privs → Landlock → capabilities dropped → seccomp → resource limits → exec. The box's pid 1 is [`init`], a
//! copy of the keeper that stays outside Landlock and seccomp and answers for both.

mod caller_path;
mod devices;
mod filter;
mod grip;
mod idmap;
mod init;
mod launch;
mod lent;
mod message;
mod mounts;
mod netlink;
mod own;
mod peer;
mod restrictions;
mod rules;
mod script;
mod shown;
mod sight;
mod start;
mod stay;
mod stillness;
mod supplies;
mod told;
mod view;
mod watched;
mod ways;

pub(crate) use filter::{compile, rule_of};
pub use grip::{FreezeError, FreezeMethod, Grip, Motion};
pub use launch::{Event, LONGEST_LOOK, Launched, Stdio};
pub use message::{LaunchError, Stage};
pub use mounts::{BoxMounts, Cover};
pub(crate) use restrictions::{ALL_RIGHTS, COMMON_GRANTS, Landlock, resource_limits};
pub(crate) use rules::{Rule, Verdict, When, rules};
pub use sight::{Deeds, Found, Sighting, Sightings};
pub(crate) use start::needs_mapped_owner;
pub use start::{Begun, Outline, Standing, Starting, begin, start};
pub(crate) use supplies::{Supplies, send_descriptors};
pub use ways::{BoxSockets, PROXY_PORT, Ways};
pub(crate) use ways::{Wired, Wiring, listen_at, try_network, wire};
