//! What people say about alerts, and what a restart does to it: nothing.

use belljar_api::{EventKind, Shown};

use super::*;
use crate::testing::{event, id};

#[test]
fn alerts_survive_a_restart_with_their_numbers() {
    let directory = tempfile::tempdir().unwrap();
    let hands = Hands::at(BEGIN);
    let monitor = hands.open(directory.path(), Settings::default()).unwrap();
    monitor.happened(event(Some("a"), EventKind::SystemCallRefused, "mount"));
    monitor.happened(event(Some("b"), EventKind::SystemCallRefused, "setns"));
    let (status, _) = ask(
        &monitor,
        "POST",
        "/v1/alerts/1/resolve",
        r#"{"reason": "seen to"}"#,
    );
    assert_eq!(status, Status::OK);
    let before = alerts(&monitor, "");
    drop(monitor);
    let monitor = hands.open(directory.path(), Settings::default()).unwrap();
    assert_eq!(alerts(&monitor, ""), before);
    assert_eq!(
        alerts(&monitor, "?state=resolved")[0].by,
        Some(Shown::new("ada"))
    );
    monitor.happened(event(Some("b"), EventKind::SystemCallRefused, "setns"));
    assert_eq!(alerts(&monitor, "")[0].count, 2, "it is the same alert");
    monitor.happened(event(Some("c"), EventKind::SystemCallRefused, "setns"));
    assert_eq!(alerts(&monitor, "")[0].id, id("3"));
    let (status, _) = ask(
        &monitor,
        "POST",
        "/v1/alerts/1/resolve",
        r#"{"reason": "again"}"#,
    );
    assert_eq!(status, Status::CONFLICT);
    let (status, _) = ask(
        &monitor,
        "POST",
        "/v1/alerts/99/acknowledge",
        r#"{"reason": "x"}"#,
    );
    assert_eq!(status, Status::NOT_FOUND);
    let events = events(&monitor, "?kind=alert&search=seen+to");
    assert_eq!(events.len(), 1, "the reason is on record");
}
