//! The proxy of the host's network, found where a policy says it is.

use super::secrets;
use super::source::SecretReader;
use crate::environment;
use crate::error::RunError;
use belljar_egress::{SecretText, UpstreamProxy};
use belljar_policy::{Capability, ProxyPlace};
use data_encoding::BASE64;
use zeroize::Zeroizing;

/// The proxy that connections go through, if there is one.
pub(super) fn resolve(
    capability: &Capability,
    reader: &SecretReader,
) -> Result<Option<UpstreamProxy>, RunError> {
    let Some(rule) = &capability.upstream_proxy else {
        return Ok(None);
    };
    let terms = &rule.value;
    let (place, in_url) = match &terms.place {
        ProxyPlace::At(..) => (terms.place.clone(), None),
        ProxyPlace::Environment => match from_environment()? {
            Some(found) => found,
            None => return Ok(None),
        },
    };
    let ProxyPlace::At(host, port) = place else {
        return Ok(None);
    };
    let credentials = match &terms.credentials {
        Some(source) => Some(secrets::credentials(source, &rule.origin, reader)?),
        None => in_url,
    };
    let authorization = credentials.map(|text| {
        let encoded = Zeroizing::new(BASE64.encode(text.as_bytes()));
        SecretText::new(format!("Basic {}", *encoded))
    });
    Ok(Some(UpstreamProxy {
        host,
        port,
        resolution: terms.resolution,
        authorization,
    }))
}

type Found = (ProxyPlace, Option<Zeroizing<String>>);

/// What `HTTPS_PROXY` says; its user and password apart.
fn from_environment() -> Result<Option<Found>, RunError> {
    let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let names = environment::UPSTREAM_PROXY;
    let Some((name, value)) = names
        .iter()
        .find_map(|name| Some((*name, Zeroizing::new(variable(name)?))))
    else {
        return Ok(None);
    };
    parse(&value).map(Some).map_err(|why| RunError::Refused {
        what: format!("{name} names no proxy that can be used: {why}"),
        hint: "set it to http://host:port, or name the proxy in upstream_proxy".into(),
    })
}

fn parse(value: &str) -> Result<Found, String> {
    let rest = value.strip_prefix("http://").unwrap_or(value);
    let (credentials, authority) = match rest.rsplit_once('@') {
        Some((credentials, authority)) => (Some(decoded(credentials)?), authority),
        None => (None, rest),
    };
    let place = ProxyPlace::parse(&format!("http://{authority}"));
    Ok((place.map_err(|error| error.to_string())?, credentials))
}

/// Without its percent signs.
fn decoded(text: &str) -> Result<Zeroizing<String>, String> {
    let malformed = || "its user or password is malformed".to_owned();
    let mut bytes = Zeroizing::new(Vec::with_capacity(text.len()));
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                let high = digit(rest.next()).ok_or_else(malformed)?;
                let low = digit(rest.next()).ok_or_else(malformed)?;
                (high * 16 + low) as u8
            }
            other => other,
        });
    }
    let text = std::str::from_utf8(&bytes).map_err(|_| malformed())?;
    Ok(Zeroizing::new(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_of_the_environment_is_taken_apart() {
        let check = |value: &str, expect: Option<(&str, Option<&str>)>| {
            let found = parse(value).ok();
            let found = found
                .as_ref()
                .map(|(place, text)| (place.to_string(), text.as_ref().map(|text| text.as_str())));
            let expect = expect.map(|(place, text)| (place.to_owned(), text));
            assert_eq!(found, expect, "{value}");
        };
        check("http://p:3128", Some(("http://p:3128", None)));
        check("p:3128/", Some(("http://p:3128", None)));
        check(
            "http://u:a%40b@p:8080",
            Some(("http://p:8080", Some("u:a@b"))),
        );
        check("http://u:%4@p:8080", None);
        check("https://p:3128", None);
        check("http://p", None);
    }
}
