//! The whole policy matrix: every profile and two documents against every kind of question. A
//! changed cell is a changed policy, and must be looked at.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use belljar_manifest::{PROFILES, parse_capability, profile};
use belljar_policy::{
    Capability, Cover, Decision, EgressQuestion, FileOp, Host, Places, Reason, RequestQuestion,
    ToolQuestion, Upgrade, decide_env, decide_host, decide_tool,
};

const PATHS: &[&str] = &[
    "/etc/hosts",
    "/etc/passwd",
    "/etc/shadow",
    "/usr/bin/python3",
    "/srv/data",
    "/tmp/x",
    "/dev/shm/x",
    "/dev/null",
    "/proc/self/environ",
    "/sys/kernel",
    "/run/docker.sock",
    "/home/ann",
    "/home/ann/notes.txt",
    "/home/ann/.ssh/id_ed25519",
    "/home/ann/.aws/credentials",
    "/home/ann/.config/pip/pip.conf",
    "/home/ann/.bashrc",
    "/home/ann/Documents/tax.pdf",
    "/home/ann/other/.env",
    "/home/ann/other/secrets.yaml",
    "/home/ann/project",
    "/home/ann/project/src/main.rs",
    "/home/ann/project/.env",
    "/home/ann/project/secrets.yaml",
    "/home/ann/project/LICENSE",
    "/home/ann/project/.git/index",
    "/home/ann/project/.git/config",
    "/home/ann/project/.git/hooks/pre-commit",
    "/home/ann/project/.github/workflows/ci.yml",
    "/home/bob/notes.txt",
    "/root/.bashrc",
];

const VARIABLES: &[(&str, &str)] = &[
    ("PATH", "/usr/bin"),
    ("PATH", "https://u:p@host"),
    ("LC_ALL", "C"),
    ("EDITOR", "vi"),
    ("EDITOR", "postgres://u:p@host/db"),
    ("PYTHONPATH", "lib"),
    ("NODE_OPTIONS", "--require x"),
    ("OPENAI_API_KEY", "x"),
    ("LD_PRELOAD", "x.so"),
];

const HOSTS: &[(&str, u16)] = &[
    ("api.anthropic.com", 443),
    ("api.anthropic.com", 25),
    ("anthropic.com", 443),
    ("evil.example.com", 443),
    ("127.0.0.1", 8080),
];

const REQUESTS: &[(&str, &str, &str, Upgrade, Cover)] = &[
    (
        "api.anthropic.com",
        "POST",
        "/v1/messages",
        Upgrade::None,
        Cover::Tls,
    ),
    (
        "api.anthropic.com",
        "POST",
        "/v1/messages",
        Upgrade::None,
        Cover::Plain,
    ),
    (
        "api.anthropic.com",
        "DELETE",
        "/v1/files",
        Upgrade::None,
        Cover::Tls,
    ),
    (
        "api.anthropic.com",
        "GET",
        "/v1/messages",
        Upgrade::WebSocket,
        Cover::Tls,
    ),
    ("10.0.0.1", "GET", "/", Upgrade::None, Cover::Tls),
];

const TERMS: &str = "network_egress_rules:\n  - domain: api.anthropic.com\n    http: {methods: [GET, POST], paths: [/v1/*]}\n  \
     - domain: 10.0.0.0/8\n";

const TOOLS: &[&str] = &["fs:read", "shell:execute", "web:get"];

const RESOURCES: &[(&str, &str)] = &[
    ("files", "file:///work/a"),
    ("files", "file:///work/../etc/x"),
    ("files", "file:///work/keys/x"),
    ("shell", "mem:x"),
];

const TOOL_CALLS: &[(&str, &str)] = &[
    ("files:write_file", r#"{"path":"/work/a"}"#),
    ("files:write_file", r#"{"path":"/tmp/x"}"#),
    ("files:write_file", r#"{"path":"/etc/x"}"#),
    ("files:write_file", r#"{"path":"/work/../etc/x"}"#),
    ("files:write_file", r#"{"path":"/work/conf/x"}"#),
    ("files:delete", r#"{"path":"/etc/x"}"#),
    ("files:list", "{}"),
    ("files:li\u{200b}st", "{}"),
];

const MCP: &str = "extends: moderate\nmcp:\n  servers: {files: {url: 'http://127.0.0.1:9/'}}\n  blocked_tools: ['files:*:/etc/*']\n  rules:\n    \
     - {tool: 'files:write_*', arguments: [{at: /path, glob: '/work/**'}]}\n    \
     - {tool: 'files:*', verdict: hold, arguments: [{at: /path, glob: '/work/conf/**'}]}\n  \
     resources: {allowed: ['files:file:///work/**'], blocked: ['*:file:///work/keys/**']}\n  \
     prompts: {allowed: ['files:*review'], blocked: ['files:secret*']}\n  server_requests: {sampling: allow, elicitation: hold}\n";

const OWN: &str = include_str!("../../../examples/policies/capability.yaml");

const IMAGE: &str = "extends: moderate\nsandbox_tier: container\nimage: python\n";

const HOME: &str =
    "extends: moderate\nfilesystem_config: {home: private, readable_paths: [~/.aws]}\n";

const CLOSED: &str = "[sandbox]\nmode = 'Strict'\n[sandbox.network]\nmode = 'Filtered'\n\
     allowed_domains = ['*.anthropic.com', '*.example.com']\nblocked_domains = ['evil.example.com']\n\
     blocked_ports = [25]\n[sandbox.mcp]\nallowed_tools = ['fs:*', 'shell:execute']\n\
     blocked_tools = ['shell:execute']\n";

fn columns() -> Vec<(String, Capability)> {
    let parse = |file: &str, text: &str| {
        parse_capability(file, text.as_bytes()).unwrap_or_else(|e| panic!("{e}"))
    };
    let shipped = PROFILES.map(|name| (name.to_owned(), profile(name).unwrap()));
    let written = [
        ("defaults".to_owned(), parse("capability.yaml", "{}")),
        ("example".to_owned(), parse("capability.yaml", OWN)),
        ("sandbox.toml".to_owned(), parse("sandbox.toml", CLOSED)),
        ("terms".to_owned(), parse("capability.yaml", TERMS)),
        ("mcp".to_owned(), parse("capability.yaml", MCP)),
        ("image".to_owned(), parse("capability.yaml", IMAGE)),
        ("home".to_owned(), parse("capability.yaml", HOME)),
    ];
    shipped.into_iter().chain(written).collect()
}

fn places() -> Places {
    Places {
        home: PathBuf::from("/home/ann"),
        work: PathBuf::from("/home/ann/project"),
        homes: vec![PathBuf::from("/home"), PathBuf::from("/root")],
    }
}

fn decisions(capability: &Capability) -> Vec<(String, Decision)> {
    let table = capability.path_table(&places());
    let mut all = Vec::new();
    for path in PATHS {
        all.push((
            format!("read {path}"),
            table.decide(Path::new(path), FileOp::Read),
        ));
        all.push((
            format!("write {path}"),
            table.decide(Path::new(path), FileOp::Write),
        ));
    }
    for (name, value) in VARIABLES {
        let decision = decide_env(&capability.env, name, value.as_bytes());
        all.push((format!("env {name}={value}"), decision));
    }
    for (host, port) in HOSTS {
        all.push((
            format!("connect {host}:{port}"),
            decide_host(&capability.egress, host, *port),
        ));
    }
    for (host, method, path, upgrade, cover) in REQUESTS {
        let question = EgressQuestion {
            host: &Host::parse(host).unwrap(),
            port: 443,
            request: Some(RequestQuestion {
                method,
                path,
                upgrade: *upgrade,
                cover: *cover,
            }),
            addresses: &[],
        };
        let decision = capability.answer_egress(&question).decision;
        all.push((
            format!("{method} {host}{path} {upgrade:?} {cover:?}"),
            decision,
        ));
    }
    for tool in TOOLS {
        let question = ToolQuestion::named(tool).unwrap();
        all.push((
            format!("call {tool}"),
            decide_tool(&capability.tools, &question),
        ));
    }
    let tools = &capability.tools;
    for (tool, arguments) in TOOL_CALLS {
        let arguments = serde_json::from_str(arguments).unwrap();
        let question = ToolQuestion {
            arguments: &arguments,
            ..ToolQuestion::named(tool).unwrap()
        };
        all.push((
            format!("call {tool} {arguments}"),
            decide_tool(tools, &question),
        ));
    }
    for (server, uri) in RESOURCES {
        all.push((
            format!("read {server}:{uri}"),
            tools.decide_resource(server, uri),
        ));
    }
    for prompt in ["review", "secret_review", "other"] {
        all.push((
            format!("prompt files:{prompt}"),
            tools.decide_prompt("files", prompt),
        ));
    }
    for method in ["sampling/createMessage", "elicitation/create", "roots/list"] {
        all.push((
            format!("server asks {method}"),
            tools.decide_server_request(method),
        ));
    }
    all
}

#[test]
fn every_profile_decides_as_recorded() {
    let columns = columns();
    let names: Vec<_> = columns.iter().map(|(name, _)| name.as_str()).collect();
    let mut matrix = format!("question | {}\n", names.join(" | "));
    let answers: Vec<_> = columns
        .iter()
        .map(|(_, capability)| decisions(capability))
        .collect();
    for (row, (question, _)) in answers[0].iter().enumerate() {
        let codes: Vec<_> = answers
            .iter()
            .map(|column| column[row].1.reason().code())
            .collect();
        writeln!(matrix, "{question} | {}", codes.join(" | ")).unwrap();
    }
    insta::assert_snapshot!(matrix);
}

/// A reason nobody can see in the matrix is a kind of decision nobody looked at.
#[test]
fn every_reason_is_in_the_matrix() {
    let columns = columns();
    let mut seen: BTreeSet<Reason> = columns
        .iter()
        .flat_map(|(_, capability)| decisions(capability))
        .map(|(_, decision)| decision.reason())
        .collect();
    let strict = profile("strict").unwrap();
    let excess = strict
        .attenuate(&profile("moderate").unwrap(), &places())
        .unwrap_err();
    seen.extend(excess.iter().map(|excess| excess.decision().reason()));
    let missing: Vec<_> = Reason::ALL
        .iter()
        .filter(|reason| !seen.contains(reason))
        .collect();
    assert!(missing.is_empty(), "not covered: {missing:?}");
}

#[test]
fn each_profile_is_within_the_next() {
    let [strict, moderate, permissive] = PROFILES.map(|name| profile(name).unwrap());
    assert_eq!(moderate.attenuate(&strict, &places()), Ok(()));
    assert_eq!(permissive.attenuate(&moderate, &places()), Ok(()));
    assert!(moderate.attenuate(&permissive, &places()).is_err());
}

#[test]
fn what_a_child_asks_beyond_its_parent_is_named() {
    let parent = profile("moderate").unwrap();
    let child = parse_capability("child.yaml", OWN.as_bytes()).unwrap();
    let excess = parent.attenuate(&child, &places()).unwrap_err();
    let shown: Vec<_> = excess.iter().map(ToString::to_string).collect();
    insta::assert_snapshot!(shown.join("\n"));
}

#[test]
fn a_capability_has_a_stable_json_view() {
    let capability = parse_capability("capability.yaml", OWN.as_bytes()).unwrap();
    insta::assert_snapshot!(serde_json::to_string_pretty(&capability).unwrap());
    let table = capability.path_table(&places());
    let decision = table.decide(Path::new("/home/ann/.ssh"), FileOp::Read);
    insta::assert_snapshot!(serde_json::to_string_pretty(&decision).unwrap());
}
