//! Stage 6: faults that scanners find, and secrets. A scanner that is missing, or can't be understood, is a failure.

use serde_json::{Value, json};

use super::chamber::{ChamberError, Chambers, Job};
use super::finding::{Finding, finding};
use crate::config::Scanner;
use crate::imports;
use crate::proposal::Risk;
use crate::scope::Change;
use crate::tree::{Entry, Tree};

pub(super) fn scan(
    chambers: &Chambers,
    before: &Tree,
    after: &Tree,
    scanners: &[Scanner],
    changes: &[Change<'_>],
) -> Finding {
    let mut finding = finding();
    let mut figures = serde_json::Map::new();
    for scanner in scanners {
        let count = |tree: &Tree| count(chambers, tree, scanner);
        let at = Some(scanner.name.clone());
        match (count(before), count(after)) {
            (Ok(old), Ok(new)) => {
                figures.insert(scanner.name.clone(), json!({"before": old, "after": new}));
                if new > old {
                    finding.refuse(
                        "findings",
                        at,
                        &format!("it finds {new} faults, {old} before"),
                        "",
                    );
                }
            }
            (Err(error), _) | (_, Err(error)) => finding.refuse(
                "scanner",
                at,
                &error.to_string(),
                "install it where `readable` shows it, or take it out of evolve.toml",
            ),
        }
    }
    for change in changes {
        let Some(text) = change.after.and_then(Entry::text) else {
            continue;
        };
        let (added, _) = change.lines();
        for (number, line) in text.lines().enumerate() {
            if added.contains(&(number + 1))
                && let Some(kind) = secret(line)
            {
                finding.refuse(
                    "secret",
                    Some(format!("{}:{}", change.path, number + 1)),
                    &format!("this looks like {kind}"),
                    "secrets are given at run time, never written down",
                );
            }
        }
    }
    for import in imports::undeclared(changes, after) {
        let at = format!("{}:{}", import.path, import.line);
        let message = format!(
            "{} is imported, and no manifest or lock file has it",
            import.name
        );
        finding.raise(Risk::Critical, "undeclared_import", &at, &message);
    }
    finding.facts = json!({"scanners": figures});
    finding
}

fn count(chambers: &Chambers, tree: &Tree, scanner: &Scanner) -> Result<usize, ChamberError> {
    let place = chambers.place(tree)?;
    let job = Job {
        words: &scanner.command,
        ..Job::default()
    };
    let result = chambers.run(&place, &job)?;
    let printed = result.stdout.as_deref().unwrap_or_default();
    let value: Value = serde_json::from_str(printed).map_err(|error| {
        let said = result
            .stderr
            .as_deref()
            .unwrap_or_default()
            .lines()
            .last()
            .unwrap_or_default()
            .to_owned();
        ChamberError::Ended(format!(
            "what it printed is not JSON ({error}); it ended with {:?}: {said}",
            result.exit_code
        ))
    })?;
    let pointer = scanner.findings.trim_end_matches('/');
    let list = value.pointer(pointer).and_then(Value::as_array);
    list.map(Vec::len)
        .ok_or_else(|| ChamberError::Ended(format!("there is no list at {}", scanner.findings)))
}

/// What kind of secret a line holds, if it looks like one.
fn secret(line: &str) -> Option<&'static str> {
    let after = |prefix: &str, least: usize, is: fn(char) -> bool| {
        line.match_indices(prefix).any(|(at, _)| {
            line[at + prefix.len()..]
                .chars()
                .take_while(|c| is(*c))
                .count()
                >= least
        })
    };
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if line.contains("-----BEGIN ") && line.contains("PRIVATE KEY") {
        Some("a private key")
    } else if ["AKIA", "ASIA"]
        .iter()
        .any(|prefix| after(prefix, 16, |c| c.is_ascii_uppercase() || c.is_ascii_digit()))
    {
        Some("a cloud access key")
    } else if [
        "ghp_",
        "gho_",
        "ghs_",
        "github_pat_",
        "glpat-",
        "xoxb-",
        "xoxp-",
        "npm_",
        "pypi-",
    ]
    .iter()
    .any(|prefix| after(prefix, 16, word))
    {
        Some("an access token")
    } else if ["sk-", "sk_live_", "rk_live_"]
        .iter()
        .any(|prefix| after(prefix, 20, word))
    {
        Some("an API key")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_hold_secrets_are_known() {
        let dashes = "-".repeat(5);
        for line in [
            format!("{dashes}BEGIN RSA PRIVATE KEY{dashes}"),
            format!("key = 'AKIA{}'", "A1".repeat(8)),
            format!("token = \"ghp_{}\"", "a".repeat(36)),
            format!("sk-{}", "ab".repeat(20)),
        ] {
            assert!(secret(&line).is_some(), "{line}");
        }
        for line in [
            "task-list-of-things",
            "AKIA",
            "sk-learn",
            "the private key is elsewhere",
        ] {
            assert!(secret(line).is_none(), "{line}");
        }
    }
}
