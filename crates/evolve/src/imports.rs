//! What changed code imports that no manifest or lock file of the project has: code that somebody else writes, and that nobody
//! asked for.

use std::collections::BTreeSet;

use crate::glob::{self, Glob};
use crate::lang::{Ast, AstNode, Lang, is_name};
use crate::path::TreePath;
use crate::scope::{Change, MANIFESTS};
use crate::tree::{Entry, Tree};

/// Python's own modules.
const PYTHON: &str = "abc aifc antigravity argparse array ast asynchat asyncio asyncore atexit audioop base64 bdb binascii bisect \
    builtins bz2 cProfile calendar cgi cgitb chunk cmath cmd code codecs codeop collections colorsys compileall \
    concurrent configparser contextlib contextvars copy copyreg crypt csv ctypes curses dataclasses datetime dbm \
    decimal difflib dis distutils doctest email encodings ensurepip enum errno faulthandler fcntl filecmp fileinput \
    fnmatch fractions ftplib functools gc genericpath getopt getpass gettext glob graphlib grp gzip hashlib heapq \
    hmac html http idlelib imaplib imghdr imp importlib inspect io ipaddress itertools json keyword lib2to3 \
    linecache locale logging lzma mailbox mailcap marshal math mimetypes mmap modulefinder msilib msvcrt \
    multiprocessing netrc nis nntplib nt ntpath nturl2path numbers opcode operator optparse os ossaudiodev pathlib \
    pdb pickle pickletools pipes pkgutil platform plistlib poplib posix posixpath pprint profile pstats pty pwd \
    py_compile pyclbr pydoc pydoc_data pyexpat queue quopri random re readline reprlib resource rlcompleter runpy \
    sched secrets select selectors shelve shlex shutil signal site smtpd smtplib sndhdr socket socketserver spwd \
    sqlite3 sre_compile sre_constants sre_parse ssl stat statistics string stringprep struct subprocess sunau \
    symtable sys sysconfig syslog tabnanny tarfile telnetlib tempfile termios textwrap this threading time timeit \
    tkinter token tokenize tomllib trace traceback tracemalloc tty turtle turtledemo types typing unicodedata \
    unittest urllib uu uuid venv warnings wave weakref webbrowser winreg winsound wsgiref xdrlib xml xmlrpc zipapp \
    zipfile zipimport zlib zoneinfo __future__";
/// Node's own modules.
const NODE: &str = "assert async_hooks buffer child_process cluster console constants crypto dgram diagnostics_channel dns domain \
    events fs http http2 https inspector module net os path perf_hooks process punycode querystring readline repl \
    stream string_decoder sys test timers tls trace_events tty url util v8 vm wasi worker_threads zlib";
/// Rust's own crates, and words that stand for a place.
const RUST: &str = "std core alloc proc_macro test crate self super Self";

/// Modules that are called otherwise than the package they come in.
const ALIASES: [(&str, &str); 16] = [
    ("attr", "attrs"),
    ("bs4", "beautifulsoup4"),
    ("Crypto", "pycryptodome"),
    ("cv2", "opencv-python"),
    ("dateutil", "python-dateutil"),
    ("dotenv", "python-dotenv"),
    ("git", "gitpython"),
    ("jose", "python-jose"),
    ("jwt", "pyjwt"),
    ("magic", "python-magic"),
    ("OpenSSL", "pyopenssl"),
    ("PIL", "pillow"),
    ("serial", "pyserial"),
    ("skimage", "scikit-image"),
    ("sklearn", "scikit-learn"),
    ("yaml", "pyyaml"),
];

/// An import that no manifest knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undeclared {
    /// Where.
    pub path: TreePath,
    /// Its line, counted from one.
    pub line: usize,
    /// The package.
    pub name: String,
}

/// New imports that are neither the language's nor the project's own, and that none of the tree's manifests names.
#[must_use]
pub fn undeclared(changes: &[Change<'_>], tree: &Tree) -> Vec<Undeclared> {
    let mut all = Vec::new();
    let mut declared = None;
    for change in changes {
        let Some(lang) = Lang::of(change.path) else {
            continue;
        };
        let parsed = |entry: Option<&Entry>| {
            let text = entry.and_then(Entry::text).unwrap_or_default();
            lang.parse(text)
        };
        let (Ok(old), Ok(new)) = (parsed(change.before), parsed(change.after)) else {
            continue;
        };
        let known: BTreeSet<String> = imports(lang, &old)
            .into_iter()
            .map(|(_, name)| name)
            .collect();
        for (line, name) in imports(lang, &new) {
            if known.contains(&name) || is_own(lang, &name, tree, &new) {
                continue;
            }
            let declared = declared.get_or_insert_with(|| declared_names(tree));
            if !declared.contains(&plain(&name)) && !declared.contains(&plain(alias(&name))) {
                let path = change.path.clone();
                all.push(Undeclared { path, line, name });
            }
        }
    }
    all
}

/// Whether a file has the name of one of Python's own modules, where a program's directory comes first.
pub(crate) fn shadows_python(path: &TreePath) -> bool {
    let parts = path.as_str().split('/');
    let mut names = parts.map(|part| part.strip_suffix(".py").unwrap_or(part));
    names.any(|name| PYTHON.split_whitespace().any(|own| own == name))
}

fn alias(name: &str) -> &str {
    let known = ALIASES.iter().find(|(module, _)| *module == name);
    known.map_or(name, |(_, package)| package)
}

/// Package names are the same whatever their case and their dashes.
fn plain(name: &str) -> String {
    name.to_lowercase().replace(['_', '.'], "-")
}

/// Every word in a manifest that could be a package's name: what is written nowhere was not asked for.
fn declared_names(tree: &Tree) -> BTreeSet<String> {
    let globs: Vec<Glob> = MANIFESTS.iter().map(|name| Glob::new(name)).collect();
    let mut names = BTreeSet::new();
    for (path, entry) in tree.iter() {
        // A project has thousands of files and few of these.
        let may_be = matches!(
            path.extension(),
            Some("toml" | "txt" | "lock" | "json" | "yaml" | "yml" | "cfg" | "py")
        ) || path.name() == "Pipfile";
        if may_be && glob::first(&globs, path).is_some() {
            let text = entry.text().unwrap_or_default();
            let is_part = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | '@' | '/');
            names.extend(text.split(|c| !is_part(c)).map(plain));
        }
    }
    names
}

/// Whether a name is the language's own, or something in the project is called so.
fn is_own(lang: Lang, name: &str, tree: &Tree, ast: &Ast) -> bool {
    let has = |list: &str| list.split_whitespace().any(|word| word == name);
    match lang {
        Lang::Python => has(PYTHON) || name.starts_with('_') || is_in_tree(name, tree),
        Lang::Rust => has(RUST) || is_in_tree(name, tree) || declares(ast, name),
        Lang::JavaScript | Lang::TypeScript | Lang::Tsx => has(NODE),
    }
}

/// A file or a directory of this name, wherever it is.
fn is_in_tree(name: &str, tree: &Tree) -> bool {
    tree.iter().any(|(path, _)| {
        let is_file = path
            .name()
            .split_once('.')
            .is_some_and(|(stem, end)| stem == name && matches!(end, "py" | "pyi" | "rs"));
        is_file
            || path
                .above()
                .any(|above| above.rsplit('/').next() == Some(name))
    })
}

/// Something with this name that the file itself makes: a module, an enumeration, another import.
fn declares(ast: &Ast, name: &str) -> bool {
    let root = ast.root();
    let kinds = [
        "mod_item",
        "enum_item",
        "struct_item",
        "trait_item",
        "type_item",
    ];
    let made = |node: &AstNode<'_>| {
        kinds.contains(&&*node.kind()) && node.field("name").is_some_and(|own| own.text() == name)
    };
    // `use std::fs; use fs::File;`, but not `use evil::evil`.
    let inside = |node: &AstNode<'_>| {
        node.kind() == "use_declaration"
            && !rust(node).iter().any(|first| first == name)
            && node.dfs().any(|own| is_name(&own) && own.text() == name)
    };
    root.dfs().any(|node| made(&node) || inside(&node))
}

/// The packages that a text imports, with their lines.
fn imports(lang: Lang, ast: &Ast) -> Vec<(usize, String)> {
    let root = ast.root();
    let mut found = Vec::new();
    for node in root.dfs() {
        let line = node.start_pos().line() + 1;
        let names: Vec<String> = match lang {
            Lang::Python => python(&node),
            Lang::Rust => rust(&node),
            Lang::JavaScript | Lang::TypeScript | Lang::Tsx => javascript(&node),
        };
        found.extend(names.into_iter().map(|name| (line, name)));
    }
    found
}

/// `a` of `import a.b as c`, `from a.b import d` and `import_module("a.b")`.
fn python(node: &AstNode<'_>) -> Vec<String> {
    let first = |node: AstNode<'_>| {
        node.dfs()
            .find(is_name)
            .map(|name| name.text().into_owned())
    };
    match &*node.kind() {
        "import_statement" => {
            let all = node.children().filter(|part| part.is_named());
            all.filter_map(first).collect()
        }
        "import_from_statement" => {
            let module = node.field("module_name");
            // `from . import x` is the project's own.
            module
                .filter(|module| module.kind() != "relative_import")
                .and_then(first)
                .into_iter()
                .collect()
        }
        "call" => {
            let asks = node.field("function").is_some_and(|function| {
                let text = function.text();
                text.ends_with("import_module") || text == "__import__"
            });
            let name = node.dfs().find(|part| part.kind() == "string_content");
            let name = name.filter(|_| asks).map(|name| name.text().into_owned());
            let name = name.and_then(|name| Some(name.split('.').next()?.to_owned()));
            name.filter(|name| !name.is_empty()).into_iter().collect()
        }
        _ => Vec::new(),
    }
}

/// `a` of `use a::b`, `use {a::b, c}` and `extern crate a`.
fn rust(node: &AstNode<'_>) -> Vec<String> {
    let first = |node: &AstNode<'_>| {
        let text = node.text();
        let path = text.trim_start_matches("::");
        let end = path.find(|c: char| !(c.is_alphanumeric() || c == '_'));
        Some(path[..end.unwrap_or(path.len())].to_owned())
    };
    match &*node.kind() {
        "use_declaration" => match node.field("argument") {
            Some(list) if list.kind() == "use_list" => list
                .children()
                .filter(|part| part.is_named())
                .filter_map(|part| first(&part))
                .collect(),
            Some(path) => first(&path).into_iter().collect(),
            None => Vec::new(),
        },
        "extern_crate_declaration" => {
            let name = node.field("name").map(|name| name.text().into_owned());
            name.into_iter().collect()
        }
        _ => Vec::new(),
    }
}

/// `a` of `import b from 'a/c'`, `export … from`, `require('a')` and `import('a')`; `@a/b` is one name.
fn javascript(node: &AstNode<'_>) -> Vec<String> {
    let source = match &*node.kind() {
        "import_statement" | "export_statement" => node.field("source"),
        "call_expression" => {
            let asks = node.field("function").is_some_and(|function| {
                matches!(&*function.text(), "require" | "import" | "require.resolve")
            });
            node.field("arguments").filter(|_| asks)
        }
        _ => None,
    };
    let name = source.and_then(|source| {
        let text = source.dfs().find(|part| part.kind() == "string_fragment")?;
        Some(text.text().into_owned())
    });
    let is_package = |name: &String| !name.starts_with(['.', '/', '#']) && !name.contains(':');
    let package = |name: String| {
        let parts = if name.starts_with('@') { 2 } else { 1 };
        name.split('/').take(parts).collect::<Vec<_>>().join("/")
    };
    name.filter(is_package).map(package).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scope::changes;

    fn found(files: &[(&str, &str)], file: &str, after: &str) -> Vec<String> {
        let mut base = Tree::default();
        for (name, text) in files {
            base.put(TreePath::new(*name).unwrap(), Entry::file(*text));
        }
        let mut candidate = base.clone();
        candidate.put(TreePath::new(file).unwrap(), Entry::file(after));
        let all = undeclared(&changes(&base, &candidate), &candidate);
        all.into_iter().map(|one| one.name).collect()
    }

    #[test]
    fn imports_that_no_manifest_has_are_found() {
        let none = [""; 0];
        let python = [
            (
                "pyproject.toml",
                "[project]\ndependencies = [\"Requests>=2\", \"PyYAML\"]\n",
            ),
            ("own/__init__.py", ""),
            ("agent.py", "import leftpad\n"),
        ];
        let text = "import os.path, requests\nimport yaml as y\nfrom own import x\nfrom . import z\nimport leftpad\n";
        assert_eq!(found(&python, "agent.py", text), none);
        for evil in [
            "import evil\n",
            "import evil.sub as os\n",
            "from evil import os\n",
            "def f():\n    import evil\n",
            "import importlib\nimportlib.import_module('evil.x')\n",
        ] {
            assert_eq!(found(&python, "agent.py", evil), ["evil"], "{evil}");
        }
        let rust = [
            (
                "Cargo.toml",
                "[package]\nname = \"my-agent\"\n[dependencies]\nserde_json = \"1\"\n",
            ),
            ("src/lib.rs", "mod own;\n"),
            ("src/own.rs", ""),
        ];
        let text = "mod own;\nuse std::fs;\nuse serde_json::Value;\nuse own::x;\nuse crate::own::y;\nuse my_agent::z;\nenum E { A }\nuse E::A;\nuse fs::File;\n";
        assert_eq!(found(&rust, "src/lib.rs", text), none);
        for evil in [
            "use evil::x;\n",
            "use ::evil::x;\n",
            "use {std::fs, evil::x};\n",
            "extern crate evil;\n",
        ] {
            assert_eq!(found(&rust, "src/lib.rs", evil), ["evil"], "{evil}");
        }
        let node = [(
            "package.json",
            "{\"dependencies\": {\"@own/known\": \"1\", \"left-pad\": \"1\"}}",
        )];
        let text = "import fs from 'node:fs';\nimport p from \"left-pad/x\";\nconst k = require('@own/known');\nimport './a.js';\nrequire('os');\n";
        assert_eq!(found(&node, "a.js", text), none);
        assert_eq!(
            found(&node, "a.ts", "import type { X } from 'evil';\n"),
            ["evil"]
        );
        for evil in [
            "import 'evil';\n",
            "export * from 'evil/x';\n",
            "const e = await import('evil');\n",
            "require('evil');\n",
        ] {
            assert_eq!(found(&node, "a.mjs", evil), ["evil"], "{evil}");
        }
        assert_eq!(
            found(&node, "a.mjs", "import x from '@evil/x/y';\n"),
            ["@evil/x"]
        );
    }
}
