//! The languages whose structure is looked at.

use std::borrow::Cow;

use ast_grep_core::matcher::PatternBuilder;
use ast_grep_core::tree_sitter::{LanguageExt, StrDoc, TSLanguage};
use ast_grep_core::{AstGrep, Language, Pattern, PatternError};

use crate::path::TreePath;

/// A language.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lang {
    /// Python.
    Python,
    /// Rust.
    Rust,
    /// JavaScript, with JSX.
    JavaScript,
    /// TypeScript.
    TypeScript,
    /// TypeScript with JSX.
    Tsx,
}

/// A file's syntax tree.
pub type Ast = AstGrep<StrDoc<Lang>>;
/// A node of it.
pub type AstNode<'a> = ast_grep_core::Node<'a, StrDoc<Lang>>;

impl Lang {
    /// The language of a file, by its name.
    #[must_use]
    pub fn of(path: &TreePath) -> Option<Self> {
        Some(match path.extension()? {
            "py" | "pyi" | "pyw" => Self::Python,
            "rs" => Self::Rust,
            "js" | "mjs" | "cjs" | "jsx" => Self::JavaScript,
            "ts" | "mts" | "cts" => Self::TypeScript,
            "tsx" => Self::Tsx,
            _ => return None,
        })
    }

    /// Reads a text.
    ///
    /// # Errors
    /// When the parser gives up on it, which it does on no text that is of this language.
    pub fn parse(self, text: &str) -> Result<Ast, String> {
        AstGrep::try_new(text, self)
    }

    /// Whether the text is of this language, all of it.
    #[must_use]
    pub fn is_valid(self, text: &str) -> bool {
        self.parse(text)
            .is_ok_and(|ast| first_error(&ast).is_none())
    }
}

/// The line of the first thing that does not belong, counted from one.
#[must_use]
pub fn first_error(ast: &Ast) -> Option<usize> {
    let root = ast.root();
    let wrong = root.dfs().find(|node| node.is_error() || node.is_missing());
    wrong.map(|node| node.start_pos().line() + 1)
}

/// How deep code may be nested. What is asked of each part about what is around it takes time by this.
const MOST_NESTED: usize = 1_000;

/// The line of the first thing that is nested too deep to be judged, counted from one.
#[must_use]
pub fn too_deep(ast: &Ast) -> Option<usize> {
    let mut waiting = vec![(ast.root(), 0)];
    while let Some((node, depth)) = waiting.pop() {
        if depth > MOST_NESTED {
            return Some(node.start_pos().line() + 1);
        }
        waiting.extend(node.children().map(|child| (child, depth + 1)));
    }
    None
}

/// Lines on which code begins that does something: not blank ones, comments or lone brackets.
#[must_use]
pub fn code_lines(lang: Lang, text: &str) -> std::collections::BTreeSet<usize> {
    let Ok(ast) = lang.parse(text) else {
        return (1..=text.lines().count()).collect();
    };
    let root = ast.root();
    let says = |node: &AstNode<'_>| {
        node.is_leaf()
            && !is_comment(node)
            && !node.ancestors().any(|above| is_comment(&above))
            && node.text().chars().any(char::is_alphanumeric)
    };
    root.dfs()
        .filter(says)
        .map(|node| node.start_pos().line() + 1)
        .collect()
}

/// Comments, whatever the language calls them.
#[must_use]
pub fn is_comment(node: &AstNode<'_>) -> bool {
    matches!(&*node.kind(), "comment" | "line_comment" | "block_comment")
}

/// Names, whatever the language calls them.
#[must_use]
pub fn is_name(node: &AstNode<'_>) -> bool {
    node.is_named_leaf() && node.kind().ends_with("identifier")
}

impl Language for Lang {
    fn kind_to_id(&self, kind: &str) -> u16 {
        self.get_ts_language().id_for_node_kind(kind, true)
    }

    fn field_to_id(&self, field: &str) -> Option<u16> {
        self.get_ts_language()
            .field_id_for_name(field)
            .map(|id| id.get())
    }

    fn build_pattern(&self, builder: &PatternBuilder) -> Result<Pattern, PatternError> {
        builder.build(|text| StrDoc::try_new(text, *self))
    }

    /// A character that these languages take in an identifier, as they do not take `$`.
    fn expando_char(&self) -> char {
        match self {
            Self::Python | Self::Rust => 'µ',
            Self::JavaScript | Self::TypeScript | Self::Tsx => '$',
        }
    }

    fn pre_process_pattern<'q>(&self, query: &'q str) -> Cow<'q, str> {
        if self.expando_char() == '$' {
            return Cow::Borrowed(query);
        }
        // Only where a metavariable begins: `$A`, `$_`, `$$$`.
        let mut made = String::with_capacity(query.len() + 8);
        let mut rest = query;
        while let Some(at) = rest.find('$') {
            let (before, from) = rest.split_at(at);
            made.push_str(before);
            let signs = from.bytes().take_while(|byte| *byte == b'$').count();
            let next = from[signs..].chars().next();
            let is_variable =
                signs == 3 || next.is_some_and(|c| c.is_ascii_uppercase() || c == '_');
            let sign = if is_variable {
                self.expando_char()
            } else {
                '$'
            };
            made.extend(std::iter::repeat_n(sign, signs));
            rest = &from[signs..];
        }
        made.push_str(rest);
        Cow::Owned(made)
    }
}

impl LanguageExt for Lang {
    fn get_ts_language(&self) -> TSLanguage {
        match self {
            Self::Python => tree_sitter_python::LANGUAGE.into(),
            Self::Rust => tree_sitter_rust::LANGUAGE.into(),
            Self::JavaScript => tree_sitter_javascript::LANGUAGE.into(),
            Self::TypeScript => tree_sitter_typescript::LANGUAGE_TYPESCRIPT.into(),
            Self::Tsx => tree_sitter_typescript::LANGUAGE_TSX.into(),
        }
    }
}
