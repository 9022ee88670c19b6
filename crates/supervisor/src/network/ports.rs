//! Ports of a box that the host can connect to.

use crate::error::RunError;
use belljar_policy::{Capability, PublishedPort, Rule, host_ports};
use belljar_sandbox::native::PROXY_PORT;
use std::net::{SocketAddr, TcpListener};

/// A port that is open on the host. Connections wait until somebody answers for the box.
#[derive(Debug)]
pub(crate) struct OpenPort {
    pub(super) listener: TcpListener,
    /// What it leads to.
    pub(crate) port: PublishedPort,
    /// Where it is, now that it is open.
    pub(crate) at: SocketAddr,
}

/// Opens every port that is to be published, or none.
pub(super) fn open(capability: &Capability) -> Result<Vec<OpenPort>, RunError> {
    let one = |rule: &Rule<PublishedPort>| {
        let port = rule.value;
        let wanted = SocketAddr::new(port.address, port.on_host);
        let opened = TcpListener::bind(wanted).and_then(|listener| {
            let at = listener.local_addr()?;
            Ok(OpenPort { listener, port, at })
        });
        opened.map_err(|error| RunError::Refused {
            what: format!("{}: {wanted} can't be opened: {error}", rule.origin),
            hint: format!(
                "publish it elsewhere: ports: [{{box: {}, host: 0}}] takes a free one",
                port.in_box
            ),
        })
    };
    capability.ports.iter().map(one).collect()
}

/// A port of a box's loopback for [`crate::Command::answered`]: the first after the proxy's that leads nowhere else, neither
/// out of the box nor into it.
#[must_use]
pub fn answered_port(capability: &Capability) -> u16 {
    let led_out = host_ports(&capability.egress);
    let led_in = |port: u16| {
        capability
            .ports
            .iter()
            .any(|rule| rule.value.in_box == port)
    };
    let is_free = |port: &u16| !led_out.contains(port) && !led_in(*port);
    (PROXY_PORT + 1..u16::MAX).find(is_free).unwrap_or(u16::MAX)
}
