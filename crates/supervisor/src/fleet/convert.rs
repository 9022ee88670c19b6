//! The controller's words in the protocol's.

use belljar_api::{
    Amounts, Budget, BudgetView, ContractView, EndedBy, OnParentExit, OnTrigger, Shown,
    StopCondition, WorkerId, WorkerState, WorkerView,
};
use belljar_policy::{Contract, Dimension};
use belljar_replication::{Now, Obituary, State, Status};

use super::crew::Crew;

pub(crate) fn id(worker: belljar_replication::WorkerId) -> WorkerId {
    // Hexadecimal digits are within what an id may hold.
    WorkerId::new(worker.to_string())
        .unwrap_or_else(|_| unreachable!("hexadecimal digits make an id"))
}

pub(crate) fn status(status: Status) -> WorkerState {
    match status {
        Status::Starting => WorkerState::Starting,
        Status::Running => WorkerState::Running,
        Status::Quarantined => WorkerState::Quarantined,
    }
}

pub(crate) fn budget(budget: &belljar_policy::Budget) -> Budget {
    Budget {
        replicas: budget.replicas.number(),
        cpu_ms: budget.cpu_ms.number(),
        memory_mb: budget.memory_mb.number(),
        pids: budget.pids.number(),
        tokens: budget.tokens.number(),
        micro_usd: budget.micro_usd.number(),
    }
}

pub(crate) fn budget_view(view: &belljar_replication::WorkerView) -> BudgetView {
    let held = |d: Dimension| {
        let number = |budget: &belljar_policy::Budget| budget.of(d).number().unwrap_or(0);
        number(&view.granted)
            .saturating_sub(number(&view.free))
            .saturating_sub(number(&view.own))
            .saturating_sub(view.used.of(d))
    };
    BudgetView {
        granted: budget(&view.granted),
        own: budget(&view.own),
        reserved: amounts(held),
        spent: amounts(|d| view.used.of(d)),
        available: budget(&view.free),
    }
}

fn amounts(of: impl Fn(Dimension) -> u64) -> Amounts {
    Amounts {
        replicas: of(Dimension::Replicas),
        cpu_ms: of(Dimension::CpuMs),
        memory_mb: of(Dimension::MemoryMb),
        pids: of(Dimension::Pids),
        tokens: of(Dimension::Tokens),
        micro_usd: of(Dimension::MicroUsd),
    }
}

/// A live worker.
pub(crate) fn worker(view: &belljar_replication::WorkerView, now: Now, crew: &Crew) -> WorkerView {
    let age_ms = now.boot_ns.saturating_sub(view.registered_ns) / 1_000_000;
    let post = crew.employed(view.id);
    WorkerView {
        id: id(view.id),
        parent: view.parent.map(id),
        depth: view.depth,
        state: match status(view.status) {
            WorkerState::Quarantined if crew.is_freezing(view.id) => WorkerState::Freezing,
            state => state,
        },
        started_at_ms: post
            .as_ref()
            .map_or(now.wall_ms.saturating_sub(age_ms), |post| {
                post.started_at_ms
            }),
        age_ms,
        expires_in_ms: view
            .expires_ns
            .map(|at| at.saturating_sub(now.boot_ns) / 1_000_000),
        last_heartbeat_ms: None,
        command: post.map(|post| {
            let words: Vec<_> = post
                .command
                .argv
                .iter()
                .map(|word| word.to_string_lossy())
                .collect();
            Shown::new(&words.join(" "))
        }),
        budget: budget_view(view),
        ended_by: None,
    }
}

/// One that ended.
pub(crate) fn obituary(ended: &Obituary) -> WorkerView {
    WorkerView {
        id: id(ended.worker),
        parent: ended.parent.map(id),
        depth: ended.depth,
        state: WorkerState::Ended,
        started_at_ms: ended.at.wall_ms,
        age_ms: 0,
        expires_in_ms: None,
        last_heartbeat_ms: None,
        command: None,
        budget: BudgetView::default(),
        ended_by: Some(EndedBy {
            code: Shown::new(ended.code.code()),
            reason: None,
        }),
    }
}

/// The contract.
pub(crate) fn contract(contract: &Contract) -> ContractView {
    let ms = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    ContractView {
        max_depth: contract.max_depth,
        max_replicas: u64::from(contract.max_replicas),
        cooldown_ms: ms(contract.cooldown),
        expiration_ms: contract.expiration.map(ms),
        on_parent_exit: match contract.on_parent_exit {
            belljar_policy::OnParentExit::Keep => OnParentExit::Keep,
            belljar_policy::OnParentExit::Kill => OnParentExit::Kill,
        },
        budget: budget(&contract.budget),
        stop_conditions: contract
            .stop_conditions
            .iter()
            .map(|condition| StopCondition {
                name: Shown::new(&condition.name),
                expression: Shown::new(&condition.when),
                on_trigger: match condition.on_trigger {
                    belljar_policy::OnTrigger::Deny => OnTrigger::Deny,
                    belljar_policy::OnTrigger::Quarantine => OnTrigger::Quarantine,
                    belljar_policy::OnTrigger::Kill => OnTrigger::Kill,
                },
            })
            .collect(),
    }
}

/// Everybody alive, parents before children.
pub(crate) fn everybody(state: &State, now: Now, crew: &Crew) -> Vec<WorkerView> {
    state
        .workers()
        .map(|view| worker(&view, now, crew))
        .collect()
}
