//! Bad input: one clear error with its place and a hint, the documented exit code, nothing started, nothing left.

mod support;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

use support::{Finished, Jail, Outcome, Who, finish, for_each_user};

const USAGE: i32 = 2;
const INVALID: i32 = 121;
const REFUSED: i32 = 122;
const NOT_EXECUTABLE: i32 = 126;
const NOT_FOUND: i32 = 127;

/// A document that must be refused, and the place its error must name (`line:column`), if it has one.
struct Bad {
    name: &'static str,
    file: &'static str,
    text: Vec<u8>,
    place: Option<&'static str>,
    says: &'static str,
}

fn bad(
    name: &'static str,
    text: impl Into<Vec<u8>>,
    place: &'static str,
    says: &'static str,
) -> Bad {
    Bad {
        name,
        file: "capability.yaml",
        text: text.into(),
        place: Some(place),
        says,
    }
}

fn bad_toml(name: &'static str, text: &str, place: &'static str, says: &'static str) -> Bad {
    Bad {
        name,
        file: "sandbox.toml",
        text: text.into(),
        place: Some(place),
        says,
    }
}

fn unplaced(name: &'static str, text: impl Into<Vec<u8>>, says: &'static str) -> Bad {
    Bad {
        name,
        file: "capability.yaml",
        text: text.into(),
        place: None,
        says,
    }
}

fn bomb() -> String {
    let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
    for level in 1..20 {
        let before = level - 1;
        text += &format!("a{level}: &a{level} [*a{before}, *a{before}, *a{before}, *a{before}]\n");
    }
    text
}

fn documents() -> Vec<Bad> {
    vec![
        bad(
            "unknown key",
            "resource_limits:\n  max_memory: 5\n",
            "2:3",
            "max_memory_mb",
        ),
        bad(
            "unknown top key",
            "sandbox_teir: seccomp\n",
            "1:1",
            "sandbox_tier",
        ),
        bad(
            "wrong type",
            "resource_limits:\n  max_memory_mb: lots\n",
            "2:18",
            "max_memory_mb",
        ),
        bad(
            "list for mapping",
            "resource_limits: [1]\n",
            "1:18",
            "resource_limits",
        ),
        bad(
            "negative",
            "resource_limits: {max_memory_mb: -1}\n",
            "1:34",
            "max_memory_mb",
        ),
        bad(
            "zero",
            "resource_limits: {max_memory_mb: 0}\n",
            "1:34",
            "max_memory_mb",
        ),
        bad(
            "not a number",
            "resource_limits: {max_cpu_seconds: .nan}\n",
            "1:36",
            "max_cpu_seconds",
        ),
        bad(
            "infinity",
            "resource_limits: {max_cpu_seconds: .inf}\n",
            "1:36",
            "max_cpu_seconds",
        ),
        bad(
            "huge float",
            "resource_limits: {max_cpu_seconds: 1e400}\n",
            "1:36",
            "max_cpu_seconds",
        ),
        bad(
            "huge integer",
            "resource_limits: {max_memory_mb: 99999999999999999999}\n",
            "1:34",
            "max_memory_mb",
        ),
        bad(
            "unknown mode",
            "filesystem_config: {mode: readwrite}\n",
            "1:27",
            "read_write",
        ),
        bad("unknown profile", "extends: relaxed\n", "1:10", "strict"),
        bad(
            "unknown permission",
            "permissions: [fly]\n",
            "1:15",
            "spawn_subprocess",
        ),
        bad(
            "duplicate key",
            "permissions: []\npermissions: []\n",
            "2:1",
            "permissions",
        ),
        bad(
            "two documents",
            "permissions: []\n---\npermissions: []\n",
            "2",
            "document",
        ),
        bad("bomb", bomb(), "1:5", "anchor"),
        bad("anchor", "permissions: &a []\n", "1:14", "anchor"),
        bad("alias", "permissions: *a\n", "1:14", "alias"),
        bad("tab", "resource_limits:\n\tmax_memory_mb: 5\n", "2:", ""),
        bad("unclosed", "permissions: [\n", ":", ""),
        bad("not a mapping", "- a\n- b\n", "1:1", ""),
        bad("deep nesting", "[".repeat(10_000), "1:", ""),
        bad(
            "path that climbs",
            "filesystem_config: {writable_paths: [../..]}\n",
            "1:38",
            "",
        ),
        bad(
            "NUL in a path",
            "filesystem_config: {writable_paths: [\"a\\0b\"]}\n",
            "1:38",
            "",
        ),
        bad_toml(
            "toml unknown key",
            "[sandbox.resources]\nmax_memory = 5\n",
            "2:1",
            "max_memory_mb",
        ),
        bad_toml(
            "toml wrong type",
            "[sandbox.resources]\nmax_memory_mb = \"5\"\n",
            "2:17",
            "max_memory_mb",
        ),
        bad_toml("toml syntax", "[sandbox\n", "1:", ""),
        bad_toml("toml disabled", "[sandbox]\nenabled = false\n", "2:", ""),
        unplaced("empty", "", "empty"),
        unplaced("ten megabytes", vec![b'#'; 10 << 20], "large"),
        unplaced(
            "invalid UTF-8",
            b"permissions: [\xff\xfe]\n".to_vec(),
            "UTF-8",
        ),
        unplaced("binary", (0..=255).collect::<Vec<u8>>(), ""),
    ]
}

/// A run that would show by a file that it had started.
fn attempt(jail: &Jail, options: &[&str]) -> Command {
    let program = jail.probe_path().to_string_lossy().into_owned();
    let mut command = jail.belljar(&["run"]);
    command
        .args(options)
        .arg("--")
        .args([&program, "create", &jail.work_file("started")]);
    command
}

#[track_caller]
fn assert_nothing_happened(jail: &Jail, name: &str) {
    assert!(
        !jail.work.join("started").exists(),
        "{name}: the program was started"
    );
    jail.assert_nothing_left(None);
}

#[track_caller]
fn assert_one_error(name: &str, finished: &Finished, code: i32) -> String {
    let said = finished.stderr();
    assert_eq!(finished.status.code(), Some(code), "{name}: {said}");
    assert_eq!(
        finished.stdout(),
        "",
        "{name}: an error belongs on standard error"
    );
    assert_eq!(
        said.to_lowercase().matches("error:").count(),
        1,
        "{name}: not one error: {said}"
    );
    assert!(!said.contains("panicked"), "{name}: {said}");
    said
}

fn bad_documents_are_refused_by_run(who: Who) {
    let jail = Jail::new(who);
    for document in documents() {
        let path = jail.base.join(document.file);
        fs::write(&path, &document.text).expect("write the document");
        let finished = finish(
            attempt(&jail, &["--config", &path.to_string_lossy()])
                .spawn()
                .expect("start belljar"),
        );
        let said = assert_one_error(document.name, &finished, INVALID);
        if let Some(place) = document.place {
            assert!(
                said.contains(&format!("{}:{place}", document.file)) || place == ":",
                "{}: {said}",
                document.name
            );
        }
        assert!(
            said.contains(document.file) && said.contains(document.says),
            "{}: {said}",
            document.name
        );
        assert_nothing_happened(&jail, document.name);
    }
}

fn bad_documents_are_refused_as_json(who: Who) {
    let jail = Jail::new(who);
    for document in documents() {
        let path = jail.base.join(document.file);
        fs::write(&path, &document.text).expect("write the document");
        let options = ["--output", "json", "--config", &path.to_string_lossy()];
        let outcome = Outcome::from_json(finish(
            attempt(&jail, &options).spawn().expect("start belljar"),
        ));
        assert_eq!(outcome.code(), INVALID, "{}: {outcome:#?}", document.name);
        assert_eq!(
            outcome.error_code(),
            Some("invalid_config"),
            "{}: {outcome:#?}",
            document.name
        );
        assert!(
            outcome.json["exit_code"].is_null(),
            "{}: {outcome:#?}",
            document.name
        );
        let message = outcome.json["error"]["message"]
            .as_str()
            .expect("a message");
        assert!(
            message.contains(document.file),
            "{}: {message}",
            document.name
        );
        assert_nothing_happened(&jail, document.name);
    }
}

fn bad_documents_are_invalid(who: Who) {
    let jail = Jail::new(who);
    for document in documents() {
        let path = jail.base.join(document.file);
        fs::write(&path, &document.text).expect("write the document");
        let mut command = jail.belljar(&["validate", "--config", &path.to_string_lossy()]);
        let finished = finish(command.spawn().expect("start belljar"));
        assert_eq!(
            finished.code(),
            1,
            "{}: {}",
            document.name,
            finished.stderr()
        );
        let said = finished.stdout() + &finished.stderr();
        assert!(
            said.contains(document.says) && said.contains(document.file),
            "{}: {said}",
            document.name
        );
    }
}

fn good_documents_are_valid(who: Who) {
    let jail = Jail::new(who);
    let documents = [
        ("capability.yaml", "{}\n"),
        (
            "capability.yaml",
            "\u{feff}extends: strict\r\nresource_limits:\r\n  max_memory_mb: 100\r\n",
        ),
        (
            "capability.yaml",
            "resource_limits: {max_cpu_seconds: null, max_wall_seconds: 1.5}\n",
        ),
        ("capability.json", "{\"extends\": \"moderate\"}\n"),
        (
            "sandbox.toml",
            "[sandbox]\nmode = \"Strict\"\n[sandbox.resources]\nmax_memory_mb = 64\n",
        ),
    ];
    for (name, text) in documents {
        let path = jail.base.join(name);
        jail.put(&path, text);
        let mut command = jail.belljar(&["validate", "--config", &path.to_string_lossy()]);
        let finished = finish(command.spawn().expect("start belljar"));
        assert_eq!(finished.code(), 0, "{text:?}: {}", finished.stderr());
        assert!(
            finished.stdout().starts_with("VALID"),
            "{text:?}: {}",
            finished.stdout()
        );
    }
}

fn documents_that_cannot_be_read(who: Who) {
    let jail = Jail::new(who);
    let missing = jail.home_file("missing.yaml");
    let directory = jail.home.to_string_lossy().into_owned();
    let endless = jail.home_file("endless.yaml");
    symlink("/dev/zero", &endless).expect("a link to an endless file");
    let looped = jail.home_file("looped.yaml");
    symlink("looped.yaml", &looped).expect("a link to itself");
    for (path, says) in [
        (&missing, "No such file"),
        (&directory, "not a regular file"),
        (&endless, ""),
        (&looped, ""),
    ] {
        let finished = finish(
            attempt(&jail, &["--config", path])
                .spawn()
                .expect("start belljar"),
        );
        let said = assert_one_error(path, &finished, INVALID);
        assert!(
            said.contains(path.as_str()) && said.contains(says),
            "{path}: {said}"
        );
        assert_nothing_happened(&jail, path);
    }
}

fn a_document_that_never_ends_does_not_hang(who: Who) {
    let jail = Jail::new(who);
    let pipe = jail.home_file("pipe.yaml");
    support::assert_all_allowed(&jail.control(&["mknod", &pipe, "fifo"]));
    let finished = finish(
        attempt(&jail, &["--config", &pipe])
            .spawn()
            .expect("start belljar"),
    );
    assert_one_error("pipe", &finished, INVALID);
    assert_nothing_happened(&jail, "pipe");
}

fn programs_that_cannot_be_run(who: Who) {
    let jail = Jail::new(who);
    jail.put(&jail.work.join("plain.txt"), "not a program\n");
    jail.put(&jail.work.join("garbage"), "\u{1}\u{2}\u{3}");
    fs::set_permissions(jail.work.join("garbage"), fs::Permissions::from_mode(0o755))
        .expect("make it executable");
    jail.put(&jail.work.join("lost.sh"), "#!/no/such/interpreter\n");
    fs::set_permissions(jail.work.join("lost.sh"), fs::Permissions::from_mode(0o755))
        .expect("make it executable");
    let plain = jail.work_file("plain.txt");
    let hidden = jail.home_file(".ssh/id_ed25519");
    for (program, code, kind) in [
        ("no-such-program-anywhere", NOT_FOUND, "not_found"),
        ("/no/such/program", NOT_FOUND, "not_found"),
        ("./no-such-program", NOT_FOUND, "not_found"),
        ("./lost.sh", NOT_FOUND, "not_found"),
        ("", INVALID, "invalid_input"),
        ("./plain.txt", NOT_EXECUTABLE, "not_executable"),
        (&plain, NOT_EXECUTABLE, "not_executable"),
        (".", NOT_EXECUTABLE, "not_executable"),
        ("/etc", NOT_EXECUTABLE, "not_executable"),
        ("./garbage", NOT_EXECUTABLE, "not_executable"),
        (&hidden, REFUSED, "refused"),
    ] {
        let outcome = jail.run(&[program]);
        assert_eq!(outcome.code(), code, "{program}: {outcome:#?}");
        assert_eq!(outcome.error_code(), Some(kind), "{program}: {outcome:#?}");
        let finished = finish(
            jail.text_command(&[program])
                .spawn()
                .expect("start belljar"),
        );
        let said = assert_one_error(program, &finished, code);
        assert!(said.contains(program), "{program}: {said}");
        jail.assert_nothing_left(None);
    }
}

fn wrong_usage(who: Who) {
    let jail = Jail::new(who);
    let usages: &[&[&str]] = &[
        &["run"],
        &["run", "--"],
        &["run", "--no-such-option", "--", "true"],
        &["run", "--timeout", "soon", "--", "true"],
        &["run", "--timeout", "-1", "--", "true"],
        &["run", "--timeout", "0", "--", "true"],
        &["run", "--timeout", "nan", "--", "true"],
        &["run", "--timeout", "inf", "--", "true"],
        &["run", "--timeout", "1e400", "--", "true"],
        &["run", "--output", "xml", "--", "true"],
        &["run", "--profile", "relaxed", "--", "true"],
        &["run", "--workspace", "copy", "--", "true"],
        &["rnu", "--", "true"],
        &["check", "path"],
        &["profile", "show"],
    ];
    for words in usages {
        let finished = finish(jail.belljar(words).spawn().expect("start belljar"));
        assert_eq!(finished.code(), USAGE, "{words:?}: {}", finished.stderr());
        assert!(!finished.stderr().is_empty(), "{words:?}");
        jail.assert_nothing_left(None);
    }
}

fn a_config_and_a_profile_exclude_each_other(who: Who) {
    let mut jail = Jail::new(who);
    jail.policy("extends: moderate\n")
        .option(&["--profile", "strict"]);
    let finished = finish(jail.text_command(&["true"]).spawn().expect("start belljar"));
    assert_eq!(finished.code(), USAGE, "{}", finished.stderr());
}

fn tiers_that_cannot_be_had_are_refused(who: Who) {
    // A guest's processor may not be emulated unless the policy says so.
    for tier in ["microvm", "firecracker"] {
        let mut jail = Jail::new(who);
        jail.policy(&format!("extends: moderate\nsandbox_tier: {tier}\n"));
        let program = jail.probe_path().to_string_lossy().into_owned();
        let outcome = jail.run(&[&program, "create", &jail.work_file("started")]);
        assert_eq!(
            (outcome.code(), outcome.error_code()),
            (REFUSED, Some("refused")),
            "{outcome:#?}"
        );
        assert!(
            outcome.json["error"]["message"]
                .as_str()
                .is_some_and(|text| text.contains(tier)),
            "{outcome:#?}"
        );
        assert_nothing_happened(&jail, tier);
    }
}

fn a_directory_that_is_gone(who: Who) {
    let jail = Jail::new(who);
    let gone = jail.home.join("gone");
    fs::create_dir(&gone).expect("a directory");
    jail.own(&gone);
    let belljar = jail.belljar_path();
    let script = format!(
        "rmdir '{}'; exec '{}' run -- /bin/true",
        gone.display(),
        belljar.display()
    );
    let mut command = jail.outside("/bin/sh");
    command.args(["-c", &script]).current_dir(&gone);
    let finished = finish(command.spawn().expect("a shell"));
    assert_one_error("gone", &finished, INVALID);
}

/// A box cannot build another in itself; it must say so rather than run the program unboxed.
fn a_box_in_a_box_is_refused(who: Who) {
    let jail = Jail::new(who);
    let copy = jail.work.join("tools/belljar");
    fs::copy(jail.belljar_path(), &copy).expect("copy belljar into the workspace");
    let program = jail.probe_path().to_string_lossy().into_owned();
    let started = jail.work_file("started");
    let outcome = jail.run(&[
        &copy.to_string_lossy(),
        "run",
        "--",
        &program,
        "create",
        &started,
    ]);
    assert_eq!(
        outcome.exit_code(),
        Some(i64::from(REFUSED)),
        "{outcome:#?}"
    );
    assert!(outcome.stderr().contains("error:"), "{outcome:#?}");
    assert_nothing_happened(&jail, "box in a box");
}

for_each_user!(
    bad_documents_are_refused_by_run,
    bad_documents_are_refused_as_json,
    bad_documents_are_invalid,
    good_documents_are_valid,
    documents_that_cannot_be_read,
    a_document_that_never_ends_does_not_hang,
    programs_that_cannot_be_run,
    wrong_usage,
    a_config_and_a_profile_exclude_each_other,
    tiers_that_cannot_be_had_are_refused,
    a_directory_that_is_gone,
    a_box_in_a_box_is_refused,
);
