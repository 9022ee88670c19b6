//! The judge by a policy: rules, rates, pins and holds, with everything on record.

mod denials;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use belljar_policy::{
    Because, Decision, Lexical, Paths, ToolQuestion, ToolRules, Verdict, is_mcp_name, text_tricks,
};
use serde_json::Value;

use crate::holds::{Hold, HoldId, Holds, Waiting};
use crate::host_paths::HostPaths;
use crate::judge::{
    Ask, DENIED, Finished, HOLD_REFUSED, HoldAnswer, HoldTicket, Judge, Listed, Ruling,
};
use crate::pins::{Pin, Pins, Standing};
use crate::rate::Rates;
use crate::record::{McpEvent, Recorder, SERVER_ENDED};
use crate::redact::redacted;
use crate::server_facts::ServerFacts;
use crate::watch::{Suspicion, Watch};
use denials::{by_code, denial_of, deny, quarantined, rate_denial, unlisted, unrecorded};

belljar_policy::codes! {
    /// Why a judge says no or wait where no rule does. The codes are stable.
    pub enum JudgeCode {
        /// The tool is new or changed since it was first seen.
        HoldNewTool = "hold_new_tool",
        /// The server never told of such a tool.
        DenyToolUnknown = "deny_tool_unknown",
        /// No call of this session became such a task, or its time is over.
        DenyTaskUnknown = "deny_task_unknown",
        /// More calls than a rule permits in a minute.
        DenyToolRate = "deny_tool_rate",
        /// An operator refused a held call.
        DenyHoldRefused = "deny_hold_refused",
        /// Nobody answered about a held call in time.
        DenyHoldTimeout = "deny_hold_timeout",
        /// Nobody can be asked about a call that is to be held.
        DenyHoldUnwritten = "deny_hold_unwritten",
        /// More calls wait for an operator than anybody answers.
        DenyTooManyHolds = "deny_too_many_holds",
        /// The record can't be written.
        DenyUnrecorded = "deny_unrecorded",
        /// What is pinned can't be read.
        DenyPinsUnread = "deny_pins_unread",
        /// Whoever asks is made to hold still.
        DenyQuarantined = "deny_quarantined",
    }
}

/// Calls that wait for an operator at once.
const MOST_HELD: usize = 64;

type Paused = Box<dyn Fn() -> bool + Send + Sync>;

struct Server {
    digest: String,
    paths: Box<dyn Paths + Send + Sync>,
}

/// Judges by a policy.
pub struct PolicyJudge {
    rules: Arc<ToolRules>,
    servers: BTreeMap<String, Server>,
    run: String,
    began: Instant,
    rates: Mutex<Rates>,
    watch: Mutex<Watch>,
    pins: Pins,
    holds: Holds,
    waiting: Mutex<HashMap<HoldId, Waiting>>,
    /// Held and not answered, waited for or not.
    open_holds: Mutex<HashSet<HoldId>>,
    /// What was said of calls that are not finished: for their record.
    refusals: Mutex<HashMap<(String, String), (String, String)>>,
    recorder: Box<dyn Recorder>,
    /// Whether nothing passes for now.
    paused: Option<Paused>,
}

impl PolicyJudge {
    /// A judge of calls to these servers. Pins and holds are kept in the state directory.
    ///
    /// # Errors
    /// When the state directory can't be used.
    pub fn new(
        rules: Arc<ToolRules>,
        servers: Vec<ServerFacts>,
        state: &Path,
        recorder: Box<dyn Recorder>,
    ) -> io::Result<Self> {
        let server = |facts: ServerFacts| {
            let paths: Box<dyn Paths + Send + Sync> = match &facts.directory {
                Some(directory) => Box::new(HostPaths::at(directory)),
                None => Box::new(Lexical),
            };
            (
                facts.name,
                Server {
                    digest: facts.digest,
                    paths,
                },
            )
        };
        Ok(Self {
            rules,
            servers: servers.into_iter().map(server).collect(),
            run: String::new(),
            began: Instant::now(),
            rates: Mutex::default(),
            watch: Mutex::default(),
            pins: Pins::open(state)?,
            holds: Holds::open(state)?,
            waiting: Mutex::default(),
            open_holds: Mutex::default(),
            refusals: Mutex::default(),
            recorder,
            paused: None,
        })
    }

    /// The same, for the calls of this run: holds say whose they are.
    #[must_use]
    pub fn of_run(mut self, run: &str) -> Self {
        run.clone_into(&mut self.run);
        self
    }

    /// The same, but that nothing passes while `paused` says so, not even what an operator allows meanwhile.
    #[must_use]
    pub fn paused_while(mut self, paused: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.paused = Some(Box::new(paused));
        self
    }

    fn is_paused(&self) -> bool {
        self.paused.as_ref().is_some_and(|paused| paused())
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn tool(&self, server: &str, tool: &str, arguments: &Value) -> Ruling {
        let Some(facts) = self.servers.get(server) else {
            return deny(&self.rules.decide_server(server), server, tool)
                .map_or_else(|| unlisted(server), Ruling::Deny);
        };
        if !self.recorder.is_recording() {
            return Ruling::Deny(unrecorded());
        }
        if self.is_paused() {
            return Ruling::Deny(quarantined());
        }
        let question = ToolQuestion {
            server,
            tool,
            arguments,
            paths: &*facts.paths,
        };
        let answer = self.rules.answer_tool(&question);
        if let Some(denial) = deny(&answer.decision, server, tool) {
            return Ruling::Deny(denial);
        }
        if let Err(used_up) = lock(&self.rates).take(self.now(), &answer.rates) {
            return Ruling::Deny(rate_denial(used_up, server, tool));
        }
        if answer.decision.verdict() == Verdict::Hold {
            return self.hold(server, tool, arguments, answer.decision.because());
        }
        match self.pins.standing(server, &facts.digest, tool) {
            Ok(Standing::Pinned | Standing::FirstSeen) => Ruling::Allow,
            Ok(_) if self.rules.new_tools() == Verdict::Allow => Ruling::Allow,
            // Invented names would fill the queue of whoever answers.
            Ok(Standing::Unheard) => Ruling::Deny(by_code(
                JudgeCode::DenyToolUnknown,
                DENIED,
                "the server told of no such tool",
                "tools/list shows what can be called",
            )),
            Ok(standing) => {
                let rule = format!("mcp.on_new_tool ({} tool)", standing.as_str());
                self.held(server, tool, arguments, JudgeCode::HoldNewTool.code(), rule)
            }
            Err(_) => Ruling::Deny(by_code(
                JudgeCode::DenyPinsUnread,
                DENIED,
                "what is pinned can't be read",
                "look at mcp/pins in the state directory",
            )),
        }
    }

    fn hold(&self, server: &str, tool: &str, arguments: &Value, because: &Because) -> Ruling {
        self.held(
            server,
            tool,
            arguments,
            because.reason.code(),
            because.origin.to_string(),
        )
    }

    fn held(
        &self,
        server: &str,
        tool: &str,
        arguments: &Value,
        code: &str,
        rule: String,
    ) -> Ruling {
        if lock(&self.open_holds).len() >= MOST_HELD {
            return Ruling::Deny(by_code(
                JudgeCode::DenyTooManyHolds,
                HOLD_REFUSED,
                "many calls wait for an operator already",
                "belljar mcp holds lists them",
            ));
        }
        let wait = self.rules.hold_time();
        let put = self.holds.put(wait, |id, opened_ms, deadline_ms| Hold {
            id,
            run: self.run.clone(),
            server: server.to_owned(),
            tool: shortened(tool),
            arguments: redacted(arguments, &self.rules.redacted(server, tool)),
            code: code.to_owned(),
            rule: rule.clone(),
            opened_ms,
            deadline_ms,
        });
        let Ok((hold, waiting)) = put else {
            return Ruling::Deny(by_code(
                JudgeCode::DenyHoldUnwritten,
                HOLD_REFUSED,
                "nobody can be asked about it",
                "look at mcp/holds in the state directory",
            ));
        };
        self.recorder.record(McpEvent::Held {
            id: hold.id.to_string(),
            server: server.to_owned(),
            tool: hold.tool.clone(),
            code: code.to_owned(),
            rule,
        });
        lock(&self.open_holds).insert(hold.id.clone());
        lock(&self.waiting).insert(hold.id.clone(), waiting);
        Ruling::Hold(HoldTicket {
            id: hold.id,
            deadline: wait,
        })
    }

    /// A decision about something that is no call of a tool.
    fn other(&self, decision: &Decision, server: &str, what: &str) -> Ruling {
        if !self.servers.contains_key(server) {
            return unlisted(server);
        }
        if self.is_paused() {
            return Ruling::Deny(quarantined());
        }
        match decision {
            Decision::Allow(_) => Ruling::Allow,
            Decision::Hold(because) => self.hold(server, what, &Value::Null, because),
            Decision::Deny(because) => {
                let rule = because.origin.to_string();
                self.refused(server, what, because.reason.code(), &rule);
                Ruling::Deny(denial_of(because, server, what))
            }
        }
    }

    /// A decision about a call that became a task, or about the list of them.
    fn task(&self, server: &str, method: &str, is_unknown: bool) -> Ruling {
        if !self.recorder.is_recording() {
            return Ruling::Deny(unrecorded());
        }
        let ruling = self.other(&self.rules.decide_server(server), server, method);
        if ruling != Ruling::Allow || !is_unknown {
            return ruling;
        }
        self.refused(
            server,
            method,
            JudgeCode::DenyTaskUnknown.code(),
            "built-in",
        );
        Ruling::Deny(by_code(
            JudgeCode::DenyTaskUnknown,
            DENIED,
            "no call of this session became that task, or its time is over",
            "tasks belong to the session that called the tool",
        ))
    }

    /// Puts on record that something was refused which is no call of a tool.
    fn refused(&self, server: &str, what: &str, code: &str, rule: &str) {
        self.recorder.record(McpEvent::Call {
            server: server.to_owned(),
            tool: shortened(what),
            verdict: "deny".to_owned(),
            code: Some(code.to_owned()),
            rule: Some(rule.to_owned()),
            duration_us: 0,
            result_bytes: 0,
            is_error: true,
            arguments: Value::Null,
        });
    }

    fn suspect(&self, what: Option<Suspicion>, server: &str, tool: &str, detail: &str) {
        if let Some(what) = what {
            self.recorder.record(McpEvent::Suspicious {
                server: server.to_owned(),
                tool: shortened(tool),
                code: what.code().to_owned(),
                detail: shortened(detail),
            });
        }
    }

    /// Looks for what an honest agent does not do.
    fn look_at(&self, server: &str, tool: &str, arguments: &Value, ruling: &Ruling) {
        let now = self.now();
        let full = format!("{server}:{}", shortened(tool));
        let told = lock(&self.watch).called(now, &full);
        self.suspect(told, server, tool, "many calls within seconds");
        let Ruling::Deny(denial) = ruling else { return };
        let key = (server.to_owned(), tool.to_owned());
        lock(&self.refusals).insert(key, (denial.reason.clone(), denial.rule.clone()));
        let told = lock(&self.watch).refused(now, &full, digest(arguments));
        self.suspect(told, server, tool, &denial.reason);
        if !is_mcp_name(tool) {
            let told = lock(&self.watch).once(now, Suspicion::TrickyName, server);
            let detail = "a name with characters that names don't have";
            self.suspect(told, server, tool, detail);
        }
    }

    /// A tool of a list: whether it is shown.
    fn shown(&self, server: &str, name: &str, tool: &Value, standing: Standing) -> bool {
        let now = self.now();
        let full = format!("{server}:{name}");
        let tricks = ["title", "description"]
            .iter()
            .filter_map(|key| tool.get(key)?.as_str())
            .flat_map(text_tricks);
        if let Some(trick) = tricks.max() {
            let told = lock(&self.watch).once(now, Suspicion::TrickyDescription, &full);
            self.suspect(told, server, name, trick.as_str());
        }
        let change = match standing {
            Standing::Pinned => None,
            Standing::FirstSeen => Some((None, standing)),
            Standing::New | Standing::Unheard => Some((Some(Suspicion::NewTool), standing)),
            Standing::Changed => Some((Some(Suspicion::ChangedTool), standing)),
        };
        if let Some((suspicion, standing)) = change {
            let told = suspicion.and_then(|what| lock(&self.watch).once(now, what, &full));
            if told.is_some() || suspicion.is_none() {
                self.recorder.record(McpEvent::Tool {
                    server: server.to_owned(),
                    tool: name.to_owned(),
                    change: standing.as_str().to_owned(),
                    sha256: Pin::of(tool).sha256,
                });
            }
            self.suspect(told, server, name, "belljar mcp diff shows it");
        }
        let agreed = matches!(standing, Standing::Pinned | Standing::FirstSeen)
            || self.rules.new_tools() == Verdict::Allow;
        agreed && self.rules.lists_tool(server, name)
    }
}

impl Judge for PolicyJudge {
    fn judge(&self, ask: &Ask<'_>) -> Ruling {
        match *ask {
            Ask::Tool {
                server,
                tool,
                arguments,
            } => {
                let ruling = self.tool(server, tool, arguments);
                self.look_at(server, tool, arguments, &ruling);
                ruling
            }
            Ask::Resource { server, uri } => {
                self.other(&self.rules.decide_resource(server, uri), server, uri)
            }
            Ask::Prompt { server, prompt } => {
                self.other(&self.rules.decide_prompt(server, prompt), server, prompt)
            }
            Ask::FromServer { server, method } => {
                self.other(&self.rules.decide_server_request(method), server, method)
            }
            Ask::Task {
                server,
                method,
                task,
                tool,
            } => self.task(server, method, task.is_some() && tool.is_none()),
            Ask::Other { server, method } => {
                self.other(&self.rules.decide_server(server), server, method)
            }
        }
    }

    fn wait(&self, ticket: &HoldTicket) -> HoldAnswer {
        let waiting = lock(&self.waiting).remove(&ticket.id);
        let Some(waiting) = waiting else {
            return HoldAnswer::TimedOut;
        };
        let is_wanted = || lock(&self.open_holds).contains(&ticket.id);
        let (mut answer, said) = waiting.wait(Instant::now() + ticket.deadline, is_wanted);
        if answer == HoldAnswer::Allowed && self.is_paused() {
            answer = HoldAnswer::Refused {
                by: "belljar".to_owned(),
                reason: "the agent is in quarantine".to_owned(),
            };
        }
        let was_wanted = lock(&self.open_holds).remove(&ticket.id);
        let (word, by, reason) = match (&answer, said) {
            (HoldAnswer::Allowed, Some(said)) => ("allowed", said.by, said.reason),
            (HoldAnswer::Allowed, None) => ("allowed", String::new(), String::new()),
            (HoldAnswer::Refused { by, reason }, _) => ("refused", by.clone(), reason.clone()),
            (HoldAnswer::TimedOut, _) if !was_wanted => ("withdrawn", String::new(), String::new()),
            (HoldAnswer::TimedOut, _) => ("timed_out", String::new(), String::new()),
        };
        self.recorder.record(McpEvent::Answered {
            id: ticket.id.to_string(),
            answer: word.to_owned(),
            by,
            reason,
        });
        answer
    }

    fn withdraw(&self, ticket: &HoldTicket) {
        lock(&self.open_holds).remove(&ticket.id);
    }

    fn list(&self, server: &str, tools: Vec<Value>) -> Vec<Value> {
        let Some(facts) = self.servers.get(server) else {
            return Vec::new();
        };
        let mut named = Vec::new();
        for tool in tools {
            match tool.get("name").and_then(Value::as_str).map(str::to_owned) {
                Some(name) if is_mcp_name(&name) => {
                    let pin = Pin::of(&tool);
                    named.push((name, pin, tool));
                }
                name => {
                    let told = lock(&self.watch).once(self.now(), Suspicion::TrickyName, server);
                    self.suspect(
                        told,
                        server,
                        name.as_deref().unwrap_or_default(),
                        "a listed name with characters that names don't have",
                    );
                }
            }
        }
        // Two tools of one name are two readings of one call.
        let twice: Vec<String> = named
            .iter()
            .enumerate()
            .filter(|(at, (name, ..))| named[..*at].iter().any(|(other, ..)| other == name))
            .map(|(_, (name, ..))| name.clone())
            .collect();
        named.retain(|(name, ..)| !twice.contains(name));
        let told: Vec<(&str, Pin)> = named
            .iter()
            .map(|(name, pin, _)| (name.as_str(), pin.clone()))
            .collect();
        let Ok(standings) = self.pins.compare(server, &facts.digest, &told) else {
            return Vec::new();
        };
        let all = named.into_iter().zip(standings);
        let shown =
            all.filter(|((name, _, tool), standing)| self.shown(server, name, tool, *standing));
        shown.map(|((_, _, tool), _)| tool).collect()
    }

    fn list_names(&self, server: &str, kind: Listed, names: &[&str]) -> Vec<bool> {
        let allowed = |name: &&str| match kind {
            Listed::Resources => self.rules.decide_resource(server, name).is_allow(),
            // A template is no address yet: what is made of it is judged when it is read.
            Listed::ResourceTemplates => self.rules.decide_server(server).is_allow(),
            Listed::Prompts => self.rules.decide_prompt(server, name).is_allow(),
        };
        let known = self.servers.contains_key(server);
        names.iter().map(|name| known && allowed(name)).collect()
    }

    fn finished(&self, call: Finished<'_>) {
        let said = lock(&self.refusals).remove(&(call.server.to_owned(), call.tool.to_owned()));
        let (code, rule) = match (call.verdict, said) {
            ("allow", _) | (_, None) => (None, self.rule_of(&call)),
            (_, Some((code, rule))) => (Some(code), Some(rule)),
        };
        let redact = self.rules.redacted(call.server, call.tool);
        self.recorder.record(McpEvent::Call {
            server: call.server.to_owned(),
            tool: shortened(call.tool),
            verdict: call.verdict.to_owned(),
            code,
            rule,
            duration_us: u64::try_from(call.duration.as_micros()).unwrap_or(u64::MAX),
            result_bytes: call.result_bytes as u64,
            is_error: call.is_error,
            arguments: redacted(call.arguments, &redact),
        });
    }

    fn malformed(&self, server: &str, why: &str) {
        let told = lock(&self.watch).once(self.now(), Suspicion::Malformed, server);
        self.suspect(told, server, "", why);
    }

    fn server_ended(&self, server: &str) {
        self.recorder.record(McpEvent::Suspicious {
            server: server.to_owned(),
            tool: String::new(),
            code: SERVER_ENDED.to_owned(),
            detail: "the server ended while it was in use; a new session starts another".to_owned(),
        });
    }
}

impl PolicyJudge {
    /// The rule that a call was let through by.
    fn rule_of(&self, call: &Finished<'_>) -> Option<String> {
        let paths = &*self.servers.get(call.server)?.paths;
        if !is_mcp_name(call.tool) {
            // No tool, but what is asked about one that was called.
            let decision = self.rules.decide_server(call.server);
            return Some(decision.because().origin.to_string());
        }
        let question = ToolQuestion {
            server: call.server,
            tool: call.tool,
            arguments: call.arguments,
            paths,
        };
        Some(
            self.rules
                .answer_tool(&question)
                .decision
                .because()
                .origin
                .to_string(),
        )
    }
}

impl std::fmt::Debug for PolicyJudge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PolicyJudge")
            .field("servers", &self.servers.keys())
            .finish_non_exhaustive()
    }
}

fn digest(arguments: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    arguments.to_string().hash(&mut hasher);
    hasher.finish()
}

/// The most of a text from outside that is told on.
const LONGEST: usize = 256;

fn shortened(text: &str) -> String {
    text.chars().take(LONGEST).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
