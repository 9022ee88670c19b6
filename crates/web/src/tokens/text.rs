//! The secret itself.

use std::fmt;
use std::io;

use data_encoding::BASE64URL_NOPAD;
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use super::TokenError;

/// The SHA-256 of a secret.
pub(crate) type Digest = [u8; 32];

/// A token's text: `bj_` and 256 random bits. It does not print, and is wiped from memory when it is dropped.
pub struct TokenText(Zeroizing<String>);

impl TokenText {
    const PREFIX: &str = "bj_";
    const BYTES: usize = 32;

    pub(crate) fn fresh() -> Result<Self, TokenError> {
        let secret = Zeroizing::new(random::<{ Self::BYTES }>()?);
        let mut text = Zeroizing::new(String::with_capacity(64));
        text.push_str(Self::PREFIX);
        BASE64URL_NOPAD.encode_append(&*secret, &mut text);
        Ok(Self(text))
    }

    /// Takes a text that has the form of a token. There is one spelling of each.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let secret = text.strip_prefix(Self::PREFIX)?;
        let bytes = Zeroizing::new(BASE64URL_NOPAD.decode(secret.as_bytes()).ok()?);
        (bytes.len() == Self::BYTES).then(|| Self(Zeroizing::new(text.to_owned())))
    }

    /// The secret, for the one place where its owner is shown it.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    pub(crate) fn digest(&self) -> Digest {
        digest(self.0.as_bytes())
    }
}

impl fmt::Debug for TokenText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenText(…)")
    }
}

pub(crate) fn digest(bytes: &[u8]) -> Digest {
    Sha256::digest(bytes).into()
}

/// Bytes that nobody can guess, from the kernel.
pub(crate) fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        let rest = bytes.get_mut(filled..).unwrap_or_default();
        filled += rustix::rand::getrandom(rest, rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_has_one_spelling_and_does_not_print() {
        let text = TokenText::fresh().expect("randomness");
        assert_eq!(text.reveal().len(), 46);
        assert_eq!(format!("{text:?}"), "TokenText(…)");
        let again = TokenText::parse(text.reveal()).expect("its own text");
        assert_eq!(again.digest(), text.digest());
        let good = text.reveal();
        let longer = format!("{good}A");
        let padded = format!("{good}=");
        let spaced = format!(" {good}");
        for bad in [
            "",
            "bj_",
            &good[3..],
            &good[..45],
            &longer,
            &padded,
            &spaced,
        ] {
            assert!(TokenText::parse(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn no_two_tokens_are_the_same() {
        let one = TokenText::fresh().expect("randomness");
        let other = TokenText::fresh().expect("randomness");
        assert_ne!(one.reveal(), other.reveal());
    }
}
