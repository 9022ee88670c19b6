//! Decides, and applies what it decided in the same step.

mod decide;
mod ends;
mod operator;
mod rules;
mod stopping;
mod tick;

use belljar_policy::{Contract, OnTrigger};

use crate::beats::Beats;
use crate::clock::Clock;
use crate::event::{Event, Issued, What};
use crate::outcome::{Command, NotAlive, Outcome};
use crate::state::State;
use crate::stop::{Condition, Depends, InvalidCondition, Predicate, compile_all};
use crate::timers::{GrantTimers, WorkerTimers};
use crate::tree::{FLEET, NEVER, Status};
use crate::{BootId, Code, Now, WorkerId};

/// How long a grant may wait for its registration.
pub const GRANT_LIFETIME_NS: u64 = 30_000_000_000;
/// How often conditions that change with time alone are evaluated for every worker.
pub const SWEEP_NS: u64 = 1_000_000_000;

/// The controller of one family. One owner, one thread.
#[derive(Debug)]
pub struct Controller {
    state: State,
    conditions: Vec<Condition>,
    clock: Clock,
    worker_timers: WorkerTimers,
    grant_timers: GrantTimers,
    beats: Beats,
    /// What changed since conditions were last evaluated.
    changed: Depends,
    /// Workers that something changed for.
    touched: Vec<u32>,
    /// When every worker is looked at again.
    sweep_ns: u64,
    /// Memory for the events of the next step.
    spare: Vec<Event>,
    spare_issued: Option<Box<Issued>>,
    /// Its own record contradicts itself. It must not happen; if it does, nothing is granted any more.
    is_fenced: bool,
}

/// One step: its moment and what it has brought about so far.
pub(crate) struct Turn {
    now: Now,
    events: Vec<Event>,
    commands: Vec<Command>,
}

impl Turn {
    fn finish<T>(self, result: T) -> Outcome<T> {
        Outcome {
            result,
            events: self.events,
            commands: self.commands,
        }
    }
}

impl Controller {
    /// Takes over from whoever wrote `state`, under `contract`. Workers that were alive are lost: the
    /// result names them, and they are to be killed should their boxes still run.
    pub fn start(
        state: State,
        contract: Contract,
        boot: BootId,
        now: Now,
    ) -> Result<(Self, Outcome<Vec<WorkerId>>), InvalidCondition> {
        let conditions = compile_all(&contract.stop_conditions)?;
        let high_ms = state.wall_high_ms;
        let lost: Vec<WorkerId> = state.workers().map(|worker| worker.id).collect();
        let mut controller = Self::around(state, conditions, now);
        let mut turn = Turn {
            now,
            events: Vec::new(),
            commands: lost
                .iter()
                .map(|id| Command::Kill(*id, Code::Lost))
                .collect(),
        };
        controller.record(&mut turn, What::ControllerStarted { boot });
        if controller.state.contract != contract {
            let contract = Box::new(contract);
            controller.record(&mut turn, What::ContractSet { contract });
        }
        if let Some(by_ms) = Clock::behind(high_ms, now) {
            controller.record(&mut turn, What::ClockJumped { by_ms });
        }
        controller.settle(&mut turn);
        Ok((controller, turn.finish(lost)))
    }

    /// Begins anew with nobody, as [`Controller::start`] does from [`State::default`], in the memory that this one has: for
    /// whoever simulates many families in a row.
    pub fn start_anew(
        self,
        contract: Contract,
        boot: BootId,
        now: Now,
    ) -> Result<(Self, Outcome<Vec<WorkerId>>), InvalidCondition> {
        let Self {
            state,
            mut worker_timers,
            mut beats,
            ..
        } = self;
        let (mut controller, outcome) = Self::start(state.emptied(), contract, boot, now)?;
        worker_timers.clear();
        beats.clear();
        (controller.worker_timers, controller.beats) = (worker_timers, beats);
        Ok((controller, outcome))
    }

    /// Takes over from a controller that is gone, with the workers that `lives` knows to have outlived it: their keepers are
    /// processes of their own. Everybody else is lost, and in another boot everybody is. The result says who.
    pub fn take_over(
        state: State,
        contract: Contract,
        boot: BootId,
        now: Now,
        lives: impl Fn(WorkerId) -> bool,
    ) -> Result<(Self, Outcome<Vec<WorkerId>>), InvalidCondition> {
        let is_same_boot = state.boot == Some(boot) && now.boot_ns >= state.boot_ns;
        if !is_same_boot || !state.workers().any(|worker| lives(worker.id)) {
            return Self::start(state, contract, boot, now);
        }
        let gone = state.workers().map(|worker| worker.id);
        let lost: Vec<WorkerId> = gone.filter(|id| !lives(*id)).collect();
        let high_ms = state.wall_high_ms;
        let is_other_contract = state.contract != contract;
        let mut controller = Self::resume(state, now)?;
        let mut events = Vec::new();
        let mut commands = Vec::new();
        if is_other_contract {
            let outcome = controller.set_contract(now, contract);
            outcome.result?;
            events.extend(outcome.events);
            commands.extend(outcome.commands);
        }
        if let Some(by_ms) = Clock::behind(high_ms, now) {
            let mut turn = controller.begin(now);
            controller.record(&mut turn, What::ClockJumped { by_ms });
            let outcome = turn.finish(());
            events.extend(outcome.events);
            commands.extend(outcome.commands);
        }
        for worker in &lost {
            // One that ended with its parent a moment ago is told once.
            let outcome = controller.lose(now, *worker);
            events.extend(outcome.events);
            commands.extend(outcome.commands);
        }
        let outcome = Outcome {
            result: lost,
            events,
            commands,
        };
        Ok((controller, outcome))
    }

    /// Goes on with a folded state, in the same boot and with its workers alive: after the owner has folded
    /// its record again. Everyone counts as having just spoken.
    pub fn resume(state: State, now: Now) -> Result<Self, InvalidCondition> {
        let conditions = compile_all(&state.contract.stop_conditions)?;
        let mut controller = Self::around(state, conditions, now);
        let now_ns = now.boot_ns.max(controller.state.boot_ns);
        controller.beats = Beats::since(now_ns);
        for slot in controller.state.tree.subtree(FLEET) {
            controller.set_timer(slot);
            controller.touch(slot);
        }
        Ok(controller)
    }

    fn around(state: State, conditions: Vec<Condition>, now: Now) -> Self {
        Self {
            grant_timers: GrantTimers::new(&state.grants),
            conditions,
            clock: Clock::new(now),
            worker_timers: WorkerTimers::default(),
            beats: Beats::default(),
            changed: Depends::ALL,
            touched: Vec::new(),
            sweep_ns: 0,
            spare: Vec::new(),
            spare_issued: None,
            is_fenced: false,
            state,
        }
    }

    /// Adds a stop condition written in Rust. It is not part of the record and must be added again after a start.
    pub fn add_predicate(&mut self, name: &str, on_trigger: OnTrigger, predicate: Predicate) {
        self.conditions
            .push(Condition::closure(name, on_trigger, predicate));
        self.changed = Depends::ALL;
    }

    /// The state, to look at and to store.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The state, to store; the controller ends.
    #[must_use]
    pub fn into_state(self) -> State {
        self.state
    }

    /// A worker spoke. It is not recorded.
    pub fn heartbeat(&mut self, now: Now, worker: WorkerId) -> Result<(), NotAlive> {
        let slot = self.state.tree.find(worker).ok_or(NotAlive(worker))?;
        self.beats.heard(slot, now.boot_ns);
        Ok(())
    }

    /// Gives back the memory of events that were looked at and are not needed any more: for whoever simulates.
    pub fn reuse(&mut self, mut events: Vec<Event>) {
        while let Some(event) = events.pop() {
            if let What::Issued(issued) = event.what {
                self.spare_issued = Some(issued);
            }
        }
        self.spare = events;
    }

    /// Begins a step: the boot clock never runs back here, and the wall clock is looked at.
    fn begin(&mut self, now: Now) -> Turn {
        let mut turn = Turn {
            now: Now {
                boot_ns: now.boot_ns.max(self.state.boot_ns),
                wall_ms: now.wall_ms,
            },
            events: std::mem::take(&mut self.spare),
            commands: Vec::new(),
        };
        if let Some(by_ms) = self.clock.observe(turn.now) {
            self.record(&mut turn, What::ClockJumped { by_ms });
        }
        turn
    }

    /// Applies an event and keeps it for the owner to store.
    fn record(&mut self, turn: &mut Turn, what: What) -> bool {
        let event = Event::new(turn.now, what);
        let is_applied = self.state.apply(&event).is_ok();
        if is_applied {
            turn.events.push(event);
        } else {
            self.is_fenced = true;
        }
        is_applied
    }

    /// Starts the timers of a worker that was just let in.
    fn watch(&mut self, slot: u32, now_ns: u64) {
        self.beats.begin(slot, now_ns);
        self.set_timer(slot);
    }

    fn set_timer(&mut self, slot: u32) {
        let due = due_ns(&self.state, &self.beats, slot);
        self.worker_timers.set(due, slot);
        if self.worker_timers.is_stale(self.state.tree.len()) {
            self.worker_timers.clear();
            for slot in self.state.tree.live_slots() {
                let due = due_ns(&self.state, &self.beats, slot);
                self.worker_timers.set(due, slot);
            }
        }
    }
}

/// When a worker's time is over or its silence too long, whichever comes first. Never, if nobody lives in the slot.
fn due_ns(state: &State, beats: &Beats, slot: u32) -> u64 {
    match state.tree.status(slot) {
        Some(_) => {
            let expires_ns = state.tree.node(slot).expires_ns;
            expires_ns.min(silent_ns(state, beats, slot))
        }
        None => NEVER,
    }
}

/// When a worker's silence is too long. Whoever is frozen can't speak and is not reaped for it.
fn silent_ns(state: &State, beats: &Beats, slot: u32) -> u64 {
    match state.contract.heartbeat_timeout {
        Some(timeout) if state.tree.status(slot) != Some(Status::Quarantined) => {
            let spoken_ns = beats.last(&state.tree, slot);
            spoken_ns.saturating_add(nanoseconds(timeout))
        }
        _ => NEVER,
    }
}

fn nanoseconds(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(NEVER)
}
