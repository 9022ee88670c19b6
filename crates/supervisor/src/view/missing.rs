//! Rules on links and on paths that are not there yet.

use super::{Around, Builder};
use crate::error::RunError;
use crate::home::HomeCover;
use crate::stand_in;
use belljar_policy::{Access, Places, Source};
use belljar_sandbox::plan::{self, Kind, Shows};
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// How many absent settings are seen as an empty object.
const EMPTY_OBJECTS: usize = 16;

impl Builder<'_> {
    /// A rule on a symbolic link goes for what it points to; and where the link itself could be replaced, for it too.
    pub(super) fn place_link(
        &mut self,
        link: &Path,
        access: Access,
        source: &Source,
    ) -> Result<(), RunError> {
        let Ok(target) = link.canonicalize() else {
            return self.place_dangling(link, access, source);
        };
        let kind = if target.is_dir() {
            Kind::Directory
        } else {
            Kind::File
        };
        match access {
            Access::Hidden | Access::Protected => {
                if self.sees(&target) {
                    self.place_existing(&target, kind, access);
                }
                if access == Access::Hidden && self.around(link) == Around::HomeCopy {
                    self.mask(link, HomeCover::Absent);
                }
                // The kernel mounts over a link as over anything else but directories; it can then be neither
                // followed nor replaced.
                if self.around(link) == Around::HostWrite {
                    let shows = match (access, kind) {
                        (Access::Protected, Kind::File) => {
                            self.host(&target, kind, plan::Access::Read)
                        }
                        _ => Shows::Hidden(Kind::File),
                    };
                    self.pin_above(link);
                    self.show(link, shows);
                }
            }
            Access::Read | Access::Write => {
                if let (Around::Own, Ok(to)) = (self.around(link), fs::read_link(link)) {
                    self.show(link, Shows::Link(to));
                }
                self.uncover_above(&target);
                self.place_existing(&target, kind, access);
            }
            // What the link leads to is the host's; the box gets a directory of its own in its place.
            Access::Private if self.around(link) == Around::HomeCopy => {
                self.mask(link, HomeCover::Empty);
            }
            Access::Private | Access::Image | Access::CopyOnWrite => {}
        }
        Ok(())
    }

    /// Holds the links on the way to a path in their places: whoever can replace one leads the path elsewhere. A link that is
    /// mounted on itself can be followed as before, but neither removed nor renamed.
    pub(super) fn hold_links(&mut self, named: &Path) {
        const MOST: usize = 40;
        let mut way: Vec<OsString> = parts(named.parent().unwrap_or(named));
        let mut here = PathBuf::from("/");
        let mut followed = 0;
        while let Some(part) = way.pop() {
            if part == ".." {
                here.pop();
                continue;
            }
            let next = here.join(part);
            let Ok(target) = fs::read_link(&next) else {
                here = next;
                continue;
            };
            followed += 1;
            if followed > MOST {
                return;
            }
            if self.around(&next) == Around::HostWrite && !self.covered(&next) {
                self.pin_above(&next);
                let itself = self.host(&next, Kind::File, plan::Access::Read);
                self.show(next, itself);
            }
            if target.is_absolute() {
                here = PathBuf::from("/");
            }
            way.extend(parts(&target));
        }
    }

    /// What a link shows in a hidden directory needs a place there: one that nothing else is seen in.
    fn uncover_above(&mut self, target: &Path) {
        let covers = |path: &&Path| {
            let shown = self.shown(path.as_os_str().as_bytes());
            matches!(shown, Some(Shows::Hidden(Kind::Directory)))
        };
        if let Some(cover) = target.ancestors().skip(1).find(covers) {
            let cover = cover.to_owned();
            self.show(cover, Shows::Frame);
        }
    }

    /// What lies behind a link was placed before anybody knew that the link makes it writable: whatever is not to be
    /// written or seen there is placed again.
    pub(super) fn place_behind_links(&mut self) -> Result<(), RunError> {
        let table = self.table;
        let shut = |access| matches!(access, Access::Hidden | Access::Protected);
        for (named, entry) in table.iter().filter(|(_, entry)| shut(entry.access)) {
            let Some(real) = self.resolve_parent(named).filter(|real| real != named) else {
                continue;
            };
            let is_there = fs::symlink_metadata(&real)
                .is_ok_and(|metadata| !stand_in::may_be_one(&real, &metadata));
            let around = self.around(&real);
            if !is_there
                && matches!(
                    around,
                    Around::HostWrite | Around::Overlay | Around::HomeCopy
                )
            {
                self.place_missing(&real, entry.access, &entry.origin.source)?;
            } else if is_there && around == Around::HostWrite {
                self.pin_above(&real);
            }
        }
        Ok(())
    }

    /// A link that leads nowhere yet: whoever makes what it names makes what the rule speaks of.
    fn place_dangling(
        &mut self,
        link: &Path,
        access: Access,
        source: &Source,
    ) -> Result<(), RunError> {
        if access == Access::Hidden && self.around(link) == Around::HomeCopy {
            self.mask(link, HomeCover::Absent);
        }
        if !matches!(access, Access::Hidden | Access::Protected)
            || self.around(link) != Around::HostWrite
        {
            return Ok(());
        }
        self.pin_above(link);
        self.show(link, Shows::Hidden(Kind::File));
        let named = fs::read_link(link)
            .ok()
            .and_then(|to| Some(link.parent()?.join(to)));
        match named.and_then(|named| self.resolve_parent(&named)) {
            Some(target) if fs::symlink_metadata(&target).is_err() => {
                self.place_missing(&target, access, source)
            }
            _ => Ok(()),
        }
    }

    /// A rule on a path that does not exist.
    pub(super) fn place_missing(
        &mut self,
        path: &Path,
        access: Access,
        source: &Source,
    ) -> Result<(), RunError> {
        match (access, self.around(path)) {
            (Access::Hidden, Around::HomeCopy) => {
                let missing = self.first_missing(path);
                self.mask(&missing, HomeCover::Absent);
            }
            (Access::Private, Around::HomeCopy) => self.mask(path, HomeCover::Empty),
            (Access::Private, Around::Own) => {
                self.show(path, Shows::Private { mode: 0o1777 });
            }
            (Access::Hidden | Access::Protected, Around::HostWrite) => self.stand_in(path),
            (Access::Hidden | Access::Protected, Around::Overlay) => self.stand_in_layer(path)?,
            (Access::Read | Access::Write, _) if *source == Source::Document => {
                let what = if access == Access::Write {
                    "writable_paths"
                } else {
                    "readable_paths"
                };
                self.built.notes.push(format!(
                    "{what}: {} does not exist and is left out",
                    path.display()
                ));
            }
            _ => {}
        }
        Ok(())
    }

    /// Puts a directory where the path, or the first part of it that is missing, would be created.
    pub(super) fn stand_in(&mut self, path: &Path) {
        let missing = self.first_missing(path);
        if self.covered(&missing) {
            return;
        }
        // A file where a directory is expected: `.git` may be one, and names the real place.
        if let Some(parent) = missing.parent()
            && !self.is_plain(parent)
            && !parent.is_dir()
        {
            self.place_existing(parent, Kind::File, Access::Protected);
            return;
        }
        self.pin_above(&missing);
        let kind = self.kind_of_missing(&missing);
        if missing != path
            && path.starts_with(&self.places.home)
            && !path.starts_with(&self.places.work)
        {
            self.built.notes.push(format!(
                "{} is not there and can't be made in the box, for what must not be in it: make it first",
                missing.display()
            ));
        }
        if self.could_create_in(missing.parent().unwrap_or(Path::new("/"))) {
            self.built.stand_ins.push((missing.clone(), kind));
            // Programs that look for settings take an empty file for a damaged one.
            let is_json = missing.extension().is_some_and(|end| end == "json");
            if is_json && kind == Kind::File && self.built.altered.len() < EMPTY_OBJECTS {
                let object: Arc<[u8]> = Arc::from(&b"{}\n"[..]);
                self.built.altered.push((missing.clone(), object));
            }
            self.show(missing, Shows::StandIn(kind));
        }
    }

    /// What stands for something missing: below a home, what is called like a file is one.
    fn kind_of_missing(&self, missing: &Path) -> Kind {
        const FILES: &[&str] = &[
            "json", "jsonc", "md", "sh", "toml", "ts", "txt", "yaml", "yml",
        ];
        let end = missing.extension().and_then(|end| end.to_str());
        let is_file = end.is_some_and(|end| FILES.contains(&end));
        let Places { home, work, .. } = self.places;
        match is_file && missing.starts_with(home) && !missing.starts_with(work) {
            true => Kind::File,
            false => stand_in::kind_of(missing, home),
        }
    }

    /// The uppermost part of the path that does not exist. Another box's stand-in does not count: it may go any moment,
    /// and nothing may be put in it.
    fn first_missing(&mut self, path: &Path) -> PathBuf {
        let mut missing = path.to_owned();
        while let Some(parent) = missing.parent() {
            if self.is_plain(parent) {
                break;
            }
            match fs::symlink_metadata(parent) {
                Ok(metadata) if !stand_in::may_be_one(parent, &metadata) => {
                    if metadata.is_dir() {
                        self.plain.insert(parent.as_os_str().as_bytes().to_vec());
                    }
                    break;
                }
                _ => missing = parent.to_owned(),
            }
        }
        missing
    }

    fn is_plain(&self, directory: &Path) -> bool {
        self.plain.contains(directory.as_os_str().as_bytes())
    }

    /// Whether the agent could make an entry in a directory: if it may write there, or may give itself the right to.
    fn could_create_in(&mut self, directory: &Path) -> bool {
        let owner = self.identity.owner_uid;
        let known = self
            .creatable
            .entry(directory.as_os_str().as_bytes().to_vec());
        *known.or_insert_with(|| {
            rustix::fs::access(directory, rustix::fs::Access::WRITE_OK).is_ok()
                || rustix::fs::stat(directory).is_ok_and(|stat| stat.st_uid == owner)
        })
    }

    /// The same where changes are kept aside: the stand-in is a layer of its own, the host sees nothing.
    fn stand_in_layer(&mut self, path: &Path) -> Result<(), RunError> {
        let missing = self.first_missing(path);
        let layer = self
            .built
            .entries
            .iter()
            .rev()
            .find_map(|entry| match &entry.shows {
                Shows::Overlay {
                    stand_ins: Some(layer),
                    ..
                } if missing.starts_with(&entry.path) => {
                    Some(layer.join(missing.strip_prefix(&entry.path).ok()?))
                }
                _ => None,
            });
        if let Some(layer) = layer
            && !self.covered(&missing)
        {
            let kind = stand_in::kind_of(&missing, &self.places.home);
            let parent = layer.parent().unwrap_or(&layer);
            let made = match kind {
                Kind::Directory => fs::create_dir_all(&layer),
                Kind::File => fs::create_dir_all(parent).and_then(|()| fs::write(&layer, b"")),
            };
            made.map_err(|source| RunError::State {
                path: layer,
                source,
            })?;
            self.show(missing, Shows::Hidden(kind));
        }
        Ok(())
    }
}

/// A path's names, the last first.
fn parts(path: &Path) -> Vec<OsString> {
    let parts = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    });
    let mut parts: Vec<OsString> = parts.collect();
    parts.reverse();
    parts
}
