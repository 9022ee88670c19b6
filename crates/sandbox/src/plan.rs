//! What a box is to be, as plain data: every choice already made, nothing said about how a tier does it.

use crate::show::{Show, ShowName};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

/// A fully resolved box. Any tier can carry it out.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The sandbox's id: names its control groups and its records.
    pub id: String,
    /// The program's absolute path, as seen inside.
    pub program: PathBuf,
    /// Its arguments, the program's name first.
    pub argv: Vec<OsString>,
    /// The whole environment.
    pub env: Vec<(OsString, OsString)>,
    /// The directory it starts in, as seen inside.
    pub workdir: PathBuf,
    /// Who it runs as.
    pub identity: Identity,
    /// What it sees of the file system, parents first.
    pub view: Vec<View>,
    /// How many bytes all private directories together may hold.
    pub private_bytes: u64,
    /// What it may use.
    pub limits: Limits,
    /// Whether it may create processes (threads are always allowed).
    pub spawn: Spawn,
    /// What is shown to it in a place of its own, [`crate::show::OWN_PLACE`].
    pub shows: Vec<Show>,
    /// Files of the host's in whose place one of [`Plan::shows`] is seen.
    pub replaced: Vec<Replaced>,
    /// Whether a control group to freeze it by is made where that costs extra.
    pub freezer: Freezer,
    /// What it may reach over the network.
    pub network: Network,
    /// Whether the keeper may make sockets inside it, to reach what listens there.
    pub entry: Entry,
    /// A port of its own loopback that its keeper listens on, before the program starts and whatever its network leads to.
    pub answered_port: Option<u16>,
    /// What is noted of all that it does.
    pub watch: Watch,
}

/// What is noted of all that a box does. It is noted, never decided on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Watch {
    /// Nothing: the box runs at its own speed.
    #[default]
    Nothing,
    /// Every file it names and what for, processes it makes, and servers it looks for on its own loopback.
    Files,
}

/// What a box may reach over the network. In either case it has a loopback of its own, and no interface that leads anywhere.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Network {
    /// Nothing.
    #[default]
    Closed,
    /// What whoever holds the box's sockets carries for it. All it sends elsewhere comes to those sockets.
    Guarded {
        /// Ports of the loopback that are not the box's own but led out like everything else.
        host_ports: Vec<u16>,
    },
}

/// Whether sockets can be made inside a box from outside.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Entry {
    /// No.
    #[default]
    Closed,
    /// Its keeper can have them made.
    ForKeeper {
        /// The ports of the box's loopback that they are for. A tier with a kernel of its own leads them on to it.
        ports: Vec<u16>,
    },
}

/// A file of the host's that a box sees as something else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replaced {
    /// Its path, with no symbolic link on the way.
    pub path: PathBuf,
    /// What is seen there: one of the plan's texts.
    pub by: ShowName,
}

/// The user a box runs as, and the user it acts for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// The user id of every process inside. Never 0.
    pub uid: u32,
    /// The group id of every process inside. Never 0.
    pub gid: u32,
    /// Whose files [`Ownership::Mapped`] entries belong to. Differs from `uid` only when root starts a box.
    pub owner_uid: u32,
    /// The group that goes with `owner_uid`.
    pub owner_gid: u32,
}

/// One entry of the view: what is at `path`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// Absolute path, as seen inside.
    pub path: PathBuf,
    /// What is there.
    pub shows: Shows,
}

impl View {
    /// Whether what is there may be changed.
    pub(crate) fn is_writable(&self) -> bool {
        matches!(
            self.shows,
            Shows::Private { .. }
                | Shows::Overlay { .. }
                | Shows::Host {
                    access: Access::Write,
                    ..
                }
        )
    }
}

/// What a path shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shows {
    /// A directory that holds only what later entries put in it; nobody inside can write to it.
    Frame,
    /// A tree or file of the host's, or of an image that is kept there.
    Host {
        /// Where it is on the host; no symbolic link is followed in its last component.
        source: PathBuf,
        /// Directory or other.
        kind: Kind,
        /// What may be done with it.
        access: Access,
        /// Whose files they appear to be.
        ownership: Ownership,
    },
    /// An empty directory of the box's own, gone when it ends.
    Private {
        /// Who may write there.
        mode: u32,
    },
    /// Something of the host's that is not to be seen: empty, and not writable.
    Hidden(Kind),
    /// The same for something the host does not have: while the box starts, the keeper puts an empty entry of this
    /// kind there, so that there is something to cover.
    StandIn(Kind),
    /// A symbolic link.
    Link(PathBuf),
    /// The host's directory with all changes kept aside.
    Overlay {
        /// The directory that is shown and never written to.
        lower: PathBuf,
        /// Empty entries that must exist in it for later entries to cover them, by name relative to `lower`.
        stand_ins: Option<PathBuf>,
        /// What is seen in place of what `lower` has, parents first. It goes by name: what comes to be there later is masked, too.
        mask: Vec<MaskEntry>,
        /// Where changes go.
        changes: PathBuf,
        /// A scratch directory on the same file system as `changes`.
        scratch: PathBuf,
        /// Whose files they appear to be.
        ownership: Ownership,
    },
}

/// One entry of the layer between an overlay's lower directory and its changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MaskEntry {
    /// Below the lower directory; plain names alone.
    pub path: PathBuf,
    /// What is seen there.
    pub shows: MaskShows,
}

/// What a mask shows at a path. All of it is the box's user's, who may change it: the changes lie above.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MaskShows {
    /// Nothing.
    Absent,
    /// An empty directory.
    Empty,
    /// What the lower directory has, in a directory of this mode.
    Directory {
        /// Who may do what there.
        mode: u32,
    },
    /// A file with these contents.
    Text {
        /// What is in it.
        bytes: Arc<[u8]>,
        /// Who may do what with it.
        mode: u32,
    },
}

/// Whether a path is a directory or anything else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A directory.
    Directory,
    /// A file, socket, device…
    File,
}

/// What may be done with a host tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Look, read, execute.
    Read,
    /// Everything.
    Write,
}

/// Whose files a host tree's appear to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ownership {
    /// Theirs on the host.
    Host,
    /// The plan's `owner_uid` appears as its `uid`, so that a box which runs as nobody can work for root.
    Mapped,
    /// Theirs in an image, which may be kept where the box's user can't go: the keeper opens it where it is another user.
    Image,
}

/// What the whole process tree may use. `None` is no limit.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Limits {
    /// Bytes of memory, swap and private files included.
    pub memory_bytes: Option<u64>,
    /// CPU time of all processes together.
    pub cpu_time: Option<std::time::Duration>,
    /// Share of CPU time, 100 being one core.
    pub cpu_percent: Option<f64>,
    /// Processes and threads alive at once.
    pub processes: Option<u32>,
    /// Open files of each process.
    pub open_files: Option<u32>,
    /// Bytes of one file.
    pub file_size_bytes: Option<u64>,
}

/// Whether processes may be created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spawn {
    /// Yes.
    Allow,
    /// No: fork fails, threads work.
    Refuse,
}

/// How a box gets ready to be frozen. Every box can be; see [`crate::native::Grip::freeze`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freezer {
    /// By a control group, wherever one can be made.
    Prepared,
    /// By a control group only if it has one anyway. Starts sooner on hosts with version 1 groups.
    AsItComes,
}
