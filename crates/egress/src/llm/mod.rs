//! Budgets for calls to models: reserve, count, cut, settle.
//!
//! Before a call goes out, the most it could cost is set aside, and its answer is limited to what that covers. While the
//! answer streams by it is counted; at its end the provider's own figures are charged and the rest is given back. What can't
//! be metered is refused while a budget is set.

mod bill;
mod budget;
mod contents;
mod denial;
mod endpoint;
#[cfg(test)]
mod fuzz;
mod json;
mod money;
mod observer;
mod prices;
mod prompt;
mod unmetered;
mod usage;

use std::sync::Arc;

use belljar_policy::{Host, LlmApi, LlmEndpointRule as LlmEndpoint};
use hyper::header::HeaderMap;
use hyper::{Method, StatusCode, Uri};
use tokio::sync::Semaphore;

pub use bill::Charge;
pub use budget::{LlmBudget, LlmUsage, ModelUsage};
pub use money::PicoUsd;
pub use prices::{InvalidPrices, PriceTable};
pub use usage::Tokens;

pub(crate) use denial::Denial;
pub(crate) use observer::{Cut, Observer};

use bill::Bill;
use budget::Wish;
use denial::{Need, Shortfall, Why};
use endpoint::{Action, Kind, asks_for_parts, kind};
use prompt::Prompt;

use crate::gate::Gate;
use crate::record::printable;

/// What calls to models may cost, and where they go.
#[derive(Clone, Debug)]
pub struct LlmPolicy {
    /// The hosts that serve models.
    pub endpoints: Vec<LlmEndpoint>,
    /// What may be used.
    pub budget: Arc<LlmBudget>,
    /// What tokens cost.
    pub prices: Arc<PriceTable>,
}

/// Meters calls.
pub(crate) struct Llm {
    policy: LlmPolicy,
    reading_on: Arc<Semaphore>,
}

/// Answers that are read to their end at once although the agent left.
const MOST_READ_ON: usize = 64;

/// What to do with a request to a host that serves models.
pub(crate) enum Metering {
    /// Let it through.
    None,
    /// Read it and meter it.
    Meter(Metered),
    /// Refuse it.
    Refuse(Denial),
}

/// A call that is to be metered.
pub(crate) struct Metered {
    endpoint: LlmEndpoint,
    action: Action,
    model: Option<String>,
}

/// A call that is under way.
pub(crate) struct Call {
    bill: Option<Bill>,
}

impl Llm {
    pub(crate) fn new(policy: LlmPolicy) -> Self {
        Self {
            policy,
            reading_on: Arc::new(Semaphore::new(MOST_READ_ON)),
        }
    }

    pub(crate) fn usage(&self) -> LlmUsage {
        self.policy.budget.usage()
    }

    pub(crate) fn is_about(&self, host: &Host, port: u16) -> bool {
        self.endpoint(host, port).is_some()
    }

    /// Whether what goes there is metered under a ceiling.
    pub(crate) fn is_limiting(&self, host: &Host, port: u16) -> bool {
        self.is_about(host, port) && self.policy.budget.is_limited()
    }

    fn endpoint(&self, host: &Host, port: u16) -> Option<&LlmEndpoint> {
        self.policy
            .endpoints
            .iter()
            .find(|endpoint| endpoint.is_about(host, port))
    }

    /// What to do with a request.
    pub(crate) fn recognise(
        &self,
        host: &Host,
        port: u16,
        method: &Method,
        uri: &Uri,
        upgrading: bool,
        overridden: bool,
    ) -> Metering {
        let Some(endpoint) = self.endpoint(host, port) else {
            return Metering::None;
        };
        let path = uri.path();
        let limited = self.policy.budget.is_limited();
        let refuse = |why| Metering::Refuse(Denial::new(endpoint.api, why));
        if upgrading && limited {
            return refuse(Why::WebSocket);
        }
        if overridden && limited {
            let what = "a request with two methods".to_owned();
            return refuse(Why::Unmetered(what));
        }
        match kind(endpoint.api, method, path) {
            Kind::Free => Metering::None,
            Kind::Unmetered if limited => {
                let path = printable(path.as_bytes());
                refuse(Why::Unmetered(format!("the endpoint {method} {path}")))
            }
            Kind::Unmetered => Metering::None,
            Kind::Call(..) if limited && asks_for_parts(uri.query().unwrap_or_default()) => refuse(
                Why::Unmetered("a call for parts of its answer (`fields`)".to_owned()),
            ),
            Kind::Call(action, model) => Metering::Meter(Metered {
                endpoint: endpoint.clone(),
                action,
                model: model.map(str::to_owned),
            }),
        }
    }

    /// Reads a call, sets aside what it may cost, and gives back what to send.
    pub(crate) async fn begin(
        &self,
        metered: Metered,
        body: &[u8],
        gate: Arc<Gate>,
    ) -> Result<(Vec<u8>, Call), Denial> {
        let Metered {
            endpoint,
            action,
            model,
        } = metered;
        let deny = |why| Denial::new(endpoint.api, why);
        let mut prompt = Prompt::read(action, model.as_deref(), body)
            .map_err(|why| deny(Why::Unreadable(why)))?;
        let budget = &self.policy.budget;
        let is_limited = budget.is_limited();
        if let Some(what) = &prompt.unmetered
            && is_limited
        {
            return Err(deny(Why::Unmetered(what.clone())));
        }
        let price = self
            .policy
            .prices
            .price(&endpoint.provider, &prompt.model)
            .cloned();
        if price.is_none() && budget.limits_cost() {
            return Err(deny(Why::UnknownModel(prompt.model)));
        }
        if budget.limits_cost() {
            prompt.serve_as_usual(&endpoint.provider);
        }
        let wish = Wish {
            input: prompt.most_input(price.as_ref()),
            output: prompt.wanted_output(price.as_ref()),
            answers: prompt.answers,
            rates: price
                .as_ref()
                .map(|price| (price.dearest_input(), price.dearest_output())),
        };
        let reservation = budget.reserve(wish).await.map_err(|exhausted| {
            let shortfall = Shortfall {
                standing: budget.standing(),
                model: prompt.model.clone(),
                need: Some(need(&wish, &prompt)),
            };
            deny(Why::Exhausted(exhausted, Box::new(shortfall)))
        })?;
        let granted = reservation.output();
        let bill = Bill {
            reservation,
            api: endpoint.api,
            model: prompt.model.clone(),
            hides_usage: prompt.hide_usage,
            price,
            gate,
            provider: endpoint.provider,
            is_limited,
            reading_on: Arc::clone(&self.reading_on),
        };
        let bytes = prompt.write(&bill.provider, granted, bill.price.as_ref());
        Ok((bytes, Call { bill: Some(bill) }))
    }
}

/// What a call could come to.
fn need(wish: &Wish, prompt: &Prompt) -> Need {
    let output = wish.output.saturating_mul(wish.answers);
    let (input_rate, output_rate) = wish.rates.unwrap_or_default();
    let input_cost = input_rate.times(wish.input);
    Need {
        input: wish.input,
        input_cost,
        output,
        cost: input_cost.plus(output_rate.times(output)),
        is_bounded: prompt.is_bounded(),
    }
}

impl Call {
    /// The provider began to answer.
    pub(crate) fn answered(mut self, status: StatusCode, headers: &HeaderMap) -> Option<Observer> {
        self.bill
            .take()
            .map(|bill| Observer::new(bill, status, headers))
    }

    /// The call was never made.
    pub(crate) fn not_made(mut self) {
        if let Some(bill) = self.bill.take() {
            bill.free();
        }
    }
}

impl Drop for Call {
    /// The agent went away before the provider answered, which may be at work all the same.
    fn drop(&mut self) {
        if let Some(bill) = self.bill.take() {
            bill.lost();
        }
    }
}
