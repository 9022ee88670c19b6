//! When an agent that ended by itself is started again: later each time, and not for ever.

use std::time::Duration;

use belljar_api::{EndCause, RestartPolicy};

/// A success sooner than this after the start is no work, but something that goes round.
const QUICK: Duration = Duration::from_secs(1);

/// How agents are started again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestartRules {
    /// The first wait; each further one is twice as long.
    pub first: Duration,
    /// The longest wait.
    pub longest: Duration,
    /// So many starts again within the window are a crash loop.
    pub crash_loop: u32,
    /// The window.
    pub window: Duration,
}

impl Default for RestartRules {
    fn default() -> Self {
        Self {
            first: Duration::from_secs(1),
            longest: Duration::from_secs(60),
            crash_loop: 5,
            window: Duration::from_secs(300),
        }
    }
}

/// What becomes of an agent that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// It stays ended.
    Stay,
    /// It is started again after this long.
    After(Duration),
    /// It was started again too often.
    CrashLoop,
}

impl RestartRules {
    /// What becomes of an agent. `recent_ms` are its starts again, `jitter` is anything from 0 to 255.
    pub(crate) fn next(
        &self,
        (policy, on_oom): (RestartPolicy, Option<bool>),
        cause: EndCause,
        recent_ms: &[u64],
        now_ms: u64,
        jitter: u8,
    ) -> Next {
        let is_wanted = match cause {
            EndCause::Finished => policy == RestartPolicy::Always,
            EndCause::Crashed | EndCause::KeeperLost => policy != RestartPolicy::Never,
            EndCause::OutOfMemory => on_oom.unwrap_or(policy == RestartPolicy::Always),
            // Whoever was stopped, killed or met a limit of time or money would meet it again.
            EndCause::Limit | EndCause::Stopped | EndCause::Killed | EndCause::NeverStarted => {
                false
            }
        };
        if !is_wanted {
            return Next::Stay;
        }
        let recent = self.within(recent_ms, now_ms).count();
        let recent = u32::try_from(recent).unwrap_or(u32::MAX);
        if recent >= self.crash_loop {
            return Next::CrashLoop;
        }
        let doubled = 2u32.checked_pow(recent).unwrap_or(u32::MAX);
        let wait = self.first.saturating_mul(doubled).min(self.longest);
        // Agents that fell together do not rise together: up to a quarter sooner, so that the longest wait is the longest.
        let less = wait.mul_f64(f64::from(jitter) / 1024.0);
        Next::After(wait.saturating_sub(less))
    }

    /// Whether an end counts towards a crash loop: all do, but for a success that took its time. A job that is done and begun anew is at
    /// work.
    pub(crate) fn counts(cause: EndCause, lived: Duration) -> bool {
        cause != EndCause::Finished || lived < QUICK
    }

    /// The starts again that still count.
    pub(crate) fn within<'a>(
        &self,
        recent_ms: &'a [u64],
        now_ms: u64,
    ) -> impl Iterator<Item = u64> + 'a {
        let window = u64::try_from(self.window.as_millis()).unwrap_or(u64::MAX);
        let counts = move |at: &u64| now_ms.saturating_sub(*at) < window;
        recent_ms.iter().copied().filter(counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(policy: RestartPolicy, cause: EndCause, recent: &[u64]) -> Next {
        RestartRules::default().next((policy, None), cause, recent, 1_000_000, 0)
    }

    #[test]
    fn the_policy_and_the_cause_decide() {
        use EndCause::*;
        let causes = [
            Finished,
            Crashed,
            OutOfMemory,
            Limit,
            Stopped,
            Killed,
            KeeperLost,
            NeverStarted,
        ];
        let restarts = |policy| -> Vec<EndCause> {
            let again = |cause: &EndCause| next(policy, *cause, &[]) != Next::Stay;
            causes.iter().copied().filter(again).collect()
        };
        assert_eq!(restarts(RestartPolicy::Never), []);
        assert_eq!(restarts(RestartPolicy::OnFailure), [Crashed, KeeperLost]);
        assert_eq!(
            restarts(RestartPolicy::Always),
            [Finished, Crashed, OutOfMemory, KeeperLost]
        );
        let on_oom = |policy, wanted| {
            let rules = RestartRules::default();
            rules.next((policy, Some(wanted)), OutOfMemory, &[], 1_000_000, 0) != Next::Stay
        };
        assert!(on_oom(RestartPolicy::Never, true) && !on_oom(RestartPolicy::Always, false));
    }

    #[test]
    fn a_success_that_took_its_time_is_no_crash() {
        let counts = |cause, ms| RestartRules::counts(cause, Duration::from_millis(ms));
        assert!(counts(EndCause::Finished, 999) && !counts(EndCause::Finished, 1000));
        assert!(counts(EndCause::Crashed, 1_000_000));
    }

    #[test]
    fn waits_double_up_to_the_longest_and_a_loop_ends() {
        let crashed = |recent: &[u64]| next(RestartPolicy::Always, EndCause::Crashed, recent);
        assert_eq!(crashed(&[]), Next::After(Duration::from_secs(1)));
        assert_eq!(crashed(&[999_000; 3]), Next::After(Duration::from_secs(8)));
        assert_eq!(crashed(&[999_000; 5]), Next::CrashLoop);
        // What is long past does not count.
        assert_eq!(crashed(&[1; 50]), Next::After(Duration::from_secs(1)));
        let rules = RestartRules {
            crash_loop: 100,
            ..RestartRules::default()
        };
        let wait = |jitter| {
            let recent = [999_000; 40];
            rules.next(
                (RestartPolicy::Always, None),
                EndCause::Crashed,
                &recent,
                1_000_000,
                jitter,
            )
        };
        assert_eq!(wait(0), Next::After(Duration::from_secs(60)));
        let Next::After(jittered) = wait(255) else {
            panic!("it goes on");
        };
        assert!(jittered > Duration::from_secs(44) && jittered < Duration::from_secs(46));
    }
}
