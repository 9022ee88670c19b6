//! Requests of the operator's protocol, carried to the backend and back.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use belljar_api::OperatorCall;
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body as _, Incoming};
use hyper::header::{self, HeaderMap};
use hyper::{Method, Request, Response, StatusCode};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

use super::Site;
use super::admission::Admitted;
use super::reply::{self, Body, Refusal};

/// How long an answer about readiness is good for: everybody may ask, so it must cost nothing.
const READINESS: Duration = Duration::from_secs(1);

/// What was last found about readiness.
pub(super) type Readiness = Mutex<Option<(Instant, bool, Vec<String>)>>;

impl Site {
    /// Carries a call whose asker may ask it.
    pub(super) async fn call(
        self: &Arc<Self>,
        admitted: Admitted,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Refusal> {
        let is_change = request.method() != Method::GET;
        let (head, body) = request.into_parts();
        let body = if is_change {
            self.read_body(&head.headers, body, self.limits.body_bytes)
                .await?
        } else if body.is_end_stream() {
            Bytes::new()
        } else {
            return Err(needs_no_body());
        };
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        let (carry, carried) = oneshot::channel();
        let (_, call) = OperatorCall::carried(
            head.method.as_str(),
            path,
            &body,
            self.limits.reply_bytes,
            // Whoever asked may be gone; then nobody waits for it.
            move |status, bytes| drop(carry.send((status, bytes))),
        )?;
        let places = if is_change {
            &self.changes
        } else {
            &self.reads
        };
        let site = Arc::clone(self);
        let caller = admitted.caller;
        let asked = in_a_thread(places, self.limits.answer, move || {
            site.backend.answer(&caller, call);
        });
        let both = async {
            asked.await?;
            carried.await.map_err(|_| no_answer())
        };
        let (status, bytes) = timeout(self.limits.answer, both)
            .await
            .map_err(|_| no_answer())??;
        Ok(reply::json_bytes(reply::code(status), bytes))
    }

    /// A body of JSON, within its bounds.
    pub(super) async fn read_body(
        &self,
        headers: &HeaderMap,
        body: Incoming,
        most: usize,
    ) -> Result<Bytes, Refusal> {
        if body.is_end_stream() {
            return Ok(Bytes::new());
        }
        if !is_json(headers) {
            return Err(Refusal::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "not_json",
                "a body needs the header `Content-Type: application/json`",
            ));
        }
        let too_large = || {
            Refusal::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                "body_too_large",
                &format!("a body has at most {most} bytes here"),
            )
        };
        if body.size_hint().lower() > most as u64 {
            return Err(too_large());
        }
        match timeout(self.limits.body, Limited::new(body, most).collect()).await {
            Ok(Ok(body)) => Ok(body.to_bytes()),
            Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
            Ok(Err(_)) => Err(Refusal::new(
                StatusCode::BAD_REQUEST,
                "bad_http",
                "the body did not arrive whole",
            )),
            Err(_) => Err(Refusal::new(
                StatusCode::REQUEST_TIMEOUT,
                "too_slow",
                "the body did not arrive in time",
            )),
        }
    }

    /// Whether the daemon can do its work, and who does not run that should. Why not is for those with a token, in `/v1/status`,
    /// `/v1/agents` and the alerts.
    pub(super) async fn read_readiness(self: &Arc<Self>) -> Response<Body> {
        let known = self
            .readiness
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let (is_ready, not_running) = match known {
            Some((at, is_ready, names)) if at.elapsed() < READINESS => (is_ready, names),
            _ => {
                let site = Arc::clone(self);
                let asked = in_a_thread(&self.reads, self.limits.answer, move || {
                    let names = site.backend.not_running();
                    (site.backend.ready().is_ok() && names.is_empty(), names)
                });
                let (is_ready, names) = asked.await.unwrap_or_default();
                *self
                    .readiness
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner) =
                    Some((Instant::now(), is_ready, names.clone()));
                (is_ready, names)
            }
        };
        let status = if is_ready {
            StatusCode::OK
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        };
        let told = match not_running.is_empty() {
            true => serde_json::json!({"ready": is_ready}),
            false => serde_json::json!({"ready": is_ready, "not_running": not_running}),
        };
        reply::json_bytes(status, told.to_string())
    }

    pub(super) async fn read_numbers(self: &Arc<Self>) -> Result<Response<Body>, Refusal> {
        let site = Arc::clone(self);
        let asked = in_a_thread(&self.reads, self.limits.answer, move || {
            site.backend.prometheus()
        });
        let mut text = asked.await?;
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        self.numbers
            .write(&mut text, self.places.count(), self.streams.count());
        let kind = "text/plain; version=0.0.4; charset=utf-8";
        Ok(reply::of_kind(StatusCode::OK, kind, text))
    }
}

/// Does something that may take its time, on a thread of its own; as many at once as there are places.
pub(super) async fn in_a_thread<T: Send + 'static>(
    places: &Arc<Semaphore>,
    patience: Duration,
    act: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Refusal> {
    let place = timeout(patience, Arc::clone(places).acquire_owned()).await;
    let Ok(Ok(place)) = place else {
        return Err(Refusal::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "busy",
            "too many requests are being answered",
        )
        .retry_after(Duration::from_secs(1)));
    };
    let done = tokio::task::spawn_blocking(move || {
        let done = act();
        drop(place);
        done
    });
    done.await.map_err(|_| no_answer())
}

fn no_answer() -> Refusal {
    Refusal::new(
        StatusCode::GATEWAY_TIMEOUT,
        "no_answer",
        "there was no answer in time",
    )
    .hint("what was asked for may still happen; ask how things stand")
}

fn needs_no_body() -> Refusal {
    Refusal::new(StatusCode::BAD_REQUEST, "bad_request", "this takes no body")
}

/// For what is asked without a body.
pub(super) fn check_bodiless(request: &Request<Incoming>) -> Result<(), Refusal> {
    if request.body().is_end_stream() {
        return Ok(());
    }
    // `{}` is what a client sends that always sends something.
    let is_small = request
        .body()
        .size_hint()
        .upper()
        .is_some_and(|most| most <= 2);
    if request.method() == Method::POST && is_small && is_json(request.headers()) {
        return Ok(());
    }
    Err(needs_no_body())
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    kind.eq_ignore_ascii_case("application/json")
}
