//! Which box's changes are meant, and which of them.

use crate::cli::KeptChanges;
use crate::exit::Failure;
use crate::print;
use belljar_supervisor::{Overlay, PathFilter, RunError, StateDir, WaitingOverlay};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// A box whose changes wait, and the paths that were named.
pub(super) struct ChosenChanges {
    state: StateDir,
    pub(super) id: String,
    pub(super) filter: PathFilter,
}

impl ChosenChanges {
    /// The first word is an id if there is a box of that name; all others are paths.
    pub(super) fn find(state: &StateDir, asked: &KeptChanges) -> Result<Self, Failure> {
        let (first, rest) = match asked.words.split_first() {
            Some((first, rest)) => (Some(first), rest),
            None => (None, &asked.words[..]),
        };
        let named = first.and_then(|first| first.to_str());
        let named = named.filter(|id| Overlay::is_kept(state, id));
        if named.is_some() && asked.last {
            return Err(Failure::Invalid(
                "an id and --last name two boxes, perhaps".to_owned(),
                "use one of them".to_owned(),
            ));
        }
        let words = match named {
            Some(_) => rest,
            None => &asked.words[..],
        };
        let id = match named {
            Some(id) => id.to_owned(),
            None => only(state, first.and_then(|first| first.to_str()), asked.last)?,
        };
        let paths: Vec<PathBuf> = words
            .iter()
            .map(PathBuf::from)
            .chain(asked.paths.iter().cloned())
            .collect();
        let here = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
        Ok(Self {
            state: state.clone(),
            id,
            filter: PathFilter::new(&paths, &here),
        })
    }

    pub(super) fn open(&self) -> Result<(&str, Overlay), Failure> {
        Ok((&self.id, Overlay::open(&self.state, &self.id)?))
    }

    /// The paths that were named, each of which fits a change.
    pub(super) fn filter_of(&self, overlay: &Overlay) -> Result<&PathFilter, Failure> {
        let paths = overlay.changes().map(|change| change.path);
        let unmatched = self.filter.unmatched(paths);
        match unmatched.first() {
            None => Ok(&self.filter),
            Some(path) => Err(Failure::Invalid(
                format!(
                    "box {} changed nothing at {}",
                    self.id,
                    print::harmless_path(path)
                ),
                format!(
                    "`belljar diff {} --name-only --all` lists what it changed",
                    self.id
                ),
            )),
        }
    }
}

/// The one box whose changes wait, or the newest.
fn only(state: &StateDir, first: Option<&str>, last: bool) -> Result<String, Failure> {
    // Whoever types what looks like an id means one.
    if let Some(id) = first.filter(|word| is_id(word)) {
        return Err(RunError::UnknownId { id: id.to_owned() }.into());
    }
    let waiting = Overlay::waiting_newest_first(state);
    match (waiting.as_slice(), last, first) {
        ([one], _, _) | ([one, ..], true, _) => Ok(one.id.clone()),
        ([], _, Some(id)) => Err(RunError::UnknownId { id: id.to_owned() }.into()),
        ([], _, None) => Err(Failure::Invalid(
            "no changes wait".to_owned(),
            "`belljar run --workspace overlay -- …` keeps what it changes aside".to_owned(),
        )),
        (several, _, _) => Err(Failure::Ambiguous(several.iter().map(line).collect())),
    }
}

/// As they are drawn for boxes: twelve hexadecimal digits.
fn is_id(word: &str) -> bool {
    word.len() == 12
        && word
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn line(waiting: &WaitingOverlay) -> String {
    let id = &waiting.id;
    let age = waiting.ended.map_or("-".to_owned(), age);
    let (program, work) = match &waiting.origin {
        None => ("-".to_owned(), String::new()),
        Some(origin) => {
            let name = origin.program.file_name().unwrap_or_default();
            let name = print::harmless_path(Path::new(name)).into_owned();
            (name, print::harmless_path(&origin.work).into_owned())
        }
    };
    format!("{id:<14}{age:<9}{program:<16}{work}")
}

fn age(ended: SystemTime) -> String {
    let seconds = SystemTime::now()
        .duration_since(ended)
        .map_or(0, |time| time.as_secs());
    match seconds {
        0..=119 => format!("{seconds}s ago"),
        120..=7199 => format!("{}m ago", seconds / 60),
        7200..=172_799 => format!("{}h ago", seconds / 3600),
        _ => format!("{}d ago", seconds / 86_400),
    }
}
