//! What a command is shown below `/belljar`, resolved on this host.

use crate::error::RunError;
use belljar_policy::Places;
use belljar_sandbox::plan::{Access, Replaced, Shows, View};
use belljar_sandbox::show::{OWN_PLACE, Show, ShowName};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The same with no symbolic link on the way to any file of the host's.
pub(crate) fn resolve(shows: &[Show]) -> Result<Vec<Show>, RunError> {
    let real = |path: &Path| -> Result<PathBuf, RunError> {
        path.canonicalize().map_err(|error| RunError::Invalid {
            what: format!("{} can't be shown: {error}", path.display()),
            hint: "name a file that exists".into(),
        })
    };
    let shows = shows.iter().map(|show| {
        Ok(match show {
            Show::Text { .. } => show.clone(),
            Show::Program { name, source } => Show::Program {
                name: name.clone(),
                source: real(source)?,
            },
            Show::Door { name, socket } => Show::Door {
                name: name.clone(),
                socket: real(socket)?,
            },
        })
    });
    shows.collect()
}

/// Takes the host's own `/belljar` out of the view, should there be one; unless the box is to work there.
pub(crate) fn make_room(view: &mut Vec<View>, places: &Places) -> Result<(), RunError> {
    let own = Path::new(OWN_PLACE);
    let is_wanted = |entry: &View| match &entry.shows {
        Shows::Host { access, .. } => *access == Access::Write,
        Shows::Overlay { .. } | Shows::Private { .. } => true,
        Shows::Frame | Shows::Hidden(_) | Shows::StandIn(_) | Shows::Link(_) => false,
    };
    let taken = view
        .iter()
        .find(|entry| entry.path.starts_with(own) && is_wanted(entry))
        .map(|entry| &entry.path)
        .or_else(|| {
            [&places.work, &places.home]
                .into_iter()
                .find(|path| path.starts_with(own))
        });
    if let Some(path) = taken {
        return Err(RunError::Refused {
            what: format!(
                "{} lies where the box is shown its own {OWN_PLACE}",
                path.display()
            ),
            hint: "work in another directory".into(),
        });
    }
    view.retain(|entry| !entry.path.starts_with(own));
    Ok(())
}

/// Shows texts in the place of files of the host's.
pub(crate) fn show_altered(
    altered: Vec<(PathBuf, Arc<[u8]>)>,
    shows: &mut Vec<Show>,
    replaced: &mut Vec<Replaced>,
) -> Result<(), RunError> {
    for (number, (path, bytes)) in altered.into_iter().enumerate() {
        let name = ShowName::new(format!("files/{number}"));
        let name = name.map_err(|error| RunError::Invalid {
            what: error.to_string(),
            hint: String::new(),
        })?;
        shows.push(Show::Text {
            name: name.clone(),
            bytes,
        });
        replaced.push(Replaced { path, by: name });
    }
    Ok(())
}

/// Whether a path inside is that of a program which is shown there.
pub(crate) fn is_program(shows: &[Show], path: &Path) -> bool {
    shows
        .iter()
        .any(|show| matches!(show, Show::Program { .. }) && show.name().path() == path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use belljar_sandbox::plan::{Kind, Ownership};

    fn host(path: &str, access: Access) -> View {
        View {
            path: path.into(),
            shows: Shows::Host {
                source: path.into(),
                kind: Kind::Directory,
                access,
                ownership: Ownership::Host,
            },
        }
    }

    fn places(work: &str) -> Places {
        Places {
            home: "/home/user".into(),
            work: work.into(),
            homes: Vec::new(),
        }
    }

    #[test]
    fn a_hosts_own_directory_of_that_name_gives_way() {
        let other = host("/belljars", Access::Read);
        let mut view = vec![host("/belljar", Access::Read), other.clone()];
        make_room(&mut view, &places("/work")).expect("room");
        assert_eq!(view, [other]);
    }

    #[test]
    fn a_box_that_works_there_is_refused() {
        let refuses = |view: &[View], work: &str| {
            let result = make_room(&mut view.to_vec(), &places(work));
            matches!(result, Err(RunError::Refused { .. }))
        };
        assert!(refuses(&[host("/belljar/data", Access::Write)], "/work"));
        assert!(refuses(&[], "/belljar/project"));
        assert!(!refuses(&[host("/data", Access::Write)], "/work"));
    }
}
