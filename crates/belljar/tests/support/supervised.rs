//! A supervisor in a child process, with agents that its keepers keep.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, ExitStatus};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::family::text;
use super::leftovers::{files_below, processes_marked};
use super::watch::{Finished, eventually, finish};
use super::{Jail, Who};

/// A supervisor and its agents. All of it is ended when dropped, by process ids of its own.
pub(crate) struct Supervised {
    pub(crate) jail: Jail,
    daemon: Option<Child>,
    starts: u32,
}

impl Supervised {
    /// A supervisor with this supervisor.toml, ready.
    #[track_caller]
    pub(crate) fn start(who: Who, config: &str) -> Supervised {
        let mut supervised = Supervised::prepare(who, config);
        supervised.start_again();
        supervised
    }

    /// A world with a supervisor.toml, and nothing started.
    pub(crate) fn prepare(who: Who, config: &str) -> Supervised {
        let jail = Jail::new(who);
        jail.put(&jail.base.join("supervisor.toml"), config);
        Supervised {
            jail,
            daemon: None,
            starts: 0,
        }
    }

    /// Starts the supervisor, and waits until it is ready.
    #[track_caller]
    pub(crate) fn start_again(&mut self) {
        assert!(self.daemon.is_none(), "one supervisor at a time");
        self.starts += 1;
        let file = File::create(self.output_path()).expect("a file for the supervisor's output");
        let config = self.config();
        let mut command = self.jail.belljar(&[
            "supervisor",
            "start",
            "--config",
            &config,
            "--web-port",
            "0",
        ]);
        let errors = file.try_clone().expect("the same file");
        command.stdout(file).stderr(errors);
        self.daemon = Some(command.spawn().expect("start belljar"));
        eventually(
            &format!("the supervisor is ready\n{}", self.output()),
            || {
                let daemon = self.daemon.as_mut().expect("a supervisor");
                let ended = daemon.try_wait().expect("look at the supervisor");
                let output = fs::read_to_string(
                    self.jail
                        .base
                        .join(format!("supervisor-output-{}", self.starts)),
                );
                let output = output.unwrap_or_default();
                assert!(ended.is_none(), "the supervisor ended: {output}");
                output.contains("supervisor ready").then_some(())
            },
        );
    }

    pub(crate) fn config(&self) -> String {
        let path = self.jail.base.join("supervisor.toml");
        path.to_string_lossy().into_owned()
    }

    fn output_path(&self) -> PathBuf {
        let name = format!("supervisor-output-{}", self.starts);
        self.jail.base.join(name)
    }

    /// What the supervisor said.
    pub(crate) fn output(&self) -> String {
        fs::read_to_string(self.output_path()).unwrap_or_default()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.daemon.as_ref().expect("a supervisor").id()
    }

    /// Kills the supervisor with SIGKILL, and waits for that.
    pub(crate) fn murder(&mut self) {
        let mut daemon = self.daemon.take().expect("a supervisor");
        daemon.kill().expect("kill the supervisor");
        daemon.wait().expect("wait for the supervisor");
    }

    /// Sends the supervisor a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(pid(self.pid()), signal).expect("signal the supervisor");
    }

    /// Waits for the supervisor's own end.
    #[track_caller]
    pub(crate) fn await_end(&mut self) -> ExitStatus {
        let daemon = self.daemon.as_mut().expect("a supervisor");
        let ended = eventually("the supervisor ends", || {
            daemon.try_wait().expect("wait for the supervisor")
        });
        self.daemon = None;
        ended
    }

    /// Runs `belljar` as the operator.
    pub(crate) fn belljar(&self, words: &[&str]) -> Finished {
        finish(self.jail.belljar(words).spawn().expect("start belljar"))
    }

    /// The same, for what it prints, which must come with exit code 0.
    #[track_caller]
    pub(crate) fn said(&self, words: &[&str]) -> String {
        let finished = self.belljar(words);
        let text = finished.stdout();
        let errors = finished.stderr();
        assert_eq!(finished.code(), 0, "{words:?}: {text}\n{errors}");
        text
    }

    /// The same, for its JSON.
    #[track_caller]
    pub(crate) fn query(&self, words: &[&str]) -> Value {
        let mut all = words.to_vec();
        let at = all.iter().position(|word| *word == "--");
        let at = at.unwrap_or(all.len());
        all.splice(at..at, ["--output", "json"]);
        let text = self.said(&all);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{words:?}: {error}: {text}"))
    }

    /// Starts an agent that runs a shell script; the result is its id.
    #[track_caller]
    pub(crate) fn agent(&self, name: &str, script: &str) -> String {
        let view = self.query(&["sandbox", "--name", name, "--", "sh", "-c", script]);
        text(&view["id"])
    }

    /// The same under a capability.
    #[track_caller]
    pub(crate) fn limited(&self, name: &str, capability: &str, script: &str) -> String {
        let file = self.jail.base.join(format!("{name}.yaml"));
        self.jail.put(&file, capability);
        let file = file.to_string_lossy().into_owned();
        let words = ["sandbox", "--name", name, "--sandbox-config", &file];
        let view = self.query(&[&words[..], &["--", "sh", "-c", script]].concat());
        text(&view["id"])
    }

    /// All agents, the ended too.
    #[track_caller]
    pub(crate) fn agents(&self) -> Vec<Value> {
        let status = self.query(&["supervisor", "status", "--all"]);
        status["agents"].as_array().expect("a list").clone()
    }

    /// One agent by its id.
    #[track_caller]
    pub(crate) fn view(&self, id: &str) -> Value {
        let agents = self.agents();
        let found = agents.into_iter().find(|agent| agent["id"] == id);
        found.unwrap_or_else(|| panic!("no agent {id}"))
    }

    /// Waits until an agent is in this phase. One that was just granted may not be listed yet.
    #[track_caller]
    pub(crate) fn await_phase(&self, id: &str, phase: &str) -> Value {
        eventually(&format!("{id} is {phase}"), || {
            let agents = self.agents();
            let mut agents = agents.into_iter();
            agents.find(|agent| agent["id"] == id && agent["phase"] == phase)
        })
    }

    /// Waits until an agent has ended, and says by what.
    #[track_caller]
    pub(crate) fn await_cause(&self, id: &str) -> String {
        eventually(&format!("{id} ends"), || {
            let agent = self.view(id);
            agent["end"]["cause"].as_str().map(str::to_owned)
        })
    }

    /// Waits for a file of the workspace to hold something; the result is what.
    #[track_caller]
    pub(crate) fn await_file(&self, name: &str) -> String {
        let path = self.jail.work.join(name);
        eventually(&format!("{name} is written"), || {
            let text = fs::read_to_string(&path).unwrap_or_default();
            text.ends_with('\n').then_some(text)
        })
    }

    /// The fleet's log, entry by entry.
    #[track_caller]
    pub(crate) fn log(&self) -> Vec<Value> {
        let text = self.said(&["audit", "export", "--log", "fleet"]);
        text.lines()
            .map(|line| serde_json::from_str(line).expect("an entry"))
            .collect()
    }

    /// What the log charged an agent for: milliseconds of CPU time.
    #[track_caller]
    pub(crate) fn charged_cpu(&self, id: &str) -> u64 {
        let log = self.log();
        let charges = log
            .iter()
            .map(|entry| &entry["what"])
            .filter(|what| what["kind"] == "usage_reported" && what["worker"] == id);
        charges
            .map(|what| what["usage"]["cpu_ms"].as_u64().unwrap_or(0))
            .sum()
    }

    /// The keepers of live boxes, by agent.
    pub(crate) fn keepers(&self) -> Vec<(String, u32)> {
        let state = belljar_supervisor::StateDir::at(self.jail.state.clone());
        let running = state.expect("the state directory").running();
        running
            .into_iter()
            .map(|record| (record.sandbox_id, record.keeper_pid))
            .collect()
    }

    /// Processes of keepers and boxes: all that carry the test's mark but the supervisor.
    pub(crate) fn kept(&self) -> Vec<(u32, String)> {
        let daemon = self.daemon.as_ref().map(Child::id);
        let mut marked = processes_marked(&self.jail.base);
        marked.retain(|(pid, _)| Some(*pid) != daemon);
        marked
    }

    /// Nothing of keepers and boxes is left: no process, record, door or socket. Word of an end stays until the daemon has put it
    /// on file, which it does once it has told of the end.
    #[track_caller]
    pub(crate) fn assert_nothing_left(&self) {
        let kept = self.kept();
        assert!(kept.is_empty(), "processes are left: {kept:#?}");
        for place in ["runs", "doors"] {
            let files = files_below(&self.jail.state.join(place));
            assert!(files.is_empty(), "left in {place}: {files:#?}");
        }
        let is_word = |path: &PathBuf| path.to_string_lossy().ends_with(".ended.json");
        eventually("the daemon keeps every end it was told of", || {
            let files = files_below(&self.jail.state.join("fleet/keepers"));
            let (words, left): (Vec<_>, Vec<_>) = files.into_iter().partition(is_word);
            assert!(left.is_empty(), "left in fleet/keepers: {left:#?}");
            words.is_empty().then_some(())
        });
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("the mount table");
        let base = self.jail.base.to_string_lossy().into_owned();
        let state = self.jail.state.to_string_lossy().into_owned();
        // A test may have put a file system of its own there.
        let is_left =
            |line: &&str| line.contains(&base) && line.split(' ').nth(4) != Some(state.as_str());
        let left: Vec<_> = mounts.lines().filter(is_left).collect();
        assert!(left.is_empty(), "mounts outlived their boxes: {left:#?}");
    }
}

pub(crate) fn pid(number: u32) -> Pid {
    let number = i32::try_from(number).expect("a process id");
    Pid::from_raw(number).expect("a process id")
}

impl Drop for Supervised {
    fn drop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            daemon.kill().ok();
            daemon.wait().ok();
        }
        for _ in 0..600 {
            // A box dies with its keeper; one that is being started has no record yet.
            for (_, keeper) in self.keepers() {
                kill_process(pid(keeper), Signal::KILL).ok();
            }
            if self.kept().is_empty() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        if let Ok(state) = belljar_supervisor::StateDir::at(self.jail.state.clone()) {
            state.sweep(&belljar_sandbox::Host::probe().cgroups);
        }
        if std::thread::panicking() {
            eprintln!("the supervisor said:\n{}", self.output());
        }
    }
}
