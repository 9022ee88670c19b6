//! `belljar token`, against a server that runs.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use belljar_api::{Done, OperatorCall, Problem, Status};
use belljar_web::{Backend, Caller, Feed, Settings, TokenFile, Web};
use serde_json::Value;
use tempfile::TempDir;

const INVALID: i32 = 121;
const REFUSED: i32 = 122;

fn belljar(state: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_belljar"))
        .args(arguments)
        .env("BELLJAR_STATE_DIR", state)
        .output()
        .unwrap()
}

fn stdout(output: &Output) -> String {
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn json(state: &Path, arguments: &[&str]) -> Value {
    let arguments = [arguments, &["--output", "json"]].concat();
    serde_json::from_str(&stdout(&belljar(state, &arguments))).unwrap()
}

/// Shuts down nothing, and says so.
struct Quiet;

impl Backend for Quiet {
    fn answer(&self, _: &Caller, call: OperatorCall) {
        match call {
            OperatorCall::ShutDown(asked) => asked.responder.reply(&Done::DONE),
            other => other.refuse(
                Status::NOT_FOUND,
                &Problem::new("nothing", "there is nothing"),
            ),
        }
    }

    fn subscribe(&self, _: Feed) {}

    fn prometheus(&self) -> String {
        String::new()
    }

    fn ready(&self) -> Result<(), String> {
        Ok(())
    }
}

fn state() -> TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn a_token_is_made_used_listed_and_revoked_while_the_server_runs() {
    let state = state();
    let settings = Settings {
        bind: "127.0.0.1:0".parse().unwrap(),
        ..Settings::default()
    };
    let server = Web::start(settings, TokenFile::of(state.path()), Quiet).unwrap();
    let made = belljar(
        state.path(),
        &[
            "token",
            "create",
            "--role",
            "admin",
            "--name",
            "ada's laptop",
        ],
    );
    let text = stdout(&made);
    let token = text.trim_end();
    assert!(
        token.starts_with("bj_") && token.len() == 46,
        "the token alone is printed"
    );
    let said = String::from_utf8(made.stderr).unwrap();
    assert!(
        said.contains("not shown again") && !said.contains(token),
        "{said}"
    );
    let status = || {
        let ran = Command::new("curl")
            .args([
                "--silent",
                "--noproxy",
                "*",
                "--output",
                "/dev/null",
                "--write-out",
                "%{http_code}",
            ])
            .args(["-H", &format!("Authorization: Bearer {token}")])
            .args([
                "-H",
                "Content-Type: application/json",
                "-d",
                r#"{"reason":"x"}"#,
            ])
            .arg(format!("{}/v1/shutdown", server.url()))
            .output()
            .unwrap();
        String::from_utf8(ran.stdout).unwrap()
    };
    assert_eq!(status(), "200");
    let listed = json(state.path(), &["token", "list"]);
    let one = &listed["tokens"][0];
    assert_eq!(one["name"], "ada's laptop");
    assert_eq!(
        (&one["role"], &one["state"]),
        (&"admin".into(), &"good".into())
    );
    let good_for = one["expires_ms"].as_u64().unwrap() - one["created_ms"].as_u64().unwrap();
    assert_eq!(good_for, 90 * 24 * 60 * 60 * 1000);
    assert!(!listed.to_string().contains(token), "the secret is listed");
    let id = one["id"].as_str().unwrap();
    let revoked = stdout(&belljar(state.path(), &["token", "revoke", &id[..8]]));
    assert_eq!(revoked, format!("{id}  revoked  ada's laptop\n"));
    assert_eq!(status(), "401");
    let table = stdout(&belljar(state.path(), &["token", "list"]));
    let line = table.lines().nth(1).unwrap();
    assert!(line.starts_with(id) && line.contains("revoked"), "{table}");
    // The server writes down when it was last used, at the latest when it ends.
    drop(server);
    let listed = json(state.path(), &["token", "list"]);
    assert!(listed["tokens"][0]["last_used_ms"].is_u64(), "{listed}");
}

#[test]
fn what_is_asked_wrongly_is_told_with_a_hint() {
    let state = state();
    assert_eq!(
        belljar(state.path(), &["token", "create"]).status.code(),
        Some(2)
    );
    assert_eq!(
        belljar(state.path(), &["token", "create", "--role", "root"])
            .status
            .code(),
        Some(2)
    );
    let both = [
        "token",
        "create",
        "--role",
        "viewer",
        "--expires-days",
        "3",
        "--never-expires",
    ];
    assert_eq!(belljar(state.path(), &both).status.code(), Some(2));
    let unknown = belljar(state.path(), &["token", "revoke", "abc"]);
    assert_eq!(unknown.status.code(), Some(INVALID));
    let said = String::from_utf8(unknown.stderr).unwrap();
    assert!(said.contains("belljar token list"), "{said}");
    let name = belljar(
        state.path(),
        &[
            "token",
            "create",
            "--role",
            "viewer",
            "--name",
            "a\u{1b}[2J",
        ],
    );
    assert_eq!(name.status.code(), Some(INVALID));
}

#[test]
fn a_token_without_an_end_is_asked_for_by_name() {
    let state = state();
    let made = json(
        state.path(),
        &["token", "create", "--role", "viewer", "--never-expires"],
    );
    assert_eq!(
        (&made["expires_ms"], &made["name"]),
        (&Value::Null, &"viewer".into())
    );
    let made = json(
        state.path(),
        &["token", "create", "--role", "viewer", "--expires-days", "1"],
    );
    assert!(made["expires_ms"].is_u64());
    assert!(made["token"].as_str().unwrap().starts_with("bj_"));
}

#[test]
fn tokens_are_kept_from_others_and_a_file_that_is_not_is_refused() {
    let state = state();
    stdout(&belljar(
        state.path(),
        &["token", "create", "--role", "viewer"],
    ));
    let file = TokenFile::of(state.path()).path();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&file), mode(file.parent().unwrap())), (0o600, 0o700));
    fs::set_permissions(&file, fs::Permissions::from_mode(0o662)).unwrap();
    let refused = belljar(state.path(), &["token", "list"]);
    assert_eq!(refused.status.code(), Some(REFUSED));
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("chmod 600"), "{said}");
}

#[test]
fn who_was_let_in_and_who_is_no_longer_is_on_record() {
    let state = TempDir::new().unwrap();
    let made = json(
        state.path(),
        &[
            "token",
            "create",
            "--role",
            "operator",
            "--name",
            "night shift",
        ],
    );
    let (id, text) = (
        made["id"].as_str().unwrap(),
        made["token"].as_str().unwrap(),
    );
    json(state.path(), &["token", "revoke", id]);
    let shown = stdout(&belljar(state.path(), &["audit", "show"]));
    for word in [
        "token_created",
        "token_revoked",
        "night shift",
        "operator",
        id,
    ] {
        assert!(shown.contains(word), "no {word} in {shown}");
    }
    assert!(!shown.contains(text), "a token is a secret");
    stdout(&belljar(state.path(), &["audit", "verify"]));
}

#[test]
fn a_token_that_cannot_be_recorded_lets_nobody_in() {
    let state = TempDir::new().unwrap();
    json(state.path(), &["token", "create", "--role", "viewer"]);
    fs::rename(state.path().join("ledger"), state.path().join("aside")).unwrap();
    fs::write(state.path().join("ledger"), "in the way").unwrap();
    let refused = belljar(state.path(), &["token", "create", "--role", "viewer"]);
    assert_eq!(refused.status.code(), Some(INVALID));
    assert!(refused.stdout.is_empty(), "a token was shown");
    let tokens = json(state.path(), &["token", "list"]);
    let states: Vec<_> = tokens["tokens"].as_array().unwrap().iter().collect();
    assert_eq!(states[1]["state"], "revoked", "{tokens}");
}
