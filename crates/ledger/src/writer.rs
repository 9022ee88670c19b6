//! Group commit: many threads append, one thread writes, and a sync serves all that came meanwhile.

use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::bundle::MAX_ENTRY;
use crate::checkpoint::Checkpoint;
use crate::key::Signer;
use crate::ledger::{AppendError, CommitError, Durability, Ledger};
use crate::note::SealError;

/// One commit takes no more than this; what comes later is in the next.
const MAX_BATCH_ENTRIES: usize = 4096;
const MAX_BATCH_BYTES: usize = 8 << 20;
/// Requests that may wait. A thread that would add one more waits for its turn, so memory is bounded.
const QUEUE: usize = 1024;

/// A thread that owns a [`Ledger`] and commits for many.
///
/// When idle it commits at once. While a commit is under way, the next batch gathers. Clones of a [`WriterHandle`] append
/// from any thread.
pub struct Writer {
    handle: WriterHandle,
    thread: JoinHandle<Ledger>,
}

/// Appends to a [`Writer`]'s ledger.
#[derive(Clone)]
pub struct WriterHandle {
    requests: SyncSender<Request>,
}

/// The promise of a place in the log.
#[must_use = "an entry is in the log only when its ticket says so"]
pub struct Ticket(Reply<Range<u64>>);

/// The entry may not be in the log: treat it as not recorded.
#[derive(Clone, Debug, thiserror::Error)]
pub enum WriteError {
    /// An entry was refused.
    #[error("the entry was refused")]
    Append(#[source] Arc<AppendError>),
    /// The commit failed.
    #[error("the commit failed")]
    Commit(#[source] Arc<CommitError>),
    /// The new signer can't be used.
    #[error("the new signer can't be used")]
    Seal(#[source] Arc<SealError>),
    /// The writer has ended.
    #[error("the ledger's writer has ended")]
    Ended,
}

enum Request {
    Append {
        entries: Vec<Vec<u8>>,
        durability: Durability,
        promise: Promise<Range<u64>>,
    },
    Refresh {
        durability: Durability,
        promise: Promise<Checkpoint>,
    },
    SignWith {
        signer: Arc<dyn Signer>,
        promise: Promise<Checkpoint>,
    },
    End,
}

impl Writer {
    /// Starts the thread.
    pub fn start(ledger: Ledger) -> std::io::Result<Writer> {
        let (requests, inbox) = sync_channel(QUEUE);
        let thread = std::thread::Builder::new()
            .name("ledger".to_owned())
            .spawn(move || work(ledger, &inbox))?;
        Ok(Writer {
            handle: WriterHandle { requests },
            thread,
        })
    }

    /// To be cloned and given to the threads that append.
    pub fn handle(&self) -> &WriterHandle {
        &self.handle
    }

    /// Finishes what was asked for before, and gives the ledger back. `None` if the thread panicked.
    pub fn close(self) -> Option<Ledger> {
        // An error means that it has ended already.
        let _ = self.handle.requests.send(Request::End);
        self.thread.join().ok()
    }
}

impl WriterHandle {
    /// Asks for an entry to be appended. The ticket tells when it is in the log.
    pub fn append(&self, entry: Vec<u8>, durability: Durability) -> Ticket {
        self.append_many(vec![entry], durability)
    }

    /// Asks for entries that are to stand together, in one commit: all or none are in the log.
    pub fn append_many(&self, entries: Vec<Vec<u8>>, durability: Durability) -> Ticket {
        let (promise, reply) = promise();
        self.ask(Request::Append {
            entries,
            durability,
            promise,
        });
        Ticket(reply)
    }

    /// Signs a new checkpoint and waits for it: the heartbeat of a quiet log.
    pub fn refresh(&self, durability: Durability) -> Result<Checkpoint, WriteError> {
        let (promise, reply) = promise();
        self.ask(Request::Refresh {
            durability,
            promise,
        });
        reply.wait()
    }

    /// Lets another key sign, and waits for the first checkpoint that it signed.
    pub fn sign_with(&self, signer: Arc<dyn Signer>) -> Result<Checkpoint, WriteError> {
        let (promise, reply) = promise();
        self.ask(Request::SignWith { signer, promise });
        reply.wait()
    }

    fn ask(&self, request: Request) {
        // A request that is not taken drops its promise, and so is answered.
        let _ = self.requests.send(request);
    }
}

impl Ticket {
    /// Waits until the entry is in the log. Returns its index: the first, of several.
    pub fn wait(self) -> Result<u64, WriteError> {
        self.wait_for_range().map(|range| range.start)
    }

    /// Waits, and returns the indexes of all entries of the request.
    pub fn wait_for_range(self) -> Result<Range<u64>, WriteError> {
        self.0.wait()
    }
}

/// Requests that share a commit.
#[derive(Default)]
struct Batch {
    waiting: Vec<(Range<u64>, Promise<Range<u64>>)>,
    entries: usize,
    bytes: usize,
    durability: Option<Durability>,
}

fn work(mut ledger: Ledger, inbox: &Receiver<Request>) -> Ledger {
    let mut batch = Batch::default();
    loop {
        let request = if batch.waiting.is_empty() {
            inbox.recv().map_err(|_| TryRecvError::Disconnected)
        } else if batch.is_full() {
            Err(TryRecvError::Empty)
        } else {
            inbox.try_recv()
        };
        match request {
            Ok(Request::Append {
                entries,
                durability,
                promise,
            }) => {
                batch.take(&mut ledger, &entries, durability, promise);
            }
            Ok(Request::Refresh {
                durability,
                promise,
            }) => {
                batch.commit(&mut ledger);
                promise.keep(refresh(&mut ledger, durability));
            }
            Ok(Request::SignWith { signer, promise }) => {
                batch.commit(&mut ledger);
                let changed = ledger
                    .sign_with(signer)
                    .map_err(|error| WriteError::Seal(Arc::new(error)));
                promise.keep(changed.and_then(|()| refresh(&mut ledger, Durability::Power)));
            }
            Err(TryRecvError::Empty) => batch.commit(&mut ledger),
            Ok(Request::End) | Err(TryRecvError::Disconnected) => {
                batch.commit(&mut ledger);
                return ledger;
            }
        }
    }
}

fn refresh(ledger: &mut Ledger, durability: Durability) -> Result<Checkpoint, WriteError> {
    ledger
        .refresh(durability)
        .cloned()
        .map_err(|error| WriteError::Commit(Arc::new(error)))
}

impl Batch {
    fn is_full(&self) -> bool {
        self.entries >= MAX_BATCH_ENTRIES || self.bytes >= MAX_BATCH_BYTES
    }

    fn take(
        &mut self,
        ledger: &mut Ledger,
        entries: &[Vec<u8>],
        durability: Durability,
        promise: Promise<Range<u64>>,
    ) {
        let refused = |error| Err(WriteError::Append(Arc::new(error)));
        // Looked at before the first is taken: all or none.
        if let Some(long) = entries.iter().find(|entry| entry.len() > MAX_ENTRY) {
            return promise.keep(refused(AppendError::TooLong(long.len())));
        }
        let bytes: usize = entries.iter().map(|entry| entry.len() + 2).sum();
        if self.bytes + bytes > crate::ledger::MAX_BACKLOG {
            if bytes > crate::ledger::MAX_BACKLOG {
                return promise.keep(refused(AppendError::Backlog));
            }
            self.commit(ledger);
        }
        let first = ledger.size() + ledger.pending();
        for entry in entries {
            if let Err(error) = ledger.append(entry) {
                return promise.keep(refused(error));
            }
        }
        self.waiting
            .push((first..first + entries.len() as u64, promise));
        self.entries += entries.len();
        self.bytes += bytes;
        self.durability = self.durability.max(Some(durability));
    }

    fn commit(&mut self, ledger: &mut Ledger) {
        let Batch {
            waiting,
            durability,
            ..
        } = std::mem::take(self);
        let Some(durability) = durability else { return };
        let outcome = match ledger.commit(durability) {
            Ok(_) => Ok(()),
            Err(error) => Err(WriteError::Commit(Arc::new(error))),
        };
        if outcome.is_err() {
            // They are about to be told that their entries are not in the log.
            ledger.discard();
        }
        for (range, promise) in waiting {
            promise.keep(outcome.clone().map(|()| range));
        }
    }
}

/// Where one answer is left for one thread.
struct Slot<T> {
    answer: Mutex<Option<Result<T, WriteError>>>,
    given: Condvar,
}

/// The side that waits.
struct Reply<T>(Arc<Slot<T>>);

/// The side that answers. Whoever drops it unanswered says that the writer has ended: no one waits for ever.
struct Promise<T>(Arc<Slot<T>>);

fn promise<T>() -> (Promise<T>, Reply<T>) {
    let slot = Arc::new(Slot {
        answer: Mutex::new(None),
        given: Condvar::new(),
    });
    (Promise(Arc::clone(&slot)), Reply(slot))
}

impl<T> Promise<T> {
    fn keep(self, answer: Result<T, WriteError>) {
        self.0.give(answer);
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        self.0.give(Err(WriteError::Ended));
    }
}

impl<T> Reply<T> {
    fn wait(self) -> Result<T, WriteError> {
        let mut answer = self.0.lock();
        loop {
            match answer.take() {
                Some(answer) => return answer,
                None => {
                    answer = self
                        .0
                        .given
                        .wait(answer)
                        .unwrap_or_else(PoisonError::into_inner)
                }
            }
        }
    }
}

impl<T> Slot<T> {
    /// The first answer stands.
    fn give(&self, answer: Result<T, WriteError>) {
        self.lock().get_or_insert(answer);
        self.given.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Option<Result<T, WriteError>>> {
        self.answer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
