//! What holders of tokens may start: within a ceiling, below a workspace, and never as root. Whoever has the local socket is held to
//! none of that.

mod support;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::chown;

use serde_json::{Value, json};
use support::{Supervised, Who, for_each_user};

struct Scene {
    supervised: Supervised,
    operator: String,
    admin: String,
}

impl Scene {
    fn start(who: Who, api: &str) -> Scene {
        let mut supervised = Supervised::prepare(who, "");
        let base = supervised.jail.base.clone();
        let config = format!("[supervisor]\nmax_agents = 50\nstop_grace_seconds = 1\n{api}");
        supervised.jail.put(&base.join("supervisor.toml"), &config);
        // An ordinary user's, whoever runs the daemon.
        for name in ["one", "one/.git", "two"] {
            let place = base.join("workspaces").join(name);
            fs::create_dir_all(&place).expect("a workspace");
            chown(&place, Some(Who::User.uid()), Some(Who::User.uid())).ok();
        }
        std::os::unix::fs::symlink("/etc", base.join("workspaces/one/link")).expect("a link");
        supervised.start_again();
        let token = |role: &str| {
            let said = supervised.said(&["token", "create", "--role", role]);
            let word = said.split_whitespace().find(|word| word.starts_with("bj_"));
            word.expect("a token").to_owned()
        };
        let (operator, admin) = (token("operator"), token("admin"));
        Scene {
            supervised,
            operator,
            admin,
        }
    }

    fn place(&self, name: &str) -> String {
        let place = self.supervised.jail.base.join("workspaces").join(name);
        place.display().to_string()
    }

    fn post(&self, token: &str, path: &str, body: &Value) -> (u16, Value) {
        let output = self.supervised.output();
        let (_, rest) = output
            .split_once("dashboard at http://")
            .expect("a dashboard");
        let address = rest.split_whitespace().next().expect("an address");
        let address = address.trim_end_matches('/');
        let mut stream = TcpStream::connect(address).expect("the web server");
        let body = body.to_string();
        write!(
            stream,
            "POST {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        )
        .expect("ask");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let status = answer.split(' ').nth(1).and_then(|word| word.parse().ok());
        let (_, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
        (
            status.expect("a status"),
            serde_json::from_str(body).unwrap_or_default(),
        )
    }
}

/// What is asked for, and the words of the refusal; none where it is let in.
type Case<'a> = (&'a str, Value, Option<&'a str>);

fn check(scene: &Scene, token: &str, cases: &[Case<'_>]) {
    for (number, (workdir, more, refusal)) in cases.iter().enumerate() {
        let mut body = json!({"name": format!("a-{number}-{}", &token[3..9]), "command": ["true"], "workdir": workdir});
        for (key, value) in more.as_object().into_iter().flatten() {
            body[key] = value.clone();
        }
        let (status, said) = scene.post(token, "/v1/agents", &body);
        match refusal {
            None => assert_eq!(status, 201, "{body}: {said}"),
            Some(words) => {
                assert_eq!(
                    (status, &said["code"]),
                    (403, &"deny_ceiling".into()),
                    "{body}: {said}"
                );
                let message = said["message"].as_str().unwrap_or_default();
                assert!(message.contains(words), "{body}: {said}");
                assert!(said["hint"].is_string(), "{body}: {said}");
            }
        }
    }
}

fn a_token_starts_nothing_beyond_the_ceiling(who: Who) {
    let scene = Scene::start(who, "[supervisor.api]\nworkspaces = [\"workspaces\"]\n");
    let (one, two) = (scene.place("one"), scene.place("two"));
    let (link, up) = (scene.place("one/link"), format!("{one}/../../state"));
    let state = scene.supervised.jail.state.display().to_string();
    let capability = |text: &str| json!({"capability": format!("extends: moderate\n{text}")});
    let files = |key: &str, path: &str| {
        capability(&format!("filesystem_config:\n  {key}: [\".\", {path:?}]\n"))
    };
    let server = "mcp: {servers: {files: {command: [x], capability: one.yaml}}}\n";
    let with_server = json!({"capability": format!("extends: moderate\n{server}"), "server_capabilities": {"one.yaml": "extends: permissive\n"}});
    let cases: &[Case<'_>] = &[
        (&one, json!({}), None),
        (&two, json!({"profile": "strict"}), None),
        (
            &one,
            capability("resource_limits: {max_memory_mb: 64}\n"),
            None,
        ),
        ("/", json!({}), Some("is not below")),
        ("/etc", json!({}), Some("is not below")),
        (&link, json!({}), Some("is not below")),
        (&up, json!({}), Some("is not below")),
        (&state, json!({}), Some("is not below")),
        (".", json!({}), Some("is not absolute")),
        (&one, json!({"profile": "permissive"}), Some("")),
        (
            &one,
            files("writable_paths", "/etc"),
            Some("writable_paths: it asks for write /etc (capability:3"),
        ),
        (&one, files("writable_paths", &two), Some("writable_paths")),
        (
            &one,
            files("writable_paths", "/var/lib"),
            Some("writable_paths"),
        ),
        (
            &one,
            files("readable_paths", "~/.ssh"),
            Some("readable_paths"),
        ),
        (
            &one,
            capability("network_egress_rules:\n  - {domain: example.com, ports: [443]}\n"),
            Some("network_egress_rules: it asks for example.com"),
        ),
        (
            &one,
            capability("resource_limits: {max_memory_mb: null}\n"),
            Some("max_memory_mb"),
        ),
        (
            &one,
            capability("resource_limits: {max_processes: 5000}\n"),
            Some("max_processes: it asks for 5000"),
        ),
        (
            &one,
            capability("permissions: [spawn_subprocess, full_env]\n"),
            Some("permissions"),
        ),
        (&one, capability("degraded: true\n"), Some("degraded")),
        (
            &one,
            capability(
                "network_egress_rules:\n  - {domain: example.com, ports: [443]}\nsecrets:\n  - {name: KEY, from: {env: HOME}, domain: example.com}\n",
            ),
            Some("network_egress_rules"),
        ),
        (&one, with_server, Some("")),
    ];
    // What is not valid is refused as that; what is left are all the ways to ask for more.
    let valid: Vec<_> = cases
        .iter()
        .filter(|(_, more, _)| {
            let text = more["capability"].as_str();
            text.is_none_or(|text| belljar_manifest::parse_capability("c", text.as_bytes()).is_ok())
        })
        .cloned()
        .collect();
    assert!(valid.len() >= 18, "{} of {}", valid.len(), cases.len());
    for token in [&scene.operator, &scene.admin] {
        check(&scene, token, &valid);
    }
    // The owner's own agents are the owner's business; to have one work elsewhere is not a token's.
    let id = scene.supervised.agent("own", "while :; do sleep 0.1; done");
    let restart = format!("/v1/agents/{id}/restart");
    let (status, said) = scene.post(
        &scene.operator,
        &restart,
        &json!({"reason": "x", "workdir": "/etc"}),
    );
    assert_eq!(
        (status, &said["code"]),
        (403, &"deny_ceiling".into()),
        "{said}"
    );
    assert_eq!(scene.supervised.view(&id)["phase"], "running");
    let (status, said) = scene.post(&scene.operator, &restart, &json!({"reason": "x"}));
    assert_eq!(status, 200, "{said}");
    // One that is over is not a token's to bring back where it was.
    let id = said["id"].as_str().expect("its id").to_owned();
    scene.supervised.said(&["supervisor", "kill", "own"]);
    scene.supervised.await_phase(&id, "ended");
    let again = format!("/v1/agents/{id}/restart");
    let (status, said) = scene.post(&scene.operator, &again, &json!({"reason": "x"}));
    assert_eq!(
        (status, &said["code"]),
        (403, &"deny_ceiling".into()),
        "{said}"
    );
    let (status, _) = scene.post(&scene.operator, "/v1/reload", &json!({"reason": "x"}));
    assert_eq!(status, 403);
}

fn nothing_of_a_token_s_is_root_s(who: Who) {
    let scene = Scene::start(who, "[supervisor.api]\nworkspaces = [\"workspaces\"]\n");
    let place = scene.place("of-root");
    fs::create_dir(&place).expect("a workspace");
    let body = json!({"name": "a", "command": ["sh", "-c", "echo x > file"], "workdir": place});
    let (status, said) = scene.post(&scene.admin, "/v1/agents", &body);
    assert_eq!(
        (status, &said["code"]),
        (403, &"deny_ceiling".into()),
        "{said}"
    );
    assert!(
        said["message"]
            .as_str()
            .is_some_and(|it| it.contains("is root's")),
        "{said}"
    );
}

fn ceilings_are_what_the_file_says(who: Who) {
    let api = "[supervisor.api]\nworkspaces = [\"workspaces\"]\nceiling = \"operator.yaml\"\nadmin_ceiling = \"admin.yaml\"\n";
    let mut prepared = Supervised::prepare(who, api);
    let said = prepared.belljar(&["supervisor", "validate", &prepared.config()]);
    assert!(said.stderr().contains("operator.yaml"), "{}", said.stderr());
    let base = prepared.jail.base.clone();
    let rule = |domain: &str| {
        format!(
            "extends: moderate\nnetwork_egress_rules:\n  - {{domain: {domain}, ports: [443]}}\n"
        )
    };
    prepared
        .jail
        .put(&base.join("operator.yaml"), &rule("one.example"));
    prepared
        .jail
        .put(&base.join("admin.yaml"), &rule("\"*.example\""));
    let place = base.join("workspaces/one");
    fs::create_dir_all(&place).expect("a workspace");
    chown(&place, Some(Who::User.uid()), Some(Who::User.uid())).ok();
    prepared.start_again();
    let token = |role: &str| {
        let said = prepared.said(&["token", "create", "--role", role]);
        let word = said.split_whitespace().find(|word| word.starts_with("bj_"));
        word.expect("a token").to_owned()
    };
    let (operator, admin) = (token("operator"), token("admin"));
    let scene = Scene {
        supervised: prepared,
        operator,
        admin,
    };
    let one = scene.place("one");
    let asks = |domain: &str| json!({"capability": rule(domain)});
    let most = Some("the ceiling, ");
    check(
        &scene,
        &scene.operator,
        &[
            (&one, asks("one.example"), None),
            (&one, asks("two.example"), most),
        ],
    );
    check(
        &scene,
        &scene.admin,
        &[
            (&one, asks("two.example"), None),
            (&one, asks("other.test"), most),
        ],
    );
}

/// Whoever may say where a secret is reads the host's files, and runs programs on it.
fn a_token_names_no_source_of_secrets_of_its_own(who: Who) {
    let api = "[supervisor.api]\nworkspaces = [\"workspaces\"]\nceiling = \"ceiling.yaml\"\n";
    let mut prepared = Supervised::prepare(who, api);
    let base = prepared.jail.base.clone();
    let marker = base.join("workspaces/one/ran");
    let policy = |sections: &str| {
        format!(
            "extends: moderate\nnetwork_egress_rules:\n  - {{domain: one.example, ports: [443]}}\n{sections}"
        )
    };
    let secret = |from: &str| {
        policy(&format!(
            "secrets:\n  - {{name: key, from: {from}, domain: one.example}}\n"
        ))
    };
    prepared
        .jail
        .put(&base.join("ceiling.yaml"), &secret("{store: key}"));
    let place = base.join("workspaces/one");
    fs::create_dir_all(&place).expect("a workspace");
    chown(&place, Some(Who::User.uid()), Some(Who::User.uid())).ok();
    prepared.start_again();
    let said = prepared.said(&["token", "create", "--role", "admin"]);
    let admin = said.split_whitespace().find(|word| word.starts_with("bj_"));
    let admin = admin.expect("a token").to_owned();
    let kept = ["secret", "set", "key", "--from-file"];
    let file = base.join("key");
    prepared.jail.put(&file, "sk-kept\n");
    let file = file.display().to_string();
    prepared.said(&[&kept[..], &[&file]].concat());
    let scene = Scene {
        supervised: prepared,
        operator: admin.clone(),
        admin,
    };
    let one = scene.place("one");
    let command = format!("{{command: [touch, {}]}}", marker.display());
    let asks = |text: String| json!({"capability": text});
    let refused: Vec<_> = [
        secret(&command),
        secret("{env: HOME}"),
        secret("{file: ~/.ssh/id_ed25519}"),
        secret("{store: other}"),
        policy(&format!(
            "upstream_proxy: {{url: \"http://127.0.0.1:1\", from: {command}}}\n"
        )),
        policy(&format!(
            "mcp: {{servers: {{x: {{url: \"https://one.example/\", bearer: {command}}}}}}}\n"
        )),
    ]
    .map(|text| {
        belljar_manifest::parse_capability("c", text.as_bytes())
            .unwrap_or_else(|error| panic!("{text}: {error}"));
        (one.as_str(), asks(text), Some("the ceiling, "))
    })
    .into();
    check(&scene, &scene.admin, &refused);
    assert!(!marker.exists(), "the command ran");
    // What the owner put there may be asked for.
    check(
        &scene,
        &scene.admin,
        &[(&one, asks(secret("{store: key}")), None)],
    );
}

/// One agent's place lies in another's, which puts something else under its name between two of its lives: that is not where it goes on.
fn a_place_that_is_swapped_between_two_lives_is_none(who: Who) {
    let restart = "restart = { first_seconds = 4, longest_seconds = 4 }\n";
    let api = format!("{restart}[supervisor.api]\nworkspaces = [\"workspaces\"]\n");
    let scene = Scene::start(who, &api);
    let jail = &scene.supervised.jail;
    let (one, inner) = (scene.place("one"), scene.place("one/inner"));
    // What the daemon's own user has, and an agent has no business in.
    let elsewhere = jail.base.join("elsewhere");
    for place in [std::path::Path::new(&inner), &elsewhere] {
        fs::create_dir(place).expect("a directory");
    }
    jail.own(&elsewhere);
    chown(&inner, Some(Who::User.uid()), Some(Who::User.uid())).ok();
    let swap = format!(
        "while [ ! -e inner/was-here ]; do sleep 0.05; done; sleep 1; mv inner old; ln -s {} inner; echo swapped; sleep 600",
        elsewhere.display()
    );
    let agents = [
        ("outer", &one, swap.as_str(), "never"),
        ("inner", &inner, "echo x > was-here", "always"),
    ];
    for (name, place, script, restart) in agents {
        let body = json!({"name": name, "command": ["sh", "-c", script], "workdir": place, "restart": restart});
        let (status, said) = scene.post(&scene.operator, "/v1/agents", &body);
        assert_eq!(status, 201, "{said}");
    }
    let log = ["supervisor", "logs", "outer"];
    support::eventually("the place is swapped", || {
        scene
            .supervised
            .said(&log)
            .contains("swapped")
            .then_some(())
    });
    support::eventually("nobody goes on elsewhere", || {
        let events = scene.supervised.said(&["monitor", "events", "-n", "50"]);
        events.contains("is elsewhere by now").then_some(())
    });
    let left: Vec<_> = fs::read_dir(&elsewhere).expect("it").flatten().collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Where the file says nothing, it is a directory in the state directory, and nothing else of that.
fn without_a_word_there_is_one_workspace(who: Who) {
    let scene = Scene::start(who, "");
    let state = scene.supervised.jail.state.clone();
    let own = state.join("workspaces/mine");
    fs::create_dir_all(&own).expect("a workspace");
    chown(&own, Some(Who::User.uid()), Some(Who::User.uid())).ok();
    let (one, own, keys) = (
        scene.place("one"),
        own.display().to_string(),
        state.join("keys").display().to_string(),
    );
    let cases: &[Case<'_>] = &[
        (&own, json!({}), None),
        (&one, json!({}), Some("is not below")),
        (&keys, json!({}), Some("")),
    ];
    check(&scene, &scene.operator, cases);
}

for_each_user!(
    a_token_starts_nothing_beyond_the_ceiling,
    a_place_that_is_swapped_between_two_lives_is_none,
    ceilings_are_what_the_file_says,
    a_token_names_no_source_of_secrets_of_its_own,
    without_a_word_there_is_one_workspace,
);

mod owned_by_root {
    use super::support::Who;

    #[test]
    fn nothing_of_a_token_s_is_root_s() {
        Who::Root.require();
        super::nothing_of_a_token_s_is_root_s(Who::Root);
    }
}
