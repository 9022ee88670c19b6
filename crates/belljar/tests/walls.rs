//! What an agent may not see or change by default: files, environment, identity, descriptors.
//!
//! Each attack is first shown to work outside the box by the same user with the same program.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use support::{
    AWS_SECRET, Attempt, DOTENV_SECRET, Jail, NETRC_SECRET, SSH_SECRET, Scratch, Who, assert_all_allowed,
    assert_all_refused, finish, for_each_user, picture, runner_is_root,
};

/// A hidden file is out of sight or shows nothing; outside, the same user reads it.
#[track_caller]
fn assert_hides(jail: &Jail, arguments: &[&str], secret: &str) {
    assert_eq!(jail.control(arguments)[0].detail, secret, "the attack does not work outside");
    let attempts = jail.inside(arguments).attempts();
    assert!(!attempts.is_empty() && attempts.iter().all(|a| !a.allowed || a.detail.is_empty()), "{attempts:?}");
}

fn hidden_files_cannot_be_read(who: Who) {
    let jail = Jail::new(who);
    for (name, secret) in [
        (".ssh/id_ed25519", SSH_SECRET),
        (".aws/credentials", AWS_SECRET),
        (".netrc", NETRC_SECRET),
        ("other/.env", DOTENV_SECRET),
    ] {
        assert_hides(&jail, &["read", &jail.home_file(name)], secret);
    }
}

fn the_workspace_and_plain_files_can_be_read(who: Who) {
    let jail = Jail::new(who);
    for path in [jail.home_file("notes.txt"), jail.work_file("main.txt"), jail.work_file(".env")] {
        assert_all_allowed(&jail.inside(&["read", &path]).attempts());
    }
}

fn hidden_files_cannot_be_reached_by_other_names(who: Who) {
    let jail = Jail::new(who);
    let key = jail.home_file(".ssh/id_ed25519");
    symlink(&key, jail.work.join("key")).expect("link to the key");
    symlink(jail.home.join(".ssh"), jail.work.join("keys")).expect("link to the directory of keys");
    for path in [
        jail.work_file("key"),
        jail.work_file("keys/id_ed25519"),
        jail.work_file("../.ssh/id_ed25519"),
        format!("/proc/self/root{key}"),
        "/proc/self/cwd/../.ssh/id_ed25519".to_owned(),
    ] {
        assert_hides(&jail, &["read", &path], SSH_SECRET);
    }
    jail.attack(&["climb", &key]);
    assert_all_refused(&jail.inside(&["read", &format!("/proc/1/root{key}")]).attempts());
    assert_all_refused(&jail.inside(&["read", &format!("/proc/1/cwd{key}")]).attempts());
}

fn file_handles_do_not_lead_past_the_mounts(who: Who) {
    let jail = Jail::new(who);
    let key = jail.home_file(".ssh/id_ed25519");
    if who == Who::Root {
        assert_all_allowed(&jail.control(&["open-handle", &key]));
    }
    assert_all_refused(&jail.inside(&["open-handle", &key]).attempts());
    assert_all_refused(&jail.inside(&["open-handle", &jail.work_file("main.txt")]).attempts());
}

fn other_homes_are_hidden(who: Who) {
    assert!(runner_is_root(), "only root can make the other user's home that this test attacks");
    let jail = Jail::new(who);
    let neighbour = Scratch::below("/home");
    let diary = neighbour.file("diary.txt", "readable by all, but none of the agent's business");
    jail.attack(&["read", &diary]);
}

fn the_hosts_run_directory_is_hidden(who: Who) {
    let jail = Jail::new(who);
    assert!(!jail.control(&["list", "/run"]).is_empty());
    let attempts = jail.inside(&["list", "/run"]).attempts();
    assert!(attempts.iter().all(|a| !a.allowed || a.detail == "48"), "/run shows its entries: {attempts:?}");
}

fn sys_is_absent(who: Who) {
    let jail = Jail::new(who);
    jail.attack(&["read", "/sys/kernel/mm/transparent_hugepage/enabled"]);
}

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
            let place = |word: &&str| if word.starts_with('/') { (*word).to_owned() } else { jail.home_file(word) };
            let paths = if attempt[0] == "chmod" || attempt[0] == "mknod" { &attempt[1..2] } else { &attempt[1..] };
            let rest = attempt[1 + paths.len()..].iter().map(|word| (*word).to_owned());
            std::iter::once(attempt[0].to_owned()).chain(paths.iter().map(place)).chain(rest).collect()
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
        if metadata.is_dir() { (0, 0) } else { (metadata.ctime(), metadata.ctime_nsec()) }
    };
    let changes = picture.keys().map(changed).collect();
    (picture, changes)
}

/// Only opens and asks: were a wall missing, the host must not suffer from this test.
fn files_of_root_cannot_be_changed(who: Who) {
    let jail = Jail::new(who);
    for path in ["/etc/passwd", "/etc/hosts", "/proc/sys/kernel/hostname", "/proc/sysrq-trigger"] {
        if who == Who::Root && Path::new(path).exists() {
            assert_all_allowed(&jail.control(&["open-to-write", path]));
        }
        assert_all_refused(&jail.inside(&["open-to-write", path]).attempts());
    }
    for directory in ["/", "/etc", "/usr/bin", "/dev", "/var", "/proc"] {
        assert_all_refused(&jail.inside(&["may-write", directory]).attempts());
    }
}

fn the_workspace_can_be_written(who: Who) {
    let jail = Jail::new(who);
    assert_all_allowed(&jail.inside(&["create", &jail.work_file("result.txt")]).attempts());
    assert_eq!(fs::read_to_string(jail.work.join("result.txt")).expect("the result"), "made in the box\n");
    // What the agent made belongs to the host's user, not to an id of the box.
    let made = fs::metadata(jail.work.join("result.txt")).expect("the result");
    assert_eq!((made.uid(), made.gid()), (who.uid(), who.uid()));
    for attempt in [
        vec!["mkdir".to_owned(), jail.work_file("new")],
        vec!["symlink".into(), "result.txt".into(), jail.work_file("new-link")],
        vec!["rename-over".into(), jail.work_file("result.txt"), jail.work_file("main.txt")],
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
    let protected_files = [".git/hooks/pre-commit", ".envrc", ".mcp.json", ".gitlab-ci.yml", ".pre-commit-config.yaml"];
    for name in protected_files {
        let path = jail.work_file(name);
        assert_all_allowed(&jail.control(&["create", &path]));
        fs::remove_file(&path).expect("undo the control");
        assert_all_refused(&jail.inside(&["create", &path]).attempts());
        assert!(!jail.work.join(name).exists(), "{name} was left on the host");
    }
    for name in [".github", ".vscode", ".claude", ".husky"] {
        let path = jail.work_file(name);
        let outcome = jail.run(&["/bin/sh", "-c", &format!("mkdir -p '{path}' && echo x > '{path}/file'")]);
        assert_ne!(outcome.exit_code(), Some(0), "{outcome:#?}");
        assert!(!jail.work.join(name).exists(), "{name} was left on the host");
    }
    jail.attack(&["write", &jail.work_file(".git/config")]);
    // The rest of .git is the agent's to use.
    assert_all_allowed(&jail.inside(&["create", &jail.work_file(".git/MERGE_MSG")]).attempts());
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
        assert!(!jail.work.join(".git/hooks/pre-commit").exists(), "a hook was planted by: {attempt}");
        assert_eq!(fs::read_to_string(jail.work.join(".git/config")).ok(), Some(config), "{attempt}");
    }
    let jail = Jail::new(who);
    let swap = ["exchange", &jail.work_file("main.txt"), &jail.work_file(".git/config")];
    assert_all_refused(&jail.inside(&swap).attempts());
    let swap = ["exchange", &jail.work_file("tools"), &jail.work_file(".git")];
    assert_all_refused(&jail.inside(&swap).attempts());
}

/// Protection must not depend on who else is working in the directory, nor end when they do.
fn protected_files_stay_protected_when_another_box_ends(who: Who) {
    let jail = Jail::new(who);
    let program = jail.probe_path().to_string_lossy().into_owned();
    let target = jail.work_file(".envrc");
    let mut command = jail.json_command(&[&program, "after-input", "create", &target]);
    let mut waiting = command.stdin(std::process::Stdio::piped()).spawn().expect("start the first box");
    // The first box is up once its agent has said so in the second's sight.
    support::eventually("the first box is up", || {
        let up = support::processes_marked(&jail.base).iter().any(|(_, words)| words.contains("/probe after-input"));
        let inside = up && jail.work.join(".envrc").exists();
        inside.then_some(())
    });
    let second = support::Outcome::from_json(finish(jail.json_command(&["true"]).spawn().expect("the second box")));
    second.assert_exit(0);
    drop(waiting.stdin.take());
    let outcome = jail.conclude(waiting);
    let attempts: Vec<Attempt> = outcome.attempts().into_iter().filter(|a| a.name == "create").collect();
    assert_all_refused(&attempts);
    assert!(!jail.work.join(".envrc").exists());
}

/// What stands in for a missing protected file must not trip the programs that look for it.
fn missing_protected_files_look_missing_or_empty(who: Who) {
    let jail = Jail::new(who);
    for name in [".envrc", ".mcp.json", ".gitlab-ci.yml", ".pre-commit-config.yaml"] {
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
    jail.run(&["/bin/sh", "-c", "rm .git/hooks; mkdir .git/hooks; echo evil > .git/hooks/pre-commit"]);
    assert!(!jail.work.join(".git/hooks/pre-commit").exists(), "the link was replaced");
}

/// Odd things at protected names must neither break the launch nor open a way.
fn protected_names_of_every_kind(who: Who) {
    let jail = Jail::new(who);
    fs::rename(jail.work.join(".git"), jail.home.join("repository")).expect("move the repository");
    jail.put(&jail.work.join(".git"), "gitdir: ../repository\n");
    jail.put(&jail.work.join(".github"), "a file where a directory is expected\n");
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
    assert_eq!(after.remove("nowhere"), None, "the dangling link was given a target");
    assert_eq!(after, before);
}

/// An agent that could edit its own policy would be free on the next run.
fn the_policy_in_use_cannot_be_changed(who: Who) {
    let mut jail = Jail::new(who);
    let policy = jail.work.join("policies/box.yaml");
    jail.put(&policy, "extends: moderate\n");
    jail.option(&["--config", &policy.to_string_lossy()]);
    jail.attack(&["write", &policy.to_string_lossy()]);
    jail.run(&["/bin/sh", "-c", "rm -rf policies; mkdir policies; echo 'extends: permissive' > policies/box.yaml"]);
    jail.run(&["/bin/sh", "-c", "mv policies gone; mkdir policies; echo 'extends: permissive' > policies/box.yaml"]);
    assert!(fs::read_to_string(&policy).is_ok_and(|text| text.starts_with("extends: moderate")));
}

/// Asks only. Started at the top of the tree, the box must not take the whole tree for its workspace.
fn the_root_directory_is_never_writable_by_default(who: Who) {
    let mut jail = Jail::new(who);
    let program = jail.probe_path().to_string_lossy().into_owned();
    jail.work = "/".into();
    for directory in ["/", "/etc", "/usr", "/var", &jail.home.to_string_lossy().into_owned()] {
        let finished = finish(jail.text_command(&[&program, "may-write", directory]).spawn().expect("start belljar"));
        let attempts = Attempt::parse(&finished.stdout());
        let private_home = jail.home.to_string_lossy() == directory;
        assert!(private_home || attempts.iter().all(|a| !a.allowed), "{directory}: {attempts:?}");
        // Refusing to start there at all is as good.
        assert!(!attempts.is_empty() || [121, 122].contains(&finished.code()), "{}", finished.stderr());
    }
}

fn read_only_mode_writes_nothing_but_private_tmp(who: Who) {
    let mut jail = Jail::new(who);
    jail.policy("permissions: [spawn_subprocess]\n");
    assert_all_refused(&jail.inside(&["create", &jail.work_file("result.txt")]).attempts());
    assert_all_refused(&jail.inside(&["write", &jail.work_file("main.txt")]).attempts());
    assert_all_allowed(&jail.inside(&["read", &jail.work_file("main.txt")]).attempts());
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

fn mode_none_shows_nothing_of_the_users(who: Who) {
    let mut jail = Jail::new(who);
    jail.option(&["--profile", "strict"]);
    for path in [jail.home_file("notes.txt"), jail.home_file(".bashrc"), "/etc/fstab".into(), "/etc/shadow".into()] {
        assert_all_refused(&jail.inside(&["read", &path]).attempts());
    }
    assert_all_allowed(&jail.inside(&["read", &jail.work_file("main.txt")]).attempts());
    assert_all_refused(&jail.inside(&["create", &jail.work_file("result.txt")]).attempts());
}

fn secrets_in_the_environment_are_stripped(who: Who) {
    let mut jail = Jail::new(who);
    let secrets = [
        ("OPENAI_API_KEY", "x"),
        ("my_secret", "x"),
        ("GithubToken", "x"),
        ("DB_PASSWORD", "x"),
        ("AWS_REGION", "x"),
        ("DATABASE_URL", "x"),
        ("SSH_AUTH_SOCK", "/x"),
        ("LD_PRELOAD", "/x.so"),
        ("HARMLESS_NAME", "ghp_abcdefghijklmnopqrstuvwxyz0123456789"),
        ("HARMLESS_URL", "postgres://user:hunter2@db.example.org/x"),
        ("UNLISTED", "x"),
    ];
    for (name, value) in secrets.into_iter().filter(|(name, _)| *name != "LD_PRELOAD") {
        jail.variable(name, value);
    }
    for (name, _) in secrets.into_iter().filter(|(name, _)| *name != "LD_PRELOAD") {
        jail.attack(&["env", name]);
    }
    for name in ["PATH", "HOME", "LANG", "TERM"] {
        assert_all_allowed(&jail.inside(&["env", name]).attempts());
    }
    let names: Vec<String> = jail.inside(&["env"]).attempts().into_iter().map(|a| a.detail).collect();
    // One variable tells a program where it is; where Belljar keeps its state is none of its business.
    let own: Vec<&String> = names.iter().filter(|line| line.starts_with("BELLJAR_")).collect();
    assert!(own.iter().all(|line| line.starts_with("BELLJAR_SANDBOX=")), "Belljar's own variables leak: {own:?}");
}

fn sensitive_names_stay_out_even_when_listed(who: Who) {
    let mut jail = Jail::new(who);
    jail.policy("extends: moderate\nenv_allowlist: [EDITOR, OPENAI_API_KEY]\n");
    jail.variable("EDITOR", "ed").variable("OPENAI_API_KEY", "x").variable("VISUAL", "vi");
    assert_all_allowed(&jail.inside(&["env", "EDITOR"]).attempts());
    jail.attack(&["env", "OPENAI_API_KEY"]);
    jail.attack(&["env", "VISUAL"]);
}

fn no_process_of_the_box_carries_the_keepers_environment(who: Who) {
    let mut jail = Jail::new(who);
    jail.variable("SESSION_SECRET", "correct-horse-battery");
    jail.attack(&["environs", "correct-horse", "-battery"]);
    // Init is a copy of the keeper: its memory must be out of reach as well.
    for path in ["/proc/1/environ", "/proc/1/mem", "/proc/1/maps", "/proc/1/fd", "/proc/1/fdinfo", "/proc/1/exe"] {
        assert_all_refused(&jail.inside(&["read", path]).attempts());
    }
}

fn the_agent_has_no_privileges(who: Who) {
    let jail = Jail::new(who);
    let outcome = jail.inside(&["caps"]);
    let field = |name: &str| {
        let line = outcome.stdout().lines().find(|line| line.starts_with(name)).expect("a line of the status");
        line.split_once(':').expect("a value").1.trim().to_owned()
    };
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(field(set), "0000000000000000", "{set}");
    }
    assert_eq!(field("NoNewPrivs"), "1");
    assert_eq!(field("Seccomp"), "2");
    assert!(field("Uid").split('\t').all(|uid| uid != "0"), "root inside: {}", field("Uid"));
    assert!(field("Gid").split('\t').all(|gid| gid != "0"), "root's group inside: {}", field("Gid"));
    assert!(!field("Groups").split(' ').any(|gid| gid == "0"), "root's group inside: {}", field("Groups"));
    // The same lines outside, so that a status file without them would be noticed.
    let control = finish(support::Jail::new(who).outside(jail.probe_path()).arg("caps").spawn().expect("the probe"));
    assert!(control.stdout().contains("Seccomp:\t0"), "{}", control.stdout());
    assert_all_refused(&jail.inside(&["setuid", "0"]).attempts());
    assert_all_refused(&jail.inside(&["chown", &jail.work_file("main.txt"), "1"]).attempts());
}

fn set_user_id_programs_gain_nothing(who: Who) {
    assert!(runner_is_root(), "only root can make the set-user-id program this test attacks with");
    // As root the agent of a root-owned workspace is nobody, so the control plays an ordinary user instead.
    let jail = Jail::new(who);
    let program = jail.home.join("gain");
    fs::copy(jail.probe_path(), &program).expect("copy the probe");
    std::os::unix::fs::chown(&program, Some(0), Some(0)).expect("give it to root");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o6755)).expect("set the bits");
    let path = program.to_string_lossy().into_owned();
    let ordinary = Jail::new(Who::User);
    let control = ordinary.control(&["execute", &path, "ids"]);
    assert!(control[0].detail.contains("euid=0"), "the attack does not work outside: {control:?}");
    let attempts = jail.inside(&["execute", &path, "ids"]).attempts();
    assert_all_allowed(&attempts);
    assert!(!attempts[0].detail.contains("uid=0 "), "{attempts:?}");
    assert!(!attempts[0].detail.contains("gid=0"), "{attempts:?}");
}

fn set_id_bits_cannot_be_planted(who: Who) {
    let jail = Jail::new(who);
    let directory = jail.work_file("planted");
    fs::create_dir(&directory).expect("a directory");
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).expect("open it");
    let control: Vec<Attempt> = jail.control(&["set-id", &directory]);
    // fchmodat2 is newer than some kernels; all others work everywhere.
    assert_all_allowed(&control.into_iter().filter(|a| !a.name.ends_with("fchmodat2")).collect::<Vec<_>>());
    for entry in fs::read_dir(&directory).expect("the control's files").flatten() {
        fs::remove_file(entry.path()).expect("undo the control");
    }
    assert_all_refused(&jail.inside(&["set-id", &directory]).attempts());
    for entry in fs::read_dir(&directory).expect("the box's files").flatten() {
        let mode = entry.metadata().expect("metadata").permissions().mode();
        assert_eq!(mode & 0o6000, 0, "{} has set-id bits on the host", entry.path().display());
    }
}

fn device_nodes_can_be_neither_made_nor_opened(who: Who) {
    let jail = Jail::new(who);
    if who == Who::Root {
        assert_all_allowed(&jail.control(&["mknod", &jail.work_file("control"), "char"]));
    }
    assert_all_refused(&jail.inside(&["mknod", &jail.work_file("null"), "char"]).attempts());
    assert_all_refused(&jail.inside(&["mknod", &jail.work_file("disk"), "block"]).attempts());
    for device in
        ["/dev/kmsg", "/dev/mem", "/dev/kvm", "/dev/fuse", "/dev/net/tun", "/dev/vda", "/dev/sda", "/dev/loop0"]
    {
        assert_all_refused(&jail.inside(&["open-device", device]).attempts());
    }
    for device in ["/dev/null", "/dev/zero", "/dev/urandom", "/dev/full"] {
        assert_all_allowed(&jail.inside(&["open-device", device]).attempts());
    }
}

fn device_nodes_in_the_workspace_are_dead(who: Who) {
    assert!(runner_is_root(), "only root can make the device node this test attacks with");
    let jail = Jail::new(who);
    let node = jail.work_file("zero");
    let made = Command::new(jail.probe_path()).args(["mknod", &node, "char"]).output().expect("the probe");
    assert!(made.status.success(), "{made:?}");
    jail.own(node.as_ref());
    jail.attack(&["open-device", &node]);
}

fn no_descriptor_leaks_into_the_box(who: Who) {
    let jail = Jail::new(who);
    let secret = jail.home_file(".ssh/id_ed25519");
    let leaking = |words: &[&str]| {
        let mut command = jail.outside(jail.probe_path());
        command.args(["leak-descriptor", &secret]).args(words);
        finish(command.spawn().expect("the probe")).stdout()
    };
    let program = jail.probe_path().to_string_lossy().into_owned();
    let control = Attempt::parse(&leaking(&[&program, "fds"]));
    assert!(control.iter().any(|a| a.detail.starts_with("9 ")), "the descriptor is not inherited: {control:?}");
    let belljar = jail.belljar_path().to_string_lossy().into_owned();
    assert_all_refused(&Attempt::parse(&leaking(&[&belljar, "run", "--", &program, "fds"])));
    assert_all_refused(&jail.inside(&["fds"]).attempts());
}

for_each_user!(
    hidden_files_cannot_be_read,
    the_workspace_and_plain_files_can_be_read,
    hidden_files_cannot_be_reached_by_other_names,
    file_handles_do_not_lead_past_the_mounts,
    other_homes_are_hidden,
    the_hosts_run_directory_is_hidden,
    sys_is_absent,
    nothing_outside_the_workspace_can_be_changed,
    files_of_root_cannot_be_changed,
    the_workspace_can_be_written,
    protected_files_cannot_be_written_or_created,
    protected_files_cannot_be_replaced_by_moving_what_is_around_them,
    protected_files_stay_protected_when_another_box_ends,
    missing_protected_files_look_missing_or_empty,
    what_a_protected_link_leads_to_is_protected_too,
    protected_names_of_every_kind,
    the_policy_in_use_cannot_be_changed,
    the_root_directory_is_never_writable_by_default,
    read_only_mode_writes_nothing_but_private_tmp,
    temporary_directories_are_private,
    mode_none_shows_nothing_of_the_users,
    secrets_in_the_environment_are_stripped,
    sensitive_names_stay_out_even_when_listed,
    no_process_of_the_box_carries_the_keepers_environment,
    the_agent_has_no_privileges,
    set_user_id_programs_gain_nothing,
    set_id_bits_cannot_be_planted,
    device_nodes_can_be_neither_made_nor_opened,
    device_nodes_in_the_workspace_are_dead,
    no_descriptor_leaks_into_the_box,
);
