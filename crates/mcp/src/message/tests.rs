use super::*;

const LIMIT: usize = 1 << 20;

fn read(text: &str) -> Result<Message, Malformed> {
    Message::read(text.as_bytes(), LIMIT)
}

#[test]
fn the_four_kinds_are_told_apart() {
    let kind = |text: &str| read(text).unwrap().kind().clone();
    assert_eq!(
        kind(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#),
        Kind::Request(Id::Number(1))
    );
    assert_eq!(
        kind(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#),
        Kind::Notification
    );
    assert_eq!(
        kind(r#"{"jsonrpc":"2.0","id":"a","result":{}}"#),
        Kind::Response(Id::Text("a".into()))
    );
    assert_eq!(
        kind(r#"{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":""}}"#),
        Kind::ErrorToNobody
    );
}

#[test]
fn what_can_be_read_in_two_ways_is_refused() {
    for text in [
        "",
        "{",
        "1",
        "[]",
        r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"ping"} {}"#,
        r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/call"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"ping","Method":"tools/call"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"ping","method\u0000":"tools/call"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"ping","method\u200b":"tools/call"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"ping","param\u017f":{"name":"x"}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","NAME":"b"}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","name":"b"}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","argumentſ":{}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":{"path":1,"path":2}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":{"path":1,"Path":2}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":["a"]}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call\n"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":7}"#,
        r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#,
        r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#,
        r#"{"jsonrpc":"2.0","id":[1],"method":"ping"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"ping","result":{}}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{},"error":{}}"#,
        r#"{"jsonrpc":"2.0","result":{}}"#,
        r#"{"jsonrpc":"2.0","id":1}"#,
        r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#,
        r#"{"id":1,"method":"ping"}"#,
        "{\"jsonrpc\":\"2.0\",\"id\":\"\u{feff}",
        r#"{"jsonrpc":"2.0","id":1,"method":"\ud800"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","arguments":{"path\u0000":1}}}"#,
    ] {
        assert!(read(text).is_err(), "{text}");
    }
    let invalid_utf8 = b"{\"jsonrpc\":\"2.0\",\"id\":\"\xff\",\"method\":\"ping\"}";
    assert!(Message::read(invalid_utf8, LIMIT).is_err());
    let long = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"ping","x":"{}"}}"#,
        "a".repeat(LIMIT)
    );
    assert_eq!(read(&long), Err(Malformed::TooLong { limit: LIMIT }));
}

#[test]
fn what_goes_on_is_written_again_with_what_nobody_knows() {
    let message = read(
        " {\"new\" : {\"Method\":1},\n\"jsonrpc\":\"2.0\", \"id\":\"x\", \"method\":\"ping\"} ",
    )
    .unwrap();
    let written = String::from_utf8(message.to_bytes()).unwrap();
    assert_eq!(
        written,
        r#"{"id":"x","jsonrpc":"2.0","method":"ping","new":{"Method":1}}"#
    );
}

#[test]
fn names_are_plain() {
    assert!(is_name("get-env"));
    assert!(is_name("a.B_9"));
    for name in [
        "",
        "get env",
        "get\u{2010}env",
        "ｇet-env",
        "get-env\u{200b}",
        "a:b",
        "a/b",
        &"a".repeat(129),
    ] {
        assert!(!is_name(name), "{name:?}");
    }
}
