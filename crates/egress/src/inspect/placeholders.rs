//! Placeholders in the head of a request, and what takes their place.
//!
//! An agent chooses where it puts a placeholder, so the secret goes only where hosts read credentials: not into what they are
//! sent to keep or to show. Whoever could have a key written into a paste, a commit or the name of an object could fetch it there.

use belljar_policy::SecretPlace;
use hyper::Uri;
use hyper::header::{HeaderName, HeaderValue};
use hyper::http::request::Parts;
use zeroize::Zeroizing;

use super::secrets::HeaderSecret;
use crate::secret::{LiveSecret, SecretText};

/// What secrets may add to a head: an agent can name them many times.
const MOST_ADDED: usize = 128 * 1024;

/// Parameters of a query in which hosts take keys. In any other, a key could become what a host stores.
const KEY_PARAMETERS: [&str; 16] = [
    "access_key",
    "access_token",
    "api-key",
    "api_key",
    "api_token",
    "apikey",
    "app_key",
    "appid",
    "auth",
    "auth_token",
    "authtoken",
    "job_token",
    "key",
    "private_token",
    "subscription-key",
    "token",
];

/// Headers that hosts keep with what is sent, or write into logs that others read.
const KEPT_HEADERS: [&str; 8] = [
    "cache-control",
    "expires",
    "from",
    "origin",
    "referer",
    "slug",
    "user-agent",
    "via",
];

/// The secrets don't fit in the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooLong;

/// One placeholder.
pub(super) struct Entry<'a> {
    pub(super) placeholder: &'a str,
    /// The first secret that it stands for.
    pub(super) owner: &'a HeaderSecret,
    /// What takes its place; nothing does where the receiver gets none of its secrets.
    pub(super) value: Option<&'a LiveSecret>,
}

/// The placeholders of a box, looked for in one request.
pub(super) struct Head<'a> {
    /// The longest first: one may be the beginning of another.
    entries: Vec<Entry<'a>>,
    added: usize,
    others: Vec<&'a HeaderSecret>,
}

type Text = Zeroizing<Vec<u8>>;

impl<'a> Head<'a> {
    pub(super) fn new(mut entries: Vec<Entry<'a>>) -> Self {
        entries.retain(|entry| !entry.placeholder.is_empty());
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.placeholder.len()));
        Self {
            entries,
            added: 0,
            others: Vec::new(),
        }
    }

    /// Secrets whose placeholders stood in the request, and that its receiver doesn't get.
    pub(super) fn others(&self) -> impl Iterator<Item = &'a HeaderSecret> + '_ {
        self.others.iter().copied()
    }

    /// Replaces them wherever a host reads credentials.
    pub(super) fn replace(&mut self, parts: &mut Parts) -> Result<(), TooLong> {
        if self.entries.is_empty() {
            return Ok(());
        }
        for (name, value) in &mut parts.headers {
            if !may_hold_a_secret(name) {
                continue;
            }
            // A secret may be a name and password in base64 itself, so the value is looked at as it is first.
            let mut replaced = self.within(value.as_bytes())?;
            if replaced.is_none()
                && let Some((scheme, pair)) = basic(value.as_bytes())
            {
                replaced = self.within(&pair)?.map(|pair| encode(scheme, &pair));
            }
            if let Some(text) = replaced {
                let mut fresh = HeaderValue::from_bytes(&text).map_err(|_| TooLong)?;
                fresh.set_sensitive(true);
                *value = fresh;
            }
        }
        if let Some(uri) = self.query(&parts.uri)? {
            parts.uri = uri;
        }
        Ok(())
    }

    /// A text with its placeholders replaced; `None` when it stays what it was.
    fn within(&mut self, text: &[u8]) -> Result<Option<Text>, TooLong> {
        let mut out = Text::default();
        let (mut at, mut from) = (0_usize, 0_usize);
        while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
            let Some((length, value)) = self.step(rest) else {
                at = at.saturating_add(1);
                continue;
            };
            let end = at.saturating_add(length);
            if let Some(value) = value {
                self.count(&value)?;
                out.extend_from_slice(text.get(from..at).unwrap_or_default());
                out.extend_from_slice(value.expose().as_bytes());
                from = end;
            }
            at = end;
        }
        if from == 0 {
            return Ok(None);
        }
        out.extend_from_slice(text.get(from..).unwrap_or_default());
        Ok(Some(out))
    }

    /// The placeholder that a text begins with: how long it is, and what takes its place.
    fn step(&mut self, rest: &[u8]) -> Option<(usize, Option<SecretText>)> {
        let is_whole = |placeholder: &str| {
            let behind = rest.strip_prefix(placeholder.as_bytes());
            // A longer name is another secret's, if anybody's.
            let goes_on = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-.".contains(byte);
            behind.is_some_and(|behind| !behind.first().is_some_and(goes_on))
        };
        let found = self
            .entries
            .iter()
            .find(|entry| is_whole(entry.placeholder))?;
        let (length, value, owner) = (found.placeholder.len(), found.value, found.owner);
        if value.is_none() && !self.others.iter().any(|other| std::ptr::eq(*other, owner)) {
            self.others.push(owner);
        }
        Some((length, value.map(LiveSecret::current)))
    }

    fn count(&mut self, value: &SecretText) -> Result<(), TooLong> {
        self.added = self.added.saturating_add(value.expose().len());
        if self.added > MOST_ADDED {
            return Err(TooLong);
        }
        Ok(())
    }

    /// The address with the keys in its query; `None` when it stays what it was.
    fn query(&mut self, uri: &Uri) -> Result<Option<Uri>, TooLong> {
        let Some(query) = uri.query() else {
            return Ok(None);
        };
        let mut fresh = Zeroizing::new(String::new());
        let mut is_fresh = false;
        for (index, pair) in query.split('&').enumerate() {
            if index > 0 {
                fresh.push('&');
            }
            let value = match pair.split_once('=') {
                Some((name, value)) => self.parameter(name, value)?.map(|value| (name, value)),
                None => None,
            };
            match value {
                Some((name, value)) => {
                    is_fresh = true;
                    fresh.push_str(name);
                    fresh.push('=');
                    fresh.push_str(&value);
                }
                None => fresh.push_str(pair),
            }
        }
        if !is_fresh {
            return Ok(None);
        }
        let whole = Zeroizing::new(format!("{}?{}", uri.path(), *fresh));
        let mut parts = uri.clone().into_parts();
        parts.path_and_query = Some(whole.parse().map_err(|_| TooLong)?);
        Uri::from_parts(parts).map(Some).map_err(|_| TooLong)
    }

    /// What takes the place of a parameter's value, which must be a placeholder and nothing else.
    fn parameter(&mut self, name: &str, value: &str) -> Result<Option<Zeroizing<String>>, TooLong> {
        let decoded = unescape(value);
        let Some((length, secret)) = self.step(&decoded) else {
            return Ok(None);
        };
        let name = unescape(name).to_ascii_lowercase();
        let is_for_keys = KEY_PARAMETERS.iter().any(|it| it.as_bytes() == name);
        match secret {
            Some(secret) if is_for_keys && length == decoded.len() => {
                self.count(&secret)?;
                Ok(Some(escape(secret.expose())))
            }
            _ => Ok(None),
        }
    }
}

/// Whether a host reads credentials from a header of this name.
fn may_hold_a_secret(name: &HeaderName) -> bool {
    let name = name.as_str();
    let describes = name.starts_with("content-") || name.contains("-meta-");
    // Those that frame a request or route it hold no secret in a policy either.
    SecretPlace::header(name).is_ok() && !describes && !KEPT_HEADERS.contains(&name)
}

/// The scheme as it was written, and the name and password.
fn basic(value: &[u8]) -> Option<(&[u8], Text)> {
    let (scheme, rest) = value.split_at_checked(b"basic ".len())?;
    if !scheme.eq_ignore_ascii_case(b"basic ") {
        return None;
    }
    let credentials = rest.trim_ascii();
    let bare: &[u8] = match credentials {
        [front @ .., b'=', b'='] | [front @ .., b'='] => front,
        whole => whole,
    };
    [data_encoding::BASE64_NOPAD, data_encoding::BASE64URL_NOPAD]
        .iter()
        .find_map(|encoding| encoding.decode(bare).ok())
        .map(|pair| (scheme, Zeroizing::new(pair)))
}

fn encode(scheme: &[u8], pair: &[u8]) -> Text {
    let encoded = Zeroizing::new(data_encoding::BASE64.encode(pair));
    Zeroizing::new([scheme, encoded.as_bytes()].concat())
}

/// A part of a query as it is meant. What is no escape stays as it is.
fn unescape(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [byte, behind @ ..] = rest {
        rest = behind;
        let digit = |byte: u8| char::from(byte).to_digit(16);
        match (*byte, behind) {
            (b'%', [high, low, behind @ ..]) => match (digit(*high), digit(*low)) {
                (Some(high), Some(low)) => {
                    // Two digits are a byte.
                    out.push(u8::try_from(high * 16 + low).unwrap_or_default());
                    rest = behind;
                }
                _ => out.push(*byte),
            },
            _ => out.push(*byte),
        }
    }
    out
}

/// A text as a query has it.
fn escape(text: &str) -> Zeroizing<String> {
    let mut out = Zeroizing::new(String::new());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}
