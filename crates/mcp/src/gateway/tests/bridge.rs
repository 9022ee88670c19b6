//! A client with a handshake and a server without one.

use super::*;

const HELLO: &str = r#"{"jsonrpc":"2.0","id":"h","method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{"elicitation":{}},"clientInfo":{"name":"c","version":"1"}}}"#;
const REFUSED: &str = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32022,"message":"none here"}}"#;
const FOUND: &str = r#"{"jsonrpc":"2.0","id":2,"result":{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{"listChanged":true},"extensions":{"x":{}}},"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"new","version":"2"}}}}"#;
const META: &str = r#""_meta":{"io.modelcontextprotocol/clientCapabilities":{"elicitation":{}},"io.modelcontextprotocol/clientInfo":{"name":"c","version":"1"},"io.modelcontextprotocol/protocolVersion":"2026-07-28"}"#;

/// A session whose handshake was refused, and that found out why.
fn met() -> Table {
    let mut table = Table::new();
    assert_eq!(table.client(HELLO).len(), 1);
    assert_eq!(
        table.server(REFUSED),
        [format!(
            r#"> {{"id":2,"jsonrpc":"2.0","method":"server/discover","params":{{{META}}}}}"#
        )]
    );
    assert_eq!(
        table.server(FOUND),
        [
            r#"< {"id":"h","jsonrpc":"2.0","result":{"capabilities":{"tools":{}},"protocolVersion":"2025-06-18","serverInfo":{"name":"new","version":"2"}}}"#
        ]
    );
    table
}

fn call(id: u32) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"t","arguments":{{"a":1}}}}}}"#
    )
}

fn wants(id: u32, what: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"result":{{"resultType":"input_required","requestState":"s","inputRequests":{what}}}}}"#
    )
}

#[test]
fn a_server_without_handshakes_is_asked_what_it_can_and_told_all_in_each_request() {
    let mut table = met();
    let ready = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
    assert!(table.client(ready).is_empty());
    let ping = r#"{"jsonrpc":"2.0","id":7,"method":"ping"}"#;
    assert_eq!(
        table.client(ping),
        [r#"< {"id":7,"jsonrpc":"2.0","result":{}}"#]
    );
    assert_eq!(
        table.client(&call(8)),
        [format!(
            r#"> {{"id":3,"jsonrpc":"2.0","method":"tools/call","params":{{{META},"arguments":{{"a":1}},"name":"t"}}}}"#
        )]
    );
    // Rules are asked as ever.
    let bad = call(9).replace("\"t\"", "\"bad\"");
    assert!(table.client(&bad)[0].contains("deny_tool_blocked"));
}

#[test]
fn a_server_that_refuses_both_is_quoted() {
    let mut table = Table::new();
    table.client(HELLO);
    table.server(REFUSED);
    let neither = r#"{"jsonrpc":"2.0","id":2,"error":{"code":-32601,"message":"what?"}}"#;
    assert_eq!(
        table.server(neither),
        [r#"< {"error":{"code":-32022,"message":"none here"},"id":"h","jsonrpc":"2.0"}"#]
    );
    assert!(
        table.client(&call(8))[0].contains(r#""params":{"arguments""#),
        "as it was said"
    );
}

#[test]
fn what_the_server_wants_to_know_the_client_is_asked() {
    let mut table = met();
    table.client(&call(8));
    table.scribe.heard();
    let asks = table.server(&wants(
        3,
        r#"{"k":{"method":"elicitation/create","params":{"message":"who?"}}}"#,
    ));
    assert_eq!(
        asks,
        [
            r#"< {"id":"s-1","jsonrpc":"2.0","method":"elicitation/create","params":{"message":"who?"}}"#
        ]
    );
    assert!(
        table.client(&call(8))[0].contains("in use"),
        "it waits still"
    );
    let said = r#"{"jsonrpc":"2.0","id":"s-1","result":{"action":"accept"}}"#;
    assert_eq!(
        table.client(said),
        [format!(
            r#"> {{"id":4,"jsonrpc":"2.0","method":"tools/call","params":{{{META},"arguments":{{"a":1}},"inputResponses":{{"k":{{"action":"accept"}}}},"name":"t","requestState":"s"}}}}"#
        )]
    );
    let done = r#"{"jsonrpc":"2.0","id":4,"result":{"content":[]}}"#;
    assert_eq!(
        table.server(done),
        [r#"< {"id":8,"jsonrpc":"2.0","result":{"content":[]}}"#]
    );
    let recorded = table.scribe.heard();
    assert_eq!(
        recorded
            .iter()
            .filter(|line| line.starts_with("t "))
            .count(),
        1,
        "one call: {recorded:?}"
    );
}

#[test]
fn a_wish_that_no_rule_allows_or_that_is_none_ends_the_call() {
    for (wish, end) in [
        (
            r#"{"k":{"method":"sampling/createMessage"}}"#,
            "deny_tool_blocked",
        ),
        (r#"{"k":{"method":"tools/call"}}"#, "server_broken"),
        (r#"{"k":{}}"#, "server_broken"),
    ] {
        let mut table = met();
        table.client(&call(8));
        let said = table.server(&wants(3, wish));
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(
            said[0].starts_with("< ") && said[0].contains(end),
            "{said:?}"
        );
        assert!(said[0].contains(r#""id":8"#), "{said:?}");
    }
}

#[test]
fn a_client_that_refuses_and_a_server_that_never_stops_are_told_so() {
    let mut table = met();
    table.client(&call(8));
    table.server(&wants(3, r#"{"k":{"method":"roots/list"}}"#));
    let no = r#"{"jsonrpc":"2.0","id":"s-1","error":{"code":-1,"message":"no"}}"#;
    assert!(table.client(no)[0].contains("input_refused"));
    assert!(table.client(no)[0..].is_empty(), "once");
    table.client(&call(9));
    let mut id = 5;
    let end = loop {
        let said = table.server(&wants(id, "{}"));
        assert_eq!(said.len(), 1, "{said:?}");
        if said[0].starts_with("< ") {
            break said;
        }
        id += 1;
    };
    assert!(end[0].contains("server_broken") && id == 15, "{id} {end:?}");
}

#[test]
fn a_client_that_says_it_all_itself_hears_what_the_server_says() {
    let mut table = met();
    let own = r#"{"jsonrpc":"2.0","id":8,"method":"tools/call","params":{"name":"t","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}"#;
    table.client(own);
    let said = table.server(&wants(3, r#"{"k":{"method":"roots/list"}}"#));
    assert!(said[0].contains("input_required"), "{said:?}");
}
