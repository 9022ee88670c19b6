//! Published ports: connections from the host to servers inside the box.
//!
//! The engine is not in the box's network namespace, so it asks the box for a socket that is, and connects that. Where the
//! host's listeners are, and so who can reach them, is the business of whoever made them.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::config::BoxSockets;
use crate::contain;
use crate::engine::{ACCEPT_PAUSE, PublishedUsage};
use crate::gate::Direction;
use crate::relay::{Meter, Patience, relay};

/// Passes connections from the host on into the box.
pub(crate) struct Publisher {
    pub(crate) sockets: Arc<dyn BoxSockets>,
    pub(crate) room: Arc<Semaphore>,
    pub(crate) connect_timeout: Duration,
    pub(crate) patience: Patience,
    pub(crate) tally: Arc<Tally>,
}

/// What published ports have been used for.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    connections: AtomicU64,
    failed: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
}

impl Tally {
    pub(crate) fn usage(&self) -> PublishedUsage {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        PublishedUsage {
            connections: load(&self.connections),
            failed: load(&self.failed),
            sent: load(&self.sent),
            received: load(&self.received),
        }
    }
}

/// Everything passes, and is counted.
impl Meter for Tally {
    fn take_bytes(&self, direction: Direction, wanted: usize) -> usize {
        let counter = match direction {
            Direction::FromAgent => &self.sent,
            Direction::ToAgent => &self.received,
        };
        counter.fetch_add(wanted as u64, Ordering::Relaxed);
        wanted
    }

    fn used_up(&self) {}
}

impl Publisher {
    /// Serves one published port until the engine ends.
    pub(crate) async fn serve(self: Arc<Self>, listener: TcpListener, port: u16) {
        loop {
            let Ok((outside, _)) = listener.accept().await else {
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            };
            let Ok(place) = Arc::clone(&self.room).try_acquire_owned() else {
                self.tally.failed.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            let publisher = Arc::clone(&self);
            let tally = Arc::clone(&self.tally);
            let passing = async move {
                publisher.pass(outside, port).await;
                drop(place);
            };
            contain::spawn(passing, move |_| {
                tally.failed.fetch_add(1, Ordering::Relaxed);
            });
        }
    }

    /// Passes one connection on. When nothing listens in the box, it is closed.
    async fn pass(&self, outside: TcpStream, port: u16) {
        let Ok(Ok(inside)) = timeout(self.connect_timeout, self.connect(port)).await else {
            self.tally.failed.fetch_add(1, Ordering::Relaxed);
            return;
        };
        self.tally.connections.fetch_add(1, Ordering::Relaxed);
        for stream in [&outside, &inside] {
            // Small writes go at once; failing to say so costs only time.
            let _ = stream.set_nodelay(true);
        }
        relay(inside, outside, Vec::new(), &*self.tally, self.patience).await;
    }

    async fn connect(&self, port: u16) -> io::Result<TcpStream> {
        let sockets = Arc::clone(&self.sockets);
        let made = tokio::task::spawn_blocking(move || sockets.tcp_socket()).await;
        let socket = std::net::TcpStream::from(made.map_err(io::Error::other)??);
        socket.set_nonblocking(true)?;
        let server = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        TcpSocket::from_std_stream(socket).connect(server).await
    }
}
