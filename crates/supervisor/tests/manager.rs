//! The library, used as a program would use it.

use belljar_supervisor::{Command, KillCode, KilledBy, RunError, SandboxManager, StateDir};
use std::path::Path;
use std::time::Duration;

/// A manager with a state directory and a working directory of its own.
struct World {
    base: tempfile::TempDir,
    manager: SandboxManager,
}

impl World {
    fn new() -> Self {
        let base = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(base.path().join("work")).expect("a workspace");
        let state = StateDir::at(base.path().join("state")).expect("a state directory");
        Self {
            manager: SandboxManager::with_state(state),
            base,
        }
    }

    fn command(&self, words: &[&str]) -> Command {
        Command::new(words.iter().copied()).workdir(self.base.path().join("work"))
    }
}

fn moderate() -> belljar_policy::Capability {
    belljar_manifest::profile("moderate").expect("a shipped profile")
}

#[test]
fn a_command_runs_and_its_output_comes_back() {
    let world = World::new();
    let id = world.manager.create(moderate()).expect("create");
    let result = world
        .manager
        .execute(
            &id,
            &world.command(&["sh", "-c", "echo out; echo err >&2; exit 3"]),
        )
        .expect("execute");
    assert_eq!(result.exit_code, Some(3));
    assert_eq!(result.stdout.as_deref(), Some("out\n"));
    assert_eq!(result.stderr.as_deref(), Some("err\n"));
    world.manager.destroy(&id).expect("destroy");
    let gone = world.manager.execute(&id, &world.command(&["true"]));
    assert!(matches!(gone, Err(RunError::UnknownId { .. })));
}

#[test]
fn threads_share_a_manager() {
    let world = World::new();
    let id = world.manager.create(moderate()).expect("create");
    std::thread::scope(|scope| {
        for number in 0..8 {
            let (world, id) = (&world, &id);
            scope.spawn(move || {
                for _ in 0..5 {
                    let script = format!("echo {number} > f{number}; cat f{number}");
                    let result = world
                        .manager
                        .execute(id, &world.command(&["sh", "-c", &script]));
                    let stdout = result.expect("execute").stdout;
                    assert_eq!(stdout, Some(format!("{number}\n")));
                }
            });
        }
    });
    // Stand-ins, records and the like are gone; what the commands wrote is there.
    let left = std::fs::read_dir(world.base.path().join("work")).expect("the workspace");
    let mut left: Vec<String> = left
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    left.sort();
    assert_eq!(left, (0..8).map(|n| format!("f{n}")).collect::<Vec<_>>());
}

#[test]
fn destroying_a_sandbox_kills_what_runs_in_it() {
    let world = World::new();
    let id = world.manager.create(moderate()).expect("create");
    let up = world.base.path().join("work/up");
    let script = "setsid sleep 600 & touch up; sleep 600";
    let command = world.command(&["sh", "-c", script]);
    std::thread::scope(|scope| {
        let running = scope.spawn(|| world.manager.execute(&id, &command));
        wait_for(&up);
        world.manager.destroy(&id).expect("destroy");
        let result = running.join().expect("no panic").expect("a result");
        let by = KillCode::OPERATOR;
        assert_eq!(result.killed_by, Some(KilledBy::Killed { by }));
    });
}

#[test]
fn a_timeout_of_the_command_holds() {
    let world = World::new();
    let id = world.manager.create(moderate()).expect("create");
    let command = world
        .command(&["sleep", "600"])
        .timeout(Duration::from_millis(50));
    let result = world.manager.execute(&id, &command).expect("execute");
    assert_eq!(result.killed_by, Some(KilledBy::Timeout));
}

/// Until the file is there; the test runner bounds how long.
fn wait_for(path: &Path) {
    while !path.exists() {
        std::thread::yield_now();
    }
}
