//! The fields of a capability document, and how a capability becomes them and back.

use std::sync::Arc;

use belljar_policy::{
    Capability, Degraded, EgressRule, EnvAllow, EnvPolicy, Filesystem, FsMode, Origin, PathRule,
    Permission, Places, Rule, Source, Tier, ToolPattern, ToolRules, Workspace,
};
use serde::{Deserialize, Serialize};

use super::capability_document::Unrepresentable;
use super::egress_wire::EgressWire;
use super::limits_wire::LimitsWire;
use super::wire_text::{AbsolutePath, PathText, ToolText};

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CapabilityWire {
    name: String,
    places: PlacesWire,
    tier: Tier,
    accepts_degraded: bool,
    workdir: Option<RuleWire<PathText>>,
    filesystem: FilesystemWire,
    egress: Vec<RuleWire<EgressWire>>,
    limits: LimitsWire,
    permissions: Vec<Permission>,
    env: EnvWire,
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
struct RuleWire<T> {
    value: T,
    file: String,
    line: u32,
    column: u32,
    source: Source,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FilesystemWire {
    mode: FsMode,
    workspace: Workspace,
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

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ToolsWire {
    allowed: Option<Vec<RuleWire<ToolText>>>,
    blocked: Vec<RuleWire<ToolText>>,
    rate_limit_per_min: Option<u32>,
}

impl CapabilityWire {
    pub(super) fn of(capability: &Capability, places: &Places) -> Result<Self, Unrepresentable> {
        // Named one by one, so that a field added to the capability can't be left out here.
        let Capability {
            name,
            tier,
            degraded,
            workdir,
            filesystem,
            egress,
            limits,
            permissions,
            env,
            tools,
        } = capability;
        Ok(Self {
            name: name.as_ref().to_owned(),
            places: PlacesWire::of(places)?,
            tier: *tier,
            accepts_degraded: *degraded == Degraded::Accept,
            workdir: workdir.as_ref().map(path_rule).transpose()?,
            filesystem: FilesystemWire::of(filesystem)?,
            egress: egress.iter().map(egress_rule).collect(),
            limits: LimitsWire::of(limits)?,
            permissions: permissions.iter().copied().collect(),
            env: EnvWire::of(&env.allow),
            tools: ToolsWire::of(tools),
        })
    }

    pub(super) fn capability(self) -> Result<(Capability, Places), Unrepresentable> {
        increasing(&self.permissions)?;
        let egress = self.egress.into_iter().map(RuleWire::egress);
        let capability = Capability {
            name: Arc::from(self.name),
            tier: self.tier,
            degraded: if self.accepts_degraded {
                Degraded::Accept
            } else {
                Degraded::Refuse
            },
            workdir: self.workdir.map(RuleWire::path),
            filesystem: self.filesystem.filesystem(),
            egress: egress.collect::<Result<_, _>>()?,
            limits: self.limits.limits(),
            permissions: self.permissions.into_iter().collect(),
            env: EnvPolicy {
                allow: self.env.allow()?,
            },
            tools: self.tools.tools(),
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
    fn new(value: T, origin: &Origin) -> Self {
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
}

impl RuleWire<PathText> {
    fn path(self) -> Rule<PathRule> {
        self.rule(|path| path.0)
    }
}

impl RuleWire<ToolText> {
    fn tool(self) -> Rule<ToolPattern> {
        self.rule(|tool| tool.0)
    }
}

impl RuleWire<EgressWire> {
    fn egress(self) -> Result<Rule<EgressRule>, Unrepresentable> {
        let Rule { value, origin } = self.rule(EgressWire::into_rule);
        Ok(Rule::new(value?, origin))
    }
}

fn path_rule(rule: &Rule<PathRule>) -> Result<RuleWire<PathText>, Unrepresentable> {
    Ok(RuleWire::new(PathText::of(&rule.value)?, &rule.origin))
}

fn tool_rule(rule: &Rule<ToolPattern>) -> RuleWire<ToolText> {
    RuleWire::new(ToolText(rule.value.clone()), &rule.origin)
}

fn egress_rule(rule: &Rule<EgressRule>) -> RuleWire<EgressWire> {
    RuleWire::new(EgressWire::of(&rule.value), &rule.origin)
}

impl FilesystemWire {
    fn of(filesystem: &Filesystem) -> Result<Self, Unrepresentable> {
        let Filesystem {
            mode,
            workspace,
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
            EnvAllow::Listed(names) => {
                let names = names.iter();
                Self::Listed(
                    names
                        .map(|(name, origin)| RuleWire::new(name.clone(), origin))
                        .collect(),
                )
            }
        }
    }

    fn allow(self) -> Result<EnvAllow, Unrepresentable> {
        let listed = match self {
            Self::Base => return Ok(EnvAllow::Base),
            Self::All => return Ok(EnvAllow::All),
            Self::Listed(names) => names,
        };
        if !listed.is_sorted_by(|a, b| a.value < b.value) {
            return Err(Unrepresentable::Order);
        }
        let name = |wire: RuleWire<String>| {
            let rule = wire.rule(|name| name);
            (rule.value, rule.origin)
        };
        Ok(EnvAllow::Listed(listed.into_iter().map(name).collect()))
    }
}

impl ToolsWire {
    fn of(rules: &ToolRules) -> Self {
        let ToolRules {
            allowed,
            blocked,
            rate_limit_per_min,
        } = rules;
        let list = |rules: &Vec<Rule<ToolPattern>>| rules.iter().map(tool_rule).collect();
        Self {
            allowed: allowed.as_ref().map(list),
            blocked: list(blocked),
            rate_limit_per_min: *rate_limit_per_min,
        }
    }

    fn tools(self) -> ToolRules {
        let list = |rules: Vec<RuleWire<ToolText>>| rules.into_iter().map(RuleWire::tool).collect();
        ToolRules {
            allowed: self.allowed.map(list),
            blocked: list(self.blocked),
            rate_limit_per_min: self.rate_limit_per_min,
        }
    }
}

/// A set is written in order, each member once, so that it has one spelling.
pub(super) fn increasing<T: Ord>(items: &[T]) -> Result<(), Unrepresentable> {
    if items.is_sorted_by(|a, b| a < b) {
        Ok(())
    } else {
        Err(Unrepresentable::Order)
    }
}
