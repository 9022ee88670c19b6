//! Files into policy: `capability.yaml` and `sandbox.toml` become a [`Capability`], `contract.yaml` a [`Contract`].
//! Papers of workers: [`keys`] to sign them with, and the signed [`lineage`] manifests themselves.
//!
//! A document is read under bounds, turned into one tree with positions, checked against a static
//! `Shape`, and only then decoded. The same shape generates the JSON Schema, so what
//! an editor accepts and what Belljar accepts can't drift apart.

mod capability_file;
pub mod carry;
mod contract_file;
mod decode;
pub mod document;
pub mod draft;
mod egress_section;
mod error;
pub mod keys;
pub mod lineage;
mod mcp_arguments;
mod mcp_section;
mod network_section;
mod node;
mod profiles;
mod sandbox_file;
mod schema;
mod secrets_section;
mod shape;
mod supervisor_file;
mod text;
mod text_form;
mod toml_tree;
mod yaml_tree;

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use belljar_policy::{Capability, Contract, Source};

pub use contract_file::MAX_GENERATIONS;
pub use error::{Colour, ManifestError, ReadError};
pub use profiles::{PROFILES, profile, profile_source};
pub use schema::{
    schema_agent, schema_capability, schema_contract, schema_sandbox_toml, schema_supervisor,
};
pub use supervisor_file::{ApiTable, DeclaredAgent, DeclaredRestart, SupervisorFile, WebTable};
pub use text::MAX_FILE_BYTES;

use text::Text;

/// Reads a capability file from its bytes. The format goes by the extension: `.yaml`, `.yml` and
/// `.json` are YAML, `.toml` is TOML; anything else is told by its first line.
///
/// # Errors
/// The first thing wrong with the file, with its place.
pub fn parse_capability(file_name: &str, bytes: &[u8]) -> Result<Capability, ManifestError> {
    parse_as(file_name, bytes, Source::Document)
}

/// Reads a capability file from the disk, and never more of it than a capability file may hold.
///
/// # Errors
/// When the file can't be read, or the first thing wrong with it.
pub fn read_capability_file(path: &Path) -> Result<Capability, ReadError> {
    let name = path.display().to_string();
    let bytes = read_bounded(path, &name)?;
    Ok(parse_capability(&name, &bytes)?)
}

/// Reads a replication contract from its bytes: YAML, or JSON, which is YAML too.
///
/// # Errors
/// The first thing wrong with the file, with its place.
pub fn parse_contract(file_name: &str, bytes: &[u8]) -> Result<Contract, ManifestError> {
    let file: Arc<str> = Arc::from(file_name);
    let text = Text::read(&file, bytes)?;
    yaml_tree::parse(&text, contract_file::WHEN_EMPTY)
        .and_then(|root| contract_file::decode(&root, &file))
        .map_err(|problem| problem.into_error(&file, &text))
}

/// Reads a replication contract from the disk, and never more of it than a policy file may hold.
///
/// # Errors
/// When the file can't be read, or the first thing wrong with it.
pub fn read_contract_file(path: &Path) -> Result<Contract, ReadError> {
    let name = path.display().to_string();
    let bytes = read_bounded(path, &name)?;
    Ok(parse_contract(&name, &bytes)?)
}

/// Reads a supervisor.toml from its bytes.
///
/// # Errors
/// The first thing wrong with the file, with its place.
pub fn parse_supervisor(file_name: &str, bytes: &[u8]) -> Result<SupervisorFile, ManifestError> {
    document::parse_toml(
        file_name,
        bytes,
        supervisor_file::WHEN_EMPTY,
        supervisor_file::decode,
    )
}

/// Reads a supervisor.toml from the disk.
///
/// # Errors
/// When the file can't be read, or the first thing wrong with it.
pub fn read_supervisor_file(path: &Path) -> Result<SupervisorFile, ReadError> {
    let name = path.display().to_string();
    let bytes = read_bounded(path, &name)?;
    Ok(parse_supervisor(&name, &bytes)?)
}

/// Reads an agent.toml from the disk.
///
/// # Errors
/// When the file can't be read, or the first thing wrong with it.
pub fn read_agent_file(path: &Path) -> Result<DeclaredAgent, ReadError> {
    let name = path.display().to_string();
    let bytes = read_bounded(path, &name)?;
    Ok(document::parse_toml(
        &name,
        &bytes,
        supervisor_file::WHEN_AGENT_EMPTY,
        supervisor_file::decode_agent_file,
    )?)
}

/// Reads a file from the disk, and never more of it than a policy file may hold.
///
/// # Errors
/// When it can't be read or is no regular file.
pub fn read_bounded(path: &Path, name: &str) -> Result<Vec<u8>, ReadError> {
    let failed = |source| ReadError::Io {
        file: name.to_owned(),
        source,
    };
    // A pipe or a device might never end, or never begin.
    if !std::fs::metadata(path).map_err(failed)?.is_file() {
        return Err(failed(std::io::Error::other("not a regular file")));
    }
    let file = File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    // One byte beyond the bound is enough to know that the file is too large.
    let most = u64::try_from(MAX_FILE_BYTES)
        .unwrap_or(u64::MAX)
        .saturating_add(1);
    file.take(most).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

pub(crate) fn parse_as(
    file_name: &str,
    bytes: &[u8],
    source: Source,
) -> Result<Capability, ManifestError> {
    let file: Arc<str> = Arc::from(file_name);
    let text = Text::read(&file, bytes)?;
    let decoded = match format_of(file_name, &text) {
        Format::Yaml => yaml_tree::parse(&text, capability_file::WHEN_EMPTY)
            .and_then(|root| capability_file::decode(&root, &file, source)),
        Format::Toml => toml_tree::parse(&text, sandbox_file::WHEN_EMPTY)
            .and_then(|root| sandbox_file::decode(&root, &file, source)),
    };
    decoded.map_err(|problem| problem.into_error(&file, &text))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Yaml,
    Toml,
}

fn format_of(file_name: &str, text: &Text<'_>) -> Format {
    match Path::new(file_name)
        .extension()
        .and_then(|extension| extension.to_str())
    {
        Some("yaml" | "yml" | "json") => Format::Yaml,
        Some("toml") => Format::Toml,
        _ => format_by_looking(text.as_str()),
    }
}

/// The first line that says anything: `[table]` or `key = value` is TOML.
fn format_by_looking(text: &str) -> Format {
    let mut lines = text.lines().map(str::trim);
    let first = lines
        .find(|line| !line.is_empty() && !line.starts_with('#'))
        .unwrap_or_default();
    let key = first.split([':', '=']).next().unwrap_or_default();
    let assigns = first[key.len()..].starts_with('=');
    if assigns || first.starts_with('[') {
        Format::Toml
    } else {
        Format::Yaml
    }
}
