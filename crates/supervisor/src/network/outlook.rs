//! What a capability makes of a box's network, before anything runs.

use super::ports::{self, OpenPort};
use super::source::SecretReader;
use super::{secrets, trust};
use crate::error::RunError;
use crate::key_files::KnownSecret;
use crate::view::Tree;
use belljar_egress::{Authority, LlmEndpoint};
use belljar_policy::{
    Access, Capability, CompiledRules, EgressEffect, FileOp, PathRule, PathTable, Places,
    SecretSource, host_ports,
};
use belljar_sandbox::plan::{Entry, Kind, Network, Replaced};
use belljar_sandbox::show::{Show, ShowName};
use std::collections::BTreeSet;
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
    /// Reads its secrets, and others that its policy has.
    pub(super) reader: SecretReader,
    /// Values of its secrets.
    pub(crate) secrets: Vec<KnownSecret>,
}

/// What a plan gets from it.
#[derive(Debug, Default)]
pub(crate) struct Fittings {
    pub(crate) network: Network,
    pub(crate) entry: Entry,
    pub(crate) shows: Vec<Show>,
    pub(crate) replaced: Vec<Replaced>,
    pub(crate) env: Vec<(OsString, OsString)>,
    /// Links for the view: files that an image lacks, and where they are shown.
    pub(crate) links: Vec<(PathBuf, PathBuf)>,
}

/// What a box sees of files, for those that want to put others in their place.
pub(crate) struct Eyes<'a> {
    pub(crate) table: &'a PathTable,
    /// The image whose files are there, if not the host's.
    pub(crate) image: Option<&'a Tree>,
}

/// What a box has at a path.
enum Seen {
    /// A file, at this real path.
    File(PathBuf),
    /// Nothing, in an image: there is room for something.
    Room,
    /// Nothing that concerns us.
    Nothing,
}

impl Eyes<'_> {
    fn look(&self, path: &Path) -> Seen {
        match (self.table.access(path), self.image) {
            (Access::Image, Some(tree)) => match tree.real(path) {
                Some((real, Kind::File)) if self.table.access(&real) == Access::Image => {
                    Seen::File(real)
                }
                _ => Seen::Room,
            },
            (Access::Hidden, _) => Seen::Nothing,
            _ => match path.canonicalize() {
                Ok(real) if real.is_file() && self.table.decide(&real, FileOp::Read).is_allow() => {
                    Seen::File(real)
                }
                _ => Seen::Nothing,
            },
        }
    }

    pub(super) fn has_file(&self, path: &Path) -> bool {
        matches!(self.look(path), Seen::File(_))
    }

    /// Where a directory that the box sees is on the host.
    pub(super) fn directory(&self, path: &Path) -> PathBuf {
        match self.image {
            Some(tree) => match tree.real(path) {
                Some((real, _)) => tree.on_host(&real),
                None => tree.on_host(path),
            },
            None => path.to_owned(),
        }
    }
}

/// What is shown in place of files that the system has.
struct Stand<'a> {
    name: &'a str,
    /// The files' paths; where none of them is there, an image gets the first.
    paths: &'a [&'a str],
    lacking: Lacking,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Lacking {
    /// Programs look for it.
    Put,
    /// Nobody misses it.
    Leave,
}

/// Names are asked of the gateway, at the address that programs use when nobody tells them another.
const RESOLV_CONF: &[u8] = b"nameserver 127.0.0.1\noptions timeout:5 attempts:2\n";
/// The host's own list would answer with addresses, and it is names that rules are about.
const HOSTS: &[u8] = b"127.0.0.1\tlocalhost belljar\n::1\tlocalhost ip6-localhost ip6-loopback\n";

impl Outlook {
    /// `None` when the network is closed, both ways. Takes the secrets from where they are: call it when the box's first
    /// process is made, which must have no copy of them, and before its program runs.
    pub(crate) fn of(
        capability: &Capability,
        places: &Places,
        reader: &SecretReader,
    ) -> Result<Option<Self>, RunError> {
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
            reader: reader.clone(),
            secrets: secrets::values(capability, reader)?,
        }))
    }

    /// What the box needs to see of it.
    pub(crate) fn fittings(
        &self,
        capability: &Capability,
        eyes: &Eyes<'_>,
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
        let put = Lacking::Put;
        let resolver = Stand {
            name: "net/resolv.conf",
            paths: &["/etc/resolv.conf"],
            lacking: put,
        };
        fittings.show(&resolver, RESOLV_CONF.into(), eyes)?;
        let hosts = Stand {
            name: "net/hosts",
            paths: &["/etc/hosts"],
            lacking: put,
        };
        fittings.show(&hosts, HOSTS.into(), eyes)?;
        if let Some(authority) = &self.authority {
            let bundle = trust::bundle(authority)?;
            let trusted = Stand {
                name: "net/ca-certificates.crt",
                paths: trust::SYSTEM_BUNDLES,
                lacking: put,
            };
            let path = fittings.show(&trusted, Arc::clone(&bundle), eyes)?.path();
            let stores: Vec<String> = trust::java_stores(eyes);
            let stores: Vec<&str> = stores.iter().map(String::as_str).collect();
            if !stores.is_empty() {
                let store = belljar_egress::java_trust_store(&bundle);
                let stand = Stand {
                    name: "net/cacerts",
                    paths: &stores,
                    lacking: Lacking::Leave,
                };
                fittings.show(&stand, store.into(), eyes)?;
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
            SecretSource::Env(_) | SecretSource::Store(_) | SecretSource::Command(_) => None,
        })
}

fn make_authority() -> Result<Authority, RunError> {
    Authority::generate().map_err(|error| RunError::System {
        doing: "making the box's certificate authority",
        source: std::io::Error::other(error),
    })
}

impl Fittings {
    /// Shows a text, also where the box would see other files.
    fn show(
        &mut self,
        stand: &Stand<'_>,
        bytes: Arc<[u8]>,
        eyes: &Eyes<'_>,
    ) -> Result<ShowName, RunError> {
        let name = ShowName::new(stand.name).map_err(|error| RunError::Invalid {
            what: error.to_string(),
            hint: String::new(),
        })?;
        let seen: Vec<(&str, Seen)> = stand
            .paths
            .iter()
            .map(|path| (*path, eyes.look(Path::new(path))))
            .collect();
        let files = seen.iter().filter_map(|(_, seen)| match seen {
            Seen::File(path) => Some(path),
            Seen::Room | Seen::Nothing => None,
        });
        let files: BTreeSet<&PathBuf> = files.collect();
        if let (true, Lacking::Put, Some((path, Seen::Room))) =
            (files.is_empty(), stand.lacking, seen.first())
        {
            self.links.push((PathBuf::from(path), name.path()));
        }
        self.replaced.extend(files.into_iter().map(|path| Replaced {
            path: path.clone(),
            by: name.clone(),
        }));
        self.shows.push(Show::Text {
            name: name.clone(),
            bytes,
        });
        Ok(name)
    }
}
