//! What a `runsc` said of itself, kept for the next box: asking takes as long as a quarter of its start.
//!
//! A note holds for one file as it is now: the kernel changes a file's change time with whatever is done to it, and lets
//! nobody set it. It is believed only where nobody but us and root can have written it; boxes don't see the state directory.

use super::Version;
use crate::host::is_trusted;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A place for one note.
#[derive(Debug)]
pub(super) struct Note {
    file: PathBuf,
    /// Which file it is about, and in which state.
    about: String,
}

impl Note {
    pub(super) fn about(runtime: &Metadata, directory: &Path) -> Self {
        let m = runtime;
        let about = format!(
            "{} {} {} {}.{} {}.{}",
            m.dev(),
            m.ino(),
            m.size(),
            m.mtime(),
            m.mtime_nsec(),
            m.ctime(),
            m.ctime_nsec()
        );
        Self {
            file: directory.join("runsc-version"),
            about,
        }
    }

    /// What is noted, if it is about this very file.
    pub(super) fn read(&self) -> Option<Version> {
        const LONGEST: u64 = 512;
        let directory = fs::metadata(self.file.parent()?).ok()?;
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(&self.file)
            .ok()?;
        let metadata = file.metadata().ok()?;
        if !metadata.is_file() || !is_trusted(&metadata) || !is_trusted(&directory) {
            return None;
        }
        let mut text = String::new();
        file.take(LONGEST).read_to_string(&mut text).ok()?;
        let (about, version) = text.trim_end().rsplit_once(' ')?;
        let version = version.parse().ok().map(Version)?;
        (about == self.about).then_some(version)
    }

    /// Without a note the next box asks again.
    pub(super) fn write(&self, version: Version) {
        let fresh = self
            .file
            .with_extension(format!("new-{}", std::process::id()));
        let made = File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&fresh);
        let written = made.and_then(|mut file| writeln!(file, "{} {version}", self.about));
        if written
            .and_then(|()| fs::rename(&fresh, &self.file))
            .is_err()
        {
            let _ = fs::remove_file(&fresh);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_note_holds_for_one_file_as_it_was_and_only_where_nobody_else_can_write() {
        let directory = std::env::temp_dir().join(format!("belljar-note-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o711)).unwrap();
        let runtime = directory.join("runsc");
        fs::write(&runtime, "one").unwrap();
        let note = |path: &Path| Note::about(&fs::metadata(path).unwrap(), &directory);
        let first = note(&runtime);
        assert_eq!(first.read(), None);
        first.write(Version(20_240_102));
        assert_eq!(note(&runtime).read(), Some(Version(20_240_102)));

        let other = directory.join("other");
        fs::write(&other, "one").unwrap();
        assert_eq!(note(&other).read(), None, "another file");

        let kept = directory.join("runsc-version");
        let open_to = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        open_to(&kept, 0o622);
        assert_eq!(first.read(), None, "others may write it");
        open_to(&kept, 0o600);
        open_to(&directory, 0o777);
        assert_eq!(first.read(), None, "others may replace it");
        open_to(&directory, 0o711);
        assert_eq!(first.read(), Some(Version(20_240_102)));

        fs::write(&runtime, "two").unwrap();
        assert_eq!(note(&runtime).read(), None, "the file was changed");
        fs::remove_dir_all(&directory).unwrap();
    }
}
