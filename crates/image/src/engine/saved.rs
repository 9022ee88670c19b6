//! What an engine saves: an archive with a manifest, a configuration and layers, in whatever order.

use crate::bounds::MOST_DOCUMENT;
use crate::build::Unpacked;
use crate::disk::read_bounded;
use crate::error::ImageError;
use crate::layer::{self, Expected};
use crate::name::Digest;
use crate::oci::documents::Configuration;
use crate::oci::{Layout, check, open_plain, parse};
use crate::tree::Tree;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, ResolveFlags};
use serde::Deserialize;
use std::path::Path;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    layers: Vec<String>,
}

/// Unpacks the saved image in this directory, which must be the one of that id. The id is the digest of the image's configuration, and that
/// has the digests of the layers; with containerd's store it is that of a manifest or an index of an OCI layout.
pub(super) fn unpack(saved: &Path, id: &Digest, tree: &mut Tree) -> Result<Unpacked, ImageError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(saved, flags, Mode::empty())
        .map_err(|errno| ImageError::store(saved)(errno.into()))?;
    if let Ok(bytes) = document(&root, "manifest.json") {
        let images: Vec<Saved> = parse("the engine's manifest", &bytes)?;
        let [image] = images.as_slice() else {
            let what = format!("the engine saved {} images", images.len());
            return Err(ImageError::refused(what, "name one image"));
        };
        let bytes = document(&root, &image.config)?;
        if Digest::of(&bytes) == *id {
            return unpack_layers(&root, image, &bytes, id, tree);
        }
    }
    let layout = Layout::open(saved).map_err(|_| ImageError::Corrupt {
        what: "what the engine saved".into(),
        named: id.to_string(),
        found: "another image".into(),
    })?;
    let chosen = layout.choose(Some(id.as_str()))?;
    layout.unpack(&chosen, tree)
}

fn unpack_layers(
    root: &OwnedFd,
    image: &Saved,
    configuration: &[u8],
    id: &Digest,
    tree: &mut Tree,
) -> Result<Unpacked, ImageError> {
    let configuration: Configuration = parse("the image's configuration", configuration)?;
    check(&configuration, image.layers.len())?;
    for (path, diff) in image.layers.iter().zip(&configuration.rootfs.diff_ids) {
        // Engines save a layer that comes twice as a link to the first. It can lead nowhere else.
        let blob = open_plain(root, path, ResolveFlags::empty())?;
        let expected = Expected {
            what: format!("layer {}", diff.short()),
            blob: None,
            diff: Some(diff),
        };
        layer::apply(tree, blob, &expected)?;
    }
    Ok(Unpacked {
        digest: id.clone(),
        config: configuration.wishes(),
    })
}

fn document(root: &OwnedFd, path: &str) -> Result<Vec<u8>, ImageError> {
    let file = open_plain(root, path, ResolveFlags::NO_SYMLINKS)?;
    read_bounded(file, MOST_DOCUMENT).map_err(ImageError::read(path))
}
