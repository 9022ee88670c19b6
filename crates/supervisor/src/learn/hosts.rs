//! What a run's connections come to in rules.

use super::{Hosts, Lesson};
use crate::network::{HostUse, NetworkUsage, RefusalGroup};
use crate::observation::Observation;
use belljar_egress::{Refusal, RefusalCode, Way};
use belljar_manifest::carry::{CarriedText, DocumentText};
use belljar_manifest::draft::{HostLine, Standing};
use belljar_policy::{
    AddressClass, CompiledRules, DomainPattern, EgressRule, EgressTerms, Host, Outcome, Reach, Rule,
};
use std::collections::{BTreeMap, BTreeSet};

/// What a rule allows per minute when it does not say.
const USUAL_RATE: u64 = 60;
const MOST_RATE: u64 = 1_000_000;
const MOST_REMARKS: usize = 24;

pub(super) struct Network {
    pub(super) lines: Vec<HostLine>,
    pub(super) remarks: Vec<String>,
    /// Rules of the user's that say more than host and port, as they are written.
    pub(super) carried: Vec<CarriedText>,
    /// What the file lets through.
    pub(super) used: Vec<(String, u16)>,
}

#[derive(Default)]
struct Found {
    rules: BTreeMap<Key, Uses>,
    remarks: BTreeSet<String>,
    /// By the lines in which they begin.
    carried: BTreeMap<u32, CarriedText>,
    carried_uses: BTreeSet<(String, u16)>,
}

/// One rule each, in the order of the file.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    standing: Standing,
    domain: String,
    private: bool,
    why: String,
}

#[derive(Default)]
struct Uses {
    ports: BTreeSet<u16>,
    connections: u64,
}

pub(super) fn learn(lesson: &Lesson<'_>, observed: &Observation) -> Network {
    let mut found = Found::default();
    if let Some(network) = &lesson.result.network {
        let before = CompiledRules::new(lesson.within.egress.clone());
        for made in &network.hosts {
            let failed = failures(network, &made.host, made.port);
            // Some ports are dialled only when the client has spoken.
            if made.spoken > 0 && made.connections > failed {
                found.made(lesson, &before, made);
            } else if failed == 0 {
                let (_, domain, reachable, _) = standing_of(&made.host, lesson.hosts);
                let why = "connected to, but nothing was said";
                found.rule(Standing::Proposed, domain, made.port, reachable, why);
            }
        }
        for group in &network.refusals {
            found.refused(group, lesson.hosts);
        }
    }
    for address in observed.loopback_refused.keys() {
        let why = "nobody listens there in the box; allow it if the host's own server is meant";
        found.rule(
            Standing::Proposed,
            "localhost",
            address.port(),
            Reachable::Openly,
            why,
        );
    }
    found.conclude()
}

/// Connections to a host that were let through and did not come about.
fn failures(network: &NetworkUsage, host: &str, port: u16) -> u64 {
    let alike = network.refusals.iter().filter(|group| {
        let refusal = &group.refusal;
        // A request that was refused was made on a connection that stood.
        refusal.host == host && refusal.port == Some(port) && refusal.way != Way::Http
    });
    alike.map(|group| group.count).sum()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Reachable {
    Openly,
    /// By `allow_private` only.
    Privately,
}

impl Found {
    fn rule(
        &mut self,
        standing: Standing,
        domain: &str,
        port: u16,
        reachable: Reachable,
        why: &str,
    ) -> &mut Uses {
        let key = Key {
            standing,
            domain: domain.to_owned(),
            private: reachable == Reachable::Privately,
            why: why.to_owned(),
        };
        let uses = self.rules.entry(key).or_default();
        uses.ports.insert(port);
        uses
    }

    /// A connection that came about.
    fn made(&mut self, lesson: &Lesson<'_>, before: &CompiledRules, made: &HostUse) {
        let (host, port) = (made.host.as_str(), made.port);
        let earlier = Host::parse(host)
            .ok()
            .map(|host| before.decide(&host, port));
        let (standing, reachable, why) = match earlier {
            Some(Outcome::Allow(id)) => {
                let rule = before.rule(id);
                if let Some(text) = written(lesson, rule) {
                    self.carried.insert(rule.origin.line, text);
                    self.carried_uses.insert((host.to_owned(), port));
                    return;
                }
                let reachable = match rule.value.terms.reach {
                    Reach::Private | Reach::Metadata => Reachable::Privately,
                    Reach::Public | Reach::Host => Reachable::Openly,
                };
                // A rule without its conditions would be a wider one.
                match rule.value.terms.http {
                    None => (Standing::Granted, reachable, "connected".to_owned()),
                    Some(_) => (
                        Standing::Proposed,
                        reachable,
                        format!(
                            "connected; copy the rule at {}, which says more",
                            rule.origin
                        ),
                    ),
                }
            }
            _ => (Standing::Granted, Reachable::Openly, "connected".to_owned()),
        };
        let uses = self.rule(standing, host, port, reachable, &why);
        uses.connections = uses.connections.saturating_add(made.connections);
    }

    fn refused(&mut self, group: &RefusalGroup, hosts: Hosts) {
        let refusal = &group.refusal;
        let Some(port) = refusal.port.filter(|port| *port != 0) else {
            return self.remark(refusal);
        };
        if DomainPattern::parse(&refusal.host).is_err() {
            return self.remark(refusal);
        }
        match refusal.code {
            RefusalCode::NoRule if refusal.way != Way::Packet => {
                let (standing, domain, reachable, why) = standing_of(&refusal.host, hosts);
                let uses = self.rule(standing, domain, port, reachable, why);
                uses.connections = uses.connections.saturating_add(group.count);
            }
            RefusalCode::PrivateAddress => {
                let why = "at a private address, refused";
                let reachable = Reachable::Privately;
                self.rule(Standing::Proposed, &refusal.host, port, reachable, why);
            }
            RefusalCode::Unresolved | RefusalCode::Unreachable => {
                let why = "wanted, but could not be reached";
                let reachable = Reachable::Openly;
                self.rule(Standing::Proposed, &refusal.host, port, reachable, why);
            }
            _ => self.remark(refusal),
        }
    }

    fn remark(&mut self, refusal: &Refusal) {
        let port = refusal
            .port
            .map_or(String::new(), |port| format!(":{port}"));
        let remark = format!(
            "Refused: {} {}{port} ({}): {}",
            refusal.way.as_str(),
            refusal.host,
            refusal.code.code(),
            refusal.hint
        );
        if self.remarks.len() < MOST_REMARKS {
            self.remarks.insert(remark);
        }
    }

    fn conclude(self) -> Network {
        let mut used: Vec<(String, u16)> = self.carried_uses.iter().cloned().collect();
        // What was reached once is no proposal any more, whatever became of another try.
        let granted: BTreeSet<(String, u16)> = self
            .rules
            .iter()
            .filter(|(key, _)| key.standing == Standing::Granted)
            .flat_map(|(key, uses)| {
                let domain = key.domain.clone();
                uses.ports.iter().map(move |port| (domain.clone(), *port))
            })
            .chain(self.carried_uses)
            .collect();
        let mut lines = Vec::new();
        for (key, uses) in self.rules {
            let is_new = |port: &u16| {
                key.standing == Standing::Granted || !granted.contains(&(key.domain.clone(), *port))
            };
            let ports: Vec<u16> = uses.ports.into_iter().filter(is_new).collect();
            if ports.is_empty() {
                continue;
            }
            if key.standing == Standing::Granted {
                used.extend(ports.iter().map(|port| (key.domain.clone(), *port)));
            }
            lines.push(HostLine {
                domain: key.domain,
                ports,
                rate: rate(uses.connections),
                private: key.private,
                why: key.why,
                standing: key.standing,
            });
        }
        Network {
            lines,
            remarks: self.remarks.into_iter().collect(),
            carried: self.carried.into_values().collect(),
            used,
        }
    }
}

/// A rule of the user's with conditions, as it is written: without them it would be a wider one.
fn written(lesson: &Lesson<'_>, rule: &Rule<EgressRule>) -> Option<CarriedText> {
    let is_own = rule.origin.file == lesson.within.name;
    if !is_own || rule.value.terms == EgressTerms::default() {
        return None;
    }
    let lines = DocumentText::new(lesson.document?).item(rule.origin.line)?;
    let why = format!("Used; as in {}.", rule.origin);
    Some(CarriedText { lines, why })
}

/// What becomes of a host that no rule was about.
fn standing_of(host: &str, hosts: Hosts) -> (Standing, &str, Reachable, &'static str) {
    use Reachable::{Openly, Privately};
    use Standing::{Granted, Proposed};
    let class = Host::parse(host).ok().and_then(|host| host.address());
    match class.map(AddressClass::of) {
        Some(AddressClass::Private) => (Proposed, host, Privately, "a private address"),
        Some(AddressClass::Loopback) => (Proposed, "localhost", Openly, "the host itself"),
        Some(AddressClass::Metadata) => (
            Proposed,
            host,
            Privately,
            "hands out the host's credentials to whoever asks",
        ),
        Some(AddressClass::Never) => (Proposed, host, Openly, "no address of the open network"),
        _ if host == "localhost" => (Proposed, host, Openly, "the host itself"),
        Some(AddressClass::Public) | None => match hosts {
            Hosts::Refuse => (Granted, host, Openly, "wanted; refused in the learning run"),
            Hosts::Record => (
                Proposed,
                host,
                Openly,
                "wanted; refused in the learning run",
            ),
        },
    }
}

/// Twice what was seen, where the usual is not clearly enough. More than all in a minute there can't have been.
fn rate(connections: u64) -> Option<u32> {
    let wanted = connections.saturating_mul(2);
    if wanted <= USUAL_RATE {
        return None;
    }
    let rounded = wanted.div_ceil(USUAL_RATE).saturating_mul(USUAL_RATE);
    u32::try_from(rounded.min(MOST_RATE)).ok()
}
