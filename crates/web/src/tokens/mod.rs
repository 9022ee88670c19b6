//! Tokens: who may ask what over the web.
//!
//! A token is 256 random bits. Only its SHA-256 is kept, so whoever reads the file can't use what is in it. A slow hash such as
//! Argon2 guards words that people choose; there is nothing to guess in 256 random bits, and a fast hash lets every
//! request be checked.

mod file;
mod live;
mod text;

pub(crate) use file::now_ms;
pub use file::{NewToken, TokenError, TokenFile, TokenRecord};
pub(crate) use live::LiveTokens;
pub use text::TokenText;
pub(crate) use text::{Digest, digest, random};

use std::fmt;

use belljar_api::Asker;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a token lets its holder do. Each role may do what the ones before it may.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Look.
    Viewer,
    /// Also act on agents: start, stop, quarantine, kill, engage the kill switch.
    Operator,
    /// Also change what binds everybody: reset the kill switch, revoke, shut down.
    Admin,
}

impl Role {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Viewer, Self::Operator, Self::Admin];

    /// Whether this role is enough for a route. What only an agent may ask, no role may.
    #[must_use]
    pub fn may(self, asker: Asker) -> bool {
        match asker {
            Asker::Agent => false,
            Asker::Viewer => self >= Self::Viewer,
            Asker::Operator => self >= Self::Operator,
            Asker::Admin => self >= Self::Admin,
        }
    }

    /// The word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A token's name for lists and records. It is no secret and says nothing about the token.
#[derive(
    Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
pub struct TokenId(String);

impl TokenId {
    pub(crate) fn fresh() -> Result<Self, TokenError> {
        Ok(Self(data_encoding::HEXLOWER.encode(&random::<6>()?)))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
