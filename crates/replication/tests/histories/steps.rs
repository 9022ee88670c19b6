//! What can happen in a history, and under which contract.

use std::time::Duration;

use belljar_policy::{Amount, Budget, Contract, OnParentExit, OnTrigger, StopCondition};
use belljar_replication::Asked;

use crate::reference::Rules;

pub(crate) type Asking = (Option<u64>, Option<u64>);

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Root {
        asked: Asking,
        need: u64,
    },
    Request {
        parent: u8,
        asked: Asking,
        need: u64,
        spoof: u8,
    },
    Register {
        grant: u8,
        forgery: u8,
    },
    Adopt {
        parent: u8,
        asked: Asking,
        need: u64,
    },
    Tick,
    Wait(u64),
    Beat(u8),
    Started(u8),
    End(u8),
    Quarantine(u8),
    Release(u8),
    KillSubtree(u8),
    KillWorker(u8),
    KillFleet,
    Reset,
    Revoke(u8),
    BumpEpoch,
    Spend {
        worker: u8,
        cpu: u64,
        tokens: u64,
    },
    MoveClock(i64),
    Acknowledge,
    Withdraw(u8),
    SetContract {
        depth: u32,
        replicas: u32,
    },
    Restart,
    Resume,
}

/// Answers that must come up in the histories.
pub(crate) const ANSWERS: &[&str] = &[
    "issue:ok",
    "issue:deny_quota",
    "issue:deny_cooldown",
    "issue:deny_depth",
    "issue:deny_depth_spoof",
    "issue:deny_quarantined",
    "issue:deny_stop_condition",
    "issue:deny_kill_switch",
    "issue:deny_budget",
    "issue:deny_parent_unknown",
    "issue:deny_expired",
    "issue:deny_clock",
    "register:ok",
    "register:deny_quota",
    "register:deny_cooldown",
    "register:deny_depth",
    "register:deny_depth_spoof",
    "register:deny_quarantined",
    "register:deny_stop_condition",
    "register:deny_kill_switch",
    "register:deny_parent_unknown",
    "register:deny_expired",
    "register:deny_clock",
    "register:reject_replay",
    "register:reject_revoked",
    "register:reject_epoch",
    "register:reject_mismatch",
    "root:ok",
    "root:deny_quota",
    "root:deny_budget",
    "root:deny_stop_condition",
    "root:deny_kill_switch",
    "root:deny_clock",
    "spend:over",
];

pub(crate) fn contract(rules: &Rules) -> Contract {
    let condition = |name: &str, when: String, on_trigger| StopCondition {
        name: name.to_owned(),
        when,
        on_trigger,
        line: 0,
    };
    let mut contract = Contract::new(
        rules.max_depth,
        rules.max_replicas,
        Duration::from_millis(rules.cooldown_ms),
        rules.expiration_ms.map(Duration::from_millis),
    );
    contract.heartbeat_timeout = rules.silence_ms.map(Duration::from_millis);
    contract.budget = rules.budget;
    if rules.keeps_orphans {
        contract.on_parent_exit = OnParentExit::Keep;
    }
    contract.stop_conditions = vec![
        condition(
            "crowd",
            format!("workers.active >= {}", rules.crowd),
            OnTrigger::Deny,
        ),
        condition(
            "glutton",
            format!("worker.tokens > {}", rules.glutton),
            OnTrigger::Kill,
        ),
        condition(
            "feast",
            format!("budget.tokens > {}", rules.feast),
            OnTrigger::Quarantine,
        ),
    ];
    contract
}

pub(crate) fn asked(asking: Asking) -> Asked {
    Asked {
        tokens: asking.0.map(Amount::of),
        replicas: asking.1.map(Amount::of),
        ..Asked::default()
    }
}

pub(crate) fn need(amount: u64) -> Budget {
    Budget {
        memory_mb: Amount::of(amount),
        pids: Amount::of(4),
        cpu_ms: Amount::of(amount * 3),
        ..Budget::ZERO
    }
}
