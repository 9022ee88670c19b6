//! Capabilities as documents: whatever a policy can say comes back, and what would not is refused.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use belljar_manifest::lineage::{CapabilityDocument, Envelope, Payload, Unrepresentable};
use belljar_manifest::{PROFILES, profile};
use belljar_policy::{
    BlockedTool, CallRule, Capability, Condition, Degraded, DomainPattern, EgressEffect,
    EgressRule, EgressTerms, Emulation, EnvAllow, EnvPolicy, Filesystem, FsMode, HomeMode,
    HttpTerms, ImageName, Limits, LlmApi, LlmEndpointRule, LlmTerms, McpServer, NameRules,
    OnBudget, Origin, PathGlob, PathPattern, PathRule, Permission, Places, Pointer,
    PrivateAddresses, ProxyPlace, ProxyResolution, ProxyTerms, PublishedPort, Reach,
    ResourcePattern, Rule, SecretPlace, SecretRule, SecretSource, ServerHeader, ServerRequests,
    Source, Test, Tier, ToolPattern, ToolRules, Verdict, WebSocket, WholeRegex, Workspace,
};
use proptest::collection::{btree_map, btree_set, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use serde_json::json;
use support::{places, quick, root, seal};

#[track_caller]
fn comes_back(capability: &Capability, places: &Places) {
    let document = CapabilityDocument::new(capability, places).unwrap();
    let (secret, keys) = quick();
    let payload = Payload {
        capability: document.clone(),
        ..root()
    };
    let sealed = seal(&payload, &secret);
    let opened = Envelope::parse(sealed.as_bytes())
        .unwrap()
        .open(&keys)
        .unwrap();
    let read = &opened.payload().capability;
    assert_eq!(read.capability(), capability);
    assert_eq!(read.places(), places);
    assert_eq!(read.digest(), document.digest());
    assert_eq!(read.text(), document.text());
}

#[test]
fn profiles_come_back() {
    for name in PROFILES {
        comes_back(&profile(name).unwrap(), &places());
    }
    let [strict, moderate] = ["strict", "moderate"].map(|name| profile(name).unwrap());
    comes_back(&moderate.meet(&strict, &places()), &places());
}

#[test]
fn what_would_mean_something_else_is_refused() {
    let check = |change: &dyn Fn(&mut Capability, &mut Places), expect: Unrepresentable| {
        let (mut capability, mut places) = (support::capability(), places());
        change(&mut capability, &mut places);
        let refused = CapabilityDocument::new(&capability, &places).unwrap_err();
        assert_eq!(refused, expect);
    };
    let latin = PathBuf::from(OsStr::from_bytes(b"/srv/caf\xe9"));
    check(
        &|_, places| places.home = latin.clone(),
        Unrepresentable::Path,
    );
    check(&|_, places| places.work = "w".into(), Unrepresentable::Path);
    check(
        &|_, places| places.homes.push("/a/../b".into()),
        Unrepresentable::Path,
    );
    for path in [
        PathRule::Root(latin.clone()),
        PathRule::Root("a".into()),
        PathRule::Home("/a".into()),
        PathRule::Work("../a".into()),
        PathRule::Work("a\0b".into()),
        PathRule::AnyNamed("a/b".to_owned()),
        PathRule::AnyNamed(String::new()),
        PathRule::AnyNamed("..".to_owned()),
    ] {
        let add = |c: &mut Capability, _: &mut Places| {
            c.filesystem.hidden[0].value = path.clone();
        };
        check(&add, Unrepresentable::Path);
    }
    // A float that is no number is not even equal to itself; a sign would be lost in comparisons.
    for number in [f64::NAN, f64::INFINITY, -1.0, -0.0] {
        let refused = |capability: Capability| {
            assert!(CapabilityDocument::new(&capability, &places()).is_err());
        };
        let mut capability = support::capability();
        capability.limits.cost_usd = Some(number);
        refused(capability);
    }
    check(
        &|c, _| c.limits.wall_time = Some(Duration::MAX),
        Unrepresentable::Number,
    );
    for domain in [
        DomainPattern::Any,
        DomainPattern::Exact("Example.com".to_owned()),
        DomainPattern::Exact("*".to_owned()),
        DomainPattern::Ip("::ffff:10.0.0.1".parse().unwrap()),
    ] {
        let mut capability = support::capability();
        capability.egress[0].value.domain = domain;
        assert!(CapabilityDocument::new(&capability, &places()).is_err());
    }
    check(
        &|c, _| c.egress[0].value.ports = vec![443, 80],
        Unrepresentable::Order,
    );
    // Layers are flat: one within one within one is a shape that nothing makes.
    let nested = ToolRules {
        within: vec![ToolRules::closed()],
        ..ToolRules::closed()
    };
    check(
        &|c, _| c.tools.within = vec![nested.clone()],
        Unrepresentable::Rule,
    );
}

#[test]
fn words_of_the_network_that_no_file_could_say_are_refused() {
    let secret = || SecretRule {
        name: "key".to_owned(),
        source: SecretSource::Env("KEY".to_owned()),
        domain: DomainPattern::parse("example.com").unwrap(),
        ports: vec![443],
        place: Some(SecretPlace::Header("x-api-key".to_owned())),
        env: None,
        refresh: None,
    };
    let refused = |edit: fn(&mut SecretRule)| {
        let mut capability = support::capability();
        let mut rule = secret();
        edit(&mut rule);
        capability.secrets = vec![Rule::new(rule, Origin::built_in())];
        CapabilityDocument::new(&capability, &places()).err()
    };
    let rule = Some(Unrepresentable::Rule);
    assert_eq!(refused(|_| {}), None);
    assert_eq!(refused(|s| s.name = "a b".to_owned()), rule);
    assert_eq!(refused(|s| s.domain = DomainPattern::Any), rule);
    assert_eq!(
        refused(|s| s.ports = vec![443, 80]),
        Some(Unrepresentable::Order)
    );
    assert_eq!(refused(|s| s.env = Some("A=B".to_owned())), rule);
    assert_eq!(
        refused(|s| s.source = SecretSource::Env("A B".to_owned())),
        rule
    );
    assert_eq!(
        refused(|s| s.source = SecretSource::Command(Vec::new())),
        rule
    );
    assert_eq!(refused(|s| s.refresh = Some(60)), rule);
    fn again(rule: &mut SecretRule, seconds: u32) {
        rule.source = SecretSource::Command(vec!["x".to_owned()]);
        rule.refresh = Some(seconds);
    }
    assert_eq!(refused(|s| again(s, 60)), None);
    assert_eq!(refused(|s| again(s, 0)), rule);
    assert_eq!(refused(|s| again(s, 86_401)), rule);
    assert_eq!(
        refused(|s| s.source = SecretSource::Store("a b".to_owned())),
        rule
    );
    let anywhere = |s: &mut SecretRule| {
        s.source = SecretSource::File(PathRule::AnyNamed("key".to_owned()));
    };
    assert_eq!(refused(anywhere), rule);
    for header in ["X-Api-Key", "host", "a b"] {
        let mut capability = support::capability();
        let place = Some(SecretPlace::Header(header.to_owned()));
        let value = SecretRule { place, ..secret() };
        capability.secrets = vec![Rule::new(value, Origin::built_in())];
        let found = CapabilityDocument::new(&capability, &places()).err();
        assert_eq!(found, rule, "{header}");
    }
    let mut capability = support::capability();
    capability.ports = vec![Rule::new(PublishedPort::same(0), Origin::built_in())];
    assert_eq!(CapabilityDocument::new(&capability, &places()).err(), rule);
}

#[test]
fn equal_digests_are_equal_documents() {
    let one = CapabilityDocument::new(&support::capability(), &places()).unwrap();
    let mut moved = places();
    moved.work = "/home/u/v".into();
    let two = CapabilityDocument::new(&support::capability(), &moved).unwrap();
    assert_ne!(one.digest(), two.digest());
    assert_ne!(one, two);
    assert_eq!(one, one.clone());
}

/// Names that a path may have, with those that other notations take for something else.
fn names() -> impl Strategy<Value = String> {
    let odd = [
        "~",
        "~x",
        "$HOME",
        "*",
        "**",
        "a b",
        "\u{e9}",
        "\u{1f980}",
        "\"",
        "\\",
        "\n",
        "-",
        ".x",
        "...",
    ];
    prop_oneof![select(odd.to_vec()).prop_map(str::to_owned), "[a-z]{1,8}"]
}

fn below() -> impl Strategy<Value = PathBuf> {
    vec(names(), 0..4).prop_map(|names| names.iter().collect())
}

fn absolute() -> impl Strategy<Value = PathBuf> {
    below().prop_map(|below| PathBuf::from("/").join(below))
}

fn path_rules() -> impl Strategy<Value = PathRule> {
    prop_oneof![
        absolute().prop_map(PathRule::Root),
        below().prop_map(PathRule::Home),
        below().prop_map(PathRule::Work),
        names().prop_map(PathRule::AnyNamed),
    ]
}

fn origins() -> impl Strategy<Value = Origin> {
    let sources = vec![Source::BuiltIn, Source::Profile, Source::Document];
    (".{0,12}", any::<u32>(), any::<u32>(), select(sources)).prop_map(
        |(file, line, column, source)| Origin {
            file: Arc::from(file),
            line,
            column,
            source,
        },
    )
}

fn rules<T: std::fmt::Debug>(
    values: impl Strategy<Value = T>,
) -> impl Strategy<Value = Vec<Rule<T>>> {
    let rule = (values, origins()).prop_map(|(value, origin)| Rule::new(value, origin));
    vec(rule, 0..3)
}

fn filesystems() -> impl Strategy<Value = Filesystem> {
    (
        select(vec![FsMode::None, FsMode::ReadOnly, FsMode::ReadWrite]),
        select(vec![Workspace::Direct, Workspace::Overlay]),
        select(vec![HomeMode::ReadOnly, HomeMode::Private]),
        rules(path_rules()),
        rules(path_rules()),
        rules(path_rules()),
        rules(path_rules()),
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

fn egress() -> impl Strategy<Value = EgressRule> {
    let domains = [
        "example.com",
        "*.example.com",
        "10.0.0.0/8",
        "10.1.2.3",
        "::/0",
        "2001:db8::1",
        "localhost",
        "xn--a.com",
        "::ffff:0:0/96",
    ];
    let ports = btree_set(any::<u16>(), 0..4);
    let rule = (
        select(domains.to_vec()),
        ports,
        any::<u32>(),
        any::<bool>(),
        terms(),
    );
    rule.prop_map(|(domain, ports, rate_limit_per_min, deny, mut terms)| {
        let effect = if deny {
            EgressEffect::Deny
        } else {
            EgressEffect::Allow
        };
        let domain = match (domain, deny) {
            ("localhost", true) => DomainPattern::Any,
            (domain, _) => DomainPattern::parse(domain).unwrap(),
        };
        let ports: Vec<u16> = ports.into_iter().collect();
        let farthest = Reach::of(&domain, &ports, PrivateAddresses::Accept);
        terms.reach = terms.reach.min(farthest);
        EgressRule {
            domain,
            ports,
            rate_limit_per_min,
            effect,
            terms,
        }
    })
}

fn terms() -> impl Strategy<Value = EgressTerms> {
    let http = (
        btree_set(select(vec!["GET", "POST", "M-SEARCH"]), 0..3),
        vec(select(vec!["/", "/v1/*", "/a"]), 0..3),
        select(vec![WebSocket::Refuse, WebSocket::Allow]),
    );
    let http = http.prop_map(|(methods, paths, websocket)| HttpTerms {
        methods: methods.into_iter().map(str::to_owned).collect(),
        paths: paths
            .into_iter()
            .map(|path| PathPattern::parse(path).unwrap())
            .collect(),
        websocket,
    });
    let reach = select(vec![
        Reach::Public,
        Reach::Private,
        Reach::Host,
        Reach::Metadata,
    ]);
    (
        option::of(any::<u32>()),
        option::of(0..1_u64 << 53),
        reach,
        option::of(http),
    )
        .prop_map(|(max_connections, max_bytes, reach, http)| EgressTerms {
            max_connections,
            max_bytes,
            reach,
            http,
        })
}

fn limits() -> impl Strategy<Value = Limits> {
    let decimal = || {
        option::of(prop_oneof![
            0.0..1e9_f64,
            Just(0.0),
            Just(f64::MAX),
            Just(5e-324)
        ])
    };
    let time = || option::of(any::<u64>().prop_map(Duration::from_nanos));
    let wide = || option::of(any::<u64>());
    let narrow = || option::of(any::<u32>());
    (
        (wide(), wide(), wide(), wide()),
        (narrow(), narrow(), narrow()),
        (time(), time()),
        (decimal(), decimal()),
    )
        .prop_map(|(wide, narrow, time, decimal)| Limits {
            memory_bytes: wide.0,
            cpu_time: time.0,
            cpu_percent: decimal.0,
            wall_time: time.1,
            processes: narrow.0,
            open_files: narrow.1,
            file_size_bytes: wide.1,
            disk_bytes: wide.2,
            connections: narrow.2,
            cost_usd: decimal.1,
            tokens: wide.3,
        })
}

fn environments() -> impl Strategy<Value = EnvAllow> {
    prop_oneof![
        Just(EnvAllow::Base),
        Just(EnvAllow::All),
        btree_map("[A-Za-z_\u{e9}]{1,6}", origins(), 0..4).prop_map(EnvAllow::Listed),
    ]
}

fn condition() -> impl Strategy<Value = Condition> {
    let test = prop_oneof![
        select(vec![
            json!(null),
            json!(-1.5),
            json!({"a": ["x", 1]}),
            json!(u64::MAX),
            json!(0.1)
        ])
        .prop_map(Test::Equals),
        Just(Test::In(vec![json!("a"), json!(false)])),
        select(vec!["/work/**", "/", "/a/*.txt"])
            .prop_map(|glob| Test::Glob(PathGlob::parse(glob).unwrap())),
        Just(Test::Regex(WholeRegex::parse("a|b+").unwrap())),
        (option::of(-1e9..1e9), option::of(-1e9..1e9))
            .prop_map(|(minimum, maximum)| Test::Range { minimum, maximum }),
        any::<u64>().prop_map(Test::MaxBytes),
    ];
    let at = select(vec!["", "/path", "/a~1b/*", "/x~0/0"]);
    (at, test).prop_map(|(at, test)| Condition {
        at: Pointer::parse(at).unwrap(),
        test,
    })
}

fn verdict() -> impl Strategy<Value = Verdict> {
    select(vec![Verdict::Allow, Verdict::Hold, Verdict::Deny])
}

fn server() -> impl Strategy<Value = McpServer> {
    let command = McpServer::Command {
        command: vec!["node".to_owned(), "a b".to_owned()],
        capability: Some("files.yaml".to_owned()),
        env: [("A".to_owned(), "=".to_owned())].into(),
    };
    let url = "http://127.0.0.1:9/mcp".to_owned();
    let unix = "/run/x.sock".to_owned();
    select(vec![
        command,
        McpServer::at(url),
        McpServer::Url {
            url: "https://mcp.example/mcp".to_owned(),
            ca: Some(PathRule::Root("/etc/ca.pem".into())),
            headers: vec![ServerHeader {
                place: SecretPlace::Bearer,
                source: SecretSource::Env("TOKEN".to_owned()),
            }],
        },
        McpServer::Unix { unix },
    ])
}

fn layer() -> impl Strategy<Value = ToolRules> {
    let tool =
        || select(vec!["fs:read", "fs:*", "*:r*"]).prop_map(|t| ToolPattern::parse(t).unwrap());
    let block = select(vec!["fs:read", "fs:*:/etc/**", "a:b:/*.x"])
        .prop_map(|t| BlockedTool::parse(t).unwrap());
    let uri = || {
        select(vec!["fs:file:///work/**", "*:mem:*"])
            .prop_map(|t| ResourcePattern::parse(t).unwrap())
    };
    let call = (
        tool(),
        verdict(),
        proptest::collection::vec(condition(), 0..3),
        option::of(any::<u32>()),
    )
        .prop_map(|(tool, verdict, conditions, rate_limit_per_min)| CallRule {
            tool,
            verdict,
            conditions,
            rate_limit_per_min,
            redact: vec![Pointer::parse("/content").unwrap()],
        });
    let server = (server(), origins()).prop_map(|(server, origin)| Rule::new(server, origin));
    let servers = option::of(btree_map("[a-z]{1,4}", server, 0..3));
    let names = (
        option::of(rules(uri())),
        rules(uri()),
        option::of(rules(tool())),
        rules(tool()),
    );
    let asks = (verdict(), verdict(), verdict(), verdict());
    let numbers = (option::of(any::<u32>()), option::of(any::<u32>()));
    (
        servers,
        option::of(rules(tool())),
        rules(block),
        rules(call),
        names,
        asks,
        numbers,
    )
        .prop_map(
            |(
                servers,
                allowed,
                blocked,
                rules,
                names,
                asks,
                (rate_limit_per_min, hold_seconds),
            )| ToolRules {
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
                hold_seconds,
                on_new_tool: asks.3,
                within: Vec::new(),
            },
        )
}

fn tools() -> impl Strategy<Value = ToolRules> {
    let within = proptest::collection::vec(layer(), 0..2);
    (layer(), within).prop_map(|(own, within)| ToolRules { within, ..own })
}

type Network = (
    Vec<Rule<SecretRule>>,
    Vec<Rule<PublishedPort>>,
    LlmTerms,
    Option<Rule<ProxyTerms>>,
);

fn network() -> impl Strategy<Value = Network> {
    let proxy = (
        select(vec!["env", "http://p.corp:1", "http://[fd00::1]:65535"]),
        option::of(sources()),
        select(vec![ProxyResolution::Local, ProxyResolution::AtProxy]),
    );
    let proxy = proxy.prop_map(|(place, credentials, resolution)| ProxyTerms {
        place: ProxyPlace::parse(place).unwrap(),
        credentials,
        resolution,
    });
    let proxy = (proxy, origins()).prop_map(|(value, origin)| Rule::new(value, origin));
    (
        rules(secrets()),
        rules(published()),
        llm(),
        option::of(proxy),
    )
}

fn files() -> impl Strategy<Value = PathRule> {
    let not_a_file = |rule: &PathRule| !matches!(rule, PathRule::AnyNamed(_));
    path_rules().prop_filter("one file", not_a_file)
}

fn sources() -> impl Strategy<Value = SecretSource> {
    prop_oneof![
        "[A-Z_][A-Z0-9_]{0,8}".prop_map(SecretSource::Env),
        files().prop_map(SecretSource::File),
        "[A-Za-z0-9_.-]{1,64}".prop_map(SecretSource::Store),
        vec("[^\0]{1,8}", 1..4).prop_map(SecretSource::Command),
    ]
}

fn patterns() -> impl Strategy<Value = DomainPattern> {
    let domains = ["example.com", "*.example.com", "10.0.0.0/8", "2001:db8::1"];
    select(domains.to_vec()).prop_map(|text| DomainPattern::parse(text).unwrap())
}

fn some_ports() -> impl Strategy<Value = Vec<u16>> {
    btree_set(any::<u16>(), 0..4).prop_map(|ports| ports.into_iter().collect())
}

fn secrets() -> impl Strategy<Value = SecretRule> {
    let place = prop_oneof![
        Just(None),
        Just(Some(SecretPlace::Bearer)),
        select(vec!["x-api-key", "api_key"]).prop_map(|name| SecretPlace::header(name).ok()),
    ];
    let name = "[A-Za-z0-9_.-]{1,64}";
    let env = option::of("[A-Za-z_][A-Za-z0-9_]{0,8}");
    let refresh = option::of(1..=86_400_u32);
    (
        name,
        sources(),
        patterns(),
        some_ports(),
        place,
        env,
        refresh,
    )
        .prop_map(
            |(name, source, domain, ports, place, env, refresh)| SecretRule {
                refresh: refresh.filter(|_| matches!(source, SecretSource::Command(_))),
                name,
                source,
                domain,
                ports,
                place,
                env,
            },
        )
}

fn published() -> impl Strategy<Value = PublishedPort> {
    (1..=u16::MAX, any::<u16>(), any::<std::net::IpAddr>()).prop_map(
        |(in_box, on_host, address)| PublishedPort {
            in_box,
            on_host,
            address,
        },
    )
}

fn llm() -> impl Strategy<Value = LlmTerms> {
    let apis = vec![LlmApi::OpenAi, LlmApi::Anthropic, LlmApi::Gemini];
    let endpoint = (patterns(), some_ports(), select(apis), "[a-z_]{1,9}").prop_map(
        |(domain, ports, api, provider)| LlmEndpointRule {
            domain,
            ports,
            api,
            provider,
        },
    );
    let prices = option::of((files(), origins()));
    let on_budget = select(vec![OnBudget::Kill, OnBudget::Refuse]);
    (on_budget, rules(endpoint), prices).prop_map(|(on_budget, endpoints, prices)| LlmTerms {
        on_budget,
        endpoints,
        prices: prices.map(|(path, origin)| Rule::new(path, origin)),
    })
}

fn capabilities() -> impl Strategy<Value = Capability> {
    let isolation = (
        ".{0,20}",
        select(vec![
            Tier::Native,
            Tier::Container,
            Tier::Gvisor,
            Tier::Microvm,
            Tier::Firecracker,
        ]),
        select(vec![Degraded::Refuse, Degraded::Accept]),
        select(vec![Emulation::Refuse, Emulation::Allow]),
        option::of((path_rules(), origins())),
        option::of((select(vec!["agent", "debian:12"]), origins())),
    );
    let powers = subsequence(
        vec![Permission::ReadEnv, Permission::SpawnSubprocess],
        0..=2,
    );
    (
        isolation,
        filesystems(),
        rules(egress()),
        limits(),
        powers,
        (environments(), btree_map("[A-Z_]{1,4}", origins(), 0..3)),
        tools(),
        network(),
    )
        .prop_map(
            |(
                (name, tier, degraded, emulation, workdir, image),
                filesystem,
                egress,
                limits,
                powers,
                (allow, withheld),
                tools,
                (secrets, ports, llm, upstream_proxy),
            )| Capability {
                name: Arc::from(name),
                tier,
                degraded,
                emulation,
                image: image
                    .map(|(name, origin)| Rule::new(ImageName::parse(name).unwrap(), origin)),
                workdir: workdir.map(|(path, origin)| Rule::new(path, origin)),
                filesystem,
                egress,
                secrets,
                ports,
                llm,
                upstream_proxy,
                limits,
                permissions: BTreeSet::from_iter(powers),
                env: EnvPolicy { allow, withheld },
                tools,
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn every_capability_comes_back(
        capability in capabilities(),
        home in absolute(),
        work in absolute(),
        homes in vec(absolute(), 0..3),
    ) {
        comes_back(&capability, &Places { home, work, homes });
    }
}
