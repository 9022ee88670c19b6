//! The program's processes, as pid 1 on gVisor's kernel follows them.
//!
//! That kernel knows no notifications of a filter's, but it can ask a caller's tracer. So pid 1 traces the program and all
//! that it makes: it answers the calls that are refused, counts them, and lets everything else go on as it would have. Nobody
//! is traced by halves: a process without its tracer could not make such a call either, and all end with pid 1.

use crate::native::{Rule, rule_of};
use crate::sys::{self, HeldCall};
use crate::told::{Report, Tally};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

/// What answers for the rules, and what it counted.
pub(super) struct Followed {
    rules: Vec<Rule>,
    tally: Tally,
}

impl Followed {
    /// From here on this process and all that it makes are followed.
    pub(super) fn begin(program: i32, rules: Vec<Rule>) -> Result<Self, Errno> {
        sys::follow(program)?;
        Ok(Self {
            rules,
            tally: Tally::new(),
        })
    }

    /// A thread has stopped: at `event`, or for `signal`. Whoever is gone meanwhile needs nothing.
    pub(super) fn attend(&mut self, thread: i32, signal: i32, event: i32, report: &mut Report) {
        let _ = match event {
            libc::PTRACE_EVENT_SECCOMP => match self.answer(thread, report) {
                Ok(()) => sys::go_on(thread, 0),
                // It is being ended, and makes no call any more.
                Err(Errno::SRCH) => Ok(()),
                // The call would be made if it went on.
                Err(_) => end(thread),
            },
            // New, and just followed.
            libc::PTRACE_EVENT_STOP if signal == libc::SIGTRAP => sys::go_on(thread, 0),
            libc::PTRACE_EVENT_STOP => sys::stay_stopped(thread),
            // It has made another.
            event if event != 0 => sys::go_on(thread, 0),
            _ => sys::go_on(thread, signal),
        };
    }

    /// The thread's call fails with its rule's error, and is counted.
    fn answer(&mut self, thread: i32, report: &mut Report) -> Result<(), Errno> {
        let call = HeldCall::of(thread)?;
        let rule = rule_of(&self.rules, call.number(), &call.arguments());
        let rule_met = rule.and_then(|n| self.rules.get(n));
        call.refuse(rule_met.map_or(Errno::PERM, |rule| rule.verdict.errno()))?;
        if let Some((rule, hits)) = rule.and_then(|n| Some((n, self.tally.count(n)?))) {
            let _ = report.refused(rule, hits);
        }
        Ok(())
    }

    /// How often each rule was hit in all.
    pub(super) fn sum_up(&self, report: &mut Report) {
        for (rule, hits) in self.tally.untold() {
            let _ = report.refused(rule, hits);
        }
    }
}

fn end(thread: i32) -> Result<(), Errno> {
    let process = Pid::from_raw(thread).ok_or(Errno::SRCH)?;
    kill_process(process, Signal::KILL)
}
