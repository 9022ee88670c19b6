//! `belljar reviewer` and `belljar evolve approve … status`: people decide, and what they decided is carried out.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../evolve/tests/common/git.rs"]
mod git;
#[path = "support/judged.rs"]
mod judged;

use git::{git, repository};
use judged::judged;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use belljar_evolve::evidence::Verdict;
use belljar_evolve::proposal::Proposal;
use belljar_evolve::review::totp::{STEP_S, TotpSecret};
use belljar_evolve::store::Store;
use belljar_evolve::{Risk, Status};
use serde_json::Value;
use tempfile::TempDir;

const REFUSED: i32 = 122;

const REQUEST: &str = r#"
description: |
  Keep answers <script>alert(1)</script>
target_files: [agent.py]
modifications:
  - patch: |
      --- a/agent.py
      +++ b/agent.py
      @@ -1,2 +1,2 @@
       def search(word):
      -    return word
      +    return word  # <img src=x onerror=alert(2)>
rollback_plan: go back
"#;

const HEALTH: &str = r#"
import json, os, sys
root = os.environ["BELLJAR_RELEASES"]
for name in sys.argv[1:]:
    link = os.path.join(root, "instances", name)
    print(json.dumps({"instance": name, "version": os.path.basename(os.readlink(link)), "requests": 2000,
                      "errors": 20, "violations": 0, "latency_ms": 5, "cost": 1}))
"#;

struct Place {
    root: TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Self {
            root: tempfile::tempdir().unwrap(),
        };
        let project = place.project();
        std::fs::create_dir_all(&project).unwrap();
        std::fs::create_dir_all(place.state()).unwrap();
        std::fs::write(
            project.join("agent.py"),
            "def search(word):\n    return word\n",
        )
        .unwrap();
        repository(&project);
        for name in ["ada", "bob"] {
            let key = place.key(name);
            place.good(&["reviewer", "add", name, "--key", key.to_str().unwrap()]);
        }
        place
    }

    fn state(&self) -> PathBuf {
        self.root.path().join("state")
    }

    fn project(&self) -> PathBuf {
        self.root.path().join("project")
    }

    fn key(&self, name: &str) -> PathBuf {
        self.root.path().join(format!("{name}.key"))
    }

    fn belljar(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_belljar"))
            .args(arguments)
            .env("BELLJAR_STATE_DIR", self.state())
            .env_remove("BELLJAR_SOCKET")
            .output()
            .unwrap()
    }

    fn good(&self, arguments: &[&str]) -> String {
        let output = self.belljar(arguments);
        assert!(
            output.status.success(),
            "{arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.good(&[arguments, &["--output", "json"]].concat())).unwrap()
    }

    fn refused(&self, arguments: &[&str]) -> String {
        let output = self.belljar(arguments);
        assert_eq!(output.status.code(), Some(REFUSED), "{arguments:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// Stages are asked for, and do not run.
    fn not_judged(&self, id: &str) -> String {
        let output = self.belljar(&["evolve", "check", id]);
        assert!(!output.status.success() && output.stdout.is_empty());
        let why = String::from_utf8(output.stderr).unwrap();
        assert!(why.contains("people have decided"), "{why}");
        why
    }

    /// A proposal with what stages would have found, as the pipeline keeps it.
    fn propose(&self, risk: Risk, verdict: Verdict) -> Proposal {
        self.propose_as("agent:worker-7", risk, verdict)
    }

    fn propose_as(&self, by: &str, risk: Risk, verdict: Verdict) -> Proposal {
        let store = Store::of(&self.state());
        let mut proposal = store
            .propose(&self.project(), "request.yaml", REQUEST.as_bytes(), by)
            .unwrap();
        let outcome = judged(&proposal, risk, verdict);
        store.settle(&mut proposal, &outcome).unwrap();
        proposal
    }

    fn enrol(&self, name: &str) -> TotpSecret {
        let shown = self.good(&["reviewer", "enrol", name]);
        assert!(shown.contains('█'), "there is a picture");
        let secret = shown
            .split("secret=")
            .nth(1)
            .unwrap()
            .split('&')
            .next()
            .unwrap();
        let bytes = base32(secret);
        let secret = TotpSecret::from_bytes(bytes);
        // The code of the step before, so that those after it are free; it is too old when the next step begins meanwhile.
        loop {
            let code = code(&secret, -1);
            let enrolled = self.belljar(&["reviewer", "enrol", name, "--code", &code]);
            if enrolled.status.success() {
                return secret;
            }
            let is_of_now = code == self::code(&secret, -1);
            let said = String::from_utf8_lossy(&enrolled.stderr);
            assert!(!is_of_now, "the code was refused: {said}");
        }
    }

    fn say(&self, what: &str, id: &str, name: &str, more: &[&str]) -> Vec<String> {
        let key = self.key(name).display().to_string();
        let words = ["evolve", what, id, "--as", name, "--key", &key];
        words
            .iter()
            .chain(more)
            .map(|word| (*word).to_owned())
            .collect()
    }
}

fn words(list: &[String]) -> Vec<&str> {
    list.iter().map(String::as_str).collect()
}

fn base32(text: &str) -> [u8; 20] {
    let mut bits = 0u64;
    let mut count = 0;
    let mut bytes = Vec::new();
    for c in text.bytes() {
        let value = match c {
            b'A'..=b'Z' => c - b'A',
            _ => c - b'2' + 26,
        };
        bits = (bits << 5) | u64::from(value);
        count += 5;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    bytes.try_into().unwrap()
}

/// The code of a step beside the present one. A step may end while a test runs: those tests try the next.
fn code(secret: &TotpSecret, beside: i64) -> String {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_secs()
        / STEP_S;
    format!("{:06}", secret.code(now.wrapping_add_signed(beside)))
}

#[test]
fn a_high_risk_is_approved_by_one_rolled_out_and_in_git_with_the_working_tree_untouched() {
    let place = Place::new();
    let proposal = place.propose(Risk::High, Verdict::Pass);
    let id = proposal.id.short();
    let plan = place.root.path().join("rollout.toml");
    let health = place.root.path().join("health.py");
    std::fs::write(&health, HEALTH).unwrap();
    let text = format!(
        "instances = ['a', 'b', 'c', 'd']\nhealth = ['python3', {health:?}, 'a', 'b', 'c', 'd']\n"
    );
    std::fs::write(&plan, text).unwrap();
    let plan = plan.to_str().unwrap();
    let why = place.refused(&["evolve", "deploy", id, "--plan", plan]);
    assert!(why.contains("0 of 1 have approved"), "{why}");

    let review = place.good(&["evolve", "review", id]);
    for part in [
        "return word",
        "How to go back",
        "go back",
        "3-unit",
        "Recommendation",
        "belljar evolve approve",
        "0 of 1",
    ] {
        assert!(review.contains(part), "{part}: {review}");
    }
    place.good(&words(&place.say("approve", id, "ada", &[])));
    let before = (
        git(&place.project(), &["rev-parse", "HEAD"]),
        git(&place.project(), &["status", "--porcelain"]),
    );
    place.good(&["evolve", "deploy", id, "--plan", plan]);
    let status = place.json(&["evolve", "promote", id, "--rounds", "400", "--every", "0"]);
    assert_eq!(status["stage"], "done", "{status}");
    assert_eq!(status["current"], proposal.candidate_tree);
    let released = git(&place.project(), &["show", "belljar/releases:agent.py"]);
    assert!(released.contains("onerror"), "{released}");
    assert_eq!(
        git(&place.project(), &["rev-parse", "belljar/releases^{tree}"]),
        proposal.git_tree
    );
    // What runs is not judged anew: its status and its evidence stay.
    let store = Store::of(&place.state());
    let evidence = store.evidence(&proposal.id).unwrap();
    let why = place.not_judged(id);
    assert!(why.contains("is deployed"), "{why}");
    assert_eq!(store.read(&proposal.id).unwrap().status, Status::Deployed);
    assert_eq!(store.evidence(&proposal.id).unwrap(), evidence);
    // Back again, to the very tree, and in the history too.
    let status = place.json(&["evolve", "rollback", id, "--reason", "second thoughts"]);
    assert_eq!(status["stage"], "rolled back");
    place.not_judged(id);
    assert_eq!(store.read(&proposal.id).unwrap().status, Status::RolledBack);
    assert_eq!(status["current"], proposal.base_tree);
    let current = Path::new(status["releases"].as_str().unwrap()).join("current/agent.py");
    assert_eq!(
        std::fs::read_to_string(current).unwrap(),
        "def search(word):\n    return word\n"
    );
    assert_eq!(
        git(&place.project(), &["show", "belljar/releases:agent.py"]),
        "def search(word):\n    return word"
    );
    let after = (
        git(&place.project(), &["rev-parse", "HEAD"]),
        git(&place.project(), &["status", "--porcelain"]),
    );
    assert_eq!(before, after);
    let again = place.refused(&["evolve", "deploy", id, "--plan", plan]);
    assert!(again.contains("rolled out before"), "{again}");
    let stats = place.json(&["evolve", "stats"]);
    assert_eq!(stats["by_status"]["rolled_back"], 1, "{stats}");
    // All of it is on record, and the record holds.
    place.good(&["audit", "verify"]);
}

/// Approved by ada and run by some of four.
fn deployed(place: &Place) -> Proposal {
    let proposal = place.propose(Risk::High, Verdict::Pass);
    let id = proposal.id.short();
    let plan = place.root.path().join("rollout.toml");
    let health = place.root.path().join("health.py");
    std::fs::write(&health, HEALTH).unwrap();
    let text = format!(
        "instances = ['a', 'b', 'c', 'd']\nhealth = ['python3', {health:?}, 'a', 'b', 'c', 'd']\n"
    );
    std::fs::write(&plan, text).unwrap();
    place.good(&words(&place.say("approve", id, "ada", &[])));
    place.good(&["evolve", "deploy", id, "--plan", plan.to_str().unwrap()]);
    let status = place.json(&["evolve", "status", id]);
    assert!(
        !status["on_candidate"].as_array().unwrap().is_empty(),
        "{status}"
    );
    proposal
}

#[test]
fn what_is_rejected_late_or_whose_approver_is_revoked_goes_back_by_itself() {
    let place = Place::new();
    let id = deployed(&place).id;
    let no = ["--reason", "security", "--message", "it leaks"];
    let told = place.good(&words(&place.say("reject", id.short(), "bob", &no)));
    assert!(
        told.contains("rolled back") && told.contains("it leaks"),
        "{told}"
    );
    let status = place.json(&["evolve", "status", id.short()]);
    assert_eq!(status["stage"], "rolled back");
    assert_eq!(status["why_back"], "bob rejected it (security): it leaks");
    // A script that promotes is told, too.
    let promoted = place.belljar(&["evolve", "promote", id.short()]);
    assert_eq!(promoted.status.code(), Some(1));
    let said = String::from_utf8_lossy(&promoted.stdout);
    assert!(said.contains("bob rejected it"), "{said}");
    // Who proposed it reads both.
    let proposal = Store::of(&place.state()).read(&id).unwrap();
    assert_eq!(proposal.status, Status::RolledBack);
    let codes: Vec<&str> = proposal
        .reasons
        .iter()
        .map(|one| one.code.as_str())
        .collect();
    assert!(
        codes.ends_with(&["review_security", "rolled_back"]),
        "{codes:?}"
    );
    let log = place.good(&["audit", "show"]);
    assert!(log.contains("bob rejected it"), "{log}");

    // Nobody says anything: whoever looks next takes it back, and says so.
    for look in ["status", "promote"] {
        let place = Place::new();
        let proposal = deployed(&place);
        place.good(&["reviewer", "revoke", "ada"]);
        let words = ["evolve", look, proposal.id.short(), "--output", "json"];
        let output = place.belljar(&words);
        assert_eq!(
            output.status.code(),
            Some(i32::from(look == "promote")),
            "{look}"
        );
        let status: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(status["stage"], "rolled back", "{look}");
        assert_eq!(status["why_back"], "ada, who approved it, was revoked");
        let releases = PathBuf::from(status["releases"].as_str().unwrap());
        for name in ["a", "b", "c", "d"] {
            let link = std::fs::read_link(releases.join("instances").join(name)).unwrap();
            assert!(link.ends_with(&proposal.base_tree), "{name}: {link:?}");
        }
        place.good(&["audit", "verify"]);
    }
}

#[test]
fn a_critical_risk_needs_two_people_and_fresh_codes() {
    let place = Place::new();
    let proposal = place.propose(Risk::Critical, Verdict::Pass);
    let id = proposal.id.short();
    let why = place.refused(&words(&place.say("approve", id, "ada", &[])));
    assert!(why.contains("second factor"), "{why}");
    for (name, state) in [("ada", "waiting"), ("bob", "approved")] {
        let secret = place.enrol(name);
        // The step of now may be over by now; the one after it can't have been used either.
        let codes = [code(&secret, 0), code(&secret, 1)];
        let mut said = None;
        for code in &codes {
            let asked = place.say("approve", id, name, &["--code", code, "--output", "json"]);
            let output = place.belljar(&words(&asked));
            if output.status.success() {
                said = Some((
                    code.clone(),
                    serde_json::from_slice::<Value>(&output.stdout).unwrap(),
                ));
                break;
            }
        }
        let (used, told) = said.expect("a fresh code counts");
        assert_eq!(told["standing"]["state"], state, "{told}");
        let why = place.refused(&words(&place.say("approve", id, name, &["--code", &used])));
        assert!(why.contains("used already"), "{why}");
    }
}

#[test]
fn what_did_not_pass_or_was_changed_since_is_not_approved() {
    let place = Place::new();
    let failed = place.propose(Risk::High, Verdict::Fail);
    let why = place.refused(&words(&place.say("approve", failed.id.short(), "ada", &[])));
    assert!(why.contains("3-unit"), "{why}");

    let place = Place::new();
    let proposal = place.propose(Risk::High, Verdict::Pass);
    let id = proposal.id.short();
    place.good(&words(&place.say("approve", id, "ada", &[])));
    let directory = Store::of(&place.state()).directory(&proposal.id);
    // Other evidence than the one that was looked at.
    let evidence = directory.join("evidence.json");
    let text = std::fs::read_to_string(&evidence).unwrap();
    std::fs::write(
        &evidence,
        text.replace("\"duration_ms\": 12", "\"duration_ms\": 13"),
    )
    .unwrap();
    let told = place.json(&["evolve", "review", id]);
    assert_eq!(told["standing"]["state"], "waiting", "{told}");
    assert!(
        told["standing"]["void"].to_string().contains("evidence"),
        "{told}"
    );
    // Another tree.
    let trees = directory.join("trees");
    let text = String::from_utf8(std::fs::read(&trees).unwrap()).unwrap();
    std::fs::write(&trees, text.replace("alert(2)", "alert(3)")).unwrap();
    let why = place.refused(&words(&place.say("approve", id, "bob", &[])));
    assert!(why.contains("tree after"), "{why}");
}

#[test]
fn evidence_is_about_the_proposal_that_it_lies_beside() {
    let place = Place::new();
    let proposal = place.propose(Risk::High, Verdict::Pass);
    let other = place.propose_as("agent:worker-8", Risk::High, Verdict::Pass);
    assert_ne!(proposal.id, other.id);
    let id = proposal.id.short();
    let file = |id| {
        Store::of(&place.state())
            .directory(id)
            .join("evidence.json")
    };
    let approve = place.say("approve", id, "ada", &[]);
    let own = std::fs::read_to_string(file(&proposal.id)).unwrap();
    let mut nothing: Value = serde_json::from_str(&own).unwrap();
    nothing[0]["subject"] = serde_json::json!([]);
    for forged in [
        // Another proposal's, of the same tree; of another tree; about nothing; some of it.
        std::fs::read_to_string(file(&other.id)).unwrap(),
        own.replace(&proposal.candidate_tree, &proposal.base_tree),
        nothing.to_string(),
        "[]".to_owned(),
    ] {
        std::fs::write(file(&proposal.id), &forged).unwrap();
        for command in [words(&approve), vec!["evolve", "review", id]] {
            let why = place.refused(&command);
            let known = ["is not about it", "have not run"];
            assert!(known.iter().any(|part| why.contains(part)), "{why}");
        }
    }
    std::fs::write(file(&proposal.id), own).unwrap();
    place.good(&["evolve", "review", id]);
}

#[test]
fn revoking_a_reviewer_voids_what_they_approved_and_rejecting_says_why() {
    let place = Place::new();
    let proposal = place.propose(Risk::High, Verdict::Pass);
    let id = proposal.id.short();
    place.good(&words(&place.say("approve", id, "ada", &[])));
    assert_eq!(
        place.json(&["evolve", "review", id])["standing"]["state"],
        "approved"
    );
    place.good(&["reviewer", "revoke", "ada"]);
    assert_eq!(
        place.json(&["evolve", "review", id])["standing"]["state"],
        "waiting"
    );
    place.refused(&words(&place.say("approve", id, "ada", &[])));
    let no = [
        "--reason",
        "tests",
        "--reason",
        "scope",
        "--message",
        "no test of it",
    ];
    place.good(&words(&place.say("reject", id, "bob", &no)));
    let read = Store::of(&place.state()).read(&proposal.id).unwrap();
    let codes: Vec<&str> = read
        .reasons
        .iter()
        .map(|reason| reason.code.as_str())
        .collect();
    assert_eq!(codes, ["review_tests", "review_scope"], "the agent is told");
    // Stages do not overrule people.
    place.not_judged(id);
    let read = Store::of(&place.state()).read(&proposal.id).unwrap();
    assert_eq!(read.status, Status::Rejected);
    assert_eq!(place.json(&["evolve", "stats"])["rejected_for"]["tests"], 1);
}

#[test]
fn nobody_approves_what_they_proposed_themselves() {
    let place = Place::new();
    let proposal = place.propose_as("operator:Ada", Risk::Medium, Verdict::Pass);
    let id = proposal.id.short();
    let why = place.refused(&words(&place.say("approve", id, "ada", &[])));
    assert!(why.contains("nobody approves what they proposed"), "{why}");
    place.good(&words(&place.say("approve", id, "bob", &[])));
}

#[test]
fn whoever_proposes_without_a_name_needs_one_more_to_agree() {
    let place = Place::new();
    let proposal = place.propose_as("user:1000", Risk::Medium, Verdict::Pass);
    let id = proposal.id.short();
    let first = place.good(&words(&place.say("approve", id, "ada", &[])));
    assert!(first.contains('2'), "it says how many are needed: {first}");
    let status = |id: &str| {
        let shown = place.good(&["evolve", "list", "--output", "json"]);
        let listed: serde_json::Value = serde_json::from_str(&shown).unwrap();
        let all = listed.as_array().cloned().unwrap_or_default();
        let found = all
            .into_iter()
            .find(|one| one["id"].as_str().unwrap().starts_with(id));
        found.unwrap()["status"].clone()
    };
    assert_eq!(status(id), "waiting");
    place.good(&words(&place.say("approve", id, "bob", &[])));
    assert_eq!(status(id), "approved");
}

#[test]
fn the_page_shows_what_an_agent_wrote_and_runs_nothing_of_it() {
    let place = Place::new();
    let proposal = place.propose(Risk::High, Verdict::Pass);
    let page = place.good(&["evolve", "report", proposal.id.short(), "--html", "-"]);
    assert!(
        page.contains("&lt;script&gt;") && page.contains("&lt;img"),
        "{page}"
    );
    assert!(
        !page.contains("<script") && !page.contains("<img") && !page.contains("http://"),
        "{page}"
    );
}

#[test]
fn in_a_box_nobody_reviews() {
    let place = Place::new();
    let output = Command::new(env!("CARGO_BIN_EXE_belljar"))
        .args(["evolve", "stats"])
        .env("BELLJAR_STATE_DIR", place.state())
        .env("BELLJAR_SOCKET", "/belljar/agent.sock")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(121));
}
