//! `belljar doctor`.

use super::Format;
use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    #[command(flatten)]
    pub(crate) format: Format,
    /// Also measure how fast each tier starts here
    #[arg(long)]
    pub(crate) bench: bool,
}
