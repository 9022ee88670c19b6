//! What an agent may not see or be by default: files, environment, identity, descriptors.
//!
//! Each attack is first shown to work outside the box by the same user with the same program.

mod support;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use support::{
    AWS_SECRET, Attempt, DOTENV_SECRET, Difference, Jail, NETRC_SECRET, SSH_SECRET, Scratch, Who,
    assert_all_allowed, assert_all_refused, differs, finish, for_each_user_and_tier,
};

/// A hidden file is out of sight or shows nothing; outside, the same user reads it.
#[track_caller]
fn assert_hides(jail: &Jail, arguments: &[&str], secret: &str) {
    assert_eq!(
        jail.control(arguments)[0].detail,
        secret,
        "the attack does not work outside"
    );
    let attempts = jail.inside(arguments).attempts();
    assert!(
        !attempts.is_empty() && attempts.iter().all(|a| !a.allowed || a.detail.is_empty()),
        "{attempts:?}"
    );
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
    for path in [jail.work_file("main.txt"), jail.work_file(".env")] {
        assert_all_allowed(&jail.inside(&["read", &path]).attempts());
    }
    let notes = jail.inside(&["read", &jail.home_file("notes.txt")]);
    match differs(Difference::OwnFiles) {
        true => assert_all_refused(&notes.attempts()),
        false => assert_all_allowed(&notes.attempts()),
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
        // Up from a mount: to whatever lies on top of the root.
        format!("/usr/..{key}"),
        format!("/proc/..{key}"),
        "/proc/self/cwd/../.ssh/id_ed25519".to_owned(),
    ] {
        assert_hides(&jail, &["read", &path], SSH_SECRET);
    }
    jail.attack(&["climb", &key]);
    assert_all_refused(
        &jail
            .inside(&["read", &format!("/proc/1/root{key}")])
            .attempts(),
    );
    assert_all_refused(
        &jail
            .inside(&["read", &format!("/proc/1/cwd{key}")])
            .attempts(),
    );
}

fn file_handles_do_not_lead_past_the_mounts(who: Who) {
    let jail = Jail::new(who);
    let key = jail.home_file(".ssh/id_ed25519");
    if who == Who::Root {
        assert_all_allowed(&jail.control(&["open-handle", &key]));
    }
    assert_all_refused(&jail.inside(&["open-handle", &key]).attempts());
    assert_all_refused(
        &jail
            .inside(&["open-handle", &jail.work_file("main.txt")])
            .attempts(),
    );
}

fn other_homes_are_hidden(who: Who) {
    let jail = Jail::new(who);
    let neighbour = Scratch::below("/home");
    let diary = neighbour.file(
        "diary.txt",
        "readable by all, but none of the agent's business",
    );
    jail.attack(&["read", &diary]);
}

fn the_hosts_run_directory_is_hidden(who: Who) {
    let jail = Jail::new(who);
    assert!(!jail.control(&["list", "/run"]).is_empty());
    let attempts = jail.inside(&["list", "/run"]).attempts();
    assert!(
        attempts.iter().all(|a| !a.allowed || a.detail == "48"),
        "/run shows its entries: {attempts:?}"
    );
}

fn sys_is_absent(who: Who) {
    let jail = Jail::new(who);
    jail.attack(&["read", "/sys/kernel/mm/transparent_hugepage/enabled"]);
}

fn mode_none_shows_nothing_of_the_users(who: Who) {
    let mut jail = Jail::new(who);
    jail.option(&["--profile", "strict"]);
    for path in [
        jail.home_file("notes.txt"),
        jail.home_file(".bashrc"),
        "/etc/fstab".into(),
        "/etc/shadow".into(),
    ] {
        assert_all_refused(&jail.inside(&["read", &path]).attempts());
    }
    assert_all_allowed(
        &jail
            .inside(&["read", &jail.work_file("main.txt")])
            .attempts(),
    );
    assert_all_refused(
        &jail
            .inside(&["create", &jail.work_file("result.txt")])
            .attempts(),
    );
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
    for (name, value) in secrets
        .into_iter()
        .filter(|(name, _)| *name != "LD_PRELOAD")
    {
        jail.variable(name, value);
    }
    for (name, _) in secrets
        .into_iter()
        .filter(|(name, _)| *name != "LD_PRELOAD")
    {
        jail.attack(&["env", name]);
    }
    for name in ["PATH", "HOME", "LANG", "TERM"] {
        assert_all_allowed(&jail.inside(&["env", name]).attempts());
    }
    let names: Vec<String> = jail
        .inside(&["env"])
        .attempts()
        .into_iter()
        .map(|a| a.detail)
        .collect();
    // One variable tells a program where it is; where Belljar keeps its state is none of its business.
    let own: Vec<&String> = names
        .iter()
        .filter(|line| line.starts_with("BELLJAR_"))
        .collect();
    assert!(
        own.iter().all(|line| line.starts_with("BELLJAR_SANDBOX=")),
        "Belljar's own variables leak: {own:?}"
    );
}

fn sensitive_names_stay_out_even_when_listed(who: Who) {
    let mut jail = Jail::new(who);
    jail.policy("extends: moderate\nenv_allowlist: [EDITOR, OPENAI_API_KEY]\n");
    jail.variable("EDITOR", "ed")
        .variable("OPENAI_API_KEY", "x")
        .variable("VISUAL", "vi");
    assert_all_allowed(&jail.inside(&["env", "EDITOR"]).attempts());
    jail.attack(&["env", "OPENAI_API_KEY"]);
    jail.attack(&["env", "VISUAL"]);
}

fn no_process_of_the_box_carries_the_keepers_environment(who: Who) {
    let mut jail = Jail::new(who);
    jail.variable("SESSION_SECRET", "correct-horse-battery");
    jail.attack(&["environs", "correct-horse", "-battery"]);
    // Init is a copy of the keeper: its memory must be out of reach as well.
    for path in [
        "/proc/1/environ",
        "/proc/1/mem",
        "/proc/1/maps",
        "/proc/1/fd",
        "/proc/1/fdinfo",
        "/proc/1/exe",
    ] {
        let is_open =
            differs(Difference::OpenInit) && ["/proc/1/environ", "/proc/1/maps"].contains(&path);
        match is_open {
            true => assert_all_allowed(&jail.inside(&["read", path]).attempts()),
            false => assert_all_refused(&jail.inside(&["read", path]).attempts()),
        }
    }
}

fn the_agent_has_no_privileges(who: Who) {
    let jail = Jail::new(who);
    let outcome = jail.inside(&["caps"]);
    let field = |name: &str| {
        let line = outcome
            .stdout()
            .lines()
            .find(|line| line.starts_with(name))
            .expect("a line of the status");
        line.split_once(':').expect("a value").1.trim().to_owned()
    };
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd"] {
        assert_eq!(field(set), "0000000000000000", "{set}");
    }
    if !differs(Difference::ShortStatus) {
        assert_eq!(field("CapAmb"), "0000000000000000");
        assert_eq!(field("NoNewPrivs"), "1");
    }
    assert_eq!(field("Seccomp"), "2");
    assert!(
        field("Uid").split('\t').all(|uid| uid != "0"),
        "root inside: {}",
        field("Uid")
    );
    assert!(
        field("Gid").split('\t').all(|gid| gid != "0"),
        "root's group inside: {}",
        field("Gid")
    );
    assert!(
        !field("Groups").split(' ').any(|gid| gid == "0"),
        "root's group inside: {}",
        field("Groups")
    );
    // The same lines outside, so that a status file without them would be noticed.
    let control = finish(
        support::Jail::new(who)
            .outside(jail.probe_path())
            .arg("caps")
            .spawn()
            .expect("the probe"),
    );
    assert!(
        control.stdout().contains("Seccomp:\t0"),
        "{}",
        control.stdout()
    );
    assert_all_refused(&jail.inside(&["setuid", "0"]).attempts());
    assert_all_refused(
        &jail
            .inside(&["chown", &jail.work_file("main.txt"), "1"])
            .attempts(),
    );
}

fn set_user_id_programs_gain_nothing(who: Who) {
    // As root the agent of a root-owned workspace is nobody, so the control plays an ordinary user instead.
    let jail = Jail::new(who);
    let program = match differs(Difference::OwnFiles) {
        true => jail.work.join("gain"),
        false => jail.home.join("gain"),
    };
    fs::copy(jail.probe_path(), &program).expect("copy the probe");
    std::os::unix::fs::chown(&program, Some(0), Some(0)).expect("give it to root");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o6755)).expect("set the bits");
    let path = program.to_string_lossy().into_owned();
    let ordinary = Jail::new(Who::User);
    let control = ordinary.control(&["execute", &path, "ids"]);
    assert!(
        control[0].detail.contains("euid=0"),
        "the attack does not work outside: {control:?}"
    );
    let attempts = jail.inside(&["execute", &path, "ids"]).attempts();
    assert_all_allowed(&attempts);
    assert!(!attempts[0].detail.contains("uid=0 "), "{attempts:?}");
    assert!(!attempts[0].detail.contains("gid=0"), "{attempts:?}");
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
    assert!(
        control.iter().any(|a| a.detail.starts_with("9 ")),
        "the descriptor is not inherited: {control:?}"
    );
    let belljar = jail.belljar_path().to_string_lossy().into_owned();
    let options: Vec<String> = jail
        .run_options()
        .into_iter()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let mut words = vec![belljar.as_str(), "run"];
    words.extend(options.iter().map(String::as_str));
    words.extend(["--", &program, "fds"]);
    assert_all_refused(&Attempt::parse(&leaking(&words)));
    assert_all_refused(&jail.inside(&["fds"]).attempts());
}

for_each_user_and_tier!(
    hidden_files_cannot_be_read,
    the_workspace_and_plain_files_can_be_read,
    hidden_files_cannot_be_reached_by_other_names,
    file_handles_do_not_lead_past_the_mounts,
    the_hosts_run_directory_is_hidden,
    sys_is_absent,
    mode_none_shows_nothing_of_the_users,
    secrets_in_the_environment_are_stripped,
    sensitive_names_stay_out_even_when_listed,
    no_process_of_the_box_carries_the_keepers_environment,
    the_agent_has_no_privileges,
    no_descriptor_leaks_into_the_box;
    prepared by root: other_homes_are_hidden, set_user_id_programs_gain_nothing
);
