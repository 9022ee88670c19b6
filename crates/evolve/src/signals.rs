//! Stage 2, the part that needs no box: what the text itself gives away. It is triage; the box is the boundary.

use std::collections::BTreeMap;

use unicode_normalization::UnicodeNormalization as _;

use crate::config::Config;
use crate::lang::{Ast, AstNode, Lang, is_comment, is_name};
use crate::path::TreePath;
use crate::proposal::{Reason, Risk};
use crate::scope::Change;
use crate::tree::Entry;

mod characters;
mod names;
mod patched;

use names::{
    DENIED_JAVASCRIPT, DENIED_PYTHON, DENIED_RUST, DIRECTIVES, RAISED, SWITCHES, denied_module,
    tells_who_calls,
};
use patched::patches;

pub(crate) use names::{denied_path, is_switch_path};

/// This stage's name.
pub const STAGE: &str = "2-static";

/// What was found in the text.
#[derive(Clone, Debug)]
pub struct Signals {
    /// Why it is refused.
    pub reasons: Vec<Reason>,
    /// The least risk it has.
    pub risk: Risk,
    /// What made it so.
    pub raised: Vec<Reason>,
}

/// Looks at every changed file.
#[must_use]
pub fn judge(changes: &[Change<'_>], config: &Config) -> Signals {
    let mut signals = Signals {
        reasons: Vec::new(),
        risk: Risk::Low,
        raised: Vec::new(),
    };
    for change in changes {
        let Some(after) = change.after.and_then(Entry::text) else {
            continue;
        };
        let before = change.before.and_then(Entry::text).unwrap_or_default();
        signals.characters(change.path, before, after);
        let Some(lang) = Lang::of(change.path) else {
            continue;
        };
        let Ok(new) = lang.parse(after) else {
            signals.refuse("syntax", change.path, 1, "it can't be read".into());
            continue;
        };
        if let Some(line) = crate::lang::too_deep(&new) {
            signals.refuse("nesting", change.path, line, "it is nested too deep".into());
            continue;
        }
        if let Some(line) = crate::lang::first_error(&new) {
            signals.refuse("syntax", change.path, line, "it is not valid".into());
        }
        let Ok(old) = lang.parse(before) else {
            continue;
        };
        signals.ambiguous(change.path, lang, &new, after);
        signals.identifiers(change.path, &old, &new);
        signals.names(change.path, lang, &old, &new, config);
        signals.patched_modules(change.path, lang, &old, &new);
        signals.test_only(change.path, lang, &old, &new);
        for (line, comment) in added(directives(&old), directives(&new)) {
            signals.raise(
                "directive_comment",
                change.path,
                line,
                format!("a comment gives an order to a tool: {comment:?}"),
            );
        }
    }
    signals
}

impl Signals {
    fn refuse(&mut self, code: &str, path: &TreePath, line: usize, message: String) {
        self.reasons.push(reason(code, path, line, message));
    }

    fn raise(&mut self, code: &str, path: &TreePath, line: usize, message: String) {
        self.risk = self.risk.max(Risk::High);
        self.raised.push(reason(code, path, line, message));
    }

    /// Characters that nobody sees, that turn a line around, or that end one. A line that was there is as it was.
    fn characters(&mut self, path: &TreePath, before: &str, after: &str) {
        let (old, new) = (characters::odd_lines(before), characters::odd_lines(after));
        for (line, text) in added(old, new) {
            self.refuse("invisible_character", path, line, characters::told(&text));
        }
    }

    /// What the language reads otherwise than everybody else: it is not in any file that changes.
    fn ambiguous(&mut self, path: &TreePath, lang: Lang, ast: &Ast, text: &str) {
        for (code, line, message) in characters::ambiguous(lang, ast, text) {
            self.refuse(code, path, line, message);
            if let Some(last) = self.reasons.last_mut() {
                last.hint = Some("have somebody write the file anew by hand first".to_owned());
            }
        }
    }

    /// Code is ASCII outside of strings and comments: what looks alike is alike.
    fn identifiers(&mut self, path: &TreePath, old: &Ast, new: &Ast) {
        for (line, text) in added(foreign(old), foreign(new)) {
            let plain: String = text.nfkc().collect();
            let (code, message) = if plain == text {
                (
                    "non_ascii_identifier",
                    format!("{text:?} has letters that may look like others"),
                )
            } else {
                ("nfkc", format!("{text:?} is read as {plain:?}"))
            };
            self.refuse(code, path, line, message);
        }
    }

    fn names(&mut self, path: &TreePath, lang: Lang, old: &Ast, new: &Ast, config: &Config) {
        let denied = match lang {
            Lang::Python => DENIED_PYTHON,
            Lang::Rust => DENIED_RUST,
            Lang::JavaScript | Lang::TypeScript | Lang::Tsx => DENIED_JAVASCRIPT,
        };
        for (line, name) in added(all_names(old), all_names(new)) {
            let plain: String = name.nfkc().collect();
            if config.allow_names.contains(&plain) {
                continue;
            }
            let module = match lang {
                Lang::JavaScript | Lang::TypeScript | Lang::Tsx => denied_module(&plain),
                Lang::Python | Lang::Rust => None,
            };
            if denied.contains(&plain.as_str()) || config.deny_names.contains(&plain) {
                self.refuse(
                    "denied_identifier",
                    path,
                    line,
                    format!("{plain} may not be brought in"),
                );
            } else if let Some(module) = module
                && !config.allow_names.iter().any(|name| name == module)
            {
                let message = format!("{module} may not be brought in ({plain})");
                self.refuse("denied_identifier", path, line, message);
            } else if RAISED.contains(&plain.as_str()) {
                self.raise(
                    "risky_identifier",
                    path,
                    line,
                    format!("{plain} is brought in"),
                );
            } else if SWITCHES.contains(&plain.as_str()) || tells_who_calls(lang, &plain) {
                self.raise("behaviour_switch", path, line, switch(&plain));
            }
        }
    }

    /// `#[cfg(test)]`, `cfg!(test)`: code that is another one while it is tested, and tests of the proposal's own.
    fn test_only(&mut self, path: &TreePath, lang: Lang, old: &Ast, new: &Ast) {
        if lang != Lang::Rust {
            return;
        }
        for (line, text) in added(test_conditions(old), test_conditions(new)) {
            self.refuse(
                "test_only",
                path,
                line,
                format!("{text} makes it another one under test; tests are added by hand"),
            );
        }
    }

    /// `time.time = …`: what others use is changed under them.
    fn patched_modules(&mut self, path: &TreePath, lang: Lang, old: &Ast, new: &Ast) {
        if lang != Lang::Python {
            return;
        }
        for (line, text) in added(patches(old), patches(new)) {
            self.refuse(
                "patched_module",
                path,
                line,
                format!("{text} is another module's"),
            );
        }
    }
}

/// A name as the language's own parser sees it: denied, or why it is riskier than it looks.
pub(crate) fn of_python_name(name: &str, config: &Config) -> Option<(Risk, &'static str, String)> {
    let plain: String = name.nfkc().collect();
    if config.allow_names.contains(&plain) {
        None
    } else if DENIED_PYTHON.contains(&plain.as_str()) || config.deny_names.contains(&plain) {
        let message = format!("{plain} may not be brought in");
        Some((Risk::Critical, "denied_identifier", message))
    } else if RAISED.contains(&plain.as_str()) {
        Some((
            Risk::High,
            "risky_identifier",
            format!("{plain} is brought in"),
        ))
    } else if SWITCHES.contains(&plain.as_str()) {
        Some((Risk::High, "behaviour_switch", switch(&plain)))
    } else {
        None
    }
}

fn switch(name: &str) -> String {
    format!("{name} can tell a test from the real thing")
}

fn reason(code: &str, path: &TreePath, line: usize, message: String) -> Reason {
    Reason {
        code: code.to_owned(),
        stage: STAGE.to_owned(),
        at: Some(format!("{path}:{line}")),
        message,
        hint: None,
    }
}

/// What there is more of after than before, with its lines.
fn added(before: Vec<(usize, String)>, after: Vec<(usize, String)>) -> Vec<(usize, String)> {
    let mut known: BTreeMap<String, usize> = BTreeMap::new();
    for (_, text) in before {
        *known.entry(text).or_default() += 1;
    }
    let is_new = |(_, text): &(usize, String)| match known.get_mut(text) {
        Some(left) if *left > 0 => {
            *left -= 1;
            false
        }
        _ => true,
    };
    after.into_iter().filter(is_new).collect()
}

fn line(node: &AstNode<'_>) -> usize {
    node.start_pos().line() + 1
}

/// Leaves outside of strings and comments that are not ASCII.
fn foreign(ast: &Ast) -> Vec<(usize, String)> {
    let root = ast.root();
    let is_free = |node: &AstNode<'_>| {
        !std::iter::once(node.clone())
            .chain(node.ancestors())
            .any(|above| is_comment(&above) || is_text(&above))
    };
    let leaves = root
        .dfs()
        .filter(|node| node.is_leaf() && !node.text().is_ascii() && is_free(node));
    leaves
        .map(|node| (line(&node), node.text().into_owned()))
        .collect()
}

fn is_text(node: &AstNode<'_>) -> bool {
    let kind = node.kind();
    // What stands between braces in a string is code again, but for what its own nodes say.
    matches!(
        &*kind,
        "string_content"
            | "string_fragment"
            | "escape_sequence"
            | "string_literal"
            | "char_literal"
            | "raw_string_literal"
            | "jsx_text"
            | "regex_pattern"
            | "doc_comment"
    )
}

/// Every name that is used, and the names inside strings that are a single word: `getattr(os, "system")`.
fn all_names(ast: &Ast) -> Vec<(usize, String)> {
    let root = ast.root();
    let mut names = Vec::new();
    for node in root.dfs() {
        if is_name(&node) || matches!(&*node.kind(), "string_content" | "string_fragment") {
            let text = node.text();
            // Whatever else stands around it.
            for word in ["PYTEST_CURRENT_TEST", "PYTEST_VERSION"] {
                if text.contains(word) && text != word {
                    names.push((line(&node), word.to_owned()));
                }
            }
            // `vm` and `node:vm` are the same module.
            if node.kind() == "string_fragment" && names_a_module(&node) {
                let module = text.strip_prefix("node:").unwrap_or(&text);
                names.push((line(&node), format!("node:{module}")));
            }
            names.push((line(&node), text.into_owned()));
        } else if node.kind() == "macro_invocation"
            && node
                .field("macro")
                .is_some_and(|name| name.text().rsplit("::").next() == Some("include"))
        {
            names.push((line(&node), "include!".to_owned()));
        } else if matches!(&*node.kind(), "unsafe_block" | "unsafe") {
            names.push((line(&node), "unsafe".to_owned()));
        } else if node.kind() == "exec_statement" {
            names.push((line(&node), "exec".to_owned()));
        }
    }
    names
}

/// Whether a script loads what a text names.
fn names_a_module(text: &AstNode<'_>) -> bool {
    text.ancestors().take(4).any(|above| match &*above.kind() {
        "import_statement" | "export_statement" => true,
        "call_expression" => above.field("function").is_some_and(|called| {
            let called = called.text();
            matches!(
                called.rsplit('.').next(),
                Some("require" | "import" | "getBuiltinModule")
            )
        }),
        _ => false,
    })
}

/// Attributes and macros of Rust that ask whether this is a test.
fn test_conditions(ast: &Ast) -> Vec<(usize, String)> {
    let root = ast.root();
    let asks = |node: &AstNode<'_>| {
        let is_condition = match &*node.kind() {
            "attribute_item" | "inner_attribute_item" => true,
            "macro_invocation" => node.field("macro").is_some_and(|name| name.text() == "cfg"),
            _ => false,
        };
        let is_about = |part: AstNode<'_>| matches!(&*part.text(), "test" | "debug_assertions");
        is_condition && node.dfs().any(is_about)
    };
    root.dfs()
        .filter(asks)
        .map(|node| (line(&node), node.text().into_owned()))
        .collect()
}

/// Comments that give orders to tools, with their lines.
pub(crate) fn directives(ast: &Ast) -> Vec<(usize, String)> {
    let root = ast.root();
    let is_order = |text: &str| {
        let plain: String = text.nfkc().flat_map(char::to_lowercase).collect();
        let tight = plain.split_whitespace().collect::<Vec<_>>().join(" ");
        DIRECTIVES.iter().any(|word| tight.contains(word))
    };
    let comments = root
        .dfs()
        .filter(|node| is_comment(node) && is_order(&node.text()));
    comments
        .map(|node| (line(&node), node.text().into_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scope::changes;
    use crate::tree::Tree;

    fn found(file: &str, before: &str, after: &str) -> (Vec<String>, Vec<String>) {
        let tree = |text: &str| {
            let mut tree = Tree::default();
            tree.put(TreePath::new(file).unwrap(), Entry::file(text));
            tree
        };
        let (base, candidate) = (tree(before), tree(after));
        let signals = judge(&changes(&base, &candidate), &Config::default());
        let codes = |reasons: Vec<Reason>| reasons.into_iter().map(|reason| reason.code).collect();
        (codes(signals.reasons), codes(signals.raised))
    }

    #[test]
    fn letters_that_look_like_others_and_lines_that_turn_around_are_refused() {
        for (after, code) in [
            ("x = \u{ff45}val\n", "nfkc"),
            ("def \u{430}dmin(): pass\n", "non_ascii_identifier"),
            ("x = 1  # \u{202e} evil\n", "invisible_character"),
            ("x = 'a\u{200b}b'\n", "invisible_character"),
            ("x = 'a\u{2066}b'\n", "invisible_character"),
        ] {
            let (reasons, _) = found("a.py", "x = 1\n", after);
            assert!(reasons.contains(&code.to_owned()), "{after:?}: {reasons:?}");
        }
        // Words of people are theirs.
        assert_eq!(found("a.py", "x = 1\n", "x = 'é'  # naïve\n").0, [""; 0]);
        assert!(
            found("a.js", "", "let \u{430} = 1;\n")
                .0
                .contains(&"non_ascii_identifier".to_owned())
        );
    }

    #[test]
    fn names_that_lead_around_the_judge_are_refused_however_they_are_spelled() {
        for after in [
            "eval('1')\n",
            "e = eval\ne('1')\n",
            "\u{ff45}val('1')\n",
            "getattr(os, 'system')('x')\n",
            "import os\nos._exit(0)\n",
            "from os import _exit as q\n",
            "__builtins__['x']\n",
            "import sys\nsys._getframe(1)\n",
            "import gc\ngc.get_objects()\n",
            "import importlib\n",
            "import pytest\n",
            "subprocess.run('x', shell=True)\n",
            "import time\ntime.perf_counter = lambda: 0\n",
            "import time as t\nt.time = 1\n",
            "().__class__.__bases__[0].__subclasses__()\n",
            "import os\nos.execl('/bin/sh', 'sh')\n",
            "import os\nos.spawnv(0, '/bin/sh', [])\n",
            "from os import posix_spawnp as run\n",
            "import _pickle\n",
            "import gc\ngc.get_referents(1)\n",
            "import types\ntypes.CodeType(1)\n",
            "import typing\ntyping.ForwardRef('f()')\n",
            "import threading\nthreading.settrace_all_threads(1)\n",
        ] {
            assert!(!found("a.py", "", after).0.is_empty(), "{after:?}");
        }
        for after in [
            "eval('1');\n",
            "import { execFileSync } from 'node:child_process';\n",
            "const { fork } = require('child_process');\n",
            "const { fork } = require(`node:child_process`);\n",
            "const vm = await import('node:vm');\n",
            "import { Session } from 'inspector/promises';\n",
            "export { start } from 'repl';\n",
            "process.getBuiltinModule('cluster');\n",
            "import('data:text/javascript,f()');\n",
            "Error.prepareStackTrace = (_, sites) => sites;\n",
        ] {
            let (reasons, _) = found("a.mjs", "", after);
            let is_it = |code: &String| code == "denied_identifier";
            assert!(
                !reasons.is_empty() && reasons.iter().all(is_it),
                "{after}: {reasons:?}"
            );
        }
        assert_eq!(
            found("a.mjs", "", "import { join } from 'node:path';\n").0,
            [""; 0]
        );
        for after in [
            "const A: &str = include_str!(\"../tests/a.rs\");\n",
            "const A: &[u8] = std::include_bytes!(\"../tests/a.rs\");\n",
            "include!(\"../tests/a.rs\");\n",
        ] {
            assert_eq!(found("a.rs", "", after).0, ["denied_identifier"], "{after}");
        }
        for (file, after) in [
            ("a.rs", "#[track_caller]\nfn f() {}\n"),
            ("a.js", "function f() { return f.caller; }\n"),
        ] {
            assert_eq!(found(file, "", after).1, ["behaviour_switch"], "{after}");
        }
        assert!(
            !found(
                "a.rs",
                "",
                &format!("fn f() {{ {} {{ g() }} }}\n", "unsafe")
            )
            .0
            .is_empty()
        );
        for after in [
            "#[cfg(test)]\nfn f() {}\n",
            "fn f() { if cfg!(test) { g() } }\n",
            "#[cfg_attr(not(test), path = \"x.rs\")]\nmod a;\n",
            "#[test]\nfn mine() {}\n",
        ] {
            assert_eq!(found("a.rs", "", after).0, ["test_only"], "{after}");
        }
        // What was there stays: it is the change that is judged.
        assert_eq!(
            found("a.py", "eval('1')\n", "eval('1')\nx = 1\n").0,
            [""; 0]
        );
        assert_eq!(
            found(
                "a.py",
                "",
                "class A:\n    def __eq__(self, other):\n        return True\n"
            )
            .1,
            ["risky_identifier"]
        );
    }

    #[test]
    fn what_is_nested_without_end_is_refused_at_once() {
        let deep = |open: &str, shut: &str| {
            let (open, shut) = (open.repeat(100_000), shut.repeat(100_000));
            format!("fn f() {{{open}{shut}}}\n")
        };
        assert_eq!(found("a.rs", "", &deep("{", "}")).0, ["nesting"]);
        let list = format!("x = {}{};\n", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(found("a.js", "", &list).0, ["nesting"]);
        let usual = format!("x = {}1{};\n", "[".repeat(100), "]".repeat(100));
        assert_eq!(found("a.js", "", &usual).0, [""; 0]);
    }

    #[test]
    fn a_comment_that_turns_a_tool_off_is_no_mere_comment() {
        for comment in [
            "# noqa",
            "#NOQA: S101",
            "# nosec",
            "# type: ignore",
            "#  pragma:  no cover",
            "# -*- coding: rot13 -*-",
            "# /// script",
            "# cython: boundscheck=False",
        ] {
            assert_eq!(
                found("a.py", "x = 1\n", &format!("x = 1  {comment}\n")).1,
                ["directive_comment"],
                "{comment}"
            );
        }
        for comment in [
            "// @ts-ignore",
            "/// <reference path=\"b.d.ts\" />",
            "/* @__PURE__ */",
            "/** @jsxImportSource evil */",
            "//# sourceMappingURL=x",
        ] {
            assert_eq!(
                found("a.ts", "f();\n", &format!("{comment}\nf();\n")).1,
                ["directive_comment"],
                "{comment}"
            );
        }
        assert_eq!(found("a.py", "x = 1\n", "x = 1  # one\n").1, [""; 0]);
    }
}
