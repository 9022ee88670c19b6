//! What a run's files come to in rules.

use super::super::observation::{Observation, PathUse, deed_words, path_text};
use super::gather::{examples, gather};
use super::names::{StableName, is_shared, stable_name};
use belljar_manifest::draft::{PathLine, Standing};
use belljar_policy::{
    Capability, Decision, FileOp, Filesystem, FsMode, Origin, PathRule, PathTable, Places, Reason,
    Rule,
};
use belljar_sandbox::native::Found;
use belljar_sandbox::show::OWN_PLACE;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// More directories than this in one place are that place.
const MOST_APART: usize = 4;
/// The same of those that it was not let write to: what a program wants of its own directory is mostly all of it.
const MOST_SIBLINGS: usize = 2;
/// The most proposals of a kind.
const MOST_PROPOSED: usize = 24;
const MOST_PROGRAMS: usize = 200;
const MOST_ROUNDS: usize = 3;

pub(super) struct Files {
    pub(super) mode: (FsMode, String),
    pub(super) writable: Vec<PathLine>,
    pub(super) readable: Vec<PathLine>,
    pub(super) programs: Vec<String>,
    /// Directories written to with leave.
    pub(super) writes: Vec<PathBuf>,
    /// Files of the host's that were read with leave.
    pub(super) reads: Vec<PathBuf>,
    pub(super) remarks: Vec<String>,
}

pub(super) fn learn(observed: &Observation, within: &Capability, places: &Places) -> Files {
    let ground = Ground {
        table: within.path_table(places),
        places,
        named: named(&within.filesystem, places),
    };
    let mut sorted = Sorted::default();
    for (path, seen) in observed.files.iter() {
        ground.sort(path, seen, Whole::File, &mut sorted);
    }
    for (path, seen) in observed.directories.iter() {
        ground.sort(path, seen, Whole::Directory, &mut sorted);
    }
    for program in interpreters(&sorted.programs) {
        sorted.reads.insert(program.clone(), Touch::Used);
        sorted.programs.insert(program);
    }
    // It is started there, whether it looks or not.
    let start = sorted.reads.entry(places.work.clone());
    start.or_insert(Touch::Looked);
    ground.conclude(sorted)
}

/// Whether an entry stands for a file, or for files in a directory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whole {
    File,
    Directory,
}

/// How closely something was looked at.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Touch {
    /// Asked about.
    Looked,
    /// Read or run.
    Used,
}

#[derive(Default)]
struct Sorted {
    /// Directories written to with leave, and what in them.
    writes: BTreeMap<PathBuf, Vec<PathBuf>>,
    reads: BTreeMap<PathBuf, Touch>,
    /// Directories that it was not let write to.
    refused_writes: BTreeMap<PathBuf, &'static str>,
    /// Among these, files that it wanted to replace by others that it makes beside them.
    replaced: BTreeSet<PathBuf>,
    /// Whether it wanted to make files of no lasting name in a directory that is everybody's.
    has_temporaries: bool,
    /// Files that it was not let see.
    hidden: BTreeMap<PathBuf, &'static str>,
    programs: BTreeSet<PathBuf>,
}

/// What the learning run stood on.
struct Ground<'a> {
    table: PathTable,
    places: &'a Places,
    /// Paths that rules name: directories above them are there, if only to lead to them.
    named: Vec<PathBuf>,
}

fn named(filesystem: &Filesystem, places: &Places) -> Vec<PathBuf> {
    let rules = filesystem.writable.iter().chain(&filesystem.readable);
    let paths = rules.filter_map(|rule| rule.value.resolve(places));
    paths
        .chain([places.home.clone(), places.work.clone()])
        .collect()
}

/// Whether it is about the host's files: what the box has for itself, or changes in its own copy, needs no rule.
fn is_hosts(decision: &Decision) -> bool {
    let own = [Reason::AllowPrivate, Reason::AllowPrivateCopy];
    decision.is_allow() && !own.contains(&decision.reason())
}

impl Ground<'_> {
    fn may_write(&self, path: &Path) -> bool {
        is_hosts(&self.table.decide(path, FileOp::Write))
    }

    fn sort(&self, path: &Path, seen: PathUse, whole: Whole, into: &mut Sorted) {
        if path.starts_with(OWN_PLACE) {
            return;
        }
        let deeds = seen.deeds;
        if deeds.writes() {
            self.sort_write(path, seen, whole, into);
        }
        if deeds.executes() && seen.found == Found::There && whole == Whole::File {
            into.programs.insert(path.to_owned());
        }
        let touch = match deeds.reads() || deeds.executes() {
            true => Touch::Used,
            false => Touch::Looked,
        };
        if touch == Touch::Looked && !deeds.looks() {
            return;
        }
        let decision = self.table.decide(path, FileOp::Read);
        let is_there = seen.found == Found::There;
        if is_hosts(&decision) {
            // A path through links, taken apart, may be another's or nobody's; and what the box made in the home is gone.
            let may_be_own = path.starts_with(&self.places.home) && !self.may_write(path);
            let needs_look = touch == Touch::Looked || may_be_own;
            if is_there && (!needs_look || path.symlink_metadata().is_ok()) {
                into.reads.insert(path.to_owned(), touch);
            }
        } else if self.is_wanted(path, &decision, touch, is_there) {
            let word = deed_words(deeds).pop().unwrap_or("look");
            into.hidden.insert(path.to_owned(), word);
        }
    }

    /// Whether the host has what the box was not shown.
    fn is_wanted(&self, path: &Path, decision: &Decision, touch: Touch, is_there: bool) -> bool {
        if decision.is_allow() {
            // The box has its own there, and what was wanted was not in it.
            return touch == Touch::Used && !is_there && path.symlink_metadata().is_ok();
        }
        let leads_to_shown = self.named.iter().any(|named| named.starts_with(path));
        // What is covered is there, only empty: to ask about it gives nothing away, and gets nothing.
        let is_asked_in_vain = touch == Touch::Used || !is_there;
        !leads_to_shown && is_asked_in_vain && path.symlink_metadata().is_ok()
    }

    fn sort_write(&self, path: &Path, seen: PathUse, whole: Whole, into: &mut Sorted) {
        let is_place = whole == Whole::Directory || seen.deeds.is_within();
        let parent = path
            .parent()
            .filter(|_| !is_place && path != self.places.work);
        let place = parent.unwrap_or(path);
        let decision = self.table.decide(path, FileOp::Write);
        if is_hosts(&decision) {
            // A rule may name one file in a directory that is not to be written.
            let place = match self.may_write(place) {
                true => place,
                false => path,
            };
            let names = into.writes.entry(place.to_owned()).or_default();
            names.push(path.to_owned());
        } else if !decision.is_allow()
            && let Some(place) = self.wanted_place(path, place, into)
        {
            let why = decision.reason().code();
            into.refused_writes.insert(place, why);
        }
    }

    /// Where a rule would have to be for a file to be written: the directory that is there, or what is wanted in it where that
    /// directory is everybody's.
    fn wanted_place(&self, path: &Path, place: &Path, into: &mut Sorted) -> Option<PathBuf> {
        let there = place.ancestors().find(|above| above.is_dir())?;
        if there == Path::new("/") {
            return None;
        }
        if !is_shared(there, self.places) {
            return Some(there.to_owned());
        }
        let mut above = path.ancestors();
        let below = above.find(|below| below.parent() == Some(there))?;
        // A rename of it, for one.
        if is_shared(below, self.places) {
            return None;
        }
        let Some(name) = below.file_name().and_then(|name| name.to_str()) else {
            return Some(below.to_owned());
        };
        match stable_name(name) {
            StableName::Whole => Some(below.to_owned()),
            StableName::Of(stem) => {
                let whole = there.join(stem);
                into.replaced.insert(whole.clone());
                Some(whole)
            }
            StableName::Nothing => {
                into.has_temporaries = true;
                None
            }
        }
    }

    fn conclude(&self, sorted: Sorted) -> Files {
        let mut remarks = Vec::new();
        let (writable, writes) = self.writable(&sorted.writes);
        let reads: Vec<(PathBuf, Touch)> = sorted.reads.into_iter().collect();
        let needs_none = writable
            .is_empty()
            .then(|| self.fits_none(&reads))
            .flatten();
        let (mode, mut readable) = match (writable.is_empty(), needs_none) {
            (false, _) => (
                (FsMode::ReadWrite, "it wrote files of the host".to_owned()),
                Vec::new(),
            ),
            (true, Some(readable)) => (
                (
                    FsMode::None,
                    "it needs programs and libraries, and of the host no more than is listed"
                        .to_owned(),
                ),
                readable,
            ),
            (true, None) => (
                (
                    FsMode::ReadOnly,
                    "it read files of the host, and wrote none".to_owned(),
                ),
                Vec::new(),
            ),
        };
        readable.extend(self.readable(mode.0, &writable, &readable, &reads, &mut remarks));
        let mut writable = writable;
        if sorted.has_temporaries {
            remarks.push(
                "it wanted to make files with names of one run in a directory that is everybody's, which no rule opens"
                    .to_owned(),
            );
        }
        let replaced = &sorted.replaced;
        writable.extend(self.refused(&sorted.refused_writes, replaced, mode.0, &mut remarks));
        readable.extend(self.hidden(&sorted.hidden, &mut remarks));
        let mut programs: Vec<String> =
            sorted.programs.iter().map(|path| path_text(path)).collect();
        if programs.len() > MOST_PROGRAMS {
            let more = programs.len() - MOST_PROGRAMS;
            programs.truncate(MOST_PROGRAMS);
            programs.push(format!("… and {more} more"));
        }
        Files {
            mode,
            writable,
            readable,
            programs,
            writes,
            reads: reads.into_iter().map(|(path, _)| path).collect(),
            remarks,
        }
    }

    /// Rules for what was written, and the directories they stand for.
    fn writable(&self, writes: &BTreeMap<PathBuf, Vec<PathBuf>>) -> (Vec<PathLine>, Vec<PathBuf>) {
        let all: Vec<PathBuf> = writes.keys().cloned().collect();
        let gathered = gather(&all, MOST_APART, &|path| self.may_write(path));
        let mut places = BTreeSet::new();
        for path in gathered {
            // What is gone, or can't be spelled, is reached from where it was.
            let fit = path.ancestors().find(|above| {
                self.may_write(above)
                    && above.symlink_metadata().is_ok()
                    && self.rule_text(above).is_some()
            });
            places.extend(fit.map(Path::to_owned));
        }
        let places = gather(&Vec::from_iter(places), MOST_APART, &|_| false);
        let line = |place: &PathBuf| {
            let below = writes.range(place.clone()..);
            let below = below.take_while(|(path, _)| path.starts_with(place));
            let names: Vec<&PathBuf> = below.flat_map(|(_, names)| names).collect();
            Some(PathLine {
                path: self.rule_text(place)?,
                why: format!("written: {}", examples(place, &names)),
                standing: Standing::Granted,
            })
        };
        (places.iter().filter_map(line).collect(), places)
    }

    /// Whether little of the host's is needed beyond what every program has: the working directory perhaps, and a few files.
    fn fits_none(&self, reads: &[(PathBuf, Touch)]) -> Option<Vec<PathLine>> {
        let mut readable = vec![PathLine {
            path: ".".to_owned(),
            why: "where it starts".to_owned(),
            standing: Standing::Granted,
        }];
        let table = self.table_of(FsMode::None, &[], &readable);
        let shown: Vec<&Path> = table
            .iter()
            .filter(|(path, _)| is_hosts(&table.decide(path, FileOp::Read)))
            .map(|(path, _)| path)
            .collect();
        let fits = |(path, touch): &(PathBuf, Touch)| {
            is_hosts(&table.decide(path, FileOp::Read))
                // A directory that leads to something is there, and so is the home, though not with all that is in them.
                || (*touch == Touch::Looked
                    && (*path == self.places.home
                        || shown.iter().any(|shown| shown.starts_with(path))))
        };
        let others: Vec<PathBuf> = reads
            .iter()
            .filter(|read| !fits(read))
            .map(|(path, _)| path.clone())
            .collect();
        let others = gather(&others, others.len(), &|_| false);
        if others.len() > MOST_APART {
            return None;
        }
        for path in others {
            readable.push(PathLine {
                path: self.rule_text(&path)?,
                why: "read".to_owned(),
                standing: Standing::Granted,
            });
        }
        // What is below one of them may be hidden for another reason.
        let table = self.table_of(FsMode::None, &[], &readable);
        let is_shown = |path: &Path| is_hosts(&table.decide(path, FileOp::Read));
        let is_met = |read: &(PathBuf, Touch)| fits(read) || is_shown(&read.0);
        reads.iter().all(is_met).then_some(readable)
    }

    /// Rules for what was read with leave and would not be there otherwise.
    fn readable(
        &self,
        mode: FsMode,
        writable: &[PathLine],
        readable: &[PathLine],
        reads: &[(PathBuf, Touch)],
        remarks: &mut Vec<String>,
    ) -> Vec<PathLine> {
        let mut lines: Vec<PathLine> = Vec::new();
        // What is below one of them may be hidden for another reason.
        for _ in 0..MOST_ROUNDS {
            let so_far = [readable, &lines].concat();
            let table = self.table_of(mode, writable, &so_far);
            let is_missing = |path: &Path| !is_hosts(&table.decide(path, FileOp::Read));
            let missing = reads.iter().map(|(path, _)| path);
            let missing = missing.filter(|path| mode != FsMode::None && is_missing(path));
            let missing: Vec<PathBuf> = missing.cloned().collect();
            let may =
                |path: &Path| is_missing(path) && is_hosts(&self.table.decide(path, FileOp::Read));
            for path in gather(&missing, MOST_APART, &may) {
                match self.rule_text(&path) {
                    Some(text) => lines.push(PathLine {
                        path: text,
                        why: "hidden otherwise; shown and read in the learning run".to_owned(),
                        standing: Standing::Granted,
                    }),
                    None => remarks.push(format!("no rule can spell {}", path_text(&path))),
                }
            }
        }
        remarks.sort();
        remarks.dedup();
        lines
    }

    fn refused(
        &self,
        refused: &BTreeMap<PathBuf, &'static str>,
        replaced: &BTreeSet<PathBuf>,
        mode: FsMode,
        remarks: &mut Vec<String>,
    ) -> Vec<PathLine> {
        let own = |path: &Path| {
            path.starts_with(&self.places.home) && path != self.places.home
                || path.components().count() > 3
        };
        let needs = match mode {
            FsMode::ReadWrite => "",
            FsMode::None | FsMode::ReadOnly => "; needs mode: read_write",
        };
        // What is protected below a directory stays so when the directory is opened.
        let mut by_code: BTreeMap<&str, Vec<PathBuf>> = BTreeMap::new();
        for (path, code) in refused {
            by_code.entry(code).or_default().push(path.clone());
        }
        let may = |path: &Path| own(path) && !self.may_write(path) && !is_shared(path, self.places);
        let lines = by_code.iter().flat_map(|(code, paths)| {
            let places = gather(paths, MOST_SIBLINGS, &may).into_iter();
            places.filter_map(move |path| {
                let first = match path.symlink_metadata() {
                    Ok(_) => "",
                    Err(_) => "; it is not there: make it first",
                };
                let beside = match replaced.contains(&path) {
                    true => {
                        "; it makes a new file beside it, which a rule for this file does not allow"
                    }
                    false => "",
                };
                Some(PathLine {
                    path: self.rule_text(&path)?,
                    why: format!(
                        "wanted to write here, which is refused ({code}){needs}{first}{beside}"
                    ),
                    standing: Standing::Proposed,
                })
            })
        });
        at_most(lines.collect(), "places it was not let write to", remarks)
    }

    fn hidden(
        &self,
        hidden: &BTreeMap<PathBuf, &'static str>,
        remarks: &mut Vec<String>,
    ) -> Vec<PathLine> {
        let all: Vec<PathBuf> = hidden.keys().cloned().collect();
        let is_hidden = |path: &Path| !is_hosts(&self.table.decide(path, FileOp::Read));
        let may = |path: &Path| {
            is_hidden(path)
                && !is_shared(path, self.places)
                && !self.named.iter().any(|named| named.starts_with(path))
        };
        let lines = gather(&all, MOST_APART - 1, &may);
        let lines = lines.into_iter().filter_map(|path| {
            let word = hidden.get(&path).copied().unwrap_or("read");
            Some(PathLine {
                path: self.rule_text(&path)?,
                why: format!("hidden; wanted ({word})"),
                standing: Standing::Proposed,
            })
        });
        at_most(lines.collect(), "hidden paths it wanted", remarks)
    }

    /// The rules as they will be read, on this host.
    fn table_of(&self, mode: FsMode, writable: &[PathLine], readable: &[PathLine]) -> PathTable {
        let origin = Origin::whole(Arc::from("learned"));
        let rules = |lines: &[PathLine]| -> Vec<Rule<PathRule>> {
            let granted = lines
                .iter()
                .filter(|line| line.standing == Standing::Granted);
            let rules = granted.filter_map(|line| PathRule::parse(&line.path).ok());
            rules.map(|rule| Rule::new(rule, origin.clone())).collect()
        };
        let mut filesystem = Capability::closed(Arc::from("learned")).filesystem;
        filesystem.mode = mode;
        filesystem.writable = rules(writable);
        filesystem.readable = rules(readable);
        PathTable::resolve(&filesystem, self.places)
    }

    /// A path as files write it, if a rule can.
    fn rule_text(&self, path: &Path) -> Option<String> {
        let below = |anchor: &Path, sign: &str| {
            let rest = path.strip_prefix(anchor).ok()?.to_str()?;
            Some(match rest.is_empty() {
                true => sign.to_owned(),
                false => format!("{sign}/{rest}"),
            })
        };
        let text = below(&self.places.work, ".")
            .or_else(|| below(&self.places.home, "~"))
            .or_else(|| path.to_str().map(str::to_owned))?;
        // Files hold no control characters.
        if text.chars().any(char::is_control) {
            return None;
        }
        let rule = PathRule::parse(&text).ok()?;
        (rule.resolve(self.places).as_deref() == Some(path)).then_some(text)
    }
}

fn at_most(mut lines: Vec<PathLine>, what: &str, remarks: &mut Vec<String>) -> Vec<PathLine> {
    if lines.len() > MOST_PROPOSED {
        remarks.push(format!(
            "{} more {what} are left out (--format json lists all)",
            lines.len() - MOST_PROPOSED
        ));
        lines.truncate(MOST_PROPOSED);
    }
    lines
}

/// What runs the scripts among some programs: the kernel opens it by itself.
fn interpreters(programs: &BTreeSet<PathBuf>) -> Vec<PathBuf> {
    let interpreter = |program: &PathBuf| {
        let mut head = Vec::new();
        let file = open_plain(program)?;
        file.take(256).read_to_end(&mut head).ok()?;
        let line = head.strip_prefix(b"#!")?.split(|b| *b == b'\n').next()?;
        let word = line
            .split(|b| b.is_ascii_whitespace())
            .find(|word| !word.is_empty())?;
        let path = Path::new(std::ffi::OsStr::from_bytes(word));
        path.is_absolute()
            .then(|| path.canonicalize().ok())
            .flatten()
    };
    programs.iter().filter_map(interpreter).collect()
}

/// Opens an ordinary file; the agent may have put something else in its place, which must not hold us up.
fn open_plain(path: &Path) -> Option<std::fs::File> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = std::fs::File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
    file.metadata().ok()?.is_file().then_some(file)
}
