//! The gate of a fleet: what it grants is on record and sealed when anybody hears of it, and what can't be recorded is not
//! granted.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use belljar_gate::key_change::{KeyAct, change_keys};
use belljar_gate::keyring::{KeyDir, KeySource};
use belljar_gate::{
    FleetEntry, FleetGate, FleetOptions, FleetRefusal, Hands, LogKind, Papers, Permit, Replicate,
    Standing, Wish,
};
use belljar_ledger::Reader;
use belljar_manifest::keys::Algorithm;
use belljar_manifest::lineage::{CapabilityDocument, Digest};
use belljar_policy::{Budget, Contract, Places};
use belljar_replication::{Asked, Code, Event, Jti, Status, What, WorkerId};

struct NoHands;

impl Hands for NoHands {
    fn kill(&self, _: WorkerId, _: Code) {}
    fn freeze(&self, _: WorkerId) {}
    fn thaw(&self, _: WorkerId) {}
}

/// A fleet with a root, and numbers for those to come.
struct Fleet {
    gate: FleetGate,
    root: Papers,
    capability: CapabilityDocument,
    numbers: AtomicU64,
}

impl Fleet {
    fn open(state: &Path) -> Self {
        let options = FleetOptions {
            contract: Contract::new(2, 1000, Duration::ZERO, None),
            predicates: Vec::new(),
            keys: KeySource::Directory,
            hands: Box::new(NoHands),
        };
        let places = Places {
            home: "/home/agent".into(),
            work: "/home/agent/work".into(),
            homes: vec!["/home".into()],
        };
        let moderate = belljar_manifest::profile("moderate").unwrap();
        let capability = CapabilityDocument::new(&moderate, &places).unwrap();
        let gate = FleetGate::open(state, options).unwrap();
        let permit = gate.admit_root(wish(&capability, 1), Jti(1)).unwrap();
        Self {
            gate,
            root: permit.spend().papers,
            capability,
            numbers: AtomicU64::new(2),
        }
    }

    fn replicate(&self) -> Result<Permit<Replicate>, FleetRefusal> {
        let number = u128::from(self.numbers.fetch_add(1, Ordering::Relaxed));
        let wish = wish(&self.capability, number);
        self.gate.replicate(&self.root, wish, Jti(number))
    }
}

fn wish(capability: &CapabilityDocument, worker: u128) -> Wish {
    Wish {
        worker: WorkerId(worker),
        asked: Asked::default(),
        need: Budget::ZERO,
        standing: Standing {
            capability: capability.clone(),
            program: Digest::of(b"program"),
            state: None,
        },
        reason: "test".to_owned(),
    }
}

#[test]
fn a_grant_is_on_record_and_sealed_when_it_is_heard_of() {
    let state = tempfile::tempdir().unwrap();
    let fleet = Fleet::open(state.path());
    let keys = KeyDir::of(state.path(), KeySource::Directory)
        .keyset()
        .unwrap();
    let log = LogKind::Fleet.directory(state.path());
    std::thread::scope(|scope| {
        for _ in 0..32 {
            scope.spawn(|| {
                for _ in 0..8 {
                    let permit = fleet.replicate().unwrap();
                    let entry = Reader::open(&log).unwrap().entry(permit.entry()).unwrap();
                    let entry = serde_json::from_slice(&entry.expect("on record")).unwrap();
                    let FleetEntry::Event(Event { what, .. }) = entry else {
                        panic!("not an event: {entry:?}");
                    };
                    let Replicate { admitted, papers } = permit.spend();
                    let What::Registered { worker, .. } = what else {
                        panic!("not a registration: {what:?}");
                    };
                    assert_eq!(worker, admitted.worker);
                    let verified = papers.envelope().open(&keys).unwrap();
                    assert_eq!(verified.worker().as_u128(), worker.0);
                    let link = verified.payload().parent.unwrap();
                    assert_eq!(link.envelope, fleet.root.envelope().digest());
                }
            });
        }
    });
}

#[test]
fn what_can_not_be_recorded_is_not_granted() {
    let state = tempfile::tempdir().unwrap();
    let fleet = Fleet::open(state.path());
    fleet.replicate().unwrap().spend();
    let tiles = LogKind::Fleet.directory(state.path()).join("tile");
    fs::rename(&tiles, tiles.with_extension("away")).unwrap();
    for _ in 0..2 {
        let refused = fleet.replicate().expect_err("nothing can be written");
        assert_eq!(refused.code(), "deny_unrecorded");
    }
    // Not even when it could be written again: what is on disk is known only to who opens it anew.
    fs::remove_dir_all(&tiles).unwrap();
    fs::rename(tiles.with_extension("away"), &tiles).unwrap();
    assert_eq!(fleet.replicate().unwrap_err().code(), "deny_unrecorded");
}

#[test]
fn a_worker_stands_and_falls_with_its_key_from_its_grant_on() {
    let state = tempfile::tempdir().unwrap();
    let fleet = Fleet::open(state.path());
    let worker = fleet.replicate().unwrap().spend();
    let key = worker.papers.key();
    change_keys(
        state.path(),
        &KeySource::Directory,
        Algorithm::Ed25519,
        KeyAct::Compromise(&key.to_string()),
    )
    .unwrap();
    let id = worker.admitted.worker;
    // The first look makes the desk see the keys; the second sees what came of it.
    fleet.gate.look(|_, _| ()).unwrap();
    let status = fleet
        .gate
        .look(move |state, _| state.worker(id).map(|worker| worker.status))
        .unwrap();
    assert_eq!(status, Some(Status::Quarantined));
    let heir = fleet.replicate();
    assert_eq!(heir.unwrap_err().code(), "deny_quarantined");
}
