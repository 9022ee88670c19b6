//! Sealers: a thread for each processor that signs manifests while the grants they are for go on record.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

/// More would wait for the desk.
const MOST: usize = 4;

/// Something to be done.
pub(super) type Job = Box<dyn FnOnce() + Send>;

/// The threads. They end when this is dropped, after the work they have.
#[derive(Debug)]
pub(super) struct Sealers {
    bench: Arc<Bench>,
    threads: Vec<JoinHandle<()>>,
}

/// Where the work lies. Whoever has it gives work to sealers.
#[derive(Debug, Default)]
pub(super) struct Bench {
    work: Mutex<Work>,
    arrived: Condvar,
}

#[derive(Default)]
struct Work {
    jobs: VecDeque<Job>,
    is_over: bool,
}

impl Sealers {
    pub(super) fn employ() -> io::Result<Self> {
        let mut sealers = Self {
            bench: Arc::default(),
            threads: Vec::new(),
        };
        let count = thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..count.min(MOST) {
            let bench = Arc::clone(&sealers.bench);
            let thread = thread::Builder::new()
                .name("belljar-sealer".to_owned())
                .spawn(move || bench.work())?;
            sealers.threads.push(thread);
        }
        Ok(sealers)
    }

    pub(super) fn bench(&self) -> Arc<Bench> {
        Arc::clone(&self.bench)
    }
}

impl Drop for Sealers {
    fn drop(&mut self) {
        self.bench.lock().is_over = true;
        self.bench.arrived.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Bench {
    pub(super) fn put(&self, jobs: impl IntoIterator<Item = Job>) {
        let mut work = self.lock();
        work.jobs.extend(jobs);
        let count = work.jobs.len();
        drop(work);
        match count {
            0 => {}
            1 => self.arrived.notify_one(),
            _ => self.arrived.notify_all(),
        }
    }

    fn work(&self) {
        while let Some(job) = self.take() {
            // What is left undone is found undone by who waits for it; the thread is there for the others.
            let _ = catch_unwind(AssertUnwindSafe(job));
        }
    }

    fn take(&self) -> Option<Job> {
        let mut work = self.lock();
        loop {
            if let Some(job) = work.jobs.pop_front() {
                return Some(job);
            }
            if work.is_over {
                return None;
            }
            let woken = self.arrived.wait(work);
            work = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Work")
            .field("jobs", &self.jobs.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn all_work_is_done_before_the_end_also_beside_work_that_fails() {
        let (done, counted) = channel();
        let sealers = Sealers::employ().expect("threads");
        sealers.bench().put((0..100).map(|number| {
            let done = done.clone();
            Box::new(move || {
                assert!(number % 10 != 0, "one that fails, by intent");
                done.send(number).expect("somebody counts");
            }) as Job
        }));
        drop(sealers);
        drop(done);
        assert_eq!(counted.into_iter().count(), 90);
    }
}
