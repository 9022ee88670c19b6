//! The guest's first file system: this very program, and the kernel modules it needs to reach us.

use crate::cpio::Archive;
use rustix::fs::MemfdFlags;
use std::fs::File;
use std::io::{self, BufWriter, Read, Seek};
use std::path::Path;

/// Writes it into memory of our own.
pub(super) fn assemble(program: &Path, modules: &Path) -> io::Result<File> {
    let memory = rustix::fs::memfd_create(c"guest", MemfdFlags::CLOEXEC)?;
    let mut archive = Archive::new(BufWriter::new(File::from(memory)));
    for directory in ["dev", "proc", "sys", "box", "modules"] {
        archive.directory(directory)?;
    }
    archive.file("init", 0o755, &loadable_part(&mut File::open(program)?)?)?;
    for entry in std::fs::read_dir(modules)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_str().ok_or(io::ErrorKind::InvalidFilename)?;
        archive.file(
            &format!("modules/{name}"),
            0o644,
            &std::fs::read(entry.path())?,
        )?;
    }
    let memory = archive.finish()?.into_inner()?;
    Ok(memory)
}

/// A 64-bit ELF program without what is not loaded: symbols and debugging information, which are most of a program that
/// was built for tests.
fn loadable_part(program: &mut File) -> io::Result<Vec<u8>> {
    const HEADER: usize = 64;
    const ENTRY: usize = 56;
    const LOADED: u32 = 1;
    let mut header = [0; HEADER];
    program.read_exact(&mut header)?;
    let number = |bytes: &[u8], at: usize, size: usize| -> u64 {
        let bytes = bytes.get(at..at + size).unwrap_or_default();
        bytes
            .iter()
            .rev()
            .fold(0, |sum, byte| sum << 8 | u64::from(*byte))
    };
    let is_elf = header.starts_with(b"\x7fELF\x02\x01") && number(&header, 0x36, 2) == ENTRY as u64;
    if !is_elf {
        return Err(io::Error::other("this program is no 64-bit ELF file"));
    }
    let count = number(&header, 0x38, 2) as usize;
    let mut table = vec![0; count * ENTRY];
    program.seek(io::SeekFrom::Start(number(&header, 0x20, 8)))?;
    program.read_exact(&mut table)?;
    let ends = table
        .chunks_exact(ENTRY)
        .filter(|entry| number(entry, 0, 4) == u64::from(LOADED))
        .map(|entry| number(entry, 8, 8).saturating_add(number(entry, 32, 8)));
    let end = ends.max().unwrap_or(0);
    let mut bytes = Vec::with_capacity(usize::try_from(end).unwrap_or(0));
    program.rewind()?;
    program.take(end).read_to_end(&mut bytes)?;
    // Where sections are described: nowhere any more.
    for range in [0x28..0x30, 0x3c..0x40] {
        if let Some(bytes) = bytes.get_mut(range) {
            bytes.fill(0);
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_program_without_its_symbols_still_runs() {
        let myself = std::env::current_exe().unwrap();
        let bytes = loadable_part(&mut File::open(&myself).unwrap()).unwrap();
        assert!(bytes.len() as u64 <= std::fs::metadata(&myself).unwrap().len());
        let place = tempfile::tempdir().unwrap();
        let copy = place.path().join("copy");
        std::fs::write(&copy, bytes).unwrap();
        std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o755)).unwrap();
        let ran = std::process::Command::new(copy)
            .arg("--list")
            .output()
            .unwrap();
        assert!(ran.status.success());
        let listed = String::from_utf8_lossy(&ran.stdout).into_owned();
        assert!(listed.contains("a_program_without_its_symbols_still_runs"));
    }

    #[test]
    fn what_is_no_program_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("script");
        std::fs::write(&file, [b'#'; 200]).unwrap();
        assert!(loadable_part(&mut File::open(&file).unwrap()).is_err());
    }
}
