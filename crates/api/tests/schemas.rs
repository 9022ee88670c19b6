//! The committed OpenAPI documents are the generated ones, and say what the decoder does.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

use belljar_api::{
    Because, EngageRequest, KillRequest, ReplicateRequest, RevokeRequest, ShutdownRequest, Side,
    UsageReport, openapi, openapi_text,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Compares with the committed file; `BELLJAR_BLESS=1` writes it instead.
#[track_caller]
fn check_committed(name: &str, side: Side) {
    let path = repository().join("schemas").join(name);
    if std::env::var_os("BELLJAR_BLESS").is_some_and(|value| value == "1") {
        std::fs::write(&path, openapi_text(side)).unwrap();
    }
    // Compared as values: the order of keys is not part of a document.
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    let committed: Option<Value> = serde_json::from_str(&committed).ok();
    assert!(
        committed == Some(openapi(side)),
        "{name} is out of date; run the test with BELLJAR_BLESS=1"
    );
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn the_committed_documents_are_the_generated_ones() {
    check_committed("agent.openapi.json", Side::Agent);
    check_committed("operator.openapi.json", Side::Operator);
}

/// Asks schema and decoder about the same document.
#[track_caller]
fn check<T: DeserializeOwned>(side: Side, name: &str, good: &[Value], bad: &[Value]) {
    let mut schema = openapi(side);
    assert!(schema["components"]["schemas"][name].is_object(), "{name}");
    schema["$ref"] = json!(format!("#/components/schemas/{name}"));
    let schema = jsonschema::draft202012::options().build(&schema).unwrap();
    for (documents, expected) in [(good, true), (bad, false)] {
        for document in documents {
            let read = serde_json::from_value::<T>(document.clone());
            assert_eq!(read.is_ok(), expected, "{document}: {:?}", read.err());
            assert_eq!(
                schema.is_valid(document),
                expected,
                "the schema on {document}"
            );
        }
    }
}

#[test]
fn the_agents_schema_and_the_decoder_agree() {
    check::<ReplicateRequest>(
        Side::Agent,
        "ReplicateRequest",
        &[
            json!({"reason": "more hands"}),
            json!({"reason": "x", "command": ["sh", "-c", ""], "state": "a\nb\u{0}",
                   "capability": {"max_memory_mb": 1, "max_cpu_seconds": 1, "timeout_seconds": 1, "max_processes": 1},
                   "budget": {"replicas": 0, "cpu_ms": 1, "memory_mb": 1, "pids": 1, "tokens": 1, "micro_usd": 1}}),
            json!({"reason": "x", "command": null, "capability": {}, "budget": {}}),
        ],
        &[
            json!({}),
            json!({"reason": ""}),
            json!({"reason": "a\u{1b}[2J"}),
            json!({"reason": "x".repeat(513)}),
            json!({"reason": "x", "parent": "root"}),
            json!({"reason": "x", "depth": 0}),
            json!({"reason": "x", "command": []}),
            json!({"reason": "x", "command": "sh"}),
            json!({"reason": "x", "command": ["a\u{0}"]}),
            json!({"reason": "x", "command": vec!["a"; 257]}),
            json!({"reason": "x", "capability": {"max_memory_mb": 0}}),
            json!({"reason": "x", "capability": {"max_memory_mb": -1}}),
            json!({"reason": "x", "capability": {"network": true}}),
            json!({"reason": "x", "budget": {"tokens": -1}}),
            json!({"reason": "x", "budget": {"tokens": 1.5}}),
            json!({"reason": "x", "budget": {"dollars": 1}}),
            json!({"reason": "x", "budget": [1, 1, 1, 1, 1, 1]}),
            json!({"reason": "x", "capability": [1, 1, 1, 1]}),
            json!({"reason": "x", "state": "x".repeat(1024 * 1024 + 1)}),
        ],
    );
    check::<UsageReport>(
        Side::Agent,
        "UsageReport",
        &[json!({}), json!({"tokens_in": 1, "model": "m"})],
        &[json!({"tokens": 1}), json!({"model": ""})],
    );
    check::<ShutdownRequest>(
        Side::Agent,
        "ShutdownRequest",
        &[json!({"reason": "done"})],
        &[json!({}), json!({"reason": "x", "worker": "w"})],
    );
}

#[test]
fn the_operators_schema_and_the_decoder_agree() {
    check::<KillRequest>(
        Side::Operator,
        "KillRequest",
        &[json!({"reason": "x", "subtree": false})],
        &[json!({"reason": "x"}), json!({"reason": "x", "subtree": 1})],
    );
    check::<EngageRequest>(
        Side::Operator,
        "EngageRequest",
        &[json!({"reason": "x"})],
        &[
            json!({}),
            json!({"reason": ""}),
            json!({"reason": "x", "scope": "worker"}),
        ],
    );
    check::<RevokeRequest>(
        Side::Operator,
        "RevokeRequest",
        &[json!({"reason": "x", "worker_id": "w-1"})],
        &[json!({"reason": "x", "worker_id": ""})],
    );
    check::<Because>(
        Side::Operator,
        "Because",
        &[json!({"reason": "x"})],
        &[json!({})],
    );
}
