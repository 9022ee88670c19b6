//! `belljar diff | apply | discard`: what became of an overlay.

use crate::cli::{Kept, OutputFormat};
use crate::exit::{self, Failure};
use crate::print::{self, Line};
use belljar_supervisor::{ChangeKind, Overlay, StateDir};

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

/// One at a time: paths of deep trees are long.
fn list(overlay: &Overlay, format: OutputFormat) {
    if format == OutputFormat::Json {
        print::json_list(overlay.changes());
        return;
    }
    for change in overlay.changes() {
        let path = print::harmless_path(&change.path);
        print::out(&format!("{} {path}\n", letter(change.kind)));
    }
}

fn colour_of(line: &str) -> &'static str {
    match line.as_bytes().first() {
        Some(b'+') => "32",
        Some(b'-') => "31",
        Some(b'@') => "36",
        _ => "0",
    }
}

pub(crate) fn diff(kept: &Kept) -> Result<u8, Failure> {
    let overlay = open(kept)?;
    list(&overlay, kept.format.output);
    for trouble in overlay.troubles() {
        let path = print::harmless_path(&trouble.path);
        print::line(
            Line::Note,
            &format!(
                "{path} could not be looked at: {}; `apply` is refused",
                trouble.why
            ),
        );
    }
    if kept.format.output == OutputFormat::Json {
        return Ok(exit::OK);
    }
    let colour = print::stdout_colours();
    for change in overlay.changes() {
        for line in overlay.diff(&change).split_terminator('\n') {
            print::out(&format!(
                "{}\n",
                print::styled(line, colour_of(line), colour)
            ));
        }
    }
    Ok(exit::OK)
}

pub(crate) fn apply(kept: &Kept) -> Result<u8, Failure> {
    let overlay = open(kept)?;
    overlay.apply()?;
    list(&overlay, kept.format.output);
    Ok(exit::OK)
}

pub(crate) fn discard(kept: &Kept) -> Result<u8, Failure> {
    Overlay::discard(&StateDir::find()?, &kept.id)?;
    Ok(exit::OK)
}
