//! `evolve.toml`: how a project's proposals are judged. It is read from the tree before, never from a candidate.

use std::path::PathBuf;
use std::time::Duration;

use belljar_gate::record::sha256_hex;
use belljar_manifest::ManifestError;
use belljar_manifest::document::{
    self, Node, Problem, Shape, number, replace, text, unexpected, whole,
};

mod shape;

use shape::EVOLVE;

/// The file's name, at the top of the project.
pub const FILE: &str = "evolve.toml";

/// How proposals are judged.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The Python that has pytest.
    pub python: String,
    /// The Node that runs tests.
    pub node: String,
    /// The cargo that does.
    pub cargo: String,
    /// Where Python looks for modules, relative to the project.
    pub import_paths: Vec<String>,
    /// Paths of the host that boxes see.
    pub readable: Vec<PathBuf>,
    /// Directories that are not part of the project.
    pub exclude: Vec<String>,
    /// Files in one proposal.
    pub max_files: usize,
    /// Changed lines of one file.
    pub max_lines_per_file: usize,
    /// The share of changed lines that tests run.
    pub min_coverage: f64,
    /// The time of one box.
    pub stage_time: Duration,
    /// The memory of one box, in MiB.
    pub memory_mb: u64,
    /// Paths that no proposal touches.
    pub never: Vec<String>,
    /// Paths that only a critical one touches.
    pub immutable: Vec<String>,
    /// Names that no proposal brings in.
    pub deny_names: Vec<String>,
    /// Names that may be.
    pub allow_names: Vec<String>,
    /// Paths that are critical.
    pub critical: Vec<String>,
    /// Paths that are high.
    pub high: Vec<String>,
    /// Patterns of test files.
    pub test_files: Vec<String>,
    /// Who runs them; those for which there is something to run, if none is named.
    pub runners: Vec<String>,
    /// Tests that no author sees.
    pub held_out: Option<PathBuf>,
    /// Further programs.
    pub checks: Vec<Check>,
    /// Runs whose output is compared.
    pub cases: Vec<Case>,
    /// A program whose time counts.
    pub benchmark: Option<Benchmark>,
    /// Programs that find faults.
    pub scanners: Vec<Scanner>,
    /// A program whose doings are compared.
    pub behaviour: Option<Vec<String>>,
    /// SHA-256 of the file, or of nothing.
    pub digest: String,
}

/// A program that must end well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What it is called.
    pub name: String,
    /// The program and its arguments.
    pub command: Vec<String>,
}

/// A run whose output is compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// What it is called.
    pub name: String,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The input.
    pub input: String,
    /// What it prints.
    pub expect: String,
}

/// A program whose time counts.
#[derive(Clone, Debug, PartialEq)]
pub struct Benchmark {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Runs of each.
    pub rounds: usize,
    /// How much slower the median may be.
    pub max_slowdown: f64,
}

/// A program that finds faults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scanner {
    /// What it is called.
    pub name: String,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Where the findings are.
    pub findings: String,
}

impl Default for Config {
    fn default() -> Self {
        let list = |words: &[&str]| {
            words
                .iter()
                .map(|word| (*word).to_owned())
                .collect::<Vec<_>>()
        };
        Self {
            python: "/usr/bin/python3".into(),
            node: "/usr/bin/node".into(),
            cargo: "/usr/bin/cargo".into(),
            runners: Vec::new(),
            import_paths: list(&[".", "src"]),
            readable: Vec::new(),
            exclude: list(&crate::tree::MADE),
            max_files: 10,
            max_lines_per_file: 500,
            min_coverage: 0.8,
            stage_time: Duration::from_secs(120),
            memory_mb: 1024,
            never: Vec::new(),
            immutable: Vec::new(),
            deny_names: Vec::new(),
            allow_names: Vec::new(),
            critical: Vec::new(),
            high: Vec::new(),
            test_files: list(&[
                "test_*.py",
                "*_test.py",
                "*.test.js",
                "*.test.mjs",
                "*.test.cjs",
                "*.test.ts",
                "*.test.mts",
                "*.spec.js",
                "*.spec.mjs",
                "*.spec.ts",
            ]),
            held_out: None,
            checks: Vec::new(),
            cases: Vec::new(),
            benchmark: None,
            scanners: Vec::new(),
            behaviour: None,
            digest: sha256_hex(b""),
        }
    }
}

/// Its JSON Schema.
#[must_use]
pub fn schema() -> serde_json::Value {
    document::schema(&EVOLVE, "evolve.toml")
}

/// What is said of a file with nothing in it.
const WHEN_EMPTY: &str = "the file is empty; `[project]` means all defaults";

/// Reads an `evolve.toml`.
///
/// # Errors
/// The first thing wrong with it, with its place.
pub fn parse(file_name: &str, bytes: &[u8]) -> Result<Config, ManifestError> {
    let mut config = document::parse_toml(file_name, bytes, WHEN_EMPTY, decode)?;
    config.digest = sha256_hex(bytes);
    Ok(config)
}

fn decode(root: &Node<'_>) -> Result<Config, Problem> {
    Shape::Object(&EVOLVE).check(root, "evolve.toml")?;
    let mut config = Config::default();
    let at = |section: &str, key: &str| root.get(section).and_then(|section| section.get(key));
    replace(&mut config.python, at("project", "python"), string)?;
    replace(&mut config.node, at("project", "node"), string)?;
    replace(&mut config.cargo, at("project", "cargo"), string)?;
    replace(&mut config.runners, at("tests", "runners"), |list| {
        list.items().iter().map(runner).collect()
    })?;
    replace(
        &mut config.import_paths,
        at("project", "import_paths"),
        strings,
    )?;
    if let Some(list) = at("project", "readable") {
        for item in list.items() {
            let path = PathBuf::from(text(item)?);
            if !path.is_absolute() {
                return Err(Problem::new(item.span, "a path of the host is absolute")
                    .with_hint("write it from / on"));
            }
            config.readable.push(path);
        }
    }
    if let Some(more) = at("project", "exclude") {
        config.exclude.extend(strings(more)?);
    }
    replace(&mut config.max_files, at("limits", "max_files"), whole)?;
    replace(
        &mut config.max_lines_per_file,
        at("limits", "max_lines_per_file"),
        whole,
    )?;
    replace(
        &mut config.min_coverage,
        at("limits", "min_coverage"),
        number,
    )?;
    replace(
        &mut config.stage_time,
        at("limits", "stage_seconds"),
        document::seconds,
    )?;
    replace(&mut config.memory_mb, at("limits", "memory_mb"), whole)?;
    replace(&mut config.never, at("scope", "never"), strings)?;
    replace(&mut config.immutable, at("scope", "immutable"), strings)?;
    replace(&mut config.deny_names, at("signals", "deny"), strings)?;
    replace(&mut config.allow_names, at("signals", "allow"), strings)?;
    replace(&mut config.critical, at("risk", "critical"), strings)?;
    replace(&mut config.high, at("risk", "high"), strings)?;
    replace(&mut config.test_files, at("tests", "files"), strings)?;
    if let Some(held_out) = at("tests", "held_out") {
        config.held_out = Some(PathBuf::from(text(held_out)?));
    }
    replace(&mut config.checks, root.get("checks"), |list| {
        list.items()
            .iter()
            .map(|item| {
                Ok(Check {
                    name: of(item, "name", string)?,
                    command: of(item, "command", command)?,
                })
            })
            .collect()
    })?;
    replace(&mut config.cases, root.get("cases"), |list| {
        let case = |item: &Node<'_>| {
            Ok(Case {
                name: of(item, "name", string)?,
                command: of(item, "command", command)?,
                input: item.get("input").map_or(Ok(String::new()), string)?,
                expect: of(item, "expect", string)?,
            })
        };
        list.items().iter().map(case).collect()
    })?;
    if let Some(table) = root.get("benchmark") {
        config.benchmark = Some(Benchmark {
            command: of(table, "command", command)?,
            rounds: table.get("rounds").map_or(Ok(12), whole)?,
            max_slowdown: table.get("max_slowdown").map_or(Ok(0.1), number)?,
        });
    }
    replace(&mut config.scanners, root.get("scanners"), |list| {
        let scanner = |item: &Node<'_>| {
            Ok(Scanner {
                name: of(item, "name", string)?,
                command: of(item, "command", command)?,
                findings: of(item, "findings", string)?,
            })
        };
        list.items().iter().map(scanner).collect()
    })?;
    if let Some(table) = root.get("behaviour") {
        config.behaviour = Some(of(table, "command", command)?);
    }
    Ok(config)
}

fn of<T>(
    node: &Node<'_>,
    key: &str,
    read: impl FnOnce(&Node<'_>) -> Result<T, Problem>,
) -> Result<T, Problem> {
    read(node.get(key).ok_or_else(|| unexpected(node))?)
}

fn string(node: &Node<'_>) -> Result<String, Problem> {
    Ok(text(node)?.to_owned())
}

fn runner(node: &Node<'_>) -> Result<String, Problem> {
    let name = string(node)?;
    match matches!(name.as_str(), "python" | "node" | "cargo") {
        true => Ok(name),
        false => Err(Problem::new(node.span, "no such test runner")
            .with_hint("python, node or cargo; others are `checks`")),
    }
}

fn strings(node: &Node<'_>) -> Result<Vec<String>, Problem> {
    node.items().iter().map(string).collect()
}

fn command(node: &Node<'_>) -> Result<Vec<String>, Problem> {
    let words = strings(node)?;
    match words.is_empty() {
        true => Err(Problem::new(node.span, "a command has a program")
            .with_hint("list the program and its arguments")),
        false => Ok(words),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_and_what_is_wrong_has_its_place() {
        let config = parse(
            "evolve.toml",
            b"[limits]\nmin_coverage = 0.9\n[benchmark]\ncommand = [\"a\"]\n",
        )
        .unwrap();
        assert_eq!(config.min_coverage, 0.9);
        assert_eq!(config.benchmark.unwrap().rounds, 12);
        assert_eq!(
            parse("evolve.toml", b"[limits]\ncoverage = 0.9\n")
                .unwrap_err()
                .line,
            2
        );
        assert_eq!(
            parse("evolve.toml", b"[[checks]]\nname = \"x\"\ncommand = []\n")
                .unwrap_err()
                .line,
            3
        );
        assert_eq!(
            parse("evolve.toml", b"[project]\nreadable = [\"x\"]\n")
                .unwrap_err()
                .line,
            2
        );
        assert_eq!(
            parse("evolve.toml", b"[tests]\nrunners = [\"node\", \"jest\"]\n")
                .unwrap_err()
                .line,
            2
        );
        assert_ne!(config.digest, Config::default().digest);
    }
}
