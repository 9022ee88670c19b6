//! The alert reference is what the code says.

use std::path::Path;

#[test]
fn the_alert_reference_is_fresh() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/alerts.md");
    let made = belljar_monitor::reference();
    if std::env::var_os("BELLJAR_BLESS").is_some() {
        std::fs::write(&path, &made).expect("a writable docs/alerts.md");
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == made,
        "docs/alerts.md is stale; BELLJAR_BLESS=1 writes it"
    );
}
