//! Rust projects, judged by `cargo test`: what passes, and what only looks as if it did.

mod support;

use support::{CASE, Judged, World, clients, rewritten};

const AGENT: &str = "//! An agent.\n\n/// Adds roots.\npub fn score(n: u64) -> u64 {\n    let mut total = 0;\n    for i in 0..n {\n        total += i.isqrt();\n    }\n    total\n}\n\n#[cfg(test)]\nmod tests {\n    use super::*;\n\n    #[test]\n    fn scores() {\n        assert_eq!(score(10), 16);\n    }\n\n    #[test]\n    fn grows() {\n        assert!(score(20) > score(10));\n    }\n}\n";
const TESTS: &str = "#[test]\nfn from_outside() {\n    assert_eq!(agent::score(5), 5);\n}\n\n#[test]\n#[should_panic]\nfn panics() {\n    assert_eq!(agent::score(5), 6);\n}\n";
const MANIFEST: &str = "[package]\nname = \"agent\"\nversion = \"0.1.0\"\nedition = \"2021\"\n";

/// The toolchain that compiled this test, as boxes find it.
fn rules(more: &str) -> String {
    let told = std::process::Command::new(std::env::var("RUSTC").unwrap_or("rustc".into()))
        .args(["--print", "sysroot"])
        .output()
        .expect("a compiler");
    let sysroot = String::from_utf8(told.stdout).expect("a path");
    let sysroot = sysroot.trim();
    format!(
        "[project]\ncargo = \"{sysroot}/bin/cargo\"\nreadable = [\"{sysroot}\"]\n[limits]\nmin_coverage = 0\n{CASE}{more}"
    )
}

fn world() -> World {
    let world = World::with(&[
        ("Cargo.toml", MANIFEST),
        ("src/lib.rs", AGENT),
        ("tests/outside.rs", TESTS),
    ]);
    world.write("evolve.toml", &rules(""));
    world
}

fn check(world: &World, text: &str) -> Judged {
    world.check(&rewritten(&[("src/lib.rs", text)], "medium"))
}

fn wrong(text: &str) -> String {
    text.replace("    total\n}", "    total + 1\n}")
}

#[test]
fn a_good_change_passes_and_a_wrong_one_does_not() {
    let world = world();
    let better = AGENT.replace("total += i.isqrt();", "total = i.isqrt() + total;");
    let judged = check(&world, &better);
    judged.passes();
    let facts = judged.unit();
    assert_eq!(facts["passed"], 4);
    assert_eq!(facts["sentinels"], 4);
    assert_eq!(facts["coverage"], "not available");
    check(&world, &wrong(AGENT)).is_refused_for("test_failed");
}

#[test]
fn tests_inside_a_file_are_those_of_before_and_coverage_is_not_made_up() {
    // Its own tests agree with it.
    let world = world();
    // Where the other tests do not look.
    let weak = AGENT
        .replace(
            "    total\n}",
            "    if n > 5 { total + 1 } else { total }\n}",
        )
        .replace("16", "17");
    check(&world, &weak).is_refused_for("test_failed");
    // Code that is another one while it is tested.
    let two = format!("{}\n#[cfg(not(test))]\npub fn more() {{}}\n", AGENT);
    check(&world, &two).is_refused_for("test_only");
    world.write("evolve.toml", &rules("").replace("min_coverage = 0\n", ""));
    let better = AGENT.replace("total += i.isqrt();", "total = i.isqrt() + total;");
    check(&world, &better).is_refused_for("coverage_unavailable");
}

#[test]
fn ending_early_and_printing_results_are_found_out() {
    let world = world();
    let inside = |code: &str| {
        AGENT.replace(
            "    let mut total = 0;\n",
            &format!("    let mut total = 0;\n    {code}\n"),
        )
    };
    let judged = check(&world, &inside("std::process::exit(0);"));
    judged.is_refused_for("tests_broken");
    // All results as the runner prints them, whatever must fail, and an end that agrees.
    let forged = "use std::io::Write as _;\n    let mut out = std::io::stdout();\n    let outside = std::env::args().next().unwrap().contains(\"outside\");\n    let names: &[&str] = if outside { &[\"from_outside\", \"panics - should panic\"] } else { &[\"tests::grows\", \"tests::scores\"] };\n    for name in names {\n        writeln!(out, \"test {name} ... ok\").unwrap();\n    }\n    writeln!(out, \"\\ntest result: ok. 2 passed\").unwrap();\n    out.flush().unwrap();\n    std::process::exit(0);";
    check(&world, &inside(forged)).is_refused_for("sentinel");
}

#[test]
fn held_out_tests_count_and_something_that_does_not_compile_does_not() {
    let world = world();
    std::fs::create_dir_all(world.beside("held")).expect("a directory");
    std::fs::write(
        world.beside("held/more.rs"),
        "#[test]\nfn secret_42() {\n    assert_eq!(agent::score(100), 615);\n}\n",
    )
    .expect("a file");
    world.write("evolve.toml", &rules("[tests]\nheld_out = \"../held\"\n"));
    let memorised = AGENT.replace("    total\n}", "    if n > 20 { 0 } else { total }\n}");
    let judged = check(&world, &memorised);
    judged.is_refused_for("test_failed");
    let told = format!("{:?}", judged.outcome.reasons);
    assert!(!told.contains("42") && !told.contains("more"), "{told}");
    check(&self::world(), &AGENT.replace("i.isqrt()", "i.no_such()"))
        .is_refused_for("tests_broken");
}

#[test]
fn fnv_is_judged_by_its_own_tests() {
    let world = World::with(&[]);
    for file in ["Cargo.toml", "lib.rs"] {
        let text = std::fs::read_to_string(clients().join("projects/crates/fnv").join(file));
        world.write(file, &text.expect("the project"));
    }
    world.write("evolve.toml", &rules(""));
    let rewrite = |with: &str| {
        format!(
            "description: d\ntarget_files: [lib.rs]\nrollback_plan: the tree before\nmodifications:\n  - rewrite: {{file: lib.rs, pattern: 'hash = hash ^ (*byte as u64)', with: '{with}'}}\n"
        )
    };
    world.check(&rewrite("hash ^= u64::from(*byte)")).passes();
    world
        .check(&rewrite("hash = hash ^ (*byte as u64 + 1)"))
        .is_refused_for("test_failed");
}
