//! Secrets that the user gave Belljar to keep: one file, theirs alone, in the state directory, which no box sees.

use crate::error::RunError;
use crate::state::{StateDir, demand_ours};
use belljar_policy::is_secret_name;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use zeroize::{Zeroize as _, Zeroizing};

/// No key is longer.
pub(crate) const LONGEST_SECRET: usize = 64 * 1024;
const MOST_SECRETS: usize = 1000;
/// The most bytes of the file.
const MOST_BYTES: u64 = 16 << 20;
const VERSION: u32 = 1;

/// The secrets of a state directory.
#[derive(Clone, Debug)]
pub struct SecretStore {
    state: PathBuf,
    directory: PathBuf,
}

/// A secret that is kept: its name, never more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StoredSecret {
    /// What policies call it.
    pub name: String,
    /// When it was put there, in milliseconds since 1970.
    pub set_ms: u64,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    version: u32,
    secrets: BTreeMap<String, KeptValue>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeptValue {
    set_ms: u64,
    value: String,
}

impl Drop for KeptValue {
    fn drop(&mut self) {
        self.value.zeroize();
    }
}

impl SecretStore {
    /// The secrets of a state directory, whether or not there are any yet.
    #[must_use]
    pub fn of(state: &StateDir) -> Self {
        Self {
            state: state.path().to_owned(),
            directory: state.path().join("secrets"),
        }
    }

    /// Where they are.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.directory.join("store.json")
    }

    /// Keeps a secret, in place of what had its name. Whether there was one.
    ///
    /// # Errors
    /// When it can't be a secret, or the store can't be used.
    pub fn set(&self, name: &str, value: &Zeroizing<String>) -> Result<bool, RunError> {
        if !is_secret_name(name) {
            return Err(RunError::Invalid {
                what: "this can't be a secret's name".into(),
                hint: "use letters, digits, dots, hyphens and underscores, at most 64".into(),
            });
        }
        let is_printable = value.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        if value.is_empty() || value.len() > LONGEST_SECRET || !is_printable {
            return Err(RunError::Invalid {
                what: format!("what was given for {name} is nothing that can stand in a header"),
                hint: "a key is one line of printable ASCII".into(),
            });
        }
        self.change(|secrets| {
            if secrets.len() >= MOST_SECRETS && !secrets.contains_key(name) {
                return Err(RunError::Invalid {
                    what: format!("there are {MOST_SECRETS} secrets, which is the most"),
                    hint: "`belljar secret rm` those that nobody uses".into(),
                });
            }
            let kept = KeptValue {
                set_ms: now_ms(),
                value: value.to_string(),
            };
            Ok(secrets.insert(name.to_owned(), kept).is_some())
        })
    }

    /// Forgets a secret. Whether there was one.
    ///
    /// # Errors
    /// When the store can't be used.
    pub fn remove(&self, name: &str) -> Result<bool, RunError> {
        self.change(|secrets| Ok(secrets.remove(name).is_some()))
    }

    /// What is kept, by name.
    ///
    /// # Errors
    /// When the store can't be used.
    pub fn list(&self) -> Result<Vec<StoredSecret>, RunError> {
        let secrets = self.read()?.secrets.into_iter();
        let listed = secrets.map(|(name, kept)| StoredSecret {
            name,
            set_ms: kept.set_ms,
        });
        Ok(listed.collect())
    }

    /// A secret; `None` where there is none of that name.
    ///
    /// # Errors
    /// When the store can't be used.
    pub fn get(&self, name: &str) -> Result<Option<Zeroizing<String>>, RunError> {
        let kept = self.read()?.secrets.remove(name);
        Ok(kept.map(|mut kept| Zeroizing::new(std::mem::take(&mut kept.value))))
    }

    fn change<T>(
        &self,
        change: impl FnOnce(&mut BTreeMap<String, KeptValue>) -> Result<T, RunError>,
    ) -> Result<T, RunError> {
        let made = DirBuilder::new().mode(0o700).create(&self.directory);
        match made {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(self.failed(error));
            }
            _ => self.demand_private_directory()?,
        }
        // The lock has a file of its own: the one with the secrets is another one after each change.
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(belljar_files::PRIVATE)
            .open(self.directory.join("store.lock"))
            .map_err(|error| self.failed(error))?;
        flock(&lock, FlockOperation::LockExclusive).map_err(|error| self.failed(error.into()))?;
        let mut content = self.read()?;
        let done = change(&mut content.secrets)?;
        content.version = VERSION;
        // Sized beforehand: a buffer that grows leaves its old copies unwiped.
        let room: usize = content.secrets.values().map(|kept| kept.value.len()).sum();
        let room = room
            .saturating_mul(2)
            .saturating_add(content.secrets.len() * 256 + 256);
        let mut bytes = Zeroizing::new(Vec::with_capacity(room));
        serde_json::to_writer(&mut *bytes, &content)
            .map_err(|error| self.failed(io::Error::other(error)))?;
        belljar_files::replace(&self.path(), &bytes, belljar_files::PRIVATE)
            .map_err(|error| self.failed(error))?;
        Ok(done)
    }

    fn read(&self) -> Result<Content, RunError> {
        match std::fs::symlink_metadata(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Content::default()),
            Err(error) => return Err(self.failed(error)),
            Ok(_) => self.demand_private_directory()?,
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::open(self.path(), flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(rustix::io::Errno::NOENT) => return Ok(Content::default()),
            Err(error) => return Err(self.failed(error.into())),
        };
        let about = file.metadata().map_err(|error| self.failed(error))?;
        self.demand_private(&self.path(), &about, about.is_file())?;
        let size = usize::try_from(about.len().min(MOST_BYTES)).unwrap_or_default();
        let mut bytes = Zeroizing::new(Vec::with_capacity(size.saturating_add(1)));
        file.take(MOST_BYTES)
            .read_to_end(&mut bytes)
            .map_err(|error| self.failed(error))?;
        let content: Content = serde_json::from_slice(&bytes).map_err(|error| {
            // What the parser found would be a part of the file.
            let (line, column) = (error.line(), error.column());
            RunError::Invalid {
                what: format!(
                    "{} is no file of secrets (line {line}, column {column})",
                    self.path().display()
                ),
                hint: "restore it from a copy, or move it away and set its secrets anew".into(),
            }
        })?;
        if content.version != VERSION {
            return Err(RunError::Invalid {
                what: format!("{} is of another version of Belljar", self.path().display()),
                hint: "use that version, or move it away and set its secrets anew".into(),
            });
        }
        Ok(content)
    }

    /// Whoever can replace the directory could have secrets of theirs sent to hosts in place of ours, and read those to come.
    fn demand_private_directory(&self) -> Result<(), RunError> {
        let state = rustix::fs::stat(&self.state).map_err(|error| self.failed(error.into()))?;
        demand_ours(&self.state, &state)?;
        let about =
            std::fs::symlink_metadata(&self.directory).map_err(|error| self.failed(error))?;
        self.demand_private(&self.directory, &about, about.is_dir())
    }

    fn demand_private(
        &self,
        path: &Path,
        about: &std::fs::Metadata,
        is_of_kind: bool,
    ) -> Result<(), RunError> {
        let us = rustix::process::geteuid().as_raw();
        if is_of_kind && about.uid() == us && about.mode() & 0o077 == 0 {
            return Ok(());
        }
        let shown = path.display();
        Err(RunError::Refused {
            what: format!("the store of secrets: {shown} is not yours alone"),
            hint: format!(
                "look at what is in it and who could read it; it must be your own, no link, and `chmod {}`",
                if path == self.directory { "700" } else { "600" }
            ),
        })
    }

    fn failed(&self, source: io::Error) -> RunError {
        RunError::State {
            path: self.path(),
            source,
        }
    }
}

impl fmt::Debug for KeptValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeptValue(…)")
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    fn store() -> (tempfile::TempDir, SecretStore) {
        let place = tempfile::tempdir().unwrap();
        let state = StateDir::at(place.path().join("state")).unwrap();
        (place, SecretStore::of(&state))
    }

    fn secret(text: &str) -> Zeroizing<String> {
        Zeroizing::new(text.to_owned())
    }

    fn chmod(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn what_is_set_is_there_until_it_is_removed() {
        let (_place, store) = store();
        assert_eq!(store.list().unwrap(), []);
        assert_eq!(store.get("a").unwrap(), None);
        assert!(!store.set("a", &secret("one")).unwrap());
        assert!(!store.set("b", &secret("two")).unwrap());
        assert!(store.set("a", &secret("three")).unwrap());
        assert_eq!(store.get("a").unwrap().unwrap().as_str(), "three");
        let names: Vec<_> = store
            .list()
            .unwrap()
            .into_iter()
            .map(|it| it.name)
            .collect();
        assert_eq!(names, ["a", "b"]);
        assert!(store.remove("a").unwrap() && !store.remove("a").unwrap());
        assert_eq!(store.get("a").unwrap(), None);
        for (path, mode) in [(store.path(), 0o600), (store.directory.clone(), 0o700)] {
            assert_eq!(
                fs::metadata(path).unwrap().permissions().mode() & 0o777,
                mode
            );
        }
    }

    #[test]
    fn what_no_header_can_hold_is_not_kept() {
        let (_place, store) = store();
        for text in ["", "a\nb", "a\0", "é", &"x".repeat(LONGEST_SECRET + 1)] {
            assert!(store.set("a", &secret(text)).is_err());
        }
        assert!(store.set("a b", &secret("x")).is_err());
        assert!(!store.path().exists());
    }

    #[test]
    fn a_store_that_others_could_read_or_replace_is_refused() {
        let (_place, store) = store();
        store.set("a", &secret("sk-one")).unwrap();
        let refused = |what: &str| {
            for said in [
                store.get("a").err(),
                store.list().err(),
                store.set("b", &secret("x")).err(),
            ] {
                let said = said.unwrap_or_else(|| panic!("{what}: accepted"));
                assert!(!format!("{said:?}").contains("sk-one"), "{said:?}");
            }
        };
        for (path, mode) in [(store.path(), 0o600), (store.directory.clone(), 0o700)] {
            for open in [0o040, 0o004, 0o020, 0o002] {
                chmod(&path, mode | open);
                refused(&format!("{} {open:o}", path.display()));
            }
            chmod(&path, mode);
        }
        chmod(&store.state, 0o777);
        refused("a state directory that all may write");
        chmod(&store.state, 0o711);
        let aside = store.directory.with_extension("aside");
        fs::rename(&store.directory, &aside).unwrap();
        symlink(&aside, &store.directory).unwrap();
        refused("a link to a directory");
        fs::remove_file(&store.directory).unwrap();
        fs::rename(&aside, &store.directory).unwrap();
        let aside = store.path().with_extension("aside");
        fs::rename(store.path(), &aside).unwrap();
        symlink(&aside, store.path()).unwrap();
        refused("a link to a file");
    }

    #[test]
    fn a_file_that_is_none_of_ours_is_told_without_what_is_in_it() {
        let (_place, store) = store();
        store.set("a", &secret("x")).unwrap();
        for text in [
            "{\"sk-inside\"",
            "{\"version\":1,\"secrets\":{\"a\":\"sk-inside\"}}",
            "{\"version\":9,\"secrets\":{}}",
        ] {
            fs::write(store.path(), text).unwrap();
            let said = format!("{:?}", store.get("a").unwrap_err());
            assert!(!said.contains("sk-inside"), "{said}");
            assert!(store.set("b", &secret("x")).is_err());
        }
    }

    #[test]
    fn hands_that_set_secrets_at_once_lose_none() {
        let (_place, store) = store();
        std::thread::scope(|scope| {
            for hand in 0..4 {
                let store = &store;
                scope.spawn(move || {
                    for number in 0..5 {
                        store
                            .set(&format!("s{hand}-{number}"), &secret("x"))
                            .unwrap();
                    }
                });
            }
        });
        assert_eq!(store.list().unwrap().len(), 20);
    }
}
