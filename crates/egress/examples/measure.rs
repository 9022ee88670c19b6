//! Figures of the egress engine against direct connections, side by side in one run:
//! `cargo run --release -p belljar-egress --example measure`.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    missing_docs,
    unreachable_pub,
    reason = "a measurement"
)]

#[path = "../tests/support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use belljar_policy::{Host, HttpTerms, Outcome};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use support::http::{self, Server, Wire, client_one, inspecting, text};
use support::{Echo, allow, compile, config, start};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

const BULK: u64 = 2 << 30;
const CONNECTIONS: usize = 16;
const RUN: Duration = Duration::from_secs(3);

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    decisions();
    start_cost();
    runtime.block_on(async {
        idle().await;
        for _ in 0..2 {
            bulk().await;
        }
        for _ in 0..2 {
            inspected().await;
        }
    });
}

fn decisions() {
    let rules = (0..1000).map(|at| match at % 3 {
        0 => allow(&format!("h{at}.example.com"), &[443]),
        1 => allow(&format!("*.s{at}.example.org"), &[443]),
        _ => allow(&format!("10.{}.{}.0/24", at % 256, at / 256), &[443]),
    });
    let rules = compile(rules.collect());
    let hosts = [
        "h3.example.com",
        "a.b.s4.example.org",
        "10.2.0.9",
        "nowhere.test",
    ];
    let hosts = hosts.map(|host| Host::parse(host).unwrap());
    let (started, mut allowed) = (Instant::now(), 0_u32);
    const COUNT: u32 = 4_000_000;
    for at in 0..COUNT {
        let outcome = rules.decide(std::hint::black_box(&hosts[at as usize % hosts.len()]), 443);
        allowed += u32::from(matches!(outcome, Outcome::Allow(_)));
    }
    let rate = f64::from(COUNT) / started.elapsed().as_secs_f64() / 1e6;
    println!("decisions with 1,000 rules: {rate:.1} million/s ({allowed} allowed)");
}

fn start_cost() {
    let mut times: Vec<_> = (0..50)
        .map(|_| {
            let started = Instant::now();
            let bx = start(config(vec![allow("a.test", &[443])]));
            let time = started.elapsed();
            drop(bx);
            time
        })
        .collect();
    times.sort_unstable();
    println!("start of an engine: {:?} median", times[times.len() / 2]);
    let started = Instant::now();
    let _authority = belljar_egress::Authority::generate().unwrap();
    println!("certificate authority: {:?}", started.elapsed());
}

fn resident() -> f64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: f64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4.0
}

async fn idle() {
    let echo = Echo::start().await;
    let bx = start(config(vec![allow("a.test", &[echo.port])]));
    let target = format!("a.test:{}", echo.port);
    let mut kept = vec![bx.tunnel(&target).await];
    let before = resident();
    const COUNT: usize = 1500;
    for _ in 0..COUNT {
        let mut stream = bx.tunnel(&target).await;
        stream.write_all(b"x").await.unwrap();
        stream.read_u8().await.unwrap();
        kept.push(stream);
    }
    let each = (resident() - before) / COUNT as f64;
    println!(
        "an idle spliced connection: {each:.1} KB (client and server of the measurement included)"
    );

    let server = Server::start("a.test", Wire::Tls, |_| async { Response::new(text("x")) }).await;
    let mut rule = allow("a.test", &[server.port]);
    rule.terms.http = Some(HttpTerms::default());
    let mut config = config(vec![rule]);
    let authority = inspecting(&mut config, &server);
    let bx = start(config);
    let mut kept = Vec::new();
    let before = resident();
    const FEW: usize = 200;
    for _ in 0..FEW {
        let mut client = client_one(&bx, "a.test", server.port, &authority).await;
        let request = Request::get("/")
            .header("host", "a.test")
            .body(text(""))
            .unwrap();
        http::whole(client.send_request(request).await.unwrap()).await;
        kept.push(client);
    }
    let each = (resident() - before) / FEW as f64;
    println!(
        "an idle inspected connection: {each:.1} KB (both TLS ends of the measurement included)"
    );
}

async fn bulk() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    // A thread of its own, so that three parties share two cores as they would in earnest.
    let listener = listener.into_std().unwrap();
    listener.set_nonblocking(false).unwrap();
    let server = std::thread::spawn(move || {
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().unwrap();
            let chunk = vec![0; 256 * 1024];
            let mut left = BULK;
            while left > 0 {
                std::io::Write::write_all(&mut stream, &chunk).unwrap();
                left -= chunk.len() as u64;
            }
        }
    });
    let direct = take(TcpStream::connect(("127.0.0.1", port)).await.unwrap()).await;
    let bx = start(config(vec![allow("a.test", &[port])]));
    let spliced = take(bx.tunnel(&format!("a.test:{port}")).await).await;
    server.join().unwrap();
    println!(
        "bulk: direct {direct:.2} GB/s, spliced {spliced:.2} GB/s, ratio {:.2}",
        spliced / direct
    );
}

async fn take(mut stream: TcpStream) -> f64 {
    let (started, mut taken) = (Instant::now(), 0);
    let mut buffer = vec![0; 256 * 1024];
    while taken < BULK {
        taken += stream.read(&mut buffer).await.unwrap() as u64;
    }
    BULK as f64 / started.elapsed().as_secs_f64() / 1e9
}

async fn inspected() {
    let body = format!("{{\"text\": \"{}\"}}", "x".repeat(830));
    let server = Server::start("a.test", Wire::Tls, move |_| {
        let body = body.clone();
        async move { Response::new(text(body)) }
    })
    .await;
    let mut rule = allow("a.test", &[server.port]);
    rule.rate_limit_per_min = 1_000_000;
    rule.terms.http = Some(HttpTerms {
        methods: ["GET".to_owned()].into(),
        ..HttpTerms::default()
    });
    let mut config = config(vec![rule]);
    let authority = inspecting(&mut config, &server);
    let bx = start(config);
    let mut through = Vec::new();
    let mut direct = Vec::new();
    for _ in 0..CONNECTIONS {
        through.push(client_one(&bx, "a.test", server.port, &authority).await);
        let stream = TcpStream::connect(("127.0.0.1", server.port))
            .await
            .unwrap();
        let stream = http::tls_to(stream, "a.test", &server.root_pem).await;
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .unwrap();
        tokio::spawn(connection);
        direct.push(sender);
    }
    let (direct, direct_p50) = load(direct).await;
    let (through, through_p50) = load(through).await;
    println!(
        "HTTP over TLS, 850 B, {CONNECTIONS} connections: direct {direct:.0}/s p50 {direct_p50:?}, inspected {through:.0}/s p50 {through_p50:?}"
    );
}

async fn load(
    senders: Vec<hyper::client::conn::http1::SendRequest<http::Body>>,
) -> (f64, Duration) {
    let started = Instant::now();
    let workers: Vec<_> = senders
        .into_iter()
        .map(|mut sender| {
            tokio::spawn(async move {
                let mut times = Vec::new();
                while started.elapsed() < RUN {
                    let request = Request::get("/")
                        .header("host", "a.test")
                        .body(text(""))
                        .unwrap();
                    let begun = Instant::now();
                    sender.ready().await.unwrap();
                    let (status, ..) =
                        http::whole(sender.send_request(request).await.unwrap()).await;
                    assert_eq!(status, 200);
                    times.push(begun.elapsed());
                }
                times
            })
        })
        .collect();
    let mut times = Vec::new();
    for worker in workers {
        times.extend(worker.await.unwrap());
    }
    times.sort_unstable();
    (
        times.len() as f64 / started.elapsed().as_secs_f64(),
        times[times.len() / 2],
    )
}
