//! The certificate authority of one box.
//!
//! It lives in memory as long as the box, is trusted nowhere else, and signs for hosts that a rule lets the agent reach.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use belljar_policy::Host;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::NoServerSessionStorage;
use zeroize::Zeroizing;

/// Clocks in the box and on the host are the same; clients still dislike a certificate made this very second.
const BACKDATED: Duration = Duration::from_secs(24 * 60 * 60);
/// Longer than any run, shorter than what strict clients accept.
const LASTING: Duration = Duration::from_secs(90 * 24 * 60 * 60);
/// Certificates kept; beyond it they are made anew each time.
const MOST_KEPT: usize = 1024;

/// A certificate authority.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    pem: String,
    leaf_key: KeyPair,
    kept: Mutex<HashMap<Host, Arc<ServerConfig>>>,
}

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// It could not be made or signed.
    #[error("a certificate could not be made")]
    Certificate(#[source] rcgen::Error),
    /// It can't be served.
    #[error("a certificate can't be served")]
    Serve(#[source] rustls::Error),
}

impl Authority {
    /// Makes a new one, unlike any other.
    ///
    /// # Errors
    /// When the system has no randomness.
    pub fn generate() -> Result<Self, AuthorityError> {
        let key = KeyPair::generate().map_err(AuthorityError::Certificate)?;
        let mut params = dated(CertificateParams::default());
        params.distinguished_name = named("Belljar box");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params
            .self_signed(&key)
            .map_err(AuthorityError::Certificate)?;
        Ok(Self {
            pem: certificate.pem(),
            certificate: certificate.der().clone(),
            issuer: Issuer::new(params, key),
            leaf_key: KeyPair::generate().map_err(AuthorityError::Certificate)?,
            kept: Mutex::default(),
        })
    }

    /// Its certificate as PEM, to be trusted inside the box. The key is never handed out.
    #[must_use]
    pub fn certificate_pem(&self) -> &str {
        &self.pem
    }

    /// How to be `host` towards a client in the box.
    pub(super) fn server_config(&self, host: &Host) -> Result<Arc<ServerConfig>, AuthorityError> {
        let kept = || self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(config) = kept().get(host) {
            return Ok(Arc::clone(config));
        }
        let config = Arc::new(self.sign(host)?);
        let mut kept = kept();
        if kept.len() < MOST_KEPT {
            kept.insert(host.clone(), Arc::clone(&config));
        }
        Ok(config)
    }

    fn sign(&self, host: &Host) -> Result<ServerConfig, AuthorityError> {
        let mut params = dated(CertificateParams::default());
        let text = host.to_string();
        params.subject_alt_names = vec![match host.address() {
            Some(address) => SanType::IpAddress(address),
            None => {
                let name = text
                    .as_str()
                    .try_into()
                    .map_err(AuthorityError::Certificate)?;
                SanType::DnsName(name)
            }
        }];
        // A common name holds at most 64 bytes; the names that count are above.
        params.distinguished_name = named(text.get(..64).unwrap_or(&text));
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let leaf = params
            .signed_by(&self.leaf_key, &self.issuer)
            .map_err(AuthorityError::Certificate)?;
        let key = Zeroizing::new(self.leaf_key.serialize_der());
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.to_vec()));
        let chain = vec![leaf.der().clone(), self.certificate.clone()];
        let mut config = ServerConfig::builder_with_provider(super::trust::provider())
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
            .map_err(AuthorityError::Serve)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        // The box is near, and to begin anew is cheap: no sessions are kept, for each of so many names.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Authority(…)")
    }
}

fn dated(mut params: CertificateParams) -> CertificateParams {
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    params.not_before = epoch + now.saturating_sub(BACKDATED);
    params.not_after = epoch + now + LASTING;
    params
}

fn named(name: &str) -> DistinguishedName {
    let mut full = DistinguishedName::new();
    full.push(DnType::CommonName, name);
    full
}
