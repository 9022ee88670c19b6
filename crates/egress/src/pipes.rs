//! Pipes that bulk data flows through without being copied.
//!
//! A connection has one only while data flows, so an idle connection holds none; and there are only so many, so what they
//! pin in the kernel is bounded whoever is slow. Who gets none copies.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use tokio::io::Interest;
use tokio::net::TcpStream;

/// What a pipe holds at most. Measured: a quarter of it moves a fifth less, and 64 KiB are hardly better than copying.
const CAPACITY: usize = 1024 * 1024;
/// The size of a pipe when a user has no room for larger ones. It still takes more, as its pages may be large.
const SMALL: usize = CAPACITY / 4;
/// Pipes in use at once, and so with what they hold 16 MiB.
const MOST_LENT: usize = 16;
/// Pipes that are kept while nobody uses them.
const MOST_IDLE: usize = 2;

#[derive(Default)]
struct Pool {
    idle: Vec<Ends>,
    lent: usize,
}

struct Ends {
    read: OwnedFd,
    write: OwnedFd,
}

thread_local! {
    // An engine has one thread, so its pipes are closed when it ends.
    static POOL: RefCell<Pool> = RefCell::default();
}

/// A pipe that is lent to one connection.
pub(crate) struct Pipe {
    /// There until the pipe is given back.
    ends: Option<Ends>,
    /// Bytes in it.
    held: usize,
}

impl Pipe {
    /// A pipe, when there is one to spare.
    pub(crate) fn lend() -> Option<Self> {
        POOL.with_borrow_mut(|pool| {
            if pool.lent >= MOST_LENT {
                return None;
            }
            let ends = pool.idle.pop().or_else(Ends::new)?;
            pool.lent += 1;
            Some(Self {
                ends: Some(ends),
                held: 0,
            })
        })
    }

    /// Takes what a connection has, up to what the pipe holds: nothing at its end.
    pub(crate) fn fill(&mut self, from: &TcpStream) -> io::Result<usize> {
        let Some(ends) = &self.ends else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        let room = CAPACITY - self.held;
        let count = from.try_io(Interest::READABLE, || moved(from, &ends.write, room))?;
        self.held += count;
        Ok(count)
    }

    /// Hands up to `most` bytes on; how many the connection took.
    pub(crate) fn drain(&mut self, to: &TcpStream, most: usize) -> io::Result<usize> {
        let Some(ends) = &self.ends else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        let count = to.try_io(Interest::WRITABLE, || moved(&ends.read, to, most))?;
        self.held -= count;
        Ok(count)
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        // The pool is gone when the engine's thread is at its end, and the pipe closes.
        let _ = POOL.try_with(|pool| {
            let mut pool = pool.borrow_mut();
            pool.lent -= 1;
            // What is left in a pipe belongs to a connection that is over: nobody else may get it.
            if self.held == 0 && pool.idle.len() < MOST_IDLE {
                pool.idle.extend(self.ends.take());
            }
        });
    }
}

impl Ends {
    fn new() -> Option<Self> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
        fcntl_setpipe_size(&write, CAPACITY)
            .or_else(|_| fcntl_setpipe_size(&write, SMALL))
            .ok()?;
        Some(Self { read, write })
    }
}

/// Writing to a connection that is gone raises `SIGPIPE`, which Rust's runtime ignores.
fn moved(from: impl AsFd, to: impl AsFd, most: usize) -> io::Result<usize> {
    let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
    let splice = || splice(from.as_fd(), None, to.as_fd(), None, most, flags);
    Ok(rustix::io::retry_on_intr(splice)?)
}

/// Pipes of this thread that are kept, and that are lent.
#[cfg(test)]
pub(crate) fn counts() -> (usize, usize) {
    POOL.with_borrow(|pool| (pool.idle.len(), pool.lent))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (one, other) = tokio::join!(TcpStream::connect(address), listener.accept());
        (one.unwrap(), other.unwrap().0)
    }

    #[tokio::test]
    async fn pipes_are_few_and_come_back_when_they_are_empty() {
        let lent: Vec<_> = (0..MOST_LENT).filter_map(|_| Pipe::lend()).collect();
        assert_eq!(lent.len(), MOST_LENT);
        assert!(Pipe::lend().is_none());
        drop(lent);
        assert_eq!(counts(), (MOST_IDLE, 0));
    }

    #[tokio::test]
    async fn what_one_connection_left_behind_is_not_given_to_another() {
        let (mut near, far) = pair().await;
        near.write_all(b"mine").await.unwrap();
        far.readable().await.unwrap();
        let mut pipe = Pipe::lend().unwrap();
        assert_eq!(pipe.fill(&far).unwrap(), 4);
        drop(pipe);
        assert_eq!(counts(), (0, 0));

        let (mut near, far) = pair().await;
        near.write_all(b"next").await.unwrap();
        far.readable().await.unwrap();
        let mut pipe = Pipe::lend().unwrap();
        assert_eq!(pipe.fill(&far).unwrap(), 4);
        assert_eq!(pipe.drain(&far, 3).unwrap(), 3);
        assert_eq!(pipe.drain(&far, 1).unwrap(), 1);
        drop(pipe);
        assert_eq!(counts(), (1, 0));
        let mut back = [0; 4];
        near.read_exact(&mut back).await.unwrap();
        assert_eq!(&back, b"next");
    }
}
