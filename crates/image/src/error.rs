//! What goes wrong with images.

use crate::name::InvalidName;
use std::io;
use std::path::{Path, PathBuf};

/// Why an image can't be built, found, held or removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// No image of that name or digest.
    #[error("no image {0}")]
    NotFound(String),
    /// The beginning of more than one digest.
    #[error("{0} is the beginning of more than one digest")]
    Ambiguous(String),
    /// Not a name that an image can have.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// A running box uses it.
    #[error("image {0} is in use")]
    InUse(String),
    /// The store can't be read or written.
    #[error("the image store can't be used: {}", path.display())]
    Store {
        /// Which file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The source can't be read.
    #[error("can't read {what}")]
    Read {
        /// What of the source.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// Something in the source can't be made in the tree.
    #[error("can't unpack {entry}")]
    Unpack {
        /// Its path in the image.
        entry: String,
        /// What the system said.
        source: io::Error,
    },
    /// The source is not what it has to be, or an attack.
    #[error("{what}")]
    Refused {
        /// What is wrong.
        what: String,
        /// What to do about it.
        hint: &'static str,
    },
    /// More than the bounds allow.
    #[error("the image is too large: {0}")]
    TooLarge(String),
    /// The bytes are not those that their digest names.
    #[error("{what} is not what its digest says: it should be {named} and is {found}")]
    Corrupt {
        /// Which blob.
        what: String,
        /// The digest it is known by.
        named: String,
        /// That of the bytes.
        found: String,
    },
    /// A program or a service that is needed is not there or does not want.
    #[error("{what}")]
    Unavailable {
        /// What.
        what: String,
        /// What to install, start or change.
        hint: String,
    },
}

impl ImageError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::NotFound(_) => {
                "`belljar image list` shows what there is, `belljar image build` makes one"
            }
            Self::Ambiguous(_) => "write more of it",
            Self::Name(_) => {
                "a name has letters, digits and `._:-`, begins with a letter or a digit, and has at most 128 bytes"
            }
            Self::InUse(_) => "end the boxes that use it first: `belljar ps` lists them",
            Self::Corrupt { .. } => "fetch it again; nothing of it was kept",
            Self::Refused { hint, .. } => hint,
            Self::Unavailable { hint, .. } => return Some(hint.clone()),
            Self::Store { .. } | Self::Read { .. } | Self::Unpack { .. } | Self::TooLarge(_) => {
                return None;
            }
        };
        Some(hint.to_owned())
    }

    pub(crate) fn store(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Store { path, source }
    }

    pub(crate) fn read(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Read { what, source }
    }

    pub(crate) fn refused(what: impl Into<String>, hint: &'static str) -> Self {
        Self::Refused {
            what: what.into(),
            hint,
        }
    }
}
