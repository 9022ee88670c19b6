//! Every environment variable Belljar itself reads or sets.

/// Where records and kept changes live.
pub const STATE_DIR: &str = "BELLJAR_STATE_DIR";
/// Set inside a box to its id, so that a program can tell.
pub(crate) const INSIDE: &str = "BELLJAR_SANDBOX";
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
