//! Stops the ledger at a chosen change to the file system.

use std::cell::RefCell;
use std::io;
use std::sync::{Arc, Mutex};

use rustix::io::Errno;

use crate::disk::Step;

/// When to fail, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Plan {
    /// Never.
    None,
    /// At the n-th change (from 0) and at every later one, as if killed there.
    KillAt(usize),
    /// Only at the n-th change, with this error.
    FailAt(usize, Errno),
    /// At the first change of this kind.
    FailOn(Step, Errno),
}

/// Counts changes and fails one.
pub(crate) struct Faults {
    state: Mutex<(Plan, Vec<Step>)>,
}

thread_local! {
    static CURRENT: RefCell<Arc<Faults>> = RefCell::new(Faults::new());
}

impl Faults {
    fn new() -> Arc<Self> {
        Arc::new(Faults {
            state: Mutex::new((Plan::None, Vec::new())),
        })
    }

    /// What disks opened by this thread obey.
    pub(crate) fn of_this_thread() -> Arc<Self> {
        CURRENT.with(|current| current.borrow().clone())
    }

    /// A new plan for disks that this thread opens from now on. Those opened before keep theirs.
    pub(crate) fn plan(plan: Plan) -> Arc<Self> {
        let faults = Faults::new();
        faults.state.lock().unwrap().0 = plan;
        CURRENT.with(|current| *current.borrow_mut() = Arc::clone(&faults));
        faults
    }

    /// Starts counting anew with another plan, for disks that are open already.
    pub(crate) fn change(&self, plan: Plan) {
        *self.state.lock().unwrap() = (plan, Vec::new());
    }

    /// Changes that were tried, also those that failed.
    pub(crate) fn steps(&self) -> Vec<Step> {
        self.state.lock().unwrap().1.clone()
    }

    pub(crate) fn step(&self, step: Step) -> io::Result<()> {
        let mut state = self.state.lock().unwrap();
        let n = state.1.len();
        let seen_before = state.1.contains(&step);
        state.1.push(step);
        match state.0 {
            Plan::KillAt(at) if n >= at => Err(io::Error::other("killed")),
            Plan::FailAt(at, errno) if n == at => Err(errno.into()),
            Plan::FailOn(kind, errno) if kind == step && !seen_before => Err(errno.into()),
            _ => Ok(()),
        }
    }
}
