//! Every route with every kind of token. A route that this does not cover fails.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeSet;
use std::time::Duration;

use belljar_api::{Asker, OPERATOR_ROUTES};
use belljar_web::{Access, Role, WEB_ROUTES};
use support::{REACHED, TestServer, token};

/// What a route is asked with. It has a line here or the test fails.
fn body(name: &str) -> Option<&'static str> {
    let because = Some(r#"{"reason":"a test"}"#);
    match name {
        "ReadStatus" | "ListWorkers" | "ReadTree" | "ReadKillSwitch" | "ReadContract" => None,
        "ListAgents" | "ReadAgent" | "ListProcesses" | "ReadOutput" | "ReadMetrics" => None,
        "ListEvents" | "ListAlerts" | "ReadLedger" | "ListEntries" | "ProveEntry" => None,
        "ListHolds" | "ListProposals" | "ReadProposal" | "ListSilences" => None,
        "ResolveAlerts" => Some(r#"{"reason":"a test","all":true}"#),
        "CreateSilence" => Some(r#"{"reason":"a test","for_ms":60000}"#),
        "EndSilence" => because,
        "AnswerHold" => Some(r#"{"reason":"a test","allow":true}"#),
        "Quarantine" | "Release" | "EngageKillSwitch" | "ResetKillSwitch" | "BumpEpoch" => because,
        "AcknowledgeClock" | "StopAgent" | "RestartAgent" | "AcknowledgeAlert" | "ResolveAlert"
        | "ShutDown" => because,
        "StartDeclared" | "Reload" => because,
        "Kill" => Some(r#"{"reason":"a test","subtree":false}"#),
        "Revoke" => Some(r#"{"reason":"a test","worker_id":"w1"}"#),
        "StartAgent" => Some(r#"{"name":"a","command":["true"]}"#),
        "VerifyLedger" => Some("{}"),
        "ReadHealth" | "ReadReadiness" | "ReadSession" | "WatchLive" => None,
        "ReadOpenapi" | "ReadPrometheus" => None,
        "BeginSession" => Some(r#"{"token":"bj_"}"#),
        "EndSession" => Some("{}"),
        other => panic!("{other} is not covered: say here how it is asked"),
    }
}

struct Line {
    name: &'static str,
    ask: String,
    needs: Option<Role>,
}

/// Every route there is.
fn table() -> Vec<Line> {
    let role = |asker| match asker {
        Asker::Agent => panic!("no route of the web is for agents"),
        Asker::Viewer => Role::Viewer,
        Asker::Operator => Role::Operator,
        Asker::Admin => Role::Admin,
    };
    let operators = OPERATOR_ROUTES.iter().map(|route| Line {
        name: route.name,
        ask: format!("{} {}", route.method, route.path.replace("{id}", "w1")),
        needs: Some(role(route.asker)),
    });
    let own = WEB_ROUTES.iter().map(|route| Line {
        name: route.name,
        ask: format!("{} {}", route.method, route.path),
        needs: match route.access {
            Access::Open => None,
            Access::Role(asker) => Some(role(asker)),
        },
    });
    operators.chain(own).collect()
}

#[test]
fn every_route_is_open_to_its_roles_and_to_nobody_else() {
    let server = TestServer::start();
    let (revoked, revoked_text) = server.token(Role::Admin);
    server.tokens.revoke(revoked.id.as_str()).unwrap();
    let (_, expired) = token(&server.tokens, Role::Admin, Some(Duration::ZERO));
    let never_made = format!("bj_{}", "A".repeat(43));
    let mut keys: Vec<(String, Option<String>, Option<Role>)> = vec![
        ("no token".into(), None, None),
        ("a token that was never made".into(), Some(never_made), None),
        ("no token's form".into(), Some("letmein".into()), None),
        ("a revoked token".into(), Some(revoked_text), None),
        ("an expired token".into(), Some(expired), None),
    ];
    for role in Role::ALL {
        let (_, text) = server.token(role);
        keys.push((role.to_string(), Some(text), Some(role)));
    }
    let mut reached = BTreeSet::new();
    for Line { name, ask, needs } in table() {
        for (who, key, role) in &keys {
            let case = format!("{name} by {who}");
            let heard = if name == "WatchLive" && role.is_some() {
                let mut peer = server.peer();
                let headers = [format!("Authorization: Bearer {}", key.as_ref().unwrap())];
                peer.send(support::request(&ask, server.address, &headers, None));
                peer.hear_head()
            } else {
                server.ask(&ask, key.as_deref(), body(name))
            };
            let calls = server.seen.calls();
            match (needs, role) {
                // What is open says the same to everybody; a login is about the token in its body.
                (None, _) => {
                    let expected = if name == "BeginSession" { 401 } else { 200 };
                    assert!(
                        heard.status == expected || heard.status == 429,
                        "{case}: {heard:?}"
                    );
                    assert_eq!(calls, [], "{case}");
                }
                (Some(_), None) => {
                    assert_eq!(
                        (heard.status, heard.code().as_str()),
                        (401, "unauthenticated"),
                        "{case}"
                    );
                    assert_eq!(calls, [], "{case}");
                }
                (Some(needs), Some(role)) if *role < needs => {
                    assert_eq!(
                        (heard.status, heard.code().as_str()),
                        (403, "deny_role"),
                        "{case}"
                    );
                    assert_eq!(calls, [], "{case}");
                }
                (Some(_), Some(role)) if OPERATOR_ROUTES.iter().any(|route| route.name == name) => {
                    assert_eq!(
                        (heard.status, heard.code().as_str()),
                        (REACHED, "reached"),
                        "{case}"
                    );
                    assert_eq!(calls, [(format!("the {role}"), *role, name)], "{case}");
                    reached.insert(name);
                }
                // Nobody with a bearer has a session to end.
                (Some(_), Some(_)) => {
                    let expected = if name == "EndSession" { 409 } else { 200 };
                    assert_eq!(heard.status, expected, "{case}: {heard:?}");
                }
            }
        }
    }
    let all: BTreeSet<_> = OPERATOR_ROUTES.iter().map(|route| route.name).collect();
    assert_eq!(reached, all);
}

#[test]
fn without_a_token_nothing_tells_what_is_there() {
    let server = TestServer::start();
    for ask in [
        "GET /v1/nothing",
        "GET /v1/",
        "GET /v1",
        "PUT /v1/status",
        "DELETE /v1/session",
        "HEAD /v1/status",
        "OPTIONS /v1/status",
        "POST /metrics",
    ] {
        let heard = server
            .peer()
            .send(support::request(ask, server.address, &[], None))
            .hear_head();
        assert_eq!(heard.status, 401, "{ask}");
        assert_eq!(
            heard.header("www-authenticate"),
            Some("Bearer realm=\"belljar\"")
        );
    }
    let (_, viewer) = server.token(Role::Viewer);
    assert_eq!(
        server.ask("GET /v1/nothing", Some(&viewer), None).status,
        404
    );
    for (ask, allow) in [
        ("PUT /v1/status", "GET, HEAD"),
        ("DELETE /v1/agents", "GET, HEAD, POST"),
        ("GET /v1/alerts/1/resolve", "POST"),
        ("POST /metrics", "GET, HEAD"),
        ("DELETE /", "GET, HEAD"),
    ] {
        let heard = server.ask(ask, Some(&viewer), None);
        assert_eq!(
            (heard.status, heard.header("allow")),
            (405, Some(allow)),
            "{ask}"
        );
    }
    assert_eq!(server.seen.calls(), []);
}

#[test]
fn a_head_is_told_what_a_get_would_be() {
    let server = TestServer::start();
    let (_, viewer) = server.token(Role::Viewer);
    for path in ["/healthz", "/v1/openapi.json", "/metrics"] {
        let get = server.ask(&format!("GET {path}"), Some(&viewer), None);
        let line = format!("HEAD {path}");
        let bearer = [format!("Authorization: Bearer {viewer}")];
        let head = server
            .peer()
            .send(support::request(&line, server.address, &bearer, None))
            .hear_head();
        assert_eq!(head.status, get.status, "{path}");
        assert_eq!(
            head.header("content-length"),
            get.header("content-length"),
            "{path}"
        );
    }
}

#[test]
fn the_role_is_checked_before_the_body_is_read() {
    let server = TestServer::start();
    let (_, viewer) = server.token(Role::Viewer);
    let mut peer = server.peer();
    // The body never comes, and the answer does.
    peer.send(format!(
        "POST /v1/agents HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {viewer}\r\n\
         Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n",
        server.address
    ));
    let heard = peer.hear();
    assert_eq!((heard.status, heard.code().as_str()), (403, "deny_role"));
}

#[test]
fn health_is_open_and_says_no_more_than_that() {
    let server = TestServer::start();
    assert_eq!(
        server.ask("GET /healthz", None, None).text(),
        "{\"ok\":true}"
    );
    assert_eq!(
        server.ask("GET /readyz", None, None).text(),
        "{\"ready\":true}"
    );
    let server = TestServer::start();
    *server.seen.unready.lock().unwrap() = true;
    let heard = server.ask("GET /readyz", None, None);
    assert_eq!(
        (heard.status, heard.text().as_str()),
        (503, "{\"ready\":false}")
    );
}

#[test]
fn numbers_are_the_backends_and_the_servers_own() {
    let server = TestServer::start();
    let (_, viewer) = server.token(Role::Viewer);
    let heard = server.ask("GET /metrics", Some(&viewer), None);
    let kind = heard.header("content-type").unwrap().to_owned();
    assert!(kind.starts_with("text/plain; version=0.0.4"), "{kind}");
    let text = heard.text();
    assert!(text.starts_with("belljar_agents 3\n# HELP"), "{text}");
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (_, value) = line.rsplit_once(' ').unwrap();
        assert!(value.parse::<f64>().is_ok(), "{line}");
    }
    assert!(text.contains("\nbelljar_web_connections 1\n"), "{text}");
}

#[test]
fn every_reply_carries_the_headers_that_guard_a_browser() {
    let server = TestServer::start();
    let (_, viewer) = server.token(Role::Viewer);
    for (ask, key) in [
        ("GET /", None),
        ("GET /healthz", None),
        ("GET /v1/status", None),
        ("GET /v1/status", Some(viewer.as_str())),
        ("GET /assets/gone.js", None),
        ("DELETE /", None),
    ] {
        let heard = server.ask(ask, key, None);
        let policy = heard.header("content-security-policy").unwrap();
        assert!(policy.contains("default-src 'none'"), "{ask}");
        assert!(policy.contains("frame-ancestors 'none'"), "{ask}");
        assert!(!policy.contains("unsafe"), "{ask}");
        assert_eq!(
            heard.header("x-content-type-options"),
            Some("nosniff"),
            "{ask}"
        );
        assert_eq!(
            heard.header("referrer-policy"),
            Some("no-referrer"),
            "{ask}"
        );
        assert_eq!(heard.header("x-frame-options"), Some("DENY"), "{ask}");
        assert_eq!(heard.header("strict-transport-security"), None, "{ask}");
        let keep = heard.header("cache-control");
        assert_eq!(
            keep,
            Some(if ask == "GET /" {
                "no-cache"
            } else {
                "no-store"
            }),
            "{ask}"
        );
        assert!(
            !heard
                .headers
                .iter()
                .any(|(name, _)| name.starts_with("access-control")),
            "{ask}"
        );
    }
}
