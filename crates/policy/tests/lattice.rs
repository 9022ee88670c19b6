//! The laws of the order on random capabilities, and the one that ties it to decisions: what a child
//! within its parent may do, the parent may do.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use belljar_policy::{
    Capability, CompiledRules, Degraded, DomainPattern, EgressEffect, EgressRule, EgressTerms,
    EnvAllow, EnvPolicy, FileOp, Filesystem, FsMode, Host, HttpTerms, Limits, LlmApi,
    LlmEndpointRule, LlmTerms, OnBudget, Origin, PathPattern, PathRule, Permission, Places,
    ProxyPlace, ProxyResolution, ProxyTerms, PublishedPort, Reach, Reason, Rule, SecretPlace,
    SecretRule, SecretSource, Source, Tier, ToolPattern, ToolRules, WebSocket, Workspace,
    decide_env, decide_host, decide_tool,
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
const METHODS: &[&str] = &["GET", "POST"];
const PATH_PATTERNS: &[&str] = &["/", "/a", "/a/*", "/a/b", "/*"];
const REQUEST_PATHS: &[&str] = &["/", "/a", "/a/b", "/a/b/c", "/z"];
const NAMES: &[&str] = &["**/.env", "**/secrets", "**/x"];
const PROBES: &[&str] = &[
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
const VARIABLES: &[&str] = &[
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
const HOSTS: &[&str] = &[
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
const PORTS: &[u16] = &[22, 80, 443];
const TOOLS: &[&str] = &["fs:read", "fs:write", "fs:*", "shell:run", "shell:*"];
const CALLS: &[&str] = &["fs:read", "fs:write", "fs:list", "shell:run", "web:get"];

fn all_places() -> impl Strategy<Value = Places> {
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
        paths(PATHS, 2),
        paths(PATHS, 3),
        hidden,
        paths(PATHS, 2),
    )
        .prop_map(
            |(mode, workspace, writable, readable, hidden, protected)| Filesystem {
                mode,
                workspace,
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
        SecretSource::Command(vec!["pass".to_owned()]),
    ];
    let rule = (
        select(vec!["one", "two"]),
        select(sources),
        select(DOMAINS),
        subsequence(PORTS.to_vec(), 0..=2),
        select(vec![
            SecretPlace::Bearer,
            SecretPlace::header("x-key").unwrap(),
        ]),
        option::of(select(vec!["KEY_A", "KEY_B"])),
        origin(),
    )
        .prop_map(|(name, source, domain, ports, place, env, origin)| {
            let value = SecretRule {
                name: name.to_owned(),
                source,
                domain: DomainPattern::parse(domain).unwrap(),
                ports,
                place,
                env: env.map(str::to_owned),
            };
            Rule::new(value, origin)
        });
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

fn tools() -> impl Strategy<Value = ToolRules> {
    let patterns = || {
        let rule = select(TOOLS)
            .prop_map(|text| Rule::new(ToolPattern::parse(text).unwrap(), Origin::built_in()));
        vec(rule, 0..3)
    };
    (option::of(patterns()), patterns(), option::of(1..4_u32)).prop_map(
        |(allowed, blocked, rate_limit_per_min)| ToolRules {
            allowed,
            blocked,
            rate_limit_per_min,
        },
    )
}

fn capabilities() -> impl Strategy<Value = Capability> {
    let isolation = (
        select(vec![Tier::Native, Tier::Gvisor, Tier::Firecracker]),
        select(vec![Degraded::Refuse, Degraded::Accept]),
        option::weighted(0.2, (select(vec!["/a", "/srv/w"]), origin())),
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
                (tier, degraded, workdir),
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

/// A pair in which the child is likely, though not certain, to be within the parent: one field of
/// the parent's is exchanged. Independent pairs almost never are, and would prove nothing.
fn related() -> impl Strategy<Value = (Capability, Capability)> {
    (capabilities(), capabilities(), 0..11_usize).prop_map(|(parent, other, field)| {
        let mut child = parent.clone();
        match field {
            0 => child.filesystem.readable = other.filesystem.readable,
            1 => child.filesystem.writable = other.filesystem.writable,
            2 => child.filesystem.hidden.extend(other.filesystem.hidden),
            3 => child.filesystem = other.filesystem,
            4 => child.egress = other.egress,
            5 => child.env = other.env,
            6 => child.secrets = other.secrets,
            7 => child.ports = other.ports,
            8 => child.llm = other.llm,
            9 => child.upstream_proxy = other.upstream_proxy,
            _ => child.tools = other.tools,
        }
        (parent, child)
    })
}

fn within(child: &Capability, parent: &Capability, places: &Places) -> bool {
    parent.attenuate(child, places).is_ok()
}

fn equivalent(a: &Capability, b: &Capability, places: &Places) -> bool {
    within(a, b, places) && within(b, a, places)
}

/// Everything the child may do that the parent may not. Private directories are the box's own and
/// count for nothing.
fn beyond(child: &Capability, parent: &Capability, places: &Places) -> Vec<String> {
    let mut found = Vec::new();
    let (own, wide) = (child.path_table(places), parent.path_table(places));
    let breakpoints = own
        .iter()
        .chain(wide.iter())
        .map(|(path, _)| path.join("z"));
    let probes: Vec<_> = PROBES
        .iter()
        .map(PathBuf::from)
        .chain(breakpoints)
        .collect();
    for (probe, op) in probes
        .iter()
        .flat_map(|p| [(p, FileOp::Read), (p, FileOp::Write)])
    {
        let allowed = own.decide(probe, op);
        let real = allowed.is_allow() && allowed.reason() != Reason::AllowPrivate;
        let theirs = wide.decide(probe, op);
        if real && (!theirs.is_allow() || theirs.reason() == Reason::AllowPrivate) {
            found.push(format!("{op:?} {}", probe.display()));
        }
    }
    for name in VARIABLES {
        if decide_env(&child.env, name, b"v").is_allow()
            && !decide_env(&parent.env, name, b"v").is_allow()
        {
            found.push(format!("env {name}"));
        }
    }
    let compiled = |capability: &Capability| CompiledRules::new(capability.egress.clone());
    let (own, theirs) = (compiled(parent), compiled(child));
    for (host, port) in HOSTS
        .iter()
        .flat_map(|host| PORTS.iter().map(move |port| (host, *port)))
    {
        if decide_host(&child.egress, host, port).is_allow()
            && !decide_host(&parent.egress, host, port).is_allow()
        {
            found.push(format!("connect {host}:{port}"));
        }
        let host = Host::parse(host).unwrap();
        for (method, path) in METHODS
            .iter()
            .flat_map(|method| REQUEST_PATHS.iter().map(move |path| (method, path)))
        {
            let may = |rules: &CompiledRules| rules.decide_request(&host, port, method, path);
            if may(&theirs).is_some() && may(&own).is_none() {
                found.push(format!("{method} {host}:{port}{path}"));
            }
        }
        let gets = |capability: &Capability| -> BTreeSet<String> {
            let own = capability.secrets.iter().map(|rule| &rule.value);
            let own = own.filter(|secret| secret.is_for(&host, port));
            own.map(|secret| format!("{} in {}", secret.name, secret.place))
                .collect()
        };
        for secret in gets(child).difference(&gets(parent)) {
            found.push(format!("{secret} to {host}:{port}"));
        }
        let meters = |capability: &Capability| -> Option<LlmEndpointRule> {
            let mut endpoints = capability.llm.all_endpoints().into_iter();
            endpoints.find(|endpoint| endpoint.is_about(&host, port))
        };
        let meters = |capability| meters(capability).map(|own| (own.api, own.provider));
        let reached = decide_host(&child.egress, &host.to_string(), port).is_allow();
        if reached && meters(child) != meters(parent) {
            found.push(format!("calls to {host}:{port} charged differently"));
        }
    }
    for call in CALLS {
        if decide_tool(&child.tools, call).is_allow()
            && !decide_tool(&parent.tools, call).is_allow()
        {
            found.push(format!("call {call}"));
        }
    }
    found
}

/// Each case is dear; `PROPTEST_CASES` asks for more of them.
fn config() -> ProptestConfig {
    let asked = ProptestConfig::default();
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() {
        asked.cases
    } else {
        64
    };
    ProptestConfig {
        cases,
        failure_persistence: None,
        ..asked
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn the_order_is_reflexive(a in capabilities(), places in all_places()) {
        prop_assert_eq!(a.attenuate(&a, &places), Ok(()));
    }

    #[test]
    fn the_order_is_transitive((a, b) in related(), c in capabilities(), places in all_places()) {
        // Chains made by meeting are long enough to be worth something; so is any found by chance.
        let low = b.meet(&c, &places);
        prop_assert!(within(&low, &b, &places));
        if within(&b, &a, &places) {
            prop_assert!(within(&low, &a, &places));
        }
        if within(&a, &b, &places) && within(&b, &c, &places) {
            prop_assert!(within(&a, &c, &places));
        }
    }

    #[test]
    fn equivalent_capabilities_decide_alike((a, b) in related(), places in all_places()) {
        if equivalent(&a, &b, &places) {
            prop_assert_eq!(beyond(&a, &b, &places), Vec::<String>::new());
            prop_assert_eq!(beyond(&b, &a, &places), Vec::<String>::new());
        }
    }

    #[test]
    fn a_child_within_its_parent_does_nothing_its_parent_may_not(
        (parent, child) in related(), places in all_places()
    ) {
        if within(&child, &parent, &places) {
            prop_assert_eq!(beyond(&child, &parent, &places), Vec::<String>::new());
        }
    }

    #[test]
    fn what_a_child_does_beyond_its_parent_is_reported(
        (parent, child) in related(), places in all_places()
    ) {
        if !beyond(&child, &parent, &places).is_empty() {
            prop_assert!(!within(&child, &parent, &places));
        }
    }

    #[test]
    fn the_meet_is_within_both_and_does_nothing_either_may_not(
        a in capabilities(), b in capabilities(), places in all_places()
    ) {
        let meet = a.meet(&b, &places);
        prop_assert_eq!(a.attenuate(&meet, &places), Ok(()));
        prop_assert_eq!(b.attenuate(&meet, &places), Ok(()));
        prop_assert_eq!(beyond(&meet, &a, &places), Vec::<String>::new());
        prop_assert_eq!(beyond(&meet, &b, &places), Vec::<String>::new());
    }

    #[test]
    fn the_meet_is_the_greatest(
        (a, low) in related(), b in capabilities(), places in all_places()
    ) {
        // Every capability within both is within the meet: tried on meets with a third one, which
        // are within both, and on whatever chance gives.
        let meet = a.meet(&b, &places);
        let lower = low.meet(&a, &places).meet(&b, &places);
        prop_assert_eq!(meet.attenuate(&lower, &places), Ok(()));
        if within(&low, &a, &places) {
            let joint = a.meet(&low, &places);
            prop_assert_eq!(joint.attenuate(&low, &places), Ok(()));
        }
    }

    #[test]
    fn meeting_is_idempotent_commutative_and_associative(
        a in capabilities(), b in capabilities(), c in capabilities(), places in all_places()
    ) {
        prop_assert!(equivalent(&a.meet(&a, &places), &a, &places));
        let (ab, ba) = (a.meet(&b, &places), b.meet(&a, &places));
        prop_assert!(equivalent(&ab, &ba, &places));
        let (left, right) = (ab.meet(&c, &places), a.meet(&b.meet(&c, &places), &places));
        prop_assert!(equivalent(&left, &right, &places));
    }
}

/// Laws of the form "if within, then" prove nothing unless pairs often are, and often are not.
#[test]
fn generated_pairs_are_often_within_and_often_not() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut counts = [0_u32; 2];
    for _ in 0..200 {
        let (parent, child) = related().new_tree(&mut runner).unwrap().current();
        let places = all_places().new_tree(&mut runner).unwrap().current();
        counts[usize::from(within(&child, &parent, &places))] += 1;
    }
    assert!(counts.iter().all(|count| *count > 40), "{counts:?}");
}
