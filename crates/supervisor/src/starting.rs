//! What surrounds the start of a box: its record, its streams, its stand-ins, and words for what goes wrong.

use crate::attend::{Output, Signals};
use crate::capture::Capture;
use crate::error::RunError;
use crate::lower::{Lowered, Sketch};
use crate::program::not_executable;
use crate::state::RunRecord;
use belljar_policy::Capability;
use belljar_sandbox::host::Missing;
use belljar_sandbox::native::{LaunchError, Stage, Stdio};
use belljar_sandbox::{Host, Tier};
use rustix::fs::FileType;
use rustix::io::Errno;
use std::time::{SystemTime, UNIX_EPOCH};

/// An overlay of a run that never was is nobody's to apply.
pub(crate) struct DiscardOnFailure(Option<std::path::PathBuf>);

impl DiscardOnFailure {
    pub(crate) fn new(overlay: Option<std::path::PathBuf>) -> Self {
        Self(overlay)
    }

    pub(crate) fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for DiscardOnFailure {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = crate::changes::remove_store(path);
        }
    }
}

/// A run's record, before it is known where stand-ins will be.
pub(crate) fn record_of<'a>(
    sketch: &Sketch,
    capability: &'a Capability,
    host: &Host,
) -> RunRecord<&'a Capability> {
    RunRecord {
        sandbox_id: sketch.outline.id.clone(),
        keeper_pid: std::process::id(),
        started_at: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |time| time.as_secs()),
        command: sketch
            .argv
            .iter()
            .map(|word| word.to_string_lossy().into_owned())
            .collect(),
        workdir: sketch.places.work.clone(),
        capability: capability.name.to_string(),
        tier: capability.tier.as_str().to_owned(),
        image: sketch.image.as_ref().map(|image| image.used.clone()),
        limits_by: host.cgroups.name().to_owned(),
        policy: capability,
        stand_ins: Vec::new(),
        put_stand_ins: Vec::new(),
    }
}

/// A box's three streams, and what the keeper takes from them.
pub(crate) struct Streams {
    pub(crate) stdio: Stdio,
    pub(crate) captures: Option<[Capture; 2]>,
    /// Whether this process's signals are the box's.
    pub(crate) foreground: bool,
}

impl Streams {
    pub(crate) fn open(output: Output) -> Result<Self, Errno> {
        let foreground = matches!(
            output,
            Output::Inherit
                | Output::InheritAsError
                | Output::CaptureForeground
                | Output::Piped {
                    signals: Signals::PassedOn,
                    ..
                }
        );
        let (stdin, captures) = match output {
            Output::Inherit => {
                return Ok(Self {
                    stdio: Stdio::inherit()?,
                    captures: None,
                    foreground,
                });
            }
            Output::InheritAsError => {
                let stdio = Stdio::inherit()?;
                return Ok(Self {
                    stdio: Stdio {
                        stdout: rustix::io::fcntl_dupfd_cloexec(&stdio.stderr, 3)?,
                        ..stdio
                    },
                    captures: None,
                    foreground,
                });
            }
            Output::Shared => {
                return Ok(Self {
                    stdio: Stdio {
                        stdin: nothing()?,
                        ..Stdio::inherit()?
                    },
                    captures: None,
                    foreground,
                });
            }
            Output::Piped { stdin, stdout, .. } => {
                return Ok(Self {
                    stdio: Stdio {
                        stdin,
                        stdout,
                        stderr: Stdio::inherit()?.stderr,
                    },
                    captures: None,
                    foreground,
                });
            }
            Output::CaptureForeground => (
                Stdio::inherit()?.stdin,
                [Capture::in_memory()?, Capture::in_memory()?],
            ),
            Output::Capture => (nothing()?, [Capture::in_memory()?, Capture::in_memory()?]),
            Output::CaptureFed(bytes) => {
                (fed(&bytes)?, [Capture::in_memory()?, Capture::in_memory()?])
            }
            Output::Rotated { stdout, stderr } => (
                nothing()?,
                [Capture::rotated(stdout)?, Capture::rotated(stderr)?],
            ),
            Output::Files {
                stdout,
                stderr,
                limit,
            } => (
                nothing()?,
                [
                    Capture::to_file(stdout, limit)?,
                    Capture::to_file(stderr, limit)?,
                ],
            ),
        };
        let [(out, stdout), (err, stderr)] = captures;
        Ok(Self {
            stdio: Stdio {
                stdin,
                stdout,
                stderr,
            },
            captures: Some([out, err]),
            foreground,
        })
    }
}

/// A pipe with all of it in, and no other end: whoever reads it takes it out.
fn fed(bytes: &[u8]) -> Result<rustix::fd::OwnedFd, Errno> {
    // What fits any pipe, so that nobody waits.
    if bytes.len() > 32 << 10 {
        return Err(Errno::TOOBIG);
    }
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let mut rest = bytes;
    while !rest.is_empty() {
        let written = rustix::io::write(&write, rest)?;
        rest = rest.get(written..).unwrap_or_default();
    }
    Ok(read)
}

impl Streams {
    /// The same for a tier. A kernel of the program's own writes to a file of the host's where it believes the end to be,
    /// and over what others wrote meanwhile; so files are written to by the keeper.
    pub(crate) fn suit(mut self, tier: &Tier) -> Result<Self, Errno> {
        if matches!(tier, Tier::Native) || self.captures.is_some() {
            return Ok(self);
        }
        let mut out = Capture::idle();
        let mut err = Capture::idle();
        for (stream, capture) in [
            (&mut self.stdio.stdout, &mut out),
            (&mut self.stdio.stderr, &mut err),
        ] {
            let kind = FileType::from_raw_mode(rustix::fs::fstat(&*stream)?.st_mode);
            if kind == FileType::RegularFile {
                let file = rustix::io::fcntl_dupfd_cloexec(&*stream, 3)?;
                (*capture, *stream) = Capture::to_file(file.into(), u64::MAX)?;
            }
        }
        self.captures = Some([out, err]);
        Ok(self)
    }
}

fn nothing() -> Result<rustix::fd::OwnedFd, Errno> {
    use rustix::fs::{Mode, OFlags};
    rustix::fs::open(c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

/// A launch that failed at the program itself is the program's fault, or its name's.
pub(crate) fn explain(error: RunError, lowered: &Lowered) -> RunError {
    let error = match error {
        RunError::Launch { source } => source,
        other => return other,
    };
    match error {
        LaunchError::Step { stage: Stage::Execute, errno, .. } => cannot_execute(lowered, errno),
        LaunchError::Step { stage: Stage::Namespaces, errno, .. } => RunError::Refused {
            what: format!("this host does not let this user create namespaces ({})", std::io::Error::from(errno)),
            hint: "`belljar doctor` says what to change (sysctl user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns)".into(),
        },
        LaunchError::Step { stage: Stage::Network, errno, .. } => RunError::Refused {
            what: format!(
                "this kernel can't lead a box's network to its keeper ({}), and the policy opens hosts",
                std::io::Error::from(errno)
            ),
            hint: "`belljar doctor` says what it lacks; without egress rules the box runs, with its network closed".into(),
        },
        LaunchError::Step { stage: Stage::Workdir, errno: Errno::NOENT, .. } => RunError::Refused {
            what: format!("the working directory {} is not visible in the box", lowered.plan.workdir.display()),
            hint: "add to capability.yaml: filesystem_config.readable_paths: [\".\"]".into(),
        },
        LaunchError::Step { stage: Stage::Processes, errno: errno @ (Errno::NOSYS | Errno::PERM), .. } => RunError::Refused {
            what: format!("system calls that boxes are made with are withheld here ({})", std::io::Error::from(errno)),
            hint: "a box can't be put up in a box, or in a container that filters so much".into(),
        },
        LaunchError::Step {
            stage: Stage::View,
            errno: Errno::INVAL,
            path: Some(path),
        } if path == lowered.home && lowered.has_private_home => RunError::Refused {
            what: format!(
                "the private home of {} can't be mounted: its file system, or that of the state directory, can't be part of an overlay",
                path.display()
            ),
            hint: "name a state directory on another file system in BELLJAR_STATE_DIR, or use filesystem_config.home: read_only".into(),
        },
        LaunchError::Step {
            stage: Stage::View,
            errno: Errno::INVAL,
            path: Some(path),
        } if lowered.plan.identity.uid != lowered.plan.identity.owner_uid => RunError::Refused {
            what: format!(
                "{} can't be shown as its box's own: its file system has no id-mapped mounts",
                path.display()
            ),
            hint: "run as the owner of the directory instead of root, or use another file system (tmpfs \
                   needs Linux 6.3)"
                .into(),
        },
        LaunchError::Tier(Missing { what, hint }) => RunError::Refused { what, hint },
        LaunchError::Show(invalid) => RunError::Invalid {
            what: invalid.to_string(),
            hint: "a box of root's runs as another user: what it is shown must be usable by others, \
                   in a directory that need not be"
                .into(),
        },
        other => RunError::Launch { source: other },
    }
}

pub(crate) fn cannot_execute(lowered: &Lowered, errno: Errno) -> RunError {
    let program = lowered.plan.program.clone();
    match errno {
        Errno::NOENT => RunError::NotFound {
            program: program.display().to_string(),
            hint: "its interpreter or loader (#! line, ld.so) is not visible in the box".into(),
        },
        Errno::ACCESS | Errno::NOEXEC => not_executable(program),
        other => RunError::System {
            doing: "starting the program",
            source: other.into(),
        },
    }
}
