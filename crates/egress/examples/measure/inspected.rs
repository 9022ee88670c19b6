//! Requests that are looked at: direct, through the engine, and through mitmproxy.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::engine::{Looks, Running};
use crate::origin::{Origin, Route, ask};
use crate::process::processor_seconds;
use crate::{median, runtime};

const CONNECTIONS: usize = 16;
const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_millis(1500);
/// Requests a second when nobody is at the end of its strength, all connections together.
const CALM_RATE: f64 = 1000.0;
/// What mitmproxy is asked for then: a part of what it can do.
const CALM_SLOW_RATE: f64 = 150.0;

struct Contender {
    name: &'static str,
    route: Route,
    process: Option<u32>,
    calm_rate: f64,
    full: Vec<Round>,
    calm: Vec<Round>,
}

struct Round {
    per_second: f64,
    p50_us: f64,
    p99_us: f64,
    processor_us: f64,
}

pub(crate) fn measure(mitmdump: Option<&str>) -> Value {
    let scratch = tempfile::tempdir().unwrap();
    let origin = Origin::start(scratch.path());
    let engine = Running::start(origin.port, Looks::Inside, scratch.path(), &origin.root);
    let contender = |name, route, process, calm_rate| Contender {
        name,
        route,
        process,
        calm_rate,
        full: Vec::new(),
        calm: Vec::new(),
    };
    let direct = Route::new(None, origin.port, &origin.root, "http/1.1");
    let through = Route::new(
        Some(engine.proxy),
        origin.port,
        &engine.authority,
        "http/1.1",
    );
    let mut contenders = vec![
        contender("direct", direct, None, CALM_RATE),
        contender("belljar", through, Some(engine.id()), CALM_RATE),
    ];
    let mitmproxy = mitmdump.map(|path| Mitmproxy::start(path, scratch.path()));
    if let Some(mitmproxy) = &mitmproxy {
        let route = Route::new(
            Some(([127, 0, 0, 1], mitmproxy.port).into()),
            origin.port,
            &scratch.path().join("mitmproxy-ca-cert.pem"),
            "http/1.1",
        );
        let id = Some(mitmproxy.child.id());
        contenders.push(contender("mitmproxy", route, id, CALM_SLOW_RATE));
    }
    runtime().block_on(async {
        for contender in &mut contenders {
            let mut streams = contender.open().await;
            contender.run(&mut streams, None).await;
        }
        for _ in 0..ROUNDS {
            for contender in &mut contenders {
                let mut streams = contender.open().await;
                let full = contender.run(&mut streams, None).await;
                let calm = contender.run(&mut streams, Some(contender.calm_rate)).await;
                contender.full.push(full);
                contender.calm.push(calm);
            }
        }
    });
    let report = contenders
        .iter()
        .map(|contender| (contender.name.to_owned(), contender.report()));
    Value::Object(report.collect::<Map<_, _>>())
}

impl Contender {
    async fn open(&self) -> Vec<TlsStream<TcpStream>> {
        let mut streams = Vec::new();
        for _ in 0..CONNECTIONS {
            streams.push(self.route.connect_tls().await);
        }
        streams
    }

    /// All connections ask for one round: as fast as they are answered, or at a steady rate.
    async fn run(&self, streams: &mut [TlsStream<TcpStream>], rate: Option<f64>) -> Round {
        let port = self.route.port;
        let used = || self.process.map_or(0.0, processor_seconds);
        let (started, before) = (Instant::now(), used());
        let gap = rate.map(|rate| Duration::from_secs_f64(CONNECTIONS as f64 / rate));
        let asking = streams
            .iter_mut()
            .enumerate()
            .map(|(at, stream)| async move {
                let (mut times, mut buffer) = (Vec::new(), Vec::new());
                let mut next = started;
                if let Some(gap) = gap {
                    next += gap.mul_f64(at as f64 / CONNECTIONS as f64);
                }
                while started.elapsed() < ROUND {
                    if let Some(gap) = gap {
                        tokio::time::sleep_until(next.into()).await;
                        next += gap;
                    }
                    let begun = Instant::now();
                    ask(stream, port, &mut buffer).await;
                    times.push(begun.elapsed().as_secs_f64() * 1e6);
                }
                times
            });
        let mut times: Vec<f64> = join_all(asking).await.into_iter().flatten().collect();
        let seconds = started.elapsed().as_secs_f64();
        times.sort_by(f64::total_cmp);
        Round {
            per_second: times.len() as f64 / seconds,
            p50_us: times[times.len() / 2],
            p99_us: times[times.len() * 99 / 100],
            processor_us: (used() - before) * 1e6 / times.len() as f64,
        }
    }

    fn report(&self) -> Value {
        let of = |rounds: &[Round]| {
            let pick = |field: fn(&Round) -> f64| median(rounds.iter().map(field));
            json!({
                "per_second": pick(|round| round.per_second),
                "p50_us": pick(|round| round.p50_us),
                "p99_us": pick(|round| round.p99_us),
                "processor_us_per_request": pick(|round| round.processor_us),
            })
        };
        json!({"full": of(&self.full), "calm": of(&self.calm), "calm_rate": self.calm_rate})
    }
}

/// Polls all of them as one task, so that the client costs as little as it can.
async fn join_all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut waiting: Vec<_> = futures.map(|future| (Box::pin(future), None)).collect();
    std::future::poll_fn(|cx| {
        for (future, output) in &mut waiting {
            if output.is_none()
                && let std::task::Poll::Ready(value) = future.as_mut().poll(cx)
            {
                *output = Some(value);
            }
        }
        match waiting.iter().all(|(_, output)| output.is_some()) {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
    waiting
        .into_iter()
        .filter_map(|(_, output)| output)
        .collect()
}

/// mitmproxy, quiet and keeping nothing; it ends with this value.
struct Mitmproxy {
    child: Child,
    port: u16,
}

impl Mitmproxy {
    fn start(path: &str, scratch: &Path) -> Self {
        // It can't be told to take any port and say which; nobody else takes this one in between but by bad luck.
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .and_then(|listener| listener.local_addr())
            .unwrap()
            .port();
        // It ends with this process, however that ends.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", path])
            .args(["--quiet", "--listen-host", "127.0.0.1", "--listen-port"])
            .arg(port.to_string())
            .args(["--set", &format!("confdir={}", scratch.display())])
            .args(["--set", "http2=false"])
            // Less work for it than to look whom it talks to.
            .args(["--set", "ssl_insecure=true"])
            .stdin(Stdio::null())
            .stdout(Stdio::inherit())
            .spawn()
            .unwrap();
        let mut started = Self { child, port };
        let until = Instant::now() + Duration::from_secs(30);
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < until, "mitmproxy does not listen");
            assert!(
                started.child.try_wait().unwrap().is_none(),
                "mitmproxy ended"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        started
    }
}

impl Drop for Mitmproxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
