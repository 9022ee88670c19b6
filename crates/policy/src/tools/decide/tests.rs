use std::collections::BTreeMap;

use serde_json::json;

use super::*;
use crate::{Condition, McpServer, PathGlob, Pointer, Rule, Test, ToolPattern};

fn at_line(line: u32) -> Origin {
    Origin {
        line,
        ..Origin::whole("capability.yaml".into())
    }
}

fn allowed(patterns: &[&str]) -> Option<Vec<Rule<ToolPattern>>> {
    let rule = |p: &&str| Rule::new(ToolPattern::parse(p).unwrap(), Origin::built_in());
    Some(patterns.iter().map(rule).collect())
}

fn blocked(patterns: &[&str]) -> Vec<Rule<BlockedTool>> {
    let rule = |p: &&str| Rule::new(BlockedTool::parse(p).unwrap(), Origin::built_in());
    patterns.iter().map(rule).collect()
}

fn rule(line: u32, verdict: Verdict, tool: &str, glob: Option<&str>) -> Rule<CallRule> {
    let conditions = glob.map(|glob| Condition {
        at: Pointer::parse("/path").unwrap(),
        test: Test::Glob(PathGlob::parse(glob).unwrap()),
    });
    let value = CallRule {
        tool: ToolPattern::parse(tool).unwrap(),
        verdict,
        conditions: conditions.into_iter().collect(),
        rate_limit_per_min: None,
        redact: Vec::new(),
    };
    Rule::new(value, at_line(line))
}

fn ask(rules: &ToolRules, tool: &str, arguments: &Value) -> Decision {
    let question = ToolQuestion {
        arguments,
        ..ToolQuestion::named(tool).unwrap()
    };
    decide_tool(rules, &question)
}

fn reason(rules: &ToolRules, tool: &str) -> Reason {
    ask(rules, tool, &Value::Null).reason()
}

#[test]
fn a_block_wins_and_a_list_excludes_the_rest() {
    let open = ToolRules {
        blocked: blocked(&["shell:execute"]),
        ..ToolRules::open()
    };
    assert_eq!(reason(&open, "shell:execute"), Reason::DenyToolBlocked);
    assert_eq!(reason(&open, "fs:read"), Reason::AllowTool);
    let listed = ToolRules {
        allowed: allowed(&["fs:read_*", "shell:*"]),
        ..open
    };
    assert_eq!(reason(&listed, "fs:read_file"), Reason::AllowTool);
    assert_eq!(reason(&listed, "shell:execute"), Reason::DenyToolBlocked);
    assert_eq!(reason(&listed, "web:get"), Reason::DenyToolNotListed);
    assert_eq!(reason(&listed, "fsx:read_file"), Reason::DenyToolNotListed);
    assert_eq!(
        reason(&ToolRules::closed(), "fs:read"),
        Reason::DenyToolNotListed
    );
}

#[test]
fn without_a_list_of_tools_the_listed_servers_are_open() {
    let server = McpServer::at("http://127.0.0.1:1/");
    let servers = BTreeMap::from([("fs".to_owned(), Rule::new(server, Origin::built_in()))]);
    let rules = ToolRules {
        servers: Some(servers),
        ..ToolRules::open()
    };
    assert_eq!(reason(&rules, "fs:read"), Reason::AllowTool);
    assert_eq!(reason(&rules, "web:get"), Reason::DenyServerNotListed);
    assert_eq!(
        rules.decide_resource("web", "x:y").reason(),
        Reason::DenyServerNotListed
    );
    assert_eq!(
        rules.decide_server("web").reason(),
        Reason::DenyServerNotListed
    );
}

#[test]
fn a_blocked_path_is_found_in_any_spelling_and_place() {
    let rules = ToolRules {
        blocked: blocked(&["filesystem:write:/etc/*"]),
        ..ToolRules::open()
    };
    for arguments in [
        json!({"path": "/etc/x"}),
        json!({"path": "/etc/ssl/x"}),
        json!({"path": "/work/../etc/x"}),
        json!({"path": "//etc/x"}),
        json!({"path": "/%65tc/x"}),
        json!({"path": "etc/x"}),
        json!({"path": "file:///etc/x"}),
        json!({"paths": ["/work/a", "/etc/x"]}),
        json!({"deep": {"source_file": "/etc/x"}}),
        json!({"where": "/etc/x"}),
        json!({"path": "..\\etc\\x"}),
        json!({"location": "~/../etc/x"}),
    ] {
        assert_eq!(
            ask(&rules, "filesystem:write", &arguments).reason(),
            Reason::DenyToolBlocked,
            "{arguments}"
        );
        assert!(
            ask(&rules, "filesystem:read", &arguments).is_allow(),
            "{arguments}"
        );
    }
    for arguments in [
        json!({"path": "/work/x", "content": "see etc/x"}),
        json!({"path": "/etcetera/x"}),
        json!({}),
    ] {
        assert!(
            ask(&rules, "filesystem:write", &arguments).is_allow(),
            "{arguments}"
        );
    }
}

#[test]
fn deny_wins_over_hold_and_hold_over_allow() {
    let rules = ToolRules {
        rules: vec![
            rule(1, Verdict::Allow, "fs:write", Some("/work/**")),
            rule(2, Verdict::Hold, "fs:write", Some("/work/conf/**")),
            rule(3, Verdict::Deny, "fs:*", Some("/work/conf/keys/**")),
        ],
        allowed: allowed(&["fs:*"]),
        ..ToolRules::closed()
    };
    let table = [
        ("/work/a", Verdict::Allow, 1),
        ("/work/conf/a", Verdict::Hold, 2),
        ("/work/conf/keys/a", Verdict::Deny, 3),
        ("/work/conf/../a", Verdict::Deny, 1),
        // Rules that allow a tool on conditions outrank the list of allowed tools.
        ("/etc/a", Verdict::Deny, 1),
    ];
    for (path, verdict, line) in table {
        let decision = ask(&rules, "fs:write", &json!({"path": path}));
        assert_eq!(
            (decision.verdict(), decision.because().origin.line),
            (verdict, line),
            "{path}"
        );
    }
    assert!(ask(&rules, "fs:read", &json!({"path": "/work/a"})).is_allow());
    // An unclear path may be the one that is denied.
    assert_eq!(
        ask(&rules, "fs:read", &json!({"path": "a"})).verdict(),
        Verdict::Deny
    );
}

#[test]
fn a_name_with_two_readings_is_no_tool() {
    for tool in ["fs:get\u{200b}-env", "fs:g\u{435}t", "fs:a:b", "fs:"] {
        assert_eq!(
            reason(&ToolRules::open(), tool),
            Reason::DenyToolName,
            "{tool:?}"
        );
        let name = tool.split_once(':').unwrap().1;
        assert!(!ToolRules::open().lists_tool("fs", name));
    }
}

#[test]
fn rates_of_every_rule_that_is_met_count_and_layers_decide_together() {
    let mut limited = rule(1, Verdict::Allow, "fs:*", None);
    limited.value.rate_limit_per_min = Some(3);
    let outer = ToolRules {
        blocked: blocked(&["fs:write"]),
        rate_limit_per_min: Some(9),
        ..ToolRules::open()
    };
    let rules = ToolRules {
        rules: vec![limited],
        within: vec![outer],
        ..ToolRules::closed()
    };
    let answer = rules.answer_tool(&ToolQuestion::named("fs:read").unwrap());
    let rates: Vec<_> = answer
        .rates
        .iter()
        .map(|rate| (rate.layer, rate.rule, rate.per_minute))
        .collect();
    assert_eq!(rates, [(0, Some(0), 3), (1, None, 9)]);
    assert_eq!(reason(&rules, "fs:write"), Reason::DenyToolBlocked);
    assert_eq!(reason(&rules, "web:get"), Reason::DenyToolNotListed);
}

#[test]
fn servers_ask_for_what_is_said_and_no_more() {
    let mut rules = ToolRules::open();
    rules.server_requests.elicitation = Verdict::Hold;
    let verdict = |method: &str| rules.decide_server_request(method).verdict();
    assert_eq!(verdict("sampling/createMessage"), Verdict::Deny);
    assert_eq!(verdict("elicitation/create"), Verdict::Hold);
    assert_eq!(verdict("roots/list"), Verdict::Deny);
    assert_eq!(verdict("anything/else"), Verdict::Deny);
    assert_eq!(verdict("ping"), Verdict::Allow);
}

#[test]
fn the_list_shows_what_some_call_can_reach() {
    let rules = ToolRules {
        blocked: blocked(&["fs:rm", "fs:write:/etc/*"]),
        rules: vec![
            rule(1, Verdict::Hold, "web:post", None),
            rule(2, Verdict::Deny, "fs:move", None),
        ],
        allowed: allowed(&["fs:*"]),
        ..ToolRules::closed()
    };
    let shown = |tool: &str| {
        let (s, t) = tool.split_once(':').unwrap();
        rules.lists_tool(s, t)
    };
    assert!(shown("fs:read") && shown("fs:write") && shown("web:post"));
    assert!(!shown("fs:rm") && !shown("fs:move") && !shown("web:get"));
}
