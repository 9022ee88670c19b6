//! In the guest of `cargo xtask vm-test --kvm`, what the tier `firecracker` finds as Firecracker: it takes Firecracker's arguments
//! and requests, opens KVM, and plays a guest that ends at once instead of having one. So the box around a Firecracker is tried
//! where KVM is; whole guests are tried with another stand-in (`crates/sandbox/tests/firecracker.py`), where KVM is not.
//!
//! Its guest's program says what a Firecracker that was broken out of would see and could do.

// Whoever it stands in for ends by a panic too.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use serde_json::{Value, json};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};

const STATE: &str = "a guest's state";

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["--version"] => println!("Firecracker v1.13.1\n"),
        // No argument of Firecracker's: the same, where no box is.
        ["outlook", words] => print!("{}", outlook(words, "/nowhere")),
        ["--api-sock", path, "--id", "belljar", "--level", "Error"] => serve(path),
        other => panic!("Arguments parsing error: {other:?}"),
    }
}

fn serve(path: &str) {
    let listener = UnixListener::bind(path).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    let kvm = fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/kvm")
        .unwrap();
    let mut machine = Machine::default();
    while let Some((request, body)) = next(&mut stream) {
        match machine.answer(&request, &body) {
            Ok(()) => stream.write_all(b"HTTP/1.1 204 \r\nServer: Firecracker API\r\n\r\n"),
            Err(fault) => {
                let text = json!({"fault_message": fault}).to_string();
                let head = format!("HTTP/1.1 400 \r\nContent-Length: {}\r\n\r\n", text.len());
                stream.write_all(format!("{head}{text}").as_bytes())
            }
        }
        .unwrap();
    }
    // Who asks for nothing more has a guest that runs.
    if let Some(playing) = machine.playing {
        playing.join().unwrap();
    }
    drop(kvm);
}

fn next(stream: &mut UnixStream) -> Option<(String, Value)> {
    let mut text = String::new();
    let mut bytes = [0; 4096];
    loop {
        if let Some((head, body)) = text.split_once("\r\n\r\n")
            && let Ok(body) = serde_json::from_str(body)
        {
            let request = head.split(" HTTP").next().unwrap();
            return Some((request.to_owned(), body));
        }
        let count = stream.read(&mut bytes).ok().filter(|count| *count > 0)?;
        text.push_str(std::str::from_utf8(&bytes[..count]).unwrap());
    }
}

#[derive(Default)]
struct Machine {
    asked: Vec<String>,
    megabytes: u64,
    tracks: bool,
    sockets: Option<String>,
    playing: Option<std::thread::JoinHandle<()>>,
}

impl Machine {
    fn answer(&mut self, request: &str, body: &Value) -> Result<(), String> {
        let text = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
        match request {
            "PUT /machine-config" => {
                self.megabytes = body["mem_size_mib"].as_u64().unwrap();
                self.tracks = body["track_dirty_pages"] == true;
            }
            "PUT /cpu-config" => {}
            "PUT /boot-source" => {
                let kernel = fs::read(text("kernel_image_path")).map_err(|e| e.to_string())?;
                let files = fs::read(text("initrd_path")).map_err(|e| e.to_string())?;
                if !kernel.starts_with(b"\x7fELF") || !files.starts_with(b"0707") {
                    return Err("Kernel Loader: failed to load ELF kernel image".into());
                }
            }
            "PUT /vsock" => self.sockets = Some(text("uds_path")),
            "PUT /actions" => {
                let all = ["/machine-config", "/cpu-config", "/boot-source", "/vsock"];
                let missing = all
                    .iter()
                    .find(|path| !self.asked.iter().any(|asked| asked.ends_with(*path)));
                if let Some(path) = missing {
                    return Err(format!("nobody asked for {path}"));
                }
                self.play(Begin::Anew);
            }
            "PATCH /vm" if text("state") == "Paused" => {}
            "PUT /snapshot/create" if self.asked.last().is_some_and(|last| last == "PATCH /vm") => {
                if !self.tracks || text("snapshot_type") != "Diff" {
                    return Err("a snapshot of more than was written to".into());
                }
                let state = json!({"state": STATE, "sockets": self.sockets});
                fs::write(text("snapshot_path"), state.to_string()).map_err(|e| e.to_string())?;
                let memory = fs::File::create(text("mem_file_path")).map_err(|e| e.to_string())?;
                memory.set_len(self.megabytes << 20).unwrap();
            }
            "PUT /snapshot/load" if self.asked.is_empty() => {
                let state = fs::read(text("snapshot_path")).map_err(|e| e.to_string())?;
                let state: Value = serde_json::from_slice(&state).map_err(|e| e.to_string())?;
                let memory = fs::File::open(body["mem_backend"]["backend_path"].as_str().unwrap());
                let length = memory.unwrap().metadata().unwrap().len();
                if state["state"] != STATE || length < 256 << 20 || body["resume_vm"] != true {
                    return Err("Failed to restore from snapshot".into());
                }
                self.sockets = state["sockets"].as_str().map(str::to_owned);
                self.play(Begin::GoOn);
            }
            other => return Err(format!("Invalid request method and/or path: {other}.")),
        }
        self.asked.push(request.to_owned());
        Ok(())
    }

    fn play(&mut self, begin: Begin) {
        let path = format!("{}_1", self.sockets.as_deref().unwrap());
        self.playing = Some(std::thread::spawn(move || play(&path, begin)));
    }
}

#[derive(PartialEq)]
enum Begin {
    Anew,
    GoOn,
}

/// A guest that comes up, takes its order, says what can be seen from here, and ends.
fn play(path: &str, begin: Begin) {
    const UP: u8 = 32;
    const OUTPUT: u8 = 33;
    const ENDED: u8 = 37;
    let mut channel = UnixStream::connect(path).unwrap();
    let send = |channel: &mut UnixStream, kind: u8, body: &[u8]| {
        let mut frame = u32::try_from(body.len()).unwrap().to_le_bytes().to_vec();
        frame.extend([kind, 0, 0, 0]);
        frame.extend(body);
        channel.write_all(&frame).unwrap();
    };
    if begin == Begin::Anew {
        send(&mut channel, UP, &[]);
    }
    let mut header = [0; 8];
    // One that is kept is never told what to run.
    if channel.read_exact(&mut header).is_err() {
        return;
    }
    let length = u32::from_le_bytes(header[..4].try_into().unwrap());
    let mut order = vec![0; length as usize];
    channel.read_exact(&mut order).unwrap();
    let says = |word: &str| {
        order
            .windows(word.len())
            .any(|part| part == word.as_bytes())
    };
    let begun = match begin {
        Begin::Anew => "anew",
        Begin::GoOn => "going on",
    };
    if says("tell all") {
        let words = String::from_utf8_lossy(&order).into_owned();
        let text = format!("begun {begun}\n{}", outlook(&words, path));
        send(&mut channel, OUTPUT, text.as_bytes());
    }
    if says("wait for ever") {
        send(&mut channel, OUTPUT, b"waiting\n");
        let _ = channel.read_to_end(&mut Vec::new());
        return;
    }
    let code: u32 = if says("end with seven") { 7 << 8 } else { 0 };
    let end = [code.to_le_bytes(), 0_u32.to_le_bytes()].concat();
    send(&mut channel, ENDED, &end);
    let _ = channel.read_to_end(&mut Vec::new());
}

/// What is there for a Firecracker that was broken out of. Each line is a word and what became of it. The words of its order name
/// what a test has put in its way: `port=… secret=… shown=…`.
fn outlook(words: &str, path: &str) -> String {
    let tried = |name: &str, done: bool| match done {
        true => format!("{name}: yes\n"),
        false => format!("{name}: no\n"),
    };
    let named = |name: &str| {
        let mut all = words.split_whitespace();
        all.find_map(|word| word.strip_prefix(name))
            .unwrap_or_default()
    };
    let change = |path: &str| fs::OpenOptions::new().write(true).open(path).is_ok();
    let own = fs::read_to_string("/proc/self/status").unwrap();
    let lines = own.lines().filter(|line| {
        ["CapEff:", "NoNewPrivs:", "Seccomp:"]
            .iter()
            .any(|name| line.starts_with(name))
    });
    let mut said: String = lines.map(|line| format!("{line}\n")).collect();
    said += &tried("a secret", fs::read(named("secret=")).is_ok());
    said += &tried("what is shown, changed", change(named("shown=")));
    let network = std::net::TcpStream::connect(format!("127.0.0.1:{}", named("port=")));
    said += &tried("the network", network.is_ok());
    said += &tried("the order, changed", change("/dev/belljar/order"));
    // Who owns it could make it writable.
    let kept = "/dev/belljar/kept";
    let _ = fs::set_permissions(kept, fs::Permissions::from_mode(0o666));
    said += &tried("what was kept, changed", change(kept));
    said += &tried("init's memory", fs::File::open("/proc/1/mem").is_ok());
    said += &tried("a second call", UnixStream::connect(path).is_ok());
    said
}
