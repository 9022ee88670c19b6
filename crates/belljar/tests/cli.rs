//! The commands beside `run`: what they print, where, and how they end.

mod support;

use std::fs;
use std::process::Stdio;

use serde_json::Value;
use support::{Finished, Jail, Scratch, Who, eventually, finish, for_each_user};

const ALLOWED: i32 = 0;
const DENIED: i32 = 1;

#[track_caller]
fn belljar(jail: &Jail, words: &[&str]) -> Finished {
    finish(jail.belljar(words).spawn().expect("start belljar"))
}

#[track_caller]
fn belljar_json(jail: &Jail, words: &[&str]) -> Value {
    let finished = belljar(jail, words);
    let text = finished.stdout();
    serde_json::from_str(&text)
        .unwrap_or_else(|error| panic!("{words:?}: {error}: {text}\n{}", finished.stderr()))
}

fn check_path_agrees_with_the_box(who: Who) {
    let jail = Jail::new(who);
    let other = Scratch::below("/var");
    let outside = other.file("note", "readable");
    for (path, write) in [
        (jail.work_file("main.txt"), false),
        (jail.work_file("main.txt"), true),
        (jail.work_file(".git/config"), false),
        (jail.work_file(".git/config"), true),
        (jail.work_file(".git/HEAD"), true),
        (jail.home_file("notes.txt"), false),
        (jail.home_file("notes.txt"), true),
        (jail.home_file(".ssh/id_ed25519"), false),
        (jail.home_file(".aws/credentials"), false),
        (jail.home_file("other/.env"), false),
        (jail.home_file("other/readme.txt"), false),
        (outside.clone(), false),
        (outside.clone(), true),
        ("/etc/hostname".to_owned(), false),
        ("/etc/hostname".to_owned(), true),
    ] {
        let mut words = vec!["check", "path", path.as_str()];
        words.extend(write.then_some("--write"));
        let said = belljar(&jail, &words);
        let inside = jail
            .inside(&[if write { "open-to-write" } else { "read" }, &path])
            .attempts();
        // A hidden file may be there and show nothing.
        let allowed =
            inside[0].allowed && !(inside[0].name == "read" && inside[0].detail.is_empty());
        let expected = if allowed { ALLOWED } else { DENIED };
        assert_eq!(
            said.code(),
            expected,
            "{words:?} says {:?}, the box {inside:?}",
            said.stdout()
        );
    }
}

fn check_explains_and_says_what_to_add(who: Who) {
    let jail = Jail::new(who);
    let key = jail.home_file(".ssh/id_ed25519");
    let said = belljar(&jail, &["check", "path", &key]);
    assert_eq!(said.code(), DENIED);
    assert!(said.stdout().contains("deny_hidden"), "{}", said.stdout());
    assert!(
        said.stdout().contains("readable_paths"),
        "{}",
        said.stdout()
    );
    let json = belljar_json(&jail, &["check", "path", &key, "--output", "json"]);
    assert!(json.to_string().contains("deny_hidden"), "{json}");
}

/// What `check` tells to add makes the box allow it.
fn the_hint_of_check_works(who: Who) {
    let mut jail = Jail::new(who);
    let key = jail.home_file(".ssh/id_ed25519");
    support::assert_all_refused(&jail.inside(&["read", &key]).attempts());
    jail.policy(&format!(
        "extends: moderate\nfilesystem_config:\n  readable_paths: [\"{key}\"]\n"
    ));
    support::assert_all_allowed(&jail.inside(&["read", &key]).attempts());
    support::assert_all_refused(&jail.inside(&["write", &key]).attempts());
}

fn check_env_host_and_tool(who: Who) {
    let mut jail = Jail::new(who);
    jail.variable("EDITOR", "ed").variable("API_TOKEN", "x");
    assert_eq!(belljar(&jail, &["check", "env", "PATH"]).code(), ALLOWED);
    for name in ["API_TOKEN", "EDITOR"] {
        assert_eq!(
            belljar(&jail, &["check", "env", name]).code(),
            DENIED,
            "{name}"
        );
    }
    assert!(
        !belljar(&jail, &["check", "env", "API_TOKEN"])
            .stdout()
            .contains("=x")
    );
    for host in ["example.org", "example.org:443", "127.0.0.1:80", "[::1]:80"] {
        let said = belljar(&jail, &["check", "host", host]);
        assert_eq!(
            said.code(),
            DENIED,
            "{host}: {}{}",
            said.stdout(),
            said.stderr()
        );
    }
    let said = belljar(&jail, &["check", "tool", "files:read"]);
    assert!(
        [ALLOWED, DENIED].contains(&said.code()),
        "{}",
        said.stderr()
    );
}

fn profiles_can_be_listed_shown_and_used(who: Who) {
    let jail = Jail::new(who);
    let list = belljar(&jail, &["profile", "list"]);
    assert_eq!(list.code(), 0, "{}", list.stderr());
    for name in ["strict", "moderate", "permissive"] {
        assert!(list.stdout().contains(name), "{}", list.stdout());
        let shown = belljar(&jail, &["profile", "show", name]);
        assert_eq!(shown.code(), 0, "{}", shown.stderr());
        // What is shown is a document that can be kept, edited and used.
        let copy = jail.base.join(format!("{name}.yaml"));
        jail.put(&copy, &shown.stdout());
        let valid = belljar(&jail, &["validate", &copy.to_string_lossy()]);
        assert_eq!(valid.code(), 0, "{name}: {}", valid.stderr());
    }
    assert_ne!(belljar(&jail, &["profile", "show", "relaxed"]).code(), 0);
}

fn doctor_says_what_the_host_can_enforce(who: Who) {
    let jail = Jail::new(who);
    let text = belljar(&jail, &["doctor"]);
    assert_eq!(text.code(), 0, "{}{}", text.stdout(), text.stderr());
    for word in ["Landlock", "seccomp", "namespaces", "cgroup"] {
        assert!(
            text.stdout().to_lowercase().contains(&word.to_lowercase()),
            "{word}: {}",
            text.stdout()
        );
    }
    let report = belljar_json(&jail, &["doctor", "--output", "json"]);
    assert!(
        report["findings"]
            .as_array()
            .is_some_and(|list| list.len() > 3),
        "{report}"
    );
}

fn schemas_are_json_schemas(who: Who) {
    let jail = Jail::new(who);
    for name in ["capability", "sandbox", "contract"] {
        let schema = belljar_json(&jail, &["schema", name]);
        assert!(
            schema["$schema"].is_string() && schema["properties"].is_object(),
            "{name}: {schema}"
        );
    }
}

fn completions_and_manual_pages(who: Who) {
    let jail = Jail::new(who);
    for shell in ["bash", "zsh", "fish"] {
        let made = belljar(&jail, &["completions", shell]);
        assert_eq!(made.code(), 0, "{shell}: {}", made.stderr());
        assert!(
            made.stdout().contains("belljar") && made.stdout().contains("validate"),
            "{shell}"
        );
    }
    let page = belljar(&jail, &["man"]);
    assert_eq!(page.code(), 0, "{}", page.stderr());
    assert!(
        page.stdout().contains(".TH") && page.stdout().contains("belljar"),
        "{}",
        page.stdout()
    );
    let directory = jail.home.join("man");
    fs::create_dir(&directory).expect("a directory");
    jail.own(&directory);
    assert_eq!(
        belljar(&jail, &["man", &directory.to_string_lossy()]).code(),
        0
    );
    assert!(fs::read_dir(&directory).expect("the pages").count() >= 5);
}

fn help_and_version_go_to_standard_output(who: Who) {
    let jail = Jail::new(who);
    for words in [
        &["--help"][..],
        &["help"],
        &["run", "--help"],
        &["--version"],
    ] {
        let said = belljar(&jail, words);
        assert_eq!((said.code(), said.stderr().as_str()), (0, ""), "{words:?}");
        assert!(
            said.stdout().contains("belljar"),
            "{words:?}: {}",
            said.stdout()
        );
    }
    assert!(belljar(&jail, &["--help"]).stdout().contains("inspect"));
}

fn validate_shows_the_fields(who: Who) {
    let jail = Jail::new(who);
    let file = jail.base.join("capability.yaml");
    jail.put(
        &file,
        "resource_limits: {max_memory_mb: 256}\nnetwork_egress_rules:\n  - {domain: api.example.org, ports: [443]}\n",
    );
    let path = file.to_string_lossy().into_owned();
    let said = belljar(&jail, &["validate", "--config", &path]);
    assert_eq!(said.code(), 0, "{}", said.stderr());
    for text in ["VALID", "seccomp", "256", "read_only"] {
        assert!(said.stdout().contains(text), "{text}: {}", said.stdout());
    }
    let json = belljar_json(&jail, &["validate", "--config", &path, "--output", "json"]);
    assert!(json.to_string().contains("256"), "{json}");
}

/// While a box runs it can be seen and looked into; afterwards it is gone.
fn running_boxes_can_be_listed_and_inspected(who: Who) {
    let jail = Jail::new(who);
    let program = jail.probe_path().to_string_lossy().into_owned();
    let mut command = jail.json_command(&[&program, "wait"]);
    command.stdin(Stdio::piped());
    let mut child = command.spawn().expect("start belljar");
    let listed = eventually("the box is listed", || {
        let list = belljar_json(&jail, &["ps", "--output", "json"]);
        list["running"]
            .as_array()
            .expect("a list of running boxes")
            .first()
            .cloned()
    });
    let id = listed["sandbox_id"]
        .as_str()
        .unwrap_or_else(|| panic!("no sandbox_id in {listed}"))
        .to_owned();
    assert!(belljar(&jail, &["ps"]).stdout().contains(&id));
    for words in [vec!["inspect", &id], vec!["inspect", "--sandbox-id", &id]] {
        let said = belljar(&jail, &words);
        assert_eq!(said.code(), 0, "{}", said.stderr());
        assert!(said.stdout().contains(&id), "{}", said.stdout());
    }
    assert!(
        belljar_json(&jail, &["inspect", &id, "--output", "json"])
            .to_string()
            .contains(&id)
    );
    drop(child.stdin.take());
    let outcome = jail.conclude(child);
    assert_eq!(outcome.sandbox_id(), id);
    outcome.assert_exit(0);
    assert!(!belljar(&jail, &["ps"]).stdout().contains(&id));
    assert_ne!(belljar(&jail, &["inspect", &id]).code(), 0);
}

/// A name that erases lines, starts one of its own, turns the direction of writing around and hides.
const HOSTILE: &str =
    "x\u{1b}[2K\u{1b}[1A\rFORGED\nFORGED \u{7}\u{9b}1A\u{202e}\u{200b}\u{feff}\u{1b}]8;;evil\u{7}";

/// Whoever chose it: it is shown, on the line where it belongs, and steers no terminal.
fn no_name_steers_the_terminal(who: Who) {
    let jail = Jail::new(who);
    let program = jail.probe_path().to_string_lossy().into_owned();
    let mut command = jail.json_command(&[&program, "wait", HOSTILE]);
    command.stdin(Stdio::piped());
    let mut child = command.spawn().expect("start belljar");
    let id = eventually("the box is listed", || {
        let list = belljar_json(&jail, &["ps", "--output", "json"]);
        list["running"][0]["sandbox_id"].as_str().map(str::to_owned)
    });
    let path = jail.work.join(HOSTILE);
    let path = path.to_str().expect("text");
    let unseen = format!("/var/none/{HOSTILE}");
    let source = format!("/none/{HOSTILE}");
    for words in [
        &["ps"][..],
        &["ps", "--output", "json"],
        &["inspect", &id],
        &["inspect", &id, "--output", "json"],
        &["inspect", HOSTILE],
        &["diff", HOSTILE],
        &["run", "--", HOSTILE],
        &["run", "--config", HOSTILE, "--", "true"],
        &["run", "--profile", HOSTILE, "--", "true"],
        &["profile", "show", HOSTILE],
        &["run", "--", &unseen],
        &["validate", HOSTILE],
        &["check", "path", path],
        &["check", "path", path, "--output", "json"],
        &["check", "host", HOSTILE],
        &["check", "env", HOSTILE],
        &["learn", "--", "sh", "-c", "echo x > \"$0\"", HOSTILE],
        &["audit", "show"],
        &["audit", "export"],
        &["mcp", "diff", HOSTILE],
        &["image", "build", "x", "--oci", &source],
        &["experiment", "run", HOSTILE],
        &["manifest", "show", HOSTILE],
        &["replication", "tree", "--contract", HOSTILE],
        &["audit", "verify", HOSTILE],
    ] {
        let finished = belljar(&jail, words);
        for line in [finished.stdout(), finished.stderr()].concat().lines() {
            let steers = |c: char| belljar_policy::is_harmful(c) && c != '\t';
            assert!(!line.contains(steers), "{words:?}: {line:?}");
            assert!(!line.starts_with("FORGED"), "{words:?}: {line:?}");
        }
    }
    assert!(belljar(&jail, &["ps"]).stdout().contains("FORGED"));
    drop(child.stdin.take());
    jail.conclude(child).assert_exit(0);
}

/// A keeper that was killed is not a running box.
fn dead_keepers_are_not_listed(who: Who) {
    let jail = Jail::new(who);
    let program = jail.probe_path().to_string_lossy().into_owned();
    let mark = jail.work_file("mark");
    let mut child = jail
        .json_command(&[&program, "ignore-signals", &mark])
        .spawn()
        .expect("start belljar");
    eventually("the agent is up", || {
        fs::read(&mark).ok().filter(|text| !text.is_empty())
    });
    child.kill().expect("kill the keeper");
    child.wait().expect("its end");
    let list = belljar_json(&jail, &["ps", "--output", "json"]);
    assert_eq!(list["running"], Value::Array(Vec::new()), "{list}");
    eventually("the box is gone", || {
        support::processes_marked(&jail.base)
            .is_empty()
            .then_some(())
    });
}

/// A command line may hold what others should not see.
fn records_of_running_boxes_are_private(who: Who) {
    use std::os::unix::fs::PermissionsExt;
    let jail = Jail::new(who);
    let program = jail.probe_path().to_string_lossy().into_owned();
    let mut command = jail.json_command(&[&program, "wait"]);
    let mut child = command
        .stdin(Stdio::piped())
        .spawn()
        .expect("start belljar");
    let records = eventually("there is a record", || {
        Some(support::files_below(&jail.state)).filter(|files| !files.is_empty())
    });
    for record in records {
        let mode = fs::metadata(&record)
            .expect("a record")
            .permissions()
            .mode();
        assert_eq!(mode & 0o077, 0, "others can read {}", record.display());
    }
    drop(child.stdin.take());
    jail.conclude(child).assert_exit(0);
}

fn the_result_has_its_documented_fields(who: Who) {
    let jail = Jail::new(who);
    let outcome = jail.inside(&["syscall", "ptrace"]);
    for field in [
        "sandbox_id",
        "exit_code",
        "signal",
        "duration_ms",
        "resource_usage",
        "killed_by",
        "violations",
        "tier",
        "degraded",
        "limits_by",
        "stdout",
        "stderr",
        "stdout_truncated",
        "stderr_truncated",
    ] {
        assert!(
            outcome.json.get(field).is_some(),
            "no {field} in {}",
            outcome.json
        );
    }
    assert_eq!(outcome.json["tier"], "seccomp");
    let violation = &outcome.json["violations"][0];
    assert_eq!(
        (&violation["kind"], &violation["name"]),
        (&Value::from("syscall"), &Value::from("ptrace")),
        "{violation}"
    );
    assert!(
        violation["count"].as_u64().is_some_and(|count| count >= 1),
        "{violation}"
    );
    assert!(violation["why"].is_string(), "{violation}");
    assert!(outcome.usage("cpu_seconds") >= 0.0 && outcome.usage("peak_memory_mb") > 0.0);
}

fn a_denial_is_told_in_text(who: Who) {
    let jail = Jail::new(who);
    let program = jail.probe_path().to_string_lossy().into_owned();
    let finished = finish(
        jail.text_command(&[&program, "syscall", "ptrace"])
            .spawn()
            .expect("start belljar"),
    );
    let said = finished.stderr();
    assert!(
        said.lines()
            .any(|line| line.starts_with("[belljar]") && line.contains("ptrace")),
        "{said}"
    );
}

fn colour_is_for_terminals_only(who: Who) {
    let jail = Jail::new(who);
    for words in [
        &["doctor"][..],
        &["profile", "list"],
        &["validate", "--config", "/no/such/file"],
        &["check", "path", "/etc"],
    ] {
        let said = belljar(&jail, words);
        assert!(
            !said.stdout().contains('\u{1b}') && !said.stderr().contains('\u{1b}'),
            "{words:?}"
        );
    }
}

for_each_user!(
    check_path_agrees_with_the_box,
    check_explains_and_says_what_to_add,
    the_hint_of_check_works,
    check_env_host_and_tool,
    profiles_can_be_listed_shown_and_used,
    doctor_says_what_the_host_can_enforce,
    schemas_are_json_schemas,
    completions_and_manual_pages,
    help_and_version_go_to_standard_output,
    validate_shows_the_fields,
    running_boxes_can_be_listed_and_inspected,
    no_name_steers_the_terminal,
    dead_keepers_are_not_listed,
    records_of_running_boxes_are_private,
    the_result_has_its_documented_fields,
    a_denial_is_told_in_text,
    colour_is_for_terminals_only,
);
