//! A Debian suite, made by `mmdebstrap` or `debootstrap` of the packages that the host's own mirror has.
//!
//! Their work is done in namespaces of its own that end with us, and what they made is unpacked like a stranger's archive.

mod mirrors;

use crate::build::Unpacked;
use crate::directory::Directory;
use crate::error::ImageError;
use crate::hashed::Hashed;
use crate::layer::{Layered, unpack};
use crate::record::ImageConfig;
use crate::tree::Tree;
use mirrors::{Mirror, mirrors};
use std::fs::{self, File, Permissions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

/// Bytes of what a program said last.
const LAST_WORDS: i64 = 2048;

/// A suite with packages, and how to get it.
pub(crate) struct Suite {
    suite: String,
    include: Vec<String>,
    mirrors: Vec<Mirror>,
    maker: Maker,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Maker {
    Mmdebstrap,
    Debootstrap,
}

impl Suite {
    pub(crate) fn new(suite: &str, include: &[String]) -> Result<Self, ImageError> {
        let is_plain = |text: &str, also: &[u8]| {
            text.starts_with(|c: char| c.is_ascii_alphanumeric())
                && text
                    .bytes()
                    .all(|c| c.is_ascii_alphanumeric() || also.contains(&c))
        };
        if !is_plain(suite, b"-.") {
            let what = format!("{suite:?} is no suite");
            return Err(ImageError::refused(
                what,
                "name one: bookworm, trixie, noble",
            ));
        }
        if let Some(bad) = include.iter().find(|name| !is_plain(name, b"+-.:")) {
            let what = format!("{bad:?} is no package's name");
            return Err(ImageError::refused(
                what,
                "--include takes names, with commas between them",
            ));
        }
        let mut include = include.to_vec();
        include.sort();
        include.dedup();
        Ok(Self {
            suite: suite.to_owned(),
            include,
            mirrors: mirrors(suite)?,
            maker: maker()?,
        })
    }

    /// What it is made of, as far as can be known without making it.
    pub(crate) fn key(&self) -> String {
        let lines: Vec<String> = self.mirrors.iter().map(Mirror::line).collect();
        let include = self.include.join(",");
        format!(
            "debian {:?} {} [{include}] {}",
            self.maker,
            self.suite,
            lines.join("; ")
        )
    }

    pub(crate) fn unpack(&self, scratch: &Path, tree: &mut Tree) -> Result<Unpacked, ImageError> {
        // Apt fetches as a user of its own, who has to get there.
        fs::set_permissions(scratch, Permissions::from_mode(0o755))
            .map_err(ImageError::store(scratch))?;
        let digest = match self.maker {
            Maker::Mmdebstrap => self.by_mmdebstrap(scratch, tree)?,
            Maker::Debootstrap => self.by_debootstrap(scratch, tree)?,
        };
        let config = ImageConfig::default();
        Ok(Unpacked { digest, config })
    }

    fn by_mmdebstrap(&self, scratch: &Path, tree: &mut Tree) -> Result<crate::Digest, ImageError> {
        let mut command = enclosed("mmdebstrap");
        command.args(["--quiet", "--variant=essential", "--format=tar"]);
        // Nothing of it needs to survive a power cut before it is in the store, and then no trace of that.
        command.arg("--dpkgopt=force-unsafe-io");
        command.arg(r#"--customize-hook=rm "$1/etc/dpkg/dpkg.cfg.d/99mmdebstrap""#);
        if !self.include.is_empty() {
            command.arg(format!("--include={}", self.include.join(",")));
        }
        command.arg(&self.suite).arg("-");
        command.args(self.mirrors.iter().map(Mirror::line));
        let words = Words::of(scratch)?;
        if rustix::process::geteuid().is_root() {
            command.env("TMPDIR", scratch);
        }
        let fail = |error| failed("mmdebstrap", &error);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(words.file()?)
            .spawn()
            .map_err(fail)?;
        let Some(output) = child.stdout.take() else {
            return Err(fail(io::ErrorKind::BrokenPipe.into()));
        };
        let archive = Hashed::new(output);
        let unpacked = unpack(tree, archive.clone(), Layered::No)
            .and_then(|()| io::copy(&mut archive.clone(), &mut io::sink()).map_err(fail));
        if unpacked.is_err() {
            // If it failed itself, that is the better reason, and it has ended; otherwise its pipe is of no use to it.
            let _ = child.kill();
        }
        let digest = archive.digest();
        drop(archive);
        let status = child.wait().map_err(fail)?;
        words.check("mmdebstrap", status, unpacked.is_err())?;
        unpacked.map(|_| digest)
    }

    fn by_debootstrap(&self, scratch: &Path, tree: &mut Tree) -> Result<crate::Digest, ImageError> {
        let root = scratch.join("root");
        let mut command = enclosed("debootstrap");
        command.arg("--variant=minbase");
        if !self.include.is_empty() {
            command.arg(format!("--include={}", self.include.join(",")));
        }
        let mirror = self.mirrors.first().map(|mirror| mirror.uri.as_str());
        command.arg(&self.suite).arg(&root).args(mirror);
        let words = Words::of(scratch)?;
        let status = command
            .stdin(Stdio::null())
            .stdout(words.file()?)
            .stderr(words.file()?)
            .status()
            .map_err(|error| failed("debootstrap", &error))?;
        words.check("debootstrap", status, false)?;
        Directory::open(&root, scratch)?.copy_to(tree)
    }
}

/// Which of the two is here and can be used by whoever asks.
fn maker() -> Result<Maker, ImageError> {
    if is_installed("mmdebstrap") {
        return Ok(Maker::Mmdebstrap);
    }
    let hint = "`apt install --no-install-recommends mmdebstrap`".to_owned();
    if !is_installed("debootstrap") {
        let what = "neither mmdebstrap nor debootstrap is installed".to_owned();
        return Err(ImageError::Unavailable { what, hint });
    }
    if !rustix::process::geteuid().is_root() {
        let what = "debootstrap works for root only".to_owned();
        return Err(ImageError::Unavailable { what, hint });
    }
    Ok(Maker::Debootstrap)
}

fn is_installed(program: &str) -> bool {
    places().any(|directory| directory.join(program).is_file())
}

/// Where programs are looked for: an ordinary caller's `PATH` lacks what is root's, and what these programs need of it.
fn places() -> impl Iterator<Item = PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let sbin = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    let own: Vec<PathBuf> = std::env::split_paths(&path).collect();
    own.into_iter().chain(sbin)
}

/// A program that ends when we do. Root's has mounts and processes of its own, which end with it: it mounts things, and
/// must not leave them behind when it is killed.
fn enclosed(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    if rustix::process::geteuid().is_root() {
        command.args([
            "--pdeathsig",
            "KILL",
            "--",
            "unshare",
            "--mount",
            "--pid",
            "--fork",
        ]);
        command.args(["--kill-child", "--mount-proc", "--"]);
    } else {
        command.args(["--pdeathsig", "TERM", "--"]);
    }
    if let Ok(path) = std::env::join_paths(places()) {
        command.env("PATH", path);
    }
    command.arg(program);
    command
}

/// What a program says while it works, for when it fails.
struct Words {
    path: PathBuf,
}

impl Words {
    fn of(scratch: &Path) -> Result<Self, ImageError> {
        let path = scratch.join("words");
        File::create(&path).map_err(ImageError::store(&path))?;
        Ok(Self { path })
    }

    fn file(&self) -> Result<Stdio, ImageError> {
        let file = File::options().append(true).open(&self.path);
        file.map(Stdio::from).map_err(ImageError::store(&self.path))
    }

    /// `was_ended`: by us, which is no reason of its own.
    fn check(&self, program: &str, status: ExitStatus, was_ended: bool) -> Result<(), ImageError> {
        if status.success() || (was_ended && status.code().is_none()) {
            return Ok(());
        }
        let last = || -> io::Result<String> {
            let mut file = File::open(&self.path)?;
            let length = file.metadata()?.len();
            if i64::try_from(length).unwrap_or(i64::MAX) > LAST_WORDS {
                file.seek(SeekFrom::End(-LAST_WORDS))?;
            }
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
        };
        Err(ImageError::Unavailable {
            what: format!("{program} failed ({status}): {}", last().unwrap_or_default()),
            hint: "is the suite known, are the packages there, is the mirror reached? `apt-get update` tells".into(),
        })
    }
}

fn failed(program: &str, error: &io::Error) -> ImageError {
    ImageError::Unavailable {
        what: format!("{program} can't be run: {error}"),
        hint: "it needs `setpriv` and `unshare` of util-linux".into(),
    }
}
