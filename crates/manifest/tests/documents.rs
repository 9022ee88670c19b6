//! Documents that are right: what they come to.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use belljar_manifest::{
    PROFILES, parse_capability, profile, profile_source, read_agent_file, read_capability_file,
};
use belljar_policy::{
    Capability, Degraded, EgressEffect, EnvAllow, FsMode, Permission, Source, Tier, Workspace,
};

const MIB: u64 = 1024 * 1024;

#[track_caller]
fn yaml(text: &str) -> Capability {
    parse_capability("capability.yaml", text.as_bytes()).unwrap_or_else(|e| panic!("{e}"))
}

#[track_caller]
fn toml(text: &str) -> Capability {
    parse_capability("sandbox.toml", text.as_bytes()).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn an_empty_mapping_has_the_seeds_defaults() {
    let capability = yaml("{}");
    assert_eq!(&*capability.name, "capability.yaml");
    assert_eq!(capability.tier, Tier::Native);
    assert_eq!(capability.degraded, Degraded::Refuse);
    assert!(capability.egress.is_empty() && capability.permissions.is_empty());
    assert_eq!(capability.filesystem.mode, FsMode::ReadOnly);
    assert_eq!(capability.env.allow, EnvAllow::Base);
    let limits = &capability.limits;
    assert_eq!(limits.memory_bytes, Some(512 * MIB));
    assert_eq!(limits.cpu_time, Some(Duration::from_secs(30)));
    assert_eq!(limits.wall_time, Some(Duration::from_secs(60)));
    assert_eq!(limits.cost_usd, Some(0.10));
    assert_eq!(limits.tokens, Some(100_000));
    assert_eq!(
        (limits.processes, limits.open_files),
        (Some(256), Some(1024))
    );
    assert_eq!(
        (
            limits.disk_bytes,
            limits.file_size_bytes,
            limits.cpu_percent
        ),
        (None, None, None)
    );
}

#[test]
fn profiles_are_what_they_say() {
    let [strict, moderate, permissive] = PROFILES.map(|name| profile(name).unwrap());
    assert_eq!(strict.filesystem.mode, FsMode::None);
    assert_eq!(strict.filesystem.readable.len(), 1);
    assert_eq!(strict.limits.memory_bytes, Some(512 * MIB));
    assert_eq!(strict.limits.file_size_bytes, Some(64 * MIB));
    assert_eq!(moderate.filesystem.mode, FsMode::ReadWrite);
    assert_eq!(moderate.limits.memory_bytes, Some(4096 * MIB));
    assert_eq!(
        (moderate.limits.cpu_time, moderate.limits.wall_time),
        (None, None)
    );
    assert!(moderate.permissions.contains(&Permission::SpawnSubprocess));
    assert_eq!(moderate.env.allow, EnvAllow::Base);
    assert_eq!(permissive.env.allow, EnvAllow::All);
    assert_eq!(permissive.limits.processes, Some(4096));
    assert!(profile("loose").is_none() && profile_source("seed").is_none());
}

#[test]
fn a_rule_knows_its_line_and_who_wrote_it() {
    let strict = profile("strict").unwrap();
    let origin = &strict.filesystem.readable[0].origin;
    let line = usize::try_from(origin.line).unwrap();
    assert_eq!(
        (&*origin.file, origin.source),
        ("profile strict", Source::Profile)
    );
    assert!(
        profile_source("strict")
            .unwrap()
            .lines()
            .nth(line - 1)
            .unwrap()
            .contains("\".\"")
    );

    let own = yaml("extends: strict\nfilesystem_config:\n  hidden_paths:\n    - /data\n");
    assert_eq!(
        own.filesystem.hidden[0].origin.to_string(),
        "capability.yaml:4"
    );
    assert_eq!(own.filesystem.hidden[0].origin.column, 7);
    assert_eq!(own.filesystem.hidden[0].origin.source, Source::Document);
    assert_eq!(own.filesystem.readable[0].origin.source, Source::Profile);
}

#[test]
fn the_seeds_example_reads() {
    let capability = yaml(
        "sandbox_tier: seccomp\nresource_limits:\n  max_memory_mb: 256\n  max_cpu_seconds: 10.0\n  \
         max_cost_usd: 0.05\n  max_tokens: 50000\nnetwork_egress_rules:\n  - domain: \
         \"api.openai.com\"\n    ports: [443]\n    rate_limit_per_min: 30\nfilesystem_config:\n  \
         mode: read_only\npermissions:\n  - read_env\nenv_allowlist:\n  - PATH\n  - PYTHONPATH\n",
    );
    assert_eq!(capability.limits.memory_bytes, Some(256 * MIB));
    assert_eq!(capability.limits.wall_time, Some(Duration::from_secs(60)));
    let rule = &capability.egress[0].value;
    assert_eq!(rule.domain.to_string(), "api.openai.com");
    assert_eq!(
        (rule.ports.as_slice(), rule.rate_limit_per_min),
        ([443].as_slice(), 30)
    );
    let EnvAllow::Listed(names) = &capability.env.allow else {
        panic!("no list")
    };
    assert_eq!(names.keys().collect::<Vec<_>>(), ["PATH", "PYTHONPATH"]);
    assert_eq!(names["PYTHONPATH"].to_string(), "capability.yaml:17");
}

#[test]
fn extending_replaces_grants_and_adds_to_what_is_withheld() {
    let capability = yaml(
        "extends: moderate\ndegraded: true\nresource_limits: {max_memory_mb: null, max_processes: 2}\n\
         filesystem_config: {workspace: overlay, readable_paths: [/a], hidden_paths: ['**/x.key'], \
         protected_paths: [docs]}\npermissions: []\n",
    );
    assert_eq!(capability.filesystem.mode, FsMode::ReadWrite);
    assert_eq!(capability.filesystem.workspace, Workspace::Overlay);
    assert_eq!(capability.degraded, Degraded::Accept);
    assert_eq!(capability.limits.memory_bytes, None);
    assert_eq!(capability.limits.processes, Some(2));
    assert_eq!(capability.limits.open_files, Some(4096));
    assert!(capability.permissions.is_empty());
    assert_eq!(capability.filesystem.protected.len(), 1);
}

#[test]
fn the_environment_follows_list_and_permission() {
    let env = |text: &str| yaml(text).env.allow;
    assert_eq!(env("permissions: [read_env]"), EnvAllow::All);
    assert_eq!(env("extends: permissive"), EnvAllow::All);
    assert_eq!(env("extends: permissive\npermissions: []"), EnvAllow::Base);
    assert_eq!(
        env("permissions: [read_env]\nenv_allowlist: null"),
        EnvAllow::All
    );
    assert!(matches!(env("env_allowlist: [FOO]"), EnvAllow::Listed(names) if names.len() == 1));
    assert!(
        matches!(env("permissions: [read_env]\nenv_allowlist: []"), EnvAllow::Listed(names) if names.is_empty())
    );
}

#[test]
fn a_limit_above_zero_stays_above_zero() {
    let tiny = yaml("resource_limits: {max_cpu_seconds: 1e-300, max_wall_seconds: 3155760000}");
    assert_eq!(tiny.limits.cpu_time, Some(Duration::from_nanos(1)));
    assert_eq!(
        tiny.limits.wall_time,
        Some(Duration::from_secs(3_155_760_000))
    );
}

#[test]
fn the_seeds_sandbox_file_reads() {
    let capability = toml(
        "[sandbox]\nenabled = true\nmode = \"moderate\"\n[sandbox.filesystem]\nroot = \"/sandbox\"\n\
         write_paths = [\"/sandbox/workspace\"]\nmax_file_size_mb = 10\n[sandbox.network]\n\
         mode = \"Filtered\"\nallowed_domains = [\"api.anthropic.com\"]\nblocked_domains = [\"x.com\"]\n\
         allowed_ports = [443, 80, 443]\nblocked_ports = [25]\nrate_limit_per_minute = 100\n\
         max_connections = 5\n[sandbox.resources]\nmax_memory_mb = 512\nmax_cpu_percent = 50.0\n\
         timeout_seconds = 1.5\n[sandbox.mcp]\nblocked_tools = [\"shell:execute\"]\n",
    );
    let workdir = capability.workdir.as_ref().unwrap();
    assert_eq!(
        (workdir.value.to_string().as_str(), workdir.origin.line),
        ("/sandbox", 5)
    );
    assert_eq!(capability.filesystem.mode, FsMode::ReadWrite);
    assert_eq!(
        capability.filesystem.writable[0].origin.to_string(),
        "sandbox.toml:6"
    );
    assert_eq!(capability.limits.file_size_bytes, Some(10 * MIB));
    assert_eq!(capability.limits.connections, Some(5));
    assert_eq!(
        capability.limits.wall_time,
        Some(Duration::from_millis(1500))
    );
    assert_eq!(capability.limits.processes, Some(1024));
    let rules: Vec<_> = capability
        .egress
        .iter()
        .map(|rule| rule.value.to_string())
        .collect();
    assert_eq!(
        rules,
        [
            "api.anthropic.com ports [80, 443] at 100/min",
            "x.com blocked",
            "* ports [25] blocked"
        ]
    );
    assert_eq!(capability.egress[1].value.effect, EgressEffect::Deny);
    assert_eq!(
        capability.tools.blocked[0].value.to_string(),
        "shell:execute"
    );
    assert!(capability.tools.allowed.is_none());
}

#[test]
fn a_sandbox_file_may_close_what_its_profile_opens() {
    assert_eq!(toml("[sandbox]").filesystem.mode, FsMode::ReadWrite);
    assert_eq!(
        toml("[sandbox]\nmode = 'STRICT'").filesystem.mode,
        FsMode::None
    );
    let shut = toml("[sandbox.filesystem]\nwrite_paths = []");
    assert_eq!(shut.filesystem.mode, FsMode::ReadOnly);
    let strict = toml("[sandbox]\nmode = 'Strict'\n[sandbox.filesystem]\nwrite_paths = []");
    assert_eq!(strict.filesystem.mode, FsMode::None);
    let none = toml("[sandbox.mcp]\nallowed_tools = []");
    assert_eq!(none.tools.allowed.map(|tools| tools.len()), Some(0));
}

#[test]
fn the_same_document_reads_the_same_in_every_dress() {
    let plain = yaml("extends: strict\nresource_limits:\n  max_tokens: 5\n");
    for (name, text) in [
        (
            "capability.yaml",
            "\u{feff}extends: strict\nresource_limits:\n  max_tokens: 5\n",
        ),
        (
            "capability.yaml",
            "extends: strict\r\nresource_limits:\r\n  max_tokens: 5\r\n",
        ),
        (
            "capability.yaml",
            "---\nextends: strict\nresource_limits: {max_tokens: 5.0}\n...\n",
        ),
        (
            "capability.yaml",
            "# a comment\n\nextends: 'strict'\nresource_limits: {max_tokens: 0x5}",
        ),
        (
            "capability.json",
            "{\"extends\": \"strict\", \"resource_limits\": {\"max_tokens\": 5}}",
        ),
        (
            "capability.json",
            "{\n\t\"extends\": \"strict\",\n\t\"resource_limits\": {\n\t\t\"max_tokens\": 5\n\t}\n}\n",
        ),
        (
            "capability",
            "# c\nextends: strict\nresource_limits:\n  max_tokens: 5\n",
        ),
    ] {
        let parsed = parse_capability(name, text.as_bytes()).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(
            Capability {
                name: plain.name.clone(),
                ..parsed
            },
            plain,
            "{text:?}"
        );
    }
    let looked = parse_capability("policy", b"# c\n[sandbox]\nmode = 'Strict'").unwrap();
    assert_eq!(looked.filesystem.mode, FsMode::None);
}

#[test]
fn what_only_a_supervisor_can_keep_is_not_for_one_agent() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agent.toml");
    let agent = "[agent]\nname = 'a'\ncommand = ['x']\n";
    std::fs::write(&path, agent).unwrap();
    assert_eq!(read_agent_file(&path).unwrap().name, "a");
    for more in ["count = 3", "project = '.'"] {
        std::fs::write(&path, format!("{agent}{more}\n")).unwrap();
        let error = read_agent_file(&path).unwrap_err().to_string();
        assert!(
            error.contains("is for agents of a supervisor.toml"),
            "{error}"
        );
    }
}

#[test]
fn files_are_read_from_the_disk_under_the_bound() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("capability.yaml");
    std::fs::write(&path, "extends: strict").unwrap();
    assert_eq!(
        read_capability_file(&path).unwrap().filesystem.mode,
        FsMode::None
    );
    std::fs::write(&path, "#".repeat(2 * 1024 * 1024)).unwrap();
    let error = read_capability_file(&path).unwrap_err().to_string();
    assert!(
        error.ends_with(": the file is larger than 1 MiB"),
        "{error}"
    );
    let missing = read_capability_file(&directory.path().join("none")).unwrap_err();
    assert!(
        missing
            .to_string()
            .starts_with("cannot read the policy file "),
        "{missing}"
    );
}

#[test]
fn an_egress_rule_says_its_terms() {
    let text = "network_egress_rules:\n  - domain: api.example.com\n    ports: [443]\n    max_connections: 4\n    \
                max_mb: 2\n    http:\n      methods: [GET, POST]\n      paths: [\"/v1/*\"]\n      websocket: allow\n  \
                - domain: 10.0.0.0/8\n    allow_private: true\n  - domain: localhost\n    ports: [5432]\n  \
                - domain: bad.example.com\n    effect: deny\n";
    let capability = yaml(text);
    let rules: Vec<_> = capability.egress.iter().map(|rule| &rule.value).collect();
    let shown: Vec<_> = rules.iter().map(|rule| rule.to_string()).collect();
    assert_eq!(
        shown,
        [
            "api.example.com ports [443] at 60/min, 4 connections, 2097152 bytes, GET|POST /v1/*, websocket",
            "10.0.0.0/8 at 60/min, private addresses too",
            "localhost ports [5432] at 60/min, the host itself",
            "bad.example.com blocked",
        ]
    );
}

#[test]
fn terms_that_make_no_sense_are_refused() {
    let check = |item: &str, expect: &str| {
        let text = format!("network_egress_rules: [{{domain: x.com, {item}}}]\n");
        let error = parse_capability("capability.yaml", text.as_bytes()).unwrap_err();
        assert!(error.to_string().contains(expect), "{item}: {error}");
    };
    check("effect: deny, max_mb: 1", "a rule that blocks");
    check("effect: maybe", "effect");
    check("http: {methods: [get]}", "not a method");
    check("http: {paths: [v1]}", "begins with `/`");
    check("http: {paths: [\"/a/../b\"]}", "written plainly");
    check("max_connections: 0", "max_connections");
}

#[test]
fn rules_about_tools_say_their_line_in_both_formats() {
    let yaml = yaml(
        "extends: moderate\nmcp:\n  servers:\n    files: {command: [node, server.js, /work], capability: files.yaml, env: {A: b}}\n    \
         web: {url: 'http://127.0.0.1:9000/mcp'}\n  blocked_tools: ['filesystem:write:/etc/*']\n  rules:\n    - tool: 'files:write_*'\n      \
         verdict: hold\n      arguments:\n        - {at: /path, glob: '/work/**'}\n        - {at: /n, minimum: 1, maximum: 5}\n      \
         rate_limit_per_minute: 10\n      redact: [/content]\n  server_requests: {elicitation: hold}\n  hold_seconds: 5\n  on_new_tool: allow\n",
    );
    let toml = toml(
        "[sandbox.mcp]\nblocked_tools = ['filesystem:write:/etc/*']\nhold_seconds = 5\non_new_tool = 'allow'\n\
         [sandbox.mcp.servers.files]\ncommand = ['node', 'server.js', '/work']\ncapability = 'files.yaml'\nenv = {A = 'b'}\n\
         [sandbox.mcp.servers.web]\nurl = 'http://127.0.0.1:9000/mcp'\n\
         [[sandbox.mcp.rules]]\ntool = 'files:write_*'\nverdict = 'hold'\nrate_limit_per_minute = 10\nredact = ['/content']\n\
         arguments = [{at = '/path', glob = '/work/**'}, {at = '/n', minimum = 1, maximum = 5}]\n\
         [sandbox.mcp.server_requests]\nelicitation = 'hold'\n",
    );
    let shown = |rules: &belljar_policy::ToolRules| {
        let rules = rules.rules.iter().map(|rule| rule.value.to_string());
        rules.collect::<Vec<_>>()
    };
    let want = "hold files:write_* where /path within /work/** and /n from 1 to 5 at 10/min";
    for capability in [&yaml, &toml] {
        let tools = &capability.tools;
        assert_eq!(shown(tools), [want]);
        assert_eq!(
            tools.all_servers().keys().copied().collect::<Vec<_>>(),
            ["files", "web"]
        );
        assert_eq!(tools.hold_time().as_secs(), 5);
        assert_eq!(tools.new_tools(), belljar_policy::Verdict::Allow);
    }
    assert_eq!(yaml.tools.rules[0].origin.line, 8);
    assert_eq!(yaml.tools.server_requests, toml.tools.server_requests);
}

#[test]
fn an_image_is_named_in_both_formats_and_a_container_needs_one() {
    let capability = yaml("sandbox_tier: container\nimage: debian:12\n");
    let image = capability.image.unwrap();
    assert_eq!(capability.tier, Tier::Container);
    assert_eq!((image.value.as_str(), image.origin.line), ("debian:12", 2));
    let capability = toml("[sandbox]\nimage = \"debian:12\"\n");
    assert_eq!(capability.tier, Tier::Container);
    assert_eq!(capability.image.unwrap().value.as_str(), "debian:12");
    for (text, said) in [
        ("sandbox_tier: container\n", "needs an image"),
        ("image: ../etc\n", "is no name of an image"),
    ] {
        let error = parse_capability("capability.yaml", text.as_bytes()).unwrap_err();
        assert!(error.to_string().contains(said), "{error}");
    }
}
