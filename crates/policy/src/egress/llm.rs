//! How calls to models are metered.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{DomainPattern, EgressEffect, EgressRule, Host, ports};
use crate::{PathRule, Rule};

/// How calls to models are metered. What they may use is `max_tokens` and `max_cost_usd` of the limits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LlmTerms {
    /// What happens when the budget is used up.
    pub on_budget: OnBudget,
    /// Hosts that serve models, beside the well-known ones. The first that matches counts.
    pub endpoints: Vec<Rule<LlmEndpointRule>>,
    /// A file of prices that win over the shipped ones.
    pub prices: Option<Rule<PathRule>>,
}

/// What happens when the budget for calls to models is used up. Ordered from less to more.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum OnBudget {
    /// The run ends.
    #[default]
    Kill,
    /// It goes on without models.
    Refuse,
}

impl OnBudget {
    /// The name used in policy files.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Refuse => "refuse",
        }
    }
}

/// How a provider is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LlmApi {
    /// OpenAI's chat completions, responses, completions and embeddings, and servers compatible with them.
    OpenAi,
    /// Anthropic's messages.
    Anthropic,
    /// Gemini's generateContent.
    Gemini,
}

impl LlmApi {
    /// The name used in policy files.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OpenAi => "openai",
            Self::Anthropic => "anthropic",
            Self::Gemini => "gemini",
        }
    }
}

/// A host that serves models. It says how to meter, and opens nothing: an egress rule does.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct LlmEndpointRule {
    /// The hosts.
    pub domain: DomainPattern,
    /// Their ports, sorted, each once; empty means all.
    pub ports: Vec<u16>,
    /// How they are spoken to.
    pub api: LlmApi,
    /// Whose prices apply: the first column of the price table.
    pub provider: String,
}

/// The hosts everyone knows, how they are spoken to, and whose prices apply.
const WELL_KNOWN: [(&str, LlmApi, &str); 10] = [
    ("api.openai.com", LlmApi::OpenAi, "openai"),
    ("api.anthropic.com", LlmApi::Anthropic, "anthropic"),
    (
        "generativelanguage.googleapis.com",
        LlmApi::Gemini,
        "gemini",
    ),
    ("api.mistral.ai", LlmApi::OpenAi, "mistral"),
    ("api.deepseek.com", LlmApi::OpenAi, "deepseek"),
    ("api.x.ai", LlmApi::OpenAi, "xai"),
    ("api.groq.com", LlmApi::OpenAi, "groq"),
    ("api.together.xyz", LlmApi::OpenAi, "together_ai"),
    ("api.fireworks.ai", LlmApi::OpenAi, "fireworks_ai"),
    ("api.perplexity.ai", LlmApi::OpenAi, "perplexity"),
];

impl LlmEndpointRule {
    /// The endpoints everyone knows.
    #[must_use]
    pub fn well_known() -> Vec<Self> {
        let endpoint = |(name, api, provider): (&str, LlmApi, &str)| Self {
            domain: DomainPattern::Exact(name.to_owned()),
            ports: Vec::new(),
            api,
            provider: provider.to_owned(),
        };
        WELL_KNOWN.into_iter().map(endpoint).collect()
    }

    /// Whether requests to `host` at `port` are metered by it.
    #[must_use]
    pub fn is_about(&self, host: &Host, port: u16) -> bool {
        self.domain.matches(host) && ports::includes(&self.ports, port)
    }

    /// Whether the rules let some connection through that is metered by it.
    #[must_use]
    pub fn is_reachable(&self, rules: &[Rule<EgressRule>]) -> bool {
        rules.iter().map(|rule| &rule.value).any(|rule| {
            rule.effect == EgressEffect::Allow
                && self.domain.intersect(&rule.domain).is_some()
                && ports::meet(&self.ports, &rule.ports).is_some()
        })
    }

    /// Whether some request is about both, so that only the first would count.
    #[must_use]
    pub fn collides_with(&self, other: &Self) -> bool {
        self.domain.intersect(&other.domain).is_some()
            && ports::meet(&self.ports, &other.ports).is_some()
    }
}

/// Whether a text can be a provider of the price table.
#[must_use]
pub fn is_provider(text: &str) -> bool {
    let valid = |b: u8| b.is_ascii_alphanumeric() || b"_.-".contains(&b);
    (1..=64).contains(&text.len()) && text.bytes().all(valid)
}

impl LlmTerms {
    /// Every endpoint that is metered: the rules' own, which win, then the well-known ones.
    #[must_use]
    pub fn all_endpoints(&self) -> Vec<LlmEndpointRule> {
        let own = self.endpoints.iter().map(|rule| rule.value.clone());
        own.chain(LlmEndpointRule::well_known()).collect()
    }

    /// Whether both charge every call alike. Nothing in between exists: a host left out would not be metered, and one added
    /// may be metered at another's prices.
    pub(crate) fn meters_like(&self, other: &Self) -> bool {
        self.meters_the_same_hosts_as(other) && self.has_the_prices_of(other)
    }

    pub(crate) fn meters_the_same_hosts_as(&self, other: &Self) -> bool {
        let values = |terms: &Self| -> Vec<LlmEndpointRule> {
            terms
                .endpoints
                .iter()
                .map(|rule| rule.value.clone())
                .collect()
        };
        values(self) == values(other)
    }

    pub(crate) fn has_the_prices_of(&self, other: &Self) -> bool {
        let value = |terms: &Self| terms.prices.as_ref().map(|rule| rule.value.clone());
        value(self) == value(other)
    }
}

impl fmt::Display for LlmEndpointRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.domain)?;
        if !self.ports.is_empty() {
            write!(f, " ports {:?}", self.ports)?;
        }
        write!(f, " as {} at {}'s prices", self.api.as_str(), self.provider)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_well_known_endpoints_are_hosts_apart() {
        let known = LlmEndpointRule::well_known();
        for (at, endpoint) in known.iter().enumerate() {
            let text = endpoint.domain.to_string();
            assert_eq!(DomainPattern::parse(&text).as_ref(), Ok(&endpoint.domain));
            assert!(is_provider(&endpoint.provider));
            assert!(
                !known[..at]
                    .iter()
                    .any(|other| endpoint.collides_with(other))
            );
        }
    }
}
