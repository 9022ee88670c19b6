//! The directories that an overlay needs, made before its box starts.

use super::waiting::RunOrigin;
use crate::error::RunError;
use crate::places::Principal;
use crate::state::StateDir;
use crate::view::overlay_name;
use belljar_policy::{Access, PathTable};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Makes the directories an overlay needs, one set for each writable path, owned by the box's user.
pub(crate) fn make_overlay(
    id: &str,
    table: &PathTable,
    principal: &Principal,
    state: &StateDir,
    origin: &RunOrigin,
) -> Result<PathBuf, RunError> {
    let store = state.make_overlay(id)?;
    let make = |path: &Path, mode: u32| -> Result<(), RunError> {
        let fail = |source| RunError::State {
            path: path.to_owned(),
            source,
        };
        std::fs::create_dir(path).map_err(fail)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).map_err(fail)?;
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(
                path,
                Some(principal.identity.uid),
                Some(principal.identity.gid),
            )
            .map_err(fail)?;
        }
        Ok(())
    };
    let written = table
        .iter()
        .filter(|(path, entry)| entry.access == Access::Write && path.is_dir());
    let paths: Vec<PathBuf> = written
        .filter_map(|(path, _)| path.canonicalize().ok())
        .collect();
    for path in &paths {
        let layers = store.join(overlay_name(path));
        // The box's user will own the layers, and nobody else may look; the list of changes beside them stays ours.
        let fail = |source| RunError::State {
            path: layers.clone(),
            source,
        };
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&layers)
            .map_err(fail)?;
        for name in ["changes", "scratch", "stand-ins"] {
            make(&layers.join(name), 0o755)?;
        }
        // The mount point shows the upper layer's mode.
        if let Ok(metadata) = std::fs::metadata(path) {
            let _ = std::fs::set_permissions(layers.join("changes"), metadata.permissions());
        }
    }
    super::write_roots(&store, principal.identity.uid, &paths, origin)?;
    Ok(store)
}
