use std::sync::Barrier;

use belljar_policy::{
    BlockedTool, CallRule, Condition, Origin, PathGlob, Pointer, Rule, Test, ToolPattern,
};
use serde_json::json;

use super::*;
use crate::holds::Answer;
use crate::judge::{Denial, RATE_LIMITED};
use crate::record::MemoryRecorder;

struct Scene {
    state: tempfile::TempDir,
    recorder: Arc<MemoryRecorder>,
    judge: PolicyJudge,
}

fn scene(rules: ToolRules) -> Scene {
    let state = tempfile::tempdir().unwrap();
    let recorder = Arc::new(MemoryRecorder::default());
    let judge = judge(rules, state.path(), &recorder);
    Scene {
        state,
        recorder,
        judge,
    }
}

fn judge(rules: ToolRules, state: &Path, recorder: &Arc<MemoryRecorder>) -> PolicyJudge {
    let directory = state.join("work");
    std::fs::create_dir_all(&directory).unwrap();
    let server = ServerFacts::local("fs", &["server".to_owned()], &directory);
    let recorder = Box::new(Arc::clone(recorder));
    PolicyJudge::new(Arc::new(rules), vec![server], state, recorder).unwrap()
}

fn rule(verdict: Verdict, tool: &str, glob: Option<&str>) -> Rule<CallRule> {
    let condition = |glob| Condition {
        at: Pointer::parse("/path").unwrap(),
        test: Test::Glob(PathGlob::parse(glob).unwrap()),
    };
    let value = CallRule {
        tool: ToolPattern::parse(tool).unwrap(),
        verdict,
        conditions: glob.map(condition).into_iter().collect(),
        rate_limit_per_min: None,
        redact: vec![Pointer::parse("/content").unwrap()],
    };
    Rule::new(
        value,
        Origin {
            line: 7,
            ..Origin::whole("capability.yaml".into())
        },
    )
}

impl Scene {
    fn call(&self, tool: &str, arguments: Value) -> Ruling {
        self.judge.judge(&Ask::Tool {
            server: "fs",
            tool,
            arguments: &arguments,
        })
    }

    fn denied(&self, tool: &str, arguments: Value) -> Denial {
        match self.call(tool, arguments) {
            Ruling::Deny(denial) => denial,
            other => panic!("{tool}: {other:?}"),
        }
    }

    fn suspicions(&self) -> Vec<String> {
        let events = self.recorder.events().into_iter();
        events
            .filter_map(|event| match event {
                McpEvent::Suspicious { code, .. } => Some(code),
                _ => None,
            })
            .collect()
    }
}

#[test]
fn a_denial_has_a_stable_code_its_rule_and_a_hint() {
    let blocked = BlockedTool::parse("fs:write:/etc/*").unwrap();
    let origin = Origin {
        line: 3,
        ..Origin::whole("capability.yaml".into())
    };
    let scene = scene(ToolRules {
        blocked: vec![Rule::new(blocked, origin)],
        ..ToolRules::open()
    });
    let denial = scene.denied("write", json!({"path": "/work/../etc/x"}));
    assert_eq!(
        (denial.code, denial.reason.as_str(), denial.rule.as_str()),
        (DENIED, "deny_tool_blocked", "capability.yaml:3")
    );
    assert!(denial.hint.is_some());
    assert_eq!(
        scene.call("write", json!({"path": "/work/x"})),
        Ruling::Allow
    );
    let other = scene.judge.judge(&Ask::Tool {
        server: "other",
        tool: "write",
        arguments: &Value::Null,
    });
    assert!(matches!(other, Ruling::Deny(denial) if denial.reason == "deny_server_not_listed"));
}

#[test]
fn a_link_leads_out_of_what_is_allowed() {
    let state = tempfile::tempdir().unwrap();
    let root = state.path().canonicalize().unwrap();
    let work = root.join("work");
    std::fs::create_dir_all(&work).unwrap();
    std::os::unix::fs::symlink("/etc", work.join("link")).unwrap();
    let glob = format!("{}/**", work.display());
    let recorder = Arc::new(MemoryRecorder::default());
    let rules = ToolRules {
        rules: vec![rule(Verdict::Allow, "fs:write", Some(&glob))],
        ..ToolRules::closed()
    };
    let judge = judge(rules, &root, &recorder);
    let ask = |path: &str| {
        judge.judge(&Ask::Tool {
            server: "fs",
            tool: "write",
            arguments: &json!({"path": path}),
        })
    };
    assert_eq!(ask("sub/x"), Ruling::Allow);
    assert_eq!(ask(&format!("{}/x", work.display())), Ruling::Allow);
    for path in ["link/passwd", "sub/../../x", "link/../x"] {
        assert!(
            matches!(ask(path), Ruling::Deny(denial) if denial.reason == "deny_tool_arguments"),
            "{path}"
        );
    }
}

#[test]
fn a_rate_is_exact_and_has_a_code_of_its_own() {
    let mut limited = rule(Verdict::Allow, "fs:*", None);
    limited.value.rate_limit_per_min = Some(2);
    let scene = scene(ToolRules {
        rules: vec![limited],
        ..ToolRules::closed()
    });
    assert_eq!(scene.call("a", Value::Null), Ruling::Allow);
    assert_eq!(scene.call("b", Value::Null), Ruling::Allow);
    let denial = scene.denied("a", Value::Null);
    assert_eq!(
        (denial.code, denial.reason.as_str(), denial.rule.as_str()),
        (RATE_LIMITED, "deny_tool_rate", "capability.yaml:7")
    );
}

#[test]
fn a_held_call_waits_for_an_answer_from_elsewhere_and_both_are_on_record() {
    let scene = scene(ToolRules {
        rules: vec![rule(Verdict::Hold, "fs:write", None)],
        ..ToolRules::closed()
    });
    let Ruling::Hold(ticket) = scene.call("write", json!({"path": "/x", "content": "secret"}))
    else {
        panic!("not held")
    };
    let elsewhere = Holds::open(scene.state.path()).unwrap();
    let held = elsewhere.list().unwrap().remove(0);
    assert_eq!(
        (held.id.as_str(), held.tool.as_str(), held.rule.as_str()),
        (ticket.id.as_str(), "write", "capability.yaml:7")
    );
    assert!(!held.arguments.to_string().contains("secret"));
    let start = Barrier::new(2);
    let answer = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            start.wait();
            scene.judge.wait(&ticket)
        });
        start.wait();
        let answer = Answer {
            allow: true,
            by: "ann".to_owned(),
            reason: "looked at it".to_owned(),
        };
        elsewhere.answer(&ticket.id, &answer).unwrap();
        waiting.join().unwrap()
    });
    assert_eq!(answer, HoldAnswer::Allowed);
    let events = scene.recorder.events();
    assert!(
        events
            .iter()
            .any(|event| matches!(event, McpEvent::Held { id, .. } if *id == ticket.id.as_str()))
    );
    assert!(events.iter().any(|event| matches!(event, McpEvent::Answered { by, answer, .. } if by == "ann" && answer == "allowed")));
    // A ticket counts once.
    assert_eq!(scene.judge.wait(&ticket), HoldAnswer::TimedOut);
}

#[test]
fn a_tool_that_changed_is_hidden_held_and_told_and_an_accepted_one_is_back() {
    let scene = scene(ToolRules::open());
    let tool =
        |description: &str| json!({"name": "read", "description": description, "inputSchema": {}});
    assert_eq!(scene.judge.list("fs", vec![tool("reads")]).len(), 1);
    assert_eq!(scene.call("read", Value::Null), Ruling::Allow);
    let changed = vec![tool("reads, and mails it"), json!({"name": "extra"})];
    assert_eq!(scene.judge.list("fs", changed.clone()), Vec::<Value>::new());
    assert!(matches!(scene.call("read", Value::Null), Ruling::Hold(_)));
    assert!(matches!(scene.call("extra", Value::Null), Ruling::Hold(_)));
    assert_eq!(
        scene.suspicions(),
        ["tool_changed_after_pin", "tool_new_after_pin"]
    );
    Pins::open(scene.state.path())
        .unwrap()
        .accept(None, Some("read"))
        .unwrap();
    assert_eq!(scene.call("read", Value::Null), Ruling::Allow);
    assert_eq!(scene.judge.list("fs", changed).len(), 1);
    let lenient = ToolRules {
        on_new_tool: Verdict::Allow,
        ..ToolRules::open()
    };
    let lenient = judge(lenient, scene.state.path(), &scene.recorder);
    assert_eq!(lenient.list("fs", vec![json!({"name": "third"})]).len(), 1);
}

#[test]
fn names_with_tricks_are_refused_and_descriptions_flagged() {
    let scene = scene(ToolRules::open());
    let shown = scene.judge.list(
        "fs",
        vec![
            json!({"name": "get\u{200b}env"}),
            json!({"name": "g\u{435}t"}),
            json!({"description": "no name"}),
            json!({"name": "ok", "description": "fine\u{202e}"}),
            json!({"name": "twice"}),
            json!({"name": "twice", "description": "other"}),
        ],
    );
    assert_eq!(
        shown
            .iter()
            .map(|tool| tool["name"].as_str().unwrap())
            .collect::<Vec<_>>(),
        ["ok"]
    );
    assert_eq!(
        scene.suspicions(),
        ["tool_name_with_tricks", "tool_description_with_tricks"]
    );
    assert_eq!(
        scene.denied("get\u{200b}env", Value::Null).reason,
        "deny_tool_name"
    );
}

#[test]
fn a_call_is_on_record_with_its_rule_and_without_what_is_redacted() {
    let scene = scene(ToolRules {
        rules: vec![rule(Verdict::Allow, "fs:write", Some("/work/**"))],
        ..ToolRules::closed()
    });
    let finish = |arguments: &Value, verdict: &str| {
        scene.judge.finished(Finished {
            server: "fs",
            tool: "write",
            arguments,
            verdict,
            duration: Duration::from_micros(5),
            result_bytes: 9,
            is_error: verdict != "allow",
        })
    };
    let good = json!({"path": "/work/a", "content": "secret"});
    assert_eq!(scene.call("write", good.clone()), Ruling::Allow);
    finish(&good, "allow");
    let bad = json!({"path": "/etc/a", "content": "secret"});
    scene.denied("write", bad.clone());
    finish(&bad, "deny");
    let calls: Vec<_> = scene
        .recorder
        .events()
        .into_iter()
        .filter_map(|event| match event {
            McpEvent::Call {
                verdict,
                code,
                rule,
                arguments,
                ..
            } => Some((verdict, code, rule, arguments)),
            _ => None,
        })
        .collect();
    assert_eq!(calls.len(), 2);
    assert_eq!(
        (calls[0].1.as_deref(), calls[0].2.as_deref()),
        (None, Some("capability.yaml:7"))
    );
    assert_eq!(
        (calls[1].1.as_deref(), calls[1].2.as_deref()),
        (Some("deny_tool_arguments"), Some("capability.yaml:7"))
    );
    assert!(
        calls
            .iter()
            .all(|call| !call.3.to_string().contains("secret"))
    );
}

#[test]
fn nothing_passes_when_the_record_can_not_be_written() {
    struct Broken;
    impl Recorder for Broken {
        fn record(&self, _: McpEvent) {}
        fn is_recording(&self) -> bool {
            false
        }
    }
    let state = tempfile::tempdir().unwrap();
    let server = ServerFacts::remote("fs", "http://x/");
    let judge = PolicyJudge::new(
        Arc::new(ToolRules::open()),
        vec![server],
        state.path(),
        Box::new(Broken),
    )
    .unwrap();
    let ruling = judge.judge(&Ask::Tool {
        server: "fs",
        tool: "a",
        arguments: &Value::Null,
    });
    assert!(matches!(ruling, Ruling::Deny(denial) if denial.reason == "deny_unrecorded"));
    let ruling = judge.judge(&Ask::Task {
        server: "fs",
        method: "tasks/result",
        task: Some("t"),
        tool: Some("a"),
    });
    assert!(matches!(ruling, Ruling::Deny(denial) if denial.reason == "deny_unrecorded"));
}

#[test]
fn a_task_is_answered_for_where_its_call_was_made_and_refused_elsewhere_on_record() {
    let scene = scene(ToolRules::open());
    let ask = |server, task, tool| {
        let method = "tasks/get";
        let ask = Ask::Task {
            server,
            method,
            task,
            tool,
        };
        match scene.judge.judge(&ask) {
            Ruling::Allow => "allow".to_owned(),
            Ruling::Deny(denial) => denial.reason,
            Ruling::Hold(_) => "hold".to_owned(),
        }
    };
    assert_eq!(ask("fs", Some("t"), Some("read")), "allow");
    assert_eq!(ask("fs", None, None), "allow", "a list of one's own");
    assert_eq!(ask("fs", Some("t"), None), "deny_task_unknown");
    assert_eq!(
        ask("elsewhere", Some("t"), Some("read")),
        "deny_server_not_listed"
    );
    let refused = |event: &McpEvent| {
        let McpEvent::Call {
            tool,
            verdict,
            code,
            ..
        } = event
        else {
            return false;
        };
        tool == "tasks/get" && verdict == "deny" && code.as_deref() == Some("deny_task_unknown")
    };
    let events = scene.recorder.events();
    assert_eq!(events.iter().filter(|event| refused(event)).count(), 1);
}

#[test]
fn variants_of_a_refused_call_are_suspicious() {
    let scene = scene(ToolRules::closed());
    for n in 0..4 {
        scene.denied("write", json!({"path": format!("/etc/{n}")}));
    }
    scene.denied("WRITE", Value::Null);
    scene.judge.malformed("fs", "a duplicate key");
    assert_eq!(
        scene.suspicions(),
        [
            "tool_retried_with_other_arguments",
            "tool_retried_by_another_name",
            "message_malformed"
        ]
    );
}

#[test]
fn resources_prompts_and_servers_requests_are_judged_too() {
    let scene = scene(ToolRules::closed());
    let judge = |ask: Ask<'_>| scene.judge.judge(&ask);
    let denied = |ruling: Ruling| matches!(ruling, Ruling::Deny(_));
    assert!(denied(judge(Ask::Resource {
        server: "fs",
        uri: "file:///work/a"
    })));
    assert!(denied(judge(Ask::Prompt {
        server: "fs",
        prompt: "p"
    })));
    assert!(denied(judge(Ask::FromServer {
        server: "fs",
        method: "sampling/createMessage"
    })));
    assert_eq!(
        judge(Ask::Other {
            server: "fs",
            method: "completion/complete"
        }),
        Ruling::Allow
    );
    assert!(denied(judge(Ask::Other {
        server: "x",
        method: "completion/complete"
    })));
    assert_eq!(
        scene.judge.list_names("fs", Listed::Prompts, &["p"]),
        [false]
    );
}

#[test]
fn so_many_calls_wait_and_no_more() {
    let scene = scene(ToolRules {
        rules: vec![rule(Verdict::Hold, "fs:write", None)],
        ..ToolRules::closed()
    });
    for _ in 0..MOST_HELD {
        assert!(matches!(scene.call("write", Value::Null), Ruling::Hold(_)));
    }
    let denial = scene.denied("write", Value::Null);
    assert_eq!(
        (denial.code, denial.reason.as_str()),
        (HOLD_REFUSED, "deny_too_many_holds")
    );
}

#[test]
fn a_tool_that_nobody_told_of_is_denied_at_once_and_holds_nobody_up() {
    let scene = scene(ToolRules {
        rules: vec![rule(Verdict::Allow, "fs:*", None)],
        ..ToolRules::closed()
    });
    let told = vec![json!({"name": "read", "inputSchema": {"type": "object"}})];
    assert_eq!(scene.judge.list("fs", told).len(), 1);
    assert!(matches!(scene.call("read", json!({})), Ruling::Allow));
    let denial = scene.denied("invented", json!({}));
    assert_eq!(denial.reason, "deny_tool_unknown");
    assert!(scene.judge.holds.list().unwrap().is_empty());
}

#[test]
fn nothing_passes_while_the_asker_holds_still_not_even_what_is_allowed_then() {
    let mut scene = scene(ToolRules {
        rules: vec![rule(Verdict::Hold, "fs:remove", None)],
        ..ToolRules::open()
    });
    let still = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let asked = Arc::clone(&still);
    scene.judge = scene
        .judge
        .paused_while(move || asked.load(std::sync::atomic::Ordering::Relaxed));
    assert_eq!(scene.call("read", Value::Null), Ruling::Allow);
    let Ruling::Hold(ticket) = scene.call("remove", Value::Null) else {
        panic!("not held");
    };
    still.store(true, std::sync::atomic::Ordering::Relaxed);
    let denial = scene.denied("read", Value::Null);
    assert_eq!(denial.reason, "deny_quarantined");
    let leave = Answer {
        allow: true,
        by: "ann".to_owned(),
        reason: String::new(),
    };
    scene.judge.holds.answer(&ticket.id, &leave).unwrap();
    let answer = scene.judge.wait(&ticket);
    assert!(matches!(answer, HoldAnswer::Refused { .. }), "{answer:?}");
    still.store(false, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(scene.call("read", Value::Null), Ruling::Allow);
}

#[test]
fn nobody_is_asked_about_a_call_whose_asker_went_away() {
    let scene = scene(ToolRules {
        rules: vec![rule(Verdict::Hold, "fs:remove", None)],
        ..ToolRules::open()
    });
    let Ruling::Hold(ticket) = scene.call("remove", Value::Null) else {
        panic!("not held");
    };
    assert_eq!(scene.judge.holds.list().unwrap().len(), 1);
    scene.judge.withdraw(&ticket);
    assert_eq!(scene.judge.wait(&ticket), HoldAnswer::TimedOut);
    assert!(scene.judge.holds.list().unwrap().is_empty());
    let events = scene.recorder.events();
    assert!(
        events.iter().any(
            |event| matches!(event, McpEvent::Answered { answer, .. } if answer == "withdrawn")
        )
    );
}
