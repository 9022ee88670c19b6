//! Agents that a file declares: each runs, or waits to be tried again, or is not wanted and says by whom.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use belljar_api::{
    AgentPhase, DeclaredReply, DeclaredState, DeclaredView, EventKind, Problem, Severity, Shown,
    StartDeclaredRequest,
};
use belljar_policy::{Amount, Budget, Dimension};
use belljar_replication::Asked;

use super::desired::{DesiredState, StopMark};
use super::restart::RestartRules;
use super::roster::is_over;
use super::shares::{asked, shares};
use super::starting::settle;
use super::views::{Text, name_id};
use super::{AgentSpec, Inner, OperatorIdentity};
use crate::fleet::{Refused, act_by};

/// What is declared.
#[derive(Debug)]
pub(crate) struct Declared {
    table: Mutex<Table>,
    pub(super) desired: DesiredState,
}

#[derive(Debug, Default)]
struct Table {
    /// As they stand in the file.
    entries: Vec<Entry>,
    /// Somebody is starting those whose time has come.
    is_busy: bool,
}

impl Table {
    fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.spec.name == name)
    }

    fn entry_mut(&mut self, name: &str) -> Option<&mut Entry> {
        let mut entries = self.entries.iter_mut();
        entries.find(|entry| entry.spec.name == name)
    }
}

#[derive(Debug)]
struct Entry {
    spec: AgentSpec,
    share: Budget,
    trouble: Option<Trouble>,
}

/// Why an agent could not be started, and when it is tried again.
#[derive(Debug)]
struct Trouble {
    problem: Problem,
    since_ms: u64,
    attempts: u32,
    again_at: Instant,
    again_at_ms: u64,
}

impl Declared {
    pub(super) fn new(specs: Vec<AgentSpec>, budget: &Budget, desired: DesiredState) -> Self {
        let declared = Self {
            table: Mutex::default(),
            desired,
        };
        declared.replace(specs, budget);
        declared
    }

    /// Another file's agents. Those that were there before are known to have been refused before.
    pub(super) fn replace(&self, specs: Vec<AgentSpec>, budget: &Budget) {
        // Checked by whoever read the file; too much is refused by the controller then.
        let shares = shares(budget, &specs);
        let shares = shares.unwrap_or_else(|_| vec![Budget::UNBOUNDED; specs.len()]);
        let mut table = self.table();
        let old = std::mem::take(&mut table.entries);
        let old = old
            .into_iter()
            .map(|entry| (entry.spec.name, entry.trouble));
        let mut old: HashMap<String, Option<Trouble>> = old.collect();
        for (mut spec, share) in specs.into_iter().zip(shares) {
            // Meant is where its workdir leads as the file is read.
            settle(&mut spec);
            let trouble = old.remove(&spec.name).flatten();
            let entry = Entry {
                spec,
                share,
                trouble,
            };
            table.entries.push(entry);
        }
    }

    pub(super) fn knows(&self, name: &str) -> bool {
        self.table().entry(name).is_some()
    }

    pub(super) fn spec(&self, name: &str) -> Option<AgentSpec> {
        let table = self.table();
        table.entry(name).map(|entry| entry.spec.clone())
    }

    pub(super) fn specs(&self) -> Vec<AgentSpec> {
        let table = self.table();
        table.entries.iter().map(|it| it.spec.clone()).collect()
    }

    fn share(&self, name: &str) -> Option<Budget> {
        self.table().entry(name).map(|entry| entry.share)
    }

    /// Marks a declared agent as not wanted, durably. Says why that can't be kept, where it can't.
    pub(super) fn mark(
        &self,
        name: &str,
        by: Option<&str>,
        code: &str,
        reason: &str,
    ) -> Option<String> {
        if !self.knows(name) {
            return None;
        }
        let mark = StopMark {
            name: name.to_owned(),
            code: code.to_owned(),
            by: by.map(str::to_owned),
            at_ms: belljar_gate::clock::now().wall_ms,
            reason: reason.to_owned(),
        };
        let kept = self.desired.mark(mark);
        kept.err().map(|error| error.to_string())
    }

    /// The same for an agent that ended by itself: what a person wanted before is what is told.
    pub(super) fn mark_end(&self, name: &str, code: &str, reason: &str) -> Option<String> {
        match self.desired.get(name) {
            Some(_) => None,
            None => self.mark(name, None, code, reason),
        }
    }

    /// An agent could not be started. Says whether that is news.
    pub(super) fn refused(&self, name: &str, problem: &Problem, rules: &RestartRules) -> bool {
        let now_ms = belljar_gate::clock::now().wall_ms;
        let mut table = self.table();
        let Some(entry) = table.entry_mut(name) else {
            return false;
        };
        let before = entry.trouble.take();
        let is_news = before
            .as_ref()
            .is_none_or(|before| before.problem.code != problem.code);
        let attempts = before.as_ref().map_or(0, |before| before.attempts);
        let doubled = 2u32.checked_pow(attempts).unwrap_or(u32::MAX);
        let wait = rules.first.saturating_mul(doubled).min(rules.longest);
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        entry.trouble = Some(Trouble {
            problem: problem.clone(),
            since_ms: before
                .filter(|_| !is_news)
                .map_or(now_ms, |before| before.since_ms),
            attempts: attempts.saturating_add(1),
            again_at: Instant::now() + wait,
            again_at_ms: now_ms.saturating_add(wait_ms),
        });
        is_news
    }

    /// Whether an agent could not be started, and is tried again.
    pub(super) fn is_refused(&self, name: &str) -> bool {
        let is_tried = self
            .table()
            .entry(name)
            .is_some_and(|entry| entry.trouble.is_some());
        is_tried && self.desired.get(name).is_none()
    }

    /// An agent runs.
    pub(super) fn started(&self, name: &str) {
        if let Some(entry) = self.table().entry_mut(name) {
            entry.trouble = None;
        }
    }

    /// What refused agents may have changed: they are tried at once.
    pub(super) fn hurry(&self) {
        for entry in &mut self.table().entries {
            if let Some(trouble) = &mut entry.trouble {
                trouble.attempts = 0;
                trouble.again_at = Instant::now();
            }
        }
    }

    /// Those whose time has come, for one thread at a time.
    fn due(&self, live: &HashSet<String>) -> Vec<AgentSpec> {
        let now = Instant::now();
        let mut table = self.table();
        if table.is_busy {
            return Vec::new();
        }
        let due: Vec<_> = table
            .entries
            .iter()
            .filter(|entry| {
                let trouble = entry.trouble.as_ref();
                trouble.is_some_and(|trouble| trouble.again_at <= now)
            })
            .filter(|entry| !live.contains(&entry.spec.name))
            .filter(|entry| self.desired.get(&entry.spec.name).is_none())
            .map(|entry| entry.spec.clone())
            .collect();
        table.is_busy = !due.is_empty();
        due
    }

    fn view(&self, entry: &Entry) -> DeclaredView {
        let name = Shown::new(&entry.spec.name);
        let code = Shown::new;
        let attempts = entry.trouble.as_ref().map_or(0, |trouble| trouble.attempts);
        if let Some(mark) = self.desired.get(&entry.spec.name) {
            return DeclaredView {
                name,
                state: DeclaredState::Stopped,
                since_ms: mark.at_ms,
                by: mark.by.as_deref().map(Shown::new),
                code: code(&mark.code),
                reason: Shown::new(&mark.reason),
                hint: Some(Shown::new(&format!(
                    "`belljar supervisor agent start {}` starts it",
                    entry.spec.name
                ))),
                retry_at_ms: None,
                attempts,
            };
        }
        match &entry.trouble {
            Some(trouble) => DeclaredView {
                name,
                state: DeclaredState::Refused,
                since_ms: trouble.since_ms,
                by: None,
                code: code(&trouble.problem.code),
                reason: Shown::new(&trouble.problem.message),
                hint: trouble.problem.hint.as_deref().map(Shown::new),
                retry_at_ms: Some(trouble.again_at_ms),
                attempts,
            },
            None => DeclaredView {
                name,
                state: DeclaredState::Pending,
                since_ms: belljar_gate::clock::now().wall_ms,
                by: None,
                code: code("pending"),
                reason: Shown::new("it is about to be started"),
                hint: None,
                retry_at_ms: None,
                attempts,
            },
        }
    }

    /// Those that don't run, by name.
    pub(super) fn not_running(&self, live: &HashSet<String>) -> Vec<DeclaredView> {
        let table = self.table();
        let entries = table.entries.iter();
        entries
            .filter(|entry| !live.contains(&entry.spec.name))
            .map(|entry| self.view(entry))
            .collect()
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn declared(&self) -> &Declared {
        &self.roster.declared
    }

    /// Declared agents that don't run, and why.
    pub(super) fn not_running(&self) -> Vec<DeclaredView> {
        self.declared().not_running(&self.roster.live_names())
    }

    /// Starts a declared agent that is wanted and does not live; what refuses it is told, and it is tried again.
    pub(super) fn try_declared(&self, spec: AgentSpec) -> Result<bool, Problem> {
        let name = spec.name.clone();
        if self.roster.is_live(&name) || self.declared().desired.get(&name).is_some() {
            return Ok(false);
        }
        // Asked of the latch and not of the controller: a refusal that is foreseen need not be on record each time.
        let started = match self.post().gate.engaged() {
            Some(engaged) => Err(kill_switch_is_engaged(&engaged.reason)),
            None => self.start(spec).map_err(|Refused(_, problem)| problem),
        };
        match started {
            Ok(_) => {
                self.declared().started(&name);
                Ok(true)
            }
            Err(problem) => {
                self.declared_refused(&name, &problem);
                Err(problem)
            }
        }
    }

    pub(super) fn declared_refused(&self, name: &str, problem: &Problem) {
        let is_news = self
            .declared()
            .refused(name, problem, &self.settings.restart);
        if is_news {
            let text = format!(
                "{name} can't be started and is tried again: {}",
                problem.message
            );
            let mut text = Text::new(&text).code("never_started");
            if let Some(hint) = &problem.hint {
                text = text.hint(hint);
            }
            let mut event = text.event(None, EventKind::Restarting, Severity::Critical);
            // There is no worker; what is told of a name goes by an id that is the same each time.
            let id = name_id(name);
            self.observer.called(&id, &Shown::new(name));
            event.agent = Some(id);
            self.roster.tell(event);
        }
        self.clock.ring();
    }

    /// Tries those whose time has come, in a thread of its own: a start takes as long as its box does.
    pub(super) fn try_due(self: &Arc<Self>) {
        for name in self.declared().desired.save_again() {
            self.roster
                .daemon_event(&format!("that {name} is not to run is kept on disk now"));
        }
        if self.roster.is_closing() {
            return;
        }
        let due = self.declared().due(&self.roster.live_names());
        if due.is_empty() {
            return;
        }
        let inner = Arc::clone(self);
        let thread = std::thread::Builder::new().name("belljar-declared".to_owned());
        let spawned = thread.spawn(move || {
            let _busy = Busy(&inner);
            for spec in due {
                if inner.roster.is_closing() {
                    break;
                }
                // Told where it is refused.
                let _ = inner.try_declared(spec);
            }
        });
        if spawned.is_err() {
            self.declared().table().is_busy = false;
        }
    }

    /// Makes declared agents wanted again, and starts them.
    pub(super) fn start_declared(
        &self,
        by: &OperatorIdentity,
        request: &StartDeclaredRequest,
    ) -> Result<DeclaredReply, Refused> {
        let unknown = |name: &str| {
            let problem = Problem::new("not_declared", format!("no agent {name} is declared"));
            let hint = "`belljar supervisor status` lists those that don't run; `belljar sandbox` starts others";
            Refused(belljar_api::Status::NOT_FOUND, problem.hint(hint))
        };
        let live = self.roster.live_names();
        let specs: Vec<AgentSpec> = match request.names.as_slice() {
            [] => {
                let mut all = self.declared().specs();
                all.retain(|spec| !live.contains(&spec.name));
                all
            }
            names => names
                .iter()
                .map(|name| {
                    let name = name.as_str();
                    self.declared().spec(name).ok_or_else(|| unknown(name))
                })
                .collect::<Result<_, _>>()?,
        };
        let specs = specs.into_iter().filter(|spec| !live.contains(&spec.name));
        let act = act_by(by.name(), request.reason.as_str());
        self.post().gate.note_act("start_declared", None, act)?;
        let mut reply = DeclaredReply::default();
        for spec in specs {
            let name = spec.name.clone();
            if let Err(error) = self.declared().desired.clear(&name) {
                let problem = Problem::new(
                    "deny_unrecorded",
                    format!("that {name} is wanted again can't be kept: {error}"),
                );
                let hint = "see that the state directory can be written to";
                return Err(Refused(
                    belljar_api::Status::UNAVAILABLE,
                    problem.hint(hint),
                ));
            }
            if let Ok(true) = self.try_declared(self.in_its_place(spec)) {
                reply.started.push(Shown::new(&name));
            }
        }
        reply.not_running = self.not_running();
        Ok(reply)
    }

    /// An agent of a project goes on from the release that it ran from last.
    pub(super) fn in_its_place(&self, mut spec: AgentSpec) -> AgentSpec {
        if spec.follows_releases
            && let Some(place) = self.roster.last_place(&spec.name)
        {
            spec.workdir = Some(place);
        }
        spec
    }

    /// What an agent asks of the contract: a declared one its share, any other what is left.
    pub(super) fn asked(&self, name: &str) -> Asked {
        let Some(share) = self.declared().share(name) else {
            return Asked::default();
        };
        if share == Budget::UNBOUNDED {
            return Asked::default();
        }
        let whole = self.post().contract.budget;
        let looked = self.post().gate.look(move |state, _| {
            let free = state.free_of_fleet();
            let roots = state.workers().filter(|worker| worker.depth == 0);
            let granted = roots.fold(Budget::ZERO, |sum, root| sum.plus(&root.granted));
            (free, granted)
        });
        let (free, granted) = looked.unwrap_or((whole, Budget::ZERO));
        // What earlier families spent of this fleet's budget, at most: an account that began anew owes nothing.
        let spent_by_all = |d: Dimension| {
            let whole = whole.of(d).number().unwrap_or(0);
            let free = free.of(d).number().unwrap_or(whole);
            let granted = granted.of(d).number().unwrap_or(0);
            whole.saturating_sub(free).saturating_sub(granted)
        };
        let spent = self.roster.spent(name);
        let spent = Budget::from_fn(|d| {
            let own = spent.get(&d).copied().unwrap_or(0);
            Amount::of(own.min(spent_by_all(d)))
        });
        asked(&share, &spent, &free)
    }
}

/// Somebody is starting those whose time has come, until this is dropped, however that comes about.
struct Busy<'a>(&'a Inner);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.declared().table().is_busy = false;
    }
}

fn kill_switch_is_engaged(reason: &str) -> Problem {
    let message = format!("the kill switch is engaged: {reason}");
    Problem::new("deny_kill_switch", message)
        .hint("take it off: `belljar replication kill-switch reset --reason …`")
}

impl super::roster::Roster {
    /// Everybody who lives, or will again.
    pub(super) fn live_names(&self) -> HashSet<String> {
        let book = self.book();
        let live = book.agents.values().filter(|it| !is_over(it.view.phase));
        live.map(|agent| agent.card.name.clone()).collect()
    }

    /// Where the latest agent of this name worked.
    fn last_place(&self, name: &str) -> Option<std::path::PathBuf> {
        let book = self.book();
        let mut latest = book.order.values().rev();
        let agent = latest.find_map(|worker| {
            let agent = book.agents.get(worker)?;
            (agent.card.name == name).then_some(agent)
        })?;
        agent.origin.workdir.clone()
    }

    /// What the ended of this name used up, their replicas included.
    fn spent(&self, name: &str) -> HashMap<Dimension, u64> {
        let book = self.book();
        let ended = book.agents.values().filter(|agent| {
            agent.card.name == name
                && matches!(
                    agent.view.phase,
                    AgentPhase::Ended | AgentPhase::CrashLoop | AgentPhase::Waiting
                )
        });
        let mut spent = HashMap::new();
        for agent in ended {
            let (usage, family) = (&agent.view.usage, &agent.view.budget.spent);
            for (dimension, used) in [
                (Dimension::CpuMs, usage.cpu_ms.max(family.cpu_ms)),
                (Dimension::Tokens, usage.tokens.max(family.tokens)),
                (Dimension::MicroUsd, usage.micro_usd.max(family.micro_usd)),
            ] {
                let sum: &mut u64 = spent.entry(dimension).or_default();
                *sum = sum.saturating_add(used);
            }
        }
        spent
    }
}
