//! Everything there is to know about an agent at a bad moment, in one file that every system can open.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use belljar_api::{AgentId, AlertQuery, AlertState, EventQuery, MetricsQuery};
use data_encoding::HEXLOWER;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::clock::utc;
use crate::inner::Inner;

/// Events that go into a bundle.
const EVENTS: u64 = 1_000;
/// How far back its samples go, in milliseconds.
const SAMPLES_MS: u64 = 1_800_000;
/// Files that go into a bundle at most.
const MOST_FILES: usize = 256;

/// A file of a bundle.
type Part = (String, Vec<u8>);

/// Writes a bundle and says where it is.
pub(crate) fn keep(
    inner: &Arc<Inner>,
    agent: &AgentId,
    why: &str,
    evidence: Vec<Part>,
) -> io::Result<PathBuf> {
    let now = inner.clock.now();
    let mut parts = records(inner, agent, now);
    parts.extend(evidence);
    let directory = inner.directory.join("incidents");
    crate::store::make_private(&directory)?;
    let settings = &inner.settings.monitor;
    let about = json!({"agent": agent, "why": why, "at": utc(now), "at_ms": now});
    let path = write(
        &directory,
        agent,
        now,
        about,
        parts,
        settings.most_incident_bytes,
    )?;
    thin_out(&directory, settings.incidents_kept)?;
    Ok(path)
}

/// What the monitor itself knows.
fn records(inner: &Arc<Inner>, agent: &AgentId, now: u64) -> Vec<Part> {
    let agent = Some(agent.clone());
    let events = inner.events(&EventQuery {
        agent: agent.clone(),
        limit: Some(EVENTS),
        ..EventQuery::default()
    });
    let samples = inner.metrics(&MetricsQuery {
        agent: agent.clone(),
        since_ms: Some(now.saturating_sub(SAMPLES_MS)),
        points: Some(2_000),
        ..MetricsQuery::default()
    });
    let alerts = |state| {
        inner.alerts(&AlertQuery {
            agent: agent.clone(),
            state,
            limit: None,
        })
    };
    let part = |name: &str, value: Value| (name.to_owned(), format!("{value:#}\n").into_bytes());
    vec![
        part("events.json", json!(events)),
        part("samples.json", json!(samples)),
        part(
            "alerts.json",
            json!({
                "unresolved": alerts(None).alerts,
                "resolved": alerts(Some(AlertState::Resolved)).alerts,
            }),
        ),
    ]
}

/// One file, there as a whole or not at all, and for its owner alone.
fn write(
    directory: &Path,
    agent: &AgentId,
    now: u64,
    about: Value,
    parts: Vec<Part>,
    most_bytes: u64,
) -> io::Result<PathBuf> {
    let (manifest, parts) = within(about, parts, most_bytes);
    let name = format!("{}-{agent}", utc(now).replace([':', '-'], ""));
    let half = directory.join(format!(".{name}.half"));
    let result = (|| {
        let file = File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&half)?;
        let mut archive = tar::Builder::new(BufWriter::new(file));
        let all = std::iter::once((MANIFEST, manifest.as_slice())).chain(
            parts
                .iter()
                .map(|(name, bytes)| (name.as_str(), bytes.as_slice())),
        );
        for (name, bytes) in all {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o600);
            header.set_mtime(now / 1000);
            archive.append_data(&mut header, name, bytes)?;
        }
        let mut buffered = archive.into_inner()?;
        buffered.flush()?;
        buffered.get_ref().sync_all()?;
        place(directory, &half, &name)
    })();
    if result.is_err() {
        // It may never have been made.
        let _absent = fs::remove_file(&half);
    }
    result
}

/// Gives the finished file its name. An older bundle of the same moment keeps its own.
fn place(directory: &Path, half: &Path, name: &str) -> io::Result<PathBuf> {
    for again in 0..1000 {
        let suffix = if again == 0 {
            String::new()
        } else {
            format!("-{again}")
        };
        let path = directory.join(format!("{name}{suffix}.tar"));
        match fs::hard_link(half, &path) {
            Ok(()) => {
                fs::remove_file(half)?;
                File::open(directory)?.sync_all()?;
                return Ok(path);
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

const MANIFEST: &str = "MANIFEST.json";

/// Parts with safe names that fit, and the manifest that says what each is and what was cut.
fn within(mut about: Value, parts: Vec<Part>, most_bytes: u64) -> (Vec<u8>, Vec<Part>) {
    let mut room = usize::try_from(most_bytes).unwrap_or(usize::MAX);
    let mut kept: Vec<Part> = Vec::new();
    let mut files = Vec::new();
    let total = parts.len();
    for (name, mut bytes) in parts.into_iter().take(MOST_FILES) {
        let mut name = safe(&name);
        while name == MANIFEST || kept.iter().any(|(known, _)| *known == name) {
            name.push('_');
        }
        let whole = bytes.len();
        bytes.truncate(room);
        room -= bytes.len();
        files.push(json!({
            "name": name,
            "bytes": bytes.len(),
            "sha256": HEXLOWER.encode(&Sha256::digest(&bytes)),
            "cut_from": (bytes.len() < whole).then_some(whole),
        }));
        kept.push((name, bytes));
    }
    about["files"] = Value::Array(files);
    about["left_out"] = json!(total - kept.len());
    (format!("{about:#}\n").into_bytes(), kept)
}

/// A name that stays in the directory it is unpacked to.
fn safe(name: &str) -> String {
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_') {
            c
        } else {
            '_'
        }
    };
    let steps = name
        .split('/')
        .filter(|step| !step.trim_matches('.').is_empty());
    let steps: Vec<String> = steps
        .take(8)
        .map(|step| step.chars().take(64).map(plain).collect())
        .collect();
    match steps.is_empty() {
        true => "unnamed".into(),
        false => steps.join("/"),
    }
}

/// The oldest bundles go. Their names begin with their time.
fn thin_out(directory: &Path, kept: u64) -> io::Result<()> {
    let mut all: Vec<PathBuf> = fs::read_dir(directory)?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "tar"))
        .collect();
    all.sort();
    let surplus = all
        .len()
        .saturating_sub(usize::try_from(kept).unwrap_or(usize::MAX));
    all.iter().take(surplus).try_for_each(fs::remove_file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;
    use std::os::unix::fs::PermissionsExt as _;

    fn unpack(path: &Path) -> Vec<(String, Vec<u8>)> {
        let mut archive = tar::Archive::new(File::open(path).unwrap());
        let mut files = Vec::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().display().to_string();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            files.push((name, bytes));
        }
        files
    }

    fn bundle(directory: &Path, now: u64, parts: Vec<Part>, most: u64) -> PathBuf {
        write(
            directory,
            &crate::testing::id("a1"),
            now,
            json!({"why": "test"}),
            parts,
            most,
        )
        .unwrap()
    }

    #[test]
    fn a_bundle_holds_every_part_with_its_digest() {
        let directory = tempfile::tempdir().unwrap();
        let parts = vec![
            ("policy.yaml".to_owned(), b"version: 1\n".to_vec()),
            ("proc/1/status".to_owned(), b"R".to_vec()),
        ];
        let path = bundle(directory.path(), 951_827_696_789, parts, 1 << 20);
        assert_eq!(path.file_name().unwrap(), "20000229T123456.789Z-a1.tar");
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        let files = unpack(&path);
        let manifest: Value = serde_json::from_slice(&files[0].1).unwrap();
        assert_eq!(files.len(), 3);
        for (listed, (name, bytes)) in manifest["files"]
            .as_array()
            .unwrap()
            .iter()
            .zip(&files[1..])
        {
            assert_eq!(listed["name"], *name);
            assert_eq!(listed["sha256"], HEXLOWER.encode(&Sha256::digest(bytes)));
        }
        // A second one of the same moment does not take the first one's place.
        let second = bundle(directory.path(), 951_827_696_789, Vec::new(), 1);
        assert_ne!(second, path);
        assert_eq!(
            fs::read_dir(directory.path()).unwrap().count(),
            2,
            "nothing half-made is left"
        );
    }

    #[test]
    fn what_does_not_fit_is_cut_and_said_to_be() {
        let directory = tempfile::tempdir().unwrap();
        let parts = vec![
            ("a".to_owned(), vec![1; 60]),
            ("b".to_owned(), vec![2; 60]),
            ("c".to_owned(), vec![3; 60]),
        ];
        let files = unpack(&bundle(directory.path(), 0, parts, 100));
        let sizes: Vec<usize> = files[1..].iter().map(|(_, bytes)| bytes.len()).collect();
        assert_eq!(sizes, [60, 40, 0]);
        let manifest: Value = serde_json::from_slice(&files[0].1).unwrap();
        assert_eq!(manifest["files"][1]["cut_from"], 60);
        assert_eq!(manifest["files"][0]["cut_from"], Value::Null);
    }

    #[test]
    fn names_stay_where_they_are_unpacked() {
        for (name, kept) in [
            ("../../etc/passwd", "etc/passwd"),
            ("/etc/shadow", "etc/shadow"),
            ("...", "unnamed"),
            ("", "unnamed"),
            ("a\nb/ü", "a_b/_"),
        ] {
            assert_eq!(safe(name), kept, "{name:?}");
        }
    }

    #[test]
    fn the_oldest_bundles_go() {
        let directory = tempfile::tempdir().unwrap();
        for day in 0..5 {
            bundle(directory.path(), day * 86_400_000, Vec::new(), 1);
        }
        thin_out(directory.path(), 2).unwrap();
        let mut left: Vec<_> = fs::read_dir(directory.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        left.sort();
        assert_eq!(
            left,
            ["19700104T000000.000Z-a1.tar", "19700105T000000.000Z-a1.tar"]
        );
    }
}
