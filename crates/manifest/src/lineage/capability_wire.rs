//! The fields of a capability document, and how a capability becomes them and back.

use std::collections::BTreeMap;
use std::sync::Arc;

use belljar_policy::{
    Capability, Degraded, EgressRule, Emulation, EnvAllow, EnvPolicy, Filesystem, FsMode, HomeMode,
    ImageName, LlmTerms, Origin, PathRule, Permission, Places, Rule, Source, Tier, Workspace,
};
use serde::{Deserialize, Serialize};

use super::capability_document::Unrepresentable;
use super::egress_wire::EgressWire;
use super::limits_wire::LimitsWire;
use super::network_wire::{LlmWire, PortWire, ProxyWire, SecretWire};
use super::tools_wire::ToolsWire;
use super::wire_text::{AbsolutePath, PathText};

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CapabilityWire {
    name: String,
    places: PlacesWire,
    tier: Tier,
    accepts_degraded: bool,
    // Left out where it does not, as documents did before there was any.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    allows_emulation: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    image: Option<RuleWire<String>>,
    workdir: Option<RuleWire<PathText>>,
    filesystem: FilesystemWire,
    egress: Vec<RuleWire<EgressWire>>,
    // Left out where there are none, as documents did before there were any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    secrets: Vec<RuleWire<SecretWire>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    ports: Vec<RuleWire<PortWire>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    llm: Option<LlmWire>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    upstream_proxy: Option<RuleWire<ProxyWire>>,
    limits: LimitsWire,
    permissions: Vec<Permission>,
    env: EnvWire,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    withheld_env: Vec<RuleWire<String>>,
    tools: ToolsWire,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PlacesWire {
    home: AbsolutePath,
    work: AbsolutePath,
    homes: Vec<AbsolutePath>,
}

/// A rule keeps its origin: who wrote it decides which of two rules wins.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RuleWire<T> {
    value: T,
    file: String,
    line: u32,
    column: u32,
    source: Source,
}

/// Which home directory.
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
struct HomeWire(HomeMode);

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FilesystemWire {
    mode: FsMode,
    workspace: Workspace,
    // Left out where it is the host's, as documents did before there was any other.
    #[serde(default = "HomeWire::host", skip_serializing_if = "HomeWire::is_host")]
    home: HomeWire,
    writable: Vec<RuleWire<PathText>>,
    readable: Vec<RuleWire<PathText>>,
    hidden: Vec<RuleWire<PathText>>,
    protected: Vec<RuleWire<PathText>>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum EnvWire {
    Base,
    All,
    Listed(Vec<RuleWire<String>>),
}

impl CapabilityWire {
    pub(super) fn of(capability: &Capability, places: &Places) -> Result<Self, Unrepresentable> {
        // Named one by one, so that a field added to the capability can't be left out here.
        let Capability {
            name,
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
            env: EnvPolicy { allow, withheld },
            tools,
        } = capability;
        let secrets = secrets
            .iter()
            .map(|rule| Ok(RuleWire::new(SecretWire::of(&rule.value)?, &rule.origin)));
        let port = |rule: &Rule<_>| RuleWire::new(PortWire::of(&rule.value), &rule.origin);
        let metered = *llm != LlmTerms::default();
        let proxy = |rule: &Rule<_>| Ok(RuleWire::new(ProxyWire::of(&rule.value)?, &rule.origin));
        Ok(Self {
            name: name.as_ref().to_owned(),
            places: PlacesWire::of(places)?,
            tier: *tier,
            accepts_degraded: *degraded == Degraded::Accept,
            allows_emulation: *emulation == Emulation::Allow,
            image: image.as_ref().map(image_rule),
            workdir: workdir.as_ref().map(path_rule).transpose()?,
            filesystem: FilesystemWire::of(filesystem)?,
            egress: egress.iter().map(egress_rule).collect(),
            secrets: secrets.collect::<Result<_, _>>()?,
            ports: ports.iter().map(port).collect(),
            llm: metered.then(|| LlmWire::of(llm)).transpose()?,
            upstream_proxy: upstream_proxy.as_ref().map(proxy).transpose()?,
            limits: LimitsWire::of(limits)?,
            permissions: permissions.iter().copied().collect(),
            env: EnvWire::of(allow),
            withheld_env: names(withheld),
            tools: ToolsWire::of(tools)?,
        })
    }

    pub(super) fn capability(self) -> Result<(Capability, Places), Unrepresentable> {
        increasing(&self.permissions)?;
        let egress = self.egress.into_iter();
        let egress = egress.map(|wire| wire.try_rule(EgressWire::into_rule));
        let secrets = self.secrets.into_iter();
        let secrets = secrets.map(|wire| wire.try_rule(SecretWire::into_rule));
        let ports = self.ports.into_iter();
        let ports = ports.map(|wire| wire.try_rule(PortWire::into_port));
        let proxy = self.upstream_proxy;
        let proxy = proxy.map(|wire| wire.try_rule(ProxyWire::into_terms));
        let image = self.image.map(|wire| wire.try_rule(image_name));
        let capability = Capability {
            name: Arc::from(self.name),
            tier: self.tier,
            degraded: if self.accepts_degraded {
                Degraded::Accept
            } else {
                Degraded::Refuse
            },
            emulation: match self.allows_emulation {
                true => Emulation::Allow,
                false => Emulation::Refuse,
            },
            image: image.transpose()?,
            workdir: self.workdir.map(RuleWire::path),
            filesystem: self.filesystem.filesystem(),
            egress: egress.collect::<Result<_, _>>()?,
            secrets: secrets.collect::<Result<_, _>>()?,
            ports: ports.collect::<Result<_, _>>()?,
            llm: self
                .llm
                .map(LlmWire::into_terms)
                .transpose()?
                .unwrap_or_default(),
            upstream_proxy: proxy.transpose()?,
            limits: self.limits.limits(),
            permissions: self.permissions.into_iter().collect(),
            env: EnvPolicy {
                allow: self.env.allow()?,
                withheld: named(self.withheld_env)?,
            },
            tools: self.tools.tools()?,
        };
        let places = Places {
            home: self.places.home.path(),
            work: self.places.work.path(),
            homes: self.places.homes.iter().map(AbsolutePath::path).collect(),
        };
        Ok((capability, places))
    }
}

impl PlacesWire {
    fn of(places: &Places) -> Result<Self, Unrepresentable> {
        let homes = places.homes.iter().map(|home| AbsolutePath::of(home));
        Ok(Self {
            home: AbsolutePath::of(&places.home)?,
            work: AbsolutePath::of(&places.work)?,
            homes: homes.collect::<Result<_, _>>()?,
        })
    }
}

impl<T> RuleWire<T> {
    pub(super) fn new(value: T, origin: &Origin) -> Self {
        Self {
            value,
            file: origin.file.as_ref().to_owned(),
            line: origin.line,
            column: origin.column,
            source: origin.source,
        }
    }

    fn rule<V>(self, value: impl FnOnce(T) -> V) -> Rule<V> {
        let origin = Origin {
            file: Arc::from(self.file),
            line: self.line,
            column: self.column,
            source: self.source,
        };
        Rule::new(value(self.value), origin)
    }

    pub(super) fn try_rule<V>(
        self,
        value: impl FnOnce(T) -> Result<V, Unrepresentable>,
    ) -> Result<Rule<V>, Unrepresentable> {
        let Rule { value, origin } = self.rule(value);
        Ok(Rule::new(value?, origin))
    }
}

impl RuleWire<PathText> {
    fn path(self) -> Rule<PathRule> {
        self.rule(|path| path.0)
    }
}

fn path_rule(rule: &Rule<PathRule>) -> Result<RuleWire<PathText>, Unrepresentable> {
    Ok(RuleWire::new(PathText::of(&rule.value)?, &rule.origin))
}

fn image_rule(rule: &Rule<ImageName>) -> RuleWire<String> {
    RuleWire::new(rule.value.as_str().to_owned(), &rule.origin)
}

fn image_name(text: String) -> Result<ImageName, Unrepresentable> {
    ImageName::parse(&text).map_err(|_| Unrepresentable::Rule)
}

fn egress_rule(rule: &Rule<EgressRule>) -> RuleWire<EgressWire> {
    RuleWire::new(EgressWire::of(&rule.value), &rule.origin)
}

impl HomeWire {
    fn host() -> Self {
        Self(HomeMode::ReadOnly)
    }

    fn is_host(&self) -> bool {
        self.0 == HomeMode::ReadOnly
    }
}

impl FilesystemWire {
    fn of(filesystem: &Filesystem) -> Result<Self, Unrepresentable> {
        let Filesystem {
            mode,
            workspace,
            home,
            writable,
            readable,
            hidden,
            protected,
        } = filesystem;
        let rules =
            |rules: &[Rule<PathRule>]| rules.iter().map(path_rule).collect::<Result<Vec<_>, _>>();
        Ok(Self {
            mode: *mode,
            workspace: *workspace,
            home: HomeWire(*home),
            writable: rules(writable)?,
            readable: rules(readable)?,
            hidden: rules(hidden)?,
            protected: rules(protected)?,
        })
    }

    fn filesystem(self) -> Filesystem {
        let rules =
            |rules: Vec<RuleWire<PathText>>| rules.into_iter().map(RuleWire::path).collect();
        Filesystem {
            mode: self.mode,
            workspace: self.workspace,
            home: self.home.0,
            writable: rules(self.writable),
            readable: rules(self.readable),
            hidden: rules(self.hidden),
            protected: rules(self.protected),
        }
    }
}

impl EnvWire {
    fn of(allow: &EnvAllow) -> Self {
        match allow {
            EnvAllow::Base => Self::Base,
            EnvAllow::All => Self::All,
            EnvAllow::Listed(listed) => Self::Listed(names(listed)),
        }
    }

    fn allow(self) -> Result<EnvAllow, Unrepresentable> {
        match self {
            Self::Base => Ok(EnvAllow::Base),
            Self::All => Ok(EnvAllow::All),
            Self::Listed(names) => named(names).map(EnvAllow::Listed),
        }
    }
}

fn names(names: &BTreeMap<String, Origin>) -> Vec<RuleWire<String>> {
    let rule = |(name, origin): (&String, &Origin)| RuleWire::new(name.clone(), origin);
    names.iter().map(rule).collect()
}

fn named(names: Vec<RuleWire<String>>) -> Result<BTreeMap<String, Origin>, Unrepresentable> {
    if !names.is_sorted_by(|a, b| a.value < b.value) {
        return Err(Unrepresentable::Order);
    }
    let name = |wire: RuleWire<String>| {
        let rule = wire.rule(|name| name);
        (rule.value, rule.origin)
    };
    Ok(names.into_iter().map(name).collect())
}

/// A set is written in order, each member once, so that it has one spelling.
pub(super) fn increasing<T: Ord>(items: &[T]) -> Result<(), Unrepresentable> {
    if items.is_sorted_by(|a, b| a < b) {
        Ok(())
    } else {
        Err(Unrepresentable::Order)
    }
}
