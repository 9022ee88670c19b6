//! The terms on which a rule lets a connection through.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize, Serializer};

use super::Reach;

/// What a rule asks beyond host and port. The default asks nothing and opens nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EgressTerms {
    /// Connections open at once under this rule; `None` is as many as the box may have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_connections: Option<u32>,
    /// Bytes in the whole run under this rule, both ways together; `None` is no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<u64>,
    /// At which addresses the host may be.
    #[serde(skip_serializing_if = "Reach::is_public")]
    pub reach: Reach,
    /// Which requests may be made; `None` looks at none of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpTerms>,
}

/// Which requests may be made. A rule with these terms makes Belljar look inside TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HttpTerms {
    /// The methods, in capitals; empty means all.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub methods: BTreeSet<String>,
    /// The paths; empty means all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<PathPattern>,
    /// Whether a request may become a WebSocket.
    pub websocket: WebSocket,
}

/// Whether a request may become a WebSocket, inside which nothing is looked at. Ordered from less to more.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum WebSocket {
    /// No.
    #[default]
    Refuse,
    /// Yes.
    Allow,
}

/// A path of requests: `/v1/models`, or `/v1/*` for everything that begins with `/v1/`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathPattern {
    text: String,
}

/// Why a text is no path of an egress rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPathPattern {
    /// It does not begin with a slash.
    #[error("a path begins with `/`")]
    NoSlash,
    /// A `*` that is not at the end.
    #[error("a `*` is accepted only at the end of a path")]
    Wildcard,
    /// A query, a fragment, an encoded or a dotted part.
    #[error("a path is written plainly, without query, `..` or `%2e`")]
    NotPlain,
    /// Longer than any path in use.
    #[error("a path is at most 2048 bytes")]
    TooLong,
}

impl PathPattern {
    /// Reads a path of an egress rule.
    ///
    /// # Errors
    /// When no request could match it, or only one spelled ambiguously.
    pub fn parse(text: &str) -> Result<Self, InvalidPathPattern> {
        if text.len() > 2048 {
            return Err(InvalidPathPattern::TooLong);
        }
        if !text.starts_with('/') {
            return Err(InvalidPathPattern::NoSlash);
        }
        let front = text.strip_suffix('*').unwrap_or(text);
        if front.contains('*') {
            return Err(InvalidPathPattern::Wildcard);
        }
        // An open end leaves its last part unfinished: `/a/.*` is a prefix, not a dotted part.
        let whole = if front.len() < text.len() {
            format!("{front}x")
        } else {
            front.to_owned()
        };
        if !is_plain_path(&whole) {
            return Err(InvalidPathPattern::NotPlain);
        }
        Ok(Self {
            text: text.to_owned(),
        })
    }

    /// Whether a request for `path`, which must be plain, matches.
    fn matches(&self, path: &str) -> bool {
        match self.text.strip_suffix('*') {
            Some(prefix) => path.starts_with(prefix),
            None => path == self.text,
        }
    }

    fn covers(&self, other: &Self) -> bool {
        match (self.text.strip_suffix('*'), other.text.strip_suffix('*')) {
            (Some(own), Some(front)) => front.starts_with(own),
            (Some(own), None) => other.text.starts_with(own),
            (None, None) => self.text == other.text,
            (None, Some(_)) => false,
        }
    }
}

/// Whether a text is a method: a word in capitals.
#[must_use]
pub fn is_method(text: &str) -> bool {
    (1..=32).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_uppercase() || b == b'-')
}

/// Whether every server reads this path alike: no empty, dotted or backslashed parts, no dots or slashes in
/// disguise, nothing unprintable.
#[must_use]
pub fn is_plain_path(path: &str) -> bool {
    let printable = path
        .bytes()
        .all(|b| b.is_ascii_graphic() && !matches!(b, b'\\' | b'?' | b'#' | b';'));
    let disguised = path.as_bytes().windows(3).any(|w| {
        w[0] == b'%'
            && match std::str::from_utf8(&w[1..])
                .ok()
                .and_then(|hex| u8::from_str_radix(hex, 16).ok())
            {
                None => true,
                Some(b) => {
                    b < 0x20
                        || b == 0x7f
                        || b.is_ascii_alphanumeric()
                        || b"-._~/\\%?#;".contains(&b)
                }
            }
    });
    // A `%` too near the end for its two digits.
    let cut = path.as_bytes().iter().rev().take(2).any(|b| *b == b'%');
    let mut parts = path.split('/');
    let rooted = parts.next() == Some("");
    let parts: Vec<_> = parts.collect();
    let whole = parts.iter().enumerate().all(|(at, part)| {
        !matches!(*part, "." | "..") && (!part.is_empty() || at + 1 == parts.len())
    });
    printable && !disguised && !cut && rooted && whole
}

impl HttpTerms {
    /// Whether a request may be made. `path` is without its query.
    #[must_use]
    pub fn permits(&self, method: &str, path: &str) -> bool {
        let method = self.methods.is_empty() || self.methods.contains(method);
        let path = self.paths.is_empty()
            || (is_plain_path(path) && self.paths.iter().any(|pattern| pattern.matches(path)));
        method && path
    }

    fn covers(&self, other: &Self) -> bool {
        let Self {
            methods,
            paths,
            websocket,
        } = other;
        let by_method =
            self.methods.is_empty() || (!methods.is_empty() && methods.is_subset(&self.methods));
        let covered = |path: &PathPattern| self.paths.iter().any(|own| own.covers(path));
        let by_path = self.paths.is_empty() || (!paths.is_empty() && paths.iter().all(covered));
        by_method && by_path && *websocket <= self.websocket
    }

    /// What both let through; `None` when that is nothing.
    fn meet(&self, other: &Self) -> Option<Self> {
        let methods = match (self.methods.is_empty(), other.methods.is_empty()) {
            (true, _) => other.methods.clone(),
            (_, true) => self.methods.clone(),
            _ => {
                let both: BTreeSet<_> =
                    self.methods.intersection(&other.methods).cloned().collect();
                Some(both).filter(|both| !both.is_empty())?
            }
        };
        let paths = match (self.paths.is_empty(), other.paths.is_empty()) {
            (true, _) => other.paths.clone(),
            (_, true) => self.paths.clone(),
            _ => Some(meet_paths(&self.paths, &other.paths)).filter(|both| !both.is_empty())?,
        };
        Some(Self {
            methods,
            paths,
            websocket: self.websocket.min(other.websocket),
        })
    }
}

/// Two patterns nest or are apart.
fn meet_paths(a: &[PathPattern], b: &[PathPattern]) -> Vec<PathPattern> {
    let mut both = Vec::new();
    for own in a {
        for other in b {
            if own.covers(other) {
                both.push(other.clone());
            } else if other.covers(own) {
                both.push(own.clone());
            }
        }
    }
    both.sort_unstable();
    both.dedup();
    both
}

impl EgressTerms {
    /// Whether everything `other` lets through, these terms let through.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        let Self {
            max_connections,
            max_bytes,
            reach,
            http,
        } = other;
        let by_request = match (&self.http, http) {
            // Where requests are looked at all the same, for a secret or a budget, no WebSocket passes that is not named.
            (None, other) => other
                .as_ref()
                .is_none_or(|http| http.websocket == WebSocket::Refuse),
            (Some(_), None) => false,
            (Some(own), Some(other)) => own.covers(other),
        };
        within(*max_connections, self.max_connections)
            && within(*max_bytes, self.max_bytes)
            && *reach <= self.reach
            && by_request
    }

    /// The terms that let through what both do; `None` when that is nothing.
    pub(crate) fn meet(&self, other: &Self) -> Option<Self> {
        let http = match (&self.http, &other.http) {
            (None, http) | (http, None) => http.clone().map(|http| HttpTerms {
                websocket: WebSocket::Refuse,
                ..http
            }),
            (Some(own), Some(other)) => Some(own.meet(other)?),
        };
        Some(Self {
            max_connections: least(self.max_connections, other.max_connections),
            max_bytes: least(self.max_bytes, other.max_bytes),
            reach: self.reach.min(other.reach),
            http,
        })
    }
}

fn within<T: Ord>(wanted: Option<T>, most: Option<T>) -> bool {
    match (wanted, most) {
        (_, None) => true,
        (None, Some(_)) => false,
        (Some(wanted), Some(most)) => wanted <= most,
    }
}

fn least<T: Ord>(a: Option<T>, b: Option<T>) -> Option<T> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (one, None) | (None, one) => one,
    }
}

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for PathPattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl fmt::Display for EgressTerms {
    /// What follows the host and the rate in a message; nothing for terms that ask nothing.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(most) = self.max_connections {
            write!(f, ", {most} connections")?;
        }
        if let Some(most) = self.max_bytes {
            write!(f, ", {most} bytes")?;
        }
        match self.reach {
            Reach::Public => {}
            Reach::Private => f.write_str(", private addresses too")?,
            Reach::Host => f.write_str(", the host itself")?,
            Reach::Metadata => f.write_str(", the metadata service")?,
        }
        let Some(http) = &self.http else {
            return Ok(());
        };
        let methods: Vec<_> = http.methods.iter().map(String::as_str).collect();
        let paths: Vec<_> = http.paths.iter().map(|path| path.text.as_str()).collect();
        let or_all = |list: Vec<&str>, all: &'static str| match list.is_empty() {
            true => all.to_owned(),
            false => list.join("|"),
        };
        write!(
            f,
            ", {} {}",
            or_all(methods, "any method"),
            or_all(paths, "any path")
        )?;
        if http.websocket == WebSocket::Allow {
            f.write_str(", websocket")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_servers_read_differently_matches_no_pattern() {
        let terms = HttpTerms {
            paths: vec![
                PathPattern::parse("/v1/*").unwrap(),
                PathPattern::parse("/").unwrap(),
            ],
            methods: BTreeSet::from(["GET".to_owned()]),
            ..HttpTerms::default()
        };
        let check = |path: &str, expect| assert_eq!(terms.permits("GET", path), expect, "{path}");
        check("/", true);
        check("/v1/models", true);
        check("/v1/", true);
        check("/v1/a%20b", true);
        check("/v1", false);
        check("/v2/models", false);
        check("/v1/../v2", false);
        check("/v1/%2e%2E/v2", false);
        check("/v1/..%2fv2", false);
        check("/v1//x", false);
        check("/v1/./x", false);
        check("/v1/..;/v2", false);
        check("/v1/\\..\\v2", false);
        check("/v1/%", false);
        check("/v1/%zz", false);
        check("/v1/%25", false);
        check("/v1/a\0", false);
        assert!(!terms.permits("get", "/"));
        assert!(!terms.permits("POST", "/"));
    }

    #[test]
    fn patterns_are_read_strictly() {
        let check = |text: &str, expect| {
            assert_eq!(PathPattern::parse(text).map(|_| ()), expect, "{text}");
        };
        check("/", Ok(()));
        check("/*", Ok(()));
        check("/.well-known/*", Ok(()));
        check("v1", Err(InvalidPathPattern::NoSlash));
        check("/*/x", Err(InvalidPathPattern::Wildcard));
        check("/a/../b", Err(InvalidPathPattern::NotPlain));
        check("/a?b", Err(InvalidPathPattern::NotPlain));
        check(
            &format!("/{}", "a".repeat(2048)),
            Err(InvalidPathPattern::TooLong),
        );
    }
}
