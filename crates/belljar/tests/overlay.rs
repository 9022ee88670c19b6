//! `workspace: overlay`: the agent's changes wait aside until someone looks, and applies or discards them.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Stdio;

use support::{Finished, Jail, Outcome, Who, assert_all_refused, finish, for_each_user, picture};

const REFUSED: i32 = 122;

/// A workspace with something to change in every way, run once under an overlay.
struct Changed {
    jail: Jail,
    before: BTreeMap<String, String>,
    id: String,
}

const CHANGES: &str = "
    echo new > created.txt
    echo more >> modified.txt
    rm deleted.txt
    rm -r gone-directory
    mv renamed.txt renamed-to.txt
    mv moved-directory moved-to
    ln -s main.txt link
    chmod 700 mode.sh
    mkdir -p deep/er && echo deep > deep/er/file
    rm -r replaced-directory && echo file > replaced-directory
    rm replaced-file && mkdir replaced-file && echo inner > replaced-file/inner
    rm -r emptied/* && echo fresh > emptied/fresh
    ln -sfn elsewhere existing-link
    : > truncated.txt
    rm -r remade && mkdir remade && echo fresh > remade/fresh
    chmod 700 mode-directory
    rm -r nested && mkdir -p nested/a && echo new > nested/a/file
    printf 'a\\nb' > 'odd name
with newline'
";

impl Changed {
    fn make(who: Who) -> Changed {
        let jail = Jail::new(who);
        for (name, text) in [
            ("modified.txt", "old\n"),
            ("deleted.txt", "old\n"),
            ("gone-directory/file", "old\n"),
            ("renamed.txt", "renamed\n"),
            ("moved-directory/file", "moved\n"),
            ("mode.sh", "#!/bin/sh\n"),
            ("replaced-directory/file", "old\n"),
            ("replaced-file", "old\n"),
            ("emptied/one", "1\n"),
            ("emptied/two", "2\n"),
            ("truncated.txt", "long\n"),
            ("remade/one", "1\n"),
            ("mode-directory/file", "same\n"),
            ("nested/a/file", "old\n"),
            ("nested/b/file", "old\n"),
            ("untouched.txt", "same\n"),
        ] {
            jail.put(&jail.work.join(name), text);
        }
        symlink("main.txt", jail.work.join("existing-link")).expect("a link");
        jail.own(&jail.work);
        let before = picture(&jail.work);
        let outcome = overlaid(&jail, CHANGES);
        outcome.assert_exit(0);
        let id = outcome.sandbox_id().to_owned();
        Changed { jail, before, id }
    }

    fn do_with(&self, verb: &str, more: &[&str]) -> Finished {
        let mut command = self.jail.belljar(&[verb, &self.id]);
        finish(command.args(more).spawn().expect("start belljar"))
    }
}

/// A run under an overlay; it leaves its changes in the state directory, so the usual search is not for it.
fn overlaid(jail: &Jail, script: &str) -> Outcome {
    let mut command = jail.belljar(&[
        "run",
        "--output",
        "json",
        "--workspace",
        "overlay",
        "--",
        "sh",
        "-euc",
        script,
    ]);
    Outcome::from_json(finish(command.spawn().expect("start belljar")))
}

fn the_workspace_is_untouched_until_changes_are_applied(who: Who) {
    let changed = Changed::make(who);
    assert_eq!(picture(&changed.jail.work), changed.before);
}

fn the_agent_sees_its_own_changes(who: Who) {
    let jail = Jail::new(who);
    let outcome = overlaid(
        &jail,
        "echo changed > main.txt; rm .env; cat main.txt; test -e .env || echo gone",
    );
    assert_eq!(outcome.stdout(), "changed\ngone\n", "{outcome:#?}");
    assert_eq!(
        fs::read_to_string(jail.work.join("main.txt")).expect("the file"),
        "the agent's work"
    );
}

fn diff_names_every_change(who: Who) {
    let changed = Changed::make(who);
    let finished = changed.do_with("diff", &[]);
    assert_eq!(finished.code(), 0, "{}", finished.stderr());
    let text = finished.stdout();
    for name in [
        "created.txt",
        "modified.txt",
        "deleted.txt",
        "gone-directory",
        "renamed.txt",
        "renamed-to.txt",
        "moved-to",
        "link",
        "mode.sh",
        "deep/er/file",
        "replaced-directory",
        "replaced-file",
        "emptied",
        "existing-link",
        "truncated.txt",
    ] {
        assert!(text.contains(name), "{name} is not in the diff:\n{text}");
    }
    assert!(!text.contains("untouched.txt"), "{text}");
    // Looking changes nothing.
    assert_eq!(picture(&changed.jail.work), changed.before);
    assert_eq!(changed.do_with("diff", &[]).stdout(), text);
}

fn apply_makes_the_workspace_what_the_agent_saw(who: Who) {
    let changed = Changed::make(who);
    // What the same script does without an overlay.
    let twin = Jail::new(who);
    fs::remove_dir_all(&twin.work).expect("make room");
    let copied = finish(
        twin.outside("cp")
            .arg("-a")
            .args([&changed.jail.work, &twin.work])
            .current_dir("/")
            .spawn()
            .expect("cp"),
    );
    assert_eq!(copied.code(), 0, "{}", copied.stderr());
    let direct = finish(
        twin.outside("sh")
            .args(["-euc", CHANGES])
            .spawn()
            .expect("a shell"),
    );
    assert_eq!(direct.code(), 0, "{}", direct.stderr());
    let finished = changed.do_with("apply", &[]);
    assert_eq!(finished.code(), 0, "{}", finished.stderr());
    let (applied, expected) = (picture(&changed.jail.work), picture(&twin.work));
    for (name, as_expected) in &expected {
        assert_eq!(applied.get(name), Some(as_expected), "{name}");
    }
    assert_eq!(
        applied.keys().collect::<Vec<_>>(),
        expected.keys().collect::<Vec<_>>()
    );
    changed.jail.assert_nothing_left(Some(&changed.id));
    assert_ne!(changed.do_with("apply", &[]).code(), 0, "applied twice");
}

fn discard_leaves_the_workspace_untouched(who: Who) {
    let changed = Changed::make(who);
    let finished = changed.do_with("discard", &[]);
    assert_eq!(finished.code(), 0, "{}", finished.stderr());
    assert_eq!(picture(&changed.jail.work), changed.before);
    changed.jail.assert_nothing_left(Some(&changed.id));
    assert_ne!(
        changed.do_with("diff", &[]).code(),
        0,
        "a diff of what was discarded"
    );
}

/// The user went on working meanwhile: applying must not destroy that.
fn apply_refuses_when_a_file_changed_underneath(who: Who) {
    for (name, text) in [
        ("modified.txt", Some("the user's\n")),
        ("deleted.txt", Some("the user's\n")),
        ("created.txt", Some("the user's\n")),
        ("modified.txt", None),
    ] {
        let changed = Changed::make(who);
        let path = changed.jail.work.join(name);
        match text {
            Some(text) => changed.jail.put(&path, text),
            None => fs::remove_file(&path).expect("remove a file meanwhile"),
        }
        let meanwhile = picture(&changed.jail.work);
        let finished = changed.do_with("apply", &[]);
        assert_eq!(
            finished.code(),
            REFUSED,
            "{name}: {}{}",
            finished.stdout(),
            finished.stderr()
        );
        assert!(
            finished.stderr().contains(name),
            "{name}: {}",
            finished.stderr()
        );
        assert_eq!(
            picture(&changed.jail.work),
            meanwhile,
            "{name}: applied in part"
        );
        // Nothing is lost: the changes are still there to look at.
        assert_eq!(changed.do_with("diff", &[]).code(), 0);
    }
}

/// The agent removed a directory; the user put something new in it meanwhile.
fn apply_refuses_to_remove_what_it_has_not_seen(who: Who) {
    let changed = Changed::make(who);
    let fresh = changed.jail.work.join("gone-directory/the-users");
    changed.jail.put(&fresh, "the user's\n");
    let finished = changed.do_with("apply", &[]);
    assert_eq!(
        finished.code(),
        REFUSED,
        "{}{}",
        finished.stdout(),
        finished.stderr()
    );
    assert_eq!(
        fs::read_to_string(&fresh).expect("the user's file"),
        "the user's\n"
    );
}

/// A change that the user makes while the box still runs is one the agent has not seen.
fn apply_refuses_when_a_file_changed_during_the_run(who: Who) {
    let jail = Jail::new(who);
    let script = "echo agent > main.txt; echo up; cat > /dev/null";
    let mut command = jail.belljar(&[
        "run",
        "--output",
        "json",
        "--workspace",
        "overlay",
        "--",
        "sh",
        "-c",
        script,
    ]);
    let mut child = command
        .stdin(Stdio::piped())
        .spawn()
        .expect("start belljar");
    support::eventually("the agent has written", || {
        let reading = support::processes_marked(&jail.base)
            .into_iter()
            .any(|(_, words)| words.starts_with("cat "));
        reading.then_some(())
    });
    jail.put(&jail.work.join("main.txt"), "the user's");
    drop(child.stdin.take());
    let outcome = Outcome::from_json(finish(child));
    outcome.assert_exit(0);
    let finished = finish(
        jail.belljar(&["apply", outcome.sandbox_id()])
            .spawn()
            .expect("start belljar"),
    );
    assert_eq!(
        finished.code(),
        REFUSED,
        "{}{}",
        finished.stdout(),
        finished.stderr()
    );
    assert_eq!(
        fs::read_to_string(jail.work.join("main.txt")).expect("the file"),
        "the user's"
    );
}

/// A changed file elsewhere in the tree is no conflict.
fn apply_keeps_what_only_the_user_changed(who: Who) {
    let changed = Changed::make(who);
    changed
        .jail
        .put(&changed.jail.work.join("untouched.txt"), "the user's\n");
    let finished = changed.do_with("apply", &[]);
    assert_eq!(finished.code(), 0, "{}", finished.stderr());
    assert_eq!(
        fs::read_to_string(changed.jail.work.join("untouched.txt")).expect("a file"),
        "the user's\n"
    );
    assert_eq!(
        fs::read_to_string(changed.jail.work.join("created.txt")).expect("a file"),
        "new\n"
    );
}

fn protected_and_hidden_files_stay_so_under_an_overlay(who: Who) {
    let mut jail = Jail::new(who);
    jail.option(&["--workspace", "overlay"]);
    for path in [
        jail.work_file(".git/hooks/pre-commit"),
        jail.work_file(".envrc"),
        jail.home_file("other/stray.txt"),
    ] {
        let program = jail.probe_path().to_string_lossy().into_owned();
        let finished = finish(
            jail.text_command(&[&program, "create", &path])
                .spawn()
                .expect("start belljar"),
        );
        assert_all_refused(&support::Attempt::parse(&finished.stdout()));
        assert!(!Path::new(&path).exists(), "{path}");
    }
}

/// Kept files may come from a private workspace, and whoever could edit the list of changes could make `apply`
/// write anywhere.
fn kept_changes_are_private(who: Who) {
    let changed = Changed::make(who);
    let kept = support::files_below(&changed.jail.state);
    assert!(
        kept.iter().any(|path| path.ends_with("created.txt")),
        "{kept:?}"
    );
    let list = kept
        .iter()
        .find(|path| path.ends_with("changes.jsonl"))
        .expect("the list of changes");
    for ancestor in list
        .ancestors()
        .skip(1)
        .take_while(|path| path.starts_with(&changed.jail.state))
    {
        assert_eq!(
            fs::metadata(ancestor).expect("metadata").uid(),
            who.uid(),
            "{}",
            ancestor.display()
        );
    }
    for path in kept.iter().filter(|path| !path.is_symlink()) {
        let open_to_others = path
            .ancestors()
            .take_while(|above| above.starts_with(&changed.jail.state))
            .all(|above| {
                fs::metadata(above).is_ok_and(|metadata| metadata.permissions().mode() & 0o005 != 0)
            });
        assert!(!open_to_others, "others can read {}", path.display());
    }
}

/// An agent could swap a directory of its own for a link that leads outside, hoping that `apply` follows it.
fn apply_does_not_follow_links_out_of_the_workspace(who: Who) {
    let jail = Jail::new(who);
    jail.put(&jail.work.join("folder/file"), "old\n");
    let outcome = overlaid(
        &jail,
        "echo evil > folder/notes.txt; mkdir other; echo evil > other/notes.txt",
    );
    outcome.assert_exit(0);
    fs::remove_dir_all(jail.work.join("folder")).expect("remove the folder");
    symlink(&jail.home, jail.work.join("folder")).expect("a link that leads outside");
    symlink(&jail.home, jail.work.join("other")).expect("a link that leads outside");
    let finished = finish(
        jail.belljar(&["apply", outcome.sandbox_id()])
            .spawn()
            .expect("start belljar"),
    );
    assert_eq!(finished.code(), REFUSED, "{}", finished.stderr());
    assert_eq!(
        fs::read_to_string(jail.home.join("notes.txt")).expect("the notes"),
        "the user's notes"
    );
}

/// What the agent chose, names and contents, is shown line by line and steers nothing.
fn nothing_of_the_agents_steers_the_terminal(who: Who) {
    let jail = Jail::new(who);
    let outcome = overlaid(
        &jail,
        "name=$(printf 'a\\033[2K\\033[1A\\rFORGED\\nFORGED \\302\\233\\342\\200\\256\\033]8;;x\\007\\377')
         printf 'x' > \"$name\"; ln -s \"$name\" link
         printf 'old\\n\\tcurl # \\033[2K\\033[1A\\033[8m\\342\\200\\213\\r\\n' > main.txt",
    );
    outcome.assert_exit(0);
    let id = outcome.sandbox_id();
    for words in [
        &["diff", id][..],
        &["diff", id, "--output", "json"],
        &["apply", id],
    ] {
        let finished = finish(jail.belljar(words).spawn().expect("start belljar"));
        assert_eq!(finished.code(), 0, "{}", finished.stderr());
        let shown = finished.stdout();
        assert!(shown.contains("FORGED"), "{words:?}: {shown:?}");
        for line in shown.lines() {
            assert!(
                !line.contains(|c| belljar_policy::is_harmful(c) && c != '\t'),
                "{words:?}: {line:?}"
            );
            assert!(!line.starts_with("FORGED"), "{words:?}: {line:?}");
        }
    }
}

/// Killed in the middle, `apply` goes on when it is run again.
fn apply_is_finished_after_a_kill(who: Who) {
    let jail = Jail::new(who);
    let outcome = overlaid(
        &jail,
        "mkdir many && cd many && seq 1500 | split -l 1 -a 4 - f && rm ../main.txt",
    );
    outcome.assert_exit(0);
    let mut apply = jail
        .belljar(&["apply", outcome.sandbox_id()])
        .spawn()
        .expect("start belljar");
    support::eventually("some of it is there", || {
        jail.work.join("many/faaab").exists().then_some(())
    });
    let _ = apply.kill();
    let _ = apply.wait();
    let again = finish(
        jail.belljar(&["apply", outcome.sandbox_id()])
            .spawn()
            .expect("start belljar"),
    );
    // Whoever was quicker than the signal had finished.
    assert!([0, 121].contains(&again.code()), "{}", again.stderr());
    let made = picture(&jail.work.join("many"));
    assert_eq!(made.len(), 1500);
    assert!(!made.keys().any(|name| name.contains("belljar")));
    assert!(!jail.work.join("main.txt").exists());
    jail.assert_nothing_left(Some(outcome.sandbox_id()));
}

/// A disk that is full or read-only: whole files, a clear error, and the rest later.
fn apply_waits_for_room(who: Who) {
    if who != Who::Root {
        return;
    }
    let jail = Jail::new(who);
    let belljar = env!("CARGO_BIN_EXE_belljar");
    let script = format!(
        "mount -t tmpfs -o size=256k,mode=755 tmpfs . && cd \"$PWD\"
         {belljar} run --workspace overlay -- sh -c 'for i in 1 2 3 4; do head -c 100000 /dev/zero | tr \\\\0 x > f$i; done' 2> said
         rm said; id=$(ls $BELLJAR_STATE_DIR/overlays)
         code=0; {belljar} apply $id 2> /dev/shm/said-$$ || code=$?
         echo $code $(ls -A | wc -l) $(cat /dev/shm/said-$$); rm /dev/shm/said-$$
         for f in f*; do wc -c < $f; done | sort -u
         mount -o remount,size=4M . ; mount -o remount,ro .
         code=0; {belljar} apply $id 2> /dev/null || code=$?; echo $code
         mount -o remount,rw . ; {belljar} apply $id; ls -A | tr '\\n' ' '"
    );
    let finished = finish(
        jail.outside("unshare")
            .args(["--mount", "sh", "-euc", &script])
            .spawn()
            .expect("a shell"),
    );
    let said = finished.stdout();
    assert_eq!(finished.code(), 0, "{said}{}", finished.stderr());
    let lines: Vec<_> = said.lines().collect();
    assert!(
        lines[0].starts_with("120 2 ") && lines[0].contains("f3"),
        "{said}"
    );
    assert_eq!(lines[1..3], ["100000", "120"], "{said}");
    assert_eq!(lines.last(), Some(&"f1 f2 f3 f4 "), "{said}");
}

fn a_run_that_changed_nothing_leaves_nothing(who: Who) {
    let jail = Jail::new(who);
    let outcome = overlaid(&jail, "cat main.txt > /dev/null");
    outcome.assert_exit(0);
    let finished = finish(
        jail.belljar(&["diff", outcome.sandbox_id()])
            .spawn()
            .expect("start belljar"),
    );
    assert_eq!(finished.stdout(), "", "{}", finished.stderr());
}

fn unknown_ids_are_an_error(who: Who) {
    let jail = Jail::new(who);
    for id in ["no-such-sandbox", "../../etc", "", "/", "."] {
        for verb in ["diff", "apply", "discard", "inspect"] {
            let finished = finish(
                jail.belljar(&[verb, "--", id])
                    .spawn()
                    .expect("start belljar"),
            );
            assert!(
                [2, 121].contains(&finished.code()),
                "{verb} {id:?}: {} {}",
                finished.code(),
                finished.stderr()
            );
            assert!(!finished.stderr().is_empty());
        }
    }
}

for_each_user!(
    the_workspace_is_untouched_until_changes_are_applied,
    the_agent_sees_its_own_changes,
    diff_names_every_change,
    apply_makes_the_workspace_what_the_agent_saw,
    discard_leaves_the_workspace_untouched,
    apply_refuses_when_a_file_changed_underneath,
    apply_refuses_to_remove_what_it_has_not_seen,
    apply_refuses_when_a_file_changed_during_the_run,
    apply_keeps_what_only_the_user_changed,
    protected_and_hidden_files_stay_so_under_an_overlay,
    kept_changes_are_private,
    apply_does_not_follow_links_out_of_the_workspace,
    nothing_of_the_agents_steers_the_terminal,
    apply_is_finished_after_a_kill,
    apply_waits_for_room,
    a_run_that_changed_nothing_leaves_nothing,
    unknown_ids_are_an_error,
);
