//! Whom the engine trusts when it connects in the agent's place.

use std::sync::{Arc, OnceLock};

use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

/// Whom to trust.
#[derive(Clone, Debug)]
pub enum Roots {
    /// Whom the host trusts.
    Host,
    /// The certificates in these PEM texts alone.
    Pem(Vec<String>),
}

/// Why nobody can be trusted.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TrustError {
    /// A PEM text holds no certificate.
    #[error("a text holds no certificate that can be trusted")]
    Pem,
    /// The host trusts nobody.
    #[error("the host has no certificates to trust; install ca-certificates or set SSL_CERT_FILE")]
    Nobody,
    /// TLS can't be set up.
    #[error("TLS can't be set up")]
    Tls(#[source] rustls::Error),
}

/// Which versions of HTTP to ask a server for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Offer {
    /// HTTP/1.1 alone.
    One,
    /// HTTP/2 rather than HTTP/1.1.
    Both,
}

/// Sessions of servers that are kept, to begin the next connection with.
const MOST_SESSIONS: usize = 64;

/// How TLS is computed, for all engines of the process.
pub(super) fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    Arc::clone(PROVIDER.get_or_init(|| Arc::new(ring::default_provider())))
}

/// Whom the host trusts: read once, for all engines of the process.
#[must_use]
pub fn host_roots() -> Arc<RootCertStore> {
    static ROOTS: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    if let Some(roots) = ROOTS.get() {
        return Arc::clone(roots);
    }
    let mut store = RootCertStore::empty();
    // Some of a host's certificates may be broken; the others are still good.
    store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let store = Arc::new(store);
    if store.is_empty() {
        // They may be installed later.
        return store;
    }
    Arc::clone(ROOTS.get_or_init(|| store))
}

/// How to speak TLS, and HTTP/1.1 in it, with a server that these vouch for.
///
/// # Errors
/// When they vouch for nobody.
pub fn client_config(roots: Roots) -> Result<Arc<ClientConfig>, TrustError> {
    Trust::new(roots)?.config(Offer::One)
}

/// The host's certificates are read when the first connection needs them: most runs need none.
pub(super) struct Trust {
    roots: Roots,
    configs: OnceLock<Result<Configs, TrustError>>,
}

struct Configs {
    one: Arc<ClientConfig>,
    both: Arc<ClientConfig>,
}

impl Trust {
    pub(super) fn new(roots: Roots) -> Result<Self, TrustError> {
        let trust = Self {
            roots,
            configs: OnceLock::new(),
        };
        // What was given is checked at once.
        if let Roots::Pem(_) = trust.roots {
            trust.config(Offer::One)?;
        }
        Ok(trust)
    }

    pub(super) fn config(&self, offer: Offer) -> Result<Arc<ClientConfig>, TrustError> {
        let configs = self.configs.get_or_init(|| Configs::new(&self.roots));
        let configs = configs.as_ref().map_err(TrustError::clone)?;
        Ok(Arc::clone(match offer {
            Offer::One => &configs.one,
            Offer::Both => &configs.both,
        }))
    }
}

impl Configs {
    fn new(roots: &Roots) -> Result<Self, TrustError> {
        let store = match roots {
            Roots::Host => host_roots(),
            Roots::Pem(texts) => {
                let mut store = RootCertStore::empty();
                for text in texts {
                    for certificate in CertificateDer::pem_slice_iter(text.as_bytes()) {
                        let certificate = certificate.map_err(|_| TrustError::Pem)?;
                        store.add(certificate).map_err(|_| TrustError::Pem)?;
                    }
                }
                Arc::new(store)
            }
        };
        if store.is_empty() {
            return Err(TrustError::Nobody);
        }
        let mut one = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(TrustError::Tls)?
            .with_root_certificates(store)
            .with_no_client_auth();
        one.resumption = Resumption::in_memory_sessions(MOST_SESSIONS);
        let mut both = one.clone();
        both.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        one.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self {
            one: Arc::new(one),
            both: Arc::new(both),
        })
    }
}
