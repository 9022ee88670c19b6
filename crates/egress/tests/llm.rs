//! Calls to models: charged what the provider reports, never more than the budget, cut when it is used up.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;

use belljar_egress::{LlmApi, LlmBudget, PicoUsd, RefusalCode};
use bytes::Bytes;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use hyper::{Request, Response};
use serde_json::{Value, json};
use support::http::*;
use support::llm::*;
use support::*;

#[tokio::test]
async fn a_call_is_charged_exactly_what_the_provider_reports() {
    let answer = json!({"choices": [{"message": {"content": "hi"}}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 60}}});
    let provider = provider(
        LlmApi::OpenAi,
        LlmBudget::new(None, Some(PicoUsd(1_000_000_000))),
        move |_| {
            let answer = answer.clone();
            async move { json_answer(&answer) }
        },
    )
    .await;
    let (status, body) = provider
        .call(
            "/v1/chat/completions",
            &json!({"model": "cached", "messages": []}),
        )
        .await;
    assert_eq!(status, 200, "{body}");
    let charge = provider.charge().await;
    assert_eq!(
        (
            charge.tokens.input,
            charge.tokens.cache_read,
            charge.tokens.output
        ),
        (40, 60, 7)
    );
    assert_eq!(
        (charge.cost, charge.estimated),
        (PicoUsd(40 * 100 + 60 * 10 + 7 * 10), false)
    );
    assert_eq!(
        provider.server.seen()[0].headers["accept-encoding"],
        "identity"
    );
    let usage = provider.budget.usage();
    assert_eq!((usage.total.calls, usage.total.cost), (1, charge.cost));
    assert_eq!(usage.models["cached"], usage.total);
    assert_eq!(provider.bx.engine.stop().llm, usage);
}

#[tokio::test]
async fn a_stream_is_made_to_tell_its_usage_and_the_agent_does_not_notice() {
    let chunk = |text: &str| json!({"choices": [{"delta": {"content": text}}], "usage": null});
    let told = json!({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2}});
    let stream = vec![chunk("a"), chunk("b"), told, json!("[DONE]")];
    for (asks, shown) in [(false, false), (true, true)] {
        let stream = stream.clone();
        let provider = provider(LlmApi::OpenAi, unlimited(), move |_| {
            let answer = events(&stream);
            async move { answer }
        })
        .await;
        let mut body = json!({"model": "m", "stream": true, "messages": []});
        if asks {
            body["stream_options"] = json!({"include_usage": true});
        }
        let (_, answer) = provider.call("/v1/chat/completions", &body).await;
        assert_eq!(provider.sent()["stream_options"]["include_usage"], true);
        assert_eq!(answer.contains("prompt_tokens"), shown, "{answer}");
        assert!(
            answer.contains("\"content\":\"a\"") && answer.ends_with("data: [DONE]\n\n"),
            "{answer}"
        );
        let charge = provider.charge().await;
        assert_eq!(
            (charge.tokens.input, charge.tokens.output, charge.cost),
            (9, 2, PicoUsd(29))
        );
        assert!(!charge.estimated);
    }
}

#[tokio::test]
async fn streams_of_every_provider_are_charged_exactly() {
    let messages = vec![
        json!({"type": "message_start", "message": {"usage": {"input_tokens": 5, "output_tokens": 1,
            "cache_read_input_tokens": 20, "cache_creation_input_tokens": 8}}}),
        json!({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "hello"}}),
        json!({"type": "message_delta", "delta": {}, "usage": {"output_tokens": 3}}),
        json!({"type": "message_stop"}),
    ];
    let responses = vec![
        json!({"type": "response.output_text.delta", "delta": "hello"}),
        json!({"type": "response.completed", "response": {"output": [{"content": [{"text": "hello"}]}],
            "usage": {"input_tokens": 25, "output_tokens": 3, "input_tokens_details": {"cached_tokens": 20}}}}),
    ];
    let gemini = vec![
        json!({"candidates": [{"content": {"parts": [{"text": "he"}]}}], "usageMetadata": {"promptTokenCount": 25}}),
        json!({"candidates": [{"finishReason": "STOP"}], "usageMetadata": {"promptTokenCount": 25, "cachedContentTokenCount": 20,
            "candidatesTokenCount": 2, "thoughtsTokenCount": 1}}),
    ];
    let body = json!({"model": "cached", "stream": true, "max_tokens": 50, "messages": []});
    let cases = [
        (
            LlmApi::Anthropic,
            "/v1/messages",
            messages,
            (5, 20, 8, 3),
            5 * 100 + 20 * 10 + 8 * 125 + 30,
        ),
        (
            LlmApi::OpenAi,
            "/v1/responses",
            responses,
            (5, 20, 0, 3),
            5 * 100 + 20 * 10 + 30,
        ),
        (
            LlmApi::Gemini,
            "/v1beta/models/cached:streamGenerateContent?alt=sse",
            gemini,
            (5, 20, 0, 3),
            5 * 100 + 20 * 10 + 30,
        ),
    ];
    for (api, path, stream, tokens, cost) in cases {
        let expect: String = match events(&stream).into_body().collect().await {
            Ok(body) => String::from_utf8(body.to_bytes().to_vec()).unwrap(),
            Err(never) => match never {},
        };
        let provider = provider(api, LlmBudget::new(Some(1_000_000), None), move |_| {
            let answer = events(&stream);
            async move { answer }
        })
        .await;
        let (_, answer) = provider.call(path, &body).await;
        assert_eq!(answer, expect, "{path}");
        let charge = provider.charge().await;
        let found = charge.tokens;
        assert_eq!(
            (
                found.input,
                found.cache_read,
                found.cache_write,
                found.output
            ),
            tokens,
            "{path}"
        );
        assert_eq!(
            (charge.cost, charge.estimated),
            (PicoUsd(cost), false),
            "{path}"
        );
    }
}

/// A provider that uses 20 tokens of prompt and as many of answer as it may, up to 40.
async fn honest(seen: Seen) -> Response<Body> {
    let asked: Value = serde_json::from_slice(&seen.body).unwrap();
    let most = asked["max_tokens"].as_u64().unwrap();
    let usage = json!({"prompt_tokens": 20, "completion_tokens": most.min(40)});
    json_answer(&json!({"choices": [{"message": {"content": "x".repeat(50)}}], "usage": usage}))
}

#[tokio::test]
async fn parallel_calls_never_exceed_the_budget() {
    // A prompt is held for its bytes and some, so a little more than it costs must be there.
    for (tokens, cost) in [(None, Some(PicoUsd(5000))), (Some(2600), None)] {
        let provider = provider(LlmApi::OpenAi, LlmBudget::new(tokens, cost), honest).await;
        let provider = Arc::new(provider);
        let calls: Vec<_> = (0..16)
            .map(|_| {
                let provider = Arc::clone(&provider);
                let body = json!({"model": "m", "messages": [], "max_tokens": 100});
                tokio::spawn(async move { provider.call("/v1/chat/completions", &body).await })
            })
            .collect();
        let (mut made, mut refused) = (0, 0);
        for call in calls {
            let (status, body) = soon(call).await.unwrap();
            match status {
                200 => made += 1,
                402 => {
                    refused += 1;
                    assert!(body.contains("insufficient_quota"), "{body}");
                }
                _ => panic!("{status} {body}"),
            }
        }
        assert!(made > 0 && refused > 0, "{made} made, {refused} refused");
        let usage = provider.budget.usage();
        assert_eq!(usage.total.calls, made);
        assert!(
            cost.is_none_or(|most| usage.total.cost <= most),
            "{usage:?}"
        );
        assert!(
            tokens.is_none_or(|most| usage.total.tokens.total() <= most),
            "{usage:?}"
        );
        let code = if tokens.is_some() {
            RefusalCode::Tokens
        } else {
            RefusalCode::Cost
        };
        provider.bx.recording.refusal(code).await;
    }
}

#[tokio::test]
async fn the_last_answer_is_limited_to_what_is_left() {
    // The prompt is held for 2048 and its bytes; an answer of 1000 would be too dear.
    let provider = provider(
        LlmApi::OpenAi,
        LlmBudget::new(None, Some(PicoUsd(2300))),
        honest,
    )
    .await;
    let (status, _) = provider
        .call(
            "/v1/chat/completions",
            &json!({"model": "m", "messages": []}),
        )
        .await;
    assert_eq!(status, 200);
    let granted = provider.sent()["max_tokens"].as_u64().unwrap();
    assert!((1..=25).contains(&granted), "{granted}");
    assert_eq!(provider.charge().await.tokens.output, granted);
}

/// A stream that goes on until nobody listens.
struct Endless(tokio::time::Interval);

impl futures_core::Stream for Endless {
    type Item = Result<Frame<Bytes>, std::convert::Infallible>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        self.0.poll_tick(cx).map(|_| {
            let event = json!({"choices": [{"delta": {"content": "words "}}]});
            Some(Ok(Frame::data(Bytes::from(format!("data: {event}\n\n")))))
        })
    }
}

async fn endless(_: Seen) -> Response<Body> {
    let interval = tokio::time::interval(std::time::Duration::from_millis(1));
    let body = StreamBody::new(Endless(interval)).boxed_unsync();
    Response::builder()
        .header("content-type", "text/event-stream")
        .body(body)
        .unwrap()
}

#[tokio::test]
async fn an_answer_that_will_not_end_is_cut_when_the_budget_is_used_up() {
    let provider = provider(
        LlmApi::OpenAi,
        LlmBudget::new(None, Some(PicoUsd(3000))),
        endless,
    )
    .await;
    let body = json!({"model": "m", "messages": [], "stream": true, "max_tokens": 5});
    let (status, answer) = provider.call("/v1/chat/completions", &body).await;
    assert_eq!(status, 200);
    let last = answer.trim_end().lines().last().unwrap();
    assert!(
        last.starts_with("data: {\"error\":") && last.contains("insufficient_quota"),
        "{last}"
    );
    let refusal = provider.bx.recording.refusal(RefusalCode::Cost).await;
    assert_eq!(refusal.host, NAME);
    let charge = provider.charge().await;
    assert!(charge.estimated);
    assert!(charge.cost <= PicoUsd(3000 + 20), "{charge:?}");
}

#[tokio::test]
async fn a_stream_the_agent_walks_away_from_is_settled() {
    let provider = provider(LlmApi::OpenAi, unlimited(), endless).await;
    let body = json!({"model": "m", "messages": [], "stream": true, "max_tokens": 90_000});
    let mut answer = provider
        .post("/v1/chat/completions", &body)
        .await
        .into_body();
    soon(answer.frame()).await.unwrap().unwrap();
    drop(answer);
    let charge = provider.charge().await;
    assert!(
        charge.estimated && charge.tokens.output >= 1 && charge.tokens.input > 0,
        "{charge:?}"
    );
    // What was not used is there again.
    assert!(provider.budget.usage().total.tokens.total() < 90_000);
}

#[tokio::test]
async fn an_agent_that_does_not_wait_for_the_answer_pays_for_all_of_it() {
    let provider = provider(
        LlmApi::OpenAi,
        LlmBudget::new(Some(100_000), None),
        |_| async { std::future::pending::<Response<Body>>().await },
    )
    .await;
    let mut client = client_one(
        &provider.bx,
        NAME,
        provider.server.port,
        &provider.authority,
    )
    .await;
    let body = json!({"model": "m", "messages": [], "max_tokens": 500}).to_string();
    let request = Request::post("/v1/chat/completions")
        .header("host", NAME)
        .body(text(body))
        .unwrap();
    let sending = tokio::spawn(async move { client.send_request(request).await });
    let started = std::time::Instant::now();
    while provider.server.seen().is_empty() {
        assert!(started.elapsed() < DEADLINE);
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    sending.abort();
    let charge = provider.charge().await;
    assert!(charge.estimated);
    assert_eq!(charge.tokens.output, 500);
}

#[tokio::test]
async fn what_has_no_price_or_no_meter_is_refused_under_a_budget() {
    let chat = "/v1/chat/completions";
    for (budget, path, body, expect) in [
        (
            LlmBudget::new(None, Some(PicoUsd(1 << 40))),
            chat,
            json!({"model": "new"}),
            Some(RefusalCode::UnknownModel),
        ),
        (
            LlmBudget::new(Some(1 << 40), None),
            chat,
            json!({"model": "new", "max_tokens": 5}),
            None,
        ),
        (
            unlimited(),
            chat,
            json!({"model": "new", "max_tokens": 5}),
            None,
        ),
        (
            LlmBudget::new(Some(1 << 40), None),
            "/v1/batches",
            json!({"model": "m"}),
            Some(RefusalCode::Unmetered),
        ),
        (
            unlimited(),
            "/v1/batches",
            json!({"model": "m", "max_tokens": 1}),
            None,
        ),
        (
            LlmBudget::new(Some(1 << 40), None),
            "/v1/responses",
            json!({"model": "m", "background": true}),
            Some(RefusalCode::Unmetered),
        ),
        (
            LlmBudget::new(Some(1 << 40), None),
            chat,
            json!([1]),
            Some(RefusalCode::Malformed),
        ),
    ] {
        let provider = provider(LlmApi::OpenAi, budget, honest).await;
        let (status, answer) = provider.call(path, &body).await;
        match expect {
            None => assert_eq!(status, 200, "{path} {body} {answer}"),
            Some(code) => {
                assert_eq!(status, 400, "{path} {body} {answer}");
                let error: Value = serde_json::from_str(&answer).unwrap();
                assert_eq!(error["error"]["code"], code.code());
                assert_eq!(error["error"]["type"], "invalid_request_error");
                provider.bx.recording.refusal(code).await;
                assert!(provider.server.seen().is_empty());
            }
        }
    }
}

#[tokio::test]
async fn an_error_of_the_provider_costs_nothing() {
    let provider = provider(
        LlmApi::Anthropic,
        LlmBudget::new(Some(10_000), None),
        |_| async {
            Response::builder()
                .status(529)
                .body(text("{\"type\": \"error\"}"))
                .unwrap()
        },
    )
    .await;
    let body = json!({"model": "m", "messages": [], "max_tokens": 5000});
    for _ in 0..3 {
        assert_eq!(provider.call("/v1/messages", &body).await.0, 529);
    }
    assert_eq!(provider.budget.usage().total.calls, 0);
}
