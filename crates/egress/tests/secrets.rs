//! Secrets: put in for their host, over TLS, and never seen by the agent.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use belljar_egress::{HeaderSecret, LiveSecret, RefusalCode, SecretPlace, SecretText};
use belljar_policy::{DomainPattern, HttpTerms};
use hyper::{Method, Request};
use support::http::*;
use support::*;
use tokio::io::AsyncWriteExt as _;

fn secret(place: SecretPlace, value: &str) -> HeaderSecret {
    let name = match &place {
        SecretPlace::Bearer => "bearer",
        SecretPlace::Header(name) => name.as_str(),
    };
    let bare = bare(name, NAME, value);
    HeaderSecret {
        place: Some(place),
        ..bare
    }
}

/// One that goes only where its placeholder stands.
fn bare(name: &str, domain: &str, value: &str) -> HeaderSecret {
    HeaderSecret {
        name: name.to_owned(),
        placeholders: vec![format!("placeholder-{name}")],
        source: "{env: KEY}".to_owned(),
        domain: DomainPattern::parse(domain).unwrap(),
        ports: Vec::new(),
        place: None,
        value: LiveSecret::new(SecretText::new(value.to_owned())),
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

/// Without a place of its own a secret goes wherever the client put its placeholder, of whatever kind the client is.
#[tokio::test]
async fn a_secret_is_put_in_wherever_its_placeholder_stands() {
    let server = Server::start(NAME, Wire::Tls, says_hello).await;
    let mut config = config(vec![allow(NAME, &[])]);
    let authority = inspecting(&mut config, &server);
    config.secrets = vec![
        bare("first", NAME, "sk-real"),
        bare("second", NAME, "pw-real"),
    ];
    let bx = start(config);
    let basic = |text: &str| format!("Basic {}", data_encoding::BASE64.encode(text.as_bytes()));
    let uri = "/models?alt=sse&key=placeholder-first&q=placeholder-first";
    for version in [hyper::Version::HTTP_11, hyper::Version::HTTP_2] {
        let mut request = get(uri, NAME);
        for (name, value) in [
            ("authorization", basic("git:placeholder-second")),
            ("x-api-key", "placeholder-first".to_owned()),
            ("x-token", "Token placeholder-first".to_owned()),
        ] {
            request.headers_mut().insert(name, value.parse().unwrap());
        }
        let (status, ..) = if version == hyper::Version::HTTP_2 {
            let mut client = client_two(&bx, NAME, server.port, &authority).await;
            *request.uri_mut() = format!("https://{NAME}:{}{uri}", server.port)
                .parse()
                .unwrap();
            request.headers_mut().remove("host");
            whole(soon(client.send_request(request)).await.unwrap()).await
        } else {
            let mut client = client_one(&bx, NAME, server.port, &authority).await;
            whole(soon(client.send_request(request)).await.unwrap()).await
        };
        assert_eq!(status, 200);
    }
    assert_eq!(server.seen().len(), 2);
    for seen in server.seen() {
        assert_eq!(seen.headers["authorization"], basic("git:pw-real").as_str());
        assert_eq!(seen.headers["x-api-key"], "sk-real");
        assert_eq!(seen.headers["x-token"], "Token sk-real");
        let query = seen.uri.query().unwrap();
        assert_eq!(query, "alt=sse&key=sk-real&q=placeholder-first");
    }
    assert_eq!(bx.recording.refusals(), []);
}

/// A placeholder that goes astray passes as it is, and whoever runs the box hears of it with what to write.
#[tokio::test]
async fn a_placeholder_on_its_way_to_another_host_is_told() {
    let server = Server::start("other.test", Wire::Tls, says_hello).await;
    let mut rule = allow("other.test", &[server.port]);
    rule.terms.http = Some(HttpTerms::default());
    let mut config = config(vec![rule]);
    let authority = inspecting(&mut config, &server);
    config.secrets = vec![bare("first", NAME, "sk-real")];
    let bx = start(config);
    let mut client = client_one(&bx, "other.test", server.port, &authority).await;
    let mut request = get("/?key=placeholder-first", "other.test");
    let placeholder = "Bearer placeholder-first".parse().unwrap();
    request.headers_mut().insert("authorization", placeholder);
    let (status, ..) = whole(soon(client.send_request(request)).await.unwrap()).await;
    assert_eq!(status, 200);
    assert!(!format!("{:?}", server.seen()).contains("real"));
    let told = bx.recording.refusal(RefusalCode::SecretHost).await;
    assert_eq!(told.host, "other.test");
    assert!(
        told.hint
            .contains("- {name: first-2, from: {env: KEY}, domain: \"other.test\"}"),
        "{}",
        told.hint
    );
    assert!(!format!("{:?}", bx.recording.events()).contains("real"));
}
