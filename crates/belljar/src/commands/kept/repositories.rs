//! What became of a repository, in lines. All names in it are the agent's.

use super::shown::files;
use crate::pager::PagedOutput;
use crate::print::{harmless, harmless_path};
use belljar_policy::harmless_bytes;
use belljar_supervisor::{ChangeKind, MovedRef, RepositorySummary};

/// Commits that are told of one ref.
const MOST_COMMITS: usize = 30;
const MOST_PATHS: usize = 30;

pub(super) fn tell(summary: &RepositorySummary, output: &mut PagedOutput) {
    let commits: usize = summary.refs.iter().map(|moved| moved.commits.len()).sum();
    let title = format!(
        "git, {}: {}; {} of its own, which --all shows",
        harmless_path(&summary.directory),
        match commits {
            0 => "no new commits".to_owned(),
            1 => "1 new commit".to_owned(),
            _ => format!("{commits} new commits"),
        },
        files(summary.files)
    );
    output.text(&format!("{}\n", output.styled(&title, "1")));
    if let Some((before, after)) = &summary.head {
        let text = format!("HEAD {}", way(before.as_deref(), after.as_deref()));
        output.text(&format!("  {}\n", output.styled(&text, "36")));
    }
    for moved in &summary.refs {
        tell_ref(moved, output);
    }
    let staged = summary.staged.len();
    for staged in summary.staged.iter().take(MOST_PATHS) {
        let (word, colour) = match (staged.is_conflict, staged.kind) {
            (true, _) => ("in conflict", "31"),
            (_, ChangeKind::Added) => ("staged, new", "32"),
            (_, ChangeKind::Modified) => ("staged", "33"),
            (_, ChangeKind::Deleted) => ("staged, deleted", "31"),
        };
        let text = format!("{word}: {}", harmless_bytes(&staged.path));
        output.text(&format!("  {}\n", output.styled(&text, colour)));
    }
    tell_more(staged, "staged", output);
    for path in summary.unwatched.iter().take(MOST_PATHS) {
        let text = format!(
            "no longer looked at by git status: {}",
            harmless_bytes(path)
        );
        output.text(&format!("  {}\n", output.styled(&text, "31")));
    }
    tell_more(summary.unwatched.len(), "no longer looked at", output);
    for remark in &summary.remarks {
        let text = format!("not told: {}", harmless(remark));
        output.text(&format!("  {}\n", output.styled(&text, "31")));
    }
}

fn tell_more(count: usize, what: &str, output: &mut PagedOutput) {
    if let Some(more) = count.checked_sub(MOST_PATHS).filter(|more| *more > 0) {
        output.text(&format!("  and {more} more {what}\n"));
    }
}

fn tell_ref(moved: &MovedRef, output: &mut PagedOutput) {
    let mut text = format!(
        "{} {}",
        harmless_bytes(&moved.name),
        way(moved.before.as_deref(), moved.after.as_deref())
    );
    let is_moved = moved.before.is_some() && moved.after.is_some();
    if is_moved && moved.goes_on == Some(false) {
        text.push_str(" (leaves commits out that were there)");
    }
    output.text(&format!("  {}\n", output.styled(&text, "36")));
    for commit in moved.commits.iter().take(MOST_COMMITS) {
        let id = output.styled(short(&commit.id), "33");
        let (subject, author) = (harmless(&commit.subject), harmless(&commit.author));
        output.text(&format!("    {id} {subject} ({author})\n"));
    }
    if let Some(more) = moved
        .commits
        .len()
        .checked_sub(MOST_COMMITS)
        .filter(|more| *more > 0)
    {
        output.text(&format!("    and {more} more\n"));
    }
}

fn way(before: Option<&str>, after: Option<&str>) -> String {
    let shown = |target: &str| harmless(short(target)).into_owned();
    match (before, after) {
        (None, Some(after)) => format!("is new: {}", shown(after)),
        (Some(before), None) => format!("is gone: was {}", shown(before)),
        (Some(before), Some(after)) => format!("{} → {}", shown(before), shown(after)),
        (None, None) => "is gone".to_owned(),
    }
}

/// As much of an object's name as git shows; other names as they are.
fn short(name: &str) -> &str {
    let is_object = name.len() == 40 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    match is_object {
        true => name.get(..10).unwrap_or(name),
        false => name,
    }
}
