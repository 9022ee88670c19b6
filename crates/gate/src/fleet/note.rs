//! What stands in the fleet's log besides the controller's own events: who acted and why, and how it went.

use belljar_replication::{Event, KindFirst, What, WorkerId};
use serde::de::MapAccess;
use serde::{Deserialize, Deserializer};

use crate::actor::Actor;
use crate::record::{Entry, NetworkUsed, UsedImage};

belljar_replication::kind_first! {
    "FleetNote",
    /// Something worth recording that does not change the controller's state.
    #[derive(Clone, Debug, PartialEq)]
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
        /// A worker's box is let run its program: what a lone run's `run_launched` says, and the manifest that vouches for it. It is
        /// on record before the box's first instruction.
        BoxLaunched {
            /// Whose.
            worker: WorkerId,
            /// SHA-256 of its manifest, under which that is kept beside the log.
            manifest: String,
            /// The program.
            program: String,
            /// SHA-256 of the arguments, each with its length before it.
            command_sha256: String,
            /// The capability's name.
            capability: String,
            /// SHA-256 of the capability.
            capability_sha256: String,
            /// The wall.
            tier: String,
            /// The image whose files it has, if not the host's.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            image: Option<UsedImage>,
        },
        /// A worker's box ended: what a lone run's `run_ended` says.
        BoxEnded {
            /// Whose.
            worker: WorkerId,
            /// The program's exit code, unless a signal ended it.
            exit_code: Option<i32>,
            /// The signal that ended it, if one did.
            signal: Option<i32>,
            /// What ended it, if not itself.
            killed_by: Option<String>,
            /// How long it ran.
            duration_ms: u64,
            /// The CPU time it used.
            cpu_ms: u64,
            /// The most memory it held.
            peak_memory_mb: u64,
            /// What it used of the network; nothing when it had none.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            network: Option<NetworkUsed>,
        },
        /// A worker's box has the files of an image. 0.1.0 wrote this; `box_launched` says it now.
        ImageUsed {
            /// Who.
            worker: WorkerId,
            /// What the image was called.
            image: String,
            /// What it is known by.
            digest: String,
        },
        /// An operator acted. What came of it follows.
        OperatorActed {
            /// What they did.
            act: String,
            /// To whom.
            worker: Option<WorkerId>,
            /// Why.
            reason: String,
            /// The user whom the controller runs as.
            user: u32,
            /// Who. Entries of 0.1.0 say it in the reason, if at all.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            by: Option<Actor>,
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
        /// A controller took over; these lived under the one before, whose end was theirs.
        WorkersLost {
            /// Who.
            workers: Vec<WorkerId>,
        },
        /// A controller took over, and these outlived the one before.
        WorkersAdopted {
            /// Who.
            workers: Vec<WorkerId>,
        },
        /// A writer was interrupted; what it had not finished was cut off.
        LogRecovered {
            /// Whole entries that were dropped; none of them was ever acknowledged.
            dropped_entries: u64,
            /// Bytes in all.
            dropped_bytes: u64,
        },
    }
}

/// An entry of the fleet's log.
#[derive(Clone, Debug, PartialEq)]
pub enum FleetEntry {
    /// The controller's.
    Event(Event),
    /// Ours.
    Note(Entry<FleetNote>),
}

/// What either of them says. Their kinds differ.
enum Either {
    Event(What),
    Note(FleetNote),
}

impl KindFirst for Either {
    fn of_kind<'de, A: MapAccess<'de>>(kind: &str, rest: A) -> Result<Self, A::Error> {
        match FleetNote::kinds().contains(&kind) {
            true => FleetNote::of_kind(kind, rest).map(Self::Note),
            false => What::of_kind(kind, rest).map(Self::Event),
        }
    }
}

impl<'de> Deserialize<'de> for Either {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        belljar_replication::read_kind_first(deserializer)
    }
}

impl<'de> Deserialize<'de> for FleetEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Entry { v, at, what } = Entry::deserialize(deserializer)?;
        Ok(match what {
            Either::Event(what) => Self::Event(Event { v, at, what }),
            Either::Note(what) => Self::Note(Entry { v, at, what }),
        })
    }
}

/// The most characters of a text from outside that an entry holds.
const BRIEF: usize = 1000;

/// A text from outside, cut and cleaned for the log. An entry too long for the log would be one that can't be recorded,
/// and that ends all grants: nobody may bring that about by what he calls his program.
pub(crate) fn brief(text: &str) -> String {
    let clean = |c: char| if c.is_control() { ' ' } else { c };
    let mut brief: String = text.chars().take(BRIEF).map(clean).collect();
    if text.chars().nth(BRIEF).is_some() {
        brief.push('…');
    }
    brief
}

#[cfg(test)]
mod tests {
    use belljar_replication::{Now, Version};

    use super::*;

    #[test]
    fn an_entry_is_read_by_its_kind() {
        let both = FleetNote::kinds()
            .iter()
            .filter(|kind| What::kinds().contains(kind));
        assert_eq!(both.count(), 0, "a kind means one thing");
        let note = Entry {
            v: Version,
            at: Now::default(),
            what: FleetNote::TaskStarted {
                worker: WorkerId(7),
            },
        };
        let event = Event::new(
            Now::default(),
            What::Started {
                worker: WorkerId(7),
            },
        );
        let read = |text: &str| serde_json::from_str::<FleetEntry>(text);
        let text = serde_json::to_string(&note).expect("plain data");
        assert_eq!(read(&text).expect("a note"), FleetEntry::Note(note));
        for (old, new) in [
            ("task_started", "task_forgotten"),
            ("\"worker\"", "\"x\":1,\"worker\""),
            ("\"v\":1", "\"v\":2"),
            ("\"v\":1", "\"v\":1,\"x\":1"),
        ] {
            assert!(read(&text.replace(old, new)).is_err(), "{new}");
        }
        let text = serde_json::to_string(&event).expect("plain data");
        assert_eq!(read(&text).expect("an event"), FleetEntry::Event(event));
    }

    #[test]
    fn a_text_from_outside_is_cut_and_cleaned() {
        assert_eq!(brief("as it was"), "as it was");
        assert_eq!(brief("two\nlines\u{1b}[0m"), "two lines [0m");
        let long = brief(&"\u{1}".repeat(100_000));
        assert_eq!(long, " ".repeat(BRIEF) + "…");
        assert_eq!(brief(&"x".repeat(BRIEF)).len(), BRIEF);
    }
}
