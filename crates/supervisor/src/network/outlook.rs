//! What a capability makes of a box's network, before anything runs.

use super::ports::{self, OpenPort};
use super::{secrets, trust};
use crate::error::RunError;
use belljar_egress::{Authority, LlmEndpoint};
use belljar_policy::{
    Capability, CompiledRules, EgressEffect, PathRule, Places, SecretSource, host_ports,
};
use belljar_sandbox::plan::{Entry, Network, Replaced};
use belljar_sandbox::show::{Show, ShowName};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Everything about a box's network that can be told beforehand.
#[derive(Debug)]
pub(crate) struct Outlook {
    pub(super) rules: CompiledRules,
    /// Hosts that serve models and that the rules let the agent reach.
    pub(super) endpoints: Vec<LlmEndpoint>,
    /// Signs for hosts that are looked at.
    pub(super) authority: Option<Arc<Authority>>,
    /// Its ports that are open on the host.
    pub(super) ports: Vec<OpenPort>,
    /// Where the paths in its rules lead.
    pub(super) places: Places,
}

/// What a plan gets from it.
#[derive(Debug, Default)]
pub(crate) struct Fittings {
    pub(crate) network: Network,
    pub(crate) entry: Entry,
    pub(crate) shows: Vec<Show>,
    pub(crate) replaced: Vec<Replaced>,
    pub(crate) env: Vec<(OsString, OsString)>,
}

/// Names are asked of the gateway, at the address that programs use when nobody tells them another.
const RESOLV_CONF: &[u8] = b"nameserver 127.0.0.1\noptions timeout:5 attempts:2\n";
/// The host's own list would answer with addresses, and it is names that rules are about.
const HOSTS: &[u8] = b"127.0.0.1\tlocalhost belljar\n::1\tlocalhost ip6-localhost ip6-loopback\n";

impl Outlook {
    /// `None` when the network is closed, both ways.
    pub(crate) fn of(capability: &Capability, places: &Places) -> Result<Option<Self>, RunError> {
        if !leads_out(capability) && capability.ports.is_empty() {
            return Ok(None);
        }
        let rules = CompiledRules::new(capability.egress.clone());
        let mut endpoints = capability.llm.all_endpoints();
        endpoints.retain(|endpoint| endpoint.is_reachable(&capability.egress));
        let looks_inside = !endpoints.is_empty()
            || !capability.secrets.is_empty()
            || rules
                .rules()
                .iter()
                .any(|rule| rule.value.terms.http.is_some());
        let authority = match looks_inside {
            true => Some(Arc::new(make_authority()?)),
            false => None,
        };
        Ok(Some(Self {
            rules,
            endpoints,
            authority,
            ports: ports::open(capability)?,
            places: places.clone(),
        }))
    }

    /// What the box needs to see of it. `is_seen`: whether a file of the host's is in the box's view.
    pub(crate) fn fittings(
        &self,
        capability: &Capability,
        is_seen: impl Fn(&Path) -> bool,
    ) -> Result<Fittings, RunError> {
        let mut fittings = Fittings {
            entry: match self.ports.is_empty() {
                true => Entry::Closed,
                false => Entry::ForKeeper {
                    ports: self.ports.iter().map(|open| open.port.in_box).collect(),
                },
            },
            ..Fittings::default()
        };
        if !leads_out(capability) {
            return Ok(fittings);
        }
        fittings.network = network_of(capability);
        let mut show =
            |name: &str, bytes: Arc<[u8]>, paths: &[&str]| -> Result<ShowName, RunError> {
                let name = ShowName::new(name).map_err(|error| RunError::Invalid {
                    what: error.to_string(),
                    hint: String::new(),
                })?;
                for path in real_files(paths).into_iter().filter(|path| is_seen(path)) {
                    fittings.replaced.push(Replaced {
                        path,
                        by: name.clone(),
                    });
                }
                fittings.shows.push(Show::Text {
                    name: name.clone(),
                    bytes,
                });
                Ok(name)
            };
        show("net/resolv.conf", RESOLV_CONF.into(), &["/etc/resolv.conf"])?;
        show("net/hosts", HOSTS.into(), &["/etc/hosts"])?;
        if let Some(authority) = &self.authority {
            let bundle = trust::bundle(authority)?;
            let name = show(
                "net/ca-certificates.crt",
                Arc::clone(&bundle),
                trust::SYSTEM_BUNDLES,
            )?;
            let path = name.path();
            let stores: Vec<String> = trust::java_stores();
            let stores: Vec<&str> = stores.iter().map(String::as_str).collect();
            if !stores.is_empty() {
                let store = belljar_egress::java_trust_store(&bundle);
                show("net/cacerts", store.into(), &stores)?;
            }
            let trusting = trust::VARIABLES.iter();
            fittings
                .env
                .extend(trusting.map(|name| (name.into(), path.clone().into_os_string())));
        }
        for rule in &capability.secrets {
            if let Some(name) = &rule.value.env {
                let value = secrets::placeholder(&rule.value);
                fittings.env.push((name.into(), value.into()));
            }
        }
        Ok(fittings)
    }
}

/// Whether anything may be reached at all.
/// What a box's network leads to, told without a look at the host.
pub(crate) fn network_of(capability: &Capability) -> Network {
    match leads_out(capability) {
        true => Network::Guarded {
            host_ports: host_ports(&capability.egress),
        },
        false => Network::Closed,
    }
}

fn leads_out(capability: &Capability) -> bool {
    let mut rules = capability.egress.iter();
    rules.any(|rule| rule.value.effect == EgressEffect::Allow)
}

/// Files of the host's that hold a secret: no box sees them.
pub(crate) fn secret_files(capability: &Capability) -> impl Iterator<Item = &PathRule> {
    let secrets = capability.secrets.iter().map(|rule| &rule.value.source);
    let proxy = capability.upstream_proxy.iter();
    let proxy = proxy.filter_map(|rule| rule.value.credentials.as_ref());
    let layers = capability.tools.layers();
    let servers = layers.flat_map(|layer| layer.servers.iter().flatten());
    let servers = servers.flat_map(|(_, rule)| rule.value.headers());
    let servers = servers.map(|header| &header.source);
    secrets
        .chain(proxy)
        .chain(servers)
        .filter_map(|source| match source {
            SecretSource::File(path) => Some(path),
            SecretSource::Env(_) | SecretSource::Command(_) => None,
        })
}

fn make_authority() -> Result<Authority, RunError> {
    Authority::generate().map_err(|error| RunError::System {
        doing: "making the box's certificate authority",
        source: std::io::Error::other(error),
    })
}

/// Those that exist as files, each once, by their real paths.
fn real_files(paths: &[&str]) -> Vec<PathBuf> {
    let mut real: Vec<PathBuf> = paths
        .iter()
        .filter_map(|path| Path::new(path).canonicalize().ok())
        .filter(|path| path.is_file())
        .collect();
    real.sort();
    real.dedup();
    real
}
