//! `sandbox.toml`: its shape, and how it becomes a capability.

use std::sync::Arc;

use belljar_policy::{
    Capability, DomainPattern, EgressEffect, EgressRule, EgressTerms, FsMode, PathRule,
    PrivateAddresses, Reach, Rule, Source, Tier,
};

use crate::capability_file::{
    CONNECTIONS, COST, CPU_PERCENT, DEFAULT_RATE, HOME, HOME_DOC, IMAGE, OPEN_FILES, PATH, PATHS,
    PORTS, PROCESSES, RATE, SECONDS, SIZE, TEXTS, TOKENS, WORKSPACE, home, workspace,
};
use crate::decode::{
    Written, add_withheld, domain, limit, mebibytes, number, ports, replace, seconds, text,
    unexpected, whole,
};
use crate::mcp_section::{MCP, decode_mcp};
use crate::network_section::{LLM, PUBLISHED, decode_network as decode_network_terms};
use crate::node::{Node, Problem};
use crate::profiles;
use crate::secrets_section::{SECRETS, UPSTREAM_PROXY, decode_secrets};
use crate::shape::{Case, Choice, Object, Shape, field};

/// The whole document.
pub(crate) static DOCUMENT: Object = Object {
    name: "",
    doc: "What an agent may touch and spend.",
    fields: &[field("sandbox", Shape::Object(&SANDBOX), "The box.")],
};

static MODE: Choice = Choice {
    words: &["Strict", "Moderate", "Permissive"],
    case: Case::Ignored,
    refused: &[],
};

static NETWORK_MODE: Choice = Choice {
    words: &["None", "Filtered"],
    case: Case::Ignored,
    refused: &[(
        "Full",
        "network mode Full is not offered; use Filtered and name the domains",
    )],
};

static SANDBOX: Object = Object {
    name: "sandbox",
    doc: "The box.",
    fields: &[
        field(
            "enabled",
            Shape::OnlyTrue {
                refusal: "Belljar does not run agents without a box",
                hint: "remove the line, or use mode = \"Permissive\"",
            },
            "Always true.",
        ),
        field(
            "mode",
            Shape::Choice(&MODE),
            "The profile this file changes; Moderate if not said.",
        ),
        IMAGE,
        field(
            "filesystem",
            Shape::Object(&FILESYSTEM),
            "What the agent sees of the host's files.",
        ),
        field(
            "network",
            Shape::Object(&NETWORK),
            "Where the agent may connect.",
        ),
        SECRETS,
        PUBLISHED,
        LLM,
        UPSTREAM_PROXY,
        field(
            "resources",
            Shape::Object(&RESOURCES),
            "What the whole process tree may use.",
        ),
        field(
            "mcp",
            Shape::Object(&MCP),
            "The MCP tools the agent may call.",
        ),
    ],
};

static FILESYSTEM: Object = Object {
    name: "sandbox.filesystem",
    doc: "What the agent sees of the host's files. The longest path that contains a file decides.",
    fields: &[
        field("root", PATH, "The working directory."),
        field(
            "write_paths",
            PATHS,
            "Paths that may be written; an empty list is none.",
        ),
        field(
            "read_paths",
            PATHS,
            "Paths that may be read although they would be hidden.",
        ),
        field(
            "hidden_paths",
            PATHS,
            "Paths that are not there, beside the built-in ones.",
        ),
        field(
            "protected_paths",
            PATHS,
            "Paths that may not be written though they are under a writable one.",
        ),
        field(
            "max_file_size_mb",
            SIZE,
            "Size of any one file written, in MiB.",
        ),
        field(
            "workspace",
            Shape::Choice(&WORKSPACE),
            "direct: writes land in the files. overlay: writes are kept apart until applied.",
        ),
        field("home", Shape::Choice(&HOME), HOME_DOC),
    ],
};

static NETWORK: Object = Object {
    name: "sandbox.network",
    doc: "Where the agent may connect.",
    fields: &[
        field(
            "mode",
            Shape::Choice(&NETWORK_MODE),
            "None: nowhere. Filtered: the allowed domains.",
        ),
        field(
            "allowed_domains",
            TEXTS,
            "Host names, `*.suffix`, addresses or address blocks.",
        ),
        field(
            "blocked_domains",
            TEXTS,
            "The same, refused even if allowed.",
        ),
        field(
            "allowed_ports",
            PORTS,
            "Ports of the allowed domains; all if not said.",
        ),
        field("blocked_ports", PORTS, "Ports refused everywhere."),
        field(
            "rate_limit_per_minute",
            RATE,
            "Requests per minute and domain.",
        ),
        field("max_connections", CONNECTIONS, "Open connections at once."),
    ],
};

static RESOURCES: Object = Object {
    name: "sandbox.resources",
    doc: "What the whole process tree may use.",
    fields: &[
        field("max_memory_mb", SIZE, "Memory, in MiB."),
        field(
            "max_cpu_percent",
            CPU_PERCENT,
            "Share of one CPU; 200 is two CPUs.",
        ),
        field(
            "max_cpu_seconds",
            SECONDS,
            "CPU time of all processes together.",
        ),
        field("max_processes", PROCESSES, "Processes and threads at once."),
        field("max_open_files", OPEN_FILES, "Open files per process."),
        field(
            "max_disk_mb",
            SIZE,
            "Everything written to private directories, in MiB. Refused where files of the host can be written: nothing holds it there.",
        ),
        field("timeout_seconds", SECONDS, "Time from start to end."),
        field(
            "max_cost_usd",
            COST,
            "Spending on calls to models, in US dollars.",
        ),
        field("max_tokens", TOKENS, "Tokens of calls to models."),
    ],
};

/// Turns a tree into a capability.
/// What is said of a file with nothing in it.
pub(crate) const WHEN_EMPTY: &str = "the file is empty; `[sandbox]` means all defaults";

pub(crate) fn decode(
    root: &Node<'_>,
    file: &Arc<str>,
    source: Source,
) -> Result<Capability, Problem> {
    Shape::Object(&DOCUMENT).check(root, "a sandbox file")?;
    let written = Written { file, source };
    let sandbox = root.get("sandbox");
    let section = |key| sandbox.and_then(|sandbox| sandbox.get(key));
    let mut capability = base(section("mode"), root)?;
    capability.name = Arc::clone(file);
    if let Some(node) = section("image") {
        capability.image = Some(written.image(node)?);
        capability.tier = Tier::Container;
    }
    if let Some(section) = section("filesystem") {
        decode_filesystem(&mut capability, section, written)?;
    }
    if let Some(section) = section("network") {
        decode_network(&mut capability, section, written)?;
    }
    if let Some(sandbox) = sandbox {
        decode_network_terms(&mut capability, sandbox, written)?;
        decode_secrets(&mut capability, sandbox, written, rule_for)?;
    }
    if let Some(section) = section("resources") {
        decode_resources(&mut capability, section)?;
    }
    if let Some(section) = section("mcp") {
        decode_mcp(&mut capability, section, written)?;
    }
    Ok(capability)
}

/// How a sandbox file lets connections through to a host.
fn rule_for(domain: &DomainPattern) -> String {
    let domain = domain.to_string();
    format!("add {domain:?} to allowed_domains of [sandbox.network]")
}

fn base(mode: Option<&Node<'_>>, root: &Node<'_>) -> Result<Capability, Problem> {
    let name = match mode {
        None => "moderate".to_owned(),
        Some(node) => text(node)?.to_ascii_lowercase(),
    };
    profiles::profile(&name).ok_or_else(|| unexpected(mode.unwrap_or(root)))
}

fn decode_filesystem(
    capability: &mut Capability,
    section: &Node<'_>,
    written: Written<'_>,
) -> Result<(), Problem> {
    if let Some(root) = section.get("root") {
        capability.workdir = Some(written.path(root, PathRule::parse)?);
    }
    let filesystem = &mut capability.filesystem;
    if let Some(list) = section.get("write_paths") {
        filesystem.writable = written.granted_paths(list)?;
        // Here an empty list says that nothing is written; elsewhere it is the working directory.
        filesystem.mode = match (filesystem.writable.is_empty(), filesystem.mode) {
            (false, _) => FsMode::ReadWrite,
            (true, FsMode::None) => FsMode::None,
            (true, _) => FsMode::ReadOnly,
        };
    }
    replace(
        &mut filesystem.readable,
        section.get("read_paths"),
        |list| written.granted_paths(list),
    )?;
    replace(
        &mut filesystem.workspace,
        section.get("workspace"),
        workspace,
    )?;
    replace(&mut filesystem.home, section.get("home"), home)?;
    add_withheld(filesystem, section, written)?;
    limit(
        &mut capability.limits.file_size_bytes,
        section.get("max_file_size_mb"),
        mebibytes,
    )
}

fn decode_network(
    capability: &mut Capability,
    section: &Node<'_>,
    written: Written<'_>,
) -> Result<(), Problem> {
    let allowed = section.get("allowed_domains");
    let closed = match section.get("mode") {
        Some(node) => text(node)?.eq_ignore_ascii_case("none"),
        None => false,
    };
    if let Some(first) = allowed
        .and_then(|list| list.items().first())
        .filter(|_| closed)
    {
        let problem = Problem::new(first.span, "network mode None has no allowed domains");
        return Err(problem.with_hint("use mode = \"Filtered\""));
    }
    let mut template = EgressRule {
        domain: DomainPattern::Any,
        ports: Vec::new(),
        rate_limit_per_min: DEFAULT_RATE,
        effect: EgressEffect::Allow,
        terms: EgressTerms::default(),
    };
    replace(&mut template.ports, section.get("allowed_ports"), ports)?;
    replace(
        &mut template.rate_limit_per_min,
        section.get("rate_limit_per_minute"),
        whole,
    )?;
    let rules = |list: Option<&Node<'_>>, template: &EgressRule| {
        let items = list.map(Node::items).unwrap_or_default().iter();
        items
            .map(|item| {
                let mut value = EgressRule {
                    domain: domain(item)?,
                    ..template.clone()
                };
                // A rule that names the host itself, and its ports, reaches it.
                let reach = Reach::of(&value.domain, &value.ports, PrivateAddresses::Refuse);
                if value.effect == EgressEffect::Allow {
                    value.terms.reach = reach;
                }
                Ok(Rule::new(value, written.at(item)))
            })
            .collect::<Result<Vec<_>, Problem>>()
    };
    capability.egress = rules(allowed, &template)?;
    let deny = EgressRule {
        ports: Vec::new(),
        effect: EgressEffect::Deny,
        ..template
    };
    capability
        .egress
        .extend(rules(section.get("blocked_domains"), &deny)?);
    if let Some(list) = section
        .get("blocked_ports")
        .filter(|list| !list.items().is_empty())
    {
        let value = EgressRule {
            ports: ports(list)?,
            ..deny
        };
        capability.egress.push(Rule::new(value, written.at(list)));
    }
    limit(
        &mut capability.limits.connections,
        section.get("max_connections"),
        whole,
    )
}

fn decode_resources(capability: &mut Capability, section: &Node<'_>) -> Result<(), Problem> {
    let limits = &mut capability.limits;
    let get = |key| section.get(key);
    limit(&mut limits.memory_bytes, get("max_memory_mb"), mebibytes)?;
    limit(&mut limits.cpu_percent, get("max_cpu_percent"), number)?;
    limit(&mut limits.cpu_time, get("max_cpu_seconds"), seconds)?;
    limit(&mut limits.processes, get("max_processes"), whole)?;
    limit(&mut limits.open_files, get("max_open_files"), whole)?;
    limit(&mut limits.disk_bytes, get("max_disk_mb"), mebibytes)?;
    limit(&mut limits.wall_time, get("timeout_seconds"), seconds)?;
    limit(&mut limits.cost_usd, get("max_cost_usd"), number)?;
    limit(&mut limits.tokens, get("max_tokens"), whole)
}
