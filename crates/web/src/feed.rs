//! The way of live messages to one reader: bounded, and never in the way of whoever tells.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use belljar_api::Live;
use tokio::sync::Notify;

/// Nobody listens any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("nobody listens any more")]
pub struct Gone;

/// One reader of the live stream, as whoever tells sees it.
///
/// Telling never waits. When a reader has not taken what it was told, all that waits for it is dropped, and it is told
/// [`Live::Lost`] in its place: it asks for everything again.
#[derive(Clone, Debug)]
pub struct Feed(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    most: usize,
    waiting: Mutex<Waiting>,
    news: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    messages: VecDeque<Arc<Live>>,
    lost: bool,
    gone: bool,
}

impl Feed {
    /// A feed with room for `most` messages, and its reader's end.
    pub(crate) fn new(most: usize) -> (Self, Reader) {
        let shared = Arc::new(Shared {
            most: most.max(1),
            waiting: Mutex::default(),
            news: Notify::new(),
        });
        (Self(Arc::clone(&shared)), Reader(shared))
    }

    /// Tells the reader something.
    pub fn send(&self, message: Arc<Live>) -> Result<(), Gone> {
        let mut waiting = self.0.lock();
        if waiting.gone {
            return Err(Gone);
        }
        if waiting.messages.len() >= self.0.most {
            waiting.messages.clear();
            waiting.lost = true;
        }
        waiting.messages.push_back(message);
        drop(waiting);
        self.0.news.notify_one();
        Ok(())
    }

    /// Whether nobody listens any more.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.0.lock().gone
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The reader's end of a feed. Dropped, it tells the other end.
#[derive(Debug)]
pub(crate) struct Reader(Arc<Shared>);

impl Reader {
    /// The next message, once there is one.
    pub(crate) async fn next(&self) -> Arc<Live> {
        loop {
            if let Some(message) = self.take() {
                return message;
            }
            self.0.news.notified().await;
        }
    }

    pub(crate) fn take(&self) -> Option<Arc<Live>> {
        let mut waiting = self.0.lock();
        if std::mem::take(&mut waiting.lost) {
            return Some(Arc::new(Live::Lost));
        }
        waiting.messages.pop_front()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut waiting = self.0.lock();
        waiting.gone = true;
        waiting.messages.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(number: usize) -> Arc<Live> {
        let id = belljar_api::AgentId::new(format!("w{number}")).expect("an id");
        Arc::new(Live::Forgotten(vec![id]))
    }

    #[test]
    fn a_slow_reader_is_told_that_it_lost_messages_and_then_the_newest() {
        let (feed, reader) = Feed::new(3);
        for number in 0..3 {
            assert_eq!(feed.send(message(number)), Ok(()));
        }
        assert_eq!(reader.take(), Some(message(0)));
        for number in 3..6 {
            assert_eq!(feed.send(message(number)), Ok(()));
        }
        assert_eq!(reader.take(), Some(Arc::new(Live::Lost)));
        assert_eq!(reader.take(), Some(message(4)));
        assert_eq!(reader.take(), Some(message(5)));
        assert_eq!(reader.take(), None);
        drop(reader);
        assert!(feed.is_gone());
        assert_eq!(feed.send(message(6)), Err(Gone));
    }
}
