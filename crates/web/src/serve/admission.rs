//! Who asks, and whether they may. Everything here happens before a byte of a body is read.

use std::time::{Duration, Instant};

use belljar_api::Asker;
use hyper::header::{self, HeaderMap, HeaderName};
use hyper::{Method, StatusCode};

use super::Site;
use super::reply::Refusal;
use crate::backend::Caller;
use crate::sessions::SessionId;
use crate::tokens::{TokenRecord, TokenText};

/// The header that shows that a page of ours asks.
pub(super) const CSRF: HeaderName = HeaderName::from_static("x-belljar-csrf");
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Somebody with a token that is good.
#[derive(Clone, Debug)]
pub(super) struct Admitted {
    pub(super) caller: Caller,
    pub(super) token: TokenRecord,
    pub(super) session: Option<OpenSession>,
}

/// A session that lasts.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenSession {
    pub(super) id: SessionId,
    pub(super) left: Duration,
}

impl Admitted {
    fn new(token: TokenRecord, session: Option<OpenSession>) -> Self {
        Self {
            caller: Caller::of(&token),
            token,
            session,
        }
    }

    /// Whether the role is enough.
    pub(super) fn check_role(&self, asker: Asker) -> Result<(), Refusal> {
        if self.caller.role().may(asker) {
            return Ok(());
        }
        let needed = format!("{asker:?}").to_ascii_lowercase();
        let message = format!(
            "this needs the role {needed}, and yours is {}",
            self.caller.role()
        );
        Err(Refusal::new(StatusCode::FORBIDDEN, "deny_role", &message)
            .hint("`belljar token create --role …` makes a token with another role"))
    }
}

impl Site {
    /// The name that the request is under, if it is one of ours; and its page, if it says so, is one of ours too.
    pub(super) fn check_place(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let host = only(headers, &header::HOST)
            .ok()
            .flatten()
            .unwrap_or_default();
        if !self.names.is_ours(host) {
            return Err(Refusal::new(
                StatusCode::MISDIRECTED_REQUEST,
                "bad_host",
                "this server is not known by that name",
            )
            .hint("use localhost or 127.0.0.1 with the port, or add the name to the server's"));
        }
        match only(headers, &header::ORIGIN) {
            Ok(None) => Ok(()),
            Ok(Some(origin)) if self.names.is_origin(origin, host) => Ok(()),
            _ => Err(Refusal::new(
                StatusCode::FORBIDDEN,
                "bad_origin",
                "a page from elsewhere may not ask this server",
            )),
        }
    }

    /// Who asks. A bearer that is not good is not helped by a cookie that is.
    pub(super) fn admit(&self, headers: &HeaderMap, now: Instant) -> Result<Admitted, Refusal> {
        match only(headers, &header::AUTHORIZATION) {
            Err(Several) => Err(Refusal::unknown()),
            Ok(Some(given)) => {
                let token = bearer(given).and_then(TokenText::parse);
                let token = token.and_then(|text| self.tokens.find(&text));
                let token = token.ok_or_else(Refusal::unknown)?;
                Ok(Admitted::new(token, None))
            }
            Ok(None) => self.admit_session(headers, now),
        }
    }

    fn admit_session(&self, headers: &HeaderMap, now: Instant) -> Result<Admitted, Refusal> {
        let cookie = cookie(headers, &self.cookie).ok_or_else(Refusal::unknown)?;
        let (id, token, left) = self
            .sessions
            .find(cookie, now)
            .ok_or_else(Refusal::unknown)?;
        let Some(token) = self.tokens.good(&token) else {
            self.sessions.end(id);
            return Err(Refusal::unknown());
        };
        // To a browser other ports of this machine are the same site, so it sends them the cookie too. It says where a request is from.
        match only(headers, &FETCH_SITE) {
            Ok(None | Some("same-origin" | "none")) => {}
            _ => {
                return Err(Refusal::new(
                    StatusCode::FORBIDDEN,
                    "bad_origin",
                    "a page from elsewhere may not ask this server",
                ));
            }
        }
        Ok(Admitted::new(token, Some(OpenSession { id, left })))
    }

    /// That a page of ours asks for a change, where the browser alone vouches for it: a cookie is sent whoever makes the browser ask. A bearer is
    /// put there by whoever has it.
    pub(super) fn check_page(
        &self,
        admitted: &Admitted,
        method: &Method,
        headers: &HeaderMap,
    ) -> Result<(), Refusal> {
        let Some(session) = admitted.session else {
            return Ok(());
        };
        if method == Method::GET {
            return Ok(());
        }
        let given = only(headers, &CSRF).ok().flatten().unwrap_or_default();
        // That an origin is ours was checked before; here it must be there.
        if headers.contains_key(header::ORIGIN)
            && self.sessions.is_csrf(session.id, given.as_bytes())
        {
            return Ok(());
        }
        Err(Refusal::new(
            StatusCode::FORBIDDEN,
            "bad_csrf",
            "a session's changes need an Origin, and the session's own value in X-Belljar-Csrf",
        )
        .hint("GET /v1/session tells the value"))
    }

    /// Whether somebody who was admitted would be again.
    pub(super) fn is_still_good(&self, admitted: &Admitted, now: Instant) -> bool {
        let token = match admitted.session {
            Some(session) => self.sessions.token(session.id, now).map(|(token, _)| token),
            None => Some(admitted.token.id.clone()),
        };
        let token = token.and_then(|id| self.tokens.good(&id));
        token.is_some_and(|token| token.role.may(Asker::Viewer))
    }
}

/// A header that is there twice, or is not text.
struct Several;

/// A header that may be there once.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Several> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => value.to_str().map(Some).map_err(|_| Several),
        (Some(_), Some(_)) => Err(Several),
    }
}

fn bearer(given: &str) -> Option<&str> {
    let (scheme, token) = given.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// The value of a cookie. One that is there twice was put there by somebody else, and counts as none.
fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let lines = headers.get_all(header::COOKIE).iter();
    let pairs = lines
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(';'));
    let mut values = pairs.filter_map(|pair| {
        let (key, value) = pair.trim().split_once('=')?;
        (key == name).then_some(value)
    });
    let first = values.next();
    values.next().map_or(first, |_| None)
}
