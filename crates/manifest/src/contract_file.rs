//! `contract.yaml`: its shape, and how it becomes a replication contract.

use std::sync::Arc;
use std::time::Duration;

use belljar_policy::{
    Amount, Budget, Contract, OnParentExit, OnTrigger, ResourceSpec, SignerKind, StopCondition,
};

use crate::capability_file::{MOST_MEBIBYTES, MOST_SECONDS, PROCESSES, SECONDS, SIZE, words};
use crate::decode::{limit, number, replace, seconds, text, unexpected, whole};
use crate::node::{Node, Problem, quoted};
use crate::shape::{Object, Shape, field, required};

/// What to say of a file with nothing in it.
pub(crate) const WHEN_EMPTY: &str =
    "the file is empty; a contract needs max_depth and max_replicas";

/// The deepest a family may grow: a chain of manifests that long can still be checked in a fraction of a second.
pub const MAX_GENERATIONS: u32 = 1000;

/// The most workers one controller is asked to hold.
const MOST_REPLICAS: u64 = 10_000_000;

const MOST_STOP_CONDITIONS: usize = 32;
const MOST_NAME: usize = 64;
const MOST_EXPRESSION_BYTES: usize = 1024;

const MOST_TOKENS: u64 = 1_000_000_000_000_000;
const MOST_USD: f64 = 1e9;
const MICRO: f64 = 1e6;

/// The whole document.
pub static CONTRACT: Object = Object {
    name: "",
    doc: "How many copies of itself an agent may make, how deep, how fast, for how long, and what they may use together.",
    fields: &[
        required(
            "max_depth",
            Shape::Whole {
                least: 0,
                most: MAX_GENERATIONS as u64,
            },
            "Generations below the first agent; 0 is no copies at all.",
        ),
        required(
            "max_replicas",
            Shape::Whole {
                least: 1,
                most: MOST_REPLICAS,
            },
            "Workers alive at once, the first agent included.",
        ),
        field(
            "cooldown_seconds",
            Shape::NumberFrom {
                least: 0.0,
                most: MOST_SECONDS,
            },
            "The least time between two copies made by the same worker. Without it, none.",
        ),
        field(
            "expiration_seconds",
            Shape::OrNull(&SECONDS),
            "How long a worker may live; null is as long as its parent.",
        ),
        field(
            "heartbeat_timeout_seconds",
            Shape::OrNull(&SECONDS),
            "How long a worker may stay silent before it is ended; null is for ever.",
        ),
        field(
            "on_parent_exit",
            Shape::Choice(&words(&["kill", "keep"])),
            "What becomes of the copies of a worker that ends. Without it, kill.",
        ),
        field(
            "resources",
            Shape::Object(&RESOURCES),
            "What the box of one copy may hold. It narrows the capability.",
        ),
        field(
            "budget",
            Shape::Object(&BUDGET),
            "What the whole family may use together; what is not said is unbounded.",
        ),
        field(
            "stop_conditions",
            Shape::List {
                item: &Shape::Object(&STOP_CONDITION),
                most: MOST_STOP_CONDITIONS,
            },
            "When to stop.",
        ),
        field(
            "signer",
            Shape::Choice(&words(&["ed25519", "hmac"])),
            "Which signature manifests carry. Without it, ed25519.",
        ),
    ],
};

static RESOURCES: Object = Object {
    name: "resources",
    doc: "What the box of one copy may hold.",
    fields: &[
        field(
            "cpu_limit",
            Shape::OrNull(&Shape::Number {
                above: 0.0,
                most: 1024.0,
            }),
            "CPUs; 0.5 is half of one.",
        ),
        field("memory_limit_mb", Shape::OrNull(&SIZE), "Memory, in MiB."),
    ],
};

pub(crate) static BUDGET: Object = Object {
    name: "budget",
    doc: "What the whole family may use together; null is unbounded.",
    fields: &[
        field(
            "replicas",
            Shape::OrNull(&Shape::Whole {
                least: 0,
                most: MOST_REPLICAS,
            }),
            "Copies alive at once.",
        ),
        field(
            "cpu_seconds",
            Shape::OrNull(&SECONDS),
            "CPU time of all workers together.",
        ),
        field(
            "memory_mb",
            Shape::OrNull(&Shape::Whole {
                least: 1,
                most: MOST_MEBIBYTES,
            }),
            "Memory held at once, in MiB.",
        ),
        field(
            "processes",
            Shape::OrNull(&PROCESSES),
            "Processes and threads alive at once.",
        ),
        field(
            "tokens",
            Shape::OrNull(&Shape::Whole {
                least: 0,
                most: MOST_TOKENS,
            }),
            "Model tokens.",
        ),
        field(
            "cost_usd",
            Shape::OrNull(&Shape::NumberFrom {
                least: 0.0,
                most: MOST_USD,
            }),
            "Spending on metered services, in US dollars.",
        ),
    ],
};

static STOP_CONDITION: Object = Object {
    name: "a stop_conditions item",
    doc: "An expression over the family that stops it when it is true.",
    fields: &[
        required(
            "name",
            Shape::Text { most: MOST_NAME },
            "Its name in decisions and reports; no two are alike.",
        ),
        required(
            "when",
            Shape::Text {
                most: MOST_EXPRESSION_BYTES,
            },
            "A CEL expression, such as workers.active > 5.",
        ),
        field(
            "on_trigger",
            Shape::Choice(&words(&["deny", "quarantine", "kill"])),
            "What happens when it is true. Without it, deny.",
        ),
    ],
};

/// Turns a tree into a contract.
///
/// # Errors
/// The first thing wrong with it.
pub fn decode(root: &Node<'_>, file: &Arc<str>) -> Result<Contract, Problem> {
    Shape::Object(&CONTRACT).check(root, "a contract file")?;
    let mut contract = Contract::new(
        needed(root, "max_depth", whole)?,
        needed(root, "max_replicas", whole)?,
        Duration::ZERO,
        None,
    );
    file.as_ref().clone_into(&mut contract.name);
    let get = |key| root.get(key);
    replace(&mut contract.cooldown, get("cooldown_seconds"), cooldown)?;
    limit(&mut contract.expiration, get("expiration_seconds"), seconds)?;
    limit(
        &mut contract.heartbeat_timeout,
        get("heartbeat_timeout_seconds"),
        seconds,
    )?;
    replace(
        &mut contract.on_parent_exit,
        get("on_parent_exit"),
        on_parent_exit,
    )?;
    replace(&mut contract.resources, get("resources"), resources)?;
    replace(&mut contract.budget, get("budget"), budget)?;
    replace(
        &mut contract.stop_conditions,
        get("stop_conditions"),
        stop_conditions,
    )?;
    replace(&mut contract.signer, get("signer"), signer)?;
    Ok(contract)
}

fn needed<T>(
    parent: &Node<'_>,
    key: &str,
    read: impl FnOnce(&Node<'_>) -> Result<T, Problem>,
) -> Result<T, Problem> {
    parent
        .get(key)
        .map_or_else(|| Err(unexpected(parent)), read)
}

/// Zero is no wait; anything above it stays above it.
fn cooldown(node: &Node<'_>) -> Result<Duration, Problem> {
    if number(node)? == 0.0 {
        return Ok(Duration::ZERO);
    }
    seconds(node)
}

fn on_parent_exit(node: &Node<'_>) -> Result<OnParentExit, Problem> {
    match text(node)? {
        "kill" => Ok(OnParentExit::Kill),
        "keep" => Ok(OnParentExit::Keep),
        _ => Err(unexpected(node)),
    }
}

fn signer(node: &Node<'_>) -> Result<SignerKind, Problem> {
    match text(node)? {
        "ed25519" => Ok(SignerKind::Ed25519),
        "hmac" => Ok(SignerKind::Hmac),
        _ => Err(unexpected(node)),
    }
}

fn resources(section: &Node<'_>) -> Result<ResourceSpec, Problem> {
    let mut spec = ResourceSpec::default();
    limit(&mut spec.cpu_limit, section.get("cpu_limit"), number)?;
    limit(
        &mut spec.memory_limit_mb,
        section.get("memory_limit_mb"),
        whole,
    )?;
    Ok(spec)
}

pub(crate) fn budget(section: &Node<'_>) -> Result<Budget, Problem> {
    let amount = |key, read: fn(&Node<'_>) -> Result<u64, Problem>| {
        let mut number = None;
        limit(&mut number, section.get(key), read)?;
        Ok(Amount::from(number))
    };
    Ok(Budget {
        replicas: amount("replicas", whole)?,
        cpu_ms: amount("cpu_seconds", milliseconds)?,
        memory_mb: amount("memory_mb", whole)?,
        pids: amount("processes", whole)?,
        tokens: amount("tokens", whole)?,
        micro_usd: amount("cost_usd", micro_usd)?,
    })
}

/// Rounded down, the stricter side; but what is above zero stays above it, for with no CPU time nothing starts.
fn milliseconds(node: &Node<'_>) -> Result<u64, Problem> {
    let whole = u64::try_from(seconds(node)?.as_millis()).map_err(|_| unexpected(node))?;
    Ok(whole.max(1))
}

/// Rounded to the nearest millionth: 2.01 dollars are a hair less than that as a float.
fn micro_usd(node: &Node<'_>) -> Result<u64, Problem> {
    let micro = (number(node)? * MICRO).round();
    // The shape has bounded it far below what a float counts exactly.
    if (0.0..=MOST_USD * MICRO).contains(&micro) {
        Ok(micro as u64)
    } else {
        Err(unexpected(node))
    }
}

fn stop_conditions(list: &Node<'_>) -> Result<Vec<StopCondition>, Problem> {
    let mut conditions: Vec<StopCondition> = Vec::new();
    for item in list.items() {
        let condition = stop_condition(item)?;
        if let Some(first) = conditions.iter().find(|own| own.name == condition.name) {
            let message = format!("two stop conditions are named {}", quoted(&first.name));
            let span = item.get("name").unwrap_or(item).span;
            let hint = format!(
                "the other is on line {}; give each its own name",
                first.line
            );
            return Err(Problem::new(span, message).with_hint(hint));
        }
        conditions.push(condition);
    }
    Ok(conditions)
}

fn stop_condition(item: &Node<'_>) -> Result<StopCondition, Problem> {
    let mut on_trigger = OnTrigger::default();
    replace(
        &mut on_trigger,
        item.get("on_trigger"),
        |node| match text(node)? {
            "deny" => Ok(OnTrigger::Deny),
            "quarantine" => Ok(OnTrigger::Quarantine),
            "kill" => Ok(OnTrigger::Kill),
            _ => Err(unexpected(node)),
        },
    )?;
    Ok(StopCondition {
        name: needed(item, "name", |node| Ok(text(node)?.to_owned()))?,
        when: needed(item, "when", expression)?,
        on_trigger,
        line: needed(item, "when", |node| Ok(node.span.line))?,
    })
}

/// The shape has counted characters; whoever compiles the expression counts bytes.
fn expression(node: &Node<'_>) -> Result<String, Problem> {
    let text = text(node)?;
    if text.len() > MOST_EXPRESSION_BYTES {
        let message = format!("when is longer than {MOST_EXPRESSION_BYTES} bytes");
        return Err(Problem::new(node.span, message));
    }
    Ok(text.to_owned())
}
