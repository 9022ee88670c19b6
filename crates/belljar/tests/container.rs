//! Boxes in an image: what is seen there, what an image can't do to its host, and where its wishes end.

mod support;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use belljar_image::ImageConfig;
use support::{
    Difference, Family, IMAGE, IMAGE_MARK, Jail, Outcome, Supervised, Who, assert_all_allowed,
    assert_all_refused, differs, finish, for_each_user, in_container, picture, provide_image,
    put_image, tier_lines,
};

const REFUSED: i32 = 122;
const NOT_FOUND: i32 = 127;

fn jail(who: Who) -> Jail {
    let mut made = None;
    in_container(|| made = Some(Jail::new(who)));
    made.expect("a jail")
}

/// A jail with an image of its own: a tree that the box's user could write, were it not for the walls.
fn jail_with(who: Who, config: ImageConfig, furnish: impl FnOnce(&Path)) -> (Jail, PathBuf) {
    let mut jail = Jail::new(who);
    let tree = jail.base.join("image");
    for directory in ["usr/bin", "etc", "opt"] {
        fs::create_dir_all(tree.join(directory)).expect("a directory of the image");
    }
    fs::copy(jail.probe_path(), tree.join("usr/bin/probe")).expect("a program of the image");
    fs::write(tree.join("etc/motd"), "the image's").expect("a file of the image");
    furnish(&tree);
    open_to_all(&tree);
    jail.own(&tree);
    put_image(&jail.state, &tree, config);
    jail.own(&jail.state);
    jail.policy(&format!(
        "extends: moderate\nsandbox_tier: container\nimage: {IMAGE}\n"
    ));
    (jail, tree)
}

fn open_to_all(path: &Path) {
    let metadata = fs::symlink_metadata(path).expect("a file of the image");
    if metadata.is_symlink() {
        return;
    }
    fs::set_permissions(path, fs::Permissions::from_mode(0o777)).expect("open it to all");
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        open_to_all(&entry.path());
    }
}

fn plain(who: Who) -> (Jail, PathBuf) {
    jail_with(who, ImageConfig::default(), |_| {})
}

fn nothing_of_the_host_is_seen_but_the_workspace(who: Who) {
    let (jail, _) = plain(who);
    let beside = jail.base.join("beside.txt");
    jail.put(&beside, "the host's");
    for path in [
        "/etc/passwd",
        "/etc/hostname",
        "/usr/bin/env",
        "/bin/sh",
        "/home",
        "/root/.profile",
        &jail.home_file("notes.txt"),
        &jail.home_file(".bashrc"),
        &beside.to_string_lossy(),
        &jail.state.to_string_lossy(),
        &jail.belljar_path().to_string_lossy(),
    ] {
        assert_all_refused(&jail.inside(&["read", path]).attempts());
    }
    for path in ["/etc/motd", &jail.work_file("main.txt")] {
        assert_all_allowed(&jail.inside(&["read", path]).attempts());
    }
    assert_all_allowed(&jail.inside(&["create", &jail.work_file("made")]).attempts());
    assert_all_allowed(&jail.inside(&["create", &jail.home_file("own")]).attempts());
    assert!(jail.work.join("made").exists() && !jail.home.join("own").exists());
    let outcome = jail.run(&["probe", "env", "PATH"]);
    assert_eq!(outcome.json["tier"], "container");
    assert_eq!(outcome.json["image"]["name"], IMAGE);
    let digest = outcome.json["image"]["digest"].as_str().expect("a digest");
    assert!(digest.starts_with("sha256:"), "{digest}");
}

/// The tree is the box's user's own and open to all: only the walls keep it as it is.
fn the_image_is_never_changed(who: Who) {
    let (jail, tree) = plain(who);
    let before = picture(&tree);
    // What the walls are tried with works on the tree itself.
    let outside = tree.join("etc/motd").to_string_lossy().into_owned();
    assert_all_allowed(&jail.control(&["open-to-write", &outside]));
    for words in [
        ["open-to-write", "/etc/motd"],
        ["write", "/etc/motd"],
        ["create", "/etc/made"],
        ["create", "/usr/bin/made"],
        ["create", "/made"],
        ["mkdir", "/opt/made"],
        ["unlink", "/etc/motd"],
        ["create", "/proc/self/root/opt/made"],
    ] {
        assert_all_refused(&jail.inside(&words).attempts());
    }
    assert_all_refused(&jail.inside(&["chmod", "/etc/motd", "700"]).attempts());
    assert_all_refused(
        &jail
            .inside(&["rename-over", "/etc/motd", "/etc/other"])
            .attempts(),
    );
    assert_eq!(picture(&tree), before);
}

/// Wherever the box mounts or makes something, the image may have a link that leads to something of the host's.
fn links_of_an_image_lead_nowhere_outside(who: Who) {
    let mut target = PathBuf::new();
    let (jail, tree) = jail_with(who, ImageConfig::default(), |tree| {
        let base = tree.parent().expect("the jail's directory");
        let outside = base.join("outside");
        fs::create_dir_all(outside.join("tmp")).expect("a directory of the host's");
        fs::write(outside.join("secret"), "the host's").expect("a file of the host's");
        open_to_all(&outside);
        for name in ["tmp", "proc", "dev", "sys", "belljar", "leak"] {
            symlink(&outside, tree.join(name)).expect("a link of the image");
        }
        // Above the workspace, and where the network's files go.
        let first = base.components().nth(1).expect("a first part");
        fs::remove_dir(tree.join(first)).ok();
        symlink(&outside, tree.join(first)).expect("a link of the image");
        symlink(outside.join("tmp"), tree.join("var")).ok();
        symlink(outside.join("secret"), tree.join("etc/resolv.conf")).expect("a link");
        symlink("../../../../../../..", tree.join("etc/ssl")).expect("a link");
        symlink("/proc/self/root", tree.join("magic")).expect("a link");
        target = outside;
    });
    jail.own(&target);
    jail.put(
        &jail.base.join("egress.yaml"),
        &format!(
            "extends: moderate\nsandbox_tier: container\nimage: {IMAGE}\n\
             filesystem_config: {{hidden_paths: [/leak/secret, /magic]}}\n\
             network_egress_rules:\n  - {{domain: example.org, http: {{methods: [GET]}}}}\n"
        ),
    );
    let before = (picture(&tree), picture(&target));
    let secret = target.join("secret").to_string_lossy().into_owned();
    for policy in ["policy.yaml", "egress.yaml"] {
        let config = jail.base.join(policy);
        let run = |words: &[&str]| {
            let mut command = jail.belljar(&["run", "--output", "json", "--config"]);
            command
                .arg(&config)
                .arg("--")
                .arg(jail.probe_path())
                .args(words);
            jail.conclude(command.spawn().expect("start belljar"))
        };
        for path in [
            secret.as_str(),
            "/leak/secret",
            "/tmp/secret",
            "/dev/secret",
            "/var/secret",
            "/magic/leak/secret",
            "/etc/ssl/leak/secret",
        ] {
            assert_all_refused(&run(&["read", path]).attempts());
        }
        let own = run(&["read", &jail.work_file("main.txt")]);
        assert_all_allowed(&own.attempts());
        assert_all_allowed(&run(&["create", "/tmp/mine"]).attempts());
        assert_all_allowed(&run(&["read", "/proc/self/status"]).attempts());
        assert_all_allowed(&run(&["open-device", "/dev/null"]).attempts());
        let made = jail.work_file(&format!("made-{policy}"));
        assert_all_allowed(&run(&["create", &made]).attempts());
        assert!(Path::new(&made).exists());
        let resolver = run(&["read", "/etc/resolv.conf"]);
        match policy {
            "egress.yaml" => assert_all_allowed(&resolver.attempts()),
            _ => assert_all_refused(&resolver.attempts()),
        }
    }
    assert_eq!((picture(&tree), picture(&target)), before);
}

/// Programs, their interpreters and the links to them are the image's.
fn programs_are_the_images(who: Who) {
    let config = ImageConfig {
        env: vec![("PATH".into(), "/opt/tools:/usr/bin".into())],
        ..ImageConfig::default()
    };
    let (jail, _) = jail_with(who, config, |tree| {
        fs::create_dir_all(tree.join("opt/tools")).expect("a directory of the image");
        symlink("/usr/bin/probe", tree.join("opt/tools/absolute")).expect("a link");
        symlink("../../usr/bin/probe", tree.join("opt/tools/relative")).expect("a link");
        symlink("/usr/bin/env", tree.join("opt/tools/hosts")).expect("a link");
        fs::write(tree.join("opt/tools/script"), "#!/usr/bin/probe ids\n").expect("a script");
        fs::write(tree.join("opt/tools/lost"), "#!/bin/sh\ntrue\n").expect("a script");
    });
    for program in ["absolute", "relative", "probe", "/opt/tools/absolute"] {
        jail.run(&[program, "ids"]).assert_exit(0);
    }
    jail.run(&["script"]).assert_exit(0);
    // The host has these, the image has not.
    for program in ["sh", "env", "/bin/sh", "/usr/bin/env", "hosts"] {
        assert_eq!(jail.run(&[program]).code(), NOT_FOUND, "{program}");
    }
    assert_ne!(jail.run(&["lost"]).code(), 0);
}

/// An image's wishes: its command where none is given, its variables as far as the policy lets them, its directory where the
/// workspace is not shown.
fn an_images_wishes_go_through_the_policy(who: Who) {
    let config = ImageConfig {
        env: vec![
            ("PLAIN".into(), "1".into()),
            ("LISTED".into(), "2".into()),
            ("API_TOKEN".into(), "3".into()),
            ("HOME".into(), "/opt".into()),
        ],
        workdir: Some("/opt".into()),
        user: Some("root".into()),
        entrypoint: vec!["probe".into()],
        cmd: vec!["env".into()],
    };
    let (jail, _) = jail_with(who, config, |_| {});
    let run = |policy: &str| {
        let file = jail.base.join("wishes.yaml");
        let text = format!("{policy}sandbox_tier: container\nimage: {IMAGE}\n");
        jail.put(&file, &text);
        let file = file.to_string_lossy().into_owned();
        let command = jail
            .belljar(&["run", "--output", "json", "--config", &file])
            .spawn();
        jail.conclude(command.expect("start belljar"))
    };
    let listed = "env_allowlist: [LISTED, API_TOKEN]\n";
    let outcome = run(&format!("extends: moderate\n{listed}"));
    outcome.assert_exit(0);
    let said: Vec<String> = outcome.attempts().into_iter().map(|a| a.detail).collect();
    let has = |start: &str| said.iter().any(|line| line.starts_with(start));
    assert!(
        has("LISTED=2") && !has("PLAIN") && !has("API_TOKEN"),
        "{said:?}"
    );
    assert!(!has("HOME=/opt"), "{said:?}");
    let record = jail.belljar(&["audit", "show", "--output", "json"]).spawn();
    assert!(
        finish(record.expect("start"))
            .stdout()
            .contains("/usr/bin/probe")
    );
    // Nothing of the host's is shown: the image says where to start. As whom, it does not.
    let closed = "extends: strict\nfilesystem_config: {mode: none, readable_paths: []}\n";
    let outcome = run(closed);
    outcome.assert_exit(0);
    let file = jail.base.join("wishes.yaml").to_string_lossy().into_owned();
    let there = jail.belljar(&[
        "run", "--output", "json", "--config", &file, "--", "probe", "caps",
    ]);
    let outcome = jail.conclude({ there }.spawn().expect("start belljar"));
    outcome.assert_exit(0);
    let uid = outcome
        .stdout()
        .lines()
        .find(|line| line.starts_with("Uid:"))
        .map(str::to_owned);
    assert!(
        uid.is_some_and(|line| !line.contains("\t0")),
        "{outcome:#?}"
    );
    // Without an image there is nothing to run.
    let plain = jail.base.join("plain.yaml");
    jail.put(&plain, "extends: moderate\n");
    let plain = plain.to_string_lossy().into_owned();
    let said = finish(
        jail.belljar(&["run", "--config", &plain])
            .spawn()
            .expect("start"),
    );
    assert!(
        said.code() != 0 && said.stderr().contains("no command"),
        "{}",
        said.stderr()
    );
}

/// A name may come to mean other files; what ran in which is known all the same.
fn the_record_names_the_image_by_its_digest(who: Who) {
    let (jail, tree) = plain(who);
    let motd = tree.join("etc/motd");
    let tree = tree.to_string_lossy().into_owned();
    let policy = jail.base.join("policy.yaml");
    jail.put(
        &policy,
        "extends: moderate\nsandbox_tier: container\nimage: tools\n",
    );
    let json = |words: &[&str]| -> serde_json::Value {
        let said = finish(jail.belljar(words).spawn().expect("start belljar"));
        serde_json::from_str(&said.stdout()).unwrap_or_else(|_| panic!("{}", said.stderr()))
    };
    let mut digests = Vec::new();
    for text in ["one", "another", "one"] {
        fs::write(&motd, text).expect("a file of the image");
        let build = ["image", "build", "tools", "--from-dir", &tree];
        let built = json(&[&build[..], &["--output", "json"]].concat());
        let outcome = jail.run(&["probe", "ids"]);
        outcome.assert_exit(0);
        let expected = serde_json::json!({"name": "tools", "digest": built["digest"]});
        assert_eq!(outcome.json["image"], expected);
        let run = outcome.sandbox_id();
        let said = jail.belljar(&["audit", "export"]).spawn();
        let log = finish(said.expect("start belljar")).stdout();
        let launched: Vec<serde_json::Value> = log
            .lines()
            .map(|line| serde_json::from_str(line).expect("an entry"))
            .filter(|entry: &serde_json::Value| {
                entry["what"]["kind"] == "run_launched" && entry["what"]["run"] == run
            })
            .collect();
        assert_eq!(launched.len(), 1, "{log}");
        assert_eq!(launched[0]["what"]["image"], expected);
        digests.push(built["digest"].clone());
    }
    assert_ne!(digests[0], digests[1]);
    assert_eq!(digests[0], digests[2]);
}

/// The same where a supervisor keeps the agent: on record before it runs, and to be seen while it does.
fn a_supervised_agents_image_is_on_record(who: Who) {
    let supervised = Supervised::start(who, "[supervisor]\n");
    let state = &supervised.jail.state;
    provide_image(state, ImageConfig::default());
    supervised.jail.own(state);
    let digest = belljar_image::Store::open(state).find(IMAGE);
    let digest = digest.expect("the image").digest.to_string();
    let policy = format!("extends: moderate\nsandbox_tier: container\nimage: {IMAGE}\n");
    let id = supervised.limited("ann", &policy, "echo up > up; sleep 1000");
    supervised.await_file("up");
    let log = supervised.log();
    let of_agent = |kind: &str| {
        log.iter().position(|entry| {
            let what = &entry["what"];
            what["kind"] == kind && what["worker"] == id.as_str()
        })
    };
    let used = of_agent("box_launched").unwrap_or_else(|| panic!("{log:#?}"));
    assert_eq!(log[used]["what"]["image"]["name"], IMAGE);
    assert_eq!(log[used]["what"]["image"]["digest"], digest.as_str());
    assert!(of_agent("started").is_none_or(|started| used < started));
    let inspected = supervised.query(&["inspect", &id]);
    assert_eq!(inspected["image"]["digest"], digest.as_str());
    let text = supervised.said(&["inspect", &id]);
    assert!(text.contains(&digest), "{text}");
}

fn an_image_that_is_not_there_is_refused(who: Who) {
    let mut jail = Jail::new(who);
    jail.policy("extends: moderate\nsandbox_tier: container\nimage: nobody\n");
    let outcome = jail.run(&["/bin/true"]);
    assert_eq!(outcome.code(), REFUSED, "{outcome:#?}");
    let said = outcome.json["error"].to_string();
    assert!(
        said.contains("no image nobody") && said.contains("belljar image"),
        "{said}"
    );
}

/// Paths that a program names in an image are no paths of the host's.
fn nothing_is_learned_in_an_image(who: Who) {
    let (jail, _) = plain(who);
    let policy = jail.base.join("policy.yaml").to_string_lossy().into_owned();
    let words = ["learn", "--config", &policy, "--", "probe", "ids"];
    let said = finish(jail.belljar(&words).spawn().expect("start belljar"));
    assert_eq!(said.code(), REFUSED, "{}", said.stderr());
    assert!(said.stderr().contains("image"), "{}", said.stderr());
}

/// The other walls have an image's files behind them too; `seccomp` with one is `container` by another name.
fn other_tiers_take_an_image_too(who: Who) {
    for tier in ["seccomp", "gvisor", "microvm"] {
        let mut jail = Jail::new(who);
        provide_image(&jail.state, ImageConfig::default());
        jail.own(&jail.state);
        let lines = tier_lines(tier);
        jail.policy(&format!("extends: moderate\n{lines}image: {IMAGE}\n"));
        let script = format!("cat {IMAGE_MARK} && [ ! -e /etc/hosts ] && echo made > made");
        let outcome = jail.run(&["/bin/sh", "-c", &script]);
        outcome.assert_exit(0);
        assert_eq!(outcome.json["tier"], tier);
        assert_eq!(outcome.stdout(), "the image's\n");
        assert!(jail.work.join("made").exists());
    }
}

/// Paths of the policy are the host's, at their own places; hidden ones are hidden wherever they are.
fn paths_of_the_policy_are_the_hosts(who: Who) {
    let (jail, tree) = jail_with(who, ImageConfig::default(), |tree| {
        fs::create_dir_all(tree.join("opt/deep/er")).expect("a directory of the image");
        fs::write(tree.join("opt/deep/er/file"), "the image's").expect("a file");
        symlink("/opt/deep", tree.join("shallow")).expect("a link");
    });
    let shared = jail.base.join("shared");
    jail.put(&shared.join("seen.txt"), "the host's");
    jail.put(&shared.join("kept/unseen.txt"), "the host's");
    let before = picture(&tree);
    let policy = format!(
        "extends: moderate\nsandbox_tier: container\nimage: {IMAGE}\nfilesystem_config:\n  mode: read_write\n  \
         writable_paths: ['.', {0}]\n  readable_paths: [/opt/deep/er/file]\n  hidden_paths: [{0}/kept, /shallow/er, /etc/motd]\n",
        shared.display()
    );
    jail.put(&jail.base.join("policy.yaml"), &policy);
    let file = |name: &str| shared.join(name).to_string_lossy().into_owned();
    assert_all_allowed(&jail.inside(&["read", &file("seen.txt")]).attempts());
    assert_all_allowed(&jail.inside(&["create", &file("made")]).attempts());
    assert!(shared.join("made").exists());
    for hidden in [
        file("kept/unseen.txt").as_str(),
        "/opt/deep/er/file",
        "/shallow/er/file",
    ] {
        assert_all_refused(&jail.inside(&["read", hidden]).attempts());
    }
    let motd = jail.inside(&["read", "/etc/motd"]).attempts();
    assert!(
        motd.iter().all(|a| !a.allowed || a.detail.is_empty()),
        "{motd:?}"
    );
    assert_eq!(picture(&tree), before);
}

/// Changes that are kept aside are the workspace's, as they are without an image.
fn changes_can_be_kept_aside(who: Who) {
    let mut jail = jail(who);
    jail.option(&["--workspace", "overlay"]);
    let script = "echo changed > main.txt; echo new > new.txt";
    let child = jail.json_command(&["/bin/sh", "-c", script]).spawn();
    let outcome = Outcome::from_json(finish(child.expect("start belljar")));
    outcome.assert_exit(0);
    assert!(!jail.work.join("new.txt").exists());
    let id = outcome.sandbox_id().to_owned();
    let said = finish(jail.belljar(&["diff", &id]).spawn().expect("start"));
    assert!(said.stdout().contains("new.txt"), "{}", said.stderr());
    let applied = finish(jail.belljar(&["apply", &id]).spawn().expect("start"));
    assert_eq!(applied.code(), 0, "{}", applied.stderr());
    assert_eq!(
        fs::read_to_string(jail.work.join("main.txt")).expect("it"),
        "changed\n"
    );
}

/// A replica's wall is as strong as its parent's or stronger, never weaker.
fn replicas_move_to_stronger_tiers_alone(who: Who) {
    const CONTRACT: &str = "max_depth: 3\nmax_replicas: 8\n";
    let start = |lines: &str| {
        let mut family = Family::prepare(who, CONTRACT);
        provide_image(&family.jail.state, ImageConfig::default());
        family.jail.own(&family.jail.state);
        let capability = family.jail.base.join("capability.yaml");
        family
            .jail
            .put(&capability, &format!("extends: moderate\n{lines}"));
        family.start_puppet();
        family
    };
    let kernel = |family: &Family, name: &str| family.order(name, "cat /proc/version").out;
    let family = start("sandbox_tier: seccomp\n");
    family
        .replicate("root", "ann", "--tier gvisor")
        .expect("a stronger tier");
    assert_ne!(kernel(&family, "root"), kernel(&family, "ann"));
    // From there, there is no way back, neither by name nor to what is as strong as where its parent is.
    for weaker in ["seccomp", "container"] {
        let refused = family.ask_replica("ann", "bob", &format!("--tier {weaker}"));
        let refusal = refused.expect_err("a weaker tier");
        assert_eq!(refusal.code(), "deny_capability", "{refusal:?}");
        assert!(refusal.message().contains("sandbox_tier"), "{refusal:?}");
    }
    family.replicate("ann", "cid", "").expect("the same tier");
    drop(family);
    let image = format!("image: {IMAGE}\n");
    let family = start(&format!("sandbox_tier: container\n{image}"));
    let mark = format!("cat {IMAGE_MARK}");
    for (child, tier) in [("ann", "seccomp"), ("bob", "gvisor")] {
        family
            .replicate("root", child, &format!("--tier {tier}"))
            .expect("as strong, or stronger");
        assert_eq!(family.order(child, &mark).out, "the image's\n");
    }
    let log = family.log();
    let used = log
        .iter()
        .filter(|it| it["what"]["kind"] == "box_launched" && it["what"]["image"].is_object());
    assert_eq!(used.count(), 3, "{log:#?}");
}

#[test]
fn the_known_difference_is_the_containers_own() {
    assert!(!differs(Difference::OwnFiles));
    in_container(|| assert!(differs(Difference::OwnFiles) && !differs(Difference::OwnDevices)));
}

for_each_user!(
    nothing_of_the_host_is_seen_but_the_workspace,
    the_image_is_never_changed,
    links_of_an_image_lead_nowhere_outside,
    programs_are_the_images,
    an_images_wishes_go_through_the_policy,
    the_record_names_the_image_by_its_digest,
    a_supervised_agents_image_is_on_record,
    an_image_that_is_not_there_is_refused,
    nothing_is_learned_in_an_image,
    other_tiers_take_an_image_too,
    paths_of_the_policy_are_the_hosts,
    changes_can_be_kept_aside,
    replicas_move_to_stronger_tiers_alone,
);
