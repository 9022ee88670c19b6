//! Secrets: put in for their host, over TLS, and never seen by the agent.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use belljar_egress::{HeaderSecret, RefusalCode, SecretPlace, SecretText};
use belljar_policy::{DomainPattern, HttpTerms};
use hyper::{Method, Request};
use support::http::*;
use support::*;
use tokio::io::AsyncWriteExt as _;

fn secret(place: SecretPlace, value: &str) -> HeaderSecret {
    HeaderSecret {
        domain: DomainPattern::parse(NAME).unwrap(),
        ports: Vec::new(),
        place,
        value: SecretText::new(value.to_owned()),
    }
}

#[tokio::test]
async fn a_secret_is_put_in_for_its_host_over_tls_and_nowhere_else() {
    let server = Server::start(NAME, Wire::Tls, says_hello).await;
    let plain = Server::start(NAME, Wire::Plain, says_hello).await;
    let mut config = config(vec![allow(NAME, &[]), allow("other.test", &[])]);
    let authority = inspecting(&mut config, &server);
    config.secrets = vec![
        secret(SecretPlace::Bearer, "sk-real"),
        secret(SecretPlace::Header("x-api-key".to_owned()), "key-real"),
    ];
    let bx = start(config);
    let mut client = client_one(&bx, NAME, server.port, &authority).await;
    for given in ["Bearer placeholder", "Bearer somebody-elses"] {
        soon(client.ready()).await.unwrap();
        let mut request = get("/", NAME);
        request
            .headers_mut()
            .insert("authorization", given.parse().unwrap());
        assert_eq!(
            whole(soon(client.send_request(request)).await.unwrap())
                .await
                .0,
            200
        );
    }
    for seen in server.seen() {
        assert_eq!(
            seen.headers
                .get_all("authorization")
                .iter()
                .collect::<Vec<_>>(),
            ["Bearer sk-real"]
        );
        assert_eq!(seen.headers["x-api-key"], "key-real");
    }
    for name in [NAME, "other.test"] {
        let mut stream = bx.tunnel(&format!("{name}:{}", plain.port)).await;
        let request = format!(
            "GET / HTTP/1.1\r\nHost: {name}:{}\r\nConnection: close\r\n\r\n",
            plain.port
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        assert!(read_all(&mut stream).await.starts_with(b"HTTP/1.1 200 "));
    }
    assert_eq!(plain.seen().len(), 2);
    for seen in plain.seen() {
        assert!(!format!("{seen:?}").contains("real"), "{seen:?}");
    }
    assert!(!format!("{:?}", bx.recording.events()).contains("real"));
}

#[tokio::test]
async fn another_host_over_tls_does_not_get_the_secret() {
    let server = Server::start("other.test", Wire::Tls, says_hello).await;
    let mut rule = allow("other.test", &[server.port]);
    rule.terms.http = Some(HttpTerms::default());
    let mut config = config(vec![rule]);
    let authority = inspecting(&mut config, &server);
    config.secrets = vec![secret(SecretPlace::Bearer, "sk-real")];
    let bx = start(config);
    let mut client = client_one(&bx, "other.test", server.port, &authority).await;
    let mut request = get("/", "other.test");
    let placeholder = "Bearer placeholder".parse().unwrap();
    request.headers_mut().insert("authorization", placeholder);
    let (status, ..) = whole(soon(client.send_request(request)).await.unwrap()).await;
    assert_eq!(status, 200);
    assert_eq!(
        server.seen()[0].headers["authorization"],
        "Bearer placeholder"
    );
}

#[tokio::test]
async fn a_server_is_not_asked_to_send_the_secret_back() {
    let server = Server::start(NAME, Wire::Tls, says_hello).await;
    let mut config = config(vec![allow(NAME, &[])]);
    let authority = inspecting(&mut config, &server);
    config.secrets = vec![secret(SecretPlace::Bearer, "sk-real")];
    let bx = start(config);
    let mut client = client_one(&bx, NAME, server.port, &authority).await;
    let request = Request::builder()
        .method(Method::TRACE)
        .uri("/")
        .header("host", NAME)
        .body(text(""))
        .unwrap();
    let (status, ..) = whole(soon(client.send_request(request)).await.unwrap()).await;
    assert_eq!(status, 400);
    bx.recording.refusal(RefusalCode::Malformed).await;
    assert!(server.seen().is_empty());
}
