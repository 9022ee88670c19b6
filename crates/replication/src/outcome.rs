//! What goes into a decision and what comes out of it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use belljar_policy::Budget;

use crate::account::{Asked, Share, Shortage, Usage};
use crate::event::Event;
use crate::{Code, Jti, WorkerId};

/// What a decision brought about. It is applied already; the events wait to be stored.
#[derive(Clone, Debug, PartialEq)]
#[must_use = "the events must be stored and the commands carried out"]
pub struct Outcome<T> {
    /// The answer.
    pub result: T,
    /// What to store, in this order.
    pub events: Vec<Event>,
    /// What to do to boxes, at once. Parents come before their children.
    pub commands: Vec<Command>,
}

/// What to do to a box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// End it and all in it.
    Kill(WorkerId, Code),
    /// Stop it where it is and cut its network.
    Freeze(WorkerId),
    /// Let it go on.
    Thaw(WorkerId),
}

/// A request for a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Who asks.
    pub parent: WorkerId,
    /// The worker to be; fresh and random.
    pub worker: WorkerId,
    /// The number of the manifest to be; fresh and random.
    pub jti: Jti,
    /// The depth the asker claims, if it claims one. It must be right and decides nothing.
    pub claimed_depth: Option<u32>,
    /// What is asked for.
    pub asked: Asked,
    /// What the box would hold if nothing bounded it.
    pub need: Budget,
}

/// A request for a root, made by the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootRequest {
    /// The worker to be; fresh and random.
    pub worker: WorkerId,
    /// The number of its manifest.
    pub jti: Jti,
    /// What is asked for. What is not named is all that the contract's budget has left.
    pub asked: Asked,
    /// What the box would hold if nothing bounded it.
    pub need: Budget,
    /// How long it may live, if shorter than the contract says.
    pub lifetime: Option<Duration>,
}

/// What a verified manifest says. All of it must be what was granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestFacts {
    /// Who registers.
    pub worker: WorkerId,
    /// Its parent.
    pub parent: WorkerId,
    /// The manifest's single-use number.
    pub jti: Jti,
    /// Generations below the root.
    pub depth: u32,
    /// The epoch it was issued in.
    pub epoch: u64,
    /// What the worker and those below it may use together.
    pub granted: Budget,
}

/// A grant: a manifest may be signed for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Its single-use number.
    pub jti: Jti,
    /// The worker to be.
    pub worker: WorkerId,
    /// Its parent.
    pub parent: WorkerId,
    /// Generations below the root.
    pub depth: u32,
    /// How deep those below it may get.
    pub depth_ceiling: u32,
    /// What it gets.
    pub share: Share,
    /// The present epoch.
    pub epoch: u64,
    /// Its number in the order of events.
    pub seq: u64,
    /// When it lapses unused, on the boot clock.
    pub lapses_ns: u64,
    /// When the worker's time is over at the latest if it registers now, on the boot clock.
    pub expires_ns: Option<u64>,
}

impl Grant {
    /// What a manifest made from this grant says.
    #[must_use]
    pub fn manifest(&self) -> ManifestFacts {
        ManifestFacts {
            worker: self.worker,
            parent: self.parent,
            jti: self.jti,
            depth: self.depth,
            epoch: self.epoch,
            granted: self.share.granted,
        }
    }
}

/// A worker that was let in: its box may be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// Who.
    pub worker: WorkerId,
    /// Its parent; roots have none.
    pub parent: Option<WorkerId>,
    /// Generations below the root.
    pub depth: u32,
    /// What it gets, and what its box is confined to.
    pub share: Share,
    /// When its time is over, on the boot clock.
    pub expires_ns: Option<u64>,
}

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{}", .code.code(), .about.as_ref().map(|about| format!(": {about}")).unwrap_or_default())]
pub struct Denial {
    /// Why.
    pub code: Code,
    /// What stands behind it.
    pub about: Option<About>,
}

impl Denial {
    /// What to do about it, in one line.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        self.code.hint()
    }

    pub(crate) fn about(code: Code, about: About) -> Self {
        Self {
            code,
            about: Some(about),
        }
    }
}

impl From<Code> for Denial {
    fn from(code: Code) -> Self {
        Self { code, about: None }
    }
}

/// What stands behind a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum About {
    /// There is not enough of this.
    Short(Shortage),
    /// This condition holds.
    Condition(Arc<str>),
    /// This condition could not be evaluated.
    Failed(Arc<str>, crate::Fails),
    /// It will be over after so long, in nanoseconds.
    Wait(u64),
}

impl fmt::Display for About {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short(short) => write!(f, "{short}"),
            Self::Condition(name) => write!(f, "`{name}` holds"),
            Self::Failed(name, why) => write!(f, "`{name}` can't be evaluated: {why}"),
            Self::Wait(ns) => write!(f, "{} ms more", ns.div_ceil(1_000_000)),
        }
    }
}

/// No such worker is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("worker {0} is not alive")]
pub struct NotAlive(pub WorkerId);

/// A worker used more than it has. What it had is used up; the caller ends it with `killed_budget`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverBudget {
    /// Who.
    pub worker: WorkerId,
    /// By how much.
    pub excess: Usage,
}
