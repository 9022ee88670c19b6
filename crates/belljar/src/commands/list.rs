//! `belljar ps` and `belljar inspect`.

use super::supervisor::Reached;
use crate::cli::{Format, Inspect, OutputFormat};
use crate::exit::{self, Failure};
use crate::print;
use belljar_api::{Empty, ReadAgent};
use belljar_supervisor::{Overlay, RunError, RunRecord, StateDir};
use serde_json::json;
use std::time::{SystemTime, UNIX_EPOCH};

pub(crate) fn ps(format: &Format) -> Result<u8, Failure> {
    let state = StateDir::existing()?;
    // Whoever may not write there may look all the same.
    let _ = state.record_lost();
    let running = state.running();
    let waiting = Overlay::waiting(&state);
    if format.output == OutputFormat::Json {
        print::json(&json!({"running": running, "changes_waiting": waiting}));
        return Ok(exit::OK);
    }
    print::out(&format!(
        "{:<14}{:<9}{:<9}{:<16}COMMAND\n",
        "ID", "KEEPER", "AGE", "CAPABILITY"
    ));
    for record in &running {
        print::out(&format!(
            "{:<14}{:<9}{:<9}{:<16}{}\n",
            record.sandbox_id,
            record.keeper_pid,
            age(record),
            print::harmless(&record.capability),
            print::harmless(&record.command.join(" "))
        ));
    }
    for id in waiting {
        print::out(&format!(
            "{id:<14}changes wait: belljar diff | apply | discard {id}\n"
        ));
    }
    Ok(exit::OK)
}

fn age(record: &RunRecord) -> String {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_secs());
    match now.saturating_sub(record.started_at) {
        seconds @ 0..=119 => format!("{seconds}s"),
        seconds @ 120..=7199 => format!("{}m", seconds / 60),
        seconds => format!("{}h", seconds / 3600),
    }
}

pub(crate) fn inspect(arguments: &Inspect) -> Result<u8, Failure> {
    let id = arguments
        .id
        .as_ref()
        .or(arguments.sandbox_id.as_ref())
        .cloned()
        .unwrap_or_default();
    if let Some(reached) = Reached::named() {
        return inspect_agent(&mut reached?, &id, arguments.format.output);
    }
    let running = StateDir::existing()?.running();
    let begins = |record: &&RunRecord| !id.is_empty() && record.sandbox_id.starts_with(&id);
    let matching: Vec<&RunRecord> = running.iter().filter(begins).collect();
    let record = match matching.as_slice() {
        [record] => *record,
        // People know agents by their names.
        [] => {
            let unknown = || RunError::UnknownId { id: id.clone() };
            let mut reached = Reached::usual().map_err(|_| unknown())?;
            return inspect_agent(&mut reached, &id, arguments.format.output);
        }
        _ => {
            return Err(Failure::Invalid(
                format!("{id} is the beginning of several ids"),
                "give more of it".into(),
            ));
        }
    };
    if arguments.format.output == OutputFormat::Json {
        print::json(record);
        return Ok(exit::OK);
    }
    let rows = [
        ("sandbox_id", record.sandbox_id.clone()),
        ("command", record.command.join(" ")),
        (
            "workdir",
            print::harmless_path(&record.workdir).into_owned(),
        ),
        ("keeper_pid", record.keeper_pid.to_string()),
        ("age", age(record)),
        ("capability", record.capability.clone()),
        ("sandbox_tier", record.tier.clone()),
        ("limits_by", record.limits_by.clone()),
    ];
    for (name, value) in rows {
        print::out(&format!("  {name:<19}: {}\n", print::harmless(&value)));
    }
    if let Some(image) = &record.image {
        let named = format!("{} {}", image.name, image.digest);
        print::out(&format!("  {:<19}: {}\n", "image", print::harmless(&named)));
    }
    let policy = serde_json::to_string_pretty(&record.policy).unwrap_or_default();
    print::out(&format!("  {:<19}: {policy}\n", "policy"));
    Ok(exit::OK)
}

/// An agent of a supervisor, by its name or the beginning of its id.
fn inspect_agent(reached: &mut Reached, given: &str, output: OutputFormat) -> Result<u8, Failure> {
    let id = reached.find(given)?.id;
    let detail = reached.client.call_on::<ReadAgent>(&id, &Empty {})?;
    if output == OutputFormat::Json {
        print::json(&detail);
        return Ok(exit::OK);
    }
    let agent = &detail.agent;
    let phase = serde_json::to_value(agent.phase).unwrap_or_default();
    let keeper = detail
        .keeper_pid
        .map_or("-".to_owned(), |pid| pid.to_string());
    let rows = [
        ("name", agent.name.as_str()),
        ("id", agent.id.as_str()),
        ("state", phase.as_str().unwrap_or_default()),
        ("command", agent.command.as_str()),
        ("workdir", &detail.workdir),
        ("keeper_pid", &keeper),
        ("capability", agent.capability.as_str()),
        ("sandbox_tier", detail.tier.as_str()),
        ("limits_by", detail.limits_by.as_str()),
    ];
    for (name, value) in rows {
        print::out(&format!("  {name:<19}: {}\n", print::harmless(value)));
    }
    for denial in &detail.denials {
        let (what, why) = (
            print::harmless(denial.what.as_str()),
            print::harmless(denial.why.as_str()),
        );
        print::out(&format!(
            "  {:<19}: {what}, {} times: {why}\n",
            "refused", denial.count
        ));
    }
    for line in detail.policy.lines() {
        print::out(&format!("  {:<19}| {}\n", "", print::harmless(line)));
    }
    Ok(exit::OK)
}
