//! Where a webhook is.

/// An http or https URL, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Url {
    pub(crate) is_tls: bool,
    pub(crate) host: String,
    pub(crate) port: u16,
    /// With its query.
    pub(crate) path: String,
}

/// Why a text is no such URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidUrl {
    #[error("it must begin with http:// or https://")]
    Scheme,
    #[error("it names no host")]
    Host,
    #[error("its port is not a number from 1 to 65535")]
    Port,
    #[error("a user or password does not belong in it")]
    User,
    #[error("it holds a blank, a control character or one that is not ASCII")]
    Character,
}

impl Url {
    pub(crate) fn parse(text: &str) -> Result<Self, InvalidUrl> {
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(InvalidUrl::Character);
        }
        let (is_tls, rest) = match text.split_once("://") {
            Some(("http", rest)) => (false, rest),
            Some(("https", rest)) => (true, rest),
            _ => return Err(InvalidUrl::Scheme),
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        if authority.contains('@') {
            return Err(InvalidUrl::User);
        }
        let (host, port) = match authority.strip_prefix('[') {
            Some(v6) => v6.split_once(']').ok_or(InvalidUrl::Host)?,
            None => {
                let colon = authority.find(':').unwrap_or(authority.len());
                authority.split_at(colon)
            }
        };
        if host.is_empty() {
            return Err(InvalidUrl::Host);
        }
        let port = match port.strip_prefix(':') {
            None if port.is_empty() => {
                if is_tls {
                    443
                } else {
                    80
                }
            }
            None => return Err(InvalidUrl::Host),
            Some(port) => match port.parse() {
                Ok(0) | Err(_) => return Err(InvalidUrl::Port),
                Ok(port) => port,
            },
        };
        let path = path.split('#').next().unwrap_or_default();
        let slash = if path.starts_with('/') { "" } else { "/" };
        Ok(Self {
            is_tls,
            host: host.to_owned(),
            port,
            path: format!("{slash}{path}"),
        })
    }

    /// As a `Host` header has it.
    pub(crate) fn authority(&self) -> String {
        let host = match self.host.contains(':') {
            true => format!("[{}]", self.host),
            false => self.host.clone(),
        };
        match (self.is_tls, self.port) {
            (true, 443) | (false, 80) => host,
            (_, port) => format!("{host}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart() {
        let check = |text, is_tls, host: &str, port, path: &str| {
            let url = Url::parse(text).unwrap();
            assert_eq!(
                (url.is_tls, url.host.as_str(), url.port, url.path.as_str()),
                (is_tls, host, port, path)
            );
        };
        check("http://a", false, "a", 80, "/");
        check("https://a.b:8443/x/y?z=1#f", true, "a.b", 8443, "/x/y?z=1");
        check("http://[::1]:99?q", false, "::1", 99, "/?q");
        for (text, why) in [
            ("a.b/c", InvalidUrl::Scheme),
            ("file:///etc/passwd", InvalidUrl::Scheme),
            ("http://", InvalidUrl::Host),
            ("http://u:p@h/", InvalidUrl::User),
            ("http://h:0/", InvalidUrl::Port),
            ("http://h:99999/", InvalidUrl::Port),
            ("http://h/a b", InvalidUrl::Character),
            ("http://h/\r\nX: y", InvalidUrl::Character),
        ] {
            assert_eq!(Url::parse(text), Err(why), "{text}");
        }
    }
}
