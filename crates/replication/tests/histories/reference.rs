//! A second controller, written to be obviously right and slow: plain vectors, every number computed from
//! scratch each time it is asked for. It shares nothing with the real one but the names of things.

use belljar_policy::{Amount, Budget, Dimension};
use belljar_replication::{Asked, Code, Jti, ManifestFacts, Scope, Status, WorkerId};

pub(crate) const LAPSE_MS: u64 = 30_000;

#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(crate) max_depth: u32,
    pub(crate) max_replicas: u32,
    pub(crate) cooldown_ms: u64,
    pub(crate) expiration_ms: Option<u64>,
    pub(crate) silence_ms: Option<u64>,
    pub(crate) keeps_orphans: bool,
    pub(crate) budget: Budget,
    /// No grants while so many live.
    pub(crate) crowd: u64,
    /// Whoever used more tokens is killed.
    pub(crate) glutton: u64,
    /// Everyone is frozen when more tokens were used by all.
    pub(crate) feast: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Worker {
    pub(crate) id: WorkerId,
    /// The line of parents as it was at birth, nearest first, dead ones too.
    pub(crate) line: Vec<WorkerId>,
    pub(crate) status: Status,
    pub(crate) granted: Budget,
    pub(crate) own: Budget,
    /// CPU, tokens, money: by itself and by those charged to it that ended.
    pub(crate) used: [u64; 3],
    pub(crate) expires_ms: Option<u64>,
    last_child_ms: Option<u64>,
    beat_ms: u64,
}

impl Worker {
    pub(crate) fn depth(&self) -> u32 {
        self.line.len() as u32
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Promise {
    pub(crate) jti: Jti,
    pub(crate) worker: WorkerId,
    pub(crate) parent: WorkerId,
    pub(crate) granted: Budget,
    own: Budget,
    lapses_ms: u64,
}

pub(crate) struct Reference {
    pub(crate) rules: Rules,
    pub(crate) now_ms: u64,
    pub(crate) workers: Vec<Worker>,
    pub(crate) promises: Vec<Promise>,
    pub(crate) latched: bool,
    pub(crate) suspect: bool,
    pub(crate) epoch: u64,
    pub(crate) revoked: Vec<WorkerId>,
    pub(crate) total_tokens: u64,
    fleet_used: [u64; 3],
}

fn used_of(used: &[u64; 3], dimension: Dimension) -> u64 {
    match dimension {
        Dimension::CpuMs => used[0],
        Dimension::Tokens => used[1],
        Dimension::MicroUsd => used[2],
        _ => 0,
    }
}

fn price(granted: &Budget, depth: u32, dimension: Dimension) -> u64 {
    let itself = u64::from(dimension == Dimension::Replicas && depth > 0);
    granted
        .of(dimension)
        .number()
        .map_or(0, |number| number + itself)
}

impl Reference {
    pub(crate) fn new(rules: Rules) -> Self {
        Self {
            rules,
            now_ms: 0,
            workers: Vec::new(),
            promises: Vec::new(),
            latched: false,
            suspect: false,
            epoch: 0,
            revoked: Vec::new(),
            total_tokens: 0,
            fleet_used: [0; 3],
        }
    }

    pub(crate) fn find(&self, id: WorkerId) -> Option<&Worker> {
        self.workers.iter().find(|worker| worker.id == id)
    }

    fn find_mut(&mut self, id: WorkerId) -> Option<&mut Worker> {
        self.workers.iter_mut().find(|worker| worker.id == id)
    }

    /// The nearest ancestor that lives.
    pub(crate) fn payer(&self, worker: &Worker) -> Option<WorkerId> {
        worker
            .line
            .iter()
            .copied()
            .find(|id| self.find(*id).is_some())
    }

    /// What someone, or the fleet, can still give.
    pub(crate) fn free(&self, of: Option<WorkerId>) -> Budget {
        Budget::from_fn(|d| {
            let holder = of.and_then(|id| self.find(id));
            let granted = holder.map_or(self.rules.budget, |worker| worker.granted);
            let Some(granted) = granted.of(d).number() else {
                return Amount::UNBOUNDED;
            };
            let own = holder.map_or(0, |worker| worker.own.of(d).number().unwrap_or(0));
            let used = used_of(&holder.map_or(self.fleet_used, |worker| worker.used), d);
            let charged = self
                .workers
                .iter()
                .filter(|worker| self.payer(worker) == of);
            let children: u64 = charged
                .map(|worker| price(&worker.granted, worker.depth(), d))
                .sum();
            let promised = self
                .promises
                .iter()
                .filter(|promise| Some(promise.parent) == of);
            let promised: u64 = promised.map(|promise| price(&promise.granted, 1, d)).sum();
            Amount::of(granted.saturating_sub(own + used + children + promised))
        })
    }

    fn share(
        &self,
        of: Option<WorkerId>,
        asked: &Asked,
        need: &Budget,
    ) -> Result<(Budget, Budget), Code> {
        let free = self.free(of);
        let mut fits = true;
        let granted = Budget::from_fn(|d| {
            let itself = u64::from(of.is_some() && d == Dimension::Replicas);
            let left = match free.of(d).number() {
                None => None,
                Some(free) if free < itself => {
                    fits = false;
                    Some(0)
                }
                Some(free) => Some(free - itself),
            };
            match (asked.of(d), left) {
                (Some(amount), Some(left)) => {
                    fits &= amount.number().is_some_and(|amount| amount <= left);
                    amount
                }
                (Some(amount), None) => amount,
                (None, None) => Amount::UNBOUNDED,
                (None, Some(left)) if of.is_none() => Amount::of(left),
                (None, Some(left)) => match need.of(d).number() {
                    Some(need) if need <= left && need > left / 2 => Amount::of(need),
                    _ => Amount::of(left / 2),
                },
            }
        });
        let own = Budget::from_fn(|d| match d {
            Dimension::CpuMs | Dimension::MemoryMb | Dimension::Pids => {
                granted.of(d).min(need.of(d))
            }
            _ => Amount::ZERO,
        });
        for d in [Dimension::CpuMs, Dimension::MemoryMb, Dimension::Pids] {
            fits &= !(granted.of(d).is_bounded() && own.of(d) == Amount::ZERO);
        }
        if fits {
            Ok((granted, own))
        } else {
            Err(Code::DenyBudget)
        }
    }

    fn cooling(&self, parent: &Worker) -> bool {
        parent
            .last_child_ms
            .is_some_and(|last| self.now_ms < last + self.rules.cooldown_ms)
    }

    /// Whether a condition forbids a grant by this worker, or by nobody for a root.
    fn stopped(&self, asker: Option<&Worker>) -> bool {
        self.workers.len() as u64 >= self.rules.crowd
            || self.total_tokens > self.rules.feast
            || asker.is_some_and(|worker| worker.used[1] > self.rules.glutton)
    }

    fn expiry(&self, parent: Option<u64>) -> Option<u64> {
        let own = self.rules.expiration_ms.map(|ms| self.now_ms + ms);
        [own, parent].into_iter().flatten().min()
    }

    fn over(&self, expires_ms: Option<u64>) -> bool {
        expires_ms.is_some_and(|at| at <= self.now_ms)
    }

    fn add(
        &mut self,
        id: WorkerId,
        line: Vec<WorkerId>,
        granted: Budget,
        own: Budget,
        expires_ms: Option<u64>,
    ) {
        self.workers.push(Worker {
            id,
            line,
            status: Status::Starting,
            granted,
            own,
            used: [0; 3],
            expires_ms,
            last_child_ms: None,
            beat_ms: self.now_ms,
        });
    }

    pub(crate) fn root(&mut self, id: WorkerId, asked: &Asked, need: &Budget) -> Result<(), Code> {
        let promised = self.workers.len() + self.promises.len();
        let checks = [
            (self.latched, Code::DenyKillSwitch),
            (self.suspect, Code::DenyClock),
            (self.revoked.contains(&id), Code::RejectRevoked),
            (self.find(id).is_some(), Code::DenyDuplicate),
            (
                promised >= self.rules.max_replicas as usize,
                Code::DenyQuota,
            ),
            (self.stopped(None), Code::DenyStopCondition),
        ];
        first_of(&checks)?;
        let (granted, own) = self.share(None, asked, need)?;
        let expires_ms = self.expiry(None);
        self.add(id, Vec::new(), granted, own, expires_ms);
        Ok(())
    }

    pub(crate) fn request(
        &mut self,
        parent: WorkerId,
        worker: WorkerId,
        jti: Jti,
        claimed: Option<u32>,
        asked: &Asked,
        need: &Budget,
    ) -> Result<(), Code> {
        first_of(&[
            (self.latched, Code::DenyKillSwitch),
            (self.suspect, Code::DenyClock),
        ])?;
        let above = self.find(parent).ok_or(Code::DenyParentUnknown)?;
        let depth = above.depth() + 1;
        let promised = self.workers.len() + self.promises.len();
        let is_taken = self.promises.iter().any(|p| p.jti == jti) || self.find(worker).is_some();
        let checks = [
            (is_taken, Code::DenyDuplicate),
            (above.status == Status::Quarantined, Code::DenyQuarantined),
            (self.over(above.expires_ms), Code::DenyExpired),
            (
                claimed.is_some_and(|claimed| claimed != depth),
                Code::DenyDepthSpoof,
            ),
            (depth > self.rules.max_depth, Code::DenyDepth),
            (
                promised >= self.rules.max_replicas as usize,
                Code::DenyQuota,
            ),
            (self.cooling(above), Code::DenyCooldown),
            (self.stopped(Some(above)), Code::DenyStopCondition),
        ];
        first_of(&checks)?;
        let (granted, own) = self.share(Some(parent), asked, need)?;
        let lapses_ms = self.now_ms + LAPSE_MS;
        self.promises.push(Promise {
            jti,
            worker,
            parent,
            granted,
            own,
            lapses_ms,
        });
        Ok(())
    }

    pub(crate) fn register(&mut self, manifest: &ManifestFacts) -> Result<(), Code> {
        let is_revoked =
            self.revoked.contains(&manifest.worker) || self.revoked.contains(&manifest.parent);
        let checks = [
            (self.latched, Code::DenyKillSwitch),
            (self.suspect, Code::DenyClock),
            (manifest.epoch != self.epoch, Code::RejectEpoch),
            (is_revoked, Code::RejectRevoked),
            (
                self.find(manifest.parent).is_none(),
                Code::DenyParentUnknown,
            ),
        ];
        first_of(&checks)?;
        let found = self
            .promises
            .iter()
            .find(|promise| promise.jti == manifest.jti);
        let promise = found.ok_or(Code::RejectReplay)?.clone();
        let above = self.find(promise.parent).ok_or(Code::RejectReplay)?.clone();
        let depth = above.depth() + 1;
        let is_same = promise.worker == manifest.worker
            && promise.parent == manifest.parent
            && promise.granted == manifest.granted;
        let checks = [
            (!is_same, Code::RejectMismatch),
            (manifest.depth != depth, Code::DenyDepthSpoof),
            (promise.lapses_ms <= self.now_ms, Code::DenyExpired),
            (self.find(promise.worker).is_some(), Code::DenyDuplicate),
            (above.status == Status::Quarantined, Code::DenyQuarantined),
            (self.over(above.expires_ms), Code::DenyExpired),
            (depth > self.rules.max_depth, Code::DenyDepth),
            (
                self.workers.len() >= self.rules.max_replicas as usize,
                Code::DenyQuota,
            ),
            (self.cooling(&above), Code::DenyCooldown),
            (self.stopped(Some(&above)), Code::DenyStopCondition),
        ];
        first_of(&checks)?;
        self.promises.retain(|other| other.jti != promise.jti);
        let mut line = vec![above.id];
        line.extend(above.line);
        let expires_ms = self.expiry(above.expires_ms);
        self.add(
            promise.worker,
            line,
            promise.granted,
            promise.own,
            expires_ms,
        );
        let now_ms = self.now_ms;
        if let Some(parent) = self.find_mut(promise.parent) {
            parent.last_child_ms = Some(now_ms);
        }
        Ok(())
    }

    /// Takes one worker out; what it used up is charged to whoever pays for it.
    fn remove(&mut self, id: WorkerId) {
        let Some(at) = self.workers.iter().position(|worker| worker.id == id) else {
            return;
        };
        let payer = self.payer(&self.workers[at]);
        let worker = self.workers.remove(at);
        self.promises.retain(|promise| promise.parent != id);
        let account = match payer.and_then(|payer| self.find_mut(payer)) {
            Some(payer) => &mut payer.used,
            None => &mut self.fleet_used,
        };
        for (sum, part) in account.iter_mut().zip(worker.used) {
            *sum += part;
        }
    }

    /// One ends, and those below it unless orphans are kept.
    pub(crate) fn end(&mut self, id: WorkerId) {
        if self.rules.keeps_orphans {
            self.remove(id);
        } else {
            self.end_line(id);
        }
    }

    /// One ends with everyone who descends from it, whether or not it lives itself.
    pub(crate) fn end_line(&mut self, id: WorkerId) {
        let below = self
            .workers
            .iter()
            .filter(|worker| worker.line.contains(&id));
        let mut below: Vec<(u32, WorkerId)> =
            below.map(|worker| (worker.depth(), worker.id)).collect();
        below.sort_by_key(|(depth, _)| std::cmp::Reverse(*depth));
        for (_, worker) in below {
            self.remove(worker);
        }
        self.remove(id);
    }

    pub(crate) fn end_everyone(&mut self) {
        while let Some(deepest) = self.workers.iter().max_by_key(|worker| worker.depth()) {
            let id = deepest.id;
            self.remove(id);
        }
    }

    pub(crate) fn kill(&mut self, scope: Scope) {
        match scope {
            Scope::Fleet => {
                self.latched = true;
                self.end_everyone();
            }
            Scope::Subtree(id) => {
                self.promises.retain(|promise| promise.worker != id);
                self.end_line(id);
            }
            Scope::Worker(id) => {
                self.promises.retain(|promise| promise.worker != id);
                if self.find(id).is_some() {
                    self.end(id);
                }
            }
        }
    }

    pub(crate) fn restart(&mut self) {
        self.promises.clear();
        self.end_everyone();
    }

    pub(crate) fn set_status(&mut self, id: WorkerId, from: &[Status], to: Status) {
        let now_ms = self.now_ms;
        if let Some(worker) = self.find_mut(id)
            && from.contains(&worker.status)
        {
            if worker.status == Status::Quarantined {
                worker.beat_ms = now_ms;
            }
            worker.status = to;
        }
    }

    pub(crate) fn beat(&mut self, id: WorkerId) {
        let now_ms = self.now_ms;
        if let Some(worker) = self.find_mut(id) {
            worker.beat_ms = now_ms;
        }
    }

    pub(crate) fn all_beat(&mut self) {
        for worker in &mut self.workers {
            worker.beat_ms = self.now_ms;
        }
    }

    /// Charges CPU, tokens and money, as far as there is any.
    pub(crate) fn spend(&mut self, id: WorkerId, usage: [u64; 3]) -> bool {
        let free = self.free(Some(id));
        let Some(worker) = self.find_mut(id) else {
            return false;
        };
        let mut is_over = false;
        let dimensions = [Dimension::CpuMs, Dimension::Tokens, Dimension::MicroUsd];
        for ((d, amount), used) in dimensions.into_iter().zip(usage).zip(&mut worker.used) {
            let mut held = 0;
            if let (Dimension::CpuMs, Some(own)) = (d, worker.own.cpu_ms.number()) {
                held = own.min(amount);
                worker.own.cpu_ms = Amount::of(own - held);
            }
            let rest = amount - held;
            let paid = free.of(d).number().map_or(rest, |free| free.min(rest));
            is_over |= paid < rest;
            *used += held + paid;
        }
        self.total_tokens += usage[1];
        is_over
    }

    pub(crate) fn tick(&mut self) {
        loop {
            let due = self.workers.iter().find(|worker| {
                let silence = self
                    .rules
                    .silence_ms
                    .filter(|_| worker.status != Status::Quarantined);
                self.over(worker.expires_ms) || self.over(silence.map(|ms| worker.beat_ms + ms))
            });
            let Some(id) = due.map(|worker| worker.id) else {
                break;
            };
            self.end(id);
        }
        let now_ms = self.now_ms;
        self.promises.retain(|promise| promise.lapses_ms > now_ms);
    }

    /// Lets conditions act until nothing changes any more.
    pub(crate) fn stop(&mut self) {
        while let Some(id) = self
            .workers
            .iter()
            .find(|w| w.used[1] > self.rules.glutton)
            .map(|w| w.id)
        {
            self.end(id);
        }
        if self.total_tokens > self.rules.feast {
            for worker in &mut self.workers {
                worker.status = Status::Quarantined;
            }
        }
    }
}

fn first_of(checks: &[(bool, Code)]) -> Result<(), Code> {
    match checks.iter().find(|(fails, _)| *fails) {
        Some((_, code)) => Err(*code),
        None => Ok(()),
    }
}
