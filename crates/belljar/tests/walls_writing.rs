//! What an agent may not change by default: files outside its workspace, and protected ones in it.
//!
//! Each attack is first shown to work outside the box by the same user with the same program.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use support::{
    Attempt, Difference, Jail, Scratch, Who, assert_all_allowed, assert_all_refused, differs,
    finish, for_each_user_and_tier, picture,
};

/// An attempt may fail, or succeed in a private copy: what counts is that the host does not change.
fn nothing_outside_the_workspace_can_be_changed(who: Who) {
    let attempts: &[&[&str]] = &[
        &["write", "notes.txt"],
        &["truncate", "notes.txt"],
        &["touch", "notes.txt"],
        &["chmod", "notes.txt", "600"],
        &["unlink", "notes.txt"],
        &["rename-over", "notes.txt", "other/readme.txt"],
        &["rename-over", "notes.txt", "project/taken.txt"],
        &["exchange", "notes.txt", "project/main.txt"],
        &["link", "notes.txt", "project/hard-link"],
        &["create", "created"],
        &["mkdir", "directory"],
        &["symlink", "/etc/hostname", "link"],
        &["mknod", "pipe", "fifo"],
        &["create", "other/created"],
        &["rmdir", "empty"],
        &["rename-over", "other", "project/other"],
        &["unlink", ".ssh/id_ed25519"],
        &["create", ".ssh/authorized_keys"],
        &["setxattr", "other/readme.txt"],
    ];
    for attempt in attempts {
        let (control, boxed) = (Jail::new(who), Jail::new(who));
        for jail in [&control, &boxed] {
            fs::create_dir(jail.home.join("empty")).expect("an empty directory");
            jail.own(&jail.home.join("empty"));
        }
        let words = |jail: &Jail| -> Vec<String> {
            let place = |word: &&str| {
                if word.starts_with('/') {
                    (*word).to_owned()
                } else {
                    jail.home_file(word)
                }
            };
            let paths = if attempt[0] == "chmod" || attempt[0] == "mknod" {
                &attempt[1..2]
            } else {
                &attempt[1..]
            };
            let rest = attempt[1 + paths.len()..]
                .iter()
                .map(|word| (*word).to_owned());
            std::iter::once(attempt[0].to_owned())
                .chain(paths.iter().map(place))
                .chain(rest)
                .collect()
        };
        let run = |words: &[String], how: &dyn Fn(&[&str]) -> Vec<Attempt>| {
            how(&words.iter().map(String::as_str).collect::<Vec<_>>())
        };
        let unboxed = run(&words(&control), &|words| control.control(words));
        // Not every file system has user attributes.
        if unboxed[0].detail != "EOPNOTSUPP" {
            assert_all_allowed(&unboxed);
        }
        let before = host_state(&boxed.home);
        let attempts = run(&words(&boxed), &|words| boxed.inside(words).attempts());
        assert_eq!(attempts.len(), 1);
        assert_eq!(host_state(&boxed.home), before, "{attempt:?}");
    }
}

/// A picture of a tree and when each entry was last changed in any way.
fn host_state(root: &Path) -> (BTreeMap<String, String>, Vec<(i64, i64)>) {
    let picture = picture(root);
    let changed = |name: &String| {
        let metadata = fs::symlink_metadata(root.join(name)).expect("metadata");
        // A directory's times move with the stand-ins that Belljar puts in the workspace.
        if metadata.is_dir() {
            (0, 0)
        } else {
            (metadata.ctime(), metadata.ctime_nsec())
        }
    };
    let changes = picture.keys().map(changed).collect();
    (picture, changes)
}

/// Only opens and asks: were a wall missing, the host must not suffer from this test.
fn files_of_root_cannot_be_changed(who: Who) {
    let jail = Jail::new(who);
    for path in [
        "/etc/passwd",
        "/etc/hosts",
        "/proc/sys/kernel/hostname",
        "/proc/sysrq-trigger",
    ] {
        if who == Who::Root && Path::new(path).exists() {
            assert_all_allowed(&jail.control(&["open-to-write", path]));
        }
        if path == "/proc/sysrq-trigger" && differs(Difference::OwnDevices) {
            continue;
        }
        assert_all_refused(&jail.inside(&["open-to-write", path]).attempts());
    }
    if differs(Difference::PermissionBits) {
        for directory in ["", "/etc", "/usr/bin", "/var"] {
            let file = format!("{directory}/belljar-probe");
            assert_all_refused(&jail.inside(&["create", &file]).attempts());
        }
        return;
    }
    for directory in ["/", "/etc", "/usr/bin", "/dev", "/var", "/proc"] {
        assert_all_refused(&jail.inside(&["may-write", directory]).attempts());
    }
}

fn the_workspace_can_be_written(who: Who) {
    let jail = Jail::new(who);
    assert_all_allowed(
        &jail
            .inside(&["create", &jail.work_file("result.txt")])
            .attempts(),
    );
    assert_eq!(
        fs::read_to_string(jail.work.join("result.txt")).expect("the result"),
        "made in the box\n"
    );
    // What the agent made belongs to the host's user, not to an id of the box.
    let made = fs::metadata(jail.work.join("result.txt")).expect("the result");
    assert_eq!((made.uid(), made.gid()), (who.uid(), who.uid()));
    for attempt in [
        vec!["mkdir".to_owned(), jail.work_file("new")],
        vec![
            "symlink".into(),
            "result.txt".into(),
            jail.work_file("new-link"),
        ],
        vec![
            "rename-over".into(),
            jail.work_file("result.txt"),
            jail.work_file("main.txt"),
        ],
        vec!["chmod".into(), jail.work_file("main.txt"), "700".into()],
        vec!["unlink".into(), jail.work_file("main.txt")],
    ] {
        let words: Vec<&str> = attempt.iter().map(String::as_str).collect();
        assert_all_allowed(&jail.inside(&words).attempts());
    }
    assert!(jail.work.join("new").is_dir() && !jail.work.join("main.txt").exists());
}

fn protected_files_cannot_be_written_or_created(who: Who) {
    let jail = Jail::new(who);
    let protected_files = [
        ".git/hooks/pre-commit",
        ".envrc",
        ".mcp.json",
        ".gitlab-ci.yml",
        ".pre-commit-config.yaml",
    ];
    for name in protected_files {
        let path = jail.work_file(name);
        assert_all_allowed(&jail.control(&["create", &path]));
        fs::remove_file(&path).expect("undo the control");
        assert_all_refused(&jail.inside(&["create", &path]).attempts());
        assert!(
            !jail.work.join(name).exists(),
            "{name} was left on the host"
        );
    }
    for name in [".github", ".vscode", ".claude", ".husky"] {
        let path = jail.work_file(name);
        let outcome = jail.run(&[
            "/bin/sh",
            "-c",
            &format!("mkdir -p '{path}' && echo x > '{path}/file'"),
        ]);
        assert_ne!(outcome.exit_code(), Some(0), "{outcome:#?}");
        assert!(
            !jail.work.join(name).exists(),
            "{name} was left on the host"
        );
    }
    jail.attack(&["write", &jail.work_file(".git/config")]);
    // The rest of .git is the agent's to use.
    assert_all_allowed(
        &jail
            .inside(&["create", &jail.work_file(".git/MERGE_MSG")])
            .attempts(),
    );
}

fn protected_files_cannot_be_replaced_by_moving_what_is_around_them(who: Who) {
    let tries = [
        "mv .git gone; mkdir -p .git/hooks; echo evil > .git/hooks/pre-commit",
        "mv .git gone; mkdir -p new/hooks; echo evil > new/hooks/pre-commit; mv new .git",
        "mv .git gone; ln -s gone2 .git; mkdir -p gone2/hooks; echo evil > gone2/hooks/pre-commit",
        "mkdir -p fake/hooks; echo evil > fake/hooks/pre-commit; mv -T fake/hooks .git/hooks",
        "echo evil > fake-config; mv fake-config .git/config",
        "rm -rf .git; mkdir -p .git/hooks; echo evil > .git/hooks/pre-commit",
        "rm -rf .git/hooks; mkdir .git/hooks; echo evil > .git/hooks/pre-commit",
        "ln -sfn /tmp .git/hooks; echo evil > .git/hooks/pre-commit",
        "echo evil > .git/hooks/../hooks/pre-commit",
        "ln -s .git/hooks alias; echo evil > alias/pre-commit",
        "ln .git/config alias; echo evil > alias",
    ];
    for attempt in tries {
        let jail = Jail::new(who);
        let config = fs::read_to_string(jail.work.join(".git/config")).expect("the config");
        jail.run(&["/bin/sh", "-c", attempt]);
        assert!(
            !jail.work.join(".git/hooks/pre-commit").exists(),
            "a hook was planted by: {attempt}"
        );
        assert_eq!(
            fs::read_to_string(jail.work.join(".git/config")).ok(),
            Some(config),
            "{attempt}"
        );
    }
    let jail = Jail::new(who);
    let swap = [
        "exchange",
        &jail.work_file("main.txt"),
        &jail.work_file(".git/config"),
    ];
    assert_all_refused(&jail.inside(&swap).attempts());
    let swap = [
        "exchange",
        &jail.work_file("tools"),
        &jail.work_file(".git"),
    ];
    assert_all_refused(&jail.inside(&swap).attempts());
}

/// Protection must not depend on who else is working in the directory, nor end when they do.
fn protected_files_stay_protected_when_another_box_ends(who: Who) {
    let jail = Jail::new(who);
    let program = jail.probe_path().to_string_lossy().into_owned();
    let target = jail.work_file(".envrc");
    let mut command = jail.json_command(&[&program, "after-input", "create", &target]);
    let mut waiting = command
        .stdin(std::process::Stdio::piped())
        .spawn()
        .expect("start the first box");
    // The first box is up once its agent has said so in the second's sight.
    support::eventually("the first box is up", || {
        let up = support::processes_marked(&jail.base)
            .iter()
            .any(|(_, words)| words.contains("/probe after-input"));
        let inside = up && jail.work.join(".envrc").exists();
        inside.then_some(())
    });
    let second = support::Outcome::from_json(finish(
        jail.json_command(&["true"])
            .spawn()
            .expect("the second box"),
    ));
    second.assert_exit(0);
    drop(waiting.stdin.take());
    let outcome = jail.conclude(waiting);
    let attempts: Vec<Attempt> = outcome
        .attempts()
        .into_iter()
        .filter(|a| a.name == "create")
        .collect();
    assert_all_refused(&attempts);
    assert!(!jail.work.join(".envrc").exists());
}

/// What stands in for a missing protected file must not trip the programs that look for it.
fn missing_files_that_programs_look_for_look_missing(who: Who) {
    let jail = Jail::new(who);
    for name in [".npmrc", ".gitmodules", ".gitattributes", ".inputrc"] {
        let attempts = jail.inside(&["read", &jail.work_file(name)]).attempts();
        let missing = !attempts[0].allowed && attempts[0].detail == "ENOENT";
        let empty = attempts[0].allowed && attempts[0].detail.is_empty();
        assert!(missing || empty, "{name}: {attempts:?}");
    }
}

/// Hooks are often a link to a directory that the whole team shares.
fn what_a_protected_link_leads_to_is_protected_too(who: Who) {
    let jail = Jail::new(who);
    fs::remove_dir_all(jail.work.join(".git/hooks")).expect("remove the hooks");
    jail.put(&jail.work.join("team-hooks/pre-push"), "#!/bin/sh\n");
    symlink("../team-hooks", jail.work.join(".git/hooks")).expect("link to the team's hooks");
    for name in ["team-hooks/pre-commit", ".git/hooks/pre-commit"] {
        assert_all_refused(&jail.inside(&["create", &jail.work_file(name)]).attempts());
    }
    jail.attack(&["write", &jail.work_file("team-hooks/pre-push")]);
    jail.run(&[
        "/bin/sh",
        "-c",
        "rm .git/hooks; mkdir .git/hooks; echo evil > .git/hooks/pre-commit",
    ]);
    assert!(
        !jail.work.join(".git/hooks/pre-commit").exists(),
        "the link was replaced"
    );
}

/// Odd things at protected names must neither break the launch nor open a way.
fn protected_names_of_every_kind(who: Who) {
    let jail = Jail::new(who);
    fs::rename(jail.work.join(".git"), jail.home.join("repository")).expect("move the repository");
    jail.put(&jail.work.join(".git"), "gitdir: ../repository\n");
    jail.put(
        &jail.work.join(".github"),
        "a file where a directory is expected\n",
    );
    symlink("nowhere", jail.work.join(".mcp.json")).expect("a dangling link");
    symlink(".envrc", jail.work.join(".envrc")).expect("a link to itself");
    symlink("/etc", jail.work.join(".vscode")).expect("a link that leads outside");
    fs::create_dir(jail.work.join(".gitlab-ci.yml")).expect("a directory where a file is expected");
    jail.own(&jail.work);
    let before = picture(&jail.work);
    let script = "echo evil > .github; echo evil > .mcp.json; echo evil > nowhere; ln -sf /tmp .envrc; echo evil > .gitlab-ci.yml/x; \
                  rm -f .mcp.json .envrc .vscode .github; echo evil > .mcp.json; echo evil > .envrc; mkdir .vscode; exit 0";
    jail.run(&["/bin/sh", "-c", script]).assert_exit(0);
    let mut after = picture(&jail.work);
    // The name a dangling link leads to is an ordinary one, but writing it would give the link a meaning.
    assert_eq!(
        after.remove("nowhere"),
        None,
        "the dangling link was given a target"
    );
    assert_eq!(after, before);
}

/// An agent that could edit its own policy would be free on the next run.
fn the_policy_in_use_cannot_be_changed(who: Who) {
    let mut jail = Jail::new(who);
    let policy = jail.work.join("policies/box.yaml");
    jail.put(&policy, "extends: moderate\n");
    jail.option(&["--config", &policy.to_string_lossy()]);
    assert_all_refused(
        &jail
            .inside(&["write", &policy.to_string_lossy()])
            .attempts(),
    );
    jail.run(&[
        "/bin/sh",
        "-c",
        "rm -rf policies; mkdir policies; echo 'extends: permissive' > policies/box.yaml",
    ]);
    jail.run(&[
        "/bin/sh",
        "-c",
        "mv policies gone; mkdir policies; echo 'extends: permissive' > policies/box.yaml",
    ]);
    assert!(fs::read_to_string(&policy).is_ok_and(|text| text.starts_with("extends: moderate")));
}

/// Asks only. Started at the top of the tree, the box must not take the whole tree for its workspace.
fn the_root_directory_is_never_writable_by_default(who: Who) {
    let mut jail = Jail::new(who);
    let program = jail.probe_path().to_string_lossy().into_owned();
    jail.work = "/".into();
    for directory in ["/", "/etc", "/usr", "/var", &jail.home.to_string_lossy()] {
        let file = format!("{}/belljar-probe", directory.trim_end_matches('/'));
        let words = match differs(Difference::PermissionBits) {
            true => [program.as_str(), "create", &file],
            false => [program.as_str(), "may-write", directory],
        };
        let finished = finish(jail.text_command(&words).spawn().expect("start belljar"));
        let attempts = Attempt::parse(&finished.stdout());
        let private_home = jail.home.to_string_lossy() == directory;
        assert!(
            private_home || attempts.iter().all(|a| !a.allowed),
            "{directory}: {attempts:?}"
        );
        // Refusing to start there at all is as good.
        assert!(
            !attempts.is_empty() || [121, 122].contains(&finished.code()),
            "{}",
            finished.stderr()
        );
    }
}

fn read_only_mode_writes_nothing_but_private_tmp(who: Who) {
    let mut jail = Jail::new(who);
    jail.policy("permissions: [spawn_subprocess]\n");
    assert_all_refused(
        &jail
            .inside(&["create", &jail.work_file("result.txt")])
            .attempts(),
    );
    assert_all_refused(
        &jail
            .inside(&["write", &jail.work_file("main.txt")])
            .attempts(),
    );
    assert_all_allowed(
        &jail
            .inside(&["read", &jail.work_file("main.txt")])
            .attempts(),
    );
    assert_all_allowed(&jail.inside(&["create", "/tmp/scratch"]).attempts());
}

fn temporary_directories_are_private(who: Who) {
    let jail = Jail::new(who);
    for place in ["/tmp", "/var/tmp", "/dev/shm"] {
        let shared = Scratch::below(place);
        let file = shared.file("note", "the host's");
        jail.attack(&["read", &file]);
        // The box has a directory of the same name to itself, and what it makes there is not on the host.
        let own = format!("{place}/belljar-own-{}", std::process::id());
        assert_all_allowed(&jail.inside(&["create", &own]).attempts());
        assert!(!std::path::Path::new(&own).exists(), "{own} is on the host");
    }
}

fn set_id_bits_cannot_be_planted(who: Who) {
    let jail = Jail::new(who);
    let directory = jail.work_file("planted");
    fs::create_dir(&directory).expect("a directory");
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).expect("open it");
    let control: Vec<Attempt> = jail.control(&["set-id", &directory]);
    // fchmodat2 is newer than some kernels; all others work everywhere.
    assert_all_allowed(
        &control
            .into_iter()
            .filter(|a| !a.name.ends_with("fchmodat2"))
            .collect::<Vec<_>>(),
    );
    for entry in fs::read_dir(&directory)
        .expect("the control's files")
        .flatten()
    {
        fs::remove_file(entry.path()).expect("undo the control");
    }
    assert_all_refused(&jail.inside(&["set-id", &directory]).attempts());
    for entry in fs::read_dir(&directory).expect("the box's files").flatten() {
        let mode = entry.metadata().expect("metadata").permissions().mode();
        assert_eq!(
            mode & 0o6000,
            0,
            "{} has set-id bits on the host",
            entry.path().display()
        );
    }
}

fn device_nodes_can_be_neither_made_nor_opened(who: Who) {
    let jail = Jail::new(who);
    if who == Who::Root {
        assert_all_allowed(&jail.control(&["mknod", &jail.work_file("control"), "char"]));
    }
    assert_all_refused(
        &jail
            .inside(&["mknod", &jail.work_file("null"), "char"])
            .attempts(),
    );
    assert_all_refused(
        &jail
            .inside(&["mknod", &jail.work_file("disk"), "block"])
            .attempts(),
    );
    for device in [
        "/dev/kmsg",
        "/dev/mem",
        "/dev/kvm",
        "/dev/fuse",
        "/dev/net/tun",
        "/dev/vda",
        "/dev/sda",
        "/dev/loop0",
    ] {
        if differs(Difference::OwnDevices) && ["/dev/fuse", "/dev/net/tun"].contains(&device) {
            continue;
        }
        assert_all_refused(&jail.inside(&["open-device", device]).attempts());
    }
    for device in ["/dev/null", "/dev/zero", "/dev/urandom", "/dev/full"] {
        assert_all_allowed(&jail.inside(&["open-device", device]).attempts());
    }
}

fn device_nodes_in_the_workspace_are_dead(who: Who) {
    let jail = Jail::new(who);
    let node = jail.work_file("zero");
    let made = Command::new(jail.probe_path())
        .args(["mknod", &node, "char"])
        .output()
        .expect("the probe");
    assert!(made.status.success(), "{made:?}");
    jail.own(node.as_ref());
    jail.attack(&["open-device", &node]);
}

for_each_user_and_tier!(
    nothing_outside_the_workspace_can_be_changed,
    files_of_root_cannot_be_changed,
    the_workspace_can_be_written,
    protected_files_cannot_be_written_or_created,
    protected_files_cannot_be_replaced_by_moving_what_is_around_them,
    protected_files_stay_protected_when_another_box_ends,
    missing_files_that_programs_look_for_look_missing,
    what_a_protected_link_leads_to_is_protected_too,
    protected_names_of_every_kind,
    the_policy_in_use_cannot_be_changed,
    the_root_directory_is_never_writable_by_default,
    read_only_mode_writes_nothing_but_private_tmp,
    temporary_directories_are_private,
    set_id_bits_cannot_be_planted,
    device_nodes_can_be_neither_made_nor_opened;
    prepared by root: device_nodes_in_the_workspace_are_dead
);
