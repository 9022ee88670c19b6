//! The commands about proof: the record, the keys that sign it, the manifests of replicas.

use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

use super::{Format, seconds};

/// Exit codes of `belljar audit verify`.
pub(crate) const VERIFY_HELP: &str = "\
Exit codes:
    0  the log is whole, and signed by a key of yours; or there is no log, no key, and so nothing to record
    1  tampered with: the message names the entry or file
    3  truncated: entries are missing at its end
    4  not signed by a key of yours, or empty though it should not be
    5  stale: its newest signature is older than --max-age, or by a key that another has replaced since
    6  it can't be read

Verifying `runs` checks the fleet's log too, as far as it was noted there, and the other way round. The log itself can't
show that it was put back to an earlier state: keep a checkpoint elsewhere for --since, or ask for --max-age.";

pub(crate) const MANIFEST_HELP: &str = "\
The log names the manifest of each box of a family by its SHA-256, on record before the box's first instruction; the manifest itself
is kept below fleet/manifests. It says what ran: program, state, capability, policy, budget, parent and depth.

Exit codes:
    0  it is the one that the log names, and signed by a key of yours
    1  its signature does not hold under your keys
  121  there is no such manifest, or its file was changed";

/// Which log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogName {
    /// Every launch and end of `belljar run`
    Runs,
    /// Every decision about replicas
    Fleet,
}

#[derive(Debug, Args)]
pub(crate) struct LogChoice {
    /// Which of the two logs
    #[arg(long, value_enum, default_value_t = LogName::Runs)]
    pub(crate) log: LogName,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Audit {
    /// Check the record against its signatures, entry by entry
    #[command(after_help = VERIFY_HELP)]
    Verify(Verify),
    /// Print entries; checks nothing
    Show {
        #[command(flatten)]
        log: LogChoice,
        /// Only this entry
        #[arg(long, value_name = "N")]
        entry: Option<u64>,
        /// From this entry on
        #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "entry")]
        from: u64,
        /// At most so many
        #[arg(long, value_name = "N", conflicts_with = "entry")]
        limit: Option<u64>,
        #[command(flatten)]
        format: Format,
    },
    /// Print the newest entries, and further ones as they come
    Tail {
        #[command(flatten)]
        log: LogChoice,
        /// How many to begin with
        #[arg(long, short = 'n', value_name = "N", default_value_t = 10)]
        lines: u64,
        /// Go on until interrupted
        #[arg(long, short)]
        follow: bool,
        #[command(flatten)]
        format: Format,
    },
    /// Write a proof that an entry is in the log, to be checked anywhere without the log
    Prove {
        #[command(flatten)]
        log: LogChoice,
        /// Which entry
        #[arg(long, value_name = "N")]
        entry: u64,
        /// Where to; standard output if not given
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Print the whole log for other tools, one JSON object a line
    Export {
        #[command(flatten)]
        log: LogChoice,
        /// As it stands in the log, or as OCSF events for a SIEM
        #[arg(long, value_enum, default_value_t = ExportFormat::Jsonl)]
        format: ExportFormat,
    },
    /// Print the signed manifest that a box ran under, checked against its digest and its signature
    #[command(after_help = MANIFEST_HELP)]
    Manifest {
        /// Its digest, or the worker it was for, as entries of the fleet's log name them; the beginning of either will do
        #[arg(value_name = "DIGEST|WORKER")]
        which: String,
        #[command(flatten)]
        format: Format,
    },
    /// Print the newest signed checkpoint: keep it elsewhere, and `verify --since` will notice a log cut back or replaced
    Checkpoint {
        #[command(flatten)]
        log: LogChoice,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportFormat {
    /// The entries themselves
    Jsonl,
    /// Open Cybersecurity Schema Framework
    Ocsf,
}

#[derive(Debug, Args)]
pub(crate) struct Verify {
    /// Which of the two logs; for a proof, the log it must be of [default: runs; for a proof, either]
    #[arg(long, value_enum)]
    pub(crate) log: Option<LogName>,
    /// A checkpoint kept from earlier: the log must go on from there
    #[arg(long, value_name = "FILE")]
    pub(crate) since: Option<PathBuf>,
    /// Fail if the newest signature is older than so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) max_age: Option<std::time::Duration>,
    /// Check a proof file from `audit prove` instead of the log
    #[arg(long, value_name = "FILE", conflicts_with_all = ["since", "max_age"])]
    pub(crate) proof: Option<PathBuf>,
    /// The proof must be about this entry
    #[arg(long, value_name = "N", requires = "proof")]
    pub(crate) entry: Option<u64>,
    /// Public keys to believe, a keyset.json; this state directory's own if not given
    #[arg(long, value_name = "FILE")]
    pub(crate) keyset: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) format: Format,
}

/// Which keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum KeyKind {
    /// Sign the logs, and manifests
    Ed25519,
    /// Sign manifests, where the contract says so
    Hmac,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Keys {
    /// Make the first key, if there is none
    Init {
        #[command(flatten)]
        format: Format,
    },
    /// List keys and their states
    List {
        #[command(flatten)]
        format: Format,
    },
    /// Make a new key that signs from now on; the one before is retired
    ///
    /// With BELLJAR_KEY_FILE or BELLJAR_KEY_COMMAND the new key is the one found there: put it in place first.
    Rotate {
        /// Which keys
        #[arg(long, value_enum, default_value_t = KeyKind::Ed25519)]
        algorithm: KeyKind,
        #[command(flatten)]
        format: Format,
    },
    /// Let a key verify but sign no more
    Retire {
        /// Its id, or the beginning of it
        key: String,
        #[command(flatten)]
        format: Format,
    },
    /// Believe nothing that this key signed; replicas it vouched for are quarantined
    ///
    /// The logs are verified and signed by another key first. Whoever had the key could have written to them until now:
    /// hold them against a checkpoint kept elsewhere, with `belljar audit verify --since`.
    Compromise {
        /// Its id, or the beginning of it
        key: String,
        #[command(flatten)]
        format: Format,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Manifest {
    /// Print what a manifest says; checks nothing
    Show {
        /// A manifest.json, as an agent has it in /belljar
        file: PathBuf,
        #[command(flatten)]
        format: Format,
    },
    /// Check manifests offline: signature, and the whole chain from the root on; exit 0 if they hold, 1 if not
    ///
    /// Where this state directory's fleet issued them, its log says what was revoked. Elsewhere that can't be known, and
    /// the answer says so.
    Verify {
        /// The manifests, root first; one file may hold the whole chain
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Public keys to believe, a keyset.json; this state directory's own if not given
        #[arg(long, value_name = "FILE")]
        keyset: Option<PathBuf>,
        #[command(flatten)]
        format: Format,
    },
}
