//! `contract.yaml`: what it comes to, and the exact words for what is wrong with it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write;
use std::time::Duration;

use belljar_manifest::{Colour, ReadError, parse_contract, read_contract_file};
use belljar_policy::{Amount, Budget, Contract, OnParentExit, OnTrigger, SignerKind};
use proptest::prelude::*;

const FILE: &str = "contract.yaml";
const HEAD: &str = "max_depth: 3\nmax_replicas: 10\n";

#[track_caller]
fn contract(text: &str) -> Contract {
    parse_contract(FILE, text.as_bytes()).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn two_numbers_are_enough_and_the_rest_is_strict_or_unbounded() {
    let contract = contract(HEAD);
    assert_eq!(contract.name, FILE);
    assert_eq!((contract.max_depth, contract.max_replicas), (3, 10));
    assert_eq!(contract.cooldown, Duration::ZERO);
    assert_eq!(
        (contract.expiration, contract.heartbeat_timeout),
        (None, None)
    );
    assert_eq!(contract.on_parent_exit, OnParentExit::Kill);
    assert_eq!(contract.budget, Budget::UNBOUNDED);
    assert_eq!(contract.signer, SignerKind::Ed25519);
    assert!(contract.stop_conditions.is_empty());
    assert_eq!(contract.resources.cpu_limit, None);
}

#[test]
fn everything_said_is_kept() {
    let contract = contract(
        "max_depth: 0\nmax_replicas: 1\ncooldown_seconds: 1.5\nexpiration_seconds: 600\n\
         heartbeat_timeout_seconds: 0.25\non_parent_exit: keep\nsigner: hmac\n\
         resources: {cpu_limit: 0.5, memory_limit_mb: 256}\n\
         budget: {replicas: 0, cpu_seconds: 1.0015, memory_mb: 64, processes: 8, tokens: 0, cost_usd: 2.01}\n\
         stop_conditions:\n  - name: crowd\n    when: \"workers.active > 5\"\n\
         \x20 - {name: age, when: worker.age_s > 9, on_trigger: kill}\n",
    );
    assert_eq!(contract.cooldown, Duration::from_millis(1500));
    assert_eq!(contract.expiration, Some(Duration::from_secs(600)));
    assert_eq!(contract.heartbeat_timeout, Some(Duration::from_millis(250)));
    assert_eq!(contract.on_parent_exit, OnParentExit::Keep);
    assert_eq!(contract.signer, SignerKind::Hmac);
    assert_eq!(contract.resources.cpu_limit, Some(0.5));
    assert_eq!(contract.resources.memory_limit_mb, Some(256));
    let expect = Budget {
        replicas: Amount::ZERO,
        cpu_ms: Amount::of(1001), // rounded to the stricter side
        memory_mb: Amount::of(64),
        pids: Amount::of(8),
        tokens: Amount::ZERO,
        micro_usd: Amount::of(2_010_000), // though 2.01 times a million falls short of it as a float
    };
    assert_eq!(contract.budget, expect);
    let [crowd, age] = contract.stop_conditions.as_slice() else {
        panic!("two conditions")
    };
    assert_eq!((crowd.name.as_str(), crowd.line), ("crowd", 12));
    assert_eq!(crowd.when, "workers.active > 5");
    assert_eq!(crowd.on_trigger, OnTrigger::Deny);
    assert_eq!((age.on_trigger, age.line), (OnTrigger::Kill, 13));
}

#[test]
fn null_lifts_a_bound_and_small_numbers_stay_above_zero() {
    let lifted = contract(&format!(
        "{HEAD}expiration_seconds: null\nheartbeat_timeout_seconds: ~\nbudget: {{cpu_seconds: null, cost_usd: 0}}"
    ));
    assert_eq!((lifted.expiration, lifted.heartbeat_timeout), (None, None));
    assert_eq!(lifted.budget.cpu_ms, Amount::UNBOUNDED);
    assert_eq!(lifted.budget.micro_usd, Amount::ZERO);
    let tiny = contract(&format!(
        "{HEAD}cooldown_seconds: 1e-300\nexpiration_seconds: 1e-300\nbudget: {{cpu_seconds: 1e-9}}"
    ));
    assert_eq!(tiny.cooldown, Duration::from_nanos(1));
    assert_eq!(tiny.expiration, Some(Duration::from_nanos(1)));
    assert_eq!(tiny.budget.cpu_ms, Amount::of(1));
    let huge = contract(&format!(
        "{HEAD}cooldown_seconds: 3155760000\nbudget: {{cost_usd: 1e9, cpu_seconds: 3155760000}}"
    ));
    assert_eq!(huge.budget.micro_usd, Amount::of(1_000_000_000_000_000));
    assert_eq!(huge.budget.cpu_ms, Amount::of(3_155_760_000_000));
}

#[test]
fn what_is_wrong_is_said_with_its_place() {
    let many: String = (0..33)
        .map(|n| format!("  - {{name: n{n}, when: 'true'}}\n"))
        .collect();
    let cases = [
        ("empty", String::new()),
        ("nothing needed is there", "{}".to_owned()),
        ("one is missing", "max_depth: 3".to_owned()),
        ("a list", "- max_depth: 3".to_owned()),
        (
            "no worker at all",
            "max_depth: 3\nmax_replicas: 0".to_owned(),
        ),
        (
            "a part of one",
            "max_depth: 1.5\nmax_replicas: 3".to_owned(),
        ),
        ("below zero", "max_depth: -1\nmax_replicas: 3".to_owned()),
        ("too deep", "max_depth: 1001\nmax_replicas: 3".to_owned()),
        (
            "too many",
            "max_depth: 1\nmax_replicas: 4294967296".to_owned(),
        ),
        ("a word", "max_depth: few\nmax_replicas: 3".to_owned()),
        ("quoted", "max_depth: '3'\nmax_replicas: 3".to_owned()),
        ("twice", format!("{HEAD}max_depth: 4")),
        ("nearly a key", format!("{HEAD}max_replica: 4")),
        ("one level too high", format!("{HEAD}memory_mb: 4")),
        ("nothing like it", format!("{HEAD}zebra: 4")),
        ("negative cooldown", format!("{HEAD}cooldown_seconds: -0.5")),
        (
            "cooldown that is no number",
            format!("{HEAD}cooldown_seconds: .nan"),
        ),
        ("endless cooldown", format!("{HEAD}cooldown_seconds: .inf")),
        (
            "minus endless cooldown",
            format!("{HEAD}cooldown_seconds: -.inf"),
        ),
        ("no cooldown said", format!("{HEAD}cooldown_seconds: null")),
        ("quoted cooldown", format!("{HEAD}cooldown_seconds: '1'")),
        ("no life", format!("{HEAD}expiration_seconds: 0")),
        ("endless life", format!("{HEAD}expiration_seconds: .inf")),
        (
            "no heartbeat",
            format!("{HEAD}heartbeat_timeout_seconds: 0.0"),
        ),
        ("unknown exit", format!("{HEAD}on_parent_exit: keeep")),
        ("unknown signer", format!("{HEAD}signer: Ed25519")),
        ("null signer", format!("{HEAD}signer: null")),
        ("no CPU", format!("{HEAD}resources: {{cpu_limit: 0}}")),
        (
            "CPU that is no number",
            format!("{HEAD}resources: {{cpu_limit: .nan}}"),
        ),
        (
            "unknown resource",
            format!("{HEAD}resources: {{memory_mb: 5}}"),
        ),
        ("unknown budget", format!("{HEAD}budget: {{cpu_second: 5}}")),
        (
            "negative money",
            format!("{HEAD}budget: {{cost_usd: -0.01}}"),
        ),
        (
            "money that is no number",
            format!("{HEAD}budget: {{cost_usd: .nan}}"),
        ),
        (
            "too much money",
            format!("{HEAD}budget: {{cost_usd: 1e10}}"),
        ),
        ("no memory", format!("{HEAD}budget: {{memory_mb: 0}}")),
        ("part of a token", format!("{HEAD}budget: {{tokens: 0.5}}")),
        ("budget null", format!("{HEAD}budget: null")),
        (
            "condition without a name",
            format!("{HEAD}stop_conditions: [{{when: 'true'}}]"),
        ),
        (
            "condition without a test",
            format!("{HEAD}stop_conditions: [{{name: a}}]"),
        ),
        (
            "empty condition",
            format!("{HEAD}stop_conditions: [{{name: a, when: ''}}]"),
        ),
        (
            "condition of two lines",
            format!("{HEAD}stop_conditions:\n  - name: a\n    when: |\n      a\n      b\n"),
        ),
        (
            "the same name",
            format!(
                "{HEAD}stop_conditions:\n  - {{name: a, when: 'true'}}\n  - {{name: b, when: 'true'}}\n  - {{name: a, when: x}}\n"
            ),
        ),
        (
            "unknown answer",
            format!("{HEAD}stop_conditions: [{{name: a, when: 'true', on_trigger: stop}}]"),
        ),
        (
            "too many conditions",
            format!("{HEAD}stop_conditions:\n{many}"),
        ),
        (
            "long condition",
            format!(
                "{HEAD}stop_conditions: [{{name: a, when: '{}'}}]",
                "x".repeat(1025)
            ),
        ),
        (
            "long condition in bytes",
            format!(
                "{HEAD}stop_conditions: [{{name: a, when: '{}'}}]",
                "\u{e9}".repeat(513)
            ),
        ),
        (
            "long name",
            format!(
                "{HEAD}stop_conditions: [{{name: {}, when: 'true'}}]",
                "x".repeat(65)
            ),
        ),
    ];
    let mut report = String::new();
    for (case, text) in cases {
        let Err(error) = parse_contract(FILE, text.as_bytes()) else {
            panic!("accepted: {case}")
        };
        let rendered = error.render(Colour::Plain);
        assert!(rendered.contains(&error.message), "{rendered}");
        writeln!(report, "# {case}\n{error}").unwrap();
        if let Some(hint) = &error.hint {
            writeln!(report, "  hint: {hint}").unwrap();
        }
    }
    insta::assert_snapshot!(report);
}

#[test]
fn the_largest_set_of_conditions_is_accepted() {
    let when = "x".repeat(1024);
    let many: String = (0..32)
        .map(|n| format!("  - {{name: n{n}, when: '{when}'}}\n"))
        .collect();
    assert_eq!(
        contract(&format!("{HEAD}stop_conditions:\n{many}"))
            .stop_conditions
            .len(),
        32
    );
}

#[test]
fn files_are_read_within_bounds() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("contract.yaml");
    std::fs::write(&path, HEAD).unwrap();
    assert_eq!(read_contract_file(&path).unwrap().max_depth, 3);
    std::fs::write(&path, "#".repeat(1024 * 1024 + 1)).unwrap();
    let refused = read_contract_file(&path).unwrap_err();
    assert!(matches!(&refused, ReadError::Manifest(error) if error.message.contains("1 MiB")));
    let missing = read_contract_file(&scratch.path().join("none.yaml"));
    assert!(matches!(missing, Err(ReadError::Io { .. })));
    assert!(matches!(
        read_contract_file(scratch.path()),
        Err(ReadError::Io { .. })
    ));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn random_documents_never_panic(
        words in proptest::collection::vec(
            proptest::sample::select(vec![
                "max_depth", "max_replicas", "budget", "stop_conditions", "name", "when", ": ", ":", "\n", "\n  ",
                "- ", "[", "]", "{", "}", ",", "1", "-1", "1e400", ".nan", "'", "\"", "|", "&a", "*a", "\u{e9}", "~",
            ]),
            0..40,
        ),
    ) {
        let text = words.concat();
        if let Err(error) = parse_contract(FILE, text.as_bytes()) {
            prop_assert!(error.source_text.get(error.span.clone()).is_some());
            prop_assert!(!error.render(Colour::Plain).is_empty());
        }
    }
}
