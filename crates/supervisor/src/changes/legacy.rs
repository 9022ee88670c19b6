//! What 0.1.0 wrote of an overlay: paths, and what the host had there. The rest is read from the layers once more.

use super::host::{Base, Below, Fingerprint};
use super::listing::Listing;
use serde::Deserialize;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;

pub(super) const CHANGES: &str = "changes.json";
const MOST: u64 = 1 << 30;

#[derive(Deserialize)]
struct Change {
    path: PathBuf,
    base: OldBase,
}

#[derive(Deserialize)]
struct OldBase {
    own: Option<Fingerprint>,
    within: Option<Vec<(PathBuf, Fingerprint)>>,
    changed_meanwhile: bool,
}

/// What the host had when the box ended, not what it has now.
pub(super) fn keep_bases(file: File, listing: &mut Listing) -> io::Result<()> {
    let mut bytes = Vec::new();
    file.take(MOST).read_to_end(&mut bytes)?;
    let changes: Vec<Change> = serde_json::from_slice(&bytes)?;
    let mut bases: HashMap<PathBuf, Base> = changes
        .into_iter()
        .map(|Change { path, base }| {
            let below = |(inside, seen): (PathBuf, Fingerprint)| {
                let inside = inside.strip_prefix(&path).ok()?;
                Some(Below {
                    depth: inside.components().count(),
                    name: inside.file_name()?.into(),
                    seen,
                })
            };
            let within = base
                .within
                .map(|within| within.into_iter().filter_map(below).collect());
            let base = Base {
                own: base.own,
                within,
                changed_meanwhile: base.changed_meanwhile,
            };
            (path, base)
        })
        .collect();
    for index in 0..listing.nodes.len() {
        let base = bases.remove(&listing.path(index));
        let entry = listing
            .nodes
            .get_mut(index)
            .and_then(|node| node.entry.as_mut());
        if let (Some(entry), Some(base)) = (entry, base) {
            entry.base = base;
        }
    }
    Ok(())
}
