//! What stages run: other tools are another judge, and no earlier result of theirs counts.
//!
//! Tools are told by what the file system says of them: place, size, and when their contents or their names last changed, which
//! no program can set. So that a re-run takes no longer than looking.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use crate::config::Config;

/// The most files of an environment that are looked at one by one.
const MOST: usize = 200_000;
/// Where programs are looked for that have no path, as in boxes.
const PATH: [&str; 4] = ["/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin"];
/// What changes with every package that the system installs.
const SYSTEM: [&str; 3] = [
    "/var/lib/dpkg/status",
    "/var/lib/rpm/rpmdb.sqlite",
    "/lib/apk/db/installed",
];

/// A digest of every program that the rules name, of what is beside it, and of all that boxes see of the host besides the system.
pub(super) fn digest(config: &Config) -> String {
    let mut hasher = Sha256::new();
    let commands = config
        .checks
        .iter()
        .map(|check| &check.command)
        .chain(config.cases.iter().map(|case| &case.command))
        .chain(config.scanners.iter().map(|scanner| &scanner.command))
        .chain(&config.behaviour)
        .chain(config.benchmark.iter().map(|benchmark| &benchmark.command));
    let own = [&config.python, &config.node, &config.cargo];
    let programs = own
        .into_iter()
        .chain(commands.filter_map(|words| words.first()));
    for program in programs {
        let place = find(program);
        add(&mut hasher, &place);
        // What it leads to, and the packages that an interpreter finds beside itself.
        if let Ok(real) = place.canonicalize() {
            add(&mut hasher, &real);
        }
        for packages in beside(&place) {
            list(&mut hasher, &packages);
        }
    }
    for file in SYSTEM {
        add(&mut hasher, Path::new(file));
    }
    let mut left = MOST;
    for root in &config.readable {
        walk(&mut hasher, root, &mut left);
    }
    belljar_gate::record::hex(&hasher.finalize())
}

fn find(program: &str) -> PathBuf {
    let given = PathBuf::from(program);
    if program.contains('/') {
        return given;
    }
    let all = PATH
        .iter()
        .map(|directory| Path::new(directory).join(program));
    all.into_iter()
        .find(|place| place.exists())
        .unwrap_or(given)
}

/// `lib/python3.11/site-packages` and the like, of the environment that a program is in.
fn beside(program: &Path) -> Vec<PathBuf> {
    let Some(prefix) = program.parent().and_then(Path::parent) else {
        return Vec::new();
    };
    let library = prefix.join("lib");
    let mut all = vec![library.join("node_modules")];
    let pythons = fs::read_dir(&library).into_iter().flatten().flatten();
    for python in pythons.filter(|item| item.file_name().to_string_lossy().starts_with("python")) {
        all.extend(["site-packages", "dist-packages"].map(|name| python.path().join(name)));
    }
    all.retain(|place| place.is_dir());
    all.sort();
    all
}

fn add(hasher: &mut Sha256, place: &Path) {
    note(hasher, place, fs::symlink_metadata(place).ok().as_ref());
}

fn note(hasher: &mut Sha256, place: &Path, facts: Option<&Metadata>) {
    hasher.update(place.as_os_str().as_encoded_bytes());
    hasher.update(b"\0");
    let numbers = facts.map(|facts| {
        let times = [
            facts.mtime(),
            facts.mtime_nsec(),
            facts.ctime(),
            facts.ctime_nsec(),
        ];
        let sizes = [facts.size().cast_signed(), i64::from(facts.mode())];
        (times, sizes)
    });
    hasher.update(format!("{numbers:?}\0"));
}

/// A directory's own entries.
fn list(hasher: &mut Sha256, directory: &Path) {
    let items = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut all: Vec<PathBuf> = items.map(|item| item.path()).collect();
    all.sort();
    for place in all {
        add(hasher, &place);
    }
}

/// Everything below a path, but what people read and what compilers left.
fn walk(hasher: &mut Sha256, root: &Path, left: &mut usize) {
    let mut waiting = vec![root.to_owned()];
    while let Some(place) = waiting.pop() {
        // Beyond this many nobody looks; that they are too many is part of the answer, and of no earlier one.
        if *left == 0 {
            hasher.update(
                crate::disk::random::<16>()
                    .map(|bytes| *bytes)
                    .unwrap_or_default(),
            );
            return;
        }
        *left -= 1;
        let facts = fs::symlink_metadata(&place).ok();
        let is_directory = facts.as_ref().is_some_and(Metadata::is_dir);
        let name = place.file_name().unwrap_or_default();
        if is_directory
            && (name == "__pycache__"
                || (name == "doc" && place.parent().is_some_and(|above| above.ends_with("share"))))
        {
            continue;
        }
        note(hasher, &place, facts.as_ref());
        if is_directory {
            let items = fs::read_dir(&place).into_iter().flatten().flatten();
            let mut inside: Vec<PathBuf> = items.map(|item| item.path()).collect();
            inside.sort();
            waiting.extend(inside);
        }
    }
}
