//! What is put on record: every call and what came of it, holds and their answers, tools that changed, and what looked
//! suspicious. Nothing here waits for a disk; a thread writes what has come meanwhile in one go.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use serde::{Deserialize, Serialize};
use serde_json::Value;

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

type Write = Box<dyn FnMut(Vec<McpEvent>) -> bool + Send>;

/// A recorder whose events a thread writes, as many at once as there are. The thread starts with the first event: a
/// keeper must have taken its signals before it has threads.
pub struct QueueRecorder {
    state: Mutex<State>,
    failed: Arc<AtomicBool>,
}

enum State {
    Idle(Write),
    Writing(SyncSender<McpEvent>, JoinHandle<()>),
    Broken,
}

impl QueueRecorder {
    /// A recorder by `write`, which puts a batch on record, durably, or says that it could not.
    #[must_use]
    pub fn new<E>(mut write: impl FnMut(Vec<McpEvent>) -> Result<(), E> + Send + 'static) -> Self {
        let write: Write = Box::new(move |batch| write(batch).is_ok());
        Self {
            state: Mutex::new(State::Idle(write)),
            failed: Arc::default(),
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn start(self, failed: &Arc<AtomicBool>) -> Self {
        let Self::Idle(mut write) = self else {
            return self;
        };
        let (sender, receiver) = sync_channel(BACKLOG);
        let failed = Arc::clone(failed);
        let thread = std::thread::Builder::new().name("mcp record".to_owned());
        let writer = thread.spawn(move || {
            while let Some(batch) = next(&receiver) {
                failed.store(!write(batch), Ordering::Release);
            }
        });
        match writer {
            Ok(writer) => Self::Writing(sender, writer),
            Err(_) => Self::Broken,
        }
    }
}

fn next(receiver: &Receiver<McpEvent>) -> Option<Vec<McpEvent>> {
    let mut batch = vec![receiver.recv().ok()?];
    while batch.len() < BATCH
        && let Ok(event) = receiver.try_recv()
    {
        batch.push(event);
    }
    Some(batch)
}

impl Recorder for QueueRecorder {
    fn record(&self, event: McpEvent) {
        let sender = {
            let mut state = self.state();
            let now = std::mem::replace(&mut *state, State::Broken);
            *state = now.start(&self.failed);
            match &*state {
                State::Writing(sender, _) => Some(sender.clone()),
                State::Idle(_) | State::Broken => None,
            }
        };
        // Not under the lock: where the record is far behind this waits.
        let sent = sender.is_some_and(|sender| sender.send(event).is_ok());
        if !sent {
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
        let state = std::mem::replace(&mut *self.state(), State::Broken);
        if let State::Writing(sender, writer) = state {
            drop(sender);
            let _ = writer.join();
        }
    }
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
