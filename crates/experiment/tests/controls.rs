//! The referee finds out a controller that lets something pass, and names what. Each desk below takes one enforcement out.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use belljar_experiment::law::Span;
use belljar_experiment::referee::Control;
use belljar_experiment::{
    Desk, Group, Operation, RunKey, Scenario, Strategy, open, simulate, simulate_at,
};
use belljar_policy::{Amount, Budget, Contract, OnParentExit, OnTrigger, StopCondition};
use belljar_replication::{
    Admitted, Asked, Code, Controller, Denial, Event, Grant, Jti, ManifestFacts, NotAlive, Now,
    Outcome, Request, RootRequest, What, WorkerId,
};

const SECOND: u64 = 1_000_000_000;
const KEY: RunKey = RunKey {
    seed: 5,
    cell: 0,
    replicate: 0,
    stream: 0,
};

/// Which enforcement is taken out.
#[derive(Clone, Copy, Debug)]
enum Hole {
    None,
    /// The contract in force is another than the one that was agreed on.
    Contract(fn(&mut Contract)),
    LatchOpens,
    SwitchKillsNobody,
    QuarantineIgnored,
    ClockHidden,
    ReplayAccepted,
    MismatchAccepted,
    DepthBelieved,
    OrphansWelcome,
    /// Whoever exits is said to have ended, and goes on being counted.
    EndsForgotten,
}

struct Weakened {
    inner: Controller,
    hole: Hole,
    fresh: u128,
}

impl Weakened {
    fn clock(&self, now: Now) -> Now {
        match self.hole {
            Hole::ClockHidden => Now {
                wall_ms: 1_700_000_000_000 + now.boot_ns / 1_000_000,
                ..now
            },
            _ => now,
        }
    }

    /// Lets somebody in under a number that was never used.
    fn let_in(&mut self, now: Now, manifest: &ManifestFacts) -> Outcome<Result<Admitted, Denial>> {
        self.fresh += 1;
        let request = Request {
            parent: manifest.parent,
            worker: manifest.worker,
            jti: Jti(u128::MAX - self.fresh),
            claimed_depth: None,
            asked: Asked::default(),
            need: Budget::ZERO,
        };
        self.inner.grant_and_register(now, &request)
    }

    /// Registers with what the grant says, whatever the manifest says.
    fn by_grant(
        &mut self,
        now: Now,
        manifest: &ManifestFacts,
    ) -> Outcome<Result<Admitted, Denial>> {
        let grant = self
            .inner
            .state()
            .grants()
            .find(|grant| grant.jti == manifest.jti);
        let Some(grant) = grant else {
            return self.inner.register(now, manifest);
        };
        let depth = self
            .inner
            .state()
            .worker(grant.parent)
            .map_or(0, |parent| parent.depth + 1);
        let honest = ManifestFacts {
            worker: grant.worker,
            parent: grant.parent,
            jti: grant.jti,
            depth,
            epoch: self.inner.state().epoch(),
            granted: grant.share.granted,
        };
        self.inner.register(now, &honest)
    }
}

impl Desk for Weakened {
    fn controller(&self) -> &Controller {
        &self.inner
    }

    fn controller_mut(&mut self) -> &mut Controller {
        &mut self.inner
    }

    fn grant_and_register(
        &mut self,
        now: Now,
        request: &Request,
    ) -> Outcome<Result<Admitted, Denial>> {
        let now = self.clock(now);
        self.inner.grant_and_register(now, request)
    }

    fn request(&mut self, now: Now, request: &Request) -> Outcome<Result<Grant, Denial>> {
        let mut request = request.clone();
        if matches!(self.hole, Hole::DepthBelieved) {
            request.claimed_depth = None;
        }
        let now = self.clock(now);
        self.inner.request(now, &request)
    }

    fn register(
        &mut self,
        now: Now,
        manifest: &ManifestFacts,
    ) -> Outcome<Result<Admitted, Denial>> {
        let now = self.clock(now);
        match self.hole {
            Hole::MismatchAccepted if manifest.depth > 0 => return self.by_grant(now, manifest),
            Hole::DepthBelieved if manifest.depth == 0 => return self.by_grant(now, manifest),
            _ => {}
        }
        let outcome = self.inner.register(now, manifest);
        match (
            &self.hole,
            outcome.result.as_ref().map_err(|denial| denial.code),
        ) {
            (Hole::ReplayAccepted, Err(Code::RejectReplay)) => self.let_in(now, manifest),
            (Hole::OrphansWelcome, Err(Code::DenyParentUnknown)) => {
                let root = RootRequest {
                    worker: manifest.worker,
                    jti: manifest.jti,
                    asked: Asked::default(),
                    need: Budget::ZERO,
                    lifetime: None,
                };
                self.inner.admit_root(now, &root)
            }
            _ => outcome,
        }
    }

    fn end(&mut self, now: Now, worker: WorkerId, code: Code) -> Outcome<Result<(), NotAlive>> {
        let now = self.clock(now);
        if matches!(self.hole, Hole::EndsForgotten) {
            return Outcome {
                result: Ok(()),
                events: vec![Event::new(now, What::Ended { worker, code })],
                commands: Vec::new(),
            };
        }
        self.inner.end(now, worker, code)
    }

    fn tick(&mut self, now: Now) -> Outcome<usize> {
        let now = self.clock(now);
        self.inner.tick(now)
    }

    fn engage_kill_switch(&mut self, now: Now) -> Outcome<usize> {
        if matches!(self.hole, Hole::SwitchKillsNobody) {
            return self.inner.tick(now);
        }
        let outcome = self
            .inner
            .engage_kill_switch(now, belljar_replication::Scope::Fleet);
        if matches!(self.hole, Hole::LatchOpens) {
            // A root is back at once, as if nothing had been pulled.
            let _ = self.inner.reset_kill_switch(now);
        }
        outcome
    }

    fn quarantine(&mut self, now: Now, worker: WorkerId) -> Outcome<Result<bool, NotAlive>> {
        if matches!(self.hole, Hole::QuarantineIgnored) {
            let outcome = self.inner.tick(now);
            return Outcome {
                result: Ok(false),
                events: outcome.events,
                commands: outcome.commands,
            };
        }
        self.inner
            .quarantine(now, worker, Code::QuarantinedOperator)
    }
}

/// What each adversary is put under: every control has somebody who tries it.
fn suite() -> Vec<Scenario> {
    let mut contract = Contract::new(3, 12, Duration::from_secs(2), Some(Duration::from_secs(40)));
    contract.heartbeat_timeout = Some(Duration::from_secs(9));
    contract.budget.memory_mb = Amount::of(640);
    contract.stop_conditions.push(StopCondition {
        name: "crowd".to_owned(),
        when: "workers.active >= 11".to_owned(),
        on_trigger: OnTrigger::Deny,
        line: 0,
    });
    let mut suite = Vec::new();
    for strategy in Strategy::ADVERSARIES {
        let group = Group {
            memory_mb: 64,
            ..Group::new(strategy)
        };
        let mut scenario = Scenario::new(contract.clone(), group, 60 * SECOND);
        scenario.stop_peak = Some(11);
        scenario.operations = vec![
            (30 * SECOND, Operation::KillSwitch),
            (31 * SECOND, Operation::AdmitRoot),
        ];
        suite.push(scenario.clone());
        // Another time without what stops it first.
        scenario.contract.stop_conditions.clear();
        scenario.contract.budget = Budget::UNBOUNDED;
        scenario.contract.cooldown = Duration::ZERO;
        scenario.stop_peak = None;
        scenario.operations.clear();
        suite.push(scenario);
    }
    let plain = |strategy| {
        Scenario::new(
            contract.clone(),
            Group {
                memory_mb: 64,
                ..Group::new(strategy)
            },
            60 * SECOND,
        )
    };
    // Somebody who says nothing, somebody whose parent exits, somebody who goes on in quarantine.
    let mut silent = plain(Strategy::Greedy);
    silent.faults.lost_heartbeats = 1.0;
    suite.push(silent);
    let mut short = plain(Strategy::Greedy);
    short.groups[0].lifetime = Span::Exponential(10.0);
    suite.push(short);
    let mut frozen = plain(Strategy::QuotaRacer);
    frozen.operations = vec![(3 * SECOND, Operation::QuarantineRoots)];
    suite.push(frozen);
    // A budget that is the first bound that is met.
    let mut poor = plain(Strategy::Greedy);
    poor.contract.stop_conditions.clear();
    poor.contract.budget.replicas = Amount::of(4);
    suite.push(poor);
    suite
}

/// The controls that the suite finds broken with an enforcement taken out.
fn verdict(hole: Hole) -> Vec<String> {
    let mut broken = Vec::new();
    for scenario in suite() {
        let mut in_force = scenario.clone();
        if let Hole::Contract(weaken) = hole {
            weaken(&mut in_force.contract);
        }
        let desk = Weakened {
            inner: open(&in_force).unwrap(),
            hole,
            fresh: 0,
        };
        let (run, _) = simulate_at(&scenario, KEY, desk, None);
        broken.extend(run.broken.into_keys());
    }
    broken.sort();
    broken.dedup();
    broken
}

#[test]
fn nothing_is_broken_by_the_controller_as_it_is() {
    assert_eq!(verdict(Hole::None), Vec::<String>::new());
    for scenario in suite() {
        // Through the desk that only passes on and without it, the result is the same.
        let desk = Weakened {
            inner: open(&scenario).unwrap(),
            hole: Hole::None,
            fresh: 0,
        };
        assert_eq!(
            simulate_at(&scenario, KEY, desk, None).0,
            simulate(&scenario, KEY).unwrap()
        );
    }
}

#[test]
fn each_enforcement_that_is_taken_out_is_named() {
    let holes: [(Hole, Control); 17] = [
        (
            Hole::Contract(|contract| contract.max_replicas = 100),
            Control::Quota,
        ),
        (
            Hole::Contract(|contract| contract.cooldown = Duration::ZERO),
            Control::Cooldown,
        ),
        (
            Hole::Contract(|contract| contract.max_depth = 50),
            Control::Depth,
        ),
        (
            Hole::Contract(|contract| contract.expiration = None),
            Control::Expiry,
        ),
        (
            Hole::Contract(|contract| contract.heartbeat_timeout = None),
            Control::Heartbeat,
        ),
        (
            Hole::Contract(|contract| contract.on_parent_exit = OnParentExit::Keep),
            Control::ParentExit,
        ),
        (
            Hole::Contract(|contract| contract.stop_conditions.clear()),
            Control::StopCondition,
        ),
        (
            Hole::Contract(|contract| contract.budget = Budget::UNBOUNDED),
            Control::Budget,
        ),
        (Hole::LatchOpens, Control::KillSwitchLatch),
        (Hole::SwitchKillsNobody, Control::KillSwitchKills),
        (Hole::QuarantineIgnored, Control::Quarantine),
        (Hole::ClockHidden, Control::Clock),
        (Hole::ReplayAccepted, Control::SingleUse),
        (Hole::MismatchAccepted, Control::Manifest),
        (Hole::DepthBelieved, Control::DepthSpoof),
        (Hole::OrphansWelcome, Control::ParentKnown),
        (Hole::EndsForgotten, Control::Conservation),
    ];
    // Nothing that the referee can name is left out.
    for control in Control::ALL {
        assert!(holes.iter().any(|(_, own)| own == control), "{control:?}");
    }
    for (hole, control) in holes {
        let broken = verdict(hole);
        assert!(
            broken.iter().any(|name| name == control.code()),
            "{hole:?}: {broken:?} lacks {}",
            control.code()
        );
    }
}
