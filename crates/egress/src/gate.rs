//! The one place where a connection is let through: rules, then the limits of the rule that allowed it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use belljar_policy::{CompiledRules, Host, Origin, Outcome, Reason, RuleId};

use crate::contain::Panicked;
use crate::dns::Names;
use crate::rate::RateLog;
use crate::record::{Connection, Event, Recorder, Refusal, RefusalCode, Way};

/// Rules, their counters, and where refusals go.
pub(crate) struct Gate {
    rules: CompiledRules,
    counters: Vec<Counters>,
    names: Names,
    recorder: Arc<dyn Recorder>,
    started: Instant,
    pub(crate) totals: Totals,
}

/// What one rule has used.
struct Counters {
    rate: Mutex<RateLog>,
    open: AtomicU32,
    bytes: AtomicU64,
}

/// What the whole box has used.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    pub(crate) connections: AtomicU64,
    pub(crate) open: AtomicU64,
    pub(crate) refusals: AtomicU64,
    pub(crate) sent: AtomicU64,
    pub(crate) received: AtomicU64,
    pub(crate) requests: AtomicU64,
}

/// Something was refused, and recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused(pub(crate) RefusalCode);

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    FromAgent,
    ToAgent,
}

impl Gate {
    pub(crate) fn new(rules: CompiledRules, names: Names, recorder: Arc<dyn Recorder>) -> Self {
        let counters = rules.rules().iter().map(|rule| Counters {
            rate: Mutex::new(RateLog::new(rule.value.rate_limit_per_min)),
            open: AtomicU32::new(0),
            bytes: AtomicU64::new(0),
        });
        Self {
            counters: counters.collect(),
            rules,
            names,
            recorder,
            started: Instant::now(),
            totals: Totals::default(),
        }
    }

    pub(crate) fn rules(&self) -> &CompiledRules {
        &self.rules
    }

    pub(crate) fn names(&self) -> &Names {
        &self.names
    }

    pub(crate) fn record(&self, event: Event) {
        if matches!(event, Event::Refused(_)) {
            self.totals.refusals.fetch_add(1, Ordering::Relaxed);
        }
        self.recorder.record(event);
    }

    /// Asks the rules about a connection and counts it. Its rate is charged apart: per connection where nothing is looked
    /// at, per request where requests are.
    pub(crate) fn admit(
        self: &Arc<Self>,
        way: Way,
        host: &Host,
        port: u16,
    ) -> Result<Admission, Refused> {
        let id = match self.rules.decide(host, port) {
            Outcome::Allow(id) => id,
            outcome => return Err(self.refuse_outcome(way, host, Some(port), outcome)),
        };
        // As many as there are rules.
        let Some(counters) = self.counters.get(id.index()) else {
            return Err(self.refuse_rule(way, host, port, id, RefusalCode::Internal, None));
        };
        let most = self
            .rules
            .rule(id)
            .value
            .terms
            .max_connections
            .unwrap_or(u32::MAX);
        let more = |open: u32| (open < most).then_some(open.saturating_add(1));
        if counters
            .open
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, more)
            .is_err()
        {
            return Err(self.refuse_rule(way, host, port, id, RefusalCode::Connections, None));
        }
        self.totals.connections.fetch_add(1, Ordering::Relaxed);
        self.totals.open.fetch_add(1, Ordering::Relaxed);
        Ok(Admission {
            gate: Arc::clone(self),
            way,
            host: host.clone(),
            port,
            rule: id,
            paid: AtomicBool::new(false),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
        })
    }

    /// Records a refusal and hands back the proof.
    pub(crate) fn refuse(
        &self,
        way: Way,
        host: &str,
        port: Option<u16>,
        rule: Option<Origin>,
        code: RefusalCode,
        detail: Option<String>,
    ) -> Refused {
        let leads_to_metadata = || {
            let words = detail.iter().flat_map(|detail| detail.split([' ', ',']));
            words.chain([host]).any(belljar_policy::names_metadata)
        };
        let hint = match code {
            RefusalCode::NoRule | RefusalCode::PrivateAddress if leads_to_metadata() => {
                belljar_policy::METADATA_HINT.to_owned()
            }
            _ => hint(code, host, port),
        };
        self.record(Event::Refused(Refusal {
            way,
            host: host.to_owned(),
            port,
            rule,
            code,
            detail,
            hint,
        }));
        Refused(code)
    }

    /// Records what the rules themselves refuse.
    pub(crate) fn refuse_outcome(
        &self,
        way: Way,
        host: &Host,
        port: Option<u16>,
        outcome: Outcome,
    ) -> Refused {
        let decision = self.rules.explain(outcome, host, port.unwrap_or(443));
        let because = decision.because();
        let code = match because.reason {
            Reason::DenyEgressBlocked => RefusalCode::Blocked,
            _ => RefusalCode::NoRule,
        };
        let mut hint = because.hint.clone().unwrap_or_default();
        if port.is_none() && code == RefusalCode::NoRule {
            hint.push_str(" (or the port it needs: a lookup does not say which)");
        }
        let rule = matches!(outcome, Outcome::Blocked(_)).then(|| because.origin.clone());
        self.record(Event::Refused(Refusal {
            way,
            host: host.to_string(),
            port,
            rule,
            code,
            detail: None,
            hint,
        }));
        Refused(code)
    }

    /// Records that something ended by a fault of our own.
    pub(crate) fn failed(&self, host: &str, port: Option<u16>, panicked: Panicked) -> Refused {
        let Panicked(place) = panicked;
        self.refuse(
            Way::Tcp,
            host,
            port,
            None,
            RefusalCode::Internal,
            Some(place),
        )
    }

    fn refuse_rule(
        &self,
        way: Way,
        host: &Host,
        port: u16,
        rule: RuleId,
        code: RefusalCode,
        detail: Option<String>,
    ) -> Refused {
        let origin = self.rules.rule(rule).origin.clone();
        self.refuse(
            way,
            &host.to_string(),
            Some(port),
            Some(origin),
            code,
            detail,
        )
    }

    fn take_rate(&self, rule: RuleId) -> bool {
        let Some(counters) = self.counters.get(rule.index()) else {
            return false;
        };
        let mut rate = counters.rate.lock().unwrap_or_else(PoisonError::into_inner);
        rate.take(self.started.elapsed())
    }
}

/// A connection that was let through. It is counted as open until it is dropped, which also records it.
pub(crate) struct Admission {
    gate: Arc<Gate>,
    way: Way,
    host: Host,
    port: u16,
    rule: RuleId,
    /// The connection was charged for; its first request goes with it.
    paid: AtomicBool,
    sent: AtomicU64,
    received: AtomicU64,
}

impl Admission {
    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    /// Refuses something on this connection.
    pub(crate) fn refuse(&self, code: RefusalCode, detail: Option<String>) -> Refused {
        self.refuse_as(self.way, code, detail)
    }

    /// Refuses a request on this connection.
    pub(crate) fn refuse_request(&self, code: RefusalCode, detail: Option<String>) -> Refused {
        self.refuse_as(Way::Http, code, detail)
    }

    fn refuse_as(&self, way: Way, code: RefusalCode, detail: Option<String>) -> Refused {
        self.gate
            .refuse_rule(way, &self.host, self.port, self.rule, code, detail)
    }

    /// Records that something was kept out of a request which is passed on all the same.
    pub(crate) fn withhold(&self, code: RefusalCode, detail: String, hint: String) {
        self.gate.record(Event::Refused(Refusal {
            way: Way::Http,
            host: self.host.to_string(),
            port: Some(self.port),
            rule: Some(self.gate.rules.rule(self.rule).origin.clone()),
            code,
            detail: Some(detail),
            hint,
        }));
    }

    /// Charges one connection to the rule's rate.
    pub(crate) fn charge_rate(&self) -> Result<(), Refused> {
        if self.gate.take_rate(self.rule) {
            self.paid.store(true, Ordering::Relaxed);
            Ok(())
        } else {
            Err(self.refuse(RefusalCode::Rate, None))
        }
    }

    /// Charges one request to the rate of the rule that permits it.
    pub(crate) fn charge_request(&self, rule: RuleId) -> Result<(), Refused> {
        self.gate.totals.requests.fetch_add(1, Ordering::Relaxed);
        if self.paid.swap(false, Ordering::Relaxed) || self.gate.take_rate(rule) {
            Ok(())
        } else {
            Err(self.refuse_request(RefusalCode::Rate, None))
        }
    }

    /// How many of `wanted` bytes may pass: all of them, or what is left of the rule's bytes.
    pub(crate) fn take_bytes(&self, direction: Direction, wanted: usize) -> usize {
        let wanted = wanted as u64;
        let granted = match self.gate.rules.rule(self.rule).value.terms.max_bytes {
            None => wanted,
            Some(most) => {
                let mut granted = 0;
                let more = |used: u64| {
                    granted = wanted.min(most.saturating_sub(used));
                    Some(used.saturating_add(granted))
                };
                if let Some(counters) = self.gate.counters.get(self.rule.index()) {
                    // The closure never declines, so this can't fail.
                    let _ = counters
                        .bytes
                        .fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
                }
                granted
            }
        };
        let totals = &self.gate.totals;
        let (own, total) = match direction {
            Direction::FromAgent => (&self.sent, &totals.sent),
            Direction::ToAgent => (&self.received, &totals.received),
        };
        own.fetch_add(granted, Ordering::Relaxed);
        total.fetch_add(granted, Ordering::Relaxed);
        usize::try_from(granted).unwrap_or(usize::MAX)
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        if let Some(counters) = self.gate.counters.get(self.rule.index()) {
            counters.open.fetch_sub(1, Ordering::AcqRel);
        }
        self.gate.totals.open.fetch_sub(1, Ordering::Relaxed);
        self.gate.record(Event::Closed(Connection {
            way: self.way,
            host: self.host.to_string(),
            port: self.port,
            rule: self.gate.rules.rule(self.rule).origin.clone(),
            sent: self.sent.load(Ordering::Relaxed),
            received: self.received.load(Ordering::Relaxed),
        }));
    }
}

/// What to write to allow it, or why nothing would.
fn hint(code: RefusalCode, host: &str, port: Option<u16>) -> String {
    let rule = || match port {
        Some(port) => format!("{{domain: {host:?}, ports: [{port}]}}"),
        None => format!("{{domain: {host:?}}}"),
    };
    match code {
        RefusalCode::NoRule => {
            format!("add to capability.yaml: network_egress_rules: [{}]", rule())
        }
        RefusalCode::Blocked => "remove the rule that blocks it".to_owned(),
        RefusalCode::InvalidHost => "ask for a host name or an address".to_owned(),
        RefusalCode::DnsQuery => "only addresses are looked up (A, AAAA)".to_owned(),
        RefusalCode::TooManyNames => "a box may use only so many names; use fewer".to_owned(),
        RefusalCode::UnknownAddress => {
            "look the name up first; such addresses stand for names".to_owned()
        }
        RefusalCode::PrivateAddress => format!(
            "add `allow_private: true` to the rule for {host}; for the host itself, name localhost and its ports"
        ),
        RefusalCode::Unresolved => "check the name, and that the host can look it up".to_owned(),
        RefusalCode::Unreachable => "check that the host itself can connect there".to_owned(),
        RefusalCode::Rate => format!("raise `rate_limit_per_min` of the rule for {host}"),
        RefusalCode::Connections => {
            format!("raise `max_connections` of the rule for {host} or of the box, or close some")
        }
        RefusalCode::Bytes => format!("raise `max_mb` of the rule for {host}"),
        RefusalCode::Protocol => {
            "only TCP and name lookups pass; programs that prefer QUIC fall back to TCP".to_owned()
        }
        RefusalCode::NotTls => {
            "port 443 takes TLS only; use another port for plain protocols".to_owned()
        }
        RefusalCode::NameMismatch => {
            "connect to the host that is meant, by its own name".to_owned()
        }
        RefusalCode::NoServerName => "send the host's name in TLS (SNI), not encrypted".to_owned(),
        RefusalCode::Request => format!("add the method and path to `http` of the rule for {host}"),
        RefusalCode::WebSocket => {
            format!("add `websocket: allow` to `http` of the rule for {host}")
        }
        RefusalCode::Malformed => {
            "send a well-formed request with one Host and one length".to_owned()
        }
        RefusalCode::Tokens => "raise resource_limits.max_tokens".to_owned(),
        RefusalCode::Cost => "raise resource_limits.max_cost_usd".to_owned(),
        RefusalCode::UnknownModel => {
            "add the model's price to the price overlay, or drop resource_limits.max_cost_usd"
                .to_owned()
        }
        RefusalCode::Unmetered => {
            "switch it off in the client, use an endpoint that reports its usage (chat, responses, messages), or drop \
             resource_limits.max_tokens and max_cost_usd"
                .to_owned()
        }
        RefusalCode::Encoded => {
            "ask for it in another form; or drop the secret for this host, and let the agent have a key of its own"
                .to_owned()
        }
        RefusalCode::SecretHost => format!("give {host} a secret of its own under `secrets`"),
        RefusalCode::SecretRefresh => {
            "see that the command of `from` can print the secret again".to_owned()
        }
        RefusalCode::Internal => {
            "a fault in Belljar: please report the place that is named".to_owned()
        }
    }
}
