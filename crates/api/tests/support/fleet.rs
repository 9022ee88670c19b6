//! What a daemon answers, as the tests of routes have it.

#![allow(dead_code, unreachable_pub, reason = "each test uses its part of this")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use belljar_api::*;

#[path = "proposals.rs"]
mod proposals;

fn id<Id: Named>(text: &str) -> Id {
    Id::from_path(Some(text)).unwrap()
}

pub fn agent(name: AgentId, phase: AgentPhase) -> AgentView {
    AgentView {
        id: name,
        name: Shown::new("an agent"),
        parent: None,
        depth: 0,
        phase,
        since_ms: 1,
        started_at_ms: 2,
        restarts: 3,
        restart_at_ms: Some(4),
        command: Shown::new("python3 agent.py"),
        capability: Shown::new("moderate"),
        usage: UsageNow {
            cpu_percent: 12.5,
            tokens: 7,
            ..UsageNow::default()
        },
        limits: LimitsView {
            memory_bytes: Some(1 << 30),
            ..LimitsView::default()
        },
        budget: BudgetView {
            granted: Budget::default(),
            own: Budget::default(),
            reserved: Amounts::default(),
            spent: Amounts::default(),
            available: Budget::default(),
        },
        open_alerts: 1,
        end: Some(End {
            cause: EndCause::OutOfMemory,
            at_ms: 5,
            exit_code: None,
            signal: Some(9),
            detail: None,
        }),
    }
}

pub fn detail(name: AgentId) -> AgentDetail {
    AgentDetail {
        agent: agent(name, AgentPhase::Running),
        keeper_pid: Some(42),
        children: vec![id("child")],
        workdir: "/srv/agent".to_owned(),
        tier: Shown::new("native"),
        image: None,
        limits_by: Shown::new("cgroup v2"),
        degraded: Vec::new(),
        policy: "version: 1\n".to_owned(),
        denials: vec![Denial {
            kind: DenialKind::Network,
            code: Shown::new("deny_host"),
            what: Shown::new("example.com:443"),
            count: 2,
            last_at_ms: 3,
            why: Shown::new("no rule allows it"),
            allow_with: Some(Shown::new("- host: example.com")),
        }],
    }
}

pub fn processes() -> ProcessList {
    ProcessList {
        processes: vec![ProcessView {
            pid: 2,
            parent: 1,
            command: Shown::new("sh"),
            state: Shown::new("S"),
            cpu_ms: 3,
            memory_bytes: 4,
            threads: 1,
        }],
    }
}

pub fn output() -> OutputReply {
    OutputReply {
        text: "line\n\u{1b}[2J<script>".to_owned(),
        from: 7,
        next: 24,
        is_end: false,
        dropped: 3,
    }
}

pub fn metrics() -> MetricsReply {
    MetricsReply {
        every_ms: 1000,
        samples: vec![Sample {
            at_ms: 1,
            cpu_percent: 0.25,
            tokens: 2,
            ..Sample::default()
        }],
    }
}

pub fn events() -> EventList {
    EventList {
        events: vec![EventView {
            id: 9,
            at_ms: 1,
            agent: Some(id("w1")),
            kind: EventKind::EgressRefused,
            severity: Severity::Warning,
            text: Shown::new("refused"),
            code: Some(Shown::new("deny_host")),
            hint: None,
        }],
    }
}

pub fn silence(number: SilenceId) -> SilenceView {
    SilenceView {
        id: number,
        agent: None,
        kind: Some(AlertKind::AgentCrashed),
        reason: Shown::new("a drill"),
        by: Shown::new("ada"),
        since_ms: 1,
        until_ms: 2,
    }
}

pub fn alert(number: AlertId, state: AlertState) -> AlertView {
    AlertView {
        id: number,
        kind: AlertKind::NetworkAnomaly,
        severity: Severity::Critical,
        agent: Some(id("w1")),
        agent_name: Some(Shown::new("an agent")),
        text: Shown::new("12 hosts refused"),
        hint: None,
        state,
        opened_at_ms: 1,
        last_at_ms: 2,
        count: 12,
        by: Some(Shown::new("ada")),
        reason: None,
        silenced: false,
        responses: vec![ResponseTaken {
            response: Response::Quarantine,
            at_ms: 3,
            failed: None,
        }],
    }
}

pub fn ledger(verified: &str) -> LedgerReport {
    LedgerReport {
        entries: 5,
        checkpoint: "belljar\n5\nroot\n".to_owned(),
        key: Shown::new("belljar+1+k"),
        verified: Shown::new(verified),
        verified_at_ms: Some(1),
        failed: None,
    }
}

pub fn entries() -> LedgerEntries {
    LedgerEntries {
        entries: vec![LedgerEntry {
            index: 4,
            entry: serde_json::json!({"kind": "granted"}),
        }],
    }
}

pub fn start_request() -> StartRequest {
    StartRequest {
        name: Name::new("an agent").unwrap(),
        command: Command::new(["true".to_owned()]).unwrap(),
        workdir: Some("/tmp".to_owned()),
        capability: None,
        server_capabilities: std::collections::BTreeMap::from([(
            "files.yaml".to_owned(),
            "extends: strict\n".to_owned(),
        )]),
        profile: Name::new("strict").ok(),
        restart: RestartPolicy::OnFailure,
        restart_on_oom: Some(true),
    }
}

/// Answers what only a daemon knows; checks that what was asked came through whole.
pub fn answer(call: OperatorCall) {
    let open = AlertState::Open;
    match call {
        OperatorCall::ListAgents(asked) => {
            assert_eq!(asked.request.ended, Some(true));
            asked.responder.reply(&AgentList {
                not_running: Vec::new(),
                agents: vec![agent(id("w1"), AgentPhase::CrashLoop)],
                max_agents: 10,
                at_ms: 1,
            });
        }
        OperatorCall::StartAgent(asked) => {
            assert_eq!(asked.request, start_request());
            asked
                .responder
                .reply(&agent(id("new"), AgentPhase::Running));
        }
        OperatorCall::StartDeclared(asked) => {
            assert_eq!(asked.request.names, [Name::new("ann").unwrap()]);
            asked.responder.reply(&DeclaredReply {
                started: vec![Shown::new("ann")],
                not_running: Vec::new(),
            });
        }
        OperatorCall::Reload(asked) => {
            assert!(asked.request.dry_run && !asked.request.no_restart);
            asked.responder.reply(&ReloadReply::default());
        }
        OperatorCall::ReadAgent(asked) => asked.responder.reply(&detail(asked.target)),
        OperatorCall::ListProcesses(asked) => {
            assert_eq!(asked.target, id("w1"));
            asked.responder.reply(&processes());
        }
        OperatorCall::ReadOutput(asked) => {
            let query = asked.request;
            assert_eq!(
                (query.stream, query.from, query.most),
                (Some(OutputStream::Stderr), Some(7), None)
            );
            asked.responder.reply(&output());
        }
        OperatorCall::StopAgent(asked) => {
            assert_eq!(asked.request.grace_ms, Some(10));
            asked
                .responder
                .reply(&agent(asked.target, AgentPhase::Stopping));
        }
        OperatorCall::ReadMetrics(asked) => {
            assert_eq!(
                (asked.request.agent, asked.request.points),
                (Some(id("w1")), Some(5))
            );
            asked.responder.reply(&metrics());
        }
        OperatorCall::ListEvents(asked) => {
            let query = asked.request;
            assert_eq!(query.search.unwrap().as_str(), "a & b=c +ü%");
            assert_eq!(
                (query.kind, query.severity),
                (Some(EventKind::EgressRefused), Some(Severity::Warning))
            );
            asked.responder.reply(&events());
        }
        OperatorCall::ListAlerts(asked) => {
            assert_eq!(asked.request.state, Some(open));
            asked.responder.reply(&AlertList {
                alerts: vec![alert(id("1"), open)],
            });
        }
        OperatorCall::AcknowledgeAlert(asked) => {
            asked
                .responder
                .reply(&alert(asked.target, AlertState::Acknowledged));
        }
        OperatorCall::ResolveAlert(asked) => {
            asked
                .responder
                .reply(&alert(asked.target, AlertState::Resolved));
        }
        OperatorCall::ResolveAlerts(asked) => {
            assert!(asked.request.all);
            asked.responder.reply(&AlertsResolved {
                resolved: vec![id("4"), id("5")],
            });
        }
        OperatorCall::ListSilences(asked) => asked.responder.reply(&SilenceList {
            silences: vec![silence(id("1"))],
        }),
        OperatorCall::CreateSilence(asked) => {
            assert_eq!(asked.request.for_ms, 60_000);
            asked.responder.reply(&silence(id("2")));
        }
        OperatorCall::EndSilence(asked) => asked.responder.reply(&silence(asked.target)),
        OperatorCall::RestartAgent(asked) => {
            let request = asked.request;
            assert_eq!(request.workdir.as_deref(), Some("/srv/release"));
            asked
                .responder
                .reply(&agent(id("new"), AgentPhase::Running));
        }
        OperatorCall::ListProposals(asked) => asked.responder.reply(&proposals::list(id("p1"))),
        OperatorCall::ReadProposal(asked) => {
            asked.responder.reply(&proposals::proposal(asked.target));
        }
        OperatorCall::ListHolds(asked) => asked.responder.reply(&HoldList {
            holds: vec![hold(id("h1"))],
        }),
        OperatorCall::AnswerHold(asked) => {
            assert!(asked.request.allow);
            assert_eq!(asked.request.reason.as_str(), "looked at it");
            asked.responder.reply(&hold(asked.target));
        }
        OperatorCall::ReadLedger(asked) => asked.responder.reply(&ledger("not_checked")),
        OperatorCall::ListEntries(asked) => {
            assert_eq!(
                (asked.request.before, asked.request.limit),
                (Some(5), Some(1))
            );
            asked.responder.reply(&entries());
        }
        OperatorCall::ProveEntry(asked) => {
            let index = asked.request.index.unwrap();
            asked.responder.reply(&ProofReply {
                index,
                proof: "proof".to_owned(),
            });
        }
        OperatorCall::VerifyLedger(asked) => asked.responder.reply(&ledger("whole")),
        OperatorCall::ShutDown(asked) => {
            assert_eq!(asked.request.reason.as_str(), "enough");
            asked.responder.reply(&Done::DONE);
        }
        other => other.refuse(Status::NOT_FOUND, &Problem::new("no_daemon", "not here")),
    }
}

fn hold(id: HoldId) -> HoldView {
    HoldView {
        id,
        run: Shown::new("r1"),
        server: Shown::new("files"),
        tool: Shown::new("remove"),
        arguments: Shown::new("{}"),
        code: Shown::new("hold_tool"),
        rule: Shown::new("capability.yaml:7"),
        opened_at_ms: 1,
        deadline_ms: 2,
    }
}

/// Asks everything that [`answer`] answers.
pub fn ask(client: &mut Client) {
    let reason = |text: &str| Reason::new(text).unwrap();
    let because = Because {
        reason: reason("seen"),
    };
    let w1: AgentId = id("w1");
    let agents = client
        .call::<ListAgents>(&FleetQuery { ended: Some(true) })
        .unwrap();
    assert_eq!(agents.agents, [agent(w1.clone(), AgentPhase::CrashLoop)]);
    let started = client.call::<StartAgent>(&start_request()).unwrap();
    assert_eq!(started, agent(id("new"), AgentPhase::Running));
    let again = StartDeclaredRequest {
        names: vec![Name::new("ann").unwrap()],
        reason: reason("again"),
    };
    let declared = client.call::<StartDeclared>(&again).unwrap();
    assert_eq!(declared.started, [Shown::new("ann")]);
    let reload = ReloadRequest {
        reason: reason("look"),
        dry_run: true,
        no_restart: false,
    };
    assert_eq!(
        client.call::<Reload>(&reload).unwrap(),
        ReloadReply::default()
    );
    assert_eq!(
        client.call_on::<ReadAgent>(&w1, &Empty {}).unwrap(),
        detail(w1.clone())
    );
    assert_eq!(
        client.call_on::<ListProcesses>(&w1, &Empty {}).unwrap(),
        processes()
    );
    let part = OutputQuery {
        stream: Some(OutputStream::Stderr),
        from: Some(7),
        most: None,
    };
    assert_eq!(client.call_on::<ReadOutput>(&w1, &part).unwrap(), output());
    let stop = StopRequest {
        reason: reason("enough"),
        grace_ms: Some(10),
    };
    let stopping = client.call_on::<StopAgent>(&w1, &stop).unwrap();
    assert_eq!(stopping, agent(w1.clone(), AgentPhase::Stopping));
    let restart = RestartRequest {
        reason: reason("anew"),
        workdir: Some("/srv/release".to_owned()),
        grace_ms: None,
    };
    let anew = client.call_on::<RestartAgent>(&w1, &restart).unwrap();
    assert_eq!(anew, agent(id("new"), AgentPhase::Running));
    let list = client.call::<ListProposals>(&Empty {}).unwrap();
    assert_eq!(list, proposals::list(id("p1")));
    let one = client
        .call_on::<ReadProposal>(&id("p2"), &Empty {})
        .unwrap();
    assert_eq!(one, proposals::proposal(id("p2")));
    let query = MetricsQuery {
        agent: Some(w1),
        points: Some(5),
        ..MetricsQuery::default()
    };
    assert_eq!(client.call::<ReadMetrics>(&query).unwrap(), metrics());
    let query = EventQuery {
        kind: Some(EventKind::EgressRefused),
        severity: Some(Severity::Warning),
        search: Name::new("a & b=c +ü%").ok(),
        ..EventQuery::default()
    };
    assert_eq!(client.call::<ListEvents>(&query).unwrap(), events());
    let query = AlertQuery {
        state: Some(AlertState::Open),
        ..AlertQuery::default()
    };
    let alerts = client.call::<ListAlerts>(&query).unwrap().alerts;
    assert_eq!(alerts, [alert(id("1"), AlertState::Open)]);
    let seen = client
        .call_on::<AcknowledgeAlert>(&id("2"), &because)
        .unwrap();
    assert_eq!(seen, alert(id("2"), AlertState::Acknowledged));
    let done = client.call_on::<ResolveAlert>(&id("3"), &because).unwrap();
    assert_eq!(done, alert(id("3"), AlertState::Resolved));
    let request = ResolveAlertsRequest {
        agent: None,
        kind: None,
        all: true,
        reason: reason("a drill"),
    };
    let done = client.call::<ResolveAlerts>(&request).unwrap();
    assert_eq!(done.resolved, [id("4"), id("5")]);
    let request = SilenceRequest {
        agent: None,
        kind: Some(AlertKind::AgentCrashed),
        for_ms: 60_000,
        reason: reason("a drill"),
    };
    assert_eq!(
        client.call::<CreateSilence>(&request).unwrap(),
        silence(id("2"))
    );
    let silences = client.call::<ListSilences>(&Empty {}).unwrap().silences;
    assert_eq!(silences, [silence(id("1"))]);
    let ended = client.call_on::<EndSilence>(&id("3"), &because).unwrap();
    assert_eq!(ended, silence(id("3")));
    let holds = client.call::<ListHolds>(&Empty {}).unwrap().holds;
    assert_eq!(holds, [hold(id("h1"))]);
    let leave = HoldAnswerRequest {
        allow: true,
        reason: reason("looked at it"),
    };
    let answered = client.call_on::<AnswerHold>(&id("h2"), &leave).unwrap();
    assert_eq!(answered, hold(id("h2")));
    assert_eq!(
        client.call::<ReadLedger>(&Empty {}).unwrap(),
        ledger("not_checked")
    );
    let query = LedgerQuery {
        before: Some(5),
        limit: Some(1),
        index: None,
    };
    assert_eq!(client.call::<ListEntries>(&query).unwrap(), entries());
    let query = LedgerQuery {
        index: Some(4),
        ..LedgerQuery::default()
    };
    assert_eq!(client.call::<ProveEntry>(&query).unwrap().index, 4);
    assert_eq!(
        client.call::<VerifyLedger>(&Empty {}).unwrap(),
        ledger("whole")
    );
    assert!(client.call::<ShutDown>(&stop).unwrap().ok);
}
