//! `belljar diff | apply | discard`: what became of an overlay.

mod chosen;
mod interactive;
mod repositories;
mod shown;

use crate::cli::{Apply, Diff, KeptChanges, OutputFormat};
use crate::exit::{self, Failure};
use crate::pager::PagedOutput;
use crate::print::{self, Line};
use belljar_supervisor::{Change, Overlay, Selection, StateDir};
use chosen::ChosenChanges;

fn tell_troubles(overlay: &Overlay) {
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
}

pub(crate) fn diff(asked: &Diff) -> Result<u8, Failure> {
    let chosen = ChosenChanges::find(&StateDir::existing()?, &asked.kept)?;
    let (id, overlay) = chosen.open()?;
    let filter = chosen.filter_of(&overlay)?;
    if asked.kept.format.output == OutputFormat::Json {
        print::json_list(
            overlay
                .changes()
                .filter(|change| filter.matches(&change.path)),
        );
        tell_troubles(&overlay);
        return Ok(exit::OK);
    }
    let mut output = PagedOutput::start(!asked.no_pager);
    let view = shown::DiffView::new(&overlay, filter, asked.all);
    if asked.name_only {
        view.names(&mut output);
    } else if asked.stat {
        view.statistics(&mut output);
    } else {
        view.everything(&mut output, id);
    }
    drop(output);
    tell_troubles(&overlay);
    if asked.name_only {
        view.left_out()
            .iter()
            .for_each(|left_out| print::line(Line::Note, left_out));
    }
    Ok(exit::OK)
}

/// One at a time: paths of deep trees are long.
fn list<'a>(changes: impl Iterator<Item = Change> + 'a, format: OutputFormat) {
    if format == OutputFormat::Json {
        print::json_list(changes);
        return;
    }
    for change in changes {
        print::out(&format!("{}\n", shown::line(&change)));
    }
}

pub(crate) fn apply(asked: &Apply) -> Result<u8, Failure> {
    let chosen = ChosenChanges::find(&StateDir::existing()?, &asked.kept)?;
    let (id, overlay) = chosen.open()?;
    let filter = chosen.filter_of(&overlay)?;
    let format = asked.kept.format.output;
    let selection = match asked.interactive {
        true => interactive::ask(&overlay, filter, format)?,
        false if filter.is_empty() => {
            overlay.apply()?;
            list(overlay.changes(), format);
            return Ok(exit::OK);
        }
        false => overlay.select(filter),
    };
    if selection.is_empty() {
        print::line(Line::Note, "nothing was applied; all changes go on waiting");
        return Ok(exit::OK);
    }
    overlay.apply_selected(&selection)?;
    list(
        overlay.changes().filter(|change| selection.has(change)),
        format,
    );
    tell_rest(id);
    Ok(exit::OK)
}

/// What goes on waiting.
fn tell_rest(id: &str) {
    let left = StateDir::existing().and_then(|state| Overlay::open(&state, id));
    if let Ok(left) = left {
        let count = left.changes().count();
        let what = match count {
            1 => "1 change waits".to_owned(),
            _ => format!("{count} changes wait"),
        };
        let next = format!("{what} still: belljar diff | apply | discard {id}");
        print::line(Line::Note, &next);
    }
}

pub(crate) fn discard(asked: &KeptChanges) -> Result<u8, Failure> {
    let state = StateDir::find()?;
    let chosen = ChosenChanges::find(&state, asked)?;
    if chosen.filter.is_empty() {
        Overlay::discard(&state, &chosen.id)?;
        return Ok(exit::OK);
    }
    let (id, overlay) = chosen.open()?;
    let filter = chosen.filter_of(&overlay)?;
    let selection: Selection = overlay.select(filter);
    overlay.discard_selected(&selection)?;
    tell_rest(id);
    Ok(exit::OK)
}
