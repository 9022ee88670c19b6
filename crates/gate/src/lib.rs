//! The one door: decide, record, permit.
//!
//! Whatever an agent may do to the world outside its box is decided here, put on record, and only then
//! permitted. A [`Permit`] is the proof, in the type system, that all three happened: whoever starts a box must
//! hold one, and there is no other way to get one.
//!
//! Lone runs pass [`RunGate`], families of replicas [`FleetGate`]. Where the record can't be written, nothing is
//! granted; but a kill is carried out first and recorded after.

pub mod clock;
pub mod key_change;
pub mod keyring;
pub mod latch;
pub mod ocsf;
pub mod record;

mod actor;
mod crossing;
mod fleet;
mod log;
mod permit;
mod run;

pub use actor::Actor;
pub use belljar_ledger::Durability;
pub use crossing::{Crossing, Nonce, WrongCrossing};
pub use fleet::{
    Act, Adopted, FleetEntry, FleetGate, FleetNote, FleetOptions, FleetRefusal, Hands, KillTally,
    Living, ManifestStore, ManifestStoreError, OpenFleetError, Papers, PapersError, Replicate,
    Standing, Unrecorded, Wish, read_state, reset_fleet,
};
pub use log::{LogError, LogKind, in_full};
pub use permit::Permit;
pub use run::{Ending, Launch, Refusal, RunGate};
