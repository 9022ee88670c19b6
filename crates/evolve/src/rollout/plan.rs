//! How a candidate is rolled out: the operator's file, never the project's.

use serde::{Deserialize, Serialize};

use super::supervised::Supervised;
use crate::compare::canary::Bounds;
use crate::release::Place;

/// The most instances of a project.
const MOST_INSTANCES: usize = 1000;

/// `rollout.toml`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The instances. Each runs from a place of its own, `instances/NAME`. Where a supervisor keeps them, its agents are meant.
    #[serde(default)]
    pub instances: Vec<String>,
    /// The supervisor keeps the instances.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub supervised: Option<Supervised>,
    /// Instances whose answers nobody uses: they run the candidate first.
    #[serde(default)]
    pub shadow: Vec<String>,
    /// A command that says how each instance is: one line of JSON for each. A supervisor does without.
    #[serde(default)]
    pub health: Vec<String>,
    /// A command that has instances take up what their places show; their names are added to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub apply: Vec<String>,
    /// How long either command may take.
    #[serde(default = "thirty")]
    pub timeout_seconds: u64,
    /// Shares of the instances, in percent, that run the candidate in turn. All of them come last.
    #[serde(default = "steps")]
    pub steps: Vec<u8>,
    /// How sure one must be.
    #[serde(default)]
    pub bounds: Bounds,
}

fn thirty() -> u64 {
    30
}

fn steps() -> Vec<u8> {
    vec![5, 25, 50, 100]
}

/// A plan can't be followed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidPlan {
    /// Not a plan.
    #[error("the plan can't be read")]
    Form(#[from] toml::de::Error),
    /// Nothing to compare with.
    #[error(
        "a plan needs two instances or more, and {MOST_INSTANCES} at most: some run the candidate, some what it replaces"
    )]
    Instances,
    /// A name that is none, or twice.
    #[error("{0:?} can't be an instance's name, or is there twice")]
    Name(String),
    /// A shadow that does not live.
    #[error("no agent {0:?} lives")]
    NotThere(String),
    /// Steps that don't rise to all.
    #[error("the steps rise, and the last one is 100")]
    Steps,
    /// Nothing to ask.
    #[error("a plan has a `health` command: what can't be seen is not rolled out")]
    Health,
    /// Two ways to have instances take a release up, or to say who they are.
    #[error(
        "the supervisor's agents are the instances: a plan with `[supervised]` has no `instances` and no `apply`"
    )]
    TwoWays,
    /// A supervisor that never looks.
    #[error("`every_seconds` is between 1 and 3600")]
    Every,
    /// Bounds that would let anything through.
    #[error("`{0}` is out of bounds")]
    Bounds(&'static str),
}

impl Plan {
    /// Reads and checks a plan.
    ///
    /// # Errors
    /// When it can't be followed.
    pub fn parse(text: &str) -> Result<Self, InvalidPlan> {
        let plan: Self = toml::from_str(text)?;
        plan.checked()
    }

    /// The same plan with the agents it is about: those that live and whose names it means.
    ///
    /// # Errors
    /// When there are too few or too many, or a shadow is not among them.
    pub fn among<'n>(
        mut self,
        living: impl IntoIterator<Item = &'n String>,
    ) -> Result<Self, InvalidPlan> {
        let Some(supervised) = &self.supervised else {
            return Ok(self);
        };
        let living: Vec<&String> = living.into_iter().collect();
        if let Some(absent) = self.shadow.iter().find(|name| !living.contains(name)) {
            return Err(InvalidPlan::NotThere(absent.clone()));
        }
        let meant = living
            .into_iter()
            .filter(|name| supervised.means(name) && !self.shadow.contains(name));
        self.instances = meant.cloned().collect();
        self.check_instances()?;
        Ok(self)
    }

    fn check_instances(&self) -> Result<(), InvalidPlan> {
        if !(2..=MOST_INSTANCES).contains(&self.instances.len()) {
            return Err(InvalidPlan::Instances);
        }
        let mut seen = std::collections::BTreeSet::new();
        for name in self.instances.iter().chain(&self.shadow) {
            if Place::instance(name).is_err() || !seen.insert(name) {
                return Err(InvalidPlan::Name(name.clone()));
            }
        }
        Ok(())
    }

    fn checked(self) -> Result<Self, InvalidPlan> {
        match &self.supervised {
            None => self.check_instances()?,
            Some(_) if !self.instances.is_empty() || !self.apply.is_empty() => {
                return Err(InvalidPlan::TwoWays);
            }
            Some(supervised) if !(1..=3600).contains(&supervised.every_seconds) => {
                return Err(InvalidPlan::Every);
            }
            Some(_) => {}
        }
        let rises = self.steps.windows(2).all(|pair| pair[0] < pair[1]);
        let ends = (self.steps.first(), self.steps.last());
        if !rises || ends.1 != Some(&100) || ends.0 == Some(&0) {
            return Err(InvalidPlan::Steps);
        }
        let is_blind = self.health.is_empty() && self.supervised.is_none();
        if is_blind || !(1..=3600).contains(&self.timeout_seconds) {
            return Err(InvalidPlan::Health);
        }
        let Bounds {
            false_alarm,
            missed,
            floor,
            error_margin,
            violation_margin,
            slower,
            least_rounds,
        } = self.bounds;
        // Each may be made stricter at will, and laxer only so far.
        let within = |value: f64, most: f64| value.is_finite() && (0.0..=most).contains(&value);
        let bad = [
            (
                "false_alarm",
                !within(false_alarm, 0.05) || false_alarm == 0.0,
            ),
            ("missed", !within(missed, 0.2) || missed == 0.0),
            ("floor", !within(floor, 0.2)),
            ("error_margin", !within(error_margin, 0.05)),
            ("violation_margin", !within(violation_margin, 0.01)),
            ("slower", !within(slower, 0.5)),
            ("least_rounds", least_rounds == 0),
        ];
        match bad.into_iter().find(|(_, is_bad)| *is_bad) {
            Some((name, _)) => Err(InvalidPlan::Bounds(name)),
            None => Ok(self),
        }
    }

    /// The instances that run the candidate at a share: at least one, and never all before the last step. Which ones come
    /// first depends on the candidate, so that it is not always the same.
    #[must_use]
    pub fn chosen(&self, candidate: &str, percent: u8) -> Vec<&str> {
        let mut order: Vec<(String, &str)> = self
            .instances
            .iter()
            .map(|name| {
                let words = [candidate.as_bytes(), name.as_bytes()];
                (belljar_gate::record::words_sha256(words), name.as_str())
            })
            .collect();
        order.sort();
        let all = order.len();
        let share = (all * usize::from(percent)).div_ceil(100);
        let count = if percent >= 100 {
            all
        } else {
            share.clamp(1, all - 1)
        };
        order
            .into_iter()
            .take(count)
            .map(|(_, name)| name)
            .collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    const GOOD: &str = "instances = ['a', 'b', 'c', 'd']\nhealth = ['true']\n";

    #[test]
    fn a_plan_is_checked() {
        assert_eq!(Plan::parse(GOOD).unwrap().steps, [5, 25, 50, 100]);
        for bad in [
            "instances = ['a']\nhealth = ['true']",
            "instances = ['a', 'a']\nhealth = ['true']",
            "instances = ['a', '../b']\nhealth = ['true']",
            "instances = ['a', 'b']\nhealth = []",
            "instances = ['a', 'b']",
            "instances = ['a', 'b']\nhealth = ['x']\nsteps = [50]",
            "instances = ['a', 'b']\nhealth = ['x']\nsteps = [50, 25, 100]",
            "instances = ['a', 'b']\nhealth = ['x']\nmore = 1",
            "instances = ['a', 'b']\nhealth = ['x']\n[bounds]\nfalse_alarm = 0.5",
            "instances = ['a', 'b']\nhealth = ['x']\n[bounds]\nerror_margin = 1.0",
            "instances = ['a', 'b']\nhealth = ['x']\n[bounds]\nmissed = nan",
            "instances = ['a', 'b']\n[supervised]\nagents = '*'",
            "apply = ['x']\n[supervised]\nagents = '*'",
            "[supervised]\nagents = '*'\nevery_seconds = 0",
            "[supervised]\nevery_seconds = 1",
        ] {
            assert!(Plan::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_agents_of_a_plan_are_those_that_live_and_are_meant() {
        let text = "shadow = ['w-0']\n[supervised]\nagents = 'w-*'\n";
        let of = |living: &[&str]| {
            let living: Vec<String> = living.iter().map(|name| (*name).to_owned()).collect();
            Plan::parse(text).unwrap().among(&living)
        };
        let plan = of(&["other", "w-0", "w-1", "w-2"]).unwrap();
        assert_eq!(plan.instances, ["w-1", "w-2"]);
        assert!(matches!(of(&["w-0", "w-1"]), Err(InvalidPlan::Instances)));
        assert!(matches!(of(&["w-1", "w-2"]), Err(InvalidPlan::NotThere(_))));
    }

    #[test]
    fn each_step_keeps_who_was_chosen_and_leaves_some_to_compare_with() {
        let plan = Plan::parse(GOOD).unwrap();
        let mut before = Vec::new();
        for percent in [5, 25, 50, 75, 99] {
            let chosen = plan.chosen("x", percent);
            assert!(chosen.starts_with(&before) && !chosen.is_empty() && chosen.len() < 4);
            before = chosen;
        }
        assert_eq!(plan.chosen("x", 100).len(), 4);
    }
}
