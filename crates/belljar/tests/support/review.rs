//! What the tests of changes that wait share.

use std::fs;

use super::{Finished, Jail, Outcome, Who, finish};

/// The one who commits, in the box and outside.
const GIT: &str = "command git -c user.name=Ann -c user.email=ann@example.org -c init.defaultBranch=main -c gc.auto=0";

pub(crate) fn overlaid(jail: &Jail, script: &str) -> String {
    let words = ["run", "--output", "json", "--workspace", "overlay", "--"];
    let script = format!("git() {{ {GIT} \"$@\"; }}; set -eu; {script}");
    let mut command = jail.belljar(&words);
    command.args(["bash", "-c", &script]);
    let outcome = Outcome::from_json(finish(command.spawn().expect("start belljar")));
    outcome.assert_exit(0);
    outcome.sandbox_id().to_owned()
}

#[track_caller]
pub(crate) fn outside(jail: &Jail, script: &str) -> String {
    let script = format!("git() {{ {GIT} \"$@\"; }}; set -eu; {script}");
    let done = finish(
        jail.outside("bash")
            .args(["-c", &script])
            .spawn()
            .expect("a shell"),
    );
    assert_eq!(done.code(), 0, "{}{}", done.stdout(), done.stderr());
    done.stdout()
}

pub(crate) fn belljar(jail: &Jail, words: &[&str]) -> Finished {
    finish(jail.belljar(words).spawn().expect("start belljar"))
}

#[track_caller]
pub(crate) fn said(jail: &Jail, words: &[&str]) -> String {
    let done = belljar(jail, words);
    assert_eq!(
        done.code(),
        0,
        "{words:?}: {}{}",
        done.stdout(),
        done.stderr()
    );
    done.stdout()
}

pub(crate) fn read(jail: &Jail, name: &str) -> String {
    fs::read_to_string(jail.work.join(name)).unwrap_or_else(|error| format!("{name}: {error}"))
}

/// A workspace that is a repository with a commit in it.
pub(crate) fn repository(who: Who) -> Jail {
    let jail = Jail::new(who);
    fs::remove_dir_all(jail.work.join(".git")).expect("room for a real one");
    outside(
        &jail,
        "git init -q .; seq 40 > lines.txt; mkdir src; echo one > src/a.rs; echo two > src/b.txt
         git add lines.txt src; git commit -qm 'the first'",
    );
    jail
}
