//! An image for boxes of the tests: a handful of the host's programs with what they are linked to, below links as a merged
//! `/usr` has them. It is made once; a store of a test's own leads to it.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use belljar_image::{Digest, ImageConfig, ImageName, LeftOut, Record};
use rustix::fs::{FlockOperation, flock};

use super::jail::usual_place;

/// What the image is called.
pub(crate) const IMAGE: &str = "tests";
/// Where a world has an image with everything in it that its clients need.
const OF_WORLD: &str = "/mnt/image";
/// A file that the image alone has.
pub(crate) const MARK: &str = "/etc/made-for-tests";

/// What scripts of the tests call.
const PROGRAMS: &[&str] = &[
    "sh", "cat", "chmod", "cp", "dd", "env", "false", "head", "id", "install", "kill", "ln", "ls",
    "mkdir", "mv", "readlink", "rm", "rmdir", "seq", "setsid", "sleep", "stat", "tail", "timeout",
    "touch", "true", "tee", "wc", "yes",
];

/// Puts the image into the store of a state directory, by this configuration. Its tree is a link: to copy it for each test would
/// take longer than most of them.
pub(crate) fn provide(state: &Path, config: ImageConfig) {
    put(state, &tree(), config);
}

/// The same with a tree of the caller's.
pub(crate) fn put(state: &Path, tree: &Path, config: ImageConfig) {
    let digest = Digest::of(tree.as_os_str().as_encoded_bytes());
    let images = state.join("images");
    let home = images.join("trees").join(digest.hex());
    let names = images.join("names");
    for directory in [&home, &names] {
        fs::create_dir_all(directory).expect("create a directory of the store");
    }
    symlink(tree, home.join("tree")).expect("lead to the tree");
    fs::write(home.join("held"), "").expect("a file to hold it by");
    let name = ImageName::new(IMAGE).expect("a name");
    let naming = serde_json::json!({"name": name, "digest": digest, "key": "tests", "made_ms": 0});
    fs::write(names.join(format!("{IMAGE}.json")), naming.to_string()).expect("a name");
    let record = Record {
        digest,
        source: "tests".into(),
        size: 0,
        entries: 0,
        left_out: LeftOut::default(),
        created_ms: 0,
        config,
    };
    let record = serde_json::to_vec(&record).expect("a record");
    fs::write(home.join("record.json"), record).expect("the record");
}

/// Where the tree is.
pub(crate) fn tree() -> PathBuf {
    let of_world = PathBuf::from(OF_WORLD);
    if of_world.is_dir() {
        return of_world;
    }
    let uid = super::runner_uid();
    let wanted = usual_place().join(format!("belljar-image-{uid}-{:016x}", fingerprint()));
    let lock = wanted.with_extension("lock");
    let lock = File::create(lock).expect("create the image's lock file");
    flock(&lock, FlockOperation::LockExclusive).expect("lock the making of the image");
    if !wanted.exists() {
        let unfinished = wanted.with_extension("new");
        fs::remove_dir_all(&unfinished).ok();
        make(&unfinished);
        fs::rename(&unfinished, &wanted).expect("put the image in place");
    }
    wanted
}

fn make(tree: &Path) {
    for directory in ["usr/bin", "usr/lib", "usr/lib64", "etc", "srv", "var/tmp"] {
        fs::create_dir_all(tree.join(directory)).expect("a directory of the image");
    }
    for name in ["bin", "lib", "lib64"] {
        symlink(format!("usr/{name}"), tree.join(name)).expect("a link of the image");
    }
    fs::write(tree.join("etc/passwd"), "root:x:0:0::/:/bin/sh\n").expect("users");
    fs::write(tree.join(&MARK[1..]), "the image's\n").expect("a mark");
    let mut libraries = BTreeSet::new();
    for name in PROGRAMS {
        let Some(program) = found(name) else { continue };
        copy(&program, &tree.join("usr/bin").join(name));
        libraries.extend(linked_to(&program));
    }
    for library in libraries {
        let below = library.strip_prefix("/").expect("an absolute path");
        let below = below.strip_prefix("usr").unwrap_or(below);
        copy(&library, &tree.join("usr").join(below));
    }
}

fn found(name: &str) -> Option<PathBuf> {
    let places = ["/usr/bin", "/bin"].iter();
    places
        .map(|place| Path::new(place).join(name))
        .find(|path| path.exists())
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to.parent().expect("a parent")).expect("a directory of the image");
    fs::copy(from, to).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
    fs::set_permissions(to, fs::Permissions::from_mode(0o755)).expect("open it to all");
}

/// What the loader would load for a program, the loader included.
fn linked_to(program: &Path) -> Vec<PathBuf> {
    let said = Command::new("ldd").arg(program).output().expect("ldd");
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    said.split_whitespace()
        .filter(|word| word.starts_with('/'))
        .map(PathBuf::from)
        .collect()
}

/// Of what the image is made from: programs that were updated make another.
fn fingerprint() -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut add = |text: &str| {
        for byte in text.bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    for name in PROGRAMS {
        add(name);
        if let Some(length) = found(name).and_then(|path| fs::metadata(path).ok()) {
            add(&length.len().to_string());
        }
    }
    hash
}
