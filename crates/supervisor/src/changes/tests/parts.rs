//! Some hunks of a file, and what becomes of them when they are broken off.

use super::*;

fn numbers(changed: &[(usize, &str)]) -> String {
    let line = |number: usize| {
        let own = changed.iter().find(|(at, _)| *at == number);
        own.map_or_else(|| number.to_string(), |(_, text)| (*text).to_owned())
    };
    (1..=40).map(|number| line(number) + "\n").collect()
}

/// `a` changed at its beginning and its end, and `b` altogether.
fn scene() -> (Scene, Overlay) {
    let scene = Scene::new();
    fs::write(scene.host.join("a"), numbers(&[])).expect("a file");
    fs::write(scene.host.join("b"), "old\n").expect("a file");
    write_roots(
        &scene.store,
        owner(),
        std::slice::from_ref(&scene.host),
        &RunOrigin::default(),
    )
    .expect("roots");
    let after = numbers(&[(2, "two"), (39, "thirty-nine")]);
    fs::write(scene.layer.join("a"), after).expect("a file");
    fs::write(scene.layer.join("b"), "new\n").expect("a file");
    let overlay = scene.settle();
    (scene, overlay)
}

fn change(overlay: &Overlay, name: &str) -> Change {
    let mut changes = overlay.changes();
    changes
        .find(|change| change.path.ends_with(name))
        .expect("the change")
}

/// The first hunk of `a`, and all of `b`.
fn first_hunk_and_b(overlay: &Overlay) -> Selection {
    let a = change(overlay, "a");
    let hunks = overlay.hunks(&a).expect("hunks");
    assert_eq!(hunks.texts().len(), 2);
    let mut selection = Selection::default();
    selection.add_composed(&a, hunks.compose(&[true]));
    selection.add(&change(overlay, "b"));
    selection
}

#[test]
fn a_hunk_that_was_broken_off_is_no_conflict() {
    for finishes_by_parts in [false, true] {
        let (scene, overlay) = scene();
        // It stops at `b`, after `a` has its hunk: as if it had been killed there.
        fs::write(scene.layer.join("b"), "bad\n").expect("a file");
        let stopped = overlay.apply_selected(&first_hunk_and_b(&overlay));
        assert!(
            matches!(stopped, Err(ApplyError::Altered { .. })),
            "{stopped:?}"
        );
        let read = |name: &str| fs::read_to_string(scene.host.join(name)).expect("it");
        assert_eq!(read("a"), numbers(&[(2, "two")]));
        fs::write(scene.layer.join("b"), "new\n").expect("a file");
        let again = scene.open();
        if finishes_by_parts {
            let a = change(&again, "a");
            let hunks = again.hunks(&a).expect("hunks");
            assert_eq!(hunks.texts().len(), 1, "the other is done");
            let mut selection = Selection::default();
            selection.add(&a);
            again.apply_selected(&selection).expect("applied");
        } else {
            again.apply().expect("applied");
            assert_eq!(read("b"), "new\n");
        }
        assert_eq!(read("a"), numbers(&[(2, "two"), (39, "thirty-nine")]));
        assert_eq!(scene.store.exists(), finishes_by_parts);
    }
}

#[test]
fn what_the_user_makes_of_a_hunk_is_a_conflict() {
    let (scene, overlay) = scene();
    overlay
        .apply_selected(&first_hunk_and_b(&overlay))
        .expect("applied");
    assert_eq!(scene.open().changes().count(), 1);
    let own = numbers(&[(2, "two"), (20, "the user's")]);
    fs::write(scene.host.join("a"), &own).expect("a file");
    let refused = scene.open().apply();
    assert!(
        matches!(refused, Err(ApplyError::Conflicts(_))),
        "{refused:?}"
    );
    assert_eq!(
        fs::read_to_string(scene.host.join("a")).expect("it"),
        own,
        "written over"
    );
}
