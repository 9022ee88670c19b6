//! Experiments and contracts that are shipped, as data.

use belljar_policy::Contract;

/// The shipped experiments.
pub const PRESETS: &[&str] = &[
    "minimal",
    "balanced",
    "stress",
    "chain",
    "burst",
    "adversarial",
    "kill_switch",
];
/// The shipped contracts.
pub const TEMPLATES: &[&str] = &["research", "production", "autonomous", "locked"];

/// The text of a shipped experiment: a file to start from.
#[must_use]
pub fn preset_source(name: &str) -> Option<&'static str> {
    Some(match name {
        "minimal" => include_str!("../../data/presets/minimal.yaml"),
        "balanced" => include_str!("../../data/presets/balanced.yaml"),
        "stress" => include_str!("../../data/presets/stress.yaml"),
        "chain" => include_str!("../../data/presets/chain.yaml"),
        "burst" => include_str!("../../data/presets/burst.yaml"),
        "adversarial" => include_str!("../../data/presets/adversarial.yaml"),
        "kill_switch" => include_str!("../../data/presets/kill_switch.yaml"),
        _ => return None,
    })
}

/// The text of a shipped contract: a file to start from.
#[must_use]
pub fn template_source(name: &str) -> Option<&'static str> {
    Some(match name {
        "research" => include_str!("../../data/contracts/research.yaml"),
        "production" => include_str!("../../data/contracts/production.yaml"),
        "autonomous" => include_str!("../../data/contracts/autonomous.yaml"),
        "locked" => include_str!("../../data/contracts/locked.yaml"),
        _ => return None,
    })
}

/// A shipped contract.
#[must_use]
pub fn template(name: &str) -> Option<Contract> {
    belljar_manifest::parse_contract(name, template_source(name)?.as_bytes()).ok()
}
