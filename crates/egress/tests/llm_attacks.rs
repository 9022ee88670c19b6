//! Ways around a budget: calls that look like something else, numbers that are read in two ways, answers that are hard to read.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;

use belljar_egress::{LlmApi, LlmBudget, PicoUsd, RefusalCode};
use bytes::Bytes;
use hyper::{Method, Request, Response};
use serde_json::json;
use support::http::*;
use support::llm::*;
use support::*;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const CHAT: &str = "/v1/chat/completions";

fn tokens(most: u64) -> Arc<LlmBudget> {
    LlmBudget::new(Some(most), None)
}

/// Answers as it is told, whatever it is asked.
async fn answering(budget: Arc<LlmBudget>, kind: &'static str, body: Vec<u8>) -> Provider {
    answering_with(budget, vec![("content-type", kind)], body).await
}

async fn answering_with(
    budget: Arc<LlmBudget>,
    headers: Vec<(&'static str, &'static str)>,
    body: Vec<u8>,
) -> Provider {
    let body = Bytes::from(body);
    provider(LlmApi::OpenAi, budget, move |_| {
        let mut response = Response::builder();
        for (name, value) in &headers {
            response = response.header(*name, *value);
        }
        let response = response.body(text(body.clone())).unwrap();
        async move { response }
    })
    .await
}

#[tokio::test]
async fn paths_that_only_look_like_something_else_are_not_passed_on() {
    let provider = answering(tokens(1 << 40), "application/json", b"{}".to_vec()).await;
    for path in [
        "//v1/chat/completions",
        "/v1/./chat/completions",
        "/v1/models/../chat/completions",
        "/v1/%63hat/completions",
        "/v1/chat%2fcompletions",
        "/v1/chat/completions;x=y",
        "/v1/chat/completions%20",
        "/v1/Chat/Completions",
        "/v1/chat\\completions",
        "/v1/audio/speech",
        "/v1/realtime/sessions",
    ] {
        let mut client = client_one(
            &provider.bx,
            NAME,
            provider.server.port,
            &provider.authority,
        )
        .await;
        let Ok(request) = Request::post(path)
            .header("host", NAME)
            .body(text("{\"model\": \"m\"}"))
        else {
            continue;
        };
        let (status, ..) = whole(soon(client.send_request(request)).await.unwrap()).await;
        assert_eq!(status, 400, "{path}");
    }
    assert!(provider.server.seen().is_empty());
    provider.bx.recording.refusal(RefusalCode::Unmetered).await;
}

#[tokio::test]
async fn a_call_in_the_clothes_of_something_free_is_not_passed_on() {
    let provider = answering(tokens(1 << 40), "application/json", b"{}".to_vec()).await;
    let call = |method: Method, path: &str, headers: &[(&str, &str)]| {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", NAME);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(text("{\"model\": \"m\"}")).unwrap()
    };
    for request in [
        call(Method::GET, CHAT, &[("x-http-method-override", "POST")]),
        // A WebSocket without its key: a server may be less strict than others.
        call(
            Method::GET,
            "/v1/realtime",
            &[("connection", "upgrade"), ("upgrade", "websocket")],
        ),
        call(Method::PUT, CHAT, &[]),
        call(Method::PATCH, CHAT, &[]),
    ] {
        let mut client = client_one(
            &provider.bx,
            NAME,
            provider.server.port,
            &provider.authority,
        )
        .await;
        let shown = format!("{request:?}");
        let (status, headers, _) = whole(soon(client.send_request(request)).await.unwrap()).await;
        // Clients of WebSockets fall back to HTTPS at this answer.
        let expect = if shown.contains("websocket") {
            426
        } else {
            400
        };
        assert_eq!(status, expect, "{shown}");
        assert_eq!(
            headers["x-belljar-refused"],
            RefusalCode::Unmetered.code(),
            "{shown}"
        );
    }
    assert!(provider.server.seen().is_empty());
}

#[tokio::test]
async fn a_model_goes_by_its_exact_name() {
    let budget = LlmBudget::new(None, Some(PicoUsd(1 << 40)));
    let provider = answering(budget, "application/json", b"{}".to_vec()).await;
    for model in ["M", " m", "m ", "m\0", "own/m", ""] {
        let (status, body) = provider
            .call(CHAT, &json!({"model": model, "messages": []}))
            .await;
        assert_eq!(status, 400, "{model:?} {body}");
        assert!(body.contains(RefusalCode::UnknownModel.code()), "{body}");
    }
    assert!(provider.server.seen().is_empty());
}

#[tokio::test]
async fn numbers_that_servers_read_differently_do_not_stretch_a_budget() {
    let answer = json!({"usage": {"prompt_tokens": 1, "completion_tokens": 1}});
    let provider = answering(tokens(4000), "application/json", answer.to_string().into()).await;
    let raw = |body: &'static str| {
        let provider = &provider;
        async move {
            let mut client = client_one(
                &provider.bx,
                NAME,
                provider.server.port,
                &provider.authority,
            )
            .await;
            let request = Request::post(CHAT)
                .header("host", NAME)
                .body(text(body))
                .unwrap();
            whole(soon(client.send_request(request)).await.unwrap()).await
        }
    };
    for body in [
        r#"{"model": "m", "max_tokens": 5, "max_tokens": 900000}"#,
        r#"{"model": "m", "max_tokens": -1}"#,
        r#"{"model": "m", "max_tokens": 1e12}"#,
        r#"{"model": "m", "max_tokens": "900000"}"#,
        r#"{"model": "m", "max_tokens": 5, "max_completion_tokens": 900000}"#,
    ] {
        let (status, _, answer) = raw(body).await;
        assert_eq!(status, 200, "{body}: {answer}");
        let sent = provider.sent();
        // The model's own limit is 1000, and no more than the budget was granted.
        for key in ["max_tokens", "max_completion_tokens"] {
            assert!(
                sent[key].is_null() || sent[key].as_u64().is_some_and(|most| most < 4000),
                "{body}: {sent}"
            );
        }
        let twice = provider.server.seen().last().unwrap().body.clone();
        let twice = String::from_utf8(twice.to_vec()).unwrap();
        assert!(twice.matches("max_tokens").count() <= 1, "{twice}");
    }
    let before = provider.server.seen().len();
    for (body, status) in [
        (r#"{"model": "m", "n": 100000000000000000}"#, 402),
        (r#"{"model": "m", "n": 5.0}"#, 400),
        (r#"{"model": "m", "n": "5"}"#, 400),
        (r#"{"model": "m", "n": -5}"#, 400),
    ] {
        let (found, _, answer) = raw(body).await;
        assert_eq!(found, status, "{body}: {answer}");
    }
    assert_eq!(provider.server.seen().len(), before);
}

#[tokio::test]
async fn an_answer_that_was_compressed_all_the_same_costs_all_that_was_set_aside() {
    // Whether it is a bomb makes no difference: it is passed on as it is.
    let headers = vec![
        ("content-type", "application/json"),
        ("content-encoding", "gzip"),
    ];
    let provider = answering_with(tokens(1 << 40), headers, vec![0x1f; 5000]).await;
    let body = json!({"model": "m", "messages": [], "max_tokens": 700});
    let response = provider.post(CHAT, &body).await;
    let (status, headers, answer) = whole(response).await;
    assert_eq!((status, answer.len()), (200, 5000));
    assert_eq!(headers["content-encoding"], "gzip");
    let charge = provider.charge().await;
    assert!(charge.estimated);
    assert_eq!(charge.tokens.output, 700);
}

#[tokio::test]
async fn an_answer_that_does_not_say_what_it_used_is_charged_by_its_length() {
    for (kind, body) in [
        ("text/html", "x".repeat(4000).into_bytes()),
        (
            "application/json",
            format!(
                "{{\"choices\": [{{\"message\": {{\"content\": \"{}\"}}}}]}}",
                "y".repeat(4000)
            )
            .into(),
        ),
        (
            "text/event-stream",
            format!("data: {}\n\n", "z".repeat(4000)).into(),
        ),
        ("text/event-stream", "x".repeat(5 << 20).into()),
    ] {
        let least = body.len() as u64 / 5;
        let provider = answering(tokens(1 << 40), kind, body).await;
        let call = json!({"model": "m", "messages": [], "max_tokens": 900});
        assert_eq!(provider.call(CHAT, &call).await.0, 200);
        let charge = provider.charge().await;
        assert!(charge.estimated, "{kind}");
        assert!(charge.tokens.output >= least, "{kind}: {charge:?}");
        assert!(charge.tokens.input > 0, "{kind}: {charge:?}");
    }
}

#[tokio::test]
async fn streams_are_read_however_their_lines_end() {
    let chunk = json!({"choices": [{"delta": {"content": "hello"}}]}).to_string();
    let told = json!({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2}});
    let told = told.to_string();
    for end in ["\n", "\r\n", "\r"] {
        for last in ["", end] {
            let lines = [
                &format!("data: {chunk}"),
                "",
                ": still there",
                "",
                &format!("data: {told}"),
                "",
                "data: [DONE]",
                last,
            ];
            let stream = lines.join(end);
            let provider = answering(tokens(1 << 40), "text/event-stream", stream.into()).await;
            let call = json!({"model": "m", "messages": [], "stream": true, "max_tokens": 50});
            let (_, answer) = provider.call(CHAT, &call).await;
            // It was not asked for, so it is not shown; the rest is.
            assert!(!answer.contains("prompt_tokens"), "{end:?} {answer:?}");
            assert!(answer.contains(&chunk), "{end:?} {answer:?}");
            assert!(answer.contains("data: [DONE]"), "{end:?} {answer:?}");
            let charge = provider.charge().await;
            assert_eq!(
                (charge.tokens.input, charge.tokens.output, charge.estimated),
                (9, 2, false),
                "{end:?}"
            );
        }
    }
}

/// Announces a long prompt and sends only its beginning.
async fn announce(
    provider: &Provider,
    length: usize,
) -> tokio_rustls::client::TlsStream<tokio::net::TcpStream> {
    let target = format!("{NAME}:{}", provider.server.port);
    let stream = provider.bx.tunnel(&target).await;
    let mut stream = tls(stream, NAME, &provider.authority, &[b"http/1.1"]).await;
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nHost: {NAME}\r\nExpect: 100-continue\r\nContent-Length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

async fn is_told_to_go_on(stream: &mut tokio_rustls::client::TlsStream<tokio::net::TcpStream>) {
    let mut told = Vec::new();
    while !told.ends_with(b"\r\n\r\n") {
        told.push(soon(stream.read_u8()).await.unwrap());
    }
    assert!(told.starts_with(b"HTTP/1.1 100 "));
}

#[tokio::test]
async fn long_prompts_wait_for_each_other_and_short_ones_for_nobody() {
    const LONG: usize = 30 << 20;
    let answer = json!({"usage": {"prompt_tokens": 1, "completion_tokens": 1}});
    let provider = answering(
        tokens(1 << 40),
        "application/json",
        answer.to_string().into(),
    )
    .await;
    // There is room for one of them, and this is it: it is read.
    let mut first = announce(&provider, LONG).await;
    is_told_to_go_on(&mut first).await;
    let mut second = announce(&provider, LONG).await;
    let body = json!({"model": "m", "messages": [], "max_tokens": 5});
    assert_eq!(provider.call(CHAT, &body).await.0, 200);
    let mut early = [0; 1];
    let nothing = tokio::select! {
        biased;
        read = second.read(&mut early) => read.is_err(),
        // Once more round the whole way: what the second was to be told would be here by now.
        (status, _) = provider.call(CHAT, &body) => status == 200,
    };
    assert!(nothing);
    drop(first);
    is_told_to_go_on(&mut second).await;
}

#[tokio::test]
async fn a_prompt_that_never_comes_is_not_waited_for() {
    let server = Server::start(NAME, Wire::Tls, says_hello).await;
    let mut own = config(vec![allow(NAME, &[server.port])]);
    let authority = inspecting(&mut own, &server);
    own.llm = Some(policy(LlmApi::OpenAi, tokens(1 << 40)));
    own.timeouts.request = std::time::Duration::from_millis(200);
    let provider = Provider {
        server,
        bx: start(own),
        authority,
        budget: tokens(0),
    };
    let mut stream = announce(&provider, 100).await;
    is_told_to_go_on(&mut stream).await;
    let mut answer = Vec::new();
    // However it ends.
    let _ = soon(stream.read_to_end(&mut answer)).await;
    assert!(
        answer.starts_with(b"HTTP/1.1 400 "),
        "{}",
        answer.escape_ascii()
    );
}
