//! Whom programs in a box trust: whom the host trusts, and the box's own authority.

use super::outlook::Eyes;
use crate::error::RunError;
use belljar_egress::Authority;
use std::path::Path;
use std::sync::Arc;

/// Where systems keep the bundle of certificates they trust. The first that exists is the host's.
pub(super) const SYSTEM_BUNDLES: &[&str] = &[
    // Debian, Ubuntu, Arch, Alpine.
    "/etc/ssl/certs/ca-certificates.crt",
    // Fedora, RHEL.
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    // openSUSE.
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Variables by which programs are told of a bundle: OpenSSL and what builds on it, curl, Python's requests and pip, Node,
/// git, the AWS tools, cargo, Deno.
pub(super) const VARIABLES: &[&str] = &[
    "SSL_CERT_FILE",
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "PIP_CERT",
    "NODE_EXTRA_CA_CERTS",
    "GIT_SSL_CAINFO",
    "AWS_CA_BUNDLE",
    "CARGO_HTTP_CAINFO",
    "DENO_CERT",
];

/// Where Java keeps whom it trusts.
pub(super) fn java_stores(eyes: &Eyes<'_>) -> Vec<String> {
    let mut stores: Vec<String> = [
        // Debian, Ubuntu; Fedora, RHEL.
        "/etc/ssl/certs/java/cacerts",
        "/etc/pki/ca-trust/extracted/java/cacerts",
    ]
    .map(str::to_owned)
    .into();
    const HOMES: &str = "/usr/lib/jvm";
    let homes = std::fs::read_dir(eyes.directory(Path::new(HOMES)));
    for home in homes.into_iter().flatten().flatten().take(MOST_JAVAS) {
        if let Some(home) = home.file_name().to_str() {
            stores.push(format!("{HOMES}/{home}/lib/security/cacerts"));
            stores.push(format!("{HOMES}/{home}/jre/lib/security/cacerts"));
        }
    }
    stores.retain(|path| eyes.has_file(Path::new(path)));
    stores
}

const MOST_JAVAS: usize = 32;

/// The host's bundle with the box's authority added.
pub(super) fn bundle(authority: &Authority) -> Result<Arc<[u8]>, RunError> {
    let mut bundle = match SYSTEM_BUNDLES.iter().find(|path| Path::new(path).is_file()) {
        Some(path) => std::fs::read(path).map_err(|error| RunError::Refused {
            what: format!("{path} can't be read, and a rule needs Belljar to look inside TLS: {error}"),
            hint: "make the host's certificates readable, or drop `http`, secrets and model hosts from the rules"
                .into(),
        })?,
        // A host that trusts nobody: the box then trusts its authority alone.
        None => Vec::new(),
    };
    if bundle.last().is_some_and(|last| *last != b'\n') {
        bundle.push(b'\n');
    }
    bundle.extend_from_slice(authority.certificate_pem().as_bytes());
    Ok(bundle.into())
}
