//! The shape of the workspace: dependencies between our crates point one way, and `unsafe` has one home.

use std::path::{Path, PathBuf};

/// Each crate with the ones of ours it may use. A new edge is a decision about the design and is made here.
const EDGES: &[(&str, &[&str])] = &[
    ("policy", &[]),
    ("manifest", &["policy"]),
    ("api", &[]),
    ("files", &[]),
    ("ledger", &[]),
    ("replication", &["policy"]),
    (
        "experiment",
        &["policy", "manifest", "files", "replication"],
    ),
    (
        "gate",
        &["policy", "manifest", "files", "ledger", "replication"],
    ),
    ("sandbox", &[]),
    ("image", &["files"]),
    ("egress", &["policy"]),
    ("mcp", &["policy", "files"]),
    (
        "supervisor",
        &[
            "policy",
            "manifest",
            "api",
            "files",
            "replication",
            "gate",
            "sandbox",
            "image",
            "egress",
            "mcp",
        ],
    ),
    (
        "evolve",
        &["policy", "manifest", "api", "files", "gate", "supervisor"],
    ),
    ("monitor", &["policy", "api"]),
    ("web", &["api", "files"]),
    (
        "belljar",
        &[
            "policy",
            "manifest",
            "api",
            "files",
            "ledger",
            "replication",
            "experiment",
            "gate",
            "sandbox",
            "image",
            "egress",
            "mcp",
            "supervisor",
            "evolve",
            "monitor",
            "web",
        ],
    ),
];

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("crates/")
        .to_owned()
}

#[test]
fn dependencies_point_one_way() {
    for (name, allowed) in EDGES {
        let manifest =
            std::fs::read_to_string(crates().join(name).join("Cargo.toml")).expect("a manifest");
        for line in manifest.lines() {
            let Some(rest) = line.strip_prefix("belljar-") else {
                continue;
            };
            let used = rest.split(['.', ' ', '=']).next().unwrap_or_default();
            assert!(allowed.contains(&used), "{name} must not use {used}");
        }
    }
}

#[test]
fn every_crate_is_in_the_table() {
    for entry in std::fs::read_dir(crates()).expect("crates/").flatten() {
        let name = entry.file_name().into_string().expect("a plain name");
        assert!(
            EDGES.iter().any(|(known, _)| *known == name),
            "{name} is not in the table"
        );
    }
}

#[test]
fn unsafe_code_is_in_one_module() {
    let mut found = Vec::new();
    search(&crates(), &mut found);
    let home = crates().join("sandbox/src/sys");
    let strays: Vec<_> = found
        .iter()
        .filter(|path| !path.starts_with(&home))
        .collect();
    assert!(strays.is_empty(), "{strays:?}");
    assert!(!found.is_empty(), "the search finds nothing any more");
}

fn search(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).expect("a directory").flatten() {
        let path = entry.path();
        if path.is_dir() {
            search(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs")
            && path.file_name() != Path::new(file!()).file_name()
        {
            let text = std::fs::read_to_string(&path).expect("a source file");
            if text.lines().any(|line| {
                line.contains("unsafe {")
                    || line.contains("unsafe fn")
                    || line.contains("unsafe impl")
            }) {
                found.push(path);
            }
        }
    }
}
