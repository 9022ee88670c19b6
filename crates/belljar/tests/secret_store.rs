//! Keys that Belljar keeps: nobody exports them, no box sees them, and only hosts that a policy names get them.

mod support;

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;

use support::{Finished, Jail, PYTHON, Who, World, finish, for_each_user_in_a_world};

/// In two halves, as no test of secrets should hold what it looks for.
const KEY: [&str; 2] = ["sk-kept-0ddba11", "-5f2c81d7"];
const PLACEHOLDER: &str = "belljar-placeholder-first";

fn key() -> String {
    KEY.concat()
}

fn belljar(jail: &Jail, words: &[&str], input: &str) -> Finished {
    let mut command = jail.belljar(words);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("start belljar");
    let mut pipe = child.stdin.take().expect("a pipe");
    // It may not want to hear it.
    pipe.write_all(input.as_bytes()).ok();
    drop(pipe);
    finish(child)
}

#[track_caller]
fn said(jail: &Jail, words: &[&str], input: &str, code: i32) -> String {
    let finished = belljar(jail, words, input);
    let said = format!("{}{}", finished.stdout(), finished.stderr());
    assert_eq!(finished.status.code(), Some(code), "{words:?}: {said}");
    assert!(!said.contains(KEY[0]), "{words:?}: {said}");
    said
}

fn secrets_are_kept_listed_tested_and_removed(who: Who) {
    let mut jail = Jail::new(who);
    let file = jail.base.join("key-file");
    jail.put(&file, &format!("{}\n", key()));
    jail.variable("GIVEN_KEY", &key());
    let policy = jail.base.join("asked.yaml");
    let text = "network_egress_rules: [{domain: api.example.com, ports: [443]}]\nsecrets:
  - {name: mine, from: {store: by-pipe}, domain: api.example.com, ports: [443], as: bearer}
  - {name: gone, from: {store: none}, domain: api.example.com}\n";
    jail.put(&policy, text);
    let policy = policy.to_string_lossy().into_owned();

    said(
        &jail,
        &["secret", "set", "by-pipe"],
        &format!("{}\n", key()),
        0,
    );
    let words = [
        "secret",
        "set",
        "by-file",
        "--from-file",
        &file.to_string_lossy(),
    ];
    said(&jail, &words, "", 0);
    said(
        &jail,
        &["secret", "set", "by-env", "--from-env", "GIVEN_KEY"],
        "",
        0,
    );
    let replaced = said(
        &jail,
        &["secret", "set", "by-env", "--from-env", "GIVEN_KEY"],
        "",
        0,
    );
    assert!(replaced.contains("replaced"), "{replaced}");
    let listed = said(&jail, &["secret", "list"], "", 0);
    let names: Vec<_> = listed
        .lines()
        .skip(1)
        .filter_map(|line| line.split(' ').next_back())
        .collect();
    assert_eq!(names, ["by-env", "by-file", "by-pipe"]);

    let tested = said(
        &jail,
        &["secret", "test", "by-pipe", "--config", &policy],
        "",
        0,
    );
    assert!(
        tested.contains("mine: can be read from the stored secret by-pipe"),
        "{tested}"
    );
    assert!(
        tested.contains("goes to api.example.com, ports [443]"),
        "{tested}"
    );
    let nowhere = said(
        &jail,
        &["secret", "test", "by-env", "--config", &policy],
        "",
        0,
    );
    assert!(nowhere.contains("goes nowhere"), "{nowhere}");
    let missing = said(
        &jail,
        &["secret", "test", "gone", "--config", &policy],
        "",
        1,
    );
    assert!(
        missing.contains("there is no stored secret none"),
        "{missing}"
    );
    said(
        &jail,
        &["secret", "test", "unheard-of", "--config", &policy],
        "",
        121,
    );

    said(&jail, &["secret", "rm", "by-pipe"], "", 0);
    said(&jail, &["secret", "rm", "by-pipe"], "", 121);
    said(
        &jail,
        &["secret", "test", "mine", "--config", &policy],
        "",
        1,
    );
    for input in ["", "\n", "two\nlines\n", "\u{e9}"] {
        said(&jail, &["secret", "set", "odd"], input, 121);
    }

    let store = jail.state.join("secrets/store.json");
    let mode =
        |path: &std::path::Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
    assert_eq!(
        (mode(&store), mode(store.parent().expect("a directory"))),
        (0o600, 0o700)
    );
    fs::set_permissions(&store, fs::Permissions::from_mode(0o644)).expect("open it");
    let refused = said(&jail, &["secret", "list"], "", 122);
    assert!(refused.contains("chmod 600"), "{refused}");
    said(&jail, &["secret", "set", "more"], "x", 122);
}

/// What is typed is not shown, and the terminal is as it was afterwards; Ctrl-C changes nothing.
fn a_terminal_shows_nothing_of_what_is_typed(who: Who) {
    let jail = Jail::new(who);
    let script = r#"
import os, pty, sys, termios
belljar, words, typed = sys.argv[1], sys.argv[2].split(), sys.argv[3].encode().decode("unicode_escape").encode()
pid, terminal = pty.fork()
if pid == 0:
    os.execv(belljar, [belljar, *words])
shown = b""
while b"(not shown): " not in shown:
    shown += os.read(terminal, 4096)
os.write(terminal, typed)
while True:
    try:
        part = os.read(terminal, 4096)
    except OSError:
        break
    if not part:
        break
    shown += part
status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print(status, shown)
"#;
    let program = jail.belljar_path();
    let typed = |text: &str| {
        let mut command = jail.outside(PYTHON);
        command
            .args(["-c", script])
            .arg(&program)
            .args(["secret set typed", text])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let finished = finish(command.spawn().expect("start python"));
        format!("{}{}", finished.stdout(), finished.stderr())
    };
    let shown = typed("wrong\\x7f\\x15sk-typed-1\\r");
    assert!(shown.starts_with("0 "), "{shown}");
    assert!(
        !shown.contains("sk-typed") && !shown.contains("wrong"),
        "{shown}"
    );
    let store = jail.state.join("secrets/store.json");
    let kept = || fs::read_to_string(&store).expect("the store");
    assert!(kept().contains("\"sk-typed-1\""));
    let shown = typed("sk-typed-2\\x03");
    assert!(shown.starts_with("121 "), "{shown}");
    assert!(!kept().contains("sk-typed-2"));
}

/// From the store to its host, and nowhere else: not in the box, not in what else Belljar writes.
fn a_stored_secret_reaches_its_host_and_no_box(who: Who) {
    let mut world = World::new(who);
    world.rules(
        &["{domain: first.example.com, ports: [443]}"],
        "secrets: [{name: first, from: {store: kept}, domain: first.example.com, env: FIRST_KEY}]\n",
    );
    // Without it the box does not start.
    let outcome = world.jail.run(&["true"]);
    assert_eq!(outcome.code(), 122, "{outcome:#?}");
    let error = outcome.json["error"].to_string();
    assert!(error.contains("belljar secret set kept"), "{error}");

    said(&world.jail, &["secret", "set", "kept"], &key(), 0);
    let store = world.jail.state.join("secrets/store.json");
    assert!(
        fs::read_to_string(&store)
            .expect("the store")
            .contains(&key())
    );
    let outcome = world.shell(&format!(
        "curl --silent --show-error --fail --header \"X-Api-Key: $FIRST_KEY\" https://first.example.com/
         echo \"$FIRST_KEY\"
         if cat {store} 2>/dev/null; then echo read; fi
         if ls {state}/secrets 2>/dev/null; then echo listed; fi",
        store = store.display(),
        state = world.jail.state.display(),
    ));
    outcome.assert_exit(0);
    let seen = world.seen_since(0, "http");
    assert_eq!(seen[0]["headers"]["x-api-key"], key());
    let stdout = outcome.stdout();
    assert!(stdout.ends_with(&format!("{PLACEHOLDER}\n")), "{stdout}");
    assert!(!outcome.json.to_string().contains(KEY[0]), "{outcome:#?}");
    for file in support::files_below(&world.jail.state) {
        if file != store
            && let Ok(bytes) = fs::read(&file)
        {
            let found = bytes
                .windows(KEY[0].len())
                .any(|part| part == KEY[0].as_bytes());
            assert!(!found, "{} holds the secret", file.display());
        }
    }
    // A store that others could have changed gives nothing out.
    fs::set_permissions(&store, fs::Permissions::from_mode(0o660)).expect("open it");
    let outcome = world.jail.run(&["true"]);
    assert_eq!(outcome.code(), 122, "{outcome:#?}");
}

for_each_user_in_a_world!(
    secrets_are_kept_listed_tested_and_removed,
    a_terminal_shows_nothing_of_what_is_typed,
    a_stored_secret_reaches_its_host_and_no_box,
);
