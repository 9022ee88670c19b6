//! One test's world: a home directory with things to steal, a workspace in it, and ways to run programs in a box
//! and, for comparison, outside one.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, lchown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use super::build::reachable_by_others;
use super::leftovers::assert_nothing_left;
use super::outcome::{Attempt, Outcome};
use super::watch::{Finished, finish};
use super::{GVISOR, MICROVM, Who, belljar, probe, runner_is_root};

pub(crate) const SSH_SECRET: &str = "not a real private key";
pub(crate) const AWS_SECRET: &str = "not a real access key";
pub(crate) const NETRC_SECRET: &str = "machine example.org password not-real";
pub(crate) const DOTENV_SECRET: &str = "DATABASE_PASSWORD=not-real";

/// Which `runsc` the boxes on gVisor have, where the suite is run with another one than the host's.
const RUNSC: &str = "BELLJAR_RUNSC";
const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A fresh home and workspace owned by one user. Removed when dropped.
pub(crate) struct Jail {
    pub(crate) who: Who,
    /// The test's own directory. Its path is in everything the test starts, and so marks it.
    pub(crate) base: PathBuf,
    pub(crate) home: PathBuf,
    pub(crate) work: PathBuf,
    pub(crate) state: PathBuf,
    belljar: PathBuf,
    options: Vec<OsString>,
    variables: Vec<(String, String)>,
    tier: Option<&'static str>,
}

impl Jail {
    pub(crate) fn new(who: Who) -> Jail {
        Jail::below(who, &usual_place())
    }

    /// A world below a directory of the caller's choice.
    pub(crate) fn below(who: Who, place: &Path) -> Jail {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let base = place.join(format!("belljar-test-{}-{number:04}", std::process::id()));
        let home = base.join("home");
        let jail = Jail {
            who,
            work: home.join("project"),
            state: base.join("state"),
            belljar: base.join("belljar"),
            home,
            base,
            options: Vec::new(),
            variables: Vec::new(),
            tier: super::tier(),
        };
        fs::create_dir_all(&jail.base).expect("create the test's directory");
        jail.furnish();
        if jail.tier == Some(super::CONTAINER) {
            super::provide_image(&jail.state, belljar_image::ImageConfig::default());
            jail.own(&jail.state);
        }
        jail
    }

    fn furnish(&self) {
        for directory in [&self.work, &self.state] {
            fs::create_dir_all(directory).expect("create a directory of the test");
        }
        let files = [
            (".ssh/id_ed25519", SSH_SECRET),
            (".aws/credentials", AWS_SECRET),
            (".netrc", NETRC_SECRET),
            (".bashrc", "# shell start-up"),
            ("notes.txt", "the user's notes"),
            ("other/.env", DOTENV_SECRET),
            ("other/readme.txt", "another project"),
            ("project/main.txt", "the agent's work"),
            ("project/.env", "PROJECT_SETTING=1"),
            ("project/.git/config", "[core]\n"),
            ("project/.git/hooks/pre-commit.sample", "#!/bin/sh\n"),
            ("project/.git/HEAD", "ref: refs/heads/main\n"),
        ];
        for (path, text) in files {
            self.put(&self.home.join(path), text);
        }
        let program = self.probe_path();
        fs::create_dir_all(program.parent().expect("a parent"))
            .expect("create the probe's directory");
        fs::copy(probe(), &program).expect("copy the probe");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755))
            .expect("make the probe executable");
        self.own(&self.home);
        self.own(&self.state);
        if !reachable_by_others(&belljar()) && !self.who.is_runner() {
            fs::copy(belljar(), &self.belljar).expect("copy belljar to where the user can run it");
        }
    }

    /// A pipe with a name in the workspace, open at both ends: nobody waits to open it.
    pub(crate) fn fifo(&self, name: &str) -> fs::File {
        let path = self.work.join(name);
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.expect("mkfifo").success(), "make a pipe");
        self.own(&path);
        let mut options = fs::File::options();
        options.read(true).write(true).open(&path).expect("open it")
    }

    /// Writes a file outside the box, as the host's user would, owned by that user.
    pub(crate) fn put(&self, path: &Path, text: &str) {
        let parent = path.parent().expect("a file has a parent");
        let fresh = parent
            .ancestors()
            .take_while(|above| !above.exists())
            .last()
            .map(Path::to_owned);
        fs::create_dir_all(parent).expect("create a parent directory");
        fs::write(path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        self.own(fresh.as_deref().unwrap_or(path));
    }

    /// Gives a tree to the user.
    pub(crate) fn own(&self, path: &Path) {
        if !runner_is_root() {
            return;
        }
        let id = Some(self.who.uid());
        lchown(path, id, id).expect("give a file to the user");
        if path.is_dir() && !path.is_symlink() {
            for entry in fs::read_dir(path).expect("read a directory of the test") {
                self.own(&entry.expect("a directory entry").path());
            }
        }
    }

    pub(crate) fn probe_path(&self) -> PathBuf {
        self.work.join("tools/probe")
    }

    pub(crate) fn work_file(&self, name: &str) -> String {
        self.work.join(name).to_string_lossy().into_owned()
    }

    pub(crate) fn home_file(&self, name: &str) -> String {
        self.home.join(name).to_string_lossy().into_owned()
    }

    /// Adds an option to every run.
    pub(crate) fn option(&mut self, words: &[&str]) -> &mut Jail {
        self.options.extend(words.iter().map(OsString::from));
        self
    }

    /// Options of every run. A profile on another tier is a document that extends it.
    pub(crate) fn run_options(&self) -> Vec<OsString> {
        let mut options = self.options.clone();
        let Some(tier) = self.tier else {
            return options;
        };
        let of =
            |name: &str, long: &str| options.iter().position(|word| word == name || word == long);
        if of("-c", "--config").is_some() {
            return options;
        }
        let profile = match of("-p", "--profile") {
            Some(at) => options.splice(at..at + 2, []).nth(1),
            None => None,
        };
        let profile = profile.unwrap_or_else(|| "moderate".into());
        let path = self.base.join("tier.yaml");
        let document = format!(
            "extends: {}\n{}{}",
            profile.to_string_lossy(),
            super::tier_lines(tier),
            // A small guest is sooner there.
            match tier {
                MICROVM => "resource_limits: {max_memory_mb: 512}\n",
                _ => "",
            }
        );
        // Others may be reading it: boxes are started side by side.
        if fs::read_to_string(&path).ok().as_ref() != Some(&document) {
            self.put(&path, &document);
        }
        options.extend(["--config".into(), path.into_os_string()]);
        options
    }

    /// Runs under this capability document.
    pub(crate) fn policy(&mut self, yaml: &str) -> &mut Jail {
        let path = self.base.join("policy.yaml");
        self.put(&path, &self.document(yaml));
        self.option(&["--config", &path.to_string_lossy()])
    }

    /// A capability document, of this jail's tier.
    pub(crate) fn document(&self, yaml: &str) -> String {
        let lines = self.tier.map(super::tier_lines).unwrap_or_default();
        lines + yaml
    }

    /// Moderate with these limits on top, one `name: value` each.
    pub(crate) fn limits(&mut self, limits: &[&str]) -> &mut Jail {
        let lines: String = limits.iter().map(|limit| format!("  {limit}\n")).collect();
        self.policy(&format!("extends: moderate\nresource_limits:\n{lines}"))
    }

    pub(crate) fn variable(&mut self, name: &str, value: &str) -> &mut Jail {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// A program started as the user in the workspace, outside any box.
    pub(crate) fn outside(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("PATH", SEARCH_PATH)
            .env("LANG", "C.UTF-8")
            .env("TERM", "dumb");
        command
            .env("HOME", &self.home)
            .env("BELLJAR_STATE_DIR", &self.state)
            // What the machine has is none of a test's.
            .env("BELLJAR_RUNTIME_DIR", self.base.join("runtime"));
        if self.tier == Some(MICROVM) && !self.belljar.exists() {
            command.env("BELLJAR_GUEST_STORE", self.guest_store());
        }
        if let (Some(GVISOR), Some(runsc)) = (self.tier, std::env::var_os(RUNSC)) {
            command.env(RUNSC, runsc);
        }
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
            .current_dir(&self.work)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if !self.who.is_runner() {
            // Also drops supplementary groups, since the runner is root here.
            command.uid(self.who.uid()).gid(self.who.uid());
        }
        command
    }

    /// Where all tests of this user, and this program, keep the guest that their boxes resume.
    pub(crate) fn guest_store(&self) -> PathBuf {
        let place = usual_place();
        let place = place.join(format!("belljar-test-guests-{}", self.who.uid()));
        fs::create_dir_all(&place).expect("create the store of guests");
        self.own_alone(&place);
        place
    }

    fn own_alone(&self, path: &Path) {
        if runner_is_root() {
            let id = Some(self.who.uid());
            lchown(path, id, id).expect("give a directory to the user");
        }
    }

    pub(crate) fn belljar_path(&self) -> PathBuf {
        if self.belljar.exists() {
            self.belljar.clone()
        } else {
            belljar()
        }
    }

    /// `belljar` with these arguments, as the user.
    pub(crate) fn belljar(&self, arguments: &[&str]) -> Command {
        let mut command = self.outside(self.belljar_path());
        command.args(arguments);
        command
    }

    /// `belljar run` with the options so far, in text mode.
    pub(crate) fn text_command(&self, words: &[&str]) -> Command {
        let mut command = self.belljar(&["run"]);
        command.args(self.run_options()).arg("--").args(words);
        command
    }

    /// `belljar run --output json` with the options so far.
    pub(crate) fn json_command(&self, words: &[&str]) -> Command {
        let mut command = self.belljar(&["run", "--output", "json"]);
        command.args(self.run_options()).arg("--").args(words);
        command
    }

    /// The options so far as a shell reads them.
    pub(crate) fn quoted_options(&self) -> String {
        let quote = |word: OsString| format!("'{}' ", word.to_string_lossy());
        self.run_options().into_iter().map(quote).collect()
    }

    /// Runs a program in the box to its end and checks that nothing of the run is left.
    #[track_caller]
    pub(crate) fn run(&self, words: &[&str]) -> Outcome {
        self.conclude(spawn(self.json_command(words)))
    }

    /// The same for a run that was started by hand.
    #[track_caller]
    pub(crate) fn conclude(&self, child: Child) -> Outcome {
        let outcome = Outcome::from_json(finish(child));
        let id = outcome.json["sandbox_id"].as_str();
        assert_nothing_left(&self.base, &self.state, id);
        outcome
    }

    #[track_caller]
    pub(crate) fn assert_nothing_left(&self, sandbox_id: Option<&str>) {
        assert_nothing_left(&self.base, &self.state, sandbox_id);
    }

    /// Runs the probe in the box.
    #[track_caller]
    pub(crate) fn inside(&self, arguments: &[&str]) -> Outcome {
        let program = self.probe_path();
        let mut words = vec![program.to_str().expect("a path in UTF-8")];
        words.extend(arguments);
        self.run(&words)
    }

    /// Runs the probe outside the box, as the same user, in the same place, with the same environment.
    #[track_caller]
    pub(crate) fn control(&self, arguments: &[&str]) -> Vec<Attempt> {
        let mut command = self.outside(self.probe_path());
        command.args(arguments);
        Attempt::parse(&finish(spawn(command)).stdout())
    }

    /// The probe with all of root's powers, or a namespace's root's: the control for calls that need them.
    #[track_caller]
    pub(crate) fn privileged_control(&self, arguments: &[&str]) -> Vec<Attempt> {
        let mut command = Command::new(self.probe_path());
        command
            .env_clear()
            .current_dir(&self.work)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        command
            .arg("privileged")
            .arg(self.probe_path())
            .args(arguments);
        Attempt::parse(&finish(spawn(command)).stdout())
    }

    /// Shows that each attempt works outside, then demands that the box refuses it. For attempts that can be
    /// repeated; returns the box's outcome for closer looks.
    #[track_caller]
    pub(crate) fn attack(&self, arguments: &[&str]) -> Outcome {
        let control = self.control(arguments);
        super::assert_all_allowed(&control);
        let outcome = self.inside(arguments);
        super::assert_all_refused(&outcome.attempts());
        let names =
            |attempts: &[Attempt]| attempts.iter().map(|a| a.name.clone()).collect::<Vec<_>>();
        assert_eq!(
            names(&control),
            names(&outcome.attempts()),
            "an attempt is missing from the box's report"
        );
        outcome
    }
}

impl Drop for Jail {
    fn drop(&mut self) {
        // A failed removal must not hide the test's own failure; the directory's name says whose it is.
        fs::remove_dir_all(&self.base).ok();
    }
}

#[track_caller]
pub(crate) fn spawn(mut command: Command) -> Child {
    command
        .spawn()
        .unwrap_or_else(|error| panic!("{}: {error}", command.get_program().to_string_lossy()))
}

/// Names the directory that is one world's alone: process ids are the same in all of them.
pub(crate) const WORLD_HOME: &str = "BELLJAR_TEST_WORLD_HOME";

/// Root works outside /tmp, whose contents a box replaces by its own; others have nowhere else to write.
pub(crate) fn usual_place() -> PathBuf {
    if let Some(place) = std::env::var_os(WORLD_HOME) {
        return place.into();
    }
    if !runner_is_root() {
        return std::env::temp_dir();
    }
    let place = PathBuf::from("/var/lib/belljar-tests");
    fs::create_dir_all(&place).expect("create the directory of the tests");
    chown(&place, Some(0), Some(0)).expect("own the directory of the tests");
    place
}
