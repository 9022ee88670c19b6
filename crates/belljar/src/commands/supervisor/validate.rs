//! `belljar supervisor validate`: whether a supervisor.toml and everything it names can be used.

use std::path::Path;

use belljar_manifest::SupervisorFile;
use belljar_policy::Contract;
use belljar_supervisor::daemon::shares;
use serde_json::json;

use super::declared::{base_of, overcommitted};
use super::start::{ceiling, read_monitor, spec};
use crate::cli::OutputFormat;
use crate::exit::{self, Failure};
use crate::print;

pub(crate) fn validate(path: &Path, output: OutputFormat) -> Result<u8, Failure> {
    match (check(path), output) {
        (Ok(file), OutputFormat::Json) => {
            let names: Vec<&str> = file.agents.iter().map(|it| it.name.as_str()).collect();
            print::json(&json!({"valid": true, "agents": names}));
            Ok(exit::OK)
        }
        (Ok(file), OutputFormat::Text) => {
            let count = file.agents.len();
            print::out(&format!("{}: valid: {count} agents\n", path.display()));
            Ok(exit::OK)
        }
        (Err(failure), OutputFormat::Json) => {
            print::json(
                &json!({"valid": false, "error": failure.message(), "hint": failure.hint()}),
            );
            Ok(exit::NO)
        }
        (Err(failure), OutputFormat::Text) => {
            let _ = exit::finish(Err(failure));
            Ok(exit::NO)
        }
    }
}

/// Whether a file is one of these and no policy: by what stands at its top.
pub(crate) fn is_supervisor_file(path: &Path) -> bool {
    let bytes = belljar_manifest::read_bounded(path, &path.display().to_string());
    let text = bytes.unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let mut tables = text.lines().map(str::trim_start);
    tables.any(|line| {
        let name = line.trim_start_matches('[').trim_start();
        line.starts_with('[') && (name.starts_with("supervisor") || name.starts_with("agents"))
    })
}

fn check(path: &Path) -> Result<SupervisorFile, Failure> {
    let file = belljar_manifest::read_supervisor_file(path)?;
    let base = base_of(Some(path));
    parts(path, &file, &base)?;
    Ok(file)
}

/// Everything that a file names, read; and whether the contract has what agents are promised of it.
pub(super) fn parts(path: &Path, file: &SupervisorFile, base: &Path) -> Result<(), Failure> {
    read_monitor(path)?;
    ceiling(file, base)?;
    let contract = file
        .contract
        .as_ref()
        .map(|contract| super::super::replication::read_contract(&base.join(contract)));
    let contract: Option<Contract> = contract.transpose()?;
    let mut agents = Vec::new();
    for agent in file.agents.iter().filter(|agent| agent.enabled) {
        let spec = spec(agent, base, Some(path), None)?;
        if let Some(work) = &spec.workdir
            && !work.is_dir()
        {
            return Err(Failure::Invalid(
                format!(
                    "{}: agent {}: {} is no directory",
                    path.display(),
                    agent.name,
                    work.display()
                ),
                "make it, or name another: workdir = \"…\"".into(),
            ));
        }
        agents.push(spec);
    }
    if let Some(contract) = contract {
        shares(&contract.budget, &agents).map_err(overcommitted(Some(path)))?;
    }
    Ok(())
}
