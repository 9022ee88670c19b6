use super::*;
use crate::holds::HoldId;
use crate::judge::{Ask, DENIED, Listed, Ruling};
use serde_json::Value;
use std::sync::Mutex;

/// Refuses `bad`, holds `slow`, and writes down what it hears.
#[derive(Default)]
struct Scribe {
    heard: Mutex<Vec<String>>,
}

impl Scribe {
    fn note(&self, text: String) {
        self.heard.lock().unwrap().push(text);
    }

    fn heard(&self) -> Vec<String> {
        std::mem::take(&mut *self.heard.lock().unwrap())
    }
}

fn ruled(name: &str) -> Ruling {
    match name {
        "bad" => Ruling::Deny(Denial {
            code: DENIED,
            reason: "deny_tool_blocked".into(),
            message: "no".into(),
            rule: "line 1".into(),
            hint: None,
        }),
        "slow" => Ruling::Hold(HoldTicket {
            id: HoldId::try_from("0123456789ab".to_owned()).unwrap(),
            deadline: Duration::from_secs(1),
        }),
        _ => Ruling::Allow,
    }
}

impl Judge for Scribe {
    fn judge(&self, ask: &Ask<'_>) -> Ruling {
        match ask {
            Ask::Tool { tool, .. } => ruled(tool),
            Ask::Resource { uri, .. } => ruled(uri),
            Ask::Prompt { prompt, .. } => ruled(prompt),
            Ask::FromServer { method, .. } if *method == "sampling/createMessage" => ruled("bad"),
            Ask::Task {
                task: Some(_),
                tool: None,
                ..
            } => ruled("bad"),
            Ask::FromServer { .. } | Ask::Other { .. } | Ask::Task { .. } => Ruling::Allow,
        }
    }

    fn wait(&self, _: &HoldTicket) -> HoldAnswer {
        HoldAnswer::TimedOut
    }

    fn list(&self, _: &str, tools: Vec<Value>) -> Vec<Value> {
        tools
            .into_iter()
            .filter(|tool| tool["name"] != "bad")
            .collect()
    }

    fn list_names(&self, _: &str, _: Listed, names: &[&str]) -> Vec<bool> {
        names.iter().map(|name| *name != "bad").collect()
    }

    fn finished(&self, call: Finished<'_>) {
        self.note(format!(
            "{} {} error={}",
            call.tool, call.verdict, call.is_error
        ));
    }

    fn malformed(&self, _: &str, why: &str) {
        self.note(format!("malformed: {why}"));
    }
}

struct Table {
    session: Session,
    scribe: Arc<Scribe>,
    now: Instant,
}

/// What came of it, a line for each action.
fn lines(todo: Vec<Action>) -> Vec<String> {
    let text = |message: Message| String::from_utf8(message.to_bytes()).unwrap();
    todo.into_iter()
        .map(|action| match action {
            Action::ToServer(message) => format!("> {}", text(message)),
            Action::ToClient(message) => format!("< {}", text(message)),
            Action::Hold { key, .. } => format!("hold {key}"),
            Action::Forget(id) => format!("forget {id}"),
        })
        .collect()
}

impl Table {
    fn new() -> Self {
        let scribe = Arc::new(Scribe::default());
        Self {
            session: Session::new("s", scribe.clone(), Limits::default()),
            scribe,
            now: Instant::now(),
        }
    }

    fn client(&mut self, text: &str) -> Vec<String> {
        let mut todo = Vec::new();
        self.session
            .from_client(text.as_bytes(), self.now, &mut todo);
        lines(todo)
    }

    fn server(&mut self, text: &str) -> Vec<String> {
        let mut todo = Vec::new();
        self.session
            .from_server(text.as_bytes(), self.now, &mut todo);
        lines(todo)
    }

    fn with(&mut self, act: impl FnOnce(&mut Session, Instant, &mut Vec<Action>)) -> Vec<String> {
        let mut todo = Vec::new();
        act(&mut self.session, self.now, &mut todo);
        lines(todo)
    }
}

fn call(id: &str, tool: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"{tool}"}}}}"#)
}

#[test]
fn a_call_goes_on_under_another_id_and_its_answer_comes_back_once() {
    let mut table = Table::new();
    assert_eq!(
        table.client(&call("\"x\"", "ok")),
        [r#"> {"id":1,"jsonrpc":"2.0","method":"tools/call","params":{"name":"ok"}}"#]
    );
    let answer = r#"{"jsonrpc":"2.0","id":1,"result":{"content":[]}}"#;
    assert_eq!(
        table.server(answer),
        [r#"< {"id":"x","jsonrpc":"2.0","result":{"content":[]}}"#]
    );
    assert!(table.server(answer).is_empty());
    let heard = table.scribe.heard();
    assert_eq!(heard[0], "ok allow error=false");
    assert!(heard[1].starts_with("malformed: the server answered 1"));
}

#[test]
fn a_denied_call_never_reaches_the_server() {
    let mut table = Table::new();
    let said = table.client(&call("1", "bad"));
    assert_eq!(
        said,
        [
            r#"< {"error":{"code":-32010,"data":{"reason":"deny_tool_blocked","rule":"line 1"},"message":"no"},"id":1,"jsonrpc":"2.0"}"#
        ]
    );
    assert_eq!(table.scribe.heard(), ["bad deny error=true"]);
}

#[test]
fn disguises_of_a_denied_call_reach_nobody() {
    let mut table = Table::new();
    let inner = call("1", "bad");
    let disguises = [
        format!("[{inner}]"),
        format!("[{},{inner}]", call("2", "ok")),
        r#"{"jsonrpc":"2.0","method":"tools/call","params":{"name":"bad"}}"#.to_owned(),
        r#"{"jsonrpc":"2.0","id":null,"method":"tools/call","params":{"name":"bad"}}"#.to_owned(),
        r#"{"jsonrpc":"2.0","id":1,"method":"Tools/Call","params":{"name":"bad"}}"#.to_owned(),
        r#"{"jsonrpc":"2.0","id":1,"method":"notifications/x","params":{"name":"bad"}}"#.to_owned(),
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":["bad"]}}"#.to_owned(),
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"bad","arguments":[]}}"#
            .to_owned(),
        call("1", "ba\u{200b}d"),
        call("1", "bad "),
        call("1", "ｂad"),
        call("1", "bad\\u0000"),
    ];
    for disguise in disguises {
        for line in table.client(&disguise) {
            assert!(
                line.starts_with("< ") && line.contains("error"),
                "{disguise}: {line}"
            );
        }
    }
}

#[test]
fn what_nobody_knows_reaches_nobody() {
    let mut table = Table::new();
    let ask = |method: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{"name":"bad","uri":"bad"}}}}"#
        )
    };
    for method in [
        "x/y",
        "tools/callAll",
        "sampling/createMessage",
        "elicitation/create",
        "roots/list",
        "resources/write",
        "experimental/run",
        "\\u0000",
    ] {
        let said = table.client(&ask(method));
        assert!(
            said.iter()
                .all(|line| line.starts_with("< ") && line.contains("error"))
                && said.len() == 1,
            "{method}: {said:?}"
        );
    }
    let listen = r#"{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{"resourceSubscriptions":["bad"]}}}"#;
    assert!(table.client(listen)[0].starts_with("< "));
    let tell = |method: &str| format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{{}}}}"#);
    for method in [
        "notifications/x",
        "notifications/tools/list_changed",
        "notifications/message",
        "x/y",
    ] {
        assert_eq!(table.client(&tell(method)), [""; 0], "{method}");
    }
    for method in [
        "notifications/x",
        "notifications/initialized",
        "notifications/roots/list_changed",
        "x/y",
    ] {
        assert_eq!(table.server(&tell(method)), [""; 0], "{method}");
    }
    for line in table.server(&ask("x/y")) {
        assert!(line.starts_with("> ") && line.contains("-32601"), "{line}");
    }
    // What is known still passes.
    assert!(table.client(&ask("logging/setLevel"))[0].starts_with("> "));
    assert!(table.client(&tell("notifications/roots/list_changed"))[0].starts_with("> "));
    assert!(table.server(&tell("notifications/message"))[0].starts_with("< "));
}

#[test]
fn an_id_in_use_is_not_used_twice() {
    let mut table = Table::new();
    table.client(&call("1", "ok"));
    let again = table.client(&call("1", "ok"));
    assert!(
        again[0].starts_with("< ") && again[0].contains("in use"),
        "{again:?}"
    );
    table.server(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#);
    assert!(table.client(&call("1", "ok"))[0].starts_with("> "));
    // While it waits for an operator too: what is allowed then must be what was asked first.
    assert_eq!(table.client(&call("2", "slow")), ["hold 0"]);
    let again = table.client(&call("2", "ok"));
    assert!(again[0].contains("in use"), "{again:?}");
}

#[test]
fn what_a_server_says_that_is_no_message_is_told_and_passed_to_nobody() {
    let mut table = Table::new();
    table.client(&call("1", "ok"));
    for garbage in [
        "no JSON",
        "[]",
        r#"{"jsonrpc":"2.0","id":1,"id":1,"result":{}}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{},"error":{}}"#,
        r#"{"jsonrpc":"2.0","id":1,"Result":{},"result":{}}"#,
    ] {
        assert!(table.server(garbage).is_empty(), "{garbage}");
        assert_eq!(table.scribe.heard().len(), 1, "{garbage}");
    }
    let answer = r#"{"jsonrpc":"2.0","id":1,"result":{}}"#;
    assert_eq!(
        table.server(answer).len(),
        1,
        "its answer is waited for still"
    );
}

#[test]
fn arguments_that_are_no_object_reach_nobody() {
    let mut table = Table::new();
    for arguments in ["[]", "\"a\"", "1", "[{\"path\":\"/etc\"}]"] {
        let said = table.client(&format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"ok","arguments":{arguments}}}}}"#
        ));
        assert!(
            said[0].starts_with("< ") && said[0].contains("-32602"),
            "{said:?}"
        );
    }
}

#[test]
fn lists_show_what_can_be_had_and_keep_their_cursor() {
    let mut table = Table::new();
    let list = |kind: &str| format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{kind}/list"}}"#);
    table.client(&list("tools"));
    let said = table.server(
        r#"{"jsonrpc":"2.0","id":1,"result":{"nextCursor":"c","tools":[{"name":"ok"},{"name":"bad"},{"name":"ok","x":1},{"name":"o\u200bk"},7]}}"#,
    );
    assert_eq!(
        said,
        [r#"< {"id":1,"jsonrpc":"2.0","result":{"nextCursor":"c","tools":[{"name":"ok"}]}}"#]
    );
    table.client(&list("prompts"));
    let said = table.server(
        r#"{"jsonrpc":"2.0","id":2,"result":{"prompts":[{"name":"bad"},{"name":"ok"},{}]}}"#,
    );
    assert!(said[0].contains(r#""prompts":[{"name":"ok"}]"#), "{said:?}");
    table.client(&list("tools"));
    let said = table.server(r#"{"jsonrpc":"2.0","id":3,"result":{"tools":{"name":"bad"}}}"#);
    assert!(said[0].contains("-32015"), "{said:?}");
}

#[test]
fn a_servers_questions_are_judged_and_answered_once() {
    let mut table = Table::new();
    let denied =
        table.server(r#"{"jsonrpc":"2.0","id":5,"method":"sampling/createMessage","params":{}}"#);
    assert!(
        denied[0].starts_with("> ") && denied[0].contains("-32010"),
        "{denied:?}"
    );
    let asked = table.server(r#"{"jsonrpc":"2.0","id":5,"method":"roots/list"}"#);
    assert_eq!(
        asked,
        [r#"< {"id":"s-1","jsonrpc":"2.0","method":"roots/list"}"#]
    );
    let answer = r#"{"jsonrpc":"2.0","id":"s-1","result":{"roots":[]}}"#;
    assert_eq!(
        table.client(answer),
        [r#"> {"id":5,"jsonrpc":"2.0","result":{"roots":[]}}"#]
    );
    assert!(table.client(answer).is_empty());
    assert!(
        table
            .client(r#"{"jsonrpc":"2.0","id":5,"result":{}}"#)
            .is_empty()
    );
}

#[test]
fn an_answer_that_asks_for_input_is_judged_too() {
    let mut table = Table::new();
    table.client(&call("1", "ok"));
    let said = table.server(
        r#"{"jsonrpc":"2.0","id":1,"result":{"resultType":"input_required","inputRequests":{"a":{"method":"sampling/createMessage","params":{}}}}}"#,
    );
    assert!(said[0].contains("-32010"), "{said:?}");
}

#[test]
fn cancelling_crosses_with_the_right_id_and_a_late_answer_is_nobodys() {
    let mut table = Table::new();
    table.client(&call("\"a\"", "ok"));
    let said = table.client(
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"a"}}"#,
    );
    assert_eq!(
        said,
        [
            r#"> {"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#,
            r#"forget "a""#
        ]
    );
    assert!(
        table
            .server(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#)
            .is_empty()
    );
}

#[test]
fn a_hold_waits_goes_on_or_is_refused_and_can_be_cancelled() {
    let mut table = Table::new();
    assert_eq!(table.client(&call("1", "slow")), ["hold 0"]);
    let gone_on =
        table.with(|session, now, todo| session.decided(0, HoldAnswer::Allowed, now, todo));
    assert!(gone_on[0].starts_with("> "), "{gone_on:?}");
    table.server(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#);
    assert_eq!(table.scribe.heard(), ["slow hold_allowed error=false"]);

    assert_eq!(table.client(&call("2", "slow")), ["hold 1"]);
    let refused =
        table.with(|session, now, todo| session.decided(1, HoldAnswer::TimedOut, now, todo));
    assert!(refused[0].contains("-32011"), "{refused:?}");

    assert_eq!(table.client(&call("3", "slow")), ["hold 2"]);
    table
        .client(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":3}}"#);
    let nothing =
        table.with(|session, now, todo| session.decided(2, HoldAnswer::Allowed, now, todo));
    assert!(nothing.is_empty(), "{nothing:?}");
}

#[test]
fn a_server_that_hangs_or_ends_leaves_one_error_for_each_question() {
    let mut table = Table::new();
    table.client(&call("1", "ok"));
    table.now += Duration::from_secs(200);
    table.client(&call("2", "ok"));
    table.now += Duration::from_secs(101);
    let late = table.with(|session, now, todo| session.expire(now, todo));
    assert_eq!(late.len(), 2, "{late:?}");
    assert!(late[0].contains("notifications/cancelled"));
    assert!(late[1].contains("-32013") && late[1].contains(r#""id":1"#));
    assert!(
        table
            .server(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#)
            .is_empty()
    );
    let gone = table.with(|session, now, todo| session.server_gone(now, todo));
    assert!(gone.len() == 1 && gone[0].contains("-32014"), "{gone:?}");
}

#[test]
fn progress_gives_a_question_more_time() {
    let mut table = Table::new();
    table.client(
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ok","_meta":{"progressToken":9}}}"#,
    );
    table.now += Duration::from_secs(299);
    let told = table.server(
        r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":9,"progress":1}}"#,
    );
    assert!(told[0].starts_with("< "));
    table.now += Duration::from_secs(299);
    assert!(
        table
            .with(|session, now, todo| session.expire(now, todo))
            .is_empty()
    );
    table.now += Duration::from_secs(2);
    assert_eq!(
        table
            .with(|session, now, todo| session.expire(now, todo))
            .len(),
        2
    );
}

mod bridge;
