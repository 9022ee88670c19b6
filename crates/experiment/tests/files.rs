//! Experiments as files: bad ones, costly ones, interrupted ones; bytes that do not depend on threads.
#![allow(clippy::unwrap_used)]

use belljar_experiment::stats::{
    Metric, Op, Range, Verdict, compare, judge, morris, optimise, parse_gates, sobol,
};
use belljar_experiment::{
    Experiment, PRESETS, Parameter, RESULTS, StoreError, TEMPLATES, TooLarge, load, report,
    run_all, run_into, schema, template,
};

const SMALL: &str = "\
contract: {max_depth: 3, max_replicas: 30, cooldown_seconds: 2}
population:
  - {strategy: random, probability: 0.4, lifetime: {law: exponential, seconds: 10}}
horizon_seconds: 40
replicates: 12
sweep:
  axes:
    - {parameter: cooldown_seconds, values: [0, 5, 10]}
    - {parameter: max_replicas, values: [10, 30]}
";

fn parse(text: &str) -> Experiment {
    Experiment::parse("experiment.yaml", text.as_bytes(), None).unwrap()
}

fn problem(text: &str) -> String {
    Experiment::parse("experiment.yaml", text.as_bytes(), None)
        .unwrap_err()
        .to_string()
}

#[test]
fn every_preset_and_template_can_be_used() {
    for name in PRESETS {
        let experiment = Experiment::preset(name).unwrap().unwrap();
        assert!(experiment.check_cost(2).is_ok(), "{name}");
        let mut quick = experiment;
        quick.replicates = 2;
        for run in run_all(&quick, 1).unwrap() {
            assert!(run.broken.is_empty() && run.workers > 1, "{name}: {run:?}");
        }
    }
    for name in TEMPLATES {
        assert!(template(name).is_some(), "{name}");
    }
    assert!(Experiment::preset("no such").is_none());
}

#[test]
fn bad_files_are_told_with_their_place() {
    for (text, told) in [
        ("", "experiment.yaml:1:1: the file is empty"),
        (
            "population: []\nhorizon_seconds: 1\n",
            "there is no contract",
        ),
        (
            "contract: {max_depth: 1, max_replicas: 2}\ntemplate: research\npopulation: [{strategy: greedy}]\nhorizon_seconds: 1\n",
            "experiment.yaml:2:11: there are two contracts",
        ),
        (
            "template: research\npopulation: []\nhorizon_seconds: 1\n",
            "experiment.yaml:2:13: population is empty",
        ),
        (
            "template: research\npopulation: [{strategy: greedi}]\nhorizon_seconds: 1\n",
            "experiment.yaml:2:25: strategy must be one of",
        ),
        (
            "template: research\npopulation: [{strategy: greedy, lifetime: {law: fixed}}]\nhorizon_seconds: 1\n",
            "experiment.yaml:2:43: the key 'seconds' is missing",
        ),
        (
            "template: research\npopulation: [{strategy: greedy}]\nhorizon_seconds: -1\n",
            "experiment.yaml:3:18: horizon_seconds must be above 0",
        ),
        (
            "template: research\npopulation: [{strategy: greedy}]\nhorizon: 1\n",
            "experiment.yaml:3:1: unknown key 'horizon'",
        ),
        (
            "contract: {max_depth: 1}\npopulation: [{strategy: greedy}]\nhorizon_seconds: 1\n",
            "experiment.yaml:1:11: the key 'max_replicas' is missing",
        ),
        (
            "contract: {max_depth: 1, max_replicas: 2, stop_conditions: [{name: a, when: workers.activ > 1}]}\npopulation: [{strategy: greedy}]\nhorizon_seconds: 1\n",
            "experiment.yaml:1:77:",
        ),
        (
            "template: research\npopulation: [{strategy: greedy}]\nhorizon_seconds: 1\nsweep: {axes: [{parameter: max_depth, from: 3, to: 3}], method: morris}\n",
            "experiment.yaml:4:52: the range is empty",
        ),
        (
            "template: research\npopulation: [{strategy: greedy}]\nhorizon_seconds: 1\nsweep: {axes: [{parameter: max_depth}]}\n",
            "a grid needs the values",
        ),
        (
            "template: research\npopulation: [{strategy: greedy}]\nhorizon_seconds: 1\nfaults: {partition: {from: 5, until: 5, fraction: 1}}\n",
            "over before it begins",
        ),
        (
            "contract: {max_depth: 1, max_replicas: 2}\npopulation: [{strategy: greedy, roots: 3}]\nhorizon_seconds: 1\n",
            "experiment.yaml:2:13: 3 roots can't be alive at once",
        ),
    ] {
        let error = problem(text);
        assert!(error.contains(told), "{error}\n  lacks {told}");
    }
}

#[test]
fn what_costs_too_much_is_refused_before_it_starts() {
    let many = SMALL.replace("replicates: 12", "replicates: 100000");
    assert!(matches!(
        parse(&many).check_cost(1),
        Err(TooLarge::Runs { runs: 600_000, .. })
    ));
    let long = format!("{SMALL}limits: {{workers: 1000000}}\n");
    assert!(matches!(
        parse(&long).check_cost(1),
        Err(TooLarge::Workers {
            workers: 7_200_000,
            ..
        })
    ));
    let slow = format!("{SMALL}limits: {{seconds: 10}}\n");
    assert!(matches!(
        parse(&slow).check_cost(2),
        Err(TooLarge::Time { seconds: 14, .. })
    ));
    let wide =
        SMALL.replace("values: [10, 30]", "values: [10, 10000000]") + "limits: {memory_mb: 50}\n";
    assert!(matches!(
        parse(&wide).check_cost(1),
        Err(TooLarge::Memory { memory_mb: 57, .. })
    ));
    assert_eq!(parse(SMALL).check_cost(8), Ok(()));
}

#[test]
fn bytes_do_not_depend_on_threads_or_interruptions() {
    let experiment = parse(SMALL);
    let scratch = tempfile::tempdir().unwrap();
    let bytes = |name: &str, threads| {
        let directory = scratch.path().join(name);
        let results = run_into(&experiment, &directory, threads, |_, _| {}).unwrap();
        report::write(&results, &directory, report::Chosen::default()).unwrap();
        let mut all = Vec::new();
        for file in [
            RESULTS,
            "manifest.json",
            "results.csv",
            "report.html",
            "population.svg",
            "population.png",
        ] {
            all.push(std::fs::read(directory.join(file)).unwrap());
        }
        all
    };
    let one = bytes("one", 1);
    assert_eq!(one, bytes("two", 2));
    assert_eq!(one, bytes("eight", 8));
    // Killed in the middle of a line, with some runs done and not in order.
    let directory = scratch.path().join("torn");
    std::fs::create_dir(&directory).unwrap();
    std::fs::copy(
        scratch.path().join("one/experiment.json"),
        directory.join("experiment.json"),
    )
    .unwrap();
    let text = String::from_utf8(one[0].clone()).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let torn = format!("{}\n{}\n{}", lines[40], lines[3], &lines[9][..50]);
    std::fs::write(directory.join("progress.jsonl"), torn).unwrap();
    let mut told = Vec::new();
    let begun = belljar_experiment::begun(&directory).unwrap();
    run_into(&begun, &directory, 2, |done, of| told.push((done, of))).unwrap();
    assert_eq!(
        told.first(),
        Some(&(2, 72)),
        "only the missing ones are run"
    );
    assert_eq!(told.len(), 71);
    assert_eq!(one, bytes("torn", 2));
    assert!(!directory.join("progress.jsonl").exists());
}

#[test]
fn results_of_others_and_damaged_ones_are_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let experiment = parse(SMALL);
    run_into(&experiment, scratch.path(), 1, |_, _| {}).unwrap();
    let mut other = experiment.clone();
    other.seed = 2;
    assert!(matches!(
        run_into(&other, scratch.path(), 1, |_, _| {}),
        Err(StoreError::OtherExperiment(_))
    ));
    let path = scratch.path().join(RESULTS);
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replacen("\"peak\":", "\"peak\":1", 1)).unwrap();
    assert!(matches!(
        load(scratch.path()),
        Err(StoreError::Damaged { .. })
    ));
    std::fs::write(&path, "{}\n").unwrap();
    assert!(matches!(
        load(scratch.path()),
        Err(StoreError::Damaged { line: 1, .. })
    ));
    assert!(matches!(
        load(&scratch.path().join("none")),
        Err(StoreError::NoExperiment(_))
    ));
}

#[test]
fn statistics_follow_the_contract() {
    let runs = run_all(&parse(SMALL), 2).unwrap();
    let cell = |number: u32| {
        runs.iter()
            .filter(|run| run.cell == number)
            .cloned()
            .collect::<Vec<_>>()
    };
    // Cells 1 and 5: no cooldown and ten seconds, thirty replicas.
    let effect = compare(Metric::Workers, &cell(1), &cell(5)).unwrap();
    assert!(
        effect.difference.high < 0.0 && effect.cliff_delta < 0.0,
        "{effect:?}"
    );
    let itself = compare(Metric::Workers, &cell(1), &cell(1)).unwrap();
    assert_eq!(
        (itself.difference.mean, itself.cohen_d, itself.cliff_delta),
        (0.0, None, 0.0)
    );
    let gates = parse_gates(
        "gates.yaml",
        b"gates:\n  - {metric: peak, statistic: max, op: '<=', threshold: 10}\n  - {metric: broken, op: '==', threshold: 0}\n  - {metric: depth, op: '<', threshold: 0, severity: warn}\n",
    )
    .unwrap();
    assert_eq!(gates[0].op, Op::AtMost);
    let verdicts: Vec<Verdict> = judge(&gates, 0, &cell(0))
        .iter()
        .map(|result| result.verdict)
        .collect();
    assert_eq!(verdicts, [Verdict::Pass, Verdict::Pass, Verdict::Warn]);
    assert_eq!(judge(&gates, 1, &cell(1))[0].verdict, Verdict::Fail);
    assert!(
        judge(&gates, 9, &[])
            .iter()
            .all(|result| result.verdict != Verdict::Pass),
        "nothing measured holds nothing"
    );
    let error = parse_gates(
        "gates.yaml",
        b"gates:\n  - {metric: peek, op: '<', threshold: 1}\n",
    )
    .unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("gates.yaml:2:14: metric must be one of"),
        "{error}"
    );
}

#[test]
fn the_loosest_contract_is_found() {
    let mut experiment = parse(SMALL);
    experiment.sweep = None;
    let gates = parse_gates(
        "gates.yaml",
        b"gates: [{metric: peak, statistic: max, op: '<=', threshold: 7}]",
    )
    .unwrap();
    let range = |parameter, strict, loose| Range {
        parameter,
        strict,
        loose,
    };
    let found = optimise(
        &experiment,
        &[range(Parameter::MaxReplicas, 1.0, 30.0)],
        &gates,
        2,
    )
    .unwrap();
    assert_eq!(found.values, Some(vec![7.0]), "the quota is the peak");
    let never = optimise(
        &experiment,
        &[range(Parameter::MaxReplicas, 20.0, 30.0)],
        &gates,
        2,
    )
    .unwrap();
    assert_eq!(never.values, None);
}

#[test]
fn morris_finds_what_matters() {
    let text = SMALL.replace("replicates: 12", "replicates: 6").replace(
        "  axes:\n    - {parameter: cooldown_seconds, values: [0, 5, 10]}\n    - {parameter: max_replicas, values: [10, 30]}\n",
        "  method: morris\n  samples: 5\n  axes:\n    - {parameter: kill_delay_seconds, from: 0, to: 1}\n    - {parameter: cooldown_seconds, from: 0, to: 20}\n",
    );
    let scratch = tempfile::tempdir().unwrap();
    let results = run_into(&parse(&text), scratch.path(), 2, |_, _| {}).unwrap();
    assert_eq!(results.manifest.points.len(), 15);
    let effects = morris(Metric::Workers, &results);
    assert_eq!(effects[0].parameter, "cooldown_seconds");
    assert!(
        effects[0].mu < 0.0 && effects[0].mu_star > 10.0 * effects[1].mu_star,
        "{effects:?}"
    );
}

#[test]
fn sobol_shares_the_variance_out() {
    let text = SMALL.replace("replicates: 12", "replicates: 6").replace(
        "  axes:\n    - {parameter: cooldown_seconds, values: [0, 5, 10]}\n    - {parameter: max_replicas, values: [10, 30]}\n",
        "  method: sobol\n  samples: 24\n  axes:\n    - {parameter: kill_delay_seconds, from: 0, to: 1}\n    - {parameter: cooldown_seconds, from: 0, to: 20}\n",
    );
    let scratch = tempfile::tempdir().unwrap();
    let results = run_into(&parse(&text), scratch.path(), 2, |_, _| {}).unwrap();
    assert_eq!(results.manifest.points.len(), 24 * 4);
    let indices = sobol(Metric::Workers, &results);
    assert_eq!(indices[0].parameter, "cooldown_seconds");
    assert!(
        indices[0].total.low > 0.5 && indices[1].total.high < 0.1,
        "{indices:?}"
    );
    assert!(morris(Metric::Workers, &results).is_empty());
    report::write(&results, scratch.path(), report::Chosen::default()).unwrap();
    let page = std::fs::read_to_string(scratch.path().join("report.html")).unwrap();
    assert!(page.contains("Whose doing the variance of workers in all is"));
}

#[test]
fn latin_hypercubes_have_a_point_in_each_part() {
    let text = SMALL
        .replace(
            "  axes:",
            "  method: latin_hypercube\n  samples: 10\n  axes:",
        )
        .replace("values: [0, 5, 10]", "from: 0, to: 10")
        .replace("values: [10, 30]", "from: 10, to: 30");
    let mut parts: Vec<usize> = parse(&text)
        .points()
        .iter()
        .map(|point| point[0] as usize)
        .collect();
    parts.sort_unstable();
    assert_eq!(parts, (0..10).collect::<Vec<_>>());
}

#[test]
fn the_committed_schema_is_the_one_that_is_checked() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../schemas/experiment.schema.json");
    let text = serde_json::to_string_pretty(&schema()).unwrap() + "\n";
    if std::env::var_os("BELLJAR_BLESS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    assert_eq!(
        std::fs::read_to_string(path).unwrap(),
        text,
        "run it with BELLJAR_BLESS=1"
    );
}

#[test]
fn names_from_files_are_harmless_in_reports() {
    let mut experiment = parse(SMALL);
    experiment.name = "<script>alert(1)</script>".to_owned();
    experiment.replicates = 1;
    let scratch = tempfile::tempdir().unwrap();
    let results = run_into(&experiment, scratch.path(), 1, |_, _| {}).unwrap();
    report::write(&results, scratch.path(), report::Chosen::default()).unwrap();
    let page = std::fs::read_to_string(scratch.path().join("report.html")).unwrap();
    assert!(!page.contains("<script>alert") && page.contains("&lt;script&gt;alert"));
    for outside in ["http:", "https:", "src=", "href="] {
        let used = page.replace("http://www.w3.org/2000/svg", "");
        assert!(!used.contains(outside), "the report needs {outside}");
    }
}
