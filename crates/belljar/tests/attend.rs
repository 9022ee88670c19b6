//! Attending boxes as a fleet does: admission before the first instruction, usage on the way, many at once.

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::time::Duration;

use belljar_supervisor::{
    Assignment, Attendant, BoxState, Facts, Output, Refusal, Reins, RunError, SandboxId, Usage,
};
use support::{Who, Yard, attend_admitted, eventually, for_each_user_apart};

/// Writes down what happens, in order.
#[derive(Default)]
struct Diary {
    entries: Vec<String>,
    usages: Vec<Usage>,
    refuse: Option<Refusal>,
    look_every: Option<Duration>,
    /// To be made when enough was seen.
    when_seen: Option<PathBuf>,
    /// What ran in the box while admission was asked, by its first argument.
    seen_at_the_gate: Vec<String>,
}

impl Attendant for Diary {
    fn admit(&mut self, facts: &Facts<'_>) -> Result<(), Refusal> {
        assert_eq!(facts.reins.state(), BoxState::Starting);
        assert!(facts.plan.identity.uid != 0);
        self.entries.push("admit".into());
        self.seen_at_the_gate = children_of(facts.pid);
        match self.refuse.clone() {
            Some(refusal) => Err(refusal),
            None => Ok(()),
        }
    }

    fn started(&mut self, facts: &Facts<'_>) {
        assert!(facts.pid > 0);
        self.entries.push("started".into());
    }

    fn look_every(&self) -> Option<Duration> {
        self.look_every
    }

    fn looked(&mut self, usage: &Usage) {
        self.usages.push(*usage);
        let enough = usage.cpu_ms > 0 && usage.processes.is_none_or(|count| count >= 2);
        if enough && let Some(path) = self.when_seen.take() {
            fs::write(path, "").expect("tell the box");
        }
    }
}

/// What the children of a box's pid 1 execute.
fn children_of(pid: i32) -> Vec<String> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.expect("the box's pid 1 is there");
    let line = |child: &str| fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
    children
        .split_whitespace()
        .map(|child| String::from_utf8_lossy(&line(child)).replace('\0', " "))
        .collect()
}

fn admission_comes_before_the_first_instruction(who: Who) {
    let yard = Yard::new(who);
    let mut diary = Diary::default();
    let command = yard.command(&["sh", "-c", "touch ran"]);
    let reins = Reins::new().expect("reins");
    let result = yard.attend(&command, &reins, &mut diary);
    assert_eq!(result.expect("a result").exit_code, Some(0));
    assert_eq!(diary.entries, ["admit", "started"]);
    // One process waits at the gate, and it is not yet the program.
    let [waiting] = diary.seen_at_the_gate.as_slice() else {
        panic!("{:?}", diary.seen_at_the_gate);
    };
    assert!(!waiting.contains("touch ran"), "{waiting}");
    assert!(yard.has("ran"));
    yard.assert_nothing_left();
}

fn who_is_not_admitted_never_runs(who: Who) {
    let yard = Yard::new(who);
    let mut diary = Diary {
        refuse: Some(Refusal {
            code: "deny_quota",
            what: "two boxes are enough".into(),
            hint: "wait".into(),
        }),
        ..Diary::default()
    };
    let reins = Reins::new().expect("reins");
    let result = yard.attend(&yard.command(&["touch", "ran"]), &reins, &mut diary);
    match result {
        Err(error @ RunError::NotAdmitted { .. }) => {
            assert_eq!(error.code(), "deny_quota");
            assert_eq!(error.to_string(), "not admitted: two boxes are enough");
            assert_eq!(error.hint().as_deref(), Some("wait"));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(diary.entries, ["admit"]);
    assert!(!yard.has("ran"));
    yard.assert_nothing_left();
}

fn a_program_that_can_not_start_is_an_error_after_admission(who: Who) {
    let yard = Yard::new(who);
    let script = yard.jail.work.join("script");
    yard.jail.put(&script, "#!/no/such/interpreter\n");
    fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .expect("mode");
    let mut diary = Diary::default();
    let command = yard.command(&[script.to_str().expect("UTF-8")]);
    let result = yard.attend(&command, &Reins::new().expect("reins"), &mut diary);
    assert!(
        matches!(result, Err(RunError::NotFound { .. })),
        "{result:?}"
    );
    yard.assert_nothing_left();
}

fn usage_is_told_on_the_way_and_at_the_end(who: Who) {
    let yard = Yard::new(who);
    let mut diary = Diary {
        look_every: Some(Duration::from_millis(5)),
        when_seen: Some(yard.jail.work.join("seen")),
        ..Diary::default()
    };
    // Works until somebody has seen it work.
    let script = "sleep 600 & while [ ! -e seen ]; do :; done; kill $!";
    let command = yard.command(&["sh", "-c", script]);
    let result = yard
        .attend(&command, &Reins::new().expect("reins"), &mut diary)
        .expect("a result");
    assert!(!diary.usages.is_empty());
    let most = |of: fn(&Usage) -> u64| diary.usages.iter().map(of).max().unwrap_or_default();
    assert!(most(|usage| usage.cpu_ms) > 0, "{:?}", diary.usages);
    assert!(most(|usage| usage.memory_bytes) > 0);
    assert!(most(|usage| usage.peak_memory_bytes) > 0);
    assert!(most(|usage| usage.processes.unwrap_or_default()) >= 2);
    let mut times: Vec<u64> = diary.usages.iter().map(|usage| usage.cpu_ms).collect();
    let told = times.clone();
    times.sort_unstable();
    assert_eq!(told, times, "CPU time ran backwards");
    assert!(result.resource_usage.cpu_seconds * 1000.0 + 1.0 >= most(|usage| usage.cpu_ms) as f64);
    assert!(result.resource_usage.peak_memory_mb > 0.0);
    assert!(
        result
            .resource_usage
            .peak_processes
            .is_none_or(|most| most >= 2)
    );
}

fn output_to_files_is_bounded(who: Who) {
    let yard = Yard::new(who);
    let paths = ["out", "err"].map(|name| yard.jail.base.join(name));
    let [stdout, stderr] = paths
        .each_ref()
        .map(|path| fs::File::create(path).expect("a file"));
    let script = "yes | head -c 100000; echo short >&2; read line; echo \"input: $?\" >&2";
    let (id, capability) = (SandboxId::random().expect("an id"), yard.capability());
    let command = yard.command(&["sh", "-c", script]);
    let assignment = Assignment::new(&id, &capability, &command, &yard.state);
    let limit = 5_000;
    let assignment = assignment.output(Output::Files {
        stdout,
        stderr,
        limit,
    });
    let result = attend_admitted(&yard.state, assignment, &mut ()).expect("a result");
    assert_eq!((result.exit_code, result.stdout.as_ref()), (Some(0), None));
    assert!(
        result.stdout_truncated && !result.stderr_truncated,
        "{result:#?}"
    );
    let [mut out, mut err] = [String::new(), String::new()];
    for (path, text) in paths.iter().zip([&mut out, &mut err]) {
        let mut file = fs::File::open(path).expect("the file");
        file.read_to_string(text).expect("its text");
    }
    assert_eq!(out, "y\n".repeat(2_500));
    assert_eq!(err, "short\ninput: 1\n");
}

/// What a process has only one of does not matter: its umask, its directory, the signals it blocks.
fn a_box_does_not_depend_on_its_keepers_process(who: Who) {
    let yard = Yard::new(who);
    // The record's own files are made beforehand: they are the gate's, not the box's.
    yard.run(&yard.command(&["true"]));
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o377));
    std::env::set_current_dir("/proc").expect("another directory");
    let script = "cat /belljar/text; pwd; umask 022; touch made; ls -ld /tmp | cut -c1-10";
    let shown = belljar_supervisor::Show::Text {
        name: belljar_supervisor::ShowName::new("text").expect("a name"),
        bytes: b"shown\n"[..].into(),
    };
    let command = yard.command(&["sh", "-c", script]).show(shown);
    let result = yard.run(&command);
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let expected = format!("shown\n{}\ndrwxrwxrwt\n", yard.jail.work.display());
    assert_eq!(result.stdout, Some(expected), "{result:#?}");
    assert!(yard.has("made"));
}

/// A keeper's own need for descriptors is no concern of its boxes.
fn boxes_keep_the_usual_limit_on_open_files(who: Who) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let yard = Yard::new(who);
    let low = Rlimit {
        current: Some(300),
        ..getrlimit(Resource::Nofile)
    };
    setrlimit(Resource::Nofile, low).expect("a low limit");
    belljar_supervisor::raise_descriptor_limit().expect("more descriptors");
    assert_eq!(getrlimit(Resource::Nofile).current, low.maximum);
    let (id, mut capability) = (SandboxId::random().expect("an id"), yard.capability());
    capability.limits.open_files = None;
    let command = yard.command(&["sh", "-c", "ulimit -Sn"]);
    let assignment = Assignment::new(&id, &capability, &command, &yard.state);
    let result = attend_admitted(&yard.state, assignment, &mut ()).expect("a result");
    assert_eq!(result.stdout.as_deref(), Some("300\n"));
}

/// Many keepers in one process, all boxes up at the same time, each heard and each killed or let go by its own reins.
fn many_boxes_in_one_process(who: Who) {
    const BOXES: usize = 24;
    let yard = Yard::new(who);
    belljar_supervisor::raise_descriptor_limit().expect("more descriptors");
    let reins: Vec<Reins> = (0..BOXES).map(|_| Reins::new().expect("reins")).collect();
    let results = std::thread::scope(|scope| {
        let attending: Vec<_> = reins
            .iter()
            .enumerate()
            .map(|(number, reins)| {
                let yard = &yard;
                scope.spawn(move || {
                    let script = format!(
                        "echo {number}; touch up-{number}; while [ ! -e go ]; do sleep 0.05; done"
                    );
                    let mut diary = Diary::default();
                    let result =
                        yard.attend(&yard.command(&["sh", "-c", &script]), reins, &mut diary);
                    assert_eq!(diary.entries, ["admit", "started"]);
                    result.expect("a result")
                })
            })
            .collect();
        (0..BOXES).for_each(|number| yard.await_file(&format!("up-{number}")));
        // Every second one is killed; the others must not notice.
        let killed = reins.iter().step_by(2);
        killed.for_each(|reins| reins.kill(belljar_supervisor::KillCode::KILL_SWITCH));
        eventually("the killed ones end", || {
            let mut killed = attending.iter().step_by(2);
            killed.all(|thread| thread.is_finished()).then_some(())
        });
        let mut others = reins.iter().skip(1).step_by(2);
        assert!(others.all(|reins| reins.state() == BoxState::Running));
        yard.jail.put(&yard.jail.work.join("go"), "");
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| thread.join().expect("no panic");
        attending.into_iter().map(join).collect::<Vec<_>>()
    });
    let mut ids = BTreeSet::new();
    for (number, result) in results.iter().enumerate() {
        let said = result.stdout.as_deref().unwrap_or_default();
        assert_eq!(said, format!("{number}\n"));
        assert_eq!(result.killed_by.is_some(), number % 2 == 0, "{result:#?}");
        assert!(ids.insert(&result.sandbox_id));
    }
    yard.assert_nothing_left();
}

for_each_user_apart!(
    admission_comes_before_the_first_instruction,
    who_is_not_admitted_never_runs,
    a_program_that_can_not_start_is_an_error_after_admission,
    usage_is_told_on_the_way_and_at_the_end,
    output_to_files_is_bounded,
    a_box_does_not_depend_on_its_keepers_process,
    boxes_keep_the_usual_limit_on_open_files,
    many_boxes_in_one_process,
);
