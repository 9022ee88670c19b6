//! Secrets taken from where a policy says they are. They are read after the box's first process was made, so that no copy of
//! them is in it, and before its program runs.

use super::refresh::RefreshedSecret;
use super::source::{SecretReader, hint};
use crate::error::RunError;
use crate::key_files::KnownSecret;
use belljar_egress::{HeaderSecret, LiveSecret, SecretText};
use belljar_policy::{Capability, Origin, Rule, SecretRule, SecretSource};
use zeroize::Zeroizing;

/// What a program in the box finds instead of a secret: enough for clients that want to see something.
pub(super) fn placeholder(rule: &SecretRule) -> String {
    placeholder_of(&rule.name)
}

fn placeholder_of(name: &str) -> String {
    format!("belljar-placeholder-{name}")
}

/// The values of a capability's secrets, in its order.
pub(super) fn values(
    capability: &Capability,
    reader: &SecretReader,
) -> Result<Vec<KnownSecret>, RunError> {
    let one = |rule: &Rule<SecretRule>| {
        let secret = &rule.value;
        let what = format!("{}: secret {}", rule.origin, secret.name);
        Ok(KnownSecret {
            name: secret.name.clone(),
            placeholder: placeholder(secret),
            value: reader.for_header(&secret.source, &what)?,
        })
    };
    capability.secrets.iter().map(one).collect()
}

/// The same, with where each goes.
pub(super) fn headers(capability: &Capability, values: &[KnownSecret]) -> Vec<HeaderSecret> {
    let rules = || capability.secrets.iter().map(|rule| &rule.value);
    // A secret for several kinds of hosts is several rules, and a client has one placeholder for it.
    let placeholders = |secret: &SecretRule| {
        let same = rules().filter(|other| other.source == secret.source);
        same.map(placeholder).collect()
    };
    let one = |(secret, known): (&SecretRule, &KnownSecret)| HeaderSecret {
        name: secret.name.clone(),
        placeholders: placeholders(secret),
        source: spelled(&secret.source),
        domain: secret.domain.clone(),
        ports: secret.ports.clone(),
        place: secret.place.clone(),
        value: LiveSecret::new(SecretText::new(known.value.to_string())),
    };
    rules().zip(values).map(one).collect()
}

/// Those of them that are refreshed.
pub(super) fn refreshed(capability: &Capability, headers: &[HeaderSecret]) -> Vec<RefreshedSecret> {
    let all = capability.secrets.iter().zip(headers);
    let all = all.filter(|(rule, _)| rule.value.refresh.is_some());
    all.map(|(rule, header)| RefreshedSecret {
        rule: rule.clone(),
        value: header.value.clone(),
    })
    .collect()
}

/// A source as a policy has it, but for what only whoever wrote it should see.
fn spelled(source: &SecretSource) -> String {
    match source {
        SecretSource::Env(name) => format!("{{env: {name}}}"),
        SecretSource::File(path) => format!("{{file: \"{path}\"}}"),
        SecretSource::Store(name) => format!("{{store: {name}}}"),
        SecretSource::Command(words) => match words.first() {
            Some(program) => format!("{{command: [{program}, …]}}"),
            None => "{command: […]}".to_owned(),
        },
    }
}

/// What else the policy has of secrets, where a look at a variable or a file tells: the login of a proxy, what MCP
/// servers are told. Programs that print one are run when it is needed.
pub(crate) fn other_values(capability: &Capability, reader: &SecretReader) -> Vec<KnownSecret> {
    let proxy = capability.upstream_proxy.iter();
    let proxy = proxy.filter_map(|rule| rule.value.credentials.as_ref());
    let proxy = proxy.map(|source| ("upstream_proxy".to_owned(), source));
    let layers = capability.tools.layers();
    let servers = layers.flat_map(|layer| layer.servers.iter().flatten());
    let servers = servers.flat_map(|(name, rule)| {
        let headers = rule.value.headers();
        headers
            .iter()
            .map(move |header| (name.to_string(), &header.source))
    });
    let looked_at = proxy
        .chain(servers)
        .filter(|(_, source)| !matches!(source, SecretSource::Command(_)));
    let known = looked_at.filter_map(|(name, source)| {
        Some(KnownSecret {
            placeholder: placeholder_of(&name),
            name,
            // Whoever needs it says what is wrong with it.
            value: reader.read(source).ok()?,
        })
    });
    known.collect()
}

/// The credentials of a proxy, as it wants to see them.
pub(super) fn credentials(
    source: &SecretSource,
    origin: &Origin,
    reader: &SecretReader,
) -> Result<Zeroizing<String>, RunError> {
    reader.read(source).map_err(|why| RunError::Refused {
        what: format!("{origin}: upstream_proxy: {why}"),
        hint: hint(source),
    })
}
