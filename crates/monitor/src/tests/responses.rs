use super::*;
use crate::testing::{agent, event, id};
use crate::{CouldNot, Hands as Lent};
use belljar_api::{AgentId, AlertKind, EventKind, Response, Severity};
use std::io::Read as _;

/// Hands that write down what they are told to do.
#[derive(Default)]
struct Written {
    deeds: Mutex<Vec<String>>,
    fail: bool,
}

impl Written {
    fn note(&self, deed: &str, agent: &AgentId) -> Result<(), CouldNot> {
        self.deeds.lock().unwrap().push(format!("{deed} {agent}"));
        match self.fail {
            true => Err(CouldNot("it is made of stone".to_owned())),
            false => Ok(()),
        }
    }

    fn deeds(&self) -> Vec<String> {
        self.deeds.lock().unwrap().clone()
    }
}

impl Lent for Written {
    fn freeze(&self, agent: &AgentId, _: &str) -> Result<(), CouldNot> {
        self.note("freeze", agent)
    }
    fn thaw(&self, agent: &AgentId, _: &str) -> Result<(), CouldNot> {
        self.note("thaw", agent)
    }
    fn quarantine(&self, agent: &AgentId, _: &str) -> Result<(), CouldNot> {
        self.note("quarantine", agent)
    }
    fn kill(&self, agent: &AgentId, _: &str) -> Result<(), CouldNot> {
        self.note("kill", agent)
    }
    fn kill_subtree(&self, agent: &AgentId, _: &str) -> Result<(), CouldNot> {
        self.note("kill_subtree", agent)
    }
    fn evidence(&self, agent: &AgentId) -> Vec<(String, Vec<u8>)> {
        let _ = self.note("evidence", agent);
        vec![
            ("policy.yaml".into(), b"version: 1\n".to_vec()),
            ("processes.json".into(), b"[]".to_vec()),
        ]
    }
}

fn settings(kind: AlertKind, respond: &[Response]) -> Settings {
    let mut settings = Settings::default();
    let rule = settings
        .alerts
        .rules
        .iter_mut()
        .find(|rule| rule.kind == kind)
        .unwrap();
    rule.respond = respond.to_vec();
    settings
}

fn monitor(directory: &Path, settings: Settings, hands: Written) -> (Monitor, Arc<Written>) {
    let monitor = Hands::at(BEGIN).open(directory, settings).unwrap();
    let hands = Arc::new(hands);
    monitor.lend_hands(Arc::clone(&hands) as Arc<dyn Lent>);
    (monitor, hands)
}

fn mount(monitor: &Monitor) {
    monitor.happened(event(Some("a"), EventKind::SystemCallRefused, "mount"));
}

fn bundles(directory: &Path) -> Vec<std::path::PathBuf> {
    let all = std::fs::read_dir(directory.join("incidents"));
    all.map(|all| all.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_default()
}

#[test]
fn a_rule_freezes_once_and_lets_go_when_the_alert_is_resolved() {
    let directory = tempfile::tempdir().unwrap();
    let (monitor, hands) = monitor(
        directory.path(),
        settings(AlertKind::PrivilegeEscalation, &[Response::Freeze]),
        Written::default(),
    );
    mount(&monitor);
    mount(&monitor);
    until("it is frozen", || {
        !alerts(&monitor, "")[0].responses.is_empty()
    });
    assert_eq!(hands.deeds(), ["freeze a"]);
    let alert = &alerts(&monitor, "")[0];
    assert_eq!(
        (
            alert.count,
            alert.responses[0].response,
            alert.responses[0].failed.clone()
        ),
        (2, Response::Freeze, None)
    );
    ask(
        &monitor,
        "POST",
        "/v1/alerts/1/acknowledge",
        r#"{"reason": "looking"}"#,
    );
    assert_eq!(hands.deeds(), ["freeze a"]);
    ask(
        &monitor,
        "POST",
        "/v1/alerts/1/resolve",
        r#"{"reason": "fine"}"#,
    );
    until("it goes on", || hands.deeds() == ["freeze a", "thaw a"]);
    until("it is told", || {
        codes(&monitor).contains(&"thaw".to_owned())
    });
}

#[test]
fn a_silence_disarms_no_rule() {
    let directory = tempfile::tempdir().unwrap();
    let respond = [Response::Notify, Response::Freeze];
    let mut settings = settings(AlertKind::PrivilegeEscalation, &respond);
    settings.alerts.notify.command = vec!["/bin/true".into()];
    let (monitor, hands) = monitor(directory.path(), settings, Written::default());
    let body = r#"{"agent": "a", "for_ms": 60000, "reason": "a drill"}"#;
    ask(&monitor, "POST", "/v1/silences", body);
    mount(&monitor);
    let taken = |agent: &str, response: Response| {
        let all = alerts(&monitor, "").into_iter();
        let mut all = all.filter(|alert| alert.agent == Some(id(agent)));
        let responses = all.next().map(|alert| alert.responses).unwrap_or_default();
        responses.iter().any(|taken| taken.response == response)
    };
    until("it is frozen all the same", || taken("a", Response::Freeze));
    assert_eq!(hands.deeds(), ["freeze a"]);
    // People are told in turn: once they were told of a later one, they were not told of this one.
    monitor.happened(event(Some("b"), EventKind::SystemCallRefused, "mount"));
    until("they are told of others", || taken("b", Response::Notify));
    assert!(!taken("a", Response::Notify));
    ask(
        &monitor,
        "POST",
        "/v1/silences/1/end",
        r#"{"reason": "over"}"#,
    );
    until("and of this one in the end", || {
        taken("a", Response::Notify)
    });
}

#[test]
fn an_agent_goes_on_when_the_last_alert_that_froze_it_is_resolved() {
    let directory = tempfile::tempdir().unwrap();
    let mut settings = settings(AlertKind::PrivilegeEscalation, &[Response::Freeze]);
    settings
        .alerts
        .rules
        .iter_mut()
        .find(|rule| rule.kind == AlertKind::UnauthorizedAccess)
        .unwrap()
        .respond = vec![Response::Freeze];
    let (monitor, hands) = monitor(directory.path(), settings, Written::default());
    mount(&monitor);
    monitor.happened(event(Some("a"), EventKind::SystemCallRefused, "kcmp"));
    until("both are answered", || {
        alerts(&monitor, "")
            .iter()
            .all(|alert| alert.responses.len() == 1)
    });
    ask(
        &monitor,
        "POST",
        "/v1/alerts/1/resolve",
        r#"{"reason": "fine"}"#,
    );
    ask(
        &monitor,
        "POST",
        "/v1/alerts/2/resolve",
        r#"{"reason": "fine"}"#,
    );
    until("it goes on", || {
        hands.deeds().contains(&"thaw a".to_owned())
    });
    drop(monitor);
    let thaws = hands
        .deeds()
        .iter()
        .filter(|deed| *deed == "thaw a")
        .count();
    assert!(thaws >= 1);
    assert_eq!(&hands.deeds()[..2], ["freeze a", "freeze a"]);
}

#[test]
fn a_kill_by_rule_freezes_first_keeps_the_evidence_and_is_on_record() {
    let directory = tempfile::tempdir().unwrap();
    let (monitor, hands) = monitor(
        directory.path(),
        settings(AlertKind::PrivilegeEscalation, &[Response::KillSubtree]),
        Written::default(),
    );
    monitor.sampled(&agent("a"));
    mount(&monitor);
    until("it is answered", || {
        alerts(&monitor, "")
            .iter()
            .any(|alert| !alert.responses.is_empty())
    });
    assert_eq!(hands.deeds(), ["freeze a", "evidence a", "kill_subtree a"]);
    // The daemon's own event about it makes no second bundle.
    monitor.happened(event(Some("a"), EventKind::Killed, "by rule"));
    until("it is told", || {
        codes(&monitor).contains(&"kill_subtree".to_owned())
    });
    let told = &events(&monitor, "?kind=responded&search=incident+bundle")[0];
    drop(monitor);
    let all = bundles(directory.path());
    assert_eq!(all.len(), 1);
    assert!(
        told.text
            .as_str()
            .contains(all[0].file_name().unwrap().to_str().unwrap())
    );
    let mut names = Vec::new();
    for entry in tar::Archive::new(std::fs::File::open(&all[0]).unwrap())
        .entries()
        .unwrap()
    {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().display().to_string();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        match name.as_str() {
            "events.json" => assert!(text.contains("mount"), "{text}"),
            "alerts.json" => assert!(text.contains("PrivilegeEscalation"), "{text}"),
            _ => {}
        }
        names.push(name);
    }
    assert_eq!(
        names,
        [
            "MANIFEST.json",
            "events.json",
            "samples.json",
            "alerts.json",
            "policy.yaml",
            "processes.json"
        ]
    );
}

#[test]
fn a_persons_quarantine_makes_a_bundle_too() {
    let directory = tempfile::tempdir().unwrap();
    let (monitor, hands) = monitor(directory.path(), Settings::default(), Written::default());
    monitor.happened(event(Some("a"), EventKind::Quarantined, "by ada"));
    until("there is a bundle", || bundles(directory.path()).len() == 1);
    assert_eq!(hands.deeds(), ["evidence a"]);
    // Asked for beforehand, as before a kill, it is there when the call returns.
    let path = monitor
        .keep_evidence(&id("b"), "about to be killed")
        .unwrap();
    assert!(path.exists());
    assert_eq!(monitor.keep_evidence(&id("b"), "again"), None);
}

#[test]
fn a_response_that_fails_is_told_and_stands_in_the_alert() {
    let directory = tempfile::tempdir().unwrap();
    let stone = Written {
        fail: true,
        ..Written::default()
    };
    let (monitor, hands) = monitor(
        directory.path(),
        settings(
            AlertKind::PrivilegeEscalation,
            &[Response::Quarantine, Response::Kill],
        ),
        stone,
    );
    mount(&monitor);
    until("both are answered", || {
        alerts(&monitor, "")
            .iter()
            .any(|alert| alert.responses.len() == 2)
    });
    let alert = &alerts(&monitor, "?agent=a")[0];
    assert!(
        alert.responses.iter().all(|taken| taken
            .failed
            .as_ref()
            .is_some_and(|why| why.as_str().contains("stone"))),
        "{alert:?}"
    );
    until("both are told", || {
        let told = events(&monitor, "?kind=responded&severity=critical");
        told.iter()
            .filter(|event| event.severity == Severity::Critical)
            .count()
            >= 2
    });
    // One that can't be quarantined is killed all the same.
    assert!(hands.deeds().contains(&"kill a".to_owned()));
}

#[test]
fn without_hands_a_rule_that_needs_them_fails_and_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let monitor = Hands::at(BEGIN)
        .open(
            directory.path(),
            settings(AlertKind::PrivilegeEscalation, &[Response::Kill]),
        )
        .unwrap();
    mount(&monitor);
    until("it is answered", || {
        alerts(&monitor, "")
            .iter()
            .any(|alert| !alert.responses.is_empty())
    });
    assert!(alerts(&monitor, "")[0].responses[0].failed.is_some());
}

#[test]
fn alerts_are_told_to_the_webhook_syslog_and_the_command() {
    let directory = tempfile::tempdir().unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let log = std::os::unix::net::UnixDatagram::bind(directory.path().join("log")).unwrap();
    log.set_read_timeout(Some(LONG)).unwrap();
    let out = directory.path().join("out");
    let mut settings = Settings::default();
    settings.alerts.notify.webhook = Some(format!("http://{}/", listener.local_addr().unwrap()));
    settings.alerts.notify.syslog = Some(directory.path().join("log"));
    settings.alerts.notify.command = ["/bin/sh", "-c", "cat > \"$0\"", out.to_str().unwrap()]
        .map(str::to_owned)
        .to_vec();
    let server = std::thread::spawn(move || {
        use std::io::Write as _;
        // The first attempt fails: it is tried again.
        drop(listener.accept().unwrap());
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = Vec::new();
        let mut piece = [0; 4096];
        let is_whole = |request: &[u8]| {
            let text = String::from_utf8_lossy(request);
            let body = text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
            body.is_some_and(|body| serde_json::from_str::<serde_json::Value>(&body).is_ok())
        };
        while !is_whole(&request) {
            match stream.read(&mut piece).unwrap() {
                0 => break,
                count => request.extend_from_slice(&piece[..count]),
            }
        }
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            .unwrap();
        String::from_utf8(request).unwrap()
    });
    let monitor = Hands::at(BEGIN)
        .open(&directory.path().join("state"), settings)
        .unwrap();
    mount(&monitor);
    let request = server.join().unwrap();
    let body: serde_json::Value =
        serde_json::from_str(request.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    assert_eq!(body["alert"]["kind"], "PrivilegeEscalation");
    let mut buffer = [0; 2048];
    let count = log.recv(&mut buffer).unwrap();
    assert!(String::from_utf8_lossy(&buffer[..count]).contains("PrivilegeEscalation"));
    until("it is on record", || {
        alerts(&monitor, "")
            .iter()
            .any(|alert| !alert.responses.is_empty())
    });
    assert_eq!(alerts(&monitor, "")[0].responses[0].failed, None);
    let told: serde_json::Value = serde_json::from_slice(&std::fs::read(out).unwrap()).unwrap();
    assert_eq!(told["alert"]["agent"], "a");
}
