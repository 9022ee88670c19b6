//! By which names a server may be asked, and from which pages.
//!
//! A page from elsewhere can have its own name point at this machine and then ask it anything, as far as the browser is concerned (DNS
//! rebinding). What it can't do is to send another `Host` than its name.

use std::net::{IpAddr, SocketAddr};

/// The names of a server.
#[derive(Debug)]
pub(crate) struct Names {
    scheme: &'static str,
    default_port: &'static str,
    hosts: Vec<String>,
}

impl Names {
    pub(crate) fn new(bound: SocketAddr, further: &[String], is_tls: bool) -> Self {
        let (scheme, default_port) = if is_tls {
            ("https", ":443")
        } else {
            ("http", ":80")
        };
        let mut names = Self {
            scheme,
            default_port,
            hosts: Vec::new(),
        };
        let port = bound.port();
        for name in ["localhost", "127.0.0.1", "[::1]"] {
            names.add(&format!("{name}:{port}"));
        }
        if !bound.ip().is_unspecified() {
            names.add(&bound.to_string());
        }
        for name in further {
            if name.parse::<SocketAddr>().is_ok() || has_port(name) {
                names.add(name);
            } else if let Ok(IpAddr::V6(address)) = name.parse() {
                names.add(&format!("[{address}]:{port}"));
            } else {
                names.add(&format!("{name}:{port}"));
            }
        }
        names
    }

    fn add(&mut self, host: &str) {
        let host = self.plain(host);
        self.hosts.push(host);
    }

    /// In lower case, and without the port that goes without saying.
    fn plain(&self, host: &str) -> String {
        let host = host.to_ascii_lowercase();
        let bare = host.strip_suffix(self.default_port);
        bare.map(str::to_owned).unwrap_or(host)
    }

    /// Whether a request under this name is meant for us.
    pub(crate) fn is_ours(&self, host: &str) -> bool {
        self.hosts.contains(&self.plain(host))
    }

    /// Whether a page with this origin is one that we served under this name.
    pub(crate) fn is_origin(&self, origin: &str, host: &str) -> bool {
        let named = origin
            .strip_prefix(self.scheme)
            .and_then(|rest| rest.strip_prefix("://"));
        named.is_some_and(|named| self.plain(named) == self.plain(host))
    }
}

fn has_port(name: &str) -> bool {
    match name.rsplit_once(':') {
        Some((host, port)) => !host.contains(':') && port.parse::<u16>().is_ok(),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(bound: &str, further: &[&str], is_tls: bool) -> Names {
        let further: Vec<String> = further.iter().map(|&name| name.to_owned()).collect();
        Names::new(bound.parse().expect("an address"), &further, is_tls)
    }

    #[test]
    fn only_our_names_with_our_port_are_ours() {
        let ours = names(
            "127.0.0.1:8080",
            &["dash.example", "other.example:9"],
            false,
        );
        for host in [
            "localhost:8080",
            "LocalHost:8080",
            "127.0.0.1:8080",
            "[::1]:8080",
            "dash.example:8080",
            "other.example:9",
        ] {
            assert!(ours.is_ours(host), "{host}");
        }
        for host in [
            "",
            "localhost",
            "localhost:80",
            "localhost:8081",
            "localhost.:8080",
            "evil.example:8080",
            "127.0.0.1.evil.example:8080",
            "localhost:8080@evil.example",
            "127.0.0.2:8080",
            "0.0.0.0:8080",
            "dash.example",
            "other.example:8080",
        ] {
            assert!(!ours.is_ours(host), "{host}");
        }
    }

    #[test]
    fn a_port_that_goes_without_saying_may_be_left_out() {
        let ours = names("192.0.2.1:443", &["dash.example", "2001:db8::1"], true);
        for host in [
            "dash.example",
            "dash.example:443",
            "192.0.2.1",
            "[2001:db8::1]",
        ] {
            assert!(ours.is_ours(host), "{host}");
            assert!(ours.is_origin(&format!("https://{host}"), host));
        }
        assert!(!ours.is_ours("dash.example:80"));
        assert!(ours.is_origin("https://dash.example", "dash.example:443"));
        assert!(!ours.is_origin("http://dash.example", "dash.example"));
    }

    #[test]
    fn an_origin_is_the_page_that_we_served_under_that_name() {
        let ours = names("127.0.0.1:8080", &[], false);
        assert!(ours.is_origin("http://127.0.0.1:8080", "127.0.0.1:8080"));
        for origin in [
            "null",
            "",
            "https://127.0.0.1:8080",
            "http://127.0.0.1:3000",
            "http://localhost:8080",
            "http://evil.example",
            "http://127.0.0.1:8080.evil.example",
            "http://127.0.0.1:8080/",
        ] {
            assert!(!ours.is_origin(origin, "127.0.0.1:8080"), "{origin}");
        }
    }
}
