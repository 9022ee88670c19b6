//! One box from a capability to its result: what `belljar run` is, as a library.
//!
//! ```no_run
//! use belljar_supervisor::{Command, SandboxManager};
//!
//! let manager = SandboxManager::new()?;
//! let capability = belljar_manifest::profile("strict").expect("a shipped profile");
//! let id = manager.create(capability)?;
//! let result = manager.execute(&id, &Command::new(["python3", "-c", "print('hello from the box')"]))?;
//! assert_eq!(result.exit_code, Some(0));
//! assert_eq!(result.stdout.as_deref(), Some("hello from the box\n"));
//! manager.destroy(&id)?;
//! # Ok::<(), belljar_supervisor::RunError>(())
//! ```

pub mod apart;
mod attend;
mod capture;
mod changes;
mod command;
pub mod daemon;
mod door;
mod environment;
mod error;
pub mod fleet;
mod home;
mod image;
pub mod inbox;
mod keeper;
mod key_files;
pub mod learn;
mod lone;
mod lower;
mod manager;
mod named;
mod network;
mod observation;
mod path_check;
mod places;
mod program;
mod reins;
mod repositories;
mod result;
mod rotation;
mod secret_files;
mod secret_store;
mod shows;
mod stand_in;
mod stand_ins;
mod starting;
mod state;
pub mod tools;
mod urgency;
mod view;

pub use attend::{
    Asking, Assignment, Attendant, Facts, Leave, Output, Refusal, Signals, Usage, attend,
};
pub use belljar_gate::record::UsedImage;
pub use belljar_sandbox::descriptors::raise_limit as raise_descriptor_limit;
pub use belljar_sandbox::native::{FreezeError, FreezeMethod};
pub use belljar_sandbox::show::{InvalidShow, OWN_PLACE, Show, ShowName};
pub use changes::{
    ApplyError, Change, ChangeGroup, ChangeKind, CommitLine, Conflict, FileHunks, LineCount,
    MovedRef, Overlay, PathFilter, RepositorySummary, RunOrigin, Selection, StagedPath, Trouble,
    WaitingOverlay,
};
pub use command::Command;
pub use door::Door;
pub use environment::{
    AGENT_SOCKET, CA, CLIENT_CERT, CLIENT_KEY, KEY_COMMAND, KEY_FILE, MCP_SOCKET, MCP_URL,
    NO_COLOR, STATE_DIR, SUPERVISOR, TOKEN, guest_kernel, key_source, runsc,
};
pub use error::RunError;
pub use home::{HomeChange, HomeEntry, HomeOwner, HomeRequest, HomeStore, HomeSummary};
pub use lone::{Recording, run, run_attended, run_told};
pub use manager::{SandboxId, SandboxManager};
pub use network::{HostUse, NetworkUsage, RefusalGroup, SecretReader, answered_port};
pub use observation::{Observation, PathUse, Paths};
pub use path_check::PathCheck;
pub use places::{Principal, find_places};
pub use reins::{BoxState, Reins};
pub use repositories::with_repositories;
pub use result::{KillCode, KilledBy, ResourceUsage, RunResult, Violation};
pub use rotation::{Part, Rotated, read_part};
pub use secret_store::{SecretStore, StoredSecret};
pub use stand_in::PutStandIn;
pub use state::{RunRecord, StateDir};
