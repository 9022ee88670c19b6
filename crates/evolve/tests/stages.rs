//! The stages on changes that are what they say, and on ones that are not good enough.

mod support;

use belljar_evolve::evidence::Verdict;
use belljar_evolve::store::StoreError;
use belljar_evolve::{Risk, Status};
use support::{AGENT, World, added, rewritten};

const CACHE: &str = "description: score is slow; remember what it gave\ntarget_files: [agent.py]\nrollback_plan: the tree before\nrisk: low\ntests: [tests/test_agent.py]\nmodifications:\n  - add_import: {file: agent.py, import: from functools import lru_cache}\n  - add_decorator: {file: agent.py, function: score, decorator: '@lru_cache(maxsize=1024)'}\n";

#[test]
fn a_cache_passes_waits_for_people_and_leaves_evidence() {
    let world = World::new();
    let judged = world.check(CACHE);
    judged.passes();
    assert_eq!(judged.proposal.status, Status::Waiting);
    // Its author says low; it is not.
    assert_eq!(judged.outcome.risk, Risk::Medium);
    let unit = &judged
        .outcome
        .statements
        .iter()
        .find(|statement| statement.predicate.stage == "3-unit")
        .expect("a stage")
        .predicate;
    assert_eq!(unit.verdict, Verdict::Pass);
    assert_eq!(unit.facts["passed"], 2);
    assert_eq!(unit.facts["sentinels"], 2);
    // The project itself is as it was.
    assert_eq!(
        std::fs::read_to_string(world.project().join("agent.py")).expect("a file"),
        AGENT
    );
    let digests = world.store().digests(&judged.proposal.id).expect("digests");
    assert_eq!(digests.candidate_tree, judged.proposal.candidate_tree);
    let log = std::process::Command::new("grep")
        .args(["-rc", "in-toto.io/Statement/v1"])
        .arg(world.state().path().join("ledger"))
        .output()
        .expect("grep");
    let found: usize = String::from_utf8_lossy(&log.stdout)
        .lines()
        .filter_map(|line| line.rsplit(':').next()?.parse::<usize>().ok())
        .sum();
    assert!(found > 0, "the ledger holds the statements");
    // Once more: every stage that passed is known by its inputs.
    let again = world.check(CACHE);
    again.passes();
    for stage in ["3-unit", "6-security"] {
        assert!(
            again.cached.contains(&stage.to_owned()),
            "{:?}",
            again.cached
        );
    }
    // Other rules are another judge.
    world.configure("[limits]\nmax_files = 9\n");
    assert!(world.check(CACHE).cached.is_empty());
}

#[test]
fn other_tools_are_another_judge() {
    let world = World::with(&[("agent.js", "module.exports = (n) => n + 1;\n")]);
    let tools = world.beside("tools");
    std::fs::create_dir_all(&tools).expect("a directory");
    let tool = tools.join("scan");
    let make = |text: &str| {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::write(&tool, text).expect("a tool");
        std::fs::set_permissions(&tool, std::fs::Permissions::from_mode(0o755)).expect("a mode");
    };
    make("#!/bin/sh\n. \"${0%/*}/rules\"\n");
    std::fs::write(tools.join("rules"), "echo '[]'\n").expect("rules");
    world.write(
        "evolve.toml",
        &format!(
            "[project]\nreadable = [{tools:?}]\n[tests]\nfiles = []\n[[cases]]\nname = \"adds\"\ncommand = [\"/bin/echo\", \"3\"]\nexpect = \"3\"\n[[scanners]]\nname = \"own\"\ncommand = [{tool:?}]\nfindings = \"/\"\n"
        ),
    );
    let request = "description: d\ntarget_files: [agent.js]\nrollback_plan: r\nmodifications:\n  - rewrite: {file: agent.js, pattern: n + 1, with: 1 + n}\n";
    let is_cached = || {
        let judged = world.check(request);
        judged.passes();
        judged.cached.contains(&"6-security".to_owned())
    };
    assert!(!is_cached() && is_cached());
    // The program itself, and what it reads beside it.
    make("#!/bin/sh\n. \"${0%/*}/rules\" # newer\n");
    assert!(!is_cached() && is_cached());
    std::fs::write(tools.join("rules"), "echo '[ ]'\n").expect("rules");
    assert!(!is_cached() && is_cached());
}

#[test]
fn an_import_that_nobody_declared_makes_it_critical() {
    let world = World::with(&[
        ("agent.js", "module.exports = (n) => n + 1;\n"),
        (
            "package.json",
            "{\"dependencies\": {\"left-pad\": \"1\"}}\n",
        ),
    ]);
    world.write(
        "evolve.toml",
        "[tests]\nfiles = []\n[[cases]]\nname = \"adds\"\ncommand = [\"/bin/echo\", \"3\"]\nexpect = \"3\"\n",
    );
    let with = |import: &str| {
        let text =
            format!("const more = require('{import}');\nmodule.exports = (n) => more(n) + 1;\n");
        world.check(&rewritten(&[("agent.js", &text)], "medium"))
    };
    let known = with("left-pad");
    known.passes();
    assert_eq!(known.outcome.risk, Risk::High);
    let unknown = with("right-pad");
    unknown.passes();
    assert_eq!(unknown.outcome.risk, Risk::Critical);
    let reasons = format!("{:?}", unknown.outcome.reasons);
    assert!(reasons.contains("undeclared_import"), "{reasons}");
}

#[test]
fn a_tree_that_is_changed_later_is_not_the_one_that_was_judged() {
    let world = World::new();
    let judged = world.check(CACHE);
    let file = world.store().directory(&judged.proposal.id).join("trees");
    // A byte of the agent, in place.
    let mut bytes = std::fs::read(&file).expect("a file");
    let at = bytes
        .windows(6)
        .position(|window| window == b"isqrt(")
        .expect("the agent");
    bytes[at] = b'x';
    std::fs::write(&file, bytes).expect("a file");
    assert!(matches!(
        world.store().digests(&judged.proposal.id),
        Err(StoreError::Changed { .. })
    ));
}

#[test]
fn no_tests_no_tool_and_no_time_are_never_a_pass() {
    World::with(&[("agent.py", AGENT)])
        .check(CACHE.replace("tests: [tests/test_agent.py]\n", "").as_str())
        .is_refused_for("no_tests");
    let empty = World::with(&[("agent.py", AGENT), ("tests/test_agent.py", "# none\n")]);
    empty.check(CACHE).is_refused_for("no_tests");
    let world = World::new();
    world.configure("[[checks]]\nname = \"types\"\ncommand = [\"no-such-type-checker\"]\n");
    world.check(CACHE).is_refused_for("missing_tool");
    world.configure("[[scanners]]\nname = \"scanner\"\ncommand = [\"no-such-scanner\"]\nfindings = \"/results\"\n");
    world.check(CACHE).is_refused_for("scanner");
    world.configure("[[checks]]\nname = \"types\"\ncommand = [\"false\"]\n");
    world.check(CACHE).is_refused_for("check");
    world.configure("[limits]\nstage_seconds = 8\n");
    world
        .check_agent(&AGENT.replace(
            "    total = 0\n",
            "    total = 0\n    while True:\n        pass\n",
        ))
        .is_refused_for("tests_broken");
}

#[test]
fn changed_lines_are_run_by_tests() {
    let world = World::new();
    let more = format!(
        "{AGENT}\n\ndef more(x):\n    y = x + 1\n    z = y * 2\n    if z > 3:\n        return z\n    return y\n"
    );
    world.check_agent(&more).is_refused_for("coverage");
    world.configure("[limits]\nmin_coverage = 0.1\n");
    world.check_agent(&more).passes();
}

#[test]
fn a_scanner_finds_no_more_than_before_and_secrets_stay_out() {
    let world = World::new();
    let python = world.python();
    world.configure(&format!("[[scanners]]\nname = \"bandit\"\ncommand = [{python:?}, \"-m\", \"bandit\", \"-q\", \"-r\", \".\", \"-f\", \"json\", \"-x\", \"./tests\"]\nfindings = \"/results\"\n[limits]\nmin_coverage = 0\n"));
    world.check(CACHE).passes();
    let weak =
        format!("{AGENT}\n\ndef weak(x):\n    import tempfile\n    return tempfile.mktemp()\n");
    world.check_agent(&weak).is_refused_for("findings");
    let secret = format!("KEY = 'AKIA{}'\n", "A1B2".repeat(4));
    world
        .check_agent(&format!("{AGENT}\n\n{secret}"))
        .is_refused_for("secret");
}

#[test]
fn code_that_is_slower_by_the_clock_outside_is_refused() {
    let world = World::new();
    let python = world.python();
    world.configure(&format!("[benchmark]\ncommand = [{python:?}, \"-c\", \"import sys; sys.path.append('.'); import agent; agent.score(300000)\"]\nrounds = 12\n"));
    let slow = AGENT.replace(
        "        total += math.isqrt(i)\n",
        "        for _ in range(30):\n            math.isqrt(i)\n        total += math.isqrt(i)\n",
    );
    let judged = world.check_agent(&slow);
    // Where the machine is too restless to tell, it is refused for that.
    let codes = judged.codes();
    assert!(
        codes.contains(&"slower") || codes.contains(&"benchmark_restless"),
        "{codes:?}"
    );
}

#[test]
fn a_new_doing_is_a_new_capability() {
    let world = World::new();
    let python = world.python();
    world.configure(&format!("[behaviour]\ncommand = [{python:?}, \"-c\", \"import sys; sys.path.append('.'); import agent; agent.name()\"]\n"));
    let judged = world.check(CACHE);
    judged.passes();
    assert_eq!(judged.outcome.risk, Risk::Medium);
    let writes = AGENT.replace("    return \"agent\"\n", "    with open(\"/tmp/agent-was-here\", \"w\") as file:\n        file.write(\"x\")\n    return \"agent\"\n");
    let judged = world.check_agent(&writes);
    judged.passes();
    assert_eq!(judged.outcome.risk, Risk::Critical);
    assert!(
        judged
            .outcome
            .reasons
            .iter()
            .any(|reason| reason.code == "new_capability"),
        "{:?}",
        judged.outcome.reasons
    );
}

#[test]
fn what_the_request_names_is_there() {
    let world = World::new();
    world
        .check(&CACHE.replace("tests/test_agent.py", "tests/test_other.py"))
        .is_refused_for("named_test");
    assert!(
        world
            .propose(&CACHE.replace("function: score", "function: nosuch"))
            .is_err()
    );
    assert!(world.propose(&added(&[("agent.py", "x")], "low")).is_err());
    assert!(
        world
            .propose(&rewritten(&[("agent.py", AGENT)], "low"))
            .is_err()
    );
}

#[test]
fn the_examples_go_as_their_readme_says() {
    let examples = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/evolve");
    let read = |name: &str| std::fs::read_to_string(examples.join(name)).expect("an example");
    let world = World::with(&[]);
    for file in ["search.py", "bench.py", "tests/test_search.py"] {
        world.write(file, &read(&format!("project/{file}")));
    }
    // Their own rules, with the Python of the tests.
    let rules = read("project/evolve.toml").replace("/usr/bin/python3", &world.python());
    let rest = rules.split_once("[[cases]]").expect("cases").1;
    // The benchmark is for quiet machines.
    let (cases, behaviour) = rest.split_once("[benchmark]").expect("a benchmark");
    let behaviour = behaviour.split_once("[behaviour]").expect("a behaviour").1;
    world.configure(&format!("[[cases]]{cases}[behaviour]{behaviour}"));
    let judged = world.check(&read("requests/cache.yaml"));
    judged.passes();
    assert_eq!(judged.outcome.risk, Risk::Medium);
    for (request, code) in [
        ("cheat-tests", "immutable"),
        ("cheat-exit", "denied_identifier"),
        ("cheat-equal", "sentinel"),
        ("cheat-conftest", "immutable"),
        ("cheat-letters", "nfkc"),
    ] {
        world
            .check(&read(&format!("requests/{request}.yaml")))
            .is_refused_for(code);
    }
}

#[test]
fn other_languages_are_judged_by_checks_and_cases() {
    let world = World::with(&[("agent.js", "module.exports = (n) => n + 1;\n")]);
    let request = "description: d\ntarget_files: [agent.js]\nrollback_plan: r\nmodifications:\n  - rewrite: {file: agent.js, pattern: n + 1, with: 1 + n}\n";
    let check = "[tests]\nfiles = []\n[[checks]]\nname = \"syntax\"\ncommand = [\"node\", \"--check\", \"agent.js\"]\n";
    world.write("evolve.toml", check);
    world.check(request).is_refused_for("no_case");
    let case = |expect: &str| {
        format!(
            "{check}[[cases]]\nname = \"adds\"\ncommand = [\"node\", \"-e\", \"console.log(require('./agent.js')(2))\"]\nexpect = \"{expect}\"\n"
        )
    };
    world.configure(&case("3"));
    world.check(request).passes();
    world.configure(&case("4"));
    world.check(request).is_refused_for("case");
}
