//! The native tier's list of calls, held by gVisor's kernel against its program as well.
//!
//! What the list forbids is forbidden in every tier. Rules that OCI has no words for are about kinds of sockets and
//! personalities, which gVisor makes itself: they lead nowhere but into its own kernel.

use crate::native::{Rule, Verdict, When, rules};
use crate::plan::Spawn;
use serde_json::{Value, json};

/// An OCI filter. Who calls gVisor's kernel can't take it off.
pub(super) fn filter(spawn: Spawn) -> Value {
    let rules = rules(spawn, false);
    let lines: Vec<Value> = rules.iter().flat_map(lines).collect();
    json!({
        "defaultAction": "SCMP_ACT_ALLOW",
        "architectures": [architecture()],
        "syscalls": lines,
    })
}

fn lines(rule: &Rule) -> Vec<Value> {
    let errno = match rule.verdict {
        Verdict::Fail(errno) | Verdict::Report(errno) => errno.raw_os_error(),
        // gVisor's kernel connects to what is its own, and asks init for the rest.
        Verdict::Mediate | Verdict::Watch(_) => return Vec::new(),
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

    fn has(filter: &Value, name: &str, wanted: impl Fn(&Value) -> bool) -> bool {
        let lines = filter["syscalls"].as_array().expect("lines");
        lines
            .iter()
            .any(|line| line["names"][0] == name && wanted(line))
    }

    #[test]
    fn calls_without_conditions_are_refused_with_their_errors() {
        let filter = filter(Spawn::Allow);
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
        let filter = filter(Spawn::Refuse);
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
        let filter = filter(Spawn::Allow);
        for bit in [0o4000, 0o2000] {
            assert!(has(&filter, "fchmod", |line| line["args"]
                == json!([masked(1, bit, bit)])));
        }
    }
}
