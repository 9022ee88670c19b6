//! `belljar check egress`: what it says, in words and in JSON, and that it says it without a run and without the network.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::{Value, json};

const ALLOWED: i32 = 0;
const DENIED: i32 = 1;
const INVALID: i32 = 121;

const POLICY: &str = "\
network_egress_rules:
  - {domain: api.openai.com, ports: [443]}
  - {domain: api.example.com, http: {methods: [GET], paths: [/v1/*]}}
  - {domain: localhost, ports: [8000]}
  - {domain: 10.0.0.0/8}
  - {domain: bad.example.com, effect: deny}
  - {domain: plain.example.com}
secrets:
  - {name: openai, from: {env: HOST_KEY}, domain: api.openai.com, as: bearer, env: OPENAI_API_KEY}
llm: {on_budget: refuse}
";

struct Asker {
    _directory: tempfile::TempDir,
    policy: PathBuf,
}

impl Asker {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let policy = directory.path().join("capability.yaml");
        std::fs::write(&policy, POLICY).expect("write the policy");
        Self {
            _directory: directory,
            policy,
        }
    }

    fn ask(&self, words: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_belljar"));
        command.args(["check", "egress"]).args(words);
        command.arg("--config").arg(&self.policy);
        // A secret's value is nothing that asking needs.
        command.env("HOST_KEY", "the-value-of-the-secret");
        command.output().expect("start belljar")
    }

    #[track_caller]
    fn check(&self, words: &[&str], code: i32, lines: &[&str]) {
        let output = self.ask(words);
        let said = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        assert_eq!(output.status.code(), Some(code), "{words:?}: {said}");
        for line in lines {
            assert!(said.contains(line), "{words:?} lacks {line:?}: {said}");
        }
        assert!(!said.contains("the-value-of-the-secret"), "{said}");
    }

    #[track_caller]
    fn json(&self, words: &[&str]) -> Value {
        let mut words = words.to_vec();
        words.extend(["--output", "json"]);
        let output = self.ask(&words);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }
}

#[test]
fn the_answer_names_the_rule_and_what_happens_on_the_way() {
    let asker = Asker::new();
    asker.check(
        &["https://api.openai.com/v1/models"],
        ALLOWED,
        &[
            "allowed  GET https://api.openai.com:443/v1/models",
            "allow_egress_rule",
            "capability.yaml:2",
            "yes: a secret goes there; calls to models are metered",
            "openai is added as bearer",
            "100000 tokens and 0.1 USD, then calls are refused; metered as openai",
        ],
    );
    asker.check(
        &["plain.example.com:5432"],
        ALLOWED,
        &["capability.yaml:7", "no; TLS is passed on untouched"],
    );
    asker.check(
        &["https://api.example.com/v1/x"],
        ALLOWED,
        &["yes: the rule asks about requests"],
    );
}

#[test]
fn a_refusal_says_what_to_write() {
    let asker = Asker::new();
    asker.check(
        &["evil.example.org"],
        DENIED,
        &[
            "deny_no_egress_rule",
            "network_egress_rules: [{domain: \"evil.example.org\", ports: [443]}]",
        ],
    );
    asker.check(
        &["bad.example.com"],
        DENIED,
        &["deny_egress_blocked", "capability.yaml:6"],
    );
    asker.check(
        &["https://api.example.com/v1/x", "--method", "POST"],
        DENIED,
        &[
            "deny_http_request",
            "capability.yaml:3",
            "http: {methods: [POST], paths: [\"/v1/x\"]}",
        ],
    );
    asker.check(
        &["wss://api.example.com/v1/x"],
        DENIED,
        &["deny_websocket", "websocket: allow"],
    );
    asker.check(
        &["http://api.openai.com:443/"],
        DENIED,
        &["deny_not_tls", "takes TLS only"],
    );
    // An address needs no looking up.
    asker.check(
        &["10.1.2.3:80"],
        DENIED,
        &["deny_private_address", "allow_private: true"],
    );
    asker.check(&["012.1.2.3:80"], DENIED, &["deny_private_address"]);
}

#[test]
fn names_are_looked_up_when_asked_to() {
    let asker = Asker::new();
    // In the hosts file of every system, so that nobody outside is asked.
    asker.check(
        &["localhost:8000", "--resolve"],
        ALLOWED,
        &["127.0.0.1 (the host itself) may be connected to"],
    );
    let answer = asker.json(&["localhost:8000", "--resolve"]);
    let own = json!({"address": "127.0.0.1", "class": "loopback", "reached": true});
    let found = answer["addresses"].as_array().expect("addresses");
    assert!(found.contains(&own), "{answer}");
    assert_eq!(asker.json(&["localhost:8000"])["addresses"], json!([]));
}

#[test]
fn the_answer_in_json_holds_everything() {
    let asker = Asker::new();
    let mut answer = asker.json(&["https://api.openai.com/v1/chat?x=y", "--method", "POST"]);
    let file = asker.policy.display().to_string();
    let origin = answer["origin"].take();
    assert_eq!(origin, json!(format!("{file}:2")));
    assert_eq!(
        answer,
        json!({
            "decision": "allow",
            "reason": "allow_egress_rule",
            "origin": null,
            "hint": null,
            "host": "api.openai.com",
            "port": 443,
            "method": "POST",
            "path": "/v1/chat",
            "terms": "api.openai.com ports [443] at 60/min",
            "inspected": ["secret", "llm"],
            "secrets": [{"name": "openai", "as": "bearer", "origin": format!("{file}:9")}],
            "budget": {
                "domain": "api.openai.com",
                "ports": [],
                "api": "openai",
                "provider": "openai",
                "max_tokens": 100_000,
                "max_cost_usd": 0.1,
                "on_budget": "refuse",
            },
            "upstream_proxy": null,
            "addresses": [],
        })
    );
}

#[test]
fn what_is_no_target_is_one_clear_error() {
    let asker = Asker::new();
    for (words, said) in [
        (&["https://user:pass-word@a.com/"][..], "user name"),
        (&["a b"], "not a name"),
        (&["a.com", "--method", "GET"], "write https://"),
        (&["https://a.com", "--method", "get"], "not a method"),
        (&["postgres://db.com/x"], "no port"),
        (&["a.com:99999"], "not a port"),
    ] {
        asker.check(words, INVALID, &["error:", "hint:", said]);
        let output = asker.ask(words);
        assert!(!String::from_utf8_lossy(&output.stderr).contains("pass-word"));
    }
}
