//! `belljar home`: what agents keep in their copies of the home directory.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use belljar_supervisor::{HomeChange, HomeEntry, HomeOwner, HomeStore, HomeSummary, StateDir};
use serde_json::json;

use super::image::bytes;
use crate::cli::home::{Home, NamedHome, WhichHome};
use crate::cli::{Format, OutputFormat};
use crate::exit::{self, Failure};
use crate::print::{self, Line};

pub(crate) fn home(what: &Home) -> Result<u8, Failure> {
    let store = HomeStore::of(&StateDir::existing()?);
    match what {
        Home::List { format } => list(&store, format),
        Home::Show(named) => show(&store, named),
        Home::Diff(named) => diff(&store, named),
        Home::Export { home, file } => export(&store, home, file),
        Home::Reset { home, all, format } => reset(&store, home, *all, format),
    }
}

fn owner_text(owner: &HomeOwner) -> String {
    match owner {
        HomeOwner::Project(path) => print::harmless_path(path).into_owned(),
        HomeOwner::Agent(name) => format!("agent {}", print::harmless(name)),
        HomeOwner::Box(id) => format!("box {id}"),
    }
}

fn list(store: &HomeStore, format: &Format) -> Result<u8, Failure> {
    let summaries = store
        .entries()
        .iter()
        .map(HomeEntry::summary)
        .collect::<Result<Vec<_>, _>>()?;
    if format.output == OutputFormat::Json {
        print::json_list(summaries.iter());
        return Ok(exit::OK);
    }
    for summary in &summaries {
        let state = if summary.is_in_use { "in use" } else { "kept" };
        let text = format!(
            "{:<16} {:<7} {:>6} entries {:>10}  {}\n",
            summary.id,
            state,
            summary.entries,
            bytes(summary.bytes),
            owner_text(&summary.owner),
        );
        print::out(&text);
    }
    if summaries.is_empty() {
        print::line(Line::Note, "no private home has been made yet");
    }
    Ok(exit::OK)
}

fn show(store: &HomeStore, named: &NamedHome) -> Result<u8, Failure> {
    let homes = find(store, &named.home)?;
    let summaries = homes
        .iter()
        .map(HomeEntry::summary)
        .collect::<Result<Vec<_>, _>>()?;
    if named.format.output == OutputFormat::Json {
        print::json_list(summaries.iter());
        return Ok(exit::OK);
    }
    for summary in &summaries {
        describe(summary);
    }
    Ok(exit::OK)
}

fn describe(summary: &HomeSummary) {
    let state = if summary.is_in_use {
        "a box uses it"
    } else {
        "no box uses it"
    };
    let changed = summary.changed_at.map_or_else(
        || "never".to_owned(),
        |seconds| print::utc(seconds.saturating_mul(1000)),
    );
    let lines = [
        ("id", summary.id.clone()),
        ("of", owner_text(&summary.owner)),
        ("over", print::harmless_path(&summary.home).into_owned()),
        (
            "changes",
            print::harmless_path(&summary.changes).into_owned(),
        ),
        (
            "holds",
            format!("{} entries, {}", summary.entries, bytes(summary.bytes)),
        ),
        ("changed", changed),
        ("state", state.to_owned()),
    ];
    for (name, value) in lines {
        print::out(&format!("{name:<9}{value}\n"));
    }
}

fn diff(store: &HomeStore, named: &NamedHome) -> Result<u8, Failure> {
    let is_json = named.format.output == OutputFormat::Json;
    let mut told = Vec::new();
    for home in find(store, &named.home)? {
        home.each_change(|path, change, size| {
            if is_json {
                told.push(json!({
                    "home": home.id(),
                    "path": path.to_string_lossy(),
                    "kind": change,
                    "bytes": size,
                }));
            } else {
                let letter = match change {
                    HomeChange::Added => "A",
                    HomeChange::Modified => "M",
                    HomeChange::Deleted => "D",
                };
                print::out(&format!("{letter} ~/{}\n", print::harmless_path(path)));
            }
        })?;
    }
    if is_json {
        print::json_list(told.iter());
    }
    Ok(exit::OK)
}

fn export(store: &HomeStore, which: &WhichHome, file: &Path) -> Result<u8, Failure> {
    let homes = find(store, which)?;
    let [home] = homes.as_slice() else {
        let ids: Vec<&str> = homes.iter().map(HomeEntry::id).collect();
        return Err(Failure::Invalid(
            format!("{} homes are meant: {}", ids.len(), ids.join(", ")),
            "name one by its id".into(),
        ));
    };
    if file == Path::new("-") {
        home.export(std::io::stdout().lock())?;
        return Ok(exit::OK);
    }
    let failed = |error: std::io::Error| {
        Failure::Invalid(
            format!("{}: {error}", print::harmless_path(file)),
            "name a file that is not there yet, in a directory that you can write to".into(),
        )
    };
    // What an agent keeps may be nobody else's business; and nothing of the user's is written over.
    let mut options = File::options();
    let options = options.write(true).create_new(true).mode(0o600);
    let mut to = BufWriter::new(options.open(file).map_err(failed)?);
    home.export(&mut to)?;
    to.flush().map_err(failed)?;
    Ok(exit::OK)
}

fn reset(store: &HomeStore, which: &WhichHome, all: bool, format: &Format) -> Result<u8, Failure> {
    let homes = if all {
        let mut homes = store.entries();
        homes.retain(|home| !home.is_in_use());
        homes
    } else {
        find(store, which)?
    };
    let mut removed = Vec::new();
    for home in &homes {
        home.reset()?;
        removed.push(home.id());
    }
    if format.output == OutputFormat::Json {
        print::json(&json!({ "removed": removed }));
    } else {
        for id in removed {
            print::out(&format!("{id}\n"));
        }
    }
    Ok(exit::OK)
}

/// The homes that a command line means: those of this directory if it names none.
fn find(store: &HomeStore, which: &WhichHome) -> Result<Vec<HomeEntry>, Failure> {
    let here = || std::ffi::OsString::from(".");
    let name = which.home.clone().unwrap_or_else(here);
    let found = store.find(&name);
    if found.is_empty() {
        let what = match &which.home {
            Some(name) => format!(
                "no private home of {}",
                print::harmless_path(Path::new(name))
            ),
            None => "this directory has no private home".to_owned(),
        };
        return Err(Failure::Invalid(
            what,
            "`belljar home list` names them; `belljar run --home private` makes one".into(),
        ));
    }
    Ok(found)
}
