//! A place in a TOML document: takes values of the right kind, and says what is wrong and where.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::InvalidSettings;

/// A value as it stands in the document.
pub(super) type Given<'a> = Spanned<DeValue<'a>>;

/// A place in the document.
pub(super) struct Place<'t> {
    pub(super) text: &'t str,
    pub(super) path: String,
}

impl<'t> Place<'t> {
    pub(super) fn of(&self, key: &str) -> Self {
        Self {
            text: self.text,
            path: format!("{}.{key}", self.path),
        }
    }

    pub(super) fn item(&self, index: usize) -> Self {
        Self {
            text: self.text,
            path: format!("{}[{index}]", self.path),
        }
    }

    pub(super) fn wrong(&self, at: usize, message: &str, hint: Option<String>) -> InvalidSettings {
        let before = &self.text[..self.text.floor_char_boundary(at)];
        let line_begins = before.rfind('\n').map_or(0, |end| end + 1);
        InvalidSettings {
            path: if self.path.is_empty() {
                "supervisor.toml".into()
            } else {
                self.path.clone()
            },
            line: before.matches('\n').count() + 1,
            column: before[line_begins..].chars().count() + 1,
            message: message.to_owned(),
            hint,
        }
    }

    pub(super) fn table<'v, 'a>(
        &self,
        given: &'v Given<'a>,
    ) -> Result<&'v DeTable<'a>, InvalidSettings> {
        match given.get_ref() {
            DeValue::Table(table) => Ok(table),
            _ => Err(self.wrong(given.span().start, "a table belongs here", None)),
        }
    }

    pub(super) fn array<'v, 'a>(
        &self,
        given: &'v Given<'a>,
    ) -> Result<&'v [Given<'a>], InvalidSettings> {
        match given.get_ref() {
            DeValue::Array(items) => Ok(items),
            _ => Err(self.wrong(given.span().start, "a list belongs here", None)),
        }
    }

    /// The keys of a table, all of them known.
    pub(super) fn entries<'v, 'a>(
        &self,
        given: &'v Given<'a>,
        known: &[&'static str],
    ) -> Result<Vec<(&'static str, &'v Given<'a>, Self)>, InvalidSettings> {
        let mut all = Vec::new();
        for (key, value) in self.table(given)?.iter() {
            let name = key.get_ref().as_ref();
            match known.iter().find(|known| **known == name) {
                Some(known) => all.push((*known, value, self.of(known))),
                None => {
                    let hint = closest(name, known)
                        .unwrap_or_else(|| format!("known keys: {}", known.join(", ")));
                    return Err(self.of(name).wrong(
                        key.span().start,
                        "there is no such key",
                        Some(hint),
                    ));
                }
            }
        }
        Ok(all)
    }

    pub(super) fn number(
        &self,
        given: &Given<'_>,
        range: std::ops::RangeInclusive<u64>,
    ) -> Result<u64, InvalidSettings> {
        let number = match given.get_ref() {
            DeValue::Integer(integer) => {
                u64::from_str_radix(integer.as_str(), integer.radix()).ok()
            }
            _ => None,
        };
        number
            .filter(|number| range.contains(number))
            .ok_or_else(|| {
                let message = format!(
                    "a whole number from {} to {} belongs here",
                    range.start(),
                    range.end()
                );
                self.wrong(given.span().start, &message, None)
            })
    }

    pub(super) fn percent(&self, given: &Given<'_>) -> Result<f64, InvalidSettings> {
        let number: Option<f64> = match given.get_ref() {
            DeValue::Integer(integer) => integer.as_str().parse().ok(),
            DeValue::Float(float) => float.as_str().parse().ok(),
            _ => None,
        };
        number
            .filter(|number| *number > 0.0 && *number <= 100.0)
            .ok_or_else(|| {
                let hint =
                    "percent of what the agent may use, or of one core where nothing limits it"
                        .to_owned();
                self.wrong(
                    given.span().start,
                    "a number above 0 and up to 100 belongs here",
                    Some(hint),
                )
            })
    }

    pub(super) fn truth(&self, given: &Given<'_>) -> Result<bool, InvalidSettings> {
        match given.get_ref() {
            DeValue::Boolean(value) => Ok(*value),
            _ => Err(self.wrong(given.span().start, "true or false belongs here", None)),
        }
    }

    pub(super) fn text(&self, given: &Given<'_>) -> Result<String, InvalidSettings> {
        match given.get_ref() {
            DeValue::String(text) => Ok(text.to_string()),
            _ => Err(self.wrong(given.span().start, "a text belongs here", None)),
        }
    }

    pub(super) fn one_of<T: Copy, W: AsRef<str>>(
        &self,
        given: &Given<'_>,
        words: &[(W, T)],
    ) -> Result<T, InvalidSettings> {
        let text = self.text(given)?;
        if let Some((_, value)) = words.iter().find(|(word, _)| word.as_ref() == text) {
            return Ok(*value);
        }
        let known: Vec<&str> = words.iter().map(|(word, _)| word.as_ref()).collect();
        let hint = closest(&text, &known).unwrap_or_else(|| format!("known: {}", known.join(", ")));
        Err(self.wrong(
            given.span().start,
            &format!("{text:?} is not known here"),
            Some(hint),
        ))
    }
}

fn closest(given: &str, known: &[&str]) -> Option<String> {
    known
        .iter()
        .map(|word| (strsim::damerau_levenshtein(given, word), word))
        .filter(|(distance, word)| *distance <= 1 + word.len() / 4)
        .min()
        .map(|(_, word)| format!("did you mean `{word}`?"))
}
