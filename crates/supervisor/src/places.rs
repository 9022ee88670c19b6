//! Where a run takes place: the user it is for, that user's home, the working directory.

use crate::environment;
use crate::error::RunError;
use belljar_policy::Places;
use belljar_sandbox::plan::Identity;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Nobody, on every Linux.
const NOBODY: u32 = 65534;

/// Who a box runs as and what that user is called.
#[derive(Debug, Clone)]
pub struct Principal {
    /// Ids inside, and whose files they stand for.
    pub identity: Identity,
    /// The name that goes with the id inside, where there is one.
    pub user: Option<String>,
}

/// A line of the user database.
struct User {
    name: String,
    uid: u32,
    gid: u32,
    home: PathBuf,
}

/// Finds out for whom and where a run in `work` takes place. `work` must exist.
///
/// Started by a user, a box runs as that user. Started by root, it runs as the owner of the working directory; where
/// that is root too, as nobody, with root's home and the writable paths shown as nobody's own.
pub fn find_places(work: &Path) -> Result<(Principal, Places), RunError> {
    let invalid = |what: String, hint: &str| RunError::Invalid {
        what,
        hint: hint.into(),
    };
    let work = work.canonicalize().map_err(|error| {
        invalid(
            format!("working directory {}: {error}", work.display()),
            "start in a directory that exists",
        )
    })?;
    let metadata = std::fs::metadata(&work).map_err(|source| RunError::System {
        doing: "looking at the working directory",
        source,
    })?;
    if !metadata.is_dir() {
        return Err(invalid(
            format!("{} is not a directory", work.display()),
            "start in a directory",
        ));
    }
    let users = users();
    let by_id = |uid: u32| users.iter().find(|user| user.uid == uid);
    let own = rustix::process::geteuid().as_raw();
    let (identity, acts_for) = if own != 0 {
        let gid = rustix::process::getegid().as_raw();
        (
            Identity {
                uid: own,
                gid,
                owner_uid: own,
                owner_gid: gid,
            },
            own,
        )
    } else if metadata.uid() != 0 {
        let uid = metadata.uid();
        let gid = by_id(uid).map_or(metadata.gid(), |user| user.gid);
        let gid = if gid == 0 { uid } else { gid };
        (
            Identity {
                uid,
                gid,
                owner_uid: uid,
                owner_gid: gid,
            },
            uid,
        )
    } else {
        (
            Identity {
                uid: NOBODY,
                gid: NOBODY,
                owner_uid: 0,
                owner_gid: 0,
            },
            0,
        )
    };
    let home = home_of(acts_for, own, by_id(acts_for));
    let user = by_id(identity.uid).map(|user| user.name.clone());
    let mut homes = vec![PathBuf::from("/home"), PathBuf::from("/root")];
    // A home elsewhere has neighbours too, unless it stands alone at the top.
    homes.retain(|path| path.exists());
    Ok((Principal { identity, user }, Places { home, work, homes }))
}

/// The home directory, with no symbolic link in it. The caller's own HOME counts when it acts for itself.
fn home_of(acts_for: u32, own: u32, user: Option<&User>) -> PathBuf {
    let own_home = (acts_for == own)
        .then(|| std::env::var_os(environment::HOME))
        .flatten()
        .map(PathBuf::from)
        .filter(|path| path.is_absolute());
    own_home
        .into_iter()
        .chain(user.map(|user| user.home.clone()))
        .find_map(|path| {
            path.canonicalize()
                .ok()
                .filter(|path| path.is_dir() && path != Path::new("/"))
        })
        .unwrap_or_else(|| PathBuf::from("/nonexistent"))
}

/// The local user database. Read as a file: a static binary can't load the C library's plug-ins.
fn users() -> Vec<User> {
    let text = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    text.lines()
        .filter_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?.to_owned();
            let uid = fields.nth(1)?.parse().ok()?;
            let gid = fields.next()?.parse().ok()?;
            let home = PathBuf::from(fields.nth(1)?);
            Some(User {
                name,
                uid,
                gid,
                home,
            })
        })
        .collect()
}
