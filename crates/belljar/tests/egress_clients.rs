//! Unmodified programs reach the hosts that rules allow, without proxy variables, by whatever protocol they speak.

mod support;

use serde_json::Value;
use support::{Outcome, PYTHON, Who, World, assert_recorded, for_each_user_in_a_world};

/// Hosts that are let through untouched, and one whose requests are looked at.
const RULES: &[&str] = &[
    "{domain: allowed.example.com, ports: [443, 80]}",
    "{domain: six.example.com, ports: [443]}",
    "{domain: looked.example.com, ports: [443], http: {methods: [GET], paths: [/ok]}}",
    "{domain: \"*.wild.example.com\", ports: [443]}",
];

/// Programs with certificates of their own are told of the world's, as they are of a company's.
const TRUST: &str = "env_allowlist: [SSL_CERT_FILE, REQUESTS_CA_BUNDLE, NODE_EXTRA_CA_CERTS]\n";

fn world(who: Who) -> World {
    let mut world = World::new(who);
    world.rules(RULES, TRUST);
    for variable in ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"] {
        world
            .jail
            .variable(variable, "/etc/ssl/certs/ca-certificates.crt");
    }
    world
}

/// What arrived: the version, the name in TLS, the address and the path.
fn arrived(world: &World) -> Vec<(String, String, String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let requests = world.seen_since(0, "http");
    let shown = requests.iter().map(|request| {
        let at = text(&request["at"])
            .trim_start_matches("::ffff:")
            .to_owned();
        (
            text(&request["version"]),
            text(&request["sni"]),
            at,
            text(&request["path"]),
        )
    });
    shown.collect()
}

fn row(version: &str, sni: &str, at: &str, path: &str) -> (String, String, String, String) {
    (version.into(), sni.into(), at.into(), path.into())
}

fn refused(outcome: &Outcome) -> u64 {
    outcome.json["network"]["refused"]
        .as_u64()
        .unwrap_or_else(|| panic!("no network.refused in {}", outcome.json))
}

fn curl_reaches_what_is_allowed_and_nothing_else(who: Who) {
    let world = world(who);
    let outcome = world.shell(
        "for url in https://allowed.example.com/one http://allowed.example.com/two \
             https://six.example.com/three https://ALLOWED.example.com./four \
             https://looked.example.com/ok https://sub.wild.example.com/five
         do curl --silent --show-error --fail $url; done",
    );
    outcome.assert_exit(0);
    assert_eq!(refused(&outcome), 0, "{outcome:#?}");
    let public = "93.184.216.34";
    let expected = [
        row("2", "allowed.example.com", public, "/one"),
        row("1.1", "-", public, "/two"),
        row("2", "six.example.com", "2606:2800:220:1::1", "/three"),
        row("2", "allowed.example.com", public, "/four"),
        row("2", "looked.example.com", public, "/ok"),
        row("2", "sub.wild.example.com", public, "/five"),
    ];
    assert_eq!(arrived(&world), expected);
    let before = world.seen().len();
    for (url, code) in [
        ("https://other.example.com/", "deny_no_egress_rule"),
        ("https://wild.example.com/", "deny_no_egress_rule"),
        ("http://six.example.com/", "deny_no_egress_rule"),
        ("https://looked.example.com/else", "deny_http_request"),
    ] {
        let outcome = world.jail.run(&["curl", "--silent", "--fail", url]);
        assert_ne!(outcome.code(), 0, "{url}: {outcome:#?}");
        assert_recorded(&outcome, url, &[code]);
    }
    let outcome = world.jail.run(&[
        "curl",
        "--silent",
        "--fail",
        "--data",
        "x",
        "https://looked.example.com/ok",
    ]);
    assert_recorded(&outcome, "POST", &["deny_http_request"]);
    assert_eq!(world.seen_since(before, "http"), Vec::<Value>::new());
}

fn pythons_libraries_reach_what_is_allowed(who: Who) {
    let world = world(who);
    let urls = [
        "https://allowed.example.com/x",
        "https://looked.example.com/ok",
    ];
    let outcome = world.python("fetch.py", &urls);
    outcome.assert_exit(0);
    let lines: Vec<String> = urls
        .iter()
        .flat_map(|url| {
            ["requests", "httpx", "HTTP/2", "aiohttp"].map(|client| format!("{client} {url}: 200"))
        })
        .collect();
    assert_eq!(outcome.stdout().lines().collect::<Vec<_>>(), lines);
    assert_eq!(arrived(&world).len(), lines.len());
    assert_eq!(refused(&outcome), 0, "{outcome:#?}");
}

fn node_reaches_what_is_allowed(who: Who) {
    let world = world(who);
    let outcome = world.jail.run(&[
        "node",
        "--eval",
        "(async () => {
            for (const url of ['https://allowed.example.com/x', 'https://looked.example.com/ok'])
                console.log((await fetch(url)).status);
            await fetch('https://other.example.com/').catch(error => console.log(error.cause.code));
        })()",
    ]);
    outcome.assert_exit(0);
    assert_eq!(outcome.stdout(), "200\n200\nENOTFOUND\n");
    assert_recorded(&outcome, "other", &["deny_no_egress_rule"]);
}

fn the_proxy_serves_programs_that_insist_on_one(who: Who) {
    let world = world(who);
    let outcome = world.shell(
        "for proxy in http://127.0.0.1:3128 socks5h://127.0.0.1:3128
         do for url in https://allowed.example.com/one http://allowed.example.com/two https://looked.example.com/ok
            do curl --silent --show-error --fail --proxy $proxy $url; done
            curl --silent --proxy $proxy https://other.example.com/ && exit 1
         done; true",
    );
    outcome.assert_exit(0);
    let paths: Vec<String> = arrived(&world).into_iter().map(|row| row.3).collect();
    assert_eq!(paths, ["/one", "/two", "/ok", "/one", "/two", "/ok"]);
    let ways: Vec<&str> = outcome.json["network"]["refusals"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|refusal| refusal["way"].as_str())
        .collect();
    assert!(
        ways.contains(&"http_proxy") && ways.contains(&"socks"),
        "{outcome:#?}"
    );
}

fn a_port_of_the_hosts_loopback_is_reached_when_it_is_listed(who: Who) {
    let mut world = World::new(who);
    world.rules(&["{domain: localhost, ports: [8080]}"], "");
    let outcome = world.shell(
        "curl --silent --show-error --fail http://localhost:8080/one
         curl --silent --show-error --fail http://127.0.0.1:8080/two
         curl --silent http://localhost:8443/forbidden && exit 1
         curl --silent http://127.0.0.1:80/forbidden && exit 1; true",
    );
    outcome.assert_exit(0);
    let paths: Vec<String> = arrived(&world).into_iter().map(|row| row.3).collect();
    assert_eq!(paths, ["/one", "/two"]);
}

fn installers_and_git_fetch_from_their_hosts(who: Who) {
    let mut world = World::new(who);
    // Looked at and not: both ways their own handling of certificates has to work.
    // In a place of its own each time: what one left, a repository among it, is protected in the next.
    for (place, http) in [("one", ""), ("two", ", http: {methods: [GET, POST]}")] {
        let rules: Vec<String> = ["pypi", "registry", "git"]
            .iter()
            .map(|name| format!("{{domain: {name}.example.com, ports: [443]{http}}}"))
            .collect();
        let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
        world.rules(&rules, "env_allowlist: [PIP_CERT, NODE_EXTRA_CA_CERTS]\n");
        for variable in ["PIP_CERT", "NODE_EXTRA_CA_CERTS"] {
            world
                .jail
                .variable(variable, "/etc/ssl/certs/ca-certificates.crt");
        }
        let outcome = world.shell(&format!(
            "export HOME=$PWD/{place}; mkdir {place}; cd {place}
             {PYTHON} -m pip install --quiet --disable-pip-version-check --no-cache-dir --target packages \
                 --index-url https://pypi.example.com/simple belljar-demo
             PYTHONPATH=packages {PYTHON} -c 'import belljar_demo; print(belljar_demo.ANSWER)'
             npm install --silent --no-audit --no-fund --prefix . --registry https://registry.example.com belljar-demo
             node --print \"require('belljar-demo')\"
             git clone --quiet https://git.example.com/demo.git
             cat demo/readme.txt"
        ));
        outcome.assert_exit(0);
        assert_eq!(outcome.stdout(), "42\n42\nfrom the world\n", "{outcome:#?}");
        assert_eq!(refused(&outcome), 0, "{outcome:#?}");
    }
}

for_each_user_in_a_world!(
    curl_reaches_what_is_allowed_and_nothing_else,
    pythons_libraries_reach_what_is_allowed,
    node_reaches_what_is_allowed,
    the_proxy_serves_programs_that_insist_on_one,
    a_port_of_the_hosts_loopback_is_reached_when_it_is_listed,
    installers_and_git_fetch_from_their_hosts,
);
