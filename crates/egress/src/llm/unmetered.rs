//! What a provider would charge for without it being among the tokens of the call: tools of its own, fees, dearer service.

use serde_json::{Map, Value};

use super::endpoint::Action;
use super::json::{at, is_given};
use crate::record::printable;

/// What the tool of a client is called, by API. Everything else is run by the provider, or is new.
const OPENAI_CLIENT: [&str; 6] = [
    "function",
    "custom",
    "local_shell",
    "apply_patch",
    "computer_use_preview",
    "computer",
];
const ANTHROPIC_CLIENT: [&str; 5] = ["custom", "bash_", "text_editor_", "computer_", "memory_"];
const GEMINI_CLIENT: [&str; 4] = [
    "functionDeclarations",
    "function_declarations",
    "computerUse",
    "computer_use",
];

/// How deep tools lie in each other at most.
const DEEPEST: usize = 16;

/// What can't be metered about a call, in words that name it.
pub(super) fn unmetered(
    action: Action,
    model: &str,
    fields: &Map<String, Value>,
) -> Option<String> {
    fee(model)
        .or_else(|| feature(action, fields).map(str::to_owned))
        .or_else(|| provider_tool(action, fields))
}

/// Models that cost something by the call, or by what no token says.
fn fee(model: &str) -> Option<String> {
    let whole = model.to_ascii_lowercase();
    let name = whole.rsplit('/').next().unwrap_or_default();
    let begins = ["sonar", "pplx-", "compound", "groq-compound"];
    let holds = [
        "search-preview",
        "search-api",
        "deep-research",
        ":online",
        "-image",
        "-tts",
        "-audio",
        "-realtime",
        "-transcribe",
        "@preset",
    ];
    let is_dear = begins.iter().any(|front| name.starts_with(front))
        || holds.iter().any(|part| whole.contains(part));
    let shown = printable(model.as_bytes());
    is_dear.then(|| {
        format!("the model `{shown}`, which costs by the search, the sound or the picture too,")
    })
}

/// Fields that buy something beside tokens.
fn feature(action: Action, fields: &Map<String, Value>) -> Option<&'static str> {
    let given = |key: &str| {
        let value = at(fields, key);
        !value.is_null() && *value != false
    };
    // Those that cost what the table says, or less. Others are dearer, or new.
    let usual = [
        "auto",
        "default",
        "standard",
        "standard_only",
        "flex",
        "on_demand",
    ];
    let is_dear = |key: &str| {
        let tier = at(fields, key).as_str().map(str::to_ascii_lowercase);
        tier.is_some_and(|tier| !usual.contains(&tier.as_str()))
    };
    if is_dear("service_tier") || is_dear("serviceTier") {
        return Some("a dearer `service_tier`");
    }
    let features: &[(&str, &str)] = match action {
        Action::Chat | Action::Completions => &[
            ("web_search_options", "web search (`web_search_options`)"),
            ("search_parameters", "web search (`search_parameters`)"),
            ("plugins", "a tool of the provider's (`plugins`)"),
            ("models", "a choice of other models (`models`)"),
            ("preset", "a stored choice of model and tools (`preset`)"),
            ("deferred", "an answer that comes later (`deferred`)"),
            ("background", "a call in the background"),
            ("prediction", "a predicted answer (`prediction`)"),
        ],
        Action::Responses => &[
            ("background", "a call in the background"),
            (
                "prompt",
                "a stored prompt (`prompt`), which may hold tools,",
            ),
            ("search_parameters", "web search (`search_parameters`)"),
            ("plugins", "a tool of the provider's (`plugins`)"),
            ("models", "a choice of other models (`models`)"),
            ("preset", "a stored choice of model and tools (`preset`)"),
        ],
        Action::Messages => &[
            (
                "mcp_servers",
                "a tool of the provider's (`mcp_servers`, its MCP connector)",
            ),
            ("container", "a tool of the provider's (`container`)"),
            ("speed", "a dearer way to be served (`speed`)"),
            (
                "inference_geo",
                "a dearer way to be served (`inference_geo`)",
            ),
            ("fallbacks", "a choice of other models (`fallbacks`)"),
        ],
        Action::Gemini | Action::GeminiStream => &[
            (
                "cachedContent",
                "stored content (`cachedContent`), which may hold tools,",
            ),
            (
                "cached_content",
                "stored content (`cached_content`), which may hold tools,",
            ),
        ],
        Action::Embeddings => &[],
    };
    features
        .iter()
        .find(|(key, _)| given(key))
        .map(|(_, what)| *what)
}

/// A tool that the provider runs, wherever in the call it is.
fn provider_tool(action: Action, fields: &Map<String, Value>) -> Option<String> {
    let found = fields.iter().find_map(|(key, value)| match key.as_str() {
        key if key.eq_ignore_ascii_case("tools") => list_of_tools(action, value, 0),
        // Descriptions of answers: a schema may have a field of that name.
        "response_format" | "text" | "metadata" | "functions" => None,
        _ => hidden_tool(action, value, 0),
    })?;
    Some(format!(
        "the tool `{}`, which the provider runs,",
        printable(found.as_bytes())
    ))
}

/// Some calls bring tools along in what was said.
fn hidden_tool(action: Action, value: &Value, depth: usize) -> Option<String> {
    // Deeper than anything is that a provider reads; the reader of JSON stops a little further on.
    if depth > 8 * DEEPEST {
        return None;
    }
    match value {
        Value::Array(list) => list
            .iter()
            .find_map(|item| hidden_tool(action, item, depth.saturating_add(1))),
        Value::Object(fields) => {
            let used = action == Action::Messages && at(fields, "type") == "tool_use";
            fields.iter().find_map(|(key, value)| match key.as_str() {
                key if key.eq_ignore_ascii_case("tools") => list_of_tools(action, value, 0),
                // What a tool was called with, or says it takes.
                "input" if used => None,
                "functionCall" | "function_call" | "functionResponse" | "function_response" => None,
                _ => hidden_tool(action, value, depth.saturating_add(1)),
            })
        }
        _ => None,
    }
}

fn list_of_tools(action: Action, tools: &Value, depth: usize) -> Option<String> {
    let list = tools.as_array()?;
    list.iter().find_map(|tool| match tool {
        Value::Object(tool) => one_tool(action, tool, depth),
        Value::Array(_) if depth > DEEPEST => Some("nested too deep".to_owned()),
        Value::Array(_) => list_of_tools(action, tool, depth.saturating_add(1)),
        _ => None,
    })
}

/// The name of a tool that is not the client's.
fn one_tool(action: Action, tool: &Map<String, Value>, depth: usize) -> Option<String> {
    if depth > DEEPEST {
        return Some("nested too deep".to_owned());
    }
    if matches!(action, Action::Gemini | Action::GeminiStream) {
        let own = |key: &&String| !GEMINI_CLIENT.contains(&key.as_str());
        return tool.keys().find(own).cloned();
    }
    let kind = match at(tool, "type") {
        // A client's own has a name; what has none is called by what it is.
        Value::Null if ["name", "function"].iter().any(|key| is_given(tool, key)) => return None,
        Value::Null => {
            let key = tool
                .keys()
                .next()
                .map_or("of no known type", String::as_str);
            return Some(key.to_owned());
        }
        Value::String(kind) => kind.as_str(),
        _ => return Some("of no known type".to_owned()),
    };
    let is_client = match action {
        Action::Messages => ANTHROPIC_CLIENT
            .iter()
            .any(|own| kind == *own || (own.ends_with('_') && kind.starts_with(own))),
        _ => match kind {
            // A group of tools: what counts is what it holds.
            "namespace" => {
                return list_of_tools(action, at(tool, "tools"), depth.saturating_add(1));
            }
            "tool_search" => at(tool, "execution") == "client",
            "shell" => at(at(tool, "environment"), "type") == "local",
            kind => OPENAI_CLIENT.contains(&kind),
        },
    };
    (!is_client).then(|| kind.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::llm::prompt::Prompt;

    fn found(action: Action, model: &str, body: &Value) -> Option<String> {
        Prompt::read(action, Some(model), body.to_string().as_bytes())
            .unwrap()
            .unmetered
    }

    #[test]
    fn what_is_not_reported_is_noticed() {
        let check = |action, body: Value, expect: Option<&str>| {
            let found = found(action, "m", &body);
            match expect {
                None => assert_eq!(found, None, "{body}"),
                Some(word) => assert!(
                    found.as_ref().is_some_and(|found| found.contains(word)),
                    "{body}: {found:?}"
                ),
            }
        };
        let cases = [
            (Action::Chat, json!({"messages": []}), None),
            (Action::Chat, json!({"service_tier": "auto"}), None),
            (Action::Chat, json!({"service_tier": "flex"}), None),
            (
                Action::Chat,
                json!({"service_tier": "priority"}),
                Some("service_tier"),
            ),
            (
                Action::Gemini,
                json!({"serviceTier": "PRIORITY"}),
                Some("service_tier"),
            ),
            (
                Action::Chat,
                json!({"web_search_options": {}}),
                Some("web_search_options"),
            ),
            (
                Action::Chat,
                json!({"search_parameters": {"mode": "on"}}),
                Some("web search"),
            ),
            (Action::Chat, json!({"models": ["a", "b"]}), Some("models")),
            (
                Action::Chat,
                json!({"tools": [{"type": "browser_search"}]}),
                Some("browser_search"),
            ),
            (Action::Chat, json!({"tools": [{"type": 5}]}), Some("tool")),
            (Action::Chat, json!({"modalities": ["text"]}), None),
            (
                Action::Chat,
                json!({"modalities": ["text", "audio"]}),
                Some("sound"),
            ),
            (Action::Responses, json!({"background": false}), None),
            (
                Action::Responses,
                json!({"background": true}),
                Some("background"),
            ),
            (
                Action::Responses,
                json!({"prompt": {"id": "p"}}),
                Some("stored prompt"),
            ),
            (
                Action::Responses,
                json!({"tools": [{"type": "function"}]}),
                None,
            ),
            (
                Action::Responses,
                json!({"tools": [{"type": "web_search"}]}),
                Some("web_search"),
            ),
            (
                Action::Responses,
                json!({"tools": [{"type": "mcp", "server_url": "https://x"}]}),
                Some("mcp"),
            ),
            (
                Action::Responses,
                json!({"tools": [{"type": "shell", "environment": {"type": "local"}}]}),
                None,
            ),
            (
                Action::Responses,
                json!({"tools": [{"type": "shell", "environment": {"type": "container_auto"}}]}),
                Some("shell"),
            ),
            (
                Action::Responses,
                json!({"tools": [{"type": "tool_search", "execution": "client"}]}),
                None,
            ),
            (
                Action::Responses,
                json!({"tools": [{"type": "namespace", "tools": [{"type": "function"}, {"type": "custom"}]}]}),
                None,
            ),
            (
                Action::Responses,
                json!({"tools": [{"type": "namespace", "tools": [{"type": "namespace", "tools": [{"type": "web_search"}]}]}]}),
                Some("web_search"),
            ),
            (
                Action::Responses,
                json!({"input": [{"type": "additional_tools", "tools": [{"type": "web_search"}]}]}),
                Some("web_search"),
            ),
            (
                Action::Responses,
                json!({"input": [{"type": "additional_tools", "tools": [{"type": "function"}]}]}),
                None,
            ),
            (
                Action::Responses,
                json!({"input": [{"x": [{"y": {"tools": [{"type": "code_interpreter"}]}}]}]}),
                Some("code_interpreter"),
            ),
            (
                Action::Responses,
                json!({"input": [{"type": "tool_use", "input": [{"tools": [{"type": "web_search"}]}]}]}),
                Some("web_search"),
            ),
            (
                Action::Responses,
                json!({"input": [{"type": "additional_tools", "tools": [[[{"type": "web_search"}]]]}]}),
                Some("web_search"),
            ),
            (
                Action::Chat,
                json!({"extra_body": {"google": {"tools": [{"google_search": {}}]}}}),
                Some("google_search"),
            ),
            (
                Action::Chat,
                json!({"Tools": [{"type": "web_search"}]}),
                Some("web_search"),
            ),
            (
                Action::Chat,
                json!({"tools": [{"function": {"name": "a"}}]}),
                None,
            ),
            (Action::Chat, json!({"preset": "p"}), Some("preset")),
            (
                Action::Responses,
                json!({"input": [{"type": "mcp_list_tools", "tools": [{"name": "a", "input_schema": {}}]}]}),
                None,
            ),
            (
                Action::Messages,
                json!({"tools": [{"name": "x"}, {"type": "bash_20250124"}]}),
                None,
            ),
            (
                Action::Messages,
                json!({"tools": [{"type": "web_search_20250305"}]}),
                Some("web_search_20250305"),
            ),
            (
                Action::Messages,
                json!({"tools": [{"type": "something_new"}]}),
                Some("something_new"),
            ),
            (
                Action::Messages,
                json!({"mcp_servers": [{}]}),
                Some("mcp_servers"),
            ),
            (
                Action::Messages,
                json!({"container": "c"}),
                Some("container"),
            ),
            (
                Action::Gemini,
                json!({"tools": [{"functionDeclarations": []}]}),
                None,
            ),
            (
                Action::Gemini,
                json!({"tools": [{"functionDeclarations": [], "googleSearch": {}}]}),
                Some("googleSearch"),
            ),
            (
                Action::Gemini,
                json!({"tools": [{"code_execution": {}}]}),
                Some("code_execution"),
            ),
            (
                Action::Gemini,
                json!({"cachedContent": "c"}),
                Some("cachedContent"),
            ),
            (
                Action::Gemini,
                json!({"generationConfig": {"responseModalities": ["IMAGE"]}}),
                Some("pictures"),
            ),
        ];
        for (action, body, expect) in cases {
            check(action, body, expect);
        }
    }

    #[test]
    fn what_a_clients_own_tool_says_and_takes_is_text() {
        let tool = json!({"name": "play", "input_schema": {"properties": {"audio": {"type": "string"}, "tools": {"type": "array"}}}});
        let used = json!({"role": "assistant", "content": [{"type": "tool_use", "input": {"audio": "a.mp3", "tools": [{"type": "web_search"}]}}]});
        let body = json!({"tools": [tool], "messages": [used]});
        assert_eq!(found(Action::Messages, "m", &body), None);
    }

    #[test]
    fn models_that_cost_by_the_call_are_known() {
        for (model, expect) in [
            ("gpt-4o-search-preview-2025-03-11", true),
            ("sonar", true),
            ("perplexity/Sonar-Pro", true),
            ("o3-deep-research", true),
            ("groq/compound-mini", true),
            ("openai/gpt-5:online", true),
            ("gemini-2.5-flash-image", true),
            ("gpt-audio", true),
            ("@preset/searching", true),
            ("gpt-5-codex", false),
            ("claude-opus-4-6", false),
            ("gemini-2.5-pro", false),
        ] {
            let found = found(Action::Chat, model, &json!({}));
            assert_eq!(found.is_some(), expect, "{model}");
        }
    }
}
