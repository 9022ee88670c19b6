//! `filesystem_config.home: private`: a copy of the home directory that the box changes and keeps, and the host never sees changed.

mod support;

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Child, Command};

use serde_json::Value;
use support::{
    Family, Finished, Host, Jail, Outcome, Who, eventually, finish, for_each_user,
    for_each_user_and_tier, picture,
};

const POLICY: &str = "extends: moderate\nfilesystem_config: {home: private}\n";

fn private(who: Who) -> Jail {
    let mut jail = Jail::new(who);
    jail.policy(POLICY);
    jail
}

#[track_caller]
fn belljar(jail: &Jail, arguments: &[&str]) -> Finished {
    finish(jail.belljar(arguments).spawn().expect("start belljar"))
}

#[track_caller]
fn homes(jail: &Jail) -> Vec<Value> {
    let said = belljar(jail, &["home", "list", "--output", "json"]).stdout();
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
}

/// What later runs are under.
fn set_policy(jail: &Jail, yaml: &str) {
    jail.put(&jail.base.join("policy.yaml"), &jail.document(yaml));
}

fn spawn(mut command: Command) -> Child {
    command.spawn().expect("start belljar")
}

/// Waits until the program in the box says that it runs.
fn started(jail: &Jail) {
    let place = jail.work.join("started");
    eventually("the program starts", || place.exists().then_some(()));
}

/// All tiers, with an image's empty home as well as with the host's.
fn what_is_written_is_kept_and_never_reaches_the_host(who: Who) {
    let jail = private(who);
    jail.put(&jail.home.join(".gitconfig"), "[user]\n name = host\n");
    jail.put(&jail.home.join(".config/tool/settings"), "host");
    jail.own(&jail.home);
    let before = picture(&jail.home);
    let outcome = jail.run(&[
        "sh",
        "-ec",
        "mkdir -p ~/.agent/deep ~/.config/tool
         echo one >~/.agent/deep/state
         echo box >~/.gitconfig.new; mv ~/.gitconfig.new ~/.gitconfig
         echo box >~/.config/tool/settings.tmp; mv -f ~/.config/tool/settings.tmp ~/.config/tool/settings
         ln ~/.agent/deep/state ~/.agent/hard; rm -f ~/notes.txt; mkdir -p ~/.ssh; echo own >~/.ssh/config
         echo kept >>~/.cache/x || { mkdir -p ~/.cache; echo kept >>~/.cache/x; }",
    ]);
    outcome.assert_exit(0);
    assert_eq!(picture(&jail.home), before);
    let again = jail.run(&[
        "sh",
        "-c",
        "cat ~/.agent/deep/state ~/.gitconfig ~/.config/tool/settings ~/.ssh/config ~/.cache/x; cat ~/notes.txt ~/.ssh/id_ed25519",
    ]);
    assert_eq!(again.stdout(), "one\nbox\nbox\nown\nkept\n", "{again:?}");
    assert_eq!(picture(&jail.home), before);
}

fn what_is_hidden_stays_so_whatever_becomes_of_it(who: Who) {
    let jail = private(who);
    let pipe = jail.fifo("turn");
    let child = spawn(jail.json_command(&[
        "sh",
        "-c",
        "cat ~/.ssh/id_ed25519 ~/.aws/credentials ~/.netrc ~/other/.env ~/.vault-token
         read turn <turn
         cat ~/.ssh/* ~/.aws/* ~/.netrc ~/.vault-token ~/.config/gh/hosts.yml
         cd ~/.ssh && ls; mkdir -p ~/.ssh; cat ~/.ssh/*; rm -rf ~/.ssh; cat ~/.ssh/*
         mv ~/.aws ~/moved && cat ~/moved/*; ln -s /nowhere ~/.netrc; rm ~/.netrc; cat ~/.netrc",
    ]));
    // What the host's user does meanwhile, under names that are hidden, shows nothing.
    jail.put(&jail.home.join(".vault-token"), "late secret");
    jail.put(&jail.home.join(".config/gh/hosts.yml"), "late secret");
    jail.put(&jail.home.join("new"), support::NETRC_SECRET);
    fs::rename(jail.home.join("new"), jail.home.join(".netrc")).expect("rename");
    use std::io::Write as _;
    (&pipe).write_all(b"go\n").expect("say so");
    let outcome = jail.conclude(child);
    assert_eq!(outcome.stdout(), "", "{}", outcome.stdout());
    let kept = jail.home.join(".ssh/id_ed25519");
    assert!(fs::read_to_string(kept).is_ok_and(|text| text == support::SSH_SECRET));
}

fn two_at_once_have_homes_of_their_own(who: Who) {
    let jail = private(who);
    let pipe = jail.fifo("turn");
    let first = spawn(jail.json_command(&[
        "sh",
        "-c",
        "echo first >~/who; touch started; read turn <turn; cat ~/who",
    ]));
    started(&jail);
    let busy = belljar(&jail, &["home", "reset"]);
    assert_eq!(busy.code(), 122, "{busy:?}");
    assert!(busy.stderr().contains("in use"), "{busy:?}");
    let second = jail.json_command(&["sh", "-c", "cat ~/who; echo second >~/who; cat ~/who"]);
    let second = Outcome::from_json(finish(spawn(second)));
    assert_eq!(second.stdout(), "second\n");
    use std::io::Write as _;
    (&pipe).write_all(b"go\n").expect("say so");
    assert_eq!(jail.conclude(first).stdout(), "first\n");
    // Alone, the next run has the first.
    assert_eq!(jail.run(&["sh", "-c", "cat ~/who"]).stdout(), "first\n");
    assert_eq!(homes(&jail).len(), 2);
}

fn each_project_has_its_own(who: Who) {
    let jail = private(who);
    jail.run(&["sh", "-c", "echo a >~/who"]).assert_exit(0);
    let other = jail.home.join("second");
    fs::create_dir(&other).expect("a directory");
    jail.own(&other);
    let mut command = jail.json_command(&["sh", "-c", "cat ~/who || echo none"]);
    command.current_dir(&other);
    assert_eq!(jail.conclude(spawn(command)).stdout(), "none\n");
    assert_eq!(homes(&jail).len(), 2);
}

/// A directory that a policy opens is the host's; what an earlier run left in its way is not followed.
fn what_a_rule_opens_is_the_hosts_whatever_the_copy_has_there(who: Who) {
    let jail = private(who);
    let scratch = jail.home.join("scratch/deep");
    fs::create_dir_all(&scratch).expect("a directory");
    jail.put(&jail.home.join("list"), "host\n");
    jail.own(&jail.home);
    for in_the_way in [
        "rm -rf ~/scratch ~/list",
        "rm -rf ~/scratch; ln -s ~/.agent ~/scratch; mkdir -p ~/.agent/deep; ln -sf /etc/passwd ~/list",
        "rm -rf ~/scratch; echo file >~/scratch; rm -f ~/list; mkdir ~/list",
        "rm -rf ~/scratch; mkdir ~/scratch; rm -rf ~/list",
    ] {
        set_policy(&jail, POLICY);
        jail.run(&["sh", "-c", in_the_way]).assert_exit(0);
        set_policy(
            &jail,
            "extends: moderate\nfilesystem_config: {home: private, writable_paths: [., ~/scratch/deep, ~/list]}\n",
        );
        let outcome = jail.run(&["sh", "-ec", "echo x >~/scratch/deep/new; echo y >>~/list"]);
        outcome.assert_exit(0);
        assert!(scratch.join("new").is_file(), "{in_the_way}");
        fs::remove_file(scratch.join("new")).expect("it is there");
    }
    let list = fs::read_to_string(jail.home.join("list")).expect("it is there");
    assert_eq!(list, "host\ny\ny\ny\ny\n");
}

fn check_path_says_what_a_run_does(who: Who) {
    let jail = private(who);
    symlink("other", jail.home.join("link")).expect("a link");
    jail.put(&jail.home.join(".config/gh/hosts.yml"), "token");
    jail.own(&jail.home);
    for more in [
        "",
        ", writable_paths: [., ~/other]",
        ", readable_paths: [~/.aws]",
    ] {
        let policy = format!("extends: moderate\nfilesystem_config: {{home: private{more}}}\n");
        set_policy(&jail, &policy);
        let paths = [
            "notes.txt",
            ".bashrc",
            ".ssh/id_ed25519",
            ".aws/credentials",
            ".netrc",
            "new",
            ".new/file",
            "other/readme.txt",
            "other/.env",
            "link/readme.txt",
            ".config/gh/hosts.yml",
            ".cache/x",
            "project/main.txt",
        ];
        let script: String = paths
            .iter()
            .map(|path| {
                format!(
                    "if [ -n \"$(cat ~/{path} 2>/dev/null)\" ]; then echo read; else echo no; fi
                     mkdir -p \"$(dirname ~/{path})\" 2>/dev/null
                     if (: >>~/{path}) 2>/dev/null; then echo write; else echo no; fi
                    "
                )
            })
            .collect();
        let outcome = jail.run(&["sh", "-c", &script]);
        let seen: Vec<&str> = outcome.stdout().lines().collect();
        for (number, path) in paths.iter().enumerate() {
            for (write, at) in [(false, 2 * number), (true, 2 * number + 1)] {
                let place = jail.home.join(path);
                let mut command = jail.belljar(&["check", "path", "--output", "json"]);
                command.arg(&place).args(jail.run_options());
                command.args(write.then_some("--write"));
                let asked = finish(command.spawn().expect("start belljar")).stdout();
                let asked: Value = serde_json::from_str(&asked).expect("JSON");
                let is_there = place.exists() || write;
                let said = asked["decision"] == "allow" && is_there;
                assert_eq!(said, seen[at] != "no", "{path} {write} {more}: {asked}");
            }
        }
        belljar(&jail, &["home", "reset"]);
        fs::write(jail.home.join("notes.txt"), "the user's notes").expect("a file");
        jail.own(&jail.home);
    }
}

fn homes_are_listed_compared_exported_and_reset(who: Who) {
    let jail = private(who);
    let none = belljar(&jail, &["home", "show"]);
    assert_eq!(none.code(), 121, "{none:?}");
    assert!(none.stderr().contains("no private home"), "{none:?}");
    jail.run(&[
        "sh",
        "-ec",
        "mkdir -p ~/.agent; printf 12345 >~/.agent/state; ln -s /etc/passwd ~/.agent/out; rm ~/notes.txt
         echo new >~/.bashrc; printf x >\"$HOME/$(printf 'odd\\033[31m')\"; chmod 0 ~/.agent",
    ])
    .assert_exit(0);
    let listed = homes(&jail);
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert_eq!(listed[0]["is_in_use"], false);
    let id = listed[0]["id"].as_str().expect("an id").to_owned();
    for name in [&id, &id[..6], jail.work.to_str().expect("text")] {
        let shown = belljar(&jail, &["home", "show", name]).stdout();
        assert!(shown.contains(&id), "{name}: {shown}");
    }
    let said = belljar(&jail, &["home", "diff"]).stdout();
    for line in [
        "A ~/.agent",
        "A ~/.agent/state",
        "M ~/.bashrc",
        "D ~/notes.txt",
    ] {
        assert!(said.lines().any(|said| said == line), "{line}: {said}");
    }
    assert!(!said.contains('\u{1b}'), "{said:?}");
    let archive = jail.base.join("out.tar");
    fs::set_permissions(&jail.base, fs::Permissions::from_mode(0o777)).expect("chmod");
    let place = archive.to_str().expect("text");
    assert_eq!(
        belljar(&jail, &["home", "export", "--file", place]).code(),
        0
    );
    let tar = finish(
        jail.outside("tar")
            .arg("tvf")
            .arg(&archive)
            .spawn()
            .expect("tar"),
    )
    .stdout();
    assert!(
        tar.contains(".agent/state") && tar.contains("-> /etc/passwd"),
        "{tar}"
    );
    assert!(!tar.contains("root:"), "{tar}");
    // Nothing of the user's is written over.
    assert_eq!(
        belljar(&jail, &["home", "export", "--file", place]).code(),
        121
    );
    assert_eq!(belljar(&jail, &["home", "reset", &id]).code(), 0);
    assert!(homes(&jail).is_empty());
    let outcome = jail.run(&["sh", "-c", "cat ~/notes.txt; ls -d ~/.agent"]);
    assert_eq!(outcome.stdout(), "the user's notes");
}

/// A login's file with a key in it is a file like others in the copy: it can be replaced, and has no key.
fn files_that_hold_keys_are_shown_without_and_can_be_replaced(who: Who) {
    let jail = private(who);
    let key = format!("sk-{}", "Ab1".repeat(8));
    let text = format!("export OPENAI_API_KEY={key}\nexport EDITOR=ed\n");
    jail.put(&jail.home.join(".profile"), &text);
    let outcome = jail.run(&[
        "sh",
        "-c",
        "cat ~/.profile; sed -i s/ed/vi/ ~/.profile && echo A=b >>~/.profile; bash -lc 'echo $OPENAI_API_KEY $EDITOR'",
    ]);
    assert!(!outcome.stdout().contains(&key), "{}", outcome.stdout());
    assert!(
        outcome.stdout().ends_with("belljar-withheld vi\n"),
        "{}",
        outcome.stdout()
    );
    let now = fs::read_to_string(jail.home.join(".profile")).expect("a file");
    assert_eq!(now, text);
    let again = jail.run(&["sh", "-c", "cat ~/.profile"]);
    assert!(again.stdout().ends_with("A=b\n"), "{}", again.stdout());
}

fn a_killed_keeper_leaves_a_home_for_the_next(who: Who) {
    let jail = private(who);
    let mut child = spawn(jail.json_command(&[
        "sh",
        "-c",
        "echo first >~/who; touch started; exec sleep 600",
    ]));
    started(&jail);
    child.kill().expect("kill");
    child.wait().expect("wait");
    assert_eq!(jail.run(&["sh", "-c", "cat ~/who"]).stdout(), "first\n");
}

fn strict_has_an_empty_home_that_is_kept(who: Who) {
    let mut jail = Jail::new(who);
    jail.policy(
        "extends: strict\nfilesystem_config: {home: private}\npermissions: [spawn_subprocess]\n",
    );
    let outcome = jail.run(&["sh", "-c", "ls -A ~; echo x >>~/k; cat ~/k"]);
    // The way to the working directory is there, and nothing else of the host's.
    assert_eq!(outcome.stdout(), "project\nx\n", "{outcome:?}");
    assert_eq!(jail.run(&["sh", "-c", "cat ~/k"]).stdout(), "x\n");
}

/// The copy lies on a disk that nobody divides: what can't be held is refused, whatever the home shows.
fn a_limit_of_disk_space_is_refused(who: Who) {
    let jail = private(who);
    for ground in ["mode: read_only", "mode: none"] {
        set_policy(
            &jail,
            &format!(
                "extends: moderate\nfilesystem_config: {{{ground}, home: private}}\nresource_limits: {{max_disk_mb: 64}}\n"
            ),
        );
        let refused = Outcome::from_json(finish(spawn(jail.json_command(&["true"]))));
        assert_eq!(refused.code(), 122, "{ground}: {refused:?}");
        let said = refused.json["error"].to_string();
        assert!(
            said.contains("max_disk_mb") && said.contains("home: read_only"),
            "{said}"
        );
        assert!(homes(&jail).is_empty(), "{ground}");
    }
}

/// The kernel takes no overlay as the upper layer of another.
fn a_state_directory_that_overlays_can_not_use_is_named(who: Who) {
    let jail = private(who);
    for name in ["up", "scratch"] {
        fs::create_dir(jail.base.join(name)).expect("a directory");
    }
    let script = "cd \"$1\" && mount -t overlay overlay -o lowerdir=state,upperdir=up,workdir=scratch state && cd - >/dev/null && shift && exec \"$@\"";
    let mut command = jail.outside("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]);
    command.arg(&jail.base).arg(jail.belljar_path());
    command.args(["run", "--output", "json"]);
    command.args(jail.run_options()).args(["--", "true"]);
    let refused = Outcome::from_json(finish(spawn(command)));
    assert_eq!(refused.code(), 122, "{refused:?}");
    let said = refused.json["error"].to_string();
    for words in ["overlay", "BELLJAR_STATE_DIR", "home: read_only"] {
        assert!(said.contains(words), "{words}: {said}");
    }
}

/// Only root mounts.
mod by_root {
    use super::Who;

    #[test]
    fn a_state_directory_that_overlays_can_not_use_is_named() {
        Who::Root.require();
        super::a_state_directory_that_overlays_can_not_use_is_named(Who::Root);
    }
}

/// What lies in the home counts for nothing at the start.
fn a_home_of_many_files_is_shown_as_it_is(who: Who) {
    let jail = private(who);
    for directory in 0..20 {
        let place = jail.home.join(format!("many/{directory}"));
        fs::create_dir_all(&place).expect("a directory");
        for file in 0..250 {
            fs::write(place.join(file.to_string()), "x").expect("a file");
        }
    }
    jail.own(&jail.home.join("many"));
    let outcome = jail.run(&[
        "sh",
        "-c",
        "find ~/many -type f | wc -l; rm -rf ~/many/1*; find ~/many -type f | wc -l",
    ]);
    assert_eq!(outcome.stdout(), "5000\n2250\n");
    assert!(Path::new(&jail.home).join("many/1/1").exists());
}

/// An agent's home goes by its name under a supervisor, by its directory else; a replica's is empty at first and gone in the end.
fn replicas_have_homes_of_their_own(who: Who) {
    for host in [Host::Run, Host::Supervisor] {
        let mut family = Family::prepare(who, "max_depth: 3\nmax_replicas: 8\n").host(host);
        family
            .jail
            .put(&family.jail.base.join("capability.yaml"), POLICY);
        family.start_puppet();
        let root = family.root_id();
        family.order("root", "echo root >~/who");
        let ann = family.replicate("root", "ann", "").expect("a grant");
        let said = family.order("ann", "cat ~/who; echo ann >~/who; cat ~/who ~/notes.txt");
        assert_eq!(said.out, "ann\nthe user's notes", "{said:?}");
        let bob = family.replicate("ann", "bob", "").expect("a grant");
        assert_eq!(family.order("bob", "cat ~/who").out, "");
        assert_eq!(family.order("root", "cat ~/who").out, "root\n");
        let owners = homes(&family.jail);
        let owner = match host {
            Host::Run => serde_json::json!({"project": family.jail.work}),
            Host::Supervisor => serde_json::json!({"agent": "root"}),
        };
        assert_eq!(owners.len(), 3, "{owners:?}");
        assert!(
            owners.iter().any(|home| home["owner"] == owner),
            "{owners:?}"
        );
        family.operator(&["kill", &ann, "--subtree"]);
        eventually("the replicas' homes are gone", || {
            (homes(&family.jail).len() == 1).then_some(())
        });
        family.operator(&["kill", &root]);
        if host == Host::Run {
            family.await_controller();
            family.assert_nothing_left(&[root, ann, bob]);
        }
    }
}

mod every_tier {
    use super::what_is_written_is_kept_and_never_reaches_the_host;

    super::for_each_user_and_tier!(what_is_written_is_kept_and_never_reaches_the_host);
}

for_each_user!(
    what_is_hidden_stays_so_whatever_becomes_of_it,
    two_at_once_have_homes_of_their_own,
    each_project_has_its_own,
    what_a_rule_opens_is_the_hosts_whatever_the_copy_has_there,
    check_path_says_what_a_run_does,
    homes_are_listed_compared_exported_and_reset,
    files_that_hold_keys_are_shown_without_and_can_be_replaced,
    a_killed_keeper_leaves_a_home_for_the_next,
    strict_has_an_empty_home_that_is_kept,
    a_limit_of_disk_space_is_refused,
    replicas_have_homes_of_their_own,
    a_home_of_many_files_is_shown_as_it_is,
);
