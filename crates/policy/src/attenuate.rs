//! The order of capabilities: whether a child's is within its parent's.
//!
//! The order is about what can be done, not about how rules are spelled. Filesystem rules are
//! therefore compared as the tables they come to at the same [`Places`]: `~/x` and `/home/u/x` may
//! be the same file, and only the places tell. Everything else is compared field by field.

use std::collections::BTreeSet;
use std::fmt::{self, Display};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use crate::egress::ports;
use crate::env::decide_name;
use crate::limits::MIB;
use crate::{
    Access, Capability, Decision, Degraded, EgressEffect, EgressRule, Emulation, EnvAllow,
    EnvPolicy, Filesystem, ImageName, Limits, LlmTerms, Origin, PathRule, PathTable, Permission,
    Places, ProxyTerms, PublishedPort, Reason, Rule, SecretRule, Source, Tier, ToolRules,
};

/// One thing a child asks for that its parent does not have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Excess {
    /// The key of the policy file it is about.
    pub field: &'static str,
    /// What the parent has.
    pub parent: String,
    /// What the child asks for.
    pub child: String,
    /// Where the child asks for it.
    pub origin: Origin,
}

impl Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            field,
            parent,
            child,
            origin,
        } = self;
        write!(
            f,
            "{field}: the child asks for {child} ({origin}), the parent has {parent}"
        )
    }
}

impl std::error::Error for Excess {}

impl Excess {
    /// The excess as a decision, for whoever admits a child.
    #[must_use]
    pub fn decision(&self) -> Decision {
        let hint = format!("ask for no more than the parent has: {}", self.parent);
        Decision::deny(Reason::DenyExceedsParent, self.origin.clone(), Some(hint))
    }
}

impl Capability {
    /// Checks that `child` may do nothing this capability may not.
    ///
    /// # Errors
    /// Every excess of the child's, in the order of the policy file.
    pub fn attenuate(&self, child: &Self, places: &Places) -> Result<(), Vec<Excess>> {
        let mut report = Report {
            origin: Origin::whole(child.name.clone()),
            found: Vec::new(),
        };
        // Taken apart whole, here and below: a field that nobody compares must not compile.
        let Self {
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
        } = child;
        report.isolation(self, (*tier, *degraded, *emulation));
        report.image(self.image.as_ref(), image.as_ref());
        report.workdir(self.workdir.as_ref(), workdir.as_ref());
        report.directories(&self.filesystem, filesystem);
        report.egress(&self.egress, egress);
        report.pieces("secrets", (&self.secrets, secrets), SecretRule::covers);
        report.pieces("ports", (&self.ports, ports), PublishedPort::covers);
        report.metering(&self.llm, llm, egress);
        report.proxy(self.upstream_proxy.as_ref(), upstream_proxy.as_ref());
        report.paths(&self.path_table(places), &child.path_table(places));
        report.limits(&self.limits, limits);
        report.permissions(&self.permissions, permissions);
        report.env(&self.env, env);
        report.tools(&self.tools, tools);
        if report.found.is_empty() {
            Ok(())
        } else {
            Err(report.found)
        }
    }
}

/// What a path opens. A private directory is the box's own and opens nothing. An image's files and the host's are not the
/// same: neither is more than the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exposure {
    Nothing,
    Image,
    Reading,
    Writing,
}

impl Exposure {
    pub(crate) fn of(access: Access) -> Self {
        match access {
            Access::Hidden | Access::Private => Self::Nothing,
            Access::Image => Self::Image,
            Access::Read | Access::CopyOnWrite | Access::Protected => Self::Reading,
            Access::Write => Self::Writing,
        }
    }

    /// Whether who has `other` has this.
    pub(crate) fn is_within(self, other: Self) -> bool {
        match (self, other) {
            (Self::Nothing, _) | (Self::Reading, Self::Writing) => true,
            (own, other) => own == other,
        }
    }

    /// The most that is within both.
    pub(crate) fn meet(self, other: Self) -> Self {
        if self.is_within(other) {
            self
        } else if other.is_within(self) {
            other
        } else {
            Self::Nothing
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Nothing => "no access",
            Self::Image => "the image's",
            Self::Reading => "read",
            Self::Writing => "write",
        }
    }
}

/// Every path at which either table changes its mind. Between them both tables are constant, so
/// comparing here compares everywhere.
pub(crate) fn breakpoints<'a>(
    tables: impl IntoIterator<Item = &'a PathTable>,
) -> BTreeSet<PathBuf> {
    let paths = |table: &'a PathTable| table.iter().map(|(path, _)| path.to_path_buf());
    tables.into_iter().flat_map(paths).collect()
}

struct Report {
    /// Where the child's scalars come from: its file.
    origin: Origin,
    found: Vec<Excess>,
}

impl Report {
    fn add(&mut self, field: &'static str, parent: impl Display, child: impl Display) {
        let origin = self.origin.clone();
        self.add_at(field, parent, child, origin);
    }

    fn add_at(
        &mut self,
        field: &'static str,
        parent: impl Display,
        child: impl Display,
        origin: Origin,
    ) {
        let (parent, child) = (parent.to_string(), child.to_string());
        self.found.push(Excess {
            field,
            parent,
            child,
            origin,
        });
    }

    fn isolation(&mut self, parent: &Capability, child: (Tier, Degraded, Emulation)) {
        let (tier, degraded, emulation) = child;
        if tier.strength() < parent.tier.strength() {
            self.add("sandbox_tier", parent.tier.as_str(), tier.as_str());
        }
        if degraded > parent.degraded {
            let shown = |degraded| degraded == Degraded::Accept;
            self.add("degraded", shown(parent.degraded), shown(degraded));
        }
        if emulation > parent.emulation {
            let shown = |emulation| emulation == Emulation::Allow;
            self.add("allow_emulation", shown(parent.emulation), shown(emulation));
        }
    }

    /// Another image is other files and other programs, which nobody granted. To have none is to see the host's: the
    /// paths tell.
    fn image(&mut self, parent: Option<&Rule<ImageName>>, child: Option<&Rule<ImageName>>) {
        self.same("image", parent, child);
    }

    fn workdir(&mut self, parent: Option<&Rule<PathRule>>, child: Option<&Rule<PathRule>>) {
        self.same("root", parent, child);
    }

    fn proxy(&mut self, parent: Option<&Rule<ProxyTerms>>, child: Option<&Rule<ProxyTerms>>) {
        self.same("upstream_proxy", parent, child);
    }

    /// What a child may leave out, and otherwise has as its parent has it.
    fn same<T: Display + PartialEq>(
        &mut self,
        field: &'static str,
        parent: Option<&Rule<T>>,
        child: Option<&Rule<T>>,
    ) {
        if let Some(wanted) = child
            && parent.map(|rule| &rule.value) != Some(&wanted.value)
        {
            let has = parent.map_or("none".to_owned(), |rule| rule.value.to_string());
            self.add_at(field, has, &wanted.value, wanted.origin.clone());
        }
    }

    fn directories(&mut self, parent: &Filesystem, child: &Filesystem) {
        let Filesystem {
            workspace,
            home,
            // What these come to is compared as tables, see `paths`.
            mode: _,
            writable: _,
            readable: _,
            hidden: _,
            protected: _,
        } = child;
        if *workspace > parent.workspace {
            let (parent, child) = (parent.workspace, *workspace);
            self.add(
                "filesystem_config.workspace",
                parent.as_str(),
                child.as_str(),
            );
        }
        if *home > parent.home {
            self.add(
                "filesystem_config.home",
                parent.home.as_str(),
                home.as_str(),
            );
        }
    }

    fn paths(&mut self, parent: &PathTable, child: &PathTable) {
        for path in breakpoints([parent, child]) {
            self.path(&path, parent, child);
        }
        for (name, origin) in parent.any_named() {
            let kept = child.any_named().iter().any(|(own, own_origin)| {
                own == name && reaches_work(own_origin) >= reaches_work(origin)
            });
            if !kept {
                self.add(
                    "filesystem_config.hidden_paths",
                    format!("**/{name}"),
                    "no such rule",
                );
            }
        }
    }

    fn path(&mut self, path: &Path, parent: &PathTable, child: &PathTable) {
        let entry = child.lookup(path);
        let (has, wants) = (
            Exposure::of(parent.lookup(path).access),
            Exposure::of(entry.access),
        );
        if !wants.is_within(has) {
            let field = match wants {
                Exposure::Writing => "filesystem_config.writable_paths",
                _ => "filesystem_config.readable_paths",
            };
            let child = format!("{} {}", wants.as_str(), path.display());
            self.add_at(field, has.as_str(), child, entry.origin);
        }
    }

    fn limits(&mut self, parent: &Limits, child: &Limits) {
        let mib = |bytes: &u64| *bytes as f64 / MIB as f64;
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
        } = child;
        self.limit(
            "resource_limits.max_memory_mb",
            &parent.memory_bytes,
            memory_bytes,
            mib,
        );
        self.limit(
            "resource_limits.max_cpu_seconds",
            &parent.cpu_time,
            cpu_time,
            Duration::as_secs_f64,
        );
        self.limit(
            "resource_limits.max_cpu_percent",
            &parent.cpu_percent,
            cpu_percent,
            |v| *v,
        );
        self.limit(
            "resource_limits.max_wall_seconds",
            &parent.wall_time,
            wall_time,
            Duration::as_secs_f64,
        );
        self.limit(
            "resource_limits.max_processes",
            &parent.processes,
            processes,
            |v| *v,
        );
        self.limit(
            "resource_limits.max_open_files",
            &parent.open_files,
            open_files,
            |v| *v,
        );
        self.limit(
            "resource_limits.max_file_size_mb",
            &parent.file_size_bytes,
            file_size_bytes,
            mib,
        );
        self.limit(
            "resource_limits.max_disk_mb",
            &parent.disk_bytes,
            disk_bytes,
            mib,
        );
        self.limit(
            "resource_limits.max_connections",
            &parent.connections,
            connections,
            |v| *v,
        );
        self.limit(
            "resource_limits.max_cost_usd",
            &parent.cost_usd,
            cost_usd,
            |v| *v,
        );
        self.limit("resource_limits.max_tokens", &parent.tokens, tokens, |v| *v);
    }

    /// No limit is more than any limit. What can't be compared (a NaN) is an excess.
    fn limit<T: PartialOrd, D: Display>(
        &mut self,
        field: &'static str,
        parent: &Option<T>,
        child: &Option<T>,
        show: impl Fn(&T) -> D,
    ) {
        let Some(most) = parent else { return };
        match child {
            Some(wanted) if wanted <= most => {}
            Some(wanted) => self.add(field, show(most), show(wanted)),
            None => self.add(field, show(most), "no limit"),
        }
    }

    fn permissions(&mut self, parent: &BTreeSet<Permission>, child: &BTreeSet<Permission>) {
        let names: Vec<_> = parent.iter().map(|p| p.as_str()).collect();
        for extra in child.difference(parent) {
            self.add(
                "permissions",
                format!("[{}]", names.join(", ")),
                extra.as_str(),
            );
        }
    }

    fn env(&mut self, parent: &EnvPolicy, child: &EnvPolicy) {
        let EnvPolicy {
            allow,
            // What a child withholds it has less of.
            withheld: _,
        } = child;
        // What holds a secret of the parent's must not become the child's to read.
        for name in parent.withheld.keys() {
            if decide_name(child, name).is_allow() {
                let origin = match allow {
                    EnvAllow::Listed(names) => names.get(name).cloned(),
                    EnvAllow::Base | EnvAllow::All => None,
                };
                let origin = origin.unwrap_or_else(|| self.origin.clone());
                self.add_at("env_allowlist", "it withheld as a secret", name, origin);
            }
        }
        match allow {
            EnvAllow::Base => {}
            EnvAllow::All if parent.allow != EnvAllow::All => {
                self.add("env_allowlist", "a list", "every variable");
            }
            EnvAllow::All => {}
            EnvAllow::Listed(names) => {
                for (name, origin) in names {
                    // A name no list can pass is no excess: it gives the child nothing.
                    let passes = |policy| decide_name(policy, name).is_allow();
                    let said = parent.withheld.contains_key(name);
                    if passes(child) && !passes(parent) && !said {
                        self.add_at("env_allowlist", "no such name", name, origin.clone());
                    }
                }
            }
        }
    }

    fn egress(&mut self, parent: &[Rule<EgressRule>], child: &[Rule<EgressRule>]) {
        const FIELD: &str = "network_egress_rules";
        for rule in of_effect(child, EgressEffect::Allow) {
            let covers = |own: &Rule<EgressRule>| own.value.covers(&rule.value);
            if !of_effect(parent, EgressEffect::Allow).any(covers) {
                self.add_at(
                    FIELD,
                    "no rule that covers it",
                    &rule.value,
                    rule.origin.clone(),
                );
            }
        }
        for rule in of_effect(parent, EgressEffect::Deny) {
            let covers = |own: &Rule<EgressRule>| own.value.covers(&rule.value);
            if !of_effect(child, EgressEffect::Deny).any(covers) {
                self.add(FIELD, &rule.value, "no rule that blocks it");
            }
        }
    }

    /// Every piece of the child's must be covered by one of the parent's.
    fn pieces<T: Display>(
        &mut self,
        field: &'static str,
        (parent, child): (&[Rule<T>], &[Rule<T>]),
        covers: impl Fn(&T, &T) -> bool,
    ) {
        for rule in child {
            if !parent.iter().any(|own| covers(&own.value, &rule.value)) {
                let origin = rule.origin.clone();
                self.add_at(field, "none that covers it", &rule.value, origin);
            }
        }
    }

    /// A child that reaches anything must be charged for calls to models as its parent is.
    fn metering(&mut self, own: &LlmTerms, wanted: &LlmTerms, egress: &[Rule<EgressRule>]) {
        let LlmTerms {
            on_budget,
            // Compared where something can be reached.
            endpoints: _,
            prices: _,
        } = wanted;
        if *on_budget > own.on_budget {
            self.add("llm.on_budget", own.on_budget.as_str(), on_budget.as_str());
        }
        if of_effect(egress, EgressEffect::Allow).next().is_none() {
            return;
        }
        if !own.meters_the_same_hosts_as(wanted) {
            let shown = |terms: &LlmTerms| {
                let endpoints = terms.endpoints.iter().map(|rule| rule.value.to_string());
                format!("[{}]", endpoints.collect::<Vec<_>>().join(", "))
            };
            self.add("llm.endpoints", shown(own), shown(wanted));
        }
        if !own.has_the_prices_of(wanted) {
            let shown = |terms: &LlmTerms| match &terms.prices {
                Some(rule) => rule.value.to_string(),
                None => "the shipped ones".to_owned(),
            };
            self.add("llm.prices", shown(own), shown(wanted));
        }
    }

    fn tools(&mut self, parent: &ToolRules, child: &ToolRules) {
        for excess in child.beyond(parent) {
            let origin = excess.origin.unwrap_or_else(|| self.origin.clone());
            self.add_at(excess.field, excess.parent, excess.child, origin);
        }
    }
}

/// Built-in names stop at the working directory, written ones do not.
pub(crate) fn reaches_work(origin: &Origin) -> bool {
    origin.source != Source::BuiltIn
}

pub(crate) fn of_effect(
    rules: &[Rule<EgressRule>],
    effect: EgressEffect,
) -> impl Iterator<Item = &Rule<EgressRule>> {
    rules.iter().filter(move |rule| rule.value.effect == effect)
}

impl EgressRule {
    /// Whether everything `other` matches this rule matches, at the same rate or more, on the same
    /// terms or easier ones. The rate and terms of a deny rule say nothing.
    fn covers(&self, other: &Self) -> bool {
        let Self {
            domain,
            ports,
            rate_limit_per_min,
            // Only rules of one effect are compared.
            effect: _,
            terms,
        } = other;
        let ports = ports::covers(&self.ports, ports);
        let rate =
            self.effect == EgressEffect::Deny || *rate_limit_per_min <= self.rate_limit_per_min;
        let terms = self.effect == EgressEffect::Deny || self.terms.covers(terms);
        ports && rate && terms && self.domain.covers(domain)
    }
}

impl Display for EgressRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.domain)?;
        if !self.ports.is_empty() {
            write!(f, " ports {:?}", self.ports)?;
        }
        match self.effect {
            EgressEffect::Allow => write!(f, " at {}/min{}", self.rate_limit_per_min, self.terms),
            EgressEffect::Deny => f.write_str(" blocked"),
        }
    }
}
