//! Answers that break off, faults within, and what is said when a budget does not cover a call.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use belljar_egress::{LlmApi, LlmBudget, PicoUsd, RefusalCode, Resolve, Resolving};
use bytes::Bytes;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::Response;
use hyper::body::Frame;
use serde_json::{Value, json};
use support::http::*;
use support::llm::*;
use support::*;
use tokio::sync::watch;

/// Events, of which those behind the first wait until they are let go.
struct Slow {
    events: VecDeque<Bytes>,
    first: bool,
    go: watch::Receiver<bool>,
    waiting: Option<std::pin::Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// Never ends.
    endless: bool,
}

impl futures_core::Stream for Slow {
    type Item = Result<Frame<Bytes>, Infallible>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Self::Item>> {
        if !std::mem::take(&mut self.first) {
            let mut go = self.go.clone();
            let waiting = self.waiting.get_or_insert_with(|| {
                Box::pin(async move {
                    // The test is over when nobody can let go any more.
                    let _ = go.wait_for(|go| *go).await;
                })
            });
            if waiting.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            self.waiting = Some(Box::pin(std::future::ready(())));
            self.waiting = None;
        }
        match self.events.pop_front() {
            Some(event) => Poll::Ready(Some(Ok(Frame::data(event)))),
            None if self.endless => Poll::Pending,
            None => Poll::Ready(None),
        }
    }
}

fn told(events: &[Value]) -> VecDeque<Bytes> {
    let line = |event: &Value| match event {
        Value::String(bare) => format!("data: {bare}\n\n"),
        event => format!("data: {event}\n\n"),
    };
    events
        .iter()
        .map(|event| Bytes::from(line(event)))
        .collect()
}

async fn streaming(
    api: LlmApi,
    events: &[Value],
    endless: bool,
    rest_ms: u64,
) -> (Provider, watch::Sender<bool>) {
    let (let_go, go) = watch::channel(false);
    let events = told(events);
    let server = Server::start(NAME, Wire::Tls, move |_| {
        let (events, go) = (events.clone(), go.clone());
        let slow = Slow {
            events,
            first: true,
            go,
            waiting: None,
            endless,
        };
        async move {
            Response::builder()
                .header("content-type", "text/event-stream")
                .body(StreamBody::new(slow).boxed_unsync())
                .unwrap()
        }
    })
    .await;
    let budget = LlmBudget::new(Some(1_000_000), None);
    let mut config = config(vec![allow(NAME, &[server.port])]);
    let authority = inspecting(&mut config, &server);
    config.llm = Some(policy(api, Arc::clone(&budget)));
    config.timeouts.rest = std::time::Duration::from_millis(rest_ms);
    let provider = Provider {
        server,
        bx: start(config),
        authority,
        budget,
    };
    (provider, let_go)
}

const CHAT: &str = "/v1/chat/completions";
const FOR_EVER: u64 = 3_600_000;

fn word() -> Value {
    json!({"choices": [{"delta": {"content": "4"}}]})
}

fn usage(output: u64) -> Value {
    json!({"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": output, "total_tokens": 10 + output}})
}

#[tokio::test]
async fn an_agent_that_hangs_up_is_charged_what_the_usage_says_or_all() {
    let whole = vec![word(), usage(20_001), json!("[DONE]")];
    let cut = vec![word(), word()];
    let failed = vec![word(), json!({"error": {"message": "overloaded"}})];
    let each = vec![
        json!({"choices": [{"delta": {"content": "a"}}], "usage": {"prompt_tokens": 10, "completion_tokens": 1}}),
        word(),
    ];
    for (events, endless, rest, expect) in [
        (&whole, false, FOR_EVER, (10, 20_001, false)),
        // The rest is cut, fails, is no rest, or never comes.
        (&cut, false, FOR_EVER, (0, 25_000, true)),
        (&failed, false, FOR_EVER, (0, 25_000, true)),
        (&each, false, FOR_EVER, (0, 25_000, true)),
        (&cut, true, 1, (0, 25_000, true)),
    ] {
        let (provider, let_go) = streaming(LlmApi::OpenAi, events, endless, rest).await;
        let body = json!({"model": "big", "messages": [], "stream": true, "max_tokens": 25_000});
        let mut answer = provider.post(CHAT, &body).await.into_body();
        soon(answer.frame()).await.unwrap().unwrap();
        drop(answer);
        let_go.send_replace(true);
        let charge = provider.charge().await;
        let (input, output, estimated) = expect;
        let found = (charge.tokens.output, charge.estimated);
        assert_eq!(found, (output, estimated), "{events:?}");
        assert!(charge.tokens.input >= input, "{charge:?}");
    }
}

#[tokio::test]
async fn a_stream_that_ends_before_its_usage_is_charged_all_that_was_set_aside() {
    let start = json!({"type": "message_start", "message": {"usage": {"input_tokens": 9, "output_tokens": 1}}});
    let delta = json!({"type": "content_block_delta", "delta": {"text": "x"}});
    let failed = json!({"type": "error", "error": {"type": "overloaded_error"}});
    let stopped = json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}});
    let end = json!({"type": "message_stop"});
    let early = json!({"choices": [{"delta": {"content": "a"}}], "usage": {"prompt_tokens": 10, "completion_tokens": 1}});
    let gemini = json!({"candidates": [{"content": {"parts": [{"text": "x"}]}}],
        "usageMetadata": {"promptTokenCount": 9, "candidatesTokenCount": 1}});
    let responses = json!({"type": "response.failed", "response": {"usage": null}});
    let cases = [
        (
            LlmApi::Anthropic,
            "/v1/messages",
            vec![start.clone(), delta.clone()],
        ),
        (
            LlmApi::Anthropic,
            "/v1/messages",
            vec![start.clone(), failed],
        ),
        // It ends as answers do, and what it used was told of its beginning alone.
        (
            LlmApi::Anthropic,
            "/v1/messages",
            vec![start.clone(), delta.clone(), stopped.clone()],
        ),
        (
            LlmApi::Anthropic,
            "/v1/messages",
            vec![start, stopped.clone(), end],
        ),
        (
            LlmApi::OpenAi,
            CHAT,
            vec![early.clone(), word(), json!("[DONE]")],
        ),
        (
            LlmApi::OpenAi,
            CHAT,
            vec![
                word(),
                json!({"choices": [], "usage": {"prompt_tokens": 10}}),
                json!("[DONE]"),
            ],
        ),
        (
            LlmApi::Gemini,
            "/v1beta/models/big:streamGenerateContent",
            vec![gemini],
        ),
        (LlmApi::OpenAi, "/v1/responses", vec![responses]),
        (LlmApi::OpenAi, CHAT, vec![word(), json!("[DONE]")]),
    ];
    for (api, path, events) in cases {
        let (provider, let_go) = streaming(api, &events, false, FOR_EVER).await;
        let_go.send_replace(true);
        let body = json!({"model": "big", "stream": true, "max_tokens": 800, "max_output_tokens": 800,
            "generationConfig": {"maxOutputTokens": 800}});
        assert_eq!(provider.call(path, &body).await.0, 200);
        let charge = provider.charge().await;
        assert_eq!(
            (charge.tokens.output, charge.estimated),
            (800, true),
            "{path} {events:?}"
        );
        assert!(charge.tokens.prompt() > 2000, "{charge:?}");
    }
}

#[tokio::test]
async fn no_answer_is_asked_for_without_what_it_used() {
    let path = "/v1beta/models/m:generateContent";
    let body = json!({"contents": []});
    let answer = json!({"candidates": [], "usageMetadata": {"promptTokenCount": 9}});
    let answering = move |_| {
        let answer = answer.clone();
        async move { json_answer(&answer) }
    };
    let budget = LlmBudget::new(Some(1 << 20), None);
    let provider = provider(LlmApi::Gemini, budget, answering).await;
    for query in ["fields=candidates", "alt=sse&%24fields=candidates(content)"] {
        let (status, said) = provider.call(&format!("{path}?{query}"), &body).await;
        assert_eq!(status, 400, "{query}: {said}");
        assert!(said.contains("fields"), "{said}");
    }
    assert!(provider.server.seen().is_empty());
    let mut client = client_one(
        &provider.bx,
        NAME,
        provider.server.port,
        &provider.authority,
    )
    .await;
    let request = hyper::Request::post(path)
        .header("host", NAME)
        .header("content-type", "application/json")
        .header(
            "x-goog-fieldmask",
            "candidates,usageMetadata.promptTokenCount",
        )
        .body(text(body.to_string()))
        .unwrap();
    let (status, _, _) = whole(soon(client.send_request(request)).await.unwrap()).await;
    assert_eq!(status, 200);
    let seen = provider.server.seen();
    assert!(!seen[0].headers.contains_key("x-goog-fieldmask"));
    // Figures without the answer's are none: all that was set aside is charged.
    let charge = provider.charge().await;
    assert!(charge.estimated && charge.tokens.output > 0, "{charge:?}");
}

#[tokio::test]
async fn bodies_of_the_wrong_shape_are_refused_in_the_providers_words() {
    for (api, path, body) in [
        (
            LlmApi::OpenAi,
            CHAT,
            json!({"model": "m", "stream": true, "stream_options": "x"}),
        ),
        (
            LlmApi::OpenAi,
            CHAT,
            json!({"model": "m", "stream": "true"}),
        ),
        (
            LlmApi::OpenAi,
            "/v1/responses",
            json!({"model": "m", "tools": {"a": 1}}),
        ),
        (
            LlmApi::Anthropic,
            "/v1/messages",
            json!({"model": "m", "stream": 1}),
        ),
        (
            LlmApi::Gemini,
            "/v1beta/models/m:generateContent",
            json!({"generationConfig": "x"}),
        ),
        (
            LlmApi::Gemini,
            "/v1beta/models/m:generateContent",
            json!({"generation_config": [5]}),
        ),
        (
            LlmApi::Gemini,
            "/v1beta/models/m:generateContent",
            json!({"generationConfig": {}, "generation_config": {}}),
        ),
    ] {
        for budget in [unlimited(), LlmBudget::new(Some(1 << 40), None)] {
            let provider = provider(api, budget, |_| async { json_answer(&json!({})) }).await;
            let (status, answer) = provider.call(path, &body).await;
            assert_eq!(status, 400, "{body} {answer}");
            let error: Value = serde_json::from_str(&answer).unwrap();
            assert!(
                error["error"]["message"]
                    .as_str()
                    .unwrap()
                    .contains("can't be read: "),
                "{answer}"
            );
            assert!(provider.server.seen().is_empty());
        }
    }
}

#[tokio::test]
async fn a_refusal_says_what_is_left_what_was_needed_and_what_to_set() {
    for (api, path) in [(LlmApi::OpenAi, CHAT), (LlmApi::Anthropic, "/v1/messages")] {
        let provider = provider(
            api,
            LlmBudget::new(None, Some(PicoUsd(2_000_000_000))),
            |_| async { json_answer(&json!({})) },
        )
        .await;
        let body = json!({"model": "dear", "messages": [], "max_tokens": 32_000});
        let (status, answer) = provider.call(path, &body).await;
        assert_eq!(status, 402, "{answer}");
        let refusal = provider.bx.recording.refusal(RefusalCode::Cost).await;
        let detail = refusal.detail.unwrap();
        for word in [
            "$0.000000 spent",
            "$0.002000 left",
            "dear",
            "32000 tokens",
            "as it asks",
            "max_cost_usd to more than 0.02",
        ] {
            assert!(
                detail.contains(word) && answer.contains(word),
                "{word}: {detail}"
            );
        }
    }
    let limited = provider(
        LlmApi::OpenAi,
        LlmBudget::new(Some(1 << 30), None),
        |_| async { json_answer(&json!({})) },
    )
    .await;
    for (path, body, word) in [
        (
            CHAT,
            json!({"model": "m", "tools": [{"type": "web_search"}]}),
            "`web_search`",
        ),
        ("/v1/telemetry", json!({}), "POST /v1/telemetry"),
        (CHAT, json!({"model": "sonar-pro"}), "`sonar-pro`"),
    ] {
        let (status, answer) = limited.call(path, &body).await;
        assert_eq!(status, 400);
        assert!(
            answer.contains(word) && answer.contains("Switch it off"),
            "{answer}"
        );
    }
}

/// Looks names up, but for one at which it falls over.
struct Falls;

impl Resolve for Falls {
    fn resolve<'a>(&'a self, name: &'a str) -> Resolving<'a> {
        let name = name.to_owned();
        Box::pin(async move {
            assert!(name != NAME, "it falls over");
            Ok(vec![std::net::Ipv4Addr::LOCALHOST.into()])
        })
    }
}

#[tokio::test]
async fn a_fault_ends_one_connection_is_on_record_and_charged() {
    let server = Server::start(NAME, Wire::Tls, says_hello).await;
    let echo = Echo::start().await;
    let mut own = config(vec![
        allow(NAME, &[server.port]),
        allow("other.test", &[echo.port]),
    ]);
    own.resolver = Arc::new(Falls);
    let authority = inspecting(&mut own, &server);
    let budget = LlmBudget::new(Some(1 << 30), None);
    own.llm = Some(policy(LlmApi::OpenAi, Arc::clone(&budget)));
    let provider = Provider {
        server,
        bx: start(own),
        authority,
        budget,
    };
    for _ in 0..3 {
        let body = json!({"model": "m", "messages": [], "max_tokens": 700});
        assert_eq!(provider.call(CHAT, &body).await.0, 500);
    }
    provider.bx.recording.refusal(RefusalCode::Internal).await;
    let usage = provider.budget.usage();
    assert_eq!((usage.total.calls, usage.total.estimated), (3, 3));
    assert!(usage.total.tokens.output >= 3 * 700, "{usage:?}");
    // Not even its neighbours notice.
    let mut stream = provider
        .bx
        .tunnel(&format!("other.test:{}", echo.port))
        .await;
    tokio::io::AsyncWriteExt::write_all(&mut stream, b"x")
        .await
        .unwrap();
    assert_eq!(
        soon(tokio::io::AsyncReadExt::read_u8(&mut stream))
            .await
            .unwrap(),
        b'x'
    );
    assert!(provider.server.seen().is_empty());
}
