//! Calls and answers of all providers, changed at random: nothing of them may end more than itself, and no way to cut an answer
//! makes it cheaper.

use std::sync::{Arc, Mutex};

use belljar_policy::{CompiledRules, LlmApi};
use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use tokio::sync::Semaphore;

use super::bill::{Bill, Charge};
use super::budget::{LlmBudget, Wish};
use super::endpoint::Action;
use super::observer::Observer;
use super::prompt::Prompt;
use crate::config::NameBlock;
use crate::dns::Names;
use crate::gate::Gate;
use crate::record::{Event, Recorder};

const SET_ASIDE: (u64, u64) = (5000, 900);

fn calls() -> Vec<(Action, Value)> {
    let schema = json!({"type": "object", "properties": {"path": {"type": "string"}}});
    vec![
        (
            Action::Chat,
            json!({"model": "m", "stream": true, "stream_options": {"include_usage": false}, "max_tokens": 50,
            "max_completion_tokens": 60, "n": 2, "service_tier": "auto", "modalities": ["text"],
            "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "image_url",
                "image_url": {"url": "https://x/y.png"}}]}],
            "tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}]}),
        ),
        (
            Action::Completions,
            json!({"model": "m", "prompt": ["a", "b"], "best_of": 2, "n": 1, "max_tokens": 9, "n_predict": 5}),
        ),
        (
            Action::Responses,
            json!({"model": "m", "stream": true, "max_output_tokens": 70, "previous_response_id": "r",
            "input": [{"type": "additional_tools", "tools": [{"type": "function", "name": "f"}]}, {"role": "user", "content": "x"}],
            "tools": [{"type": "namespace", "name": "n", "tools": [{"type": "custom", "name": "c"}]}]}),
        ),
        (
            Action::Embeddings,
            json!({"model": "m", "input": ["a", "b"]}),
        ),
        (
            Action::Messages,
            json!({"model": "m", "stream": true, "max_tokens": 80, "system": [{"type": "text", "text": "s"}],
            "messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}]}],
            "tools": [{"name": "f", "input_schema": schema}, {"type": "bash_20250124", "name": "bash"}]}),
        ),
        (
            Action::Gemini,
            json!({"contents": [{"role": "user", "parts": [{"text": "x"}, {"inlineData": {"mimeType": "image/png",
            "data": "AAAA"}}]}], "generationConfig": {"maxOutputTokens": 30, "candidateCount": 1},
            "tools": [{"functionDeclarations": [{"name": "f"}]}]}),
        ),
        (
            Action::GeminiStream,
            json!({"contents": [], "generation_config": {"max_output_tokens": 30}}),
        ),
    ]
}

fn streams() -> Vec<(LlmApi, Vec<Value>)> {
    vec![
        (
            LlmApi::OpenAi,
            vec![
                json!({"choices": [{"delta": {"content": "hello"}}], "usage": null}),
                json!({"choices": [{"delta": {}, "finish_reason": "stop"}]}),
                json!({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 40,
                "completion_tokens_details": {"reasoning_tokens": 27}, "prompt_tokens_details": {"cached_tokens": 3}}}),
                json!("[DONE]"),
            ],
        ),
        (
            LlmApi::OpenAi,
            vec![
                json!({"type": "response.output_text.delta", "delta": "hello"}),
                json!({"type": "response.completed", "response": {"service_tier": "default", "usage": {"input_tokens": 25,
                "output_tokens": 3, "total_tokens": 28}}}),
            ],
        ),
        (
            LlmApi::Anthropic,
            vec![
                json!({"type": "message_start", "message": {"usage": {"input_tokens": 5, "output_tokens": 1,
                "cache_creation": {"ephemeral_1h_input_tokens": 2}, "cache_creation_input_tokens": 8}}}),
                json!({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "hello"}}),
                json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}}),
                json!({"type": "message_stop"}),
            ],
        ),
        (
            LlmApi::Gemini,
            vec![
                json!({"candidates": [{"content": {"parts": [{"text": "he"}]}}], "usageMetadata": {"promptTokenCount": 25}}),
                json!({"candidates": [{"finishReason": "STOP"}], "usageMetadata": {"promptTokenCount": 25,
                "candidatesTokenCount": 2, "thoughtsTokenCount": 1, "totalTokenCount": 28}}),
            ],
        ),
    ]
}

/// Any small value, with those that are read as something else by others.
fn any_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        Just(json!(u64::MAX)),
        "[a-zé\\[\\]{}\",:\\\\]{0,8}".prop_map(Value::from),
        Just(json!([])),
        Just(json!({})),
        Just(json!([[{"type": 5}], "x"])),
        Just(json!({"type": "web_search", "tools": {}, "include_usage": []})),
    ]
}

/// Which place to change, and to what; nothing takes it out.
type Change = (prop::sample::Index, Option<Value>, String);

fn any_changes() -> impl Strategy<Value = Vec<Change>> {
    let change = (
        any::<prop::sample::Index>(),
        prop::option::weighted(0.8, any_value()),
        "[a-z_]{1,12}",
    );
    prop::collection::vec(change, 1..4)
}

fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(list) => list.iter().map(count).sum(),
        Value::Object(fields) => fields.values().map(count).sum(),
        _ => 0,
    }
}

/// Changes the value at a place, counted in depth.
fn change(value: &mut Value, at: &mut usize, to: &Option<Value>, key: &str) {
    if *at == 0 {
        match (to, &mut *value) {
            (Some(to), Value::Object(fields)) if key.len() > 9 => {
                fields.insert(key.to_owned(), to.clone());
            }
            (to, value) => *value = to.clone().unwrap_or(Value::Null),
        }
        *at = usize::MAX;
        return;
    }
    *at -= 1;
    let inner: Vec<&mut Value> = match value {
        Value::Array(list) => list.iter_mut().collect(),
        Value::Object(fields) => fields.values_mut().collect(),
        _ => Vec::new(),
    };
    for value in inner {
        if *at == usize::MAX {
            return;
        }
        change(value, at, to, key);
    }
}

fn changed(mut value: Value, changes: &[Change]) -> Value {
    for (place, to, key) in changes {
        let mut at = place.index(count(&value));
        change(&mut value, &mut at, to, key);
    }
    value
}

#[derive(Default)]
struct Kept(Mutex<Vec<Charge>>);

impl Recorder for Kept {
    fn record(&self, event: Event) {
        if let Event::Charged(charge) = event {
            self.0.lock().unwrap().push(charge);
        }
    }
}

/// What is charged for an answer that comes in these pieces.
fn charged(api: LlmApi, kind: &'static str, pieces: &[&[u8]], is_whole: bool) -> Charge {
    charged_or_cut(api, kind, pieces, is_whole).0
}

/// The same, and whether it was cut off because it went beyond what was set aside.
fn charged_or_cut(
    api: LlmApi,
    kind: &'static str,
    pieces: &[&[u8]],
    is_whole: bool,
) -> (Charge, bool) {
    let kept = Arc::new(Kept::default());
    let names = Names::new(NameBlock::around([10, 0, 0, 0].into()), 1);
    let recorder: Arc<dyn Recorder> = Arc::clone(&kept) as _;
    let gate = Arc::new(Gate::new(CompiledRules::new(Vec::new()), names, recorder));
    let budget = LlmBudget::new(Some(u64::MAX / 4), None);
    let (input, output) = SET_ASIDE;
    let wish = Wish {
        input,
        output,
        answers: 1,
        rates: None,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let bill = Bill {
        reservation: runtime.block_on(budget.reserve(wish)).unwrap(),
        api,
        provider: "own".to_owned(),
        model: "m".to_owned(),
        price: None,
        hides_usage: true,
        is_limited: true,
        gate,
        reading_on: Arc::new(Semaphore::new(1)),
    };
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    let mut observer = Observer::new(bill, StatusCode::OK, &headers);
    let is_cut = pieces
        .iter()
        .any(|piece| observer.see(Bytes::copy_from_slice(piece)).is_err());
    if is_whole && !is_cut {
        observer.finish();
    }
    drop(observer);
    let charges = kept.0.lock().unwrap();
    assert_eq!(charges.len(), 1);
    (charges[0].clone(), is_cut)
}

fn written(events: &[Value]) -> Vec<u8> {
    let line = |event: &Value| match event {
        Value::String(bare) => format!("data: {bare}\n\n"),
        event => format!("data: {event}\n\n"),
    };
    events.iter().map(line).collect::<String>().into_bytes()
}

#[test]
fn fuzz_streams_cut_at_every_byte_cost_the_same_or_all() {
    for (api, events) in streams() {
        let bytes = written(&events);
        let whole = charged(api, "text/event-stream", &[&bytes], true);
        assert!(!whole.estimated, "{api:?} {whole:?}");
        for at in 0..bytes.len() {
            let (one, two) = bytes.split_at(at);
            assert_eq!(
                charged(api, "text/event-stream", &[one, two], true),
                whole,
                "{api:?} {at}"
            );
            // It ends there, with a word or without one: never cheaper than it was, unless it was all told.
            for is_whole in [true, false] {
                let cut = charged(api, "text/event-stream", &[one], is_whole);
                let is_all = !cut.estimated && cut.tokens == whole.tokens;
                let is_full = cut.estimated
                    && cut.tokens.prompt() >= SET_ASIDE.0
                    && cut.tokens.output >= SET_ASIDE.1;
                assert!(is_all || is_full, "{api:?} {at} {cut:?}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn fuzz_calls_are_read_and_limited_or_refused(
        which in any::<prop::sample::Index>(), changes in any_changes(), granted in 1_u64..200, own in any::<bool>(),
    ) {
        let calls = calls();
        let (action, call) = &calls[which.index(calls.len())];
        let call = changed(call.clone(), &changes);
        let read = Prompt::read(*action, Some("m"), call.to_string().as_bytes());
        if let Ok(prompt) = read {
            let sent = prompt.write(if own { "own" } else { "openai" }, granted, None);
            let sent: Map<String, Value> = serde_json::from_slice(&sent).expect("an object");
            let config = ["generationConfig", "generation_config"].iter().find_map(|key| sent.get(*key)?.as_object());
            let fields = match action {
                Action::Gemini | Action::GeminiStream => config.expect("a limit"),
                _ => &sent,
            };
            let limits = ["max_tokens", "max_completion_tokens", "max_output_tokens", "maxOutputTokens"];
            let limits: Vec<_> = limits.iter().filter_map(|key| fields.get(*key)).collect();
            prop_assert!(*action == Action::Embeddings || !limits.is_empty(), "{sent:?}");
            let own_limit = |limit: &&Value| limit.as_u64().is_some();
            prop_assert!(*action == Action::Embeddings || limits.iter().all(own_limit), "{sent:?}");
        }
    }

    #[test]
    fn fuzz_answers_are_charged_once_however_they_are_cut(
        which in any::<prop::sample::Index>(), changes in any_changes(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        noise in prop::collection::vec(any::<u8>(), 0..40), is_stream in any::<bool>(), is_whole in any::<bool>(),
    ) {
        let streams = streams();
        let (api, events) = &streams[which.index(streams.len())];
        let events = match changed(Value::Array(events.clone()), &changes) {
            Value::Array(events) => events,
            other => vec![other],
        };
        let (kind, mut bytes) = match is_stream {
            true => ("text/event-stream", written(&events)),
            false => ("application/json", Value::Array(events).to_string().into_bytes()),
        };
        let at = cuts.first().map_or(0, |cut| cut.index(bytes.len() + 1));
        bytes.splice(at..at, noise);
        let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        places.sort_unstable();
        let mut pieces = Vec::new();
        let mut from = 0;
        for place in places.into_iter().chain([bytes.len()]) {
            pieces.push(&bytes[from..place]);
            from = place;
        }
        let (cut, early) = charged_or_cut(*api, kind, &pieces, is_whole);
        let (whole, late) = charged_or_cut(*api, kind, &[&bytes], is_whole);
        if early || late {
            // Beyond the ceiling it ends with the piece in which that shows, and the ceiling at least is charged. What comes in one
            // piece is read to its end, where a server may have taken a number back.
            for (charge, is_cut) in [(&cut, early), (&whole, late)] {
                prop_assert!(!is_cut || charge.tokens.output >= SET_ASIDE.1, "{charge:?}");
            }
        } else {
            prop_assert_eq!(whole, cut);
        }
    }
}
