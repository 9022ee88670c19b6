//! The programs under test: built by cargo exactly as for the host, and static thanks to `.cargo/config.toml`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::packages::run;
use super::{Contents, Workshop};
use crate::Failure;

/// What is copied into the guest.
pub(super) struct Programs {
    /// Test programs, run one after the other.
    pub(super) tests: Vec<Program>,
    /// What they start.
    pub(super) tools: Vec<Program>,
}

/// Names a real Firecracker, for `--kvm` to try in place of what stands in for one.
const FIRECRACKER: &str = "BELLJAR_FIRECRACKER";
/// What it is called in the guest: `init.sh` asks for this name.
const REAL_FIRECRACKER: &str = "real-firecracker";

impl Programs {
    /// Whether a real Firecracker is among them.
    pub(super) fn have_firecracker(&self) -> bool {
        self.tools.iter().any(|tool| tool.name == REAL_FIRECRACKER)
    }
}

/// A static executable and its name in the guest.
pub(super) struct Program {
    pub(super) name: &'static str,
    pub(super) path: PathBuf,
}

/// Builds what `contents` asks for.
pub(super) fn build(workshop: &Workshop, contents: Contents) -> Result<Programs, Failure> {
    let cargo = Cargo {
        repository: &workshop.repository,
    };
    let guest = || cargo.test_program("xtask", "guest");
    match contents {
        Contents::GuestOnly => Ok(Programs {
            tests: vec![guest()?],
            tools: Vec::new(),
        }),
        Contents::Everything => Ok(Programs {
            tests: vec![guest()?, cargo.test_program("belljar", "limits")?],
            tools: vec![cargo.binary("belljar", "belljar")?, probe(workshop)?],
        }),
        Contents::Kvm => Ok(Programs {
            tests: vec![cargo.test_program("xtask", "kvm")?],
            tools: vec![
                cargo.binary("belljar", "belljar")?,
                match std::env::var_os(FIRECRACKER) {
                    Some(path) => real_firecracker(path.into())?,
                    None => cargo.binary("xtask", "firecracker")?,
                },
            ],
        }),
    }
}

fn real_firecracker(path: PathBuf) -> Result<Program, Failure> {
    if !path.is_file() {
        let path = path.display();
        return Err(format!(
            "vm-test: {FIRECRACKER}={path}: no such file; name a release's firecracker-vVERSION-x86_64, or unset it"
        )
        .into());
    }
    Ok(Program {
        name: REAL_FIRECRACKER,
        path,
    })
}

/// The attack program of belljar's tests, compiled as they compile it.
fn probe(workshop: &Workshop) -> Result<Program, Failure> {
    let mut sources = Vec::new();
    for entry in fs::read_dir(workshop.repository.join("crates/belljar/tests/probe"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "c") {
            sources.push(path);
        }
    }
    let path = workshop.directory.join("probe");
    run(Command::new("cc")
        .args(["-static", "-O1", "-pthread", "-o"])
        .arg(&path)
        .args(sources))?;
    Ok(Program {
        name: "probe",
        path,
    })
}

struct Cargo<'a> {
    repository: &'a Path,
}

impl Cargo<'_> {
    fn test_program(&self, package: &str, name: &'static str) -> Result<Program, Failure> {
        self.build(
            name,
            &["test", "--no-run", "--package", package, "--test", name],
        )
    }

    fn binary(&self, package: &str, name: &'static str) -> Result<Program, Failure> {
        self.build(name, &["build", "--package", package, "--bin", name])
    }

    fn build(&self, name: &'static str, arguments: &[&str]) -> Result<Program, Failure> {
        // The cargo that runs us, so that a toolchain chosen on the command line stays chosen.
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let output = Command::new(cargo)
            .args(arguments)
            .args([
                "--locked",
                "--quiet",
                "--message-format=json-render-diagnostics",
            ])
            .current_dir(self.repository)
            .stderr(Stdio::inherit())
            .output()?;
        if !output.status.success() {
            return Err(format!("vm-test: {name} does not build").into());
        }
        let path = executable(name, &String::from_utf8_lossy(&output.stdout))
            .ok_or_else(|| format!("vm-test: cargo names no program for {name}"))?;
        Ok(Program { name, path })
    }
}

/// The program that cargo's messages say it made for the target of this name.
fn executable(name: &str, messages: &str) -> Option<PathBuf> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["target"]["name"] == name)
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_firecracker_that_is_not_there_is_told_with_the_variable_that_named_it() {
        let error = real_firecracker("/nowhere".into()).err().unwrap();
        assert!(error.to_string().contains("BELLJAR_FIRECRACKER=/nowhere"));
        let here = std::env::current_exe().unwrap();
        let tools = vec![real_firecracker(here).unwrap()];
        let tests = Vec::new();
        assert!(Programs { tests, tools }.have_firecracker());
    }

    #[test]
    fn the_program_of_the_named_target_is_picked() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"belljar"},"executable":"/t/belljar"}
            {"reason":"compiler-artifact","target":{"name":"limits"},"executable":null}
            {"reason":"compiler-artifact","target":{"name":"limits"},"executable":"/t/limits-1"}
            {"reason":"build-finished","success":true}"#;
        assert_eq!(
            executable("limits", messages),
            Some(PathBuf::from("/t/limits-1"))
        );
        assert_eq!(executable("walls", messages), None);
    }
}
