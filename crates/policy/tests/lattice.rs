//! The laws of the order on random capabilities, and the one that ties it to decisions: what a child
//! within its parent may do, the parent may do.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod generate;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use belljar_policy::{
    Capability, CompiledRules, Decision, FileOp, Filesystem, Host, Limits, LlmEndpointRule, Places,
    Reason, SecretRule, Tier, ToolAnswer, ToolQuestion, ToolRules, Verdict, decide_env,
    decide_host,
};
use generate::{
    ARGUMENTS, CALLS, HOSTS, METHODS, PORTS, PROBES, READ_URIS, REQUEST_PATHS, VARIABLES,
    all_places, capabilities,
};
use proptest::prelude::*;
use proptest::sample::select;

/// Puts one field into a capability.
type Exchange = Box<dyn FnOnce(&mut Capability)>;

/// Each field of a capability by itself. Taken apart whole, so that a new field can't be left out.
fn exchanges(other: Capability) -> Vec<Exchange> {
    let Capability {
        name: _,
        tier,
        degraded,
        emulation,
        image,
        workdir,
        filesystem,
        egress,
        secrets,
        ports,
        llm,
        upstream_proxy,
        limits,
        permissions,
        env,
        tools,
    } = other;
    let files = filesystem.clone();
    let Filesystem {
        mode,
        workspace,
        home,
        writable,
        readable,
        hidden,
        protected,
    } = files;
    let shared = limits.clone();
    let Limits {
        memory_bytes,
        cpu_time,
        cpu_percent,
        wall_time,
        processes,
        open_files,
        file_size_bytes,
        disk_bytes,
        connections,
        cost_usd,
        tokens,
    } = shared;
    vec![
        Box::new(move |c| c.tier = tier),
        Box::new(move |c| c.degraded = degraded),
        Box::new(move |c| c.emulation = emulation),
        Box::new(move |c| c.image = image),
        Box::new(move |c| c.workdir = workdir),
        Box::new(move |c| c.filesystem = filesystem),
        Box::new(move |c| c.filesystem.mode = mode),
        Box::new(move |c| c.filesystem.workspace = workspace),
        Box::new(move |c| c.filesystem.home = home),
        Box::new(move |c| c.filesystem.writable = writable),
        Box::new(move |c| c.filesystem.readable = readable),
        Box::new(move |c| c.filesystem.hidden.extend(hidden)),
        Box::new(move |c| c.filesystem.protected = protected),
        Box::new(move |c| c.egress = egress),
        Box::new(move |c| c.secrets = secrets),
        Box::new(move |c| c.ports = ports),
        Box::new(move |c| c.llm = llm),
        Box::new(move |c| c.upstream_proxy = upstream_proxy),
        Box::new(move |c| c.limits = limits),
        Box::new(move |c| c.limits.memory_bytes = memory_bytes),
        Box::new(move |c| c.limits.cpu_time = cpu_time),
        Box::new(move |c| c.limits.cpu_percent = cpu_percent),
        Box::new(move |c| c.limits.wall_time = wall_time),
        Box::new(move |c| c.limits.processes = processes),
        Box::new(move |c| c.limits.open_files = open_files),
        Box::new(move |c| c.limits.file_size_bytes = file_size_bytes),
        Box::new(move |c| c.limits.disk_bytes = disk_bytes),
        Box::new(move |c| c.limits.connections = connections),
        Box::new(move |c| c.limits.cost_usd = cost_usd),
        Box::new(move |c| c.limits.tokens = tokens),
        Box::new(move |c| c.permissions = permissions),
        Box::new(move |c| c.env = env),
        Box::new(move |c| c.tools = tools),
    ]
}

/// A pair in which the child is likely, though not certain, to be within the parent: one field of
/// the parent's is exchanged. Independent pairs almost never are, and would prove nothing.
fn related() -> impl Strategy<Value = (Capability, Capability)> {
    let pairs = (capabilities(), capabilities(), any::<prop::sample::Index>());
    pairs.prop_map(|(parent, other, field)| {
        let mut child = parent.clone();
        let mut exchanges = exchanges(other);
        exchanges.swap_remove(field.index(exchanges.len()))(&mut child);
        (parent, child)
    })
}

/// What a box may use and do that no path, name or host tells.
fn powers_beyond(child: &Capability, parent: &Capability, found: &mut Vec<String>) {
    let amounts = |limits: &Limits| {
        let Limits {
            memory_bytes,
            cpu_time,
            cpu_percent,
            wall_time,
            processes,
            open_files,
            file_size_bytes,
            disk_bytes,
            connections,
            cost_usd,
            tokens,
        } = limits.clone();
        let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
        let bytes = |amount: Option<u64>| amount.map(|amount| amount as f64);
        let number = |amount: Option<u32>| amount.map(f64::from);
        [
            bytes(memory_bytes),
            seconds(cpu_time),
            cpu_percent,
            seconds(wall_time),
            number(processes),
            number(open_files),
            bytes(file_size_bytes),
            bytes(disk_bytes),
            number(connections),
            cost_usd,
            bytes(tokens),
        ]
    };
    let (own, most) = (amounts(&child.limits), amounts(&parent.limits));
    for (at, (own, most)) in own.iter().zip(most).enumerate() {
        let [own, most] = [*own, most].map(|amount| amount.unwrap_or(f64::INFINITY));
        if own > most {
            found.push(format!("limit {at}: {own} over {most}"));
        }
    }
    for extra in child.permissions.difference(&parent.permissions) {
        found.push(format!("permission {}", extra.as_str()));
    }
    let weaker = [
        child.tier.strength() < parent.tier.strength(),
        child.degraded > parent.degraded,
        child.emulation > parent.emulation,
        child.filesystem.workspace > parent.filesystem.workspace,
        child.filesystem.home > parent.filesystem.home,
        child.llm.on_budget > parent.llm.on_budget,
    ];
    found.extend(
        weaker
            .iter()
            .enumerate()
            .filter(|(_, is)| **is)
            .map(|(at, _)| format!("wall {at}")),
    );
    let other = |own: Option<String>, theirs: Option<String>| own.is_some() && own != theirs;
    let shown = |c: &Capability| {
        [
            c.image.as_ref().map(|rule| rule.value.to_string()),
            c.workdir.as_ref().map(|rule| rule.value.to_string()),
            c.upstream_proxy.as_ref().map(|rule| rule.value.to_string()),
        ]
    };
    for (own, theirs) in shown(child).into_iter().zip(shown(parent)) {
        if other(own.clone(), theirs) {
            found.push(format!("another {own:?}"));
        }
    }
}

fn within(child: &Capability, parent: &Capability, places: &Places) -> bool {
    parent.attenuate(child, places).is_ok()
}

fn equivalent(a: &Capability, b: &Capability, places: &Places) -> bool {
    within(a, b, places) && within(b, a, places)
}

/// Whether something of the host's is read or written: what a box has for itself takes nothing from anybody.
fn is_about_the_hosts(decision: &Decision) -> bool {
    let own = [Reason::AllowPrivate, Reason::AllowPrivateCopy];
    decision.is_allow() && !own.contains(&decision.reason())
}

/// Everything the child may do that the parent may not. Private directories are the box's own and
/// count for nothing.
fn beyond(child: &Capability, parent: &Capability, places: &Places) -> Vec<String> {
    let mut found = Vec::new();
    powers_beyond(child, parent, &mut found);
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
        let theirs = wide.decide(probe, op);
        if is_about_the_hosts(&allowed) && !is_about_the_hosts(&theirs) {
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
            let filled = |secret: &SecretRule| {
                let own = secret.place.as_ref();
                let own = own.map(|place| format!("{} in {place}", secret.name));
                let placeholder = format!("{} where its placeholder stands", secret.name);
                let again = secret.refresh;
                let again = [60, 3600].map(|seconds| {
                    again
                        .filter(|again| *again <= seconds)
                        .map(|_| format!("{} again after {seconds} s", secret.name))
                });
                [Some(placeholder), own].into_iter().chain(again).flatten()
            };
            own.flat_map(filled).collect()
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
    calls_beyond(&child.tools, &parent.tools, &mut found);
    found
}

/// A call that the child makes more easily than the parent: allowed instead of held, or held instead of denied; or
/// without counting against a rate that the parent's counts against.
fn calls_beyond(child: &ToolRules, parent: &ToolRules, found: &mut Vec<String>) {
    let calls = CALLS
        .iter()
        .flat_map(|call| ARGUMENTS.iter().map(move |arguments| (call, arguments)));
    for (call, arguments) in calls {
        let parsed = serde_json::from_str(arguments).unwrap();
        let question = ToolQuestion {
            arguments: &parsed,
            ..ToolQuestion::named(call).unwrap()
        };
        let (own, theirs) = (child.answer_tool(&question), parent.answer_tool(&question));
        if own.decision.verdict() < theirs.decision.verdict() {
            found.push(format!("call {call} {arguments}"));
        }
        let least = |answer: &ToolAnswer| {
            answer
                .rates
                .iter()
                .map(|rate| rate.per_minute)
                .min()
                .unwrap_or(u32::MAX)
        };
        if own.decision.verdict() != Verdict::Deny && least(&own) > least(&theirs) {
            found.push(format!("call {call} {arguments} more often"));
        }
        let (server, name) = call.split_once(':').unwrap();
        if child.decide_prompt(server, name).verdict()
            < parent.decide_prompt(server, name).verdict()
        {
            found.push(format!("prompt {call}"));
        }
        if child.decide_server(server).verdict() < parent.decide_server(server).verdict() {
            found.push(format!("server {server}"));
        }
        for uri in READ_URIS {
            if child.decide_resource(server, uri).verdict()
                < parent.decide_resource(server, uri).verdict()
            {
                found.push(format!("resource {server}:{uri}"));
            }
        }
    }
    for method in ["sampling/createMessage", "elicitation/create", "roots/list"] {
        if child.decide_server_request(method).verdict()
            < parent.decide_server_request(method).verdict()
        {
            found.push(method.to_owned());
        }
    }
    let wide = parent.all_servers();
    for (name, server) in child.all_servers() {
        if wide.get(name).is_none_or(|own| own.value != server.value) {
            found.push(format!("start {name}"));
        }
    }
}

/// A set of tool rules and one that is likely within it: a field of it exchanged.
fn related_tools() -> impl Strategy<Value = (ToolRules, ToolRules)> {
    (capabilities(), capabilities(), 0..11_usize).prop_map(|(parent, other, field)| {
        let (parent, other) = (parent.tools, other.tools);
        let mut child = parent.clone();
        match field {
            0 => child.servers = other.servers,
            1 => child.allowed = other.allowed,
            2 => child.blocked.extend(other.blocked),
            3 => child.rules = other.rules,
            4 => child.rules.extend(other.rules),
            5 => child.resources = other.resources,
            6 => child.prompts = other.prompts,
            7 => child.blocked = other.blocked,
            8 => child.server_requests = other.server_requests,
            9 => child.on_new_tool = other.on_new_tool,
            _ => child.rate_limit_per_min = other.rate_limit_per_min,
        }
        (parent, child)
    })
}

fn with_tools(tools: ToolRules) -> Capability {
    Capability {
        tools,
        ..Capability::closed("tools".into())
    }
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
    fn a_child_may_move_to_a_stronger_tier_and_never_to_a_weaker_one(
        parent in capabilities(), tier in select(vec![Tier::Native, Tier::Container, Tier::Gvisor, Tier::Firecracker]), places in all_places()
    ) {
        let child = Capability { tier, ..parent.clone() };
        let (own, wanted) = (parent.tier.strength(), tier.strength());
        prop_assert_eq!(within(&child, &parent, &places), wanted >= own);
        prop_assert!(parent.meet(&child, &places).tier.strength() >= own.max(wanted));
    }

    #[test]
    fn tools_of_a_child_within_its_parent_do_nothing_its_parent_may_not(
        (parent, child) in related_tools(), places in all_places()
    ) {
        let (parent, child) = (with_tools(parent), with_tools(child));
        if within(&child, &parent, &places) {
            prop_assert_eq!(beyond(&child, &parent, &places), Vec::<String>::new());
        }
    }

    #[test]
    fn the_order_of_tools_is_transitive(
        (a, b) in related_tools(), (_, c) in related_tools(), third in related_tools(), places in all_places()
    ) {
        let all = [a, b, c, third.0, third.1].map(with_tools);
        let order = all.each_ref().map(|x| all.each_ref().map(|y| within(x, y, &places)));
        let holds = |x: usize, y: usize, z: usize| !(order[x][y] && order[y][z]) || order[x][z];
        for x in 0..all.len() {
            for y in 0..all.len() {
                for z in 0..all.len() {
                    prop_assert!(holds(x, y, z));
                }
            }
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

/// Chance exchanges a field too seldom to notice that its comparison is gone: so each in turn, with files left out of it,
/// which are dear to compare.
#[test]
fn each_field_by_itself_is_compared() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let places = all_places().new_tree(&mut runner).unwrap().current();
    let mut random = || capabilities().new_tree(&mut runner).unwrap().current();
    let bare = Capability::closed("bare".into()).filesystem;
    let mut reported = 0;
    for _ in 0..24 {
        let mut parent = random();
        let Filesystem {
            workspace, home, ..
        } = parent.filesystem;
        parent.filesystem = Filesystem {
            workspace,
            home,
            ..bare.clone()
        };
        for exchange in exchanges(random()) {
            let mut child = parent.clone();
            exchange(&mut child);
            let Filesystem {
                workspace, home, ..
            } = child.filesystem;
            child.filesystem = Filesystem {
                workspace,
                home,
                ..bare.clone()
            };
            let mut found = Vec::new();
            powers_beyond(&child, &parent, &mut found);
            if !found.is_empty() {
                assert!(!within(&child, &parent, &places), "{found:?}");
                reported += 1;
            }
        }
    }
    assert!(reported > 100, "{reported}");
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
