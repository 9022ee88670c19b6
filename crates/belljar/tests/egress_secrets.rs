//! Secrets arrive where they are meant to, and are nowhere else: not in the box, not in what Belljar writes.

mod support;

use std::fs;
use std::process::Stdio;

use support::{
    PYTHON, Who, World, assert_recorded, files_below, finish, for_each_user_in_a_world,
    on_other_tiers_in_a_world,
};

/// Each in two halves, as no test of secrets should hold what it looks for.
const FROM_ENV: [&str; 2] = ["sk-env-f00dcafe", "-1c9e7742ab"];
const FROM_FILE: [&str; 2] = ["sk-file-deadbea7", "-8d01f3c65e"];
const FROM_COMMAND: [&str; 2] = ["sk-command-badc0de5", "-77aa01be93"];
const PLACEHOLDER: [&str; 2] = ["belljar-placeholder", "-first"];

const RULES: &[&str] = &[
    "{domain: first.example.com, ports: [443, 80]}",
    "{domain: second.example.com, ports: [443]}",
    "{domain: third.example.com, ports: [443]}",
    "{domain: allowed.example.com, ports: [443, 80]}",
];

fn whole(halves: [&str; 2]) -> String {
    halves.concat()
}

fn world(who: Who) -> World {
    let mut world = World::new(who);
    let key_file = world.jail.home.join(".config/second.key");
    world
        .jail
        .put(&key_file, &format!("{}\n", whole(FROM_FILE)));
    // The built-in rules hide what is in there.
    let printed = world.jail.home.join(".ssh/third.key");
    world.jail.put(&printed, &whole(FROM_COMMAND));
    let sections = format!(
        "secrets:
  - {{name: first, from: {{env: FIRST_KEY}}, domain: first.example.com, as: bearer, env: FIRST_KEY}}
  - {{name: second, from: {{file: ~/.config/second.key}}, domain: second.example.com, as: {{header: X-Api-Key}}}}
  - {{name: third, from: {{command: [cat, {}]}}, domain: third.example.com, as: {{header: X-Token}}}}
",
        printed.display()
    );
    world.rules(RULES, &sections);
    world.jail.variable("FIRST_KEY", &whole(FROM_ENV));
    world
}

const CALLS: &str = "for name in first second third
    do curl --silent --show-error --fail https://$name.example.com/use; done
    curl --silent --show-error --fail --header \"Authorization: Bearer $FIRST_KEY\" https://first.example.com/own";

fn secrets_arrive_where_they_are_meant_to_and_nowhere_else(who: Who) {
    let world = world(who);
    let outcome = world.shell(&format!(
        "{CALLS}
         # In the clear and to others nothing is put in.
         curl --silent --fail http://first.example.com/clear || true
         curl --silent --fail --header \"Authorization: Bearer $FIRST_KEY\" https://allowed.example.com/other
         # An answer could repeat what was sent.
         curl --silent --fail --header \"Host: allowed.example.com\" https://first.example.com/steal || true"
    ));
    outcome.assert_exit(0);
    let bearer = format!("Bearer {}", whole(FROM_ENV));
    let got: Vec<(String, String, String)> = world
        .seen_since(0, "http")
        .iter()
        .map(|request| {
            let header = |name: &str| request["headers"][name].as_str().map(str::to_owned);
            let secret = header("authorization")
                .or(header("x-api-key"))
                .or(header("x-token"));
            let text = |name: &str| request[name].as_str().unwrap_or_default().to_owned();
            (text("host"), text("path"), secret.unwrap_or_default())
        })
        .collect();
    let expect = |host: &str, path: &str, secret: &str| {
        (
            format!("{host}.example.com"),
            path.to_owned(),
            secret.to_owned(),
        )
    };
    let placeholder = format!("Bearer {}", whole(PLACEHOLDER));
    let mut expected = vec![
        expect("first", "/use", &bearer),
        expect("second", "/use", &whole(FROM_FILE)),
        expect("third", "/use", &whole(FROM_COMMAND)),
        expect("first", "/own", &bearer),
    ];
    if got.iter().any(|(_, path, _)| path == "/clear") {
        expected.push(expect("first", "/clear", ""));
    }
    expected.push(expect("allowed", "/other", &placeholder));
    assert_eq!(got, expected);
    assert_recorded(&outcome, "another Host", &["deny_name_mismatch"]);
}

/// The hunter sees what is there: it finds the placeholder in the box, and secrets outside.
fn secrets_are_nowhere_in_the_box_nor_in_what_is_written(who: Who) {
    let world = world(who);
    let program = world.program("hunt.py");
    let home = world.jail.home.to_string_lossy().into_owned();
    let places = format!("{home},/tmp,/run,/dev/shm,/belljar,/etc/ssl");
    let needles = [
        ("first", FROM_ENV),
        ("second", FROM_FILE),
        ("third", FROM_COMMAND),
        ("placeholder", PLACEHOLDER),
    ];
    let mut words: Vec<&str> = needles
        .iter()
        .flat_map(|(name, [front, back])| [*name, *front, *back])
        .collect();
    let mut control = world.jail.outside(PYTHON);
    // Other places outside are the machine's, and none of this test's business.
    control.arg("-B").arg(&program).arg(&home).args(&words);
    let found = finish(control.spawn().expect("start the hunter")).stdout();
    for expected in [
        "first: environ of self",
        "first: memory of self",
        "second: file ",
        "third: file ",
    ] {
        assert!(found.contains(expected), "{expected}: {found}");
    }

    words.insert(0, &places);
    // The hunter is a child of the shell that made the calls, in the same box; its output goes to a file that it looks at last.
    let script = format!(
        "({CALLS}) >answers; {PYTHON} -B {program} {} >found; cat found",
        words
            .iter()
            .map(|word| format!("'{word}'"))
            .collect::<Vec<_>>()
            .join(" ")
    );
    let mut command = world.jail.text_command(&["/bin/sh", "-euc", &script]);
    command.stdin(Stdio::piped());
    let mut child = command.spawn().expect("start the box");
    let report = world.jail.work.join("found");
    support::eventually("the hunter has looked", || {
        let text = fs::read_to_string(&report).unwrap_or_default();
        assert!(
            child.try_wait().expect("a child").is_none() || text.contains("looked"),
            "the box ended early"
        );
        text.contains("looked").then_some(())
    });
    // While the box runs: what Belljar keeps of it.
    assert_holds_no_secret(&world, "while it runs");
    drop(child.stdin.take());
    let finished = finish(child);
    assert!(finished.status.success(), "{finished:?}");
    let found = finished.stdout();
    for (name, _) in &needles[..3] {
        let name = format!("{name}: ");
        assert!(
            !found.lines().any(|line| line.starts_with(&name)),
            "{found}"
        );
    }
    for expected in [
        "placeholder: environ of self",
        "placeholder: memory of self",
        "placeholder: own variables",
        // The box's first process was copied from one that had the variable.
        "shut: memory of process 1",
    ] {
        assert!(found.contains(expected), "{expected}: {found}");
    }
    assert_eq!(world.seen_since(0, "http").len(), 4);
    assert_holds_no_secret(&world, "after its end");
    let said = format!("{}{}", finished.stdout(), finished.stderr());
    assert_free_of_secrets(said.as_bytes(), "the output");
    for words in [["audit", "show"], ["ps", "--output=json"]] {
        let told = finish(world.jail.belljar(&words).spawn().expect("start belljar"));
        assert!(told.status.success(), "{told:?}");
        assert_free_of_secrets(&told.stdout, words[0]);
    }
}

/// All that Belljar keeps: the registry, the log, keys, the box's own directories.
#[track_caller]
fn assert_holds_no_secret(world: &World, when: &str) {
    let files = files_below(&world.jail.state);
    assert!(!files.is_empty(), "there is no record {when}");
    for file in files {
        // A file may go away between the listing and this look at it.
        if let Ok(bytes) = fs::read(&file) {
            assert_free_of_secrets(&bytes, &format!("{} {when}", file.display()));
        }
    }
}

#[track_caller]
fn assert_free_of_secrets(bytes: &[u8], what: &str) {
    for secret in [FROM_ENV, FROM_FILE, FROM_COMMAND].map(whole) {
        let found = bytes
            .windows(secret.len())
            .any(|window| window == secret.as_bytes());
        assert!(!found, "{what} holds a secret");
    }
}

/// A secret that can't be had stops the launch, and the message holds nothing of one.
fn a_secret_that_is_not_there_stops_the_launch(who: Who) {
    let mut world = world(who);
    let missing =
        "secrets:\n  - {name: gone, from: {env: NOT_SET}, domain: first.example.com, as: bearer}\n";
    world.rules(RULES, missing);
    let outcome = world.jail.run(&["true"]);
    assert_eq!(outcome.code(), 122, "{outcome:#?}");
    assert!(
        outcome.json["error"]["message"]
            .as_str()
            .is_some_and(|message| message.contains("NOT_SET")),
        "{outcome:#?}"
    );
}

for_each_user_in_a_world!(
    secrets_arrive_where_they_are_meant_to_and_nowhere_else,
    secrets_are_nowhere_in_the_box_nor_in_what_is_written,
    a_secret_that_is_not_there_stops_the_launch,
);

on_other_tiers_in_a_world!(
    secrets_arrive_where_they_are_meant_to_and_nowhere_else,
    secrets_are_nowhere_in_the_box_nor_in_what_is_written
);
