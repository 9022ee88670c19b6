//! What an agent may not reach through a socket: the host's Unix sockets, its loopback, and the world.

mod support;

use std::fs;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket};
use support::{
    Attempt, Difference, Jail, Scratch, Who, assert_all_allowed, assert_all_refused, differs,
    for_each_user_and_tier,
};

/// An address of TEST-NET-1, which routes nowhere. Used only in a network namespace of the test's own.
const OUTSIDE_ADDRESS: &str = "192.0.2.7";

/// Host sockets of every kind at paths below a directory, open for anyone to connect to.
struct HostSockets {
    directory: PathBuf,
    stream: UnixListener,
    _others: (UnixDatagram, std::os::fd::OwnedFd),
}

impl HostSockets {
    fn open(directory: &Path) -> HostSockets {
        let path = |kind: &str| directory.join(format!("host-{kind}.sock"));
        let stream = UnixListener::bind(path("stream")).expect("a stream socket");
        let dgram = UnixDatagram::bind(path("dgram")).expect("a datagram socket");
        let seqpacket =
            socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).expect("a packet socket");
        let address = SocketAddrUnix::new(path("seqpacket").as_path()).expect("its address");
        bind(&seqpacket, &address).expect("bind the packet socket");
        listen(&seqpacket, 16).expect("listen on the packet socket");
        for kind in ["stream", "dgram", "seqpacket"] {
            fs::set_permissions(path(kind), fs::Permissions::from_mode(0o777))
                .expect("open the socket to all");
        }
        stream.set_nonblocking(true).expect("do not wait");
        HostSockets {
            directory: directory.to_owned(),
            stream,
            _others: (dgram, seqpacket),
        }
    }

    /// How many have called since the last look.
    fn callers(&self) -> usize {
        std::iter::from_fn(|| self.stream.accept().ok()).count()
    }

    fn path(&self, kind: &str) -> String {
        self.directory
            .join(format!("host-{kind}.sock"))
            .to_string_lossy()
            .into_owned()
    }
}

fn sockets_of_the_host_are_out_of_reach(who: Who) {
    let jail = Jail::new(who);
    let shared = Scratch::below("/tmp");
    for place in [jail.home.as_path(), &jail.work, shared.path()] {
        let sockets = HostSockets::open(place);
        for kind in ["stream", "seqpacket", "dgram"] {
            jail.attack(&["connect-unix", kind, &sockets.path(kind)]);
        }
        // A service that is called does something, even when the caller says nothing: only the control's two
        // calls may arrive.
        assert_eq!(
            sockets.callers(),
            2,
            "a call from the box reached {}",
            place.display()
        );
    }
}

/// The agent of a running box finds a socket in its workspace that was not there when the box was built.
fn sockets_made_after_the_launch_are_out_of_reach(who: Who) {
    let jail = Jail::new(who);
    let wait_then_connect = |kind: &str, path: &str| {
        let program = jail.probe_path();
        let mut command = jail.json_command(&[
            &program.to_string_lossy(),
            "after-input",
            "connect-unix",
            kind,
            path,
        ]);
        command.stdin(Stdio::piped());
        command.spawn().expect("start the box")
    };
    let kinds = ["stream", "seqpacket", "dgram"];
    let path = |kind: &str| jail.work_file(&format!("host-{kind}.sock"));
    let mut running: Vec<(&str, Child)> = kinds
        .iter()
        .map(|kind| (*kind, wait_then_connect(kind, &path(kind))))
        .collect();
    for (_, child) in &running {
        wait_until_inside(child.id());
    }
    let sockets = HostSockets::open(&jail.work);
    for (kind, child) in &mut running {
        assert_all_allowed(&jail.control(&["connect-unix", kind, &sockets.path(kind)]));
        drop(child.stdin.take());
    }
    for (kind, child) in running {
        let outcome = support::Outcome::from_json(support::finish(child));
        let attempts: Vec<Attempt> = outcome
            .attempts()
            .into_iter()
            .filter(|a| a.name != "after-input")
            .collect();
        assert!(!attempts.iter().any(|a| a.allowed), "{kind}: {attempts:?}");
        assert!(!attempts.is_empty(), "{kind}: {outcome:#?}");
    }
    jail.assert_nothing_left(None);
}

/// The box is built once a descendant of the keeper runs the probe.
fn wait_until_inside(keeper: u32) {
    support::eventually("the probe runs in the box", || {
        let runs_probe = |pid: u32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0).next().is_some_and(|word| {
                match differs(Difference::OwnProcesses) {
                    // The view is closed to what comes when its kernel runs.
                    true => word == b"runsc-sandbox" || word.ends_with(b"/ld-linux-x86-64.so.2"),
                    false => word.ends_with(b"/tools/probe"),
                }
            })
        };
        descendants(keeper)
            .into_iter()
            .any(runs_probe)
            .then_some(())
    });
}

fn descendants(of: u32) -> Vec<u32> {
    let mut found = vec![of];
    let mut next = 0;
    while next < found.len() {
        for task in fs::read_dir(format!("/proc/{}/task", found[next]))
            .into_iter()
            .flatten()
            .flatten()
        {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            found.extend(
                children
                    .split_whitespace()
                    .filter_map(|pid| pid.parse::<u32>().ok()),
            );
        }
        next += 1;
    }
    found
}

fn abstract_sockets_of_the_host_are_out_of_reach(who: Who) {
    let jail = Jail::new(who);
    let name = |kind: &str| format!("belljar-{}-{who:?}-{kind}", std::process::id());
    let address =
        |kind: &str| SocketAddr::from_abstract_name(name(kind)).expect("an abstract name");
    let _stream = UnixListener::bind_addr(&address("stream")).expect("a stream socket");
    let _dgram = UnixDatagram::bind_addr(&address("dgram")).expect("a datagram socket");
    for kind in ["stream", "dgram"] {
        jail.attack(&["connect-abstract", kind, &name(kind)]);
    }
}

fn sockets_within_the_box_work(who: Who) {
    let jail = Jail::new(who);
    for place in [jail.work_file("own.sock"), "/tmp/own.sock".to_owned()] {
        assert_all_allowed(&jail.inside(&["talk-unix", &place]).attempts());
        fs::remove_file(&place).ok();
        assert_all_allowed(&jail.inside(&["talk-unix", &place, "seqpacket"]).attempts());
        fs::remove_file(&place).ok();
    }
    assert_all_allowed(&jail.inside(&["talk-pair"]).attempts());
    assert_all_allowed(&jail.inside(&["own-loopback"]).attempts());
}

fn the_hosts_loopback_is_out_of_reach(who: Who) {
    let jail = Jail::new(who);
    for address in [
        IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(Ipv6Addr::LOCALHOST),
    ] {
        let Ok(tcp) = TcpListener::bind((address, 0)) else {
            assert!(address.is_ipv6(), "this host has no loopback");
            continue;
        };
        let port = tcp.local_addr().expect("its address").port().to_string();
        jail.attack(&["tcp", &address.to_string(), &port]);
        jail.attack(&["tcp-fastopen", &address.to_string(), &port]);
        let udp = UdpSocket::bind((address, 0)).expect("a datagram socket");
        let port = udp.local_addr().expect("its address").port().to_string();
        // The one datagram that gets through is the control's.
        let echo = thread::spawn(move || {
            let mut text = [0; 16];
            let (length, from) = udp.recv_from(&mut text).expect("a datagram");
            udp.send_to(&text[..length], from).expect("an answer");
            udp
        });
        assert_all_allowed(&jail.control(&["udp", &address.to_string(), &port]));
        let udp = echo.join().expect("the echo");
        assert_all_refused(
            &jail
                .inside(&["udp", &address.to_string(), &port])
                .attempts(),
        );
        udp.set_nonblocking(true).expect("do not wait");
        assert!(
            udp.recv_from(&mut [0; 16]).is_err(),
            "a datagram left the box"
        );
    }
}

/// The whole test runs in a network namespace where an outside address answers: nothing can really leave.
fn outside_addresses_are_out_of_reach(who: Who) {
    let jail = Jail::new(who);
    let program = jail.probe_path().to_string_lossy().into_owned();
    let belljar = jail.belljar_path().to_string_lossy().into_owned();
    let in_laboratory = |prefix: &str| {
        let script = format!(
            "{prefix} '{program}' tcp {OUTSIDE_ADDRESS} $LAB_TCP; \
             {prefix} '{program}' tcp-fastopen {OUTSIDE_ADDRESS} $LAB_TCP; \
             {prefix} '{program}' udp {OUTSIDE_ADDRESS} $LAB_UDP; true"
        );
        let mut command = jail.outside(&program);
        // The laboratory needs root to make its network; it starts the script as the user.
        if support::runner_is_root() {
            std::os::unix::process::CommandExt::uid(&mut command, 0);
            std::os::unix::process::CommandExt::gid(&mut command, 0);
        }
        command.args([
            "laboratory",
            OUTSIDE_ADDRESS,
            &who.uid().to_string(),
            "/bin/sh",
            "-c",
            &script,
        ]);
        let finished = support::finish(command.spawn().expect("a laboratory"));
        let attempts = Attempt::parse(&finished.stdout());
        assert_eq!(
            attempts.len(),
            3,
            "{}\n{}",
            finished.stdout(),
            finished.stderr()
        );
        attempts
    };
    assert_all_allowed(&in_laboratory(""));
    assert_all_refused(&in_laboratory(&format!("'{belljar}' run --")));
    jail.assert_nothing_left(None);
}

fn a_pipe_made_by_the_host_can_be_used_only_where_files_can(who: Who) {
    let jail = Jail::new(who);
    let pipe = jail.home_file("pipe");
    assert_all_allowed(&jail.control(&["mknod", &pipe, "fifo"]));
    // Held open for reading, so that a writer would not be turned away for want of a reader.
    let reader = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(&pipe)
        .expect("the pipe's reader");
    assert_all_allowed(&jail.control(&["fifo-write", &pipe]));
    let mut said = [0; 13];
    (&reader).read_exact(&mut said).expect("the control's text");
    assert_eq!(&said, b"from the box\n");
    assert_all_refused(&jail.inside(&["fifo-write", &pipe]).attempts());
}

for_each_user_and_tier!(
    sockets_of_the_host_are_out_of_reach,
    sockets_made_after_the_launch_are_out_of_reach,
    abstract_sockets_of_the_host_are_out_of_reach,
    sockets_within_the_box_work,
    the_hosts_loopback_is_out_of_reach,
    outside_addresses_are_out_of_reach,
    a_pipe_made_by_the_host_can_be_used_only_where_files_can,
);
