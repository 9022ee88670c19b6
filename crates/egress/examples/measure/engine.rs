//! The engine under measurement, in a process of its own, and what starting it costs.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use belljar_egress::{
    Arrival, Authority, Config, Engine, EngineLimits, Event, Recorder, Resolve, Resolving,
    Transparent, Ways,
};
use belljar_policy::{
    CompiledRules, DomainPattern, EgressEffect, EgressRule, EgressTerms, HttpTerms, Origin, Reach,
    Rule,
};
use serde_json::{Value, json};

use crate::{NAME, median};

pub(crate) fn allow(domain: &str, ports: &[u16]) -> EgressRule {
    EgressRule {
        domain: DomainPattern::parse(domain).unwrap(),
        ports: ports.to_vec(),
        rate_limit_per_min: u32::MAX,
        effect: EgressEffect::Allow,
        terms: EgressTerms {
            reach: Reach::Host,
            ..EgressTerms::default()
        },
    }
}

/// Every name is here.
struct Here;

impl Resolve for Here {
    fn resolve<'a>(&'a self, _: &'a str) -> Resolving<'a> {
        Box::pin(async { Ok(vec![Ipv4Addr::LOCALHOST.into()]) })
    }
}

struct Nothing;

impl Recorder for Nothing {
    fn record(&self, _: Event) {}
}

/// Whether an engine looks inside connections.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Looks {
    Inside,
    Away,
}

fn configuration(port: u16, looks: Looks) -> Config {
    let mut rule = allow(NAME, &[port]);
    if looks == Looks::Inside {
        rule.terms.http = Some(HttpTerms {
            methods: ["GET".to_owned()].into(),
            ..HttpTerms::default()
        });
    }
    let rules = vec![Rule::new(rule, Origin::built_in())];
    let mut config = Config::new(CompiledRules::new(rules));
    config.resolver = Arc::new(Here);
    config.limits = EngineLimits {
        connections: 4_000,
        ..EngineLimits::default()
    };
    config
}

/// The ways a box has: what `Engine::start` gets in earnest.
fn ways() -> (Ways, SocketAddr) {
    let listener = || TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = listener();
    let address = proxy.local_addr().unwrap();
    let ways = Ways {
        transparent: vec![Transparent {
            listener: listener(),
            arrival: Arrival::AnyAddress,
        }],
        dns_udp: vec![UdpSocket::bind("127.0.0.1:0").unwrap()],
        dns_tcp: vec![listener()],
        proxy: vec![proxy],
        ..Ways::default()
    };
    (ways, address)
}

/// `engine PORT inside|away CA-FILE`: serves until standard input ends.
pub(crate) fn serve(words: &[String]) {
    let [port, looks, file] = words else {
        panic!("engine PORT inside|away CA-FILE")
    };
    let looks = match looks.as_str() {
        "inside" => Looks::Inside,
        _ => Looks::Away,
    };
    let mut config = configuration(port.parse().unwrap(), looks);
    if looks == Looks::Inside {
        let authority = Authority::generate().unwrap();
        std::fs::write(file, authority.certificate_pem()).unwrap();
        config.authority = Some(Arc::new(authority));
    }
    let (ways, address) = ways();
    let engine = Engine::start(config, ways, Arc::new(Nothing)).unwrap();
    println!("{address}");
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    let _ = engine.stop();
}

/// An engine in a process of its own; it ends with this value.
pub(crate) struct Running {
    child: Child,
    input: Option<ChildStdin>,
    pub(crate) proxy: SocketAddr,
    pub(crate) authority: PathBuf,
}

impl Running {
    /// Starts one that trusts, as its host, whom `trusted` lists.
    pub(crate) fn start(port: u16, looks: Looks, scratch: &Path, trusted: &Path) -> Self {
        let authority = scratch.join("belljar.pem");
        let looks = match looks {
            Looks::Inside => "inside",
            Looks::Away => "away",
        };
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["engine", &port.to_string(), looks])
            .arg(&authority)
            .env("SSL_CERT_FILE", trusted)
            .env_remove("SSL_CERT_DIR")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        Self {
            input: child.stdin.take(),
            proxy: line.trim().parse().unwrap(),
            authority,
            child,
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut input) = self.input.take() {
            let _ = input.flush();
        }
        let _ = self.child.wait();
    }
}

/// What an engine adds to a launch: with the box's own authority, and without.
pub(crate) fn measure_start() -> Value {
    const ROUNDS: usize = 100;
    let (mut plain, mut looking, mut authority) = (Vec::new(), Vec::new(), Vec::new());
    let timed = |work: &mut dyn FnMut()| {
        let started = Instant::now();
        work();
        started.elapsed().as_secs_f64() * 1e6
    };
    for _ in 0..ROUNDS {
        let mut own = None;
        authority.push(timed(&mut || own = Some(Authority::generate().unwrap())));
        for looks in [Looks::Away, Looks::Inside] {
            let mut config = configuration(443, looks);
            if looks == Looks::Inside {
                config.authority = own.take().map(Arc::new);
            }
            // The sockets are made by the box, whether or not there is an engine.
            let (ways, _) = ways();
            let (mut config, mut ways) = (Some(config), Some(ways));
            let mut engine = None;
            let time = timed(&mut || {
                let (config, ways) = (config.take().unwrap(), ways.take().unwrap());
                engine = Some(Engine::start(config, ways, Arc::new(Nothing)).unwrap());
            });
            match looks {
                Looks::Away => plain.push(time),
                Looks::Inside => looking.push(time),
            }
            drop(engine);
        }
    }
    json!({
        "engine_us": median(plain),
        "inspecting_engine_us": median(looking),
        "authority_us": median(authority),
    })
}
