//! Which environment variables an agent sees.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use crate::env_patterns::{
    BASE, CREDENTIAL_NAMES, NamePattern, ONLY_WHEN_LISTED, SENSITIVE, TOKENS,
};
use crate::{Decision, Origin, Reason};

/// Which environment variables an agent sees.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct EnvPolicy {
    /// What passes beside the base variables.
    pub allow: EnvAllow,
    /// Variables that hold a secret of the policy's own, by name and the rule that says so: they never pass.
    #[serde(skip)]
    pub withheld: BTreeMap<String, Origin>,
}

/// What passes beside the base variables. Secrets never do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum EnvAllow {
    /// Nothing.
    #[default]
    Base,
    /// These names.
    Listed(BTreeMap<String, Origin>),
    /// Everything.
    All,
}

/// `"base"`, `"all"`, or the list of names.
impl Serialize for EnvAllow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Base => serializer.serialize_str("base"),
            Self::All => serializer.serialize_str("all"),
            Self::Listed(names) => serializer.collect_seq(names.keys()),
        }
    }
}

/// Decides whether a variable passes. A secret never does, whatever the policy lists.
#[must_use]
pub fn decide_env(policy: &EnvPolicy, name: &str, value: &[u8]) -> Decision {
    let by_name = decide_name(policy, name);
    if by_name.is_allow() && is_credential(value) {
        let hint = "a value of this shape is a credential; let Belljar add it to requests instead";
        return Decision::deny(
            Reason::DenySensitiveEnvValue,
            Origin::built_in(),
            Some(hint.to_owned()),
        );
    }
    by_name
}

/// The decision as far as the name alone makes it.
pub(crate) fn decide_name(policy: &EnvPolicy, name: &str) -> Decision {
    if let Some(origin) = policy.withheld.get(name) {
        let hint =
            "it holds a secret, which Belljar adds to requests instead; see `env` of secrets";
        let origin = origin.clone();
        return Decision::deny(Reason::DenySensitiveEnvName, origin, Some(hint.to_owned()));
    }
    // Base names are exact in case: a program that asks for `path` does not need it.
    if any_matches(BASE, name) {
        return Decision::allow(Reason::AllowBaseEnv, Origin::built_in());
    }
    let upper = name.to_ascii_uppercase();
    if any_matches(SENSITIVE, &upper) {
        return Decision::deny(Reason::DenySensitiveEnvName, Origin::built_in(), None);
    }
    match &policy.allow {
        EnvAllow::Listed(names) if names.contains_key(name) => {
            Decision::allow(Reason::AllowListedEnv, names[name].clone())
        }
        EnvAllow::All if !any_matches(ONLY_WHEN_LISTED, &upper) => {
            Decision::allow(Reason::AllowAllEnv, Origin::built_in())
        }
        _ => {
            let hint = format!("add to capability.yaml: env_allowlist: [{name}]");
            Decision::deny(Reason::DenyEnvNotListed, Origin::built_in(), Some(hint))
        }
    }
}

fn any_matches(patterns: &[NamePattern], name: &str) -> bool {
    patterns.iter().any(|pattern| pattern.matches(name))
}

/// Whether a name says that its value is a key. [`decide_env`] withholds more, such as what makes programs load code.
#[must_use]
pub fn is_credential_name(name: &str) -> bool {
    any_matches(CREDENTIAL_NAMES, &name.to_ascii_uppercase())
}

/// Whether a value has the shape of a secret.
#[must_use]
pub fn is_credential(value: &[u8]) -> bool {
    // What is not text is no token we know; lossy reading keeps the ASCII parts comparable.
    let text = String::from_utf8_lossy(value);
    (text.contains("-----BEGIN ") && text.contains("PRIVATE KEY"))
        || has_url_password(&text)
        || text
            .split(is_separator)
            .any(|token| is_vendor_token(token) || is_jwt(token))
}

fn is_separator(c: char) -> bool {
    c.is_whitespace()
        || matches!(
            c,
            '=' | ':' | ',' | ';' | '"' | '\'' | '&' | '?' | '(' | ')'
        )
}

fn is_vendor_token(token: &str) -> bool {
    TOKENS.iter().any(|shape| {
        token.strip_prefix(shape.prefix).is_some_and(|tail| {
            tail.len() >= shape.tail && tail.bytes().all(|b| is_base64url(b) || b == b'.')
        })
    })
}

/// Three base64url parts, the first a JSON object: `eyJ` is `{"` encoded.
fn is_jwt(token: &str) -> bool {
    let mut parts = token.split('.');
    token.starts_with("eyJ")
        && parts
            .by_ref()
            .take(3)
            .filter(|p| p.len() > 3 && p.bytes().all(is_base64url))
            .count()
            == 3
        && parts.next().is_none()
}

fn is_base64url(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b == b'-' || b == b'_'
}

/// `scheme://user:password@host`, anywhere in the value.
fn has_url_password(text: &str) -> bool {
    text.split("://").skip(1).any(|rest| {
        let authority = rest.split(['/', '?', '#', ' ']).next().unwrap_or(rest);
        authority
            .rsplit_once('@')
            .and_then(|(userinfo, _)| userinfo.split_once(':'))
            .is_some_and(|(_, password)| !password.is_empty())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(allow: &EnvAllow, name: &str, value: &str) -> &'static str {
        let policy = EnvPolicy {
            allow: allow.clone(),
            ..EnvPolicy::default()
        };
        decide_env(&policy, name, value.as_bytes()).reason().code()
    }

    fn listed(names: &[&str]) -> EnvAllow {
        let entry = |name: &&str| ((*name).to_owned(), Origin::built_in());
        EnvAllow::Listed(names.iter().map(entry).collect())
    }

    #[test]
    fn secret_names_never_pass() {
        let names = [
            "OPENAI_API_KEY",
            "openai_api_key",
            "my_secret",
            "Token",
            "DB_PASSWORD",
            "X_PAT",
            "AWS_REGION",
            "LD_PRELOAD",
            "SSH_AUTH_SOCK",
            "DBUS_SESSION_BUS_ADDRESS",
            "ENV",
            "SENTRY_DSN",
            "KUBECONFIG",
            "DOCKER_HOST",
        ];
        for name in names {
            for allow in [EnvAllow::Base, EnvAllow::All, listed(&[name])] {
                assert_eq!(code(&allow, name, "x"), "deny_sensitive_env_name", "{name}");
            }
        }
    }

    #[test]
    fn a_variable_that_is_the_source_of_a_secret_never_passes() {
        let withheld = BTreeMap::from([("FOO".to_owned(), Origin::built_in())]);
        for allow in [EnvAllow::All, listed(&["FOO", "BAR"])] {
            let policy = EnvPolicy {
                allow,
                withheld: withheld.clone(),
            };
            let passes = |name| decide_env(&policy, name, b"x").is_allow();
            assert!(!passes("FOO") && passes("BAR"), "{policy:?}");
        }
    }

    #[test]
    fn secret_values_never_pass() {
        // Put together here, so that scanners of this repository find no secret in it.
        let tail = "Ab1".repeat(12);
        let tokens = TOKENS.iter().map(|shape| format!("{}{tail}", shape.prefix));
        let others = [
            format!("Bearer AKIA{}", &tail[..16]),
            format!("eyJ{tail}.eyJ{tail}.{tail}"),
            format!("-----BEGIN OPENSSH {} KEY-----\n{tail}", "PRIVATE"),
            format!("postgres://user:{tail}@db.example.com/app"),
            format!("x=https://u:{tail}@host"),
        ];
        for value in tokens.chain(others) {
            for (allow, name) in [(listed(&["FOO"]), "FOO"), (EnvAllow::All, "PATH")] {
                assert_eq!(
                    code(&allow, name, &value),
                    "deny_sensitive_env_value",
                    "{value}"
                );
            }
        }
    }

    #[test]
    fn ordinary_values_pass() {
        let values = [
            "/usr/bin:/bin",
            "xterm-256color",
            "https://example.com/a:b@c",
            "sk-learn",
            "http://user:@host/",
            "eyJhbGci.eyJhbGci.abcdef.ghijkl",
            "http://user@host/",
            "en_US.UTF-8",
            "1.2.3",
            "/home/u/sk-experiments-directory-2024",
        ];
        for value in values {
            assert_eq!(
                code(&listed(&["FOO"]), "FOO", value),
                "allow_listed_env",
                "{value}"
            );
        }
    }

    #[test]
    fn the_policy_decides_the_rest() {
        assert_eq!(code(&EnvAllow::Base, "LC_ALL", "C"), "allow_base_env");
        assert_eq!(code(&EnvAllow::Base, "EDITOR", "vi"), "deny_env_not_listed");
        assert_eq!(code(&EnvAllow::All, "EDITOR", "vi"), "allow_all_env");
        assert_eq!(
            code(&EnvAllow::All, "NODE_OPTIONS", "-r x"),
            "deny_env_not_listed"
        );
        assert_eq!(
            code(&listed(&["NODE_OPTIONS"]), "NODE_OPTIONS", "-r x"),
            "allow_listed_env"
        );
        assert_eq!(
            code(&listed(&["EDITOR"]), "editor", "vi"),
            "deny_env_not_listed"
        );
    }
}
