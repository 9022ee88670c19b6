//! A family of real boxes under a contract: its controller in a child process, and agents that carry out the test's
//! orders.
//!
//! Every agent is a puppet: a shell that waits for scripts in the workspace, runs them, and leaves what they said.
//! Its name is what it finds in /belljar/state; the first of a family is called `root`.

use std::cell::Cell;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};

use serde_json::Value;

use super::leftovers::{cgroups_of, files_below, processes_marked};
use super::watch::{Finished, eventually, finish};
use super::{Jail, Who};

/// The word for Belljar in a box.
pub(crate) const AGENT: &str = "/belljar/bin/belljar agent";

const PUPPET: &str = r#"name=root
[ -e /belljar/state ] && name=$(cat /belljar/state)
cd "strings/$name" || exit 70
n=1
echo up > up
while :; do
    while [ ! -e "$n.sh" ]; do sleep 0.03; done
    sh "./$n.sh" > "$n.out" 2> "$n.err"
    echo $? > "$n.code.new"
    mv "$n.code.new" "$n.code"
    n=$((n + 1))
done
"#;

/// A controller with its boxes. Ended when dropped, by its own process id.
pub(crate) struct Family {
    pub(crate) jail: Jail,
    controller: Option<Child>,
    orders: Cell<u32>,
    starts: u32,
    host: Host,
}

/// Where a family's controller lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Host {
    /// In a `belljar run --contract`.
    Run,
    /// In a supervisor, with a keeper process for each box.
    Supervisor,
}

/// What a script in a box said.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// A refusal, as the agent hears it.
#[derive(Debug)]
pub(crate) struct Refusal(pub(crate) Value);

impl Refusal {
    pub(crate) fn code(&self) -> &str {
        self.0["code"].as_str().unwrap_or_default()
    }

    pub(crate) fn message(&self) -> &str {
        self.0["message"].as_str().unwrap_or_default()
    }
}

impl Family {
    /// Starts a family of puppets; its root is up.
    #[track_caller]
    pub(crate) fn start(who: Who, contract: &str) -> Family {
        let mut family = Family::prepare(who, contract);
        family.start_puppet();
        family
    }

    /// A world with a contract, and nothing started.
    pub(crate) fn prepare(who: Who, contract: &str) -> Family {
        let jail = Jail::new(who);
        jail.put(&jail.base.join("contract.yaml"), contract);
        jail.put(&jail.work.join("puppet.sh"), PUPPET);
        let family = Family {
            jail,
            controller: None,
            orders: Cell::new(0),
            starts: 0,
            host: Host::Run,
        };
        family.make_strings("root");
        family
    }

    /// Has its controller live elsewhere, from its next start on.
    pub(crate) fn host(mut self, host: Host) -> Family {
        self.host = host;
        self
    }

    /// Starts the controller, and waits until its first puppet is up.
    #[track_caller]
    pub(crate) fn start_puppet(&mut self) {
        fs::remove_dir_all(self.strings("root")).ok();
        self.make_strings("root");
        self.orders.set(0);
        self.launch(&["sh", "puppet.sh"]);
        self.await_up("root");
    }

    /// Starts `belljar run --contract` with this command.
    pub(crate) fn launch(&mut self, words: &[&str]) {
        assert!(self.controller.is_none(), "one controller at a time");
        self.starts += 1;
        let file = |name: &str| {
            let path = self.jail.base.join(format!("{name}-{}", self.starts));
            File::create(path).expect("a file for the controller's output")
        };
        if self.host == Host::Supervisor {
            return self.launch_supervised(words, file("stdout"), file("stderr"));
        }
        let contract = self.contract_path();
        let mut command = self
            .jail
            .belljar(&["run", "--quiet", "--contract", &contract]);
        let capability = self.jail.base.join("capability.yaml");
        if capability.exists() {
            command.arg("--config").arg(capability);
        }
        command.arg("--").args(words);
        command.stdout(file("stdout")).stderr(file("stderr"));
        self.controller = Some(command.spawn().expect("start belljar"));
    }

    fn launch_supervised(&mut self, words: &[&str], stdout: File, stderr: File) {
        let config = self.jail.base.join("supervisor.toml");
        self.jail.put(
            &config,
            "[supervisor]\nmax_agents = 50\ncontract = \"contract.yaml\"\n",
        );
        let config = config.to_string_lossy().into_owned();
        let mut command =
            self.jail
                .belljar(&["supervisor", "start", "--config", &config, "--no-web"]);
        command.stdout(stdout).stderr(stderr);
        self.controller = Some(command.spawn().expect("start belljar"));
        eventually("the supervisor is ready", || {
            self.output().contains("supervisor ready").then_some(())
        });
        let mut root = self.jail.belljar(&["sandbox", "--name", "root"]);
        let capability = self.jail.base.join("capability.yaml");
        if capability.exists() {
            root.arg("--sandbox-config").arg(capability);
        }
        let root = finish(root.arg("--").args(words).spawn().expect("start belljar"));
        assert_eq!(root.code(), 0, "{}", root.stderr());
    }

    pub(crate) fn contract_path(&self) -> String {
        self.jail
            .base
            .join("contract.yaml")
            .to_string_lossy()
            .into_owned()
    }

    /// The controller's process.
    pub(crate) fn pid(&self) -> u32 {
        self.controller.as_ref().expect("a controller").id()
    }

    /// What the controller wrote, for messages.
    pub(crate) fn output(&self) -> String {
        let read = |name: &str| {
            let path = self.jail.base.join(format!("{name}-{}", self.starts));
            fs::read_to_string(path).unwrap_or_default()
        };
        format!("{}\n{}", read("stdout"), read("stderr"))
    }

    fn strings(&self, name: &str) -> PathBuf {
        self.jail.work.join("strings").join(name)
    }

    fn make_strings(&self, name: &str) {
        self.jail.put(&self.strings(name).join("made"), "");
    }

    #[track_caller]
    pub(crate) fn await_up(&self, name: &str) {
        let up = self.strings(name).join("up");
        eventually(&format!("{name} is up\n{}", self.output()), || {
            up.exists().then_some(())
        });
    }

    /// Has a puppet run a script, and does not wait. The result is where its answer will be.
    pub(crate) fn tell(&self, name: &str, script: &str) -> PathBuf {
        let directory = self.strings(name);
        let next = (1..)
            .map(|n| directory.join(format!("{n}.sh")))
            .find(|path| !path.exists())
            .expect("a free number");
        let number = self.orders.get() + 1;
        self.orders.set(number);
        let draft = self.jail.work.join(format!("strings/draft-{number}"));
        self.jail.put(&draft, script);
        fs::rename(&draft, &next).expect("hand the order over");
        next
    }

    /// The answer to an order, once it is there.
    pub(crate) fn answer(&self, order: &Path) -> Option<Said> {
        let read = |kind: &str| fs::read_to_string(order.with_extension(kind)).unwrap_or_default();
        let code = fs::read_to_string(order.with_extension("code")).ok()?;
        Some(Said {
            code: code.trim().parse().expect("an exit code"),
            out: read("out"),
            err: read("err"),
        })
    }

    /// Has a puppet run a script to its end.
    #[track_caller]
    pub(crate) fn order(&self, name: &str, script: &str) -> Said {
        let order = self.tell(name, script);
        eventually(&format!("{name} carries out {script:?}"), || {
            self.answer(&order)
        })
    }

    /// `belljar agent …` by a puppet, with its JSON answer.
    #[track_caller]
    pub(crate) fn agent(&self, name: &str, words: &str) -> Result<Value, Refusal> {
        let said = self.order(name, &format!("{AGENT} {words} --output json"));
        parse_agent(&said)
    }

    /// A puppet asks for a replica called `child`; the replica is up. The result is its id.
    #[track_caller]
    pub(crate) fn replicate(
        &self,
        parent: &str,
        child: &str,
        options: &str,
    ) -> Result<String, Refusal> {
        let id = self.ask_replica(parent, child, options)?;
        self.await_up(child);
        Ok(id)
    }

    /// The same, whether or not the replica comes up.
    #[track_caller]
    pub(crate) fn ask_replica(
        &self,
        parent: &str,
        child: &str,
        options: &str,
    ) -> Result<String, Refusal> {
        self.make_strings(child);
        let script = format!(
            "printf {child} | {AGENT} replicate --reason test --state - --output json {options}"
        );
        let granted = parse_agent(&self.order(parent, &script))?;
        Ok(granted["worker_id"].as_str().expect("an id").to_owned())
    }

    /// A request with this body, as it is, at a puppet's door: status and answer.
    #[track_caller]
    pub(crate) fn post(&self, name: &str, path: &str, body: &str) -> (u32, Value) {
        self.jail.put(&self.jail.work.join("body.json"), body);
        let body = self.jail.work_file("body.json");
        let said = self.order(name, &format!(
            "curl --silent --show-error --max-time 60 --unix-socket /belljar/agent.sock --write-out '\\n%{{http_code}}' \
             --header 'content-type: application/json' --data-binary @{body} http://keeper{path}"
        ));
        let (answer, status) = said
            .out
            .rsplit_once('\n')
            .unwrap_or_else(|| panic!("no answer: {said:?}"));
        let json = serde_json::from_str(answer).unwrap_or_else(|error| panic!("{error}: {said:?}"));
        (status.parse().expect("a status"), json)
    }

    /// Runs `belljar` as the operator.
    pub(crate) fn belljar(&self, words: &[&str]) -> Finished {
        finish(self.jail.belljar(words).spawn().expect("start belljar"))
    }

    /// The same, for its JSON, which must come with exit code 0.
    #[track_caller]
    pub(crate) fn query(&self, words: &[&str]) -> Value {
        let mut all = words.to_vec();
        all.extend(["--output", "json"]);
        let finished = self.belljar(&all);
        let text = finished.stdout();
        assert_eq!(
            finished.code(),
            0,
            "{words:?}: {text}\n{}",
            finished.stderr()
        );
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{words:?}: {error}: {text}"))
    }

    /// `belljar replication …`
    #[track_caller]
    pub(crate) fn operator(&self, words: &[&str]) -> Value {
        let mut all = vec!["replication"];
        all.extend(words);
        self.query(&all)
    }

    /// Everybody alive.
    #[track_caller]
    pub(crate) fn workers(&self) -> Vec<Value> {
        listed(&self.operator(&["workers"]))
    }

    /// Everybody, the ended too.
    #[track_caller]
    pub(crate) fn everybody(&self) -> Vec<Value> {
        listed(&self.operator(&["workers", "--all"]))
    }

    /// The worker at the root of the family.
    #[track_caller]
    pub(crate) fn root_id(&self) -> String {
        let workers = self.workers();
        let root = workers.iter().find(|worker| worker["depth"] == 0);
        text(&root.expect("a root")["id"])
    }

    /// Waits until this worker has ended, and says by what. The log knows, also when the family is over and nobody is
    /// left to ask.
    #[track_caller]
    pub(crate) fn await_end(&self, id: &str) -> String {
        eventually(&format!("{id} ends"), || {
            let log = self.log();
            let mut events = log.iter().map(|entry| &entry["what"]);
            let end = events.find(|what| what["kind"] == "ended" && what["worker"] == id)?;
            Some(text(&end["code"]))
        })
    }

    /// The fleet's log, entry by entry.
    #[track_caller]
    pub(crate) fn log(&self) -> Vec<Value> {
        let finished = self.belljar(&["audit", "export", "--log", "fleet"]);
        assert_eq!(finished.code(), 0, "{}", finished.stderr());
        let text = finished.stdout();
        text.lines()
            .map(|line| {
                serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
            })
            .collect()
    }

    /// Whether the log has an entry with these words in it.
    #[track_caller]
    pub(crate) fn logged(&self, words: &[&str]) -> bool {
        self.log().iter().any(|entry| {
            let entry = entry.to_string();
            words.iter().all(|word| entry.contains(word))
        })
    }

    /// Both logs hold against their signatures.
    #[track_caller]
    pub(crate) fn assert_log_holds(&self) {
        for log in ["fleet", "runs"] {
            let verified = self.belljar(&["audit", "verify", "--log", log]);
            assert_eq!(
                verified.code(),
                0,
                "{}{}",
                verified.stdout(),
                verified.stderr()
            );
        }
    }

    /// Processes of the boxes: all that carry the test's mark but the controller.
    pub(crate) fn boxed(&self) -> Vec<(u32, String)> {
        let controller = self.controller.as_ref().map(Child::id);
        let mut marked = processes_marked(&self.jail.base);
        marked.retain(|(pid, _)| Some(*pid) != controller);
        marked
    }

    /// Kills the controller with SIGKILL, and waits for that.
    pub(crate) fn murder(&mut self) {
        let mut controller = self.controller.take().expect("a controller");
        controller.kill().expect("kill the controller");
        controller.wait().expect("wait for the controller");
    }

    /// Whether the controller has ended by itself.
    pub(crate) fn is_over(&mut self) -> bool {
        let controller = self.controller.as_mut().expect("a controller");
        let ended = controller.try_wait().expect("look at the controller");
        ended.is_some()
    }

    /// Waits for the controller's own end.
    #[track_caller]
    pub(crate) fn await_controller(&mut self) -> ExitStatus {
        // Ours until it has ended: one that never does is killed when the family is dropped.
        let controller = self.controller.as_mut().expect("a controller");
        let ended = eventually("the controller ends", || {
            controller.try_wait().expect("wait for the controller")
        });
        self.controller = None;
        ended
    }

    /// Nothing of the boxes is left: no process, control group, mount, record or door.
    #[track_caller]
    pub(crate) fn assert_nothing_left(&self, ids: &[String]) {
        let boxed = self.boxed();
        assert!(
            boxed.is_empty(),
            "processes outlived their boxes: {boxed:#?}"
        );
        for id in ids {
            assert_eq!(cgroups_of(id), Vec::<PathBuf>::new());
        }
        for place in ["runs", "doors"] {
            let files = files_below(&self.jail.state.join(place));
            assert!(files.is_empty(), "left in {place}: {files:#?}");
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("the mount table");
        let base = self.jail.base.to_string_lossy().into_owned();
        assert!(!mounts.contains(&base), "mounts outlived their boxes");
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        if let Some(mut controller) = self.controller.take() {
            // Its boxes die with it.
            controller.kill().ok();
            controller.wait().ok();
        }
        // Unless they have keepers of their own.
        if let Ok(state) = belljar_supervisor::StateDir::at(self.jail.state.clone()) {
            belljar_supervisor::fleet::kill_lone_runs(&state, None);
        }
        self.clear_away();
        if std::thread::panicking() {
            eprintln!("the controller said:\n{}", self.output());
        }
    }
}

impl Family {
    /// A killed controller can't clear away its boxes' groups; the next keeper of the state directory does, and here
    /// there is none.
    fn clear_away(&self) {
        for _ in 0..600 {
            if self.boxed().is_empty() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        if let Ok(state) = belljar_supervisor::StateDir::at(self.jail.state.clone()) {
            state.sweep(&belljar_sandbox::Host::probe().cgroups);
        }
    }
}

pub(crate) fn text(value: &Value) -> String {
    value
        .as_str()
        .unwrap_or_else(|| panic!("no text: {value}"))
        .to_owned()
}

fn listed(list: &Value) -> Vec<Value> {
    list["workers"]
        .as_array()
        .expect("a list of workers")
        .clone()
}

#[track_caller]
fn parse_agent(said: &Said) -> Result<Value, Refusal> {
    let json: Value =
        serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error}: {said:?}"));
    match (said.code, json.get("error")) {
        (0, None) => Ok(json),
        (_, Some(error)) => Err(Refusal(error.clone())),
        _ => panic!("neither granted nor refused: {said:?}"),
    }
}
