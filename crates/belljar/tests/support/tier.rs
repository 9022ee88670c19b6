//! Which tier a test's boxes are of.

use std::cell::Cell;

/// As policies name it.
pub(crate) const GVISOR: &str = "gvisor";

thread_local! {
    static TIER: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// The tier of boxes that this thread's test makes, where it is not the native one.
pub(crate) fn tier() -> Option<&'static str> {
    TIER.get()
}

/// Runs a test with its boxes on gVisor.
pub(crate) fn on_gvisor(test: impl FnOnce()) {
    TIER.set(Some(GVISOR));
    test();
    TIER.set(None);
}

/// A difference that users are not told of is a fault.
#[track_caller]
pub(crate) fn assert_documented(test: &str, reason: &str) {
    let page = include_str!("../../../../docs/tiers.md");
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words(page).contains(&words(reason)),
        "docs/tiers.md does not give the reason why {test} is not held by gVisor: {reason}"
    );
}
