//! Whether the processor itself can keep guests apart: KVM, tried and not just looked for.

use crate::sys;
use rustix::fd::AsFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// Where the kernel offers it.
pub(super) const DEVICE: &str = "/dev/kvm";

/// The one version of the interface that there has been for twenty years.
const VERSION: i32 = 12;

/// The host's own, but for what a program in a guest has no use for and an attacker has: machines of its own in the guest, and
/// counters of what the processor does, both of which the host's kernel would have to carry out.
const KVM_PROCESSOR: &str = "host,svm=off,vmx=off,pmu=off";

/// What carries a guest's processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accelerator {
    /// The host's processor, with a wall of its own between guest and emulator.
    Kvm,
    /// Software: slow, and the emulator is all the wall there is.
    Emulation,
}

impl Accelerator {
    /// A stable word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Emulation => "emulation",
        }
    }

    /// What of the emulator's own arguments it decides.
    pub(super) fn arguments(self) -> [&'static str; 4] {
        match self {
            Self::Kvm => ["-accel", "kvm", "-cpu", KVM_PROCESSOR],
            Self::Emulation => ["-accel", "tcg,tb-size=64", "-cpu", "qemu64"],
        }
    }
}

/// Tries KVM as this process; otherwise says why it can't be had.
pub fn try_kvm() -> Result<(), String> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let kvm = rustix::fs::open(DEVICE, flags, Mode::empty())
        .map_err(|errno| format!("{DEVICE} can't be opened: {errno}{}", advice(errno)))?;
    match sys::kvm_version(kvm.as_fd()) {
        Ok(VERSION) => {}
        Ok(other) => {
            return Err(format!(
                "{DEVICE} speaks version {other} of its interface, not {VERSION}"
            ));
        }
        Err(errno) => return Err(format!("{DEVICE} does not answer: {errno}")),
    }
    sys::try_kvm_machine(kvm.as_fd())
        .map_err(|errno| format!("{DEVICE} makes no machine: {errno}"))?;
    let processor = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    match can_virtualise(&processor) {
        true => Ok(()),
        false => Err(format!(
            "{DEVICE} is there, but the processor has no virtualisation (neither vmx nor svm), without which no \
             ordinary kernel runs in it"
        )),
    }
}

/// What whoever may not open it can do about it.
fn advice(errno: Errno) -> &'static str {
    match errno {
        Errno::ACCESS => "; who is in its group may, which is mostly `kvm`",
        _ => "",
    }
}

/// Some hosts offer KVM without the processor's help, for kernels that were changed to be its guests. Those make machines
/// and run a few instructions, and no other kernel ever comes up.
fn can_virtualise(processor: &str) -> bool {
    let flags = processor.lines().find(|line| line.starts_with("flags"));
    let has = |name: &str| flags.is_some_and(|line| line.split_whitespace().any(|f| f == name));
    has("vmx") || has("svm")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kvm_without_the_processors_help_is_none() {
        assert!(can_virtualise("processor : 0\nflags\t\t: fpu svm nx\n"));
        assert!(can_virtualise("flags\t\t: vmx\n"));
        assert!(!can_virtualise(
            "flags\t\t: fpu nx hypervisor\nbugs\t\t: svm\n"
        ));
        assert!(!can_virtualise(""));
    }

    #[test]
    fn what_is_found_out_is_what_this_host_has() {
        let processor = std::fs::read_to_string("/proc/cpuinfo").unwrap();
        match try_kvm() {
            Ok(()) => assert!(can_virtualise(&processor)),
            Err(why) => assert!(why.contains(DEVICE), "{why}"),
        }
    }
}
