//! `cargo xtask bench mcp`: what the gateway adds to a call of a tool, on pipes and over HTTP, side by side with none.
//!
//! The server answers at once, so that what is measured is the way. Contenders take turns in each round.

use crate::Failure;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

const ROUNDS: usize = 10;
const CALLS: usize = 500;
const BURST: usize = 10_000;
/// Questions on the way at once, in the burst.
const WINDOW: usize = 64;

const MOST_ADDED_STDIO_US: f64 = 60.0;
const MOST_ADDED_HTTP_US: f64 = 200.0;
const LEAST_CALLS_PER_SECOND: f64 = 5_000.0;
const MOST_RESIDENT_MB: f64 = 10.0;

/// Runs all measurements, prints a table and writes `target/bench/mcp.json`.
pub(crate) fn mcp(belljar: &Path) -> Result<(), Failure> {
    let report = super::in_scratch(|base| measure(belljar, base))?;
    super::write_report("mcp", &report)
}

/// A server on standard input and output that answers every question at once.
pub(crate) fn echo() -> Result<(), Failure> {
    let mut output = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        if let Some(mut answer) = answer(line?.as_bytes())? {
            answer.push(b'\n');
            output.write_all(&answer)?;
            output.flush()?;
        }
    }
    Ok(())
}

/// The same over HTTP; says its address first.
pub(crate) fn echo_http() -> Result<(), Failure> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("http://{}/mcp", listener.local_addr()?);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || converse(stream));
        }
    });
    // Until its parent leaves.
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn converse(stream: TcpStream) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut output = stream.try_clone().ok()?;
    let mut input = BufReader::new(stream);
    loop {
        let (first, body) = message(&mut input)?;
        let answer = match first.starts_with("POST") {
            true => answer(&body).ok()?,
            false => None,
        };
        let text = match answer {
            Some(answer) => [
                format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nmcp-session-id: s\r\ncontent-length: {}\r\n\r\n", answer.len()).into_bytes(),
                answer,
            ]
            .concat(),
            None if first.starts_with("POST") => b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n".to_vec(),
            None => b"HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 0\r\n\r\n".to_vec(),
        };
        output.write_all(&text).ok()?;
    }
}

/// The first line and the body of a request or an answer.
fn message(input: &mut impl BufRead) -> Option<(String, Vec<u8>)> {
    let mut first = String::new();
    input
        .read_line(&mut first)
        .ok()
        .filter(|count| *count > 0)?;
    let mut length = 0;
    loop {
        let mut line = String::new();
        input.read_line(&mut line).ok().filter(|count| *count > 0)?;
        let line = line.trim_end().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    input.read_exact(&mut body).ok()?;
    Some((first, body))
}

fn answer(question: &[u8]) -> Result<Option<Vec<u8>>, Failure> {
    let question: Value = serde_json::from_slice(question)?;
    if question["id"].is_null() {
        return Ok(None);
    }
    let result = match question["method"].as_str() {
        Some("initialize") => {
            json!({"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
            "serverInfo": {"name": "echo", "version": "1"}})
        }
        Some("tools/list") => {
            json!({"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]})
        }
        _ => {
            json!({"content": [{"type": "text", "text": question["params"]["arguments"]["text"]}]})
        }
    };
    let answer = json!({"jsonrpc": "2.0", "id": question["id"], "result": result});
    Ok(Some(serde_json::to_vec(&answer)?))
}

fn hello() -> Value {
    json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": "2025-06-18",
        "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}})
}

fn call(id: usize) -> String {
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call",
        "params": {"name": "echo", "arguments": {"text": "a text of some length, as arguments are"}}})
    .to_string()
}

/// One client and its server.
trait Contender {
    fn call(&mut self, id: usize) -> Result<(), Failure>;
}

struct Pipe {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Pipe {
    fn start(mut command: Command) -> Result<Self, Failure> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = child.stdin.take().ok_or("no pipe")?;
        let output = BufReader::new(child.stdout.take().ok_or("no pipe")?);
        let mut pipe = Self {
            child,
            input,
            output,
        };
        pipe.say(&hello().to_string())?;
        pipe.hear()?;
        pipe.say(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#)?;
        pipe.say(r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#)?;
        pipe.hear()?;
        Ok(pipe)
    }

    fn say(&mut self, text: &str) -> Result<(), Failure> {
        self.input.write_all(format!("{text}\n").as_bytes())?;
        Ok(())
    }

    fn hear(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        match line.contains("\"result\"") {
            true => Ok(line),
            false => Err(format!("no answer: {line}").into()),
        }
    }

    /// Calls in a second, with some on the way at once.
    fn burst(&mut self) -> Result<f64, Failure> {
        let began = Instant::now();
        for id in 0..BURST + WINDOW {
            if id < BURST {
                self.say(&call(10 + id))?;
            }
            if id >= WINDOW {
                self.hear()?;
            }
        }
        Ok(BURST as f64 / began.elapsed().as_secs_f64())
    }
}

impl Contender for Pipe {
    fn call(&mut self, id: usize) -> Result<(), Failure> {
        self.say(&call(id))?;
        self.hear().map(drop)
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Http {
    child: Child,
    output: TcpStream,
    input: BufReader<TcpStream>,
    host: String,
    session: String,
}

impl Http {
    fn start(mut command: Command) -> Result<(Self, String), Failure> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut url = String::new();
        BufReader::new(child.stdout.take().ok_or("no pipe")?).read_line(&mut url)?;
        let url = url.trim().to_owned();
        let host = url
            .trim_start_matches("http://")
            .trim_end_matches("/mcp")
            .to_owned();
        let output = TcpStream::connect(&host)?;
        output.set_nodelay(true)?;
        let input = BufReader::new(output.try_clone()?);
        let mut http = Self {
            child,
            output,
            input,
            host,
            session: String::new(),
        };
        http.post(&hello().to_string())?;
        http.post(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#)?;
        Ok((http, url))
    }

    fn post(&mut self, body: &str) -> Result<Vec<u8>, Failure> {
        let Self { host, session, .. } = self;
        let request = format!(
            "POST /mcp HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\naccept: application/json, \
             text/event-stream\r\n{session}content-length: {}\r\n\r\n{body}",
            body.len()
        );
        self.output.write_all(request.as_bytes())?;
        let mut head = String::new();
        let mut length = 0;
        loop {
            let mut line = String::new();
            if self.input.read_line(&mut line)? == 0 {
                return Err("the server left".into());
            }
            if line.trim().is_empty() {
                break;
            }
            let small = line.to_ascii_lowercase();
            if let Some(value) = small.strip_prefix("content-length:") {
                length = value.trim().parse()?;
            }
            if small.starts_with("mcp-session-id") {
                self.session.clone_from(&line);
            }
            head.push_str(&line);
        }
        let mut body = vec![0; length];
        self.input.read_exact(&mut body)?;
        match head.starts_with("HTTP/1.1 20") {
            true => Ok(body),
            false => Err(format!("{head}{}", String::from_utf8_lossy(&body)).into()),
        }
    }
}

impl Contender for Http {
    fn call(&mut self, id: usize) -> Result<(), Failure> {
        let body = self.post(&call(id))?;
        match String::from_utf8_lossy(&body).contains("\"result\"") {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&body).into_owned().into()),
        }
    }
}

impl Drop for Http {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The median of one call, in microseconds, of each.
fn turns(contenders: &mut [&mut dyn Contender]) -> Result<Vec<f64>, Failure> {
    let mut times: Vec<Vec<Duration>> = vec![Vec::new(); contenders.len()];
    for round in 0..=ROUNDS {
        for (contender, times) in contenders.iter_mut().zip(&mut times) {
            for id in 0..CALLS {
                let began = Instant::now();
                contender.call(10 + id)?;
                // The first round warms up.
                if round > 0 {
                    times.push(began.elapsed());
                }
            }
        }
    }
    let median = |times: &mut Vec<Duration>| {
        times.sort_unstable();
        times[times.len() / 2].as_secs_f64() * 1e6
    };
    Ok(times.iter_mut().map(median).collect())
}

/// Resident memory of a process, in MB.
fn resident(pid: u32) -> Result<f64, Failure> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kb: f64 = line
        .and_then(|line| line.split_whitespace().next())
        .ok_or("no VmRSS")?
        .parse()?;
    Ok(kb / 1024.0)
}

/// What `scripts/setup.sh bench` installs.
fn mcp_proxy() -> Option<std::path::PathBuf> {
    let path = super::target().join("bench-mcp-venv/bin/mcp-proxy");
    // Absolute, and not the file that a link in it leads to: commands run in a directory of their own.
    std::path::absolute(path).ok().filter(|path| path.exists())
}

fn measure(belljar: &Path, base: &Path) -> Result<Value, Failure> {
    // Commands run in a directory of their own.
    let belljar = &std::path::absolute(belljar)?;
    let directory = base.join("project");
    std::fs::create_dir_all(&directory)?;
    let rules = base.join("policy.yaml");
    std::fs::write(&rules, "extends: permissive\n")?;
    // Below the working directory: a box has a /tmp of its own.
    let own = directory.join("xtask");
    std::fs::copy(std::env::current_exe()?, &own)?;
    let command = |program: &Path, words: &[&str]| {
        let mut command = Command::new(program);
        command
            .args(words)
            .current_dir(&directory)
            .env("BELLJAR_STATE_DIR", base.join("state"));
        command
    };
    let through = |words: &[&str]| {
        let mut command = command(belljar, &["mcp"]);
        command
            .args(&words[..1])
            .arg("--config")
            .arg(&rules)
            .args(&words[1..]);
        command
    };
    let mut direct = Pipe::start(command(&own, &["bench", "mcp-echo"]))?;
    let mut wrap = through(&["wrap", "--"]);
    wrap.arg(&own).args(["bench", "mcp-echo"]);
    let mut wrapped = Pipe::start(wrap)?;
    let (mut direct_http, url) = Http::start(command(&own, &["bench", "mcp-echo-http"]))?;
    // What people use otherwise. Behind its standard input and output is a server at an address, never a program.
    let mut proxied = match mcp_proxy() {
        Some(program) => {
            let words = ["--transport", "streamablehttp", &url];
            let mut proxy = command(&program, &words);
            // It tells of every request.
            proxy.stderr(Stdio::null());
            Some(Pipe::start(proxy)?)
        }
        None => {
            println!("mcp-proxy is not there: scripts/setup.sh bench installs it");
            None
        }
    };
    let mut contenders: Vec<&mut dyn Contender> = vec![&mut direct, &mut wrapped];
    if let Some(proxied) = &mut proxied {
        contenders.push(proxied);
    }
    let stdio = turns(&mut contenders)?;
    let rates = [direct.burst()?, wrapped.burst()?];
    let memory = resident(wrapped.child.id())?;
    let proxy = proxied.as_ref().map(|proxied| resident(proxied.child.id()));
    let proxy = proxy.transpose()?;
    drop((direct, wrapped, proxied));

    let (mut served, _) = Http::start(through(&["serve", "--server", &format!("echo={url}")]))?;
    let http = turns(&mut [&mut direct_http, &mut served])?;

    let added = [stdio[1] - stdio[0], http[1] - http[0]];
    println!(
        "{:28} {:>10} {:>10} {:>10}",
        "", "direct", "through", "added"
    );
    println!(
        "{:28} {:>8.1}µs {:>8.1}µs {:>8.1}µs",
        "stdio, one call (median)", stdio[0], stdio[1], added[0]
    );
    if let (Some(time), Some(memory)) = (stdio.get(2), proxy) {
        println!(
            "{:28} {:>10} {:>8.1}µs {:>8.1}µs   {memory:.1} MB",
            "  the same by mcp-proxy",
            "",
            time,
            time - stdio[0]
        );
    }
    println!(
        "{:28} {:>8.1}µs {:>8.1}µs {:>8.1}µs",
        "HTTP, one call (median)", http[0], http[1], added[1]
    );
    println!(
        "{:28} {:>8.0}/s {:>8.0}/s",
        "stdio, 64 at once", rates[0], rates[1]
    );
    println!("{:28} {:>21.1}MB", "resident, wrap", memory);
    let verdicts = [
        ("stdio adds at most 60 µs", added[0] <= MOST_ADDED_STDIO_US),
        ("HTTP adds at most 200 µs", added[1] <= MOST_ADDED_HTTP_US),
        ("at least 5,000 calls/s", rates[1] >= LEAST_CALLS_PER_SECOND),
        ("at most 10 MB resident", memory <= MOST_RESIDENT_MB),
    ];
    for (what, holds) in verdicts {
        println!("{} {what}", if holds { "ok  " } else { "MISS" });
    }
    Ok(json!({
        "stdio_us": {"direct": stdio[0], "through": stdio[1], "mcp_proxy": stdio.get(2)},
        "http_us": {"direct": http[0], "through": http[1]},
        "stdio_calls_per_second": {"direct": rates[0], "through": rates[1]},
        "resident_mb": memory,
        "mcp_proxy_resident_mb": proxy,
        "holds": verdicts.iter().all(|(_, holds)| *holds),
    }))
}
