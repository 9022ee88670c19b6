//! Names of what there is. Each kind has a type of its own: an alert's number is no agent's id, and what takes one takes no other.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};

use super::text::{InvalidText, check_length};

const MOST: usize = 64;

/// 1 to 64 letters, digits, `-` and `_`: it fits in a path as it is.
fn check(text: &str) -> Result<(), InvalidText> {
    check_length(text, MOST)?;
    let plain = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    match text.chars().find(|c| !plain(c)) {
        Some(bad) => Err(InvalidText::Character(bad)),
        None => Ok(()),
    }
}

macro_rules! ids {
    ($($(#[doc = $doc:literal])+ $name:ident = $said:literal;)+) => {$(
        $(#[doc = $doc])+
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// Takes a well-formed id.
            pub fn new(text: impl Into<String>) -> Result<Self, InvalidText> {
                let text = text.into();
                check(&text)?;
                Ok(Self(text))
            }

            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                Self::new(String::deserialize(deserializer)?).map_err(D::Error::custom)
            }
        }

        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({
                    "type": "string",
                    "pattern": "^[A-Za-z0-9_-]{1,64}$",
                    "description": $said,
                })
            }
        }
    )+};
}

ids! {
    /// The name of a worker: 1 to 64 letters, digits, `-` and `_`. It fits in a path as it is.
    WorkerId = "The name of a worker.";
    /// An agent is named by its worker's id. An agent that is restarted keeps its name and gets a new id.
    AgentId = "The name of one run of an agent: its worker's.";
    /// An alert's number, as it stands in a path.
    AlertId = "The number of an alert.";
    /// A silence's number, as it stands in a path.
    SilenceId = "The number of a silence.";
    /// A hold's name, as it stands in a path.
    HoldId = "The name of a call that waits.";
    /// A proposal's name, as it stands in a path.
    ProposalName = "The name of a proposal.";
}

impl AgentId {
    /// The worker that it is.
    #[must_use]
    pub fn worker(&self) -> WorkerId {
        WorkerId(self.0.clone())
    }
}

impl From<WorkerId> for AgentId {
    fn from(worker: WorkerId) -> Self {
        Self(worker.0)
    }
}

#[cfg(test)]
mod tests {
    use std::any::TypeId;
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ids_fit_in_a_path() {
        assert!(WorkerId::new("w-1_A").is_ok());
        for bad in ["", "a/b", "a b", "..", "ä", "a%2f"] {
            assert!(WorkerId::new(bad).is_err(), "{bad}");
            assert!(AlertId::new(bad).is_err(), "{bad}");
        }
        assert!(WorkerId::new("x".repeat(65)).is_err());
    }

    #[test]
    fn no_id_is_another_kinds() {
        let all = [
            TypeId::of::<WorkerId>(),
            TypeId::of::<AgentId>(),
            TypeId::of::<AlertId>(),
            TypeId::of::<SilenceId>(),
            TypeId::of::<HoldId>(),
            TypeId::of::<ProposalName>(),
        ];
        assert_eq!(BTreeSet::from(all).len(), all.len());
    }
}
