//! What the tiers of virtual machines are made of on this host: QEMU or Firecracker, and a kernel for the guests.

use super::carrier::{self, Carrier};
use super::kvm::{self, Accelerator};
use super::{Beginning, Links, SOCKETS, guest, place};
use crate::host::Missing;
use crate::tier::Furniture;
use std::path::{Path, PathBuf};

/// Where QEMU is put by those who install it. Not along a `PATH`, which may begin with somebody's workspace.
const EMULATORS: &[&str] = &[
    "/usr/bin/qemu-system-x86_64",
    "/usr/local/bin/qemu-system-x86_64",
];
/// Where distributions that name libraries by architecture have them.
const LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";
const FIRMWARE_PLACES: &[&str] = &["/usr/share/qemu", "/usr/share/seabios"];
const FIRMWARE: &[&str] = &["bios-microvm.bin", "linuxboot_dma.bin"];
/// Trees that may have a kernel in `boot` and its modules in `lib/modules`: one for guests alone, and the host's own.
const KERNEL_TREES: &[&str] = &["/usr/lib/belljar/guest", "/"];
/// Kernels that were made for guests begin fast; that is how their names end.
const KERNEL_NAMES: &[&str] = &["-cloud-amd64", "-virtual", "-kvm"];

const INSTALL: &str = "install them (Debian: apt install --no-install-recommends qemu-system-x86 linux-image-cloud-amd64), \
                       or set sandbox_tier: gvisor or seccomp";
/// Where those who install Firecracker put it.
const FIRECRACKERS: &[&str] = &["/usr/local/bin/firecracker", "/usr/bin/firecracker"];
const INSTALL_FIRECRACKER: &str = "install Firecracker (https://github.com/firecracker-microvm/firecracker/releases) in /usr/local/bin and a \
                                   kernel for guests (docs/tiers.md), or set sandbox_tier: microvm, gvisor or seccomp";

const NO_KVM: &str = "take a host whose processor keeps guests apart, or set sandbox_tier: microvm with allow_emulation: true, gvisor or \
                      seccomp";

/// Whether a guest's processor may be emulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Emulation {
    /// Yes: slow, and no processor's wall between guest and emulator.
    Allowed,
    /// No.
    Refused,
}

/// All that a guest needs of this host.
#[derive(Debug, Clone)]
pub struct Parts {
    machinery: Machinery,
    beginning: Beginning,
    kernel: PathBuf,
    modules: Vec<PathBuf>,
    /// Those for a network, if the kernel has all it takes.
    network_modules: Option<Vec<PathBuf>>,
    program: PathBuf,
    image_bytes: u64,
}

/// What carries guests, and what that needs itself.
#[derive(Debug, Clone)]
enum Machinery {
    Qemu {
        accelerator: Accelerator,
        program: PathBuf,
        libraries: PathBuf,
        firmware: Vec<(&'static str, PathBuf)>,
    },
    Firecracker {
        program: PathBuf,
        version: carrier::Version,
    },
}

impl Machinery {
    fn carrier(&self) -> Carrier {
        match self {
            Self::Qemu { accelerator, .. } => Carrier::Qemu(*accelerator),
            Self::Firecracker { .. } => Carrier::Firecracker,
        }
    }

    /// Every file of the host's that has a part in it.
    fn files(&self) -> Vec<&Path> {
        match self {
            Self::Firecracker { program, .. } => vec![program],
            Self::Qemu {
                program,
                libraries,
                firmware,
                ..
            } => {
                let firmware = firmware.iter().map(|(_, path)| path.as_path());
                [program.as_path(), libraries]
                    .into_iter()
                    .chain(firmware)
                    .collect()
            }
        }
    }

    fn furniture(&self) -> Vec<Furniture> {
        match self {
            Self::Firecracker { program, .. } => vec![
                shown(place("firecracker"), program),
                Furniture::Sockets { at: place(SOCKETS) },
            ],
            Self::Qemu {
                program,
                libraries,
                firmware,
                ..
            } => {
                let own = [
                    shown(place("qemu"), program),
                    Furniture::Tree {
                        at: place("lib"),
                        source: libraries.clone(),
                    },
                ];
                let firmware = firmware
                    .iter()
                    .map(|(name, path)| shown(place("firmware").join(name), path));
                own.into_iter().chain(firmware).collect()
            }
        }
    }
}

fn shown(at: PathBuf, source: &Path) -> Furniture {
    Furniture::Program {
        at,
        source: source.to_owned(),
    }
}

fn missing(what: &str) -> Missing {
    Missing {
        what: format!("sandbox_tier microvm needs {what}"),
        hint: INSTALL.into(),
    }
}

fn missing_for_firecracker(what: &str) -> Missing {
    Missing {
        what: format!("sandbox_tier firecracker needs {what}"),
        hint: INSTALL_FIRECRACKER.into(),
    }
}

fn first(places: &[&str]) -> Option<PathBuf> {
    places
        .iter()
        .find_map(|place| Path::new(place).canonicalize().ok())
}

impl Parts {
    /// Finds them. `kernel_tree` is where to look for the kernel instead of the usual places.
    pub fn find(emulation: Emulation, kernel_tree: Option<&Path>) -> Result<Self, Missing> {
        if !cfg!(target_arch = "x86_64") {
            return Err(missing(
                "a 64-bit PC: this version knows guests of no other kind",
            ));
        }
        let accelerator = match (kvm::try_kvm(), emulation) {
            (Ok(()), _) => Accelerator::Kvm,
            (Err(_), Emulation::Allowed) => Accelerator::Emulation,
            (Err(why), Emulation::Refused) => {
                return Err(Missing {
                    what: format!(
                        "sandbox_tier microvm needs KVM ({why}), or software emulation, which the policy does not allow"
                    ),
                    hint: "say allow_emulation: true (slow, but its walls hold), or set sandbox_tier: gvisor or seccomp"
                        .into(),
                });
            }
        };
        let program = first(EMULATORS)
            .ok_or_else(|| missing("qemu-system-x86_64, which is not installed"))?;
        let libraries =
            first(&[LIBRARIES]).filter(|path| path.join("ld-linux-x86-64.so.2").exists());
        let libraries =
            libraries.ok_or_else(|| missing(&format!("QEMU's libraries in {LIBRARIES}")))?;
        let firmware = FIRMWARE.iter().map(|name| {
            let mut places = FIRMWARE_PLACES
                .iter()
                .map(|place| Path::new(place).join(name));
            let found = places.find_map(|path| path.canonicalize().ok());
            found
                .map(|path| (*name, path))
                .ok_or_else(|| missing(&format!("QEMU's {name}")))
        });
        let firmware = firmware.collect::<Result<_, _>>()?;
        let machinery = Machinery::Qemu {
            accelerator,
            program,
            libraries,
            firmware,
        };
        Self::around(machinery, kernel_tree, missing)
    }

    /// The same for Firecracker, which knows no emulation. What is missing is told all at once, so that nobody installs half of
    /// it in vain.
    pub fn find_firecracker(kernel_tree: Option<&Path>) -> Result<Self, Missing> {
        let needs = missing_for_firecracker;
        if !cfg!(target_arch = "x86_64") {
            return Err(needs(
                "a 64-bit PC: this version knows guests of no other kind",
            ));
        }
        let program = first(FIRECRACKERS);
        let lacks = [
            program
                .is_none()
                .then(|| format!("Firecracker: there is no {}", FIRECRACKERS.join(" or "))),
            kvm::try_kvm().err().map(|why| format!("KVM ({why})")),
        ];
        let lacks: Vec<String> = lacks.into_iter().flatten().collect();
        let program = match program {
            Some(program) if lacks.is_empty() => program,
            Some(_) => {
                return Err(Missing {
                    hint: NO_KVM.into(),
                    ..needs(&lacks.join(", and "))
                });
            }
            None => return Err(needs(&lacks.join(", and "))),
        };
        // Before it is asked anything.
        crate::host::demand_trusted(&program)
            .map_err(|why| needs(&format!("{}, but {why}", program.display())))?;
        let version = carrier::demand_version(&program).map_err(|why| needs(&why))?;
        Self::around(
            Machinery::Firecracker { program, version },
            kernel_tree,
            needs,
        )
    }

    /// All that is needed around it.
    fn around(
        machinery: Machinery,
        kernel_tree: Option<&Path>,
        missing: fn(&str) -> Missing,
    ) -> Result<Self, Missing> {
        let modules = machinery.carrier().modules();
        let usual = KERNEL_TREES.iter().map(Path::new);
        let (kernel, modules, network_modules) = match kernel_tree {
            Some(tree) => kernel_in(tree, modules),
            None => usual.into_iter().find_map(|tree| kernel_in(tree, modules)),
        }
        .ok_or_else(|| {
            missing("a kernel for its guests, such as Debian's linux-image-cloud-amd64")
        })?;
        let program = std::env::current_exe().map_err(|_| missing("to know where belljar is"))?;
        for path in machinery.files().into_iter().chain([kernel.as_path()]) {
            crate::host::demand_trusted(path)
                .map_err(|why| missing(&format!("{}, but {why}", path.display())))?;
        }
        let size = |path: &PathBuf| std::fs::metadata(path).map_or(0, |metadata| metadata.len());
        let all_modules = modules.iter().chain(network_modules.iter().flatten());
        let image_bytes = all_modules.map(size).sum::<u64>() + size(&program).min(MOST_PROGRAM);
        Ok(Self {
            machinery,
            beginning: Beginning::Boot,
            kernel,
            modules,
            network_modules,
            program,
            image_bytes,
        })
    }

    /// What carries its guests.
    pub fn carrier(&self) -> Carrier {
        self.machinery.carrier()
    }

    pub(super) fn beginning(&self) -> &Beginning {
        &self.beginning
    }

    pub(super) fn begin(&mut self, beginning: Beginning) {
        self.beginning = beginning;
    }

    /// Every file of the host's that has a part in how a guest starts.
    pub(super) fn files(&self) -> impl Iterator<Item = &Path> {
        let own = [self.kernel.as_path(), &self.program];
        let modules = self.modules.iter().map(PathBuf::as_path);
        let network = self.network_modules.iter().flatten();
        let all = self.machinery.files().into_iter().chain(own);
        all.chain(modules).chain(network.map(PathBuf::as_path))
    }

    /// How large a guest's first file system is at most.
    pub(super) fn image_bytes(&self) -> u64 {
        self.image_bytes
    }

    /// What makes the machine, and its version where that matters.
    pub fn machine(&self) -> String {
        match &self.machinery {
            Machinery::Qemu { program, .. } => program.display().to_string(),
            Machinery::Firecracker { program, version } => {
                format!("{} {version}", program.display())
            }
        }
    }

    /// The kernel that guests have.
    pub fn kernel(&self) -> &Path {
        &self.kernel
    }

    /// What its kernel needs to lead a network's packets; nothing if it can't.
    pub(super) fn network_modules(&self) -> Option<&[PathBuf]> {
        self.network_modules.as_deref()
    }

    /// All that such a guest needs, where the bridge looks for it.
    pub(super) fn furniture(&self, links: Links) -> Vec<Furniture> {
        let mut all = self.machinery.furniture();
        all.push(shown(place("belljar"), &self.program));
        if self.carrier().takes_kvm() {
            // Nobody but bridge and emulator is where it can be seen.
            all.push(Furniture::Device {
                at: kvm::DEVICE.into(),
            });
        }
        if let Beginning::Resume(kept) = &self.beginning {
            all.push(shown(place("kept"), &kept.path));
            if !self.carrier().may_start_anew() {
                return all;
            }
        }
        all.push(shown(place("kernel"), &self.kernel));
        let more = match links {
            Links::Without => None,
            Links::With => self.network_modules.as_ref(),
        };
        let modules = self
            .modules
            .iter()
            .chain(more.into_iter().flatten())
            .filter_map(|path| Some((path.file_name()?, path)));
        all.extend(modules.map(|(name, path)| shown(place("modules").join(name), path)));
        all
    }
}

/// What of this program a guest loads, at most: without symbols it is smaller.
const MOST_PROGRAM: u64 = 64 << 20;

/// The newest kernel for guests in a tree, and those of these modules, and of those for a network, that it does not have built
/// in.
fn kernel_in(
    tree: &Path,
    needed: &[&str],
) -> Option<(PathBuf, Vec<PathBuf>, Option<Vec<PathBuf>>)> {
    let mut versions: Vec<String> = std::fs::read_dir(tree.join("boot"))
        .ok()?
        .flatten()
        .filter_map(|entry| {
            Some(
                entry
                    .file_name()
                    .to_str()?
                    .strip_prefix("vmlinuz-")?
                    .to_owned(),
            )
        })
        .filter(|version| KERNEL_NAMES.iter().any(|end| version.ends_with(end)))
        .collect();
    versions.sort_by_key(|version| numbers_of(version));
    versions.iter().rev().find_map(|version| {
        let kernel = tree
            .join("boot")
            .join(format!("vmlinuz-{version}"))
            .canonicalize()
            .ok()?;
        let place = tree.join("lib/modules").join(version);
        let modules = modules_of(&place, needed)?;
        let network = modules_of(&place, guest::NETWORK_MODULES);
        Some((kernel, modules, network))
    })
}

fn numbers_of(version: &str) -> Vec<u32> {
    version
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|digits| digits.parse().ok())
        .collect()
}

/// The files of these modules, but of those that are built in; nothing if the kernel lacks one.
fn modules_of(tree: &Path, names: &[&str]) -> Option<Vec<PathBuf>> {
    let listed: Vec<String> = ["modules.order", "modules.builtin"]
        .iter()
        .filter_map(|list| std::fs::read_to_string(tree.join(list)).ok())
        .flat_map(|list| list.lines().map(str::to_owned).collect::<Vec<_>>())
        .collect();
    let mut files = Vec::new();
    for name in names {
        let found = listed.iter().find(|line| stem(line) == *name);
        let Some(line) = found else {
            // Others have it in them, in newer kernels.
            if guest::HELPER_MODULES.contains(name) {
                continue;
            }
            return None;
        };
        // Compressed files are listed by the names they had before.
        let forms = ["", ".xz", ".zst", ".gz"]
            .iter()
            .map(|end| tree.join(format!("{line}{end}")));
        // What is listed and not there is built in.
        files.extend(forms.into_iter().find_map(|path| path.canonicalize().ok()));
    }
    Some(files)
}

fn stem(line: &str) -> &str {
    let name = line.rsplit('/').next().unwrap_or(line);
    name.split(".ko").next().unwrap_or(name)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The kernel that Firecracker's guests have here, and its modules.
    pub(in crate::microvm) fn firecrackers_kernel() -> (PathBuf, Vec<PathBuf>) {
        let tree = Path::new(KERNEL_TREES[0]);
        let found = kernel_in(tree, guest::VSOCK_MODULES).expect("a kernel, by `make setup`");
        (found.0, found.1)
    }

    /// Parts that are nowhere, by this carrier.
    pub(in crate::microvm) fn parts(carrier: Carrier) -> Parts {
        let machinery = match carrier {
            Carrier::Firecracker => Machinery::Firecracker {
                program: "/x/firecracker".into(),
                version: carrier::TRIED,
            },
            Carrier::Qemu(accelerator) => Machinery::Qemu {
                accelerator,
                program: "/x/qemu".into(),
                libraries: "/x/lib".into(),
                firmware: Vec::new(),
            },
        };
        Parts {
            machinery,
            beginning: Beginning::Boot,
            kernel: "/x/kernel".into(),
            modules: vec!["/x/vsock.ko".into()],
            network_modules: Some(vec!["/x/tproxy.ko".into()]),
            program: "/x/belljar".into(),
            image_bytes: 0,
        }
    }

    #[test]
    fn the_machine_is_named_with_its_version_where_that_matters() {
        let named = |carrier| parts(carrier).machine();
        assert_eq!(named(Carrier::Firecracker), "/x/firecracker 1.14.4");
        assert_eq!(named(Carrier::Qemu(Accelerator::Kvm)), "/x/qemu");
    }

    fn tree(kernels: &[&str]) -> tempfile::TempDir {
        let tree = tempfile::tempdir().unwrap();
        std::fs::create_dir(tree.path().join("boot")).unwrap();
        for version in kernels {
            std::fs::write(tree.path().join(format!("boot/vmlinuz-{version}")), "").unwrap();
            let modules = tree.path().join("lib/modules").join(version);
            std::fs::create_dir_all(modules.join("kernel")).unwrap();
            let names = ["virtio", "virtio_ring", "virtio_mmio", "virtio_console"];
            let order: String = names
                .iter()
                .map(|name| format!("kernel/{name}.ko\n"))
                .collect();
            std::fs::write(modules.join("modules.order"), order).unwrap();
            std::fs::write(modules.join("modules.builtin"), "kernel/fs/fuse/fuse.ko\n").unwrap();
            for name in names {
                std::fs::write(modules.join(format!("kernel/{name}.ko.xz")), "").unwrap();
            }
        }
        tree
    }

    #[test]
    fn the_newest_kernel_for_guests_is_taken_with_the_modules_it_needs() {
        let tree = tree(&[
            "6.1.0-9-cloud-amd64",
            "6.1.0-40-cloud-amd64",
            "6.12.1-amd64",
        ]);
        let (kernel, modules, network) = kernel_in(tree.path(), guest::MODULES).unwrap();
        assert!(
            kernel.ends_with("boot/vmlinuz-6.1.0-40-cloud-amd64"),
            "{kernel:?}"
        );
        assert_eq!(modules.len(), 4, "{modules:?}");
        assert_eq!(network, None, "it has no module for packets");
        assert!(
            modules[3].ends_with("kernel/virtio_console.ko.xz"),
            "{modules:?}"
        );
    }

    #[test]
    fn a_kernel_without_what_a_guest_needs_is_none() {
        let tree = tree(&["6.1.0-9-cloud-amd64"]);
        std::fs::write(
            tree.path()
                .join("lib/modules/6.1.0-9-cloud-amd64/modules.builtin"),
            "",
        )
        .unwrap();
        assert_eq!(kernel_in(tree.path(), guest::MODULES), None);
        assert_eq!(kernel_in(Path::new("/nowhere"), guest::MODULES), None);
    }

    #[test]
    fn emulation_that_is_not_allowed_is_refused_with_why_and_what_to_say() {
        match (kvm::try_kvm(), Parts::find(Emulation::Refused, None)) {
            (Err(why), Err(refused)) => {
                assert!(refused.what.contains(&why), "{refused:?}");
                assert!(
                    refused.hint.contains("allow_emulation: true"),
                    "{refused:?}"
                );
            }
            (Ok(()), Ok(parts)) => {
                assert_eq!(parts.carrier(), Carrier::Qemu(Accelerator::Kvm));
            }
            (kvm, found) => panic!("{kvm:?}, but {found:?}"),
        }
    }
}
