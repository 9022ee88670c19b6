//! What leads out of a guest and into it: the same door, the same rules and the same record as in every tier. A guest takes
//! seconds to start where its processor is emulated, so each test asks one guest as much as it can.

mod support;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use support::{
    Attempt, Family, Outcome, PLACE, PYTHON, Ready, Who, World, assert_all_allowed,
    assert_all_refused, codes, eventually, finish, for_each_user_in_a_world,
};

const GUEST: &str = "sandbox_tier: microvm\nallow_emulation: true\n";

const RULES: &[&str] = &[
    "{domain: allowed.example.com, ports: [443, 80]}",
    "{domain: six.example.com, ports: [443]}",
    "{domain: looked.example.com, ports: [443], http: {methods: [GET], paths: [/ok]}}",
    "{domain: meta.example.com}",
    "{domain: first.example.com, ports: [443]}",
    "{domain: api.openai.com, ports: [443]}",
];

/// In two halves, as no test of secrets should hold what it looks for.
const SECRET: [&str; 2] = ["sk-guest-0ddba11", "-51c0ffee22"];

/// Each on its own line: what it was, and how curl ended.
const CALLS: &str = r#"
get() { echo "$1 $(curl --silent --show-error --fail --output /dev/null --write-out '%{http_code}' $2 2>/dev/null)" || true; }
get tls https://allowed.example.com/one
get clear http://allowed.example.com/two
get v6 https://six.example.com/three
get looked https://looked.example.com/ok
get path https://looked.example.com/else
get other https://other.example.com/forbidden
get secret https://first.example.com/use
ask() { curl --silent --output answer --write-out '%{http_code}' https://api.openai.com/v1/chat/completions \
    --header 'content-type: application/json' \
    --data "{\"model\": \"gpt-4o-mini\", \"max_tokens\": $1, \"messages\": [{\"role\": \"user\", \"content\": \"$2\"}]}"; }
echo "model $(ask 50 say-5)"
for call in 1 2 3; do last=$(ask 1500 fill); done
echo "budget $last"
head -c 3000000 /dev/zero | tr '\0' x > large
echo "large $(curl --silent --fail --output /dev/null --write-out '%{http_code}' --data-binary @large https://allowed.example.com/large)"
echo "key $(env | grep -c c0ffee || true)"
"#;

/// Ways around the rules that another kernel might open, and what each is refused as.
const EVASIONS: &[(&str, &str)] = &[
    ("direct-ip", "deny_no_egress_rule"),
    ("ipv6-literal", "deny_no_egress_rule"),
    ("ipv4-mapped-ipv6", "deny_no_egress_rule"),
    ("name-that-is-metadata", "deny_private_address"),
    ("dns-elsewhere", "deny_protocol"),
    ("dns-tunnel", "deny_no_egress_rule"),
    ("proxy-to-an-address", "deny_no_egress_rule"),
    ("sni-of-another", "deny_name_mismatch"),
    ("quic", "deny_protocol"),
    ("quic-over-ipv6", "deny_protocol"),
];

fn egress_secrets_and_budgets_are_the_same_in_a_guest(who: Who) {
    let mut world = World::new(who);
    let sections = format!(
        "secrets:
  - {{name: first, from: {{env: FIRST_KEY}}, domain: first.example.com, as: bearer, env: FIRST_KEY}}
resource_limits: {{max_tokens: 2300, on_budget: refuse}}
{GUEST}"
    );
    world.rules(RULES, &sections);
    world.jail.variable("FIRST_KEY", &SECRET.concat());
    let names: Vec<&str> = EVASIONS.iter().map(|(name, _)| *name).collect();
    let control = Attempt::parse(&world.python_outside("evade.py", &names).stdout());
    assert_all_allowed(&control);
    assert_eq!(control.len(), names.len(), "{control:?}");
    let before = world.seen().len();

    let program = world.program("evade.py");
    let names = names.join(" ");
    let outcome = world.shell(&format!("{CALLS}\n{PYTHON} -B {program} {names} ping"));
    outcome.assert_exit(0);
    let (calls, _) = outcome
        .stdout()
        .split_once("key 0\n")
        .unwrap_or_else(|| panic!("the box holds the secret: {outcome:#?}"));
    let expected = "tls 200\nclear 200\nv6 200\nlooked 200\npath 403\nother 000\nsecret 200\nmodel 200\nbudget 402\nlarge 200\n";
    assert_eq!(calls, expected, "{outcome:#?}");

    // What came: from outside the box, with the secret that is not in it.
    let seen = world.seen().split_off(before);
    let served = |path: &str| {
        let found = seen.iter().find(|entry| entry["path"] == path);
        found.unwrap_or_else(|| panic!("{path} did not arrive: {seen:#?}"))
    };
    let bearer = format!("Bearer {}", SECRET.concat());
    assert_eq!(served("/use")["headers"]["authorization"], bearer);
    assert_eq!(served("/three")["at"], "2606:2800:220:1::1");
    let used = seen.iter().filter(|entry| entry["kind"] == "usage").count();
    let charged = &outcome.json["network"]["llm"]["models"]["gpt-4o-mini"]["calls"];
    assert_eq!(*charged, used, "{outcome:#?}");

    // What was refused: nothing of it arrived, all of it is told and on record, as natively.
    let attempts = outcome.attempts();
    assert_eq!(attempts.len(), EVASIONS.len() + 1, "{attempts:?}");
    assert_all_refused(&attempts);
    let escaped =
        |entry: &&Value| entry["kind"] == "udp" || entry.to_string().contains("forbidden");
    let escaped: Vec<&Value> = seen.iter().filter(escaped).collect();
    assert!(escaped.is_empty(), "{escaped:#?}");
    let told = codes(&outcome);
    let recorded = world.recorded(outcome.sandbox_id());
    let others = ["deny_http_request", "deny_llm_tokens"];
    for code in EVASIONS.iter().map(|(_, code)| *code).chain(others) {
        assert!(told.iter().any(|told| told == code), "{code}: {told:?}");
        assert!(
            recorded.iter().any(|one| one == code),
            "{code}: {recorded:?}"
        );
    }
}

/// A server that ends with its input, and says hello to one MCP server first.
const SERVER: &str = r#"
import json, os, socket, sys, threading, urllib.request
def call(method, params, id=None, session=None):
    message = {"jsonrpc": "2.0", "method": method, "params": params}
    if id is not None:
        message["id"] = id
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    if session:
        headers["mcp-session-id"] = session
    request = urllib.request.Request(os.environ["BELLJAR_MCP_URL"], json.dumps(message).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        text = answer.read().decode()
        session = answer.headers.get("mcp-session-id") or session
    return session, text
hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
session, _ = call("initialize", hello, 0)
call("notifications/initialized", {}, None, session)
_, echoed = call("tools/call", {"name": "echo", "arguments": {}}, 1, session)
_, denied = call("tools/call", {"name": "secret", "arguments": {}}, 2, session)
print(json.dumps({"echoed": echoed, "denied": denied}), flush=True)
def serve(peer):
    with peer:
        # Everything back, to the last byte, and then the end.
        whole = b""
        while piece := peer.recv(65536):
            whole += piece
        peer.sendall(whole[::-1])
listener = socket.create_server(("127.0.0.1", 9000))
def accept():
    while True:
        threading.Thread(target=serve, args=[listener.accept()[0]], daemon=True).start()
threading.Thread(target=accept, daemon=True).start()
open("listens", "w").close()
sys.stdin.read()
"#;

/// What a published port gives back for this.
fn turned_round(bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut peer = TcpStream::connect(("127.0.0.1", 9001))?;
    peer.set_read_timeout(Some(Duration::from_secs(60)))?;
    peer.write_all(bytes)?;
    peer.shutdown(std::net::Shutdown::Write)?;
    let mut answer = Vec::new();
    peer.read_to_end(&mut answer)?;
    Ok(answer)
}

fn a_guests_servers_are_reached_and_so_are_those_of_its_keeper(who: Who) {
    let mut world = World::new(who);
    let source =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/world/mcp/upstream.py");
    let text = fs::read_to_string(source).expect("the server");
    world.jail.put(&world.jail.work.join("upstream.py"), &text);
    let [certificate, key] = ["server.pem", "server.key"].map(|file| format!("{PLACE}/{file}"));
    let mut upstream = world.jail.outside(PYTHON);
    upstream.args(["-B", "upstream.py", "called", &certificate, &key]);
    let upstream = Ready::start(upstream);
    world.policy(&format!(
        "extends: moderate\n{GUEST}ports: [{{box: 9000, host: 9001}}]\nmcp:\n  servers:\n    \
         web: {{url: \"https://127.0.0.1:{}/mcp\"}}\n  blocked_tools: [\"web:secret\"]\n",
        upstream.line
    ));
    world.jail.put(&world.jail.work.join("server.py"), SERVER);
    let mut command = world.jail.json_command(&[PYTHON, "-B", "server.py"]);
    command.stdin(Stdio::piped());
    let mut child = command.spawn().expect("start the box");
    // Not by asking it: an emulated guest has enough to do.
    eventually("the server in the guest listens", || {
        let ended = child.try_wait().expect("a child");
        assert_eq!(ended, None, "the box ended early");
        world.jail.work.join("listens").exists().then_some(())
    });
    assert_eq!(turned_round(b"hello").expect("an answer"), b"olleh");
    // More than any window, both ways, several at once.
    let large: Vec<u8> = (0..500_000u32).map(|n| (n % 251) as u8).collect();
    let expected: Vec<u8> = large.iter().rev().copied().collect();
    std::thread::scope(|scope| {
        let talks: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| turned_round(&large)))
            .collect();
        for talk in talks {
            let answer = talk.join().expect("no panic").expect("an answer");
            assert!(answer == expected, "{} bytes came back", answer.len());
        }
    });
    // Its own port is not the host's.
    assert!(TcpStream::connect(("127.0.0.1", 9000)).is_err());
    drop(child.stdin.take());
    let outcome = Outcome::from_json(finish(child));
    outcome.assert_exit(0);
    let said: Value = serde_json::from_str(outcome.stdout()).expect("what the servers said");
    let text = |name: &str| said[name].as_str().unwrap_or_default().to_owned();
    assert!(text("echoed").contains("\"text\":\"echo\""), "{said}");
    assert!(text("denied").contains("-32010"), "{said}");
    let called = fs::read_to_string(world.jail.work.join("called")).expect("it was called");
    assert_eq!(called, "echo\n");
    drop(upstream);
    world.jail.assert_nothing_left(Some(outcome.sandbox_id()));
}

/// The root of the family and its child each have a guest.
fn an_agent_in_a_guest_asks_its_keeper_for_replicas(who: Who) {
    let mut family = Family::prepare(who, "max_depth: 2\nmax_replicas: 2\n");
    let capability = family.jail.base.join("capability.yaml");
    family
        .jail
        .put(&capability, &format!("extends: moderate\n{GUEST}"));
    family.start_puppet();
    // A weaker tier is no replica's.
    let weaker = json!({"reason": "test", "capability": {"sandbox_tier": "gvisor"}});
    let (status, answer) = family.post("root", "/v1/replicate", &weaker.to_string());
    assert_eq!(status, 403, "{answer}");
    assert_eq!(answer["code"], "deny_capability", "{answer}");
    family.replicate("root", "child", "").expect("a replica");
    let workers = family.workers();
    assert_eq!(workers.len(), 2, "{workers:#?}");
    let kernel = family.order("child", "uname -r");
    let host = rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned();
    assert_ne!(kernel.out.trim(), host, "the child has the host's kernel");
    let refused = family.ask_replica("child", "grandchild", "");
    let usage = family.agent("child", "usage").expect("an answer");
    assert!(refused.is_err() && usage.is_object(), "{refused:?} {usage}");
}

for_each_user_in_a_world!(egress_secrets_and_budgets_are_the_same_in_a_guest);

/// Who starts the box makes no difference to these, and a guest takes its time: each is for one of them.
mod once {
    use crate::support::{Who, in_a_world};

    #[test]
    fn a_guests_servers_are_reached_and_so_are_those_of_its_keeper() {
        in_a_world(
            Who::User,
            "once::a_guests_servers_are_reached_and_so_are_those_of_its_keeper",
            super::a_guests_servers_are_reached_and_so_are_those_of_its_keeper,
        );
    }

    #[test]
    fn an_agent_in_a_guest_asks_its_keeper_for_replicas() {
        in_a_world(
            Who::Root,
            "once::an_agent_in_a_guest_asks_its_keeper_for_replicas",
            super::an_agent_in_a_guest_asks_its_keeper_for_replicas,
        );
    }
}
