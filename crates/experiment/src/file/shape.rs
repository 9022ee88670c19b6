//! What `experiment.yaml` may look like.

use belljar_manifest::document::{CONTRACT, Object, Shape, field, required, words};

use super::parameter::Parameter;

/// The most runs of one experiment: cells times replicates.
pub const MAX_RUNS: u64 = 200_000;
/// The most cells of a sweep.
pub const MAX_CELLS: u64 = 10_000;

const MOST_SECONDS: f64 = 31_557_600.0;
const MOST_WORKERS: u64 = 10_000_000;
const TIME: Shape = Shape::NumberFrom {
    least: 0.0,
    most: MOST_SECONDS,
};
const SPAN: Shape = Shape::Number {
    above: 0.0,
    most: MOST_SECONDS,
};
const PART: Shape = Shape::NumberFrom {
    least: 0.0,
    most: 1.0,
};
const RATE: Shape = Shape::Whole {
    least: 0,
    most: 1_000_000_000,
};

pub(crate) const STRATEGIES: &[&str] = &[
    "greedy",
    "conservative",
    "random",
    "chain",
    "burst",
    "quota_racer",
    "cooldown_dodger",
    "forger",
    "replayer",
    "orphan_maker",
    "shutdown_resister",
    "clock_roller",
];

pub(crate) static EXPERIMENT: Object = Object {
    name: "",
    doc: "An experiment: a contract, who lives under it, what goes wrong, and what is varied.",
    fields: &[
        field(
            "contract",
            Shape::Object(&CONTRACT),
            "The contract itself. One of contract, contract_file and template must be there.",
        ),
        field(
            "contract_file",
            Shape::Text { most: 4096 },
            "The contract's file, relative to this one.",
        ),
        field(
            "template",
            Shape::Choice(&words(super::presets::TEMPLATES)),
            "A shipped contract.",
        ),
        required(
            "population",
            Shape::List {
                item: &Shape::Object(&GROUP),
                most: 16,
            },
            "Who begins; descendants are like their roots.",
        ),
        field("faults", Shape::Object(&FAULTS), "What goes wrong."),
        field(
            "latency",
            Shape::Object(&LATENCY),
            "What takes time, as with real boxes. Without it, nothing does.",
        ),
        field(
            "operator",
            Shape::List {
                item: &Shape::Object(&OPERATION),
                most: 64,
            },
            "What an operator does, and when.",
        ),
        required("horizon_seconds", SPAN, "When the simulation ends."),
        field(
            "replicates",
            Shape::Whole {
                least: 1,
                most: MAX_RUNS,
            },
            "How often each cell is run. Without it, 100.",
        ),
        field(
            "seed",
            Shape::Whole {
                least: 0,
                most: u32::MAX as u64,
            },
            "Where random numbers come from. Without it, 1.",
        ),
        field(
            "max_workers",
            Shape::Whole {
                least: 1,
                most: MOST_WORKERS,
            },
            "A run ends when so many have lived. Without it, 100000.",
        ),
        field(
            "common_random_numbers",
            Shape::Bool,
            "Whether all cells draw the same numbers, to be compared. Without it, true.",
        ),
        field("sweep", Shape::Object(&SWEEP), "What is varied."),
        field(
            "limits",
            Shape::Object(&LIMITS),
            "What the experiment may cost; more is refused before it starts.",
        ),
        field(
            "outputs",
            Shape::List {
                item: &Shape::Choice(&words(&["csv", "html", "svg", "png"])),
                most: 4,
            },
            "What is written besides JSON lines. Without it, all.",
        ),
    ],
};

static GROUP: Object = Object {
    name: "a population item",
    doc: "Roots that are alike.",
    fields: &[
        field(
            "roots",
            Shape::Whole {
                least: 1,
                most: MOST_WORKERS,
            },
            "How many. Without it, 1.",
        ),
        required(
            "strategy",
            Shape::Choice(&words(STRATEGIES)),
            "How they replicate.",
        ),
        field(
            "probability",
            PART,
            "With random: that of asking at a step. Without it, 0.5.",
        ),
        field(
            "burst_size",
            Shape::Whole {
                least: 1,
                most: 100_000,
            },
            "With burst: how many at once. Without it, 5.",
        ),
        field(
            "offspring",
            Shape::Object(&OFFSPRING),
            "How many children each wants. Without it, as its strategy has it.",
        ),
        field(
            "lifetime",
            Shape::Object(&TIMES),
            "How long each lives if nobody ends it. Without it, for ever.",
        ),
        field(
            "step_seconds",
            Shape::NumberFrom {
                least: 0.001,
                most: MOST_SECONDS,
            },
            "The time between two steps. Without it, 1.",
        ),
        field(
            "memory_mb",
            RATE,
            "Memory that each box holds. Without it, none.",
        ),
        field(
            "cpu_ms_per_second",
            RATE,
            "CPU time that each uses. Without it, none.",
        ),
        field(
            "tokens_per_second",
            RATE,
            "Tokens that each uses. Without it, none.",
        ),
        field(
            "micro_usd_per_second",
            RATE,
            "Money that each spends, in millionths of a US dollar. Without it, none.",
        ),
    ],
};

static OFFSPRING: Object = Object {
    name: "offspring",
    doc: "How many children a worker wants in its life.",
    fields: &[
        required(
            "law",
            Shape::Choice(&words(&[
                "unlimited",
                "fixed",
                "poisson",
                "negative_binomial",
            ])),
            "The law.",
        ),
        field(
            "number",
            Shape::Whole {
                least: 0,
                most: 100_000,
            },
            "With fixed: how many.",
        ),
        field(
            "mean",
            Shape::NumberFrom {
                least: 0.0,
                most: 10_000.0,
            },
            "With poisson and negative_binomial: the mean.",
        ),
        field(
            "k",
            Shape::Number {
                above: 0.0,
                most: 10_000.0,
            },
            "With negative_binomial: the dispersion.",
        ),
    ],
};

static TIMES: Object = Object {
    name: "a time law",
    doc: "How long something takes.",
    fields: &[
        required(
            "law",
            Shape::Choice(&words(&["forever", "fixed", "exponential"])),
            "The law.",
        ),
        field(
            "seconds",
            TIME,
            "With fixed: how long; with exponential: the mean.",
        ),
    ],
};

static FAULTS: Object = Object {
    name: "faults",
    doc: "What goes wrong.",
    fields: &[
        field(
            "controller_crashes_at",
            Shape::List {
                item: &TIME,
                most: 100,
            },
            "When the controller crashes, in seconds.",
        ),
        field(
            "restart_seconds",
            TIME,
            "How long it is away. Without it, 1.",
        ),
        field(
            "lost_heartbeats",
            PART,
            "The probability that a heartbeat is lost.",
        ),
        field(
            "partition",
            Shape::Object(&PARTITION),
            "A part of the workers is cut off for a time.",
        ),
        field(
            "kill_delay",
            Shape::Object(&TIMES),
            "From the order to kill until the box is dead. Without it, no time.",
        ),
        field(
            "clock_jumps",
            Shape::List {
                item: &Shape::Object(&JUMP),
                most: 100,
            },
            "The wall clock is turned.",
        ),
    ],
};

static LATENCY: Object = Object {
    name: "latency",
    doc: "What takes time with real boxes; a live run measures it.",
    fields: &[
        field(
            "start",
            Shape::Object(&TIMES),
            "From a worker's registration until it lives. Without it, no time.",
        ),
        field(
            "request",
            Shape::Object(&TIMES),
            "What a request takes: the next step is later by so much. Without it, no time.",
        ),
        field(
            "exit",
            Shape::Object(&TIMES),
            "From the end of a worker until the controller knows. Without it, no time.",
        ),
    ],
};

static PARTITION: Object = Object {
    name: "partition",
    doc: "Workers that are not heard, and that orders reach only when it is over.",
    fields: &[
        required("from", TIME, "When it begins, in seconds."),
        required("until", TIME, "When it is over."),
        required("fraction", PART, "Which part of the workers."),
    ],
};

static JUMP: Object = Object {
    name: "a clock_jumps item",
    doc: "The wall clock is turned.",
    fields: &[
        required("at", TIME, "When, in seconds."),
        field("back_seconds", TIME, "By how much it is turned back."),
        field("forward_seconds", TIME, "Or forward."),
    ],
};

static OPERATION: Object = Object {
    name: "an operator item",
    doc: "What an operator does.",
    fields: &[
        required("at", TIME, "When, in seconds."),
        required(
            "act",
            Shape::Choice(&words(&[
                "kill_switch",
                "reset",
                "admit_root",
                "quarantine_roots",
                "release_roots",
                "acknowledge_clock",
            ])),
            "What.",
        ),
    ],
};

static SWEEP: Object = Object {
    name: "sweep",
    doc: "What is varied.",
    fields: &[
        field(
            "method",
            Shape::Choice(&words(&["grid", "latin_hypercube", "morris", "sobol"])),
            "How points are chosen. Without it, grid.",
        ),
        field(
            "samples",
            Shape::Whole {
                least: 2,
                most: MAX_CELLS,
            },
            "With latin_hypercube: points; with morris: paths; with sobol: pairs of points. Without it, 16.",
        ),
        required(
            "axes",
            Shape::List {
                item: &Shape::Object(&AXIS),
                most: 8,
            },
            "The parameters that are varied.",
        ),
    ],
};

static AXIS: Object = Object {
    name: "an axes item",
    doc: "A parameter and its values.",
    fields: &[
        required(
            "parameter",
            Shape::Choice(&words(Parameter::NAMES)),
            "Which.",
        ),
        field(
            "values",
            Shape::List {
                item: &Shape::NumberFrom {
                    least: 0.0,
                    most: 1e9,
                },
                most: 1000,
            },
            "With grid: its values.",
        ),
        field(
            "from",
            Shape::NumberFrom {
                least: 0.0,
                most: 1e9,
            },
            "Else the least,",
        ),
        field(
            "to",
            Shape::NumberFrom {
                least: 0.0,
                most: 1e9,
            },
            "and the most.",
        ),
    ],
};

static LIMITS: Object = Object {
    name: "limits",
    doc: "What the experiment may cost at most.",
    fields: &[
        field(
            "workers",
            Shape::Whole {
                least: 1,
                most: 1_000_000_000_000,
            },
            "Simulated workers of all runs together. Without it, 2000000000.",
        ),
        field(
            "memory_mb",
            Shape::Whole {
                least: 1,
                most: 1_048_576,
            },
            "Memory of all threads together. Without it, 4096.",
        ),
        field(
            "seconds",
            Shape::Whole {
                least: 1,
                most: 31_557_600,
            },
            "Time, at a careful pace of 250000 workers a second and processor. Without it, 7200.",
        ),
    ],
};

/// The JSON Schema of `experiment.yaml`.
#[must_use]
pub fn schema() -> serde_json::Value {
    belljar_manifest::document::schema(&EXPERIMENT, "Belljar experiment")
}
