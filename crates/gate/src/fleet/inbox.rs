//! The desk's inbox. Questions that come in while the desk is busy form one round: they are answered together, with one
//! sync, and everybody in it is woken with one call.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::desk::{Desk, Unrecorded};

/// The most questions in one round.
const LARGEST_ROUND: usize = 1024;

/// A question at the desk. It keeps its own answer, for who asked to pick up when the round is over.
pub(super) type Ask = Box<dyn FnOnce(&mut Desk) + Send>;

/// How a round ended: whether what was decided in it is on record.
type Recorded = Result<(), Unrecorded>;

/// Where questions wait for the desk.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    waiting: Mutex<Waiting>,
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    rounds: VecDeque<Round>,
    /// How many wait for an answer in those rounds.
    askers: usize,
    /// Somebody among them must not wait for others.
    is_urgent: bool,
    /// The desk sleeps, and is to be woken when so many wait.
    wake_at: Option<usize>,
    /// Nothing is taken any more.
    is_closed: bool,
}

/// How a question came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    /// Nobody waits for an answer.
    Told,
    /// Somebody does.
    Asked,
    /// Somebody does, and the round must not be held up for others.
    Urgent,
}

/// Those who were just answered and may come back at once. To wait a moment for them makes one round out of two that
/// would follow each other, with a sync each.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected {
    pub(super) askers: usize,
    pub(super) until: Instant,
}

/// Questions that are answered together. Whoever waits for it hears of its end in any case: a round that is dropped
/// before its time is one that was not recorded.
pub(super) struct Round {
    asks: Vec<Ask>,
    /// How many wait for an answer.
    askers: usize,
    progress: Arc<Progress>,
    /// There until it is known whether the record holds.
    record: Option<Part>,
}

/// How far a round has come, for those who wait for it.
#[derive(Default)]
pub(super) struct Progress {
    /// Set when it is known whether the record holds.
    recorded: OnceLock<Recorded>,
    /// Work on answers that is not yet done.
    unfinished: AtomicUsize,
    /// Set when that too is done.
    finished: OnceLock<()>,
}

/// A part of a round that is to be finished: dropped when it is.
pub(super) struct Part(Arc<Progress>);

/// What the desk finds when it looks.
pub(super) enum Found {
    /// Questions.
    Round(Round),
    /// Nobody asked in time.
    Nothing,
    /// Nobody will ask any more.
    Closed,
}

impl Inbox {
    /// Puts a question in.
    pub(super) fn put(&self, ask: Ask, manner: Manner) -> Result<Arc<Progress>, Unrecorded> {
        let mut waiting = self.lock();
        if waiting.is_closed {
            return Err(Unrecorded::gone());
        }
        let has_room = |round: &Round| round.asks.len() < LARGEST_ROUND;
        if !waiting.rounds.back().is_some_and(has_room) {
            waiting.rounds.push_back(Round::default());
        }
        let Some(round) = waiting.rounds.back_mut() else {
            return Err(Unrecorded::gone());
        };
        round.asks.push(ask);
        round.askers += usize::from(manner != Manner::Told);
        let progress = Arc::clone(&round.progress);
        waiting.askers += usize::from(manner != Manner::Told);
        waiting.is_urgent |= manner == Manner::Urgent;
        let is_enough = |wanted| waiting.askers >= wanted || waiting.is_urgent || wanted <= 1;
        let must_wake = waiting.wake_at.is_some_and(is_enough);
        if must_wake {
            waiting.wake_at = None;
        }
        drop(waiting);
        if must_wake {
            self.arrived.notify_one();
        }
        Ok(progress)
    }

    /// Takes the oldest round, or waits for one. For the desk alone.
    pub(super) fn take(&self, patience: Duration, expected: Option<Expected>) -> Found {
        let mut waiting = self.lock();
        if let Some(expected) = expected {
            // Those who waited before come on top of those who come back.
            let wanted = waiting.askers + expected.askers;
            while waiting.askers < wanted && !waiting.is_urgent && !waiting.is_closed {
                let left = expected.until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                waiting = self.sleep(waiting, wanted, left);
            }
        }
        let until = Instant::now() + patience;
        loop {
            if let Some(round) = waiting.rounds.pop_front() {
                waiting.askers -= round.askers;
                waiting.is_urgent &= !waiting.rounds.is_empty();
                return Found::Round(round);
            }
            if waiting.is_closed {
                return Found::Closed;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Found::Nothing;
            }
            waiting = self.sleep(waiting, 1, left);
        }
    }

    fn sleep<'a>(
        &self,
        mut waiting: MutexGuard<'a, Waiting>,
        wake_at: usize,
        most: Duration,
    ) -> MutexGuard<'a, Waiting> {
        waiting.wake_at = Some(wake_at);
        let woken = self.arrived.wait_timeout(waiting, most);
        let mut waiting = woken.unwrap_or_else(PoisonError::into_inner).0;
        waiting.wake_at = None;
        waiting
    }

    /// Takes no more questions. Those that wait already are answered.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.arrived.notify_one();
    }

    /// Takes no more questions and answers none: the desk is no more.
    pub(super) fn abandon(&self) {
        let mut waiting = self.lock();
        waiting.is_closed = true;
        waiting.askers = 0;
        let rounds = std::mem::take(&mut waiting.rounds);
        drop(waiting);
        drop(rounds);
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Round {
    /// The questions, in the order in which they came.
    pub(super) fn asks(&mut self) -> impl Iterator<Item = Ask> + use<> {
        std::mem::take(&mut self.asks).into_iter()
    }

    /// How many wait for an answer.
    pub(super) fn askers(&self) -> usize {
        self.askers
    }

    /// Takes note of more to be done before the answers in it are ready, besides the record.
    pub(super) fn part(&self) -> Part {
        Part::of(&self.progress)
    }

    /// Tells everybody in it whether the record holds.
    pub(super) fn finish(self, recorded: Recorded) {
        let _ = self.progress.recorded.set(recorded);
    }
}

impl Drop for Round {
    fn drop(&mut self) {
        // Before anybody hears of the end, so that nobody finds his question still held by somebody.
        self.asks.clear();
        let _ = self.progress.recorded.set(Err(Unrecorded::gone()));
        self.record = None;
    }
}

impl Part {
    fn of(progress: &Arc<Progress>) -> Self {
        progress.unfinished.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(progress))
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if self.0.unfinished.fetch_sub(1, Ordering::AcqRel) == 1 {
            let _ = self.0.finished.set(());
        }
    }
}

impl Default for Round {
    fn default() -> Self {
        let progress = Arc::default();
        Self {
            asks: Vec::new(),
            askers: 0,
            record: Some(Part::of(&progress)),
            progress,
        }
    }
}

impl std::fmt::Debug for Round {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Round")
            .field("asks", &self.asks.len())
            .finish_non_exhaustive()
    }
}

impl Progress {
    /// Waits until it is known whether the record holds.
    pub(super) fn wait(&self) -> Recorded {
        self.recorded.wait().clone()
    }

    /// Waits until that is known and all parts are done.
    pub(super) fn wait_until_finished(&self) -> Recorded {
        self.finished.wait();
        self.wait()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than any test takes.
    const LONG: Duration = Duration::from_secs(600);

    fn ask(inbox: &Inbox) -> Result<Arc<Progress>, Unrecorded> {
        inbox.put(Box::new(|_| ()), Manner::Asked)
    }

    /// What a desk finds that expects so many back, for as long as it takes.
    fn found(inbox: &Inbox, askers: usize) -> usize {
        let until = Instant::now() + LONG;
        match inbox.take(LONG, Some(Expected { askers, until })) {
            Found::Round(round) => round.asks.len(),
            Found::Nothing | Found::Closed => 0,
        }
    }

    /// A desk that waits for somebody counts from then on.
    fn until_it_waits(inbox: &Inbox) {
        while inbox.lock().wake_at.is_none() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn those_who_come_back_are_waited_for_and_nobody_urgent_waits() {
        let inbox = Inbox::default();
        ask(&inbox).expect("an open inbox");
        std::thread::scope(|scope| {
            let desk = scope.spawn(|| found(&inbox, 2));
            until_it_waits(&inbox);
            for _ in 0..2 {
                let told = inbox.put(Box::new(|_| ()), Manner::Told);
                told.expect("an open inbox");
                ask(&inbox).expect("an open inbox");
            }
            assert_eq!(desk.join().expect("a desk"), 5);
        });
        std::thread::scope(|scope| {
            let desk = scope.spawn(|| found(&inbox, 1000));
            until_it_waits(&inbox);
            ask(&inbox).expect("an open inbox");
            let urgent = inbox.put(Box::new(|_| ()), Manner::Urgent);
            urgent.expect("an open inbox");
            assert_eq!(desk.join().expect("a desk"), 2);
        });
        // Nobody is left to come back.
        let past = Expected {
            askers: 1000,
            until: Instant::now(),
        };
        ask(&inbox).expect("an open inbox");
        assert!(matches!(inbox.take(LONG, Some(past)), Found::Round(_)));
        inbox.close();
        assert_eq!(found(&inbox, 1000), 0);
    }

    #[test]
    fn what_comes_in_together_is_one_round_of_bounded_size() {
        let inbox = Inbox::default();
        for _ in 0..=LARGEST_ROUND {
            ask(&inbox).expect("an open inbox");
        }
        for expected in [LARGEST_ROUND, 1] {
            let Found::Round(round) = inbox.take(Duration::ZERO, None) else {
                panic!("a round of {expected}");
            };
            assert_eq!(round.asks.len(), expected);
        }
        assert!(matches!(inbox.take(Duration::ZERO, None), Found::Nothing));
    }

    #[test]
    fn who_waits_hears_of_the_end_also_when_the_desk_is_gone() {
        let inbox = Inbox::default();
        let first = ask(&inbox).expect("an open inbox");
        let Found::Round(round) = inbox.take(Duration::ZERO, None) else {
            panic!("a round");
        };
        let second = ask(&inbox).expect("an open inbox");
        round.finish(Ok(()));
        assert!(first.wait().is_ok());
        inbox.abandon();
        assert!(second.wait().is_err());
        assert!(ask(&inbox).is_err());

        let inbox = Inbox::default();
        let third = ask(&inbox).expect("an open inbox");
        // A panic in the middle of a round drops it.
        drop(inbox.take(Duration::ZERO, None));
        assert!(third.wait().is_err());
    }

    #[test]
    fn a_round_is_finished_with_its_last_part() {
        let inbox = Inbox::default();
        let end = ask(&inbox).expect("an open inbox");
        let Found::Round(round) = inbox.take(Duration::ZERO, None) else {
            panic!("a round");
        };
        let (first, second) = (round.part(), round.part());
        drop(second);
        round.finish(Ok(()));
        assert!(end.wait().is_ok());
        assert!(end.finished.get().is_none(), "one part is left");
        drop(first);
        assert!(end.wait_until_finished().is_ok());
    }

    #[test]
    fn a_closed_inbox_answers_what_it_has() {
        let inbox = Inbox::default();
        let end = ask(&inbox).expect("an open inbox");
        inbox.close();
        let Found::Round(round) = inbox.take(LONG, None) else {
            panic!("what came before the end");
        };
        round.finish(Ok(()));
        assert!(end.wait().is_ok());
        assert!(matches!(inbox.take(LONG, None), Found::Closed));
    }
}
