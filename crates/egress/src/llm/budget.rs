//! A budget that parallel calls can't overdraw: what a call may use is set aside before it is made.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use tokio::sync::Notify;

use super::money::PicoUsd;
use super::usage::Tokens;

/// What calls to models may use, and what they have used. Shared by every engine that draws on it.
#[derive(Debug)]
pub struct LlmBudget {
    account: Mutex<Account>,
    settled: Notify,
    /// First come, first served: a large call is not passed by small ones for ever.
    queue: tokio::sync::Mutex<()>,
    /// The budget it was carved from.
    above: Option<Arc<LlmBudget>>,
}

#[derive(Debug)]
struct Account {
    /// What may still be used, or carved.
    left: Amounts,
    /// What may still be used here, however much is left.
    own: Amounts,
    reserved: u32,
    usage: LlmUsage,
    is_closed: bool,
}

/// Tokens and money; `None` is without limit.
#[derive(Clone, Copy, Debug)]
struct Amounts {
    tokens: Option<u64>,
    cost: Option<PicoUsd>,
}

/// What calls to models have used.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LlmUsage {
    /// All calls together.
    pub total: ModelUsage,
    /// By model.
    pub models: BTreeMap<String, ModelUsage>,
}

/// What calls to one model have used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ModelUsage {
    /// Calls made.
    pub calls: u64,
    /// Tokens, by kind.
    #[serde(flatten)]
    pub tokens: Tokens,
    /// What they cost, where the model has a price.
    #[serde(rename = "cost_usd")]
    pub cost: PicoUsd,
    /// Calls that did not say what they used and were charged an estimate.
    pub estimated: u64,
}

impl ModelUsage {
    fn since(&self, before: &Self) -> Self {
        Self {
            calls: self.calls.saturating_sub(before.calls),
            tokens: self.tokens.minus(&before.tokens),
            cost: self.cost.minus(before.cost),
            estimated: self.estimated.saturating_sub(before.estimated),
        }
    }
}

/// Which budget is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exhausted {
    Tokens,
    Cost,
}

/// What was spent and what is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(super) spent_tokens: u64,
    pub(super) spent_cost: PicoUsd,
    pub(super) left_tokens: Option<u64>,
    pub(super) left_cost: Option<PicoUsd>,
}

/// What a call asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    /// More tokens than its prompt can come to.
    pub(crate) input: u64,
    /// Tokens it would like in each answer.
    pub(crate) output: u64,
    /// How many answers.
    pub(crate) answers: u64,
    /// The most a token can cost; `None` for a model without a price.
    pub(crate) rates: Option<(PicoUsd, PicoUsd)>,
}

/// More models than a box calls; the others are counted together.
const MOST_MODELS: usize = 256;

impl LlmBudget {
    /// A budget; `None` is without limit.
    #[must_use]
    pub fn new(tokens: Option<u64>, cost: Option<PicoUsd>) -> Arc<Self> {
        Self::with(Amounts { tokens, cost }, None)
    }

    fn with(left: Amounts, above: Option<Arc<Self>>) -> Arc<Self> {
        Arc::new(Self {
            account: Mutex::new(Account {
                left,
                own: Amounts::UNLIMITED,
                reserved: 0,
                usage: LlmUsage::default(),
                is_closed: false,
            }),
            settled: Notify::new(),
            queue: tokio::sync::Mutex::new(()),
            above,
        })
    }

    /// Sets how much calls on this budget itself may use in all, however much it holds. What is carved from it does not count.
    pub fn cap(&self, tokens: Option<u64>, cost: Option<PicoUsd>) {
        self.account().own = Amounts { tokens, cost };
    }

    /// Moves so much from this budget to a new one, or what is left if that is less: budgets carved from one never come to
    /// more than it. `None` is without limit where this one has none, and all that is left where it has.
    #[must_use]
    pub fn carve(self: &Arc<Self>, tokens: Option<u64>, cost: Option<PicoUsd>) -> Arc<Self> {
        let mut account = self.account();
        let part = Amounts {
            tokens: least(account.left.tokens, tokens),
            cost: least(account.left.cost, cost),
        };
        let taken = (
            part.tokens.unwrap_or_default(),
            part.cost.unwrap_or_default(),
        );
        account.left.take(taken);
        drop(account);
        Self::with(part, Some(Arc::clone(self)))
    }

    /// Gives what is left to the budget this was carved from, now and when the last call is settled. No call is made on it
    /// any more.
    pub fn close(&self) {
        let mut account = self.account();
        account.is_closed = true;
        let Amounts { tokens, cost } = account.left;
        account.left = Amounts {
            tokens: Some(0),
            cost: Some(PicoUsd(0)),
        };
        drop(account);
        self.settled.notify_waiters();
        if let Some(above) = &self.above {
            above.give_back((tokens.unwrap_or_default(), cost.unwrap_or_default()));
        }
    }

    /// Charges what was used elsewhere, and reported; says whether that was within its means. What is more than is left leaves
    /// nothing.
    pub fn charge(&self, tokens: u64, cost: PicoUsd) -> bool {
        let amounts = (tokens, cost);
        let mut account = self.account();
        let is_covered =
            account.left.covers(amounts).is_ok() && account.own.covers(amounts).is_ok();
        account.take(amounts);
        is_covered
    }

    /// To this budget or, when it is closed, to the one above.
    fn give_back(&self, amounts: (u64, PicoUsd)) {
        let mut account = self.account();
        if !account.is_closed {
            account.left.give_back(amounts);
            drop(account);
            self.settled.notify_waiters();
            return;
        }
        drop(account);
        if let Some(above) = &self.above {
            above.give_back(amounts);
        }
    }

    /// What may still be used, or carved; `None` is without limit.
    #[must_use]
    pub fn left(&self) -> (Option<u64>, Option<PicoUsd>) {
        let Amounts { tokens, cost } = self.account().left;
        (tokens, cost)
    }

    /// What was used so far.
    #[must_use]
    pub fn usage(&self) -> LlmUsage {
        self.account().usage.clone()
    }

    /// What was spent and what is left for calls on this budget.
    pub(crate) fn standing(&self) -> Standing {
        let account = self.account();
        Standing {
            spent_tokens: account.usage.total.tokens.total(),
            spent_cost: account.usage.total.cost,
            left_tokens: least(account.left.tokens, account.own.tokens),
            left_cost: least(account.left.cost, account.own.cost),
        }
    }

    /// Whether tokens or money are limited at all.
    pub(crate) fn is_limited(&self) -> bool {
        let account = self.account();
        [account.left, account.own]
            .iter()
            .any(|amounts| amounts.tokens.is_some() || amounts.cost.is_some())
    }

    /// Whether money is limited.
    pub(crate) fn limits_cost(&self) -> bool {
        let account = self.account();
        account.left.cost.is_some() || account.own.cost.is_some()
    }

    /// Sets aside what a call may use at worst. When other calls hold what it needs, it waits for them; when nobody does, its
    /// answers are cut to what is left.
    pub(crate) async fn reserve(self: &Arc<Self>, wish: Wish) -> Result<Reservation, Exhausted> {
        let _turn = self.queue.lock().await;
        loop {
            let settled = self.settled.notified();
            tokio::pin!(settled);
            // Listening before looking, so that no settlement falls between.
            settled.as_mut().enable();
            match self.try_reserve(wish) {
                Some(outcome) => return outcome,
                None => settled.await,
            }
        }
    }

    /// `None` when it is worth waiting.
    fn try_reserve(self: &Arc<Self>, wish: Wish) -> Option<Result<Reservation, Exhausted>> {
        let mut account = self.account();
        if account.is_closed {
            return Some(Err(Exhausted::Tokens));
        }
        let affordable = account.affordable(&wish);
        let output = match affordable {
            Ok(most) if most >= wish.output => wish.output,
            _ if account.reserved > 0 => return None,
            Ok(most) => most,
            Err(exhausted) => return Some(Err(exhausted)),
        };
        let held = wish.held(output);
        account.take(held);
        account.reserved = account.reserved.saturating_add(1);
        Some(Ok(Reservation {
            budget: Arc::clone(self),
            wish,
            output,
            held,
            open: true,
        }))
    }

    fn account(&self) -> MutexGuard<'_, Account> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn least<T: Ord + Copy>(left: Option<T>, wanted: Option<T>) -> Option<T> {
    match (left, wanted) {
        (Some(left), Some(wanted)) => Some(left.min(wanted)),
        (left, wanted) => left.or(wanted),
    }
}

impl Wish {
    fn held(&self, output: u64) -> (u64, PicoUsd) {
        let output = output.saturating_mul(self.answers);
        let cost = self.rates.map_or(PicoUsd(0), |(input_rate, output_rate)| {
            input_rate.times(self.input).plus(output_rate.times(output))
        });
        (self.input.saturating_add(output), cost)
    }
}

impl Account {
    fn affordable(&self, wish: &Wish) -> Result<u64, Exhausted> {
        Ok(self.left.affordable(wish)?.min(self.own.affordable(wish)?))
    }

    fn take(&mut self, amounts: (u64, PicoUsd)) {
        self.left.take(amounts);
        self.own.take(amounts);
    }
}

impl Amounts {
    const UNLIMITED: Self = Self {
        tokens: None,
        cost: None,
    };

    fn covers(&self, (tokens, cost): (u64, PicoUsd)) -> Result<(), Exhausted> {
        if self.tokens.is_some_and(|left| left < tokens) {
            return Err(Exhausted::Tokens);
        }
        match self.cost.is_some_and(|left| left < cost) {
            true => Err(Exhausted::Cost),
            false => Ok(()),
        }
    }

    /// The longest answers that are affordable. One token each is the least.
    fn affordable(&self, wish: &Wish) -> Result<u64, Exhausted> {
        let answers = wish.answers.max(1);
        let by_tokens = match self.tokens {
            None => u64::MAX,
            Some(left) => left.checked_sub(wish.input).ok_or(Exhausted::Tokens)? / answers,
        };
        let by_cost = match (self.cost, wish.rates) {
            (Some(left), Some((input_rate, output_rate))) => {
                let input = input_rate.times(wish.input);
                let left = left.0.checked_sub(input.0).ok_or(Exhausted::Cost)?;
                left.checked_div(output_rate.times(answers).0)
                    .unwrap_or(u64::MAX)
            }
            _ => u64::MAX,
        };
        // A call without an answer, such as an embedding, needs nothing more.
        let least = u64::from(wish.output > 0);
        match (by_tokens >= least, by_cost >= least) {
            (true, true) => Ok(by_tokens.min(by_cost)),
            (false, _) => Err(Exhausted::Tokens),
            (true, false) => Err(Exhausted::Cost),
        }
    }

    fn take(&mut self, (tokens, cost): (u64, PicoUsd)) {
        self.tokens = self.tokens.map(|left| left.saturating_sub(tokens));
        self.cost = self.cost.map(|left| left.minus(cost));
    }

    fn give_back(&mut self, (tokens, cost): (u64, PicoUsd)) {
        self.tokens = self.tokens.map(|left| left.saturating_add(tokens));
        self.cost = self.cost.map(|left| left.plus(cost));
    }
}

/// What is set aside for one call. Dropped without being settled, all of it counts as used.
#[derive(Debug)]
pub(crate) struct Reservation {
    budget: Arc<LlmBudget>,
    wish: Wish,
    output: u64,
    held: (u64, PicoUsd),
    open: bool,
}

/// How a settlement came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Reported,
    Estimated,
}

impl Reservation {
    /// Tokens each answer may have.
    pub(crate) fn output(&self) -> u64 {
        self.output
    }

    /// More tokens than the prompt can come to.
    pub(crate) fn input(&self) -> u64 {
        self.wish.input
    }

    /// How many answers there are.
    pub(crate) fn answers(&self) -> u64 {
        self.wish.answers
    }

    /// What was spent and what is left beside this.
    pub(crate) fn standing(&self) -> Standing {
        self.budget.standing()
    }

    /// Sets more aside, for answers that turn out longer.
    pub(crate) fn extend(&mut self, output: u64) -> Result<(), Exhausted> {
        let wanted = self.wish.held(output);
        let more = (
            wanted.0.saturating_sub(self.held.0),
            wanted.1.minus(self.held.1),
        );
        let mut account = self.budget.account();
        account.left.covers(more)?;
        account.own.covers(more)?;
        account.take(more);
        self.held = (self.held.0.max(wanted.0), self.held.1.max(wanted.1));
        self.output = self.output.max(output);
        Ok(())
    }

    /// Charges what was used, and gives the rest back.
    pub(crate) fn settle(mut self, model: &str, tokens: Tokens, cost: PicoUsd, source: Source) {
        self.close(Some((model, tokens, cost, source)));
    }

    /// Gives everything back: the call was never made.
    pub(crate) fn release(mut self) {
        self.close(None);
    }

    fn close(&mut self, used: Option<(&str, Tokens, PicoUsd, Source)>) {
        if !std::mem::take(&mut self.open) {
            return;
        }
        let mut account = self.budget.account();
        account.reserved = account.reserved.saturating_sub(1);
        let mut rest = self.held;
        if let Some((model, tokens, cost, source)) = used {
            account.usage.add(model, tokens, cost, source);
            // Whatever a call used beyond what it held is missing from what is left.
            let beyond = (tokens.total().saturating_sub(rest.0), cost.minus(rest.1));
            account.take(beyond);
            rest = (rest.0.saturating_sub(tokens.total()), rest.1.minus(cost));
        }
        account.own.give_back(rest);
        drop(account);
        self.budget.give_back(rest);
        self.budget.settled.notify_waiters();
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let tokens = Tokens {
            input: self.wish.input,
            output: self.output.saturating_mul(self.wish.answers),
            ..Tokens::default()
        };
        let cost = self.held.1;
        self.close(Some(("unknown", tokens, cost, Source::Estimated)));
    }
}

impl LlmUsage {
    /// What was used since then.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let models = self.models.iter().map(|(name, now)| {
            let then = before.models.get(name).copied().unwrap_or_default();
            (name.clone(), now.since(&then))
        });
        Self {
            total: self.total.since(&before.total),
            models: models.filter(|(_, used)| used.calls > 0).collect(),
        }
    }

    fn add(&mut self, model: &str, tokens: Tokens, cost: PicoUsd, source: Source) {
        let room = self.models.len() < MOST_MODELS || self.models.contains_key(model);
        let model = if room { model } else { "others" };
        for usage in [
            &mut self.total,
            self.models.entry(model.to_owned()).or_default(),
        ] {
            usage.calls = usage.calls.saturating_add(1);
            usage.tokens = usage.tokens.plus(&tokens);
            usage.cost = usage.cost.plus(cost);
            usage.estimated = usage
                .estimated
                .saturating_add(u64::from(source == Source::Estimated));
        }
    }
}

#[cfg(test)]
mod tests;
