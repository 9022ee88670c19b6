//! Files that hold secrets, and why some places are no good for them.

use crate::error::RunError;
use crate::network::secret_files;
use belljar_policy::{Access, Capability, PathTable, Places, Workspace};

/// A file with a secret can't be withheld from a box that writes to its directory: a cover over it goes when somebody on the
/// host puts a new key in its place, and the new key could be read before there is a cover again. In an overlay the cover
/// is not on the host's name, and stays.
pub(crate) fn check_secret_files(
    capability: &Capability,
    places: &Places,
    table: &PathTable,
) -> Result<(), RunError> {
    if capability.filesystem.workspace == Workspace::Overlay {
        return Ok(());
    }
    let files = secret_files(capability).filter_map(|rule| rule.resolve(places));
    let mut files = files.map(|path| path.canonicalize().unwrap_or(path));
    let reached = files.find(|path| {
        path.parent()
            .is_some_and(|parent| table.access(parent) == Access::Write)
    });
    match reached {
        Some(path) => Err(RunError::Refused {
            what: format!(
                "{} holds a secret and lies in a directory that the box may write, where it can't be withheld when it is replaced",
                path.display()
            ),
            hint: "keep it outside of the workspace (~/.config/NAME/key, for one) or in a directory of its own under \
                   filesystem_config.hidden_paths, or use filesystem_config.workspace: overlay"
                .into(),
        }),
        None => Ok(()),
    }
}
