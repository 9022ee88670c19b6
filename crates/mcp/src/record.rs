//! What is put on record: every call and what came of it, holds and their answers, tools that changed, and what looked
//! suspicious. Nothing here waits for a disk; a thread writes what has come meanwhile in one go.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The code of a server that ended while it was in use.
pub const SERVER_ENDED: &str = "server_gone";

/// Something for the record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum McpEvent {
    /// A call, and what came of it.
    Call {
        /// The server.
        server: String,
        /// The tool, or what else was asked.
        tool: String,
        /// `allow`, `deny`, `hold_allowed` or `hold_refused`.
        verdict: String,
        /// The stable code of a refusal.
        code: Option<String>,
        /// The rule that decided.
        rule: Option<String>,
        /// From the question to the answer, in microseconds.
        duration_us: u64,
        /// The answer's size.
        result_bytes: u64,
        /// Whether the server called it an error.
        is_error: bool,
        /// The arguments; what a rule redacts, and what is long, is its size and digest.
        arguments: Value,
    },
    /// A call waits for an operator.
    Held {
        /// Which.
        id: String,
        /// The server.
        server: String,
        /// The tool.
        tool: String,
        /// Why it is held.
        code: String,
        /// The rule that holds it.
        rule: String,
    },
    /// An operator answered, or nobody did.
    Answered {
        /// Which.
        id: String,
        /// `allowed`, `refused`, `timed_out`, or `withdrawn` where whoever asked went away.
        answer: String,
        /// Who.
        by: String,
        /// Why.
        reason: String,
    },
    /// A tool was seen for the first time, or is not what it was.
    Tool {
        /// The server.
        server: String,
        /// The tool.
        tool: String,
        /// `first_seen`, `new` or `changed`.
        change: String,
        /// SHA-256 of its definition.
        sha256: String,
    },
    /// Something that an honest agent or server does not do.
    Suspicious {
        /// The server.
        server: String,
        /// The tool, as far as it has a name.
        tool: String,
        /// The stable word for it.
        code: String,
        /// In words.
        detail: String,
    },
}

/// Takes events for the record.
pub trait Recorder: Send + Sync {
    /// Takes an event. Waits only where the record is far behind.
    fn record(&self, event: McpEvent);

    /// Whether what was taken could be written: what can't be recorded is not let through.
    fn is_recording(&self) -> bool;
}

/// Events that are waited for at most; then whoever brings one waits.
const BACKLOG: usize = 16_384;
/// Events written in one go.
const BATCH: usize = 512;
/// How long after a write the writer looks for more by itself. Whoever brings something meanwhile need not wake it: where calls
/// follow each other, a wake-up for each would cost more than the call's own way.
const LINGER: Duration = Duration::from_millis(5);

type Write = Box<dyn FnMut(Vec<McpEvent>) -> bool + Send>;

/// A recorder whose events a thread writes, as many at once as there are. The thread starts with the first event: a
/// keeper must have taken its signals before it has threads.
pub struct QueueRecorder {
    state: Mutex<State>,
    queue: Arc<Queue>,
    failed: Arc<AtomicBool>,
}

enum State {
    Idle(Write),
    Writing(JoinHandle<()>),
    Broken,
}

impl QueueRecorder {
    /// A recorder by `write`, which puts a batch on record, durably, or says that it could not.
    #[must_use]
    pub fn new<E>(mut write: impl FnMut(Vec<McpEvent>) -> Result<(), E> + Send + 'static) -> Self {
        let write: Write = Box::new(move |batch| write(batch).is_ok());
        Self {
            state: Mutex::new(State::Idle(write)),
            queue: Arc::default(),
            failed: Arc::default(),
        }
    }

    /// Starts the writer, if it is not there.
    fn start(&self) {
        let mut state = lock(&self.state);
        if !matches!(*state, State::Idle(_)) {
            return;
        }
        if let State::Idle(mut write) = std::mem::replace(&mut *state, State::Broken) {
            let (queue, failed) = (Arc::clone(&self.queue), Arc::clone(&self.failed));
            let thread = std::thread::Builder::new().name("mcp record".to_owned());
            let writer = thread.spawn(move || {
                let _gone = Gone(&queue);
                while let Some(batch) = queue.next() {
                    failed.store(!write(batch), Ordering::Release);
                }
            });
            match writer {
                Ok(writer) => *state = State::Writing(writer),
                Err(_) => lock(&self.queue.line).is_closed = true,
            }
        }
    }
}

impl Recorder for QueueRecorder {
    fn record(&self, event: McpEvent) {
        self.start();
        if !self.queue.put(event) {
            self.failed.store(true, Ordering::Release);
        }
    }

    fn is_recording(&self) -> bool {
        !self.failed.load(Ordering::Acquire)
    }
}

/// Ends when everything is written.
impl Drop for QueueRecorder {
    fn drop(&mut self) {
        lock(&self.queue.line).is_closed = true;
        self.queue.more.notify_all();
        let state = std::mem::replace(&mut *lock(&self.state), State::Broken);
        if let State::Writing(writer) = state {
            let _ = writer.join();
        }
    }
}

/// Events on their way to the writer.
#[derive(Default)]
struct Queue {
    line: Mutex<Waiting>,
    /// Rings for the writer.
    more: Condvar,
    /// Rings for whoever waits for room.
    room: Condvar,
}

#[derive(Default)]
struct Waiting {
    events: VecDeque<McpEvent>,
    /// The writer waits to be woken.
    is_asleep: bool,
    /// Nothing more is taken.
    is_closed: bool,
}

impl Queue {
    /// Whether it was taken.
    fn put(&self, event: McpEvent) -> bool {
        let is_full = |line: &mut Waiting| line.events.len() >= BACKLOG && !line.is_closed;
        let mut line = self.room.wait_while(lock(&self.line), is_full);
        let line = match &mut line {
            Ok(line) => line,
            Err(poisoned) => poisoned.get_mut(),
        };
        if line.is_closed {
            return false;
        }
        line.events.push_back(event);
        if line.is_asleep || line.events.len() == BATCH {
            self.more.notify_one();
        }
        true
    }

    /// What is to be written next; nothing when nothing more comes.
    fn next(&self) -> Option<Vec<McpEvent>> {
        let few = |line: &mut Waiting| line.events.len() < BATCH && !line.is_closed;
        let lingered = self.more.wait_timeout_while(lock(&self.line), LINGER, few);
        let mut line = lingered.unwrap_or_else(PoisonError::into_inner).0;
        while line.events.is_empty() && !line.is_closed {
            line.is_asleep = true;
            line = self.more.wait(line).unwrap_or_else(PoisonError::into_inner);
        }
        line.is_asleep = false;
        let count = line.events.len().min(BATCH);
        let batch: Vec<McpEvent> = line.events.drain(..count).collect();
        drop(line);
        self.room.notify_all();
        (!batch.is_empty()).then_some(batch)
    }
}

/// The writer is gone, whatever ended it: nobody waits for it, and nothing more counts as taken.
struct Gone<'a>(&'a Queue);

impl Drop for Gone<'_> {
    fn drop(&mut self) {
        lock(&self.0.line).is_closed = true;
        self.0.room.notify_all();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl std::fmt::Debug for QueueRecorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueueRecorder").finish_non_exhaustive()
    }
}

/// Keeps events in memory: for commands that only look, and for tests.
#[derive(Debug, Default)]
pub struct MemoryRecorder(Mutex<Vec<McpEvent>>);

impl MemoryRecorder {
    /// What was recorded so far.
    #[must_use]
    pub fn events(&self) -> Vec<McpEvent> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Recorder for MemoryRecorder {
    fn record(&self, event: McpEvent) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(event);
    }

    fn is_recording(&self) -> bool {
        true
    }
}

impl<R: Recorder + ?Sized> Recorder for Arc<R> {
    fn record(&self, event: McpEvent) {
        (**self).record(event);
    }

    fn is_recording(&self) -> bool {
        (**self).is_recording()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(tool: &str) -> McpEvent {
        McpEvent::Suspicious {
            server: "s".to_owned(),
            tool: tool.to_owned(),
            code: "c".to_owned(),
            detail: String::new(),
        }
    }

    #[test]
    fn everything_taken_is_written_in_order_before_the_end() {
        let written = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&written);
        let recorder = QueueRecorder::new(move |batch| -> Result<(), ()> {
            sink.lock().unwrap().extend(batch);
            Ok(())
        });
        let events: Vec<_> = (0..2000).map(|n| event(&n.to_string())).collect();
        events
            .iter()
            .for_each(|event| recorder.record(event.clone()));
        drop(recorder);
        assert_eq!(*written.lock().unwrap(), events);
    }

    #[test]
    fn whoever_brings_more_than_is_written_waits_and_nothing_is_lost() {
        let (go, may_go) = std::sync::mpsc::channel::<()>();
        let (count, counted) = std::sync::mpsc::channel();
        let recorder = QueueRecorder::new(move |batch: Vec<McpEvent>| {
            assert!(batch.len() <= BATCH);
            let _ = count.send(batch.len());
            may_go.recv().map_err(drop)
        });
        let most = BATCH + BACKLOG + 1;
        std::thread::scope(|scope| {
            let bringing = scope.spawn(|| (0..most).for_each(|_| recorder.record(event("x"))));
            let first = counted.recv().unwrap();
            // The writer holds some and the line is full: the last can't be in it.
            while lock(&recorder.queue.line).events.len() < BACKLOG {
                std::thread::yield_now();
            }
            assert!(first < most && !bringing.is_finished());
            let mut written = first;
            while written < most {
                go.send(()).unwrap();
                written += counted.recv().unwrap();
            }
            assert_eq!(written, most);
        });
        go.send(()).unwrap();
        drop(recorder);
    }

    #[test]
    fn nobody_waits_for_a_writer_that_is_gone() {
        let recorder = QueueRecorder::new(|_| -> Result<(), ()> { panic!("on purpose") });
        while recorder.is_recording() {
            recorder.record(event("x"));
        }
    }

    #[test]
    fn a_record_that_fails_is_known_to_fail() {
        let (done, is_done) = std::sync::mpsc::channel();
        let recorder = QueueRecorder::new(move |_| {
            let _ = done.send(());
            Err(())
        });
        assert!(recorder.is_recording());
        recorder.record(event("x"));
        is_done.recv().unwrap();
        // The second is taken when the first was noted.
        recorder.record(event("y"));
        is_done.recv().unwrap();
        assert!(!recorder.is_recording());
    }
}
