//! A provider of models, and a box that calls it under a budget.

use std::sync::Arc;

use belljar_egress::{
    Authority, Charge, Event, LlmApi, LlmBudget, LlmEndpoint, LlmPolicy, PriceTable,
};
use belljar_policy::DomainPattern;
use hyper::{Request, Response};
use serde_json::Value;

use super::http::*;
use super::*;

/// A token of a prompt costs 1, one of an answer 10, a cached one nothing much.
pub const PRICES: &str = "own\tm\t1\t10\t-\t-\t-\t100000\t1000\t-\nown\tbig\t1\t10\t-\t-\t-\t100000\t100000\t-\nown\tdear\t10000000\t50000000\t-\t-\t-\t200000\t100000\t-\nown\tcached\t100\t10\t10\t125\t-\t100000\t1000\t-\n";

pub struct Provider {
    pub server: Server,
    pub bx: TestBox,
    pub authority: Arc<Authority>,
    pub budget: Arc<LlmBudget>,
}

pub async fn provider<F, R>(api: LlmApi, budget: Arc<LlmBudget>, answer: F) -> Provider
where
    F: Fn(Seen) -> R + Clone + Send + 'static,
    R: Future<Output = Response<Body>> + Send + 'static,
{
    let server = Server::start(NAME, Wire::Tls, answer).await;
    let mut config = config(vec![allow(NAME, &[server.port])]);
    let authority = inspecting(&mut config, &server);
    config.llm = Some(policy(api, Arc::clone(&budget)));
    Provider {
        server,
        bx: start(config),
        authority,
        budget,
    }
}

/// Metering of the host of the tests.
pub fn policy(api: LlmApi, budget: Arc<LlmBudget>) -> LlmPolicy {
    LlmPolicy {
        endpoints: vec![LlmEndpoint {
            domain: DomainPattern::parse(NAME).expect("a host"),
            ports: Vec::new(),
            api,
            provider: "own".to_owned(),
        }],
        budget,
        prices: Arc::new(PriceTable::default().with(PRICES).expect("prices")),
    }
}

impl Provider {
    pub async fn post(&self, path: &str, body: &Value) -> Response<hyper::body::Incoming> {
        let mut client = client_one(&self.bx, NAME, self.server.port, &self.authority).await;
        let request = Request::post(path)
            .header("host", NAME)
            .header("content-type", "application/json")
            .header("accept-encoding", "gzip")
            .body(text(body.to_string()))
            .expect("as it should be");
        soon(client.send_request(request))
            .await
            .expect("as it should be")
    }

    pub async fn call(&self, path: &str, body: &Value) -> (u16, String) {
        let (status, _, body) = whole(self.post(path, body).await).await;
        (status, body)
    }

    pub async fn charge(&self) -> Charge {
        self.bx
            .recording
            .wait("charge", |event| match event {
                Event::Charged(charge) => Some(charge.clone()),
                _ => None,
            })
            .await
    }

    pub fn sent(&self) -> Value {
        serde_json::from_slice(&self.server.seen().last().expect("as it should be").body)
            .expect("as it should be")
    }
}

pub fn json_answer(body: &Value) -> Response<Body> {
    Response::builder()
        .header("content-type", "application/json")
        .body(text(body.to_string()))
        .expect("as it should be")
}

pub fn events(events: &[Value]) -> Response<Body> {
    let lines: String = events
        .iter()
        .map(|event| match event {
            Value::String(bare) => format!("data: {bare}\n\n"),
            event => format!(
                "event: {}\ndata: {event}\n\n",
                event["type"].as_str().unwrap_or("message")
            ),
        })
        .collect();
    Response::builder()
        .header("content-type", "text/event-stream; charset=utf-8")
        .body(text(lines))
        .expect("as it should be")
}

pub fn unlimited() -> Arc<LlmBudget> {
    LlmBudget::new(None, None)
}
