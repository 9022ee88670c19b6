//! `belljar experiment run --live`: a scenario with real boxes, through the door that every family has.
//!
//! Each run has a state directory of its own, so that its record can be verified afterwards. What the kill switch left behind is
//! counted in the process table, by a mark that every agent of the run carries: the controller is not asked about its own work.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use belljar_api::{
    AcknowledgeClock, Because, Empty, EngageKillSwitch, EngageRequest, ListWorkers, Quarantine,
    Release, SubtreeRequest, WorkerState,
};
use belljar_experiment::live::{Delays, Observed, Switched, Task, chronicle, delays, roots};
use belljar_experiment::{
    Experiment, Latency, Operation, Results, Run, RunKey, Scenario, StoreError,
};
use belljar_gate::{FleetEntry, LogKind};
use belljar_ledger::Reader;
use belljar_supervisor::fleet::{Fleet, FleetSetup, Operator};
use belljar_supervisor::{Command, Output, SandboxId, StateDir};

use crate::commands::agent::said;
use crate::exit::Failure;
use crate::print::harmless;

/// How long the process table is watched for whoever survives a kill switch.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often it is looked at what is left.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// How much later than its preparation a run may begin.
const LATE_START: Duration = Duration::from_secs(1);
/// What took time, in a run's own place.
const DELAYS: &str = "delays.json";
const LONGEST_NAP: Duration = Duration::from_millis(20);

/// Carries an experiment out, one run at a time: boxes of two runs would share the processors.
pub(super) fn run_into(
    experiment: &Experiment,
    directory: &Path,
    progress: impl FnMut(u64, u64),
) -> Result<Results, Failure> {
    belljar_experiment::live::check(experiment)
        .map_err(|error| Failure::Invalid(error.to_string(), error.hint().to_owned()))?;
    std::fs::create_dir_all(directory).map_err(|error| unusable(directory, &error))?;
    let directory = directory
        .canonicalize()
        .map_err(|error| unusable(directory, &error))?;
    let hire = || {
        |scenario: &Scenario, key: RunKey| {
            one_run(scenario, key, &directory)
                .map_err(|failure| StoreError::Live(failure.message()))
        }
    };
    Ok(belljar_experiment::run_into_by(
        experiment, &directory, 1, hire, progress,
    )?)
}

/// Each cell simulated on the same luck, with what took time in its live runs. Cells of which too little was seen are left out.
pub(super) fn twins(results: &Results, directory: &Path) -> Vec<Twin> {
    let points = (0..).zip(&results.manifest.points);
    let twin = |(cell, point): (u32, &Vec<f64>)| {
        let mut took = Delays::default();
        for run in results.cell(cell) {
            let place = directory.join(belljar_experiment::live_place(cell, run.replicate));
            let bytes = std::fs::read(place.join(DELAYS)).ok()?;
            took.add(serde_json::from_slice(&bytes).ok()?);
        }
        let latency = took.latency()?;
        let mut scenario = results.experiment.scenario_at(point);
        scenario.latency = latency;
        let runs = results.cell(cell).iter().map(|run| {
            let key = results.experiment.key(cell, run.replicate);
            belljar_experiment::simulate(&scenario, key).ok()
        });
        let runs = runs.collect::<Option<_>>()?;
        Some(Twin {
            cell,
            latency,
            runs,
        })
    };
    points.filter_map(twin).collect()
}

/// The simulated twin of a cell with real boxes.
pub(super) struct Twin {
    pub(super) cell: u32,
    pub(super) latency: Latency,
    pub(super) runs: Vec<Run>,
}

fn unusable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::Invalid(
        format!("{}: {error}", path.display()),
        "name a directory that you can write to".into(),
    )
}

fn one_run(scenario: &Scenario, key: RunKey, directory: &Path) -> Result<Run, Failure> {
    let place = directory.join(belljar_experiment::live_place(key.cell, key.replicate));
    // What an interrupted run left is of no use.
    let _ = std::fs::remove_dir_all(&place);
    let work = place.join("work");
    std::fs::create_dir_all(&work).map_err(|error| unusable(&work, &error))?;
    let stage = Stage {
        scenario,
        state: StateDir::at(place.join("state"))?,
        work,
        mark: format!("live-{}", SandboxId::random()?),
    };
    let observed = stage.play(key)?;
    let events = stage.record()?;
    let took = delays(scenario, key, &events);
    let took = serde_json::to_vec(&took).unwrap_or_default();
    let keep = |name: &str, bytes: &[u8]| {
        belljar_files::replace(&place.join(name), bytes, 0o644)
            .map_err(|error| unusable(&place, &error))
    };
    keep(DELAYS, &took)?;
    let (run, trace) = chronicle(scenario, key, events, &observed);
    let lives = serde_json::to_vec(&trace.lives).unwrap_or_default();
    keep("lives.json", &lives)?;
    Ok(run)
}

struct Stage<'a> {
    scenario: &'a Scenario,
    state: StateDir,
    work: PathBuf,
    mark: String,
}

impl Stage<'_> {
    /// Starts the roots, does what the operator does, and ends everybody at the horizon.
    fn play(&self, key: RunKey) -> Result<Observed, Failure> {
        let fleet = Fleet::open(
            &self.state,
            self.scenario.contract.clone(),
            FleetSetup::default(),
        )?;
        let fleet = &fleet;
        let mut waiting = roots(self.scenario, key).into_iter();
        let first: usize = self
            .scenario
            .groups
            .iter()
            .map(|group| group.roots as usize)
            .sum();
        let failed: Mutex<Option<Failure>> = Mutex::new(None);
        let failed = &failed;
        let begun = Instant::now();
        let seen = std::thread::scope(|scope| {
            let mut hands = Vec::new();
            let mut hire = |task: Task| {
                hands.push(scope.spawn(move || {
                    if let Err(failure) = self.keep(fleet, task) {
                        // A root that the contract does not let in is a result, and on record.
                        if !matches!(failure, Failure::Fleet(_)) {
                            failed
                                .lock()
                                .unwrap_or_else(std::sync::PoisonError::into_inner)
                                .get_or_insert(failure);
                        }
                    }
                }));
            };
            waiting.by_ref().take(first).for_each(&mut hire);
            let seen = self.operate(begun, &mut || {
                if let Some(task) = waiting.next() {
                    hire(task);
                }
            });
            let is_over = || fleet.boxes() == 0 && hands.iter().all(|hand| hand.is_finished());
            if seen.is_ok() {
                self.idle(begun, is_over);
            }
            // Whatever happened, nobody is left. It is past the horizon, so that this is not counted.
            if !is_over() {
                self.pull()?;
            }
            seen
        })?;
        fleet.wait(PATIENCE);
        match failed
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .take()
        {
            Some(failure) => Err(failure),
            None => Ok(seen),
        }
    }

    fn keep(&self, fleet: &Fleet, task: Task) -> Result<(), Failure> {
        let capability = belljar_manifest::profile("moderate").ok_or_else(|| {
            Failure::Invalid("no profile moderate".into(), "this is a defect".into())
        })?;
        let own = ["/belljar/bin/belljar", "agent", "subject", &self.mark];
        let command =
            Command::new(own.map(std::ffi::OsString::from).to_vec()).workdir(self.work.clone());
        let told = serde_json::to_vec(&task).unwrap_or_default();
        let result = fleet.run_root(capability, command, Some(told), Output::Capture)?;
        match (result.killed_by, result.exit_code) {
            (None, Some(code)) if code != 0 => {
                let said = result.stderr.unwrap_or_default();
                Err(Failure::Invalid(
                    format!("an agent ended with code {code}: {}", harmless(said.trim())),
                    "its box must let it run".into(),
                ))
            }
            _ => Ok(()),
        }
    }

    fn operator(&self) -> Result<Operator, Failure> {
        Ok(Operator::reach(&self.state)?)
    }

    /// Does what the scenario's operator does, each act in its time.
    fn operate(&self, begun: Instant, admit: &mut dyn FnMut()) -> Result<Observed, Failure> {
        let mut acts = self.scenario.operations.clone();
        acts.sort_by_key(|(at_ns, _)| *at_ns);
        let mut observed = Observed::default();
        for (at_ns, act) in acts {
            if at_ns > self.scenario.horizon_ns {
                break;
            }
            nap_until(begun + Duration::from_nanos(at_ns));
            match act {
                Operation::AdmitRoot => admit(),
                Operation::KillSwitch => observed.switch = Some(self.pull()?),
                Operation::AcknowledgeClock => {
                    let because = Because {
                        reason: said("the scenario's operator".into())?,
                    };
                    // Nothing to acknowledge is no failure of the run.
                    let _ = self.operator()?.client.call::<AcknowledgeClock>(&because);
                }
                Operation::QuarantineRoots => self.each_root(|operator, id, because| {
                    let _ = operator.client.call_on::<Quarantine>(id, because);
                })?,
                Operation::ReleaseRoots => self.each_root(|operator, id, because| {
                    let _ = operator.client.call_on::<Release>(id, because);
                })?,
                // Refused before anything was started.
                Operation::Reset => {}
            }
        }
        Ok(observed)
    }

    fn each_root(
        &self,
        mut act: impl FnMut(&mut Operator, &belljar_api::WorkerId, &SubtreeRequest),
    ) -> Result<(), Failure> {
        let mut operator = self.operator()?;
        let list = operator.client.call::<ListWorkers>(&Empty {})?;
        let because = SubtreeRequest {
            reason: said("the scenario's operator".into())?,
            subtree: false,
        };
        for worker in &list.workers {
            if worker.state != WorkerState::Ended && worker.depth == 0 {
                act(&mut operator, &worker.id, &because);
            }
        }
        Ok(())
    }

    /// Pulls the kill switch and watches the process table until nobody with the mark is left.
    fn pull(&self) -> Result<Switched, Failure> {
        let mut operator = self.operator()?;
        let reason = said("the scenario's operator".into())?;
        let at_ns = belljar_gate::clock::now().boot_ns;
        operator
            .client
            .call::<EngageKillSwitch>(&EngageRequest { reason })?;
        let until = Instant::now() + PATIENCE;
        loop {
            let left = boxes_marked(&self.mark);
            if left == 0 {
                let gone_ns = Some(belljar_gate::clock::now().boot_ns);
                return Ok(Switched {
                    at_ns,
                    gone_ns,
                    survivors: 0,
                });
            }
            if Instant::now() >= until {
                return Ok(Switched {
                    at_ns,
                    gone_ns: None,
                    survivors: left,
                });
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Waits for the horizon, or until nobody is left.
    fn idle(&self, begun: Instant, is_over: impl Fn() -> bool) {
        // The run begins with its first root, a little later than this process thinks.
        let horizon = begun + Duration::from_nanos(self.scenario.horizon_ns) + LATE_START;
        while Instant::now() < horizon && !is_over() {
            std::thread::sleep(LONGEST_NAP);
        }
    }

    /// The controller's events, from its log.
    fn record(&self) -> Result<Vec<belljar_replication::Event>, Failure> {
        let fault = |fault| Failure::Fault(LogKind::Fleet, fault);
        let reader = Reader::open(&LogKind::Fleet.directory(self.state.path())).map_err(fault)?;
        let mut events = Vec::new();
        let mut entries = reader.entries(0);
        while let Some(entry) = entries.next_borrowed() {
            let (index, bytes) = entry.map_err(fault)?;
            match serde_json::from_slice(bytes) {
                Ok(FleetEntry::Event(event)) => events.push(event),
                Ok(FleetEntry::Note(_)) => {}
                Err(error) => {
                    return Err(Failure::Invalid(
                        format!("entry {index} of the record can't be read: {error}"),
                        "`belljar audit verify --log fleet` says more".into(),
                    ));
                }
            }
        }
        Ok(events)
    }
}

fn nap_until(moment: Instant) {
    std::thread::sleep(moment.saturating_duration_since(Instant::now()));
}

/// How many boxes have a process that carries the mark: as many as there are process namespaces of such.
fn boxes_marked(mark: &str) -> u64 {
    let Ok(processes) = std::fs::read_dir("/proc") else {
        return 0;
    };
    let own = |process: std::fs::DirEntry| {
        let path = process.path();
        // A process that is past its last instruction has no command line any more.
        let words = std::fs::read(path.join("cmdline")).ok()?;
        let is_marked = words
            .split(|byte| *byte == 0)
            .any(|word| word == mark.as_bytes());
        is_marked.then(|| std::fs::read_link(path.join("ns/pid")).ok())
    };
    let found: BTreeSet<_> = processes.flatten().filter_map(own).collect();
    found.len() as u64
}
