//! The compiled rules decide as the list read rule by rule does.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use belljar_policy::{
    CompiledRules, DomainPattern, EgressEffect, EgressRule, EgressTerms, Host, HttpTerms, Origin,
    Outcome, PathPattern, PrivateAddresses, Reach, Rule, decide_host,
};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

const DOMAINS: &[&str] = &[
    "a.com",
    "b.a.com",
    "*.a.com",
    "*.b.a.com",
    "com",
    "*.com",
    "10.0.0.1",
    "10.0.0.0/8",
    "10.0.0.0/31",
    "0.0.0.0/0",
    "::/0",
    "fd00::/8",
    "fd00::1",
    "10.0.0.1/32",
];
const HOSTS: &[&str] = &[
    "a.com",
    "A.com.",
    "b.a.com",
    "c.b.a.com",
    "com",
    "xa.com",
    "10.0.0.1",
    "10.0.0.0",
    "10.255.0.1",
    "11.0.0.1",
    "::ffff:10.0.0.1",
    "fd00::1",
    "fd00::2",
    "2001:db8::1",
    "0xa000001",
];
const PORTS: &[u16] = &[22, 80, 443];

fn rule(
    domain: DomainPattern,
    ports: Vec<u16>,
    effect: EgressEffect,
    line: u32,
) -> Rule<EgressRule> {
    let value = EgressRule {
        domain,
        ports,
        rate_limit_per_min: 60,
        effect,
        terms: EgressTerms::default(),
    };
    let origin = Origin {
        line,
        ..Origin::built_in()
    };
    Rule::new(value, origin)
}

fn rules() -> impl Strategy<Value = Vec<Rule<EgressRule>>> {
    let domain = prop_oneof![
        12 => select(DOMAINS).prop_map(|text| DomainPattern::parse(text).unwrap()),
        1 => Just(DomainPattern::Any),
    ];
    let effect = select(vec![
        EgressEffect::Allow,
        EgressEffect::Allow,
        EgressEffect::Allow,
        EgressEffect::Deny,
    ]);
    let one = (domain, subsequence(PORTS.to_vec(), 0..=2), effect);
    proptest::collection::vec(one, 0..12).prop_map(|list| {
        (1..)
            .zip(list)
            .map(|(line, (domain, ports, effect))| rule(domain, ports, effect, line))
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn compiled_rules_decide_as_the_list_does(rules in rules()) {
        let compiled = CompiledRules::new(rules.clone());
        for text in HOSTS {
            let host = Host::parse(text).unwrap();
            for port in PORTS {
                let outcome = compiled.decide(&host, *port);
                let naive = decide_host(&rules, &host.to_string(), *port);
                prop_assert_eq!(compiled.explain(outcome, &host, *port), naive, "{}:{}", text, port);
                let allowing = compiled.allowing(&host, *port);
                match outcome {
                    Outcome::Allow(id) => prop_assert_eq!(allowing.first(), Some(&id)),
                    _ => prop_assert!(allowing.is_empty()),
                }
            }
            let somewhere = PORTS.iter().any(|port| matches!(compiled.decide(&host, *port), Outcome::Allow(_)));
            let named = matches!(compiled.decide_any_port(&host), Outcome::Allow(_));
            prop_assert!(named || !somewhere, "{} is reachable, but has no name", text);
        }
    }
}

#[test]
fn requests_are_permitted_by_any_rule_that_allows_the_connection() {
    let with_http = |method: &str, path: &str| {
        let mut rule = rule(
            DomainPattern::parse("a.com").unwrap(),
            vec![443],
            EgressEffect::Allow,
            1,
        );
        rule.value.terms.http = Some(HttpTerms {
            methods: [method.to_owned()].into(),
            paths: vec![PathPattern::parse(path).unwrap()],
            ..HttpTerms::default()
        });
        rule
    };
    let host = Host::parse("a.com").unwrap();
    let mut list = vec![with_http("GET", "/*"), with_http("POST", "/v1/*")];
    let rules = CompiledRules::new(list.clone());
    let permitted = |rules: &CompiledRules, method, path| {
        rules
            .decide_request(&host, 443, method, path)
            .map(|id| id.index())
    };
    assert!(rules.looks_at_requests(&host, 443));
    assert!(!rules.looks_at_requests(&host, 80));
    assert_eq!(permitted(&rules, "GET", "/x"), Some(0));
    assert_eq!(permitted(&rules, "POST", "/v1/x"), Some(1));
    assert_eq!(permitted(&rules, "POST", "/x"), None);
    assert_eq!(permitted(&rules, "DELETE", "/v1/x"), None);

    list.push(rule(
        DomainPattern::parse("*.com").unwrap(),
        vec![],
        EgressEffect::Allow,
        3,
    ));
    let rules = CompiledRules::new(list.clone());
    assert!(!rules.looks_at_requests(&host, 443));
    assert_eq!(permitted(&rules, "DELETE", "/x"), Some(2));

    list.push(rule(
        DomainPattern::parse("a.com").unwrap(),
        vec![],
        EgressEffect::Deny,
        4,
    ));
    let rules = CompiledRules::new(list);
    assert_eq!(permitted(&rules, "GET", "/x"), None);
    assert_eq!(rules.decide_any_port(&host).clone(), rules.decide(&host, 1));
}

#[test]
fn only_rules_that_name_the_host_lead_its_ports_out() {
    let own = |domain: &str, ports: &[u16]| {
        let pattern = DomainPattern::parse(domain).unwrap();
        let mut rule = rule(pattern.clone(), ports.to_vec(), EgressEffect::Allow, 1);
        rule.value.terms.reach = Reach::of(&pattern, ports, PrivateAddresses::Accept);
        rule
    };
    let rules = vec![
        own("localhost", &[5432, 80]),
        own("127.0.0.1", &[80]),
        own("127.0.0.1", &[]),
        own("10.0.0.0/8", &[22]),
        own("0.0.0.0/0", &[23]),
    ];
    assert_eq!(belljar_policy::host_ports(&rules), [80, 5432]);
}
