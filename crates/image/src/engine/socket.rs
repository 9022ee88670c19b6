//! Where an engine listens.

use crate::error::ImageError;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

const DOCKER_HOST: &str = "DOCKER_HOST";
const RUNTIME_DIR: &str = "XDG_RUNTIME_DIR";
const INSTALL: &str = "install an engine (`apt install docker.io` or `apt install podman`) and start it, \
                       or name its socket: --socket PATH";

/// Connects to the engine at that socket; to the first that is there, if none is named.
pub(super) fn connect(named: Option<&Path>) -> Result<UnixStream, ImageError> {
    if let Some(path) = named {
        return try_one(path).map_err(|error| unavailable(path, &error));
    }
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(host) = variable(DOCKER_HOST) {
        let host = host.to_string_lossy().into_owned();
        let Some(path) = host.strip_prefix("unix://").map(Path::new) else {
            return Err(ImageError::Unavailable {
                what: format!("{DOCKER_HOST} names {host:?}, which is no Unix socket"),
                hint: "name one: --socket PATH".into(),
            });
        };
        return try_one(path).map_err(|error| unavailable(path, &error));
    }
    let mut worst = None;
    for path in usual_places(variable(RUNTIME_DIR).map(PathBuf::from)) {
        match try_one(&path) {
            Ok(stream) => return Ok(stream),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => worst = worst.or(Some(unavailable(&path, &error))),
        }
    }
    Err(worst.unwrap_or_else(|| ImageError::Unavailable {
        what: "no container engine was found".into(),
        hint: INSTALL.into(),
    }))
}

/// Docker's before Podman's, the system's before the user's own.
fn usual_places(runtime: Option<PathBuf>) -> Vec<PathBuf> {
    let mut places = vec![PathBuf::from("/var/run/docker.sock")];
    if let Some(runtime) = runtime {
        places.push(runtime.join("docker.sock"));
        places.push(runtime.join("podman/podman.sock"));
    }
    places.push(PathBuf::from("/run/podman/podman.sock"));
    places
}

fn try_one(path: &Path) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(path)?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}

fn unavailable(path: &Path, error: &io::Error) -> ImageError {
    let path = path.display();
    let (what, hint) = match error.kind() {
        io::ErrorKind::PermissionDenied => (
            format!("you may not use the engine's socket {path}"),
            "use an engine of your own (rootless), or ask to be let in: whoever may use a root engine's socket is root",
        ),
        io::ErrorKind::NotFound => (format!("there is no engine's socket {path}"), INSTALL),
        io::ErrorKind::ConnectionRefused => {
            (format!("no engine listens at {path}"), "start the engine")
        }
        _ => (
            format!("the engine's socket {path} can't be used: {error}"),
            INSTALL,
        ),
    };
    ImageError::Unavailable {
        what,
        hint: hint.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_a_socket_is_said_with_what_to_do() {
        let scratch = tempfile::tempdir().expect("a directory");
        let missing = scratch.path().join("none.sock");
        let error = connect(Some(&missing)).expect_err("not there");
        assert!(error.to_string().contains("there is no engine's socket"));
        assert!(error.hint().expect("a hint").contains("docker.io"));
        let dead = scratch.path().join("dead.sock");
        drop(std::os::unix::net::UnixListener::bind(&dead).expect("a socket"));
        let error = connect(Some(&dead)).expect_err("nobody there");
        assert!(error.to_string().contains("no engine listens"));
    }
}
