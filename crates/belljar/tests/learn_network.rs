//! `belljar learn` and the network: what is refused or recorded is enough, and nothing else gets through.

mod support;

use std::fs;

use support::{Who, belljar_in, finish, for_each_user, jail_with, succeeded, valid};

/// An address of the open network, in a network namespace of the test's own.
const OPEN_ADDRESS: &str = "45.45.45.45";

const NEEDS: &str = include_str!("agents/needs.py");
const SERVER: &str = include_str!("agents/server.py");

/// Learns in a network where one open address answers, then runs under what was learned.
fn what_is_learned_is_enough_with(who: Who, hosts: &str, expect_learning: &str) {
    let jail = jail_with(who, NEEDS);
    jail.put(&jail.base.join("server.py"), SERVER);
    let calls = jail.home.join("calls");
    jail.put(&calls, "");
    let belljar = jail.belljar_path();
    let (belljar, base) = (belljar.display(), jail.base.display());
    let script = format!(
        "set -- $(python3 {base}/server.py {OPEN_ADDRESS} {}) && \
         '{belljar}' learn --hosts {hosts} --output {}/learned.yaml -- python3 agent.py {OPEN_ADDRESS} $1; \
         echo learned $? $(wc -l < {}); \
         '{belljar}' validate --config {}/learned.yaml > /dev/null; echo valid $?; \
         '{belljar}' run --config {}/learned.yaml -- python3 agent.py {OPEN_ADDRESS} $1; echo ran $? $1; \
         '{belljar}' run --config {}/learned.yaml -- python3 agent.py 45.45.45.46 $1; echo elsewhere $?; \
         kill $2",
        calls.display(),
        jail.home.display(),
        calls.display(),
        jail.home.display(),
        jail.home.display(),
        jail.home.display(),
    );
    let program = jail.probe_path();
    let mut command = jail.outside(&program);
    // The laboratory needs root to make its network; it starts the script as the user.
    if support::runner_is_root() {
        std::os::unix::process::CommandExt::uid(&mut command, 0);
        std::os::unix::process::CommandExt::gid(&mut command, 0);
    }
    let uid = who.uid().to_string();
    command.args(["laboratory", OPEN_ADDRESS, &uid, "/bin/sh", "-c", &script]);
    let done = finish(command.spawn().expect("a laboratory"));
    let said = done.stdout();
    let yaml = fs::read_to_string(jail.home.join("learned.yaml")).unwrap_or_default();
    let all = format!("{said}\n{}\n{yaml}", done.stderr());
    assert!(said.contains(expect_learning), "{all}");
    assert!(said.contains("valid 0"), "{all}");
    assert!(said.contains("ran 0"), "{all}");
    assert!(!said.contains("elsewhere 0"), "{all}");
    let port = said.lines().find_map(|line| line.strip_prefix("ran 0 "));
    let rule = format!(
        "- {{domain: \"{OPEN_ADDRESS}\", ports: [{}]}}",
        port.unwrap_or("?")
    );
    assert!(
        yaml.lines()
            .any(|line| line.trim_start().starts_with(&rule)),
        "{all}"
    );
    assert!(yaml.contains("- spawn_subprocess"), "{all}");
    // What is hidden stays hidden until somebody decides otherwise.
    assert!(yaml.contains("# - \"~/.ssh/id_ed25519\""), "{all}");
    jail.assert_nothing_left(None);
}

fn hosts_that_are_recorded_are_enough(who: Who) {
    what_is_learned_is_enough_with(who, "record", "learned 0 1\n");
}

/// Nothing gets through while learning, and the rule is there all the same.
fn hosts_that_are_refused_are_enough(who: Who) {
    what_is_learned_is_enough_with(who, "refuse", "learned 1 0\n");
}

fn servers_on_the_hosts_loopback_are_proposed(who: Who) {
    let agent = "import socket\n\
        s = socket.socket(); s.setblocking(False); print(s.connect_ex(('127.0.0.1', 5432)))\n\
        try: socket.create_connection(('::1', 6379))\n\
        except OSError: pass\n\
        own = socket.create_server(('127.0.0.1', 0)); socket.create_connection(own.getsockname())\n";
    let jail = jail_with(who, agent);
    let yaml = succeeded(&belljar_in(
        &jail,
        &["learn", "-q", "--", "python3", "agent.py"],
    ));
    assert!(
        yaml.contains("# - {domain: \"localhost\", ports: [5432, 6379]}"),
        "{yaml}"
    );
    assert_eq!(
        valid(&jail, &yaml)["network_egress_rules"],
        serde_json::json!([])
    );
}

/// Nothing is dialled here, in neither way: a private address is refused before.
fn private_addresses_stay_closed(who: Who) {
    for (hosts, asked) in [
        ("refuse", "'169.254.169.254', '10.0.0.1', 'db.example'"),
        ("record", "'169.254.169.254', '10.0.0.1'"),
    ] {
        let agent = format!(
            "import socket\n\
             for host in ({asked}):\n\
             \x20   try:\n\
             \x20       connection = socket.create_connection((host, 80))\n\
             \x20       connection.sendall(b'GET / HTTP/1.1\\r\\nHost: ' + host.encode() + b'\\r\\n\\r\\n')\n\
             \x20       connection.recv(1)\n\
             \x20   except OSError: pass\n"
        );
        let jail = jail_with(who, &agent);
        let done = belljar_in(
            &jail,
            &["learn", "-q", "--hosts", hosts, "--", "python3", "agent.py"],
        );
        let yaml = succeeded(&done);
        for address in ["169.254.169.254", "10.0.0.1"] {
            let line = format!("  # - {{domain: \"{address}\", ports: [80], allow_private: true}}");
            assert!(
                yaml.lines().any(|own| own.starts_with(&line)),
                "{hosts}\n{yaml}"
            );
        }
        let rules = &valid(&jail, &yaml)["network_egress_rules"];
        let rules = rules.as_array().into_iter().flatten();
        let names: Vec<&str> = rules
            .filter_map(|rule| rule["value"]["domain"].as_str())
            .collect();
        let expect: &[&str] = match hosts {
            "refuse" => &["db.example"],
            _ => &[],
        };
        assert_eq!(names, expect, "{yaml}");
    }
}

for_each_user!(
    hosts_that_are_recorded_are_enough,
    hosts_that_are_refused_are_enough,
    servers_on_the_hosts_loopback_are_proposed,
    private_addresses_stay_closed,
);
