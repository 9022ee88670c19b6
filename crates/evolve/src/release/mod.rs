//! Releases: trees named by their contents, and places that show one of them at a time.
//!
//! A [`Store`] keeps whole trees below `objects/`, each under its own digest, and never changes one. A *place*, such as
//! `current`, is a symbolic link to one of them. It is moved with one rename, after a line in a journal says what is
//! about to happen; so a killed process or a cut of power leaves a place before its move or after it. What a place
//! shows is read back and hashed before every move and after it.
//!
//! Nothing of this asks the agent or its candidate for anything: going back works whatever state they are in.

mod git;
mod journal;
mod store;

pub use git::{GitError, History};
pub use journal::{Move, MoveKind};
pub use store::{Place, Recovered, Rehearsed, ReleaseError, Store};
