//! Stop conditions: expressions over the fleet, and closures of Rust callers.

mod compile;
mod expression;
mod facts;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use belljar_policy::{OnTrigger, StopCondition};

pub use compile::{InvalidCondition, MAX_CONDITIONS, MAX_EXPRESSION_BYTES, Problem};
pub use expression::Fails;
pub use facts::{Facts, VARIABLES, Variable, WorkerFacts};

pub(crate) use facts::Depends;

use crate::holes::enforced;
use expression::Expression;

/// A stop condition written in Rust. It must be quick: it runs at every grant and for every worker.
///
/// A panic in it counts as "holds" at a grant. Where the program is built to abort on panic, as our
/// release binary is, it ends the program instead.
pub type Predicate = Arc<dyn Fn(&Facts) -> bool + Send + Sync>;

enum Test {
    Expression(Expression),
    Predicate(Predicate),
}

/// A condition, ready to be evaluated.
pub(crate) struct Condition {
    pub(crate) name: Arc<str>,
    pub(crate) on_trigger: OnTrigger,
    pub(crate) depends: Depends,
    /// Whether it held when it was last evaluated for the fleet.
    pub(crate) held: bool,
    test: Test,
}

impl fmt::Debug for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Condition({})", self.name)
    }
}

impl Condition {
    pub(crate) fn compile(condition: &StopCondition) -> Result<Self, InvalidCondition> {
        let expression = compile::compile(condition)?;
        Ok(Self {
            name: Arc::from(condition.name.as_str()),
            on_trigger: condition.on_trigger,
            depends: expression.depends(),
            held: false,
            test: Test::Expression(expression),
        })
    }

    pub(crate) fn closure(name: &str, on_trigger: OnTrigger, predicate: Predicate) -> Self {
        Self {
            name: Arc::from(name),
            on_trigger,
            // What a closure looks at is not known, so it is asked whenever anything changes.
            depends: Depends::ALL,
            held: false,
            test: Test::Predicate(predicate),
        }
    }

    pub(crate) fn is_closure(&self) -> bool {
        matches!(self.test, Test::Predicate(_))
    }

    /// Whether it is about single workers, not only the fleet.
    pub(crate) fn is_per_worker(&self) -> bool {
        self.depends.has_any(Depends::WORKER)
    }

    /// Whether it holds; an error if that can't be told.
    pub(crate) fn holds(&self, facts: &Facts) -> Result<bool, Fails> {
        match &self.test {
            Test::Expression(expression) => expression.evaluate(facts),
            Test::Predicate(predicate) => {
                catch_unwind(AssertUnwindSafe(|| predicate(facts))).map_err(|_| Fails::Panicked)
            }
        }
    }

    /// Why it forbids a grant, if it does. What can't be told forbids.
    pub(crate) fn forbids(&self, facts: &Facts) -> Option<Option<Fails>> {
        match self.holds(facts) {
            Ok(true) => Some(None),
            Ok(false) => None,
            Err(Fails::Panicked) => enforced!(StopPanic, true).then_some(Some(Fails::Panicked)),
            Err(fails) => enforced!(StopError, true).then_some(Some(fails)),
        }
    }
}

/// All conditions of a contract, compiled.
pub(crate) fn compile_all(
    conditions: &[StopCondition],
) -> Result<Vec<Condition>, InvalidCondition> {
    compile::check_names(conditions)?;
    conditions.iter().map(Condition::compile).collect()
}

/// Checks the stop conditions of a contract, as a controller would before it takes the contract.
pub fn check(conditions: &[StopCondition]) -> Result<(), InvalidCondition> {
    compile_all(conditions).map(|_| ())
}

#[cfg(test)]
mod tests;
