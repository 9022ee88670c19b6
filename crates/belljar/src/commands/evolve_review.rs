//! `belljar evolve review`, `approve`, `deploy` and the like: people decide, and what they decided is carried out.

use std::path::{Path, PathBuf};

use belljar_evolve::Status;
use belljar_evolve::proposal::{Proposal, ProposalId, Reason as Refusal};
use belljar_evolve::release::History;
use belljar_evolve::review::paint::{self, Colours};
use belljar_evolve::review::stats::statistics;
use belljar_evolve::review::{
    Approved, Desk, Dossier, Opinion, Reason, ReviewError, Standing, Verdict, Withdrawal, read_key,
};
use belljar_evolve::rollout::{Driver, Plan, Rollout, RolloutError, Stage, Tick};
use belljar_evolve::store::Store;
use belljar_gate::in_full;
use belljar_manifest::read_bounded;
use belljar_supervisor::{AGENT_SOCKET, StateDir, key_source};
use serde_json::json;

use crate::cli::evolve_review::{Approve, Comment, EvolveReview, Reject, Who};
use crate::cli::{Format, OutputFormat};
use crate::exit::{self, Failure};
use crate::print::{self, Line};

mod told;

use told::{show, tell, told, words};

/// The operator's side of one state directory.
struct Office {
    state: PathBuf,
    store: Store,
    desk: Desk,
}

/// What a supervisor found when it looked at a rollout of its agents.
pub(super) enum Looked {
    /// It goes on.
    UnderWay,
    /// Something that people want to know.
    Moved(String),
    /// It was taken back.
    WentBack(String),
    /// It has ended, and everybody runs what they should.
    Over,
}

/// A supervisor's turn at a rollout of its agents.
pub(super) fn supervise(state: &Path, proposal: &str) -> Result<Looked, Failure> {
    let office = Office::at(state.to_owned());
    let id = proposal.get(..12).unwrap_or(proposal);
    let known = office.read(proposal)?;
    let driver = office.of(&known)?;
    // One that took over is looked at like the others: its last step may not have been made to its end.
    let stage = driver.rollout().map(Rollout::stage);
    if stage == Some(Stage::RolledBack) {
        driver.keep_up().map_err(stopped)?;
        return Ok(Looked::Over);
    }
    let tick = match Dossier::gather(&office.store, &known.id) {
        Ok(dossier) => {
            drop(driver);
            office.turn(&dossier)?.1
        }
        // What took over long ago is not undone because its papers are gone.
        Err(_) if stage == Some(Stage::Done) => {
            driver.keep_up().map_err(stopped)?;
            Tick::Ended
        }
        // Whoever can't show what was approved does not go on with it.
        Err(error) => {
            let why = format!("its evidence can't be had: {}", in_full(&error));
            drop(driver);
            let tick = office.of(&known)?.roll_back(&why).map_err(stopped)?;
            office.set(&known, Status::RolledBack, Vec::new())?;
            tick
        }
    };
    Ok(match tick {
        Tick::Observed | Tick::Held(_) => Looked::UnderWay,
        Tick::Advanced(stage) => Looked::Moved(format!("the rollout of {id} is at {stage}")),
        Tick::RolledBack(why) => Looked::WentBack(format!("{id} was taken back: {why}")),
        Tick::Ended => Looked::Over,
    })
}

pub(crate) fn evolve_review(what: EvolveReview) -> Result<u8, Failure> {
    outside()?;
    let office = Office::at(StateDir::existing()?.path().to_owned());
    match what {
        EvolveReview::Review { id, format } => office.review(&id, &format),
        EvolveReview::Approve(given) => office.approve(&given),
        EvolveReview::Reject(given) => office.reject(&given),
        EvolveReview::Comment(given) => office.comment(&given),
        EvolveReview::Report { id, html } => office.report(&id, &html),
        EvolveReview::Deploy { id, plan, format } => office.deploy(&id, &plan, &format),
        EvolveReview::Promote {
            id,
            rounds,
            every,
            format,
        } => office.promote(&id, rounds, every, &format),
        EvolveReview::Pause { id, reason, .. } => office.pause(&id, reason.as_deref()),
        EvolveReview::Rollback { id, reason, format } => office.roll_back(&id, &reason, &format),
        EvolveReview::Status { id, format } => office.status(&id, &format),
        EvolveReview::Stats { format } => office.stats(&format),
    }
}

/// In a box there is neither a state directory nor anybody's key; this says so instead of looking for them.
pub(super) fn outside() -> Result<(), Failure> {
    match std::env::var_os(AGENT_SOCKET) {
        None => Ok(()),
        Some(_) => Err(Failure::Invalid(
            "an agent reviews nothing".into(),
            "people do, outside of the box".into(),
        )),
    }
}

pub(super) fn now_s() -> u64 {
    belljar_gate::clock::now().wall_ms / 1000
}

pub(super) fn refused(error: ReviewError) -> Failure {
    let hint = error.hint();
    match error {
        ReviewError::Log(error) => Failure::Log(error),
        error => Failure::Refused(in_full(&error), hint),
    }
}

fn stopped(error: RolloutError) -> Failure {
    let hint = error.hint();
    match error {
        RolloutError::Log(error) => Failure::Log(error),
        error => Failure::Refused(in_full(&error), hint),
    }
}

impl Office {
    /// The one of a state directory.
    fn at(state: PathBuf) -> Self {
        Self {
            store: Store::of(&state),
            desk: Desk::of(&state, key_source()),
            state,
        }
    }

    fn dossier(&self, id: &str) -> Result<Dossier, Failure> {
        let id = self.id(id)?;
        Dossier::gather(&self.store, &id).map_err(|error| {
            let hint = error.hint().to_owned();
            Failure::Refused(in_full(&error), hint)
        })
    }

    fn id(&self, given: &str) -> Result<ProposalId, Failure> {
        let found = self.store.find(given);
        found.map_err(|error| {
            Failure::Invalid(in_full(&error), "`belljar evolve list` names them".into())
        })
    }

    fn standing(&self, dossier: &Dossier) -> Result<Standing, Failure> {
        let policy = self.desk.policy().map_err(refused)?;
        let id = &dossier.proposal.id;
        let standing = self.desk.standing(id, &dossier.subject(), &policy, now_s());
        standing.map_err(refused)
    }

    fn review(&self, id: &str, format: &Format) -> Result<u8, Failure> {
        let dossier = self.dossier(id)?;
        let standing = self.standing(&dossier)?;
        if format.output == OutputFormat::Json {
            print::json(&json!({
                "proposal": dossier.proposal, "digests": dossier.digests, "stages": dossier.stages,
                "recommendation": dossier.recommendation(), "standing": told(&standing),
            }));
        } else {
            let colours = if print::stdout_colours() {
                Colours::On
            } else {
                Colours::Off
            };
            print::out(&paint::text(&dossier, &standing, colours, print::utc));
        }
        Ok(exit::OK)
    }

    fn report(&self, id: &str, to: &Path) -> Result<u8, Failure> {
        let dossier = self.dossier(id)?;
        let page = paint::html(&dossier, &self.standing(&dossier)?, print::utc);
        if to == Path::new("-") {
            print::out(&page);
            return Ok(exit::OK);
        }
        super::put(to, page.as_bytes()).map_err(|error| {
            Failure::Invalid(
                format!("{}: {error}", to.display()),
                "name a file that can be written".into(),
            )
        })?;
        Ok(exit::OK)
    }

    /// Says something, and sees what follows for the proposal.
    fn say(&self, dossier: &Dossier, who: &Who, opinion: Opinion<'_>) -> Result<Standing, Failure> {
        let key = read_key(&who.key).map_err(refused)?;
        let policy = self.desk.policy().map_err(refused)?;
        let id = &dossier.proposal.id;
        let said = self
            .desk
            .say(id, &dossier.subject(), &policy, opinion, &key, now_s());
        said.map_err(refused)?;
        self.standing(dossier)
    }

    fn set(&self, proposal: &Proposal, status: Status, more: Vec<Refusal>) -> Result<(), Failure> {
        let mut proposal = proposal.clone();
        proposal.status = status;
        proposal.reasons.extend(more);
        self.store.write(&proposal).map_err(|error| {
            Failure::Invalid(
                in_full(&error),
                "see that BELLJAR_STATE_DIR can be written to".into(),
            )
        })
    }

    fn approve(&self, given: &Approve) -> Result<u8, Failure> {
        let dossier = self.dossier(&given.id)?;
        if let Some(stage) = dossier.failed() {
            return Err(Failure::Refused(
                format!("nobody approves what did not pass: {stage}"),
                "`belljar evolve review ID` says why; a changed proposal is a new one".into(),
            ));
        }
        let opinion = Opinion {
            verdict: Verdict::Approve,
            reviewer: &given.who.name,
            code: given.code.as_deref(),
            reasons: Vec::new(),
            text: given.message.clone(),
            lifetime_s: u64::from(given.hours) * 3600,
        };
        let standing = self.say(&dossier, &given.who, opinion)?;
        if matches!(standing, Standing::Approved(_)) {
            self.set(&dossier.proposal, Status::Approved, Vec::new())?;
        }
        tell(&dossier.proposal, &standing, &given.format)
    }

    fn reject(&self, given: &Reject) -> Result<u8, Failure> {
        let dossier = self.dossier(&given.id)?;
        let mut reasons = Vec::new();
        for name in &given.reasons {
            reasons.push(Reason::from_name(name).ok_or_else(|| {
                let all: Vec<&str> = Reason::ALL.iter().map(|one| one.as_str()).collect();
                Failure::Invalid(
                    format!("{name} is no reason"),
                    format!("one of {}", all.join(", ")),
                )
            })?);
        }
        let opinion = Opinion {
            verdict: Verdict::Reject,
            reviewer: &given.who.name,
            code: None,
            reasons: reasons.clone(),
            text: given.message.clone(),
            lifetime_s: 3600,
        };
        let standing = self.say(&dossier, &given.who, opinion)?;
        // What the agent that proposed it gets to read.
        let feedback = reasons.into_iter().map(|reason| Refusal {
            code: format!("review_{}", reason.as_str()),
            stage: belljar_evolve::proposal::REVIEW.to_owned(),
            at: None,
            message: given.message.clone(),
            hint: None,
        });
        self.set(&dossier.proposal, Status::Rejected, feedback.collect())?;
        tell(&dossier.proposal, &standing, &given.format)?;
        // Nobody goes on running what somebody rejected.
        if let Some((driver, _)) = self.withdraw(&self.dossier(&given.id)?)? {
            return match given.format.output {
                OutputFormat::Json => Ok(exit::OK),
                OutputFormat::Text => show(&driver, &given.format),
            };
        }
        Ok(exit::OK)
    }

    fn comment(&self, given: &Comment) -> Result<u8, Failure> {
        let dossier = self.dossier(&given.id)?;
        let opinion = Opinion {
            verdict: Verdict::Comment,
            reviewer: &given.who.name,
            code: None,
            reasons: Vec::new(),
            text: given.message.clone(),
            lifetime_s: 3600,
        };
        let standing = self.say(&dossier, &given.who, opinion)?;
        tell(&dossier.proposal, &standing, &given.format)
    }

    /// The proof that people said yes to what is there now, and that every stage passed.
    fn approved(&self, dossier: &Dossier) -> Result<Approved, Failure> {
        if let Some(stage) = dossier.failed() {
            return Err(Failure::Refused(
                format!("it did not pass: {stage}"),
                "`belljar evolve review ID` says why".into(),
            ));
        }
        match self.standing(dossier)? {
            Standing::Approved(yes) => Ok(yes),
            other => Err(Failure::Refused(
                format!("it is not approved: {}", words(&other)),
                "`belljar evolve review ID` shows it and says what to type".into(),
            )),
        }
    }

    fn driver(&self, project: &str) -> Result<Driver, Failure> {
        Driver::open(&self.state, key_source(), project).map_err(stopped)
    }

    fn history(&self, project: &str) -> Option<History> {
        let history = History::of(Path::new(project), &self.state.join("evolve"));
        history.is_there().then_some(history)
    }

    fn deploy(&self, id: &str, plan: &Path, format: &Format) -> Result<u8, Failure> {
        let dossier = self.dossier(id)?;
        let name = plan.display().to_string();
        let bytes = read_bounded(plan, &name)?;
        let plan = Plan::parse(&String::from_utf8_lossy(&bytes)).map_err(|error| {
            Failure::Invalid(
                format!("{name}: {}", in_full(&error)),
                "docs/evolve-review.md has one to start from".into(),
            )
        })?;
        let approved = self.approved(&dossier)?;
        let mut driver = self.driver(&dossier.proposal.project)?;
        driver
            .deploy(&approved, &dossier.base, &dossier.candidate, plan, now_s())
            .map_err(stopped)?;
        if let Some(back) = driver
            .rollout()
            .filter(|one| one.stage() == Stage::RolledBack)
        {
            let why = back.why_back().unwrap_or_default().to_owned();
            self.follow(&dossier, None, &Tick::RolledBack(why))?;
            show(&driver, format)?;
            return Ok(exit::NO);
        }
        self.set(&dossier.proposal, Status::Deployed, Vec::new())?;
        if let Some(history) = self.history(&dossier.proposal.project) {
            let message = message(&dossier.proposal, "Proposed");
            note(history.branch(
                dossier.proposal.id.as_str(),
                &dossier.base,
                &dossier.candidate,
                &message,
            ));
        }
        show(&driver, format)
    }

    fn promote(&self, id: &str, rounds: u32, every: u64, format: &Format) -> Result<u8, Failure> {
        let dossier = self.dossier(id)?;
        for round in 0..rounds.max(1) {
            if round > 0 {
                std::thread::sleep(std::time::Duration::from_secs(every));
            }
            let (driver, tick) = self.turn(&dossier)?;
            match tick {
                Tick::Observed => continue,
                Tick::Held(why) => {
                    print::line(Line::Note, &format!("it does not go on: {why}"));
                    return show(&driver, format);
                }
                Tick::Advanced(Stage::Done) | Tick::Ended => {
                    let is_back = driver.rollout().map(Rollout::stage) == Some(Stage::RolledBack);
                    let shown = show(&driver, format)?;
                    // Somebody else took it back: whoever promotes in a script must not take that for success.
                    return Ok(if is_back { exit::NO } else { shown });
                }
                Tick::Advanced(_) => {}
                Tick::RolledBack(_) => {
                    show(&driver, format)?;
                    return Ok(exit::NO);
                }
            }
        }
        let driver = self.of(&dossier.proposal)?;
        show(&driver, format)
    }

    /// One turn. The releases are opened for each: whoever wants to roll back does not wait for the last of them.
    fn turn(&self, dossier: &Dossier) -> Result<(Driver, Tick), Failure> {
        if let Some(back) = self.withdraw(dossier)? {
            return Ok(back);
        }
        let mut driver = self.of(&dossier.proposal)?;
        let approved = self.approved(dossier).ok();
        let before = driver.rollout().map(Rollout::stage);
        let tick = driver.tick(approved.as_ref(), now_s()).map_err(stopped)?;
        self.follow(dossier, before, &tick)?;
        Ok((driver, tick))
    }

    /// Takes a rollout back that people withdrew their approval of: whoever looks at it next does.
    fn withdraw(&self, dossier: &Dossier) -> Result<Option<(Driver, Tick)>, Failure> {
        let Some(withdrawal) = self.standing(dossier)?.withdrawn() else {
            return Ok(None);
        };
        let Ok(mut driver) = self.of(&dossier.proposal) else {
            return Ok(None);
        };
        let before = driver.rollout().map(Rollout::stage);
        let why = match (withdrawal, before) {
            (_, None | Some(Stage::RolledBack)) => return Ok(None),
            (Withdrawal::Revoked(_), Some(Stage::Done)) => return Ok(None),
            (Withdrawal::Rejected(why) | Withdrawal::Revoked(why), _) => why,
        };
        let tick = driver.roll_back(&why).map_err(stopped)?;
        self.follow(dossier, before, &tick)?;
        Ok(Some((driver, tick)))
    }

    /// What a turn means for the proposal and the history.
    fn follow(&self, dossier: &Dossier, before: Option<Stage>, tick: &Tick) -> Result<(), Failure> {
        let proposal = &dossier.proposal;
        match tick {
            Tick::Advanced(Stage::Done) => {
                if let Some(history) = self.history(&proposal.project) {
                    let message = message(proposal, "Released");
                    note(history.merge(
                        proposal.id.as_str(),
                        &dossier.base,
                        &dossier.candidate,
                        &message,
                    ));
                }
                Ok(())
            }
            Tick::RolledBack(why) => {
                if let (Some(history), Some(Stage::Done)) =
                    (self.history(&proposal.project), before)
                {
                    let message = message(proposal, "Rolled back");
                    note(history.restore(&dossier.base, &dossier.candidate, &message));
                }
                let feedback = Refusal {
                    code: "rolled_back".to_owned(),
                    stage: "rollout".to_owned(),
                    at: None,
                    message: why.clone(),
                    hint: None,
                };
                self.set(proposal, Status::RolledBack, vec![feedback])
            }
            _ => Ok(()),
        }
    }

    /// The releases of a proposal's project, if the newest rollout is this proposal's.
    fn of(&self, proposal: &Proposal) -> Result<Driver, Failure> {
        let driver = self.driver(&proposal.project)?;
        match driver.rollout() {
            Some(rollout) if rollout.proposal == proposal.id.as_str() => Ok(driver),
            _ => Err(stopped(RolloutError::None)),
        }
    }

    fn pause(&self, id: &str, reason: Option<&str>) -> Result<u8, Failure> {
        let proposal = self.read(id)?;
        self.of(&proposal)?.pause(reason).map_err(stopped)?;
        Ok(exit::OK)
    }

    /// What is known of a proposal, without looking at its trees: going back works when they are damaged.
    fn read(&self, id: &str) -> Result<Proposal, Failure> {
        let id = self.id(id)?;
        let read = self.store.read(&id);
        read.map_err(|error| {
            Failure::Invalid(in_full(&error), "`belljar evolve list` names them".into())
        })
    }

    fn roll_back(&self, id: &str, reason: &str, format: &Format) -> Result<u8, Failure> {
        let proposal = self.read(id)?;
        let mut driver = self.of(&proposal)?;
        let before = driver.rollout().map(Rollout::stage);
        if before == Some(Stage::RolledBack) {
            return show(&driver, format);
        }
        let tick = driver.roll_back(reason).map_err(stopped)?;
        match Dossier::gather(&self.store, &proposal.id) {
            Ok(dossier) => self.follow(&dossier, before, &tick)?,
            Err(_) => self.set(&proposal, Status::RolledBack, Vec::new())?,
        }
        show(&driver, format)
    }

    fn status(&self, id: &str, format: &Format) -> Result<u8, Failure> {
        let proposal = self.read(id)?;
        // Who can't show what was approved is told of the rollout all the same.
        if let Ok(dossier) = self.dossier(id)
            && let Some((driver, _)) = self.withdraw(&dossier)?
        {
            return show(&driver, format);
        }
        show(&self.of(&proposal)?, format)
    }

    fn stats(&self, format: &Format) -> Result<u8, Failure> {
        let all = self.store.list().map_err(|error| {
            Failure::Invalid(
                in_full(&error),
                "see that BELLJAR_STATE_DIR can be read".into(),
            )
        })?;
        let counts = statistics(&all, &self.desk).map_err(refused)?;
        if format.output == OutputFormat::Json {
            print::json(&counts);
            return Ok(exit::OK);
        }
        print::out(&format!("{} proposals\n", counts.proposals));
        let section = |title: &str, rows: Vec<(String, usize)>| {
            if !rows.is_empty() {
                print::out(&format!("\n{title}\n"));
            }
            for (name, count) in rows {
                print::out(&format!("  {count:>5}  {}\n", print::harmless(&name)));
            }
        };
        let rows = |map: &std::collections::BTreeMap<&'static str, usize>| {
            map.iter()
                .map(|(name, count)| ((*name).to_owned(), *count))
                .collect()
        };
        section("by status", rows(&counts.by_status));
        section("by risk", rows(&counts.by_risk));
        section("by author", counts.by_author.clone().into_iter().collect());
        section(
            "refused by stages for",
            counts.refused_for.clone().into_iter().collect(),
        );
        section("rejected by people for", rows(&counts.rejected_for));
        section("statements", rows(&counts.statements));
        Ok(exit::OK)
    }
}

fn message(proposal: &Proposal, what: &str) -> String {
    let first = proposal.description.lines().next().unwrap_or_default();
    format!(
        "{what}: {first}\n\nProposal: {}\nBy: {}\nTree: {}\n",
        proposal.id, proposal.by, proposal.candidate_tree
    )
}

/// History is for people; that it can't be written keeps nothing from being released or taken back.
fn note<T>(written: Result<T, belljar_evolve::release::GitError>) {
    if let Err(error) = written {
        print::line(
            Line::Error,
            &format!("the history was not written: {}", in_full(&error)),
        );
        print::line(Line::Hint, error.hint());
    }
}
