//! What carries a guest: QEMU, by the processor or by emulation, or Firecracker.

use super::guest;
use super::kvm::Accelerator;
use std::fmt;
use std::path::Path;
use std::process::{Command, Stdio};

/// The virtual machine's maker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carrier {
    /// QEMU's machine of the name microvm.
    Qemu(Accelerator),
    /// Firecracker, always by KVM.
    Firecracker,
}

/// The first Firecracker that describes its devices to guests by ACPI, which is how ordinary kernels find them.
const OLDEST: Version = Version(1, 8, 0);
/// In which calls of a guest that goes on can be lost, by the notes of the release after it.
const LOSING_CALLS: Version = Version(1, 16, 0);
/// With which all of this was run.
pub(super) const TRIED: Version = Version(1, 14, 4);

/// A Firecracker's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version(u32, u32, u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(major, minor, patch) = self;
        write!(f, "{major}.{minor}.{patch}")
    }
}

impl Carrier {
    const ALL: &[Self] = &[
        Self::Qemu(Accelerator::Kvm),
        Self::Qemu(Accelerator::Emulation),
        Self::Firecracker,
    ];

    /// A stable word.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Qemu(accelerator) => accelerator.as_str(),
            Self::Firecracker => "firecracker",
        }
    }

    pub(super) fn from_word(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|one| one.word() == word)
    }

    /// The tier that it makes, as policies name it.
    pub fn tier(self) -> &'static str {
        match self {
            Self::Qemu(_) => "microvm",
            Self::Firecracker => "firecracker",
        }
    }

    /// Whether it is the processor that keeps guests apart.
    pub(super) fn takes_kvm(self) -> bool {
        self != Self::Qemu(Accelerator::Emulation)
    }

    /// Whether a box that resumes a guest has all that one starts from as well. Firecracker's guests call, and a call can be lost;
    /// QEMU's have a port, which can't.
    pub(super) fn may_start_anew(self) -> bool {
        self == Self::Firecracker
    }

    /// What its guests' kernel needs to reach the bridge.
    pub(super) fn modules(self) -> &'static [&'static str] {
        match self {
            Self::Qemu(_) => guest::MODULES,
            Self::Firecracker => guest::VSOCK_MODULES,
        }
    }
}

/// Which Firecracker this is, if it can be driven; why not, otherwise.
pub(super) fn demand_version(program: &Path) -> Result<Version, String> {
    let at = program.display();
    let said = Command::new(program)
        .arg("--version")
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("a Firecracker that runs ({at}: {error})"))?;
    let text = String::from_utf8_lossy(&said.stdout);
    let version = version_in(&text)
        .ok_or_else(|| format!("a Firecracker that says its version ({at} does not)"))?;
    drivable(version).map_err(|why| format!("{why} ({at} is {version})"))
}

/// What is needed instead of a version that can't be driven.
fn drivable(version: Version) -> Result<Version, String> {
    match version {
        LOSING_CALLS => Err(format!(
            "another Firecracker than {LOSING_CALLS}, which can lose the call of a guest that goes on: \
             {TRIED}, which was tried, or 1.16.1 or later"
        )),
        version if version < OLDEST => Err(format!(
            "Firecracker {OLDEST} or later, best {TRIED}, which was tried"
        )),
        version => Ok(version),
    }
}

/// What `firecracker --version` says: `Firecracker v1.13.1` and more.
fn version_in(said: &str) -> Option<Version> {
    let version = said.lines().next()?.strip_prefix("Firecracker v")?;
    let mut numbers = version
        .split(['.', '-'])
        .map(|number| number.trim().parse());
    let mut next = || numbers.next()?.ok();
    Some(Version(next()?, next()?, next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_lead_back_to_what_they_name() {
        for carrier in Carrier::ALL {
            assert_eq!(Carrier::from_word(carrier.word()), Some(*carrier));
        }
        assert_eq!(Carrier::from_word("xen"), None);
    }

    #[test]
    fn versions_are_read_and_those_that_cannot_be_driven_told() {
        let of = |said| version_in(said).map(|version| version.to_string());
        assert_eq!(of("Firecracker v1.13.1\n\nmore").as_deref(), Some("1.13.1"));
        assert_eq!(of("Firecracker v1.8.0-dev\n").as_deref(), Some("1.8.0"));
        for none in [
            "Fire v1.8.0\n",
            "Firecracker v1.8\n",
            "Firecracker v1.x.0",
            "",
        ] {
            assert_eq!(of(none), None, "{none}");
        }
        for good in [(1, 8, 0), (1, 14, 4), (1, 16, 1), (1, 17, 0), (2, 0, 0)] {
            let version = Version(good.0, good.1, good.2);
            assert_eq!(drivable(version), Ok(version));
        }
        let old = drivable(Version(1, 7, 9)).unwrap_err();
        assert!(old.contains("1.8.0 or later"), "{old}");
        let losing = drivable(Version(1, 16, 0)).unwrap_err();
        assert!(
            losing.contains("1.14.4") && losing.contains("1.16.1"),
            "{losing}"
        );
        assert!(
            demand_version(Path::new("/bin/true"))
                .unwrap_err()
                .contains("does not")
        );
        assert!(
            demand_version(Path::new("/nowhere"))
                .unwrap_err()
                .contains("/nowhere")
        );
    }
}
