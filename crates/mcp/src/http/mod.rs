//! One address for many servers: streamable HTTP on one side, programs in boxes and other addresses on the other.
//!
//! All of it runs on one thread. Each client's session has its own connection to each server, with a
//! [`Session`](crate::gateway::Session) in it: clients share no server's state.

mod address;
mod answer;
mod client;
mod envelope;
mod lines;
mod link;
mod merge;
mod post;
mod sse;
mod tasks;
mod upstream;

pub use address::{Address, InvalidAddress};

use crate::gateway::Limits;
use crate::judge::Judge;
use client::Client;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::task::{LocalSet, spawn_local};

/// A program that was started.
pub struct Started {
    /// What it reads.
    pub input: OwnedFd,
    /// What it writes.
    pub output: OwnedFd,
    /// Ends it when dropped, without waiting for that.
    pub hold: Box<dyn Send>,
}

impl std::fmt::Debug for Started {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Started")
    }
}

/// Starts a server's program, as often as it is asked to.
pub trait Start: Send + Sync {
    /// Starts it once more. May take its time: it is called on a thread of its own.
    ///
    /// # Errors
    /// Why it can't be started, in words for the client.
    fn start(&self) -> Result<Started, String>;
}

/// How a server is reached.
#[derive(Clone)]
pub enum Reach {
    /// By starting it.
    Program(Arc<dyn Start>),
    /// By streamable HTTP, over TCP or a Unix socket.
    Address(Address),
}

impl std::fmt::Debug for Reach {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Program(_) => f.write_str("Program"),
            Self::Address(address) => address.fmt(f),
        }
    }
}

/// A server.
#[derive(Debug, Clone)]
pub struct Server {
    /// What rules call it.
    pub name: String,
    /// How it is reached.
    pub reach: Reach,
}

/// What an endpoint serves, and by whose leave.
pub struct Setup {
    /// One has its tools shown by their own names, of several they are `server__tool`.
    pub servers: Vec<Server>,
    /// Who rules.
    pub judge: Arc<dyn Judge>,
    /// What is put up with.
    pub limits: Limits,
    /// Names that clients may call this host by, besides the loopback's.
    pub hosts: Vec<String>,
}

impl std::fmt::Debug for Setup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Setup")
            .field("servers", &self.servers)
            .finish_non_exhaustive()
    }
}

/// Where clients come in.
#[derive(Debug)]
pub enum Listening {
    /// From anywhere that reaches the address; the names they call it by are checked.
    Tcp(TcpListener),
    /// From where the socket's file can be reached.
    Unix(UnixListener),
}

/// Where an endpoint is told of more ways in.
#[derive(Debug, Clone)]
pub struct Inlet(UnboundedSender<Listening>);

impl Inlet {
    /// Lets clients come in here too, as long as the endpoint serves.
    pub fn open(&self, listening: Listening) {
        let _ = self.0.send(listening);
    }
}

/// An endpoint that serves until it is dropped.
#[derive(Debug)]
pub struct Endpoint {
    inlet: Inlet,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Endpoint {
    /// Serves from a thread of its own.
    ///
    /// # Errors
    /// When the system gives no thread, or not what a thread needs to wait.
    pub fn start(setup: Setup, listening: Listening) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(setup.limits.most_held + 16)
            .thread_stack_size(256 << 10)
            .build()?;
        let (stop, stopped) = oneshot::channel();
        let (inlet, ways_in) = unbounded_channel();
        let inlet = Inlet(inlet);
        inlet.open(listening);
        let name = std::thread::Builder::new().name("mcp".into());
        let thread = name.spawn(move || {
            // Outlives all else here: a program is let go of only when nobody holds what it started.
            let setup = Rc::new(setup);
            let local = LocalSet::new();
            local.block_on(&runtime, async {
                let hub = Rc::new(Hub::new(setup.clone()));
                tokio::select! {
                    () = serve(&hub, ways_in) => {}
                    () = tend(&hub) => {}
                    _ = stopped => {}
                }
                hub.clients.borrow_mut().clear();
                hub.shared.lock().await.take();
            });
            drop(local);
            // Whoever still waits for an operator is not waited for.
            runtime.shutdown_background();
        })?;
        Ok(Self {
            inlet,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// To let clients in elsewhere as well.
    #[must_use]
    pub fn inlet(&self) -> Inlet {
        self.inlet.clone()
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Everything the thread has.
struct Hub {
    setup: Rc<Setup>,
    clients: RefCell<HashMap<String, Rc<Client>>>,
    /// Whoever has no session.
    shared: tokio::sync::Mutex<Option<Rc<Client>>>,
}

/// The most sessions at once; each may be a box for each server.
const MOST_CLIENTS: usize = 256;

/// A session that says nothing for so long, and listens to nothing, is over.
const LONGEST_SILENCE: Duration = Duration::from_secs(3600);

/// The most connections at once.
const MOST_CONNECTIONS: usize = 1024;

impl Hub {
    fn new(setup: Rc<Setup>) -> Self {
        Self {
            setup,
            clients: RefCell::default(),
            shared: tokio::sync::Mutex::new(None),
        }
    }

    /// Whether tools are shown by their own names.
    fn is_plain(&self) -> bool {
        self.setup.servers.len() == 1
    }
}

/// How a client came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Came {
    /// By an address, which pages of a browser reach too: the name it was called by is checked.
    ByAddress,
    /// By a file, which only some can open.
    ByFile,
}

async fn serve(hub: &Rc<Hub>, mut ways_in: UnboundedReceiver<Listening>) {
    let open = Rc::new(Cell::new(0_usize));
    while let Some(listening) = ways_in.recv().await {
        let (hub, open) = (hub.clone(), open.clone());
        spawn_local(async move { accept(&hub, listening, &open).await });
    }
}

async fn accept(hub: &Rc<Hub>, listening: Listening, open: &Rc<Cell<usize>>) {
    let nonblocking = match &listening {
        Listening::Tcp(listener) => listener.set_nonblocking(true),
        Listening::Unix(listener) => listener.set_nonblocking(true),
    };
    if nonblocking.is_err() {
        return;
    }
    match listening {
        Listening::Tcp(listener) => {
            let Ok(listener) = tokio::net::TcpListener::from_std(listener) else {
                return;
            };
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => {
                        let _ = stream.set_nodelay(true);
                        receive(hub, stream, Came::ByAddress, open);
                    }
                    Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            }
        }
        Listening::Unix(listener) => {
            let Ok(listener) = tokio::net::UnixListener::from_std(listener) else {
                return;
            };
            loop {
                match listener.accept().await {
                    // Counted before a word is said: whoever says nothing has a descriptor of ours too.
                    Ok((stream, _)) => {
                        let Some(place) = Place::take(open) else {
                            continue;
                        };
                        let hub = hub.clone();
                        spawn_local(async move {
                            match lines::is_spoken(&stream).await {
                                true => lines::talk(&hub, stream).await,
                                false => answer_http(&hub, stream, Came::ByFile).await,
                            }
                            drop(place);
                        });
                    }
                    Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            }
        }
    }
}

fn receive<S: AsyncRead + AsyncWrite + Unpin + 'static>(
    hub: &Rc<Hub>,
    stream: S,
    came: Came,
    open: &Rc<Cell<usize>>,
) {
    let Some(place) = Place::take(open) else {
        return;
    };
    let hub = hub.clone();
    spawn_local(async move {
        answer_http(&hub, stream, came).await;
        drop(place);
    });
}

async fn answer_http<S: AsyncRead + AsyncWrite + Unpin + 'static>(
    hub: &Rc<Hub>,
    stream: S,
    came: Came,
) {
    let service = service_fn(|request: Request<Incoming>| {
        let hub = hub.clone();
        async move { Ok::<Response<answer::Body>, Infallible>(post::handle(&hub, request, came).await) }
    });
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_secs(30))
        .max_buf_size(64 << 10)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

/// A connection's place among those that are open.
struct Place(Rc<Cell<usize>>);

impl Place {
    fn take(open: &Rc<Cell<usize>>) -> Option<Self> {
        if open.get() >= MOST_CONNECTIONS {
            return None;
        }
        open.set(open.get() + 1);
        Some(Self(open.clone()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// What is late is answered, who is silent for long is forgotten.
async fn tend(hub: &Rc<Hub>) {
    let mut clock = tokio::time::interval(Duration::from_millis(100));
    clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        clock.tick().await;
        let clients: Vec<Rc<Client>> = hub.clients.borrow().values().cloned().collect();
        for client in clients {
            client.expire();
            if client.silence() > LONGEST_SILENCE {
                hub.clients.borrow_mut().remove(client.id());
            }
        }
    }
}

#[cfg(test)]
mod tests;
