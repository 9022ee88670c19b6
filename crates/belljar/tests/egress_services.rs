//! Protocols that are not HTTP, servers inside the box, the host's own proxy, and the end of whoever holds the way out.

mod support;

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use support::{
    Outcome, PLACE, Who, World, assert_recorded, eventually, finish, for_each_user_in_a_world,
    processes_marked, runner_is_root,
};

/// A server of the world's that is no part of its web. It ends with the test.
struct Service(Child);

impl Drop for Service {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// A program as the world's own user: some servers refuse to be root's.
fn as_tester(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .current_dir(PLACE);
    if runner_is_root() {
        command.uid(Who::User.uid()).gid(Who::User.uid());
    }
    command
}

#[track_caller]
fn run(command: &mut Command) {
    let output = command.output().expect("start a program");
    assert!(
        output.status.success(),
        "{command:?}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// A directory of the world's user.
fn place(name: &str) -> PathBuf {
    let path = Path::new(PLACE).join(name);
    run(as_tester("mkdir").arg(&path));
    path
}

fn await_port(port: u16) {
    eventually("the service listens", || {
        TcpStream::connect(("93.184.216.34", port)).ok()
    });
}

fn postgres() -> Service {
    let bin = fs::read_dir("/usr/lib/postgresql")
        .expect("the packages of scripts/setup.sh")
        .flatten()
        .map(|version| version.path().join("bin"))
        .find(|bin| bin.join("initdb").exists())
        .expect("a server of PostgreSQL");
    let data = place("postgres");
    run(as_tester(bin.join("initdb"))
        .args(["--no-sync", "--auth=trust", "--username=agent", "--pgdata"])
        .arg(&data));
    for (name, from) in [("server.crt", "server.pem"), ("server.key", "server.key")] {
        let to = data.join(name);
        run(as_tester("install")
            .args(["-m", "600"])
            .arg(Path::new(PLACE).join(from))
            .arg(to));
    }
    let rules = "local all all trust\nhost all all 0.0.0.0/0 trust\n";
    fs::write(data.join("pg_hba.conf"), rules).expect("its rules");
    let child = as_tester(bin.join("postgres"))
        .args(["-c", "fsync=off", "-c", "ssl=on"])
        .args(["-c", "listen_addresses=93.184.216.34"])
        .arg("-c")
        .arg(format!("unix_socket_directories={}", data.display()))
        .arg("-D")
        .arg(&data)
        .stderr(Stdio::null())
        .spawn()
        .expect("start the database");
    let service = Service(child);
    await_port(5432);
    service
}

fn psql_reaches_its_database(who: Who) {
    let mut world = World::new(who);
    world.rules(&["{domain: db.example.com, ports: [5432]}"], "");
    let _service = postgres();
    for mode in ["disable", "require"] {
        let outcome = world.shell(&format!(
            "psql 'host=db.example.com user=agent dbname=postgres sslmode={mode}' --no-psqlrc --tuples-only --no-align \
                 --command 'select ssl, 6 * 7 from pg_stat_ssl where pid = pg_backend_pid()'"
        ));
        outcome.assert_exit(0);
        let ssl = if mode == "require" { "t" } else { "f" };
        assert_eq!(outcome.stdout(), format!("{ssl}|42\n"), "{outcome:#?}");
    }
    let outcome =
        world.shell("psql 'host=93.184.216.34 user=agent dbname=postgres' --command 'select 1'");
    assert_ne!(outcome.code(), 0, "{outcome:#?}");
    assert_recorded(&outcome, "by address", &["deny_no_egress_rule"]);
}

fn ssh_reaches_its_host(who: Who) {
    let mut world = World::new(who);
    world.rules(&["{domain: shell.example.com, ports: [2222]}"], "");
    let place = place("sshd");
    for key in ["host", "user"] {
        run(as_tester("ssh-keygen")
            .args(["-q", "-t", "ed25519", "-N", "", "-C", key, "-f"])
            .arg(place.join(key)));
    }
    let settings = format!(
        "Port 2222\nListenAddress 93.184.216.34\nHostKey {0}/host\nAuthorizedKeysFile {0}/user.pub\nPidFile none\n\
         StrictModes no\nUsePAM no\nPasswordAuthentication no\n",
        place.display()
    );
    fs::write(place.join("config"), settings).expect("its settings");
    // It starts itself anew for every connection, so it wants to know where it is.
    let child = as_tester("/usr/sbin/sshd")
        .args(["-D", "-e", "-f"])
        .arg(place.join("config"))
        .stderr(Stdio::null())
        .spawn()
        .expect("start the ssh server");
    let _service = Service(child);
    await_port(2222);
    let key = fs::read_to_string(place.join("user")).expect("a key");
    world.jail.put(&world.jail.work.join("key"), &key);
    let host = fs::read_to_string(place.join("host.pub")).expect("a key");
    let known = format!("[shell.example.com]:2222 {host}");
    world.jail.put(&world.jail.work.join("known"), &known);
    let ssh = "chmod 600 key; ssh -F none -i key -o UserKnownHostsFile=known -o BatchMode=yes -o ConnectTimeout=60 -p 2222";
    let outcome = world.shell(&format!(
        "{ssh} belljar-tester@shell.example.com 'echo from $USER'"
    ));
    outcome.assert_exit(0);
    assert_eq!(outcome.stdout(), "from belljar-tester\n", "{outcome:#?}");
    let outcome = world.shell(&format!("{ssh} belljar-tester@other.example.com true"));
    assert_ne!(outcome.code(), 0, "{outcome:#?}");
    assert_recorded(&outcome, "another host", &["deny_no_egress_rule"]);
}

/// As those for mail and MySQL do. The client says nothing until it was greeted.
fn a_server_may_speak_first(who: Who) {
    let mut world = World::new(who);
    world.rules(&["{domain: mail.example.com, ports: [2525]}"], "");
    let listener = TcpListener::bind(("93.184.216.34", 2525)).expect("a server of the world");
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a caller");
        stream.write_all(b"220 ready\n").expect("greet it");
        let mut answer = [0; 5];
        stream.read_exact(&mut answer).expect("its answer");
        answer
    });
    world.jail.put(
        &world.jail.work.join("mail.py"),
        "import socket\n\
         with socket.create_connection(('mail.example.com', 2525)) as connection:\n\
         \x20   print(connection.recv(100).decode(), end='')\n\
         \x20   connection.sendall(b'QUIT\\n')\n",
    );
    let outcome = world.shell("python3 mail.py");
    outcome.assert_exit(0);
    assert_eq!(outcome.stdout(), "220 ready\n", "{outcome:#?}");
    assert_eq!(&server.join().expect("the server"), b"QUIT\n");
}

/// More connections at once than a process may usually have descriptors for half of: the keeper needs two for each.
fn a_crowd_of_connections_is_held(who: Who) {
    const CROWD: usize = 700;
    let mut world = World::new(who);
    world.rules(
        &["{domain: crowd.example.com, ports: [2525], rate_limit_per_min: 10000}"],
        "",
    );
    let listener = TcpListener::bind(("93.184.216.34", 2525)).expect("a server of the world");
    let server = std::thread::spawn(move || {
        let calls = listener.incoming().take(CROWD);
        let all: Vec<TcpStream> = calls.map(|call| call.expect("a caller")).collect();
        // Nobody is answered before all are there.
        for mut call in all {
            call.write_all(b"hello\n").expect("answer it");
        }
    });
    world.jail.put(
        &world.jail.work.join("crowd.py"),
        &format!(
            "import resource, socket\n\
             most = resource.getrlimit(resource.RLIMIT_NOFILE)\n\
             resource.setrlimit(resource.RLIMIT_NOFILE, (most[1], most[1]))\n\
             calls = [socket.create_connection(('crowd.example.com', 2525)) for _ in range({CROWD})]\n\
             print(sum(call.recv(100) == b'hello\\n' for call in calls))\n"
        ),
    );
    // What most systems give a process. This one has a world, and so its limit, to itself.
    let usual = Rlimit {
        current: Some(1024),
        ..getrlimit(Resource::Nofile)
    };
    setrlimit(Resource::Nofile, usual).expect("lower our own limit");
    let outcome = world.jail.run(&["python3", "crowd.py"]);
    outcome.assert_exit(0);
    assert_eq!(outcome.stdout(), format!("{CROWD}\n"), "{outcome:#?}");
    server.join().expect("the server");
}

/// A WebSocket by a client of somebody else's, through inspection: where the rule allows it, and only there.
fn a_websocket_is_passed_by_rule(who: Who) {
    const SERVER: &str = "import ssl, sys\n\
        from aiohttp import web\n\
        async def echo(request):\n\
        \x20   socket = web.WebSocketResponse()\n\
        \x20   await socket.prepare(request)\n\
        \x20   async for message in socket:\n\
        \x20       await socket.send_str('echo ' + message.data)\n\
        \x20   return socket\n\
        own = web.Application()\n\
        own.router.add_get('/talk', echo)\n\
        secure = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)\n\
        secure.load_cert_chain(sys.argv[1] + '/server.pem', sys.argv[1] + '/server.key')\n\
        web.run_app(own, host='93.184.216.34', port=9443, ssl_context=secure, print=None)\n";
    let mut world = World::new(who);
    let server = Command::new(support::PYTHON)
        .args(["-B", "-c", SERVER, PLACE])
        .stdin(Stdio::null())
        .spawn();
    let _server = Service(server.expect("a server of the world"));
    await_port(9443);
    world.jail.put(
        &world.jail.work.join("talk.py"),
        "import aiohttp, asyncio\n\
         async def talk():\n\
         \x20   async with aiohttp.ClientSession() as session:\n\
         \x20       async with session.ws_connect('https://talk.example.com:9443/talk') as socket:\n\
         \x20           await socket.send_str('x' * 100_000)\n\
         \x20           print(len((await socket.receive()).data))\n\
         \x20           await socket.send_str('hello')\n\
         \x20           print((await socket.receive()).data)\n\
         asyncio.run(talk())\n",
    );
    let rule = |websocket: &str| {
        format!(
            "{{domain: talk.example.com, ports: [9443], http: {{methods: [GET], websocket: {websocket}}}}}"
        )
    };
    world.rules(&[&rule("allow")], "");
    let outcome = world.jail.run(&[support::PYTHON, "-B", "talk.py"]);
    outcome.assert_exit(0);
    assert_eq!(outcome.stdout(), "100005\necho hello\n", "{outcome:#?}");
    world.rules(&[&rule("refuse")], "");
    let outcome = world.jail.run(&[support::PYTHON, "-B", "talk.py"]);
    assert_ne!(outcome.code(), 0, "{outcome:#?}");
    assert_recorded(&outcome, "a WebSocket", &["deny_websocket"]);
}

/// A box that serves its workspace on its own loopback until its input ends.
const SERVER: &str = "python3 -m http.server --bind 127.0.0.1 9000 >/dev/null 2>&1 & server=$!; read line || true; kill $server";

fn get(address: &str, port: u16, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect((address, port))?;
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    match text.is_empty() {
        true => Err(std::io::ErrorKind::UnexpectedEof.into()),
        false => Ok(text),
    }
}

/// With a network and without: what the host may reach does not depend on what the agent may.
fn a_published_port_is_reached_from_the_host_alone(who: Who) {
    let mut world = World::new(who);
    for (rules, address) in [
        (&["{domain: allowed.example.com}"][..], "127.0.0.1"),
        (&[][..], "127.0.0.1"),
        (&[][..], "0.0.0.0"),
    ] {
        let ports = format!("ports: [{{box: 9000, host: 9001, address: {address}}}]\n");
        match rules {
            [] => world.policy(&format!("extends: moderate\n{ports}")),
            rules => world.rules(rules, &ports),
        };
        let mut command = world.jail.json_command(&["/bin/sh", "-c", SERVER]);
        command.stdin(Stdio::piped());
        let mut child = command.spawn().expect("start the box");
        let page = eventually("the server in the box answers", || {
            get("127.0.0.1", 9001, "/main.txt").ok()
        });
        assert!(page.ends_with("the agent's work"), "{page}");
        // Its own port is not the host's.
        assert!(get("127.0.0.1", 9000, "/main.txt").is_err());
        let elsewhere = get("93.184.216.34", 9001, "/main.txt");
        assert_eq!(elsewhere.is_ok(), address == "0.0.0.0", "{elsewhere:?}");
        drop(child.stdin.take());
        let outcome = Outcome::from_json(finish(child));
        outcome.assert_exit(0);
        world.jail.assert_nothing_left(Some(outcome.sandbox_id()));
        assert!(get("127.0.0.1", 9001, "/main.txt").is_err());
    }
}

fn the_hosts_own_proxy_is_used(who: Who) {
    let mut world = World::new(who);
    world.jail.variable("PROXY_LOGIN", "agent:very secret");
    for (resolve, target) in [
        ("host", "93.184.216.34:443"),
        ("proxy", "allowed.example.com:443"),
    ] {
        let proxy = format!(
            "upstream_proxy: {{url: \"http://10.9.8.7:3128\", from: {{env: PROXY_LOGIN}}, resolve: {resolve}}}\n"
        );
        world.rules(&["{domain: allowed.example.com, ports: [443]}"], &proxy);
        let before = world.seen().len();
        let outcome = world.shell(
            "curl --silent --show-error --fail https://allowed.example.com/through
             curl --silent https://other.example.com/ && exit 1; true",
        );
        outcome.assert_exit(0);
        let asked = world.seen_since(before, "proxy");
        assert_eq!(asked.len(), 1, "{asked:#?}");
        let asked = asked[0]["asked"].as_str().unwrap_or_default();
        assert!(
            asked.starts_with(&format!("CONNECT {target} HTTP/1.1\r\n")),
            "{asked}"
        );
        assert!(
            asked.contains("Proxy-Authorization: Basic YWdlbnQ6dmVyeSBzZWNyZXQ=\r\n"),
            "{asked}"
        );
        assert_eq!(world.seen_since(before, "http").len(), 1);
    }
}

/// The keeper is killed while its box talks to an allowed host and tries others as fast as it can.
fn when_the_keeper_is_killed_nothing_falls_open(who: Who) {
    let mut world = World::new(who);
    world.rules(&["{domain: allowed.example.com, ports: [80, 443]}"], "");
    let program = world.program("linger.py");
    let command = world
        .jail
        .text_command(&[support::PYTHON, "-B", &program, "linger"])
        .spawn();
    let mut child = command.expect("start the box");
    eventually("the box has a connection and tries for others", || {
        let tried = fs::read_to_string(world.jail.work.join("tried")).unwrap_or_default();
        let holds = world
            .seen_since(0, "http")
            .iter()
            .any(|request| request["path"] == "/never");
        (holds && tried.lines().count() > 3).then_some(())
    });
    kill_process(Pid::from_child(&child), Signal::KILL).expect("kill the keeper");
    child.wait().expect("its end");
    eventually("the server sees the connection end", || {
        (!world.seen_since(0, "gone").is_empty()).then_some(())
    });
    eventually("nobody is left", || {
        let left = processes_marked(&world.jail.base);
        left.is_empty().then_some(())
    });
    let tried = fs::read_to_string(world.jail.work.join("tried")).expect("a report");
    assert!(!tried.contains("reached"), "{tried}");
    let others = world.seen().into_iter().filter(|entry| {
        let at = entry["at"].as_str().unwrap_or_default();
        at.ends_with(".35") || at.ends_with("8.8.8.8")
    });
    assert_eq!(others.count(), 0);
    // The same program outside reaches them all.
    let control = world.python_outside("linger.py", &["once"]);
    assert_eq!(control.stdout(), "reached 93.184.216.35\nreached 8.8.8.8\n");
}

for_each_user_in_a_world!(
    psql_reaches_its_database,
    ssh_reaches_its_host,
    a_server_may_speak_first,
    a_crowd_of_connections_is_held,
    a_websocket_is_passed_by_rule,
    a_published_port_is_reached_from_the_host_alone,
    the_hosts_own_proxy_is_used,
    when_the_keeper_is_killed_nothing_falls_open,
);
