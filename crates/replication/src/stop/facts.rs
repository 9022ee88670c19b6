//! What a stop condition can ask about. The table of variables is the documentation.

/// What is known when a condition is evaluated.
///
/// `worker` is the one it is evaluated for: at a grant and at a registration the parent, at all other
/// times each live worker in turn.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Facts {
    /// Live workers, roots and quarantined ones included.
    pub workers_active: u64,
    /// Workers ever registered.
    pub workers_total: u64,
    /// Workers in quarantine.
    pub workers_quarantined: u64,
    /// Money used by all, ended workers included, in millionths of a US dollar.
    pub spent_micro_usd: u64,
    /// Model tokens used by all.
    pub spent_tokens: u64,
    /// CPU time used by all, in milliseconds.
    pub spent_cpu_ms: u64,
    /// Memory that live boxes may hold together, in mebibytes. Boxes without a limit are not in it.
    pub held_memory_mb: u64,
    /// Registrations in the last minute.
    pub spawns_per_min: u64,
    /// Refusals in the last minute.
    pub denials_per_min: u64,
    /// The worker it is evaluated for.
    pub worker: WorkerFacts,
}

/// What is known of one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WorkerFacts {
    /// Generations below its root.
    pub depth: u64,
    /// Its live children.
    pub children: u64,
    /// Time since it was registered, in nanoseconds.
    pub age_ns: u64,
    /// Time since it last spoke, in nanoseconds.
    pub idle_ns: u64,
    /// Money used by it and by those below it that ended, in millionths of a US dollar.
    pub micro_usd: u64,
    /// Model tokens, likewise.
    pub tokens: u64,
    /// CPU time, likewise, in milliseconds.
    pub cpu_ms: u64,
}

/// The kind of a value in an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Bool,
    Int,
    Double,
}

/// What a condition depends on, as a set of bits: it need not be evaluated again before one of them changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Depends(u8);

impl Depends {
    pub(crate) const NONE: Self = Self(0);
    /// Who lives.
    pub(crate) const POPULATION: Self = Self(1);
    /// What was used up by the fleet.
    pub(crate) const SPENT: Self = Self(2);
    /// The last minute.
    pub(crate) const RATE: Self = Self(4);
    /// One worker's place and use.
    pub(crate) const WORKER_OWN: Self = Self(8);
    /// One worker's times.
    pub(crate) const WORKER_TIME: Self = Self(16);
    /// One worker.
    pub(crate) const WORKER: Self = Self(8 | 16);
    /// What changes by itself.
    pub(crate) const TIME: Self = Self(4 | 16);
    pub(crate) const ALL: Self = Self(31);

    pub(crate) const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) const fn has_any(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether it looks at anything besides one worker.
    pub(crate) const fn is_about_fleet(self) -> bool {
        self.0 & !Self::WORKER.0 != 0
    }
}

/// A name that expressions may use.
pub struct Variable {
    /// As it is written.
    pub name: &'static str,
    /// What it means.
    pub meaning: &'static str,
    pub(crate) value: Read,
    pub(crate) depends: Depends,
}

/// How a variable is read.
#[derive(Clone, Copy)]
pub(crate) enum Read {
    Int(fn(&Facts) -> u64),
    Double(fn(&Facts) -> f64),
}

impl Read {
    pub(crate) fn kind(self) -> Kind {
        match self {
            Self::Int(_) => Kind::Int,
            Self::Double(_) => Kind::Double,
        }
    }
}

const fn int(
    name: &'static str,
    meaning: &'static str,
    depends: Depends,
    value: fn(&Facts) -> u64,
) -> Variable {
    Variable {
        name,
        meaning,
        value: Read::Int(value),
        depends,
    }
}

const fn double(
    name: &'static str,
    meaning: &'static str,
    depends: Depends,
    value: fn(&Facts) -> f64,
) -> Variable {
    Variable {
        name,
        meaning,
        value: Read::Double(value),
        depends,
    }
}

/// Every name an expression may use.
#[rustfmt::skip]
pub static VARIABLES: &[Variable] = &[
    int("workers.active", "live workers, roots and quarantined ones included", Depends::POPULATION, |f| f.workers_active),
    int("workers.total", "workers ever registered", Depends::POPULATION, |f| f.workers_total),
    int("workers.quarantined", "workers in quarantine", Depends::POPULATION, |f| f.workers_quarantined),
    double("budget.cost_usd", "US dollars spent by all", Depends::SPENT, |f| f.spent_micro_usd as f64 / 1e6),
    int("budget.tokens", "model tokens used by all", Depends::SPENT, |f| f.spent_tokens),
    double("budget.cpu_s", "CPU seconds used by all", Depends::SPENT, |f| f.spent_cpu_ms as f64 / 1e3),
    int("budget.memory_mb", "mebibytes that live boxes may hold together", Depends::POPULATION, |f| f.held_memory_mb),
    int("rate.spawns_per_min", "registrations in the last minute", Depends::RATE, |f| f.spawns_per_min),
    int("rate.denials_per_min", "refusals in the last minute", Depends::RATE, |f| f.denials_per_min),
    int("lineage.depth", "generations between the worker and its root", Depends::WORKER_OWN, |f| f.worker.depth),
    int("lineage.children", "live children of the worker", Depends::WORKER_OWN, |f| f.worker.children),
    double("worker.age_s", "seconds since the worker was registered", Depends::WORKER_TIME, |f| f.worker.age_ns as f64 / 1e9),
    double("worker.idle_s", "seconds since the worker last spoke", Depends::WORKER_TIME, |f| f.worker.idle_ns as f64 / 1e9),
    double("worker.cost_usd", "US dollars spent by the worker and those below it that ended", Depends::WORKER_OWN, |f| f.worker.micro_usd as f64 / 1e6),
    int("worker.tokens", "model tokens, likewise", Depends::WORKER_OWN, |f| f.worker.tokens),
    double("worker.cpu_s", "CPU seconds, likewise", Depends::WORKER_OWN, |f| f.worker.cpu_ms as f64 / 1e3),
];
