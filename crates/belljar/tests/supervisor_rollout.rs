//! Evolved code over agents that a supervisor keeps: it takes over a few at a time, goes back by itself, and whatever is killed
//! on the way, everybody runs one exact tree in the end.

#[path = "support/judged.rs"]
mod judged;
mod support;

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use belljar_api::{
    CallError, Client, Empty, ListProposals, ProposalName, ProposalStatus, ReadProposal,
};
use belljar_evolve::Risk;
use belljar_evolve::evidence::Verdict;
use belljar_evolve::proposal::Proposal;
use belljar_evolve::rollout::directory_of;
use belljar_evolve::store::Store;
use belljar_evolve::tree::Tree;
use judged::judged;
use serde_json::Value;
use support::{Supervised, Who, eventually, for_each_user, text};

/// Says which version it is, whether it can change itself or look around in the state directory, and works.
const OLD: &str = "echo version 1\n(echo more >> agent.sh) 2>/dev/null && echo changed\n(cat ../../journal ../../../../keys/* | grep .) && echo seen\nwhile :; do env true; sleep 0.2; done\n";

/// Errors by what each instance's place shows: a candidate that says so fails once it has a quarter of them.
const HEALTH: &str = r#"
import json, os, sys
root, names = os.environ["BELLJAR_RELEASES"], sys.argv[1:]
shown = {name: os.path.join(root, "instances", name) for name in names}
current = os.path.realpath(os.path.join(root, "current"))
share = sum(os.path.realpath(place) != current for place in shown.values()) / len(names)
for name, place in shown.items():
    is_bad = "worse at a quarter" in open(os.path.join(place, "agent.sh")).read() and share >= 0.25
    print(json.dumps({"instance": name, "requests": 5000, "errors": 900 if is_bad else 50, "latency_ms": 5}))
"#;

struct Rollout {
    supervised: Supervised,
    project: PathBuf,
    agents: usize,
}

impl Rollout {
    /// Workers of a project that a supervisor keeps, and a plan for them.
    fn of(who: Who, agents: usize, restart: &str, plan: &str) -> Self {
        let supervised = Supervised::prepare(who, "");
        let jail = &supervised.jail;
        let project = jail.base.join("agent");
        jail.put(&project.join("agent.sh"), OLD);
        jail.put(&jail.base.join("health.py"), HEALTH);
        let config = format!(
            "[supervisor]\nmax_agents = 30\norphan_grace_seconds = 600\nstop_grace_seconds = 2\n\
             [supervisor.restart]\nfirst_seconds = 0.05\nlongest_seconds = 0.1\ncrash_loop = 3\n\
             [[agents]]\nname = \"worker\"\ncount = {agents}\nproject = \"agent\"\n\
             command = [\"sh\", \"agent.sh\"]\nrestart = \"{restart}\"\n"
        );
        jail.put(&jail.base.join("supervisor.toml"), &config);
        let names: Vec<String> = (1..=agents).map(|n| format!("'worker-{n}'")).collect();
        let health = jail.base.join("health.py");
        let plan = plan.replace(
            "HEALTH",
            &format!("health = ['python3', {health:?}, {}]", names.join(", ")),
        );
        jail.put(&jail.base.join("rollout.toml"), &plan);
        let mut rollout = Self {
            supervised,
            project,
            agents,
        };
        rollout.supervised.start_again();
        rollout
    }

    /// A proposal that passed and that nobody needs to approve.
    fn propose(&self, to: &str) -> Proposal {
        let now = fs::read_to_string(self.project.join("agent.sh")).expect("the agent");
        let lines = |mark: char, text: &str| -> String {
            text.lines()
                .map(|line| format!("      {mark}{line}\n"))
                .collect()
        };
        let patch = format!(
            "      --- a/agent.sh\n      +++ b/agent.sh\n      @@ -1,{} +1,{} @@\n{}{}",
            now.lines().count(),
            to.lines().count(),
            lines('-', &now),
            lines('+', to)
        );
        let request = format!(
            "description: another\ntarget_files: [agent.sh]\nmodifications:\n  - patch: |\n{patch}rollback_plan: back\n"
        );
        let state = &self.supervised.jail.state;
        let store = Store::of(state);
        let proposed = store.propose(
            &self.project,
            "request.yaml",
            request.as_bytes(),
            "agent:worker-1",
        );
        let mut proposal = proposed.expect("a proposal");
        let outcome = judged(&proposal, Risk::Low, Verdict::Pass);
        store.settle(&mut proposal, &outcome).expect("settled");
        self.supervised.jail.own(state);
        proposal
    }

    fn deploy(&self, proposal: &Proposal) {
        let plan = self.supervised.jail.base.join("rollout.toml");
        let plan = plan.to_string_lossy();
        self.supervised
            .said(&["evolve", "deploy", proposal.id.short(), "--plan", &plan]);
    }

    fn status(&self, proposal: &Proposal) -> Value {
        self.supervised
            .query(&["evolve", "status", proposal.id.short()])
    }

    fn releases(&self) -> PathBuf {
        directory_of(
            &self.supervised.jail.state,
            &self.project.display().to_string(),
        )
    }

    /// Waits until a rollout, which nobody drives but the supervisor, is at this stage.
    fn await_stage(&self, proposal: &Proposal, stage: &str) -> Value {
        eventually(&format!("the rollout is {stage}"), || {
            let status = self.status(proposal);
            (status["stage"] == stage).then_some(status)
        })
    }

    /// What each worker that lives has said at its start.
    fn versions(&self) -> Vec<String> {
        let agents = self.supervised.agents();
        let living = agents.iter().filter(|agent| agent["phase"] == "running");
        living
            .map(|agent| {
                let id = text(&agent["id"]);
                eventually("it says what it is", || {
                    let said = self.supervised.said(&["supervisor", "logs", &id]);
                    let is_held = !said.contains("changed") && !said.contains("seen");
                    assert!(is_held, "it got out of its release: {said}");
                    said.lines().next().map(str::to_owned)
                })
            })
            .collect()
    }

    /// Everybody lives and runs this version, and every place shows this tree, whole.
    fn assert_all_run(&self, version: &str, tree: &str) {
        eventually("everybody is brought to it", || {
            let versions = self.versions();
            (versions.len() == self.agents && versions.iter().all(|one| one == version))
                .then_some(())
        });
        let releases = self.releases();
        let mut shown = BTreeSet::new();
        for n in 1..=self.agents {
            let link = releases.join(format!("instances/worker-{n}"));
            shown.insert(fs::canonicalize(link).expect("a place"));
        }
        shown.insert(fs::canonicalize(releases.join("current")).expect("a place"));
        let tree_is = |path: &PathBuf| Tree::read(path, &[]).expect("a tree").digest();
        let trees: Vec<String> = shown.iter().map(tree_is).collect();
        assert_eq!(trees, [tree], "one exact tree");
    }
}

const QUICK: &str = "HEALTH\nsteps = [5, 25, 100]\n[supervised]\nagents = 'worker-*'\nevery_seconds = 1\n[bounds]\nleast_rounds = 2\n";
const ALONE: &str =
    "steps = [50, 100]\n[supervised]\nagents = 'worker-*'\nevery_seconds = 1\nmost_crashes = 2\n";

fn a_good_candidate_takes_over_agent_by_agent(who: Who) {
    let rollout = Rollout::of(who, 4, "on_failure", QUICK);
    let proposal = rollout.propose(&OLD.replace("version 1", "version 2"));
    assert_eq!(rollout.versions(), ["version 1"; 4]);
    rollout.deploy(&proposal);
    let status = rollout.await_stage(&proposal, "done");
    assert_eq!(status["current"], proposal.candidate_tree.as_str());
    rollout.assert_all_run("version 2", &proposal.candidate_tree);
    // A supervisor that is started anew starts them from what was released, not from the project.
    let mut rollout = rollout;
    rollout
        .supervised
        .said(&["supervisor", "shutdown", "--reason", "a test"]);
    rollout.supervised.await_end();
    rollout.supervised.start_again();
    rollout.assert_all_run("version 2", &proposal.candidate_tree);
    rollout.supervised.said(&["audit", "verify"]);
}

fn a_regression_at_a_quarter_goes_back_by_itself(who: Who) {
    let rollout = Rollout::of(who, 8, "on_failure", QUICK);
    let worse = OLD.replace("version 1", "version 2 # worse at a quarter");
    let proposal = rollout.propose(&worse);
    rollout.deploy(&proposal);
    let status = rollout.await_stage(&proposal, "rolled back");
    let why = text(&status["why_back"]);
    assert!(why.contains("worse at 25 %: error_rate"), "{why}");
    rollout.assert_all_run("version 1", &proposal.base_tree);
    // And so says the operator's API, to whoever may look.
    let control = rollout.supervised.jail.state.join("fleet/control.sock");
    let mut client = Client::connect(control).expect("the supervisor");
    let id = ProposalName::new(proposal.id.as_str()).expect("a name");
    let shown = client
        .call_on::<ReadProposal>(&id, &Empty {})
        .expect("the proposal");
    let seen = shown.rollout.expect("its rollout");
    assert_eq!(seen.stage.as_str(), "rolled back");
    assert!(seen.instances.iter().all(|one| !one.on_candidate));
    assert_eq!(shown.files[0].path, "agent.sh");
    let list = client.call::<ListProposals>(&Empty {}).expect("a list");
    assert_eq!(list.proposals[0].status, ProposalStatus::RolledBack);
    assert_eq!(list.stats.by_status["rolled_back"], 1);
    let nobody = ProposalName::new("0".repeat(64)).expect("a name");
    let answer = client.call_on::<ReadProposal>(&nobody, &Empty {});
    assert!(
        matches!(&answer, Err(CallError::Refused { problem, .. }) if problem.code == "not_found"),
        "{answer:?}"
    );
    let events = rollout.supervised.said(&["monitor", "events", "-n", "200"]);
    assert!(events.contains("was taken back"), "{events}");
}

fn a_candidate_that_crashes_again_and_again_goes_back(who: Who) {
    let rollout = Rollout::of(who, 2, "on_failure", ALONE);
    let proposal = rollout.propose("echo version 2\nexit 3\n");
    rollout.deploy(&proposal);
    let status = rollout.await_stage(&proposal, "rolled back");
    let why = text(&status["why_back"]);
    assert!(why.contains("crash"), "{why}");
    rollout.assert_all_run("version 1", &proposal.base_tree);
}

/// Nobody reports anything here: that it was refused something is the supervisor's own knowledge.
fn a_candidate_that_reaches_beyond_its_walls_goes_back(who: Who) {
    let rollout = Rollout::of(who, 2, "on_failure", ALONE);
    let proposal =
        rollout.propose("echo version 2\nwhile :; do unshare -U true; sleep 0.2; done\n");
    rollout.deploy(&proposal);
    let status = rollout.await_stage(&proposal, "rolled back");
    let why = text(&status["why_back"]);
    assert!(why.contains("worse at 50 %: violations"), "{why}");
    rollout.assert_all_run("version 1", &proposal.base_tree);
}

fn an_instance_that_is_dead_takes_the_candidate_back(who: Who) {
    let rollout = Rollout::of(who, 2, "never", ALONE);
    let proposal = rollout.propose(&OLD.replace("version 1", "version 2"));
    rollout.deploy(&proposal);
    let on_candidate = text(&rollout.status(&proposal)["on_candidate"][0]);
    rollout
        .supervised
        .said(&["supervisor", "kill", &on_candidate]);
    let status = rollout.await_stage(&proposal, "rolled back");
    let why = text(&status["why_back"]);
    assert!(why.contains("does not work: it has ended"), "{why}");
    rollout.assert_all_run("version 1", &proposal.base_tree);
}

fn a_supervisor_killed_in_the_middle_leaves_one_tree_in_the_end(who: Who) {
    let mut rollout = Rollout::of(who, 4, "on_failure", QUICK);
    let proposal = rollout.propose(&OLD.replace("version 1", "version 2"));
    rollout.deploy(&proposal);
    // Killed as soon as a place of the next step is moved: its agent is asked to end, or has, or is being started.
    let releases = rollout.releases();
    let moved = || {
        let shows = |n: &usize| {
            let link = releases.join(format!("instances/worker-{n}"));
            fs::read_link(link).is_ok_and(|to| to.ends_with(&proposal.candidate_tree))
        };
        (1..=4).filter(shows).count()
    };
    eventually("the last step is begun", || (moved() >= 2).then_some(()));
    rollout.supervised.murder();
    rollout.supervised.start_again();
    rollout.await_stage(&proposal, "done");
    rollout.assert_all_run("version 2", &proposal.candidate_tree);

    // Taken back while there is no supervisor: places go back at once, agents when the next one is there.
    rollout.supervised.murder();
    let words = [
        "evolve",
        "rollback",
        proposal.id.short(),
        "--reason",
        "a test",
    ];
    rollout.supervised.said(&words);
    rollout.supervised.start_again();
    rollout.assert_all_run("version 1", &proposal.base_tree);
}

for_each_user!(
    a_good_candidate_takes_over_agent_by_agent,
    a_regression_at_a_quarter_goes_back_by_itself,
    a_candidate_that_crashes_again_and_again_goes_back,
    a_candidate_that_reaches_beyond_its_walls_goes_back,
    an_instance_that_is_dead_takes_the_candidate_back,
    a_supervisor_killed_in_the_middle_leaves_one_tree_in_the_end,
);
