//! The simulated world: boxes, what they do and when. Everything that is granted or refused is decided by the desk.

mod asking;
mod attacks;
mod body;
mod books;
mod queue;
mod troubles;

use belljar_policy::{Amount, Budget};
use belljar_replication::{
    About, Admitted, Asked, BootId, Code, Command, Controller, Denial, Event, InvalidCondition,
    Jti, Now, Outcome, Request, RootRequest, State, What,
};

use crate::desk::Desk;
use crate::law::Span;
use crate::rng::Stream;
use crate::scenario::{Group, Latency, Operation, Scenario};
use crate::tally::{Run, Tally, Trace};
use body::{Bodies, NEVER, NOBODY};
use queue::{Act, Entry, Queue};

/// What the wall clock shows at the beginning.
const WALL_MS: i64 = 1_700_000_000_000;

/// Which run of an experiment it is: where its random numbers come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunKey {
    /// The experiment's seed.
    pub seed: u64,
    /// Which parameters: the number in the sweep.
    pub cell: u32,
    /// Which repetition.
    pub replicate: u32,
    /// The cell whose numbers are drawn; the same for all of them where they are to be compared.
    pub stream: u32,
}

/// Simulates a scenario with the controller that guards real boxes.
///
/// # Errors
/// When a stop condition can't be compiled.
pub fn simulate(scenario: &Scenario, key: RunKey) -> Result<Run, InvalidCondition> {
    Simulator::default().simulate(scenario, key)
}

/// Simulates many runs one after the other in the same memory: to ask the system for it anew costs as much as the simulation.
#[derive(Debug, Default)]
pub struct Simulator {
    spare: Option<(Controller, Bodies, Queue)>,
}

impl Simulator {
    /// Simulates a scenario with the controller that guards real boxes. What was simulated before makes no difference.
    ///
    /// # Errors
    /// When a stop condition can't be compiled.
    pub fn simulate(&mut self, scenario: &Scenario, key: RunKey) -> Result<Run, InvalidCondition> {
        let mut world = match self.spare.take() {
            None => World::new(scenario, key, open(scenario)?, None),
            Some((controller, bodies, queue)) => {
                let contract = scenario.contract.clone();
                let (controller, _) = controller.start_anew(contract, BootId(1), NOW)?;
                let queue = queue.anew(scenario.horizon_ns, pace_ns(scenario));
                World::within(scenario, key, controller, None, (bodies, queue))
            }
        };
        world.begin();
        world.go_on();
        let (run, _, spare) = world.finish(key);
        self.spare = Some(spare);
        Ok(run)
    }
}

/// When every simulation begins.
const NOW: Now = Now {
    boot_ns: 0,
    wall_ms: WALL_MS.unsigned_abs(),
};

fn pace_ns(scenario: &Scenario) -> u64 {
    let paces = scenario.groups.iter().map(|group| group.pace_ns);
    paces.min().unwrap_or(1)
}

/// The same, and who descended from whom.
///
/// # Errors
/// When a stop condition can't be compiled.
pub fn simulate_traced(scenario: &Scenario, key: RunKey) -> Result<(Run, Trace), InvalidCondition> {
    let (run, trace) = simulate_at(scenario, key, open(scenario)?, Some(Trace::default()));
    Ok((run, trace.unwrap_or_default()))
}

/// A controller for the scenario's contract.
///
/// # Errors
/// When a stop condition can't be compiled.
pub fn open(scenario: &Scenario) -> Result<Controller, InvalidCondition> {
    let (controller, _) =
        Controller::start(State::default(), scenario.contract.clone(), BootId(1), NOW)?;
    Ok(controller)
}

/// Simulates with any desk: tests use one that lets things pass.
pub fn simulate_at<D: Desk>(
    scenario: &Scenario,
    key: RunKey,
    desk: D,
    trace: Option<Trace>,
) -> (Run, Option<Trace>) {
    let mut world = World::new(scenario, key, desk, trace);
    world.begin();
    world.go_on();
    let (run, trace, _) = world.finish(key);
    (run, trace)
}

/// What is planned for the whole fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    Operate(Operation),
    Crash,
    Restart,
    Jump(i64),
}

struct World<'a, D> {
    scenario: &'a Scenario,
    desk: D,
    bodies: Bodies,
    queue: Queue,
    plans: Vec<Plan>,
    tally: Tally,
    trace: Option<Trace>,
    now_ns: u64,
    /// How far the wall clock is off, and how far it was when it was last believed.
    wall_off_ms: i64,
    believed_ms: i64,
    is_clock_suspect: bool,
    is_latched: bool,
    /// The controller answers nobody before this.
    down_until_ns: u64,
    boots: u128,
    jtis: u128,
    /// The contract's expiration and cooldown.
    expiration_ns: u64,
    cooldown_ns: u64,
    roots: Vec<u32>,
    /// Roots that an operator will start.
    roots_to_come: u32,
    stream: Stream,
    /// Where latencies come from: apart from workers' own numbers, which are the same with and without them.
    delays: Stream,
}

impl<'a, D: Desk> World<'a, D> {
    fn new(scenario: &'a Scenario, key: RunKey, desk: D, trace: Option<Trace>) -> Self {
        let queue = Queue::new(scenario.horizon_ns, pace_ns(scenario));
        Self::within(scenario, key, desk, trace, (Bodies::default(), queue))
    }

    fn within(
        scenario: &'a Scenario,
        key: RunKey,
        desk: D,
        trace: Option<Trace>,
        (mut bodies, queue): (Bodies, Queue),
    ) -> Self {
        bodies.clear();
        let stream = Stream::of_run(key.seed, u64::from(key.stream), u64::from(key.replicate));
        let mut world = Self {
            scenario,
            desk,
            bodies,
            queue,
            plans: Vec::new(),
            tally: Tally::new(scenario.horizon_ns),
            trace,
            now_ns: 0,
            wall_off_ms: 0,
            believed_ms: 0,
            is_clock_suspect: false,
            is_latched: false,
            down_until_ns: 0,
            boots: 1,
            jtis: 0,
            expiration_ns: scenario.contract.expiration.map_or(NEVER, nanoseconds),
            cooldown_ns: nanoseconds(scenario.contract.cooldown),
            roots: Vec::new(),
            roots_to_come: 0,
            stream,
            delays: stream.child(u64::MAX),
        };
        world.place_roots();
        world
    }

    /// Reserves the roots' slots, so that plans can name them.
    fn place_roots(&mut self) {
        let mut ordinal = 0;
        for (at, group) in self.scenario.groups.iter().enumerate() {
            for _ in 0..group.roots {
                let slot = self.bodies.reserve();
                let body = self.bodies.of_mut(slot);
                body.stream = self.stream.child(ordinal);
                body.group = u16::try_from(at).unwrap_or(0);
                self.roots.push(slot);
                ordinal += 1;
            }
        }
    }

    fn begin(&mut self) {
        for (at_ns, operation) in &self.scenario.operations {
            let comes = *operation == Operation::AdmitRoot && *at_ns <= self.scenario.horizon_ns;
            self.roots_to_come += u32::from(comes);
            self.plan(*at_ns, Plan::Operate(*operation));
        }
        for at_ns in &self.scenario.faults.crashes_ns {
            self.plan(*at_ns, Plan::Crash);
        }
        for (at_ns, by_ms) in &self.scenario.faults.clock_jumps {
            self.plan(*at_ns, Plan::Jump(*by_ms));
        }
        for slot in self.roots.clone() {
            self.admit_root(slot);
        }
    }

    fn admit_root(&mut self, slot: u32) {
        let request = RootRequest {
            worker: self.bodies.id(slot),
            jti: self.fresh_jti(),
            asked: Asked::default(),
            need: self.need(slot),
            lifetime: None,
        };
        let now = self.now();
        let outcome = self.desk.admit_root(now, &request);
        // A refusal is in the tally.
        let _ = self.enter(slot, NOBODY, outcome);
    }

    fn go_on(&mut self) {
        loop {
            let next = self.queue.next_ns();
            let timer = self.desk.controller().next_timer();
            let timer = timer
                .filter(|at| self.now_ns >= self.down_until_ns && *at <= self.scenario.horizon_ns);
            match (timer, next) {
                (Some(timer), next) if next.is_none_or(|next| timer <= next) => {
                    self.pass_to(timer.max(self.now_ns));
                    let now = self.now();
                    let outcome = self.desk.tick(now);
                    self.apply(outcome);
                }
                (_, Some(_)) => {
                    let Some(entry) = self.queue.pop() else {
                        return;
                    };
                    self.pass_to(entry.at_ns);
                    self.happen(entry);
                }
                _ => return,
            }
            self.check_conservation();
            let is_over = self.tally.is_extinct() && self.roots_to_come == 0;
            if is_over || self.tally.workers >= self.scenario.max_workers {
                return;
            }
        }
    }

    fn happen(&mut self, entry: Entry) {
        if entry.act() == Act::Plan {
            return self.carry_out(self.plans[entry.slot as usize]);
        }
        let slot = entry.slot;
        if !entry.is_of(self.bodies.of(slot).generation) {
            return;
        }
        match entry.act() {
            Act::Step => self.step(slot),
            Act::Beat => self.beat(slot),
            Act::Report => self.report(slot),
            Act::Exit => self.exit(slot),
            Act::Die => self.die(slot),
            Act::Resist => self.resist(slot),
            Act::Plan => {}
        }
    }

    /// What is left of it: the run, and memory to be used again.
    fn finish(mut self, key: RunKey) -> (Run, Option<Trace>, (D, Bodies, Queue)) {
        let end_ns = if self.tally.is_extinct() {
            self.now_ns
        } else {
            self.now_ns.max(self.reached_ns())
        };
        self.pass_to(end_ns);
        self.close_books();
        let state = self.desk.controller().state();
        self.tally.leaked(state.overdraft());
        let run = self.tally.run(key, self.now_ns, self.is_latched);
        (run, self.trace, (self.desk, self.bodies, self.queue))
    }

    /// Where it stopped: at the horizon, unless there were too many.
    fn reached_ns(&self) -> u64 {
        if self.tally.workers >= self.scenario.max_workers {
            self.now_ns
        } else {
            self.scenario.horizon_ns
        }
    }

    fn now(&self) -> Now {
        let wall = WALL_MS + (self.now_ns / 1_000_000) as i64 + self.wall_off_ms;
        Now {
            boot_ns: self.now_ns,
            wall_ms: u64::try_from(wall).unwrap_or(0),
        }
    }

    fn pass_to(&mut self, at_ns: u64) {
        self.tally.pass(at_ns);
        self.now_ns = at_ns;
    }

    fn plan(&mut self, at_ns: u64, plan: Plan) {
        let number = u32::try_from(self.plans.len()).unwrap_or(NOBODY);
        self.plans.push(plan);
        self.queue.push(at_ns, number, 0, Act::Plan);
    }

    fn later(&mut self, wait_ns: u64, slot: u32, act: Act) {
        let generation = self.bodies.of(slot).generation;
        self.queue
            .push(self.now_ns.saturating_add(wait_ns), slot, generation, act);
    }

    /// How long something takes this time.
    fn delay(&mut self, span: &Span) -> u64 {
        match self.scenario.latency == Latency::NONE {
            true => 0,
            false => span.draw(&mut self.delays),
        }
    }

    fn group(&self, slot: u32) -> &'a Group {
        &self.scenario.groups[self.bodies.of(slot).group as usize]
    }

    fn fresh_jti(&mut self) -> Jti {
        self.jtis += 1;
        Jti(self.jtis)
    }

    fn need(&self, slot: u32) -> Budget {
        let wish = Budget {
            memory_mb: Amount::of(self.group(slot).memory_mb),
            ..Budget::ZERO
        };
        self.scenario.contract.box_need(&wish)
    }

    /// What a parent asks for, for a child in a slot that is reserved.
    fn wish(&mut self, parent: u32, child: u32) -> Request {
        Request {
            parent: self.bodies.id(parent),
            worker: self.bodies.id(child),
            jti: self.fresh_jti(),
            claimed_depth: None,
            asked: Asked::default(),
            need: self.need(parent),
        }
    }

    /// Takes in what the desk decided about a worker to be, for which a slot is reserved.
    fn enter(
        &mut self,
        slot: u32,
        parent: u32,
        outcome: Outcome<Result<Admitted, Denial>>,
    ) -> Result<(), Denial> {
        // It is born before anything else is looked at: a stop condition may end it in the same step.
        if let Ok(admitted) = &outcome.result {
            self.born(slot, parent, admitted);
        }
        self.take_in(outcome.events, &outcome.commands);
        outcome.result.map(|_| ()).inspect_err(|_| {
            self.bodies.release(slot);
        })
    }

    /// Takes in what the desk decided.
    fn apply<T>(&mut self, outcome: Outcome<T>) -> T {
        self.take_in(outcome.events, &outcome.commands);
        outcome.result
    }

    fn take_in(&mut self, events: Vec<Event>, commands: &[Command]) {
        for event in &events {
            self.note(event);
        }
        self.desk.controller_mut().reuse(events);
        for command in commands {
            match command {
                Command::Kill(id, _) => {
                    if let Some(slot) = self.bodies.find(*id) {
                        self.kill(slot);
                    }
                }
                Command::Freeze(id) => self.set_quarantined(*id, true),
                Command::Thaw(id) => self.set_quarantined(*id, false),
            }
        }
    }

    fn note(&mut self, event: &Event) {
        match &event.what {
            What::Refused(refused) => self.tally.refused(refused.code),
            What::Ended { worker, code } => {
                if let Some(slot) = self.bodies.find(*worker) {
                    self.ended(slot, *code);
                }
            }
            _ => {}
        }
    }

    fn set_quarantined(&mut self, id: belljar_replication::WorkerId, is: bool) {
        if let Some(slot) = self.bodies.find(id) {
            let body = self.bodies.of_mut(slot);
            (body.is_quarantined, body.is_frozen) = (is, is);
        }
    }
}

fn nanoseconds(span: std::time::Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(NEVER)
}

/// How long to wait, if a refusal says so.
fn wait_of(denial: &Denial) -> Option<u64> {
    match (&denial.code, &denial.about) {
        (Code::DenyCooldown, Some(About::Wait(ns))) => Some(*ns),
        _ => None,
    }
}

/// Draws a time; for ever is never.
fn draw(span: &Span, stream: &mut Stream) -> Option<u64> {
    let ns = span.draw(stream);
    (ns != NEVER).then_some(ns)
}
