//! An agent that abuses its door: it harms neither its keeper nor its family.

mod support;

use std::fs;

use support::{AGENT, Family, Who, eventually, for_each_user};

const ROOMY: &str = "max_depth: 2\nmax_replicas: 4\n";

/// The controller's memory may grow by no more than its doors are allowed; far above that is a leak.
const MOST_RSS_KB: u64 = 200 * 1024;

/// Everything at once, by one agent. It says how many connections it could open, and leaves them open.
const ABUSE: &str = r#"
import os, resource, socket, sys
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
held = []
def call(data, keep=False, half=False):
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    peer.settimeout(20)
    try:
        peer.connect("/belljar/agent.sock")
        peer.sendall(data)
        if half:
            peer.shutdown(socket.SHUT_WR)
    except OSError:
        pass
    if keep:
        held.append(peer)
    else:
        peer.close()
post = b"POST /v1/replicate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
body = lambda data: post + b"content-length: %d\r\n\r\n" % len(data) + data
deep = b'{"reason":' + b"[" * 100000 + b"]" * 100000 + b"}"
for data in [
    os.urandom(65536),
    b"\x16\x03\x01\x02\x00" + os.urandom(512),
    b"GET " + b"/" * 1000000 + b" HTTP/1.1\r\n\r\n",
    b"GET /v1/usage HTTP/1.1\r\n" + b"a: b\r\n" * 200000 + b"\r\n",
    post + b"content-length: 99999999999999\r\n\r\n{}",
    post + b"content-length: -1\r\n\r\n{}",
    post + b"transfer-encoding: chunked\r\n\r\nffffffffffffffff\r\n",
    body(deep),
    body(b'{"reason":"' + b"x" * 3000000 + b'"}'),
    body(b'{"reason":"\xff\xfe"}'),
    body(b'{"reason":"x","state":"' + b"\\u0000" * 300000 + b'"}'),
    b"\r\n" * 100000,
]:
    call(data)
    call(data, half=True)
for turn in range(1000):
    # Half a request, a byte of one, none: all wait for more to come.
    call([post, b"P", b"", b"GET /v1/usage HTTP/1.1\r\nhost: x\r\n"][turn % 4], keep=True)
print("held", len(held), flush=True)
while not os.path.exists(sys.argv[1]):
    for peer in held[:40]:
        try:
            peer.send(b"x")
        except OSError:
            pass
    if os.path.exists(sys.argv[1]):
        break
    import time; time.sleep(0.05)
"#;

/// Asks as fast as it can, by eight hands, and says what it was told.
const FLOOD: &str = r#"
import os, socket, sys, threading
def enough():
    return os.path.exists(sys.argv[1])
def ask():
    while not enough():
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        peer.settimeout(60)
        try:
            peer.connect("/belljar/agent.sock")
            while not enough():
                peer.sendall(b"GET /v1/usage HTTP/1.1\r\nhost: x\r\n\r\n")
                answer = peer.recv(65536)
                if not answer:
                    break
                print(answer.split(b" ")[1].decode(), flush=True)
        except OSError:
            pass
hands = [threading.Thread(target=ask) for _ in range(8)]
for hand in hands:
    hand.start()
for hand in hands:
    hand.join()
"#;

fn rss_kb(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the controller lives");
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kb = line.and_then(|line| line.split_whitespace().nth(1));
    kb.and_then(|kb| kb.parse().ok()).expect("a size")
}

fn an_abused_door_harms_nobody(who: Who) {
    let family = Family::start(who, ROOMY);
    family.replicate("root", "ann", "").expect("a grant");
    family.jail.put(&family.jail.work.join("abuse.py"), ABUSE);
    let abuse = family.tell("ann", "/usr/bin/python3 ../../abuse.py ../../enough");
    let out = abuse.with_extension("out");
    // While it goes on, everybody else is served: another agent, and the operator.
    eventually("the abuse is under way", || {
        assert!(family.agent("root", "heartbeat").is_ok());
        let said = fs::read_to_string(&out).unwrap_or_default();
        said.contains("held 1000").then_some(())
    });
    assert_eq!(family.workers().len(), 2);
    family.replicate("root", "bob", "").expect("a grant");
    assert!(family.agent("bob", "usage").is_ok());
    let rss = rss_kb(family.pid());
    assert!(rss < MOST_RSS_KB, "the controller holds {rss} kB");
    // Nothing of what was sent was taken for a wish.
    assert_eq!(family.workers().len(), 3);
    family.jail.put(&family.jail.work.join("enough"), "");
    let said = eventually("it has enough", || family.answer(&abuse));
    assert_eq!(said.code, 0, "{said:?}");
    // The one that did it is served again, once its rate allows.
    eventually("it is served again", || {
        family.agent("ann", "heartbeat").ok()
    });
    family.replicate("ann", "cid", "").expect("a grant");
    family.assert_log_holds();
}

/// Whoever asks without end is told to wait, and the others are not.
fn a_flood_of_requests_is_slowed_down(who: Who) {
    let family = Family::start(who, ROOMY);
    family.replicate("root", "ann", "").expect("a grant");
    family.jail.put(&family.jail.work.join("flood.py"), FLOOD);
    let order = family.tell("ann", "/usr/bin/python3 ../../flood.py ../../enough");
    let said = || fs::read_to_string(order.with_extension("out")).unwrap_or_default();
    eventually("somebody is told to wait", || {
        assert!(family.agent("root", "heartbeat").is_ok());
        said().lines().any(|line| line == "429").then_some(())
    });
    assert!(family.agent("root", "usage").is_ok());
    family.jail.put(&family.jail.work.join("enough"), "");
    eventually("it has enough", || family.answer(&order));
    eventually("it is served again", || {
        family.agent("ann", "heartbeat").ok()
    });
}

/// What an agent calls its program ends up in the log; it must fit there, or nothing would be granted to anybody any more.
fn no_name_breaks_the_record(who: Who) {
    let family = Family::start(who, ROOMY);
    family.replicate("root", "ann", "").expect("a grant");
    let escaped = "\\u0001".repeat(15_000);
    for (command, reason) in [
        (format!("[\"{escaped}\"]"), "control characters"),
        (format!("[\"/{}\"]", "x".repeat(30_000)), "long"),
        ("[\"no-such-program\"]".to_owned(), "absent"),
        ("[\"/etc/passwd\"]".to_owned(), "no program"),
        (
            format!("[\"true\",\"{}\"]", "\\\\".repeat(14_000)),
            "much to say",
        ),
    ] {
        let body = format!("{{\"reason\":\"{reason}\",\"command\":{command}}}");
        let (status, answer) = family.post("ann", "/v1/replicate", &body);
        assert!(
            [201, 400, 503].contains(&status),
            "{reason}: {status} {answer}"
        );
        // None of them lives; each gives its place back.
        eventually("it is over", || (family.workers().len() == 2).then_some(()));
    }
    family.replicate("root", "bob", "").expect("grants go on");
    let said = family.order("bob", &format!("{AGENT} heartbeat"));
    assert_eq!(said.code, 0, "{said:?}");
    family.assert_log_holds();
}

for_each_user!(
    an_abused_door_harms_nobody,
    a_flood_of_requests_is_slowed_down,
    no_name_breaks_the_record,
);
