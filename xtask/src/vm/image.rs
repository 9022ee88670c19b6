//! The guest's first file system, and with it its whole disk.

use std::collections::BTreeSet;
use std::fs;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use super::Workshop;
use super::artifacts::{Program, Programs};
use super::packages::Packages;
use super::tier::Part;
use crate::Failure;
use belljar_sandbox::cpio::Archive;

/// First process of the guest: sets it up, runs the tests, reports, ends.
const INIT: &str = include_str!("init.sh");

/// Writes the archive the kernel unpacks; `init.sh` relies on these directories.
pub(super) fn assemble(
    workshop: &Workshop,
    packages: &Packages,
    programs: &Programs,
    more: &[Part],
) -> Result<PathBuf, Failure> {
    let path = workshop.directory.join("initramfs.cpio");
    let mut archive = Archive::new(BufWriter::new(fs::File::create(&path)?));
    let mut made = BTreeSet::new();
    for directory in ["bin", "tests", "modules"] {
        archive.directory(directory)?;
        made.insert(directory.to_owned());
    }
    archive.file("init", 0o755, INIT.as_bytes())?;
    archive.file("bin/busybox", 0o755, &fs::read(&packages.busybox)?)?;
    for module in &packages.modules {
        archive.file(
            &format!("modules/{}.ko", module.name),
            0o644,
            &module.content,
        )?;
    }
    for program in &programs.tools {
        archive.file(
            &format!("bin/{}", program.name),
            0o755,
            &read_static(program)?,
        )?;
    }
    for program in &programs.tests {
        archive.file(
            &format!("tests/{}", program.name),
            0o755,
            &read_static(program)?,
        )?;
    }
    for Part { at, content } in more {
        // The kernel that unpacks it makes no directories by itself.
        let above = Path::new(at).ancestors().skip(1);
        let mut above: Vec<&str> = above.filter_map(Path::to_str).collect();
        above.reverse();
        for directory in above.into_iter().filter(|path| !path.is_empty()) {
            if made.insert(directory.to_owned()) {
                archive.directory(directory)?;
            }
        }
        archive.file(at, 0o755, content)?;
    }
    archive.finish()?;
    Ok(path)
}

/// A dynamic program would fail in the guest with a bare "not found"; better said here.
fn read_static(program: &Program) -> Result<Vec<u8>, Failure> {
    let content = fs::read(&program.path)?;
    if names_an_interpreter(&content) {
        let path = program.path.display();
        return Err(format!(
            "vm-test: {path} is linked dynamically; is .cargo/config.toml overridden?"
        )
        .into());
    }
    Ok(content)
}

/// Whether a 64-bit little-endian ELF file has a program header of type `PT_INTERP`.
fn names_an_interpreter(elf: &[u8]) -> bool {
    const PT_INTERP: u32 = 3;
    let number = |at: usize, size: usize| -> Option<usize> {
        let bytes = elf.get(at..at.checked_add(size)?)?;
        Some(
            bytes
                .iter()
                .rev()
                .fold(0, |sum, byte| sum << 8 | usize::from(*byte)),
        )
    };
    let header = || Some((number(0x20, 8)?, number(0x36, 2)?, number(0x38, 2)?));
    let Some((table, entry_size, count)) = header() else {
        return false;
    };
    (0..count).any(|index| number(table + index * entry_size, 4) == Some(PT_INTERP as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_static_test_program_names_no_interpreter() {
        let myself = fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(&myself[..4], b"\x7fELF");
        assert!(!names_an_interpreter(&myself));
    }

    #[test]
    fn a_dynamic_program_is_told_from_a_static_one() {
        let shell = fs::read("/bin/sh").unwrap();
        assert!(names_an_interpreter(&shell));
    }

    #[test]
    fn what_is_no_program_is_not_taken_for_a_dynamic_one() {
        assert!(!names_an_interpreter(b"#!/bin/sh\n"));
    }
}
