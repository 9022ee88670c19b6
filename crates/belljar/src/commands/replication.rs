//! `belljar replication …`: the operator's view of a family, and the operator's hand.

use std::fmt::Write as _;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use belljar_api::{
    AcknowledgeClock, Because, BudgetView, BumpEpoch, CallError, Client, Empty, EngageKillSwitch,
    EngageRequest, Engagement, Kill, KillReport, KillRequest, KillSwitchView, ListWorkers,
    Quarantine, ReadKillSwitch, ReadTree, Release, ResetKillSwitch, ResetRequest, Revoke,
    RevokeRequest, Shown, SubtreeRequest, WorkerId, WorkerState, WorkerView,
};
use belljar_gate::in_full;
use belljar_gate::keyring::KeySource;
use belljar_supervisor::StateDir;
use belljar_supervisor::fleet::{self, Operator};
use serde_json::json;

use super::agent::said;
use super::supervisor::Reached;
use crate::cli::OutputFormat;
use crate::cli::replication::{Contract, KillSwitch, OnWorker, Replication};
use crate::exit::{self, Failure};
use crate::print::{self, Line};

/// A supervisor that has not engaged the kill switch by then is not asked any more.
const ENGAGED_WITHIN: Duration = Duration::from_secs(30);
/// Nor one under which no box ended for so long: it takes well under a second for hundreds of agents, but on a busy machine.
const STUCK_AFTER: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(100);

pub(crate) fn replication(command: Replication) -> Result<u8, Failure> {
    match command {
        Replication::Tree(format) => {
            let list = match reach_if_there()? {
                Some(mut reached) => reached.client.call::<ReadTree>(&Empty {})?,
                None => past_workers()?,
            };
            show(format.output, &list, || tree(&list.workers));
        }
        Replication::Workers { all, format } => {
            let mut list = match reach_if_there()? {
                Some(mut reached) => reached.client.call::<ListWorkers>(&Empty {})?,
                None if all => past_workers()?,
                // Nobody can be alive.
                None => return Err(no_controller()),
            };
            list.workers
                .retain(|worker| all || worker.state != WorkerState::Ended);
            show(format.output, &list, || table(&list.workers));
        }
        Replication::Quarantine { on, subtree } => {
            let mut operator = reach()?;
            let worker = find(&mut operator, &on.worker)?;
            let request = SubtreeRequest {
                reason: said(on.reason.clone())?,
                subtree,
            };
            after(
                &on,
                &operator.client.call_on::<Quarantine>(&worker, &request)?,
            );
        }
        Replication::Release { on, subtree } => {
            let mut operator = reach()?;
            let worker = find(&mut operator, &on.worker)?;
            let request = SubtreeRequest {
                reason: said(on.reason.clone())?,
                subtree,
            };
            after(&on, &operator.client.call_on::<Release>(&worker, &request)?);
        }
        Replication::Kill { on, subtree } => {
            let mut operator = reach()?;
            let worker = find(&mut operator, &on.worker)?;
            let request = KillRequest {
                reason: said(on.reason)?,
                subtree,
            };
            let report = operator.client.call_on::<Kill>(&worker, &request)?;
            return Ok(tell(on.format.output, &report));
        }
        Replication::Revoke(on) => {
            let mut operator = reach()?;
            let worker_id = find(&mut operator, &on.worker)?;
            let request = RevokeRequest {
                worker_id,
                reason: said(on.reason)?,
            };
            let revoked = operator.client.call::<Revoke>(&request)?;
            return Ok(tell(on.format.output, &revoked.report));
        }
        Replication::BumpEpoch(format) => {
            let because = Because {
                reason: said("bump-epoch".into())?,
            };
            let bumped = reach()?.client.call::<BumpEpoch>(&because)?;
            show(format.output, &bumped, || {
                format!("epoch {}\n", bumped.epoch)
            });
        }
        Replication::AcknowledgeClock(format) => {
            let because = Because {
                reason: said("acknowledge-clock".into())?,
            };
            let done = reach()?.client.call::<AcknowledgeClock>(&because)?;
            show(format.output, &done, || {
                "the clock counts as steady\n".into()
            });
        }
        Replication::KillSwitch(command) => return kill_switch(command),
        Replication::Contract(Contract::Validate { file, format }) => {
            return validate(&file, format.output);
        }
    }
    Ok(exit::OK)
}

fn reach() -> Result<Reached, Failure> {
    reach_if_there()?.ok_or_else(no_controller)
}

/// The controller, if one runs. One that was named elsewhere and does not answer is an error, not an end.
fn reach_if_there() -> Result<Option<Reached>, Failure> {
    if let Some(reached) = Reached::named() {
        return reached.map(Some);
    }
    match Operator::reach(&StateDir::existing()?) {
        Ok(operator) => Ok(Some(Reached::of(operator))),
        Err(CallError::NotThere { .. }) => Ok(None),
        Err(other) => Err(other.into()),
    }
}

fn no_controller() -> Failure {
    Failure::Invalid(
        "no controller runs in this state directory".into(),
        "`belljar run --contract contract.yaml -- …` starts one; `belljar replication workers --all` lists who there was; \
         BELLJAR_STATE_DIR says where to look"
            .into(),
    )
}

/// A family that is over, by its log.
fn past_workers() -> Result<belljar_api::WorkerList, Failure> {
    let past = super::past::workers()?.ok_or_else(no_controller)?;
    print::line(
        Line::Note,
        "no controller runs: this is what the log tells of the last one's family",
    );
    Ok(past)
}

/// The worker of that name, or whose id begins like this.
fn find(operator: &mut Reached, given: &str) -> Result<WorkerId, Failure> {
    match operator.find(given) {
        Ok(agent) => Ok(agent.id.worker()),
        // A family that no supervisor keeps has workers, and no agents.
        Err(_) => worker(operator, given),
    }
}

fn worker(operator: &mut Reached, given: &str) -> Result<WorkerId, Failure> {
    let list = operator.client.call::<ListWorkers>(&Empty {})?;
    let begins = |worker: &&WorkerView| !given.is_empty() && worker.id.as_str().starts_with(given);
    let live = list
        .workers
        .iter()
        .filter(|worker| worker.state != WorkerState::Ended)
        .filter(begins);
    let live: Vec<&WorkerView> = live.collect();
    let all: Vec<&WorkerView> = list.workers.iter().filter(begins).collect();
    match (live.as_slice(), all.as_slice()) {
        ([one], _) | ([], [one]) => Ok(one.id.clone()),
        (several, _) => Err(Failure::Invalid(
            format!("{} workers begin with {given:?}", several.len()),
            "`belljar replication workers --all` lists them".into(),
        )),
    }
}

/// Has the controller engage the switch, and waits as long as boxes go on ending under it. One that hangs keeps nobody alive.
fn engage_while_it_gets_on(
    operator: Operator,
    request: EngageRequest,
    state: &StateDir,
) -> Result<KillReport, String> {
    let mut client = operator.client.with_deadline(ENGAGED_WITHIN);
    let (answer, answered) = mpsc::channel();
    let asking = move || answer.send(client.call::<EngageKillSwitch>(&request));
    std::thread::spawn(asking);
    let mut left = state.running().len();
    let mut since = Instant::now();
    loop {
        match answered.recv_timeout(LOOK_AGAIN) {
            Ok(answer) => return answer.map_err(|error| in_full(&error)),
            Err(RecvTimeoutError::Disconnected) => return Err("it was not asked".into()),
            Err(RecvTimeoutError::Timeout) => {}
        }
        let running = state.running().len();
        if running < left {
            (left, since) = (running, Instant::now());
        } else if since.elapsed() >= STUCK_AFTER {
            return Err("it did not get on with it".into());
        }
    }
}

pub(super) fn kill_switch(command: KillSwitch) -> Result<u8, Failure> {
    if let Some(reached) = Reached::named() {
        return kill_switch_of(&mut reached?.client, command);
    }
    let state = StateDir::existing()?;
    let keys = belljar_supervisor::key_source();
    match command {
        KillSwitch::Engage { reason, format } => {
            let mut report = match Operator::reach(&state) {
                Ok(operator) => {
                    let request = EngageRequest {
                        reason: said(reason.clone())?,
                    };
                    let before = state.running().len();
                    let controller = engage_while_it_gets_on(operator, request, &state);
                    // Runs that no controller keeps are no exception.
                    let lone = fleet::kill_lone_runs(&state, None);
                    let mut report = match controller {
                        Ok(report) => report,
                        Err(why) => {
                            let text = format!("the supervisor did not do it: {why}");
                            print::line(Line::Note, &text);
                            let mut report = engage_alone(&state, &reason, keys);
                            // Whom it killed until then has ended as well.
                            let ended = before.saturating_sub(state.running().len()) as u64;
                            report.killed =
                                report.killed.max(ended.saturating_sub(lone.killed.into()));
                            report
                        }
                    };
                    report.killed += u64::from(lone.killed);
                    report.boxes += u64::from(lone.killed);
                    report.survivors += u64::from(lone.survivors);
                    report
                }
                // Nobody there, or nobody who answers: nothing of that keeps anybody alive.
                Err(_) => engage_alone(&state, &reason, keys),
            };
            report.boxes = report
                .boxes
                .max(report.killed.saturating_sub(report.survivors));
            Ok(tell_engagement(format.output, &report))
        }
        KillSwitch::Reset { reason, format } => {
            let was_engaged = fleet::kill_switch(&state).is_some();
            match Operator::reach(&state) {
                Ok(mut operator) => {
                    operator.client.call::<ResetKillSwitch>(&ResetRequest {
                        reason: said(reason)?,
                    })?;
                }
                Err(CallError::NotThere { .. }) => {
                    fleet::reset_alone(&state, &reason, keys)?;
                }
                Err(error) => return Err(error.into()),
            }
            tell_reset(format.output, was_engaged);
            Ok(exit::OK)
        }
        KillSwitch::Status(format) => {
            // The one that runs knows more: its memory may be all that holds it.
            if let Ok(mut operator) = Operator::reach(&state)
                && let Ok(view) = operator.client.call::<ReadKillSwitch>(&Empty {})
                && view.engaged.is_some()
            {
                return Ok(tell_view(format.output, &view));
            }
            let found = fleet::kill_switch(&state);
            let view = KillSwitchView {
                engaged: found.map(|(engaged, holder)| Engagement {
                    reason: Shown::new(&engaged.reason),
                    since_ms: engaged.at_ms,
                    held_by: Some(Shown::new(&holder.to_string())),
                }),
            };
            Ok(tell_view(format.output, &view))
        }
    }
}

/// The kill switch of a supervisor that was named: what is on this machine is not meant.
fn kill_switch_of(client: &mut Client, command: KillSwitch) -> Result<u8, Failure> {
    match command {
        KillSwitch::Engage { reason, format } => {
            let reason = said(reason)?;
            let report = client.call::<EngageKillSwitch>(&EngageRequest { reason })?;
            Ok(tell_engagement(format.output, &report))
        }
        KillSwitch::Reset { reason, format } => {
            let was_engaged = client.call::<ReadKillSwitch>(&Empty {})?.engaged.is_some();
            let reason = said(reason)?;
            client.call::<ResetKillSwitch>(&ResetRequest { reason })?;
            tell_reset(format.output, was_engaged);
            Ok(exit::OK)
        }
        KillSwitch::Status(format) => {
            let view = client.call::<ReadKillSwitch>(&Empty {})?;
            Ok(tell_view(format.output, &view))
        }
    }
}

fn tell_reset(output: OutputFormat, was_engaged: bool) {
    let view = json!({"was_engaged": was_engaged});
    show(output, &view, || match was_engaged {
        true => "the kill switch is off\n".into(),
        false => "the kill switch was not engaged\n".into(),
    });
}

fn tell_view(output: OutputFormat, view: &KillSwitchView) -> u8 {
    let engaged = view.engaged.as_ref();
    let mut shown = json!(view);
    if let Some(engaged) = engaged {
        // As it has always been called here.
        shown["engaged"]["at_ms"] = json!(engaged.since_ms);
    }
    show(output, &shown, || match engaged {
        Some(engaged) => {
            let by = engaged.held_by.as_ref();
            let by = by.map_or_else(String::new, |by| format!("; held by {by}"));
            format!(
                "engaged since {}: {}{by}\n",
                print::utc(engaged.since_ms),
                engaged.reason
            )
        }
        None => "not engaged\n".into(),
    });
    match engaged {
        Some(_) => exit::NO,
        None => exit::OK,
    }
}

fn validate(file: &std::path::Path, format: OutputFormat) -> Result<u8, Failure> {
    let contract = belljar_manifest::read_contract_file(file)?;
    if let Err(unsound) = check_conditions(file, &contract) {
        if format == OutputFormat::Json {
            let Unsound { place, message } = unsound;
            print::json(&json!({"valid": false, "error": {"place": place, "message": message}}));
        } else {
            print::line(Line::Error, &unsound.to_string());
            print::line(Line::Hint, &known_names());
        }
        return Ok(exit::NO);
    }
    show(
        format,
        &json!({"valid": true, "contract": contract}),
        || {
            format!(
                "{}: valid: depth {}, {} alive at once, {} stop conditions\n",
                file.display(),
                contract.max_depth,
                contract.max_replicas,
                contract.stop_conditions.len()
            )
        },
    );
    Ok(exit::OK)
}

/// A contract that can be held to, down to the last stop condition.
pub(crate) fn read_contract(file: &std::path::Path) -> Result<belljar_policy::Contract, Failure> {
    let contract = belljar_manifest::read_contract_file(file)?;
    match check_conditions(file, &contract) {
        Ok(()) => Ok(contract),
        Err(unsound) => Err(Failure::Invalid(unsound.to_string(), known_names())),
    }
}

/// A stop condition that can't be used.
struct Unsound {
    place: String,
    message: String,
}

impl std::fmt::Display for Unsound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.place, self.message)
    }
}

fn check_conditions(
    file: &std::path::Path,
    contract: &belljar_policy::Contract,
) -> Result<(), Unsound> {
    belljar_replication::check_conditions(&contract.stop_conditions).map_err(|invalid| Unsound {
        message: belljar_gate::in_full(&invalid),
        place: match invalid.line {
            0 => file.display().to_string(),
            line => format!("{}:{line}", file.display()),
        },
    })
}

fn known_names() -> String {
    let names: Vec<_> = belljar_replication::VARIABLES
        .iter()
        .map(|v| v.name)
        .collect();
    format!("known names: {}", names.join(", "))
}

fn after(on: &OnWorker, worker: &WorkerView) {
    show(on.format.output, worker, || {
        format!("{} is {}\n", worker.id, state_word(worker.state))
    });
}

/// A kill's report, and the exit code that goes with it: survivors are a failure.
pub(super) fn tell(format: OutputFormat, report: &KillReport) -> u8 {
    show(format, report, || {
        format!(
            "killed {} workers, {} boxes, in {:.1} ms; survivors: {}\n",
            report.killed,
            report.boxes,
            report.elapsed_us as f64 / 1000.0,
            report.survivors
        )
    });
    if let Some(why) = &report.not_recorded {
        print::line(
            Line::Note,
            &format!("it is done, and not on record: {}", why.as_str()),
        );
    }
    if report.survivors > 0 {
        exit::NO
    } else {
        exit::OK
    }
}

/// The same of the kill switch: what is not on record, or holds nowhere, has a code of its own.
fn tell_engagement(format: OutputFormat, report: &KillReport) -> u8 {
    let code = tell(format, report);
    match &report.held_by {
        Some(by) => print::line(
            Line::Note,
            &format!("nothing starts any more; held by {by}"),
        ),
        None => print::line(
            Line::Error,
            "nothing holds the kill switch: see to the disk of the state directory, and engage it again",
        ),
    }
    match code {
        exit::OK if report.not_recorded.is_some() || report.held_by.is_none() => exit::UNRECORDED,
        code => code,
    }
}

/// Kills with no controller to do it, and says what could not be kept.
fn engage_alone(state: &StateDir, reason: &str, keys: KeySource) -> KillReport {
    let since = std::time::Instant::now();
    let done = fleet::engage_alone(state, reason, keys);
    KillReport {
        killed: u64::from(done.kills.killed),
        boxes: u64::from(done.kills.killed),
        survivors: u64::from(done.kills.survivors),
        elapsed_us: u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX),
        entry: None,
        not_recorded: done.unrecorded.map(|error| Shown::new(&in_full(&error))),
        held_by: match done.held_by {
            Ok(holder) => Some(Shown::new(&holder.to_string())),
            Err(error) => {
                print::line(Line::Error, &in_full(&error));
                None
            }
        },
    }
}

fn show(format: OutputFormat, value: &impl serde::Serialize, text: impl FnOnce() -> String) {
    match format {
        OutputFormat::Json => print::json(value),
        OutputFormat::Text => print::out(&text()),
    }
}

/// How one that was to be frozen is.
pub(crate) fn held(name: &str, state: WorkerState) -> String {
    match state {
        WorkerState::Freezing => format!(
            "{name} was told to hold still and does not yet: some of it may still run. It is killed if it does not in time"
        ),
        _ => format!("{name} is in quarantine"),
    }
}

/// A worker's state as a word.
pub(crate) fn state_word(state: WorkerState) -> &'static str {
    match state {
        WorkerState::Starting => "starting",
        WorkerState::Running => "running",
        WorkerState::Freezing => "freezing",
        WorkerState::Quarantined => "quarantined",
        WorkerState::Ended => "ended",
    }
}

/// The family as a tree; parents come before their children.
fn tree(workers: &[WorkerView]) -> String {
    if workers.is_empty() {
        return "nobody is alive\n".into();
    }
    let mut text = String::new();
    let is_root = |worker: &&WorkerView| {
        !workers
            .iter()
            .any(|other| Some(&other.id) == worker.parent.as_ref())
    };
    for root in workers.iter().filter(is_root) {
        branch(&mut text, workers, root, "", "");
    }
    text
}

fn branch(text: &mut String, workers: &[WorkerView], worker: &WorkerView, lead: &str, below: &str) {
    let _ = writeln!(text, "{lead}{}", describe(worker));
    let children: Vec<&WorkerView> = workers
        .iter()
        .filter(|child| child.parent.as_ref() == Some(&worker.id))
        .collect();
    for (number, child) in children.iter().enumerate() {
        let (mark, bar) = if number + 1 == children.len() {
            ("└─ ", "   ")
        } else {
            ("├─ ", "│  ")
        };
        branch(
            text,
            workers,
            child,
            &format!("{below}{mark}"),
            &format!("{below}{bar}"),
        );
    }
}

fn describe(worker: &WorkerView) -> String {
    let mut line = format!(
        "{:.8}  {}  {:.1}s",
        worker.id.as_str(),
        state_word(worker.state),
        worker.age_ms as f64 / 1000.0
    );
    if let Some(by) = &worker.ended_by {
        let _ = write!(line, "  {}", print::harmless(by.code.as_str()));
        if let Some(how) = &by.reason {
            let _ = write!(line, " ({})", print::harmless(how.as_str()));
        }
    }
    if let Some(left) = worker.expires_in_ms {
        let _ = write!(line, "  expires in {:.0}s", left as f64 / 1000.0);
    }
    let budget = &worker.budget;
    for (name, granted, available) in [
        (
            "replicas",
            budget.granted.replicas,
            budget.available.replicas,
        ),
        (
            "memory",
            budget.granted.memory_mb,
            budget.available.memory_mb,
        ),
        ("processes", budget.granted.pids, budget.available.pids),
        ("tokens", budget.granted.tokens, budget.available.tokens),
    ] {
        if let (Some(granted), Some(available)) = (granted, available) {
            let _ = write!(line, "  {name} {available}/{granted}");
        }
    }
    if let Some(command) = &worker.command {
        let _ = write!(line, "  {}", print::harmless(command.as_str()));
    }
    line
}

fn table(workers: &[WorkerView]) -> String {
    let mut text = format!(
        "{:32}  {:11}  {:>5}  {:>8}  {}\n",
        "ID", "STATE", "DEPTH", "AGE", "PARENT"
    );
    for worker in workers {
        let parent = worker.parent.as_ref().map_or("-", WorkerId::as_str);
        let ended = worker
            .ended_by
            .as_ref()
            .map(|by| format!("  {}", by.code.as_str()))
            .unwrap_or_default();
        let age = format!("{:.1}s", worker.age_ms as f64 / 1000.0);
        let _ = writeln!(
            text,
            "{:32}  {:11}  {:>5}  {age:>8}  {parent}{ended}",
            worker.id.as_str(),
            state_word(worker.state),
            worker.depth
        );
    }
    text
}

/// A budget, a line for each thing it counts.
pub(crate) fn budget_table(budget: &BudgetView) -> String {
    let mut text = format!(
        "{:12}  {:>12}  {:>12}  {:>12}  {:>12}\n",
        "", "GRANTED", "OWN", "SPENT", "AVAILABLE"
    );
    let bounded =
        |amount: Option<u64>| amount.map_or_else(|| "-".to_owned(), |amount| amount.to_string());
    for (name, granted, own, spent, available) in [
        (
            "replicas",
            budget.granted.replicas,
            budget.own.replicas,
            budget.spent.replicas,
            budget.available.replicas,
        ),
        (
            "cpu_ms",
            budget.granted.cpu_ms,
            budget.own.cpu_ms,
            budget.spent.cpu_ms,
            budget.available.cpu_ms,
        ),
        (
            "memory_mb",
            budget.granted.memory_mb,
            budget.own.memory_mb,
            budget.spent.memory_mb,
            budget.available.memory_mb,
        ),
        (
            "processes",
            budget.granted.pids,
            budget.own.pids,
            budget.spent.pids,
            budget.available.pids,
        ),
        (
            "tokens",
            budget.granted.tokens,
            budget.own.tokens,
            budget.spent.tokens,
            budget.available.tokens,
        ),
        (
            "micro_usd",
            budget.granted.micro_usd,
            budget.own.micro_usd,
            budget.spent.micro_usd,
            budget.available.micro_usd,
        ),
    ] {
        let _ = writeln!(
            text,
            "{name:12}  {:>12}  {:>12}  {spent:>12}  {:>12}",
            bounded(granted),
            bounded(own),
            bounded(available)
        );
    }
    text
}
