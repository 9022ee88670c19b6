//! Somebody who wants to know how the boxes of a fleet fare. Called from keepers' threads and from the desk's, so each call must be
//! short, and must not ask the gate.

use std::sync::Arc;

use belljar_replication::WorkerId;

use super::crew::Employed;
use crate::apart::words::{Breach, Card, Ending, Failed, RefusedHost, Sample, Started};
use crate::tools::ToolCalls;

/// How a box is over.
#[derive(Clone, Debug)]
pub(crate) enum Over {
    /// Its program ran.
    Ended(Ending),
    /// It never did.
    Failed(Failed),
    /// Its keeper is gone.
    Lost,
}

/// Whoever watches.
pub(crate) trait Watch: std::fmt::Debug + Send + Sync {
    /// Somebody was let in, and will have a box.
    fn hired(&self, employed: &Arc<Employed>, card: &Card);
    /// Its keeper is this process.
    fn kept(&self, worker: WorkerId, pid: u32);
    /// Its program runs.
    fn started(&self, worker: WorkerId, started: &Started);
    /// What it uses.
    fn sampled(&self, worker: WorkerId, sample: &Sample);
    /// What it called of MCP servers, all since its start.
    fn tools(&self, worker: WorkerId, counts: Vec<ToolCalls>);
    /// The gateway refused something.
    fn refused(&self, worker: WorkerId, refusal: &RefusedHost);
    /// A wall stopped something.
    fn violated(&self, worker: WorkerId, breach: &Breach);
    /// Nothing is left of it, and that is on record.
    fn ended(&self, worker: WorkerId, over: &Over);
    /// It was refused a replica.
    fn denied(&self, worker: WorkerId, code: &str, why: &str, hint: &str);
    /// It was ordered to be killed.
    fn doomed(&self, worker: WorkerId, code: &str);
    /// It was ordered to hold still.
    fn freezing(&self, worker: WorkerId);
    /// It was seen to.
    fn frozen(&self, worker: WorkerId);
    /// It was let go on.
    fn thawed(&self, worker: WorkerId);
    /// The kill switch was engaged, or reset.
    fn switched(&self, is_engaged: bool, reason: &str);
}
