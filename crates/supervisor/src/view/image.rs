//! A view whose ground is an image: its tree, and in it what the launch and the rules show of the host's.
//!
//! Nothing is ever made or mounted through a name of the image's. Where the box needs something that the image lacks, or has
//! as a link, the directories above become directories of the box's own, with what the image has in them shown entry by
//! entry; a link on the way gives way. So a path of the host's is seen at its own path, whatever the image says is there.

use super::{Around, Builder, Found, OWN_TREES, children};
use crate::error::RunError;
use belljar_policy::{Access, PathTable, Source};
use belljar_sandbox::plan::{self, Kind, Ownership, Shows};
use std::path::{Path, PathBuf};

impl Builder<'_> {
    /// Everything at the top of the image but what every box has its own of.
    pub(super) fn image_top_level(&mut self) {
        if let Some(tree) = self.image {
            self.show_image_entries(&tree.on_host(Path::new("/")), Path::new("/"));
        }
    }

    /// Shows what is in a directory of the image's, where nothing else has been said about it.
    fn show_image_entries(&mut self, source: &Path, at: &Path) {
        for (entry, found) in children(source) {
            let Some(name) = entry.file_name() else {
                continue;
            };
            let path = at.join(name);
            let is_own = OWN_TREES.iter().any(|own| path == Path::new(own));
            if is_own || self.covered(&path) {
                continue;
            }
            let shows = match found {
                // Followed inside, where the box's root is the root.
                Found::Link(target) => Shows::Link(target),
                Found::Directory => of_image(entry, Kind::Directory),
                Found::Other => of_image(entry, Kind::File),
            };
            self.show(path, shows);
        }
    }

    /// Whether a path lies in something of the host's that is shown.
    pub(super) fn is_in_hosts(&self, path: &Path) -> bool {
        matches!(
            self.around(path),
            Around::HostRead | Around::HostWrite | Around::Overlay | Around::HomeCopy
        )
    }

    /// One entry of the table, where it is not about what lies in a tree of the host's.
    pub(super) fn place_on_image(
        &mut self,
        named: &Path,
        access: Access,
        source: &Source,
    ) -> Result<(), RunError> {
        match access {
            Access::Image | Access::Protected | Access::CopyOnWrite => Ok(()),
            Access::Hidden => {
                self.hide_in_image(named);
                Ok(())
            }
            Access::Private => {
                self.make_seat(named, Kind::Directory);
                let shows = self.kept_empty_home(named).unwrap_or(Shows::Private {
                    mode: self.private_mode(named),
                });
                self.show(named, shows);
                Ok(())
            }
            Access::Read | Access::Write => self.place_from_host(named, access, source),
        }
    }

    /// Something of the host's, at its own path; where that goes through links of the host's, a link leads there.
    fn place_from_host(
        &mut self,
        named: &Path,
        access: Access,
        source: &Source,
    ) -> Result<(), RunError> {
        let Ok(real) = named.canonicalize() else {
            return self.place_missing(named, access, source);
        };
        let kind = match real.is_dir() {
            true => Kind::Directory,
            false => Kind::File,
        };
        if real == Path::new("/") {
            return Err(no_root(named));
        }
        if real != named
            && self.image.and_then(|tree| tree.real(named)) != Some((real.clone(), kind))
        {
            self.open_up(named.parent().unwrap_or(named));
            self.show(named, Shows::Link(real.clone()));
        }
        if self.is_in_hosts(&real) {
            self.place_existing(&real, kind, access);
            return Ok(());
        }
        self.make_seat(&real, kind);
        match real == self.places.home && access == Access::Read {
            true => self.home(),
            false => self.place_existing(&real, kind, access),
        }
        Ok(())
    }

    /// Sees to it that something can be mounted at a path.
    fn make_seat(&mut self, path: &Path, kind: Kind) {
        let is_there = self.around(path) == Around::Image
            && self.image.and_then(|tree| tree.plain(path)) == Some(kind);
        if let Some(parent) = path.parent().filter(|_| !is_there) {
            self.open_up(parent);
        }
    }

    /// Makes a directory of the image's, or what stands in its place, one of the box's own.
    fn open_up(&mut self, directory: &Path) {
        let Some(parent) = directory.parent() else {
            return;
        };
        self.open_up(parent);
        match self
            .shown(directory.as_os_str().as_encoded_bytes())
            .cloned()
        {
            Some(Shows::Host {
                source,
                kind: Kind::Directory,
                ownership: Ownership::Image,
                ..
            }) => {
                self.show(directory, Shows::Frame);
                self.show_image_entries(&source, directory);
            }
            Some(
                Shows::Link(_)
                | Shows::Hidden(_)
                | Shows::Host {
                    ownership: Ownership::Image,
                    ..
                },
            ) => self.show(directory, Shows::Frame),
            _ => {}
        }
    }

    /// Covers what the image has at a path, and what that leads to inside.
    fn hide_in_image(&mut self, named: &Path) {
        let Some(tree) = self.image else { return };
        let above = named.parent().and_then(|parent| tree.real(parent));
        let itself = above
            .zip(named.file_name())
            .map(|((parent, _), name)| parent.join(name))
            .filter(|path| {
                std::fs::symlink_metadata(tree.on_host(path)).is_ok_and(|found| !found.is_dir())
            });
        let hidden = itself.map(|path| (path, Kind::File));
        let hidden = hidden.into_iter().chain(tree.real(named));
        for (path, kind) in hidden.filter(|(path, _)| path != Path::new("/")) {
            match self.around(&path) {
                Around::Own => self.unshow(&path),
                Around::Image => self.show(path, Shows::Hidden(kind)),
                // Not the image's, or not to be seen.
                _ => {}
            }
        }
    }

    /// Files that the box needs and the image lacks, as links to where they are shown.
    pub(super) fn place_links(&mut self, links: &[(PathBuf, PathBuf)]) {
        for (path, target) in links {
            if let Some(parent) = path.parent() {
                self.open_up(parent);
            }
            self.show(path, Shows::Link(target.clone()));
        }
    }
}

fn of_image(source: PathBuf, kind: Kind) -> Shows {
    Shows::Host {
        source,
        kind,
        access: plan::Access::Read,
        ownership: Ownership::Image,
    }
}

/// Whether an image is what lies at the bottom: nothing may show the host's root in its place.
pub(crate) fn demand_image_as_ground(table: &PathTable) -> Result<(), RunError> {
    let root = Path::new("/");
    match table.access(root) {
        Access::Image | Access::Hidden => Ok(()),
        _ => Err(no_root(root)),
    }
}

fn no_root(named: &Path) -> RunError {
    RunError::Refused {
        what: format!(
            "{} would show the host's files in place of the image's",
            named.display()
        ),
        hint: "name the directories that the agent needs, or leave `image` out".into(),
    }
}
