//! Applying or discarding a part of what a box left, with real boxes and real git: the rest goes on waiting.

mod support;

use std::process::Stdio;

use support::review::{belljar, outside, overlaid, read, repository, said};
use support::{Finished, Jail, Who, for_each_user};

const INVALID: i32 = 121;
const REFUSED: i32 = 122;

fn some_paths_are_applied_and_the_rest_waits(who: Who) {
    let jail = repository(who);
    let id = overlaid(
        &jail,
        "echo x >> src/a.rs; echo y >> src/b.txt; mkdir -p new/er; echo 1 > new/er/one; echo 2 > new/er/two; rm lines.txt; git add -A; git commit -qm all",
    );
    let shown = said(&jail, &["apply", "*.rs", "new/er/one"]);
    assert!(
        shown.contains("src/a.rs") && shown.contains("new/er/one") && !shown.contains("b.txt"),
        "{shown}"
    );
    assert_eq!(read(&jail, "src/a.rs"), "one\nx\n");
    assert_eq!(read(&jail, "new/er/one"), "1\n");
    assert_eq!(read(&jail, "src/b.txt"), "two\n");
    assert!(jail.work.join("lines.txt").exists() && !jail.work.join("new/er/two").exists());
    // Applied is applied: the user's own work on it is no conflict any more.
    jail.put(&jail.work.join("src/a.rs"), "the user's\n");
    let left = said(&jail, &["diff", "--name-only"]);
    assert!(
        !left.contains("a.rs") && left.contains("b.txt") && left.contains("new/er/two"),
        "{left}"
    );
    said(&jail, &["discard", "lines.txt"]);
    let kept = support::files_below(&jail.state);
    assert!(
        kept.iter().any(|path| path.ends_with("two"))
            && !kept.iter().any(|path| path.ends_with("changes/lines.txt")),
        "{kept:?}"
    );
    // A conflict in one path is none in another, and stops its own.
    jail.put(&jail.work.join("src/b.txt"), "the user's\n");
    let refused = belljar(&jail, &["apply", "src/b.txt"]);
    assert_eq!(refused.code(), REFUSED, "{}", refused.stderr());
    said(&jail, &["apply", "new"]);
    assert_eq!(read(&jail, "new/er/two"), "2\n");
    said(&jail, &["discard", &id, "--", "src"]);
    // Git's own files are left: the commit with all of it.
    said(&jail, &["apply", ".git"]);
    assert_eq!(outside(&jail, "git log -1 --format=%s").trim_end(), "all");
    assert_eq!(read(&jail, "src/b.txt"), "the user's\n");
    assert!(jail.work.join("lines.txt").exists());
    jail.assert_nothing_left(Some(&id));
}

fn answer(jail: &Jail, words: &[&str], answers: &str) -> Finished {
    let mut command = jail.belljar(words);
    let child = command
        .stdin(Stdio::piped())
        .spawn()
        .expect("start belljar");
    support::finish_with_input(child, answers.as_bytes().to_vec())
}

fn parts_of_files_are_applied_one_by_one(who: Who) {
    let jail = repository(who);
    outside(&jail, "chmod 640 lines.txt");
    let id = overlaid(
        &jail,
        "sed -i -e 's/^2$/two/' -e 's/^20$/twenty/' -e 's/^39$/thirty-nine/' lines.txt; chmod 755 lines.txt; echo x > fresh; rm src/b.txt",
    );
    // fresh: no; lines.txt: first and last; src/b.txt: yes.
    let done = answer(&jail, &["apply", "--interactive"], "n\ny\nn\ny\n?\ny\n");
    assert_eq!(done.code(), 0, "{}{}", done.stdout(), done.stderr());
    let text = done.stdout();
    for part in [
        "(1/3) Apply this part of M ",
        "-20",
        "+twenty",
        "y - apply this",
    ] {
        assert!(text.contains(part), "{part} is not in:\n{text}");
    }
    let lines = read(&jail, "lines.txt");
    assert!(
        lines.contains("\ntwo\n") && lines.contains("\n20\n") && lines.contains("thirty-nine"),
        "{lines}"
    );
    assert_eq!(lines.lines().count(), 40);
    assert!(!jail.work.join("fresh").exists() && !jail.work.join("src/b.txt").exists());
    use std::os::unix::fs::PermissionsExt as _;
    let mode = || {
        jail.work
            .join("lines.txt")
            .metadata()
            .expect("it")
            .permissions()
            .mode()
            & 0o777
    };
    assert_eq!(mode(), 0o640, "the mode goes with the last part");
    // What is left is the middle, and the new file.
    let left = said(&jail, &["diff"]);
    assert!(
        left.contains("+twenty") && left.contains("fresh") && !left.contains("+two\n"),
        "{left}"
    );
    assert!(!left.contains("b.txt"), "{left}");
    // Nothing at all is an answer, too.
    assert_eq!(answer(&jail, &["apply", "-i"], "q\n").code(), 0);
    assert_eq!(answer(&jail, &["apply", "-i"], "").code(), 0);
    assert_eq!(read(&jail, "lines.txt"), lines);
    // Whoever changes the file meanwhile is not written over.
    let own = lines.replace("\n30\n", "\nthe user's\n");
    jail.put(&jail.work.join("lines.txt"), &own);
    let refused = answer(&jail, &["apply", "-i", "lines.txt"], "a\n");
    assert_eq!(
        refused.code(),
        REFUSED,
        "{}{}",
        refused.stdout(),
        refused.stderr()
    );
    assert_eq!(read(&jail, "lines.txt"), own);
    said(&jail, &["apply", "fresh"]);
    said(&jail, &["discard", &id]);
    jail.assert_nothing_left(Some(&id));
}

fn the_last_part_completes_a_file(who: Who) {
    let jail = repository(who);
    let id = overlaid(
        &jail,
        "sed -i -e 's/^2$/two/' -e 's/^39$/thirty-nine/' lines.txt; chmod 755 lines.txt; git commit -qam c",
    );
    let first = answer(&jail, &["apply", "-i", "lines.txt"], "n\ny\n");
    assert_eq!(first.code(), 0, "{}", first.stderr());
    // The one that is left, then the repository as a whole.
    let rest = answer(&jail, &["apply", "-i"], "a\ny\n");
    assert_eq!(rest.code(), 0, "{}", rest.stderr());
    assert!(
        rest.stdout().contains("1 new commit") && rest.stdout().contains("/.git [y"),
        "{}",
        rest.stdout()
    );
    assert_eq!(
        outside(
            &jail,
            "git status --porcelain --untracked-files=no; git fsck 2>&1"
        ),
        ""
    );
    jail.assert_nothing_left(Some(&id));
}

/// Killed in the middle, a part is applied when it is asked for again, and the rest still waits.
fn a_part_is_finished_after_a_kill(who: Who) {
    let jail = repository(who);
    let id = overlaid(
        &jail,
        "mkdir many && cd many && seq 1500 | split -l 1 -a 4 - f && rm ../lines.txt; echo z >> ../src/a.rs",
    );
    let mut apply = jail
        .belljar(&["apply", "many"])
        .spawn()
        .expect("start belljar");
    support::eventually("some of it is there", || {
        jail.work.join("many/faaab").exists().then_some(())
    });
    let _ = apply.kill();
    let _ = apply.wait();
    // Either it goes on, or it had finished.
    let again = belljar(&jail, &["apply", "many"]);
    assert!([0, INVALID].contains(&again.code()), "{}", again.stderr());
    let made = support::files_below(&jail.work.join("many"));
    assert_eq!(made.len(), 1500);
    assert!(
        !made
            .iter()
            .any(|path| path.to_string_lossy().contains(".belljar"))
    );
    assert!(jail.work.join("lines.txt").exists());
    said(&jail, &["apply"]);
    assert!(!jail.work.join("lines.txt").exists());
    assert_eq!(read(&jail, "src/a.rs"), "one\nz\n");
    jail.assert_nothing_left(Some(&id));
}

for_each_user!(
    some_paths_are_applied_and_the_rest_waits,
    parts_of_files_are_applied_one_by_one,
    the_last_part_completes_a_file,
    a_part_is_finished_after_a_kill,
);
