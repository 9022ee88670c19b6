//! From the log to the state it tells. Entries are decoded on all processors and applied on one, in their order.

use std::ops::Range;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use belljar_ledger::{Ledger, Reader};
use belljar_replication::{Event, State};

use super::note::FleetEntry;
use crate::log::{LogError, LogKind};

/// Entries that one thread decodes at a time: sixteen of the log's files.
const PORTION: u64 = 4096;
/// Portions that may lie decoded and not yet applied, for each thread: so much memory and no more.
const AHEAD: usize = 2;
/// More threads than this would wait for the one that applies.
const MOST_THREADS: usize = 4;

/// The events of a portion with their numbers, up to the first entry that can't be understood.
pub(super) type Portion = (Vec<(u64, Event)>, Result<(), LogError>);

/// The snapshot, if there is a good one, and everything after it.
pub(super) fn fold(ledger: &Ledger) -> Result<State, LogError> {
    let snapshot = ledger.read_snapshot().ok().flatten();
    let (state, from) = snapshot
        .and_then(|snapshot| {
            Some((
                serde_json::from_slice::<State>(&snapshot.payload).ok()?,
                snapshot.size,
            ))
        })
        .unwrap_or_default();
    let reader = Reader::open(ledger.directory()).map_err(content(from))?;
    fold_from(state, &reader, from)
}

/// All that is in a log, snapshot or not.
pub(super) fn fold_all(directory: &Path) -> Result<State, LogError> {
    let reader = Reader::open(directory).map_err(content(0))?;
    fold_from(State::default(), &reader, 0)
}

fn fold_from(mut state: State, reader: &Reader, from: u64) -> Result<State, LogError> {
    let portions = portions(from, reader.size());
    let threads = thread::available_parallelism()
        .map_or(1, usize::from)
        .min(MOST_THREADS);
    if threads == 1 || portions.len() < 2 {
        for portion in portions {
            apply(&mut state, decode(reader, portion))?;
        }
        return Ok(state);
    }
    thread::scope(|scope| {
        // Dealt out in turn and taken back in turn, so they come in order.
        let mut decoded: Vec<Receiver<Portion>> = Vec::new();
        for first in 0..threads {
            let (done, taken) = sync_channel(AHEAD);
            let own: Vec<_> = portions
                .iter()
                .skip(first)
                .step_by(threads)
                .cloned()
                .collect();
            thread::Builder::new()
                .name("belljar-fold".to_owned())
                .spawn_scoped(scope, move || decode_all(reader, own, &done))
                .map_err(content(from))?;
            decoded.push(taken);
        }
        for (number, portion) in portions.iter().enumerate() {
            // A thread that is gone has panicked, which its scope passes on.
            match decoded[number % threads].recv() {
                Ok(events) => apply(&mut state, events)?,
                Err(gone) => return Err(content(portion.start)(gone)),
            }
        }
        Ok(state)
    })
}

/// The entries from one on, cut where the log's files end.
pub(super) fn portions(from: u64, to: u64) -> Vec<Range<u64>> {
    let mut portions = Vec::new();
    let mut start = from;
    while start < to {
        let end = ((start / PORTION + 1) * PORTION).min(to);
        portions.push(start..end);
        start = end;
    }
    portions
}

fn decode_all(reader: &Reader, portions: Vec<Range<u64>>, done: &SyncSender<Portion>) {
    for portion in portions {
        // Nobody takes it any more after an error in an earlier one.
        if done.send(decode(reader, portion)).is_err() {
            return;
        }
    }
}

pub(super) fn decode(reader: &Reader, portion: Range<u64>) -> Portion {
    let mut events = Vec::with_capacity((portion.end - portion.start) as usize);
    let mut entries = reader.entries(portion.start);
    let mut next = portion.start;
    while next < portion.end {
        let read = match entries.next_borrowed() {
            Some(Ok((_, bytes))) => serde_json::from_slice(bytes).map_err(content(next)),
            Some(Err(fault)) => Err(content(next)(fault)),
            None => break,
        };
        match read {
            Ok(FleetEntry::Event(event)) => events.push((next, event)),
            Ok(FleetEntry::Note(_)) => {}
            Err(error) => return (events, Err(error)),
        }
        next += 1;
    }
    (events, Ok(()))
}

fn apply(state: &mut State, (events, end): Portion) -> Result<(), LogError> {
    for (index, event) in events {
        state.apply(&event).map_err(content(index))?;
    }
    end
}

pub(super) fn content<E: std::error::Error + Send + Sync + 'static>(
    entry: u64,
) -> impl FnOnce(E) -> LogError {
    move |error| LogError::Content {
        kind: LogKind::Fleet,
        entry,
        source: Box::new(error),
    }
}

#[cfg(test)]
mod tests {
    use belljar_ledger::{Durability, Wait};
    use belljar_replication::{Code, Jti, Now, Refused, Step, What, WorkerId};

    use super::*;
    use crate::keyring::{KeyDir, KeySource};
    use crate::log::open;

    fn refused(number: u64) -> Event {
        let at = Now {
            boot_ns: number * 1_000_000,
            wall_ms: number,
        };
        let refused = Refused {
            code: Code::DenyQuota,
            step: Step::Issue,
            worker: WorkerId(number.into()),
            parent: None,
            jti: Jti(number.into()),
            detail: None,
        };
        Event::new(at, What::Refused(Box::new(refused)))
    }

    /// A log with these entries, folded.
    fn folded(entries: &[Vec<u8>]) -> Result<State, LogError> {
        let state = tempfile::tempdir().expect("a directory");
        let keys = KeyDir::of(state.path(), KeySource::Directory);
        let keyring = keys.load_or_init(0).expect("keys");
        let opened = open(LogKind::Fleet, state.path(), &keyring, Wait::Fail);
        let (mut ledger, _) = opened.expect("a log");
        for entry in entries {
            ledger.append(entry).expect("a small entry");
        }
        ledger.commit(Durability::Crash).expect("a commit");
        fold(&ledger)
    }

    #[test]
    fn a_fold_on_many_threads_is_the_fold() {
        let events: Vec<Event> = (0..3 * PORTION + 100).map(refused).collect();
        let mut entries: Vec<Vec<u8>> = events
            .iter()
            .map(|event| serde_json::to_vec(event).expect("plain data"))
            .collect();
        let whole = State::default().fold(&events).expect("sound events");
        assert!(folded(&entries).expect("a sound log") == whole);

        // The first of two that can't be: one that can't be read, and one that can't follow.
        let bad = 2 * PORTION + 7;
        let late = serde_json::to_vec(&refused(0)).expect("plain data");
        for (first, then) in [(b"{}".to_vec(), late.clone()), (late, b"{}".to_vec())] {
            let sound = std::mem::replace(&mut entries[bad as usize], first);
            let after = std::mem::replace(&mut entries[bad as usize + 1], then);
            match folded(&entries) {
                Err(LogError::Content { entry, .. }) => assert_eq!(entry, bad),
                other => panic!("{other:?}"),
            }
            entries[bad as usize] = sound;
            entries[bad as usize + 1] = after;
        }
    }

    #[test]
    fn portions_are_all_entries_once_and_in_order() {
        for (from, to) in [
            (0, 0),
            (5, 5),
            (0, 1),
            (0, PORTION),
            (0, PORTION + 1),
            (PORTION - 1, PORTION + 1),
            (300, 3 * PORTION + 7),
        ] {
            let all: Vec<u64> = portions(from, to).into_iter().flatten().collect();
            assert!(all.into_iter().eq(from..to), "{from}..{to}");
        }
    }
}
