//! A world of a test's own: this very test program, started again in namespaces where the only network is a loopback
//! with public-looking addresses on it, and the servers that answer there. Belljar, its boxes, their clients and all
//! servers are inside; nothing can leave, whatever fails, and nothing outlives it.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::Value;

use super::jail::{WORLD_HOME, usual_place};
use super::watch::{Finished, finish, finish_within};
use super::{Attempt, Jail, Outcome, Who, runner_is_root};

const MARK: &str = "BELLJAR_TEST_WORLD";
/// Many times what is waited for inside, so that what hangs there is told by name.
const PATIENCE: Duration = Duration::from_secs(900);
/// Where a world keeps its certificates and its journal.
pub(crate) const PLACE: &str = "/mnt/world";
/// Python with the clients of `scripts/clients.sh`.
pub(crate) const PYTHON: &str = "/mnt/clients/venv/bin/python";
pub(crate) const NODE_MODULES: &str = "/mnt/clients/node/node_modules";

/// Runs `body` in a world of its own. `name` is the test's own.
#[track_caller]
pub(crate) fn in_a_world(who: Who, name: &str, body: fn(Who)) {
    if env::var_os(MARK).is_some() {
        return body(who);
    }
    who.require();
    assert!(
        !sources().starts_with("/mnt"),
        "a world covers /mnt: keep the repository elsewhere to run this test"
    );
    let home = Home::make();
    let mut command = Command::new("unshare");
    command.args([
        "--net",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ]);
    let (uid, gid) = match runner_is_root() {
        true => (Who::User.uid(), Who::User.uid()),
        false => (who.uid(), rustix::process::getegid().as_raw()),
    };
    match runner_is_root() {
        true => command.env("WORLD_OF_ROOT", "yes"),
        false => command.args(["--user", "--map-root-user"]),
    };
    command
        .args(["--", "/bin/sh"])
        .arg(sources().join("world.sh"))
        .args([uid.to_string(), gid.to_string()])
        .arg(clients())
        .arg(env::current_exe().expect("this program"))
        .args(["--exact", name, "--nocapture", "--test-threads", "1"])
        .env(MARK, "yes")
        .env(WORLD_HOME, &home.0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = command.spawn().expect("the worlds of tests need `unshare`");
    let finished = finish_within(child, Vec::new(), PATIENCE);
    let said = finished.stdout();
    assert!(
        finished.status.success() && said.contains("1 passed"),
        "{name} failed in its world:\n{said}\n{}",
        finished.stderr()
    );
}

struct Home(PathBuf);

impl Home {
    fn make() -> Home {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let path = loop {
            let number = COUNT.fetch_add(1, Ordering::Relaxed);
            let name = format!("belljar-world-{}-{number:04}", std::process::id());
            let path = usual_place().join(name);
            match fs::create_dir(&path) {
                Ok(()) => break path,
                // Of a test that was killed, whose process had the same number.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => panic!("{}: {error}", path.display()),
            }
        };
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("open it to all");
        Home(path)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/world")
}

/// The clients that `scripts/clients.sh` installed, in the build directory.
fn clients() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
        .ancestors()
        .map(|directory| directory.join("test-clients"))
        .find(|place| place.join("ready").exists())
        .expect("the clients that these tests use are not installed: run `scripts/setup.sh test`")
}

/// A jail in a world whose servers run.
pub(crate) struct World {
    pub(crate) jail: Jail,
    upstream: Child,
    has_policy: bool,
}

impl World {
    pub(crate) fn new(who: Who) -> World {
        assert!(
            env::var_os(MARK).is_some(),
            "a world is used from `for_each_user_in_a_world!` alone"
        );
        let mut upstream = Command::new(PYTHON)
            .arg(sources().join("upstream.py"))
            .arg(PLACE)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the servers of the world");
        let mut line = String::new();
        BufReader::new(upstream.stdout.take().expect("a pipe"))
            .read_line(&mut line)
            .expect("read from the servers");
        assert_eq!(line, "ready\n", "the servers did not start");
        World {
            jail: Jail::new(who),
            upstream,
            has_policy: false,
        }
    }

    /// Runs under moderate with these rules, one line of YAML each, and these further sections, from now on.
    pub(crate) fn rules(&mut self, rules: &[&str], sections: &str) -> &mut World {
        let rules: String = rules.iter().map(|rule| format!("  - {rule}\n")).collect();
        // What the servers wrote down is for the test alone.
        let text = format!(
            "extends: moderate\nfilesystem_config: {{hidden_paths: [{PLACE}]}}\nnetwork_egress_rules:\n{rules}{sections}"
        );
        self.policy(&text)
    }

    /// Runs under this capability document from now on.
    pub(crate) fn policy(&mut self, yaml: &str) -> &mut World {
        match std::mem::replace(&mut self.has_policy, true) {
            true => {
                let path = self.jail.base.join("policy.yaml");
                self.jail.put(&path, &self.jail.document(yaml));
            }
            false => {
                self.jail.policy(yaml);
            }
        }
        self
    }

    /// What arrived at the servers so far.
    pub(crate) fn seen(&self) -> Vec<Value> {
        let text = fs::read_to_string(Path::new(PLACE).join("seen.jsonl")).expect("a journal");
        text.lines()
            .map(|line| serde_json::from_str(line).expect("a line of JSON"))
            .collect()
    }

    /// What arrived since the last look, of one kind.
    pub(crate) fn seen_since(&self, before: usize, kind: &str) -> Vec<Value> {
        let mut seen = self.seen().split_off(before);
        seen.retain(|entry| entry["kind"] == kind);
        seen
    }

    /// Copies a program of the tests into the workspace; its path.
    pub(crate) fn program(&self, name: &str) -> String {
        let path = self.jail.work.join(name);
        let text = fs::read_to_string(sources().join("clients").join(name))
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        self.jail.put(&path, &text);
        path.to_string_lossy().into_owned()
    }

    /// Runs a shell command in the box.
    #[track_caller]
    pub(crate) fn shell(&self, script: &str) -> Outcome {
        self.jail.run(&["/bin/sh", "-euc", script])
    }

    /// Runs a Python program of the tests in the box.
    #[track_caller]
    pub(crate) fn python(&self, name: &str, arguments: &[&str]) -> Outcome {
        let program = self.program(name);
        let mut words = vec![PYTHON, "-B", &program];
        words.extend(arguments);
        self.jail.run(&words)
    }

    /// The same outside the box, as the same user, in the same world.
    #[track_caller]
    pub(crate) fn python_outside(&self, name: &str, arguments: &[&str]) -> Finished {
        let program = self.program(name);
        let mut command = self.jail.outside(PYTHON);
        command
            .env("SSL_CERT_FILE", format!("{PLACE}/authority.pem"))
            .arg("-B")
            .arg(program)
            .args(arguments);
        finish(command.spawn().expect("start a client"))
    }

    /// Shows that an attempt works outside, then demands that the box refuses it and says so with this code.
    #[track_caller]
    pub(crate) fn evade(&self, attempts: &[(&str, &[&str])]) {
        let names: Vec<&str> = attempts.iter().map(|(name, _)| *name).collect();
        let control = Attempt::parse(&self.python_outside("evade.py", &names).stdout());
        let reported: Vec<&str> = control
            .iter()
            .map(|attempt| attempt.name.as_str())
            .collect();
        assert_eq!(reported, names, "an attempt outside is missing");
        super::assert_all_allowed(&control);
        let failures: Vec<String> = attempts
            .iter()
            .filter_map(|(name, expected)| self.evade_in_the_box(name, expected).err())
            .collect();
        assert!(failures.is_empty(), "{}", failures.join("\n"));
    }

    fn evade_in_the_box(&self, name: &str, expected: &[&str]) -> Result<(), String> {
        let before = self.seen().len();
        let outcome = self.python("evade.py", &[name]);
        let found = outcome.attempts();
        let escaped = self.escaped(before);
        let codes = codes(&outcome);
        let is_expected = |code: &String| expected.contains(&code.as_str());
        let recorded = self.recorded(outcome.sandbox_id());
        match found.as_slice() {
            [attempt] if attempt.name == name && !attempt.allowed => {}
            _ => return Err(format!("{name} was not refused: {outcome:#?}")),
        }
        if !escaped.is_empty() {
            return Err(format!("{name} reached a server: {escaped:#?}"));
        }
        if !codes.iter().any(is_expected) {
            return Err(format!(
                "{name}: none of {expected:?} in the result's {codes:?}: {found:?}"
            ));
        }
        match recorded.iter().any(is_expected) {
            true => Ok(()),
            false => Err(format!(
                "{name}: none of {expected:?} on record: {recorded:?}"
            )),
        }
    }

    /// What arrived that no rule lets out: addresses that stand for the forbidden, and marked requests.
    fn escaped(&self, before: usize) -> Vec<Value> {
        let mut seen = self.seen().split_off(before);
        seen.retain(|entry| {
            let text = entry.to_string();
            let at = entry["at"].as_str().unwrap_or_default();
            let forbidden = [
                "93.184.216.35",
                "2606:2800:220:1::2",
                "8.8.8.8",
                "10.9.8.7",
                "169.254.169.254",
            ];
            let dns = entry["kind"] == "dns";
            (!dns && at.ends_with("127.0.0.1"))
                || forbidden.iter().any(|address| at.ends_with(address))
                || entry["kind"] == "udp"
                || text.contains("forbidden")
        });
        seen
    }

    /// The codes of what the log of runs says was refused in a run.
    pub(crate) fn recorded(&self, id: &str) -> Vec<String> {
        let command = self.jail.belljar(&["audit", "show", "--output", "json"]);
        let finished = finish(super::jail::spawn(command));
        let said = finished.stdout();
        let entries = said.lines().map(|line| -> Value {
            serde_json::from_str(line)
                .unwrap_or_else(|error| panic!("{error}: {said}\n{}", finished.stderr()))
        });
        entries
            .filter(|entry| entry["what"]["run"] == id && entry["what"]["kind"] == "egress_refused")
            .filter_map(|entry| entry["what"]["code"].as_str().map(str::to_owned))
            .collect()
    }
}

/// The result has a refusal with one of these codes.
#[track_caller]
pub(crate) fn assert_recorded(outcome: &Outcome, name: &str, expected: &[&str]) {
    let codes = codes(outcome);
    assert!(
        codes.iter().any(|code| expected.contains(&code.as_str())),
        "{name}: none of {expected:?} in {codes:?}: {outcome:#?}"
    );
}

/// The codes of a result's refusals.
pub(crate) fn codes(outcome: &Outcome) -> Vec<String> {
    let refusals = outcome.json["network"]["refusals"].as_array();
    refusals
        .into_iter()
        .flatten()
        .filter_map(|refusal| refusal["code"].as_str().map(str::to_owned))
        .collect()
}

impl Drop for World {
    fn drop(&mut self) {
        // The servers end with their input.
        drop(self.upstream.stdin.take());
        self.upstream.wait().ok();
    }
}

/// Turns `fn name(who: Who)` into one test per user, each in a world of its own.
macro_rules! for_each_user_in_a_world {
    ($($name:ident),+ $(,)?) => {
        mod as_root {
            use $crate::support::{Who, in_a_world};
            $(#[test] fn $name() { in_a_world(Who::Root, concat!("as_root::", stringify!($name)), super::$name) })+
        }
        mod as_user {
            use $crate::support::{Who, in_a_world};
            $(#[test] fn $name() { in_a_world(Who::User, concat!("as_user::", stringify!($name)), super::$name) })+
        }
    };
}
pub(crate) use for_each_user_in_a_world;

/// The same on other tiers.
macro_rules! on_other_tiers_in_a_world {
    ($($name:ident),+ $(,)?) => {
        $crate::support::on_other_tiers_in_a_world!(@ gvisor, on_gvisor, $($name),+);
        $crate::support::on_other_tiers_in_a_world!(@ container, in_container, $($name),+);
    };
    (@ $tier:ident, $on:ident, $($name:ident),+) => {
        mod $tier {
            mod as_root {
                use $crate::support::{Who, in_a_world, $on};
                $(#[test] fn $name() {
                    $on(|| in_a_world(Who::Root, concat!(stringify!($tier), "::as_root::", stringify!($name)), super::super::$name))
                })+
            }
            mod as_user {
                use $crate::support::{Who, in_a_world, $on};
                $(#[test] fn $name() {
                    $on(|| in_a_world(Who::User, concat!(stringify!($tier), "::as_user::", stringify!($name)), super::super::$name))
                })+
            }
        }
    };
}
pub(crate) use on_other_tiers_in_a_world;
