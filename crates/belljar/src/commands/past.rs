//! A family after its end: who there was, by the record.

use std::collections::BTreeMap;

use belljar_api::{BudgetView, EndedBy, Shown, WorkerId, WorkerList, WorkerState, WorkerView};
use belljar_gate::{FleetEntry, FleetNote, LogKind};
use belljar_ledger::{Fault, Reader};
use belljar_replication::What;
use belljar_supervisor::StateDir;

use crate::exit::Failure;

type Id = belljar_replication::WorkerId;

/// What the log tells of one worker.
#[derive(Default)]
struct PastWorker {
    order: u64,
    parent: Option<Id>,
    depth: u32,
    started_ms: u64,
    end: Option<(u64, &'static str)>,
    program: Option<String>,
    /// How its last box ended.
    box_end: Option<String>,
}

/// The workers of the newest controller that kept this log.
#[derive(Default)]
struct PastFamily {
    workers: BTreeMap<Id, PastWorker>,
    /// Those of the controller before: some may be adopted.
    before: BTreeMap<Id, PastWorker>,
}

/// Everybody whom the newest controller of the state directory had; none where there never was one.
pub(super) fn workers() -> Result<Option<WorkerList>, Failure> {
    let log = LogKind::Fleet;
    let reader = match Reader::open(&log.directory(StateDir::existing()?.path())) {
        Ok(reader) => reader,
        Err(Fault::Unreadable { cause, .. }) if cause.kind() == std::io::ErrorKind::NotFound => {
            return Ok(None);
        }
        Err(fault) => return Err(Failure::Fault(log, fault)),
    };
    let mut family = PastFamily::default();
    let mut entries = reader.entries(0);
    while let Some(next) = entries.next_borrowed() {
        let (index, bytes) = next.map_err(|fault| Failure::Fault(log, fault))?;
        match serde_json::from_slice(bytes) {
            Ok(FleetEntry::Event(event)) => family.event(index, event.at.wall_ms, event.what),
            Ok(FleetEntry::Note(note)) => family.note(note.what),
            // A later version's, and not about who there was.
            Err(_) => {}
        }
    }
    Ok(Some(family.into_list()))
}

impl PastFamily {
    fn event(&mut self, index: u64, at_ms: u64, what: What) {
        match what {
            What::ControllerStarted { .. } => self.before = std::mem::take(&mut self.workers),
            What::RootAdmitted(root) => self.begin(index, at_ms, root.worker, None),
            What::Issued(issued) => self.begin(index, at_ms, issued.worker, Some(issued.parent)),
            What::Ended { worker, code } => {
                if let Some(past) = self.workers.get_mut(&worker) {
                    past.end = Some((at_ms, code.code()));
                }
            }
            _ => {}
        }
    }

    fn begin(&mut self, order: u64, started_ms: u64, worker: Id, parent: Option<Id>) {
        let above = parent.and_then(|parent| self.workers.get(&parent));
        let depth = above.map_or(0, |above| above.depth.saturating_add(1));
        let past = PastWorker {
            order,
            parent,
            depth,
            started_ms,
            ..PastWorker::default()
        };
        self.workers.insert(worker, past);
    }

    fn note(&mut self, note: FleetNote) {
        match note {
            FleetNote::WorkersAdopted { workers } => {
                for worker in workers {
                    if let Some(past) = self.before.remove(&worker) {
                        self.workers.insert(worker, past);
                    }
                }
            }
            FleetNote::BoxLaunched {
                worker, program, ..
            } => {
                if let Some(past) = self.workers.get_mut(&worker) {
                    past.program = Some(program);
                }
            }
            FleetNote::BoxEnded {
                worker,
                exit_code,
                signal,
                killed_by,
                ..
            } => {
                if let Some(past) = self.workers.get_mut(&worker) {
                    let exit = exit_code.map(|code| format!("exit code {code}"));
                    let signal = signal.map(|signal| format!("signal {signal}"));
                    let killed = killed_by.map(|by| format!("killed: {by}"));
                    past.box_end = killed.or(exit).or(signal);
                }
            }
            _ => {}
        }
    }

    fn into_list(self) -> WorkerList {
        let mut workers: Vec<(Id, PastWorker)> = self.workers.into_iter().collect();
        workers.sort_by_key(|(_, past)| past.order);
        let workers = workers
            .into_iter()
            .filter_map(|(id, past)| view(id, past))
            .collect();
        WorkerList { workers }
    }
}

fn view(id: Id, past: PastWorker) -> Option<WorkerView> {
    let name = |id: Id| WorkerId::new(id.to_string()).ok();
    let (code, ended_ms) = match past.end {
        Some((at_ms, code)) => (code, at_ms),
        // Its controller was killed, and nobody has taken over since.
        None => ("no_end_on_record", past.started_ms),
    };
    Some(WorkerView {
        id: name(id)?,
        parent: past.parent.and_then(name),
        depth: past.depth,
        state: WorkerState::Ended,
        started_at_ms: past.started_ms,
        age_ms: ended_ms.saturating_sub(past.started_ms),
        expires_in_ms: None,
        last_heartbeat_ms: None,
        command: past.program.as_deref().map(Shown::new),
        budget: BudgetView::default(),
        ended_by: Some(EndedBy {
            code: Shown::new(code),
            reason: past.box_end.as_deref().map(Shown::new),
        }),
    })
}
