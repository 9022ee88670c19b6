//! Turns a checked tree into an experiment.

use std::path::{Path, PathBuf};

use belljar_manifest::ReadError;
use belljar_manifest::document::{
    self, Node, Problem, Shape, number, replace, text, truth, unexpected, whole,
};
use belljar_policy::Contract;

use super::parameter::Parameter;
use super::shape::EXPERIMENT;
use super::{Axis, Experiment, Limits, Method, Output, Sweep, presets};
use crate::law::{Offspring, Span, nanoseconds};
use crate::scenario::{Faults, Group, Latency, Operation, Partition, Scenario, Strategy, Use};

const WHEN_EMPTY: &str =
    "the file is empty; an experiment needs a contract, a population and horizon_seconds";

/// Reads an experiment from its bytes. A contract's file is looked for in `directory`.
pub(super) fn parse(
    file_name: &str,
    bytes: &[u8],
    directory: Option<&Path>,
) -> Result<Experiment, ReadError> {
    let (mut experiment, file) =
        document::parse(file_name, bytes, WHEN_EMPTY, |root| decode(root, file_name))?;
    if let Some(file) = file {
        let path = directory.unwrap_or(Path::new(".")).join(file);
        experiment.scenario.contract = belljar_manifest::read_contract_file(&path)?;
    }
    Ok(experiment)
}

fn decode(root: &Node<'_>, file_name: &str) -> Result<(Experiment, Option<PathBuf>), Problem> {
    Shape::Object(&EXPERIMENT).check(root, "an experiment file")?;
    let (contract, file) = contract(root, file_name)?;
    let horizon_ns = need(root, "horizon_seconds", nanos)?;
    let groups = need(root, "population", groups)?;
    check_roots(root, &groups, &contract, file.is_some())?;
    let first = *groups.first().ok_or_else(|| empty(root, "population"))?;
    let mut scenario = Scenario::new(contract, first, horizon_ns);
    scenario.groups = groups;
    scenario.max_workers = 100_000;
    replace(&mut scenario.max_workers, root.get("max_workers"), whole)?;
    replace(&mut scenario.faults, root.get("faults"), faults)?;
    replace(&mut scenario.latency, root.get("latency"), latency)?;
    replace(&mut scenario.operations, root.get("operator"), operations)?;
    let mut experiment = Experiment::new(file_name, scenario);
    replace(&mut experiment.replicates, root.get("replicates"), whole)?;
    replace(&mut experiment.seed, root.get("seed"), whole)?;
    replace(
        &mut experiment.is_common,
        root.get("common_random_numbers"),
        truth,
    )?;
    replace(&mut experiment.limits, root.get("limits"), limits)?;
    replace(&mut experiment.outputs, root.get("outputs"), outputs)?;
    replace(&mut experiment.sweep, root.get("sweep"), |node| {
        sweep(node).map(Some)
    })?;
    Ok((experiment, file))
}

/// A population that can't even begin is a mistake, unless the quota is varied or stands elsewhere.
fn check_roots(
    root: &Node<'_>,
    groups: &[Group],
    contract: &Contract,
    is_elsewhere: bool,
) -> Result<(), Problem> {
    let roots: u64 = groups.iter().map(|group| u64::from(group.roots)).sum();
    if is_elsewhere || root.get("sweep").is_some() || roots <= u64::from(contract.max_replicas) {
        return Ok(());
    }
    let span = root.get("population").unwrap_or(root).span;
    let message = format!(
        "{roots} roots can't be alive at once: the contract's max_replicas is {}",
        contract.max_replicas
    );
    Err(Problem::new(span, message)
        .with_hint("roots count as replicas; start fewer, or raise max_replicas"))
}

fn contract(root: &Node<'_>, file_name: &str) -> Result<(Contract, Option<PathBuf>), Problem> {
    let sources = ["contract", "contract_file", "template"].map(|key| root.get(key));
    match sources {
        [Some(node), None, None] => {
            let contract = document::decode_contract(node, &std::sync::Arc::from(file_name))?;
            for condition in &contract.stop_conditions {
                belljar_replication::check_conditions(std::slice::from_ref(condition)).map_err(
                    |error| {
                        let message = format!("{error}: {}", error.problem);
                        Problem::new(condition_span(node, &condition.name), message).with_hint(
                            "`belljar replication contract validate` explains conditions",
                        )
                    },
                )?;
            }
            Ok((contract, None))
        }
        [None, Some(node), None] => {
            let path = PathBuf::from(text(node)?);
            Ok((
                Contract::new(0, 1, std::time::Duration::ZERO, None),
                Some(path),
            ))
        }
        [None, None, Some(node)] => {
            let contract = presets::template(text(node)?).ok_or_else(|| unexpected(node))?;
            Ok((contract, None))
        }
        [None, None, None] => Err(Problem::new(root.span, "there is no contract")
            .with_hint("write contract, contract_file or template")),
        more => {
            let second = more.into_iter().flatten().nth(1).unwrap_or(root);
            Err(Problem::new(second.span, "there are two contracts")
                .with_hint("keep one of contract, contract_file and template"))
        }
    }
}

fn condition_span(contract: &Node<'_>, name: &str) -> document::Span {
    let conditions = contract
        .get("stop_conditions")
        .map_or(&[][..], |list| list.items());
    let named = conditions.iter().find(|item| {
        item.get("name")
            .is_some_and(|node| text(node).is_ok_and(|own| own == name))
    });
    named
        .and_then(|item| item.get("when"))
        .unwrap_or(contract)
        .span
}

fn groups(list: &Node<'_>) -> Result<Vec<Group>, Problem> {
    list.items().iter().map(group).collect()
}

fn group(item: &Node<'_>) -> Result<Group, Problem> {
    let mut probability = 0.5;
    replace(&mut probability, item.get("probability"), number)?;
    let mut burst_size = 5;
    replace(&mut burst_size, item.get("burst_size"), whole)?;
    let strategy = need(item, "strategy", |node| {
        strategy(node, probability, burst_size)
    })?;
    let mut group = Group::new(strategy);
    replace(&mut group.roots, item.get("roots"), whole)?;
    replace(&mut group.offspring, item.get("offspring"), offspring)?;
    replace(&mut group.lifetime, item.get("lifetime"), span)?;
    replace(&mut group.pace_ns, item.get("step_seconds"), nanos)?;
    replace(&mut group.memory_mb, item.get("memory_mb"), whole)?;
    let mut uses = Use::default();
    replace(&mut uses.cpu_ms, item.get("cpu_ms_per_second"), whole)?;
    replace(&mut uses.tokens, item.get("tokens_per_second"), whole)?;
    replace(&mut uses.micro_usd, item.get("micro_usd_per_second"), whole)?;
    group.use_per_second = uses;
    Ok(group)
}

fn strategy(node: &Node<'_>, probability: f64, burst_size: u32) -> Result<Strategy, Problem> {
    Ok(match text(node)? {
        "greedy" => Strategy::Greedy,
        "conservative" => Strategy::Conservative,
        "random" => Strategy::Random(probability),
        "chain" => Strategy::Chain,
        "burst" => Strategy::Burst(burst_size),
        "quota_racer" => Strategy::QuotaRacer,
        "cooldown_dodger" => Strategy::CooldownDodger,
        "forger" => Strategy::Forger,
        "replayer" => Strategy::Replayer,
        "orphan_maker" => Strategy::OrphanMaker,
        "shutdown_resister" => Strategy::ShutdownResister,
        "clock_roller" => Strategy::ClockRoller,
        _ => return Err(unexpected(node)),
    })
}

fn offspring(node: &Node<'_>) -> Result<Offspring, Problem> {
    let law = need(node, "law", |node| Ok(text(node)?.to_owned()))?;
    match law.as_str() {
        "unlimited" => Ok(Offspring::Unlimited),
        "fixed" => Ok(Offspring::Fixed(need(node, "number", whole)?)),
        "poisson" => Ok(Offspring::Poisson(need(node, "mean", number)?)),
        "negative_binomial" => Ok(Offspring::NegativeBinomial {
            mean: need(node, "mean", number)?,
            k: need(node, "k", number)?,
        }),
        _ => Err(unexpected(node)),
    }
}

fn span(node: &Node<'_>) -> Result<Span, Problem> {
    let law = need(node, "law", |node| Ok(text(node)?.to_owned()))?;
    match law.as_str() {
        "forever" => Ok(Span::Forever),
        "fixed" => Ok(Span::Fixed(need(node, "seconds", number)?)),
        "exponential" => Ok(Span::Exponential(need(node, "seconds", number)?)),
        _ => Err(unexpected(node)),
    }
}

fn faults(node: &Node<'_>) -> Result<Faults, Problem> {
    let mut faults = Faults {
        restart_ns: 1_000_000_000,
        ..Faults::default()
    };
    replace(
        &mut faults.crashes_ns,
        node.get("controller_crashes_at"),
        |list| list.items().iter().map(nanos).collect(),
    )?;
    replace(&mut faults.restart_ns, node.get("restart_seconds"), nanos)?;
    replace(
        &mut faults.lost_heartbeats,
        node.get("lost_heartbeats"),
        number,
    )?;
    replace(&mut faults.kill_delay, node.get("kill_delay"), span)?;
    replace(&mut faults.partition, node.get("partition"), |node| {
        partition(node).map(Some)
    })?;
    replace(&mut faults.clock_jumps, node.get("clock_jumps"), |list| {
        list.items().iter().map(jump).collect()
    })?;
    Ok(faults)
}

fn latency(node: &Node<'_>) -> Result<Latency, Problem> {
    let mut latency = Latency::NONE;
    replace(&mut latency.start, node.get("start"), span)?;
    replace(&mut latency.request, node.get("request"), span)?;
    replace(&mut latency.exit, node.get("exit"), span)?;
    Ok(latency)
}

fn partition(node: &Node<'_>) -> Result<Partition, Problem> {
    let partition = Partition {
        from_ns: need(node, "from", nanos)?,
        until_ns: need(node, "until", nanos)?,
        fraction: need(node, "fraction", number)?,
    };
    if partition.until_ns <= partition.from_ns {
        return Err(
            Problem::new(node.span, "the partition is over before it begins")
                .with_hint("until must be after from"),
        );
    }
    Ok(partition)
}

fn jump(node: &Node<'_>) -> Result<(u64, i64), Problem> {
    let milliseconds = |node: &Node<'_>| Ok((number(node)? * 1e3).round() as i64);
    let (mut back, mut forward) = (0, 0);
    replace(&mut back, node.get("back_seconds"), milliseconds)?;
    replace(&mut forward, node.get("forward_seconds"), milliseconds)?;
    Ok((need(node, "at", nanos)?, forward - back))
}

fn operations(list: &Node<'_>) -> Result<Vec<(u64, Operation)>, Problem> {
    list.items()
        .iter()
        .map(|item| Ok((need(item, "at", nanos)?, need(item, "act", operation)?)))
        .collect()
}

fn operation(node: &Node<'_>) -> Result<Operation, Problem> {
    Ok(match text(node)? {
        "kill_switch" => Operation::KillSwitch,
        "reset" => Operation::Reset,
        "admit_root" => Operation::AdmitRoot,
        "quarantine_roots" => Operation::QuarantineRoots,
        "release_roots" => Operation::ReleaseRoots,
        "acknowledge_clock" => Operation::AcknowledgeClock,
        _ => return Err(unexpected(node)),
    })
}

fn sweep(node: &Node<'_>) -> Result<Sweep, Problem> {
    let mut sweep = Sweep {
        method: Method::Grid,
        samples: 16,
        axes: Vec::new(),
    };
    replace(&mut sweep.method, node.get("method"), |node| {
        match text(node)? {
            "grid" => Ok(Method::Grid),
            "latin_hypercube" => Ok(Method::LatinHypercube),
            "morris" => Ok(Method::Morris),
            "sobol" => Ok(Method::Sobol),
            _ => Err(unexpected(node)),
        }
    })?;
    replace(&mut sweep.samples, node.get("samples"), whole)?;
    for item in node.get("axes").map_or(&[][..], |list| list.items()) {
        let axis = axis(item, sweep.method)?;
        if sweep.axes.iter().any(|own| own.parameter == axis.parameter) {
            let message = format!("{} is varied twice", axis.parameter.name());
            return Err(Problem::new(item.span, message));
        }
        sweep.axes.push(axis);
    }
    if sweep.axes.is_empty() {
        return Err(empty(node, "axes"));
    }
    Ok(sweep)
}

fn axis(item: &Node<'_>, method: Method) -> Result<Axis, Problem> {
    let parameter = need(item, "parameter", |node| {
        Parameter::from_name(text(node)?).ok_or_else(|| unexpected(node))
    })?;
    let mut values: Vec<f64> = Vec::new();
    replace(&mut values, item.get("values"), |list| {
        list.items().iter().map(number).collect()
    })?;
    let range = item.get("from").zip(item.get("to"));
    match (method, range) {
        (Method::Grid, _) if values.is_empty() => Err(Problem::new(
            item.span,
            "a grid needs the values of each axis",
        )
        .with_hint("write values: [1, 2, 3]")),
        (Method::Grid, _) => Ok(Axis { parameter, values }),
        (_, None) => Err(
            Problem::new(item.span, "this method needs the range of each axis")
                .with_hint("write from and to"),
        ),
        (_, Some((from, to))) => {
            let values = vec![number(from)?, number(to)?];
            if values[0] >= values[1] {
                return Err(Problem::new(to.span, "the range is empty")
                    .with_hint("to must be more than from"));
            }
            Ok(Axis { parameter, values })
        }
    }
}

fn limits(node: &Node<'_>) -> Result<Limits, Problem> {
    let mut limits = Limits::default();
    replace(&mut limits.workers, node.get("workers"), whole)?;
    replace(&mut limits.memory_mb, node.get("memory_mb"), whole)?;
    replace(&mut limits.seconds, node.get("seconds"), whole)?;
    Ok(limits)
}

fn outputs(list: &Node<'_>) -> Result<Vec<Output>, Problem> {
    let output = |node: &Node<'_>| match text(node)? {
        "csv" => Ok(Output::Csv),
        "html" => Ok(Output::Html),
        "svg" => Ok(Output::Svg),
        "png" => Ok(Output::Png),
        _ => Err(unexpected(node)),
    };
    list.items().iter().map(output).collect()
}

fn nanos(node: &Node<'_>) -> Result<u64, Problem> {
    Ok(nanoseconds(number(node)?))
}

fn empty(node: &Node<'_>, key: &str) -> Problem {
    let span = node.get(key).unwrap_or(node).span;
    Problem::new(span, format!("{key} is empty"))
}

fn need<T>(
    parent: &Node<'_>,
    key: &str,
    read: impl FnOnce(&Node<'_>) -> Result<T, Problem>,
) -> Result<T, Problem> {
    match parent.get(key) {
        Some(node) => read(node),
        None => Err(Problem::new(
            parent.span,
            format!("the key '{key}' is missing here"),
        )),
    }
}
