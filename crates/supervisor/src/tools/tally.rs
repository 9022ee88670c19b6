//! How often which tool was called, with which verdict and for how long: for metrics.
//!
//! Names of tools are labels there, and an agent may invent as many as it likes. So a name counts by itself only where the
//! server told of such a tool or the call was let through, and only so many do; all others are one.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use belljar_mcp::ServerFacts;
use belljar_mcp::pins::{Pins, Standing};
use belljar_mcp::record::{McpEvent, Recorder};
use serde::{Deserialize, Serialize};

/// The most tools of an agent that are counted by name.
const MOST_NAMED: usize = 64;
/// What all others are called.
pub(crate) const OTHER: &str = "other";

/// Calls of one tool with one verdict: all since an agent's start, or of all agents since the daemon's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCalls {
    /// The operator's name for the server.
    pub server: String,
    /// The server's name for the tool; `other` for those that are not told apart.
    pub tool: String,
    /// `allow`, `deny`, `hold_allowed` or `hold_refused`.
    pub verdict: String,
    /// How many.
    pub calls: u64,
    /// How long they took together, in microseconds.
    pub micros: u64,
}

/// How many calls and how many microseconds, by server, tool and verdict.
pub(crate) type ByTool = BTreeMap<(String, String, String), (u64, u64)>;

/// The same as a list.
pub(crate) fn rows(by_tool: &ByTool) -> Vec<ToolCalls> {
    let all = by_tool.iter();
    all.map(|((server, tool, verdict), (calls, micros))| ToolCalls {
        server: server.clone(),
        tool: tool.clone(),
        verdict: verdict.clone(),
        calls: *calls,
        micros: *micros,
    })
    .collect()
}

/// Counts the calls of one agent.
#[derive(Debug)]
pub(crate) struct Tally {
    pins: Pins,
    digests: HashMap<String, String>,
    counted: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    named: BTreeSet<(String, String)>,
    by_tool: ByTool,
}

impl Tally {
    pub(super) fn of(servers: &[ServerFacts], state: &Path) -> io::Result<Self> {
        let servers = servers.iter();
        Ok(Self {
            pins: Pins::open(state)?,
            digests: servers
                .map(|facts| (facts.name.clone(), facts.digest.clone()))
                .collect(),
            counted: Mutex::default(),
        })
    }

    /// Everything so far.
    pub(crate) fn counts(&self) -> Vec<ToolCalls> {
        rows(&self.counted().by_tool)
    }

    fn count(&self, server: &str, tool: &str, verdict: &str, micros: u64) {
        let mut counted = self.counted();
        let name = (server.to_owned(), tool.to_owned());
        let is_named = counted.named.contains(&name)
            || counted.named.len() < MOST_NAMED && self.is_known(server, tool, verdict);
        let tool = if is_named {
            counted.named.insert(name);
            tool
        } else {
            OTHER
        };
        let key = (server.to_owned(), tool.to_owned(), verdict.to_owned());
        let (calls, time) = counted.by_tool.entry(key).or_default();
        *calls += 1;
        *time = time.saturating_add(micros);
    }

    fn is_known(&self, server: &str, tool: &str, verdict: &str) -> bool {
        if !belljar_policy::is_mcp_name(tool) {
            return false;
        }
        let standing = self.digests.get(server).map(|digest| {
            let standing = self.pins.standing(server, digest, tool);
            standing.unwrap_or(Standing::Unheard)
        });
        match standing {
            Some(Standing::Pinned | Standing::New | Standing::Changed) => true,
            // Nobody has heard the server's list yet.
            Some(Standing::FirstSeen) => verdict != "deny",
            Some(Standing::Unheard) | None => false,
        }
    }

    fn counted(&self) -> MutexGuard<'_, Counts> {
        // Every change is complete before anything can panic.
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A recorder whose calls are counted.
pub(super) struct Counted {
    recorder: Box<dyn Recorder>,
    tally: std::sync::Arc<Tally>,
}

impl Counted {
    pub(super) fn new(recorder: Box<dyn Recorder>, tally: std::sync::Arc<Tally>) -> Self {
        Self { recorder, tally }
    }
}

impl Recorder for Counted {
    fn record(&self, event: McpEvent) {
        if let McpEvent::Call {
            server,
            tool,
            verdict,
            duration_us,
            ..
        } = &event
        {
            self.tally.count(server, tool, verdict, *duration_us);
        }
        self.recorder.record(event);
    }

    fn is_recording(&self) -> bool {
        self.recorder.is_recording()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use belljar_mcp::pins::Pin;
    use serde_json::json;

    #[test]
    fn invented_names_are_one_and_known_ones_are_bounded() {
        let scratch = tempfile::tempdir().unwrap();
        let facts = ServerFacts::local("s", &["x".to_owned()], scratch.path());
        let names: Vec<String> = (0..200).map(|n| format!("t{n}")).collect();
        let tools: Vec<(&str, Pin)> = names
            .iter()
            .map(|name| (name.as_str(), Pin::of(&json!({"name": name}))))
            .collect();
        let pins = Pins::open(scratch.path()).unwrap();
        pins.compare("s", &facts.digest, &tools).unwrap();
        let tally = Tally::of(&[facts], scratch.path()).unwrap();
        for n in 0..1000 {
            tally.count("s", &format!("invented{n}"), "deny", 1);
        }
        tally.count("s", "t1", "deny", 5);
        tally.count("s", "t1", "deny", 7);
        let of = |tool: &str| {
            let counts = tally.counts();
            let found = counts.into_iter().find(|count| count.tool == tool);
            found.map(|count| (count.calls, count.micros))
        };
        assert_eq!(of("t1"), Some((2, 12)));
        assert_eq!(of(OTHER), Some((1000, 1000)));
        for name in &names {
            tally.count("s", name, "allow", 1);
        }
        assert_eq!(tally.counts().len(), MOST_NAMED + 3);
    }
}
