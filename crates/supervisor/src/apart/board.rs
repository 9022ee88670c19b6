//! The keeper's switchboard: one thread that speaks with the daemon, whichever there is, and holds the box's reins for it.
//!
//! With no daemon it answers the agent's door itself, with a refusal; and when that has lasted too long it freezes the box, and
//! then kills it.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use belljar_api::{Call, Limits, Problem, Running, Server, Side, Status, Tag};
use belljar_egress::{LlmBudget, PicoUsd};
use belljar_gate::Crossing;
use belljar_replication::Code;
use belljar_sandbox::native::LONGEST_LOOK;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};

use super::place::Listening;
use super::wire::{Manner, Wire};
use super::words::{Order, Purse, Sample, Standing, Started, Task, Word};
use crate::door::Door;
use crate::reins::Reins;
use crate::result::KillCode;

/// Words that wait for a daemon; what goes beyond is counted in the result at the end.
const MOST_WAITING: usize = 256;
/// How long a box that was frozen because nobody came back may still be saved.
const LAST_CALL: Duration = Duration::from_secs(5);
/// What ends a box whose daemon stayed away.
const ORPHANED: KillCode = KillCode::ORPHANED;
/// What ends a box that did not end when it was asked to.
const STOPPED: KillCode = KillCode::new("stopped");

/// What the box's own thread and the switchboard share.
#[derive(Debug)]
pub(super) struct Board {
    said: Mutex<Said>,
    /// Rings for whoever waits for leave, or for the end to be heard.
    heard: Condvar,
    /// Wakes the switchboard.
    bell: OwnedFd,
}

#[derive(Debug, Default)]
struct Said {
    waiting: VecDeque<Word>,
    sample: Option<Sample>,
    sample_is_new: bool,
    /// What was called, if that is news.
    tools: Option<Word>,
    started: Option<Started>,
    leave: Option<Crossing>,
    /// Whether a daemon is there.
    is_attended: bool,
    /// The daemon has the end on record.
    is_done: bool,
    /// Killed: whoever waits for leave waits in vain.
    is_doomed: bool,
    is_over: bool,
}

impl Board {
    pub(super) fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self {
            said: Mutex::default(),
            heard: Condvar::new(),
            bell: rustix::event::eventfd(0, flags)?,
        })
    }

    /// Says something, now or to the next daemon.
    pub(super) fn say(&self, word: Word) {
        let mut said = self.said();
        match word {
            Word::Sample(sample) => {
                said.sample = Some(sample);
                said.sample_is_new = true;
            }
            // The newest says all that the ones before did.
            tools @ Word::Tools(_) => said.tools = Some(tools),
            word => {
                if let Word::Started(started) = &word {
                    said.started = Some(started.clone());
                }
                // The end is always heard.
                let is_last = matches!(word, Word::Ended(_) | Word::Failed(_));
                if is_last || said.waiting.len() < MOST_WAITING {
                    said.waiting.push_back(word);
                }
            }
        }
        drop(said);
        self.ring();
    }

    /// A daemon is there from the start.
    pub(super) fn attended(&self) {
        self.said().is_attended = true;
    }

    /// Waits for the daemon's leave; there is none if it goes away first.
    pub(super) fn await_leave(&self) -> Option<Crossing> {
        let mut said = self.said();
        loop {
            if let Some(leave) = said.leave.take() {
                return Some(leave);
            }
            if !said.is_attended || said.is_doomed {
                return None;
            }
            said = self
                .heard
                .wait(said)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until a daemon has the end on record, as long as there is one to wait for. Says whether it has.
    pub(super) fn await_done(&self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        let mut said = self.said();
        loop {
            let wait = until.saturating_duration_since(Instant::now());
            if said.is_done || !said.is_attended || wait.is_zero() {
                return said.is_done;
            }
            said = match self.heard.wait_timeout(said, wait) {
                Ok((said, _)) => said,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }

    /// Ends the switchboard.
    pub(super) fn close(&self) {
        self.said().is_over = true;
        self.ring();
    }

    fn ring(&self) {
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    fn said(&self) -> MutexGuard<'_, Said> {
        // Every change is complete before anything can panic.
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The switchboard's own.
pub(super) struct Switchboard {
    pub(super) board: Arc<Board>,
    pub(super) task: Task,
    pub(super) reins: Reins,
    pub(super) budget: Arc<LlmBudget>,
    pub(super) door: Arc<Door>,
    pub(super) listening: Listening,
    pub(super) daemon: Option<Wire>,
    /// Since when there is none.
    pub(super) alone: Option<Alone>,
    /// When a box that was asked to end is killed.
    pub(super) stop_by: Option<Instant>,
    /// The daemon wants it to hold still.
    pub(super) is_quarantined: bool,
    /// How often this daemon said so.
    pub(super) freezes: u64,
    /// It was told that the box does.
    pub(super) is_seen_still: bool,
    /// What is set aside for replicas.
    pub(super) parts: HashMap<String, Arc<LlmBudget>>,
}

/// A keeper without a daemon.
pub(super) struct Alone {
    since: Instant,
    is_frozen: bool,
    /// Answers at the agent's door.
    _refuser: Option<Running>,
}

impl Switchboard {
    /// Until the board is closed.
    pub(super) fn work(mut self) {
        while !self.board.said().is_over {
            let ready = self.wait();
            if ready.daemon {
                self.hear();
            }
            if ready.visitor {
                self.admit_visitor();
            }
            self.look_for_stillness();
            self.tell();
            self.keep_time();
        }
    }

    fn wait(&self) -> Ready {
        let bell = self.board.bell.as_fd();
        let daemon = self.daemon.as_ref().map_or(bell, AsFd::as_fd);
        let mut fds = [
            PollFd::from_borrowed_fd(bell, PollFlags::IN),
            PollFd::from_borrowed_fd(self.listening.listener.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(daemon, PollFlags::IN),
        ];
        let now = Instant::now();
        let next = [self.stop_by, self.alone_until(), self.next_look(now)]
            .into_iter()
            .flatten()
            .min();
        let timeout =
            next.and_then(|at| Timespec::try_from(at.saturating_duration_since(now)).ok());
        // An interrupted wait is looked at like any other.
        let _ = poll(&mut fds, timeout.as_ref());
        let [rung, visitor, heard] = fds.each_ref().map(|fd| !fd.revents().is_empty());
        if rung {
            let _ = rustix::io::read(&self.board.bell, &mut [0u8; 8]);
        }
        Ready {
            visitor,
            daemon: heard && self.daemon.is_some(),
        }
    }

    /// Takes one order, or notes that nobody is there to give any.
    fn hear(&mut self) {
        let received = self.daemon.as_ref().map(Wire::receive::<Order>);
        match received {
            Some(Ok(Some((order, _)))) => self.obey(order),
            _ => self.be_alone(),
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            // Told once, at the very beginning.
            Order::Keep(_) => {}
            Order::Go(crossing) => {
                self.board.said().leave = Some(crossing);
                self.board.heard.notify_all();
            }
            Order::Kill { code } => {
                self.reins.kill(kill_code(&code));
                self.board.said().is_doomed = true;
                self.board.heard.notify_all();
            }
            Order::Freeze => {
                self.is_quarantined = true;
                self.freezes += 1;
                self.is_seen_still = false;
                self.freeze();
            }
            Order::Thaw => {
                self.is_quarantined = false;
                let _ = self.reins.thaw();
            }
            Order::Stop { grace_ms } => {
                self.reins.ask_to_end();
                let by = Instant::now().checked_add(Duration::from_millis(grace_ms));
                self.stop_by = [self.stop_by, by].into_iter().flatten().min();
            }
            Order::Charge { tokens, micro_usd } => {
                let cost = PicoUsd::from_micro_usd(micro_usd);
                self.budget.charge(tokens, cost);
            }
            Order::Carve { child, wanted } => {
                let part = wanted.carve_from(&self.budget);
                let purse = Purse::left_in(&part);
                self.parts.insert(child.clone(), part);
                self.board.say(Word::Carved { child, purse });
            }
            Order::GiveBack { child, unspent } => {
                if let Some(part) = self.parts.remove(&child) {
                    give_back(&part, unspent);
                }
            }
            Order::Done => {
                self.board.said().is_done = true;
                self.board.heard.notify_all();
            }
        }
    }

    /// Whoever can't be made to hold still may not go on either.
    fn freeze(&self) {
        if self.reins.freeze().is_err() {
            self.reins
                .kill(KillCode::new(Code::QuarantinedOperator.code()));
        }
    }

    /// When to look again whether the box holds still, if it is to and nobody has seen it yet.
    fn next_look(&self, now: Instant) -> Option<Instant> {
        let is_wanted = self.is_quarantined && !self.is_seen_still;
        is_wanted.then(|| now + LONGEST_LOOK)
    }

    fn look_for_stillness(&mut self) {
        if self.is_quarantined && !self.is_seen_still && !self.reins.is_freezing() {
            self.is_seen_still = true;
            let freezes = self.freezes;
            self.board.say(Word::Stilled { freezes });
        }
    }

    /// Says what waits to be said.
    fn tell(&mut self) {
        let Some(daemon) = &self.daemon else {
            return;
        };
        let mut said = self.board.said();
        // Before the end, after which nobody listens.
        let tools = said.tools.take();
        let words: Vec<Word> = tools.into_iter().chain(said.waiting.drain(..)).collect();
        let sample = said
            .sample
            .filter(|_| std::mem::take(&mut said.sample_is_new));
        drop(said);
        let mut words: VecDeque<Word> = words.into();
        // A last sample says nothing that the end does not.
        words.extend(sample.map(Word::Sample));
        while let Some(word) = words.pop_front() {
            let along = matches!(word, Word::Ready { .. }).then(|| self.door.listener().as_fd());
            if daemon.send(&word, along, Manner::Patient).is_err() {
                // The next daemon hears it.
                words.push_front(word);
                let mut said = self.board.said();
                for word in words.into_iter().rev() {
                    match word {
                        Word::Sample(_) => said.sample_is_new = true,
                        tools @ Word::Tools(_) => said.tools = said.tools.take().or(Some(tools)),
                        word => said.waiting.push_front(word),
                    }
                }
                drop(said);
                return self.be_alone();
            }
        }
    }

    /// The daemon is gone. The box goes on, within its limits; its agent is granted nothing.
    fn be_alone(&mut self) {
        self.daemon = None;
        self.board.said().is_attended = false;
        self.board.heard.notify_all();
        self.alone = Some(Alone {
            since: Instant::now(),
            is_frozen: false,
            _refuser: refuse_at(&self.door).ok(),
        });
    }

    /// A daemon that adopts the box: ours, or root's.
    fn admit_visitor(&mut self) {
        let Ok((socket, _)) = self.listening.listener.accept() else {
            return;
        };
        let is_ours = |wire: &Wire| {
            let own = rustix::process::geteuid();
            wire.peer()
                .is_ok_and(|peer| peer.uid == own || peer.uid.is_root())
        };
        let wire = socket
            .set_nonblocking(false)
            .and_then(|()| Wire::new(socket));
        let Some(wire) = wire
            .ok()
            .filter(|wire| self.daemon.is_none() && is_ours(wire))
        else {
            return;
        };
        let mut said = self.board.said();
        let standing = Standing {
            task: self.task.clone(),
            pid: std::process::id(),
            started: said.started.clone(),
            sample: said.sample,
            tells_stillness: true,
        };
        // It is in the standing already; and of the last daemon's orders this one knows nothing.
        said.waiting
            .retain(|word| !matches!(word, Word::Started(_) | Word::Stilled { .. }));
        said.sample_is_new = false;
        said.is_attended = true;
        drop(said);
        (self.freezes, self.is_seen_still) = (0, true);
        // The door is the daemon's again before anybody is told.
        let alone = self.alone.take();
        if alone.is_some_and(|alone| alone.is_frozen) && !self.is_quarantined {
            let _ = self.reins.thaw();
        }
        let word = Word::Here(Box::new(standing));
        let along = Some(self.door.listener().as_fd());
        match wire.send(&word, along, Manner::Patient) {
            Ok(()) => self.daemon = Some(wire),
            Err(_) => self.be_alone(),
        }
    }

    fn alone_until(&self) -> Option<Instant> {
        let alone = self.alone.as_ref()?;
        let grace = Duration::from_millis(self.task.orphan_grace_ms);
        let wait = match alone.is_frozen {
            false => grace,
            true => grace.saturating_add(LAST_CALL),
        };
        alone.since.checked_add(wait)
    }

    fn keep_time(&mut self) {
        let now = Instant::now();
        if self.stop_by.is_some_and(|at| now >= at) {
            self.stop_by = None;
            self.reins.kill(STOPPED);
        }
        if self.alone_until().is_none_or(|at| now < at) {
            return;
        }
        let Some(alone) = &mut self.alone else {
            return;
        };
        if alone.is_frozen {
            self.alone = None;
            self.reins.kill(ORPHANED);
        } else {
            alone.is_frozen = true;
            self.freeze();
        }
    }
}

struct Ready {
    visitor: bool,
    daemon: bool,
}

/// Gives what a replica did not spend to the budget its part was carved from. It can't leave more than it had.
fn give_back(part: &LlmBudget, unspent: Purse) {
    let had = Purse::left_in(part);
    let spent = |had: Option<u64>, left: Option<u64>| {
        had.map_or(0, |had| had.saturating_sub(left.unwrap_or(0)))
    };
    let cost = PicoUsd(spent(had.pico_usd, unspent.pico_usd));
    part.charge(spent(had.tokens, unspent.tokens), cost);
    part.close();
}

/// A killer's code as we know it.
fn kill_code(code: &str) -> KillCode {
    match Code::from_code(code) {
        Some(code) => KillCode::new(code.code()),
        None => KillCode::OPERATOR,
    }
}

/// Answers whatever the agent asks: no.
fn refuse_at(door: &Door) -> io::Result<Running> {
    let (server, handle) = Server::new(Limits::default())?;
    let refuser = server.spawn(|request| {
        let problem = Problem::new(
            "deny_no_supervisor",
            "the supervisor is away, and nothing is granted without it",
        )
        .hint("ask again when it is back; an operator starts it with `belljar supervisor start`");
        match request.call {
            Call::Agent(call) => call.refuse(Status::UNAVAILABLE, &problem),
            Call::Operator(call) => call.refuse(Status::NOT_FOUND, &problem),
        }
    })?;
    let _ = handle.add_lent_listener(door.listener().try_clone()?, Tag(1), Side::Agent);
    Ok(refuser)
}
