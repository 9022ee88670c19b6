//! Does what the machine says: events are on disk before they are acted on, and acting twice is acting once.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use belljar_gate::keyring::KeySource;
use belljar_gate::record::{RunEvent, words_sha256};
use belljar_gate::{Durability, RunGate};

use super::error::RolloutError;
use super::hook::{self, HookError};
use super::machine::{Event, Next, OutOfPlace, Rollout, Stage};
use super::plan::Plan;
use super::supervised::Keeper;
use crate::compare::canary::Round;
use crate::disk;
use crate::release::{Place, ReleaseError, Store};
use crate::review::Approved;
use crate::tree::Tree;

const MOST_JOURNAL_BYTES: u64 = 256 << 20;

/// What one turn did.
#[derive(Clone, Debug, PartialEq)]
pub enum Tick {
    /// The instances were looked at; nothing is decided.
    Observed,
    /// The next step was taken.
    Advanced(Stage),
    /// It was taken back.
    RolledBack(String),
    /// Nothing was done.
    Held(&'static str),
    /// It has ended.
    Ended,
}

/// The releases and rollouts of one project.
pub struct Driver {
    state: PathBuf,
    source: KeySource,
    directory: PathBuf,
    store: Store,
    rollout: Option<Rollout>,
}

impl Driver {
    /// Opens a project's releases, and ends what a killed process left unfinished: a rollback that was begun is made.
    ///
    /// # Errors
    /// When the disk refuses or what is there can't be believed.
    pub fn open(state: &Path, source: KeySource, project: &str) -> Result<Self, RolloutError> {
        let directory = directory_of(state, project);
        let store = Store::open(&directory)?;
        Self::with(state, source, store, directory)
    }

    /// The same, telling `steps` before each change to a place.
    #[doc(hidden)]
    pub fn open_watched(
        state: &Path,
        project: &str,
        steps: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Self, RolloutError> {
        let directory = directory_of(state, project);
        let store = Store::open_watched(&directory, steps)?;
        Self::with(state, KeySource::Directory, store, directory)
    }

    fn with(
        state: &Path,
        source: KeySource,
        store: Store,
        directory: PathBuf,
    ) -> Result<Self, RolloutError> {
        let mut driver = Self {
            state: state.to_owned(),
            source,
            rollout: None,
            store,
            directory,
        };
        driver.rollout = driver.load()?;
        let going_back = driver
            .rollout
            .as_ref()
            .filter(|one| one.stage() == Stage::GoingBack);
        if let Some(why) = going_back.map(|one| one.why_back().unwrap_or_default().to_owned()) {
            driver.take_back(&why)?;
        }
        Ok(driver)
    }

    /// Where the releases are: `current`, and `instances/NAME`.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The releases.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The newest rollout.
    #[must_use]
    pub fn rollout(&self) -> Option<&Rollout> {
        self.rollout.as_ref()
    }

    fn journal(&self) -> PathBuf {
        self.directory.join("rollout.jsonl")
    }

    fn past(&self, proposal: &str) -> PathBuf {
        self.directory.join(format!("rollout-{proposal}.jsonl"))
    }

    fn failed(&self) -> impl Fn(std::io::Error) -> RolloutError + use<> {
        let path = self.journal();
        move |source| RolloutError::File {
            path: path.clone(),
            source,
        }
    }

    fn load(&self) -> Result<Option<Rollout>, RolloutError> {
        let failed = self.failed();
        let Some(mut bytes) =
            disk::read_bounded(&self.journal(), MOST_JOURNAL_BYTES).map_err(&failed)?
        else {
            return Ok(None);
        };
        // A last line that was not finished was never acted on.
        let whole = bytes
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |at| at + 1);
        if whole < bytes.len() {
            bytes.truncate(whole);
            disk::replace(&self.journal(), &bytes).map_err(&failed)?;
        }
        fold(&bytes).map_err(|error| match error {
            Unreadable::Line(error) => failed(error.into()),
            Unreadable::OutOfPlace(error) => error.into(),
        })
    }

    /// Takes an event in: tried first, written down, then believed.
    fn happen(&mut self, event: &Event) -> Result<(), RolloutError> {
        let after = match &self.rollout {
            Some(rollout) => {
                let mut after = rollout.clone();
                after.apply(event)?;
                after
            }
            None => Rollout::begin(event)?,
        };
        let failed = self.failed();
        let mut line = serde_json::to_vec(event).map_err(|error| failed(error.into()))?;
        line.push(b'\n');
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(self.journal())
            .map_err(&failed)?;
        file.write_all(&line)
            .and_then(|()| file.sync_all())
            .map_err(&failed)?;
        disk::sync_directory(&self.directory).map_err(&failed)?;
        self.rollout = Some(after);
        Ok(())
    }

    fn record(&self, why: &str) -> Result<(), RolloutError> {
        let Some(rollout) = &self.rollout else {
            return Ok(());
        };
        let event = RunEvent::RolloutMoved {
            proposal: rollout.proposal.clone(),
            candidate: rollout.candidate.clone(),
            stage: rollout.stage().to_string(),
            why: why.to_owned(),
        };
        RunGate::of(&self.state, self.source.clone()).note(event, Durability::Power)?;
        Ok(())
    }

    /// Starts a rollout: keeps both trees, rehearses the way there and back, and lets the first instances run the candidate.
    ///
    /// # Errors
    /// When another one is under way, a tree is not the one that was approved, or the rehearsal fails.
    pub fn deploy(
        &mut self,
        approved: &Approved,
        base: &Tree,
        candidate: &Tree,
        plan: Plan,
        now_s: u64,
    ) -> Result<(), RolloutError> {
        if let Some(other) = self.rollout.as_ref().filter(|one| !one.has_ended()) {
            return Err(RolloutError::Busy(other.proposal.clone()));
        }
        let digests = approved.digests();
        for (name, tree, digest) in [
            ("base", base, &digests.base_tree),
            ("candidate", candidate, &digests.candidate_tree),
        ] {
            if tree.digest() != *digest {
                return Err(RolloutError::NotApproved(name));
            }
        }
        // Before anything is kept: agents that are not there are no instances.
        let plan = match &plan.supervised {
            Some(_) => {
                let living = self.keeper().and_then(|mut keeper| keeper.living());
                plan.among(&living.map_err(not_there)?)?
            }
            None => plan,
        };
        let id = approved.proposal();
        let is_last = self
            .rollout
            .as_ref()
            .is_some_and(|last| last.proposal == id);
        if is_last || self.past(id).exists() {
            return Err(RolloutError::Again(id.to_owned()));
        }
        let (base, candidate) = (self.store.keep(base)?, self.store.keep(candidate)?);
        if self.store.shows(&Place::current())?.is_none() {
            self.store.install(&Place::current(), &base)?;
        }
        for name in plan.instances.iter().chain(&plan.shadow) {
            let place = Place::instance(name)?;
            if self.store.shows(&place)?.is_none() {
                self.store.install(&place, &base)?;
            }
            self.must_show(&place, &base)?;
        }
        self.must_show(&Place::current(), &base)?;
        if let Some(why) = self.store.aborted(&candidate) {
            let (tree, why) = (candidate, why.to_owned());
            return Err(ReleaseError::Aborted { tree, why }.into());
        }
        self.store.rehearse(&base, &candidate)?;
        if let Some(past) = self.rollout.take() {
            let failed = self.failed();
            std::fs::rename(self.journal(), self.past(&past.proposal)).map_err(&failed)?;
            disk::sync_directory(&self.directory).map_err(&failed)?;
        }
        self.happen(&Event::Started {
            proposal: approved.proposal().to_owned(),
            base,
            candidate,
            plan: Box::new(plan),
        })?;
        self.record("approved")?;
        self.settle(approved, now_s)?;
        let is_under_way = self.rollout.as_ref().is_some_and(|one| !one.has_ended());
        let supervised = self
            .rollout
            .as_ref()
            .and_then(|one| one.plan.supervised.as_ref());
        if is_under_way && supervised.is_some() {
            let begun = self.keeper().and_then(|mut keeper| keeper.begin());
            if let Err(error) = begun {
                self.roll_back(&format!("its figures can't be had: {error}"))?;
            }
        }
        Ok(())
    }

    fn keeper(&self) -> Result<Keeper<'_>, HookError> {
        Keeper::reach(&self.state, &self.directory)
    }

    /// Has the supervisor's agents run what their places show, whoever left them elsewhere. It is nothing where that is so, or
    /// where nobody supervises.
    ///
    /// # Errors
    /// When it can't be had of one of them, or the supervisor is not there.
    pub fn keep_up(&self) -> Result<(), RolloutError> {
        let Some(rollout) = &self.rollout else {
            return Ok(());
        };
        let reason = format!(
            "proposal {} is at {}",
            rollout.proposal.get(..12).unwrap_or_default(),
            rollout.stage()
        );
        let kept = self.bring(&rollout.plan, &reason);
        kept.map_err(|error| RolloutError::Instances(belljar_gate::in_full(&error)))
    }

    /// Brings the supervisor's agents to what their places show.
    fn bring(&self, plan: &Plan, why: &str) -> Result<(), HookError> {
        if plan.supervised.is_none() {
            return Ok(());
        }
        let mut shown = BTreeMap::new();
        for name in plan.instances.iter().chain(&plan.shadow) {
            let place = Place::instance(name).ok();
            let tree = place.and_then(|place| self.store.shows(&place).ok().flatten());
            let tree = tree.ok_or_else(|| HookError::Missing(name.clone()))?;
            shown.insert(name.clone(), tree);
        }
        self.keeper()?.settle(&shown, why)
    }

    fn must_show(&self, place: &Place, base: &str) -> Result<(), RolloutError> {
        let shows = self.store.shows(place)?.unwrap_or_default();
        if shows == base {
            return Ok(());
        }
        Err(ReleaseError::OtherParent {
            place: place.as_str().to_owned(),
            shows,
            parent: base.to_owned(),
        }
        .into())
    }

    /// Brings the places of those that are to run the candidate to it, and has them take it up. What is so already stays.
    fn settle(&mut self, approved: &Approved, now_s: u64) -> Result<(), RolloutError> {
        let Some(rollout) = self.rollout.clone() else {
            return Err(RolloutError::None);
        };
        let mut moved = Vec::new();
        let waiting = self.waiting(&rollout)?;
        if waiting.is_empty() {
            // Once it took over, whoever does not run it is told of; the rest goes on.
            if rollout.plan.supervised.is_none() || rollout.has_ended() {
                return self.keep_up();
            }
        } else {
            let rehearsed = self.store.rehearse(&rollout.base, &rollout.candidate)?;
            for (name, place) in waiting {
                self.store.promote(&place, approved, &rehearsed, now_s)?;
                moved.extend((!name.is_empty()).then_some(name));
            }
        }
        match self.take_up(&rollout.plan, &moved) {
            Ok(()) => Ok(()),
            Err(error) => {
                let why = belljar_gate::in_full(&error);
                self.roll_back(&format!("the candidate could not be taken up: {why}"))
                    .map(drop)
            }
        }
    }

    /// Places that are to show the candidate and do not yet, with the instances they are for.
    fn waiting<'r>(&self, rollout: &'r Rollout) -> Result<Vec<(&'r str, Place)>, RolloutError> {
        let mut places: Vec<(&str, Place)> = Vec::new();
        for name in rollout.on_candidate() {
            places.push((name, Place::instance(name)?));
        }
        if rollout.stage() == Stage::Done {
            places.push(("", Place::current()));
        }
        let mut waiting = Vec::new();
        for (name, place) in places {
            if self.store.shows(&place)?.as_ref() != Some(&rollout.candidate) {
                waiting.push((name, place));
            }
        }
        Ok(waiting)
    }

    fn take_up(&self, plan: &Plan, moved: &[&str]) -> Result<(), HookError> {
        if plan.supervised.is_some() {
            return self.bring(plan, "a release is taken up");
        }
        if plan.apply.is_empty() || moved.is_empty() {
            return Ok(());
        }
        let timeout = Duration::from_secs(plan.timeout_seconds);
        hook::run(&plan.apply, moved, &self.directory, timeout).map(drop)
    }

    /// One turn: looks at the instances, and does what follows. Going back needs nobody's approval; going on does.
    ///
    /// # Errors
    /// When the disk refuses, or the approval does not hold any more.
    pub fn tick(&mut self, approved: Option<&Approved>, now_s: u64) -> Result<Tick, RolloutError> {
        let rollout = self.rollout.as_ref().ok_or(RolloutError::None)?;
        if rollout.stage() == Stage::RolledBack {
            return Ok(Tick::Ended);
        }
        let approved = approved.filter(|yes| {
            yes.is_good(now_s)
                && yes.proposal() == rollout.proposal
                && yes.digests().candidate_tree == rollout.candidate
        });
        // A killed process may have written a step down and not made it.
        if let Some(yes) = approved {
            self.settle(yes, now_s)?;
        }
        let rollout = self.rollout.as_ref().ok_or(RolloutError::None)?;
        if rollout.stage() == Stage::RolledBack {
            let why = rollout.why_back().unwrap_or_default();
            return Ok(Tick::RolledBack(why.to_owned()));
        }
        // On or back, but not half of each for ever.
        if rollout.stage() == Stage::Done && !self.waiting(rollout)?.is_empty() {
            return self.roll_back("the approval ended before everybody ran it");
        }
        let mut did = Tick::Held("undecided");
        if matches!(self.next(), Next::Observe | Next::Hold("paused")) {
            match self.look() {
                Ok(round) => {
                    self.happen(&Event::Observed { round })?;
                    did = Tick::Observed;
                }
                Err(error) => {
                    let why = format!(
                        "its figures can't be had: {}",
                        belljar_gate::in_full(&error)
                    );
                    return self.roll_back(&why);
                }
            }
        }
        match self.next() {
            Next::RollBack(why) => self.roll_back(&why),
            Next::Advance(to) => {
                let Some(yes) = approved else {
                    return Ok(Tick::Held("not approved any more"));
                };
                self.happen(&Event::Advanced { to })?;
                self.record("not worse")?;
                self.settle(yes, now_s)?;
                match self
                    .rollout
                    .as_ref()
                    .filter(|one| one.stage() == Stage::RolledBack)
                {
                    Some(back) => Ok(Tick::RolledBack(
                        back.why_back().unwrap_or_default().to_owned(),
                    )),
                    None => Ok(Tick::Advanced(to)),
                }
            }
            Next::Hold(why) => Ok(Tick::Held(why)),
            Next::Nothing => Ok(Tick::Ended),
            Next::Observe => Ok(did),
        }
    }

    fn next(&self) -> Next {
        self.rollout.as_ref().map_or(Next::Nothing, Rollout::next)
    }

    /// Asks about every instance that takes part.
    fn look(&self) -> Result<Round, HookError> {
        let Some(rollout) = &self.rollout else {
            return Ok(Round::default());
        };
        let on_candidate = rollout.on_candidate();
        let all = rollout.plan.instances.iter().chain(&rollout.plan.shadow);
        let is_asked = |name: &&String| {
            let name = name.as_str();
            on_candidate.contains(&name) || rollout.plan.instances.iter().any(|one| one == name)
        };
        let expected: BTreeMap<&str, &str> = all
            .filter(is_asked)
            .map(|name| {
                let new = on_candidate.contains(&name.as_str());
                (
                    name.as_str(),
                    if new {
                        rollout.candidate.as_str()
                    } else {
                        rollout.base.as_str()
                    },
                )
            })
            .collect();
        let timeout = Duration::from_secs(rollout.plan.timeout_seconds);
        let plan = &rollout.plan;
        let samples = match &plan.supervised {
            None => hook::ask(&plan.health, &self.directory, timeout, &expected)?,
            Some(supervised) => {
                let reports = match plan.health.is_empty() {
                    true => None,
                    false => Some(hook::reports(
                        &plan.health,
                        &self.directory,
                        timeout,
                        &expected,
                    )?),
                };
                let most = supervised.most_crashes;
                self.keeper()?
                    .look(&expected, &rollout.candidate, most, reports.as_ref())?
            }
        };
        let of = |names: Vec<&str>| {
            names
                .into_iter()
                .filter_map(|name| samples.get(name))
                .copied()
                .collect()
        };
        let rest = rollout.plan.instances.iter().map(String::as_str);
        Ok(Round {
            baseline: of(rest.filter(|name| !on_candidate.contains(name)).collect()),
            candidate: of(rollout.compared()),
        })
    }

    /// Holds a rollout, or lets it go on.
    ///
    /// # Errors
    /// When there is none under way.
    pub fn pause(&mut self, why: Option<&str>) -> Result<(), RolloutError> {
        self.happen(&match why {
            Some(why) => Event::Paused {
                why: why.to_owned(),
            },
            None => Event::Resumed,
        })?;
        self.record(why.unwrap_or("resumed"))
    }

    /// Takes a candidate back: gives it up for good, and returns every place to the tree before.
    ///
    /// # Errors
    /// When there is nothing to take back, or the disk refuses.
    pub fn roll_back(&mut self, why: &str) -> Result<Tick, RolloutError> {
        let rollout = self.rollout.as_ref().ok_or(RolloutError::None)?;
        if rollout.stage() != Stage::GoingBack {
            self.happen(&Event::GoingBack {
                why: why.to_owned(),
            })?;
        }
        self.take_back(why)?;
        Ok(Tick::RolledBack(why.to_owned()))
    }

    /// First the places, then the record: a log that can't be written keeps nobody on a bad version.
    fn take_back(&mut self, why: &str) -> Result<(), RolloutError> {
        let rollout = self.rollout.clone().ok_or(RolloutError::None)?;
        self.store.abort(&rollout.candidate, why)?;
        let mut moved = Vec::new();
        let instances = rollout.plan.instances.iter().chain(&rollout.plan.shadow);
        let mut places = vec![("", Place::current())];
        for name in instances {
            places.push((name.as_str(), Place::instance(name)?));
        }
        for (name, place) in places {
            if self.store.shows(&place)?.as_ref() == Some(&rollout.candidate) {
                self.store.roll_back(&place)?;
                moved.extend((!name.is_empty()).then_some(name));
            }
        }
        self.happen(&Event::RolledBack)?;
        // Instances that don't take the old version up are reported; their places are right all the same.
        let taken_up = self.take_up(&rollout.plan, &moved);
        self.record(&match taken_up {
            Ok(()) => why.to_owned(),
            Err(error) => format!("{why}; instances did not take it up: {error}"),
        })
    }
}

/// Why a journal is not one of a rollout.
pub(super) enum Unreadable {
    Line(serde_json::Error),
    OutOfPlace(OutOfPlace),
}

/// What whole lines of a journal come to.
pub(super) fn fold(bytes: &[u8]) -> Result<Option<Rollout>, Unreadable> {
    let mut rollout: Option<Rollout> = None;
    for line in bytes
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
    {
        let event: Event = serde_json::from_slice(line).map_err(Unreadable::Line)?;
        match &mut rollout {
            Some(rollout) => rollout.apply(&event).map_err(Unreadable::OutOfPlace)?,
            empty => *empty = Some(Rollout::begin(&event).map_err(Unreadable::OutOfPlace)?),
        }
    }
    Ok(rollout)
}

fn not_there(error: HookError) -> RolloutError {
    RolloutError::Instances(belljar_gate::in_full(&error))
}

/// A project's releases are below a name made of its own: two projects never share a place.
#[must_use]
pub fn directory_of(state: &Path, project: &str) -> PathBuf {
    let name = words_sha256([project.as_bytes()]);
    state.join("evolve/releases").join(&name[..16])
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver")
            .field("directory", &self.directory)
            .finish_non_exhaustive()
    }
}
