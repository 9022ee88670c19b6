//! Conditions on a call's arguments.
//!
//! A rule that allows asks whether all of it *surely* holds; one that refuses or holds asks whether it *may*. What
//! can't be told (a number where a path should be, a path with two readings) is therefore never let through by a
//! condition and never slips past one.

use std::fmt;

use regex_lite::{Regex, RegexBuilder};
use serde_json::Value;

use super::path::PlainPath;
use super::{PathGlob, Paths};

/// A place in the arguments: a JSON pointer in which `*` is every item of a list or every member of a mapping.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pointer(Vec<String>);

/// Why a text is no JSON pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a JSON pointer")]
pub struct InvalidPointer;

impl Pointer {
    /// Reads `/a/b/0`; the empty text is the whole.
    ///
    /// # Errors
    /// When it does not start with `/`, or has a `~` that escapes nothing.
    pub fn parse(text: &str) -> Result<Self, InvalidPointer> {
        if text.is_empty() {
            return Ok(Self(Vec::new()));
        }
        let parts = text.strip_prefix('/').ok_or(InvalidPointer)?.split('/');
        let unescaped = parts.map(|part| {
            let stray = part
                .split('~')
                .skip(1)
                .any(|rest| !rest.starts_with(['0', '1']));
            if stray {
                Err(InvalidPointer)
            } else {
                Ok(part.replace("~1", "/").replace("~0", "~"))
            }
        });
        Ok(Self(unescaped.collect::<Result<_, _>>()?))
    }

    /// Every value it points at.
    #[must_use]
    pub fn find<'v>(&self, value: &'v Value) -> Vec<&'v Value> {
        let mut found = vec![value];
        for part in &self.0 {
            found = found
                .into_iter()
                .flat_map(|value| step(value, part))
                .collect();
        }
        found
    }

    /// Replaces every value it points at.
    pub fn replace(&self, value: &mut Value, with: &mut dyn FnMut(&Value) -> Value) {
        replace(&self.0, value, with);
    }
}

fn step<'v>(value: &'v Value, part: &str) -> Vec<&'v Value> {
    match value {
        Value::Object(map) if part == "*" => map.values().collect(),
        Value::Array(items) if part == "*" => items.iter().collect(),
        Value::Object(map) => map.get(part).into_iter().collect(),
        Value::Array(items) => part
            .parse::<usize>()
            .ok()
            .and_then(|at| items.get(at))
            .into_iter()
            .collect(),
        _ => Vec::new(),
    }
}

fn replace(parts: &[String], value: &mut Value, with: &mut dyn FnMut(&Value) -> Value) {
    let Some((part, rest)) = parts.split_first() else {
        *value = with(value);
        return;
    };
    match value {
        Value::Object(map) if part == "*" => map.values_mut().for_each(|v| replace(rest, v, with)),
        Value::Array(items) if part == "*" => items.iter_mut().for_each(|v| replace(rest, v, with)),
        Value::Object(map) => {
            if let Some(inner) = map.get_mut(part) {
                replace(rest, inner, with);
            }
        }
        Value::Array(items) => {
            if let Some(inner) = part.parse::<usize>().ok().and_then(|at| items.get_mut(at)) {
                replace(rest, inner, with);
            }
        }
        _ => {}
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .iter()
            .try_for_each(|part| write!(f, "/{}", part.replace('~', "~0").replace('/', "~1")))
    }
}

/// A regular expression that must match the whole text. It takes time in proportion to the text, whatever it says.
#[derive(Clone, Debug)]
pub struct WholeRegex {
    text: String,
    regex: Regex,
}

/// Why a text is no regular expression: what the parser said.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a regular expression ({0})")]
pub struct InvalidRegex(String);

impl WholeRegex {
    /// Reads an expression.
    ///
    /// # Errors
    /// When it is none, or a very large one.
    pub fn parse(text: &str) -> Result<Self, InvalidRegex> {
        let build = |text: &str| {
            let mut builder = RegexBuilder::new(text);
            let built = builder.size_limit(1 << 20).nest_limit(32).build();
            built.map_err(|error| InvalidRegex(error.to_string()))
        };
        // By itself first: `a)|(b` would otherwise close our group and leave the anchors to one branch each.
        build(text)?;
        Ok(Self {
            text: text.to_owned(),
            regex: build(&format!(r"\A(?:{text})\z"))?,
        })
    }

    /// The expression as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl PartialEq for WholeRegex {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

/// What a value must be.
#[derive(Clone, Debug, PartialEq)]
pub enum Test {
    /// This value.
    Equals(Value),
    /// One of these.
    In(Vec<Value>),
    /// A path of this pattern.
    Glob(PathGlob),
    /// Text that the expression matches as a whole.
    Regex(WholeRegex),
    /// A number within these bounds, both included.
    Range {
        /// The least.
        minimum: Option<f64>,
        /// The most.
        maximum: Option<f64>,
    },
    /// At most so many bytes: of text its own, of anything else those of its JSON.
    MaxBytes(u64),
}

/// One condition.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    /// Where the value is.
    pub at: Pointer,
    /// What it must be.
    pub test: Test,
}

/// What is known of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Holds,
    Fails,
    Unclear,
}

impl Condition {
    /// Whether something is there and all of it surely passes.
    pub(super) fn surely(&self, arguments: &Value, paths: &dyn Paths) -> bool {
        let found = self.at.find(arguments);
        let holds = |value: &&Value| self.test.of(value, paths, Sure::Yes) == Known::Holds;
        !found.is_empty() && found.iter().all(holds)
    }

    /// Whether something is there that may pass.
    pub(super) fn maybe(&self, arguments: &Value, paths: &dyn Paths) -> bool {
        let may = |value: &Value| self.test.of(value, paths, Sure::No) != Known::Fails;
        self.at.find(arguments).into_iter().any(may)
    }

    /// Whether what passes this passes `other`, when asked in the same way.
    pub(super) fn implies(&self, other: &Self, sure: Sure) -> bool {
        self.at == other.at && self.test.implies(&other.test, sure)
    }
}

/// How a question is asked: for what is surely so, or for what may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sure {
    Yes,
    No,
}

impl Test {
    fn of(&self, value: &Value, paths: &dyn Paths, sure: Sure) -> Known {
        let known = |holds| if holds { Known::Holds } else { Known::Fails };
        match self {
            Self::Equals(own) => known(same(own, value)),
            Self::In(values) => known(values.iter().any(|own| same(own, value))),
            Self::Glob(glob) => {
                let path = value.as_str().and_then(|text| PlainPath::of(text, paths));
                path.map_or(Known::Unclear, |path| match sure {
                    Sure::Yes => known(path.surely(glob)),
                    Sure::No => known(path.maybe(glob)),
                })
            }
            Self::Regex(regex) => value
                .as_str()
                .map_or(Known::Unclear, |text| known(regex.regex.is_match(text))),
            Self::Range { minimum, maximum } => value.as_f64().map_or(Known::Unclear, |number| {
                known(
                    minimum.is_none_or(|least| number >= least)
                        && maximum.is_none_or(|most| number <= most),
                )
            }),
            Self::MaxBytes(most) => known(size(value) <= *most),
        }
    }

    /// Sound, not complete: where two tests can't be compared the answer is no.
    fn implies(&self, other: &Self, sure: Sure) -> bool {
        use super::Lexical;
        let passes = |value: &Value| match sure {
            Sure::Yes => other.of(value, &Lexical, sure) == Known::Holds,
            Sure::No => other.of(value, &Lexical, sure) != Known::Fails,
        };
        match (self, other) {
            // A path's links are seen only when a call is made, so one path says nothing of a pattern.
            (Self::Equals(_) | Self::In(_), Self::Glob(_)) => false,
            (Self::Equals(own), _) => passes(own),
            (Self::In(values), _) => values.iter().all(passes),
            (Self::Glob(own), Self::Glob(theirs)) => theirs.covers(own),
            (Self::Regex(own), Self::Regex(theirs)) => own == theirs,
            (
                Self::Range { minimum, maximum },
                Self::Range {
                    minimum: least,
                    maximum: most,
                },
            ) => {
                least.is_none_or(|least| minimum.is_some_and(|own| own >= least))
                    && most.is_none_or(|most| maximum.is_some_and(|own| own <= most))
            }
            (Self::MaxBytes(own), Self::MaxBytes(theirs)) => own <= theirs,
            _ => false,
        }
    }
}

/// Numbers are the same however they are written: 1 and 1.0.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => {
            x == y || (x.as_f64().is_some() && x.as_f64() == y.as_f64())
        }
        _ => a == b,
    }
}

/// Bytes of a value, without writing it down.
pub(crate) fn size(value: &Value) -> u64 {
    let len = |text: &str| text.len() as u64;
    match value {
        Value::String(text) => len(text),
        other => {
            struct Count(u64);
            impl fmt::Write for Count {
                fn write_str(&mut self, text: &str) -> fmt::Result {
                    self.0 += text.len() as u64;
                    Ok(())
                }
            }
            let mut count = Count(0);
            // Counting can't fail.
            let _ = fmt::write(&mut count, format_args!("{other}"));
            count.0
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = if self.at.0.is_empty() {
            "the arguments".to_owned()
        } else {
            self.at.to_string()
        };
        match &self.test {
            Test::Equals(value) => write!(f, "{at} = {value}"),
            Test::In(values) => write!(f, "{at} in {}", Value::Array(values.clone())),
            Test::Glob(glob) => write!(f, "{at} within {glob}"),
            Test::Regex(regex) => write!(f, "{at} matches {:?}", regex.text),
            Test::Range { minimum, maximum } => match (minimum, maximum) {
                (Some(least), Some(most)) => write!(f, "{at} from {least} to {most}"),
                (Some(least), None) => write!(f, "{at} from {least}"),
                (None, Some(most)) => write!(f, "{at} up to {most}"),
                (None, None) => write!(f, "{at} a number"),
            },
            Test::MaxBytes(most) => write!(f, "{at} at most {most} bytes"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::Lexical;
    use serde_json::json;

    fn condition(at: &str, test: Test) -> Condition {
        Condition {
            at: Pointer::parse(at).unwrap(),
            test,
        }
    }

    #[test]
    fn pointers_find_what_they_say() {
        let value = json!({"a": {"b": [1, 2]}, "x/y": 3, "t~": 4});
        let found = |text: &str| {
            Pointer::parse(text)
                .unwrap()
                .find(&value)
                .into_iter()
                .cloned()
                .collect::<Vec<_>>()
        };
        assert_eq!(found("/a/b/1"), [json!(2)]);
        assert_eq!(found("/a/b/*"), [json!(1), json!(2)]);
        assert_eq!(found("/x~1y"), [json!(3)]);
        assert_eq!(found("/t~0"), [json!(4)]);
        assert_eq!(found("/z"), Vec::<Value>::new());
        assert_eq!(found("").first(), Some(&value));
        assert!(Pointer::parse("a").is_err() && Pointer::parse("/~2").is_err());
    }

    #[test]
    fn an_expression_matches_the_whole_text_or_nothing() {
        let regex = |text: &str| condition("/x", Test::Regex(WholeRegex::parse(text).unwrap()));
        let holds = |text: &str, value: &str| regex(text).surely(&json!({"x": value}), &Lexical);
        assert!(holds("ls|cat", "cat"));
        assert!(!holds("ls|cat", "cat /etc/passwd") && !holds("ls|cat", "xls"));
        assert!(!holds("ls", "ls\nrm") && !holds("(?m)ls", "ls\nrm") && !holds("ls", "ls\n"));
        for text in ["a)|(b", "(", "(?x)a # ", "(a{1000}){1000}"] {
            assert!(WholeRegex::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_told_is_never_sure_and_always_possible() {
        let glob = condition("/p", Test::Glob(PathGlob::parse("/etc/**").unwrap()));
        for value in [
            json!(1),
            json!(["/etc/x"]),
            json!("etc/x"),
            json!("/a/%2e/x"),
            json!(null),
        ] {
            let arguments = json!({"p": value});
            assert!(!glob.surely(&arguments, &Lexical), "{arguments}");
            assert!(glob.maybe(&arguments, &Lexical), "{arguments}");
        }
        let none = json!({"q": "/etc/x"});
        assert!(!glob.surely(&none, &Lexical) && !glob.maybe(&none, &Lexical));
    }

    #[test]
    fn of_many_values_all_must_pass_to_be_allowed_and_one_is_enough_to_be_refused() {
        let all = condition("/paths/*", Test::Glob(PathGlob::parse("/work/**").unwrap()));
        let mixed = json!({"paths": ["/work/a", "/etc/b"]});
        assert!(!all.surely(&mixed, &Lexical) && all.maybe(&mixed, &Lexical));
        assert!(all.surely(&json!({"paths": ["/work/a"]}), &Lexical));
        assert!(!all.surely(&json!({"paths": []}), &Lexical));
    }

    #[test]
    fn numbers_sizes_and_values() {
        let range = Test::Range {
            minimum: Some(1.0),
            maximum: Some(5.0),
        };
        let range = condition("/n", range);
        for (value, want) in [
            (json!(1), true),
            (json!(5.0), true),
            (json!(5.1), false),
            (json!("3"), false),
        ] {
            assert_eq!(
                range.surely(&json!({"n": value}), &Lexical),
                want,
                "{value}"
            );
        }
        let short = condition("/c", Test::MaxBytes(3));
        assert!(short.surely(&json!({"c": "abc"}), &Lexical));
        assert!(!short.surely(&json!({"c": "äbc"}), &Lexical));
        assert!(!short.surely(&json!({"c": ["a", "b"]}), &Lexical));
        let equal = condition("/n", Test::Equals(json!(1)));
        assert!(equal.surely(&json!({"n": 1.0}), &Lexical));
        let one_of = condition("/n", Test::In(vec![json!("a"), json!("b")]));
        assert!(
            one_of.surely(&json!({"n": "b"}), &Lexical)
                && !one_of.maybe(&json!({"n": "c"}), &Lexical)
        );
    }
}
