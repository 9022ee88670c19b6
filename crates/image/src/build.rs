//! Making an image, or finding that it is made already.

use crate::bounds::Bounds;
use crate::debian::Suite;
use crate::directory::Directory;
use crate::disk::{Lock, Share, passable_directory};
use crate::engine::EngineImage;
use crate::error::ImageError;
use crate::name::{Digest, ImageName};
use crate::oci::Layout;
use crate::record::{ImageConfig, Naming, Record};
use crate::staging::{Staging, now_ms};
use crate::store::{Image, Store};
use crate::tree::Tree;
use std::path::PathBuf;
use std::time::Duration;

/// Where an image comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A directory, copied.
    Directory(PathBuf),
    /// An image of an OCI layout on disk.
    Oci {
        /// The layout's directory.
        layout: PathBuf,
        /// Which of its images: by name or digest. The only one, if nothing is said.
        reference: Option<String>,
    },
    /// An image of a container engine.
    Engine {
        /// What the engine calls it.
        reference: String,
        /// Where the engine listens; the usual places, if nothing is said.
        socket: Option<PathBuf>,
    },
    /// A suite of Debian's or a relative's, from the host's own mirror. What was made of the same a week ago or longer is
    /// made anew.
    Debian {
        /// Its name.
        suite: String,
        /// Packages besides those that are essential.
        include: Vec<String>,
    },
}

/// Whether an image that was made of the same source will do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freshness {
    /// It will.
    Cached,
    /// It is made anew.
    Refresh,
}

/// What became of a build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Built {
    /// The image was made.
    Made(Image),
    /// It was there already.
    Cached(Image),
}

impl Built {
    /// The image, either way.
    #[must_use]
    pub fn image(&self) -> &Image {
        match self {
            Built::Made(image) | Built::Cached(image) => image,
        }
    }
}

/// What unpacking a source gave.
pub(crate) struct Unpacked {
    pub(crate) digest: Digest,
    pub(crate) config: ImageConfig,
}

impl Store {
    /// Makes an image of a source and gives it that name, which another image may have had. If the name's image was made of
    /// the same source and that has not changed, nothing is done. Whoever builds the same name meanwhile is waited for.
    pub fn build(
        &self,
        name: &ImageName,
        source: &Source,
        freshness: Freshness,
    ) -> Result<Built, ImageError> {
        let names = self.root.join("names");
        passable_directory(&self.root)
            .and_then(|()| passable_directory(&names))
            .map_err(ImageError::store(&names))?;
        let path = names.join(format!("{name}.lock"));
        let _turn = Lock::wait(&path, Share::Alone).map_err(ImageError::store(&path))?;
        match source {
            Source::Directory(path) => {
                let directory = Directory::open(path, &self.root)?;
                let key = directory.key()?;
                self.build_if_new(name, key, freshness, source, |tree, _| {
                    let digest = directory.copy_to(tree)?;
                    let config = ImageConfig::default();
                    Ok(Unpacked { digest, config })
                })
            }
            Source::Oci { layout, reference } => {
                let layout = Layout::open(layout)?;
                let chosen = layout.choose(reference.as_deref())?;
                let key = format!("oci {}", chosen.digest);
                self.build_if_new(name, key, freshness, source, |tree, _| {
                    layout.unpack(&chosen, tree)
                })
            }
            Source::Engine { reference, socket } => {
                let found = EngineImage::find(reference, socket.as_deref())?;
                let key = format!("engine {}", found.id);
                self.build_if_new(name, key, freshness, source, |tree, staging| {
                    found.unpack(&staging.scratch()?, tree)
                })
            }
            Source::Debian { suite, include } => {
                let suite = Suite::new(suite, include)?;
                let key = suite.key();
                self.build_if_new(name, key, freshness, source, |tree, staging| {
                    suite.unpack(&staging.scratch()?, tree)
                })
            }
        }
    }

    fn build_if_new(
        &self,
        name: &ImageName,
        key: String,
        freshness: Freshness,
        source: &Source,
        unpack: impl FnOnce(&mut Tree, &Staging<'_>) -> Result<Unpacked, ImageError>,
    ) -> Result<Built, ImageError> {
        if freshness == Freshness::Cached
            && let Some(image) = self.made_before(name, &key, source.good_for())?
        {
            return Ok(Built::Cached(image));
        }
        let staging = Staging::new(self)?;
        let mut tree = Tree::new(&staging.tree(), Bounds::USUAL)?;
        let unpacked = unpack(&mut tree, &staging)?;
        let extent = tree.extent();
        let record = Record {
            digest: unpacked.digest,
            source: source.to_string(),
            size: extent.bytes,
            entries: extent.entries,
            left_out: extent.left_out,
            created_ms: now_ms(),
            config: unpacked.config,
        };
        staging.publish(record, name, key).map(Built::Made)
    }

    /// The image that was made when the source looked the same, whoever has its name.
    fn made_before(
        &self,
        name: &ImageName,
        key: &str,
        good_for: Option<Duration>,
    ) -> Result<Option<Image>, ImageError> {
        let now = now_ms();
        let is_same = |naming: &Naming| {
            let age = Duration::from_millis(now.saturating_sub(naming.made_ms));
            naming.key == key && good_for.is_none_or(|most| age <= most)
        };
        if let Some(naming) = self.naming(name)?
            && is_same(&naming)
            && let Some(record) = self.record(&naming.digest)?
        {
            return Ok(Some(self.image(name.to_string(), record)));
        }
        let _moment = self.lock(Share::Alone)?;
        for naming in self.namings()? {
            if is_same(&naming)
                && let Some(record) = self.record(&naming.digest)?
            {
                let again = Naming {
                    name: name.clone(),
                    ..naming
                };
                return self.call(again, record).map(Some);
            }
        }
        Ok(None)
    }
}

impl Source {
    /// How long what was made of it will do, where it can't be seen whether it changed.
    fn good_for(&self) -> Option<Duration> {
        const WEEK: Duration = Duration::from_secs(7 * 24 * 60 * 60);
        matches!(self, Source::Debian { .. }).then_some(WEEK)
    }
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Source::Directory(path) => write!(f, "directory {}", path.display()),
            Source::Oci { layout, reference } => {
                let reference = reference.as_ref().map(|it| format!(":{it}"));
                let reference = reference.unwrap_or_default();
                write!(f, "OCI layout {}{reference}", layout.display())
            }
            Source::Engine { reference, .. } => write!(f, "engine's image {reference}"),
            Source::Debian { suite, include } if include.is_empty() => write!(f, "suite {suite}"),
            Source::Debian { suite, include } => {
                write!(f, "suite {suite} with {}", include.join(", "))
            }
        }
    }
}
