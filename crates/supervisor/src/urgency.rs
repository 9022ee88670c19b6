//! What a keeper makes of signals that ask it to end: who asked is obeyed within a grace, whatever the box does with them.
//!
//! All are passed on to the program, or to what it left behind. SIGTERM and SIGHUP mean that all of it is to end, and so do
//! SIGINT and SIGQUIT that a process sends. Those that a key sends mean what the program makes of them, for as long as there is
//! a program; a second one soon after means that it makes too little of them.

use belljar_sandbox::signals::{self, Sender};
use std::time::{Duration, Instant};

/// How long a box may take to end by itself. As long as service managers and engines wait, roughly.
const GRACE: Duration = Duration::from_secs(10);
/// What comes closer together is one wish: a terminal that closes and its shell both say so, and `timeout` says it twice.
const SAME_WISH: Duration = Duration::from_millis(500);

/// What to do about a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Pass it on.
    PassOn,
    /// Kill the box.
    Kill,
}

/// Who the signal is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Addressee {
    /// The program.
    Program,
    /// It has ended: what it left behind.
    LeftBehind,
}

/// What was asked so far.
#[derive(Debug, Default)]
pub(crate) struct Urgency {
    /// The latest wish.
    last: Option<Instant>,
    /// When the box is killed.
    until: Option<Instant>,
    /// When it is killed unless its pid 1 says before that it has passed a signal on.
    unheard_until: Option<Instant>,
}

impl Urgency {
    /// A signal came.
    pub(crate) fn ask(
        &mut self,
        signal: i32,
        sender: Sender,
        whose: Addressee,
        now: Instant,
    ) -> Answer {
        let is_to_end = match signal {
            signals::TERMINATE | signals::HANG_UP => true,
            signals::INTERRUPT | signals::QUIT => {
                whose == Addressee::LeftBehind || sender == Sender::Process
            }
            // Whatever they mean, it is not the end.
            _ => return Answer::PassOn,
        };
        let since = self.last.map(|last| now.saturating_duration_since(last));
        match since {
            Some(since) if since < SAME_WISH => {}
            Some(since) if since < GRACE => return Answer::Kill,
            _ => self.last = Some(now),
        }
        let grace = now.checked_add(GRACE);
        self.unheard_until = self.unheard_until.or(grace);
        if is_to_end {
            self.until = self.until.or(grace);
        }
        Answer::PassOn
    }

    /// The box's pid 1 has passed a signal on.
    pub(crate) fn heard(&mut self) {
        self.unheard_until = None;
    }

    /// The program has ended, and left others behind: whoever interrupted it meant them too.
    pub(crate) fn program_ended(&mut self, now: Instant) {
        if self.last.is_some() && self.until.is_none() {
            self.until = now.checked_add(GRACE);
        }
    }

    /// When the box is to be killed, as things are.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        [self.until, self.unheard_until].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use super::Addressee::{LeftBehind, Program};
    use super::Answer::{Kill, PassOn};
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn whoever_asks_is_obeyed_within_a_grace() {
        let start = Instant::now();
        // Signals with their times, whom they are for, what is done, and when all is over once pid 1 has heard.
        type Case<'a> = (&'a [(i32, u64)], Addressee, &'a [Answer], Option<u64>);
        let cases: &[Case<'_>] = &[
            (&[(signals::TERMINATE, 0)], Program, &[PassOn], Some(10_000)),
            (
                &[(signals::HANG_UP, 0)],
                LeftBehind,
                &[PassOn],
                Some(10_000),
            ),
            // A closed terminal says so twice.
            (
                &[(signals::HANG_UP, 0), (signals::HANG_UP, 20)],
                Program,
                &[PassOn, PassOn],
                Some(10_000),
            ),
            (
                &[(signals::TERMINATE, 0), (signals::TERMINATE, 900)],
                Program,
                &[PassOn, Kill],
                Some(10_000),
            ),
            // What an interrupt means is the program's affair, until somebody insists.
            (&[(signals::INTERRUPT, 0)], Program, &[PassOn], None),
            (
                &[(signals::INTERRUPT, 0), (signals::INTERRUPT, 11_000)],
                Program,
                &[PassOn, PassOn],
                None,
            ),
            (
                &[(signals::INTERRUPT, 0), (signals::INTERRUPT, 2_000)],
                Program,
                &[PassOn, Kill],
                None,
            ),
            (
                &[(signals::INTERRUPT, 0), (signals::TERMINATE, 100)],
                Program,
                &[PassOn, PassOn],
                Some(10_100),
            ),
            (
                &[(signals::INTERRUPT, 0)],
                LeftBehind,
                &[PassOn],
                Some(10_000),
            ),
            (&[(signals::QUIT, 0)], LeftBehind, &[PassOn], Some(10_000)),
            // Those end nothing, however often they come.
            (
                &[(signals::USER_1, 0), (signals::USER_1, 900)],
                LeftBehind,
                &[PassOn, PassOn],
                None,
            ),
        ];
        for (signals, whose, expect, over) in cases {
            let mut urgency = Urgency::default();
            let answers: Vec<Answer> = signals
                .iter()
                .map(|(signal, at)| urgency.ask(*signal, Sender::Terminal, *whose, start + MS(*at)))
                .collect();
            assert_eq!(&answers, expect, "{signals:?}");
            urgency.heard();
            assert_eq!(
                urgency.deadline(),
                over.map(|at| start + MS(at)),
                "{signals:?}"
            );
        }
    }

    #[test]
    fn an_interrupt_that_nobody_passes_on_is_no_excuse() {
        let start = Instant::now();
        let mut urgency = Urgency::default();
        let asked = urgency.ask(signals::INTERRUPT, Sender::Terminal, Program, start);
        assert_eq!(asked, PassOn);
        assert_eq!(urgency.deadline(), Some(start + GRACE));
        urgency.heard();
        assert_eq!(urgency.deadline(), None);
        // The program ends of it, and leaves others behind.
        urgency.program_ended(start + MS(300));
        assert_eq!(urgency.deadline(), Some(start + MS(300) + GRACE));
    }

    #[test]
    fn whatever_a_process_sends_means_the_end() {
        let start = Instant::now();
        for signal in [
            signals::TERMINATE,
            signals::INTERRUPT,
            signals::HANG_UP,
            signals::QUIT,
        ] {
            let mut urgency = Urgency::default();
            assert_eq!(urgency.ask(signal, Sender::Process, Program, start), PassOn);
            urgency.heard();
            assert_eq!(urgency.deadline(), Some(start + GRACE), "{signal}");
        }
    }
}
