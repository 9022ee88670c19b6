//! The people who may review proposals.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Format;

#[derive(Debug, Subcommand)]
pub(crate) enum Reviewer {
    /// Let somebody review from now on
    Add(AddReviewer),
    /// List reviewers, those that were revoked too
    List {
        #[command(flatten)]
        format: Format,
    },
    /// Give a reviewer a second factor: shows a QR code; give --code to finish
    Enrol {
        /// Who
        name: String,
        /// The code that the authenticator shows
        #[arg(long, value_name = "DIGITS")]
        code: Option<String>,
    },
    /// Take somebody's right away; what they approved counts no more
    Revoke {
        /// Who
        name: String,
        #[command(flatten)]
        format: Format,
    },
}

#[derive(Debug, Args)]
#[group(id = "whose", required = true, multiple = false)]
pub(crate) struct AddReviewer {
    /// Their name: lower-case letters, digits, `.`, `-`, `_`
    pub(crate) name: String,
    /// The file of their key; made if there is none
    #[arg(long, value_name = "FILE", group = "whose")]
    pub(crate) key: Option<PathBuf>,
    /// Their public key, made elsewhere: 64 hexadecimal digits
    #[arg(long, value_name = "HEX", group = "whose")]
    pub(crate) public: Option<String>,
    #[command(flatten)]
    pub(crate) format: Format,
}
