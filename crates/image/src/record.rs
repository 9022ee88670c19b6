//! What is known of an image.

use crate::name::{Digest, ImageName};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What an image's maker wants to be run in it, and how. Wishes: a policy decides.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ImageConfig {
    /// Variables, in their order.
    pub env: Vec<(String, String)>,
    /// Where a program starts.
    pub workdir: Option<PathBuf>,
    /// As whom: a name or a number, perhaps with a group behind a colon.
    pub user: Option<String>,
    /// What every command begins with.
    pub entrypoint: Vec<String>,
    /// The command where none is given.
    pub cmd: Vec<String>,
}

/// What of a source is not in the tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LeftOut {
    /// Devices, sockets and named pipes.
    pub special_files: u64,
    /// Directories of a source on which another file system is mounted: they are there, and empty.
    pub mounts: u64,
    /// Files that had a set-user-id or set-group-id bit. They are there, without it.
    pub set_id_bits: u64,
}

/// The record that lies beside a tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// What the tree is known by: of an OCI image its manifest's digest, of an engine's its id, else that of what is in it.
    pub digest: Digest,
    /// Where it came from, for people.
    pub source: String,
    /// Bytes of its files.
    pub size: u64,
    /// Files, directories and links.
    pub entries: u64,
    /// What of the source is not there.
    pub left_out: LeftOut,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: u64,
    /// What its maker wants.
    pub config: ImageConfig,
}

/// What a name leads to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Naming {
    pub(crate) name: ImageName,
    pub(crate) digest: Digest,
    /// What the source looked like when the image was made of it: the same again, and nothing needs doing.
    pub(crate) key: String,
    /// When that was, in milliseconds since 1970.
    pub(crate) made_ms: u64,
}
