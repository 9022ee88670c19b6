//! What the index has that the commit does not: what the next commit would change.

use super::files::{GitFiles, Side};
use super::index::{IndexEntries, IndexEntry, parse};
use super::objects::{GitObjects, ObjectId, ObjectKind};
use super::{RepositorySummary, StagedPath, commits, refs};
use crate::changes::ChangeKind;
use std::collections::HashMap;

const LARGEST_INDEX: u64 = 64 << 20;
const MOST_LOOKUPS: usize = 20_000;

/// A tree's names, with what each is.
type TreeNames = HashMap<Vec<u8>, (u32, ObjectId)>;

/// Compares the index with the one before, and what is different with HEAD.
pub(super) fn look(
    files: &GitFiles<'_>,
    objects: &GitObjects<'_>,
    into: &mut RepositorySummary,
) -> Result<(), String> {
    if files.changed(b"index").is_none() {
        return Ok(());
    }
    let read = |side| -> Result<IndexEntries, String> {
        match files.read(b"index", side, LARGEST_INDEX) {
            Ok(None) => Ok(IndexEntries::new()),
            Ok(Some(bytes)) => {
                parse(&bytes).ok_or("the index is of a form that is not looked into".to_owned())
            }
            Err(error) => Err(format!("the index: {error}")),
        }
    };
    let (before, after) = (read(Side::Before)?, read(Side::After)?);
    let mut changed: Vec<(&Vec<u8>, Option<&IndexEntry>)> = Vec::new();
    for (path, entry) in &after {
        let same = |old: &&IndexEntry| old.mode == entry.mode && old.id == entry.id;
        let old = before.get(path);
        if old.filter(same).is_none() || entry.is_conflict {
            changed.push((path, Some(entry)));
        }
        if entry.is_unwatched && !old.is_some_and(|old| old.is_unwatched) {
            into.unwatched.push(path.clone());
        }
    }
    let gone = before.keys().filter(|path| !after.contains_key(*path));
    changed.extend(gone.map(|path| (path, None)));
    if changed.len() > MOST_LOOKUPS {
        return Err(format!(
            "{} entries of the index changed, which are not compared with HEAD",
            changed.len()
        ));
    }
    let mut tree = HeadTree {
        objects,
        root: head_tree(files, objects)?,
        trees: HashMap::new(),
    };
    for (path, entry) in changed {
        let committed = tree.find(path)?;
        let is_conflict = entry.is_some_and(|entry| entry.is_conflict);
        let kind = match (committed, entry) {
            (None, None) => continue,
            (Some((mode, id)), Some(entry))
                if mode == entry.mode && id == entry.id && !is_conflict =>
            {
                continue;
            }
            (None, Some(_)) => ChangeKind::Added,
            (Some(_), None) => ChangeKind::Deleted,
            (Some(_), Some(_)) => ChangeKind::Modified,
        };
        into.staged.push(StagedPath {
            path: path.clone(),
            kind,
            is_conflict,
        });
    }
    Ok(())
}

fn head_tree(files: &GitFiles<'_>, objects: &GitObjects<'_>) -> Result<Option<ObjectId>, String> {
    let Some(head) = refs::head_object(files, Side::After) else {
        return Ok(None);
    };
    let fail = |why: String| format!("the commit {}: {why}", head.hex());
    match objects.read(&head) {
        Ok(Some(object)) if object.kind == ObjectKind::Commit => {
            Ok(commits::parse(&head, &object.bytes).tree)
        }
        Ok(_) => Err(fail("there is none".to_owned())),
        Err(error) => Err(fail(error.to_string())),
    }
}

struct HeadTree<'a> {
    objects: &'a GitObjects<'a>,
    root: Option<ObjectId>,
    trees: HashMap<ObjectId, TreeNames>,
}

impl HeadTree<'_> {
    fn find(&mut self, path: &[u8]) -> Result<Option<(u32, ObjectId)>, String> {
        let Some(mut at) = self.root else {
            return Ok(None);
        };
        let mut parts = path.split(|byte| *byte == b'/').peekable();
        while let Some(part) = parts.next() {
            let Some((mode, id)) = self.names(at)?.get(part).copied() else {
                return Ok(None);
            };
            let is_tree = mode & 0o170_000 == 0o040_000;
            match (parts.peek().is_some(), is_tree) {
                (true, true) => at = id,
                (false, false) => return Ok(Some((mode, id))),
                _ => return Ok(None),
            }
        }
        Ok(None)
    }

    fn names(&mut self, id: ObjectId) -> Result<&TreeNames, String> {
        if !self.trees.contains_key(&id) {
            let names = match self.objects.read(&id) {
                Ok(Some(object)) if object.kind == ObjectKind::Tree => tree_names(&object.bytes),
                Ok(_) => return Err(format!("the tree {} is missing", id.hex())),
                Err(error) => return Err(format!("the tree {}: {error}", id.hex())),
            };
            self.trees.insert(id, names);
        }
        Ok(self.trees.entry(id).or_default())
    }
}

fn tree_names(mut rest: &[u8]) -> TreeNames {
    let mut names = TreeNames::new();
    while let Some(end) = rest.iter().position(|byte| *byte == 0) {
        let (head, after) = rest.split_at(end);
        let Some((id, after)) = after.get(1..).and_then(|after| after.split_at_checked(20)) else {
            break;
        };
        rest = after;
        let space = head.iter().position(|byte| *byte == b' ');
        let Some((mode, name)) = space.map(|space| head.split_at(space)) else {
            break;
        };
        let mode = std::str::from_utf8(mode).ok();
        let mode = mode.and_then(|mode| u32::from_str_radix(mode, 8).ok());
        let (Some(mode), Ok(id)) = (mode, id.try_into()) else {
            break;
        };
        names.insert(
            name.get(1..).unwrap_or_default().to_vec(),
            (mode, ObjectId(id)),
        );
    }
    names
}
