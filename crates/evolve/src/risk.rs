//! How much can go wrong, computed from the change itself. Its author's claim can only raise it.

use crate::config::Config;
use crate::glob::{self, Glob};
use crate::lang::{Ast, AstNode, Lang, is_comment, is_name};
use crate::path::TreePath;
use crate::proposal::{Reason, Risk};
use crate::scope::Change;
use crate::signals::directives;
use crate::tree::Entry;

/// Words that stand for what keeps an agent safe, in a path or a changed name.
const SECURITY: &[&str] = &[
    "auth",
    "authn",
    "authz",
    "authenticate",
    "authorize",
    "oauth",
    "login",
    "password",
    "passwd",
    "credential",
    "credentials",
    "secret",
    "secrets",
    "token",
    "tokens",
    "crypto",
    "cryptography",
    "cipher",
    "encrypt",
    "decrypt",
    "signature",
    "hmac",
    "hashlib",
    "jwt",
    "ssl",
    "tls",
    "certificate",
    "permission",
    "permissions",
    "policy",
    "policies",
    "security",
    "sandbox",
    "sanitize",
    "privilege",
    "acl",
    "rbac",
    "guard",
    "safety",
    "audit",
    "supervisor",
    "evolve",
    "belljar",
    "killswitch",
    "approve",
    "approval",
];

/// The risk of a change, and why.
#[must_use]
pub fn assess(
    changes: &[Change<'_>],
    config: &Config,
    claimed: Option<Risk>,
) -> (Risk, Vec<Reason>) {
    let critical: Vec<Glob> = config
        .critical
        .iter()
        .map(|pattern| Glob::new(pattern))
        .collect();
    let high: Vec<Glob> = config
        .high
        .iter()
        .map(|pattern| Glob::new(pattern))
        .collect();
    let mut risk = Risk::Low;
    let mut reasons = Vec::new();
    let mut add = |own: Risk, code: &str, path: Option<&TreePath>, message: &str| {
        risk = risk.max(own);
        reasons.push(Reason {
            code: code.to_owned(),
            stage: "risk".to_owned(),
            at: path.map(ToString::to_string),
            message: format!("{own}: {message}"),
            hint: None,
        });
    };
    for change in changes {
        let path = Some(change.path);
        if let Some(glob) = glob::first(&critical, change.path) {
            add(
                Risk::Critical,
                "declared",
                path,
                &format!("evolve.toml says so ({})", glob.as_str()),
            );
        } else if let Some(glob) = glob::first(&high, change.path) {
            add(
                Risk::High,
                "declared",
                path,
                &format!("evolve.toml says so ({})", glob.as_str()),
            );
        }
        let (own, code, message) = of_file(change);
        add(own, code, path, message);
    }
    if let Some(claimed) = claimed.filter(|claimed| *claimed > risk) {
        let message = "its author says so";
        risk = claimed;
        reasons.push(Reason {
            code: "claimed".into(),
            stage: "risk".into(),
            at: None,
            message: format!("{claimed}: {message}"),
            hint: None,
        });
    }
    (risk, reasons)
}

fn of_file(change: &Change<'_>) -> (Risk, &'static str, &'static str) {
    let path = change.path;
    let spoken = words(path.as_str()).any(|word| SECURITY.contains(&word.as_str()));
    let prose = matches!(path.extension(), Some("md" | "rst"))
        || matches!(path.name(), "LICENSE" | "NOTICE" | "AUTHORS");
    if spoken && !prose {
        return (
            Risk::Critical,
            "security",
            "its name says that it keeps the agent safe",
        );
    }
    if prose {
        return (Risk::Low, "documentation", "words for people");
    }
    let Some(lang) = Lang::of(path) else {
        return (
            Risk::High,
            "opaque",
            "what it means can't be told from its structure",
        );
    };
    let text = |entry: Option<&Entry>| entry.and_then(Entry::text).map(str::to_owned);
    let (before, after) = (text(change.before), text(change.after));
    let (Ok(old), Ok(new)) = (
        lang.parse(before.as_deref().unwrap_or_default()),
        lang.parse(after.as_deref().unwrap_or_default()),
    ) else {
        return (Risk::High, "opaque", "it can't be read");
    };
    if before.is_some()
        && after.is_some()
        && outline(&old, Leave::Comments) == outline(&new, Leave::Comments)
    {
        return match directives(&old) == directives(&new) {
            true => (Risk::Low, "comments", "only comments differ"),
            false => (
                Risk::High,
                "directive_comment",
                "only comments differ, and they give orders to tools",
            ),
        };
    }
    if touched_names(&old, &new)
        .any(|name| words(&name).any(|word| SECURITY.contains(&word.as_str())))
    {
        return (
            Risk::Critical,
            "security",
            "names in it say that it keeps the agent safe",
        );
    }
    if before.is_some()
        && after.is_some()
        && outline(&old, Leave::CommentsAndLogging) == outline(&new, Leave::CommentsAndLogging)
    {
        return (Risk::Low, "logging", "only messages differ");
    }
    match (before.is_some(), after.is_some()) {
        (false, _) => (Risk::Medium, "feature", "a new file"),
        (_, false) => (Risk::High, "removed", "a file goes"),
        _ if keeps_bodies(&old, &new) => (
            Risk::Medium,
            "feature",
            "what there was is as it was, but for what is added around it",
        ),
        _ => (Risk::High, "core_logic", "what the agent does is changed"),
    }
}

/// The words of a name: `userAuth_token` is user, auth, token.
fn words(text: &str) -> impl Iterator<Item = String> {
    let mut all = vec![String::new()];
    let mut was_lower = false;
    for c in text.chars() {
        if !c.is_alphanumeric() || (c.is_uppercase() && was_lower) {
            all.push(String::new());
        }
        if c.is_alphanumeric()
            && let Some(last) = all.last_mut()
        {
            last.extend(c.to_lowercase());
        }
        was_lower = c.is_lowercase();
    }
    all.into_iter().filter(|word| !word.is_empty())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Leave {
    Comments,
    CommentsAndLogging,
}

/// The tree as a list: depth, kind, and the text of leaves. Two texts with the same list do the same.
fn outline(ast: &Ast, leave: Leave) -> Vec<(usize, String, String)> {
    let mut rows = Vec::new();
    let mut waiting = vec![(ast.root(), 0)];
    while let Some((node, depth)) = waiting.pop() {
        if is_comment(&node) || (leave == Leave::CommentsAndLogging && is_logging(&node)) {
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

/// Names that are used more or less often than before.
fn touched_names(old: &Ast, new: &Ast) -> impl Iterator<Item = String> {
    let mut counts: std::collections::BTreeMap<String, i64> = std::collections::BTreeMap::new();
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
fn keeps_bodies(old: &Ast, new: &Ast) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scope::changes;
    use crate::tree::Tree;

    fn risk(file: &str, before: &str, after: &str, claimed: Option<Risk>) -> (Risk, String) {
        let tree = |text: &str| {
            let mut tree = Tree::default();
            if !text.is_empty() {
                tree.put(TreePath::new(file).unwrap(), Entry::file(text));
            }
            tree
        };
        let (base, candidate) = (tree(before), tree(after));
        let (risk, reasons) = assess(&changes(&base, &candidate), &Config::default(), claimed);
        (
            risk,
            reasons
                .last()
                .map(|reason| reason.code.clone())
                .unwrap_or_default(),
        )
    }

    #[test]
    fn the_matrix() {
        let code = "import logging\nlog = logging.getLogger()\n\ndef f(x):\n    return x + 1\n";
        for (file, before, after, expected, why) in [
            (
                "a.py",
                code,
                "import logging\nlog = logging.getLogger()\n\n# more\ndef f(x):  # less\n    return x + 1\n",
                Risk::Low,
                "comments",
            ),
            (
                "a.py",
                code,
                "import logging\nlog = logging.getLogger()\n\ndef f(x):\n    return x + 1  # noqa\n",
                Risk::High,
                "directive_comment",
            ),
            (
                "a.py",
                code,
                "import logging\nlog = logging.getLogger()\n\ndef f(x):\n    log.info('f', x)\n    return x + 1\n",
                Risk::Low,
                "logging",
            ),
            (
                "a.py",
                code,
                "import logging\nlog = logging.getLogger()\n\ndef f(x):\n    log.info(g(x))\n    return x + 1\n",
                Risk::High,
                "core_logic",
            ),
            (
                "a.py",
                code,
                "import logging\nfrom functools import cache\nlog = logging.getLogger()\n\n@cache\ndef f(x):\n    return x + 1\n",
                Risk::Medium,
                "feature",
            ),
            (
                "a.py",
                code,
                &format!("{code}\ndef g(x):\n    return x\n"),
                Risk::Medium,
                "feature",
            ),
            (
                "a.py",
                code,
                "import logging\nlog = logging.getLogger()\n\ndef f(x):\n    return x + 2\n",
                Risk::High,
                "core_logic",
            ),
            (
                "a.py",
                code,
                &format!("{code}f(1)\n"),
                Risk::High,
                "core_logic",
            ),
            ("b.py", "", "def h(): pass\n", Risk::Medium, "feature"),
            ("b.py", code, "", Risk::High, "removed"),
            (
                "auth/a.py",
                code,
                &format!("{code}\n\ndef g(): pass\n"),
                Risk::Critical,
                "security",
            ),
            (
                "a.py",
                code,
                &format!("{code}\ndef check_password(p):\n    return True\n"),
                Risk::Critical,
                "security",
            ),
            (
                "a.py",
                code,
                &format!("import hmac\n{code}"),
                Risk::Critical,
                "security",
            ),
            ("README.md", "a\n", "b\n", Risk::Low, "documentation"),
            ("data.json", "1\n", "2\n", Risk::High, "opaque"),
            (
                "a.rs",
                "fn f() -> u8 {\n    1\n}\n",
                "// c\nfn f() -> u8 {\n    1\n}\n",
                Risk::Low,
                "comments",
            ),
            (
                "a.ts",
                "const a = 1;\n",
                "const a = 1; // c\n",
                Risk::Low,
                "comments",
            ),
            (
                "a.js",
                "function f() { return 1 }\n",
                "function f() { return 2 }\n",
                Risk::High,
                "core_logic",
            ),
        ] {
            assert_eq!(
                risk(file, before, after, None),
                (expected, why.to_owned()),
                "{file}: {after}"
            );
        }
    }

    #[test]
    fn an_author_can_only_raise_it() {
        let (before, after) = ("def f():\n    return 1\n", "def f():\n    return 2\n");
        assert_eq!(risk("a.py", before, after, Some(Risk::Low)).0, Risk::High);
        assert_eq!(
            risk("a.py", before, after, Some(Risk::Critical)).0,
            Risk::Critical
        );
        assert_eq!(
            risk("README.md", "a\n", "b\n", Some(Risk::High)),
            (Risk::High, "claimed".to_owned())
        );
    }
}
