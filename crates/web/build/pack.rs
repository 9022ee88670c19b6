//! Files of a directory, as a table in Rust: each as it is and, where that is smaller, packed.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest, Sha256};

/// What a dashboard is made of. Anything else in the directory is a mistake.
const KINDS: &[&str] = &[
    "html",
    "js",
    "css",
    "svg",
    "png",
    "ico",
    "woff2",
    "json",
    "webmanifest",
    "txt",
];

/// Writes `pages.rs` into `out`, or says what is wrong and what to do.
pub(crate) fn pack(dist: &Path, out: &Path) -> Result<(), String> {
    if !dist.join("index.html").is_file() {
        return Err(format!(
            "the dashboard is not built: there is no {}\n\
             build it with `make dashboard` (it needs Node), or leave it out with `--no-default-features`",
            dist.join("index.html").display()
        ));
    }
    let mut files = Vec::new();
    collect(dist, &mut files).map_err(|error| format!("{}: {error}", dist.display()))?;
    files.sort();
    let mut table = String::from("&[\n");
    for (number, file) in files.iter().enumerate() {
        let line = line(dist, file, &out.join(format!("page-{number}")))?;
        table.push_str(&line);
    }
    table.push_str("]\n");
    fs::write(out.join("pages.rs"), table).map_err(|error| error.to_string())
}

fn collect(directory: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            collect(&entry.path(), files)?;
        } else {
            files.push(entry.path());
        }
    }
    Ok(())
}

/// The table's line for a file: path, bytes, packed bytes, digest.
fn line(dist: &Path, file: &Path, copy: &Path) -> Result<String, String> {
    let named = |what: &str| format!("{}: {what}", file.display());
    let kind = file
        .extension()
        .and_then(|kind| kind.to_str())
        .unwrap_or_default();
    if !KINDS.contains(&kind) {
        return Err(named(
            "a dashboard has no files of this kind; see KINDS in build/pack.rs",
        ));
    }
    // A link could bring in what is no part of the dashboard.
    if !file.symlink_metadata().is_ok_and(|about| about.is_file()) {
        return Err(named("not an ordinary file"));
    }
    let bytes = fs::read(file).map_err(|error| named(&error.to_string()))?;
    let path = file.strip_prefix(dist).ok().and_then(Path::to_str);
    let path = path.ok_or_else(|| named("a name that is not UTF-8"))?;
    fs::write(copy, &bytes).map_err(|error| named(&error.to_string()))?;
    let packed = gzip(&bytes).map_err(|error| named(&error.to_string()))?;
    let packed_copy = copy.with_extension("gz");
    let mut packed_text = "None".to_owned();
    if packed.len() < bytes.len() {
        fs::write(&packed_copy, packed).map_err(|error| named(&error.to_string()))?;
        packed_text = format!("Some(include_bytes!({packed_copy:?}))");
    }
    let mut digest = String::new();
    for byte in Sha256::digest(&bytes).iter().take(12) {
        let _ = write!(digest, "{byte:02x}");
    }
    Ok(format!(
        "    ({:?}, include_bytes!({copy:?}), {packed_text}, {digest:?}),\n",
        format!("/{path}")
    ))
}

fn gzip(bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes)?;
    encoder.finish()
}
