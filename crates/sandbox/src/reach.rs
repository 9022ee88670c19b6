//! What of a plan leads out of a guest, or into it: its network, its published ports, the sockets of its keeper's.

use crate::order::{Reader, Writer};
use crate::plan::{Entry, Network, Plan};
use crate::show::Show;
use std::path::PathBuf;

/// All ways between a program and whoever is outside of its guest, but its files and streams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reach {
    pub(crate) network: Network,
    /// The port of its loopback that the keeper answers at.
    pub(crate) answered: Option<u16>,
    /// Ports of its loopback that the keeper connects to.
    pub(crate) published: Vec<u16>,
    /// Unix sockets that the keeper listens on.
    pub(crate) doors: Vec<PathBuf>,
}

impl Reach {
    pub(crate) fn of(plan: &Plan) -> Self {
        let doors = plan.shows.iter().filter_map(|show| match show {
            Show::Door { name, .. } => Some(name.path()),
            Show::Text { .. } | Show::Program { .. } => None,
        });
        Self {
            network: plan.network.clone(),
            answered: plan.answered_port,
            published: match &plan.entry {
                Entry::Closed => Vec::new(),
                Entry::ForKeeper { ports } => ports.clone(),
            },
            doors: doors.collect(),
        }
    }

    pub(super) fn write(&self, out: &mut Writer) {
        let ports = |out: &mut Writer, ports: &[u16]| {
            out.number(ports.len() as u64);
            ports.iter().for_each(|port| out.number((*port).into()));
        };
        match &self.network {
            Network::Closed => out.number(0),
            Network::Guarded { host_ports } => {
                out.number(1);
                ports(out, host_ports);
            }
        }
        ports(out, self.answered.as_slice());
        ports(out, &self.published);
        out.number(self.doors.len() as u64);
        self.doors
            .iter()
            .for_each(|path| out.text(path.as_os_str()));
    }

    pub(super) fn read(bytes: &mut Reader<'_>) -> Option<Self> {
        let ports = |bytes: &mut Reader<'_>| bytes.list(|bytes| bytes.number()?.try_into().ok());
        let network = match bytes.number()? {
            0 => Network::Closed,
            1 => Network::Guarded {
                host_ports: ports(bytes)?,
            },
            _ => return None,
        };
        let answered = match ports(bytes)?.as_slice() {
            [] => None,
            [port] => Some(*port),
            _ => return None,
        };
        Some(Self {
            network,
            answered,
            published: ports(bytes)?,
            doors: bytes.list(|bytes| bytes.text().map(PathBuf::from))?,
        })
    }
}
