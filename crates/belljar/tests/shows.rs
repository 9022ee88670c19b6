//! What a box is shown below `/belljar`, and its one door to the host.

mod support;

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::{fs, thread};

use belljar_supervisor::{Door, Reins, RunError, SandboxId, Show, ShowName};
use support::{Who, Yard, assert_all_allowed, assert_all_refused, for_each_user_apart};

const DOOR: &str = "/belljar/agent.sock";

fn name(text: &str) -> ShowName {
    ShowName::new(text).expect("a name")
}

fn text(place: &str, bytes: impl Into<Vec<u8>>) -> Show {
    Show::Text {
        name: name(place),
        bytes: bytes.into().into(),
    }
}

fn door(socket: &Path) -> Show {
    Show::Door {
        name: name("agent.sock"),
        socket: socket.to_owned(),
    }
}

/// A host's service that answers `hello` and counts its callers. Open to all, so that only walls are in the way.
struct Service {
    callers: Arc<AtomicUsize>,
}

impl Service {
    fn at(path: &Path) -> Service {
        let listener = UnixListener::bind(path).expect("a socket");
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).expect("open it to all");
        Service::on(listener)
    }

    /// The thread ends with the test's process.
    fn on(listener: UnixListener) -> Service {
        let callers = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&callers);
        thread::spawn(move || {
            for mut caller in listener.incoming().flatten() {
                count.fetch_add(1, Ordering::SeqCst);
                let mut said = [0; 5];
                if caller.read_exact(&mut said).is_ok() {
                    assert_eq!(&said, b"hello");
                    caller.write_all(b"there").ok();
                }
            }
        });
        Service { callers }
    }

    fn callers(&self) -> usize {
        self.callers.load(Ordering::SeqCst)
    }
}

fn texts_can_be_read_and_nothing_changed(who: Who) {
    let yard = Yard::new(who);
    let long = vec![b'x'; 1 << 20];
    let script = "cat /belljar/manifest.json; wc -c < /belljar/deep/state; \
        for attack in 'echo x > /belljar/manifest.json' 'echo x > /belljar/new' 'rm -f /belljar/manifest.json' \
            'mv /belljar/manifest.json /belljar/other' 'chmod 777 /belljar/manifest.json' 'chmod 777 /belljar' \
            'mkdir /belljar/bin' 'mv /belljar /elsewhere' 'ln /belljar/manifest.json taken' 'touch /belljar/deep/x'; do \
            sh -c \"$attack\" 2>/dev/null && echo \"allowed: $attack\"; done; \
        cat /belljar/manifest.json; ls /belljar";
    let command = yard
        .command(&["sh", "-c", script])
        .show(text("manifest.json", "{\"a\":1}\n"))
        .show(text("deep/state", long));
    let result = yard.run(&command);
    assert_eq!(
        result.stdout.as_deref(),
        Some("{\"a\":1}\n1048576\n{\"a\":1}\ndeep\nmanifest.json\n"),
        "{result:#?}"
    );
    yard.assert_nothing_left();
}

fn without_shows_there_is_no_such_place(who: Who) {
    let yard = Yard::new(who);
    let result = yard.run(&yard.command(&["sh", "-c", "test -e /belljar; echo $?"]));
    assert_eq!(result.stdout.as_deref(), Some("1\n"));
}

fn a_program_that_is_shown_can_be_run(who: Who) {
    let yard = Yard::new(who);
    // In a directory that the box's user can't enter, as root's own may be.
    let closed = yard.jail.base.join("closed");
    fs::create_dir(&closed).expect("a directory");
    let program = closed.join("belljar");
    fs::copy(support::belljar(), &program).expect("a copy of the program");
    yard.jail.own(&closed);
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).expect("close it");
    let shown = Show::Program {
        name: name("bin/belljar"),
        source: program,
    };
    let expected = format!("belljar {}\n", env!("CARGO_PKG_VERSION"));
    for words in [
        &["/belljar/bin/belljar", "--version"][..],
        &["sh", "-c", "/belljar/bin/belljar --version"],
    ] {
        let result = yard.run(&yard.command(words).show(shown.clone()));
        assert_eq!(result.stdout, Some(expected.clone()), "{result:#?}");
    }
    let attack = "echo x >> /belljar/bin/belljar || chmod 700 /belljar/bin/belljar || rm /belljar/bin/belljar";
    let result = yard.run(&yard.command(&["sh", "-c", attack]).show(shown));
    assert_ne!(result.exit_code, Some(0), "{result:#?}");
}

fn the_door_leads_to_its_keeper(who: Who) {
    let yard = Yard::new(who);
    let id = SandboxId::random().expect("an id");
    let opened = Door::open(&yard.state, &id).expect("a door");
    let service = Service::on(opened.listener().try_clone().expect("its listener"));
    let command = yard
        .probe(&["call-unix", DOOR])
        .show(opened.show(name("agent.sock")));
    assert_all_allowed(&yard.attempts(&command));
    assert_eq!(service.callers(), 2);
    // As seen from inside, the door is a socket that can't be changed.
    let script = format!(
        "test -S {DOOR} && ! rm -f {DOOR} && ! chmod 777 {DOOR} && ! mv {DOOR} x && echo held"
    );
    let command = yard
        .command(&["sh", "-c", &script])
        .show(opened.show(name("agent.sock")));
    assert_eq!(yard.run(&command).stdout.as_deref(), Some("held\n"));
    let file = opened.path().to_owned();
    drop(opened);
    assert!(!file.exists());
    yard.assert_nothing_left();
}

fn a_door_opens_no_other_socket(who: Who) {
    let yard = Yard::new(who);
    let socket = yard.jail.base.join("agent.sock");
    let (service, other) = (
        Service::at(&socket),
        Service::at(&yard.jail.work.join("other.sock")),
    );
    std::os::unix::fs::symlink(DOOR, yard.jail.work.join("to-door")).expect("a link");
    std::os::unix::fs::symlink("other.sock", yard.jail.work.join("to-other")).expect("a link");
    let refused = [
        yard.jail.work_file("other.sock"),
        "other.sock".into(),
        "to-other".into(),
    ];
    for path in refused {
        assert_all_allowed(&yard.jail.control(&["call-unix", &path]));
        let before = other.callers();
        assert_all_refused(&yard.attempts(&yard.probe(&["call-unix", &path]).show(door(&socket))));
        assert_eq!(
            other.callers(),
            before,
            "a call from the box reached {path}"
        );
    }
    // A link to the door is the door.
    assert_all_allowed(&yard.attempts(&yard.probe(&["call-unix", "to-door"]).show(door(&socket))));
    assert_eq!(service.callers(), 2);
    // Without a door, the same socket is as closed as any: here by its own path, where it can be seen.
    let seen = yard.jail.work.join("seen.sock");
    let seen_service = Service::at(&seen);
    let attempt = yard.probe(&["call-unix", "seen.sock"]);
    assert_all_refused(&yard.attempts(&attempt));
    assert_eq!(seen_service.callers(), 0);
    assert_all_allowed(&yard.attempts(&attempt.show(door(&seen))));
}

/// What the host does with names while a box runs does not move its door.
fn a_door_is_its_file_and_not_its_name(who: Who) {
    let yard = Yard::new(who);
    let socket = yard.jail.work.join("agent.sock");
    let service = Service::at(&socket);
    let script = format!(
        "touch up; while [ ! -e go ]; do sleep 0.02; done; '{0}' call-unix {DOOR}; echo then; \
         '{0}' call-unix agent.sock; echo then; '{0}' call-unix moved.sock",
        yard.jail.probe_path().display()
    );
    let command = yard.command(&["sh", "-c", &script]).show(door(&socket));
    let impostor = OnceLock::new();
    let result = yard.run_while(&command, |_| {
        yard.await_file("up");
        fs::rename(&socket, yard.jail.work.join("moved.sock")).expect("move the door");
        impostor.get_or_init(|| Service::at(&socket));
        yard.jail.put(&yard.jail.work.join("go"), "");
    });
    let said = result.expect("a result").stdout.unwrap_or_default();
    let parts: Vec<_> = said.split("then\n").map(support::Attempt::parse).collect();
    let [by_door, by_old_name, by_new_name] = parts.as_slice() else {
        panic!("{said}");
    };
    assert_all_allowed(by_door);
    assert_all_refused(by_old_name);
    assert_all_allowed(by_new_name);
    assert_eq!(impostor.get().map(Service::callers), Some(0));
    assert_eq!(service.callers(), 4);
}

fn neighbours_have_no_key_to_each_others_doors(who: Who) {
    let yard = Yard::new(who);
    let sockets = ["first.sock", "second.sock"].map(|file| yard.jail.work.join(file));
    let services = sockets.each_ref().map(|path| Service::at(path));
    thread::scope(|scope| {
        for (own, others) in [(0, "second.sock"), (1, "first.sock")] {
            let (yard, sockets) = (&yard, &sockets);
            scope.spawn(move || {
                let shown = door(&sockets[own]);
                let (up, other_up) = (format!("up-{own}"), format!("up-{}", 1 - own));
                let script = format!(
                    "touch {up}; while [ ! -e {other_up} ]; do sleep 0.02; done; \
                     '{0}' call-unix {others}; echo then; '{0}' call-unix {DOOR}",
                    yard.jail.probe_path().display()
                );
                let result = yard.run(&yard.command(&["sh", "-c", &script]).show(shown));
                let said = result.stdout.unwrap_or_default();
                let (neighbour, own) = said.split_once("then\n").expect("both parts");
                assert_all_refused(&support::Attempt::parse(neighbour));
                assert_all_allowed(&support::Attempt::parse(own));
            });
        }
    });
    assert_eq!(services.each_ref().map(Service::callers), [2, 2]);
}

/// An agent that changes the address, or the link it goes by, while its call is looked at.
fn a_race_for_another_socket_is_lost(who: Who) {
    let yard = Yard::new(who);
    let socket = yard.jail.base.join("agent.sock");
    let _service = Service::at(&socket);
    let other = Service::at(&yard.jail.work.join("other.sock"));
    let bad = yard.jail.work_file("other.sock");
    let link = yard.jail.work_file("link");
    let command = yard
        .probe(&["race-unix", DOOR, &bad, &link, "2000"])
        .show(door(&socket));
    let attempts = yard.attempts(&command);
    assert_eq!(other.callers(), 0, "a call from the box reached the host");
    let through: usize = attempts
        .first()
        .and_then(|attempt| attempt.detail.parse().ok())
        .unwrap_or_else(|| panic!("{attempts:?}"));
    assert!(
        through > 0,
        "no call went through the door, so nothing was raced for"
    );
}

fn what_can_not_be_used_is_refused(who: Who) {
    let yard = Yard::new(who);
    let base = &yard.jail.base;
    let _listener = UnixListener::bind(base.join("closed.sock")).expect("a socket");
    fs::set_permissions(base.join("closed.sock"), fs::Permissions::from_mode(0o000))
        .expect("close it");
    yard.jail.put(&base.join("plain"), "");
    let program = |source: &str| Show::Program {
        name: name("bin/program"),
        source: base.join(source),
    };
    let wrong = [
        (
            door(&base.join("closed.sock")),
            "can't be used by the box's user",
        ),
        (door(&base.join("plain")), "is not a socket"),
        (door(&base.join("absent")), "can't be shown"),
        (program("plain"), "can't be used by the box's user"),
        (program("closed.sock"), "is not a program"),
        (text("long", vec![0; (1 << 20) + 1]), "too long"),
    ];
    for (show, expected) in wrong {
        let command = yard.command(&["touch", "ran"]).show(show.clone());
        let result = yard.attend(&command, &Reins::new().expect("reins"), &mut ());
        match result {
            Err(RunError::Invalid { what, .. }) => assert!(what.contains(expected), "{what}"),
            other => panic!("{show:?}: {other:?}"),
        }
    }
    assert!(!yard.has("ran"));
    yard.assert_nothing_left();
}

for_each_user_apart!(
    texts_can_be_read_and_nothing_changed,
    without_shows_there_is_no_such_place,
    a_program_that_is_shown_can_be_run,
    the_door_leads_to_its_keeper,
    a_door_opens_no_other_socket,
    a_door_is_its_file_and_not_its_name,
    neighbours_have_no_key_to_each_others_doors,
    a_race_for_another_socket_is_lost,
    what_can_not_be_used_is_refused,
);
