//! Live messages as server-sent events. Many readers get the same message: it is written out once.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use belljar_api::Live;
use bytes::Bytes;
use serde::Serialize;

/// Messages that are kept written out. Readers are seldom further apart.
const KEPT: usize = 16;

/// The latest messages, written out.
#[derive(Debug, Default)]
pub(super) struct Frames(Mutex<VecDeque<(Arc<Live>, Bytes)>>);

impl Frames {
    pub(super) fn of(&self, message: &Arc<Live>) -> Bytes {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The message is held with what was made of it, so its address belongs to no other meanwhile.
        if let Some((_, bytes)) = kept.iter().find(|(known, _)| Arc::ptr_eq(known, message)) {
            return bytes.clone();
        }
        let bytes = write(message);
        if kept.len() >= KEPT {
            kept.pop_front();
        }
        kept.push_back((Arc::clone(message), bytes.clone()));
        bytes
    }
}

/// One event: its name is the case, its data what is in it.
fn write(message: &Live) -> Bytes {
    let data = match message {
        Live::Agents(agents) => json(agents),
        Live::Forgotten(ids) => json(ids),
        Live::Event(event) => json(event),
        Live::Alert(alert) => json(alert),
        Live::Holds(holds) => json(holds),
        Live::Status(status) => json(status),
        Live::Lost => "null".to_owned(),
    };
    // JSON has no line breaks but escaped ones, so the data is one line.
    format!("event: {}\ndata: {data}\n\n", message.name()).into()
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use belljar_api::{EventKind, EventView, Severity, Shown};

    #[test]
    fn an_event_is_its_name_and_one_line_of_data() {
        let event = EventView {
            id: 7,
            at_ms: 1,
            agent: None,
            kind: EventKind::Daemon,
            severity: Severity::Info,
            text: Shown::new("a\n\nevent: status\ndata: {}\u{2028}"),
            code: None,
            hint: None,
        };
        let frames = Frames::default();
        let message = Arc::new(Live::Event(event.clone()));
        let bytes = frames.of(&message);
        let text = std::str::from_utf8(&bytes).expect("text");
        let (name, rest) = text.split_once('\n').expect("two lines");
        assert_eq!(name, "event: event");
        let data = rest
            .strip_prefix("data: ")
            .and_then(|data| data.strip_suffix("\n\n"));
        let data = data.expect("one line of data");
        assert!(!data.contains(['\n', '\r']));
        let read: EventView = serde_json::from_str(data).expect("an event");
        assert_eq!(read, event);
        assert_eq!(
            frames.of(&message).as_ptr(),
            bytes.as_ptr(),
            "written out once"
        );
        assert_eq!(write(&Live::Lost), "event: lost\ndata: null\n\n");
    }
}
