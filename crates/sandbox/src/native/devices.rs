//! The box's own /dev, as steps of the script.

use super::message::LaunchError;
use super::script::{Draft, Place, Step};
use crate::sys::mount_flag;
use std::path::Path;

/// The device files every program may expect.
const DEVICES: &[&str] = &["null", "zero", "full", "random", "urandom", "tty"];

impl Draft<'_> {
    /// A minimal /dev. /dev/shm is the plan's own business.
    pub(super) fn devices(&mut self) -> Result<(), LaunchError> {
        for name in DEVICES {
            let source = Path::new("/dev").join(name);
            if source.exists() {
                let path = self.relative(&source)?;
                self.push(Step::Touch { at: path }, &source);
                self.push(
                    Step::Bind {
                        source: self.path(&source)?,
                        at: Place { path, ours: true },
                        flags: mount_flag::NO_SUID,
                        only: None,
                    },
                    &source,
                );
            }
        }
        let terminals = Path::new("/dev/pts");
        self.push(
            Step::Directory {
                at: self.relative(terminals)?,
                mode: 0o755,
            },
            terminals,
        );
        self.push(
            Step::Terminals {
                at: Place {
                    path: self.relative(terminals)?,
                    ours: true,
                },
            },
            terminals,
        );
        for (name, target) in [
            ("/dev/ptmx", "pts/ptmx"),
            ("/dev/fd", "/proc/self/fd"),
            ("/dev/stdin", "/proc/self/fd/0"),
            ("/dev/stdout", "/proc/self/fd/1"),
            ("/dev/stderr", "/proc/self/fd/2"),
        ] {
            let step = Step::Link {
                at: self.relative(Path::new(name))?,
                target: self.path(Path::new(target))?,
            };
            self.push(step, Path::new(name));
        }
        Ok(())
    }
}
