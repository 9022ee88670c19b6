//! `request.yaml`: what an author asks for. Read strictly: an unknown key, or a value of another kind, is an error with its place.

use belljar_manifest::ManifestError;
use belljar_manifest::document::{
    self, Choice, Node, Object, Problem, Shape, field, required, text, unexpected, whole, words,
};

use crate::path::TreePath;
use crate::proposal::Risk;

const MOST_TEXT: usize = 8 * 1024;
const MOST_CODE: usize = 512 * 1024;
const MOST_PATH: usize = 1024;
const MOST_NAME: usize = 256;
const MOST_MODIFICATIONS: usize = 200;
const MOST_FILES: usize = 200;
const MOST_COUNT: u64 = 10_000;

const PATH: Shape = Shape::Text { most: MOST_PATH };
const NAME: Shape = Shape::Text { most: MOST_NAME };
const CODE: Shape = Shape::Lines { most: MOST_CODE };
const PROSE: Shape = Shape::Lines { most: MOST_TEXT };
const COUNT: Shape = Shape::Whole {
    least: 1,
    most: MOST_COUNT,
};
const PATHS: Shape = Shape::List {
    item: &PATH,
    most: MOST_FILES,
};

static RISKS: Choice = words(&["low", "medium", "high", "critical"]);

/// The whole of `request.yaml`.
pub static REQUEST: Object = Object {
    name: "",
    doc: "A change that an agent or a person proposes.",
    fields: &[
        required("description", PROSE, "What change, and why."),
        required(
            "target_files",
            PATHS,
            "Every file that is changed, made or removed. A modification of another one is refused.",
        ),
        required(
            "modifications",
            Shape::List {
                item: &Shape::Variant(&MODIFICATION),
                most: MOST_MODIFICATIONS,
            },
            "What to change, in this order.",
        ),
        field(
            "tests",
            PATHS,
            "Test files of the project that are about this. They must be there, have tests, and pass.",
        ),
        required(
            "rollback_plan",
            PROSE,
            "How to undo it, for people. Belljar restores the tree before in any case.",
        ),
        field(
            "risk",
            Shape::Choice(&RISKS),
            "The author's own view. It can only raise what is computed.",
        ),
    ],
};

static MODIFICATION: Object = Object {
    name: "modification",
    doc: "One change.",
    fields: &[
        field("add_import", Shape::Object(&ADD_IMPORT), "Adds an import."),
        field(
            "add_decorator",
            Shape::Object(&ADD_DECORATOR),
            "Adds a decorator or an attribute to a function.",
        ),
        field(
            "replace_body",
            Shape::Object(&REPLACE_BODY),
            "Replaces what a function does.",
        ),
        field(
            "rename_symbol",
            Shape::Object(&RENAME),
            "Renames an identifier within a file.",
        ),
        field(
            "rewrite",
            Shape::Object(&REWRITE),
            "Rewrites code by a pattern (ast-grep).",
        ),
        field(
            "add_file",
            Shape::Object(&ADD_FILE),
            "Makes a file that is not there.",
        ),
        field(
            "remove_file",
            Shape::Object(&REMOVE_FILE),
            "Removes a file.",
        ),
        field(
            "patch",
            CODE,
            "A unified diff. Every line of context must be as it says.",
        ),
    ],
};

const FILE: document::Field = required("file", PATH, "The file.");
const FUNCTION: document::Field = required(
    "function",
    NAME,
    "The function; `Class.method` for one of a class.",
);

static ADD_IMPORT: Object = Object {
    name: "add_import",
    doc: "Adds an import that is not there yet.",
    fields: &[FILE, required("import", NAME, "The whole line.")],
};
static ADD_DECORATOR: Object = Object {
    name: "add_decorator",
    doc: "Adds a decorator (Python) or an attribute (Rust).",
    fields: &[
        FILE,
        FUNCTION,
        required("decorator", NAME, "Such as `@lru_cache(maxsize=1024)`."),
    ],
};
static REPLACE_BODY: Object = Object {
    name: "replace_body",
    doc: "Replaces a function's body.",
    fields: &[
        FILE,
        FUNCTION,
        required(
            "body",
            CODE,
            "The new body, without the braces and not indented.",
        ),
    ],
};
static RENAME: Object = Object {
    name: "rename_symbol",
    doc: "Renames an identifier.",
    fields: &[
        FILE,
        required("from", NAME, "As it is."),
        required("to", NAME, "As it will be; not used in the file yet."),
        required("count", COUNT, "How often it is there."),
    ],
};
static REWRITE: Object = Object {
    name: "rewrite",
    doc: "Rewrites what a pattern matches.",
    fields: &[
        FILE,
        required("pattern", CODE, "Such as `print($MESSAGE)`."),
        required("with", CODE, "Such as `log.info($MESSAGE)`."),
        field("count", COUNT, "How often it matches. Without it, once."),
    ],
};
static ADD_FILE: Object = Object {
    name: "add_file",
    doc: "Makes a file.",
    fields: &[FILE, required("text", CODE, "What is in it.")],
};
static REMOVE_FILE: Object = Object {
    name: "remove_file",
    doc: "Removes a file.",
    fields: &[FILE],
};

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// What change, and why.
    pub description: String,
    /// Every file it is about.
    pub target_files: Vec<TreePath>,
    /// What to change, in order.
    pub modifications: Vec<Modification>,
    /// Tests that are about it.
    pub tests: Vec<TreePath>,
    /// How to undo it.
    pub rollback_plan: String,
    /// The author's own view of the risk.
    pub claimed_risk: Option<Risk>,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Modification {
    /// Adds an import.
    AddImport {
        /// Where.
        file: TreePath,
        /// The line.
        import: String,
    },
    /// Adds a decorator.
    AddDecorator {
        /// Where.
        file: TreePath,
        /// To what.
        function: String,
        /// The decorator.
        decorator: String,
    },
    /// Replaces a body.
    ReplaceBody {
        /// Where.
        file: TreePath,
        /// Of what.
        function: String,
        /// By what.
        body: String,
    },
    /// Renames an identifier.
    Rename {
        /// Where.
        file: TreePath,
        /// As it is.
        from: String,
        /// As it will be.
        to: String,
        /// How often it is there.
        count: usize,
    },
    /// Rewrites by a pattern.
    Rewrite {
        /// Where.
        file: TreePath,
        /// What.
        pattern: String,
        /// By what.
        with: String,
        /// How often it matches.
        count: usize,
    },
    /// Makes a file.
    AddFile {
        /// Where.
        file: TreePath,
        /// What is in it.
        text: String,
    },
    /// Removes a file.
    RemoveFile {
        /// Which.
        file: TreePath,
    },
    /// Applies a unified diff.
    Patch(String),
}

/// Its JSON Schema.
#[must_use]
pub fn schema() -> serde_json::Value {
    document::schema(&REQUEST, "request.yaml")
}

/// Reads a request.
///
/// # Errors
/// The first thing wrong with it, with its place.
pub fn parse(file_name: &str, bytes: &[u8]) -> Result<Request, ManifestError> {
    document::parse(
        file_name,
        bytes,
        "a request needs a description, target_files, modifications and a rollback_plan",
        decode,
    )
}

fn decode(root: &Node<'_>) -> Result<Request, Problem> {
    Shape::Object(&REQUEST).check(root, "the request")?;
    let get = |key: &str| root.get(key).ok_or_else(|| unexpected(root));
    let modifications = get("modifications")?;
    if modifications.items().is_empty() {
        return Err(
            Problem::new(modifications.span, "a request changes something")
                .with_hint("list at least one modification"),
        );
    }
    let claimed_risk = match root.get("risk") {
        Some(node) => Some(Risk::from_word(text(node)?).ok_or_else(|| unexpected(node))?),
        None => None,
    };
    Ok(Request {
        description: text(get("description")?)?.to_owned(),
        target_files: get("target_files")?
            .items()
            .iter()
            .map(path)
            .collect::<Result<_, _>>()?,
        modifications: modifications
            .items()
            .iter()
            .map(modification)
            .collect::<Result<_, _>>()?,
        tests: match root.get("tests") {
            Some(list) => list.items().iter().map(path).collect::<Result<_, _>>()?,
            None => Vec::new(),
        },
        rollback_plan: text(get("rollback_plan")?)?.to_owned(),
        claimed_risk,
    })
}

fn path(node: &Node<'_>) -> Result<TreePath, Problem> {
    TreePath::new(text(node)?).map_err(|invalid| {
        Problem::new(node.span, invalid.to_string())
            .with_hint("write the path as it is below the project's directory")
    })
}

fn modification(node: &Node<'_>) -> Result<Modification, Problem> {
    if let Some(patch) = node.get("patch") {
        return Ok(Modification::Patch(text(patch)?.to_owned()));
    }
    let kinds = [
        "add_import",
        "add_decorator",
        "replace_body",
        "rename_symbol",
        "rewrite",
        "add_file",
        "remove_file",
    ];
    let (kind, inner) = kinds
        .into_iter()
        .find_map(|kind| node.get(kind).map(|inner| (kind, inner)))
        .ok_or_else(|| unexpected(node))?;
    let word = |key: &str| -> Result<String, Problem> {
        let value = inner.get(key).ok_or_else(|| unexpected(inner))?;
        Ok(text(value)?.to_owned())
    };
    let file = path(inner.get("file").ok_or_else(|| unexpected(inner))?)?;
    let count = || inner.get("count").map_or(Ok(1), whole);
    Ok(match kind {
        "add_import" => Modification::AddImport {
            file,
            import: word("import")?,
        },
        "add_decorator" => Modification::AddDecorator {
            file,
            function: word("function")?,
            decorator: word("decorator")?,
        },
        "replace_body" => Modification::ReplaceBody {
            file,
            function: word("function")?,
            body: word("body")?,
        },
        "rename_symbol" => Modification::Rename {
            file,
            from: word("from")?,
            to: word("to")?,
            count: count()?,
        },
        "rewrite" => Modification::Rewrite {
            file,
            pattern: word("pattern")?,
            with: word("with")?,
            count: count()?,
        },
        "add_file" => Modification::AddFile {
            file,
            text: word("text")?,
        },
        _ => Modification::RemoveFile { file },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "description: add a cache\ntarget_files: [a.py]\nmodifications:\n  - add_import: {file: a.py, import: import os}\nrollback_plan: revert\n";

    #[test]
    fn a_request_is_read_and_what_is_wrong_has_its_place() {
        let request = parse("request.yaml", GOOD.as_bytes()).unwrap();
        assert_eq!(request.modifications.len(), 1);
        assert_eq!(request.claimed_risk, None);
        let wrong = |from: &str, to: &str| {
            parse("request.yaml", GOOD.replace(from, to).as_bytes()).unwrap_err()
        };
        assert_eq!(wrong("[a.py]", "[../a.py]").line, 2);
        assert_eq!(wrong("{file: a.py,", "{file: /etc/passwd,").line, 4);
        assert_eq!(wrong("rollback_plan", "rolback_plan").line, 5);
        assert_eq!(wrong("add_import:", "run_shell:").line, 4);
        assert_eq!(
            wrong("rollback_plan: revert", "rollback_plan: revert\nrisk: none").line,
            6
        );
        assert_eq!(
            wrong(
                "rollback_plan: revert",
                "rollback_plan: revert\nrequires_human_review: false"
            )
            .line,
            6
        );
    }
}
