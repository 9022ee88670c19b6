//! The committed OpenAPI document and the table of roles are the generated ones. `BELLJAR_BLESS=1` writes them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use belljar_api::{Asker, OPERATOR_ROUTES};
use belljar_web::{Access, Role, WEB_ROUTES, openapi};
use serde_json::Value;
use support::TestServer;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn is_blessed() -> bool {
    std::env::var_os("BELLJAR_BLESS").is_some_and(|value| value == "1")
}

#[test]
fn the_committed_document_is_the_generated_and_the_served_one() {
    let path = repository().join("schemas/web.openapi.json");
    if is_blessed() {
        fs::write(&path, format!("{:#}\n", openapi())).unwrap();
    }
    let committed: Option<Value> =
        serde_json::from_slice(&fs::read(&path).unwrap_or_default()).ok();
    assert!(
        committed == Some(openapi()),
        "schemas/web.openapi.json is out of date; run the test with BELLJAR_BLESS=1"
    );
    let server = TestServer::start();
    let (_, viewer) = server.token(Role::Viewer);
    let served = server.ask("GET /v1/openapi.json", Some(&viewer), None);
    assert_eq!(served.json(), openapi());
}

#[test]
fn every_route_is_in_the_document_and_every_reference_leads_somewhere() {
    let document = openapi();
    let routes = OPERATOR_ROUTES
        .iter()
        .map(|route| (route.method, route.path))
        .chain(WEB_ROUTES.iter().map(|route| (route.method, route.path)));
    for (method, path) in routes {
        let operation = &document["paths"][path][method.as_str().to_ascii_lowercase()];
        assert!(operation["responses"].is_object(), "{method} {path}");
    }
    let mut references = Vec::new();
    collect(&document, &mut references);
    assert!(!references.is_empty());
    for reference in references {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{reference}");
    }
}

fn collect(value: &Value, references: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            references.extend(
                fields
                    .get("$ref")
                    .and_then(Value::as_str)
                    .map(str::to_owned),
            );
            fields.values().for_each(|value| collect(value, references));
        }
        Value::Array(items) => items.iter().for_each(|value| collect(value, references)),
        _ => {}
    }
}

/// The table of docs/api.md.
fn table() -> String {
    let who = |asker: Asker| format!("{asker:?}").to_ascii_lowercase();
    let mut table = String::from("| request | least role | what it does |\n|---|---|---|\n");
    for route in WEB_ROUTES {
        let role = match route.access {
            Access::Open => "none".to_owned(),
            Access::Role(asker) => who(asker),
        };
        table.push_str(&format!(
            "| `{} {}` | {role} | {} |\n",
            route.method, route.path, route.doc
        ));
    }
    for route in OPERATOR_ROUTES {
        let doc = route.doc.trim();
        table.push_str(&format!(
            "| `{} {}` | {} | {doc} |\n",
            route.method,
            route.path,
            who(route.asker)
        ));
    }
    table
}

#[test]
fn the_table_of_roles_is_the_one_that_is_enforced() {
    const BEGIN: &str =
        "<!-- routes: begin (written by BELLJAR_BLESS=1 cargo test -p belljar-web) -->\n";
    const END: &str = "<!-- routes: end -->\n";
    let path = repository().join("docs/api.md");
    let text = fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("the beginning of the table");
    let (committed, after) = rest.split_once(END).expect("the end of the table");
    if is_blessed() {
        fs::write(&path, format!("{before}{BEGIN}{}{END}{after}", table())).unwrap();
        return;
    }
    assert!(
        committed == table(),
        "docs/api.md is out of date; run the test with BELLJAR_BLESS=1"
    );
}
