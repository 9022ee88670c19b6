//! TLS from PEM files.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{RootCertStore, ServerConfig};

use crate::Tls;

/// Why a server can't speak TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file can't be read.
    #[error("{} can't be read", path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file is not what it should be.
    #[error("{} holds no {what} in PEM", path.display())]
    NotPem {
        /// Which.
        path: PathBuf,
        /// What it should hold.
        what: &'static str,
    },
    /// The key may be read by everybody.
    #[error("the key in {} may be read by everybody", path.display())]
    Exposed {
        /// Which.
        path: PathBuf,
    },
    /// Certificate and key don't go together, or are of a kind that is not taken.
    #[error("the certificate in {} can't be used with the key in {}", certificate.display(), key.display())]
    Unusable {
        /// The certificate.
        certificate: PathBuf,
        /// The key.
        key: PathBuf,
        /// Why.
        source: rustls::Error,
    },
    /// The authorities can't be used.
    #[error("the authorities in {} can't be used: {why}", path.display())]
    ClientCa {
        /// Which.
        path: PathBuf,
        /// Why.
        why: String,
    },
}

impl TlsError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Unreadable { .. } => "name a file that the daemon's user can read",
            Self::NotPem { .. } => {
                "PEM files begin with -----BEGIN …-----; `openssl x509` and `openssl pkey` convert others"
            }
            Self::Exposed { .. } => "`chmod 600` it, and make a new one if others use this machine",
            Self::Unusable { .. } => {
                "the certificate file begins with the server's own certificate, and the key is that one's"
            }
            Self::ClientCa { .. } => "name a PEM file with the certificates of the authorities",
        }
    }
}

pub(crate) fn configure(tls: &Tls) -> Result<Arc<ServerConfig>, TlsError> {
    let certificates = certificates(&tls.certificate)?;
    let key = key(&tls.key)?;
    let unusable = |source| TlsError::Unusable {
        certificate: tls.certificate.clone(),
        key: tls.key.clone(),
        source,
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(unusable)?;
    let builder = match &tls.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => builder.with_client_cert_verifier(verifier(path)?),
    };
    let mut config = builder
        .with_single_cert(certificates, key)
        .map_err(unusable)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn verifier(path: &Path) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let failed = |why: String| TlsError::ClientCa {
        path: path.to_owned(),
        why,
    };
    let roots = authorities(path)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|error| failed(error.to_string()))
}

/// The certificates of authorities.
pub(crate) fn authorities(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|error| TlsError::ClientCa {
            path: path.to_owned(),
            why: error.to_string(),
        })?;
    }
    Ok(roots)
}

pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let what = "certificate";
    let read = CertificateDer::pem_file_iter(path).map_err(|error| told(path, what, error))?;
    let read: Result<Vec<_>, _> = read.collect();
    let read = read.map_err(|error| told(path, what, error))?;
    if read.is_empty() {
        return Err(told(path, what, PemError::NoItemsFound));
    }
    Ok(read)
}

pub(crate) fn key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let read =
        PrivateKeyDer::from_pem_file(path).map_err(|error| told(path, "private key", error))?;
    let about = std::fs::metadata(path).map_err(|source| TlsError::Unreadable {
        path: path.to_owned(),
        source,
    })?;
    if about.mode() & 0o004 != 0 {
        return Err(TlsError::Exposed {
            path: path.to_owned(),
        });
    }
    Ok(read)
}

fn told(path: &Path, what: &'static str, error: PemError) -> TlsError {
    let path = path.to_owned();
    match error {
        PemError::Io(source) => TlsError::Unreadable { path, source },
        _ => TlsError::NotPem { path, what },
    }
}
