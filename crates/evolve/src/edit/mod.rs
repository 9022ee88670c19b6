//! Applies a request to a tree. An edit that matches nothing, or more than it says, fails, and so does the whole request.

mod patch;
mod typed;

use crate::lang::Lang;
use crate::path::TreePath;
use crate::request::{Modification, Request};
use crate::tree::{Entry, Mode, Tree, TreeError};

/// A modification can't be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EditError {
    /// Not among the request's files.
    #[error("{0} is not listed in target_files")]
    NotATarget(TreePath),
    /// Listed, and not changed.
    #[error("{0} is listed in target_files, and no modification changes it")]
    Unchanged(TreePath),
    /// No such file.
    #[error("{0} is not there")]
    Absent(TreePath),
    /// There is one already.
    #[error("{0} is there already")]
    Present(TreePath),
    /// A link, or not text.
    #[error("{0} is not a text file")]
    NotText(TreePath),
    /// Of no language that is known.
    #[error("{0} is not Python, Rust, JavaScript or TypeScript")]
    Language(TreePath),
    /// The file can't be read as its language, before or after.
    #[error("{file} is not valid {when} the edit, in line {line}")]
    Syntax {
        /// Which.
        file: TreePath,
        /// `before` or `after`.
        when: &'static str,
        /// Where.
        line: usize,
    },
    /// It matches more or less often than it says.
    #[error("{what} is in {file} {found} times, not {expected}")]
    Count {
        /// What was looked for.
        what: String,
        /// Where.
        file: TreePath,
        /// How often it is there.
        found: usize,
        /// How often it should be.
        expected: usize,
    },
    /// Something else about what it asks for.
    #[error("{0}")]
    Invalid(String),
    /// A patch that does not fit.
    #[error("the patch does not apply: {0}")]
    Patch(String),
    /// A tree that can't be.
    #[error("the changed tree can't be")]
    Tree(#[from] TreeError),
}

/// The tree after a request.
///
/// # Errors
/// The first modification that can't be made.
pub fn apply(base: &Tree, request: &Request) -> Result<Tree, EditError> {
    let mut tree = base.clone();
    for modification in &request.modifications {
        let mut work = Work {
            tree: &mut tree,
            request,
        };
        work.make(modification)?;
    }
    for target in &request.target_files {
        if base.get(target) == tree.get(target) {
            return Err(EditError::Unchanged(target.clone()));
        }
    }
    tree.check_names()?;
    Ok(tree)
}

struct Work<'a> {
    tree: &'a mut Tree,
    request: &'a Request,
}

impl Work<'_> {
    fn make(&mut self, modification: &Modification) -> Result<(), EditError> {
        match modification {
            Modification::AddImport { file, import } => self.rewrite(file, |lang, text| {
                typed::add_import(lang, text, file, import)
            }),
            Modification::AddDecorator {
                file,
                function,
                decorator,
            } => self.rewrite(file, |lang, text| {
                typed::add_decorator(lang, text, file, function, decorator)
            }),
            Modification::ReplaceBody {
                file,
                function,
                body,
            } => self.rewrite(file, |lang, text| {
                typed::replace_body(lang, text, file, function, body)
            }),
            Modification::Rename {
                file,
                from,
                to,
                count,
            } => self.rewrite(file, |lang, text| {
                typed::rename(lang, text, file, from, to, *count)
            }),
            Modification::Rewrite {
                file,
                pattern,
                with,
                count,
            } => self.rewrite(file, |lang, text| {
                typed::rewrite(lang, text, file, pattern, with, *count)
            }),
            Modification::AddFile { file, text } => {
                self.check_target(file)?;
                if self.tree.get(file).is_some() {
                    return Err(EditError::Present(file.clone()));
                }
                self.tree.put(file.clone(), Entry::file(text.as_str()));
                Ok(())
            }
            Modification::RemoveFile { file } => {
                self.check_target(file)?;
                self.tree
                    .take(file)
                    .map(drop)
                    .ok_or_else(|| EditError::Absent(file.clone()))
            }
            Modification::Patch(text) => self.patch(text),
        }
    }

    fn check_target(&self, file: &TreePath) -> Result<(), EditError> {
        if self.request.target_files.contains(file) {
            Ok(())
        } else {
            Err(EditError::NotATarget(file.clone()))
        }
    }

    /// The text of a file that is to be changed, and its mode.
    fn text(&self, file: &TreePath) -> Result<(Mode, String), EditError> {
        self.check_target(file)?;
        let entry = self
            .tree
            .get(file)
            .ok_or_else(|| EditError::Absent(file.clone()))?;
        match (entry.mode, entry.text()) {
            (Mode::File | Mode::Executable, Some(text)) => Ok((entry.mode, text.to_owned())),
            _ => Err(EditError::NotText(file.clone())),
        }
    }

    /// Changes a file by its structure. It is valid before and after.
    fn rewrite(
        &mut self,
        file: &TreePath,
        change: impl FnOnce(Lang, &str) -> Result<String, EditError>,
    ) -> Result<(), EditError> {
        let (mode, text) = self.text(file)?;
        let lang = Lang::of(file).ok_or_else(|| EditError::Language(file.clone()))?;
        check_syntax(lang, &text, file, "before")?;
        let changed = change(lang, &text)?;
        check_syntax(lang, &changed, file, "after")?;
        self.tree.put(
            file.clone(),
            Entry {
                mode,
                blob: changed.into_bytes().into(),
            },
        );
        Ok(())
    }

    fn patch(&mut self, text: &str) -> Result<(), EditError> {
        for part in patch::parse(text)? {
            self.check_target(&part.file)?;
            let (mode, before) = match part.kind {
                patch::Kind::Add => match self.tree.get(&part.file) {
                    Some(_) => return Err(EditError::Present(part.file)),
                    None => (Mode::File, String::new()),
                },
                patch::Kind::Change | patch::Kind::Remove => self.text(&part.file)?,
            };
            let after = patch::apply(&part, &before)?;
            match part.kind {
                patch::Kind::Remove if !after.is_empty() => {
                    return Err(EditError::Patch(format!(
                        "{} is removed, and not all of it is taken out",
                        part.file
                    )));
                }
                patch::Kind::Remove => {
                    self.tree.take(&part.file);
                }
                _ => self.tree.put(
                    part.file,
                    Entry {
                        mode,
                        blob: after.into_bytes().into(),
                    },
                ),
            }
        }
        Ok(())
    }
}

fn check_syntax(
    lang: Lang,
    text: &str,
    file: &TreePath,
    when: &'static str,
) -> Result<(), EditError> {
    let wrong = |line| EditError::Syntax {
        file: file.clone(),
        when,
        line,
    };
    let ast = lang.parse(text).map_err(|_| wrong(1))?;
    match crate::lang::first_error(&ast) {
        Some(line) => Err(wrong(line)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
