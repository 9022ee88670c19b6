//! Sessions of browsers: a token is shown once, and a cookie stands for it.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::body::Incoming;
use hyper::header::{self, HeaderValue};
use hyper::{Request, Response, StatusCode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::Site;
use super::admission::{Admitted, OpenSession};
use super::places::Place;
use super::reply::{self, Body, Refusal};
use crate::tokens::{Role, TokenId, TokenRecord, TokenText, now_ms};

/// Bytes that a login's body may have; a token has 46.
const MOST_BYTES: usize = 1024;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LoginRequest {
    /// The token.
    token: String,
}

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SessionView {
    /// What the token's owner calls it.
    pub name: String,
    /// What it lets its holder do.
    pub role: Role,
    /// Which token.
    pub token: TokenId,
    /// What a session's POSTs need in `X-Belljar-Csrf`; absent where a bearer asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub csrf: Option<String>,
    /// When the session or the token ends, whichever is first, in milliseconds since 1970; absent where neither does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_at_ms: Option<u64>,
}

impl SessionView {
    fn new(token: &TokenRecord, left: Option<Duration>, csrf: Option<String>) -> Self {
        let left = left.map(|left| {
            now_ms().saturating_add(u64::try_from(left.as_millis()).unwrap_or(u64::MAX))
        });
        Self {
            name: token.name.as_str().to_owned(),
            role: token.role,
            token: token.id.clone(),
            csrf,
            ends_at_ms: left.into_iter().chain(token.expires_ms).min(),
        }
    }
}

impl Site {
    pub(super) async fn begin_session(
        self: &Arc<Self>,
        from: IpAddr,
        place: &Place,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Refusal> {
        let (head, body) = request.into_parts();
        let body = self.read_body(&head.headers, body, MOST_BYTES).await?;
        let asked: LoginRequest = serde_json::from_slice(&body).map_err(|_| {
            // The body is not repeated: it may hold a secret with a slip in it.
            Refusal::new(
                StatusCode::BAD_REQUEST,
                "bad_request",
                "the body is not {\"token\": \"…\"}",
            )
        })?;
        let text = Zeroizing::new(asked.token);
        let now = Instant::now();
        if let Err(wait) = self.attempts.begin(from, now) {
            self.numbers.login_failed();
            return Err(Refusal::new(
                StatusCode::TOO_MANY_REQUESTS,
                "rate_limited",
                "too many logins have failed",
            )
            .retry_after(wait));
        }
        let token = TokenText::parse(&text).and_then(|text| self.tokens.find(&text));
        let Some(token) = token else {
            self.numbers.login_failed();
            return Err(Refusal::unknown());
        };
        self.attempts.succeeded(from);
        place.is_known_now();
        let begun = self.sessions.begin(token.id.clone(), now).map_err(|_| {
            Refusal::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "internal",
                "no session can be begun",
            )
        })?;
        let lifetime = self.sessions.lifetime();
        let view = SessionView::new(&token, Some(lifetime), Some(begun.csrf));
        let mut response = reply::json(StatusCode::OK, &view);
        self.set_cookie(&mut response, &begun.cookie, lifetime);
        Ok(response)
    }

    pub(super) fn read_session(&self, admitted: &Admitted) -> Response<Body> {
        let (left, csrf) = match admitted.session {
            Some(OpenSession { id, left }) => (Some(left), self.sessions.csrf(id)),
            None => (None, None),
        };
        reply::json(
            StatusCode::OK,
            &SessionView::new(&admitted.token, left, csrf),
        )
    }

    pub(super) fn end_session(&self, admitted: &Admitted) -> Result<Response<Body>, Refusal> {
        let Some(session) = admitted.session else {
            return Err(Refusal::new(
                StatusCode::CONFLICT,
                "no_session",
                "a token was shown, and there is no session to end",
            )
            .hint("`belljar token revoke ID` ends a token"));
        };
        self.sessions.end(session.id);
        let mut response = reply::json_bytes(StatusCode::OK, "{\"ok\":true}");
        self.set_cookie(&mut response, "", Duration::ZERO);
        Ok(response)
    }

    /// Out of reach of scripts, and not sent when another site asks.
    fn set_cookie(&self, response: &mut Response<Body>, value: &str, lifetime: Duration) {
        let secure = if self.is_tls { "; Secure" } else { "" };
        let line = format!(
            "{}={value}; Path=/v1; Max-Age={}; HttpOnly; SameSite=Strict{secure}",
            self.cookie,
            lifetime.as_secs()
        );
        if let Ok(line) = HeaderValue::from_str(&line) {
            response.headers_mut().insert(header::SET_COOKIE, line);
        }
    }
}
