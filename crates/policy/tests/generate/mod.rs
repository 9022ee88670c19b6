//! Random capabilities and places, made of few words.

#![allow(unreachable_pub, reason = "a module of a test binary")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use belljar_policy::{
    BlockedTool, CallRule, Capability, Condition, Degraded, DomainPattern, EgressEffect,
    EgressRule, EgressTerms, Emulation, EnvAllow, EnvPolicy, Filesystem, FsMode, HomeMode,
    HttpTerms, ImageName, Limits, LlmApi, LlmEndpointRule, LlmTerms, McpServer, NameRules,
    OnBudget, Origin, PathGlob, PathPattern, PathRule, Permission, Places, Pointer, ProxyPlace,
    ProxyResolution, ProxyTerms, PublishedPort, Reach, ResourcePattern, Rule, SecretPlace,
    SecretRule, SecretSource, ServerRequests, Source, Test, Tier, ToolPattern, ToolRules, Verdict,
    WebSocket, WholeRegex, Workspace,
};
use proptest::collection::{btree_set, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

// Few words, so that rules of two capabilities meet, nest and collide.
const PATHS: &[&str] = &[
    "/",
    "/a",
    "/a/b",
    "/a/b/c",
    "/a/.env",
    "/etc",
    "/etc/ssl",
    "/etc/passwd",
    "/home",
    "/home/u",
    "/home/u/.ssh",
    "/home/u/.ssh/config",
    "/home/u/w",
    "/home/u/w/.git",
    "/home/v",
    "/tmp",
    "/tmp/x",
    "/run",
    "~",
    "~/.ssh",
    "~/.ssh/config",
    "~/.aws",
    "~/x",
    ".",
    "src",
    "src/x",
    ".git",
    ".git/hooks",
    ".env",
    "/usr",
    "/usr/lib",
];
pub const METHODS: &[&str] = &["GET", "POST"];
const PATH_PATTERNS: &[&str] = &["/", "/a", "/a/*", "/a/b", "/*"];
pub const REQUEST_PATHS: &[&str] = &["/", "/a", "/a/b", "/a/b/c", "/z"];
const NAMES: &[&str] = &["**/.env", "**/secrets", "**/x"];
pub const PROBES: &[&str] = &[
    "/",
    "/a",
    "/a/z",
    "/a/b",
    "/a/b/z",
    "/a/b/c/z",
    "/a/.env",
    "/a/b/.env",
    "/a/secrets",
    "/a/b/x",
    "/etc",
    "/etc/hosts",
    "/etc/passwd",
    "/etc/ssl/certs/z",
    "/etc/ssl/private/z",
    "/etc/shadow",
    "/home",
    "/home/u",
    "/home/u/z",
    "/home/u/.ssh",
    "/home/u/.ssh/id",
    "/home/u/.ssh/config",
    "/home/u/.aws/z",
    "/home/u/.bashrc",
    "/home/u/w",
    "/home/u/w/z",
    "/home/u/w/src/x/z",
    "/home/u/w/.git/z",
    "/home/u/w/.git/hooks/z",
    "/home/u/w/.env",
    "/home/u/w/secrets",
    "/home/v",
    "/home/v/z",
    "/root/z",
    "/tmp/z",
    "/tmp/x/z",
    "/run/z",
    "/proc/1",
    "/dev/null",
    "/usr/bin/z",
    "/usr/lib/z",
    "/srv/w/z",
    "/srv/w/.git/config",
    "/srv/w/src/x/z",
    "/srv/.ssh/z",
];
pub const VARIABLES: &[&str] = &[
    "PATH",
    "EDITOR",
    "FOO",
    "BAR",
    "NODE_OPTIONS",
    "API_KEY",
    "LD_PRELOAD",
    "editor",
];
const DOMAINS: &[&str] = &[
    "example.com",
    "a.example.com",
    "*.example.com",
    "*.a.example.com",
    "*.com",
    "b.org",
    "10.0.0.0/8",
    "10.1.0.0/16",
    "10.1.2.3",
    "10.1.2.3/32",
    "::/0",
    "2001:db8::1",
];
pub const HOSTS: &[&str] = &[
    "example.com",
    "a.example.com",
    "b.a.example.com",
    "c.example.com",
    "b.org",
    "10.1.2.3",
    "10.1.9.9",
    "10.2.0.1",
    "11.0.0.1",
    "2001:db8::1",
    "2001:db8::2",
];
pub const PORTS: &[u16] = &[22, 80, 443];
const TOOLS: &[&str] = &[
    "fs:read",
    "fs:write",
    "fs:*",
    "shell:run",
    "shell:*",
    "*:r*",
    "fs:*e",
    "*:*",
];
const BLOCKS: &[&str] = &[
    "fs:write",
    "fs:*:/etc/*",
    "*:w*:/etc/ssl/*",
    "shell:*",
    "fs:w*",
];
const TOOL_GLOBS: &[&str] = &["/work/**", "/work/a/**", "/etc/**", "/**", "/work/*"];
const URIS: &[&str] = &[
    "fs:file:///work/**",
    "fs:file:///work/a",
    "*:*",
    "web:https://a/*",
    "fs:*",
];
pub const CALLS: &[&str] = &["fs:read", "fs:write", "fs:list", "shell:run", "web:get"];
pub const ARGUMENTS: &[&str] = &[
    "{}",
    r#"{"path": "/work/a"}"#,
    r#"{"path": "/work/a/b", "n": 1}"#,
    r#"{"path": "/etc/ssl/x", "n": 4}"#,
    r#"{"path": "/work/../etc/x", "n": 9}"#,
    r#"{"path": "x", "n": "1"}"#,
    r#"{"path": ["/work/a"], "n": 2}"#,
    r#"{"path": "/tmp/%2e", "n": 0}"#,
];
pub const READ_URIS: &[&str] = &[
    "file:///work/a",
    "file:///etc/x",
    "file:///work/../etc/x",
    "https://a/b",
    "mem:x",
];

pub fn all_places() -> impl Strategy<Value = Places> {
    let work = [
        "/home/u/w",
        "/srv/w",
        "/home/u",
        "/home/u/.ssh",
        "/a/b",
        "/tmp",
        "/home/v/w",
        "/run",
    ];
    let home = ["/home/u", "/a", "/root"];
    let homes = [vec!["/home", "/root"], vec!["/home/v", "/a"], vec![]];
    (
        select(work.to_vec()),
        select(home.to_vec()),
        select(homes.to_vec()),
    )
        .prop_map(|(work, home, homes)| Places {
            home: PathBuf::from(home),
            work: PathBuf::from(work),
            homes: homes.into_iter().map(PathBuf::from).collect(),
        })
}

fn origin() -> impl Strategy<Value = Origin> {
    (select(vec![Source::Profile, Source::Document]), 1..50_u32).prop_map(|(source, line)| Origin {
        file: Arc::from("f"),
        line,
        column: 1,
        source,
    })
}

fn paths(words: &'static [&'static str], most: usize) -> BoxedStrategy<Vec<Rule<PathRule>>> {
    let rule = (select(words), origin())
        .prop_map(|(text, origin)| Rule::new(PathRule::parse_hidden(text).unwrap(), origin));
    vec(rule, 0..=most).boxed()
}

fn filesystems() -> impl Strategy<Value = Filesystem> {
    let modes = vec![
        FsMode::None,
        FsMode::ReadOnly,
        FsMode::ReadWrite,
        FsMode::ReadWrite,
    ];
    let hidden = (paths(PATHS, 2), paths(NAMES, 1)).prop_map(|(mut paths, names)| {
        paths.extend(names);
        paths
    });
    (
        select(modes),
        select(vec![Workspace::Direct, Workspace::Overlay]),
        select(vec![HomeMode::ReadOnly, HomeMode::Private]),
        paths(PATHS, 2),
        paths(PATHS, 3),
        hidden,
        paths(PATHS, 2),
    )
        .prop_map(
            |(mode, workspace, home, writable, readable, hidden, protected)| Filesystem {
                mode,
                workspace,
                home,
                writable,
                readable,
                hidden,
                protected,
            },
        )
}

fn limits() -> impl Strategy<Value = Limits> {
    let counts = vec(option::of(1..4_u32), 9);
    (counts, option::of(1..4_u32), option::of(1..4_u32)).prop_map(|(counts, percent, cost)| {
        let wide = |at: usize| counts[at].map(u64::from);
        Limits {
            memory_bytes: wide(0),
            cpu_time: wide(1).map(Duration::from_secs),
            cpu_percent: percent.map(f64::from),
            wall_time: wide(2).map(Duration::from_secs),
            processes: counts[3],
            open_files: counts[4],
            file_size_bytes: wide(5),
            disk_bytes: wide(6),
            connections: counts[7],
            cost_usd: cost.map(|cost| f64::from(cost) / 10.0),
            tokens: wide(8),
        }
    })
}

fn egress() -> impl Strategy<Value = Vec<Rule<EgressRule>>> {
    let effects = vec![EgressEffect::Allow, EgressEffect::Allow, EgressEffect::Deny];
    let rule = (
        select(DOMAINS),
        subsequence(PORTS.to_vec(), 0..=3),
        1..4_u32,
        select(effects),
        terms(),
        origin(),
    )
        .prop_map(
            |(domain, ports, rate_limit_per_min, effect, terms, origin)| {
                let domain = DomainPattern::parse(domain).unwrap();
                Rule::new(
                    EgressRule {
                        domain,
                        ports,
                        rate_limit_per_min,
                        effect,
                        terms,
                    },
                    origin,
                )
            },
        );
    vec(rule, 0..4)
}

fn terms() -> impl Strategy<Value = EgressTerms> {
    let reaches = vec![Reach::Public, Reach::Private, Reach::Host, Reach::Metadata];
    (
        option::of(1..4_u32),
        option::of(1..4_u64),
        select(reaches),
        option::of(http_terms()),
    )
        .prop_map(|(max_connections, max_bytes, reach, http)| EgressTerms {
            max_connections,
            max_bytes,
            reach,
            http,
        })
}

fn http_terms() -> impl Strategy<Value = HttpTerms> {
    (
        subsequence(METHODS.to_vec(), 0..=2),
        subsequence(PATH_PATTERNS.to_vec(), 0..=2),
        select(vec![WebSocket::Refuse, WebSocket::Allow]),
    )
        .prop_map(|(methods, paths, websocket)| HttpTerms {
            methods: methods.into_iter().map(str::to_owned).collect(),
            paths: paths
                .into_iter()
                .map(|path| PathPattern::parse(path).unwrap())
                .collect(),
            websocket,
        })
}

fn environments() -> impl Strategy<Value = EnvPolicy> {
    let listed = btree_set(select(VARIABLES), 0..4).prop_map(|names| {
        let entry = |name: &str| (name.to_owned(), Origin::built_in());
        EnvAllow::Listed(names.into_iter().map(entry).collect())
    });
    let withheld = btree_set(select(VARIABLES), 0..2).prop_map(|names| {
        let entry = |name: &str| (name.to_owned(), Origin::built_in());
        names.into_iter().map(entry).collect::<BTreeMap<_, _>>()
    });
    let allow = prop_oneof![Just(EnvAllow::Base), Just(EnvAllow::All), listed];
    (allow, withheld).prop_map(|(allow, withheld)| EnvPolicy { allow, withheld })
}

fn secrets() -> impl Strategy<Value = Vec<Rule<SecretRule>>> {
    let sources = vec![
        SecretSource::Env("A".to_owned()),
        SecretSource::File(PathRule::parse("~/key").unwrap()),
        SecretSource::Store("key".to_owned()),
        SecretSource::Command(vec!["pass".to_owned()]),
    ];
    let rule = (
        select(vec!["one", "two"]),
        select(sources),
        select(DOMAINS),
        subsequence(PORTS.to_vec(), 0..=2),
        select(vec![
            None,
            Some(SecretPlace::Bearer),
            SecretPlace::header("x-key").ok(),
        ]),
        option::of(select(vec!["KEY_A", "KEY_B"])),
        option::of(select(vec![60, 3600])),
        origin(),
    )
        .prop_map(
            |(name, source, domain, ports, place, env, refresh, origin)| {
                let value = SecretRule {
                    name: name.to_owned(),
                    source,
                    domain: DomainPattern::parse(domain).unwrap(),
                    ports,
                    place,
                    env: env.map(str::to_owned),
                    refresh,
                };
                Rule::new(value, origin)
            },
        );
    vec(rule, 0..3)
}

fn published() -> impl Strategy<Value = Vec<Rule<PublishedPort>>> {
    let addresses = ["127.0.0.1", "0.0.0.0", "::1", "::"];
    let rule = (
        select(vec![80_u16, 81]),
        select(vec![0_u16, 80]),
        select(addresses.to_vec()),
        origin(),
    )
        .prop_map(|(in_box, on_host, address, origin)| {
            let value = PublishedPort {
                in_box,
                on_host,
                address: address.parse().unwrap(),
            };
            Rule::new(value, origin)
        });
    vec(rule, 0..3)
}

fn llm() -> impl Strategy<Value = LlmTerms> {
    let endpoint =
        (select(vec!["a.example.com", "*.example.com"]), origin()).prop_map(|(domain, origin)| {
            let value = LlmEndpointRule {
                domain: DomainPattern::parse(domain).unwrap(),
                ports: Vec::new(),
                api: LlmApi::OpenAi,
                provider: "local".to_owned(),
            };
            Rule::new(value, origin)
        });
    (
        select(vec![OnBudget::Kill, OnBudget::Refuse]),
        // Mostly none, so that most pairs are charged alike.
        option::weighted(0.1, vec(endpoint, 1..=2)),
        option::weighted(0.1, (select(vec!["~/prices", "/prices"]), origin())),
    )
        .prop_map(|(on_budget, endpoints, prices)| LlmTerms {
            on_budget,
            endpoints: endpoints.unwrap_or_default(),
            prices: prices.map(|(path, at)| Rule::new(PathRule::parse(path).unwrap(), at)),
        })
}

fn proxies() -> impl Strategy<Value = Option<Rule<ProxyTerms>>> {
    let rule = (
        select(vec!["env", "http://proxy.corp:3128"]),
        select(vec![ProxyResolution::Local, ProxyResolution::AtProxy]),
        origin(),
    )
        .prop_map(|(place, resolution, origin)| {
            let value = ProxyTerms {
                place: ProxyPlace::parse(place).unwrap(),
                credentials: None,
                resolution,
            };
            Rule::new(value, origin)
        });
    option::of(rule)
}

fn listed<T: std::fmt::Debug + Clone + 'static>(
    words: &'static [&'static str],
    parse: fn(&str) -> T,
) -> impl Strategy<Value = Vec<Rule<T>>> {
    let rule = select(words).prop_map(move |text| Rule::new(parse(text), Origin::built_in()));
    vec(rule, 0..3)
}

fn tool_pattern(text: &str) -> ToolPattern {
    ToolPattern::parse(text).unwrap()
}

fn verdicts() -> impl Strategy<Value = Verdict> {
    select(vec![Verdict::Allow, Verdict::Hold, Verdict::Deny])
}

fn conditions() -> impl Strategy<Value = Condition> {
    let at = |text: &str, test| Condition {
        at: Pointer::parse(text).unwrap(),
        test,
    };
    let numbers =
        (option::of(0..3_u8), option::of(2..6_u8)).prop_map(|(minimum, maximum)| Test::Range {
            minimum: minimum.map(f64::from),
            maximum: maximum.map(f64::from),
        });
    prop_oneof![
        select(TOOL_GLOBS)
            .prop_map(move |glob| at("/path", Test::Glob(PathGlob::parse(glob).unwrap()))),
        numbers.prop_map(move |test| at("/n", test)),
        (0..3_u8).prop_map(move |n| at("/n", Test::Equals(n.into()))),
        subsequence(vec![1_u8, 2, 4], 1..3)
            .prop_map(move |n| at("/n", Test::In(n.into_iter().map(Into::into).collect()))),
        (5..12_u64).prop_map(move |most| at("/path", Test::MaxBytes(most))),
        select(vec!["/work/.*", ".*x"])
            .prop_map(move |re| at("/path", Test::Regex(WholeRegex::parse(re).unwrap()))),
    ]
}

fn call_rules() -> impl Strategy<Value = Vec<Rule<CallRule>>> {
    let rule = (
        select(TOOLS),
        verdicts(),
        vec(conditions(), 0..3),
        option::of(1..4_u32),
    );
    let rule = rule.prop_map(|(tool, verdict, conditions, rate_limit_per_min)| {
        let value = CallRule {
            tool: tool_pattern(tool),
            verdict,
            conditions,
            rate_limit_per_min,
            redact: Vec::new(),
        };
        Rule::new(value, Origin::built_in())
    });
    vec(rule, 0..3)
}

fn mcp_servers() -> impl Strategy<Value = Option<BTreeMap<String, Rule<McpServer>>>> {
    let server = |name: &str| {
        let url = format!("http://{name}.example/");
        (
            name.to_owned(),
            Rule::new(McpServer::at(url), Origin::built_in()),
        )
    };
    let names = subsequence(vec!["fs", "shell", "web"], 0..3);
    option::weighted(
        0.4,
        names.prop_map(move |names| names.into_iter().map(server).collect()),
    )
}

fn tools() -> impl Strategy<Value = ToolRules> {
    let uri = |text: &str| ResourcePattern::parse(text).unwrap();
    let block = |text: &str| BlockedTool::parse(text).unwrap();
    let names = (
        option::of(listed(URIS, uri)),
        listed(URIS, uri),
        option::of(listed(TOOLS, tool_pattern)),
        listed(TOOLS, tool_pattern),
    );
    let asks = (verdicts(), verdicts(), verdicts(), verdicts());
    let calls = (
        option::of(listed(TOOLS, tool_pattern)),
        listed(BLOCKS, block),
        call_rules(),
    );
    (mcp_servers(), calls, names, asks, option::of(1..4_u32)).prop_map(
        |(servers, (allowed, blocked, rules), names, asks, rate_limit_per_min)| ToolRules {
            servers,
            allowed,
            blocked,
            rules,
            resources: NameRules {
                allowed: names.0,
                blocked: names.1,
            },
            prompts: NameRules {
                allowed: names.2,
                blocked: names.3,
            },
            server_requests: ServerRequests {
                sampling: asks.0,
                elicitation: asks.1,
                roots: asks.2,
            },
            rate_limit_per_min,
            hold_seconds: None,
            on_new_tool: asks.3,
            within: Vec::new(),
        },
    )
}

pub fn capabilities() -> impl Strategy<Value = Capability> {
    let isolation = (
        select(vec![
            Tier::Native,
            Tier::Container,
            Tier::Gvisor,
            Tier::Microvm,
            Tier::Firecracker,
        ]),
        select(vec![Degraded::Refuse, Degraded::Accept]),
        select(vec![Emulation::Refuse, Emulation::Allow]),
        option::weighted(0.2, (select(vec!["/a", "/srv/w"]), origin())),
        option::weighted(0.5, (select(vec!["agent", "agent", "other"]), origin())),
    );
    let powers = subsequence(
        vec![Permission::ReadEnv, Permission::SpawnSubprocess],
        0..=2,
    );
    (
        isolation,
        filesystems(),
        egress(),
        limits(),
        powers,
        environments(),
        tools(),
        (secrets(), published(), llm(), proxies()),
    )
        .prop_map(
            |(
                (tier, degraded, emulation, workdir, image),
                filesystem,
                egress,
                limits,
                powers,
                env,
                tools,
                (secrets, ports, llm, upstream_proxy),
            )| {
                Capability {
                    name: Arc::from("generated"),
                    tier,
                    degraded,
                    emulation,
                    image: image.map(|(name, at)| Rule::new(ImageName::parse(name).unwrap(), at)),
                    workdir: workdir
                        .map(|(text, at)| Rule::new(PathRule::parse(text).unwrap(), at)),
                    filesystem,
                    egress,
                    secrets,
                    ports,
                    llm,
                    upstream_proxy,
                    limits,
                    permissions: BTreeSet::from_iter(powers),
                    env,
                    tools,
                }
            },
        )
}
