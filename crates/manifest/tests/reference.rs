//! `docs/configuration.md` is what the schemas say, for people.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write as _;
use std::path::Path;

use belljar_manifest::{
    schema_agent, schema_capability, schema_contract, schema_sandbox_toml, schema_supervisor,
};
use serde_json::Value;

const HEAD: &str = "# Configuration

<!-- Made from the schemas: BELLJAR_BLESS=1 cargo nextest run -p belljar-manifest --test reference -->

Every key of every file that Belljar reads. An unknown key is an error that names the nearest known one. The same as JSON schemas, for editors: `schemas/`, and
`belljar schema KIND`. What `supervisor.alerts` and `supervisor.monitor` hold is in [alerts.md](alerts.md).
";

#[test]
fn the_page_is_what_the_schemas_say() {
    let mut page = HEAD.to_owned();
    for (file, schema) in [
        ("capability.yaml", schema_capability()),
        ("sandbox.toml", schema_sandbox_toml()),
        ("contract.yaml", schema_contract()),
        ("supervisor.toml", schema_supervisor()),
        ("agent.toml", schema_agent()),
    ] {
        let about = schema["description"].as_str().unwrap_or_default();
        let _ = write!(
            page,
            "\n## {file}\n\n{about}\n\n| key | value | |\n|---|---|---|\n"
        );
        rows(&schema, &schema, "", &mut page);
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    if std::env::var_os("BELLJAR_BLESS").is_some_and(|value| value == "1") {
        std::fs::write(&path, &page).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == page,
        "docs/configuration.md is out of date; run the test with BELLJAR_BLESS=1"
    );
}

/// A row for each key, those of a table behind its own.
fn rows(root: &Value, schema: &Value, above: &str, page: &mut String) {
    let Some(keys) = resolved(root, schema)["properties"].as_object() else {
        return;
    };
    for (key, value) in keys {
        let name = match above {
            "" => key.clone(),
            above => format!("{above}.{key}"),
        };
        let value = resolved(root, value);
        let about = value["description"].as_str().unwrap_or_default();
        let about = about.replace('|', "\\|").replace('\n', " ");
        let _ = writeln!(page, "| `{name}` | {} | {about} |", kind(root, value));
        rows(root, value, &name, page);
        if value.get("items").is_some() {
            rows(root, &value["items"], &format!("{name}[]"), page);
        }
    }
}

/// Where a schema only points elsewhere, what is there.
fn resolved<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    let place = schema["$ref"]
        .as_str()
        .and_then(|path| path.strip_prefix('#'));
    place.and_then(|path| root.pointer(path)).unwrap_or(schema)
}

fn kind(root: &Value, schema: &Value) -> String {
    if let Some(words) = schema["enum"].as_array() {
        let words = words.iter().map(|word| match word.as_str() {
            Some(word) => format!("`{word}`"),
            None => word.to_string(),
        });
        return words.collect::<Vec<_>>().join(" or ");
    }
    for several in ["anyOf", "oneOf"] {
        if let Some(cases) = schema[several].as_array() {
            let cases = cases.iter().map(|case| kind(root, resolved(root, case)));
            return cases.collect::<Vec<_>>().join(" or ");
        }
    }
    let bounds = match (bound(schema, "minimum"), bound(schema, "maximum")) {
        (Some(least), Some(most)) => format!(", {least} to {most}"),
        (Some(least), None) => format!(", at least {least}"),
        (None, Some(most)) => format!(", at most {most}"),
        (None, None) => String::new(),
    };
    let name = match schema["type"].as_str() {
        Some("object") => "a table",
        Some("array") => {
            return format!("a list: {}", kind(root, resolved(root, &schema["items"])));
        }
        Some("string") => "text",
        Some("integer") => "a whole number",
        Some("number") => "a number",
        Some("boolean") => "`true` or `false`",
        Some("null") => "nothing",
        _ => "",
    };
    format!("{name}{bounds}")
}

/// A bound, unless it is only the largest number there is.
fn bound(schema: &Value, which: &str) -> Option<String> {
    let number = schema[which].as_f64()?;
    (number < 1e15).then(|| schema[which].to_string())
}
