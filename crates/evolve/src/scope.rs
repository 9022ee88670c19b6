//! Stage 1: which entries differ, and whether a proposal may touch them. Trees are compared, not diffs.

use serde_json::json;
use similar::{Algorithm, ChangeTag, TextDiff};

use crate::config::Config;
use crate::glob::{self, Glob};
use crate::path::TreePath;
use crate::proposal::{Reason, Risk};
use crate::tree::{Entry, Mode, Tree};

/// What no proposal touches, whoever agrees: the rules it is judged by, and keys.
pub const NEVER: &[&str] = &[
    "evolve.toml",
    "capability.yaml",
    "capability.yml",
    "sandbox.toml",
    "contract.yaml",
    "supervisor.toml",
    "agent.toml",
    "*.key",
    "*.pem",
    "*.p12",
    "*.pfx",
    "*.jks",
    "id_rsa*",
    "id_ed25519*",
    ".env",
    ".env.*",
    ".netrc",
    ".ssh/**",
    ".gitattributes",
    ".gitmodules",
    ".gitconfig",
];

/// What says which packages a project has. Guarded like the rest: who could change one could declare what they import.
pub const MANIFESTS: &[&str] = &[
    "pyproject.toml",
    "setup.py",
    "setup.cfg",
    "requirements*.txt",
    "constraints*.txt",
    "Pipfile",
    "*.lock",
    "package.json",
    "package-lock.json",
    "npm-shrinkwrap.json",
    "pnpm-lock.yaml",
    "Cargo.toml",
    "environment.yml",
];

/// What only a proposal that says it is critical touches: what it is tested with, built with and made of.
const GUARDED: &[&str] = &[
    // What it is tested with.
    "**/tests/**",
    "**/test/**",
    "test_*.py",
    "*_test.py",
    "conftest.py",
    "pytest.ini",
    ".pytest.ini",
    "pytest.toml",
    ".pytest.toml",
    "**/*.dist-info/**",
    "**/*.egg-info/**",
    "tox.ini",
    "noxfile.py",
    ".coveragerc",
    "*.test.js",
    "*.test.ts",
    "*.test.tsx",
    "*.test.jsx",
    "*.spec.js",
    "*.spec.ts",
    "**/__tests__/**",
    "jest.config.*",
    "vitest.config.*",
    // What Python runs unasked.
    "sitecustomize.py",
    "usercustomize.py",
    "*.pth",
    "sitecustomize/**",
    "usercustomize/**",
    // How it is built, and of what.
    ".npmrc",
    ".yarnrc*",
    "**/.cargo/**",
    "build.rs",
    "rust-toolchain*",
    "clippy.toml",
    "deny.toml",
    "tsconfig*.json",
    ".eslintrc*",
    "eslint.config.*",
    "ruff.toml",
    ".ruff.toml",
    "mypy.ini",
    ".bandit",
    ".semgrep*",
    ".python-version",
    ".node-version",
    ".tool-versions",
    "Makefile",
    "Dockerfile*",
    "*.mk",
    // What runs it elsewhere.
    "**/.github/**",
    ".gitlab-ci.yml",
    "**/.circleci/**",
    "Jenkinsfile",
    ".travis.yml",
    ".pre-commit-config.yaml",
    "**/.husky/**",
    "**/.vscode/**",
    "**/.idea/**",
    ".envrc",
    ".editorconfig",
];

/// Everything that only such a proposal touches.
pub(crate) fn guarded<'a>() -> impl Iterator<Item = &'a str> {
    GUARDED.iter().chain(MANIFESTS).copied()
}

/// One entry that differs.
#[derive(Clone, Debug)]
pub struct Change<'a> {
    /// Where.
    pub path: &'a TreePath,
    /// Before.
    pub before: Option<&'a Entry>,
    /// After.
    pub after: Option<&'a Entry>,
}

impl Change<'_> {
    /// A stable word.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match (self.before, self.after) {
            (None, _) => "added",
            (_, None) => "removed",
            _ => "changed",
        }
    }

    /// The change as a unified diff.
    #[must_use]
    pub fn unified(&self) -> String {
        fn text(entry: Option<&Entry>) -> &str {
            entry.and_then(Entry::text).unwrap_or_default()
        }
        let name = |side: &str, entry: Option<&Entry>| match entry {
            Some(_) => format!("{side}/{}", self.path),
            None => "/dev/null".to_owned(),
        };
        TextDiff::from_lines(text(self.before), text(self.after))
            .unified_diff()
            .header(&name("a", self.before), &name("b", self.after))
            .to_string()
    }

    /// Lines after that are not before, counted from one, and how many lines went.
    #[must_use]
    pub fn lines(&self) -> (Vec<usize>, usize) {
        let text =
            |entry: Option<&Entry>| entry.and_then(Entry::text).unwrap_or_default().to_owned();
        let (before, after) = (text(self.before), text(self.after));
        let diff = TextDiff::configure()
            .algorithm(Algorithm::Myers)
            .diff_lines(&before, &after);
        let mut added = Vec::new();
        let mut removed = 0;
        for change in diff.iter_all_changes() {
            match change.tag() {
                ChangeTag::Insert => added.extend(change.new_index().map(|index| index + 1)),
                ChangeTag::Delete => removed += 1,
                ChangeTag::Equal => {}
            }
        }
        (added, removed)
    }
}

/// Every entry that differs between two trees.
#[must_use]
pub fn changes<'a>(base: &'a Tree, candidate: &'a Tree) -> Vec<Change<'a>> {
    let mut all: Vec<Change<'a>> = Vec::new();
    for (path, after) in candidate.iter() {
        let before = base.get(path);
        if before != Some(after) {
            all.push(Change {
                path,
                before,
                after: Some(after),
            });
        }
    }
    for (path, before) in base.iter() {
        if candidate.get(path).is_none() {
            all.push(Change {
                path,
                before: Some(before),
                after: None,
            });
        }
    }
    all.sort_by_key(|change| change.path);
    all
}

/// What stage 1 found.
#[derive(Clone, Debug)]
pub struct Scope {
    /// Why it is refused; nothing if it is not.
    pub reasons: Vec<Reason>,
    /// The least risk it has for what it touches.
    pub risk: Risk,
    /// Figures.
    pub facts: serde_json::Value,
}

/// Judges what a proposal touches.
#[must_use]
pub fn judge(base: &Tree, candidate: &Tree, config: &Config, claimed: Option<Risk>) -> Scope {
    let never: Vec<Glob> = NEVER
        .iter()
        .copied()
        .chain(config.never.iter().map(String::as_str))
        .map(Glob::new)
        .collect();
    let guarded: Vec<Glob> = guarded()
        .chain(config.immutable.iter().map(String::as_str))
        .chain(config.test_files.iter().map(String::as_str))
        .map(Glob::new)
        .collect();
    let mut scope = Scope {
        reasons: Vec::new(),
        risk: Risk::Low,
        facts: json!({}),
    };
    let refuse = |code: &str, path: &TreePath, message: String, hint: &str| Reason {
        code: code.to_owned(),
        stage: STAGE.to_owned(),
        at: Some(path.to_string()),
        message,
        hint: (!hint.is_empty()).then(|| hint.to_owned()),
    };
    let all = changes(base, candidate);
    let mut listed = Vec::new();
    for change in &all {
        let path = change.path;
        let (added, removed) = change.lines();
        listed.push(json!({"path": path, "change": change.word(), "added": added.len(), "removed": removed}));
        if let Some(glob) = glob::first(&never, path) {
            let message = format!(
                "{path} is out of reach for every proposal ({})",
                glob.as_str()
            );
            scope.reasons.push(refuse(
                "immutable",
                path,
                message,
                "an operator changes it by hand",
            ));
        } else if let Some(glob) = glob::first(&guarded, path) {
            scope.risk = Risk::Critical;
            if claimed != Some(Risk::Critical) {
                let message = format!(
                    "{path} may be touched by a critical proposal only ({})",
                    glob.as_str()
                );
                scope.reasons.push(refuse(
                    "immutable",
                    path,
                    message,
                    "leave it alone, or say `risk: critical`: two people then decide",
                ));
            }
        }
        let modes = (
            change.before.map(|entry| entry.mode),
            change.after.map(|entry| entry.mode),
        );
        match modes {
            (_, Some(Mode::Link)) | (Some(Mode::Link), _) => {
                scope.reasons.push(refuse(
                    "symlink",
                    path,
                    format!("{path} is a symbolic link"),
                    "propose files only",
                ));
            }
            (None | Some(Mode::File), Some(Mode::Executable))
            | (Some(Mode::Executable), Some(Mode::File)) => {
                scope.reasons.push(refuse(
                    "mode",
                    path,
                    format!("{path} changes its mode"),
                    "modes are an operator's to change",
                ));
            }
            _ => {}
        }
        if [change.before, change.after]
            .into_iter()
            .flatten()
            .any(|entry| entry.text().is_none())
        {
            scope.reasons.push(refuse(
                "binary",
                path,
                format!("{path} is not text"),
                "nobody can review it; propose text only",
            ));
        }
        if added.len() + removed > config.max_lines_per_file {
            let message = format!(
                "{path} has {} changed lines, more than {}",
                added.len() + removed,
                config.max_lines_per_file
            );
            scope.reasons.push(refuse(
                "too_many_lines",
                path,
                message,
                "propose smaller steps",
            ));
        }
    }
    if all.len() > config.max_files
        && let Some(first) = all.first()
    {
        let message = format!(
            "{} files are changed, more than {}",
            all.len(),
            config.max_files
        );
        scope.reasons.push(refuse(
            "too_many_files",
            first.path,
            message,
            "propose smaller steps",
        ));
    }
    if all.is_empty() {
        scope.reasons.push(Reason {
            code: "nothing".into(),
            stage: STAGE.into(),
            at: None,
            message: "it changes nothing".into(),
            hint: None,
        });
    }
    if let Err(error) = candidate.check_names() {
        scope.reasons.push(Reason {
            code: "names".into(),
            stage: STAGE.into(),
            at: None,
            message: error.to_string(),
            hint: None,
        });
    }
    scope.facts = json!({"files": listed});
    scope
}

/// This stage's name.
pub const STAGE: &str = "1-scope";

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> Tree {
        let mut tree = Tree::default();
        for (name, text) in files {
            tree.put(TreePath::new(*name).unwrap(), Entry::file(*text));
        }
        tree
    }

    fn codes(base: &Tree, candidate: &Tree, claimed: Option<Risk>) -> Vec<String> {
        judge(base, candidate, &Config::default(), claimed)
            .reasons
            .into_iter()
            .map(|reason| reason.code)
            .collect()
    }

    #[test]
    fn what_a_proposal_is_judged_by_is_out_of_its_reach() {
        let base = tree(&[("a.py", "1\n"), ("tests/test_a.py", "x\n")]);
        for path in [
            "evolve.toml",
            "deploy/server.KEY",
            "a.pem",
            "sub/capability.yaml",
            ".env",
            "Evolve.toml",
            ".env.local",
        ] {
            let candidate = tree(&[("a.py", "1\n"), ("tests/test_a.py", "x\n"), (path, "x\n")]);
            assert_eq!(
                codes(&base, &candidate, Some(Risk::Critical)),
                ["immutable"],
                "{path}"
            );
        }
    }

    #[test]
    fn tests_ci_and_what_it_is_made_of_need_a_critical_proposal() {
        let base = tree(&[("a.py", "1\n"), ("tests/test_a.py", "x\n")]);
        for path in [
            "conftest.py",
            "pkg/conftest.py",
            "sitecustomize.py",
            "x.pth",
            ".github/workflows/ci.yml",
            "build.rs",
            "Cargo.lock",
            "package-lock.json",
            "poetry.lock",
            ".cargo/config.toml",
            "rust-toolchain.toml",
            "pyproject.toml",
            "setup.cfg",
            "pytest.ini",
            "src/test_b.py",
            "tests/conftest.py",
            "requirements-dev.txt",
            "CONFTEST.py",
            "sitecustomize/__init__.py",
            "environment.yml",
        ] {
            let candidate = tree(&[("a.py", "1\n"), ("tests/test_a.py", "x\n"), (path, "x\n")]);
            assert_eq!(
                codes(&base, &candidate, Some(Risk::Low)),
                ["immutable"],
                "{path}"
            );
            assert_eq!(
                codes(&base, &candidate, Some(Risk::Critical)),
                [""; 0],
                "{path}"
            );
            assert_eq!(
                judge(&base, &candidate, &Config::default(), Some(Risk::Critical)).risk,
                Risk::Critical
            );
        }
        // Removing or editing a test is touching it.
        assert_eq!(codes(&base, &tree(&[("a.py", "1\n")]), None), ["immutable"]);
        assert_eq!(
            codes(
                &base,
                &tree(&[("a.py", "1\n"), ("tests/test_a.py", "y\n")]),
                None
            ),
            ["immutable"]
        );
    }

    #[test]
    fn links_modes_binaries_and_masses_are_refused() {
        let base = tree(&[("a.py", "1\n")]);
        let with = |entry: Entry| {
            let mut tree = base.clone();
            tree.put(TreePath::new("b").unwrap(), entry);
            tree
        };
        assert_eq!(
            codes(
                &base,
                &with(Entry {
                    mode: Mode::Link,
                    blob: b"/etc".as_slice().into()
                }),
                None
            ),
            ["symlink"]
        );
        assert_eq!(
            codes(
                &base,
                &with(Entry {
                    mode: Mode::Executable,
                    blob: b"x".as_slice().into()
                }),
                None
            ),
            ["mode"]
        );
        assert_eq!(
            codes(&base, &with(Entry::file(b"\0\xff".to_vec())), None),
            ["binary"]
        );
        assert_eq!(
            codes(&base, &with(Entry::file("x\n".repeat(501))), None),
            ["too_many_lines"]
        );
        let mut many = base.clone();
        for n in 0..11 {
            many.put(
                TreePath::new(format!("f{n}.py")).unwrap(),
                Entry::file("x\n"),
            );
        }
        assert_eq!(codes(&base, &many, None), ["too_many_files"]);
        assert_eq!(codes(&base, &base, None), ["nothing"]);
        assert_eq!(codes(&base, &with(Entry::file("x\n")), None), [""; 0]);
    }
}
