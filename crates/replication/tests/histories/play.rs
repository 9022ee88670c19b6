//! Plays one history to both.

use std::collections::{BTreeMap, BTreeSet};

use belljar_policy::Amount;
use belljar_replication::{
    BootId, Code, Command, Controller, Event, Jti, ManifestFacts, Now, Outcome, Request,
    RootRequest, Scope, State, Status, Usage, WorkerId,
};

use crate::reference::{Reference, Rules};
use crate::steps::{Asking, Step, asked, contract, need};

pub(crate) struct Play {
    pub(crate) controller: Controller,
    pub(crate) reference: Reference,
    wall_ms: u64,
    last_id: u128,
    workers: Vec<WorkerId>,
    manifests: Vec<ManifestFacts>,
    pub(crate) log: Vec<Event>,
    snapshot: (String, usize),
    pub(crate) boxes: BTreeSet<WorkerId>,
    pub(crate) frozen: BTreeSet<WorkerId>,
    pub(crate) answers: BTreeMap<String, u32>,
}

impl Play {
    pub(crate) fn new(rules: Rules) -> Self {
        let now = Now {
            boot_ns: 0,
            wall_ms: 1_000_000,
        };
        let (controller, outcome) =
            Controller::start(State::default(), contract(&rules), BootId(1), now).unwrap();
        let snapshot = (
            serde_json::to_string(controller.state()).unwrap(),
            outcome.events.len(),
        );
        Self {
            controller,
            reference: Reference::new(rules),
            wall_ms: now.wall_ms,
            last_id: 0,
            workers: vec![WorkerId(u128::MAX)],
            manifests: Vec::new(),
            log: outcome.events,
            snapshot,
            boxes: BTreeSet::new(),
            frozen: BTreeSet::new(),
            answers: BTreeMap::new(),
        }
    }

    fn now(&self) -> Now {
        Now {
            boot_ns: self.reference.now_ms * 1_000_000,
            wall_ms: self.wall_ms,
        }
    }

    fn fresh(&mut self) -> u128 {
        self.last_id += 1;
        self.last_id
    }

    /// Mostly one that lives; sometimes one that ended, or never was.
    fn pick(&self, pick: u8) -> WorkerId {
        let living = &self.reference.workers;
        if !pick.is_multiple_of(8) && !living.is_empty() {
            return living[usize::from(pick) % living.len()].id;
        }
        self.workers[usize::from(pick) % self.workers.len()]
    }

    /// Keeps the record and does to the boxes what is commanded.
    fn keep<T>(&mut self, outcome: Outcome<T>) -> T {
        self.log.extend(outcome.events);
        for command in outcome.commands {
            match command {
                Command::Kill(id, _) => {
                    self.boxes.remove(&id);
                    self.frozen.remove(&id);
                }
                Command::Freeze(id) => {
                    self.frozen.insert(id);
                }
                Command::Thaw(id) => {
                    self.frozen.remove(&id);
                }
            }
        }
        outcome.result
    }

    fn compare(
        &mut self,
        what: &str,
        real: Result<WorkerId, Code>,
        expected: Result<(), Code>,
    ) -> Result<(), String> {
        let answer = real.map_or_else(Code::code, |_| "ok");
        *self.answers.entry(format!("{what}:{answer}")).or_default() += 1;
        if real.is_err() != expected.is_err() || real.err() != expected.err() {
            return Err(format!("{what}: {real:?}, the reference says {expected:?}"));
        }
        Ok(())
    }

    pub(crate) fn step(&mut self, step: &Step) -> Result<(), String> {
        match step {
            Step::Root {
                asked: asking,
                need: amount,
            } => self.root(*asking, *amount)?,
            Step::Request {
                parent,
                asked: asking,
                need: amount,
                spoof,
            } => {
                let request = self.ask(*parent, *asking, *amount, *spoof);
                self.request(&request)?;
            }
            Step::Register { grant, forgery } => self.register(*grant, *forgery)?,
            Step::Adopt {
                parent,
                asked: asking,
                need: amount,
            } => self.one_step(*parent, *asking, *amount)?,
            Step::Spend {
                worker,
                cpu,
                tokens,
            } => self.spend(*worker, *cpu, *tokens)?,
            Step::Restart => self.restart(),
            Step::Resume => self.resume(),
            Step::MoveClock(by_ms) => {
                let suspect = *by_ms < -2_000;
                self.wall_ms = self.wall_ms.saturating_add_signed(*by_ms);
                // Moves add up; a settled clock keeps each history's moves apart.
                let outcome = self.controller.tick(self.now());
                self.keep(outcome);
                self.reference.tick();
                self.reference.suspect |= suspect;
                if !suspect {
                    self.wall_ms = self.wall_ms.saturating_add_signed(-*by_ms);
                }
            }
            Step::SetContract { depth, replicas } => {
                self.reference.rules.max_depth = *depth;
                self.reference.rules.max_replicas = *replicas;
                let contract = contract(&self.reference.rules);
                let outcome = self.controller.set_contract(self.now(), contract);
                self.keep(outcome).unwrap();
            }
            _ => self.simple(step),
        }
        self.reference.stop();
        self.same()
    }

    fn simple(&mut self, step: &Step) {
        let now = self.now();
        match *step {
            Step::Tick => {
                let outcome = self.controller.tick(now);
                self.keep(outcome);
                self.reference.tick();
            }
            Step::Wait(ms) => {
                self.reference.now_ms += ms;
                self.wall_ms += ms;
            }
            Step::Beat(pick) => {
                let worker = self.pick(pick);
                let is_live = self.controller.heartbeat(now, worker).is_ok();
                assert_eq!(is_live, self.reference.find(worker).is_some());
                self.reference.beat(worker);
            }
            Step::Started(pick) => {
                let worker = self.pick(pick);
                let outcome = self.controller.started(now, worker);
                self.keep(outcome);
                self.reference
                    .set_status(worker, &[Status::Starting], Status::Running);
            }
            Step::End(pick) => {
                let worker = self.pick(pick);
                let outcome = self.controller.end(now, worker, Code::Exited);
                if self.keep(outcome).is_ok() {
                    self.boxes.remove(&worker);
                    self.frozen.remove(&worker);
                    self.reference.end(worker);
                }
            }
            Step::Quarantine(pick) => {
                let worker = self.pick(pick);
                let outcome = self
                    .controller
                    .quarantine(now, worker, Code::QuarantinedOperator);
                let _ = self.keep(outcome);
                let free = [Status::Starting, Status::Running];
                self.reference
                    .set_status(worker, &free, Status::Quarantined);
            }
            Step::Release(pick) => {
                let worker = self.pick(pick);
                let outcome = self.controller.release(now, worker);
                let _ = self.keep(outcome);
                self.reference
                    .set_status(worker, &[Status::Quarantined], Status::Running);
            }
            Step::KillSubtree(pick) => self.kill(Scope::Subtree(self.pick(pick))),
            Step::KillWorker(pick) => self.kill(Scope::Worker(self.pick(pick))),
            Step::KillFleet => self.kill(Scope::Fleet),
            Step::Reset => {
                let outcome = self.controller.reset_kill_switch(now);
                self.keep(outcome);
                self.reference.latched = false;
            }
            Step::Acknowledge => {
                let outcome = self.controller.acknowledge_clock(now);
                self.keep(outcome);
                self.reference.suspect = false;
            }
            _ => self.revoking(step),
        }
    }

    fn revoking(&mut self, step: &Step) {
        let now = self.now();
        match *step {
            Step::Revoke(pick) => {
                let unborn = self
                    .manifests
                    .get(usize::from(pick))
                    .map(|manifest| manifest.worker);
                let worker = unborn.unwrap_or_else(|| self.pick(pick));
                let outcome = self.controller.revoke(now, worker);
                self.keep(outcome).unwrap();
                self.reference.revoked.push(worker);
                self.reference
                    .promises
                    .retain(|promise| promise.worker != worker);
                self.reference.end_line(worker);
            }
            Step::BumpEpoch => {
                let outcome = self.controller.bump_epoch(now);
                self.reference.epoch = self.keep(outcome);
                self.reference.revoked.clear();
                self.reference.promises.clear();
                self.reference.end_everyone();
            }
            Step::Withdraw(pick) if !self.manifests.is_empty() => {
                let jti = self.manifests[usize::from(pick) % self.manifests.len()].jti;
                let outcome = self.controller.withdraw(now, jti);
                self.keep(outcome);
                self.reference.promises.retain(|promise| promise.jti != jti);
            }
            _ => {}
        }
    }

    fn kill(&mut self, scope: Scope) {
        let outcome = self.controller.engage_kill_switch(self.now(), scope);
        self.keep(outcome);
        self.reference.kill(scope);
    }

    fn root(&mut self, asking: Asking, amount: u64) -> Result<(), String> {
        let request = RootRequest {
            worker: WorkerId(self.fresh()),
            jti: Jti(self.fresh()),
            asked: asked(asking),
            need: need(amount),
            lifetime: None,
        };
        let outcome = self.controller.admit_root(self.now(), &request);
        let real = self
            .keep(outcome)
            .map(|admitted| admitted.worker)
            .map_err(|denial| denial.code);
        let expected = self
            .reference
            .root(request.worker, &request.asked, &request.need);
        self.born(real);
        self.compare("root", real, expected)
    }

    fn ask(&mut self, parent: u8, asking: Asking, amount: u64, spoof: u8) -> Request {
        Request {
            parent: self.pick(parent),
            worker: WorkerId(self.fresh()),
            jti: Jti(self.fresh()),
            claimed_depth: (spoof == 0).then_some(7),
            asked: asked(asking),
            need: need(amount),
        }
    }

    fn request(&mut self, request: &Request) -> Result<(), String> {
        let outcome = self.controller.request(self.now(), request);
        let real = self.keep(outcome).map_err(|denial| denial.code);
        if let Ok(grant) = &real {
            self.manifests.push(grant.manifest());
        }
        let expected = self.expected_grant(request);
        self.compare("issue", real.map(|grant| grant.worker), expected)
    }

    fn expected_grant(&mut self, request: &Request) -> Result<(), Code> {
        let Request {
            parent,
            worker,
            jti,
            claimed_depth,
            asked,
            need,
        } = request;
        self.reference
            .request(*parent, *worker, *jti, *claimed_depth, asked, need)
    }

    fn register(&mut self, grant: u8, forgery: u8) -> Result<(), String> {
        if self.manifests.is_empty() {
            return Ok(());
        }
        // Mostly a late one, which is likely to be outstanding; else any, for replays.
        let back = if grant.is_multiple_of(4) {
            usize::from(grant)
        } else {
            usize::from(grant) % 3
        };
        let count = self.manifests.len();
        let mut manifest = self.manifests[count - 1 - back % count].clone();
        match forgery {
            0 => manifest.depth += 1,
            1 => manifest.granted.tokens = Amount::UNBOUNDED,
            2 => manifest.parent = self.pick(grant),
            3 => manifest.worker = self.pick(grant),
            4 => manifest.epoch = manifest.epoch.wrapping_add(1),
            5 => manifest.jti = Jti(u128::from(grant)),
            _ => {}
        }
        let outcome = self.controller.register(self.now(), &manifest);
        let real = self
            .keep(outcome)
            .map(|admitted| admitted.worker)
            .map_err(|denial| denial.code);
        let expected = self.reference.register(&manifest);
        self.born(real);
        self.compare("register", real, expected)
    }

    fn one_step(&mut self, parent: u8, asking: Asking, amount: u64) -> Result<(), String> {
        let request = self.ask(parent, asking, amount, 1);
        let outcome = self.controller.grant_and_register(self.now(), &request);
        let real = self
            .keep(outcome)
            .map(|admitted| admitted.worker)
            .map_err(|denial| denial.code);
        let expected = self.expected_grant(&request).and_then(|()| {
            let promise = self.reference.promises.last().unwrap().clone();
            let depth = self
                .reference
                .find(request.parent)
                .map_or(0, |parent| parent.depth() + 1);
            let manifest = ManifestFacts {
                worker: promise.worker,
                parent: promise.parent,
                jti: promise.jti,
                depth,
                epoch: self.reference.epoch,
                granted: promise.granted,
            };
            self.reference.register(&manifest)
        });
        self.born(real);
        self.compare("one_step", real, expected)
    }

    fn born(&mut self, worker: Result<WorkerId, Code>) {
        if let Ok(worker) = worker {
            self.workers.push(worker);
            self.boxes.insert(worker);
        }
    }

    fn spend(&mut self, pick: u8, cpu_ms: u64, tokens: u64) -> Result<(), String> {
        let worker = self.pick(pick);
        let usage = Usage {
            cpu_ms,
            tokens,
            micro_usd: 1,
        };
        let outcome = self.controller.report_usage(self.now(), worker, usage);
        let is_over = self.keep(outcome).is_ok_and(|over| over.is_some());
        if is_over {
            *self.answers.entry("spend:over".to_owned()).or_default() += 1;
        }
        match self.reference.spend(worker, [cpu_ms, tokens, 1]) == is_over {
            true => Ok(()),
            false => Err(format!("over budget: {is_over}")),
        }
    }

    /// Stores the state, and starts another controller from it.
    fn restart(&mut self) {
        let text = serde_json::to_string(self.controller.state()).unwrap();
        let state: State = serde_json::from_str(&text).unwrap();
        let contract = contract(&self.reference.rules);
        let (controller, outcome) =
            Controller::start(state, contract, BootId(2), self.now()).unwrap();
        self.controller = controller;
        self.keep(outcome);
        self.reference.restart();
    }

    /// Forgets the controller, and goes on with what its record says. Keeps that as the snapshot to fold from.
    fn resume(&mut self) {
        let snapshot: State = serde_json::from_str(&self.snapshot.0).unwrap();
        let state = snapshot.fold(&self.log[self.snapshot.1..]).unwrap();
        assert!(state == *self.controller.state());
        self.controller = Controller::resume(state, self.now()).unwrap();
        self.snapshot = (
            serde_json::to_string(self.controller.state()).unwrap(),
            self.log.len(),
        );
        self.reference.all_beat();
    }
}
