//! Guests that have started and wait for what to run, kept in files: a box resumes one instead of starting its own.
//!
//! What is kept has seen no plan: it was made in a box without files and without a program, by a kernel and a program of
//! ours, and stopped before its order. A box is shown the file for reading only; its guest's memory is a copy. What all
//! guests of a file would share, they are told anew: the time, and what their kernel draws its random numbers from.

use super::parts::Parts;
use super::{Beginning, Carrier, Links, guest_megabytes};
use crate::host::Host;
use crate::native::Stdio;
use crate::plan::{Limits, Network};
use crate::tier::Tier;
use crate::trial::{self, TrialError};
use rustix::fs::{FlockOperation, MemfdFlags, Mode, OFlags, flock};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What the names of these files end with.
const ENDING: &str = ".guest";
/// As many sizes are kept. Each is some hundred megabytes.
const MOST: usize = 4;
/// Changes when what is kept does, beyond what its parts say.
const FORMAT: &str = "belljar guest 1";

/// Why no guest is kept. A box can always start its own.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeepError {
    /// The directory, or a file in it.
    #[error("{}", path.display())]
    Store {
        /// Which.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The guest did not come up.
    #[error("starting a guest to keep{}", said(words))]
    Start {
        /// What it said.
        words: String,
        /// How its box ended.
        #[source]
        source: TrialError,
    },
}

fn said(words: &str) -> String {
    match words.trim() {
        "" => String::new(),
        words => format!(" ({words})"),
    }
}

fn at(path: &Path) -> impl Fn(io::Error) -> KeepError {
    let path = path.to_owned();
    move |source| KeepError::Store {
        path: path.clone(),
        source,
    }
}

/// A file with a guest. It is not removed while this is held.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) path: PathBuf,
    _held: File,
}

impl Parts {
    /// The same, but that guests of a size for these limits and with such a network resume one that is kept in `store`. Where
    /// none is, one is started and kept first; whoever wants the same meanwhile waits for it.
    pub fn resuming(
        mut self,
        store: &Path,
        host: &Host,
        limits: &Limits,
        network: &Network,
    ) -> Result<Self, KeepError> {
        let megabytes = guest_megabytes(limits, &self);
        let links = Links::of(network);
        let store = match self.carrier() {
            Carrier::Qemu(_) => Store::open(store)?,
            // What either leaves behind is not the other's to clear up.
            Carrier::Firecracker => Store::open(&store.join("firecracker"))?,
        };
        let origin = fingerprint(&self).map_err(at(&store.directory))?;
        let name = Name {
            origin,
            megabytes,
            links,
        };
        let kept = match store.find(&name)? {
            Some(kept) => kept,
            None => {
                let _lock = store.lock()?;
                match store.find(&name)? {
                    Some(kept) => kept,
                    None => {
                        store.keep(&name, |file| start(&self, host, &name, file))?;
                        store.clear_up(&name)?;
                        let gone = || at(&store.directory)(io::ErrorKind::NotFound.into());
                        store.find(&name)?.ok_or_else(gone)?
                    }
                }
            }
        };
        self.begin(Beginning::Resume(Arc::new(kept)));
        Ok(self)
    }
}

/// Starts a guest in a box of its own and writes it to a file.
fn start(parts: &Parts, host: &Host, name: &Name, file: File) -> Result<(), KeepError> {
    let mut parts = parts.clone();
    parts.begin(Beginning::Keep {
        megabytes: name.megabytes,
        links: name.links,
    });
    let system = |errno: rustix::io::Errno| TrialError::System(errno.into());
    let words = rustix::fs::memfd_create(c"words", MemfdFlags::CLOEXEC).map_err(system);
    let run = |words: &File| {
        let stdio = Stdio {
            stdin: trial::null().map_err(system)?,
            stdout: file.into(),
            stderr: words.try_clone().map_err(TrialError::System)?.into(),
        };
        let plan = trial::plan(Path::new("/proc/self/exe"), &[])?;
        trial::run(Tier::Microvm(Arc::new(parts)), host, &plan, &stdio)
    };
    let fail = |words: String| move |source| KeepError::Start { words, source };
    let mut words = File::from(words.map_err(fail(String::new()))?);
    match run(&words) {
        Ok(_) => Ok(()),
        Err(source) => {
            let mut text = String::new();
            let _ = words.rewind();
            let _ = words.take(8 << 10).read_to_string(&mut text);
            Err(fail(text)(source))
        }
    }
}

/// What a kept guest was made from, in short: which files, on which start of this host, with which arguments.
fn fingerprint(parts: &Parts) -> io::Result<String> {
    let mut all = Sha256::new();
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id")?;
    for word in [
        FORMAT.as_bytes(),
        env!("CARGO_PKG_VERSION").as_bytes(),
        &boot,
    ] {
        all.update(word);
        all.update([0]);
    }
    let arguments: Vec<&str> = match parts.carrier() {
        Carrier::Qemu(accelerator) => super::bridge::fixed_arguments(accelerator).collect(),
        Carrier::Firecracker => vec![Carrier::Firecracker.tier()],
    };
    for word in arguments {
        all.update(word);
        all.update([0]);
    }
    for path in parts.files() {
        let file = std::fs::metadata(path)?;
        let facts = [file.dev(), file.ino(), file.size()];
        let time = [file.mtime(), file.mtime_nsec()];
        all.update(path.as_os_str().as_encoded_bytes());
        all.update([0]);
        facts.iter().for_each(|fact| all.update(fact.to_le_bytes()));
        time.iter().for_each(|part| all.update(part.to_le_bytes()));
    }
    Ok(hex(all.finalize().get(..12).unwrap_or_default()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

struct Name {
    origin: String,
    megabytes: u64,
    links: Links,
}

impl Name {
    /// How the names of its files begin; the rest is their mark. No name begins another: its file would be taken for one of the
    /// other's that was changed, and removed.
    fn start(&self) -> String {
        let links = match self.links {
            Links::Without => "alone",
            Links::With => "linked",
        };
        format!("{}-{}-{links}-", self.origin, self.megabytes)
    }
}

struct Store {
    directory: PathBuf,
}

impl Store {
    fn open(directory: &Path) -> Result<Self, KeepError> {
        let fail = at(directory);
        let made = std::fs::DirBuilder::new()
            .mode(0o700)
            .recursive(true)
            .create(directory);
        made.map_err(&fail)?;
        let metadata = std::fs::symlink_metadata(directory).map_err(&fail)?;
        let is_ours = metadata.is_dir()
            && metadata.uid() == rustix::process::geteuid().as_raw()
            && metadata.mode() & 0o022 == 0;
        match is_ours {
            true => Ok(Self {
                directory: directory.to_owned(),
            }),
            false => Err(fail(io::Error::other("it is not ours alone to write in"))),
        }
    }

    /// Who holds this may add files and remove them.
    fn lock(&self) -> Result<File, KeepError> {
        let path = self.directory.join("lock");
        let mut options = File::options();
        let file = options
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path);
        let file = file.map_err(at(&path))?;
        flock(&file, FlockOperation::LockExclusive).map_err(|errno| at(&path)(errno.into()))?;
        Ok(file)
    }

    fn files(&self) -> Result<Vec<(String, PathBuf)>, KeepError> {
        let entries = std::fs::read_dir(&self.directory).map_err(at(&self.directory))?;
        let named = entries.flatten().filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            name.ends_with(ENDING).then(|| (name, entry.path()))
        });
        Ok(named.collect())
    }

    /// The file of this name, if nobody has changed it since. One that was changed is removed.
    fn find(&self, name: &Name) -> Result<Option<Kept>, KeepError> {
        let start = name.start();
        for (name, path) in self.files()? {
            let Some(mark) = name
                .strip_prefix(&start)
                .and_then(|rest| rest.strip_suffix(ENDING))
            else {
                continue;
            };
            let open = rustix::fs::open(
                &path,
                OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW,
                Mode::empty(),
            );
            let Ok(file) = open.map(File::from) else {
                continue;
            };
            flock(&file, FlockOperation::LockShared).map_err(|errno| at(&path)(errno.into()))?;
            if !is_at(&path, &file) {
                // Somebody cleared it away before it was held.
                continue;
            }
            if mark_of(&file).map_err(at(&path))? == mark {
                return Ok(Some(Kept { path, _held: file }));
            }
            let _ = std::fs::remove_file(&path);
        }
        Ok(None)
    }

    /// Has a file written and gives it its name: it is there whole or not at all.
    fn keep(
        &self,
        name: &Name,
        write: impl FnOnce(File) -> Result<(), KeepError>,
    ) -> Result<(), KeepError> {
        let unfinished = self.directory.join("unfinished");
        let _ = std::fs::remove_file(&unfinished);
        let fail = at(&unfinished);
        let mut options = File::options();
        let file = options.read(true).write(true).create_new(true).mode(0o600);
        let file = file.open(&unfinished).map_err(&fail)?;
        let kept = write(file.try_clone().map_err(&fail)?).and_then(|()| {
            // Nobody writes to it from here on. A box of root's reads it as somebody else.
            let permissions = std::fs::Permissions::from_mode(0o444);
            file.set_permissions(permissions).map_err(&fail)?;
            let mark = mark_of(&file).map_err(&fail)?;
            let path = self
                .directory
                .join(format!("{}{mark}{ENDING}", name.start()));
            std::fs::rename(&unfinished, path).map_err(&fail)
        });
        if kept.is_err() {
            let _ = std::fs::remove_file(&unfinished);
        }
        kept
    }

    /// Removes what was made from other parts, and the oldest sizes beyond the most.
    fn clear_up(&self, newest: &Name) -> Result<(), KeepError> {
        let (current, mut stale): (Vec<_>, Vec<_>) = self
            .files()?
            .into_iter()
            .partition(|(name, _)| name.starts_with(&format!("{}-", newest.origin)));
        let age = |path: &PathBuf| {
            std::fs::metadata(path)
                .and_then(|file| file.modified())
                .ok()
        };
        let mut current: Vec<_> = current
            .into_iter()
            .map(|file| (age(&file.1), file))
            .collect();
        current.sort_by_key(|(made, _)| std::cmp::Reverse(*made));
        stale.extend(current.into_iter().skip(MOST).map(|(_, file)| file));
        for (_, path) in stale {
            // Not one that somebody is about to resume.
            let is_free = File::open(&path)
                .is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok());
            if is_free {
                let _ = std::fs::remove_file(&path);
            }
        }
        Ok(())
    }
}

/// Whether this file is the one of that name.
fn is_at(path: &Path, file: &File) -> bool {
    let numbers = |facts: std::fs::Metadata| (facts.dev(), facts.ino());
    let there = std::fs::symlink_metadata(path).map(numbers);
    there.is_ok_and(|there| file.metadata().map(numbers).is_ok_and(|it| it == there))
}

/// How long a file is and when it was last written. What is in it is the user's own, in a directory where nobody else writes and no
/// box looks: reading it all at each start would find no more than this, and take a fifth of the time.
fn mark_of(file: &File) -> io::Result<String> {
    let facts = file.metadata()?;
    let (seconds, rest) = (facts.mtime(), facts.mtime_nsec());
    Ok(format!("{}-{seconds}.{rest:09}", facts.size()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn name(origin: &str, megabytes: u64) -> Name {
        Name {
            origin: origin.to_owned(),
            megabytes,
            links: Links::Without,
        }
    }

    fn keep(store: &Store, name: &Name, text: &str) {
        let write = |mut file: File| file.write_all(text.as_bytes()).map_err(at(Path::new("?")));
        store.keep(name, write).unwrap();
    }

    fn store() -> (tempfile::TempDir, Store) {
        let place = tempfile::tempdir().unwrap();
        let store = Store::open(&place.path().join("guests")).unwrap();
        (place, store)
    }

    #[test]
    fn what_is_kept_is_found_until_it_is_changed() {
        let (_place, store) = store();
        assert!(store.find(&name("a", 1)).unwrap().is_none());
        keep(&store, &name("a", 1), "a guest");
        let kept = store.find(&name("a", 1)).unwrap().unwrap();
        assert_eq!(std::fs::read(&kept.path).unwrap(), b"a guest");
        assert_eq!(std::fs::metadata(&kept.path).unwrap().mode() & 0o777, 0o444);
        assert!(store.find(&name("a", 2)).unwrap().is_none());
        assert!(store.find(&name("b", 1)).unwrap().is_none());
        let linked = Name {
            links: Links::With,
            ..name("a", 1)
        };
        assert!(store.find(&linked).unwrap().is_none());

        std::fs::set_permissions(&kept.path, PermissionsExt::from_mode(0o600)).unwrap();
        std::fs::write(&kept.path, "a guest that is no more").unwrap();
        assert!(store.find(&name("a", 1)).unwrap().is_none());
        assert!(!kept.path.exists(), "what was changed stays");
    }

    #[test]
    fn looking_for_one_guest_leaves_every_other_where_it_is() {
        let (_place, store) = store();
        let with = |links| {
            [("a", 1), ("a", 16), ("ab", 1)].map(|(origin, megabytes)| Name {
                links,
                ..name(origin, megabytes)
            })
        };
        let names = [with(Links::Without), with(Links::With)];
        let names: Vec<Name> = names.into_iter().flatten().collect();
        for (number, one) in names.iter().enumerate() {
            for other in names.iter().skip(number + 1) {
                let (one, other) = (one.start(), other.start());
                assert!(!one.starts_with(&other) && !other.starts_with(&one));
            }
        }
        for name in &names {
            keep(&store, name, &name.start());
            // Those that are not kept yet are looked for as well.
            for one in &names {
                if let Some(kept) = store.find(one).unwrap() {
                    assert_eq!(std::fs::read_to_string(kept.path).unwrap(), one.start());
                }
            }
        }
        assert_eq!(store.files().unwrap().len(), names.len(), "one was removed");
    }

    #[test]
    fn a_box_is_waited_for_longer_than_the_guest_in_it() {
        let parts = super::super::parts::tests::parts(Carrier::Firecracker);
        let tier = Tier::Microvm(Arc::new(parts));
        assert!(trial::longest(&tier) > super::super::SLOWEST_START);
    }

    /// Where a kept guest may not go on, another has all to start from, with a network's modules if it is to have one.
    #[test]
    fn a_box_has_what_its_guest_begins_from_and_what_it_may_have_to() {
        use super::super::parts::tests::parts;
        use super::super::{Accelerator, place};
        use crate::tier::Furniture;
        let (_place, store) = store();
        keep(&store, &name("a", 1), "a guest");
        let kept = Arc::new(store.find(&name("a", 1)).unwrap().unwrap());
        let spare = ["kernel", "modules/vsock.ko", "modules/tproxy.ko"];
        let qemu = Carrier::Qemu(Accelerator::Kvm);
        for (carrier, links, has) in [
            (Carrier::Firecracker, Links::With, [true, true, true]),
            (Carrier::Firecracker, Links::Without, [true, true, false]),
            (qemu, Links::With, [false; 3]),
        ] {
            let mut parts = parts(carrier);
            parts.begin(Beginning::Resume(Arc::clone(&kept)));
            let all = parts.furniture(links);
            let shows = |name: &str| {
                let at = place(name);
                let is_it = |one: &Furniture| matches!(one, Furniture::Program { at: its, .. } if *its == at);
                all.iter().any(is_it)
            };
            assert!(shows("kept"), "{carrier:?}");
            assert_eq!(spare.map(shows), has, "{carrier:?} {links:?}");
        }
    }

    #[test]
    fn a_file_that_was_cleared_away_is_not_at_its_place() {
        let (_place, store) = store();
        keep(&store, &name("a", 1), "a guest");
        let kept = store.find(&name("a", 1)).unwrap().unwrap();
        let held = File::open(&kept.path).unwrap();
        assert!(is_at(&kept.path, &held));
        std::fs::remove_file(&kept.path).unwrap();
        assert!(!is_at(&kept.path, &held));
        std::fs::write(&kept.path, "another").unwrap();
        assert!(!is_at(&kept.path, &held));
    }

    #[test]
    fn a_guest_that_was_not_written_whole_leaves_nothing() {
        let (_place, store) = store();
        let failed = store.keep(&name("a", 1), |mut file| {
            file.write_all(b"half").unwrap();
            Err(at(Path::new("?"))(io::ErrorKind::StorageFull.into()))
        });
        assert!(failed.is_err());
        assert_eq!(std::fs::read_dir(&store.directory).unwrap().count(), 0);
    }

    #[test]
    fn what_is_stale_goes_but_for_what_is_in_use_and_sizes_are_bounded() {
        let (_place, store) = store();
        keep(&store, &name("old", 1), "one");
        keep(&store, &name("old", 2), "two");
        let held = store.find(&name("old", 2)).unwrap().unwrap();
        for size in 0..6 {
            keep(&store, &name("new", size), "more");
        }
        store.clear_up(&name("new", 5)).unwrap();
        assert!(store.find(&name("old", 1)).unwrap().is_none());
        assert!(held.path.exists(), "what is held was removed");
        assert_eq!(store.files().unwrap().len(), 1 + MOST);
        drop(held);
        store.clear_up(&name("new", 5)).unwrap();
        assert_eq!(store.files().unwrap().len(), MOST);
    }

    #[test]
    fn a_directory_that_others_may_write_in_is_refused() {
        let (_place, store) = store();
        std::fs::set_permissions(&store.directory, PermissionsExt::from_mode(0o777)).unwrap();
        assert!(Store::open(&store.directory).is_err());
    }
}
