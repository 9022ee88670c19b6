//! The monitor as a whole, with real files, by a clock that tests set.

mod alerts;
mod answers;
mod history;
mod page;
mod promises;
mod rearmed;
mod responses;
mod trouble;
mod what_happened;

use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use belljar_api::{
    AgentView, AlertList, AlertView, EventList, EventQuery, EventView, MetricsQuery, MetricsReply,
    OperatorCall, Status,
};
use serde::de::DeserializeOwned;

use crate::{Monitor, OpenError, Settings};

/// A long time for something that happens at once.
const LONG: Duration = Duration::from_secs(60);
/// Some round minute.
const BEGIN: u64 = 1_800_000_000_000;

/// A clock that tests set: the wall's time, and the steady one's.
#[derive(Clone)]
struct Hands(Arc<Mutex<(u64, u64)>>);

impl Hands {
    fn at(ms: u64) -> Self {
        Self(Arc::new(Mutex::new((ms, 0))))
    }

    fn now(&self) -> u64 {
        self.0.lock().unwrap().0
    }

    fn pass(&self, ms: u64) {
        let mut both = self.0.lock().unwrap();
        both.0 += ms;
        both.1 += ms;
    }

    fn set(&self, ms: u64) {
        self.0.lock().unwrap().0 = ms;
    }

    fn open(&self, directory: &Path, settings: Settings) -> Result<Monitor, OpenError> {
        let both = Arc::clone(&self.0);
        Monitor::open_by(Box::new(move || *both.lock().unwrap()), directory, settings)
    }
}

/// What an operator is answered.
fn ask(monitor: &Monitor, method: &str, path: &str, body: &str) -> (Status, Vec<u8>) {
    let (sender, receiver) = mpsc::channel();
    let carry = move |status, bytes| sender.send((status, bytes)).unwrap();
    let (_, call) = OperatorCall::carried(method, path, body.as_bytes(), 64 << 20, carry).unwrap();
    assert!(
        monitor.answer("ada", call).is_none(),
        "{path} is not answered here"
    );
    receiver.recv_timeout(LONG).unwrap()
}

fn get<T: DeserializeOwned>(monitor: &Monitor, path: &str) -> T {
    let (status, body) = ask(monitor, "GET", path, "");
    assert_eq!(status, Status::OK, "{}", String::from_utf8_lossy(&body));
    serde_json::from_slice(&body).unwrap()
}

fn metrics(monitor: &Monitor, query: &MetricsQuery) -> MetricsReply {
    let mut path = "/v1/metrics?".to_owned();
    for (name, value) in [
        ("since_ms", query.since_ms),
        ("until_ms", query.until_ms),
        ("points", query.points),
    ] {
        if let Some(value) = value {
            path.push_str(&format!("{name}={value}&"));
        }
    }
    if let Some(agent) = &query.agent {
        path.push_str(&format!("agent={agent}"));
    }
    get(monitor, path.trim_end_matches(['&', '?']))
}

fn events(monitor: &Monitor, query: &str) -> Vec<EventView> {
    get::<EventList>(monitor, &format!("/v1/events{query}")).events
}

fn alerts(monitor: &Monitor, query: &str) -> Vec<AlertView> {
    get::<AlertList>(monitor, &format!("/v1/alerts{query}")).alerts
}

fn codes(monitor: &Monitor) -> Vec<String> {
    let events = monitor.inner_for_tests().events(&EventQuery {
        limit: Some(1000),
        ..EventQuery::default()
    });
    events
        .events
        .iter()
        .rev()
        .filter_map(|event| event.code.as_ref())
        .map(ToString::to_string)
        .collect()
}

/// Waits until it is so.
fn until(what: &str, mut so: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + LONG;
    while !so() {
        assert!(std::time::Instant::now() < deadline, "never: {what}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// So many seconds in which the agents use as much as `each` says, told every second and written every half minute.
fn live(
    hands: &Hands,
    monitor: &Monitor,
    agents: &mut [AgentView],
    seconds: u64,
    mut each: impl FnMut(&mut AgentView),
) {
    for second in 0..seconds {
        hands.pass(1_000);
        for agent in &mut *agents {
            each(agent);
            monitor.sampled(agent);
        }
        if second % 30 == 29 {
            monitor.flush();
        }
    }
}
