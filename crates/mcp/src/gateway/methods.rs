//! What a client's question is about.

use crate::judge::{Ask, Listed};
use crate::message::{Message, is_name};
use serde_json::Value;

/// A question of the client's, as far as it is judged.
#[derive(Debug, PartialEq)]
pub enum Question<'a> {
    /// How the protocol itself works; nobody judges it.
    Plumbing,
    /// `tools/list`
    ListTools,
    /// The lists of other things.
    List(Listed),
    /// `tools/call`
    Call {
        /// Which.
        tool: &'a str,
        /// With what.
        arguments: &'a Value,
    },
    /// What names a resource.
    Resource(&'a str),
    /// What names a prompt.
    Prompt(&'a str),
    /// What is asked about calls that became tasks.
    Task {
        /// How.
        method: &'a str,
        /// Which; nothing for the list.
        task: Option<&'a str>,
    },
    /// What is known to name nothing.
    Other(&'a str),
    /// All else: nobody could say what it asks for.
    Unknown(&'a str),
}

/// Requests that name no tool, resource or prompt.
const NAMELESS: [&str; 2] = ["logging/setLevel", "subscriptions/listen"];

/// What a client may tell its server.
const CLIENT_TELLS: [&str; 4] = [
    "notifications/cancelled",
    "notifications/initialized",
    "notifications/progress",
    "notifications/roots/list_changed",
];

/// What a server may tell its client.
const SERVER_TELLS: [&str; 11] = [
    "notifications/cancelled",
    "notifications/elicitation/complete",
    "notifications/message",
    "notifications/progress",
    "notifications/prompts/list_changed",
    "notifications/resources/list_changed",
    "notifications/resources/updated",
    "notifications/subscriptions/acknowledged",
    "notifications/tasks",
    "notifications/tasks/status",
    "notifications/tools/list_changed",
];

/// Whether a client may tell its server this.
pub(super) fn is_told_by_clients(method: &str) -> bool {
    CLIENT_TELLS.contains(&method)
}

/// Whether a server may tell its client this.
pub(super) fn is_told_by_servers(method: &str) -> bool {
    SERVER_TELLS.contains(&method)
}

const NULL: &Value = &Value::Null;

/// What is plumbing, whoever asks it.
const PLUMBING: [&str; 3] = ["initialize", "ping", "server/discover"];

/// Methods that are judged by what they name.
const JUDGED: [&str; 18] = [
    "tools/list",
    "tools/call",
    "resources/list",
    "resources/templates/list",
    "resources/read",
    "resources/subscribe",
    "resources/unsubscribe",
    "prompts/list",
    "prompts/get",
    "completion/complete",
    "tasks/get",
    "tasks/result",
    "tasks/cancel",
    "tasks/update",
    "tasks/list",
    "initialize",
    "ping",
    "server/discover",
];

/// Reads what a request is about.
///
/// # Errors
/// What is wrong with it, when its parameters are none that its method has.
pub fn question(message: &Message) -> Result<Question<'_>, &'static str> {
    let method = message.method();
    let text = |name: &str| message.param(name).and_then(Value::as_str);
    Ok(match method {
        _ if PLUMBING.contains(&method) => Question::Plumbing,
        "tools/list" => Question::ListTools,
        "resources/list" => Question::List(Listed::Resources),
        "resources/templates/list" => Question::List(Listed::ResourceTemplates),
        "prompts/list" => Question::List(Listed::Prompts),
        "tools/call" => {
            let tool = text("name").filter(|name| is_name(name));
            let tool =
                tool.ok_or("a tool with a name it can't have: letters, digits, `_`, `.` and `-`")?;
            let arguments = message.param("arguments").unwrap_or(NULL);
            if !(arguments.is_object() || arguments.is_null()) {
                return Err("arguments that are not an object");
            }
            Question::Call { tool, arguments }
        }
        "resources/read" | "resources/subscribe" | "resources/unsubscribe" => {
            Question::Resource(text("uri").ok_or("a resource without its URI")?)
        }
        "prompts/get" => Question::Prompt(
            text("name")
                .filter(|name| is_prompt(name))
                .ok_or("a prompt with a name it can't have")?,
        ),
        "tasks/list" => Question::Task { method, task: None },
        "tasks/get" | "tasks/result" | "tasks/cancel" | "tasks/update" => {
            let task = Some(text("taskId").ok_or("a task without its id")?);
            Question::Task { method, task }
        }
        "completion/complete" => completion(message)?,
        _ if method.starts_with("notifications/") => {
            return Err("a notification that wants an answer");
        }
        _ if JUDGED
            .iter()
            .any(|known| known.eq_ignore_ascii_case(method)) =>
        {
            return Err("a method that is spelled otherwise");
        }
        // It would name resources that nobody judged.
        "subscriptions/listen" if listens_to_resources(message) => {
            return Err(
                "resources in `subscriptions/listen`: subscribe with `resources/subscribe`",
            );
        }
        known if NAMELESS.contains(&known) => Question::Other(known),
        other => Question::Unknown(other),
    })
}

fn listens_to_resources(message: &Message) -> bool {
    let told = message.param("notifications");
    let named = told.and_then(|told| told.get("resourceSubscriptions"));
    named.is_some_and(|named| {
        !named.is_null() && named.as_array().is_none_or(|list| !list.is_empty())
    })
}

/// Completions are of something that is judged.
fn completion(message: &Message) -> Result<Question<'_>, &'static str> {
    let reference = message.param("ref").ok_or("a completion of nothing")?;
    let text = |name: &str| reference.get(name).and_then(Value::as_str);
    match text("type") {
        Some("ref/prompt") => Ok(Question::Prompt(
            text("name").ok_or("a completion of a prompt without its name")?,
        )),
        Some("ref/resource") => Ok(Question::Resource(
            text("uri").ok_or("a completion of a resource without its URI")?,
        )),
        _ => Err("a completion of something unknown"),
    }
}

/// Prompts have names with spaces in the wild; what can't be seen they have not.
fn is_prompt(name: &str) -> bool {
    (1..=256).contains(&name.len())
        && !name
            .chars()
            .any(|char| char.is_control() || !char.is_ascii())
}

impl<'a> Question<'a> {
    /// What the judge is asked, if it is asked. `tool` is whose call became the task that this is about.
    pub(super) fn ask(&self, server: &'a str, tool: Option<&'a str>) -> Option<Ask<'a>> {
        Some(match *self {
            Self::Plumbing | Self::ListTools | Self::List(_) => return None,
            Self::Call { tool, arguments } => Ask::Tool {
                server,
                tool,
                arguments,
            },
            Self::Resource(uri) => Ask::Resource { server, uri },
            Self::Prompt(prompt) => Ask::Prompt { server, prompt },
            Self::Task { method, task } => Ask::Task {
                server,
                method,
                task,
                tool,
            },
            Self::Other(method) | Self::Unknown(method) => Ask::Other { server, method },
        })
    }
}
