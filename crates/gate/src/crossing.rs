//! How a permit gets into another process.
//!
//! A [`Permit`] is proof within one process. A keeper that is a process of its own asks for leave with a number it drew, over a
//! socket that it inherited and nobody else holds the other end of. The process that holds the permit spends it on a
//! [`Crossing`] for that number; the keeper turns that into a permit of its own, once. So on both sides code that goes around the
//! gate does not compile, and between them what counts is the socket and the number, never a message by itself.

use serde::{Deserialize, Serialize};

use crate::permit::Permit;
use crate::run::Launch;

/// A number that somebody who waits for a permit has drawn. It is good for one.
#[derive(Debug, PartialEq, Eq)]
pub struct Nonce([u8; 16]);

impl Nonce {
    /// Of bytes that nobody can guess.
    #[must_use]
    pub fn of(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

/// A permit on its way to another process.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Crossing {
    nonce: [u8; 16],
    entry: u64,
    run: String,
    capability_sha256: String,
}

/// A crossing that is not the one that is waited for.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("deny_permit: the order to start is for another box")]
pub struct WrongCrossing;

impl Permit<Launch> {
    /// Spends the permit for whoever drew this number, in another process.
    #[must_use]
    pub fn cross(self, nonce: [u8; 16]) -> Crossing {
        let entry = self.entry();
        let launch = self.spend();
        Crossing {
            nonce,
            entry,
            run: launch.run,
            capability_sha256: launch.capability_sha256,
        }
    }
}

impl Crossing {
    /// The permit, for the run that waits for it with the number it drew.
    pub fn land(self, nonce: Nonce, awaited: Launch) -> Result<Permit<Launch>, WrongCrossing> {
        let is_it = nonce.0 == self.nonce
            && awaited.run == self.run
            && awaited.capability_sha256 == self.capability_sha256;
        match is_it {
            true => Ok(Permit::new(awaited, self.entry)),
            false => Err(WrongCrossing),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(run: &str) -> Launch {
        Launch {
            run: run.to_owned(),
            program: String::new(),
            command_sha256: String::new(),
            capability: String::new(),
            capability_sha256: "c".to_owned(),
            tier: String::new(),
            image: None,
        }
    }

    #[test]
    fn a_permit_lands_with_the_run_and_the_number_it_was_spent_for_and_no_other() {
        let cross = || Permit::new(launch("a"), 7).cross([1; 16]);
        let landed = cross().land(Nonce::of([1; 16]), launch("a"));
        assert_eq!(landed.expect("its own").entry(), 7);
        for (nonce, run) in [([2; 16], "a"), ([1; 16], "b")] {
            let landed = cross().land(Nonce::of(nonce), launch(run));
            assert_eq!(landed.err(), Some(WrongCrossing));
        }
    }
}
