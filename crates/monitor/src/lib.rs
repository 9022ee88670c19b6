//! What a supervisor's agents used and did, what needs a person's attention, and what is done about it by rule.
//!
//! A [`Monitor`] is told every sample and every event. It keeps them in SQLite, thinned out over time, raises alerts, has rules
//! answer them through the supervisor's [`Hands`], and answers what operators ask about all of it. Nobody who tells it something
//! ever waits for a disk: what is new is in memory, a thread of its own writes it once a second, and while that fails the memory
//! goes on serving.
//!
//! It is a view of what happened. The record of decisions is the ledger, which is elsewhere.

mod alerts;
mod answer;
mod cadence;
mod clock;
mod events;
mod history;
mod incident;
mod inner;
mod live;
mod monitor;
mod prometheus;
mod respond;
mod settings;
mod store;
mod tell;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod writer;

pub use alerts::{Change, Engine, NoSuchAlert, reference, rule_of};
pub use live::{Receiver, RecvError};
pub use monitor::Monitor;
pub use prometheus::ToolSeries;
pub use respond::{CouldNot, Hands};
pub use settings::{
    AlertSettings, InvalidSettings, MonitorSettings, NotifySettings, Rule, Settings,
};
pub use store::OpenError;
