//! `belljar learn`: what is seen is what was done, what is written is enough and no more, and nobody can make it otherwise.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;
use support::{Jail, Who, belljar_in, for_each_user, jail_with, plain_jail, succeeded, valid};

const DEEDS: &str = include_str!("agents/deeds.py");
const HOSTILE: &str = include_str!("agents/hostile.py");

/// What was seen, as JSON.
#[track_caller]
fn observe(jail: &Jail, words: &[&str]) -> Value {
    let mut arguments = vec!["learn", "--format", "json", "--"];
    arguments.extend(words);
    let done = belljar_in(jail, &arguments);
    serde_json::from_str(&succeeded(&done))
        .unwrap_or_else(|error| panic!("{error}\n{}\n{}", done.stdout(), done.stderr()))
}

fn files_of(seen: &Value) -> BTreeMap<String, Vec<String>> {
    let rows = seen["run"]["observed"]["files"].as_array().expect("files");
    let row = |row: &Value| {
        let deeds = row["deeds"].as_array().expect("deeds").iter();
        let deeds = deeds.map(|deed| deed.as_str().expect("a word").to_owned());
        let path = row["path"].as_str().expect("a path").to_owned();
        (path, deeds.collect())
    };
    rows.iter().map(row).collect()
}

fn everything_that_is_done_is_seen(who: Who) {
    let jail = jail_with(who, DEEDS);
    // Each call that needs a file has one that nothing else touches.
    let after = |mark: &'static str| DEEDS.split(mark).skip(1);
    let names = after("given(\"").chain(after("held(\""));
    let names = names.filter_map(|rest| rest.split('"').next());
    for name in names.chain(["execveat"]) {
        jail.put(&jail.work.join("given").join(name), "x");
    }
    for directory in ["made", "made/within", "made/rmdir"] {
        fs::create_dir(jail.work.join(directory)).expect("a directory");
    }
    jail.own(&jail.work.join("made"));
    let file = jail.base.join("seen.json");
    let file = file.to_string_lossy();
    if support::runner_is_root() {
        std::os::unix::fs::chown(&jail.base, Some(who.uid()), None).expect("own the test's place");
    }
    let done = belljar_in(
        &jail,
        &[
            "learn", "--format", "json", "--output", &file, "--", "python3", "agent.py",
        ],
    );
    let said = succeeded(&done);
    let seen = fs::read_to_string(&*file).expect("what was seen");
    let seen: Value = serde_json::from_str(&seen).expect("JSON");
    let files = files_of(&seen);
    let did: Vec<(&str, &str)> = said
        .lines()
        .filter_map(|line| line.split_once('\t'))
        .collect();
    assert!(did.len() > 80, "{said}\n{}", done.stderr());
    let is_seen = |(deed, path): &(&str, &str)| {
        let known = files.get(*path);
        known.is_some_and(|deeds| deeds.iter().any(|known| known == deed))
    };
    let unseen: Vec<_> = did.iter().filter(|done| !is_seen(done)).collect();
    assert!(unseen.is_empty(), "{unseen:#?}");
    // Three by fork, and no thread.
    assert!(
        seen["run"]["observed"]["spawned"].as_u64() >= Some(3),
        "{seen}"
    );
    let yaml = seen["capability"].as_str().expect("a file");
    for program in ["cp", "agent.py"] {
        let is_listed = yaml
            .lines()
            .any(|line| line.ends_with(&format!("/{program}")));
        assert_eq!(is_listed, program == "cp", "{yaml}");
    }
    let capability = valid(&jail, yaml);
    let filesystem = &capability["filesystem_config"];
    assert_eq!(filesystem["mode"], "read_write");
    assert_eq!(
        filesystem["writable_paths"].as_array().map(Vec::len),
        Some(1),
        "{yaml}"
    );
    assert!(yaml.contains("- \".\""), "{yaml}");
}

fn a_run_that_is_not_watched_is_not_recorded(who: Who) {
    let jail = Jail::new(who);
    let outcome = jail.run(&["/bin/true"]);
    assert!(outcome.json.get("observed").is_none(), "{}", outcome.json);
}

fn little_is_needed_for_little(who: Who) {
    let jail = plain_jail(who);
    let learn = |words: &[&str]| -> String {
        let done = belljar_in(&jail, &[&["learn", "-q", "--"], words].concat());
        succeeded(&done)
    };
    let yaml = learn(&["/bin/echo", "hello"]);
    let capability = valid(&jail, &yaml);
    assert_eq!(capability["filesystem_config"]["mode"], "none", "{yaml}");
    assert_eq!(capability["permissions"], serde_json::json!([]), "{yaml}");
    assert_eq!(
        capability["network_egress_rules"],
        serde_json::json!([]),
        "{yaml}"
    );
    // The same, twice: the file depends on the run alone.
    let stable = |text: &str| -> String {
        let lines = text.lines().filter(|line| !line.contains("max_"));
        lines.collect::<Vec<_>>().join("\n")
    };
    assert_eq!(stable(&yaml), stable(&learn(&["/bin/echo", "hello"])));
    let yaml = learn(&["/bin/cat", "main.txt"]);
    assert_eq!(
        valid(&jail, &yaml)["filesystem_config"]["mode"],
        "none",
        "{yaml}"
    );
    let file = jail.base.join("learned.yaml");
    let file = file.to_string_lossy();
    let again = belljar_in(
        &jail,
        &["run", "--config", &file, "--", "/bin/cat", "main.txt"],
    );
    assert_eq!(succeeded(&again), "the agent's work");
    let yaml = learn(&["/bin/cat", "../notes.txt"]);
    assert!(yaml.contains("- \"~/notes.txt\""), "{yaml}");
    // Much here and there is everything but what is hidden.
    let many: Vec<String> = (0..6)
        .map(|number| jail.home_file(&format!("many/{number}/file")))
        .collect();
    for file in &many {
        jail.put(Path::new(file), "x");
    }
    let mut words = vec!["/bin/cat"];
    words.extend(many.iter().map(String::as_str));
    let yaml = learn(&words);
    assert_eq!(
        valid(&jail, &yaml)["filesystem_config"]["mode"],
        "read_only",
        "{yaml}"
    );
    // Only what was written may be written.
    fs::create_dir(jail.work.join("deep")).expect("a directory");
    jail.own(&jail.work.join("deep"));
    let yaml = learn(&["/bin/cp", "main.txt", "deep/copy.txt"]);
    assert!(yaml.contains("- \"./deep\""), "{yaml}");
    valid(&jail, &yaml);
    let refused = belljar_in(
        &jail,
        &[
            "run", "-q", "--config", &file, "--", "/bin/cp", "main.txt", "copy.txt",
        ],
    );
    assert_ne!(refused.code(), 0);
    succeeded(&belljar_in(
        &jail,
        &[
            "run",
            "-q",
            "--config",
            &file,
            "--",
            "/bin/cp",
            "main.txt",
            "deep/copy.txt",
        ],
    ));
}

fn what_is_hidden_or_refused_is_only_proposed(who: Who) {
    let jail = plain_jail(who);
    let script = "cat ~/.ssh/id_ed25519; cat ~/.aws/credentials; touch ~/notes.txt; mkdir -p ~/.agent/state; touch .git/hooks/x; ls /run/nothing; true";
    let done = belljar_in(&jail, &["learn", "-q", "--", "/bin/sh", "-c", script]);
    let yaml = succeeded(&done);
    let capability = valid(&jail, &yaml);
    let filesystem = &capability["filesystem_config"];
    assert_eq!(filesystem["mode"], "none", "{yaml}");
    let count = |key: &str| filesystem[key].as_array().map(Vec::len);
    assert_eq!(count("readable_paths"), Some(1), "{yaml}");
    assert_eq!(
        filesystem["writable_paths"],
        serde_json::json!([]),
        "{yaml}"
    );
    let proposals = [
        "~/.ssh/id_ed25519",
        "~/.aws/credentials",
        "~/notes.txt",
        "~/.agent",
        "./.git/hooks",
    ];
    for path in proposals {
        let line = format!("    # - \"{path}\"");
        assert!(
            yaml.lines().any(|own| own.starts_with(&line)),
            "{path}\n{yaml}"
        );
    }
    // The home as a whole is never the answer; what is not there yet can't be opened.
    assert!(!yaml.contains("\"~\""), "{yaml}");
    let mut lines = yaml.lines();
    let own = lines.find(|line| line.contains("\"~/.agent\""));
    assert!(
        own.is_some_and(|own| own.ends_with("make it first")),
        "{yaml}"
    );
    // Whoever decides for them takes the sign away, and has a valid file.
    let decided = yaml.replace("    # - \"~/.ssh", "    - \"~/.ssh");
    let file = jail.base.join("learned.yaml");
    assert_eq!(
        valid(&jail, &decided)["filesystem_config"]["readable_paths"]
            .as_array()
            .map(Vec::len),
        Some(2)
    );
    let shown = belljar_in(
        &jail,
        &[
            "run",
            "-q",
            "--config",
            &file.to_string_lossy(),
            "--",
            "/bin/cat",
            &jail.home_file(".ssh/id_ed25519"),
        ],
    );
    assert_eq!(succeeded(&shown), support::SSH_SECRET);
}

fn a_hostile_agent_breaks_nothing(who: Who) {
    let jail = jail_with(who, HOSTILE);
    let seen = observe(&jail, &["python3", "agent.py"]);
    let files = files_of(&seen);
    assert!(files.contains_key(&jail.work_file("ends-with-its-page.txt")));
    assert!(
        files
            .keys()
            .all(|path| path.starts_with('/') && path.len() < 9000)
    );
    let yaml = seen["capability"].as_str().expect("a file");
    let is_plain = |c: char| c == '\n' || !c.is_control() && !matches!(c, '\u{2028}' | '\u{202e}');
    assert!(yaml.chars().all(is_plain), "{yaml:?}");
    let capability = valid(&jail, yaml);
    let filesystem = &capability["filesystem_config"];
    assert_eq!(
        filesystem["writable_paths"].as_array().map(Vec::len),
        Some(1),
        "{yaml}"
    );
    assert_eq!(
        filesystem["readable_paths"],
        serde_json::json!([]),
        "{yaml}"
    );
    assert_eq!(
        capability["network_egress_rules"],
        serde_json::json!([]),
        "{yaml}"
    );
}

/// Directories whose names say something else in YAML are spelled so that they say themselves.
fn names_mean_themselves(who: Who) {
    let jail = plain_jail(who);
    let name = "a\" - {b} \u{202e}#: \\x0a";
    fs::create_dir(jail.work.join(name)).expect("a directory");
    jail.own(&jail.work.join(name));
    let copy = format!("{name}/copy.txt");
    let yaml = succeeded(&belljar_in(
        &jail,
        &["learn", "-q", "--", "/bin/cp", "main.txt", &copy],
    ));
    valid(&jail, &yaml);
    assert!(!yaml.contains('\u{202e}'), "{yaml:?}");
    let file = jail.base.join("learned.yaml");
    let file = file.to_string_lossy();
    succeeded(&belljar_in(
        &jail,
        &[
            "run", "-q", "--config", &file, "--", "/bin/cp", "main.txt", &copy,
        ],
    ));
    let elsewhere = belljar_in(
        &jail,
        &[
            "run", "-q", "--config", &file, "--", "/bin/cp", "main.txt", "copy.txt",
        ],
    );
    assert_ne!(elsewhere.code(), 0, "{yaml}");
}

fn what_is_kept_is_bounded_and_says_so(who: Who) {
    const MOST: usize = 16_384;
    let agent = "import os\nfor n in range(20_000):\n    try: os.close(os.open('many/%d' % n, os.O_RDONLY))\n    except OSError: pass\n\
                 open('many/last', 'w').close()\n";
    let jail = jail_with(who, agent);
    fs::create_dir(jail.work.join("many")).expect("a directory");
    jail.own(&jail.work.join("many"));
    let seen = observe(&jail, &["python3", "agent.py"]);
    assert_eq!(files_of(&seen).len(), MOST);
    let directories = seen["run"]["observed"]["directories"].as_array();
    let directories = directories.expect("directories");
    assert!(
        !directories.is_empty() && directories.len() < 100,
        "{directories:?}"
    );
    let yaml = seen["capability"].as_str().expect("a file");
    // The last file's own name is not kept; that its directory was written to is.
    assert!(yaml.contains("- \"./many\""), "{yaml}");
    assert!(
        yaml.contains("more files were named than are kept"),
        "{yaml}"
    );
    valid(&jail, yaml);
}

fn a_file_that_is_there_is_not_replaced_unasked(who: Who) {
    let jail = Jail::new(who);
    let file = jail.work_file("learned.yaml");
    let learn = |more: &[&str], words: &[&str]| {
        let arguments = [
            &["learn", "-q", "--output", &file][..],
            more,
            &["--"],
            words,
        ]
        .concat();
        belljar_in(&jail, &arguments)
    };
    let read = || fs::read_to_string(&file).expect("the file");
    // An agent that makes the file first keeps it from being written, and does not have it written through a link.
    let link = format!("ln -s {} learned.yaml", jail.home_file("notes.txt"));
    assert_eq!(learn(&[], &["/bin/sh", "-c", &link]).code(), 121);
    assert_eq!(read(), "the user's notes");
    assert_eq!(learn(&[], &["/bin/true"]).code(), 121);
    // Not even by force is a link, or a device, made a file.
    assert_eq!(learn(&["--force"], &["/bin/true"]).code(), 121);
    assert_eq!(read(), "the user's notes");
    fs::remove_file(&file).expect("remove the link");
    let pipe = format!("{file}.pipe");
    succeeded(&belljar_in(
        &jail,
        &["run", "-q", "--", "/usr/bin/mkfifo", &pipe],
    ));
    let arguments = ["learn", "--force", "--output", &pipe, "--", "/bin/true"];
    assert_eq!(belljar_in(&jail, &arguments).code(), 121);
    assert!(!Path::new(&pipe).is_file());
    jail.put(Path::new(&file), "an older file");
    succeeded(&learn(&["--force"], &["/bin/true"]));
    assert!(read().contains("sandbox_tier"));
    // Nor may it write what it is held against.
    jail.put(Path::new(&file), "extends: moderate\n");
    let held = belljar_in(
        &jail,
        &[
            "learn",
            "-q",
            "--against",
            &file,
            "--",
            "/bin/sh",
            "-c",
            "echo x > learned.yaml",
        ],
    );
    assert_ne!(held.code(), 0);
    assert_eq!(read(), "extends: moderate\n");
}

fn a_run_is_held_against_a_file(who: Who) {
    let jail = plain_jail(who);
    let file = jail.base.join("own.yaml");
    jail.put(
        &file,
        "filesystem_config:\n  readable_paths: [~/.config/gh]\nnetwork_egress_rules:\n  - {domain: unused.example, ports: [443]}\n",
    );
    let against = |words: &[&str]| {
        let file = file.to_string_lossy();
        let arguments = [&["learn", "--against", &file, "--"], words].concat();
        let done = belljar_in(&jail, &arguments);
        (succeeded(&done), done.stderr())
    };
    let (diff, said) = against(&["/bin/sh", "-c", "/bin/cp main.txt copy.txt; true"]);
    assert!(
        diff.starts_with("--- ") && diff.contains("\n+  mode: read_write"),
        "{diff}"
    );
    assert!(
        diff.contains("\n-  readable_paths: [~/.config/gh]"),
        "{diff}"
    );
    for expected in [
        "the file lacks: write",
        "the file lacks: spawn_subprocess",
        "the run did not use: read ~/.config/gh",
        "the run did not use: connect unused.example",
    ] {
        assert!(said.contains(expected), "{expected}\n{said}");
    }
    jail.put(
        &file,
        "filesystem_config: {mode: none, readable_paths: [.]}\n",
    );
    let (_, said) = against(&["/bin/echo"]);
    assert!(
        said.contains("the file allows what the run did, and no more"),
        "{said}"
    );
}

/// The policy that a box is learned in holds, and what it shows is learned too.
fn the_walls_stand_while_learning(who: Who) {
    let jail = plain_jail(who);
    let file = jail.base.join("own.yaml");
    jail.put(
        &file,
        "extends: moderate\nfilesystem_config:\n  readable_paths: [~/.aws]\n",
    );
    let file = file.to_string_lossy();
    let script = "cat ~/.aws/credentials; cat ~/.ssh/id_ed25519; cat ~/notes.txt";
    let done = belljar_in(
        &jail,
        &[
            "learn", "-q", "--config", &file, "--", "/bin/sh", "-c", script,
        ],
    );
    let (yaml, said) = (succeeded(&done), done.stderr());
    assert!(
        said.contains(support::AWS_SECRET) && !said.contains(support::SSH_SECRET),
        "{said}"
    );
    let readable = &valid(&jail, &yaml)["filesystem_config"]["readable_paths"];
    assert_eq!(readable.as_array().map(Vec::len), Some(3), "{yaml}");
    assert!(yaml.contains("    - \"~/.aws/credentials\""), "{yaml}");
}

/// What no run can show is taken over from the file it ran under, and what is learned runs as it is.
fn what_cannot_be_learned_is_kept(who: Who) {
    let jail = plain_jail(who);
    jail.put(&jail.home.join("key"), "sk-not-real-000000000000");
    let file = jail.base.join("own.yaml");
    jail.put(
        &file,
        "# mine\nextends: moderate\nsecrets:\n- name: thing   # why it is there\n  env: THING_KEY\n  from: {file: ~/key}\n  domain: api.example.com\n  as: bearer\n\
         \nllm:\n  endpoints:\n    - {domain: models.example.com, api: openai}\nresource_limits: {max_cost_usd: 0.5, on_budget: refuse}\nfilesystem_config:\n  hidden_paths: [~/notes.txt, \"**/private\"]\n  protected_paths: [./main.txt]\n\
         network_egress_rules:\n  - {domain: api.example.com, ports: [443]}\n  - domain: models.example.com   # ours\n    ports: [443]\n    http: {methods: [POST]}\n",
    );
    let given = file.to_string_lossy();
    let script = "echo $THING_KEY > made.txt; cat ~/notes.txt; cat made.txt";
    let done = belljar_in(
        &jail,
        &[
            "learn", "-q", "--config", &given, "--", "/bin/sh", "-c", script,
        ],
    );
    let yaml = done.stdout();
    for part in [
        "extends: moderate\n",
        "- name: thing   # why it is there\n",
        "on_budget: refuse ",
        "max_cost_usd: 0.5",
        "  - domain: models.example.com   # ours\n    ports: [443]\n    http: {methods: [POST]}\n",
        "hidden_paths: [\"~/notes.txt\", \"**/private\"]",
        "protected_paths: [\"main.txt\"]",
    ] {
        assert!(
            yaml.contains(part),
            "{part} is not in:\n{yaml}\n{}",
            done.stderr()
        );
    }
    assert!(
        !yaml.contains("sk-not-real") && !yaml.contains("copy them"),
        "{yaml}"
    );
    let capability = valid(&jail, &yaml);
    assert_eq!(
        capability["secrets"].as_array().map(Vec::len),
        Some(1),
        "{yaml}"
    );
    let learned = jail.base.join("learned.yaml");
    let again = belljar_in(
        &jail,
        &[
            "run",
            "-q",
            "--config",
            &learned.to_string_lossy(),
            "--",
            "/bin/sh",
            "-c",
            "cat made.txt; cat ~/notes.txt",
        ],
    );
    assert!(again.stdout().contains("placeholder"), "{again:?}");
    assert!(!again.stdout().contains("the user's notes"), "{again:?}");
    // In a form whose parts can't be told apart, they are named.
    jail.put(&file, "{extends: moderate, secrets: [{name: thing, env: THING_KEY, from: {file: ~/key}, domain: api.example.com, as: bearer}], network_egress_rules: [{domain: api.example.com, ports: [443]}]}\n");
    let done = belljar_in(
        &jail,
        &["learn", "-q", "--config", &given, "--", "/bin/true"],
    );
    let yaml = succeeded(&done);
    assert!(
        yaml.contains("has secrets, which can't be learned: copy them"),
        "{yaml}"
    );
    valid(&jail, &yaml);
}

/// Names of one run are no rules, and neither is a directory that is everybody's.
fn proposals_are_as_wide_as_is_sensible(who: Who) {
    let jail = plain_jail(who);
    for directory in [
        ".config/other",
        ".local/share/other",
        ".tool/a",
        ".tool/b",
        ".tool/c",
    ] {
        jail.put(&jail.home.join(directory).join("x"), "x");
    }
    let script = "for i in 164026d16349 9a8b7c6d5e4f; do echo x > ~/.claude.json.tmp.2.$i; done; echo x > ~/.tmpA1b2C3d4; \
        mkdir ~/.local/share/opencode; mkdir -p ~/.config/crush/state; echo x > ~/.tool/a/1; echo x > ~/.tool/b/2; echo x > ~/.tool/c/3; true";
    let done = belljar_in(&jail, &["learn", "-q", "--", "/bin/sh", "-c", script]);
    let yaml = succeeded(&done);
    valid(&jail, &yaml);
    let is_proposed = |path: &str| {
        let line = format!("    # - \"{path}\"");
        yaml.lines().any(|own| own.starts_with(&line))
    };
    for path in [
        "~/.claude.json",
        "~/.local/share/opencode",
        "~/.config/crush",
        "~/.tool",
    ] {
        assert!(is_proposed(path), "{path} is not in:\n{yaml}");
    }
    for path in ["~", "~/.config", "~/.local/share", "~/.local", "~/.tool/a"] {
        assert!(!is_proposed(path), "{path} is in:\n{yaml}");
    }
    for part in ["164026d16349", "9a8b7c6d5e4f", "A1b2C3d4"] {
        assert!(
            !yaml
                .lines()
                .any(|line| line.contains(part) && !line.starts_with("# Learned")),
            "{part} is in:\n{yaml}"
        );
    }
    assert!(yaml.contains("makes a new file beside it"), "{yaml}");
}

/// A program gets further than to its first directory, nothing of that is there afterwards, and no wall is any lower.
fn what_is_made_in_the_home_goes_with_the_box(who: Who) {
    let jail = plain_jail(who);
    for directory in [".config/other", ".local/share/other"] {
        jail.put(&jail.home.join(directory).join("x"), "x");
    }
    let before = support::picture(&jail.home);
    let script = "set -e; mkdir -p ~/.agent/state; echo made > ~/.agent/state/f; mv ~/.agent/state/f ~/.agent/state/g; cat ~/.agent/state/g
        echo json > ~/.tool.json.tmp.1.164026d16349; mv ~/.tool.json.tmp.1.164026d16349 ~/.tool.json; cat ~/.tool.json
        mkdir ~/.config/tool ~/.local/share/tool; if echo x > ~/notes.txt; then exit 3; fi; echo end\n";
    let attack =
        "set -e; mkdir ~/.ssh; ls -A ~/.ssh; echo own > ~/.ssh/id_ed25519; cat ~/.ssh/id_ed25519
        if echo x > ~/.config/other/x; then exit 4; fi; if mv ~/notes.txt ~/n; then exit 5; fi
        if mv ~/.config ~/c; then exit 6; fi; if mv ~/project ~/p; then exit 7; fi
        if echo x > .git/hooks/x; then exit 8; fi; if cat ~/.aws/credentials; then exit 9; fi";
    let attacked = belljar_in(&jail, &["learn", "-q", "--", "/bin/sh", "-c", attack]);
    let (attacked, said) = (succeeded(&attacked), attacked.stderr());
    assert!(
        said.contains("own\n") && !said.contains(support::SSH_SECRET),
        "{said}"
    );
    assert!(
        !attacked.contains("\"~/.config\"") && !attacked.contains("\"~\""),
        "{attacked}"
    );
    let done = belljar_in(&jail, &["learn", "-q", "--", "/bin/sh", "-c", script]);
    let (yaml, said) = (succeeded(&done), done.stderr());
    for part in ["made\n", "json\n", "end\n"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(
        !said.contains(support::SSH_SECRET) && !said.contains(support::AWS_SECRET),
        "{said}"
    );
    assert_eq!(support::picture(&jail.home), before);
    let capability = valid(&jail, &yaml);
    let filesystem = &capability["filesystem_config"];
    assert_eq!(
        filesystem["writable_paths"],
        serde_json::json!([]),
        "{yaml}"
    );
    for path in [
        "~/.agent",
        "~/.tool.json",
        "~/.config/tool",
        "~/.local/share/tool",
        "~/notes.txt",
    ] {
        let line = format!("    # - \"{path}\"");
        assert!(
            yaml.lines().any(|own| own.starts_with(&line)),
            "{path} is not in:\n{yaml}"
        );
    }
    // A run has no such home.
    let run = belljar_in(
        &jail,
        &["run", "-q", "--", "/bin/sh", "-c", "mkdir ~/.agent"],
    );
    assert_ne!(run.code(), 0);
}

for_each_user!(
    what_is_made_in_the_home_goes_with_the_box,
    what_cannot_be_learned_is_kept,
    proposals_are_as_wide_as_is_sensible,
    everything_that_is_done_is_seen,
    a_run_that_is_not_watched_is_not_recorded,
    little_is_needed_for_little,
    what_is_hidden_or_refused_is_only_proposed,
    a_hostile_agent_breaks_nothing,
    names_mean_themselves,
    what_is_kept_is_bounded_and_says_so,
    a_file_that_is_there_is_not_replaced_unasked,
    a_run_is_held_against_a_file,
    the_walls_stand_while_learning,
);
