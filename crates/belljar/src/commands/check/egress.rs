//! `belljar check egress`: what becomes of a connection or a request, ahead of any run.

use super::split_host;
use crate::cli::{Egress, OutputFormat};
use crate::exit::{self, Failure};
use crate::print;
use belljar_egress::SystemResolver;
use belljar_policy::{
    AddressAnswer, AddressClass, Capability, Cover, Decision, EgressAnswer, EgressQuestion, Host,
    Inspection, LlmEndpointRule, OnBudget, Origin, ProxyResolution, RequestQuestion, SecretPlace,
    Upgrade, is_method,
};
use serde::Serialize;
use std::net::IpAddr;

pub(super) fn check(arguments: &Egress) -> Result<u8, Failure> {
    let capability = super::super::capability(&arguments.ask.policy)?;
    let target = Target::parse(&arguments.target, arguments.method.as_deref())?;
    let addresses = match (arguments.resolve, target.host.name()) {
        (true, Some(name)) => Some(resolve(name)?),
        (true, None) | (false, _) => None,
    };
    let answer = capability.answer_egress(&EgressQuestion {
        host: &target.host,
        port: target.port,
        request: target.request.as_ref().map(Request::question),
        addresses: addresses.as_deref().unwrap_or_default(),
    });
    let report = Report::of(&target, &capability, &answer);
    match arguments.ask.format.output {
        OutputFormat::Json => print::json(&report),
        OutputFormat::Text => print::out(&report.text()),
    }
    Ok(if report.decision.is_allow() {
        exit::OK
    } else {
        exit::NO
    })
}

fn resolve(name: &str) -> Result<Vec<IpAddr>, Failure> {
    SystemResolver::default()
        .resolve_now(name)
        .map_err(|error| {
            Failure::Invalid(
                format!("{name} came to no address: {error}"),
                "check the name, or ask without --resolve".into(),
            )
        })
}

/// What is asked about.
#[derive(Debug, PartialEq)]
struct Target {
    host: Host,
    port: u16,
    request: Option<Request>,
}

#[derive(Debug, PartialEq)]
struct Request {
    scheme: String,
    method: String,
    path: String,
    upgrade: Upgrade,
    cover: Cover,
}

impl Request {
    fn question(&self) -> RequestQuestion<'_> {
        RequestQuestion {
            method: &self.method,
            path: &self.path,
            upgrade: self.upgrade,
            cover: self.cover,
        }
    }
}

impl Target {
    /// Reads a URL, or HOST[:PORT]. What is wrong with a URL is said without the URL: it may hold a password.
    fn parse(text: &str, method: Option<&str>) -> Result<Self, Failure> {
        let invalid = |what: &str, hint: &str| Failure::Invalid(what.into(), hint.into());
        let Some((scheme, rest)) = text.split_once("://") else {
            if method.is_some() {
                return Err(invalid(
                    "a method is asked of a URL",
                    "write https://HOST/PATH",
                ));
            }
            let (host, port) = split_host(text)?;
            return Ok(Self {
                host: parse_host(host)?,
                port,
                request: None,
            });
        };
        let scheme = scheme.to_ascii_lowercase();
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, rest) = rest.split_at(end);
        if authority.contains('@') {
            return Err(invalid(
                "the URL holds a user name",
                "leave it out: rules are about hosts",
            ));
        }
        let (usual, kind) = match scheme.as_str() {
            "https" => (443, Some((Upgrade::None, Cover::Tls))),
            "http" => (80, Some((Upgrade::None, Cover::Plain))),
            "wss" => (443, Some((Upgrade::WebSocket, Cover::Tls))),
            "ws" => (80, Some((Upgrade::WebSocket, Cover::Plain))),
            _ => (0, None),
        };
        let says_port = authority
            .rsplit_once(':')
            .is_some_and(|(_, port)| !port.contains(']'));
        let (host, port) = if says_port {
            split_host(authority)?
        } else if usual > 0 {
            (authority, usual)
        } else {
            return Err(invalid(
                "the URL names no port",
                "write HOST:PORT, as rules are about hosts and ports",
            ));
        };
        let path = rest.split(['?', '#']).next().unwrap_or_default();
        let request = kind.map(|(upgrade, cover)| Request {
            scheme,
            method: method.unwrap_or("GET").to_owned(),
            path: if path.is_empty() { "/" } else { path }.to_owned(),
            upgrade,
            cover,
        });
        match (&request, method) {
            (None, Some(_)) => Err(invalid(
                "a method is asked of a URL with http or https",
                "leave --method out",
            )),
            (Some(request), _) if !is_method(&request.method) => Err(invalid(
                "this is not a method",
                "write it in capitals, e.g. GET",
            )),
            _ => Ok(Self {
                host: parse_host(host)?,
                port,
                request,
            }),
        }
    }

    fn shown(&self) -> String {
        let host = match self.host.address() {
            Some(address) if address.is_ipv6() => format!("[{address}]"),
            _ => self.host.to_string(),
        };
        match &self.request {
            None => format!("{host}:{}", self.port),
            Some(request) => format!(
                "{} {}://{host}:{}{}",
                request.method, request.scheme, self.port, request.path
            ),
        }
    }
}

fn parse_host(text: &str) -> Result<Host, Failure> {
    Host::parse(text).map_err(|error| {
        Failure::Invalid(
            error.to_string(),
            "write a host name or an address, e.g. api.example.com:443".into(),
        )
    })
}

#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    decision: Decision,
    host: String,
    port: u16,
    method: Option<String>,
    path: Option<String>,
    /// The rule's terms, where there is one.
    terms: Option<String>,
    inspected: Vec<Inspection>,
    secrets: Vec<Added>,
    budget: Option<Metered>,
    upstream_proxy: Option<String>,
    addresses: Vec<AddressAnswer>,
    #[serde(skip)]
    shown: String,
    #[serde(skip)]
    notes: Vec<&'static str>,
}

/// A secret that is put in. Its name, never more.
#[derive(Debug, Serialize)]
struct Added {
    name: String,
    #[serde(rename = "as", skip_serializing_if = "Option::is_none")]
    place: Option<SecretPlace>,
    origin: Origin,
}

#[derive(Debug, Serialize)]
struct Metered {
    #[serde(flatten)]
    endpoint: LlmEndpointRule,
    max_tokens: Option<u64>,
    max_cost_usd: Option<f64>,
    on_budget: OnBudget,
}

impl Report {
    fn of(target: &Target, capability: &Capability, answer: &EgressAnswer<'_>) -> Self {
        let proxy = capability.upstream_proxy.as_ref();
        let mut notes = Vec::new();
        let wants_secrets = answer.inspected.contains(&Inspection::Secret);
        if wants_secrets && answer.secrets.is_empty() {
            notes.push("no secret is added without TLS");
        }
        if proxy.is_some_and(|rule| rule.value.resolution == ProxyResolution::AtProxy) {
            notes.push("the proxy looks names up, so that Belljar does not see the addresses");
        }
        Self {
            decision: answer.decision.clone(),
            host: target.host.to_string(),
            port: target.port,
            method: target.request.as_ref().map(|own| own.method.clone()),
            path: target.request.as_ref().map(|own| own.path.clone()),
            terms: answer.rule.map(|rule| rule.value.to_string()),
            inspected: answer.inspected.clone(),
            secrets: answer
                .secrets
                .iter()
                .map(|rule| Added {
                    name: rule.value.name.clone(),
                    place: rule.value.place.clone(),
                    origin: rule.origin.clone(),
                })
                .collect(),
            budget: answer.endpoint.clone().map(|endpoint| Metered {
                endpoint,
                max_tokens: capability.limits.tokens,
                max_cost_usd: capability.limits.cost_usd,
                on_budget: capability.llm.on_budget,
            }),
            upstream_proxy: proxy
                .filter(|_| answer.decision.is_allow())
                .map(|rule| rule.value.place.to_string()),
            addresses: answer.addresses.clone(),
            shown: target.shown(),
            notes,
        }
    }

    fn text(&self) -> String {
        let because = self.decision.because();
        let mut text = super::verdict(&self.shown, &self.decision);
        let mut row = |name: &str, value: String| {
            text.push_str(&format!("  {name:<9}: {}\n", print::harmless(&value)));
        };
        row("reason", because.reason.code().to_owned());
        row("rule", because.origin.to_string());
        if let Some(terms) = &self.terms {
            row("terms", terms.clone());
        }
        if self.terms.is_some() || !self.inspected.is_empty() {
            row("inspected", inspection(&self.inspected));
        }
        for secret in &self.secrets {
            let Added {
                name,
                place,
                origin,
            } = secret;
            let goes = match place {
                Some(place) => format!("added as {place}"),
                None => "put in where its placeholder stands".to_owned(),
            };
            row("secret", format!("{name} is {goes} ({origin})"));
        }
        if let Some(metered) = &self.budget {
            row("budget", metered.text());
        }
        if let Some(proxy) = &self.upstream_proxy {
            row("proxy", proxy.clone());
        }
        for found in &self.addresses {
            let verdict = if found.reached {
                "may be connected to"
            } else {
                "is not reached by the rule"
            };
            let class = class(found.class);
            row("address", format!("{} ({class}) {verdict}", found.address));
        }
        for note in &self.notes {
            row("note", (*note).to_owned());
        }
        if let Some(hint) = &because.hint {
            row("hint", hint.clone());
        }
        text
    }
}

fn inspection(why: &[Inspection]) -> String {
    if why.is_empty() {
        return "no; TLS is passed on untouched".to_owned();
    }
    let reason = |why: &Inspection| match why {
        Inspection::HttpTerms => "the rule asks about requests",
        Inspection::Secret => "a secret goes there",
        Inspection::Llm => "calls to models are metered",
    };
    let reasons: Vec<_> = why.iter().map(reason).collect();
    format!("yes: {}", reasons.join("; "))
}

fn class(class: AddressClass) -> &'static str {
    match class {
        AddressClass::Public => "public",
        AddressClass::Private => "private",
        AddressClass::Loopback => "the host itself",
        AddressClass::Metadata => "link-local or metadata",
        AddressClass::Never => "no host's",
    }
}

impl Metered {
    fn text(&self) -> String {
        let limits: Vec<_> = [
            self.max_tokens.map(|tokens| format!("{tokens} tokens")),
            self.max_cost_usd.map(|usd| format!("{usd} USD")),
        ]
        .into_iter()
        .flatten()
        .collect();
        let LlmEndpointRule { api, provider, .. } = &self.endpoint;
        let metered = format!("metered as {}, at {provider}'s prices", api.as_str());
        if limits.is_empty() {
            return format!("no limit; {metered}");
        }
        let then = match self.on_budget {
            OnBudget::Kill => "then the run ends",
            OnBudget::Refuse => "then calls are refused",
        };
        format!("{}, {then}; {metered}", limits.join(" and "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_urls_or_hosts() {
        let check = |text: &str, method: Option<&str>, expect: Option<&str>| {
            let target = Target::parse(text, method).ok();
            let shown = target.map(|target| target.shown());
            assert_eq!(shown.as_deref(), expect, "{text} {method:?}");
        };
        check("Example.com", None, Some("example.com:443"));
        check("example.com:22", None, Some("example.com:22"));
        check("[::1]:80", None, Some("[::1]:80"));
        check("10.0.0.1", None, Some("10.0.0.1:443"));
        check("https://a.com", None, Some("GET https://a.com:443/"));
        check(
            "HTTP://a.com:8080/v1?key=x#y",
            Some("POST"),
            Some("POST http://a.com:8080/v1"),
        );
        check("https://a.com?x", None, Some("GET https://a.com:443/"));
        check("https://[::1]/x", None, Some("GET https://[::1]:443/x"));
        check("https://[::1]:8/x", None, Some("GET https://[::1]:8/x"));
        check("wss://a.com/s", None, Some("GET wss://a.com:443/s"));
        check("postgres://db.com:5432/x", None, Some("db.com:5432"));
        check("postgres://db.com/x", None, None);
        check("postgres://db.com:5432/x", Some("GET"), None);
        check("https://user:word@a.com/", None, None);
        check("https://a.com:x/", None, None);
        check("https:///x", None, None);
        check("https://a.com/", Some("get"), None);
        check("a.com", Some("GET"), None);
        check("a b.com", None, None);
    }

    #[test]
    fn a_password_is_not_repeated() {
        let failure = Target::parse("https://u:pass-word@a.com/", None).unwrap_err();
        assert!(!format!("{failure:?}").contains("pass-word"));
    }
}
