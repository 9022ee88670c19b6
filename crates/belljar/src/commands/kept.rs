//! `belljar diff | apply | discard`: what became of an overlay.

use crate::cli::{Kept, OutputFormat};
use crate::exit::{self, Failure};
use crate::print;
use belljar_supervisor::{Change, ChangeKind, Overlay, StateDir};

fn open(kept: &Kept) -> Result<Overlay, Failure> {
    Ok(Overlay::open(&StateDir::existing()?, &kept.id)?)
}

fn letter(kind: ChangeKind) -> &'static str {
    match kind {
        ChangeKind::Added => "A",
        ChangeKind::Modified => "M",
        ChangeKind::Deleted => "D",
    }
}

fn list(changes: &[Change]) {
    for change in changes {
        print::out(&format!(
            "{} {}\n",
            letter(change.kind),
            change.path.display()
        ));
    }
}

pub(crate) fn diff(kept: &Kept) -> Result<u8, Failure> {
    let overlay = open(kept)?;
    if kept.format.output == OutputFormat::Json {
        print::json(&overlay.changes());
        return Ok(exit::OK);
    }
    list(overlay.changes());
    let colour = print::stdout_colours();
    for change in overlay.changes() {
        for line in overlay.diff(change).lines() {
            let code = match line.as_bytes().first() {
                Some(b'+') => "32",
                Some(b'-') => "31",
                Some(b'@') => "36",
                _ => "0",
            };
            print::out(&format!("{}\n", print::styled(line, code, colour)));
        }
    }
    Ok(exit::OK)
}

pub(crate) fn apply(kept: &Kept) -> Result<u8, Failure> {
    let changes = open(kept)?.apply()?;
    match kept.format.output {
        OutputFormat::Json => print::json(&changes),
        OutputFormat::Text => list(&changes),
    }
    Ok(exit::OK)
}

pub(crate) fn discard(kept: &Kept) -> Result<u8, Failure> {
    open(kept)?.discard()?;
    Ok(exit::OK)
}
