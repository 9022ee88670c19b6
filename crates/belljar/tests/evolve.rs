//! `belljar evolve` with the real binary: what an agent proposes from inside its box is judged outside, in its name, and it hears
//! what became of it.

mod support;

use serde_json::Value;
use support::{Family, Finished, Jail, Who, finish, for_each_user, plain_jail};

const RULES: &str = "[tests]\nfiles = []\n[[cases]]\nname = \"adds\"\ncommand = [\"/usr/bin/python3\", \"-c\", \"import sys; sys.path.append('.'); import agent; print(agent.add(2))\"]\nexpect = \"3\"\n";
const AGENT: &str = "def add(n):\n    return n + 1\n";

fn request(body: &str) -> String {
    format!(
        "description: add otherwise\ntarget_files: [agent.py]\nrollback_plan: the tree before\nrisk: low\nmodifications:\n  - replace_body: {{file: agent.py, function: add, body: {body}}}\n"
    )
}

fn project(jail: &Jail) -> String {
    let place = jail.base.join("project");
    jail.put(&place.join("evolve.toml"), RULES);
    jail.put(&place.join("agent.py"), AGENT);
    place.to_string_lossy().into_owned()
}

/// Proposals stay, and so may boxes.
fn belljar_in(jail: &Jail, words: &[&str]) -> Finished {
    finish(jail.belljar(words).spawn().expect("start belljar"))
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn a_proposal_is_judged_listed_and_shown(who: Who) {
    let jail = plain_jail(who);
    let project = project(&jail);
    let file = jail.base.join("request.yaml");
    jail.put(&file, &request("return 1 + n"));
    let file = file.to_string_lossy().into_owned();
    let done = belljar_in(&jail, &["evolve", "propose", "--project", &project, &file]);
    assert_eq!(done.code(), 0, "{}", done.stderr());
    let id = done.stdout().trim().to_owned();
    assert_eq!(id.len(), 64);
    let shown = belljar_in(&jail, &["evolve", "show", &id[..8], "--output", "json"]);
    let shown = json(&shown.stdout());
    assert_eq!(shown["proposal"]["status"], "waiting");
    // Its author says low.
    assert_eq!(shown["proposal"]["risk"], "high");
    assert!(
        shown["diff"]
            .as_str()
            .expect("a diff")
            .contains("+    return 1 + n")
    );
    // The record has what each stage found, and is whole.
    let record = belljar_in(&jail, &["audit", "verify"]);
    assert_eq!(record.code(), 0, "{}", record.stderr());

    jail.put(&jail.base.join("request.yaml"), &request("return 3 + n"));
    let done = belljar_in(&jail, &["evolve", "propose", "--project", &project, &file]);
    assert_eq!(done.code(), 1, "{}", done.stderr());
    let listed = belljar_in(&jail, &["evolve", "list", "--output", "json"]);
    assert_eq!(json(&listed.stdout()).as_array().expect("a list").len(), 2);
    jail.put(
        &jail.base.join("request.yaml"),
        &request("return 1 + n").replace("function: add", "function: sub"),
    );
    let done = belljar_in(&jail, &["evolve", "propose", "--project", &project, &file]);
    assert_eq!(done.code(), 121, "{}", done.stderr());
}

fn an_agent_proposes_and_hears_what_became_of_it(who: Who) {
    let family = Family::start(who, "max_depth: 1\nmax_replicas: 2\n");
    let project = project(&family.jail);
    for (name, body) in [("good", "return 1 + n"), ("bad", "return 3 + n")] {
        family
            .jail
            .put(&family.jail.work.join(name), &request(body));
    }
    let propose = |file: &str| {
        let path = family.jail.work.join(file).display().to_string();
        let kept = family
            .agent("root", &format!("propose {path}"))
            .expect("it is kept");
        kept["name"].as_str().expect("a name").to_owned()
    };
    let (good, bad) = (propose("good"), propose("bad"));
    assert_eq!(propose("good"), good, "the same request is kept once");
    let take = |name: &str| {
        belljar_in(
            &family.jail,
            &["evolve", "take", name, "--project", &project],
        )
        .code()
    };
    assert_eq!(take(&good), 0);
    assert_eq!(take(&bad), 1);
    assert_eq!(take("../x"), 121);
    let mine = family.agent("root", "proposals").expect("a list");
    let of = |name: &str| {
        let all = mine["proposals"].as_array().expect("a list").iter();
        all.clone()
            .find(|proposal| proposal["name"] == name)
            .expect("it")["answer"]
            .clone()
    };
    assert_eq!(of(&good)["status"], "waiting");
    assert_eq!(of(&bad)["status"], "rejected");
    assert_eq!(of(&bad)["reasons"][0]["code"], "case");
    // What it should have printed, it is not told.
    assert!(!of(&bad).to_string().contains("expect"));
    // They are an agent's, whatever the operator's own name.
    let listed = belljar_in(&family.jail, &["evolve", "list", "--output", "json"]);
    for proposal in json(&listed.stdout()).as_array().expect("a list") {
        assert!(
            proposal["by"]
                .as_str()
                .expect("a name")
                .starts_with("agent:")
        );
    }
}

for_each_user!(
    a_proposal_is_judged_listed_and_shown,
    an_agent_proposes_and_hears_what_became_of_it
);
