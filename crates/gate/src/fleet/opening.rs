//! Opening a fleet: fold the log, take over, end whoever was left.

use std::path::Path;

use belljar_ledger::{Durability, Wait};
use belljar_manifest::lineage::Digest;
use belljar_policy::{Contract, SignerKind};
use belljar_replication::{BootId, Controller, Event, InvalidCondition, Predicate, State, What};

use super::desk::{Desk, DeskHandle};
use super::folding::{fold, fold_all};
use super::keys::{KeyWatch, SharedKeyring};
use super::note::FleetNote;
use super::taking_over::{Adopted, Living, adopt};
use super::{FleetGate, Hands};
use crate::clock::{boot_id, now};
use crate::keyring::{KeyDir, KeyError, KeySource};
use crate::latch::Latch;
use crate::log::{LogError, LogKind, open};

/// The most workers that one entry names.
const LOST_TOGETHER: usize = 500;

/// How to open a fleet.
pub struct FleetOptions {
    /// The contract.
    pub contract: Contract,
    /// Stop conditions written in Rust.
    pub predicates: Vec<(String, belljar_policy::OnTrigger, Predicate)>,
    /// Where the secret of the signing key is.
    pub keys: KeySource,
    /// Who carries out orders.
    pub hands: Box<dyn Hands>,
}

impl std::fmt::Debug for FleetOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FleetOptions")
            .field("contract", &self.contract)
            .finish_non_exhaustive()
    }
}

/// The fleet can't be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenFleetError {
    /// Its log or keys can't be used.
    #[error("the fleet can't be opened")]
    Log(#[from] LogError),
    /// A stop condition is not sound.
    #[error("the contract can't be enforced")]
    Condition(#[from] InvalidCondition),
    /// The system does not let us.
    #[error("the controller can't be started")]
    System(#[from] std::io::Error),
}

impl OpenFleetError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Log(error) => error.hint(),
            Self::Condition(_) => {
                "`belljar replication contract validate FILE` shows the place".to_owned()
            }
            Self::System(_) => "see `ulimit -u` and `ulimit -n`".to_owned(),
        }
    }
}

impl From<KeyError> for OpenFleetError {
    fn from(error: KeyError) -> Self {
        Self::Log(error.into())
    }
}

impl FleetGate {
    /// Takes over the fleet of a state directory. Whoever was alive in it has lost its keeper, and so its box:
    /// it is recorded as lost. One process at a time may do so.
    pub fn open(state: &Path, options: FleetOptions) -> Result<Self, OpenFleetError> {
        Self::take_over(state, options, Vec::new()).map(|(gate, _)| gate)
    }

    /// The same, but for workers whose keepers are processes of their own and live on. Whoever can't show a manifest that holds
    /// is not one of them.
    pub fn take_over(
        state: &Path,
        options: FleetOptions,
        living: Vec<Living>,
    ) -> Result<(Self, Vec<Adopted>), OpenFleetError> {
        let at = now();
        let keys = KeyDir::of(state, options.keys);
        let signing = SharedKeyring::new(keys.load_or_init(at.wall_ms / 1000)?);
        let hmac = match options.contract.signer {
            SignerKind::Ed25519 => None,
            SignerKind::Hmac => {
                let directory = KeyDir::hmac_of(state);
                let shared = SharedKeyring::new(directory.load_or_init(at.wall_ms / 1000)?);
                Some((directory, shared))
            }
        };
        let sealing = hmac.as_ref().map_or(&signing, |(_, shared)| shared).clone();
        let (ledger, recovery) = open(LogKind::Fleet, state, &signing.current(), Wait::Fail)?;
        let folded = fold(&ledger)?;
        let policy = Digest::of_contract(&options.contract);
        let mut adopted = adopt(&ledger, &sealing.current(), &folded, living)?;
        let lives = |worker| adopted.iter().any(|known| known.worker() == worker);
        let (mut controller, taken_over) =
            Controller::take_over(folded, options.contract, this_boot(), at, lives)?;
        for (name, on_trigger, predicate) in options.predicates {
            controller.add_predicate(&name, on_trigger, predicate);
        }
        let latch = Latch::of(state);
        let watch = KeyWatch::new((keys, signing.clone()), hmac);
        let mut desk = Desk::new(controller, ledger, options.hands, watch, latch.clone());
        if !recovery.is_clean() {
            desk.note(
                at,
                &FleetNote::LogRecovered {
                    dropped_entries: recovery.dropped_entries,
                    dropped_bytes: recovery.dropped_bytes,
                },
            );
        }
        desk.carry_out(&taken_over.commands);
        desk.store(&taken_over.events);
        for lost in taken_over.result.chunks(LOST_TOGETHER) {
            let workers = lost.to_vec();
            desk.note(at, &FleetNote::WorkersLost { workers });
        }
        adopted.retain(|known| desk.controller.state().worker(known.worker()).is_some());
        for known in &adopted {
            desk.vouched(known.worker(), known.parent(), known.papers.key());
        }
        if !adopted.is_empty() {
            let workers = adopted.iter().map(Adopted::worker).collect();
            desk.note(at, &FleetNote::WorkersAdopted { workers });
        }
        desk.agree_with_latch(at);
        let gate = Self {
            desk: DeskHandle::open(desk)?,
            sealing,
            signing,
            latch,
            policy,
            state: state.to_owned(),
        };
        // From its first moment on there is a witness that there is a fleet.
        gate.anchor()?;
        Ok((gate, adopted))
    }
}

/// The state of a fleet as its log tells it, without taking over.
pub fn read_state(state: &Path) -> Result<State, LogError> {
    fold_all(&LogKind::Fleet.directory(state))
}

/// Takes the kill switch off in the record of a fleet that has no controller at the moment.
pub fn reset_fleet(state: &Path, keys: KeySource) -> Result<(), LogError> {
    if !LogKind::Fleet.directory(state).exists() {
        return Ok(());
    }
    let at = now();
    let keyring = KeyDir::of(state, keys).load()?;
    let (mut ledger, _) = open(LogKind::Fleet, state, &keyring, Wait::Fail)?;
    if fold(&ledger)?.is_kill_switch_engaged() {
        let event = Event::new(at, What::KillSwitchReset {});
        ledger.append(&serde_json::to_vec(&event)?)?;
        ledger.commit(Durability::Power)?;
    }
    Ok(())
}

/// The boot's id as a number.
fn this_boot() -> BootId {
    let digits: String = boot_id().chars().filter(char::is_ascii_hexdigit).collect();
    BootId(u128::from_str_radix(&digits, 16).unwrap_or(0))
}
