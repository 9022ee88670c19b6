//! `belljar evolve`: proposals, their stages, and what became of them.

mod inbox;
mod show;

use crate::cli::OutputFormat;
use crate::cli::evolve::{Evolve, Propose};
use crate::exit::{self, Failure};
use crate::print::{self, Line};
use belljar_evolve::config;
use belljar_evolve::evidence::{StageResult, Verdict};
use belljar_evolve::pipeline::{Pipeline, Progress};
use belljar_evolve::proposal::{Proposal, ProposalId};
use belljar_evolve::review::UNNAMED;
use belljar_evolve::store::{Store, StoreError};
use belljar_gate::in_full;
use belljar_manifest::{ReadError, read_bounded};
use belljar_supervisor::StateDir;
use serde_json::json;
use std::path::Path;

pub(crate) fn evolve(command: Evolve) -> Result<u8, Failure> {
    match command {
        Evolve::Init { project } => init(&project),
        Evolve::Propose(arguments) => propose(&arguments),
        Evolve::Check { id, format } => {
            let state = StateDir::existing()?;
            let store = Store::of(state.path());
            let id = store.find(&id).map_err(failure)?;
            check(&state, &store, &id, format.output)
        }
        Evolve::Review(what) => super::evolve_review::evolve_review(what),
        Evolve::Inbox(format) => inbox::list(format.output),
        Evolve::Take {
            name,
            project,
            format,
        } => inbox::take(&name, &project, format.output),
        Evolve::List(format) => show::list(format.output),
        Evolve::Show { id, format } => show::show(&id, format.output),
    }
}

/// What a proposal can fail with, for people.
pub(super) fn failure(error: StoreError) -> Failure {
    let hint = match error {
        StoreError::Manifest(error) => return Failure::Config(ReadError::Manifest(error)),
        StoreError::Edit(_) => {
            "an edit changes exactly what it names, as often as it says; see docs/evolve.md"
        }
        StoreError::Unknown(_) => "`belljar evolve list` names them",
        StoreError::Decided { .. } => {
            "people have decided on the evidence that there is; propose it again for new"
        }
        StoreError::Changed { .. } => "propose it again: what was judged is not what is there",
        _ => "see that the project and BELLJAR_STATE_DIR can be read and written",
    };
    Failure::Invalid(in_full(&error), hint.into())
}

const STARTER: &str = include_str!("starter.toml");

fn init(project: &Path) -> Result<u8, Failure> {
    use std::io::Write as _;
    let file = project.join(config::FILE);
    let made = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&file);
    let written = made.and_then(|mut made| made.write_all(STARTER.as_bytes()));
    written.map_err(|error| {
        Failure::Invalid(
            format!("{}: {error}", file.display()),
            "it is made where none is".into(),
        )
    })?;
    print::line(
        Line::Note,
        &format!("made {}; say there which Python has pytest", file.display()),
    );
    Ok(exit::OK)
}

fn propose(arguments: &Propose) -> Result<u8, Failure> {
    let name = arguments.request.display().to_string();
    let bytes = read_bounded(&arguments.request, &name)?;
    let state = StateDir::find()?;
    let store = Store::of(state.path());
    let by = match &arguments.author {
        Some(name) => format!("operator:{name}"),
        None => format!("{UNNAMED}:{}", rustix::process::getuid().as_raw()),
    };
    let proposal = store
        .propose(&arguments.project, &name, &bytes, &by)
        .map_err(failure)?;
    if arguments.draft {
        match arguments.format.output {
            OutputFormat::Json => print::json(&proposal),
            OutputFormat::Text => print::out(&format!("{}\n", proposal.id)),
        }
        return Ok(exit::OK);
    }
    check(&state, &store, &proposal.id, arguments.format.output)
}

fn check(
    state: &StateDir,
    store: &Store,
    id: &ProposalId,
    output: OutputFormat,
) -> Result<u8, Failure> {
    let loaded = store.load(id).map_err(failure)?;
    let mut proposal = loaded.proposal.clone();
    store.begin(&mut proposal).map_err(failure)?;
    let tell = |progress: Progress<'_>| {
        if let Progress::Ended(result) = progress {
            print::line(line_of(result), &stage_line(result));
        }
    };
    let outcome = Pipeline::new(state, store.cache(), &loaded)
        .run(&tell)
        .map_err(|error| {
            Failure::Invalid(
                in_full(&error),
                "nothing was judged; `belljar doctor` says what this host lacks".into(),
            )
        })?;
    store.settle(&mut proposal, &outcome).map_err(failure)?;
    match output {
        OutputFormat::Json => {
            print::json(&json!({"proposal": proposal, "evidence": outcome.statements}))
        }
        OutputFormat::Text => tell_outcome(&proposal, outcome.passed),
    }
    Ok(if outcome.passed { exit::OK } else { exit::NO })
}

fn tell_outcome(proposal: &Proposal, passed: bool) {
    for reason in &proposal.reasons {
        let at = reason
            .at
            .as_deref()
            .map(|at| format!("{at}: "))
            .unwrap_or_default();
        let kind = if passed || reason.stage == "risk" {
            Line::Note
        } else {
            Line::Denied
        };
        print::line(
            kind,
            &print::harmless(&format!("{} {at}{}", reason.code, reason.message)),
        );
        if let Some(hint) = &reason.hint {
            print::line(Line::Hint, hint);
        }
    }
    let word = if passed {
        "waits for people"
    } else {
        "is rejected"
    };
    print::line(
        Line::Summary,
        &format!("{} {word} risk={}", proposal.id.short(), proposal.risk),
    );
    print::out(&format!("{}\n", proposal.id));
}

fn line_of(result: &StageResult) -> Line {
    match result.verdict {
        Verdict::Fail => Line::Denied,
        Verdict::Pass | Verdict::NotAsked => Line::Note,
    }
}

/// How a stage went, in a line.
pub(super) fn stage_line(result: &StageResult) -> String {
    let word = match result.verdict {
        Verdict::Pass => "passes",
        Verdict::Fail => "fails",
        Verdict::NotAsked => "not asked for",
    };
    let cached = if result.cached {
        ", known from the same inputs"
    } else {
        ""
    };
    format!(
        "stage {} {word} ({} ms{cached})",
        result.stage, result.duration_ms
    )
}
