//! The proxy of the host's network that connections go through.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer};

use super::{Host, SecretSource};

/// The proxy of the host's network that connections go through.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProxyTerms {
    /// Where it is.
    #[serde(rename = "url")]
    pub place: ProxyPlace,
    /// Where its `user:password` is, for proxies that ask.
    #[serde(rename = "from")]
    pub credentials: Option<SecretSource>,
    /// Who turns names into addresses.
    #[serde(rename = "resolve")]
    pub resolution: ProxyResolution,
}

/// Where a proxy is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ProxyPlace {
    /// Where `HTTPS_PROXY` of the host says, whose user and password count too. Without it, there is none.
    Environment,
    /// At this host and port. It is the operator's own choice, so it may be a private address.
    At(Host, u16),
}

/// Who turns names into addresses when connections go through a proxy.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub enum ProxyResolution {
    /// Belljar, which then checks the addresses and asks the proxy for one of them.
    #[default]
    #[serde(rename = "host")]
    Local,
    /// The proxy, which gets the name. It must refuse private addresses by itself: Belljar can't see them.
    #[serde(rename = "proxy")]
    AtProxy,
}

/// Why a text is no proxy. The text itself is not shown: it may hold a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidProxy {
    /// Not `http://`.
    #[error("a proxy begins with `http://`")]
    Scheme,
    /// A user or a password.
    #[error("a proxy's user and password are not written in a file")]
    Credentials,
    /// Something after the port.
    #[error("a proxy has no path")]
    Path,
    /// No port, or none that exists.
    #[error("a proxy needs a port from 1 to 65535")]
    Port,
    /// Neither a name nor an address.
    #[error("a proxy's host is a name or an address")]
    Host,
}

impl InvalidProxy {
    /// What to write instead.
    #[must_use]
    pub fn hint(self) -> &'static str {
        match self {
            Self::Credentials => {
                "say where they are: upstream_proxy: {url: \"http://proxy.example.com:3128\", from: {env: NAME}}"
            }
            Self::Scheme => {
                "write http://proxy.example.com:3128, or env for what HTTPS_PROXY says; proxies are not spoken to over TLS"
            }
            Self::Path | Self::Port | Self::Host => {
                "write http://proxy.example.com:3128, or env for what HTTPS_PROXY says"
            }
        }
    }
}

impl ProxyPlace {
    /// Reads `http://host:port`, or `env`.
    ///
    /// # Errors
    /// When it is neither, or holds a password; see [`InvalidProxy`].
    pub fn parse(text: &str) -> Result<Self, InvalidProxy> {
        if text == "env" {
            return Ok(Self::Environment);
        }
        // Looked for first: whatever else is wrong, a password must go.
        if text.contains('@') {
            return Err(InvalidProxy::Credentials);
        }
        let rest = text.strip_prefix("http://").ok_or(InvalidProxy::Scheme)?;
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        if authority.contains(['/', '?', '#']) {
            return Err(InvalidProxy::Path);
        }
        let (host, port) = authority.rsplit_once(':').ok_or(InvalidProxy::Port)?;
        let digits = port.bytes().all(|b| b.is_ascii_digit());
        let port = port
            .parse()
            .ok()
            .filter(|port| digits && *port > 0)
            .ok_or(InvalidProxy::Port)?;
        // An IPv6 address without its brackets would end anywhere.
        if host.contains(':') && !(host.starts_with('[') && host.ends_with(']')) {
            return Err(InvalidProxy::Host);
        }
        let host = Host::parse(host).map_err(|_| InvalidProxy::Host)?;
        Ok(Self::At(host, port))
    }
}

impl fmt::Display for ProxyPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Environment => f.write_str("env"),
            Self::At(host, port) => match host.address() {
                Some(address) if address.is_ipv6() => write!(f, "http://[{address}]:{port}"),
                _ => write!(f, "http://{host}:{port}"),
            },
        }
    }
}

impl Serialize for ProxyPlace {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Display for ProxyTerms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.place)?;
        if let Some(source) = &self.credentials {
            write!(f, " with {source}")?;
        }
        match self.resolution {
            ProxyResolution::Local => Ok(()),
            ProxyResolution::AtProxy => f.write_str(", which looks names up"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxies_are_read_strictly_and_shown_as_they_are_written() {
        let check = |text: &str, expect: Result<&str, InvalidProxy>| {
            let parsed = ProxyPlace::parse(text);
            let shown = parsed.as_ref().map(ToString::to_string).map_err(|e| *e);
            assert_eq!(shown, expect.map(str::to_owned), "{text}");
            if let Ok(place) = parsed {
                assert_eq!(ProxyPlace::parse(&place.to_string()), Ok(place));
            }
        };
        check("env", Ok("env"));
        check("http://Proxy.corp:3128/", Ok("http://proxy.corp:3128"));
        check("http://10.0.0.1:80", Ok("http://10.0.0.1:80"));
        check("http://[fd00::1]:80", Ok("http://[fd00::1]:80"));
        check("https://proxy:3128", Err(InvalidProxy::Scheme));
        check("proxy:3128", Err(InvalidProxy::Scheme));
        check("http://u:p@proxy:3128", Err(InvalidProxy::Credentials));
        check("https://u:p@proxy:3128", Err(InvalidProxy::Credentials));
        check("http://proxy:3128/x", Err(InvalidProxy::Path));
        check("http://proxy", Err(InvalidProxy::Port));
        check("http://proxy:0", Err(InvalidProxy::Port));
        check("http://proxy:+80", Err(InvalidProxy::Port));
        check("http://proxy:65536", Err(InvalidProxy::Port));
        check("http://a b:1", Err(InvalidProxy::Host));
        check("http://fd00::1:80", Err(InvalidProxy::Host));
    }
}
