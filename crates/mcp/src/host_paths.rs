//! Where paths among a call's arguments lead, on this machine.

use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use belljar_policy::Paths;

/// The file system of a server that runs here. A link that is made after a call was judged is not seen: what the
/// server may touch is its box's to say, and rules about paths come on top of that.
#[derive(Clone, Debug)]
pub struct HostPaths {
    base: Option<String>,
}

impl HostPaths {
    /// A server that works in this directory.
    #[must_use]
    pub fn at(directory: &Path) -> Self {
        let real = directory.canonicalize();
        let base = real.ok().and_then(|path| path.to_str().map(str::to_owned));
        Self { base }
    }
}

impl Paths for HostPaths {
    fn base(&self) -> Option<&str> {
        self.base.as_deref()
    }

    fn real(&self, path: &str) -> Option<String> {
        real(Path::new(path)).and_then(|path| path.to_str().map(str::to_owned))
    }
}

/// As the kernel would walk it. What is not there yet leads where its name says; a link to what is not there can't
/// be told, because making the file would follow it.
fn real(path: &Path) -> Option<PathBuf> {
    if let Ok(real) = path.canonicalize() {
        return Some(real);
    }
    let mut reached = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::ParentDir => {
                reached.pop();
            }
            Component::Normal(name) => {
                reached.push(name);
                match reached.canonicalize() {
                    Ok(real) => reached = real,
                    Err(error) if error.kind() == ErrorKind::NotFound => {
                        if reached.symlink_metadata().is_ok() {
                            return None;
                        }
                    }
                    Err(_) => return None,
                }
            }
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    Some(reached)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_are_followed_as_far_as_there_is_something() {
        let scratch = tempfile::tempdir().unwrap();
        let root = scratch.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("work/sub")).unwrap();
        std::fs::create_dir_all(root.join("etc/deep")).unwrap();
        symlink(root.join("etc/deep"), root.join("work/link")).unwrap();
        symlink("nowhere", root.join("work/dangling")).unwrap();
        let paths = HostPaths::at(&root.join("work"));
        let at = |below: &str| format!("{}/{below}", root.display());
        assert_eq!(paths.base(), Some(at("work").as_str()));
        assert_eq!(paths.real(&at("work/link/new")), Some(at("etc/deep/new")));
        // The kernel goes up from where the link leads.
        assert_eq!(paths.real(&at("work/link/../x")), Some(at("etc/x")));
        assert_eq!(paths.real(&at("work/sub/../new/x")), Some(at("work/new/x")));
        assert_eq!(paths.real(&at("work/dangling")), None);
    }
}
