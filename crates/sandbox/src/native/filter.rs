//! The compiler from [`super::rules`] to classic BPF.
//!
//! Calls whose verdict does not depend on their arguments cost nothing at run time: the kernel caches "always allowed"
//! per call number.

use super::rules::{Rule, Verdict, When};
use crate::sys::SockFilter;

#[cfg(target_arch = "x86_64")]
const AUDIT_ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const AUDIT_ARCH: u32 = 0xc000_00b7;

mod op {
    pub(super) const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
    pub(super) const AND: u16 = 0x54; // BPF_ALU | BPF_AND | BPF_K
    pub(super) const IF_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
    pub(super) const IF_ANY_BIT: u16 = 0x45; // BPF_JMP | BPF_JSET | BPF_K
    pub(super) const IF_AT_LEAST: u16 = 0x35; // BPF_JMP | BPF_JGE | BPF_K
    pub(super) const RETURN: u16 = 0x06; // BPF_RET | BPF_K
}

const OFFSET_NUMBER: u32 = 0;
const OFFSET_ARCH: u32 = 4;
const X32_BIT: u32 = 0x4000_0000;

/// Where an argument's low half is in `seccomp_data` (little-endian targets only).
fn argument(index: u8) -> u32 {
    16 + 8 * u32::from(index)
}

fn plain(code: u16, k: u32) -> SockFilter {
    SockFilter {
        code,
        jump_true: 0,
        jump_false: 0,
        k,
    }
}

fn branch(code: u16, k: u32, jump_true: u8, jump_false: u8) -> SockFilter {
    SockFilter {
        code,
        jump_true,
        jump_false,
        k,
    }
}

/// Compiles rules into a program. A wrong architecture or an x32 call kills the process.
pub(crate) fn compile(rules: &[Rule]) -> Vec<SockFilter> {
    let mut program = vec![
        plain(op::LOAD, OFFSET_ARCH),
        branch(op::IF_EQUAL, AUDIT_ARCH, 1, 0),
        plain(op::RETURN, libc::SECCOMP_RET_KILL_PROCESS),
        plain(op::LOAD, OFFSET_NUMBER),
        branch(op::IF_AT_LEAST, X32_BIT, 0, 1),
        plain(op::RETURN, libc::SECCOMP_RET_KILL_PROCESS),
    ];
    // The kernel runs the program for every call number once, to learn which are always allowed, so it should be
    // short for most: blocks are sorted by number, and a call skips all groups of blocks below its own.
    let mut calls: Vec<libc::c_long> = rules.iter().map(|rule| rule.call).collect();
    calls.sort_unstable();
    calls.dedup();
    for group in calls.chunks(GROUP) {
        let body = group_of(group, rules);
        let highest = group.last().map_or(0, |call| *call as u32);
        let length = u8::try_from(body.len()).unwrap_or(u8::MAX);
        program.push(branch(op::IF_AT_LEAST, highest + 1, length, 0));
        program.extend(body);
    }
    program.push(plain(op::RETURN, libc::SECCOMP_RET_ALLOW));
    program
}

/// How many calls share a group: about the square root of how many there are.
const GROUP: usize = 9;

/// The rules of some calls. The kernel translates the program anew for every box, so it should be short as well: a call
/// with one answer whatever its arguments is one test, and such calls share their answers.
fn group_of(calls: &[libc::c_long], rules: &[Rule]) -> Vec<SockFilter> {
    let mut tests = Vec::new();
    let mut blocks = Vec::new();
    let mut answers: Vec<u32> = Vec::new();
    for call in calls {
        let first = rules.iter().find(|rule| rule.call == *call);
        match first {
            Some(rule) if rule.when == When::Always => {
                let answer = answer(rule.verdict);
                let known = answers.iter().position(|known| *known == answer);
                tests.push((*call as u32, known.unwrap_or(answers.len())));
                if known.is_none() {
                    answers.push(answer);
                }
            }
            _ => blocks.extend(block(*call, rules)),
        }
    }
    // What is in no block of its group is in none.
    blocks.push(plain(op::RETURN, libc::SECCOMP_RET_ALLOW));
    let mut code = Vec::with_capacity(tests.len() + blocks.len() + answers.len());
    for (at, (call, answer)) in tests.iter().enumerate() {
        let distance = tests.len() - at - 1 + blocks.len() + answer;
        let distance = u8::try_from(distance).unwrap_or(u8::MAX);
        code.push(branch(op::IF_EQUAL, *call, distance, 0));
    }
    code.extend(blocks);
    code.extend(answers.iter().map(|answer| plain(op::RETURN, *answer)));
    code
}

fn answer(verdict: Verdict) -> u32 {
    match verdict {
        Verdict::Fail(errno) => libc::SECCOMP_RET_ERRNO | errno.raw_os_error() as u32,
        Verdict::Trace(_) => libc::SECCOMP_RET_TRACE,
        Verdict::Report(_) | Verdict::Answer(_) | Verdict::Mediate | Verdict::Watch(_) => {
            libc::SECCOMP_RET_USER_NOTIF
        }
    }
}

/// All rules of one call: skipped whole by other calls, ended by "allow".
fn block(call: libc::c_long, rules: &[Rule]) -> Vec<SockFilter> {
    let mut body = Vec::new();
    for rule in rules.iter().filter(|rule| rule.call == call) {
        body.extend(condition(rule.when, rule.verdict));
    }
    body.push(plain(op::RETURN, libc::SECCOMP_RET_ALLOW));
    let length = u8::try_from(body.len()).unwrap_or(u8::MAX);
    let mut block = vec![branch(op::IF_EQUAL, call as u32, 0, length)];
    block.extend(body);
    block
}

/// Instructions that return the verdict when the condition holds, and fall through when not.
fn condition(when: When, verdict: Verdict) -> Vec<SockFilter> {
    let action = plain(op::RETURN, answer(verdict));
    match when {
        When::Always => vec![action],
        When::AnyBit(arg, bits) => {
            vec![
                plain(op::LOAD, argument(arg)),
                branch(op::IF_ANY_BIT, bits, 0, 1),
                action,
            ]
        }
        When::NoBit(arg, bits) => {
            vec![
                plain(op::LOAD, argument(arg)),
                branch(op::IF_ANY_BIT, bits, 1, 0),
                action,
            ]
        }
        When::BothBits(first, bits, second, more) => vec![
            plain(op::LOAD, argument(first)),
            branch(op::IF_ANY_BIT, bits, 0, 3),
            plain(op::LOAD, argument(second)),
            branch(op::IF_ANY_BIT, more, 0, 1),
            action,
        ],
        When::OneOf(arg, values) => {
            let mut code = vec![plain(op::LOAD, argument(arg))];
            code.extend(any_of(values, 0, 1));
            code.push(action);
            code
        }
        When::NoneOf(arg, values) => {
            let mut code = vec![plain(op::LOAD, argument(arg))];
            code.extend(any_of(values, 1, 0));
            code.push(action);
            code
        }
        When::TypeNot(first, flags, values) => {
            let tests = any_of(values, 1, 0);
            let rest = 2 + tests.len() as u8 + 1;
            let mut code = vec![
                plain(op::LOAD, argument(0)),
                branch(op::IF_EQUAL, first, 0, rest),
                plain(op::LOAD, argument(1)),
                plain(op::AND, !flags),
            ];
            code.extend(tests);
            code.push(action);
            code
        }
        When::ProtocolNot(first, protocol) => vec![
            plain(op::LOAD, argument(0)),
            branch(op::IF_EQUAL, first, 0, 3),
            plain(op::LOAD, argument(2)),
            branch(op::IF_EQUAL, protocol, 1, 0),
            action,
        ],
        When::ProtocolIs(first, protocol) => vec![
            plain(op::LOAD, argument(0)),
            branch(op::IF_EQUAL, first, 0, 3),
            plain(op::LOAD, argument(2)),
            branch(op::IF_EQUAL, protocol, 0, 1),
            action,
        ],
    }
}

/// Tests the loaded value against each of `values`; jumps `if_found` or `if_not` past the last test.
fn any_of(values: &[u32], if_found: u8, if_not: u8) -> Vec<SockFilter> {
    let last = values.len().saturating_sub(1);
    values
        .iter()
        .enumerate()
        .map(|(at, value)| {
            let remaining = (last - at) as u8;
            branch(
                op::IF_EQUAL,
                *value,
                remaining + if_found,
                if at == last { if_not } else { 0 },
            )
        })
        .collect()
}

/// The rule behind a notification, for its errno and its name in reports.
pub(crate) fn rule_of(rules: &[Rule], call: i32, args: &[u64; 6]) -> Option<usize> {
    rules
        .iter()
        .position(|rule| rule.call == libc::c_long::from(call) && matches(rule.when, args))
}

fn matches(when: When, args: &[u64; 6]) -> bool {
    let low = |index: u8| {
        args.get(usize::from(index))
            .map_or(0, |value| *value as u32)
    };
    match when {
        When::Always => true,
        When::AnyBit(arg, bits) => low(arg) & bits != 0,
        When::NoBit(arg, bits) => low(arg) & bits == 0,
        When::OneOf(arg, values) => values.contains(&low(arg)),
        When::NoneOf(arg, values) => !values.contains(&low(arg)),
        When::BothBits(first, bits, second, more) => {
            low(first) & bits != 0 && low(second) & more != 0
        }
        When::TypeNot(first, flags, values) => {
            low(0) == first && !values.contains(&(low(1) & !flags))
        }
        When::ProtocolNot(first, protocol) => low(0) == first && low(2) != protocol,
        When::ProtocolIs(first, protocol) => low(0) == first && low(2) == protocol,
    }
}

#[cfg(test)]
mod tests {
    use super::super::rules::rules;
    use super::super::watched;
    use super::*;
    use crate::plan::{Spawn, Watch};

    /// Runs a program the way the kernel does.
    fn run(program: &[SockFilter], arch: u32, call: u32, args: [u64; 6]) -> u32 {
        let word = |offset: u32| match offset {
            OFFSET_NUMBER => call,
            OFFSET_ARCH => arch,
            other => args[((other - 16) / 8) as usize] as u32,
        };
        let (mut at, mut value) = (0usize, 0u32);
        loop {
            let step = program[at];
            at += 1;
            let jump = |yes: bool| usize::from(if yes { step.jump_true } else { step.jump_false });
            match step.code {
                op::LOAD => value = word(step.k),
                op::AND => value &= step.k,
                op::IF_EQUAL => at += jump(value == step.k),
                op::IF_ANY_BIT => at += jump(value & step.k != 0),
                op::IF_AT_LEAST => at += jump(value >= step.k),
                op::RETURN => return step.k,
                other => panic!("unknown instruction {other:#x}"),
            }
        }
    }

    #[test]
    fn program_agrees_with_the_rules_it_was_made_from() {
        for (spawn, watch) in [
            (Spawn::Allow, Watch::Nothing),
            (Spawn::Refuse, Watch::Nothing),
            (Spawn::Allow, Watch::Files),
        ] {
            let mut rules = rules(spawn, true);
            if watch == Watch::Files {
                rules.extend(watched::rules());
            }
            let program = compile(&rules);
            let interesting = [
                0u64,
                1,
                2,
                3,
                5,
                10,
                15,
                16,
                38,
                40,
                58,
                0o644,
                0o4755,
                0o2755,
                0x5412,
                0x541c,
                0x0800_0000,
                0x1000_0000,
                0x10000,
                0o100,
                0o20000000,
                0o20200000,
                u64::from(u32::MAX),
                0x8_0001,
                0x8_0005,
                0x8_0002,
            ];
            for call in 0..500u32 {
                for a in interesting {
                    for b in interesting {
                        let args = [a, b, b, a, 0, 0];
                        let expected = match rule_of(&rules, call as i32, &args) {
                            None => libc::SECCOMP_RET_ALLOW,
                            Some(i) => match rules[i].verdict {
                                Verdict::Fail(e) => {
                                    libc::SECCOMP_RET_ERRNO | e.raw_os_error() as u32
                                }
                                _ => libc::SECCOMP_RET_USER_NOTIF,
                            },
                        };
                        assert_eq!(
                            run(&program, AUDIT_ARCH, call, args),
                            expected,
                            "call {call} args {args:x?}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn other_architectures_and_x32_are_killed() {
        let program = compile(&rules(Spawn::Allow, false));
        assert_eq!(
            run(&program, 0x4000_0003, 1, [0; 6]),
            libc::SECCOMP_RET_KILL_PROCESS
        );
        assert_eq!(
            run(&program, AUDIT_ARCH, X32_BIT | 1, [0; 6]),
            libc::SECCOMP_RET_KILL_PROCESS
        );
    }

    #[test]
    fn every_rule_says_why() {
        assert!(
            rules(Spawn::Refuse, true)
                .iter()
                .all(|rule| !rule.why.is_empty())
        );
    }
}
