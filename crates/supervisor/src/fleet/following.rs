//! Following a box that another process keeps: what `Hired::keep` does for one that a thread keeps.

use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use belljar_api::{Side, Tag};
use belljar_gate::{FleetGate, Launch, Permit};
use belljar_replication::{Code, Usage, WorkerId};

use super::crew::{Employed, Hold};
use super::post::{Apart, Hired, Keeping, Post, tell_end, tell_usage};
use super::watch::Over;
use crate::apart::words::{Card, Failed, Order, OutputPlan, Purse, Task, VERSION, Word};
use crate::apart::{Adoptee, Heard, Session};
use crate::error::RunError;

/// Who waits for a box's first instruction.
pub(crate) type First = SyncSender<Result<(), RunError>>;

/// A box that another process keeps, and we follow.
pub(crate) struct Following {
    post: Arc<Post>,
    employed: Arc<Employed>,
    tag: Tag,
    session: Session,
    launch: Option<Permit<Launch>>,
    first: Option<First>,
    /// What was charged for.
    told: Usage,
    /// What was set aside for it, where we know.
    purse: Option<Purse>,
}

impl Hired {
    /// Has a process keep the worker's box, and follows it in this thread until nothing is left of it.
    pub(crate) fn keep_apart(mut self, card: Card, first: Option<First>) {
        let post = Arc::clone(&self.post);
        let Keeping::Processes(apart) = &post.keeping else {
            return;
        };
        apart.watch.hired(&self.employed, &card);
        let started = self.start_keeper(apart, card);
        let launch = self.launch.take();
        let worker = self.worker();
        match started {
            Ok((session, purse)) => {
                apart.watch.kept(worker, session.pid());
                let following = Following {
                    post: Arc::clone(&self.post),
                    employed: Arc::clone(&self.employed),
                    tag: self.tag,
                    session,
                    launch,
                    first,
                    told: Usage::default(),
                    purse: Some(purse),
                };
                following.follow();
            }
            Err(error) => {
                drop(launch);
                post.crew.dismiss(worker);
                post.gate.failed(worker, error.to_string());
                apart
                    .watch
                    .ended(worker, &Over::Failed(Failed::from(&error)));
                if let Some(first) = first {
                    let _ = first.send(Err(error));
                }
            }
        }
    }

    fn start_keeper(&self, apart: &Apart, card: Card) -> Result<(Session, Purse), RunError> {
        let Hold::Apart(line) = &self.hold else {
            return Err(not_here());
        };
        let purse = self.purse()?;
        let task = self.task(apart, card, purse)?;
        match Session::start(&apart.setup, &task, line) {
            Ok(session) => Ok((session, purse)),
            Err(error) => {
                self.post.give_back(&self.employed, purse);
                Err(error)
            }
        }
    }

    /// What it may spend on models: a part of what its parent may, which its parent's keeper sets aside; so a family never spends
    /// more than its first was given, however many calls are under way while replicas are made.
    fn purse(&self) -> Result<Purse, RunError> {
        let payload = self.employed.papers.payload();
        let wanted = Purse::of(&payload.budget);
        let Some(parent) = &payload.parent else {
            return Ok(wanted);
        };
        let gone = || RunError::Kept {
            code: "keeper_lost",
            what: "its parent's keeper set nothing aside for it".into(),
            hint: None,
        };
        let parent = WorkerId(parent.worker.as_u128());
        let line = self.post.crew.line(parent).ok_or_else(gone)?;
        let child = self.employed.worker.to_string();
        line.carve(&child, wanted).map_err(|_| gone())
    }

    /// What its keeper is told.
    fn task(&self, apart: &Apart, card: Card, purse: Purse) -> Result<Task, RunError> {
        let employed = &self.employed;
        let text = |bytes: &[u8], what: &str| {
            String::from_utf8(bytes.to_vec()).map_err(|_| RunError::Invalid {
                what: format!("{what} is not UTF-8"),
                hint: "an agent of a supervisor is named and told in UTF-8".into(),
            })
        };
        let words = employed.command.argv.iter();
        let argv: Result<_, RunError> = words
            .map(|word| text(word.as_encoded_bytes(), "a word of the command"))
            .collect();
        let worker = employed.worker.to_string();
        let payload = employed.papers.payload();
        Ok(Task {
            v: VERSION,
            output: OutputPlan {
                directory: self.post.output_of(&worker),
                most_bytes: apart.setup.log_bytes,
                keep: apart.setup.log_keep,
            },
            worker,
            state_dir: self.post.state.path().to_owned(),
            envelope: text(employed.papers.envelope().as_bytes(), "its manifest")?,
            chain: text(&employed.chain, "its manifest")?,
            capability: payload.capability.text().to_owned(),
            argv: argv?,
            workdir: payload.capability.places().work.clone(),
            state: self
                .state
                .as_deref()
                .map(|state| text(state, "its state"))
                .transpose()?,
            own: self.own,
            purse,
            orphan_grace_ms: u64::try_from(apart.setup.orphan_grace.as_millis())
                .unwrap_or(u64::MAX),
            started_at_ms: employed.started_at_ms,
            card,
            backstage: (*employed.backstage).clone(),
        })
    }
}

fn not_here() -> RunError {
    RunError::Invalid {
        what: "its box is kept by a thread".into(),
        hint: String::new(),
    }
}

impl Following {
    /// Goes on with a keeper that outlived another daemon.
    pub(crate) fn adopted(
        post: &Arc<Post>,
        employed: Arc<Employed>,
        tag: Tag,
        adoptee: Adoptee,
        told: Usage,
    ) -> Self {
        let following = Self {
            post: Arc::clone(post),
            employed,
            tag,
            session: adoptee.session,
            launch: None,
            first: None,
            told,
            purse: Some(adoptee.standing.task.purse),
        };
        following.open_door(adoptee.door);
        following
    }

    fn open_door(&self, door: UnixListener) {
        let _ = self
            .post
            .doors
            .add_lent_listener(door, self.tag, Side::Agent);
    }

    /// Until nothing is left of the box.
    pub(crate) fn follow(mut self) {
        let post = Arc::clone(&self.post);
        let Keeping::Processes(apart) = &post.keeping else {
            return;
        };
        let worker = self.employed.worker;
        let over = loop {
            match self.session.next() {
                Heard::Word(Word::Ended(ending), _) => break Over::Ended(*ending),
                Heard::Word(Word::Failed(failed), _) => break Over::Failed(failed),
                Heard::Word(word, door) => self.heed(apart, word, door),
                Heard::Lost => break Over::Lost,
            }
        };
        let _ = post.doors.remove(self.tag);
        let killed = self.session.line().killed();
        self.session.finish();
        if matches!(over, Over::Lost) {
            post.clear_after(worker);
        }
        // Of a keeper that was killed nobody knows what is left; then nothing is. Unless it never got leave to run anything.
        let never_ran = self.launch.is_some();
        if let Over::Ended(ending) = &over
            && let Some(unspent) = ending.unspent
        {
            post.give_back(&self.employed, unspent);
        } else if let Some(purse) = self.purse
            && (matches!(over, Over::Failed(_)) || never_ran)
        {
            post.give_back(&self.employed, purse);
        }
        // Its box is gone before its end is told, so that "killed" means dead.
        post.crew.dismiss(worker);
        match &over {
            Over::Failed(_) if killed.is_some() => {
                post.gate.ended(worker, Code::Exited, Usage::default());
            }
            Over::Lost if never_ran => {
                post.gate.note_box(
                    worker,
                    "its keeper was killed before it ran anything".into(),
                );
                post.gate.ended(worker, Code::Lost, Usage::default());
            }
            over => tell_legacy(&post.gate, worker, over, self.told),
        }
        apart.keepers.clear(&worker.to_string());
        if let Some(first) = self.first.take() {
            let _ = first.send(Err(match &over {
                Over::Failed(failed) => failed.clone().into(),
                _ => RunError::Kept {
                    code: "keeper_lost",
                    what: "its keeper ended before its program ran".into(),
                    hint: None,
                },
            }));
        }
        apart.watch.ended(worker, &over);
    }

    fn heed(&mut self, apart: &Apart, word: Word, door: Option<UnixListener>) {
        let worker = self.employed.worker;
        match word {
            Word::Ready { nonce, program } => {
                if let Some(door) = door {
                    self.open_door(door);
                }
                let papers = &self.employed.papers;
                if self.post.gate.box_launched(papers, &program).is_err() {
                    let code = Code::LaunchFailed.code().to_owned();
                    self.session.tell(&Order::Kill { code });
                    return;
                }
                // The grant is on record: that is what the permit says. It is spent here, for this keeper.
                if let Some(permit) = self.launch.take() {
                    self.session.tell(&Order::Go(permit.cross(nonce)));
                }
            }
            Word::Started(started) => {
                self.post.gate.started(worker);
                apart.watch.started(worker, &started);
                if let Some(first) = self.first.take() {
                    let _ = first.send(Ok(()));
                }
            }
            Word::Sample(sample) => {
                let now = Usage {
                    cpu_ms: sample.cpu_ms,
                    tokens: sample.tokens,
                    micro_usd: sample.micro_usd,
                };
                tell_usage(&self.post.gate, worker, now, &mut self.told);
                apart.watch.sampled(worker, &sample);
            }
            Word::Tools(counts) => apart.watch.tools(worker, counts),
            Word::Refused(refusal) if refusal.is_repeat => apart.watch.refused(worker, &refusal),
            Word::Refused(refusal) => {
                let port = refusal.port.map(|port| format!(":{port}"));
                let port = port.unwrap_or_default();
                let why = format!("{} {}{port}", refusal.code, refusal.host);
                self.post.gate.note_box(worker, why);
                apart.watch.refused(worker, &refusal);
            }
            Word::Stilled { freezes } => {
                if self.session.line().stilled(freezes) {
                    apart.watch.frozen(worker);
                }
            }
            Word::Carved { child, purse } => self.session.line().carved(&child, purse),
            Word::Violated(breach) => apart.watch.violated(worker, &breach),
            // Said to whoever adopts, and handled there.
            Word::Here(_) | Word::Ended(_) | Word::Failed(_) => {}
        }
    }
}

/// Puts on record how a box that a process kept is over.
pub(crate) fn tell_legacy(gate: &FleetGate, worker: WorkerId, over: &Over, told: Usage) {
    match over {
        Over::Ended(ending) => tell_end(gate, worker, ending, told),
        Over::Failed(failed) => gate.failed(worker, failed.what.clone()),
        Over::Lost => {
            gate.note_box(worker, "its keeper was killed, and its box with it".into());
            gate.lost(worker);
        }
    }
}

impl Post {
    /// Gives what somebody did not spend on models back to its parent, if that lives. Otherwise it is lost: strict, not generous.
    fn give_back(&self, employed: &Employed, unspent: Purse) {
        let parent = employed.papers.payload().parent.as_ref();
        let parent = parent.map(|link| WorkerId(link.worker.as_u128()));
        if let Some(line) = parent.and_then(|parent| self.crew.line(parent)) {
            let child = employed.worker.to_string();
            let _ = line.order(&Order::GiveBack { child, unspent });
        }
    }

    /// Where a worker's output is.
    pub(crate) fn output_of(&self, worker: &str) -> std::path::PathBuf {
        self.state.path().join("fleet/output").join(worker)
    }

    /// Clears away what a killed keeper could not.
    pub(crate) fn clear_after(&self, worker: WorkerId) {
        self.state.sweep(&belljar_sandbox::Host::probe().cgroups);
        self.state.forget_doors(&worker.to_string());
    }
}
