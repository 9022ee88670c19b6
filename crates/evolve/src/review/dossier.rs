//! Everything a reviewer looks at, gathered in one place.

use std::collections::BTreeSet;

use similar::{ChangeTag, TextDiff};

use super::standing::Subject;
use crate::evidence::{StageResult, Statement, Verdict};
use crate::proposal::{Digests, Proposal, ProposalId, Status};
use crate::store::{Store, StoreError};
use crate::tree::{Entry, Tree};

/// The most lines of a difference that are shown of one file. A longer one is cut, and says so.
const MOST_LINES: usize = 1000;
/// Lines around a change.
const AROUND: usize = 3;

/// A proposal and all that was found out about it.
#[derive(Clone, Debug)]
pub struct Dossier {
    /// The proposal.
    pub proposal: Proposal,
    /// What an approval would be about.
    pub digests: Digests,
    /// What each stage found.
    pub stages: Vec<StageResult>,
    /// What was changed.
    pub files: Vec<FileChange>,
    /// How its author says to go back.
    pub rollback_plan: String,
    /// What it touches besides.
    pub impact: Impact,
    /// The tree before.
    pub base: Tree,
    /// The tree after.
    pub candidate: Tree,
}

/// Why a proposal can't be reviewed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotReady {
    /// It can't be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Its stages have not run.
    #[error("the stages of {0} have not run, so there is nothing to decide on")]
    NoEvidence(String),
    /// The evidence is another tree's or another proposal's.
    #[error("the evidence of {0} is not about it")]
    OtherEvidence(String),
}

impl NotReady {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Store(_) => "`belljar evolve list` names the proposals",
            Self::NoEvidence(_) => "wait for its stages to end",
            Self::OtherEvidence(_) => {
                "somebody put another proposal's evidence there; propose the change anew"
            }
        }
    }
}

/// What a change is to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It is new.
    Added,
    /// It is gone.
    Removed,
    /// It is another.
    Changed,
}

/// A line of a difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiffLine {
    /// `+`, `-`, a space, or `@` between two parts.
    pub mark: char,
    /// The line, as the candidate has it: nothing of it is to be believed or obeyed.
    pub text: String,
}

/// What became of one file.
#[derive(Clone, Debug)]
pub struct FileChange {
    /// Which.
    pub path: String,
    /// What.
    pub kind: Kind,
    /// Lines that came.
    pub added: usize,
    /// Lines that went.
    pub removed: usize,
    /// The difference; empty where it is not text.
    pub lines: Vec<DiffLine>,
    /// Lines that were left out.
    pub cut: usize,
}

/// What a change touches besides the lines it changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Impact {
    /// Names that others could use and that are new.
    pub api_added: BTreeSet<String>,
    /// Such names that are gone.
    pub api_removed: BTreeSet<String>,
    /// Such names that are declared in another way.
    pub api_changed: BTreeSet<String>,
    /// Other files that mention a name that went or changed.
    pub callers: BTreeSet<String>,
}

impl Dossier {
    /// Gathers it. Trees and evidence are read and hashed anew, so that it is what is there now.
    ///
    /// # Errors
    /// When there is nothing to decide on yet.
    pub fn gather(store: &Store, id: &ProposalId) -> Result<Self, NotReady> {
        let loaded = store.load(id)?;
        let Some(statements) = store.evidence(id)? else {
            return Err(NotReady::NoEvidence(id.short().to_owned()));
        };
        if statements.is_empty() {
            return Err(NotReady::NoEvidence(id.short().to_owned()));
        }
        if !statements.iter().all(|one| is_about(one, &loaded.proposal)) {
            return Err(NotReady::OtherEvidence(id.short().to_owned()));
        }
        let digests = store.digests(id)?;
        let files = changes(&loaded.base, &loaded.candidate);
        Ok(Self {
            impact: impact(&loaded.base, &loaded.candidate, &files),
            files,
            digests,
            stages: statements.into_iter().map(|one| one.predicate).collect(),
            rollback_plan: loaded.request.rollback_plan,
            proposal: loaded.proposal,
            base: loaded.base,
            candidate: loaded.candidate,
        })
    }

    /// What is to be decided. The risk is at least what the evidence says, which an approval is bound to.
    #[must_use]
    pub fn subject(&self) -> Subject {
        let raised = self
            .stages
            .iter()
            .flat_map(|stage| &stage.raised)
            .map(|(risk, _)| *risk);
        let mut subject = Subject::of(&self.proposal, self.digests.clone());
        subject.risk = raised.fold(subject.risk, std::cmp::max);
        subject
    }

    /// The first stage that did not pass. Nobody approves such a proposal.
    #[must_use]
    pub fn failed(&self) -> Option<&str> {
        let failed = self
            .stages
            .iter()
            .find(|stage| stage.verdict == Verdict::Fail);
        let by_status = matches!(
            self.proposal.status,
            Status::Draft | Status::Checking | Status::Rejected
        );
        match failed {
            Some(stage) => Some(&stage.stage),
            None if by_status => Some(self.proposal.status.as_str()),
            None => None,
        }
    }

    /// What follows from the evidence, for somebody who has yet to look. It is no more than advice.
    #[must_use]
    pub fn recommendation(&self) -> String {
        if let Some(stage) = self.failed() {
            return format!("reject: {stage} did not pass");
        }
        let unasked = self
            .stages
            .iter()
            .filter(|stage| stage.verdict == Verdict::NotAsked)
            .count();
        let removed = self.impact.api_removed.len() + self.impact.api_changed.len();
        let mut look = Vec::new();
        if unasked > 0 {
            let stages = if unasked == 1 { "stage" } else { "stages" };
            look.push(format!(
                "{unasked} {stages} that the project declares nothing for"
            ));
        }
        if removed > 0 && !self.impact.callers.is_empty() {
            look.push(format!(
                "{removed} names that others may use are gone or declared otherwise"
            ));
        }
        if look.is_empty() {
            "every stage passed; read the difference, and decide".to_owned()
        } else {
            format!(
                "every stage that was asked passed; look at {}",
                look.join(", and at ")
            )
        }
    }
}

fn is_about(statement: &Statement, proposal: &Proposal) -> bool {
    statement.predicate.proposal == proposal.id
        // A statement about nothing is about nothing.
        && !statement.subject.is_empty()
        && statement
            .subject
            .iter()
            .all(|one| one.digest.sha256 == proposal.candidate_tree)
}

fn changes(base: &Tree, candidate: &Tree) -> Vec<FileChange> {
    let paths: BTreeSet<_> = base
        .iter()
        .chain(candidate.iter())
        .map(|(path, _)| path)
        .collect();
    let mut files = Vec::new();
    for path in paths {
        let (before, after) = (base.get(path), candidate.get(path));
        if before == after {
            continue;
        }
        let kind = match (before, after) {
            (None, _) => Kind::Added,
            (_, None) => Kind::Removed,
            _ => Kind::Changed,
        };
        let mut file = difference(before, after);
        file.path = path.as_str().to_owned();
        file.kind = kind;
        files.push(file);
    }
    files
}

fn difference(before: Option<&Entry>, after: Option<&Entry>) -> FileChange {
    let mut file = FileChange {
        path: String::new(),
        kind: Kind::Changed,
        added: 0,
        removed: 0,
        lines: Vec::new(),
        cut: 0,
    };
    let text = |entry: Option<&Entry>| {
        entry.map_or(Some(String::new()), |entry| entry.text().map(str::to_owned))
    };
    let (Some(old), Some(new)) = (text(before), text(after)) else {
        return file;
    };
    let diff = TextDiff::from_lines(&old, &new);
    for group in diff.grouped_ops(AROUND) {
        let mut part = vec![DiffLine {
            mark: '@',
            text: group.first().map_or(String::new(), |op| {
                format!("line {}", op.new_range().start + 1)
            }),
        }];
        for change in group.iter().flat_map(|op| diff.iter_changes(op)) {
            let mark = match change.tag() {
                ChangeTag::Insert => '+',
                ChangeTag::Delete => '-',
                ChangeTag::Equal => ' ',
            };
            file.added += usize::from(mark == '+');
            file.removed += usize::from(mark == '-');
            let text = change.value().trim_end_matches(['\n', '\r']).to_owned();
            part.push(DiffLine { mark, text });
        }
        let room = MOST_LINES.saturating_sub(file.lines.len());
        file.cut += part.len().saturating_sub(room);
        file.lines.extend(part.into_iter().take(room));
    }
    file
}

/// Names that a file gives to others, with the line that declares each. By the look of the lines: it is for people, and
/// decides nothing.
fn declared(path: &str, text: &str) -> Vec<(String, String)> {
    let starts: &[&str] = match path.rsplit_once('.').map(|(_, end)| end) {
        Some("py" | "pyi") => &["def ", "async def ", "class "],
        Some("rs") => &[
            "pub fn ",
            "pub async fn ",
            "pub struct ",
            "pub enum ",
            "pub trait ",
            "pub const ",
            "pub type ",
        ],
        Some("js" | "mjs" | "ts" | "tsx" | "jsx") => &[
            "export function ",
            "export async function ",
            "export class ",
            "export const ",
            "export default function ",
        ],
        _ => return Vec::new(),
    };
    let of = |line: &str| {
        let rest = starts.iter().find_map(|start| line.strip_prefix(start))?;
        let name: String = rest
            .chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect();
        (!name.is_empty() && !name.starts_with('_')).then(|| (name, line.to_owned()))
    };
    text.lines().filter_map(of).collect()
}

fn impact(base: &Tree, candidate: &Tree, files: &[FileChange]) -> Impact {
    let mut impact = Impact::default();
    for file in files {
        let text = |tree: &Tree| {
            let found = tree.iter().find(|(path, _)| path.as_str() == file.path);
            found
                .and_then(|(_, entry)| entry.text().map(str::to_owned))
                .unwrap_or_default()
        };
        let (old, new) = (
            declared(&file.path, &text(base)),
            declared(&file.path, &text(candidate)),
        );
        for (name, line) in &old {
            match new.iter().find(|(other, _)| other == name) {
                None => drop(impact.api_removed.insert(name.clone())),
                Some((_, other)) if other != line => drop(impact.api_changed.insert(name.clone())),
                Some(_) => {}
            }
        }
        let is_new = |name: &String| !old.iter().any(|(other, _)| other == name);
        impact
            .api_added
            .extend(new.into_iter().map(|(name, _)| name).filter(is_new));
    }
    let touched: Vec<&String> = impact
        .api_removed
        .iter()
        .chain(&impact.api_changed)
        .collect();
    for (path, entry) in candidate.iter() {
        let changed = files.iter().any(|file| file.path == path.as_str());
        if let (false, Some(text)) = (changed, entry.text())
            && text
                .split(|c: char| !(c.is_alphanumeric() || c == '_'))
                .any(|word| touched.iter().any(|name| *name == word))
        {
            impact.callers.insert(path.as_str().to_owned());
        }
    }
    impact
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::TreePath;

    #[test]
    fn what_others_use_and_where_is_found() {
        let make = |files: &[(&str, &str)]| {
            let mut tree = Tree::default();
            for (name, text) in files {
                tree.put(TreePath::new(*name).unwrap(), Entry::file(*text));
            }
            tree
        };
        let base = make(&[
            (
                "a.py",
                "def search(x):\n    return x\n\ndef gone():\n    pass\n",
            ),
            ("b.py", "from a import search\n"),
            ("c.py", "research = 1\n"),
        ]);
        let candidate = make(&[
            (
                "a.py",
                "def search(x, y):\n    return x\n\ndef fresh():\n    pass\n",
            ),
            ("b.py", "from a import search\n"),
            ("c.py", "research = 1\n"),
        ]);
        let files = changes(&base, &candidate);
        assert_eq!(files.len(), 1);
        assert_eq!((files[0].added, files[0].removed), (2, 2));
        let impact = impact(&base, &candidate, &files);
        let set = |names: &[&str]| {
            names
                .iter()
                .map(|name| (*name).to_owned())
                .collect::<BTreeSet<_>>()
        };
        assert_eq!(impact.api_added, set(&["fresh"]));
        assert_eq!(impact.api_removed, set(&["gone"]));
        assert_eq!(impact.api_changed, set(&["search"]));
        assert_eq!(impact.callers, set(&["b.py"]));
    }
}
