//! What a call holds beside its text: pictures, sound, things that are elsewhere, and what is charged for but not reported.

use serde_json::{Map, Value};

use super::endpoint::Action;

/// What a provider would charge for without it being in the usage of the call.
pub(super) fn unmetered(action: Action, fields: &Map<String, Value>) -> Option<&'static str> {
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
    // Those that cost what the table says, or less. Others are dearer, or new.
    let usual = [
        "auto",
        "default",
        "standard",
        "standard_only",
        "flex",
        "on_demand",
    ];
    if tier.is_some_and(|tier| !usual.contains(&tier)) {
        return Some("a dearer service tier");
    }
    match action {
        Action::Chat if given("web_search_options") || given("search_parameters") => {
            Some("web search")
        }
        Action::Chat if given("plugins") => Some("a tool of the provider's"),
        Action::Chat if kinds().any(|kind| !matches!(kind, "function" | "custom")) => {
            Some("a tool of the provider's")
        }
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
pub(super) struct Found {
    pub(super) pictures: u64,
    pub(super) audio: bool,
    /// Something that is not in the call itself, so that its length says nothing.
    pub(super) elsewhere: bool,
}

impl Found {
    pub(super) fn look_at_call(&mut self, fields: &Map<String, Value>) {
        // Descriptions of tools and answers: text, whatever their fields are called.
        const TEXT: [&str; 4] = ["tools", "functions", "response_format", "metadata"];
        for (key, value) in fields {
            if !TEXT.contains(&key.as_str()) {
                self.field(key, value);
                self.look(value);
            }
        }
    }

    fn look(&mut self, value: &Value) {
        match value {
            Value::Array(list) => list.iter().for_each(|item| self.look(item)),
            Value::Object(fields) => {
                let used = fields.get("type").is_some_and(|kind| kind == "tool_use");
                for (key, value) in fields {
                    // What a tool was called with is text, too.
                    if used && key == "input" || key == "functionCall" || key == "function_call" {
                        continue;
                    }
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
    use serde_json::json;

    use super::*;
    use crate::llm::prompt::Prompt;

    #[test]
    fn what_is_not_reported_is_noticed() {
        let check = |action, body: Value, expect: bool| {
            let prompt = Prompt::read(action, Some("m"), body.to_string().as_bytes()).unwrap();
            assert_eq!(prompt.unmetered.is_some(), expect, "{body}");
        };
        check(Action::Chat, json!({"messages": []}), false);
        check(Action::Chat, json!({"service_tier": "auto"}), false);
        check(Action::Chat, json!({"service_tier": "priority"}), true);
        check(Action::Chat, json!({"service_tier": "ultra"}), true);
        check(Action::Chat, json!({"web_search_options": {}}), true);
        check(
            Action::Chat,
            json!({"search_parameters": {"mode": "on"}}),
            true,
        );
        check(
            Action::Chat,
            json!({"tools": [{"type": "browser_search"}]}),
            true,
        );
        // A tool may call its parameters what it likes.
        let tool =
            json!({"name": "play", "input_schema": {"properties": {"audio": {"type": "string"}}}});
        check(Action::Messages, json!({"tools": [tool]}), false);
        let used = json!({"role": "assistant", "content": [{"type": "tool_use", "input": {"audio": "a.mp3"}}]});
        check(Action::Messages, json!({"messages": [used]}), false);
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
}
