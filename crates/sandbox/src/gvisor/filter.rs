//! The native tier's list of calls, held by gVisor's kernel against its program as well.
//!
//! What the list forbids is forbidden in every tier. Rules that OCI has no words for are about kinds of sockets and
//! personalities, which gVisor makes itself: they lead nowhere but into its own kernel.

use super::Version;
use crate::native::{Rule, Verdict, When, rules};
use crate::plan::Spawn;
use serde_json::{Value, json};

/// An OCI filter. Who calls gVisor's kernel can't take it off.
pub(super) fn filter(spawn: Spawn, version: Version) -> Value {
    let rules = rules(spawn, false);
    let is_kept = |rule: &&Rule| match rule.verdict {
        Verdict::Report(_) => true,
        Verdict::Fail(_) => REFUSABLE.contains(&rule.name) || must_refuse(rule, spawn, version),
        // gVisor's kernel connects to what is its own, and asks init for the rest.
        Verdict::Mediate | Verdict::Watch(_) => false,
    };
    let lines: Vec<Value> = rules.iter().filter(is_kept).flat_map(lines).collect();
    json!({
        "defaultAction": "SCMP_ACT_ALLOW",
        "architectures": [architecture()],
        "syscalls": lines,
    })
}

/// Calls that programs do without, whatever error they get. gVisor may answer EPERM where a rule says ENOSYS, and what
/// falls back from the one does not fall back from the other.
const REFUSABLE: &[&str] = &["io_uring_setup", "io_uring_enter", "io_uring_register"];

/// Releases whose kernel has clone3 would let a program spawn by it. Threads by clone3 may fail with it.
fn must_refuse(rule: &Rule, spawn: Spawn, version: Version) -> bool {
    rule.name == "clone3" && spawn == Spawn::Refuse && version.has_clone3()
}

fn lines(rule: &Rule) -> Vec<Value> {
    let errno = match rule.verdict {
        Verdict::Fail(errno) | Verdict::Report(errno) => errno.raw_os_error(),
        Verdict::Mediate | Verdict::Watch(_) => libc::EPERM,
    };
    let line = |args: Vec<Value>| json!({ "names": [rule.name], "action": "SCMP_ACT_ERRNO", "errnoRet": errno, "args": args });
    match rule.when {
        When::Always => vec![line(Vec::new())],
        When::AnyBit(arg, bits) => each_bit(bits)
            .map(|bit| line(vec![masked(arg, bit, bit)]))
            .collect(),
        When::NoBit(arg, bits) => vec![line(vec![masked(arg, bits, 0)])],
        When::OneOf(arg, values) => values
            .iter()
            .map(|value| line(vec![masked(arg, u32::MAX, *value)]))
            .collect(),
        When::BothBits(first, bits, second, more) => each_bit(bits)
            .flat_map(|bit| each_bit(more).map(move |other| (bit, other)))
            .map(|(bit, other)| line(vec![masked(first, bit, bit), masked(second, other, other)]))
            .collect(),
        When::ProtocolIs(family, protocol) => vec![line(vec![
            masked(0, u32::MAX, family),
            masked(2, u32::MAX, protocol),
        ])],
        When::ProtocolNot(family, protocol) => {
            vec![line(vec![masked(0, u32::MAX, family), not(2, protocol)])]
        }
        When::NoneOf(arg, [value]) => vec![line(vec![not(arg, *value)])],
        When::NoneOf(..) | When::TypeNot(..) => Vec::new(),
    }
}

fn each_bit(bits: u32) -> impl Iterator<Item = u32> {
    (0..u32::BITS)
        .map(|n| 1 << n)
        .filter(move |bit| bits & bit != 0)
}

fn masked(index: u8, mask: u32, value: u32) -> Value {
    json!({ "index": index, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ" })
}

fn not(index: u8, value: u32) -> Value {
    json!({ "index": index, "value": value, "op": "SCMP_CMP_NE" })
}

fn architecture() -> &'static str {
    match cfg!(target_arch = "aarch64") {
        true => "SCMP_ARCH_AARCH64",
        false => "SCMP_ARCH_X86_64",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: Version = Version(20_221_219);
    const NEW: Version = Version(20_250_101);

    /// A C library that is answered EPERM starts no thread.
    #[test]
    fn clone3_is_left_to_a_kernel_that_lacks_it() {
        assert!(!has(&filter(Spawn::Refuse, OLD), "clone3", |_| true));
        assert!(!has(&filter(Spawn::Allow, NEW), "clone3", |_| true));
    }

    fn has(filter: &Value, name: &str, wanted: impl Fn(&Value) -> bool) -> bool {
        let lines = filter["syscalls"].as_array().expect("lines");
        lines
            .iter()
            .any(|line| line["names"][0] == name && wanted(line))
    }

    #[test]
    fn calls_without_conditions_are_refused_with_their_errors() {
        let filter = filter(Spawn::Allow, OLD);
        for (name, errno) in [
            ("unshare", libc::EPERM),
            ("ptrace", libc::EPERM),
            ("io_uring_setup", libc::ENOSYS),
        ] {
            assert!(has(&filter, name, |line| line["errnoRet"] == errno
                && line["args"] == json!([])));
        }
        assert!(!has(&filter, "connect", |_| true));
        assert!(!has(&filter, "fork", |_| true));
    }

    #[test]
    fn a_box_that_may_not_spawn_has_no_call_to_fork_with() {
        let filter = filter(Spawn::Refuse, NEW);
        assert!(has(&filter, "clone", |line| line["args"]
            == json!([masked(0, libc::CLONE_THREAD as u32, 0)])));
        assert!(has(&filter, "clone3", |line| line["errnoRet"] == libc::ENOSYS));
        #[cfg(target_arch = "x86_64")]
        for name in ["fork", "vfork"] {
            assert!(has(&filter, name, |line| line["errnoRet"] == libc::EPERM));
        }
    }

    #[test]
    fn a_set_id_bit_is_refused_whichever_it_is() {
        let filter = filter(Spawn::Allow, OLD);
        for bit in [0o4000, 0o2000] {
            assert!(has(&filter, "fchmod", |line| line["args"]
                == json!([masked(1, bit, bit)])));
        }
    }
}
