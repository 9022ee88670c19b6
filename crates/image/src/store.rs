//! The store: where images are, and who uses them.
//!
//! ```text
//! images/
//!   lock                 held for the moment in which something appears or disappears
//!   names/NAME.json      a name, the digest it leads to, and what its source looked like
//!   names/NAME.lock      held by whoever builds it
//!   trees/HEX/           record.json, tree/, and `held`: locked by those who use it
//!   making/RANDOM/       what is being made or removed; `held` is locked by whoever does it
//! ```

use crate::bounds::MOST_DOCUMENT;
use crate::disk::{Lock, Share, read_json};
use crate::error::ImageError;
use crate::name::{Digest, ImageName};
use crate::record::{ImageConfig, Naming, Record};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// The images of a state directory.
#[derive(Debug, Clone)]
pub struct Store {
    pub(crate) root: PathBuf,
}

/// An image that is there, whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// What it is called; its digest, if it was asked for by that and has no name.
    pub name: String,
    /// What it is known by.
    pub digest: Digest,
    /// Its root. Links in it are as the image's maker made them: whoever follows one outside of a box follows a stranger.
    pub tree: PathBuf,
    /// What its maker wants.
    pub config: ImageConfig,
    /// Everything else that is known of it.
    pub record: Record,
}

/// An image is in use: while this lives, in whatever process, it is not removed.
#[derive(Debug)]
pub struct Hold {
    _lock: Lock,
}

impl Store {
    /// The images below this state directory. Nothing is made until something is built.
    #[must_use]
    pub fn open(state_dir: &Path) -> Self {
        Self {
            root: state_dir.join("images"),
        }
    }

    /// The image of that name, or the one whose digest this is or begins with (12 digits at least).
    pub fn find(&self, name_or_digest: &str) -> Result<Image, ImageError> {
        let not_found = || ImageError::NotFound(name_or_digest.to_owned());
        if let Ok(name) = ImageName::new(name_or_digest)
            && let Some(naming) = self.naming(&name)?
        {
            let record = self.record(&naming.digest)?.ok_or_else(not_found)?;
            return Ok(self.image(name.to_string(), record));
        }
        let mut meant = self.digests()?;
        meant.retain(|digest| digest.is_meant_by(name_or_digest));
        let digest = match meant.as_slice() {
            [] => return Err(not_found()),
            [digest] => digest,
            _ => return Err(ImageError::Ambiguous(name_or_digest.to_owned())),
        };
        let record = self.record(digest)?.ok_or_else(not_found)?;
        let named = self.namings()?.into_iter().find(|it| it.digest == *digest);
        let name = named.map_or_else(|| digest.to_string(), |naming| naming.name.to_string());
        Ok(self.image(name, record))
    }

    /// Every image that has a name, by name, and then those that have lost theirs.
    pub fn list(&self) -> Result<Vec<Image>, ImageError> {
        let mut images = Vec::new();
        let mut unnamed = self.digests()?;
        for naming in self.namings()? {
            unnamed.retain(|digest| *digest != naming.digest);
            if let Some(record) = self.record(&naming.digest)? {
                images.push(self.image(naming.name.to_string(), record));
            }
        }
        for digest in unnamed {
            if let Some(record) = self.record(&digest)? {
                images.push(self.image(digest.to_string(), record));
            }
        }
        Ok(images)
    }

    pub(crate) fn image(&self, name: String, record: Record) -> Image {
        Image {
            name,
            digest: record.digest.clone(),
            tree: self.home(&record.digest).join("tree"),
            config: record.config.clone(),
            record,
        }
    }

    /// What a name leads to.
    pub(crate) fn naming(&self, name: &ImageName) -> Result<Option<Naming>, ImageError> {
        let path = self.name_file(name);
        read_json(&path, MOST_DOCUMENT).map_err(ImageError::store(&path))
    }

    /// What every name leads to, by name.
    pub(crate) fn namings(&self) -> Result<Vec<Naming>, ImageError> {
        let mut namings = Vec::new();
        for file in self.entries("names")? {
            if let Some(name) = file.strip_suffix(".json")
                && let Ok(name) = ImageName::new(name)
                && let Some(naming) = self.naming(&name)?
            {
                namings.push(naming);
            }
        }
        Ok(namings)
    }

    /// The trees that are there.
    pub(crate) fn digests(&self) -> Result<Vec<Digest>, ImageError> {
        let names = self.entries("trees")?.into_iter();
        let digests = names.filter_map(|hex| Digest::new(format!("sha256:{hex}")).ok());
        Ok(digests.collect())
    }

    pub(crate) fn record(&self, digest: &Digest) -> Result<Option<Record>, ImageError> {
        let path = self.home(digest).join("record.json");
        read_json(&path, MOST_DOCUMENT).map_err(ImageError::store(&path))
    }

    /// Names in a directory of the store, in order; none if it was never made.
    pub(crate) fn entries(&self, directory: &str) -> Result<Vec<String>, ImageError> {
        let path = self.root.join(directory);
        let entries = match fs::read_dir(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(ImageError::store(&path))?,
        };
        let mut names: Vec<String> = entries
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        Ok(names)
    }

    /// Where a tree lies, with its record.
    pub(crate) fn home(&self, digest: &Digest) -> PathBuf {
        self.root.join("trees").join(digest.hex())
    }

    pub(crate) fn name_file(&self, name: &ImageName) -> PathBuf {
        self.root.join("names").join(format!("{name}.json"))
    }

    /// The right to change what is there. Held for moments.
    pub(crate) fn lock(&self, share: Share) -> Result<Lock, ImageError> {
        let path = self.root.join("lock");
        Lock::wait(&path, share).map_err(ImageError::store(&path))
    }
}

impl Image {
    /// Keeps it from being removed for as long as the value lives. The lock goes with the process, `kill -9` or not.
    pub fn hold(&self) -> Result<Hold, ImageError> {
        let gone = || ImageError::NotFound(self.name.clone());
        let home = self.tree.parent().ok_or_else(gone)?;
        let path = home.join("held");
        // It is there since the tree is. Not made anew: that would be half an image.
        if !path.is_file() {
            return Err(gone());
        }
        let lock = match Lock::wait(&path, Share::Shared) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(gone()),
            lock => lock.map_err(ImageError::store(&path))?,
        };
        // Whoever removed it meanwhile had the lock before us, and what we have is a lock on what is gone.
        let ours = lock.file().metadata().map_err(ImageError::store(&path))?;
        match fs::metadata(&path) {
            Ok(there) if (there.dev(), there.ino()) == (ours.dev(), ours.ino()) => {
                Ok(Hold { _lock: lock })
            }
            _ => Err(gone()),
        }
    }
}
