//! Node's own test runner: each test file in a box of its own, twice. What it says is read here.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;
use serde_json::json;

use super::super::Work;
use super::super::chamber::{ChamberError, Chambers, Job};
use super::{LinesTold, Outcome, Told, Turn, secret, tail};
use crate::lang::{Lang, code_lines};
use crate::path::TreePath;
use crate::tree::{Entry, Tree};

pub(super) const RUNNER: &str = include_str!("../../node/runner.cjs");

/// A range of a file, in UTF-16 units as JavaScript counts, and how often it was run.
type Range = (usize, usize, u64);

/// What the runner in the box says, a line each.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Word {
    Collected(String),
    Broken(String),
    Seen(BTreeMap<String, Vec<Range>>),
    End(i32),
    #[serde(untagged)]
    Went {
        id: String,
        outcome: Outcome,
        due: bool,
    },
}

/// One run of one file.
#[derive(Debug, Default)]
struct File {
    complete: bool,
    exit: i32,
    /// How each test went, and whether it was to fail.
    outcomes: BTreeMap<String, (Outcome, bool)>,
    seen: BTreeMap<String, Vec<Range>>,
    log: String,
}

/// Runs test files on a tree.
pub(super) fn run(
    chambers: &Chambers,
    work: &Work<'_>,
    tree: &Tree,
    files: &[TreePath],
    changed: &BTreeMap<String, Vec<usize>>,
) -> Result<Told, ChamberError> {
    let place = chambers.place(tree)?;
    let secret = secret()?;
    let secret = belljar_gate::record::hex(&secret);
    let runs: Vec<(&TreePath, Turn)> = files
        .iter()
        .flat_map(|file| Turn::BOTH.map(|turn| (file, turn)))
        .collect();
    let names: Vec<&String> = changed.keys().collect();
    let one = |(file, turn): &(&TreePath, Turn)| {
        in_box(
            chambers,
            &work.config.node,
            &place,
            file,
            *turn,
            &secret,
            &names,
        )
    };
    // As many at once as there are processors; each result in its place.
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let share = runs.len().div_ceil(threads).max(1);
    let found: Vec<Result<File, ChamberError>> = std::thread::scope(|scope| {
        let parts: Vec<_> = runs
            .chunks(share)
            .map(|part| scope.spawn(move || part.iter().map(one).collect::<Vec<_>>()))
            .collect();
        let lost = || vec![Err(ChamberError::Ended("a run of tests was lost".into()))];
        parts
            .into_iter()
            .flat_map(|part| part.join().unwrap_or_else(|_| lost()))
            .collect()
    });
    let mut told = Told {
        complete: found.len() == runs.len(),
        ..Told::default()
    };
    let mut seen: BTreeMap<&String, BTreeSet<usize>> = BTreeMap::new();
    for ((file, _), found) in runs.iter().zip(found) {
        let found = found?;
        if !found.complete {
            told.complete = false;
            told.exit = found.exit;
        }
        told.log.push_str(&found.log);
        for (id, (outcome, due)) in found.outcomes {
            let list = match due {
                true => &mut told.must_fail,
                false => &mut told.outcomes,
            };
            let name = format!("{file}::{id}");
            let worst = list.get(&name).copied().unwrap_or(outcome);
            list.insert(name, worst.max(outcome));
        }
        for (name, ranges) in &found.seen {
            if let Some((name, text)) = changed
                .get_key_value(name)
                .and_then(|(name, _)| Some((name, text_of(tree, name)?)))
            {
                seen.entry(name)
                    .or_default()
                    .extend(lines_run(text, ranges));
            }
        }
    }
    for (name, lines) in changed {
        let Some(text) = text_of(tree, name) else {
            continue;
        };
        let lang = TreePath::new(name.as_str())
            .ok()
            .and_then(|path| Lang::of(&path));
        let code = lang.map(|lang| code_lines(lang, text)).unwrap_or_default();
        let wanted: Vec<usize> = lines
            .iter()
            .copied()
            .filter(|line| code.contains(line))
            .collect();
        let run = seen.remove(name).unwrap_or_default();
        let covered = wanted
            .iter()
            .copied()
            .filter(|line| run.contains(line))
            .collect();
        told.lines
            .insert(name.clone(), LinesTold { wanted, covered });
    }
    Ok(told)
}

fn text_of<'a>(tree: &'a Tree, name: &str) -> Option<&'a str> {
    let path = TreePath::new(name).ok()?;
    tree.get(&path).and_then(Entry::text)
}

fn in_box(
    chambers: &Chambers,
    node: &str,
    place: &Path,
    file: &TreePath,
    turn: Turn,
    secret: &str,
    changed: &[&String],
) -> Result<File, ChamberError> {
    let words = [node, "/belljar/evolve/runner.cjs"].map(str::to_owned);
    let turn = match turn {
        Turn::First => 1,
        Turn::Second => 0,
    };
    let job =
        json!({"secret": secret, "turn": turn, "root": place, "file": file, "changed": changed});
    let result = chambers.run(
        place,
        &Job {
            words: &words,
            shows: vec![("evolve/runner.cjs", RUNNER.as_bytes().to_vec())],
            input: job.to_string().into_bytes(),
            ..Job::default()
        },
    )?;
    let said = result.stdout.as_deref().unwrap_or_default();
    let code = result.exit_code.unwrap_or(-1);
    let mut found = heard(said, code);
    found.complete &= !result.stdout_truncated;
    found
        .log
        .push_str(tail(result.stderr.as_deref().unwrap_or_default(), 4000));
    Ok(found)
}

/// What a run said, if it said all of it. Lines that do not begin with the word it drew are other people's.
fn heard(said: &str, exit: i32) -> File {
    let mut lines = said.lines();
    let mut found = File {
        exit,
        ..File::default()
    };
    let Some(own) = lines.next().filter(|word| word.len() == 32) else {
        return found;
    };
    let mut collected = BTreeSet::new();
    let mut ends = Vec::new();
    let mut is_whole = true;
    for line in lines.filter_map(|line| line.strip_prefix(own)) {
        match serde_json::from_str::<Word>(line) {
            Ok(Word::Collected(id)) => is_whole &= collected.insert(id),
            Ok(Word::Went { id, outcome, due }) => {
                is_whole &= found.outcomes.insert(id, (outcome, due)).is_none();
            }
            Ok(Word::Seen(seen)) => found.seen = seen,
            Ok(Word::End(code)) => ends.push(code),
            Ok(Word::Broken(why)) => {
                found.log.push_str(&why);
                is_whole = false;
            }
            Err(_) => is_whole = false,
        }
    }
    let all_told = collected.iter().eq(found.outcomes.keys());
    let has_failed = found
        .outcomes
        .values()
        .any(|(outcome, _)| *outcome == Outcome::Failed);
    // Node ends with 1 where a test or a hook failed: it and the runner must agree.
    found.complete = is_whole && all_told && ends == [exit] && exit == i32::from(has_failed);
    found
}

/// Lines whose code was run: the innermost range around their first character says so.
fn lines_run(text: &str, ranges: &[Range]) -> BTreeSet<usize> {
    let mut run = BTreeSet::new();
    let mut at = 0;
    for (number, line) in text.split('\n').enumerate() {
        let indent = line.len() - line.trim_start().len();
        let first = at + indent;
        let around = ranges
            .iter()
            .filter(|(start, end, _)| *start <= first && first < *end);
        let innermost = around.min_by_key(|(start, end, _)| end - start);
        if innermost.is_some_and(|(_, _, count)| *count > 0) {
            run.insert(number + 1);
        }
        at += line.encode_utf16().count() + 1;
    }
    run
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "0123456789abcdef0123456789abcdef";

    fn said(lines: &[&str]) -> String {
        let told: String = lines.iter().map(|line| format!("{OWN} {line}\n")).collect();
        format!("{OWN}\n{told}")
    }

    #[test]
    fn a_run_counts_when_it_said_all_and_ended_as_it_said() {
        let all = [
            r#"{"collected":"a"}"#,
            r#"{"id":"a","outcome":"passed","due":false}"#,
            r#"{"end":0}"#,
        ];
        let whole = heard(&said(&all), 0);
        assert!(whole.complete && whole.outcomes["a"] == (Outcome::Passed, false));
        // Another end than it announced, or than its tests had; a part of it; twice; a word that is not its own.
        assert!(!heard(&said(&all), 1).complete);
        assert!(!heard(&said(&all[..2]), 0).complete);
        assert!(!heard(&said(&[all[0], all[2]]), 0).complete);
        assert!(!heard(&said(&[all[0], all[1], all[1], all[2]]), 0).complete);
        assert!(!heard(&said(&[all[0], all[1], all[2], all[2]]), 0).complete);
        assert!(!heard(&said(&[r#"{"broken":"x"}"#, all[2]]), 0).complete);
        assert!(!heard(r#"{"end":0}"#, 0).complete);
        let failed = [
            all[0],
            r#"{"id":"a","outcome":"failed","due":true}"#,
            all[2],
        ];
        assert!(!heard(&said(&failed), 0).complete);
        let noisy = format!("{}hello\n[\"x\"]\n", said(&all));
        assert!(heard(&noisy, 0).complete);
    }

    #[test]
    fn lines_are_run_as_their_innermost_range_says() {
        let text = "f(x) {\n  'é';\n  if (x) {\n    no();\n  }\n}\n";
        let no = text
            .encode_utf16()
            .take_while(|unit| *unit != u16::from(b'n'))
            .count();
        let ranges = [(0, 60, 1), (no - 5, no + 9, 0)];
        assert_eq!(Vec::from_iter(lines_run(text, &ranges)), [1, 2, 3, 6, 7]);
    }
}
