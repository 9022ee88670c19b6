//! A condition on an argument: its shape, and how it becomes one.

use belljar_policy::{Condition, PathGlob, Pointer, Test, WholeRegex};

use crate::capability_file::PATH;
use crate::decode::{number, text, unexpected, whole};
use crate::node::{Node, Problem, Value, quoted};
use crate::shape::{Object, Shape, field, required};

const BOUND: Shape = Shape::NumberFrom {
    least: -1e18,
    most: 1e18,
};

/// One condition.
pub(crate) static ARGUMENT: Object = Object {
    name: "an arguments item",
    doc: "What one argument must be: one of equals, in, glob, regex, minimum and maximum, max_bytes.",
    fields: &[
        required(
            "at",
            Shape::Text { most: 512 },
            "Where it is: a JSON pointer, in which `*` is every item.",
        ),
        field("equals", Shape::Any, "This value."),
        field(
            "in",
            Shape::List {
                item: &Shape::Any,
                most: 1000,
            },
            "One of these values.",
        ),
        field(
            "glob",
            PATH,
            "A path: `*` is anything within a name, `**` any number of names.",
        ),
        field(
            "regex",
            Shape::Text { most: 4096 },
            "Text that this expression matches as a whole.",
        ),
        field("minimum", BOUND, "A number, at least this."),
        field("maximum", BOUND, "A number, at most this."),
        field(
            "max_bytes",
            Shape::Whole {
                least: 0,
                most: 1 << 40,
            },
            "At most so many bytes.",
        ),
    ],
};

/// Reads one condition.
pub(crate) fn argument(item: &Node<'_>) -> Result<Condition, Problem> {
    let at = item
        .get("at")
        .map_or_else(|| Err(unexpected(item)), pointer)?;
    let mut tests = Vec::new();
    if let Some(node) = item.get("equals") {
        tests.push(Test::Equals(json(node)?));
    }
    if let Some(node) = item.get("in") {
        tests.push(Test::In(
            node.items().iter().map(json).collect::<Result<_, _>>()?,
        ));
    }
    if let Some(node) = item.get("glob") {
        tests.push(Test::Glob(glob(node)?));
    }
    if let Some(node) = item.get("regex") {
        tests.push(Test::Regex(regex(node)?));
    }
    let (minimum, maximum) = (item.get("minimum"), item.get("maximum"));
    if minimum.is_some() || maximum.is_some() {
        tests.push(Test::Range {
            minimum: minimum.map(number).transpose()?,
            maximum: maximum.map(number).transpose()?,
        });
    }
    if let Some(node) = item.get("max_bytes") {
        tests.push(Test::MaxBytes(whole(node)?));
    }
    match (tests.pop(), tests.is_empty()) {
        (Some(test), true) => Ok(Condition { at, test }),
        _ => {
            let message =
                "a condition needs one of equals, in, glob, regex, minimum and maximum, max_bytes";
            let hint = "write each in an item of its own: all items must be met";
            Err(Problem::new(item.span, message).with_hint(hint))
        }
    }
}

/// Reads a JSON pointer.
pub(crate) fn pointer(node: &Node<'_>) -> Result<Pointer, Problem> {
    let text = text(node)?;
    Pointer::parse(text).map_err(|invalid| {
        Problem::new(node.span, format!("{invalid}: {}", quoted(text)))
            .with_hint("write e.g. /path, or /paths/* for every item")
    })
}

fn glob(node: &Node<'_>) -> Result<PathGlob, Problem> {
    let text = text(node)?;
    PathGlob::parse(text).map_err(|invalid| {
        Problem::new(node.span, format!("{invalid}: {}", quoted(text))).with_hint(invalid.hint())
    })
}

fn regex(node: &Node<'_>) -> Result<WholeRegex, Problem> {
    WholeRegex::parse(text(node)?).map_err(|invalid| {
        Problem::new(node.span, invalid.to_string())
            .with_hint("the expression is for the whole text: write `.*` where anything may follow")
    })
}

/// The value as arguments have it.
fn json(node: &Node<'_>) -> Result<serde_json::Value, Problem> {
    Ok(match &node.value {
        Value::Null => serde_json::Value::Null,
        Value::Bool(value) => (*value).into(),
        Value::Int(value) => match (i64::try_from(*value), u64::try_from(*value)) {
            (Ok(value), _) => value.into(),
            (_, Ok(value)) => value.into(),
            _ => return Err(unexpected(node)),
        },
        Value::Float(value) if value.is_finite() => (*value).into(),
        Value::Float(_) | Value::Date => return Err(unexpected(node)),
        Value::Text(text) => text.as_ref().into(),
        Value::List(items) => items
            .iter()
            .map(json)
            .collect::<Result<Vec<_>, _>>()?
            .into(),
        Value::Map(entries) => {
            let each = entries
                .iter()
                .map(|(key, node)| Ok((key.text.to_string(), json(node)?)));
            serde_json::Value::Object(each.collect::<Result<_, Problem>>()?)
        }
    })
}
