//! The threat suite: what an agent, a forger or an accident may try, and that each of it fails.
//!
//! Every threat is a function that says whether the controller held. [`mutation`] runs all of them once more
//! for every enforcement that can be taken out, and demands that at least one of them notices.

mod budgets;
mod bystanders;
mod grants;
mod mutation;
mod stopping;
mod switches;
mod timing;

use std::time::Duration;

use belljar_policy::{Amount, Budget, Contract};

use crate::*;

/// Whether the controller held; if not, what got through.
type Held = Result<(), String>;
/// A threat, by name.
type Threat = (&'static str, fn() -> Held);

/// Every threat there is.
fn all() -> impl Iterator<Item = &'static Threat> {
    let lists = [
        budgets::ALL,
        bystanders::ALL,
        grants::ALL,
        stopping::ALL,
        switches::ALL,
        timing::ALL,
    ];
    lists.into_iter().flatten()
}

/// A controller with a clock and a supply of ids.
struct Bench {
    controller: Controller,
    boot_ms: u64,
    wall_ms: u64,
    ids: u128,
    log: Vec<Event>,
    commands: Vec<Command>,
}

fn contract(max_depth: u32, max_replicas: u32) -> Contract {
    Contract::new(max_depth, max_replicas, Duration::ZERO, None)
}

fn millis(ms: u64) -> Option<Duration> {
    Some(Duration::from_millis(ms))
}

fn tokens(number: u64) -> Asked {
    Asked {
        tokens: Some(Amount::of(number)),
        ..Asked::default()
    }
}

fn used_tokens(tokens: u64) -> Usage {
    Usage {
        tokens,
        ..Usage::default()
    }
}

impl Bench {
    fn new(contract: Contract) -> Result<Self, String> {
        let now = Now {
            boot_ns: 0,
            wall_ms: 1_000_000,
        };
        let (controller, outcome) = Controller::start(State::default(), contract, BootId(1), now)
            .map_err(|error| format!("{error}: {}", error.problem))?;
        Ok(Self {
            controller,
            boot_ms: 0,
            wall_ms: 1_000_000,
            ids: 100,
            log: outcome.events,
            commands: Vec::new(),
        })
    }

    fn now(&self) -> Now {
        Now {
            boot_ns: self.boot_ms * 1_000_000,
            wall_ms: self.wall_ms,
        }
    }

    fn wait(&mut self, ms: u64) {
        self.boot_ms += ms;
        self.wall_ms += ms;
    }

    fn id(&mut self) -> u128 {
        self.ids += 1;
        self.ids
    }

    /// Keeps what came out of a step.
    fn keep<T>(&mut self, outcome: Outcome<T>) -> T {
        self.log.extend(outcome.events);
        self.commands.extend(outcome.commands);
        outcome.result
    }

    fn root(&mut self) -> Result<WorkerId, Code> {
        self.root_with(Asked::default())
    }

    fn root_with(&mut self, asked: Asked) -> Result<WorkerId, Code> {
        let request = RootRequest {
            worker: WorkerId(self.id()),
            jti: Jti(self.id()),
            asked,
            need: Budget::ZERO,
            lifetime: None,
        };
        let outcome = self.controller.admit_root(self.now(), &request);
        self.keep(outcome)
            .map(|admitted| admitted.worker)
            .map_err(|denial| denial.code)
    }

    fn ask(&mut self, parent: WorkerId, asked: Asked) -> Request {
        Request {
            parent,
            worker: WorkerId(self.id()),
            jti: Jti(self.id()),
            claimed_depth: None,
            asked,
            need: Budget::ZERO,
        }
    }

    fn request(&mut self, request: &Request) -> Result<Grant, Code> {
        let outcome = self.controller.request(self.now(), request);
        self.keep(outcome).map_err(|denial| denial.code)
    }

    fn grant(&mut self, parent: WorkerId) -> Result<Grant, Code> {
        self.grant_with(parent, Asked::default())
    }

    fn grant_with(&mut self, parent: WorkerId, asked: Asked) -> Result<Grant, Code> {
        let request = self.ask(parent, asked);
        self.request(&request)
    }

    fn register(&mut self, manifest: &ManifestFacts) -> Result<WorkerId, Code> {
        let outcome = self.controller.register(self.now(), manifest);
        self.keep(outcome)
            .map(|admitted| admitted.worker)
            .map_err(|denial| denial.code)
    }

    fn child(&mut self, parent: WorkerId) -> Result<WorkerId, Code> {
        self.child_with(parent, Asked::default())
    }

    fn child_with(&mut self, parent: WorkerId, asked: Asked) -> Result<WorkerId, Code> {
        let grant = self.grant_with(parent, asked)?;
        self.register(&grant.manifest())
    }

    fn tick(&mut self) -> usize {
        let outcome = self.controller.tick(self.now());
        self.keep(outcome)
    }

    fn end(&mut self, worker: WorkerId, code: Code) {
        let outcome = self.controller.end(self.now(), worker, code);
        let _ = self.keep(outcome);
    }

    /// Its keeper is gone.
    fn lose(&mut self, worker: WorkerId) {
        let outcome = self.controller.lose(self.now(), worker);
        let _ = self.keep(outcome);
    }

    fn kill(&mut self, scope: Scope) -> usize {
        let outcome = self.controller.engage_kill_switch(self.now(), scope);
        self.keep(outcome)
    }

    fn set_contract(&mut self, contract: Contract) {
        let outcome = self.controller.set_contract(self.now(), contract);
        let _ = self.keep(outcome);
    }

    fn quarantine(&mut self, worker: WorkerId) {
        let outcome = self
            .controller
            .quarantine(self.now(), worker, Code::QuarantinedOperator);
        let _ = self.keep(outcome);
    }

    fn usage(&mut self, worker: WorkerId, usage: Usage) -> Option<OverBudget> {
        let outcome = self.controller.report_usage(self.now(), worker, usage);
        self.keep(outcome).ok().flatten()
    }

    /// Stores the state, forgets the controller and starts another, in another boot.
    fn restart(&mut self, boot_ms: u64) -> Held {
        let contract = self.controller.state().contract().clone();
        let text = serde_json::to_string(self.controller.state()).map_err(|e| e.to_string())?;
        let state = serde_json::from_str(&text).map_err(|e| e.to_string())?;
        self.boot_ms = boot_ms;
        let (controller, outcome) =
            Controller::start(state, contract, BootId(2), self.now()).map_err(|e| e.to_string())?;
        self.controller = controller;
        self.keep(outcome);
        Ok(())
    }

    fn is_live(&self, worker: WorkerId) -> bool {
        self.controller.state().worker(worker).is_some()
    }

    fn live(&self) -> usize {
        self.controller.state().live()
    }

    /// How a worker ended, if it did.
    fn ended(&self, worker: WorkerId) -> Option<Code> {
        let mut ended = self.controller.state().ended();
        ended
            .find(|obituary| obituary.worker == worker)
            .map(|obituary| obituary.code)
    }

    fn refusals(&self, code: Code) -> usize {
        let is_it =
            |event: &&Event| matches!(&event.what, What::Refused(refused) if refused.code == code);
        self.log.iter().filter(is_it).count()
    }
}

/// Fails the threat with what got through.
fn held(is_so: bool, otherwise: &str) -> Held {
    if is_so {
        Ok(())
    } else {
        Err(otherwise.to_owned())
    }
}

/// The answer must be exactly this refusal.
fn refused<T>(answer: Result<T, Code>, code: Code) -> Held {
    match answer {
        Err(found) if found == code => Ok(()),
        Err(found) => Err(format!("{} instead of {}", found.code(), code.code())),
        Ok(_) => Err(format!("let through instead of {}", code.code())),
    }
}

impl From<Code> for String {
    fn from(code: Code) -> Self {
        format!("refused with {}", code.code())
    }
}
