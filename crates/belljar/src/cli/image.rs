//! Images: root file systems for boxes.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Format;

#[derive(Debug, Subcommand)]
pub(crate) enum Image {
    /// Make an image of a directory, a Debian suite, an OCI layout or an engine's image; of an unchanged source, nothing is done
    Build(Build),
    /// List images
    List {
        #[command(flatten)]
        format: Format,
    },
    /// Remove images that lost their name and what killed builds left; never one that a box uses
    Prune(Prune),
}

#[derive(Debug, Args)]
pub(crate) struct Build {
    /// What to call it: letters, digits and `._:-`
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) from: From,
    /// With --debian: packages besides the essential ones
    #[arg(
        long,
        value_name = "PACKAGES",
        value_delimiter = ',',
        requires = "debian"
    )]
    pub(crate) include: Vec<String>,
    /// With --engine: its socket [default: $DOCKER_HOST, or the first of Docker's and Podman's that is there]
    #[arg(long, value_name = "PATH", requires = "engine")]
    pub(crate) socket: Option<PathBuf>,
    /// Make it anew, whatever is there
    #[arg(long)]
    pub(crate) refresh: bool,
    #[command(flatten)]
    pub(crate) format: Format,
}

/// Where it comes from.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct From {
    /// A directory: its files, without devices, set-id bits and what is mounted in it
    #[arg(long, value_name = "DIR")]
    pub(crate) from_dir: Option<PathBuf>,
    /// A suite of Debian or Ubuntu, by mmdebstrap or debootstrap from this host's own mirror
    #[arg(long, value_name = "SUITE")]
    pub(crate) debian: Option<String>,
    /// An image in an OCI layout on disk
    #[arg(long, value_name = "LAYOUT[:REF]")]
    pub(crate) oci: Option<String>,
    /// An image that Docker or Podman has
    #[arg(long, value_name = "REF")]
    pub(crate) engine: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Prune {
    /// These, too
    #[arg(value_name = "NAME", conflicts_with = "all")]
    pub(crate) names: Vec<String>,
    /// Everything that no box uses
    #[arg(long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) format: Format,
}
