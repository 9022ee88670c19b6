//! What an agent wrote, and waiting for its end.

use std::borrow::Cow;
use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use belljar_api::{
    AgentId, AgentPhase, AgentView, Empty, OutputQuery, OutputStream, ReadAgent, ReadOutput,
};

use super::reach::Reached;
use super::{PATIENCE, PAUSE};
use crate::exit::{self, Failure};
use crate::print;

/// A stream, where it was read to, and whether there will be no more.
struct Reading {
    stream: OutputStream,
    from: u64,
    is_over: bool,
    /// A single stream goes to standard output, whichever it is.
    to_stderr: bool,
}

/// Prints an agent's output: what is kept of it, and with `follow` what comes.
pub(super) fn logs(
    agent: &str,
    streams: &[OutputStream],
    follow: bool,
    tail: Option<usize>,
) -> Result<u8, Failure> {
    let mut reached = Reached::usual()?;
    let id = reached.find(agent)?.id;
    // An agent that was started again is still who it was: what it wrote before comes first.
    let mut before = reached.lives_of(Some(agent))?;
    before.retain(|life| life.as_ref() != Some(&id));
    if tail.is_none() {
        for life in before.iter().flatten() {
            for stream in streams {
                let mut reading = Reading::of(*stream, streams.len());
                while !reading.is_over {
                    let from = reading.from;
                    reading.read_on(&mut reached, life)?;
                    // Cut off: its end never came.
                    reading.is_over |= reading.from == from;
                }
            }
        }
    }
    let mut readings = Vec::new();
    for stream in streams {
        let mut reading = Reading::of(*stream, streams.len());
        if let Some(lines) = tail {
            let query = OutputQuery {
                stream: Some(*stream),
                ..OutputQuery::default()
            };
            let part = reached.client.call_on::<ReadOutput>(&id, &query)?;
            reading.show(last_lines(&part.text, lines));
            (reading.from, reading.is_over) = (part.next, part.is_end);
        }
        readings.push(reading);
    }
    loop {
        let mut is_news = false;
        for reading in readings.iter_mut().filter(|reading| !reading.is_over) {
            let from = reading.from;
            reading.read_on(&mut reached, &id)?;
            is_news |= reading.from > from;
        }
        if readings.iter().all(|reading| reading.is_over) || (!follow && !is_news) {
            return Ok(exit::OK);
        }
        if !is_news {
            std::thread::sleep(PAUSE);
        }
    }
}

impl Reading {
    fn of(stream: OutputStream, streams: usize) -> Self {
        Self {
            stream,
            from: 0,
            is_over: false,
            to_stderr: streams > 1 && stream == OutputStream::Stderr,
        }
    }

    fn read_on(&mut self, reached: &mut Reached, id: &AgentId) -> Result<(), Failure> {
        let part = reached.output(id, self.stream, self.from)?;
        self.show(&part.text);
        (self.from, self.is_over) = (part.next, part.is_end);
        Ok(())
    }

    fn show(&self, text: &str) {
        match self.to_stderr {
            false => print::out(&for_reader(text, std::io::stdout().is_terminal())),
            true => {
                let text = for_reader(text, std::io::stderr().is_terminal());
                // Nobody reads it: that is no reason to end.
                let _ = std::io::stderr().write_all(text.as_bytes());
            }
        }
    }
}

/// The end of a text, from the beginning of a line on.
fn last_lines(text: &str, lines: usize) -> &str {
    let whole = text.strip_suffix('\n').unwrap_or(text);
    let from = match lines {
        0 => text.len(),
        _ => whole
            .rmatch_indices('\n')
            .nth(lines - 1)
            .map_or(0, |(at, _)| at + 1),
    };
    text.get(from..).unwrap_or_default()
}

/// What an agent wrote must not steer the terminal of whoever reads it; a file gets it as it is.
fn for_reader(text: &str, is_terminal: bool) -> Cow<'_, str> {
    if !is_terminal {
        return Cow::Borrowed(text);
    }
    let lines = text.split_inclusive('\n').map(|line| {
        let (line, end) = line
            .strip_suffix('\n')
            .map_or((line, ""), |line| (line, "\n"));
        format!("{}{end}", print::harmless(line))
    });
    Cow::Owned(lines.collect())
}

/// Waits until an agent that was asked to end has ended.
pub(super) fn wait_for_end(
    reached: &mut Reached,
    mut view: AgentView,
    grace: Option<Duration>,
) -> Result<AgentView, Failure> {
    let until = Instant::now() + PATIENCE.saturating_add(grace.unwrap_or_default());
    while view.phase != AgentPhase::Ended {
        if Instant::now() > until {
            return Err(Failure::Invalid(
                format!("{} has not ended yet", view.name),
                "`belljar supervisor kill` ends it at once".into(),
            ));
        }
        std::thread::sleep(PAUSE);
        view = reached
            .client
            .call_on::<ReadAgent>(&view.id, &Empty {})?
            .agent;
    }
    Ok(view)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_whole() {
        for (text, lines, expect) in [
            ("a\nb\nc\n", 1, "c\n"),
            ("a\nb\nc\n", 2, "b\nc\n"),
            ("a\nb\nc", 2, "b\nc"),
            ("a\nb\n", 9, "a\nb\n"),
            ("a\n\n", 1, "\n"),
            ("a\n", 0, ""),
            ("", 3, ""),
        ] {
            assert_eq!(last_lines(text, lines), expect, "{text:?} {lines}");
        }
    }
}
