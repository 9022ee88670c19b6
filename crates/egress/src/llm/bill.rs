//! What one call to a model comes to.

use std::sync::Arc;

use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::LlmApi;
use super::budget::{Reservation, Source};
use super::denial::{Denial, Shortfall, Why};
use super::money::PicoUsd;
use super::prices::Price;
use super::usage::{Tokens, Told};
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

/// More than any provider takes for one search, one source or one run of its tools.
const PIECE: PicoUsd = PicoUsd(50_000_000_000);
/// A dearer tier costs at most so many times what the table says.
const DEARER: u64 = 2;

/// The open bill of one call.
pub(crate) struct Bill {
    pub(super) reservation: Reservation,
    pub(super) api: LlmApi,
    pub(super) provider: String,
    pub(super) model: String,
    pub(super) price: Option<Price>,
    pub(super) hides_usage: bool,
    /// Whether there is a ceiling that what is not reported could slip under.
    pub(super) is_limited: bool,
    pub(super) gate: Arc<Gate>,
    /// Room to read answers that the agent did not wait for.
    pub(super) reading_on: Arc<Semaphore>,
}

impl Bill {
    pub(super) fn api(&self) -> LlmApi {
        self.api
    }

    pub(super) fn hides_usage(&self) -> bool {
        self.hides_usage
    }

    /// Leave to read on, for a bill under a ceiling.
    pub(super) fn read_on(&self) -> Option<OwnedSemaphorePermit> {
        let room = Arc::clone(&self.reading_on);
        self.is_limited
            .then(|| room.try_acquire_owned().ok())
            .flatten()
    }

    /// Makes sure that so many tokens of answers are set aside.
    pub(super) fn cover(&mut self, output: u64) -> Result<(), Denial> {
        let answers = self.reservation.answers().max(1);
        if output <= self.reservation.output().saturating_mul(answers) {
            return Ok(());
        }
        let extended = self.reservation.extend(output.div_ceil(answers));
        extended.map_err(|exhausted| {
            let shortfall = Shortfall {
                standing: self.reservation.standing(),
                model: self.model.clone(),
                need: None,
            };
            Denial::new(self.api, Why::Exhausted(exhausted, Box::new(shortfall)))
        })
    }

    /// Nothing is charged.
    pub(super) fn free(self) {
        self.reservation.release();
    }

    /// Everything that was set aside is charged: nobody knows what was used of it.
    pub(super) fn lost(self) {
        self.unreported(&Told::default(), true);
    }

    /// The answer did not say what was used: all that was set aside is charged, and what was seen if that is more. Without a
    /// ceiling nothing rests on it, and what was seen is the better guess.
    pub(super) fn unreported(self, seen: &Told, is_blind: bool) {
        let answers = self.reservation.answers();
        let all = self.reservation.output().saturating_mul(answers);
        let mut told = *seen;
        // What was reported of the prompt may not have been all of it.
        let beyond = self
            .reservation
            .input()
            .saturating_sub(told.tokens.prompt());
        if self.is_limited || is_blind || told.tokens.prompt() == 0 {
            told.tokens.input = told.tokens.input.saturating_add(beyond);
        }
        if self.is_limited || is_blind {
            told.tokens.output = told.tokens.output.max(all);
        }
        self.settle(&told, Source::Estimated);
    }

    /// Charges what was used.
    pub(super) fn settle(self, told: &Told, source: Source) {
        let tokens = told.tokens;
        let by_table = self
            .price
            .as_ref()
            .map_or(PicoUsd(0), |price| price.cost(&tokens));
        let by_table = by_table.times(if told.is_dearer { DEARER } else { 1 });
        // What a provider says it took holds its fees.
        let (cost, source) = match (told.pieces, told.cost) {
            (0, cost) => (by_table.max(cost), source),
            (pieces, PicoUsd(0)) => (by_table.plus(PIECE.times(pieces)), Source::Estimated),
            (_, cost) => (by_table.max(cost), source),
        };
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
