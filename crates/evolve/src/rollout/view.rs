//! Where a rollout is, for whoever looks on: read without taking hold of anything, so that it never keeps a rollback waiting.

use std::path::{Path, PathBuf};

use belljar_api::{RolloutInstance, RolloutStep, RolloutView, Shown};

use super::driver::{directory_of, fold};
use super::machine::{Rollout, Stage};
use crate::disk;

/// The most of a journal that is read to be shown.
const MOST_BYTES: u64 = 64 << 20;

fn journals(directory: &Path, proposal: &str) -> [PathBuf; 2] {
    let past = format!("rollout-{proposal}.jsonl");
    [directory.join("rollout.jsonl"), directory.join(past)]
}

fn read(state: &Path, project: &str, proposal: &str) -> Option<Rollout> {
    let directory = directory_of(state, project);
    let mut found = journals(&directory, proposal)
        .into_iter()
        .filter_map(|path| {
            let bytes = disk::read_bounded(&path, MOST_BYTES).ok()??;
            // A last line that is being written has not happened yet.
            let whole = bytes.iter().rposition(|byte| *byte == b'\n')?;
            fold(bytes.get(..whole)?).ok()?
        });
    found.find(|rollout| rollout.proposal == proposal)
}

/// Where the rollout of a proposal is, if it has one.
pub(crate) fn stage(state: &Path, project: &str, proposal: &str) -> Option<Stage> {
    read(state, project, proposal).map(|rollout| rollout.stage())
}

/// All that is shown of it.
pub(crate) fn view(state: &Path, project: &str, proposal: &str) -> Option<RolloutView> {
    let rollout = read(state, project, proposal)?;
    let (before, after) = rollout.canary().error_rates();
    let on_candidate = rollout.on_candidate();
    let names = rollout.plan.instances.iter().chain(&rollout.plan.shadow);
    let instances = names.map(|name| {
        let is_on = on_candidate.contains(&name.as_str());
        let tree = match is_on {
            true => &rollout.candidate,
            false => &rollout.base,
        };
        RolloutInstance {
            name: Shown::new(name),
            on_candidate: is_on,
            tree: Shown::new(tree),
        }
    });
    Some(RolloutView {
        stage: Shown::new(&rollout.stage().to_string()),
        steps: steps(&rollout),
        paused: rollout.paused().map(Shown::new),
        why_back: rollout.why_back().map(Shown::new),
        rounds: u64::from(rollout.canary().rounds()),
        error_rates: [before, after],
        is_supervised: rollout.plan.supervised.is_some(),
        instances: instances.collect(),
    })
}

fn steps(rollout: &Rollout) -> Vec<RolloutStep> {
    let shadow = (!rollout.plan.shadow.is_empty()).then_some(Stage::Shadow);
    let shares = rollout.plan.steps.iter().filter(|share| **share < 100);
    let all: Vec<Stage> = shadow
        .into_iter()
        .chain(shares.map(|share| Stage::Percent(*share)))
        .chain([Stage::Done])
        .collect();
    // Where it went back from is not what it passed.
    let now = all.iter().position(|step| *step == rollout.stage());
    let is_back = matches!(rollout.stage(), Stage::GoingBack | Stage::RolledBack);
    let state = |at: usize| match now {
        Some(now) if at < now => "passed",
        Some(now) if at == now && rollout.stage() == Stage::Done => "passed",
        Some(now) if at == now => "now",
        None if is_back => "undone",
        _ => "ahead",
    };
    let named = all.iter().enumerate().map(|(at, step)| RolloutStep {
        name: Shown::new(&step.to_string()),
        state: Shown::new(state(at)),
    });
    named.collect()
}
