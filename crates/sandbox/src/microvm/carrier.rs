//! What carries a guest: QEMU, by the processor or by emulation, or Firecracker.

use super::guest;
use super::kvm::Accelerator;
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
const OLDEST: (u32, u32) = (1, 8);

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

    /// What its guests' kernel needs to reach the bridge.
    pub(super) fn modules(self) -> &'static [&'static str] {
        match self {
            Self::Qemu(_) => guest::MODULES,
            Self::Firecracker => guest::VSOCK_MODULES,
        }
    }
}

/// Whether this Firecracker is one that can be driven; why not, otherwise.
pub(super) fn demand_version(program: &Path) -> Result<(), String> {
    let at = program.display();
    let said = Command::new(program)
        .arg("--version")
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("a Firecracker that runs ({at}: {error})"))?;
    let text = String::from_utf8_lossy(&said.stdout);
    match version_in(&text) {
        Some(version) if version >= OLDEST => Ok(()),
        Some((major, minor)) => Err(format!(
            "Firecracker {}.{} or later ({at} is {major}.{minor})",
            OLDEST.0, OLDEST.1
        )),
        None => Err(format!(
            "a Firecracker that says its version ({at} does not)"
        )),
    }
}

/// What `firecracker --version` says: `Firecracker v1.13.1` and more.
fn version_in(said: &str) -> Option<(u32, u32)> {
    let version = said.lines().next()?.strip_prefix("Firecracker v")?;
    let mut numbers = version.split(['.', '-']);
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
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
    fn versions_are_read_and_old_ones_told() {
        assert_eq!(version_in("Firecracker v1.13.1\n\nmore"), Some((1, 13)));
        assert_eq!(version_in("Firecracker v1.8.0-dev\n"), Some((1, 8)));
        assert_eq!(version_in("Fire v1.8.0\n"), None);
        assert_eq!(version_in(""), None);
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
