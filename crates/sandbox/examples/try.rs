#![allow(
    missing_docs,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::unwrap_used
)]
use belljar_sandbox::Host;
use belljar_sandbox::native::{Stdio, launch};
use belljar_sandbox::plan::*;
use std::path::PathBuf;
fn main() {
    let t = std::time::Instant::now();
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    let host = Host::probe();
    let view = |p: &str, shows| View {
        path: p.into(),
        shows,
    };
    let ro = |p: &str| View {
        path: p.into(),
        shows: Shows::Host {
            source: p.into(),
            kind: Kind::Directory,
            access: Access::Read,
            ownership: Ownership::Host,
        },
    };
    let euid = rustix::process::geteuid().as_raw();
    let uid = if euid == 0 { 65534 } else { euid };
    let mut v = vec![view("/", Shows::Frame)];
    for d in ["/usr", "/etc", "/var", "/opt"] {
        v.push(ro(d));
    }
    for l in ["bin", "sbin", "lib", "lib64"] {
        v.push(view(
            &format!("/{l}"),
            Shows::Link(format!("usr/{l}").into()),
        ));
    }
    v.push(view(
        "/tmp",
        Shows::Private {
            bytes: 1 << 20,
            mode: 0o1777,
        },
    ));
    v.push(view(
        "/dev/shm",
        Shows::Private {
            bytes: 1 << 20,
            mode: 0o1777,
        },
    ));
    let plan = Plan {
        id: format!("{}", std::process::id()),
        program: PathBuf::from(&args[0]),
        argv: args,
        env: vec![("PATH".into(), "/usr/bin:/bin".into())],
        workdir: "/".into(),
        identity: Identity {
            uid,
            gid: uid,
            owner_uid: euid,
            owner_gid: euid,
        },
        view: v,
        limits: Limits {
            memory_bytes: Some(512 << 20),
            processes: Some(100),
            ..Default::default()
        },
        spawn: Spawn::Allow,
    };
    let l = launch(&plan, &host, &Stdio::inherit().unwrap()).unwrap();
    let up = t.elapsed();
    let mut status = None;
    loop {
        let mut fds = [
            rustix::event::PollFd::from_borrowed_fd(l.handle(), rustix::event::PollFlags::IN),
            rustix::event::PollFd::from_borrowed_fd(l.events(), rustix::event::PollFlags::IN),
        ];
        rustix::event::poll(&mut fds, None).unwrap();
        let done = !fds[0].revents().is_empty();
        while let Some(e) = l.next_event() {
            if let belljar_sandbox::native::Event::MainEnded { status: s } = e {
                status = Some(s)
            } else {
                eprintln!("{e:?}")
            }
        }
        if done {
            break;
        }
    }
    let e = l.finish().unwrap();
    eprintln!("status {status:?} {e:?} up {up:?} total {:?}", t.elapsed());
}
