//! The means to read further kinds of documents the way policies are read: bounded, with positions, checked against a shape
//! that the JSON Schema is written from.

use std::sync::Arc;

use crate::error::ManifestError;
use crate::text::Text;
use crate::{toml_tree, yaml_tree};

pub use crate::capability_file::words;
pub use crate::contract_file::{CONTRACT, decode as decode_contract};
pub use crate::decode::{limit, number, replace, seconds, text, truth, unexpected, whole};
pub use crate::node::{Node, Problem, Span};
pub use crate::schema::document as schema;
pub use crate::shape::{Choice, Field, Object, Shape, field, required};

/// Reads a YAML document: `decode` turns its tree into a value, after it has checked the shape. `when_empty` is what to say of a
/// file with nothing in it.
///
/// # Errors
/// The first thing wrong with the file, with its place.
pub fn parse<T>(
    file_name: &str,
    bytes: &[u8],
    when_empty: &'static str,
    decode: impl FnOnce(&Node<'_>) -> Result<T, Problem>,
) -> Result<T, ManifestError> {
    let file: Arc<str> = Arc::from(file_name);
    let text = Text::read(&file, bytes)?;
    yaml_tree::parse(&text, when_empty)
        .and_then(|root| decode(&root))
        .map_err(|problem| problem.into_error(&file, &text))
}

/// The same for a TOML document.
///
/// # Errors
/// The first thing wrong with the file, with its place.
pub fn parse_toml<T>(
    file_name: &str,
    bytes: &[u8],
    when_empty: &'static str,
    decode: impl FnOnce(&Node<'_>) -> Result<T, Problem>,
) -> Result<T, ManifestError> {
    let file: Arc<str> = Arc::from(file_name);
    let text = Text::read(&file, bytes)?;
    toml_tree::parse(&text, when_empty)
        .and_then(|root| decode(&root))
        .map_err(|problem| problem.into_error(&file, &text))
}
