//! What a family of agents may use together: a vector of amounts that is carved, never copied.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An amount of one resource: a number, or no bound at all.
///
/// The largest number stands for "no bound", so that comparing and taking the lesser are plain
/// integer operations. In documents it is `null`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Amount(u64);

impl Amount {
    /// Nothing.
    pub const ZERO: Self = Self(0);
    /// No bound.
    pub const UNBOUNDED: Self = Self(u64::MAX);

    /// That many; a number too large to be told from "no bound" is brought just below it.
    #[must_use]
    pub const fn of(number: u64) -> Self {
        Self(if number == u64::MAX {
            number - 1
        } else {
            number
        })
    }

    /// The number, if it is bounded.
    #[must_use]
    pub const fn number(self) -> Option<u64> {
        if self.0 == u64::MAX {
            None
        } else {
            Some(self.0)
        }
    }

    /// Whether there is a bound.
    #[must_use]
    pub const fn is_bounded(self) -> bool {
        self.0 != u64::MAX
    }

    /// What is left after taking `part`, or `None` if there is not so much. An unbounded amount
    /// stays unbounded; nothing unbounded can be taken from a bounded one.
    #[must_use]
    pub const fn less(self, part: Self) -> Option<Self> {
        match (self.number(), part.number()) {
            (None, _) => Some(self),
            (Some(_), None) => None,
            (Some(have), Some(take)) => match have.checked_sub(take) {
                Some(left) => Some(Self(left)),
                None => None,
            },
        }
    }

    /// Both together. It never wraps: a sum too large stays the largest bounded amount.
    #[must_use]
    pub const fn plus(self, part: Self) -> Self {
        match (self.number(), part.number()) {
            (Some(have), Some(add)) => Self::of(have.saturating_add(add)),
            _ => Self::UNBOUNDED,
        }
    }
}

impl From<Option<u64>> for Amount {
    fn from(number: Option<u64>) -> Self {
        number.map_or(Self::UNBOUNDED, Self::of)
    }
}

impl Serialize for Amount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.number().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Option::<u64>::deserialize(deserializer).map(Self::from)
    }
}

/// One thing a budget counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Dimension {
    /// Replicas below an agent, alive at once.
    Replicas,
    /// CPU time, in milliseconds.
    CpuMs,
    /// Memory held at once, in mebibytes.
    MemoryMb,
    /// Processes and threads alive at once.
    Pids,
    /// Model tokens.
    Tokens,
    /// Money, in millionths of a US dollar.
    MicroUsd,
}

impl Dimension {
    /// All of them, in the order of [`Budget`]'s fields.
    pub const ALL: [Self; 6] = [
        Self::Replicas,
        Self::CpuMs,
        Self::MemoryMb,
        Self::Pids,
        Self::Tokens,
        Self::MicroUsd,
    ];

    /// The name in documents.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Replicas => "replicas",
            Self::CpuMs => "cpu_ms",
            Self::MemoryMb => "memory_mb",
            Self::Pids => "pids",
            Self::Tokens => "tokens",
            Self::MicroUsd => "micro_usd",
        }
    }

    /// Whether using it uses it up. What is merely held comes back whole when its holder ends.
    #[must_use]
    pub fn is_used_up(self) -> bool {
        match self {
            Self::CpuMs | Self::Tokens | Self::MicroUsd => true,
            Self::Replicas | Self::MemoryMb | Self::Pids => false,
        }
    }
}

/// What an agent and all its descendants may use together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// Replicas below it, alive at once.
    pub replicas: Amount,
    /// CPU time, in milliseconds.
    pub cpu_ms: Amount,
    /// Memory held at once, in mebibytes.
    pub memory_mb: Amount,
    /// Processes and threads alive at once.
    pub pids: Amount,
    /// Model tokens.
    pub tokens: Amount,
    /// Money, in millionths of a US dollar.
    pub micro_usd: Amount,
}

impl Budget {
    /// Nothing at all.
    pub const ZERO: Self = Self::filled(Amount::ZERO);
    /// No bound on anything.
    pub const UNBOUNDED: Self = Self::filled(Amount::UNBOUNDED);

    /// The same amount of everything.
    #[must_use]
    pub const fn filled(amount: Amount) -> Self {
        Self {
            replicas: amount,
            cpu_ms: amount,
            memory_mb: amount,
            pids: amount,
            tokens: amount,
            micro_usd: amount,
        }
    }

    /// A budget made dimension by dimension.
    #[must_use]
    pub fn from_fn(mut amount: impl FnMut(Dimension) -> Amount) -> Self {
        Self {
            replicas: amount(Dimension::Replicas),
            cpu_ms: amount(Dimension::CpuMs),
            memory_mb: amount(Dimension::MemoryMb),
            pids: amount(Dimension::Pids),
            tokens: amount(Dimension::Tokens),
            micro_usd: amount(Dimension::MicroUsd),
        }
    }

    /// The amount of one thing.
    #[must_use]
    pub const fn of(&self, dimension: Dimension) -> Amount {
        match dimension {
            Dimension::Replicas => self.replicas,
            Dimension::CpuMs => self.cpu_ms,
            Dimension::MemoryMb => self.memory_mb,
            Dimension::Pids => self.pids,
            Dimension::Tokens => self.tokens,
            Dimension::MicroUsd => self.micro_usd,
        }
    }

    /// Whether no dimension exceeds `whole`'s; else the first that does.
    pub fn within(&self, whole: &Self) -> Result<(), Dimension> {
        match Dimension::ALL
            .into_iter()
            .find(|d| self.of(*d) > whole.of(*d))
        {
            None => Ok(()),
            Some(dimension) => Err(dimension),
        }
    }

    /// What is left after taking `part`; or the first dimension that has not so much.
    pub fn less(&self, part: &Self) -> Result<Self, Dimension> {
        let mut short = None;
        let left = Self::from_fn(|d| {
            self.of(d).less(part.of(d)).unwrap_or_else(|| {
                short = short.or(Some(d));
                Amount::ZERO
            })
        });
        short.map_or(Ok(left), Err)
    }

    /// Both together.
    #[must_use]
    pub fn plus(&self, part: &Self) -> Self {
        Self::from_fn(|d| self.of(d).plus(part.of(d)))
    }

    /// The lesser in each dimension.
    #[must_use]
    pub fn meet(&self, other: &Self) -> Self {
        Self::from_fn(|d| self.of(d).min(other.of(d)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn amount() -> impl Strategy<Value = Amount> {
        prop_oneof![
            Just(Amount::UNBOUNDED),
            Just(Amount::of(u64::MAX)),
            (0u64..50).prop_map(Amount::of),
            any::<u64>().prop_map(Amount::of),
        ]
    }

    fn budget() -> impl Strategy<Value = Budget> {
        proptest::array::uniform6(amount()).prop_map(|a| {
            let mut next = a.into_iter();
            Budget::from_fn(|_| next.next().expect("six amounts for six dimensions"))
        })
    }

    proptest! {
        #[test]
        fn what_is_taken_and_left_is_what_there_was(whole in budget(), part in budget()) {
            match whole.less(&part) {
                Ok(left) => {
                    prop_assert!(part.within(&whole).is_ok());
                    prop_assert!(left.within(&whole).is_ok());
                    let both = left.plus(&part);
                    for d in Dimension::ALL {
                        prop_assert_eq!(both.of(d), whole.of(d));
                    }
                }
                Err(short) => prop_assert!(part.of(short) > whole.of(short)),
            }
        }

        #[test]
        fn the_meet_is_within_both_and_the_largest_such(a in budget(), b in budget(), c in budget()) {
            let meet = a.meet(&b);
            prop_assert!(meet.within(&a).is_ok() && meet.within(&b).is_ok());
            if c.within(&a).is_ok() && c.within(&b).is_ok() {
                prop_assert!(c.within(&meet).is_ok());
            }
        }

        #[test]
        fn documents_keep_every_amount(a in budget()) {
            let text = serde_json::to_string(&a).unwrap();
            prop_assert_eq!(serde_json::from_str::<Budget>(&text).unwrap(), a);
        }
    }

    #[test]
    fn nothing_unbounded_comes_out_of_a_bounded_amount() {
        assert_eq!(Amount::of(7).less(Amount::UNBOUNDED), None);
        assert_eq!(
            Amount::UNBOUNDED.less(Amount::UNBOUNDED),
            Some(Amount::UNBOUNDED)
        );
        assert!(Amount::of(u64::MAX).is_bounded());
        assert!(Amount::of(u64::MAX).plus(Amount::of(9)).is_bounded());
    }

    #[test]
    fn an_unknown_dimension_is_refused() {
        let text =
            r#"{"replicas":1,"cpu_ms":1,"memory_mb":1,"pids":1,"tokens":1,"micro_usd":1,"gold":1}"#;
        assert!(serde_json::from_str::<Budget>(text).is_err());
    }
}
