//! What a finished run must not leave: processes, cgroups, mounts, records, temporary directories.

use std::fs;
use std::path::{Path, PathBuf};

const CGROUP_ROOT: &str = "/sys/fs/cgroup";
const CGROUP_DEPTH: usize = 12;

/// Processes whose command line, environment, or working directory names the marker.
pub(crate) fn processes_marked(marker: &Path) -> Vec<(u32, String)> {
    let marker = marker.as_os_str().as_encoded_bytes();
    let own = std::process::id();
    let numbered = fs::read_dir("/proc")
        .expect("read /proc")
        .filter_map(|entry| {
            let pid: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            (pid != own).then_some(pid)
        });
    numbered
        .filter(|pid| is_marked(*pid, marker))
        .map(|pid| (pid, describe(pid)))
        .collect()
}

fn is_marked(pid: u32, marker: &[u8]) -> bool {
    let names = |text: &[u8]| text.windows(marker.len()).any(|window| window == marker);
    // A process may end between the listing and this look at it.
    let file = |name: &str| fs::read(format!("/proc/{pid}/{name}")).is_ok_and(|text| names(&text));
    let link = |name: &str| {
        fs::read_link(format!("/proc/{pid}/{name}"))
            .is_ok_and(|to| names(to.as_os_str().as_encoded_bytes()))
    };
    runs(pid) && (file("cmdline") || file("environ") || link("cwd") || link("exe"))
}

/// Whether a process has memory. One that has given it back is past its last instruction; the kernel still clears up behind it.
fn runs(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("VmSize:"))
}

fn describe(pid: u32) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let state = status
        .lines()
        .find(|line| line.starts_with("State:"))
        .unwrap_or_default()
        .to_owned();
    format!(
        "{} [{state}]",
        String::from_utf8_lossy(&line).replace('\0', " ")
    )
}

/// Cgroups of any hierarchy whose name carries the sandbox's id.
pub(crate) fn cgroups_of(id: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    search(
        Path::new(CGROUP_ROOT),
        &|name| name.contains(id),
        CGROUP_DEPTH,
        &mut found,
    );
    found
}

fn search(directory: &Path, wanted: &dyn Fn(&str) -> bool, depth: usize, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(directory) else {
        return;
    };
    for entry in entries.flatten() {
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        if entry.file_name().to_str().is_some_and(wanted) {
            found.push(entry.path());
        }
        if depth > 0 {
            search(&entry.path(), wanted, depth - 1, found);
        }
    }
}

fn mounts_naming(text: &str) -> Vec<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("read the mount table");
    mounts
        .lines()
        .filter(|line| line.contains(text))
        .map(str::to_owned)
        .collect()
}

/// Files below a directory, directories left out: an empty skeleton is no leftover.
pub(crate) fn files_below(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
    let mut files = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() && !path.is_symlink() {
            files.extend(files_below(&path));
        } else {
            files.push(path);
        }
    }
    files
}

fn names_with(directory: &Path, text: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path())
        .filter(|path| path.to_string_lossy().contains(text))
        .collect()
}

/// Nothing of the run is left anywhere. `base` is the test's own directory, in every path it handed out.
#[track_caller]
pub(crate) fn assert_nothing_left(base: &Path, state: &Path, sandbox_id: Option<&str>) {
    let processes = processes_marked(base);
    assert!(
        processes.is_empty(),
        "processes outlived the run: {processes:#?}"
    );
    let mounts = mounts_naming(&base.to_string_lossy());
    assert!(mounts.is_empty(), "mounts outlived the run: {mounts:#?}");
    // The record is there to stay, and so are images, guests to resume, what MCP servers said their tools are, runsc of
    // itself, secrets that were given to be kept, and private homes; but for those of one box alone.
    let kept = [
        "ledger",
        "keys",
        "secrets",
        "fleet/ledger",
        "mcp/pins",
        "images",
        "guests",
        "tiers",
        "homes",
    ]
    .map(|name| state.join(name));
    let mut records = files_below(state);
    let of_boxes = state.join("homes/boxes");
    records.retain(|file| {
        file.starts_with(&of_boxes) || !kept.iter().any(|kept| file.starts_with(kept))
    });
    assert!(
        records.is_empty(),
        "the state directory is not empty: {records:#?}"
    );
    if let Some(id) = sandbox_id {
        // Those of a kernel that a program ran on name its box alone.
        let kernels = processes_marked(Path::new(id));
        assert!(
            kernels.is_empty(),
            "processes outlived the run: {kernels:#?}"
        );
        let cgroups = cgroups_of(id);
        assert!(cgroups.is_empty(), "cgroups outlived the run: {cgroups:#?}");
        for place in ["/tmp", "/var/tmp", "/dev/shm", "/run"] {
            let directories = names_with(Path::new(place), id);
            assert!(
                directories.is_empty(),
                "files outlived the run: {directories:#?}"
            );
        }
    }
}
