//! Ways around the rules. Each works outside a box, in the same world, as the same user; in the box it is refused, the
//! refusal is in the result and on record, and nothing of it reaches a server.

mod support;

use support::{
    Attempt, Who, World, assert_all_allowed, assert_all_refused, for_each_user_in_a_world,
    on_other_tiers_in_a_world,
};

/// One host with a rule for its connections, one with a rule for its requests, and names that mean other addresses.
const RULES: &[&str] = &[
    "{domain: allowed.example.com, ports: [443, 80, 8080]}",
    "{domain: looked.example.com, ports: [443, 80], http: {paths: [/ok, /ok/*]}}",
    "{domain: \"*.wild.example.com\"}",
    "{domain: loop.example.com}",
    "{domain: meta.example.com}",
    "{domain: private.example.com}",
    "{domain: mapped.example.com}",
    "{domain: rebind.example.com}",
];

const NO_RULE: &[&str] = &["deny_no_egress_rule"];
const PRIVATE: &[&str] = &["deny_private_address"];
const MISMATCH: &[&str] = &["deny_name_mismatch"];
const MALFORMED: &[&str] = &["deny_malformed_request"];
const INVALID: &[&str] = &["deny_invalid_host"];
const PACKET: &[&str] = &["deny_protocol"];

fn world(who: Who) -> World {
    let mut world = World::new(who);
    world.rules(RULES, "");
    world
}

fn addresses_are_not_names(who: Who) {
    world(who).evade(&[
        ("direct-ip", NO_RULE),
        ("direct-ip-in-the-clear", NO_RULE),
        ("direct-ip-of-an-allowed-name", NO_RULE),
        ("ipv6-literal", NO_RULE),
        ("ipv4-mapped-ipv6", NO_RULE),
        ("decimal-ip", NO_RULE),
        ("octal-ip", NO_RULE),
        ("hex-ip", NO_RULE),
        ("short-ip", NO_RULE),
    ]);
}

fn names_are_only_themselves(who: Who) {
    world(who).evade(&[
        ("trailing-dot", NO_RULE),
        ("uppercase", NO_RULE),
        ("punycode", NO_RULE),
        ("apex-of-a-wildcard", NO_RULE),
        ("suffix-of-an-allowed-name", NO_RULE),
        ("prefix-of-an-allowed-name", NO_RULE),
        ("redirect", NO_RULE),
        ("url-with-userinfo", NO_RULE),
    ]);
}

fn names_lead_to_no_private_address(who: Who) {
    world(who).evade(&[
        ("name-that-is-loopback", PRIVATE),
        ("name-that-is-metadata", PRIVATE),
        ("name-that-is-private", PRIVATE),
        ("name-that-is-mapped-loopback", PRIVATE),
        ("rebinding", PRIVATE),
    ]);
}

fn lookups_carry_nothing_out(who: Who) {
    world(who).evade(&[
        ("dns-elsewhere", PACKET),
        ("dns-elsewhere-over-tcp", NO_RULE),
        ("dns-tunnel", NO_RULE),
        ("dns-tunnel-below-an-allowed-name", NO_RULE),
        ("dns-tunnel-by-the-library", NO_RULE),
        ("dns-text", &["deny_dns_query", "deny_no_egress_rule"]),
    ]);
}

fn the_proxy_opens_nothing_more(who: Who) {
    world(who).evade(&[
        ("proxy-to-an-address", NO_RULE),
        ("proxy-to-a-decimal-address", NO_RULE),
        ("proxy-with-userinfo", INVALID),
        ("proxy-with-another-host", MISMATCH),
        ("connect-is-not-sni", MISMATCH),
        ("plain-through-connect", &["deny_not_tls"]),
        ("forward-with-userinfo", INVALID),
        ("socks-to-another-name", NO_RULE),
        ("socks-with-nul", INVALID),
    ]);
}

fn connections_are_for_the_host_they_were_made_to(who: Who) {
    world(who).evade(&[
        ("sni-of-another", MISMATCH),
        ("no-sni", &["deny_no_server_name"]),
        ("plain-on-443", &["deny_not_tls"]),
        ("host-is-not-sni", MISMATCH),
        ("host-is-not-sni-when-reused", MISMATCH),
        ("host-is-another-in-the-clear", MISMATCH),
        ("absolute-form-of-another", MISMATCH),
        ("http2-authority-of-another", MISMATCH),
        ("http2-host-of-another", MISMATCH),
    ]);
}

fn requests_are_read_once(who: Who) {
    world(who).evade(&[
        ("path-beside-the-rule", &["deny_http_request"]),
        ("path-by-dots", &["deny_http_request"]),
        ("path-by-encoded-dots", &["deny_http_request"]),
        ("smuggle-two-lengths", MALFORMED),
        ("smuggle-bare-line-feed", MALFORMED),
        ("smuggle-length-and-chunks", MALFORMED),
        ("smuggle-in-the-clear", MALFORMED),
    ]);
}

fn nothing_but_tcp_leaves(who: Who) {
    world(who).evade(&[
        ("quic", PACKET),
        ("quic-to-an-allowed-name", PACKET),
        ("quic-over-ipv6", PACKET),
    ]);
}

/// A box gets no socket to ping with in the first place; that it asked is in the result.
fn no_ping_leaves(who: Who) {
    let world = world(who);
    assert_all_allowed(&Attempt::parse(
        &world.python_outside("evade.py", &["ping"]).stdout(),
    ));
    let outcome = world.python("evade.py", &["ping"]);
    assert_all_refused(&outcome.attempts());
    assert_eq!(outcome.violations(), ["socket"], "{outcome:#?}");
}

for_each_user_in_a_world!(
    addresses_are_not_names,
    names_are_only_themselves,
    names_lead_to_no_private_address,
    lookups_carry_nothing_out,
    the_proxy_opens_nothing_more,
    connections_are_for_the_host_they_were_made_to,
    requests_are_read_once,
    nothing_but_tcp_leaves,
    no_ping_leaves,
);

on_other_tiers_in_a_world!(
    addresses_are_not_names,
    lookups_carry_nothing_out,
    nothing_but_tcp_leaves,
    no_ping_leaves
);
