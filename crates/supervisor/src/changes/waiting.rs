//! Which overlays wait to be applied or discarded, and what is known of the runs that left them.

use super::store::Store;
use super::{Overlay, store_of};
use crate::state::StateDir;
use serde::Serialize;
use std::path::PathBuf;
use std::time::SystemTime;

/// What ran in the box of an overlay, and where.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunOrigin {
    /// Its working directory.
    pub work: PathBuf,
    /// Its user's home directory.
    pub home: PathBuf,
    /// The program, without its arguments.
    pub program: PathBuf,
}

/// An overlay that waits.
#[derive(Debug, Clone, Serialize)]
pub struct WaitingOverlay {
    /// The box's id.
    pub id: String,
    /// What ran there; nothing for one of an earlier release.
    #[serde(skip)]
    pub origin: Option<RunOrigin>,
    /// When the box had ended.
    #[serde(skip)]
    pub ended: Option<SystemTime>,
}

impl Overlay {
    /// Those that wait, the newest first.
    pub fn waiting_newest_first(state: &StateDir) -> Vec<WaitingOverlay> {
        let look = |id: String| {
            let opened = store_of(state, &id)
                .ok()
                .and_then(|path| Store::open(&path).ok());
            let store = opened.flatten();
            WaitingOverlay {
                origin: store.as_ref().and_then(|store| store.roots().ok()?.origin),
                ended: store.as_ref().and_then(Store::listed_at),
                id,
            }
        };
        let mut waiting: Vec<_> = Overlay::waiting(state).into_iter().map(look).collect();
        waiting.sort_by(|a, b| b.ended.cmp(&a.ended).then_with(|| a.id.cmp(&b.id)));
        waiting
    }
}
