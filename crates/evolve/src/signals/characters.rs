//! Characters that people can't see, that turn a line around, or where a language ends a line and an editor does not.

use std::sync::LazyLock;

use crate::lang::{Ast, AstNode, Lang, is_comment};
use crate::path::is_invisible;

/// Why a line is refused: a stable word, the line, and what to say.
pub(super) type Odd = (&'static str, usize, String);

/// What stands in a text and may not, with the whole line, so that only the very same line is known from before.
pub(super) fn odd_lines(text: &str) -> Vec<(usize, String)> {
    let is_odd = |c: char| is_invisible(c) || (c.is_control() && c != '\t');
    // `lines` takes `\r\n` off, and no other carriage return.
    text.lines()
        .enumerate()
        .filter(|(_, line)| line.contains(is_odd))
        .map(|(at, line)| (at + 1, line.to_owned()))
        .collect()
}

/// What to say of such a line.
pub(super) fn told(line: &str) -> String {
    let is_odd = |c: &char| is_invisible(*c) || (c.is_control() && *c != '\t');
    let first = line.chars().find(is_odd).unwrap_or_default();
    let code = u32::from(first);
    match first {
        '\r' => format!(
            "U+{code:04X} without a line feed: languages end the line there, so that what follows is no comment"
        ),
        '\u{c}' | '\u{b}' => {
            format!("U+{code:04X} is read differently by languages and by editors")
        }
        _ => format!("U+{code:04X} can't be seen, or turns the line around"),
    }
}

/// What is read differently by the language and by who looks at it, however old it is: a changed file has none of it.
pub(super) fn ambiguous(lang: Lang, ast: &Ast, text: &str) -> Vec<Odd> {
    let mut all = Vec::new();
    let bare = |line: &str| line.contains('\r');
    for (at, _) in text.lines().enumerate().filter(|(_, line)| bare(line)) {
        let message = told("\r");
        all.push(("line_end", at + 1, message));
    }
    match lang {
        Lang::Python => all.extend(encoding(text)),
        Lang::JavaScript | Lang::TypeScript | Lang::Tsx => all.extend(html_comments(ast, text)),
        Lang::Rust => {}
    }
    all
}

/// The encoding that a Python file says it has (PEP 263): only UTF-8 is what everybody else reads.
fn encoding(text: &str) -> Option<Odd> {
    // The first line counts, and the second if the first has no code.
    for (at, line) in text.split(['\n', '\r', '\u{c}']).take(3).enumerate() {
        let line = line.trim_start_matches([' ', '\t', '\u{c}']);
        let Some(comment) = line.strip_prefix('#') else {
            if line.is_empty() {
                continue;
            }
            break;
        };
        let Some(name) = cookie(comment) else {
            continue;
        };
        let plain = name.to_ascii_lowercase().replace('_', "-");
        if !matches!(
            plain.as_str(),
            "utf-8" | "utf8" | "utf-8-sig" | "ascii" | "us-ascii"
        ) {
            let message =
                format!("the file says that it is in {name}, in which it is another text");
            return Some(("encoding", at + 1, message));
        }
    }
    None
}

/// `coding[:=]\s*([-\w.]+)`
fn cookie(comment: &str) -> Option<&str> {
    comment.match_indices("coding").find_map(|(at, word)| {
        let rest = comment
            .get(at + word.len()..)?
            .strip_prefix([':', '='])?
            .trim_start_matches([' ', '\t']);
        let end = rest
            .find(|c: char| !(c.is_alphanumeric() || matches!(c, '-' | '_' | '.')))
            .unwrap_or(rest.len());
        rest.get(..end).filter(|name| !name.is_empty())
    })
}

/// `<!--` and a `-->` at the beginning of a line are comments in scripts, and operators in modules.
fn html_comments(ast: &Ast, text: &str) -> Vec<Odd> {
    static KINDS: LazyLock<Vec<&str>> = LazyLock::new(|| {
        vec![
            "string",
            "template_string",
            "regex",
            "jsx_text",
            "string_fragment",
        ]
    });
    let root = ast.root();
    let mut code = text.as_bytes().to_vec();
    let is_text = |node: &AstNode<'_>| KINDS.contains(&&*node.kind()) || is_comment(node);
    for node in root.dfs().filter(is_text) {
        if let Some(part) = code.get_mut(node.range()) {
            part.iter_mut()
                .filter(|byte| **byte != b'\n')
                .for_each(|byte| *byte = b' ');
        }
    }
    let code = String::from_utf8_lossy(&code);
    let odd = |line: &str| line.contains("<!--") || line.trim_start().starts_with("-->");
    let lines = code.lines().enumerate().filter(|(_, line)| odd(line));
    lines
        .map(|(at, _)| {
            let message = "a comment in a script and code in a module: write it with //";
            ("html_comment", at + 1, message.to_owned())
        })
        .collect()
}
