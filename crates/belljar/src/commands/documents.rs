//! Commands about documents: policy files, profiles, schemas, help.

use crate::cli::{Cli, OutputFormat, Profile, SchemaFile, Validate};
use crate::exit::{self, Failure};
use crate::print;
use belljar_policy::{Capability, Rule};
use clap::CommandFactory;
use serde_json::json;
use std::path::{Path, PathBuf};

pub(crate) fn validate(arguments: &Validate) -> Result<u8, Failure> {
    let file = arguments.file.as_ref().or(arguments.config.as_ref());
    // One of them is required.
    let file = file.map(PathBuf::as_path).unwrap_or(Path::new(""));
    if super::supervisor::is_supervisor_file(file) {
        return super::supervisor::validate(file, arguments.format.output);
    }
    let outcome = belljar_manifest::read_capability_file(file);
    match (outcome, arguments.format.output) {
        (Ok(capability), OutputFormat::Json) => {
            print::json(&json!({"valid": true, "capability": capability}));
            Ok(exit::OK)
        }
        (Ok(capability), OutputFormat::Text) => {
            print::out(&describe(&capability));
            Ok(exit::OK)
        }
        (Err(error), OutputFormat::Json) => {
            let failure = Failure::from(error);
            print::json(
                &json!({"valid": false, "error": failure.message(), "hint": failure.hint()}),
            );
            Ok(exit::NO)
        }
        (Err(error), OutputFormat::Text) => {
            let _ = exit::finish(Err(Failure::from(error)));
            Ok(exit::NO)
        }
    }
}

fn describe(capability: &Capability) -> String {
    let limits = &capability.limits;
    let or_none = |value: Option<String>| value.unwrap_or_else(|| "no limit".into());
    let mb = |bytes: Option<u64>| or_none(bytes.map(|bytes| (bytes >> 20).to_string()));
    let seconds = |time: Option<std::time::Duration>| {
        or_none(time.map(|time| format!("{:?}", time.as_secs_f64())))
    };
    let count = |number: Option<u32>| or_none(number.map(|number| number.to_string()));
    let permissions: Vec<&str> = capability
        .permissions
        .iter()
        .map(|permission| permission.as_str())
        .collect();
    let rows = [
        ("sandbox_tier", capability.tier.as_str().to_owned()),
        (
            "filesystem_mode",
            capability.filesystem.mode.as_str().to_owned(),
        ),
        (
            "workspace",
            capability.filesystem.workspace.as_str().to_owned(),
        ),
        ("max_memory_mb", mb(limits.memory_bytes)),
        ("max_cpu_seconds", seconds(limits.cpu_time)),
        ("max_wall_seconds", seconds(limits.wall_time)),
        ("max_processes", count(limits.processes)),
        ("max_open_files", count(limits.open_files)),
        (
            "max_cost_usd",
            or_none(limits.cost_usd.map(|usd| usd.to_string())),
        ),
        (
            "max_tokens",
            or_none(limits.tokens.map(|tokens| tokens.to_string())),
        ),
        ("on_budget", capability.llm.on_budget.as_str().to_owned()),
        ("egress_rules", capability.egress.len().to_string()),
        (
            "secrets",
            listed(&capability.secrets, |rule| rule.name.clone()),
        ),
        ("ports", listed(&capability.ports, ToString::to_string)),
        (
            "llm_endpoints",
            listed(&capability.llm.endpoints, |rule| rule.domain.to_string()),
        ),
        (
            "upstream_proxy",
            match &capability.upstream_proxy {
                Some(rule) => rule.value.place.to_string(),
                None => "none".into(),
            },
        ),
        (
            "permissions",
            if permissions.is_empty() {
                "none".into()
            } else {
                permissions.join(", ")
            },
        ),
    ];
    let mut text = String::from("VALID\n");
    for (name, value) in rows {
        text.push_str(&format!("  {name:<19}: {value}\n"));
    }
    text
}

fn listed<T>(rules: &[Rule<T>], show: impl Fn(&T) -> String) -> String {
    if rules.is_empty() {
        return "none".into();
    }
    let shown: Vec<_> = rules.iter().map(|rule| show(&rule.value)).collect();
    shown.join(", ")
}

pub(crate) fn profile(what: &Profile) -> Result<u8, Failure> {
    match what {
        Profile::List => {
            for name in belljar_manifest::PROFILES {
                print::out(&format!(
                    "{name}{}\n",
                    if name == "moderate" { " (default)" } else { "" }
                ));
            }
        }
        Profile::Show { name } => {
            print::out(belljar_manifest::profile_source(name).unwrap_or_default())
        }
    }
    Ok(exit::OK)
}

pub(crate) fn schema(file: SchemaFile) -> Result<u8, Failure> {
    let schema = match file {
        SchemaFile::Capability => belljar_manifest::schema_capability(),
        SchemaFile::Sandbox => belljar_manifest::schema_sandbox_toml(),
        SchemaFile::Contract => belljar_manifest::schema_contract(),
        SchemaFile::Supervisor => belljar_manifest::schema_supervisor(),
        SchemaFile::Agent => belljar_manifest::schema_agent(),
        SchemaFile::Experiment => belljar_experiment::schema(),
        SchemaFile::Evolve => belljar_evolve::config::schema(),
        SchemaFile::Request => belljar_evolve::request::schema(),
    };
    print::out(&format!(
        "{}\n",
        serde_json::to_string_pretty(&schema).unwrap_or_default()
    ));
    Ok(exit::OK)
}

pub(crate) fn completions(shell: clap_complete::Shell) -> Result<u8, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "belljar", &mut script);
    print::raw(&String::from_utf8_lossy(&script));
    Ok(exit::OK)
}

pub(crate) fn man(directory: Option<&Path>) -> Result<u8, Failure> {
    let failed = |error: std::io::Error| {
        Failure::Invalid(
            format!("man pages: {error}"),
            "name a directory that you can write to".into(),
        )
    };
    match directory {
        Some(directory) => {
            std::fs::create_dir_all(directory).map_err(failed)?;
            clap_mangen::generate_to(Cli::command(), directory).map_err(failed)?;
        }
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(Cli::command())
                .render(&mut page)
                .map_err(failed)?;
            print::raw(&String::from_utf8_lossy(&page));
        }
    }
    Ok(exit::OK)
}
