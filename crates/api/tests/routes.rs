//! Every route, there and back, through the typed client.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/fleet.rs"]
mod fleet;
mod support;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use belljar_api::*;
use support::{TestServer, patient};

fn reason(text: &str) -> Reason {
    Reason::new(text).unwrap()
}

fn id(text: &str) -> WorkerId {
    WorkerId::new(text).unwrap()
}

fn because(text: &str) -> Because {
    Because {
        reason: reason(text),
    }
}

fn worker(name: WorkerId, state: WorkerState) -> WorkerView {
    WorkerView {
        id: name,
        parent: Some(id("root")),
        depth: 1,
        state,
        started_at_ms: 1,
        age_ms: 2,
        expires_in_ms: Some(3),
        last_heartbeat_ms: None,
        command: Some(Shown::command(&[
            "python3".to_owned(),
            "agent one.py".to_owned(),
        ])),
        budget: budget(),
        ended_by: Some(EndedBy {
            code: Shown::new("reap_stale"),
            reason: None,
        }),
    }
}

fn budget() -> BudgetView {
    BudgetView {
        granted: Budget {
            tokens: Some(10),
            ..Budget::default()
        },
        own: Budget {
            tokens: Some(6),
            ..Budget::default()
        },
        reserved: Amounts {
            tokens: 3,
            ..Amounts::default()
        },
        spent: Amounts {
            tokens: 1,
            ..Amounts::default()
        },
        available: Budget {
            tokens: Some(0),
            ..Budget::default()
        },
    }
}

fn report(killed: u64) -> KillReport {
    KillReport {
        held_by: None,
        killed,
        boxes: killed,
        survivors: 0,
        elapsed_us: 5,
        entry: Some(9),
        not_recorded: None,
    }
}

fn clock() -> ClockView {
    ClockView {
        state: ClockState::WentBack,
        high_water_ms: 7,
    }
}

fn status() -> StatusView {
    StatusView {
        version: Shown::new("0.1.0"),
        started_at_ms: 1,
        uptime_ms: 2,
        workers: Counts {
            running: 3,
            ..Counts::default()
        },
        kill_switch: KillSwitchView::default(),
        epoch: 4,
        clock: clock(),
        ledger: LedgerView {
            entries: 5,
            failed: Some(Shown::new("disk full")),
        },
    }
}

fn contract() -> ContractView {
    ContractView {
        max_depth: 3,
        max_replicas: 10,
        cooldown_ms: 1500,
        expiration_ms: None,
        on_parent_exit: OnParentExit::Kill,
        budget: Budget::default(),
        stop_conditions: vec![StopCondition {
            name: Shown::new("crowd"),
            expression: Shown::new("workers.active > 5"),
            on_trigger: OnTrigger::Quarantine,
        }],
    }
}

fn engaged(reason: &Reason) -> KillSwitchView {
    let reason = Shown::new(reason.as_str());
    KillSwitchView {
        engaged: Some(Engagement {
            held_by: None,
            reason,
            since_ms: 1,
        }),
    }
}

fn manifest() -> ManifestReply {
    let payload = serde_json::json!({"depth": 1, "deep": [[[{}]]]});
    ManifestReply {
        envelope: "signed\n".to_owned(),
        payload: payload.as_object().unwrap().clone(),
    }
}

fn usage() -> UsageReply {
    let granted = budget().granted;
    UsageReply {
        budget: budget(),
        children: vec![ChildUsage {
            id: id("child"),
            granted,
        }],
    }
}

fn answer_agent(call: AgentCall) {
    match call {
        AgentCall::Replicate(asked) if asked.request.reason.as_str() == "too many" => {
            let problem = Problem::new("deny_quota", "10 of 10 replicas live")
                .hint("wait for one to end")
                .retry_after_ms(250);
            asked.responder.refuse(Status::FORBIDDEN, &problem);
        }
        AgentCall::Replicate(asked) => {
            let request = asked.request;
            assert_eq!(request.command.unwrap().words(), ["sh", "-c", "true"]);
            assert_eq!(request.state.unwrap().as_str(), "line\nline\u{0}");
            assert_eq!(request.capability.unwrap().max_memory_mb.unwrap().get(), 64);
            assert_eq!(request.budget.unwrap().tokens, Some(5));
            asked.responder.reply(&Replicated {
                worker_id: id("child"),
            });
        }
        AgentCall::Heartbeat(asked) => {
            asked.responder.reply(&HeartbeatReply {
                ok: true,
                next_within_ms: Some(1),
            });
        }
        AgentCall::Manifest(asked) => asked.responder.reply(&manifest()),
        AgentCall::Usage(asked) => asked.responder.reply(&usage()),
        AgentCall::ReportUsage(asked) => {
            assert_eq!(asked.request.model.unwrap().as_str(), "small");
            asked.responder.reply(&Done::DONE);
        }
        AgentCall::Replicas(asked) => {
            let child = Child {
                id: id("child"),
                state: WorkerState::Starting,
                since_ms: 1,
            };
            asked.responder.reply(&ReplicasReply {
                replicas: vec![child],
            });
        }
        AgentCall::Propose(asked) => {
            assert_eq!(asked.request.request.as_str(), "description: x\n");
            let name = "w-1".to_owned();
            asked.responder.reply(&Proposed { name });
        }
        AgentCall::Proposals(asked) => asked.responder.reply(&ProposalsReply::default()),
        AgentCall::Shutdown(asked) => {
            assert_eq!(asked.request.reason, reason("done"));
            asked.responder.reply(&Done::DONE);
        }
    }
}

fn answer_operator(call: OperatorCall) {
    let list = || WorkerList {
        workers: vec![worker(id("w1"), WorkerState::Running)],
    };
    match call {
        OperatorCall::ReadStatus(asked) => asked.responder.reply(&status()),
        OperatorCall::ListWorkers(asked) => asked.responder.reply(&list()),
        OperatorCall::ReadTree(asked) => asked.responder.reply(&list()),
        OperatorCall::Quarantine(asked) => {
            asked
                .responder
                .reply(&worker(asked.target, WorkerState::Quarantined));
        }
        OperatorCall::Release(asked) => {
            asked
                .responder
                .reply(&worker(asked.target, WorkerState::Running));
        }
        OperatorCall::Kill(asked) => {
            assert_eq!(asked.target, id("w-3_x"));
            asked
                .responder
                .reply(&report(if asked.request.subtree { 3 } else { 1 }));
        }
        OperatorCall::ReadKillSwitch(asked) => asked.responder.reply(&KillSwitchView::default()),
        OperatorCall::EngageKillSwitch(asked) => {
            assert_eq!(asked.request.reason.as_str(), "stop");
            asked.responder.reply(&report(7));
        }
        OperatorCall::ResetKillSwitch(asked) => {
            asked.responder.reply(&engaged(&asked.request.reason));
        }
        OperatorCall::Revoke(asked) => {
            assert_eq!(asked.request.worker_id, id("w1"));
            asked.responder.reply(&Revoked {
                manifests: 2,
                report: report(2),
            });
        }
        OperatorCall::BumpEpoch(asked) => {
            asked.responder.reply(&EpochBumped {
                epoch: 2,
                report: report(4),
            });
        }
        OperatorCall::AcknowledgeClock(asked) => {
            asked.responder.reply(&ClockAcknowledged { clock: clock() });
        }
        OperatorCall::ReadContract(asked) => asked.responder.reply(&contract()),
        other => fleet::answer(other),
    }
}

fn ask_as_agent(client: &mut Client) {
    let mut request = ReplicateRequest {
        reason: reason("more hands"),
        command: Some(Command::new(["sh", "-c", "true"].map(str::to_owned)).unwrap()),
        state: Some(StateText::new("line\nline\u{0}").unwrap()),
        capability: Some(Narrowing {
            max_memory_mb: 64.try_into().ok(),
            ..Narrowing::default()
        }),
        budget: Some(Budget {
            tokens: Some(5),
            ..Budget::default()
        }),
    };
    let child = client.call::<Replicate>(&request).unwrap();
    assert_eq!(child.worker_id, id("child"));
    request.reason = reason("too many");
    match client.call::<Replicate>(&request).unwrap_err() {
        CallError::Refused { status, problem } => {
            assert_eq!(status, Status::FORBIDDEN);
            assert_eq!(problem.code, "deny_quota");
            assert_eq!(problem.hint.as_deref(), Some("wait for one to end"));
            assert_eq!(problem.retry_after_ms, Some(250));
        }
        other => panic!("{other}"),
    }
    let beat = client.call::<Heartbeat>(&Empty {}).unwrap();
    assert_eq!(beat.next_within_ms, Some(1));
    assert_eq!(client.call::<Manifest>(&Empty {}).unwrap(), manifest());
    assert_eq!(client.call::<Usage>(&Empty {}).unwrap(), usage());
    let used = UsageReport {
        tokens_in: Some(1),
        model: Name::new("small").ok(),
        ..UsageReport::default()
    };
    assert!(client.call::<ReportUsage>(&used).unwrap().ok);
    let replicas = client.call::<Replicas>(&Empty {}).unwrap().replicas;
    assert_eq!(replicas[0].state, WorkerState::Starting);
    let proposed = client.call::<Propose>(&ProposeRequest {
        request: StateText::new("description: x\n").unwrap(),
    });
    assert_eq!(proposed.unwrap().name, "w-1");
    let mine = client.call::<Proposals>(&Empty {}).unwrap();
    assert!(mine.proposals.is_empty());
    let goodbye = ShutdownRequest {
        reason: reason("done"),
    };
    assert!(client.call::<Shutdown>(&goodbye).unwrap().ok);
}

fn ask_as_operator(client: &mut Client) {
    assert_eq!(client.call::<ReadStatus>(&Empty {}).unwrap(), status());
    let list = vec![worker(id("w1"), WorkerState::Running)];
    assert_eq!(client.call::<ListWorkers>(&Empty {}).unwrap().workers, list);
    assert_eq!(client.call::<ReadTree>(&Empty {}).unwrap().workers, list);
    let frozen = client
        .call_on::<Quarantine>(&id("w1"), &because("odd").into())
        .unwrap();
    assert_eq!(frozen, worker(id("w1"), WorkerState::Quarantined));
    let released = client
        .call_on::<Release>(&id("w2"), &because("fine").into())
        .unwrap();
    assert_eq!(released, worker(id("w2"), WorkerState::Running));
    let kill = KillRequest {
        reason: reason("x"),
        subtree: true,
    };
    assert_eq!(
        client.call_on::<Kill>(&id("w-3_x"), &kill).unwrap(),
        report(3)
    );
    assert!(
        client
            .call::<ReadKillSwitch>(&Empty {})
            .unwrap()
            .engaged
            .is_none()
    );
    let engage = EngageRequest {
        reason: reason("stop"),
    };
    assert_eq!(client.call::<EngageKillSwitch>(&engage).unwrap(), report(7));
    let reset = ResetRequest {
        reason: reason("go"),
    };
    let left = client.call::<ResetKillSwitch>(&reset).unwrap();
    assert_eq!(left, engaged(&reason("go")));
    let revoke = RevokeRequest {
        worker_id: id("w1"),
        reason: reason("leaked"),
    };
    assert_eq!(client.call::<Revoke>(&revoke).unwrap().manifests, 2);
    assert_eq!(client.call::<BumpEpoch>(&because("all")).unwrap().epoch, 2);
    let seen = client.call::<AcknowledgeClock>(&because("ntp")).unwrap();
    assert_eq!(seen.clock, clock());
    assert_eq!(client.call::<ReadContract>(&Empty {}).unwrap(), contract());
    fleet::ask(client);
}

#[test]
fn every_route_goes_there_and_back() {
    let seen = Arc::new(Mutex::new(BTreeSet::new()));
    let log = Arc::clone(&seen);
    let server = TestServer::start(patient(), move |request| match request.call {
        Call::Agent(call) => {
            assert_eq!(request.tag, Tag(1));
            log.lock().unwrap().insert(call.name());
            answer_agent(call);
        }
        Call::Operator(call) => {
            assert_eq!(request.tag, Tag(0));
            log.lock().unwrap().insert(call.name());
            answer_operator(call);
        }
    });
    ask_as_agent(&mut server.client(Tag(1)));
    ask_as_operator(&mut server.client(Tag(0)));
    server.stop();
    let table = AGENT_ROUTES
        .iter()
        .chain(OPERATOR_ROUTES)
        .map(|route| route.name);
    assert_eq!(*seen.lock().unwrap(), table.collect::<BTreeSet<_>>());
}
