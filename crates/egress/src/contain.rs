//! Panics that end one connection and nothing else.
//!
//! Elsewhere a panic ends the process, and with it the box: nobody knows what state it was in. What reads bytes from outside
//! for one connection holds nothing but that connection, so there it is enough to end that. The program's panic hook asks
//! [`is_contained`] which of the two it is.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    static PLACE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Whether a panic on this thread, now, ends a connection alone. For the program's panic hook: when it says no, the hook must
/// end the process. What it says yes to is put on record as a refusal, with the place that is taken down here.
pub fn is_contained(panic: &PanicHookInfo<'_>) -> bool {
    // A thread that is ending has no such values any more, and contains nothing.
    let contained = DEPTH.try_with(|depth| depth.get() > 0).unwrap_or(false);
    if contained {
        let place = panic.location().map(ToString::to_string);
        // Being written already: a panic within a panic.
        let _ = PLACE.try_with(|kept| {
            if let Ok(mut kept) = kept.try_borrow_mut() {
                *kept = place.unwrap_or_default();
            }
        });
    }
    contained
}

/// Something panicked, and is gone. It holds the place, where a hook took it down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Panicked(pub(crate) String);

struct Inside;

impl Inside {
    fn enter() -> Self {
        DEPTH.with(|depth| depth.set(depth.get().saturating_add(1)));
        Self
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        // It is only ever dropped on the thread that made it.
        let _ = DEPTH.try_with(|depth| depth.set(depth.get().saturating_sub(1)));
    }
}

/// Does something that may panic.
pub(crate) fn contain<T>(act: impl FnOnce() -> T) -> Result<T, Panicked> {
    let inside = Inside::enter();
    let done = catch_unwind(AssertUnwindSafe(act));
    let done = done.map_err(|payload| {
        let _inside = &inside;
        // What was thrown may itself do something when it is dropped.
        forget(payload);
        let place = PLACE.try_with(|kept| {
            kept.try_borrow_mut()
                .map(|mut kept| std::mem::take(&mut *kept))
        });
        Panicked(place.ok().and_then(Result::ok).unwrap_or_default())
    });
    drop(inside);
    done
}

fn forget(payload: Box<dyn Any + Send>) {
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(again);
    }
}

/// A future whose panics are its outcome.
pub(crate) struct Contained<F> {
    inner: Option<Pin<Box<F>>>,
}

impl<F: Future> Contained<F> {
    pub(crate) fn new(future: F) -> Self {
        Self {
            inner: Some(Box::pin(future)),
        }
    }
}

impl<F: Future> Future for Contained<F> {
    type Output = Result<F::Output, Panicked>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(inner) = &mut self.inner else {
            return Poll::Pending;
        };
        let polled = contain(|| inner.as_mut().poll(cx));
        match polled {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(outcome)) => Poll::Ready(Ok(outcome)),
            Err(panicked) => {
                // What it held is let go of, and settled, before anybody is told.
                let inner = self.inner.take();
                let _ = contain(|| drop(inner));
                Poll::Ready(Err(panicked))
            }
        }
    }
}

impl<F> Drop for Contained<F> {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.take() {
            // Nobody is left to tell.
            let _ = contain(|| drop(inner));
        }
    }
}

/// Spawns something that serves one connection; `told` hears when it panicked.
pub(crate) fn spawn<F>(future: F, told: impl FnOnce(Panicked) + Send + 'static)
where
    F: Future<Output = ()> + Send + 'static,
{
    tokio::spawn(async move {
        if let Err(panicked) = Contained::new(future).await {
            let _ = contain(|| told(panicked));
        }
    });
}

/// Spawns what hyper wants to have spawned for a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ContainedExecutor;

impl<F> hyper::rt::Executor<F> for ContainedExecutor
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, future: F) {
        spawn(
            async move {
                let _ = future.await;
            },
            // Whoever waits for what it served sees it end.
            drop,
        );
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn a_hook_is_told_what_ends_a_connection_and_what_ends_all() {
        static HEARD: Mutex<Vec<bool>> = Mutex::new(Vec::new());
        std::panic::set_hook(Box::new(|panic| {
            HEARD.lock().unwrap().push(is_contained(panic));
        }));
        let Err(Panicked(place)) = contain(|| panic!("inside"));
        assert!(place.contains("contain.rs:"), "{place}");
        // Beside it and after it a panic is what it was.
        let _ = contain(|| std::thread::spawn(|| panic!("beside")).join());
        let _ = catch_unwind(|| panic!("after"));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let lost = runtime.block_on(Contained::new(async {
            tokio::task::yield_now().await;
            panic!("in a future")
        }));
        let Err(Panicked(_)) = lost;
        let _ = catch_unwind(|| panic!("after"));
        drop(std::panic::take_hook());
        assert_eq!(*HEARD.lock().unwrap(), [true, false, false, true, false]);
    }
}
