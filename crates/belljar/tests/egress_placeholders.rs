//! A secret takes the place of its placeholder wherever a client put it, for its own host alone; nobody has to know in which header
//! a provider reads its keys.

mod support;

use std::fs;
use std::process::Stdio;

use serde_json::Value;
use support::{
    Outcome, Who, World, assert_recorded, codes, eventually, for_each_user_in_a_world,
    on_other_tiers_in_a_world,
};

/// Each in two halves, as no test of secrets should hold what it looks for.
const KEYS: [(&str, [&str; 2]); 4] = [
    ("REAL_OPENAI", ["sk-open-0ff1ce", "-4b7d20e9"]),
    ("REAL_ANTHROPIC", ["sk-ant-c0ffee", "-91ae55d3"]),
    ("REAL_GEMINI", ["AIza-5eed", "-d03c77aa16"]),
    ("REAL_FIRST", ["tok-feedbeef", "-66a1b0f4"]),
];

const RULES: &[&str] = &[
    "{domain: api.openai.com, ports: [443]}",
    "{domain: api.anthropic.com, ports: [443]}",
    "{domain: generativelanguage.googleapis.com, ports: [443]}",
    "{domain: first.example.com, ports: [443, 80]}",
    "{domain: allowed.example.com, ports: [443], http: {}}",
];

const SECRETS: &str = "secrets:
  - {name: openai, from: {env: REAL_OPENAI}, domain: api.openai.com, env: OPENAI_API_KEY}
  - {name: anthropic, from: {env: REAL_ANTHROPIC}, domain: api.anthropic.com, env: ANTHROPIC_API_KEY}
  - {name: gemini, from: {env: REAL_GEMINI}, domain: generativelanguage.googleapis.com, env: GEMINI_API_KEY}
  - {name: first, from: {env: REAL_FIRST}, domain: first.example.com, env: FIRST_KEY}
";

fn key(name: &str) -> String {
    let found = KEYS.iter().find(|(known, _)| *known == name);
    found.expect("a key").1.concat()
}

fn world(who: Who) -> World {
    let mut world = World::new(who);
    world.rules(RULES, SECRETS);
    for (name, halves) in KEYS {
        world.jail.variable(name, &halves.concat());
    }
    world
}

#[track_caller]
fn shell(world: &World, script: &str) -> (Outcome, Vec<Value>) {
    let before = world.seen().len();
    let outcome = world.shell(script);
    outcome.assert_exit(0);
    (outcome, world.seen_since(before, "http"))
}

/// The providers' own libraries put their keys where they like.
fn libraries_need_no_header_in_the_policy(who: Who) {
    let world = world(who);
    let outcome = world.python(
        "sdk.py",
        &[
            "chat", "say-7", "1", "messages", "say-7", "1", "gemini", "say-7", "1",
        ],
    );
    outcome.assert_exit(0);
    let seen = world.seen_since(0, "http");
    let got = |host: &str| {
        let of_host = |entry: &&Value| entry["host"] == host;
        let request = seen.iter().find(of_host);
        let request = request.unwrap_or_else(|| panic!("{host}: {outcome:#?}"));
        request["headers"].to_string()
    };
    for (host, name) in [
        ("api.openai.com", "REAL_OPENAI"),
        ("api.anthropic.com", "REAL_ANTHROPIC"),
        ("generativelanguage.googleapis.com", "REAL_GEMINI"),
    ] {
        let headers = got(host);
        assert!(headers.contains(&key(name)), "{host}: {headers}");
        assert!(!headers.contains("belljar-placeholder"), "{headers}");
    }
}

fn a_secret_is_put_in_wherever_a_client_put_its_placeholder(who: Who) {
    let world = world(who);
    let (outcome, seen) = shell(
        &world,
        "ask() { curl --silent --show-error --fail \"$@\"; }
         ask --user \"git:$FIRST_KEY\" https://first.example.com/basic
         ask --user \"$FIRST_KEY:\" https://first.example.com/name
         ask --header \"Authorization: Bearer $FIRST_KEY\" --header \"X-Api-Key: $FIRST_KEY\" https://first.example.com/two
         ask --http1.1 --header \"PRIVATE-TOKEN: $FIRST_KEY\" https://first.example.com/one
         ask \"https://first.example.com/query?alt=sse&key=$FIRST_KEY\"",
    );
    let real = key("REAL_FIRST");
    let basic = |pair: String| format!("Basic {}", data_encoding::BASE64.encode(pair.as_bytes()));
    let header = |index: usize, name: &str| seen[index]["headers"][name].as_str().unwrap_or("");
    assert_eq!(seen.len(), 5, "{outcome:#?}");
    assert_eq!(header(0, "authorization"), basic(format!("git:{real}")));
    assert_eq!(header(1, "authorization"), basic(format!("{real}:")));
    assert_eq!(header(2, "authorization"), format!("Bearer {real}"));
    assert_eq!(header(2, "x-api-key"), real);
    assert_eq!(header(3, "private-token"), real);
    assert_eq!(seen[4]["path"], format!("/query?alt=sse&key={real}"));
    assert_eq!(codes(&outcome), [""; 0]);
    // The host tells its address, and so the key in it, to whoever asks.
    let said = outcome.json.to_string();
    assert!(!said.contains(&real), "{said}");
}

/// What a host is sent to keep could be fetched by others; what another host is sent is none of the secret's.
fn a_placeholder_elsewhere_stays_one_and_is_told(who: Who) {
    let world = world(who);
    let (outcome, seen) = shell(
        &world,
        "ask() { curl --silent --show-error --fail \"$@\"; }
         ask --data \"text=$FIRST_KEY\" https://first.example.com/body
         ask \"https://first.example.com/$FIRST_KEY?q=$FIRST_KEY\"
         ask --header \"X-Amz-Meta-Note: $FIRST_KEY\" --header \"Content-Disposition: $FIRST_KEY\" https://first.example.com/kept",
    );
    assert_eq!(seen.len(), 3, "{outcome:#?}");
    assert_eq!(codes(&outcome), [""; 0]);
    let told = format!("{seen:?}");
    assert!(!told.contains(&key("REAL_FIRST")), "{told}");

    let (outcome, seen) = shell(
        &world,
        "curl --silent --fail --header \"X-Api-Key: $FIRST_KEY\" --user \"x:$FIRST_KEY\" \"https://allowed.example.com/?key=$FIRST_KEY\"
         curl --silent --fail --header \"X-Api-Key: $FIRST_KEY\" http://first.example.com/clear",
    );
    assert_eq!(seen.len(), 2, "{outcome:#?}");
    let told = format!("{seen:?}");
    assert!(!told.contains(&key("REAL_FIRST")), "{told}");
    assert!(told.contains("belljar-placeholder-first"), "{told}");
    assert_recorded(&outcome, "another host", &["deny_secret_host"]);
    let refusals = outcome.json["network"]["refusals"].to_string();
    let line = "- {name: first-2, from: {env: REAL_FIRST}, domain: \\\"allowed.example.com\\\"}";
    assert!(refusals.contains(line), "{refusals}");
    assert!(refusals.contains("without TLS"), "{refusals}");
}

/// The line that is told does what it says: one placeholder is good for each host that gets what is behind it.
fn a_secret_for_another_host_goes_by_the_same_placeholder(who: Who) {
    let mut world = world(who);
    let more = "  - {name: first-2, from: {env: REAL_FIRST}, domain: \"allowed.example.com\"}\n";
    world.rules(RULES, &format!("{SECRETS}{more}"));
    let (outcome, seen) = shell(
        &world,
        "curl --silent --fail --header \"X-Api-Key: $FIRST_KEY\" https://allowed.example.com/",
    );
    assert_eq!(seen[0]["headers"]["x-api-key"], key("REAL_FIRST"));
    assert_eq!(codes(&outcome), [""; 0]);
}

/// A token that is good for less long than the box runs.
fn a_secret_is_refreshed_while_the_box_runs(who: Who) {
    let mut world = World::new(who);
    let place = world.jail.base.join("tokens");
    let (token, failed) = (place.join("token"), place.join("failed"));
    let [first, second] = ["tok-1-5eaf00d", "tok-2-cab1e77"].map(|front| format!("{front}-9b20"));
    world.jail.put(&token, &first);
    let script = format!(
        "cat {} && exit; echo >>{}; exit 1",
        token.display(),
        failed.display()
    );
    world.rules(
        &["{domain: first.example.com, ports: [443], rate_limit_per_min: 60000}"],
        &format!(
            "secrets:\n  - {{name: first, from: {{command: [sh, -c, \"{script}\"], refresh: 1}}, domain: first.example.com, env: FIRST_KEY}}\n"
        ),
    );
    let mut command = world.jail.json_command(&[
        "/bin/sh",
        "-euc",
        "until [ -e done ]; do curl --silent --fail --header \"X-Api-Key: $FIRST_KEY\" https://first.example.com/; done",
    ]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().expect("start the box");
    let last = || {
        let seen = world.seen_since(0, "http");
        let last = seen.last().map(|seen| seen["headers"]["x-api-key"].clone());
        last.unwrap_or_default()
    };
    eventually("the first token arrives", || {
        (last() == first).then_some(())
    });
    world.jail.put(&token, &second);
    eventually("the second token arrives", || {
        (last() == second).then_some(())
    });
    fs::remove_file(&token).expect("no more tokens");
    // The second time it is on record that it failed the first time.
    eventually("the command has failed", || {
        let failures = fs::read_to_string(&failed).unwrap_or_default();
        (failures.lines().count() >= 2).then_some(())
    });
    let before = world.seen().len();
    eventually("it goes on with what it has", || {
        (world.seen().len() > before).then_some(())
    });
    let done = world.jail.work.join("done");
    world.jail.put(&done, "");
    let outcome = world.jail.conclude(child);
    outcome.assert_exit(0);
    assert_eq!(last(), second);
    assert_eq!(codes(&outcome), ["deny_secret_refresh"]);
    let said = outcome.json.to_string();
    assert!(said.contains("its last value is used on"), "{said}");
    assert!(!said.contains(&first) && !said.contains(&second), "{said}");
    // One that can't be had at the start is no start.
    let outcome = world.jail.run(&["true"]);
    assert_eq!(outcome.code(), 122, "{outcome:#?}");
}

for_each_user_in_a_world!(
    a_secret_is_refreshed_while_the_box_runs,
    libraries_need_no_header_in_the_policy,
    a_secret_is_put_in_wherever_a_client_put_its_placeholder,
    a_placeholder_elsewhere_stays_one_and_is_told,
    a_secret_for_another_host_goes_by_the_same_placeholder,
);

on_other_tiers_in_a_world!(a_secret_is_put_in_wherever_a_client_put_its_placeholder);
