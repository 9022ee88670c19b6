//! An egress rule in a capability document.

use belljar_policy::{
    DomainPattern, EgressEffect, EgressRule, EgressTerms, HttpTerms, PathPattern, PrivateAddresses,
    Reach, WebSocket, is_method,
};
use serde::{Deserialize, Serialize};

use super::capability_document::Unrepresentable;
use super::capability_wire::increasing;
use super::wire_text::DomainText;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EgressWire {
    domain: DomainText,
    ports: Vec<u16>,
    rate_limit_per_min: u32,
    effect: EgressEffect,
    /// Left out where a rule has none, as documents did before there were any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    terms: Option<TermsWire>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TermsWire {
    max_connections: Option<u32>,
    max_bytes: Option<u64>,
    reach: Reach,
    http: Option<HttpWire>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HttpWire {
    methods: Vec<String>,
    paths: Vec<String>,
    websocket: WebSocket,
}

impl EgressWire {
    pub(super) fn of(rule: &EgressRule) -> Self {
        // Named one by one, so that a field added to a rule can't be left out here.
        let EgressRule {
            domain,
            ports,
            rate_limit_per_min,
            effect,
            terms,
        } = rule;
        Self {
            domain: DomainText(domain.clone()),
            ports: ports.clone(),
            rate_limit_per_min: *rate_limit_per_min,
            effect: *effect,
            terms: (*terms != EgressTerms::default()).then(|| TermsWire::of(terms)),
        }
    }

    pub(super) fn into_rule(self) -> Result<EgressRule, Unrepresentable> {
        increasing(&self.ports)?;
        let domain = self.domain.0;
        let terms = self.terms.map(TermsWire::into_terms).transpose()?;
        // What says nothing is left out: one rule has one spelling.
        if terms.as_ref() == Some(&EgressTerms::default()) {
            return Err(Unrepresentable::Rule);
        }
        let terms = terms.unwrap_or_default();
        let everywhere = domain == DomainPattern::Any && self.effect == EgressEffect::Allow;
        // No file could say a rule that reaches further than what it names.
        let farthest = Reach::of(&domain, &self.ports, PrivateAddresses::Accept);
        if everywhere || terms.reach > farthest {
            return Err(Unrepresentable::Rule);
        }
        Ok(EgressRule {
            domain,
            ports: self.ports,
            rate_limit_per_min: self.rate_limit_per_min,
            effect: self.effect,
            terms,
        })
    }
}

impl TermsWire {
    fn of(terms: &EgressTerms) -> Self {
        let EgressTerms {
            max_connections,
            max_bytes,
            reach,
            http,
        } = terms;
        Self {
            max_connections: *max_connections,
            max_bytes: *max_bytes,
            reach: *reach,
            http: http.as_ref().map(HttpWire::of),
        }
    }

    fn into_terms(self) -> Result<EgressTerms, Unrepresentable> {
        Ok(EgressTerms {
            max_connections: self.max_connections,
            max_bytes: self.max_bytes,
            reach: self.reach,
            http: self.http.map(HttpWire::into_terms).transpose()?,
        })
    }
}

impl HttpWire {
    fn of(http: &HttpTerms) -> Self {
        let HttpTerms {
            methods,
            paths,
            websocket,
        } = http;
        Self {
            methods: methods.iter().cloned().collect(),
            paths: paths.iter().map(PathPattern::to_string).collect(),
            websocket: *websocket,
        }
    }

    fn into_terms(self) -> Result<HttpTerms, Unrepresentable> {
        increasing(&self.methods)?;
        if !self.methods.iter().all(|method| is_method(method)) {
            return Err(Unrepresentable::Rule);
        }
        let paths = self.paths.iter().map(|path| PathPattern::parse(path));
        Ok(HttpTerms {
            methods: self.methods.into_iter().collect(),
            paths: paths
                .collect::<Result<_, _>>()
                .map_err(|_| Unrepresentable::Path)?,
            websocket: self.websocket,
        })
    }
}
