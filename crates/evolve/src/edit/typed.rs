//! Edits by structure: what is changed is found in the syntax tree, never by searching text.

use ast_grep_core::Pattern;

use super::EditError;
use crate::lang::{Ast, AstNode, Lang, is_comment, is_name};
use crate::path::TreePath;

fn parsed(lang: Lang, text: &str, file: &TreePath) -> Result<Ast, EditError> {
    lang.parse(text).map_err(|_| EditError::Syntax {
        file: file.clone(),
        when: "before",
        line: 1,
    })
}

fn one_line<'a>(what: &str, text: &'a str) -> Result<&'a str, EditError> {
    let text = text.trim();
    if text.is_empty() || text.contains(['\n', '\r']) {
        return Err(EditError::Invalid(format!("the {what} is one line")));
    }
    Ok(text)
}

/// Adds an import after the last one at the top of the file, or before the first statement.
pub(super) fn add_import(
    lang: Lang,
    text: &str,
    file: &TreePath,
    import: &str,
) -> Result<String, EditError> {
    let import = one_line("import", import)?;
    let alone = parsed(lang, import, file)?;
    let statements: Vec<AstNode<'_>> = alone
        .root()
        .named_children()
        .filter(|node| !is_comment(node))
        .collect();
    let is_import = matches!(statements.as_slice(), [only] if IMPORTS.contains(&&*only.kind()) && !only.is_error());
    if !is_import
        || alone
            .root()
            .dfs()
            .any(|node| is_comment(&node) || node.is_error() || node.is_missing())
    {
        return Err(EditError::Invalid(format!("{import:?} is not one import")));
    }
    let ast = parsed(lang, text, file)?;
    let root = ast.root();
    let there = root
        .children()
        .filter(|node| IMPORTS.contains(&&*node.kind()));
    let same = |node: &AstNode<'_>| node.text().split_whitespace().eq(import.split_whitespace());
    if there.into_iter().any(|node| same(&node)) {
        return Err(EditError::Count {
            what: format!("{import:?}"),
            file: file.clone(),
            found: 1,
            expected: 0,
        });
    }
    let mut at = None;
    let mut first = None;
    for node in root.children() {
        let kind = node.kind();
        if IMPORTS.contains(&&*kind) {
            at = Some(line_end(text, node.range().end));
        } else if is_comment(&node)
            || is_docstring(lang, &node)
            || kind == "inner_attribute_item"
            || kind == "hash_bang_line"
        {
            if at.is_none() {
                first = Some(line_end(text, node.range().end));
            }
        } else {
            break;
        }
    }
    let at = at.or(first).unwrap_or(0);
    let break_before = if at > 0 && !text[..at].ends_with('\n') {
        "\n"
    } else {
        ""
    };
    Ok(format!(
        "{}{break_before}{import}\n{}",
        &text[..at],
        &text[at..]
    ))
}

const IMPORTS: [&str; 5] = [
    "import_statement",
    "import_from_statement",
    "future_import_statement",
    "use_declaration",
    "extern_crate_declaration",
];

fn is_docstring(lang: Lang, node: &AstNode<'_>) -> bool {
    lang == Lang::Python
        && node.kind() == "expression_statement"
        && node.child(0).is_some_and(|child| child.kind() == "string")
}

/// Where the line ends that this byte is in, its end included.
fn line_end(text: &str, at: usize) -> usize {
    if at > 0 && text.as_bytes()[at - 1] == b'\n' {
        return at;
    }
    text[at..]
        .find('\n')
        .map_or(text.len(), |more| at + more + 1)
}

fn line_start(text: &str, at: usize) -> usize {
    text[..at].rfind('\n').map_or(0, |before| before + 1)
}

fn indentation(text: &str, at: usize) -> &str {
    let line = &text[line_start(text, at)..at];
    let end = line
        .find(|c: char| c != ' ' && c != '\t')
        .unwrap_or(line.len());
    &line[..end]
}

const FUNCTIONS: [&str; 5] = [
    "function_definition",
    "function_item",
    "function_declaration",
    "generator_function_declaration",
    "method_definition",
];
const HOLDERS: [&str; 7] = [
    "class_definition",
    "class_declaration",
    "impl_item",
    "trait_item",
    "function_definition",
    "function_item",
    "function_declaration",
];

/// The one function of this name; `Class.method` for one of a class.
fn function<'a>(ast: &'a Ast, file: &TreePath, name: &str) -> Result<AstNode<'a>, EditError> {
    let root = ast.root();
    let all: Vec<AstNode<'a>> = root
        .dfs()
        .filter(|node| FUNCTIONS.contains(&&*node.kind()) && qualified(node) == name)
        .collect();
    match <[AstNode<'a>; 1]>::try_from(all) {
        Ok([only]) => Ok(only),
        Err(others) => Err(EditError::Count {
            what: format!("the function {name:?}"),
            file: file.clone(),
            found: others.len(),
            expected: 1,
        }),
    }
}

fn own_name(node: &AstNode<'_>) -> String {
    // Rust's `impl X` has a type and no name.
    let named = node.field("name").or_else(|| node.field("type"));
    named
        .map(|name| name.text().into_owned())
        .unwrap_or_default()
}

fn qualified(node: &AstNode<'_>) -> String {
    let mut parts = vec![own_name(node)];
    parts.extend(
        node.ancestors()
            .filter(|above| HOLDERS.contains(&&*above.kind()))
            .map(|above| own_name(&above)),
    );
    parts.reverse();
    parts.join(".")
}

/// Adds a decorator as the outermost one.
pub(super) fn add_decorator(
    lang: Lang,
    text: &str,
    file: &TreePath,
    name: &str,
    decorator: &str,
) -> Result<String, EditError> {
    let decorator = one_line("decorator", decorator)?;
    let shape = match lang {
        Lang::Python => {
            decorator.starts_with('@')
                && Lang::Python.is_valid(&format!("{decorator}\ndef f(): pass\n"))
        }
        Lang::Rust => {
            decorator.starts_with("#[")
                && Lang::Rust.is_valid(&format!("{decorator}\nfn f() {{}}\n"))
        }
        Lang::JavaScript | Lang::TypeScript | Lang::Tsx => {
            decorator.starts_with('@')
                && lang.is_valid(&format!("class C {{ {decorator}\n f() {{}} }}\n"))
        }
    };
    if !shape
        || decorator.contains("//")
        || (lang == Lang::Python && decorator.contains(['#', ';']))
    {
        return Err(EditError::Invalid(format!(
            "{decorator:?} is not one decorator"
        )));
    }
    let ast = parsed(lang, text, file)?;
    let node = function(&ast, file, name)?;
    let outer = node
        .parent()
        .filter(|parent| parent.kind() == "decorated_definition")
        .unwrap_or_else(|| node.clone());
    if outer.text().lines().any(|line| line.trim() == decorator) {
        return Err(EditError::Count {
            what: format!("{decorator:?}"),
            file: file.clone(),
            found: 1,
            expected: 0,
        });
    }
    let at = outer.range().start;
    let indent = indentation(text, at);
    if line_start(text, at) + indent.len() != at {
        return Err(EditError::Invalid(format!(
            "{name:?} does not begin its line"
        )));
    }
    Ok(format!(
        "{}{decorator}\n{indent}{}",
        &text[..at],
        &text[at..]
    ))
}

/// Replaces what a function does; its name, parameters and decorators stay.
pub(super) fn replace_body(
    lang: Lang,
    text: &str,
    file: &TreePath,
    name: &str,
    body: &str,
) -> Result<String, EditError> {
    if body.trim().is_empty() {
        return Err(EditError::Invalid("the body is empty".into()));
    }
    let ast = parsed(lang, text, file)?;
    let node = function(&ast, file, name)?;
    let old = node
        .field("body")
        .ok_or_else(|| EditError::Invalid(format!("{name:?} has no body")))?;
    let base = indentation(text, node.range().start);
    let step = if base.contains('\t') { "\t" } else { "    " };
    let mut lines = String::new();
    for line in body.trim_end().trim_start_matches('\n').lines() {
        if !line.trim().is_empty() {
            lines.push_str(base);
            lines.push_str(step);
            lines.push_str(line);
        }
        lines.push('\n');
    }
    // What says what a function is for stays, unless the new body says it anew.
    if let Some(kept) = docstring(lang, &old).filter(|_| !begins_with_text(lang, body)) {
        lines = format!("{base}{step}{kept}\n{lines}");
    }
    let range = old.range();
    let made = match lang {
        Lang::Python => {
            // Comments between the colon and the first statement are of the body too.
            let colon = text[..range.start]
                .rfind(':')
                .map_or(range.start, |at| at + 1);
            let rest = text[range.end..]
                .strip_prefix('\n')
                .unwrap_or(&text[range.end..]);
            format!("{}\n{lines}{rest}", &text[..colon])
        }
        _ => format!(
            "{}{{\n{lines}{base}}}{}",
            &text[..range.start],
            &text[range.end..]
        ),
    };
    // A body that ends its function early, and goes on with something else, is not a body.
    let after = parsed(lang, &made, file)?;
    let outline = |ast: &Ast| -> Vec<(String, String)> {
        let root = ast.root();
        let top = root.children().filter(|node| !is_comment(node));
        top.map(|node| (node.kind().into_owned(), own_name(&node)))
            .collect()
    };
    let inner = function(&after, file, name)?;
    let around = |node: &AstNode<'_>| -> Option<usize> {
        node.parent().map(|parent| {
            parent
                .named_children()
                .filter(|child| !is_comment(child))
                .count()
        })
    };
    if outline(&ast) != outline(&after) || around(&node) != around(&inner) {
        return Err(EditError::Invalid(format!(
            "the body does not stay within {name:?}"
        )));
    }
    Ok(made)
}

/// A Python function's docstring, as it is written.
fn docstring(lang: Lang, body: &AstNode<'_>) -> Option<String> {
    if lang != Lang::Python {
        return None;
    }
    let first = body.named_children().find(|node| !is_comment(node))?;
    let text = (first.kind() == "expression_statement")
        .then(|| first.named_children().next())
        .flatten()?;
    // Another expression that begins with a text is none.
    (text.kind() == "string" && text.range() == first.range())
        .then(|| text.text().into_owned())
        .filter(|text| !text.starts_with(['f', 'F', 'b', 'B']))
}

fn begins_with_text(lang: Lang, body: &str) -> bool {
    let Ok(ast) = lang.parse(body) else {
        return false;
    };
    docstring(lang, &ast.root()).is_some()
}

/// Renames an identifier everywhere in a file.
pub(super) fn rename(
    lang: Lang,
    text: &str,
    file: &TreePath,
    from: &str,
    to: &str,
    count: usize,
) -> Result<String, EditError> {
    let is_word = |word: &str| {
        let mut chars = word.chars();
        chars
            .next()
            .is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
            && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    if !is_word(from) || !is_word(to) {
        return Err(EditError::Invalid(format!(
            "{from:?} or {to:?} is not an identifier"
        )));
    }
    let ast = parsed(lang, text, file)?;
    let root = ast.root();
    let ranges = |word: &str| -> Vec<std::ops::Range<usize>> {
        root.dfs()
            .filter(|node| is_name(node) && node.text() == word)
            .map(|node| node.range())
            .collect()
    };
    let expect = |what: &str, found: usize, expected: usize| match found == expected {
        true => Ok(()),
        false => Err(EditError::Count {
            what: format!("the name {what:?}"),
            file: file.clone(),
            found,
            expected,
        }),
    };
    expect(to, ranges(to).len(), 0)?;
    let found = ranges(from);
    expect(from, found.len(), count)?;
    Ok(splice(
        text,
        found.into_iter().map(|range| (range, to.to_owned())),
    ))
}

/// Rewrites what a pattern matches.
pub(super) fn rewrite(
    lang: Lang,
    text: &str,
    file: &TreePath,
    pattern: &str,
    with: &str,
    count: usize,
) -> Result<String, EditError> {
    let matcher = Pattern::try_new(pattern, lang)
        .map_err(|error| EditError::Invalid(format!("the pattern can't be used: {error}")))?;
    let ast = parsed(lang, text, file)?;
    let root = ast.root();
    let found = root.find_all(&matcher).count();
    let edits = root.replace_all(&matcher, with);
    // Matches inside matches are found and can't all be rewritten: then it is more than it says.
    if found != count || edits.len() != count {
        return Err(EditError::Count {
            what: format!("{pattern:?}"),
            file: file.clone(),
            found,
            expected: count,
        });
    }
    let mut parts = Vec::new();
    for edit in edits {
        let inserted = String::from_utf8(edit.inserted_text)
            .map_err(|_| EditError::Invalid("the replacement is not text".into()))?;
        parts.push((edit.position..edit.position + edit.deleted_length, inserted));
    }
    Ok(splice(text, parts))
}

fn splice(text: &str, parts: impl IntoIterator<Item = (std::ops::Range<usize>, String)>) -> String {
    let mut made = String::with_capacity(text.len());
    let mut at = 0;
    for (range, by) in parts {
        made.push_str(&text[at..range.start]);
        made.push_str(&by);
        at = range.end;
    }
    made.push_str(&text[at..]);
    made
}
