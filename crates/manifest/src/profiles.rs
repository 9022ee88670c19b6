//! The documents shipped in the binary.

use std::sync::Arc;

use belljar_policy::{Capability, Source};

/// The profiles a file may extend, from least to most.
pub const PROFILES: [&str; 3] = ["strict", "moderate", "permissive"];

const SEED: &str = include_str!("../profiles/seed.yaml");

/// The capability of a profile; `None` when there is no such profile.
#[must_use]
pub fn profile(name: &str) -> Option<Capability> {
    profile_source(name).map(|source| shipped(&format!("profile {name}"), source))
}

/// The document of a profile, as a user may read it; `None` when there is no such profile.
#[must_use]
pub fn profile_source(name: &str) -> Option<&'static str> {
    match name {
        "strict" => Some(include_str!("../profiles/strict.yaml")),
        "moderate" => Some(include_str!("../profiles/moderate.yaml")),
        "permissive" => Some(include_str!("../profiles/permissive.yaml")),
        _ => None,
    }
}

/// What a capability file without `extends` starts from.
pub(crate) fn seed() -> Capability {
    shipped("defaults", SEED)
}

/// A shipped document that did not parse would be a defect a test finds; should one get through,
/// it grants nothing.
fn shipped(name: &str, source: &str) -> Capability {
    crate::parse_as(name, source.as_bytes(), Source::Profile)
        .unwrap_or_else(|_| Capability::closed(Arc::from(name)))
}
