//! Secrets that are put into requests on the way out, so that the agent never has them.
//!
//! A rule says where a secret is and where it goes, never what it is. No type here could hold a value.

use std::fmt;

use serde::Serialize;

use super::{DomainPattern, EgressEffect, EgressRule, Host, ports};
use crate::{PathRule, Rule};

/// One secret: where it is on the host, and which requests get it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SecretRule {
    /// What it is called in messages and records.
    pub name: String,
    /// Where it is.
    #[serde(rename = "from")]
    pub source: SecretSource,
    /// The hosts that get it.
    pub domain: DomainPattern,
    /// The ports they get it on, sorted, each once; empty means all.
    pub ports: Vec<u16>,
    /// Where in a request it goes whatever the client sends there. Without one it goes only where the client put the placeholder.
    #[serde(rename = "as", skip_serializing_if = "Option::is_none")]
    pub place: Option<SecretPlace>,
    /// The variable that holds a placeholder inside the box, for clients that want one.
    pub env: Option<String>,
    /// After how many seconds its command is run again, at most [`MOST_REFRESH`]; absent where what it printed first is good enough.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refresh: Option<u32>,
}

/// The longest time after which a secret's command is run again: a day, in seconds.
pub const MOST_REFRESH: u32 = 86_400;

/// Where a secret is on the host.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SecretSource {
    /// In this environment variable.
    Env(String),
    /// In this file, whole, without its final line end.
    File(PathRule),
    /// Under this name in the user's own store.
    Store(String),
    /// What this program prints, without its final line end. It runs outside the box, without a shell.
    Command(Vec<String>),
}

/// Where in a request a secret goes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SecretPlace {
    /// `Authorization: Bearer …`.
    Bearer,
    /// A header of this name, in lower case.
    Header(String),
}

/// Why a text is no header a secret may go in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidHeader {
    /// Not a header's name.
    #[error("not the name of a header")]
    Name,
    /// A header that says where a request goes or where it ends.
    #[error("this header says where a request goes or where it ends")]
    Reserved,
}

impl InvalidHeader {
    /// What to write instead.
    #[must_use]
    pub fn hint(self) -> &'static str {
        match self {
            Self::Name => "a header's name is letters, digits and hyphens, e.g. x-api-key",
            Self::Reserved => "name the header the service reads its key from, e.g. x-api-key",
        }
    }
}

/// Headers that frame a request or route it: a secret there would be another request.
const RESERVED: [&str; 13] = [
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "expect",
    "host",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "forwarded",
];

impl SecretPlace {
    /// Reads the name of a header.
    ///
    /// # Errors
    /// When a secret can't go there; see [`InvalidHeader`].
    pub fn header(text: &str) -> Result<Self, InvalidHeader> {
        let valid = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
        if !(1..=128).contains(&text.len()) || !text.bytes().all(valid) {
            return Err(InvalidHeader::Name);
        }
        let name = text.to_ascii_lowercase();
        if RESERVED.contains(&name.as_str()) {
            return Err(InvalidHeader::Reserved);
        }
        Ok(Self::Header(name))
    }

    /// The header it goes in.
    #[must_use]
    pub fn header_name(&self) -> &str {
        match self {
            Self::Bearer => "authorization",
            Self::Header(name) => name,
        }
    }
}

/// Whether a text can name a secret.
#[must_use]
pub fn is_secret_name(text: &str) -> bool {
    let valid = |b: u8| b.is_ascii_alphanumeric() || b"_.-".contains(&b);
    (1..=64).contains(&text.len()) && text.bytes().all(valid)
}

/// Whether a text is a variable's name that every shell takes.
#[must_use]
pub fn is_variable_name(text: &str) -> bool {
    let front = text
        .bytes()
        .next()
        .is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
    let valid = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    front && text.len() <= 255 && text.bytes().all(valid)
}

impl SecretRule {
    /// Whether requests to `host` at `port` get it.
    #[must_use]
    pub fn is_for(&self, host: &Host, port: u16) -> bool {
        self.domain.matches(host) && ports::includes(&self.ports, port)
    }

    /// Whether the rules let connections through to all the hosts that get it. Of its ports, those it names must be open;
    /// where it names none, it goes wherever the rules allow.
    #[must_use]
    pub fn is_reachable(&self, rules: &[Rule<EgressRule>]) -> bool {
        let mut about = rules
            .iter()
            .map(|rule| &rule.value)
            .filter(|rule| rule.effect == EgressEffect::Allow && rule.domain.covers(&self.domain));
        if self.ports.is_empty() {
            return about.next().is_some();
        }
        let open: Vec<&EgressRule> = about.collect();
        let is_open = |port: &u16| open.iter().any(|rule| ports::includes(&rule.ports, *port));
        self.ports.iter().all(is_open)
    }

    /// Whether some request would get both, in the same place. Placeholders differ, so they can't stand in the same one.
    #[must_use]
    pub fn collides_with(&self, other: &Self) -> bool {
        let (Some(own), Some(others)) = (&self.place, &other.place) else {
            return false;
        };
        own.header_name() == others.header_name()
            && self.domain.intersect(&other.domain).is_some()
            && ports::meet(&self.ports, &other.ports).is_some()
    }

    fn is_same_secret(&self, other: &Self) -> bool {
        self.name == other.name && self.source == other.source
    }

    /// Whether it is the same secret for the same hosts or more, in the same places or more. Every secret goes where its placeholder
    /// stands, so one without a place of its own goes nowhere else than any other does.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        let Self {
            domain,
            ports,
            env,
            place,
            refresh,
            // What makes it the same secret.
            name: _,
            source: _,
        } = other;
        self.is_same_secret(other)
            && self.domain.covers(domain)
            && ports::covers(&self.ports, ports)
            && (place.is_none() || *place == self.place)
            && is_seldom_enough(self.refresh, *refresh)
            && (env.is_none() || *env == self.env)
    }

    /// The secret where both have it; `None` when that is nowhere.
    pub(crate) fn meet(&self, other: &Self) -> Option<Self> {
        if !self.is_same_secret(other) {
            return None;
        }
        Some(Self {
            domain: self.domain.intersect(&other.domain)?,
            ports: ports::meet(&self.ports, &other.ports)?,
            place: self.place.clone().filter(|_| self.place == other.place),
            env: self.env.clone().filter(|_| self.env == other.env),
            refresh: self.refresh.zip(other.refresh).map(|(a, b)| a.max(b)),
            ..self.clone()
        })
    }
}

/// Whether a command that is run again this often runs no more often than `outer` allows. Programs on the host take something of it.
fn is_seldom_enough(outer: Option<u32>, inner: Option<u32>) -> bool {
    inner.is_none_or(|inner| outer.is_some_and(|outer| inner >= outer))
}

impl fmt::Display for SecretRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} from {} for {}", self.name, self.source, self.domain)?;
        if !self.ports.is_empty() {
            write!(f, " ports {:?}", self.ports)?;
        }
        match &self.place {
            Some(place) => write!(f, " as {place}")?,
            None => f.write_str(" where its placeholder stands")?,
        }
        if let Some(seconds) = self.refresh {
            write!(f, ", refreshed every {seconds} s")?;
        }
        match &self.env {
            Some(name) => write!(f, ", placeholder in {name}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for SecretSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Env(name) => write!(f, "the variable {name}"),
            Self::File(path) => write!(f, "the file {path}"),
            Self::Store(name) => write!(f, "the stored secret {name}"),
            // Its arguments may be long, and are nobody's business in a message.
            Self::Command(words) => match words.first() {
                Some(program) => write!(f, "the program {program}"),
                None => f.write_str("a program"),
            },
        }
    }
}

impl fmt::Display for SecretPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bearer => f.write_str("bearer"),
            Self::Header(name) => write!(f, "header {name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EgressTerms, Origin};

    fn secret(domain: &str, ports: &[u16]) -> SecretRule {
        SecretRule {
            name: "key".to_owned(),
            source: SecretSource::Env("KEY".to_owned()),
            domain: DomainPattern::parse(domain).unwrap(),
            ports: ports.to_vec(),
            place: Some(SecretPlace::Bearer),
            env: None,
            refresh: None,
        }
    }

    #[test]
    fn a_secret_is_reachable_where_rules_open_all_its_hosts_and_ports() {
        let rule = |domain: &str, ports: &[u16], effect| {
            let value = EgressRule {
                domain: DomainPattern::parse(domain).unwrap(),
                ports: ports.to_vec(),
                rate_limit_per_min: 60,
                effect,
                terms: EgressTerms::default(),
            };
            Rule::new(value, Origin::built_in())
        };
        let rules = [
            rule("*.example.com", &[443], EgressEffect::Allow),
            rule("api.example.com", &[8443], EgressEffect::Allow),
            rule("b.org", &[], EgressEffect::Deny),
        ];
        let check = |domain: &str, ports: &[u16], expect: bool| {
            assert_eq!(
                secret(domain, ports).is_reachable(&rules),
                expect,
                "{domain} {ports:?}"
            );
        };
        check("api.example.com", &[], true);
        check("api.example.com", &[443, 8443], true);
        check("*.example.com", &[443], true);
        check("*.example.com", &[8443], false);
        check("*.com", &[], false);
        check("example.com", &[], false);
        check("b.org", &[], false);
    }

    #[test]
    fn two_secrets_collide_where_one_request_would_get_both_in_one_place() {
        let bearer = secret("*.example.com", &[443]);
        let mut header = secret("a.example.com", &[]);
        assert!(bearer.collides_with(&header));
        header.place = SecretPlace::header("Authorization").ok();
        assert!(bearer.collides_with(&header));
        header.place = SecretPlace::header("X-Api-Key").ok();
        assert!(!bearer.collides_with(&header));
        header.place = None;
        assert!(!bearer.collides_with(&header) && !header.collides_with(&bearer));
        assert!(!header.collides_with(&header));
        assert!(!bearer.collides_with(&secret("a.example.com", &[80])));
        assert!(!bearer.collides_with(&secret("b.org", &[])));
    }

    #[test]
    fn names_are_read_strictly() {
        assert_eq!(
            SecretPlace::header("X-API-Key"),
            Ok(SecretPlace::Header("x-api-key".to_owned()))
        );
        for reserved in ["Host", "content-length", "Transfer-Encoding"] {
            assert_eq!(SecretPlace::header(reserved), Err(InvalidHeader::Reserved));
        }
        for invalid in ["", "a b", "a:b", "é", "a\r\nb"] {
            assert_eq!(SecretPlace::header(invalid), Err(InvalidHeader::Name));
        }
        assert!(is_variable_name("OPENAI_API_KEY") && is_variable_name("_x9"));
        assert!(!is_variable_name("9x") && !is_variable_name("a-b") && !is_variable_name(""));
        assert!(is_secret_name("open-ai.key_1") && !is_secret_name("a b") && !is_secret_name(""));
    }
}
