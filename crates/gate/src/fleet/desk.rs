//! The desk: one thread that owns the controller and the log of the fleet.
//!
//! Questions come in by a channel and are answered in batches: each is decided at once, what stops somebody is carried
//! out at once, then everything the batch decided is stored with one sync, and only then does anybody hear
//! that something was granted. So nothing can come between check and debit, many askers share one sync, and a kill
//! waits for no disk.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use belljar_ledger::{Durability, Ledger};
use belljar_manifest::keys::KeyId;
use belljar_replication::{
    Admitted, Code, Command, Controller, Event, Now, Outcome, Scope, Usage, WorkerId,
};
use serde::Serialize;

use super::keys::KeyWatch;
use super::note::FleetNote;
use super::{Hands, Seated};
use crate::clock::now;
use crate::latch::Latch;
use crate::log::{LogError, in_full};
use crate::record::Entry;

/// The most questions answered with one sync.
const BATCH: usize = 1024;
/// How often the desk looks up although nobody asks: at the clock, at the keys on disk.
const IDLE: Duration = Duration::from_millis(500);
/// How old the log's signature gets while nothing happens.
const REFRESH_NS: u64 = 60_000_000_000;
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
}

/// A question at the desk; gives back how to answer once it is known whether the record holds.
type Ask = Box<dyn FnOnce(&mut Desk) -> Answer + Send>;
type Answer = Box<dyn FnOnce(Result<(), Unrecorded>) + Send>;

enum Post {
    Ask(Ask),
    Stop,
}

/// The way to the desk.
#[derive(Debug)]
pub(crate) struct DeskHandle {
    post: Sender<Post>,
    thread: Option<JoinHandle<()>>,
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
}

impl DeskHandle {
    /// Sits down to work in a thread of its own.
    pub(crate) fn open(desk: Desk) -> std::io::Result<Self> {
        let (post, inbox) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("belljar-desk".to_owned())
            .spawn(move || desk.work(&inbox))?;
        Ok(Self {
            post,
            thread: Some(thread),
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
        let (result, recorded) = self.ask_anyway(ask)?;
        recorded.map(|()| result)
    }

    /// The same, for what takes effect whether or not it can be recorded.
    pub(crate) fn ask_anyway<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&mut Desk) -> T + Send + 'static,
    ) -> Result<(T, Result<(), Unrecorded>), Unrecorded> {
        let (answer, answered) = mpsc::sync_channel(1);
        self.send(Box::new(move |desk| {
            let result = ask(desk);
            Box::new(move |recorded| {
                // Who asked may be gone; the decision stands all the same.
                let _ = answer.send((result, recorded));
            })
        }))?;
        answered.recv().map_err(|_| gone())
    }

    /// Tells the desk something and does not wait.
    pub(crate) fn tell(&self, tell: impl FnOnce(&mut Desk) + Send + 'static) {
        let _ = self.send(Box::new(move |desk| {
            tell(desk);
            Box::new(|_| ())
        }));
    }

    fn send(&self, ask: Ask) -> Result<(), Unrecorded> {
        self.post.send(Post::Ask(ask)).map_err(|_| gone())
    }
}

fn gone() -> Unrecorded {
    Unrecorded(Arc::from("the controller has ended"))
}

impl Drop for DeskHandle {
    fn drop(&mut self) {
        let _ = self.post.send(Post::Stop);
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
        }
    }

    fn work(mut self, inbox: &Receiver<Post>) {
        loop {
            let mut answers = Vec::new();
            let mut last = match inbox.recv_timeout(self.patience()) {
                Ok(post) => Some(post),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let mut stop = false;
            while let Some(post) = last {
                match post {
                    Post::Ask(ask) => answers.push(ask(&mut self)),
                    Post::Stop => stop = true,
                }
                last = match answers.len() < BATCH && !stop {
                    true => inbox.try_recv().ok(),
                    false => None,
                };
            }
            self.keep_time();
            let recorded = self.commit();
            for answer in answers {
                answer(recorded.clone());
            }
            if stop {
                return;
            }
        }
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
        self.heed_latch(at);
        self.look_at_keys(at);
    }

    /// Whoever could not reach us may have engaged the kill switch on disk.
    pub(crate) fn heed_latch(&mut self, at: Now) {
        let is_engaged = self.controller.state().is_kill_switch_engaged();
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
    pub(crate) fn charge(&mut self, at: Now, worker: WorkerId, usage: Usage) -> bool {
        let payer = match self.controller.state().worker(worker) {
            Some(_) => Some(worker),
            None => self.keys.parent_of(worker),
        };
        let Some(payer) = payer else {
            return true;
        };
        let over = self.turn(|controller| controller.report_usage(at, payer, usage));
        let is_over = matches!(over, Ok(Some(_)));
        if is_over {
            let _ = self.turn(|controller| controller.end(at, payer, Code::KilledBudget));
        }
        !is_over
    }

    /// What the manifest of somebody just let in will say.
    pub(crate) fn seat(&self, admitted: Admitted, at: Now) -> Seated {
        let state = self.controller.state();
        Seated {
            admitted,
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

    /// Remembers which key vouches for a worker, and who pays for it when it is gone.
    pub(crate) fn vouched(&mut self, worker: WorkerId, parent: Option<WorkerId>, key: KeyId) {
        self.keys.vouched(worker, parent, key);
    }

    /// Stopping somebody waits for nothing.
    pub(crate) fn carry_out(&self, commands: &[Command]) {
        for command in commands {
            match *command {
                Command::Kill(worker, code) => self.hands.kill(worker, code),
                Command::Freeze(worker) => self.hands.freeze(worker),
                Command::Thaw(worker) => self.hands.thaw(worker),
            }
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
        let appended = serde_json::to_vec(entry)
            .map_err(LogError::from)
            .and_then(|bytes| Ok(self.ledger.append(&bytes)?));
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
