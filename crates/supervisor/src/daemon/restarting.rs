//! The same agent anew: the same name, command and capability, in the same place or another.

use std::time::{Duration, Instant};

use belljar_api::{AgentPhase, AgentView, Problem, RestartRequest, Status, StopRequest};
use belljar_replication::WorkerId;

use super::calls::unknown;
use super::roster::is_over;
use super::{Inner, OperatorIdentity, PATIENCE, views};
use crate::fleet::Refused;

/// How often it is looked whether an end is on the books.
const LOOK: Duration = Duration::from_millis(10);

impl Inner {
    /// Ends an agent, waits until nothing is left of it, and starts it anew. One that has ended is just started.
    pub(super) fn restart(
        &self,
        by: &OperatorIdentity,
        worker: WorkerId,
        request: &RestartRequest,
    ) -> Result<AgentView, Refused> {
        let found = self.roster.with(worker, |agent| {
            let spec = views::spec(&agent.origin, &agent.card);
            (spec, agent.view.phase, agent.view.parent.is_some())
        });
        let (mut spec, phase, is_replica) = found.ok_or_else(unknown)?;
        let conflict = |code: &'static str, message: &str, hint: &'static str| {
            let problem = Problem::new(code, message).hint(hint);
            Err(Refused(Status::CONFLICT, problem))
        };
        if is_replica {
            return conflict(
                "replica",
                "its parent was granted it, and only its parent has another one started",
                "restart its root",
            );
        }
        if matches!(phase, AgentPhase::Freezing | AgentPhase::Quarantined) {
            return conflict(
                "quarantined",
                "it is held in quarantine",
                "release it or kill it first",
            );
        }
        let declared = self.roster.declared.spec(&spec.name);
        let is_declared = declared.is_some();
        if let Some(declared) = declared {
            // What its file says by now.
            spec = self.in_its_place(declared);
        }
        if let Some(place) = &request.workdir {
            spec.workdir = Some(place.into());
        }
        // What runs, or is declared, its owner let in. Elsewhere, or brought back, it is somebody's own wish.
        if request.workdir.is_some() || is_over(phase) && !is_declared {
            self.check_ceiling(by, &mut spec)?;
        }
        // What can't be started is refused while the old one lives.
        self.candidate(spec.clone())?;
        if !is_over(phase) {
            self.stop_and_wait(by, worker, request)?;
        }
        let name = spec.name.clone();
        if is_declared && let Err(error) = self.roster.declared.desired.clear(&name) {
            let problem = Problem::new(
                "deny_unrecorded",
                format!("that it is wanted can't be kept: {error}"),
            );
            let hint = "see that the state directory can be written to";
            return Err(Refused(Status::UNAVAILABLE, problem.hint(hint)));
        }
        match self.start(spec) {
            Ok(worker) => {
                self.roster.declared.started(&name);
                self.view(worker)
            }
            Err(Refused(status, problem)) => {
                self.declared_refused(&name, &problem);
                Err(Refused(status, problem))
            }
        }
    }

    fn stop_and_wait(
        &self,
        by: &OperatorIdentity,
        worker: WorkerId,
        request: &RestartRequest,
    ) -> Result<(), Refused> {
        let stop = StopRequest {
            reason: request.reason.clone(),
            grace_ms: request.grace_ms,
        };
        match self.stop_unmarked(by, worker, &stop) {
            // It ended by itself meanwhile.
            Err(Refused(Status::CONFLICT, _)) | Ok(_) => {}
            Err(refused) => return Err(refused),
        }
        let grace = request.grace_ms.map(Duration::from_millis);
        let grace = grace.unwrap_or(self.settings.stop_grace);
        let until = Instant::now() + grace.saturating_add(PATIENCE);
        let is_there = || {
            let phase = self.roster.with(worker, |agent| agent.view.phase);
            phase.is_some_and(|phase| !is_over(phase))
        };
        self.post()
            .crew
            .await_end_of(&[worker], grace.saturating_add(PATIENCE));
        while is_there() {
            if Instant::now() > until {
                let problem = Problem::new("unavailable", "it does not end")
                    .hint("`belljar supervisor kill` ends it");
                return Err(Refused(Status::UNAVAILABLE, problem));
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }
}
