//! `belljar keys`: from the first key to one that nobody believes any more, and what becomes of the record.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;

use belljar_gate::LogKind;
use belljar_manifest::keys::SecretKey;
use serde_json::Value;
use support::{Jail, Record, Who, finish, for_each_user};

const OK: i32 = 0;
const UNSIGNED: i32 = 4;
const INTERNAL: i32 = 120;
const INVALID: i32 = 121;
const REFUSED: i32 = 122;

fn text(value: &Value) -> String {
    value.as_str().expect("a text").to_owned()
}

fn states(record: &Record) -> Vec<String> {
    let listed = record.json(&["keys", "list", "--output", "json"]);
    let keys = listed["keys"].as_array().expect("keys");
    keys.iter().map(|key| text(&key["state"])).collect()
}

#[test]
fn keys_live_and_end_on_record() {
    let record = Record::new();
    let first = record.json(&["keys", "init", "--output", "json"]);
    assert_eq!(first["changed"][0]["state"], "active");
    let again = record.json(&["keys", "init", "--output", "json"]);
    assert_eq!(again["changed"].as_array().map(Vec::len), Some(0));
    assert_eq!(again["signing"], first["signing"]);
    let second = record.json(&["keys", "rotate", "--output", "json"]);
    assert_ne!(second["signing"], first["signing"]);
    assert_eq!(states(&record), ["retired", "active"]);
    let third = record.json(&[
        "keys",
        "retire",
        &text(&second["signing"]),
        "--output",
        "json",
    ]);
    assert_eq!(states(&record), ["retired", "retired", "active"]);
    record.json(&[
        "keys",
        "compromise",
        &text(&first["signing"]),
        "--output",
        "json",
    ]);
    assert_eq!(states(&record), ["compromised", "retired", "active"]);
    let (code, answer) = record.verify(&[]);
    assert_eq!(code, OK, "{answer}");
    assert_eq!(answer["signed_by"], third["signing"]);
    let said = record.belljar(&["audit", "show"]).stdout();
    assert!(said.contains("by=user:"), "{said}");
    let changes: Vec<&str> = said
        .lines()
        .filter_map(|line| line.split("state=").nth(1)?.split(' ').next())
        .collect();
    assert_eq!(
        changes,
        [
            "active",
            "retired",
            "active",
            "retired",
            "active",
            "compromised"
        ]
    );
    let list = record.belljar(&["keys", "list"]).stdout();
    assert_eq!(list.lines().count(), 4, "{list}");
    assert_eq!(list.lines().filter(|line| line.ends_with("yes")).count(), 1);
}

#[test]
fn a_compromised_key_takes_no_log_with_it_and_vouches_for_none() {
    let record = Record::of(3);
    record.with_fleet();
    let key = text(&record.json(&["keys", "list", "--output", "json"])["signing"]);
    let checkpoint = |log: LogKind| record.log(log).join("checkpoint");
    let forged = LogKind::ALL.map(|log| fs::read(checkpoint(log)).expect("a checkpoint"));
    let changed = record.belljar(&["keys", "compromise", &key[..8]]);
    assert_eq!(changed.code(), OK, "{}", changed.stderr());
    assert!(changed.stderr().contains("--since"), "{}", changed.stderr());
    record.assert_holds();
    for (log, forged) in LogKind::ALL.into_iter().zip(forged) {
        let good = fs::read(checkpoint(log)).expect("a checkpoint");
        fs::write(checkpoint(log), forged).expect("what the thief signed");
        let (code, answer) = record.verify(&["--log", log.as_str()]);
        assert_eq!(code, UNSIGNED, "{answer}");
        let message = text(&answer["message"]);
        assert!(
            message.contains(&key) && message.contains("compromised"),
            "{message}"
        );
        fs::write(checkpoint(log), good).expect("put it back");
    }
    record.assert_holds();
    let again = record.belljar(&["keys", "retire", &key]);
    assert_eq!(again.code(), INVALID, "{}", again.stderr());
}

#[test]
fn a_change_that_is_not_on_record_says_so() {
    let record = Record::of(1);
    fs::remove_dir_all(record.log(LogKind::Runs)).expect("delete the log");
    fs::write(record.log(LogKind::Runs), "in the way").expect("a file in its place");
    let changed = record.belljar(&["keys", "rotate"]);
    assert_eq!(changed.code(), INTERNAL, "{}", changed.stderr());
    assert!(
        changed.stderr().contains("the keys are changed, but"),
        "{}",
        changed.stderr()
    );
    assert!(changed.stderr().contains("hint:"), "{}", changed.stderr());
    assert_eq!(states(&record), ["retired", "active"]);
    let changed = record.belljar(&["keys", "rotate", "--output", "json"]);
    assert_eq!(changed.code(), INTERNAL);
    let answer: Value = serde_json::from_slice(&changed.stdout).expect("an answer");
    assert_eq!(answer["errors"].as_array().map(Vec::len), Some(1));
}

#[test]
fn processes_that_begin_at_once_agree_on_one_key() {
    let record = Record::new();
    let children: Vec<_> = (0..6)
        .map(|_| {
            let mut command = record.command(&["keys", "init", "--output", "json"]);
            command.spawn().expect("start belljar")
        })
        .collect();
    let signing: Vec<String> = children
        .into_iter()
        .map(|child| {
            let finished = finish(child);
            assert_eq!(finished.code(), OK, "{}", finished.stderr());
            let answer: Value = serde_json::from_slice(&finished.stdout).expect("an answer");
            text(&answer["signing"])
        })
        .collect();
    assert!(signing.iter().all(|id| *id == signing[0]), "{signing:?}");
    assert_eq!(states(&record), ["active"]);
    record.assert_holds();
}

#[test]
fn a_key_that_others_can_read_is_refused_with_the_way_out() {
    let record = Record::of(1);
    let signing = text(&record.json(&["keys", "list", "--output", "json"])["signing"]);
    let file = record.state().join(format!("keys/{signing}.key"));
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("expose it");
    // What needs no secret goes on.
    assert_eq!(record.verify(&[]).0, OK);
    let changed = record.belljar(&["keys", "compromise", &signing]);
    assert_eq!(
        changed.code(),
        OK,
        "a fresh key takes over: {}",
        changed.stderr()
    );
    let signing = text(&record.json(&["keys", "list", "--output", "json"])["signing"]);
    let file = record.state().join(format!("keys/{signing}.key"));
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).expect("expose it");
    let changed = record.belljar(&["keys", "compromise", "zz"]);
    assert_eq!(changed.code(), INVALID);
    let started = record.gate().refused("a", "/x", "deny", "no");
    let error = started.expect_err("no secret, no record");
    assert!(error.hint().contains("chmod 600"), "{}", error.hint());
}

#[test]
fn the_secret_may_be_kept_elsewhere() {
    let record = Record::new();
    let file = record.beside("signing.key");
    let put = |seed: u8, mode: u32| {
        let secret = SecretKey::ed25519(&[seed; 32]);
        fs::write(&file, secret.to_text().as_bytes()).expect("a key file");
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("its mode");
        secret.id().to_string()
    };
    let with_file = |words: &[&str]| {
        let mut command = record.command(words);
        command.env("BELLJAR_KEY_FILE", &file);
        finish(command.spawn().expect("start belljar"))
    };
    let first = put(1, 0o600);
    let made = with_file(&["keys", "init"]);
    assert!(made.stdout().contains(&first), "{}", made.stderr());
    let same = with_file(&["keys", "rotate"]);
    assert_eq!(same.code(), INVALID, "{}", same.stderr());
    assert!(
        same.stderr().contains("first put another key"),
        "{}",
        same.stderr()
    );
    put(2, 0o604);
    assert_eq!(with_file(&["keys", "rotate"]).code(), REFUSED);
    let second = put(2, 0o600);
    assert_eq!(with_file(&["keys", "compromise", &first]).code(), OK);
    let (code, answer) = record.verify(&[]);
    assert_eq!((code, text(&answer["signed_by"])), (OK, second.clone()));
    let secrets = fs::read_dir(record.state().join("keys"))
        .expect("keys")
        .flatten();
    let secrets = secrets.filter(|entry| entry.path().extension().is_some_and(|e| e == "key"));
    assert_eq!(secrets.count(), 0, "no secret is in the state directory");
    let by_command = |command_line: &str| {
        let mut command = record.command(&["keys", "rotate"]);
        command.env("BELLJAR_KEY_COMMAND", command_line);
        finish(command.spawn().expect("start belljar"))
    };
    let failed = by_command("exit 7");
    assert_eq!(failed.code(), INVALID);
    assert!(
        failed.stderr().contains("BELLJAR_KEY_COMMAND"),
        "{}",
        failed.stderr()
    );
    let third = put(3, 0o600);
    let changed = by_command(&format!("cat '{}'", file.display()));
    assert!(changed.stdout().contains(&third), "{}", changed.stderr());
    record.assert_holds();
}

#[test]
fn hmac_keys_are_listed_and_changed_too() {
    let record = Record::of(1);
    let made = record.json(&["keys", "rotate", "--algorithm", "hmac", "--output", "json"]);
    let id = text(&made["signing"]);
    let listed = record.json(&["keys", "list", "--output", "json"]);
    assert_eq!(listed["keys"].as_array().map(Vec::len), Some(2));
    assert_eq!(listed["keys"][1]["algorithm"], "hmac");
    assert!(listed["keys"][1]["public"].is_null());
    assert_ne!(
        text(&listed["signing"]),
        id,
        "logs are signed by an Ed25519 key"
    );
    assert_eq!(record.belljar(&["keys", "compromise", &id]).code(), OK);
    assert_eq!(states(&record), ["active", "compromised", "active"]);
    record.assert_holds();
}

/// Neither the variables that lead to the signing key nor its file are in the box, whatever the policy asks for.
fn a_box_does_not_see_where_the_key_is(who: Who) {
    let secret = SecretKey::ed25519(&[5; 32]).to_text();
    let with_key = || {
        let jail = Jail::new(who);
        let file = jail.home.join("signing.key");
        jail.put(&file, &secret);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("its mode");
        (jail, file.to_string_lossy().into_owned())
    };
    let (jail, path) = with_key();
    let readable = jail.run(&["/bin/cat", &path]);
    assert!(
        readable.stdout().contains(secret.trim()),
        "a file like any other"
    );
    let (mut jail, path) = with_key();
    jail.variable("BELLJAR_KEY_FILE", &path)
        .variable("BELLJAR_KEY_COMMAND", "cat signing.key")
        .variable("HARMLESS", "yes")
        .policy(
            "extends: moderate\nenv_allowlist: [BELLJAR_KEY_FILE, BELLJAR_KEY_COMMAND, HARMLESS]\n",
        );
    let seen = jail.run(&["/usr/bin/env"]);
    assert!(seen.stdout().contains("HARMLESS=yes"), "{}", seen.stdout());
    assert!(!seen.stdout().contains("BELLJAR_KEY"), "{}", seen.stdout());
    let read = jail.run(&["/bin/cat", &path]);
    assert!(!read.stdout().contains(secret.trim()), "{}", read.stdout());
}

for_each_user!(a_box_does_not_see_where_the_key_is);
