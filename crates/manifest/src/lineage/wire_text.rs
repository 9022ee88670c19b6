//! Parts of a capability whose form in its document is text. Policy files have friendlier forms, which drop or guess
//! something; these keep everything and are read in one way.

use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use belljar_policy::{DomainPattern, PathRule};

use super::capability_document::Unrepresentable;
use crate::text_form::text_form;

/// An absolute path, normal and in UTF-8.
#[derive(Clone, Debug)]
pub(super) struct AbsolutePath(String);

impl AbsolutePath {
    pub(super) fn of(path: &Path) -> Result<Self, Unrepresentable> {
        let below = path.strip_prefix("/").map_err(|_| Unrepresentable::Path)?;
        Ok(Self(format!("/{}", relative(below)?)))
    }

    pub(super) fn path(&self) -> PathBuf {
        PathBuf::from(&self.0)
    }
}

impl fmt::Display for AbsolutePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for AbsolutePath {
    type Err = Unrepresentable;

    fn from_str(text: &str) -> Result<Self, Unrepresentable> {
        Self::of(Path::new(text))
    }
}

text_form!(AbsolutePath);

/// A path rule with its anchor in front: `/a`, `~/a`, `./a` or `**/a`. Unlike in policy files the anchor is always
/// there, so that a directory named `~x` or `$x` reads back as itself.
#[derive(Clone, Debug)]
pub(super) struct PathText(pub(super) PathRule);

impl PathText {
    pub(super) fn of(rule: &PathRule) -> Result<Self, Unrepresentable> {
        anchored(rule).map(|_| Self(rule.clone()))
    }
}

fn anchored(rule: &PathRule) -> Result<String, Unrepresentable> {
    Ok(match rule {
        PathRule::Root(path) => AbsolutePath::of(path)?.0,
        PathRule::Home(below) => format!("~/{}", relative(below)?),
        PathRule::Work(below) => format!("./{}", relative(below)?),
        PathRule::AnyNamed(name) => match relative(Path::new(name))? {
            same if same == *name && !name.is_empty() && !name.contains('/') => {
                format!("**/{name}")
            }
            _ => return Err(Unrepresentable::Path),
        },
    })
}

/// A relative path of plain names, joined anew so that it has one spelling.
fn relative(path: &Path) -> Result<String, Unrepresentable> {
    let mut text = String::new();
    for component in path.components() {
        let Component::Normal(name) = component else {
            return Err(Unrepresentable::Path);
        };
        let name = name.to_str().ok_or(Unrepresentable::Path)?;
        if name.contains('\0') {
            return Err(Unrepresentable::Path);
        }
        if !text.is_empty() {
            text.push('/');
        }
        text.push_str(name);
    }
    Ok(text)
}

impl fmt::Display for PathText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&anchored(&self.0).map_err(|_| fmt::Error)?)
    }
}

impl FromStr for PathText {
    type Err = Unrepresentable;

    fn from_str(text: &str) -> Result<Self, Unrepresentable> {
        let below = |path: &str| relative(Path::new(path)).map(PathBuf::from);
        let rule = if let Some(name) = text.strip_prefix("**/") {
            PathRule::AnyNamed(name.to_owned())
        } else if let Some(path) = text.strip_prefix("~/") {
            PathRule::Home(below(path)?)
        } else if let Some(path) = text.strip_prefix("./") {
            PathRule::Work(below(path)?)
        } else {
            PathRule::Root(text.parse::<AbsolutePath>()?.path())
        };
        Self::of(&rule)
    }
}

text_form!(PathText);

/// A domain pattern; `*` is every host, which only rules that deny may name.
#[derive(Clone, Debug)]
pub(super) struct DomainText(pub(super) DomainPattern);

impl fmt::Display for DomainText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for DomainText {
    type Err = Unrepresentable;

    fn from_str(text: &str) -> Result<Self, Unrepresentable> {
        match text {
            "*" => Ok(Self(DomainPattern::Any)),
            text => DomainPattern::parse(text)
                .map(Self)
                .map_err(|_| Unrepresentable::Rule),
        }
    }
}

text_form!(DomainText);

/// A number with a fraction, in the shortest text that reads back as the same float. JSON readers round differently.
#[derive(Clone, Copy, Debug)]
pub(super) struct DecimalText(pub(super) f64);

impl fmt::Display for DecimalText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for DecimalText {
    type Err = Unrepresentable;

    fn from_str(text: &str) -> Result<Self, Unrepresentable> {
        match text.parse::<f64>() {
            Ok(number) if number.is_finite() && number.is_sign_positive() => Ok(Self(number)),
            _ => Err(Unrepresentable::Number),
        }
    }
}

text_form!(DecimalText);
