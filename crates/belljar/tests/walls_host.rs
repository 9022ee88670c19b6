//! What the host does while a box runs must not open the box's walls, nor its walls leave a trace on the host: names that
//! are covered are replaced and removed, and things that look like a stand-in lie about.

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use support::{Jail, Outcome, Who, eventually, for_each_user, processes_marked};

/// A box that waits for a line on its input, and what it does then.
struct Waiting(Child);

impl Waiting {
    fn start(jail: &Jail, then: &str) -> Self {
        Self::start_with(jail, ":", then)
    }

    fn start_with(jail: &Jail, first: &str, then: &str) -> Self {
        let ready = jail.work.join("ready");
        let script = format!(
            "{first}; : > {}; read line; {then}; exit 0",
            ready.display()
        );
        let mut command = jail.json_command(&["/bin/sh", "-c", &script]);
        let child = command
            .stdin(Stdio::piped())
            .spawn()
            .expect("start the box");
        eventually("the box is up", || ready.exists().then_some(()));
        fs::remove_file(ready).expect("take note of it");
        Self(child)
    }

    fn go_on(mut self, jail: &Jail) -> Outcome {
        drop(self.0.stdin.take());
        jail.conclude(self.0)
    }
}

/// What is mounted in the box, as its program sees it.
fn mounted(jail: &Jail) -> String {
    let agent = processes_marked(&jail.base)
        .into_iter()
        .find(|(_, words)| words.starts_with("/bin/sh -c"))
        .expect("the program in the box");
    fs::read_to_string(format!("/proc/{}/mountinfo", agent.0)).unwrap_or_default()
}

fn await_covers(jail: &Jail, names: &[&str]) {
    eventually("every name is covered again", || {
        let table = mounted(jail);
        let is_covered = |name: &&str| table.contains(&format!(" {} ", jail.work_file(name)));
        names.iter().all(is_covered).then_some(())
    });
}

fn names(outcome: &Outcome, kind: &str) -> Vec<String> {
    let violations = outcome.json["violations"].as_array().expect("violations");
    let of_kind = violations
        .iter()
        .filter(|violation| violation["kind"] == kind);
    let text = |violation: &Value| violation["name"].as_str().expect("a name").to_owned();
    of_kind.map(text).collect()
}

/// Git, editors and people replace, move and remove names in a workspace while an agent works there.
fn what_the_host_replaces_is_covered_again(who: Who) {
    let mut jail = Jail::new(who);
    let work = jail.work.clone();
    jail.policy(
        "extends: moderate\nfilesystem_config: {hidden_paths: [\"~/project/hidden.txt\"]}\n",
    );
    for name in [".mcp.json", ".envrc", ".vscode/settings.json", "hidden.txt"] {
        jail.put(&work.join(name), "old");
    }
    let targets = [
        ".git/config",
        ".mcp.json",
        ".envrc",
        ".vscode",
        ".github",
        ".git/hooks",
        "hidden.txt",
    ];
    let attempts = "for f in .git/config .mcp.json .envrc .vscode/evil .github/evil .git/hooks/pre-commit hidden.txt; do \
                    echo EVIL >> $f; mkdir $f; done 2> /dev/null; cat hidden.txt";
    let waiting = Waiting::start(&jail, attempts);
    let replace = |name: &str| {
        jail.put(&work.join("aside"), "new");
        fs::rename(work.join("aside"), work.join(name)).expect("replace it");
    };
    // As git writes its settings, and editors their files.
    [".git/config", ".mcp.json", "hidden.txt"]
        .into_iter()
        .for_each(replace);
    // As an editor keeps a copy: the mount goes with the name, and no table says so.
    fs::rename(work.join(".envrc"), work.join(".envrc~")).expect("keep a copy");
    jail.put(&work.join(".envrc"), "new");
    fs::rename(work.join(".git/hooks"), work.join(".git/old-hooks")).expect("move the hooks");
    // As another branch is checked out and back.
    fs::remove_dir_all(work.join(".vscode")).expect("remove a directory");
    fs::remove_dir(work.join(".github")).expect("remove a stand-in");
    await_covers(&jail, &targets);
    let outcome = waiting.go_on(&jail);
    outcome.assert_exit(0);
    assert_eq!(outcome.json["stdout"], "", "the new file was read");
    for name in [".git/config", ".mcp.json", ".envrc", "hidden.txt"] {
        assert_eq!(
            fs::read_to_string(work.join(name)).expect("the file"),
            "new",
            "{name}"
        );
    }
    for name in [".vscode", ".github", ".git/hooks"] {
        assert!(!work.join(name).exists(), "{name} was made, or left");
    }
    let told = names(&outcome, "cover");
    for name in targets {
        assert!(
            told.contains(&jail.work_file(name)),
            "{name} is not in {told:?}"
        );
    }
}

/// What can't be put back ends the box: here a directory of the box's own, with something of the host's in it.
fn a_box_whose_cover_is_lost_for_good_is_ended(who: Who) {
    let mut jail = Jail::new(who);
    jail.put(&jail.work.join("inner/deep/file"), "x");
    jail.policy(
        "extends: moderate\nfilesystem_config: {hidden_paths: [\"~/project/inner\"], readable_paths: [\"~/project/inner/deep\"]}\n",
    );
    let Waiting(child) = Waiting::start(&jail, "sleep 1000");
    fs::rename(jail.work.join("inner"), jail.work.join("elsewhere")).expect("move it");
    let outcome = Outcome::from_json(support::finish_with_input(child, Vec::new()));
    assert_eq!(outcome.json["killed_by"], "lost_cover", "{outcome:#?}");
}

/// A cover is none for whoever has hold of what comes to be below it: a descriptor, also one that is on its way to nobody, a
/// second name, a directory to work in.
fn a_box_that_keeps_hold_of_what_is_covered_is_ended(who: Who) {
    let probe = |jail: &Jail| jail.probe_path().to_string_lossy().into_owned();
    type Hold<'a> = &'a dyn Fn(&Jail) -> String;
    let cases: [(Hold<'_>, &str); 5] = [
        (&|_| "exec 3<>aside".into(), ".mcp.json"),
        (&|_| "exec 3<aside".into(), ".mcp.json"),
        (&|_| "ln aside other".into(), ".mcp.json"),
        (&|_| "cd aside.d/in".into(), ".vscode"),
        (
            &|jail| format!("{} post-descriptor aside & sleep 0.5", probe(jail)),
            ".mcp.json",
        ),
    ];
    for (hold, name) in cases {
        let jail = Jail::new(who);
        for file in [".mcp.json", ".vscode/x", "aside", "aside.d/in/x"] {
            jail.put(&jail.work.join(file), "text");
        }
        let hold = hold(&jail);
        let Waiting(child) = Waiting::start_with(&jail, &hold, "sleep 1000");
        if name == ".vscode" {
            fs::rename(jail.work.join(name), jail.work.join("old")).expect("move it");
            fs::rename(jail.work.join("aside.d"), jail.work.join(name)).expect("replace it");
        } else {
            fs::rename(jail.work.join("aside"), jail.work.join(name)).expect("replace it");
        }
        let outcome = Outcome::from_json(support::finish_with_input(child, Vec::new()));
        assert_eq!(
            outcome.json["killed_by"], "lost_cover",
            "{hold}: {outcome:#?}"
        );
        assert!(
            names(&outcome, "cover").contains(&jail.work_file(name)),
            "{hold}"
        );
        assert!(
            outcome.json["violations"]
                .to_string()
                .contains("took hold of it"),
            "{hold}"
        );
    }
    // Whoever merely read it lets go of it.
    let jail = Jail::new(who);
    for file in [".mcp.json", "aside"] {
        jail.put(&jail.work.join(file), "text");
    }
    let waiting = Waiting::start_with(&jail, "exec 3<aside", "exec 3<&-; sleep 1");
    fs::rename(jail.work.join("aside"), jail.work.join(".mcp.json")).expect("replace it");
    let outcome = waiting.go_on(&jail);
    outcome.assert_exit(0);
    assert_eq!(names(&outcome, "cover"), [jail.work_file(".mcp.json")]);
}

/// A directory with the mode of a stand-in is not one.
fn what_looks_like_a_stand_in_is_left_alone(who: Who) {
    let jail = Jail::new(who);
    let other = jail.home.join("elsewhere");
    fs::create_dir(&other).expect("another project");
    jail.own(&other);
    let look_alikes: Vec<PathBuf> = [".github", ".idea", ".claude", ".git/hooks"]
        .iter()
        .map(|name| jail.work.join(name))
        .collect();
    let inodes = |paths: &[PathBuf]| -> Vec<u64> {
        let inode = |path: &PathBuf| fs::metadata(path).expect("it is there").ino();
        paths.iter().map(inode).collect()
    };
    fs::remove_dir_all(jail.work.join(".git/hooks")).expect("no hooks");
    for path in &look_alikes {
        fs::create_dir(path).expect("a directory");
        fs::set_permissions(path, fs::Permissions::from_mode(0o1700)).expect("its mode");
        jail.own(path);
    }
    let before = inodes(&look_alikes);
    let held: Vec<fs::File> = look_alikes
        .iter()
        .map(|path| fs::File::open(path).expect("hold it"))
        .collect();
    jail.run(&[
        "/bin/sh",
        "-c",
        "echo evil > .github/x; mkdir .idea/x .claude/x; exit 0",
    ])
    .assert_exit(0);
    assert_eq!(inodes(&look_alikes), before);
    assert!(
        look_alikes
            .iter()
            .all(|path| fs::read_dir(path).expect("list it").next().is_none())
    );
    // Nothing of one project comes into another.
    let mut command = jail.json_command(&["/bin/sh", "-c", ": > .github/x"]);
    let outcome = jail.conclude(command.current_dir(&other).spawn().expect("start it"));
    assert_ne!(outcome.exit_code(), Some(0));
    assert!(fs::read_dir(&other).expect("list it").next().is_none());
    assert_eq!(inodes(&look_alikes), before);
    drop(held);
}

/// Whoever holds a lock on something that looks like a stand-in keeps no box from starting.
fn a_look_alike_that_is_locked_stops_nothing(who: Who) {
    let jail = Jail::new(who);
    let place = jail.work.join(".github");
    fs::create_dir(&place).expect("a directory");
    fs::set_permissions(&place, fs::Permissions::from_mode(0o1700)).expect("its mode");
    jail.own(&place);
    let held = fs::File::open(&place).expect("hold it");
    held.lock().expect("lock it");
    jail.run(&["/bin/sh", "-c", "(: > .github/x) 2> /dev/null; exit 0"])
        .assert_exit(0);
    assert!(fs::read_dir(&place).expect("it stays").next().is_none());
}

/// A keeper that is killed leaves what it made. The next run removes that, and only that.
fn the_next_run_removes_what_the_record_says(who: Who) {
    let jail = Jail::new(who);
    let Waiting(mut keeper) = Waiting::start(&jail, ":");
    kill_process(Pid::from_child(&keeper), Signal::KILL).expect("kill it");
    keeper.wait().expect("its end");
    eventually("the box is gone", || {
        processes_marked(&jail.base).is_empty().then_some(())
    });
    let swapped = jail.work.join(".github");
    assert!(swapped.is_dir() && jail.work.join(".idea").is_dir());
    // Held, so that the new one gets another number.
    let held = fs::File::open(&swapped).expect("hold it");
    fs::remove_dir(&swapped).expect("remove the stand-in");
    fs::create_dir(&swapped).expect("another of its kind");
    fs::set_permissions(&swapped, fs::Permissions::from_mode(0o1700)).expect("its mode");
    jail.own(&swapped);
    jail.run(&["true"]).assert_exit(0);
    drop(held);
    assert!(
        swapped.is_dir(),
        "what took the place of a stand-in was removed"
    );
    assert!(!jail.work.join(".idea").exists(), "a stand-in was left");
}

/// Whichever of two boxes ends first, the names stay covered, and the last clears up.
fn stand_ins_stay_until_the_last_box_ends(who: Who) {
    let jail = Jail::new(who);
    let first = Waiting::start(&jail, "mkdir .github/x");
    let second = Waiting::start(&jail, "mkdir .github/x");
    let stand_in = jail.work.join(".github");
    let inode = fs::metadata(&stand_in).expect("a stand-in").ino();
    let Waiting(mut child) = first;
    drop(child.stdin.take());
    Outcome::from_json(support::finish(child)).assert_exit(0);
    assert_eq!(fs::metadata(&stand_in).expect("it stays").ino(), inode);
    let outcome = second.go_on(&jail);
    assert_eq!(names(&outcome, "cover"), Vec::<String>::new());
    assert!(!stand_in.exists(), "the stand-in was left");
}

/// A key in the workspace could be read in the moment in which it is replaced, so it is refused; elsewhere a new one under
/// the same name does not come in.
fn a_file_that_holds_a_secret_is_never_covered_only(who: Who) {
    let mut jail = Jail::new(who);
    let key = jail.base.join("shown/key");
    jail.put(&key, "OLD");
    jail.put(&jail.base.join("shown/else"), "else");
    let document = |file: &Path| {
        format!(
            "extends: moderate\nnetwork_egress_rules: [{{domain: api.example.com, ports: [443]}}]\n\
             secrets: [{{name: k, from: {{file: \"{}\"}}, domain: api.example.com, as: bearer}}]\n",
            file.display()
        )
    };
    jail.put(&jail.work.join("key"), "OLD");
    let inside = document(&jail.work.join("key"));
    let policy = jail.base.join("inside.yaml");
    jail.put(&policy, &inside);
    let mut command = jail.belljar(&["run", "--config", &policy.to_string_lossy(), "--", "true"]);
    let refused = support::finish(command.spawn().expect("start it"));
    assert_ne!(refused.code(), 0);
    assert!(
        refused.stderr().contains("workspace: overlay"),
        "{}",
        refused.stderr()
    );
    if jail.base.starts_with("/tmp") {
        // Boxes have a /tmp of their own.
        return;
    }
    jail.policy(&document(&key));
    let show = format!("cat {0}/shown/key; cat {0}/shown/else", jail.base.display());
    let waiting = Waiting::start(&jail, &show);
    jail.put(&jail.base.join("shown/new"), "NEW");
    fs::rename(jail.base.join("shown/new"), &key).expect("rotate it");
    let outcome = waiting.go_on(&jail);
    assert_eq!(outcome.json["stdout"], "else", "{outcome:#?}");
}

for_each_user!(
    what_the_host_replaces_is_covered_again,
    a_box_whose_cover_is_lost_for_good_is_ended,
    a_box_that_keeps_hold_of_what_is_covered_is_ended,
    what_looks_like_a_stand_in_is_left_alone,
    a_look_alike_that_is_locked_stops_nothing,
    the_next_run_removes_what_the_record_says,
    stand_ins_stay_until_the_last_box_ends,
    a_file_that_holds_a_secret_is_never_covered_only,
);
