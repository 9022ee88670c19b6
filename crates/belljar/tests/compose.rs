//! The repository's Dockerfile and compose.yaml, on a real engine: the image is built, the daemon of compose.yaml runs with
//! what that file gives it and no more, and boxes stand in it. As root alone.
//!
//! Debian 12's `docker-compose` is too old for the file (`systempaths=unconfined` is a client's word, not the engine's), so its
//! settings are read here and handed to `docker run`, which knows them by the same words.

mod support;

use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::{Command, Output};

use support::{Dockerd, Scratch, Storage, Who, eventually, image_tree};

const DOCKERFILE: &str = include_str!("../../../Dockerfile");
const COMPOSE: &str = include_str!("../../../compose.yaml");

/// A service's settings, each with its values.
type Settings = Vec<(String, Vec<String>)>;

/// The settings in the block below a line, as far as compose.yaml's style goes: flow lists, or one item a line.
fn block(header: &str) -> Settings {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut lines = COMPOSE
        .lines()
        .filter(|line| !line.trim().is_empty() && !line.trim().starts_with('#'))
        .skip_while(|line| *line != header);
    let depth = indent(lines.next().expect("the block"));
    let mut settings = Settings::new();
    for line in lines.take_while(|line| indent(line) > depth) {
        let plain = |text: &str| text.trim().trim_matches('"').to_owned();
        if let Some(item) = line.trim().strip_prefix("- ") {
            let (_, values) = settings.last_mut().expect("a setting");
            values.push(plain(item));
            continue;
        }
        let (name, value) = line.trim().split_once(':').expect("a setting");
        let values = match value.trim().strip_prefix('[') {
            None if value.trim().is_empty() => Vec::new(),
            None => vec![plain(value)],
            Some(list) => serde_json::from_str(value).unwrap_or_else(|_| {
                let list = list.trim_end_matches(']');
                list.split(',').map(plain).collect()
            }),
        };
        settings.push((name.to_owned(), values));
    }
    settings
}

/// What compose.yaml says of a service, in the words of `docker run`: options, and the command.
fn options(service: &str, context: &Path) -> (Vec<String>, Vec<String>) {
    let own = block(&format!("  {service}:"));
    let shared = block("x-belljar: &belljar");
    let shared = shared
        .into_iter()
        .filter(|(name, _)| own.iter().all(|(other, _)| other != name));
    let (mut options, mut command) = (Vec::new(), Vec::new());
    for (name, values) in shared.chain(own.clone()) {
        let mut each = |option: &str| {
            for value in &values {
                options.extend([option.to_owned(), value.clone()]);
            }
        };
        match name.as_str() {
            "<<" | "build" | "profiles" | "image" | "restart" => {}
            "init" | "read_only" => options.push(format!("--{}", name.replace('_', "-"))),
            "user" | "tmpfs" => each(&format!("--{name}")),
            "cap_drop" => each("--cap-drop"),
            "security_opt" => each("--security-opt"),
            "network_mode" => each("--network"),
            "command" => command = values,
            "volumes" => options.extend(values.iter().flat_map(|volume| {
                let volume = match volume.strip_prefix("./") {
                    Some(below) => context.join(below).display().to_string(),
                    None => volume.clone(),
                };
                ["--volume".to_owned(), volume]
            })),
            other => panic!("compose.yaml has a setting that this test does not hand on: {other}"),
        }
    }
    (options, command)
}

/// The context of a build: the Dockerfile, a binary where it expects one, and a workspace.
fn context(place: &Path) {
    let release = place.join("target/release");
    fs::create_dir_all(&release).expect("directories");
    fs::create_dir(place.join("workspace")).expect("a workspace");
    chown(place.join("workspace"), Some(1000), Some(1000)).expect("given away");
    fs::write(place.join("Dockerfile"), DOCKERFILE).expect("a file");
    let stripped = Command::new("strip")
        .arg("-o")
        .arg(release.join("belljar"))
        .arg(support::belljar())
        .status();
    assert!(stripped.expect("strip").success());
}

fn said(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr].concat();
    String::from_utf8_lossy(&both).into_owned()
}

mod as_root_alone {
    use super::*;

    #[test]
    fn the_daemon_of_compose_runs_with_what_it_says_and_boxes_stand_in_it() {
        Who::Root.require();
        let scratch = Scratch::below("/tmp");
        let engine = Dockerd::start_with(&scratch.path().join("engine"), Storage::Overlay);
        let base = DOCKERFILE
            .lines()
            .find_map(|line| line.strip_prefix("ARG BASE="));
        let (repository, tag) = base.and_then(|it| it.split_once(':')).expect("a base");
        let import = format!("/images/create?fromSrc=-&repo={repository}&tag={tag}");
        engine.send(&import, &image_tree());
        let place = scratch.path().join("context");
        context(&place);
        engine.send("/build?t=belljar&version=1", &place);

        let (daemon, command) = options("daemon", &place);
        assert!(command.is_empty(), "{command:?}");
        let start = ["run", "--detach", "--name", "daemon"];
        let daemon: Vec<&str> = daemon.iter().map(String::as_str).collect();
        let started = engine.docker(&[&start[..], &daemon, &["belljar"]].concat());
        assert!(started.status.success(), "{}", said(&started));
        let ask = |words: &[&str]| engine.docker(&[&["exec", "daemon"], words].concat());
        eventually("the daemon answers", || {
            let status = ask(&["belljar", "supervisor", "status"]).status;
            status.success().then_some(())
        });
        // It has no right that it could lose, and can gain none.
        let status = said(&ask(&["cat", "/proc/1/status"]));
        for line in ["CapEff:\t0000000000000000", "NoNewPrivs:\t1", "Uid:\t1000"] {
            assert!(status.contains(line), "{line}: {status}");
        }
        let script = "id -u > /workspace/up; sleep 1000";
        let agent = [
            "belljar", "sandbox", "--name", "ann", "--", "sh", "-c", script,
        ];
        let agent = ask(&agent);
        assert!(agent.status.success(), "{}", said(&agent));
        eventually("the agent is at work", || {
            let up = fs::read_to_string(place.join("workspace/up"));
            up.is_ok_and(|text| text == "1000\n").then_some(())
        });
        let status = said(&ask(&["belljar", "supervisor", "status"]));
        assert!(status.contains("ann"), "{status}");

        // One box without a daemon. What compose.yaml asks the engine to leave out is needed.
        let (lone, _) = options("agent", &place);
        let run = |options: &[&str]| {
            let program = ["belljar", "run", "--", "sh", "-c", "echo in the box"];
            engine.docker(&[&["run", "--rm"], options, &program].concat())
        };
        let lone: Vec<&str> = lone.iter().map(String::as_str).collect();
        let ran = run(&lone);
        assert!(
            ran.status.success() && said(&ran).contains("in the box\n"),
            "{}",
            said(&ran)
        );
        for needed in ["seccomp:unconfined", "systempaths=unconfined"] {
            let at = lone.iter().position(|word| *word == needed);
            let at = at.unwrap_or_else(|| panic!("compose.yaml does not have {needed}"));
            let without = [&lone[..at - 1], &lone[at + 1..]].concat();
            let ran = run(&without);
            assert!(!ran.status.success(), "{needed}: {}", said(&ran));
            assert!(!said(&ran).contains("in the box\n"), "{}", said(&ran));
        }
        let ended = engine.docker(&["rm", "--force", "--volumes", "daemon"]);
        assert!(ended.status.success(), "{}", said(&ended));
        drop(engine);
    }
}
