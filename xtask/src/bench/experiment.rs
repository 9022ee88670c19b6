//! `cargo xtask bench experiment`: how fast simulations are.

use super::replication::example;
use crate::Failure;
use serde_json::json;

/// Runs the crate's own measurement.
pub(crate) fn experiment() -> Result<(), Failure> {
    let measured = example("belljar-experiment", "simulations")?;
    println!(
        "(bounds: 2 M workers/s on one core, 1.7 times that on two, 1500 MB for 10 M workers, 10 ms for 200 balanced runs, 2 s for a report)"
    );
    super::write_report("experiment", &json!({"simulation": measured}))
}
