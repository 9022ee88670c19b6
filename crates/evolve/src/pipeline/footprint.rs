//! Stage 7: what a run does to the world around it, seen from outside, before and after. What is new is a new capability: it is
//! told, and people decide.

use std::collections::BTreeSet;
use std::path::Path;

use belljar_supervisor::RunResult;
use serde_json::json;

use super::chamber::{ChamberError, Chambers, Job, Watched};
use super::finding::{Finding, finding};
use crate::proposal::Risk;
use crate::tree::Tree;

/// Where programs and libraries are: reading there is what starting takes.
const STARTING: [&str; 8] = [
    "/usr", "/lib", "/lib64", "/bin", "/sbin", "/etc", "/proc", "/dev",
];

pub(super) fn compare(
    chambers: &Chambers,
    before: &Tree,
    after: &Tree,
    words: &[String],
    readable: &[std::path::PathBuf],
) -> Finding {
    let mut finding = finding();
    let seen = |tree: &Tree| -> Result<BTreeSet<String>, ChamberError> {
        let place = chambers.place(tree)?;
        let result = chambers.run(
            &place,
            &Job {
                words,
                watched: Watched::Yes,
                ..Job::default()
            },
        )?;
        if result.exit_code != Some(0) {
            let said = result
                .stderr
                .as_deref()
                .unwrap_or_default()
                .lines()
                .last()
                .unwrap_or_default()
                .to_owned();
            return Err(ChamberError::Ended(format!(
                "it ended with {:?}: {said}",
                result.exit_code
            )));
        }
        footprint(&result, &place, readable)
    };
    match (seen(before), seen(after)) {
        (Ok(old), Ok(new)) => {
            let fresh: Vec<&String> = new.difference(&old).collect();
            finding.facts = json!({"before": old.len(), "after": new.len(), "new": fresh});
            for what in fresh {
                finding.raise(
                    Risk::Critical,
                    "new_capability",
                    what,
                    "a run did not do this before",
                );
            }
        }
        (Err(error), _) | (_, Err(error)) => finding.refuse(
            "behaviour",
            None,
            &error.to_string(),
            "a run that is not seen to its end tells nothing",
        ),
    }
    finding
}

/// Files, programs, processes and refused calls of a run; names inside the project are relative to it.
fn footprint(
    result: &RunResult,
    place: &Path,
    readable: &[std::path::PathBuf],
) -> Result<BTreeSet<String>, ChamberError> {
    let observed = result
        .observed
        .as_ref()
        .filter(|observed| observed.is_whole());
    let observed = observed.ok_or_else(|| ChamberError::Ended("not all it did was seen".into()))?;
    let mut all = BTreeSet::new();
    for (path, used) in observed.files.iter() {
        let (inside, name) = match path.strip_prefix(place) {
            Ok(rest) => (true, format!("./{}", rest.display())),
            Err(_) => (false, path.display().to_string()),
        };
        let is_starting = inside
            || STARTING.iter().any(|known| path.starts_with(known))
            || readable.iter().any(|known| path.starts_with(known));
        if used.deeds.executes() {
            all.insert(format!("execute {name}"));
        }
        if used.deeds.writes() {
            // Names of temporary files differ from run to run; where they are does not.
            let parent = path
                .parent()
                .map(|parent| parent.display().to_string())
                .unwrap_or_default();
            all.insert(if path.starts_with("/tmp") {
                format!("write in {parent}")
            } else {
                format!("write {name}")
            });
        }
        if used.deeds.reads() && !is_starting && !path.starts_with("/tmp") {
            all.insert(format!("read {name}"));
        }
    }
    if observed.spawned > 0 {
        all.insert("start processes".to_owned());
    }
    all.extend(
        observed
            .loopback_refused
            .keys()
            .map(|address| format!("connect {address}")),
    );
    all.extend(
        result
            .violations
            .iter()
            .map(|violation| format!("refused {} {}", violation.kind, violation.name)),
    );
    if let Some(network) = &result.network {
        all.extend(
            network
                .refusals
                .iter()
                .map(|group| format!("network {}", group.refusal.host)),
        );
    }
    Ok(all)
}
