//! One teller, many readers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use belljar_api::Live;

use crate::Feed;

/// The feeds of all who watch, for a [`Backend`](crate::Backend) that hears of everything in one place.
#[derive(Debug, Default)]
pub struct Fan(Mutex<Vec<Feed>>);

impl Fan {
    /// Adds a reader. It is told `first` before anything else; nothing is told between the two.
    pub fn add(&self, feed: Feed, first: impl FnOnce() -> Live) {
        let mut feeds = self.lock();
        if feed.send(Arc::new(first())).is_ok() {
            feeds.push(feed);
        }
    }

    /// Tells everybody, and forgets those who are gone. It waits for nobody.
    pub fn tell(&self, message: &Arc<Live>) {
        self.lock()
            .retain(|feed| feed.send(Arc::clone(message)).is_ok());
    }

    /// Whether nobody watches.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Feed>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_is_told_everything_first_and_who_is_gone_is_forgotten() {
        let fan = Fan::default();
        let (feed, reader) = Feed::new(8);
        fan.tell(&Arc::new(Live::Lost));
        fan.add(feed, || Live::Agents(Vec::new()));
        let (other, gone) = Feed::new(8);
        fan.add(other, || Live::Agents(Vec::new()));
        drop(gone);
        let message = Arc::new(Live::Forgotten(Vec::new()));
        fan.tell(&message);
        assert_eq!(reader.take(), Some(Arc::new(Live::Agents(Vec::new()))));
        assert!(
            reader
                .take()
                .is_some_and(|told| Arc::ptr_eq(&told, &message))
        );
        assert_eq!(fan.lock().len(), 1);
        let (late, reader) = Feed::new(8);
        drop(reader);
        fan.add(late, || Live::Lost);
        assert_eq!(fan.lock().len(), 1);
    }
}
