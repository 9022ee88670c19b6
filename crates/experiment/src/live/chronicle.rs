//! A live run told from the controller's record, by the times that stand in it, and judged by the contract.

use std::collections::BTreeMap;

use belljar_replication::{Code, Event, Scope, What, WorkerId};

use crate::referee::Control;
use crate::scenario::Scenario;
use crate::tally::{LifeSummary, Run, Tally, Trace};
use crate::world::RunKey;

const NEVER: u64 = u64::MAX;
/// How late a timer of the real controller may be.
const SLACK_NS: u64 = 2_000_000_000;

/// What was seen from outside, by somebody who asks the controller nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// The kill switch, if it was pulled.
    pub switch: Option<Switched>,
}

/// What a kill switch did, as seen in the process table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switched {
    /// When it was pulled, on the boot clock.
    pub at_ns: u64,
    /// When no process of the family was left.
    pub gone_ns: Option<u64>,
    /// Boxes with a process that was left when patience ended.
    pub survivors: u64,
}

#[derive(Debug)]
struct Known {
    parent: Option<WorkerId>,
    depth: u32,
    born_step: u8,
    born_ns: u64,
    expires_ns: u64,
    last_child_ns: u64,
    children: u32,
    live_children: u32,
    is_quarantined: bool,
}

impl Known {
    fn life(&self, now_ns: u64) -> LifeSummary {
        LifeSummary {
            born_step: self.born_step,
            children: self.children,
            is_root: self.parent.is_none(),
            depth: self.depth,
            age_ns: now_ns.saturating_sub(self.born_ns),
        }
    }
}

struct Chronicler<'a> {
    scenario: &'a Scenario,
    tally: Tally,
    trace: Trace,
    alive: BTreeMap<WorkerId, Known>,
    promised: BTreeMap<WorkerId, WorkerId>,
    is_latched: bool,
    origin_ns: Option<u64>,
    /// Killed by the switch, and not known to be dead yet.
    dying: u64,
}

/// Folds the record of one live run. What came after the horizon is left out.
#[must_use]
pub fn chronicle(
    scenario: &Scenario,
    key: RunKey,
    events: impl IntoIterator<Item = Event>,
    observed: &Observed,
) -> (Run, Trace) {
    let mut chronicler = Chronicler {
        scenario,
        tally: Tally::new(scenario.horizon_ns),
        trace: Trace::default(),
        alive: BTreeMap::new(),
        promised: BTreeMap::new(),
        is_latched: false,
        origin_ns: None,
        dying: 0,
    };
    let mut last_ns = 0;
    for event in events {
        // The run begins with its first root.
        if matches!(event.what, What::RootAdmitted(_)) && chronicler.origin_ns.is_none() {
            chronicler.origin_ns = Some(event.at.boot_ns);
        }
        let Some(origin) = chronicler.origin_ns else {
            continue;
        };
        let at_ns = event.at.boot_ns.saturating_sub(origin);
        if at_ns > scenario.horizon_ns {
            break;
        }
        last_ns = at_ns;
        chronicler.tally.pass(at_ns);
        chronicler.take(at_ns, &event.what);
    }
    chronicler.close(key, last_ns, observed)
}

impl Chronicler<'_> {
    fn take(&mut self, at_ns: u64, what: &What) {
        match what {
            What::RootAdmitted(root) => {
                let expires_ns = self.since_origin(root.expires_ns);
                self.born(at_ns, root.worker, None, expires_ns);
            }
            What::Issued(grant) => {
                self.promised.insert(grant.worker, grant.parent);
            }
            What::Registered {
                worker, expires_ns, ..
            } => {
                let parent = self.promised.remove(worker);
                self.tally
                    .findings
                    .expect(Control::SingleUse, parent.is_some());
                let expires_ns = self.since_origin(*expires_ns);
                self.born(at_ns, *worker, parent, expires_ns);
            }
            What::Refused(refused) => self.tally.refused(refused.code),
            What::Ended { worker, code } => self.ended(at_ns, *worker, *code),
            What::Quarantined { worker, .. } => self.quarantine(*worker, true),
            What::Released { worker } => self.quarantine(*worker, false),
            What::KillSwitchEngaged {
                scope: Scope::Fleet,
            } => {
                self.is_latched = true;
                self.tally.switch_pulled(at_ns);
            }
            What::KillSwitchReset {} => self.is_latched = false,
            _ => {}
        }
    }

    fn since_origin(&self, expires_ns: Option<u64>) -> u64 {
        expires_ns.map_or(NEVER, |ns| ns.saturating_sub(self.origin_ns.unwrap_or(0)))
    }

    fn quarantine(&mut self, worker: WorkerId, is: bool) {
        if let Some(known) = self.alive.get_mut(&worker) {
            known.is_quarantined = is;
        }
    }

    fn born(&mut self, at_ns: u64, worker: WorkerId, parent: Option<WorkerId>, expires_ns: u64) {
        let contract = &self.scenario.contract;
        let found = &mut self.tally.findings;
        found.expect(Control::KillSwitchLatch, !self.is_latched);
        let mut depth = 0;
        if let Some(parent) = parent {
            let above = self.alive.get_mut(&parent);
            found.expect(Control::ParentKnown, above.is_some());
            if let Some(above) = above {
                depth = above.depth + 1;
                let cooldown_ns = u64::try_from(contract.cooldown.as_nanos()).unwrap_or(NEVER);
                let is_cool = above.last_child_ns == NEVER
                    || at_ns.saturating_sub(above.last_child_ns) >= cooldown_ns;
                found.expect(Control::Cooldown, is_cool);
                found.expect(Control::Depth, depth <= contract.max_depth);
                found.expect(Control::Quarantine, !above.is_quarantined);
                found.expect(Control::Expiry, expires_ns <= above.expires_ns);
                let age_ns = at_ns.saturating_sub(above.born_ns);
                self.tally.child(at_ns, above.depth, age_ns);
                above.children += 1;
                above.live_children += 1;
                above.last_child_ns = at_ns;
            }
        }
        let born_step = self.tally.step_of(at_ns);
        self.tally.born(born_step, depth, 0);
        let live = self.tally.registered;
        self.tally
            .findings
            .expect(Control::Quota, live <= u64::from(contract.max_replicas));
        self.trace.born(worker, parent, depth, at_ns);
        self.alive.insert(
            worker,
            Known {
                parent,
                depth,
                born_step,
                born_ns: at_ns,
                expires_ns,
                last_child_ns: NEVER,
                children: 0,
                live_children: 0,
                is_quarantined: false,
            },
        );
    }

    fn ended(&mut self, at_ns: u64, worker: WorkerId, code: Code) {
        let Some(known) = self.alive.remove(&worker) else {
            // Whoever ends must have lived.
            return self.tally.findings.broken(Control::Conservation);
        };
        let must_follow =
            self.scenario.contract.on_parent_exit == belljar_policy::OnParentExit::Kill;
        let found = &mut self.tally.findings;
        found.expect(
            Control::ParentExit,
            !must_follow || known.live_children == 0,
        );
        let limit_ns = known.expires_ns.saturating_add(SLACK_NS);
        found.expect(Control::Expiry, at_ns <= limit_ns);
        if let Some(above) = known.parent.and_then(|parent| self.alive.get_mut(&parent)) {
            above.live_children = above.live_children.saturating_sub(1);
        }
        self.tally.ended(code, known.life(at_ns), 0);
        self.trace.ended(worker, code, at_ns);
        if code == Code::KilledKillSwitch {
            self.dying += 1;
        } else {
            self.tally.stopped(at_ns, NEVER);
        }
    }

    /// Boxes that the switch killed are gone when the process table says so; what it still shows survived.
    fn close(mut self, key: RunKey, last_ns: u64, observed: &Observed) -> (Run, Trace) {
        let origin = self.origin_ns.unwrap_or(0);
        let mut end_ns = last_ns;
        if let Some(switch) = observed.switch {
            let at_ns = switch.at_ns.saturating_sub(origin);
            let gone_ns = switch
                .gone_ns
                .map_or(last_ns, |ns| ns.saturating_sub(origin))
                .max(last_ns);
            let survivors = switch.survivors.min(self.dying);
            self.tally
                .findings
                .expect(Control::KillSwitchKills, switch.survivors == 0);
            self.tally.pass(gone_ns);
            for _ in survivors..self.dying {
                self.tally.stopped(gone_ns, at_ns);
            }
            end_ns = gone_ns;
        }
        if !self.tally.is_extinct() {
            end_ns = self.scenario.horizon_ns;
        }
        for known in self.alive.values() {
            self.tally.cohort(known.life(end_ns), true);
        }
        self.tally.pass(end_ns);
        let run = self.tally.run(key, end_ns, self.is_latched);
        (run, self.trace)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use belljar_policy::{Budget, Contract};
    use belljar_replication::{Issued, Jti, Now, Refused, RootAdmitted, Share, Step};

    use super::*;
    use crate::scenario::{Group, Strategy};
    use crate::tally::RunEnd;

    const SECOND: u64 = 1_000_000_000;
    /// The boot clock does not begin with the run.
    const ORIGIN: u64 = 77 * SECOND;
    const KEY: RunKey = RunKey {
        seed: 1,
        cell: 0,
        replicate: 0,
        stream: 0,
    };
    const SHARE: Share = Share {
        granted: Budget::ZERO,
        own: Budget::ZERO,
    };

    fn scenario() -> Scenario {
        let contract = Contract::new(1, 3, Duration::from_secs(2), Some(Duration::from_secs(30)));
        Scenario::new(contract, Group::new(Strategy::Greedy), 60 * SECOND)
    }

    fn at(seconds: u64, what: What) -> Event {
        let now = Now {
            boot_ns: ORIGIN + seconds * SECOND,
            wall_ms: 0,
        };
        Event::new(now, what)
    }

    fn root(seconds: u64, id: u128) -> Event {
        let root = RootAdmitted {
            jti: Jti(id),
            worker: WorkerId(id),
            share: SHARE,
            expires_ns: Some(ORIGIN + 30 * SECOND),
        };
        at(seconds, What::RootAdmitted(Box::new(root)))
    }

    fn child(seconds: u64, id: u128, parent: u128) -> [Event; 2] {
        let issued = Issued {
            jti: Jti(id),
            worker: WorkerId(id),
            parent: WorkerId(parent),
            share: SHARE,
            lapses_ns: u64::MAX,
        };
        let registered = What::Registered {
            jti: Jti(id),
            worker: WorkerId(id),
            expires_ns: Some(ORIGIN + 30 * SECOND),
        };
        [
            at(seconds, What::Issued(Box::new(issued))),
            at(seconds, registered),
        ]
    }

    fn end(seconds: u64, id: u128, code: Code) -> Event {
        let worker = WorkerId(id);
        at(seconds, What::Ended { worker, code })
    }

    fn pulled(seconds: u64) -> Event {
        let scope = Scope::Fleet;
        at(seconds, What::KillSwitchEngaged { scope })
    }

    fn told(events: Vec<Event>, observed: &Observed) -> Run {
        chronicle(&scenario(), KEY, events, observed).0
    }

    #[test]
    fn a_record_says_what_a_run_says() {
        let mut events = vec![root(0, 1)];
        events.extend(child(1, 2, 1));
        events.extend(child(3, 3, 1));
        let refused = Refused {
            code: Code::DenyQuota,
            step: Step::Issue,
            worker: WorkerId(4),
            parent: Some(WorkerId(1)),
            jti: Jti(4),
            detail: None,
        };
        events.push(at(6, What::Refused(Box::new(refused))));
        events.push(end(9, 2, Code::Exited));
        // After the horizon nothing counts.
        events.push(end(61, 1, Code::Shutdown));
        let (run, trace) = chronicle(&scenario(), KEY, events, &Observed::default());
        assert_eq!((run.workers, run.peak, run.alive, run.depth), (3, 3, 2, 1));
        assert_eq!((run.roots, run.root_children), (1, 2));
        assert_eq!(run.end, RunEnd::Horizon);
        assert_eq!(run.denials["deny_quota"], 1);
        assert_eq!(run.population[..5], [1, 2, 2, 3, 3]);
        assert!(run.broken.is_empty(), "{:?}", run.broken);
        assert_eq!(trace.lives[1].ended, Some(9.0));
    }

    #[test]
    fn what_the_record_should_not_hold_is_named() {
        let broken = |more: Vec<Event>| {
            let mut events = vec![root(0, 1)];
            events.extend(more);
            let run = told(events, &Observed::default());
            run.broken.into_keys().collect::<Vec<_>>()
        };
        let chain = |list: &[[Event; 2]]| list.concat();
        assert_eq!(
            broken(chain(&[child(3, 2, 1), child(4, 3, 1)])),
            ["cooldown"]
        );
        assert_eq!(broken(chain(&[child(3, 2, 1), child(6, 3, 2)])), ["depth"]);
        let many = [child(3, 2, 1), child(6, 3, 1), child(9, 4, 1)];
        assert_eq!(broken(chain(&many)), ["quota"]);
        assert_eq!(broken(child(3, 2, 9).to_vec()), ["parent_known"]);
        assert_eq!(broken(vec![child(3, 2, 1)[1].clone()]), ["single_use"]);
        assert_eq!(broken(vec![end(33, 1, Code::Exited)]), ["expiry"]);
        assert_eq!(broken(vec![end(3, 8, Code::Exited)]), ["conservation"]);
        let mut late = vec![pulled(2)];
        late.extend(child(3, 2, 1));
        assert_eq!(broken(late), ["kill_switch_latch"]);
        let mut orphan = child(3, 2, 1).to_vec();
        orphan.push(end(4, 1, Code::Exited));
        assert_eq!(broken(orphan), ["parent_exit"]);
    }

    #[test]
    fn the_process_table_says_who_survived_the_switch() {
        let events = || vec![root(0, 1), pulled(5), end(5, 1, Code::KilledKillSwitch)];
        let switch = |gone_ns, survivors| Observed {
            switch: Some(Switched {
                at_ns: ORIGIN + 5 * SECOND,
                gone_ns,
                survivors,
            }),
        };
        let run = told(events(), &switch(Some(ORIGIN + 6 * SECOND), 0));
        assert_eq!(run.containment_seconds, Some(1.0));
        assert_eq!((run.kill_max_seconds, run.survivors), (1.0, 0));
        assert!(run.broken.is_empty());
        let run = told(events(), &switch(None, 1));
        assert_eq!((run.containment_seconds, run.survivors), (None, 1));
        assert!(run.broken.contains_key("kill_switch_kills"));
    }
}
