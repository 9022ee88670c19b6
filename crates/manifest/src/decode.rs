//! Reading checked values. Shapes have been checked by now, so a mismatch here is a mistake of ours;
//! it is still reported as an error, because the other choice would be a limit that is not there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use belljar_policy::{
    DomainPattern, EnvAllow, Filesystem, ImageName, InvalidPathRule, Origin, PathRule, Permission,
    Rule, Source,
};

use crate::node::{Node, Problem, Value, quoted};

const MIB: u64 = 1024 * 1024;

/// Where rules of this document say they come from.
#[derive(Clone, Copy)]
pub(crate) struct Written<'a> {
    pub(crate) file: &'a Arc<str>,
    pub(crate) source: Source,
}

impl Written<'_> {
    pub(crate) fn at(self, node: &Node<'_>) -> Origin {
        node.span.origin(self.file, self.source)
    }

    /// The paths of a list, read by `parse`.
    pub(crate) fn paths(
        self,
        list: &Node<'_>,
        parse: fn(&str) -> Result<PathRule, InvalidPathRule>,
    ) -> Result<Vec<Rule<PathRule>>, Problem> {
        list.items()
            .iter()
            .map(|item| self.path(item, parse))
            .collect()
    }

    pub(crate) fn path(
        self,
        node: &Node<'_>,
        parse: fn(&str) -> Result<PathRule, InvalidPathRule>,
    ) -> Result<Rule<PathRule>, Problem> {
        let text = text(node)?;
        let rule = parse(text).map_err(|invalid| {
            Problem::new(node.span, format!("{invalid}: {}", quoted(text)))
                .with_hint(invalid.hint())
        })?;
        Ok(Rule::new(rule, self.at(node)))
    }

    /// The name of an image.
    pub(crate) fn image(self, node: &Node<'_>) -> Result<Rule<ImageName>, Problem> {
        let name = ImageName::parse(text(node)?).map_err(|invalid| {
            Problem::new(node.span, invalid.to_string()).with_hint(invalid.hint())
        })?;
        Ok(Rule::new(name, self.at(node)))
    }

    /// Paths that open something: the trees each box has its own of can't be opened.
    pub(crate) fn granted_paths(self, list: &Node<'_>) -> Result<Vec<Rule<PathRule>>, Problem> {
        for item in list.items() {
            if let PathRule::Root(path) = self.path(item, PathRule::parse)?.value {
                let own = ["/proc", "/dev"].iter().any(|tree| path.starts_with(tree));
                if own && !path.starts_with("/dev/shm") {
                    let message = format!("the host's {} cannot be opened", path.display());
                    let hint = "every box has a /proc and a /dev of its own; remove the path";
                    return Err(Problem::new(item.span, message).with_hint(hint));
                }
            }
        }
        self.paths(list, PathRule::parse)
    }

    pub(crate) fn names(self, list: &Node<'_>) -> Result<EnvAllow, Problem> {
        let mut names = BTreeMap::new();
        for item in list.items() {
            let name = text(item)?;
            if name.contains(['=', '\0']) {
                let message = format!("{} cannot be a variable's name", quoted(name));
                let hint = "list names only; values come from the environment";
                return Err(Problem::new(item.span, message).with_hint(hint));
            }
            names
                .entry(name.to_owned())
                .or_insert_with(|| self.at(item));
        }
        Ok(EnvAllow::Listed(names))
    }
}

/// Replaces a list where the document has one.
///
/// # Errors
/// When it is something else.
pub fn replace<T>(
    target: &mut T,
    node: Option<&Node<'_>>,
    read: impl FnOnce(&Node<'_>) -> Result<T, Problem>,
) -> Result<(), Problem> {
    if let Some(node) = node {
        *target = read(node)?;
    }
    Ok(())
}

/// Replaces a limit where the document has one; null lifts it.
///
/// # Errors
/// When it is something else.
pub fn limit<T>(
    target: &mut Option<T>,
    node: Option<&Node<'_>>,
    read: impl FnOnce(&Node<'_>) -> Result<T, Problem>,
) -> Result<(), Problem> {
    replace(target, node, |node| {
        if node.is_null() {
            Ok(None)
        } else {
            read(node).map(Some)
        }
    })
}

/// Adds hidden and protected paths: a document can add to what a profile withholds, and makes an
/// exception by listing a path as readable or writable, never by leaving it out.
pub(crate) fn add_withheld(
    filesystem: &mut Filesystem,
    section: &Node<'_>,
    written: Written<'_>,
) -> Result<(), Problem> {
    if let Some(list) = section.get("hidden_paths") {
        filesystem
            .hidden
            .extend(written.paths(list, PathRule::parse_hidden)?);
    }
    if let Some(list) = section.get("protected_paths") {
        filesystem
            .protected
            .extend(written.paths(list, PathRule::parse)?);
    }
    Ok(())
}

/// Text.
///
/// # Errors
/// When it is something else.
pub fn text<'n>(node: &'n Node<'_>) -> Result<&'n str, Problem> {
    match &node.value {
        Value::Text(text) => Ok(text),
        _ => Err(unexpected(node)),
    }
}

/// True or false.
///
/// # Errors
/// When it is something else.
pub fn truth(node: &Node<'_>) -> Result<bool, Problem> {
    match node.value {
        Value::Bool(value) => Ok(value),
        _ => Err(unexpected(node)),
    }
}

/// A whole number of any unsigned type.
///
/// # Errors
/// When it is something else.
pub fn whole<T: TryFrom<u64>>(node: &Node<'_>) -> Result<T, Problem> {
    let wide = match node.value {
        Value::Int(value) => u64::try_from(value).ok(),
        // The cast saturates, and the shape has checked that nothing is lost.
        Value::Float(value) if value.fract() == 0.0 && value >= 0.0 => Some(value as u64),
        _ => None,
    };
    wide.and_then(|wide| T::try_from(wide).ok())
        .ok_or_else(|| unexpected(node))
}

/// A number.
///
/// # Errors
/// When it is something else.
pub fn number(node: &Node<'_>) -> Result<f64, Problem> {
    match node.value {
        Value::Int(value) => Ok(value as f64),
        Value::Float(value) if value.is_finite() => Ok(value),
        _ => Err(unexpected(node)),
    }
}

/// A time above zero, in seconds.
///
/// # Errors
/// When it is something else.
pub fn seconds(node: &Node<'_>) -> Result<Duration, Problem> {
    let seconds = Duration::try_from_secs_f64(number(node)?).map_err(|_| unexpected(node))?;
    // Above zero in the file stays above zero here.
    Ok(seconds.max(Duration::from_nanos(1)))
}

pub(crate) fn mebibytes(node: &Node<'_>) -> Result<u64, Problem> {
    whole::<u64>(node)?
        .checked_mul(MIB)
        .ok_or_else(|| unexpected(node))
}

pub(crate) fn permission(node: &Node<'_>) -> Result<Permission, Problem> {
    match text(node)? {
        "read_env" => Ok(Permission::ReadEnv),
        "spawn_subprocess" => Ok(Permission::SpawnSubprocess),
        _ => Err(unexpected(node)),
    }
}

pub(crate) fn domain(node: &Node<'_>) -> Result<DomainPattern, Problem> {
    let text = text(node)?;
    DomainPattern::parse(text).map_err(|invalid| {
        Problem::new(node.span, format!("{invalid}: {}", quoted(text))).with_hint(invalid.hint())
    })
}

/// The ports of a list, sorted, each once.
pub(crate) fn ports(list: &Node<'_>) -> Result<Vec<u16>, Problem> {
    let mut ports: Vec<u16> = list.items().iter().map(whole).collect::<Result<_, _>>()?;
    ports.sort_unstable();
    ports.dedup();
    Ok(ports)
}

/// What to say of a value that a shape ought to have refused.
#[must_use]
pub fn unexpected(node: &Node<'_>) -> Problem {
    Problem::new(
        node.span,
        format!("{} is not accepted here", node.value.describe()),
    )
}
