//! A server's beginning and end.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio_rustls::TlsAcceptor;

use crate::Settings;
use crate::backend::Backend;
use crate::serve::{Site, accept};
use crate::tls::{self, TlsError};
use crate::tokens::{LiveTokens, TokenFile};

/// How long what is being answered may take to come to an end when the server is stopped.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Why a server can't be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Others could reach it, and it would not be safe.
    #[error("{bind} can be reached from other machines, and there is {missing}")]
    Exposed {
        /// Where it was to listen.
        bind: SocketAddr,
        /// What is missing.
        missing: &'static str,
    },
    /// Somebody else has the port.
    #[error("the port of {bind} is taken")]
    PortTaken {
        /// Where it was to listen.
        bind: SocketAddr,
    },
    /// It can't listen there.
    #[error("the web server can't listen at {bind}")]
    Listen {
        /// Where it was to listen.
        bind: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// TLS can't be spoken.
    #[error("the web server can't speak TLS")]
    Tls(#[from] TlsError),
    /// There is no thread or no event queue to be had.
    #[error("the web server can't be started")]
    System(#[source] io::Error),
}

impl StartError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Exposed { .. } => {
                "give it a certificate and a key and make a token (`belljar token create`), or let it listen at 127.0.0.1"
            }
            Self::PortTaken { .. } => {
                "another program or another supervisor listens there: stop it, or choose a port with --web-port"
            }
            Self::Listen { .. } => "choose an address of this machine, and a port above 1023",
            Self::Tls(error) => error.hint(),
            Self::System(_) => "the system is out of threads, memory or open files",
        }
    }
}

/// The web server.
#[derive(Clone, Copy, Debug)]
pub struct Web;

impl Web {
    /// Starts a server in a thread of its own. It answers when this comes back.
    pub fn start(
        settings: Settings,
        tokens: TokenFile,
        backend: impl Backend,
    ) -> Result<Running, StartError> {
        let tls = settings.tls.as_ref().map(tls::configure).transpose()?;
        let tls = tls.map(TlsAcceptor::from);
        let tokens = Arc::new(LiveTokens::new(tokens));
        check_exposure(&settings, &tokens)?;
        let bind = settings.bind;
        let listener = TcpListener::bind(bind).map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => StartError::PortTaken { bind },
            _ => StartError::Listen {
                bind,
                source: error,
            },
        })?;
        listener.set_nonblocking(true).map_err(StartError::System)?;
        let address = listener.local_addr().map_err(StartError::System)?;
        let runtime = Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(settings.limits.calls.max(1) * 2 + 2)
            .thread_name("web-call")
            .build()
            .map_err(StartError::System)?;
        let listener = {
            let _inside = runtime.enter();
            tokio::net::TcpListener::from_std(listener).map_err(StartError::System)?
        };
        let site = Arc::new(Site::new(
            &settings,
            address,
            Arc::clone(&tokens),
            Arc::new(backend),
        ));
        let (stop, stopped) = oneshot::channel::<()>();
        let run = move || {
            run(runtime, accept(site, listener, tls), stopped);
            tokens.write_uses();
        };
        let thread = std::thread::Builder::new()
            .name("web".to_owned())
            .spawn(run)
            .map_err(StartError::System)?;
        Ok(Running {
            address,
            is_tls: settings.tls.is_some(),
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

fn run(runtime: Runtime, accepting: impl Future<Output = ()>, stopped: oneshot::Receiver<()>) {
    runtime.block_on(async {
        tokio::select! {
            () = accepting => {}
            _ = stopped => {}
        }
    });
    runtime.shutdown_timeout(LAST_WORDS);
}

/// A server that other machines reach needs TLS, or tokens travel in the clear, and a token, or nobody can use it and somebody will
/// look for a way around that.
fn check_exposure(settings: &Settings, tokens: &LiveTokens) -> Result<(), StartError> {
    let bind = settings.bind;
    if bind.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    let missing = match (settings.tls.is_some(), tokens.any_good()) {
        (true, true) => return Ok(()),
        (false, true) => "no certificate",
        (true, false) => "no token that is good",
        (false, false) => "neither a certificate nor a token",
    };
    Err(StartError::Exposed { bind, missing })
}

/// A server that runs. Dropped, it is stopped and waited for.
#[derive(Debug)]
pub struct Running {
    address: SocketAddr,
    is_tls: bool,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The same, for a browser.
    #[must_use]
    pub fn url(&self) -> String {
        let scheme = if self.is_tls { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has closed its connections too.
            let _panicked = thread.join();
        }
    }
}
