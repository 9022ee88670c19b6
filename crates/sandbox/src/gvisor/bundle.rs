//! The OCI bundle: what a plan is to gVisor.
//!
//! Its root is the box's own, with every mount of the plan in place and held by the host's kernel: read-only trees, covers
//! and overlays need no second telling.

use super::{INSIDE, Version, filter, text};
use crate::plan::{Plan, Shows};
use crate::tier::Console;
use serde_json::{Value, json};
use std::path::Path;

pub(super) fn config(plan: &Plan, version: Version, console: Console) -> Value {
    let env: Vec<String> = plan
        .env
        .iter()
        .map(|(name, value)| format!("{}={}", text(name), text(value)))
        .collect();
    // By its path: gVisor would search for a name, and might find another.
    let program = text(plan.program.as_os_str());
    let arguments = plan.argv.iter().skip(1).map(|word| text(word));
    let args: Vec<String> = std::iter::once(program).chain(arguments).collect();
    let none: [&str; 0] = [];
    json!({
        "ociVersion": "1.0.2",
        "hostname": "belljar",
        "process": {
            "terminal": console == Console::Terminal,
            "user": { "uid": INSIDE.uid, "gid": INSIDE.gid },
            "args": args,
            "env": env,
            "cwd": text(plan.workdir.as_os_str()),
            "noNewPrivileges": true,
            "capabilities": {
                "bounding": none, "effective": none, "inheritable": none, "permitted": none, "ambient": none,
            },
            "rlimits": limits(plan),
        },
        "root": { "path": "/" },
        "mounts": mounts(plan),
        "linux": {
            "namespaces": [
                { "type": "pid" }, { "type": "ipc" }, { "type": "uts" }, { "type": "mount" },
            ],
            "seccomp": filter::filter(plan.spawn, version),
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
    let bind = |path: String| json!({ "destination": path, "source": path, "type": "bind", "options": ["rbind", "rw", "nosuid", "nodev"] });
    std::iter::once(json!({ "destination": "/proc", "source": "proc", "type": "proc" }))
        .chain(private.map(|entry| bind(text(entry.path.as_os_str()))))
        .collect()
}
