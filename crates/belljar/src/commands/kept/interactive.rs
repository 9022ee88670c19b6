//! `belljar apply --interactive`: asks about each file, and about each part of a file, as `git add --patch` does.

use super::shown::{self, colour_of, files};
use crate::cli::OutputFormat;
use crate::exit::Failure;
use crate::pager::PagedOutput;
use crate::print;
use belljar_supervisor::{Change, ChangeGroup, FileHunks, Overlay, PathFilter, Selection};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, Read as _, Write as _};
use std::path::Path;

const LONGEST_ANSWER: u64 = 4096;
const HELP: &str = "\
y - apply this
n - leave it waiting
a - apply this and the rest of the file
d - leave this and the rest of the file waiting
q - leave this and all that follows waiting
? - this help
";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    Yes,
    No,
    All,
    None,
    Quit,
}

/// What belongs together, and is asked about at once.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Unit {
    File,
    /// Half a repository is a broken one.
    Repository(std::path::PathBuf),
    Directory(&'static str),
}

/// Asks about the changes at some paths.
pub(super) fn ask(
    overlay: &Overlay,
    filter: &PathFilter,
    format: OutputFormat,
) -> Result<Selection, Failure> {
    if format == OutputFormat::Json {
        return Err(Failure::Invalid(
            "--interactive asks people, and --output json tells programs".to_owned(),
            "name paths instead".to_owned(),
        ));
    }
    let mut asking = Asking {
        overlay,
        output: PagedOutput::start(false),
        selection: Selection::default(),
        has_quit: false,
    };
    let mut units: BTreeMap<Unit, Vec<Change>> = BTreeMap::new();
    let wanted = overlay
        .changes()
        .filter(|change| filter.matches(&change.path));
    for change in wanted {
        let unit = match overlay.group(&change) {
            _ if overlay.is_gits_own(&change) => {
                let above = change.path.ancestors();
                let directory = above.filter(|above| above.ends_with(".git")).last();
                directory.map_or(Unit::File, |directory| {
                    Unit::Repository(directory.to_owned())
                })
            }
            ChangeGroup::AgentState(directory) => Unit::Directory(directory),
            ChangeGroup::Project | ChangeGroup::Elsewhere => Unit::File,
        };
        units.entry(unit).or_default().push(change);
    }
    for (unit, changes) in units {
        match unit {
            Unit::File => changes.iter().for_each(|change| asking.about_file(change)),
            Unit::Repository(directory) => {
                let paths: BTreeSet<&Path> =
                    changes.iter().map(|known| known.path.as_path()).collect();
                let is_in = |change: &Change| paths.contains(change.path.as_path());
                for summary in overlay.repositories(is_in) {
                    super::repositories::tell(&summary, &mut asking.output);
                }
                let name = print::harmless_path(&directory).into_owned();
                asking.about_unit(&changes, &name);
            }
            Unit::Directory(directory) => asking.about_unit(&changes, &format!("~/{directory}")),
        }
    }
    Ok(asking.selection)
}

struct Asking<'a> {
    overlay: &'a Overlay,
    output: PagedOutput,
    selection: Selection,
    has_quit: bool,
}

impl Asking<'_> {
    fn about_unit(&mut self, changes: &[Change], name: &str) {
        let question = format!("Apply {} in {name}", files(changes.len()));
        if matches!(self.answer(&question), Answer::Yes | Answer::All) {
            changes.iter().for_each(|change| self.selection.add(change));
        }
    }

    fn about_file(&mut self, change: &Change) {
        if self.has_quit {
            return;
        }
        match self.overlay.hunks(change) {
            Some(hunks) if hunks.texts().len() > 0 => self.about_hunks(change, &hunks),
            _ => {
                let diff = self.overlay.diff(change);
                self.show(&diff);
                let question = format!("Apply {}", shown::line(change));
                if matches!(self.answer(&question), Answer::Yes | Answer::All) {
                    self.selection.add(change);
                }
            }
        }
    }

    fn about_hunks(&mut self, change: &Change, hunks: &FileHunks) {
        let name = shown::line(change);
        let title = self.output.styled(&name, "1");
        self.output.text(&format!("{title}\n"));
        let count = hunks.texts().len();
        let mut chosen = vec![false; count];
        let mut rest = None;
        for (number, (text, is_chosen)) in hunks.texts().zip(&mut chosen).enumerate() {
            let answer = match rest {
                Some(answer) => answer,
                None => {
                    self.show(text);
                    let question = format!("({}/{count}) Apply this part of {name}", number + 1);
                    self.answer(&question)
                }
            };
            *is_chosen = matches!(answer, Answer::Yes | Answer::All);
            rest = match answer {
                Answer::All | Answer::None | Answer::Quit => Some(answer),
                Answer::Yes | Answer::No => None,
            };
        }
        if chosen.iter().all(|chosen| *chosen) {
            self.selection.add(change);
        } else if chosen.contains(&true) {
            self.selection.add_composed(change, hunks.compose(&chosen));
        }
    }

    fn show(&mut self, text: &str) {
        for line in text.split_terminator('\n') {
            let line = self.output.styled(line, colour_of(line));
            self.output.text(&format!("{line}\n"));
        }
    }

    /// The end of the input is an answer, too: nothing more is applied.
    fn answer(&mut self, question: &str) -> Answer {
        while !self.has_quit {
            let prompt = format!("{question} [y,n,a,d,q,?]? ");
            let prompt = self.output.styled(&prompt, "36");
            self.output.text(&prompt);
            let _ = std::io::stdout().flush();
            let mut line = Vec::new();
            let stdin = std::io::stdin().lock();
            let read = stdin.take(LONGEST_ANSWER).read_until(b'\n', &mut line);
            match (read, line.trim_ascii()) {
                (Ok(0) | Err(_), _) => {
                    self.output.text("\n");
                    self.has_quit = true;
                }
                (_, b"y" | b"Y") => return Answer::Yes,
                (_, b"n" | b"N") => return Answer::No,
                (_, b"a") => return Answer::All,
                (_, b"d") => return Answer::None,
                (_, b"q" | b"Q") => self.has_quit = true,
                _ => {
                    self.output.text(HELP);
                }
            }
        }
        Answer::Quit
    }
}
