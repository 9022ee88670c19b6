//! Grants and registrations: asks the rules, records the answer.

use super::rules::after;
use super::{Controller, GRANT_LIFETIME_NS, Turn};
use crate::account::Share;
use crate::event::{Issued, Refused, RootAdmitted, Step, What};
use crate::outcome::{Admitted, Denial, Grant, ManifestFacts, Outcome, Request, RootRequest};
use crate::stop::Depends;
use crate::tree::NEVER;
use crate::{Code, Jti, Now, WorkerId};

impl Controller {
    /// Admits a root. It is the operator's act; the quota, the kill switch and the contract's budget hold for it too.
    pub fn admit_root(
        &mut self,
        now: Now,
        request: &RootRequest,
    ) -> Outcome<Result<Admitted, Denial>> {
        let mut turn = self.begin(now);
        let result = match self.may_admit(request) {
            Ok(share) => self.admit(&mut turn, request, share),
            Err(denial) => Err(denial),
        };
        if let Err(denial) = &result {
            let (worker, jti) = (request.worker, request.jti);
            self.refuse(&mut turn, denial, Step::Root, worker, None, jti);
        }
        self.settle(&mut turn);
        turn.finish(result)
    }

    /// Decides on a replica. A grant debits the parent and holds a place until it is registered or lapses.
    pub fn request(&mut self, now: Now, request: &Request) -> Outcome<Result<Grant, Denial>> {
        let mut turn = self.begin(now);
        let result = self.issue(&mut turn, request);
        self.settle(&mut turn);
        turn.finish(result)
    }

    /// Registers a worker with its manifest, whose signature the caller has verified. Everything is checked anew.
    pub fn register(
        &mut self,
        now: Now,
        manifest: &ManifestFacts,
    ) -> Outcome<Result<Admitted, Denial>> {
        let mut turn = self.begin(now);
        let result = self.enter(&mut turn, manifest);
        self.settle(&mut turn);
        turn.finish(result)
    }

    /// Grants and registers in one step: for owners that hand no manifest out.
    pub fn grant_and_register(
        &mut self,
        now: Now,
        request: &Request,
    ) -> Outcome<Result<Admitted, Denial>> {
        let mut turn = self.begin(now);
        let result = self
            .issue(&mut turn, request)
            .and_then(|grant| self.enter(&mut turn, &grant.manifest()));
        self.settle(&mut turn);
        turn.finish(result)
    }

    /// Records a refusal that the caller decided: a signature that does not hold, a capability too wide. The
    /// result says whether its code is one of a refusal; else nothing is recorded.
    pub fn record_refusal(&mut self, now: Now, refused: Refused) -> Outcome<bool> {
        let mut turn = self.begin(now);
        let is_refusal = refused.code.is_refusal();
        if is_refusal {
            self.record(&mut turn, What::Refused(Box::new(refused)));
            self.note(Depends::RATE);
            self.settle(&mut turn);
        }
        turn.finish(is_refusal)
    }

    fn admit(
        &mut self,
        turn: &mut Turn,
        request: &RootRequest,
        share: Share,
    ) -> Result<Admitted, Denial> {
        let now_ns = turn.now.boot_ns;
        let expires_ns = self
            .expiry(now_ns, NEVER)
            .min(after(now_ns, request.lifetime));
        let root = RootAdmitted {
            jti: request.jti,
            worker: request.worker,
            share,
            expires_ns: moment(expires_ns),
        };
        if !self.record(turn, What::RootAdmitted(Box::new(root))) {
            return Err(Code::DenyInconsistent.into());
        }
        self.welcome(turn);
        Ok(Admitted {
            worker: request.worker,
            parent: None,
            depth: 0,
            share,
            expires_ns: moment(expires_ns),
        })
    }

    fn issue(&mut self, turn: &mut Turn, request: &Request) -> Result<Grant, Denial> {
        let result = self
            .may_issue(turn.now, request)
            .and_then(|(share, depth, expires_ns)| {
                self.grant(turn, request, share, depth, expires_ns)
            });
        if let Err(denial) = &result {
            let parent = Some(request.parent);
            self.refuse(
                turn,
                denial,
                Step::Issue,
                request.worker,
                parent,
                request.jti,
            );
        }
        result
    }

    fn grant(
        &mut self,
        turn: &mut Turn,
        request: &Request,
        share: Share,
        depth: u32,
        expires_ns: u64,
    ) -> Result<Grant, Denial> {
        let lapses_ns = turn.now.boot_ns.saturating_add(GRANT_LIFETIME_NS);
        let seq = self.state.seq;
        let issued = Issued {
            jti: request.jti,
            worker: request.worker,
            parent: request.parent,
            share,
            lapses_ns,
        };
        let issued = match self.spare_issued.take() {
            Some(mut spare) => {
                *spare = issued;
                spare
            }
            None => Box::new(issued),
        };
        if !self.record(turn, What::Issued(issued)) {
            return Err(Code::DenyInconsistent.into());
        }
        self.grant_timers
            .push(&self.state.grants, lapses_ns, request.jti);
        Ok(Grant {
            jti: request.jti,
            worker: request.worker,
            parent: request.parent,
            depth,
            depth_ceiling: self.state.contract.max_depth,
            share,
            epoch: self.state.epoch,
            seq,
            lapses_ns,
            expires_ns: moment(expires_ns),
        })
    }

    fn enter(&mut self, turn: &mut Turn, manifest: &ManifestFacts) -> Result<Admitted, Denial> {
        let result =
            self.may_register(turn.now, manifest)
                .and_then(|(share, depth, expires_ns)| {
                    let entered = What::Registered {
                        jti: manifest.jti,
                        worker: manifest.worker,
                        expires_ns: moment(expires_ns),
                    };
                    if !self.record(turn, entered) {
                        return Err(Code::DenyInconsistent.into());
                    }
                    self.welcome(turn);
                    Ok(Admitted {
                        worker: manifest.worker,
                        parent: Some(manifest.parent),
                        depth,
                        share,
                        expires_ns: moment(expires_ns),
                    })
                });
        if let Err(denial) = &result {
            let parent = Some(manifest.parent);
            self.refuse(
                turn,
                denial,
                Step::Register,
                manifest.worker,
                parent,
                manifest.jti,
            );
        }
        result
    }

    /// Starts the timers of a new worker and has the conditions looked at for it and its parent.
    fn welcome(&mut self, turn: &Turn) {
        let slot = self.state.tree.newest();
        self.watch(slot, turn.now.boot_ns);
        self.note(Depends::POPULATION.with(Depends::RATE));
        self.touch(slot);
        self.touch(self.state.tree.parent(slot));
    }

    fn refuse(
        &mut self,
        turn: &mut Turn,
        denial: &Denial,
        step: Step,
        worker: WorkerId,
        parent: Option<WorkerId>,
        jti: Jti,
    ) {
        let refused = Refused {
            code: denial.code,
            step,
            worker,
            parent,
            jti,
            detail: denial.about.as_ref().map(ToString::to_string),
        };
        self.record(turn, What::Refused(Box::new(refused)));
        self.note(Depends::RATE);
    }
}

/// A moment as it is written: `null` for never.
fn moment(ns: u64) -> Option<u64> {
    (ns != NEVER).then_some(ns)
}
