//! Does what the machine says: events are on disk before they are acted on, and acting twice is acting once.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use belljar_gate::keyring::KeySource;
use belljar_gate::record::{RunEvent, words_sha256};
use belljar_gate::{Durability, LogError, RunGate};

use super::hook::{self, HookError};
use super::machine::{Event, Next, OutOfPlace, Rollout, Stage};
use super::plan::Plan;
use crate::compare::canary::Round;
use crate::disk;
use crate::release::{Place, ReleaseError, Store};
use crate::review::Approved;
use crate::tree::Tree;

const MOST_JOURNAL_BYTES: u64 = 256 << 20;

/// Why a rollout did not go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RolloutError {
    /// Another one is under way.
    #[error("the rollout of {0} is under way")]
    Busy(String),
    /// There is none.
    #[error("nothing was rolled out here")]
    None,
    /// It was rolled out before.
    #[error("{0} was rolled out before")]
    Again(String),
    /// The release.
    #[error(transparent)]
    Release(#[from] ReleaseError),
    /// Something that can't be now.
    #[error(transparent)]
    OutOfPlace(#[from] OutOfPlace),
    /// The tree is not the one that was approved.
    #[error("the {0} is not the one that was approved")]
    NotApproved(&'static str),
    /// It can't be put on record.
    #[error("it can't be put on record")]
    Log(#[from] LogError),
    /// The disk refused.
    #[error("{path} can't be used")]
    File {
        /// What.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

impl RolloutError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Busy(_) => "promote it to its end or roll it back first".to_owned(),
            Self::None => "`belljar evolve deploy ID --plan rollout.toml` starts one".to_owned(),
            Self::Again(_) => "a changed proposal is a new one; propose it".to_owned(),
            Self::Release(error) => error.hint().to_owned(),
            Self::OutOfPlace(_) => "`belljar evolve status` says where it is".to_owned(),
            Self::NotApproved(_) => "have what is there now looked at and approved".to_owned(),
            Self::Log(error) => error.hint(),
            Self::File { .. } => "run it as the user whose state directory it is".to_owned(),
        }
    }
}

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
        let mut rollout: Option<Rollout> = None;
        for line in bytes
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
        {
            let event: Event =
                serde_json::from_slice(line).map_err(|error| failed(error.into()))?;
            match &mut rollout {
                Some(rollout) => rollout.apply(&event)?,
                empty => *empty = Some(Rollout::begin(&event)?),
            }
        }
        Ok(rollout)
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
        self.settle(approved, now_s)
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
        if waiting.is_empty() {
            return Ok(());
        }
        let rehearsed = self.store.rehearse(&rollout.base, &rollout.candidate)?;
        for (name, place) in waiting {
            self.store.promote(&place, approved, &rehearsed, now_s)?;
            moved.extend((!name.is_empty()).then_some(name));
        }
        match self.take_up(&rollout.plan, &moved) {
            Ok(()) => Ok(()),
            Err(error) => self
                .roll_back(&format!("the candidate could not be taken up: {error}"))
                .map(drop),
        }
    }

    fn take_up(&self, plan: &Plan, moved: &[&str]) -> Result<(), HookError> {
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
                Ok(Tick::Advanced(to))
            }
            Next::Hold(why) => Ok(Tick::Held(why)),
            Next::Nothing => Ok(Tick::Ended),
            Next::Observe => Ok(did),
        }
    }

    fn next(&self) -> Next {
        self.rollout.as_ref().map_or(Next::Nothing, Rollout::next)
    }

    /// Asks the operator's command about every instance that takes part.
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
        let samples = hook::ask(&rollout.plan.health, &self.directory, timeout, &expected)?;
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

/// A project's releases are below a name made of its own: two projects never share a place.
fn directory_of(state: &Path, project: &str) -> PathBuf {
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
