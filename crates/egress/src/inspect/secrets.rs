//! Secrets that are put in on the way out, so that the agent never has them.

use belljar_policy::{DomainPattern, Host, SecretPlace};
use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use zeroize::Zeroizing;

use super::placeholders::{Entry, Head, TooLong};
use crate::secret::LiveSecret;

/// A secret, and where it goes. It goes out over TLS alone.
///
/// Wherever one of its placeholders stands in a request to its hosts, the secret takes its place: in a header, in the name and password
/// of `Basic`, in a parameter of the query that is for keys. Never in a body: what a host keeps and shows to others is sent there.
#[derive(Clone, Debug)]
pub struct HeaderSecret {
    /// What messages call it.
    pub name: String,
    /// What stands for it in requests: its own placeholder, and those of secrets that come from the same place.
    pub placeholders: Vec<String>,
    /// Where it comes from, as a policy says it: for the line that gives it to another host.
    pub source: String,
    /// The hosts that get it.
    pub domain: DomainPattern,
    /// The ports they get it on; empty means all. On these ports nothing but HTTP passes.
    pub ports: Vec<u16>,
    /// The header that holds it whatever the agent sends there, a placeholder or somebody else's key: a host that gets this
    /// secret in it gets no other in it from the box.
    pub place: Option<SecretPlace>,
    /// The secret.
    pub value: LiveSecret,
}

impl HeaderSecret {
    fn is_for(&self, host: &Host, port: u16) -> bool {
        self.domain.matches(host) && (self.ports.is_empty() || self.ports.contains(&port))
    }

    /// Puts the secret in its own place. `false` when it does not fit in a header, and nothing may be sent.
    #[must_use]
    fn put(&self, headers: &mut HeaderMap) -> bool {
        let value = self.value.current();
        let (name, text) = match &self.place {
            None => return true,
            Some(SecretPlace::Bearer) => (
                Ok(AUTHORIZATION),
                Zeroizing::new(format!("Bearer {}", value.expose())),
            ),
            Some(SecretPlace::Header(name)) => (
                HeaderName::from_bytes(name.as_bytes()),
                Zeroizing::new(value.expose().to_owned()),
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

/// All secrets of a box.
pub(super) struct BoxSecrets {
    all: Vec<HeaderSecret>,
}

/// What is around a request, and whom it is for.
#[derive(Clone, Copy)]
pub(super) struct Receiver<'a> {
    pub(super) host: &'a Host,
    pub(super) port: u16,
    /// In the clear, anyone on the way could read it.
    pub(super) is_tls: bool,
}

/// A placeholder that was sent where its secret does not go, and went there as it is.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Misdirected {
    pub(super) detail: String,
    pub(super) hint: String,
}

impl BoxSecrets {
    pub(super) fn new(all: Vec<HeaderSecret>) -> Self {
        Self { all }
    }

    /// Whether a host gets any.
    pub(super) fn are_for(&self, host: &Host, port: u16) -> bool {
        self.of(host, port).next().is_some()
    }

    /// Those that a host gets.
    pub(super) fn of<'s>(
        &'s self,
        host: &'s Host,
        port: u16,
    ) -> impl Iterator<Item = &'s HeaderSecret> {
        let all = self.all.iter();
        all.filter(move |secret| secret.is_for(host, port))
    }

    /// How often those that a host gets were replaced, all together.
    pub(super) fn replaced(&self, host: &Host, port: u16) -> u64 {
        self.of(host, port)
            .fold(0, |sum, secret| sum.saturating_add(secret.value.replaced()))
    }

    /// Puts those in that the receiver gets; tells which others were asked for.
    ///
    /// # Errors
    /// When they don't fit, and nothing may be sent.
    pub(super) fn put(
        &self,
        parts: &mut Parts,
        receiver: Receiver<'_>,
    ) -> Result<Vec<Misdirected>, TooLong> {
        let gets =
            |secret: &HeaderSecret| receiver.is_tls && secret.is_for(receiver.host, receiver.port);
        let mut entries: Vec<Entry<'_>> = Vec::new();
        for secret in &self.all {
            for placeholder in &secret.placeholders {
                let known = entries
                    .iter_mut()
                    .find(|entry| entry.placeholder == *placeholder);
                match known {
                    Some(entry) if entry.value.is_none() && gets(secret) => {
                        entry.value = Some(&secret.value);
                    }
                    Some(_) => {}
                    None => entries.push(Entry {
                        placeholder,
                        owner: secret,
                        value: gets(secret).then_some(&secret.value),
                    }),
                }
            }
        }
        let mut head = Head::new(entries);
        head.replace(parts)?;
        let misdirected = head.others().map(|secret| told(secret, receiver)).collect();
        for secret in self.all.iter().filter(|secret| gets(secret)) {
            if !secret.put(&mut parts.headers) {
                return Err(TooLong);
            }
        }
        Ok(misdirected)
    }
}

fn told(secret: &HeaderSecret, receiver: Receiver<'_>) -> Misdirected {
    let HeaderSecret { name, source, .. } = secret;
    let Receiver { host, port, .. } = receiver;
    if secret.is_for(host, port) {
        return Misdirected {
            detail: format!("the secret {name} is not put into a request without TLS"),
            hint: format!("ask {host} by https"),
        };
    }
    // Names end where they may: the line is one to start from.
    let other: String = name.chars().take(60).collect();
    Misdirected {
        detail: format!("the secret {name} is not for {host}:{port}, which got the placeholder"),
        hint: format!(
            "only if {host} is meant to have that secret: add to secrets: \
             - {{name: {other}-2, from: {source}, domain: \"{host}\"}}"
        ),
    }
}

#[cfg(test)]
impl HeaderSecret {
    /// One that goes where its placeholder stands.
    pub(super) fn of_test(name: &str, domain: &str, value: &str) -> Self {
        Self {
            name: name.to_owned(),
            placeholders: vec![format!("belljar-placeholder-{name}")],
            source: format!("{{env: {name}}}"),
            domain: DomainPattern::parse(domain).unwrap(),
            ports: Vec::new(),
            place: None,
            value: LiveSecret::new(crate::secret::SecretText::new(value.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use hyper::Request;

    use super::*;
    use crate::secret::SecretText;

    /// A request that has been through, and what was told of it.
    fn sent(
        secrets: &[HeaderSecret],
        to: &str,
        uri: &str,
        headers: &[(&str, &str)],
    ) -> (Parts, Vec<String>) {
        let mut request = Request::builder().uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (mut parts, ()) = request.body(()).unwrap().into_parts();
        let receiver = Receiver {
            host: &Host::parse(to).unwrap(),
            port: 443,
            is_tls: true,
        };
        let told = BoxSecrets::new(secrets.to_vec()).put(&mut parts, receiver);
        let told = told.unwrap().into_iter().map(|told| told.detail).collect();
        (parts, told)
    }

    fn base64(text: &str) -> String {
        data_encoding::BASE64.encode(text.as_bytes())
    }

    fn key() -> HeaderSecret {
        HeaderSecret::of_test("key", "a.test", "sk-R/E+A L")
    }

    const P: &str = "belljar-placeholder-key";

    #[test]
    fn a_secret_is_put_in_wherever_its_placeholder_stands() {
        let headers = [
            (
                "authorization",
                format!("Bearer {P}"),
                "Bearer sk-R/E+A L".to_owned(),
            ),
            ("x-api-key", P.to_owned(), "sk-R/E+A L".to_owned()),
            (
                "cookie",
                format!("a={P}; b={P}"),
                "a=sk-R/E+A L; b=sk-R/E+A L".to_owned(),
            ),
            (
                "x-basic",
                format!("basic {}", base64(&format!("{P}:"))),
                format!("basic {}", base64("sk-R/E+A L:")),
            ),
            (
                "x-other",
                format!("Basic {}", base64(&format!("me:{P}"))),
                format!("Basic {}", base64("me:sk-R/E+A L")),
            ),
            (
                "x-pair",
                format!("Basic {P}"),
                "Basic sk-R/E+A L".to_owned(),
            ),
            (
                "x-none",
                "Basic bm9uZQ==".to_owned(),
                "Basic bm9uZQ==".to_owned(),
            ),
        ];
        let given: Vec<_> = headers
            .iter()
            .map(|(name, value, _)| (*name, value.as_str()))
            .collect();
        let uri = format!("/v1/{P}?q={P}&key={P}&%6bey=belljar%2Dplaceholder-key&token={P}x&key");
        let (parts, told) = sent(&[key()], "a.test", &uri, &given);
        for (name, _, expected) in &headers {
            assert_eq!(parts.headers[*name], expected.as_str(), "{name}");
            assert_eq!(
                parts.headers[*name].is_sensitive(),
                *name != "x-none",
                "{name}"
            );
        }
        // Not in a path, not in what may be searched for and kept, not as a part of another word.
        assert_eq!(
            parts.uri.to_string(),
            format!("/v1/{P}?q={P}&key=sk-R%2FE%2BA%20L&%6bey=sk-R%2FE%2BA%20L&token={P}x&key")
        );
        assert_eq!(told, [""; 0]);
    }

    #[test]
    fn headers_that_hosts_keep_or_go_by_never_get_one() {
        for name in [
            "host",
            "content-type",
            "content-disposition",
            "x-amz-meta-note",
            "user-agent",
            "referer",
            "transfer-encoding",
        ] {
            let (parts, _) = sent(&[key()], "a.test", "/", &[(name, P)]);
            assert_eq!(parts.headers[name], P, "{name}");
        }
    }

    #[test]
    fn a_place_of_its_own_is_filled_whatever_stands_there() {
        let mut own = key();
        own.place = Some(SecretPlace::Bearer);
        for given in ["Bearer somebody-elses", P] {
            let (parts, _) = sent(
                &[own.clone()],
                "a.test",
                "/",
                &[("authorization", given), ("x-api-key", P)],
            );
            assert_eq!(parts.headers["authorization"], "Bearer sk-R/E+A L");
            assert_eq!(parts.headers["x-api-key"], "sk-R/E+A L");
        }
        // Without one, the agent's own key is its own affair.
        let (parts, _) = sent(
            &[key()],
            "a.test",
            "/",
            &[("authorization", "Bearer its-own")],
        );
        assert_eq!(parts.headers["authorization"], "Bearer its-own");
    }

    #[test]
    fn one_placeholder_is_not_the_beginning_of_another() {
        let longer = HeaderSecret::of_test("key-2", "a.test", "two");
        let (parts, _) = sent(
            &[key(), longer],
            "a.test",
            "/",
            &[("x-a", "belljar-placeholder-key-2,belljar-placeholder-key-3")],
        );
        assert_eq!(parts.headers["x-a"], "two,belljar-placeholder-key-3");
    }

    #[test]
    fn other_hosts_get_the_placeholder_and_that_is_told() {
        let (parts, told) = sent(
            &[key()],
            "b.test",
            &format!("/?key={P}"),
            &[("x-a", P), ("x-b", P)],
        );
        assert!(!format!("{parts:?}").contains("sk-"));
        assert_eq!(
            told,
            ["the secret key is not for b.test:443, which got the placeholder"]
        );
        // Another rule with the same source is the same secret.
        let mut second = HeaderSecret::of_test("key-2", "b.test", "sk-R/E+A L");
        second.placeholders.push(P.to_owned());
        let (parts, told) = sent(&[key(), second], "b.test", "/", &[("x-a", P)]);
        assert_eq!(
            (&parts.headers["x-a"], told.len()),
            (&HeaderValue::from_static("sk-R/E+A L"), 0)
        );
    }

    #[test]
    fn what_goes_in_the_clear_gets_none() {
        let (mut parts, ()) = Request::builder()
            .header("x-a", P)
            .body(())
            .unwrap()
            .into_parts();
        let host = Host::parse("a.test").unwrap();
        let receiver = Receiver {
            host: &host,
            port: 80,
            is_tls: false,
        };
        let told = BoxSecrets::new(vec![key()])
            .put(&mut parts, receiver)
            .unwrap();
        assert_eq!(parts.headers["x-a"], P);
        assert_eq!(
            told[0].detail,
            "the secret key is not put into a request without TLS"
        );
    }

    #[test]
    fn a_head_can_t_be_made_endless() {
        let mut long = key();
        long.value = LiveSecret::new(SecretText::new("x".repeat(60 * 1024)));
        let (mut parts, ()) = Request::builder()
            .header("x-a", [P; 9].join(","))
            .body(())
            .unwrap()
            .into_parts();
        let host = Host::parse("a.test").unwrap();
        let receiver = Receiver {
            host: &host,
            port: 443,
            is_tls: true,
        };
        assert_eq!(
            BoxSecrets::new(vec![long]).put(&mut parts, receiver),
            Err(TooLong)
        );
    }
}
