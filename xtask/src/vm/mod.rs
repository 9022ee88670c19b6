//! `vm-test`: the limit tests in a guest that has what this host may lack.
//!
//! Many machines that run tests have cgroup v1 and the newest kernel. The guest has cgroup v2 with a
//! subtree delegated to an ordinary user, as systemd sets it up, and the distribution's own, older kernel.
//! Everything in it is static: the kernel, busybox, `belljar`, its probe and the test programs.
//!
//! `vm-test --kvm` is a second guest for the microvm tier: its emulated processor has AMD's virtualisation, so that KVM works in
//! it whatever this host has. QEMU and a kernel for the guest's own guests are in it too, and a Firecracker if `BELLJAR_FIRECRACKER`
//! names one.

mod artifacts;
mod image;
mod machine;
mod packages;
mod report;
mod tier;

use std::path::PathBuf;
use std::time::Duration;

use crate::Failure;

/// What the command line asked for.
#[derive(Debug, PartialEq)]
pub(crate) struct Options {
    contents: Contents,
    /// Where it is another than the contents' own.
    time_limit: Option<Duration>,
}

/// Which test programs go into the guest.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Contents {
    /// Those that describe the guest, and the limit tests of `belljar`.
    Everything,
    /// Those that describe the guest: to work on the harness itself.
    GuestOnly,
    /// Those of the microvm tier with KVM, in a guest whose emulated processor has virtualisation.
    Kvm,
}

impl Contents {
    /// Emulation is slow and the host may be busy; past this the guest hangs rather than works.
    fn time_limit(self) -> Duration {
        Duration::from_secs(match self {
            Self::Everything | Self::GuestOnly => 1800,
            Self::Kvm => 900,
        })
    }

    /// What keeps its console.
    fn log(self) -> &'static str {
        match self {
            Self::Everything | Self::GuestOnly => "console.log",
            Self::Kvm => "kvm-console.log",
        }
    }
}

impl Options {
    pub(crate) fn parse(words: &[&str]) -> Result<Self, Failure> {
        let mut options = Self {
            contents: Contents::Everything,
            time_limit: None,
        };
        let mut rest = words.iter();
        while let Some(word) = rest.next() {
            match *word {
                "--guest-only" => options.contents = Contents::GuestOnly,
                "--kvm" => options.contents = Contents::Kvm,
                "--timeout" => {
                    let value = rest.next().ok_or("--timeout needs a number of seconds")?;
                    let seconds = value
                        .parse()
                        .map_err(|_| format!("--timeout {value}: not a number of seconds"))?;
                    options.time_limit = Some(Duration::from_secs(seconds));
                }
                unknown => {
                    return Err(
                        format!("vm-test: unknown option {unknown}\n{}", crate::USAGE).into(),
                    );
                }
            }
        }
        Ok(options)
    }
}

/// Builds the guest, boots it, and fails unless every test in it passed.
pub(crate) fn test(options: &Options) -> Result<(), Failure> {
    if !cfg!(target_arch = "x86_64") {
        return Err("vm-test: the guest is an x86-64 machine and runs this host's binaries".into());
    }
    let workshop = Workshop::open()?;
    let packages = packages::fetch(&workshop)?;
    let programs = artifacts::build(&workshop, options.contents)?;
    let more = match options.contents {
        Contents::Everything | Contents::GuestOnly => Vec::new(),
        Contents::Kvm => tier::parts(&packages)?,
    };
    let image = image::assemble(&workshop, &packages, &programs, &more)?;
    let log = workshop.directory.join(options.contents.log());
    let hardware = match options.contents {
        Contents::Everything | Contents::GuestOnly => machine::Hardware::STEADY,
        Contents::Kvm if programs.have_firecracker() => machine::Hardware::NESTING_BOTH,
        Contents::Kvm => machine::Hardware::NESTING,
    };
    let console = machine::boot(
        &hardware,
        &packages.kernel,
        &image,
        &log,
        options
            .time_limit
            .unwrap_or_else(|| options.contents.time_limit()),
    )?;
    report::judge(&console, &programs)
}

/// Where the guest's parts are kept between runs.
struct Workshop {
    /// `target/vm`
    directory: PathBuf,
    /// The root of the repository.
    repository: PathBuf,
}

impl Workshop {
    fn open() -> Result<Self, Failure> {
        let repository = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
            .join("..")
            .canonicalize()?;
        let target = std::env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| repository.join("target"), PathBuf::from);
        let directory = repository.join(target).join("vm");
        std::fs::create_dir_all(&directory)?;
        Ok(Self {
            directory,
            repository,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read() {
        let kvm = Options::parse(&["--kvm"]).unwrap();
        assert_eq!(kvm.contents, Contents::Kvm);
        let options = Options::parse(&["--guest-only", "--timeout", "7"]).unwrap();
        assert_eq!(
            options,
            Options {
                contents: Contents::GuestOnly,
                time_limit: Some(Duration::from_secs(7))
            }
        );
    }

    #[test]
    fn a_wrong_option_is_named() {
        for (words, culprit) in [
            (&["--fast"][..], "--fast"),
            (&["--timeout"], "--timeout"),
            (&["--timeout", "soon"], "soon"),
        ] {
            let message = Options::parse(words).unwrap_err().to_string();
            assert!(message.contains(culprit), "{message}");
        }
    }
}
