//! What one call to a model comes to.

use std::sync::Arc;

use serde::Serialize;

use super::LlmApi;
use super::budget::{Exhausted, Reservation, Source};
use super::money::PicoUsd;
use super::prices::Price;
use super::usage::Tokens;
use crate::gate::Gate;
use crate::record::Event;

/// A call that ended and was charged.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Charge {
    /// Whose prices applied.
    pub provider: String,
    /// The model, as the call named it.
    pub model: String,
    /// Tokens, by kind.
    #[serde(flatten)]
    pub tokens: Tokens,
    /// What they cost; nothing for a model without a price.
    #[serde(rename = "cost_usd")]
    pub cost: PicoUsd,
    /// Whether the provider did not say what was used.
    pub estimated: bool,
}

/// The open bill of one call.
pub(crate) struct Bill {
    pub(super) reservation: Reservation,
    pub(super) api: LlmApi,
    pub(super) provider: String,
    pub(super) model: String,
    pub(super) price: Option<Price>,
    pub(super) hides_usage: bool,
    pub(super) gate: Arc<Gate>,
}

impl Bill {
    pub(super) fn api(&self) -> LlmApi {
        self.api
    }

    pub(super) fn hides_usage(&self) -> bool {
        self.hides_usage
    }

    pub(super) fn most_input(&self) -> u64 {
        self.reservation.input()
    }

    /// Makes sure that so many tokens of answers are set aside.
    pub(super) fn cover(&mut self, output: u64) -> Result<(), Exhausted> {
        let answers = self.reservation.answers();
        if output <= self.reservation.output().saturating_mul(answers) {
            return Ok(());
        }
        self.reservation.extend(output.div_ceil(answers))
    }

    /// Nothing is charged.
    pub(super) fn free(self) {
        self.reservation.release();
    }

    /// Everything that was set aside is charged: nobody knows what was used of it.
    pub(super) fn lost(self) {
        let tokens = Tokens {
            input: self.reservation.input(),
            output: self
                .reservation
                .output()
                .saturating_mul(self.reservation.answers()),
            ..Tokens::default()
        };
        self.settle(tokens, Source::Estimated);
    }

    /// Charges what was used.
    pub(super) fn settle(self, tokens: Tokens, source: Source) {
        let cost = self
            .price
            .as_ref()
            .map_or(PicoUsd(0), |price| price.cost(&tokens));
        self.reservation.settle(&self.model, tokens, cost, source);
        self.gate.record(Event::Charged(Charge {
            provider: self.provider,
            model: self.model,
            tokens,
            cost,
            estimated: source == Source::Estimated,
        }));
    }
}
