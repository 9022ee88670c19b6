//! The engine: one thread that serves a box's connections.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use serde::Serialize;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::config::{Arrival, Config, Published, Transparent, Ways};
use crate::contain;
use crate::dial::Dialer;
use crate::dns::{Names, serve_tcp, serve_udp};
use crate::gate::Gate;
use crate::inspect::Inspector;
use crate::llm::LlmUsage;
use crate::proxy::serve_proxy;
use crate::publish::{Publisher, Tally};
use crate::record::{Recorder, RefusalCode, Way};
use crate::relay::Patience;
use crate::serve::{Shared, serve_transparent};
use crate::strays::follow;

/// After an error of `accept` that may pass, such as having no descriptors left.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Threads for what may block: making sockets inside the box.
const BLOCKING_THREADS: usize = 2;

/// A running engine. When it stops or is dropped, its sockets close, and the box has no way out.
#[derive(Debug)]
pub struct Engine {
    shared: Arc<Shared>,
    published: Arc<Tally>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Why an engine did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The thread or its event queue could not be made.
    #[error("the egress engine could not be set up")]
    Runtime(#[source] io::Error),
    /// A socket can't be used.
    #[error("a socket of the box can't be used")]
    Socket(#[source] io::Error),
    /// The certificates that the host trusts could not be read.
    #[error("the certificates that the host trusts could not be used")]
    Trust(#[source] crate::inspect::TrustError),
    /// A port is published, and nothing makes sockets inside the box.
    #[error("a port is published, but the box makes no sockets to reach it through")]
    NoBoxSockets,
}

/// What a box has used of the network.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Usage {
    /// Connections let through.
    pub connections: u64,
    /// Of these, still open.
    pub open: u64,
    /// Requests looked at.
    pub requests: u64,
    /// Things refused.
    pub refusals: u64,
    /// Bytes from the agent.
    pub sent: u64,
    /// Bytes to the agent.
    pub received: u64,
    /// Calls to models.
    pub llm: LlmUsage,
    /// Connections from the host to published ports.
    pub published: PublishedUsage,
}

/// What the host has used of a box's published ports. It is no part of the other figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PublishedUsage {
    /// Connections that reached a server in the box.
    pub connections: u64,
    /// Connections that found no server, or too many others.
    pub failed: u64,
    /// Bytes to the host.
    pub sent: u64,
    /// Bytes from the host.
    pub received: u64,
}

impl Engine {
    /// Starts serving a box.
    ///
    /// # Errors
    /// When a socket or the engine's thread can't be used. Nothing is served then, and the sockets are closed.
    pub fn start(
        config: Config,
        ways: Ways,
        recorder: Arc<dyn Recorder>,
    ) -> Result<Self, StartError> {
        let limits = config.limits;
        let connect_timeout = config.timeouts.connect;
        let shared = Arc::new(share(config, recorder)?);
        let published = Arc::new(Tally::default());
        let publisher = match (&ways.box_sockets, ways.published.is_empty()) {
            (_, true) => None,
            (None, false) => return Err(StartError::NoBoxSockets),
            (Some(sockets), false) => Some(Publisher {
                sockets: Arc::clone(sockets),
                room: Arc::new(Semaphore::new(limits.published as usize)),
                connect_timeout,
                patience: shared.patience,
                tally: Arc::clone(&published),
            }),
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(BLOCKING_THREADS)
            .build()
            .map_err(StartError::Runtime)?;
        let (stop, stopped) = oneshot::channel::<()>();
        {
            let _context = runtime.enter();
            listen(&shared, ways, limits.connections as usize, publisher)
                .map_err(StartError::Socket)?;
        }
        let gate = Arc::clone(&shared.gate);
        let thread = std::thread::Builder::new()
            .name("egress".to_owned())
            .spawn(move || {
                runtime.block_on(async {
                    // Told to stop, or nobody is left who could tell: either way it is over.
                    let _ = stopped.await;
                    take_last(&gate).await;
                });
                runtime.shutdown_background();
            })
            .map_err(StartError::Runtime)?;
        Ok(Self {
            shared,
            published,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// What the box has used so far.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let totals = &self.shared.gate.totals;
        let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        Usage {
            connections: load(&totals.connections),
            open: load(&totals.open),
            requests: load(&totals.requests),
            refusals: load(&totals.refusals),
            sent: load(&totals.sent),
            received: load(&totals.received),
            llm: self.shared.inspector.llm_usage(),
            published: self.published.usage(),
        }
    }

    /// Closes every connection and socket; returns what was used in all.
    #[must_use]
    pub fn stop(mut self) -> Usage {
        self.finish();
        self.usage()
    }

    fn finish(&mut self) {
        if let Some(stop) = self.stop.take() {
            // The thread may have ended by itself.
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            // A panic there has closed everything already.
            let _ = thread.join();
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.finish();
    }
}

/// What the box did last may still wait in a socket: it is looked at before the sockets close, so that a program that is
/// refused and ends at once is on record too.
async fn take_last(gate: &Gate) {
    /// A box that is still alive could go on for ever.
    const MOST_ROUNDS: usize = 64;
    /// The event queue is asked, then a connection is accepted, then it is served.
    const TURNS: usize = 4;
    for _ in 0..MOST_ROUNDS {
        let before = gate.totals.refusals.load(Ordering::Relaxed);
        for _ in 0..TURNS {
            tokio::task::yield_now().await;
        }
        if gate.totals.refusals.load(Ordering::Relaxed) == before {
            return;
        }
    }
}

fn share(config: Config, recorder: Arc<dyn Recorder>) -> Result<Shared, StartError> {
    let timeouts = config.timeouts;
    let names = Names::new(config.name_block, config.limits.names);
    let gate = Arc::new(Gate::new(config.rules, names, recorder));
    let inspector = Inspector::new(
        config.authority,
        config.roots,
        config.secrets,
        config.llm,
        timeouts,
    )
    .map_err(StartError::Trust)?;
    Ok(Shared {
        gate,
        dialer: Dialer {
            resolver: config.resolver,
            proxy: config.upstream_proxy,
            resolve_timeout: timeouts.resolve,
            connect_timeout: timeouts.connect,
        },
        inspector,
        patience: Patience {
            idle: timeouts.idle,
            half_closed: timeouts.half_closed,
        },
        greeting: timeouts.greeting,
        encrypted_hello: config.encrypted_hello,
        ports: config.ports,
    })
}

/// Puts a task on the current runtime for each socket.
fn listen(
    shared: &Arc<Shared>,
    ways: Ways,
    connections: usize,
    publisher: Option<Publisher>,
) -> io::Result<()> {
    let room = Arc::new(Semaphore::new(connections));
    for Transparent { listener, arrival } in ways.transparent {
        let listener = nonblocking(listener)?;
        tokio::spawn(accept(
            Arc::clone(shared),
            listener,
            Arc::clone(&room),
            Door::Transparent(arrival),
        ));
    }
    for listener in ways.proxy {
        let listener = nonblocking(listener)?;
        tokio::spawn(accept(
            Arc::clone(shared),
            listener,
            Arc::clone(&room),
            Door::Proxy,
        ));
    }
    for listener in ways.dns_tcp {
        tokio::spawn(serve_tcp(nonblocking(listener)?, Arc::clone(&shared.gate)));
    }
    for socket in ways.strays {
        tokio::spawn(follow(socket, Arc::clone(&shared.gate)));
    }
    for socket in ways.dns_udp {
        socket.set_nonblocking(true)?;
        tokio::spawn(serve_udp(
            UdpSocket::from_std(socket)?,
            Arc::clone(&shared.gate),
        ));
    }
    let Some(publisher) = publisher else {
        return Ok(());
    };
    let publisher = Arc::new(publisher);
    for Published { listener, port } in ways.published {
        let listener = nonblocking(listener)?;
        tokio::spawn(Arc::clone(&publisher).serve(listener, port));
    }
    Ok(())
}

fn nonblocking(listener: std::net::TcpListener) -> io::Result<TcpListener> {
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

#[derive(Clone, Copy)]
enum Door {
    Transparent(Arrival),
    Proxy,
}

async fn accept(shared: Arc<Shared>, listener: TcpListener, room: Arc<Semaphore>, door: Door) {
    loop {
        let Ok((client, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        match Arc::clone(&room).try_acquire_owned() {
            Ok(place) => {
                let gate = Arc::clone(&shared.gate);
                let serving = serve_one(Arc::clone(&shared), client, door, place);
                contain::spawn(serving, move |panicked| {
                    gate.failed("", None, panicked);
                });
            }
            Err(_) => {
                let (shown, port) = match door {
                    Door::Transparent(arrival) => match destination(&client, arrival) {
                        Ok(destination) => (destination.ip().to_string(), Some(destination.port())),
                        Err(_) => (String::new(), None),
                    },
                    Door::Proxy => (String::new(), None),
                };
                shared
                    .gate
                    .refuse(Way::Tcp, &shown, port, None, RefusalCode::Connections, None);
            }
        }
    }
}

async fn serve_one(
    shared: Arc<Shared>,
    client: TcpStream,
    door: Door,
    place: OwnedSemaphorePermit,
) {
    match door {
        Door::Proxy => serve_proxy(shared, client).await,
        Door::Transparent(arrival) => {
            if let Ok(destination) = destination(&client, arrival) {
                serve_transparent(shared, client, destination).await;
            }
        }
    }
    drop(place);
}

/// Where a connection wanted to go.
fn destination(client: &TcpStream, arrival: Arrival) -> io::Result<SocketAddr> {
    let own = client.local_addr()?;
    if arrival == Arrival::AnyAddress {
        return Ok(own);
    }
    let socket = SockRef::from(client);
    let original = if own.is_ipv4() {
        socket.original_dst_v4()
    } else {
        socket.original_dst_v6()
    };
    original?
        .as_socket()
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shared(…)")
    }
}
