//! Clerks: a few threads that answer requests, so that the doors' loop never waits for a disk.

use std::io;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Enough to keep the desk's batches full, and no more than a crowd of agents may bind.
const FOR_AGENTS: usize = 8;
/// Operators have their own: however busy agents keep theirs, a kill is heard.
const FOR_OPERATORS: usize = 2;

type Job = Box<dyn FnOnce() + Send>;

/// Threads that wait for requests. They end when this is dropped and all work is done.
#[derive(Debug)]
pub(crate) struct Clerks {
    agents: Sender<Job>,
    operators: Sender<Job>,
    pending: Arc<PendingAnswers>,
}

/// How many operators wait for an answer.
#[derive(Debug, Default)]
pub(crate) struct PendingAnswers {
    count: Mutex<usize>,
    changed: Condvar,
}

impl PendingAnswers {
    /// Waits until every operator who asked has an answer under way, or patience ends.
    pub(crate) fn wait(&self, patience: Duration) {
        let count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = self
            .changed
            .wait_timeout_while(count, patience, |count| *count > 0);
    }

    fn begin(self: &Arc<Self>) -> PendingAnswer {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        PendingAnswer(Arc::clone(self))
    }
}

/// One of them, until it is dropped.
struct PendingAnswer(Arc<PendingAnswers>);

impl Drop for PendingAnswer {
    fn drop(&mut self) {
        let mut count = self.0.count.lock().unwrap_or_else(PoisonError::into_inner);
        *count = count.saturating_sub(1);
        self.0.changed.notify_all();
    }
}

impl Clerks {
    pub(crate) fn employ() -> io::Result<Self> {
        Ok(Self {
            agents: office("belljar-clerk", FOR_AGENTS)?,
            operators: office("belljar-chief", FOR_OPERATORS)?,
            pending: Arc::default(),
        })
    }

    pub(crate) fn pending(&self) -> Arc<PendingAnswers> {
        Arc::clone(&self.pending)
    }

    pub(crate) fn for_agents(&self, job: impl FnOnce() + Send + 'static) {
        // Without clerks the responder is dropped, which answers 500.
        let _ = self.agents.send(Box::new(job));
    }

    pub(crate) fn for_operators(&self, job: impl FnOnce() + Send + 'static) {
        let pending = self.pending.begin();
        let _ = self.operators.send(Box::new(move || {
            job();
            drop(pending);
        }));
    }
}

fn office(name: &str, clerks: usize) -> io::Result<Sender<Job>> {
    let (jobs, inbox) = mpsc::channel();
    let inbox = Arc::new(Mutex::new(inbox));
    for _ in 0..clerks {
        let inbox = Arc::clone(&inbox);
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || work(&inbox))?;
    }
    Ok(jobs)
}

fn work(inbox: &Mutex<Receiver<Job>>) {
    loop {
        // Held while waiting: one clerk waits for the next job, the others for their turn to.
        let job = inbox.lock().unwrap_or_else(PoisonError::into_inner).recv();
        match job {
            Ok(job) => job(),
            Err(_) => return,
        }
    }
}
