//! Where an agent may connect.

mod address;
mod compiled;
mod host;
mod llm;
mod pattern;
pub(crate) mod ports;
mod published;
mod question;
mod secret;
mod terms;
mod upstream;

pub use address::{AddressClass, METADATA_HINT, PrivateAddresses, Reach, names_metadata};
pub use compiled::{CompiledRules, Outcome, RuleId, host_ports};
pub use host::{Host, InvalidHost};
pub use llm::{LlmApi, LlmEndpointRule, LlmTerms, OnBudget, is_provider};
pub use pattern::{DomainPattern, InvalidDomain, IpBlock};
pub use published::PublishedPort;
pub use question::{
    AddressAnswer, Cover, EgressAnswer, EgressQuestion, Inspection, RequestQuestion, TLS_PORTS,
    Upgrade,
};
pub use secret::{
    InvalidHeader, MOST_REFRESH, SecretPlace, SecretRule, SecretSource, is_secret_name,
    is_variable_name,
};
pub use terms::{
    EgressTerms, HttpTerms, InvalidPathPattern, PathPattern, WebSocket, is_method, is_plain_path,
};
pub use upstream::{InvalidProxy, ProxyPlace, ProxyResolution, ProxyTerms};

use serde::{Deserialize, Serialize};

use crate::{Decision, Origin, Reason, Rule};

/// What a rule does with a connection it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EgressEffect {
    /// Lets it through.
    Allow,
    /// Stops it, whatever other rules say.
    Deny,
}

/// One rule about connections. A deny rule wins over every allow rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EgressRule {
    /// The hosts it is about.
    pub domain: DomainPattern,
    /// The ports it is about, sorted, each once; empty means all.
    pub ports: Vec<u16>,
    /// Requests per minute (allow rules).
    pub rate_limit_per_min: u32,
    /// What it does.
    pub effect: EgressEffect,
    /// On what terms (allow rules).
    #[serde(flatten)]
    pub terms: EgressTerms,
}

impl EgressRule {
    fn covers_port(&self, port: u16) -> bool {
        ports::includes(&self.ports, port)
    }
}

/// Decides whether a connection to `host` (a name or an address) and `port` may be made, by reading every
/// rule. A text that is no host is matched by no rule that names one.
#[must_use]
pub fn decide_host(rules: &[Rule<EgressRule>], host: &str, port: u16) -> Decision {
    let parsed = Host::parse(host).ok();
    let matches = |pattern: &DomainPattern| match &parsed {
        Some(host) => pattern.matches(host),
        None => *pattern == DomainPattern::Any,
    };
    let matching = |effect| {
        rules.iter().find(|rule| {
            let value = &rule.value;
            value.effect == effect && matches(&value.domain) && value.covers_port(port)
        })
    };
    if let Some(rule) = matching(EgressEffect::Deny) {
        return explain_blocked(rule);
    }
    match matching(EgressEffect::Allow) {
        Some(rule) => explain_allowed(rule),
        None => explain_no_rule(host, port),
    }
}

fn explain_allowed(rule: &Rule<EgressRule>) -> Decision {
    Decision::allow(Reason::AllowEgressRule, rule.origin.clone())
}

fn explain_blocked(rule: &Rule<EgressRule>) -> Decision {
    let hint = format!("remove the rule at {} that blocks it", rule.origin);
    Decision::deny(Reason::DenyEgressBlocked, rule.origin.clone(), Some(hint))
}

fn explain_no_rule(host: &str, port: u16) -> Decision {
    let hint = hint_at_rule(host, port);
    Decision::deny(Reason::DenyNoEgressRule, Origin::built_in(), Some(hint))
}

/// The line that would let a connection through, whole: an address that is not public needs a word more.
fn hint_at_rule(host: &str, port: u16) -> String {
    if names_metadata(host) {
        return METADATA_HINT.to_owned();
    }
    let class = Host::parse(host)
        .ok()
        .and_then(|host| host.address())
        .map_or(AddressClass::Public, AddressClass::of);
    let add = |rule: String| format!("add to capability.yaml: network_egress_rules: [{rule}]");
    match class {
        AddressClass::Public => add(format!("{{domain: {host:?}, ports: [{port}]}}")),
        AddressClass::Loopback => add(format!("{{domain: localhost, ports: [{port}]}}")),
        AddressClass::Private => add(format!(
            "{{domain: {host:?}, ports: [{port}], allow_private: true}}"
        )),
        AddressClass::Metadata => METADATA_HINT.to_owned(),
        AddressClass::Never => "no host is at such an address".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(domain: &str, ports: &[u16], effect: EgressEffect) -> Rule<EgressRule> {
        let domain = DomainPattern::parse(domain).unwrap();
        let value = EgressRule {
            domain,
            ports: ports.to_vec(),
            rate_limit_per_min: 60,
            effect,
            terms: EgressTerms::default(),
        };
        Rule::new(value, Origin::built_in())
    }

    #[test]
    fn the_line_that_is_hinted_at_would_do() {
        let check = |host: &str, expect: &str| assert!(hint_at_rule(host, 80).contains(expect));
        check("a.com", r#"[{domain: "a.com", ports: [80]}]"#);
        check("93.184.216.34", "ports: [80]}]");
        check("10.0.0.1", "allow_private: true");
        check("169.254.169.254", "credentials");
        check("metadata.google.internal", "credentials");
        check("127.0.0.1", "{domain: localhost, ports: [80]}");
        check("224.0.0.1", "no host");
    }

    #[test]
    fn hosts_match_as_written_and_a_deny_wins() {
        let rules = [
            rule("api.example.com", &[443], EgressEffect::Allow),
            rule("*.example.org", &[], EgressEffect::Allow),
            rule("bad.example.org", &[], EgressEffect::Deny),
            rule("192.0.2.0/24", &[], EgressEffect::Allow),
            rule("2001:db8::1", &[], EgressEffect::Allow),
        ];
        let check = |host, port, code: &str| {
            assert_eq!(
                decide_host(&rules, host, port).reason().code(),
                code,
                "{host}:{port}"
            );
        };
        check("api.example.com", 443, "allow_egress_rule");
        check("API.Example.com.", 443, "allow_egress_rule");
        check("api.example.com", 80, "deny_no_egress_rule");
        check("x.api.example.com", 443, "deny_no_egress_rule");
        check("a.example.org", 22, "allow_egress_rule");
        check("a.b.example.org", 22, "allow_egress_rule");
        check("example.org", 22, "deny_no_egress_rule");
        check("notexample.org", 22, "deny_no_egress_rule");
        check(".example.org", 22, "deny_no_egress_rule");
        check("bad.example.org", 443, "deny_egress_blocked");
        check("192.0.2.77", 1, "allow_egress_rule");
        check("::ffff:192.0.2.77", 1, "allow_egress_rule");
        check("192.0.3.1", 1, "deny_no_egress_rule");
        check("[2001:db8::1]", 1, "allow_egress_rule");
    }
}
