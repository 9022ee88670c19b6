//! Secrets, published ports, metering and the upstream proxy: what files say, what it comes to, and what is refused.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use belljar_manifest::{Colour, parse_capability};
use belljar_policy::{
    Capability, EnvAllow, FileOp, LlmApi, OnBudget, Places, ProxyPlace, ProxyResolution,
    SecretPlace, decide_env,
};

const FULL: &str = r#"
network_egress_rules:
  - {domain: api.openai.com, ports: [443]}
  - {domain: "*.example.com"}
secrets:
  - name: openai
    from: {env: OPENAI_KEY_OF_THE_HOST}
    domain: api.openai.com
    as: bearer
    env: OPENAI_API_KEY
  - {name: files, from: {file: ~/.config/token}, domain: "*.example.com", ports: [443, 80], as: {header: X-Api-Key}}
  - {name: kept, from: {command: [pass, show, x]}, domain: a.example.com, as: bearer}
ports: [8080, {box: 9090, host: 0, address: "::1"}]
llm:
  on_budget: refuse
  endpoints:
    - {domain: llm.corp, ports: [8000], api: openai_compatible}
    - {domain: claude.corp, api: anthropic, provider: bedrock}
  prices: prices.tsv
upstream_proxy: {url: "http://proxy.corp:3128", from: {env: PROXY_LOGIN}, resolve: proxy}
"#;

fn yaml(text: &str) -> Capability {
    parse_capability("capability.yaml", text.as_bytes()).unwrap_or_else(|error| panic!("{error}"))
}

fn places() -> Places {
    Places {
        home: "/home/u".into(),
        work: "/home/u/w".into(),
        homes: vec!["/home".into()],
    }
}

#[track_caller]
fn check_full(capability: &Capability) {
    let shown: Vec<_> = capability
        .secrets
        .iter()
        .map(|rule| rule.value.to_string())
        .collect();
    assert_eq!(
        shown,
        [
            "openai from the variable OPENAI_KEY_OF_THE_HOST for api.openai.com as bearer, placeholder in OPENAI_API_KEY",
            "files from the file ~/.config/token for *.example.com ports [80, 443] as header x-api-key",
            "kept from the program pass for a.example.com as bearer",
        ]
    );
    let shown: Vec<_> = capability
        .ports
        .iter()
        .map(|rule| rule.value.to_string())
        .collect();
    assert_eq!(
        shown,
        [
            "port 8080 of the box at 127.0.0.1:8080",
            "port 9090 of the box at a free port of ::1",
        ]
    );
    assert_eq!(capability.llm.on_budget, OnBudget::Refuse);
    let [local, claude] = capability.llm.endpoints.as_slice() else {
        panic!("{:?}", capability.llm.endpoints);
    };
    assert_eq!(
        (local.value.api, local.value.provider.as_str()),
        (LlmApi::OpenAi, "openai_compatible")
    );
    assert_eq!(
        (claude.value.api, claude.value.provider.as_str()),
        (LlmApi::Anthropic, "bedrock")
    );
    let prices = capability.llm.prices.as_ref().unwrap();
    assert_eq!(prices.value.to_string(), "prices.tsv");
    let proxy = &capability.upstream_proxy.as_ref().unwrap().value;
    assert_eq!(proxy.place.to_string(), "http://proxy.corp:3128");
    assert_eq!(proxy.resolution, ProxyResolution::AtProxy);
}

#[test]
fn a_capability_file_says_all_of_it() {
    let capability = yaml(FULL);
    check_full(&capability);
    assert_eq!(
        capability.secrets[1].origin.to_string(),
        "capability.yaml:11"
    );
    assert_eq!(capability.ports[0].origin.to_string(), "capability.yaml:13");
}

#[test]
fn a_sandbox_file_says_all_of_it() {
    let text = r#"
[sandbox]
mode = "Permissive"
ports = [8080, {box = 9090, host = 0, address = "::1"}]
upstream_proxy = {url = "http://proxy.corp:3128", from = {env = "PROXY_LOGIN"}, resolve = "proxy"}

[sandbox.network]
mode = "Filtered"
allowed_domains = ["api.openai.com", "*.example.com"]
max_connections = 20

[[sandbox.secrets]]
name = "openai"
from = {env = "OPENAI_KEY_OF_THE_HOST"}
domain = "api.openai.com"
as = "bearer"
env = "OPENAI_API_KEY"

[[sandbox.secrets]]
name = "files"
from = {file = "~/.config/token"}
domain = "*.example.com"
ports = [443, 80]
as = {header = "X-Api-Key"}

[[sandbox.secrets]]
name = "kept"
from = {command = ["pass", "show", "x"]}
domain = "a.example.com"
as = "bearer"

[sandbox.llm]
on_budget = "refuse"
prices = "prices.tsv"
endpoints = [
    {domain = "llm.corp", ports = [8000], api = "openai_compatible"},
    {domain = "claude.corp", api = "anthropic", provider = "bedrock"},
]

[sandbox.resources]
max_tokens = 5
max_cost_usd = 0.5
"#;
    let capability =
        parse_capability("sandbox.toml", text.as_bytes()).unwrap_or_else(|error| panic!("{error}"));
    check_full(&capability);
    assert_eq!(capability.limits.tokens, Some(5));
    assert_eq!(capability.limits.cost_usd, Some(0.5));
    assert_eq!(capability.limits.connections, Some(20));
}

#[test]
fn what_is_not_said_is_not_there() {
    for text in ["{}", "extends: permissive"] {
        let capability = yaml(text);
        assert_eq!(capability.secrets, []);
        assert_eq!(capability.ports, []);
        assert_eq!(capability.llm, Default::default());
        assert_eq!(capability.llm.on_budget, OnBudget::Kill);
        assert_eq!(capability.upstream_proxy, None);
    }
    let plain = yaml("upstream_proxy: env").upstream_proxy.unwrap().value;
    assert_eq!(plain.place, ProxyPlace::Environment);
    assert_eq!(plain.resolution, ProxyResolution::Local);
    let beside = yaml("resource_limits: {on_budget: refuse, max_connections: 3}");
    assert_eq!(beside.llm.on_budget, OnBudget::Refuse);
    assert_eq!(beside.limits.connections, Some(3));
    let header = yaml(
        "network_egress_rules: [{domain: a.com}]\nsecrets: [{name: a, from: {env: A}, domain: a.com, as: {header: A}}]",
    );
    let place = &header.secrets[0].value.place;
    assert_eq!(*place, Some(SecretPlace::Header("a".to_owned())));
    let bare = yaml(
        "network_egress_rules: [{domain: a.com}]\nsecrets: [{name: a, from: {env: A}, domain: a.com}]",
    );
    assert_eq!(bare.secrets[0].value.place, None);
}

/// What holds a secret outside is not shown inside, whatever else the file opens.
#[test]
fn the_sources_of_secrets_are_withheld() {
    let opened = format!(
        "{FULL}\npermissions: [read_env]\nfilesystem_config: {{mode: read_write, readable_paths: [~/.config/token], writable_paths: [.]}}"
    );
    let listed = format!("{opened}\nenv_allowlist: [OPENAI_KEY_OF_THE_HOST, PROXY_LOGIN, EDITOR]");
    for text in [opened, listed] {
        let capability = yaml(&text);
        assert_ne!(capability.env.allow, EnvAllow::Base);
        let passes = |name| decide_env(&capability.env, name, b"plain").is_allow();
        assert!(!passes("OPENAI_KEY_OF_THE_HOST") && !passes("PROXY_LOGIN"));
        assert!(passes("EDITOR"));
        let table = capability.path_table(&places());
        let may = |path: &str, op| table.decide(path.as_ref(), op).is_allow();
        assert!(!may("/home/u/.config/token", FileOp::Read));
        // The agent must not write the prices it is charged by.
        assert!(may("/home/u/w/prices.tsv", FileOp::Read));
        assert!(!may("/home/u/w/prices.tsv", FileOp::Write));
        assert!(may("/home/u/w/other", FileOp::Write));
    }
}

/// What a user sees. `SECRET-VALUE` stands for a secret somebody wrote where its place belongs.
#[test]
fn mistakes_are_named_and_secrets_are_not_repeated() {
    let base = "network_egress_rules: [{domain: a.com, ports: [443]}, {domain: b.com}]\n";
    let secret = |body: &str| format!("{base}secrets:\n  - {{{body}}}\n");
    let ok = "name: x, from: {env: X}, domain: a.com, as: bearer";
    let cases = [
        ("a secret alone", format!("{base}secrets: [SECRET-VALUE]")),
        ("a secret as the list", format!("{base}secrets: SECRET-VALUE")),
        ("a value", secret("name: x, value: SECRET-VALUE, domain: a.com, as: bearer")),
        ("a value as its source", secret("name: x, from: SECRET-VALUE, domain: a.com, as: bearer")),
        ("a value as a variable", secret("name: x, from: {env: SECRET-VALUE}, domain: a.com, as: bearer")),
        ("a value as its place", secret("name: x, from: {env: X}, domain: a.com, as: SECRET-VALUE")),
        ("a value as a header", secret("name: x, from: {env: X}, domain: a.com, as: {header: \"a: SECRET-VALUE\"}")),
        ("a value as its name", secret("name: SECRET-VALUE and more, from: {env: X}, domain: a.com, as: bearer")),
        ("no source", secret("name: x, from: {}, domain: a.com, as: bearer")),
        ("two sources", secret("name: x, from: {env: X, file: y}, domain: a.com, as: bearer")),
        ("an unknown source", secret("name: x, from: {vault: y}, domain: a.com, as: bearer")),
        ("a stored secret that can't be one", secret("name: x, from: {store: SECRET-VALUE and more}, domain: a.com")),
        ("a file that is refreshed", secret("name: x, from: {file: ~/x, refresh: 60}, domain: a.com")),
        ("nothing that is refreshed", secret("name: x, from: {refresh: 60}, domain: a.com")),
        ("an empty command", secret("name: x, from: {command: []}, domain: a.com, as: bearer")),
        ("a directory", secret("name: x, from: {file: ~/}, domain: a.com, as: bearer")),
        ("no header", secret("name: x, from: {env: X}, domain: a.com, as: {}")),
        ("a header that routes", secret("name: x, from: {env: X}, domain: a.com, as: {header: Host}")),
        ("no domain", secret("name: x, from: {env: X}, as: bearer")),
        ("every host", secret("name: x, from: {env: X}, domain: \"*\", as: bearer")),
        ("a host no rule opens", secret("name: x, from: {env: X}, domain: c.com, as: bearer")),
        ("hosts wider than the rule", secret("name: x, from: {env: X}, domain: \"*.a.com\", as: bearer")),
        ("a port no rule opens", secret("name: x, from: {env: X}, domain: a.com, ports: [80], as: bearer")),
        ("a variable that programs need", secret(&format!("{ok}, env: PATH"))),
        ("two of one name", format!("{base}secrets: [{{{ok}}}, {{name: x, from: {{env: Y}}, domain: b.com, as: bearer}}]")),
        ("two in one place", format!("{base}secrets: [{{{ok}}}, {{name: y, from: {{env: Y}}, domain: a.com, as: {{header: Authorization}}}}]")),
        ("two placeholders", format!("{base}secrets: [{{{ok}, env: V}}, {{name: y, from: {{env: Y}}, domain: b.com, as: bearer, env: V}}]")),
        ("a proxy with a password", "upstream_proxy: http://user:SECRET-VALUE@proxy:3128".to_owned()),
        ("the same in a mapping", "upstream_proxy: {url: \"http://user:SECRET-VALUE@proxy:3128\"}".to_owned()),
        ("a password as its source", "upstream_proxy: {url: \"http://proxy:3128\", from: SECRET-VALUE}".to_owned()),
        ("a proxy over TLS", "upstream_proxy: https://proxy:3128".to_owned()),
        ("a proxy without a port", "upstream_proxy: http://proxy".to_owned()),
        ("a list of proxies", "upstream_proxy: [http://proxy:3128]".to_owned()),
        ("who resolves", "upstream_proxy: {url: env, resolve: dns}".to_owned()),
        ("a port twice", "ports:\n  - 8080\n  - {box: 1, host: 8080}".to_owned()),
        ("a port at all addresses", "ports: [8080, {box: 8080, address: 0.0.0.0}]".to_owned()),
        ("port 0", "ports: [0]".to_owned()),
        ("a port as text", "ports: [\"8080:80\"]".to_owned()),
        ("no port of the box", "ports: [{host: 8080}]".to_owned()),
        ("an address that is none", "ports: [{box: 80, address: localhost}]".to_owned()),
        ("what to do", "llm: {on_budget: stop}".to_owned()),
        ("on_budget one level too high", "on_budget: kill".to_owned()),
        ("on_budget twice", "llm: {on_budget: kill}\nresource_limits: {on_budget: refuse}".to_owned()),
        ("no api", "llm: {endpoints: [{domain: a.com}]}".to_owned()),
        ("an unknown api", "llm: {endpoints: [{domain: a.com, api: ollama}]}".to_owned()),
        ("an endpoint twice", "llm: {endpoints: [{domain: a.com, api: openai}, {domain: a.com, ports: [1], api: gemini}]}".to_owned()),
        ("a provider that is none", "llm: {endpoints: [{domain: a.com, api: openai, provider: \"a b\"}]}".to_owned()),
        ("every model", "llm: {endpoints: [{domain: \"*\", api: openai}]}".to_owned()),
        ("prices in a directory", "llm: {prices: /}".to_owned()),
    ];
    let mut report = String::new();
    for (case, text) in cases {
        let error = parse_capability("capability.yaml", text.as_bytes())
            .err()
            .unwrap_or_else(|| panic!("accepted: {case}"));
        assert!(error.line > 0, "{case}");
        let rendered = error.render(Colour::Plain);
        let everything = format!("{error:?} {error} {rendered}");
        assert!(!everything.contains("SECRET-VALUE"), "{case}: {everything}");
        assert!(rendered.contains("capability.yaml:"), "{rendered}");
        report.push_str(&format!("# {case}\n{error}\n"));
        if let Some(hint) = &error.hint {
            report.push_str(&format!("  hint: {hint}\n"));
        }
    }
    insta::assert_snapshot!(report);
}
