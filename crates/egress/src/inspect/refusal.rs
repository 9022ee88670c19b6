//! What a client in the box is told when its request is refused.

use hyper::header::{CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use serde_json::json;

use super::body::{Passing, whole};
use crate::gate::Refused;
use crate::record::RefusalCode;

/// Says which refusal it was, to programs.
const REFUSED: HeaderName = HeaderName::from_static("x-belljar-refused");

/// The answer to a refused request.
pub(super) fn answer(Refused(code): Refused) -> Response<Passing> {
    let status = match code {
        RefusalCode::Rate => StatusCode::TOO_MANY_REQUESTS,
        RefusalCode::Unresolved | RefusalCode::Unreachable => StatusCode::BAD_GATEWAY,
        RefusalCode::Connections => StatusCode::SERVICE_UNAVAILABLE,
        RefusalCode::Malformed => StatusCode::BAD_REQUEST,
        RefusalCode::Encoded => StatusCode::BAD_GATEWAY,
        RefusalCode::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        // Clients that get this answer go on over HTTPS.
        RefusalCode::WebSocket => StatusCode::UPGRADE_REQUIRED,
        RefusalCode::NameMismatch => StatusCode::MISDIRECTED_REQUEST,
        _ => StatusCode::FORBIDDEN,
    };
    let body = json!({"error": {
        "type": "belljar_refused",
        "code": code.code(),
        "message": format!("Belljar refused this request ({}). The run's report names the rule.", code.code()),
    }});
    with_body(status, code, body.to_string())
}

/// The answer to a refused request after which nothing is read any more.
pub(super) fn last_answer(refused: Refused) -> Response<Passing> {
    let mut response = answer(refused);
    let close = HeaderValue::from_static("close");
    response.headers_mut().insert(CONNECTION, close);
    response
}

/// An answer with a body of one's own.
pub(super) fn with_body(status: StatusCode, code: RefusalCode, body: String) -> Response<Passing> {
    let mut response = Response::new(whole(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(REFUSED, HeaderValue::from_static(code.code()));
    response
}
