//! Files that are hidden by name, wherever the search finds them.

use super::{Around, Builder};
use crate::home::HomeCover;
use crate::named;
use belljar_policy::{Access, Source};
use belljar_sandbox::plan::{Kind, Shows};
use std::path::Path;

impl Builder<'_> {
    /// Whether a rule hides this very directory or gives the box its own there, and none shows anything in it: then
    /// there is nothing to find in it that could be seen.
    fn is_hidden_throughout(&self, directory: &Path) -> bool {
        self.is_named(directory)
            && self
                .table
                .iter()
                .filter(|(path, _)| path.starts_with(directory))
                .all(|(_, entry)| matches!(entry.access, Access::Hidden | Access::Private))
    }

    /// Covers files that are hidden by name.
    pub(super) fn hide_by_name(&mut self) {
        let names: Vec<&str> = self
            .table
            .any_named()
            .iter()
            .map(|(name, _)| name.as_str())
            .collect();
        if names.is_empty() || self.table.mode() == belljar_policy::FsMode::None {
            return;
        }
        let work = self.places.work.clone();
        let everywhere = self
            .table
            .any_named()
            .iter()
            .any(|(_, origin)| origin.source != Source::BuiltIn);
        let mut starts = vec![self.places.home.clone()];
        // Beside the working directory and above it, but not from the root, which is not the user's.
        starts.extend(
            work.ancestors()
                .skip(1)
                .take(2)
                .filter(|path| path.components().count() > 1)
                .map(Path::to_owned),
        );
        if everywhere {
            starts.push(work.clone());
        }
        // What the box does not see needs no search; the home directory is built from parts it sees.
        let from_parts = |path: &Path| {
            path == self.places.home
                && matches!(
                    self.shown(path.as_os_str().as_encoded_bytes()),
                    Some(Shows::Frame)
                )
        };
        starts.retain(|path| path.is_dir() && (from_parts(path) || self.sees(path)));
        starts.sort();
        starts.dedup();
        let leave_out =
            |path: &Path| path == work && !everywhere || self.is_hidden_throughout(path);
        let wanted = |name: &str| names.contains(&name);
        let found = named::search(&starts, &wanted, &leave_out, named::HIDDEN);
        let cover = |builder: &mut Self, path: &Path, kind| {
            let around = builder.around(path);
            let visible = matches!(
                around,
                Around::HostRead | Around::HostWrite | Around::Overlay
            );
            let hidden = builder.table.decide(path, belljar_policy::FileOp::Read);
            if !hidden.is_allow() && kind == Kind::File || kind == Kind::Directory {
                if around == Around::HomeCopy {
                    builder.mask(path, HomeCover::Absent);
                } else if visible {
                    builder.show(path, Shows::Hidden(kind));
                } else {
                    builder.unshow(path);
                }
            }
        };
        for file in &found.files {
            cover(self, file, Kind::File);
        }
        for directory in found
            .unsearched
            .iter()
            .filter(|path| !work.starts_with(path))
        {
            cover(self, directory, Kind::Directory);
        }
        self.searched = starts;
        if !found.unsearched.is_empty() {
            self.built.notes.push(format!(
                "{} directories are hidden because the search for {} files ended before them (first: {})",
                found.unsearched.len(),
                names.first().unwrap_or(&""),
                found.unsearched.first().map(|path| path.display().to_string()).unwrap_or_default(),
            ));
        }
    }
}
