//! The gate of a fleet: every replica, every kill and every operator's act passes here.

mod desk;
mod folding;
mod inbox;
mod keys;
mod manifests;
mod note;
mod opening;
mod operator;
mod papers;
mod sealers;
mod taking_over;

use std::sync::Arc;

use belljar_ledger::Durability;
use belljar_manifest::lineage::{Digest, Envelope};
use belljar_replication::{
    Admitted, Asked, Code, Denial, Jti, ManifestFacts, Now, Request, RootRequest, State, Status,
    Usage, WorkerId,
};

pub use desk::Unrecorded;
pub use manifests::{ManifestStore, ManifestStoreError};
pub use note::{FleetEntry, FleetNote};
pub use opening::{FleetOptions, OpenFleetError, read_state, reset_fleet};
pub use operator::{Act, KillTally};
pub use papers::{Papers, PapersError, Standing};
pub use taking_over::{Adopted, Living};

use desk::{Desk, DeskHandle};
use keys::SharedKeyring;
use note::brief;

use crate::keyring::Keyring;
use crate::latch::Latch;
use crate::permit::Permit;
use crate::record::{ProgramRecord, UsedImage};
use crate::run::{Ending, Launch};

/// Carries out what the controller orders. Called from the desk's thread, so each must return at once: a kill
/// is a signal sent, not an end awaited. Somebody unknown is nobody to act on.
pub trait Hands: Send {
    /// Kills a worker's box.
    fn kill(&self, worker: WorkerId, code: Code);
    /// Makes a worker's box hold still.
    fn freeze(&self, worker: WorkerId);
    /// Lets a frozen box go on.
    fn thaw(&self, worker: WorkerId);
}

/// Starting a worker's box: what a [`Permit`] from this gate is for.
#[derive(Debug)]
pub struct Replicate {
    /// Who it is and what it was granted.
    pub admitted: Admitted,
    /// Its manifest.
    pub papers: Papers,
}

/// What somebody wants to be granted.
#[derive(Clone, Debug)]
pub struct Wish {
    /// Who it will be: fresh and random, chosen by the gate's caller, never by an agent.
    pub worker: WorkerId,
    /// How much of each thing, where it matters.
    pub asked: Asked,
    /// What its box needs for itself.
    pub need: belljar_policy::Budget,
    /// Everything the manifest says besides.
    pub standing: Standing,
    /// What for.
    pub reason: String,
}

/// No replica.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FleetRefusal {
    /// The contract says no.
    #[error(transparent)]
    Denied(#[from] Denial),
    /// The child would have more than its parent.
    #[error("deny_capability: {what}")]
    Exceeds {
        /// What of it.
        what: String,
    },
    /// A manifest does not hold.
    #[error(transparent)]
    Rejected(#[from] belljar_manifest::lineage::Rejection),
    /// What can't be recorded is not granted.
    #[error(transparent)]
    Unrecorded(#[from] Unrecorded),
    /// The manifest can't be written.
    #[error(transparent)]
    Papers(#[from] PapersError),
}

impl FleetRefusal {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Denied(denial) => denial.code.code(),
            Self::Exceeds { .. } => Code::DenyCapability.code(),
            Self::Rejected(rejection) => rejection.reason.code(),
            Self::Unrecorded(_) => "deny_unrecorded",
            Self::Papers(_) => "deny_manifest",
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Denied(denial) => denial.hint(),
            Self::Exceeds { .. } => Code::DenyCapability.hint(),
            Self::Rejected(_) => Code::RejectSignature.hint(),
            Self::Unrecorded(_) => {
                "an operator must see to the log and its disk (`belljar audit verify --log fleet`), then start the controller anew"
            }
            Self::Papers(_) => "an operator must see to the keys: `belljar keys list`",
        }
    }

    /// What of it, without the code.
    #[must_use]
    pub fn detail(&self) -> String {
        let text = self.to_string();
        match text.strip_prefix(self.code()) {
            Some("") => self.hint().to_owned(),
            Some(rest) => rest.trim_start_matches(": ").to_owned(),
            None => text,
        }
    }

    /// How long to wait before asking again makes sense, where that is known.
    #[must_use]
    pub fn retry_after_ms(&self) -> Option<u64> {
        match self {
            Self::Denied(Denial {
                about: Some(belljar_replication::About::Wait(ns)),
                ..
            }) => Some(ns.div_ceil(1_000_000)),
            _ => None,
        }
    }
}

/// The gate of one fleet. Shared by all who ask.
#[derive(Debug)]
pub struct FleetGate {
    desk: DeskHandle,
    /// Who seals manifests.
    sealing: SharedKeyring,
    /// Who signs the log.
    signing: SharedKeyring,
    latch: Latch,
    policy: Digest,
    state: std::path::PathBuf,
}

impl FleetGate {
    /// Lets the first of a family start.
    pub fn admit_root(&self, wish: Wish, jti: Jti) -> Result<Permit<Replicate>, FleetRefusal> {
        let request = RootRequest {
            worker: wish.worker,
            jti,
            asked: wish.asked,
            need: wish.need,
            lifetime: None,
        };
        let reason = brief(&wish.reason);
        let admit = move |desk: &mut Desk| {
            let at = crate::clock::now();
            desk.heed_latch(at);
            desk.note(
                at,
                &FleetNote::ReplicationRequested {
                    parent: None,
                    worker: request.worker,
                    reason,
                },
            );
            desk.turn(|controller| controller.admit_root(at, &request))
                .map(|admitted| desk.seat(admitted, at))
        };
        self.permit(admit, wish, jti, None)
    }

    /// Lets a worker have a replica, or says why not. Everything is decided and debited in one step.
    pub fn replicate(
        &self,
        parent: &Papers,
        wish: Wish,
        jti: Jti,
    ) -> Result<Permit<Replicate>, FleetRefusal> {
        self.check_within(parent, &wish, jti)?;
        let request = Request {
            parent: parent.worker(),
            worker: wish.worker,
            jti,
            claimed_depth: None,
            asked: wish.asked,
            need: wish.need,
        };
        let reason = brief(&wish.reason);
        let grant = move |desk: &mut Desk| {
            let at = crate::clock::now();
            let parent = Some(request.parent);
            desk.note(
                at,
                &FleetNote::ReplicationRequested {
                    parent,
                    worker: request.worker,
                    reason,
                },
            );
            refuse_the_leaving(desk, at, &request)?;
            desk.turn(|controller| controller.grant_and_register(at, &request))
                .map(|admitted| desk.seat(admitted, at))
        };
        self.permit(grant, wish, jti, Some(parent))
    }

    /// The child's capability must be within its parent's, whatever it asks for.
    fn check_within(&self, parent: &Papers, wish: &Wish, jti: Jti) -> Result<(), FleetRefusal> {
        let Err(what) = parent.covers(&wish.standing) else {
            return Ok(());
        };
        let refused = belljar_replication::Refused {
            code: Code::DenyCapability,
            step: belljar_replication::Step::Issue,
            worker: wish.worker,
            parent: Some(parent.worker()),
            jti,
            detail: Some(brief(&what)),
        };
        self.desk
            .decide(move |controller, at| controller.record_refusal(at, refused))?;
        Err(FleetRefusal::Exceeds { what })
    }

    /// Has somebody let in, and gives out the permit with the manifest. The manifest is signed while the grant goes on record:
    /// that takes no time of its own then. Nobody sees it before the record holds; if it does not, it is gone.
    fn permit(
        &self,
        admit: impl FnOnce(&mut Desk) -> Result<Seated, Denial> + Send + 'static,
        wish: Wish,
        jti: Jti,
        parent: Option<&Papers>,
    ) -> Result<Permit<Replicate>, FleetRefusal> {
        let (worker, policy, parent) = (wish.worker, self.policy, parent.cloned());
        let sealed = self.desk.ask_and_prepare(admit, move |seated| {
            let papers = Papers::seal(wish, jti, &seated, parent.as_ref(), policy);
            (seated, papers)
        });
        if sealed.is_err() {
            // Nobody gets it: it must not count as living either.
            self.ended(worker, Code::LaunchFailed, Usage::default());
        }
        let (seated, papers) = sealed??;
        match papers {
            Ok(papers) => {
                let admitted = seated.admitted;
                Ok(Permit::new(Replicate { admitted, papers }, seated.entry))
            }
            Err(error) => {
                self.ended(worker, Code::LaunchFailed, Usage::default());
                Err(error.into())
            }
        }
    }

    /// Issues a manifest for a replica that is to be registered later: the seed's two steps.
    pub fn issue(&self, parent: &Papers, wish: Wish, jti: Jti) -> Result<Papers, FleetRefusal> {
        self.check_within(parent, &wish, jti)?;
        let request = Request {
            parent: parent.worker(),
            worker: wish.worker,
            jti,
            claimed_depth: None,
            asked: wish.asked,
            need: wish.need,
        };
        let seated = self.desk.ask_for(move |desk| {
            let at = crate::clock::now();
            refuse_the_leaving(desk, at, &request)?;
            let grant = desk.turn(|controller| controller.request(at, &request));
            grant.map(|grant| Seated::of_grant(&grant, at, desk))
        })??;
        Ok(Papers::seal(wish, jti, &seated, Some(parent), self.policy)?)
    }

    /// Registers a worker by the manifest it was issued, whatever way that came back: signature, single use and the
    /// whole contract are checked anew.
    pub fn register(&self, bytes: &[u8]) -> Result<Permit<Replicate>, FleetRefusal> {
        let opened = Envelope::parse(bytes).and_then(|envelope| {
            let verified = envelope.open(self.sealing.current().keyset())?;
            verified.check_time(crate::clock::now().wall_ms)?;
            Ok((envelope, verified))
        });
        let (envelope, verified) = match opened {
            Ok(opened) => opened,
            Err(rejection) => {
                self.record_rejection(&rejection)?;
                return Err(rejection.into());
            }
        };
        let payload = verified.payload().clone();
        let facts = ManifestFacts {
            worker: WorkerId(payload.worker.as_u128()),
            // A root is admitted, not registered: nobody's child is refused as having no parent.
            parent: WorkerId(payload.parent.map_or(0, |link| link.worker.as_u128())),
            jti: Jti(payload.jti.as_u128()),
            depth: payload.depth,
            epoch: payload.epoch,
            granted: payload.budget,
        };
        let key = verified.key();
        let worker = facts.worker;
        let registered = self.desk.ask_for(move |desk| {
            let at = crate::clock::now();
            let admitted = desk.turn(|controller| controller.register(at, &facts));
            admitted.map(|admitted| {
                desk.vouched(admitted.worker, admitted.parent, key);
                (admitted, desk.upcoming())
            })
        });
        if registered.is_err() {
            self.ended(worker, Code::LaunchFailed, Usage::default());
        }
        let (admitted, entry) = registered??;
        let papers = Papers::of(envelope, verified);
        Ok(Permit::new(Replicate { admitted, papers }, entry))
    }

    /// The papers that these bytes are, if their signature holds.
    #[must_use]
    pub fn papers(&self, bytes: &[u8]) -> Option<Papers> {
        let envelope = Envelope::parse(bytes).ok()?;
        let verified = envelope.open(self.sealing.current().keyset()).ok()?;
        Some(Papers::of(envelope, verified))
    }

    fn record_rejection(
        &self,
        rejection: &belljar_manifest::lineage::Rejection,
    ) -> Result<(), Unrecorded> {
        let refused = belljar_replication::Refused {
            code: Code::from_code(rejection.reason.code()).unwrap_or(Code::RejectSignature),
            step: belljar_replication::Step::Register,
            worker: WorkerId(0),
            parent: None,
            jti: Jti(0),
            detail: Some(brief(&rejection.to_string())),
        };
        self.desk
            .decide(move |controller, at| controller.record_refusal(at, refused))?;
        Ok(())
    }

    /// A worker's box runs.
    pub fn started(&self, worker: WorkerId) {
        self.desk.tell(move |desk| {
            let at = crate::clock::now();
            desk.turn(|controller| controller.started(at, worker));
        });
    }

    /// Lets a worker run one more task in a box of its own. Whoever is ended or frozen may not.
    pub fn task(&self, worker: WorkerId) -> Result<Permit<Launch>, FleetRefusal> {
        let (status, entry) = self.desk.ask(move |desk| {
            let at = crate::clock::now();
            desk.turn(|controller| controller.tick(at));
            let status = desk
                .controller
                .state()
                .worker(worker)
                .map(|view| view.status);
            let status = status.filter(|_| !desk.is_leaving(worker));
            let allowed = matches!(status, Some(Status::Starting | Status::Running));
            if allowed {
                desk.turn(|controller| controller.started(at, worker));
                desk.note(at, &FleetNote::TaskStarted { worker });
            }
            (status, desk.upcoming())
        })?;
        match status {
            None => Err(Denial::from(Code::DenyParentUnknown).into()),
            Some(Status::Quarantined) => Err(Denial::from(Code::DenyQuarantined).into()),
            Some(_) => Ok(Permit::new(Launch::of_task(worker), entry)),
        }
    }

    /// A worker's box is gone. What it used is charged to it, or to its parent if it was ended before.
    pub fn ended(&self, worker: WorkerId, code: Code, usage: Usage) {
        let _ = self.desk.ask(move |desk| {
            let at = crate::clock::now();
            desk.charge(at, worker, usage, None);
            let code = desk.end_code(worker, code);
            let _ = desk.turn(|controller| controller.end(at, worker, code));
            desk.forget(worker);
        });
    }

    /// A worker's keeper is gone, and its box with it: it is charged all that it could have used.
    pub fn lost(&self, worker: WorkerId) {
        let _ = self.desk.ask(move |desk| {
            let at = crate::clock::now();
            let _ = desk.turn(|controller| controller.lose(at, worker));
            desk.forget(worker);
        });
    }

    /// A worker's box could not be started, or ended in a way worth telling.
    pub fn failed(&self, worker: WorkerId, why: String) {
        self.note_box(worker, why);
        self.ended(worker, Code::LaunchFailed, Usage::default());
    }

    /// Keeps a worker's manifest and puts on record what its box is about to run. Where that can't be done, the box may not start.
    pub fn box_launched(&self, papers: &Papers, program: &ProgramRecord) -> Result<(), Unrecorded> {
        let manifest = ManifestStore::of(&self.state)
            .keep(papers.envelope().as_bytes())
            .map_err(|error| Unrecorded::because(&error))?;
        let payload = papers.payload();
        let capability = payload.capability.capability();
        let note = FleetNote::BoxLaunched {
            worker: papers.worker(),
            manifest: manifest.to_string(),
            program: brief(&program.program),
            command_sha256: program.command_sha256.clone(),
            capability: brief(&capability.name),
            capability_sha256: payload.capability.digest().to_string(),
            tier: capability.tier.as_str().to_owned(),
            image: program.image.as_ref().map(|image| UsedImage {
                name: brief(&image.name),
                digest: brief(&image.digest),
            }),
        };
        self.desk
            .ask(move |desk| desk.note(crate::clock::now(), &note))
    }

    /// Puts on record how a worker's box ended. The worker's own end, where that follows, is another entry.
    pub fn box_ended(&self, worker: WorkerId, ending: Ending) {
        let note = FleetNote::BoxEnded {
            worker,
            exit_code: ending.exit_code,
            signal: ending.signal,
            killed_by: ending.killed_by,
            duration_ms: ending.duration_ms,
            cpu_ms: ending.cpu_ms,
            peak_memory_mb: ending.peak_memory_mb,
            network: ending.network,
        };
        self.desk
            .tell(move |desk| desk.note(crate::clock::now(), &note));
    }

    /// Something about a worker's box that is worth telling.
    pub fn note_box(&self, worker: WorkerId, why: String) {
        let why = brief(&why);
        self.desk.tell(move |desk| {
            desk.note(crate::clock::now(), &FleetNote::BoxFailed { worker, why });
        });
    }

    /// Charges a worker for what its box used; nobody waits for the record.
    pub fn charge(&self, worker: WorkerId, usage: Usage) {
        self.desk.tell(move |desk| {
            desk.charge(crate::clock::now(), worker, usage, None);
        });
    }

    /// The same, with how the worker's meter stands: whoever reads it next charges what came after.
    pub fn charge_to(&self, worker: WorkerId, usage: Usage, reading: Usage) {
        self.desk.tell(move |desk| {
            desk.charge(crate::clock::now(), worker, usage, Some(reading));
        });
    }

    /// Since when and why the kill switch is engaged, if it is.
    #[must_use]
    pub fn engaged(&self) -> Option<crate::latch::Engaged> {
        self.latch.engaged()
    }

    /// What holds the kill switch, if it is engaged.
    pub fn latch_holder(&self) -> Option<crate::latch::LatchHolder> {
        self.latch.holder()
    }

    /// A worker is well.
    pub fn heartbeat(&self, worker: WorkerId) -> Result<bool, Unrecorded> {
        self.desk.see(move |desk| {
            desk.controller
                .heartbeat(crate::clock::now(), worker)
                .is_ok()
        })
    }

    /// A worker used something up. One that used more than it has is killed.
    pub fn report_usage(&self, worker: WorkerId, usage: Usage) -> Result<bool, Unrecorded> {
        self.desk
            .ask(move |desk| desk.charge(crate::clock::now(), worker, usage, None))
    }

    /// A worker used more than its own capability allows: it ends.
    pub fn overspent(&self, worker: WorkerId) -> Result<(), Unrecorded> {
        self.desk.see(move |desk| {
            let at = crate::clock::now();
            let _ = desk.turn(|controller| controller.end(at, worker, Code::KilledBudget));
        })
    }

    /// Looks at the state as it is now.
    pub fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&State, Now) -> T + Send + 'static,
    ) -> Result<T, Unrecorded> {
        self.desk
            .see(move |desk| look(desk.controller.state(), crate::clock::now()))
    }

    /// Entries on record, and why no more are recorded, if so.
    pub fn log_state(&self) -> Result<(u64, Option<Arc<str>>), Unrecorded> {
        self.desk.see(|desk| {
            (
                desk.recorded(),
                desk.failure().map(|failure| Arc::clone(&failure.0)),
            )
        })
    }

    /// Notes in the log of runs how far the fleet's log has come: cutting that back from here on shows.
    pub fn anchor(&self) -> Result<(), crate::log::LogError> {
        let Ok((size, root)) = self.desk.ask(|desk| desk.head()) else {
            return Ok(());
        };
        let event = crate::record::RunEvent::FleetAnchored { size, root };
        crate::run::RunGate::with_keyring(&self.state, self.signing.current())
            .note(event, Durability::Power)?;
        Ok(())
    }
}

/// Whoever said that it ends gets nothing more.
fn refuse_the_leaving(desk: &mut Desk, at: Now, request: &Request) -> Result<(), Denial> {
    if !desk.is_leaving(request.parent) {
        return Ok(());
    }
    let refused = belljar_replication::Refused {
        code: Code::DenyParentUnknown,
        step: belljar_replication::Step::Issue,
        worker: request.worker,
        parent: Some(request.parent),
        jti: request.jti,
        detail: Some("it said that it ends".to_owned()),
    };
    desk.turn(|controller| controller.record_refusal(at, refused));
    Err(Denial::from(Code::DenyParentUnknown))
}

/// A worker that is let in, with what the manifest will say of it.
#[derive(Debug)]
pub(crate) struct Seated {
    pub(crate) admitted: Admitted,
    /// Who signs it.
    pub(crate) keyring: Keyring,
    pub(crate) depth_ceiling: u32,
    pub(crate) seq: u64,
    pub(crate) epoch: u64,
    pub(crate) at: Now,
    pub(crate) entry: u64,
}

impl Seated {
    fn of_grant(grant: &belljar_replication::Grant, at: Now, desk: &Desk) -> Self {
        Self {
            admitted: Admitted {
                worker: grant.worker,
                parent: Some(grant.parent),
                depth: grant.depth,
                share: grant.share,
                expires_ns: grant.expires_ns,
            },
            keyring: desk.sealing(),
            depth_ceiling: grant.depth_ceiling,
            seq: grant.seq,
            epoch: grant.epoch,
            at,
            entry: desk.upcoming(),
        }
    }
}
