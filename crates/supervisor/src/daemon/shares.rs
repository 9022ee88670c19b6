//! How a contract's budget is shared among declared agents: by what each says, and evenly where they say nothing.

use belljar_policy::{Amount, Budget, Dimension};
use belljar_replication::Asked;

use super::AgentSpec;

/// Declared agents want more than the contract has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the agents' shares of {} come to {wanted}, and the contract has {has}", .dimension.as_str())]
pub struct Overcommitted {
    /// Of what.
    pub dimension: Dimension,
    /// What they come to.
    pub wanted: u64,
    /// What there is.
    pub has: u64,
}

/// What each agent and its replicas get: as many budgets as agents, and together never more than the whole. What the contract does not
/// bound stays unbounded where the agent itself says nothing.
///
/// # Errors
/// The first thing of which they want more than there is.
pub fn shares(whole: &Budget, agents: &[AgentSpec]) -> Result<Vec<Budget>, Overcommitted> {
    let mut shares = vec![Budget::UNBOUNDED; agents.len()];
    for dimension in Dimension::ALL {
        let said: Vec<Option<u64>> = agents.iter().map(|it| said(whole, it, dimension)).collect();
        let wanted: u64 = said
            .iter()
            .flatten()
            .fold(0, |sum, n| sum.saturating_add(*n));
        let silent = said.iter().filter(|said| said.is_none()).count() as u64;
        let even = match whole.of(dimension).number() {
            Some(has) if wanted > has => {
                return Err(Overcommitted {
                    dimension,
                    wanted,
                    has,
                });
            }
            Some(has) => Amount::of((has - wanted).checked_div(silent).unwrap_or(0)),
            None => Amount::UNBOUNDED,
        };
        for (share, said) in shares.iter_mut().zip(said) {
            let amount = said.map_or(even, Amount::of);
            let old = *share;
            *share = Budget::from_fn(|d| if d == dimension { amount } else { old.of(d) });
        }
    }
    Ok(shares)
}

/// What an agent says of one thing. A share of what is not bounded says nothing. Rounded down, so that parts never exceed the whole.
fn said(whole: &Budget, agent: &AgentSpec, dimension: Dimension) -> Option<u64> {
    match (agent.share, whole.of(dimension).number()) {
        (Some(share), Some(has)) => Some((has as f64 * share.clamp(0.0, 1.0)).floor() as u64),
        (Some(_), None) => None,
        (None, _) => agent.budget.of(dimension).number(),
    }
}

/// What an agent asks for: its share less what earlier lives of that name spent, and no more than there is.
pub(super) fn asked(share: &Budget, spent: &Budget, free: &Budget) -> Asked {
    let amount = |dimension: Dimension| {
        let share = share.of(dimension).number()?;
        let spent = spent.of(dimension).number().unwrap_or(0);
        let left = Amount::of(share.saturating_sub(spent));
        Some(left.min(free.of(dimension)))
    };
    Asked {
        replicas: amount(Dimension::Replicas),
        cpu_ms: amount(Dimension::CpuMs),
        memory_mb: amount(Dimension::MemoryMb),
        pids: amount(Dimension::Pids),
        tokens: amount(Dimension::Tokens),
        micro_usd: amount(Dimension::MicroUsd),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(share: Option<f64>, cpu_ms: Option<u64>) -> AgentSpec {
        AgentSpec {
            share,
            budget: Budget {
                cpu_ms: Amount::from(cpu_ms),
                ..Budget::UNBOUNDED
            },
            ..AgentSpec::named("a")
        }
    }

    #[test]
    fn who_says_nothing_gets_an_even_part_of_the_rest() {
        let whole = Budget {
            cpu_ms: Amount::of(1000),
            tokens: Amount::of(10),
            ..Budget::UNBOUNDED
        };
        type Case<'a> = (&'a [AgentSpec], Result<Vec<u64>, u64>);
        let cases: [Case<'_>; 6] = [
            (&[agent(None, None)], Ok(vec![1000])),
            (
                &[agent(None, None), agent(None, None), agent(None, None)],
                Ok(vec![333; 3]),
            ),
            (
                &[agent(Some(0.5), None), agent(None, None), agent(None, None)],
                Ok(vec![500, 250, 250]),
            ),
            (
                &[agent(None, Some(900)), agent(None, None)],
                Ok(vec![900, 100]),
            ),
            (&[agent(None, Some(900)), agent(Some(0.2), None)], Err(1100)),
            (
                &[agent(Some(1.0), None), agent(None, None)],
                Ok(vec![1000, 0]),
            ),
        ];
        for (agents, expected) in cases {
            let got = shares(&whole, agents);
            let cpu = got
                .map(|shares| {
                    let all = shares.iter().map(|share| share.cpu_ms.number().unwrap());
                    all.collect::<Vec<_>>()
                })
                .map_err(|error| error.wanted);
            assert_eq!(cpu, expected, "{agents:?}");
        }
        let unbounded = shares(&Budget::UNBOUNDED, &[agent(Some(0.5), None)]).unwrap();
        assert_eq!(unbounded, [Budget::UNBOUNDED]);
    }

    #[test]
    fn a_later_life_gets_what_the_earlier_ones_left() {
        let of = |n| Budget::filled(Amount::of(n));
        let cpu = |share, spent, free| {
            asked(&of(share), &of(spent), &of(free))
                .cpu_ms
                .and_then(Amount::number)
        };
        assert_eq!(cpu(100, 30, 1000), Some(70));
        assert_eq!(cpu(100, 30, 50), Some(50));
        assert_eq!(cpu(100, 130, 50), Some(0));
        assert_eq!(asked(&Budget::UNBOUNDED, &of(1), &of(1)), Asked::default());
    }
}
