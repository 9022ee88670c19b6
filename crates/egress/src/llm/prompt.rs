//! What a call asks a model for, and the most it could cost.

use serde_json::{Map, Value, json};

use super::endpoint::Action;
use super::prices::Price;

/// Providers turn tools and roles into text of their own.
const OVERHEAD: u64 = 2048;
/// More than any provider counts for one picture.
const PER_PICTURE: u64 = 65_536;
/// The longest prompt of a model that says nothing about it.
const LONGEST_INPUT: u64 = 2_000_000;
/// The longest answer of a model that says nothing about it.
const LONGEST_OUTPUT: u64 = 131_072;
const MOST_ANSWERS: u64 = 128;

/// A call that was read.
#[derive(Debug)]
pub(crate) struct Prompt {
    body: Value,
    action: Action,
    pub(crate) model: String,
    /// Whether the answer comes in pieces.
    pub(crate) streams: bool,
    /// Whether the piece that tells the usage was not asked for, and is to be taken out again.
    pub(crate) hide_usage: bool,
    /// Tokens the prompt can't exceed.
    pub(crate) input: u64,
    /// Tokens an answer is to have at most, as asked.
    asked: Option<u64>,
    /// How many answers.
    pub(crate) answers: u64,
    /// What would be charged for but not reported.
    pub(crate) unmetered: Option<&'static str>,
}

impl Prompt {
    /// Reads a call. `None` when it is not one.
    pub(crate) fn read(action: Action, model: Option<&str>, bytes: &[u8]) -> Option<Self> {
        let body: Value = serde_json::from_slice(bytes).ok()?;
        let fields = body.as_object()?;
        let model = match model {
            Some(model) => model.to_owned(),
            None => fields.get("model")?.as_str()?.to_owned(),
        };
        let streams = match action {
            Action::GeminiStream => true,
            Action::Gemini | Action::Embeddings => false,
            _ => fields
                .get("stream")
                .and_then(Value::as_bool)
                .unwrap_or(false),
        };
        let told = fields
            .get("stream_options")
            .is_some_and(|options| options["include_usage"] == true);
        let mut found = Found::default();
        found.look(&body);
        let plain = (bytes.len() as u64)
            .saturating_add(OVERHEAD)
            .saturating_add(found.pictures * PER_PICTURE);
        Some(Self {
            unmetered: unmetered(action, fields).or(found.audio.then_some("audio")),
            input: if found.elsewhere { u64::MAX } else { plain },
            asked: asked(action, fields),
            answers: answers(action, fields),
            hide_usage: streams && matches!(action, Action::Chat | Action::Completions) && !told,
            streams,
            model,
            action,
            body,
        })
    }

    /// Tokens the prompt can't exceed, for a model with this price.
    pub(crate) fn most_input(&self, price: Option<&Price>) -> u64 {
        let window = price.and_then(|price| price.most_input);
        self.input.min(window.unwrap_or(LONGEST_INPUT))
    }

    /// Tokens each answer can have when nobody cuts it.
    pub(crate) fn wanted_output(&self, price: Option<&Price>) -> u64 {
        if self.action == Action::Embeddings {
            return 0;
        }
        let most = price.and_then(|price| price.most_output);
        match (self.asked, most) {
            (Some(asked), _) => asked,
            (None, most) => most.unwrap_or(LONGEST_OUTPUT),
        }
    }

    /// The call to send, with answers of at most `granted` tokens where that is less than wanted.
    pub(crate) fn write(mut self, provider: &str, granted: u64, price: Option<&Price>) -> Vec<u8> {
        let known = price.is_some_and(|price| price.most_output.is_some());
        let cut = granted < self.wanted_output(price);
        if self.action != Action::Embeddings
            && (cut || (self.asked.is_none() && !known && granted < LONGEST_OUTPUT))
        {
            self.limit(provider, granted);
        }
        if self.streams && matches!(self.action, Action::Chat | Action::Completions) {
            self.body["stream_options"]["include_usage"] = json!(true);
        }
        self.body.to_string().into_bytes()
    }

    fn limit(&mut self, provider: &str, granted: u64) {
        let granted = json!(granted);
        match self.action {
            Action::Chat => {
                let given = |body: &Value, key: &str| !body[key].is_null();
                let old = given(&self.body, "max_tokens");
                let new = given(&self.body, "max_completion_tokens");
                // Newer models of OpenAI refuse the old word; others may not know the new one.
                if new || (!old && provider == "openai") {
                    self.body["max_completion_tokens"] = granted.clone();
                }
                if old || (!new && provider != "openai") {
                    self.body["max_tokens"] = granted;
                }
            }
            Action::Completions | Action::Messages => self.body["max_tokens"] = granted,
            Action::Responses => self.body["max_output_tokens"] = granted,
            Action::Gemini | Action::GeminiStream => {
                let snake = self.body["generation_config"].is_object();
                let key = if snake {
                    "generation_config"
                } else {
                    "generationConfig"
                };
                let word = if self.body[key]["max_output_tokens"].is_null() {
                    "maxOutputTokens"
                } else {
                    "max_output_tokens"
                };
                self.body[key][word] = granted;
            }
            Action::Embeddings => {}
        }
    }
}

fn asked(action: Action, fields: &Map<String, Value>) -> Option<u64> {
    let number = |key: &str| fields.get(key).and_then(Value::as_u64);
    match action {
        Action::Chat => match (number("max_tokens"), number("max_completion_tokens")) {
            (Some(a), Some(b)) => Some(a.max(b)),
            (one, other) => one.or(other),
        },
        Action::Completions | Action::Messages => number("max_tokens"),
        Action::Responses => number("max_output_tokens"),
        Action::Gemini | Action::GeminiStream => {
            let config = generation_config(fields)?;
            let number = |key: &str| config.get(key).and_then(Value::as_u64);
            number("maxOutputTokens").or(number("max_output_tokens"))
        }
        Action::Embeddings => None,
    }
}

fn generation_config(fields: &Map<String, Value>) -> Option<&Map<String, Value>> {
    fields
        .get("generationConfig")
        .or_else(|| fields.get("generation_config"))?
        .as_object()
}

fn answers(action: Action, fields: &Map<String, Value>) -> u64 {
    let number = |key: &str| fields.get(key).and_then(Value::as_u64).unwrap_or(1);
    let count = match action {
        Action::Chat => number("n"),
        Action::Completions => {
            let prompts = fields
                .get("prompt")
                .and_then(Value::as_array)
                .map_or(1, |list| {
                    // A list of numbers is one prompt, given as tokens.
                    if list.iter().all(Value::is_number) {
                        1
                    } else {
                        list.len() as u64
                    }
                });
            number("n").max(number("best_of")).saturating_mul(prompts)
        }
        Action::Gemini | Action::GeminiStream => {
            let config = generation_config(fields);
            let count = |key: &str| {
                config
                    .and_then(|config| config.get(key))
                    .and_then(Value::as_u64)
            };
            count("candidateCount")
                .or(count("candidate_count"))
                .unwrap_or(1)
        }
        Action::Responses | Action::Messages | Action::Embeddings => 1,
    };
    // More than that no provider gives; a number from outside must not overflow what is counted with it.
    count.clamp(1, MOST_ANSWERS * 64)
}

/// What a provider would charge for without it being in the usage of the call.
fn unmetered(action: Action, fields: &Map<String, Value>) -> Option<&'static str> {
    let given = |key: &str| {
        fields
            .get(key)
            .is_some_and(|value| !value.is_null() && *value != false)
    };
    let kinds = || {
        let tools = fields.get("tools").and_then(Value::as_array);
        tools
            .into_iter()
            .flatten()
            .map(|tool| tool["type"].as_str().unwrap_or("custom"))
    };
    let tier = fields.get("service_tier").and_then(Value::as_str);
    if matches!(tier, Some("priority" | "fast")) {
        return Some("a dearer service tier");
    }
    match action {
        Action::Chat if given("web_search_options") => Some("web search"),
        Action::Responses if given("background") => Some("a call in the background"),
        Action::Responses if kinds().any(|kind| !matches!(kind, "function" | "custom")) => {
            Some("a tool of the provider's")
        }
        Action::Messages if given("mcp_servers") || given("container") => {
            Some("a tool of the provider's")
        }
        Action::Messages if given("speed") || given("inference_geo") => {
            Some("a dearer way to be served")
        }
        Action::Messages => {
            let theirs = [
                "web_search",
                "web_fetch",
                "code_execution",
                "tool_search",
                "mcp_toolset",
                "advisor",
            ];
            let any = kinds().any(|kind| theirs.iter().any(|front| kind.starts_with(front)));
            any.then_some("a tool of the provider's")
        }
        Action::Gemini | Action::GeminiStream => {
            let tools = fields.get("tools").and_then(Value::as_array);
            let own = |key: &String| {
                matches!(
                    key.as_str(),
                    "functionDeclarations" | "function_declarations"
                )
            };
            let foreign = tools
                .into_iter()
                .flatten()
                .filter_map(Value::as_object)
                .any(|tool| !tool.keys().all(own));
            foreign.then_some("a tool of the provider's")
        }
        _ => None,
    }
}

/// What a prompt holds beside its text.
#[derive(Default)]
struct Found {
    pictures: u64,
    audio: bool,
    /// Something that is not in the call itself, so that its length says nothing.
    elsewhere: bool,
}

impl Found {
    fn look(&mut self, value: &Value) {
        match value {
            Value::Array(list) => list.iter().for_each(|item| self.look(item)),
            Value::Object(fields) => {
                for (key, value) in fields {
                    self.field(key, value);
                    self.look(value);
                }
            }
            _ => {}
        }
    }

    fn field(&mut self, key: &str, value: &Value) {
        let is_media = |kind: &str| {
            let mime = value["mimeType"]
                .as_str()
                .or_else(|| value["mime_type"].as_str());
            mime.is_some_and(|mime| mime.starts_with(kind))
        };
        match key {
            _ if value.is_null() => {}
            "previous_response_id"
            | "conversation"
            | "file_id"
            | "file_url"
            | "fileData"
            | "file_data"
            | "cachedContent"
            | "cached_content"
            | "input_file" => self.elsewhere = true,
            "prompt" if value.is_object() => self.elsewhere = true,
            "image_url" => self.pictures += 1,
            "input_audio" | "audio" => self.audio = true,
            "inlineData" | "inline_data" if is_media("image/") => self.pictures += 1,
            "inlineData" | "inline_data" if is_media("audio/") || is_media("video/") => {
                self.audio = true
            }
            "inlineData" | "inline_data" => self.elsewhere = true,
            "type" => match value.as_str() {
                Some("image" | "input_image") => self.pictures += 1,
                Some(
                    "document" | "file" | "input_file" | "item_reference" | "container_upload",
                ) => self.elsewhere = true,
                _ => {}
            },
            "modalities" | "responseModalities" | "response_modalities" => {
                let plain = |kind: &Value| {
                    kind.as_str()
                        .is_some_and(|kind| kind.eq_ignore_ascii_case("text"))
                };
                self.audio |= !value.as_array().is_some_and(|list| list.iter().all(plain));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(action: Action, body: Value) -> Prompt {
        Prompt::read(action, None, body.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn a_stream_is_asked_for_its_usage() {
        let prompt = read(Action::Chat, json!({"model": "m", "stream": true}));
        assert!(prompt.hide_usage);
        let sent: Value = serde_json::from_slice(&prompt.write("openai", 1 << 20, None)).unwrap();
        assert_eq!(sent["stream_options"]["include_usage"], true);
        let told = json!({"model": "m", "stream": true, "stream_options": {"include_usage": true}});
        assert!(!read(Action::Chat, told).hide_usage);
        assert!(!read(Action::Messages, json!({"model": "m", "stream": true})).hide_usage);
    }

    #[test]
    fn answers_are_limited_in_the_words_of_the_api() {
        let check = |action, provider, body: Value, path: &str, expect: Option<u64>| {
            let prompt = Prompt::read(action, Some("m"), body.to_string().as_bytes()).unwrap();
            let sent: Value = serde_json::from_slice(&prompt.write(provider, 7, None)).unwrap();
            assert_eq!(sent.pointer(path).and_then(Value::as_u64), expect, "{sent}");
        };
        check(
            Action::Chat,
            "openai",
            json!({}),
            "/max_completion_tokens",
            Some(7),
        );
        check(
            Action::Chat,
            "openai",
            json!({"max_tokens": 9}),
            "/max_tokens",
            Some(7),
        );
        check(
            Action::Chat,
            "openai",
            json!({"max_tokens": 9}),
            "/max_completion_tokens",
            None,
        );
        check(
            Action::Chat,
            "openai",
            json!({"max_tokens": 5}),
            "/max_tokens",
            Some(5),
        );
        check(Action::Chat, "local", json!({}), "/max_tokens", Some(7));
        check(
            Action::Chat,
            "local",
            json!({"max_tokens": 3, "max_completion_tokens": 90}),
            "/max_completion_tokens",
            Some(7),
        );
        check(
            Action::Responses,
            "openai",
            json!({"max_output_tokens": 90}),
            "/max_output_tokens",
            Some(7),
        );
        check(
            Action::Messages,
            "anthropic",
            json!({"max_tokens": 90}),
            "/max_tokens",
            Some(7),
        );
        check(
            Action::Gemini,
            "gemini",
            json!({}),
            "/generationConfig/maxOutputTokens",
            Some(7),
        );
        check(Action::Embeddings, "openai", json!({}), "/max_tokens", None);
    }

    #[test]
    fn what_is_not_reported_is_noticed() {
        let check = |action, body: Value, expect: bool| {
            let prompt = Prompt::read(action, Some("m"), body.to_string().as_bytes()).unwrap();
            assert_eq!(prompt.unmetered.is_some(), expect, "{body}");
        };
        check(Action::Chat, json!({"messages": []}), false);
        check(Action::Chat, json!({"service_tier": "auto"}), false);
        check(Action::Chat, json!({"service_tier": "priority"}), true);
        check(Action::Chat, json!({"web_search_options": {}}), true);
        check(Action::Chat, json!({"modalities": ["text"]}), false);
        check(Action::Chat, json!({"modalities": ["text", "audio"]}), true);
        check(Action::Responses, json!({"background": false}), false);
        check(Action::Responses, json!({"background": true}), true);
        check(
            Action::Responses,
            json!({"tools": [{"type": "function"}]}),
            false,
        );
        check(
            Action::Responses,
            json!({"tools": [{"type": "web_search"}]}),
            true,
        );
        check(
            Action::Messages,
            json!({"tools": [{"name": "x"}, {"type": "bash_20250124"}]}),
            false,
        );
        check(
            Action::Messages,
            json!({"tools": [{"type": "web_search_20250305"}]}),
            true,
        );
        check(
            Action::Gemini,
            json!({"tools": [{"functionDeclarations": []}]}),
            false,
        );
        check(
            Action::Gemini,
            json!({"tools": [{"googleSearch": {}}]}),
            true,
        );
    }

    #[test]
    fn a_prompt_is_bounded_by_its_bytes_or_by_the_window() {
        let plain = read(
            Action::Chat,
            json!({"model": "m", "messages": [{"content": "hi"}]}),
        );
        assert!(plain.most_input(None) < 3000);
        let picture = json!({"model": "m", "messages": [{"content": [{"type": "image_url",
            "image_url": {"url": "https://x/y.png"}}]}]});
        assert!(read(Action::Chat, picture).most_input(None) > PER_PICTURE);
        let stored = json!({"model": "m", "previous_response_id": "r"});
        assert_eq!(
            read(Action::Responses, stored).most_input(None),
            LONGEST_INPUT
        );
        assert_eq!(
            read(Action::Chat, json!({"model": "m", "n": u64::MAX})).answers,
            MOST_ANSWERS * 64
        );
        assert!(Prompt::read(Action::Chat, None, b"[]").is_none());
        assert!(Prompt::read(Action::Chat, None, b"{}").is_none());
        // The last of two is the one that is sent, and the one that is charged.
        let twice = Prompt::read(Action::Chat, None, br#"{"model": "a", "model": "b"}"#).unwrap();
        assert_eq!(twice.model, "b");
        assert_eq!(twice.write("openai", u64::MAX, None), br#"{"model":"b"}"#);
    }
}
