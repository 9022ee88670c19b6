//! What happens, told as it happens, to whoever listens. A slow listener loses messages and is told so; nobody waits for it.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::{Duration, Instant};

use belljar_api::Live;

use crate::store::locked;

/// Messages that wait for one listener at most.
const MOST_WAITING: usize = 1024;

/// Why nothing came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecvError {
    /// Nothing happened in that time.
    #[error("nothing happened")]
    Nothing,
    /// The monitor is gone.
    #[error("the monitor is gone")]
    Closed,
}

/// One listener's messages.
pub struct Receiver(Arc<Mailbox>);

struct Mailbox {
    inner: Mutex<Inner>,
    came: Condvar,
    wake: Box<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct Inner {
    waiting: VecDeque<Arc<Live>>,
    lost: bool,
    closed: bool,
}

impl Receiver {
    /// The next message, if one waits.
    pub fn try_recv(&self) -> Result<Arc<Live>, RecvError> {
        take(&mut locked(&self.0.inner))
    }

    /// The next message, or none within that time.
    pub fn recv_timeout(&self, patience: Duration) -> Result<Arc<Live>, RecvError> {
        let until = Instant::now() + patience;
        let mut inner = locked(&self.0.inner);
        loop {
            match take(&mut inner) {
                Err(RecvError::Nothing) => {}
                other => return other,
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(RecvError::Nothing);
            }
            inner = match self.0.came.wait_timeout(inner, left) {
                Ok((inner, _)) => inner,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }
}

impl std::fmt::Debug for Receiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Receiver")
    }
}

/// What was lost comes before what came after it.
fn take(inner: &mut Inner) -> Result<Arc<Live>, RecvError> {
    if std::mem::take(&mut inner.lost) {
        return Ok(Arc::new(Live::Lost));
    }
    match inner.waiting.pop_front() {
        Some(message) => Ok(message),
        None if inner.closed => Err(RecvError::Closed),
        None => Err(RecvError::Nothing),
    }
}

/// All listeners.
#[derive(Default)]
pub(crate) struct Hub(Mutex<Vec<Weak<Mailbox>>>);

impl Hub {
    pub(crate) fn subscribe(&self, wake: Box<dyn Fn() + Send + Sync>) -> Receiver {
        let mailbox = Arc::new(Mailbox {
            inner: Mutex::default(),
            came: Condvar::new(),
            wake,
        });
        let mut all = locked(&self.0);
        all.retain(|known| known.strong_count() > 0);
        all.push(Arc::downgrade(&mailbox));
        Receiver(mailbox)
    }

    pub(crate) fn publish(&self, message: Live) {
        let message = Arc::new(message);
        for mailbox in self.listeners() {
            let mut inner = locked(&mailbox.inner);
            if inner.waiting.len() >= MOST_WAITING {
                // It has to ask for everything again, so what still waits is of no use.
                inner.waiting.clear();
                inner.lost = true;
            }
            inner.waiting.push_back(Arc::clone(&message));
            drop(inner);
            mailbox.came.notify_one();
            (mailbox.wake)();
        }
    }

    pub(crate) fn close(&self) {
        for mailbox in self.listeners() {
            locked(&mailbox.inner).closed = true;
            mailbox.came.notify_all();
            (mailbox.wake)();
        }
    }

    /// A copy, so that nobody's wake-up call runs under our lock.
    fn listeners(&self) -> Vec<Arc<Mailbox>> {
        locked(&self.0).iter().filter_map(Weak::upgrade).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_listener_is_told_that_it_lost_something_and_goes_on() {
        let hub = Hub::default();
        let receiver = hub.subscribe(Box::new(|| {}));
        for _ in 0..=MOST_WAITING {
            hub.publish(Live::Forgotten(Vec::new()));
        }
        assert_eq!(receiver.try_recv().as_deref(), Ok(&Live::Lost));
        assert_eq!(
            receiver.try_recv().as_deref(),
            Ok(&Live::Forgotten(Vec::new()))
        );
        assert_eq!(receiver.try_recv(), Err(RecvError::Nothing));
        hub.close();
        assert_eq!(
            receiver.recv_timeout(Duration::from_secs(60)),
            Err(RecvError::Closed)
        );
    }
}
