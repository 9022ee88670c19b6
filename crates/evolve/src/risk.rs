//! How much can go wrong, computed from the change itself. Its author's claim can only raise it.

use crate::config::Config;
use crate::glob::{self, Glob};
use crate::lang::{Ast, Lang};
use crate::path::TreePath;
use crate::proposal::{Reason, Risk};
use crate::scope::Change;
use crate::tree::Entry;

mod shape;
mod words;

use shape::{Leave, outline};

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
        add(own, code, path, &message);
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

/// What is said to differ in a file, by its structure. Only the language itself can say that it is so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// Comments only.
    Comments,
    /// What it says, besides.
    Messages,
}

/// What a low risk of this file would rest on.
pub(crate) fn claim(change: &Change<'_>) -> Option<Claim> {
    match of_file(change).1 {
        "comments" => Some(Claim::Comments),
        "logging" => Some(Claim::Messages),
        _ => None,
    }
}

type Judged = (Risk, &'static str, String);

fn of_file(change: &Change<'_>) -> Judged {
    let judged = |risk, code, message: &str| (risk, code, message.to_owned());
    let path = change.path;
    if words::is_instruction(path) {
        let message = "it tells an agent what to do";
        return judged(Risk::Critical, "instructions", message);
    }
    if words::is_documentation(path) {
        return judged(Risk::Low, "documentation", "words for people");
    }
    if words::is_prose(path) {
        let message = "words that an agent may take for orders: they are not where people look for documentation";
        return judged(Risk::High, "prose", message);
    }
    if words::is_about_safety(path.as_str()) {
        let message = "its name says that it keeps the agent safe";
        return judged(Risk::Critical, "security", message);
    }
    let Some(lang) = Lang::of(path) else {
        let message = "what it means can't be told from its structure";
        return judged(Risk::High, "opaque", message);
    };
    let text = |entry: Option<&Entry>| entry.and_then(Entry::text).map(str::to_owned);
    let (before, after) = (text(change.before), text(change.after));
    let (Ok(old), Ok(new)) = (
        lang.parse(before.as_deref().unwrap_or_default()),
        lang.parse(after.as_deref().unwrap_or_default()),
    ) else {
        return judged(Risk::High, "opaque", "it can't be read");
    };
    match (before.is_some(), after.is_some()) {
        (true, true) => of_change(lang, &old, &new),
        (_, false) => {
            let safety = safety_name(&old, &new);
            safety.unwrap_or_else(|| judged(Risk::High, "removed", "a file goes"))
        }
        (false, true) => {
            if let Some(safety) = safety_name(&old, &new) {
                return safety;
            }
            if lang == Lang::Python && crate::imports::shadows_python(path) {
                let message =
                    "a new file that programs of this project import instead of Python's own";
                return judged(Risk::High, "shadow", message);
            }
            judged(Risk::Medium, "feature", "a new file")
        }
    }
}

fn safety_name(old: &Ast, new: &Ast) -> Option<Judged> {
    let name = shape::touched_names(old, new).find(|name| words::is_about_safety(name))?;
    let message = format!("names in it say that it keeps the agent safe: {name}");
    Some((Risk::Critical, "security", message))
}

fn of_change(lang: Lang, old: &Ast, new: &Ast) -> Judged {
    let judged = |risk, code, message: &str| (risk, code, message.to_owned());
    let is_same = |leave| outline(old, leave) == outline(new, leave);
    if is_same(Leave::Comments) {
        return match shape::orders(old) == shape::orders(new) {
            true => judged(Risk::Low, "comments", "only comments differ"),
            false => judged(
                Risk::High,
                "directive_comment",
                "only comments differ, and they give orders to tools",
            ),
        };
    }
    if let Some(safety) = safety_name(old, new) {
        return safety;
    }
    // In Rust, messages are macros, which are anybody's.
    if lang != Lang::Rust && is_same(Leave::CommentsAndLogging) {
        return judged(Risk::Low, "logging", "only messages differ");
    }
    if !shape::keeps_bodies(old, new) {
        return judged(Risk::High, "core_logic", "what the agent does is changed");
    }
    if let Some(decorator) = shape::strange_decorator(old, new) {
        let message = format!("{decorator} may make anything of what it stands before");
        return (Risk::High, "decorator", message);
    }
    if let Some(name) = shape::rebound(old, new) {
        let message = format!("{name} means something else than before");
        return (Risk::High, "rebound", message);
    }
    judged(
        Risk::Medium,
        "feature",
        "what there was is as it was, but for what is added around it",
    )
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
            ("notes.md", "a\n", "b\n", Risk::High, "prose"),
            ("AGENTS.md", "", "b\n", Risk::Critical, "instructions"),
            (
                "docs/prompts/a.md",
                "a\n",
                "b\n",
                Risk::Critical,
                "instructions",
            ),
            // What gives orders to tools is where it was, however many lines come before it.
            (
                "a.py",
                "x = 1  # noqa\n# fmt: off\ny = 2\n",
                "# more\nx = 1  # noqa\n# fmt: off\ny = 2\n",
                Risk::Low,
                "comments",
            ),
            (
                "a.py",
                "x = 1  # noqa\ny = 2\n",
                "x = 1\ny = 2  # noqa\n",
                Risk::High,
                "directive_comment",
            ),
            // Decorators and names that change what is there.
            (
                "a.py",
                code,
                "import logging\nlog = logging.getLogger()\n\n@(lambda f: lambda *a: 2)\ndef f(x):\n    return x + 1\n",
                Risk::High,
                "decorator",
            ),
            (
                "a.py",
                code,
                "import logging\nfrom mine import cache\nlog = logging.getLogger()\n\n@cache\ndef f(x):\n    return x + 1\n",
                Risk::High,
                "decorator",
            ),
            (
                "a.py",
                code,
                "import logging\nfrom functools import lru_cache\nlog = logging.getLogger()\n\n@lru_cache(maxsize=g())\ndef f(x):\n    return x + 1\n",
                Risk::High,
                "decorator",
            ),
            (
                "a.py",
                code,
                &format!("{code}\ndef f(x):\n    return 2\n"),
                Risk::High,
                "rebound",
            ),
            (
                "a.py",
                code,
                &format!("from mine import logging\n{code}"),
                Risk::High,
                "rebound",
            ),
            ("random.py", "", "def h(): pass\n", Risk::High, "shadow"),
            (
                "a.py",
                code,
                &format!("{code}\ndef count_tokens(words):\n    return 1\n"),
                Risk::Medium,
                "feature",
            ),
            (
                "a.rs",
                "/// a\nfn f() {}\n",
                "/// b\nfn f() {}\n",
                Risk::Medium,
                "feature",
            ),
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
