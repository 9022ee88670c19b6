//! Lines out of a stream, each of a bounded length.

/// What a stream said.
#[derive(Debug, PartialEq, Eq)]
pub enum Line<'a> {
    /// A line, without its end.
    Whole(&'a [u8]),
    /// A line that was longer than may be; it was thrown away.
    TooLong,
}

/// Cuts a stream into lines.
#[derive(Debug)]
pub struct Lines {
    limit: usize,
    /// The beginning of a line whose end has not come.
    begun: Vec<u8>,
    /// The rest of this line is thrown away.
    skipping: bool,
    /// Whether an empty line is one.
    keeps_empty: bool,
}

/// A buffer that once was large is not kept.
const KEPT: usize = 256 << 10;

impl Lines {
    /// Lines of at most `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            begun: Vec::new(),
            skipping: false,
            keeps_empty: false,
        }
    }

    /// The same, for a stream in which empty lines say something.
    #[must_use]
    pub fn keeping_empty(limit: usize) -> Self {
        Self {
            keeps_empty: true,
            ..Self::new(limit)
        }
    }

    /// Takes more of the stream, and hands out each line that is complete. Empty lines are nothing, unless they are kept.
    pub fn take(&mut self, mut bytes: &[u8], mut hand_out: impl FnMut(Line<'_>)) {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            let (line, rest) = (&bytes[..end], &bytes[end + 1..]);
            bytes = rest;
            if std::mem::take(&mut self.skipping) {
                continue;
            }
            if self.begun.len() + line.len() > self.limit {
                hand_out(Line::TooLong);
            } else if self.begun.is_empty() {
                whole(line, self.keeps_empty, &mut hand_out);
            } else {
                self.begun.extend_from_slice(line);
                whole(&self.begun, self.keeps_empty, &mut hand_out);
            }
            self.begun.clear();
            self.begun.shrink_to(KEPT);
        }
        if self.skipping {
            return;
        }
        if self.begun.len() + bytes.len() > self.limit {
            self.skipping = true;
            self.begun = Vec::new();
            hand_out(Line::TooLong);
        } else {
            self.begun.extend_from_slice(bytes);
        }
    }
}

fn whole(line: &[u8], keeps_empty: bool, hand_out: &mut impl FnMut(Line<'_>)) {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if keeps_empty || !line.is_empty() {
        hand_out(Line::Whole(line));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(limit: usize, parts: &[&str]) -> Vec<String> {
        let mut lines = Lines::new(limit);
        let mut all = Vec::new();
        for part in parts {
            lines.take(part.as_bytes(), |line| {
                all.push(match line {
                    Line::Whole(bytes) => String::from_utf8_lossy(bytes).into_owned(),
                    Line::TooLong => "(too long)".into(),
                });
            });
        }
        all
    }

    #[test]
    fn lines_come_out_whole_however_they_came_in() {
        assert_eq!(cut(9, &["a", "b\nc\r\n\n", "", "d"]), ["ab", "c"]);
        assert_eq!(cut(9, &["a\nb\nc\n"]), ["a", "b", "c"]);
    }

    #[test]
    fn a_line_without_end_costs_its_limit_and_the_next_is_heard() {
        let long = "x".repeat(10);
        assert_eq!(cut(9, &[&long, &long, "\nok\n"]), ["(too long)", "ok"]);
        assert_eq!(
            cut(9, &["123456789\n1234567890\nok\n"]),
            ["123456789", "(too long)", "ok"]
        );
    }
}
