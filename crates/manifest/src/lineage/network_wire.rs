//! Secrets, published ports, metering and the upstream proxy in a capability document.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use belljar_policy::{
    DomainPattern, LlmApi, LlmEndpointRule, LlmTerms, MOST_REFRESH, OnBudget, PathRule, ProxyPlace,
    ProxyResolution, ProxyTerms, PublishedPort, Rule, SecretPlace, SecretRule, SecretSource,
    is_provider, is_secret_name, is_variable_name,
};
use serde::{Deserialize, Serialize};

use super::capability_document::Unrepresentable;
use super::capability_wire::{RuleWire, increasing};
use super::wire_text::{DomainText, PathText};
use crate::text_form::text_form;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SecretWire {
    name: String,
    from: SourceWire,
    domain: DomainText,
    ports: Vec<u16>,
    place: Option<PlaceWire>,
    env: Option<String>,
    // Documents of 0.1.0 have the same digest as they had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    refresh: Option<u32>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SourceWire {
    Env(String),
    File(PathText),
    Store(String),
    Command(Vec<String>),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum PlaceWire {
    Bearer,
    Header(String),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PortWire {
    in_box: u16,
    on_host: u16,
    address: IpAddr,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LlmWire {
    on_budget: OnBudget,
    endpoints: Vec<RuleWire<EndpointWire>>,
    prices: Option<RuleWire<PathText>>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EndpointWire {
    domain: DomainText,
    ports: Vec<u16>,
    api: LlmApi,
    provider: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ProxyWire {
    place: ProxyText,
    credentials: Option<SourceWire>,
    resolution: ProxyResolution,
}

/// Where a proxy is: a URL, or `env`.
#[derive(Clone, Debug)]
struct ProxyText(ProxyPlace);

impl fmt::Display for ProxyText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for ProxyText {
    type Err = Unrepresentable;

    fn from_str(text: &str) -> Result<Self, Unrepresentable> {
        ProxyPlace::parse(text)
            .map(Self)
            .map_err(|_| Unrepresentable::Rule)
    }
}

text_form!(ProxyText);

/// What no policy file could say is no rule.
fn sayable(said: bool) -> Result<(), Unrepresentable> {
    if said {
        Ok(())
    } else {
        Err(Unrepresentable::Rule)
    }
}

impl SecretWire {
    pub(super) fn of(rule: &SecretRule) -> Result<Self, Unrepresentable> {
        // Named one by one, so that a field added to a rule can't be left out here.
        let SecretRule {
            name,
            source,
            domain,
            ports,
            place,
            env,
            refresh,
        } = rule;
        Ok(Self {
            name: name.clone(),
            from: SourceWire::of(source)?,
            domain: DomainText(domain.clone()),
            ports: ports.clone(),
            place: place.as_ref().map(PlaceWire::of),
            env: env.clone(),
            refresh: *refresh,
        })
    }

    pub(super) fn into_rule(self) -> Result<SecretRule, Unrepresentable> {
        increasing(&self.ports)?;
        let domain = self.domain.0;
        sayable(is_secret_name(&self.name) && domain != DomainPattern::Any)?;
        sayable(self.env.as_deref().is_none_or(is_variable_name))?;
        let source = self.from.into_source()?;
        let is_command = matches!(source, SecretSource::Command(_));
        let is_sayable = |refresh| is_command && (1..=MOST_REFRESH).contains(&refresh);
        sayable(self.refresh.is_none_or(is_sayable))?;
        Ok(SecretRule {
            name: self.name,
            source,
            domain,
            ports: self.ports,
            place: self.place.map(PlaceWire::into_place).transpose()?,
            env: self.env,
            refresh: self.refresh,
        })
    }
}

impl PlaceWire {
    pub(super) fn of(place: &SecretPlace) -> Self {
        match place {
            SecretPlace::Bearer => Self::Bearer,
            SecretPlace::Header(name) => Self::Header(name.clone()),
        }
    }

    pub(super) fn into_place(self) -> Result<SecretPlace, Unrepresentable> {
        match self {
            Self::Bearer => Ok(SecretPlace::Bearer),
            Self::Header(name) => {
                // Written as it is kept, so that it has one spelling.
                let place = SecretPlace::header(&name);
                sayable(place == Ok(SecretPlace::Header(name.clone())))?;
                Ok(SecretPlace::Header(name))
            }
        }
    }
}

impl SourceWire {
    pub(super) fn of(source: &SecretSource) -> Result<Self, Unrepresentable> {
        Ok(match source {
            SecretSource::Env(name) => Self::Env(name.clone()),
            SecretSource::File(path) => Self::File(PathText::of(path)?),
            SecretSource::Store(name) => Self::Store(name.clone()),
            SecretSource::Command(words) => Self::Command(words.clone()),
        })
    }

    pub(super) fn into_source(self) -> Result<SecretSource, Unrepresentable> {
        match self {
            Self::Env(name) => {
                sayable(is_variable_name(&name))?;
                Ok(SecretSource::Env(name))
            }
            Self::File(path) => one_file(path).map(SecretSource::File),
            Self::Store(name) => {
                sayable(is_secret_name(&name))?;
                Ok(SecretSource::Store(name))
            }
            Self::Command(words) => {
                let plain = |word: &String| !word.is_empty() && !word.contains('\0');
                sayable(!words.is_empty() && words.iter().all(plain))?;
                Ok(SecretSource::Command(words))
            }
        }
    }
}

pub(super) fn one_file(path: PathText) -> Result<PathRule, Unrepresentable> {
    match path.0 {
        PathRule::AnyNamed(_) => Err(Unrepresentable::Rule),
        path => Ok(path),
    }
}

impl PortWire {
    pub(super) fn of(port: &PublishedPort) -> Self {
        let PublishedPort {
            in_box,
            on_host,
            address,
        } = *port;
        Self {
            in_box,
            on_host,
            address,
        }
    }

    pub(super) fn into_port(self) -> Result<PublishedPort, Unrepresentable> {
        sayable(self.in_box > 0)?;
        Ok(PublishedPort {
            in_box: self.in_box,
            on_host: self.on_host,
            address: self.address,
        })
    }
}

impl LlmWire {
    pub(super) fn of(terms: &LlmTerms) -> Result<Self, Unrepresentable> {
        let LlmTerms {
            on_budget,
            endpoints,
            prices,
        } = terms;
        let path =
            |rule: &Rule<PathRule>| Ok(RuleWire::new(PathText::of(&rule.value)?, &rule.origin));
        let endpoint = |rule: &Rule<LlmEndpointRule>| {
            RuleWire::new(EndpointWire::of(&rule.value), &rule.origin)
        };
        Ok(Self {
            on_budget: *on_budget,
            endpoints: endpoints.iter().map(endpoint).collect(),
            prices: prices.as_ref().map(path).transpose()?,
        })
    }

    pub(super) fn into_terms(self) -> Result<LlmTerms, Unrepresentable> {
        let endpoints = self.endpoints.into_iter();
        let endpoints = endpoints.map(|wire| wire.try_rule(EndpointWire::into_rule));
        let prices = self.prices.map(|wire| wire.try_rule(one_file));
        let terms = LlmTerms {
            on_budget: self.on_budget,
            endpoints: endpoints.collect::<Result<_, _>>()?,
            prices: prices.transpose()?,
        };
        // What says nothing is left out.
        sayable(terms != LlmTerms::default())?;
        Ok(terms)
    }
}

impl EndpointWire {
    fn of(rule: &LlmEndpointRule) -> Self {
        let LlmEndpointRule {
            domain,
            ports,
            api,
            provider,
        } = rule;
        Self {
            domain: DomainText(domain.clone()),
            ports: ports.clone(),
            api: *api,
            provider: provider.clone(),
        }
    }

    fn into_rule(self) -> Result<LlmEndpointRule, Unrepresentable> {
        increasing(&self.ports)?;
        let domain = self.domain.0;
        sayable(is_provider(&self.provider) && domain != DomainPattern::Any)?;
        Ok(LlmEndpointRule {
            domain,
            ports: self.ports,
            api: self.api,
            provider: self.provider,
        })
    }
}

impl ProxyWire {
    pub(super) fn of(terms: &ProxyTerms) -> Result<Self, Unrepresentable> {
        let ProxyTerms {
            place,
            credentials,
            resolution,
        } = terms;
        Ok(Self {
            place: ProxyText(place.clone()),
            credentials: credentials.as_ref().map(SourceWire::of).transpose()?,
            resolution: *resolution,
        })
    }

    pub(super) fn into_terms(self) -> Result<ProxyTerms, Unrepresentable> {
        Ok(ProxyTerms {
            place: self.place.0,
            credentials: self.credentials.map(SourceWire::into_source).transpose()?,
            resolution: self.resolution,
        })
    }
}
