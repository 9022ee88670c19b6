//! What init tells its keeper, and the other way: fixed-size messages on a socket pair.

use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::path::PathBuf;

/// A message as it crosses the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) kind: Kind,
    pub(crate) a: i32,
    pub(crate) b: i32,
}

/// What a message says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Kind {
    /// Keeper → init: the user map is written, go on.
    Mapped = 1,
    /// Init → keeper: `a` = [`Stage`] number, `b` = errno; nothing runs.
    Failed = 2,
    /// Init → keeper: every wall stands, the program is about to start.
    Applied = 3,
    /// Init → keeper: the program ended with wait status `a`; the box lives while others do.
    MainEnded = 4,
    /// Init → keeper: the program's own kernel ended, with wait status `a`, before it told of the program's end.
    KernelEnded = 17,
    /// Init → keeper: the program was stopped by signal `a`.
    MainStopped = 5,
    /// Init → keeper: rule `a` was hit, `b` times so far.
    Violation = 6,
    /// Init → keeper: the program's own kernel refused a process `a` times so far, for there were as many as may be.
    ForksRefused = 19,
    /// Keeper → init: send signal `a` to the program, or to all that it left behind.
    Signal = 7,
    /// Init → keeper: signal `a` was passed on.
    Signalled = 20,
    /// Init → keeper: it can't do its part any more, for source `a` failed with errno `b`; it ends, and all with it.
    Broken = 21,
    /// Keeper → init: the stand-ins are in place.
    Ready = 9,
    /// Init → keeper: all together used `a` seconds and `b` microseconds of CPU time.
    Used = 16,
    /// Init → keeper: no process is left but init, which ends now. The largest had `a` KiB of memory.
    Emptied = 8,
    /// Keeper → init: stop every process of the box; `a` numbers the order.
    Stop = 10,
    /// Keeper → init: let them all go on.
    Continue = 11,
    /// Init → keeper: they all stand still, as order `a` said; `b` is 1 if no signal can change that.
    Stopped = 12,
    /// Init → keeper: the box's sockets come with this, `a` of them.
    Ways = 13,
    /// Init → keeper: the listener that the keeper answers on comes with this.
    Answered = 18,
    /// Keeper → init: the script is written.
    Written = 15,
    /// Both ways, on a channel of its own: a socket is wanted; none could be had, for the reason `b`.
    Socket = 14,
}

impl Message {
    pub(crate) const SIZE: usize = 12;

    pub(crate) fn new(kind: Kind, a: i32, b: i32) -> Self {
        Self { kind, a, b }
    }

    pub(crate) fn encode(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[..4].copy_from_slice(&(self.kind as i32).to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.a.to_ne_bytes());
        bytes[8..].copy_from_slice(&self.b.to_ne_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| -> Option<i32> {
            Some(i32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
        };
        let kind = match word(0)? {
            1 => Kind::Mapped,
            2 => Kind::Failed,
            3 => Kind::Applied,
            4 => Kind::MainEnded,
            5 => Kind::MainStopped,
            6 => Kind::Violation,
            7 => Kind::Signal,
            8 => Kind::Emptied,
            9 => Kind::Ready,
            10 => Kind::Stop,
            11 => Kind::Continue,
            12 => Kind::Stopped,
            13 => Kind::Ways,
            14 => Kind::Socket,
            15 => Kind::Written,
            16 => Kind::Used,
            17 => Kind::KernelEnded,
            18 => Kind::Answered,
            19 => Kind::ForksRefused,
            20 => Kind::Signalled,
            21 => Kind::Broken,
            _ => return None,
        };
        Some(Self {
            kind,
            a: word(4)?,
            b: word(8)?,
        })
    }

    /// Sends without ever waiting: a keeper that does not read must not stop the box's pid 1.
    pub(crate) fn send(self, to: BorrowedFd<'_>) -> Result<(), Errno> {
        rustix::net::send(
            to,
            &self.encode(),
            SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
        )
        .map(drop)
    }

    /// Receives; `Ok(None)` when the other side is gone.
    pub(crate) fn receive(from: BorrowedFd<'_>, flags: RecvFlags) -> Result<Option<Self>, Errno> {
        let mut bytes = [0u8; Self::SIZE];
        let (length, _) = rustix::net::recv(from, &mut bytes, flags)?;
        if length == 0 {
            Ok(None)
        } else {
            Ok(Self::decode(&bytes[..length]))
        }
    }
}

macro_rules! stages {
    ($($(#[doc = $doc:literal])* $name:ident = $text:literal,)*) => {
        /// The steps of putting up a box, in order. A launch that fails names the one it failed at.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Stage { $($(#[doc = $doc])* $name,)* }

        impl Stage {
            const ALL: &[Stage] = &[$(Stage::$name,)*];

            /// What the step does, for people.
            pub fn describe(self) -> &'static str {
                match self { $(Stage::$name => $text,)* }
            }

            /// The step with this number.
            pub(crate) fn from_number(number: i32) -> Option<Stage> {
                usize::try_from(number).ok().and_then(|n| Self::ALL.get(n)).copied()
            }
        }
    };
}

stages! {
    /// New namespaces.
    Namespaces = "creating namespaces",
    /// Control groups.
    ControlGroup = "joining its control group",
    /// User map.
    UserMap = "mapping its user",
    /// User switch.
    User = "becoming its user",
    /// Loopback.
    Loopback = "raising its own loopback interface",
    /// The way out.
    Network = "leading its network to its keeper",
    /// /proc.
    Proc = "mounting its own /proc",
    /// The root.
    Root = "making its root",
    /// A view entry.
    View = "placing a path of its view",
    /// pivot_root.
    Pivot = "entering its root",
    /// Pid 1 and the program's process.
    Processes = "starting its processes",
    /// Resource limits.
    Limits = "setting resource limits",
    /// Landlock.
    Landlock = "restricting file access with Landlock",
    /// Capabilities.
    Capabilities = "dropping capabilities",
    /// Seccomp.
    Seccomp = "installing the system call filter",
    /// Working directory.
    Workdir = "entering the working directory",
    /// The keeper's word that the program may start.
    Admission = "waiting for admission",
    /// exec.
    Execute = "starting the program",
}

/// A box that could not be put up. Nothing is left of it.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// A step failed.
    #[error("{}{}: {}", stage.describe(), path.as_ref().map(|p| format!(" ({})", p.display())).unwrap_or_default(), describe_errno(*errno))]
    Step {
        /// Which.
        stage: Stage,
        /// The kernel's answer.
        errno: Errno,
        /// The path concerned.
        path: Option<PathBuf>,
    },
    /// A string that can't be passed to the kernel.
    #[error("{what} contains a NUL byte")]
    Nul {
        /// Which.
        what: &'static str,
    },
    /// Something to be shown can't be.
    #[error(transparent)]
    Show(#[from] crate::show::InvalidShow),
    /// Its tier can't do what the plan asks.
    #[error(transparent)]
    Tier(#[from] crate::host::Missing),
    /// Its control group could not be made.
    #[error(transparent)]
    Cgroup(#[from] crate::cgroup::CgroupError),
    /// Init died without a word.
    #[error("the box ended before its program started (wait status {0:#x})")]
    Vanished(i32),
}

fn describe_errno(errno: Errno) -> String {
    std::io::Error::from(errno).to_string()
}

impl LaunchError {
    pub(crate) fn at(stage: Stage) -> impl Fn(Errno) -> LaunchError {
        move |errno| LaunchError::Step {
            stage,
            errno,
            path: None,
        }
    }
}
