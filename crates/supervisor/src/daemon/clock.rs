//! The daemon's own clock: one thread that starts agents again when their time has come, and looks at budgets.

use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::Inner;

/// How often budgets are looked at.
const LOOK: Duration = Duration::from_secs(1);

/// Wakes the clock's thread.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    state: Mutex<Ticking>,
    rung: Condvar,
}

#[derive(Debug, Default)]
struct Ticking {
    is_rung: bool,
    is_stopped: bool,
}

impl Clock {
    pub(super) fn start(inner: &Arc<Inner>) -> io::Result<()> {
        let clock = Arc::clone(&inner.clock);
        let inner = Arc::downgrade(inner);
        std::thread::Builder::new()
            .name("belljar-clock".to_owned())
            .spawn(move || clock.run(&inner))?;
        Ok(())
    }

    /// Has it look now.
    pub(crate) fn ring(&self) {
        self.lock().is_rung = true;
        self.rung.notify_all();
    }

    /// Nobody is started again any more.
    pub(super) fn stop(&self) {
        self.lock().is_stopped = true;
        self.rung.notify_all();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Ticking> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, inner: &Weak<Inner>) {
        let mut wait = Duration::ZERO;
        loop {
            let ticking = self.lock();
            let waited = self.rung.wait_timeout_while(ticking, wait, |ticking| {
                !ticking.is_rung && !ticking.is_stopped
            });
            let mut ticking = match waited {
                Ok((ticking, _)) => ticking,
                Err(poisoned) => poisoned.into_inner().0,
            };
            if ticking.is_stopped {
                return;
            }
            ticking.is_rung = false;
            drop(ticking);
            let Some(inner) = inner.upgrade() else {
                return;
            };
            for again in inner.roster.due() {
                inner.start_again(again);
            }
            inner.try_due();
            inner.look_at_budgets();
            let next = inner.roster.next_due();
            let next = next.map(|at| at.saturating_duration_since(Instant::now()));
            wait = next.map_or(LOOK, |next| next.min(LOOK));
        }
    }
}
