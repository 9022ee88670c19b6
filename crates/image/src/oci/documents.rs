//! The documents of OCI images, and Docker's, which have the same shape: as much of them as is used.

use crate::name::Digest;
use crate::record::ImageConfig;
use serde::Deserialize;
use std::collections::BTreeMap;

const INDEX: [&str; 2] = [
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
];
const MANIFEST: [&str; 2] = [
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
];
/// What names an image in an index: the reference, or all of it, as containerd writes it.
const REFERENCES: [&str; 2] = [
    "org.opencontainers.image.ref.name",
    "io.containerd.image.name",
];

/// What a descriptor leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Index,
    Manifest,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Descriptor {
    #[serde(default)]
    pub(super) media_type: String,
    pub(super) digest: Digest,
    pub(super) size: u64,
    pub(super) platform: Option<Platform>,
    #[serde(default)]
    pub(super) annotations: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Platform {
    pub(super) os: String,
    pub(super) architecture: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Index {
    pub(super) manifests: Vec<Descriptor>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Manifest {
    pub(super) config: Descriptor,
    pub(super) layers: Vec<Descriptor>,
}

/// An image's configuration.
#[derive(Debug, Deserialize)]
pub(crate) struct Configuration {
    #[serde(default)]
    pub(crate) os: String,
    #[serde(default)]
    pub(crate) architecture: String,
    #[serde(default)]
    config: Option<Wishes>,
    pub(crate) rootfs: RootFs,
}

#[derive(Debug, Deserialize)]
pub(crate) struct RootFs {
    #[serde(default)]
    pub(crate) diff_ids: Vec<Digest>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Wishes {
    env: Option<Vec<String>>,
    working_dir: Option<String>,
    user: Option<String>,
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
}

impl Descriptor {
    pub(super) fn kind(&self) -> Option<Kind> {
        let media_type = self.media_type.as_str();
        if INDEX.contains(&media_type) {
            Some(Kind::Index)
        } else if MANIFEST.contains(&media_type) {
            Some(Kind::Manifest)
        } else {
            None
        }
    }

    /// What people call it.
    pub(super) fn references(&self) -> impl Iterator<Item = &str> {
        let named = REFERENCES
            .iter()
            .filter_map(|key| self.annotations.get(*key));
        named.map(String::as_str)
    }
}

impl Platform {
    /// Whether this machine runs it.
    pub(super) fn is_ours(&self) -> bool {
        self.os == "linux" && self.architecture == our_architecture()
    }
}

impl Configuration {
    /// Whether this machine runs it. What does not say is taken at its word.
    pub(crate) fn is_ours(&self) -> bool {
        let fits = |said: &str, ours: &str| said.is_empty() || said == ours;
        fits(&self.os, "linux") && fits(&self.architecture, our_architecture())
    }

    /// What the image's maker wants.
    pub(crate) fn wishes(self) -> ImageConfig {
        let wishes = self.config.unwrap_or_default();
        let pair = |text: String| match text.split_once('=') {
            Some((name, value)) => (name.to_owned(), value.to_owned()),
            None => (text, String::new()),
        };
        let filled = |text: &String| !text.is_empty();
        ImageConfig {
            env: wishes
                .env
                .unwrap_or_default()
                .into_iter()
                .map(pair)
                .collect(),
            workdir: wishes.working_dir.filter(filled).map(Into::into),
            user: wishes.user.filter(filled),
            entrypoint: wishes.entrypoint.unwrap_or_default(),
            cmd: wishes.cmd.unwrap_or_default(),
        }
    }
}

/// This machine's, by the name that images use.
pub(crate) fn our_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "powerpc64" if cfg!(target_endian = "little") => "ppc64le",
        "loongarch64" => "loong64",
        other => other,
    }
}
