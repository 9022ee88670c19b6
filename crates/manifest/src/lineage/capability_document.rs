//! A capability as a document that can be signed, compared by its digest, and read back.

use std::fmt;
use std::sync::Arc;

use belljar_policy::{Capability, Places};
use serde_json::value::RawValue;

use super::capability_wire::CapabilityWire;
use super::ids::Digest;

/// A capability and the places its rules are relative to, in the one spelling they have.
///
/// The places belong to it: `./src` below another working directory is another power.
#[derive(Clone)]
pub struct CapabilityDocument {
    text: Arc<RawValue>,
    digest: Digest,
    capability: Arc<Capability>,
    places: Arc<Places>,
}

/// Why a capability has no document, or a text is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unrepresentable {
    /// A path that is not UTF-8, not normal, or not absolute where it should be.
    #[error("a path of the capability can't be written in a manifest")]
    Path,
    /// A rule that no policy file could say.
    #[error("a rule of the capability can't be written in a manifest")]
    Rule,
    /// A number that is not finite, negative, or too large.
    #[error("a number of the capability can't be written in a manifest")]
    Number,
    /// A set out of order.
    #[error("a set of the capability is not in order")]
    Order,
    /// It would read back as something else.
    #[error("the capability would not read back as it is")]
    NotTheSame,
    /// Not a capability document, or not in its one spelling.
    #[error("not a capability document in its one spelling")]
    Text,
}

impl CapabilityDocument {
    /// The document of a capability at these places. Make it once and clone it: a clone is cheap.
    ///
    /// # Errors
    /// When the document would not mean the same.
    pub fn new(capability: &Capability, places: &Places) -> Result<Self, Unrepresentable> {
        let wire = CapabilityWire::of(capability, places)?;
        let text = serde_json::value::to_raw_value(&wire).map_err(|_| Unrepresentable::Text)?;
        let document = Self::read(text)?;
        // What is signed must be what was meant, whatever the capability holds.
        if *document.capability == *capability && *document.places == *places {
            Ok(document)
        } else {
            Err(Unrepresentable::NotTheSame)
        }
    }

    /// Reads a document's text back, if it is in its one spelling.
    ///
    /// # Errors
    /// When it is none.
    pub fn parse(text: &str) -> Result<Self, Unrepresentable> {
        let raw = RawValue::from_string(text.to_owned()).map_err(|_| Unrepresentable::Text)?;
        Self::read(raw)
    }

    /// Reads a document back, if it is in its one spelling.
    pub(super) fn read(text: Box<RawValue>) -> Result<Self, Unrepresentable> {
        let wire: CapabilityWire =
            serde_json::from_str(text.get()).map_err(|_| Unrepresentable::Text)?;
        let again = serde_json::to_vec(&wire).map_err(|_| Unrepresentable::Text)?;
        if again != text.get().as_bytes() {
            return Err(Unrepresentable::Text);
        }
        let (capability, places) = wire.capability()?;
        Ok(Self {
            digest: Digest::of(&again),
            text: Arc::from(text),
            capability: Arc::new(capability),
            places: Arc::new(places),
        })
    }

    /// The digest of its text: equal for equal documents only.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// The capability it says.
    #[must_use]
    pub fn capability(&self) -> &Capability {
        &self.capability
    }

    /// The places its rules are relative to.
    #[must_use]
    pub fn places(&self) -> &Places {
        &self.places
    }

    /// Its text: JSON.
    #[must_use]
    pub fn text(&self) -> &str {
        self.text.get()
    }

    pub(super) fn raw(&self) -> &RawValue {
        &self.text
    }
}

impl PartialEq for CapabilityDocument {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl Eq for CapabilityDocument {}

impl fmt::Debug for CapabilityDocument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CapabilityDocument({})", self.digest)
    }
}
