//! Texts that must not be seen: they don't print, and leave no trace in freed memory.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

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

/// A secret that may be replaced while requests are made with it. Copies are of the same secret.
#[derive(Clone, Debug)]
pub struct LiveSecret(Arc<RwLock<SecretValues>>);

#[derive(Debug)]
struct SecretValues {
    /// The newest last. A host may still send back what it got before.
    all: Vec<SecretText>,
    replaced: u64,
}

/// How many values are looked for in answers. Those before them are no good any more.
const REMEMBERED: usize = 8;

impl LiveSecret {
    /// Takes a secret in.
    #[must_use]
    pub fn new(text: SecretText) -> Self {
        Self(Arc::new(RwLock::new(SecretValues {
            all: vec![text],
            replaced: 0,
        })))
    }

    /// Has requests made with another value from now on.
    pub fn replace(&self, text: SecretText) {
        let mut values = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if values.all.last() == Some(&text) {
            return;
        }
        values.all.retain(|known| *known != text);
        values.all.push(text);
        if values.all.len() > REMEMBERED {
            values.all.remove(0);
        }
        values.replaced = values.replaced.saturating_add(1);
    }

    pub(crate) fn current(&self) -> SecretText {
        let values = self.0.read().unwrap_or_else(PoisonError::into_inner);
        // There is always one.
        let newest = values.all.last().cloned();
        newest.unwrap_or_else(|| SecretText::new(String::new()))
    }

    /// All that a host may have got.
    pub(crate) fn remembered(&self) -> Vec<SecretText> {
        let values = self.0.read().unwrap_or_else(PoisonError::into_inner);
        values.all.clone()
    }

    /// How often it was replaced.
    pub(crate) fn replaced(&self) -> u64 {
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .replaced
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_does_not_print() {
        let secret = SecretText::new("sk-real".to_owned());
        assert!(!format!("{secret:?} {:#?}", Some(&secret)).contains("sk-real"));
        assert!(!format!("{:?}", LiveSecret::new(secret)).contains("sk-real"));
    }

    #[test]
    fn a_secret_is_replaced_for_all_and_its_last_values_are_remembered() {
        let secret = LiveSecret::new(SecretText::new("0".to_owned()));
        let copy = secret.clone();
        for number in 1..20 {
            copy.replace(SecretText::new(number.to_string()));
            copy.replace(SecretText::new(number.to_string()));
        }
        assert_eq!(secret.current().expose(), "19");
        assert_eq!(secret.replaced(), 19);
        let remembered = secret.remembered();
        let remembered: Vec<_> = remembered.iter().map(SecretText::expose).collect();
        assert_eq!(remembered, ["12", "13", "14", "15", "16", "17", "18", "19"]);
    }
}
