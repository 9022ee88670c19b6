//! What stages found, in words, and why the risk is what it is: what a reviewer needs besides the difference.

use serde_json::Value;

use super::dossier::Dossier;
use super::standing::Standing;
use crate::evidence::StageResult;

/// Why the risk is what it is: what its computation and the stages gave as reasons.
pub(super) fn risk_lines(dossier: &Dossier) -> Vec<String> {
    let computed = dossier.proposal.reasons.iter();
    let mut lines: Vec<String> = computed
        .filter(|reason| reason.stage == "risk")
        .map(|reason| at(reason.at.as_deref(), &reason.message))
        .collect();
    for (risk, reason) in dossier.stages.iter().flat_map(|stage| &stage.raised) {
        let message = format!("{risk}: {} ({})", reason.message, reason.code);
        let line = at(reason.at.as_deref(), &message);
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    if lines.is_empty() {
        lines.push("nothing says why".to_owned());
    }
    lines
}

fn at(place: Option<&str>, message: &str) -> String {
    match place {
        Some(place) => format!("{place}: {message}"),
        None => message.to_owned(),
    }
}

/// What a stage counted: tests, lines, times.
pub(super) fn counted(stage: &StageResult) -> Vec<String> {
    let mut lines = Vec::new();
    of_tests("", &stage.facts, &mut lines);
    // Of several runners each has its own.
    for runner in ["python", "node", "cargo"] {
        if let Some(facts) = stage.facts.get(runner) {
            of_tests(&format!("{runner}: "), facts, &mut lines);
        }
    }
    if let Some(found) = stage.facts.get("found") {
        let number = |of: &Value, name: &str| of.get(name).and_then(Value::as_f64);
        if let (Some(ratio), Some(p)) = (number(found, "ratio"), number(found, "p")) {
            lines.push(format!("{ratio:.2} times as long as before (p = {p:.4})"));
        }
        let times = number(&stage.facts, "before_ms").zip(number(&stage.facts, "after_ms"));
        if let Some((before, after)) = times {
            lines.push(format!(
                "{before:.1} ms before, {after:.1} ms after (medians)"
            ));
        }
    }
    if let Some(fresh) = stage.facts.get("new").and_then(Value::as_array) {
        lines.push(match fresh.len() {
            0 => "nothing that it did not do before".to_owned(),
            some => format!("{some} things that it did not do before"),
        });
    }
    if let Some(Value::String(text)) = stage.facts.get("coverage") {
        lines.push(format!("which lines run: {text}"));
    }
    lines
}

fn of_tests(name: &str, facts: &Value, lines: &mut Vec<String>) {
    let number = |key: &str| facts.get(key).and_then(Value::as_u64);
    if let (Some(passed), Some(tests)) = (number("passed"), number("tests")) {
        let before = number("baseline_passed").zip(number("baseline_tests"));
        let before = before.map_or(String::new(), |(passed, tests)| {
            format!(" ({passed} of {tests} before)")
        });
        lines.push(format!("{name}{passed} of {tests} tests pass{before}"));
    }
    if let Some(sentinels) = number("sentinels") {
        lines.push(format!("{name}{sentinels} were made to fail, and did"));
    }
    if let (Some(run), Some(all)) = (number("changed_lines_run"), number("changed_lines")) {
        lines.push(format!("{name}{run} of {all} changed lines run"));
    }
}

/// Until when an approval counts.
pub(super) fn until(standing: &Standing, utc: fn(u64) -> String) -> Option<String> {
    let Standing::Approved(yes) = standing else {
        return None;
    };
    let end_s = yes.until_s().filter(|_| !yes.by().is_empty())?;
    Some(format!(
        "it counts until {}; a rollout that is under way then holds",
        utc(end_s.saturating_mul(1000))
    ))
}
