//! The second line, which a guest's own kernel holds.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use super::support::Who;
use super::world;

/// What the box around it forbids, the guest's kernel forbids once more; and what is pid 1's there is out of sight.
pub(super) fn a_guests_kernel_holds_the_line_too(who: Who) {
    let mut jail = world(who);
    let shown = jail.base.join("shown");
    fs::create_dir(&shown).expect("a directory");
    let mode = |mode| fs::Permissions::from_mode(mode);
    fs::set_permissions(&shown, mode(0o755)).expect("its mode");
    // Whose file system is read-only does not matter to a pipe, nor whose it is: both ends are in the guest.
    let pipe = shown.join("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status();
    assert!(made.expect("mkfifo").success());
    fs::set_permissions(&pipe, mode(0o666)).expect("its mode");
    jail.policy(&format!(
        "extends: moderate\nfilesystem_config: {{ readable_paths: [{}] }}\n",
        shown.display()
    ));
    let script = r#"
import os, sys
def attempt(flags):
    try:
        os.close(os.open(sys.argv[1], flags | os.O_NONBLOCK))
        return "opened"
    except OSError as error:
        return os.strerror(error.errno)
print(attempt(os.O_RDONLY), attempt(os.O_RDWR), sep="; ")
print(open("/proc/self/cgroup").read().strip())
for name in ("cgroup", "uts", "ipc"):
    print(os.readlink("/proc/self/ns/" + name))
"#;
    let path = pipe.display().to_string();
    let outcome = jail.run(&["/usr/bin/python3", "-c", script, &path]);
    outcome.assert_exit(0);
    let said: Vec<&str> = outcome.stdout().lines().collect();
    let [pipes, group, namespaces @ ..] = said.as_slice() else {
        panic!("{outcome:#?}");
    };
    assert_eq!(*pipes, "opened; Permission denied");
    assert_eq!(*group, "0::/");
    // The first ones of a kernel have these numbers.
    let firsts = [
        "cgroup:[4026531835]",
        "uts:[4026531838]",
        "ipc:[4026531839]",
    ];
    assert_eq!(namespaces.len(), firsts.len());
    for (own, first) in namespaces.iter().zip(firsts) {
        assert_ne!(*own, first);
    }
}
