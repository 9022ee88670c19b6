//! Connections that are not looked into: who gets through, who does not, and how much.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use belljar_egress::{
    EncryptedHello, Event, ProtocolPorts, ProxyResolution, RefusalCode, UpstreamProxy,
};
use belljar_policy::{EgressEffect, Host, Reach};
use support::*;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

async fn echoes(stream: &mut TcpStream, text: &[u8]) {
    soon(stream.write_all(text)).await.unwrap();
    let mut back = vec![0; text.len()];
    soon(stream.read_exact(&mut back)).await.unwrap();
    assert_eq!(back, text);
}

#[tokio::test]
async fn an_allowed_host_is_reached_and_a_refused_one_is_recorded_with_the_line_to_add() {
    let echo = Echo::start().await;
    let bx = start(config(vec![allow("a.test", &[echo.port])]));
    let mut stream = bx.tunnel(&format!("A.test.:{}", echo.port)).await;
    echoes(&mut stream, b"hello").await;
    drop(stream);
    let closed = bx
        .recording
        .wait("end", |event| match event {
            Event::Closed(connection) => Some(connection.clone()),
            _ => None,
        })
        .await;
    assert_eq!(
        (closed.host.as_str(), closed.sent, closed.received),
        ("a.test", 5, 5)
    );

    let (status, _) = bx.connect("b.test:443").await;
    assert!(status.starts_with("HTTP/1.1 403 "), "{status}");
    let refusal = bx.recording.refusal(RefusalCode::NoRule).await;
    assert_eq!((refusal.host.as_str(), refusal.port), ("b.test", Some(443)));
    assert!(
        refusal.hint.contains("{domain: \"b.test\", ports: [443]}"),
        "{}",
        refusal.hint
    );
    assert_eq!(echo.count(), 1);
    let usage = bx.engine.stop();
    assert_eq!(
        (usage.connections, usage.open, usage.sent, usage.received),
        (1, 0, 5, 5)
    );
}

#[tokio::test]
async fn a_deny_rule_wins_and_other_ports_are_closed() {
    let echo = Echo::start().await;
    let mut deny = allow("bad.a.test", &[]);
    deny.effect = EgressEffect::Deny;
    let bx = start(config(vec![allow("*.a.test", &[echo.port]), deny]));
    drop(bx.tunnel(&format!("x.a.test:{}", echo.port)).await);
    for (target, code) in [
        (format!("bad.a.test:{}", echo.port), RefusalCode::Blocked),
        (format!("a.test:{}", echo.port), RefusalCode::NoRule),
        ("x.a.test:1".to_owned(), RefusalCode::NoRule),
    ] {
        let (status, _) = bx.connect(&target).await;
        assert!(status.starts_with("HTTP/1.1 403 "), "{target}: {status}");
        bx.recording.refusal(code).await;
    }
}

#[tokio::test]
async fn odd_spellings_of_hosts_are_refused_or_meet_the_same_rules() {
    let bx = start(config(vec![allow("a.test", &[])]));
    for target in [
        "2130706433:80",
        "0x7f000001:80",
        "0177.0.0.1:80",
        "[::ffff:127.0.0.1]:80",
        "[::1]:80",
        "a.test@b.test:80",
        "b.test@a.test:80",
        "a.test%00.b.test:80",
        "xn--a-ecp.test:80",
        "a.test..:80",
        "a.test:080x",
    ] {
        let (status, _) = bx.connect(target).await;
        assert!(status.starts_with("HTTP/1.1 403 "), "{target}: {status}");
    }
    assert_eq!(bx.recording.refusals().len(), 11);
}

async fn socks(bx: &TestBox, request: &[u8]) -> (u8, TcpStream) {
    let mut stream = TcpStream::connect(bx.proxy).await.unwrap();
    stream.write_all(&[5, 1, 0]).await.unwrap();
    let mut answer = [0; 2];
    soon(stream.read_exact(&mut answer)).await.unwrap();
    assert_eq!(answer, [5, 0]);
    stream.write_all(request).await.unwrap();
    let mut answer = [0; 10];
    soon(stream.read_exact(&mut answer)).await.unwrap();
    (answer[1], stream)
}

fn socks_name(name: &[u8], port: u16) -> Vec<u8> {
    [&[5, 1, 0, 3, name.len() as u8], name, &port.to_be_bytes()].concat()
}

#[tokio::test]
async fn socks_clients_meet_the_same_rules() {
    let echo = Echo::start().await;
    let bx = start(config(vec![allow("a.test", &[echo.port])]));
    let (status, mut stream) = socks(&bx, &socks_name(b"a.test", echo.port)).await;
    assert_eq!(status, 0);
    echoes(&mut stream, b"hello").await;
    for (request, expect) in [
        (socks_name(b"b.test", echo.port), 2),
        (socks_name(b"a.test\0.b.test", echo.port), 2),
        (socks_name(b"b.test\0", echo.port), 2),
        (socks_name(b"", echo.port), 2),
        (
            [
                vec![5, 1, 0, 1, 127, 0, 0, 1],
                echo.port.to_be_bytes().to_vec(),
            ]
            .concat(),
            2,
        ),
        (
            [
                vec![5, 2, 0, 1, 127, 0, 0, 1],
                echo.port.to_be_bytes().to_vec(),
            ]
            .concat(),
            7,
        ),
        (
            [
                vec![5, 3, 0, 1, 127, 0, 0, 1],
                echo.port.to_be_bytes().to_vec(),
            ]
            .concat(),
            7,
        ),
    ] {
        let (status, _) = socks(&bx, &request).await;
        assert_eq!(status, expect, "{request:?}");
    }
    assert_eq!(bx.recording.refusals().len(), 7);
    assert_eq!(echo.count(), 1);
}

#[tokio::test]
async fn addresses_that_a_rule_does_not_reach_are_not_dialled() {
    let echo = Echo::start().await;
    let mut rules = vec![allow("mixed.test", &[echo.port])];
    for (name, reach) in [
        ("public.test", Reach::Public),
        ("private.test", Reach::Private),
        ("host.test", Reach::Host),
    ] {
        let mut rule = allow(name, &[echo.port]);
        rule.terms.reach = reach;
        rules.push(rule);
    }
    let mut config = config(rules);
    let at = |texts: &[&str]| {
        texts
            .iter()
            .map(|text| text.parse().unwrap())
            .collect::<Vec<IpAddr>>()
    };
    let names = [
        (
            "public.test",
            at(&[
                "127.0.0.1",
                "::1",
                "::ffff:127.0.0.1",
                "10.0.0.1",
                "64:ff9b::7f00:1",
            ]),
        ),
        (
            "private.test",
            at(&["169.254.169.254", "127.0.0.1", "0.0.0.0"]),
        ),
        (
            "host.test",
            at(&["169.254.169.254", "fe80::1", "224.0.0.1", "255.255.255.255"]),
        ),
        // What is checked is what is dialled: only the last of them.
        ("mixed.test", at(&["169.254.169.254", "127.0.0.1"])),
    ];
    let names: HashMap<_, _> = names
        .into_iter()
        .map(|(name, at)| (name.to_owned(), at))
        .collect();
    config.resolver = Arc::new(Names(names));
    let bx = start(config);
    for name in ["public.test", "private.test", "host.test"] {
        let mut stream = bx.tunnel(&format!("{name}:{}", echo.port)).await;
        assert!(read_all(&mut stream).await.is_empty());
        let refusals = bx.recording.refusals();
        let refusal = refusals
            .iter()
            .find(|refusal| refusal.host == name)
            .unwrap();
        assert_eq!(refusal.code, RefusalCode::PrivateAddress, "{name}");
    }
    assert_eq!(echo.count(), 0);
    let mut stream = bx.tunnel(&format!("mixed.test:{}", echo.port)).await;
    echoes(&mut stream, b"x").await;
}

#[tokio::test]
async fn a_name_without_address_and_a_host_that_is_not_there_are_recorded() {
    let echo = Echo::start().await;
    let port = echo.port;
    let mut config = config(vec![allow("none.test", &[port]), allow("gone.test", &[1])]);
    config.resolver = Arc::new(Names(HashMap::from([("none.test".to_owned(), Vec::new())])));
    let bx = start(config);
    let mut stream = bx.tunnel(&format!("none.test:{port}")).await;
    assert!(read_all(&mut stream).await.is_empty());
    bx.recording.refusal(RefusalCode::Unresolved).await;
    let mut stream = bx.tunnel("gone.test:1").await;
    assert!(read_all(&mut stream).await.is_empty());
    bx.recording.refusal(RefusalCode::Unreachable).await;
}

#[tokio::test]
async fn tls_for_another_name_is_closed_before_the_server_sees_it() {
    for tls_only in [true, false] {
        let echo = Echo::start().await;
        let mut config = config(vec![allow("a.test", &[echo.port]), allow("c.test", &[])]);
        if tls_only {
            config.ports = ProtocolPorts {
                tls: vec![echo.port],
                http: vec![],
            };
        }
        let bx = start(config);
        let target = format!("a.test:{}", echo.port);
        let mut stream = bx.tunnel(&target).await;
        echoes(&mut stream, &greeting(Some("A.test"), false)).await;
        echoes(&mut stream, b"and whatever follows").await;
        let refused: [(Vec<u8>, RefusalCode); 4] = [
            (greeting(Some("b.test"), false), RefusalCode::NameMismatch),
            (greeting(Some("c.test"), false), RefusalCode::NameMismatch),
            (greeting(None, false), RefusalCode::NoServerName),
            (greeting(Some("a.test"), true), RefusalCode::NoServerName),
        ];
        for (hello, code) in refused {
            let before = bx.recording.refusals().len();
            let mut stream = bx.tunnel(&target).await;
            stream.write_all(&hello).await.unwrap();
            assert!(read_all(&mut stream).await.is_empty(), "{code:?}");
            let refusals = bx.recording.refusals();
            assert_eq!(refusals.len(), before + 1);
            assert_eq!(refusals[before].code, code);
        }
    }
}

#[tokio::test]
async fn a_greeting_that_may_hide_a_name_passes_only_when_that_is_accepted() {
    let echo = Echo::start().await;
    let mut config = config(vec![allow("a.test", &[echo.port])]);
    config.encrypted_hello = EncryptedHello::Accept;
    let bx = start(config);
    let mut stream = bx.tunnel(&format!("a.test:{}", echo.port)).await;
    echoes(&mut stream, &greeting(Some("a.test"), true)).await;
}

#[tokio::test]
async fn only_tls_passes_where_tls_belongs() {
    let echo = Echo::start().await;
    let mut config = config(vec![allow("a.test", &[echo.port, 443])]);
    config.ports.tls.push(echo.port);
    let bx = start(config);
    for text in [
        &b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n"[..],
        b"SSH-2.0-x\r\n",
        b"\x16\x02\0\0\0\0\0",
    ] {
        for port in [echo.port, 443] {
            let before = bx.recording.refusals().len();
            let mut stream = bx.tunnel(&format!("a.test:{port}")).await;
            stream.write_all(text).await.unwrap();
            assert!(read_all(&mut stream).await.is_empty());
            assert_eq!(bx.recording.refusals()[before].code, RefusalCode::NotTls);
        }
    }
    assert_eq!(echo.count(), 0);
}

#[tokio::test]
async fn a_server_may_speak_first() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"220 ready\r\n").await.unwrap();
        let mut line = [0; 6];
        stream.read_exact(&mut line).await.unwrap();
        stream.write_all(b"221 bye\r\n").await.unwrap();
    });
    let bx = start(config(vec![allow("a.test", &[port])]));
    let mut stream = bx.tunnel(&format!("a.test:{port}")).await;
    let mut line = [0; 11];
    soon(stream.read_exact(&mut line)).await.unwrap();
    assert_eq!(&line, b"220 ready\r\n");
    stream.write_all(b"QUIT\r\n").await.unwrap();
    assert_eq!(read_all(&mut stream).await, b"221 bye\r\n");
    soon(server).await.unwrap();
}

#[tokio::test]
async fn a_rules_bytes_are_counted_to_the_last() {
    let echo = Echo::start().await;
    let mut rule = allow("a.test", &[echo.port]);
    rule.terms.max_bytes = Some(1000);
    let bx = start(config(vec![rule]));
    let mut stream = bx.tunnel(&format!("a.test:{}", echo.port)).await;
    echoes(&mut stream, &[7; 400]).await;
    // 200 are left: they pass, and not one more.
    stream.write_all(&[8; 300]).await.unwrap();
    let back = read_all(&mut stream).await;
    bx.recording.refusal(RefusalCode::Bytes).await;
    assert!(back.len() <= 200, "{}", back.len());
    let mut again = bx.tunnel(&format!("a.test:{}", echo.port)).await;
    again.write_all(b"x").await.unwrap();
    assert!(read_all(&mut again).await.is_empty());
    let usage = bx.engine.stop();
    assert_eq!(usage.sent + usage.received, 1000);
}

#[tokio::test]
async fn a_rules_connections_are_limited_until_one_ends() {
    let echo = Echo::start().await;
    let mut rule = allow("a.test", &[echo.port]);
    rule.terms.max_connections = Some(2);
    let bx = start(config(vec![rule]));
    let target = format!("a.test:{}", echo.port);
    let mut first = bx.tunnel(&target).await;
    let mut second = bx.tunnel(&target).await;
    echoes(&mut first, b"1").await;
    echoes(&mut second, b"2").await;
    assert!(bx.connect(&target).await.0.starts_with("HTTP/1.1 403 "));
    bx.recording.refusal(RefusalCode::Connections).await;
    drop(first);
    bx.recording
        .wait("end", |event| {
            matches!(event, Event::Closed(_)).then_some(())
        })
        .await;
    let mut third = bx.tunnel(&target).await;
    echoes(&mut third, b"3").await;
}

#[tokio::test]
async fn a_rules_rate_is_limited() {
    let echo = Echo::start().await;
    let mut rule = allow("a.test", &[echo.port]);
    rule.rate_limit_per_min = 3;
    let bx = start(config(vec![rule]));
    for _ in 0..3 {
        let mut stream = bx.tunnel(&format!("a.test:{}", echo.port)).await;
        echoes(&mut stream, b"x").await;
    }
    let mut stream = bx.tunnel(&format!("a.test:{}", echo.port)).await;
    assert!(read_all(&mut stream).await.is_empty());
    bx.recording.refusal(RefusalCode::Rate).await;
    assert_eq!(echo.count(), 3);
}

#[tokio::test]
async fn half_a_greeting_does_not_hold_a_place_for_ever() {
    let mut config = config(vec![allow("a.test", &[])]);
    config.timeouts.greeting = Duration::from_millis(100);
    let bx = start(config);
    for text in [&b"CONNECT a.t"[..], b"\x05\x01", b""] {
        let mut stream = TcpStream::connect(bx.proxy).await.unwrap();
        // It may be closed already.
        let _ = stream.write_all(text).await;
        assert!(read_all(&mut stream).await.is_empty());
    }
}

#[tokio::test]
async fn a_box_has_only_so_many_connections() {
    let echo = Echo::start().await;
    let mut config = config(vec![allow("a.test", &[echo.port])]);
    config.limits.connections = 3;
    let bx = start(config);
    let target = format!("a.test:{}", echo.port);
    let mut first = bx.tunnel(&target).await;
    let _second = bx.tunnel(&target).await;
    let _third = bx.tunnel(&target).await;
    let mut fourth = TcpStream::connect(bx.proxy).await.unwrap();
    assert!(read_all(&mut fourth).await.is_empty());
    bx.recording.refusal(RefusalCode::Connections).await;
    echoes(&mut first, b"still there").await;
}

#[tokio::test]
async fn silent_and_half_closed_connections_end() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    // Takes connections and never says a word.
    let server = tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            kept.push(stream);
        }
    });
    let mut config = config(vec![allow("a.test", &[port])]);
    config.timeouts.idle = Duration::from_millis(300);
    config.timeouts.half_closed = Duration::from_millis(100);
    let bx = start(config);
    let mut silent = bx.tunnel(&format!("a.test:{port}")).await;
    // Either may be over before it began on a busy machine.
    let _ = silent.write_all(b"hello?").await;
    let mut half = bx.tunnel(&format!("a.test:{port}")).await;
    let _ = half.write_all(b"bye").await;
    let _ = half.shutdown().await;
    assert!(read_all(&mut silent).await.is_empty());
    assert!(read_all(&mut half).await.is_empty());
    server.abort();
}

#[tokio::test]
async fn half_closing_is_passed_on() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).await.unwrap();
        stream.write_all(&all).await.unwrap();
    });
    let bx = start(config(vec![allow("a.test", &[port])]));
    let mut stream = bx.tunnel(&format!("a.test:{port}")).await;
    let text = vec![9; 300_000];
    let (mut read, mut write) = stream.split();
    let sending = async {
        write.write_all(&text).await.unwrap();
        write.shutdown().await.unwrap();
    };
    let mut back = Vec::new();
    soon(async { tokio::join!(sending, read.read_to_end(&mut back)) })
        .await
        .1
        .unwrap();
    assert_eq!(back, text);
    soon(server).await.unwrap();
}

#[tokio::test]
async fn many_idle_connections_do_not_disturb_another() {
    let echo = Echo::start().await;
    let mut config = config(vec![allow("a.test", &[echo.port])]);
    config.limits.connections = 150;
    let bx = start(config);
    let target = format!("a.test:{}", echo.port);
    let mut idle = Vec::new();
    for _ in 0..100 {
        idle.push(bx.tunnel(&target).await);
    }
    let mut one = bx.tunnel(&target).await;
    for _ in 0..20 {
        echoes(&mut one, &[3; 1000]).await;
    }
    assert!(bx.recording.refusals().is_empty());
}

#[tokio::test]
async fn when_the_engine_ends_everything_closes() {
    let echo = Echo::start().await;
    let bx = start(config(vec![allow("a.test", &[echo.port])]));
    let mut stream = bx.tunnel(&format!("a.test:{}", echo.port)).await;
    echoes(&mut stream, b"x").await;
    let proxy = bx.proxy;
    let _ = bx.engine.stop();
    assert!(read_all(&mut stream).await.is_empty());
    assert!(TcpStream::connect(proxy).await.is_err());
}

#[test]
fn what_was_asked_last_is_on_record_when_the_engine_ends() {
    const ASKED: usize = 40;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let bx = start_with(config(vec![allow("a.test", &[443])]), Some(listener));
    let asked: Vec<_> = (0..ASKED)
        .map(|_| std::net::TcpStream::connect(at).unwrap())
        .collect();
    // Nobody waits for an answer.
    drop(asked);
    let usage = bx.engine.stop();
    assert_eq!(usage.refusals as usize, ASKED);
    assert_eq!(bx.recording.refusals().len(), ASKED);
}

#[tokio::test]
async fn a_proxy_of_the_hosts_network_is_asked_for_the_name_or_for_the_address() {
    for (resolution, expect) in [
        (ProxyResolution::AtProxy, "a.test:7"),
        (ProxyResolution::Local, "127.0.0.1:7"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let corporate = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            stream
                .write_all(b"HTTP/1.1 200 OK\r\n\r\nwelcome")
                .await
                .unwrap();
            String::from_utf8(head).unwrap()
        });
        let mut config = config(vec![allow("a.test", &[7])]);
        config.upstream_proxy = Some(UpstreamProxy {
            host: Host::from(address.ip()),
            port: address.port(),
            resolution,
            authorization: Some(belljar_egress::SecretText::new("Basic c2VjcmV0".to_owned())),
        });
        let bx = start(config);
        let mut stream = bx.tunnel("a.test:7").await;
        assert_eq!(read_all(&mut stream).await, b"welcome");
        let head = soon(corporate).await.unwrap();
        assert!(
            head.starts_with(&format!("CONNECT {expect} HTTP/1.1\r\n")),
            "{head}"
        );
        assert!(head.contains("Proxy-Authorization: Basic c2VjcmV0\r\n"));
    }
}

/// A proxy may repeat in its answer what it was asked, and that has a password in it.
#[tokio::test]
async fn of_a_proxys_refusal_only_the_number_is_on_record() {
    for (line, code) in [
        ("HTTP/1.1 407", "407"),
        ("HTTP/1.1 Basic", "no HTTP"),
        ("HTTP/1.1 4c2VjcmV0", "no HTTP"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            let asked = String::from_utf8(head).unwrap().replace("\r\n", " ");
            let answer = format!("{line} {asked}\r\n\r\n");
            stream.write_all(answer.as_bytes()).await.unwrap();
        });
        let mut config = config(vec![allow("a.test", &[7])]);
        config.upstream_proxy = Some(UpstreamProxy {
            host: Host::from(address.ip()),
            port: address.port(),
            resolution: ProxyResolution::AtProxy,
            authorization: Some(belljar_egress::SecretText::new("Basic c2VjcmV0".to_owned())),
        });
        let bx = start(config);
        let (_, mut stream) = bx.connect("a.test:7").await;
        assert_eq!(read_all(&mut stream).await, b"");
        let _ = bx.engine.stop();
        let told = format!("{:?}", bx.recording.refusals());
        assert!(told.contains(code) && !told.contains("c2VjcmV0"), "{told}");
    }
}
