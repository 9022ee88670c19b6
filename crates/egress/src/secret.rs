//! Texts that must not be seen: they don't print, and leave no trace in freed memory.

use std::fmt;

use zeroize::Zeroizing;

/// A secret. It has no `Display`, no serialisation, and a `Debug` that says nothing.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretText(Zeroizing<String>);

impl SecretText {
    /// Takes a secret in.
    #[must_use]
    pub fn new(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretText(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_does_not_print() {
        let secret = SecretText::new("sk-real".to_owned());
        assert!(!format!("{secret:?} {:#?}", Some(&secret)).contains("sk-real"));
    }
}
