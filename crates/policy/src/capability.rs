//! The capability: everything one agent may do, as data.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};

use crate::{
    EgressRule, EnvPolicy, Ground, ImageName, Limits, LlmTerms, PathRule, PathTable, Places,
    ProxyTerms, PublishedPort, Rule, SecretRule, ToolRules,
};

/// What stands between a program and the host's kernel. Two may be of one [`Strength`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Tier {
    /// Namespaces, Landlock and seccomp on the host's kernel; `seccomp` in files.
    #[serde(rename = "seccomp")]
    Native,
    /// The same around the files of an image, which it can't do without.
    #[serde(rename = "container")]
    Container,
    /// A kernel in user space.
    #[serde(rename = "gvisor")]
    Gvisor,
    /// A virtual machine by QEMU.
    #[serde(rename = "microvm")]
    Microvm,
    /// A virtual machine by Firecracker.
    #[serde(rename = "firecracker")]
    Firecracker,
}

impl Tier {
    /// The name used in policy files.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Native => "seccomp",
            Self::Container => "container",
            Self::Gvisor => "gvisor",
            Self::Microvm => "microvm",
            Self::Firecracker => "firecracker",
        }
    }

    /// How strong the wall is. An image changes what is to be seen inside, not what holds a program in: so `container` is as
    /// strong as `seccomp`, and a child may move between the two.
    #[must_use]
    pub fn strength(self) -> Strength {
        Strength(match self {
            Self::Native | Self::Container => 0,
            Self::Gvisor => 1,
            Self::Microvm => 2,
            Self::Firecracker => 3,
        })
    }
}

/// How strong a tier's wall is, from weakest to strongest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Strength(u8);

/// What the host's tree looks like from inside. Ordered from least to most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FsMode {
    /// Only what a program needs to start.
    None,
    /// The tree less hidden paths; writes go to private storage only.
    ReadOnly,
    /// The same, and the writable paths can be written.
    ReadWrite,
}

impl FsMode {
    /// The name used in policy files.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::ReadOnly => "read_only",
            Self::ReadWrite => "read_write",
        }
    }
}

/// Where writes to the workspace land. Ordered from least to most power.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Workspace {
    /// In a layer of their own, applied or discarded afterwards.
    Overlay,
    /// In the files themselves.
    Direct,
}

impl Workspace {
    /// The name used in policy files.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Overlay => "overlay",
        }
    }
}

/// What an agent finds at its home directory. Ordered from least to most power.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HomeMode {
    /// The host's, for reading.
    ReadOnly,
    /// The host's, less what is hidden, with all changes in a copy of the box's own that is kept for its next run.
    Private,
}

impl HomeMode {
    /// The name used in policy files.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ReadOnly => "read_only",
            Self::Private => "private",
        }
    }
}

/// A named power.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Permission {
    /// See the environment beyond the base variables.
    ReadEnv,
    /// Start programs.
    SpawnSubprocess,
}

impl Permission {
    /// The name used in policy files.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ReadEnv => "read_env",
            Self::SpawnSubprocess => "spawn_subprocess",
        }
    }
}

/// What to do on a host that cannot hold every wall. Ordered from least to most risk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Degraded {
    /// Do not start.
    Refuse,
    /// Start with the walls there are, and say so (`degraded: true`).
    Accept,
}

/// Whether a virtual machine's processor may be emulated. Ordered from least to most risk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Emulation {
    /// No: the processor itself keeps a guest in.
    Refuse,
    /// Yes: the emulator does (`allow_emulation: true`).
    Allow,
}

/// `true` or `false`, as files have it.
impl Serialize for Emulation {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bool(*self == Self::Allow)
    }
}

/// `true` or `false`, as files have it.
impl Serialize for Degraded {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bool(*self == Self::Accept)
    }
}

/// The part of the host's tree an agent sees, as rules. [`PathTable`] is what they come to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Filesystem {
    /// How much of the tree is there.
    pub mode: FsMode,
    /// Where writes land.
    pub workspace: Workspace,
    /// What is at the home directory.
    pub home: HomeMode,
    /// Paths that may be written; empty in `read_write` mode means the working directory.
    #[serde(rename = "writable_paths")]
    pub writable: Vec<Rule<PathRule>>,
    /// Paths that may be read although they would not be.
    #[serde(rename = "readable_paths")]
    pub readable: Vec<Rule<PathRule>>,
    /// Paths that are not there.
    #[serde(rename = "hidden_paths")]
    pub hidden: Vec<Rule<PathRule>>,
    /// Paths that may not be written though they are under a writable one.
    #[serde(rename = "protected_paths")]
    pub protected: Vec<Rule<PathRule>>,
}

/// Everything one agent may do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Capability {
    /// File or profile name, for messages.
    #[serde(serialize_with = "as_text")]
    pub name: Arc<str>,
    /// How strong the wall is.
    #[serde(rename = "sandbox_tier")]
    pub tier: Tier,
    /// What to do on a host that cannot hold every wall.
    pub degraded: Degraded,
    /// Whether a virtual machine may be emulated.
    #[serde(rename = "allow_emulation")]
    pub emulation: Emulation,
    /// The image whose files the box has in place of the host's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<Rule<ImageName>>,
    /// The working directory, where the file chooses one.
    #[serde(rename = "root")]
    pub workdir: Option<Rule<PathRule>>,
    /// The part of the host's tree it sees.
    #[serde(rename = "filesystem_config")]
    pub filesystem: Filesystem,
    /// Where it may connect; nothing listed means nowhere.
    #[serde(rename = "network_egress_rules")]
    pub egress: Vec<Rule<EgressRule>>,
    /// What is put into its requests on the way out.
    pub secrets: Vec<Rule<SecretRule>>,
    /// Its ports that the host can connect to.
    pub ports: Vec<Rule<PublishedPort>>,
    /// How its calls to models are metered.
    pub llm: LlmTerms,
    /// The proxy its connections go through, where the host's network has one.
    pub upstream_proxy: Option<Rule<ProxyTerms>>,
    /// What it may use.
    #[serde(rename = "resource_limits")]
    pub limits: Limits,
    /// Its named powers.
    pub permissions: BTreeSet<Permission>,
    /// The variables it sees.
    #[serde(rename = "env_allowlist")]
    pub env: EnvPolicy,
    /// The MCP tools it may call.
    pub tools: ToolRules,
}

impl Capability {
    /// The capability that grants nothing: the ground every document is built on, so that a field
    /// nobody wrote is a power nobody has. It has no limits, for there is nothing to limit.
    #[must_use]
    pub fn closed(name: Arc<str>) -> Self {
        Self {
            name,
            tier: Tier::Native,
            degraded: Degraded::Refuse,
            emulation: Emulation::Refuse,
            image: None,
            workdir: None,
            filesystem: Filesystem {
                mode: FsMode::None,
                workspace: Workspace::Direct,
                home: HomeMode::ReadOnly,
                writable: Vec::new(),
                readable: Vec::new(),
                hidden: Vec::new(),
                protected: Vec::new(),
            },
            egress: Vec::new(),
            secrets: Vec::new(),
            ports: Vec::new(),
            llm: LlmTerms::default(),
            upstream_proxy: None,
            limits: Limits::default(),
            permissions: BTreeSet::new(),
            env: EnvPolicy::default(),
            tools: ToolRules::closed(),
        }
    }

    /// What the filesystem rules come to on a host with these places.
    #[must_use]
    pub fn path_table(&self, places: &Places) -> PathTable {
        PathTable::resolve_on(self.ground(), &self.filesystem, places)
    }

    /// Whose files are there where no rule says anything.
    #[must_use]
    pub fn ground(&self) -> Ground {
        match self.image {
            Some(_) => Ground::Image,
            None => Ground::Host,
        }
    }
}

fn as_text<S: Serializer>(text: &Arc<str>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(text)
}
