//! What MCP servers were asked, in the log of runs.

use belljar_gate::record::RunEvent;
use belljar_gate::{Durability, RunGate};
use belljar_mcp::news::Teller;
use belljar_mcp::record::{McpEvent, QueueRecorder, Recorder};

use crate::environment::key_source;
use crate::state::StateDir;

/// A recorder that writes into this state directory's log of runs, many calls with one sync.
#[must_use]
pub fn recorder(state: &StateDir, run: &str) -> Box<dyn Recorder> {
    let mut gate = RunGate::of(state.path(), key_source());
    let teller = Teller::new(state.path(), run);
    let run = run.to_owned();
    let write = move |batch: Vec<McpEvent>| {
        let events = batch.iter().map(|event| entry(&run, event.clone()));
        let written = gate.note_all(events.collect(), Durability::Crash);
        // A supervisor hears of it too, where there is one.
        batch.iter().for_each(|event| teller.tell(event));
        written.map(|_| ())
    };
    Box::new(QueueRecorder::new(write))
}

fn entry(run: &str, event: McpEvent) -> RunEvent {
    let run = run.to_owned();
    match event {
        McpEvent::Call {
            server,
            tool,
            verdict,
            code,
            rule,
            duration_us,
            result_bytes,
            is_error,
            arguments,
        } => RunEvent::McpCall {
            run,
            server,
            tool,
            verdict,
            code,
            rule,
            duration_us,
            result_bytes,
            is_error,
            arguments,
        },
        McpEvent::Held {
            id,
            server,
            tool,
            code,
            rule,
        } => RunEvent::McpHeld {
            run,
            hold: id,
            server,
            tool,
            code,
            rule,
        },
        McpEvent::Answered {
            id,
            answer,
            by,
            reason,
        } => RunEvent::McpAnswered {
            run,
            hold: id,
            answer,
            by,
            reason,
        },
        McpEvent::Tool {
            server,
            tool,
            change,
            sha256,
        } => RunEvent::McpTool {
            run,
            server,
            tool,
            change,
            sha256,
        },
        McpEvent::Suspicious {
            server,
            tool,
            code,
            detail,
        } => RunEvent::McpSuspicious {
            run,
            server,
            tool,
            code,
            detail,
        },
    }
}
