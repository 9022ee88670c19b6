//! What can be found out about an agent now, for whoever looks into an incident later.

use std::fmt::Write as _;
use std::fs;

use belljar_api::AgentId;

use super::{Daemon, processes};
use crate::changes::Overlay;

/// The most open files that are told of.
const MOST_FILES: usize = 4096;
/// The most bytes of changes.
const MOST_DIFF: usize = 4 << 20;

impl Daemon {
    /// Its manifests from the root's on, the files its processes hold open, and what it changed in an overlay. What can't be had
    /// is left out.
    #[must_use]
    pub fn evidence(&self, agent: &AgentId) -> Vec<(String, Vec<u8>)> {
        let Ok(worker) = agent.as_str().parse() else {
            return Vec::new();
        };
        let known = self.inner.roster.with(worker, |agent| {
            let first = agent.started.as_ref().map(|started| started.pid);
            let chain = agent.origin.chain.clone().into_bytes();
            (chain, first.filter(|_| agent.keeper_pid.is_some()))
        });
        let Some((chain, first)) = known else {
            return Vec::new();
        };
        let mut files = vec![("manifests.jsonl".to_owned(), chain)];
        if let Some(first) = first.and_then(|pid| u32::try_from(pid).ok()) {
            files.push(("open-files.txt".to_owned(), open_files(first)));
        }
        if let Ok(overlay) = Overlay::open(self.state(), agent.as_str()) {
            files.push(("changes.diff".to_owned(), changes(&overlay)));
        }
        files
    }
}

/// One line for each open file of each process.
fn open_files(first: u32) -> Vec<u8> {
    let mut text = String::new();
    let mut count = 0;
    for process in processes::below(first) {
        let directory = format!("/proc/{}/fd", process.pid);
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let Ok(target) = fs::read_link(entry.path()) else {
                continue;
            };
            count += 1;
            if count > MOST_FILES {
                let _ = writeln!(text, "and more");
                return text.into_bytes();
            }
            let number = entry.file_name();
            // What an agent names a file must not look like another line.
            let _ = writeln!(text, "{} {:?} {target:?}", process.pid, number);
        }
    }
    text.into_bytes()
}

fn changes(overlay: &Overlay) -> Vec<u8> {
    let mut text = String::new();
    for change in overlay.changes() {
        if text.len() > MOST_DIFF {
            text.push_str("and more\n");
            break;
        }
        let _ = writeln!(text, "{:?} {:?}", change.kind, change.path);
    }
    for trouble in overlay.troubles() {
        let _ = writeln!(text, "Unknown {:?}: {}", trouble.path, trouble.why);
    }
    for change in overlay.changes() {
        if text.len() > MOST_DIFF {
            text.push_str("and more\n");
            break;
        }
        text.push_str(&overlay.diff(&change));
    }
    text.into_bytes()
}
