//! Whom programs in a box trust: whom the host trusts, and the authority of the box, each in its own form.

mod support;

use support::{Jail, Who, finish, for_each_user};

/// A rule that makes Belljar look inside TLS.
const LOOKED_INTO: &str =
    "extends: moderate\nnetwork_egress_rules:\n  - {domain: api.openai.com, ports: [443]}\n";
/// One that does not.
const PASSED_ON: &str =
    "extends: moderate\nnetwork_egress_rules:\n  - {domain: example.org, ports: [443]}\n";

/// What a script says in a box under this capability.
#[track_caller]
fn said(jail: &Jail, capability: &str, script: &str) -> String {
    let file = jail.base.join("capability.yaml");
    jail.put(&file, capability);
    let mut command = jail.belljar(&["run", "--quiet", "--config", &file.to_string_lossy()]);
    command.args(["--", "/bin/sh", "-euc", script]);
    let finished = finish(command.spawn().expect("start belljar"));
    assert_eq!(finished.code(), 0, "{}", finished.stderr());
    finished.stdout().trim().to_owned()
}

const COUNT: &str = "grep -c 'BEGIN CERT' /etc/ssl/certs/ca-certificates.crt || true";

fn one_more_is_trusted_where_tls_is_looked_into(who: Who) {
    let jail = Jail::new(who);
    let usual: u32 = said(&jail, PASSED_ON, COUNT).parse().expect("a number");
    let with_own: u32 = said(&jail, LOOKED_INTO, COUNT).parse().expect("a number");
    assert_eq!(with_own, usual + 1);
    let variables = "for name in SSL_CERT_FILE CURL_CA_BUNDLE REQUESTS_CA_BUNDLE NODE_EXTRA_CA_CERTS GIT_SSL_CAINFO; do \
                     eval \"file=\\$$name\"; cmp \"$file\" /etc/ssl/certs/ca-certificates.crt; done; echo same";
    assert_eq!(said(&jail, LOOKED_INTO, variables), "same");
}

fn java_trusts_the_same(who: Who) {
    let jail = Jail::new(who);
    let count = "keytool -list -cacerts -storepass changeit 2>/dev/null | grep -c trustedCertEntry";
    let java = said(&jail, LOOKED_INTO, count);
    assert_eq!(java, said(&jail, LOOKED_INTO, COUNT));
    assert_ne!(java, "0");
}

/// Two boxes do not trust each other's authority, and none of it can be changed from inside.
fn every_box_has_its_own(who: Who) {
    let jail = Jail::new(who);
    let last = "tail -n 12 /etc/ssl/certs/ca-certificates.crt | sha256sum";
    assert_ne!(
        said(&jail, LOOKED_INTO, last),
        said(&jail, LOOKED_INTO, last)
    );
    let write = "for file in /etc/ssl/certs/ca-certificates.crt /etc/resolv.conf /etc/hosts /belljar/net/hosts; do \
                 if echo x >> $file; then echo written $file; fi; done 2>/dev/null; echo end";
    assert_eq!(said(&jail, LOOKED_INTO, write), "end");
}

for_each_user! {
    one_more_is_trusted_where_tls_is_looked_into,
    java_trusts_the_same,
    every_box_has_its_own,
}
