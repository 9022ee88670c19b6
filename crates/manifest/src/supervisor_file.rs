//! `supervisor.toml` and `agent.toml`: their shapes, and what they say.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use belljar_policy::Budget;

use crate::contract_file;
use crate::decode::{number, replace, seconds, text, whole};
use crate::node::{Node, Problem, Value, quoted};
use crate::shape::{Case, Choice, Field, Object, Shape, field, required};

const MOST_AGENTS: u64 = 10_000;
const MOST_NAME: usize = 64;
const MOST_PATH: usize = 4096;
const MOST_WORDS: usize = 256;
const MOST_WORD: usize = 32 * 1024;
const MOST_SECONDS: f64 = 86_400.0;

/// The whole of `supervisor.toml`.
pub(crate) static SUPERVISOR_FILE: Object = Object {
    name: "",
    doc: "How the supervisor works, and the agents it looks after.",
    fields: &[
        field("supervisor", Shape::Object(&SUPERVISOR), "The supervisor."),
        field(
            "agents",
            Shape::List {
                item: &Shape::Object(&DECLARED),
                most: MOST_AGENTS as usize,
            },
            "Agents that are started with it.",
        ),
    ],
};

/// The whole of `agent.toml`.
pub(crate) static AGENT_FILE: Object = Object {
    name: "",
    doc: "One agent.",
    fields: &[required("agent", Shape::Object(&AGENT), "The agent.")],
};

const GRACE: Shape = Shape::NumberFrom {
    least: 0.0,
    most: MOST_SECONDS,
};
const PATH: Shape = Shape::Text { most: MOST_PATH };

static SUPERVISOR: Object = Object {
    name: "supervisor",
    doc: "The supervisor.",
    fields: &[
        field(
            "max_agents",
            Shape::Whole {
                least: 1,
                most: MOST_AGENTS,
            },
            "Agents alive at once, replicas included. Without it, 10.",
        ),
        field(
            "web_port",
            Shape::Whole {
                least: 0,
                most: 65_535,
            },
            "The port of the dashboard and the API; 0 takes any that is free. Without it, 8080.",
        ),
        field(
            "state_dir",
            PATH,
            "Where state lives. Without it, as for every other command.",
        ),
        field(
            "contract",
            PATH,
            "A contract.yaml that agents may replicate under. Without it, none may.",
        ),
        field(
            "orphan_grace_seconds",
            GRACE,
            "How long agents go on without a supervisor before they are frozen and then killed. Without it, 60.",
        ),
        field(
            "stop_grace_seconds",
            GRACE,
            "How long an agent that is asked to end may take. Without it, 10.",
        ),
        field(
            "log_max_mb",
            Shape::Whole {
                least: 1,
                most: 10_240,
            },
            "The most of one file of an agent's output, in MiB. Without it, 10.",
        ),
        field(
            "log_keep",
            Shape::Whole {
                least: 1,
                most: 1000,
            },
            "How many such files are kept of each stream. Without it, 3.",
        ),
        field(
            "restart",
            Shape::Object(&RESTART),
            "How agents that ended by themselves are started again.",
        ),
        field(
            "web",
            Shape::Object(&WEB),
            "Where the dashboard and the API are, beyond the loopback.",
        ),
        field(
            "api",
            Shape::Object(&API),
            "What holders of tokens may start.",
        ),
        field(
            "monitor",
            Shape::Open,
            "How long what agents used and did is kept: see alerts.md.",
        ),
        field(
            "alerts",
            Shape::Open,
            "What is worth an alert: see the alert reference.",
        ),
    ],
};

static WEB: Object = Object {
    name: "supervisor.web",
    doc: "Where the dashboard and the API are.",
    fields: &[
        field(
            "bind",
            Shape::Text { most: MOST_NAME },
            "The address to listen at. Without it, 127.0.0.1; any other than a loopback's needs a certificate and a token.",
        ),
        field("certificate", PATH, "A certificate for TLS, as PEM."),
        field("key", PATH, "Its private key, as PEM."),
        field(
            "client_ca",
            PATH,
            "Authorities, as PEM: a client then needs a certificate of theirs, and a token.",
        ),
        field(
            "names",
            Shape::List {
                item: &Shape::Text { most: MOST_PATH },
                most: MOST_WORDS,
            },
            "Names under which it is asked, besides the loopback's.",
        ),
    ],
};

static API: Object = Object {
    name: "supervisor.api",
    doc: "What holders of tokens may start. The owner of the local socket is not held to it.",
    fields: &[
        field(
            "workspaces",
            Shape::List {
                item: &Shape::Text { most: MOST_PATH },
                most: MOST_WORDS,
            },
            "Directories below which such agents work. Without it, `workspaces` in the state directory.",
        ),
        field(
            "ceiling",
            PATH,
            "A capability.yaml that whatever a token starts must be within. Without it, the shipped profile moderate.",
        ),
        field(
            "admin_ceiling",
            PATH,
            "The same for tokens of the role admin. Without it, `ceiling`.",
        ),
    ],
};

static RESTART: Object = Object {
    name: "supervisor.restart",
    doc: "How agents that ended by themselves are started again.",
    fields: &[
        field(
            "first_seconds",
            GRACE,
            "The first wait; each further one is twice as long. Without it, 1.",
        ),
        field(
            "longest_seconds",
            GRACE,
            "The longest wait. Without it, 60.",
        ),
        field(
            "crash_loop",
            Shape::Whole {
                least: 1,
                most: 1000,
            },
            "So many starts again within the window are a crash loop, which ends them. Without it, 5.",
        ),
        field("window_seconds", GRACE, "The window. Without it, 300."),
    ],
};

static RESTARTS: Choice = Choice {
    words: &["never", "on_failure", "always"],
    case: Case::Exact,
    refused: &[],
};

const NAME: Field = required(
    "name",
    Shape::Text { most: MOST_NAME },
    "What people call it.",
);
const COMMAND: Field = required("command", WORDS, "The program and its arguments.");
const WORDS: Shape = Shape::List {
    item: &Shape::Text { most: MOST_WORD },
    most: MOST_WORDS,
};
const WORKDIR: Field = field(
    "workdir",
    PATH,
    "Where it works. Without it, where this file is.",
);
const CAPABILITY: Field = field(
    "capability",
    PATH,
    "A capability.yaml or sandbox.toml that it runs under.",
);
const PROFILE: Field = field(
    "profile",
    Shape::Text { most: MOST_NAME },
    "A shipped profile, where no capability is named. Without either, moderate.",
);
const AGENT_RESTART: Field = field(
    "restart",
    Shape::Choice(&RESTARTS),
    "What happens when it ends by itself. Without it, never.",
);
const RESTART_ON_OOM: Field = field(
    "restart_on_oom",
    Shape::Bool,
    "Whether it is started again when it ran out of memory. Without it, true with `restart = \"always\"` and false otherwise.",
);
const ENABLED: Field = field(
    "enabled",
    Shape::Bool,
    "Whether it is started with the supervisor. Without it, true.",
);

/// One that is started now.
static AGENT: Object = Object {
    name: "agent",
    doc: "An agent.",
    fields: &[
        NAME,
        COMMAND,
        WORKDIR,
        CAPABILITY,
        PROFILE,
        AGENT_RESTART,
        RESTART_ON_OOM,
        ENABLED,
    ],
};

/// One that is always there.
static DECLARED: Object = Object {
    name: "agents",
    doc: "An agent.",
    fields: &[
        NAME,
        COMMAND,
        WORKDIR,
        field(
            "project",
            PATH,
            "A project whose releases it runs from (belljar evolve deploy), instead of a workdir. Before the first one it runs from the project itself.",
        ),
        field(
            "count",
            Shape::Whole {
                least: 1,
                most: 1000,
            },
            "So many of it, called NAME-1, NAME-2 and so on.",
        ),
        CAPABILITY,
        PROFILE,
        AGENT_RESTART,
        RESTART_ON_OOM,
        field(
            "share",
            Shape::NumberFrom {
                least: 0.0,
                most: 1.0,
            },
            "The part of the contract's budget that it and its replicas get. Agents without `share` and `budget` split evenly what the others leave.",
        ),
        field(
            "budget",
            Shape::Object(&contract_file::BUDGET),
            "The same in amounts. What it does not name is split as for an agent without it.",
        ),
        ENABLED,
    ],
};

/// What a supervisor.toml says; what it does not say is absent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SupervisorFile {
    /// The most agents alive at once.
    pub max_agents: Option<usize>,
    /// The port of the dashboard.
    pub web_port: Option<u16>,
    /// Where state lives.
    pub state_dir: Option<PathBuf>,
    /// The contract's file.
    pub contract: Option<PathBuf>,
    /// How long agents go on without a supervisor.
    pub orphan_grace: Option<Duration>,
    /// How long an agent that is asked to end may take.
    pub stop_grace: Option<Duration>,
    /// The most bytes of one file of output.
    pub log_bytes: Option<u64>,
    /// How many such files are kept.
    pub log_keep: Option<usize>,
    /// The first wait before an agent is started again.
    pub restart_first: Option<Duration>,
    /// The longest.
    pub restart_longest: Option<Duration>,
    /// How many starts again are a crash loop.
    pub crash_loop: Option<u32>,
    /// Within how long.
    pub crash_window: Option<Duration>,
    /// Where the dashboard is.
    pub web: WebTable,
    /// What holders of tokens may start.
    pub api: ApiTable,
    /// The agents.
    pub agents: Vec<DeclaredAgent>,
}

/// What holders of tokens may start, as a file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApiTable {
    /// Directories below which they may, as they are written.
    pub workspaces: Vec<PathBuf>,
    /// The most they may grant, as it is written.
    pub ceiling: Option<PathBuf>,
    /// The same for admins.
    pub admin_ceiling: Option<PathBuf>,
}

/// Where the dashboard is, as a file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WebTable {
    /// The address to listen at.
    pub bind: Option<IpAddr>,
    /// A certificate, as it is written.
    pub certificate: Option<PathBuf>,
    /// Its key.
    pub key: Option<PathBuf>,
    /// Authorities for clients.
    pub client_ca: Option<PathBuf>,
    /// Further names.
    pub names: Vec<String>,
}

/// An agent as a file declares it.
#[derive(Clone, Debug, PartialEq)]
pub struct DeclaredAgent {
    /// What people call it.
    pub name: String,
    /// What it runs.
    pub command: Vec<String>,
    /// Where, as it is written.
    pub workdir: Option<PathBuf>,
    /// A project whose releases it runs from, as it is written.
    pub project: Option<PathBuf>,
    /// Its policy's file, as it is written.
    pub capability: Option<PathBuf>,
    /// A shipped profile.
    pub profile: Option<String>,
    /// What happens when it ends by itself.
    pub restart: DeclaredRestart,
    /// Whether it is started again after it ran out of memory, where that is said.
    pub restart_on_oom: Option<bool>,
    /// The part of the contract's budget that it gets, where that is said.
    pub share: Option<f64>,
    /// Amounts of it; what is not said is unbounded here.
    pub budget: Budget,
    /// Whether it is started with the supervisor.
    pub enabled: bool,
}

/// What happens when an agent ends by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeclaredRestart {
    /// It stays ended.
    #[default]
    Never,
    /// It is started again unless it ended with success.
    OnFailure,
    /// It is started again.
    Always,
}

/// What is said of a supervisor.toml with nothing in it.
pub(crate) const WHEN_EMPTY: &str = "the file is empty; `[supervisor]` means all defaults";
/// The same of an agent.toml.
pub(crate) const WHEN_AGENT_EMPTY: &str = "the file is empty; an agent needs a name and a command";

pub(crate) fn decode(root: &Node<'_>) -> Result<SupervisorFile, Problem> {
    Shape::Object(&SUPERVISOR_FILE).check(root, "a supervisor file")?;
    let mut file = SupervisorFile::default();
    if let Some(node) = root.get("supervisor") {
        decode_supervisor(&mut file, node)?;
    }
    for node in root.get("agents").map(Node::items).unwrap_or_default() {
        let agent = decode_agent(node)?;
        let count = node.get("count").map(whole::<u32>).transpose()?;
        let names: Vec<String> = match count {
            Some(count) => (1..=count).map(|n| format!("{}-{n}", agent.name)).collect(),
            None => vec![agent.name.clone()],
        };
        for name in names {
            if file.agents.iter().any(|known| known.name == name) {
                let place = node.get("name").unwrap_or(node).span;
                let message = format!("two agents are called {}", quoted(&name));
                return Err(Problem::new(place, message).with_hint("give each a name of its own"));
            }
            let agent = agent.clone();
            file.agents.push(DeclaredAgent { name, ..agent });
        }
    }
    Ok(file)
}

pub(crate) fn decode_agent_file(root: &Node<'_>) -> Result<DeclaredAgent, Problem> {
    let node = root.get("agent").unwrap_or(root);
    // Such a file is for one agent that is started now; what is released is for those that are always there.
    for key in ["count", "project"] {
        if let Some(given) = node.get(key) {
            let message = format!("`{key}` is for agents of a supervisor.toml");
            return Err(Problem::new(given.span, message).with_hint("declare it there"));
        }
    }
    Shape::Object(&AGENT_FILE).check(root, "an agent file")?;
    decode_agent(node)
}

fn decode_supervisor(file: &mut SupervisorFile, node: &Node<'_>) -> Result<(), Problem> {
    let path = |node: &Node<'_>| Ok(Some(PathBuf::from(text(node)?)));
    let time = |node: &Node<'_>| seconds(node).map(Some);
    replace(&mut file.max_agents, node.get("max_agents"), |node| {
        whole(node).map(Some)
    })?;
    replace(&mut file.web_port, node.get("web_port"), |node| {
        whole(node).map(Some)
    })?;
    replace(&mut file.state_dir, node.get("state_dir"), path)?;
    replace(&mut file.contract, node.get("contract"), path)?;
    let grace = node.get("orphan_grace_seconds");
    replace(&mut file.orphan_grace, grace, time)?;
    let grace = node.get("stop_grace_seconds");
    replace(&mut file.stop_grace, grace, time)?;
    replace(&mut file.log_bytes, node.get("log_max_mb"), |node| {
        whole::<u64>(node).map(|mb| Some(mb << 20))
    })?;
    replace(&mut file.log_keep, node.get("log_keep"), |node| {
        whole(node).map(Some)
    })?;
    if let Some(restart) = node.get("restart") {
        replace(&mut file.restart_first, restart.get("first_seconds"), time)?;
        let longest = restart.get("longest_seconds");
        replace(&mut file.restart_longest, longest, time)?;
        replace(&mut file.crash_window, restart.get("window_seconds"), time)?;
        replace(&mut file.crash_loop, restart.get("crash_loop"), |node| {
            whole(node).map(Some)
        })?;
    }
    if let Some(web) = node.get("web") {
        decode_web(&mut file.web, web)?;
    }
    if let Some(api) = node.get("api") {
        let table = &mut file.api;
        replace(&mut table.ceiling, api.get("ceiling"), path)?;
        replace(&mut table.admin_ceiling, api.get("admin_ceiling"), path)?;
        for place in api.get("workspaces").map(Node::items).unwrap_or_default() {
            table.workspaces.push(PathBuf::from(text(place)?));
        }
    }
    Ok(())
}

fn decode_web(table: &mut WebTable, node: &Node<'_>) -> Result<(), Problem> {
    let path = |node: &Node<'_>| Ok(Some(PathBuf::from(text(node)?)));
    replace(&mut table.bind, node.get("bind"), |node| {
        let address = text(node)?;
        let address = address.parse().map_err(|_| {
            let problem = Problem::new(node.span, format!("no address: {}", quoted(address)));
            problem.with_hint("an address of this machine, such as 127.0.0.1 or 0.0.0.0")
        })?;
        Ok(Some(address))
    })?;
    replace(&mut table.certificate, node.get("certificate"), path)?;
    replace(&mut table.key, node.get("key"), path)?;
    replace(&mut table.client_ca, node.get("client_ca"), path)?;
    for name in node.get("names").map(Node::items).unwrap_or_default() {
        table.names.push(text(name)?.to_owned());
    }
    match (&table.certificate, &table.key, &table.client_ca) {
        (Some(_), None, _) | (None, Some(_), _) => {
            let problem = Problem::new(node.span, "a certificate and its key go together");
            Err(problem.with_hint("name both, or neither"))
        }
        (None, None, Some(_)) => {
            let problem = Problem::new(node.span, "client_ca is of use with TLS alone");
            Err(problem.with_hint("name a certificate and its key too"))
        }
        _ => Ok(()),
    }
}

fn decode_agent(node: &Node<'_>) -> Result<DeclaredAgent, Problem> {
    let given = |key: &str| node.get(key).map(text).transpose();
    let name = given("name")?.unwrap_or_default().to_owned();
    let words = node.get("command").map(Node::items).unwrap_or_default();
    let command: Vec<String> = words
        .iter()
        .map(|word| text(word).map(str::to_owned))
        .collect::<Result<_, _>>()?;
    if command.is_empty() {
        let place = node.get("command").unwrap_or(node).span;
        let problem = Problem::new(place, "the command is empty");
        return Err(problem.with_hint("command = [\"program\", \"argument\"]"));
    }
    if let (Some(_), Some(profile)) = (node.get("capability"), node.get("profile")) {
        let problem = Problem::new(profile.span, "it has a capability and a profile");
        return Err(problem.with_hint("remove one of them"));
    }
    if let Some(node) = node.get("profile") {
        let profile = text(node)?;
        if !crate::PROFILES.contains(&profile) {
            let problem = Problem::new(node.span, format!("no profile {}", quoted(profile)));
            return Err(problem.with_hint(format!("they are {}", crate::PROFILES.join(", "))));
        }
    }
    if let (Some(_), Some(project)) = (node.get("workdir"), node.get("project")) {
        let problem = Problem::new(project.span, "it has a workdir and a project");
        return Err(problem.with_hint("remove one of them: releases of a project have their place"));
    }
    if let (Some(_), Some(budget)) = (node.get("share"), node.get("budget")) {
        let problem = Problem::new(budget.span, "it has a share and a budget");
        return Err(problem.with_hint("remove one of them"));
    }
    let restart = match given("restart")? {
        Some("always") => DeclaredRestart::Always,
        Some("on_failure") => DeclaredRestart::OnFailure,
        _ => DeclaredRestart::Never,
    };
    Ok(DeclaredAgent {
        name,
        command,
        workdir: given("workdir")?.map(PathBuf::from),
        project: given("project")?.map(PathBuf::from),
        capability: given("capability")?.map(PathBuf::from),
        profile: given("profile")?.map(str::to_owned),
        restart,
        restart_on_oom: match node.get("restart_on_oom").map(|node| &node.value) {
            Some(Value::Bool(wanted)) => Some(*wanted),
            _ => None,
        },
        share: node.get("share").map(number).transpose()?,
        budget: node
            .get("budget")
            .map(contract_file::budget)
            .transpose()?
            .unwrap_or(Budget::UNBOUNDED),
        enabled: !matches!(
            node.get("enabled").map(|node| &node.value),
            Some(Value::Bool(false))
        ),
    })
}
