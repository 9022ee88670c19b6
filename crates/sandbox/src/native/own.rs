//! Which directories of a view are of our own making: only there can entries be made, and no link can be on the way.

use crate::plan::{Shows, View};
use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// For each path of the view, whether it is a directory made by us, so that we can make entries in it.
pub(super) type Own<'a> = HashMap<&'a [u8], bool>;

pub(super) fn is_own(entry: &View) -> bool {
    matches!(entry.shows, Shows::Frame | Shows::Private { .. })
}

/// Whether the closest entry that contains `path` is made by us. By bytes: comparing paths as paths is slow.
pub(super) fn is_in_own(path: &Path, own: &Own<'_>) -> bool {
    let mut rest = path.as_os_str().as_bytes();
    while let Some(slash) = rest.iter().rposition(|byte| *byte == b'/') {
        let parent = if slash == 0 {
            &b"/"[..]
        } else {
            &rest[..slash]
        };
        if let Some(own) = own.get(parent) {
            return *own;
        }
        if slash == 0 {
            break;
        }
        rest = &rest[..slash];
    }
    false
}

/// Whether every entry of the view that contains `path` is made by us.
pub(super) fn is_all_own(path: &Path, own: &Own<'_>) -> bool {
    path.ancestors()
        .skip(1)
        .all(|above| own.get(above.as_os_str().as_bytes()).is_none_or(|own| *own))
}
