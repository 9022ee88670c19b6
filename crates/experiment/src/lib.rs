//! Experiments: what a replication contract does to a population of agents, studied with the controller that enforces it.
//!
//! [`simulate`] runs a [`Scenario`] on a virtual clock. Every grant, refusal and end is decided by
//! [`belljar_replication::Controller`], the very code that guards real boxes; only the boxes are simulated. A [`referee`] with books of its own
//! judges each run by the contract, so that a controller that lets something pass is found out.
//!
//! Random numbers are drawn by counter (see [`rng`]): a run's result is a function of its seed and its number alone,
//! on any number of threads.

mod desk;
mod file;
pub mod law;
pub mod live;
pub mod referee;
pub mod report;
pub mod rng;
mod scenario;
pub mod stats;
mod store;
mod tally;
mod world;

pub use desk::Desk;
pub use file::{
    Axis, Experiment, Limits, MAX_CELLS, MAX_RUNS, Method, Output, PRESETS, Parameter, Sweep,
    TEMPLATES, TooLarge, preset_source, schema, template, template_source,
};
pub use scenario::{
    Faults, Group, Latency, Operation, Partition, SAMPLES, Scenario, Strategy, Use,
};
pub use store::{
    Manifest, RESULTS, Results, StoreError, begun, live_place, load, run_all, run_into, run_into_by,
};
pub use tally::{Life, MAX_TRACED, Run, RunEnd, Trace};
pub use world::{RunKey, Simulator, open, simulate, simulate_at, simulate_traced};
