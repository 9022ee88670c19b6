//! What a language's own parser makes of changed files. Ours only looks at the structure: where both differ, the language is right.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::Work;
use super::chamber::{ChamberError, Chambers, Job};
use super::finding::Finding;
use crate::glob::{self, Glob};
use crate::lang::Lang;
use crate::proposal::Risk;
use crate::risk::{Claim, claim};
use crate::signals;
use crate::tree::{Entry, Tree};

const PYTHON: &str = include_str!("../python/syntax.py");
const NODE: &str = include_str!("../node/syntax.cjs");
/// What both are made of: another text is another judge.
pub(super) const TEXTS: [&str; 2] = [PYTHON, NODE];

/// How far two versions of a file differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Differs {
    Comments,
    Messages,
    Code,
    Unknown,
}

/// What Python says of a file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PythonReport {
    differs: Differs,
    imports: Vec<String>,
    names: Vec<String>,
    paths: Vec<String>,
    texts: Vec<String>,
    patched: Vec<String>,
    passed: Vec<String>,
    sets: Vec<String>,
}

/// Has the languages' own parsers look at what changed.
pub(super) fn check(
    found: &mut Finding,
    work: &Work<'_>,
    chambers: &Chambers,
    place: &Path,
    tree: &Tree,
) {
    python(found, work, chambers, place, tree);
    let claims = claims(work, tree, |lang| lang != Lang::Python);
    let (node, rest): (Vec<_>, Vec<_>) = claims
        .into_iter()
        .partition(|(_, lang, _, _)| *lang == Lang::JavaScript || *lang == Lang::TypeScript);
    let said = match node.is_empty() {
        true => BTreeMap::new(),
        false => ask_node(work, chambers, place, &node),
    };
    for (path, _, said_to_be, _) in node {
        let differs = said.get(&path).copied().unwrap_or(Differs::Unknown);
        confirm(found, &path, said_to_be, differs, "Node");
    }
    for (path, lang, said_to_be, (before, after)) in rest {
        // What JSX is, Node's parser does not know.
        let differs = match lang {
            Lang::Rust => rust(&before, &after),
            _ => Differs::Unknown,
        };
        confirm(found, &path, said_to_be, differs, "the compiler");
    }
}

type Claimed = (String, Lang, Claim, (String, String));

/// Files of which our parser says that no code differs.
fn claims(work: &Work<'_>, tree: &Tree, is_wanted: impl Fn(Lang) -> bool) -> Vec<Claimed> {
    let there = work
        .changes
        .iter()
        .filter(|change| change.after.is_some() && tree.get(change.path) == change.after);
    there
        .filter_map(|change| {
            let lang = Lang::of(change.path).filter(|lang| is_wanted(*lang))?;
            let text = |entry: Option<&Entry>| entry.and_then(Entry::text).map(str::to_owned);
            let texts = (text(change.before)?, text(change.after)?);
            Some((change.path.to_string(), lang, claim(change)?, texts))
        })
        .collect()
}

/// Where the language does not say the same as our parser, it is as if code differed.
fn confirm(found: &mut Finding, path: &str, claim: Claim, differs: Differs, who: &str) {
    let holds = match claim {
        Claim::Comments => differs == Differs::Comments,
        Claim::Messages => matches!(differs, Differs::Comments | Differs::Messages),
    };
    if holds {
        return;
    }
    let message = match differs {
        Differs::Unknown => format!("{who} could not be asked whether only comments differ"),
        _ => format!("{who} reads it otherwise than it looks: more than that differs"),
    };
    found.raise(Risk::High, "unconfirmed", path, &message);
}

fn python(found: &mut Finding, work: &Work<'_>, chambers: &Chambers, place: &Path, tree: &Tree) {
    let changed = work.changed(tree, |lang| lang == Lang::Python);
    if changed.is_empty() {
        return;
    }
    let mut before = BTreeMap::new();
    for change in &work.changes {
        let path = change.path.to_string();
        if changed.contains_key(&path) {
            let text = change.before.and_then(Entry::text).unwrap_or_default();
            before.insert(path, text.to_owned());
        }
    }
    let words = [
        work.config.python.as_str(),
        "-I",
        "-B",
        "/belljar/evolve/syntax.py",
    ]
    .map(str::to_owned);
    let job = json!({"root": place, "changed": before});
    let shows = vec![
        ("evolve/syntax.py", PYTHON.as_bytes().to_vec()),
        ("evolve/job.json", job.to_string().into_bytes()),
    ];
    let job = Job {
        words: &words,
        shows,
        ..Job::default()
    };
    let Some(result) = super::statics::must_end_well(found, chambers, place, "syntax", &job) else {
        return;
    };
    let told: Option<BTreeMap<String, PythonReport>> = (!result.stdout_truncated)
        .then_some(result.stdout)
        .flatten()
        .and_then(|text| serde_json::from_str(&text).ok());
    let Some(told) = told else {
        let hint = "propose smaller steps";
        found.refuse(
            "check",
            Some("syntax".into()),
            "what Python said of it can't be read",
            hint,
        );
        return;
    };
    let tests = test_modules(tree, &work.config.test_files);
    for (path, report) in &told {
        for name in report.imports.iter().filter(|name| is_test(name, &tests)) {
            let message = format!("{name} is a test, which has the answers");
            found.refuse("test_import", Some(path.clone()), &message, "");
        }
        names(found, work, path, report);
    }
    for (path, _, said_to_be, _) in claims(work, tree, |lang| lang == Lang::Python) {
        let differs = told.get(&path).map_or(Differs::Unknown, |one| one.differs);
        confirm(found, &path, said_to_be, differs, "Python");
    }
}

/// The names of modules with tests in them.
fn test_modules(tree: &Tree, test_files: &[String]) -> BTreeSet<String> {
    let patterns = test_files.iter().map(String::as_str).chain(["conftest.py"]);
    let globs: Vec<Glob> = patterns.map(Glob::new).collect();
    let tests = tree
        .iter()
        .map(|(path, _)| path)
        .filter(|path| glob::first(&globs, path).is_some());
    tests
        .filter_map(|path| Some(path.name().rsplit_once('.')?.0.to_owned()))
        .collect()
}

fn is_test(name: &str, tests: &BTreeSet<String>) -> bool {
    let mut parts = name.split('.').filter(|part| !part.is_empty());
    let first = parts.clone().next();
    matches!(first, Some("tests" | "test" | "belljar_held_out"))
        || parts.any(|part| tests.contains(part))
}

/// Names and bindings that are new in Python's own eyes, however they are written.
fn names(found: &mut Finding, work: &Work<'_>, path: &str, report: &PythonReport) {
    let allowed = &work.config.allow_names;
    let at = || Some(path.to_owned());
    let is_known = |found: &Finding, message: &str| {
        let all = found
            .reasons
            .iter()
            .chain(found.raised.iter().map(|(_, reason)| reason));
        all.into_iter().any(|reason| reason.message == message)
    };
    for name in &report.names {
        match signals::of_python_name(name, work.config) {
            Some((_, _, message)) if is_known(found, &message) => {}
            Some((Risk::Critical, code, message)) => found.refuse(code, at(), &message, ""),
            Some((risk, code, message)) => found.raise(risk, code, path, &message),
            None => {}
        }
    }
    let dotted = report.paths.iter().map(|one| (one, false));
    for (name, is_text) in dotted.chain(report.texts.iter().map(|one| (one, true))) {
        if let Some(denied) = signals::denied_path(name, is_text, allowed) {
            let message = format!("{denied} may not be brought in ({name})");
            found.refuse("denied_identifier", at(), &message, "");
        } else if signals::is_switch_path(name) {
            let message = format!("{name} can tell a test from the real thing");
            found.raise(Risk::High, "behaviour_switch", path, &message);
        }
    }
    for what in &report.patched {
        let message = format!("{what} is another module's");
        if !is_known(found, &message) {
            found.refuse("patched_module", at(), &message, "");
        }
    }
    for what in &report.passed {
        let message = format!("the module {what} is handed to something that could change it");
        found.raise(Risk::High, "module_passed", path, &message);
    }
    for what in &report.sets {
        let message = format!("{what} is set, which something else owns");
        found.raise(Risk::High, "attribute_set", path, &message);
    }
}

fn ask_node(
    work: &Work<'_>,
    chambers: &Chambers,
    place: &Path,
    files: &[Claimed],
) -> BTreeMap<String, Differs> {
    let words = [
        work.config.node.as_str(),
        "--expose-internals",
        "--no-warnings",
        "/belljar/evolve/syntax.cjs",
    ]
    .map(str::to_owned);
    let before: BTreeMap<&String, &String> = files
        .iter()
        .map(|(path, _, _, (before, _))| (path, before))
        .collect();
    let job = json!({"root": place, "changed": before});
    let shows = vec![
        ("evolve/syntax.cjs", NODE.as_bytes().to_vec()),
        ("evolve/job.json", job.to_string().into_bytes()),
    ];
    let job = Job {
        words: &words,
        shows,
        ..Job::default()
    };
    // Without a Node, or in one without its parser, nobody says anything, and what nobody says is unknown.
    let told: Result<_, ChamberError> = chambers.run(place, &job);
    told.ok()
        .filter(|result| result.exit_code == Some(0) && !result.stdout_truncated)
        .and_then(|result| serde_json::from_str(&result.stdout?).ok())
        .unwrap_or_default()
}

/// Rust's tokens, as procedural macros see them: comments are none of them, and documentation is.
fn rust(before: &str, after: &str) -> Differs {
    let tokens = |text: &str| -> Option<Vec<String>> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let stream: proc_macro2::TokenStream = text.parse().ok()?;
        let mut all = Vec::new();
        flatten(stream, &mut all);
        Some(all)
    };
    match (tokens(before), tokens(after)) {
        (Some(old), Some(new)) if old == new => Differs::Comments,
        (Some(_), Some(_)) => Differs::Code,
        _ => Differs::Unknown,
    }
}

fn flatten(stream: proc_macro2::TokenStream, all: &mut Vec<String>) {
    use proc_macro2::TokenTree;
    let mut waiting = vec![stream.into_iter()];
    while let Some(last) = waiting.last_mut() {
        match last.next() {
            Some(TokenTree::Group(group)) => {
                all.push(format!("{:?} (", group.delimiter()));
                waiting.push(group.stream().into_iter());
            }
            Some(TokenTree::Punct(mark)) => {
                all.push(format!("{} {:?}", mark.as_char(), mark.spacing()));
            }
            Some(other) => all.push(other.to_string()),
            None => {
                all.push(")".to_owned());
                waiting.pop();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rusts_tokens_are_its_own() {
        for (before, after, differs) in [
            ("fn f() {}", "// c\nfn f() {/* d */}", Differs::Comments),
            ("fn f() {}", "/// c\nfn f() {}", Differs::Code),
            ("fn f() {}", "fn f() { g() }", Differs::Code),
            ("fn f() {}", "fn f( {}", Differs::Unknown),
            (
                "fn f() -> &str { \"a\" }",
                "fn f() -> &str { \"b\" }",
                Differs::Code,
            ),
        ] {
            assert_eq!(rust(before, after), differs, "{after}");
        }
    }
}
