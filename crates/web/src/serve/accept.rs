//! Connections: taken, agreed on, served, and given up.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, interval_at, sleep, timeout};
use tokio_rustls::TlsAcceptor;

use super::Site;
use super::patient::Patient;
use super::places::Seat;

/// How often it is written down which tokens were used.
const WRITE_USES: Duration = Duration::from_secs(60);
/// How long to wait when the system gives no connections, for want of descriptors mostly.
const BREATHER: Duration = Duration::from_millis(50);

/// Takes connections for as long as it is polled.
pub(crate) async fn accept(site: Arc<Site>, listener: TcpListener, tls: Option<TlsAcceptor>) {
    let mut uses = interval_at(Instant::now() + WRITE_USES, WRITE_USES);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = uses.tick() => {
                let tokens = Arc::clone(&site.tokens);
                drop(tokio::task::spawn_blocking(move || tokens.write_uses()));
                continue;
            }
        };
        let Ok((stream, peer)) = accepted else {
            sleep(BREATHER).await;
            continue;
        };
        // Without a place the connection is closed at once.
        if let Some(seat) = site.places.take() {
            tokio::spawn(attend(Arc::clone(&site), stream, peer, tls.clone(), seat));
        }
    }
}

async fn attend(
    site: Arc<Site>,
    stream: TcpStream,
    peer: SocketAddr,
    tls: Option<TlsAcceptor>,
    seat: Seat,
) {
    let place = Arc::clone(&seat.place);
    // Events are small and wanted at once.
    let _as_it_is = stream.set_nodelay(true);
    let stream = Patient::new(stream, site.limits.stall);
    let served = async {
        match tls {
            None => serve(site, stream, peer, &seat).await,
            Some(tls) => {
                if let Ok(Ok(stream)) = timeout(site.limits.handshake, tls.accept(stream)).await {
                    serve(site, stream, peer, &seat).await;
                }
            }
        }
    };
    tokio::select! {
        () = served => {}
        () = place.left() => {}
    }
}

async fn serve(
    site: Arc<Site>,
    stream: impl AsyncRead + AsyncWrite + Unpin,
    peer: SocketAddr,
    seat: &Seat,
) {
    let limits = site.limits.clone();
    let service = service_fn(move |request| {
        let reply = Arc::clone(&site).reply(peer.ip(), Arc::clone(&seat.place), request);
        async { Ok::<_, Infallible>(reply.await) }
    });
    // What the peer does wrong is the peer's affair: it is told, or the connection ends.
    let _ended = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_header_size(limits.head_bytes)
        .max_headers(limits.headers)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}
