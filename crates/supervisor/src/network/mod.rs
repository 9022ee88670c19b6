//! A box's network: what its capability makes of it, the gateway that answers for it while it runs, and what is left to
//! tell when it is over.

mod book;
mod closed;
mod gateway;
mod outlook;
mod ports;
mod proxy;
mod refresh;
mod secrets;
mod source;
mod trust;

pub use book::{HostUse, NetworkUsage, RefusalGroup};
pub(crate) use closed::ClosedNetwork;
pub(crate) use gateway::{Gateway, Prepared, metered};
pub(crate) use outlook::{Eyes, Fittings, Outlook, network_of, secret_files};
pub use ports::answered_port;
pub(crate) use secrets::other_values;
pub use source::SecretReader;
