//! Taking a host's secrets out of what it answers.
//!
//! A service that shows the request it got shows the secret that was put in. Wherever its value comes back, as it is or in
//! one of the forms in which such services write it, as many asterisks take its place: lengths stay what they were said to be.

use belljar_policy::SecretPlace;
use bytes::Bytes;
use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};
use zeroize::Zeroizing;

use super::secrets::HeaderSecret;
use crate::secret::SecretText;

/// What is shorter stands in too many places by chance.
const SHORTEST: usize = 6;
const MASK: u8 = b'*';

/// What to look for in the answers of one host.
pub(super) struct Needles {
    /// The longest first.
    all: Vec<Zeroizing<Vec<u8>>>,
    first: [bool; 256],
}

enum Step {
    Pass,
    Mask(usize),
    /// It may be the beginning of one: what follows decides.
    Wait,
}

impl Needles {
    /// `None` where there is nothing to look for.
    pub(super) fn of<'s>(secrets: impl Iterator<Item = &'s HeaderSecret>) -> Option<Self> {
        let mut all: Vec<Zeroizing<Vec<u8>>> = Vec::new();
        for secret in secrets {
            let values = secret.value.remembered();
            for form in values.iter().flat_map(|value| forms(secret, value)) {
                if form.len() >= SHORTEST && !all.contains(&form) {
                    all.push(form);
                }
            }
        }
        all.sort_by_key(|form| std::cmp::Reverse(form.len()));
        let mut first = [false; 256];
        for byte in all.iter().filter_map(|form| form.first()) {
            if let Some(is_first) = first.get_mut(usize::from(*byte)) {
                *is_first = true;
            }
        }
        (!all.is_empty()).then_some(Self { all, first })
    }

    fn step(&self, rest: &[u8], is_end: bool) -> Step {
        let begins = |byte: &u8| self.first.get(usize::from(*byte)).copied();
        if !rest.first().and_then(begins).unwrap_or(false) {
            return Step::Pass;
        }
        let mut masked = None;
        for form in &self.all {
            if rest.starts_with(form) {
                masked = masked.or(Some(form.len()));
            } else if !is_end && form.starts_with(rest) {
                return Step::Wait;
            }
        }
        masked.map_or(Step::Pass, Step::Mask)
    }

    /// Masks what is found; gives back from where on it must be seen again with what follows.
    pub(super) fn mask(&self, bytes: &mut [u8], is_end: bool) -> usize {
        let mut at = 0_usize;
        while let Some(rest) = bytes.get_mut(at..).filter(|rest| !rest.is_empty()) {
            let count = match self.step(rest, is_end) {
                Step::Pass => 1,
                Step::Wait => return at,
                Step::Mask(count) => {
                    rest.iter_mut().take(count).for_each(|byte| *byte = MASK);
                    count
                }
            };
            at = at.saturating_add(count);
        }
        bytes.len()
    }

    /// Whether there is nothing to be done about these bytes, whatever follows.
    fn is_clean(&self, bytes: &[u8]) -> bool {
        (0..bytes.len()).all(|at| {
            let rest = bytes.get(at..).unwrap_or_default();
            matches!(self.step(rest, false), Step::Pass)
        })
    }

    /// Masks the values of a head or of trailers. A name that holds one goes with its value.
    pub(super) fn mask_headers(&self, headers: &mut HeaderMap) {
        let lower: Vec<Vec<u8>> = self
            .all
            .iter()
            .map(|form| form.to_ascii_lowercase())
            .collect();
        let names: Vec<HeaderName> = headers.keys().cloned().collect();
        for name in names {
            let bytes = name.as_str().as_bytes();
            let holds = |form: &Vec<u8>| bytes.windows(form.len()).any(|part| part == form);
            if lower.iter().any(holds) {
                headers.remove(&name);
            }
        }
        for value in headers.values_mut() {
            let mut bytes = value.as_bytes().to_vec();
            self.mask(&mut bytes, true);
            if bytes != value.as_bytes() {
                // As many asterisks in a value make another value.
                *value = HeaderValue::from_bytes(&bytes).unwrap_or(HeaderValue::from_static("*"));
            }
        }
    }
}

/// A body on its way, with what may be the beginning of a secret held back.
pub(super) struct Redactor {
    needles: std::sync::Arc<Needles>,
    held: Vec<u8>,
}

impl Redactor {
    pub(super) fn new(needles: std::sync::Arc<Needles>) -> Self {
        Self {
            needles,
            held: Vec::new(),
        }
    }

    /// Whether nothing is held back.
    pub(super) fn is_idle(&self) -> bool {
        self.held.is_empty()
    }

    pub(super) fn needles(&self) -> &Needles {
        &self.needles
    }

    /// Takes a chunk; gives back what may go on.
    pub(super) fn push(&mut self, data: Bytes) -> Bytes {
        if self.held.is_empty() && self.needles.is_clean(&data) {
            return data;
        }
        let mut bytes = std::mem::take(&mut self.held);
        bytes.extend_from_slice(&data);
        let sure = self.needles.mask(&mut bytes, false);
        self.held = bytes.split_off(sure.min(bytes.len()));
        Bytes::from(bytes)
    }

    /// Nothing follows: gives back what was held.
    pub(super) fn finish(&mut self) -> Bytes {
        let mut bytes = std::mem::take(&mut self.held);
        self.needles.mask(&mut bytes, true);
        Bytes::from(bytes)
    }
}

/// The forms in which a secret comes back: as it is, within JSON, within an address, in base64; and what is in it when it is
/// itself a name and password in base64.
fn forms(secret: &HeaderSecret, value: &SecretText) -> Vec<Zeroizing<Vec<u8>>> {
    let value = value.expose();
    let mut plain: Vec<Zeroizing<String>> = vec![Zeroizing::new(value.to_owned())];
    let bare = value.trim();
    let scheme = bare.split_once(' ');
    // `Bearer …`, `Basic …`, `token …`: what counts is behind it.
    if let Some((_, credentials)) = scheme
        && secret.place != Some(SecretPlace::Bearer)
    {
        plain.push(Zeroizing::new(credentials.trim().to_owned()));
    }
    let is_basic = scheme.is_some_and(|(scheme, _)| scheme.eq_ignore_ascii_case("basic"));
    if is_basic && let Some((_, credentials)) = scheme {
        let decoded = data_encoding::BASE64.decode(credentials.trim().as_bytes());
        if let Some(pair) = decoded.ok().and_then(|bytes| String::from_utf8(bytes).ok()) {
            if let Some((_, password)) = pair.split_once(':') {
                plain.push(Zeroizing::new(password.to_owned()));
            }
            plain.push(Zeroizing::new(pair));
        }
    }
    plain.iter().flat_map(|text| written(text)).collect()
}

/// What stands for one character of a text.
type Escapes = &'static [(char, &'static str)];

/// What writers of JSON escape beside what they must. What is not ASCII is escaped by these, too.
const IN_JSON: [Escapes; 2] = [&[], &[('<', "\\u003c"), ('>', "\\u003e"), ('&', "\\u0026")]];

/// What writers of HTML escape, and how.
const IN_HTML: [Escapes; 5] = [
    &[
        ('&', "&amp;"),
        ('<', "&lt;"),
        ('>', "&gt;"),
        ('"', "&quot;"),
        ('\'', "&#x27;"),
    ],
    &[
        ('&', "&amp;"),
        ('<', "&lt;"),
        ('>', "&gt;"),
        ('"', "&quot;"),
        ('\'', "&#39;"),
    ],
    &[
        ('&', "&amp;"),
        ('<', "&lt;"),
        ('>', "&gt;"),
        ('"', "&quot;"),
        ('\'', "&#039;"),
    ],
    &[
        ('&', "&amp;"),
        ('<', "&lt;"),
        ('>', "&gt;"),
        ('"', "&#34;"),
        ('\'', "&#39;"),
        ('+', "&#43;"),
    ],
    &[
        ('&', "&amp;"),
        ('<', "&lt;"),
        ('>', "&gt;"),
        ('"', "&quot;"),
        ('\'', "&#39;"),
        ('/', "&#x2F;"),
        ('`', "&#x60;"),
        ('=', "&#x3D;"),
    ],
];

fn escaped(text: &str, table: Escapes, is_json: bool) -> Zeroizing<Vec<u8>> {
    let mut out = Zeroizing::new(Vec::new());
    let mut units = [0; 2];
    for char in text.chars() {
        let found = table.iter().find(|(known, _)| *known == char);
        match found {
            Some((_, instead)) => out.extend_from_slice(instead.as_bytes()),
            None if is_json && !char.is_ascii() => {
                for unit in char.encode_utf16(&mut units) {
                    out.extend_from_slice(format!("\\u{unit:04x}").as_bytes());
                }
            }
            None => out.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    out
}

/// How one text may be written.
fn written(text: &str) -> Vec<Zeroizing<Vec<u8>>> {
    let mut all = vec![Zeroizing::new(text.as_bytes().to_vec())];
    if text.len() < SHORTEST {
        return all;
    }
    if let Ok(quoted) = serde_json::to_string(text) {
        let inner = quoted.get(1..quoted.len().saturating_sub(1));
        let inner = inner.unwrap_or_default();
        all.push(Zeroizing::new(inner.as_bytes().to_vec()));
        all.push(Zeroizing::new(inner.replace('/', "\\/").into_bytes()));
        for table in IN_JSON {
            all.push(escaped(inner, table, true));
        }
    }
    for table in IN_HTML {
        all.push(escaped(text, table, false));
    }
    for encoding in [data_encoding::HEXLOWER, data_encoding::HEXUPPER] {
        all.push(Zeroizing::new(
            encoding.encode(text.as_bytes()).into_bytes(),
        ));
    }
    for spare in [&b"-._~"[..], &b"-._~+/=:@!$&'()*,;"[..]] {
        let mut upper = Vec::new();
        let mut lower = Vec::new();
        for byte in text.bytes() {
            if byte.is_ascii_alphanumeric() || spare.contains(&byte) {
                upper.push(byte);
                lower.push(byte);
            } else {
                upper.extend_from_slice(format!("%{byte:02X}").as_bytes());
                lower.extend_from_slice(format!("%{byte:02x}").as_bytes());
            }
        }
        all.push(Zeroizing::new(upper));
        all.push(Zeroizing::new(lower));
    }
    for encoding in [data_encoding::BASE64_NOPAD, data_encoding::BASE64URL_NOPAD] {
        // Wherever in a longer text it stands: what depends on its neighbours is left out.
        for before in 0..3_usize {
            let mut bytes = Zeroizing::new(vec![0; before]);
            bytes.extend_from_slice(text.as_bytes());
            let encoded = Zeroizing::new(encoding.encode(&bytes).into_bytes());
            let front = [0, 2, 3].get(before).copied().unwrap_or(0);
            let rear = usize::from(!bytes.len().is_multiple_of(3));
            let end = encoded.len().saturating_sub(rear);
            let inner = encoded.get(front..end).unwrap_or_default();
            all.push(Zeroizing::new(inner.to_vec()));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn needles(value: &str) -> Arc<Needles> {
        let mut secret = HeaderSecret::of_test("key", "a.test", value);
        secret.place = Some(SecretPlace::Header("authorization".to_owned()));
        Arc::new(Needles::of([secret].iter()).unwrap())
    }

    /// What comes out when it comes in pieces cut at these places.
    fn passed(needles: &Arc<Needles>, text: &[u8], cuts: &[usize]) -> Vec<u8> {
        let mut redactor = Redactor::new(Arc::clone(needles));
        let (mut out, mut from) = (Vec::new(), 0);
        for cut in cuts.iter().copied().chain([text.len()]) {
            out.extend(redactor.push(Bytes::copy_from_slice(&text[from..cut])));
            from = cut;
        }
        out.extend(redactor.finish());
        out
    }

    #[test]
    fn a_secret_is_masked_however_it_is_cut_and_written() {
        let value = "sk-\"a/b+c d=\u{e9}1";
        let needles = needles(value);
        let b64 = |before: &str| {
            data_encoding::BASE64.encode(format!("{before}{value}, and so on").as_bytes())
        };
        let forms = [
            value.to_owned(),
            serde_json::to_string(value).unwrap(),
            serde_json::to_string(value).unwrap().replace('/', "\\/"),
            "sk-%22a%2Fb%2Bc%20d%3D%C3%A91".to_owned(),
            "sk-%22a/b+c%20d=%c3%a91".to_owned(),
            b64(""),
            b64("x"),
            b64("xy"),
            "sk-\\\"a/b+c d=\\u00e91".to_owned(),
            "sk-&quot;a/b+c d=\u{e9}1".to_owned(),
            "sk-&#34;a/b&#43;c d=\u{e9}1".to_owned(),
            "sk-&quot;a&#x2F;b+c d&#x3D;\u{e9}1".to_owned(),
            data_encoding::HEXLOWER.encode(value.as_bytes()),
            data_encoding::HEXUPPER.encode(value.as_bytes()),
        ];
        for form in forms {
            let text = format!("sk-sk-{form} sk- tail s");
            let whole = passed(&needles, text.as_bytes(), &[]);
            assert_eq!(whole.len(), text.len(), "{form}");
            let count = whole.iter().filter(|byte| **byte == MASK).count();
            assert!(count >= value.len(), "{form}");
            for one in 0..text.len() {
                let two = (one + 3).min(text.len());
                assert_eq!(
                    passed(&needles, text.as_bytes(), &[one, two]),
                    whole,
                    "{form} {one}"
                );
            }
        }
    }

    #[test]
    fn the_parts_of_a_name_and_password_are_secret_too() {
        let pair = data_encoding::BASE64.encode(b"user:hunter2hunter2");
        let needles = needles(&format!("Basic {pair}"));
        for text in [pair.as_str(), "hunter2hunter2"] {
            let out = passed(&needles, format!("<{text}>").as_bytes(), &[]);
            assert_eq!(out, format!("<{}>", "*".repeat(text.len())).as_bytes());
        }
    }

    #[test]
    fn what_is_none_passes_at_once() {
        let needles = needles("sk-secret-value");
        let mut redactor = Redactor::new(needles);
        assert_eq!(
            redactor.push(Bytes::from_static(b"data: sk-s\n\n")),
            "data: sk-s\n\n"
        );
        assert!(redactor.is_idle());
        assert_eq!(redactor.push(Bytes::from_static(b"sk-sec")), "");
        assert_eq!(redactor.push(Bytes::from_static(b"ond")), "sk-second");
    }

    #[test]
    fn heads_are_masked_with_their_names() {
        let needles = needles("sk-secret-value");
        let mut headers = HeaderMap::new();
        headers.insert(
            "x-echo",
            HeaderValue::from_static("Bearer sk-secret-value;"),
        );
        headers.insert("x-sk-secret-value", HeaderValue::from_static("1"));
        needles.mask_headers(&mut headers);
        assert_eq!(headers.len(), 1);
        assert_eq!(headers["x-echo"], "Bearer ***************;");
    }
}
