//! Money as whole numbers.

use std::fmt;

use serde::{Serialize, Serializer};

const PER_USD: f64 = 1e12;

/// An amount in pico-US-dollars: the cheapest token costs thousands of them, and 18 million dollars still fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PicoUsd(pub u64);

impl PicoUsd {
    /// An amount given in dollars, rounded down: a budget must not grow by rounding. What is not a positive number is nothing.
    #[must_use]
    pub fn from_usd(usd: f64) -> Self {
        // A cast from a float saturates, and turns what is no number into nothing.
        Self((usd * PER_USD).floor() as u64)
    }

    /// The amount in dollars, for showing.
    #[must_use]
    pub fn as_usd(self) -> f64 {
        self.0 as f64 / PER_USD
    }

    /// The amount in millionths of a dollar, rounded up: what was spent must not shrink by rounding.
    #[must_use]
    pub fn as_micro_usd(self) -> u64 {
        self.0.div_ceil(1_000_000)
    }

    /// An amount given in millionths of a dollar; more than fits is the most there is.
    #[must_use]
    pub fn from_micro_usd(micro: u64) -> Self {
        Self(micro.saturating_mul(1_000_000))
    }

    /// The price of so many tokens; more than fits is the most there is.
    pub(crate) fn times(self, tokens: u64) -> Self {
        let product = u128::from(self.0) * u128::from(tokens);
        Self(u64::try_from(product).unwrap_or(u64::MAX))
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    pub(crate) fn minus(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl fmt::Display for PicoUsd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "${:.6}", self.as_usd())
    }
}

/// In dollars, as reports have it.
impl Serialize for PicoUsd {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.as_usd())
    }
}
