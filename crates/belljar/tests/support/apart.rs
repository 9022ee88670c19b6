//! Tests of the library, each in a process of its own that is the user it is about: this very test program, started
//! again for one test.

use std::env;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::build::reachable_by_others;
use super::watch::finish;
use super::{Scratch, Who, belljar, probe};

const MARK: &str = "BELLJAR_TEST_APART";

/// Whether this process was started for one test.
pub(crate) fn is_apart() -> bool {
    env::var_os(MARK).is_some()
}

/// Runs `body` in a process that belongs to `who`. `name` is the test's own.
#[track_caller]
pub(crate) fn apart(who: Who, name: &str, body: fn(Who)) {
    if is_apart() {
        return body(who);
    }
    who.require();
    let place = Scratch::below(if who == Who::Root { "/var/tmp" } else { "/tmp" });
    let home = place.path().join("home");
    fs::create_dir(&home).expect("create a home");
    chown(&home, Some(who.uid()), Some(who.uid())).expect("give the home to the user");
    let program = reachable(&env::current_exe().expect("this program"), place.path());
    let mut command = Command::new(&program);
    command
        .args(["--exact", name, "--nocapture", "--test-threads", "1"])
        .env(MARK, "yes")
        .env("HOME", &home)
        .env("BELLJAR_PROBE", reachable(probe(), place.path()))
        .env("BELLJAR_BIN", reachable(&belljar(), place.path()))
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if !who.is_runner() {
        command.uid(who.uid()).gid(who.uid());
    }
    let finished = finish(command.spawn().expect("start this program again"));
    let said = finished.stdout();
    assert!(
        finished.status.success() && said.contains("1 passed"),
        "{name} failed apart:\n{said}\n{}",
        finished.stderr()
    );
}

/// The program, or a copy of it where every user can run it.
fn reachable(program: &Path, place: &Path) -> PathBuf {
    if reachable_by_others(program) {
        return program.to_owned();
    }
    let copy = place.join(program.file_name().expect("a file name"));
    fs::copy(program, &copy).expect("copy a program to where the user can run it");
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).expect("make it executable");
    copy
}

/// As `for_each_user!`, for tests that call the library: `fn name(who: Who)` runs apart, as root and as a user.
macro_rules! for_each_user_apart {
    ($($name:ident),+ $(,)?) => {
        mod as_root {
            use $crate::support::{Who, apart};
            $(#[test] fn $name() { apart(Who::Root, concat!("as_root::", stringify!($name)), super::$name) })+
        }
        mod as_user {
            use $crate::support::{Who, apart};
            $(#[test] fn $name() { apart(Who::User, concat!("as_user::", stringify!($name)), super::$name) })+
        }
    };
}
pub(crate) use for_each_user_apart;

/// The same on other tiers.
macro_rules! on_other_tiers_apart {
    ($($name:ident),+ $(,)?) => {
        $crate::support::on_other_tiers_apart!(@ gvisor, on_gvisor, $($name),+);
        $crate::support::on_other_tiers_apart!(@ container, in_container, $($name),+);
    };
    (@ $tier:ident, $on:ident, $($name:ident),+) => {
        mod $tier {
            mod as_root {
                use $crate::support::{Who, apart, $on};
                $(#[test] fn $name() {
                    $on(|| apart(Who::Root, concat!(stringify!($tier), "::as_root::", stringify!($name)), super::super::$name))
                })+
            }
            mod as_user {
                use $crate::support::{Who, apart, $on};
                $(#[test] fn $name() {
                    $on(|| apart(Who::User, concat!(stringify!($tier), "::as_user::", stringify!($name)), super::super::$name))
                })+
            }
        }
    };
}
pub(crate) use on_other_tiers_apart;
