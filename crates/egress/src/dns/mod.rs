//! DNS on both sides: the box's only name server, and the host's resolver.

mod codec;
mod names;
mod resolver;
mod server;

pub use resolver::{Resolve, ResolveError, Resolving, SystemResolver};

pub(crate) use names::{Meaning, Names};
pub(crate) use server::{serve_tcp, serve_udp};
