//! The committed schemas are the generated ones, accept what Belljar accepts and refuse what it
//! refuses for its shape.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

use belljar_manifest::{
    PROFILES, parse_capability, parse_contract, parse_supervisor, profile_source, schema_agent,
    schema_capability, schema_contract, schema_sandbox_toml, schema_supervisor,
};
use jsonschema::Validator;
use serde_json::{Value, json};

/// Compares with the committed file; `BELLJAR_BLESS=1` writes it instead.
#[track_caller]
fn check_committed(name: &str, generated: &Value) {
    let path = repository().join("schemas").join(name);
    let text = format!("{generated:#}\n");
    if std::env::var_os("BELLJAR_BLESS").is_some_and(|value| value == "1") {
        std::fs::write(&path, &text).unwrap();
    }
    // Compared as values: the order of keys is not part of a schema.
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    let committed: Option<Value> = serde_json::from_str(&committed).ok();
    assert!(
        committed.as_ref() == Some(generated),
        "{name} is out of date; run the test with BELLJAR_BLESS=1"
    );
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn the_committed_schemas_are_the_generated_ones() {
    check_committed("capability.schema.json", &schema_capability());
    check_committed("sandbox.schema.json", &schema_sandbox_toml());
    check_committed("contract.schema.json", &schema_contract());
    check_committed("supervisor.schema.json", &schema_supervisor());
    check_committed("agent.schema.json", &schema_agent());
}

fn validator(schema: &Value) -> Validator {
    jsonschema::validator_for(schema).unwrap()
}

/// A document said in JSON, which is YAML too, so both sides read the very same text.
#[track_caller]
fn both(schema: &Validator, document: &Value) -> (bool, bool) {
    let text = document.to_string();
    (
        schema.is_valid(document),
        parse_capability("capability.json", text.as_bytes()).is_ok(),
    )
}

#[test]
fn schema_and_decoder_accept_the_same_documents() {
    let schema = validator(&schema_capability());
    for document in [
        json!({}),
        json!({"extends": "strict", "degraded": true, "sandbox_tier": "gvisor"}),
        json!({"resource_limits": {"max_memory_mb": 5.0, "max_cpu_seconds": 1, "max_tokens": null}}),
        json!({"network_egress_rules": [{"domain": "*.x.com", "ports": [1, 65535]}]}),
        json!({"filesystem_config": {"mode": "read_write", "writable_paths": [], "hidden_paths": ["**/x"]}}),
        json!({"permissions": ["read_env"], "env_allowlist": ["A"]}),
        json!({"env_allowlist": null}),
        json!({"ports": [80, {"box": 81}, {"box": 82, "host": 0, "address": "::1"}]}),
        json!({"llm": {"on_budget": "refuse", "endpoints": [{"domain": "a.b", "api": "gemini"}]}}),
        json!({"upstream_proxy": "env"}),
        json!({"upstream_proxy": {"url": "http://a:1", "from": {"file": "~/x"}, "resolve": "proxy"}}),
        json!({"network_egress_rules": [{"domain": "a.b"}], "secrets": [
            {"name": "a", "from": {"env": "A"}, "domain": "a.b", "as": "bearer", "env": "B"},
            {"name": "b", "from": {"command": ["x"]}, "domain": "a.b", "ports": [1], "as": {"header": "h"}},
            {"name": "c", "from": {"env": "C"}, "domain": "a.b"},
            {"name": "d", "from": {"store": "d.key"}, "domain": "a.b"},
            {"name": "e", "from": {"command": ["x"], "refresh": 86_400}, "domain": "a.b"},
        ]}),
        json!({"env_allowlist": ["x".repeat(4096), "\u{1f980}".repeat(4096)]}),
    ] {
        assert_eq!(both(&schema, &document), (true, true), "{document}");
    }
}

#[test]
fn schema_and_decoder_refuse_the_same_shapes() {
    let schema = validator(&schema_capability());
    for document in [
        json!([]),
        json!("strict"),
        json!({"extend": "strict"}),
        json!({"extends": "Strict"}),
        json!({"extends": null}),
        json!({"degraded": "true"}),
        json!({"resource_limits": null}),
        json!({"resource_limits": {"max_memory": 5}}),
        json!({"resource_limits": {"max_memory_mb": 0}}),
        json!({"resource_limits": {"max_memory_mb": -5}}),
        json!({"resource_limits": {"max_memory_mb": 16_777_217}}),
        json!({"resource_limits": {"max_memory_mb": 1.5}}),
        json!({"resource_limits": {"max_memory_mb": "5"}}),
        json!({"resource_limits": {"max_cpu_seconds": 0}}),
        json!({"resource_limits": {"max_cpu_seconds": 3_155_760_001_u64}}),
        json!({"resource_limits": {"max_open_files": 15}}),
        json!({"network_egress_rules": [{}]}),
        json!({"network_egress_rules": [{"domain": 5}]}),
        json!({"network_egress_rules": [{"domain": "x.com", "ports": [0]}]}),
        json!({"network_egress_rules": [{"domain": "x.com", "ports": 443}]}),
        json!({"network_egress_rules": [{"domain": "x.com", "rate_limit_per_min": 0}]}),
        json!({"filesystem_config": {"mode": "rw"}}),
        json!({"filesystem_config": {"readable_paths": [""]}}),
        json!({"filesystem_config": {"readable_paths": ["a\u{0}b"]}}),
        json!({"filesystem_config": {"readable_paths": ["a\nb"]}}),
        json!({"permissions": ["root"]}),
        json!({"ports": ["80"]}),
        json!({"ports": [0]}),
        json!({"ports": [{"host": 80}]}),
        json!({"ports": [{"box": 80, "host": 65_536}]}),
        json!({"ports": 80}),
        json!({"llm": {"on_budget": "wait"}}),
        json!({"llm": {"endpoints": [{"domain": "a.b"}]}}),
        json!({"llm": {"endpoints": [{"domain": "a.b", "api": "OpenAI"}]}}),
        json!({"upstream_proxy": null}),
        json!({"upstream_proxy": {"from": {"env": "A"}}}),
        json!({"upstream_proxy": {"url": "env", "from": {}}}),
        json!({"secrets": {}}),
        json!({"secrets": [{"name": "a", "from": {"env": "A", "refresh": 60}, "domain": "a.b"}]}),
        json!({"secrets": [{"name": "a", "from": {"refresh": 60}, "domain": "a.b"}]}),
        json!({"secrets": [{"name": "a", "from": {"command": ["x"], "env": "A", "refresh": 60}, "domain": "a.b"}]}),
        json!({"secrets": [{"name": "a", "from": {"command": ["x"], "refresh": 0}, "domain": "a.b"}]}),
        json!({"secrets": [{"name": "a", "from": {"command": ["x"], "refresh": 86_401}, "domain": "a.b"}]}),
        json!({"upstream_proxy": {"url": "http://a:1", "from": {"command": ["x"], "refresh": 60}}}),
        json!({"secrets": [{"name": "a", "from": {"env": "A"}, "domain": "a.b", "as": "Bearer"}]}),
        json!({"secrets": [{"name": "a", "from": {"env": "A"}, "domain": "a.b", "as": {}}]}),
        json!({"secrets": [{"name": "a", "from": {"env": "A", "file": "b"}, "domain": "a.b", "as": "bearer"}]}),
        json!({"secrets": [{"name": "a", "value": "x", "from": {"env": "A"}, "domain": "a.b", "as": "bearer"}]}),
        json!({"permissions": null}),
        json!({"env_allowlist": [1]}),
        json!({"env_allowlist": ["x".repeat(4097)]}),
    ] {
        assert_eq!(both(&schema, &document), (false, false), "{document}");
    }
}

#[test]
fn the_sandbox_schema_follows_its_decoder() {
    let schema = validator(&schema_sandbox_toml());
    for (text, valid) in [
        ("[sandbox]\nmode = 'Strict'", true),
        ("[sandbox]\nmode = 'sTRICT'", true),
        ("[sandbox]\nenabled = true", true),
        (
            "[sandbox.network]\nmode = 'filtered'\nallowed_domains = ['x.com']",
            true,
        ),
        ("[sandbox]\nmode = 'Strictly'", false),
        ("[sandbox]\nenabled = false", false),
        ("[sandbox.network]\nmode = 'Full'", false),
        ("[sandbox.network]\nmax_connections = 0", false),
        ("[sandbox.mcp]\nblocked = ['a:b']", false),
        ("[box]", false),
    ] {
        let table: toml::Table = toml::from_str(text).unwrap();
        let document = serde_json::to_value(table).unwrap();
        let decoded = parse_capability("sandbox.toml", text.as_bytes()).is_ok();
        assert_eq!(
            (schema.is_valid(&document), decoded),
            (valid, valid),
            "{text}"
        );
    }
}

#[test]
fn the_contract_schema_follows_its_decoder() {
    let schema = validator(&schema_contract());
    let with = |key: &str, value: Value| {
        let mut document = json!({"max_depth": 3, "max_replicas": 10});
        document[key] = value;
        document
    };
    let condition = json!({"name": "a", "when": "true"});
    let cases = [
        (json!({"max_depth": 0, "max_replicas": 1}), true),
        (with("cooldown_seconds", json!(0)), true),
        (with("cooldown_seconds", json!(0.25)), true),
        (with("expiration_seconds", json!(null)), true),
        (with("heartbeat_timeout_seconds", json!(30)), true),
        (with("on_parent_exit", json!("keep")), true),
        (
            with(
                "resources",
                json!({"cpu_limit": 0.5, "memory_limit_mb": 256}),
            ),
            true,
        ),
        (
            with(
                "budget",
                json!({"replicas": 0, "tokens": 0, "cost_usd": 0, "cpu_seconds": null}),
            ),
            true,
        ),
        (with("stop_conditions", json!([condition])), true),
        (with("signer", json!("hmac")), true),
        (json!({}), false),
        (json!({"max_depth": 3}), false),
        (json!({"max_replicas": 3}), false),
        (with("max_replicas", json!(0)), false),
        (with("max_replicas", json!(10_000_001)), false),
        (with("max_depth", json!(-1)), false),
        (with("max_depth", json!(1001)), false),
        (with("max_depth", json!(1.5)), false),
        (with("cooldown_seconds", json!(-0.1)), false),
        (with("cooldown_seconds", json!(3_155_760_001_u64)), false),
        (with("cooldown_seconds", json!(null)), false),
        (with("expiration_seconds", json!(0)), false),
        (with("heartbeat_timeout_seconds", json!(0)), false),
        (with("on_parent_exit", json!("leave")), false),
        (with("resources", json!({"cpu_limit": 0})), false),
        (with("resources", json!({"cpu": 1})), false),
        (with("budget", json!({"memory_mb": 0})), false),
        (with("budget", json!({"cost_usd": -1})), false),
        (with("budget", json!({"cost_usd": 1e10})), false),
        (with("stop_conditions", json!([{"name": "a"}])), false),
        (
            with(
                "stop_conditions",
                json!([{"name": "a", "when": "true", "on_trigger": "stop"}]),
            ),
            false,
        ),
        (
            with(
                "stop_conditions",
                json!([{"name": "a", "when": "x".repeat(1025)}]),
            ),
            false,
        ),
        (with("stop_conditions", json!(vec![condition; 33])), false),
        (with("signer", json!("rsa")), false),
        (with("max_replica", json!(3)), false),
    ];
    for (document, valid) in cases {
        let decoded = parse_contract("contract.json", document.to_string().as_bytes()).is_ok();
        let found = (schema.is_valid(&document), decoded);
        assert_eq!(found, (valid, valid), "{document}");
    }
}

/// YAML as an editor's schema check would see it; the shipped files use its JSON-like part only.
fn yaml_as_json(text: &str) -> Value {
    let mut events = saphyr_parser::Parser::new_from_str(text).map(|event| event.unwrap().0);
    events
        .find(|event| matches!(event, saphyr_parser::Event::DocumentStart(_)))
        .unwrap();
    let first = events.next().unwrap();
    json_of(first, &mut events)
}

fn json_of<'a>(
    event: saphyr_parser::Event<'a>,
    events: &mut impl Iterator<Item = saphyr_parser::Event<'a>>,
) -> Value {
    use saphyr_parser::Event;
    match event {
        Event::Scalar(text, saphyr_parser::ScalarStyle::Plain, ..) => {
            serde_json::from_str(&text).unwrap_or_else(|_| json!(text))
        }
        Event::Scalar(text, ..) => json!(text),
        Event::SequenceStart(..) => {
            let mut items = Vec::new();
            loop {
                match events.next().unwrap() {
                    Event::SequenceEnd => return Value::Array(items),
                    event => items.push(json_of(event, events)),
                }
            }
        }
        Event::MappingStart(..) => {
            let mut entries = serde_json::Map::new();
            loop {
                match events.next().unwrap() {
                    Event::MappingEnd => return Value::Object(entries),
                    Event::Scalar(key, ..) => {
                        let event = events.next().unwrap();
                        entries.insert(key.into_owned(), json_of(event, events));
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn shipped_documents_are_valid() {
    let schema = validator(&schema_capability());
    let seed = include_str!("../profiles/seed.yaml");
    let shipped = PROFILES.map(|name| profile_source(name).unwrap());
    for text in shipped.into_iter().chain([seed]) {
        let document = yaml_as_json(text);
        assert!(
            document.as_object().is_some_and(|keys| keys.len() >= 6),
            "{document}"
        );
        let errors: Vec<_> = schema
            .iter_errors(&document)
            .map(|e| e.to_string())
            .collect();
        assert_eq!(errors, Vec::<String>::new(), "{text}");
        // A shipped file that did not parse would silently grant nothing.
        parse_capability("capability.yaml", text.as_bytes()).unwrap_or_else(|e| panic!("{e}"));
    }
}

#[test]
fn examples_are_valid() {
    let (yaml, toml) = (
        validator(&schema_capability()),
        validator(&schema_sandbox_toml()),
    );
    let examples = policy_files(&repository().join("examples"));
    assert!(examples.len() >= 2, "no examples found: {examples:?}");
    for path in examples {
        let text = std::fs::read_to_string(&path).unwrap();
        parse_capability(&path.display().to_string(), text.as_bytes())
            .unwrap_or_else(|e| panic!("{e}"));
        let valid = if path
            .extension()
            .is_some_and(|extension| extension == "toml")
        {
            let table: toml::Table = toml::from_str(&text).unwrap();
            toml.is_valid(&serde_json::to_value(table).unwrap())
        } else {
            yaml.is_valid(&yaml_as_json(&text))
        };
        assert!(valid, "{}", path.display());
    }
}

#[test]
fn the_example_contract_is_valid() {
    let text = std::fs::read_to_string(repository().join("examples/contract.yaml")).unwrap();
    parse_contract("contract.yaml", text.as_bytes()).unwrap_or_else(|e| panic!("{e}"));
    assert!(validator(&schema_contract()).is_valid(&yaml_as_json(&text)));
}

#[test]
fn the_supervisor_schema_follows_its_decoder() {
    let schema = validator(&schema_supervisor());
    let both = |text: &str| {
        let table: toml::Table = toml::from_str(text).unwrap();
        let valid = schema.is_valid(&serde_json::to_value(table).unwrap());
        (
            valid,
            parse_supervisor("supervisor.toml", text.as_bytes()).is_ok(),
        )
    };
    let example = std::fs::read_to_string(repository().join("examples/supervisor.toml")).unwrap();
    assert_eq!(both(&example), (true, true));
    for bad in [
        "[supervisor]\nmax_agents = 0",
        "[supervisor]\nmax_agent = 1",
        "[supervisor]\nalerts = 1",
        "[supervisor.restart]\nfirst = 1",
        "[[agents]]\nname = \"a\"",
        "[[agents]]\nname = \"a\"\ncommand = [\"x\"]\nrestart = \"now\"",
    ] {
        assert_eq!(both(bad), (false, false), "{bad}");
    }
}

fn policy_files(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(directory) else {
        return Vec::new();
    };
    let mut files = Vec::new();
    for path in entries.map(|entry| entry.unwrap().path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() {
            files.extend(policy_files(&path));
        } else if name.ends_with("capability.yaml") || name.ends_with("sandbox.toml") {
            files.push(path);
        }
    }
    files
}

/// The blocks of a kind in a page of documentation.
fn blocks(page: &str, kind: &str) -> Vec<String> {
    let path = repository().join("docs").join(page);
    let text = std::fs::read_to_string(path).unwrap();
    let fence = format!("```{kind}\n");
    let blocks = text.split(fence.as_str()).skip(1);
    blocks
        .map(|rest| rest.split("```").next().unwrap().to_owned())
        .collect()
}

#[test]
fn documented_policies_are_valid() {
    let (yaml, toml) = (blocks("egress.md", "yaml"), blocks("egress.md", "toml"));
    assert!(yaml.len() >= 4 && !toml.is_empty());
    for (file, blocks) in [("capability.yaml", yaml), ("sandbox.toml", toml)] {
        for text in blocks {
            parse_capability(file, text.as_bytes()).unwrap_or_else(|e| panic!("{e}\n{text}"));
        }
    }
}
