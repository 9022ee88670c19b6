//! Takes every enforcement out, one at a time: a suite that does not notice proves nothing.

use super::all;
use crate::holes::{Hole, with_hole};

#[test]
fn every_threat_is_held_off() {
    let failures: Vec<_> = all()
        .filter_map(|(name, threat)| threat().err().map(|why| (name, why)))
        .collect();
    assert!(failures.is_empty(), "{failures:#?}");
    assert!(all().count() >= 60);
}

#[test]
fn the_suite_fails_when_any_enforcement_is_taken_out() {
    let missed: Vec<_> = Hole::ALL
        .iter()
        .filter(|hole| with_hole(**hole, || all().all(|(_, threat)| threat().is_ok())))
        .collect();
    assert!(missed.is_empty(), "nobody notices without {missed:?}");
    assert!(Hole::ALL.len() >= 50);
}
