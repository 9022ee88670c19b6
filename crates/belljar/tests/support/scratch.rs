//! A directory outside the test's own world, for attacks on places Belljar treats specially.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A fresh directory that everyone may read, removed when dropped.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn below(parent: &str) -> Scratch {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = Path::new(parent).join(format!(
            "belljar-scratch-{}-{number:04}",
            std::process::id()
        ));
        fs::create_dir(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))
            .expect("open the directory to all");
        Scratch(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file that everyone may read; returns its path.
    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        fs::write(&path, text).expect("write a scratch file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644))
            .expect("open the file to all");
        path.to_string_lossy().into_owned()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}
