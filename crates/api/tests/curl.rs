//! The program that people try first.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::io::Write;
use std::process::{Command, Stdio};

use belljar_api::{AgentCall, Call, Replicated, Tag, WorkerId};
use support::{TestServer, patient, simple};

/// Runs curl; gives the body and, on a line of its own, the status.
fn curl(server: &TestServer, arguments: &[&str], input: &[u8]) -> String {
    let mut child = Command::new("curl")
        .args(["--silent", "--show-error", "--max-time", "60"])
        .args(["--write-out", "\n%{http_code}", "--unix-socket"])
        .arg(server.path(Tag(1)))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .expect("curl is installed");
    // curl reads all of its input before it asks.
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "curl failed: {:?}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn curl_is_understood() {
    let server = TestServer::start(patient(), |request| match request.call {
        Call::Agent(AgentCall::Replicate(asked)) => {
            let length = asked.request.state.map_or(0, |state| state.as_str().len());
            let worker_id = WorkerId::new(format!("w{length}")).unwrap();
            asked.responder.reply(&Replicated { worker_id });
        }
        _ => simple(request),
    });
    let beat = curl(&server, &["-X", "POST", "http://belljar/v1/heartbeat"], b"");
    assert_eq!(beat, "{\"ok\":true,\"next_within_ms\":1}\n200");

    // With a body beyond 1 MiB curl waits for `100 Continue`.
    let state = "x".repeat(1024 * 1024);
    let body = format!(r#"{{"reason":"a large state","state":"{state}"}}"#);
    let replicate = ["--data-binary", "@-", "http://belljar/v1/replicate"];
    let reply = curl(&server, &replicate, body.as_bytes());
    assert_eq!(reply, "{\"worker_id\":\"w1048576\"}\n201");

    let reply = curl(&server, &replicate, &vec![b' '; 3 * 1024 * 1024]);
    assert!(
        reply.contains("body_too_large") && reply.ends_with("\n413"),
        "{reply}"
    );

    let forced = [&["-H", "Expect: 100-continue"], &replicate[..]].concat();
    let reply = curl(&server, &forced, br#"{"reason":"small"}"#);
    assert_eq!(reply, "{\"worker_id\":\"w0\"}\n201");

    // Without asking first, curl is in the middle of its body when it is refused.
    let blunt = [&["-H", "Expect:"], &replicate[..]].concat();
    let reply = curl(&server, &blunt, &vec![b' '; 2 * 1024 * 1024]);
    assert!(
        reply.contains("body_too_large") && reply.ends_with("\n413"),
        "{reply}"
    );

    let chunks = [&["-H", "Transfer-Encoding: chunked"], &replicate[..]].concat();
    let reply = curl(&server, &chunks, b"{}");
    assert!(
        reply.contains("length_required") && reply.ends_with("\n411"),
        "{reply}"
    );

    let reply = curl(&server, &["http://belljar/v1/nothing"], b"");
    assert!(
        reply.contains("GET /v1/manifest") && reply.ends_with("\n404"),
        "{reply}"
    );
    server.stop();
}
