//! Where an image is made before anybody can find it.

use crate::disk::{Lock, Share, passable_directory, sync_directory, write_json};
use crate::error::ImageError;
use crate::name::ImageName;
use crate::record::{Naming, Record};
use crate::store::{Image, Store};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// A directory of one builder's. What is still in it when this is dropped is removed; what a killed builder left is
/// found by `prune`, because nobody holds its lock.
pub(crate) struct Staging<'s> {
    store: &'s Store,
    place: PathBuf,
    // Held for as long as the place is ours, and let go before it is anybody's.
    _lock: Lock,
}

impl<'s> Staging<'s> {
    /// A new place, with an empty `tree` in it.
    pub(crate) fn new(store: &'s Store) -> Result<Self, ImageError> {
        for part in ["", "names", "trees", "making"] {
            let path = store.root.join(part);
            passable_directory(&path).map_err(ImageError::store(&path))?;
        }
        // Nobody clears away between the making of the place and the taking of its lock.
        let _moment = store.lock(Share::Shared)?;
        let place = store.root.join("making").join(random_name()?);
        let fail = ImageError::store(&place);
        let make = || -> std::io::Result<Lock> {
            passable_directory(&place)?;
            let lock = Lock::wait(&place.join("held"), Share::Alone)?;
            fs::create_dir(place.join("tree"))?;
            Ok(lock)
        };
        let lock = make().map_err(fail)?;
        Ok(Self {
            store,
            place,
            _lock: lock,
        })
    }

    /// Where the tree is to be.
    pub(crate) fn tree(&self) -> PathBuf {
        self.place.join("tree")
    }

    /// A place for what is needed only while the tree is made.
    pub(crate) fn scratch(&self) -> Result<PathBuf, ImageError> {
        let path = self.place.join("scratch");
        fs::create_dir(&path).map_err(ImageError::store(&path))?;
        Ok(path)
    }

    /// Puts the tree into the store, on disk, under its digest, unless the same is there already; and names it.
    pub(crate) fn publish(
        self,
        record: Record,
        name: &ImageName,
        key: String,
    ) -> Result<Image, ImageError> {
        let scratch = self.place.join("scratch");
        if scratch.is_dir() {
            fs::remove_dir_all(&scratch).map_err(ImageError::store(&scratch))?;
        }
        let file = self.place.join("record.json");
        write_json(&file, &record).map_err(ImageError::store(&file))?;
        // What is found after a power cut must be whole, too.
        sync_all(&self.place).map_err(ImageError::store(&self.place))?;
        let _moment = self.store.lock(Share::Alone)?;
        let home = self.store.home(&record.digest);
        if self.store.record(&record.digest)?.is_none() {
            fs::rename(&self.place, &home).map_err(ImageError::store(&home))?;
            let trees = self.store.root.join("trees");
            sync_directory(&trees).map_err(ImageError::store(&trees))?;
        }
        let naming = Naming {
            name: name.clone(),
            digest: record.digest.clone(),
            key,
            made_ms: record.created_ms,
        };
        // As it is recorded: the same tree may have come from elsewhere first.
        let there = self.store.record(&record.digest)?;
        self.store.call(naming, there.unwrap_or(record))
    }
}

impl Drop for Staging<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.place);
    }
}

impl Store {
    /// Gives a name to what is there. The caller holds the store's lock.
    pub(crate) fn call(&self, naming: Naming, record: Record) -> Result<Image, ImageError> {
        let file = self.name_file(&naming.name);
        write_json(&file, &naming).map_err(ImageError::store(&file))?;
        Ok(self.image(naming.name.into(), record))
    }
}

fn sync_all(place: &Path) -> std::io::Result<()> {
    let directory = fs::File::open(place)?;
    rustix::fs::syncfs(&directory)?;
    Ok(())
}

pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(0))
}

pub(crate) fn random_name() -> Result<String, ImageError> {
    let mut bytes = [0u8; 16];
    let flags = rustix::rand::GetRandomFlags::empty();
    rustix::rand::getrandom(&mut bytes, flags)
        .map_err(|errno| ImageError::read("random bytes")(errno.into()))?;
    Ok(data_encoding::HEXLOWER.encode(&bytes))
}
