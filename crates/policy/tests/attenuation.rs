//! Each field of a capability on its own: what a child may not have more of, and how that is said.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use belljar_policy::{
    Capability, Degraded, DomainPattern, EgressEffect, EgressRule, EgressTerms, EnvAllow, FsMode,
    Origin, PathRule, Permission, Places, Rule, Source, Tier, ToolPattern, Workspace,
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
fn isolation() {
    check(
        |c| c.tier = Tier::Gvisor,
        |_| {},
        &["sandbox_tier: the child asks for seccomp (child.yaml), the parent has gvisor"],
    );
    check(
        |_| {},
        |c| c.degraded = Degraded::Accept,
        &["degraded: the child asks for true (child.yaml), the parent has false"],
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

#[test]
fn tools() {
    check(
        |c| c.tools.allowed = Some(vec![tool("fs:read")]),
        |c| c.tools.allowed = Some(vec![tool("fs:*")]),
        &["allowed_tools: the child asks for fs:* (child.yaml:4), the parent has no such tool"],
    );
    check(
        |c| c.tools.allowed = Some(Vec::new()),
        |_| {},
        &["allowed_tools: the child asks for every tool (child.yaml), the parent has a list"],
    );
    check(
        |c| c.tools.blocked.push(tool("fs:*")),
        |c| c.tools.blocked.push(tool("fs:read")),
        &["blocked_tools: the child asks for not blocked (child.yaml), the parent has fs:*"],
    );
    check(
        |c| c.tools.rate_limit_per_min = Some(3),
        |c| c.tools.rate_limit_per_min = Some(4),
        &["mcp.rate_limit_per_minute: the child asks for 4 (child.yaml), the parent has 3"],
    );
}
