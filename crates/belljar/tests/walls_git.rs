//! What git would run, or read elsewhere, because of something in a workspace.

mod support;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use support::{Jail, Outcome, Who, finish, for_each_user};

/// What stands behind the name of what was set aside.
const ASIDE: &str = ".belljar-set-aside";

/// What is there at the start of repositories in repositories is protected like the workspace's own.
fn parts_of_nested_repositories_cannot_be_written(who: Who) {
    let jail = Jail::new(who);
    for file in [
        ".git/modules/lib/HEAD",
        ".git/modules/lib/config",
        ".git/modules/lib/hooks/x.sample",
        ".git/worktrees/side/commondir",
        ".git/worktrees/side/gitdir",
        ".git/worktrees/side/config.worktree",
        "lib/.git",
        "a/nested/.git/HEAD",
        "a/nested/.git/config",
    ] {
        jail.put(&jail.work.join(file), "was there\n");
    }
    jail.put(
        &jail.work.join(".git/config"),
        "[extensions]\n\tworktreeConfig = true\n",
    );
    let written = [
        ".git/modules/lib/config",
        ".git/worktrees/side/commondir",
        ".git/worktrees/side/gitdir",
        ".git/worktrees/side/config.worktree",
        "lib/.git",
        "a/nested/.git/config",
    ];
    let made = [
        ".git/config.worktree",
        ".git/modules/lib/hooks/pre-commit",
        "a/nested/.git/hooks/pre-commit",
    ];
    let all = [&written[..], &made[..]].concat().join(" ");
    let script =
        format!("for f in {all}; do echo evil >> $f && echo wrote $f; done 2> /dev/null; true");
    assert_eq!(jail.run(&["/bin/sh", "-c", &script]).json["stdout"], "");
    let script = "rm -rf .git/modules lib a; mv .git/modules/lib .git/modules/gone; mv a b; echo evil > lib/.git; exit 0";
    let outcome = jail.run(&["/bin/sh", "-c", script]);
    for name in written {
        let text = fs::read_to_string(jail.work.join(name)).expect("it is there");
        assert_eq!(text, "was there\n", "{name}");
    }
    assert!(made.iter().all(|name| !jail.work.join(name).exists()));
    assert_eq!(found(&outcome), Vec::<String>::new());
}

/// Whoever replaces a link on the way to a protected path leads the path elsewhere.
fn links_on_the_way_to_protected_paths_stay(who: Who) {
    let jail = Jail::new(who);
    fs::rename(jail.work.join(".git"), jail.home.join("store")).expect("move the repository");
    symlink("way", jail.work.join(".git")).expect("link");
    symlink("../store", jail.work.join("way")).expect("link");
    jail.own(&jail.work);
    let script = "cat .git/HEAD; rm .git way; mv .git gone; mv way gone; ln -sfn /tmp way; mkdir .git; echo evil > .git/config; exit 0";
    let outcome = jail.run(&["/bin/sh", "-c", script]);
    assert_eq!(
        outcome.json["stdout"], "ref: refs/heads/main\n",
        "{outcome:#?}"
    );
    for (link, target) in [(".git", "way"), ("way", "../store")] {
        let found = fs::read_link(jail.work.join(link)).expect("still a link");
        assert_eq!(found.to_str(), Some(target), "{link}");
    }
}

fn found(outcome: &Outcome) -> Vec<String> {
    let violations = outcome.json["violations"].as_array().expect("violations");
    let git = violations
        .iter()
        .filter(|violation| violation["kind"] == "git");
    git.map(|violation| violation["name"].as_str().expect("a name").to_owned())
        .collect()
}

/// What an agent makes can't be covered before it is there, so it is told in the end; ordinary repositories are not.
fn what_git_would_run_is_told_in_the_end(who: Who) {
    let plain = ": > HEAD; mkdir objects; mkdir -p fine/.git/objects fine/.git/refs fine/.git/hooks; : > fine/.git/HEAD; : > fine/.git/hooks/x.sample; \
                 printf '[core]\\n\\tbare = false\\n' > fine/.git/config";
    let cases = [
        (
            "mkdir -p 1/.git; printf '[core]\\nfsmonitor=/x\\n' > 1/.git/config",
            "1/.git/config",
        ),
        (
            "mkdir -p 2/.git; printf '[filter \"a\"]\\nclean=x\\n' > 2/.git/config.worktree",
            "2/.git/config.worktree",
        ),
        (
            "mkdir -p 3/e/f/g/h/.git/hooks; : > 3/e/f/g/h/.git/hooks/pre-commit",
            "3/e/f/g/h/.git/hooks",
        ),
        (
            "mkdir -p 4; echo 'gitdir: ../../outside' > 4/.git",
            "4/.git",
        ),
        (
            "mkdir -p 5 x; echo 'gitdir: ../x' > 5/.git; printf '[alias]\\nst=!x\\n' > x/config",
            "x/config",
        ),
        ("mkdir 6; ln -s /tmp 6/.git", "6/.git"),
        (": > .git/commondir", ".git/commondir"),
        (
            "mkdir -p .git/modules/n/objects; : > .git/modules/n/HEAD; printf '[core]\\nhooksPath=x\\n' > .git/modules/n/config",
            ".git/modules/n/config",
        ),
        (
            "mkdir -p .git/worktrees/w; echo /x > .git/worktrees/w/commondir",
            ".git/worktrees/w/commondir",
        ),
        (
            "mkdir -p 7/objects; : > 7/HEAD; printf '[core]\\nsshCommand=x\\n' > 7/config",
            "7/config",
        ),
        (
            "mkdir -p 8/.git; ln -s /etc/passwd 8/.git/config",
            "8/.git/config",
        ),
        ("mkdir -p 9/.git; mkfifo 9/.git/config", "9/.git/config"),
        (
            "mkdir -p 10/.git; ln -s /tmp 10/.git/hooks",
            "10/.git/hooks",
        ),
        // What follows a comment that ends in a backslash is no part of it.
        (
            "mkdir -p 11/.git; printf '[user]\\nname=x # \\\\\\n[core] fsmonitor=/x\\n' > 11/.git/config",
            "11/.git/config",
        ),
        (
            "mkdir -p 12/.git; printf '[include]\\npath = on\\n' > 12/.git/config",
            "12/.git/config",
        ),
        // What looks like a repository may have others in it.
        (
            "mkdir -p 13/objects 13/n/.git; : > 13/HEAD; printf '[core]\\nfsmonitor=/x\\n' > 13/n/.git/config",
            "13/n/.git/config",
        ),
        // Git takes the space for a part of the name, and follows the link before it goes up.
        (
            "mkdir -p 14; echo 'gitdir: ../.git/y ' > 14/.git",
            "14/.git",
        ),
        (
            "mkdir -p 15 .git/a/b; ln -s .git/a/b l; echo 'gitdir: ../l/../c' > 15/.git",
            "15/.git",
        ),
        // Git goes through a directory that nobody may list.
        (
            "mkdir -p 16/s/.git; printf '[core]\\nfsmonitor=/x\\n' > 16/s/.git/config; chmod 311 16/s 16",
            "16/s/.git/config",
        ),
        (
            "mkdir -p 17 .git/z/worktrees/w; echo ../.. > .git/z/worktrees/w/commondir; echo 'gitdir: ../.git/z/worktrees/w' > 17/.git; \
             printf '[core]\\nfsmonitor=/x\\n' > .git/z/config",
            ".git/z/config",
        ),
    ];
    let jail = Jail::new(who);
    let script = cases.iter().map(|(script, _)| *script).chain([plain]);
    let script = script.collect::<Vec<_>>().join("\n");
    let outcome = jail.run(&["/bin/sh", "-c", &script]);
    outcome.assert_exit(0);
    let mut told = found(&outcome);
    told.sort();
    let mut wanted: Vec<String> = cases.iter().map(|(_, name)| jail.work_file(name)).collect();
    wanted.sort();
    assert_eq!(told, wanted);
    // And out of git's sight, whole, each beside where it was.
    for (_, name) in &cases {
        let path = jail.work.join(name);
        assert!(fs::symlink_metadata(&path).is_err(), "{name} is there");
        let aside = format!("{}{ASIDE}", path.display());
        assert!(fs::symlink_metadata(&aside).is_ok(), "{aside} is not");
    }
    assert!(jail.work.join("fine/.git/config").exists());
    for directory in ["16", "16/s"] {
        let mode = |found: fs::Metadata| found.permissions().mode() & 0o777;
        let path = jail.work.join(directory);
        assert_eq!(fs::metadata(&path).map(mode).expect("it is there"), 0o311);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its mode");
    }
}

/// What the repository's own settings and hooks lead to in the workspace is as good as in them.
fn what_the_users_own_repository_leads_to_is_protected(who: Who) {
    let jail = Jail::new(who);
    let put = |name: &str, text: &str| jail.put(&jail.work.join(name), text);
    put(
        ".git/config",
        "[include]\n\tpath = ../team.conf\n\tpath = ../absent.conf\n",
    );
    put("team.conf", "[include]\n\tpath = more.conf\n");
    put("more.conf", "[user]\n\tname = n\n");
    put("tools/lint.sh", "#!/bin/sh\n");
    put(
        ".git/modules/lib/config",
        "[core]\n\tworktree = ../../../lib\n\thooksPath = .husky\n",
    );
    put(".git/modules/lib/HEAD", "");
    put("lib/file", "");
    symlink(
        "../../tools/lint.sh",
        jail.work.join(".git/hooks/pre-commit"),
    )
    .expect("a link");
    jail.own(&jail.work);
    let written = ["team.conf", "more.conf", "tools/lint.sh"];
    let before = written.map(|name| fs::read_to_string(jail.work.join(name)).expect("a file"));
    let script = format!(
        "for f in {}; do echo evil >> $f; mv $f gone; done 2> /dev/null; mkdir -p lib/.husky; (: > lib/.husky/pre-commit); \
         printf '[core]\\nfsmonitor=/x\\n' > absent.conf; exit 0",
        written.join(" ")
    );
    let outcome = jail.run(&["/bin/sh", "-c", &script]);
    outcome.assert_exit(0);
    let after = written.map(|name| fs::read_to_string(jail.work.join(name)).expect("still there"));
    assert_eq!(after, before);
    assert!(!jail.work.join("lib/.husky/pre-commit").exists());
    // What was not there can't be covered.
    assert_eq!(found(&outcome), [jail.work_file("absent.conf")]);
    assert!(!jail.work.join("absent.conf").exists());
}

/// The command that the result names must run nothing of the agent's.
fn the_advised_command_runs_nothing_of_the_agents(who: Who) {
    let jail = Jail::new(who);
    fs::remove_dir_all(jail.work.join(".git")).expect("no repository yet");
    let ran = jail.work.join("ran");
    let payload = jail.work.join("payload.sh");
    jail.put(&payload, &format!("#!/bin/sh\n: > '{}'\n", ran.display()));
    fs::set_permissions(&payload, fs::Permissions::from_mode(0o755)).expect("its mode");
    let sh = |script: &str| {
        let mut command = jail.outside("/bin/sh");
        finish(command.args(["-c", script]).spawn().expect("a shell"))
    };
    let made = sh(
        "set -e; git init -q .; git config user.email a@b; git config user.name n; git add main.txt; git commit -qm x",
    );
    assert_eq!(made.code(), 0, "{}", made.stderr());
    let outcome = jail.run(&[
        "/bin/sh",
        "-c",
        "export GIT_AUTHOR_NAME=n GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=n GIT_COMMITTER_EMAIL=a@b; git init -q sub; cd sub; echo x > f; \
         git add f; git commit -qm s; git config core.fsmonitor $PWD/../payload.sh; cp ../payload.sh .git/hooks/post-index-change; cd ..; git add sub",
    ]);
    let config = jail.work_file("sub/.git/config");
    assert!(found(&outcome).contains(&config), "{outcome:#?}");
    let hooks = jail.work_file("sub/.git/hooks");
    fs::remove_file(&ran).ok();
    // Whoever forgets about it, or has a prompt that asks git, runs nothing: it is set aside.
    assert_eq!(sh("git status").code(), 0);
    assert!(!ran.exists(), "git runs the agent's program");
    // Once it is put back, it is dangerous again.
    for path in [&config, &hooks] {
        fs::rename(format!("{path}{ASIDE}"), path).expect("put it back");
    }
    sh("git status");
    assert!(ran.exists(), "the attack does not work outside either");
    let violations = outcome.json["violations"].as_array().expect("violations");
    let hint = violations.iter().find_map(|violation| {
        violation["hint"]
            .as_str()
            .filter(|hint| hint.contains("git -c"))
    });
    let command = hint
        .expect("a hint")
        .split('`')
        .find(|part| part.starts_with("git -c"));
    fs::remove_file(&ran).expect("the trace of the attack");
    let advised = sh(command.expect("a command"));
    assert_eq!(advised.code(), 0, "{}", advised.stderr());
    assert!(!ran.exists(), "the advised command ran the agent's program");
}

for_each_user!(
    parts_of_nested_repositories_cannot_be_written,
    links_on_the_way_to_protected_paths_stay,
    what_git_would_run_is_told_in_the_end,
    what_the_users_own_repository_leads_to_is_protected,
    the_advised_command_runs_nothing_of_the_agents,
);
