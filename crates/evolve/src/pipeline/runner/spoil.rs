//! Rust's tests, changed in their source: some so that they must fail, and those inside a file put back as they were.

use std::ops::Range;

use crate::lang::{AstNode, Lang};

/// A file in which the tests that are due must fail; nothing if there are none. A literal that a test compares with becomes another one,
/// or the test panics when it is through.
pub(super) fn spoiled(text: &str, is_due: &dyn Fn(&str) -> bool) -> Option<String> {
    let ast = Lang::Rust.parse(text).ok()?;
    let root = ast.root();
    let mut edits: Vec<(Range<usize>, String)> = Vec::new();
    for node in root.dfs().filter(|node| node.kind() == "function_item") {
        let attributes = attributes(&node);
        let name = node.field("name").map(|name| name.text().into_owned());
        let (Some(name), Some(body)) = (name, node.field("body")) else {
            continue;
        };
        if attributes.iter().any(|text| is_test(text)) && is_due(&name) {
            let panics = attributes
                .iter()
                .any(|text| last_name(text) == "should_panic");
            edits.push(match panics {
                true => (body.range(), "{}".to_owned()),
                false => spoil(&node, &body),
            });
        }
    }
    (!edits.is_empty()).then(|| edited(text, edits))
}

fn spoil(function: &AstNode<'_>, body: &AstNode<'_>) -> (Range<usize>, String) {
    let macros = body.dfs().filter(|node| node.kind() == "macro_invocation");
    let literal = macros
        .filter(|node| {
            node.field("macro")
                .is_some_and(|name| name.text() == "assert_eq")
        })
        .find_map(|node| compared_literal(&node));
    if let Some(literal) = literal {
        return literal;
    }
    let returns = function
        .field("return_type")
        .map(|kind| format!("-> {} ", kind.text()))
        .unwrap_or_default();
    let is_async = function
        .children()
        .any(|part| part.kind() == "function_modifiers" && part.text().contains("async"));
    let inner = body.text();
    let text = match is_async {
        true => format!("{{ let _ = async {inner}.await; panic!() }}"),
        false => format!("{{ let _ = (|| {returns}{inner})(); panic!() }}"),
    };
    (body.range(), text)
}

/// The first argument of a comparison that is a literal and nothing else, and another one in its place.
fn compared_literal(node: &AstNode<'_>) -> Option<(Range<usize>, String)> {
    let arguments = node.children().find(|part| part.kind() == "token_tree")?;
    let mut alone: Vec<AstNode<'_>> = Vec::new();
    let mut found = Vec::new();
    for part in arguments.children() {
        match &*part.text() {
            "(" | ")" | "[" | "]" | "{" | "}" | "," => {
                if let [literal] = alone.as_slice() {
                    found.push(literal.clone());
                }
                alone.clear();
            }
            _ => alone.push(part),
        }
    }
    found.into_iter().take(2).find_map(|literal| {
        let text = literal.text().into_owned();
        let other = match &*literal.kind() {
            "integer_literal" => other_number(&text)?,
            "boolean_literal" => (text != "true").to_string(),
            "string_literal" if text.starts_with('"') => {
                format!("{}~\"", text.strip_suffix('"')?)
            }
            _ => return None,
        };
        Some((literal.range(), other))
    })
}

/// `17` for `16`, `0x1e` for `0x1f`; the type at its end stays.
fn other_number(text: &str) -> Option<String> {
    let is_hex = text.starts_with("0x");
    let end = match is_hex {
        true => text.len(),
        false => text.find(['i', 'u']).unwrap_or(text.len()),
    };
    let (digits, kind) = text.split_at_checked(end)?;
    let last = digits.chars().next_back()?;
    let other = if last == '0' { '1' } else { '0' };
    let start = digits.strip_suffix(last)?;
    // `1u8` in hexadecimal digits is not told apart from a type.
    (!is_hex || !text.contains(['i', 'u'])).then(|| format!("{start}{other}{kind}"))
}

/// A file with the tests inside it as another version of it has them.
pub(super) fn with_tests_of(base: &str, text: &str) -> Option<String> {
    let (old, new) = (tests_inside(base)?, tests_inside(text)?);
    let texts = |of: &str, ranges: &[Range<usize>]| -> Vec<String> {
        ranges
            .iter()
            .filter_map(|range| of.get(range.clone()).map(str::to_owned))
            .collect()
    };
    let wanted = texts(base, &old);
    if texts(text, &new) == wanted {
        return None;
    }
    let gone = new.into_iter().map(|range| (range, String::new()));
    let mut made = edited(text, gone.collect());
    for test in wanted {
        made.push('\n');
        made.push_str(&test);
        made.push('\n');
    }
    Some(made)
}

/// Where the tests at the top of a file are, with their attributes.
fn tests_inside(text: &str) -> Option<Vec<Range<usize>>> {
    let ast = Lang::Rust.parse(text).ok()?;
    let root = ast.root();
    let is_about_tests = |node: &AstNode<'_>| {
        let only = |text: &String| last_name(text) == "cfg" && has_word(text, "test");
        attributes(node)
            .iter()
            .any(|text| is_test(text) || only(text))
    };
    let all = root
        .children()
        .filter(is_about_tests)
        .filter(|node| node.kind() != "attribute_item");
    Some(all.map(|node| start(&node)..node.range().end).collect())
}

/// Where the attributes before an item begin.
fn start(node: &AstNode<'_>) -> usize {
    let mut first = node.range().start;
    let mut before = node.prev();
    while let Some(part) = before.filter(|part| part.kind() == "attribute_item") {
        first = part.range().start;
        before = part.prev();
    }
    first
}

/// The attributes before an item, as they are written.
fn attributes(node: &AstNode<'_>) -> Vec<String> {
    let mut all = Vec::new();
    let mut before = node.prev();
    while let Some(part) =
        before.filter(|part| part.kind() == "attribute_item" || crate::lang::is_comment(part))
    {
        if part.kind() == "attribute_item" {
            all.push(part.text().into_owned());
        }
        before = part.prev();
    }
    all
}

/// `test` of `#[tokio::test(…)]`.
fn last_name(attribute: &str) -> &str {
    let inside = attribute.trim_start_matches(['#', '[', ' ']);
    let path = inside.split(['(', ']', '=']).next().unwrap_or_default();
    path.rsplit("::").next().unwrap_or_default().trim()
}

fn is_test(attribute: &str) -> bool {
    last_name(attribute) == "test"
}

fn has_word(text: &str, word: &str) -> bool {
    text.split(|c: char| !(c.is_alphanumeric() || c == '_'))
        .any(|part| part == word)
}

/// A text with parts of it replaced.
fn edited(text: &str, mut edits: Vec<(Range<usize>, String)>) -> String {
    edits.sort_by_key(|(range, _)| range.start);
    let mut made = String::with_capacity(text.len() + 64);
    let mut at = 0;
    for (range, other) in edits {
        // One inside another is gone with it.
        if range.start < at {
            continue;
        }
        made.push_str(text.get(at..range.start).unwrap_or_default());
        made.push_str(&other);
        at = range.end;
    }
    made.push_str(text.get(at..).unwrap_or_default());
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(before: &str, after: &str) {
        let made = spoiled(before, &|_| true).unwrap_or_else(|| before.to_owned());
        assert_eq!(made, after);
        assert!(Lang::Rust.is_valid(&made), "{made}");
    }

    #[test]
    fn tests_that_are_due_must_fail_and_others_are_as_they_were() {
        check(
            "#[test]\nfn a() { assert_eq!(f(2, 3), 16u8); }\n",
            "#[test]\nfn a() { assert_eq!(f(2, 3), 10u8); }\n",
        );
        check(
            "#[test]\nfn a() { assert_eq!(\"x\", g()); }\n",
            "#[test]\nfn a() { assert_eq!(\"x~\", g()); }\n",
        );
        check(
            "#[test]\nfn a() { assert_eq!(0xf0, h(1)); assert_eq!(1, 1); }\n",
            "#[test]\nfn a() { assert_eq!(0xf1, h(1)); assert_eq!(1, 1); }\n",
        );
        check(
            "#[test]\nfn a() -> Result<(), E> { f()?; Ok(()) }\n",
            "#[test]\nfn a() -> Result<(), E> { let _ = (|| -> Result<(), E> { f()?; Ok(()) })(); panic!() }\n",
        );
        check(
            "#[tokio::test]\nasync fn a() { f().await }\n",
            "#[tokio::test]\nasync fn a() { let _ = async { f().await }.await; panic!() }\n",
        );
        check(
            "#[test]\n#[should_panic]\nfn a() { f() }\n",
            "#[test]\n#[should_panic]\nfn a() {}\n",
        );
        check(
            "fn a() { assert_eq!(1, 1); }\n",
            "fn a() { assert_eq!(1, 1); }\n",
        );
        assert_eq!(spoiled("#[test]\nfn a() {}\n", &|name| name != "a"), None);
    }

    #[test]
    fn tests_inside_a_file_are_those_of_before() {
        let base =
            "fn f() {}\n#[cfg(test)]\nmod tests {\n    #[test]\n    fn a() { assert!(f()) }\n}\n";
        let weak = "fn f() { 1 }\n#[cfg(test)]\nmod tests {\n    #[test]\n    fn a() {}\n}\n";
        let made = with_tests_of(base, weak).unwrap();
        assert!(
            made.contains("fn f() { 1 }") && made.contains("assert!(f())"),
            "{made}"
        );
        assert!(
            !made.contains("fn a() {}") && Lang::Rust.is_valid(&made),
            "{made}"
        );
        // Gone ones are back; new ones, and code that is there for tests alone, are not there.
        assert!(
            with_tests_of(base, "fn f() { 1 }\n")
                .unwrap()
                .contains("assert!(f())")
        );
        let cheat =
            format!("{base}#[cfg(test)]\nfn answer() -> u32 {{ 16 }}\n#[test]\nfn b() {{}}\n");
        let made = with_tests_of(base, &cheat).unwrap();
        assert!(!made.contains("answer") && !made.contains("fn b"), "{made}");
        assert_eq!(
            with_tests_of(base, &base.replace("fn f() {}", "fn f() { 2 }")),
            None
        );
    }
}
