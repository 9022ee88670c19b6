//! What stands in the fleet's log besides the controller's own events: who acted and why, and how it went.

use belljar_replication::{Event, WorkerId};
use serde::{Deserialize, Serialize};

use crate::record::Entry;

/// Something worth recording that does not change the controller's state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum FleetNote {
    /// A replica was asked for.
    ReplicationRequested {
        /// Who asked; nobody for the first of a family.
        parent: Option<WorkerId>,
        /// Who it would be.
        worker: WorkerId,
        /// What for.
        reason: String,
    },
    /// A worker began a task of several.
    TaskStarted {
        /// Who.
        worker: WorkerId,
    },
    /// An operator acted. What came of it follows.
    OperatorActed {
        /// What they did.
        act: String,
        /// To whom.
        worker: Option<WorkerId>,
        /// Why.
        reason: String,
        /// Their user.
        user: u32,
    },
    /// An agent ended itself.
    AgentSaid {
        /// Who.
        worker: WorkerId,
        /// What.
        act: String,
        /// Why.
        reason: String,
    },
    /// How long it took to kill, and what was left.
    KillReport {
        /// Workers that were told to end.
        killed: u64,
        /// Boxes that ended.
        boxes: u64,
        /// Boxes that did not.
        survivors: u64,
        /// From the order to the last box's end, in microseconds.
        elapsed_us: u64,
    },
    /// A box could not be started, or ended in a way worth telling.
    BoxFailed {
        /// Whose.
        worker: WorkerId,
        /// How.
        why: String,
    },
    /// The keys changed.
    KeysChanged {
        /// The key that signs from here on.
        signing: String,
    },
    /// A writer was interrupted; what it had not finished was cut off.
    LogRecovered {
        /// Whole entries that were dropped; none of them was ever acknowledged.
        dropped_entries: u64,
        /// Bytes in all.
        dropped_bytes: u64,
    },
}

/// An entry of the fleet's log.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum FleetEntry {
    /// The controller's.
    Event(Event),
    /// Ours.
    Note(Entry<FleetNote>),
}
