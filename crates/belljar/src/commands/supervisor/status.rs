//! `belljar supervisor status`.

use std::fmt::Write as _;

use belljar_api::{AgentPhase, AgentView, Empty, FleetQuery, ListAgents, ReadStatus};
use serde_json::json;

use super::reach::Reached;
use crate::cli::OutputFormat;
use crate::exit::{self, Failure};
use crate::print;

pub(super) fn status(all: bool, format: OutputFormat) -> Result<u8, Failure> {
    let mut reached = Reached::usual()?;
    let status = reached.client.call::<ReadStatus>(&Empty {})?;
    let query = FleetQuery { ended: Some(all) };
    let list = reached.client.call::<ListAgents>(&query)?;
    if format == OutputFormat::Json {
        print::json(&json!({
            "status": status,
            "agents": list.agents,
            "not_running": list.not_running,
            "max_agents": list.max_agents,
        }));
        return Ok(exit::OK);
    }
    let live = list
        .agents
        .iter()
        .filter(|agent| lives(agent.phase))
        .count();
    let mut text = format!(
        "up {} s, {live} of {} agents, kill switch {}, log {}\n",
        status.uptime_ms / 1000,
        list.max_agents,
        match &status.kill_switch.engaged {
            Some(engaged) => format!("ENGAGED ({})", print::harmless(engaged.reason.as_str())),
            None => "off".to_owned(),
        },
        match &status.ledger.failed {
            Some(why) => format!("FAILED ({})", print::harmless(why.as_str())),
            None => format!("{} entries", status.ledger.entries),
        },
    );
    if !list.agents.is_empty() {
        text.push_str(&table(&list.agents));
    }
    text.push_str(&super::declared::table(&list.not_running));
    print::out(&text);
    Ok(exit::OK)
}

fn lives(phase: AgentPhase) -> bool {
    use AgentPhase::{Freezing, Quarantined, Running, Starting, Stopping};
    matches!(
        phase,
        Starting | Running | Freezing | Quarantined | Stopping
    )
}

fn table(agents: &[AgentView]) -> String {
    let mut text = format!(
        "{:20}  {:12}  {:11}  {:>7}  {:>9}  {:>8}  {}\n",
        "NAME", "ID", "STATE", "CPU %", "MEMORY", "RESTARTS", "COMMAND"
    );
    for agent in agents {
        let ended = agent.end.as_ref().map(|end| {
            let detail = end.detail.as_ref().map(|detail| format!(": {detail}"));
            format!("  [{}{}]", word(&end.cause), detail.unwrap_or_default())
        });
        let _ = writeln!(
            text,
            "{:20}  {:12.12}  {:11}  {:>7.1}  {:>6} MB  {:>8}  {:.60}{}",
            agent.name.as_str(),
            agent.id.as_str(),
            word(&agent.phase),
            agent.usage.cpu_percent,
            agent.usage.memory_bytes >> 20,
            agent.restarts,
            agent.command.as_str(),
            ended.unwrap_or_default(),
        );
    }
    text
}

/// As the protocol spells it.
fn word(value: &impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    }
}
