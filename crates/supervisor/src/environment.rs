//! Every environment variable Belljar itself reads or sets.

/// Where records and kept changes live.
pub const STATE_DIR: &str = "BELLJAR_STATE_DIR";
/// Set inside a box to its id, so that a program can tell.
pub(crate) const INSIDE: &str = "BELLJAR_SANDBOX";
/// Set inside a box to where its door is.
pub const AGENT_SOCKET: &str = "BELLJAR_SOCKET";
/// A file with the secret of the key that signs the record.
pub(crate) const KEY_FILE: &str = "BELLJAR_KEY_FILE";
/// A command that prints it.
pub(crate) const KEY_COMMAND: &str = "BELLJAR_KEY_COMMAND";
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

/// Where the secret of the signing key is, as the environment says.
#[must_use]
pub fn key_source() -> belljar_gate::keyring::KeySource {
    use belljar_gate::keyring::KeySource;
    let given = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    match (given(KEY_FILE), given(KEY_COMMAND)) {
        (Some(file), _) => KeySource::File(file.into()),
        (None, Some(command)) => KeySource::Command(command.to_string_lossy().into_owned()),
        (None, None) => KeySource::Directory,
    }
}
