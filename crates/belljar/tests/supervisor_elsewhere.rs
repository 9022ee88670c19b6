//! A supervisor that is reached by its web server, by the commands that reach one here: with TLS, certificates on both sides, and
//! a token. Whoever asks has a state directory of their own.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use support::{Finished, Supervised, Who, finish, for_each_user_in_a_world};

/// An authority, and certificates for a server at 127.0.0.1 and for a person, made by openssl.
fn make_certificates(place: &Path) {
    let openssl = |words: &str| {
        let mut command = Command::new("openssl");
        command.args(words.split(' ')).current_dir(place);
        let done = command.output().expect("openssl");
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.success(), "openssl {words}: {said}");
    };
    let new = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2";
    openssl(&format!(
        "{new} -keyout ca.key -out ca.pem -subj /CN=authority"
    ));
    for (name, also) in [
        ("server", " -addext subjectAltName=IP:127.0.0.1"),
        ("person", ""),
    ] {
        openssl(&format!(
            "{new} -keyout {name}.key -out {name}.pem -subj /CN={name} -CA ca.pem -CAkey ca.key \
             -addext basicConstraints=critical,CA:FALSE{also}"
        ));
    }
}

/// Somebody with a supervisor elsewhere.
struct Person<'s> {
    supervised: &'s Supervised,
    state: PathBuf,
    variables: Vec<(&'static str, String)>,
}

impl Person<'_> {
    fn belljar(&self, words: &[&str]) -> Finished {
        let mut command = self.supervised.jail.belljar(words);
        command.env("BELLJAR_STATE_DIR", &self.state);
        for (name, value) in &self.variables {
            command.env(name, value);
        }
        finish(command.spawn().expect("start belljar"))
    }

    fn without(&self, name: &str) -> Self {
        let others = self.variables.iter().filter(|(known, _)| *known != name);
        Self {
            supervised: self.supervised,
            state: self.state.clone(),
            variables: others.cloned().collect(),
        }
    }

    fn with(&self, name: &'static str, value: &str) -> Self {
        let mut changed = self.without(name);
        changed.variables.push((name, value.to_owned()));
        changed
    }

    #[track_caller]
    fn is_refused(&self, words: &[&str], because: &str) {
        let said = self.belljar(words);
        assert_ne!(said.status.code(), Some(0), "{}", said.stdout());
        assert!(said.stderr().contains(because), "{}", said.stderr());
    }
}

fn a_supervisor_elsewhere_is_asked_like_one_here(who: Who) {
    let mut supervised = Supervised::prepare(who, "");
    let place = supervised.jail.base.join("tls");
    supervised
        .jail
        .put(&place.join("about"), "certificates of a test");
    make_certificates(&place);
    // Whoever runs the supervisor, what a token starts is an ordinary user's.
    std::os::unix::fs::chown(&supervised.jail.work, Some(Who::User.uid()), None).ok();
    supervised.jail.own(&place);
    let file = |name: &str| place.join(name).display().to_string();
    let config = format!(
        "[supervisor]\nmax_agents = 9\nstop_grace_seconds = 1\n[supervisor.web]\ncertificate = {:?}\nkey = {:?}\nclient_ca = {:?}\n[supervisor.api]\nworkspaces = [{:?}]\n",
        file("server.pem"),
        file("server.key"),
        file("ca.pem"),
        supervised.jail.home.display().to_string(),
    );
    let path = supervised.jail.base.join("supervisor.toml");
    supervised.jail.put(&path, &config);
    supervised.start_again();
    let output = supervised.output();
    let (_, address) = output
        .split_once("dashboard at https://")
        .expect("an address");
    let address = address.split_whitespace().next().expect("an address");
    let token = |role: &str| {
        let said = supervised.said(&["token", "create", "--role", role, "--name", role]);
        let word = said.split_whitespace().find(|word| word.starts_with("bj_"));
        word.expect("a token").to_owned()
    };
    let (operator, viewer) = (token("operator"), token("viewer"));
    let person = Person {
        supervised: &supervised,
        state: supervised.jail.home.join("other-state"),
        variables: vec![
            ("BELLJAR_SUPERVISOR", format!("https://{address}")),
            ("BELLJAR_TOKEN", operator),
            ("BELLJAR_CA", file("ca.pem")),
            ("BELLJAR_CLIENT_CERT", file("person.pem")),
            ("BELLJAR_CLIENT_KEY", file("person.key")),
        ],
    };
    let ask = |words: &[&str]| {
        let said = person.belljar(words);
        assert_eq!(said.status.code(), Some(0), "{words:?}: {}", said.stderr());
        said.stdout()
    };

    let script = "echo hello; while :; do sleep 0.1; done";
    ask(&["sandbox", "--name", "far", "--", "/bin/sh", "-c", script]);
    let status: Value =
        serde_json::from_str(&ask(&["supervisor", "status", "--output", "json"])).expect("JSON");
    assert_eq!(status["agents"][0]["name"], "far", "{status}");
    ask(&["supervisor", "quarantine", "far"]);
    ask(&["supervisor", "release", "far"]);
    assert!(ask(&["monitor", "events"]).contains("far"));
    assert!(ask(&["replication", "tree"]).contains("running"));

    // By a name, by what `status` prints of an id, and by the whole of it; and what is none of these is an error.
    let id = status["agents"][0]["id"]
        .as_str()
        .expect("an id")
        .to_owned();
    for given in ["far", &id[..12], &id] {
        assert!(ask(&["monitor", "events", "--agent-id", given]).contains("far started"));
        ask(&["monitor", "metrics", "--agent-id", given]);
        ask(&["monitor", "alerts", "--agent-id", given]);
        assert!(ask(&["inspect", given]).contains("far"));
        assert!(ask(&["supervisor", "logs", given, "--tail", "1"]).contains("hello"));
    }
    for command in ["metrics", "events", "alerts"] {
        for nonsense in ["nobody", "ffffffffffffffffffffffffffffffff"] {
            person.is_refused(
                &["monitor", command, "--agent-id", nonsense],
                "no agent is called",
            );
        }
    }
    assert_eq!(ask(&["mcp", "holds"]), "");
    let status = person.belljar(&["replication", "kill-switch", "status"]);
    assert_eq!(status.stdout(), "not engaged\n");

    // What this machine's state directory holds is nobody's answer about that one.
    for words in [
        &["audit", "verify"][..],
        &["audit", "show"],
        &["audit", "tail"],
        &["monitor", "audit", "--export", "-"],
        &["token", "list"],
        &["keys", "list"],
        &["ps"],
        &["evolve", "list"],
        &["reviewer", "list"],
        &["diff", "far"],
        &["discard", "far"],
        &["image", "list"],
        &["mcp", "diff"],
        &["doctor"],
    ] {
        person.is_refused(words, "is about this machine");
    }

    // Who did what is on record there, by name.
    ask(&[
        "monitor", "silence", "--agent", "far*", "--for", "1h", "--reason", "a drill",
    ]);
    assert!(ask(&["monitor", "silences"]).contains("a drill"));
    assert!(
        supervised
            .said(&["audit", "show", "--log", "fleet"])
            .contains("silence_alerts")
    );

    let look = ["supervisor", "status"];
    person
        .without("BELLJAR_TOKEN")
        .is_refused(&look, "wants a token");
    person
        .with("BELLJAR_TOKEN", "bj_no")
        .is_refused(&look, "unauthenticated");
    person
        .without("BELLJAR_CA")
        .is_refused(&look, "nobody answers");
    person.without("BELLJAR_CLIENT_CERT").is_refused(&look, "");
    let plain = format!("http://{address}");
    person
        .with("BELLJAR_SUPERVISOR", &plain)
        .is_refused(&look, "");
    person
        .with("BELLJAR_SUPERVISOR", "http://192.0.2.1:8080")
        .is_refused(&look, "would not be encrypted");
    person
        .with("BELLJAR_SUPERVISOR", "ftp://127.0.0.1")
        .is_refused(&look, "is no address");
    person
        .with("BELLJAR_TOKEN", &viewer)
        .is_refused(&["supervisor", "kill-all"], "deny_role");

    // The switch that is meant is the one there.
    ask(&["supervisor", "kill-all"]);
    assert!(
        supervised
            .agents()
            .iter()
            .all(|agent| agent["phase"] == "ended")
    );
    let engaged = person.belljar(&["replication", "kill-switch", "status"]);
    assert_eq!(engaged.status.code(), Some(1), "{}", engaged.stdout());
    let here = person.without("BELLJAR_SUPERVISOR");
    std::fs::create_dir(&person.state).expect("a state directory of their own");
    supervised.jail.own(&person.state);
    let engaged = here.belljar(&["replication", "kill-switch", "status"]);
    assert_eq!(engaged.status.code(), Some(0), "{}", engaged.stdout());
}

for_each_user_in_a_world!(a_supervisor_elsewhere_is_asked_like_one_here);
