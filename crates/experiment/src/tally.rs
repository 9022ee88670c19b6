//! What is counted while a run goes on, and what is left of it.

use std::collections::BTreeMap;

use belljar_replication::{Code, Usage, WorkerId};
use serde::{Deserialize, Serialize};

use crate::referee::Findings;
use crate::scenario::SAMPLES;
use crate::world::RunKey;

/// The most workers whose lives are kept for a picture.
pub const MAX_TRACED: usize = 4_000;
/// The most kills whose latency is kept.
const MAX_LATENCIES: usize = 100_000;
const CODES: usize = Code::ALL.len();

/// One finished run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// Which parameters.
    pub cell: u32,
    /// Which repetition.
    pub replicate: u32,
    /// How it ended.
    pub end: RunEnd,
    /// How long it took, in simulated seconds.
    pub seconds: f64,
    /// How many workers lived.
    pub workers: u64,
    /// The most boxes that ran at once.
    pub peak: u64,
    /// How many boxes ran at the end.
    pub alive: u64,
    /// Generations below the roots.
    pub depth: u32,
    /// Workers that are counted below: those that ended, and those alive at the end.
    pub parents: u64,
    /// Children they had.
    pub children: u64,
    /// The sum of the squares of these numbers.
    pub children_squared: u64,
    /// How many roots there were.
    pub roots: u64,
    /// Children they had.
    pub root_children: u64,
    /// From the kill switch until no box ran, in seconds; none if there was no switch or boxes were left.
    pub containment_seconds: Option<f64>,
    /// Boxes that ran at the end though the kill switch was engaged.
    pub survivors: u64,
    /// From the order to kill until the box was dead: the median, in seconds.
    pub kill_p50_seconds: f64,
    /// The same: the 99th percentile.
    pub kill_p99_seconds: f64,
    /// The same: the longest.
    pub kill_max_seconds: f64,
    /// What was used without being granted: CPU time, in milliseconds.
    pub leaked_cpu_ms: u64,
    /// The same: tokens.
    pub leaked_tokens: u64,
    /// The same: money, in millionths of a US dollar.
    pub leaked_micro_usd: u64,
    /// Requests that the controller did not hear.
    pub unanswered: u64,
    /// Starts of the controller after a crash.
    pub restarts: u64,
    /// Refusals by code.
    pub denials: BTreeMap<String, u64>,
    /// Ends by code.
    pub ends: BTreeMap<String, u64>,
    /// Controls that were broken, with how often. None is what a correct controller gives.
    pub broken: BTreeMap<String, u64>,
    /// Boxes that ran, at equal steps from 0 to the horizon; shorter if the run ended early.
    pub population: Vec<u64>,
    /// Workers born in each of these steps.
    pub born: Vec<u32>,
    /// Children that these had in their lives.
    pub born_children: Vec<u32>,
    /// Lives by generation and age: generation, class of age, children born then, lives that ended then, lives that were cut then by
    /// the end of the run or the kill switch, lives that were cut before anything happened at that age. None in results of versions that did not count it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ages: Option<Vec<[u64; 6]>>,
}

/// Generations that are counted one by one; those below are one class.
pub(crate) const MOST_DEPTHS: usize = 16;
/// Classes of ages: eight for each doubling, from a microsecond on.
pub(crate) const MOST_AGES: usize = 8 * 54;

/// The class of an age.
fn age_class(ns: u64) -> usize {
    const LEAST: u32 = 10;
    match ns.checked_ilog2().filter(|power| *power >= LEAST) {
        None => 0,
        Some(power) => {
            let eighth = (ns >> (power - 3)) & 7;
            1 + 8 * (power - LEAST) as usize + eighth as usize
        }
    }
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunEnd {
    /// Nobody was left.
    Extinct,
    /// At the horizon.
    Horizon,
    /// As many had lived as the experiment allows.
    TooMany,
}

/// One life, for pictures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Life {
    /// The number of its parent in the list.
    pub parent: Option<u32>,
    /// Generations below the root.
    pub depth: u32,
    /// When it was born, in seconds.
    pub born: f64,
    /// When it ended, in seconds; none if it was alive at the end.
    pub ended: Option<f64>,
    /// How it ended.
    pub code: Option<Code>,
}

/// Who descended from whom in one run, up to [`MAX_TRACED`] workers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// In order of birth.
    pub lives: Vec<Life>,
    numbers: BTreeMap<WorkerId, u32>,
}

impl Trace {
    /// The lives of a run that is over.
    pub(crate) fn of(lives: Vec<Life>) -> Self {
        Self {
            lives,
            numbers: BTreeMap::new(),
        }
    }

    pub(crate) fn born(&mut self, id: WorkerId, parent: Option<WorkerId>, depth: u32, at_ns: u64) {
        if self.lives.len() >= MAX_TRACED {
            return;
        }
        self.numbers.insert(id, self.lives.len() as u32);
        self.lives.push(Life {
            parent: parent.and_then(|parent| self.numbers.get(&parent).copied()),
            depth,
            born: seconds(at_ns),
            ended: None,
            code: None,
        });
    }

    pub(crate) fn ended(&mut self, id: WorkerId, code: Code, at_ns: u64) {
        if let Some(life) = self
            .numbers
            .remove(&id)
            .and_then(|at| self.lives.get_mut(at as usize))
        {
            life.ended = Some(seconds(at_ns));
            life.code = Some(code);
        }
    }
}

/// The counters of a run.
#[derive(Debug)]
pub(crate) struct Tally {
    pub(crate) findings: Findings,
    pub(crate) workers: u64,
    /// Those the controller ought to count.
    pub(crate) registered: u64,
    pub(crate) held_memory_mb: u64,
    pub(crate) unanswered: u64,
    pub(crate) restarts: u64,
    running: u64,
    peak: u64,
    depth: u32,
    parents: u64,
    children: u64,
    children_squared: u64,
    roots: u64,
    root_children: u64,
    step_ns: u64,
    /// The step at hand, and when it is over.
    step: u8,
    step_ends_ns: u64,
    population: Vec<u64>,
    born: Vec<u32>,
    born_children: Vec<u32>,
    refusals: [u64; CODES],
    ends: [u64; CODES],
    switch_ns: Option<u64>,
    contained_ns: Option<u64>,
    latencies_ns: Vec<u64>,
    leaked: Usage,
    /// Births, ends and cuts by generation and age.
    ages: Vec<Vec<[u32; 3]>>,
    /// Births of this very moment: if the run ends in it, others of the moment are not told.
    moment_ns: u64,
    moment: Vec<(u32, u64)>,
}

/// What is known of a life that is over, or that the run's end cuts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LifeSummary {
    pub(crate) born_step: u8,
    pub(crate) children: u32,
    pub(crate) is_root: bool,
    pub(crate) depth: u32,
    pub(crate) age_ns: u64,
}

impl Tally {
    pub(crate) fn new(horizon_ns: u64) -> Self {
        Self {
            findings: Findings::default(),
            workers: 0,
            registered: 0,
            held_memory_mb: 0,
            unanswered: 0,
            restarts: 0,
            running: 0,
            peak: 0,
            depth: 0,
            parents: 0,
            children: 0,
            children_squared: 0,
            roots: 0,
            root_children: 0,
            step_ns: (horizon_ns / SAMPLES as u64).max(1),
            step: 0,
            step_ends_ns: 0,
            population: Vec::with_capacity(SAMPLES + 1),
            born: vec![0; SAMPLES],
            born_children: vec![0; SAMPLES],
            refusals: [0; CODES],
            ends: [0; CODES],
            switch_ns: None,
            contained_ns: None,
            latencies_ns: Vec::new(),
            leaked: Usage::default(),
            ages: Vec::new(),
            moment_ns: 0,
            moment: Vec::new(),
        }
    }

    fn age(&mut self, depth: u32, age_ns: u64) -> &mut [u32; 3] {
        let (depth, class) = ((depth as usize).min(MOST_DEPTHS), age_class(age_ns));
        if self.ages.len() <= depth {
            self.ages.resize(depth + 1, Vec::new());
        }
        let ages = &mut self.ages[depth];
        if ages.len() <= class {
            ages.resize(class + 1, [0; 3]);
        }
        &mut ages[class]
    }

    /// A worker of this generation has a child at this age.
    pub(crate) fn child(&mut self, at_ns: u64, depth: u32, age_ns: u64) {
        if at_ns != self.moment_ns {
            self.end_moment();
            self.moment_ns = at_ns;
        }
        self.moment.push((depth, age_ns));
    }

    fn end_moment(&mut self) {
        while let Some((depth, age_ns)) = self.moment.pop() {
            self.age(depth, age_ns)[0] += 1;
        }
    }

    /// Time passes: the population is noted at each step that is over.
    pub(crate) fn pass(&mut self, at_ns: u64) {
        while self.population.len() <= SAMPLES
            && self.population.len() as u64 * self.step_ns < at_ns
        {
            self.population.push(self.running);
        }
    }

    pub(crate) fn is_extinct(&self) -> bool {
        self.running == 0 && self.registered == 0
    }

    pub(crate) fn born(&mut self, step: u8, depth: u32, memory_mb: u64) {
        self.workers += 1;
        self.registered += 1;
        self.running += 1;
        self.held_memory_mb += memory_mb;
        self.peak = self.peak.max(self.running);
        self.depth = self.depth.max(depth);
        self.born[usize::from(step)] += 1;
    }

    pub(crate) fn ended(&mut self, code: Code, life: LifeSummary, memory_mb: u64) {
        self.registered -= 1;
        self.held_memory_mb = self.held_memory_mb.saturating_sub(memory_mb);
        self.ends[code as usize] += 1;
        // Whom an operator ended would have lived on.
        let is_cut = code == Code::KilledKillSwitch;
        self.cohort(life, is_cut);
    }

    /// A life is over, or cut because the run is.
    pub(crate) fn cohort(&mut self, life: LifeSummary, is_cut: bool) {
        let wide = u64::from(life.children);
        self.parents += 1;
        self.children += wide;
        self.children_squared += wide * wide;
        if life.is_root {
            self.roots += 1;
            self.root_children += wide;
        }
        self.age(life.depth, life.age_ns)[1 + usize::from(is_cut)] += 1;
        let sum = &mut self.born_children[usize::from(life.born_step)];
        *sum = sum.saturating_add(life.children);
    }

    /// A box does not run any more. `ordered_ns` is when it was ordered killed, or never.
    pub(crate) fn stopped(&mut self, at_ns: u64, ordered_ns: u64) {
        self.running -= 1;
        if ordered_ns <= at_ns && self.latencies_ns.len() < MAX_LATENCIES {
            self.latencies_ns.push(at_ns - ordered_ns);
        }
        if self.running == 0 && self.switch_ns.is_some() && self.contained_ns.is_none() {
            self.contained_ns = Some(at_ns);
        }
    }

    pub(crate) fn refused(&mut self, code: Code) {
        self.refusals[code as usize] += 1;
    }

    pub(crate) fn switch_pulled(&mut self, at_ns: u64) {
        self.switch_ns = Some(at_ns);
        self.contained_ns = None;
    }

    pub(crate) fn leaked(&mut self, usage: Usage) {
        self.leaked = self.leaked.plus(&usage);
    }

    pub(crate) fn run(mut self, key: RunKey, end_ns: u64, is_latched: bool) -> Run {
        let end = if self.is_extinct() {
            RunEnd::Extinct
        } else if end_ns >= self.step_ns * SAMPLES as u64 {
            RunEnd::Horizon
        } else {
            RunEnd::TooMany
        };
        if end != RunEnd::TooMany {
            self.end_moment();
        }
        self.latencies_ns.sort_unstable();
        let latency = |part: f64| {
            let at = (self.latencies_ns.len() as f64 * part) as usize;
            seconds(
                *self
                    .latencies_ns
                    .get(at)
                    .or(self.latencies_ns.last())
                    .unwrap_or(&0),
            )
        };
        if end == RunEnd::Horizon {
            self.population.resize(SAMPLES + 1, self.running);
        }
        let contained = self
            .switch_ns
            .zip(self.contained_ns)
            .map(|(from, to)| seconds(to - from));
        Run {
            cell: key.cell,
            replicate: key.replicate,
            end,
            seconds: seconds(end_ns),
            workers: self.workers,
            peak: self.peak,
            alive: self.running,
            depth: self.depth,
            parents: self.parents,
            children: self.children,
            children_squared: self.children_squared,
            roots: self.roots,
            root_children: self.root_children,
            containment_seconds: contained,
            survivors: if is_latched { self.running } else { 0 },
            kill_p50_seconds: latency(0.5),
            kill_p99_seconds: latency(0.99),
            kill_max_seconds: latency(1.0),
            leaked_cpu_ms: self.leaked.cpu_ms,
            leaked_tokens: self.leaked.tokens,
            leaked_micro_usd: self.leaked.micro_usd,
            unanswered: self.unanswered,
            restarts: self.restarts,
            denials: by_code(&self.refusals),
            ends: by_code(&self.ends),
            broken: self
                .findings
                .iter()
                .map(|(control, count)| (control.to_owned(), count))
                .collect(),
            population: self.population,
            born: self.born,
            born_children: self.born_children,
            ages: Some(by_age(&self.ages, end)),
        }
    }

    /// The same for a moment that is not before the last one that was asked for.
    pub(crate) fn step_at(&mut self, at_ns: u64) -> u8 {
        if at_ns >= self.step_ends_ns {
            self.step = self.step_of(at_ns);
            self.step_ends_ns = match usize::from(self.step) + 1 {
                SAMPLES => u64::MAX,
                next => next as u64 * self.step_ns,
            };
        }
        self.step
    }

    /// The step of a run that a moment falls into.
    pub(crate) fn step_of(&self, at_ns: u64) -> u8 {
        (at_ns / self.step_ns).min(SAMPLES as u64 - 1) as u8
    }
}

fn by_age(ages: &[Vec<[u32; 3]>], end: RunEnd) -> Vec<[u64; 6]> {
    let mut all = Vec::new();
    for (depth, ages) in ages.iter().enumerate() {
        let there = |(_, counts): &(usize, &[u32; 3])| **counts != [0; 3];
        for (class, counts) in ages.iter().enumerate().filter(there) {
            let [births, ends, cuts] = counts.map(u64::from);
            // A run that has too many ends in the middle of a moment.
            let (cuts, before) = match end {
                RunEnd::TooMany => (0, cuts),
                _ => (cuts, 0),
            };
            all.push([depth as u64, class as u64, births, ends, cuts, before]);
        }
    }
    all
}

fn by_code(counts: &[u64; CODES]) -> BTreeMap<String, u64> {
    let named = Code::ALL
        .iter()
        .zip(counts)
        .filter(|(_, count)| **count > 0);
    named
        .map(|(code, count)| (code.code().to_owned(), *count))
        .collect()
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}
