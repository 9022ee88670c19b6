//! Secrets that are put in on the way out, so that the agent never has them.

use belljar_policy::{DomainPattern, Host, SecretPlace};
use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, HeaderName, HeaderValue};
use zeroize::Zeroizing;

use crate::secret::SecretText;

/// A secret, and where it goes.
///
/// Whatever the agent sends there, a placeholder or somebody else's key, is replaced: a host that gets this secret gets no
/// other from the box. It goes out over TLS alone.
#[derive(Clone, Debug)]
pub struct HeaderSecret {
    /// The hosts that get it.
    pub domain: DomainPattern,
    /// The ports they get it on; empty means all. On these ports nothing but HTTP passes.
    pub ports: Vec<u16>,
    /// The header.
    pub place: SecretPlace,
    /// The secret.
    pub value: SecretText,
}

impl HeaderSecret {
    pub(super) fn is_for(&self, host: &Host, port: u16) -> bool {
        self.domain.matches(host) && (self.ports.is_empty() || self.ports.contains(&port))
    }

    /// Puts the secret in. `false` when it does not fit in a header, and nothing may be sent.
    #[must_use]
    pub(super) fn put(&self, headers: &mut HeaderMap) -> bool {
        let (name, text) = match &self.place {
            SecretPlace::Bearer => (
                Ok(AUTHORIZATION),
                Zeroizing::new(format!("Bearer {}", self.value.expose())),
            ),
            SecretPlace::Header(name) => (
                HeaderName::from_bytes(name.as_bytes()),
                Zeroizing::new(self.value.expose().to_owned()),
            ),
        };
        let (Ok(name), Ok(mut value)) = (name, HeaderValue::from_bytes(text.as_bytes())) else {
            return false;
        };
        value.set_sensitive(true);
        headers.insert(name, value);
        true
    }
}
