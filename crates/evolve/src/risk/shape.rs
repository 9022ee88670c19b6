//! What two versions of a file have in common, by their structure.

use std::collections::{BTreeMap, BTreeSet};

use crate::lang::{Ast, AstNode, is_comment, is_name};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Leave {
    Comments,
    CommentsAndLogging,
}

/// Comments that nothing but people read: documentation in Rust is an attribute.
fn is_left(node: &AstNode<'_>) -> bool {
    is_comment(node) && !node.children().any(|part| part.kind() == "doc_comment")
}

/// The tree as a list: depth, kind, and the text of leaves. Two texts with the same list do the same.
pub(super) fn outline(ast: &Ast, leave: Leave) -> Vec<(usize, String, String)> {
    let mut rows = Vec::new();
    let mut waiting = vec![(ast.root(), 0)];
    while let Some((node, depth)) = waiting.pop() {
        if is_left(&node) || (leave == Leave::CommentsAndLogging && is_logging(&node)) {
            continue;
        }
        let text = if node.is_leaf() {
            node.text().into_owned()
        } else {
            String::new()
        };
        rows.push((depth, node.kind().into_owned(), text));
        let children: Vec<AstNode<'_>> = node.children().collect();
        waiting.extend(children.into_iter().rev().map(|child| (child, depth + 1)));
    }
    rows
}

/// Comments that give orders to tools, each with where it stands between what does something: how much comes before it, and
/// whether that ends on its line.
pub(super) fn orders(ast: &Ast) -> Vec<(String, usize, bool)> {
    let orders: BTreeSet<String> = crate::signals::directives(ast)
        .into_iter()
        .map(|(_, text)| text)
        .collect();
    let mut found = Vec::new();
    let (mut before, mut last_line) = (0, None);
    let mut waiting = vec![ast.root()];
    while let Some(node) = waiting.pop() {
        if is_comment(&node) {
            let text = node.text().into_owned();
            if orders.contains(&text) {
                found.push((text, before, last_line == Some(node.start_pos().line())));
            }
            continue;
        }
        if node.is_leaf() {
            before += 1;
            last_line = Some(node.end_pos().line());
        }
        let children: Vec<AstNode<'_>> = node.children().collect();
        waiting.extend(children.into_iter().rev());
    }
    found
}

/// A statement that only says something: `log.info("…", name)`. Nothing in it is called, so nothing in it acts.
fn is_logging(node: &AstNode<'_>) -> bool {
    if node.kind() != "expression_statement" {
        return false;
    }
    let mut children = node.named_children();
    let (Some(call), None) = (children.next(), children.next()) else {
        return false;
    };
    let is_call = matches!(&*call.kind(), "call" | "call_expression");
    let Some(function) = call.field("function").filter(|_| is_call) else {
        return false;
    };
    let name = function.text().into_owned();
    let says = match name.split_once('.') {
        Some((object, method)) => {
            matches!(
                object,
                "log" | "logger" | "logging" | "LOG" | "LOGGER" | "console"
            ) && matches!(
                method,
                "debug" | "info" | "warning" | "warn" | "error" | "exception" | "log" | "critical"
            )
        }
        None => name == "print",
    };
    let Some(arguments) = call.field("arguments") else {
        return false;
    };
    let acts = |part: &AstNode<'_>| {
        matches!(
            &*part.kind(),
            "call"
                | "call_expression"
                | "await"
                | "await_expression"
                | "yield"
                | "named_expression"
                | "assignment_expression"
                | "update_expression"
                | "lambda"
                | "subscript"
                | "attribute"
                | "member_expression"
                | "interpolation"
                | "template_substitution"
                | "list_comprehension"
                | "generator_expression"
                | "keyword_argument"
                | "list_splat"
                | "dictionary_splat"
                | "binary_operator"
        )
    };
    says && !arguments.dfs().any(|part| acts(&part))
}

/// What there is more of in the second than in the first.
fn more(before: Vec<String>, after: Vec<String>) -> Vec<String> {
    let mut known: BTreeMap<String, usize> = BTreeMap::new();
    for text in before {
        *known.entry(text).or_default() += 1;
    }
    let is_new = |text: &String| match known.get_mut(text) {
        Some(left) if *left > 0 => {
            *left -= 1;
            false
        }
        _ => true,
    };
    after.into_iter().filter(is_new).collect()
}

/// Decorators that leave a function what it is, with the module that they are from; of the language itself, without one.
const KNOWN: &[(&str, &str)] = &[
    ("functools", "cache"),
    ("functools", "lru_cache"),
    ("functools", "cached_property"),
    ("functools", "wraps"),
    ("functools", "total_ordering"),
    ("contextlib", "contextmanager"),
    ("contextlib", "asynccontextmanager"),
    ("dataclasses", "dataclass"),
    ("abc", "abstractmethod"),
    ("typing", "final"),
    ("typing", "overload"),
    ("typing", "override"),
    ("", "staticmethod"),
    ("", "classmethod"),
    ("", "property"),
    // Rust's own.
    ("", "inline"),
    ("", "must_use"),
    ("", "cold"),
    ("", "doc"),
    ("", "deprecated"),
    ("", "non_exhaustive"),
];

/// New decorators of which nobody knows what they make of what they stand before.
pub(super) fn strange_decorator(old: &Ast, new: &Ast) -> Option<String> {
    let all = |ast: &Ast| -> Vec<String> {
        let root = ast.root();
        let kinds = ["decorator", "attribute_item", "inner_attribute_item"];
        root.dfs()
            .filter(|node| kinds.contains(&&*node.kind()))
            .map(|node| node.text().into_owned())
            .collect()
    };
    let fresh = more(all(old), all(new));
    fresh.into_iter().find(|text| !is_known(new, text))
}

fn is_known(ast: &Ast, text: &str) -> bool {
    let inside = text
        .trim_start_matches(['@', '#', '!', '['])
        .trim_end_matches(']')
        .trim();
    let (name, arguments) = inside.split_once('(').unwrap_or((inside, ""));
    // What is given is a number, a name or a text, and nothing that is called.
    let is_plain = !arguments.contains(['(', '[', '{', ':', '.'])
        && !arguments
            .split([' ', ',', '='])
            .any(|word| word == "lambda");
    let known = KNOWN.iter().find(|(module, own)| {
        name == *own || name.strip_prefix(module) == Some(&format!(".{own}"))
    });
    let Some((module, own)) = known.filter(|_| is_plain) else {
        return false;
    };
    let first = name.split('.').next().unwrap_or(name);
    let bound = bindings(ast)
        .into_iter()
        .filter(|(bound, _)| bound == first);
    let origins: BTreeSet<String> = bound.map(|(_, origin)| origin).collect();
    let wanted = match (module.is_empty(), first == *own) {
        (true, _) => return origins.is_empty(),
        (false, true) => format!("{module}.{own}"),
        (false, false) => (*module).to_owned(),
    };
    origins.len() == 1 && origins.contains(&wanted)
}

/// Names that a file gives to something, with where it is from if it is imported.
fn bindings(ast: &Ast) -> Vec<(String, String)> {
    let root = ast.root();
    let mut all = Vec::new();
    for node in root.dfs() {
        match &*node.kind() {
            "function_definition"
            | "class_definition"
            | "function_item"
            | "function_declaration"
            | "class_declaration"
            | "method_definition"
            | "function_signature_item" => {
                if let Some(name) = node.field("name") {
                    all.push((name.text().into_owned(), "here".to_owned()));
                }
            }
            "import_statement" | "import_from_statement" | "use_declaration" => {
                imported(&node, &mut all);
            }
            "assignment" | "augmented_assignment" | "for_statement" | "for_in_clause" => {
                let left = node.field("left").into_iter();
                let names = left.flat_map(|left| left.dfs().filter(is_name).collect::<Vec<_>>());
                all.extend(names.map(|name| (name.text().into_owned(), "here".to_owned())));
            }
            "named_expression" | "as_pattern_target" => {
                let names = node.dfs().filter(is_name);
                all.extend(names.map(|name| (name.text().into_owned(), "here".to_owned())));
            }
            "wildcard_import" | "use_wildcard" => {
                all.push(("*".to_owned(), "*".to_owned()));
            }
            _ => {}
        }
    }
    all
}

/// The names that an import binds. In other languages than Python every name in it counts.
fn imported(node: &AstNode<'_>, all: &mut Vec<(String, String)>) {
    let text = node.text().into_owned();
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let (module, rest) = match (words.strip_prefix("from "), words.strip_prefix("import ")) {
        (Some(rest), _) => match rest.split_once(" import ") {
            Some((module, names)) => (Some(module), names),
            None => (None, rest),
        },
        (None, Some(rest)) if node.field("source").is_none() => (None, rest),
        _ => {
            let names = node.dfs().filter(is_name);
            all.extend(names.map(|name| (name.text().into_owned(), "import".to_owned())));
            return;
        }
    };
    for one in rest.trim_matches(['(', ')']).split(',') {
        let one = one.trim();
        let (name, called) = one.split_once(" as ").unwrap_or((one, ""));
        let own = match (called.is_empty(), module) {
            (false, _) => called,
            (true, Some(_)) => name,
            (true, None) => name.split('.').next().unwrap_or(name),
        };
        let origin = match module {
            Some(module) => format!("{module}.{name}"),
            None if called.is_empty() => own.to_owned(),
            None => name.to_owned(),
        };
        if !own.is_empty() {
            all.push((own.trim().to_owned(), origin));
        }
    }
}

/// A new function, class or import under a name that means something already, or that the language calls by itself.
pub(super) fn rebound(old: &Ast, new: &Ast) -> Option<String> {
    let names = |ast: &Ast| -> Vec<String> {
        let all = bindings(ast).into_iter();
        all.map(|(name, _)| name).collect()
    };
    let fresh = more(names(old), names(new));
    let root = old.root();
    let used: BTreeSet<String> = root
        .dfs()
        .filter(is_name)
        .map(|name| name.text().into_owned())
        .collect();
    fresh
        .into_iter()
        .find(|name| name == "*" || name.starts_with("__") || used.contains(name))
}

/// Names that are used more or less often than before.
pub(super) fn touched_names(old: &Ast, new: &Ast) -> impl Iterator<Item = String> {
    let mut counts: BTreeMap<String, i64> = BTreeMap::new();
    for (ast, sign) in [(old, -1), (new, 1)] {
        let root = ast.root();
        for node in root.dfs().filter(is_name) {
            *counts.entry(node.text().into_owned()).or_default() += sign;
        }
    }
    counts
        .into_iter()
        .filter(|(_, count)| *count != 0)
        .map(|(name, _)| name)
}

/// Whether every function of before is there after, with the same parameters and body: decorators, imports and new functions may
/// have come.
pub(super) fn keeps_bodies(old: &Ast, new: &Ast) -> bool {
    let kinds = [
        "function_definition",
        "function_item",
        "function_declaration",
        "method_definition",
        "arrow_function",
        "class_definition",
    ];
    let all = |ast: &Ast| -> Vec<String> {
        let root = ast.root();
        root.dfs()
            .filter(|node| kinds.contains(&&*node.kind()) && node.kind() != "class_definition")
            .map(|node| node.text().into_owned())
            .collect()
    };
    let top = |ast: &Ast| -> Vec<String> {
        let root = ast.root();
        let skip = |kind: &str| {
            kind == "decorated_definition"
                || kinds.contains(&kind)
                || kind.contains("import")
                || kind == "use_declaration"
        };
        root.children()
            .filter(|node| !is_comment(node) && !skip(&node.kind()))
            .map(|node| node.text().into_owned())
            .collect()
    };
    // Classes: what stands in them beside methods must stay too.
    let in_classes = |ast: &Ast| -> Vec<String> {
        let root = ast.root();
        root.dfs()
            .filter(|node| node.kind() == "class_definition")
            .flat_map(|class| {
                let body = class.field("body");
                let head = class
                    .field("superclasses")
                    .map(|node| node.text().into_owned());
                let rest: Vec<String> = body
                    .into_iter()
                    .flat_map(|body| {
                        body.children()
                            .filter(|node| {
                                !is_comment(node)
                                    && !matches!(
                                        &*node.kind(),
                                        "function_definition" | "decorated_definition"
                                    )
                            })
                            .map(|node| node.text().into_owned())
                            .collect::<Vec<_>>()
                    })
                    .collect();
                head.into_iter().chain(rest).collect::<Vec<_>>()
            })
            .collect()
    };
    let kept =
        |before: Vec<String>, after: Vec<String>| before.iter().all(|text| after.contains(text));
    kept(all(old), all(new)) && top(old) == top(new) && kept(in_classes(old), in_classes(new))
}
