//! The two programs under test: Belljar itself and the attack probe.

use std::env;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use rustix::fs::{FlockOperation, flock};

/// The Belljar binary that cargo built, unless the environment names another.
pub(crate) fn belljar() -> PathBuf {
    env::var_os("BELLJAR_BIN").map_or_else(
        || PathBuf::from(env!("CARGO_BIN_EXE_belljar")),
        PathBuf::from,
    )
}

/// The static probe, compiled once per version of its source.
pub(crate) fn probe() -> &'static Path {
    static PROBE: OnceLock<PathBuf> = OnceLock::new();
    PROBE.get_or_init(|| env::var_os("BELLJAR_PROBE").map_or_else(compile, PathBuf::from))
}

/// Test processes run side by side; the lock lets one compile while the others wait for its result.
fn compile() -> PathBuf {
    let sources = sources();
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let wanted = directory.join(format!("probe-{:016x}", fingerprint(&sources)));
    fs::create_dir_all(directory).expect("create the build directory of the probe");
    let lock = File::create(directory.join("probe.lock")).expect("create the probe's lock file");
    flock(&lock, FlockOperation::LockExclusive).expect("lock the probe's build");
    if !wanted.exists() {
        let unfinished = wanted.with_extension("new");
        run_compiler(&sources, &unfinished);
        fs::rename(&unfinished, &wanted).expect("put the compiled probe in place");
    }
    wanted
}

fn sources() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/probe");
    let mut sources: Vec<PathBuf> = fs::read_dir(directory)
        .expect("the probe's sources")
        .map(|entry| entry.expect("a directory entry").path())
        .filter(|path| path.extension().is_some_and(|e| e == "c" || e == "h"))
        .collect();
    sources.sort();
    sources
}

/// FNV-1a over the sources: an edit gives a new file name, so a stale probe is never used.
fn fingerprint(sources: &[PathBuf]) -> u64 {
    let bytes = sources
        .iter()
        .flat_map(|path| fs::read(path).expect("read a source of the probe"));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn run_compiler(sources: &[PathBuf], output: &Path) {
    let mut compiler = Command::new("cc");
    compiler
        .args([
            "-static", "-O1", "-pthread", "-Wall", "-Wextra", "-Werror", "-o",
        ])
        .arg(output);
    compiler.args(
        sources
            .iter()
            .filter(|path| path.extension().is_some_and(|e| e == "c")),
    );
    let result = compiler
        .output()
        .expect("the attack tests need a C compiler named `cc`, or BELLJAR_PROBE");
    assert!(
        result.status.success(),
        "the attack probe does not compile (a static libc is needed):\n{}",
        String::from_utf8_lossy(&result.stderr)
    );
    fs::set_permissions(output, fs::Permissions::from_mode(0o755))
        .expect("make the probe executable");
}

/// Can any user run this file where it is? A build below a private home directory cannot be.
pub(crate) fn reachable_by_others(path: &Path) -> bool {
    let open_to = |path: &Path, bits: u32| {
        fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & bits == bits)
    };
    open_to(path, 0o005)
        && path
            .ancestors()
            .skip(1)
            .all(|parent| parent.as_os_str().is_empty() || open_to(parent, 0o001))
}
