//! What is refused to the program: its filter asks pid 1, which answers, counts and tells. Calls that are allowed never come by
//! here.

use super::{Channel, send};
use crate::microvm::wire::{Kind, numbers};
use crate::native::{Rule, rule_of};
use crate::sys::{Notification, Reply};
use crate::told::{FORKS, Tally};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError};

/// Where the kernel counts the processes it refused.
const FORK_EVENTS: &str = "/sys/program/pids.events";

/// What was refused so far.
pub(super) struct Refused {
    channel: Channel,
    /// Nothing, once the sums are told.
    tally: Mutex<Option<Tally>>,
}

impl Refused {
    pub(super) fn new(channel: &Channel) -> Arc<Self> {
        Arc::new(Self {
            channel: Arc::clone(channel),
            tally: Mutex::new(Some(Tally::new())),
        })
    }

    /// Counts, and tells if that is news. One at a time: what is told of a count only grows.
    fn note(&self, which: usize, count: impl FnOnce(&mut Tally) -> Option<u32>) {
        let mut tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(hits) = tally.as_mut().and_then(count) {
            self.tell(which, hits);
        }
    }

    fn tell(&self, which: usize, hits: u32) {
        send(
            &self.channel,
            Kind::Refused,
            &numbers(&[which as u32, hits]),
        );
    }

    /// Tells what is left to tell, now that no process is there any more.
    pub(super) fn sum_up(&self) {
        if let Ok(events) = File::open(FORK_EVENTS) {
            self.note(FORKS, |tally| tally.reach(FORKS, forks_refused(&events)));
        }
        let mut tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        for (which, hits) in tally.take().iter().flat_map(Tally::untold) {
            self.tell(which, hits);
        }
    }

    /// Answers what the program's filter asks, until there is nobody to ask.
    pub(super) fn answer(self: &Arc<Self>, listener: OwnedFd, rules: Vec<Rule>) {
        let refused = Arc::clone(self);
        Notification::prefer_sync(listener.as_fd());
        std::thread::spawn(move || {
            loop {
                let mut asked = [PollFd::new(&listener, PollFlags::IN)];
                let _ = poll(&mut asked, None);
                let [asked] = asked.each_ref().map(PollFd::revents);
                if asked.contains(PollFlags::IN) {
                    refused.answer_one(&listener, &rules);
                } else if !asked.is_empty() {
                    return;
                }
            }
        });
    }

    fn answer_one(&self, listener: &OwnedFd, rules: &[Rule]) {
        // The caller may be gone.
        let Ok(call) = Notification::receive(listener.as_fd()) else {
            return;
        };
        let rule = rule_of(rules, call.number, &call.args);
        // Before it goes on, for it may end the guest by its next call.
        if let Some(rule) = rule {
            self.note(rule, |tally| tally.count(rule));
        }
        let met = rule.and_then(|rule| rules.get(rule));
        let errno = met.map_or(Errno::PERM, |rule| rule.verdict.errno());
        call.answer(listener.as_fd(), Reply::Fail(errno));
    }

    /// Tells of processes beyond the limit, as the kernel counts them.
    pub(super) fn watch_forks(self: &Arc<Self>) -> std::io::Result<()> {
        let events = File::open(FORK_EVENTS)?;
        let refused = Arc::clone(self);
        std::thread::spawn(move || {
            loop {
                // It is read first: a change since then is what is waited for.
                refused.note(FORKS, |tally| tally.reach(FORKS, forks_refused(&events)));
                let mut changed = [PollFd::new(&events, PollFlags::PRI)];
                if poll(&mut changed, None).is_err_and(|errno| errno != Errno::INTR) {
                    return;
                }
            }
        });
        Ok(())
    }
}

fn forks_refused(events: &File) -> u32 {
    let mut text = [0; 64];
    let length = events.read_at(&mut text, 0).unwrap_or(0);
    let text = text.get(..length).unwrap_or_default();
    let count = text
        .split(|byte| *byte == b'\n')
        .find_map(|line| line.strip_prefix(b"max "))
        .and_then(|count| std::str::from_utf8(count).ok()?.parse::<u64>().ok());
    u32::try_from(count.unwrap_or(0)).unwrap_or(u32::MAX)
}
