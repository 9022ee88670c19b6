//! TOML into the tree.

use toml::Spanned;
use toml::de::{DeInteger, DeTable, DeValue};

use crate::node::{Key, Node, Problem, Value};
use crate::text::{Lines, MAX_DEPTH, MAX_NODES, Text};

pub(crate) fn parse<'a>(text: &Text<'a>, when_empty: &'static str) -> Result<Node<'a>, Problem> {
    let table = DeTable::parse(text.as_str()).map_err(|error| {
        let span = text.span(error.span().unwrap_or(0..0));
        Problem::new(span, format!("not TOML: {}", error.message()))
    })?;
    if table.get_ref().is_empty() {
        return Err(Problem::new(text.span(0..0), when_empty));
    }
    let (range, table) = (table.span(), table.into_inner());
    let mut builder = Builder {
        lines: Lines::new(text),
        nodes: 0,
    };
    let span = builder.lines.span(range);
    let value = builder.table(table, 0)?;
    Ok(Node { value, span })
}

struct Builder<'a> {
    lines: Lines<'a>,
    nodes: usize,
}

impl<'a> Builder<'a> {
    fn node(&mut self, spanned: Spanned<DeValue<'a>>, depth: usize) -> Result<Node<'a>, Problem> {
        let span = self.lines.span(spanned.span());
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            return Err(Problem::new(
                span,
                format!("more than {MAX_NODES} keys and values"),
            ));
        }
        if depth > MAX_DEPTH {
            return Err(Problem::new(
                span,
                format!("nested deeper than {MAX_DEPTH} levels"),
            ));
        }
        let value = match spanned.into_inner() {
            DeValue::String(text) => Value::Text(text),
            DeValue::Integer(integer) => integer_value(&integer),
            DeValue::Float(float) => Value::Float(float.as_str().parse().unwrap_or(f64::NAN)),
            DeValue::Boolean(value) => Value::Bool(value),
            DeValue::Datetime(_) => Value::Date,
            DeValue::Array(items) => {
                let items: Result<_, _> = items
                    .into_iter()
                    .map(|item| self.node(item, depth + 1))
                    .collect();
                Value::List(items?)
            }
            DeValue::Table(table) => self.table(table, depth)?,
        };
        Ok(Node { value, span })
    }

    fn table(&mut self, table: DeTable<'a>, depth: usize) -> Result<Value<'a>, Problem> {
        let mut entries = Vec::with_capacity(table.len());
        for (key, value) in table {
            let span = self.lines.span(key.span());
            // Keys count as in YAML; the value's own check follows at once.
            self.nodes += 1;
            let node = self.node(value, depth + 1)?;
            entries.push((
                Key {
                    text: key.into_inner(),
                    span,
                },
                node,
            ));
        }
        // The table is sorted by name; errors are reported in the order of the file.
        entries.sort_by_key(|(key, _)| key.span.start);
        Ok(Value::Map(entries))
    }
}

/// An integer too large for any bound is a float, which the bounds then refuse.
fn integer_value(integer: &DeInteger<'_>) -> Value<'static> {
    match i128::from_str_radix(integer.as_str(), integer.radix()) {
        Ok(value) => Value::Int(value),
        Err(_) => Value::Float(f64::INFINITY),
    }
}
