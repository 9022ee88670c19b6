//! One question about the network, answered whole: what is decided, what is looked at, what is added, what is charged.
//!
//! The engine asks the same things one by one as a connection proceeds; here they are asked ahead, for whoever wants to know.

use std::net::IpAddr;

use serde::Serialize;

use super::{
    AddressClass, CompiledRules, EgressRule, Host, LlmEndpointRule, Outcome, SecretRule, WebSocket,
};
use crate::{Capability, Decision, Reason, Rule};

/// Ports that take TLS and nothing else.
pub const TLS_PORTS: &[u16] = &[443];

/// What somebody wants to know.
#[derive(Clone, Debug)]
pub struct EgressQuestion<'a> {
    /// The host.
    pub host: &'a Host,
    /// Its port.
    pub port: u16,
    /// What is to be asked of it; `None` is about the connection alone.
    pub request: Option<RequestQuestion<'a>>,
    /// Where the host is, as far as it is known. An address is at itself.
    pub addresses: &'a [IpAddr],
}

/// A request on a connection.
#[derive(Clone, Copy, Debug)]
pub struct RequestQuestion<'a> {
    /// The method, in capitals.
    pub method: &'a str,
    /// The path, without its query.
    pub path: &'a str,
    /// Whether it asks for a WebSocket.
    pub upgrade: Upgrade,
    /// Whether TLS is around it.
    pub cover: Cover,
}

/// What a request asks a connection to become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upgrade {
    /// Nothing else.
    None,
    /// A WebSocket.
    WebSocket,
}

/// What is around a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cover {
    /// TLS.
    Tls,
    /// Nothing: anyone on the way can read it.
    Plain,
}

/// The whole answer.
#[derive(Clone, Debug, PartialEq)]
pub struct EgressAnswer<'a> {
    /// Whether it may happen, and why.
    pub decision: Decision,
    /// The rule on whose terms it may happen.
    pub rule: Option<&'a Rule<EgressRule>>,
    /// Why the connection is looked into; empty when it is passed on untouched.
    pub inspected: Vec<Inspection>,
    /// What is put in on the way out.
    pub secrets: Vec<&'a Rule<SecretRule>>,
    /// How calls to models are metered there.
    pub endpoint: Option<LlmEndpointRule>,
    /// The addresses that were known, what they are, and whether they may be connected to.
    pub addresses: Vec<AddressAnswer>,
}

/// Why a connection is looked into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Inspection {
    /// Its rules ask about requests.
    HttpTerms,
    /// A secret goes there.
    Secret,
    /// Calls to models are metered.
    Llm,
}

/// An address a host has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct AddressAnswer {
    /// The address.
    pub address: IpAddr,
    /// What it is.
    pub class: AddressClass,
    /// Whether a rule reaches it.
    pub reached: bool,
}

impl CompiledRules {
    /// Whether a rule that allows the connection lets it be made to this address of the host.
    #[must_use]
    pub fn reaches(&self, host: &Host, port: u16, address: IpAddr) -> bool {
        let allowing = self.allowing(host, port);
        let mut reaches = allowing.iter().map(|id| self.rule(*id).value.terms.reach);
        reaches.any(|reach| reach.includes(address))
    }
}

impl Capability {
    /// Answers a question about the network.
    #[must_use]
    pub fn answer_egress(&self, question: &EgressQuestion<'_>) -> EgressAnswer<'_> {
        let EgressQuestion { host, port, .. } = *question;
        let rules = CompiledRules::new(self.egress.clone());
        let outcome = rules.decide(host, port);
        let connection = rules.explain(outcome, host, port);
        let Outcome::Allow(first) = outcome else {
            return EgressAnswer {
                decision: connection,
                rule: None,
                inspected: Vec::new(),
                secrets: Vec::new(),
                endpoint: None,
                addresses: Vec::new(),
            };
        };
        let addresses = addresses(&rules, question);
        let secrets: Vec<_> = self
            .secrets
            .iter()
            .filter(|rule| rule.value.is_for(host, port))
            .collect();
        let mut endpoints = self.llm.all_endpoints().into_iter();
        let endpoint = endpoints.find(|endpoint| endpoint.is_about(host, port));
        let why = [
            (rules.looks_at_requests(host, port), Inspection::HttpTerms),
            (!secrets.is_empty(), Inspection::Secret),
            (endpoint.is_some(), Inspection::Llm),
        ];
        let inspected = why.into_iter().filter(|(holds, _)| *holds);
        let permitting = match question.request {
            None => Some(first),
            Some(request) => rules.decide_request(host, port, request.method, request.path),
        };
        let rule = permitting.map(|id| &self.egress[id.index()]);
        let in_the_clear =
            matches!(question.request, Some(request) if request.cover == Cover::Plain);
        EgressAnswer {
            decision: decide(&self.egress[first.index()], rule, question, &addresses)
                .unwrap_or(connection),
            rule,
            inspected: inspected.map(|(_, why)| why).collect(),
            // In the clear, anyone on the way could read it.
            secrets: if in_the_clear { Vec::new() } else { secrets },
            endpoint,
            addresses,
        }
    }
}

fn addresses(rules: &CompiledRules, question: &EgressQuestion<'_>) -> Vec<AddressAnswer> {
    let known: Vec<IpAddr> = match question.host.address() {
        Some(address) => vec![address],
        None => question.addresses.to_vec(),
    };
    let answer = |address| AddressAnswer {
        address,
        class: AddressClass::of(address),
        reached: rules.reaches(question.host, question.port, address),
    };
    known.into_iter().map(answer).collect()
}

/// What is wrong with a connection that the rules let through so far.
fn decide(
    first: &Rule<EgressRule>,
    permitting: Option<&Rule<EgressRule>>,
    question: &EgressQuestion<'_>,
    addresses: &[AddressAnswer],
) -> Option<Decision> {
    if !addresses.is_empty() && addresses.iter().all(|address| !address.reached) {
        let hint = match addresses.iter().map(|address| address.class).min() {
            Some(AddressClass::Private) => "add to that rule: allow_private: true",
            Some(AddressClass::Loopback) => {
                "the host itself is reached by a rule for localhost that lists its ports"
            }
            Some(AddressClass::Metadata) => super::METADATA_HINT,
            _ => "no rule reaches such an address",
        };
        let origin = first.origin.clone();
        return Some(Decision::deny(
            Reason::DenyPrivateAddress,
            origin,
            Some(hint.to_owned()),
        ));
    }
    let request = question.request?;
    if request.cover == Cover::Plain && TLS_PORTS.contains(&question.port) {
        let hint = format!(
            "port {} takes TLS only; use https, or another port",
            question.port
        );
        return Some(Decision::deny(
            Reason::DenyNotTls,
            first.origin.clone(),
            Some(hint),
        ));
    }
    let Some(rule) = permitting else {
        let RequestQuestion { method, path, .. } = request;
        let hint = format!("add to that rule: http: {{methods: [{method}], paths: [{path:?}]}}");
        return Some(Decision::deny(
            Reason::DenyHttpRequest,
            first.origin.clone(),
            Some(hint),
        ));
    };
    let refuses = |rule: &EgressRule| matches!(&rule.terms.http, Some(http) if http.websocket == WebSocket::Refuse);
    if request.upgrade == Upgrade::WebSocket && refuses(&rule.value) {
        let hint = "add to http of that rule: websocket: allow".to_owned();
        return Some(Decision::deny(
            Reason::DenyWebSocket,
            rule.origin.clone(),
            Some(hint),
        ));
    }
    // The rule that permits the request may be another than the first that lets the host through.
    Some(super::explain_allowed(rule))
}
