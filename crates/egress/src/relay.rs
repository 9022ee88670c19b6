//! Passing bytes between two connections, untouched and counted.

use std::cell::RefCell;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::time::Instant;

use crate::gate::{Admission, Direction};
use crate::record::RefusalCode;

/// What one read takes at most, and so the most a connection keeps when its other side is slow.
const CHUNK: usize = 32 * 1024;

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
    mut client: TcpStream,
    mut server: TcpStream,
    first: Vec<u8>,
    meter: &impl Meter,
    patience: Patience,
) {
    let activity = Activity::new();
    let (client_read, client_write) = client.split();
    let (server_read, server_write) = server.split();
    let both = async {
        let sending = pump(
            client_read,
            server_write,
            first,
            meter,
            Direction::FromAgent,
            &activity,
        );
        let receiving = pump(
            server_read,
            client_write,
            Vec::new(),
            meter,
            Direction::ToAgent,
            &activity,
        );
        tokio::try_join!(sending, receiving)
    };
    tokio::select! {
        // How it ended makes no difference to anyone: both connections close.
        _ = both => {}
        () = activity.until_idle(patience) => {}
    }
}

async fn pump(
    from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    first: Vec<u8>,
    meter: &impl Meter,
    direction: Direction,
    activity: &Activity,
) -> io::Result<()> {
    if !first.is_empty() {
        let granted = meter.take_bytes(direction, first.len());
        to.write_all(&first[..granted]).await?;
        ensure_all(meter, granted, first.len())?;
        drop(first);
    }
    loop {
        from.readable().await?;
        match pass(&from, &to, meter, direction) {
            Ok(Passed::End) => break,
            Ok(Passed::Some { rest, cut }) => {
                activity.touch();
                if !rest.is_empty() {
                    to.write_all(&rest).await?;
                    activity.touch();
                }
                if cut {
                    return Err(cut_off(meter));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    to.shutdown().await?;
    activity.half_closed.store(true, Ordering::Relaxed);
    Ok(())
}

enum Passed {
    End,
    Some { rest: Vec<u8>, cut: bool },
}

/// Moves one chunk. What the other side does not take at once is handed back.
fn pass(
    from: &ReadHalf<'_>,
    to: &WriteHalf<'_>,
    meter: &impl Meter,
    direction: Direction,
) -> io::Result<Passed> {
    SCRATCH.with_borrow_mut(|scratch| {
        let count = from.try_read(scratch)?;
        if count == 0 {
            return Ok(Passed::End);
        }
        let granted = meter.take_bytes(direction, count);
        let written = match to.try_write(&scratch[..granted]) {
            Ok(written) => written,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error),
        };
        Ok(Passed::Some {
            rest: scratch[written..granted].to_vec(),
            cut: granted < count,
        })
    })
}

fn ensure_all(meter: &impl Meter, granted: usize, wanted: usize) -> io::Result<()> {
    if granted < wanted {
        Err(cut_off(meter))
    } else {
        Ok(())
    }
}

fn cut_off(meter: &impl Meter) -> io::Error {
    meter.used_up();
    io::ErrorKind::QuotaExceeded.into()
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
