//! Server-sent events, read strictly enough: what is no event is dropped.

/// Cuts a stream into the data of its events.
#[derive(Debug)]
pub(super) struct Events {
    lines: crate::stdio::Lines,
    data: Vec<u8>,
    has_data: bool,
    too_long: bool,
    limit: usize,
    /// The last event's id, to go on after.
    pub(super) last_id: Option<String>,
    /// How long to wait before that, in milliseconds.
    pub(super) retry: Option<u64>,
}

/// An id longer than this is none.
const LONGEST_ID: usize = 1024;

impl Events {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            lines: crate::stdio::Lines::keeping_empty(limit),
            data: Vec::new(),
            has_data: false,
            too_long: false,
            limit,
            last_id: None,
            retry: None,
        }
    }

    /// Takes more of the stream; hands out the data of each event that is complete, or that one was too long.
    pub(super) fn take(&mut self, bytes: &[u8], mut hand_out: impl FnMut(crate::stdio::Line<'_>)) {
        use crate::stdio::Line;
        let Self {
            lines,
            data,
            has_data,
            too_long,
            limit,
            last_id,
            retry,
        } = self;
        lines.take(bytes, |line| {
            let line = match line {
                Line::Whole(line) => line,
                Line::TooLong => {
                    *too_long = true;
                    return;
                }
            };
            if line.is_empty() {
                if std::mem::take(too_long) {
                    hand_out(Line::TooLong);
                } else if *has_data && !data.is_empty() {
                    hand_out(Line::Whole(data));
                }
                data.clear();
                *has_data = false;
                return;
            }
            let (field, value) = match line.iter().position(|byte| *byte == b':') {
                Some(colon) => {
                    let (field, value) = line.split_at(colon);
                    (field, value.strip_prefix(b":").unwrap_or(value))
                }
                None => (line, &[][..]),
            };
            let value = value.strip_prefix(b" ").unwrap_or(value);
            match field {
                b"data" if data.len() + value.len() < *limit => {
                    if std::mem::replace(has_data, true) {
                        data.push(b'\n');
                    }
                    data.extend_from_slice(value);
                }
                b"data" => *too_long = true,
                b"id"
                    if value.len() <= LONGEST_ID
                        && value.iter().all(|byte| (0x20..0x7f).contains(byte)) =>
                {
                    *last_id = Some(String::from_utf8_lossy(value).into_owned());
                }
                b"retry" => {
                    let text = String::from_utf8_lossy(value);
                    *retry = text.parse().ok().or(*retry);
                }
                _ => {}
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stdio::Line;

    fn cut(parts: &[&str]) -> (Vec<String>, Events) {
        let mut events = Events::new(64);
        let mut all = Vec::new();
        for part in parts {
            events.take(part.as_bytes(), |line| {
                all.push(match line {
                    Line::Whole(data) => String::from_utf8_lossy(data).into_owned(),
                    Line::TooLong => "(too long)".into(),
                });
            });
        }
        (all, events)
    }

    #[test]
    fn events_come_out_whole_and_everything_else_does_not() {
        let (data, events) = cut(&[
            ": a comment\nid: 7\nretry: 50\ndata:\n\n",
            "event: message\nda",
            "ta: {\"a\":\ndata: 1}\r\n\r\ndata: unfinished",
        ]);
        assert_eq!(data, ["{\"a\":\n1}"]);
        assert_eq!(events.last_id.as_deref(), Some("7"));
        assert_eq!(events.retry, Some(50));
    }

    #[test]
    fn an_event_that_is_too_long_is_told_of_once() {
        let long = format!("data: {}\n\ndata: ok\n\n", "x".repeat(100));
        assert_eq!(cut(&[&long]).0, ["(too long)", "ok"]);
        let many = format!("{}\ndata: ok\n\n", "data: 0123456789\n".repeat(20));
        assert_eq!(cut(&[&many]).0, ["(too long)", "ok"]);
    }
}
