//! `belljar audit`: the record of every launch and decision.

mod finding;
pub(crate) mod lines;
mod manifest;
mod proof;
mod verify;

use crate::cli::{Audit, ExportFormat, LogName, OutputFormat};
use crate::exit::{self, Failure};
use crate::print::{self, Line, Stream};
use belljar_gate::LogKind;
use belljar_gate::keyring::{KeyDir, known_keys};
use belljar_gate::ocsf::{self, EntryPlace};
use belljar_ledger::{Fault, ProveError, Reader};
use belljar_supervisor::{StateDir, key_source};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

/// How often `tail --follow` looks.
const LOOK_EVERY: Duration = Duration::from_millis(200);

pub(crate) fn audit(what: &Audit) -> Result<u8, Failure> {
    if matches!(
        what,
        Audit::Show { .. } | Audit::Tail { .. } | Audit::Export { .. }
    ) {
        let state = StateDir::existing()?;
        // Whoever may not write there may look all the same.
        let _ = state.record_lost();
    }
    match what {
        Audit::Verify(arguments) => verify::verify(arguments),
        Audit::Show {
            log,
            entry,
            from,
            limit,
            format,
        } => {
            let (from, limit) = match entry {
                Some(entry) => (*entry, Some(1)),
                None => (*from, *limit),
            };
            show(kind(log.log), from, limit, entry.is_some(), format.output)
        }
        Audit::Tail {
            log,
            lines,
            follow,
            format,
        } => tail(kind(log.log), *lines, *follow, format.output),
        Audit::Prove { log, entry, out } => prove(kind(log.log), *entry, out.as_deref()),
        Audit::Export { log, format } => export(kind(log.log), *format),
        Audit::Manifest { which, format } => manifest::manifest(which, format),
        Audit::Checkpoint { log } => checkpoint(kind(log.log)),
    }
}

fn kind(name: LogName) -> LogKind {
    match name {
        LogName::Runs => LogKind::Runs,
        LogName::Fleet => LogKind::Fleet,
    }
}

fn show(
    log: LogKind,
    from: u64,
    limit: Option<u64>,
    must_exist: bool,
    output: OutputFormat,
) -> Result<u8, Failure> {
    let Some(reader) = open(log)? else {
        return nothing(log);
    };
    if must_exist && from >= reader.size() {
        return Err(no_such_entry(log, from, reader.size()));
    }
    let mut stream = Stream::new();
    let end = limit.map_or(reader.size(), |limit| from.saturating_add(limit));
    write_entries(
        log,
        &reader,
        from..end.min(reader.size()),
        output,
        &mut stream,
    )?;
    stream.flush();
    Ok(exit::OK)
}

fn tail(log: LogKind, lines: u64, follow: bool, output: OutputFormat) -> Result<u8, Failure> {
    let Some(mut reader) = open(log)? else {
        return nothing(log);
    };
    let mut stream = Stream::new();
    let mut next = reader.size().saturating_sub(lines);
    loop {
        write_entries(log, &reader, next..reader.size(), output, &mut stream)?;
        next = reader.size();
        if !stream.flush() || !follow || !stream.wait(LOOK_EVERY) {
            return Ok(exit::OK);
        }
        reader
            .refresh()
            .map_err(|fault| Failure::Fault(log, fault))?;
    }
}

/// Writes the whole log as it stands, one JSON object a line. Says how many; none where there is no log.
pub(super) fn export_to(log: LogName, out: &mut dyn Write) -> Result<Option<u64>, Failure> {
    let log = kind(log);
    let Some(reader) = open(log)? else {
        return Ok(None);
    };
    let mut count = 0;
    let mut entries = reader.entries(0);
    while let Some(entry) = entries.next_borrowed() {
        let (index, bytes) = entry.map_err(|fault| Failure::Fault(log, fault))?;
        let line = lines::json(index, bytes);
        let written = out.write_all(&line).and_then(|()| out.write_all(b"\n"));
        written.map_err(|error| unwritten(&error))?;
        count += 1;
    }
    out.flush().map_err(|error| unwritten(&error))?;
    Ok(Some(count))
}

fn unwritten(error: &std::io::Error) -> Failure {
    Failure::Invalid(
        format!("the export can't be written: {error}"),
        "see that the disk has room; what was written is not the whole log".into(),
    )
}

fn export(log: LogKind, format: ExportFormat) -> Result<u8, Failure> {
    let Some(reader) = open(log)? else {
        return nothing(log);
    };
    let mut stream = Stream::new();
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    let mut entries = reader.entries(0);
    while let Some(entry) = entries.next_borrowed() {
        let (index, bytes) = entry.map_err(|fault| Failure::Fault(log, fault))?;
        let wanted = match format {
            ExportFormat::Jsonl => stream.line(&lines::json(index, bytes)),
            ExportFormat::Ocsf => {
                let entry = lines::value(index, bytes);
                let place = EntryPlace {
                    log: log.as_str(),
                    index,
                    host: &host,
                };
                let event = ocsf::event(&place, &entry);
                stream.line(event.to_string().as_bytes())
            }
        };
        if !wanted {
            break;
        }
    }
    stream.flush();
    Ok(exit::OK)
}

fn write_entries(
    log: LogKind,
    reader: &Reader,
    range: std::ops::Range<u64>,
    output: OutputFormat,
    stream: &mut Stream,
) -> Result<(), Failure> {
    let style = lines::Style::of(reader.size());
    let mut entries = reader.entries(range.start);
    for _ in range {
        let Some(entry) = entries.next_borrowed() else {
            break;
        };
        let (index, bytes) = entry.map_err(|fault| Failure::Fault(log, fault))?;
        let wanted = match output {
            OutputFormat::Json => stream.line(&lines::json(index, bytes)),
            OutputFormat::Text => stream.line(style.text(index, bytes).as_bytes()),
        };
        if !wanted {
            break;
        }
    }
    Ok(())
}

/// A proof is checked before it is handed out: one that a damaged log gives would convince nobody, and tell too late.
fn prove(log: LogKind, entry: u64, out: Option<&Path>) -> Result<u8, Failure> {
    let state = StateDir::existing()?;
    let Some(reader) = open(log)? else {
        return Err(absent(log));
    };
    let fault = |fault| Failure::Fault(log, fault);
    let Some(bytes) = reader.entry(entry).map_err(fault)? else {
        return Err(no_such_entry(log, entry, reader.size()));
    };
    let proof = reader.proof_file(entry).map_err(|error| match error {
        ProveError::Log(inner) => fault(inner),
        ProveError::OutOfRange { asked, size } => no_such_entry(log, asked, size),
    })?;
    let keyset = KeyDir::of(state.path(), key_source()).keyset()?;
    proof
        .verify(&bytes, log.origin(), &known_keys(&keyset, log.origin()))
        .map_err(|unproven| finding::unproven(log, unproven))?;
    let text = proof.with_extra(bytes).to_string();
    match out {
        None => print::out(&text),
        Some(file) => super::put(file, text.as_bytes()).map_err(|error| {
            Failure::Invalid(
                format!("{}: {error}", file.display()),
                "name a file that you can write to".into(),
            )
        })?,
    }
    Ok(exit::OK)
}

fn checkpoint(log: LogKind) -> Result<u8, Failure> {
    let reader = open(log)?.ok_or_else(|| absent(log))?;
    print::raw(reader.checkpoint().note());
    Ok(exit::OK)
}

/// The log, if there is one.
fn open(log: LogKind) -> Result<Option<Reader>, Failure> {
    match Reader::open(&log.directory(StateDir::existing()?.path())) {
        Ok(reader) => Ok(Some(reader)),
        Err(Fault::Unreadable { cause, .. }) if cause.kind() == std::io::ErrorKind::NotFound => {
            Ok(None)
        }
        Err(fault) => Err(Failure::Fault(log, fault)),
    }
}

fn nothing(log: LogKind) -> Result<u8, Failure> {
    print::line(
        Line::Note,
        &format!("there is no log of {} yet", log.as_str()),
    );
    Ok(exit::OK)
}

fn absent(log: LogKind) -> Failure {
    Failure::Invalid(
        format!("there is no log of {}", log.as_str()),
        "`belljar run` and the controller of a fleet write one; BELLJAR_STATE_DIR says where"
            .into(),
    )
}

fn no_such_entry(log: LogKind, entry: u64, size: u64) -> Failure {
    Failure::Invalid(
        format!("the log of {} has no entry {entry}", log.as_str()),
        match size.checked_sub(1) {
            Some(last) => format!("its entries are 0 to {last}"),
            None => "it has none yet".into(),
        },
    )
}
