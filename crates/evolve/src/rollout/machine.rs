//! The state of a rollout: the fold of its events. Pure.

use serde::{Deserialize, Serialize};

use super::plan::Plan;
use crate::compare::canary::{Canary, Outcome, Round};

/// The most rounds of one step. After that it holds until somebody decides.
pub const MOST_ROUNDS: u32 = 5000;

/// Where a rollout is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// The candidate runs where nobody uses its answers.
    Shadow,
    /// It runs on this share of the instances.
    Percent(u8),
    /// It took over.
    Done,
    /// It is being taken back.
    GoingBack,
    /// It was taken back.
    RolledBack,
}

impl std::fmt::Display for Stage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Shadow => f.write_str("shadow"),
            Self::Percent(share) => write!(f, "{share} %"),
            Self::Done => f.write_str("done"),
            Self::GoingBack => f.write_str("going back"),
            Self::RolledBack => f.write_str("rolled back"),
        }
    }
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case", deny_unknown_fields)]
pub enum Event {
    /// It began.
    Started {
        /// The proposal.
        proposal: String,
        /// The tree before.
        base: String,
        /// The tree after.
        candidate: String,
        /// How it is done.
        plan: Box<Plan>,
    },
    /// The instances were looked at.
    Observed {
        /// What they reported.
        round: Round,
    },
    /// The next step was taken.
    Advanced {
        /// To where.
        to: Stage,
    },
    /// Somebody holds it.
    Paused {
        /// Why.
        why: String,
    },
    /// It goes on.
    Resumed,
    /// It is to be taken back, whatever else happens.
    GoingBack {
        /// Why.
        why: String,
    },
    /// It was taken back.
    RolledBack,
}

/// What is to be done next.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// Look at the instances.
    Observe,
    /// Take the next step.
    Advance(Stage),
    /// Take it back.
    RollBack(String),
    /// Nothing, until somebody decides.
    Hold(&'static str),
    /// Nothing: it has ended.
    Nothing,
}

/// An event that can't happen here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a rollout at {at} can't have this event: {event}")]
pub struct OutOfPlace {
    /// Where it is.
    pub at: String,
    /// What came.
    pub event: &'static str,
}

/// A rollout.
#[derive(Clone, Debug)]
pub struct Rollout {
    /// The proposal.
    pub proposal: String,
    /// The tree before.
    pub base: String,
    /// The tree after.
    pub candidate: String,
    /// How it is done.
    pub plan: Plan,
    stage: Stage,
    paused: Option<String>,
    why_back: Option<String>,
    canary: Canary,
}

impl Rollout {
    /// A rollout from its first event.
    ///
    /// # Errors
    /// When that is not its start.
    pub fn begin(event: &Event) -> Result<Self, OutOfPlace> {
        let Event::Started {
            proposal,
            base,
            candidate,
            plan,
        } = event
        else {
            return Err(OutOfPlace {
                at: "its beginning".to_owned(),
                event: name(event),
            });
        };
        let first = if plan.shadow.is_empty() {
            Stage::Percent(plan.steps.first().copied().unwrap_or(100))
        } else {
            Stage::Shadow
        };
        Ok(Self {
            proposal: proposal.clone(),
            base: base.clone(),
            candidate: candidate.clone(),
            canary: Canary::new(plan.bounds),
            plan: (**plan).clone(),
            stage: first,
            paused: None,
            why_back: None,
        })
    }

    /// Takes an event in.
    ///
    /// # Errors
    /// When it can't happen here; nothing is changed then.
    pub fn apply(&mut self, event: &Event) -> Result<(), OutOfPlace> {
        let is_under_way = matches!(self.stage, Stage::Shadow | Stage::Percent(_));
        match event {
            Event::Observed { round } if is_under_way => self.canary.observe(round),
            Event::Advanced { to } if is_under_way && *to == self.following() => {
                self.stage = *to;
                self.canary = Canary::new(self.plan.bounds);
            }
            Event::Paused { why } if is_under_way => self.paused = Some(why.clone()),
            Event::Resumed if is_under_way => self.paused = None,
            Event::GoingBack { why } if is_under_way || self.stage == Stage::Done => {
                self.stage = Stage::GoingBack;
                self.why_back = Some(why.clone());
            }
            Event::RolledBack if self.stage == Stage::GoingBack => self.stage = Stage::RolledBack,
            other => {
                return Err(OutOfPlace {
                    at: self.stage.to_string(),
                    event: name(other),
                });
            }
        }
        Ok(())
    }

    fn following(&self) -> Stage {
        let steps = &self.plan.steps;
        let after = match self.stage {
            Stage::Shadow => steps.first(),
            Stage::Percent(now) => steps.iter().find(|step| **step > now),
            other => return other,
        };
        match after {
            // All of them: there is nobody left to compare with, and nothing left to wait for.
            Some(100) | None => Stage::Done,
            Some(share) => Stage::Percent(*share),
        }
    }

    /// What is to be done next.
    #[must_use]
    pub fn next(&self) -> Next {
        match self.stage {
            Stage::Done | Stage::RolledBack => return Next::Nothing,
            Stage::GoingBack => return Next::RollBack(self.why_back.clone().unwrap_or_default()),
            Stage::Shadow | Stage::Percent(_) => {}
        }
        match self.canary.outcome() {
            // Worse is worse, paused or not.
            Outcome::Fail(metrics) => {
                let names: Vec<&str> = metrics.iter().map(|metric| metric.as_str()).collect();
                Next::RollBack(format!("worse at {}: {}", self.stage, names.join(", ")))
            }
            Outcome::Blind => Next::RollBack(format!("figures are missing at {}", self.stage)),
            _ if self.paused.is_some() => Next::Hold("paused"),
            Outcome::Pass => Next::Advance(self.following()),
            Outcome::Hold if self.canary.rounds() >= MOST_ROUNDS => Next::Hold("undecided"),
            Outcome::Hold => Next::Observe,
        }
    }

    /// Where it is.
    #[must_use]
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// Why it is held, if somebody holds it.
    #[must_use]
    pub fn paused(&self) -> Option<&str> {
        self.paused.as_deref()
    }

    /// Why it goes or went back.
    #[must_use]
    pub fn why_back(&self) -> Option<&str> {
        self.why_back.as_deref()
    }

    /// Whether nothing will happen any more.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        matches!(self.stage, Stage::Done | Stage::RolledBack)
    }

    /// The comparison of this step.
    #[must_use]
    pub fn canary(&self) -> &Canary {
        &self.canary
    }

    /// The instances that run the candidate now.
    #[must_use]
    pub fn on_candidate(&self) -> Vec<&str> {
        let shadow = self.plan.shadow.iter().map(String::as_str);
        match self.stage {
            Stage::Shadow => shadow.collect(),
            Stage::Percent(share) => shadow
                .chain(self.plan.chosen(&self.candidate, share))
                .collect(),
            Stage::Done => shadow
                .chain(self.plan.instances.iter().map(String::as_str))
                .collect(),
            Stage::GoingBack | Stage::RolledBack => Vec::new(),
        }
    }

    /// Those that are compared as the candidate's side: shadows only while nothing else runs it.
    #[must_use]
    pub fn compared(&self) -> Vec<&str> {
        match self.stage {
            Stage::Percent(share) => self.plan.chosen(&self.candidate, share),
            _ => self.on_candidate(),
        }
    }
}

fn name(event: &Event) -> &'static str {
    match event {
        Event::Started { .. } => "started",
        Event::Observed { .. } => "observed",
        Event::Advanced { .. } => "advanced",
        Event::Paused { .. } => "paused",
        Event::Resumed => "resumed",
        Event::GoingBack { .. } => "going_back",
        Event::RolledBack => "rolled_back",
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::compare::canary::Sample;
    use proptest::prelude::*;

    fn started(shadow: &str) -> Event {
        let text = format!(
            "instances = ['a', 'b', 'c', 'd', 'e']\nshadow = [{shadow}]\nhealth = ['true']\n"
        );
        Event::Started {
            proposal: "p".into(),
            base: "old".into(),
            candidate: "new".into(),
            plan: Box::new(Plan::parse(&text).unwrap()),
        }
    }

    fn sample(errors: u64) -> Sample {
        Sample {
            requests: 1000,
            errors,
            violations: 0,
            latency_ms: 5.0,
            cost: 1.0,
        }
    }

    fn observed(before: u64, after: u64) -> Event {
        let round = Round {
            baseline: vec![sample(before)],
            candidate: vec![sample(after)],
        };
        Event::Observed { round }
    }

    #[test]
    fn good_figures_lead_through_every_step_to_the_end() {
        let mut rollout = Rollout::begin(&started("'s'")).unwrap();
        let mut seen = vec![rollout.stage()];
        while !rollout.has_ended() {
            match rollout.next() {
                Next::Observe => rollout.apply(&observed(5, 5)).unwrap(),
                Next::Advance(to) => {
                    rollout.apply(&Event::Advanced { to }).unwrap();
                    seen.push(to);
                }
                other => panic!("{other:?}"),
            }
        }
        let steps = [5, 25, 50].map(Stage::Percent);
        assert_eq!(seen[0], Stage::Shadow);
        assert_eq!(seen[1..4], steps);
        assert_eq!(seen[4..], [Stage::Done]);
    }

    #[test]
    fn a_step_is_never_skipped_and_an_end_is_an_end() {
        let mut rollout = Rollout::begin(&started("'s'")).unwrap();
        let jump = Event::Advanced {
            to: Stage::Percent(50),
        };
        assert!(rollout.apply(&jump).is_err());
        assert!(rollout.apply(&Event::Advanced { to: Stage::Done }).is_err());
        assert!(
            rollout.apply(&Event::RolledBack).is_err(),
            "nothing was taken back"
        );
        rollout
            .apply(&Event::GoingBack { why: "x".into() })
            .unwrap();
        assert!(rollout.on_candidate().is_empty());
        assert!(
            rollout
                .apply(&Event::Advanced {
                    to: Stage::Percent(5)
                })
                .is_err()
        );
        assert_eq!(rollout.next(), Next::RollBack("x".into()));
        rollout.apply(&Event::RolledBack).unwrap();
        assert_eq!(rollout.next(), Next::Nothing);
        assert!(rollout.apply(&Event::Resumed).is_err());
    }

    #[test]
    fn a_paused_rollout_waits_but_a_failing_one_still_goes_back() {
        let mut rollout = Rollout::begin(&started("")).unwrap();
        rollout
            .apply(&Event::Paused {
                why: "lunch".into(),
            })
            .unwrap();
        assert_eq!(rollout.next(), Next::Hold("paused"));
        for _ in 0..3 {
            rollout.apply(&observed(5, 900)).unwrap();
        }
        assert!(matches!(rollout.next(), Next::RollBack(_)));
    }

    proptest! {
        #[test]
        fn no_run_of_events_gets_past_a_step_without_good_figures(choices in prop::collection::vec(0..6u8, 0..60)) {
            let mut rollout = Rollout::begin(&started("'s'")).unwrap();
            for choice in choices {
                let event = match choice {
                    0 => observed(5, 5),
                    1 => observed(5, 400),
                    2 => Event::Paused { why: String::new() },
                    3 => Event::Resumed,
                    4 => match rollout.next() {
                        Next::Advance(to) => {
                            prop_assert_eq!(rollout.canary().outcome(), Outcome::Pass);
                            Event::Advanced { to }
                        }
                        Next::RollBack(why) => Event::GoingBack { why },
                        _ => continue,
                    },
                    _ => Event::RolledBack,
                };
                let _ = rollout.apply(&event);
                // Before the last step somebody always runs what was there before.
                if !matches!(rollout.stage(), Stage::Done) {
                    let kept = rollout.plan.instances.iter().filter(|one| !rollout.on_candidate().contains(&one.as_str()));
                    prop_assert!(kept.count() > 0);
                }
            }
        }
    }
}
