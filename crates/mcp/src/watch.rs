//! What an honest agent or server does not do: bursts, variants of what was refused, tools that appear after they were
//! agreed to, and texts that do not show what they are.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

belljar_policy::codes! {
    /// What looked suspicious. The codes are stable.
    pub enum Suspicion {
        /// More calls of one tool within seconds than anybody reads the answers of.
        Burst = "tool_burst",
        /// A refused tool is called again with other arguments, again and again.
        RetriedArguments = "tool_retried_with_other_arguments",
        /// A refused tool is called by a name that differs from it little.
        RetriedName = "tool_retried_by_another_name",
        /// A server has a tool that it did not have when it was first seen.
        NewTool = "tool_new_after_pin",
        /// A server defines a tool otherwise than when it was first seen.
        ChangedTool = "tool_changed_after_pin",
        /// A name with characters that names don't have.
        TrickyName = "tool_name_with_tricks",
        /// A description with characters that do not show.
        TrickyDescription = "tool_description_with_tricks",
        /// A message that two readers could take for two things.
        Malformed = "message_malformed",
    }
}

/// Calls of one tool in ten seconds.
const BURST: usize = 200;
const BURST_WINDOW: Duration = Duration::from_secs(10);
/// Refusals of one tool with different arguments in a minute.
const VARIANTS: usize = 4;
const WINDOW: Duration = Duration::from_secs(60);
/// Tools remembered of each kind.
const MOST: usize = 1024;

/// What was seen lately.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    calls: HashMap<String, VecDeque<Duration>>,
    /// By tool, when and with which arguments (their digest) it was refused.
    refused: HashMap<String, VecDeque<(Duration, u64)>>,
    /// When something was last told, so that it is told once a minute.
    told: HashMap<(Suspicion, String), Duration>,
}

impl Watch {
    /// A call was asked for.
    pub(crate) fn called(&mut self, now: Duration, tool: &str) -> Option<Suspicion> {
        make_room(&mut self.calls);
        let times = self.calls.entry(tool.to_owned()).or_default();
        times.push_back(now);
        while times
            .front()
            .is_some_and(|at| now.saturating_sub(*at) >= BURST_WINDOW)
        {
            times.pop_front();
        }
        if times.len() > BURST {
            times.pop_front();
            return self.once(now, Suspicion::Burst, tool);
        }
        None
    }

    /// A call was refused.
    pub(crate) fn refused(
        &mut self,
        now: Duration,
        tool: &str,
        arguments: u64,
    ) -> Option<Suspicion> {
        let folded = fold(tool);
        let is_variant = |(other, times): (&String, &VecDeque<(Duration, u64)>)| {
            other != tool
                && fold(other) == folded
                && times
                    .back()
                    .is_some_and(|(at, _)| now.saturating_sub(*at) < WINDOW)
        };
        let renamed = self.refused.iter().any(is_variant);
        make_room(&mut self.refused);
        let times = self.refused.entry(tool.to_owned()).or_default();
        while times
            .front()
            .is_some_and(|(at, _)| now.saturating_sub(*at) >= WINDOW)
        {
            times.pop_front();
        }
        if !times.iter().any(|(_, seen)| *seen == arguments) {
            times.push_back((now, arguments));
        }
        if renamed {
            return self.once(now, Suspicion::RetriedName, tool);
        }
        if times.len() >= VARIANTS {
            times.pop_front();
            return self.once(now, Suspicion::RetriedArguments, tool);
        }
        None
    }

    /// The suspicion, unless it was told of this within the last minute.
    pub(crate) fn once(
        &mut self,
        now: Duration,
        what: Suspicion,
        about: &str,
    ) -> Option<Suspicion> {
        make_room(&mut self.told);
        let key = (what, about.to_owned());
        if self
            .told
            .get(&key)
            .is_some_and(|at| now.saturating_sub(*at) < WINDOW)
        {
            return None;
        }
        self.told.insert(key, now);
        Some(what)
    }
}

fn make_room<K, V>(map: &mut HashMap<K, V>) {
    if map.len() >= MOST {
        map.clear();
    }
}

/// What stays the same when somebody varies a name: no case, nothing but letters and digits, look-alikes as Latin.
fn fold(name: &str) -> String {
    let latin = |c: char| match c {
        '\u{430}' | '\u{ff41}' => 'a',
        '\u{435}' | '\u{ff45}' => 'e',
        '\u{43e}' | '\u{3bf}' | '0' => 'o',
        '\u{440}' => 'p',
        '\u{441}' => 'c',
        '\u{445}' => 'x',
        '\u{456}' | '1' | 'l' => 'i',
        '\u{455}' => 's',
        c @ '\u{ff01}'..='\u{ff5e}' => char::from_u32(u32::from(c) - 0xfee0).unwrap_or(c),
        c => c,
    };
    let letters = name.chars().flat_map(char::to_lowercase).map(latin);
    letters.filter(|c| c.is_alphanumeric()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_burst_is_told_once_a_minute() {
        let mut watch = Watch::default();
        let calls = |watch: &mut Watch, from: u64| {
            (0..300)
                .filter_map(|n| watch.called(at(from + n), "s:t"))
                .count()
        };
        assert_eq!(calls(&mut watch, 0), 1);
        assert_eq!(calls(&mut watch, 20_000), 0);
        assert_eq!(calls(&mut watch, 90_000), 1);
        // As many, slowly.
        assert_eq!(
            (0..300)
                .filter_map(|n| watch.called(at(n * 1000), "s:slow"))
                .count(),
            0
        );
    }

    #[test]
    fn variants_of_what_was_refused_are_told_and_mere_repetition_is_not() {
        let mut watch = Watch::default();
        assert!((0..50).all(|n| watch.refused(at(n), "s:t", 7).is_none()));
        let told: Vec<_> = (0..4)
            .filter_map(|n| watch.refused(at(100 + n), "s:t", n))
            .collect();
        assert_eq!(told, [Suspicion::RetriedArguments]);
        for name in [
            "s:get_env",
            "s:GET-ENV",
            "s:g\u{435}t-env",
            "s:get\u{200b}-env",
        ] {
            let mut watch = Watch::default();
            assert_eq!(watch.refused(at(0), "s:get-env", 0), None);
            assert_eq!(
                watch.refused(at(1), name, 0),
                Some(Suspicion::RetriedName),
                "{name}"
            );
        }
    }
}
