//! Passing bytes between two connections, untouched and counted.

use std::cell::RefCell;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use socket2::SockRef;
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::gate::{Admission, Direction};
use crate::pipes::Pipe;
use crate::record::RefusalCode;

/// What one read takes at most, and so the most a connection keeps when its other side is slow.
const CHUNK: usize = 32 * 1024;
/// What a connection may move before others get their turn.
const TURN: usize = 1024 * 1024;

thread_local! {
    // One for all connections of the engine's thread: an idle one owns no buffer.
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; CHUNK].into_boxed_slice());
}

/// How long a connection may be silent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// While both sides are open.
    pub(crate) idle: Duration,
    /// Once one side has said all it had to say.
    pub(crate) half_closed: Duration,
}

/// Counts the bytes that pass.
pub(crate) trait Meter {
    /// How many of `wanted` bytes may pass; these are counted.
    fn take_bytes(&self, direction: Direction, wanted: usize) -> usize;

    /// Not all that came may pass: the connection ends.
    fn used_up(&self);
}

impl Meter for Admission {
    fn take_bytes(&self, direction: Direction, wanted: usize) -> usize {
        Self::take_bytes(self, direction, wanted)
    }

    fn used_up(&self) {
        self.refuse(RefusalCode::Bytes, None);
    }
}

/// Passes bytes both ways until both sides are done, one fails, no more may pass or nothing has moved for too long.
/// `client` is on the agent's side; `first` is what was read from it already.
pub(crate) async fn relay(
    client: TcpStream,
    server: TcpStream,
    first: Vec<u8>,
    meter: &impl Meter,
    patience: Patience,
) {
    let activity = Activity::new();
    let both = async {
        let sending = Pump {
            from: &client,
            to: &server,
            meter,
            direction: Direction::FromAgent,
            activity: &activity,
        };
        let receiving = Pump {
            from: &server,
            to: &client,
            meter,
            direction: Direction::ToAgent,
            activity: &activity,
        };
        tokio::try_join!(sending.run(first), receiving.run(Vec::new()))
    };
    tokio::select! {
        // How it ended makes no difference to anyone: both connections close.
        _ = both => {}
        () = activity.until_idle(patience) => {}
    }
}

/// Passes bytes one way.
struct Pump<'a, M> {
    from: &'a TcpStream,
    to: &'a TcpStream,
    meter: &'a M,
    direction: Direction,
    activity: &'a Activity,
}

/// How much there was to pass.
enum Passed {
    /// Some, and that was all for now.
    Some,
    /// So much that there is probably more.
    Much,
    /// The last of it.
    End,
}

impl<M: Meter> Pump<'_, M> {
    async fn run(&self, first: Vec<u8>) -> io::Result<()> {
        if !first.is_empty() {
            let granted = self.meter.take_bytes(self.direction, first.len());
            self.write(first.get(..granted).unwrap_or_default()).await?;
            self.ensure_all(granted, first.len())?;
        }
        drop(first);
        let mut passed = Passed::Some;
        loop {
            self.from.readable().await?;
            // Copying is the quicker way for a message; for bulk it is not to copy.
            let pipe = match passed {
                Passed::Much => Pipe::lend(),
                _ => None,
            };
            passed = match pipe {
                Some(pipe) => self.flow(pipe).await?,
                None => self.copy().await?,
            };
            if let Passed::End = passed {
                break;
            }
        }
        SockRef::from(self.to).shutdown(std::net::Shutdown::Write)?;
        self.activity.half_closed.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Moves one chunk.
    async fn copy(&self) -> io::Result<Passed> {
        let Some(chunk) = self.copy_at_once()? else {
            return Ok(Passed::Some);
        };
        self.activity.touch();
        if chunk.read == 0 {
            return Ok(Passed::End);
        }
        self.write(&chunk.rest).await?;
        self.ensure_all(chunk.granted, chunk.read)?;
        Ok(match chunk.read {
            CHUNK => Passed::Much,
            _ => Passed::Some,
        })
    }

    /// Reads a chunk and writes what the other side takes at once. `None` when nothing was there after all.
    fn copy_at_once(&self) -> io::Result<Option<Chunk>> {
        SCRATCH.with_borrow_mut(|scratch| {
            let Some(read) = unless_blocked(self.from.try_read(scratch))? else {
                return Ok(None);
            };
            let granted = self.meter.take_bytes(self.direction, read);
            let written = match granted {
                0 => 0,
                _ => {
                    let bytes = scratch.get(..granted).unwrap_or_default();
                    unless_blocked(self.to.try_write(bytes))?.unwrap_or(0)
                }
            };
            Ok(Some(Chunk {
                read,
                granted,
                rest: scratch.get(written..granted).unwrap_or_default().to_vec(),
            }))
        })
    }

    /// Moves what comes through a pipe, until no more comes.
    async fn flow(&self, mut pipe: Pipe) -> io::Result<Passed> {
        let mut moved = 0;
        loop {
            let count = match unless_blocked(pipe.fill(self.from))? {
                None if moved < CHUNK => return Ok(Passed::Some),
                None => return Ok(Passed::Much),
                Some(0) => return Ok(Passed::End),
                Some(count) => count,
            };
            self.activity.touch();
            let granted = self.meter.take_bytes(self.direction, count);
            let mut left = granted;
            while left > 0 {
                match unless_blocked(pipe.drain(self.to, left))? {
                    Some(taken) => left -= taken,
                    None => {
                        self.to.writable().await?;
                        self.activity.touch();
                    }
                }
            }
            self.ensure_all(granted, count)?;
            moved += count;
            if moved >= TURN {
                moved = CHUNK;
                tokio::task::yield_now().await;
            }
        }
    }

    async fn write(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.to.writable().await?;
            if let Some(written) = unless_blocked(self.to.try_write(bytes))? {
                bytes = bytes.get(written..).unwrap_or_default();
                self.activity.touch();
            }
        }
        Ok(())
    }

    fn ensure_all(&self, granted: usize, wanted: usize) -> io::Result<()> {
        if granted < wanted {
            self.meter.used_up();
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        Ok(())
    }
}

/// A chunk on its way.
struct Chunk {
    read: usize,
    granted: usize,
    /// What was granted and is not written yet.
    rest: Vec<u8>,
}

/// `None` when it would have to wait.
fn unless_blocked(outcome: io::Result<usize>) -> io::Result<Option<usize>> {
    match outcome {
        Ok(count) => Ok(Some(count)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

/// When bytes last moved.
struct Activity {
    started: Instant,
    last_ms: AtomicU64,
    half_closed: AtomicBool,
}

impl Activity {
    fn new() -> Self {
        Self {
            started: Instant::now(),
            last_ms: AtomicU64::new(0),
            half_closed: AtomicBool::new(false),
        }
    }

    fn touch(&self) {
        let now = self.started.elapsed().as_millis();
        self.last_ms
            .store(u64::try_from(now).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    async fn until_idle(&self, patience: Patience) {
        loop {
            let limit = match self.half_closed.load(Ordering::Relaxed) {
                true => patience.half_closed,
                false => patience.idle,
            };
            let last = Duration::from_millis(self.last_ms.load(Ordering::Relaxed));
            let until = self.started + last + limit;
            if until <= Instant::now() {
                return;
            }
            // A side may close in the meantime, after which less is waited for.
            let look_again = Instant::now() + patience.half_closed;
            tokio::time::sleep_until(until.min(look_again)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;
    use crate::pipes;

    struct Everything;

    impl Meter for Everything {
        fn take_bytes(&self, _: Direction, wanted: usize) -> usize {
            wanted
        }

        fn used_up(&self) {}
    }

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (one, other) = tokio::join!(TcpStream::connect(address), listener.accept());
        (one.unwrap(), other.unwrap().0)
    }

    #[tokio::test]
    async fn bulk_goes_through_a_pipe_that_an_idle_connection_does_not_keep() {
        let (mut agent, client) = pair().await;
        let (mut far, server) = pair().await;
        let patience = Patience {
            idle: Duration::from_secs(60),
            half_closed: Duration::from_secs(60),
        };
        let relaying =
            tokio::spawn(
                async move { relay(client, server, Vec::new(), &Everything, patience).await },
            );
        agent.write_all(b"a message").await.unwrap();
        let mut message = [0; 9];
        far.read_exact(&mut message).await.unwrap();
        assert_eq!(pipes::counts(), (0, 0));

        let much = vec![7; 8 << 20];
        let mut back = vec![0; much.len()];
        let (sent, received) = tokio::join!(far.write_all(&much), agent.read_exact(&mut back));
        sent.unwrap();
        received.unwrap();
        // Once more round, so that the pump has seen that no more comes.
        agent.write_all(b"a message").await.unwrap();
        far.read_exact(&mut message).await.unwrap();
        assert_eq!(pipes::counts(), (1, 0));
        drop((agent, far));
        relaying.await.unwrap();
    }
}
