//! The desk: one thread that owns the controller and the log of the fleet.
//!
//! Questions come in by an inbox and are answered in rounds: each is decided at once, what stops somebody is carried
//! out at once, then everything the round decided is stored with one sync, and only then does anybody hear
//! that something was granted. So nothing can come between check and debit, many askers share one sync, and a kill
//! waits for no disk.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use belljar_ledger::{Durability, Ledger};
use belljar_manifest::keys::KeyId;
use belljar_replication::{
    Admitted, Code, Command, Controller, Event, Now, Outcome, Scope, Usage, WorkerId,
};
use serde::Serialize;

use super::inbox::{Ask, Expected, Found, Inbox, Manner, Round};
use super::keys::KeyWatch;
use super::note::FleetNote;
use super::sealers::{Bench, Job, Sealers};
use super::{Hands, Seated};
use crate::clock::now;
use crate::keyring::Keyring;
use crate::latch::Latch;
use crate::log::{LogError, in_full};
use crate::record::Entry;

/// How often the desk looks up although nobody asks: at the clock, at the keys on disk.
const IDLE: Duration = Duration::from_millis(500);
/// The longest that a round is held up for others to join it.
const LONGEST_WAIT: Duration = Duration::from_micros(500);
/// How old the log's signature gets while nothing happens.
const REFRESH_NS: u64 = 60_000_000_000;
/// How long a program may run on after it said that it ends.
const LEAVING_NS: u64 = 2_000_000_000;
/// How many events are folded at most at the next start: then a snapshot is due.
const SNAPSHOT_EVERY: u64 = 200_000;

/// The answer could not be put on record, or the desk is gone: whatever was asked for is not granted.
#[derive(Clone, Debug, thiserror::Error)]
#[error("deny_unrecorded: {0}")]
pub struct Unrecorded(pub Arc<str>);

impl Unrecorded {
    pub(crate) fn because(error: &dyn std::error::Error) -> Self {
        Self(Arc::from(in_full(error)))
    }

    pub(super) fn gone() -> Self {
        Self(Arc::from("the controller has ended"))
    }
}

/// The way to the desk.
#[derive(Debug)]
pub(crate) struct DeskHandle {
    inbox: Arc<Inbox>,
    thread: Option<JoinHandle<()>>,
    /// Dropped after the desk has ended.
    _sealers: Sealers,
}

pub(crate) struct Desk {
    pub(crate) controller: Controller,
    ledger: Ledger,
    hands: Box<dyn Hands>,
    keys: KeyWatch,
    latch: Latch,
    /// While a reset goes on record, the latch on disk is an old one.
    is_resetting: bool,
    /// Set by the first failure to record; from then on nothing is granted.
    broken: Option<Unrecorded>,
    signed_ns: u64,
    snapshot_at: u64,
    /// Who is let go once that is on record.
    to_thaw: Vec<WorkerId>,
    /// Who said that it ends, and until when its program may do so by itself, on the boot clock.
    leaving: BTreeMap<WorkerId, u64>,
    /// Work on answers of this round, for the sealers.
    to_prepare: Vec<Job>,
    bench: Arc<Bench>,
    /// The entry that is being written; kept for the next.
    entry: Vec<u8>,
}

impl DeskHandle {
    /// Sits down to work in a thread of its own.
    pub(crate) fn open(mut desk: Desk) -> std::io::Result<Self> {
        let sealers = Sealers::employ()?;
        desk.bench = sealers.bench();
        let inbox = Arc::new(Inbox::default());
        let own = AtWork(Arc::clone(&inbox));
        let thread = std::thread::Builder::new()
            .name("belljar-desk".to_owned())
            .spawn(move || desk.work(&own.0))?;
        Ok(Self {
            inbox,
            thread: Some(thread),
            _sealers: sealers,
        })
    }

    /// Asks the controller; the answer comes when it is on record.
    pub(crate) fn decide<T: Send + 'static>(
        &self,
        decide: impl FnOnce(&mut Controller, Now) -> Outcome<T> + Send + 'static,
    ) -> Result<T, Unrecorded> {
        self.ask(|desk| {
            let at = now();
            desk.turn(|controller| decide(controller, at))
        })
    }

    /// Asks anything of the desk. The answer comes when all that was decided before is on record.
    pub(crate) fn ask<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&mut Desk) -> T + Send + 'static,
    ) -> Result<T, Unrecorded> {
        let (result, recorded) = self.answer(ask, Manner::Asked)?;
        recorded.map(|()| result)
    }

    /// Looks at the desk. What is seen is as it is now, also when it can't be recorded any more.
    pub(crate) fn see<T: Send + 'static>(
        &self,
        look: impl FnOnce(&mut Desk) -> T + Send + 'static,
    ) -> Result<T, Unrecorded> {
        let (seen, _) = self.answer(look, Manner::Asked)?;
        Ok(seen)
    }

    /// Asks for something that must be on record. A desk that can't record is not asked at all: it would count what nobody gets.
    pub(crate) fn ask_for<T: Send + 'static, E: Send + 'static>(
        &self,
        ask: impl FnOnce(&mut Desk) -> Result<T, E> + Send + 'static,
    ) -> Result<Result<T, E>, Unrecorded> {
        self.ask(|desk| match desk.failure() {
            Some(failure) => Err(failure.clone()),
            None => Ok(ask(desk)),
        })?
    }

    /// The same, and has work done on the answer while it goes on record: by a sealer, and without effect until this
    /// returns. What was made of it is let go of if the record does not hold.
    pub(crate) fn ask_and_prepare<T: Send + 'static, E: Send + 'static, U: Send + 'static>(
        &self,
        ask: impl FnOnce(&mut Desk) -> Result<T, E> + Send + 'static,
        prepare: impl FnOnce(T) -> U + Send + 'static,
    ) -> Result<Result<U, E>, Unrecorded> {
        let place = Place::default();
        let put_down = Arc::clone(&place);
        let decide: Ask = Box::new(move |desk| {
            if desk.failure().is_some() {
                // The round's end says why.
                return;
            }
            match ask(desk) {
                Ok(answer) => desk
                    .to_prepare
                    .push(Box::new(move || put(&put_down, Ok(prepare(answer))))),
                Err(refusal) => put(&put_down, Err(refusal)),
            }
        });
        let round = self.inbox.put(decide, Manner::Asked)?;
        round.wait_until_finished()?;
        taken(&place)
    }

    /// Asks for something that takes effect at once, whether or not it can be recorded.
    pub(crate) fn ask_anyway<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&mut Desk) -> T + Send + 'static,
    ) -> Result<(T, Result<(), Unrecorded>), Unrecorded> {
        self.answer(ask, Manner::Urgent)
    }

    fn answer<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&mut Desk) -> T + Send + 'static,
        manner: Manner,
    ) -> Result<(T, Result<(), Unrecorded>), Unrecorded> {
        let place = Place::default();
        let put_down = Arc::clone(&place);
        let decide: Ask = Box::new(move |desk| put(&put_down, ask(desk)));
        let round = self.inbox.put(decide, manner)?;
        let recorded = round.wait();
        Ok((taken(&place)?, recorded))
    }

    /// Tells the desk something and does not wait.
    pub(crate) fn tell(&self, tell: impl FnOnce(&mut Desk) + Send + 'static) {
        let _ = self.inbox.put(Box::new(tell), Manner::Told);
    }
}

/// Whom to wait for after a round, so that two do not follow each other where one would do: those who were in it, for a
/// small part of what the next one's sync will take. A single asker waits for nobody, nor anybody for him.
fn back_soon(askers: usize, sync: Duration) -> Option<Expected> {
    let until = Instant::now() + (sync / 4).min(LONGEST_WAIT);
    (askers > 1).then_some(Expected { askers, until })
}

/// Where the desk puts down an answer.
type Place<T> = Arc<Mutex<Option<T>>>;

fn put<T>(place: &Place<T>, answer: T) {
    *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
}

/// The answer; there is none if the desk went away first.
fn taken<T>(place: &Place<T>) -> Result<T, Unrecorded> {
    let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
    place.take().ok_or_else(Unrecorded::gone)
}

/// Whoever asks a desk that ended, however it ended, must not wait for ever.
struct AtWork(Arc<Inbox>);

impl Drop for AtWork {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

impl Drop for DeskHandle {
    fn drop(&mut self) {
        self.inbox.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Desk {
    pub(crate) fn new(
        controller: Controller,
        ledger: Ledger,
        hands: Box<dyn Hands>,
        keys: KeyWatch,
        latch: Latch,
    ) -> Self {
        let snapshot_at = ledger.size() + SNAPSHOT_EVERY;
        Self {
            controller,
            ledger,
            hands,
            keys,
            latch,
            is_resetting: false,
            broken: None,
            signed_ns: now().boot_ns,
            snapshot_at,
            to_thaw: Vec::new(),
            leaving: BTreeMap::new(),
            to_prepare: Vec::new(),
            bench: Arc::default(),
            entry: Vec::new(),
        }
    }

    fn work(mut self, inbox: &Inbox) {
        let mut expected = None;
        loop {
            let mut round = match inbox.take(self.patience(), expected.take()) {
                Found::Round(round) => Some(round),
                Found::Nothing => None,
                Found::Closed => return,
            };
            for ask in round.iter_mut().flat_map(Round::asks) {
                ask(&mut self);
            }
            if let Some(round) = &round {
                self.prepare(round);
            }
            self.keep_time();
            let begun = Instant::now();
            let recorded = self.commit();
            self.let_go(recorded.is_ok());
            if let Some(round) = round {
                expected = back_soon(round.askers(), begun.elapsed());
                round.finish(recorded);
            }
        }
    }

    /// Has the sealers begin with what the round has for them.
    fn prepare(&mut self, round: &Round) {
        let jobs = self.to_prepare.drain(..).map(|job| {
            let part = round.part();
            Box::new(move || {
                job();
                drop(part);
            }) as Job
        });
        self.bench.put(jobs);
    }

    /// How long nothing needs doing.
    fn patience(&self) -> Duration {
        let next = self
            .controller
            .next_timer()
            .map(|at| at.saturating_sub(now().boot_ns));
        next.map_or(IDLE, |wait| Duration::from_nanos(wait).min(IDLE))
    }

    /// What is due by the clock: expiry, reaping, conditions, keys, signatures.
    fn keep_time(&mut self) {
        let at = now();
        self.turn(|controller| controller.tick(at));
        self.end_the_late(at);
        self.heed_latch(at);
        self.look_at_keys(at);
    }

    /// Somebody ends by its own will: its program has some time to do so, and nothing is granted to it meanwhile. Says whether
    /// it was alive. Its means stay its own until its box is gone, so that nobody else has them too.
    pub(crate) fn leave(&mut self, at: Now, worker: WorkerId) -> bool {
        let is_alive = self.controller.state().worker(worker).is_some();
        if is_alive {
            let until = at.boot_ns.saturating_add(LEAVING_NS);
            self.leaving.entry(worker).or_insert(until);
        }
        is_alive
    }

    /// Whether a worker said that it ends.
    pub(crate) fn is_leaving(&self, worker: WorkerId) -> bool {
        self.leaving.contains_key(&worker)
    }

    /// How the end of a worker's box is to be called: one that was announced is a shutdown.
    pub(crate) fn end_code(&mut self, worker: WorkerId, code: Code) -> Code {
        match self.leaving.remove(&worker) {
            Some(_) if code == Code::Exited => Code::Shutdown,
            _ => code,
        }
    }

    /// Those who said that they end, and did not in time.
    fn end_the_late(&mut self, at: Now) {
        let is_late =
            |(worker, until): (&WorkerId, &u64)| (*until <= at.boot_ns).then_some(*worker);
        let late: Vec<WorkerId> = self.leaving.iter().filter_map(is_late).collect();
        for worker in late {
            self.leaving.remove(&worker);
            let _ = self.turn(|controller| controller.end(at, worker, Code::Shutdown));
        }
    }

    /// Whoever could not reach us may have engaged the kill switch on disk.
    pub(crate) fn heed_latch(&mut self, at: Now) {
        let is_engaged = self.controller.state().is_kill_switch_engaged();
        if is_engaged && !self.is_resetting {
            self.latch.settle_down();
        }
        if !is_engaged && !self.is_resetting && self.latch.engaged().is_some() {
            self.turn(|controller| controller.engage_kill_switch(at, Scope::Fleet));
        }
    }

    /// The latch is not heeded until the reset is on record and the latch gone too.
    pub(crate) fn begin_reset(&mut self) {
        self.is_resetting = true;
    }

    /// Takes the latch off, unless somebody engaged the switch again meanwhile.
    pub(crate) fn finish_reset(&mut self) {
        self.is_resetting = false;
        if !self.controller.state().is_kill_switch_engaged()
            && let Err(error) = self.latch.reset()
        {
            self.fail(&error);
        }
    }

    /// At the start: what the log says of the kill switch and what the disk says must agree, on the safe side.
    pub(crate) fn agree_with_latch(&mut self, at: Now) {
        self.heed_latch(at);
        if self.controller.state().is_kill_switch_engaged()
            && let Err(error) = self
                .latch
                .engage(at.wall_ms, "engaged before the controller's start")
        {
            self.fail(&error);
        }
    }

    /// Takes a step: decides, stops at once whom it stops, and keeps what happened for the next commit.
    pub(crate) fn turn<T>(&mut self, step: impl FnOnce(&mut Controller) -> Outcome<T>) -> T {
        let outcome = step(&mut self.controller);
        self.carry_out(&outcome.commands);
        self.store(&outcome.events);
        outcome.result
    }

    /// Charges a worker for what it used; one that is ended already, its parent. Says whether that was within its means:
    /// if not, it ends.
    pub(crate) fn charge(
        &mut self,
        at: Now,
        worker: WorkerId,
        usage: Usage,
        reading: Option<Usage>,
    ) -> bool {
        let payer = match self.controller.state().worker(worker) {
            Some(_) => Some(worker),
            None => self.keys.parent_of(worker),
        };
        let Some(payer) = payer else {
            return true;
        };
        // A parent's meter is another.
        let reading = reading.filter(|_| payer == worker);
        let over = self.turn(|controller| controller.report_reading(at, payer, usage, reading));
        let is_over = matches!(over, Ok(Some(_)));
        if is_over {
            let _ = self.turn(|controller| controller.end(at, payer, Code::KilledBudget));
        }
        !is_over
    }

    /// What the manifest of somebody just let in will say, and the keys it is to be sealed with. From here on the
    /// worker stands and falls with that key, whatever becomes of it before the manifest is sealed.
    pub(crate) fn seat(&mut self, admitted: Admitted, at: Now) -> Seated {
        let keyring = self.sealing();
        self.vouched(admitted.worker, admitted.parent, keyring.id());
        let state = self.controller.state();
        Seated {
            admitted,
            keyring,
            depth_ceiling: state.contract().max_depth,
            seq: state.seq(),
            epoch: state.epoch(),
            at,
            entry: self.upcoming(),
        }
    }

    /// Nobody asks after this worker any more.
    pub(crate) fn forget(&mut self, worker: WorkerId) {
        self.keys.forget(worker);
    }

    /// The number that the newest entry has, or will have with the next commit.
    pub(crate) fn upcoming(&self) -> u64 {
        (self.ledger.size() + self.ledger.pending()).saturating_sub(1)
    }

    /// How far the log has come.
    pub(crate) fn head(&self) -> (u64, String) {
        let checkpoint = self.ledger.checkpoint();
        (checkpoint.size(), checkpoint.root().to_string())
    }

    /// From here on nothing is granted.
    pub(crate) fn fail(&mut self, error: &dyn std::error::Error) {
        self.broken
            .get_or_insert_with(|| Unrecorded::because(error));
    }

    /// Keys may be rotated or given up while we run: by another process, on disk.
    fn look_at_keys(&mut self, at: Now) {
        let Some(news) = self.keys.news() else {
            return;
        };
        if let Some(signer) = news.signer
            && let Err(error) = self.ledger.sign_with(signer)
        {
            self.fail(&error);
        }
        self.note(
            at,
            &FleetNote::KeysChanged {
                signing: news.signing.to_string(),
            },
        );
        for worker in news.distrusted {
            let _ = self.turn(|controller| controller.quarantine(at, worker, Code::QuarantinedKey));
        }
    }

    /// The keys that manifests are sealed with.
    pub(crate) fn sealing(&self) -> Keyring {
        self.keys.sealing()
    }

    /// Remembers which key vouches for a worker, and who pays for it when it is gone.
    pub(crate) fn vouched(&mut self, worker: WorkerId, parent: Option<WorkerId>, key: KeyId) {
        self.keys.vouched(worker, parent, key);
    }

    /// Stopping somebody waits for nothing; letting somebody go waits for the record.
    pub(crate) fn carry_out(&mut self, commands: &[Command]) {
        for command in commands {
            match *command {
                Command::Kill(worker, code) => self.hands.kill(worker, code),
                Command::Freeze(worker) => {
                    self.to_thaw.retain(|released| *released != worker);
                    self.hands.freeze(worker);
                }
                Command::Thaw(worker) => self.to_thaw.push(worker),
            }
        }
    }

    fn let_go(&mut self, is_recorded: bool) {
        for worker in self.to_thaw.drain(..).filter(|_| is_recorded) {
            self.hands.thaw(worker);
        }
    }

    /// Takes events into the next commit.
    pub(crate) fn store(&mut self, events: &[Event]) {
        for event in events {
            self.append(event);
        }
    }

    /// Takes something into the next commit that the controller does not know of.
    pub(crate) fn note(&mut self, at: Now, note: &FleetNote) {
        self.append(&Entry {
            v: belljar_replication::Version,
            at,
            what: note,
        });
    }

    fn append(&mut self, entry: &impl Serialize) {
        self.entry.clear();
        let appended = serde_json::to_writer(&mut self.entry, entry)
            .map_err(LogError::from)
            .and_then(|()| Ok(self.ledger.append(&self.entry)?));
        if let Err(error) = appended {
            self.fail(&error);
        }
    }

    /// Entries on record.
    pub(crate) fn recorded(&self) -> u64 {
        self.ledger.size()
    }

    /// Why nothing is recorded any more, if so.
    pub(crate) fn failure(&self) -> Option<&Unrecorded> {
        self.broken.as_ref()
    }

    fn commit(&mut self) -> Result<(), Unrecorded> {
        if let Some(broken) = &self.broken {
            return Err(broken.clone());
        }
        let boot_ns = now().boot_ns;
        let due = boot_ns.saturating_sub(self.signed_ns) >= REFRESH_NS;
        if self.ledger.pending() == 0 && !due {
            return Ok(());
        }
        let committed = match due {
            true => self.ledger.refresh(Durability::Power),
            false => self.ledger.commit(Durability::Power),
        };
        if let Err(error) = committed {
            let broken = Unrecorded::because(&error);
            self.broken = Some(broken.clone());
            return Err(broken);
        }
        self.signed_ns = boot_ns;
        self.write_snapshot();
        Ok(())
    }

    /// A snapshot only saves time: without one the whole log is folded.
    fn write_snapshot(&mut self) {
        if self.ledger.size() < self.snapshot_at {
            return;
        }
        self.snapshot_at = self.ledger.size() + SNAPSHOT_EVERY;
        if let Ok(bytes) = serde_json::to_vec(self.controller.state()) {
            let _ = self.ledger.write_snapshot(self.ledger.size(), &bytes);
        }
    }
}
