//! The guest's kernel and busybox: packages of this host's distribution, unpacked here and never installed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Workshop;
use crate::Failure;

/// The smallest kernel package of each distribution: Debian's, then Ubuntu's.
const KERNELS: [&str; 2] = ["linux-image-cloud-amd64", "linux-image-virtual"];
const BUSYBOX: &str = "busybox-static";
/// What these kernels have as modules: overlayfs and disks in memory. All else the tests need is built in.
const MODULES: [&str; 2] = ["overlay", "brd"];

/// What the packages gave.
pub(super) struct Packages {
    pub(super) directory: PathBuf,
    pub(super) kernel: PathBuf,
    pub(super) busybox: PathBuf,
    pub(super) modules: Vec<Module>,
}

/// A kernel module, uncompressed: the guest has no tool for the compressed form.
pub(super) struct Module {
    pub(super) name: &'static str,
    pub(super) content: Vec<u8>,
}

/// Downloads and unpacks what is not there from an earlier run.
pub(super) fn fetch(workshop: &Workshop) -> Result<Packages, Failure> {
    let unpacked = workshop.directory.join("packages");
    if !unpacked.exists() {
        println!("vm-test: fetching a kernel and busybox from this distribution's packages");
        download(&workshop.directory, &unpacked)?;
    }
    locate(&unpacked).map_err(|failure| {
        format!("{failure}; remove {} to fetch again", unpacked.display()).into()
    })
}

fn download(directory: &Path, unpacked: &Path) -> Result<(), Failure> {
    let apt = Apt::with_fresh_lists(&directory.join("apt"))?;
    let kernel = KERNELS
        .into_iter()
        .find(|name| apt.knows(name))
        .ok_or_else(|| format!("vm-test: apt knows none of {}", KERNELS.join(", ")))?;
    let mut wanted = apt.kernel_parts(kernel)?;
    wanted.insert(BUSYBOX.to_owned());

    let archives = directory.join("debs");
    // Half a download of an earlier, interrupted run would be unpacked along with this one.
    let _ = fs::remove_dir_all(&archives);
    fs::create_dir_all(&archives)?;
    apt.download(&wanted, &archives)?;

    let partial = unpacked.with_extension("partial");
    let _ = fs::remove_dir_all(&partial);
    for archive in fs::read_dir(&archives)? {
        run(Command::new("dpkg-deb")
            .arg("-x")
            .arg(archive?.path())
            .arg(&partial))?;
    }
    fs::remove_dir_all(&archives)?;
    Ok(fs::rename(partial, unpacked)?)
}

fn locate(unpacked: &Path) -> Result<Packages, Failure> {
    let files = files_below(unpacked)?;
    // By directory and name: packages hold other files of the same names.
    let find = |what: &str, fits: &dyn Fn(&str) -> bool| {
        let file = files.iter().find(|path| path.to_str().is_some_and(fits));
        file.cloned()
            .ok_or_else(|| format!("vm-test: no {what} in the packages"))
    };
    let kernel = find("kernel", &|path| path.contains("/boot/vmlinuz-"))?;
    let busybox = find("busybox", &|path| path.ends_with("/bin/busybox"))?;
    let modules = MODULES
        .into_iter()
        .map(|name| {
            let file = find(name, &|path| path.contains(&format!("/{name}.ko")))?;
            Ok(Module {
                name,
                content: uncompressed(&file)?,
            })
        })
        .collect::<Result<_, Failure>>()?;
    Ok(Packages {
        directory: unpacked.to_owned(),
        kernel,
        busybox,
        modules,
    })
}

pub(super) fn files_below(directory: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            files.extend(files_below(&entry.path())?);
        } else {
            files.push(entry.path());
        }
    }
    Ok(files)
}

pub(super) fn uncompressed(module: &Path) -> Result<Vec<u8>, Failure> {
    let tool = match module.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        _ => return Ok(fs::read(module)?),
    };
    output(Command::new(tool).arg("-dc").arg(module))
}

/// apt with package lists of its own: needs no root, and can't fail because the host's lists are stale.
struct Apt {
    state: PathBuf,
}

impl Apt {
    fn with_fresh_lists(state: &Path) -> Result<Self, Failure> {
        for part in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(state.join(part))?;
        }
        let apt = Self {
            state: state.to_owned(),
        };
        run(apt.command("apt-get").args(["update", "-qq"]))?;
        Ok(apt)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .arg("-o")
            .arg(format!(
                "Dir::State::Lists={}",
                self.state.join("lists").display()
            ))
            .arg("-o")
            .arg(format!("Dir::Cache={}", self.state.join("cache").display()))
            // As root apt would switch to a user of its own, who may not write here.
            .args(["-o", "APT::Sandbox::User=root"])
            .env("LC_ALL", "C");
        command
    }

    fn knows(&self, package: &str) -> bool {
        output(self.command("apt-cache").args(["show", package])).is_ok_and(|text| !text.is_empty())
    }

    /// A kernel package and those parts of it that are packages of their own: the image, its modules.
    fn kernel_parts(&self, kernel: &str) -> Result<BTreeSet<String>, Failure> {
        let mut found = BTreeSet::new();
        let mut open = vec![kernel.to_owned()];
        while let Some(package) = open.pop() {
            if found.contains(&package) {
                continue;
            }
            let text = output(self.command("apt-cache").args(["depends", &package]))?;
            open.extend(kernel_dependencies(&String::from_utf8_lossy(&text)));
            found.insert(package);
        }
        Ok(found)
    }

    fn download(&self, packages: &BTreeSet<String>, into: &Path) -> Result<(), Failure> {
        run(self
            .command("apt-get")
            .args(["download", "-qq"])
            .args(packages)
            .current_dir(into))
    }
}

/// Reads `apt-cache depends`: the first choice of each dependency that is a part of the kernel.
fn kernel_dependencies(text: &str) -> Vec<String> {
    let mut dependencies = Vec::new();
    let mut is_alternative = false;
    for line in text.lines() {
        let (kind, more_follow) = match line.trim_start().strip_prefix('|') {
            Some(rest) => (rest, true),
            None => (line.trim_start(), false),
        };
        if let Some(name) = kind.strip_prefix("Depends: ") {
            let is_part = ["linux-image-", "linux-modules-"]
                .iter()
                .any(|prefix| name.starts_with(prefix));
            if is_part && !is_alternative {
                dependencies.push(name.to_owned());
            }
            is_alternative = more_follow;
        }
    }
    dependencies
}

pub(super) fn run(command: &mut Command) -> Result<(), Failure> {
    output(command).map(drop)
}

/// The command's standard output; its failure carries what it wrote on standard error.
pub(super) fn output(command: &mut Command) -> Result<Vec<u8>, Failure> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .map_err(|error| format!("vm-test: {name}: {error}; try `make setup`"))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    Err(format!(
        "vm-test: {name}: {}\n{}",
        output.status,
        complaint.trim_end()
    )
    .into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_followed_to_its_parts_only() {
        let text = "linux-image-virtual\n  Depends: linux-image-6.8.0-50-generic\n |Depends: linux-modules-a\n  \
                    Depends: linux-modules-b\n  Depends: intel-microcode\n  Recommends: linux-image-other\n";
        assert_eq!(
            kernel_dependencies(text),
            ["linux-image-6.8.0-50-generic", "linux-modules-a"]
        );
    }

    #[test]
    fn a_failing_command_says_what_it_wrote() {
        let message = output(Command::new("sh").args(["-c", "echo no such thing >&2; exit 3"]))
            .unwrap_err()
            .to_string();
        assert!(
            message.contains("exit status: 3") && message.contains("no such thing"),
            "{message}"
        );
    }
}
