//! YAML into the tree. Only what JSON could say: no anchors, aliases, tags or merge keys, so a small
//! file can't become a large one and a value means what it looks like.

use std::borrow::Cow;

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span as YamlSpan, StrInput};

use crate::node::{Key, Node, Problem, Span, Value, quoted};
use crate::text::{MAX_DEPTH, MAX_NODES, Text, count};

const NO_ALIASES: &str = "YAML aliases are not supported";

/// `when_empty` is what to say of a file with nothing in it: what to write instead differs.
pub(crate) fn parse<'a>(text: &Text<'a>, when_empty: &'static str) -> Result<Node<'a>, Problem> {
    let mut reader = Reader {
        parser: Parser::new_from_str(text.as_str()),
        offsets: Offsets::new(text.as_str()),
        nodes: 0,
    };
    reader.document(text, when_empty)
}

struct Reader<'a> {
    parser: Parser<'a, StrInput<'a>>,
    offsets: Offsets,
    nodes: usize,
}

impl<'a> Reader<'a> {
    fn document(&mut self, text: &Text<'a>, when_empty: &'static str) -> Result<Node<'a>, Problem> {
        let empty = || Problem::new(text.span(0..0), when_empty);
        loop {
            match self.next()? {
                (Event::StreamEnd, _) => return Err(empty()),
                (Event::DocumentStart(_), _) => break,
                _ => {}
            }
        }
        let (event, span) = self.next()?;
        let root = self.node(event, span, 0)?;
        if root.is_null() && root.span.start == root.span.end {
            return Err(empty());
        }
        loop {
            match self.next()? {
                (Event::StreamEnd, _) => return Ok(root),
                (Event::DocumentStart(_), span) => {
                    return Err(Problem::new(span, "a policy file is one YAML document"));
                }
                _ => {}
            }
        }
    }

    fn next(&mut self) -> Result<(Event<'a>, Span), Problem> {
        match self.parser.next_event() {
            Some(Ok((event, span))) => Ok((event, self.offsets.span(span))),
            Some(Err(error)) => Err(self.offsets.problem(&error)),
            // The stream's end comes first; a parser that breaks off is read as that end.
            None => Ok((
                Event::StreamEnd,
                Span {
                    start: 0,
                    end: 0,
                    line: 1,
                    column: 1,
                },
            )),
        }
    }

    fn node(&mut self, event: Event<'a>, span: Span, depth: usize) -> Result<Node<'a>, Problem> {
        self.count(span)?;
        if depth > MAX_DEPTH {
            return Err(Problem::new(
                span,
                format!("nested deeper than {MAX_DEPTH} levels"),
            ));
        }
        refuse_extras(&event, span)?;
        let value = match event {
            Event::Scalar(text, style, ..) => scalar(text, style),
            Event::SequenceStart(..) => self.sequence(depth)?,
            Event::MappingStart(..) => self.mapping(depth)?,
            _ => return Err(Problem::new(span, "the document breaks off here")),
        };
        Ok(Node { value, span })
    }

    fn count(&mut self, span: Span) -> Result<(), Problem> {
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            let message = format!("more than {MAX_NODES} keys and values");
            return Err(Problem::new(span, message));
        }
        Ok(())
    }

    fn sequence(&mut self, depth: usize) -> Result<Value<'a>, Problem> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(Value::List(items)),
                (event, span) => items.push(self.node(event, span, depth + 1)?),
            }
        }
    }

    fn mapping(&mut self, depth: usize) -> Result<Value<'a>, Problem> {
        let mut entries: Vec<(Key<'a>, Node<'a>)> = Vec::new();
        loop {
            let (event, span) = self.next()?;
            if event == Event::MappingEnd {
                return Ok(Value::Map(entries));
            }
            self.count(span)?;
            let key = key(event, span)?;
            if let Some((first, _)) = entries.iter().find(|(own, _)| own.text == key.text) {
                let message = format!("the key {} is written twice", quoted(&key.text));
                let hint = format!("it is first written in line {}", first.span.line);
                return Err(Problem::new(span, message).with_hint(hint));
            }
            let (event, span) = self.next()?;
            let node = self.node(event, span, depth + 1)?;
            entries.push((key, node));
        }
    }
}

fn key<'a>(event: Event<'a>, span: Span) -> Result<Key<'a>, Problem> {
    refuse_extras(&event, span)?;
    match event {
        Event::Scalar(text, ..) if text == "<<" => {
            Err(Problem::new(span, "YAML merge keys are not supported"))
        }
        Event::Scalar(text, ..) => Ok(Key { text, span }),
        _ => Err(Problem::new(span, "a key must be plain text")),
    }
}

fn refuse_extras(event: &Event<'_>, span: Span) -> Result<(), Problem> {
    let (anchor, tag) = match event {
        Event::Alias(_) => {
            return Err(Problem::new(span, NO_ALIASES));
        }
        Event::Scalar(_, _, anchor, tag) => (*anchor, tag),
        Event::SequenceStart(anchor, tag) | Event::MappingStart(anchor, tag) => (*anchor, tag),
        _ => return Ok(()),
    };
    if anchor > 0 {
        return Err(Problem::new(span, "YAML anchors are not supported"));
    }
    match tag {
        Some(_) => Err(Problem::new(span, "YAML tags are not supported")),
        None => Ok(()),
    }
}

/// A scalar by YAML 1.2's core schema: `yes` and `012` are what they look like.
fn scalar(text: Cow<'_, str>, style: ScalarStyle) -> Value<'_> {
    if style != ScalarStyle::Plain {
        return Value::Text(text);
    }
    match &*text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        ".nan" | ".NaN" | ".NAN" => Value::Float(f64::NAN),
        other => number(other).unwrap_or(Value::Text(text)),
    }
}

fn number(text: &str) -> Option<Value<'static>> {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    if matches!(unsigned, ".inf" | ".Inf" | ".INF") {
        let negative = text.starts_with('-');
        return Some(Value::Float(if negative {
            f64::NEG_INFINITY
        } else {
            f64::INFINITY
        }));
    }
    if let Some(digits) = text.strip_prefix("0x") {
        return radix(digits, 16);
    }
    if let Some(digits) = text.strip_prefix("0o") {
        return radix(digits, 8);
    }
    // Rust also reads words such as `nan` and `infinity` as numbers; YAML does not.
    let numeric = |b: u8| b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'E' | b'+' | b'-');
    if !unsigned.bytes().any(|b| b.is_ascii_digit()) || !text.bytes().all(numeric) {
        return None;
    }
    let whole = text.parse::<i128>().ok().map(Value::Int);
    whole.or_else(|| text.parse::<f64>().ok().map(Value::Float))
}

fn radix(digits: &str, base: u32) -> Option<Value<'static>> {
    let plain = digits.bytes().all(|b| b.is_ascii_hexdigit());
    plain
        .then(|| i128::from_str_radix(digits, base).ok().map(Value::Int))
        .flatten()
}

/// Turns the parser's character positions into byte positions.
struct Offsets {
    /// The byte offset of each character; `None` for ASCII, where they are the same.
    bytes: Option<Vec<u32>>,
    len: usize,
}

impl Offsets {
    fn new(text: &str) -> Self {
        let bytes =
            (!text.is_ascii()).then(|| text.char_indices().map(|(at, _)| count(at)).collect());
        Self {
            bytes,
            len: text.len(),
        }
    }

    fn byte(&self, character: usize) -> usize {
        match &self.bytes {
            None => character.min(self.len),
            Some(bytes) => bytes.get(character).map_or(self.len, |at| *at as usize),
        }
    }

    fn span(&self, span: YamlSpan) -> Span {
        let (start, end) = (self.byte(span.start.index()), self.byte(span.end.index()));
        Span {
            start,
            end: end.max(start),
            line: count(span.start.line()),
            column: count(span.start.col() + 1),
        }
    }

    fn problem(&self, error: &ScanError) -> Problem {
        let at = *error.marker();
        let span = self.span(YamlSpan::new(at, at));
        // An alias without its anchor is still an alias: anchors are refused before they are known.
        if error.info().contains("unknown anchor") {
            return Problem::new(span, NO_ALIASES);
        }
        Problem::new(span, format!("not YAML: {}", error.info()))
    }
}
