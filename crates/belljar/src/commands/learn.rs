//! `belljar learn`: a run in a box that is watched, and the smallest policy it would have needed.

use super::run::{code_of, protect, summarise};
use crate::cli::{HostsMode, Learn, LearnFormat};
use crate::exit::Failure;
use crate::print::{self, Line};
use belljar_manifest::read_bounded;
use belljar_policy::Capability;
use belljar_supervisor::learn::{self, Comparison, Hosts, Learned, Lesson};
use belljar_supervisor::{
    Command, Facts, Output, Recording, RunError, RunResult, SandboxId, StateDir, find_places,
};
use serde_json::json;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};

pub(crate) fn learn(arguments: Learn) -> Result<u8, Failure> {
    if let Some(file) = &arguments.output {
        // Before the run, which may be a long one. It is made sure of again when the file is made.
        let there = match arguments.force {
            true => Existing::Replaced,
            false => Existing::Kept,
        };
        check_free(file, there)?;
    }
    let existing = arguments.against.as_deref().map(Rival::read);
    let existing = existing.transpose()?;
    let within = super::capability(&arguments.policy)?;
    let document = arguments.policy.config.as_deref().and_then(document_of);
    let hosts = match arguments.hosts {
        HostsMode::Refuse => Hosts::Refuse,
        HostsMode::Record => Hosts::Record,
    };
    let words: Vec<String> = arguments
        .command
        .iter()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let (result, places) = run(&arguments, &within, hosts)?;
    let lesson = Lesson {
        result: &result,
        within: &within,
        hosts,
        places: &places,
        command: &words.join(" "),
        document: document.as_deref(),
    };
    let learned = learn::learn(&lesson);
    if !arguments.quiet {
        summarise(&result);
        for remark in &learned.remarks {
            print::line(Line::Note, remark);
        }
    }
    let against = existing.map(|existing| {
        let comparison = learn::compare(&learned.needs, &existing.capability, &places);
        let diff = learn::unified_diff(&existing.name, &existing.text, &learned.yaml);
        (comparison, diff)
    });
    hand_over(&arguments, &words, &result, &learned, against)?;
    Ok(code_of(&result))
}

/// The text of a capability file in YAML: what can't be learned is taken from there.
fn document_of(file: &Path) -> Option<String> {
    if file.extension().is_some_and(|end| end == "toml") {
        return None;
    }
    let bytes = read_bounded(file, &file.display().to_string()).ok()?;
    String::from_utf8(bytes).ok()
}

fn run(
    arguments: &Learn,
    within: &Capability,
    hosts: Hosts,
) -> Result<(RunResult, belljar_policy::Places), Failure> {
    let mut capability = learn::in_learning(within.clone(), hosts);
    let files = [
        &arguments.policy.config,
        &arguments.against,
        &arguments.output,
    ];
    for file in files.into_iter().flatten() {
        protect(&mut capability, file);
    }
    let mut command = Command::new(&arguments.command).watched();
    if let Some(timeout) = arguments.timeout {
        command = command.timeout(timeout);
    }
    // Standard output is for what is learned, unless that goes elsewhere.
    let output = match (&arguments.output, &arguments.against) {
        (Some(_), None) => Output::Inherit,
        _ => Output::InheritAsError,
    };
    let recording = Recording {
        keys: belljar_supervisor::key_source(),
        ..Recording::default()
    };
    let mut work = None;
    let mut started = |facts: &Facts<'_>| work = Some(facts.plan.workdir.clone());
    let result = belljar_supervisor::run_told(
        &SandboxId::random()?,
        &capability,
        &command,
        output,
        &StateDir::find()?,
        &recording,
        &mut started,
    )?;
    let work = work.unwrap_or_else(|| PathBuf::from("."));
    let (_, places) = find_places(&work)?;
    Ok((result, places))
}

/// A file to hold the run against.
struct Rival {
    name: String,
    text: String,
    capability: Capability,
}

impl Rival {
    fn read(file: &Path) -> Result<Self, Failure> {
        let name = file.display().to_string();
        let bytes = read_bounded(file, &name)?;
        Ok(Self {
            capability: belljar_manifest::read_capability_file(file)?,
            text: String::from_utf8_lossy(&bytes).into_owned(),
            name,
        })
    }
}

fn hand_over(
    arguments: &Learn,
    words: &[String],
    result: &RunResult,
    learned: &Learned,
    against: Option<(Comparison, String)>,
) -> Result<(), Failure> {
    let text = match arguments.format {
        LearnFormat::Yaml => learned.yaml.clone(),
        LearnFormat::Json => {
            let against = against
                .as_ref()
                .map(|(found, diff)| json!({"missing": found.missing, "unused": found.unused, "diff": diff}));
            let all = json!({
                "command": words, "run": result, "capability": learned.yaml,
                "remarks": learned.remarks, "against": against,
            });
            format!("{all}\n")
        }
    };
    let is_written = arguments.output.is_some();
    if let Some(file) = &arguments.output {
        let write = if arguments.force { replace } else { create };
        write(file, &text)?;
        if !arguments.quiet {
            let what = format!("learned: {}", file.display());
            print::line(Line::Note, &what);
        }
    }
    match (against, arguments.format) {
        (Some((found, diff)), LearnFormat::Yaml) => {
            // What stands there was partly chosen by the agent; a diff has no comments to hide in, but line ends count.
            print::out(&diff.split_inclusive('\n').map(shown).collect::<String>());
            tell(&found);
        }
        _ if !is_written && arguments.format == LearnFormat::Json => print::json_text(&text),
        _ if !is_written => print::out(&text),
        _ => {}
    }
    Ok(())
}

fn shown(line: &str) -> String {
    let (text, end) = match line.strip_suffix('\n') {
        Some(text) => (text, "\n"),
        None => (line, ""),
    };
    format!("{}{end}", print::harmless(text))
}

fn tell(found: &Comparison) {
    for missing in &found.missing {
        print::line(Line::Denied, &format!("the file lacks: {missing}"));
    }
    for unused in &found.unused {
        print::line(Line::Note, &format!("the run did not use: {unused}"));
    }
    if found.missing.is_empty() && found.unused.is_empty() {
        print::line(Line::Note, "the file allows what the run did, and no more");
    }
}

/// What becomes of a file that is there already.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Existing {
    Kept,
    Replaced,
}

/// Whether the file can be made, or replaced: only an ordinary one is, no device and no link.
fn check_free(file: &Path, existing: Existing) -> Result<(), Failure> {
    match file.symlink_metadata() {
        Err(_) => Ok(()),
        Ok(_) if existing == Existing::Kept => Err(exists(file)),
        Ok(there) if there.is_file() => Ok(()),
        Ok(_) => Err(Failure::Invalid(
            format!("{} is no ordinary file", file.display()),
            "name another file, or leave --output out and redirect".into(),
        )),
    }
}

fn exists(file: &Path) -> Failure {
    Failure::Invalid(
        format!("{} is there already", file.display()),
        "name another file, or use --force to replace it, or --against to compare".into(),
    )
}

fn failed(file: &Path) -> impl Fn(std::io::Error) -> Failure {
    move |source| {
        Failure::Run(RunError::State {
            path: file.to_owned(),
            source,
        })
    }
}

/// Makes a file that is not there. The agent may have put something in its place: that is not touched.
fn create(file: &Path, text: &str) -> Result<(), Failure> {
    match OpenOptions::new().write(true).create_new(true).open(file) {
        Ok(mut made) => made.write_all(text.as_bytes()).map_err(failed(file)),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Err(exists(file)),
        Err(error) => Err(failed(file)(error)),
    }
}

/// Puts a new file in place of an ordinary one.
fn replace(file: &Path, text: &str) -> Result<(), Failure> {
    check_free(file, Existing::Replaced)?;
    belljar_files::replace(file, text.as_bytes(), 0o644).map_err(failed(file))
}
