//! The seam between tiers: what is the wall's, and what is the box's.
//!
//! Every tier stands in the same box: init, its namespaces, its control group, its view of the files, its network and what
//! leads out of it, its keeper's hold on it. So limits, usage, signals, freezing, killing and the way out are one code. A
//! tier says only what stands between the program and the host's kernel: what init executes in the end, which calls and
//! rights that has, and what it needs to be in place. The choice is made when the box is begun and costs the native tier
//! nothing: no process, no system call, no copy.

use crate::gvisor::{self, Runtime};
use crate::host::Missing;
use crate::microvm::{self, Parts};
use crate::native::{LaunchError, Rule, Verdict, When, resource_limits, rules};
use crate::plan::{Identity, Limits, Plan, Spawn};
use crate::sample::Accounting;
use rustix::io::Errno;
use std::borrow::Cow;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What stands between a program and the host's kernel.
#[derive(Debug, Clone)]
pub enum Tier {
    /// The host kernel's own walls: the program calls that kernel through a filter, under Landlock.
    Native,
    /// A kernel of its own in user space: the program calls gVisor's, and only that calls the host's.
    Gvisor(Arc<Runtime>),
    /// A kernel of its own in a virtual machine: only what emulates that calls the host's.
    Microvm(Arc<Parts>),
}

/// Who a box's user is in the box's own user namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Inside {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// What init executes, and how.
pub(crate) struct Wall<'p> {
    pub(crate) program: Cow<'p, Path>,
    pub(crate) argv: Cow<'p, [OsString]>,
    pub(crate) env: Cow<'p, [(OsString, OsString)]>,
    pub(crate) workdir: &'p Path,
    /// The calls that fail or are answered for.
    pub(crate) rules: Vec<Rule>,
    pub(crate) limits: Vec<(libc::__rlimit_resource_t, u64)>,
    /// How many open files each process may have unless it asks for more.
    pub(crate) usual_files: Option<u64>,
    /// How much room its table of open files has from the start.
    pub(crate) descriptors: Descriptors,
    pub(crate) landlock: Landlocked,
    /// What must be there for it, out of the program's sight.
    pub(crate) furniture: Vec<Furniture>,
    /// Where what is executed can't tell of the program by its own end.
    pub(crate) told: Option<Told>,
}

/// What is told of the program in a file (see [`crate::told`]).
pub(crate) struct Told {
    pub(crate) file: PathBuf,
    /// What each number there is about: the rules that hold for the program inside.
    pub(crate) rules: Vec<Rule>,
}

/// The room that a program's table of open files has when it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Descriptors {
    /// What the kernel gives everybody.
    Usual,
    /// For some hundreds: a program of many threads waits for all processors of the host when its table grows.
    Many,
}

/// Whether Landlock stands around what is executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Landlocked {
    Yes,
    /// No: it makes mounts, which Landlock allows nobody.
    No,
}

/// Something a tier puts in place.
pub(crate) enum Furniture {
    /// A program of the host's, whose path has no link in it.
    Program { at: PathBuf, source: PathBuf },
    /// A directory of the host's, to read and execute from.
    Tree { at: PathBuf, source: PathBuf },
    /// A file.
    Text { at: PathBuf, bytes: Vec<u8> },
    /// A file of so many zeros, for what is executed to write in. All of it is there at once: others may fill what is private.
    Blank { at: PathBuf, size: usize },
    /// A device of the host's.
    Device { at: PathBuf },
    /// A directory to write in; under Landlock, only in files that are there from the start.
    Private { at: PathBuf },
    /// A directory where those that are executed make sockets, and find each other's.
    Sockets { at: PathBuf },
}

impl Tier {
    /// A stable word for records: as policies name it.
    pub fn as_str(&self) -> &'static str {
        match self {
            Tier::Native => "seccomp",
            Tier::Gvisor(_) => "gvisor",
            Tier::Microvm(parts) => parts.carrier().tier(),
        }
    }

    /// Whether it can carry out this plan; the first thing it can't, otherwise.
    pub(crate) fn can_carry(&self, plan: &Plan) -> Result<(), Missing> {
        match self {
            Tier::Native => Ok(()),
            Tier::Gvisor(runtime) => gvisor::can_carry(plan, runtime),
            Tier::Microvm(parts) => microvm::can_carry(plan, parts),
        }
    }

    /// Who the plan's user is inside. To the host it is the plan's user in every tier.
    pub(crate) fn inside(&self, identity: Identity) -> Inside {
        match self {
            Tier::Native | Tier::Microvm(_) => Inside {
                uid: identity.uid,
                gid: identity.gid,
            },
            Tier::Gvisor(_) => gvisor::INSIDE,
        }
    }

    /// The capabilities, in the box's own user namespace, of what init executes.
    pub(crate) fn rights(&self) -> u32 {
        match self {
            Tier::Native | Tier::Microvm(_) => 0,
            Tier::Gvisor(_) => gvisor::RIGHTS,
        }
    }

    /// What its processes on the host are.
    pub(crate) fn accounting(&self) -> Accounting {
        match self {
            Tier::Native => Accounting::OfTheProgram,
            Tier::Gvisor(_) | Tier::Microvm(_) => Accounting::OfItsKernel,
        }
    }

    /// What the box's control group is to hold, or whoever looks where there is none.
    pub fn group_limits(&self, limits: &Limits) -> Limits {
        match self {
            Tier::Native => limits.clone(),
            Tier::Gvisor(_) => gvisor::group_limits(limits),
            Tier::Microvm(parts) => microvm::group_limits(limits, parts),
        }
    }

    /// The wall of this tier, for this plan. `sampled`: memory is counted by looking, not by the kernel.
    pub(crate) fn wall<'p>(
        &self,
        plan: &'p Plan,
        sampled: bool,
        terminal: Console,
    ) -> Result<Wall<'p>, LaunchError> {
        match self {
            Tier::Native => Ok(Wall {
                program: Cow::Borrowed(&plan.program),
                argv: Cow::Borrowed(&plan.argv),
                env: Cow::Borrowed(&plan.env),
                workdir: &plan.workdir,
                rules: rules(plan.spawn, sampled && plan.limits.memory_bytes.is_some()),
                limits: resource_limits(plan, sampled),
                usual_files: match plan.limits.open_files {
                    None => crate::descriptors::usual_limit(),
                    Some(_) => None,
                },
                descriptors: Descriptors::Usual,
                landlock: Landlocked::Yes,
                furniture: Vec::new(),
                told: None,
            }),
            Tier::Gvisor(runtime) => gvisor::wall(plan, runtime, terminal),
            Tier::Microvm(parts) => microvm::wall(plan, parts, sampled),
        }
    }
}

/// Becomes what a tier has of this executable in a box, where the command line says so; the number is the exit code. Any
/// other command line is none of this.
pub fn take_over(words: &[OsString]) -> Option<u8> {
    gvisor::take_over(words).or_else(|| microvm::take_over(words))
}

/// Whether the program's input is a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Console {
    Terminal,
    None,
}

/// The rules of the native filter that a wall which starts others can live with. What is not named here is kept.
pub(crate) fn rules_without(names: &[&str]) -> Vec<Rule> {
    let mut kept = rules(Spawn::Allow, false);
    kept.retain(|rule| !names.contains(&rule.name));
    kept
}

/// The same rules, with what it means that they are met by somebody who has no need of the calls. What is asked about is the
/// program's doing.
pub(crate) fn rules_of_a_wall(mut rules: Vec<Rule>, why: &'static str) -> Vec<Rule> {
    let others = rules
        .iter_mut()
        .filter(|rule| rule.verdict != Verdict::Mediate);
    others.for_each(|rule| rule.why = why);
    rules
}

/// The native filter's rules for a program on another kernel, whose pid 1 is asked. Whatever it connects to leads nowhere out of
/// that kernel.
pub(crate) fn rules_inside(spawn: Spawn) -> Vec<Rule> {
    let mut rules = rules(spawn, false);
    rules.retain(|rule| rule.verdict != Verdict::Mediate);
    rules
}

/// The same where the tracer of all processes is asked. What would not be traced can't be made.
pub(crate) fn rules_traced(spawn: Spawn) -> Vec<Rule> {
    let mut rules = rules_inside(spawn);
    for rule in &mut rules {
        if let Verdict::Report(errno) = rule.verdict {
            rule.verdict = Verdict::Trace(errno);
        }
    }
    rules.push(Rule {
        call: libc::SYS_clone,
        name: "clone",
        when: When::AnyBit(0, libc::CLONE_UNTRACED as u32),
        verdict: Verdict::Trace(Errno::PERM),
        why: "nobody would be told of its refused calls",
    });
    rules
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_of_a_program_that_is_told_of_has_its_place() {
        for spawn in [Spawn::Allow, Spawn::Refuse] {
            assert!(rules_traced(spawn).len() <= crate::told::MOST_RULES);
        }
    }
}
