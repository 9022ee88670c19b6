//! Expressions: what is refused when a contract is loaded, and that the rest means what CEL says.

use belljar_policy::{OnTrigger, StopCondition};
use cel::{Context, Program, Value};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed};

use super::compile::expression;
use super::*;

fn problem(text: &str) -> Problem {
    match expression(text) {
        Err(problem) => problem,
        Ok(_) => panic!("{text} should be refused"),
    }
}

fn named(name: &str) -> StopCondition {
    StopCondition {
        name: name.to_owned(),
        when: "workers.active > 1".to_owned(),
        on_trigger: OnTrigger::Deny,
        line: 4,
    }
}

#[test]
fn every_variable_can_be_used_and_has_a_meaning() {
    for variable in VARIABLES {
        assert!(
            expression(&format!("{} > 1", variable.name)).is_ok(),
            "{}",
            variable.name
        );
        assert!(!variable.meaning.is_empty());
    }
}

#[test]
fn mistakes_are_told_when_the_contract_is_loaded() {
    let told = problem("1 < 2 && workers.actve > 5").to_string();
    assert_eq!(
        told,
        "column 10: there is no `workers.actve`, did you mean `workers.active`?"
    );
    assert!(matches!(
        problem("gold > 5"),
        Problem::UnknownName { nearest: None, .. }
    ));
    assert!(matches!(
        problem("workers.active >"),
        Problem::Syntax { .. }
    ));
    assert!(matches!(problem(""), Problem::Syntax { .. }));
    for mixed in [
        "workers.active",
        "workers.active * 1.5 > 2.0",
        "!workers.active",
        "workers.active && true",
        "true > 1",
        "true ? 1 : 2.0",
        "-true == false",
        "5.0 % 2.0 > 1.0",
    ] {
        assert!(matches!(problem(mixed), Problem::Mixed(_)), "{mixed}");
    }
    for unsupported in [
        "'a' == 'a'",
        "[1].exists(x, x > 0)",
        "{1: 2}[1] > 0",
        "size([1]) > 0",
        "1u > 0u",
        "workers.active in workers",
        "workers.active.max(3) > 1",
        "has(workers.active)",
    ] {
        let told = problem(unsupported);
        assert!(
            matches!(told, Problem::Unsupported(_) | Problem::UnknownName { .. }),
            "{unsupported}: {told}"
        );
    }
}

#[test]
fn size_and_nesting_are_bounded_before_anything_is_parsed() {
    let deep =
        |open: &str, close: &str, n: usize| format!("{}true{}", open.repeat(n), close.repeat(n));
    for text in [
        deep("(", ")", 500),
        deep("!", "", 1_000),
        deep("- ", "", 400),
        deep("[", "]", 500),
        deep("true ? true : ", "", 60),
        "1".repeat(MAX_EXPRESSION_BYTES + 1),
        format!("{}1 > 0", "1 + ".repeat(250)),
    ] {
        assert!(matches!(problem(&text), Problem::TooMuch { .. }), "{text}");
    }
    assert!(expression(&deep("(", ")", 20)).is_ok());
    assert!(expression(&format!("{}true", "true && ".repeat(60))).is_ok());
}

#[test]
fn names_are_unique_and_conditions_counted() {
    assert!(check(&[named("a"), named("b")]).is_ok());
    let twice = check(&[named("a"), named("a")]).expect_err("a name twice");
    assert_eq!((twice.problem, twice.line), (Problem::Name, 4));
    let many: Vec<_> = (0..=MAX_CONDITIONS)
        .map(|n| named(&n.to_string()))
        .collect();
    assert!(matches!(
        check(&many).map_err(|e| e.problem),
        Err(Problem::TooMuch { .. })
    ));
}

#[test]
fn a_side_that_decides_is_enough() {
    let facts = Facts::default();
    let value = |text: &str| expression(text).map(|e| e.evaluate(&facts));
    assert_eq!(value("1 / workers.active > 0 || true"), Ok(Ok(true)));
    assert_eq!(value("1 / workers.active > 0 && false"), Ok(Ok(false)));
    assert_eq!(
        value("1 / workers.active > 0 && true"),
        Ok(Err(Fails::DivisionByZero))
    );
    assert_eq!(
        value("9223372036854775807 + 1 > 0"),
        Ok(Err(Fails::Overflow))
    );
}

const OPERATORS: &[&str] = &[
    "+", "-", "*", "/", "%", "<", "<=", ">", ">=", "==", "!=", "&&", "||",
];

/// Texts of the part of CEL that is taken, kinds mixed up too.
fn text() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        (0i64..6).prop_map(|n| n.to_string()),
        (0i64..6).prop_map(|n| format!("{n}.5")),
        Just("workers.active".to_owned()),
        Just("budget.cost_usd".to_owned()),
        Just("true".to_owned()),
        Just("false".to_owned()),
    ];
    leaf.prop_recursive(4, 24, 3, |inner| {
        let operator = proptest::sample::select(OPERATORS);
        prop_oneof![
            6 => (inner.clone(), operator, inner.clone()).prop_map(|(a, o, b)| format!("({a} {o} {b})")),
            1 => inner.clone().prop_map(|a| format!("!({a})")),
            1 => inner.clone().prop_map(|a| format!("-({a})")),
            1 => inner.clone().prop_map(|a| format!("double({a})")),
            1 => (inner.clone(), inner.clone(), inner.clone()).prop_map(|(a, b, c)| format!("({a} ? {b} : {c})")),
            1 => (inner.clone(), inner.clone(), inner).prop_map(|(a, b, c)| format!("({a} in [{b}, {c}])")),
        ]
    })
}

fn by_cel(text: &str, facts: &Facts) -> Result<Value, ()> {
    use std::collections::HashMap;
    let mut context = Context::default();
    let workers = HashMap::from([("active", facts.workers_active as i64)]);
    let budget = HashMap::from([("cost_usd", facts.spent_micro_usd as f64 / 1e6)]);
    context.add_variable("workers", workers).map_err(|_| ())?;
    context.add_variable("budget", budget).map_err(|_| ())?;
    let program = Program::compile(text).map_err(|_| ())?;
    program.execute(&context).map_err(|_| ())
}

proptest! {
    #![proptest_config(Config { cases: 600, rng_seed: RngSeed::Fixed(1984), failure_persistence: None, ..Config::default() })]

    #[test]
    fn what_is_taken_means_what_cel_says(text in text(), active in 0u64..4, cents in 0u64..900) {
        let facts = Facts { workers_active: active, spent_micro_usd: cents * 10_000, ..Facts::default() };
        if let Ok(expression) = expression(&text) {
            let ours = expression.evaluate(&facts);
            // Ours is stricter about what it takes, never different about what it means.
            match by_cel(&text, &facts) {
                Ok(Value::Bool(theirs)) => prop_assert_eq!(ours, Ok(theirs), "{}", text),
                Ok(other) => prop_assert!(false, "{text} is {other:?} for CEL"),
                Err(()) => prop_assert!(ours.is_err(), "{text} is {ours:?} here and fails in CEL"),
            }
        }
    }

    #[test]
    fn no_text_is_a_danger(text in "[ -~]{0,200}", noise in r"[-+*/%<>=!&|?:()\[\]{}.a-c0-9'\\ ]{0,300}") {
        let _ = expression(&text);
        let _ = expression(&noise);
    }
}
