use super::*;
use crate::request;

const PY: &str = "\"\"\"Doc.\"\"\"\nimport os\n\n\ndef slow(n):\n    # why\n    return n + 1\n\n\nclass A:\n    def slow(self):\n        return 2\n";

fn tree(files: &[(&str, &str)]) -> Tree {
    let mut tree = Tree::default();
    for (name, text) in files {
        tree.put(TreePath::new(*name).unwrap(), Entry::file(*text));
    }
    tree
}

fn changed(file: &str, before: &str, modifications: &str) -> Result<String, EditError> {
    let yaml = format!(
        "description: d\ntarget_files: [{file}]\nrollback_plan: r\nmodifications:\n{modifications}\n"
    );
    let request =
        request::parse("request.yaml", yaml.as_bytes()).unwrap_or_else(|error| panic!("{error}"));
    let after = apply(&tree(&[(file, before)]), &request)?;
    let text = after
        .get(&TreePath::new(file).unwrap())
        .and_then(Entry::text);
    Ok(text.unwrap_or("(removed)").to_owned())
}

#[test]
fn typed_edits_change_what_they_name() {
    let after = changed(
        "a.py",
        PY,
        "  - add_import: {file: a.py, import: from functools import lru_cache}\n  - add_decorator: {file: a.py, function: slow, decorator: '@lru_cache(maxsize=8)'}\n  - replace_body: {file: a.py, function: A.slow, body: \"x = 1\\nreturn x\"}",
    )
    .unwrap();
    assert_eq!(
        after,
        "\"\"\"Doc.\"\"\"\nimport os\nfrom functools import lru_cache\n\n\n@lru_cache(maxsize=8)\ndef slow(n):\n    # why\n    return n + 1\n\n\nclass A:\n    def slow(self):\n        x = 1\n        return x\n"
    );
    let rust = "use std::fmt;\n\nimpl S {\n    fn f(&self) -> u8 {\n        1\n    }\n}\n";
    let after = changed("a.rs", rust, "  - replace_body: {file: a.rs, function: S.f, body: '2'}\n  - add_decorator: {file: a.rs, function: S.f, decorator: '#[inline]'}\n  - add_import: {file: a.rs, import: 'use std::io;'}").unwrap();
    assert_eq!(
        after,
        "use std::fmt;\nuse std::io;\n\nimpl S {\n    #[inline]\n    fn f(&self) -> u8 {\n        2\n    }\n}\n"
    );
    for file in ["a.js", "a.ts", "a.tsx"] {
        let after = changed(file, "function f(x) {\n  return g(x);\n}\n", &format!("  - rewrite: {{file: {file}, pattern: g($X), with: h($X)}}\n  - replace_body: {{file: {file}, function: f, body: 'return h(x) + 1;'}}")).unwrap();
        assert_eq!(after, "function f(x) {\n    return h(x) + 1;\n}\n");
    }
}

#[test]
fn a_new_body_keeps_what_says_what_a_function_is_for() {
    let text = "def f(x):\n    r\"\"\"Doubles.\n\n    >>> f(1)\n    2\n    \"\"\"\n    return x + x\n\n\ndef g(x):\n    return 'a'\n";
    let body = |function: &str, body: &str| {
        let request =
            format!("  - replace_body: {{file: a.py, function: {function}, body: \"{body}\"}}");
        changed("a.py", text, &request).unwrap()
    };
    assert_eq!(body("f", "return 2 * x"), text.replace("x + x", "2 * x"));
    let own = body("f", "'''Twice.'''\\nreturn x");
    assert!(
        own.contains("'''Twice.'''") && !own.contains("Doubles"),
        "{own}"
    );
    assert!(!body("g", "return x").contains("'a'"));
}

#[test]
fn an_edit_that_matches_nothing_or_more_than_it_says_fails() {
    for modification in [
        "  - add_import: {file: a.py, import: import os}",
        "  - add_import: {file: a.py, import: 'import re; exit()'}",
        "  - add_import: {file: a.py, import: 'exit()'}",
        "  - add_decorator: {file: a.py, function: nosuch, decorator: '@x'}",
        "  - add_decorator: {file: a.py, function: slow, decorator: 'exit()'}",
        "  - replace_body: {file: a.py, function: nosuch, body: pass}",
        "  - rename_symbol: {file: a.py, from: nosuch, to: y, count: 1}",
        "  - rename_symbol: {file: a.py, from: n, to: m, count: 1}",
        "  - rename_symbol: {file: a.py, from: n, to: os, count: 2}",
        "  - rewrite: {file: a.py, pattern: nosuch($X), with: y}",
        "  - rewrite: {file: a.py, pattern: return $X, with: return None}",
        "  - rewrite: {file: a.py, pattern: return 2, with: 'return ('}",
        "  - add_file: {file: a.py, text: x}",
        "  - rename_symbol: {file: a.py, from: n, to: m, count: 2}\n  - rename_symbol: {file: a.py, from: m, to: n, count: 2}",
    ] {
        assert!(changed("a.py", PY, modification).is_err(), "{modification}");
    }
    let both = "def f(): pass\ndef f(): pass\n";
    assert!(
        changed(
            "a.py",
            both,
            "  - replace_body: {file: a.py, function: f, body: return 1}"
        )
        .is_err()
    );
    assert_eq!(
        changed(
            "a.py",
            PY,
            "  - rename_symbol: {file: a.py, from: n, to: m, count: 2}"
        )
        .unwrap(),
        PY.replace("(n)", "(m)").replace("n + 1", "m + 1")
    );
}

#[test]
fn a_body_does_not_break_out_of_its_function() {
    let braces = "function f() {\n  return 1;\n}\n";
    assert!(changed("a.js", braces, "  - replace_body: {file: a.js, function: f, body: \"return 1;\\n}\\nevil();\\nif (1) {\"}").is_err());
}

#[test]
fn an_edit_of_a_file_that_is_not_a_target_or_a_link_fails() {
    let yaml = "description: d\ntarget_files: [b.py]\nrollback_plan: r\nmodifications:\n  - rename_symbol: {file: a.py, from: n, to: m, count: 2}\n";
    let request = request::parse("r.yaml", yaml.as_bytes()).unwrap();
    let base = tree(&[("a.py", PY), ("b.py", PY)]);
    assert!(matches!(
        apply(&base, &request),
        Err(EditError::NotATarget(_))
    ));
    let request =
        request::parse("r.yaml", yaml.replace("[b.py]", "[a.py, b.py]").as_bytes()).unwrap();
    assert!(matches!(
        apply(&base, &request),
        Err(EditError::Unchanged(_))
    ));
    let mut linked = base.clone();
    linked.put(
        TreePath::new("a.py").unwrap(),
        Entry {
            mode: Mode::Link,
            blob: b"/etc/passwd".as_slice().into(),
        },
    );
    let request = request::parse("r.yaml", yaml.replace("[b.py]", "[a.py]").as_bytes()).unwrap();
    assert!(matches!(
        apply(&linked, &request),
        Err(EditError::NotText(_))
    ));
}

fn patched(file: &str, before: &str, diff: &str) -> Result<String, EditError> {
    let lines: String = diff.lines().map(|line| format!("      {line}\n")).collect();
    changed(file, before, &format!("  - patch: |\n{lines}"))
}

#[test]
fn a_patch_applies_where_it_says_or_not_at_all() {
    let before = "one\ntwo\nthree\n";
    let good = "--- a/x.txt\n+++ b/x.txt\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n";
    assert_eq!(patched("x.txt", before, good).unwrap(), "one\n2\nthree\n");
    for (from, to) in [
        ("-two", "-too"),
        ("@@ -1,3 +1,3", "@@ -2,3 +2,3"),
        ("-1,3 +1,3", "-1,4 +1,3"),
        ("+++ b/x.txt", "+++ b/y.txt"),
        ("+++ b/x.txt", "+++ b/../x.txt"),
        (
            "--- a/x.txt",
            "old mode 100644\nnew mode 100755\n--- a/x.txt",
        ),
        ("--- a/x.txt", "index 1..2 120000\n--- a/x.txt"),
        ("--- a/x.txt", "index 1..2 160000\n--- a/x.txt"),
        ("--- a/x.txt", "rename from a\n--- a/x.txt"),
        ("--- a/x.txt", "some fuzz\n--- a/x.txt"),
    ] {
        assert!(
            patched("x.txt", before, &good.replace(from, to)).is_err(),
            "{to}"
        );
    }
    // A shifted file is another file: no fuzz.
    assert!(patched("x.txt", "zero\none\ntwo\nthree\n", good).is_err());
}

#[test]
fn a_patch_makes_and_removes_files() {
    let made = "--- /dev/null\n+++ b/n.txt\n@@ -0,0 +1,2 @@\n+a\n+b\n";
    let yaml = |target: &str, diff: &str| {
        let lines: String = diff.lines().map(|line| format!("      {line}\n")).collect();
        let text = format!(
            "description: d\ntarget_files: [{target}]\nrollback_plan: r\nmodifications:\n  - patch: |\n{lines}"
        );
        request::parse("r.yaml", text.as_bytes()).unwrap()
    };
    let after = apply(&tree(&[("x.txt", "a\n")]), &yaml("n.txt", made)).unwrap();
    assert_eq!(
        after
            .get(&TreePath::new("n.txt").unwrap())
            .and_then(Entry::text),
        Some("a\nb\n")
    );
    let gone = "--- a/x.txt\n+++ /dev/null\n@@ -1,1 +0,0 @@\n-a\n";
    assert!(
        apply(&tree(&[("x.txt", "a\n")]), &yaml("x.txt", gone))
            .unwrap()
            .is_empty()
    );
    assert!(apply(&tree(&[("x.txt", "a\nb\n")]), &yaml("x.txt", gone)).is_err());
    // A second file whose name differs in case alone.
    assert!(apply(&tree(&[("N.txt", "a\n")]), &yaml("n.txt", made)).is_err());
}
