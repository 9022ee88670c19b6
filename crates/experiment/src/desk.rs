//! The controller as the simulated world sees it. [`Controller`] itself is the one desk there is: the methods pass calls on
//! and decide nothing. Tests put a desk in its place that lets one thing pass, to see that the referee notices.

use belljar_replication::{
    Admitted, Code, Controller, Denial, Grant, ManifestFacts, NotAlive, Now, Outcome, OverBudget,
    Request, RootRequest, Scope, Usage, WorkerId,
};

/// Whom the simulated workers deal with.
pub trait Desk {
    /// The controller behind it.
    fn controller(&self) -> &Controller;

    /// The controller behind it, to act.
    fn controller_mut(&mut self) -> &mut Controller;

    /// See [`Controller::admit_root`].
    fn admit_root(&mut self, now: Now, request: &RootRequest) -> Outcome<Result<Admitted, Denial>> {
        self.controller_mut().admit_root(now, request)
    }

    /// See [`Controller::request`].
    fn request(&mut self, now: Now, request: &Request) -> Outcome<Result<Grant, Denial>> {
        self.controller_mut().request(now, request)
    }

    /// See [`Controller::register`].
    fn register(
        &mut self,
        now: Now,
        manifest: &ManifestFacts,
    ) -> Outcome<Result<Admitted, Denial>> {
        self.controller_mut().register(now, manifest)
    }

    /// See [`Controller::grant_and_register`].
    fn grant_and_register(
        &mut self,
        now: Now,
        request: &Request,
    ) -> Outcome<Result<Admitted, Denial>> {
        self.controller_mut().grant_and_register(now, request)
    }

    /// See [`Controller::end`].
    fn end(&mut self, now: Now, worker: WorkerId, code: Code) -> Outcome<Result<(), NotAlive>> {
        self.controller_mut().end(now, worker, code)
    }

    /// See [`Controller::heartbeat`].
    fn heartbeat(&mut self, now: Now, worker: WorkerId) -> Result<(), NotAlive> {
        self.controller_mut().heartbeat(now, worker)
    }

    /// See [`Controller::report_usage`].
    fn report_usage(
        &mut self,
        now: Now,
        worker: WorkerId,
        usage: Usage,
    ) -> Outcome<Result<Option<OverBudget>, NotAlive>> {
        self.controller_mut().report_usage(now, worker, usage)
    }

    /// See [`Controller::tick`].
    fn tick(&mut self, now: Now) -> Outcome<usize> {
        self.controller_mut().tick(now)
    }

    /// See [`Controller::engage_kill_switch`].
    fn engage_kill_switch(&mut self, now: Now) -> Outcome<usize> {
        self.controller_mut().engage_kill_switch(now, Scope::Fleet)
    }

    /// See [`Controller::quarantine`].
    fn quarantine(&mut self, now: Now, worker: WorkerId) -> Outcome<Result<bool, NotAlive>> {
        self.controller_mut()
            .quarantine(now, worker, Code::QuarantinedOperator)
    }
}

impl Desk for Controller {
    fn controller(&self) -> &Controller {
        self
    }

    fn controller_mut(&mut self) -> &mut Controller {
        self
    }
}
