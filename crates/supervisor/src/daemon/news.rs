//! What gateways to MCP servers tell: refused and held calls, and what looked suspicious, become events.

use std::io;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use belljar_api::{DenialKind, EventKind, Severity};
use belljar_mcp::news::{Listener, News};
use belljar_mcp::record::{McpEvent, SERVER_ENDED};
use belljar_replication::WorkerId;

use super::Inner;
use super::roster::Roster;
use super::views::{self, Text};

/// How long the thread outlives its daemon at most.
const PATIENCE: Duration = Duration::from_secs(1);

/// What is said of a tool that no rule is about.
const ALLOW_HINT: &str =
    "no rule allows it; `belljar check tool SERVER:TOOL --config FILE` says which line would";

/// Listens on a thread of its own until the daemon is gone.
pub(super) fn listen(inner: &Arc<Inner>, state: &Path) -> io::Result<()> {
    let listener = Listener::bind(state, PATIENCE)?;
    let inner = Arc::downgrade(inner);
    let thread = std::thread::Builder::new().name("belljar-news".to_owned());
    thread.spawn(move || hear(&listener, &inner)).map(drop)
}

fn hear(listener: &Listener, inner: &Weak<Inner>) {
    loop {
        let news = listener.next();
        let Some(inner) = inner.upgrade() else { return };
        if let Some(news) = news {
            inner.roster.tool_news(&news);
        }
    }
}

impl Roster {
    /// News of a run that is no agent of ours is told without one.
    fn tool_news(&self, News { run, event }: &News) {
        let worker: Option<WorkerId> = run.parse().ok();
        let worker = worker.filter(|worker| self.book().agents.contains_key(worker));
        let who = worker.map_or_else(|| format!("run {run}"), |worker| self.name_of(worker));
        let (kind, code, text, hint) = match event {
            McpEvent::Call {
                server,
                tool,
                code,
                rule,
                ..
            } => {
                let code = code.as_deref().unwrap_or("deny_tool");
                let tool = format!("{server}:{tool}");
                if let Some(worker) = worker {
                    let why = rule.as_deref().unwrap_or("no rule allows it");
                    self.deny(
                        worker,
                        views::denial(DenialKind::Tool, code, &tool, 1, why, None),
                    );
                }
                (
                    EventKind::ToolRefused,
                    code,
                    format!("{who} was refused {tool}"),
                    match rule.as_deref() {
                        // No line of a file refused it: what people need is the line that would allow it.
                        None | Some("built-in") => ALLOW_HINT,
                        Some(rule) => rule,
                    },
                )
            }
            McpEvent::Held {
                id,
                server,
                tool,
                code,
                ..
            } => {
                let text = format!("{who} waits for an answer about {server}:{tool} (hold {id})");
                (
                    EventKind::ToolHeld,
                    code.as_str(),
                    text,
                    "answer on the page of holds, or with `belljar mcp answer`",
                )
            }
            McpEvent::Suspicious {
                server,
                code,
                detail,
                ..
            } if code == SERVER_ENDED => {
                let text = format!("{who}: the MCP server {server}: {detail}");
                let hint = "read its error output in the agent's; give it a capability of its own if a limit ended it";
                let text = Text::new(&text).code("crashed").hint(hint);
                // By what raises an alert about the agent.
                return self.tell(text.event(worker, EventKind::Restarting, Severity::Warning));
            }
            McpEvent::Suspicious {
                server,
                tool,
                code,
                detail,
            } => {
                let text = format!("{who}: {server}:{tool}: {detail}");
                (
                    EventKind::ToolRefused,
                    code.as_str(),
                    text,
                    "`belljar audit show` has the calls",
                )
            }
            McpEvent::Answered { .. } | McpEvent::Tool { .. } => return,
        };
        let text = Text::new(&text).code(code).hint(hint);
        self.tell(text.event(worker, kind, Severity::Warning));
    }
}
