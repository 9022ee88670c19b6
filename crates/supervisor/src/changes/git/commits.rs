//! Which commits are new: those that a ref leads to now and the host does not have.

use super::objects::{GitObjects, ObjectId, ObjectKind};
use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};

const MOST_COMMITS: usize = 5000;
const LONGEST_SUBJECT: usize = 160;
const MOST_OF_HOSTS: usize = 2000;

/// A commit, as one line tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitLine {
    /// Its name.
    pub id: String,
    /// The first line of its message, as its author wrote it.
    pub subject: String,
    /// Whom it says it is by.
    pub author: String,
}

pub(super) struct CommitHead {
    pub(super) tree: Option<ObjectId>,
    parents: Vec<ObjectId>,
    time: i64,
    line: CommitLine,
}

/// The commits that lead from where a ref was to where it is.
pub(super) struct NewCommits {
    /// The newest first.
    pub(super) lines: Vec<CommitLine>,
    /// Whether the ref only went on; nothing if that can't be told.
    pub(super) goes_on: Option<bool>,
    /// What could not be read.
    pub(super) unread: Vec<String>,
}

/// Reads what a commit says of itself.
pub(super) fn parse(id: &ObjectId, bytes: &[u8]) -> CommitHead {
    let end = bytes.windows(2).position(|two| two == b"\n\n");
    let (head, message) = bytes.split_at(end.unwrap_or(bytes.len()));
    let mut commit = CommitHead {
        tree: None,
        parents: Vec::new(),
        time: 0,
        line: CommitLine {
            id: id.hex(),
            subject: subject(message),
            author: String::new(),
        },
    };
    for line in head.split(|byte| *byte == b'\n') {
        let Some(space) = line.iter().position(|byte| *byte == b' ') else {
            continue;
        };
        let (key, value) = line.split_at(space);
        let value = value.trim_ascii_start();
        match key {
            b"tree" => commit.tree = ObjectId::parse(value),
            b"parent" => commit.parents.extend(ObjectId::parse(value)),
            b"author" => commit.line.author = person(value),
            b"committer" => commit.time = time(value).unwrap_or_default(),
            _ => {}
        }
    }
    commit
}

/// Git joins the lines up to the first empty one.
fn subject(message: &[u8]) -> String {
    let text = String::from_utf8_lossy(message);
    let lines = text.trim_start_matches('\n').lines();
    let lines: Vec<&str> = lines
        .map(str::trim)
        .take_while(|line| !line.is_empty())
        .collect();
    let mut subject = lines.join(" ");
    if subject.len() > LONGEST_SUBJECT {
        let end = (0..=LONGEST_SUBJECT)
            .rev()
            .find(|end| subject.is_char_boundary(*end));
        subject.truncate(end.unwrap_or_default());
        subject.push('…');
    }
    subject
}

fn person(value: &[u8]) -> String {
    let end = value.iter().rposition(|byte| *byte == b'>');
    let value = end.and_then(|end| value.get(..=end)).unwrap_or(value);
    String::from_utf8_lossy(value.get(..value.len().min(200)).unwrap_or_default()).into_owned()
}

fn time(value: &[u8]) -> Option<i64> {
    let end = value.iter().rposition(|byte| *byte == b'>')?;
    let words = std::str::from_utf8(value.get(end + 1..)?).ok()?;
    words.split_whitespace().next()?.parse().ok()
}

/// Finds new commits, each for the first ref that asks for it.
pub(super) struct CommitWalk<'a> {
    objects: &'a GitObjects<'a>,
    known: HashMap<ObjectId, bool>,
    told: HashSet<ObjectId>,
    left: usize,
}

impl<'a> CommitWalk<'a> {
    pub(super) fn new(objects: &'a GitObjects<'a>) -> Self {
        Self {
            objects,
            known: HashMap::new(),
            told: HashSet::new(),
            left: MOST_COMMITS,
        }
    }

    fn is_hosts(&mut self, id: ObjectId) -> bool {
        let objects = self.objects;
        *self
            .known
            .entry(id)
            .or_insert_with(|| objects.is_hosts(&id))
    }

    /// Whether the host's own history leads from some commits to another; nothing if that takes too long to find out.
    fn leads_to(&self, from: Vec<ObjectId>, to: ObjectId) -> Option<bool> {
        let mut seen: HashSet<ObjectId> = from.iter().copied().collect();
        let mut waiting: VecDeque<ObjectId> = from.into();
        for _ in 0..MOST_OF_HOSTS {
            let Some(id) = waiting.pop_front() else {
                return Some(false);
            };
            if id == to {
                return Some(true);
            }
            let object = self.objects.read(&id).ok()??;
            if object.kind == ObjectKind::Commit {
                let parents = parse(&id, &object.bytes).parents.into_iter();
                waiting.extend(parents.filter(|parent| seen.insert(*parent)));
            }
        }
        None
    }

    /// From one place to another.
    pub(super) fn between(&mut self, before: Option<ObjectId>, after: ObjectId) -> NewCommits {
        let mut found = NewCommits {
            lines: Vec::new(),
            goes_on: Some(before.is_none()),
            unread: Vec::new(),
        };
        let mut seen = HashSet::new();
        let mut waiting: BinaryHeap<(i64, ObjectId, usize)> = BinaryHeap::new();
        let mut heads: Vec<CommitHead> = Vec::new();
        let mut hosts: Vec<ObjectId> = Vec::new();
        let mut is_cut = false;
        let mut next = vec![after];
        loop {
            for id in next.drain(..) {
                if Some(id) == before {
                    found.goes_on = Some(true);
                    continue;
                }
                if !seen.insert(id) {
                    continue;
                }
                if self.is_hosts(id) {
                    hosts.push(id);
                    continue;
                }
                if self.left == 0 {
                    is_cut = true;
                    continue;
                }
                self.left -= 1;
                match self.objects.read(&id) {
                    Ok(Some(object)) if object.kind == ObjectKind::Commit => {
                        let head = parse(&id, &object.bytes);
                        waiting.push((head.time, id, heads.len()));
                        heads.push(head);
                    }
                    // An annotated tag, for one.
                    Ok(Some(_)) => {}
                    Ok(None) => found.unread.push(format!("{} is missing", id.hex())),
                    Err(error) => found.unread.push(format!("{}: {error}", id.hex())),
                }
            }
            let Some((_, id, number)) = waiting.pop() else {
                break;
            };
            let Some(head) = heads.get(number) else {
                break;
            };
            if self.told.insert(id) {
                found.lines.push(head.line.clone());
            }
            next.extend(&head.parents);
        }
        if let (Some(before), Some(false)) = (before, found.goes_on) {
            found.goes_on = match is_cut || !found.unread.is_empty() {
                true => None,
                false => self.leads_to(hosts, before),
            };
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_says_what_it_says() {
        let id = ObjectId([1; 20]);
        let text = b"tree 0101010101010101010101010101010101010101\nparent 0202020202020202020202020202020202020202\n\
            author A B <a@b> 1 +0000\ncommitter C <c@d> 77 +0100\ngpgsig -----BEGIN\n parent 03\n\nfirst\nline\n\nbody\n";
        let commit = parse(&id, text);
        assert_eq!(commit.tree, Some(ObjectId([1; 20])));
        assert_eq!(commit.parents, [ObjectId([2; 20])]);
        assert_eq!(commit.time, 77);
        assert_eq!(commit.line.subject, "first line");
        assert_eq!(commit.line.author, "A B <a@b>");
        for damaged in [&b""[..], b"\n\n", b"tree\n\n\n\n", &[0xff; 300]] {
            parse(&id, damaged);
        }
    }
}
