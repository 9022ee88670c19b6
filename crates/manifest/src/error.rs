//! What is wrong with a file, for people: the place, the line it is on, and what to write instead.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};

/// The first thing wrong with a policy file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestError {
    /// The file as the user named it.
    pub file: Arc<str>,
    /// 1-based line; 0 when the error is about the file as a whole.
    pub line: u32,
    /// 1-based column; 0 when the error is about the file as a whole.
    pub column: u32,
    /// What is wrong.
    pub message: String,
    /// What to write instead.
    pub hint: Option<String>,
    /// The byte range it is about.
    pub span: Range<usize>,
    /// The document, without a byte order mark; empty when it is not text, or when what is wrong may be a secret.
    pub source_text: Arc<str>,
}

impl ManifestError {
    /// An error about a file as a whole, whose text can't be shown.
    pub(crate) fn without_place(file: &Arc<str>, message: String) -> Self {
        Self {
            file: Arc::clone(file),
            line: 0,
            column: 0,
            message,
            hint: None,
            span: 0..0,
            source_text: Arc::from(""),
        }
    }

    /// The error with the lines it is about, for a terminal.
    #[must_use]
    pub fn render(&self, colour: Colour) -> String {
        let renderer = match colour {
            Colour::Plain => Renderer::plain(),
            Colour::Styled => Renderer::styled(),
        };
        let title = Level::ERROR.primary_title(self.message.as_str());
        let mut group = if self.line > 0 && self.source_text.is_empty() {
            let place = annotate_snippets::Origin::path(&*self.file);
            let (line, column) = (self.line as usize, self.column as usize);
            title.element(place.line(line).char_column(column))
        } else if self.line > 0 {
            let mark = AnnotationKind::Primary.span(self.span.clone());
            title.element(
                Snippet::source(&*self.source_text)
                    .path(&*self.file)
                    .annotation(mark),
            )
        } else {
            title.element(annotate_snippets::Origin::path(&*self.file))
        };
        if let Some(hint) = &self.hint {
            group = group.element(Level::HELP.message(hint.as_str()));
        }
        renderer.render(&[group])
    }
}

/// Whether a rendered error carries colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// Plain text.
    Plain,
    /// Terminal colours.
    Styled,
}

impl fmt::Display for ManifestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line > 0 {
            write!(
                f,
                "{}:{}:{}: {}",
                self.file, self.line, self.column, self.message
            )
        } else {
            write!(f, "{}: {}", self.file, self.message)
        }
    }
}

impl std::error::Error for ManifestError {}

/// Why a policy file could not be read.
#[derive(Debug)]
pub enum ReadError {
    /// The disk refused.
    Io {
        /// The file as the user named it.
        file: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file was read and is wrong.
    Manifest(ManifestError),
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { file, .. } => write!(f, "cannot read the policy file {file}"),
            Self::Manifest(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ReadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            Self::Manifest(_) => None,
        }
    }
}

impl From<ManifestError> for ReadError {
    fn from(error: ManifestError) -> Self {
        Self::Manifest(error)
    }
}
