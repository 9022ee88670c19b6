//! Real programs run unchanged in the default box, with their directory writable.

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use support::{
    Jail, Outcome, Scratch, Who, assert_all_allowed, assert_all_refused, finish, for_each_user,
};

/// Fails by name where the host lacks the program; a box cannot be tested with what is not there.
#[track_caller]
fn need(jail: &Jail, program: &str) {
    let found = finish(
        jail.outside("/bin/sh")
            .args(["-c", &format!("command -v {program}")])
            .spawn()
            .expect("a shell"),
    );
    assert_eq!(
        found.code(),
        0,
        "this test needs `{program}` on the host, outside home directories"
    );
}

/// Runs a shell script in the box and demands that it succeeds.
#[track_caller]
fn script(jail: &Jail, text: &str) -> Outcome {
    let outcome = jail.run(&["/bin/sh", "-euc", text]);
    outcome.assert_exit(0);
    outcome
}

fn python_with_a_virtual_environment(who: Who) {
    let jail = Jail::new(who);
    need(&jail, "python3");
    jail.put(&jail.work.join("agent.py"), PYTHON_AGENT);
    let outcome = script(
        &jail,
        "python3 -m venv --without-pip env && . env/bin/activate && python -c 'import sys; print(sys.prefix)' && python agent.py",
    );
    let lines: Vec<&str> = outcome.stdout().lines().collect();
    assert_eq!(
        lines,
        [
            jail.work_file("env").as_str(),
            "threads 10",
            "processes 14",
            "child 42",
            "server hello",
            "temporary 3"
        ]
    );
}

/// What agents written in Python do all day: threads, worker processes, subprocesses, a local server, temporary files.
const PYTHON_AGENT: &str = r#"
import http.server, multiprocessing, subprocess, sys, tempfile, threading, urllib.request
from concurrent.futures import ThreadPoolExecutor

def square(n):
    return n * n

class Hello(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello")
    def log_message(self, *words):
        pass

if __name__ == "__main__":
    with ThreadPoolExecutor(4) as pool:
        print("threads", sum(pool.map(int, range(5))))
    with multiprocessing.Pool(2) as pool:
        print("processes", sum(pool.map(square, range(4))))
    print("child", subprocess.run([sys.executable, "-c", "print(6 * 7)"], capture_output=True, text=True).stdout.strip())
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hello)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    print("server", opener.open(f"http://127.0.0.1:{server.server_port}/").read().decode())
    server.shutdown()
    with tempfile.NamedTemporaryFile() as file:
        print("temporary", file.write(b"abc"))
"#;

fn node_with_workers_and_children(who: Who) {
    let jail = Jail::new(who);
    need(&jail, "node");
    jail.put(&jail.work.join("agent.js"), NODE_AGENT);
    let outcome = script(&jail, "node agent.js");
    assert_eq!(
        outcome.stdout(),
        "child 42\nfile abc\nworker 7\nserver hello\n"
    );
}

fn npm_runs_scripts(who: Who) {
    let jail = Jail::new(who);
    need(&jail, "npm");
    jail.put(
        &jail.work.join("package.json"),
        r#"{"name": "agent", "version": "1.0.0", "scripts": {"hello": "echo hello"}}"#,
    );
    let outcome = script(
        &jail,
        "npm run --silent hello && npm ls --silent > /dev/null",
    );
    assert_eq!(outcome.stdout(), "hello\n", "{outcome:#?}");
}

const NODE_AGENT: &str = r#"
const { execFileSync } = require("child_process");
const fs = require("fs");
const http = require("http");
const { Worker } = require("worker_threads");
console.log("child", execFileSync(process.execPath, ["-p", "6 * 7"]).toString().trim());
fs.writeFileSync("out.txt", "abc");
console.log("file", fs.readFileSync("out.txt", "utf8"));
const worker = new Worker("require('worker_threads').parentPort.postMessage(7)", { eval: true });
worker.on("message", (message) => {
    console.log("worker", message);
    const server = http.createServer((request, response) => response.end("hello"));
    server.listen(0, "127.0.0.1", () => {
        http.get({ port: server.address().port, host: "127.0.0.1" }, (response) => {
            response.on("data", (data) => console.log("server", data.toString()));
            response.on("end", () => server.close());
        });
    });
});
"#;

fn git_commits(who: Who) {
    let jail = Jail::new(who);
    need(&jail, "git");
    let repository = jail.work.join(".git");
    fs::remove_dir_all(&repository).expect("remove the stand-in repository");
    let made = finish(
        jail.outside("git")
            .args(["init", "-q", "-b", "main", "."])
            .spawn()
            .expect("git"),
    );
    assert_eq!(made.code(), 0, "{}", made.stderr());
    let identity = "git -c user.name=Agent -c user.email=agent@example.org";
    let outcome = script(
        &jail,
        &format!(
            "echo change >> main.txt; git add main.txt; {identity} commit -q -m 'Change it'; \
             git log --format=%s; git status --short main.txt; git checkout -q -b topic; git branch --show-current"
        ),
    );
    assert_eq!(outcome.stdout(), "Change it\ntopic\n", "{outcome:#?}");
    let seen = finish(
        jail.outside("git")
            .args(["log", "--format=%s"])
            .spawn()
            .expect("git"),
    );
    assert_eq!(
        seen.stdout(),
        "Change it\n",
        "the host does not see the commit: {}",
        seen.stderr()
    );
    // A hook would run on the host later.
    assert_all_refused(
        &jail
            .inside(&["create", &jail.work_file(".git/hooks/post-commit")])
            .attempts(),
    );
    script(&jail, "git clone -q . copy && git -C copy log --format=%s");
}

/// The host's own toolchain, put where the test's user can read it.
fn toolchain(jail: &Jail) -> PathBuf {
    let sysroot = Command::new("rustc")
        .args(["--print", "sysroot"])
        .output()
        .expect("this test needs rustc");
    let sysroot = String::from_utf8(sysroot.stdout).expect("a path");
    let place = jail.home.join("toolchain");
    // Hard links where the file system allows: a toolchain is large.
    for manner in ["-al", "-a"] {
        fs::remove_dir_all(&place).ok();
        let copied = Command::new("cp")
            .args([manner, sysroot.trim()])
            .arg(&place)
            .output()
            .expect("cp");
        if copied.status.success() {
            return place.join("bin");
        }
    }
    panic!("cannot copy the toolchain from {}", sysroot.trim());
}

fn cargo_builds_offline(who: Who) {
    let jail = Jail::new(who);
    let tools = toolchain(&jail);
    jail.put(
        &jail.work.join("Cargo.toml"),
        "[package]\nname = \"agent\"\nversion = \"0.1.0\"\nedition = \"2021\"\n",
    );
    jail.put(
        &jail.work.join("src/main.rs"),
        "fn main() { println!(\"built in a box\"); }\n",
    );
    jail.put(
        &jail.work.join("build.rs"),
        "fn main() { println!(\"cargo:rerun-if-changed=build.rs\"); }\n",
    );
    let outcome = script(
        &jail,
        &format!(
            "export PATH='{}':$PATH; cargo build --offline -q; cargo test --offline -q; ./target/debug/agent",
            tools.display()
        ),
    );
    assert!(
        outcome.stdout().ends_with("built in a box\n"),
        "{outcome:#?}"
    );
    let binary = fs::metadata(jail.work.join("target/debug/agent")).expect("the program");
    assert_eq!(binary.uid(), who.uid());
}

fn a_compiler_and_make(who: Who) {
    let jail = Jail::new(who);
    need(&jail, "cc");
    need(&jail, "make");
    jail.put(
        &jail.work.join("hello.c"),
        "#include <stdio.h>\nint main(void) { puts(\"hello\"); return 0; }\n",
    );
    jail.put(
        &jail.work.join("Makefile"),
        "all: a b\na b: hello.c\n\tcc -o $@ hello.c\n",
    );
    assert!(
        script(&jail, "make -j2 && ./a && ./b")
            .stdout()
            .ends_with("hello\nhello\n")
    );
}

fn bash_pipelines(who: Who) {
    let jail = Jail::new(who);
    need(&jail, "bash");
    let text = "set -euo pipefail; seq 1000 | sort -rn | head -1 || true; diff <(echo a) <(echo a); cat <<< here; \
                coproc cat; echo there >&${COPROC[1]}; exec {COPROC[1]}>&-; cat <&${COPROC[0]}; \
                ulimit -n > /dev/null; echo $((6 * 7)) | tee copy | tr 4 5; cat copy; mkfifo pipe; (echo through > pipe) & cat pipe; wait";
    let outcome = jail.run(&["bash", "-c", text]);
    assert_eq!(
        outcome.stdout(),
        "1000\nhere\nthere\n52\n42\nthrough\n",
        "{outcome:#?}"
    );
    outcome.assert_exit(0);
}

fn symlinked_dotfiles_do_not_break_the_launch(who: Who) {
    let jail = Jail::new(who);
    let store = jail.home.join("dotfiles");
    fs::rename(jail.home.join(".ssh"), &store).expect("move the keys");
    symlink("dotfiles", jail.home.join(".ssh")).expect("link to the keys");
    symlink("nowhere", jail.home.join(".gnupg")).expect("a dangling link");
    symlink(".docker", jail.home.join(".docker")).expect("a link to itself");
    jail.run(&["true"]).assert_exit(0);
    // The name is hidden, and so is what it leads to.
    jail.attack(&["read", &jail.home_file(".ssh/id_ed25519")]);
    jail.attack(&["read", &jail.home_file("dotfiles/id_ed25519")]);
}

fn missing_paths_in_rules_do_not_break_the_launch(who: Who) {
    let mut jail = Jail::new(who);
    jail.policy(
        "extends: moderate\nfilesystem_config:\n  readable_paths: [/no/such/place, ~/no-such-file]\n  \
         hidden_paths: [/no/such/secret, ~/.no-such-secret, no-such-file]\n  protected_paths: [no/such/settings]\n",
    );
    jail.run(&["true"]).assert_exit(0);
}

fn odd_directory_names_work(who: Who) {
    for name in [
        "with space",
        "ünïcode",
        "quo'te\"d",
        "back\\slash",
        "new\nline",
        "-dash",
        "tab\there",
        "o,=:;",
    ] {
        let mut jail = Jail::new(who);
        let odd = jail.home.join(name);
        fs::rename(&jail.work, &odd).expect("rename the workspace");
        jail.work = odd;
        let outcome = jail.run(&[
            "sh",
            "-c",
            "cat main.txt; echo written > result; test ! -w .git/hooks",
        ]);
        outcome.assert_exit(0);
        assert_eq!(outcome.stdout(), "the agent's work", "{name:?}");
        assert!(jail.work.join("result").exists(), "{name:?}");
        assert_all_refused(
            &jail
                .inside(&["create", &jail.work_file(".git/hooks/x")])
                .attempts(),
        );
    }
}

fn a_workspace_below_tmp_works(who: Who) {
    let place = Scratch::below("/tmp");
    let jail = Jail::below(who, place.path());
    assert_all_allowed(
        &jail
            .inside(&["create", &jail.work_file("result.txt")])
            .attempts(),
    );
    assert!(jail.work.join("result.txt").exists());
    // The rest of /tmp stays private.
    let other = Scratch::below("/tmp");
    jail.attack(&["read", &other.file("note", "the host's")]);
}

fn the_home_directory_as_workspace_keeps_its_secrets(who: Who) {
    let mut jail = Jail::new(who);
    let program = jail.probe_path();
    jail.work = jail.home.clone();
    fs::create_dir_all(jail.home.join("tools")).expect("a directory");
    fs::copy(program, jail.probe_path()).expect("copy the probe");
    jail.own(&jail.home.join("tools"));
    assert_all_allowed(
        &jail
            .inside(&["create", &jail.home_file("result.txt")])
            .attempts(),
    );
    jail.attack(&["read", &jail.home_file(".ssh/id_ed25519")]);
    jail.attack(&["write", &jail.home_file(".bashrc")]);
    // Programs that read their settings from home find none that trip them.
    let tools = script(
        &jail,
        "git config --list > /dev/null; bash -ic 'echo interactive' 2> /dev/null",
    );
    assert_eq!(tools.stdout(), "interactive\n", "{tools:#?}");
    assert_all_refused(
        &jail
            .inside(&["create", &jail.home_file(".profile")])
            .attempts(),
    );
    assert_all_refused(
        &jail
            .inside(&["create", &jail.home_file(".ssh/authorized_keys")])
            .attempts(),
    );
    assert!(
        !jail.home.join(".profile").exists() && !jail.home.join(".ssh/authorized_keys").exists()
    );
}

fn a_workspace_root_holds_for_its_owner_runs_as_that_owner(who: Who) {
    let jail = Jail::new(who);
    let outcome = jail.inside(&["ids"]);
    let ids = &outcome.attempts()[0].detail;
    if who == Who::Root {
        // A workspace of root's is worked on by nobody; one of a user's by that user.
        assert!(ids.starts_with("uid=65534 "), "{ids}");
        let owned = Jail::new(Who::User);
        let mut command = Command::new(owned.belljar_path());
        command
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", &owned.home)
            .env("BELLJAR_STATE_DIR", &jail.state);
        command
            .current_dir(&owned.work)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
            .args(["run", "--"])
            .arg(owned.probe_path())
            .args(["create", &owned.work_file("result.txt")]);
        let finished = finish(command.spawn().expect("start belljar"));
        assert_eq!(
            finished.code(),
            0,
            "{}{}",
            finished.stdout(),
            finished.stderr()
        );
        let made = fs::metadata(owned.work.join("result.txt")).expect("the result");
        assert_eq!(made.uid(), Who::User.uid());
    } else {
        assert!(ids.starts_with(&format!("uid={} ", who.uid())), "{ids}");
    }
}

fn programs_are_found_as_a_shell_would(who: Who) {
    let jail = Jail::new(who);
    jail.put(&jail.work.join("tool.sh"), "#!/bin/sh\necho \"tool $1\"\n");
    fs::set_permissions(jail.work.join("tool.sh"), fs::Permissions::from_mode(0o755))
        .expect("make it executable");
    for name in ["./tool.sh", &jail.work_file("tool.sh")] {
        assert_eq!(jail.run(&[name, "x"]).assert_exit(0).stdout(), "tool x\n");
    }
    assert!(Path::new("/bin/sh").exists());
    assert_eq!(
        jail.run(&["echo", "a b", "", "--", "-n"]).stdout(),
        "a b  -- -n\n"
    );
}

for_each_user!(
    python_with_a_virtual_environment,
    node_with_workers_and_children,
    npm_runs_scripts,
    git_commits,
    cargo_builds_offline,
    a_compiler_and_make,
    bash_pipelines,
    symlinked_dotfiles_do_not_break_the_launch,
    missing_paths_in_rules_do_not_break_the_launch,
    odd_directory_names_work,
    a_workspace_below_tmp_works,
    the_home_directory_as_workspace_keeps_its_secrets,
    a_workspace_root_holds_for_its_owner_runs_as_that_owner,
    programs_are_found_as_a_shell_would,
);
