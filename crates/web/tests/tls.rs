//! TLS with real certificates and curl, and what a server that others reach must have.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use belljar_web::{Role, Settings, StartError, Tls, TlsError, TokenFile, Web};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};
use support::{Seen, TestBackend, TestServer};
use tempfile::TempDir;

/// An authority, and the certificates it made, as files.
struct Papers {
    directory: TempDir,
}

impl Papers {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let papers = Self { directory };
        for authority in ["ca", "other-ca"] {
            let mut params = CertificateParams::new(Vec::new()).unwrap();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            // A certificate with its authority's name would pass for one that signed itself.
            params
                .distinguished_name
                .push(DnType::CommonName, authority);
            let key = KeyPair::generate().unwrap();
            let certificate = params.self_signed(&key).unwrap();
            papers.write(&format!("{authority}.pem"), &certificate.pem());
            let issuer = Issuer::new(params, key);
            let names = [
                ("server", ExtendedKeyUsagePurpose::ServerAuth),
                ("client", ExtendedKeyUsagePurpose::ClientAuth),
            ];
            for (name, usage) in names {
                let mut params =
                    CertificateParams::new(vec!["localhost".into(), "127.0.0.1".into()]).unwrap();
                params.extended_key_usages = vec![usage];
                let key = KeyPair::generate().unwrap();
                let signed = params.signed_by(&key, &issuer).unwrap();
                let name = if authority == "ca" {
                    name.to_owned()
                } else {
                    format!("other-{name}")
                };
                papers.write(&format!("{name}.pem"), &signed.pem());
                papers.write(&format!("{name}.key"), &key.serialize_pem());
            }
        }
        papers
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(0o600)).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn tls(&self) -> Tls {
        Tls {
            certificate: self.path("server.pem"),
            key: self.path("server.key"),
            client_ca: None,
        }
    }
}

/// What curl says: its exit code, the headers and the body.
fn curl(url: &str, arguments: &[&str]) -> (i32, String) {
    let ran = Command::new("curl")
        .args([
            "--silent",
            "--include",
            "--max-time",
            "60",
            "--noproxy",
            "*",
        ])
        .args(arguments)
        .arg(url)
        .output()
        .unwrap();
    (
        ran.status.code().unwrap(),
        String::from_utf8_lossy(&ran.stdout).into_owned(),
    )
}

#[test]
fn curl_speaks_tls_with_it_and_cookies_are_for_tls_alone() {
    let papers = Papers::new();
    let server = TestServer::with(|settings| settings.tls = Some(papers.tls()));
    let url = server.running.as_ref().unwrap().url();
    assert!(url.starts_with("https://127.0.0.1:"));
    let ca = papers.path("ca.pem");
    let ca = ca.to_str().unwrap();
    let (_, viewer) = server.token(Role::Viewer);
    let key = format!("Authorization: Bearer {viewer}");
    let (code, said) = curl(&format!("{url}/v1/session"), &["--cacert", ca, "-H", &key]);
    assert_eq!(code, 0);
    assert!(said.starts_with("HTTP/1.1 200"), "{said}");
    assert!(
        said.contains("strict-transport-security: max-age="),
        "{said}"
    );
    let body = format!("{{\"token\":\"{viewer}\"}}");
    let origin = format!("Origin: {url}");
    let (_, said) = curl(
        &format!("{url}/v1/session"),
        &[
            "--cacert",
            ca,
            "-H",
            "Content-Type: application/json",
            "-H",
            &origin,
            "-d",
            &body,
        ],
    );
    assert!(said.contains("set-cookie: __Secure-belljar_"), "{said}");
    assert!(said.contains("; Secure"), "{said}");
    // A page that came without TLS is another page.
    let origin = origin.replace("https", "http");
    let (_, said) = curl(
        &format!("{url}/v1/session"),
        &["--cacert", ca, "-H", &key, "-H", &origin],
    );
    assert!(said.starts_with("HTTP/1.1 403"), "{said}");
    // Who trusts another authority does not trust it.
    let other = papers.path("other-ca.pem");
    assert_eq!(curl(&url, &["--cacert", other.to_str().unwrap()]).0, 60);
    // And nothing is said without TLS.
    let (_, said) = curl(&format!("{}/healthz", url.replace("https", "http")), &[]);
    assert!(!said.contains("200"), "{said}");
}

#[test]
fn with_an_authority_for_clients_a_token_alone_is_not_enough_nor_is_a_certificate() {
    let papers = Papers::new();
    let server = TestServer::with(|settings| {
        settings.tls = Some(Tls {
            client_ca: Some(papers.path("ca.pem")),
            ..papers.tls()
        });
    });
    let url = format!("{}/v1/session", server.running.as_ref().unwrap().url());
    let (_, viewer) = server.token(Role::Viewer);
    let key = format!("Authorization: Bearer {viewer}");
    let ca = papers.path("ca.pem");
    let with = |certificate: &str, key: &str| {
        let (certificate, private) = (
            papers.path(&format!("{certificate}.pem")),
            papers.path(&format!("{certificate}.key")),
        );
        let arguments = [
            "--cacert",
            ca.to_str().unwrap(),
            "--cert",
            certificate.to_str().unwrap(),
            "--key",
            private.to_str().unwrap(),
            "-H",
            key,
        ];
        curl(&url, &arguments)
    };
    let (code, said) = with("client", &key);
    assert!(code == 0 && said.starts_with("HTTP/1.1 200"), "{said}");
    let (code, said) = with("client", "X-Nothing: x");
    assert!(code == 0 && said.starts_with("HTTP/1.1 401"), "{said}");
    let (code, said) = with("other-client", &key);
    assert!(code != 0 && said.is_empty(), "{code} {said}");
    let (code, said) = curl(&url, &["--cacert", ca.to_str().unwrap(), "-H", &key]);
    assert!(code != 0 && said.is_empty(), "{code} {said}");
}

#[test]
fn a_handshake_that_does_not_come_ends_the_connection() {
    let papers = Papers::new();
    let server = TestServer::with(|settings| {
        settings.tls = Some(papers.tls());
        settings.limits.handshake = Duration::from_millis(200);
    });
    let mut peer = server.peer();
    peer.send([0x16, 0x03, 0x01]);
    peer.hear_the_end();
}

fn start(
    change: impl FnOnce(&mut Settings),
    tokens: &TokenFile,
) -> Result<belljar_web::Running, StartError> {
    let mut settings = Settings {
        bind: "127.0.0.1:0".parse().unwrap(),
        ..Settings::default()
    };
    change(&mut settings);
    Web::start(
        settings,
        tokens.clone(),
        TestBackend(Arc::new(Seen::default())),
    )
}

#[test]
fn what_others_reach_needs_a_certificate_and_a_token() {
    let papers = Papers::new();
    let state = tempfile::tempdir().unwrap();
    let tokens = TokenFile::of(state.path());
    let missing = |with_tls: bool| {
        let started = start(
            |settings| {
                settings.bind = "0.0.0.0:0".parse().unwrap();
                settings.tls = with_tls.then(|| papers.tls());
            },
            &tokens,
        );
        match started {
            Err(StartError::Exposed { missing, .. }) => Some(missing),
            other => other.map(|_| None).unwrap(),
        }
    };
    assert_eq!(missing(false), Some("neither a certificate nor a token"));
    assert_eq!(missing(true), Some("no token that is good"));
    let (record, _) = support::token(&tokens, Role::Viewer, None);
    assert_eq!(missing(false), Some("no certificate"));
    assert_eq!(missing(true), None);
    tokens.revoke(record.id.as_str()).unwrap();
    assert_eq!(missing(true), Some("no token that is good"));
    for bind in ["[::]:0", "192.0.2.1:0", "[::ffff:192.0.2.1]:0"] {
        let refused = start(|settings| settings.bind = bind.parse().unwrap(), &tokens).unwrap_err();
        assert!(matches!(refused, StartError::Exposed { .. }), "{bind}");
        assert!(refused.hint().contains("certificate"));
    }
    // This machine reaches itself without either.
    assert!(start(|_| {}, &tokens).is_ok());
}

#[test]
fn a_port_that_is_taken_is_one_clear_error() {
    let state = tempfile::tempdir().unwrap();
    let tokens = TokenFile::of(state.path());
    let first = start(|_| {}, &tokens).unwrap();
    let refused = start(|settings| settings.bind = first.address(), &tokens).unwrap_err();
    assert!(matches!(refused, StartError::PortTaken { .. }));
    assert_eq!(
        refused.to_string(),
        format!("the port of {} is taken", first.address())
    );
    assert!(refused.hint().contains("--web-port"));
}

#[test]
fn a_certificate_that_can_not_be_used_is_named() {
    let papers = Papers::new();
    let state = tempfile::tempdir().unwrap();
    let tokens = TokenFile::of(state.path());
    let refused = |tls: Tls| match start(|settings| settings.tls = Some(tls), &tokens) {
        Err(StartError::Tls(error)) => error,
        other => panic!("{other:?}"),
    };
    let with_key = |key: &Path| Tls {
        key: key.to_owned(),
        ..papers.tls()
    };
    let error = refused(with_key(&papers.path("gone.key")));
    assert!(matches!(&error, TlsError::Unreadable { path, .. } if path.ends_with("gone.key")));
    let error = refused(with_key(&papers.path("server.pem")));
    assert!(
        matches!(
            &error,
            TlsError::NotPem {
                what: "private key",
                ..
            }
        ),
        "{error:?}"
    );
    let error = refused(with_key(&papers.path("client.key")));
    assert!(matches!(&error, TlsError::Unusable { .. }), "{error:?}");
    let error = refused(Tls {
        certificate: papers.path("server.key"),
        ..papers.tls()
    });
    assert!(
        matches!(
            &error,
            TlsError::NotPem {
                what: "certificate",
                ..
            }
        ),
        "{error:?}"
    );
    let error = refused(Tls {
        client_ca: Some(papers.path("server.key")),
        ..papers.tls()
    });
    assert!(matches!(&error, TlsError::NotPem { .. }), "{error:?}");
    let open = fs::Permissions::from_mode(0o644);
    fs::set_permissions(papers.path("server.key"), open).unwrap();
    let error = refused(papers.tls());
    assert!(matches!(&error, TlsError::Exposed { .. }), "{error:?}");
    assert!(error.hint().contains("chmod 600"));
}
