//! A whole guest on what stands in for Firecracker (`tests/firecracker.py`): its kernel, its pid 1 and its program, emulated, with
//! the bridge at the other end of its channel. No box is around it: that is the same for every guest.

use super::machine::{Beginning, Machine, Places, Purpose, start_firecracker, state_in, unpacked};
use super::*;
use crate::plan::Network;
use crate::reach::Reach;
use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Emulated, the first file system lies in it twice.
const MEGABYTES: u64 = 768;

/// This test is what such a guest's kernel runs as pid 1: libtest takes the kernel's words for names of tests. Anywhere else there
/// is nothing to do.
#[test]
fn pid_1_of_a_guest_on_vsock() {
    let words: Vec<std::ffi::OsString> = std::env::args_os().collect();
    if rustix::process::getpid().is_init() {
        crate::microvm::take_over(&words);
    }
}

const RUN: Purpose = Purpose::Run { largest_file: None };

struct World {
    directory: tempfile::TempDir,
    places: Places,
}

/// What `scripts/setup.sh test` installs.
fn vsock_device() -> PathBuf {
    let myself = std::env::current_exe().unwrap();
    let tools = myself.ancestors().map(|above| above.join("test-tools"));
    let device = tools.map(|tools| tools.join("bin/vhost-device-vsock"));
    device
        .into_iter()
        .find(|path| path.exists())
        .expect("vhost-device-vsock, by `make setup`")
}

fn world() -> World {
    world_where("")
}

/// The same, where what stands in for Firecracker finds such an environment.
fn world_where(environment: &str) -> World {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("firecracker");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/firecracker.py");
    let text = format!(
        "#!/bin/sh\n{environment} VHOST_DEVICE_VSOCK={} exec /usr/bin/python3 {} \"$@\"\n",
        vsock_device().display(),
        script.display()
    );
    std::fs::write(&program, text).unwrap();
    std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let sockets = directory.path().join("sockets");
    std::fs::create_dir(&sockets).unwrap();
    let kept = directory.path().join("kept");
    let places = Places {
        program,
        sockets,
        kept,
        // What goes on with the stand-in, starts.
        patience: SLOWEST_START,
    };
    World { directory, places }
}

/// A kernel and a first file system, as a box has them; but pid 1 is this test program.
fn beginning(world: &World) -> Beginning {
    let (kernel, modules) = crate::microvm::parts::tests::firecrackers_kernel();
    let place = world.directory.path().join("modules");
    std::fs::create_dir(&place).unwrap();
    for module in modules {
        let name = module.file_name().unwrap().to_owned();
        std::fs::copy(&module, place.join(name)).unwrap();
    }
    Beginning::Boot {
        files: image::assemble(Path::new("/proc/self/exe"), &place).unwrap(),
        kernel: Some(unpacked(&kernel).unwrap()),
    }
}

fn start(world: &World, beginning: &Beginning, purpose: Purpose) -> (Machine, UnixStream) {
    let started = start_firecracker(&world.places, beginning, purpose, MEGABYTES);
    started.unwrap_or_else(|error| panic!("{error}"))
}

/// Runs a shell's script in the guest at the other end; what it wrote is returned with its end.
fn run(mut heard: UnixStream, begin: Begin, script: &str) -> (String, Result<End, Failure>) {
    let order = Order {
        program: "/bin/sh".into(),
        argv: ["sh", "-c", script].map(Into::into).to_vec(),
        env: vec![("PATH".into(), "/usr/bin:/bin".into())],
        workdir: "/".into(),
        uid: 1000,
        gid: 1000,
        may_spawn: true,
        shared_bytes: 1 << 20,
        memory_bytes: 0,
        processes: 64,
        writable: vec!["/tmp".into()],
        limits: Vec::new(),
        reach: Reach {
            network: Network::Closed,
            answered: None,
            published: Vec::new(),
            doors: Vec::new(),
        },
    };
    let told = tempfile::NamedTempFile::new().unwrap();
    told.as_file().set_len(crate::told::SIZE as u64).unwrap();
    let mut telling = Telling::open_at(told.path(), &order).unwrap();
    let surroundings = Surroundings {
        has_terminal: false,
        umask: 0o022,
        entropy: [7; 64],
    };
    let mut bytes = order.encode();
    bytes.extend(surroundings.encode());
    let channel = Arc::new(Mutex::new(heard.try_clone().unwrap()));
    let output = Written::default();
    let streams = Streams {
        outputs: [
            Output::start(&channel, 1, Box::new(output.clone())),
            Output::start(&channel, 2, Box::new(output.clone())),
        ],
        input: Input::default(),
    };
    let server = Arc::new(Server::new(Path::new("/")).unwrap());
    let requests = serve_files(&server, &channel);
    let ways = Ways::open(order.reach).unwrap();
    let mut service = Service {
        streams: &streams,
        requests: &requests,
        ways: &ways,
        telling: &mut telling,
    };
    let end = attend(&mut heard, &channel, begin, &bytes, None, &mut service);
    for output in streams.outputs {
        output.finish();
    }
    let written = output.0.lock().unwrap().clone();
    (String::from_utf8(written).unwrap(), end)
}

#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// It says which kernel it has, what devices, which file systems it may write to, and ends with 7.
const SCRIPT: &str = "uname -s; ls /dev | tr '\\n' ' '; echo; id -u; touch /etc/made 2>&1; exit 7";

fn assert_ran(said: &str, end: Result<End, Failure>) {
    let status = match end {
        Ok(End::Program { status, killed: 0 }) => status,
        other => panic!("{:?}: {said}", other.err()),
    };
    assert_eq!(status, 7 << 8, "{said}");
    let lines: Vec<&str> = said.lines().collect();
    let [kernel, devices, user, refused] = lines.as_slice() else {
        panic!("{said}");
    };
    assert_eq!((*kernel, *user), ("Linux", "1000"));
    assert!(
        devices.contains("urandom") && !devices.contains("vsock"),
        "{said}"
    );
    assert!(refused.contains("Permission denied"), "{said}");
}

#[test]
fn a_guest_that_calls_the_bridge_runs_its_program_and_nobody_can_call_again() {
    let world = world();
    let beginning = beginning(&world);
    let (machine, channel) = start(&world, &beginning, RUN);
    assert!(!world.places.sockets.join("guest_1").exists());
    let (said, end) = run(channel, Begin::Boot, SCRIPT);
    assert_ran(&said, end);
    drop(machine);
}

#[test]
fn a_guest_that_was_kept_calls_again_and_takes_its_order_then() {
    let world = world();
    let first = beginning(&world);
    let (mut machine, mut channel) = start(&world, &first, Purpose::Keep);
    let up = wire::receive(&mut channel, Sender::Guest).unwrap();
    assert_eq!(up.kind, Kind::Up);
    let kept = File::create_new(&world.places.kept).unwrap();
    machine.save(std::os::fd::AsFd::as_fd(&kept)).unwrap();
    drop((machine, channel, first));
    // Another box has another directory.
    std::fs::remove_dir_all(&world.places.sockets).unwrap();
    std::fs::create_dir(&world.places.sockets).unwrap();
    let state = Beginning::Resume(state_in(&File::open(&world.places.kept).unwrap()).unwrap());
    let (machine, channel) = start(&world, &state, RUN);
    let (said, end) = run(channel, Begin::Resume, SCRIPT);
    assert_ran(&said, end);
    drop(machine);
}

#[test]
fn a_guest_that_was_kept_and_never_calls_gives_way_to_one_that_starts() {
    let mut world = world_where("SILENT_AFTER_LOAD=1");
    // It is waited for in vain however long.
    world.places.patience = Duration::ZERO;
    let sockets = world.places.sockets.join("guest");
    let state = serde_json::json!({
        "machine": {"vcpu_count": 1, "mem_size_mib": MEGABYTES},
        "vsock": {"guest_cid": 3, "uds_path": sockets},
        "boot_args": "",
        "files": {},
    });
    let place = world.directory.path().join("state");
    std::fs::write(&place, state.to_string()).unwrap();
    File::create_new(&world.places.kept).unwrap();
    let start = |begin| {
        let beginning = match begin {
            Begin::Resume => Beginning::Resume(File::open(&place)?),
            Begin::Boot => beginning(&world),
        };
        start_firecracker(&world.places, &beginning, RUN, MEGABYTES)
    };
    let mut notes = Vec::new();
    let started = start_or_anew(Carrier::Firecracker, Begin::Resume, start, |note| {
        notes.push(note.to_owned());
    });
    let ((machine, channel), begin) = started.unwrap();
    let [note] = notes.as_slice() else {
        panic!("{notes:?}");
    };
    assert!(note.contains("starts from nothing"), "{note}");
    assert!(note.contains("did not call within 0 s"), "{note}");
    assert_eq!(begin, Begin::Boot);
    let (said, end) = run(channel, begin, SCRIPT);
    assert_ran(&said, end);
    drop(machine);
}

#[test]
fn a_machine_that_refuses_is_told_with_what_it_said() {
    let world = world();
    let beginning = Beginning::Boot {
        files: File::open("/dev/null").unwrap(),
        // It takes no kernel that is packed.
        kernel: Some(File::open("/bin/sh").unwrap()),
    };
    let zero = start_firecracker(&world.places, &beginning, RUN, 0);
    let error = zero.err().unwrap().to_string();
    assert!(
        error.contains("PUT /machine-config: ") && error.contains("mem_size_mib"),
        "{error}"
    );
}
