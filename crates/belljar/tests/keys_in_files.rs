//! Keys that lie in files a box may read, agents' own keys and settings, and `check path`, which says what a run does.

mod support;

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use serde_json::Value;
use support::{Finished, Jail, Outcome, Who, files_below, finish, for_each_user};

/// In two halves, as no test of secrets should hold what it looks for; and of no vendor's shape.
const KEY: [&str; 2] = ["hunter-4f9A0c", "77d1e2-zz"];
const PLACEHOLDER: &str = "belljar-placeholder-openai";
const POLICY: &str = "extends: moderate
network_egress_rules:
  - {domain: api.example.com, ports: [443]}
secrets:
  - {name: openai, from: {env: HOST_KEY}, domain: api.example.com, as: bearer, env: OPENAI_API_KEY}
env_allowlist: [OTHER, PLAIN]
";

/// Files of a home, as people write them. `@` is the key, `<` and `>` its halves.
const FILES: &[(&str, &str)] = &[
    (
        ".profile",
        "export OPENAI_API_KEY=@\n. \"$HOME/.extra/keys.sh\"\n. ~/.bashrc\n\
         # Don't\n. \"${HOME}\"/.more/one.sh\nd=.more; . ~/$d/two.sh\n. \"${XDG_CONFIG_HOME:-$HOME/.config}/more/three.sh\"\n\
         for f in $HOME/.more/all/*; do . \"$f\"; done\n",
    ),
    (".more/one.sh", "export N=@\n"),
    (".more/two.sh", "export O=@\n"),
    (".config/more/three.sh", "export P=@\n"),
    (".more/all/four.sh", "export Q=@\n"),
    (".bashrc", "export A=\"<\"'>'\n"),
    (".bashrc.bak", "export A=@\n"),
    (".zshenv", "export B='@'\n"),
    (".zshrc", "export C=<\\\n>\n"),
    (".zshrc.zwc", "compiled @\n"),
    (
        "dotfiles/zprofile",
        "export D=$'hunter\\x2d4f9A0c77d1e2\\055zz'\n",
    ),
    (
        ".extra/keys.sh",
        "export E=@\nexport F=$(cat ~/.keys/raw)\n",
    ),
    (".keys/raw", "@\n"),
    (".config/fish/config.fish", "set -gx G \"@\"\n"),
    (".config/fish/conf.d/x.fish", "set -gx H @\n"),
    (
        ".config/fish/fish_variables",
        "# VERSION: 3.0\nSETUVAR --export I:hunter\\x2d4f9A0c77d1e2\\x2dzz\n",
    ),
    (".config/environment.d/10.conf", "J=@\n"),
    (".pam_environment", "K DEFAULT=@\n"),
    (".xsessionrc", "export L=@\n"),
    ("project/.env", "OPENAI_API_KEY=@\n"),
    ("project/sub/.env.local", "M=\"@\"\n"),
    (".long.sh", "#@\n"),
];

fn key() -> String {
    KEY.concat()
}

fn as_written(text: &str) -> String {
    text.replace('@', &key())
        .replace('<', KEY[0])
        .replace('>', KEY[1])
}

fn furnished(who: Who) -> Jail {
    let mut jail = Jail::new(who);
    for (path, text) in FILES {
        jail.put(&jail.home.join(path), &as_written(text));
    }
    symlink("dotfiles/zprofile", jail.home.join(".zprofile")).expect("a link");
    jail.own(&jail.home);
    jail.variable("HOST_KEY", &key());
    jail.variable("OTHER", &format!("https://x/?k={}&y", key()));
    jail.variable("PLAIN", "passed");
    jail
}

/// What all login shells say, and all files that are to be seen.
const LOOK: &str = "
for shell in bash zsh; do $shell -lc env; $shell -lic env 2>/dev/null; done
fish -lc env
cd; cat .profile .bashrc .bashrc.bak .zshenv .zshrc .zprofile dotfiles/zprofile .extra/keys.sh .keys/raw .config/fish/config.fish
cat .config/fish/conf.d/x.fish .config/fish/fish_variables .config/environment.d/10.conf .pam_environment .xsessionrc
cat project/.env project/sub/.env.local .zshrc.zwc .long.sh .more/*.sh .more/all/* .config/more/*
cat /belljar/files/*
env";

#[track_caller]
fn assert_keyless(text: &str) {
    // Written in any of the ways above, what is left of it between quotes tells.
    let bare: String = text.chars().filter(|c| !"'\"\\\n".contains(*c)).collect();
    for held in [key(), "4f9A0c77d1e2".to_owned()] {
        assert!(!bare.contains(&held), "{text}");
    }
}

fn a_secret_is_in_no_file_or_login_shell_of_the_box(who: Who) {
    let mut jail = furnished(who);
    let control = finish(
        jail.outside("sh")
            .args(["-c", LOOK])
            .spawn()
            .expect("a shell"),
    );
    let seen = control.stdout();
    for name in [
        "OPENAI_API_KEY",
        "A",
        "B",
        "C",
        "D",
        "E",
        "F",
        "G",
        "H",
        "I",
        "N",
        "O",
        "P",
        "Q",
    ] {
        assert!(
            seen.contains(&format!("\n{name}={}\n", key())),
            "{name}: {seen}"
        );
    }
    jail.policy(POLICY);
    let outcome = jail.run(&["sh", "-c", LOOK]);
    assert_keyless(outcome.stdout());
    assert_keyless(&outcome.json.to_string());
    for name in [
        "OPENAI_API_KEY",
        "A",
        "B",
        "C",
        "D",
        "E",
        "F",
        "G",
        "H",
        "I",
        "N",
        "O",
        "P",
        "Q",
    ] {
        let line = format!("\n{name}={PLACEHOLDER}\n");
        assert!(
            outcome.stdout().contains(&line),
            "{name}: {}",
            outcome.stdout()
        );
    }
    assert!(outcome.stdout().contains("\nPLAIN=passed\n"));
    assert!(!outcome.stdout().contains("\nOTHER="));
    let notes = outcome.json["notes"].to_string();
    for note in [
        "~/.profile holds the secret 'openai': shown with its placeholder",
        "~/project/.env holds the secret 'openai'",
        "withheld: OTHER, which holds the secret 'openai'",
    ] {
        assert!(notes.contains(note), "{note}: {notes}");
    }
    // The host's files are as they were.
    for (path, text) in FILES {
        let now = fs::read_to_string(jail.home.join(path)).expect("a file");
        assert_eq!(now, as_written(text), "{path}");
    }
    for file in files_below(&jail.state) {
        let bytes = fs::read(&file).unwrap_or_default();
        assert_keyless(&String::from_utf8_lossy(&bytes));
    }
}

/// Nothing in the box brings a file back: not by writing, moving or linking it, nor what is above it.
fn a_file_without_its_key_stays_so(who: Who) {
    let mut jail = furnished(who);
    jail.policy(&format!(
        "{POLICY}filesystem_config: {{writable_paths: [., ~/.extra]}}\n"
    ));
    let outcome = jail.run(&[
        "sh",
        "-c",
        "echo x >.env; rm -f .env; mv .env other; mv sub moved; ln .env hard; ln -s .env soft
         rm -f ~/.extra/keys.sh; mv ~/.extra/keys.sh ~/.extra/k2; cp .env copy
         cat .env other moved/.env.local sub/.env.local hard soft copy ~/.extra/*
         umount .env; cat .env",
    ]);
    assert_keyless(outcome.stdout());
    assert!(
        outcome.stdout().contains(PLACEHOLDER),
        "{}",
        outcome.stdout()
    );
}

fn it_is_said_once_at_the_start(who: Who) {
    let mut jail = furnished(who);
    jail.policy(POLICY);
    let mut command = jail.text_command(&["sh", "-c", "echo agent >&2"]);
    let said = finish(command.spawn().expect("start belljar")).stderr();
    let line = "[belljar] note: ~/.profile holds the secret 'openai': shown with its placeholder";
    assert_eq!(said.matches(line).count(), 1, "{said}");
    assert!(said.contains("agent"), "{said}");
}

fn without_secrets_what_looks_like_a_key_is_withheld(who: Who) {
    let vendor = format!("sk-{}", "Ab1".repeat(8));
    let mut jail = Jail::new(who);
    let profile = jail.home.join(".profile");
    jail.put(
        &profile,
        &format!("export OPENAI_API_KEY={vendor}\nexport EDITOR=ed\n"),
    );
    let look = "bash -lc 'echo $OPENAI_API_KEY $EDITOR'; cat ~/.profile";
    let outcome = jail.run(&["sh", "-c", look]);
    let said = outcome.stdout();
    assert!(
        said.starts_with("belljar-withheld ed\n") && !said.contains(&vendor),
        "{said}"
    );
    let notes = outcome.json["notes"].to_string();
    assert!(
        notes.contains("~/.profile sets OPENAI_API_KEY: shown as belljar-withheld"),
        "{notes}"
    );
    // Whoever names the file means what is in it.
    jail.policy("extends: moderate\nfilesystem_config: {readable_paths: [~/.profile]}\n");
    let outcome = jail.run(&["sh", "-c", look]);
    assert!(outcome.stdout().contains(&vendor), "{}", outcome.stdout());
}

/// Agents' keys and settings in directories that a policy opens: there and not there, and behind a link.
fn what_agents_keep_stays_shut_in_a_listed_directory(who: Who) {
    let mut jail = Jail::new(who);
    let put = |path: &str, text: &str| jail.put(&jail.home.join(path), text);
    for (path, text) in [
        (".claude/.credentials.json", "the login"),
        (".foo/bar/.env", "the login"),
        (".claude/settings.json", "{}"),
        (".claude/projects/x.jsonl", "state"),
        ("dotfiles/codex/auth.json", "the login"),
        ("dotfiles/codex/config.toml", "x=1"),
        ("dotfiles/codex/sessions/x", "state"),
    ] {
        put(path, text);
    }
    symlink("dotfiles/codex", jail.home.join(".codex")).expect("a link");
    jail.policy(
        "extends: moderate\nfilesystem_config: {mode: read_write, writable_paths: [., ~/.claude, ~/.codex]}\n",
    );
    let shut = [
        (".claude/.credentials.json", false),
        (".foo/bar/.env", false),
        (".claude/settings.json", true),
        (".claude/settings.local.json", true),
        (".claude/CLAUDE.md", true),
        (".claude/commands/evil.md", true),
        (".claude/hooks/evil.sh", true),
        (".codex/auth.json", false),
        ("dotfiles/codex/auth.json", false),
        (".codex/config.toml", true),
        (".codex/AGENTS.md", true),
        (".codex/prompts/evil.md", true),
        ("dotfiles/codex/hooks.json", true),
    ];
    let script: String = shut
        .iter()
        .map(|(path, _)| {
            format!("cat ~/{path}; mkdir -p ~/$(dirname {path}); echo evil >~/{path};")
        })
        .collect();
    let open = "mv ~/.claude/settings.json ~/.claude/s; rm -rf ~/.claude/settings.json
        echo new >>~/.claude/projects/x.jsonl && echo new >>~/.codex/sessions/x && echo went on";
    let outcome = jail.run(&["sh", "-c", &format!("{script} {open}")]);
    let said = outcome.stdout();
    assert!(
        said.contains("went on") && !said.contains("the login"),
        "{said}"
    );
    for (path, _) in shut {
        let now = fs::read_to_string(jail.home.join(path)).unwrap_or_default();
        assert!(!now.contains("evil"), "{path}");
    }
    let (paths, settings): (Vec<&str>, Vec<bool>) = shut.into_iter().unzip();
    let asked = check(&jail, &paths, true);
    for ((path, is_setting), asked) in paths.iter().zip(settings).zip(asked) {
        let expect = if is_setting {
            "deny_protected"
        } else {
            "deny_hidden"
        };
        // By its other name it is shut as well; the rule is about the name that agents use.
        let is_other = path.starts_with("dotfiles");
        assert!(asked["reason"] == expect || is_other, "{path}: {asked}");
        assert_eq!(asked["decision"], "deny", "{path}");
    }
}

/// `belljar check path` with the jail's policy, of paths below the home.
#[track_caller]
fn check(jail: &Jail, paths: &[&str], write: bool) -> Vec<Value> {
    assert!(paths.len() > 1, "one alone is no list");
    let mut command = jail.belljar(&["check", "path", "--output", "json"]);
    command.args(paths.iter().map(|path| jail.home.join(path)));
    command.args(jail.run_options());
    if write {
        command.arg("--write");
    }
    let said = finish(command.spawn().expect("start belljar"));
    serde_json::from_str(&said.stdout()).unwrap_or_else(|error| panic!("{error}: {said:?}"))
}

/// Numbers that look like chance, and are the same every time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % sides
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.roll(from.len())]
    }
}

const DIRECTORIES: &[&str] = &[
    "a",
    "b",
    ".foo",
    ".config",
    ".claude",
    ".cache",
    ".git",
    "data",
    "node_modules",
    ".ssh",
    ".pi",
];
const NAMES: &[&str] = &[
    "f",
    ".env",
    ".env",
    ".env.local",
    "settings.json",
    "config",
    ".credentials.json",
    "hooks",
];

/// A path below the home, or below the working directory.
fn random_path(dice: &mut Dice) -> String {
    let mut path = dice.pick(&["", "", "project/"]).to_owned();
    for _ in 0..dice.roll(5) {
        path += dice.pick(DIRECTORIES);
        path += "/";
    }
    path
}

/// Lays a tree, returns the paths in it.
fn random_tree(jail: &Jail, dice: &mut Dice) -> Vec<String> {
    let mut paths: Vec<String> = Vec::new();
    for _ in 0..16 {
        let path = random_path(dice) + dice.pick(NAMES);
        let at = jail.home.join(&path);
        let blocked = at.ancestors().skip(1).any(|above| above.is_file());
        if !at.exists() && !blocked {
            jail.put(&at, "there\n");
            paths.push(path);
        }
    }
    for number in 0..5 {
        let target = paths[dice.roll(paths.len())].clone();
        let (target, below) = match (dice.roll(2), target.rsplit_once('/')) {
            (0, Some((directory, name))) => (directory.to_owned(), format!("/{name}")),
            _ => (target, String::new()),
        };
        let link = format!("{}link{number}", dice.pick(&["", "project/", "other/"]));
        let at = jail.home.join(&link);
        if symlink(jail.home.join(target), &at).is_ok() {
            jail.own(&at);
            paths.push(link + &below);
        }
    }
    paths
}

fn random_policy(dice: &mut Dice, paths: &[String]) -> String {
    let some = |dice: &mut Dice| -> String {
        let chosen: Vec<String> = (0..dice.roll(3))
            .map(|_| {
                let path = &paths[dice.roll(paths.len())];
                match (dice.roll(3), path.rsplit_once('/')) {
                    (0, _) | (_, None) => format!("~/{path}"),
                    (_, Some((directory, _))) => format!("~/{directory}"),
                }
            })
            .collect();
        chosen.join(", ")
    };
    let mode = dice.pick(&[
        "none",
        "read_only",
        "read_write",
        "read_write",
        "read_write",
    ]);
    let (mut readable, hidden) = (some(dice), some(dice));
    if mode == "none" {
        // A box needs to see where it starts.
        readable = format!("., {readable}");
    }
    let writable = match dice.roll(3) {
        _ if mode != "read_write" => String::new(),
        0 => String::new(),
        _ => format!("., {}", some(dice)),
    };
    format!(
        "extends: moderate\nfilesystem_config:\n  mode: {mode}\n  readable_paths: [{readable}]\n  hidden_paths: [{hidden}]\n  writable_paths: [{writable}]\n"
    )
}

/// One box for each tree tries every path; `check path` has to have said so. More trees by `BELLJAR_TREES`.
fn check_path_says_what_a_run_does(who: Who) {
    let trees = std::env::var("BELLJAR_TREES")
        .ok()
        .and_then(|text| text.parse().ok());
    let shift = if who == Who::Root { 0 } else { 1_000 };
    for seed in 0..trees.unwrap_or(5) {
        let mut dice = Dice(seed + shift);
        let mut jail = Jail::new(who);
        let mut paths = random_tree(&jail, &mut dice);
        paths.extend(
            [
                ".ssh/id_ed25519",
                "other/.env",
                "project/.git/config",
                "notes.txt",
            ]
            .map(str::to_owned),
        );
        paths.sort();
        paths.dedup();
        let policy = random_policy(&mut dice, &paths);
        jail.policy(&policy);
        let words: Vec<&str> = paths.iter().map(String::as_str).collect();
        let said = [false, true].map(|write| check(&jail, &words, write));
        let script = "cd /; for p; do
            if [ \"$(cat \"$p\" 2>/dev/null)\" ]; then echo \"read $p\"; fi
            if (: >>\"$p\") 2>/dev/null; then echo \"write $p\"; fi; done; true";
        let mut words = vec![
            "sh".to_owned(),
            "-c".to_owned(),
            script.to_owned(),
            "sh".to_owned(),
        ];
        words.extend(paths.iter().map(|path| jail.home_file(path)));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let outcome = jail.run(&words);
        if outcome.error_code() == Some("refused") && policy.contains("~/project") {
            // The policy hides where it starts.
            continue;
        }
        assert_eq!(
            outcome.exit_code(),
            Some(0),
            "seed {seed}: {policy}\n{}",
            outcome.json
        );
        assert_agreement(
            &jail,
            &paths,
            &said,
            &outcome,
            &format!("seed {seed}: {policy}"),
        );
    }
}

#[track_caller]
fn assert_agreement(
    jail: &Jail,
    paths: &[String],
    said: &[Vec<Value>; 2],
    outcome: &Outcome,
    what: &str,
) {
    let did: Vec<&str> = outcome.stdout().lines().collect();
    let mut wrong = Vec::new();
    for (word, said) in ["read", "write"].into_iter().zip(said) {
        for (path, said) in paths.iter().zip(said) {
            // The host's file is not in a private directory; what the box makes there is its own.
            if said["reason"] == "allow_private" {
                continue;
            }
            let did = did.contains(&format!("{word} {}", jail.home_file(path)).as_str());
            if did != (said["decision"] == "allow") {
                wrong.push(format!("{word} ~/{path}: the box {did}, check {said}"));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{what}\n{}\n{}",
        wrong.join("\n"),
        outcome.json["notes"]
    );
}

fn a_state_directory_is_where_it_is_said_to_be(who: Who) {
    let jail = Jail::new(who);
    let said = |words: &[&str], state: &str| -> Finished {
        let mut command = jail.belljar(words);
        command.env("BELLJAR_STATE_DIR", state);
        finish(command.spawn().expect("start belljar"))
    };
    let missing = jail.home.join("missing");
    let missing = missing.to_str().expect("a plain path");
    let reading: &[&[&str]] = &[
        &["audit", "verify"],
        &["audit", "show"],
        &["audit", "checkpoint"],
        &["ps"],
        &["keys", "list"],
        &["image", "list"],
        &["token", "list"],
        &["evolve", "list"],
        &["replication", "workers"],
        &["diff", "abc"],
        &["mcp", "holds"],
    ];
    let writing: &[&[&str]] = &[
        &["run", "--", "true"],
        &["keys", "init"],
        &["check", "path", "/etc"],
    ];
    for words in reading.iter().chain(writing) {
        let empty = said(words, "");
        assert_eq!(empty.code(), 121, "{words:?}: {empty:?}");
        assert!(empty.stderr().contains("is empty"), "{empty:?}");
        let relative = said(words, "some/where");
        assert_eq!(relative.code(), 121, "{words:?}: {relative:?}");
        let text = relative.stderr();
        assert!(
            text.contains("relative path: some/where") && text.contains("$PWD"),
            "{text}"
        );
        assert!(!jail.work.join("some").exists());
    }
    for words in reading {
        let absent = said(words, missing);
        assert_eq!(absent.code(), 121, "{words:?}: {absent:?}");
        assert!(absent.stderr().contains("no such directory"), "{absent:?}");
        assert!(!Path::new(missing).exists(), "{words:?}");
    }
    assert_eq!(said(&["run", "--", "true"], missing).code(), 0);
    assert_eq!(said(&["audit", "verify"], missing).code(), 0);
}

/// Whoever owns the directory, or may write to it, could put other keys and another log in their place.
fn a_state_directory_of_others_is_refused(who: Who) {
    let jail = Jail::new(who);
    let somebody = rustix::fs::Uid::from_raw(54_399);
    let place = jail.home.join("somebody's");
    for (owner, mode, told) in [
        (Some(somebody), 0o755, "belongs to user 54399"),
        (None, 0o777, "everybody may write"),
    ] {
        fs::create_dir(&place).expect("make the directory");
        jail.own(&place);
        rustix::fs::chown(&place, owner, None).expect("give it away");
        fs::set_permissions(&place, fs::Permissions::from_mode(mode)).expect("its mode");
        let mut command = jail.belljar(&["run", "--", "true"]);
        command.env("BELLJAR_STATE_DIR", &place);
        let said = finish(command.spawn().expect("start belljar"));
        assert_eq!(said.code(), 121, "{said:?}");
        assert!(said.stderr().contains(told), "{said:?}");
        assert_eq!(fs::read_dir(&place).expect("list it").count(), 0);
        fs::remove_dir(&place).expect("remove it");
    }
}

for_each_user!(
    a_state_directory_of_others_is_refused,
    a_secret_is_in_no_file_or_login_shell_of_the_box,
    a_file_without_its_key_stays_so,
    it_is_said_once_at_the_start,
    without_secrets_what_looks_like_a_key_is_withheld,
    what_agents_keep_stays_shut_in_a_listed_directory,
    check_path_says_what_a_run_does,
    a_state_directory_is_where_it_is_said_to_be,
);
