//! Watching an answer go by: what it says it used, how much of it there is, and when to cut it.

use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap};
use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;

use super::LlmApi;
use super::bill::Bill;
use super::budget::Source;
use super::denial::Denial;
use super::json::{at, is_given, within};
use super::usage::{Told, take_usage, text_bytes};

/// The largest answer that is read whole to find its usage; a larger one is charged what was set aside.
const LARGEST_ANSWER: usize = 8 * 1024 * 1024;
/// The largest event of a stream that is read.
const LARGEST_EVENT: usize = 4 * 1024 * 1024;
/// Few tokens are longer than this on average, in any language.
const BYTES_PER_TOKEN: u64 = 4;

/// Watches one answer. When it is dropped, the call is settled with what is known by then.
pub(crate) struct Observer {
    api: LlmApi,
    bill: Option<Bill>,
    form: Form,
    hides_usage: bool,
    told: Told,
    reported: bool,
    /// The model said why it stopped. What it used may still be to come.
    stopped: bool,
    /// The answer ended as answers do: what was reported by then is all of it.
    complete: bool,
    pieces: u64,
    text: u64,
}

enum Form {
    /// An error of the provider's: it costs nothing.
    Free,
    /// One JSON text.
    Whole(Vec<u8>),
    /// More than is read, or compressed although that was not asked for.
    Unreadable,
    /// A stream of events.
    Events(Event),
}

/// An event that is not whole yet.
#[derive(Default)]
struct Event {
    bytes: Vec<u8>,
    on_line: usize,
    /// The last byte was a carriage return: a line feed belongs to it.
    returned: bool,
}

/// The budget is used up, and with it the answer. It holds what the agent is told last.
pub(crate) struct Cut {
    pub(crate) denial: Denial,
    pub(crate) last_words: Bytes,
}

impl Observer {
    pub(crate) fn new(bill: Bill, status: StatusCode, headers: &HeaderMap) -> Self {
        let kind = headers
            .get(CONTENT_TYPE)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default();
        let encoded = headers
            .get_all(CONTENT_ENCODING)
            .iter()
            .any(|value| !value.as_bytes().eq_ignore_ascii_case(b"identity"));
        let form = if !status.is_success() {
            Form::Free
        } else if encoded {
            Form::Unreadable
        } else if kind
            .trim_start()
            .to_ascii_lowercase()
            .starts_with("text/event-stream")
        {
            Form::Events(Event::default())
        } else {
            Form::Whole(Vec::new())
        };
        Self {
            api: bill.api(),
            hides_usage: bill.hides_usage() && matches!(form, Form::Events(_)),
            bill: Some(bill),
            form,
            told: Told::default(),
            reported: false,
            stopped: false,
            complete: false,
            pieces: 0,
            text: 0,
        }
    }

    /// Sees a chunk; gives back what goes on to the agent, which may be nothing yet.
    pub(crate) fn see(&mut self, data: Bytes) -> Result<Bytes, Cut> {
        match &mut self.form {
            Form::Free | Form::Unreadable => Ok(data),
            Form::Whole(seen) => {
                if seen.len().saturating_add(data.len()) > LARGEST_ANSWER {
                    self.form = Form::Unreadable;
                } else {
                    seen.extend_from_slice(&data);
                }
                Ok(data)
            }
            Form::Events(event) => {
                let event = std::mem::take(event);
                self.see_events(event, data)
            }
        }
    }

    fn see_events(&mut self, mut event: Event, data: Bytes) -> Result<Bytes, Cut> {
        let mut shown = Vec::new();
        for byte in &data {
            if !event.push(*byte) {
                continue;
            }
            let hidden = self.see_event(&event.bytes) && self.hides_usage;
            if self.hides_usage && !hidden {
                shown.extend_from_slice(&event.bytes);
            }
            event.bytes.clear();
        }
        // Too long to be read, too long to be held back: it can't be one that tells the usage.
        if event.bytes.len() > LARGEST_EVENT {
            self.saw(event.bytes.len() as u64);
            shown.append(&mut event.bytes);
        }
        self.form = Form::Events(event);
        let output = self.output();
        if let Some(bill) = &mut self.bill
            && let Err(denial) = bill.cover(output)
        {
            return Err(self.cut(denial));
        }
        Ok(if self.hides_usage {
            Bytes::from(shown)
        } else {
            data
        })
    }

    fn cut(&mut self, denial: Denial) -> Cut {
        let name = if self.api == LlmApi::Anthropic {
            "event: error\n"
        } else {
            ""
        };
        let last_words = Bytes::from(format!("{name}data: {}\n\n", denial.body()));
        Cut { denial, last_words }
    }

    /// What is known may be wrong: all that was set aside is charged.
    pub(crate) fn distrust(&mut self) {
        self.form = Form::Unreadable;
    }

    /// Leave to go on reading although the agent left: what the call used is still to be told.
    pub(crate) fn read_on(&self) -> Option<OwnedSemaphorePermit> {
        match self.form {
            Form::Whole(_) | Form::Events(_) if !(self.reported && self.complete) => {
                self.bill.as_ref()?.read_on()
            }
            _ => None,
        }
    }

    /// More of an answer. What was reported before it came is not all of it.
    fn saw(&mut self, bytes: u64) {
        self.text = self.text.saturating_add(bytes);
        self.pieces = self.pieces.saturating_add(u64::from(bytes > 0));
        self.reported &= bytes == 0;
    }

    /// Reads one event; `true` when it tells the usage and nothing else.
    fn see_event(&mut self, event: &[u8]) -> bool {
        let data = event_data(event);
        if data == b"[DONE]" {
            self.complete = true;
            return false;
        }
        let Ok(message) = serde_json::from_slice::<Value>(&data) else {
            // Whatever it is, it is part of the answer.
            self.saw(data.len() as u64);
            return false;
        };
        let told = take_usage(self.api, &message, &mut self.told);
        self.saw(text_bytes(&message));
        // The first event of one API tells what the prompt was, and of the answer nothing yet.
        self.reported |= told && at(&message, "type") != "message_start";
        let only_usage = told
            && at(&message, "choices")
                .as_array()
                .is_some_and(Vec::is_empty);
        self.complete |= only_usage || ends(&message);
        self.stopped |= says_why_it_stopped(&message);
        only_usage
    }

    /// Tokens of the answers so far, as far as anyone can tell.
    fn output(&self) -> u64 {
        let guessed = self
            .pieces
            .min(self.text)
            .max(self.text.div_ceil(BYTES_PER_TOKEN));
        // A report that came at the end is exact; an earlier one may lag behind.
        if self.reported && self.complete {
            self.told.tokens.output
        } else {
            self.told.tokens.output.max(guessed)
        }
    }

    /// The answer is complete. What was held back is given back, if it belongs to the agent.
    pub(crate) fn finish(&mut self) -> Bytes {
        let rest = match &mut self.form {
            Form::Events(event) => std::mem::take(&mut event.bytes),
            Form::Whole(seen) => {
                let seen = std::mem::take(seen);
                match serde_json::from_slice::<Value>(&seen) {
                    Ok(message) => {
                        self.reported = take_usage(self.api, &message, &mut self.told);
                        self.text = text_bytes(&message);
                        self.complete = true;
                    }
                    Err(_) => self.text = seen.len() as u64,
                }
                Vec::new()
            }
            Form::Free | Form::Unreadable => Vec::new(),
        };
        let hidden = !rest.is_empty() && self.see_event(&rest) && self.hides_usage;
        // Some say why they stopped, and then nothing more.
        self.complete |= self.stopped;
        self.settle();
        if self.hides_usage && !hidden {
            Bytes::from(rest)
        } else {
            Bytes::new()
        }
    }

    fn settle(&mut self) {
        let Some(bill) = self.bill.take() else {
            return;
        };
        match self.form {
            Form::Free => return bill.free(),
            // Not to be read: it could have been all of it.
            Form::Unreadable => return bill.lost(),
            Form::Whole(_) | Form::Events(_) => {}
        }
        let mut told = self.told;
        told.tokens.output = self.output();
        if self.reported && self.complete {
            bill.settle(&told, Source::Reported);
        } else {
            bill.unreported(&told, false);
        }
    }
}

/// Whether this is the last event of an answer.
fn ends(message: &Value) -> bool {
    match at(message, "type").as_str() {
        Some("message_stop" | "response.completed" | "response.incomplete" | "response.failed") => {
            true
        }
        Some("message_delta") => !within(message, &["delta", "stop_reason"]).is_null(),
        _ => !within(message, &["promptFeedback", "blockReason"]).is_null(),
    }
}

/// Whether an answer in this event says why it ends.
fn says_why_it_stopped(message: &Value) -> bool {
    let lists = [("choices", "finish_reason"), ("candidates", "finishReason")];
    lists.iter().any(|(list, why)| {
        let answers = at(message, list).as_array();
        answers
            .into_iter()
            .flatten()
            .any(|answer| is_given(answer, why))
    })
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.settle();
    }
}

impl Event {
    /// Takes a byte; `true` when the event is whole: an empty line ends it. Lines end with a line feed, a carriage return or
    /// both.
    fn push(&mut self, byte: u8) -> bool {
        self.bytes.push(byte);
        let returned = std::mem::replace(&mut self.returned, byte == b'\r');
        match byte {
            b'\n' if returned => false,
            b'\n' | b'\r' => std::mem::take(&mut self.on_line) == 0,
            _ => {
                self.on_line = self.on_line.saturating_add(1);
                false
            }
        }
    }
}

/// What an event says: its data lines, joined.
fn event_data(event: &[u8]) -> Vec<u8> {
    let lines = event.split(|byte| matches!(byte, b'\n' | b'\r'));
    let lines = lines.filter_map(|line| {
        let data = line.strip_prefix(b"data:")?;
        Some(data.strip_prefix(b" ").unwrap_or(data))
    });
    lines.collect::<Vec<_>>().join(&b'\n')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The data of the events in a stream, however it is cut into chunks.
    fn read(stream: &[u8]) -> Vec<String> {
        let (mut event, mut found) = (Event::default(), Vec::new());
        for byte in stream {
            if event.push(*byte) {
                found.push(String::from_utf8(event_data(&event.bytes)).unwrap());
                event.bytes.clear();
            }
        }
        found.push(String::from_utf8(event_data(&event.bytes)).unwrap());
        found.retain(|data| !data.is_empty());
        found
    }

    #[test]
    fn every_way_to_end_a_line_is_read() {
        let lines = [
            "event: x",
            "data: one",
            "",
            ": a comment",
            "data:two",
            "",
            "data: three",
        ];
        for end in ["\n", "\r\n", "\r"] {
            assert_eq!(
                read(lines.join(end).as_bytes()),
                ["one", "two", "three"],
                "{end:?}"
            );
            let several = ["data: a", "data: b", "", ""].join(end);
            assert_eq!(read(several.as_bytes()), ["a\nb"], "{end:?}");
        }
        assert_eq!(read(b"data: a\r\n\ndata: b\n\r\n"), ["a", "b"]);
        assert_eq!(read(b"\n\n\r\n\n"), [""; 0]);
    }
}
