//! Agents that abuse the gateway to their MCP servers: they harm themselves at most, and are who they are.

mod support;

use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};
use support::{Supervised, Who, eventually, for_each_user, supervised_pid as pid};

const POLICY: &str =
    "extends: moderate\nmcp:\n  servers:\n    tools: {command: [python3, -B, server.py]}\n";

/// The most boxes of one server that an agent has.
const MOST: usize = 8;

struct Scene(Supervised);

impl Scene {
    fn start(who: Who) -> Scene {
        let supervised = Supervised::start(who, "[supervisor]\nmax_agents = 20\n");
        let work = &supervised.jail.work;
        for (name, text) in [
            ("server.py", include_str!("tools/server.py")),
            ("attacker.py", include_str!("tools/attacker.py")),
        ] {
            supervised.jail.put(&work.join(name), text);
        }
        Scene(supervised)
    }

    /// Starts an agent that does this; what it saw will be in a file of its name.
    #[track_caller]
    fn agent(&self, name: &str, deed: &str) -> String {
        let script = format!(
            "python3 -B attacker.py {deed} > {name}.new; mv {name}.new {name}; while :; do sleep 0.1; done"
        );
        self.0.limited(name, POLICY, &script)
    }

    #[track_caller]
    fn saw(&self, name: &str) -> Value {
        serde_json::from_str(&self.0.await_file(name)).expect("what it saw")
    }

    fn server_boxes(&self) -> Vec<String> {
        let keepers = self.0.keepers().into_iter();
        keepers
            .map(|(id, _)| id)
            .filter(|id| id.contains("-mcp-"))
            .collect()
    }

    /// Whose calls are on record.
    #[track_caller]
    fn callers(&self) -> Vec<String> {
        let text = self.0.said(&["audit", "export", "--log", "runs"]);
        let entries = text
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).expect("an entry"));
        entries
            .map(|entry| entry["what"].clone())
            .filter(|what| what["kind"] == "mcp_call")
            .map(|what| what["run"].as_str().unwrap_or_default().to_owned())
            .collect()
    }
}

fn an_agent_that_leaves_or_floods_has_its_servers_still(who: Who) {
    let scene = Scene::start(who);
    let leaver = scene.agent("leaver", "leaves");
    let flooder = scene.agent("flooder", "floods");
    assert_eq!(scene.saw("leaver"), json!({"works": "still here"}));
    assert_eq!(
        scene.saw("flooder"),
        json!({"sent": true, "works": "still here"})
    );
    for agent in [&leaver, &flooder] {
        assert_eq!(scene.0.view(agent)["phase"], "running");
    }
    eventually("nobody's servers are gone", || {
        scene.server_boxes().is_empty().then_some(())
    });
}

fn a_hundred_sessions_are_no_hundred_servers(who: Who) {
    let scene = Scene::start(who);
    let agent = scene.agent("crowd-maker", "crowds");
    scene.0.await_file("crowd");
    let boxes = scene.server_boxes();
    assert_eq!(boxes.len(), MOST, "{boxes:?}");
    assert!(boxes.iter().all(|id| id.starts_with(&agent)), "{boxes:?}");
    // Others are not concerned.
    scene.agent("other", "borrows");
    assert_eq!(scene.saw("other")["works"], "still here");
    scene.0.jail.put(&scene.0.jail.work.join("enough"), "");
    let saw = scene.saw("crowd-maker");
    assert_eq!(saw, json!({"echoed": MOST, "works": "still here"}));
    // Nor does anything of them outlive their keeper.
    let keepers = scene.0.keepers();
    let (_, keeper) = keepers
        .iter()
        .find(|(id, _)| *id == agent)
        .expect("a keeper");
    kill_process(pid(*keeper), Signal::KILL).expect("kill the keeper");
    scene.0.await_cause(&agent);
    eventually("none of its servers is left", || {
        let own = scene.server_boxes();
        let own = own.iter().any(|id| id.starts_with(&agent));
        (!own).then_some(())
    });
}

fn an_agent_is_who_it_is_and_has_no_other_s_servers(who: Who) {
    let scene = Scene::start(who);
    let victim = scene.agent("victim", "borrows");
    scene.saw("victim");
    let doors = scene.0.jail.state.join("doors");
    let socket = doors.join(format!("{victim}-mcp.sock"));
    assert!(socket.exists(), "no socket to try");
    let work = &scene.0.jail.work;
    std::os::unix::fs::symlink(&socket, work.join("link.sock")).expect("a link");
    std::fs::hard_link(&socket, work.join("hard.sock")).expect("a hard link");
    let before = scene.callers().len();
    let thief = scene.agent(
        "thief",
        &format!(
            "borrows {} link.sock hard.sock /belljar/../{}",
            socket.display(),
            socket.display()
        ),
    );
    assert_eq!(
        scene.saw("thief"),
        json!({"reached": [], "works": "still here"})
    );
    let liar = scene.agent("liar", &format!("lies {victim}"));
    assert_eq!(scene.saw("liar"), json!({"answered": true}));
    let callers = eventually("their calls are on record", || {
        let callers = scene.callers().split_off(before);
        (callers.contains(&thief) && callers.contains(&liar)).then_some(callers)
    });
    assert!(!callers.contains(&victim), "{callers:?}");
}

for_each_user!(
    an_agent_that_leaves_or_floods_has_its_servers_still,
    a_hundred_sessions_are_no_hundred_servers,
    an_agent_is_who_it_is_and_has_no_other_s_servers,
);
