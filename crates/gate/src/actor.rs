//! Who acted, as data: a reader of the log should not have to find a name in a sentence.

use serde::{Deserialize, Serialize};

/// Who did what an entry tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Actor {
    /// A user of this machine.
    User {
        /// Their number.
        uid: u32,
        /// What the machine calls them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
    /// Whoever holds a token of the web API.
    Token {
        /// The token's id, which is no secret.
        id: String,
        /// What its owner calls it.
        name: String,
    },
    /// An agent.
    Agent {
        /// Its id.
        id: String,
    },
    /// A rule that an operator wrote down beforehand.
    Rule {
        /// What it is called.
        name: String,
    },
}

impl Actor {
    /// The user we run as.
    #[must_use]
    pub fn this_user() -> Self {
        let uid = rustix::process::getuid().as_raw();
        Self::User {
            uid,
            name: user_name(uid),
        }
    }
}

/// As one word, for lines that people read.
impl std::fmt::Display for Actor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::User {
                name: Some(name), ..
            } => write!(f, "user:{name}"),
            Self::User { uid, name: None } => write!(f, "user:{uid}"),
            Self::Token { id, name } => write!(f, "token:{name}/{id}"),
            Self::Agent { id } => write!(f, "agent:{id}"),
            Self::Rule { name } => write!(f, "rule:{name}"),
        }
    }
}

/// The machine's own list; a user who is only in a directory service stays a number.
fn user_name(uid: u32) -> Option<String> {
    let users = std::fs::read_to_string("/etc/passwd").ok()?;
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_acts_is_told_apart_by_type() {
        let actors = [
            (
                Actor::User { uid: 7, name: None },
                r#"{"type":"user","uid":7}"#,
            ),
            (
                Actor::Token {
                    id: "6d8e".into(),
                    name: "ops".into(),
                },
                r#"{"type":"token","id":"6d8e","name":"ops"}"#,
            ),
            (
                Actor::Rule {
                    name: "crowd".into(),
                },
                r#"{"type":"rule","name":"crowd"}"#,
            ),
        ];
        for (actor, text) in actors {
            assert_eq!(serde_json::to_string(&actor).expect("plain data"), text);
            assert_eq!(
                serde_json::from_str::<Actor>(text).expect("the same"),
                actor
            );
        }
        assert!(serde_json::from_str::<Actor>(r#"{"type":"user","uid":7,"x":1}"#).is_err());
    }

    #[test]
    fn root_has_a_name() {
        assert_eq!(user_name(0).as_deref(), Some("root"));
        assert_eq!(user_name(u32::MAX - 7), None);
    }
}
