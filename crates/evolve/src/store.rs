//! Where proposals are kept: `<state>/evolve/proposals/<id>/`. No box sees the state directory.

use std::fs;
use std::path::{Path, PathBuf};

use belljar_gate::clock::now;
use belljar_gate::record::{sha256_hex, words_sha256};
use belljar_manifest::ManifestError;

use crate::config::{self, Config};
use crate::disk;
use crate::edit::{self, EditError};
use crate::evidence::Statement;
use crate::pack;
use crate::path::TreePath;
use crate::pipeline::Outcome;
use crate::proposal::{Digests, Proposal, ProposalId, Risk, Status};
use crate::request::{self, Request};
use crate::tree::{Tree, TreeError};

/// Both trees of a proposal, in its directory.
const TREES: &str = "trees";

/// The proposals of a state directory.
#[derive(Clone, Debug)]
pub struct Store {
    root: PathBuf,
}

/// A proposal with all that belongs to it.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// What is known of it.
    pub proposal: Proposal,
    /// What its author asked for.
    pub request: Request,
    /// The tree before.
    pub base: Tree,
    /// The tree after.
    pub candidate: Tree,
    /// How it is judged, as the tree before says.
    pub config: Config,
}

/// A proposal can't be made, kept or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The disk refused.
    #[error("{} can't be used", path.display())]
    Io {
        /// What.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file is wrong.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The request can't be applied.
    #[error("the request can't be applied")]
    Edit(#[from] EditError),
    /// The project is no tree.
    #[error("the project can't be read")]
    Tree(#[from] TreeError),
    /// No such proposal.
    #[error("there is no proposal {0}, or more than one begins so")]
    Unknown(String),
    /// Stages have no say in it any more.
    #[error("proposal {id} is {status}")]
    Decided {
        /// Which.
        id: String,
        /// How far it has come.
        status: &'static str,
    },
    /// Somebody changed what is kept.
    #[error("what is kept of proposal {id} is not what it was: {what}")]
    Changed {
        /// Which.
        id: String,
        /// What.
        what: &'static str,
    },
}

impl Store {
    /// The proposals of this state directory.
    #[must_use]
    pub fn of(state: &Path) -> Self {
        Self {
            root: state.join("evolve"),
        }
    }

    /// The directory of a proposal.
    #[must_use]
    pub fn directory(&self, id: &ProposalId) -> PathBuf {
        self.root.join("proposals").join(id.as_str())
    }

    /// Where results of stages are kept, by what went into them.
    #[must_use]
    pub fn cache(&self) -> PathBuf {
        self.root.join("cache")
    }

    /// Applies a request to a copy of a project and keeps both. The project itself is only read.
    ///
    /// # Errors
    /// When the request, the project or the disk is not as it should be.
    pub fn propose(
        &self,
        project: &Path,
        file_name: &str,
        bytes: &[u8],
        by: &str,
    ) -> Result<Proposal, StoreError> {
        let request = request::parse(file_name, bytes)?;
        let project = project.canonicalize().map_err(io(project))?;
        let base = read_project(&project)?;
        let candidate = edit::apply(&base, &request)?;
        let (base_tree, candidate_tree) = (base.digest(), candidate.digest());
        let words = [
            b"belljar proposal 1".as_slice(),
            bytes,
            by.as_bytes(),
            base_tree.as_bytes(),
            candidate_tree.as_bytes(),
        ];
        let id = ProposalId::new(words_sha256(words))
            .map_err(|error| StoreError::Unknown(error.to_string()))?;
        let proposal = Proposal {
            id: id.clone(),
            by: by.to_owned(),
            description: request.description.clone(),
            base_tree,
            candidate_tree,
            git_tree: candidate.git_hash(),
            project: project.display().to_string(),
            risk: Risk::Critical,
            status: Status::Draft,
            reasons: Vec::new(),
            proposed_ms: now().wall_ms,
        };
        let place = self.directory(&id);
        if place.join("proposal.json").exists() {
            return self.read(&id);
        }
        // What an interrupted attempt left is of no use.
        if place.exists() {
            fs::remove_dir_all(&place).map_err(io(&place))?;
        }
        fs::create_dir_all(&place).map_err(io(&place))?;
        private(&self.root)?;
        let trees = place.join(TREES);
        let write = || -> std::io::Result<()> {
            let mut file = std::io::BufWriter::new(fs::File::create_new(&trees)?);
            pack::write(&mut file, [&base, &candidate])?;
            file.into_inner()?.sync_all()
        };
        write().map_err(io(&trees))?;
        replace(&place.join("request.yaml"), bytes)?;
        self.write(&proposal)?;
        Ok(proposal)
    }

    /// Every proposal, the newest first. One that can't be read is left out.
    ///
    /// # Errors
    /// When the directory can't be read.
    pub fn list(&self) -> Result<Vec<Proposal>, StoreError> {
        let place = self.root.join("proposals");
        let mut all = Vec::new();
        let items = match fs::read_dir(&place) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(all),
            other => other.map_err(io(&place))?,
        };
        for item in items {
            let name = item
                .map_err(io(&place))?
                .file_name()
                .to_string_lossy()
                .into_owned();
            if let Ok(id) = ProposalId::new(name)
                && let Ok(proposal) = self.read(&id)
            {
                all.push(proposal);
            }
        }
        all.sort_by_key(|proposal| std::cmp::Reverse(proposal.proposed_ms));
        Ok(all)
    }

    /// The proposal whose name begins with these digits.
    ///
    /// # Errors
    /// When there is none, or more than one.
    pub fn find(&self, digits: &str) -> Result<ProposalId, StoreError> {
        let mut known = self
            .list()?
            .into_iter()
            .filter(|proposal| proposal.id.begins_with(digits));
        match (known.next(), known.next()) {
            (Some(only), None) => Ok(only.id),
            _ => Err(StoreError::Unknown(digits.to_owned())),
        }
    }

    /// What is known of a proposal.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn read(&self, id: &ProposalId) -> Result<Proposal, StoreError> {
        let file = self.directory(id).join("proposal.json");
        let bytes = fs::read(&file).map_err(io(&file))?;
        serde_json::from_slice(&bytes).map_err(|_| StoreError::Changed {
            id: id.to_string(),
            what: "proposal.json can't be read",
        })
    }

    /// Keeps what is known of a proposal, whole or not at all.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn write(&self, proposal: &Proposal) -> Result<(), StoreError> {
        let bytes = serde_json::to_vec_pretty(proposal).unwrap_or_default();
        replace(&self.directory(&proposal.id).join("proposal.json"), &bytes)
    }

    /// A proposal with its trees, which are what they were: another byte in one is an error.
    ///
    /// # Errors
    /// When it can't be read, or somebody changed it.
    pub fn load(&self, id: &ProposalId) -> Result<Loaded, StoreError> {
        let proposal = self.read(id)?;
        let place = self.directory(id);
        let file = place.join("request.yaml");
        let bytes = fs::read(&file).map_err(io(&file))?;
        let changed = |what| StoreError::Changed {
            id: id.to_string(),
            what,
        };
        let trees = place.join(TREES);
        let packed = disk::read_bounded(&trees, pack::LONGEST).map_err(io(&trees))?;
        let [base, candidate] = pack::read(&packed.unwrap_or_default())
            .map_err(|_| changed("its trees can't be read"))?;
        if base.digest() != proposal.base_tree {
            return Err(changed("the tree before"));
        }
        if candidate.digest() != proposal.candidate_tree {
            return Err(changed("the tree after"));
        }
        let words = [
            b"belljar proposal 1".as_slice(),
            &bytes,
            proposal.by.as_bytes(),
            proposal.base_tree.as_bytes(),
            proposal.candidate_tree.as_bytes(),
        ];
        if words_sha256(words) != id.as_str() {
            return Err(changed("the request, or who made it"));
        }
        Ok(Loaded {
            request: request::parse("request.yaml", &bytes)?,
            config: config_of(&base)?,
            proposal,
            base,
            candidate,
        })
    }

    /// Notes that its stages begin.
    ///
    /// # Errors
    /// When people have decided about it, or the disk refuses.
    pub fn begin(&self, proposal: &mut Proposal) -> Result<(), StoreError> {
        self.check_undecided(&proposal.id)?;
        proposal.status = Status::Checking;
        self.write(proposal)
    }

    /// As it is on disk: stages take a while, and people may have decided meanwhile.
    fn check_undecided(&self, id: &ProposalId) -> Result<(), StoreError> {
        let known = self.read(id)?;
        match known.is_decided() {
            true => Err(StoreError::Decided {
                id: id.short().to_owned(),
                status: known.status.as_str(),
            }),
            false => Ok(()),
        }
    }

    /// Keeps what the stages found, and what follows for the proposal.
    ///
    /// # Errors
    /// When people have decided about it, or the disk refuses.
    pub fn settle(&self, proposal: &mut Proposal, outcome: &Outcome) -> Result<(), StoreError> {
        self.check_undecided(&proposal.id)?;
        let bytes = serde_json::to_vec_pretty(&outcome.statements).unwrap_or_default();
        replace(&self.directory(&proposal.id).join("evidence.json"), &bytes)?;
        proposal.risk = outcome.risk;
        proposal.reasons = outcome.reasons.clone();
        proposal.status = if outcome.passed {
            Status::Waiting
        } else {
            Status::Rejected
        };
        self.write(proposal)
    }

    /// What the stages found, if they ran.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn evidence(&self, id: &ProposalId) -> Result<Option<Vec<Statement>>, StoreError> {
        let file = self.directory(id).join("evidence.json");
        let bytes = match fs::read(&file) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            other => other.map_err(io(&file))?,
        };
        let statements = serde_json::from_slice(&bytes);
        statements.map(Some).map_err(|_| StoreError::Changed {
            id: id.to_string(),
            what: "evidence.json can't be read",
        })
    }

    /// What an approval is about. The trees are read again, so that it is what is there now.
    ///
    /// # Errors
    /// When something of it is not there, or somebody changed it.
    pub fn digests(&self, id: &ProposalId) -> Result<Digests, StoreError> {
        let loaded = self.load(id)?;
        let file = self.directory(id).join("evidence.json");
        let evidence = fs::read(&file).map_err(io(&file))?;
        Ok(Digests {
            base_tree: loaded.proposal.base_tree,
            candidate_tree: loaded.proposal.candidate_tree,
            evidence: sha256_hex(&evidence),
            policy: loaded.config.digest,
        })
    }
}

/// Reads a project once: what is left out says its own `evolve.toml`, which is read before the rest.
fn read_project(project: &Path) -> Result<Tree, StoreError> {
    let file = project.join(config::FILE);
    let is_there = fs::symlink_metadata(&file).is_ok_and(|facts| facts.is_file());
    let exclude = match is_there {
        true => config::parse(config::FILE, &fs::read(&file).map_err(io(&file))?)?.exclude,
        false => Config::default().exclude,
    };
    let base = Tree::read(project, &exclude)?;
    match config_of(&base)?.exclude == exclude {
        true => Ok(base),
        false => Err(io(&file)(std::io::Error::other("it is being changed"))),
    }
}

/// How the proposals of a tree are judged: its own `evolve.toml`, or the defaults.
///
/// # Errors
/// When the file is wrong.
pub fn config_of(base: &Tree) -> Result<Config, ManifestError> {
    let file = TreePath::new(config::FILE)
        .ok()
        .and_then(|path| base.get(&path).cloned());
    match file {
        Some(entry) => config::parse(config::FILE, &entry.blob),
        None => Ok(Config::default()),
    }
}

fn io(path: &Path) -> impl FnOnce(std::io::Error) -> StoreError {
    let path = path.to_owned();
    |source| StoreError::Io { path, source }
}

fn private(path: &Path) -> Result<(), StoreError> {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(path, fs::Permissions::from_mode(0o700)).map_err(io(path))
}

/// Writes a file whole: another one, then renamed.
fn replace(file: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    belljar_files::replace(file, bytes, belljar_files::PRIVATE).map_err(io(file))
}
