//! Which requests are calls to a model.

use belljar_policy::LlmApi;
use hyper::Method;

/// What a call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Chat,
    Completions,
    Responses,
    Embeddings,
    Messages,
    Gemini,
    GeminiStream,
}

/// What a request to an endpoint is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind<'a> {
    /// A call to a model; some name it in their path.
    Call(Action, Option<&'a str>),
    /// Something that costs nothing.
    Free,
    /// Something that may cost and does not say what.
    Unmetered,
}

/// What a request is. Paths are taken by their end, as compatible servers have prefixes of their own.
pub(crate) fn kind<'a>(api: LlmApi, method: &Method, path: &'a str) -> Kind<'a> {
    if matches!(
        *method,
        Method::GET | Method::HEAD | Method::OPTIONS | Method::DELETE
    ) {
        return Kind::Free;
    }
    // A path that servers read differently could be another endpoint to them.
    if *method != Method::POST || !belljar_policy::is_plain_path(path) {
        return Kind::Unmetered;
    }
    // What begins like a call and is answered later, or is made by an agent of the provider's.
    let later = ["async", "batch", "batches", "agents", "threads", "deferred"];
    if path.split('/').any(|part| later.contains(&part)) {
        return Kind::Unmetered;
    }
    let path = path.trim_end_matches('/');
    let ends = |end: &str| path.ends_with(end);
    match api {
        LlmApi::OpenAi if ends("/chat/completions") => Kind::Call(Action::Chat, None),
        LlmApi::OpenAi if ends("/completions") => Kind::Call(Action::Completions, None),
        LlmApi::OpenAi if ends("/responses") => Kind::Call(Action::Responses, None),
        LlmApi::OpenAi if ends("/embeddings") => Kind::Call(Action::Embeddings, None),
        LlmApi::Anthropic if ends("/v1/messages") => Kind::Call(Action::Messages, None),
        LlmApi::Anthropic if ends("/v1/messages/count_tokens") => Kind::Free,
        LlmApi::Gemini => match gemini_call(path) {
            Some((model, "generateContent")) => Kind::Call(Action::Gemini, Some(model)),
            Some((model, "streamGenerateContent")) => Kind::Call(Action::GeminiStream, Some(model)),
            Some((_, "countTokens")) => Kind::Free,
            _ => Kind::Unmetered,
        },
        _ => Kind::Unmetered,
    }
}

/// Whether a query has the answer cut down to some of its fields, and what was used left out with the others.
pub(crate) fn asks_for_parts(query: &str) -> bool {
    query.split(['&', ';']).any(|pair| {
        let name = pair.split('=').next().unwrap_or_default();
        let name = percent_decoded(name).to_ascii_lowercase();
        matches!(name.trim_start_matches('$'), "fields" | "fieldmask")
    })
}

fn percent_decoded(text: &str) -> String {
    let mut parts = text.split('%');
    let mut decoded = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let byte = part
            .get(..2)
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match byte {
            Some(byte) => {
                decoded.push(char::from(byte));
                decoded.push_str(part.get(2..).unwrap_or_default());
            }
            None => {
                decoded.push('%');
                decoded.push_str(part);
            }
        }
    }
    decoded
}

/// The model that a path of Gemini's names, and what is to be done with it. A tuned model has a name of its own choice, so it is
/// told apart from the others.
fn gemini_call(path: &str) -> Option<(&str, &str)> {
    let (whole, action) = path.rsplit_once(':')?;
    let (above, model) = whole.rsplit_once('/')?;
    match above.rsplit_once('/').map_or(above, |(_, kind)| kind) {
        "models" => Some((model, action)),
        // `kind/model`.
        kind => {
            let length = kind.len().saturating_add(model.len()).saturating_add(1);
            let from = whole.len().checked_sub(length)?;
            Some((whole.get(from..)?, action))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_for_parts_of_an_answer_is_known_however_it_is_written() {
        for (query, expect) in [
            ("alt=sse&fields=candidates", true),
            ("$fields=candidates", true),
            ("%24%66ields=candidates", true),
            ("alt=sse;Fields=usageMetadata(promptTokenCount)", true),
            ("$fieldMask=candidates", true),
            ("alt=sse&key=fields", false),
            ("x%zz=%", false),
            ("", false),
        ] {
            assert_eq!(asks_for_parts(query), expect, "{query}");
        }
    }

    #[test]
    fn calls_are_told_from_what_is_free_and_what_is_not_metered() {
        let check =
            |api, method, path, expect| assert_eq!(kind(api, &method, path), expect, "{path}");
        let post = || Method::POST;
        check(
            LlmApi::OpenAi,
            post(),
            "/v1/chat/completions",
            Kind::Call(Action::Chat, None),
        );
        check(
            LlmApi::OpenAi,
            post(),
            "/openai/v1/chat/completions/",
            Kind::Call(Action::Chat, None),
        );
        check(
            LlmApi::OpenAi,
            post(),
            "/v1/responses",
            Kind::Call(Action::Responses, None),
        );
        check(
            LlmApi::OpenAi,
            post(),
            "/v1/embeddings",
            Kind::Call(Action::Embeddings, None),
        );
        check(LlmApi::OpenAi, Method::GET, "/v1/models", Kind::Free);
        check(LlmApi::OpenAi, post(), "/v1/batches", Kind::Unmetered);
        for path in ["/async/chat/completions", "/v1/agents/completions"] {
            check(LlmApi::OpenAi, post(), path, Kind::Unmetered);
        }
        check(
            LlmApi::OpenAi,
            post(),
            "/v1/images/generations",
            Kind::Unmetered,
        );
        check(
            LlmApi::OpenAi,
            post(),
            "/v1/batches/%2e%2e/responses",
            Kind::Unmetered,
        );
        check(
            LlmApi::OpenAi,
            Method::PUT,
            "/v1/responses",
            Kind::Unmetered,
        );
        check(
            LlmApi::Anthropic,
            post(),
            "/v1/messages",
            Kind::Call(Action::Messages, None),
        );
        check(
            LlmApi::Anthropic,
            post(),
            "/v1/messages/count_tokens",
            Kind::Free,
        );
        check(
            LlmApi::Anthropic,
            post(),
            "/v1/messages/batches",
            Kind::Unmetered,
        );
        let stream = "/v1beta/models/gemini-2.5-pro:streamGenerateContent";
        check(
            LlmApi::Gemini,
            post(),
            stream,
            Kind::Call(Action::GeminiStream, Some("gemini-2.5-pro")),
        );
        check(
            LlmApi::Gemini,
            post(),
            "/v1beta/tunedModels/gemini-2.5-flash:generateContent",
            Kind::Call(Action::Gemini, Some("tunedModels/gemini-2.5-flash")),
        );
        check(
            LlmApi::Gemini,
            post(),
            "/v1beta/models/x:batchGenerateContent",
            Kind::Unmetered,
        );
    }
}
