//! The OCI bundle: what a plan is to gVisor.
//!
//! Its root is the box's own, with every mount of the plan in place and held by the host's kernel: read-only trees, covers
//! and overlays need no second telling.

use super::{INNER, INSIDE, WORD, inner, text};
use crate::plan::{Plan, Shows};
use crate::tier::Console;
use serde_json::{Value, json};
use std::path::Path;

/// What pid 1 needs of gVisor's kernel: to write where it tells the end, to unmount what it came from, to be another user than the program, and to take
/// all of this from the program. The host's kernel grants none of it.
const INIT_RIGHTS: [&str; 5] = [
    "CAP_DAC_OVERRIDE",
    "CAP_SYS_ADMIN",
    "CAP_SETUID",
    "CAP_SETGID",
    "CAP_SETPCAP",
];

pub(super) fn config(plan: &Plan, console: Console) -> Value {
    let none: [&str; 0] = [];
    json!({
        "ociVersion": "1.0.2",
        "hostname": "belljar",
        "process": {
            "terminal": console == Console::Terminal,
            "user": { "uid": INSIDE.uid, "gid": INSIDE.gid },
            // What is to run is in its order.
            "args": [format!("{}/init", inner::PLACE), WORD],
            "env": none,
            "cwd": "/",
            "noNewPrivileges": true,
            "capabilities": {
                "bounding": INIT_RIGHTS, "effective": INIT_RIGHTS, "permitted": INIT_RIGHTS,
                "inheritable": none, "ambient": none,
            },
            "rlimits": limits(plan),
        },
        "root": { "path": "/" },
        "mounts": mounts(plan),
        "linux": {
            "namespaces": [
                { "type": "pid" }, { "type": "ipc" }, { "type": "uts" }, { "type": "mount" },
            ],
        },
    })
}

/// gVisor holds these itself; who calls its kernel has no right to raise them.
fn limits(plan: &Plan) -> Vec<Value> {
    let limits = &plan.limits;
    let files = limits.open_files.map(u64::from);
    let files = files.or_else(crate::descriptors::usual_limit);
    let processes = limits.processes.map(u64::from);
    let cpu = limits.cpu_time.map(|time| time.as_secs() + 2);
    [
        ("RLIMIT_CORE", Some(0)),
        ("RLIMIT_MEMLOCK", Some(8 << 20)),
        ("RLIMIT_NOFILE", files),
        ("RLIMIT_FSIZE", limits.file_size_bytes),
        ("RLIMIT_NPROC", processes),
        ("RLIMIT_CPU", cpu),
    ]
    .into_iter()
    .filter_map(|(kind, value)| value.map(|n| json!({ "type": kind, "hard": n, "soft": n })))
    .collect()
}

/// The box's private directories are named, or gVisor would put a file system in memory over some of them, which no
/// limit on private files holds.
fn mounts(plan: &Plan) -> Vec<Value> {
    let is_covered = |path: &Path| path == Path::new("/tmp") || path.starts_with("/dev");
    let private = plan
        .view
        .iter()
        .filter(|entry| matches!(entry.shows, Shows::Private { .. }) && is_covered(&entry.path));
    let bind = |from: &str, at: &str| json!({ "destination": at, "source": from, "type": "bind", "options": ["rbind", "rw", "nosuid", "nodev"] });
    let same = |path: String| bind(&path, &path);
    std::iter::once(json!({ "destination": "/proc", "source": "proc", "type": "proc" }))
        .chain(private.map(|entry| same(text(entry.path.as_os_str()))))
        .chain([bind(INNER, inner::PLACE)])
        .collect()
}
