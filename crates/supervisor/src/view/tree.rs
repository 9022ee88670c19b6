//! An image's tree, looked at as a program inside would see it: links in it are a stranger's, and none leads out.

use belljar_sandbox::plan::Kind;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The tree of an image.
#[derive(Debug)]
pub(crate) struct Tree {
    /// Where it is on the host, with no link on the way.
    root: PathBuf,
    directory: OwnedFd,
}

impl Tree {
    /// Opens the tree that is kept there.
    pub(crate) fn open(root: &Path) -> std::io::Result<Self> {
        let root = root.canonicalize()?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(&root, flags, Mode::empty())?;
        Ok(Self { root, directory })
    }

    /// Where something of the image is on the host. The path is one without links, as [`Tree::real`] tells them.
    pub(crate) fn on_host(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// What is at a path, if there is no link on the way to it or at it.
    pub(crate) fn plain(&self, path: &Path) -> Option<Kind> {
        let found = self.look(path, ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS);
        found.ok().and_then(|place| kind(&place))
    }

    /// The path that another one comes to when every link is followed inside the image, and what is there.
    pub(crate) fn real(&self, path: &Path) -> Option<(PathBuf, Kind)> {
        let place = self.look(path, ResolveFlags::IN_ROOT).ok()?;
        let link = format!("/proc/self/fd/{}", place.as_raw_fd());
        let at = rustix::fs::readlink(link, Vec::new()).ok()?;
        let at = Path::new(OsStr::from_bytes(at.as_bytes()));
        let below = at.strip_prefix(&self.root).ok()?;
        Some((Path::new("/").join(below), kind(&place)?))
    }

    fn look(&self, path: &Path, resolve: ResolveFlags) -> Result<OwnedFd, Errno> {
        let path = path.strip_prefix("/").unwrap_or(path);
        let path = match path.as_os_str().is_empty() {
            true => Path::new("."),
            false => path,
        };
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let resolve = resolve | ResolveFlags::NO_MAGICLINKS;
        rustix::fs::openat2(&self.directory, path, flags, Mode::empty(), resolve)
    }
}

fn kind(place: &OwnedFd) -> Option<Kind> {
    let mode = rustix::fs::fstat(place).ok()?.st_mode;
    Some(match FileType::from_raw_mode(mode) {
        FileType::Directory => Kind::Directory,
        FileType::Symlink => return None,
        _ => Kind::File,
    })
}

/// Whether anybody may execute the file at a path of the host's that has no links.
pub(crate) fn is_program(path: &Path) -> bool {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let place = rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS);
    place.and_then(rustix::fs::fstat).is_ok_and(|stat| {
        FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_mode & 0o111 != 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// However links are laid, what is found is the image's own.
    #[test]
    fn no_link_leads_out_of_an_image() {
        let place = tempfile::tempdir().expect("a directory");
        let root = place.path().join("tree");
        std::fs::create_dir_all(root.join("etc")).expect("make");
        std::fs::create_dir_all(root.join("usr/bin")).expect("make");
        std::fs::write(root.join("etc/passwd"), "the image's").expect("write");
        std::fs::write(place.path().join("outside"), "the host's").expect("write");
        for (target, link) in [
            ("/etc", "absolute"),
            ("../../../../../../etc", "up"),
            ("../outside", "beside"),
            ("usr/bin", "bin"),
            ("/proc/self/root", "magic"),
        ] {
            symlink(target, root.join(link)).expect("link");
        }
        let tree = Tree::open(&root).expect("open");
        let real = |path: &str| tree.real(Path::new(path));
        let own = |path: &str, kind| Some((PathBuf::from(path), kind));
        assert_eq!(real("/"), own("/", Kind::Directory));
        assert_eq!(real("/absolute/passwd"), own("/etc/passwd", Kind::File));
        assert_eq!(real("/up/passwd"), own("/etc/passwd", Kind::File));
        assert_eq!(real("/bin"), own("/usr/bin", Kind::Directory));
        assert_eq!(real("/../etc"), own("/etc", Kind::Directory));
        for nothing in ["/beside", "/magic", "/magic/etc", "/absolute/shadow"] {
            assert_eq!(real(nothing), None, "{nothing}");
        }
        let plain = |path: &str| tree.plain(Path::new(path));
        assert_eq!(plain("/etc/passwd"), Some(Kind::File));
        assert_eq!(plain("/absolute/passwd"), None);
        assert_eq!(plain("/bin"), None);
    }
}
