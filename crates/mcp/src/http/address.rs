//! Where a server is, and what only it is told.

use hyper::header::{HeaderName, HeaderValue};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

/// Where a server is.
#[derive(Clone)]
pub struct Address {
    pub(super) place: Place,
    /// What it is called there.
    pub(super) host: String,
    pub(super) path: String,
    /// What each request there says besides. Values don't print.
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
}

#[derive(Clone)]
pub(super) enum Place {
    Tcp {
        host: String,
        port: u16,
        tls: Option<Tls>,
    },
    Unix(PathBuf),
}

/// Whom to trust, and as whom it must prove itself.
#[derive(Clone)]
pub(super) struct Tls {
    pub(super) config: Arc<ClientConfig>,
    pub(super) name: ServerName<'static>,
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.place {
            Place::Tcp { tls, .. } => {
                let scheme = if tls.is_some() { "https" } else { "http" };
                write!(f, "{scheme}://{}{}", self.host, self.path)
            }
            Place::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl std::fmt::Debug for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Address({self})")
    }
}

/// Why there is no such address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidAddress {
    /// The text is none.
    #[error("{0:?} is no address of an MCP server")]
    Text(String),
    /// There is nobody to trust.
    #[error("{address} can't be trusted: {why}")]
    Trust {
        /// Which.
        address: String,
        /// Why.
        why: String,
    },
    /// A secret would go over a network for all to read.
    #[error(
        "{0} is not this machine, and what only the server may know would go there unencrypted"
    )]
    InTheClear(String),
    /// A name or a value that no header can have.
    #[error("the header {0} can't be sent as it is")]
    Header(String),
}

impl InvalidAddress {
    /// What to write instead.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Text(_) => {
                "write http://HOST:PORT/PATH or https://HOST/PATH, or unix:PATH for a socket on which streamable HTTP is spoken"
            }
            Self::Trust { .. } => {
                "install ca-certificates, or name a PEM file with the server's authority: ca: FILE"
            }
            Self::InTheClear(_) => {
                "write https://, or put a proxy of your trust in front, on this host"
            }
            Self::Header(_) => "its value is one line of printable characters",
        }
    }
}

impl Address {
    /// Reads `http://HOST[:PORT]/PATH`, `https://HOST[:PORT]/PATH` or `unix:PATH`. `trust` says how to speak TLS, and is asked
    /// only where that is needed.
    ///
    /// # Errors
    /// When the text is none of these, or nobody can be trusted.
    pub fn parse(
        text: &str,
        trust: impl FnOnce() -> Result<Arc<ClientConfig>, String>,
    ) -> Result<Self, InvalidAddress> {
        let invalid = || InvalidAddress::Text(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:") {
            if !path.starts_with('/') {
                return Err(invalid());
            }
            return Ok(Self {
                place: Place::Unix(path.into()),
                host: "localhost".into(),
                path: "/mcp".into(),
                headers: Vec::new(),
            });
        }
        let uri: hyper::Uri = text.parse().map_err(|_| invalid())?;
        let authority = uri.authority().ok_or_else(invalid)?;
        let is_tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(invalid()),
        };
        if authority.as_str().contains('@') {
            return Err(invalid());
        }
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        let tls = match is_tls {
            false => None,
            true => {
                let name = ServerName::try_from(host.clone()).map_err(|_| invalid())?;
                let config = trust().map_err(|why| InvalidAddress::Trust {
                    address: text.to_owned(),
                    why,
                })?;
                Some(Tls { config, name })
            }
        };
        let port = authority
            .port_u16()
            .unwrap_or(if is_tls { 443 } else { 80 });
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        Ok(Self {
            place: Place::Tcp { host, port, tls },
            host: authority.as_str().to_owned(),
            path: path.to_owned(),
            headers: Vec::new(),
        })
    }

    /// Has each request there say this too. The value is a secret: it goes to this address alone.
    ///
    /// # Errors
    /// When it would go over a network unencrypted, or is no value of a header.
    pub fn with_header(mut self, name: &str, value: &str) -> Result<Self, InvalidAddress> {
        if !self.is_private() {
            return Err(InvalidAddress::InTheClear(self.to_string()));
        }
        let (Ok(header), Ok(mut value)) = (name.parse(), HeaderValue::from_str(value)) else {
            return Err(InvalidAddress::Header(name.to_owned()));
        };
        value.set_sensitive(true);
        self.headers.push((header, value));
        Ok(self)
    }

    /// Whether nobody on a network can listen.
    fn is_private(&self) -> bool {
        match &self.place {
            Place::Unix(_) | Place::Tcp { tls: Some(_), .. } => true,
            Place::Tcp { host, .. } => {
                let address = host.parse::<IpAddr>();
                host == "localhost" || address.is_ok_and(|address| address.is_loopback())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AUTHORIZATION: &str = "authorization";

    fn parse(text: &str) -> Result<Address, InvalidAddress> {
        Address::parse(text, || Err("nobody".to_owned()))
    }

    #[test]
    fn an_address_is_read_strictly() {
        let written = |text: &str| parse(text).map(|address| address.to_string());
        for text in [
            "http://127.0.0.1:9/mcp",
            "http://[::1]:9/a?b=c",
            "unix:/run/x.sock",
        ] {
            assert_eq!(written(text).as_deref(), Ok(text));
        }
        for text in ["ftp://a/", "unix:x", "http://u:p@a/", "a", "https://a_b%/"] {
            assert_eq!(written(text), Err(InvalidAddress::Text(text.to_owned())));
        }
        assert!(matches!(
            parse("https://a/"),
            Err(InvalidAddress::Trust { .. })
        ));
    }

    #[test]
    fn a_secret_goes_over_no_network_unencrypted_and_does_not_print() {
        let with = |text: &str| parse(text).and_then(|it| it.with_header(AUTHORIZATION, "hunter2"));
        for text in [
            "http://mcp.example/mcp",
            "http://10.0.0.1/",
            "http://127.0.0.1.example/",
        ] {
            assert!(
                matches!(with(text), Err(InvalidAddress::InTheClear(_))),
                "{text}"
            );
        }
        for text in [
            "http://127.0.0.1:9/",
            "http://localhost/",
            "unix:/run/x.sock",
        ] {
            let address = with(text).expect(text);
            assert!(!format!("{address:?} {address} {:?}", address.headers).contains("hunter2"));
        }
        let broken = parse("unix:/x").and_then(|it| it.with_header(AUTHORIZATION, "a\r\nb: c"));
        assert_eq!(
            broken.map(drop),
            Err(InvalidAddress::Header(AUTHORIZATION.into()))
        );
    }
}
