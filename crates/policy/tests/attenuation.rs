//! Each field of a capability on its own: what a child may not have more of, and how that is said.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use belljar_policy::{
    BlockedTool, CallRule, Capability, Condition, Degraded, DomainPattern, EgressEffect,
    EgressRule, EgressTerms, Emulation, EnvAllow, FsMode, ImageName, LlmApi, LlmEndpointRule,
    McpServer, OnBudget, Origin, PathGlob, PathRule, Permission, Places, Pointer, ProxyPlace,
    ProxyResolution, ProxyTerms, PublishedPort, Rule, SecretPlace, SecretRule, SecretSource,
    Source, Test, Tier, ToolPattern, Verdict, Workspace,
};

fn places() -> Places {
    Places {
        home: PathBuf::from("/home/ann"),
        work: PathBuf::from("/home/ann/project"),
        homes: vec![PathBuf::from("/home"), PathBuf::from("/root")],
    }
}

fn origin(source: Source) -> Origin {
    Origin {
        file: Arc::from("child.yaml"),
        line: 4,
        column: 1,
        source,
    }
}

fn path(text: &str) -> Rule<PathRule> {
    Rule::new(
        PathRule::parse_hidden(text).unwrap(),
        origin(Source::Document),
    )
}

fn egress(domain: &str, ports: &[u16], rate: u32, effect: EgressEffect) -> Rule<EgressRule> {
    let value = EgressRule {
        domain: DomainPattern::parse(domain).unwrap(),
        ports: ports.to_vec(),
        rate_limit_per_min: rate,
        effect,
        terms: EgressTerms::default(),
    };
    Rule::new(value, origin(Source::Document))
}

fn allow(domain: &str, ports: &[u16], rate: u32) -> Rule<EgressRule> {
    egress(domain, ports, rate, EgressEffect::Allow)
}

fn tool(text: &str) -> Rule<ToolPattern> {
    Rule::new(ToolPattern::parse(text).unwrap(), origin(Source::Document))
}

fn block(text: &str) -> Rule<BlockedTool> {
    Rule::new(BlockedTool::parse(text).unwrap(), origin(Source::Document))
}

/// A capability that differs from the closed one as `edit` says.
fn capability(edit: impl FnOnce(&mut Capability)) -> Capability {
    let mut capability = Capability::closed(Arc::from("child.yaml"));
    capability.filesystem.mode = FsMode::ReadOnly;
    edit(&mut capability);
    capability
}

/// `less` is within `more` and not the other way round, and the excess is said so.
#[track_caller]
fn check(less: impl FnOnce(&mut Capability), more: impl FnOnce(&mut Capability), said: &[&str]) {
    let (less, more) = (capability(less), capability(more));
    assert_eq!(more.attenuate(&less, &places()), Ok(()));
    let excess = less.attenuate(&more, &places()).unwrap_err();
    let shown: Vec<_> = excess.iter().map(ToString::to_string).collect();
    assert_eq!(shown, said);
}

#[test]
fn what_servers_may_do_by_themselves() {
    check(
        |c| c.tools.on_new_tool = Verdict::Deny,
        |c| c.tools.on_new_tool = Verdict::Allow,
        &["mcp.on_new_tool: the child asks for allow (child.yaml), the parent has deny"],
    );
    for field in ["sampling", "elicitation", "roots"] {
        let set = move |c: &mut Capability, verdict| match field {
            "sampling" => c.tools.server_requests.sampling = verdict,
            "elicitation" => c.tools.server_requests.elicitation = verdict,
            _ => c.tools.server_requests.roots = verdict,
        };
        let said = format!(
            "mcp.server_requests.{field}: the child asks for allow (child.yaml), the parent has deny"
        );
        check(
            move |c| set(c, Verdict::Deny),
            move |c| set(c, Verdict::Allow),
            &[&said],
        );
    }
}

#[test]
fn isolation() {
    check(
        |c| c.tier = Tier::Gvisor,
        |_| {},
        &["sandbox_tier: the child asks for seccomp (child.yaml), the parent has gvisor"],
    );
    check(
        |_| {},
        |c| c.emulation = Emulation::Allow,
        &["allow_emulation: the child asks for true (child.yaml), the parent has false"],
    );
    check(
        |_| {},
        |c| c.degraded = Degraded::Accept,
        &["degraded: the child asks for true (child.yaml), the parent has false"],
    );
    let image = |name| {
        let name = ImageName::parse(name).unwrap();
        Some(Rule::new(name, origin(Source::Document)))
    };
    // An image is files that nobody granted; without one, the host's are there.
    let said = |less: Option<_>, more: Option<_>| {
        let less = capability(|c| c.image = less);
        let more = capability(|c| c.image = more);
        let excess = less.attenuate(&more, &places()).unwrap_err();
        excess[0].to_string()
    };
    assert_eq!(
        said(None, image("agent")),
        "image: the child asks for agent (child.yaml:4), the parent has none"
    );
    assert_eq!(
        said(image("agent"), image("other")),
        "image: the child asks for other (child.yaml:4), the parent has agent"
    );
    assert!(said(image("agent"), None).contains("read /"));
    let own = |tier| {
        capability(|c| {
            c.tier = tier;
            c.image = image("agent");
        })
    };
    for (child, parent) in [
        (Tier::Native, Tier::Container),
        (Tier::Container, Tier::Native),
    ] {
        assert_eq!(own(parent).attenuate(&own(child), &places()), Ok(()));
    }
    let weaker = own(Tier::Gvisor).attenuate(&own(Tier::Container), &places());
    assert_eq!(
        weaker.unwrap_err()[0].to_string(),
        "sandbox_tier: the child asks for container (child.yaml), the parent has gvisor"
    );
    check(
        |c| {
            c.image = image("agent");
            c.filesystem.hidden = vec![path("/usr/share")];
        },
        |c| c.image = image("agent"),
        &[
            "filesystem_config.readable_paths: the child asks for the image's /usr/share (built-in), the parent has no access",
        ],
    );
    check(
        |_| {},
        |c| c.workdir = Some(path("/data")),
        &["root: the child asks for /data (child.yaml:4), the parent has none"],
    );
    check(
        |c| c.filesystem.workspace = Workspace::Overlay,
        |_| {},
        &[
            "filesystem_config.workspace: the child asks for direct (child.yaml), the parent has overlay",
        ],
    );
}

#[test]
fn limits() {
    check(
        |c| c.limits.memory_bytes = Some(1024 * 1024),
        |c| c.limits.memory_bytes = Some(3 * 512 * 1024),
        &["resource_limits.max_memory_mb: the child asks for 1.5 (child.yaml), the parent has 1"],
    );
    check(
        |c| c.limits.wall_time = Some(Duration::from_millis(1500)),
        |_| {},
        &[
            "resource_limits.max_wall_seconds: the child asks for no limit (child.yaml), the parent has 1.5",
        ],
    );
    let bounded = capability(|c| c.limits.cost_usd = Some(1.0));
    let nonsense = capability(|c| c.limits.cost_usd = Some(f64::NAN));
    assert!(bounded.attenuate(&nonsense, &places()).is_err());
}

#[test]
fn paths() {
    let field = "filesystem_config.readable_paths";
    check(
        |_| {},
        |c| c.filesystem.readable.push(path("~/.ssh")),
        &[&format!(
            "{field}: the child asks for read /home/ann/.ssh (child.yaml:4), the parent has no access"
        )],
    );
    check(
        |c| c.filesystem.hidden.push(path("/data")),
        |_| {},
        &[&format!(
            "{field}: the child asks for read /data (built-in), the parent has no access"
        )],
    );
    check(
        |c| c.filesystem.hidden.push(path("**/notes")),
        |_| {},
        &[
            "filesystem_config.hidden_paths: the child asks for no such rule (child.yaml), the parent has **/notes",
        ],
    );
    // Written by the user a name is hidden in the working directory too; built in, it is not.
    check(
        |c| c.filesystem.hidden.push(path("**/.env")),
        |_| {},
        &[
            "filesystem_config.hidden_paths: the child asks for no such rule (child.yaml), the parent has **/.env",
        ],
    );
}

#[test]
fn the_same_file_by_another_name_is_the_same_file() {
    let home = capability(|c| c.filesystem.readable.push(path("~/.ssh")));
    let absolute = capability(|c| c.filesystem.readable.push(path("/home/ann/.ssh")));
    assert_eq!(home.attenuate(&absolute, &places()), Ok(()));
    assert_eq!(absolute.attenuate(&home, &places()), Ok(()));
    let elsewhere = Places {
        home: PathBuf::from("/home/bob"),
        ..places()
    };
    assert!(home.attenuate(&absolute, &elsewhere).is_err());
}

#[test]
fn powers_and_variables() {
    check(
        |c| {
            c.permissions.insert(Permission::ReadEnv);
        },
        |c| {
            c.permissions
                .extend([Permission::ReadEnv, Permission::SpawnSubprocess]);
        },
        &[
            "permissions: the child asks for spawn_subprocess (child.yaml), the parent has [read_env]",
        ],
    );
    let listed = |names: &[&str]| {
        let entry = |name: &&str| ((*name).to_owned(), origin(Source::Document));
        EnvAllow::Listed(names.iter().map(entry).collect())
    };
    check(
        |c| c.env.allow = listed(&["EDITOR"]),
        |c| c.env.allow = listed(&["EDITOR", "PAGER"]),
        &["env_allowlist: the child asks for PAGER (child.yaml:4), the parent has no such name"],
    );
    check(
        |c| c.env.allow = listed(&["EDITOR"]),
        |c| c.env.allow = EnvAllow::All,
        &["env_allowlist: the child asks for every variable (child.yaml), the parent has a list"],
    );
    let base = capability(|_| {});
    let secret = capability(|c| c.env.allow = listed(&["API_KEY"]));
    assert_eq!(
        base.attenuate(&secret, &places()),
        Ok(()),
        "the name passes nowhere"
    );
}

#[test]
fn connections() {
    let beyond = |rule: &str| {
        format!(
            "network_egress_rules: the child asks for {rule} (child.yaml:4), the parent has no rule that covers it"
        )
    };
    check(
        |c| c.egress.push(allow("a.example.com", &[443], 5)),
        |c| c.egress.push(allow("*.example.com", &[443], 5)),
        &[&beyond("*.example.com ports [443] at 5/min")],
    );
    check(
        |c| c.egress.push(allow("x.com", &[443], 5)),
        |c| c.egress.push(allow("x.com", &[], 5)),
        &[&beyond("x.com at 5/min")],
    );
    check(
        |c| c.egress.push(allow("x.com", &[443], 5)),
        |c| c.egress.push(allow("x.com", &[443], 6)),
        &[&beyond("x.com ports [443] at 6/min")],
    );
    check(
        |c| c.egress.push(allow("10.0.0.0/16", &[], 5)),
        |c| c.egress.push(allow("10.0.0.0/8", &[], 5)),
        &[&beyond("10.0.0.0/8 at 5/min")],
    );
    check(
        |c| c.egress.push(egress("x.com", &[], 1, EgressEffect::Deny)),
        |_| {},
        &[
            "network_egress_rules: the child asks for no rule that blocks it (child.yaml), the parent has x.com blocked",
        ],
    );
}

fn write_below(glob: &str) -> Rule<CallRule> {
    let condition = Condition {
        at: Pointer::parse("/path").unwrap(),
        test: Test::Glob(PathGlob::parse(glob).unwrap()),
    };
    let value = CallRule {
        tool: ToolPattern::parse("fs:write").unwrap(),
        verdict: Verdict::Allow,
        conditions: vec![condition],
        rate_limit_per_min: None,
        redact: Vec::new(),
    };
    Rule::new(value, origin(Source::Document))
}

#[test]
fn tools() {
    check(
        |c| c.tools.allowed = Some(vec![tool("fs:read")]),
        |c| c.tools.allowed = Some(vec![tool("fs:*")]),
        &["allowed_tools: the child asks for fs:* (child.yaml:4), the parent has no such tool"],
    );
    check(
        |_| {},
        |c| c.tools.allowed = None,
        &["allowed_tools: the child asks for every tool (child.yaml), the parent has a list"],
    );
    check(
        |c| c.tools.blocked.push(block("fs:*")),
        |c| c.tools.blocked.push(block("fs:read")),
        &["blocked_tools: the child asks for not blocked (child.yaml), the parent has fs:*"],
    );
    check(
        |c| c.tools.rate_limit_per_min = Some(3),
        |c| c.tools.rate_limit_per_min = Some(4),
        &["mcp.rate_limit_per_minute: the child asks for 4 (child.yaml), the parent has 3"],
    );
    check(
        |c| c.tools.rules.push(write_below("/work/**")),
        |c| c.tools.rules.push(write_below("/**")),
        &[
            "mcp.rules: the child asks for allow fs:write where /path within /** (child.yaml:4), the parent has no rule that covers it",
        ],
    );
    check(
        |c| {
            c.tools.allowed = None;
            c.tools.rules.push(write_below("/work/**"));
        },
        |c| c.tools.allowed = None,
        &[
            "mcp.rules: the child asks for no such rule (child.yaml), the parent has allow fs:write where /path within /work/**",
        ],
    );
    check(
        |_| {},
        |c| c.tools.server_requests.sampling = Verdict::Hold,
        &[
            "mcp.server_requests.sampling: the child asks for hold (child.yaml), the parent has deny",
        ],
    );
    check(
        |c| c.tools.servers = Some(Default::default()),
        |c| {
            let url = "http://127.0.0.1:1/".to_owned();
            let server = Rule::new(McpServer::at(url), origin(Source::Document));
            c.tools.servers = Some([("web".to_owned(), server)].into());
        },
        &[
            "mcp.servers: the child asks for web: http://127.0.0.1:1/ (child.yaml:4), the parent has no such server",
        ],
    );
}

fn secret(domain: &str, ports: &[u16], env: Option<&str>) -> Rule<SecretRule> {
    let value = SecretRule {
        name: "openai".to_owned(),
        source: SecretSource::Env("OPENAI_API_KEY".to_owned()),
        domain: DomainPattern::parse(domain).unwrap(),
        ports: ports.to_vec(),
        place: Some(SecretPlace::Bearer),
        env: env.map(str::to_owned),
        refresh: None,
    };
    Rule::new(value, origin(Source::Document))
}

#[test]
fn secrets() {
    check(
        |_| {},
        |c| c.secrets = vec![secret("api.openai.com", &[443], Some("OPENAI_API_KEY"))],
        &[
            "secrets: the child asks for openai from the variable OPENAI_API_KEY for api.openai.com ports [443] as bearer, \
             placeholder in OPENAI_API_KEY (child.yaml:4), the parent has none that covers it",
        ],
    );
    check(
        |c| c.secrets = vec![secret("api.openai.com", &[443], None)],
        |c| c.secrets = vec![secret("*.openai.com", &[], None)],
        &[
            "secrets: the child asks for openai from the variable OPENAI_API_KEY for *.openai.com as bearer \
             (child.yaml:4), the parent has none that covers it",
        ],
    );
    let parent = capability(|c| c.secrets = vec![secret("api.openai.com", &[], None)]);
    let other = |edit: fn(&mut SecretRule)| {
        let child = capability(|c| {
            let mut rule = secret("api.openai.com", &[], None);
            edit(&mut rule.value);
            c.secrets = vec![rule];
        });
        parent.attenuate(&child, &places())
    };
    assert_eq!(other(|_| {}), Ok(()));
    // Whoever may name another source may have any secret of the host's.
    assert!(other(|s| s.source = SecretSource::Command(vec!["cat".to_owned()])).is_err());
    assert!(other(|s| s.source = SecretSource::Store("openai".to_owned())).is_err());
    assert!(other(|s| s.place = SecretPlace::header("x-echo").ok()).is_err());
    // Where the placeholder stands, every secret goes: without a place of its own it goes to fewer.
    assert_eq!(other(|s| s.place = None), Ok(()));
    assert!(other(|s| s.name = "other".to_owned()).is_err());
    assert!(other(|s| s.env = Some("X".to_owned())).is_err());
    // A program that is run on the host once is not one that is run every minute.
    let every = |seconds| {
        move |c: &mut Capability| {
            c.secrets = vec![secret("api.openai.com", &[], None)];
            c.secrets[0].value.refresh = seconds;
        }
    };
    let said = |seconds: u32| {
        format!(
            "secrets: the child asks for openai from the variable OPENAI_API_KEY for api.openai.com as bearer, refreshed every \
             {seconds} s (child.yaml:4), the parent has none that covers it"
        )
    };
    check(every(None), every(Some(3600)), &[&said(3600)]);
    check(every(Some(3600)), every(Some(60)), &[&said(60)]);
    let bare = |c: &mut Capability| {
        c.secrets = vec![secret("api.openai.com", &[], None)];
        c.secrets[0].value.place = None;
    };
    check(
        bare,
        |c| c.secrets = vec![secret("api.openai.com", &[], None)],
        &[
            "secrets: the child asks for openai from the variable OPENAI_API_KEY for api.openai.com as bearer \
             (child.yaml:4), the parent has none that covers it",
        ],
    );
}

#[test]
fn a_source_of_a_secret_stays_out_of_sight() {
    let withheld = |c: &mut Capability| {
        c.env.allow = EnvAllow::All;
        let entry = ("MY_CRED".to_owned(), origin(Source::Document));
        c.env.withheld = [entry].into();
    };
    check(
        withheld,
        |c| c.env.allow = EnvAllow::All,
        &[
            "env_allowlist: the child asks for MY_CRED (child.yaml), the parent has it withheld as a secret",
        ],
    );
}

#[test]
fn published_ports() {
    let port = |on_host, address: &str| {
        let value = PublishedPort {
            in_box: 8080,
            on_host,
            address: address.parse().unwrap(),
        };
        Rule::new(value, origin(Source::Document))
    };
    check(
        |_| {},
        |c| c.ports = vec![port(18080, "127.0.0.1")],
        &[
            "ports: the child asks for port 8080 of the box at 127.0.0.1:18080 (child.yaml:4), the parent has none that covers it",
        ],
    );
    check(
        |c| c.ports = vec![port(0, "127.0.0.1")],
        |c| c.ports = vec![port(0, "0.0.0.0")],
        &[
            "ports: the child asks for port 8080 of the box at a free port of 0.0.0.0 (child.yaml:4), the parent has none that covers it",
        ],
    );
}

#[test]
fn metering() {
    check(
        |_| {},
        |c| c.llm.on_budget = OnBudget::Refuse,
        &["llm.on_budget: the child asks for refuse (child.yaml), the parent has kill"],
    );
    let reaches = |c: &mut Capability| c.egress = vec![allow("llm.corp", &[], 60)];
    let meters = |c: &mut Capability| {
        let value = LlmEndpointRule {
            domain: DomainPattern::parse("llm.corp").unwrap(),
            ports: vec![8000],
            api: LlmApi::OpenAi,
            provider: "local".to_owned(),
        };
        c.llm.endpoints = vec![Rule::new(value, origin(Source::Document))];
        c.llm.prices = Some(path("~/prices.tsv"));
    };
    let plain = capability(reaches);
    let metered = capability(|c| {
        reaches(c);
        meters(c);
    });
    // Neither may leave out how it is charged, nor change it.
    let said = |parent: &Capability, child: &Capability| -> Vec<String> {
        let excess = parent.attenuate(child, &places()).unwrap_err();
        excess.iter().map(ToString::to_string).collect()
    };
    let endpoint = "llm.corp ports [8000] as openai at local's prices";
    assert_eq!(
        said(&metered, &plain),
        [
            format!("llm.endpoints: the child asks for [] (child.yaml), the parent has [{endpoint}]"),
            "llm.prices: the child asks for the shipped ones (child.yaml), the parent has ~/prices.tsv".to_owned(),
        ]
    );
    assert_eq!(said(&plain, &metered).len(), 2);
    // Who reaches nothing calls no model.
    let closed = capability(|_| {});
    assert_eq!(metered.attenuate(&closed, &places()), Ok(()));
    let meet = metered.meet(&plain, &places());
    assert!(meet.egress.is_empty() && meet.llm.endpoints.is_empty());
    assert_eq!(metered.meet(&metered, &places()).llm, metered.llm);
}

#[test]
fn upstream_proxies() {
    let proxy = |resolution| {
        let value = ProxyTerms {
            place: ProxyPlace::parse("http://proxy.corp:3128").unwrap(),
            credentials: Some(SecretSource::Env("PROXY_LOGIN".to_owned())),
            resolution,
        };
        Some(Rule::new(value, origin(Source::Document)))
    };
    check(
        |_| {},
        |c| c.upstream_proxy = proxy(ProxyResolution::AtProxy),
        &[
            "upstream_proxy: the child asks for http://proxy.corp:3128 with the variable PROXY_LOGIN, \
             which looks names up (child.yaml:4), the parent has none",
        ],
    );
    let local = capability(|c| c.upstream_proxy = proxy(ProxyResolution::Local));
    let remote = capability(|c| c.upstream_proxy = proxy(ProxyResolution::AtProxy));
    assert!(local.attenuate(&remote, &places()).is_err());
    assert_eq!(local.meet(&remote, &places()).upstream_proxy, None);
}
