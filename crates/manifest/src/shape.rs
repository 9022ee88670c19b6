//! What a document may look like, as static data. It checks a tree before anything is decoded, and
//! `schema.rs` writes the JSON Schema from the same data.

use std::ops::RangeInclusive;

use crate::node::{Key, Node, Problem, Span, Value, quoted, shown_float};

/// What a value may be.
#[derive(Debug)]
pub enum Shape {
    /// A mapping.
    Object(&'static Object),
    /// A list.
    List {
        /// What each item may be.
        item: &'static Shape,
        /// The most items.
        most: usize,
    },
    /// Text, not empty.
    Text {
        /// The most characters.
        most: usize,
    },
    /// Text of many lines, such as code: tabs and line ends are part of it.
    Lines {
        /// The most characters.
        most: usize,
    },
    /// One of a few words.
    Choice(&'static Choice),
    /// A whole number.
    Whole {
        /// The least.
        least: u64,
        /// The most.
        most: u64,
    },
    /// Above `above`, at most `most`, and a number at all.
    Number {
        /// The bound below, itself not allowed.
        above: f64,
        /// The most.
        most: f64,
    },
    /// At least `least`, at most `most`, and a number at all.
    NumberFrom {
        /// The least.
        least: f64,
        /// The most.
        most: f64,
    },
    /// `true` or `false`.
    Bool,
    /// `true` and nothing else: what can't be switched off, and the answer to whoever tries.
    OnlyTrue {
        /// What to say to `false`.
        refusal: &'static str,
        /// What to do instead.
        hint: &'static str,
    },
    /// The shape inside, or null.
    OrNull(&'static Shape),
    /// The first of these that is about values of that kind: text, number, list or mapping.
    OneOf(&'static [Shape]),
    /// A mapping with exactly one of the keys.
    Variant(&'static Object),
    /// The same, but for the first of these two keys: it stands beside the second, or nowhere.
    VariantWith(&'static Object, (&'static str, &'static str)),
    /// A mapping that somebody else reads.
    Open,
    /// A mapping whose keys are names that the user gives.
    Map {
        /// What each value may be.
        item: &'static Shape,
        /// The most entries.
        most: usize,
    },
    /// Any value that JSON has.
    Any,
    /// The shape inside, where a secret may have been written by mistake: what is wrong is not shown.
    Guarded(&'static Shape),
}

/// A mapping with known keys.
#[derive(Debug)]
pub struct Object {
    /// How messages name it; empty for the whole document.
    pub name: &'static str,
    /// What it is for.
    pub doc: &'static str,
    /// Its keys.
    pub fields: &'static [Field],
}

/// A key of a mapping.
#[derive(Debug)]
pub struct Field {
    pub(crate) key: &'static str,
    pub(crate) doc: &'static str,
    pub(crate) shape: Shape,
    pub(crate) presence: Presence,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    Optional,
    Required,
}

/// One of a few words.
#[derive(Debug)]
pub struct Choice {
    pub(crate) words: &'static [&'static str],
    pub(crate) case: Case,
    /// Words someone may well write, and why they are not offered.
    pub(crate) refused: &'static [(&'static str, &'static str)],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Case {
    Exact,
    Ignored,
}

/// A key that may be left out.
#[must_use]
pub const fn field(key: &'static str, shape: Shape, doc: &'static str) -> Field {
    Field {
        key,
        doc,
        shape,
        presence: Presence::Optional,
    }
}

/// A key that must be there.
#[must_use]
pub const fn required(key: &'static str, shape: Shape, doc: &'static str) -> Field {
    Field {
        key,
        doc,
        shape,
        presence: Presence::Required,
    }
}

impl Choice {
    /// The word as the table spells it.
    pub(crate) fn find(&self, text: &str) -> Option<&'static str> {
        let same = |word: &&&str| match self.case {
            Case::Exact => **word == text,
            Case::Ignored => word.eq_ignore_ascii_case(text),
        };
        self.words.iter().find(same).copied()
    }
}

impl Shape {
    /// Checks a tree. `name` is how messages call the value.
    ///
    /// # Errors
    /// The first thing that does not fit.
    pub fn check(&self, node: &Node<'_>, name: &str) -> Result<(), Problem> {
        match (self, &node.value) {
            (Self::OrNull(_), Value::Null) => Ok(()),
            (Self::OrNull(inner), _) => inner.check(node, name),
            (Self::Guarded(inner), _) => inner.check(node, name).map_err(Problem::guarded),
            (Self::OneOf(shapes), value) => match shapes.iter().find(|s| s.is_about(value)) {
                Some(Self::Choice(choice)) if !choice.has(value) => {
                    Err(self.mismatch(value, node.span, name))
                }
                Some(shape) => shape.check(node, name),
                None => Err(self.mismatch(value, node.span, name)),
            },
            (Self::Object(object), Value::Map(entries)) => object.check(entries, node.span),
            (Self::Open, Value::Map(_)) => Ok(()),
            (Self::Map { item, most }, Value::Map(entries)) => {
                check_map(item, *most, entries, node.span, name)
            }
            (Self::Any, value) => check_any(value, node.span, name),
            (Self::Variant(object), Value::Map(entries)) => {
                object.check(entries, node.span)?;
                object.check_single(entries, node.span, name)
            }
            (Self::VariantWith(object, keys), Value::Map(entries)) => {
                object.check(entries, node.span)?;
                object.check_single_with(*keys, entries, node.span, name)
            }
            (Self::List { item, most }, Value::List(items)) => {
                check_list(item, *most, items, node.span, name)
            }
            (Self::Text { most }, Value::Text(text)) => check_text(text, *most, node.span, name),
            (Self::Lines { most }, Value::Text(text)) => {
                let plain = text.replace(['\n', '\t', '\r'], " ");
                check_text(&plain, *most, node.span, name)
            }
            (Self::Choice(choice), Value::Text(text)) => choice.check(text, node.span, name),
            (Self::Whole { least, most }, value) => {
                check_whole(value, *least, *most, node.span, name)
            }
            (Self::Number { above, most }, value) => {
                check_number(value, *above, *most, node.span, name)
            }
            (Self::NumberFrom { least, most }, value) => {
                self.check_number_from(value, *least..=*most, node.span, name)
            }
            (Self::Bool | Self::OnlyTrue { .. }, Value::Bool(true)) => Ok(()),
            (Self::Bool, Value::Bool(false)) => Ok(()),
            (Self::OnlyTrue { refusal, hint }, Value::Bool(false)) => {
                Err(Problem::new(node.span, *refusal).with_hint(*hint))
            }
            (_, value) => Err(self.mismatch(value, node.span, name)),
        }
    }

    /// Whether values of this kind are of this shape, or wrong in a way that it can tell.
    fn is_about(&self, value: &Value<'_>) -> bool {
        match self {
            Self::Object(_)
            | Self::Variant(_)
            | Self::VariantWith(..)
            | Self::Open
            | Self::Map { .. } => {
                matches!(value, Value::Map(_))
            }
            Self::Any => true,
            Self::List { .. } => matches!(value, Value::List(_)),
            Self::Text { .. } | Self::Lines { .. } | Self::Choice(_) => {
                matches!(value, Value::Text(_))
            }
            Self::Whole { .. } | Self::Number { .. } | Self::NumberFrom { .. } => {
                matches!(value, Value::Int(_) | Value::Float(_))
            }
            Self::Bool | Self::OnlyTrue { .. } => matches!(value, Value::Bool(_)),
            Self::OrNull(inner) => matches!(value, Value::Null) || inner.is_about(value),
            Self::OneOf(shapes) => shapes.iter().any(|shape| shape.is_about(value)),
            Self::Guarded(inner) => inner.is_about(value),
        }
    }

    fn expected(&self) -> String {
        match self {
            Self::Object(_) | Self::Open | Self::Map { .. } => "a mapping".to_owned(),
            Self::Any => "a value".to_owned(),
            Self::Variant(object) | Self::VariantWith(object, _) => {
                let forms = object
                    .fields
                    .iter()
                    .filter(|field| !matches!(self, Self::VariantWith(_, (extra, _)) if *extra == field.key))
                    .map(|field| format!("{{{}: …}}", field.key));
                forms.collect::<Vec<_>>().join(" or ")
            }
            Self::List { .. } => "a list".to_owned(),
            Self::Text { .. } | Self::Lines { .. } => "text".to_owned(),
            Self::Choice(choice) => choice.expected(),
            Self::Whole { .. } => "a whole number".to_owned(),
            Self::Number { .. } | Self::NumberFrom { .. } => "a number".to_owned(),
            Self::Bool | Self::OnlyTrue { .. } => "true or false".to_owned(),
            Self::OrNull(inner) | Self::Guarded(inner) => inner.expected(),
            Self::OneOf(shapes) => {
                let shapes: Vec<_> = shapes.iter().map(Self::expected).collect();
                shapes.join(" or ")
            }
        }
    }

    fn mismatch(&self, value: &Value<'_>, span: Span, name: &str) -> Problem {
        if let Self::OrNull(inner) = self {
            return inner.mismatch(value, span, name);
        }
        let message = format!("{name} must be {}", self.expected());
        let problem = Problem::new(span, message).instead_of(value.describe());
        match (self, value) {
            (_, Value::Null) => problem.with_hint("write a value, or remove the key"),
            (Self::Text { .. }, Value::Int(_) | Value::Float(_) | Value::Bool(_)) => {
                problem.with_hint("put it in quotes")
            }
            (Self::List { .. }, Value::Text(_)) => problem.with_hint("put it in brackets: [ ]"),
            (
                Self::Whole { .. } | Self::Number { .. } | Self::NumberFrom { .. },
                Value::Text(text),
            ) if is_number(text) => problem.with_hint("remove the quotes"),
            _ => problem,
        }
    }
}

impl Shape {
    fn check_number_from(
        &self,
        value: &Value<'_>,
        bounds: RangeInclusive<f64>,
        span: Span,
        name: &str,
    ) -> Result<(), Problem> {
        let number = match value {
            Value::Int(number) => *number as f64,
            Value::Float(number) if !number.is_nan() => *number,
            other => return Err(self.mismatch(other, span, name)),
        };
        if bounds.contains(&number) {
            return Ok(());
        }
        let (least, most) = (shown_float(*bounds.start()), shown_float(*bounds.end()));
        let message = format!("{name} must be between {least} and {most}");
        Err(Problem::new(span, message).instead_of(value.describe()))
    }
}

fn is_number(text: &str) -> bool {
    text.parse::<f64>().is_ok_and(f64::is_finite)
}

impl Object {
    fn check(&self, entries: &[(Key<'_>, Node<'_>)], span: Span) -> Result<(), Problem> {
        for (key, node) in entries {
            match self.fields.iter().find(|field| field.key == key.text) {
                Some(field) => field.shape.check(node, field.key)?,
                None => return Err(self.unknown(key)),
            }
        }
        let missing = self.fields.iter().find(|field| {
            field.presence == Presence::Required
                && !entries.iter().any(|(k, _)| k.text == field.key)
        });
        match missing {
            None => Ok(()),
            Some(field) => Err(Problem::new(
                span,
                format!("the key '{}' is missing{}", field.key, self.within()),
            )),
        }
    }

    fn check_single(
        &self,
        entries: &[(Key<'_>, Node<'_>)],
        span: Span,
        name: &str,
    ) -> Result<(), Problem> {
        if entries.len() == 1 {
            return Ok(());
        }
        Err(self.not_single(None, span, name))
    }

    fn check_single_with(
        &self,
        (extra, beside): (&str, &str),
        entries: &[(Key<'_>, Node<'_>)],
        span: Span,
        name: &str,
    ) -> Result<(), Problem> {
        let is_extra = |(key, _): &&(Key<'_>, Node<'_>)| key.text == extra;
        let mut others = entries.iter().filter(|entry| !is_extra(entry));
        let (Some((alone, _)), None) = (others.next(), others.next()) else {
            return Err(self.not_single(Some(extra), span, name));
        };
        match entries.iter().find(is_extra) {
            Some((key, _)) if alone.text != beside => {
                let message = format!("'{extra}' is for {beside} only");
                Err(Problem::new(key.span, message).with_hint("remove it"))
            }
            _ => Ok(()),
        }
    }

    fn not_single(&self, extra: Option<&str>, span: Span, name: &str) -> Problem {
        let keys = self.fields.iter().map(|field| field.key);
        let keys: Vec<_> = keys.filter(|key| Some(*key) != extra).collect();
        let message = match keys.as_slice() {
            [key] => format!("{name} needs the key '{key}'"),
            keys => format!(
                "{name} needs one of the keys {}, and one only",
                keys.join(", ")
            ),
        };
        Problem::new(span, message)
    }

    fn unknown(&self, key: &Key<'_>) -> Problem {
        let message = format!("unknown key {}{}", quoted(&key.text), self.within());
        let problem = Problem::new(key.span, message);
        if let Some(section) = self.section_of(&key.text) {
            return problem.with_hint(format!("it belongs in '{section}'"));
        }
        let known = self.fields.iter().map(|field| field.key);
        match nearest(&key.text, known) {
            Some(known) => problem.with_hint(format!("did you mean '{known}'?")),
            None => {
                let keys: Vec<_> = self.fields.iter().map(|field| field.key).collect();
                problem.with_hint(format!("the keys are {}", keys.join(", ")))
            }
        }
    }

    /// The section that has the key, where someone wrote it one level too high.
    fn section_of(&self, key: &str) -> Option<&'static str> {
        let has = |field: &&Field| match field.shape {
            Shape::Object(inner) => inner.fields.iter().any(|field| field.key == key),
            _ => false,
        };
        self.fields.iter().find(has).map(|field| field.key)
    }

    fn within(&self) -> String {
        if self.name.is_empty() {
            String::new()
        } else {
            format!(" in {}", self.name)
        }
    }
}

impl Choice {
    fn has(&self, value: &Value<'_>) -> bool {
        matches!(value, Value::Text(text) if self.find(text).is_some())
    }

    fn expected(&self) -> String {
        match self.words {
            [word] => (*word).to_owned(),
            words => format!("one of {}", words.join(", ")),
        }
    }

    fn check(&self, text: &str, span: Span, name: &str) -> Result<(), Problem> {
        if self.find(text).is_some() {
            return Ok(());
        }
        let refused = self
            .refused
            .iter()
            .find(|(word, _)| word.eq_ignore_ascii_case(text));
        if let Some((_, why)) = refused {
            return Err(Problem::new(span, *why));
        }
        let message = format!("{name} must be {}", self.expected());
        let problem = Problem::new(span, message).instead_of(quoted(text));
        Err(match nearest(text, self.words.iter().copied()) {
            Some(word) => problem.with_hint(format!("did you mean '{word}'?")),
            None => problem,
        })
    }
}

fn check_list(
    item: &Shape,
    most: usize,
    items: &[Node<'_>],
    span: Span,
    name: &str,
) -> Result<(), Problem> {
    if items.len() > most {
        return Err(Problem::new(
            span,
            format!("{name} has more than {most} items"),
        ));
    }
    let label = format!("an item of {name}");
    items.iter().try_for_each(|node| item.check(node, &label))
}

fn check_map(
    item: &Shape,
    most: usize,
    entries: &[(Key<'_>, Node<'_>)],
    span: Span,
    name: &str,
) -> Result<(), Problem> {
    if entries.len() > most {
        let message = format!("{name} has more than {most} entries");
        return Err(Problem::new(span, message));
    }
    let each = |(key, node): &(Key<'_>, Node<'_>)| item.check(node, &quoted(&key.text));
    entries.iter().try_for_each(each)
}

/// Dates and numbers that are none exist in one format each and in no argument.
fn check_any(value: &Value<'_>, span: Span, name: &str) -> Result<(), Problem> {
    match value {
        Value::Date => Err(Shape::Any
            .mismatch(value, span, name)
            .with_hint("put it in quotes")),
        Value::Float(number) if !number.is_finite() => Err(Shape::Any.mismatch(value, span, name)),
        Value::List(items) => items
            .iter()
            .try_for_each(|item| check_any(&item.value, item.span, name)),
        Value::Map(entries) => entries
            .iter()
            .try_for_each(|(_, item)| check_any(&item.value, item.span, name)),
        _ => Ok(()),
    }
}

fn check_text(text: &str, most: usize, span: Span, name: &str) -> Result<(), Problem> {
    if text.is_empty() {
        return Err(Problem::new(span, format!("{name} is empty text")));
    }
    if text.chars().any(char::is_control) {
        return Err(Problem::new(
            span,
            format!("{name} holds a control character"),
        ));
    }
    if text.chars().count() > most {
        return Err(Problem::new(
            span,
            format!("{name} is longer than {most} characters"),
        ));
    }
    Ok(())
}

fn check_whole(
    value: &Value<'_>,
    least: u64,
    most: u64,
    span: Span,
    name: &str,
) -> Result<(), Problem> {
    let within = match value {
        Value::Int(number) => (i128::from(least)..=i128::from(most)).contains(number),
        // 5.0 is a whole number, in JSON Schema and here; the bounds are exact in a float.
        Value::Float(number) if number.is_finite() && number.fract() == 0.0 => {
            (least as f64..=most as f64).contains(number)
        }
        Value::Float(number) if number.is_infinite() => false,
        other => {
            let shape = Shape::Whole { least, most };
            return Err(shape.mismatch(other, span, name));
        }
    };
    if within {
        return Ok(());
    }
    let message = format!("{name} must be between {least} and {most}");
    Err(Problem::new(span, message).instead_of(value.describe()))
}

fn check_number(
    value: &Value<'_>,
    above: f64,
    most: f64,
    span: Span,
    name: &str,
) -> Result<(), Problem> {
    let number = match value {
        Value::Int(number) => *number as f64,
        Value::Float(number) if !number.is_nan() => *number,
        other => {
            let shape = Shape::Number { above, most };
            return Err(shape.mismatch(other, span, name));
        }
    };
    if number > above && number <= most {
        return Ok(());
    }
    let (above, most) = (shown_float(above), shown_float(most));
    let message = format!("{name} must be above {above} and at most {most}");
    Err(Problem::new(span, message).instead_of(value.describe()))
}

/// The known word someone most likely meant.
fn nearest(text: &str, known: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    // Comparing is quadratic in the length, and nobody mistypes a word by that much.
    if text.len() > 64 {
        return None;
    }
    let lower = text.to_ascii_lowercase();
    let likeness = |word: &str| {
        let word = word.to_ascii_lowercase();
        // `tier` for `sandbox_tier`: a part of the word counts like the word.
        let part = lower.len() >= 4 && word.contains(&lower);
        if part {
            1.0
        } else {
            strsim::normalized_damerau_levenshtein(&lower, &word)
        }
    };
    known
        .map(|word| (likeness(word), word))
        .filter(|(likeness, _)| *likeness >= 0.6)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, word)| word)
}
