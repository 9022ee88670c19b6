//! OCI image layouts on disk. Every blob is what its digest says, or nothing of the image is kept.

pub(crate) mod documents;

use crate::bounds::{Bounds, MOST_DOCUMENT};
use crate::build::Unpacked;
use crate::disk::read_bounded;
use crate::error::ImageError;
use crate::layer::{self, Expected};
use crate::name::Digest;
use crate::tree::Tree;
use documents::{Configuration, Descriptor, Index, Kind, Manifest, our_architecture};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, ResolveFlags};
use serde::de::DeserializeOwned;
use std::fs::File;
use std::path::Path;

/// Indexes in indexes.
const MOST_NESTED: usize = 4;
const NOT_A_LAYOUT: &str = "an OCI layout is a directory with `oci-layout`, `index.json` and `blobs/`; `skopeo copy … oci:DIR` makes one";

/// A layout.
pub(crate) struct Layout {
    root: OwnedFd,
}

/// An image in a layout: its manifest, which was read and is what its digest says.
pub(crate) struct Chosen {
    pub(crate) digest: Digest,
    manifest: Manifest,
}

impl Layout {
    pub(crate) fn open(path: &Path) -> Result<Self, ImageError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty())
            .map_err(|errno| ImageError::read(path.display().to_string())(errno.into()))?;
        let layout = Self { root };
        if layout.file("oci-layout").is_err() {
            let what = format!("{} is not an OCI layout", path.display());
            return Err(ImageError::refused(what, NOT_A_LAYOUT));
        }
        Ok(layout)
    }

    /// The image of that reference or digest, for this machine; without one, the only image there is.
    pub(crate) fn choose(&self, reference: Option<&str>) -> Result<Chosen, ImageError> {
        let bytes = read_bounded(self.file("index.json")?, MOST_DOCUMENT)
            .map_err(ImageError::read("index.json"))?;
        let index: Index = parse("index.json", &bytes)?;
        let mut candidates = index.manifests;
        if let Some(reference) = reference {
            let known = references(&candidates);
            candidates.retain(|it| {
                it.digest.is_meant_by(reference) || it.references().any(|name| name == reference)
            });
            if candidates.is_empty() {
                let what = format!("the layout has no image {reference}; it has {known}");
                return Err(ImageError::refused(what, "name one of these, or a digest"));
            }
        }
        let mut chosen = one_for_us(candidates)?;
        for _ in 0..MOST_NESTED {
            let bytes = self.document(&chosen)?;
            match chosen.kind() {
                Some(Kind::Manifest) => {
                    return Ok(Chosen {
                        digest: chosen.digest,
                        manifest: parse("the manifest", &bytes)?,
                    });
                }
                Some(Kind::Index) => {
                    let index: Index = parse("an index", &bytes)?;
                    chosen = one_for_us(index.manifests)?;
                }
                None => {
                    let what = format!("the layout has no image there but {:?}", chosen.media_type);
                    return Err(ImageError::refused(what, NOT_A_LAYOUT));
                }
            }
        }
        let what = "the layout has indexes in indexes without end";
        Err(ImageError::refused(what, NOT_A_LAYOUT))
    }

    /// Unpacks its layers, from the lowest up.
    pub(crate) fn unpack(&self, chosen: &Chosen, tree: &mut Tree) -> Result<Unpacked, ImageError> {
        let manifest = &chosen.manifest;
        let bytes = self.document(&manifest.config)?;
        let configuration: Configuration = parse("the image's configuration", &bytes)?;
        check(&configuration, manifest.layers.len())?;
        let diffs = configuration.rootfs.diff_ids.iter();
        for (layer, diff) in manifest.layers.iter().zip(diffs) {
            let blob = self.blob(layer)?;
            let expected = Expected {
                what: format!("layer {}", layer.digest.short()),
                blob: Some(&layer.digest),
                diff: Some(diff),
            };
            layer::apply(tree, blob, &expected)?;
        }
        Ok(Unpacked {
            digest: chosen.digest.clone(),
            config: configuration.wishes(),
        })
    }

    /// A document by its descriptor, verified.
    fn document(&self, descriptor: &Descriptor) -> Result<Vec<u8>, ImageError> {
        let what = format!("blob {}", descriptor.digest.short());
        let bytes = read_bounded(self.blob(descriptor)?, MOST_DOCUMENT)
            .map_err(ImageError::read(what.clone()))?;
        let found = Digest::of(&bytes);
        if found != descriptor.digest {
            return Err(ImageError::Corrupt {
                what,
                named: descriptor.digest.to_string(),
                found: found.to_string(),
            });
        }
        Ok(bytes)
    }

    /// A blob, not verified yet but for its size.
    fn blob(&self, descriptor: &Descriptor) -> Result<File, ImageError> {
        let path = format!("blobs/sha256/{}", descriptor.digest.hex());
        let file = self.file(&path)?;
        let size = file
            .metadata()
            .map_err(ImageError::read(path.clone()))?
            .len();
        if size != descriptor.size {
            return Err(ImageError::Corrupt {
                what: path,
                named: format!("{} bytes", descriptor.size),
                found: format!("{size} bytes"),
            });
        }
        Ok(file)
    }

    /// A plain file below the layout. No link is followed: what is elsewhere is not the layout's.
    fn file(&self, path: &str) -> Result<File, ImageError> {
        open_plain(&self.root, path, ResolveFlags::NO_SYMLINKS)
    }
}

/// A plain file below a directory, wherever links below it lead.
pub(crate) fn open_plain(
    root: &OwnedFd,
    path: &str,
    resolve: ResolveFlags,
) -> Result<File, ImageError> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let resolve = resolve | ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let file = rustix::fs::openat2(root, path, flags, Mode::empty(), resolve)
        .map(File::from)
        .map_err(|errno| ImageError::read(path)(errno.into()))?;
    match file.metadata() {
        Ok(found) if found.is_file() => Ok(file),
        Ok(_) => Err(ImageError::read(path)(std::io::Error::other("not a file"))),
        Err(error) => Err(ImageError::read(path)(error)),
    }
}

/// Whether a configuration goes with so many layers and this machine.
pub(crate) fn check(configuration: &Configuration, layers: usize) -> Result<(), ImageError> {
    if !configuration.is_ours() {
        let what = format!(
            "the image is for {}/{}",
            configuration.os, configuration.architecture
        );
        return Err(ImageError::refused(what, "take the one for this machine"));
    }
    let most = Bounds::USUAL.layers;
    if layers > most {
        return Err(ImageError::TooLarge(format!("more than {most} layers")));
    }
    if layers != configuration.rootfs.diff_ids.len() {
        let what = "the image's configuration and its manifest have different numbers of layers";
        return Err(ImageError::refused(what, "don't use this image"));
    }
    Ok(())
}

pub(crate) fn parse<T: DeserializeOwned>(what: &str, bytes: &[u8]) -> Result<T, ImageError> {
    serde_json::from_slice(bytes).map_err(|error| ImageError::read(what)(error.into()))
}

/// The one among several that this machine runs.
fn one_for_us(mut candidates: Vec<Descriptor>) -> Result<Descriptor, ImageError> {
    if candidates.len() > 1 {
        candidates.retain(|it| {
            it.platform
                .as_ref()
                .is_none_or(|platform| platform.is_ours())
        });
    }
    // Two names for one image are one image.
    candidates.dedup_by(|a, b| a.digest == b.digest);
    match candidates.len() {
        0 => {
            let what = format!("the image is not there for linux/{}", our_architecture());
            Err(ImageError::refused(what, "take one for this machine"))
        }
        1 => Ok(candidates.remove(0)),
        _ => {
            let what = format!("the layout has several images: {}", references(&candidates));
            Err(ImageError::refused(what, "say which: --oci LAYOUT:REF"))
        }
    }
}

fn references(candidates: &[Descriptor]) -> String {
    const MOST_NAMED: usize = 20;
    let names = candidates.iter().take(MOST_NAMED).map(|it| {
        let name = it.references().next();
        name.map_or_else(|| it.digest.to_string(), |name| format!("{name:?}"))
    });
    names.collect::<Vec<_>>().join(", ")
}
