//! `cargo xtask bench supervisor`: a real daemon with real agents: how soon they start, what many of them cost it, how fast it
//! answers and tells, and how fast everything ends.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::launch::resident_mib;
use crate::Failure;

/// Agents that only live.
const FLEET: usize = 500;
/// Agents beside them that do a little all the time.
const STIRRING: usize = 20;
const KILLED: usize = 200;
const STARTS: usize = 40;
const ENDS: usize = 25;
/// How long the fleet is watched.
const WATCH: Duration = Duration::from_secs(20);

/// Runs all of it, prints a table and writes `target/bench/supervisor.json`.
pub(crate) fn supervisor(belljar: &Path) -> Result<(), Failure> {
    let report = super::in_scratch(|base| measure(belljar, base))?;
    super::write_report("supervisor", &report)
}

fn measure(belljar: &Path, base: &Path) -> Result<Value, Failure> {
    let work = base.join("work");
    std::fs::create_dir_all(&work)?;
    std::fs::copy(belljar, base.join("belljar"))?;
    std::fs::copy(std::env::current_exe()?, work.join("xtask"))?;
    let daemon = Daemon::start(base)?;
    let start = first_instruction(&daemon, &work)?;
    let told = told(&daemon, &work)?;
    let kill = kill(&daemon)?;
    let fleet = fleet(&daemon)?;
    daemon.post("/v1/kill-switch", &json!({"reason": "bench"}))?;
    Ok(json!({"first_instruction_ms": start, "event_ms": told, "kill": kill, "fleet": fleet}))
}

/// A daemon, and a token for it. Ended by its own pid.
struct Daemon {
    child: Child,
    address: String,
    token: String,
}

impl Daemon {
    fn start(base: &Path) -> Result<Self, Failure> {
        let config = base.join("supervisor.toml");
        std::fs::write(&config, "[supervisor]\nmax_agents = 1000\n")?;
        let command = || {
            let mut command = Command::new(base.join("belljar"));
            command
                .current_dir(base.join("work"))
                .env("BELLJAR_STATE_DIR", base.join("state"))
                .stdin(Stdio::null());
            command
        };
        let mut child = command()
            .args(["supervisor", "start", "--web-port", "0", "--config"])
            .arg(&config)
            .stderr(Stdio::piped())
            .spawn()?;
        let said = child.stderr.take().ok_or("no error output")?;
        let mut address = None;
        let mut lines = BufReader::new(said).lines();
        while address.is_none() {
            let line = lines.next().ok_or("the supervisor did not start")??;
            let after = line.split_once("dashboard at http://");
            address = after.map(|(_, address)| address.trim_end_matches('/').to_owned());
        }
        // Nobody waits for the rest, and nobody must be in its way.
        std::thread::spawn(move || lines.for_each(drop));
        let words = ["token", "create", "--role", "admin", "--name", "bench"];
        let made = command().args(words).output()?;
        let made = String::from_utf8_lossy(&made.stdout).into_owned();
        let token = made.split_whitespace().find(|word| word.starts_with("bj_"));
        Ok(Self {
            child,
            address: address.unwrap_or_default(),
            token: token.ok_or("no token")?.to_owned(),
        })
    }

    fn connect(&self) -> Result<Connection<'_>, Failure> {
        let stream = TcpStream::connect(&self.address)?;
        stream.set_nodelay(true)?;
        Ok(Connection {
            daemon: self,
            reader: BufReader::new(stream),
        })
    }

    fn post(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        self.connect()?.ask("POST", path, &body.to_string())
    }

    /// Starts an agent; its id.
    fn agent(&self, number: usize, command: &[&str]) -> Result<String, Failure> {
        let body =
            json!({"name": format!("agent-{number}"), "command": command, "profile": "moderate"});
        let view = self.post("/v1/agents", &body)?;
        Ok(view["id"].as_str().unwrap_or_default().to_owned())
    }

    /// Many agents that only live, by several hands.
    fn many(&self, count: usize) -> Result<(), Failure> {
        std::thread::scope(|scope| {
            let hands: Vec<_> = (0..4)
                .map(|hand| {
                    scope.spawn(move || {
                        for number in (hand..count).step_by(4) {
                            self.agent(number, &["/bin/sleep", "100000"])
                                .map_err(|error| error.to_string())?;
                        }
                        Ok::<_, String>(())
                    })
                })
                .collect();
            for hand in hands {
                hand.join().map_err(|_| "a thread panicked")??;
            }
            Ok(())
        })
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let shutdown = json!({"reason": "bench", "grace_ms": 0});
        let asked = self.post("/v1/shutdown", &shutdown);
        if asked.is_err() {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

/// One connection that is asked again and again.
struct Connection<'d> {
    daemon: &'d Daemon,
    reader: BufReader<TcpStream>,
}

impl Connection<'_> {
    fn send(&mut self, method: &str, path: &str, body: &str) -> Result<(), Failure> {
        let Daemon { address, token, .. } = self.daemon;
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        Ok(self.reader.get_mut().write_all(request.as_bytes())?)
    }

    fn ask(&mut self, method: &str, path: &str, body: &str) -> Result<Value, Failure> {
        Ok(serde_json::from_slice(&self.fetch(method, path, body)?)?)
    }

    /// The answer's body as it came: to read it takes this unoptimised program longer than the daemon to make it.
    fn fetch(&mut self, method: &str, path: &str, body: &str) -> Result<Vec<u8>, Failure> {
        self.send(method, path, body)?;
        let mut length = 0;
        let mut status = String::new();
        self.reader.read_line(&mut status)?;
        loop {
            let mut line = String::new();
            self.reader.read_line(&mut line)?;
            let line = line.trim().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(number) = line.strip_prefix("content-length:") {
                length = number.trim().parse()?;
            }
        }
        let mut body = vec![0; length];
        self.reader.read_exact(&mut body)?;
        match status.split(' ').nth(1) {
            Some("200" | "201") => Ok(body),
            _ => Err(format!("{path}: {}{}", status, String::from_utf8_lossy(&body)).into()),
        }
    }
}

/// From the request to the agent's first instruction of its own.
fn first_instruction(daemon: &Daemon, work: &Path) -> Result<Value, Failure> {
    let mut times = Vec::new();
    for number in 0..STARTS {
        let name = format!("stamp-{number}");
        let began = boot_ns();
        daemon.agent(number, &["./xtask", "bench", "stamp", &name])?;
        times.push((stamp_of(work, &name)? - began) / 1e6);
    }
    Ok(spread("request to first instruction", &mut times, 20.0))
}

/// From an agent's last deed to the message about its end at somebody who watches.
fn told(daemon: &Daemon, work: &Path) -> Result<Value, Failure> {
    let mut stream = daemon.connect()?;
    stream.send("GET", "/v1/stream", "")?;
    let mut times = Vec::new();
    for number in 0..ENDS {
        let name = format!("ended-{number}");
        let id = daemon.agent(number, &["./xtask", "bench", "stamp", &name])?;
        loop {
            let mut line = String::new();
            if stream.reader.read_line(&mut line)? == 0 {
                return Err("the stream ended".into());
            }
            if line.contains("\"kind\":\"ended\"") && line.contains(&id) {
                break;
            }
        }
        let heard = boot_ns();
        times.push((heard - stamp_of(work, &name)?) / 1e6);
    }
    Ok(spread("end of an agent to who watches", &mut times, 300.0))
}

/// From the order to zero processes.
fn kill(daemon: &Daemon) -> Result<Value, Failure> {
    daemon.many(KILLED)?;
    let began = Instant::now();
    let report = daemon.post("/v1/kill-switch", &json!({"reason": "bench"}))?;
    let took = began.elapsed().as_secs_f64() * 1e3;
    println!(
        "  {:<36} {took:>8.1} ms for {KILLED} agents, {} survivors (bound 1000)",
        "kill-all to zero processes", report["survivors"]
    );
    daemon.post("/v1/kill-switch/reset", &json!({"reason": "bench"}))?;
    Ok(json!({"agents": KILLED, "ms": took, "survivors": report["survivors"]}))
}

/// What many agents cost the daemon, and how it answers meanwhile.
fn fleet(daemon: &Daemon) -> Result<Value, Failure> {
    daemon.many(FLEET)?;
    // What starting them took is over, also in the history's next round.
    std::thread::sleep(Duration::from_secs(5));
    let pid = daemon.child.id();
    let (cpu, began) = (cpu_seconds(pid)?, Instant::now());
    std::thread::sleep(WATCH);
    let idle = 100.0 * (cpu_seconds(pid)? - cpu) / began.elapsed().as_secs_f64();
    let memory = resident_mib(pid)?;
    println!(
        "  {:<36} {idle:>8.1} % of a core, {memory:.0} MiB (bounds 15, 150)",
        format!("{FLEET} agents cost the daemon")
    );
    let jitter = jitter(daemon)?;
    let mut connection = daemon.connect()?;
    let mut list = Vec::new();
    let mut times = Vec::new();
    let begun = Instant::now();
    for number in 0..1000_u32 {
        let due = begun + Duration::from_millis(10) * number;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let asked = Instant::now();
        let body = connection.fetch("GET", "/v1/agents", "")?;
        times.push(asked.elapsed().as_secs_f64() * 1e3);
        list = body;
    }
    let list: Value = serde_json::from_slice(&list)?;
    if list["agents"].as_array().map_or(0, Vec::len) < FLEET {
        return Err("an agent is missing from the list".into());
    }
    times.sort_by(f64::total_cmp);
    let (median, p99) = (at(&times, 0.5), at(&times, 0.99));
    println!(
        "  {:<36} {p99:>8.1} ms p99, {median:.1} median, at 100 a second (bound 20)",
        format!("list of {FLEET} agents")
    );
    Ok(json!({
        "agents": FLEET, "cpu_percent": idle, "resident_mib": memory,
        "list_ms": {"median": median, "p99": p99}, "jitter_ms": jitter,
    }))
}

/// How far from a second after the one before an agent's next sample comes, while some of them are busy. The supervisor counts that itself.
fn jitter(daemon: &Daemon) -> Result<Value, Failure> {
    for number in 0..STIRRING {
        daemon.agent(FLEET + number, &["sh", "-c", "while sleep 0.1; do :; done"])?;
    }
    let before = intervals(daemon)?;
    std::thread::sleep(WATCH);
    let after = intervals(daemon)?;
    let since = |end: &str| {
        let count = |of: &HashMap<String, u64>| of.get(end).copied().unwrap_or_default();
        count(&after) - count(&before)
    };
    let total = since("+Inf");
    let within = |low: &str, high: &str| (since(high) - since(low)) as f64 / total as f64;
    let shares = [
        (50, within("0.95", "1.05")),
        (100, within("0.9", "1.1")),
        (200, within("0.8", "1.2")),
        (500, within("0.5", "1.5")),
    ];
    let p99 = shares.iter().find(|(_, share)| *share >= 0.99);
    let p99 = p99.map_or_else(|| "> 500".to_owned(), |(most, _)| format!("<= {most}"));
    println!(
        "  {:<36} {p99:>8} ms p99, {:.2} % within 200, of {total} samples (bound 200)",
        "sampling jitter",
        100.0 * shares[2].1
    );
    Ok(json!({"p99": p99, "within_200": shares[2].1, "within_50": shares[0].1, "samples": total}))
}

/// The supervisor's classes of times between samples, by their upper ends.
fn intervals(daemon: &Daemon) -> Result<HashMap<String, u64>, Failure> {
    let page = daemon.connect()?.fetch("GET", "/metrics", "")?;
    let page = String::from_utf8(page)?;
    let class = |line: &str| {
        let rest = line.strip_prefix("belljar_sample_interval_seconds_bucket{le=\"")?;
        let (end, count) = rest.split_once("\"} ")?;
        Some((end.to_owned(), count.trim().parse().ok()?))
    };
    Ok(page.lines().filter_map(class).collect())
}

fn spread(what: &str, times: &mut [f64], bound: f64) -> Value {
    times.sort_by(f64::total_cmp);
    let (median, p95) = (at(times, 0.5), at(times, 0.95));
    println!("  {what:<36} {median:>8.1} ms median, {p95:.1} p95 (bound {bound})");
    json!({"median": median, "p95": p95})
}

fn at(sorted: &[f64], part: f64) -> f64 {
    let index = (sorted.len() as f64 * part) as usize;
    sorted.get(index).copied().unwrap_or(f64::NAN)
}

fn boot_ns() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}

/// When an agent wrote its stamp, once it has.
fn stamp_of(work: &Path, name: &str) -> Result<f64, Failure> {
    let file = work.join(format!("{name}.done"));
    let until = Instant::now() + Duration::from_secs(20);
    while !file.exists() {
        if Instant::now() > until {
            return Err(format!("{name} was never written").into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(std::fs::read_to_string(file)?.trim().parse()?)
}

fn cpu_seconds(pid: u32) -> Result<f64, Failure> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, rest) = stat.rsplit_once(')').ok_or("no stat")?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let ticks = |index: usize| -> Result<f64, Failure> {
        Ok(fields.get(index).ok_or("no such field")?.parse()?)
    };
    Ok((ticks(11)? + ticks(12)?) / rustix::param::clock_ticks_per_second() as f64)
}
