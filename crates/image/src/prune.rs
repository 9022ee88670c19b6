//! Removing images that nobody uses, and what killed builders left.

use crate::disk::{Lock, Share};
use crate::error::ImageError;
use crate::name::{Digest, ImageName};
use crate::staging::random_name;
use crate::store::Store;
use std::fs;
use std::path::PathBuf;

/// What to remove.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// Trees whose name now leads to another, and what killed builders left.
    Unnamed,
    /// That, and the images of these names; if one of them is in use, nothing.
    Names(Vec<ImageName>),
    /// Everything that is not in use.
    All,
}

/// What was removed, and what was not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Names that are no more.
    pub names: Vec<ImageName>,
    /// Trees that are no more.
    pub trees: Vec<Digest>,
    /// Bytes of files in them, as recorded.
    pub bytes: u64,
    /// Places of builders that were killed.
    pub leftovers: u64,
    /// What had to stay.
    pub kept: Vec<Kept>,
}

/// Something that boxes use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// Its name, if it has one.
    pub name: Option<ImageName>,
    /// Its digest.
    pub digest: Digest,
}

impl Store {
    /// Removes images. One that is held is never touched.
    pub fn prune(&self, scope: &Scope) -> Result<Pruned, ImageError> {
        let mut pruned = Pruned::default();
        if !self.root.is_dir() {
            if let Scope::Names(names) = scope
                && let Some(name) = names.first()
            {
                return Err(ImageError::NotFound(name.to_string()));
            }
            return Ok(pruned);
        }
        // Under the lock things only disappear from sight; to take them apart takes as long as it does.
        let mut doomed = Vec::new();
        {
            let _moment = self.lock(Share::Alone)?;
            self.forget_names(scope, &mut pruned)?;
            self.take_trees(&mut pruned, &mut doomed)?;
            self.take_leftovers(&mut pruned, &mut doomed)?;
        }
        for Doomed { place, lock } in doomed {
            fs::remove_dir_all(&place).map_err(ImageError::store(&place))?;
            drop(lock);
        }
        Ok(pruned)
    }

    fn forget_names(&self, scope: &Scope, pruned: &mut Pruned) -> Result<(), ImageError> {
        let mut namings = self.namings()?;
        match scope {
            Scope::Unnamed => return Ok(()),
            Scope::All => {}
            Scope::Names(names) => {
                for name in names {
                    if !namings.iter().any(|naming| naming.name == *name) {
                        return Err(ImageError::NotFound(name.to_string()));
                    }
                }
                namings.retain(|naming| names.contains(&naming.name));
                for naming in &namings {
                    if self.is_held(&naming.digest)? {
                        return Err(ImageError::InUse(naming.name.to_string()));
                    }
                }
            }
        }
        for naming in namings {
            if self.is_held(&naming.digest)? {
                pruned.kept.push(Kept {
                    name: Some(naming.name),
                    digest: naming.digest,
                });
                continue;
            }
            let file = self.name_file(&naming.name);
            fs::remove_file(&file).map_err(ImageError::store(&file))?;
            pruned.names.push(naming.name);
        }
        Ok(())
    }

    /// Trees without a name leave the place where they can be found.
    fn take_trees(&self, pruned: &mut Pruned, doomed: &mut Vec<Doomed>) -> Result<(), ImageError> {
        let named: Vec<Digest> = self.namings()?.into_iter().map(|it| it.digest).collect();
        for digest in self.digests()? {
            if named.contains(&digest) {
                continue;
            }
            let home = self.home(&digest);
            let Some(lock) = self.take(&home)? else {
                pruned.kept.push(Kept { name: None, digest });
                continue;
            };
            pruned.bytes += self.record(&digest)?.map_or(0, |record| record.size);
            let place = self.root.join("making").join(random_name()?);
            fs::rename(&home, &place).map_err(ImageError::store(&home))?;
            pruned.trees.push(digest);
            doomed.push(Doomed { place, lock });
        }
        Ok(())
    }

    /// What killed builders left, and what a killed `prune` did not finish.
    fn take_leftovers(
        &self,
        pruned: &mut Pruned,
        doomed: &mut Vec<Doomed>,
    ) -> Result<(), ImageError> {
        for name in self.entries("making")? {
            let place = self.root.join("making").join(name);
            if doomed.iter().any(|it| it.place == place) {
                continue;
            }
            if let Some(lock) = self.take(&place)? {
                pruned.leftovers += 1;
                doomed.push(Doomed { place, lock });
            }
        }
        Ok(())
    }

    fn take(&self, place: &std::path::Path) -> Result<Option<Lock>, ImageError> {
        let path = place.join("held");
        Lock::attempt(&path).map_err(ImageError::store(&path))
    }

    /// Whether anybody uses it, this moment.
    pub(crate) fn is_held(&self, digest: &Digest) -> Result<bool, ImageError> {
        let home = self.home(digest);
        if !home.is_dir() {
            return Ok(false);
        }
        Ok(self.take(&home)?.is_none())
    }
}

/// Something out of sight, and the lock that says it is ours to take apart.
struct Doomed {
    place: PathBuf,
    lock: Lock,
}
