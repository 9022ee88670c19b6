//! Places for connections. When all are taken, a newcomer gets the place of the one that has longest shown no token: whoever
//! opens connections and says nothing keeps nobody out.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// The places of a server.
#[derive(Debug)]
pub(crate) struct Places {
    most: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    by_number: BTreeMap<u64, Arc<Place>>,
    next: u64,
}

/// One connection's place.
#[derive(Debug, Default)]
pub(crate) struct Place {
    is_known: AtomicBool,
    requests: AtomicUsize,
    leave: Notify,
}

impl Place {
    /// A token was shown.
    pub(crate) fn is_known_now(&self) {
        self.is_known.store(true, Ordering::Relaxed);
    }

    /// A request is being answered, until what is given back is dropped.
    pub(crate) fn busy(self: &Arc<Self>) -> Busy {
        self.requests.fetch_add(1, Ordering::Relaxed);
        Busy(Arc::clone(self))
    }

    /// Comes back when the place is given to somebody else.
    pub(crate) async fn left(&self) {
        self.leave.notified().await;
    }
}

/// A request that is being answered.
#[derive(Debug)]
pub(crate) struct Busy(Arc<Place>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Holds a place, and gives it up when it is dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    places: Arc<Places>,
    number: u64,
    pub(crate) place: Arc<Place>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.places.lock().by_number.remove(&self.number);
    }
}

impl Places {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            most: most.max(1),
            taken: Mutex::default(),
        })
    }

    /// A place, or nothing when everybody who has one is known and at work.
    pub(crate) fn take(self: &Arc<Self>) -> Option<Seat> {
        let mut taken = self.lock();
        if taken.by_number.len() >= self.most {
            let strangers = |place: &Place| !place.is_known.load(Ordering::Relaxed);
            let idle = |place: &Place| place.requests.load(Ordering::Relaxed) == 0;
            let victim = oldest(&taken, strangers).or_else(|| oldest(&taken, idle))?;
            if let Some(place) = taken.by_number.remove(&victim) {
                place.leave.notify_one();
            }
        }
        let number = taken.next;
        taken.next += 1;
        let place = Arc::new(Place::default());
        taken.by_number.insert(number, Arc::clone(&place));
        drop(taken);
        Some(Seat {
            places: Arc::clone(self),
            number,
            place,
        })
    }

    pub(crate) fn count(&self) -> usize {
        self.lock().by_number.len()
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn oldest(taken: &Taken, is_it: impl Fn(&Place) -> bool) -> Option<u64> {
    let found = taken.by_number.iter().find(|(_, place)| is_it(place));
    found.map(|(number, _)| *number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stranger_makes_way_first_then_who_is_idle_and_nobody_who_is_at_work() {
        let places = Places::new(2);
        let known = places.take().expect("room");
        known.place.is_known_now();
        let stranger = places.take().expect("room");
        let newcomer = places.take().expect("the stranger's place");
        newcomer.place.is_known_now();
        let numbers: Vec<u64> = places.lock().by_number.keys().copied().collect();
        assert_eq!(numbers, [known.number, newcomer.number]);
        drop(stranger);
        assert_eq!(places.count(), 2, "a place is given up once");
        let at_work = (known.place.busy(), newcomer.place.busy());
        assert!(places.take().is_none());
        drop(at_work);
        assert!(places.take().is_some());
    }
}
