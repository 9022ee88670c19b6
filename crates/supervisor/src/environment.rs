//! Every environment variable Belljar itself reads or sets.

use std::ffi::OsString;
use std::path::PathBuf;

use belljar_gate::keyring::KeySource;

/// Where records and kept changes live.
pub const STATE_DIR: &str = "BELLJAR_STATE_DIR";
/// A file that holds the secret of the signing key. A box sees neither the variable nor the file.
pub const KEY_FILE: &str = "BELLJAR_KEY_FILE";
/// A command that prints the secret of the signing key. A box does not see the variable.
pub const KEY_COMMAND: &str = "BELLJAR_KEY_COMMAND";
/// Where the supervisor is that commands ask; the one of the state directory where it is not set.
pub const SUPERVISOR: &str = "BELLJAR_SUPERVISOR";
/// The token for a supervisor that is reached by its web server.
pub const TOKEN: &str = "BELLJAR_TOKEN";
/// The authorities that such a supervisor's certificate is checked with, in PEM; those of the host where it is not set.
pub const CA: &str = "BELLJAR_CA";
/// Our own certificate for such a supervisor, in PEM.
pub const CLIENT_CERT: &str = "BELLJAR_CLIENT_CERT";
/// Its key.
pub const CLIENT_KEY: &str = "BELLJAR_CLIENT_KEY";
/// A directory with a kernel for guests in `boot` and its modules in `lib/modules`, instead of the usual places.
pub(crate) const GUEST_KERNEL: &str = "BELLJAR_GUEST_KERNEL";
/// The `runsc` of the tier `gvisor`, instead of the one in the usual places.
pub(crate) const RUNSC: &str = "BELLJAR_RUNSC";
/// A directory of the user's own where guests that have started are kept, instead of one below the state directory.
const GUEST_STORE: &str = "BELLJAR_GUEST_STORE";
/// Set inside a box to its id, so that a program can tell.
pub(crate) const INSIDE: &str = "BELLJAR_SANDBOX";
/// Set inside a box to where its door is.
pub const AGENT_SOCKET: &str = "BELLJAR_SOCKET";
/// Set inside a box to where its MCP servers are.
pub const MCP_SOCKET: &str = "BELLJAR_MCP_SOCKET";

/// The same servers at an address of the box's own loopback, for clients that take nothing else.
pub const MCP_URL: &str = "BELLJAR_MCP_URL";
/// Where the host's proxy is, for a policy that says so.
pub(crate) const UPSTREAM_PROXY: &[&str] = &["HTTPS_PROXY", "https_proxy"];
/// Asks programs not to colour their output.
pub const NO_COLOR: &str = "NO_COLOR";
pub(crate) const HOME: &str = "HOME";
pub(crate) const PATH: &str = "PATH";
pub(crate) const TMPDIR: &str = "TMPDIR";
pub(crate) const USER: &str = "USER";
pub(crate) const LOGNAME: &str = "LOGNAME";
pub(crate) const XDG_STATE_HOME: &str = "XDG_STATE_HOME";
/// For a box whose caller has no PATH.
pub(crate) const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Where the kernel for guests is, as the environment says.
#[must_use]
pub fn guest_kernel() -> Option<PathBuf> {
    variable(GUEST_KERNEL).map(PathBuf::from)
}

/// Where the tier `gvisor` has its `runsc`, as the environment says.
#[must_use]
pub fn runsc() -> Option<PathBuf> {
    variable(RUNSC).map(PathBuf::from)
}

/// An empty variable is one that is not set.
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// Where state is, as the environment says; not judged yet. Named and empty is a slip of the pen, not another place.
pub(crate) fn state_dir() -> Option<PathBuf> {
    std::env::var_os(STATE_DIR).map(PathBuf::from)
}

/// Where guests are kept, as the environment says: a path that holds wherever a box is started from.
pub(crate) fn guest_store() -> Option<PathBuf> {
    let place = std::env::var_os(GUEST_STORE).map(PathBuf::from);
    place.filter(|path| path.is_absolute())
}

/// Where the secret of the signing key is, as the environment says: a file before a command before the state directory.
#[must_use]
pub fn key_source() -> KeySource {
    if let Some(file) = variable(KEY_FILE) {
        return KeySource::File(PathBuf::from(file));
    }
    match variable(KEY_COMMAND) {
        Some(command) => KeySource::Command(command.to_string_lossy().into_owned()),
        None => KeySource::Directory,
    }
}
