//! Firecracker: what keeps a policy that asks for it from being carried out.

use super::kvm::try_kvm;
use crate::host::Missing;
use std::path::Path;

const PROGRAMS: &[&str] = &["firecracker", "jailer"];
/// Where those who install it put it.
const PLACES: &[&str] = &["/usr/bin", "/usr/local/bin"];

/// Why there is no such tier here. This version does not drive Firecracker wherever it runs; what the host lacks besides is
/// said, so that nobody installs half of it in vain.
pub fn firecracker() -> Missing {
    let is_there = |name: &&&str| PLACES.iter().any(|at| Path::new(at).join(name).exists());
    let mut lacks: Vec<String> = PROGRAMS
        .iter()
        .filter(|name| !is_there(name))
        .map(|name| format!("no {name} in {}", PLACES.join(" or ")))
        .collect();
    lacks.extend(try_kvm().err().map(|why| format!("no KVM ({why})")));
    let lacks = match lacks.as_slice() {
        [] => String::new(),
        lacks => format!("; nor could this host: {}", lacks.join(", ")),
    };
    Missing {
        what: format!("sandbox_tier firecracker is not carried out by this version{lacks}"),
        hint: "set sandbox_tier: microvm, whose guests have a kernel of their own too, or gvisor or seccomp".into(),
    }
}
