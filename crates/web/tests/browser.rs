//! What a page from elsewhere can make a browser do, and what our own page can.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use belljar_web::Role;
use support::{REACHED, TestServer};

fn stop() -> Option<&'static str> {
    Some(r#"{"reason":"a test"}"#)
}

#[test]
fn a_name_from_elsewhere_that_points_here_gets_nothing() {
    let server = TestServer::with(|settings| settings.names = vec!["dash.example".into()]);
    let (_, admin) = server.token(Role::Admin);
    let port = server.address.port();
    let ask = |path: &str, hosts: &str| {
        let mut peer = server.peer();
        peer.send(format!(
            "GET {path} HTTP/1.1\r\n{hosts}Authorization: Bearer {admin}\r\n\r\n"
        ));
        peer.hear()
    };
    for hosts in [
        String::new(),
        "Host:\r\n".to_owned(),
        format!("Host: evil.example:{port}\r\n"),
        "Host: 127.0.0.1\r\n".to_owned(),
        format!("Host: 127.0.0.1:{port}\r\nHost: evil.example:{port}\r\n"),
        format!("Host: evil.example:{port}\r\nHost: 127.0.0.1:{port}\r\n"),
        format!("Host: 127.0.0.1:{port}.evil.example\r\n"),
    ] {
        // Not even the dashboard and the words about health.
        for path in ["/v1/status", "/", "/healthz", "/metrics"] {
            let heard = ask(path, &hosts);
            assert_eq!(
                (heard.status, heard.code().as_str()),
                (421, "bad_host"),
                "{path} {hosts}"
            );
        }
    }
    assert_eq!(server.seen.calls(), []);
    for host in [
        "127.0.0.1",
        "localhost",
        "LOCALHOST",
        "[::1]",
        "dash.example",
    ] {
        let heard = ask("/v1/status", &format!("Host: {host}:{port}\r\n"));
        assert_eq!(heard.status, REACHED, "{host}");
    }
    // A request that names its server in its first line would say two things.
    let mut peer = server.peer();
    let line = format!(
        "GET http://evil.example/v1/status HTTP/1.1\r\nHost: {}\r\n\r\n",
        server.address
    );
    assert_eq!(peer.send(line).hear().code(), "bad_http");
}

#[test]
fn a_page_from_elsewhere_is_refused_whatever_it_carries() {
    let server = TestServer::start();
    let (_, admin) = server.token(Role::Admin);
    let (cookie, csrf) = server.log_in(&admin);
    let port = server.address.port();
    for origin in [
        "null".to_owned(),
        "http://evil.example".to_owned(),
        format!("https://127.0.0.1:{port}"),
        format!("http://localhost:{port}"),
        "http://127.0.0.1:1".to_owned(),
    ] {
        for key in [
            format!("Cookie: {cookie}"),
            format!("Authorization: Bearer {admin}"),
        ] {
            let headers = [
                key,
                format!("Origin: {origin}"),
                format!("X-Belljar-Csrf: {csrf}"),
            ];
            for (ask, body) in [("GET /v1/status", None), ("POST /v1/kill-switch", stop())] {
                let heard = server.ask_with(ask, &headers, body);
                assert_eq!(
                    (heard.status, heard.code().as_str()),
                    (403, "bad_origin"),
                    "{ask} {origin}"
                );
            }
        }
        let login = format!("{{\"token\":\"{admin}\"}}");
        let heard = server.ask_with(
            "POST /v1/session",
            &[format!("Origin: {origin}")],
            Some(&login),
        );
        assert_eq!(heard.code(), "bad_origin", "a login made by another page");
        assert_eq!(heard.header("set-cookie"), None);
    }
    assert_eq!(server.seen.calls(), []);
}

#[test]
fn a_sessions_change_needs_the_value_that_only_our_page_knows() {
    let server = TestServer::start();
    let (_, admin) = server.token(Role::Admin);
    let (cookie, csrf) = server.log_in(&admin);
    let (_, others_csrf) = server.log_in(&admin);
    let cookie = format!("Cookie: other=1; {cookie}; more=2");
    let origin = server.origin();
    let header = |value: &str| format!("X-Belljar-Csrf: {value}");
    let refused: Vec<Vec<String>> = vec![
        vec![cookie.clone()],
        vec![cookie.clone(), origin.clone()],
        vec![cookie.clone(), header(&csrf)],
        vec![cookie.clone(), origin.clone(), header("")],
        vec![cookie.clone(), origin.clone(), header(&others_csrf)],
        vec![cookie.clone(), origin.clone(), header(&csrf), header(&csrf)],
    ];
    for headers in &refused {
        for ask in ["POST /v1/kill-switch", "POST /v1/session/end"] {
            let body = if ask.ends_with("end") {
                Some("{}")
            } else {
                stop()
            };
            let heard = server.ask_with(ask, headers, body);
            assert_eq!(
                (heard.status, heard.code().as_str()),
                (403, "bad_csrf"),
                "{ask} {headers:?}"
            );
        }
    }
    assert_eq!(server.seen.calls(), []);
    let headers = [cookie, origin, header(&csrf)];
    assert_eq!(
        server
            .ask_with("POST /v1/kill-switch", &headers, stop())
            .status,
        REACHED
    );
    assert_eq!(server.seen.calls().len(), 1);
}

#[test]
fn a_form_of_another_page_is_no_request() {
    let server = TestServer::start();
    let (_, admin) = server.token(Role::Admin);
    for kind in [
        "Content-Type: text/plain",
        "Content-Type: application/x-www-form-urlencoded",
        "Content-Type: multipart/form-data; boundary=x",
        "X-Nothing: x",
    ] {
        let text = format!(
            "POST /v1/kill-switch HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {admin}\r\n{kind}\r\nContent-Length: 19\r\n\r\n{}",
            server.address, r#"{"reason":"a test"}"#
        );
        let heard = server.peer().send(text).hear();
        assert_eq!(
            (heard.status, heard.code().as_str()),
            (415, "not_json"),
            "{kind}"
        );
    }
    assert_eq!(server.seen.calls(), []);
}

#[test]
fn another_port_of_this_machine_is_another_page() {
    let server = TestServer::start();
    let (_, viewer) = server.token(Role::Viewer);
    let (cookie, _) = server.log_in(&viewer);
    let cookie = format!("Cookie: {cookie}");
    for (site, expected) in [
        ("same-origin", REACHED),
        ("none", REACHED),
        ("same-site", 403),
        ("cross-site", 403),
        ("nonsense", 403),
    ] {
        let headers = [cookie.clone(), format!("Sec-Fetch-Site: {site}")];
        assert_eq!(
            server.ask_with("GET /v1/status", &headers, None).status,
            expected,
            "{site}"
        );
    }
}

#[test]
fn a_session_is_a_cookie_out_of_reach_and_ends_when_it_is_told_to() {
    let server = TestServer::start();
    let (record, operator) = server.token(Role::Operator);
    let body = format!("{{\"token\":\"{operator}\"}}");
    let heard = server.ask_with("POST /v1/session", &[server.origin()], Some(&body));
    assert_eq!(heard.status, 200);
    let set = heard.header("set-cookie").unwrap().to_owned();
    for part in [
        "; HttpOnly",
        "; SameSite=Strict",
        "; Path=/v1",
        "; Max-Age=43200",
    ] {
        assert!(set.contains(part), "{set}");
    }
    assert!(
        set.starts_with(&format!("belljar_{}=", server.address.port())),
        "{set}"
    );
    assert!(!set.contains(&operator), "the token is in the cookie");
    let told = heard.json();
    assert_eq!(
        (&told["role"], &told["name"]),
        (&"operator".into(), &"the operator".into())
    );
    assert_eq!(told["token"], record.id.as_str());
    let cookie = format!("Cookie: {}", set.split(';').next().unwrap());
    let again = server
        .ask_with("GET /v1/session", std::slice::from_ref(&cookie), None)
        .json();
    assert_eq!(again["csrf"], told["csrf"]);
    // Two cookies of one name: somebody else put one there.
    let twice = format!("{cookie}; {}", cookie.strip_prefix("Cookie: ").unwrap());
    assert_eq!(
        server.ask_with("GET /v1/session", &[twice], None).status,
        401
    );
    // A bearer that is no good is not helped by a cookie that is.
    let both = [cookie.clone(), "Authorization: Bearer bj_x".to_owned()];
    assert_eq!(server.ask_with("GET /v1/session", &both, None).status, 401);
    // A session's role is its token's.
    let csrf = format!("X-Belljar-Csrf: {}", told["csrf"].as_str().unwrap());
    let headers = [cookie.clone(), server.origin(), csrf];
    let heard = server.ask_with("POST /v1/shutdown", &headers, stop());
    assert_eq!(heard.code(), "deny_role");
    let ended = server.ask_with("POST /v1/session/end", &headers, Some("{}"));
    assert_eq!(ended.status, 200);
    assert!(ended.header("set-cookie").unwrap().contains("Max-Age=0"));
    assert_eq!(
        server.ask_with("GET /v1/session", &[cookie], None).status,
        401
    );
}

#[test]
fn a_revoked_token_ends_its_sessions_at_once() {
    let server = TestServer::start();
    let (record, viewer) = server.token(Role::Viewer);
    let (cookie, _) = server.log_in(&viewer);
    let cookie = [format!("Cookie: {cookie}")];
    assert_eq!(
        server.ask_with("GET /v1/status", &cookie, None).status,
        REACHED
    );
    assert_eq!(
        server.ask("GET /v1/status", Some(&viewer), None).status,
        REACHED
    );
    server.tokens.revoke(record.id.as_str()).unwrap();
    assert_eq!(server.ask_with("GET /v1/status", &cookie, None).status, 401);
    assert_eq!(
        server.ask("GET /v1/status", Some(&viewer), None).status,
        401
    );
}

#[test]
fn a_file_of_tokens_that_is_broken_lets_nobody_in() {
    let server = TestServer::start();
    let (_, admin) = server.token(Role::Admin);
    assert_eq!(
        server.ask("GET /v1/status", Some(&admin), None).status,
        REACHED
    );
    let whole = std::fs::read(server.tokens.path()).unwrap();
    std::fs::write(server.tokens.path(), "{").unwrap();
    assert_eq!(server.ask("GET /v1/status", Some(&admin), None).status, 401);
    std::fs::remove_file(server.tokens.path()).unwrap();
    assert_eq!(server.ask("GET /v1/status", Some(&admin), None).status, 401);
    std::fs::write(server.tokens.path(), whole).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(server.tokens.path(), mode).unwrap();
    assert_eq!(
        server.ask("GET /v1/status", Some(&admin), None).status,
        REACHED
    );
}

#[test]
fn failed_logins_are_limited_and_tell_nothing() {
    let server = TestServer::with(|settings| {
        settings.limits.logins_of_one = 4;
        settings.limits.login_every = support::PATIENCE * 10;
    });
    let (revoked, text) = server.token(Role::Admin);
    let (_, good) = server.token(Role::Viewer);
    server.tokens.revoke(revoked.id.as_str()).unwrap();
    // Whoever gets in is not counted.
    for _ in 0..10 {
        server.log_in(&good);
    }
    let never_made = format!("bj_{}", "A".repeat(43));
    let mut answers = Vec::new();
    for wrong in [text.as_str(), &never_made, "letmein", ""] {
        let body = serde_json::json!({"token": wrong}).to_string();
        let heard = server.ask("POST /v1/session", None, Some(&body));
        assert_eq!(heard.status, 401);
        answers.push(heard.body);
    }
    answers.dedup();
    assert_eq!(answers.len(), 1, "the same answer for every wrong token");
    for token in [&never_made, &good] {
        let body = serde_json::json!({"token": token}).to_string();
        let heard = server.ask("POST /v1/session", None, Some(&body));
        assert_eq!((heard.status, heard.code().as_str()), (429, "rate_limited"));
        assert!(heard.header("retry-after").unwrap().parse::<u64>().unwrap() > 1);
    }
    // Those who are known are not in the way of that.
    assert_eq!(
        server.ask("GET /v1/status", Some(&good), None).status,
        REACHED
    );
}
