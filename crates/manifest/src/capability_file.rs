//! `capability.yaml`: its shape, and how it becomes a capability.

use std::sync::Arc;

use belljar_policy::{
    Capability, Degraded, DomainPattern, Emulation, EnvAllow, FsMode, HomeMode, Permission, Source,
    Tier, Workspace,
};

use crate::decode::{
    Written, add_withheld, limit, mebibytes, number, permission, replace, seconds, text, truth,
    unexpected, whole,
};
use crate::egress_section::{EGRESS, egress};
use crate::mcp_section::{MCP, decode_mcp};
use crate::network_section::{LLM, ON_BUDGET, PUBLISHED, decode_network, on_budget};
use crate::node::{Node, Problem};
use crate::profiles;
use crate::secrets_section::{SECRETS, UPSTREAM_PROXY, decode_secrets};
use crate::shape::{Case, Choice, Field, Object, Shape, field};

/// What to say of a file with nothing in it.
pub(crate) const WHEN_EMPTY: &str = "the file is empty; `{}` means all defaults";

/// About a hundred years: longer than anything runs, and far from overflowing a clock.
pub(crate) const MOST_SECONDS: f64 = 3_155_760_000.0;

/// 16 TiB, in MiB.
pub(crate) const MOST_MEBIBYTES: u64 = 16_777_216;

/// Requests per minute when a rule does not say.
pub(crate) const DEFAULT_RATE: u32 = 60;

pub(crate) const MOST_ITEMS: usize = 10_000;

pub(crate) const PATH: Shape = Shape::Text { most: 4096 };
pub(crate) const PATHS: Shape = Shape::List {
    item: &PATH,
    most: MOST_ITEMS,
};
pub(crate) const TEXTS: Shape = Shape::List {
    item: &Shape::Text { most: 4096 },
    most: MOST_ITEMS,
};
pub(crate) const PORTS: Shape = Shape::List {
    item: &Shape::Whole {
        least: 1,
        most: 65_535,
    },
    most: MOST_ITEMS,
};
pub(crate) const RATE: Shape = Shape::Whole {
    least: 1,
    most: 1_000_000,
};
pub(crate) const SIZE: Shape = Shape::Whole {
    least: 1,
    most: MOST_MEBIBYTES,
};
pub(crate) const SECONDS: Shape = Shape::Number {
    above: 0.0,
    most: MOST_SECONDS,
};
pub(crate) const CPU_PERCENT: Shape = Shape::Number {
    above: 0.0,
    most: 102_400.0,
};
pub(crate) const PROCESSES: Shape = Shape::Whole {
    least: 1,
    most: 4_194_304,
};
pub(crate) const OPEN_FILES: Shape = Shape::Whole {
    least: 16,
    most: 1_048_576,
};

pub(crate) const CONNECTIONS: Shape = Shape::Whole {
    least: 1,
    most: 1_048_576,
};
pub(crate) const COST: Shape = Shape::Number {
    above: 0.0,
    most: 1e9,
};
pub(crate) const TOKENS: Shape = Shape::Whole {
    least: 1,
    most: 1_000_000_000_000_000,
};

/// One of these words, spelled so.
#[must_use]
pub const fn words(words: &'static [&'static str]) -> Choice {
    Choice {
        words,
        case: Case::Exact,
        refused: &[],
    }
}

pub(crate) static WORKSPACE: Choice = words(&["direct", "overlay"]);
pub(crate) static HOME: Choice = words(&["read_only", "private"]);
/// What both kinds of file say about the key.
pub(crate) const HOME_DOC: &str = "read_only: the host's home directory, less what is hidden, can't be written. private: the agent writes in a copy of its own, kept for the project's next run; the host's files stay as they are.";

/// The same in both kinds of file.
pub(crate) const IMAGE: Field = field(
    "image",
    Shape::Text { most: 128 },
    "The image whose files the agent has in place of the host's; `belljar image list` shows what there is. The working directory and the paths of filesystem_config are still the host's.",
);

/// The whole document.
pub(crate) static CAPABILITY: Object = Object {
    name: "",
    doc: "What an agent may touch and spend. Every key is optional; what is not said is not granted.",
    fields: &[
        field(
            "extends",
            Shape::Choice(&words(&["strict", "moderate", "permissive"])),
            "The profile this file changes. Without it, small defaults apply.",
        ),
        field(
            "sandbox_tier",
            Shape::Choice(&words(&[
                "seccomp",
                "container",
                "gvisor",
                "microvm",
                "firecracker",
            ])),
            "How strong the wall is.",
        ),
        IMAGE,
        field(
            "allow_emulation",
            Shape::Bool,
            "Whether a virtual machine's processor may be emulated: slow, and needed where the host can't run one.",
        ),
        field(
            "degraded",
            Shape::Bool,
            "Whether to start on a host that cannot hold every wall.",
        ),
        field(
            "network_egress_rules",
            Shape::List {
                item: &Shape::Object(&EGRESS),
                most: MOST_ITEMS,
            },
            "Where the agent may connect; an empty list is nowhere.",
        ),
        SECRETS,
        PUBLISHED,
        LLM,
        UPSTREAM_PROXY,
        field(
            "mcp",
            Shape::Object(&MCP),
            "What the agent may ask of MCP servers, and they of it.",
        ),
        field(
            "filesystem_config",
            Shape::Object(&FILESYSTEM),
            "What the agent sees of the host's files.",
        ),
        field(
            "resource_limits",
            Shape::Object(&LIMITS),
            "What the whole process tree may use; null is no limit.",
        ),
        field(
            "permissions",
            Shape::List {
                item: &Shape::Choice(&words(&["read_env", "spawn_subprocess"])),
                most: MOST_ITEMS,
            },
            "Named powers.",
        ),
        field(
            "env_allowlist",
            Shape::OrNull(&TEXTS),
            "Variables the agent sees beside PATH, HOME, LANG and their like. Secrets never pass.",
        ),
    ],
};

static FILESYSTEM: Object = Object {
    name: "filesystem_config",
    doc: "What the agent sees of the host's files. The longest path that contains a file decides.",
    fields: &[
        field(
            "mode",
            Shape::Choice(&words(&["none", "read_only", "read_write"])),
            "none: what a program needs to start. read_only: the tree less hidden paths. read_write: the same, and the writable paths can be written.",
        ),
        field(
            "workspace",
            Shape::Choice(&WORKSPACE),
            "direct: writes land in the files. overlay: writes are kept apart until applied.",
        ),
        field("home", Shape::Choice(&HOME), HOME_DOC),
        field(
            "writable_paths",
            PATHS,
            "Paths that may be written, in mode read_write; an empty list is the working directory.",
        ),
        field(
            "readable_paths",
            PATHS,
            "Paths that may be read although they would be hidden.",
        ),
        field(
            "hidden_paths",
            PATHS,
            "Paths that are not there, beside the built-in ones; `**/NAME` hides every file of that name.",
        ),
        field(
            "protected_paths",
            PATHS,
            "Paths that may not be written though they are under a writable one, beside the built-in ones.",
        ),
    ],
};

static LIMITS: Object = Object {
    name: "resource_limits",
    doc: "What the whole process tree may use; null is no limit.",
    fields: &[
        field("max_memory_mb", Shape::OrNull(&SIZE), "Memory, in MiB."),
        field(
            "max_cpu_seconds",
            Shape::OrNull(&SECONDS),
            "CPU time of all processes together.",
        ),
        field(
            "max_cost_usd",
            Shape::OrNull(&COST),
            "Spending on calls to models, in US dollars.",
        ),
        field(
            "max_tokens",
            Shape::OrNull(&TOKENS),
            "Tokens of calls to models.",
        ),
        field(
            "on_budget",
            Shape::Choice(&ON_BUDGET),
            "The same as on_budget of llm.",
        ),
        field(
            "max_connections",
            Shape::OrNull(&CONNECTIONS),
            "Open connections at once.",
        ),
        field(
            "max_wall_seconds",
            Shape::OrNull(&SECONDS),
            "Time from start to end.",
        ),
        field(
            "max_cpu_percent",
            Shape::OrNull(&CPU_PERCENT),
            "Share of one CPU; 200 is two CPUs.",
        ),
        field(
            "max_processes",
            Shape::OrNull(&PROCESSES),
            "Processes and threads at once.",
        ),
        field(
            "max_open_files",
            Shape::OrNull(&OPEN_FILES),
            "Open files per process.",
        ),
        field(
            "max_file_size_mb",
            Shape::OrNull(&SIZE),
            "Size of any one file written, in MiB.",
        ),
        field(
            "max_disk_mb",
            Shape::OrNull(&SIZE),
            "Everything written to private directories, in MiB. Refused where files of the host can be written: nothing holds it there.",
        ),
    ],
};

/// Turns a tree into a capability.
pub(crate) fn decode(
    root: &Node<'_>,
    file: &Arc<str>,
    source: Source,
) -> Result<Capability, Problem> {
    Shape::Object(&CAPABILITY).check(root, "a capability file")?;
    let written = Written { file, source };
    let mut capability = base(root, source)?;
    capability.name = Arc::clone(file);
    replace(&mut capability.tier, root.get("sandbox_tier"), tier)?;
    if let Some(node) = root.get("image") {
        capability.image = Some(written.image(node)?);
    }
    if let (Tier::Container, None, Some(node)) =
        (capability.tier, &capability.image, root.get("sandbox_tier"))
    {
        let problem = Problem::new(node.span, "sandbox_tier container needs an image");
        return Err(
            problem.with_hint("add `image: NAME`; `belljar image list` shows what there is")
        );
    }
    replace(&mut capability.degraded, root.get("degraded"), degraded)?;
    replace(
        &mut capability.emulation,
        root.get("allow_emulation"),
        emulation,
    )?;
    replace(
        &mut capability.egress,
        root.get("network_egress_rules"),
        |list| {
            list.items()
                .iter()
                .map(|item| egress(item, written))
                .collect()
        },
    )?;
    if let Some(section) = root.get("filesystem_config") {
        decode_filesystem(&mut capability, section, written)?;
    }
    decode_network(&mut capability, root, written)?;
    decode_secrets(&mut capability, root, written, rule_for)?;
    if let Some(section) = root.get("mcp") {
        decode_mcp(&mut capability, section, written)?;
    }
    if let Some(section) = root.get("resource_limits") {
        decode_limits(&mut capability, section)?;
        decode_on_budget(&mut capability, section, root)?;
    }
    replace(
        &mut capability.permissions,
        root.get("permissions"),
        |list| list.items().iter().map(permission).collect(),
    )?;
    decode_env(&mut capability, root.get("env_allowlist"), written)?;
    Ok(capability)
}

/// How a capability file lets connections through to a host.
fn rule_for(domain: &DomainPattern) -> String {
    let domain = domain.to_string();
    format!("add to network_egress_rules: {{domain: {domain:?}, ports: [443]}}")
}

/// Beside the limits it is about is where some look for it.
fn decode_on_budget(
    capability: &mut Capability,
    limits: &Node<'_>,
    root: &Node<'_>,
) -> Result<(), Problem> {
    let Some(node) = limits.get("on_budget") else {
        return Ok(());
    };
    if root
        .get("llm")
        .is_some_and(|llm| llm.get("on_budget").is_some())
    {
        let problem = Problem::new(node.span, "on_budget is said twice");
        return Err(problem.with_hint("keep the one in llm"));
    }
    capability.llm.on_budget = on_budget(node)?;
    Ok(())
}

/// What the document changes. Shipped documents say everything themselves.
fn base(root: &Node<'_>, source: Source) -> Result<Capability, Problem> {
    match root.get("extends") {
        None if source == Source::Document => Ok(profiles::seed()),
        None => Ok(Capability::closed(Arc::from(""))),
        Some(node) => profiles::profile(text(node)?).ok_or_else(|| unexpected(node)),
    }
}

fn tier(node: &Node<'_>) -> Result<Tier, Problem> {
    match text(node)? {
        "seccomp" => Ok(Tier::Native),
        "container" => Ok(Tier::Container),
        "gvisor" => Ok(Tier::Gvisor),
        "microvm" => Ok(Tier::Microvm),
        "firecracker" => Ok(Tier::Firecracker),
        _ => Err(unexpected(node)),
    }
}

fn emulation(node: &Node<'_>) -> Result<Emulation, Problem> {
    Ok(match truth(node)? {
        true => Emulation::Allow,
        false => Emulation::Refuse,
    })
}

fn degraded(node: &Node<'_>) -> Result<Degraded, Problem> {
    Ok(if truth(node)? {
        Degraded::Accept
    } else {
        Degraded::Refuse
    })
}

fn mode(node: &Node<'_>) -> Result<FsMode, Problem> {
    match text(node)? {
        "none" => Ok(FsMode::None),
        "read_only" => Ok(FsMode::ReadOnly),
        "read_write" => Ok(FsMode::ReadWrite),
        _ => Err(unexpected(node)),
    }
}

pub(crate) fn workspace(node: &Node<'_>) -> Result<Workspace, Problem> {
    match text(node)? {
        "direct" => Ok(Workspace::Direct),
        "overlay" => Ok(Workspace::Overlay),
        _ => Err(unexpected(node)),
    }
}

pub(crate) fn home(node: &Node<'_>) -> Result<HomeMode, Problem> {
    match text(node)? {
        "read_only" => Ok(HomeMode::ReadOnly),
        "private" => Ok(HomeMode::Private),
        _ => Err(unexpected(node)),
    }
}

fn decode_filesystem(
    capability: &mut Capability,
    section: &Node<'_>,
    written: Written<'_>,
) -> Result<(), Problem> {
    let filesystem = &mut capability.filesystem;
    replace(&mut filesystem.mode, section.get("mode"), mode)?;
    replace(
        &mut filesystem.workspace,
        section.get("workspace"),
        workspace,
    )?;
    replace(&mut filesystem.home, section.get("home"), home)?;
    replace(
        &mut filesystem.readable,
        section.get("readable_paths"),
        |list| written.granted_paths(list),
    )?;
    replace(
        &mut filesystem.writable,
        section.get("writable_paths"),
        |list| written.granted_paths(list),
    )?;
    add_withheld(filesystem, section, written)?;
    let first_writable = section
        .get("writable_paths")
        .and_then(|list| list.items().first());
    match first_writable {
        Some(path) if filesystem.mode != FsMode::ReadWrite => {
            let message = format!("mode {} has no writable paths", filesystem.mode.as_str());
            Err(Problem::new(path.span, message).with_hint("use mode: read_write"))
        }
        _ => Ok(()),
    }
}

fn decode_limits(capability: &mut Capability, section: &Node<'_>) -> Result<(), Problem> {
    let limits = &mut capability.limits;
    let get = |key| section.get(key);
    limit(&mut limits.memory_bytes, get("max_memory_mb"), mebibytes)?;
    limit(&mut limits.cpu_time, get("max_cpu_seconds"), seconds)?;
    limit(&mut limits.cost_usd, get("max_cost_usd"), number)?;
    limit(&mut limits.tokens, get("max_tokens"), whole)?;
    limit(&mut limits.connections, get("max_connections"), whole)?;
    limit(&mut limits.wall_time, get("max_wall_seconds"), seconds)?;
    limit(&mut limits.cpu_percent, get("max_cpu_percent"), number)?;
    limit(&mut limits.processes, get("max_processes"), whole)?;
    limit(&mut limits.open_files, get("max_open_files"), whole)?;
    limit(
        &mut limits.file_size_bytes,
        get("max_file_size_mb"),
        mebibytes,
    )?;
    limit(&mut limits.disk_bytes, get("max_disk_mb"), mebibytes)
}

/// A list, here or in the base, is the list; without one, `read_env` decides.
fn decode_env(
    capability: &mut Capability,
    list: Option<&Node<'_>>,
    written: Written<'_>,
) -> Result<(), Problem> {
    let inherited = match &capability.env.allow {
        EnvAllow::Listed(names) => Some(EnvAllow::Listed(names.clone())),
        EnvAllow::Base | EnvAllow::All => None,
    };
    let listed = match list {
        None => inherited,
        Some(node) if node.is_null() => None,
        Some(node) => Some(written.names(node)?),
    };
    let unlisted = if capability.permissions.contains(&Permission::ReadEnv) {
        EnvAllow::All
    } else {
        EnvAllow::Base
    };
    capability.env.allow = listed.unwrap_or(unlisted);
    Ok(())
}
