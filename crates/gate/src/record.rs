//! What stands in the logs: one JSON object an entry.

use std::collections::BTreeMap;

use belljar_replication::{Now, Version};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::actor::Actor;

/// An entry: when, and what. The controller's events have the same shape.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry<What> {
    /// The version of the format.
    pub v: Version,
    /// When.
    pub at: Now,
    /// What happened.
    pub what: What,
}

impl<What: Serialize> Entry<What> {
    /// An entry of the present version, as bytes for the log.
    pub fn encode(at: Now, what: What) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(&Entry {
            v: Version,
            at,
            what,
        })
    }
}

/// The image whose files a box had.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UsedImage {
    /// What it was called.
    pub name: String,
    /// What it is known by: a name may come to mean another image, this can't.
    pub digest: String,
}

/// The program of a box, as the record names it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProgramRecord {
    /// The program.
    pub program: String,
    /// SHA-256 of the arguments, each with its length before it: they may hold secrets, so their digest stands for them.
    pub command_sha256: String,
    /// The image whose files it has, if not the host's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<UsedImage>,
}

/// What stands in the log of lone runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum RunEvent {
    /// A box was let start. Arguments may hold secrets, so their digest stands for them.
    RunLaunched {
        /// The run.
        run: String,
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
        /// The image whose files it had, if not the host's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        image: Option<UsedImage>,
        /// The user who started it.
        user: u32,
    },
    /// A box was not let start.
    RunRefused {
        /// The run.
        run: String,
        /// The program.
        program: String,
        /// The stable code.
        code: String,
        /// In words.
        why: String,
    },
    /// A box ended.
    RunEnded {
        /// The run.
        run: String,
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
    /// A box was refused something on the network: the first of its kind in this run.
    EgressRefused {
        /// The run.
        run: String,
        /// How it asked.
        way: String,
        /// The host, as it asked for it.
        host: String,
        /// The port, where it named one.
        port: Option<u16>,
        /// The stable code.
        code: String,
        /// The rule that refused it, or that let it come so far.
        rule: Option<String>,
        /// What was found, where the code does not say it all.
        detail: Option<String>,
    },
    /// A call of an MCP tool, and what came of it.
    McpCall {
        /// The run, or what was wrapped.
        run: String,
        /// The server.
        server: String,
        /// The tool.
        tool: String,
        /// `allow`, `deny`, `hold_allowed` or `hold_refused`.
        verdict: String,
        /// The stable code of a refusal.
        code: Option<String>,
        /// The rule that decided.
        rule: Option<String>,
        /// From the question to the answer, in microseconds.
        duration_us: u64,
        /// The answer's size.
        result_bytes: u64,
        /// Whether the server called it an error.
        is_error: bool,
        /// The arguments; what a rule redacts is its size and digest.
        arguments: serde_json::Value,
    },
    /// A call of an MCP tool waits for an operator.
    McpHeld {
        /// The run, or what was wrapped.
        run: String,
        /// The hold.
        hold: String,
        /// The server.
        server: String,
        /// The tool.
        tool: String,
        /// Why it is held.
        code: String,
        /// The rule that holds it.
        rule: String,
    },
    /// An operator answered about a held call, or nobody did.
    McpAnswered {
        /// The run, or what was wrapped.
        run: String,
        /// The hold.
        hold: String,
        /// `allowed`, `refused` or `timed_out`.
        answer: String,
        /// Who.
        by: String,
        /// Why.
        reason: String,
    },
    /// A server's tool was seen for the first time, or is not what it was.
    McpTool {
        /// The run, or what was wrapped.
        run: String,
        /// The server.
        server: String,
        /// The tool.
        tool: String,
        /// `first_seen`, `new` or `changed`.
        change: String,
        /// SHA-256 of its definition.
        sha256: String,
    },
    /// Something in the use of MCP tools that an honest agent or server does not do.
    McpSuspicious {
        /// The run, or what was wrapped.
        run: String,
        /// The server.
        server: String,
        /// The tool, as far as it has a name.
        tool: String,
        /// The stable code.
        code: String,
        /// In words.
        detail: String,
    },
    /// A writer was interrupted; what it had not finished was cut off.
    LogRecovered {
        /// Whole entries that were dropped; none of them was ever acknowledged.
        dropped_entries: u64,
        /// Bytes in all.
        dropped_bytes: u64,
    },
    /// A key changed its state.
    KeyChanged {
        /// The key.
        key: String,
        /// Its new state.
        state: String,
        /// Who. Entries of 0.1.0 don't say.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<Actor>,
    },
    /// Somebody may use the web API.
    TokenCreated {
        /// The token's id, which is no secret.
        token: String,
        /// What it is called.
        name: String,
        /// What it may do.
        role: String,
        /// Until when, if not until it is revoked.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        expires_ms: Option<u64>,
        /// Who. Entries of 0.1.0 don't say.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<Actor>,
    },
    /// Somebody may use it no longer.
    TokenRevoked {
        /// The token's id.
        token: String,
        /// Who. Entries of 0.1.0 don't say.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<Actor>,
    },
    /// How far the fleet's log had come: cutting it back from here on shows.
    FleetAnchored {
        /// Its size.
        size: u64,
        /// Its root hash.
        root: String,
    },
    /// Somebody on this side states something, as an in-toto statement.
    Attested {
        /// The statement.
        statement: serde_json::Value,
    },
    /// The kill switch was engaged.
    KillSwitchEngaged {
        /// Why.
        reason: String,
        /// Keepers that were killed.
        killed: u32,
        /// Processes left.
        survivors: u32,
        /// Who. Entries of 0.1.0 don't say.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<Actor>,
    },
    /// The kill switch was reset.
    KillSwitchReset {
        /// Why.
        reason: String,
        /// Who. Entries of 0.1.0 don't say.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<Actor>,
    },
    /// Somebody may review proposals from now on, has a second factor, or may no longer.
    ReviewerChanged {
        /// Who.
        reviewer: String,
        /// The key that signs for them.
        key: String,
        /// What became of them: `added`, `second_factor`, `revoked`.
        state: String,
    },
    /// A person said something about a proposal, and signed it.
    ReviewGiven {
        /// The proposal.
        proposal: String,
        /// Who.
        reviewer: String,
        /// The key that signed.
        key: String,
        /// `approve`, `reject` or `comment`.
        verdict: String,
        /// SHA-256 of the tree that was looked at.
        candidate_tree: String,
        /// SHA-256 of the signed statement.
        statement_sha256: String,
        /// Whether a second factor was shown with it.
        second_factor: bool,
    },
    /// A rollout came to another stage, or to its end.
    RolloutMoved {
        /// The proposal.
        proposal: String,
        /// The tree that is rolled out.
        candidate: String,
        /// The stage.
        stage: String,
        /// Why.
        why: String,
    },
}

/// What a run used of the network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkUsed {
    /// Connections let through.
    pub connections: u64,
    /// Things refused.
    pub refused: u64,
    /// Bytes from the agent.
    pub sent_bytes: u64,
    /// Bytes to the agent.
    pub received_bytes: u64,
    /// What it used of each model.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub models: BTreeMap<String, ModelUsed>,
}

/// What a run used of one model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelUsed {
    /// Calls made.
    pub calls: u64,
    /// Tokens in prompts, read anew.
    pub tokens_in: u64,
    /// Tokens in prompts, read from a cache or written to one.
    pub tokens_cached: u64,
    /// Tokens in answers.
    pub tokens_out: u64,
    /// What they cost, in millionths of a US dollar, rounded up.
    pub micro_usd: u64,
    /// Calls that did not say what they used and were charged an estimate.
    pub estimated: u64,
}

/// SHA-256 as hex.
#[must_use]
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// SHA-256 of a list of words: each with its length before it, so that no two lists look alike.
#[must_use]
pub fn words_sha256<'a>(words: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut hasher = Sha256::new();
    for word in words {
        hasher.update((word.len() as u64).to_be_bytes());
        hasher.update(word);
    }
    hex(&hasher.finalize())
}

/// Bytes as hex digits.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_words_that_join_alike_have_different_digests() {
        let one = words_sha256([b"ab".as_slice(), b"c"]);
        let other = words_sha256([b"a".as_slice(), b"bc"]);
        assert_ne!(one, other);
        assert_eq!(sha256_hex(b"").len(), 64);
        assert!(sha256_hex(b"").starts_with("e3b0c442"));
    }

    #[test]
    fn an_entry_with_more_in_it_than_we_know_is_not_one_of_ours() {
        let at = Now {
            boot_ns: 4,
            wall_ms: 5,
        };
        let bytes = Entry::encode(
            at,
            RunEvent::KillSwitchReset {
                reason: "x".into(),
                by: None,
            },
        )
        .unwrap();
        let entry: Entry<RunEvent> = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(entry.at, at);
        let more = String::from_utf8(bytes)
            .unwrap()
            .replace("\"v\":1", "\"v\":1,\"w\":2");
        assert!(serde_json::from_str::<Entry<RunEvent>>(&more).is_err());
    }
}
