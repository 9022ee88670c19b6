//! What a request says around its body, and whether the two agree.

use super::Hub;
use crate::message::Message;
use crate::versions::{STATELESS, VERSION_KEY, is_known};
use hyper::header::{ACCEPT, CONTENT_TYPE, HOST, HeaderMap, ORIGIN};
use serde_json::Value;

/// A header that does not say what the body says.
pub(super) const HEADER_MISMATCH: i64 = -32020;
/// A version that is not spoken here.
pub(super) const UNSUPPORTED_VERSION: i64 = -32022;

pub(super) fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Whether the caller knows whom it calls: a page in a browser that was led here by a name of its own does not.
pub(super) fn is_meant(hub: &Hub, headers: &HeaderMap) -> bool {
    let known = |host: &str| {
        ["localhost", "127.0.0.1", "[::1]"].contains(&host)
            || hub
                .setup
                .hosts
                .iter()
                .any(|known| known.eq_ignore_ascii_case(host))
    };
    let mut hosts = headers.get_all(HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else {
        return false;
    };
    if !host.to_str().is_ok_and(|host| known(without_port(host))) {
        return false;
    }
    headers.get_all(ORIGIN).iter().all(|origin| {
        let origin = origin.to_str().unwrap_or("-");
        let host = origin
            .strip_prefix("http://")
            .or_else(|| origin.strip_prefix("https://"));
        host.is_some_and(|host| known(without_port(host)))
    })
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

pub(super) fn says_json(headers: &HeaderMap) -> bool {
    let kind = text(headers, CONTENT_TYPE.as_str()).unwrap_or_default();
    kind.split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .eq_ignore_ascii_case("application/json")
}

/// Whether the caller takes this kind of answer.
pub(super) fn accepts(headers: &HeaderMap, kind: &str) -> bool {
    let mut all = headers.get_all(ACCEPT).iter().peekable();
    if all.peek().is_none() {
        return true;
    }
    let group = kind.split('/').next().unwrap_or_default();
    all.filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|part| part.split(';').next().unwrap_or_default().trim())
        .any(|part| part == "*/*" || part == kind || part.strip_suffix("/*") == Some(group))
}

/// What a question is about, as `Mcp-Name` says it.
pub(super) fn named(message: &Message) -> Option<&str> {
    let key = match message.method() {
        "tools/call" | "prompts/get" => "name",
        "resources/read" | "resources/subscribe" | "resources/unsubscribe" => "uri",
        "tasks/get" | "tasks/update" | "tasks/cancel" => "taskId",
        _ => return None,
    };
    message.param(key).and_then(Value::as_str)
}

/// Whether the request is of the version without sessions.
pub(super) fn is_stateless(headers: &HeaderMap, message: &Message) -> bool {
    text(headers, "mcp-protocol-version") == Some(STATELESS)
        || version_in(message) == Some(STATELESS)
}

fn version_in(message: &Message) -> Option<&str> {
    message.param("_meta")?.get(VERSION_KEY)?.as_str()
}

/// What of the headers contradicts the body: the code, and in words.
///
/// Whatever stands between reads the headers, and what carries it out reads the body; the body is what is judged.
pub(super) fn contradiction(headers: &HeaderMap, message: &Message) -> Option<(i64, String)> {
    for name in [
        "mcp-protocol-version",
        "mcp-method",
        "mcp-name",
        "mcp-session-id",
    ] {
        if headers.get_all(name).iter().count() > 1 {
            return Some((HEADER_MISMATCH, format!("the header {name} is there twice")));
        }
    }
    let version = headers.get("mcp-protocol-version");
    let said = text(headers, "mcp-protocol-version");
    if version.is_some() && !said.is_some_and(is_known) {
        let what = format!(
            "the protocol version {} is not spoken here",
            said.unwrap_or("?")
        );
        return Some((UNSUPPORTED_VERSION, what));
    }
    let mismatch = |name: &str| {
        Some((
            HEADER_MISMATCH,
            format!("the header {name} does not say what the body says"),
        ))
    };
    let stateless = is_stateless(headers, message);
    if stateless && (said != Some(STATELESS) || version_in(message) != Some(STATELESS)) {
        return mismatch("MCP-Protocol-Version");
    }
    let is_question = !message.method().is_empty();
    match headers.get("mcp-method") {
        Some(method) if method.as_bytes() != message.method().as_bytes() => {
            return mismatch("Mcp-Method");
        }
        None if stateless && is_question => return mismatch("Mcp-Method"),
        _ => {}
    }
    match headers.get("mcp-name") {
        Some(name) if Some(name.as_bytes()) != named(message).map(str::as_bytes) => {
            mismatch("Mcp-Name")
        }
        None if stateless && named(message).is_some() => mismatch("Mcp-Name"),
        _ => None,
    }
}
