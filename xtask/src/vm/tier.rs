//! What the microvm tier takes in a guest that has KVM: QEMU with its libraries and firmware, and a kernel for guests of its own.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::packages::{Packages, files_below, output, uncompressed};
use crate::Failure;

/// A file of the guest's first file system.
pub(super) struct Part {
    /// Where, without the first slash.
    pub(super) at: String,
    pub(super) content: Vec<u8>,
}

const EMULATOR: &str = "/usr/bin/qemu-system-x86_64";
/// Where belljar looks for libraries.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
const FIRMWARE: [(&str, &[&str]); 2] = [
    (
        "bios-microvm.bin",
        &["/usr/share/seabios", "/usr/share/qemu"],
    ),
    ("linuxboot_dma.bin", &["/usr/share/qemu"]),
];
/// Where belljar looks for a kernel for guests.
const KERNEL_TREE: &str = "usr/lib/belljar/guest";
/// What that kernel needs to reach its bridge.
const MODULES: [&str; 8] = [
    "virtio",
    "virtio_ring",
    "virtio_mmio",
    "virtio_console",
    "vsock",
    "vmw_vsock_virtio_transport_common",
    "vmw_vsock_virtio_transport",
    "fuse",
];

/// All of it.
pub(super) fn parts(packages: &Packages) -> Result<Vec<Part>, Failure> {
    let mut parts = vec![part(EMULATOR.trim_start_matches('/'), Path::new(EMULATOR))?];
    let listed = output(Command::new("ldd").arg(EMULATOR))?;
    for library in libraries(&String::from_utf8_lossy(&listed)) {
        let name = library
            .file_name()
            .and_then(|name| name.to_str())
            .ok_or("vm-test: a library without a name")?;
        parts.push(part(&format!("{LIBRARIES}/{name}"), &library)?);
    }
    for (name, places) in FIRMWARE {
        let mut files = places.iter().map(|place| Path::new(place).join(name));
        let file = files
            .find(|file| file.exists())
            .ok_or_else(|| format!("vm-test: no {name} of QEMU's; try `make setup`"))?;
        parts.push(part(&format!("usr/share/qemu/{name}"), &file)?);
    }
    let files = files_below(&packages.directory)?;
    parts.extend(kernel(packages, &files)?);
    for (number, (name, content)) in kvm_modules(&files)?.into_iter().enumerate() {
        // `init.sh` loads them in the order of their names.
        let at = format!("modules/kvm/{number:02}-{name}.ko");
        parts.push(Part { at, content });
    }
    Ok(parts)
}

fn part(at: &str, source: &Path) -> Result<Part, Failure> {
    let content = fs::read(source).map_err(|error| {
        let source = source.display();
        format!("vm-test: {source}: {error}; try `make setup`")
    })?;
    Ok(Part {
        at: at.to_owned(),
        content,
    })
}

/// The libraries that `ldd` names, and the loader.
fn libraries(listed: &str) -> BTreeSet<PathBuf> {
    let words = listed.lines().flat_map(str::split_whitespace);
    words
        .filter(|word| word.starts_with('/') && !word.ends_with(':'))
        .map(PathBuf::from)
        .collect()
}

/// The kernel that the guest runs, once more and where kernels for guests are. Its list of modules names no others than are there.
fn kernel(packages: &Packages, files: &[PathBuf]) -> Result<Vec<Part>, Failure> {
    let name = packages
        .kernel
        .file_name()
        .and_then(|name| name.to_str())
        .ok_or("vm-test: a kernel without a name")?;
    let version = name.trim_start_matches("vmlinuz-");
    let mut parts = vec![part(
        &format!("{KERNEL_TREE}/boot/{name}"),
        &packages.kernel,
    )?];
    let marker = format!("/lib/modules/{version}/");
    let tree = format!("{KERNEL_TREE}/lib/modules/{version}");
    let mut order = String::new();
    for file in files {
        let path = file.to_string_lossy();
        let Some((_, inside)) = path.split_once(&marker) else {
            continue;
        };
        if inside == "modules.builtin" {
            parts.push(part(&format!("{tree}/{inside}"), file)?);
        } else if inside.contains(".ko") && MODULES.contains(&&*module_name(file)) {
            parts.push(part(&format!("{tree}/{inside}"), file)?);
            let (plain, _) = inside.split_once(".ko").unwrap_or((inside, ""));
            order.push_str(&format!("{plain}.ko\n"));
        }
    }
    parts.push(Part {
        at: format!("{tree}/modules.order"),
        content: order.into_bytes(),
    });
    Ok(parts)
}

/// KVM for the emulated processor, and before it all that it needs and the kernel does not have built in.
fn kvm_modules(files: &[PathBuf]) -> Result<Vec<(String, Vec<u8>)>, Failure> {
    const LAST: &str = "kvm_amd";
    let mut found: Vec<(String, Vec<u8>)> = Vec::new();
    let mut open = vec![LAST.to_owned()];
    while let Some(name) = open.pop() {
        let is_it =
            |file: &&PathBuf| file.to_string_lossy().contains(".ko") && module_name(file) == name;
        let Some(file) = files.iter().find(is_it) else {
            continue;
        };
        let content = uncompressed(file)?;
        open.extend(dependencies(&content));
        // Whoever is needed by two comes before both.
        found.retain(|(other, _)| *other != name);
        found.push((name, content));
    }
    if found.is_empty() {
        return Err(format!("vm-test: no {LAST} in the packages").into());
    }
    found.reverse();
    Ok(found)
}

/// A module's name, as modules name each other.
fn module_name(file: &Path) -> String {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let name = name.split(".ko").next().unwrap_or(&name);
    name.replace('-', "_")
}

/// The modules that this one says it needs.
fn dependencies(module: &[u8]) -> Vec<String> {
    const MARK: &[u8] = b"\0depends=";
    let place = module
        .windows(MARK.len())
        .position(|window| window == MARK)
        .map(|at| module.get(at + MARK.len()..).unwrap_or_default());
    let text = place
        .and_then(|rest| rest.split(|byte| *byte == 0).next())
        .unwrap_or_default();
    let text = String::from_utf8_lossy(text).replace('-', "_");
    let names = text.split(',').filter(|name| !name.is_empty());
    names.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_libraries_and_the_loader_are_read_from_ldd() {
        let listed = "\tlinux-vdso.so.1 (0x7ffd)\n\tlibz.so.1 => /lib/x86_64-linux-gnu/libz.so.1 (0x7f00)\n\
                      \t/lib64/ld-linux-x86-64.so.2 (0x7f11)\n";
        let found: Vec<PathBuf> = libraries(listed).into_iter().collect();
        assert_eq!(
            found,
            [
                PathBuf::from("/lib/x86_64-linux-gnu/libz.so.1"),
                PathBuf::from("/lib64/ld-linux-x86-64.so.2")
            ]
        );
    }

    #[test]
    fn what_a_module_needs_is_read_from_it() {
        let module = b"\x7fELF\0license=GPL\0depends=kvm,irq-bypass\0name=x\0";
        assert_eq!(dependencies(module), ["kvm", "irq_bypass"]);
        assert!(dependencies(b"\0depends=\0").is_empty());
        assert!(dependencies(b"").is_empty());
    }
}
