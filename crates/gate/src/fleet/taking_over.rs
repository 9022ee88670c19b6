//! Taking over workers that outlived their controller: their papers are checked anew, and the record says how far their meters
//! were read.

use std::collections::{HashMap, HashSet};

use belljar_ledger::{Ledger, Reader};
use belljar_manifest::lineage::Envelope;
use belljar_replication::{State, Usage, What, WorkerId};

use super::folding::{content, decode, portions};
use super::papers::Papers;
use crate::keyring::Keyring;
use crate::log::LogError;

/// Somebody whose keeper lives.
#[derive(Clone, Debug)]
pub struct Living {
    /// Who, as its keeper says.
    pub worker: WorkerId,
    /// The manifest it was started with.
    pub envelope: Vec<u8>,
}

/// A worker that was taken over.
#[derive(Debug)]
pub struct Adopted {
    /// Its papers, which hold.
    pub papers: Papers,
    /// How far its meter was charged for.
    pub told: Usage,
    parent: Option<WorkerId>,
}

impl Adopted {
    /// Who.
    #[must_use]
    pub fn worker(&self) -> WorkerId {
        self.papers.worker()
    }

    /// The live worker it is charged to, if any.
    #[must_use]
    pub fn parent(&self) -> Option<WorkerId> {
        self.parent
    }
}

/// Those of the living that the record knows as alive, and whose manifests are genuine.
pub(super) fn adopt(
    ledger: &Ledger,
    keyring: &Keyring,
    state: &State,
    living: Vec<Living>,
) -> Result<Vec<Adopted>, LogError> {
    let mut adopted = Vec::with_capacity(living.len());
    for known in living {
        let opened = Envelope::parse(&known.envelope).and_then(|envelope| {
            let verified = envelope.open(keyring.keyset())?;
            Ok(Papers::of(envelope, verified))
        });
        let Some(papers) = opened.ok().filter(|papers| papers.worker() == known.worker) else {
            continue;
        };
        let Some(view) = state.worker(known.worker) else {
            continue;
        };
        adopted.push(Adopted {
            papers,
            told: Usage::default(),
            parent: view.parent,
        });
    }
    if !adopted.is_empty() {
        let wanted = adopted.iter().map(Adopted::worker).collect();
        let mut told = readings(ledger, wanted)?;
        for known in &mut adopted {
            known.told = told.remove(&known.worker()).unwrap_or_default();
        }
    }
    Ok(adopted)
}

/// The last readings of these workers' meters on record. The log is read from its end, as far as it takes.
fn readings(
    ledger: &Ledger,
    mut wanted: HashSet<WorkerId>,
) -> Result<HashMap<WorkerId, Usage>, LogError> {
    let reader = Reader::open(ledger.directory()).map_err(content(0))?;
    let mut found = HashMap::new();
    for portion in portions(0, reader.size()).into_iter().rev() {
        if wanted.is_empty() {
            break;
        }
        let (events, whole) = decode(&reader, portion);
        whole?;
        for (_, event) in events.into_iter().rev() {
            match event.what {
                What::UsageReported {
                    worker,
                    reading: Some(reading),
                    ..
                } if wanted.remove(&worker) => {
                    found.insert(worker, reading);
                }
                // Nothing of it was on record before it was let in.
                What::Registered { worker, .. } => {
                    wanted.remove(&worker);
                }
                What::RootAdmitted(root) => {
                    wanted.remove(&root.worker);
                }
                _ => {}
            }
        }
    }
    Ok(found)
}
