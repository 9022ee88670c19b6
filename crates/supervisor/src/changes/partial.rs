//! Applying or discarding some changes while the others go on waiting.
//!
//! The listing is what waits. It is written anew when the selected changes are on the host, so whoever is killed before that
//! finds them done, and goes on. Of a file that gets some of its hunks, what it is to become is written down beforehand: else it
//! would be taken for somebody else's.

use super::apply::{self, Composed};
use super::content::content_of_text;
use super::host::{Base, Fingerprint};
use super::listing::{Listing, Made, PartialFile};
use super::selection::Selection;
use super::store::Store;
use super::tree::{Cursor, remove};
use super::{ApplyError, Conflict, Overlay, at, open_ended, remove_store};
use crate::error::RunError;
use crate::state::StateDir;
use std::collections::BTreeSet;
use std::io;

impl Overlay {
    /// Makes the selected changes on the host, under the same conditions as [`Overlay::apply`]; the others go on waiting. A
    /// directory that the host does not have is made for what is in it.
    pub fn apply_selected(&self, selection: &Selection) -> Result<(), ApplyError> {
        if !self.listing.troubles.is_empty() {
            return Err(ApplyError::Troubled(self.listing.troubles.clone()));
        }
        self.lock_unchanged().map_err(ApplyError::State)?;
        let applied = self.apply_locked(selection);
        // Of a store that is gone, this is nothing.
        self.store.unlock();
        applied
    }

    fn apply_locked(&self, selection: &Selection) -> Result<(), ApplyError> {
        let mut whole = selection.whole.clone();
        whole.retain(|index| !selection.composed.contains_key(index));
        let parts: BTreeSet<usize> = selection.composed.keys().copied().collect();
        let all: BTreeSet<usize> = whole.union(&parts).copied().collect();
        let all = self.listing.closed(&all);
        let mut picked = self.listing.clone();
        let mut waiting = self.listing.clone();
        let mut composed = Composed::new();
        for (index, text) in &selection.composed {
            let number = self.prepare(*index, text, &mut picked, &mut waiting)?;
            composed.insert(number, text.clone());
        }
        let save = |listing: &Listing| {
            let saved = self.store.save_listing(listing);
            saved.map_err(|error| ApplyError::State(self.store.fail(error)))
        };
        if !composed.is_empty() {
            save(&waiting)?;
        }
        apply::perform(&self.store, &picked.with(&all), &composed)?;
        for (index, text) in &selection.composed {
            settle_part(&mut waiting, *index, text);
        }
        let done: BTreeSet<usize> = all.difference(&parts).copied().collect();
        let left = waiting.without(&done);
        match left.is_empty() {
            true => remove_store(self.store.path()).map_err(ApplyError::State),
            false => save(&left),
        }
    }

    /// Turns the entry of a file into one of what some hunks make of it. Gives its number.
    fn prepare(
        &self,
        index: usize,
        text: &str,
        picked: &mut Listing,
        waiting: &mut Listing,
    ) -> Result<usize, ApplyError> {
        let path = self.listing.path(index);
        let conflict = || ApplyError::Conflicts(vec![Conflict { path: path.clone() }]);
        let fail = |source: io::Error| ApplyError::Failed {
            path: path.clone(),
            source,
        };
        // The mode goes with the last hunk.
        let now = on_host(&self.listing, index, |host, name| host.look(name));
        let now = now.map_err(fail)?.flatten().ok_or_else(conflict)?;
        let (mode, content) = (now.st_mode & 0o777, content_of_text(text));
        for (listing, is_picked) in [(picked, true), (waiting, false)] {
            let node = listing.nodes.get_mut(index);
            let Some(entry) = node.and_then(|node| node.entry.as_mut()) else {
                return Err(conflict());
            };
            let content = content.clone();
            match is_picked {
                true => entry.made = Some(Made::Plain { mode, content }),
                false => entry.partly.push(PartialFile { mode, content }),
            }
        }
        Ok(self
            .listing
            .nodes
            .get(index)
            .map_or(index, |node| node.number))
    }

    /// Throws the selected changes away; the others go on waiting.
    pub fn discard_selected(&self, selection: &Selection) -> Result<(), RunError> {
        self.lock_unchanged()?;
        let left = self.listing.without(&selection.whole);
        if left.is_empty() {
            return remove_store(self.store.path());
        }
        let fail = |error| self.store.fail(error);
        self.store.save_listing(&left).map_err(fail)?;
        // Nobody can apply them any more; what is left in the layers goes with the store at the latest.
        let needed: BTreeSet<usize> = left.nodes.iter().map(|node| node.number).collect();
        for index in selection.whole.iter().rev() {
            let _ = self.forget_kept(*index, &needed);
        }
        self.store.unlock();
        Ok(())
    }

    fn forget_kept(&self, index: usize, needed: &BTreeSet<usize>) -> io::Result<()> {
        let (root, names) = self.listing.way(index);
        let Some((name, above)) = names.split_last() else {
            return Ok(());
        };
        let node = self.listing.nodes.get(index);
        let is_needed = node.is_some_and(|node| needed.contains(&node.number));
        if is_needed {
            return Ok(());
        }
        let mut layer = Cursor::at(self.store.changes(root)?);
        for name in above {
            layer.enter(name)?;
        }
        remove(&mut layer, name)
    }

    /// Keeps others away, and makes sure that nobody applied or discarded anything since it was opened.
    pub(super) fn lock_unchanged(&self) -> Result<(), RunError> {
        let path = self.store.path();
        self.store.lock().map_err(at(path))?;
        let now = self.store.listing();
        if matches!(&now, Ok(Some(now)) if *now == self.listing) {
            return Ok(());
        }
        self.store.unlock();
        now.map_err(at(path))?;
        Err(RunError::Invalid {
            what: "these changes were applied or discarded meanwhile, or some of them".into(),
            hint: "look at `belljar diff` once more".into(),
        })
    }
}

/// Once its hunks are on the host, the file there is what the others are held against.
fn settle_part(listing: &mut Listing, index: usize, text: &str) {
    let content = content_of_text(text);
    let look = |host: &mut Cursor, name: &std::ffi::OsStr| -> io::Result<Option<Base>> {
        let file = super::tree::open_plain(host.here()?, name)?;
        let before = Fingerprint::of(&rustix::fs::fstat(&file)?);
        let is_ours = super::content::content_of(&file)? == content;
        let after = Fingerprint::of(&rustix::fs::fstat(&file)?);
        let now = host.look(name)?.map(|stat| Fingerprint::of(&stat));
        Ok(
            (is_ours && before == after && now == Some(before)).then_some(Base {
                own: now,
                within: None,
                changed_meanwhile: false,
            }),
        )
    };
    let base = on_host(listing, index, look);
    let entry = listing
        .nodes
        .get_mut(index)
        .and_then(|node| node.entry.as_mut());
    if let (Some(entry), Ok(Some(Some(base)))) = (entry, base) {
        entry.base = base;
        entry.partly.clear();
    }
}

/// Goes to the host's directory that a change is in.
fn on_host<T>(
    listing: &Listing,
    index: usize,
    look: impl FnOnce(&mut Cursor, &std::ffi::OsStr) -> io::Result<T>,
) -> io::Result<Option<T>> {
    let (root, names) = listing.way(index);
    let Some((name, above)) = names.split_last() else {
        return Ok(None);
    };
    let mut host = Cursor::open(root)?;
    for name in above {
        host.enter(name)?;
    }
    look(&mut host, name).map(Some)
}

/// Throws the changes of box `id` away, listed or not.
pub(super) fn discard(state: &StateDir, id: &str) -> Result<(), RunError> {
    let store: Store = open_ended(state, id)?;
    store.lock().map_err(|error| store.fail(error))?;
    remove_store(store.path())
}
